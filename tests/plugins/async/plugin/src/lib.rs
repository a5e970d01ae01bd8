//! The asynchronous test provider as a plugin.

ep_core::export_provider!(provider::AsyncProvider);

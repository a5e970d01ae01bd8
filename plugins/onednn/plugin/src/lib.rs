//! The oneDNN provider as a loadable plugin: `libep_onednn.so` with the one exported symbol.

ep_core::export_provider!(provider::OnednnProvider);

//! The simulated accelerator as a loadable plugin: `libep_sim.so` with the one exported symbol.

ep_core::export_provider!(provider::SimProvider);

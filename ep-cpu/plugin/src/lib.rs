//! The CPU execution provider as a loadable plugin: `libep_cpu.so` with the one exported symbol.

ep_core::export_provider!(provider::provider::CpuProvider);

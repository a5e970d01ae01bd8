//! The CUDA execution provider as a loadable plugin: `libep_cuda.so` with the one exported symbol.

ep_core::export_provider!(provider::provider::CudaProvider);

//! The CUDA execution provider.
//!
//! Nothing of CUDA is needed to build it, and a machine without a driver can load it: libcuda and NVRTC are
//! opened when they are first needed. [`provider::CudaProvider`] is the provider and [`device::CudaDevice`] a
//! GPU; [`driver`] is what is known of libcuda; [`nvrtc`], [`compiler`] and [`cache`] turn the sources in `kernels/`
//! into code for the GPU at hand; `ops` turns what crosses the boundary into their launches.

mod bundle;
pub mod cache;
pub mod compiler;
pub mod context;
pub mod cublaslt;
pub mod device;
pub mod driver;
mod env;
pub mod event;
mod given;
pub mod graph;
pub mod kernel;
pub mod memory;
pub mod nvrtc;
pub mod ops;
mod pending;
pub mod provider;
mod refusal;
mod relaunch;
mod search;
pub mod settings;
pub mod space;
pub mod stream;
pub mod visible;
pub mod warm;

//! A CUDA driver, an NVRTC and a cuBLASLt for tests on machines without a GPU, as one library, `libfakecuda.so`.
//!
//! It keeps the state that a driver keeps and answers misuse with the code that the driver has for it: a call
//! without a current context, a handle or an address that is not live, a call that a capture does not allow, time
//! between events that were never recorded, an argument of the wrong size. Device memory lies at addresses that the
//! host cannot read. Work is queued and done late: a query finds it pending for a while, and only waiting makes it
//! done for sure. Kernels compute nothing, but the addresses in their arguments are checked when their turn comes.
//! Products of cuBLASLt are computed.
//! Every call is logged, the n-th can be made to fail, and what is not given back can be counted.
//!
//! The library exports `cuGetProcAddress_v2`, the functions of NVRTC and cuBLASLt, and a few that [`Fake`] calls to control it.
//! Its state is one for the process, as a driver's is: tests take turns. A program that does not know that its driver is a
//! fake gets one device, or as many as the variable `FAKECUDA_DEVICES` says, of which `CUDA_VISIBLE_DEVICES` chooses.

mod blocks;
mod capture;
mod control;
mod cubin;
mod cublaslt;
mod driver;
mod nodes;
mod nvrtc;
mod visible;
mod world;

pub use control::{Fake, Setup};

/// Results of the driver, as far as they are needed to control the fake.
pub mod result {
    /// No memory.
    pub const OUT_OF_MEMORY: i32 = 2;
    /// An uncorrectable error of the device's memory: the device is lost.
    pub const ECC_UNCORRECTABLE: i32 = 214;
    /// A kernel used an address that is not mapped.
    pub const ILLEGAL_ADDRESS: i32 = 700;
    /// A kernel failed otherwise.
    pub const LAUNCH_FAILED: i32 = 719;
}

//! The CPU execution provider.

pub mod alloc;
pub mod isa;
pub mod kernels;

//! The CPU execution provider.
//!
//! [`provider::CpuProvider`] is the provider, [`device::CpuDevice`] the CPU as its device. `ops` turns what
//! crosses the boundary into the arguments of [`kernels`], which compute; [`isa`] chooses their instruction
//! set and [`alloc`] keeps the memory.

pub mod alloc;
pub mod device;
pub mod isa;
pub mod kernels;
mod ops;
pub mod provider;

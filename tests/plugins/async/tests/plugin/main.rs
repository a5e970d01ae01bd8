//! The asynchronous test provider behind its tables.

mod kernels;
mod rig;
mod streams;

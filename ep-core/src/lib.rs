//! ep-core
pub mod dtype;
pub use dtype::DType;

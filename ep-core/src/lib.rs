//! The execution-provider contract.
pub mod abi;
pub mod dtype;
pub mod error;
pub mod handle;
pub mod hob;
pub mod op;
pub mod parallel;
pub mod primitive;
pub mod provider;
mod scalar;
pub mod schema;

pub use dtype::{DType, Element};
pub use error::{Code, Error, Result};
pub use scalar::Scalar;

//! ep-core
pub mod dtype;
pub mod error;
pub mod parallel;
pub use dtype::{DType, Element};
pub use error::{Code, Error, Result};

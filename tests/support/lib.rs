//! Support for the integration tests.

pub mod loading;
pub mod logs;
pub mod ops;
pub mod random;
pub mod ranked;

pub use random::{Random, bits};

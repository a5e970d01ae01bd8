//! Support for the integration tests.

pub mod loading;
pub mod logs;
pub mod ops;
pub mod random;
pub mod ranked;
pub mod under;

pub use random::{Random, bits};
pub use under::{Under, plugin};

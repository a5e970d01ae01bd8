//! Support for the integration tests.

pub mod loading;
pub mod logs;
pub mod ops;
pub mod random;
pub mod ranked;
#[cfg(feature = "linked")]
pub mod under;

pub use random::{Random, bits};
#[cfg(feature = "linked")]
pub use under::{Under, plugin};

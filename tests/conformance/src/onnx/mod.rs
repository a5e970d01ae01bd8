//! ONNX's own node tests as an independent judge of a provider.
//!
//! A [`suite::Suite`] has models of one operator or a few, with input and what has to come out. Each operator that the
//! primitives can express is a rule in `map`: launches through the dynamic API, on values in memory of the device. The
//! kit computes nothing on elements itself; it reads a value back only where an operator has a shape, axes or another
//! parameter as an input.

mod compare;
mod launches;
pub(crate) mod machine;
mod map;
pub mod not_run;
pub mod run;
pub mod suite;

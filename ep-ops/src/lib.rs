//! Tensors and operators on any device: what a host computes with when it does not want to count rows and columns.
//!
//! ```text
//! Ops (a device, a stream, a fallback order)
//!   .softmax(&x, -1)  ->  Operator: infer shapes -> run: pick a primitive of ep-registry -> launch
//! ```
//!
//! - A [`Tensor`] is a typed view of shared memory: shape, strides, offset. Views ([`Tensor::permute`],
//!   [`Tensor::narrow`], [`Tensor::expand`] ...) move no data.
//! - An [`Operator`] says which shapes it gives, computes by primitives, and lists the [`Signature`]s by which it may be
//!   split over devices. It never touches data itself.
//! - [`Ops`] runs operators on one device. What that device cannot do goes to the next one of the fallback order, and each
//!   such copy is told ([`Ops::fallbacks`]). Nothing else leaves the device, and no dtype is converted silently.
//!
//! Names and meanings follow PyTorch (views, `contiguous`, `copy_`) and OneFlow (SBP).

#![forbid(unsafe_code)]

mod copies;
mod create;
mod layout;
mod operator;
pub mod operators;
mod ops;
pub mod sbp;
mod spec;
mod tensor;
mod views;

pub use operator::Operator;
pub use ops::{Fallback, Ops};
pub use sbp::{Sbp, Signature};
pub use spec::{MemoryFormat, Shape, Spec};
pub use tensor::{Tensor, TensorRead, TensorWrite};

/// The snippets of `docs/operators.md`, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../docs/operators.md")]
pub struct OperatorsGuide;

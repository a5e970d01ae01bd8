//! Slow and obviously right versions of all primitives, which tests, the conformance kit and simulated devices
//! compare with or compute by.
//!
//! [`Launch`] describes a launch of any op by the names of its schema, and [`Launch::run`] computes what it
//! writes. Elements are [`Number`]s; results of real and complex arithmetic are computed to more than 100 bits
//! ([`math`]) and rounded once to the destination's dtype, so for f16, bf16, f32 and f64 alike they are
//! the exact results, rounded. Integers are exact and wrap at the end. What copies elements copies bits.
//!
//! [`softmax()`], [`log_softmax()`], [`matmul()`], [`matmul_wrapping`] and [`permute()`] are plain functions
//! over slices for tests that have those at hand; they compute in f64.

mod add;
mod arange;
mod arg_reduce;
mod batch_gather;
mod batch_matmul;
mod broadcast_elementwise_binary;
mod broadcast_elementwise_unary;
mod broadcast_matmul;
mod cast;
mod constant_pad;
mod copy_nd;
mod elementwise_unary;
mod fill;
mod gather;
mod index;
mod launch;
mod layer_norm;
mod log_softmax;
mod log_softmax_backward;
pub mod math;
mod matmul;
mod memcpy;
mod memset;
mod number;
mod one_hot;
mod permute;
mod reduce;
mod rms_norm;
mod scatter_add;
mod shape;
mod softmax;
mod softmax_backward;
mod strided_copy;
mod tensor_fill;
mod where_;

pub use broadcast_elementwise_binary::Binary;
pub use elementwise_unary::Unary;
pub use launch::{Launch, Outputs};
pub use log_softmax::log_softmax;
pub use matmul::{MatmulShape, matmul, matmul_wrapping};
pub use number::{Data, Number, View, format_of, int_range, part_of};
pub use permute::permute;
pub use softmax::softmax;

use ep_core::{Error, Result};

/// Functions by name.
type Table<F, const N: usize> = [(&'static str, F); N];

type Run = fn(&Launch<'_>) -> Result<Outputs>;

/// The ops by the names of their schemas.
const OPS: Table<Run, 30> = [
    ("add", add::run),
    ("arange", arange::run),
    ("arg_reduce", arg_reduce::run),
    ("batch_gather", batch_gather::run),
    ("batch_matmul", batch_matmul::run),
    ("broadcast_elementwise_binary", broadcast_elementwise_binary::run),
    ("broadcast_elementwise_unary", broadcast_elementwise_unary::run),
    ("broadcast_matmul", broadcast_matmul::run),
    ("cast", cast::run),
    ("constant_pad", constant_pad::run),
    ("copy_nd", copy_nd::run),
    ("elementwise_unary", elementwise_unary::run),
    ("fill", fill::run),
    ("gather", gather::run),
    ("layer_norm", layer_norm::run),
    ("log_softmax", log_softmax::run),
    ("log_softmax_backward", log_softmax_backward::run),
    ("matmul", matmul::run),
    ("memcpy", memcpy::run),
    ("memset", memset::run),
    ("one_hot", one_hot::run),
    ("permute", permute::run),
    ("reduce", reduce::run),
    ("rms_norm", rms_norm::run),
    ("scatter_add", scatter_add::run),
    ("softmax", softmax::run),
    ("softmax_backward", softmax_backward::run),
    ("strided_copy", strided_copy::run),
    ("tensor_fill", tensor_fill::run),
    ("where", where_::run),
];

/// The names of all ops that there is a reference of.
pub fn ops() -> impl Iterator<Item = &'static str> {
    OPS.iter().map(|(name, _)| *name)
}

fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let found = OPS.iter().find(|(name, _)| *name == launch.op());
    let (_, run) =
        found.ok_or_else(|| Error::unsupported(format!("there is no reference of `{}`", launch.op())))?;
    run(launch)
}

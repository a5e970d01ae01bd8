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

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::DType;
    use std::sync::mpsc;
    use std::time::Duration;

    /// No buffer says how large the other dimensions of nothing are.
    #[test]
    fn dimensions_beside_an_empty_one_are_not_counted_through() {
        type Sizes = &'static [(&'static str, i64)];
        const FAR: i64 = 1 << 40;
        let cases: [(&str, Sizes, &str); 9] = [
            ("reduce", &[("outer", FAR), ("reduced", 2), ("inner", 0)], "dst"),
            ("reduce", &[("outer", 0), ("reduced", FAR), ("inner", FAR)], "dst"),
            ("arg_reduce", &[("outer", FAR), ("reduced", 2), ("inner", 0)], "dst"),
            ("gather", &[("outer", FAR), ("processed", 3), ("inner", 0), ("num_indices", 2)], "dst"),
            ("gather", &[("outer", FAR), ("processed", 0), ("inner", FAR), ("num_indices", 0)], "dst"),
            (
                "batch_gather",
                &[("batch", FAR), ("outer", 1), ("processed", 0), ("inner", 3), ("num_indices", 0)],
                "dst",
            ),
            ("scatter_add", &[("outer", 2), ("processed", FAR), ("inner", 0), ("num_indices", 2)], "dst"),
            ("softmax", &[("rows", FAR), ("cols", 0), ("inner", 1)], "dst"),
            ("matmul", &[("m", FAR), ("n", 0), ("k", 0)], "c"),
        ];
        for (op, sizes, output) in cases {
            let (done, finished) = mpsc::channel();
            std::thread::spawn(move || {
                let indices = Data::new(DType::I64, [0, 1].map(Number::Int));
                let mut launch = Launch::new(op).selector("mode", "error").dtype("indices", DType::I64);
                launch = launch.selector("op", if op == "reduce" { "sum" } else { "argmax" });
                launch = launch.selector("transpose_a", "none").selector("transpose_b", "none");
                let dst = if op == "arg_reduce" { DType::I64 } else { DType::F32 };
                launch = launch.dtype("src", DType::F32).dtype("dst", dst).dtype("data", DType::F32);
                launch = sizes.iter().fold(launch, |launch, (name, size)| launch.size(name, *size));
                launch = launch.read("indices", indices.view());
                let written = launch.run().map(|o| o.get(output).unwrap().bytes.len());
                done.send(written).unwrap();
            });
            let written = finished.recv_timeout(Duration::from_secs(20));
            assert_eq!(written, Ok(Ok(0)), "{op} {sizes:?}");
        }
    }
}

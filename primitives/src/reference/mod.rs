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
    use ep_core::{Code, DType};

    const HUGE: i64 = 1 << 62;

    /// A size of 0 leaves nothing to do, however large the others are: nothing is gone through, allocated or multiplied.
    #[test]
    fn sizes_beside_a_zero_may_be_any() {
        let reduce = |op, selector: &'static str, dst, sizes: [i64; 3]| {
            let launch = Launch::new(op).selector("op", selector).dtype("src", DType::F32).dtype("dst", dst);
            ["outer", "reduced", "inner"].into_iter().zip(sizes).fold(launch, |l, (name, n)| l.size(name, n))
        };
        let indexed = |op, sizes: [i64; 5]| {
            let launch = Launch::new(op).selector("mode", "zero").dtype("indices", DType::I64);
            let names = ["batch", "outer", "processed", "inner", "num_indices"];
            names
                .into_iter()
                .zip(sizes)
                .fold(launch.dtype("data", DType::F64), |l, (name, n)| l.size(name, n))
        };
        let index = Data::new(DType::I64, [Number::Int(1)]);
        let launches = [
            (reduce("reduce", "sum", DType::F32, [HUGE, 3, 0]), "dst"),
            (reduce("reduce", "sum", DType::F32, [0, HUGE, HUGE]), "dst"),
            (reduce("arg_reduce", "argmax", DType::I64, [HUGE, 3, 0]), "dst"),
            (indexed("batch_gather", [HUGE, HUGE, 0, 2, 0]), "dst"),
            (indexed("batch_gather", [1, HUGE, 2, 0, 1]).read("indices", index.view()), "dst"),
            (indexed("gather", [0, 0, 3, HUGE, 0]), "dst"),
            (indexed("scatter_add", [0, 0, HUGE, 2, 1]).read("indices", index.view()), "dst"),
            (indexed("scatter_add", [0, 2, HUGE, 0, 1]).read("indices", index.view()), "dst"),
            (
                Launch::new("permute")
                    .dtype("data", DType::U8)
                    .dims("src_dims", &[HUGE, HUGE, 0])
                    .dims("permutation", &[2, 0, 1]),
                "dst",
            ),
        ];
        for (launch, output) in launches {
            let outputs = launch.run().unwrap_or_else(|e| panic!("{launch:?}: {e}"));
            assert!(outputs.get(output).unwrap().bytes.is_empty(), "{launch:?}");
        }
    }

    #[test]
    fn products_over_nothing_are_as_quick_for_any_batch() {
        let c = Data::new(DType::F32, [Number::Real(3.0)]);
        let product = Launch::new("broadcast_matmul")
            .selector("transpose_a", "none")
            .selector("transpose_b", "none")
            .dtype("data", DType::F32)
            .dims("a_dims", &[HUGE, HUGE, 1, 0])
            .dims("b_dims", &[0, 1])
            .dims("c_dims", &[1, 1])
            .scalar("beta", ep_core::Scalar::F64(2.0))
            .read("c", c.view());
        assert_eq!(product.run().unwrap().get("c").unwrap().get(0), Number::Real(6.0));
    }

    /// Statistics of empty rows are NaN, of each row; where nobody takes them there is nothing to go through.
    #[test]
    fn empty_rows_are_counted_for_their_statistics_only() {
        for (op, statistics) in [("layer_norm", &["mean", "rstd"][..]), ("rms_norm", &["inv_rms"])] {
            let launch = Launch::new(op).dtype("data", DType::F16).dtype("stats", DType::F32);
            let outputs = launch.clone().size("rows", HUGE).take(["dst"]).run().unwrap();
            assert!(outputs.get("dst").unwrap().bytes.is_empty());
            for taken in statistics {
                let outputs = launch.clone().size("rows", 3).take(["dst", *taken]).run().unwrap();
                let found = outputs.get(taken).unwrap();
                assert!((0..3).all(|row| found.get(row).is_nan()), "{taken}");
            }
        }
    }

    /// Also where what is behind a dimension brings it back.
    #[test]
    fn paddings_beyond_an_i64_are_refused() {
        let pad = |before: &[i64], after: &[i64]| {
            let launch = Launch::new("constant_pad").dtype("data", DType::U8).dims("src_dims", &[2]);
            let src = Data::new(DType::U8, [Number::Int(7), Number::Int(8)]);
            launch.dims("padding_before", before).dims("padding_after", after).read("src", src.view()).run()
        };
        for (before, after) in [(i64::MAX, i64::MIN + 3), (i64::MAX - 2, 1), (-3, 0), (i64::MIN, 5)] {
            let refused = pad(&[before], &[after]).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument, "{before} {after}");
        }
        assert_eq!(pad(&[-3], &[2]).unwrap().get("dst").unwrap().bytes, [0]);
    }
}

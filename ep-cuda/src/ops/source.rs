//! The kernels' sources, as they are built in.

use crate::compiler::Source;

/// Every header that a source may include.
pub(crate) const HEADERS: &[(&str, &str)] = &[
    ("common.cuh", include_str!("../../kernels/common.cuh")),
    ("normalizer.cuh", include_str!("../../kernels/normalizer.cuh")),
    ("rows.cuh", include_str!("../../kernels/rows.cuh")),
    ("math.cuh", include_str!("../../kernels/math.cuh")),
    ("f32_math.cuh", include_str!("../../kernels/f32_math.cuh")),
    ("gamma_math.cuh", include_str!("../../kernels/gamma_math.cuh")),
    ("half_math.cuh", include_str!("../../kernels/half_math.cuh")),
    ("nd.cuh", include_str!("../../kernels/nd.cuh")),
    ("unary_ops.cuh", include_str!("../../kernels/unary_ops.cuh")),
    ("binary_ops.cuh", include_str!("../../kernels/binary_ops.cuh")),
    ("indices.cuh", include_str!("../../kernels/indices.cuh")),
];

/// A file of `kernels/`, whose kernel is `ep_` and its name.
const fn source(name: &'static str, entry: &'static str, text: &'static str) -> Source {
    Source { name, text, entry }
}

pub(super) static ADD: Source = source("add.cu", "ep_add", include_str!("../../kernels/add.cu"));
pub(super) static ARANGE: Source = source("arange.cu", "ep_arange", include_str!("../../kernels/arange.cu"));
pub(super) static ARG_REDUCE: Source =
    source("arg_reduce.cu", "ep_arg_reduce", include_str!("../../kernels/arg_reduce.cu"));
pub(super) static BINARY: Source = source("binary.cu", "ep_binary", include_str!("../../kernels/binary.cu"));
pub(super) static COPY: Source = source("copy.cu", "ep_copy", include_str!("../../kernels/copy.cu"));
pub(super) static COPY_RUNS: Source =
    source("copy_runs.cu", "ep_copy_runs", include_str!("../../kernels/copy_runs.cu"));
pub(super) static FILL: Source = source("fill.cu", "ep_fill", include_str!("../../kernels/fill.cu"));
pub(super) static GATHER: Source = source("gather.cu", "ep_gather", include_str!("../../kernels/gather.cu"));
pub(super) static INTERLEAVE: Source =
    source("interleave.cu", "ep_interleave", include_str!("../../kernels/interleave.cu"));
pub(super) static NORM: Source = source("norm.cu", "ep_norm", include_str!("../../kernels/norm.cu"));
pub(super) static NORM_WIDE: Source =
    source("norm_wide.cu", "ep_norm_wide", include_str!("../../kernels/norm_wide.cu"));
pub(super) static ONE_HOT: Source =
    source("one_hot.cu", "ep_one_hot", include_str!("../../kernels/one_hot.cu"));
pub(super) static PAD: Source = source("pad.cu", "ep_pad", include_str!("../../kernels/pad.cu"));
pub(super) static PERMUTE: Source =
    source("permute.cu", "ep_permute", include_str!("../../kernels/permute.cu"));
pub(super) static REDUCE: Source = source("reduce.cu", "ep_reduce", include_str!("../../kernels/reduce.cu"));
pub(super) static SCATTER_ADD: Source =
    source("scatter_add.cu", "ep_scatter_add", include_str!("../../kernels/scatter_add.cu"));
pub(super) static SOFTMAX: Source =
    source("softmax.cu", "ep_softmax", include_str!("../../kernels/softmax.cu"));
pub(super) static SOFTMAX_BACKWARD: Source =
    source("softmax_backward.cu", "ep_softmax_backward", include_str!("../../kernels/softmax_backward.cu"));
pub(super) static SOFTMAX_STRIDED: Source =
    source("softmax_strided.cu", "ep_softmax_strided", include_str!("../../kernels/softmax_strided.cu"));
pub(super) static SOFTMAX_WIDE: Source =
    source("softmax_wide.cu", "ep_softmax_wide", include_str!("../../kernels/softmax_wide.cu"));
pub(super) static TRANSPOSE: Source =
    source("transpose.cu", "ep_transpose", include_str!("../../kernels/transpose.cu"));
pub(super) static UNARY: Source = source("unary.cu", "ep_unary", include_str!("../../kernels/unary.cu"));
pub(super) static WHERE: Source = source("where.cu", "ep_where", include_str!("../../kernels/where.cu"));

#[cfg(test)]
mod tests {
    /// Launches may overlap because of that, whichever kernel comes after which.
    #[test]
    fn every_kernel_begins_by_waiting_for_earlier_work() {
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels")).unwrap();
        let mut kernels = 0;
        for file in files.map(|f| f.unwrap().path()).filter(|f| f.extension().is_some_and(|e| e != "md")) {
            let text = std::fs::read_to_string(&file).unwrap();
            for body in text.split("__global__").skip(1) {
                let first = body.split_once(") {\n").map(|(_, body)| body.trim_start());
                assert!(
                    first.is_some_and(|s| s.starts_with("await_stream();")),
                    "{}: {first:?}",
                    file.display()
                );
                kernels += 1;
            }
        }
        assert!(kernels >= 25, "{kernels}");
    }
}

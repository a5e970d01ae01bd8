//! The kernels' sources, as they are built in.

use crate::compiler::Source;

/// Every header that a source may include.
pub(crate) const HEADERS: &[(&str, &str)] = &[
    ("common.cuh", include_str!("../../kernels/common.cuh")),
    ("normalizer.cuh", include_str!("../../kernels/normalizer.cuh")),
    ("rows.cuh", include_str!("../../kernels/rows.cuh")),
    ("math.cuh", include_str!("../../kernels/math.cuh")),
    ("nd.cuh", include_str!("../../kernels/nd.cuh")),
    ("unary_ops.cuh", include_str!("../../kernels/unary_ops.cuh")),
    ("binary_ops.cuh", include_str!("../../kernels/binary_ops.cuh")),
    ("indices.cuh", include_str!("../../kernels/indices.cuh")),
];

pub(super) static FILL: Source =
    Source { name: "fill.cu", text: include_str!("../../kernels/fill.cu"), entry: "ep_fill" };
pub(super) static UNARY: Source =
    Source { name: "unary.cu", text: include_str!("../../kernels/unary.cu"), entry: "ep_unary" };
pub(super) static SOFTMAX: Source =
    Source { name: "softmax.cu", text: include_str!("../../kernels/softmax.cu"), entry: "ep_softmax" };
pub(super) static SOFTMAX_BACKWARD: Source = Source {
    name: "softmax_backward.cu",
    text: include_str!("../../kernels/softmax_backward.cu"),
    entry: "ep_softmax_backward",
};
pub(super) static SOFTMAX_WIDE: Source = Source {
    name: "softmax_wide.cu",
    text: include_str!("../../kernels/softmax_wide.cu"),
    entry: "ep_softmax_wide",
};
pub(super) static SOFTMAX_STRIDED: Source = Source {
    name: "softmax_strided.cu",
    text: include_str!("../../kernels/softmax_strided.cu"),
    entry: "ep_softmax_strided",
};

//! Why operators have no rule.

const REASONS: &[(&str, &[&str])] = &[
    ("adds up windows that overlap, which no primitive does", &["Col2Im", "ConvTranspose"]),
    ("takes windows at places that depend on the content", &["DeformConv", "MaxUnpool", "RoiAlign"]),
    ("rounds a product of integers in a way of its own", &["QLinearConv"]),
    ("interpolates, which no primitive does", &["AffineGrid", "GridSample", "Resize", "Upsample"]),
    (
        "has an expanded form of simpler operators, which is run",
        &[
            "Attention",
            "BlackmanWindow",
            "CausalConvWithState",
            "DynamicQuantizeLinear",
            "HammingWindow",
            "HannWindow",
            "RotaryEmbedding",
            "SwiGLU",
            "ai.onnx.preview.FlexAttention",
        ],
    ),
    (
        "gives a shape that depends on the content",
        &["Compress", "NonMaxSuppression", "NonZero", "TfIdfVectorizer", "Unique"],
    ),
    ("sorts, which no primitive does", &["TopK"]),
    (
        "overwrites by indices, where primitives add",
        &["Scatter", "ScatterElements", "ScatterND", "TensorScatter"],
    ),
    ("is control flow, and not a computation", &["If", "Loop", "Scan"]),
    ("goes step by step through a sequence", &["CumProd", "GRU", "LSTM", "LinearAttention", "RNN"]),
    ("draws random numbers", &["Bernoulli", "RandomUniformLike"]),
    ("is a transform of signals, which no primitive does", &["DFT", "MelWeightMatrix", "STFT"]),
    ("decomposes a matrix, which no primitive does", &["Det"]),
    (
        "is a step of training, and not an operator",
        &[
            "ai.onnx.preview.training.Adagrad",
            "ai.onnx.preview.training.Adam",
            "ai.onnx.preview.training.Momentum",
        ],
    ),
    (
        "is about sequences, optional values, images or trees, and not about tensors",
        &[
            "ImageDecoder",
            "OptionalGetElement",
            "OptionalHasElement",
            "ai.onnx.ml.ArrayFeatureExtractor",
            "ai.onnx.ml.TreeEnsemble",
        ],
    ),
];

/// Why an operator without a rule is not run.
pub fn no_rule(op: &str) -> String {
    let known = REASONS.iter().find(|(_, ops)| ops.contains(&op));
    format!("{op}: {}", known.map_or("no rule says how primitives compute it", |(reason, _)| reason))
}

#[cfg(test)]
mod tests {
    use super::super::rule;
    use super::*;

    #[test]
    fn reasons_are_of_operators_without_a_rule() {
        for op in REASONS.iter().flat_map(|(_, ops)| ops.iter()) {
            assert!(rule(op).is_none(), "{op}");
        }
        assert_eq!(no_rule("TopK"), "TopK: sorts, which no primitive does");
        assert!(no_rule("New").starts_with("New: no rule"));
    }
}

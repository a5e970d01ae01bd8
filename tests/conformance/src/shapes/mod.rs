//! The cases of each op: arguments for every trait that applies to it.

mod elementwise;
mod indexed;
mod movers;
mod products;
mod rows;

use crate::case::{Case, Content, Key};

/// Element counts and distances from an aligned address: none, one, odd, one below and above whole vectors, a tail,
/// several tiles of 32, several pages, more than a core's cache.
const LENGTHS: [(&str, i64, usize); 12] = [
    ("empty", 0, 0),
    ("one", 1, 0),
    ("few", 3, 0),
    ("odd", 37, 0),
    ("one below whole vectors", 63, 0),
    ("whole vectors", 64, 0),
    ("vectors and a tail", 131, 0),
    ("tiles", 1057, 0),
    ("misaligned", 67, 1),
    ("misaligned, long", 513, 3),
    ("pages", 5003, 0),
    ("large", 65_539, 0),
];
/// Longer operands repeat their first elements, of which there are so many: a prime, so that no vector, tile or row
/// length hides a kernel that reads the wrong ones.
const PERIOD: i64 = 1009;

/// The cases of a key; none for an op that this version does not know.
///
/// At least 12, and at least one for each of [`crate::traits::applicable`].
pub fn cases(key: &Key, seed: u64) -> Vec<Case> {
    let mut cases = match key.op.as_str() {
        "memcpy" => movers::memcpy(key),
        "memset" => movers::memset(key),
        "fill" => movers::fill(key),
        "tensor_fill" => movers::tensor_fill(key),
        "arange" => movers::arange(key),
        "add" => elementwise::add(key),
        "cast" => elementwise::unary(key),
        "elementwise_unary" => elementwise::unary(key),
        "broadcast_elementwise_unary" => elementwise::strided_unary(key),
        "broadcast_elementwise_binary" => elementwise::binary(key),
        "where" => elementwise::choose(key),
        "permute" => movers::permute(key),
        "copy_nd" => movers::copy_nd(key),
        "strided_copy" => movers::strided_copy(key),
        "constant_pad" => movers::pad(key),
        "one_hot" => indexed::one_hot(key),
        "gather" | "scatter_add" => indexed::gather(key, &["outer"]),
        "batch_gather" => indexed::gather(key, &["batch", "outer"]),
        "softmax" | "log_softmax" => rows::rows(key, &[("dst", "src")]),
        "softmax_backward" | "log_softmax_backward" => rows::rows(key, &[("dx", "y"), ("dx", "dy")]),
        "layer_norm" => rows::norm(key, &["gamma", "beta", "mean", "rstd"]),
        "rms_norm" => rows::norm(key, &["weight", "inv_rms"]),
        "reduce" | "arg_reduce" => rows::reduce(key),
        "matmul" | "batch_matmul" => products::matmul(key),
        "broadcast_matmul" => products::broadcast_matmul(key),
        _ => Vec::new(),
    };
    for (i, case) in cases.iter_mut().enumerate() {
        case.set_seed(seed.wrapping_mul(1_000_003).wrapping_add(i as u64));
    }
    cases
}

/// A case for each of [`LENGTHS`].
fn lengths(make: impl Fn(&'static str, i64) -> Case) -> Vec<Case> {
    let case = |(name, n, shift): &(&'static str, i64, usize)| {
        let case = make(name, *n).shifted(*shift);
        if *n > PERIOD * 2 { case.repeating(make(name, PERIOD)) } else { case }
    };
    LENGTHS.iter().map(case).collect()
}

/// Special values where the op's result is agreed for them: all kinds, or NaN, infinities and zeros where f32
/// intermediates may overflow although the exact result does not.
fn special(key: &Key, function: &str) -> Content {
    if crate::traits::arithmetic_of_complex(key) {
        return Content::Modest;
    }
    if crate::tolerance::allows_wild(&key.op, function) { Content::Wild } else { Content::NonFinite }
}

#[cfg(test)]
mod tests;

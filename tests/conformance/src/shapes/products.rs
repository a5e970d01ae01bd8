//! Cases of the matrix products.

use super::special;
use crate::case::{Case, Content, Key};
use ep_core::{DType, Scalar};

fn factors(key: &Key) -> [(Scalar, Scalar); 3] {
    let data = key.dtype("data");
    let (alpha, beta) = if DType::INT.contains(&data) {
        (Scalar::I64(3), Scalar::I64(-2))
    } else if DType::COMPLEX.contains(&data) {
        (Scalar::Complex(0.5, -1.25), Scalar::Complex(-0.75, 0.5))
    } else {
        (Scalar::F64(0.5), Scalar::F64(-0.75))
    };
    [(Scalar::None, Scalar::None), (alpha, Scalar::F64(0.0)), (alpha, beta)]
}

/// Longer than the pieces that kernels cut sums into.
const DEEP: i64 = 1057;
/// More than a grid of a GPU has along its second and third dimension.
const MANY: i64 = 65_539;
/// So many of them have content of their own.
const MANY_PERIOD: i64 = 7;

pub(super) fn matmul(key: &Key) -> Vec<Case> {
    let shapes = [
        ("empty", [0, 5, 3]),
        ("nothing to sum", [5, 3, 0]),
        ("one", [1, 1, 1]),
        ("small", [8, 8, 8]),
        ("odd", [7, 13, 5]),
        ("a row", [1, 67, 37]),
        ("a column", [67, 1, 37]),
        ("outer product", [19, 35, 1]),
        ("tiles", [33, 65, 34]),
        ("deep", [17, 18, 131]),
    ];
    let mut cases = Vec::new();
    for (i, (name, [m, n, k])) in shapes.into_iter().enumerate() {
        for (alpha, beta) in [factors(key)[i % 3], factors(key)[2]] {
            let mut case = Case::new(key, name)
                .sizes(&[("m", m), ("n", n), ("k", k)])
                .scalar("alpha", alpha)
                .scalar("beta", beta);
            if key.op == "batch_matmul" {
                case = case.sizes(&[("batch", 3)]);
            }
            cases.push(case);
        }
    }
    let last = |name, [m, n, k]: [i64; 3]| {
        let case = Case::new(key, name)
            .sizes(&[("m", m), ("n", n), ("k", k)])
            .scalar("alpha", factors(key)[2].0)
            .scalar("beta", factors(key)[2].1);
        if key.op == "batch_matmul" { case.sizes(&[("batch", 3)]) } else { case }
    };
    cases.push(last("misaligned", [17, 33, 18]).shifted(1));
    cases.push(last("non-finite", [9, 11, 13]).content(special(key, "")));
    if special(key, "") != Content::Modest {
        cases.push(last("zeros and infinities", [13, 17, 19]).content(Content::Sparse));
    }
    cases.push(last("large", [257, 259, 5]));
    cases.push(last("very deep", [5, 7, DEEP]));
    cases.push(last("very wide", [3, 4099, 5]));
    cases.push(last("very tall", [4099, 3, 5]));
    if key.op == "batch_matmul" {
        let many = |batch| {
            let case = Case::new(key, "many").sizes(&[("m", 1), ("n", 1), ("k", 3), ("batch", batch)]);
            case.scalar("alpha", factors(key)[2].0).scalar("beta", factors(key)[2].1)
        };
        cases.push(many(MANY).repeating(many(MANY_PERIOD)));
    }
    cases
}

pub(super) fn broadcast_matmul(key: &Key) -> Vec<Case> {
    /// Name, and the batch dimensions of a, b and c.
    type Batches<'a> = (&'a str, &'a [i64], &'a [i64], &'a [i64]);
    let batches: [Batches<'_>; 9] = [
        ("plain", &[], &[], &[]),
        ("batch", &[3], &[3], &[3]),
        ("one b", &[2, 3], &[], &[2, 3]),
        ("one a", &[], &[3], &[3]),
        ("both broadcast", &[2, 1], &[1, 3], &[2, 3]),
        ("summed", &[3], &[3], &[]),
        ("partly summed", &[2, 3], &[2, 3], &[2, 1]),
        ("summed in front", &[2, 3], &[3], &[1, 3]),
        ("no batch", &[0], &[0], &[]),
    ];
    let mut cases = Vec::new();
    for (i, (name, a, b, c)) in batches.into_iter().enumerate() {
        let [m, n, k] = [[5, 7, 9], [1, 19, 17], [17, 33, 18]][i % 3];
        let dims = |batch: &[i64], rows: i64, cols: i64, transpose: &str| {
            let last = if key.selector(transpose) == "none" { [rows, cols] } else { [cols, rows] };
            [batch, &last].concat()
        };
        for (alpha, beta) in [factors(key)[i % 3], factors(key)[2]] {
            cases.push(
                Case::new(key, name)
                    .list("a_dims", &dims(a, m, k, "transpose_a"))
                    .list("b_dims", &dims(b, k, n, "transpose_b"))
                    .list("c_dims", &[c, &[m, n]].concat())
                    .scalar("alpha", alpha)
                    .scalar("beta", beta),
            );
        }
    }
    let square = |name, m: i64, n: i64, k: i64, batch: &[i64]| {
        let dims = |rows: i64, cols: i64, transpose: &str| {
            let last = if key.selector(transpose) == "none" { [rows, cols] } else { [cols, rows] };
            [batch, &last].concat()
        };
        Case::new(key, name)
            .list("a_dims", &dims(m, k, "transpose_a"))
            .list("b_dims", &dims(k, n, "transpose_b"))
            .list("c_dims", &[batch, &[m, n]].concat())
            .scalar("alpha", factors(key)[2].0)
            .scalar("beta", factors(key)[2].1)
    };
    cases.push(square("empty", 0, 5, 3, &[2]));
    cases.push(square("tiles", 33, 35, 34, &[]));
    cases.push(square("misaligned", 17, 33, 18, &[2]).shifted(1));
    cases.push(square("rank 8", 3, 5, 7, &[1, 2, 1, 3, 1, 2]));
    cases.push(square("non-finite", 9, 11, 13, &[2]).content(special(key, "")));
    if special(key, "") != Content::Modest {
        cases.push(square("zeros and infinities", 13, 17, 19, &[2]).content(Content::Sparse));
    }
    cases.push(square("large", 257, 259, 5, &[]));
    cases.push(square("very deep", 5, 7, DEEP, &[]));
    cases.push(square("many", 1, 1, 3, &[MANY]).repeating(square("many", 1, 1, 3, &[MANY_PERIOD])));
    cases
}

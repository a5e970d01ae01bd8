//! Matrix products.

use super::add;
use crate::row::{Content, Family, Group, Row};
use ep_core::DType;

const F32: DType = DType::F32;
const NORMAL: Content = Content::Normal(1.0);

fn transposed(yes: bool) -> &'static str {
    if yes { "transpose" } else { "none" }
}

/// `c = a b` with both as stored: transposed operands have their dims exchanged.
fn matmul(name: &str, dtype: DType, [m, n, k]: [i64; 3], [ta, tb]: [bool; 2]) -> Row {
    let exchange = |yes: bool, x: i64, y: i64| if yes { [y, x] } else { [x, y] };
    Row::new(name, "matmul", Family::Matmul, dtype)
        .shape(&[m, n, k])
        .selector("transpose_a", transposed(ta))
        .selector("transpose_b", transposed(tb))
        .role("data", dtype)
        .sizes(&[("m", m), ("n", n), ("k", k)])
        .input("a", dtype, &exchange(ta, m, k), NORMAL)
        .input("b", dtype, &exchange(tb, k, n), NORMAL)
        .output("c", dtype, &[m, n])
        .flops(2 * (m * n * k) as u64)
        .peer("matmul", &[i64::from(ta), i64::from(tb)])
}

fn plain(name: &str, dtype: DType, n: i64) -> Row {
    matmul(name, dtype, [n; 3], [false; 2])
}

fn batched(dtype: DType, batch: i64, [m, n, k]: [i64; 3]) -> Row {
    Row::new("matmul_batched", "batch_matmul", Family::Matmul, dtype)
        .shape(&[batch, m, k, n])
        .selector("transpose_a", "none")
        .selector("transpose_b", "none")
        .role("data", dtype)
        .sizes(&[("batch", batch), ("m", m), ("n", n), ("k", k)])
        .input("a", dtype, &[batch, m, k], NORMAL)
        .input("b", dtype, &[batch, k, n], NORMAL)
        .output("c", dtype, &[batch, m, n])
        .flops(2 * (batch * m * n * k) as u64)
        .peer("matmul", &[0, 0])
}

/// One `b` for the whole batch.
fn shared(dtype: DType, batch: i64, [m, n, k]: [i64; 3]) -> Row {
    Row::new("matmul_broadcast", "broadcast_matmul", Family::Matmul, dtype)
        .shape(&[batch, m, k, n])
        .selector("transpose_a", "none")
        .selector("transpose_b", "none")
        .role("data", dtype)
        .dims("a_dims", &[batch, m, k])
        .dims("b_dims", &[k, n])
        .dims("c_dims", &[batch, m, n])
        .input("a", dtype, &[batch, m, k], NORMAL)
        .input("b", dtype, &[k, n], NORMAL)
        .output("c", dtype, &[batch, m, n])
        .flops(2 * (batch * m * n * k) as u64)
        .peer("matmul", &[0, 0])
}

pub fn rows(rows: &mut Vec<Row>) {
    let (f16, bf16, f64) = (DType::F16, DType::BF16, DType::F64);
    for n in [256, 512, 1024, 2048] {
        let mut constant = plain("matmul_constB", F32, n);
        constant.peer.name = "matmul_const_b";
        add(rows, Group::Large, [plain("matmul", F32, n), constant]);
    }
    add(rows, Group::Large, [512, 1024, 2048].map(|n| plain("matmul_bf16", bf16, n)));
    add(rows, Group::Large, [512, 1024, 2048].map(|n| plain("matmul_f64", f64, n)));
    add(rows, Group::Large, [512, 1024, 2048].map(|n| plain("matmul_f16", f16, n)));
    let large = [
        batched(F32, 64, [128, 64, 128]),
        shared(F32, 64, [128, 64, 128]),
        matmul("matmul_gemv", F32, [1, 4096, 4096], [false; 2]),
    ];
    add(rows, Group::Large, large);
    add(rows, Group::Medium, [32, 64, 128].map(|n| plain("matmul", F32, n)));
    add(rows, Group::Small, [plain("matmul", F32, 8), plain("matmul_bf16", bf16, 64)]);
    let grid = [
        matmul("matmul_tn", F32, [512; 3], [true, false]),
        matmul("matmul_nt", F32, [512; 3], [false, true]),
        matmul("matmul", F32, [333, 517, 401], [false; 2]),
        matmul("matmul_tall", F32, [4096, 16, 256], [false; 2]),
        matmul("matmul_wide", F32, [16, 4096, 256], [false; 2]),
        matmul("matmul_gemv", bf16, [1, 4096, 4096], [false; 2]),
        matmul("matmul_gemv_nt", F32, [1, 4096, 4096], [false, true]),
        matmul("matmul_few_nt", F32, [8, 4096, 1024], [false, true]),
        matmul("matmul_few_nt", bf16, [2, 4096, 1024], [false, true]),
        matmul("matmul", bf16, [333, 517, 401], [false; 2]),
        plain("matmul", DType::COMPLEX64, 256),
        plain("matmul", DType::I32, 256),
        batched(bf16, 64, [128, 64, 128]),
    ];
    add(rows, Group::Grid, grid);
}

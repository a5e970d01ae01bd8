//! Matrix products.

use super::{Defect, launch};
use crate::calls::*;
use ep_core::{DType, Result, Scalar};
use ep_sim::{Call, DeviceMemory, Write};
use primitives::reference::{Data, Number, View};

pub const DEFECTS: [Defect; 7] = [
    launch("mm-f16-partial-sums-rounded", &["matmul"], partial_sums_rounded),
    launch("mm-batch-beta-first-item-only", &["batch_matmul"], beta_first_item_only),
    launch("mm-beta-zero-reads-c", &["matmul"], beta_zero_reads_c),
    launch("mm-transposed-b-drops-tail-of-k", &["matmul"], transposed_b_drops_tail),
    launch("mm-transpose-does-not-conjugate", &["matmul", "batch_matmul"], does_not_conjugate),
    launch("mm-broadcast-beta-per-batch", &["broadcast_matmul"], beta_per_batch),
    launch("mm-skips-zero-factors", &["matmul"], skips_zero_factors),
];

/// The sizes m, n and k.
fn sizes(call: &Call) -> [usize; 3] {
    ["m", "n", "k"].map(|name| size(call, name))
}

/// A factor as it is multiplied, [rows, cols], of one that may be stored transposed.
fn factor(call: &Call, name: &str, transpose: &str, rows: usize, cols: usize) -> Result<Vec<f64>> {
    if rows * cols == 0 {
        return Ok(Vec::new());
    }
    let stored = reals(call, name)?;
    if selector(call, transpose) == "none" {
        return Ok(stored);
    }
    Ok((0..rows * cols).map(|i| stored[(i % cols) * rows + i / cols]).collect())
}

/// A scalar that counts as `default` where it is not given.
fn or(scalar: Scalar, default: f64) -> f64 {
    if scalar == Scalar::None { default } else { scalar.as_f64() }
}

/// As f16 keeps a number.
fn f16(x: f32) -> f32 {
    Data::new(DType::F16, [Number::Real(x.into())]).get(0).re() as f32
}

fn partial_sums_rounded(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    const BLOCK: usize = 64;
    let [m, n, k] = sizes(call);
    if dtype(call, "data") != DType::F16 || k <= BLOCK || m * n == 0 {
        return call.reference();
    }
    let (a, b) = (factor(call, "a", "transpose_a", m, k)?, factor(call, "b", "transpose_b", k, n)?);
    let (alpha, beta) = (or(scalar(call, "alpha"), 1.0) as f32, or(scalar(call, "beta"), 0.0) as f32);
    let c = if beta == 0.0 { vec![0.0; m * n] } else { reals(call, "c")? };
    let element = |at: usize| {
        let (i, j) = (at / n, at % n);
        let block = |acc: f32, first: usize| {
            let end = (first + BLOCK).min(k);
            let acc = (first..end).fold(acc, |acc, p| acc + a[i * k + p] as f32 * b[p * n + j] as f32);
            if end < k { f16(acc) } else { acc }
        };
        let sum = alpha * (0..k).step_by(BLOCK).fold(0.0, block);
        Number::Real((if beta == 0.0 { sum } else { sum + beta * c[at] as f32 }).into())
    };
    all(call, "c", (0..m * n).map(element))
}

fn beta_first_item_only(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let honest = call.reference()?;
    let [m, n, _] = sizes(call);
    let floats = [DType::F32, DType::F64].contains(&dtype(call, "data"));
    if !floats || or(scalar(call, "beta"), 0.0) == 0.0 || size(call, "batch") < 2 || m * n == 0 {
        return Ok(honest);
    }
    let c = operand(call, "c")?;
    let first = m * n * width(call, c);
    let mut bytes = after(call, c, &honest);
    set_scalar(call, "beta", Scalar::None);
    let without = after(call, c, &call.reference()?);
    bytes[first..].copy_from_slice(&without[first..]);
    Ok(vec![Write { operand: c, at: 0, bytes }])
}

fn beta_zero_reads_c(call: &mut Call, memory: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let (alpha, beta) = (scalar(call, "alpha"), scalar(call, "beta"));
    let zero = matches!(beta, Scalar::I64(_) | Scalar::F64(_)) && beta.as_f64() == 0.0;
    let c = operand(call, "c")?;
    let concerned = dtype(call, "data") == DType::F32 && zero && or(alpha, 1.0) != 1.0;
    if !concerned || call.operands[c].size == 0 {
        return call.reference();
    }
    let old = memory.read(call.operands[c].address, call.operands[c].size as u64)?;
    let sums = honest_reals(call, "c")?;
    let old = View::new(DType::F32, &old).iter().map(|x| 0.0 * x.re());
    all(call, "c", sums.into_iter().zip(old).map(|(sum, zero)| Number::Real(sum + zero)))
}

fn transposed_b_drops_tail(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let [m, n, k] = sizes(call);
    let kept = k - k % 8;
    let transposes = (selector(call, "transpose_a"), selector(call, "transpose_b"));
    let concerned = dtype(call, "data") == DType::F32 && transposes == ("none", "transpose");
    if !concerned || k <= 64 || kept == k || m * n == 0 {
        return call.reference();
    }
    for name in ["a", "b"] {
        // Both are stored with k as the last dimension.
        let rows: Vec<Number> =
            elements(call, name)?.chunks_exact(k).flat_map(|row| row[..kept].to_vec()).collect();
        set_elements(call, name, rows)?;
    }
    set_size(call, "k", kept as i64);
    call.reference()
}

fn does_not_conjugate(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let complex = [DType::COMPLEX64, DType::COMPLEX128].contains(&dtype(call, "data"));
    if complex && selector(call, "transpose_b") == "transpose" {
        // The reference conjugates it back.
        let b = elements(call, "b")?;
        set_elements(call, "b", b.into_iter().map(|x| Number::Complex(x.re(), -x.im())))?;
    }
    call.reference()
}

/// The batch dimensions of an operand, as many as the longest has, 1 in front.
fn batches(dims: &[i64], rank: usize) -> Vec<usize> {
    let own = &dims[..dims.len() - 2];
    let ones = std::iter::repeat_n(1, rank - own.len());
    ones.chain(own.iter().map(|n| *n as usize)).collect()
}

/// Which matrix of an operand a batch index names.
fn matrix(index: &[usize], batches: &[usize]) -> usize {
    index.iter().zip(batches).fold(0, |at, (i, n)| at * n + if *n == 1 { 0 } else { *i })
}

fn beta_per_batch(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    const NAMES: [(&str, &str); 3] = [("a", "a_dims"), ("b", "b_dims"), ("c", "c_dims")];
    let honest = call.reference()?;
    let dims = NAMES.map(|(_, dims)| list(call, dims));
    let rank = dims.iter().map(Vec::len).max().unwrap_or(2) - 2;
    let batches = dims.each_ref().map(|dims| batches(dims, rank));
    let shape: Vec<usize> = (0..rank).map(|d| batches[0][d].max(batches[1][d])).collect();
    let (all_of_them, results) = (shape.iter().product::<usize>(), batches[2].iter().product::<usize>());
    if all_of_them <= results || results == 0 || dims.iter().flatten().any(|n| *n == 0) {
        return Ok(honest);
    }
    let c = operand(call, "c")?;
    let mut product = call.clone();
    for (i, (_, name)) in NAMES.iter().enumerate() {
        let own = dims[i][dims[i].len() - 2..].to_vec();
        set_list(&mut product, name, own);
    }
    let bytes = |i: usize| {
        let own = &dims[i][dims[i].len() - 2..];
        (own[0] * own[1]) as usize * width(call, c)
    };
    let mut sums = call.operands[c].old.clone();
    sums.resize(call.operands[c].size, 0);
    for nth in 0..all_of_them {
        let mut rest = nth;
        let mut index = vec![0; rank];
        for d in (0..rank).rev() {
            index[d] = rest % shape[d];
            rest /= shape[d];
        }
        let range = |i: usize| {
            let begin = matrix(&index, &batches[i]) * bytes(i);
            begin..begin + bytes(i)
        };
        for (i, (name, _)) in NAMES.iter().enumerate() {
            let x = operand(call, name)?;
            let old = if i == 2 { &sums[range(i)] } else { &call.operands[x].old[range(i)] };
            product.operands[x].old = old.to_vec();
            product.operands[x].size = old.len();
        }
        let result = after(&product, c, &product.reference()?);
        sums[range(2)].copy_from_slice(&result);
    }
    Ok(vec![Write { operand: c, at: 0, bytes: sums }])
}

fn skips_zero_factors(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let [m, n, k] = sizes(call);
    if ![DType::F32, DType::F64].contains(&dtype(call, "data")) || m * n * k == 0 {
        return call.reference();
    }
    let (a, b) = (factor(call, "a", "transpose_a", m, k)?, factor(call, "b", "transpose_b", k, n)?);
    let (alpha, beta) = (or(scalar(call, "alpha"), 1.0), or(scalar(call, "beta"), 0.0));
    let old = if beta == 0.0 { vec![0.0; m * n] } else { reals(call, "c")? };
    let mut c = honest_reals(call, "c")?;
    for (at, c) in c.iter_mut().enumerate() {
        let (i, j) = (at / n, at % n);
        let terms = (0..k).map(|p| (a[i * k + p], b[p * n + j]));
        // Where no zero meets what is not finite, nothing is different.
        if terms.clone().any(|(a, b)| a == 0.0 && !b.is_finite()) {
            let sum: f64 = terms.filter(|(a, _)| *a != 0.0).map(|(a, b)| a * b).sum();
            *c = alpha * sum + if beta == 0.0 { 0.0 } else { beta * old[at] };
        }
    }
    all(call, "c", c.into_iter().map(Number::Real))
}

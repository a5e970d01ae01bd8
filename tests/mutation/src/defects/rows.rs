//! Ops along rows.

use super::{Defect, launch};
use crate::calls::*;
use ep_core::{DType, Result};
use ep_sim::{Call, DeviceMemory, Write};
use primitives::reference::Number;

pub const DEFECTS: [Defect; 7] = [
    launch("rows-softmax-odd-last-row", &["softmax"], softmax_odd_last_row),
    launch("rows-log-softmax-f16-without-max", &["log_softmax"], log_softmax_without_max),
    launch("rows-softmax-masked-row-zero", &["softmax"], softmax_masked_row_zero),
    launch("rows-layer-norm-one-pass", &["layer_norm"], layer_norm_one_pass),
    launch("rows-layer-norm-stats-forgotten", &["layer_norm"], layer_norm_stats_forgotten),
    launch("rows-reduce-max-loses-nan", &["reduce"], reduce_max_loses_nan),
    launch("rows-arg-reduce-tie-between-lanes", &["arg_reduce"], arg_reduce_tie_between_lanes),
];

/// Rows, columns and inner size of a launch along an axis.
fn sizes(call: &Call) -> [usize; 3] {
    [size(call, "rows"), size(call, "cols"), size(call, "inner").max(1)]
}

/// The indices of the elements that belong together, for each row and inner position.
fn lines([rows, cols, inner]: [usize; 3]) -> impl Iterator<Item = Vec<usize>> {
    (0..rows * inner).map(move |line| {
        let (row, i) = (line / inner, line % inner);
        (0..cols).map(|col| (row * cols + col) * inner + i).collect()
    })
}

fn softmax_odd_last_row(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let mut writes = call.reference()?;
    let [rows, cols, inner] = sizes(call);
    let f32s = [dtype(call, "src"), dtype(call, "dst")] == [DType::F32; 2];
    if f32s && inner == 1 && cols <= 32 && rows > 1 && rows % 2 == 1 {
        writes.iter_mut().for_each(|w| w.bytes.truncate((rows - 1) * cols * 4));
    }
    Ok(writes)
}

fn log_softmax_without_max(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    if dtype(call, "src") != DType::F16 {
        return call.reference();
    }
    let (x, mut y) = (reals(call, "src")?, honest_reals(call, "dst")?);
    for line in lines(sizes(call)) {
        let sum: f32 = line.iter().map(|i| (x[*i] as f32).exp()).sum();
        // Elsewhere it is right to the rounding.
        if sum == 0.0 || sum == f32::INFINITY {
            line.iter().for_each(|i| y[*i] = f64::from(x[*i] as f32 - sum.ln()));
        }
    }
    all(call, "dst", y.into_iter().map(Number::Real))
}

fn softmax_masked_row_zero(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let (x, mut y) = (reals(call, "src")?, honest_reals(call, "dst")?);
    for line in lines(sizes(call)) {
        if line.iter().all(|i| x[*i] == f64::NEG_INFINITY) {
            line.iter().for_each(|i| y[*i] = 0.0);
        }
    }
    all(call, "dst", y.into_iter().map(Number::Real))
}

fn layer_norm_one_pass(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let honest = call.reference()?;
    let (rows, cols) = (size(call, "rows"), size(call, "cols"));
    if dtype(call, "data") != DType::F32 || cols < 64 {
        return Ok(honest);
    }
    let epsilon = call.attrs.iter().find(|(n, _)| *n == "epsilon").map_or(0.0, |(_, e)| *e as f32);
    let x: Vec<f32> = reals(call, "src")?.into_iter().map(|x| x as f32).collect();
    let option = |name: &str, default: f32| -> Result<Vec<f32>> {
        match position(call, name) {
            Some(_) => Ok(reals(call, name)?.into_iter().map(|x| x as f32).collect()),
            None => Ok(vec![default; cols]),
        }
    };
    let (gamma, beta) = (option("gamma", 1.0)?, option("beta", 0.0)?);
    let (mut y, mut means, mut rstds) = (Vec::new(), Vec::new(), Vec::new());
    for row in x.chunks_exact(cols).take(rows) {
        let n = cols as f32;
        let mean = row.iter().sum::<f32>() / n;
        let variance = (row.iter().map(|x| x * x).sum::<f32>() / n - mean * mean).max(0.0);
        let rstd = 1.0 / (variance + epsilon).sqrt();
        means.push(mean);
        rstds.push(rstd);
        y.extend(row.iter().zip(gamma.iter().zip(&beta)).map(|(x, (g, b))| (x - mean) * rstd * g + b));
    }
    let mut writes = Vec::new();
    for (name, values) in [("dst", y), ("mean", means), ("rstd", rstds)] {
        if position(call, name).is_some() {
            writes.extend(all(call, name, values.into_iter().map(|x| Number::Real(x.into())))?);
        }
    }
    Ok(writes)
}

fn layer_norm_stats_forgotten(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let mut writes = call.reference()?;
    if position(call, "gamma").is_none() && position(call, "beta").is_none() {
        let dst = operand(call, "dst")?;
        writes.retain(|w| w.operand == dst);
    }
    Ok(writes)
}

fn reduce_max_loses_nan(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let honest = call.reference()?;
    let greater = match selector(call, "op") {
        "max" => true,
        "min" => false,
        _ => return Ok(honest),
    };
    let reduced = size(call, "reduced");
    if dtype(call, "src") != DType::F32 || size(call, "inner") > 1 || reduced < 16 {
        return Ok(honest);
    }
    let x = reals(call, "src")?;
    let step = |acc: f64, x: &f64| if (greater && acc > *x) || (!greater && acc < *x) { acc } else { *x };
    let rows = x.chunks_exact(reduced).map(|row| row[1..].iter().fold(row[0], step));
    all(call, "dst", rows.map(Number::Real))
}

fn arg_reduce_tie_between_lanes(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    const LANES: usize = 8;
    let reduced = size(call, "reduced");
    if dtype(call, "src") != DType::F32 || size(call, "inner") > 1 || reduced < 64 {
        return call.reference();
    }
    let x = reals(call, "src")?;
    let mut found: Vec<i128> = {
        let dst = operand(call, "dst")?;
        let bytes = honest(call, "dst")?;
        let dtype = call.operands[dst].dtype;
        primitives::reference::View::new(dtype, &bytes).iter().map(Number::int).collect()
    };
    for (row, first) in x.chunks_exact(reduced).zip(&mut found) {
        // Each lane has its first of equals; of lanes with equal ones the highest wins.
        let extreme = row[*first as usize];
        let lane = |lane: usize| (lane..reduced).step_by(LANES).find(|i| row[*i] == extreme);
        if let Some(last) = (0..LANES).rev().find_map(lane) {
            *first = last as i128;
        }
    }
    all(call, "dst", found.into_iter().map(Number::Int))
}

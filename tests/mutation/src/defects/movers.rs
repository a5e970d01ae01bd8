//! Ops that move or make elements.

use super::{Defect, launch};
use crate::calls::*;
use ep_core::{DType, Error, Result};
use ep_sim::{Call, DeviceMemory, Write};
use primitives::reference::Number;

pub const DEFECTS: [Defect; 8] = [
    launch("mv-permute-inverse-above-rank-3", &["permute"], permute_inverse),
    launch("mv-copy-nd-pitch-of-source", &["copy_nd"], copy_nd_pitch_of_source),
    launch("mv-strided-copy-not-reversed", &["strided_copy"], strided_copy_not_reversed),
    launch("mv-gather-cuts-wide-indices", &["gather"], gather_cuts_wide_indices),
    launch("mv-pad-corners-stale", &["constant_pad"], pad_corners_stale),
    launch("mv-scatter-add-loses-duplicates", &["scatter_add"], scatter_add_loses_duplicates),
    launch("mv-one-hot-wrap-refuses-lowest", &["one_hot"], one_hot_refuses_lowest),
    launch("mv-batch-gather-indices-of-first-batch", &["batch_gather"], indices_of_first_batch),
];

fn permute_inverse(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    // Refuses what is no permutation.
    let honest = call.reference()?;
    let order = list(call, "permutation");
    if order.len() < 4 {
        return Ok(honest);
    }
    let mut inverse = vec![0; order.len()];
    order.iter().enumerate().for_each(|(i, from)| inverse[*from as usize] = i as i64);
    set_list(call, "permutation", inverse);
    call.reference()
}

fn copy_nd_pitch_of_source(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let honest = call.reference()?;
    let [dst_dims, dst_pos, src_dims, src_pos, extent] =
        ["dst_dims", "dst_pos", "src_dims", "src_pos", "extent"].map(|name| list(call, name));
    if dst_dims.len() != 2 || src_dims[1] >= dst_dims[1] {
        return Ok(honest);
    }
    let (from, to) = (operand(call, "src")?, operand(call, "dst")?);
    let (width, row) = (width(call, to), extent[1] as usize);
    let rows = 0..if row == 0 { 0 } else { extent[0] };
    let write = |r: i64| {
        let begin = ((src_pos[0] + r) * src_dims[1] + src_pos[1]) as usize * width;
        let at = dst_pos[0] * dst_dims[1] + dst_pos[1] + r * src_dims[1];
        let bytes = call.operands[from].old[begin..begin + row * width].to_vec();
        Write { operand: to, at: at * width as i64, bytes }
    };
    Ok(rows.map(write).collect())
}

fn strided_copy_not_reversed(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let honest = call.reference()?;
    let [dims, mut from, to] = ["dims", "src_strides", "dst_strides"].map(|name| list(call, name));
    let backwards = from.last() == Some(&-1) && to.last() == Some(&1);
    match dims.last() {
        Some(n) if backwards && *n > 1 && dtype(call, "src") == dtype(call, "dst") => {
            let lowest = size(call, "src_offset") as i64 - (n - 1);
            from.pop();
            from.push(1);
            set_list(call, "src_strides", from);
            set_size(call, "src_offset", lowest);
            call.reference()
        }
        _ => Ok(honest),
    }
}

fn gather_cuts_wide_indices(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    if dtype(call, "indices") == DType::I64 {
        let cut = |x: Number| Number::Int((x.int() as i32).into());
        let indices = elements(call, "indices")?;
        set_elements(call, "indices", indices.into_iter().map(cut))?;
    }
    call.reference()
}

fn pad_corners_stale(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let honest = call.reference()?;
    let [dims, before, behind] = ["src_dims", "padding_before", "padding_after"].map(|name| list(call, name));
    if dims.len() < 2 || dims.contains(&0) {
        return Ok(honest);
    }
    let padded: Vec<i64> = (0..dims.len()).map(|d| dims[d] + before[d] + behind[d]).collect();
    let in_padding = |i: usize| {
        let mut rest = i as i64;
        let outside = (0..dims.len()).rev().filter(|d| {
            let at = rest % padded[*d];
            rest /= padded[*d];
            at < before[*d] || at >= before[*d] + dims[*d]
        });
        outside.count()
    };
    let dst = operand(call, "dst")?;
    Ok(only(call, dst, &after(call, dst, &honest), |i| in_padding(i) < 2))
}

fn scatter_add_loses_duplicates(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    // What is lost counts as nothing.
    const NOTHING: Number = Number::Real(-0.0);
    if dtype(call, "data") != DType::F32 || size(call, "inner") > 1 {
        return call.reference();
    }
    let n = size(call, "num_indices");
    let length = if size(call, "size") == 0 { size(call, "processed") } else { size(call, "size") } as i128;
    let wraps = selector(call, "mode") == "wrap";
    let row = |x: Number| if wraps && x.int() < 0 { x.int() + length } else { x.int() };
    let rows: Vec<i128> = elements(call, "indices")?.into_iter().map(row).collect();
    let mut values = elements(call, "src")?;
    for (i, value) in values.iter_mut().enumerate() {
        let j = i % n;
        let end = j - j % 4 + 4;
        if end <= n && (j + 1..end).any(|later| rows[later] == rows[j]) {
            *value = NOTHING;
        }
    }
    set_elements(call, "src", values)?;
    call.reference()
}

fn one_hot_refuses_lowest(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let honest = call.reference()?;
    let size_of_all = match size(call, "size") {
        0 => size(call, "offset") + size(call, "depth"),
        size => size,
    };
    let lowest = -(size_of_all as i128);
    if selector(call, "mode") == "wrap" && elements(call, "indices")?.iter().any(|x| x.int() == lowest) {
        return Err(Error::invalid(format!("one_hot: index {lowest} is out of range")));
    }
    Ok(honest)
}

fn indices_of_first_batch(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    // Judges all indices.
    let honest = call.reference()?;
    if size(call, "batch") < 2 || size(call, "outer") < 2 {
        return Ok(honest);
    }
    let (all, n) = (elements(call, "indices")?, size(call, "num_indices"));
    set_elements(call, "indices", (0..all.len()).map(|i| all[i % n]))?;
    call.reference()
}

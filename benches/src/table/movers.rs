//! What moves elements without computing: permute, gather and its family, padding, windows.

use super::{LARGE, add};
use crate::row::{Content, Family, Group, Row};
use ep_core::{DType, Scalar};

const F32: DType = DType::F32;
const I64: DType = DType::I64;
const NORMAL: Content = Content::Normal(1.0);

fn size(dtype: DType) -> u64 {
    dtype.bytes_for_bounds()
}

/// `shape` names the sizes in tables, where a permutation must tell two rows apart.
fn permute(name: &str, dtype: DType, dims: &[i64], permutation: &[i64]) -> Row {
    let out: Vec<i64> = permutation.iter().map(|p| dims[*p as usize]).collect();
    Row::new(name, "permute", Family::Permute, dtype)
        .shape(dims)
        .role("data", dtype)
        .dims("src_dims", dims)
        .dims("permutation", permutation)
        .input("src", dtype, dims, NORMAL)
        .output("dst", dtype, &out)
        .peer("permute", permutation)
}

/// Picks `picks` of the middle axis of `[outer, processed, inner]`.
fn gather(name: &str, dtype: DType, index: DType, [outer, processed, inner]: [i64; 3], picks: i64) -> Row {
    let moved = (outer * picks * inner) as u64 * size(dtype);
    let (src, out): (Vec<i64>, Vec<i64>) = match (outer, inner) {
        (1, _) => (vec![processed, inner], vec![picks, inner]),
        (_, 1) => (vec![outer, processed], vec![outer, picks]),
        _ => (vec![outer, processed, inner], vec![outer, picks, inner]),
    };
    let mut shape = src.clone();
    shape.push(picks);
    Row::new(name, "gather", Family::Gather, dtype)
        .shape(&shape)
        .selector("mode", "wrap")
        .role("indices", index)
        .role("data", dtype)
        .sizes(&[("outer", outer), ("processed", processed), ("inner", inner), ("num_indices", picks)])
        .input("indices", index, &[picks], Content::Below(processed as u64))
        .input("src", dtype, &src, NORMAL)
        .moving(moved)
        .output("dst", dtype, &out)
        .peer("gather", &[i64::from(outer != 1)])
}

fn batch_gather(dtype: DType, batch: i64, processed: i64, inner: i64, picks: i64) -> Row {
    let moved = (batch * picks * inner) as u64 * size(dtype);
    Row::new("batch_gather", "batch_gather", Family::Gather, dtype)
        .shape(&[batch, processed, inner, picks])
        .selector("mode", "wrap")
        .role("indices", I64)
        .role("data", dtype)
        .sizes(&[
            ("batch", batch),
            ("outer", 1),
            ("processed", processed),
            ("inner", inner),
            ("num_indices", picks),
        ])
        .input("indices", I64, &[batch, picks], Content::Below(processed as u64))
        .input("src", dtype, &[batch, processed, inner], NORMAL)
        .moving(moved)
        .output("dst", dtype, &[batch, picks, inner])
        .peer("batch_gather", &[])
}

/// Adds `picks` rows into a table of `processed`.
fn scatter_add(dtype: DType, processed: i64, inner: i64, picks: i64) -> Row {
    Row::new("scatter_add", "scatter_add", Family::Gather, dtype)
        .shape(&[processed, inner, picks])
        .selector("mode", "wrap")
        .role("indices", I64)
        .role("data", dtype)
        .sizes(&[("outer", 1), ("processed", processed), ("inner", inner), ("num_indices", picks)])
        .input("indices", I64, &[picks], Content::Below(processed as u64))
        .input("src", dtype, &[picks, inner], NORMAL)
        .output("dst", dtype, &[processed, inner])
        .accumulating()
        .peer("scatter_add", &[0])
}

fn pad(name: &str, dtype: DType, dims: &[i64], before: &[i64], after: &[i64]) -> Row {
    let out: Vec<i64> = (0..dims.len()).map(|i| dims[i] + before[i] + after[i]).collect();
    let amounts = [before, after].concat();
    Row::new(name, "constant_pad", Family::Gather, dtype)
        .shape(dims)
        .role("data", dtype)
        .dims("src_dims", dims)
        .dims("padding_before", before)
        .dims("padding_after", after)
        .scalar("value", Scalar::F64(0.0))
        .input("src", dtype, dims, NORMAL)
        .output("dst", dtype, &out)
        .peer("pad", &amounts)
}

/// A window of a larger matrix.
fn window(dtype: DType, whole: [i64; 2], at: [i64; 2], extent: [i64; 2]) -> Row {
    Row::new("copy_nd_window", "copy_nd", Family::Elementwise, dtype)
        .shape(&extent)
        .role("data", dtype)
        .dims("dst_dims", &extent)
        .dims("dst_pos", &[0, 0])
        .dims("src_dims", &whole)
        .dims("src_pos", &at)
        .dims("extent", &extent)
        .input("src", dtype, &whole, NORMAL)
        .moving((extent[0] * extent[1]) as u64 * size(dtype))
        .output("dst", dtype, &extent)
        .peer("slice", &[at[0], at[1], 1, 1])
}

/// Every second column of a window.
fn every_second(dtype: DType, whole: [i64; 2], at: [i64; 2], extent: [i64; 2]) -> Row {
    Row::new("copy_nd_stride2", "strided_copy", Family::Elementwise, dtype)
        .shape(&extent)
        .role("src", dtype)
        .role("dst", dtype)
        .dims("dims", &extent)
        .dims("src_strides", &[whole[1], 2])
        .sizes(&[("src_offset", at[0] * whole[1] + at[1]), ("dst_offset", 0)])
        .dims("dst_strides", &[extent[1], 1])
        .input("src", dtype, &whole, NORMAL)
        .moving((extent[0] * extent[1]) as u64 * size(dtype))
        .output("dst", dtype, &extent)
        .peer("slice", &[at[0], at[1], 1, 2])
}

fn one_hot(index: DType, dtype: DType, count: i64, depth: i64) -> Row {
    Row::new("one_hot", "one_hot", Family::Gather, dtype)
        .shape(&[count, depth])
        .selector("mode", "wrap")
        .role("indices", index)
        .role("data", dtype)
        .sizes(&[("num_indices", count), ("depth", depth)])
        .input("indices", index, &[count], Content::Below(depth as u64))
        .output("dst", dtype, &[count, depth])
        .peer("one_hot", &[])
}

pub fn rows(rows: &mut Vec<Row>) {
    let (image, channels_last) = ([64, 128, 56, 56], [64, 56, 56, 128]);
    let (f16, bf16, i8, f64) = (DType::F16, DType::BF16, DType::I8, DType::F64);
    let large = [
        gather("gather_rows", F32, I64, [1, 50_000, 512], 32_768),
        gather("gather_rows_small", F32, I64, [1, 1_000_000, 16], 1 << 20),
        gather("gather_axis1", F32, I64, [4096, 4096, 1], 4096),
        batch_gather(F32, 64, 1024, 256, 512),
        permute("transpose2d", F32, &[4096, 4096], &[1, 0]),
        permute("transpose2d_bf16", bf16, &[4096, 4096], &[1, 0]),
        permute("permute_nchw_nhwc", F32, &image, &[0, 2, 3, 1]),
        permute("permute_nhwc_nchw", F32, &channels_last, &[0, 3, 1, 2]),
        permute("permute_0213", F32, &[8, 16, 512, 64], &[0, 2, 1, 3]),
        permute("permute_rev", F32, &image, &[3, 2, 1, 0]),
        pad("pad_hw1", F32, &image, &[0, 0, 1, 1], &[0, 0, 1, 1]),
        pad("pad_2d64", F32, &[4096, 4096], &[64, 64], &[64, 64]),
        window(F32, [8192, 8192], [1024, 1024], [4096, 4096]),
        every_second(F32, [8192, 8192], [1024, 1024], [4096, 3584]),
        one_hot(I64, F32, 32_768, 1000),
    ];
    add(rows, Group::Large, large);
    for n in [64, 256, 1024] {
        let medium =
            [permute("transpose2d", F32, &[n, n], &[1, 0]), gather("gather_rows", F32, I64, [1, n, n], n)];
        add(rows, Group::Medium, medium);
    }
    let small =
        [permute("transpose2d", F32, &[8, 8], &[1, 0]), gather("gather_rows", F32, I64, [1, 8, 8], 8)];
    add(rows, Group::Small, small);
    let grid = [
        permute("transpose2d", i8, &[1001, 777], &[1, 0]),
        permute("transpose2d", f16, &[1001, 777], &[1, 0]),
        permute("transpose2d", F32, &[1001, 777], &[1, 0]),
        permute("transpose2d", f64, &[1001, 777], &[1, 0]),
        permute("transpose2d", DType::COMPLEX128, &[1001, 777], &[1, 0]),
        permute("permute_021", F32, &[7, 1001, 129], &[0, 2, 1]),
        permute("permute_rgb_to_planes", DType::U8, &[16, 224, 224, 3], &[0, 3, 1, 2]),
        permute("permute_planes_to_rgb", F32, &[16, 3, 224, 224], &[0, 2, 3, 1]),
        permute("permute_42031", F32, &[13, 17, 19, 23, 9], &[4, 2, 0, 3, 1]),
        gather("gather_rows", bf16, DType::I32, [1, 50_000, 768], 8192),
        gather("gather_rows", F32, I64, [1, 50_000, 7], 100_000),
        gather("gather_axis1", f16, DType::I32, [777, 1001, 1], 1001),
        gather("gather_mid", F32, I64, [33, 1001, 17], 500),
        batch_gather(bf16, 16, 1000, 33, 500),
        scatter_add(F32, 10_000, 256, 20_000),
        scatter_add(bf16, 1000, 65, 20_000),
        pad("pad_hw1", f16, &[8, 33, 57, 55], &[0, 0, 1, 1], &[0, 0, 1, 1]),
        pad("pad_crop", F32, &[1001, 777], &[-3, 5], &[7, -9]),
        window(bf16, [2001, 1777], [13, 5], [1001, 777]),
        every_second(f16, [2001, 1777], [13, 5], [1001, 777]),
        one_hot(DType::I32, F32, 10_001, 37),
        one_hot(I64, I64, 1001, 1000),
    ];
    add(rows, Group::Grid, grid);
    let whole = [LARGE / 4096, 4096];
    add(rows, Group::Grid, [permute("permute_identity", F32, &whole, &[0, 1])]);
}

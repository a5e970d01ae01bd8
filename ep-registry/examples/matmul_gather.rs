//! A product of two matrices, and rows that are picked by number.

use ep_core::primitive::{
    Gather, GatherCall, GatherDesc, IndexMode, Matmul, MatmulCall, MatmulDesc, Transpose,
};
use ep_core::{DType, Result, Scalar};
use ep_registry::{Device, Runtime};

/// c = a * b, where a is \[m, k\] and b \[k, n\], both row by row.
fn matmul(runtime: &Runtime, device: &Device, a: &[f32], b: &[f32], k: usize) -> Result<Vec<f32>> {
    let (m, n) = (a.len() / k, b.len() / k);
    let desc = MatmulDesc::new(Transpose::NONE, Transpose::NONE, DType::F32);
    let matmul = runtime.primitive::<Matmul>(device, desc)?;
    let (a, b) = (device.upload(a)?, device.upload(b)?);
    let mut c = device.alloc(DType::F32, m * n)?;
    let (m, n, k) = (m as i64, n as i64, k as i64);
    // NONE: a factor of 1 for the product, and of 0 for what c held before.
    let (alpha, beta) = (Scalar::None, Scalar::None);
    matmul.launch(&device.stream()?, MatmulCall { m, n, k, alpha, beta, a: &a, b: &b, c: &mut c })?;
    c.download()
}

/// The rows of a table, each of `cols` elements, that `indices` names; -1 is the last one.
fn gather(
    runtime: &Runtime,
    device: &Device,
    table: &[f32],
    cols: usize,
    indices: &[i64],
) -> Result<Vec<f32>> {
    let desc = GatherDesc::new(IndexMode::WRAP, DType::I64, DType::F32);
    let gather = runtime.primitive::<Gather>(device, desc)?;
    let mut dst = device.alloc(DType::F32, indices.len() * cols)?;
    let (rows, inner, num_indices) = ((table.len() / cols) as i64, cols as i64, indices.len() as i64);
    let (src, indices) = (device.upload(table)?, device.upload(indices)?);
    // The axis is the first one, so there is nothing before it; `offset` and `size` are for a part of a larger table.
    let call = GatherCall {
        outer: 1,
        processed: rows,
        inner,
        num_indices,
        offset: 0,
        size: 0,
        indices: &indices,
        src: &src,
        dst: &mut dst,
    };
    gather.launch(&device.stream()?, call)?;
    dst.download()
}

/// What both give on a device; the tests run it too.
pub fn results(runtime: &Runtime, device: &Device) -> Result<(Vec<f32>, Vec<f32>)> {
    let a = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let b = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0];
    Ok((matmul(runtime, device, &a, &b, 3)?, gather(runtime, device, &a, 2, &[-1, 0])?))
}

fn main() -> Result<()> {
    let runtime = Runtime::from_config(std::env::args().nth(1).as_deref().unwrap_or("ep.toml"))?;
    let (product, rows) = results(&runtime, runtime.device("cpu")?)?;
    println!("product {product:?}, rows {rows:?}");
    Ok(())
}

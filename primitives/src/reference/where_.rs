//! `where`: `dst = cond ? x : y` with NumPy broadcasting of all three; bits are copied.

use super::launch::{Launch, Outputs};
use super::number::Data;
use super::shape::{broadcast, count, ravel, unravel};
use ep_core::{DType, Result};

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let (cond_dtype, dtype) = (launch.get_dtype("cond")?, launch.get_dtype("data")?);
    if cond_dtype != DType::BOOL && !cond_dtype.is_int() {
        return Err(launch.unsupported(format!("a condition of {cond_dtype}")));
    }
    let cond_dims = launch.get_dims("cond_dims")?;
    let (x_dims, y_dims) = (launch.get_dims("x_dims")?, launch.get_dims("y_dims")?);
    let dims = broadcast(launch, &[&cond_dims, &x_dims, &y_dims])?;
    let cond = launch.get_read("cond", cond_dtype, count(launch, &cond_dims)?)?;
    let x = launch.get_read("x", dtype, count(launch, &x_dims)?)?;
    let y = launch.get_read("y", dtype, count(launch, &y_dims)?)?;
    let mut bytes = Vec::new();
    for position in 0..count(launch, &dims)? {
        let index = unravel(position, &dims);
        let element = if cond.get(ravel(&index, &cond_dims)).truth() {
            x.element(ravel(&index, &x_dims))
        } else {
            y.element(ravel(&index, &y_dims))
        };
        bytes.extend_from_slice(element);
    }
    Ok(Outputs::one("dst", Data { dtype, bytes }))
}

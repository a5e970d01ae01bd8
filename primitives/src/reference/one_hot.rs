//! `one_hot`: a row for each index, `on` in the column of its class and `off` elsewhere.

use super::index::{Window, index_dtype};
use super::launch::{Launch, Outputs};
use super::number::{Data, Number};
use ep_core::Result;

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let (index, dtype) = (index_dtype(launch)?, launch.get_dtype("data")?);
    let (num_indices, depth) = (launch.get_size("num_indices")?, launch.get_size("depth")?);
    let window = Window::new(launch, "depth")?;
    let indices = launch.get_read("indices", index, num_indices)?;
    let on = launch.get_scalar("on").unwrap_or(Number::Int(1));
    let off = launch.get_scalar("off").unwrap_or(Number::Int(0));
    let mut dst = Data { dtype, bytes: Vec::new() };
    for position in 0..num_indices {
        let place = window.place(indices, position)?;
        (0..depth).for_each(|column| dst.push(if place == Some(column) { on } else { off }));
    }
    Ok(Outputs::one("dst", dst))
}

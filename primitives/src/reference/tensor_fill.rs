//! `tensor_fill`: copies of one element in memory, bit for bit.

use super::launch::{Launch, Outputs};
use super::number::Data;
use ep_core::Result;

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let (dtype, count) = (launch.get_dtype("data")?, launch.get_size("count")?);
    let bytes = launch.get_read("src", dtype, 1)?.bytes.repeat(count);
    Ok(Outputs::one("dst", Data { dtype, bytes }))
}

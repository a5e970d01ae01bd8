//! `cast`: [`Number::store`](super::Number::store) of each element; a dtype to itself is a copy of the bytes.

use super::launch::{Launch, Outputs};
use super::number::{Data, View};
use ep_core::{DType, Result};

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let (from, to, count) = (launch.get_dtype("src")?, launch.get_dtype("dst")?, launch.get_size("count")?);
    let src = launch.get_read("src", from, count)?;
    Ok(Outputs::one("dst", convert(src, to)))
}

/// All elements as another dtype.
pub(super) fn convert(src: View<'_>, to: DType) -> Data {
    if src.dtype == to {
        return Data { dtype: to, bytes: src.bytes.to_vec() };
    }
    Data::new(to, src.iter())
}

//! `memcpy`: bytes as they are.

use super::launch::{Launch, Outputs};
use super::number::Data;
use ep_core::{DType, Result};

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let bytes = launch.get_read("src", DType::U8, launch.get_size("bytes")?)?.bytes.to_vec();
    Ok(Outputs::one("dst", Data { dtype: DType::U8, bytes }))
}

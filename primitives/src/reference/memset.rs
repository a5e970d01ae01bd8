//! `memset`: one byte, the value modulo 256.

use super::launch::{Launch, Outputs};
use super::number::{Data, Number};
use ep_core::{DType, Result};

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let byte = match launch.get_scalar("value") {
        Some(Number::Bool(b)) => u8::from(b),
        Some(Number::Int(i)) => i as u8,
        Some(Number::Real(x)) if x.is_finite() && x.fract() == 0.0 => x.rem_euclid(256.0) as u8,
        other => return Err(launch.invalid(format!("`value` is {other:?}, not a whole number"))),
    };
    let bytes = vec![byte; launch.get_size("bytes")?];
    Ok(Outputs::one("dst", Data { dtype: DType::U8, bytes }))
}

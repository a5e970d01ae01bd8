//! `arange`: `start + i step`. Integers wrap; floats are exact and rounded once.

use super::launch::{Launch, Outputs};
use super::math::Wide;
use super::number::{Data, Number, format_of};
use ep_core::{DType, Result};

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let (dtype, count) = (launch.get_dtype("data")?, launch.get_size("count")?);
    if dtype == DType::BOOL || dtype.is_complex() {
        return Err(launch.unsupported(dtype));
    }
    let start = launch.get_scalar("start").unwrap_or(Number::Int(0));
    let step = launch.get_scalar("step").unwrap_or(Number::Int(1));
    let data = if dtype.is_int() {
        let [start, step] = [start, step].map(|x| x.cast(DType::I64).int());
        Data::new(dtype, (0..count as i128).map(|i| Number::Int(start + i * step)))
    } else {
        let [start, step] = [start, step].map(|x| Wide::from(x.re()));
        let at = |i| start + Wide::from(i) * step;
        Data::new(dtype, (0..count as i128).map(|i| Number::Real(at(i).to_format(format_of(dtype)))))
    };
    Ok(Outputs::one("dst", data))
}

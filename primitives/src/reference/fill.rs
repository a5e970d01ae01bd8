//! `fill`: one value, converted as `cast` converts.

use super::launch::{Launch, Outputs};
use super::number::Data;
use ep_core::Result;

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let (dtype, count) = (launch.get_dtype("data")?, launch.get_size("count")?);
    let value = launch.get_scalar("value").ok_or_else(|| launch.invalid("`value` is none"))?;
    Ok(Outputs::one("dst", Data::new(dtype, std::iter::repeat_n(value, count))))
}

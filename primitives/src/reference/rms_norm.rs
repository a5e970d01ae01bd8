//! `rms_norm`: `src * inv_rms * weight` for each row, with `inv_rms = 1 / sqrt(mean(src^2) + epsilon)`;
//! rounded once at the end.

use super::launch::{Launch, Outputs};
use super::layer_norm::{Rows, rounded};
use super::math::Wide;
use super::number::{Data, Number};
use ep_core::Result;

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let rows = Rows::new(launch, &["inv_rms"])?;
    let weight = rows.factors("weight")?;
    let [mut dst, mut inverses] = [rows.data, rows.stats].map(|d| Data::new(d, []));
    for row in rows.iter() {
        if row.is_empty() {
            inverses.push(Number::Real(f64::NAN));
            continue;
        }
        let squares = row.iter().fold(Wide::ZERO, |sum, x| sum + x.square());
        let mean = squares / Wide::from(row.len() as i128);
        let inverse = Wide::ONE / (mean + Wide::from(launch.get_attr("epsilon"))).sqrt();
        inverses.push(rounded(inverse, rows.stats));
        for (i, x) in row.iter().enumerate() {
            dst.push(rounded(*x * inverse * weight.map_or(Wide::ONE, |w| w.get(i).wide()), rows.data));
        }
    }
    Ok(Outputs::one("dst", dst).and("inv_rms", inverses))
}

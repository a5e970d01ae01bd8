//! `layer_norm`: `(src - mean) * rstd * gamma + beta` for each row, with the population variance and
//! `rstd = 1 / sqrt(variance + epsilon)`; rounded once at the end.

use super::launch::{Launch, Outputs};
use super::math::Wide;
use super::number::{Data, Number, View, format_of};
use super::shape::count;
use ep_core::{DType, Result};

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let rows = Rows::new(launch, &["mean", "rstd"])?;
    let (gamma, beta) = (rows.factors("gamma")?, rows.factors("beta")?);
    let [mut dst, mut means, mut rstds] = [rows.data, rows.stats, rows.stats].map(|d| Data::new(d, []));
    for row in rows.iter() {
        if row.is_empty() {
            means.push(Number::Real(f64::NAN));
            rstds.push(Number::Real(f64::NAN));
            continue;
        }
        let cols = Wide::from(row.len() as i128);
        let mean = row.iter().fold(Wide::ZERO, |sum, x| sum + *x) / cols;
        let variance = row.iter().fold(Wide::ZERO, |sum, x| sum + (*x - mean).square()) / cols;
        let rstd = Wide::ONE / (variance + Wide::from(launch.get_attr("epsilon"))).sqrt();
        means.push(rounded(mean, rows.stats));
        rstds.push(rounded(rstd, rows.stats));
        for (i, x) in row.iter().enumerate() {
            let scaled = (*x - mean) * rstd * gamma.map_or(Wide::ONE, |g| g.get(i).wide());
            let shifted = beta.map_or(scaled, |b| scaled + b.get(i).wide());
            dst.push(rounded(shifted, rows.data));
        }
    }
    Ok(Outputs::one("dst", dst).and("mean", means).and("rstd", rstds))
}

pub(super) fn rounded(x: Wide, dtype: DType) -> Number {
    Number::Real(x.to_format(format_of(dtype)))
}

/// The rows of a launch of a norm.
pub(super) struct Rows<'a> {
    launch: &'a Launch<'a>,
    pub(super) data: DType,
    pub(super) stats: DType,
    cols: usize,
    rows: usize,
    src: View<'a>,
}

impl<'a> Rows<'a> {
    /// Those of a launch with these outputs for each row.
    pub(super) fn new(launch: &'a Launch<'a>, of_rows: &[&str]) -> Result<Rows<'a>> {
        let (data, stats) = (launch.get_dtype("data")?, launch.get_dtype("stats")?);
        let expected = if data == DType::F64 { DType::F64 } else { DType::F32 };
        if !data.is_float() || stats != expected {
            return Err(launch.unsupported(format!("{data} with statistics of {stats}")));
        }
        let (rows, cols) = (launch.get_size("rows")?, launch.get_size("cols")?);
        let src = launch.get_read("src", data, count(launch, &[rows, cols])?)?;
        // Empty rows are as many as somebody says, unless there is an output for each.
        let nothing = cols == 0 && !of_rows.iter().any(|output| launch.is_taken(output));
        let rows = if nothing { 0 } else { rows };
        Ok(Rows { launch, data, stats, cols, rows, src })
    }

    /// An optional operand with an element for each column.
    pub(super) fn factors(&self, name: &str) -> Result<Option<View<'a>>> {
        self.launch.get_optional(name, self.data, self.cols)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Vec<Wide>> {
        let row = |r: usize| (0..self.cols).map(|c| self.src.get(r * self.cols + c).wide()).collect();
        (0..self.rows).map(row)
    }
}

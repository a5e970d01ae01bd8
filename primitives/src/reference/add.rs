//! `add`: the sum of any number of sources, exact and rounded once. Integers wrap; bool is "or".

use super::launch::{Launch, Outputs};
use super::math::{Format, Wide};
use super::number::{Data, Number, format_of};
use ep_core::{DType, Result};

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let (dtype, count) = (launch.get_dtype("data")?, launch.get_size("count")?);
    let sources = launch.get_all("srcs", dtype, count)?;
    if sources.len() > 256 {
        return Err(launch.invalid(format!("{} sources are given", sources.len())));
    }
    let element = |i: usize| sum(dtype, sources.iter().map(|s| s.get(i)));
    Ok(Outputs::one("dst", Data::new(dtype, (0..count).map(element))))
}

/// The sum of numbers of one dtype, rounded to it once; of none, zero.
pub(super) fn sum(dtype: DType, terms: impl Iterator<Item = Number>) -> Number {
    if dtype == DType::BOOL || dtype.is_int() {
        return Number::Int(terms.fold(0, |sum, x| sum + x.int()));
    }
    let (mut re, mut im) = (Exact::default(), Exact::default());
    for x in terms {
        re.add(Wide::from(x.re()));
        im.add(Wide::from(x.im()));
    }
    let format = format_of(dtype);
    if dtype.is_complex() {
        Number::Complex(re.rounded(format), im.rounded(format))
    } else {
        Number::Real(re.rounded(format))
    }
}

/// A sum to 128 bits. A sum of nothing but negative zeros is one, as in IEEE arithmetic.
#[derive(Default)]
pub(super) struct Exact(Option<Wide>);

impl Exact {
    pub(super) fn add(&mut self, x: Wide) {
        self.0 = Some(self.0.map_or(x, |sum| sum + x));
    }

    pub(super) fn value(&self) -> Wide {
        self.0.unwrap_or(Wide::ZERO)
    }

    fn rounded(&self, format: Format) -> f64 {
        self.value().to_format(format)
    }
}

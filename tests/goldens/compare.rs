//! How far apart elements are, and how far they may be.

use ep_core::DType;
use primitives::reference::{Data, Number, part_of};

/// How far a result may be from the golden one.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Steps between neighbouring numbers of the dtype, or, where the goldens have the size of what was added
    /// up, that many relative errors of it in the type computed in. For complex numbers, of their absolute value.
    pub ulps: f64,
    /// An error that is always allowed.
    pub absolute: f64,
    /// Whether zeros of both signs are equal.
    pub any_zero: bool,
}

impl Limit {
    /// Nothing but the golden bits, NaN being NaN.
    pub const EXACT: Limit = Limit { ulps: 0.0, absolute: 0.0, any_zero: false };
}

/// A result further away than its limit.
pub struct Miss {
    pub index: usize,
    pub got: Number,
    pub want: Number,
    pub steps: f64,
}

/// The position of a float among those of its dtype; both zeros are 0.
fn ordinal(dtype: DType, x: f64) -> i64 {
    let bytes = Data::new(dtype, [Number::Real(x)]).bytes;
    let bits = match bytes.len() {
        2 => u64::from(u16::from_ne_bytes(bytes.try_into().unwrap())),
        4 => u64::from(u32::from_ne_bytes(bytes.try_into().unwrap())),
        _ => u64::from_ne_bytes(bytes.try_into().unwrap()),
    };
    let sign = 1 << (8 * dtype.size().unwrap() - 1);
    if bits & sign == 0 { bits as i64 } else { -((bits & !sign) as i64) }
}

/// The relative spacing of the type that a dtype is computed in.
fn epsilon(dtype: DType) -> f64 {
    if part_of(dtype) == DType::F64 { f64::EPSILON } else { f32::EPSILON.into() }
}

/// Steps from one float to another; without end between NaN and anything else.
fn steps(dtype: DType, got: f64, want: f64) -> f64 {
    match (got.is_nan(), want.is_nan()) {
        (true, true) => 0.0,
        (false, false) => ordinal(dtype, got).abs_diff(ordinal(dtype, want)) as f64,
        _ => f64::INFINITY,
    }
}

/// How many units of the limit's kind two numbers are apart: 0 for the same.
fn distance(dtype: DType, got: Number, want: Number, scale: f64, limit: Limit) -> f64 {
    let part = part_of(dtype);
    match (got, want) {
        _ if got.same(want) => 0.0,
        (Number::Real(g), Number::Real(w)) => {
            if g == 0.0 && w == 0.0 {
                return if limit.any_zero { 0.0 } else { f64::INFINITY };
            }
            let of_scale = (g - w).abs() / (epsilon(part) * scale.max(f64::MIN_POSITIVE));
            let steps = steps(part, g, w);
            let allowed = (g - w).abs() <= limit.absolute;
            if allowed {
                0.0
            } else if of_scale < steps {
                of_scale
            } else {
                steps
            }
        }
        (Number::Complex(a, b), Number::Complex(c, d)) => {
            let apart = steps(part, a, c).max(steps(part, b, d));
            // Parts are scaled down so that squares neither overflow nor vanish.
            let largest = c.abs().max(d.abs()).max(scale);
            let of_norm = ((a - c) / largest).hypot((b - d) / largest)
                / (c / largest).hypot(d / largest).max(scale / largest);
            let of_norm = of_norm / epsilon(part);
            if of_norm < apart { of_norm } else { apart }
        }
        _ => f64::INFINITY,
    }
}

/// The elements that are further from the golden ones than the limit, and the largest distance of all.
pub fn compare(got: &Data, want: &Data, scales: Option<&Data>, limit: Limit) -> (Vec<Miss>, f64) {
    assert_eq!((got.dtype, got.bytes.len()), (want.dtype, want.bytes.len()), "dtype or size");
    let (mut misses, mut worst) = (Vec::new(), 0.0f64);
    for (index, (g, w)) in got.view().iter().zip(want.view().iter()).enumerate() {
        let scale = scales.map_or(0.0, |s| s.get(index).re().abs());
        let steps = distance(got.dtype, g, w, scale, limit);
        worst = worst.max(steps);
        if steps > limit.ulps {
            misses.push(Miss { index, got: g, want: w, steps });
        }
    }
    (misses, worst)
}

//! What the ops are tried on.

use crate::{Format, Op, edges::edges};
use ep_core::DType;
use half::{bf16, f16};

/// How many points, and which.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Random bit patterns (pairs of them, for binary ops).
    pub random: u64,
    /// Points around each edge: half of them on each side, neighbour by neighbour.
    pub around_edge: u64,
    /// How far apart the 16-bit patterns are that ops of one operand are tried on: 1 for all.
    pub pattern_step: u16,
    /// What the random ones are drawn from.
    pub seed: u64,
}

/// Elements judged at a time.
const BATCH: usize = 1 << 16;

impl Plan {
    /// As many random points, and around each edge a hundredth of that.
    pub const fn of(random: u64) -> Plan {
        Plan { random, around_edge: random / 100, pattern_step: 1, seed: 1 }
    }

    /// How many random points an op gets.
    pub(crate) fn random(&self, op: Op, dtype: DType) -> u64 {
        // Its true value takes a hundred times as long as that of any other op.
        let slow = op.name() == "zeta" && dtype == DType::F64;
        if slow { self.random / 100 } else { self.random }
    }

    pub(crate) fn batches(&self, op: Op, format: Format, each: &mut dyn FnMut([&[u8]; 2])) {
        let random = self.random(op, format.dtype);
        let mut rng = Rng(self.seed);
        match op {
            Op::Unary(name) => {
                let mut batch = Batch { operands: [Vec::new(), Vec::new()], format, each };
                if format.size() == 2 {
                    for bits in (0..=u16::MAX).step_by(self.pattern_step.into()) {
                        batch.push_bits(u64::from(bits), None);
                    }
                } else {
                    for edge in edges(name, format.dtype == DType::F64) {
                        for i in 0..self.around_edge {
                            batch.push_bits(
                                format.neighbour(edge, i as i64 - self.around_edge as i64 / 2),
                                None,
                            );
                        }
                    }
                    for special in specials(format) {
                        batch.push_bits(special, None);
                    }
                    for i in 0..random {
                        let bits = if i % 4 == 0 { format.bits(rng.everyday()) } else { rng.next() };
                        batch.push_bits(bits, None);
                    }
                }
                batch.flush();
            }
            Op::Binary(_) => {
                let mut batch = Batch { operands: [Vec::new(), Vec::new()], format, each };
                for a in specials(format) {
                    for b in specials(format) {
                        batch.push_bits(a, Some(b));
                    }
                }
                for i in 0..random {
                    // All bit patterns, and numbers of everyday size, which results are finite for.
                    let (a, b) = match i % 4 {
                        0 => (rng.next(), rng.next()),
                        1 => (format.bits(rng.everyday()), rng.next()),
                        _ => (format.bits(rng.everyday()), format.bits(rng.everyday())),
                    };
                    batch.push_bits(a, Some(b));
                }
                batch.flush();
            }
        }
    }
}

/// Signed zeros, ones and infinities; NaN; the ends of every dtype's range; and neighbours of 1.
const SPECIALS: [f64; 64] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.0,
    -2.0,
    0.5,
    -0.5,
    3.0,
    -3.0,
    1.5,
    -1.5,
    0.75,
    -0.75,
    7.0,
    -7.0,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    f64::MAX,
    f64::MIN,
    f64::MIN_POSITIVE,
    -f64::MIN_POSITIVE,
    5e-324,
    -5e-324,
    3.402_823_466_385_288_6e38,
    -3.402_823_466_385_288_6e38,
    1.175_494_350_822_287_5e-38,
    -1.175_494_350_822_287_5e-38,
    1.401_298_464_324_817e-45,
    -1.401_298_464_324_817e-45,
    65504.0,
    -65504.0,
    6.103_515_625e-5,
    -6.103_515_625e-5,
    5.960_464_477_539_063e-8,
    -5.960_464_477_539_063e-8,
    3.389_531_389_251_535_5e38,
    -3.389_531_389_251_535_5e38,
    1e10,
    -1e10,
    1e-10,
    -1e-10,
    1e30,
    -1e30,
    1e-30,
    -1e-30,
    100.0,
    -100.0,
    88.5,
    -88.5,
    700.25,
    -700.25,
    0.1,
    -0.1,
    10.0,
    -10.0,
    20.0,
    -20.0,
    1.000_001,
    0.999_999,
    2_147_483_648.0,
    9_007_199_254_740_993.0,
    -9_007_199_254_740_993.0,
];

/// What takes the place of those that are no number of their own in a narrower dtype: neighbours of 1 and the ends
/// of the ranges there, then powers of 2 and numbers of everyday size.
const MORE: [f64; 30] = [
    9.183_549_615_799_121e-41,
    -9.183_549_615_799_121e-41,
    1.000_976_562_5,
    0.999_511_718_75,
    1.007_812_5,
    0.996_093_75,
    0.25,
    -0.25,
    4.0,
    -4.0,
    5.0,
    -5.0,
    16.0,
    -16.0,
    1.25,
    -1.25,
    255.0,
    -255.0,
    1024.0,
    -1024.0,
    2047.0,
    -2049.0,
    0.015_625,
    -0.015_625,
    0.001,
    -0.001,
    3.140_625,
    -3.140_625,
    12.5,
    -12.5,
];

/// The bits of 64 special numbers of a dtype.
fn specials(format: Format) -> Vec<u64> {
    let mut found = Vec::new();
    for bits in SPECIALS.iter().chain(&MORE).map(|&x| format.bits(x)) {
        if !found.contains(&bits) && found.len() < SPECIALS.len() {
            found.push(bits);
        }
    }
    found
}

struct Batch<'a> {
    operands: [Vec<u8>; 2],
    format: Format,
    each: &'a mut dyn FnMut([&[u8]; 2]),
}

impl Batch<'_> {
    fn push_bits(&mut self, a: u64, b: Option<u64>) {
        let size = self.format.size();
        self.operands[0].extend(&a.to_le_bytes()[..size]);
        if let Some(b) = b {
            self.operands[1].extend(&b.to_le_bytes()[..size]);
        }
        if self.operands[0].len() == BATCH * size {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if !self.operands[0].is_empty() {
            (self.each)([&self.operands[0], &self.operands[1]]);
            self.operands.iter_mut().for_each(Vec::clear);
        }
    }
}

impl Format {
    fn bits(self, x: f64) -> u64 {
        match self.dtype {
            DType::F16 => f16::from_f64(x).to_bits().into(),
            DType::BF16 => bf16::from_f64(x).to_bits().into(),
            DType::F32 => (x as f32).to_bits().into(),
            _ => x.to_bits(),
        }
    }

    /// The number `steps` further on the line of numbers than the one nearest to `x`.
    fn neighbour(self, x: f64, steps: i64) -> u64 {
        let sign = 1i64 << (8 * self.size() - 1);
        let bits = self.bits(x) as i64;
        // Negative numbers count down.
        let flip = |bits: i64| if bits & sign != 0 { sign.wrapping_sub(bits) } else { bits };
        let width = 8 * self.size() as u32;
        let signed = flip(bits) << (64 - width) >> (64 - width);
        flip(signed.wrapping_add(steps)) as u64 & (u64::MAX >> (64 - width))
    }
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Of either sign and a magnitude from 2^-16 to 128, all exponents alike.
    fn everyday(&mut self) -> f64 {
        let bits = self.next();
        let exponent = (bits % 23) as i32 - 16;
        let fraction = 1.0 + (bits >> 12) as f64 / (1u64 << 52) as f64;
        let x = libm::ldexp(fraction, exponent);
        if bits >> 8 & 1 == 1 { -x } else { x }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn specials_are_as_many_numbers_in_each_dtype() {
        for dtype in crate::DTYPES {
            let format = Format::of(dtype);
            let size = format.size();
            let values =
                specials(format).into_iter().map(|bits| format.decode(&bits.to_le_bytes()[..size])[0]);
            // NaN is one number, zeros are two.
            let distinct: BTreeSet<u64> =
                values.map(|x| if x.is_nan() { u64::MAX } else { x.to_bits() }).collect();
            assert_eq!(distinct.len(), 64, "{dtype}");
        }
    }
}

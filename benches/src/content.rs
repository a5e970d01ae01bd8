//! What operands hold: pseudo-random values from a fixed seed.

use crate::row::Content;
use ep_core::DType;
use half::{bf16, f16};

/// Values that are drawn for one operand before they repeat. Kernels do not look at the values, but for indices,
/// which are all drawn.
const PERIOD: usize = 1 << 20;

/// Numbers that look random (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// Uniform in `0..1`.
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// The sum of twelve uniform values is close enough to a normal one.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }
}

/// The bytes of `count` elements.
pub fn bytes(dtype: DType, content: Content, count: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ seed.wrapping_mul(0xff51_afd7_ed55_8ccd).max(1));
    let size = dtype.bytes_for_bounds() as usize;
    let drawn = if matches!(content, Content::Below(_)) { count } else { count.min(PERIOD) };
    let mut out = Vec::with_capacity(count * size);
    for _ in 0..drawn {
        put(&mut out, dtype, content, &mut random);
    }
    while out.len() < count * size {
        let more = (count * size - out.len()).min(out.len());
        out.extend_from_within(..more);
    }
    out
}

fn put(out: &mut Vec<u8>, dtype: DType, content: Content, random: &mut Random) {
    if let Content::Below(n) = content {
        let value = random.below(n);
        match dtype {
            DType::I32 => out.extend((value as i32).to_ne_bytes()),
            _ => out.extend(value.to_ne_bytes()),
        }
        return;
    }
    let mut draw = || match content {
        Content::Normal(deviation) => deviation * random.normal(),
        _ => 0.05 + random.uniform(),
    };
    match dtype {
        DType::BOOL => out.push(u8::from(draw() > 0.0)),
        DType::I8 => out.extend(((draw() * 20.0) as i8).to_ne_bytes()),
        DType::U8 => out.push((draw() * 20.0) as u8),
        DType::I16 | DType::U16 => out.extend(((draw() * 100.0) as i16).to_ne_bytes()),
        DType::I32 | DType::U32 => out.extend(((draw() * 100.0) as i32).to_ne_bytes()),
        DType::I64 | DType::U64 => out.extend(((draw() * 100.0) as i64).to_ne_bytes()),
        DType::F16 => out.extend(f16::from_f32(draw()).to_ne_bytes()),
        DType::BF16 => out.extend(bf16::from_f32(draw()).to_ne_bytes()),
        DType::F32 => out.extend(draw().to_ne_bytes()),
        DType::F64 => out.extend(f64::from(draw()).to_ne_bytes()),
        DType::COMPLEX64 => {
            out.extend(draw().to_ne_bytes());
            out.extend(draw().to_ne_bytes());
        }
        DType::COMPLEX128 => {
            out.extend(f64::from(draw()).to_ne_bytes());
            out.extend(f64::from(draw()).to_ne_bytes());
        }
        // Bytes of a dtype that no row has.
        _ => out.extend(std::iter::repeat_n(0, dtype.bytes_for_bounds() as usize)),
    }
}

/// One element as a number; the real part of a complex one. Short bytes and other dtypes give NaN.
pub fn number(dtype: DType, bytes: &[u8]) -> f64 {
    fn take<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
        bytes.get(..N)?.try_into().ok()
    }
    let value = match dtype {
        DType::BOOL | DType::U8 => bytes.first().map(|b| f64::from(*b)),
        DType::I8 => take(bytes).map(|b| f64::from(i8::from_ne_bytes(b))),
        DType::I16 => take(bytes).map(|b| f64::from(i16::from_ne_bytes(b))),
        DType::U16 => take(bytes).map(|b| f64::from(u16::from_ne_bytes(b))),
        DType::I32 => take(bytes).map(|b| f64::from(i32::from_ne_bytes(b))),
        DType::U32 => take(bytes).map(|b| f64::from(u32::from_ne_bytes(b))),
        DType::I64 => take(bytes).map(|b| i64::from_ne_bytes(b) as f64),
        DType::U64 => take(bytes).map(|b| u64::from_ne_bytes(b) as f64),
        DType::F16 => take(bytes).map(|b| f16::from_ne_bytes(b).to_f64()),
        DType::BF16 => take(bytes).map(|b| bf16::from_ne_bytes(b).to_f64()),
        DType::F32 | DType::COMPLEX64 => take(bytes).map(|b| f64::from(f32::from_ne_bytes(b))),
        DType::F64 | DType::COMPLEX128 => take(bytes).map(f64::from_ne_bytes),
        _ => None,
    };
    value.unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_they_should_be() {
        for dtype in DType::ALL {
            let made = bytes(dtype, Content::Normal(1.0), 1003, 7);
            assert_eq!(made.len(), 1003 * dtype.size().unwrap());
            let values: Vec<f64> = made.chunks(dtype.size().unwrap()).map(|b| number(dtype, b)).collect();
            assert!(values.iter().all(|v| v.is_finite()), "{dtype}");
            assert!(values.iter().any(|v| *v != values[0]), "{dtype}");
        }
        let positive = bytes(DType::F32, Content::Positive, 5000, 1);
        assert!(positive.chunks(4).all(|b| (0.05..1.06).contains(&number(DType::F32, b))));
    }

    #[test]
    fn indices_are_in_range_and_reach_both_ends() {
        for dtype in [DType::I32, DType::I64] {
            let made = bytes(dtype, Content::Below(5), 4000, 3);
            let values: Vec<f64> = made.chunks(dtype.size().unwrap()).map(|b| number(dtype, b)).collect();
            assert!(values.iter().all(|v| (0.0..5.0).contains(v)));
            assert!(values.contains(&0.0) && values.contains(&4.0));
        }
    }

    #[test]
    fn long_operands_repeat_whole_periods() {
        let made = bytes(DType::U8, Content::Normal(1.0), 2 * PERIOD + 5, 9);
        assert_eq!(made.len(), 2 * PERIOD + 5);
        assert_eq!(made[..1000], made[PERIOD..PERIOD + 1000]);
    }
}

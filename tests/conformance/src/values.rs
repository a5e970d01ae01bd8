//! Content of operands.

use crate::case::{Case, Content};
use crate::trial::moves_bits;
use ep_core::DType;
use primitives::reference::{Data, Number, int_range};

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }

    /// A number in [-1, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

const SPECIAL: [f64; 14] = [
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -2.0,
    1e30,
    -1e30,
    1e-30,
    65504.0,
    f64::MAX,
];

/// Where [`Content::Offset`] lies, and how far it spreads: where products of its numbers lose what tells them apart,
/// with a spread that the dtype can still show.
fn offset(dtype: DType, random: &mut Random) -> (f64, f64) {
    let sign = if random.below(2) == 0 { 1.0 } else { -1.0 };
    let size = [300.0, 1000.0, 10_000.0][random.below(3) as usize];
    let narrow = dtype == DType::F16 || dtype == DType::BF16;
    (sign * size, if narrow { size / 8.0 } else { 2.0 })
}

fn real(dtype: DType, content: Content, random: &mut Random) -> f64 {
    let bits = |random: &mut Random| {
        let bytes = random.bits().to_ne_bytes();
        Number::load(dtype, &bytes).re()
    };
    match (content, random.below(8)) {
        (Content::NonFinite, _) if random.below(24) == 0 => SPECIAL[random.below(5) as usize],
        (Content::Infinite, _) if random.below(200) == 0 => f64::INFINITY,
        (Content::Sparse, _) if random.below(48) == 0 => SPECIAL[random.below(3) as usize],
        (Content::Sparse, 0..5) => SPECIAL[3 + random.below(2) as usize],
        (Content::Few, _) => random.below(5) as f64 - 2.0,
        (Content::Modest | Content::NonFinite | Content::Infinite | Content::Offset, 0) => {
            (random.below(9) as f64 - 4.0) * 0.5
        }
        (Content::Modest | Content::NonFinite | Content::Infinite | Content::Sparse | Content::Offset, _) => {
            3.0 * random.unit()
        }
        (Content::Wild, 0..3) => SPECIAL[random.below(SPECIAL.len() as u64) as usize],
        (Content::Wild, 3..5) => bits(random),
        (Content::Wild, _) => 20.0 * random.unit(),
    }
}

fn number(dtype: DType, content: Content, random: &mut Random) -> Number {
    match dtype {
        DType::BOOL => Number::Bool(random.bits() & 1 != 0),
        DType::COMPLEX64 | DType::COMPLEX128 => {
            let part = if dtype == DType::COMPLEX64 { DType::F32 } else { DType::F64 };
            Number::Complex(real(part, content, random), real(part, content, random))
        }
        d if DType::FLOAT.contains(&d) => Number::Real(real(d, content, random)),
        d => {
            let (least, most) = int_range(d);
            match random.below(4) {
                _ if content == Content::Few => Number::Int((i128::from(random.below(5)) - 2).max(least)),
                0 => Number::Int(i128::from(random.bits() as i64).clamp(least, most)),
                1 => Number::Int([least, most, 0, 1, most - 1, least + 1][random.below(6) as usize]),
                _ => Number::Int((i128::from(random.below(19)) - 9).clamp(least, most)),
            }
        }
    }
}

/// The content of one operand of a case.
pub fn content(case: &Case, operand: &str, dtype: DType, count: usize, random: &mut Random) -> Data {
    if operand == "indices" {
        let (from, to) = case.indices;
        let span = (to - from).max(1) as u64;
        let mut values: Vec<i128> = (0..count).map(|_| (from + random.below(span) as i64).into()).collect();
        if let (true, Some(place)) = (case.far_index, random.bits().checked_rem(count as u64)) {
            let value = &mut values[place as usize];
            *value = far(dtype, *value, random);
        }
        return Data::new(dtype, values.into_iter().map(Number::Int));
    }
    if dtype == DType::BOOL && case.content == Content::Wild {
        // Any byte but 0 is true.
        let byte = |random: &mut Random| if random.below(2) == 0 { 0 } else { random.bits() as u8 };
        return Data { dtype, bytes: (0..count).map(|_| byte(random)).collect() };
    }
    if case.content == Content::Offset && operand == "src" && DType::FLOAT.contains(&dtype) {
        let (offset, spread) = offset(dtype, random);
        return Data::new(dtype, (0..count).map(|_| Number::Real(offset + spread * random.unit())));
    }
    if !DType::ALL.contains(&dtype) {
        return Data { dtype, bytes: bits(count * dtype.bytes_for_bounds() as usize, random) };
    }
    let mut data = Data::new(dtype, (0..count).map(|_| number(dtype, case.content, random)));
    if case.content == Content::Wild && moves_bits(case) {
        payloads(&mut data, random);
    }
    data
}

/// Makes some floats NaN of any sign and payload, which a number does not keep.
fn payloads(data: &mut Data, random: &mut Random) {
    let (dtype, parts) = match data.dtype {
        DType::COMPLEX64 => (DType::F32, 2),
        DType::COMPLEX128 => (DType::F64, 2),
        dtype => (dtype, 1),
    };
    let exponent: u64 = match dtype {
        DType::F16 => 0x7c00,
        DType::BF16 => 0x7f80,
        DType::F32 => 0x7f80_0000,
        DType::F64 => 0x7ff0 << 48,
        _ => return,
    };
    let size = data.bytes.len().checked_div(data.view().len() * parts).unwrap_or(1).max(1);
    for bytes in data.bytes.chunks_exact_mut(size) {
        if random.below(16) == 0 {
            let word = (random.bits() | exponent | 1).to_le_bytes();
            bytes.copy_from_slice(&word[..size]);
            // As a host of the other order has it.
            if cfg!(target_endian = "big") {
                bytes.reverse();
            }
        }
    }
}

/// An index far outside of every axis: the ends of the range, and what looks like `index` to who cuts it.
fn far(dtype: DType, index: i128, random: &mut Random) -> i128 {
    let (least, most) = int_range(dtype);
    let wide = 1i128 << 32;
    let choices = [index + wide, index - wide, least, most];
    let fitting: Vec<i128> = choices.into_iter().filter(|i| (least..=most).contains(i)).collect();
    fitting[random.below(fitting.len() as u64) as usize]
}

/// Random bytes, for dtypes whose elements have no meaning here.
fn bits(count: usize, random: &mut Random) -> Vec<u8> {
    (0..count).map(|_| random.bits() as u8).collect()
}

/// Bytes that no kernel leaves behind by chance, and that are valid elements.
pub fn poison(dtype: DType, bytes: usize) -> Vec<u8> {
    vec![if dtype == DType::BOOL { 1 } else { 0xd5 }; bytes]
}

/// Others: NaN where the dtype has it, which stays NaN in whatever is computed with it.
pub fn other_poison(dtype: DType, bytes: usize) -> Vec<u8> {
    let nan = DType::FLOAT.contains(&dtype) || DType::COMPLEX.contains(&dtype);
    vec![
        if nan {
            0xff
        } else if dtype == DType::BOOL {
            0
        } else {
            0x2a
        };
        bytes
    ]
}

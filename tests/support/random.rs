//! Fresh random data. A failing test prints its seed; `EP_TEST_SEED` brings it back.

use ep_core::Element;
use half::{bf16, f16};
use std::time::{SystemTime, UNIX_EPOCH};

/// A generator (SplitMix64: any seed is a good one).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Starts from `EP_TEST_SEED`, else from the clock, and prints the seed.
    ///
    /// # Panics
    /// When the variable is no number.
    pub fn fresh() -> Random {
        let seed = match std::env::var("EP_TEST_SEED") {
            Ok(text) => text.parse().expect("EP_TEST_SEED is a number"),
            Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64),
        };
        println!("EP_TEST_SEED={seed}");
        Random(seed)
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    /// Elements with random bits: negative ones, infinities and NaNs of every payload among them.
    pub fn vec<T: Bits>(&mut self, len: usize) -> Vec<T> {
        (0..len).map(|_| T::from_random(self.word())).collect()
    }
}

/// An element made from random bits.
pub trait Bits: Element {
    /// Any value of the type.
    fn from_random(bits: u64) -> Self;
}

macro_rules! from_bits {
    ($($t:ty: $x:ident => $value:expr;)*) => {
        $(impl Bits for $t { fn from_random($x: u64) -> $t { $value } })*
    };
}
from_bits! {
    bool: x => x & 1 == 1;
    i8: x => x as i8;
    u8: x => x as u8;
    i16: x => x as i16;
    u16: x => x as u16;
    i32: x => x as i32;
    u32: x => x as u32;
    i64: x => x as i64;
    u64: x => x;
    f16: x => f16::from_bits(x as u16);
    bf16: x => bf16::from_bits(x as u16);
    f32: x => f32::from_bits(x as u32);
    f64: x => f64::from_bits(x);
}

/// The bytes of elements, for comparisons in which a NaN equals itself.
pub fn bits<T: Element>(data: &[T]) -> &[u8] {
    // SAFETY: elements are plain data without padding.
    unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) }
}

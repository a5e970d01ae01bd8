//! Division by a number that is fixed for a whole kernel.
//!
//! Turning a flat offset into coordinates divides once per dimension and element; a hardware division costs
//! several times a multiplication. The method is Granlund and Montgomery's (1994): with `l = ceil(log2 d)`
//! and `m = floor(2^N * (2^l - d) / d) + 1`, the quotient is the high half of `m * n`, corrected by one
//! addition and two shifts. It is exact for every `N`-bit dividend and every divisor but zero.
//!
//! ```
//! use primitives::fast_div::FastDivU32;
//!
//! // Rows and columns of elements of a matrix of 7 columns, without a division in the loop.
//! let by_cols = FastDivU32::new(7).expect("7 is not 0");
//! let places: Vec<(u32, u32)> = (5..9).map(|element| by_cols.div_rem(element)).collect();
//! assert_eq!(places, [(0, 5), (0, 6), (1, 0), (1, 1)]);
//! assert_eq!(by_cols.div_rem(u32::MAX), (613_566_756, 3));
//! assert!(FastDivU32::new(0).is_none());
//! ```

macro_rules! fast_div {
    ($name:ident, $t:ty, $wide:ty, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            divisor: $t,
            multiplier: $t,
            shift1: u32,
            shift2: u32,
        }

        impl $name {
            /// Prepares for division by `divisor`; `None` if it is zero.
            pub fn new(divisor: $t) -> Option<Self> {
                let log2_ceil = <$t>::BITS - divisor.checked_sub(1)?.leading_zeros();
                let excess = (1 as $wide) << log2_ceil;
                let multiplier = (((excess - divisor as $wide) << <$t>::BITS) / divisor as $wide + 1) as $t;
                Some(Self {
                    divisor,
                    multiplier,
                    shift1: log2_ceil.min(1),
                    shift2: log2_ceil.saturating_sub(1),
                })
            }

            /// The divisor.
            pub fn divisor(self) -> $t {
                self.divisor
            }

            /// `n / divisor`.
            #[inline(always)]
            pub fn quotient(self, n: $t) -> $t {
                let high = ((self.multiplier as $wide * n as $wide) >> <$t>::BITS) as $t;
                (high + ((n - high) >> self.shift1)) >> self.shift2
            }

            /// `(n / divisor, n % divisor)`.
            #[inline(always)]
            pub fn div_rem(self, n: $t) -> ($t, $t) {
                let quotient = self.quotient(n);
                (quotient, n - quotient * self.divisor)
            }
        }
    };
}

fast_div!(FastDivU32, u32, u64, "Divides any `u32` by a fixed one.");
fast_div!(FastDivU64, u64, u128, "Divides any `u64` by a fixed one.");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Values around every power of two, and around the extremes: where a wrong shift or carry shows.
    fn edges() -> Vec<u64> {
        let mut v: Vec<u64> = (0..64)
            .flat_map(|bit| (-3i64..=3).map(move |d| (1u64 << bit).wrapping_add_signed(d)))
            .chain([
                3,
                5,
                7,
                10,
                641,
                1_000_003,
                6_700_417,
                u64::MAX / 3,
                u64::MAX / 2,
                u64::MAX - 1,
                u64::MAX,
            ])
            .collect();
        v.sort_unstable();
        v.dedup();
        v
    }

    #[test]
    fn zero_is_no_divisor() {
        assert_eq!(FastDivU32::new(0), None);
        assert_eq!(FastDivU64::new(0), None);
    }

    #[test]
    fn edges_of_u64() {
        let edges = edges();
        for &d in edges.iter().filter(|&&d| d != 0) {
            let f = FastDivU64::new(d).unwrap();
            assert_eq!(f.divisor(), d);
            for &n in &edges {
                assert_eq!(f.div_rem(n), (n / d, n % d), "{n} / {d}");
            }
            // The last dividend of each quotient and the first of the next.
            for q in [1, 2, 3, u64::MAX / d] {
                for n in [q.wrapping_mul(d).wrapping_sub(1), q.wrapping_mul(d)] {
                    assert_eq!(f.quotient(n), n / d, "{n} / {d}");
                }
            }
        }
    }

    #[test]
    fn edges_of_u32() {
        let mut edges: Vec<u32> = edges().into_iter().map(|v| v as u32).collect();
        edges.dedup();
        for d in edges.iter().copied().chain(1..300).filter(|&d| d != 0) {
            let f = FastDivU32::new(d).unwrap();
            for n in edges.iter().copied().chain(0..300) {
                assert_eq!(f.div_rem(n), (n / d, n % d), "{n} / {d}");
            }
            for q in [1, 2, 3, u32::MAX / d] {
                for n in [q.wrapping_mul(d).wrapping_sub(1), q.wrapping_mul(d)] {
                    assert_eq!(f.quotient(n), n / d, "{n} / {d}");
                }
            }
        }
    }

    #[test]
    fn all_small_pairs() {
        for d in 1..=512u32 {
            let (f, g) = (FastDivU32::new(d).unwrap(), FastDivU64::new(d.into()).unwrap());
            for n in 0..=2048u32 {
                assert_eq!(f.quotient(n), n / d);
                assert_eq!(g.quotient(n.into()), u64::from(n / d));
            }
        }
    }

    /// Around every kind of multiple: the first ones, the middle, the last below 2^32.
    fn check_multiples_u32(d: u32) {
        let f = FastDivU32::new(d).unwrap();
        let last = u32::MAX / d;
        for q in [0, 1, 2, 3, last / 3, last / 2, last / 2 + 1, last - 1, last].map(|q| q.min(last)) {
            for n in [(q * d).saturating_sub(1), q * d, (q * d).saturating_add(1)] {
                assert_eq!(f.div_rem(n), (n / d, n % d), "{n} / {d}");
            }
        }
    }

    fn check_multiples_u64(d: u64) {
        let f = FastDivU64::new(d).unwrap();
        let last = u64::MAX / d;
        for q in [0, 1, 2, 3, last / 3, last / 2, last / 2 + 1, last - 1, last].map(|q| q.min(last)) {
            for n in [(q * d).saturating_sub(1), q * d, (q * d).saturating_add(1)] {
                assert_eq!(f.div_rem(n), (n / d, n % d), "{n} / {d}");
            }
        }
    }

    #[test]
    fn all_divisors_of_16_bits_and_powers_of_two() {
        let around = |bit: u32| (-1i64..=1).map(move |d| (1u64 << bit).wrapping_add_signed(d));
        for d in (1..=1 << 16).chain((17..64).flat_map(around)).chain([u64::MAX - 1, u64::MAX]) {
            check_multiples_u64(d);
            if let Ok(d) = u32::try_from(d) {
                check_multiples_u32(d);
            }
        }
        for d in [u32::MAX - 1, u32::MAX] {
            check_multiples_u32(d);
        }
    }

    /// All multiples of small divisors, and both their neighbours, over all of 16 bits.
    #[test]
    fn all_multiples_below_16_bits() {
        for d in 1..=1u32 << 16 {
            let (f, g) = (FastDivU32::new(d).unwrap(), FastDivU64::new(d.into()).unwrap());
            for n in (0..1u32 << 16).step_by(d as usize).flat_map(|m| [m.saturating_sub(1), m, m + 1]) {
                assert_eq!(f.quotient(n), n / d, "{n} / {d}");
                assert_eq!(g.quotient(n.into()), u64::from(n / d), "{n} / {d}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn random(n: u64, d in 1u64.., shift in 0u32..63) {
            let d = (d >> shift).max(1);
            prop_assert_eq!(FastDivU64::new(d).unwrap().div_rem(n), (n / d, n % d));
            let (n, d) = (n as u32, (d as u32).max(1));
            prop_assert_eq!(FastDivU32::new(d).unwrap().div_rem(n), (n / d, n % d));
        }
    }
}

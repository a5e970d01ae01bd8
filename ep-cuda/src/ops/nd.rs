//! The arguments of kernels that loop over N-dimensional operands (nd.cuh), and what follows from the sizes.

use super::dtype_name;
use crate::compiler::Spec;
use crate::kernel::Geometry;
use ep_core::{DType, Result};

const RANK: usize = 8;
const THREADS: u32 = 256;
/// Packs of a thread.
const UNROLL: u32 = 2;

/// `FastDiv` of common.cuh.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FastDiv {
    divisor: u64,
    multiplier: u32,
    shift: u32,
}

impl FastDiv {
    /// For dividends below 2^31 where the divisor is below 2^32; `divisor` is not 0.
    fn new(divisor: u64) -> FastDiv {
        let shift = u64::BITS - (divisor - 1).leading_zeros();
        let excess = |d: u64| ((((1u128 << shift) - u128::from(d)) << 32) / u128::from(d) + 1) as u32;
        FastDiv { divisor, multiplier: if divisor < 1 << 32 { excess(divisor) } else { 0 }, shift }
    }
}

/// `NdArgs` of nd.cuh for `N` operands, the destination first.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Nd<const N: usize> {
    packs: u64,
    inner_size: u64,
    rank: u32,
    before: u32,
    vector: u32,
    scalar: u32,
    dims: [FastDiv; RANK],
    strides: [[i64; RANK]; N],
    inner: [i64; N],
    address: [u64; N],
    scalars: [[u64; 2]; N],
}

/// How wide the kernel's index is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Index {
    /// 32 bits: fewer than 2^31 packs and elements.
    Narrow,
    /// 64 bits.
    Wide,
}

/// Elements of a pack: 16 bytes of the largest ones.
pub(super) fn pack_of(dtypes: &[DType]) -> u64 {
    dtypes.iter().map(|d| 16 / d.bytes_for_bounds().max(1)).min().unwrap_or(1).max(1)
}

/// The macros of nd.cuh.
pub(super) fn specialise(spec: Spec, pack: u64, index: Index) -> Spec {
    let name = if index == Index::Narrow { "u32" } else { "u64" };
    spec.with("EP_THREADS", THREADS).with("EP_UNROLL", UNROLL).with("EP_PACK", pack).with("EP_INDEX", name)
}

/// The macros for a source and a destination.
pub(super) fn between(spec: Spec, src: DType, dst: DType) -> Spec {
    spec.with("EP_SRC", dtype_name(src)).with("EP_DST", dtype_name(dst))
}

impl<const N: usize> Nd<N> {
    /// `count` neighbours in each operand, given as address and bytes of an element. `count` is not 0.
    pub(super) fn flat(count: u64, operands: [(u64, u64); N], pack: u64) -> (Nd<N>, Index) {
        let (first, size) = operands[0];
        // Packs of the destination are aligned; an element that is not at a multiple of its size has none.
        let before = if first.is_multiple_of(size) { first / size % pack } else { 0 };
        let packs = (count + before).div_ceil(pack);
        let mut vector = 0;
        for (k, (address, bytes)) in operands.iter().enumerate() {
            let unit = (pack * bytes).min(16);
            let whole = address.wrapping_sub(before * bytes).is_multiple_of(unit);
            vector |= u32::from(whole) << k;
        }
        let mut nd = Nd {
            packs,
            inner_size: count,
            rank: 1,
            before: before as u32,
            vector,
            scalar: 0,
            dims: [FastDiv::default(); RANK],
            strides: [[0; RANK]; N],
            inner: [1; N],
            address: operands.map(|(address, _)| address),
            scalars: [[0; 2]; N],
        };
        nd.dims[0] = FastDiv::new(packs);
        nd.strides.iter_mut().for_each(|s| s[0] = pack as i64);
        let narrow = packs.max(count - 1 + before) < 1 << 31;
        (nd, if narrow { Index::Narrow } else { Index::Wide })
    }

    /// Enough threads for all packs.
    pub(super) fn geometry(&self) -> Result<Geometry> {
        Geometry::covering(self.packs, THREADS, UNROLL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!(size_of::<FastDiv>(), 16);
        assert_eq!(size_of::<Nd<2>>(), 32 + 8 * 16 + 2 * 64 + 2 * 8 + 2 * 8 + 2 * 16);
    }

    #[test]
    fn division_by_multiplication_is_exact_below_two_to_the_31() {
        let divide = |by: FastDiv, n: u64| {
            let high = ((n * u64::from(by.multiplier)) >> 32) as u32;
            u64::from((high + n as u32) >> by.shift)
        };
        for divisor in [1, 2, 3, 5, 7, 64, 641, 6_700_417, (1 << 31) - 1] {
            let by = FastDiv::new(divisor);
            for n in [0, 1, divisor - 1, divisor, divisor + 1, 12_345_678, (1 << 31) - 1] {
                let n = n.min((1 << 31) - 1);
                assert_eq!(divide(by, n), n / divisor, "{n} / {divisor}");
            }
        }
    }

    #[test]
    fn packs_are_aligned_with_the_destination() {
        // f32 to f16: four elements of 16 and of 8 bytes.
        let pack = pack_of(&[DType::F32, DType::F16]);
        let plan = |dst: u64, src: u64, count| Nd::flat(count, [(dst, 2), (src, 4)], pack);
        let (nd, index) = plan(0x1000, 0x2000, 10);
        assert_eq!((pack, nd.packs, nd.before, nd.vector, index), (4, 3, 0, 0b11, Index::Narrow));
        let (nd, _) = plan(0x1002, 0x2004, 10);
        assert_eq!((nd.packs, nd.before, nd.vector), (3, 1, 0b11), "both begin one element into a pack");
        let (nd, _) = plan(0x1002, 0x2000, 10);
        assert_eq!((nd.before, nd.vector), (1, 0b01), "the source begins otherwise");
        assert_eq!(plan(0x1000, 0x2000, 1 << 31).1, Index::Narrow);
        assert_eq!(plan(0x1000, 0x2000, (1 << 31) + 1).1, Index::Wide);
        assert_eq!(pack_of(&[DType::COMPLEX128, DType::BOOL]), 1);
    }
}

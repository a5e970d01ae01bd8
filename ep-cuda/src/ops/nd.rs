//! The arguments of kernels that loop over N-dimensional operands (nd.cuh), and what follows from the sizes.

use super::dtype_name;
use crate::compiler::Spec;
use crate::kernel::{Function, Geometry, Lazy, Loader};
use ep_core::{DType, Result};
use primitives::broadcast::{MAX_DIMS, Plan};
use primitives::tensor_iterator::TensorIterator;

pub(super) const RANK: usize = MAX_DIMS;
const THREADS: u32 = 256;
/// Threads that a block has more than its packs, at most.
const MORE_THREADS: u32 = 64;
/// Elements of a pack up to which kernels for broadcasts are like others.
const FEW: u64 = 4;

/// `FastDiv` of common.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FastDiv {
    divisor: u64,
    multiplier: u32,
    shift: u32,
}

impl FastDiv {
    /// For dividends below 2^31 where the divisor is below 2^32; 0 is replaced by 1, as nothing is divided then.
    pub(super) fn new(divisor: u64) -> FastDiv {
        let divisor = divisor.max(1);
        let shift = u64::BITS - (divisor - 1).leading_zeros();
        // The excess is less than the divisor, so that nothing is lost to the shift: a division of 128 bits would take
        // longer than the rest of a launch's arguments.
        let multiplier = match divisor {
            1 => 1,
            2..4_294_967_296 => ((((1 << shift) - divisor) << 32) / divisor + 1) as u32,
            _ => 0,
        };
        FastDiv { divisor, multiplier, shift }
    }

    #[cfg(test)]
    pub(super) fn divisor(self) -> u64 {
        self.divisor
    }
}

/// How wide a kernel's index is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Index {
    /// 32 bits: everything counted is below 2^31.
    Narrow,
    /// 64 bits.
    Wide,
}

impl Index {
    /// The narrowest for a largest number.
    pub(super) fn of(largest: u64) -> Index {
        if largest < 1 << 31 { Index::Narrow } else { Index::Wide }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Index::Narrow => "u32",
            Index::Wide => "u64",
        }
    }
}

/// Sizes from the innermost dimension outwards, and for each of them the elements from one index to the next in every
/// operand, of which the destination is the first. No size is 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loops<const N: usize> {
    rank: usize,
    sizes: [u64; RANK],
    strides: [[i64; N]; RANK],
}

impl<const N: usize> Loops<N> {
    /// From pairs of a size and its strides, at most [`RANK`].
    pub(super) fn new(dims: impl IntoIterator<Item = (u64, [i64; N])>) -> Loops<N> {
        let mut loops = Loops { rank: 0, sizes: [1; RANK], strides: [[0; N]; RANK] };
        for (size, strides) in dims {
            loops.sizes[loops.rank] = size;
            loops.strides[loops.rank] = strides;
            loops.rank += 1;
        }
        loops
    }

    /// `count` neighbours in every operand.
    pub(super) fn flat(count: u64) -> Loops<N> {
        Loops::new([(count, [1; N])])
    }

    /// The `M` sources of a broadcast, and a destination without gaps in front of them: `N` is `M + 1`.
    pub(super) fn broadcast<const M: usize>(plan: &Plan<M>) -> Loops<N> {
        let mut step = 1;
        Loops::new(plan.dims().iter().enumerate().rev().map(|(axis, size)| {
            let mut strides = [step; N];
            (0..M).for_each(|source| strides[source + 1] = plan.strides(source)[axis] as i64);
            step *= *size as i64;
            (*size as u64, strides)
        }))
    }

    /// A walk in bytes over operands with elements of these sizes.
    pub(super) fn walk(walk: &TensorIterator<N>, bytes: [u64; N]) -> Loops<N> {
        Loops::new(walk.sizes().iter().zip(walk.strides()).map(|(size, strides)| {
            let mut elements = [0; N];
            (0..N).for_each(|k| elements[k] = strides[k] as i64 / bytes[k] as i64);
            (*size as u64, elements)
        }))
    }
}

/// An operand of a loop.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operand {
    /// In memory: its first element's address and the bytes of one.
    Memory(u64, u64),
    /// One value, by its bits.
    Value([u64; 2]),
}

/// `NdArgs` of nd.cuh for `N` operands, the destination first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Nd<const N: usize> {
    packs: u64,
    inner_size: u64,
    count: u64,
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

impl<const N: usize> Nd<N> {
    /// The arguments of a loop whose threads compute packs of `pack` neighbours, and how wide its index has to be.
    pub(super) fn new(loops: &Loops<N>, operands: [Operand; N], pack: u64) -> (Nd<N>, Index) {
        Nd::plan(loops, operands, pack, pack)
    }

    /// The same for a kernel that is compiled for broadcasts, with its threads, of which each takes `unroll` packs: of packs of many
    /// elements, rows may be shorter than those that go on, and blocks have more threads for packs in which a row ends.
    pub(super) fn broadcast(
        loops: &Loops<N>,
        operands: [Operand; N],
        pack: u64,
        unroll: u32,
    ) -> Result<(Nd<N>, Index, Geometry)> {
        let (mut nd, index) = Nd::plan(loops, operands, pack, if pack > FEW { 1 } else { pack });
        let mut geometry = nd.geometry(unroll)?;
        if nd.scalar >> 31 == 1 && pack > FEW && nd.inner_size >= pack {
            let more = more_threads(nd.inner_size, u64::from(THREADS * unroll) * pack);
            nd.scalar |= u32::from(more > 0) << 30;
            // Each of them takes as many packs as the others do.
            geometry.block[0] += (more / 32).div_ceil(unroll) * 32;
        }
        Ok((nd, index, geometry))
    }

    /// Packs go on from rows of at least `shortest` elements.
    fn plan(loops: &Loops<N>, operands: [Operand; N], pack: u64, shortest: u64) -> (Nd<N>, Index) {
        let Loops { rank, sizes, strides } = loops;
        let (inner, outer) = (sizes[0], 1..*rank);
        let count: u64 = sizes[..*rank].iter().product();
        let is_dense = |k: usize| {
            let mut step = 1;
            (0..*rank).all(|d| (strides[d][k] == step, step *= sizes[d] as i64).0)
        };
        // Packs of the destination are aligned; an element that is not at a multiple of its size has none. Where its rows are
        // not whole packs, but have no gaps between them, packs go on from one to the next.
        let (mut before, mut goes_on) = (0, false);
        if let Operand::Memory(address, bytes) = operands[0]
            && address.is_multiple_of(bytes)
        {
            let unit = (pack * bytes).min(16);
            let whole = address.is_multiple_of(unit) && (inner * bytes).is_multiple_of(unit);
            goes_on = pack > 2 && *rank > 1 && inner >= shortest && !whole && is_dense(0);
            if goes_on || (*rank == 1 && strides[0][0] == 1) {
                before = address / bytes % pack;
            }
        }
        let row = (inner + before).div_ceil(pack);
        let packs = if goes_on {
            (count + before).div_ceil(pack)
        } else {
            row * sizes[outer.clone()].iter().product::<u64>()
        };
        let mut nd = Nd {
            packs,
            inner_size: inner,
            count,
            rank: *rank as u32,
            before: before as u32,
            vector: 0,
            scalar: u32::from(goes_on) << 31,
            dims: [FastDiv::default(); RANK],
            strides: [[0; RANK]; N],
            inner: strides[0],
            address: [0; N],
            scalars: [[0; 2]; N],
        };
        nd.dims[0] = FastDiv::new(if goes_on { inner } else { row });
        outer.clone().for_each(|d| nd.dims[d] = FastDiv::new(sizes[d]));
        let mut reach = 0;
        for (k, operand) in operands.iter().enumerate() {
            let far = |d: usize| (sizes[d] - 1).saturating_mul(strides[d][k].unsigned_abs());
            // The first pack may begin before the first element.
            let early = before.saturating_mul(strides[0][k].unsigned_abs());
            reach = reach.max((0..*rank).fold(early, |sum, d| sum.saturating_add(far(d))));
            nd.strides[k][0] = strides[0][k] * if goes_on { 1 } else { pack as i64 };
            outer.clone().for_each(|d| nd.strides[k][d] = strides[d][k]);
            match *operand {
                Operand::Value(bits) => {
                    nd.scalar |= 1 << k;
                    nd.scalars[k] = bits;
                }
                Operand::Memory(address, bytes) => {
                    nd.address[k] = address;
                    // The lowest and the highest address of an element.
                    let sum = |wanted: fn(i64) -> bool| {
                        let dims = (0..*rank).filter(|d| wanted(strides[*d][k]));
                        dims.fold(0u64, |sum, d| sum.wrapping_add(far(d).wrapping_mul(bytes)))
                    };
                    let (below, above) = (sum(i64::is_negative), sum(i64::is_positive));
                    nd.scalars[k] = [address.wrapping_sub(below), address.wrapping_add(above)];
                    let unit = (pack * bytes).min(16);
                    let begins = address.wrapping_sub(before * bytes);
                    let steps = if goes_on {
                        is_dense(k)
                    } else {
                        outer.clone().all(|d| (strides[d][k].unsigned_abs() * bytes).is_multiple_of(unit))
                    };
                    let whole = strides[0][k] == 1 && begins.is_multiple_of(unit) && steps;
                    nd.vector |= u32::from(whole) << k;
                }
            }
        }
        let counted = if goes_on { count } else { 0 };
        (nd, Index::of(packs.max(reach.max(counted).saturating_add(before))))
    }

    /// Enough threads for all packs, of which each takes `unroll`.
    pub(super) fn geometry(&self, unroll: u32) -> Result<Geometry> {
        Geometry::covering(self.packs, THREADS, unroll)
    }
}

/// Threads that a block with packs of `in_block` elements has more than those: one for each row of so many elements that may end
/// within a pack of it, where there are several but not too many.
pub(super) fn more_threads(row: u64, in_block: u64) -> u32 {
    match (in_block - 1).div_ceil(row) {
        turns if (2..=u64::from(MORE_THREADS)).contains(&turns) => (turns as u32).next_multiple_of(32),
        _ => 0,
    }
}

/// Elements of a pack: 16 bytes of the largest ones.
pub(super) fn pack_of(bytes: &[u64]) -> u64 {
    16 / bytes.iter().copied().max().unwrap_or(16).clamp(1, 16)
}

/// The macros of nd.cuh.
pub(super) fn specialise(spec: Spec, pack: u64, unroll: u32, index: Index) -> Spec {
    spec.with("EP_THREADS", THREADS)
        .with("EP_UNROLL", unroll)
        .with("EP_PACK", pack)
        .with("EP_INDEX", index.name())
}

/// The macros for a source and a destination.
pub(super) fn between(spec: Spec, src: DType, dst: DType) -> Spec {
    spec.with("EP_SRC", dtype_name(src)).with("EP_DST", dtype_name(dst))
}

/// A kernel for indices of each width.
pub(super) struct ByIndex {
    narrow: Lazy,
    wide: Lazy,
}

impl ByIndex {
    /// With the specialisation for each width.
    pub(super) fn new(loader: &Loader, name: &'static str, spec: impl Fn(Index) -> Spec) -> ByIndex {
        let lazy = |index| Lazy::new(loader, name, spec(index));
        ByIndex { narrow: lazy(Index::Narrow), wide: lazy(Index::Wide) }
    }

    /// The one for a width.
    ///
    /// # Errors
    /// Those of [`Lazy::get`].
    #[inline]
    pub(super) fn get(&self, index: Index) -> Result<&Function> {
        match index {
            Index::Narrow => self.narrow.get(),
            Index::Wide => self.wide.get(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// What the kernels compute with a [`FastDiv`] in 32 bits.
    pub(in super::super) fn divide(by: FastDiv, n: u64) -> (u64, u64) {
        let high = ((n * u64::from(by.multiplier)) >> 32) as u32;
        let quotient = u64::from((high + n as u32) >> by.shift);
        (quotient, n - quotient * by.divisor)
    }

    /// The offset in each operand of each element, as a thread of nd.cuh finds it.
    fn emulate<const N: usize>(nd: &Nd<N>, pack: u64) -> Vec<[i64; N]> {
        let mut found = Vec::new();
        let goes_on = nd.scalar >> 31 == 1;
        let pack = pack as i64;
        // The offsets at an index of the innermost dimension and at a number of all others.
        let at = |innermost: u64, mut rest: u64| {
            let mut at: [i64; N] = std::array::from_fn(|k| innermost as i64 * nd.strides[k][0]);
            for d in 1..nd.rank as usize {
                let mut index = rest;
                if d + 1 < nd.rank as usize {
                    (rest, index) = divide(nd.dims[d], rest);
                }
                (0..N).for_each(|k| at[k] += index as i64 * nd.strides[k][d]);
            }
            at
        };
        for p in 0..nd.packs as i64 {
            let begins = p == 0 || !goes_on;
            let unit = if goes_on && p > 0 { p * pack - i64::from(nd.before) } else { p } as u64;
            let (lines, innermost) = if nd.rank > 1 { divide(nd.dims[0], unit) } else { (0, unit) };
            let before = if begins { i64::from(nd.before) } else { 0 };
            let here: [i64; N] = {
                let at = at(innermost, lines);
                std::array::from_fn(|k| at[k] - before * nd.inner[k])
            };
            let from = if innermost == 0 { before } else { 0 };
            let left = nd.inner_size as i64 + before - innermost as i64 * if goes_on { 1 } else { pack };
            let turn = left.min(pack);
            let (mut to, mut next) = (turn, here);
            if goes_on && turn < pack {
                let number = p * pack - i64::from(nd.before);
                to = (nd.count as i64 - number).min(pack);
                if nd.inner_size < pack as u64 {
                    // Many rows may end in a pack; what is moved by whole packs is without gaps.
                    let (mut row, mut each, mut ends) = (lines, here, turn);
                    for i in 0..to {
                        if i == ends {
                            row += 1;
                            (each, ends) = (at(0, row), ends + nd.inner_size as i64);
                        }
                        if i >= from {
                            assert!((0..N).all(|k| nd.vector >> k & 1 == 0 || each[k] == number + i));
                            found.push(each);
                        }
                        (0..N).for_each(|k| each[k] += nd.inner[k]);
                    }
                    continue;
                }
                if to > turn {
                    next = at(0, lines + 1);
                }
            }
            for i in from..to {
                found.push(std::array::from_fn(|k| {
                    if i < turn { here[k] + i * nd.inner[k] } else { next[k] + (i - turn) * nd.inner[k] }
                }));
            }
        }
        found
    }

    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!(size_of::<FastDiv>(), 16);
        assert_eq!(size_of::<Nd<2>>(), 40 + 8 * 16 + 2 * 64 + 2 * 8 + 2 * 8 + 2 * 16);
    }

    #[test]
    fn division_by_multiplication_is_exact_below_two_to_the_31() {
        for divisor in [1, 2, 3, 5, 7, 64, 641, 6_700_417, (1 << 31) - 1] {
            let by = FastDiv::new(divisor);
            for n in [0, 1, divisor - 1, divisor, divisor + 1, 12_345_678, (1 << 31) - 1] {
                let n = n.min((1 << 31) - 1);
                assert_eq!(divide(by, n), (n / divisor, n % divisor), "{n} / {divisor}");
            }
        }
    }

    #[test]
    fn multipliers_are_those_of_whole_division() {
        let near = (1..33).flat_map(|n| [(1u64 << n) - 1, 1 << n, (1 << n) + 1]);
        for divisor in near.chain([1, 3, 641, 6_700_417, 4_000_000_007, 1 << 40]) {
            let FastDiv { multiplier, shift, .. } = FastDiv::new(divisor);
            let (d, one) = (u128::from(divisor), 1u128);
            let exact = (((one << shift) - d) << 32) / d + 1;
            let expected = if divisor < 1 << 32 { exact as u32 } else { 0 };
            assert_eq!(multiplier, expected, "{divisor}");
        }
    }

    #[test]
    fn packs_are_aligned_with_the_destination() {
        // f32 to f16: four elements of 16 and of 8 bytes.
        let pack = pack_of(&[4, 2]);
        let plan = |dst, src, count| {
            Nd::new(&Loops::flat(count), [Operand::Memory(dst, 2), Operand::Memory(src, 4)], pack)
        };
        let (nd, index) = plan(0x1000, 0x2000, 10);
        assert_eq!((pack, nd.packs, nd.before, nd.vector, index), (4, 3, 0, 0b11, Index::Narrow));
        let (nd, _) = plan(0x1002, 0x2004, 10);
        assert_eq!((nd.packs, nd.before, nd.vector), (3, 1, 0b11), "both begin one element into a pack");
        let (nd, _) = plan(0x1002, 0x2000, 10);
        assert_eq!((nd.before, nd.vector), (1, 0b01), "the source begins otherwise");
        assert_eq!(plan(0x1000, 0x2000, 1 << 31).1, Index::Narrow);
        assert_eq!(plan(0x1000, 0x2000, (1 << 31) + 1).1, Index::Wide);
        assert_eq!(pack_of(&[16, 1]), 1);
    }

    #[test]
    fn threads_reach_every_element_of_a_broadcast_once() {
        let shapes: [[&[i64]; 2]; 12] = [
            [&[3, 5, 7], &[7]],
            [&[3, 5, 7], &[5, 1]],
            [&[2, 1, 3, 1, 5], &[4, 1, 6, 1]],
            [&[64], &[]],
            [&[2, 1, 2, 1, 2, 1, 2, 1], &[1, 2, 1, 2, 1, 2, 1, 3]],
            [&[3, 41], &[41]],
            [&[5, 3, 17], &[3, 1]],
            [&[2, 3, 1, 19], &[5, 1]],
            [&[2, 1, 3, 1, 16], &[1, 4, 1, 2, 16]],
            [&[50, 3], &[3]],
            [&[7, 2, 1, 15], &[3, 15]],
            [&[40, 1], &[1, 13]],
        ];
        for [a, b] in shapes {
            let plan = Plan::new([a, b]).unwrap();
            for pack in [1, 4, 16] {
                let dst = Operand::Memory(0x1000 + pack * 4 - 4, 4);
                let loops = Loops::broadcast(&plan);
                let (nd, index, _) = Nd::<3>::broadcast(&loops, [dst, dst, dst], pack, 1).unwrap();
                let inner = *plan.dims().last().unwrap() as u64;
                // The destination begins within a pack.
                let odd_rows = plan.dims().len() > 1 && pack > 1;
                assert_eq!(
                    nd.scalar >> 31 == 1,
                    odd_rows && (pack > 4 || inner >= pack),
                    "{a:?} {b:?} by {pack}"
                );
                let (others, _) = Nd::<3>::new(&loops, [dst, dst, dst], pack);
                assert_eq!(others.scalar >> 31 == 1, odd_rows && inner >= pack, "{a:?} {b:?} by {pack}");
                let mut found = emulate(&nd, pack);
                found.sort_unstable();
                // Rows of the plan, by its own walk.
                let mut walk = primitives::broadcast::Odometer::at(&plan, 0);
                let mut expected = Vec::new();
                for row in 0..plan.count() / plan.inner() {
                    for i in 0..plan.inner() {
                        let inner = |n: usize| plan.strides(n)[plan.dims().len() - 1] * i + walk.offsets()[n];
                        expected.push([row * plan.inner() + i, inner(0), inner(1)].map(|x| x as i64));
                    }
                    walk.advance();
                }
                assert_eq!((found, index), (expected, Index::Narrow), "{a:?} {b:?} by {pack}");
            }
        }
    }

    #[test]
    fn packs_in_which_rows_end_have_threads_of_their_own() {
        // Rows, their elements, those before the first pack, and packs of a thread.
        for (rows, inner, before, unroll) in
            [(40, 201, 0, 1), (9000, 65, 5, 1), (300, 301, 15, 2), (5, 2047, 0, 1), (70, 64, 7, 1)]
        {
            let pack = 16;
            let loops = Loops::new([(inner, [1, 1, 1]), (rows, [inner as i64, 0, 1])]);
            let operands = [Operand::Memory(0x1000 + before, 1); 3];
            let (nd, _, geometry) = Nd::broadcast(&loops, operands, pack, unroll).unwrap();
            assert_eq!((nd.scalar >> 30, u64::from(nd.before)), (3, before), "{rows} of {inner}");
            let more = u64::from(geometry.block[0] - THREADS);
            let in_block = u64::from(THREADS * unroll) * pack;
            let mut theirs = Vec::new();
            for begin in (0..u64::from(geometry.grid[0])).map(|block| block * in_block) {
                let (first, _) = divide(nd.dims[0], begin.saturating_sub(before));
                for turn in 0..more * u64::from(unroll) {
                    let end = (first + 1 + turn) * nd.inner_size + before;
                    if end % pack != 0 && end < begin + in_block && end / pack < nd.packs {
                        theirs.push(end / pack);
                    }
                }
            }
            let ends = (1..=rows).map(|row| row * inner + before);
            let expected: Vec<_> = ends.filter(|end| end % pack != 0).map(|end| end / pack).collect();
            assert_eq!(theirs, expected, "{rows} of {inner}, {before} before");
        }
        // Rows of which hardly any end in a block, or nearly each pack holds an end.
        assert_eq!([4096, 4095, 2048, 128, 64, 63].map(|row| more_threads(row, 4096)), [0, 0, 32, 32, 64, 0]);
    }

    #[test]
    fn the_ends_of_an_operand_are_its_lowest_and_highest_elements() {
        let loops = Loops::new([(30, [1, 1]), (40, [30, -30])]);
        let operands = [Operand::Memory(0x10000, 2), Operand::Memory(0x20000, 2)];
        let (nd, _) = Nd::new(&loops, operands, 8);
        assert_eq!(nd.scalars[0], [0x10000, 0x10000 + (39 * 30 + 29) * 2]);
        assert_eq!(nd.scalars[1], [0x20000 - 39 * 30 * 2, 0x20000 + 29 * 2]);
    }

    #[test]
    fn walks_with_strides_are_whole_and_values_have_no_memory() {
        // A transposed source, in bytes of f32, over an f16 destination.
        let walk = TensorIterator::new(&[3, 4, 8], [&[64, 16, 2], &[4, 12, 48]]).unwrap();
        let loops = Loops::walk(&walk, [2, 4]);
        let operands = [Operand::Memory(0x1000, 2), Operand::Memory(0x1000, 4)];
        let (nd, _) = Nd::new(&loops, operands, 4);
        let mut found = emulate(&nd, 4);
        found.sort_unstable();
        let mut expected = Vec::new();
        for (a, b, c) in (0..3).flat_map(|a| (0..4).flat_map(move |b| (0..8).map(move |c| (a, b, c)))) {
            expected.push([a * 32 + b * 8 + c, a + b * 3 + c * 12]);
        }
        assert_eq!(found, expected);
        assert_eq!(nd.vector, 0b01, "only the destination has neighbours side by side");
        let plan = Plan::new([&[5][..], &[]]).unwrap();
        let operands = [Operand::Memory(0x1000, 4), Operand::Memory(0x2000, 4), Operand::Value([7, 0])];
        let (nd, _) = Nd::<3>::new(&Loops::broadcast(&plan), operands, 4);
        assert_eq!((nd.scalar, nd.scalars[2], nd.strides[2][0], nd.vector), (0b100, [7, 0], 0, 0b011));
    }
}

//! Copies between strided layouts, by the largest pieces that stay together: `copy_nd`, `strided_copy` and `permute`.

use super::nd::{ByIndex, FastDiv, Index, Loops, Nd, Operand, RANK, specialise};
use super::source::{COPY, COPY_RUNS};
use super::{SIZES, with_loose, with_loose_sizes};
use crate::compiler::Spec;
use crate::kernel::{Argument, Geometry, Loader};
use crate::stream::CudaStream;
use ep_core::Result;

const THREADS: u32 = 256;
/// Pieces that copy_runs.cu has kernels for.
const RUN_PIECES: [u64; 4] = [1, 2, 4, 8];
/// The largest of those for which few threads write the packs in which runs end.
const APART: u64 = 2;
/// Runs that may end in a block's packs, at most, for those threads not to be most of them.
const TURNS: u64 = 64;

/// Packs of a thread.
fn unroll(piece: u64) -> u32 {
    if piece == 4 || piece == 8 { 1 } else { 4 }
}

fn spec(piece: u64, index: Index, loose: bool) -> Spec {
    let spec = Spec::new(&COPY).with("EP_SIZE", piece);
    with_loose(specialise(spec, 16 / piece, unroll(piece), index), loose)
}

fn runs_spec(piece: u64, apart: bool, index: Index) -> Spec {
    let spec = Spec::new(&COPY_RUNS).with("EP_SIZE", piece).with("EP_INDEX", index.name());
    spec.with("EP_THREADS", THREADS).with("EP_APART", u32::from(apart))
}

/// The kernels of every copy with indices of 32 bits; the others are compiled when they are needed.
pub(super) fn kernels() -> Vec<Spec> {
    let runs = RUN_PIECES.map(|piece| runs_spec(piece, false, Index::Narrow));
    let apart = RUN_PIECES.into_iter().filter(|p| *p <= APART).map(|p| runs_spec(p, true, Index::Narrow));
    let others = with_loose_sizes(|piece, loose| spec(piece, Index::Narrow, loose));
    others.into_iter().chain(runs).chain(apart).collect()
}

/// `Args` of copy_runs.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Runs {
    count: u64,
    rank: u32,
    before: u32,
    dims: [FastDiv; RANK],
    strides: [i64; RANK],
    src: u64,
    dst: u64,
    ends: [u64; 2],
    lead: i64,
    low: i64,
    high: i64,
    turns: u64,
}

// SAFETY: as `Args` of copy_runs.cu.
unsafe impl Argument for Runs {}

// SAFETY: as `Args` of copy.cu.
unsafe impl Argument for Nd<2> {}

/// What is copied: sizes from the innermost dimension outwards, of which none is 0, the bytes from one index to the
/// next in destination and source, and their first addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    rank: usize,
    sizes: [u64; RANK],
    strides: [[i64; 2]; RANK],
    addresses: [u64; 2],
}

impl Move {
    /// From pairs of a size and its strides.
    pub(super) fn new(dims: impl IntoIterator<Item = (u64, [i64; 2])>, addresses: [u64; 2]) -> Move {
        let mut m = Move { rank: 0, sizes: [1; RANK], strides: [[0; 2]; RANK], addresses };
        for (size, strides) in dims.into_iter().filter(|(size, _)| *size != 1) {
            m.sizes[m.rank] = size;
            m.strides[m.rank] = strides;
            m.rank += 1;
        }
        // One element is a loop too.
        m.rank = m.rank.max(1);
        m
    }

    /// The bytes of one run, where it is all.
    fn plain(&self, size: u64) -> Option<u64> {
        (self.rank == 1 && self.strides[0] == [size as i64; 2]).then(|| self.sizes[0] * size)
    }

    /// Runs of folded pieces to a destination without gaps, as copy_runs.cu takes them: a pack of it at least is a run.
    fn runs(&self, piece: u64) -> Option<(Runs, Index)> {
        let mut step = piece as i64;
        let dense = (0..self.rank).all(|d| {
            let expected = step;
            step = step.saturating_mul(self.sizes[d] as i64);
            self.strides[d][0] == expected
        });
        let long = self.strides[0][1] == piece as i64 && self.sizes[0] * piece >= 16;
        if !(RUN_PIECES.contains(&piece) && self.rank > 1 && dense && long) {
            return None;
        }
        let [dst, src] = self.addresses;
        let far = |d: usize| self.strides[d][1].wrapping_mul(self.sizes[d] as i64 - 1);
        let reach = |wanted: fn(i64) -> bool| {
            (0..self.rank)
                .map(far)
                .filter(|f| wanted(*f))
                .fold(0u64, |sum, f| sum.saturating_add(f.unsigned_abs()))
        };
        let (below, above) = (reach(i64::is_negative), reach(i64::is_positive));
        let count: u64 = self.sizes[..self.rank].iter().product();
        let (in_pack, before) = (16 / piece, dst / piece % (16 / piece));
        let lead = (src % 16 / piece) as i64;
        let mut runs = Runs {
            count,
            rank: self.rank as u32,
            before: before as u32,
            dims: self.sizes.map(FastDiv::new),
            strides: [0; RANK],
            src,
            dst,
            ends: [src.wrapping_sub(below), src.wrapping_add(above)],
            lead,
            low: lead.saturating_sub_unsigned(below / piece),
            high: lead.saturating_add_unsigned(above / piece).saturating_add(1),
            turns: (u64::from(THREADS) * in_pack - 1).div_ceil(self.sizes[0]),
        };
        (0..self.rank).for_each(|d| runs.strides[d] = self.strides[d][1] / piece as i64);
        // What is looked for may begin a pack below the lowest element, and end one above the highest.
        let reached = (below.saturating_add(above) / piece).saturating_add(3 * in_pack);
        Some((runs, Index::of((count + before).max(reached))))
    }

    /// Puts neighbours together to the largest pieces that all runs and addresses are multiples of, instead of elements
    /// of `size` bytes; their bytes, and whether addresses are multiples of half of that only.
    fn fold(&mut self, size: u64) -> (u64, bool) {
        let outer = 1..self.rank;
        let [to, from] = self.addresses;
        let places = outer.clone().fold(to | from, |bits, d| {
            bits | self.strides[d][0].unsigned_abs() | self.strides[d][1].unsigned_abs()
        });
        if self.strides[0] != [size as i64; 2] {
            let inner = self.strides[0].iter().fold(places, |bits, s| bits | s.unsigned_abs());
            return (size, !inner.is_multiple_of(size));
        }
        let run = self.sizes[0] * size;
        let piece = 1 << (places | run).trailing_zeros().min(4);
        self.sizes[0] = run / piece;
        self.strides[0] = [piece as i64; 2];
        if self.sizes[0] == 1 && self.rank > 1 {
            self.sizes.copy_within(outer.clone(), 0);
            self.strides.copy_within(outer, 0);
            self.rank -= 1;
        }
        (piece, false)
    }
}

/// Moves pieces of any size.
pub(super) struct Mover {
    name: &'static str,
    size: u64,
    kernels: [ByIndex; SIZES.len()],
    loose: ByIndex,
    /// Without and with threads apart for packs in which runs end.
    runs: [[ByIndex; 2]; RUN_PIECES.len()],
}

impl Mover {
    /// Of elements of `size` bytes.
    pub(super) fn new(loader: &Loader, name: &'static str, size: u64) -> Mover {
        Mover {
            name,
            size,
            kernels: SIZES.map(|piece| ByIndex::new(loader, name, |index| spec(piece, index, false))),
            loose: ByIndex::new(loader, name, |index| spec(size, index, true)),
            runs: RUN_PIECES.map(|piece| {
                [false, true].map(|apart| ByIndex::new(loader, name, |index| runs_spec(piece, apart, index)))
            }),
        }
    }

    /// Queues a copy.
    ///
    /// # Safety
    /// Every element of the source is readable and every one of the destination writable until the copy is done, with
    /// no other access; the two do not overlap.
    ///
    /// # Errors
    /// Those of loading and launching.
    pub(super) unsafe fn run(&self, stream: &CudaStream, mut copy: Move) -> Result<()> {
        let [dst, src] = copy.addresses;
        if let Some(bytes) = copy.plain(self.size) {
            // SAFETY: the caller's promise.
            return stream.queue(self.name, |c| unsafe {
                c.driver().cuMemcpyAsync(dst, src, bytes as usize, stream.raw())
            });
        }
        let (piece, loose) = copy.fold(self.size);
        if let Some((runs, index)) = copy.runs(piece).filter(|_| !loose) {
            let packs = (runs.count + u64::from(runs.before)).div_ceil(16 / piece);
            let geometry = Geometry::covering(packs, THREADS, 1)?;
            let apart = piece <= APART && runs.turns <= TURNS;
            let kernel = &self.runs[piece.trailing_zeros() as usize][usize::from(apart)];
            // SAFETY: the caller's promise, and the kernel's argument. Of what lies between runs, the kernel loads but does
            // not use bytes of packs that are whole between the lowest and the highest element.
            return unsafe { kernel.get(index)?.launch(stream, geometry, &runs) };
        }
        let elements = |d: usize| copy.strides[d].map(|stride| stride / piece as i64);
        let loops = Loops::new((0..copy.rank).map(|d| (copy.sizes[d], elements(d))));
        let operands = [Operand::Memory(dst, piece), Operand::Memory(src, piece)];
        let (nd, index) = Nd::new(&loops, operands, 16 / piece);
        let kernels = if loose { &self.loose } else { &self.kernels[piece.trailing_zeros() as usize] };
        // SAFETY: the caller's promise, and the kernel's argument.
        unsafe { kernels.get(index)?.launch(stream, nd.geometry(unroll(piece))?, &nd) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::nd::tests::divide;
    use super::*;

    #[test]
    fn runs_are_moved_by_the_largest_pieces() {
        let fold = |size: u64, count: u64, outer: [i64; 2], addresses: [u64; 2]| {
            let mut m = Move::new([(count, [size as i64; 2]), (9, outer)], addresses);
            let folded = m.fold(size);
            (folded, m.sizes[0], m.rank)
        };
        assert_eq!(fold(4, 64, [256, 512], [0x100, 0x200]), ((16, false), 16, 2));
        assert_eq!(fold(4, 3, [12, 16], [0x100, 0x200]), ((4, false), 3, 2));
        assert_eq!(fold(4, 4, [16, 32], [0x108, 0x200]), ((8, false), 2, 2), "by the addresses");
        assert_eq!(fold(4, 4, [16, 32], [0x100, 0x200]), ((16, false), 9, 1), "one piece for each run");
        assert_eq!(fold(8, 5, [40, 48], [0x104, 0x200]), ((4, false), 10, 2), "halves of complex numbers");
        let mut m = Move::new([(5, [8, 24])], [0x104, 0x200]);
        assert_eq!(m.fold(8), (8, true));
        let mut m = Move::new([(5, [8, 24])], [0x108, 0x200]);
        assert_eq!(m.fold(8), (8, false));
        assert_eq!(Move::new([(5, [8, 8])], [0, 0]).plain(8), Some(40));
    }

    /// The source's offset of each element of the destination, as the threads of copy_runs.cu find it: each its pack, or, of packs
    /// apart in which a run ends, a thread for each run that may end in the block's part.
    fn emulate(runs: &Runs, piece: u64, apart: bool) -> Vec<Option<i64>> {
        let length = runs.dims[0].divisor();
        let place = |run: u64| {
            let (mut rest, mut at) = (run, 0);
            for d in 1..runs.rank as usize {
                let mut index = rest;
                if d + 1 < runs.rank as usize {
                    (rest, index) = divide(runs.dims[d], rest);
                }
                at += index as i64 * runs.strides[d];
            }
            at
        };
        let (in_pack, before) = (16 / piece, u64::from(runs.before));
        let (total, in_block) = (runs.count + before, in_pack * u64::from(THREADS));
        let mut found = vec![None; runs.count as usize];
        let mut write = |element: u64, at: i64| {
            let known = &mut found[(element - before) as usize];
            assert!(known.is_none(), "element {element} is written twice");
            *known = Some(at);
        };
        let is_whole = |first: u64| first >= before && first + in_pack <= total;
        for begin in (0..total.div_ceil(in_block)).map(|block| block * in_block) {
            for first in (begin..begin + in_block).step_by(in_pack as usize).filter(|first| *first < total) {
                if is_whole(first) {
                    let (run, in_run) = divide(runs.dims[0], first - before);
                    let left = (length - in_run).min(in_pack);
                    if left == in_pack || !apart {
                        (0..left).for_each(|i| write(first + i, place(run) + (in_run + i) as i64));
                        (left..in_pack).for_each(|i| write(first + i, place(run + 1) + (i - left) as i64));
                    }
                } else {
                    for element in (first..first + in_pack).filter(|e| (before..total).contains(e)) {
                        let (run, in_run) = divide(runs.dims[0], element - before);
                        write(element, place(run) + in_run as i64);
                    }
                }
            }
            for turn in 0..if apart { runs.turns } else { 0 } {
                let run = divide(runs.dims[0], begin.saturating_sub(before)).0 + 1 + turn;
                let end = run * length + before;
                let (cut, first) = (end % in_pack, end - end % in_pack);
                if cut != 0 && end < begin + in_block && is_whole(first) {
                    let lower = place(run - 1) + (length - cut) as i64;
                    (0..cut).for_each(|i| write(first + i, lower + i as i64));
                    (cut..in_pack).for_each(|i| write(first + i, place(run) + (i - cut) as i64));
                }
            }
        }
        found
    }

    #[test]
    fn runs_into_a_dense_destination_are_found_from_its_packs() {
        // Bytes of an element, dimensions as (length, stride of the source), the address of the destination.
        type Case = (u64, &'static [(u64, i64)], u64);
        let cases: [Case; 9] = [
            (1, &[(200, 1), (31, 222), (5, 222 * 40)], 0x1000),
            (1, &[(16, 1), (7, 19)], 0x1003),
            (2, &[(9, 2), (11, -24), (3, 600)], 0x1002),
            (4, &[(5, 4), (8, 32), (3, 0)], 0x100c),
            (8, &[(3, 8), (5, 40), (4, 208)], 0x1008),
            (2, &[(100, 2), (100, 202)], 0x100e),
            (1, &[(17, 1), (1000, 20)], 0x1007),
            (1, &[(5000, 1), (5, -5001)], 0x1001),
            (2, &[(4095, 2), (2, 8192), (3, 0)], 0x1000),
        ];
        for (size, dims, dst) in cases {
            let mut step = size as i64;
            let moved = Move::new(
                dims.iter().map(|(n, stride)| {
                    let to = step;
                    step *= *n as i64;
                    (*n, [to, *stride])
                }),
                [dst, 0x9001 * size],
            );
            let (runs, index) = moved.runs(size).unwrap();
            let count: u64 = dims.iter().map(|d| d.0).product();
            let expected = (0..count).map(|mut e| {
                dims.iter().fold(0, |at, (n, stride)| {
                    let index = e % n;
                    e /= n;
                    at + index as i64 * stride / size as i64
                })
            });
            let expected: Vec<_> = expected.map(Some).collect();
            for apart in [false, true] {
                assert_eq!(emulate(&runs, size, apart), expected, "{dims:?} of {size}, {apart}");
            }
            assert_eq!(index, Index::Narrow);
            let reached = expected.into_iter().map(|at| at.unwrap() + runs.lead);
            let [low, high] = [reached.clone().min(), reached.max()].map(Option::unwrap);
            assert_eq!((runs.low, runs.high), (low, high + 1), "{dims:?} of {size}");
            let ends = [low, high].map(|at| runs.src.wrapping_add_signed((at - runs.lead) * size as i64));
            assert_eq!(runs.ends, ends, "{dims:?} of {size}");
            assert_eq!(runs.src, runs.src / 16 * 16 + runs.lead as u64 * size);
        }
        let runs =
            |dims: &[(u64, [i64; 2])], size| Move::new(dims.iter().copied(), [0, 0]).runs(size).is_some();
        assert!(runs(&[(16, [1, 1]), (3, [16, 20])], 1));
        assert!(!runs(&[(15, [1, 1]), (3, [15, 20])], 1), "shorter than a pack");
        assert!(!runs(&[(16, [1, 1]), (3, [17, 20])], 1), "gaps in the destination");
        assert!(!runs(&[(16, [1, 2]), (3, [16, 40])], 1), "gaps in a run");
        assert!(!runs(&[(3, [16, 16]), (3, [48, 64])], 16), "a piece is a pack");
        assert_eq!(size_of::<Runs>(), 16 + 8 * 16 + 8 * 8 + 32 + 4 * 8);
    }
}

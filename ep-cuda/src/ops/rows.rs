//! How rows are shared out among threads that hold them in registers (rows.cuh): what is there to choose from, and what
//! a row of a width gets.

use crate::compiler::{Arch, Spec};
use crate::kernel::Geometry;

/// Packs of a thread that there are kernels for.
const PACKS: [u32; 6] = [1, 2, 3, 4, 6, 8];
/// Threads of blocks that hold rows alone.
const BLOCK_THREADS: [u32; 4] = [64, 128, 256, 512];
/// Packs of a thread in such blocks where rows are not aligned. There a launch has as many warps as its rows fill.
const PACKS_OF_FEWER: [u32; 3] = [4, 6, 8];
/// Packs of a thread at most in blocks of 128 threads that hold an aligned row of 4-byte elements alone: the next size with half as
/// many is faster.
const MOST_PACKS_OF_WORDS: u32 = 3;
/// Packs of a thread at most in blocks of 256 threads that hold an aligned row for a norm: three of these for each multiprocessor
/// have more under way than two of 512 threads, which spend longer meeting for each row.
const MOST_PACKS_OF_NORMS: u32 = 8;
/// Threads and blocks that share the widest rows.
const CLUSTERS: [(u32, u32); 4] = [(512, 2), (512, 4), (512, 8), (1024, 8)];
/// The same for devices without clusters.
const LONE_BLOCK: [(u32, u32); 1] = [(1024, 1)];
const WARP_THREADS: u32 = 128;
/// Lanes that share a row at least where it is not aligned.
const FEWEST_LANES: u32 = 2;
const MAX_GRID: u64 = 1 << 30;

/// What is held of a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holding {
    /// Elements of a pack: 16 bytes of the larger dtype.
    pub(super) pack: u64,
    /// Bytes of the larger dtype.
    pub(super) bytes: u64,
    /// Tensors of which a row is held.
    pub(super) sources: u32,
    /// A group of threads takes one row at a time, whose ends do not share a pack: for norms.
    pub(super) single: bool,
}

/// One way of sharing rows out: the macros of rows.cuh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sharing {
    pub(super) threads: u32,
    /// Threads of a warp that share a row, at most.
    pub(super) lanes: u32,
    /// Blocks that do; 0 where a warp or less does.
    pub(super) blocks: u32,
    /// Rows that a group of threads holds at once.
    pub(super) rows: u32,
    /// Packs of a row that a thread holds.
    pub(super) packs: u32,
    /// Rows begin and end with whole packs.
    pub(super) aligned: bool,
    /// A launch may have fewer threads in a block or, where a warp or less shares a row, fewer of those.
    pub(super) fewer: bool,
}

impl Holding {
    /// All ways for rows of one kind, each for wider rows than the one before: the first that has room is the best, but see
    /// [`cheapest`].
    pub(super) fn sharings(self, arch: Arch, aligned: bool) -> Vec<Sharing> {
        let mut found: Vec<Sharing> = Vec::new();
        let mut add = |threads, lanes, blocks, packs, fewer| {
            let rows = if blocks == 0 && packs == 1 && self.sources == 1 && !self.single { 2 } else { 1 };
            let sharing = Sharing { threads, lanes, blocks, rows, packs, aligned, fewer };
            if found.last().is_none_or(|last| last.capacity() < sharing.capacity()) {
                found.push(sharing);
            }
        };
        let (most, narrow) = (128 / self.sources, 8 * self.sources);
        // Within a warp: a pack for each of few lanes, then two for each as far as they go, then more. Kernels for rows of half
        // types that are not aligned take long to compile, so that one is for any number of lanes; of other types it would be up
        // to a fifth slower.
        if !aligned && self.bytes == 2 {
            add(WARP_THREADS, narrow, 0, 1, true);
            add(WARP_THREADS, 32, 0, 2, true);
        } else {
            let fewest = if aligned { 1 } else { FEWEST_LANES };
            let lanes = (0..).map(|n| fewest << n).take_while(|lanes| *lanes <= narrow);
            lanes.for_each(|lanes| add(WARP_THREADS, lanes, 0, 1, false));
            [8, 16, 32].into_iter().for_each(|lanes| add(WARP_THREADS, lanes, 0, 2, false));
        }
        PACKS.iter().filter(|packs| *packs * 32 <= most).for_each(|n| add(WARP_THREADS, 32, 0, *n, false));
        // Then blocks with about four packs for each thread, up to their largest size; then clusters. Rows that are not aligned
        // are too seldom for the finest steps.
        let registers = if self.bytes == 8 { 4 } else { 8 } / self.sources;
        if aligned {
            let of_words = self.bytes == 4 && self.sources == 1 && !self.single;
            let of_norms = self.single && self.bytes <= 4;
            for threads in BLOCK_THREADS {
                let limit = match threads {
                    128 if of_words => MOST_PACKS_OF_WORDS,
                    256 if of_norms => MOST_PACKS_OF_NORMS,
                    512 => registers,
                    _ => 4,
                };
                PACKS.iter().filter(|packs| **packs <= limit).for_each(|n| add(threads, 32, 1, *n, false));
            }
        } else {
            let limit = registers.max(4);
            let packs = PACKS_OF_FEWER.iter().filter(|packs| **packs <= limit);
            packs.for_each(|n| add(BLOCK_THREADS[BLOCK_THREADS.len() - 1], 32, 1, *n, true));
        }
        let widest: &[_] = if arch < Arch::new(9, 0) { &LONE_BLOCK } else { &CLUSTERS };
        for (threads, blocks) in widest.iter().copied() {
            let steps = PACKS.iter().filter(|n| **n <= registers && (aligned || n.is_power_of_two()));
            steps.for_each(|n| add(threads, 32, blocks, *n, false));
        }
        found
    }

    /// Packs that a row takes.
    pub(super) fn packs(self, cols: u64, aligned: bool) -> u64 {
        // A row that begins within a pack may touch one more.
        cols.div_ceil(self.pack) + u64::from(!aligned && self.single)
    }
}

impl Sharing {
    /// Packs of a row that there is room for.
    pub(super) fn capacity(&self) -> u64 {
        let sharers = if self.blocks == 0 { self.lanes } else { self.threads * self.blocks };
        u64::from(sharers) * u64::from(self.packs)
    }

    /// How rows of so many packs are shared where a launch may have fewer threads: by as few whole warps, or lanes of a warp,
    /// as have room.
    pub(super) fn shared(self, packs: u64) -> Sharing {
        if !self.fewer {
            return self;
        }
        if self.blocks == 0 {
            let lanes = packs.div_ceil(self.packs.into()).next_power_of_two();
            let lanes = lanes.clamp(FEWEST_LANES.into(), self.lanes.into());
            return Sharing { lanes: lanes as u32, ..self };
        }
        let of_thread = u64::from(self.blocks * self.packs);
        let threads = packs.div_ceil(of_thread).next_multiple_of(32).min(self.threads.into());
        Sharing { threads: threads as u32, ..self }
    }

    /// What a row costs, in packs: those that there is room for and, in blocks of laborious rows, one more for each thread, as
    /// more warps that meet for a row leave fewer rows under way at once.
    fn cost(&self, is_laborious: bool) -> u64 {
        self.capacity() + if is_laborious { u64::from(self.threads * self.blocks) } else { 0 }
    }

    pub(super) fn specialise(&self, spec: Spec, pack: u64) -> Spec {
        let any_lanes = self.blocks == 0 && self.fewer;
        let spec = if self.blocks > 0 && self.fewer { spec.with("EP_FEWER", 1) } else { spec };
        spec.with("EP_THREADS", self.threads)
            .with("EP_LANES", if any_lanes { 0 } else { self.lanes })
            .with("EP_BLOCKS", self.blocks)
            .with("EP_ROWS", self.rows)
            .with("EP_PACK", pack)
            .with("EP_PACKS", self.packs)
            .with("EP_ALIGNED", u32::from(self.aligned))
    }

    /// Groups of threads for so many rows; fewer go on to further rows.
    pub(super) fn geometry(&self, rows: u64) -> Geometry {
        let blocks = if self.blocks > 0 {
            rows.min(1 << 24) * u64::from(self.blocks)
        } else {
            rows.div_ceil(u64::from(self.threads / self.lanes * self.rows)).min(MAX_GRID)
        };
        let in_x = if self.blocks == 0 && self.fewer { self.lanes } else { self.threads };
        Geometry { block: [in_x, self.threads / in_x, 1], ..Geometry::linear(blocks as u32, self.threads) }
    }
}

/// The best of the ways that have room for a row of so many packs, given in the order of [`Holding::sharings`]: the first, or,
/// where launches may have fewer threads, the next such one that costs less. `is_laborious` says that
/// arithmetic takes about as long as memory does: of half types, or for layer_norm.
pub(super) fn cheapest<T>(
    packs: u64,
    is_laborious: bool,
    with_room: impl IntoIterator<Item = T>,
    sharing: impl Fn(&T) -> Option<Sharing>,
) -> Option<T> {
    let mut with_room = with_room.into_iter();
    let first = with_room.next()?;
    let cost = |way: &T| {
        let of_fewer = sharing(way).filter(|sharing| sharing.fewer);
        of_fewer.map(|sharing| sharing.shared(packs).cost(is_laborious))
    };
    let Some(of_first) = cost(&first) else { return Some(first) };
    let others = with_room.map_while(|way| Some((cost(&way)?, way)));
    let best = std::iter::once((of_first, first)).chain(others).min_by_key(|(cost, _)| *cost);
    best.map(|(_, way)| way)
}

/// A block for each row of any width.
pub(super) fn block_for_each(rows: u64, threads: u32) -> Geometry {
    Geometry::linear(rows.min(MAX_GRID) as u32, threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOPPER: Arch = Arch::new(9, 0);

    /// The choice as it was measured, row by row: threads, lanes, blocks, packs of a thread.
    fn measured(packs: u64, h: Holding, aligned: bool) -> Option<(u32, u32, u32, u32)> {
        let each = |sharers: u64| PACKS.into_iter().find(|n| u64::from(*n) * sharers >= packs);
        if packs <= u64::from(128 / h.sources) {
            let lanes = if packs <= 8 * u64::from(h.sources) {
                packs.next_power_of_two().max(if aligned { 1 } else { 2 })
            } else {
                packs.div_ceil(2).next_power_of_two().min(32)
            };
            return Some((128, lanes as u32, 0, each(lanes)?));
        }
        let most = if h.bytes == 8 { 4 } else { 8 } / h.sources;
        if aligned {
            let limits = match (h.single, h.bytes, h.sources) {
                (true, ..=4, _) => [4, 4, 8, most],
                (false, 4, 1) => [4, 3, 4, most],
                _ => [4, 4, 4, most],
            };
            let found = BLOCK_THREADS.into_iter().zip(limits).find_map(|(threads, limit)| {
                let n = each(threads.into())?;
                (n <= limit).then_some((threads, 32, 1, n))
            });
            if found.is_some() {
                return found;
            }
        } else {
            let warps = |n: u32| packs.div_ceil(32 * u64::from(n)) as u32;
            let packs_of = [4, 6, 8].into_iter().filter(|n| *n <= most.max(4) && warps(*n) <= 16);
            let of_warp = if h.bytes == 2 { 1 } else { 0 };
            if let Some(n) = packs_of.min_by_key(|n| warps(*n) * (n + of_warp)) {
                return Some((warps(n) * 32, 32, 1, n));
            }
        }
        CLUSTERS.into_iter().find_map(|(threads, blocks)| {
            let n = each(u64::from(threads * blocks))?;
            let n = if aligned { n } else { n.next_power_of_two() };
            (n <= most).then_some((threads, 32, blocks, n))
        })
    }

    /// What rows of so many packs get.
    fn chosen(packs: u64, sharings: &[Sharing], is_laborious: bool) -> Option<Sharing> {
        let with_room = sharings.iter().filter(|s| s.capacity() >= packs);
        cheapest(packs, is_laborious, with_room, |s| Some(**s)).map(|s| s.shared(packs))
    }

    #[test]
    fn each_width_gets_what_was_measured_to_be_best() {
        let of_softmax = [(4, 1), (2, 1), (8, 1), (4, 2), (8, 2), (2, 2)].map(|(b, s)| (b, s, false));
        let of_norms = [4, 2, 8].map(|bytes| (bytes, 1, true));
        for (bytes, sources, single) in of_softmax.into_iter().chain(of_norms) {
            let holding = Holding { pack: 16 / bytes, bytes, sources, single };
            for aligned in [true, false] {
                let sharings = holding.sharings(HOPPER, aligned);
                for packs in (if aligned { 1 } else { 2 }..2100).chain((2100..70_000).step_by(509)) {
                    let found =
                        chosen(packs, &sharings, bytes == 2).inspect(|s| assert!(s.capacity() >= packs));
                    let found = found.map(|s| (s.threads, s.lanes, s.blocks, s.packs));
                    assert_eq!(found, measured(packs, holding, aligned), "{packs} packs, {holding:?}");
                }
            }
        }
    }

    #[test]
    fn limits_of_each_way_are_exact() {
        let f32_ = Holding { pack: 4, bytes: 4, sources: 1, single: false };
        let first = |cols: u64, aligned: bool, arch| {
            let packs = f32_.packs(cols, aligned);
            chosen(packs, &f32_.sharings(arch, aligned), false).map(|s| (s.threads, s.blocks, s.packs))
        };
        assert_eq!(first(512, true, HOPPER), Some((128, 0, 4)));
        assert_eq!(
            first(512, false, HOPPER),
            Some((128, 0, 4)),
            "both ends of a misaligned row share a pack"
        );
        assert_eq!(first(513, false, HOPPER), Some((32, 1, 6)));
        let norm = Holding { single: true, ..f32_ };
        assert_eq!((norm.packs(512, true), norm.packs(512, false)), (128, 129));
        assert_eq!(first(1024, true, HOPPER), Some((64, 1, 4)));
        assert_eq!(first(769, false, HOPPER), Some((64, 1, 4)), "six packs would leave more room empty");
        assert_eq!(first(1025, false, HOPPER), Some((96, 1, 4)));
        assert_eq!(first(2047, false, HOPPER), Some((128, 1, 4)));
        let laborious = |packs| {
            let sharings = Holding { pack: 8, bytes: 2, ..f32_ }.sharings(HOPPER, false);
            chosen(packs, &sharings, true).map(|s| (s.threads, s.packs))
        };
        // As half as many warps with more packs each were faster: rows of 1801, 3001, 4096 and 12,289 columns.
        assert_eq!([226, 376, 512, 1537].map(laborious), [(32, 8), (64, 6), (64, 8), (288, 6)].map(Some));
        assert_eq!([257, 1025, 2048].map(laborious), [(64, 6), (192, 6), (256, 8)].map(Some));
        assert_eq!(first(1536, true, HOPPER), Some((128, 1, 3)));
        assert_eq!(first(1540, true, HOPPER), Some((256, 1, 2)));
        assert_eq!(first(2048, true, HOPPER), Some((256, 1, 2)));
        assert_eq!(first(16_384, false, HOPPER), Some((512, 1, 8)));
        assert_eq!(first(32_768, true, HOPPER), Some((512, 2, 8)));
        assert_eq!(first(32_769, false, HOPPER), Some((512, 4, 8)));
        assert_eq!(first(262_144, true, HOPPER), Some((1024, 8, 8)));
        assert_eq!(first(262_145, false, HOPPER), None);
        assert_eq!(first(32_768, true, Arch::new(8, 0)), Some((1024, 1, 8)), "no clusters before sm_90");
        assert_eq!(first(32_769, false, Arch::new(8, 0)), None);
    }

    #[test]
    fn grids_cover_all_rows_and_have_whole_clusters() {
        let holding = Holding { pack: 4, bytes: 4, sources: 1, single: false };
        let misaligned = Holding { pack: 8, bytes: 2, ..holding }.sharings(HOPPER, false);
        let misaligned = misaligned.into_iter().flat_map(|s| [1, 2, 5, 99].map(|packs| s.shared(packs)));
        for sharing in holding.sharings(HOPPER, true).into_iter().chain(misaligned) {
            for rows in [1, 7, 1 << 40] {
                let geometry = sharing.geometry(rows);
                let [x, y, z] = geometry.block;
                assert_eq!((x * y, z), (sharing.threads, 1));
                let any_lanes = sharing.blocks == 0 && sharing.fewer;
                assert_eq!(x, if any_lanes { sharing.lanes } else { sharing.threads });
                let blocks = u64::from(geometry.grid[0]);
                let groups = match sharing.blocks {
                    0 => blocks * u64::from(sharing.threads / sharing.lanes * sharing.rows),
                    n => blocks / u64::from(n),
                };
                assert!(
                    groups >= rows.min(1 << 24) && blocks.is_multiple_of(u64::from(sharing.blocks.max(1)))
                );
            }
        }
    }
}

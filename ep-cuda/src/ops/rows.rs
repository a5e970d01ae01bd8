//! How rows are shared out among threads that hold them in registers (rows.cuh): what is there to choose from, and what
//! a row of a width gets.

use crate::compiler::{Arch, Spec};
use crate::kernel::Geometry;

/// Packs of a thread that there are kernels for.
const PACKS: [u32; 6] = [1, 2, 3, 4, 6, 8];
/// Threads and blocks that share rows which are too wide for a warp.
const BLOCKS: [(u32, u32); 8] =
    [(64, 1), (128, 1), (256, 1), (512, 1), (512, 2), (512, 4), (512, 8), (1024, 8)];
/// The same for devices without clusters.
const LONE_BLOCKS: [(u32, u32); 5] = [(64, 1), (128, 1), (256, 1), (512, 1), (1024, 1)];
const WARP_THREADS: u32 = 128;
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
    /// Threads of a warp that share a row.
    pub(super) lanes: u32,
    /// Blocks that do; 0 where a warp or less does.
    pub(super) blocks: u32,
    /// Rows that a group of threads holds at once.
    pub(super) rows: u32,
    /// Packs of a row that a thread holds.
    pub(super) packs: u32,
    /// Rows begin and end with whole packs.
    pub(super) aligned: bool,
}

impl Holding {
    /// All ways for rows of one kind, each for wider rows than the one before: the first that has room is the best.
    pub(super) fn sharings(self, arch: Arch, aligned: bool) -> Vec<Sharing> {
        let mut found: Vec<Sharing> = Vec::new();
        // What rows cost that are not aligned weighs less with more packs for each thread.
        let slim = !aligned && self.sources == 1 && self.bytes < 8;
        let mut add = |threads, lanes, blocks, packs| {
            let rows = if blocks == 0 && packs == 1 && self.sources == 1 && !self.single { 2 } else { 1 };
            let sharing = Sharing { threads, lanes, blocks, rows, packs, aligned };
            // Rows that are not aligned are too seldom for the finest steps.
            let fine = blocks > 0 && packs == 6 && !(slim && threads < 512);
            if !aligned && (sharing.capacity() < 2 || fine) {
                return;
            }
            if found.last().is_none_or(|last| last.capacity() < sharing.capacity()) {
                found.push(sharing);
            }
        };
        let most = 128 / self.sources;
        // Within a warp: a pack for each of few lanes, then two for each as far as they go, then more.
        (0..).map(|n| 1 << n).take_while(|lanes| *lanes <= 8 * self.sources).for_each(|lanes| {
            add(WARP_THREADS, lanes, 0, 1);
        });
        [8, 16, 32].into_iter().for_each(|lanes| add(WARP_THREADS, lanes, 0, 2));
        PACKS.iter().filter(|packs| *packs * 32 <= most).for_each(|packs| add(WARP_THREADS, 32, 0, *packs));
        // Then blocks with about four packs for each thread, up to their largest size; then clusters.
        let registers = if self.bytes == 8 { 4 } else { 8 } / self.sources;
        let blocks: &[_] = if arch < Arch::new(9, 0) { &LONE_BLOCKS } else { &BLOCKS };
        for (threads, blocks) in blocks.iter().copied() {
            let limit = if threads >= 512 {
                registers
            } else if slim {
                6
            } else {
                4
            };
            PACKS.iter().filter(|packs| **packs <= limit).for_each(|packs| add(threads, 32, blocks, *packs));
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

    pub(super) fn specialise(&self, spec: Spec, pack: u64) -> Spec {
        spec.with("EP_THREADS", self.threads)
            .with("EP_LANES", self.lanes)
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
        Geometry::linear(blocks as u32, self.threads)
    }
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
        let slim = !aligned && h.sources == 1 && h.bytes < 8;
        let each = |sharers: u64| {
            let wanted = |n: &u32| aligned || *n != 6 || packs <= 128 || (slim && sharers < 512);
            PACKS.into_iter().filter(wanted).find(|n| u64::from(*n) * sharers >= packs)
        };
        if packs <= u64::from(128 / h.sources) {
            let lanes = if packs <= 8 * u64::from(h.sources) {
                packs.next_power_of_two()
            } else {
                packs.div_ceil(2).next_power_of_two().min(32)
            };
            return Some((128, lanes as u32, 0, each(lanes)?));
        }
        let most = if h.bytes == 8 { 4 } else { 8 } / h.sources;
        BLOCKS.into_iter().find_map(|(threads, blocks)| {
            let n = each(u64::from(threads * blocks))?;
            let fits = n
                <= if threads >= 512 {
                    most
                } else if slim {
                    6
                } else {
                    4
                };
            fits.then_some((threads, 32, blocks, n))
        })
    }

    #[test]
    fn the_first_with_room_is_what_was_measured_to_be_best() {
        for (bytes, sources) in [(4, 1), (2, 1), (8, 1), (4, 2), (8, 2), (2, 2)] {
            let holding = Holding { pack: 16 / bytes, bytes, sources, single: false };
            for aligned in [true, false] {
                let sharings = holding.sharings(HOPPER, aligned);
                for packs in (if aligned { 1 } else { 2 }..2100).chain((2100..70_000).step_by(509)) {
                    let chosen = sharings.iter().find(|s| s.capacity() >= packs);
                    let chosen = chosen.map(|s| (s.threads, s.lanes, s.blocks, s.packs));
                    assert_eq!(chosen, measured(packs, holding, aligned), "{packs} packs, {holding:?}");
                }
            }
        }
    }

    #[test]
    fn limits_of_each_way_are_exact() {
        let f32_ = Holding { pack: 4, bytes: 4, sources: 1, single: false };
        let first = |cols: u64, aligned: bool, arch| {
            let packs = f32_.packs(cols, aligned);
            let sharings = f32_.sharings(arch, aligned);
            sharings.iter().find(|s| s.capacity() >= packs).map(|s| (s.threads, s.blocks, s.packs))
        };
        assert_eq!(first(512, true, HOPPER), Some((128, 0, 4)));
        assert_eq!(
            first(512, false, HOPPER),
            Some((128, 0, 4)),
            "both ends of a misaligned row share a pack"
        );
        assert_eq!(first(513, false, HOPPER), Some((64, 1, 3)));
        let norm = Holding { single: true, ..f32_ };
        assert_eq!((norm.packs(512, true), norm.packs(512, false)), (128, 129));
        assert_eq!(first(1024, true, HOPPER), Some((64, 1, 4)));
        assert_eq!(first(1025, false, HOPPER), Some((64, 1, 6)));
        assert_eq!(first(1537, false, HOPPER), Some((128, 1, 4)));
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
        for sharing in holding.sharings(HOPPER, true) {
            for rows in [1, 7, 1 << 40] {
                let blocks = u64::from(sharing.geometry(rows).grid[0]);
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

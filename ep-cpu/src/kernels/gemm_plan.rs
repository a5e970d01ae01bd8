//! Into which tiles and blocks a product is cut: see [`gemm_block`](super::gemm_block).

use crate::kernels::gemm::{Problem, count};
use crate::kernels::gemm_block::Engine;
use std::ops::Range;

/// What the depth of a block is a multiple of, where it is cut.
const DEPTH_UNIT: usize = 32;

/// What the rows of a tile are a multiple of at least: the rows that are multiplied together, whatever the level.
const ROW_UNIT: usize = 16;

/// Bytes of what tasks share to multiply by at most: less than twice as many once columns are cut into equal tiles.
const SHARED_BYTES: usize = 4 << 20;

/// Tasks that the work between two turns of packing should be enough for, as each turn has to wait for all tasks, and what
/// one core has packed takes a while to get to the others. Few in tests, of which debug builds would take long.
const SHARED_TASKS: usize = if cfg!(test) { 2 } else { 64 };

/// Bytes of operands that a core's own cache can be expected to hold.
const NEAR: usize = 1 << 20;

/// How deep, and how wide, a packed block of `b` is at most, or a part of a large one that is read where it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) depth: usize,
    /// Blocks behind each other along the depth that are kept packed at a time.
    pub(super) blocks: usize,
    pub(super) cols: usize,
    /// Columns that are multiplied together: tiles should have a multiple of them.
    pub(super) unit: usize,
    /// Columns of which they have a multiple at least.
    pub(super) vector: usize,
    /// Columns of a tile at least, if it may be made narrower rather than lower: `a`, where it is not packed, is read once
    /// more for each tile, but `b` is packed for one only.
    pub(super) narrow: usize,
    /// Rows of a tile: as few as make packing `b` for each tile cheap.
    pub(super) rows: usize,
}

/// What a problem is cut into.
pub(super) struct Plan {
    /// Rows and columns of a tile.
    pub(super) tile: (usize, usize),
    /// Tiles along the columns, and along the rows.
    pub(super) tiles: (usize, usize),
    /// The whole depth, that of a block, and that of the blocks of `b` that are packed at a time.
    pub(super) total: usize,
    pub(super) depth: usize,
    pub(super) packed: usize,
    pub(super) reads_a: bool,
    pub(super) reads_b: bool,
    /// See [`Engine::few`].
    pub(super) few: bool,
    /// Columns of `b` that all tasks pack together before they multiply by them; 0 where each packs its own.
    pub(super) shared: usize,
    /// See [`Block::ahead`](crate::kernels::gemm_block::Block::ahead).
    pub(super) ahead: bool,
}

/// Divisions take a good part of a small product's time, and most are by one part only.
fn evenly(len: usize, most: usize, multiple: usize) -> usize {
    if len <= most {
        return len;
    }
    len.div_ceil(len.div_ceil(most)).next_multiple_of(multiple).min(len)
}

/// How many parts of this length there are.
#[inline(always)]
pub(super) fn parts(len: usize, each: usize) -> usize {
    if len <= each { 1 } else { len.div_ceil(each) }
}

/// Which group of so many an index is in, and which of the group it is.
#[inline(always)]
pub(super) fn split(index: usize, many: usize) -> (usize, usize) {
    if many == 1 { (index, 0) } else { (index / many, index % many) }
}

impl Plan {
    /// Where a block of those from `start` to `end` lies along the depth.
    #[inline(always)]
    pub(super) fn block(&self, start: usize, end: usize, number: usize) -> Range<usize> {
        let first = start + number * self.depth;
        first..(first + self.depth).min(end)
    }

    #[inline]
    pub(super) fn new<E: Engine>(p: &Problem<'_, E::Number>, threads: usize) -> Plan {
        Plan::cut::<E, false>(p, threads)
    }

    /// For a `b` that [was packed](super::gemm_prepack) before, in blocks of [`Plan::packed_depth`].
    #[inline(never)]
    pub(super) fn of_packed<E: Engine>(p: &Problem<'_, E::Number>, threads: usize) -> Plan {
        Plan::cut::<E, true>(p, threads)
    }

    /// How deep the blocks of a `b` are that is packed for any number of rows: as for many that are read where they are.
    pub(super) fn packed_depth<E: Engine>(k: usize) -> usize {
        evenly(k, E::limits(usize::MAX, k, true, false).depth, DEPTH_UNIT)
    }

    #[inline(always)]
    fn cut<E: Engine, const PREPACKED: bool>(p: &Problem<'_, E::Number>, threads: usize) -> Plan {
        let total = p.k.saturating_mul(count(p.inner));
        let stored = E::READS_STORED && p.inner.is_empty();
        let reads_b = stored && !PREPACKED && E::reads_b(p.m, p.n, p.k, p.b.cs == 1);
        let few = reads_b && E::few(p.m, p.n, p.k);
        let reads_a = stored && !few && E::reads_a(p.m, p.n, p.k, p.a.cs == 1);
        let limits = match PREPACKED {
            true => E::limits(usize::MAX, total, true, false),
            false => E::limits(p.m, total, reads_a, few),
        };
        let depth = evenly(total, limits.depth, DEPTH_UNIT);
        // Sums in `c` itself take no room, so that one thread need not pack `b` again for rows further down.
        let most = if E::IN_PLACE && threads == 1 { p.m } else { limits.rows };
        let mut rows = evenly(p.m, most, E::ROWS);
        let mut cols = if reads_b && !few { p.n } else { evenly(p.n, limits.cols, limits.unit) };
        let mut packed = depth * evenly(parts(total, depth), limits.blocks, 1);
        let mut shared = 0;
        let shares = E::SHARES && !PREPACKED && threads > 1 && !reads_a && !reads_b;
        if shares && let Some(sharing) = Sharing::new::<E>(p, &limits, depth, total, threads) {
            Sharing { rows, cols, group: shared, packed } = sharing;
        } else if threads > 1 {
            // More than one tile for each thread, so that one that is late holds up little.
            let enough = threads.saturating_mul(2);
            let matrices = count(p.outer);
            if E::SHARES && reads_a && !reads_b {
                // Columns cost nothing more where only `b` is packed.
                let work = p.m.saturating_mul(p.n).saturating_mul(total);
                let most = enough.div_ceil(matrices).min(p.n / limits.unit).min(work / E::TASK);
                cols = evenly(p.n, p.n.div_ceil(most.max(1)).min(cols), limits.vector);
            }
            // Where nothing is packed, rows can be cut anywhere.
            let unit = if reads_a && reads_b { ROW_UNIT } else { E::ROWS };
            while matrices.saturating_mul(p.m.div_ceil(rows)).saturating_mul(p.n.div_ceil(cols)) < enough
                && rows.saturating_mul(cols).saturating_mul(total) >= 2 * E::TASK
            {
                let halved = |len: usize, multiple| len.div_ceil(2).next_multiple_of(multiple);
                let fewer = (halved(rows, unit), halved(cols, limits.vector));
                let narrower = reads_a && fewer.1 >= limits.narrow;
                if fewer.0 < rows && !narrower && (rows >= cols || fewer.1 >= cols) {
                    rows = fewer.0;
                } else if fewer.1 < cols {
                    cols = fewer.1;
                } else {
                    break;
                }
            }
        }
        let tiles = (parts(p.n, cols), parts(p.m, rows));
        let elements = [(p.m, total), (total, p.n), (p.m, p.n)].map(|(x, y)| x.saturating_mul(y));
        let each = elements.into_iter().fold(0, usize::saturating_add).saturating_mul(size_of::<E::Number>());
        let ahead = each.saturating_mul(count(p.outer)) > NEAR;
        Plan { tile: (rows, cols), tiles, total, depth, packed, reads_a, reads_b, few, shared, ahead }
    }
}

/// How tasks share the packing of `b`.
struct Sharing {
    rows: usize,
    cols: usize,
    group: usize,
    packed: usize,
}

impl Sharing {
    /// Nothing where several matrices, few rows, or a small `b` are better packed by the tasks themselves.
    ///
    /// Out of line, as small products pass by here.
    #[inline(never)]
    fn new<E: Engine>(
        p: &Problem<'_, E::Number>,
        limits: &Limits,
        depth: usize,
        total: usize,
        threads: usize,
    ) -> Option<Sharing> {
        let enough = threads.saturating_mul(2);
        if count(p.outer) >= enough || p.m < 2 * E::SHARED_ROWS {
            return None;
        }
        // Sums in blocks of their own are finished before the rows behind them are begun.
        let packed = if E::IN_PLACE { depth } else { depth.saturating_mul(parts(total, depth)) };
        let unit = E::packed_b(limits.unit, depth).saturating_mul(parts(packed, depth));
        let units = SHARED_BYTES.checked_div(unit.saturating_mul(size_of::<E::Packed>()))?;
        if units < 2 {
            return None;
        }
        let most = units * limits.unit;
        let group = evenly(p.n, limits.cols.min(most), limits.unit);
        let work = p.m.saturating_mul(group).saturating_mul(packed.min(total));
        if work < SHARED_TASKS * E::TASK {
            return None;
        }
        let tasks = (work / E::TASK).min(2 * enough);
        // As many for each thread, so that all are done at the same time.
        let fairly = |parts: usize| if parts > threads { parts - parts % threads } else { parts };
        let by_rows = fairly(tasks.min(p.m / E::SHARED_ROWS));
        let rows = evenly(p.m, p.m.div_ceil(by_rows), E::ROW_UNIT);
        let by_cols = tasks.min(enough).div_ceil(by_rows);
        let cols = evenly(group, group.div_ceil(by_cols), limits.unit);
        Some(Sharing { rows, cols, group: cols * parts(group, cols), packed })
    }
}

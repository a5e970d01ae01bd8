//! How a product is cut into blocks that stay in cache, and into tasks.
//!
//! A task computes a tile of `c`. For each range of the depth it packs a block of `b`, then goes through its rows of `a`
//! a few at a time, packs these too, and multiplies the two. The block of `b` is sized to stay in second-level cache; where
//! the inner loop asks for the next panel ahead of time it may be larger, so that `a` is packed for fewer blocks.
//! Tasks share nothing: packing `b` again for each takes a few percent, and no task waits for another.
//!
//! The depth is cut by the sizes alone, and within a range every element of `c` is added up in the order of the
//! depth. So neither the tiles nor the threads change the result.

use crate::isa::Body;
use crate::kernels::gemm::{Element, Factor, Loop, Problem, count, offsets};
use crate::kernels::raw::{GRAIN_BYTES, for_ranges};
use ep_core::parallel::Parallel;
use ep_core::{Error, Result};
use std::alloc::Layout;
use std::cell::Cell;
use std::ops::Range;
use std::ptr::NonNull;

/// What the depth of a block is a multiple of, where it is cut.
const DEPTH_UNIT: usize = 32;

/// What the rows of a tile are a multiple of at least: the rows that are multiplied together, whatever the level.
const ROW_UNIT: usize = 16;

/// Bytes of operands that a core's own cache can be expected to hold.
pub(super) const NEAR: usize = 1 << 20;

/// How deep, and how wide, a packed block of `b` is at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) depth: usize,
    /// Blocks behind each other along the depth that are kept packed at a time.
    pub(super) blocks: usize,
    pub(super) cols: usize,
    /// Columns that are multiplied together: tiles should have a multiple of them.
    pub(super) unit: usize,
    /// Rows of a tile: as few as make packing `b` for each tile cheap.
    pub(super) rows: usize,
}

/// Part of one factor: so many of its lines (rows of `a`, columns of `b`) in a range of the depth, which runs on
/// through the matrices that are summed over.
pub(super) struct Slab<'a, T> {
    /// First line, in the first of the matrices.
    pub(super) at: *const T,
    /// Elements between lines.
    pub(super) line: usize,
    /// Elements between neighbours along the depth.
    pub(super) step: usize,
    pub(super) lines: usize,
    pub(super) depth: Range<usize>,
    /// Depth of one matrix.
    each: usize,
    inner: &'a [Loop],
    of_b: bool,
}

/// A stretch of a [`Slab`] that lies in one matrix.
pub(super) struct Stretch<T> {
    /// First line, at the first place along the depth.
    pub(super) at: *const T,
    /// How far into the slab's depth it begins.
    pub(super) first: usize,
    /// How deep it is.
    pub(super) len: usize,
}

impl<T> Slab<'_, T> {
    /// All stretches. An iterator, as a closure would not be compiled for the level of what calls it.
    #[inline(always)]
    pub(super) fn stretches(&self) -> Stretches<'_, T> {
        Stretches { slab: self, depth: self.depth.start }
    }
}

/// See [`Slab::stretches`].
pub(super) struct Stretches<'a, T> {
    slab: &'a Slab<'a, T>,
    depth: usize,
}

impl<T> Iterator for Stretches<'_, T> {
    type Item = Stretch<T>;

    #[inline(always)]
    fn next(&mut self) -> Option<Stretch<T>> {
        let slab = self.slab;
        if self.depth >= slab.depth.end {
            return None;
        }
        let (term, place) = (self.depth / slab.each, self.depth % slab.each);
        let len = (slab.each - place).min(slab.depth.end - self.depth);
        let offset = match slab.inner {
            [] => 0,
            inner => {
                let (a, b, _) = offsets(inner, term);
                if slab.of_b { b } else { a }
            }
        };
        let first = self.depth - slab.depth.start;
        self.depth += len;
        Some(Stretch { at: slab.at.wrapping_add(offset + place * slab.step), first, len })
    }
}

/// A block of `a` as the inner loops read it.
pub(super) enum Source<T, P> {
    /// Where it is stored; elements between rows, and along the depth.
    Stored { at: *const T, line: usize, step: usize },
    /// Packed by [`Engine::pack_a`] or [`Engine::pack_b`].
    Packed(*const P),
}

impl<T, P> Clone for Source<T, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, P> Copy for Source<T, P> {}

/// A product of two blocks: `rows` x `depth` of `a` and `depth` x `cols` of `b`.
pub(super) struct Block<'a, E: Engine> {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) depth: usize,
    pub(super) a: Source<E::Number, E::Packed>,
    pub(super) b: Source<E::Number, E::Packed>,
    /// Whether the rows that come next are worth asking for, because they are not in the core's own cache.
    pub(super) ahead: bool,
    pub(super) out: Out<E::Sum>,
    /// The part of `c` to be finished too, where the engine does that and the block is as deep as the product.
    pub(super) part: Option<Part<'a, E::Number, E::Sum>>,
}

/// Where sums go: `out = alpha * sum + beta * out`.
#[derive(Clone, Copy)]
pub(super) struct Out<S> {
    pub(super) at: *mut S,
    pub(super) stride: usize,
    pub(super) alpha: S,
    pub(super) beta: S,
}

/// Packing, multiplying and finishing of blocks.
pub(super) trait Engine: Copy + Send + Sync {
    /// What is multiplied.
    type Number: Element;
    /// What packed blocks consist of.
    type Packed: Copy;
    /// What is added up.
    type Sum: Copy;
    /// Rows of `a` that are packed at a time.
    const ROWS: usize;
    /// Whether sums are added up in `c` itself, not in a block of their own that is finished at the end.
    const IN_PLACE: bool;
    /// Whether blocks can be read where they are stored.
    const READS_STORED: bool;
    /// Multiply-adds below which a tile is not worth a task of its own: some ten microseconds.
    const TASK: usize;
    /// Whether [`Engine::multiply`] finishes what [`Block::part`] asks for.
    const FINISHES: bool;
    const ZERO: Self::Sum;
    const ONE: Self::Sum;

    /// For `m` rows of `a` and sums over `total` products.
    fn limits(m: usize, total: usize, reads_a: bool) -> Limits;
    /// Elements of a packed block of at most [`Engine::ROWS`] rows.
    fn packed_a(depth: usize) -> usize;
    /// Elements of a packed block of `b`.
    fn packed_b(cols: usize, depth: usize) -> usize;
    /// Sums of a row of elements of `c`: between rows, and how many rows of them a row makes.
    fn sums(cols: usize) -> (usize, usize);
    /// Whether `b` is better read where it is than packed, if `m` rows use it.
    fn reads_b(m: usize, n: usize, k: usize, rows_contiguous: bool) -> bool;
    /// The same for `a`.
    fn reads_a(m: usize, n: usize, k: usize, rows_contiguous: bool) -> bool;
    /// The factors of the sums where they are in place.
    fn in_place(scalar: <Self::Number as Element>::Scalar) -> Self::Sum;

    /// Runs `body` with what the engine needs of the CPU.
    ///
    /// # Safety
    /// The CPU has the engine's level.
    unsafe fn run<B: Body>(body: B) -> B::Out;

    /// # Safety
    /// As [`Engine::run`]; the slab is readable and the block has room.
    unsafe fn pack_a(slab: &Slab<'_, Self::Number>, out: *mut Self::Packed);

    /// # Safety
    /// As [`Engine::pack_a`].
    unsafe fn pack_b(slab: &Slab<'_, Self::Number>, out: *mut Self::Packed);

    /// # Safety
    /// As [`Engine::run`], inside of which it is called; the blocks are readable and the sums writable.
    unsafe fn multiply(block: &Block<'_, Self>);

    /// `c = alpha * sums + beta * c`.
    ///
    /// # Safety
    /// As [`Engine::run`]; the sums are readable, and the part of `c` is writable.
    unsafe fn finish(part: &Part<'_, Self::Number, Self::Sum>);
}

/// A part of `c` whose sums are complete.
#[derive(Clone, Copy)]
pub(super) struct Part<'a, T: Element, S> {
    pub(super) sums: *const S,
    pub(super) stride: usize,
    pub(super) c: *mut T,
    pub(super) c_rs: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) scalars: &'a Scalars<T>,
    /// Whether `a`, and `b`, is to be conjugated.
    pub(super) conj: (bool, bool),
}

pub(super) struct Scalars<T: Element> {
    pub(super) alpha: T::Scalar,
    pub(super) beta: T::Scalar,
}

/// What a problem is cut into.
struct Plan {
    /// Rows and columns of a tile.
    tile: (usize, usize),
    /// Tiles along the columns, and along the rows.
    tiles: (usize, usize),
    /// The whole depth, that of a block, and that of the blocks of `b` that are packed at a time.
    total: usize,
    depth: usize,
    packed: usize,
    reads_a: bool,
    reads_b: bool,
    /// See [`Block::ahead`].
    ahead: bool,
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
fn parts(len: usize, each: usize) -> usize {
    if len <= each { 1 } else { len.div_ceil(each) }
}

/// Which group of so many an index is in, and which of the group it is.
#[inline(always)]
fn split(index: usize, many: usize) -> (usize, usize) {
    if many == 1 { (index, 0) } else { (index / many, index % many) }
}

impl Plan {
    #[inline]
    fn new<E: Engine>(p: &Problem<'_, E::Number>, threads: usize) -> Plan {
        let total = p.k.saturating_mul(count(p.inner));
        let stored = E::READS_STORED && p.inner.is_empty();
        let reads_b = stored && E::reads_b(p.m, p.n, p.k, p.b.cs == 1);
        let reads_a = stored && E::reads_a(p.m, p.n, p.k, p.a.cs == 1);
        let limits = E::limits(p.m, total, reads_a);
        let depth = evenly(total, limits.depth, DEPTH_UNIT);
        let mut rows = evenly(p.m, limits.rows, E::ROWS);
        let mut cols = if reads_b { p.n } else { evenly(p.n, limits.cols, limits.unit) };
        if threads > 1 {
            // More than one tile for each thread, so that one that is late holds up little.
            let enough = threads.saturating_mul(2);
            let matrices = count(p.outer);
            // Where nothing is packed, rows can be cut anywhere.
            let unit = if reads_a && reads_b { ROW_UNIT } else { E::ROWS };
            while matrices.saturating_mul(p.m.div_ceil(rows)).saturating_mul(p.n.div_ceil(cols)) < enough
                && rows.saturating_mul(cols).saturating_mul(total) >= 2 * E::TASK
            {
                let halved = |len: usize, multiple| len.div_ceil(2).next_multiple_of(multiple);
                let fewer = (halved(rows, unit), halved(cols, limits.unit));
                if fewer.0 < rows && (rows >= cols || fewer.1 >= cols) {
                    rows = fewer.0;
                } else if fewer.1 < cols {
                    cols = fewer.1;
                } else {
                    break;
                }
            }
        }
        let tiles = (parts(p.n, cols), parts(p.m, rows));
        let packed = depth * evenly(parts(total, depth), limits.blocks, 1);
        let elements = [(p.m, total), (total, p.n), (p.m, p.n)].map(|(x, y)| x.saturating_mul(y));
        let each = elements.into_iter().fold(0, usize::saturating_add).saturating_mul(size_of::<E::Number>());
        let ahead = each.saturating_mul(count(p.outer)) > NEAR;
        Plan { tile: (rows, cols), tiles, total, depth, packed, reads_a, reads_b, ahead }
    }
}

/// Solves a problem by blocks.
///
/// # Errors
/// `OutOfMemory` if there is no room for packed blocks; those of `par`.
///
/// # Safety
/// As for [`Element::multiply`]; the CPU has the engine's level.
pub(super) unsafe fn multiply<E: Engine>(
    par: &dyn Parallel,
    problem: &Problem<'_, E::Number>,
    alpha: <E::Number as Element>::Scalar,
    beta: <E::Number as Element>::Scalar,
) -> Result<()> {
    let plan = Plan::new::<E>(problem, par.threads());
    let scalars = Scalars { alpha, beta };
    let tiles = count(problem.outer) * plan.tiles.0 * plan.tiles.1;
    let work = plan.tile.0.saturating_mul(plan.tile.1).saturating_mul(plan.total);
    // As many bytes from memory would take about as long.
    let bytes = work / (E::TASK / GRAIN_BYTES);
    for_ranges(par, tiles, bytes, 1, |tiles| {
        // SAFETY: the caller's promise; each tile is in one task.
        unsafe { E::run(Tiles::<E> { problem, plan: &plan, scalars: &scalars, tiles }) }
    })
}

/// A task. Made only in [`multiply`], under its promise.
struct Tiles<'a, E: Engine> {
    problem: &'a Problem<'a, E::Number>,
    plan: &'a Plan,
    scalars: &'a Scalars<E::Number>,
    tiles: Range<usize>,
}

impl<E: Engine> Body for Tiles<'_, E> {
    type Out = Result<()>;

    #[inline(always)]
    fn run(self) -> Result<()> {
        let (plan, (rows, cols)) = (self.plan, self.plan.tile);
        let (sums_stride, sums_rows) = E::sums(cols);
        let block_b = E::packed_b(cols, plan.depth);
        let kept_rows = if plan.packed < plan.total { rows.next_multiple_of(E::ROWS) } else { E::ROWS };
        let sizes = [
            if plan.reads_b { 0 } else { parts(plan.packed, plan.depth) * block_b * size_of::<E::Packed>() },
            if plan.reads_a { 0 } else { E::packed_a(plan.depth) * size_of::<E::Packed>() },
            if E::IN_PLACE { 0 } else { kept_rows * sums_rows * sums_stride * size_of::<E::Sum>() },
        ];
        // Held by a guard, not lent to a closure: a closure would not be compiled for this level.
        let room = if sizes == [0; 3] { None } else { Some(Room::take(sizes)?) };
        let parts = room.as_ref().map_or([NonNull::dangling(); 3], |room| room.parts(sizes));
        // SAFETY: the three have the sizes that their uses below need.
        unsafe { self.tiles(parts) };
        Ok(())
    }
}

impl<E: Engine> Tiles<'_, E> {
    /// # Safety
    /// There is room for a block of `b`, one of `a`, and sums, each aligned to a line.
    #[inline(always)]
    unsafe fn tiles(&self, [room_b, room_a, room_sums]: [NonNull<u8>; 3]) {
        let Self { problem: p, plan, scalars, .. } = *self;
        let (room_a, room_b) = (room_a.as_ptr().cast::<E::Packed>(), room_b.as_ptr().cast::<E::Packed>());
        let room_sums = room_sums.as_ptr().cast::<E::Sum>();
        let slab = |f: &Factor<E::Number>, of_b: bool, offset, first, lines, depth: &Range<usize>| {
            let (line, step) = if of_b { (f.cs, f.rs) } else { (f.rs, f.cs) };
            let at = f.element(offset + first * line, 0, 0);
            Slab { at, line, step, lines, depth: depth.clone(), each: p.k, inner: p.inner, of_b }
        };
        let (stride, sums_rows) = E::sums(plan.tile.1);
        let block_b = E::packed_b(plan.tile.1, plan.depth);
        // Which part of `b` is packed: its offset, first column and place along the depth.
        let mut packed = None;
        for tile in self.tiles.clone() {
            let (tile, row) = split(tile, plan.tiles.1);
            let (matrix, col) = split(tile, plan.tiles.0);
            let (row, col) = (row * plan.tile.0, col * plan.tile.1);
            let (a_offset, b_offset, c_offset) = offsets(p.outer, matrix);
            let (rows, cols) = (plan.tile.0.min(p.m - row), plan.tile.1.min(p.n - col));
            // SAFETY: the tile lies inside the result.
            let c = unsafe { p.c.get().add(c_offset + row * p.c_rs + col) };
            for start in (0..plan.total).step_by(plan.packed) {
                let end = (start + plan.packed).min(plan.total);
                let blocks = parts(end - start, plan.depth);
                let depth_of = |start: usize, block: usize| {
                    let first = start + block * plan.depth;
                    first..(first + plan.depth).min(plan.total)
                };
                let wanted = Some((b_offset, col, start));
                if !plan.reads_b && packed != wanted {
                    for block in 0..blocks {
                        let slab = slab(&p.b, true, b_offset, col, cols, &depth_of(start, block));
                        // SAFETY: the slab lies inside the factor, and there is room for it behind the ones before.
                        unsafe { E::pack_b(&slab, room_b.add(block * block_b)) };
                    }
                    packed = wanted;
                }
                // A factor that is read in place needs no blocks for the sake of its packing.
                let step = if plan.reads_a && plan.reads_b && E::IN_PLACE { rows } else { E::ROWS };
                for i in (0..rows).step_by(step) {
                    let lines = step.min(rows - i);
                    // SAFETY: row `i` of the tile.
                    let c = unsafe { c.add(i * p.c_rs) };
                    let kept = if plan.packed < plan.total { i } else { 0 };
                    let sums = room_sums.wrapping_add(kept * sums_rows * stride);
                    let (c_rs, conj) = (p.c_rs, (p.a.conj, p.b.conj));
                    let part =
                        Part { sums: sums.cast_const(), stride, c, c_rs, rows: lines, cols, scalars, conj };
                    let at_once = E::FINISHES && plan.depth >= plan.total;
                    for block in 0..blocks {
                        let depth = depth_of(start, block);
                        let b = if plan.reads_b {
                            let at = p.b.element(b_offset, depth.start, col);
                            Source::Stored { at, line: p.b.cs, step: p.b.rs }
                        } else {
                            Source::Packed(room_b.wrapping_add(block * block_b).cast_const())
                        };
                        let a = if plan.reads_a {
                            let at = p.a.element(a_offset, row + i, depth.start);
                            Source::Stored { at, line: p.a.rs, step: p.a.cs }
                        } else {
                            let slab = slab(&p.a, false, a_offset, row + i, lines, &depth);
                            // SAFETY: as for `b`.
                            unsafe { E::pack_a(&slab, room_a) };
                            Source::Packed(room_a.cast_const())
                        };
                        let first = depth.start == 0;
                        let beta = if first { E::ZERO } else { E::ONE };
                        let out = if E::IN_PLACE {
                            let beta = if first { E::in_place(scalars.beta) } else { beta };
                            Out { at: c.cast(), stride: p.c_rs, alpha: E::in_place(scalars.alpha), beta }
                        } else {
                            Out { at: sums, stride, alpha: E::ONE, beta }
                        };
                        let depth = depth.end - depth.start;
                        let (ahead, part) = (plan.ahead, at_once.then_some(part));
                        let block = Block::<E> { rows: lines, cols, depth, a, b, ahead, out, part };
                        // SAFETY: both blocks are there; the sums have room, or are this task's part of `c`.
                        unsafe { E::multiply(&block) };
                    }
                    if end == plan.total && !E::IN_PLACE && !at_once {
                        // SAFETY: the sums of these rows are complete, and the rows are this task's.
                        unsafe { E::finish(&part) };
                    }
                }
            }
        }
    }
}

const LINE: usize = 64;
const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// Memory for packed blocks. A thread keeps it, so that not every task faults it in anew: at most 4 MiB for the block
/// sizes in use.
struct Memory {
    at: NonNull<u8>,
    layout: Layout,
}

thread_local! {
    static KEPT: Cell<Option<Memory>> = const { Cell::new(None) };
}

impl Memory {
    fn new(bytes: usize) -> Result<Memory> {
        let refused = || Error::out_of_memory(format!("matmul needs {bytes} bytes for packed blocks"));
        let align = if bytes >= HUGE_PAGE / 2 { HUGE_PAGE } else { PAGE };
        let layout = Layout::from_size_align(bytes.max(LINE), align).map_err(|_| refused())?.pad_to_align();
        // SAFETY: the size is not 0.
        let at = NonNull::new(unsafe { std::alloc::alloc(layout) }).ok_or_else(refused)?;
        #[cfg(target_os = "linux")]
        if layout.align() == HUGE_PAGE {
            // SAFETY: advice on memory of our own, which changes nothing of what it holds.
            unsafe { libc::madvise(at.as_ptr().cast(), layout.size(), libc::MADV_HUGEPAGE) };
        }
        Ok(Memory { at, layout })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and owned.
        unsafe { std::alloc::dealloc(self.at.as_ptr(), self.layout) };
    }
}

/// The thread's memory while a task uses it.
struct Room(Option<Memory>);

impl Room {
    /// Room for three blocks of these sizes in bytes.
    fn take(sizes: [usize; 3]) -> Result<Room> {
        let bytes = sizes.iter().map(|s| s.next_multiple_of(LINE)).sum();
        match KEPT.take() {
            Some(kept) if kept.layout.size() >= bytes => Ok(Room(Some(kept))),
            smaller => {
                drop(smaller);
                Ok(Room(Some(Memory::new(bytes)?)))
            }
        }
    }

    /// The blocks that room was taken for, each aligned to a line.
    fn parts(&self, sizes: [usize; 3]) -> [NonNull<u8>; 3] {
        let at = self.0.as_ref().map_or(NonNull::dangling(), |memory| memory.at);
        let [first, second, _] = sizes.map(|s| s.next_multiple_of(LINE));
        // SAFETY: within the memory, which holds all three.
        unsafe { [at, at.add(first), at.add(first + second)] }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        KEPT.set(self.0.take());
    }
}

//! How a product is cut into blocks that stay in cache, and into tasks.
//!
//! A task computes a tile of `c`. For each range of the depth it packs a block of `b`, then goes through its rows of `a`
//! a few at a time, packs these too, and multiplies the two. The block of `b` is sized to stay in second-level cache; where
//! the inner loop asks for the next panel ahead of time it may be larger, so that `a` is packed for fewer blocks.
//! Few rows of `a` are packed, and a large `b` is read where it is stored, as packing it would take as long as multiplying by it.
//! A small `a` is read where it is stored; then the tiles of different tasks are columns, and none packs what another does.
//! Where both factors are packed, `b` would be packed for each tile: large ones are packed by all tasks together before any
//! multiplies by them. Small ones are not, as moving what another core has packed takes as long as packing it.
//! No task waits for another within a turn: the caller waits for all of them before the next.
//!
//! The depth is cut by the sizes alone, and within a range every element of `c` is added up in the order of the
//! depth. So neither the tiles nor the threads change the result.

use crate::isa::Body;
use crate::kernels::gemm::{Element, Loop, Problem, count, offsets};
use crate::kernels::gemm_plan::{Limits, Plan, parts, split};
use crate::kernels::gemm_room::{OF_CALL, OF_TASK, Room};
use crate::kernels::gemm_small::Small;
use crate::kernels::raw::{GRAIN_BYTES, Shared, for_ranges};
use ep_core::Result;
use ep_core::parallel::Parallel;
use std::ops::Range;
use std::ptr::NonNull;

/// Bytes of rows that stay in a core's own cache while one panel after the other passes them.
const NEAR_BYTES: usize = 256 << 10;

/// Depth of what a task packs at a time for all of them.
const SLICE: usize = 64;

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
    /// Where in its block the slab begins, and how deep the block is: several tasks pack one together.
    pub(super) from: usize,
    pub(super) whole: usize,
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
    /// Whether what comes next, rows or a part of `c`, is worth asking for, because it is not in the core's own cache.
    pub(super) ahead: bool,
    /// See [`Engine::few`]; then `a` is packed and `b` is not.
    pub(super) few: bool,
    /// Whether `b` was packed long ago, so that these rows are the first that need it in cache.
    pub(super) streams: bool,
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
    /// Whether a block of `b` can be packed a part of the depth at a time.
    const SHARES: bool;
    /// Rows of a tile at least where tasks share what they multiply by.
    const SHARED_ROWS: usize = 64;
    /// What these are a multiple of.
    const ROW_UNIT: usize = 16;
    /// Whether [`Engine::multiply`] finishes what [`Block::part`] asks for.
    const FINISHES: bool;
    const ZERO: Self::Sum;
    const ONE: Self::Sum;

    /// For `m` rows of `a` and sums over `total` products.
    fn limits(m: usize, total: usize, reads_a: bool, few: bool) -> Limits;
    /// Elements of a packed block of at most [`Engine::ROWS`] rows.
    fn packed_a(depth: usize) -> usize;
    /// Elements of a packed block of `b`.
    fn packed_b(cols: usize, depth: usize) -> usize;
    /// Sums of a row of elements of `c`: between rows, and how many rows of them a row makes.
    fn sums(cols: usize) -> (usize, usize);
    /// Whether `b` is better read where it is than packed, if `m` rows use it.
    fn reads_b(m: usize, n: usize, k: usize, rows_contiguous: bool) -> bool;
    /// Whether a `b` that is read where it is is so large, and the rows of `a` so few, that these are packed and the rows of `b`
    /// are asked for ahead of time.
    fn few(_m: usize, _n: usize, _k: usize) -> bool {
        false
    }
    /// As [`Engine::reads_b`] for `a`.
    fn reads_a(m: usize, n: usize, k: usize, rows_contiguous: bool) -> bool;
    /// The factors of the sums where they are in place.
    fn in_place(scalar: <Self::Number as Element>::Scalar) -> Self::Sum;

    /// Runs `body` with what the engine needs of the CPU.
    ///
    /// # Safety
    /// The CPU has the engine's level.
    unsafe fn run<B: Body>(body: B) -> B::Out;

    /// Runs `body`, which only packs: inside of [`Engine::run`] too, whose setting up it leaves alone.
    ///
    /// # Safety
    /// As [`Engine::run`].
    unsafe fn run_packing<B: Body>(body: B) -> B::Out;

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

impl<T: Element, S> Part<'_, T, S> {
    /// Without its first rows.
    ///
    /// # Safety
    /// There are so many.
    #[inline(always)]
    pub(super) unsafe fn below(self, rows: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self {
                sums: self.sums.add(rows * self.stride),
                c: self.c.add(rows * self.c_rs),
                rows: self.rows - rows,
                ..self
            }
        }
    }
}

pub(super) struct Scalars<T: Element> {
    pub(super) alpha: T::Scalar,
    pub(super) beta: T::Scalar,
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
    // SAFETY: the caller's promise.
    if let Some(small) = unsafe { Small::<E>::new(problem, alpha, beta) } {
        // SAFETY: the caller's promise.
        unsafe { E::run(small) };
        return Ok(());
    }
    let plan = Plan::new::<E>(problem, par.threads());
    let scalars = Scalars { alpha, beta };
    let tiles = count(problem.outer) * plan.tiles.0 * plan.tiles.1;
    let work = plan.tile.0.saturating_mul(plan.tile.1).saturating_mul(plan.total);
    // As many bytes from memory would take about as long.
    let bytes = work / (E::TASK / GRAIN_BYTES);
    if plan.shared > 0 {
        // SAFETY: the caller's promise.
        return unsafe { multiply_together::<E>(par, problem, &plan, &scalars) };
    }
    for_ranges(par, tiles, bytes, 1, |tiles| {
        let (problem, plan, scalars, depth) = (problem, &plan, &scalars, 0..plan.total);
        // SAFETY: the caller's promise; each tile is in one task.
        unsafe { E::run(Tiles::<E> { problem, plan, scalars, tiles, depth, ready: None }) }
    })
}

/// The same in turns: all tasks pack a part of `b`, then all multiply by it.
///
/// # Errors
/// As for [`multiply`].
///
/// # Safety
/// As for [`multiply`].
#[inline(never)]
unsafe fn multiply_together<E: Engine>(
    par: &dyn Parallel,
    problem: &Problem<'_, E::Number>,
    plan: &Plan,
    scalars: &Scalars<E::Number>,
) -> Result<()> {
    let (p, cols) = (problem, plan.tile.1);
    let block = E::packed_b(cols, plan.depth);
    let blocks = parts(plan.packed.min(plan.total), plan.depth);
    let groups = plan.shared / cols;
    let sizes = [groups * blocks * block * size_of::<E::Packed>(), 0, 0];
    let room = Room::take(&OF_CALL, sizes)?;
    let ready = Shared::new(room.parts(sizes)[0].as_ptr().cast::<E::Packed>());
    let slices = plan.depth.div_ceil(SLICE);
    for matrix in 0..count(p.outer) {
        let b_offset = offsets(p.outer, matrix).1;
        for first in (0..plan.tiles.0).step_by(groups) {
            let groups = groups.min(plan.tiles.0 - first);
            for start in (0..plan.total).step_by(plan.packed) {
                let end = (start + plan.packed).min(plan.total);
                let blocks = parts(end - start, plan.depth);
                let bytes = 2 * SLICE * cols * size_of::<E::Packed>();
                for_ranges(par, groups * blocks * slices, bytes, 1, |all| {
                    for at in all {
                        let (at, slice) = split(at, slices);
                        let (group, number) = split(at, blocks);
                        let depth = plan.block(start, end, number);
                        let (from, whole) = ((slice * SLICE).min(depth.len()), depth.len());
                        let part = depth.start + from..(depth.start + from + SLICE).min(depth.end);
                        let col = (first + group) * cols;
                        let lines = cols.min(p.n - col);
                        let slab = Slab { from, whole, ..slab(p, true, b_offset, col, lines, part) };
                        let out = ready.get().wrapping_add((group * blocks + number) * block);
                        // SAFETY: the slab lies inside the factor; there is room for each block of the group, and each
                        // slice of one is packed by one task.
                        unsafe { E::run_packing(Pack::<E> { slab, out }) };
                    }
                    Ok(())
                })?;
                let tiles = (matrix * plan.tiles.0 + first) * plan.tiles.1;
                let work = plan.tile.0.saturating_mul(cols).saturating_mul(end - start);
                for_ranges(par, groups * plan.tiles.1, work / (E::TASK / GRAIN_BYTES), 1, |range| {
                    let tiles = tiles + range.start..tiles + range.end;
                    let ready = Some(Ready::Group { at: ready, first });
                    // SAFETY: the caller's promise; each tile is in one task. All of what it is multiplied by was packed:
                    // `for_ranges` returns when its tasks have ended, and so none is packed anew before these have.
                    unsafe { E::run(Tiles::<E> { problem, plan, scalars, tiles, depth: start..end, ready }) }
                })?;
            }
        }
    }
    Ok(())
}

/// Lines of a factor.
pub(super) fn slab<'a, T>(
    p: &Problem<'a, T>,
    of_b: bool,
    offset: usize,
    first: usize,
    lines: usize,
    depth: Range<usize>,
) -> Slab<'a, T> {
    let f = if of_b { &p.b } else { &p.a };
    let (line, step) = if of_b { (f.cs, f.rs) } else { (f.rs, f.cs) };
    let at = f.element(offset + first * line, 0, 0);
    let whole = depth.len();
    Slab { at, line, step, lines, depth, from: 0, whole, each: p.k, inner: p.inner, of_b }
}

/// Packs a part of `b`. Made only where that may be done.
pub(super) struct Pack<'a, E: Engine> {
    pub(super) slab: Slab<'a, E::Number>,
    pub(super) out: *mut E::Packed,
}

impl<E: Engine> Body for Pack<'_, E> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        // SAFETY: what it was made for.
        unsafe { E::pack_b(&self.slab, self.out) }
    }
}

/// Blocks of `b` that all tasks read.
pub(super) enum Ready<P> {
    /// Of a range of the depth, for columns of tiles from the `first` on.
    Group { at: Shared<P>, first: usize },
    /// Of all of it: see [`gemm_prepack`](super::gemm_prepack).
    Whole { at: Shared<P> },
}

impl<P> Ready<P> {
    /// Where the columns from `col` on of a block lie: number `number` of `blocks` from `start` on.
    #[inline(always)]
    fn block<E: Engine<Packed = P>>(
        &self,
        (plan, n, col): (&Plan, usize, usize),
        (blocks, number): (usize, usize),
        depth: &Range<usize>,
    ) -> *const P {
        match self {
            Ready::Group { at, first } => {
                let group = (col / plan.tile.1 - first) * blocks;
                at.get().wrapping_add((group + number) * E::packed_b(plan.tile.1, plan.depth)).cast_const()
            }
            Ready::Whole { at } => {
                let block = depth.start / plan.depth * E::packed_b(n, plan.depth);
                at.get().wrapping_add(block + E::packed_b(col, depth.len())).cast_const()
            }
        }
    }
}

/// A task. Made only where the promise of [`multiply`] holds.
pub(super) struct Tiles<'a, E: Engine> {
    pub(super) problem: &'a Problem<'a, E::Number>,
    pub(super) plan: &'a Plan,
    pub(super) scalars: &'a Scalars<E::Number>,
    pub(super) tiles: Range<usize>,
    /// As far as the sums go.
    pub(super) depth: Range<usize>,
    /// Nothing where `b` is read as it is stored, or packed by the task.
    pub(super) ready: Option<Ready<E::Packed>>,
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
            if plan.reads_b || self.ready.is_some() {
                0
            } else {
                parts(plan.packed, plan.depth) * block_b * size_of::<E::Packed>()
            },
            if plan.reads_a { 0 } else { E::packed_a(plan.depth) * size_of::<E::Packed>() },
            if E::IN_PLACE { 0 } else { kept_rows * sums_rows * sums_stride * size_of::<E::Sum>() },
        ];
        // Held by a guard, not lent to a closure: a closure would not be compiled for this level.
        let room = if sizes == [0; 3] { None } else { Some(Room::take(&OF_TASK, sizes)?) };
        let parts = room.as_ref().map_or([NonNull::dangling(); 3], |room| room.parts(sizes));
        // SAFETY: the three have the sizes that their uses below need.
        unsafe { self.tiles(parts) };
        Ok(())
    }
}

impl<E: Engine> Tiles<'_, E> {
    /// # Safety
    /// There is room for the blocks of `b` that are packed here, one of `a`, and sums, each aligned to a line; nobody
    /// writes to what is [`ready`](Tiles::ready).
    #[inline(always)]
    unsafe fn tiles(&self, [room_b, room_a, room_sums]: [NonNull<u8>; 3]) {
        let Self { problem: p, plan, scalars, .. } = *self;
        let (room_a, room_b) = (room_a.as_ptr().cast::<E::Packed>(), room_b.as_ptr().cast::<E::Packed>());
        let room_sums = room_sums.as_ptr().cast::<E::Sum>();
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
            // Counted by hand, as `step_by` divides.
            let mut next = self.depth.start;
            while next < self.depth.end {
                let (start, end) = (next, (next + plan.packed).min(plan.total));
                next = end;
                let blocks = parts(end - start, plan.depth);
                let wanted = Some((b_offset, col, start));
                if !plan.reads_b && self.ready.is_none() && packed != wanted {
                    for block in 0..blocks {
                        let slab = slab(p, true, b_offset, col, cols, plan.block(start, end, block));
                        // SAFETY: the slab lies inside the factor, and there is room for it behind the ones before.
                        unsafe { E::run_packing(Pack::<E> { slab, out: room_b.add(block * block_b) }) };
                    }
                    packed = wanted;
                }
                // A factor that is read in place needs no blocks for the sake of its packing, but all panels should find it near.
                let near =
                    rows.saturating_mul(plan.depth).saturating_mul(size_of::<E::Number>()) <= NEAR_BYTES;
                let step = if plan.reads_a && plan.reads_b && E::IN_PLACE && near { rows } else { E::ROWS };
                let mut next_row = 0;
                while next_row < rows {
                    let (i, lines) = (next_row, step.min(rows - next_row));
                    next_row += step;
                    // SAFETY: row `i` of the tile.
                    let c = unsafe { c.add(i * p.c_rs) };
                    let kept = if plan.packed < plan.total { i } else { 0 };
                    let sums = room_sums.wrapping_add(kept * sums_rows * stride);
                    let (c_rs, conj) = (p.c_rs, (p.a.conj, p.b.conj));
                    let part =
                        Part { sums: sums.cast_const(), stride, c, c_rs, rows: lines, cols, scalars, conj };
                    let at_once = E::FINISHES && plan.depth >= plan.total;
                    for block in 0..blocks {
                        let depth = plan.block(start, end, block);
                        let b = if plan.reads_b {
                            let at = p.b.element(b_offset, depth.start, col);
                            Source::Stored { at, line: p.b.cs, step: p.b.rs }
                        } else if let Some(ready) = &self.ready {
                            Source::Packed(ready.block::<E>((plan, p.n, col), (blocks, block), &depth))
                        } else {
                            Source::Packed(room_b.wrapping_add(block * block_b).cast_const())
                        };
                        let a = if plan.reads_a {
                            let at = p.a.element(a_offset, row + i, depth.start);
                            Source::Stored { at, line: p.a.rs, step: p.a.cs }
                        } else {
                            let slab = slab(p, false, a_offset, row + i, lines, depth.clone());
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
                        let few = plan.few;
                        let streams = i == 0 && matches!(self.ready, Some(Ready::Whole { .. }));
                        let block =
                            Block::<E> { rows: lines, cols, depth, a, b, ahead, few, streams, out, part };
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

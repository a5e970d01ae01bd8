//! Products of floating-point and complex matrices on vector registers.
//!
//! The inner loop keeps the sums of a few rows times three vectors of columns in registers; each step of the depth
//! reads the three vectors of `b` and one number of each row of `a`. A complex number is two rows of `a` and two
//! columns of `b`: multiplying all combinations gives the four products that a complex one consists of, and they
//! are put together at the end.

use crate::isa::{Body, Isa, Level};
use crate::kernels::elem::{Complex, Storage};
use crate::kernels::gemm::{Element, Problem};
use crate::kernels::gemm_block::{
    self as block, Block, Engine, Limits, Out, Part as Finished, Slab, Source, Stretch,
};
use crate::kernels::gemm_lanes::{Lanes, MOST, Part, Real};
use crate::kernels::raw::prefetch;
use ep_core::Result;
use ep_core::parallel::Parallel;
use half::{bf16, f16};
use std::marker::PhantomData;

/// A number that is computed with as one or two reals.
pub(super) trait Number: Element {
    /// What it consists of in memory.
    type Part: Part<Value = Self::Real>;
    /// What is computed in.
    type Real: Real;
    /// 2 for complex numbers.
    const PARTS: usize;
    /// Whether sums have the type of `c`.
    const IN_PLACE: bool;
    /// The factor of sums in place.
    fn in_place(scalar: Self::Scalar) -> Self::Real;
    /// `alpha * sum + beta * old`. The sum is the products of `a`'s real part with both parts of `b`, and those of its
    /// imaginary part.
    fn finish(
        sum: [[Self::Real; 2]; 2],
        conj: (bool, bool),
        alpha: Self::Scalar,
        beta: Self::Scalar,
        old: Self,
    ) -> Self;
}

macro_rules! plain {
    ($($t:ident),*) => {
        $(impl Number for $t {
            type Part = $t;
            type Real = $t;
            const PARTS: usize = 1;
            const IN_PLACE: bool = true;

            #[inline(always)]
            fn in_place(scalar: $t) -> $t {
                scalar
            }

            #[inline(always)]
            fn finish(sum: [[$t; 2]; 2], _: (bool, bool), alpha: $t, beta: $t, old: $t) -> $t {
                alpha * sum[0][0] + beta * old
            }
        })*
    };
}
plain!(f32, f64);

macro_rules! halves {
    ($($t:ident),*) => {
        $(impl Number for $t {
            type Part = $t;
            type Real = f32;
            const PARTS: usize = 1;
            const IN_PLACE: bool = false;

            #[inline(always)]
            fn in_place(scalar: f32) -> f32 {
                scalar
            }

            #[inline(always)]
            fn finish(sum: [[f32; 2]; 2], _: (bool, bool), alpha: f32, beta: f32, old: $t) -> $t {
                $t::store(alpha * sum[0][0] + beta * old.load())
            }
        })*
    };
}
halves!(f16, bf16);

macro_rules! complex {
    ($($part:ident),*) => {
        $(impl Number for Complex<$part> {
            type Part = $part;
            type Real = $part;
            const PARTS: usize = 2;
            const IN_PLACE: bool = false;

            #[inline(always)]
            fn in_place(scalar: Self) -> $part {
                scalar.re
            }

            #[inline(always)]
            fn finish(
                [re, im]: [[$part; 2]; 2],
                (conj_a, conj_b): (bool, bool),
                alpha: Self,
                beta: Self,
                old: Self,
            ) -> Self {
                let (re_im, im_im) = if conj_b { (-re[1], -im[1]) } else { (re[1], im[1]) };
                let (im_re, im_im) = if conj_a { (-im[0], -im_im) } else { (im[0], im_im) };
                let product = Complex { re: re[0] - im_im, im: re_im + im_re }.scaled(alpha);
                let old = old.scaled(beta);
                Complex { re: product.re + old.re, im: product.im + old.im }
            }
        })*
    };
}
complex!(f32, f64);

/// Solves a problem at a level.
///
/// # Errors
/// As for [`block::multiply`].
///
/// # Safety
/// As for [`Element::multiply`].
pub(super) unsafe fn multiply<T: Number>(
    isa: Isa,
    par: &dyn Parallel,
    problem: &Problem<'_, T>,
    alpha: T::Scalar,
    beta: T::Scalar,
) -> Result<()> {
    // SAFETY: the caller's promise; an `Isa` proves its level.
    unsafe {
        match isa.level() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Amx => {
                block::multiply::<Vectors<T, <T::Real as Real>::Avx512>>(par, problem, alpha, beta)
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => block::multiply::<Vectors<T, <T::Real as Real>::Avx2>>(par, problem, alpha, beta),
            _ => block::multiply::<Vectors<T, <T::Real as Real>::Portable>>(par, problem, alpha, beta),
        }
    }
}

/// Numbers `T` computed in vectors `L`.
struct Vectors<T, L>(PhantomData<(T, L)>);

impl<T, L> Clone for Vectors<T, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, L> Copy for Vectors<T, L> {}

/// Depth from which asking for the sums ahead of time costs nothing to speak of.
const FAR: usize = 192;

/// Columns of a panel of `b`, in vectors.
const WIDE: usize = 3;

/// Panels of `b`: as few as possible, and about as wide as each other.
#[derive(Clone, Copy)]
struct Panels {
    /// Vectors in all.
    vectors: usize,
    panels: usize,
}

impl Panels {
    #[inline(always)]
    fn new(reals: usize, lanes: usize) -> Panels {
        let vectors = reals.div_ceil(lanes);
        Panels { vectors, panels: vectors.div_ceil(WIDE) }
    }

    /// The first vector of a panel; for the number of panels, the number of vectors.
    #[inline(always)]
    fn first(self, panel: usize) -> usize {
        self.vectors * panel / self.panels
    }
}

impl<T: Number, L: Lanes<Real = T::Real>> Vectors<T, L> {
    /// Complex rows, or plain ones, whose sums are computed at a time.
    const MICRO: usize = L::ROWS / T::PARTS;
    /// Reals between packed columns of `a`.
    const A_STEP: usize = Self::ROWS * T::PARTS + PAD;

    /// Copies parts, as computed with.
    ///
    /// # Safety
    /// `len` parts are readable and reals writable; the CPU has the level.
    #[inline(always)]
    unsafe fn copy(from: *const T::Part, to: *mut T::Real, len: usize) {
        let whole = len - len % L::LANES;
        // SAFETY: the caller's promise.
        unsafe {
            for i in (0..whole).step_by(L::LANES) {
                L::store(to.add(i), T::Part::widen::<L>(from.add(i)));
            }
            for i in whole..len {
                to.add(i).write(from.add(i).read().load());
            }
        }
    }
}

/// Elements between packed lines of `a` beyond their length, so that lines do not compete for the same place in the cache.
const PAD: usize = 16;

impl<T: Number, L: Lanes<Real = T::Real>> Engine for Vectors<T, L> {
    type Number = T;
    type Packed = T::Real;
    type Sum = T::Real;
    const ROWS: usize = 128 / T::PARTS;
    const IN_PLACE: bool = T::IN_PLACE;
    const READS_STORED: bool = T::IN_PLACE || T::PARTS == 2;
    const ZERO: T::Real = T::Real::ZERO;
    const ONE: T::Real = T::Real::ONE;

    fn limits(m: usize, reads_a: bool) -> Limits {
        let unit = WIDE * L::LANES / T::PARTS;
        let depth = 2048 / size_of::<T::Real>();
        let (depth, blocks, cols) = match (m <= 32, reads_a) {
            // Few uses: `b` is best read in long stretches.
            (true, _) => (128, 1, 4096 / size_of::<T::Real>()),
            // One block is shorter, so that it can be wider: `a` is packed for each again.
            (_, false) => (depth, 1, 480),
            (_, true) => (depth, 2, 240),
        };
        Limits { depth, blocks, cols: cols / T::PARTS, unit, rows: 1024 / T::PARTS }
    }

    #[inline(always)]
    fn packed_a(depth: usize) -> usize {
        Self::ROWS * T::PARTS * (depth + PAD) + PAD * depth
    }

    #[inline(always)]
    fn packed_b(cols: usize, depth: usize) -> usize {
        (cols * T::PARTS).next_multiple_of(L::LANES) * depth
    }

    #[inline(always)]
    fn sums(cols: usize) -> (usize, usize) {
        ((cols * T::PARTS).next_multiple_of(L::LANES), T::PARTS)
    }

    #[inline]
    fn reads_b(_: usize, n: usize, k: usize, rows_contiguous: bool) -> bool {
        let whole = L::MASKS || (n * T::PARTS).is_multiple_of(L::LANES);
        rows_contiguous && whole && n.saturating_mul(k).saturating_mul(size_of::<T>()) <= 64 << 10
    }

    #[inline]
    fn reads_a(m: usize, n: usize, k: usize, rows_contiguous: bool) -> bool {
        let bytes = m.saturating_mul(k).saturating_mul(size_of::<T>());
        // Rows that far apart compete for the same lines of second-level cache.
        let apart = k.saturating_mul(size_of::<T>()).is_multiple_of(8192);
        // Columns, of which a group reads a few rows, take their lines several times.
        let most = if rows_contiguous { 512 << 10 } else { 64 << 10 };
        bytes <= most || rows_contiguous && (!apart || n * T::PARTS <= 2 * WIDE * L::LANES)
    }

    #[inline(always)]
    fn in_place(scalar: T::Scalar) -> T::Real {
        T::in_place(scalar)
    }

    #[inline(always)]
    unsafe fn run<B: Body>(body: B) -> B::Out {
        // SAFETY: the caller's promise.
        unsafe { L::run(body) }
    }

    /// Contiguous rows stay rows, and contiguous columns stay columns.
    #[inline(always)]
    unsafe fn pack_a(slab: &Slab<'_, T>, out: *mut T::Real) {
        let depth = slab.depth.len();
        let by_rows = slab.step == 1;
        for Stretch { at, first, len } in slab.stretches() {
            let at = at.cast::<T::Part>();
            if by_rows {
                for i in 0..slab.lines {
                    let to = (i * (depth + PAD) + first) * T::PARTS;
                    // SAFETY: row `i` of the stretch, and of the block.
                    unsafe { Self::copy(at.add(i * slab.line * T::PARTS), out.add(to), len * T::PARTS) };
                }
                continue;
            }
            for p in 0..len {
                // SAFETY: column `p` of the stretch, and of the block.
                unsafe {
                    let to = out.add((first + p) * Self::A_STEP);
                    Self::copy(at.add(p * slab.step * T::PARTS), to, slab.lines * T::PARTS);
                }
            }
        }
    }

    /// Each panel by itself, its columns filled up with zeros to whole vectors.
    #[inline(always)]
    unsafe fn pack_b(slab: &Slab<'_, T>, out: *mut T::Real) {
        let (depth, reals) = (slab.depth.len(), slab.lines * T::PARTS);
        let panels = Panels::new(reals, L::LANES);
        for Stretch { at, first, len } in slab.stretches() {
            for panel in 0..panels.panels {
                let (start, end) = (panels.first(panel) * L::LANES, panels.first(panel + 1) * L::LANES);
                let (wide, inside) = (end - start, reals.min(end) - start);
                // SAFETY: the panel, from the first row of the stretch on.
                let to = unsafe { out.add(start * depth + first * wide) };
                let at = at.wrapping_add(start / T::PARTS * slab.line);
                // SAFETY: the panel has `inside` reals in each of `len` rows, and is `wide` in the block.
                unsafe {
                    if slab.line != 1 {
                        Self::pack_columns(at, slab, to, wide, inside, len);
                        continue;
                    }
                    let (at, step) = (at.cast(), slab.step * T::PARTS);
                    match (wide == inside, end - start) {
                        (true, vectors) if vectors == WIDE * L::LANES => {
                            Self::pack_vectors::<WIDE>(at, step, to, len);
                        }
                        (true, vectors) if vectors == 2 * L::LANES => {
                            Self::pack_vectors::<2>(at, step, to, len)
                        }
                        _ => Self::pack_rows(at, step, to, wide, inside, len),
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply(block: &Block<Self>) {
        let reals = block.cols * T::PARTS;
        let panels = Panels::new(reals, L::LANES);
        // Between groups of rows, between rows, and between neighbours along the depth.
        let (a, a_group, a_row, a_step) = match block.a {
            Source::Stored { at, line, step } => {
                (at.cast(), Self::MICRO * line * T::PARTS, line * T::PARTS, step * T::PARTS)
            }
            Source::Packed(at) if block.a_rows => {
                let row = (block.depth + PAD) * T::PARTS;
                (at, Self::MICRO * row, row, T::PARTS)
            }
            Source::Packed(at) => (at, L::ROWS, T::PARTS, Self::A_STEP),
        };
        // One panel and some groups of rows.
        let pass = |panel: usize, group: usize, groups: usize, rows: usize| {
            let (start, end) = (panels.first(panel), panels.first(panel + 1));
            let start_real = start * L::LANES;
            let last = reals.min(end * L::LANES) - start_real - (end - start - 1) * L::LANES;
            let (b, b_row, cut) = match block.b {
                Source::Stored { at, step, .. } => {
                    (at.cast::<T::Real>().wrapping_add(start_real), step * T::PARTS, last < L::LANES)
                }
                Source::Packed(at) => {
                    (at.wrapping_add(start_real * block.depth), (end - start) * L::LANES, false)
                }
            };
            // SAFETY: the groups of rows, and their sums from the panel's first column on; `last` lanes of the panel's last
            // vector exist.
            unsafe {
                let at = block.out.at.add(group * L::ROWS * block.out.stride + start_real);
                let micro = Micro::<L> {
                    depth: block.depth,
                    a: a.add(group * a_group),
                    a_group,
                    a_row,
                    a_step,
                    parts: T::PARTS,
                    b,
                    b_row,
                    groups,
                    rows,
                    last,
                    out: Out { at, ..block.out },
                };
                match (end - start, cut) {
                    (1, false) => micro.by_rows::<1, false>(),
                    (2, false) => micro.by_rows::<2, false>(),
                    (_, false) => micro.by_rows::<WIDE, false>(),
                    (1, true) => micro.by_rows::<1, true>(),
                    (2, true) => micro.by_rows::<2, true>(),
                    (_, true) => micro.by_rows::<WIDE, true>(),
                }
            }
        };
        let (whole, rest) = (block.rows / Self::MICRO, block.rows % Self::MICRO * T::PARTS);
        if let Source::Packed(_) = block.b {
            // A panel stays in first-level cache while all rows pass it.
            for panel in 0..panels.panels {
                if whole > 0 {
                    pass(panel, 0, whole, L::ROWS);
                }
                if rest > 0 {
                    pass(panel, whole, 1, rest);
                }
            }
            return;
        }
        // Rows of a stored panel compete for the same lines, so that those of `a` are what stays.
        for group in 0..whole {
            (0..panels.panels).for_each(|panel| pass(panel, group, 1, L::ROWS));
        }
        if rest > 0 {
            (0..panels.panels).for_each(|panel| pass(panel, whole, 1, rest));
        }
    }

    #[inline(always)]
    unsafe fn finish(part: &Finished<'_, T, T::Real>) {
        // SAFETY: the caller's promise.
        unsafe { finish::<T, L>(part) }
    }
}

/// Puts the parts of complex sums together, applies the factors, and stores.
///
/// # Safety
/// As for [`Engine::finish`]; the CPU has the level.
#[inline(always)]
pub(super) unsafe fn finish<T: Number, L: Lanes<Real = T::Real>>(part: &Finished<'_, T, T::Real>) {
    let (alpha, beta) = (part.scalars.alpha, part.scalars.beta);
    let whole = if T::PARTS == 1 { part.cols - part.cols % L::LANES } else { 0 };
    for i in 0..part.rows {
        // SAFETY: each row of `c` has `PARTS` rows of sums, and a column as many of them. An element is read only where
        // `beta` asks for it.
        unsafe {
            let (sums, c) = (part.sums.add(i * T::PARTS * part.stride), part.c.add(i * part.c_rs));
            let (by, by_old) = (L::splat(T::in_place(alpha)), L::splat(T::in_place(beta)));
            for j in (0..whole).step_by(L::LANES) {
                let at = c.add(j).cast::<T::Part>();
                let sum = L::mul(by, L::load(sums.add(j)));
                let total =
                    if T::is_zero(beta) { sum } else { L::mul_add(by_old, T::Part::widen::<L>(at), sum) };
                T::Part::narrow::<L>(total, at);
            }
            let last = T::PARTS - 1;
            for j in whole..part.cols {
                let at = sums.add(j * T::PARTS);
                let sum = [at, at.add(last * part.stride)].map(|at| [*at, *at.add(last)]);
                let old = if T::is_zero(beta) { T::zero() } else { c.add(j).read() };
                c.add(j).write(T::finish(sum, part.conj, alpha, beta, old));
            }
        }
    }
}

impl<T: Number, L: Lanes<Real = T::Real>> Vectors<T, L> {
    /// A panel of whole vectors of a `b` whose rows are contiguous.
    ///
    /// # Safety
    /// The vectors are readable in each of `len` rows `step` apart, and writable for each; the CPU has the level.
    #[inline(always)]
    unsafe fn pack_vectors<const VECTORS: usize>(
        at: *const T::Part,
        step: usize,
        to: *mut T::Real,
        len: usize,
    ) {
        for p in 0..len {
            for j in 0..VECTORS {
                // SAFETY: a vector of row `p`.
                unsafe {
                    let v = T::Part::widen::<L>(at.add(p * step + j * L::LANES));
                    L::store(to.add((p * VECTORS + j) * L::LANES), v);
                }
            }
        }
    }

    /// The same for any panel: columns that do not exist become zeros.
    ///
    /// # Safety
    /// As for [`Self::pack_vectors`], of `inside` reals to be read and `wide` to be written of each row.
    #[inline(always)]
    unsafe fn pack_rows(
        at: *const T::Part,
        step: usize,
        to: *mut T::Real,
        wide: usize,
        inside: usize,
        len: usize,
    ) {
        for p in 0..len {
            // SAFETY: row `p`.
            unsafe {
                Self::copy(at.add(p * step), to.add(p * wide), inside);
                for i in inside..wide {
                    to.add(p * wide + i).write(T::Real::ZERO);
                }
            }
        }
    }

    /// A panel of a `b` whose columns are contiguous: squares are transposed in registers.
    ///
    /// # Safety
    /// As for [`Self::pack_rows`]; `at` is the first number of the panel.
    #[inline(always)]
    unsafe fn pack_columns(
        at: *const T,
        slab: &Slab<'_, T>,
        to: *mut T::Real,
        wide: usize,
        inside: usize,
        len: usize,
    ) {
        let (lanes, parts) = (L::LANES, T::PARTS);
        let squares = if parts == 1 { len - len % lanes } else { 0 };
        for col in (0..wide).step_by(lanes) {
            let cols = lanes.min(inside.saturating_sub(col));
            for p in (0..squares).step_by(lanes) {
                // SAFETY: as many numbers from depth `p` on of each of `cols` columns; a square of the panel.
                unsafe {
                    let mut v = [L::splat(T::Real::ZERO); MOST];
                    for (i, v) in v.iter_mut().enumerate().take(cols) {
                        *v = T::Part::widen::<L>(at.add((col + i) * slab.line + p).cast());
                    }
                    for (i, v) in transposed::<L>(v).into_iter().enumerate().take(lanes) {
                        L::store(to.add((p + i) * wide + col), v);
                    }
                }
            }
            for p in squares..len {
                for i in 0..lanes {
                    // SAFETY: column `col + i`, where there is one; its real or its imaginary part.
                    unsafe {
                        let real = col + i;
                        let from =
                            at.wrapping_add(real / parts * slab.line + p * slab.step).cast::<T::Part>();
                        let x = if i < cols { from.add(real % parts).read().load() } else { T::Real::ZERO };
                        to.add(p * wide + real).write(x);
                    }
                }
            }
        }
    }
}

/// Transposes a square: interleaving row `i` with row `i + LANES / 2` halves the distance of what belongs together.
///
/// # Safety
/// The CPU has the level.
#[inline(always)]
pub(super) unsafe fn transposed<L: Lanes>(mut rows: [L::V; MOST]) -> [L::V; MOST] {
    for _ in 0..L::LANES.ilog2() {
        let mut next = rows;
        for i in 0..L::LANES / 2 {
            // SAFETY: the caller's promise.
            (next[2 * i], next[2 * i + 1]) = unsafe { L::zip(rows[i], rows[i + L::LANES / 2]) };
        }
        rows = next;
    }
    rows
}

/// Groups of a few rows times a panel.
struct Micro<L: Lanes> {
    depth: usize,
    a: *const L::Real,
    /// Reals between groups.
    a_group: usize,
    /// Reals between numbers of neighbouring rows, whose parts lie next to each other.
    a_row: usize,
    a_step: usize,
    /// Rows of sums that a number makes.
    parts: usize,
    b: *const L::Real,
    b_row: usize,
    groups: usize,
    /// Rows of sums of each group: [`Lanes::ROWS`], unless there is one group only.
    rows: usize,
    /// Lanes of the last vector of sums that exist.
    last: usize,
    out: Out<L::Real>,
}

impl<L: Lanes> Micro<L> {
    /// With `CUT`, the last vector of `b` is read in part, which takes longer.
    ///
    /// # Safety
    /// The CPU has the level; the factors are readable, and the sums readable and writable.
    #[inline(always)]
    unsafe fn by_rows<const VECTORS: usize, const CUT: bool>(self) {
        // Functions of their own: they are the same for every number that is computed in these vectors.
        // SAFETY: the caller's promise.
        unsafe {
            if L::ROWS == 8 && self.rows > 4 {
                L::run(Rows::<L, 8, VECTORS, CUT>(self));
            } else if self.rows > 2 {
                L::run(Rows::<L, 4, VECTORS, CUT>(self));
            } else if self.rows == 2 {
                L::run(Rows::<L, 2, VECTORS, CUT>(self));
            } else {
                L::run(Rows::<L, 1, VECTORS, CUT>(self));
            }
        }
    }
}

/// The inner loop for at most `M` rows. Made only in [`Micro::by_rows`], under its promise.
struct Rows<L: Lanes, const M: usize, const VECTORS: usize, const CUT: bool>(Micro<L>);

impl<L: Lanes, const M: usize, const VECTORS: usize, const CUT: bool> Body for Rows<L, M, VECTORS, CUT> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Micro { depth, a, a_group, a_row, a_step, parts, b, b_row, groups, rows, last, out, .. } = self.0;
        // Rows that do not exist compute with one that does, for nothing.
        let row = |i: usize| i.min(rows - 1);
        // One part, or two.
        let (shift, odd) = (parts - 1, parts - 1);
        let offsets: [usize; M] = std::array::from_fn(|i| (row(i) >> shift) * a_row + (row(i) & odd));
        for group in 0..groups {
            // SAFETY: rows of `a` of the group below `rows`, and the vectors of `b` of each step, as promised.
            unsafe {
                let mut a = a.add(group * a_group);
                let mut b = b;
                let out = Out { at: out.at.add(group * M * out.stride), ..out };
                for i in 0..if depth >= FAR { M } else { 0 } {
                    for j in 0..VECTORS {
                        prefetch(out.at.wrapping_add(row(i) * out.stride + j * L::LANES));
                    }
                }
                let mut sums = [[L::splat(L::Real::ZERO); VECTORS]; M];
                // Not unrolled: reading `b` ahead of several steps would take registers from the sums.
                for _ in 0..depth {
                    step::<L, M, VECTORS, CUT>(&mut sums, a, &offsets, b, last);
                    a = a.wrapping_add(a_step);
                    b = b.wrapping_add(b_row);
                }
                self.write(&sums, out);
            }
        }
    }
}

/// One step along the depth.
///
/// # Safety
/// The CPU has the level; `a` is readable at each offset, and the vectors of `b`, with `CUT` `last` lanes of
/// the last one.
#[inline(always)]
unsafe fn step<L: Lanes, const M: usize, const VECTORS: usize, const CUT: bool>(
    sums: &mut [[L::V; VECTORS]; M],
    a: *const L::Real,
    offsets: &[usize; M],
    b: *const L::Real,
    last: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut v = [L::splat(L::Real::ZERO); VECTORS];
        for (j, v) in v.iter_mut().enumerate() {
            let from = b.add(j * L::LANES);
            *v = if CUT && j == VECTORS - 1 { L::load_part(from, last) } else { L::load(from) };
        }
        for i in 0..M {
            let x = L::splat(*a.add(offsets[i]));
            for j in 0..VECTORS {
                sums[i][j] = L::mul_add(x, v[j], sums[i][j]);
            }
        }
    }
}

impl<L: Lanes, const M: usize, const VECTORS: usize, const CUT: bool> Rows<L, M, VECTORS, CUT> {
    /// # Safety
    /// As for [`Micro::by_rows`].
    #[inline(always)]
    unsafe fn write(&self, sums: &[[L::V; VECTORS]; M], out: Out<L::Real>) {
        let Micro { rows, last, .. } = self.0;
        // SAFETY: as promised. What is added to is not read where its factor is zero.
        unsafe {
            let (alpha, beta) = (L::splat(out.alpha), L::splat(out.beta));
            for (i, sums) in sums.iter().enumerate() {
                if i >= rows {
                    break;
                }
                for (j, &sum) in sums.iter().enumerate() {
                    let at = out.at.add(i * out.stride + j * L::LANES);
                    let sum = L::mul(alpha, sum);
                    let whole = j < VECTORS - 1 || last == L::LANES;
                    match (whole, out.beta.is_zero()) {
                        (true, true) => L::store(at, sum),
                        (true, false) => L::store(at, L::mul_add(beta, L::load(at), sum)),
                        (false, true) => L::store_part(at, last, sum),
                        (false, false) => {
                            L::store_part(at, last, L::mul_add(beta, L::load_part(at, last), sum))
                        }
                    }
                }
            }
        }
    }
}

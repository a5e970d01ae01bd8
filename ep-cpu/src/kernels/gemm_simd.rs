//! Products of floating-point and complex matrices on vector registers.
//!
//! The inner loop keeps the sums of a few rows times three vectors of columns in registers; each step of the depth
//! reads the three vectors of `b` and one number of each row of `a`. A complex number is two rows of `a` and two
//! columns of `b`: multiplying all combinations gives the four products that a complex one consists of, and they
//! are put together at the end.

use crate::isa::{Body, Isa, Level};
use crate::kernels::elem::{Complex, Storage};
use crate::kernels::gemm::{Element, Problem};
use crate::kernels::gemm_block::{self as block, Block, Engine, Out, Part as Finished, Slab, Source};
use crate::kernels::gemm_lanes::{Lanes, Part, Real};
use crate::kernels::gemm_micro::{FAR, Micro};
use crate::kernels::gemm_plan::Limits;
use crate::kernels::gemm_stored::PAGE;
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
pub(super) struct Vectors<T, L>(PhantomData<(T, L)>);

impl<T, L> Clone for Vectors<T, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, L> Copy for Vectors<T, L> {}

/// Columns of a panel of `b`, in vectors.
pub(super) const WIDE: usize = 3;

/// Panels of `b`: as few as possible, and about as wide as each other.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    /// Vectors in all.
    vectors: usize,
    pub(super) panels: usize,
}

impl Panels {
    #[inline(always)]
    pub(super) fn new(reals: usize, lanes: usize) -> Panels {
        let vectors = reals.div_ceil(lanes);
        Panels { vectors, panels: vectors.div_ceil(WIDE) }
    }

    /// The first vector of a panel; for the number of panels, the number of vectors.
    #[inline(always)]
    pub(super) fn first(self, panel: usize) -> usize {
        match panel {
            0 => 0,
            _ if panel == self.panels => self.vectors,
            _ => self.vectors * panel / self.panels,
        }
    }
}

impl<T: Number, L: Lanes<Real = T::Real>> Vectors<T, L> {
    /// Complex rows, or plain ones, whose sums are computed at a time.
    pub(super) const MICRO: usize = L::ROWS / T::PARTS;
    /// Rows of a packed block of `a`, as reals, that take half of second-level cache: the panels of `b` pass through the rest.
    const HALF: usize = L::CACHE / 2 / (L::DEPTH * size_of::<T::Real>());

    /// Whether a `b` stays in cache where it is.
    #[inline(always)]
    fn is_small(n: usize, k: usize) -> bool {
        n.saturating_mul(k).saturating_mul(size_of::<T>()) <= 64 << 10
    }
}

impl<T: Number, L: Lanes<Real = T::Real>> Engine for Vectors<T, L> {
    type Number = T;
    type Packed = T::Real;
    type Sum = T::Real;
    const ROWS: usize = if Self::HALF < 128 { Self::HALF } else { 128 } / T::PARTS;
    const IN_PLACE: bool = T::IN_PLACE;
    const READS_STORED: bool = T::IN_PLACE || T::PARTS == 2;
    const TASK: usize = 1 << 20;
    const SHARES: bool = true;
    const FINISHES: bool = false;
    const ZERO: T::Real = T::Real::ZERO;
    const ONE: T::Real = T::Real::ONE;

    fn limits(m: usize, _: usize, reads_a: bool, few: bool) -> Limits {
        let unit = WIDE * L::LANES / T::PARTS;
        let (depth, cols) = match (m <= 32, reads_a) {
            // Nothing of `b` is packed, and the sums stay in second-level cache from block to block along the depth.
            _ if few => (L::DEPTH, L::CACHE / 2 / size_of::<T::Real>() / m.max(1)),
            // Few uses: `b` is best read in long stretches.
            (true, _) => (128, 4096 / size_of::<T::Real>()),
            // Fewer and deeper blocks, as `a` is packed again for each in the same columns.
            (_, false) => {
                // Where `b` is asked for ahead of time third-level cache may hold a block: 512 deep it has 2 to 4 MB.
                let cols = match T::IN_PLACE && L::PACKED {
                    true => 1056 * (512 / L::DEPTH),
                    false => 2112 / size_of::<T::Real>(),
                };
                (L::DEPTH, cols)
            }
            (_, true) => ((2048 / size_of::<T::Real>()).min(L::DEPTH), 480),
        };
        let (cols, rows, narrow) = (cols / T::PARTS, 1024 / T::PARTS, usize::MAX);
        Limits { depth, blocks: 1, cols, unit, vector: unit / WIDE, narrow, rows }
    }

    #[inline(always)]
    fn packed_a(depth: usize) -> usize {
        Self::ROWS * T::PARTS * depth
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
    fn reads_b(m: usize, n: usize, k: usize, rows_contiguous: bool) -> bool {
        let whole = L::MASKS || (n * T::PARTS).is_multiple_of(L::LANES);
        rows_contiguous && whole && (Self::is_small(n, k) || Self::few(m, n, k))
    }

    #[inline]
    fn few(m: usize, n: usize, k: usize) -> bool {
        if !T::IN_PLACE || m > L::FEW_ROWS || Self::is_small(n, k) {
            return false;
        }
        // Many rows that are pages apart compete for the same lines of cache, from group to group of the rows of `a`.
        let apart = k > 256 && n.saturating_mul(size_of::<T>()).is_multiple_of(PAGE);
        // `a` is packed for several panels.
        n > 2 * WIDE * L::LANES && m <= if apart { L::FEW_ROWS / 2 } else { L::FEW_ROWS }
    }

    #[inline]
    fn reads_a(m: usize, n: usize, k: usize, rows_contiguous: bool) -> bool {
        let bytes = m.saturating_mul(k).saturating_mul(size_of::<T>());
        // Rows that far apart compete for the same lines of second-level cache.
        let apart = k.saturating_mul(size_of::<T>()).is_multiple_of(8192);
        let most = match (rows_contiguous, apart) {
            (true, false) => L::NEAR_ROWS,
            (true, true) => L::NEAR_ROWS / 2,
            // Columns, of which a group reads a few rows, take their lines several times.
            (false, _) => L::NEAR_ROWS.min(64 << 10),
        };
        let packs = L::PACKED || apart;
        bytes <= most || rows_contiguous && (!packs || n * T::PARTS <= 2 * WIDE * L::LANES)
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

    #[inline(always)]
    unsafe fn run_packing<B: Body>(body: B) -> B::Out {
        // SAFETY: the caller's promise.
        unsafe { L::run(body) }
    }

    #[inline(always)]
    unsafe fn pack_a(slab: &Slab<'_, T>, out: *mut T::Real) {
        // SAFETY: the caller's promise.
        unsafe { Self::pack_left(slab, out) }
    }

    #[inline(always)]
    unsafe fn pack_b(slab: &Slab<'_, T>, out: *mut T::Real) {
        // SAFETY: the caller's promise.
        unsafe { Self::pack_right(slab, out) }
    }

    #[inline(always)]
    unsafe fn multiply(block: &Block<'_, Self>) {
        let reals = block.cols * T::PARTS;
        let panels = Panels::new(reals, L::LANES);
        // Between groups of rows, between rows, and between neighbours along the depth.
        let (a, a_group, a_row, a_step) = match block.a {
            Source::Stored { at, line, step } => {
                (at.cast(), Self::MICRO * line * T::PARTS, line * T::PARTS, step * T::PARTS)
            }
            Source::Packed(at) => (at, L::ROWS * block.depth, T::PARTS, L::ROWS),
        };
        let far = matches!(block.b, Source::Packed(_))
            && Self::packed_b(block.cols, block.depth) * size_of::<T::Real>() > L::CACHE;
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
                    ahead: block.ahead && panel == 0 && matches!(block.a, Source::Stored { .. }),
                    ahead_sums: block.ahead && block.depth < FAR,
                    ahead_panel: (far || block.few) && panel + 1 < panels.panels,
                    few: block.few,
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
        // A panel stays in first-level cache while all rows pass it.
        for panel in 0..panels.panels {
            if whole > 0 {
                pass(panel, 0, whole, L::ROWS);
            }
            if rest > 0 {
                pass(panel, whole, 1, rest);
            }
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

//! Products of f32, f16 and complex64 on the tiles of AMX, which multiply numbers of bf16 and add up in f32.
//!
//! A number is the sum of [parts](super::gemm_split_pack) in bf16, whose products f32 holds exactly. Those of f16 are all added up. Of the
//! nine of f32 three are left out, together at most 2^-24 of the product: as much as rounding it once. Tiles have sixteen times the speed
//! of vectors, of which six or four multiplications leave more than twice, and what there is around them somewhat less.
//!
//! The tiles read subnormal numbers as 0 and make none, and infinities have no parts. So factors are looked through first,
//! and products in which either could happen are left to [`gemm_simd`](super::gemm_simd).

use crate::isa::{self, Body, Isa};
use crate::kernels::amx::{SetUp, has_tiles};
use crate::kernels::gemm::{Loop, Problem, count};
use crate::kernels::gemm_block::{self as block, Block, Engine, Part, Slab, Source};
use crate::kernels::gemm_lanes::Real;
use crate::kernels::gemm_plan::Limits;
use crate::kernels::gemm_simd::{self as simd, finish};
use crate::kernels::gemm_split_pack::{Split, pack_a, pack_b};
use crate::kernels::gemm_split_piece::{Late, PIECE, Piece, SIDE};
use crate::kernels::gemm_split_range::{Numbers, spans};
use crate::kernels::parts;
use ep_core::Result;
use ep_core::parallel::Parallel;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Rows and columns of reals and depth at least, and multiply-adds of reals in a matrix. Few uses of a number are not worth taking it apart, and a
/// few steps take as long as storing what they add up to.
const LEAST: usize = if cfg!(test) { 16 } else { 128 };
const LEAST_WORK: usize = if cfg!(test) { 1 << 14 } else { 1 << 24 };

/// Solves a problem, on tiles if the CPU has some, the product is large enough and its numbers allow it.
///
/// # Errors
/// As for [`block::multiply`].
///
/// # Safety
/// As for [`Element::multiply`](crate::kernels::gemm::Element::multiply).
pub(super) unsafe fn multiply<T: Split>(
    isa: Isa,
    par: &dyn Parallel,
    problem: &Problem<'_, T>,
    alpha: T::Scalar,
    beta: T::Scalar,
) -> Result<()> {
    // SAFETY: the caller's promise; there are tiles, and with them AVX-512.
    unsafe {
        if pays(problem) && has_tiles(isa) && is_exact(isa, par, problem)? {
            block::multiply::<InParts<T>>(par, problem, alpha, beta)
        } else {
            simd::multiply(isa, par, problem, alpha, beta)
        }
    }
}

/// Whether a product is large enough. Where several are added up each takes whole steps, as packing asks for.
fn pays<T: Split>(p: &Problem<'_, T>) -> bool {
    let (m, n) = (p.m.saturating_mul(T::REALS), p.n.saturating_mul(T::REALS));
    parts::are_taken(T::COUNT)
        && m.min(n).min(p.k) >= LEAST
        && m.saturating_mul(n).saturating_mul(p.k) >= LEAST_WORK
        && (p.inner.is_empty() || p.k.is_multiple_of(SIDE))
}

/// Whether no product of parts, and no sum of such, is subnormal or overflows where the product itself does not.
///
/// # Errors
/// Those of `par`.
///
/// # Safety
/// As for [`multiply`], at a level with AVX-512.
unsafe fn is_exact<T: Split>(isa: Isa, par: &dyn Parallel, p: &Problem<'_, T>) -> Result<bool> {
    // Only loops that move a factor.
    let loops = |step: fn(&Loop) -> usize| -> Vec<Loop> {
        let all = p.outer.iter().chain(p.inner);
        all.filter(|l| step(l) > 0).map(|l| Loop { a: step(l), ..*l }).collect()
    };
    // SAFETY: the caller's promise.
    let [a, b] = unsafe {
        spans(
            isa,
            par,
            [
                Numbers { factor: p.a, rows: p.m, cols: p.k, loops: &loops(|l| l.a) },
                Numbers { factor: p.b, rows: p.k, cols: p.n, loops: &loops(|l| l.b) },
            ],
        )?
    };
    let ([least_a, most_a], [least_b, most_b]) = (a.exponents(), b.exponents());
    // The last bit of a number is 2^-23 of its first, and all sums are multiples of the product of two such bits.
    let normal = least_a.min(least_b) - 23 >= f32::MIN_EXP - 1
        && least_a.saturating_add(least_b) - 46 >= f32::MIN_EXP - 1;
    // Less than 2^(exponent + 1) each, which rounding may reach.
    let terms = (p.k * T::REALS).saturating_mul(count(p.inner));
    let finite = most_a + most_b + 2 + (terms.ilog2() as i32 + 1) < f32::MAX_EXP - 1
        && most_a.max(most_b) < f32::MAX_EXP - 1;
    Ok(normal && finite)
}

/// Sums of a piece.
#[repr(align(64))]
struct Lines {
    _sums: [f32; PIECE],
}

/// Products of numbers in parts.
struct InParts<T>(PhantomData<T>);

impl<T> Clone for InParts<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for InParts<T> {}

impl<T: Split> Engine for InParts<T> {
    type Number = T;
    type Packed = u16;
    type Sum = f32;
    const ROWS: usize = 128 / T::REALS;
    const IN_PLACE: bool = T::IN_PLACE;
    const READS_STORED: bool = false;
    const TASK: usize = 1 << 21;
    const SHARES: bool = true;
    const SHARED_ROWS: usize = Self::ROWS;
    const ROW_UNIT: usize = SIDE / T::REALS;
    const FINISHES: bool = false;
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;

    fn limits(_: usize, total: usize, _: bool, _: bool) -> Limits {
        const DEPTH: usize = 512;
        // Rows of `a` stay in second-level cache, and panels of `b` come from the third.
        let blocks = if T::IN_PLACE { 1 } else { total.div_ceil(DEPTH).clamp(1, 4) };
        let (cols, unit, rows) = (2048 / blocks / T::REALS, SIDE / T::REALS, 1024 / T::REALS);
        Limits { depth: DEPTH, blocks, cols, unit, vector: unit, narrow: usize::MAX, rows }
    }

    #[inline(always)]
    fn packed_a(depth: usize) -> usize {
        Self::ROWS * T::REALS * depth.next_multiple_of(SIDE) * T::COUNT
    }

    #[inline(always)]
    fn packed_b(cols: usize, depth: usize) -> usize {
        (cols * T::REALS).next_multiple_of(SIDE) * depth.next_multiple_of(SIDE) * T::COUNT
    }

    #[inline(always)]
    fn sums(cols: usize) -> (usize, usize) {
        ((cols * T::REALS).next_multiple_of(SIDE), T::REALS)
    }

    fn reads_b(_: usize, _: usize, _: usize, _: bool) -> bool {
        false
    }

    fn reads_a(_: usize, _: usize, _: usize, _: bool) -> bool {
        false
    }

    fn in_place(scalar: T::Scalar) -> f32 {
        T::in_place(scalar)
    }

    #[inline(always)]
    unsafe fn run<B: Body>(body: B) -> B::Out {
        // SAFETY: the caller's promise: the CPU has tiles, and with them AVX-512.
        unsafe {
            let _tiles = SetUp::new();
            isa::run_avx512(body)
        }
    }

    #[inline(always)]
    unsafe fn run_packing<B: Body>(body: B) -> B::Out {
        // SAFETY: the caller's promise: tiles come with AVX-512.
        unsafe { isa::run_avx512(body) }
    }

    #[inline(always)]
    unsafe fn pack_a(slab: &Slab<'_, T>, out: *mut u16) {
        // SAFETY: the caller's promise; see `pays` for where stretches begin.
        unsafe { pack_a(slab, out) };
    }

    #[inline(always)]
    unsafe fn pack_b(slab: &Slab<'_, T>, out: *mut u16) {
        // SAFETY: the caller's promise; see `pays` for where stretches begin.
        unsafe { pack_b(slab, out) };
    }

    #[inline(always)]
    unsafe fn multiply(block: &Block<'_, Self>) {
        let (Source::Packed(a), Source::Packed(b)) = (block.a, block.b) else {
            unreachable!("numbers in parts are packed")
        };
        let steps = block.depth.div_ceil(SIDE);
        let piece = steps * PIECE * T::COUNT;
        let (rows, cols, out) = (block.rows * T::REALS, block.cols * T::REALS, block.out);
        // Each group of rows asks for half of its part of the next panel, and hardware sees what it is about.
        let part = PIECE * T::COUNT / rows.div_ceil(SIDE);
        let mut sums = MaybeUninit::<[Lines; 2]>::uninit();
        let sums = sums.as_mut_ptr().cast::<f32>();
        let mut late = Late::NONE;
        let mut place = 0;
        for col in (0..cols).step_by(SIDE) {
            for row in (0..rows).step_by(SIDE) {
                // SAFETY: a group of rows, a panel, and where their sums belong.
                unsafe {
                    let piece = Piece {
                        a: a.add(row / SIDE * piece),
                        b: b.add(col / SIDE * piece),
                        steps,
                        sums: sums.add(place * PIECE),
                        next: b.wrapping_add((col / SIDE + 1) * piece + row / SIDE * part * steps),
                        next_bytes: part * size_of::<u16>(),
                    };
                    piece.multiply::<T>(&late);
                    late = Late {
                        sums: piece.sums,
                        to: out.at.add(row * out.stride + col),
                        stride: out.stride,
                        rows: SIDE.min(rows - row),
                        cols: SIDE.min(cols - col),
                        alpha: out.alpha,
                        beta: out.beta,
                    };
                }
                place = 1 - place;
            }
        }
        // SAFETY: the last piece.
        unsafe { late.finish(0) };
    }

    #[inline(always)]
    unsafe fn finish(part: &Part<'_, T, f32>) {
        // SAFETY: the caller's promise.
        unsafe { finish::<T, <f32 as Real>::Avx512>(part) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Level;
    use crate::kernels::amx::tiles_in_use;
    use crate::kernels::batch_matmul::{self, BatchMatmulArgs};
    use crate::kernels::gemm_split_range::Span;
    use crate::kernels::matmul::{self, MatmulArgs, problem};
    use crate::kernels::testing::{BetweenPages, Rng, Threads, between_pages, decode, encode};
    use ep_core::DType;
    use ep_core::parallel::Serial;
    use half::f16;

    fn amx() -> Option<Isa> {
        Isa::new(Level::Amx).ok().filter(|&isa| has_tiles(isa))
    }

    fn avx512() -> Isa {
        Isa::new(Level::Avx512).unwrap()
    }

    /// A product of matrices of f32 in a batch: what is stored, and how.
    struct Case {
        sizes: [usize; 3],
        batch: usize,
        trans: [bool; 2],
        a: Vec<f32>,
        b: Vec<f32>,
        c: Vec<f32>,
        factors: [f32; 2],
    }

    impl Case {
        fn new(sizes: [usize; 3], mut number: impl FnMut() -> f32) -> Case {
            let [m, n, k] = sizes;
            let mut numbers = |count: usize| (0..count).map(|_| number()).collect::<Vec<_>>();
            let [a, b, c] = [m * k, k * n, m * n].map(&mut numbers);
            Case { sizes, batch: 1, trans: [false; 2], a, b, c, factors: [1.0, 0.0] }
        }

        fn args(&self, c: &mut [f32]) -> MatmulArgs {
            let ([m, n, k], [trans_a, trans_b]) = (self.sizes, self.trans);
            let [alpha, beta] = self.factors.map(|x| (f64::from(x), 0.0));
            let (a, b) = (self.a.as_ptr().cast(), self.b.as_ptr().cast());
            MatmulArgs { m, n, k, trans_a, trans_b, alpha, a, b, beta, c: c.as_mut_ptr().cast() }
        }

        fn run(&self, isa: Isa, par: &dyn Parallel) -> Vec<f32> {
            let mut c = self.c.clone();
            let each = self.args(&mut c);
            let args = BatchMatmulArgs { batch: self.batch, each };
            let kernel = batch_matmul::lookup(DType::F32).unwrap();
            // SAFETY: the vectors have the matrices of the batch.
            unsafe { kernel(isa, par, &args).unwrap() };
            c
        }

        fn is_split(&self, isa: Isa) -> bool {
            let mut c = self.c.clone();
            let args = self.args(&mut c);
            let problem = problem::<f32>(&args, &[]);
            // SAFETY: the matrices are readable.
            pays(&problem) && unsafe { is_exact(isa, &Serial, &problem).unwrap() }
        }

        /// The largest error, in 2^-24 of the sum of the magnitudes of all products.
        fn error(&self, got: &[f32]) -> f64 {
            let [m, n, k] = self.sizes;
            let mut worst = 0.0_f64;
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let terms = (0..k).map(|p| {
                    let a = if self.trans[0] { p * m + i } else { i * k + p };
                    let b = if self.trans[1] { j * k + p } else { p * n + j };
                    f64::from(self.a[a]) * f64::from(self.b[b])
                });
                let (sum, all) = terms.fold((0.0, 0.0), |(sum, all), x| (sum + x, all + x.abs()));
                worst = worst.max((f64::from(got[i * n + j]) - sum).abs() / (all * 2_f64.powi(-24)));
            }
            worst
        }
    }

    /// Sums of integers whose magnitudes are together well below 2^24 are exact in every order: a place that is packed, added up or stored
    /// wrongly shows.
    #[test]
    fn products_of_integers_are_exact() {
        let Some(isa) = amx() else { return };
        let mut rng = Rng::new();
        let shapes = [
            [32, 32, 32],
            [33, 31, 33],
            [64, 65, 31],
            [129, 70, 64],
            [16, 100, 40],
            [131, 33, 530],
            [40, 290, 1100],
            [260, 48, 70],
            [300, 200, 96],
        ];
        for (number, sizes) in shapes.into_iter().enumerate() {
            for trans in 0..4 {
                let mut case = Case::new(sizes, || (rng.next() % 15) as f32 - 7.0);
                case.trans = [trans & 1 > 0, trans & 2 > 0];
                // In each sum two numbers of 19 bits, which are three parts, of one factor or the other.
                let [m, n, k] = sizes;
                for p in [k / 3, k - 1] {
                    let large = (1 << 18) + 1 + (rng.next() % 0x1_ffff) as i32 * 2;
                    match number % 2 {
                        0 => (0..m).for_each(|i| {
                            case.a[if case.trans[0] { p * m + i } else { i * k + p }] = large as f32
                        }),
                        _ => (0..n).for_each(|j| {
                            case.b[if case.trans[1] { j * k + p } else { p * n + j }] = large as f32
                        }),
                    }
                }
                case.factors = [[1.0, 0.0], [1.0, 1.0], [-2.0, 0.0], [0.5, -3.0]][(number + trans) % 4];
                if case.factors[1] == 0.0 {
                    case.c.fill(f32::NAN);
                }
                assert!(case.is_split(isa), "{sizes:?}");
                for threads in [1, 3] {
                    let (got, want) = (case.run(isa, &Threads(threads)), case.run(avx512(), &Serial));
                    let differs = got.iter().zip(&want).position(|(x, y)| x != y);
                    assert_eq!(differs, None, "{sizes:?} {trans} {:?} by {threads}", case.factors);
                }
            }
        }
    }

    /// Between inaccessible pages: of every dtype, stored in every way, the same as in vectors.
    #[test]
    fn nothing_is_touched_outside_of_the_matrices() {
        let Some(isa) = amx() else { return };
        let mut rng = Rng::new();
        let shapes = [[33, 35, 37], [64, 32, 31], [129, 18, 66], [17, 70, 515]];
        let dtypes = [DType::F32, DType::F16, DType::COMPLEX64];
        for (dtype, [m, n, k]) in dtypes.into_iter().flat_map(|d| shapes.map(|s| (d, s))) {
            let complex = dtype == DType::COMPLEX64;
            for (trans, at_end) in (0..4).flat_map(|t| [(t, false), (t, true)]) {
                let operands = [m * k, k * n, m * n].map(|count| {
                    let numbers =
                        (0..count * (1 + usize::from(complex))).map(|_| (rng.next() % 31) as f64 - 15.0);
                    encode(dtype, &numbers.collect::<Vec<_>>())
                });
                let pages = operands.each_ref().map(|bytes| between_pages(bytes.len(), at_end));
                let run = |isa| {
                    for (pages, bytes) in pages.iter().zip(&operands) {
                        // SAFETY: the pages have room for these bytes.
                        unsafe { pages.ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                    }
                    let [a, b, c] = pages.each_ref().map(BetweenPages::ptr);
                    let (alpha, beta) = ((1.0, 0.0), ([0.0, 1.0, 0.0, -2.0][trans], 0.0));
                    let [trans_a, trans_b] = [trans & 1 > 0, trans & 2 > 0];
                    let args = MatmulArgs { m, n, k, trans_a, trans_b, alpha, a, b, beta, c };
                    // SAFETY: the matrices are between the pages.
                    unsafe {
                        matmul::lookup(dtype).unwrap()(isa, &Threads(2), &args).unwrap();
                        std::slice::from_raw_parts(c, operands[2].len()).to_vec()
                    }
                };
                assert_eq!(
                    decode(dtype, &run(isa)),
                    decode(dtype, &run(avx512())),
                    "{dtype} {m} {n} {k}, transposed {trans}, {at_end}"
                );
            }
        }
    }

    /// Two numbers of two parts each, and of one and three: of every pair of parts that is multiplied one product comes alone.
    #[test]
    fn every_product_of_parts_is_there() {
        let Some(isa) = amx() else { return };
        let (one, two, three) = (3.0, 1025.0, 262_145.0 + 512.0);
        for (x, y) in [(one, three), (two, two), (three, one), (-two, two), (three, -one)] {
            for place in 0..40 {
                let mut case = Case::new([33, 34, 40], || 0.0);
                (0..33).for_each(|i| case.a[i * 40 + place] = x);
                (0..34).for_each(|j| case.b[place * 34 + j] = y);
                assert!(case.is_split(isa));
                assert!(case.run(isa, &Serial).iter().all(|&c| c == x * y), "{x} * {y} at {place}");
            }
        }
    }

    /// Complex numbers of all bits, with factors and a conjugate, are as near as in vectors.
    #[test]
    fn complex_sums_are_as_near_as_those_of_vectors() {
        let Some(isa) = amx() else { return };
        let mut rng = Rng::new();
        let (m, n, k) = (33, 35, 300);
        let mut numbers = |count: usize| (0..2 * count).map(|_| rng.signed() as f32).collect::<Vec<_>>();
        let (a, b, old) = (numbers(m * k), numbers(k * n), numbers(m * n));
        let run = |isa| {
            let mut c = old.clone();
            let args = MatmulArgs {
                m,
                n,
                k,
                trans_a: true,
                trans_b: false,
                alpha: (0.5, -1.5),
                a: a.as_ptr().cast(),
                b: b.as_ptr().cast(),
                beta: (0.25, 2.0),
                c: c.as_mut_ptr().cast(),
            };
            // SAFETY: the vectors have the matrices.
            unsafe { matmul::lookup(DType::COMPLEX64).unwrap()(isa, &Serial, &args).unwrap() };
            c
        };
        let number = |of: &[f32], at: usize| (f64::from(of[2 * at]), f64::from(of[2 * at + 1]));
        let times = |x: (f64, f64), y: (f64, f64)| (x.0 * y.0 - x.1 * y.1, x.0 * y.1 + x.1 * y.0);
        let want: Vec<f64> = (0..m * n)
            .flat_map(|at| {
                let sum = (0..k).fold((0.0, 0.0), |sum, p| {
                    let (re, im) = number(&a, p * m + at / n);
                    let product = times((re, -im), number(&b, p * n + at % n));
                    (sum.0 + product.0, sum.1 + product.1)
                });
                let (sum, old) = (times(sum, (0.5, -1.5)), times(number(&old, at), (0.25, 2.0)));
                [sum.0 + old.0, sum.1 + old.1]
            })
            .collect();
        let error = |got: Vec<f32>| {
            let errors = got.iter().zip(&want).map(|(&x, y)| (f64::from(x) - y).abs());
            errors.fold(0.0, f64::max)
        };
        let (tiles, vectors) = (error(run(isa)), error(run(avx512())));
        assert_ne!(run(isa), run(avx512()), "tiles were not used");
        assert!(tiles <= 1.2 * vectors && tiles < 2e-5, "{tiles:e} on tiles, {vectors:e} in vectors");
    }

    /// What no sum of vectors says: with nothing to add, a zero has the sign of the factor.
    #[test]
    fn the_last_step_is_that_of_vectors() {
        let Some(isa) = amx() else { return };
        let mut rng = Rng::new();
        for [alpha, beta] in [[-1.0, 0.0], [-2.0, -0.5], [1.0, f32::NAN], [f32::INFINITY, 0.0], [3e38, 1.0]] {
            let mut case = Case::new([40, 33, 64], || (rng.next() % 31) as f32 - 15.0);
            case.a[..10 * 64].fill(0.0);
            case.factors = [alpha, beta];
            assert!(case.is_split(isa));
            let [tiles, vectors] = [isa, avx512()].map(|isa| case.run(isa, &Serial));
            for (x, y) in tiles.iter().zip(&vectors) {
                assert!(
                    x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan(),
                    "{x:e}, not {y:e}, with {alpha} and {beta}"
                );
            }
        }
    }

    #[test]
    fn batches_are_looked_through_whole() {
        let Some(isa) = amx() else { return };
        let mut rng = Rng::new();
        let [m, n, k] = [40, 50, 36];
        let mut case = Case::new([3 * m, n, k], || (rng.next() % 255) as f32 - 127.0);
        case.b = case.b.repeat(3);
        (case.sizes, case.batch) = ([m, n, k], 3);
        assert!(case.is_split(isa));
        assert_eq!(case.run(isa, &Threads(2)), case.run(avx512(), &Serial));
        // The last number of the last matrix.
        *case.b.last_mut().unwrap() = f32::INFINITY;
        let bits = |c: Vec<f32>| c.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(case.run(isa, &Threads(2))), bits(case.run(avx512(), &Serial)));
    }

    /// As near as sums in vectors, for numbers of both signs, of one, and of very different sizes.
    #[test]
    fn sums_are_as_near_as_those_of_vectors() {
        let Some(isa) = amx() else { return };
        let mut rng = Rng::new();
        for kind in 0..4 {
            let mut case = Case::new([48, 50, 700], || {
                let x = rng.signed() as f32;
                match kind {
                    0 => x,
                    1 => x.abs() + 1.0,
                    2 => x * 2_f32.powi((rng.next() % 30) as i32 - 15),
                    // One bit below what a bf16 holds, and all bits.
                    _ => f32::from_bits(0x3f80_7fff | (rng.next() as u32) << 31),
                }
            });
            case.trans = [kind % 2 > 0; 2];
            assert!(case.is_split(isa));
            let [tiles, vectors] = [isa, avx512()].map(|isa| case.error(&case.run(isa, &Serial)));
            assert!(tiles <= vectors.max(1.0), "kind {kind}: {tiles} on tiles, {vectors} in vectors");
        }
    }

    /// The three products that are left out are as often too much as too little: on average nothing is missing.
    #[test]
    fn what_is_left_out_has_no_sign() {
        let Some(isa) = amx() else { return };
        let mut rng = Rng::new();
        let case = Case::new([96, 96, 64], || 1.0 + rng.signed().abs() as f32);
        assert!(case.is_split(isa));
        let (got, [m, n, k]) = (case.run(isa, &Serial), case.sizes);
        let errors = (0..m * n).map(|at| {
            let terms = (0..k).map(|p| f64::from(case.a[at / n * k + p]) * f64::from(case.b[p * n + at % n]));
            let sum: f64 = terms.sum();
            (f64::from(got[at]) - sum) / sum
        });
        let mean = errors.sum::<f64>() / (m * n) as f64;
        assert!(mean.abs() < 2_f64.powi(-27), "{mean:e}");
    }

    /// At the edges of what tiles multiply exactly, and past them: there, bit for bit what vectors make of it.
    #[test]
    fn what_is_not_exact_in_parts_is_left_to_vectors() {
        let Some(isa) = amx() else { return };
        let mut rng = Rng::new();
        let full = |bits: u64, exponent: i32| {
            // Ones at both ends of the significand.
            let x = f32::from_bits(0x3f80_0001 | bits as u32 & 0x7f_ffff) * 2_f32.powi(exponent);
            if bits >> 60 & 1 == 0 { x } else { -x }
        };
        // Exponents of the factors; one number of `a`; whether tiles are right.
        let cases = [
            ([0, 0], None, true),
            ([-40, -40], None, true),
            ([-40, -41], None, false),
            ([-103, 50], None, true),
            ([-104, 50], None, false),
            ([100, 17], None, true),
            ([100, 19], None, false),
            ([127, -60], None, false),
            ([126, -60], None, true),
            ([0, 0], Some(f32::INFINITY), false),
            ([0, 0], Some(f32::NAN), false),
            ([0, 0], Some(f32::from_bits(1)), false),
            ([0, 0], Some(-0.0), true),
            ([0, 0], Some(f32::MAX), false),
        ];
        for (exponents, odd, splits) in cases {
            let mut case = Case::new([37, 40, 50], || 0.0);
            for (numbers, exponent) in [&mut case.a, &mut case.b].into_iter().zip(exponents) {
                numbers.iter_mut().for_each(|x| *x = full(rng.next(), exponent));
            }
            if let Some(odd) = odd {
                case.a[999] = odd;
            }
            assert_eq!(case.is_split(isa), splits, "{exponents:?} {odd:?}");
            let [tiles, vectors] = [isa, avx512()].map(|isa| case.run(isa, &Serial));
            if splits {
                assert!(case.error(&tiles) < 4.0, "{exponents:?}: {}", case.error(&tiles));
            } else {
                let bits = |c: &[f32]| c.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&tiles), bits(&vectors), "{exponents:?} {odd:?}");
            }
        }
    }

    #[test]
    fn products_of_f16_are_all_exact() {
        let Some(isa) = amx() else { return };
        let mut rng = Rng::new();
        let (m, n, k) = (33, 34, 35);
        // One product for each element of `c`: what is rounded is that alone.
        let finite = |rng: &mut Rng| loop {
            let x = f16::from_bits(rng.next() as u16);
            if x.is_finite() {
                return x;
            }
        };
        for round in 0..40 {
            let (mut a, mut b) = (vec![f16::ZERO; m * k], vec![f16::ZERO; k * n]);
            for i in 0..m {
                a[i * k + round % k] = finite(&mut rng);
            }
            for j in 0..n {
                b[round % k * n + j] = finite(&mut rng);
            }
            let mut c = vec![f16::NAN; m * n];
            let args = MatmulArgs {
                m,
                n,
                k,
                trans_a: false,
                trans_b: false,
                alpha: (1.0, 0.0),
                a: a.as_ptr().cast(),
                b: b.as_ptr().cast(),
                beta: (0.0, 0.0),
                c: c.as_mut_ptr().cast(),
            };
            let problem = problem::<f16>(&args, &[]);
            // SAFETY: the vectors have the matrices.
            unsafe {
                assert!(pays(&problem) && is_exact(isa, &Serial, &problem).unwrap());
                multiply(isa, &Serial, &problem, 1.0, 0.0).unwrap();
                assert!(!tiles_in_use());
            }
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let (x, y) = (a[i * k + round % k], b[round % k * n + j]);
                assert_eq!(c[i * n + j], f16::from_f64(x.to_f64() * y.to_f64()), "{x} * {y}");
            }
        }
    }

    #[test]
    fn spans_are_those_of_all_numbers() {
        if !crate::kernels::testing::has_avx512() {
            return;
        }
        let mut rng = Rng::new();
        for (rows, cols) in [(1, 1), (3, 15), (2, 16), (5, 63), (1, 64), (4, 65), (2, 200), (7, 1000)] {
            for trans in [false, true] {
                for place in [0, rows * cols / 2, rows * cols - 1] {
                    let mut numbers: Vec<f32> = (0..rows * cols).map(|_| rng.signed() as f32).collect();
                    numbers[rng.next() as usize % (rows * cols)] = -0.0;
                    for odd in [f32::NEG_INFINITY, 1e-40, -1e30, -1e-30, 0.0] {
                        numbers[place] = odd;
                        let (rs, cs) = if trans { (1, rows) } else { (cols, 1) };
                        let at = crate::kernels::raw::Shared::new(numbers.as_ptr().cast_mut());
                        let factor = crate::kernels::gemm::Factor { at, rs, cs, conj: false };
                        let numbers_of = || Numbers { factor, rows, cols, loops: &[] };
                        // SAFETY: the numbers are readable.
                        let got = unsafe { spans(avx512(), &Threads(2), [numbers_of(), numbers_of()]) };
                        let bits = numbers.iter().map(|x| x.abs().to_bits());
                        let want = Span {
                            least: bits.clone().filter(|&x| x > 0).min().unwrap_or(u32::MAX),
                            most: bits.max().unwrap(),
                        };
                        assert_eq!(got.unwrap(), [want; 2], "{rows} x {cols} {trans} {place} {odd}");
                    }
                }
            }
        }
    }
}

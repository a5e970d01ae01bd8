//! Products of bf16 matrices in pairs of neighbours along the depth: on the tiles of AMX, or by AVX-512's dot products of
//! such pairs. Blocks are packed alike for both.
//!
//! Of eight tiles of 1 KiB four hold the sums of 32 x 32 elements, two a piece of `a` (rows of 32 elements), two a piece
//! of `b` (columns, in pairs). One step of 32 along the depth loads four tiles and multiplies four pairs of them.
//!
//! Both units read subnormal numbers as 0, and make none.

#[cfg(not(target_arch = "x86_64"))]
pub(super) use super::gemm_dots::multiply as multiply_few;
#[cfg(not(target_arch = "x86_64"))]
pub(super) use super::gemm_simd::multiply;
#[cfg(target_arch = "x86_64")]
pub(super) use pairs::{PREPACK, multiply, multiply_few};

#[cfg(test)]
thread_local! {
    /// Whether this thread does without, so that tests see what other CPUs of a level do.
    pub(super) static LACKING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

#[cfg(target_arch = "x86_64")]
mod pairs {
    use crate::isa::{self, Body, Isa, Level};
    use crate::kernels::amx::{Config, SetUp, has_tiles};
    use crate::kernels::gemm::{self, Problem};
    use crate::kernels::gemm_bf16_pack::{PIECE, ROWS, SIDE, pack_a, pack_b, pack_rest};
    use crate::kernels::gemm_bf16_piece::{Piece, Rounding};
    use crate::kernels::gemm_block::{self as block, Block, Engine, Part, Slab, Source};
    use crate::kernels::gemm_dots::{self, OF_PAIRS, OF_PAIRS_BESIDE_TILES};
    use crate::kernels::gemm_lanes::Real;
    use crate::kernels::gemm_plan::Limits;
    use crate::kernels::gemm_prepack;
    use crate::kernels::gemm_simd::{self as simd, finish};
    use crate::kernels::matmul::{self, MatmulArgs, Prepack};
    use crate::kernels::raw::{Shared, prefetch};
    use ep_core::Result;
    use ep_core::parallel::Parallel;
    use half::bf16;
    use std::arch::x86_64::*;
    use std::mem::MaybeUninit;
    use std::ops::Range;

    fn has_dots(isa: Isa) -> bool {
        isa.level() >= Level::Avx512 && is_x86_feature_detected!("avx512bf16")
    }

    fn lacking() -> bool {
        #[cfg(test)]
        return super::LACKING.get();
        #[cfg(not(test))]
        false
    }

    /// Solves a problem, in pairs if the CPU has a unit for them.
    ///
    /// # Errors
    /// As for [`block::multiply`].
    ///
    /// # Safety
    /// As for [`Element::multiply`](crate::kernels::gemm::Element::multiply).
    pub(in crate::kernels) unsafe fn multiply(
        isa: Isa,
        par: &dyn Parallel,
        problem: &Problem<'_, bf16>,
        alpha: f32,
        beta: f32,
    ) -> Result<()> {
        // SAFETY: the caller's promise; the CPU has the unit.
        unsafe {
            if lacking() {
                simd::multiply(isa, par, problem, alpha, beta)
            } else if has_tiles(isa) {
                block::multiply::<Tiles>(par, problem, alpha, beta)
            } else if has_dots(isa) {
                block::multiply::<Dots>(par, problem, alpha, beta)
            } else {
                simd::multiply(isa, par, problem, alpha, beta)
            }
        }
    }

    /// Solves a problem of few rows by dot products, of pairs if the CPU has them. `None`, with nothing done, for others.
    ///
    /// # Safety
    /// As for [`multiply`].
    pub(in crate::kernels) unsafe fn multiply_few(
        isa: Isa,
        par: &dyn Parallel,
        problem: &Problem<'_, bf16>,
        alpha: f32,
        beta: f32,
    ) -> Option<Result<()>> {
        // SAFETY: the caller's promise; the CPU has the unit.
        unsafe {
            if !has_dots(isa) || lacking() {
                return gemm_dots::multiply(isa, par, problem, alpha, beta);
            }
            let bounds = if has_tiles(isa) { OF_PAIRS_BESIDE_TILES } else { OF_PAIRS };
            gemm_dots::multiply_pairs(par, problem, bounds, alpha, beta)
        }
    }

    /// Products by a `b` that was packed before, where the CPU has a unit for pairs.
    pub(in crate::kernels) const PREPACK: Prepack = Prepack { bytes, pack, multiply: multiply_packed };

    /// Fewer elements than a panel has are not worth it, nor are few columns or little depth, as most of a panel is padding then.
    fn bytes(isa: Isa, n: usize, k: usize) -> Option<usize> {
        let elements = n.saturating_mul(k);
        let padded = n.div_ceil(SIDE).saturating_mul(k.div_ceil(SIDE)).saturating_mul(PIECE);
        if lacking() || elements < PIECE || padded / 2 > elements {
            None
        } else if has_tiles(isa) {
            gemm_prepack::bytes::<Tiles>(n, k)
        } else if has_dots(isa) {
            gemm_prepack::bytes::<Dots>(n, k)
        } else {
            None
        }
    }

    unsafe fn pack(isa: Isa, par: &dyn Parallel, args: &MatmulArgs, out: *mut u8) -> Result<()> {
        let problem = matmul::problem(args, &[]);
        // SAFETY: the caller's promise; the CPU has the unit.
        unsafe {
            match has_tiles(isa) {
                true => gemm_prepack::pack::<Tiles>(par, &problem, Shared::new(out.cast())),
                false => gemm_prepack::pack::<Dots>(par, &problem, Shared::new(out.cast())),
            }
        }
    }

    unsafe fn multiply_packed(isa: Isa, par: &dyn Parallel, args: &MatmulArgs) -> Result<()> {
        matmul::check_size(args, &[], size_of::<bf16>())?;
        let problem = matmul::problem(args, &[]);
        let b = Shared::new(args.b.cast_mut().cast());
        // By the whole product, as the result must not depend on how it is cut.
        let by_tiles = has_tiles(isa) && (problem.m > FEW_ROWS || !has_dots(isa));
        // SAFETY: the caller's promise; the CPU has the unit, and both read `b` as it is packed for either.
        unsafe {
            gemm::solve_by(isa, par, &problem, args.alpha, args.beta, |alpha, beta| match by_tiles {
                true => gemm_prepack::multiply::<Tiles>(par, &problem, b, alpha, beta),
                false => gemm_prepack::multiply::<Dots>(par, &problem, b, alpha, beta),
            })
        }
    }

    /// Rows by which a packed `b` is read as fast as memory gives it with dot products, which ask for it ahead of time.
    const FEW_ROWS: usize = 2;

    /// Columns that take long enough to multiply by for a row of `a` to come from third-level cache meanwhile.
    const NARROW: usize = 256;
    /// Columns up to which rows of `a` that do not begin at lines are read in place by tiles.
    const FEW_COLS: usize = 128;

    /// Products on tiles, or by dot products.
    #[derive(Clone, Copy)]
    struct Pairs<const TILES: bool>;

    type Tiles = Pairs<true>;
    type Dots = Pairs<false>;

    type Vectors = <f32 as Real>::Avx512;

    impl<const TILES: bool> Engine for Pairs<TILES> {
        type Number = bf16;
        type Packed = u16;
        type Sum = f32;
        const ROWS: usize = ROWS;
        const IN_PLACE: bool = false;
        const READS_STORED: bool = true;
        const TASK: usize = if TILES { 1 << 22 } else { 1 << 21 };
        const SHARES: bool = false;
        const FINISHES: bool = true;
        const ZERO: f32 = 0.0;
        const ONE: f32 = 1.0;

        fn limits(m: usize, total: usize, reads_a: bool, _: bool) -> Limits {
            let depth = match (m <= 64, reads_a) {
                (true, _) => 256,
                (false, true) => 2048,
                (false, false) => 1024,
            };
            // A block takes half of a second-level cache, which has 2 MiB where there are tiles.
            let half = if TILES { 1 << 19 } else { 1 << 18 };
            let cols = (half / depth.min(total).max(1)).clamp(SIDE, 2048);
            Limits { depth, blocks: 1, cols, unit: SIDE, vector: SIDE, narrow: NARROW, rows: 1024 }
        }

        #[inline(always)]
        fn packed_a(depth: usize) -> usize {
            Self::ROWS * depth.next_multiple_of(SIDE)
        }

        #[inline(always)]
        fn packed_b(cols: usize, depth: usize) -> usize {
            cols.next_multiple_of(SIDE) * depth.next_multiple_of(SIDE)
        }

        #[inline(always)]
        fn sums(cols: usize) -> (usize, usize) {
            (cols.next_multiple_of(SIDE), 1)
        }

        fn reads_b(_: usize, _: usize, _: usize, _: bool) -> bool {
            false
        }

        /// A row that is read in place should have a whole step at least; what is left of it is packed. Rows that begin
        /// anywhere in lines take twice as long to load as tiles, so that packing them pays from a few panels on.
        fn reads_a(_: usize, n: usize, k: usize, rows_contiguous: bool) -> bool {
            rows_contiguous && k >= SIDE && (!TILES || k.is_multiple_of(SIDE) || n <= FEW_COLS)
        }

        fn in_place(scalar: f32) -> f32 {
            scalar
        }

        #[inline(always)]
        unsafe fn run<B: Body>(body: B) -> B::Out {
            // SAFETY: the caller's promise; either unit comes with AVX-512.
            unsafe {
                let _tiles = if TILES { Some(SetUp::new()) } else { None };
                isa::run_avx512(body)
            }
        }

        #[inline(always)]
        unsafe fn run_packing<B: Body>(body: B) -> B::Out {
            // SAFETY: the caller's promise; either unit comes with AVX-512.
            unsafe { isa::run_avx512(body) }
        }

        #[inline(always)]
        unsafe fn pack_a(slab: &Slab<'_, bf16>, out: *mut u16) {
            // SAFETY: the caller's promise.
            unsafe { pack_a(slab, out) };
        }

        #[inline(always)]
        unsafe fn pack_b(slab: &Slab<'_, bf16>, out: *mut u16) {
            // SAFETY: the caller's promise.
            unsafe { pack_b(slab, out) };
        }

        #[inline(always)]
        unsafe fn multiply(block: &Block<'_, Self>) {
            let whole = block.rows - block.rows % SIDE;
            // SAFETY: the caller's promise; a config is loaded for the rows that exist, and for all afterwards.
            unsafe {
                if whole > 0 {
                    groups(block, 0..whole);
                }
                if whole < block.rows && TILES {
                    Config::new(block.rows - whole).load();
                    groups(block, whole..block.rows);
                    Config::new(SIDE).load();
                } else if whole < block.rows {
                    groups(block, whole..block.rows);
                }
            }
        }

        #[inline(always)]
        unsafe fn finish(part: &Part<'_, bf16, f32>) {
            // SAFETY: the caller's promise; the CPU has what rounding needs.
            unsafe {
                match rounds(part) {
                    true => round(part),
                    false => finish::<bf16, Vectors>(part),
                }
            }
        }
    }

    /// Multiplies groups of up to [`SIDE`] rows, panel by panel, each to the whole depth: adding sums up in several goes, so
    /// that a panel stays in first-level cache, costs as much as reading it from second-level cache.
    ///
    /// # Safety
    /// As for [`Engine::multiply`]; tiles, where they are used, are set up for the rows of every group.
    #[inline(always)]
    unsafe fn groups<const TILES: bool>(block: &Block<'_, Pairs<TILES>>, rows: Range<usize>) {
        let Source::Packed(b) = block.b else { unreachable!("pairs are of a packed b") };
        let steps = block.depth.div_ceil(SIDE);
        let (panels, groups) = (block.cols.div_ceil(SIDE), rows.len().div_ceil(SIDE));
        let mut rest = MaybeUninit::<[u16; ROWS * SIDE]>::uninit();
        if let Source::Stored { at, line, .. } = block.a {
            // SAFETY: the rows exist, and there is room for the rest of each.
            unsafe {
                pack_rest(at.cast::<u16>().add(rows.start * line), line, rows.len(), block.depth, &mut rest);
            }
        }
        // Whether sums are rounded while tiles multiply.
        let rounds = TILES && block.part.as_ref().is_some_and(rounds);
        // Finished one piece late, as what tiles have stored cannot be read at once.
        let mut late: Option<Part<'_, bf16, f32>> = None;
        for panel in 0..panels {
            for group in 0..groups {
                let row = rows.start + group * SIDE;
                let lines = SIDE.min(rows.end - row);
                // SAFETY: the rows from `row` on, and the panel.
                unsafe {
                    let mut piece = Piece {
                        a: std::ptr::null(),
                        row_bytes: 64,
                        step_bytes: 2 * PIECE,
                        steps,
                        rest: None,
                        // Where there are no lower rows, the lower tiles take the first upper one.
                        lower: if lines > 16 { 16 } else { 0 },
                        b: b.add(panel * steps * PIECE),
                        out: block.out.at.add(row * block.out.stride + panel * SIDE),
                        out_bytes: block.out.stride * size_of::<f32>(),
                        adds: block.out.beta != 0.0,
                        streams: block.streams && row == 0,
                        lines,
                        cols: SIDE.min(block.cols - panel * SIDE),
                        last_pairs: (block.depth - (steps - 1) * SIDE).div_ceil(2),
                        rounding: Rounding::NONE,
                    };
                    match block.a {
                        Source::Packed(at) => piece.a = at.add(row / SIDE * steps * PIECE),
                        Source::Stored { at, line, .. } => {
                            piece.a = at.cast::<u16>().add(row * line);
                            piece.row_bytes = 2 * line;
                            piece.step_bytes = 2 * SIDE;
                            if !block.depth.is_multiple_of(SIDE) {
                                piece.steps -= 1;
                                let at = rest.as_ptr().cast::<u16>().add(group * PIECE);
                                piece.rest = Some([at, at.add(piece.lower * SIDE)]);
                            }
                        }
                    }
                    let Some(part) = &block.part else {
                        piece.multiply::<TILES>();
                        continue;
                    };
                    // The sums of two pieces stay in first-level cache. There is room for [`Engine::ROWS`] rows of one panel
                    // at least.
                    let place = (panel * groups + group) % 2;
                    piece.out = block.out.at.add(place * PIECE);
                    piece.out_bytes = SIDE * size_of::<f32>();
                    let c = part.c.add(row * part.c_rs + panel * SIDE);
                    let mut done = 0;
                    if !rounds {
                        for i in 0..if block.ahead { lines } else { 0 } {
                            prefetch(c.wrapping_add(i * part.c_rs));
                        }
                    } else if let Some(late) = &late {
                        done = late.rows.min(2 * piece.steps);
                        piece.rounding = Rounding {
                            sums: late.sums,
                            to: late.c.cast(),
                            to_bytes: 2 * late.c_rs,
                            rows: done,
                            mask: mask(late.cols),
                        };
                    }
                    piece.multiply::<TILES>();
                    if let Some(part) = late.take().filter(|part| part.rows > done) {
                        Pairs::<TILES>::finish(&part.below(done));
                    }
                    let (sums, cols) = (piece.out.cast_const(), piece.cols);
                    late = Some(Part { sums, stride: SIDE, c, rows: lines, cols, ..*part });
                }
            }
        }
        if let Some(part) = late {
            // SAFETY: the sums of the last piece, and its part of `c`.
            unsafe { Pairs::<TILES>::finish(&part) };
        }
    }

    /// Whether [`round`] finishes this part.
    #[inline(always)]
    fn rounds(part: &Part<'_, bf16, f32>) -> bool {
        part.scalars.alpha == 1.0 && part.scalars.beta == 0.0 && is_x86_feature_detected!("avx512bf16")
    }

    /// The first columns of a step.
    #[inline(always)]
    fn mask(cols: usize) -> u32 {
        u32::MAX >> (SIDE - SIDE.min(cols))
    }

    /// Stores sums as they are. The instruction would lose subnormal numbers, of which neither unit makes any.
    ///
    /// # Safety
    /// As for [`Engine::finish`]; the CPU has AVX-512 with bf16.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn round(part: &Part<'_, bf16, f32>) {
        for row in 0..part.rows {
            for col in (0..part.cols).step_by(SIDE) {
                let mask = mask(part.cols - col);
                // SAFETY: rows of sums are whole steps of columns; of the row of `c`, what exists is written.
                unsafe {
                    let from = part.sums.add(row * part.stride + col);
                    let (low, high) = (_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(16)));
                    let rounded = _mm512_cvtne2ps_pbh(high, low);
                    let to = part.c.add(row * part.c_rs + col);
                    _mm512_mask_storeu_epi16(
                        to.cast(),
                        mask,
                        std::mem::transmute::<__m512bh, __m512i>(rounded),
                    );
                }
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::kernels::amx::tiles_in_use;
        use crate::kernels::gemm_plan::Plan;
        use crate::kernels::matmul::{MatmulArgs, lookup, problem};
        use ep_core::DType;
        use ep_core::parallel::Serial;

        /// Without tiles in the CPU too.
        #[test]
        fn work_is_cut_into_columns_before_rows() {
            let (m, n, k) = (1024, 512, 512);
            let args = MatmulArgs {
                m,
                n,
                k,
                trans_a: false,
                trans_b: false,
                alpha: (1.0, 0.0),
                a: std::ptr::null(),
                b: std::ptr::null(),
                beta: (0.0, 0.0),
                c: std::ptr::null_mut(),
            };
            let plan = Plan::new::<Tiles>(&problem(&args, &[]), 2);
            assert_eq!(plan.tile, (512, NARROW));
            assert!(plan.reads_a);
            // Rows of `a` that begin anywhere are packed for tiles, unless that is for few columns.
            let odd = MatmulArgs { k: k + 1, ..args };
            let reads_a = |args: &MatmulArgs| {
                let problem = problem(args, &[]);
                [Plan::new::<Tiles>(&problem, 1).reads_a, Plan::new::<Pairs<false>>(&problem, 1).reads_a]
            };
            assert_eq!((reads_a(&odd), reads_a(&args)), ([false, true], [true; 2]));
            assert_eq!(reads_a(&MatmulArgs { n: FEW_COLS, ..odd }), [true; 2]);
            // Those of a `b` that was packed before are cut in columns too, and alike along the depth for any number of rows.
            for m in [1, 2, 3, 64, 1000] {
                let args = MatmulArgs { m, n: 300, k: 2100, ..args };
                let (tiles, dots) = (
                    Plan::of_packed::<Tiles>(&problem(&args, &[]), 1),
                    Plan::of_packed::<Pairs<false>>(&problem(&args, &[]), 1),
                );
                assert!(tiles.tiles.0 > 1 && dots.tiles.0 > 1 && !tiles.reads_b);
                assert_eq!([tiles.depth, dots.depth], [Plan::packed_depth::<Tiles>(2100); 2]);
                assert!(tiles.depth < 2100);
            }
            // A packed `a` would be packed again for each.
            let plan = Plan::new::<Tiles>(&problem(&MatmulArgs { trans_a: true, ..args }, &[]), 2);
            assert_eq!(plan.tile, (256, 512));
        }

        fn amx() -> Option<Isa> {
            Isa::new(Level::Amx).ok().filter(|&isa| has_tiles(isa))
        }

        #[test]
        fn tiles_are_released_after_a_product() {
            let Some(isa) = amx() else { return };
            let (a, b, mut c) = ([bf16::ONE; 40 * 50], [bf16::ONE; 50 * 60], [bf16::ONE; 40 * 60]);
            let (m, n, k) = (40, 60, 50);
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
            // SAFETY: the arrays have these sizes.
            unsafe { lookup(DType::BF16).unwrap()(isa, &Serial, &args).unwrap() };
            assert!(c.iter().all(|x| x.to_f32() == 50.0));
            // SAFETY: there are tiles.
            assert!(!unsafe { tiles_in_use() });
        }

        struct Fails;

        impl Body for Fails {
            type Out = ();

            fn run(self) {
                // SAFETY: this runs where there are tiles.
                assert!(unsafe { tiles_in_use() });
                panic!("a task that fails");
            }
        }

        #[test]
        fn tiles_are_released_when_a_task_panics() {
            if amx().is_none() {
                return;
            }
            // SAFETY: the CPU has tiles, and the process may use them.
            let outcome = std::panic::catch_unwind(|| unsafe { Tiles::run(Fails) });
            let message = *outcome.unwrap_err().downcast::<&str>().unwrap();
            assert_eq!(message, "a task that fails");
            // SAFETY: there are tiles.
            assert!(!unsafe { tiles_in_use() });
        }
    }
}

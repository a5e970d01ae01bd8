//! Products of all dtypes and levels, against the reference.

mod packed;

use super::*;
use crate::isa::Level;
use crate::kernels::batch_matmul::BatchMatmulArgs;
use crate::kernels::check::Buffer;
use crate::kernels::gemm_bf16::LACKING;
use crate::kernels::gemm_dots::WITHOUT;
use crate::kernels::raw::GRAIN_BYTES;
use crate::kernels::stream::INTEL_FORCED;
use crate::kernels::testing::{Rng, Threads, between_pages, decode, encode, epsilon};
use ep_core::Code;
use ep_core::parallel::Serial;
use primitives::reference::{self, MatmulShape};

type Complex = (f64, f64);

enum Want {
    Bits(Vec<u8>),
    Near(Vec<Complex>),
}

/// Sizes, data and scalars of a batch.
struct Case {
    dtype: DType,
    batch: usize,
    shape: MatmulShape,
    alpha: Complex,
    beta: Complex,
    a: Vec<u8>,
    b: Vec<u8>,
    c: Vec<u8>,
}

impl Case {
    fn random(
        dtype: DType,
        batch: usize,
        (m, n, k): (usize, usize, usize),
        trans: usize,
        rng: &mut Rng,
    ) -> Self {
        let mut data = |count: usize| match dtype.is_int() {
            true => rng.bytes(count * dtype.size().unwrap()),
            false => {
                let parts = if dtype.is_complex() { 2 * count } else { count };
                encode(dtype, &(0..parts).map(|_| rng.signed()).collect::<Vec<_>>())
            }
        };
        let (a, b, c) = (data(batch * m * k), data(batch * k * n), data(batch * m * n));
        let shape = MatmulShape { m, n, k, trans_a: trans & 1 != 0, trans_b: trans & 2 != 0 };
        Self { dtype, batch, shape, alpha: (1.0, 0.0), beta: (0.0, 0.0), a, b, c }
    }

    fn name(&self) -> String {
        let Self { dtype, batch, shape, alpha, beta, .. } = self;
        format!("{dtype} x{batch} {shape:?} alpha {alpha:?} beta {beta:?}")
    }

    fn run(&self, isa: Isa, par: &dyn Parallel) -> Result<Vec<u8>> {
        let MatmulShape { m, n, k, trans_a, trans_b } = self.shape;
        // Aligned to their elements and no more.
        let [mut a, mut b, mut c] =
            [&self.a, &self.b, &self.c].map(|bytes| Buffer::of(bytes, self.dtype.size().unwrap()));
        let each = MatmulArgs {
            m,
            n,
            k,
            trans_a,
            trans_b,
            alpha: self.alpha,
            a: a.ptr(),
            b: b.ptr(),
            beta: self.beta,
            c: c.ptr(),
        };
        // SAFETY: the buffers hold matrices of these sizes.
        unsafe {
            match self.batch {
                1 => lookup(self.dtype).unwrap()(isa, par, &each)?,
                batch => {
                    batch_matmul::lookup(self.dtype).unwrap()(isa, par, &BatchMatmulArgs { batch, each })?
                }
            }
        }
        Ok(c.into_bytes())
    }

    /// Checks all levels and thread counts.
    fn check(&self) {
        let want =
            if self.dtype.is_int() { Want::Bits(self.integers()) } else { Want::Near(self.products()) };
        for isa in Isa::available() {
            let got = self.run(isa, &Serial).unwrap();
            assert!(got == self.run(isa, &Threads(3)).unwrap(), "{} changes with threads", self.name());
            match &want {
                Want::Bits(bytes) => assert!(got == *bytes, "{} at {isa}", self.name()),
                Want::Near(numbers) => self.compare(isa, &got, numbers),
            }
        }
    }

    /// [`Case::check`] as it is, and with factors of both the product and the old result.
    fn check_scaled_too(mut self) {
        self.check();
        (self.alpha, self.beta) = scalars(self.dtype)[0];
        self.check();
    }

    fn integers(&self) -> Vec<u8> {
        let size = self.dtype.size().unwrap();
        let widen = |bytes: &[u8]| -> Vec<i64> {
            let wide = |e: &[u8]| e.iter().rev().fold(0i64, |v, &b| (v << 8) | i64::from(b));
            bytes.chunks_exact(size).map(wide).collect()
        };
        let (a, b, c) = (widen(&self.a), widen(&self.b), widen(&self.c));
        let MatmulShape { m, n, k, .. } = self.shape;
        let product = |i: usize| {
            let (a, b, c) = (&a[i * m * k..][..m * k], &b[i * k * n..][..k * n], &c[i * m * n..][..m * n]);
            reference::matmul_wrapping(self.shape, self.alpha.0 as i64, a, b, self.beta.0 as i64, c)
        };
        (0..self.batch).flat_map(product).flat_map(|v| v.to_le_bytes()[..size].to_vec()).collect()
    }

    fn complex(&self, bytes: &[u8]) -> Vec<Complex> {
        let parts = decode(self.dtype, bytes);
        match self.dtype.is_complex() {
            true => parts.chunks_exact(2).map(|p| (p[0], p[1])).collect(),
            false => parts.into_iter().map(|re| (re, 0.0)).collect(),
        }
    }

    fn products(&self) -> Vec<Complex> {
        let (a, b, c) = (self.complex(&self.a), self.complex(&self.b), self.complex(&self.c));
        let MatmulShape { m, n, k, .. } = self.shape;
        let product = |i: usize| {
            let (a, b, c) = (&a[i * m * k..][..m * k], &b[i * k * n..][..k * n], &c[i * m * n..][..m * n]);
            reference::matmul(self.shape, self.alpha, a, b, self.beta, c)
        };
        (0..self.batch).flat_map(product).collect()
    }

    fn compare(&self, isa: Isa, got: &[u8], want: &[Complex]) {
        let size = |z: Complex| z.0.hypot(z.1);
        let compute = epsilon(self.dtype).min(f32::EPSILON.into());
        let sums = compute * (size(self.alpha) * (self.shape.k as f64 + 4.0) + size(self.beta) * 4.0) * 2.0;
        for (i, (got, &want)) in self.complex(got).into_iter().zip(want).enumerate() {
            for (g, w) in [(got.0, want.0), (got.1, want.1)] {
                let allowed =
                    sums + w.abs() * epsilon(self.dtype) + 1e-7 * f64::from(self.dtype == DType::F16);
                let fits = (g - w).abs() <= allowed || g == w || g.is_nan() && w.is_nan();
                assert!(fits, "{} at {isa}, element {i}: {g:e}, not {w:e}", self.name());
            }
        }
    }
}

/// Scalars that every dtype has, and some that only complex ones have.
fn scalars(dtype: DType) -> &'static [(Complex, Complex)] {
    if dtype.is_complex() {
        &[((0.5, -1.5), (0.25, 2.0)), ((0.0, 1.0), (0.0, 0.0))]
    } else if dtype.is_int() {
        &[((3.0, 0.0), (2.0, 0.0)), ((1.0, 0.0), (0.0, 0.0))]
    } else {
        &[((-1.75, 0.0), (0.5, 0.0)), ((1.0, 0.0), (1.0, 0.0))]
    }
}

#[test]
fn all_dtypes_transposes_and_odd_sizes() {
    let mut rng = Rng::new();
    assert_eq!(rows().count(), 14);
    for dtype in rows() {
        for (i, &sizes) in [
            (1, 1, 1),
            (3, 5, 2),
            (17, 9, 33),
            (1, 70, 37),
            (70, 1, 37),
            (1, 1, 67),
            (40, 33, 65),
            (6, 24, 35),
            (5, 16, 34),
        ]
        .iter()
        .enumerate()
        {
            for trans in 0..4 {
                let mut case = Case::random(dtype, 1 + i % 2, sizes, trans, &mut rng);
                (case.alpha, case.beta) = scalars(dtype)[(i + trans) % 2];
                case.check();
            }
        }
    }
}

/// On both sides of the sizes up to which a product is one block.
#[test]
fn one_block_and_more() {
    let mut rng = Rng::new();
    for dtype in [DType::F32, DType::F64] {
        for (i, sizes) in
            [(64, 64, 64), (65, 64, 64), (64, 80, 64), (64, 64, 65), (33, 48, 64), (64, 61, 7), (23, 24, 25)]
                .into_iter()
                .enumerate()
        {
            for trans in 0..4 {
                let mut case = Case::random(dtype, 1, sizes, trans, &mut rng);
                (case.alpha, case.beta) = scalars(dtype)[(i + trans) % 2];
                case.check();
            }
        }
    }
}

#[test]
fn several_tiles_and_panels() {
    let mut rng = Rng::new();
    for (dtype, sizes) in [
        // More rows, columns and depth than a block or a tile has, but of one of them only: debug builds are slow.
        (DType::F32, (270, 9, 20)),
        (DType::F32, (9, 530, 17)),
        (DType::F32, (10, 50, 1090)),
        (DType::F32, (1030, 3, 9)),
        (DType::F32, (40, 300, 9)),
        (DType::F64, (9, 270, 30)),
        (DType::F64, (33, 10, 530)),
        (DType::F64, (67, 71, 10)),
        (DType::COMPLEX64, (135, 10, 12)),
        (DType::COMPLEX64, (5, 125, 9)),
        (DType::COMPLEX64, (3, 7, 1030)),
        (DType::COMPLEX128, (4, 5, 530)),
        (DType::F16, (140, 10, 20)),
        (DType::F16, (34, 490, 5)),
        (DType::F16, (35, 9, 530)),
        (DType::F16, (140, 3, 530)),
        (DType::BF16, (18, 17, 1100)),
        (DType::BF16, (70, 3, 2120)),
        (DType::BF16, (17, 9, 2120)),
        (DType::BF16, (66, 33, 31)),
        (DType::BF16, (70, 290, 5)),
        (DType::BF16, (1030, 5, 33)),
        (DType::I16, (270, 70, 10)),
        (DType::F32, (1, 3000, 20)),
        (DType::F64, (3000, 1, 20)),
        (DType::BF16, (1, 2500, 31)),
        // Vectors: more results than are held at a time, and more terms.
        (DType::COMPLEX64, (1, 1030, 21)),
        (DType::COMPLEX64, (523, 1, 530)),
        (DType::COMPLEX128, (1, 519, 13)),
        (DType::COMPLEX128, (263, 1, 1030)),
        (DType::I32, (1, 1030, 21)),
        (DType::U8, (1, 2070, 19)),
        (DType::I64, (45, 1, 130)),
        (DType::I16, (39, 1, 70)),
    ] {
        for trans in 0..4 {
            let mut case = Case::random(dtype, 2, sizes, trans, &mut rng);
            (case.alpha, case.beta) = scalars(dtype)[trans % 2];
            case.check();
            // Blocks of what dot products would do.
            WITHOUT.set(true);
            if trans >= 2 {
                case.check();
            }
            if dtype == DType::BF16 {
                LACKING.set(true);
                case.check();
                LACKING.set(false);
            }
            WITHOUT.set(false);
        }
    }
}

/// Tiles round the sums of one piece while they multiply the next: two rows in each of up to 31 steps of 32, one in each of
/// more, and the rest afterwards; all of the last piece's.
#[test]
fn rounding_during_the_next_piece() {
    let mut rng = Rng::new();
    // Up to 64 rows go 256 deep at a time, and are rounded after the last.
    for (depth, sizes) in [
        (31, [(33, 64), (65, 70)]),
        (33, [(47, 37), (64, 31)]),
        (160, [(33, 64), (97, 37)]),
        (481, [(65, 70), (127, 31)]),
        (992, [(65, 70), (97, 37)]),
        (1000, [(65, 33), (97, 37)]),
        (1024, [(65, 70), (79, 31)]),
        (1056, [(65, 70), (97, 37)]),
    ] {
        for ((m, n), trans) in sizes.into_iter().zip([0, 1]) {
            let case = Case::random(DType::BF16, 1, (m, n, depth), trans, &mut rng);
            case.check();
            LACKING.set(true);
            case.check();
            LACKING.set(false);
        }
    }
}

/// Factors that are packed because of their size or because their rows lie far apart, and operands of which a part is
/// asked for ahead of time.
#[test]
fn operands_larger_than_a_cache() {
    let mut rng = Rng::new();
    for (dtype, batch, sizes, trans) in [
        (DType::F32, 1, (130, 5, 140), 1),
        (DType::F64, 1, (75, 5, 120), 1),
        (DType::COMPLEX64, 1, (75, 5, 120), 3),
        (DType::F32, 1, (66, 97, 2048), 0),
        (DType::F64, 1, (70, 50, 1024), 0),
        (DType::COMPLEX128, 1, (70, 26, 512), 0),
        (DType::F32, 1, (300, 9, 1000), 0),
        (DType::F32, 2, (1300, 97, 30), 0),
        (DType::BF16, 1, (70, 75, 100), 0),
        (DType::BF16, 1, (70, 75, 100), 1),
        // Several groups of rows on tiles, each finished after the next is begun.
        (DType::BF16, 1, (67, 37, 530), 0),
        (DType::BF16, 1, (67, 37, 530), 1),
        // A packed `b` that second-level cache does not hold, for more rows than read it where it is, and an odd depth.
        (DType::F32, 1, (67, 600, 511), 1),
        (DType::F64, 1, (66, 300, 511), 1),
        (DType::COMPLEX64, 1, (35, 260, 511), 1),
        // Stored as if packed.
        (DType::F32, 1, (8, 70, 130), 1),
        (DType::F64, 1, (8, 35, 131), 3),
        (DType::COMPLEX64, 1, (4, 35, 131), 1),
        // Packed by all tasks together: several blocks along the depth, several columns of tiles, a `b` of columns.
        (DType::F32, 1, (131, 137, 130), 1),
        (DType::F32, 1, (131, 45, 530), 3),
        (DType::F32, 2, (200, 1090, 86), 1),
        (DType::F64, 1, (131, 137, 130), 3),
        (DType::F16, 1, (150, 131, 129), 0),
        (DType::BF16, 1, (130, 41, 1050), 2),
        (DType::BF16, 2, (140, 131, 133), 1),
        (DType::COMPLEX64, 1, (133, 75, 270), 1),
        (DType::COMPLEX128, 1, (129, 67, 260), 3),
        // So much that several tasks pack at a time.
        (DType::F32, 1, (130, 520, 300), 1),
        // The same in parts on tiles: a last slice that is no whole step, several blocks and columns of tiles.
        (DType::F32, 1, (290, 200, 610), 0),
        (DType::F16, 1, (270, 130, 135), 3),
        (DType::COMPLEX64, 1, (140, 150, 205), 2),
        // Sums that are kept from one packing to the next.
        (DType::F16, 1, (40, 40, 2100), 1),
        (DType::COMPLEX64, 1, (40, 24, 2100), 0),
        // Cut in columns, as only `b` is packed.
        (DType::F32, 1, (75, 261, 133), 0),
        (DType::F64, 1, (75, 261, 133), 2),
        // Cut in rows, as nothing is packed.
        (DType::F32, 1, (150, 120, 128), 0),
        // An `a` that levels with a small cache pack, in several groups of rows, and one with too few columns for that.
        (DType::F32, 1, (135, 75, 530), 0),
        (DType::F64, 1, (70, 51, 530), 0),
        (DType::F32, 1, (70, 40, 1000), 0),
        (DType::F64, 1, (40, 24, 900), 2),
        (DType::COMPLEX64, 1, (70, 31, 300), 0),
    ] {
        Case::random(dtype, batch, sizes, trans, &mut rng).check_scaled_too();
    }
}

/// Few rows, in groups of all sizes, by a large `b` that some levels read where it is: panels of all widths, fewer rows than
/// are asked for ahead, several blocks along the depth, rows of `b` that are pages apart.
#[test]
fn few_rows_by_a_large_b() {
    let mut rng = Rng::new();
    let some = |&m: &usize| (DType::F32, (m, 131, 130));
    let by_rows = [2, 3, 4, 5, 6, 7, 8, 9, 23, 64, 65].iter().map(some);
    let others = [
        (DType::F32, (13, 97, 530)),
        (DType::F32, (2, 3300, 6)),
        // Cut in columns by threads; several blocks along the depth of rows that are pages apart.
        (DType::F32, (33, 530, 130)),
        (DType::F32, (9, 1024, 530)),
        (DType::F32, (4, 1100, 33)),
        (DType::F32, (3, 1024, 20)),
        (DType::F32, (34, 1024, 17)),
        (DType::F32, (35, 1024, 257)),
        (DType::F64, (9, 67, 130)),
        (DType::F64, (10, 67, 130)),
        (DType::F64, (6, 67, 130)),
        (DType::F64, (19, 52, 530)),
        // One panel only, and one `b` that is small: not for these loops.
        (DType::F64, (19, 24, 530)),
        (DType::F32, (40, 128, 128)),
        (DType::F64, (12, 512, 18)),
    ];
    for (dtype, sizes) in by_rows.chain(others) {
        for trans in [0, 1] {
            Case::random(dtype, 1, sizes, trans, &mut rng).check_scaled_too();
        }
    }
}

/// Few rows by a `b` whose columns are contiguous: tiles of all heights and widths, steps along the depth and what they leave,
/// several matrices, one more row than are few, and numbers that are no longer few in depth.
#[test]
fn few_rows_by_contiguous_columns() {
    let mut rng = Rng::new();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for m in [2, 3, 4, 5, 6, 7, 8, 9, 11, 31, 32, 33] {
            // A few columns that are left over, and for threads.
            let (n, k) = (20 + m % 4, 96 + 7 * m);
            let mut case = Case::random(dtype, 1, (m, n, k), 2, &mut rng);
            // Of NaN, which without a factor is not read.
            let old = std::mem::replace(&mut case.c, vec![0xff; m * n * dtype.size().unwrap()]);
            case.check();
            case.c = old;
            case.check_scaled_too();
        }
        for (m, n, k) in [(2, 67, 16), (3, 18, 31), (4, 21, 64), (2, 40, 15), (5, 300, 1030), (4, 9, 129)] {
            Case::random(dtype, 1, (m, n, k), 2, &mut rng).check();
            Case::random(dtype, 3, (m, n, k), 2, &mut rng).check_scaled_too();
        }
    }
    LACKING.set(true);
    for m in [2, 4, 8] {
        Case::random(DType::BF16, 2, (m, 27, 150), 2, &mut rng).check_scaled_too();
    }
    LACKING.set(false);
}

/// Long sums of numbers of one sign, each of which is rounded the same way, are not added up one after the other.
#[test]
fn few_rows_of_great_depth() {
    let (m, n, k) = (2, 5, 60_001);
    let case = |dtype, x: f64| {
        let mut case = Case::random(dtype, 1, (m, n, k), 2, &mut Rng::new());
        (case.a, case.b) = (encode(dtype, &vec![x; m * k]), encode(dtype, &vec![x; n * k]));
        case
    };
    for (dtype, x, most) in [(DType::F32, f64::from(1f32 / 3.0), 8e-6), (DType::F64, 1.0 / 3.0, 2e-14)] {
        let case = case(dtype, x);
        for isa in Isa::available() {
            for got in decode(dtype, &case.run(isa, &Serial).unwrap()) {
                let error = got / (x * x * k as f64) - 1.0;
                assert!(error.abs() < most, "{dtype} at {isa}: {error:e}");
            }
        }
    }
}

/// Rows are the same whatever rows are beside them: each sum is added up in one order.
#[test]
fn few_rows_do_not_depend_on_each_other() {
    let mut rng = Rng::new();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let (n, k) = (23, 205);
        let all = Case::random(dtype, 1, (7, n, k), 2, &mut rng);
        for isa in Isa::available() {
            let want = all.run(isa, &Serial).unwrap();
            let row = want.len() / 7;
            for rows in 2..7 {
                let mut some = Case::random(dtype, 1, (rows, n, k), 2, &mut rng);
                let len = some.a.len();
                some.a.copy_from_slice(&all.a[..len]);
                some.b.copy_from_slice(&all.b);
                let got = some.run(isa, &Serial).unwrap();
                // Where there are tiles, more rows of bf16 are theirs.
                let same = got == want[..rows * row];
                assert!(
                    same || dtype == DType::BF16 && isa.level() == Level::Amx,
                    "{rows} of {dtype} at {isa}"
                );
            }
        }
    }
}

/// Nothing outside of the matrices is read or written.
#[test]
fn few_rows_between_pages() {
    let mut rng = Rng::new();
    for (dtype, size) in [(DType::F32, 4), (DType::F64, 8), (DType::F16, 2), (DType::BF16, 2)] {
        for (m, n, k) in [(2, 22, 61), (3, 37, 64), (4, 21, 33)] {
            let case = Case::random(dtype, 1, (m, n, k), 2, &mut rng);
            for (isa, at_end) in Isa::available().into_iter().flat_map(|isa| [(isa, false), (isa, true)]) {
                let want = case.run(isa, &Serial).unwrap();
                let data = [&case.a, &case.b, &case.c];
                let pages = data.map(|bytes| between_pages(bytes.len(), at_end));
                for (page, bytes) in pages.iter().zip(data) {
                    // SAFETY: there are that many bytes, which nobody else uses.
                    unsafe { page.ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                }
                let args = MatmulArgs {
                    m,
                    n,
                    k,
                    trans_a: false,
                    trans_b: true,
                    alpha: case.alpha,
                    a: pages[0].ptr(),
                    b: pages[1].ptr(),
                    beta: case.beta,
                    c: pages[2].ptr(),
                };
                // SAFETY: the matrices have these sizes; `c` is read when it has been written.
                let got = unsafe {
                    lookup(dtype).unwrap()(isa, &Serial, &args).unwrap();
                    std::slice::from_raw_parts(pages[2].ptr().cast_const(), m * n * size)
                };
                assert!(got == want, "{m}x{n}x{k} of {dtype} at {isa}");
            }
        }
    }
}

/// Many rows by a `b` of few columns, which stays in cache: both where they are stored.
#[test]
fn many_rows_by_few_columns() {
    let mut rng = Rng::new();
    for dtype in [DType::F32, DType::F64] {
        for sizes in [(70, 1, 40), (73, 5, 25), (72, 8, 24), (150, 16, 33), (69, 17, 70), (80, 47, 131)] {
            Case::random(dtype, 1, sizes, 0, &mut rng).check_scaled_too();
        }
    }
}

/// A matrix times a vector, read in every way on every CPU: near and far matrices, rows of all lengths that are narrow, that fit beside
/// a vector and that do not, more or fewer than are read side by side.
#[test]
fn vectors_whatever_the_cpu() {
    let mut rng = Rng::new();
    let sizes =
        [(1, 1), (3, 7), (4, 33), (5, 16), (8, 31), (9, 130), (67, 1030), (5, 4107), (1030, 67), (4200, 9)];
    for intel in [false, true] {
        INTEL_FORCED.set(Some(intel));
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            for (m, k) in sizes {
                for trans in 0..4 {
                    Case::random(dtype, 1, (m, 1, k), trans, &mut rng).check();
                    Case::random(dtype, 1, (1, m, k), trans, &mut rng).check_scaled_too();
                }
            }
        }
    }
    INTEL_FORCED.set(None);
}

/// How a row adds up depends on nothing but the matrix: not on how many threads share it, nor on which rows are left over.
#[test]
fn vectors_whatever_shares_them() {
    // Two strips, of which the last is less than is far; rows that are 0 or 1 by the order of their sums.
    let (m, k) = (GRAIN_BYTES / (2 * 1030) + 13, 1030);
    let mut row = vec![0.0; k];
    (row[0], row[16], row[32]) = (f64::from(1 << 30), 1.0, -f64::from(1 << 30));
    let mut case = Case::random(DType::BF16, 1, (m, 1, k), 0, &mut Rng::new());
    (case.a, case.b) = (encode(DType::BF16, &row.repeat(m)), encode(DType::BF16, &vec![1.0; k]));
    for intel in [false, true] {
        INTEL_FORCED.set(Some(intel));
        for isa in Isa::available() {
            for threads in [1, 3] {
                let got = decode(DType::BF16, &case.run(isa, &Threads(threads)).unwrap());
                assert!(got.iter().all(|y| *y == got[0]), "{isa} {threads} {intel}");
            }
        }
    }
    INTEL_FORCED.set(None);
}

/// Few rows by columns that are read one behind the other, and by such as are too long for that or near.
#[test]
fn few_rows_whatever_the_cpu() {
    let mut rng = Rng::new();
    for intel in [false, true] {
        INTEL_FORCED.set(Some(intel));
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            for (m, n, k) in
                [(2, 401, 131), (3, 303, 160), (4, 517, 257), (5, 300, 129), (4, 30, 2100), (2, 90, 150)]
            {
                Case::random(dtype, 1, (m, n, k), 2, &mut rng).check_scaled_too();
            }
        }
    }
    INTEL_FORCED.set(None);
}

/// One row of a factor is more than a task is given at a time.
#[test]
fn vectors_longer_than_the_grain() {
    let mut rng = Rng::new();
    let k = GRAIN_BYTES / 4 + 5;
    for (dtype, trans) in [(DType::F32, 0), (DType::BF16, 2), (DType::I64, 1), (DType::COMPLEX128, 3)] {
        for (m, n) in [(1, 1), (1, 3), (2, 1)] {
            Case::random(dtype, 1, (m, n, 2 * k), trans, &mut rng).check();
        }
    }
}

#[test]
fn an_empty_batch_of_any_size_is_nothing() {
    let mut rng = Rng::new();
    for dtype in rows() {
        for (m, n) in [(1, 1), (1, usize::MAX / 64), (usize::MAX, 7)] {
            let mut case = Case::random(dtype, 0, (0, 0, 0), 0, &mut rng);
            (case.shape.m, case.shape.n, case.shape.k) = (m, n, usize::MAX / 2);
            assert!(case.run(Isa::BASELINE, &Threads(2)).unwrap().is_empty(), "{}", case.name());
        }
    }
}

#[test]
fn zero_scalars_and_sizes_read_nothing() {
    let mut rng = Rng::new();
    for dtype in rows().filter(|d| !d.is_int()) {
        for sizes in [(5, 7, 6), (1, 7, 6), (7, 1, 6)] {
            let nan = |bytes: &[u8]| encode(dtype, &vec![f64::NAN; decode(dtype, bytes).len()]);
            let mut case = Case::random(dtype, 1, sizes, 0, &mut rng);
            case.c = nan(&case.c);
            case.check();
            let mut case = Case::random(dtype, 2, sizes, 1, &mut rng);
            (case.a, case.b) = (nan(&case.a), nan(&case.b));
            (case.alpha, case.beta) = ((0.0, 0.0), (2.0, 0.0));
            case.check();
        }
    }
    for dtype in rows() {
        for sizes in [(0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 4, 0), (4, 1, 0), (0, 0, 0)] {
            for beta in [0.0, 1.0, 3.0] {
                let mut case = Case::random(dtype, 2, sizes, 3, &mut rng);
                case.beta.0 = beta;
                case.check();
                case.batch = 0;
                (case.a, case.b, case.c) = Default::default();
                case.check();
            }
        }
    }
}

#[test]
fn a_product_over_nothing_is_zero_whatever_its_factor() {
    let mut rng = Rng::new();
    for dtype in rows().filter(|d| !d.is_int()) {
        for sizes in [(3, 4, 0), (1, 4, 0), (4, 1, 0)] {
            let mut case = Case::random(dtype, 1, sizes, 0, &mut rng);
            (case.alpha, case.beta) = ((f64::INFINITY, 0.0), (0.0, 0.0));
            for isa in Isa::available() {
                let c = decode(dtype, &case.run(isa, &Threads(2)).unwrap());
                assert!(!c.is_empty() && c.iter().all(|x| *x == 0.0), "{} {isa}: {c:?}", case.name());
            }
        }
    }
}

#[test]
fn infinities_and_nans_go_where_arithmetic_sends_them() {
    let mut rng = Rng::new();
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        for (sizes, trans) in [
            ((9, 8, 7), 0),
            ((9, 8, 7), 3),
            ((1, 40, 7), 0),
            ((40, 1, 7), 1),
            ((45, 60, 511), 1),
            ((14, 24, 33), 0),
            ((14, 24, 33), 1),
        ] {
            let mut case = Case::random(dtype, 1, sizes, trans, &mut rng);
            let mut a = decode(dtype, &case.a);
            (a[3], a[6]) = (f64::INFINITY, f64::NEG_INFINITY);
            case.a = encode(dtype, &a);
            case.check();
            let mut b = decode(dtype, &case.b);
            b[2] = f64::NAN;
            case.b = encode(dtype, &b);
            case.check();
        }
    }
}

#[test]
fn half_sums_are_held_in_f32() {
    // In f16 the sum would stop at 2048, in bf16 at 256.
    for (dtype, k) in [(DType::F16, 4096), (DType::BF16, 2048)] {
        for sizes in [(2, 2, k), (1, 3, k), (3, 1, k)] {
            let mut case = Case::random(dtype, 1, sizes, 0, &mut Rng::new());
            (case.a, case.b) =
                (encode(dtype, &vec![1.0; sizes.0 * k]), encode(dtype, &vec![1.0; sizes.1 * k]));
            let got = decode(dtype, &case.run(Isa::BASELINE, &Serial).unwrap());
            assert!(got.iter().all(|&x| x == k as f64), "{dtype} {got:?}");
        }
    }
}

#[test]
fn refusals() {
    let mut rng = Rng::new();
    for (dtype, alpha) in [
        (DType::F32, (1.0, 1.0)),
        (DType::BF16, (1.0, f64::NAN)),
        (DType::I8, (0.5, 0.0)),
        (DType::I8, (128.0, 0.0)),
        (DType::U64, (-1.0, 0.0)),
        (DType::U64, (18_446_744_073_709_551_616.0, 0.0)),
        (DType::I32, (f64::NAN, 0.0)),
    ] {
        let mut case = Case::random(dtype, 1, (2, 2, 2), 0, &mut rng);
        case.alpha = alpha;
        let e = case.run(Isa::BASELINE, &Serial).unwrap_err();
        assert_eq!(e.code(), Code::InvalidArgument, "{dtype} {alpha:?}");
        assert!(e.message().contains("alpha"), "{e}");
    }
    let mut case = Case::random(DType::I8, 1, (2, 2, 2), 0, &mut rng);
    case.alpha.0 = -128.0;
    case.check();
    case.shape.m = usize::MAX / 2;
    assert_eq!(case.run(Isa::BASELINE, &Serial).unwrap_err().code(), Code::InvalidArgument);
    assert!(lookup(DType::BOOL).is_none() && batch_matmul::lookup(DType::BOOL).is_none());
}

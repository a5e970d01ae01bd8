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

/// As near as sums in vectors but for chance, for numbers of both signs, of one, and of very different sizes.
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
        assert!(tiles <= 1.2 * vectors.max(1.0), "kind {kind}: {tiles} on tiles, {vectors} in vectors");
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

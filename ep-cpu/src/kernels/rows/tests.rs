use super::long::BLOCK;
use super::vector::Portable;
use super::*;
use crate::kernels::testing::{Rng, Threads, decode, encode, epsilon};
use crate::kernels::{log_softmax, softmax};
use ep_core::parallel::Serial;
use primitives::reference::{Launch, View};

const MARGIN_BYTE: u8 = 0xa5;
const MARGIN: usize = 128;

/// Bytes at an address that is `offset` past a line, between margins that notice a write.
pub(super) struct Placed {
    words: Vec<u64>,
    start: usize,
    len: usize,
}

impl Placed {
    pub(super) fn poison(len: usize, offset: usize) -> Self {
        let words = vec![u64::from_ne_bytes([MARGIN_BYTE; 8]); (len + 2 * MARGIN + LINE) / 8 + 1];
        let start = MARGIN + words.as_ptr().addr().wrapping_neg() % LINE + offset;
        Self { words, start, len }
    }

    pub(super) fn bytes(bytes: &[u8], offset: usize) -> Self {
        let mut new = Self::poison(bytes.len(), offset);
        // SAFETY: the words have room for that after `start`.
        unsafe { new.ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        new
    }

    pub(super) fn ptr(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast::<u8>().wrapping_add(self.start)
    }

    #[track_caller]
    pub(super) fn get(&self) -> Vec<u8> {
        // SAFETY: words are readable as bytes.
        let all =
            unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast::<u8>(), 8 * self.words.len()) };
        let (head, rest) = all.split_at(self.start);
        let (bytes, tail) = rest.split_at(self.len);
        assert!(head.iter().chain(tail).all(|&b| b == MARGIN_BYTE), "a write outside the output");
        bytes.to_vec()
    }
}

pub(super) fn size_of_dtype(dtype: DType) -> usize {
    dtype.size().unwrap()
}

/// What is computed in, by its distance from 1 to the next number.
pub(super) fn compute_epsilon(src: DType, dst: DType) -> f64 {
    if [src, dst].contains(&DType::F64) { f64::EPSILON } else { f32::EPSILON.into() }
}

/// By how much rounding `want` to `dst`, and exponents near the end of the range, may change it.
pub(super) fn storing(src: DType, dst: DType, want: f64) -> f64 {
    let smallest = match dst {
        DType::F16 => 2f64.powi(-24),
        _ if compute_epsilon(src, dst) == f64::EPSILON && dst == DType::F64 => 1e-307,
        _ => 1.2e-38,
    };
    want.abs() * if epsilon(dst) > compute_epsilon(src, dst) { epsilon(dst) * 0.501 } else { 0.0 } + smallest
}

/// `f` over each line along the columns of `[rows, cols, inner]`.
pub(super) fn along_cols(
    [rows, cols, inner]: [usize; 3],
    mut f: impl FnMut(&mut dyn Iterator<Item = usize>),
) {
    for line in 0..rows * inner {
        let (row, at) = (line / inner, line % inner);
        f(&mut (0..cols).map(|c| (row * cols + c) * inner + at));
    }
}

pub(super) struct Case {
    log: bool,
    src: DType,
    dst: DType,
    shape: [usize; 3],
    pub(super) x: Vec<u8>,
    /// Units of the last place by which it may be off.
    units: f64,
}

impl Case {
    pub(super) fn new(log: bool, [src, dst]: [DType; 2], shape: [usize; 3], x: &[f64]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), x.len());
        Self { log, src, dst, shape, x: encode(src, x), units: 4.0 }
    }

    fn kernel(&self) -> RowsFn {
        let lookup = if self.log { log_softmax::lookup } else { softmax::lookup };
        lookup(self.src, self.dst).unwrap()
    }

    fn args(&self, src: *const u8, dst: *mut u8) -> RowsArgs {
        let [rows, cols, inner] = self.shape;
        RowsArgs { rows, cols, inner, src, dst }
    }

    pub(super) fn run(&self, isa: Isa, par: &dyn Parallel, src: *const u8, dst: *mut u8) {
        // SAFETY: the callers give buffers of the case's size.
        unsafe { self.kernel()(isa, par, &self.args(src, dst)) }.unwrap();
    }

    /// Exact to more digits than any kernel's, as f64.
    pub(super) fn reference(&self) -> Vec<f64> {
        let op = if self.log { "log_softmax" } else { "softmax" };
        let mut launch = Launch::new(op).dtype("src", self.src).dtype("dst", DType::F64);
        for (name, size) in ["rows", "cols", "inner"].into_iter().zip(self.shape) {
            launch = launch.size(name, size as i64);
        }
        let outputs = launch.read("src", View::new(self.src, &self.x)).run().unwrap();
        outputs.get("dst").unwrap().view().iter().map(|n| n.re()).collect()
    }

    /// In f64: good enough for what is computed in f32.
    fn quick_reference(&self) -> Vec<f64> {
        let x = decode(self.src, &self.x);
        let mut want = vec![0.0; x.len()];
        along_cols(self.shape, |line| {
            let line: Vec<usize> = line.collect();
            let max = line.iter().map(|&i| x[i]).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = line.iter().map(|&i| (x[i] - max).exp()).sum();
            for &i in &line {
                want[i] = if self.log { x[i] - max - sum.ln() } else { (x[i] - max).exp() / sum };
            }
        });
        want
    }

    /// Runs at every level, from and to addresses aligned to elements only, and in place. Checks against what is
    /// wanted, and that every number of threads gives the same bits.
    fn check(&self, want: &[f64]) {
        let (from, to) = (size_of_dtype(self.src), size_of_dtype(self.dst));
        let bytes = want.len() * to;
        for isa in Isa::available() {
            let mut first: Option<Vec<u8>> = None;
            for (par, odd) in [(&Serial as &dyn Parallel, 0), (&Threads(3), 1), (&Threads(2), 3)] {
                let mut src = Placed::bytes(&self.x, odd * from);
                let mut dst = Placed::poison(bytes, odd * to);
                self.run(isa, par, src.ptr(), dst.ptr());
                let got = dst.get();
                assert!(src.get() == self.x, "{} changes its source", self.name(isa));
                self.compare(isa, &decode(self.dst, &got), want);
                assert!(got == *first.get_or_insert(got.clone()), "{} differs in bits", self.name(isa));
            }
            if from == to {
                let mut both = Placed::bytes(&self.x, to);
                let p = both.ptr();
                self.run(isa, &Threads(2), p, p);
                assert!(both.get() == first.unwrap(), "{} in place", self.name(isa));
            }
        }
    }

    pub(super) fn name(&self, isa: Isa) -> String {
        let op = if self.log { "log_softmax" } else { "softmax" };
        format!("{op} {} -> {} {:?} at {isa}", self.src, self.dst, self.shape)
    }

    /// The bounds that [`RowsFn`] states.
    fn compare(&self, isa: Isa, got: &[f64], want: &[f64]) {
        let compute = compute_epsilon(self.src, self.dst);
        let x = decode(self.src, &self.x);
        let stored = decode(self.dst, &encode(self.dst, want));
        along_cols(self.shape, |line| {
            let line: Vec<usize> = line.collect();
            let max = line.iter().map(|&i| x[i]).fold(f64::NEG_INFINITY, f64::max);
            for i in line {
                let (g, w) = (got[i], if stored[i].is_infinite() { stored[i] } else { want[i] });
                let exact = if self.log {
                    let log_sum = x[i] - max - w;
                    self.units
                        * compute
                        * [1.0, (x[i] - max).abs(), log_sum.abs()].into_iter().fold(w.abs(), f64::max)
                } else {
                    self.units * compute * w.abs()
                        + if self.dst == DType::BF16 { 2f64.powi(-14) * w } else { 0.0 }
                };
                let allowed = exact + storing(self.src, self.dst, w);
                let fits = (g - w).abs() <= allowed || g == w || g.is_nan() && w.is_nan();
                assert!(fits, "{} at {i}: {g:e}, not {w:e} within {allowed:e}", self.name(isa));
                assert!(
                    !self.log || g.is_nan() || g <= 0.0,
                    "{} at {i}: {g:e} is no logarithm",
                    self.name(isa)
                );
            }
        });
    }
}

/// Both ops and all dtypes over elements made by `value(row, col)`.
fn check_all(shape: [usize; 3], mut value: impl FnMut(usize, usize) -> f64) {
    let [rows, cols, inner] = shape;
    let at = |i: usize| (i / (cols * inner) * inner + i % inner, i / inner % cols);
    let x: Vec<f64> = (0..rows * cols * inner).map(at).map(|(row, col)| value(row, col)).collect();
    for (src, dst) in softmax::rows() {
        for log in [false, true] {
            let case = Case::new(log, [src, dst], shape, &x);
            case.check(&case.reference());
        }
    }
}

const F32: [DType; 2] = [DType::F32, DType::F32];

fn check_f32(shape: [usize; 3], scale: f64) {
    let mut rng = Rng::new();
    let x: Vec<f64> = (0..shape.iter().product()).map(|_| rng.signed() * scale).collect();
    for dtypes in [F32, [DType::F16, DType::F32], [DType::BF16, DType::BF16]] {
        for log in [false, true] {
            let case = Case::new(log, dtypes, shape, &x);
            case.check(&case.quick_reference());
        }
    }
}

#[test]
fn random_rows_of_all_dtypes() {
    let mut rng = Rng::new();
    for shape in [[5, 2, 1], [18, 15, 1], [3, 37, 1], [2, 257, 1], [1, 300, 1]] {
        check_all(shape, |_, _| rng.signed() * 12.0);
    }
}

#[test]
fn columns_apart_of_all_dtypes() {
    let mut rng = Rng::new();
    for shape in [[3, 1, 5], [2, 7, 3], [2, 9, 16], [1, 11, 17], [1, 3, 70]] {
        check_all(shape, |_, _| rng.signed() * 12.0);
    }
}

#[test]
fn rows_of_every_width() {
    for intel in [false, true] {
        stream::INTEL_FORCED.set(Some(intel));
        for cols in (1..=34).chain([
            48, 49, 63, 64, 65, 80, 81, 95, 96, 97, 112, 113, 127, 128, 129, 255, 256, 257, 300, 1000, 3001,
        ]) {
            check_f32([if cols < 65 { 19 } else { 3 }, cols, 1], 12.0);
        }
    }
    stream::INTEL_FORCED.set(None);
}

#[test]
fn long_rows() {
    for cols in [8192, 8193, 20001, 40_000] {
        check_f32([2, cols, 1], 20.0);
    }
}

/// Blocks of a long row whose exponentials are kept, with the same bits in the destination and aside: near the
/// largest element, too far below it, and all or some of nothing.
#[test]
fn blocks_of_a_long_row_lie_apart() {
    let mut rng = Rng::new();
    for spread in [3.0, 18.0, 39.0, 60.0, 90.0, 400.0, 1e4] {
        let cols = 7 * BLOCK + 77;
        let x: Vec<f64> = (0..4 * cols)
            .map(|i| match (i % cols / BLOCK, i / cols) {
                (2, 1) => f64::NEG_INFINITY,
                (3, 2) if i % 97 == 0 => f64::NEG_INFINITY,
                (block, _) => rng.signed() * 2.0 - spread * ((block + 1) % 4) as f64,
            })
            .collect();
        for dtypes in [F32, [DType::F64; 2], [DType::BF16, DType::F32], [DType::F32, DType::BF16]] {
            let case = Case::new(false, dtypes, [4, cols, 1], &x);
            case.check(&if dtypes == F32 { case.quick_reference() } else { case.reference() });
        }
        // A row that is shared, whose blocks are guessed from where a task begins.
        let case = Case::new(false, F32, [1, 4 * cols, 1], &x);
        case.check(&case.quick_reference());
    }
}

/// Elements around the least that is not 0, in blocks with a lower shift than the row's. And a block far below the row whose first elements are
/// so far below it that the factor would be no normal number.
#[test]
fn the_least_exponentials_of_a_shared_row() {
    let mut rng = Rng::new();
    let cols = 12 * BLOCK + 9;
    for half in (-40..40).step_by(9) {
        // The largest one is half-way between two integers, or what counts as that, so that the sum is little more than sqrt(2).
        let max = (f64::from(half) + 0.5 + 1.0 / 4096.0) * std::f64::consts::LN_2 + 2e-5;
        let least = max + f64::from(f32::MIN_POSITIVE).ln();
        let x: Vec<f64> = (0..cols)
            .map(|i| match i % BLOCK {
                0 if i < BLOCK => max,
                0 => max - 60.0,
                _ => least + 3e-5 * rng.signed(),
            })
            .collect();
        let low: Vec<f64> = (0..cols)
            .map(|i| match (i / BLOCK, i % BLOCK) {
                (1, 100) => max,
                (1, _) => max - 30.0,
                (_, ..64) => max - 90.0,
                _ => max - 25.0 + rng.signed(),
            })
            .collect();
        for x in [x, low] {
            let case = Case::new(false, F32, [1, cols, 1], &x);
            case.check(&case.quick_reference());
        }
    }
}

/// A row that no cache is to hold: kept in the destination, or computed again where that is the source, with the same bits.
#[test]
fn very_long_rows() {
    let mut rng = Rng::new();
    let cols = (1 << 18) + 77;
    let x: Vec<f64> = (0..cols).map(|i| 3.0 * rng.signed() - 25.0 * ((i / BLOCK * 7 % 11) as f64)).collect();
    let case = Case::new(false, F32, [1, cols, 1], &x);
    case.check(&case.quick_reference());
}

/// Two elements in blocks of their own, beside which the others are nothing: sums with different shifts, of which some have a centre.
#[test]
fn blocks_are_joined_exactly() {
    let pairs = [
        (2048.0, 2048.1),
        (2048.1, 2048.0),
        (-2048.0, -2048.1),
        (2047.95, 2048.2),
        (700.0, 700.5),
        (2047.0, 2047.5),
        (5000.0, 5001.5),
        (-3000.25, -2047.75),
        (256.0, 256.1),
        (-256.1, -256.0),
        (-1e300, 1e300),
    ];
    let cols = 3 * BLOCK + 5;
    let mut x = vec![f64::NEG_INFINITY; pairs.len() * cols];
    for (row, (a, b)) in pairs.into_iter().enumerate() {
        (x[row * cols + 3], x[row * cols + BLOCK + 70]) = (a, b);
    }
    for log in [false, true] {
        for dtypes in [[DType::F64; 2], F32] {
            let case = Case::new(log, dtypes, [pairs.len(), cols, 1], &x);
            case.check(&case.reference());
        }
    }
}

/// Maxima of blocks that their first elements do not tell: these are too low by little, by more than a sum has room for or by everything,
/// or are none; or they are the only ones that count.
#[test]
fn blocks_of_a_long_row_begin_anyhow() {
    let mut rng = Rng::new();
    let (cols, firsts) = (2 * BLOCK + 77, [-30.0, -90.0, -250.0, f64::NEG_INFINITY, f64::NAN, 60.0, 200.0]);
    // The row of NaN has them in its second block only, and another one follows it.
    let rows = firsts.len() + 2;
    let x: Vec<f64> = (0..rows * cols)
        .map(|i| {
            let (row, col, x) = (i / cols, i % cols, 3.0 * rng.signed());
            match firsts.get(row) {
                Some(first) if first.is_nan() && (col < BLOCK || col % BLOCK >= 64) => x,
                Some(first) if col % BLOCK < 64 => x + first,
                // Far from 0, where shifts have a centre.
                None if row == firsts.len() => x + 900.0,
                _ => x,
            }
        })
        .collect();
    for dtypes in [F32, [DType::F64; 2], [DType::F16; 2], [DType::BF16; 2]] {
        for log in [false, true] {
            let case = Case::new(log, dtypes, [rows, cols, 1], &x);
            case.check(&if dtypes[0] == DType::F64 { case.reference() } else { case.quick_reference() });
        }
        // Rows that are shared.
        for row in x.chunks(cols).take(5) {
            let x: Vec<f64> = row.iter().cycle().take(12 * BLOCK + 9).copied().collect();
            let case = Case::new(false, dtypes, [1, x.len(), 1], &x);
            case.check(&if dtypes[0] == DType::F64 { case.reference() } else { case.quick_reference() });
        }
    }
}

#[test]
fn strips_of_every_width() {
    for inner in (2..=9).chain([15, 16, 17, 31, 33, 64, 100, 511, 513, 1100]) {
        check_f32([2, 11, inner], 12.0);
    }
    // More columns than a buffer has room for.
    for (cols, inner) in [(3000, 20), (8200, 17), (70_000, 2)] {
        check_f32([1, cols, inner], 9.0);
    }
}

#[test]
fn many_rows_are_shared_out() {
    for shape in [[700, 67, 1], [20, 2000, 1], [5, 40, 300]] {
        check_f32(shape, 5.0);
    }
}

/// Rows near 0 need no maximum: next to others, up to the very bound, and where only the last element is beyond it.
#[test]
fn rows_near_zero_lie_beside_others() {
    let mut rng = Rng::new();
    for cols in [67, 70, 96, 113, 128, 129, 200, 256, 300, 1000, 2049] {
        let rows = if cols < 300 { 37 } else { 18 };
        let x: Vec<f64> = (0..rows * cols)
            .map(|i| match (i / cols % 7, i % cols) {
                (0, 0) => 10.0,
                (0, 1) => -10.0,
                (3, col) if col + 1 == cols => -1000.0,
                (5, 3) => f64::NEG_INFINITY,
                (row, _) => rng.signed() * if row == 1 { 1e-6 } else { 10.0 },
            })
            .collect();
        let halves = [[DType::F32, DType::F16], [DType::F16; 2], [DType::F32, DType::BF16], [DType::BF16; 2]];
        for dtypes in [F32, [DType::F16, DType::F32]].into_iter().chain(halves) {
            for log in [false, true] {
                let case = Case::new(log, dtypes, [rows, cols, 1], &x);
                case.check(&case.quick_reference());
            }
        }
    }
}

/// Rows of bf16 are near on other terms: around the least element and the largest sum of such rows, and far beyond.
#[test]
fn rows_of_bf16_lie_around_the_bounds() {
    let mut rng = Rng::new();
    let odd = [
        -40.0, -40.25, 46.5, 47.0, 47.25, 48.0, 88.0, 90.0, -90.0, -100.0, -1e4, -1e9, -3e38, 1e4, 1e9, 1e30,
        -1e30, 3e38,
    ];
    for cols in [65, 129, 300] {
        let shape = [odd.len() * GROUPED, cols, 1];
        let alone = |row: usize, col: usize| match (row % GROUPED, row / GROUPED) {
            (0, which) if col == which * 31 % cols => Some(odd[which]),
            _ => None,
        };
        for scale in [1.0, 39.9] {
            let x: Vec<f64> = (0..shape[0] * cols)
                .map(|i| alone(i / cols, i % cols).unwrap_or_else(|| rng.signed() * scale))
                .collect();
            for src in [DType::BF16, DType::F32] {
                for log in [false, true] {
                    let case = Case::new(log, [src, DType::BF16], shape, &x);
                    case.check(&case.quick_reference());
                }
            }
        }
    }
}

/// Rows of which one that is not near may decide for those after it.
const GROUPED: usize = MAX_LANES;

/// Any NaN is its own row's alone: a signalling one between rows that are far and near hides neither.
#[test]
fn a_nan_of_any_kind_spoils_its_row_only() {
    for nan in [0x7f81u16, 0x7fff, 0xffff] {
        for log in [false, true] {
            let mut case = Case::new(log, [DType::BF16; 2], [4, 700, 1], &vec![0.5; 4 * 700]);
            case.x[2 * (2 * 700 + 3)..][..2].copy_from_slice(&nan.to_ne_bytes());
            case.check(&case.quick_reference());
        }
    }
    for nan in [0x7fa0_0000, 0xffa0_0000, 0x7fc0_0000, 0x7f80_0001] {
        for [rows, cols, inner] in [[3, 16, 1], [3, 40, 1], [3, 100, 1], [3, 700, 1], [1, 16, 3]] {
            for log in [false, true] {
                let mut case = Case::new(log, F32, [rows, cols, inner], &vec![0.0; rows * cols * inner]);
                let at = |row: usize| if inner == 1 { row * cols + 3 } else { 3 * inner + row };
                case.x[4 * at(0)..][..4].copy_from_slice(&1000f32.to_ne_bytes());
                case.x[4 * at(1)..][..4].copy_from_slice(&u32::to_ne_bytes(nan));
                case.check(&case.quick_reference());
            }
        }
    }
}

/// Elements far apart, and far from 0: the bound is the same.
#[test]
fn wide_ranges_are_as_accurate() {
    for scale in [90.0, 300.0, 4000.0] {
        for shape in [[20, 50, 1], [2, 700, 1], [1, 9001, 1], [2, 30, 18]] {
            check_f32(shape, scale);
        }
    }
    let mut rng = Rng::new();
    for centre in [1e3, -1e5, 1e30, -1e38, 255.9, -256.1] {
        check_all([3, 21, 1], |_, _| centre + rng.signed() * 60.0);
        check_all([1, 12, 3], |_, _| centre * (1.0 + rng.signed() * 1e-6));
    }
    for spread in [700.0, 2e4] {
        check_all([4, 40, 1], |_, _| rng.signed() * spread);
    }
}

#[test]
fn specials_reach_the_whole_row_or_none_of_it() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let mut rng = Rng::new();
    let odd = rng.next() as usize;
    let mut value = |row: usize, col: usize, cols: usize| match (row, col == odd % cols) {
        (0, true) => nan,
        (1, true) => inf,
        (2, _) => -inf,
        (3, true) => -inf,
        (4, true) => 30000.0,
        (4, false) => -30000.0,
        (5, _) => -0.0,
        (6, true) => nan,
        (6, false) => -inf,
        (7, true) => 1.0,
        (7, false) => -inf,
        _ => rng.signed(),
    };
    for shape in [[9, 1, 1], [9, 5, 1], [9, 16, 1], [9, 37, 1], [9, 300, 1], [1, 5, 9], [1, 1, 9]] {
        check_all(shape, |row, col| value(row, col, shape[1]));
    }
    for shape in [[9, 2048, 1], [9, 9001, 1], [1, 8200, 9 * 2]] {
        let [rows, cols, inner] = shape;
        let at = |i: usize| (i / (cols * inner) * inner + i % inner, i / inner % cols);
        let x: Vec<f64> = (0..rows * cols * inner).map(at).map(|(r, c)| value(r % 9, c, cols)).collect();
        for log in [false, true] {
            let case = Case::new(log, F32, shape, &x);
            case.check(&case.quick_reference());
        }
    }
}

/// A NaN whose fraction is all ones must not turn into a number when it is rounded or its exponent is shifted.
#[test]
fn every_nan_stays_one() {
    for bits in [0x7fff_ffffu32, 0xffff_ffff, 0x7f80_0001, 0x7fc0_0001, 0xffc0_01ff] {
        for (cols, inner) in [(7, 1), (40, 1), (500, 1), (9000, 1), (40, 3)] {
            let mut x: Vec<u8> = 1.5f32.to_ne_bytes().repeat(cols * inner);
            x[4 * (cols / 2) * inner..][..4].copy_from_slice(&bits.to_ne_bytes());
            for dst in DType::FLOAT {
                for log in [false, true] {
                    let case = Case {
                        log,
                        src: DType::F32,
                        dst: *dst,
                        shape: [1, cols, inner],
                        x: x.clone(),
                        units: 4.0,
                    };
                    case.check(&case.quick_reference());
                }
            }
        }
    }
}

#[test]
fn one_column_is_certain_and_empty_is_nothing() {
    for (src, dst) in softmax::rows() {
        for (log, want) in [(false, 1.0), (true, 0.0)] {
            for shape in [[19, 1, 1], [1, 1, 19]] {
                let x: Vec<f64> = (0..19).map(|i| f64::from(i) * 1e3 - 9e3).collect();
                let case = Case::new(log, [src, dst], shape, &x);
                let mut from = Placed::bytes(&case.x, 0);
                let mut out = Placed::poison(19 * size_of_dtype(dst), 0);
                case.run(Isa::BASELINE, &Serial, from.ptr(), out.ptr());
                assert_eq!(decode(dst, &out.get()), [want; 19]);
            }
        }
    }
    let nowhere = std::ptr::null_mut();
    for shape in [[0, 5, 1], [5, 0, 1], [0, 0, 1], [3, 4, 0], [0, 7, 9], [usize::MAX, 0, usize::MAX]] {
        let case = Case { log: false, src: DType::F16, dst: DType::F32, shape, x: Vec::new(), units: 4.0 };
        case.run(Isa::BASELINE, &Threads(2), nowhere, nowhere);
    }
}

#[test]
fn more_elements_than_an_address_space_are_an_error() {
    for shape in [[usize::MAX / 2, 3, 1], [1 << 31, 1 << 31, 1 << 3], [1 << 60, 1, 8]] {
        let case = Case { log: false, src: DType::F16, dst: DType::F64, shape, x: Vec::new(), units: 4.0 };
        let args = case.args(std::ptr::null(), std::ptr::null_mut());
        // SAFETY: nothing is read or written, as the sizes are refused first.
        let e = unsafe { case.kernel()(Isa::BASELINE, &Serial, &args) }.unwrap_err();
        assert_eq!(e.code(), ep_core::Code::InvalidArgument);
        assert!(e.message().contains("no address space"), "{e}");
    }
    assert!(softmax::lookup(DType::F32, DType::I32).is_none());
    assert_eq!(log_softmax::rows().count(), 16);
}

/// Sums of equal terms are rounded the same way each time: no lane may add up many.
#[test]
fn sums_of_equal_terms_are_as_right() {
    let mut rng = Rng::new();
    // Of many columns the sums of blocks are as many equal terms again.
    let shapes = [(512, 1, 4.0), (2048, 1, 4.0), (2000, 3, 5.0), (8192, 1, 5.0), (30_000, 1, 5.0)];
    for (cols, inner, units) in shapes {
        let random = if cols == 512 { 300 } else { 30 };
        for value in [2f64.powi(-20), 2f64.powi(-21)].into_iter().chain((0..random).map(|_| rng.signed())) {
            let case = Case::new(false, F32, [1, cols, inner], &vec![value; cols * inner]);
            let case = Case { units, ..case };
            case.check(&case.quick_reference());
        }
    }
}

/// Equal inputs have equal outputs, whatever the order of adding.
#[test]
fn equal_elements_have_equal_shares() {
    for (cols, inner) in [(7, 1), (64, 1), (5000, 1), (1 << 20, 1), (1000, 3)] {
        let case = Case::new(false, F32, [1, cols, inner], &vec![0.25; cols * inner]);
        let mut out = Placed::bytes(&case.x, 0);
        let p = out.ptr();
        case.run(*Isa::available().last().unwrap(), &Serial, p, p);
        let got = decode(DType::F32, &out.get());
        assert!(got.iter().all(|y| *y == got[0]), "{cols} {inner}");
        assert!((got[0] * cols as f64 - 1.0).abs() < 4.0 * f64::from(f32::EPSILON), "{cols}: {:e}", got[0]);
    }
}

/// Past the cache, to whole pages from what is read, and a little more or less.
#[test]
fn results_pages_away_from_their_sources() {
    medium::SKEWED.set(true);
    let mut rng = Rng::new();
    for (rows, cols) in [(7usize, 1024usize), (6, 300), (9, 64 * 7 + 5), (3, 2048), (3, 9001)] {
        let count = rows * cols;
        let x: Vec<f32> = (0..count).map(|_| rng.signed() as f32 * 9.0).collect();
        for (isa, log) in Isa::available().into_iter().flat_map(|isa| [(isa, false), (isa, true)]) {
            for apart in [0, 64, 192, 4032, 2048] {
                const PAGE: usize = 4096;
                let bytes = (4 * count).next_multiple_of(PAGE);
                let mut memory = vec![0u8; 2 * bytes + 3 * PAGE];
                let src = memory.as_mut_ptr().wrapping_add(memory.as_ptr().align_offset(PAGE));
                // The row before is stored while a row is read.
                let dst = src.wrapping_add(bytes + (4 * cols + apart) % PAGE);
                let mut plain = vec![0f32; count];
                let args = |dst: *mut u8| RowsArgs { rows, cols, inner: 1, src, dst };
                // SAFETY: both parts of the memory have so many elements, aligned, and do not overlap.
                let got = unsafe {
                    src.cast::<f32>().copy_from_nonoverlapping(x.as_ptr(), count);
                    forward::<f32, f32, f32>(isa, &Serial, &args(dst), log, count, true).unwrap();
                    let to = plain.as_mut_ptr().cast();
                    forward::<f32, f32, f32>(isa, &Serial, &args(to), log, count, false).unwrap();
                    std::slice::from_raw_parts(dst.cast::<f32>().cast_const(), count)
                };
                assert!(got == plain, "{rows}x{cols} {apart} at {isa}");
            }
        }
    }
    medium::SKEWED.set(false);
}

type Forward = unsafe fn(Isa, &dyn Parallel, &RowsArgs, bool, usize, bool) -> Result<()>;

/// Streaming stores are for sizes that tests have no time for: here they are asked for.
#[test]
fn streaming_gives_the_same_bits() {
    let forwards: [(bool, [DType; 2], Forward); 8] = [
        (false, F32, forward::<f32, f32, f32>),
        (true, F32, forward::<f32, f32, f32>),
        (false, [DType::F16, DType::F16], forward::<f16, f16, f32>),
        (true, [DType::F32, DType::BF16], forward::<f32, bf16, f32>),
        (false, [DType::BF16, DType::BF16], forward::<bf16, bf16, f32>),
        (true, [DType::BF16, DType::BF16], forward::<bf16, bf16, f32>),
        (false, [DType::F64, DType::F64], forward::<f64, f64, f64>),
        (true, [DType::F64, DType::F64], forward::<f64, f64, f64>),
    ];
    let mut rng = Rng::new();
    let shapes = [
        [50, 3, 1],
        [33, 37, 1],
        [40, 64, 1],
        [6, 300, 1],
        [5, 1001, 1],
        [37, 1003, 1],
        [3, 9001, 1],
        // A row that threads share.
        [1, 40_007, 1],
        [2, 9, 33],
        [2, 9, 48],
        [3, 5, 704],
        [1, 8200, 20],
        [1, 8200, 32],
        [70, 1, 1],
    ];
    for shape in shapes {
        let count: usize = shape.iter().product();
        let wide: Vec<f64> = (0..count).map(|_| rng.signed() * 60.0).collect();
        let near: Vec<f64> = wide.iter().map(|x| x * 0.15).collect();
        // Rows that only their last element keeps from being near, between others.
        let last_of_third = |i: usize| i % shape[1] == shape[1] - 1 && i / shape[1] % 3 == 1;
        let mixed: Vec<f64> =
            near.iter().enumerate().map(|(i, &x)| if last_of_third(i) { -95.0 } else { x }).collect();
        let begins = |i: usize| i % shape[1] % BLOCK < 64 && i / shape[1] % 3 != 1;
        let low: Vec<f64> =
            near.iter().enumerate().map(|(i, &x)| if begins(i) { x - 80.0 } else { x }).collect();
        for ((log, dtypes, forward), x) in
            forwards.iter().flat_map(|f| [&near, &wide, &mixed, &low].map(|x| (f, x)))
        {
            let case = Case::new(*log, *dtypes, shape, x);
            let (from, to) = (size_of_dtype(case.src), size_of_dtype(case.dst));
            for isa in Isa::available() {
                for odd in [0, 1, 7] {
                    let mut src = Placed::bytes(&case.x, odd * from);
                    let [mut plain, mut streamed] = [0; 2].map(|_| Placed::poison(count * to, odd * to));
                    case.run(isa, &Serial, src.ptr(), plain.ptr());
                    let args = case.args(src.ptr(), streamed.ptr());
                    // SAFETY: the buffers have the case's size.
                    unsafe { forward(isa, &Threads(2), &args, *log, count, true) }.unwrap();
                    assert!(plain.get() == streamed.get(), "{}", case.name(isa));
                }
            }
        }
    }
}

/// Numbers of f32 as bf16, two vectors at a time, and bf16 as f32.
struct Converted<'a> {
    x: &'a [f32],
    narrow: &'a mut [u16],
    wide: &'a mut [u32],
}

impl Body<f32> for Converted<'_> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<Lane = f32>>(self) {
        let two = 2 * V::LANES;
        for at in (0..self.x.len()).step_by(two) {
            let (x, narrow) = (&self.x[at..at + two], &mut self.narrow[at..at + two]);
            let wide = &mut self.wide[at..at + two];
            // SAFETY: the slices have two vectors of elements.
            unsafe {
                let [x, next] = [V::load(x.as_ptr()), V::load(x[V::LANES..].as_ptr())];
                x.store_two(next, narrow.as_mut_ptr().cast::<bf16>(), false, V::narrows::<bf16>());
                V::load(narrow.as_ptr().cast::<bf16>()).store(wide.as_mut_ptr().cast::<f32>());
                let (from, to) = (&narrow[V::LANES..], &mut wide[V::LANES..]);
                V::load(from.as_ptr().cast::<bf16>()).store(to.as_mut_ptr().cast::<f32>());
            }
        }
    }
}

/// Where an instruction rounds, it rounds as everything else does, but for subnormal numbers.
#[test]
fn bf16_is_rounded_to_nearest_even() {
    let mut rng = Rng::new();
    let mut x: Vec<f32> = (0..1 << 16).map(|_| f32::from_bits(rng.next() as u32)).collect();
    // All bf16, what is half-way to the next, and what is beside that.
    x.extend(
        (0..1 << 18).map(|i: u32| f32::from_bits(i >> 2 << 16 | [0, 0x7fff, 0x8000, 0x8001][i as usize % 4])),
    );
    for x in &mut x {
        if x.is_subnormal() {
            *x = 0.0;
        }
    }
    let (mut narrow, mut wide) = (vec![0; x.len()], vec![0; x.len()]);
    for isa in Isa::available() {
        dispatch::<f32, _>(isa, Converted { x: &x, narrow: &mut narrow, wide: &mut wide });
        for ((x, &narrow), &wide) in x.iter().zip(&narrow).zip(&wide) {
            let (got, want) = (bf16::from_bits(narrow), bf16::from_f32(*x));
            let same = narrow == want.to_bits() || got.is_nan() && want.is_nan();
            assert!(same, "{x:e} at {isa}: {got:e}, not {want:e}");
            assert_eq!(wide, u32::from(narrow) << 16, "{got:e} at {isa}");
        }
    }
}

/// The vectors of other processors compute what the baseline's of this one do.
#[test]
fn portable_vectors_give_the_same_bits() {
    let mut rng = Rng::new();
    for (rows, cols) in [(9, 5), (6, 67), (3, 1000)] {
        let x: Vec<f64> = (0..rows * cols).map(|_| rng.signed() * 30.0).collect();
        let case = Case::new(false, F32, [rows, cols, 1], &x);
        let mut src = Placed::bytes(&case.x, 0);
        let [mut want, mut got] = [0; 2].map(|_| Placed::poison(4 * x.len(), 0));
        case.run(Isa::BASELINE, &Serial, src.ptr(), want.ptr());
        let (src, dst) = (src.ptr().cast_const().cast::<f32>(), got.ptr().cast::<f32>());
        let m = Matrix { rows, cols, src, dst, stream: false, log: false };
        Rows { part: m, asks: false }.run::<Portable<f32>>();
        assert!(want.get() == got.get(), "[{rows}, {cols}]");
    }
}

use super::backward::{self, backward};
use super::tests::{Placed, along_cols, compute_epsilon, size_of_dtype, storing};
use super::*;
use crate::isa::HALVES_FORCED;
use crate::kernels::testing::{Rng, Threads, decode, encode};
use crate::kernels::{log_softmax_backward, softmax_backward};
use ep_core::parallel::Serial;

struct Case {
    log: bool,
    src: DType,
    dst: DType,
    shape: [usize; 3],
    y: Vec<u8>,
    dy: Vec<u8>,
    /// By how many times the distance from 1 to the next number, of its terms' sizes, a sum may be off.
    sum_slack: f64,
}

impl Case {
    fn new(log: bool, [src, dst]: [DType; 2], shape: [usize; 3], y: &[f64], dy: &[f64]) -> Self {
        Self { log, src, dst, shape, y: encode(src, y), dy: encode(src, dy), sum_slack: 4.0 }
    }

    /// One term may be larger than all others together: whatever is added to it, or joined with it, is rounded at its
    /// size, by half of that distance. A row goes to sixteen lanes at least, a block of it at a time; a column that is
    /// apart to one.
    fn with_large_terms(self) -> Self {
        let lanes = if self.shape[2] == 1 { 16 } else { 1 };
        let added = self.shape[1].min(backward::BLOCK).div_ceil(lanes) + 3;
        Self { sum_slack: 4.0 + added as f64 / 2.0, ..self }
    }

    /// A forward result as `y`, or with `wild` any number; `dy` of both signs.
    fn random(log: bool, dtypes: [DType; 2], shape: [usize; 3], wild: bool) -> Self {
        let mut rng = Rng::new();
        let count = shape.iter().product();
        let dy: Vec<f64> = (0..count).map(|_| rng.signed() * 3.0).collect();
        let y = (0..count).map(|_| match (wild, log) {
            (true, _) => rng.signed() * 4.0,
            (false, true) => -rng.signed().abs() * 100.0,
            (false, false) => rng.signed().abs() / shape[1] as f64,
        });
        Self::new(log, dtypes, shape, &y.collect::<Vec<_>>(), &dy)
    }

    fn kernel(&self) -> BackwardFn {
        let lookup = if self.log { log_softmax_backward::lookup } else { softmax_backward::lookup };
        lookup(self.src, self.dst).unwrap()
    }

    fn args(&self, y: *const u8, dy: *const u8, dx: *mut u8) -> BackwardArgs {
        let [rows, cols, inner] = self.shape;
        BackwardArgs { rows, cols, inner, y, dy, dx }
    }

    fn run(&self, isa: Isa, par: &dyn Parallel, y: *const u8, dy: *const u8, dx: *mut u8) {
        // SAFETY: the callers give buffers of the case's size.
        unsafe { self.kernel()(isa, par, &self.args(y, dy, dx)) }.unwrap();
    }

    fn name(&self, isa: Isa) -> String {
        let op = if self.log { "log_softmax_backward" } else { "softmax_backward" };
        format!("{op} {} -> {} {:?} at {isa}", self.src, self.dst, self.shape)
    }

    /// What is wanted, and by how much computing may miss it.
    fn reference(&self) -> Vec<(f64, f64)> {
        let (y, dy) = (decode(self.src, &self.y), decode(self.src, &self.dy));
        let mut want = vec![(0.0, 0.0); y.len()];
        let compute = compute_epsilon(self.src, self.dst);
        along_cols(self.shape, |line| {
            let line: Vec<usize> = line.collect();
            let terms: Vec<f64> = line.iter().map(|&i| if self.log { dy[i] } else { y[i] * dy[i] }).collect();
            let sum: f64 = terms.iter().sum();
            let total: f64 = terms.iter().map(|t| t.abs()).sum();
            for i in line {
                let dx = if self.log { dy[i] - y[i].exp() * sum } else { (dy[i] - sum) * y[i] };
                let (size, total) = (4.0 * dy[i].abs(), self.sum_slack * total);
                let size = if self.log { size + y[i].exp() * total } else { y[i].abs() * (size + total) };
                want[i] = (dx, compute * size + storing(self.src, self.dst, dx));
            }
        });
        want
    }

    fn check(&self) {
        let want = self.reference();
        let (from, to) = (size_of_dtype(self.src), size_of_dtype(self.dst));
        for isa in Isa::available() {
            let mut first: Option<Vec<u8>> = None;
            for (par, odd) in [(&Serial as &dyn Parallel, 0), (&Threads(3), 1), (&Threads(2), 3)] {
                let mut y = Placed::bytes(&self.y, odd * from);
                let mut dy = Placed::bytes(&self.dy, 2 * odd * from);
                let mut dx = Placed::poison(want.len() * to, odd * to);
                self.run(isa, par, y.ptr(), dy.ptr(), dx.ptr());
                let bytes = dx.get();
                assert!(y.get() == self.y && dy.get() == self.dy, "{} changes a source", self.name(isa));
                for (i, (&g, &(w, allowed))) in decode(self.dst, &bytes).iter().zip(&want).enumerate() {
                    let fits = (g - w).abs() <= allowed || g == w || g.is_nan() && w.is_nan();
                    assert!(fits, "{} at {i}: {g:e}, not {w:e} within {allowed:e}", self.name(isa));
                }
                assert!(bytes == *first.get_or_insert(bytes.clone()), "{} differs in bits", self.name(isa));
            }
            if from == to {
                let want = first.unwrap();
                let (mut y, mut dy) = (Placed::bytes(&self.y, from), Placed::bytes(&self.dy, 0));
                let p = y.ptr();
                self.run(isa, &Threads(2), p, dy.ptr(), p);
                assert!(y.get() == want, "{} in place of y", self.name(isa));
                let mut y = Placed::bytes(&self.y, from);
                let p = dy.ptr();
                self.run(isa, &Threads(2), y.ptr(), p, p);
                assert!(dy.get() == want, "{} in place of dy", self.name(isa));
            }
        }
    }
}

const F32: [DType; 2] = [DType::F32, DType::F32];

fn check_all(shape: [usize; 3], wild: bool) {
    for (src, dst) in softmax_backward::rows() {
        for log in [false, true] {
            Case::random(log, [src, dst], shape, wild).check();
        }
    }
}

fn check_some(shape: [usize; 3]) {
    for dtypes in [F32, [DType::F16, DType::F16], [DType::BF16, DType::F32]] {
        for log in [false, true] {
            Case::random(log, dtypes, shape, false).check();
        }
    }
}

#[test]
fn all_dtypes() {
    let shapes = [
        [5, 2, 1],
        [18, 15, 1],
        [3, 37, 1],
        [2, 257, 1],
        [1, 2100, 1],
        [3, 1, 5],
        [2, 7, 3],
        [2, 9, 70],
        [9, 4, 1],
        [9, 8, 1],
        [9, 16, 1],
        [9, 32, 1],
    ];
    for shape in shapes {
        check_all(shape, false);
        check_all(shape, true);
    }
}

#[test]
fn rows_of_every_width() {
    for intel in [false, true] {
        stream::INTEL_FORCED.set(Some(intel));
        for cols in (1..=34).chain([48, 63, 64, 65, 129, 255, 256, 257, 300, 1000, 3001]) {
            check_some([if cols < 65 { 19 } else { 3 }, cols, 1]);
        }
    }
    stream::INTEL_FORCED.set(None);
    // Fewer rows than threads share a row.
    for cols in [16 * 2048, 40_001] {
        check_some([2, cols, 1]);
    }
}

#[test]
fn strips_of_every_width() {
    for inner in (2..=9).chain([15, 16, 17, 31, 33, 64, 100, 511, 513, 1100]) {
        check_some([2, 11, inner]);
    }
    for (cols, inner) in [(600, 40), (8200, 17)] {
        check_some([1, cols, inner]);
    }
}

#[test]
fn many_rows_are_shared_out() {
    for shape in [[700, 67, 1], [20, 2000, 1], [5, 4200, 1], [3, 16_500, 1], [5, 40, 300], [70_000, 1, 1]] {
        check_some(shape);
    }
}

/// Large exponents, infinities and NaN go where the formula takes them.
#[test]
fn specials_follow_the_formula() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let specials = [nan, inf, -inf, 0.0, -0.0, 88.5, -88.5, -200.0, 1e4, -1e4];
    let mut rng = Rng::new();
    for shape in [[8, 5, 1], [8, 16, 1], [8, 32, 1], [8, 37, 1], [8, 300, 1], [1, 6, 8], [1, 1, 8]] {
        let count: usize = shape.iter().product();
        for _ in 0..6 {
            let mut numbers = || -> Vec<f64> {
                let mut x: Vec<f64> = (0..count).map(|_| rng.signed()).collect();
                for _ in 0..3 {
                    x[rng.next() as usize % count] = specials[rng.next() as usize % specials.len()];
                }
                x
            };
            let (y, dy) = (numbers(), numbers());
            Case::new(false, F32, shape, &y, &dy).with_large_terms().check();
            // An exponential beyond the range of f32 is inf or 0, of which products with 0 or inf are NaN: in f64
            // they are not.
            let y: Vec<f64> =
                y.iter().map(|y| if y.is_finite() { y.clamp(-70.0, 70.0) } else { *y }).collect();
            Case::new(true, F32, shape, &y, &dy).with_large_terms().check();
        }
    }
}

/// Near the end of its range an exponential is finite as long as it can be.
#[test]
fn large_logarithms_have_finite_gradients() {
    for y in [88.3, 88.5, 88.7] {
        Case::new(true, F32, [1, 2, 1], &[y, 0.0], &[0.25, 0.5]).check();
    }
    for y in [709.2, 709.5, 709.7] {
        Case::new(true, [DType::F64; 2], [1, 2, 1], &[y, 0.0], &[0.25, 0.5]).check();
    }
}

/// More than half of the largest number: neither twice the sum nor a part of it may be infinite.
#[test]
fn large_sums_have_finite_gradients() {
    for (dtype, large) in [(DType::F32, 2.2e38), (DType::BF16, 2.2e38), (DType::F64, 1.2e308)] {
        for sign in [1.0, -1.0] {
            for inner in [1, 3] {
                let of = |x: &[f64]| x.iter().flat_map(|x| vec![*x; inner]).collect::<Vec<_>>();
                Case::new(true, [dtype; 2], [1, 1, inner], &of(&[0.0]), &of(&[sign * large])).check();
                let (y, dy) = ([0.0, -200.0], [0.0, sign * large]);
                Case::new(true, [dtype; 2], [1, 2, inner], &of(&y), &of(&dy)).check();
            }
        }
    }
}

#[test]
fn empty_is_nothing_and_too_large_an_error() {
    let run = |shape| {
        let case = Case::new(true, [DType::F16, DType::F64], shape, &[], &[]);
        let args = case.args(std::ptr::null(), std::ptr::null(), std::ptr::null_mut());
        // SAFETY: there is nothing to read or write, or the sizes are refused first.
        unsafe { case.kernel()(Isa::BASELINE, &Threads(2), &args) }
    };
    for shape in [[0, 5, 1], [5, 0, 1], [0, 0, 1], [3, 4, 0], [0, 7, 9]] {
        run(shape).unwrap();
    }
    for shape in [[usize::MAX / 2, 3, 1], [1 << 31, 1 << 31, 1 << 3]] {
        let e = run(shape).unwrap_err();
        assert_eq!(e.code(), ep_core::Code::InvalidArgument);
        assert!(e.message().contains("no address space"), "{e}");
    }
    assert!(softmax_backward::lookup(DType::F32, DType::I32).is_none());
    assert_eq!(log_softmax_backward::rows().count(), 16);
}

type Backward = unsafe fn(Isa, &dyn Parallel, &BackwardArgs, usize, bool) -> Result<()>;

/// Short rows without exponentials are computed at the level for memory, whose sums are in an order of their own.
#[test]
fn short_rows_are_for_memory() {
    let case = Case::random(false, F32, [50, 37, 1], false);
    let run = |isa: Isa| {
        let [mut y, mut dy] = [Placed::bytes(&case.y, 0), Placed::bytes(&case.dy, 0)];
        let mut dx = Placed::poison(50 * 37 * 4, 0);
        case.run(isa, &Serial, y.ptr(), dy.ptr(), dx.ptr());
        dx.get()
    };
    for isa in Isa::available() {
        for halves in [false, true] {
            HALVES_FORCED.set(Some(halves));
            let got = run(isa);
            let memory = isa.for_memory();
            HALVES_FORCED.set(Some(false));
            assert!(got == run(memory), "{isa} {halves}");
        }
    }
    HALVES_FORCED.set(None);
}

/// Streaming stores are for sizes that tests have no time for: here they are asked for.
#[test]
fn streaming_gives_the_same_bits() {
    let backwards: [(bool, [DType; 2], Backward); 4] = [
        (false, F32, backward::<f32, f32, f32, false>),
        (true, F32, backward::<f32, f32, f32, true>),
        (false, [DType::BF16, DType::BF16], backward::<bf16, bf16, f32, false>),
        (true, [DType::F64, DType::F64], backward::<f64, f64, f64, true>),
    ];
    let shapes = [
        [50, 3, 1],
        [33, 16, 1],
        [50, 32, 1],
        [33, 37, 1],
        [40, 64, 1],
        [6, 300, 1],
        [37, 1003, 1],
        [5, 4200, 1],
        [3, 16_500, 1],
        [2, 40_001, 1],
        [2, 9, 33],
        [3, 5, 700],
        [70, 1, 1],
    ];
    for shape in shapes {
        let count: usize = shape.iter().product();
        for (log, dtypes, backward) in backwards {
            let case = Case::random(log, dtypes, shape, false);
            let (from, to) = (size_of_dtype(case.src), size_of_dtype(case.dst));
            for isa in Isa::available() {
                for odd in [0, 1, 7] {
                    let mut y = Placed::bytes(&case.y, odd * from);
                    let mut dy = Placed::bytes(&case.dy, 0);
                    let [mut plain, mut streamed] = [0; 2].map(|_| Placed::poison(count * to, odd * to));
                    case.run(isa, &Serial, y.ptr(), dy.ptr(), plain.ptr());
                    let args = case.args(y.ptr(), dy.ptr(), streamed.ptr());
                    // SAFETY: the buffers have the case's size.
                    unsafe { backward(isa, &Threads(2), &args, count, true) }.unwrap();
                    assert!(plain.get() == streamed.get(), "{}", case.name(isa));
                }
            }
        }
    }
}

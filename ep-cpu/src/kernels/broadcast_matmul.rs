//! Broadcast matmul: products of batches that broadcast, or are summed over.
//!
//! The batch dimensions become loops with a step for each operand, 0 where it is broadcast. Loops whose matrices lie
//! behind each other as rows, columns or depth of one larger matrix are folded into it: a `b` that all of a batch share is
//! multiplied once by all rows, and a sum over a batch becomes a longer depth.

use crate::isa::Isa;
use crate::kernels::batch_matmul;
use crate::kernels::gemm::{self, Element, Loop, Problem};
use crate::kernels::matmul::{self, MatmulArgs};
use ep_core::op::MAX_DIMS;
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};

/// Arguments of a [`BroadcastMatmulFn`].
#[derive(Clone, Copy, Debug)]
pub struct BroadcastMatmulArgs<'a> {
    /// Whether the matrices of `a` are stored as `[k, m]` and not as `[m, k]`. Complex ones are then conjugated too.
    pub trans_a: bool,
    /// Whether those of `b` are stored as `[n, k]` and not as `[k, n]`. Complex ones are then conjugated too.
    pub trans_b: bool,
    /// Factor of the product: real and imaginary part. With zero, `a` and `b` are not read.
    pub alpha: (f64, f64),
    /// Factor of the old `c`: real and imaginary part. With zero, `c` is not read, so that a NaN there is gone.
    pub beta: (f64, f64),
    /// Shape of `a` as stored, of 2 to [`MAX_DIMS`] dimensions.
    pub a_dims: &'a [usize],
    /// Shape of `b` as stored, likewise.
    pub b_dims: &'a [usize],
    /// Shape of `c`, likewise.
    pub c_dims: &'a [usize],
    /// Left factor, aligned to its elements.
    pub a: *const u8,
    /// Right factor, aligned to its elements.
    pub b: *const u8,
    /// Result, aligned to its elements.
    pub c: *mut u8,
}

/// `c = alpha * sum(op(a) * op(b)) + beta * c`, over dense row-major matrices.
///
/// Batch dimensions are the ones before the last two. Those of `a` and `b` broadcast; one of `c` is the same, or 1 (or
/// missing), in which case the products along it are summed. `beta` applies once. f16 and bf16 add up in f32 over the
/// depth and over summed batches and round once, integers wrap. The result does not depend on the number of threads.
///
/// # Errors
/// `InvalidArgument` for shapes that do not fit together, and as [`MatmulFn`](matmul::MatmulFn).
///
/// # Safety
/// `a` and `b` are readable and `c` readable and writable for their shapes, with no other access to `c` until this
/// returns; `c` overlaps neither.
pub type BroadcastMatmulFn =
    unsafe fn(isa: Isa, par: &dyn Parallel, args: &BroadcastMatmulArgs<'_>) -> Result<()>;

/// The kernel for a dtype: the integers, the floating-point ones and the complex ones.
pub fn lookup(dtype: DType) -> Option<BroadcastMatmulFn> {
    batch_matmul::TABLE.iter().find(|row| row.dtype == dtype).map(|row| row.broadcast)
}

/// Every dtype that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = DType> {
    batch_matmul::rows()
}

/// The kernel behind the table.
///
/// # Safety
/// As for [`BroadcastMatmulFn`].
pub(super) unsafe fn broadcast<T: Element>(
    isa: Isa,
    par: &dyn Parallel,
    args: &BroadcastMatmulArgs<'_>,
) -> Result<()> {
    let &BroadcastMatmulArgs { trans_a, trans_b, alpha, beta, a, b, c, .. } = args;
    let (m, n, k) = sizes(args).ok_or_else(|| misfit(args))?;
    let Loops { mut outer, mut inner } = Loops::new(args, (m, n, k)).ok_or_else(|| misfit(args))?;
    for dims in [args.a_dims, args.b_dims, args.c_dims] {
        let bytes = dims.iter().try_fold(size_of::<T>(), |p, &x| p.checked_mul(x));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) && !dims.contains(&0) {
            return Err(too_large(args));
        }
    }
    if inner.as_slice().iter().try_fold(k, |depth, l| depth.checked_mul(l.len)).is_none() {
        return Err(too_large(args));
    }
    if args.c_dims.contains(&0) {
        // Nothing to do. The scalars are still judged.
        T::scalar("alpha", alpha)?;
        T::scalar("beta", beta)?;
        return Ok(());
    }
    let each = MatmulArgs { m, n, k, trans_a, trans_b, alpha, a, b, beta, c };
    let mut problem = matmul::problem::<T>(&each, &[]);
    if k > 0 {
        fold(&mut problem, &mut outer, &mut inner);
    }
    let problem = Problem { outer: outer.as_slice(), inner: inner.as_slice(), ..problem };
    // SAFETY: the caller's promise: the loops go through matrices inside the operands.
    unsafe { gemm::solve(isa, par, &problem, alpha, beta) }
}

/// `m`, `n` and `k`; `None` if ranks or matrices do not fit.
fn sizes(args: &BroadcastMatmulArgs<'_>) -> Option<(usize, usize, usize)> {
    let matrix = |dims: &[usize], trans: bool| match *dims {
        [.., rows, cols] if dims.len() <= MAX_DIMS => Some(if trans { (cols, rows) } else { (rows, cols) }),
        _ => None,
    };
    let ((m, k), (k_b, n)) = (matrix(args.a_dims, args.trans_a)?, matrix(args.b_dims, args.trans_b)?);
    (matrix(args.c_dims, false)? == (m, n) && k == k_b).then_some((m, n, k))
}

/// At most as many loops as there are batch dimensions.
#[derive(Clone, Copy)]
struct List {
    loops: [Loop; MAX_DIMS],
    len: usize,
}

impl List {
    const EMPTY: List = List { loops: [Loop { len: 0, a: 0, b: 0, c: 0 }; MAX_DIMS], len: 0 };

    /// Outermost first. They lie at the end of the array, as they come innermost first.
    fn as_slice(&self) -> &[Loop] {
        &self.loops[MAX_DIMS - self.len..]
    }

    /// Adds a loop around the others, or makes the outermost longer where the new one continues it.
    fn surround(&mut self, new: Loop) {
        if let Some(old) = self.loops.get_mut(MAX_DIMS - self.len) {
            let after = |step: usize| step.checked_mul(old.len);
            let continues =
                (after(old.a), after(old.b), after(old.c)) == (Some(new.a), Some(new.b), Some(new.c));
            // Batches of empty matrices may be more than a number counts.
            if let Some(len) = old.len.checked_mul(new.len).filter(|_| continues) {
                old.len = len;
                return;
            }
        }
        self.len += 1;
        self.loops[MAX_DIMS - self.len] = new;
    }

    /// Takes out the innermost loop that `fits`.
    fn take(&mut self, fits: impl Fn(&Loop) -> bool) -> Option<Loop> {
        let from = MAX_DIMS - self.len;
        let at = self.loops[from..].iter().rposition(fits)? + from;
        let found = self.loops[at];
        self.loops.copy_within(from..at, from + 1);
        self.len -= 1;
        Some(found)
    }
}

/// The batch dimensions: those of the result, and those that are summed over.
struct Loops {
    outer: List,
    inner: List,
}

impl Loops {
    /// `None` if the batches do not fit together.
    fn new(args: &BroadcastMatmulArgs<'_>, (m, n, k): (usize, usize, usize)) -> Option<Loops> {
        let batch = |dims: &[usize], i: usize| {
            let len = dims.len() - 2;
            if i < len { dims[len - 1 - i] } else { 1 }
        };
        // Sizes that no address space holds are found elsewhere.
        let mut steps = [m.wrapping_mul(k), k.wrapping_mul(n), m.wrapping_mul(n)];
        let mut loops = Loops { outer: List::EMPTY, inner: List::EMPTY };
        let rank = args.a_dims.len().max(args.b_dims.len()).max(args.c_dims.len()) - 2;
        for i in 0..rank {
            let lens = [args.a_dims, args.b_dims, args.c_dims].map(|dims| batch(dims, i));
            let all = match lens {
                [a, b, _] if a == b || b == 1 => a,
                [1, b, _] => b,
                _ => return None,
            };
            let [a, b, c] = [0, 1, 2].map(|x| if lens[x] == 1 { 0 } else { steps[x] });
            match lens[2] {
                c_len if c_len == all && all != 1 => loops.outer.surround(Loop { len: all, a, b, c }),
                1 if all != 1 => loops.inner.surround(Loop { len: all, a, b, c: 0 }),
                1 => {}
                _ => return None,
            }
            for (step, len) in steps.iter_mut().zip(lens) {
                *step = step.wrapping_mul(len);
            }
        }
        Some(loops)
    }
}

/// Makes the matrices larger by the loops that go on where a matrix ends.
fn fold<T>(p: &mut Problem<'_, T>, outer: &mut List, inner: &mut List) {
    let ends = |len: usize, step: usize| len.checked_mul(step);
    while let Some(l) = inner.take(|l| {
        Some(l.a) == ends(p.k, p.a.cs) && Some(l.b) == ends(p.k, p.b.rs) && p.k.checked_mul(l.len).is_some()
    }) {
        p.k *= l.len;
    }
    loop {
        if let Some(l) =
            outer.take(|l| l.b == 0 && Some(l.a) == ends(p.m, p.a.rs) && Some(l.c) == ends(p.m, p.c_rs))
        {
            p.m *= l.len;
        } else if let Some(l) =
            outer.take(|l| l.a == 0 && Some(l.b) == ends(p.n, p.b.cs) && l.c == p.n && p.m == 1)
        {
            p.n *= l.len;
        } else {
            return;
        }
    }
}

#[cold]
fn misfit(args: &BroadcastMatmulArgs<'_>) -> Error {
    let BroadcastMatmulArgs { a_dims, b_dims, c_dims, trans_a, trans_b, .. } = args;
    let stored = |trans: &bool| if *trans { " (transposed)" } else { "" };
    Error::invalid(format!(
        "broadcast_matmul of {a_dims:?}{} and {b_dims:?}{} into {c_dims:?}: each needs 2 to {MAX_DIMS} dimensions, the \
         matrices must fit, and batch dimensions be equal or 1",
        stored(trans_a),
        stored(trans_b)
    ))
}

#[cold]
fn too_large(args: &BroadcastMatmulArgs<'_>) -> Error {
    let BroadcastMatmulArgs { a_dims, b_dims, c_dims, .. } = args;
    Error::invalid(format!(
        "broadcast_matmul of {a_dims:?} and {b_dims:?} into {c_dims:?}: no address space holds that"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::check::Buffer;
    use crate::kernels::testing::{Rng, Threads, decode, encode, epsilon};
    use ep_core::Code;
    use ep_core::parallel::Serial;

    type Complex = (f64, f64);

    fn mul(x: Complex, y: Complex) -> Complex {
        (x.0 * y.0 - x.1 * y.1, x.0 * y.1 + x.1 * y.0)
    }

    /// Shapes, data and scalars of a launch. Values are small whole numbers for integers.
    struct Case {
        dtype: DType,
        trans: [bool; 2],
        dims: [Vec<usize>; 3],
        alpha: Complex,
        beta: Complex,
        data: [Vec<u8>; 3],
    }

    fn stored(dtype: DType, values: &[Complex]) -> Vec<u8> {
        if dtype.is_int() {
            let size = dtype.size().unwrap();
            return values.iter().flat_map(|v| (v.0 as i64).to_le_bytes()[..size].to_vec()).collect();
        }
        let parts: Vec<f64> = match dtype.is_complex() {
            true => values.iter().flat_map(|v| [v.0, v.1]).collect(),
            false => values.iter().map(|v| v.0).collect(),
        };
        encode(dtype, &parts)
    }

    /// Integers come as their bits without sign.
    fn values(dtype: DType, bytes: &[u8]) -> Vec<Complex> {
        if dtype.is_int() {
            let wide = |e: &[u8]| e.iter().rev().fold(0u64, |v, &b| (v << 8) | u64::from(b));
            return bytes.chunks_exact(dtype.size().unwrap()).map(|e| (wide(e) as i64 as f64, 0.0)).collect();
        }
        let parts = decode(dtype, bytes);
        match dtype.is_complex() {
            true => parts.chunks_exact(2).map(|p| (p[0], p[1])).collect(),
            false => parts.into_iter().map(|re| (re, 0.0)).collect(),
        }
    }

    impl Case {
        fn new(
            dtype: DType,
            batches: [&[usize]; 3],
            (m, n, k): (usize, usize, usize),
            trans: usize,
            rng: &mut Rng,
        ) -> Case {
            let trans = [trans & 1 != 0, trans & 2 != 0];
            let turned = |rows, cols, on: bool| if on { [cols, rows] } else { [rows, cols] };
            let matrices = [turned(m, k, trans[0]), turned(k, n, trans[1]), [m, n]];
            let dims = [0, 1, 2].map(|x| [batches[x], &matrices[x]].concat());
            let data = [0, 1, 2].map(|x| {
                let mut value = || match dtype.is_int() {
                    true => ((rng.next() % 7) as f64 - 3.0 * f64::from(u8::from(x == 0)), 0.0),
                    false => (rng.signed(), rng.signed()),
                };
                stored(dtype, &(0..dims[x].iter().product()).map(|_| value()).collect::<Vec<_>>())
            });
            Case { dtype, trans, dims, alpha: (1.0, 0.0), beta: (0.0, 0.0), data }
        }

        fn name(&self) -> String {
            format!(
                "{} {:?} {:?} alpha {:?} beta {:?}",
                self.dtype, self.dims, self.trans, self.alpha, self.beta
            )
        }

        fn run(&self, isa: Isa, par: &dyn Parallel) -> Result<Vec<u8>> {
            let size = self.dtype.size().unwrap();
            let [mut a, mut b, mut c] = [0, 1, 2].map(|x| Buffer::of(&self.data[x], size));
            let args = BroadcastMatmulArgs {
                trans_a: self.trans[0],
                trans_b: self.trans[1],
                alpha: self.alpha,
                beta: self.beta,
                a_dims: &self.dims[0],
                b_dims: &self.dims[1],
                c_dims: &self.dims[2],
                a: a.ptr(),
                b: b.ptr(),
                c: c.ptr(),
            };
            // SAFETY: the buffers hold these shapes.
            unsafe { lookup(self.dtype).unwrap()(isa, par, &args)? };
            assert!(a.into_bytes() == self.data[0] && b.into_bytes() == self.data[1], "a factor was written");
            Ok(c.into_bytes())
        }

        /// One element after the other. Also the sums of absolute values, by which errors are judged.
        fn expected(&self) -> (Vec<Complex>, Vec<f64>) {
            let [a, b, c] = [0, 1, 2].map(|x| values(self.dtype, &self.data[x]));
            let (matrices, batches): (Vec<_>, Vec<_>) =
                self.dims.iter().map(|d| ((d[d.len() - 2], d[d.len() - 1]), &d[..d.len() - 2])).unzip();
            let rank = batches.iter().map(|b| b.len()).max().unwrap();
            let len = |x: usize, i: usize| {
                let skipped = rank - batches[x].len();
                if i < skipped { 1 } else { batches[x][i - skipped] }
            };
            let all: Vec<usize> =
                (0..rank).map(|i| if len(0, i) == 1 { len(1, i) } else { len(0, i) }).collect();
            let (m, n) = matrices[2];
            let k = if self.trans[0] { matrices[0].0 } else { matrices[0].1 };
            let mut sums = vec![(0.0, 0.0); c.len()];
            let mut sizes = vec![0.0; c.len()];
            for mut position in 0..all.iter().product() {
                let mut offsets = [0; 3];
                let mut steps = [m * k, k * n, m * n];
                for i in (0..rank).rev() {
                    let at = position % all[i];
                    position /= all[i];
                    for x in 0..3 {
                        offsets[x] += at % len(x, i) * steps[x];
                        steps[x] *= len(x, i);
                    }
                }
                for i in 0..m {
                    for j in 0..n {
                        for p in 0..k {
                            let mut x = a[offsets[0] + if self.trans[0] { p * m + i } else { i * k + p }];
                            let mut y = b[offsets[1] + if self.trans[1] { j * k + p } else { p * n + j }];
                            x.1 = if self.trans[0] { -x.1 } else { x.1 };
                            y.1 = if self.trans[1] { -y.1 } else { y.1 };
                            let (product, at) = (mul(x, y), offsets[2] + i * n + j);
                            sums[at] = (sums[at].0 + product.0, sums[at].1 + product.1);
                            sizes[at] += x.0.hypot(x.1) * y.0.hypot(y.1);
                        }
                    }
                }
            }
            let size = |z: Complex| z.0.hypot(z.1);
            for (i, sum) in sums.iter_mut().enumerate() {
                let old = if self.beta == (0.0, 0.0) { (0.0, 0.0) } else { mul(self.beta, c[i]) };
                let product = mul(self.alpha, *sum);
                *sum = (product.0 + old.0, product.1 + old.1);
                sizes[i] = size(self.alpha) * sizes[i] + size(old);
            }
            (sums, sizes)
        }

        #[track_caller]
        fn check(&self) {
            let (want, sizes) = self.expected();
            for isa in Isa::available() {
                let got = self.run(isa, &Serial).unwrap();
                assert!(got == self.run(isa, &Threads(3)).unwrap(), "{} changes with threads", self.name());
                if self.dtype.is_int() {
                    // Sums of small numbers are exact, and wrap when they are stored.
                    assert!(got == stored(self.dtype, &want), "{} at {isa}", self.name());
                    continue;
                }
                let compute = epsilon(self.dtype).min(f32::EPSILON.into());
                let terms = self.dims.iter().flatten().product::<usize>().min(10_000) as f64;
                for (i, (got, want)) in values(self.dtype, &got).into_iter().zip(&want).enumerate() {
                    for (g, w) in [(got.0, want.0), (got.1, want.1)] {
                        let allowed =
                            compute * sizes[i] * (4.0 + terms.sqrt()) + w.abs() * epsilon(self.dtype) + 1e-7;
                        assert!(
                            (g - w).abs() <= allowed,
                            "{} at {isa}, element {i}: {g:e}, not {w:e}",
                            self.name()
                        );
                    }
                }
            }
        }
    }

    fn scalars(dtype: DType) -> (Complex, Complex) {
        match dtype.is_complex() {
            true => ((0.5, -1.5), (0.25, 2.0)),
            false if dtype.is_int() => ((3.0, 0.0), (2.0, 0.0)),
            false => ((-1.75, 0.0), (0.5, 0.0)),
        }
    }

    #[test]
    fn random_batches_broadcast_and_sum() {
        let mut rng = Rng::new();
        assert_eq!(rows().count(), 14);
        for round in 0..3 {
            for dtype in rows() {
                for trans in 0..4 {
                    let all: Vec<usize> =
                        (0..rng.next() % 5).map(|_| 1 + (rng.next() % 3) as usize).collect();
                    let mut part = |one_in: u64| -> Vec<usize> {
                        let missing = if rng.next().is_multiple_of(3) {
                            rng.next() as usize % (all.len() + 1)
                        } else {
                            0
                        };
                        let mut some = |len: usize| if rng.next().is_multiple_of(one_in) { 1 } else { len };
                        all[missing..].iter().map(|&len| some(len)).collect()
                    };
                    let (a, b) = (part(3), part(4));
                    // What the two give together.
                    let rank = a.len().max(b.len());
                    let at =
                        |dims: &[usize], i: usize| (i + dims.len()).checked_sub(rank).map_or(1, |i| dims[i]);
                    let both: Vec<usize> = (0..rank).map(|i| at(&a, i).max(at(&b, i))).collect();
                    let mut c: Vec<usize> =
                        both.iter().map(|&len| if rng.next().is_multiple_of(3) { 1 } else { len }).collect();
                    let missing = c.iter().take_while(|&&len| len == 1).count();
                    c.drain(..rng.next() as usize % (missing + 1));
                    let mut size = || 1 + (rng.next() % 9) as usize;
                    let sizes = (size(), size(), size());
                    let mut case = Case::new(dtype, [&a, &b, &c], sizes, trans, &mut rng);
                    if (round + trans) % 2 == 0 {
                        (case.alpha, case.beta) = scalars(dtype);
                    }
                    case.check();
                }
            }
        }
    }

    /// Of several results that are each summed over, every one takes its own part of the old values.
    #[test]
    fn each_sum_applies_beta_once() {
        let mut rng = Rng::new();
        for dtype in rows() {
            for trans in 0..4 {
                let batches: [[&[usize]; 3]; 4] = [
                    [&[2, 3], &[2, 3], &[2, 1]],
                    [&[3, 2, 3], &[1, 2, 1], &[2, 1]],
                    [&[2, 3, 2], &[3, 1], &[2, 1, 2]],
                    [&[4], &[1], &[]],
                ];
                for batches in batches {
                    let mut case = Case::new(dtype, batches, (3, 5, 4), trans, &mut rng);
                    (case.alpha, case.beta) = scalars(dtype);
                    case.check();
                }
            }
        }
    }

    #[test]
    fn blocks_of_several_matrices() {
        let mut rng = Rng::new();
        for (dtype, batches, sizes) in [
            (DType::F32, [&[3, 2][..], &[1], &[1, 2]], (10, 50, 199)),
            (DType::F32, [&[2], &[2, 2], &[2, 2]], (65, 33, 20)),
            (DType::F64, [&[5], &[5], &[]], (33, 10, 77)),
            (DType::COMPLEX64, [&[2, 2], &[2], &[2, 1]], (7, 30, 50)),
            (DType::F16, [&[7], &[7], &[1]], (34, 9, 90)),
            (DType::BF16, [&[5], &[5], &[1]], (9, 10, 430)),
            (DType::BF16, [&[2, 1], &[2], &[2, 2]], (70, 40, 33)),
            (DType::I16, [&[3], &[3], &[1]], (130, 10, 20)),
            // Packed by all tasks together.
            (DType::F32, [&[3], &[3], &[1]], (131, 137, 50)),
            (DType::F16, [&[3], &[3], &[1]], (131, 137, 50)),
            // In parts on tiles, which want whole steps: blocks that end inside a matrix, and a factor that is the same for several.
            (DType::F32, [&[3], &[3], &[1]], (34, 40, 64)),
            (DType::F32, [&[2, 3], &[3], &[1]], (35, 33, 224)),
            (DType::F16, [&[3, 1], &[3, 2], &[1, 2]], (40, 34, 224)),
            (DType::COMPLEX64, [&[3], &[3], &[1]], (20, 35, 224)),
        ] {
            for trans in 0..4 {
                let mut case = Case::new(dtype, batches, sizes, trans, &mut rng);
                (case.alpha, case.beta) = scalars(dtype);
                case.check();
            }
        }
    }

    #[test]
    fn half_sums_over_batches_are_held_in_f32() {
        // In f16 the sum would stop at 2048, in bf16 at 256.
        for (dtype, len) in [(DType::F16, 4096), (DType::BF16, 2048)] {
            for sizes in [(1, 1, 1), (2, 3, 1), (20, 20, 1)] {
                let mut case = Case::new(dtype, [&[len], &[1], &[1]], sizes, 0, &mut Rng::new());
                for x in 0..2 {
                    let elements = case.data[x].len() / 2;
                    case.data[x] = encode(dtype, &vec![1.0; elements]);
                }
                for isa in Isa::available() {
                    let got = decode(dtype, &case.run(isa, &Serial).unwrap());
                    assert!(got.iter().all(|&x| x == len as f64), "{dtype} {sizes:?} {isa} {got:?}");
                }
            }
        }
    }

    #[test]
    fn empty_sizes() {
        let mut rng = Rng::new();
        for dtype in rows() {
            let (nothing, some): (&[usize], &[usize]) = (&[0], &[2]);
            for (batches, sizes) in [
                ([nothing, nothing, nothing], (3, 4, 5)),
                ([nothing, &[1], &[1]], (3, 4, 5)),
                ([&[1], nothing, &[]], (3, 4, 5)),
                ([some, some, some], (0, 4, 5)),
                ([some, some, some], (3, 0, 5)),
                ([some, some, some], (3, 4, 0)),
                ([some, some, &[1]], (3, 4, 0)),
            ] {
                for beta in [0.0, 1.0, 2.0] {
                    let mut case = Case::new(dtype, batches, sizes, 3, &mut rng);
                    case.beta.0 = beta;
                    case.check();
                }
            }
        }
    }

    #[test]
    fn batches_of_empty_matrices_may_be_more_than_a_number_counts() {
        const MANY: usize = 1 << 40;
        for (dims, beta) in [
            ([&[MANY, MANY, 2, 0][..], &[0, 3], &[2, 3]], 1.0),
            ([&[MANY, MANY, 0, 3], &[MANY, MANY, 3, 0], &[MANY, MANY, 0, 0]], 0.0),
        ] {
            let mut case = Case::new(DType::F32, [&[], &[], &[]], (2, 3, 0), 0, &mut Rng::new());
            case.dims = dims.map(<[usize]>::to_vec);
            case.beta.0 = beta;
            let before = case.data[2].clone();
            assert_eq!(case.run(Isa::BASELINE, &Serial).unwrap(), before);
        }
    }

    #[test]
    fn an_unread_result_may_hold_anything() {
        for dtype in rows().filter(|d| !d.is_int()) {
            let mut case = Case::new(dtype, [&[2, 3], &[3], &[2, 1]], (9, 17, 5), 2, &mut Rng::new());
            let values = decode(dtype, &case.data[2]).len();
            case.data[2] = encode(dtype, &vec![f64::NAN; values]);
            case.check();
        }
    }

    #[test]
    fn refusals() {
        let big = usize::MAX / 2;
        for dims in [
            [&[3][..], &[3, 4], &[3, 4]],
            [&[2, 3], &[4, 5], &[2, 5]],
            [&[2, 3], &[3, 5], &[5, 2]],
            [&[2, 2, 3], &[3, 3, 5], &[2, 2, 5]],
            [&[2, 2, 3], &[1, 3, 5], &[3, 2, 5]],
            [&[1, 2, 3], &[1, 3, 5], &[2, 2, 5]],
            [&[2, 3], &[3, 5], &[0, 2, 5]],
            [&[1, 1, 1, 1, 1, 1, 1, 2, 3], &[3, 5], &[2, 5]],
            [&[big, 2, 3], &[3, 5], &[1, 2, 5]],
            [&[big / 4, 1, 1, 1], &[big / 4, 1, 1], &[1, 1]],
        ] {
            let mut case = Case::new(DType::F32, [&[], &[], &[]], (1, 1, 1), 0, &mut Rng::new());
            case.dims = dims.map(<[usize]>::to_vec);
            let e = case.run(Isa::BASELINE, &Serial).unwrap_err();
            assert_eq!(e.code(), Code::InvalidArgument, "{dims:?}");
            assert!(e.message().contains("broadcast_matmul of ["), "{e}");
        }
        assert!(lookup(DType::BOOL).is_none());
    }

    #[test]
    fn loops_fold_into_larger_matrices() {
        let folded = |dims: [&[usize]; 3], trans: [bool; 2]| {
            let args = BroadcastMatmulArgs {
                trans_a: trans[0],
                trans_b: trans[1],
                alpha: (1.0, 0.0),
                beta: (0.0, 0.0),
                a_dims: dims[0],
                b_dims: dims[1],
                c_dims: dims[2],
                a: std::ptr::null(),
                b: std::ptr::null(),
                c: std::ptr::null_mut(),
            };
            let (m, n, k) = sizes(&args).unwrap();
            let Loops { mut outer, mut inner } = Loops::new(&args, (m, n, k)).unwrap();
            let BroadcastMatmulArgs { trans_a, trans_b, alpha, beta, a, b, c, .. } = args;
            let each = MatmulArgs { m, n, k, trans_a, trans_b, alpha, a, b, beta, c };
            let mut p = matmul::problem::<f32>(&each, &[]);
            fold(&mut p, &mut outer, &mut inner);
            (p.m, p.n, p.k, outer.len, inner.len)
        };
        // A shared `b` takes the rows of all batches, also with dimensions of 1 between.
        assert_eq!(folded([&[7, 5, 2, 3], &[3, 4], &[7, 5, 2, 4]], [false; 2]), (70, 4, 3, 0, 0));
        assert_eq!(folded([&[7, 1, 2, 3], &[1, 1, 3, 4], &[7, 1, 2, 4]], [false, false]), (14, 4, 3, 0, 0));
        // A batch that differs stays one loop.
        assert_eq!(folded([&[7, 5, 2, 3], &[7, 5, 3, 4], &[7, 5, 2, 4]], [false; 2]), (2, 4, 3, 1, 0));
        assert_eq!(folded([&[7, 5, 3, 2], &[3, 4], &[7, 5, 2, 4]], [true, false]), (2, 4, 3, 1, 0));
        // The gradient of a weight: the batch becomes depth.
        assert_eq!(folded([&[7, 5, 3, 2], &[7, 5, 3, 4], &[2, 4]], [true, false]), (2, 4, 105, 0, 0));
        assert_eq!(folded([&[7, 5, 3, 2], &[5, 3, 4], &[5, 2, 4]], [true, false]), (2, 4, 3, 1, 1));
        // A row times many stored rows.
        assert_eq!(folded([&[1, 3], &[6, 4, 3], &[6, 1, 4]], [false, true]), (1, 24, 3, 0, 0));
    }
}

//! Matrix products of every dtype: what is to be computed, and which means compute it.
//!
//! | product | computed by |
//! |---|---|
//! | of a vector that is contiguous, not summed over | [`gemv`], [`gemv_complex`] or [`gemv_int`](super::gemv_int), which read the matrix once |
//! | of few rows with a large matrix whose columns are contiguous and long | [`gemm_dots`](super::gemm_dots), which reads both where they are |
//! | bf16 where the CPU has tiles, or dot products of its pairs | [`pairs`], in blocks |
//! | large ones of f32, f16 and complex64 where the CPU has tiles | [`split`], in blocks and in parts of bf16 |
//! | other floating-point and complex ones | [`simd`], in blocks; f16 and bf16 become f32 when a block is packed |
//! | integer | [`gemm_int`](super::gemm_int) |

use crate::isa::{Body, Isa};
use crate::kernels::elem::{Complex, Storage};
use crate::kernels::gemm_bf16 as pairs;
use crate::kernels::gemm_dots as dots;
use crate::kernels::gemm_simd as simd;
#[cfg(not(target_arch = "x86_64"))]
use crate::kernels::gemm_simd as split;
#[cfg(target_arch = "x86_64")]
use crate::kernels::gemm_split as split;
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::{gemv, gemv_complex};
use ep_core::parallel::Parallel;
use ep_core::{Error, Result};
use half::{bf16, f16};

/// One factor: its address and its strides in elements between rows and between columns, of which one is 1.
/// A complex factor may have to be conjugated.
#[derive(Clone, Copy)]
pub(super) struct Factor<T> {
    pub(super) at: Shared<T>,
    pub(super) rs: usize,
    pub(super) cs: usize,
    pub(super) conj: bool,
}

impl<T> Factor<T> {
    /// The address of an element. Only a number where nothing is stored.
    #[inline(always)]
    pub(super) fn element(&self, offset: usize, row: usize, col: usize) -> *const T {
        self.at.get().wrapping_add(offset + row * self.rs + col * self.cs).cast_const()
    }
}

/// A loop over matrices: its length, and the steps of the operands in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loop {
    pub(super) len: usize,
    pub(super) a: usize,
    pub(super) b: usize,
    pub(super) c: usize,
}

/// How often nested loops run.
#[inline]
pub(super) fn count(loops: &[Loop]) -> usize {
    loops.iter().map(|l| l.len).product()
}

/// Where round `index` of nested loops finds its matrices: offsets in elements of a, b and c.
#[inline]
pub(super) fn offsets(loops: &[Loop], mut index: usize) -> (usize, usize, usize) {
    let mut at = (0, 0, 0);
    for l in loops.iter().rev() {
        let i = index % l.len;
        index /= l.len;
        at = (at.0 + i * l.a, at.1 + i * l.b, at.2 + i * l.c);
    }
    at
}

/// For each round of `outer`: `c[m, n] = alpha * sum(a[m, k] * b[k, n]) + beta * c`, summed over the rounds of
/// `inner`. Rows of `c` lie `c_rs` elements apart, elements of a row next to each other.
///
/// Matrices of different rounds of `outer` do not overlap in `c`. The loops of `inner` do not move `c`.
#[derive(Clone, Copy)]
pub(super) struct Problem<'a, T> {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) a: Factor<T>,
    pub(super) b: Factor<T>,
    pub(super) c: Shared<T>,
    pub(super) c_rs: usize,
    pub(super) outer: &'a [Loop],
    pub(super) inner: &'a [Loop],
}

/// A dtype that can be multiplied.
pub(super) trait Element: Copy + Send + Sync + 'static {
    /// What `alpha` and `beta` are held in.
    type Scalar: Copy + Send + Sync;

    /// A scalar from its real and imaginary part; an error, which calls it `name`, if it does not exist here.
    fn scalar(name: &str, value: (f64, f64)) -> Result<Self::Scalar>;

    fn is_zero(scalar: Self::Scalar) -> bool;

    /// `scalar * self`.
    fn scaled(self, scalar: Self::Scalar) -> Self;

    /// The element whose bits are zero.
    fn zero() -> Self;

    /// Solves a problem in which something is to be added up: no size is 0, nor `alpha`. With a zero `beta`
    /// nothing is read of `c`.
    ///
    /// # Safety
    /// The matrices of all rounds are readable, and those of `c` writable, with no other access to `c`.
    unsafe fn multiply(
        isa: Isa,
        par: &dyn Parallel,
        problem: &Problem<'_, Self>,
        alpha: Self::Scalar,
        beta: Self::Scalar,
    ) -> Result<()>;
}

/// Solves any problem.
///
/// # Errors
/// `InvalidArgument` if a scalar does not exist in the dtype; `OutOfMemory` if there is no room for packed
/// blocks; those of `par`.
///
/// # Safety
/// As for [`Element::multiply`].
pub(super) unsafe fn solve<T: Element>(
    isa: Isa,
    par: &dyn Parallel,
    problem: &Problem<'_, T>,
    alpha: (f64, f64),
    beta: (f64, f64),
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        solve_by(isa, par, problem, alpha, beta, |alpha, beta| T::multiply(isa, par, problem, alpha, beta))
    }
}

/// Solves any problem; those in which something is to be added up by `multiply`.
///
/// # Errors
/// As for [`solve`].
///
/// # Safety
/// As for [`Element::multiply`], but for the factors.
pub(super) unsafe fn solve_by<T: Element>(
    isa: Isa,
    par: &dyn Parallel,
    problem: &Problem<'_, T>,
    alpha: (f64, f64),
    beta: (f64, f64),
    multiply: impl FnOnce(T::Scalar, T::Scalar) -> Result<()>,
) -> Result<()> {
    let Problem { m, n, k, outer, inner, .. } = *problem;
    let empty = k == 0 || inner.iter().any(|l| l.len == 0);
    let [alpha, beta] = [T::scalar("alpha", alpha)?, T::scalar("beta", beta)?];
    // A product over nothing is 0 also where the factor is infinite.
    let alpha = if empty { T::scalar("alpha", (0.0, 0.0))? } else { alpha };
    if m == 0 || n == 0 || outer.iter().any(|l| l.len == 0) {
        return Ok(());
    }
    if !T::is_zero(alpha) {
        return multiply(alpha, beta);
    }
    let matrices = count(outer);
    for_ranges(par, matrices * m, n.saturating_mul(size_of::<T>()), 1, |rows| {
        for row in rows {
            let offset = offsets(outer, row / m).2 + row % m * problem.c_rs;
            // SAFETY: a row of one of the results, which only this task touches.
            let row = unsafe { problem.c.get().add(offset) };
            isa.dispatch(Scale { row, len: n, beta });
        }
        Ok(())
    })
}

/// Made only where a row of so many elements is writable.
struct Scale<T: Element> {
    row: *mut T,
    len: usize,
    beta: T::Scalar,
}

impl<T: Element> Body for Scale<T> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let zero = T::is_zero(self.beta);
        for j in 0..self.len {
            // SAFETY: inside the row. With a zero factor it may hold anything, and is not read.
            unsafe {
                let c = self.row.add(j);
                c.write(if zero { T::zero() } else { c.read().scaled(self.beta) });
            }
        }
    }
}

fn real(name: &str, (re, im): (f64, f64)) -> Result<f64> {
    if im == 0.0 {
        return Ok(re);
    }
    Err(Error::invalid(format!(
        "matmul got {name} = {re} + {im}i, but its dtype is real; leave the imaginary part 0"
    )))
}

macro_rules! real_elements {
    ($($t:ident in $real:ident, $few:expr, $multiply:expr;)*) => {
        $(impl Element for $t {
            type Scalar = $real;

            fn scalar(name: &str, value: (f64, f64)) -> Result<$real> {
                Ok(real(name, value)? as $real)
            }

            #[inline(always)]
            fn is_zero(scalar: $real) -> bool {
                scalar == 0.0
            }

            #[inline(always)]
            fn scaled(self, scalar: $real) -> $t {
                $t::store(scalar * self.load())
            }

            #[inline(always)]
            fn zero() -> $t {
                $t::store(0.0)
            }

            unsafe fn multiply(
                isa: Isa,
                par: &dyn Parallel,
                problem: &Problem<'_, $t>,
                alpha: $real,
                beta: $real,
            ) -> Result<()> {
                // SAFETY: the caller's promise, passed on.
                unsafe {
                    if let Some(done) = gemv::multiply(isa, par, problem, alpha, beta) {
                        done
                    } else if let Some(done) = $few(isa, par, problem, alpha, beta) {
                        done
                    } else {
                        $multiply(isa, par, problem, alpha, beta)
                    }
                }
            }
        })*
    };
}

real_elements! {
    f32 in f32, dots::multiply, split::multiply;
    f64 in f64, dots::multiply, simd::multiply;
    f16 in f32, dots::multiply, split::multiply;
    bf16 in f32, pairs::multiply_few, pairs::multiply;
}

macro_rules! complex_elements {
    ($($part:ident, $multiply:expr;)*) => {
        $(impl Element for Complex<$part> {
            type Scalar = Complex<$part>;

            fn scalar(_: &str, (re, im): (f64, f64)) -> Result<Self> {
                Ok(Complex { re: re as $part, im: im as $part })
            }

            #[inline(always)]
            fn is_zero(scalar: Self) -> bool {
                scalar.re == 0.0 && scalar.im == 0.0
            }

            /// A real factor scales the parts, so that it makes no NaN of an infinity.
            #[inline(always)]
            fn scaled(self, by: Self) -> Self {
                let Complex { re, im } = self;
                if by.im == 0.0 {
                    return Complex { re: by.re * re, im: by.re * im };
                }
                Complex { re: by.re * re - by.im * im, im: by.re * im + by.im * re }
            }

            #[inline(always)]
            fn zero() -> Self {
                Complex { re: 0.0, im: 0.0 }
            }

            unsafe fn multiply(
                isa: Isa,
                par: &dyn Parallel,
                problem: &Problem<'_, Self>,
                alpha: Self,
                beta: Self,
            ) -> Result<()> {
                // SAFETY: the caller's promise, passed on.
                unsafe {
                    match gemv_complex::multiply(isa, par, problem, alpha, beta) {
                        Some(done) => done,
                        None => $multiply(isa, par, problem, alpha, beta),
                    }
                }
            }
        })*
    };
}

complex_elements! {
    f32, split::multiply;
    f64, simd::multiply;
}

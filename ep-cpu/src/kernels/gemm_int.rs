//! Integer matrix products, which wrap; those of a vector are [`gemv_int`]'s.

use crate::isa::{Body, Isa};
use crate::kernels::gemm::{Element, Problem, count, offsets};
use crate::kernels::gemv_int;
use crate::kernels::raw::{Shared, for_ranges};
use ep_core::parallel::Parallel;
use ep_core::{Error, Result};

/// Rows and columns of `b` that are packed at a time, into first-level cache.
const DEPTH: usize = 32;
const WIDTH: usize = 64;

/// Rows of a task: enough for packing `b` to cost little.
const ROWS: usize = 128;

/// Arithmetic modulo 2^bits.
pub(super) trait Wrapping: Element + PartialEq {
    const ZERO: Self;
    fn mul(self, other: Self) -> Self;
    fn mul_add(self, factor: Self, sum: Self) -> Self;
}

macro_rules! int_elements {
    ($($t:ty),*) => {
        $(
            impl Wrapping for $t {
                const ZERO: $t = 0;

                #[inline(always)]
                fn mul(self, other: $t) -> $t {
                    self.wrapping_mul(other)
                }

                #[inline(always)]
                fn mul_add(self, factor: $t, sum: $t) -> $t {
                    self.wrapping_mul(factor).wrapping_add(sum)
                }
            }

            impl Element for $t {
                type Scalar = $t;

                fn scalar(name: &str, (re, im): (f64, f64)) -> Result<$t> {
                    let exact = re as $t;
                    // The cast saturates, and the largest value may round up to one out of range.
                    let fits = re.trunc() == re && re >= <$t>::MIN as f64 && re < <$t>::MAX as f64 + 1.0;
                    if fits && im == 0.0 && (exact as f64 == re) {
                        return Ok(exact);
                    }
                    Err(Error::invalid(format!(
                        "matmul got {name} = {re} + {im}i, which is no {}; integer matmul takes integer scalars",
                        std::any::type_name::<$t>()
                    )))
                }

                fn is_zero(scalar: $t) -> bool {
                    scalar == 0
                }

                #[inline(always)]
                fn scaled(self, scalar: $t) -> $t {
                    self.wrapping_mul(scalar)
                }

                #[inline(always)]
                fn zero() -> $t {
                    0
                }

                unsafe fn multiply(
                    isa: Isa,
                    par: &dyn Parallel,
                    problem: &Problem<'_, $t>,
                    alpha: $t,
                    beta: $t,
                ) -> Result<()> {
                    // SAFETY: the caller's promise.
                    unsafe { multiply(isa, par, problem, alpha, beta) }
                }
            }
        )*
    };
}
int_elements!(i8, u8, i16, u16, i32, u32, i64, u64);

/// # Safety
/// As for [`Element::multiply`].
unsafe fn multiply<T: Wrapping>(
    isa: Isa,
    par: &dyn Parallel,
    p: &Problem<'_, T>,
    alpha: T,
    beta: T,
) -> Result<()> {
    // SAFETY: the caller's promise.
    if let Some(done) = unsafe { gemv_int::multiply(isa, par, p, alpha, beta) } {
        return done;
    }
    let (tiles_m, tiles_n) = (p.m.div_ceil(ROWS), p.n.div_ceil(WIDTH));
    let terms = count(p.inner);
    let work = p.m.min(ROWS).saturating_mul(WIDTH).saturating_mul(p.k).saturating_mul(terms);
    for_ranges(par, count(p.outer) * tiles_m * tiles_n, work / 8, 1, |tiles| {
        for tile in tiles {
            let (matrix, tile) = (tile / (tiles_m * tiles_n), tile % (tiles_m * tiles_n));
            let (row, col) = (tile / tiles_n * ROWS, tile % tiles_n * WIDTH);
            let (a, b, c) = offsets(p.outer, matrix);
            for term in 0..terms {
                let (a_term, b_term, _) = offsets(p.inner, term);
                isa.dispatch(Product {
                    m: ROWS.min(p.m - row),
                    n: WIDTH.min(p.n - col),
                    k: p.k,
                    a: p.a.element(a + a_term, row, 0),
                    a_rs: p.a.rs,
                    a_cs: p.a.cs,
                    b: p.b.element(b + b_term, 0, col),
                    b_rs: p.b.rs,
                    b_cs: p.b.cs,
                    c: Shared::new(p.c.get().wrapping_add(c + row * p.c_rs + col)),
                    c_rs: p.c_rs,
                    alpha,
                    beta: if term == 0 { Some(beta) } else { None },
                });
            }
        }
        Ok(())
    })
}

/// A tile, at most [`WIDTH`] wide. Made only in [`multiply`], under its promise.
struct Product<T> {
    m: usize,
    n: usize,
    k: usize,
    a: *const T,
    a_rs: usize,
    a_cs: usize,
    b: *const T,
    b_rs: usize,
    b_cs: usize,
    c: Shared<T>,
    c_rs: usize,
    alpha: T,
    /// None: `c` is added to as it is.
    beta: Option<T>,
}

impl<T: Wrapping> Body for Product<T> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let mut packed = [[T::ZERO; WIDTH]; DEPTH];
        for p in (0..self.k).step_by(DEPTH) {
            let depth = DEPTH.min(self.k - p);
            // SAFETY: `p + dp < k` and `j < n`.
            let b = |dp: usize, j: usize| unsafe { self.b.add((p + dp) * self.b_rs + j * self.b_cs).read() };
            // In the order in which it is stored.
            if self.b_rs == 1 {
                for j in 0..self.n {
                    for (dp, row) in packed[..depth].iter_mut().enumerate() {
                        row[j] = b(dp, j);
                    }
                }
            } else {
                for (dp, row) in packed[..depth].iter_mut().enumerate() {
                    for (j, packed) in row[..self.n].iter_mut().enumerate() {
                        *packed = b(dp, j);
                    }
                }
            }
            let beta = if p == 0 { self.beta } else { None };
            for i in 0..self.m {
                let mut sums = [T::ZERO; WIDTH];
                for (dp, row) in packed[..depth].iter().enumerate() {
                    // SAFETY: `i < m` and `p + dp < k`.
                    let a = unsafe { self.a.add(i * self.a_rs + (p + dp) * self.a_cs).read() };
                    for (sum, &b) in sums.iter_mut().zip(row) {
                        *sum = a.mul_add(b, *sum);
                    }
                }
                for (j, &sum) in sums[..self.n].iter().enumerate() {
                    // SAFETY: `i < m` and `j < n`; it is read only where it counts.
                    unsafe {
                        let c = self.c.get().add(i * self.c_rs + j);
                        let old = match beta {
                            Some(beta) if beta == T::ZERO => T::ZERO,
                            Some(beta) => c.read().mul(beta),
                            None => c.read(),
                        };
                        c.write(self.alpha.mul_add(sum, old));
                    }
                }
            }
        }
    }
}

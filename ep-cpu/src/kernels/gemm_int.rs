//! Integer matrix products, which wrap.

use crate::isa::{Body, Isa};
use crate::kernels::gemm::{Element, Tile};
use ep_core::{Error, Result};

/// Rows and columns of `b` that are packed at a time, into first-level cache.
const DEPTH: usize = 32;
const WIDTH: usize = 64;

/// Arithmetic modulo 2^bits.
trait Wrapping: Copy + PartialEq + Send + Sync + 'static {
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

                unsafe fn tile(isa: Isa, tile: &Tile<Self>, alpha: $t, beta: $t) -> Result<()> {
                    isa.dispatch(Product { tile: *tile, alpha, beta });
                    Ok(())
                }
            }
        )*
    };
}
int_elements!(i8, u8, i16, u16, i32, u32, i64, u64);

/// Made only in [`Element::tile`], under its promise.
struct Product<T> {
    tile: Tile<T>,
    alpha: T,
    beta: T,
}

impl<T: Wrapping> Body for Product<T> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Self { tile: t, alpha, beta } = self;
        for i in 0..t.m {
            for j in 0..t.n {
                // SAFETY: `c` has `m` rows of `n`; it is read only where `beta` asks for it.
                unsafe {
                    let c = t.c.add(i * t.c_rs + j);
                    c.write(if beta == T::ZERO { T::ZERO } else { c.read().mul(beta) });
                }
            }
        }
        for j in (0..t.n).step_by(WIDTH) {
            let width = WIDTH.min(t.n - j);
            for p in (0..t.k).step_by(DEPTH) {
                let depth = DEPTH.min(t.k - p);
                let mut packed = [[T::ZERO; WIDTH]; DEPTH];
                for (dp, row) in packed[..depth].iter_mut().enumerate() {
                    for (dj, b) in row[..width].iter_mut().enumerate() {
                        // SAFETY: `p + dp < k` and `j + dj < n`.
                        *b = unsafe { t.b.add((p + dp) * t.b_rs + (j + dj) * t.b_cs).read() };
                    }
                }
                for i in 0..t.m {
                    let mut sums = [T::ZERO; WIDTH];
                    for (dp, row) in packed[..depth].iter().enumerate() {
                        // SAFETY: `i < m` and `p + dp < k`.
                        let a = unsafe { t.a.add(i * t.a_rs + (p + dp) * t.a_cs).read() };
                        for (sum, &b) in sums.iter_mut().zip(row) {
                            *sum = a.mul_add(b, *sum);
                        }
                    }
                    for (dj, &sum) in sums[..width].iter().enumerate() {
                        // SAFETY: `i < m` and `j + dj < n`; written above.
                        unsafe {
                            let c = t.c.add(i * t.c_rs + j + dj);
                            c.write(alpha.mul_add(sum, c.read()));
                        }
                    }
                }
            }
        }
    }
}

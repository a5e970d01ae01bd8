//! A matrix of f16 or bf16 times a vector, added up in f32: converted on the way, not a panel at a time.

use crate::isa::{Body, Isa};
use crate::kernels::elem::Storage;
use crate::kernels::gemm::Tile;

/// Computes a tile of one row or one column; `false`, with nothing done, for others and for vectors that are
/// not contiguous.
///
/// # Safety
/// As for [`super::gemm::Element::tile`].
pub(super) unsafe fn gemv<T: Storage<Value = f32>>(isa: Isa, t: &Tile<T>, alpha: f32, beta: f32) -> bool {
    // y[len] = mat * x[k], where mat is `len` long along `along` and `k` long along `deep`.
    let v = if t.n == 1 && t.b_rs == 1 {
        Vector {
            mat: t.a,
            along: t.a_rs,
            deep: t.a_cs,
            len: t.m,
            k: t.k,
            x: t.b,
            y: t.c,
            y_stride: t.c_rs,
            alpha,
            beta,
        }
    } else if t.m == 1 && t.a_cs == 1 {
        Vector {
            mat: t.b,
            along: t.b_cs,
            deep: t.b_rs,
            len: t.n,
            k: t.k,
            x: t.a,
            y: t.c,
            y_stride: 1,
            alpha,
            beta,
        }
    } else {
        return false;
    };
    if v.deep == 1 {
        isa.dispatch(Dots(v));
    } else if v.along == 1 {
        isa.dispatch(Sums(v));
    } else {
        return false;
    }
    true
}

/// Made only in [`gemv`], under its promise.
struct Vector<T: Storage> {
    mat: *const T,
    along: usize,
    deep: usize,
    len: usize,
    k: usize,
    x: *const T,
    y: *mut T,
    y_stride: usize,
    alpha: f32,
    beta: f32,
}

impl<T: Storage<Value = f32>> Vector<T> {
    #[inline(always)]
    fn finish(&self, i: usize, sum: f32) {
        // SAFETY: called with `i < len`; the old value is read only where `beta` asks for it.
        unsafe {
            let y = self.y.add(i * self.y_stride);
            let scaled = self.alpha * sum;
            y.write(T::store(if self.beta == 0.0 { scaled } else { scaled + self.beta * y.read().load() }));
        }
    }
}

const LANES: usize = 32;

/// Rows contiguous: one dot product each.
struct Dots<T: Storage>(Vector<T>);

impl<T: Storage<Value = f32>> Body for Dots<T> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let v = self.0;
        let whole = v.k - v.k % LANES;
        for i in 0..v.len {
            // SAFETY: row `i` of the matrix, and the vector, have `k` elements; a vector of lanes starting
            // below `whole` ends within them.
            let (row, x) = unsafe { (v.mat.add(i * v.along), v.x) };
            let mut lanes = [0f32; LANES];
            for p in (0..whole).step_by(LANES) {
                // SAFETY: as above; both are aligned to their elements.
                let (a, b) =
                    unsafe { (row.add(p).cast::<[T; LANES]>().read(), x.add(p).cast::<[T; LANES]>().read()) };
                // A plain loop: it becomes vector instructions, which array combinators do not.
                for (l, lane) in lanes.iter_mut().enumerate() {
                    *lane += a[l].load() * b[l].load();
                }
            }
            for p in whole..v.k {
                // SAFETY: `p < k`.
                let (a, b) = unsafe { (row.add(p).read(), x.add(p).read()) };
                lanes[p - whole] += a.load() * b.load();
            }
            let mut half = LANES / 2;
            while half > 0 {
                for l in 0..half {
                    lanes[l] += lanes[l + half];
                }
                half /= 2;
            }
            v.finish(i, lanes[0]);
        }
    }
}

/// Columns contiguous: sums of scaled rows, in blocks that stay in first-level cache.
struct Sums<T: Storage>(Vector<T>);

impl<T: Storage<Value = f32>> Body for Sums<T> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        const BLOCK: usize = 4096;
        /// Rows added in one go, which saves reading and writing the sums.
        const DEPTH: usize = 4;
        let v = self.0;
        let mut block = [0f32; BLOCK];
        for start in (0..v.len).step_by(BLOCK) {
            let len = BLOCK.min(v.len - start);
            let sums = &mut block[..len];
            sums.fill(0.0);
            // SAFETY: called with `p < k`; row `p` of the matrix has `len` elements from `start` on.
            let row = |p: usize, len: usize| unsafe {
                std::slice::from_raw_parts(v.mat.add(p * v.deep + start), len)
            };
            // SAFETY: called with `p < k`.
            let x = |p: usize| unsafe { v.x.add(p).read() }.load();
            let whole = v.k - v.k % DEPTH;
            for p in (0..whole).step_by(DEPTH) {
                let rows = [row(p, len), row(p + 1, len), row(p + 2, len), row(p + 3, len)];
                let x = [x(p), x(p + 1), x(p + 2), x(p + 3)];
                for (i, sum) in sums.iter_mut().enumerate() {
                    let (low, high) = (
                        x[0] * rows[0][i].load() + x[1] * rows[1][i].load(),
                        x[2] * rows[2][i].load() + x[3] * rows[3][i].load(),
                    );
                    *sum += low + high;
                }
            }
            for p in whole..v.k {
                let x = x(p);
                for (sum, a) in sums.iter_mut().zip(row(p, len)) {
                    *sum += x * a.load();
                }
            }
            for (i, &sum) in sums.iter().enumerate() {
                v.finish(start + i, sum);
            }
        }
    }
}

//! Tiles and bands of them, transposed in registers: what [`transpose`](super::transpose) is made of.

use super::lanes::{LANE, Vector};
use super::transpose::Matrix;

/// # Safety
/// As for [`Vector::store`] or, if `STREAM`, [`Vector::stream`].
#[inline(always)]
unsafe fn put<V: Vector, const STREAM: bool>(v: V, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { if STREAM { v.stream(to) } else { v.store(to) } }
}

/// Two rounds of interleaving at once.
///
/// # Safety
/// As for [`Vector::zip`].
#[inline(always)]
unsafe fn zip4<V: Vector, const SIZE: usize>(a: V, b: V, c: V, d: V) -> [V; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let (ac_low, ac_high) = a.zip::<SIZE>(c);
        let (bd_low, bd_high) = b.zip::<SIZE>(d);
        let (first, second) = ac_low.zip::<SIZE>(bd_low);
        let (third, fourth) = ac_high.zip::<SIZE>(bd_high);
        [first, second, third, fourth]
    }
}

/// Transposes `V::LANES` tiles, one below the other, of `N` rows and columns each. Interleaving row `i` with row
/// `i + N / 2` halves the distance of what belongs together, so `log2(N)` rounds do.
///
/// Closures and iterators are avoided here: they would not be compiled for the instruction set.
///
/// # Safety
/// As for [`Transpose`](super::transpose::Transpose), for `V::LANES * N` rows and `N` columns; if `STREAM`, every row of the destination is
/// aligned to the vector.
#[inline(always)]
pub(super) unsafe fn tile<V: Vector, const SIZE: usize, const N: usize, const STREAM: bool>(
    src: *const u8,
    src_stride: isize,
    dst: *mut u8,
    dst_stride: isize,
) {
    let lane = N as isize * src_stride;
    // SAFETY: rows below `N` in each lane, and columns below `N`: the caller's promise.
    unsafe {
        let mut rows = [V::gather(src, lane); N];
        let mut i = 1;
        while i < N {
            rows[i] = V::gather(src.offset(i as isize * src_stride), lane);
            i += 1;
        }
        weave::<V, SIZE, N, STREAM>(rows, dst, dst_stride);
    }
}

/// Writes the columns of the tiles whose rows are given, row `i` of each in `rows[i]`.
///
/// # Safety
/// As for [`tile`], for the destination.
#[inline(always)]
pub(super) unsafe fn weave<V: Vector, const SIZE: usize, const N: usize, const STREAM: bool>(
    rows: [V; N],
    dst: *mut u8,
    dst_stride: isize,
) {
    macro_rules! put {
        ($i:expr, $v:expr) => {
            put::<V, STREAM>($v, dst.offset(($i) as isize * dst_stride))
        };
    }
    // SAFETY: columns below `N`: the caller's promise.
    unsafe {
        match N {
            1 => put!(0, rows[0]),
            2 => {
                let (first, second) = rows[0].zip::<SIZE>(rows[1]);
                put!(0, first);
                put!(1, second);
            }
            4 => {
                let t = zip4::<V, SIZE>(rows[0], rows[1], rows[2], rows[3]);
                put!(0, t[0]);
                put!(1, t[1]);
                put!(2, t[2]);
                put!(3, t[3]);
            }
            8 => {
                let even = zip4::<V, SIZE>(rows[0], rows[2], rows[4], rows[6]);
                let odd = zip4::<V, SIZE>(rows[1], rows[3], rows[5], rows[7]);
                let mut i = 0;
                while i < 4 {
                    let (first, second) = even[i].zip::<SIZE>(odd[i]);
                    put!(2 * i, first);
                    put!(2 * i + 1, second);
                    i += 1;
                }
            }
            _ => {
                let a = zip4::<V, SIZE>(rows[0], rows[4], rows[8], rows[12]);
                let b = zip4::<V, SIZE>(rows[1], rows[5], rows[9], rows[13]);
                let c = zip4::<V, SIZE>(rows[2], rows[6], rows[10], rows[14]);
                let d = zip4::<V, SIZE>(rows[3], rows[7], rows[11], rows[15]);
                let mut i = 0;
                while i < 4 {
                    let t = zip4::<V, SIZE>(a[i], b[i], c[i], d[i]);
                    put!(4 * i, t[0]);
                    put!(4 * i + 1, t[1]);
                    put!(4 * i + 2, t[2]);
                    put!(4 * i + 3, t[3]);
                    i += 1;
                }
            }
        }
    }
}

/// A line of rows (or, if `W`, a lane of them) by the columns `from..to`, of which there are at least `N`; the
/// last tile may repeat columns of the one before it.
///
/// # Safety
/// As for [`tile`], for those columns.
#[inline(always)]
pub(super) unsafe fn band<
    V: Vector,
    const SIZE: usize,
    const N: usize,
    const PARTS: usize,
    const STREAM: bool,
>(
    m: Matrix,
    from: usize,
    to: usize,
    src: *const u8,
    dst: *mut u8,
) {
    let mut next = from;
    while next < to {
        let col = next.min(m.cols - N);
        let mut part = 0;
        while part < PARTS {
            let down = part * V::LANES;
            // SAFETY: the part's rows lie in the band, and the columns in the matrix.
            unsafe {
                tile::<V, SIZE, N, STREAM>(
                    src.offset((down * N) as isize * m.src_stride).add(col * SIZE),
                    m.src_stride,
                    dst.offset(col as isize * m.dst_stride).add(down * LANE),
                    m.dst_stride,
                );
            }
            part += 1;
        }
        next = col + N;
    }
}

/// A whole line of rows: as many vectors as that takes.
///
/// # Safety
/// As for [`band`].
#[inline(always)]
pub(super) unsafe fn line_band<V: Vector, const SIZE: usize, const N: usize, const STREAM: bool>(
    m: Matrix,
    from: usize,
    to: usize,
    src: *const u8,
    dst: *mut u8,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match V::LANES {
            1 => band::<V, SIZE, N, 4, STREAM>(m, from, to, src, dst),
            2 => band::<V, SIZE, N, 2, STREAM>(m, from, to, src, dst),
            _ => band::<V, SIZE, N, 1, STREAM>(m, from, to, src, dst),
        }
    }
}

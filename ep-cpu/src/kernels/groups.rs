//! Turning two to four dense rows into groups of as many elements, and back: colours of pixels, parts of complex
//! numbers.
//!
//! The loops are plain. With each row a slice of its own the compiler turns them into shuffles, which beat tiles
//! of which most columns would be thrown away.

use super::transpose::Matrix;
use std::mem::MaybeUninit;
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// A number at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub(super) struct Unaligned<T: Copy>(T);

/// Transposes a matrix of elements of `T` if it has two to four rows, which become groups without gaps, or as
/// many columns, which are. Else it does nothing and returns `false`.
///
/// # Safety
/// As for [`Transpose`](super::transpose::Transpose); `T` has alignment 1.
#[inline(always)]
pub(super) unsafe fn transpose<T: Copy>(m: Matrix, src: *const u8, dst: *mut u8) -> bool {
    let dense = |count: usize, stride: isize| stride == (count * size_of::<T>()) as isize;
    // SAFETY: rows and groups lie inside the matrix, source and destination apart; any bytes are a `T`.
    unsafe {
        let row = |i: usize| from_raw_parts(src.offset(i as isize * m.src_stride).cast::<T>(), m.cols);
        let col = |i: usize| {
            from_raw_parts_mut(dst.offset(i as isize * m.dst_stride).cast::<MaybeUninit<T>>(), m.rows)
        };
        match (m.rows, m.cols) {
            (_, 2) if dense(2, m.src_stride) => unzip2(from_raw_parts(src.cast(), m.rows), col(0), col(1)),
            (_, 3) if dense(3, m.src_stride) => {
                unzip3(from_raw_parts(src.cast(), m.rows), col(0), col(1), col(2));
            }
            (_, 4) if dense(4, m.src_stride) => {
                unzip4(from_raw_parts(src.cast(), m.rows), col(0), col(1), col(2), col(3));
            }
            (2, _) if dense(2, m.dst_stride) => zip2(from_raw_parts_mut(dst.cast(), m.cols), row(0), row(1)),
            (3, _) if dense(3, m.dst_stride) => {
                let groups = from_raw_parts_mut(dst.cast(), m.cols);
                match size_of::<T>() {
                    4 => zip3(groups, row(0), row(1), row(2)),
                    _ => zip3_small(groups, row(0), row(1), row(2)),
                }
            }
            (4, _) if dense(4, m.dst_stride) => {
                zip4(from_raw_parts_mut(dst.cast(), m.cols), row(0), row(1), row(2), row(3));
            }
            _ => return false,
        }
    }
    true
}

type Out<T> = [MaybeUninit<T>];

#[inline(always)]
fn unzip2<T: Copy>(groups: &[[T; 2]], a: &mut Out<T>, b: &mut Out<T>) {
    let n = groups.len();
    let (a, b) = (&mut a[..n], &mut b[..n]);
    for i in 0..n {
        a[i].write(groups[i][0]);
        b[i].write(groups[i][1]);
    }
}

#[inline(always)]
fn unzip3<T: Copy>(groups: &[[T; 3]], a: &mut Out<T>, b: &mut Out<T>, c: &mut Out<T>) {
    let n = groups.len();
    let (a, b, c) = (&mut a[..n], &mut b[..n], &mut c[..n]);
    for i in 0..n {
        a[i].write(groups[i][0]);
        b[i].write(groups[i][1]);
        c[i].write(groups[i][2]);
    }
}

#[inline(always)]
fn unzip4<T: Copy>(groups: &[[T; 4]], a: &mut Out<T>, b: &mut Out<T>, c: &mut Out<T>, d: &mut Out<T>) {
    let n = groups.len();
    let (a, b, c, d) = (&mut a[..n], &mut b[..n], &mut c[..n], &mut d[..n]);
    for i in 0..n {
        a[i].write(groups[i][0]);
        b[i].write(groups[i][1]);
        c[i].write(groups[i][2]);
        d[i].write(groups[i][3]);
    }
}

#[inline(always)]
fn zip2<T: Copy>(groups: &mut Out<[T; 2]>, a: &[T], b: &[T]) {
    let n = groups.len();
    let (a, b) = (&a[..n], &b[..n]);
    for i in 0..n {
        groups[i].write([a[i], b[i]]);
    }
}

#[inline(always)]
fn zip3<T: Copy>(groups: &mut Out<[T; 3]>, a: &[T], b: &[T], c: &[T]) {
    let n = groups.len();
    let (a, b, c) = (&a[..n], &b[..n], &c[..n]);
    for i in 0..n {
        groups[i].write([a[i], b[i], c[i]]);
    }
}

#[inline(always)]
fn zip4<T: Copy>(groups: &mut Out<[T; 4]>, a: &[T], b: &[T], c: &[T], d: &[T]) {
    let n = groups.len();
    let (a, b, c, d) = (&a[..n], &b[..n], &c[..n], &d[..n]);
    for i in 0..n {
        groups[i].write([a[i], b[i], c[i], d[i]]);
    }
}

/// [`zip3`] for elements of one or two bytes, of which the compiler makes no good shuffles: first groups of four,
/// which it does well, then without their last element, eight bytes at a time.
#[inline(always)]
fn zip3_small<T: Copy>(groups: &mut Out<[T; 3]>, a: &[T], b: &[T], c: &[T]) {
    const PART: usize = 256;
    /// Bytes of a step: two groups of three bytes, or one of three pairs.
    const STEP: usize = 6;
    let mut wide = [MaybeUninit::<[T; 4]>::uninit(); PART];
    let n = groups.len();
    let per_step = STEP / (3 * size_of::<T>());
    let mut start = 0;
    // Each step writes two bytes too many, which the next one overwrites; the last groups are left for below.
    while start + PART + 2 <= n {
        let end = start + PART;
        zip4(&mut wide, &a[start..end], &b[start..end], &c[start..end], &c[start..end]);
        let from = wide.as_ptr().cast::<[u8; 8]>();
        let to = groups[start..].as_mut_ptr().cast::<u8>();
        for i in 0..PART / per_step {
            // SAFETY: eight bytes of the groups of four, all of which are written; six bytes for each step, and two
            // groups behind them, which are at least two bytes more.
            unsafe {
                let four = u64::from_le_bytes(from.add(i).read());
                let three = match size_of::<T>() {
                    1 => four & 0xff_ffff | four >> 8 & 0xffff_ff00_0000,
                    _ => four,
                };
                to.add(i * STEP).cast::<[u8; 8]>().write(three.to_le_bytes());
            }
        }
        start = end;
    }
    zip3(&mut groups[start..], &a[start..], &b[start..], &c[start..]);
}

//! One tile of a matrix product, for each dtype.

use crate::isa::{Body, Isa};
use crate::kernels::elem::Storage;
use crate::kernels::gemv::gemv;
use crate::kernels::transpose::{self, Matrix, Mode};
use ep_core::{Error, Result};
use half::{bf16, f16};
use std::cell::Cell;

/// `c[m, n] = alpha * a[m, k] * b[k, n] + beta * c`, with strides in elements between rows (`rs`) and columns
/// (`cs`); one of each matrix's strides is 1. Complex factors may be conjugated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile<T> {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) a: *const T,
    pub(super) a_rs: usize,
    pub(super) a_cs: usize,
    pub(super) conj_a: bool,
    pub(super) b: *const T,
    pub(super) b_rs: usize,
    pub(super) b_cs: usize,
    pub(super) conj_b: bool,
    pub(super) c: *mut T,
    pub(super) c_rs: usize,
}

/// A dtype that can be multiplied.
pub(super) trait Element: Copy + Send + Sync + 'static {
    /// What `alpha` and `beta` are held in.
    type Scalar: Copy + Send + Sync;

    /// A scalar from its real and imaginary part; an error, which calls it `name`, if it does not exist here.
    fn scalar(name: &str, value: (f64, f64)) -> Result<Self::Scalar>;

    fn is_zero(scalar: Self::Scalar) -> bool;

    /// Computes a tile. With `k == 0` the product is zero, and nothing is read of `a` and `b`; with a zero
    /// `beta` nothing is read of `c`.
    ///
    /// # Safety
    /// `a` and `b` are readable and `c` is readable and writable for what the tile names.
    unsafe fn tile(isa: Isa, tile: &Tile<Self>, alpha: Self::Scalar, beta: Self::Scalar) -> Result<()>;
}

fn real(name: &str, (re, im): (f64, f64)) -> Result<f64> {
    if im == 0.0 {
        return Ok(re);
    }
    Err(Error::invalid(format!(
        "matmul got {name} = {re} + {im}i, but its dtype is real; leave the imaginary part 0"
    )))
}

/// Calls the `gemm` crate, whose names differ: there `alpha` is the factor of the old `dst` and `beta` that of
/// the product, and strides come column first.
///
/// # Safety
/// As for [`Element::tile`]; `T` is a type that the crate knows.
unsafe fn gemm_crate<T: 'static>(t: &Tile<T>, alpha: T, beta: T, read_c: bool) {
    // SAFETY: the caller's promise; strides within an allocation fit isize.
    unsafe {
        gemm::gemm(
            t.m,
            t.n,
            t.k,
            t.c,
            1,
            t.c_rs as isize,
            read_c,
            t.a,
            t.a_cs as isize,
            t.a_rs as isize,
            t.b,
            t.b_cs as isize,
            t.b_rs as isize,
            beta,
            alpha,
            false,
            t.conj_a,
            t.conj_b,
            gemm::Parallelism::None,
        );
    }
}

macro_rules! real_elements {
    ($($t:ident),*) => {
        $(impl Element for $t {
            type Scalar = $t;

            fn scalar(name: &str, value: (f64, f64)) -> Result<$t> {
                Ok(real(name, value)? as $t)
            }

            fn is_zero(scalar: $t) -> bool {
                scalar == 0.0
            }

            unsafe fn tile(_: Isa, tile: &Tile<Self>, alpha: $t, beta: $t) -> Result<()> {
                // SAFETY: the caller's promise.
                unsafe { turned::<$t>(tile, alpha, beta, 1.0, beta != 0.0) }
            }
        })*
    };
}
real_elements!(f32, f64);

macro_rules! complex_elements {
    ($($t:path: $part:ident),*) => {
        $(impl Element for $t {
            type Scalar = $t;

            fn scalar(_: &str, (re, im): (f64, f64)) -> Result<$t> {
                Ok(Self { re: re as $part, im: im as $part })
            }

            fn is_zero(scalar: $t) -> bool {
                scalar.re == 0.0 && scalar.im == 0.0
            }

            unsafe fn tile(_: Isa, tile: &Tile<Self>, alpha: $t, beta: $t) -> Result<()> {
                // SAFETY: the caller's promise.
                unsafe { gemm_crate(tile, alpha, beta, !Self::is_zero(beta)) };
                Ok(())
            }
        })*
    };
}
complex_elements!(gemm::c32: f32, gemm::c64: f64);

macro_rules! half_elements {
    ($($t:ident),*) => {
        $(impl Element for $t {
            type Scalar = f32;

            fn scalar(name: &str, value: (f64, f64)) -> Result<f32> {
                Ok(real(name, value)? as f32)
            }

            fn is_zero(scalar: f32) -> bool {
                scalar == 0.0
            }

            unsafe fn tile(isa: Isa, tile: &Tile<Self>, alpha: f32, beta: f32) -> Result<()> {
                // SAFETY: the caller's promise.
                unsafe {
                    if gemv(isa, tile, alpha, beta) {
                        return Ok(());
                    }
                    through_f32(isa, tile, alpha, beta)
                }
            }
        })*
    };
}
half_elements!(f16, bf16);

/// Length of the sums between which panels are converted or turned.
const DEPTH: usize = 512;

thread_local! {
    /// Panels, kept so that not every tile faults its memory in anew: at most 2 MiB a thread for the tile
    /// sizes in use.
    static PANELS: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };
}

/// Calls `f` with room for `len` elements.
///
/// # Safety
/// Any bytes are a valid `T`.
unsafe fn with_room<T: Copy, R>(len: usize, f: impl FnOnce(&mut [T]) -> R) -> Result<R> {
    const { assert!(align_of::<T>() <= align_of::<u64>() && size_of::<T>() <= size_of::<u64>()) };
    let words = (len * size_of::<T>()).div_ceil(size_of::<u64>());
    let mut room = PANELS.take();
    if room.len() < words {
        room.try_reserve_exact(words - room.len()).map_err(|_| {
            Error::out_of_memory(format!("matmul needs {} bytes for its panels", len * size_of::<T>()))
        })?;
        room.resize(words, 0);
    }
    // SAFETY: the room is initialised, large enough and aligned, and any bytes will do.
    let result = f(unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast(), len) });
    PANELS.set(room);
    Ok(result)
}

/// How often each element of `b` must be used for turning it to pay.
const USES: usize = 64;

/// A matrix of elements of `T` with rows `stride` apart, to be turned into rows without gaps.
fn turn_of<T>(rows: usize, cols: usize, stride: usize) -> Matrix {
    let bytes = |n: usize| (n * size_of::<T>()) as isize;
    Matrix { rows, cols, src_stride: bytes(stride), dst_stride: bytes(rows) }
}

fn turn<T>() -> transpose::Transpose {
    transpose::lookup(Isa::BASELINE, size_of::<T>(), Mode::Cached)
}

/// Multiplies. A `b` that is stored transposed is first turned, a panel at a time: the crate would pack it one
/// element at a time, for every tile anew.
///
/// # Safety
/// As for [`Element::tile`]; the `gemm` crate knows `T`.
unsafe fn turned<T: Copy + 'static>(t: &Tile<T>, alpha: T, beta: T, one: T, read_c: bool) -> Result<()> {
    if t.k == 0 || t.b_cs == 1 || t.m < USES {
        // SAFETY: the caller's promise.
        unsafe { gemm_crate(t, alpha, beta, read_c) };
        return Ok(());
    }
    let depth = t.k.min(DEPTH);
    let multiply = |room: &mut [T]| {
        for p in (0..t.k).step_by(depth) {
            let k = depth.min(t.k - p);
            let panel = turn_of::<T>(t.n, k, t.b_cs);
            let first = p == 0;
            // SAFETY: the panel lies inside the tile, and has room.
            unsafe {
                turn::<T>()(panel, t.b.add(p * t.b_rs).cast(), room.as_mut_ptr().cast());
                let (a, b) = (t.a.add(p * t.a_cs), room.as_ptr());
                let part = Tile { k, a, b, b_rs: t.n, b_cs: 1, ..*t };
                gemm_crate(&part, alpha, if first { beta } else { one }, read_c || !first);
            }
        }
    };
    // SAFETY: the crate knows numbers only.
    unsafe { with_room(depth * t.n, multiply) }
}

/// Multiplies in f32: converts panels of both factors, adds up in an f32 tile, and rounds once at the end.
///
/// # Safety
/// As for [`Element::tile`].
unsafe fn through_f32<T: Storage<Value = f32>>(isa: Isa, t: &Tile<T>, alpha: f32, beta: f32) -> Result<()> {
    let depth = t.k.min(DEPTH);
    let turn_b = t.b_cs != 1 && t.m >= USES;
    let (len_a, len_b, len_c) = (t.m * depth, depth * t.n, t.m * t.n);
    let len_turned = if turn_b { len_b.div_ceil(2) } else { 0 };
    let multiply = |room: &mut [f32]| {
        let (room_a, rest) = room.split_at_mut(len_a);
        let (room_b, rest) = rest.split_at_mut(len_b);
        let (sums, turned) = rest.split_at_mut(len_c);
        if t.k == 0 {
            sums.fill(0.0);
        }
        for p in (0..t.k).step_by(depth.max(1)) {
            let k = depth.min(t.k - p);
            // SAFETY: the panels lie inside the tile, and have room; two halves fit into one f32.
            let (a, b) = unsafe {
                let mut b = (t.b.add(p * t.b_rs), t.b_rs, t.b_cs);
                if turn_b {
                    let panel = turn_of::<T>(t.n, k, t.b_cs);
                    let turned = turned.as_mut_ptr();
                    turn::<T>()(panel, b.0.cast(), turned.cast());
                    b = (turned.cast::<T>().cast_const(), t.n, 1);
                }
                (
                    panel(isa, t.a.add(p * t.a_cs), (t.m, t.a_rs), (k, t.a_cs), room_a),
                    panel(isa, b.0, (k, b.1), (t.n, b.2), room_b),
                )
            };
            let part = Tile {
                m: t.m,
                n: t.n,
                k,
                a: a.0,
                a_rs: a.1,
                a_cs: a.2,
                conj_a: false,
                b: b.0,
                b_rs: b.1,
                b_cs: b.2,
                conj_b: false,
                c: sums.as_mut_ptr(),
                c_rs: t.n,
            };
            // SAFETY: the three are our own, of these sizes.
            unsafe { gemm_crate(&part, 1.0, 1.0, p != 0) };
        }
        for (i, sums) in sums.chunks_exact(t.n).enumerate() {
            // SAFETY: row `i` of the result.
            let c = unsafe { t.c.add(i * t.c_rs) };
            isa.dispatch(Finish { sums, c, alpha, beta });
        }
    };
    // SAFETY: any bytes are a number.
    unsafe { with_room(len_a + len_b + len_c + len_turned, multiply) }
}

/// Converts a matrix given by (size, stride) of its rows and columns into `out`, keeping which of the two is
/// contiguous. Returns the address and the strides between rows and between columns.
///
/// # Safety
/// `src` is readable for the matrix.
unsafe fn panel<T: Storage<Value = f32>>(
    isa: Isa,
    src: *const T,
    rows: (usize, usize),
    cols: (usize, usize),
    out: &mut [f32],
) -> (*const f32, usize, usize) {
    let ((lines, stride), (len, _)) = if cols.1 == 1 { (rows, cols) } else { (cols, rows) };
    for (i, out) in out[..lines * len].chunks_exact_mut(len).enumerate() {
        // SAFETY: line `i` of the matrix, of `len` elements.
        isa.dispatch(Widen(unsafe { std::slice::from_raw_parts(src.add(i * stride), len) }, out));
    }
    let (rs, cs) = if cols.1 == 1 { (len, 1) } else { (1, len) };
    (out.as_ptr(), rs, cs)
}

struct Widen<'a, T>(&'a [T], &'a mut [f32]);

impl<T: Storage<Value = f32>> Body for Widen<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        for (out, x) in self.1.iter_mut().zip(self.0) {
            *out = x.load();
        }
    }
}

/// Made only where `c` is readable and writable for as many elements as there are sums.
struct Finish<'a, T> {
    sums: &'a [f32],
    c: *mut T,
    alpha: f32,
    beta: f32,
}

impl<T: Storage<Value = f32>> Body for Finish<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        // SAFETY: as said at the struct; no other task has this part of the result.
        let c = unsafe { std::slice::from_raw_parts_mut(self.c, self.sums.len()) };
        if self.beta == 0.0 {
            for (c, sum) in c.iter_mut().zip(self.sums) {
                *c = T::store(self.alpha * sum);
            }
        } else {
            for (c, sum) in c.iter_mut().zip(self.sums) {
                *c = T::store(self.alpha * sum + self.beta * c.load());
            }
        }
    }
}

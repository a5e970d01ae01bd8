//! Arange: `start + i * step`.

use crate::isa::{Body, Isa};
use crate::kernels::elem::{Storage, f64_to_f32_for_halves};
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::sink::{self, PIECE, Producer, ROOM, Sink};
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};
use half::{bf16, f16};
use std::ops::Range;

/// Arguments of [`ArangeKernel::launch`].
#[derive(Clone, Copy, Debug)]
pub struct ArangeArgs {
    /// How many elements.
    pub count: usize,
    /// Start and step.
    pub numbers: Numbers,
    /// Where to write `count` elements; any alignment.
    pub dst: *mut u8,
}

/// A start and a step.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// Of an integer dtype, modulo 2^64; ignored by others.
    pub int: [u64; 2],
    /// Of a floating-point dtype; ignored by others.
    pub float: [f64; 2],
}

/// Writes `n` elements from the one numbered `first` on, a multiple of 512: `(isa, numbers, first, dst, n)`.
///
/// # Safety
/// The destination is writable for `n` elements.
type Block = unsafe fn(Isa, Numbers, usize, *mut u8, usize);

/// The kernel for a dtype.
#[derive(Clone, Copy, Debug)]
pub struct ArangeKernel {
    block: Block,
    size: usize,
}

/// The dtypes and their kernels.
const TABLE: [(DType, Block); 12] = {
    use DType as D;
    [
        (D::I8, ints::<u8>),
        (D::U8, ints::<u8>),
        (D::I16, ints::<u16>),
        (D::U16, ints::<u16>),
        (D::I32, ints::<u32>),
        (D::U32, ints::<u32>),
        (D::I64, ints::<u64>),
        (D::U64, ints::<u64>),
        (D::F16, floats::<f16>),
        (D::BF16, floats::<bf16>),
        (D::F32, floats::<f32>),
        (D::F64, floats::<f64>),
    ]
};

/// The kernel for a real dtype other than bool.
pub fn lookup(dtype: DType) -> Option<ArangeKernel> {
    let (_, block) = TABLE.into_iter().find(|&(d, _)| d == dtype)?;
    Some(ArangeKernel { block, size: dtype.size()? })
}

/// Every dtype that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = DType> {
    TABLE.into_iter().map(|(dtype, _)| dtype)
}

impl ArangeKernel {
    /// Writes `start + i * step` to element `i`: integers modulo 2^64 and then cut to their width,
    /// floating-point numbers in f64 by one fused multiply-add, and then rounded to the dtype.
    ///
    /// # Errors
    /// `InvalidArgument` if the elements are more bytes than an address space holds; those of `par`.
    ///
    /// # Safety
    /// `dst` is writable for `count` elements, with no other access until this returns.
    pub unsafe fn launch(self, isa: Isa, par: &dyn Parallel, args: &ArangeArgs) -> Result<()> {
        let size = self.size;
        let bytes = args.count.checked_mul(size).filter(|&n| n <= isize::MAX as usize).ok_or_else(|| {
            Error::invalid(format!(
                "arange of {} elements of {size} bytes: no address space holds that",
                args.count
            ))
        })?;
        let streaming = sink::streams(bytes, 0);
        let dst = Shared::new(args.dst);
        let numbers = args.numbers;
        for_ranges(par, bytes, 1, PIECE, |bytes| {
            // SAFETY: the range is within the destination and no other task has it.
            unsafe {
                let to = dst.get().add(bytes.start);
                sink::write(isa, streaming, to, Part { isa, kernel: self, numbers, bytes });
            }
            Ok(())
        })
    }
}

/// A range of the destination's bytes.
struct Part {
    isa: Isa,
    kernel: ArangeKernel,
    numbers: Numbers,
    bytes: Range<usize>,
}

impl Producer for Part {
    #[inline(always)]
    unsafe fn run<S: Sink>(self, sink: &mut S) {
        let Part { isa, kernel: ArangeKernel { block, size }, numbers, bytes } = self;
        let end = bytes.end;
        for at in bytes.step_by(ROOM) {
            let n = ROOM.min(end - at);
            // SAFETY: the block is within the range. It starts at a multiple of `ROOM` bytes, which are at least
            // 512 elements.
            unsafe {
                let to = sink.room(n);
                block(isa, numbers, at / size, to, n / size);
                sink.advance(n);
            }
        }
    }
}

/// # Safety
/// As for [`Block`].
unsafe fn ints<T: Int>(isa: Isa, numbers: Numbers, first: usize, dst: *mut u8, n: usize) {
    isa.dispatch(Ints::<T> { int: numbers.int, first, dst: dst.cast(), n });
}

/// Made only under the promises of [`Block`].
struct Ints<T> {
    int: [u64; 2],
    first: usize,
    dst: *mut T,
    n: usize,
}

impl<T: Int> Body for Ints<T> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let [start, step] = self.int;
        // What is cut off has no influence on what is left, so all is computed in the width of the elements.
        let base = T::cut(start.wrapping_add(step.wrapping_mul(self.first as u64)));
        let step = T::cut(step);
        for i in 0..self.n {
            // SAFETY: `i < n`.
            unsafe { self.dst.add(i).write_unaligned(T::at(base, step, i)) };
        }
    }
}

/// An unsigned integer, which stands for the signed one of its width too.
trait Int: Copy {
    fn cut(x: u64) -> Self;
    /// `base + i * step`.
    fn at(base: Self, step: Self, i: usize) -> Self;
}

macro_rules! int {
    ($($t:ty),*) => {$(
        impl Int for $t {
            #[inline(always)]
            fn cut(x: u64) -> $t {
                x as $t
            }

            #[inline(always)]
            fn at(base: $t, step: $t, i: usize) -> $t {
                base.wrapping_add(step.wrapping_mul(i as $t))
            }
        }
    )*};
}
int!(u8, u16, u32, u64);

/// # Safety
/// As for [`Block`].
unsafe fn floats<T: Rounded>(isa: Isa, numbers: Numbers, first: usize, dst: *mut u8, n: usize) {
    isa.dispatch(Floats::<T> { float: numbers.float, first, dst: dst.cast(), n });
}

/// Made only under the promises of [`Block`].
struct Floats<T> {
    float: [f64; 2],
    first: usize,
    dst: *mut T,
    n: usize,
}

impl<T: Rounded> Body for Floats<T> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let [start, step] = self.float;
        // A multiple of 512 is exact, and so is its sum with a smaller number before it is rounded: this is the
        // element's number, rounded once, from vector conversions of 32-bit integers.
        let first = self.first as f64;
        for i in 0..self.n {
            let number = first + f64::from(i as i32);
            // SAFETY: `i < n`.
            unsafe { self.dst.add(i).write_unaligned(T::rounded(number.mul_add(step, start))) };
        }
    }
}

/// A floating-point element.
trait Rounded: Copy {
    /// The nearest to `x`.
    fn rounded(x: f64) -> Self;
}

impl Rounded for f64 {
    #[inline(always)]
    fn rounded(x: f64) -> f64 {
        x
    }
}

impl Rounded for f32 {
    #[inline(always)]
    fn rounded(x: f64) -> f32 {
        x as f32
    }
}

impl Rounded for f16 {
    #[inline(always)]
    fn rounded(x: f64) -> f16 {
        f16::store(f64_to_f32_for_halves(x))
    }
}

impl Rounded for bf16 {
    #[inline(always)]
    fn rounded(x: f64) -> bf16 {
        bf16::store(f64_to_f32_for_halves(x))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::check::{Buffer, Val, decode, rounded};
    use crate::kernels::sink::tests::everywhere;
    use crate::kernels::testing::{Rng, Threads};
    use ep_core::Code;
    use ep_core::parallel::Serial;

    fn run(isa: Isa, par: &dyn Parallel, dtype: DType, count: usize, numbers: Numbers) -> Vec<u8> {
        let size = dtype.size().unwrap();
        let mut dst = Buffer::poisoned(count * size, size);
        let args = ArangeArgs { count, numbers, dst: dst.ptr() };
        // SAFETY: `dst` has `count` elements.
        unsafe { lookup(dtype).unwrap().launch(isa, par, &args) }.unwrap();
        dst.into_bytes()
    }

    #[test]
    fn integers_wrap_in_64_bits_and_are_cut() {
        let mut rng = Rng::new();
        for dtype in rows().filter(|d| d.is_int()) {
            let size = dtype.size().unwrap();
            for count in [0, 1, 3, 64, 4097, 300_001] {
                let [start, step] = [0, 1].map(|_| rng.next() >> (rng.next() % 64));
                let step = if count % 2 == 0 { step } else { step.wrapping_neg() };
                let numbers = Numbers { int: [start, step], float: [f64::NAN; 2] };
                let want: Vec<u8> = (0..count as u64)
                    .flat_map(|i| start.wrapping_add(i.wrapping_mul(step)).to_le_bytes()[..size].to_vec())
                    .collect();
                everywhere(|isa| {
                    assert!(
                        run(isa, &Threads(2), dtype, count, numbers) == want,
                        "{dtype} {count} {start} {step} {isa}"
                    );
                });
            }
        }
    }

    #[test]
    fn floats_are_fused_in_f64_and_rounded_once() {
        let mut rng = Rng::new();
        let special = [f64::INFINITY, f64::NAN, -0.0, 1e308, 5e-324, 1.0 / 3.0];
        for dtype in rows().filter(|d| d.is_float()) {
            for (k, count) in [0, 1, 3, 64, 4097, 5000, 200_001, 77].into_iter().enumerate() {
                let start = if k < special.len() { special[k] } else { rng.signed() };
                let step = rng.signed() * [1e-7, 1.0, 1e3, 1e300][k % 4];
                let numbers = Numbers { int: [7; 2], float: [start, step] };
                let want: Vec<Val> =
                    (0..count).map(|i| rounded(dtype, Val::Float((i as f64).mul_add(step, start)))).collect();
                everywhere(|isa| {
                    let got = decode(dtype, &run(isa, &Threads(2), dtype, count, numbers));
                    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                        assert!(
                            got.same(*want),
                            "{dtype} {i} of {count}: {start:e} {step:e} {got:?} {want:?} {isa}"
                        );
                    }
                });
            }
        }
    }

    #[test]
    fn the_number_of_an_element_is_rounded_once() {
        // Blocks that start past 2^53, where not every number is an f64.
        let (first, n) = ((1 << 53) + 512, 512);
        for isa in Isa::available() {
            let mut dst = vec![0f64; n];
            // SAFETY: `dst` has `n` elements.
            unsafe {
                floats::<f64>(
                    isa,
                    Numbers { int: [0; 2], float: [0.0, 1.0] },
                    first,
                    dst.as_mut_ptr().cast(),
                    n,
                )
            };
            assert!(dst.iter().enumerate().all(|(i, &x)| x == (first + i) as f64), "{isa}");
        }
    }

    #[test]
    fn too_many_are_refused() {
        let numbers = Numbers { int: [0; 2], float: [0.0; 2] };
        let args = ArangeArgs { count: usize::MAX / 4, numbers, dst: std::ptr::null_mut() };
        // SAFETY: refused before anything is written.
        let e = unsafe { lookup(DType::F64).unwrap().launch(Isa::BASELINE, &Serial, &args) }.unwrap_err();
        assert_eq!(e.code(), Code::InvalidArgument);
        assert!(lookup(DType::BOOL).is_none() && lookup(DType::COMPLEX64).is_none());
        assert_eq!(rows().count(), 12);
    }
}

//! Fill: one element, repeated.

use crate::isa::{Body, Isa};
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::stream;
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};

/// Bytes of traffic that one written stands for: its line is fetched before it leaves.
const WRITE_COST: usize = 2;

/// Arguments of a [`FillFn`].
#[derive(Clone, Copy, Debug)]
pub struct FillArgs {
    /// Where to write `count` elements; any alignment.
    pub dst: *mut u8,
    /// How many elements.
    pub count: usize,
    /// The element's bytes as they lie in memory, first in the array; the rest is ignored.
    pub value: [u8; 16],
}

/// Writes one value to every element.
///
/// # Errors
/// `InvalidArgument` if the elements are more bytes than an address space holds; those of `par`.
///
/// # Safety
/// `dst` is writable for `count` elements, with no other access until this returns.
pub type FillFn = unsafe fn(isa: Isa, par: &dyn Parallel, args: &FillArgs) -> Result<()>;

/// The kernel for a dtype. Elements are only bytes here, so the size decides.
pub fn lookup(dtype: DType) -> Option<FillFn> {
    match dtype.size()? {
        1 => Some(fill::<1>),
        2 => Some(fill::<2>),
        4 => Some(fill::<4>),
        8 => Some(fill::<8>),
        16 => Some(fill::<16>),
        _ => None,
    }
}

/// Every dtype that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|&dtype| lookup(dtype).is_some())
}

unsafe fn fill<const SIZE: usize>(isa: Isa, par: &dyn Parallel, args: &FillArgs) -> Result<()> {
    let bytes = args.count.checked_mul(SIZE).filter(|&n| n <= isize::MAX as usize).ok_or_else(|| {
        Error::invalid(format!(
            "fill of {} elements of {SIZE} bytes: no address space holds that",
            args.count
        ))
    })?;
    let mut pattern = [0; 16];
    for element in pattern.chunks_exact_mut(SIZE) {
        element.copy_from_slice(&args.value[..SIZE]);
    }
    // SAFETY: the caller's promise.
    unsafe { fill_pattern(isa, par, args.dst, pattern, bytes) }
}

/// Repeats `pattern` over `bytes` bytes; the last repetition may be cut short.
///
/// # Safety
/// As for [`FillFn`], with `bytes` bytes.
pub(super) unsafe fn fill_pattern(
    isa: Isa,
    par: &dyn Parallel,
    dst: *mut u8,
    pattern: [u8; 16],
    bytes: usize,
) -> Result<()> {
    let to = Shared::new(dst);
    for_ranges(par, bytes, WRITE_COST, Repeat::BLOCK, |range| {
        // SAFETY: the range is within `bytes` and no other task has it.
        let dst = unsafe { to.get().add(range.start) };
        if stream::reaches(bytes, stream::STREAM_BYTES) {
            // SAFETY: as above; ranges start at multiples of the pattern's length.
            unsafe { stream::fill(isa, dst, pattern, range.len(), stream::asks_far(bytes)) };
        } else if pattern == [pattern[0]; 16] {
            // The library knows how to set bytes without reading the lines first.
            // SAFETY: as above.
            unsafe { dst.write_bytes(pattern[0], range.len()) };
        } else {
            isa.dispatch(Repeat { dst, pattern, bytes: range.len() });
        }
        Ok(())
    })
}

/// Made only where `dst` is writable for `bytes` bytes.
struct Repeat {
    dst: *mut u8,
    pattern: [u8; 16],
    bytes: usize,
}

impl Repeat {
    /// A line of the cache.
    const BLOCK: usize = 64;
    /// Bytes from which blocks are written at lines.
    const ALIGN: usize = 16 * Self::BLOCK;
}

impl Body for Repeat {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Repeat { mut dst, mut pattern, mut bytes } = self;
        let to_line = dst.addr().wrapping_neg() % Self::BLOCK;
        if to_line > 0 && bytes >= Self::ALIGN {
            // One block that overlaps the next, so that no other lies in two lines.
            // SAFETY: a block is within `bytes`, and arrays of bytes need no alignment.
            unsafe { dst.cast::<[[u8; 16]; Self::BLOCK / 16]>().write([pattern; Self::BLOCK / 16]) };
            pattern.rotate_left(to_line % 16);
            dst = dst.wrapping_add(to_line);
            bytes -= to_line;
        }
        let block = [pattern; Self::BLOCK / 16];
        let whole = bytes / Self::BLOCK;
        let (low, high) = pattern.split_at(8);
        if low == high {
            // As numbers, of which the compiler makes whole vectors: of the blocks below it makes four stores each.
            let number = u64::from_ne_bytes([low[0], low[1], low[2], low[3], low[4], low[5], low[6], low[7]]);
            for i in 0..whole * (Self::BLOCK / 8) {
                // SAFETY: number `i` ends within `bytes`.
                unsafe { dst.cast::<u64>().add(i).write_unaligned(number) };
            }
        }
        for i in if low == high { whole } else { 0 }..whole {
            // SAFETY: block `i` ends within `bytes`, and arrays of bytes need no alignment.
            unsafe { dst.cast::<[[u8; 16]; Self::BLOCK / 16]>().add(i).write(block) };
        }
        let done = whole * Self::BLOCK;
        // SAFETY: less than a block is left, within `bytes`.
        unsafe { dst.add(done).copy_from_nonoverlapping(block.as_ptr().cast(), bytes - done) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Guarded, Rng, Threads};
    use ep_core::Code;
    use ep_core::parallel::Serial;

    #[test]
    fn every_dtype_size_and_isa() {
        let mut rng = Rng::new();
        assert_eq!(rows().count(), 15);
        for (dtype, isa) in rows().flat_map(|d| Isa::available().into_iter().map(move |i| (d, i))) {
            let size = dtype.size().unwrap();
            for count in [0, 1, 2, 3, 5, 31, 64, 65, 1000, 300_001] {
                let value: [u8; 16] = rng.bytes(16).try_into().unwrap();
                let mut dst = Guarded::<u8>::new(count * size);
                let args = FillArgs { dst: dst.ptr(), count, value };
                // SAFETY: `dst` has `count` elements.
                unsafe { lookup(dtype).unwrap()(isa, &Threads(3), &args) }.unwrap();
                assert!(
                    dst.written().chunks_exact(size).all(|e| *e == value[..size]),
                    "{dtype} {count} {isa}"
                );
            }
        }
    }

    #[test]
    fn at_any_address() {
        let value: [u8; 16] = Rng::new().bytes(16).try_into().unwrap();
        for (dtype, isa) in rows().flat_map(|d| Isa::available().into_iter().map(move |i| (d, i))) {
            let size = dtype.size().unwrap();
            // Both sides of the size from which blocks are at lines, and ends at and behind a line.
            for (shift, bytes) in (0..=Repeat::BLOCK).flat_map(|s| [960, 1024, 1087, 3056].map(|b| (s, b))) {
                let count = bytes / size;
                let mut dst = Guarded::<u8>::new(shift + count * size);
                let args = FillArgs { dst: dst.ptr().wrapping_add(shift), count, value };
                // SAFETY: `dst` has `count` elements from there on.
                unsafe { lookup(dtype).unwrap()(isa, &Serial, &args) }.unwrap();
                let same = dst.written()[shift..].chunks_exact(size).all(|e| *e == value[..size]);
                assert!(same, "{dtype} {count} at {shift} {isa}");
            }
        }
    }

    #[test]
    fn streaming_keeps_the_phase_at_odd_addresses() {
        let bytes = stream::STREAM_BYTES + 40;
        let count = bytes / 4;
        let mut dst = Guarded::<u8>::new(bytes + 5);
        let value = *b"wxyz____________";
        let args = FillArgs { dst: dst.ptr().wrapping_add(5), count, value };
        // SAFETY: `dst` has 5 bytes more than `count` elements.
        unsafe { lookup(DType::F32).unwrap()(Isa::BASELINE, &Threads(2), &args) }.unwrap();
        assert!(dst.written()[5..].chunks_exact(4).all(|e| e == b"wxyz"));
    }

    #[test]
    fn too_many_elements_are_refused() {
        let args = FillArgs { dst: std::ptr::null_mut(), count: usize::MAX / 8, value: [0; 16] };
        // SAFETY: refused before anything is written.
        let e = unsafe { lookup(DType::COMPLEX128).unwrap()(Isa::BASELINE, &Serial, &args) }.unwrap_err();
        assert_eq!(e.code(), Code::InvalidArgument);
    }
}

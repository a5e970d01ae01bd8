//! Tensor fill: one element of memory, repeated.

use crate::isa::Isa;
use crate::kernels::fill::{self, FillArgs};
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};

/// Arguments of a [`TensorFillFn`].
#[derive(Clone, Copy, Debug)]
pub struct TensorFillArgs {
    /// How many elements.
    pub count: usize,
    /// The element; any alignment.
    pub src: *const u8,
    /// Where to write `count` elements; any alignment.
    pub dst: *mut u8,
}

/// Writes the source's element to every element. Nothing is read if there are none.
///
/// # Errors
/// `InvalidArgument` if the elements are more bytes than an address space holds; those of `par`.
///
/// # Safety
/// `src` is readable for one element and `dst` writable for `count`, with no other access until this returns.
/// The source may be an element of the destination.
pub type TensorFillFn = unsafe fn(isa: Isa, par: &dyn Parallel, args: &TensorFillArgs) -> Result<()>;

/// The kernel for a dtype. Elements are only bytes here, so the size decides.
pub fn lookup(dtype: DType) -> Option<TensorFillFn> {
    match dtype.size()? {
        1 => Some(tensor_fill::<1>),
        2 => Some(tensor_fill::<2>),
        4 => Some(tensor_fill::<4>),
        8 => Some(tensor_fill::<8>),
        16 => Some(tensor_fill::<16>),
        _ => None,
    }
}

/// Every dtype that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|&dtype| lookup(dtype).is_some())
}

unsafe fn tensor_fill<const SIZE: usize>(isa: Isa, par: &dyn Parallel, args: &TensorFillArgs) -> Result<()> {
    let &TensorFillArgs { count, src, dst } = args;
    if count == 0 {
        return Ok(());
    }
    // Any dtype of the size has the kernel.
    let same_size = match SIZE {
        1 => DType::U8,
        2 => DType::U16,
        4 => DType::U32,
        8 => DType::U64,
        _ => DType::COMPLEX128,
    };
    let Some(fill) = fill::lookup(same_size) else {
        return Err(Error::unsupported(format!("tensor_fill of elements of {SIZE} bytes")));
    };
    let mut value = [0; 16];
    // SAFETY: the caller promises one element, of at most 16 bytes.
    unsafe { value.as_mut_ptr().copy_from_nonoverlapping(src, SIZE) };
    // SAFETY: the caller's promise.
    unsafe { fill(isa, par, &FillArgs { dst, count, value }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::check::Buffer;
    use crate::kernels::testing::{Rng, Threads};
    use ep_core::Code;
    use ep_core::parallel::Serial;

    #[test]
    fn every_dtype_repeats_its_element() {
        assert_eq!(rows().count(), 15);
        for (dtype, isa) in rows().flat_map(|d| Isa::available().into_iter().map(move |i| (d, i))) {
            let size = dtype.size().unwrap();
            for count in [0, 1, 2, 33, 1000, 200_001] {
                let value = Rng::new().bytes(size);
                let (mut src, mut dst) = (Buffer::of(&value, size), Buffer::poisoned(count * size, size));
                let args = TensorFillArgs { count, src: src.ptr(), dst: dst.ptr() };
                // SAFETY: both sides have their elements.
                unsafe { lookup(dtype).unwrap()(isa, &Threads(2), &args) }.unwrap();
                assert!(dst.into_bytes().chunks_exact(size).all(|e| e == value), "{dtype} {count} {isa}");
            }
        }
    }

    #[test]
    fn too_many_are_refused_and_none_read_nothing() {
        let (src, dst) = (std::ptr::null(), std::ptr::null_mut());
        // SAFETY: without elements nothing is read, and the value's address is not read before the size is checked.
        let run = |count, src| unsafe {
            lookup(DType::F64).unwrap()(Isa::BASELINE, &Serial, &TensorFillArgs { count, src, dst })
        };
        run(0, src).unwrap();
        let e = run(usize::MAX / 4, [0u8; 8].as_ptr()).unwrap_err();
        assert_eq!(e.code(), Code::InvalidArgument);
    }
}

//! StridedCopy: `dst[i] = src[i]` for every index, between any two strided layouts, converting as `cast` does.

use super::cast;
use super::movement;
use super::strided_map::Map;
use super::unary::UnaryKernel;
use crate::isa::Isa;
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};
use primitives::permute::MAX_DIMS;
use primitives::strided_copy::check_destination;
use primitives::tensor_iterator::TensorIterator;

/// Arguments of a [`StridedCopyKernel`].
#[derive(Clone, Copy, Debug)]
pub struct StridedCopyArgs<'a> {
    /// The shape, outermost first; at most 8 dimensions.
    pub dims: &'a [usize],
    /// Elements between neighbours of the source; 0 repeats.
    pub src_strides: &'a [isize],
    /// Elements between neighbours of the destination.
    pub dst_strides: &'a [isize],
    /// The source's element at index 0, this many elements behind `src`.
    pub src_offset: usize,
    /// The destination's element at index 0, this many elements behind `dst`.
    pub dst_offset: usize,
    /// The source, aligned to its element.
    pub src: *const u8,
    /// The destination, aligned to its element.
    pub dst: *mut u8,
}

/// The kernel of a pair of dtypes.
#[derive(Clone, Copy)]
pub struct StridedCopyKernel {
    /// `None` where the dtypes are one: bytes are moved.
    cast: Option<UnaryKernel>,
    src_size: usize,
    dst_size: usize,
}

/// The kernel that copies from `src` to `dst`; `None` for dtypes outside [`DType::ALL`].
pub fn lookup(src: DType, dst: DType) -> Option<StridedCopyKernel> {
    let cast = cast::lookup(src, dst)?;
    Some(StridedCopyKernel {
        cast: (src != dst).then_some(cast),
        src_size: src.size()?,
        dst_size: dst.size()?,
    })
}

/// Every pair of dtypes, source first, that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = (DType, DType)> {
    cast::rows().iter().map(|row| (row.0, row.1))
}

impl StridedCopyKernel {
    /// Copies.
    ///
    /// # Errors
    /// `InvalidArgument` for a destination that may have an element twice (see [`check_destination`]), for strides
    /// that lead below the start of a buffer or further than an address space, and for more than 8 dimensions;
    /// the first error of `par`.
    ///
    /// # Safety
    /// From `src` the elements that the shape and its strides address are readable, from `dst` writable, with no
    /// other access until this returns; the two do not overlap.
    pub unsafe fn launch(&self, isa: Isa, par: &dyn Parallel, args: &StridedCopyArgs<'_>) -> Result<()> {
        let StridedCopyArgs { dims, src_strides, dst_strides, .. } = *args;
        let Self { src_size, dst_size, .. } = *self;
        check_destination(dims, dst_strides)?;
        let dst_bytes = to_bytes(dims, dst_strides, dst_size)?;
        let src_bytes = to_bytes(dims, src_strides, src_size)?;
        let walk =
            TensorIterator::new(dims, [&dst_bytes[..dst_strides.len()], &src_bytes[..src_strides.len()]])?;
        if walk.count() == 0 {
            return Ok(());
        }
        stays_inside("source", dims, src_strides, args.src_offset)?;
        stays_inside("destination", dims, dst_strides, args.dst_offset)?;
        let src = args.src.wrapping_add(args.src_offset * src_size);
        let dst = args.dst.wrapping_add(args.dst_offset * dst_size);
        // SAFETY: the caller's promise; no element of the destination is reached twice, as was checked.
        unsafe {
            match self.cast {
                None => movement::copy(isa, par, &walk, src_size, src, dst),
                Some(kernel) => {
                    let map = Map { kernel, attr: [0.0; 2], walk: &walk, src_size, dst_size, src, dst };
                    map.run(isa, par)
                }
            }
        }
    }
}

/// Strides in bytes: 0 of dimensions along which there is no step; those beyond [`MAX_DIMS`] are left out.
pub(super) fn to_bytes(dims: &[usize], strides: &[isize], size: usize) -> Result<[isize; MAX_DIMS]> {
    let mut bytes = [0; MAX_DIMS];
    if dims.contains(&0) {
        return Ok(bytes);
    }
    for ((byte, stride), _) in bytes.iter_mut().zip(strides).zip(dims).filter(|(_, dim)| **dim > 1) {
        *byte = stride.checked_mul(size as isize).ok_or_else(|| too_far(strides, size))?;
    }
    Ok(bytes)
}

#[cold]
fn too_far(strides: &[isize], size: usize) -> Error {
    Error::invalid(format!(
        "strides {strides:?} of elements of {size} bytes lead further than an address space; strides count elements"
    ))
}

/// Checks that a view which is not empty does not lead below the start of its buffer.
fn stays_inside(side: &str, dims: &[usize], strides: &[isize], offset: usize) -> Result<()> {
    // The walk has been planned, so neither a product nor the sum overflows.
    let down = dims.iter().zip(strides).filter(|(_, s)| **s < 0);
    let below: usize = down.map(|(&d, s)| (d - 1) * s.unsigned_abs()).sum();
    if below > offset {
        return Err(Error::invalid(format!(
            "the {side}'s strides {strides:?} for dimensions {dims:?} lead {below} elements down from offset {offset}, \
             below its start; give an offset of at least {below}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::check::{Buffer, decode, samples, size};
    use crate::kernels::testing::{Rng, Threads};
    use crate::kernels::unary::UnaryArgs;
    use ep_core::Code;
    use ep_core::parallel::Serial;

    /// Dimensions, strides of the source and of the destination.
    type Layout = (Vec<usize>, Vec<isize>, Vec<isize>);

    /// One of each way that elements are brought to the kernel and back.
    fn layouts() -> Vec<Layout> {
        let layout =
            |dims: &[usize], src: &[isize], dst: &[isize]| (dims.to_vec(), src.to_vec(), dst.to_vec());
        vec![
            layout(&[], &[], &[]),
            layout(&[1500], &[1], &[1]),
            // Rows with gaps, long and short.
            layout(&[5, 300], &[307, 1], &[301, 1]),
            layout(&[150, 7], &[9, 1], &[7, 1]),
            // Transposed, one side or both strided, reversed, repeated.
            layout(&[40, 130], &[1, 40], &[130, 1]),
            layout(&[40, 130], &[-1, 45], &[131, 1]),
            layout(&[40, 130], &[2, 90], &[130, 1]),
            layout(&[1300], &[3], &[-1]),
            layout(&[1300], &[1], &[2]),
            layout(&[3, 500], &[1500, -3], &[1000, 2]),
            layout(&[3, 400], &[0, 1], &[400, 1]),
            layout(&[300, 4], &[1, 0], &[4, 1]),
            layout(&[3, 4, 5, 6], &[1, 3, 12, 60], &[120, 30, 6, 1]),
        ]
    }

    fn ends(dims: &[usize], strides: &[isize]) -> (usize, usize) {
        let ends = dims.iter().zip(strides).map(|(&d, s)| (d - 1) as isize * s);
        let sum = |sign: isize| ends.clone().filter(|e| e * sign > 0).sum::<isize>().unsigned_abs();
        (sum(-1), sum(1) + 1)
    }

    fn offsets(dims: &[usize], strides: &[isize], start: usize) -> Vec<usize> {
        let offset = |element: usize| {
            let (mut rest, mut at) = (element, start as isize);
            for (&dim, stride) in dims.iter().zip(strides).rev() {
                at += (rest % dim) as isize * stride;
                rest /= dim;
            }
            at as usize
        };
        (0..dims.iter().product()).map(offset).collect()
    }

    /// What the kernel for contiguous elements makes of them.
    fn converted(src: DType, dst: DType, elements: &[u8]) -> Vec<u8> {
        let count = elements.len() / size(src);
        let (mut from, mut to) = (Buffer::of(elements, 16), Buffer::poisoned(count * size(dst), 16));
        let args = UnaryArgs { count, src: from.ptr(), dst: to.ptr(), attr: [0.0; 2] };
        // SAFETY: both sides have that many elements.
        unsafe { cast::lookup(src, dst).unwrap().launch(Isa::BASELINE, &Serial, &args) }.unwrap();
        to.into_bytes()
    }

    fn check(src: DType, dst: DType, (dims, src_strides, dst_strides): &Layout, rng: &mut Rng) {
        let (src_size, dst_size) = (size(src), size(dst));
        let ((src_low, src_high), (dst_low, dst_high)) = (ends(dims, src_strides), ends(dims, dst_strides));
        let data = samples(src, src_low + src_high, rng);
        let from = offsets(dims, src_strides, src_low);
        let elements: Vec<u8> =
            from.iter().flat_map(|&o| &data[o * src_size..][..src_size]).copied().collect();
        let results = converted(src, dst, &elements);
        let mut want = vec![0x5a; (dst_low + dst_high) * dst_size];
        for (o, element) in offsets(dims, dst_strides, dst_low).into_iter().zip(results.chunks(dst_size)) {
            want[o * dst_size..][..dst_size].copy_from_slice(element);
        }
        for isa in Isa::available() {
            for par in [&Serial as &dyn Parallel, &Threads(3)] {
                let mut src_buffer = Buffer::of(&data, src_size);
                let mut dst_buffer = Buffer::of(&vec![0x5a; want.len()], dst_size);
                let args = StridedCopyArgs {
                    dims,
                    src_strides,
                    dst_strides,
                    src_offset: src_low,
                    dst_offset: dst_low,
                    src: src_buffer.ptr(),
                    dst: dst_buffer.ptr(),
                };
                // SAFETY: both sides have all that their strides lead to.
                unsafe { lookup(src, dst).unwrap().launch(isa, par, &args) }.unwrap();
                let got = dst_buffer.into_bytes();
                // A NaN's payload is not part of a conversion.
                let (values, wanted) = (decode(dst, &got), decode(dst, &want));
                let at = values.iter().zip(&wanted).position(|(g, w)| !g.same(*w));
                assert!(
                    at.is_none(),
                    "{src} to {dst} at {isa}: {dims:?} {src_strides:?} {dst_strides:?}, element {at:?}"
                );
            }
        }
    }

    #[test]
    fn every_pair_of_dtypes_in_every_layout() {
        let mut rng = Rng::new();
        let layouts = layouts();
        assert_eq!(rows().count(), 225);
        for (i, (src, dst)) in rows().enumerate() {
            // All layouts for some pairs, and for each pair some layouts.
            for (j, layout) in layouts.iter().enumerate() {
                if i % 16 == 0 || (i + j) % 5 == 0 {
                    check(src, dst, layout, &mut rng);
                }
            }
        }
    }

    #[test]
    fn large_outputs_are_collected() {
        let mut rng = Rng::new();
        for (src, dst) in [(DType::F32, DType::BF16), (DType::I8, DType::F64), (DType::F16, DType::F32)] {
            check(src, dst, &(vec![90, 100, 3], vec![900, 3, 1], vec![300, 3, 1]), &mut rng);
            check(src, dst, &(vec![20_001], vec![2], vec![1]), &mut rng);
            check(src, dst, &(vec![400, 300], vec![1, 401], vec![300, 1]), &mut rng);
        }
    }

    fn refused(kernel: (DType, DType), args: &StridedCopyArgs<'_>) -> Error {
        // SAFETY: refused before anything is touched.
        unsafe { lookup(kernel.0, kernel.1).unwrap().launch(Isa::BASELINE, &Serial, args) }.unwrap_err()
    }

    #[test]
    fn bad_views_are_refused() {
        let nothing = std::ptr::null_mut();
        let args = |dims: &'static [usize], src_strides: &'static [isize], dst_strides: &'static [isize]| {
            StridedCopyArgs {
                dims,
                src_strides,
                dst_strides,
                src_offset: 5,
                dst_offset: 5,
                src: nothing,
                dst: nothing,
            }
        };
        for kernel in [(DType::F32, DType::F32), (DType::F32, DType::I64)] {
            for (bad, word) in [
                (args(&[3, 4], &[4, 1], &[0, 1]), "twice"),
                (args(&[3, 4], &[4, 1], &[3, 1]), "twice"),
                (args(&[3], &[-3], &[1]), "source"),
                (args(&[3], &[1], &[-3]), "destination"),
                (args(&[3], &[isize::MAX / 2], &[1]), "address space"),
                (args(&[1 << 40, 1 << 40], &[0, 0], &[1 << 40, 1]), "address space"),
                (args(&[1; 9], &[1; 9], &[1; 9]), "8"),
                (args(&[2, 2], &[1], &[2, 1]), "strides"),
            ] {
                let e = refused(kernel, &bad);
                assert_eq!(e.code(), Code::InvalidArgument, "{e}");
                assert!(e.message().contains(word), "{e}");
            }
        }
    }

    #[test]
    fn nothing_is_done_for_nothing() {
        let nothing = std::ptr::null_mut();
        // Strides that would lead anywhere do not matter, nor do those of a dimension of size 1.
        let args = StridedCopyArgs {
            dims: &[3, 0],
            src_strides: &[isize::MIN, 1],
            dst_strides: &[isize::MAX, 0],
            src_offset: 0,
            dst_offset: 0,
            src: nothing,
            dst: nothing,
        };
        for dst in [DType::U8, DType::F64] {
            // SAFETY: there is nothing to touch.
            unsafe { lookup(DType::U8, dst).unwrap().launch(Isa::BASELINE, &Serial, &args) }.unwrap();
        }
    }

    #[test]
    fn strides_along_which_there_is_no_step_do_not_matter() {
        let (src, mut dst) = ([1.5f32, -2.5], [0f32; 2]);
        let args = StridedCopyArgs {
            dims: &[1, 2],
            src_strides: &[isize::MAX, 1],
            dst_strides: &[isize::MIN, 1],
            src_offset: 0,
            dst_offset: 0,
            src: src.as_ptr().cast(),
            dst: dst.as_mut_ptr().cast(),
        };
        // SAFETY: two elements on both sides.
        unsafe { lookup(DType::F32, DType::F32).unwrap().launch(Isa::BASELINE, &Serial, &args) }.unwrap();
        assert_eq!(dst, src);
    }
}

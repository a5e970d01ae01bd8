//! BroadcastElementwiseUnary: `dst = op(src)` with strides on both sides, the source broadcast to the
//! destination's shape. The ops are those of [`unary`].

use super::movement;
use super::strided_copy::to_bytes;
use super::strided_map::Map;
use super::unary::{self, UnaryKernel};
use crate::isa::Isa;
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};
use primitives::permute::MAX_DIMS;
use primitives::strided_copy::check_destination;
use primitives::tensor_iterator::TensorIterator;

/// Arguments of a [`StridedUnaryKernel`]. Shapes are outermost first, strides count elements.
#[derive(Clone, Copy, Debug)]
pub struct StridedUnaryArgs<'a> {
    /// The source's shape, of no more dimensions than the destination's.
    pub src_dims: &'a [usize],
    /// Its strides.
    pub src_strides: &'a [isize],
    /// The destination's shape; at most 8 dimensions.
    pub dst_dims: &'a [usize],
    /// Its strides.
    pub dst_strides: &'a [isize],
    /// The source's element at index 0, aligned.
    pub src: *const u8,
    /// The destination's element at index 0, aligned.
    pub dst: *mut u8,
    /// Attributes 0 and 1 of the op.
    pub attr: [f64; 2],
}

/// The kernel of one (op, source dtype, destination dtype).
#[derive(Clone, Copy)]
pub struct StridedUnaryKernel {
    kernel: UnaryKernel,
    /// Whether it changes nothing: bytes are moved.
    moves: bool,
    src_size: usize,
    dst_size: usize,
}

/// The kernel of `unary::OPS[op]` from `src` to `dst`; `None` if there is none. There is one for each of
/// [`unary::rows`].
pub fn lookup(op: usize, src: DType, dst: DType) -> Option<StridedUnaryKernel> {
    let kernel = unary::lookup(op, src, dst)?;
    let moves = src == dst && ["identity", "cast"].contains(unary::OPS.get(op)?);
    Some(StridedUnaryKernel { kernel, moves, src_size: src.size()?, dst_size: dst.size()? })
}

impl StridedUnaryKernel {
    /// Computes.
    ///
    /// # Errors
    /// `InvalidArgument` for a source that does not broadcast to the destination, a destination that may have an
    /// element twice (see [`check_destination`]), strides that lead further than an address space, and more than 8
    /// dimensions; the first error of `par`.
    ///
    /// # Safety
    /// From `src` the elements that its shape and strides address are readable, from `dst` writable, with no other
    /// access until this returns; the two do not overlap.
    pub unsafe fn launch(&self, isa: Isa, par: &dyn Parallel, args: &StridedUnaryArgs<'_>) -> Result<()> {
        let StridedUnaryArgs { dst_dims, dst_strides, src, dst, attr, .. } = *args;
        let Self { kernel, src_size, dst_size, .. } = *self;
        check_destination(dst_dims, dst_strides)?;
        let src_bytes = broadcast_strides(args, src_size)?;
        let dst_bytes = to_bytes(dst_dims, dst_strides, dst_size)?;
        let rank = dst_dims.len();
        let walk = TensorIterator::new(dst_dims, [&dst_bytes[..rank], &src_bytes[..rank]])?;
        if walk.count() == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise; no element of the destination is reached twice, as was checked.
        unsafe {
            if self.moves {
                movement::copy(isa, par, &walk, dst_size, src, dst)
            } else {
                Map { kernel, attr, walk: &walk, src_size, dst_size, src, dst }.run(isa, par)
            }
        }
    }
}

/// The source's byte strides over the destination's dimensions: 0 where it repeats.
fn broadcast_strides(args: &StridedUnaryArgs<'_>, size: usize) -> Result<[isize; MAX_DIMS]> {
    let StridedUnaryArgs { src_dims, src_strides, dst_dims, .. } = *args;
    let bytes = to_bytes(src_dims, src_strides, size)?;
    let fits = src_strides.len() == src_dims.len()
        && src_dims.len() <= dst_dims.len()
        && src_dims.iter().rev().zip(dst_dims.iter().rev()).all(|(s, d)| *s == 1 || s == d);
    if !fits {
        return Err(mismatch(args));
    }
    let mut strides = [0; MAX_DIMS];
    let skip = dst_dims.len() - src_dims.len();
    for (stride, (&dim, &byte)) in strides[skip..].iter_mut().zip(src_dims.iter().zip(&bytes)) {
        *stride = if dim == 1 { 0 } else { byte };
    }
    Ok(strides)
}

#[cold]
fn mismatch(args: &StridedUnaryArgs<'_>) -> Error {
    Error::invalid(format!(
        "a source of shape {:?} with strides {:?} does not broadcast to {:?}: aligned at the last dimension, each of \
         its sizes must be 1 or the destination's",
        args.src_dims, args.src_strides, args.dst_dims
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::check::{Buffer, agree, decode, samples, size};
    use crate::kernels::testing::{Rng, Threads};
    use crate::kernels::unary::{UnaryArgs, UnaryRow};
    use ep_core::Code;
    use ep_core::parallel::Serial;

    const ATTR: [f64; 2] = [0.75, 1.25];

    /// Source shape and strides, destination shape and strides.
    type Layout = ([Vec<usize>; 2], [Vec<isize>; 2]);

    fn layouts() -> Vec<Layout> {
        let layout = |src: &[usize], src_strides: &[isize], dst: &[usize], dst_strides: &[isize]| {
            ([src.to_vec(), dst.to_vec()], [src_strides.to_vec(), dst_strides.to_vec()])
        };
        vec![
            layout(&[7, 9], &[9, 1], &[7, 9], &[9, 1]),
            // A scalar and a column spread over gaps.
            layout(&[], &[], &[3, 5], &[11, 2]),
            layout(&[6, 1], &[4, 9], &[2, 6, 5], &[40, 6, 1]),
            // Rows long enough to be computed one by one, and a view of four of five columns.
            layout(&[3, 270], &[275, 1], &[3, 270], &[270, 1]),
            layout(&[33, 4], &[5, 1], &[33, 4], &[4, 1]),
            // Transposed, and both orders permuted.
            layout(&[70, 20], &[1, 70], &[70, 20], &[20, 1]),
            layout(&[20, 70], &[1, 20], &[20, 70], &[70, 1]),
            layout(&[2, 3, 4], &[1, 2, 6], &[2, 3, 4], &[4, 8, 1]),
        ]
    }

    fn offsets(dims: &[usize], strides: &[isize], shape: &[usize]) -> Vec<usize> {
        let offset = |element: usize| {
            let (mut rest, mut at) = (element, 0);
            for (axis, &dim) in shape.iter().enumerate().rev() {
                let index = rest % dim;
                rest /= dim;
                if let Some(own) = (axis + dims.len()).checked_sub(shape.len()).filter(|&own| dims[own] != 1)
                {
                    at += index as isize * strides[own];
                }
            }
            at as usize
        };
        (0..shape.iter().product()).map(offset).collect()
    }

    fn check(row: &UnaryRow, ([src_dims, dst_dims], [src_strides, dst_strides]): &Layout, rng: &mut Rng) {
        let (src_size, dst_size) = (size(row.src), size(row.dst));
        let from = offsets(src_dims, src_strides, dst_dims);
        let to = offsets(dst_dims, dst_strides, dst_dims);
        let data = samples(row.src, from.iter().max().unwrap() + 1, rng);
        for isa in Isa::available() {
            // What the kernel for contiguous elements computes.
            let elements: Vec<u8> =
                from.iter().flat_map(|&o| &data[o * src_size..][..src_size]).copied().collect();
            let (mut flat, mut results) =
                (Buffer::of(&elements, 16), Buffer::poisoned(from.len() * dst_size, 16));
            let args = UnaryArgs { count: from.len(), src: flat.ptr(), dst: results.ptr(), attr: ATTR };
            // SAFETY: both sides have that many elements.
            unsafe { row.kernel.launch(isa, &Serial, &args) }.unwrap();
            let mut want = vec![0x5a; (to.iter().max().unwrap() + 1) * dst_size];
            for (&o, element) in to.iter().zip(results.into_bytes().chunks(dst_size)) {
                want[o * dst_size..][..dst_size].copy_from_slice(element);
            }
            let mut src = Buffer::of(&data, src_size);
            let mut dst = Buffer::of(&vec![0x5a; want.len()], dst_size);
            let args = StridedUnaryArgs {
                src_dims,
                src_strides,
                dst_dims,
                dst_strides,
                src: src.ptr(),
                dst: dst.ptr(),
                attr: ATTR,
            };
            let kernel = lookup(row.op, row.src, row.dst).unwrap();
            // SAFETY: both sides have all that their strides lead to.
            unsafe { kernel.launch(isa, &Threads(2), &args) }.unwrap();
            let (got, op) = (dst.into_bytes(), unary::OPS[row.op]);
            let same = decode(row.dst, &got)
                .iter()
                .zip(&decode(row.dst, &want))
                .all(|(g, w)| agree(row.dst, *g, *w));
            assert!(
                same && got.len() == want.len(),
                "{op} of {} to {} at {isa}: {src_dims:?} {src_strides:?}",
                row.src,
                row.dst
            );
        }
    }

    #[test]
    fn every_row_computes_what_it_does_without_strides() {
        let (mut rng, layouts) = (Rng::new(), layouts());
        for (i, row) in unary::rows().iter().enumerate() {
            for (j, layout) in layouts.iter().enumerate() {
                if (i + j) % 3 == 0 || unary::OPS[row.op] == "identity" {
                    check(row, layout, &mut rng);
                }
            }
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let nothing = std::ptr::null_mut();
        let relu = unary::OPS.iter().position(|&op| op == "relu").unwrap();
        let run = |src_dims: &[usize], dst_dims: &[usize], dst_strides: &[isize]| {
            let src_strides = &[1; 9][..src_dims.len()];
            let args = StridedUnaryArgs {
                src_dims,
                src_strides,
                dst_dims,
                dst_strides,
                src: nothing,
                dst: nothing,
                attr: ATTR,
            };
            // SAFETY: refused, or empty, before anything is touched.
            unsafe { lookup(relu, DType::F32, DType::F32).unwrap().launch(Isa::BASELINE, &Serial, &args) }
        };
        for (src, dst, strides, word) in [
            (&[3usize][..], &[4usize][..], &[1isize][..], "broadcast"),
            (&[2, 3], &[3], &[1], "broadcast"),
            (&[0], &[3], &[1], "broadcast"),
            (&[3], &[2, 3], &[0, 1], "twice"),
            (&[3], &[2, 3], &[2, 1], "twice"),
            (&[1; 9], &[1; 9], &[1; 9], "8"),
            (&[3], &[3], &[isize::MAX / 2], "address space"),
        ] {
            let e = run(src, dst, strides).unwrap_err();
            assert_eq!(e.code(), Code::InvalidArgument, "{e}");
            assert!(e.message().contains(word), "{e}");
        }
        run(&[1, 4], &[0, 4], &[0, 0]).unwrap();
        assert!(
            lookup(relu, DType::F32, DType::I8).is_none()
                && lookup(usize::MAX, DType::F32, DType::F32).is_none()
        );
    }
}

//! Copying a box from one dense tensor into another: the fewest dimensions that do it.
//!
//! ```
//! use primitives::copy_nd::BoxCopy;
//!
//! // Rows 1 and 2 of an image of 4 rows, 6 columns and 3 channels of u8, to the top of one of 2 rows.
//! let copy = BoxCopy::simplify(&[2, 6, 3], &[0, 0, 0], &[4, 6, 3], &[1, 0, 0], &[2, 6, 3], 1)?.fold(16);
//! // Whole rows are one run of 36 bytes, of which a kernel moves 2 at once: 36 and 18 are even, 9 is not.
//! assert_eq!((copy.dims().len(), copy.count(), copy.movement_size()), (1, 18, 2));
//! let (to, from) = copy.offsets();
//! assert_eq!([to, from].map(|at| at * copy.movement_size()), [0, 18]);
//! # Ok::<(), ep_core::Error>(())
//! ```

use crate::permute::{MAX_DIMS, MOVEMENT_SIZES};
use ep_core::{Error, Result};

/// One dimension of a [`BoxCopy`]: sizes of both tensors, where the box begins in each, and how long it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoxDim {
    /// Size of the destination.
    pub dst_dim: usize,
    /// Where the box begins in the destination.
    pub dst_pos: usize,
    /// Size of the source.
    pub src_dim: usize,
    /// Where the box begins in the source.
    pub src_pos: usize,
    /// Size of the box.
    pub extent: usize,
}

impl BoxDim {
    /// Whether the box spans both sides.
    fn is_whole(&self) -> bool {
        self.src_dim == self.extent && self.dst_dim == self.extent
    }
}

/// A checked copy of a box between two dense row-major tensors, over elements of [`BoxCopy::movement_size`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoxCopy {
    num_dims: usize,
    dims: [BoxDim; MAX_DIMS],
    movement_size: usize,
}

impl BoxCopy {
    /// Checks a box and simplifies it: a dimension that the box spans on both sides becomes part of the next
    /// outer one. At least one dimension remains; no dimensions at all is one element. All slices are
    /// outermost first and of one length.
    ///
    /// # Errors
    /// `InvalidArgument` for more than [`MAX_DIMS`] dimensions, slices of different lengths, negative values, a
    /// box that does not lie inside both tensors (an empty one included), an `element_size` not in
    /// [`MOVEMENT_SIZES`], or more bytes than an address space holds.
    pub fn simplify(
        dst_dims: &[i64],
        dst_pos: &[i64],
        src_dims: &[i64],
        src_pos: &[i64],
        extent: &[i64],
        element_size: usize,
    ) -> Result<Self> {
        let rank = extent.len();
        let all = [dst_dims, dst_pos, src_dims, src_pos];
        if rank > MAX_DIMS || all.iter().any(|v| v.len() != rank) {
            return Err(Error::invalid(format!(
                "copy_nd got an extent of {rank} dimensions and dimensions and positions of {:?}; all must have the \
                 same number, at most {MAX_DIMS}",
                all.map(<[i64]>::len)
            )));
        }
        if !MOVEMENT_SIZES.contains(&element_size) {
            return Err(Error::invalid(format!(
                "copy_nd got elements of {element_size} bytes; it moves elements of {MOVEMENT_SIZES:?} bytes"
            )));
        }
        let mut copy = Self { num_dims: 0, dims: [BoxDim::default(); MAX_DIMS], movement_size: element_size };
        let (mut src_bytes, mut dst_bytes) = (element_size, element_size);
        for axis in 0..rank {
            let dim = dim(all.map(|v| v[axis]), extent[axis]).ok_or_else(|| outside(all, extent, axis))?;
            // An empty dimension must not hide that others overflow.
            let grown =
                [(&mut src_bytes, dim.src_dim), (&mut dst_bytes, dim.dst_dim)].map(|(bytes, size)| {
                    *bytes = bytes.checked_mul(size.max(1)).filter(|&b| b <= isize::MAX as usize)?;
                    Some(())
                });
            if grown.contains(&None) {
                return Err(Error::invalid(format!(
                    "copy_nd between {src_dims:?} and {dst_dims:?} of {element_size}-byte elements: more than an \
                     address space holds"
                )));
            }
            copy.push(dim);
        }
        if copy.num_dims == 0 {
            copy.push(BoxDim { dst_dim: 1, dst_pos: 0, src_dim: 1, src_pos: 0, extent: 1 });
        }
        Ok(copy)
    }

    fn push(&mut self, dim: BoxDim) {
        match self.dims[..self.num_dims].last_mut() {
            Some(last) if dim.is_whole() => {
                for value in [
                    &mut last.dst_dim,
                    &mut last.dst_pos,
                    &mut last.src_dim,
                    &mut last.src_pos,
                    &mut last.extent,
                ] {
                    *value *= dim.extent;
                }
            }
            // Outermost dimensions of size one say nothing.
            Some(last) if *last == (BoxDim { dst_dim: 1, src_dim: 1, extent: 1, ..BoxDim::default() }) => {
                *last = dim
            }
            _ => {
                self.dims[self.num_dims] = dim;
                self.num_dims += 1;
            }
        }
    }

    /// Folds the innermost dimension into bigger elements while all its numbers are even and the element within
    /// `max_bytes`. Give the alignment that both addresses share as `max_bytes` where bigger elements need it,
    /// 16 where they do not.
    #[must_use]
    pub fn fold(mut self, max_bytes: usize) -> Self {
        let limit = max_bytes.min(MOVEMENT_SIZES[MOVEMENT_SIZES.len() - 1]);
        let last = &mut self.dims[self.num_dims - 1];
        let values = |d: &BoxDim| [d.dst_dim, d.dst_pos, d.src_dim, d.src_pos, d.extent];
        while self.movement_size * 2 <= limit
            && last.extent != 0
            && values(last).iter().all(|v| v.is_multiple_of(2))
        {
            let [dst_dim, dst_pos, src_dim, src_pos, extent] = values(last).map(|v| v / 2);
            *last = BoxDim { dst_dim, dst_pos, src_dim, src_pos, extent };
            self.movement_size *= 2;
        }
        self
    }

    /// What is left, outermost first.
    pub fn dims(&self) -> &[BoxDim] {
        &self.dims[..self.num_dims]
    }

    /// Bytes moved at once.
    pub fn movement_size(&self) -> usize {
        self.movement_size
    }

    /// How many elements of [`BoxCopy::movement_size`] bytes the box has.
    pub fn count(&self) -> usize {
        self.dims().iter().map(|d| d.extent).product()
    }

    /// Index of the box's first element in the destination and in the source.
    pub fn offsets(&self) -> (usize, usize) {
        self.dims()
            .iter()
            .fold((0, 0), |(dst, src), d| (dst * d.dst_dim + d.dst_pos, src * d.src_dim + d.src_pos))
    }
}

fn dim(sizes: [i64; 4], extent: i64) -> Option<BoxDim> {
    let [dst_dim, dst_pos, src_dim, src_pos] = sizes.map(usize::try_from);
    let d = BoxDim {
        dst_dim: dst_dim.ok()?,
        dst_pos: dst_pos.ok()?,
        src_dim: src_dim.ok()?,
        src_pos: src_pos.ok()?,
        extent: usize::try_from(extent).ok()?,
    };
    // Two values from i64 do not overflow a usize.
    (d.dst_pos + d.extent <= d.dst_dim && d.src_pos + d.extent <= d.src_dim).then_some(d)
}

#[cold]
fn outside([dst_dims, dst_pos, src_dims, src_pos]: [&[i64]; 4], extent: &[i64], axis: usize) -> Error {
    Error::invalid(format!(
        "copy_nd of a box of {extent:?} from {src_pos:?} in {src_dims:?} to {dst_pos:?} in {dst_dims:?}: in dimension \
         {axis} it is negative or reaches outside; positions and sizes must lie inside both"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;
    use proptest::prelude::*;

    fn simple(dst: &[i64], dst_pos: &[i64], src: &[i64], src_pos: &[i64], extent: &[i64]) -> Vec<[usize; 5]> {
        let copy = BoxCopy::simplify(dst, dst_pos, src, src_pos, extent, 4).unwrap();
        copy.dims().iter().map(|d| [d.dst_dim, d.dst_pos, d.src_dim, d.src_pos, d.extent]).collect()
    }

    #[test]
    fn whole_dimensions_become_part_of_the_next() {
        assert_eq!(simple(&[4, 5, 6], &[0; 3], &[4, 5, 6], &[0; 3], &[4, 5, 6]), [[120, 0, 120, 0, 120]]);
        assert_eq!(
            simple(&[9, 5, 6], &[2, 0, 0], &[4, 5, 6], &[1, 0, 0], &[3, 5, 6]),
            [[270, 60, 120, 30, 90]]
        );
        let window = simple(&[4, 5, 6], &[0; 3], &[4, 7, 6], &[0, 1, 0], &[4, 5, 6]);
        assert_eq!(window, [[4, 0, 4, 0, 4], [30, 0, 42, 6, 30]]);
        assert_eq!(simple(&[1, 5], &[0, 1], &[1, 7], &[0, 2], &[1, 3]), [[5, 1, 7, 2, 3]]);
        assert_eq!(simple(&[], &[], &[], &[], &[]), [[1, 0, 1, 0, 1]]);
        assert_eq!(simple(&[3, 0], &[0, 0], &[3, 4], &[0, 2], &[3, 0])[1][4], 0);
        // More than 2^31 elements.
        let big = 1i64 << 20;
        assert_eq!(
            simple(&[big, big], &[1, 0], &[big, big], &[0, 0], &[1, big]),
            [[1 << 40, 1 << 20, 1 << 40, 0, 1 << 20]]
        );
    }

    #[test]
    fn fold_keeps_to_its_bounds() {
        let copy = |pos| BoxCopy::simplify(&[3, 16], &[0, pos], &[3, 8], &[0, 0], &[3, 8], 2).unwrap();
        assert_eq!(copy(4).fold(16).movement_size(), 8);
        assert_eq!(copy(4).fold(4).movement_size(), 4);
        assert_eq!(copy(3).fold(16), copy(3));
        let empty = BoxCopy::simplify(&[8], &[0], &[8], &[0], &[0], 2).unwrap();
        assert_eq!((empty.fold(16).movement_size(), empty.count()), (2, 0));
    }

    #[test]
    fn refusals() {
        for (dst, dst_pos, src, src_pos, extent) in [
            (&[4i64][..], &[1i64][..], &[9i64][..], &[0i64][..], &[4i64][..]),
            (&[9], &[0], &[4], &[1], &[4]),
            (&[9], &[0], &[4], &[5], &[0]),
            (&[9], &[-1], &[4], &[0], &[1]),
            (&[9], &[0], &[4], &[0], &[-1]),
            (&[-4], &[0], &[4], &[0], &[0]),
            (&[9], &[i64::MAX], &[4], &[0], &[i64::MAX]),
            (&[9, 9], &[0], &[4], &[0], &[1]),
            (&[1; 9], &[0; 9], &[1; 9], &[0; 9], &[1; 9]),
            (&[i64::MAX, 0], &[0, 0], &[1, 0], &[0, 0], &[1, 0]),
            (&[1, 0], &[0, 0], &[1 << 40, 1 << 40], &[0, 0], &[1, 0]),
        ] {
            let e = BoxCopy::simplify(dst, dst_pos, src, src_pos, extent, 4).unwrap_err();
            assert_eq!(e.code(), Code::InvalidArgument, "{e}");
        }
        assert!(BoxCopy::simplify(&[1], &[0], &[1], &[0], &[1], 3).is_err());
    }

    fn offsets_of(dims: &[usize], pos: &[usize], extent: &[usize], size: usize) -> Vec<usize> {
        (0..extent.iter().product())
            .flat_map(|element: usize| {
                let (mut rest, mut offset, mut stride) = (element, 0, 1);
                for axis in (0..dims.len()).rev() {
                    offset += (pos[axis] + rest % extent[axis]) * stride;
                    rest /= extent[axis];
                    stride *= dims[axis];
                }
                offset * size..(offset + 1) * size
            })
            .collect()
    }

    proptest! {
        #[test]
        fn moves_the_same_bytes(
            axes in prop::collection::vec((0i64..3, 0i64..3, 0i64..3, 0i64..3, 1i64..4, any::<bool>()), 0..=6),
            size_log2 in 0usize..5, max_log2 in 0usize..5,
        ) {
            // A margin of zero on all sides, which is what merges, is drawn half of the time.
            let axes: Vec<_> = axes.into_iter().map(|(a, b, c, d, e, whole)| if whole { (0, 0, 0, 0, e) } else { (a, b, c, d, e) }).collect();
            let column = |f: fn(&(i64, i64, i64, i64, i64)) -> i64| axes.iter().map(f).collect::<Vec<i64>>();
            let (dst_pos, src_pos, extent) = (column(|a| a.0), column(|a| a.2), column(|a| a.4));
            let (dst, src) = (column(|a| a.0 + a.1 + a.4), column(|a| a.2 + a.3 + a.4));
            let copy = BoxCopy::simplify(&dst, &dst_pos, &src, &src_pos, &extent, 1 << size_log2).unwrap().fold(1 << max_log2);
            prop_assert!(copy.movement_size() <= 1 << max_log2.max(size_log2));
            let plain = |v: &[i64]| v.iter().map(|&x| x as usize).collect::<Vec<_>>();
            let simple = |f: &dyn Fn(&BoxDim) -> usize| copy.dims().iter().map(f).collect::<Vec<_>>();
            let want = |dims: &[i64], pos: &[i64]| offsets_of(&plain(dims), &plain(pos), &plain(&extent), 1 << size_log2);
            let boxed = simple(&|d| d.extent);
            let got_dst = offsets_of(&simple(&|d| d.dst_dim), &simple(&|d| d.dst_pos), &boxed, copy.movement_size());
            let got_src = offsets_of(&simple(&|d| d.src_dim), &simple(&|d| d.src_pos), &boxed, copy.movement_size());
            let (dst_at, src_at) = copy.offsets();
            prop_assert_eq!((got_dst[0], got_src[0]), (dst_at * copy.movement_size(), src_at * copy.movement_size()));
            prop_assert_eq!(got_dst, want(&dst, &dst_pos));
            prop_assert_eq!(got_src, want(&src, &src_pos));
        }
    }
}

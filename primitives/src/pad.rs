//! Padding and cropping: the fewest dimensions that do it, and the box that is copied.
//!
//! ```
//! use primitives::pad::Padding;
//!
//! // 2 images of 3 rows and 4 columns: a row more above, the last column cropped.
//! let padding = Padding::simplify(&[2, 3, 4], &[0, 1, 0], &[0, 0, -1])?;
//! let boxes: Vec<_> = padding.dims().iter().map(|d| (d.dst_pos(), d.src_pos(), d.extent())).collect();
//! // What a kernel copies: from row 0 to row 1, three rows of three columns each. The rest gets the value.
//! assert_eq!(boxes, [(0, 0, 2), (1, 0, 3), (0, 0, 3)]);
//! assert_eq!((padding.count(), padding.kept()), (2 * 4 * 3, 2 * 3 * 3));
//! # Ok::<(), ep_core::Error>(())
//! ```

use crate::permute::MAX_DIMS;
use ep_core::{Error, Result};

/// One dimension of a [`Padding`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PadDim {
    /// Size of the source.
    pub src_dim: usize,
    /// Size of the destination: the source's and both paddings.
    pub dst_dim: usize,
    /// Elements put before the source's, at most `dst_dim`, or, if negative, cropped there, at most `src_dim`.
    pub before: isize,
}

impl PadDim {
    /// Where the elements that are kept begin in the source.
    pub fn src_pos(&self) -> usize {
        if self.before < 0 { self.before.unsigned_abs() } else { 0 }
    }

    /// Where the elements that are kept begin in the destination.
    pub fn dst_pos(&self) -> usize {
        if self.before > 0 { self.before.unsigned_abs() } else { 0 }
    }

    /// How many elements of the source are kept.
    pub fn extent(&self) -> usize {
        let left = |dim: usize, pos: usize| dim.saturating_sub(pos);
        left(self.src_dim, self.src_pos()).min(left(self.dst_dim, self.dst_pos()))
    }

    fn is_plain(&self) -> bool {
        self.before == 0 && self.src_dim == self.dst_dim
    }
}

/// A checked padding of a dense row-major tensor; negative amounts crop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Padding {
    num_dims: usize,
    dims: [PadDim; MAX_DIMS],
}

impl Padding {
    /// Checks a padding and simplifies it: a dimension without any becomes part of the next outer one. At least
    /// one dimension remains; no dimensions at all is one element. All slices are outermost first and of one
    /// length.
    ///
    /// # Errors
    /// `InvalidArgument` for more than [`MAX_DIMS`] dimensions, slices of different lengths, a negative size of the
    /// source or of the destination, or more elements on either side than `isize::MAX`.
    pub fn simplify(src_dims: &[i64], before: &[i64], after: &[i64]) -> Result<Self> {
        let rank = src_dims.len();
        if rank > MAX_DIMS || before.len() != rank || after.len() != rank {
            return Err(Error::invalid(format!(
                "padding by {before:?} and {after:?} was asked for {rank} dimensions; all must have the same number, at \
                 most {MAX_DIMS}"
            )));
        }
        let mut padding = Self { num_dims: 0, dims: [PadDim::default(); MAX_DIMS] };
        let (mut src_count, mut dst_count) = (1usize, 1usize);
        for axis in 0..rank {
            let dim = dim(src_dims[axis], before[axis], after[axis])
                .ok_or_else(|| impossible(src_dims, before, after, axis))?;
            // An empty dimension must not hide that others overflow.
            for (count, size) in [(&mut src_count, dim.src_dim), (&mut dst_count, dim.dst_dim)] {
                *count = count
                    .checked_mul(size.max(1))
                    .filter(|&n| isize::try_from(n).is_ok())
                    .ok_or_else(|| impossible(src_dims, before, after, axis))?;
            }
            padding.push(dim);
        }
        if padding.num_dims == 0 {
            padding.push(PadDim { src_dim: 1, dst_dim: 1, before: 0 });
        }
        Ok(padding)
    }

    fn push(&mut self, dim: PadDim) {
        match self.dims[..self.num_dims].last_mut() {
            Some(last) if dim.is_plain() => {
                last.src_dim *= dim.src_dim;
                last.dst_dim *= dim.src_dim;
                last.before *= dim.src_dim as isize;
            }
            Some(last) if *last == (PadDim { src_dim: 1, dst_dim: 1, before: 0 }) => *last = dim,
            _ => {
                self.dims[self.num_dims] = dim;
                self.num_dims += 1;
            }
        }
    }

    /// What is left, outermost first.
    pub fn dims(&self) -> &[PadDim] {
        &self.dims[..self.num_dims]
    }

    /// Elements of the destination.
    pub fn count(&self) -> usize {
        self.dims().iter().map(|d| d.dst_dim).product()
    }

    /// Elements that are kept of the source.
    pub fn kept(&self) -> usize {
        self.dims().iter().map(PadDim::extent).product()
    }
}

fn dim(src: i64, before: i64, after: i64) -> Option<PadDim> {
    let dst = src.checked_add(before)?.checked_add(after)?;
    let (src_dim, dst_dim) = (usize::try_from(src).ok()?, usize::try_from(dst).ok()?);
    // Further out nothing is kept either way, and products of sizes bound what is within.
    Some(PadDim { src_dim, dst_dim, before: isize::try_from(before.clamp(-src, dst)).ok()? })
}

#[cold]
fn impossible(src_dims: &[i64], before: &[i64], after: &[i64], axis: usize) -> Error {
    Error::invalid(format!(
        "padding {src_dims:?} by {before:?} before and {after:?} after: dimension {axis} gets a negative size or too \
         many elements; crop no more than there is"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;
    use proptest::prelude::*;

    fn simple(src: &[i64], before: &[i64], after: &[i64]) -> Vec<(usize, usize, isize)> {
        let p = Padding::simplify(src, before, after).unwrap();
        p.dims().iter().map(|d| (d.src_dim, d.dst_dim, d.before)).collect()
    }

    #[test]
    fn dimensions_without_padding_go() {
        assert_eq!(simple(&[2, 3, 4], &[0; 3], &[0; 3]), [(24, 24, 0)]);
        assert_eq!(simple(&[2, 3, 4], &[1, 0, 0], &[0, 0, 0]), [(24, 36, 12)]);
        assert_eq!(simple(&[2, 3, 4], &[0, -1, 0], &[0, 3, 0]), [(2, 2, 0), (12, 20, -4)]);
        assert_eq!(simple(&[1, 3], &[0, 1], &[0, 1]), [(3, 5, 1)]);
        assert_eq!(simple(&[], &[], &[]), [(1, 1, 0)]);
        assert_eq!(simple(&[0, 3], &[1, 0], &[1, 0]), [(0, 6, 3)]);
    }

    #[test]
    fn boxes_of_crops() {
        let of = |src, before, after| {
            let p = Padding::simplify(&[src], &[before], &[after]).unwrap();
            let d = p.dims()[0];
            (d.src_pos(), d.dst_pos(), d.extent(), p.count())
        };
        assert_eq!(of(5, 2, 1), (0, 2, 5, 8));
        assert_eq!(of(5, -2, 1), (2, 0, 3, 4));
        assert_eq!(of(5, 2, -4), (0, 2, 1, 3));
        assert_eq!(of(5, -2, -3), (2, 0, 0, 0));
        // Everything is cropped on one side and filled from the other.
        assert_eq!(of(2, -3, 5), (2, 0, 0, 4));
        assert_eq!(of(2, 5, -4), (0, 3, 0, 3));
    }

    #[test]
    fn paddings_that_all_but_cancel_do_not_overflow() {
        let far = i64::MAX / 2;
        for (before, after, clamped) in [(-far, far + 2, -9), (far, 2 - far, 15)] {
            let p = Padding::simplify(&[3, 3], &[before, 0], &[after, 0]).unwrap();
            assert_eq!(p.dims(), [PadDim { src_dim: 9, dst_dim: 15, before: clamped }]);
            assert_eq!((p.count(), p.kept()), (15, 0));
        }
    }

    #[test]
    fn refusals() {
        for (src, before, after) in [
            (&[3i64][..], &[-2i64][..], &[-2i64][..]),
            (&[-1], &[2], &[2]),
            (&[i64::MAX], &[1], &[0]),
            (&[3, 3], &[1], &[1]),
            (&[1; 9], &[0; 9], &[0; 9]),
            (&[1 << 40, 1 << 40], &[0, 0], &[0, 0]),
            (&[0, 1], &[1 << 40, 1 << 40], &[0, 0]),
        ] {
            assert_eq!(Padding::simplify(src, before, after).unwrap_err().code(), Code::InvalidArgument);
        }
    }

    /// The contract refuses them, although so many elements may be left.
    #[test]
    fn what_no_integer_holds_is_refused_also_where_it_is_taken_back() {
        for (src, before, after, fits) in [
            (10, i64::MAX, -i64::MAX, false),
            (10, i64::MAX - 9, 9 - i64::MAX, false),
            (10, i64::MAX - 10, 10 - i64::MAX, true),
            (10, -i64::MAX, i64::MAX, true),
        ] {
            let (dims, before, after) = ([src], [before], [after]);
            let content =
                crate::reference::Data::new(ep_core::DType::U8, [crate::reference::Number::Int(7); 10]);
            let reference = crate::reference::Launch::new("constant_pad")
                .dtype("data", ep_core::DType::U8)
                .dims("src_dims", &dims)
                .dims("padding_before", &before)
                .dims("padding_after", &after)
                .read("src", content.view())
                .run();
            for refusal in [Padding::simplify(&dims, &before, &after).err(), reference.err()] {
                let code = refusal.map(|e| e.code());
                assert_eq!(code, (!fits).then_some(Code::InvalidArgument), "{before:?} {after:?}");
            }
        }
    }

    /// For each element of the destination the source element that it gets, if any.
    fn sources(dims: &[(i64, i64, i64)]) -> Vec<Option<i64>> {
        (0..dims.iter().map(|d| d.1).product())
            .map(|element: i64| {
                let (mut rest, mut offset, mut stride) = (element, Some(0), 1);
                for &(src, dst, before) in dims.iter().rev() {
                    let at = rest % dst - before;
                    rest /= dst;
                    offset = offset.filter(|_| (0..src).contains(&at)).map(|o| o + at * stride);
                    stride *= src;
                }
                offset
            })
            .collect()
    }

    proptest! {
        #[test]
        fn keeps_the_same_elements(axes in prop::collection::vec((0i64..4, -3i64..4, -3i64..4, any::<bool>()), 0..=6)) {
            let axes: Vec<_> = axes
                .into_iter()
                .map(|(src, before, after, plain)| if plain { (src, 0, 0) } else { (src, before, after.max(-src - before)) })
                .collect();
            let column = |f: &dyn Fn(&(i64, i64, i64)) -> i64| axes.iter().map(f).collect::<Vec<_>>();
            let padding = Padding::simplify(&column(&|a| a.0), &column(&|a| a.1), &column(&|a| a.2)).unwrap();
            let want = sources(&axes.iter().map(|&(s, b, a)| (s, s + b + a, b)).collect::<Vec<_>>());
            let got: Vec<_> = padding.dims().iter().map(|d| (d.src_dim as i64, d.dst_dim as i64, d.before as i64)).collect();
            prop_assert_eq!(padding.count(), want.len());
            prop_assert_eq!(padding.kept(), want.iter().flatten().count());
            prop_assert_eq!(sources(&got), want);
        }
    }
}

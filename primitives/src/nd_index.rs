//! Flat offsets and coordinates of a dense row-major tensor, each from the other.
//!
//! ```
//! use primitives::nd_index::NdIndex;
//!
//! /// Permutes a tensor: for each element of the result, where it is in the source. In 32 bits where they do.
//! fn sources(src_dims: [u64; 3], permutation: [usize; 3]) -> ep_core::Result<Vec<u32>> {
//!     let src = NdIndex::<u32, 3>::new(&src_dims)?;
//!     let dst = NdIndex::<u32, 3>::new(&permutation.map(|axis| src_dims[axis]))?;
//!     let (mut at, mut from) = ([0; 3], [0; 3]);
//!     let count = src_dims.iter().product::<u64>() as u32;
//!     Ok((0..count)
//!         .map(|element| {
//!             dst.index_of(element, &mut at);
//!             permutation.iter().zip(at).for_each(|(&axis, i)| from[axis] = i);
//!             src.offset_of(&from)
//!         })
//!         .collect())
//! }
//!
//! assert_eq!(sources([1, 2, 3], [2, 0, 1])?, [0, 3, 1, 4, 2, 5]);
//! // More elements than 32 bits count: the caller takes `u64`.
//! assert!(sources([1 << 16, 1 << 16, 1], [0, 1, 2]).is_err());
//! # Ok::<(), ep_core::Error>(())
//! ```

use crate::fast_div::{FastDivU32, FastDivU64};
use ep_core::{Error, Result};

mod sealed {
    pub trait Sealed {}
    impl Sealed for i32 {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
}

/// An integer that offsets and coordinates are held in: `i32`, `u32` or `u64`.
///
/// 32-bit indices halve the registers and the cost of each division, so kernels use them wherever
/// [`NdIndex::new`] accepts the shape.
pub trait Index: sealed::Sealed + Copy + Default + Eq + std::fmt::Debug {
    /// Division by a fixed number.
    type Divider: Copy + std::fmt::Debug;
    /// The largest value.
    const MAX: u64;
    /// `value` in this type; the caller has checked it against [`Index::MAX`].
    fn from_u64(value: u64) -> Self;
    /// This value, which is never negative here.
    fn to_u64(self) -> u64;
    /// A divider by `self`; a zero is replaced by one, as no offset is ever asked of an empty tensor.
    fn divider(self) -> Self::Divider;
    /// Quotient and remainder of a value that is not negative.
    fn div_rem(self, by: &Self::Divider) -> (Self, Self);
    /// `self * factor + addend`, which the checked shape keeps in range.
    fn mul_add(self, factor: Self, addend: Self) -> Self;
}

macro_rules! index {
    ($t:ty, $divider:ty, $unsigned:ty) => {
        impl Index for $t {
            type Divider = $divider;
            const MAX: u64 = <$t>::MAX as u64;

            fn from_u64(value: u64) -> Self {
                value as $t
            }

            #[inline(always)]
            fn to_u64(self) -> u64 {
                self as u64
            }

            fn divider(self) -> $divider {
                <$divider>::new((self as $unsigned).max(1)).expect("at least one")
            }

            #[inline(always)]
            fn div_rem(self, by: &$divider) -> (Self, Self) {
                let (quotient, remainder) = by.div_rem(self as $unsigned);
                (quotient as $t, remainder as $t)
            }

            #[inline(always)]
            fn mul_add(self, factor: Self, addend: Self) -> Self {
                self * factor + addend
            }
        }
    };
}
index!(i32, FastDivU32, u32);
index!(u32, FastDivU32, u32);
index!(u64, FastDivU64, u64);

/// Converts between offsets and coordinates of a dense row-major tensor of up to `N` dimensions.
///
/// The divisions are strength-reduced when it is made, so that a conversion costs a multiplication and two
/// shifts per dimension.
#[derive(Clone, Copy, Debug)]
pub struct NdIndex<T: Index, const N: usize> {
    num_dims: usize,
    strides: [T; N],
    dividers: [T::Divider; N],
}

impl<T: Index, const N: usize> NdIndex<T, N> {
    /// For a tensor of these dimensions (in elements, outermost first; none means one element).
    ///
    /// # Errors
    /// `InvalidArgument` for more than `N` dimensions, or an element count that `T` cannot hold.
    pub fn new(dims: &[u64]) -> Result<Self> {
        if dims.len() > N {
            return Err(Error::invalid(format!(
                "{} dimensions given, at most {N} are supported",
                dims.len()
            )));
        }
        let mut strides = [T::from_u64(1); N];
        let mut stride = 1u64;
        for (slot, &dim) in strides.iter_mut().zip(dims).rev() {
            *slot = T::from_u64(stride);
            // A zero dimension must not hide that another one is out of range.
            stride = stride.checked_mul(dim.max(1)).filter(|&s| s <= T::MAX).ok_or_else(|| {
                Error::invalid(format!(
                    "dimensions {dims:?} hold more elements than a {}-byte index can count",
                    size_of::<T>()
                ))
            })?;
        }
        Ok(Self { num_dims: dims.len(), strides, dividers: strides.map(T::divider) })
    }

    /// The number of dimensions.
    pub fn num_dims(&self) -> usize {
        self.num_dims
    }

    /// Elements between neighbours along each dimension.
    pub fn strides(&self) -> &[T] {
        &self.strides[..self.num_dims]
    }

    /// The offset of the element at `index`, whose coordinates lie inside the dimensions: of others the result means
    /// nothing, and may not fit. Missing trailing coordinates count as zero, and more than there are dimensions are not
    /// looked at.
    #[inline(always)]
    pub fn offset_of(&self, index: &[T]) -> T {
        self.strides().iter().zip(index).fold(T::default(), |sum, (&stride, &i)| i.mul_add(stride, sum))
    }

    /// Writes the coordinates of the element at `offset` into the first `num_dims` places of `index`. The first of them
    /// is too large for an offset behind the last element.
    ///
    /// # Panics
    /// If `index` is shorter than [`NdIndex::num_dims`].
    #[inline(always)]
    pub fn index_of(&self, offset: T, index: &mut [T]) {
        let index = &mut index[..self.num_dims];
        let mut rest = offset;
        for (i, divider) in index.iter_mut().zip(&self.dividers) {
            (*i, rest) = rest.div_rem(divider);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;
    use proptest::prelude::*;

    fn check<T: Index>(dims: &[u64], offset: u64) {
        let nd = NdIndex::<T, 8>::new(dims).unwrap();
        let mut want = vec![0u64; dims.len()];
        let mut rest = offset;
        for (w, &d) in want.iter_mut().zip(dims).rev() {
            *w = rest % d;
            rest /= d;
        }
        assert_eq!(rest, 0);
        let mut index = [T::from_u64(T::MAX); 8];
        nd.index_of(T::from_u64(offset), &mut index);
        let got: Vec<u64> = index[..dims.len()].iter().map(|i| i.to_u64()).collect();
        assert_eq!(got, want);
        assert_eq!(nd.offset_of(&index[..nd.num_dims()]).to_u64(), offset);
        assert!(index[dims.len()..].iter().all(|i| i.to_u64() == T::MAX), "wrote past the dimensions");
    }

    proptest! {
        #[test]
        fn round_trip(dims in prop::collection::vec(1u64..9, 0..=8), pick: u64) {
            let count: u64 = dims.iter().product();
            check::<i32>(&dims, pick % count);
            check::<u32>(&dims, pick % count);
            check::<u64>(&dims, pick % count);
        }

        #[test]
        fn wide(a in 1u64..1 << 21, b in 1u64..1 << 21, c in 1u64..1 << 21, pick: u64) {
            check::<u64>(&[a, b, c], pick % (a * b * c));
        }
    }

    #[test]
    fn limits_of_each_width() {
        check::<i32>(&[2, 0x3fff_ffff], 0x7fff_fffd);
        check::<u32>(&[3, 0x5555_5555], 0xffff_fffe);
        for dims in [&[1 << 16, 1 << 15][..], &[0, 1 << 31]] {
            assert_eq!(NdIndex::<i32, 4>::new(dims).unwrap_err().code(), Code::InvalidArgument);
        }
        assert!(NdIndex::<u32, 4>::new(&[1 << 16, 1 << 16]).is_err());
        assert!(NdIndex::<u64, 4>::new(&[1 << 32, 1 << 32]).is_err());
        assert!(NdIndex::<u64, 2>::new(&[1, 1, 1]).is_err());
        assert_eq!(NdIndex::<u32, 3>::new(&[4, 0, 5]).unwrap().strides(), [5, 5, 1]);
    }

    /// Gather along dimension 1 of [2, 5, 2] with six indices: from an element of the output to the one that
    /// it is copied from.
    #[test]
    fn gather_goes_from_offset_to_index_and_back() {
        let (params, output) =
            (NdIndex::<i32, 3>::new(&[2, 5, 2]).unwrap(), NdIndex::<i32, 3>::new(&[2, 6, 2]).unwrap());
        let mut index = [0; 3];
        output.index_of(18, &mut index);
        assert_eq!(index, [1, 3, 0]);
        // The index list holds 0 at place 3.
        index[1] = 0;
        assert_eq!(params.offset_of(&index), 10);
    }

    /// Batch gather of [2, 5, 2, 3] along dimension 2 with two batch dimensions and six indices per batch.
    #[test]
    fn batch_gather_counts_within_a_batch() {
        let (batch_in, batch_out) =
            (NdIndex::<u64, 3>::new(&[1, 2, 3]).unwrap(), NdIndex::<u64, 3>::new(&[1, 6, 3]).unwrap());
        let batches = NdIndex::<u64, 2>::new(&[10, 18]).unwrap();
        let (mut place, mut index) = ([0; 2], [0; 3]);
        batches.index_of(58, &mut place);
        let [batch, within] = place;
        assert_eq!((batch, within), (3, 4));
        batch_out.index_of(within, &mut index);
        assert_eq!(index, [0, 1, 1]);
        assert_eq!(batch * 6 + index[1], 19);
        // The index list holds 1 at place 19.
        index[1] = 1;
        assert_eq!(batch * 6 + batch_in.offset_of(&index), 22);
    }
}

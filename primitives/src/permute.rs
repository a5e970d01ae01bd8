//! The smallest permutation that moves the same bytes.
//!
//! ```
//! use primitives::permute::Permutation;
//!
//! // NCHW to NHWC of bytes: rows and columns stay together, and one image needs no dimension.
//! let p = Permutation::simplify(&[1, 3, 480, 640], &[0, 2, 3, 1], 1)?;
//! assert_eq!((p.src_dims(), p.permutation()), (&[3, 307_200][..], &[1, 0][..]));
//! // Heads of attention in f16: what stays innermost moves 16 bytes at once.
//! let p = Permutation::simplify(&[128, 12, 64], &[1, 0, 2], 2)?.fold(16);
//! assert_eq!((p.src_dims(), p.movement_size(), p.is_identity()), (&[128, 12, 8][..], 16, false));
//! # Ok::<(), ep_core::Error>(())
//! ```

use ep_core::{Error, Result};

/// The most dimensions that a permutation may have.
pub const MAX_DIMS: usize = 8;

/// Sizes in bytes that a permutation moves at once; an element has one of them.
pub const MOVEMENT_SIZES: [usize; 5] = [1, 2, 4, 8, 16];

/// A checked permutation, `dst_dims[i] = src_dims[permutation[i]]`, over elements of `movement_size` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permutation {
    num_dims: usize,
    src_dims: [usize; MAX_DIMS],
    permutation: [usize; MAX_DIMS],
    movement_size: usize,
}

impl Permutation {
    /// Checks a permutation and simplifies it: dimensions of size one go, and dimensions that stay
    /// neighbours in order become one. At least one dimension remains. Any rank up to [`MAX_DIMS`] works,
    /// zero (a scalar) included; a tensor without elements becomes the one dimension `[0]`.
    ///
    /// # Errors
    /// `InvalidArgument` for too many dimensions, a `permutation` that is none of `0..rank`, an
    /// `element_size` not in [`MOVEMENT_SIZES`], or more bytes than an address space holds.
    pub fn simplify(src_dims: &[usize], permutation: &[usize], element_size: usize) -> Result<Self> {
        check(src_dims, permutation, element_size)?;
        if src_dims.contains(&0) {
            return Ok(Self::flat(0, element_size));
        }
        // Runs of consecutive source dimensions in destination order, as (first, last, elements); dimensions
        // are numbered without those of size one.
        let mut runs = [(0, 0, 0); MAX_DIMS];
        let mut num_dims = 0;
        for &axis in permutation.iter().filter(|&&axis| src_dims[axis] != 1) {
            let rank = src_dims[..axis].iter().filter(|&&d| d != 1).count();
            match runs[..num_dims].last_mut() {
                Some((_, last, size)) if rank == *last + 1 => {
                    *last = rank;
                    *size *= src_dims[axis];
                }
                _ => {
                    runs[num_dims] = (rank, rank, src_dims[axis]);
                    num_dims += 1;
                }
            }
        }
        let runs = &runs[..num_dims];
        if num_dims <= 1 {
            return Ok(Self::flat(src_dims.iter().product(), element_size));
        }
        let mut simple = Self {
            num_dims,
            src_dims: [1; MAX_DIMS],
            permutation: [0; MAX_DIMS],
            movement_size: element_size,
        };
        for (dst_axis, &(first, _, size)) in runs.iter().enumerate() {
            let src_axis = runs.iter().filter(|(other, ..)| *other < first).count();
            simple.src_dims[src_axis] = size;
            simple.permutation[dst_axis] = src_axis;
        }
        Ok(simple)
    }

    fn flat(count: usize, movement_size: usize) -> Self {
        let mut src_dims = [1; MAX_DIMS];
        src_dims[0] = count;
        Self { num_dims: 1, src_dims, permutation: [0; MAX_DIMS], movement_size }
    }

    /// Folds a kept innermost dimension into bigger elements, doubling while the dimension is even and the
    /// element within `max_bytes`. Give the alignment that both addresses share as `max_bytes` where bigger
    /// elements need it, 16 where they do not.
    #[must_use]
    pub fn fold(mut self, max_bytes: usize) -> Self {
        let last = self.num_dims - 1;
        if self.permutation[last] != last {
            return self;
        }
        let limit = max_bytes.min(MOVEMENT_SIZES[MOVEMENT_SIZES.len() - 1]);
        while self.movement_size * 2 <= limit
            && self.src_dims[last] != 0
            && self.src_dims[last].is_multiple_of(2)
        {
            self.movement_size *= 2;
            self.src_dims[last] /= 2;
        }
        if self.src_dims[last] == 1 && last > 0 {
            self.num_dims = last;
            self.permutation[last] = 0;
        }
        self
    }

    /// The number of dimensions, 1 to [`MAX_DIMS`].
    pub fn num_dims(&self) -> usize {
        self.num_dims
    }

    /// The source's dimensions, outermost first.
    pub fn src_dims(&self) -> &[usize] {
        &self.src_dims[..self.num_dims]
    }

    /// The source dimension behind each destination dimension.
    pub fn permutation(&self) -> &[usize] {
        &self.permutation[..self.num_dims]
    }

    /// Bytes moved at once.
    pub fn movement_size(&self) -> usize {
        self.movement_size
    }

    /// The destination's dimensions, outermost first; unused places are one.
    pub fn dst_dims(&self) -> [usize; MAX_DIMS] {
        let mut dims = [1; MAX_DIMS];
        for (dim, &axis) in dims.iter_mut().zip(self.permutation()) {
            *dim = self.src_dims[axis];
        }
        dims
    }

    /// How many elements of [`Permutation::movement_size`] bytes there are.
    pub fn count(&self) -> usize {
        self.src_dims().iter().product()
    }

    /// Whether this only copies.
    pub fn is_identity(&self) -> bool {
        self.num_dims == 1
    }
}

fn check(src_dims: &[usize], permutation: &[usize], element_size: usize) -> Result<()> {
    let rank = src_dims.len();
    if rank > MAX_DIMS {
        return Err(Error::invalid(format!(
            "permute got {rank} dimensions, at most {MAX_DIMS} are supported"
        )));
    }
    let mut seen = [false; MAX_DIMS];
    let valid = permutation.len() == rank
        && permutation.iter().all(|&axis| axis < rank && !std::mem::replace(&mut seen[axis], true));
    if !valid {
        return Err(Error::invalid(format!(
            "permute got the permutation {permutation:?} for {rank} dimensions; each of 0..{rank} must occur once"
        )));
    }
    if !MOVEMENT_SIZES.contains(&element_size) {
        return Err(Error::invalid(format!(
            "permute got elements of {element_size} bytes; it moves elements of {MOVEMENT_SIZES:?} bytes"
        )));
    }
    let bytes = src_dims.iter().filter(|&&d| d != 0).try_fold(element_size, |n, &d| n.checked_mul(d));
    if bytes.is_none_or(|n| n > isize::MAX as usize) {
        return Err(Error::invalid(format!(
            "permute got dimensions {src_dims:?} of {element_size}-byte elements, more than an address space holds"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;
    use ep_core::Code;
    use proptest::prelude::*;

    fn simple(dims: &[usize], perm: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let p = Permutation::simplify(dims, perm, 4).unwrap();
        (p.src_dims().to_vec(), p.permutation().to_vec())
    }

    #[test]
    fn known_vectors() {
        assert_eq!(simple(&[1, 2, 2, 1, 2], &[0, 1, 3, 4, 2]), (vec![2, 2, 2], vec![0, 2, 1]));
        assert_eq!(simple(&[5, 6, 7, 8], &[2, 3, 0, 1]), (vec![30, 56], vec![1, 0]));
        assert_eq!(simple(&[5, 6, 7, 8], &[0, 1, 2, 3]), (vec![1680], vec![0]));
        assert_eq!(simple(&[], &[]), (vec![1], vec![0]));
        assert_eq!(simple(&[1, 1, 1], &[2, 0, 1]), (vec![1], vec![0]));
        assert_eq!(simple(&[3, 0, 1 << 40], &[2, 0, 1]), (vec![0], vec![0]));
        // Size-one dimensions between two neighbours do not part them.
        assert_eq!(simple(&[3, 1, 4, 5], &[3, 0, 2, 1]), (vec![12, 5], vec![1, 0]));
        assert_eq!(simple(&[2, 3, 4, 5], &[3, 2, 1, 0]), (vec![2, 3, 4, 5], vec![3, 2, 1, 0]));
    }

    #[test]
    fn fold_keeps_to_its_bounds() {
        let p = |dims: &[usize], perm: &[usize], size| Permutation::simplify(dims, perm, size).unwrap();
        let f = p(&[3, 5, 6], &[1, 0, 2], 2).fold(16);
        assert_eq!((f.src_dims(), f.movement_size()), (&[3, 5, 3][..], 4));
        let f = p(&[3, 5, 8], &[1, 0, 2], 2).fold(16);
        assert_eq!((f.src_dims(), f.permutation(), f.movement_size()), (&[3, 5][..], &[1, 0][..], 16));
        assert_eq!(p(&[3, 5, 8], &[1, 0, 2], 2).fold(4).movement_size(), 4);
        assert_eq!(p(&[4, 4], &[1, 0], 2).fold(16), p(&[4, 4], &[1, 0], 2));
        let f = p(&[0], &[0], 2).fold(16);
        assert_eq!((f.count(), f.movement_size()), (0, 2));
    }

    #[test]
    fn refusals() {
        for (dims, perm, size) in [
            (&[2, 2][..], &[0, 0][..], 4),
            (&[2, 2], &[0, 2], 4),
            (&[2, 2], &[0], 4),
            (&[2, 2], &[1, 0], 3),
            (&[usize::MAX, 2], &[1, 0], 1),
            (&[0, usize::MAX, 2], &[1, 0, 2], 1),
            (&[1; 9], &[0, 1, 2, 3, 4, 5, 6, 7, 8], 1),
        ] {
            assert_eq!(Permutation::simplify(dims, perm, size).unwrap_err().code(), Code::InvalidArgument);
        }
    }

    proptest! {
        #[test]
        fn moves_the_same_bytes(
            (dims, perm) in (0usize..=8).prop_flat_map(|n| (
                prop::collection::vec(1usize..4, n),
                Just((0..n).collect::<Vec<_>>()).prop_shuffle(),
            )),
            size_log2 in 0usize..5,
        ) {
            let size = 1 << size_log2;
            let bytes = dims.iter().product::<usize>() * size;
            let src: Vec<u8> = (0..bytes).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
            let want = reference::permute(&dims, &perm, size, &src);
            let s = Permutation::simplify(&dims, &perm, size).unwrap();
            prop_assert_eq!(reference::permute(s.src_dims(), s.permutation(), s.movement_size(), &src), &want[..]);
            for max in [1, 4, 16] {
                let f = s.fold(max);
                prop_assert!(f.movement_size() <= max.max(size));
                prop_assert_eq!(reference::permute(f.src_dims(), f.permutation(), f.movement_size(), &src), &want[..]);
            }
            // Nothing more to merge: no two neighbours stay neighbours.
            prop_assert!(s.permutation().windows(2).all(|w| w[1] != w[0] + 1));
            prop_assert!(s.num_dims() == 1 || s.src_dims().iter().all(|&d| d > 1));
        }
    }
}

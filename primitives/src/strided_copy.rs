//! What a strided copy has to be checked for.
//!
//! ```
//! use primitives::strided_copy::check_destination;
//!
//! // Every second column of 4 rows, from the last row on; strides count elements.
//! check_destination(&[4, 3], &[-6, 2])?;
//! // A broadcast may be read, but not written: all rows are one.
//! assert!(check_destination(&[4, 3], &[0, 1]).is_err());
//! # Ok::<(), ep_core::Error>(())
//! ```

use crate::broadcast::MAX_DIMS;
use ep_core::{Error, Result};

/// Checks that no two indices of a strided destination can be one element.
///
/// The test is conservative: with the dimensions in order of their strides, each must step over all that the
/// ones before it reach. That holds for slices, permutations and reversals of a dense tensor. Layouts that
/// interleave without meeting, as strides 2 and 3 for sizes 3 and 2 do, are refused too.
///
/// `dims` and `strides` go together; strides count elements and may be negative. A tensor of one element or
/// none always passes.
///
/// # Errors
/// `InvalidArgument` where an element may be addressed twice, for more than [`MAX_DIMS`] dimensions, and for
/// slices of different lengths.
pub fn check_destination(dims: &[usize], strides: &[isize]) -> Result<()> {
    if dims.len() > MAX_DIMS || dims.len() != strides.len() {
        return Err(Error::invalid(format!(
            "{} strides were given for {} dimensions; give one for each, at most {MAX_DIMS}",
            strides.len(),
            dims.len()
        )));
    }
    if dims.contains(&0) {
        return Ok(());
    }
    let mut axes = [(0, 0); MAX_DIMS];
    let mut rank = 0;
    for (&dim, stride) in dims.iter().zip(strides).filter(|(dim, _)| **dim > 1) {
        axes[rank] = (stride.unsigned_abs(), dim);
        rank += 1;
    }
    let axes = &mut axes[..rank];
    axes.sort_unstable();
    let mut reach = 0usize;
    for &mut (stride, dim) in axes {
        if stride <= reach {
            return Err(Error::invalid(format!(
                "the destination's strides {strides:?} for dimensions {dims:?} may address an element twice; a stride \
                 must exceed all that the smaller ones reach, which is {reach}"
            )));
        }
        reach = stride.saturating_mul(dim - 1).saturating_add(reach);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn layouts_of_a_tensor_pass() {
        for (dims, strides) in [
            (&[4usize, 5][..], &[5isize, 1][..]),
            (&[4, 5], &[1, 4]),
            (&[4, 5], &[-10, 2]),
            (&[4, 1, 5], &[5, 0, 1]),
            (&[1, 1], &[0, 0]),
            (&[], &[]),
            (&[0, 5], &[0, 0]),
            (&[2, 2], &[isize::MIN, 1]),
        ] {
            check_destination(dims, strides).unwrap();
        }
    }

    #[test]
    fn doubtful_ones_are_refused() {
        for (dims, strides) in [
            (&[4usize, 5][..], &[0isize, 1][..]),
            (&[4, 5], &[4, 1]),
            (&[4, 5], &[-4, 1]),
            (&[2, 2], &[1, -1]),
            (&[3, 2], &[2, 3]),
            (&[3, usize::MAX], &[isize::MAX, isize::MAX - 1]),
            (&[2], &[]),
            (&[1; 9], &[1; 9]),
        ] {
            let e = check_destination(dims, strides).unwrap_err();
            assert_eq!(e.code(), Code::InvalidArgument, "{dims:?} {strides:?}");
        }
    }

    proptest! {
        #[test]
        fn what_passes_has_no_element_twice(axes in prop::collection::vec((0usize..4, -30isize..30), 0..=5)) {
            let (dims, strides): (Vec<usize>, Vec<isize>) = axes.into_iter().unzip();
            let count: usize = dims.iter().product();
            let offsets: HashSet<isize> = (0..count).map(|element| {
                let (mut rest, mut offset) = (element, 0);
                for (&dim, stride) in dims.iter().zip(&strides) {
                    offset += (rest % dim) as isize * stride;
                    rest /= dim;
                }
                offset
            }).collect();
            if check_destination(&dims, &strides).is_ok() {
                prop_assert_eq!(offsets.len(), count);
            }
        }

        #[test]
        fn slices_of_permuted_tensors_pass(
            axes in prop::collection::vec((1usize..5, 1usize..3, any::<bool>()), 0..=8),
            order in Just((0..8usize).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let mut strides = vec![0; axes.len()];
            let mut stride = 1;
            for axis in order.into_iter().filter(|&a| a < axes.len()) {
                let (dim, step, backwards) = axes[axis];
                strides[axis] = if backwards { -stride * step as isize } else { stride * step as isize };
                stride *= (dim * step) as isize;
            }
            let dims: Vec<usize> = axes.iter().map(|a| a.0).collect();
            prop_assert!(check_destination(&dims, &strides).is_ok());
        }
    }
}

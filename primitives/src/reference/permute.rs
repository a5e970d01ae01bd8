//! `permute`: `dst_dims[i] = src_dims[permutation[i]]`; bits are copied.

use super::launch::{Launch, Outputs};
use super::number::{Data, size_of};
use super::shape::count;
use ep_core::Result;

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let (dtype, src_dims) = (launch.get_dtype("data")?, launch.get_dims("src_dims")?);
    let permutation = launch.get_dims("permutation")?;
    let mut sorted = permutation.clone();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..src_dims.len()) {
        return Err(launch.invalid(format!("{permutation:?} does not reorder {} dimensions", src_dims.len())));
    }
    let src = launch.get_read("src", dtype, count(launch, &src_dims)?)?;
    let bytes = permute(&src_dims, &permutation, size_of(dtype), src.bytes);
    Ok(Outputs::one("dst", Data { dtype, bytes }))
}

/// Permutes a dense row-major tensor, `dst_dims[i] = src_dims[permutation[i]]`, of elements of
/// `element_size` bytes; returns the destination's bytes.
///
/// # Panics
/// If `src` is shorter than the dimensions say, or `permutation` is none.
pub fn permute(src_dims: &[usize], permutation: &[usize], element_size: usize, src: &[u8]) -> Vec<u8> {
    assert_eq!(src_dims.len(), permutation.len());
    if src_dims.contains(&0) {
        // Others may be too large to multiply.
        return Vec::new();
    }
    let count: usize = src_dims.iter().product();
    let mut dst = Vec::with_capacity(count * element_size);
    let mut src_index = vec![0; src_dims.len()];
    for element in 0..count {
        let mut rest = element;
        for &axis in permutation.iter().rev() {
            src_index[axis] = rest % src_dims[axis];
            rest /= src_dims[axis];
        }
        let offset = src_index.iter().zip(src_dims).fold(0, |sum, (i, d)| sum * d + i);
        dst.extend_from_slice(&src[offset * element_size..][..element_size]);
    }
    dst
}

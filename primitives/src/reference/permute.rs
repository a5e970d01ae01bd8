/// Permutes a dense row-major tensor, `dst_dims[i] = src_dims[permutation[i]]`, of elements of
/// `element_size` bytes; returns the destination's bytes.
///
/// # Panics
/// If `src` is shorter than the dimensions say, or `permutation` is none.
pub fn permute(src_dims: &[usize], permutation: &[usize], element_size: usize, src: &[u8]) -> Vec<u8> {
    assert_eq!(src_dims.len(), permutation.len());
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

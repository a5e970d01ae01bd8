//! Indices of dense, row-major tensors, the slow way.

use super::launch::Launch;
use ep_core::Result;

/// Elements of a shape.
pub(super) fn count(launch: &Launch<'_>, dims: &[usize]) -> Result<usize> {
    if dims.contains(&0) {
        return Ok(0);
    }
    let product = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    product.ok_or_else(|| launch.invalid(format!("a tensor of shape {dims:?} is too large")))
}

/// The index of an element by its position.
pub(super) fn unravel(mut position: usize, dims: &[usize]) -> Vec<usize> {
    let mut index = vec![0; dims.len()];
    for (i, d) in index.iter_mut().zip(dims).rev() {
        *i = position % d;
        position /= d;
    }
    index
}

/// The position of the element at an index of a shape that it was broadcast from: dimensions are aligned at
/// the last, and those of length 1 repeat.
pub(super) fn ravel(index: &[usize], dims: &[usize]) -> usize {
    let aligned = &index[index.len() - dims.len()..];
    aligned.iter().zip(dims).fold(0, |position, (i, d)| position * d + if *d == 1 { 0 } else { *i })
}

/// The NumPy broadcast of shapes.
pub(super) fn broadcast(launch: &Launch<'_>, shapes: &[&[usize]]) -> Result<Vec<usize>> {
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    let mut out = vec![1; rank];
    for shape in shapes {
        for (o, d) in out[rank - shape.len()..].iter_mut().zip(*shape) {
            match (*o, *d) {
                (_, 1) => {}
                (1, d) => *o = d,
                (o, d) if o == d => {}
                _ => return Err(launch.invalid(format!("the shapes {shapes:?} do not broadcast"))),
            }
        }
    }
    Ok(out)
}

/// Whether strides may lead to an element twice, by the contracts' rule: with the dimensions of more than one
/// element in the order of the sizes of their strides, each must exceed the reach of those before it.
pub(super) fn may_repeat(dims: &[usize], strides: &[i64]) -> bool {
    let steps = dims.iter().zip(strides).filter(|(d, _)| **d > 1);
    let mut steps: Vec<_> = steps.map(|(d, s)| (s.unsigned_abs(), *d as u128)).collect();
    steps.sort_unstable();
    let mut reach = 0;
    steps.into_iter().any(|(stride, d)| {
        let inside = u128::from(stride) <= reach;
        reach += u128::from(stride) * (d - 1);
        inside
    })
}

/// Where strides, in elements, lead from `offset`; `None` outside `0..len`.
pub(super) fn strided(index: &[usize], strides: &[i64], offset: i64, len: usize) -> Option<usize> {
    let steps = index.iter().zip(strides).map(|(i, s)| *i as i128 * i128::from(*s));
    let position = i128::from(offset) + steps.sum::<i128>();
    usize::try_from(position).ok().filter(|p| *p < len)
}

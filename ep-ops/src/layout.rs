//! Strides of shapes, by PyTorch's rules.

use crate::spec::count;
use crate::{MemoryFormat, Shape};
use ep_core::{Error, Result};
use smallvec::SmallVec;

/// Steps of the dimensions, in elements.
pub(crate) type Strides = SmallVec<[i64; ep_core::op::MAX_DIMS]>;

/// Those of a dense tensor whose last dimension is the innermost.
pub(crate) fn contiguous(shape: &[i64]) -> Strides {
    let mut strides: Strides = SmallVec::from_elem(1, shape.len());
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d].max(1);
    }
    strides
}

/// The dimensions from the innermost to the outermost, where the format says so.
fn order(format: MemoryFormat) -> Option<&'static [usize]> {
    match format {
        MemoryFormat::ChannelsLast => Some(&[1, 3, 2, 0]),
        MemoryFormat::ChannelsLast3d => Some(&[1, 4, 3, 2, 0]),
        MemoryFormat::Contiguous | MemoryFormat::Preserve => None,
    }
}

/// The strides that a new tensor of this format gets, as a copy of one with `strides`.
pub(crate) fn of_format(format: MemoryFormat, shape: &[i64], strides: &[i64]) -> Result<Strides> {
    if format == MemoryFormat::Preserve {
        let dense = is_dense(shape, strides);
        return Ok(if dense { Strides::from_slice(strides) } else { sorted_as(shape, strides) });
    }
    let Some(order) = order(format) else { return Ok(contiguous(shape)) };
    if shape.len() != order.len() {
        return Err(Error::invalid(format!(
            "{format:?} of shape {shape:?}: it is a format of {} dimensions; use Contiguous or Preserve",
            order.len()
        )));
    }
    let (mut strides, mut step) = (Strides::from_elem(1, order.len()), 1);
    for d in order {
        strides[*d] = step;
        step *= shape[*d].max(1);
    }
    Ok(strides)
}

/// Whether the elements lie dense in the order of a format. What strides dimensions of one element have does not matter.
pub(crate) fn is_contiguous(format: MemoryFormat, shape: &[i64], strides: &[i64]) -> bool {
    let dense = |dims: &mut dyn Iterator<Item = usize>| {
        let mut expected = 1;
        dims.filter(|d| shape[*d] != 1).all(|d| {
            let fits = strides[d] == expected;
            expected *= shape[d].max(1);
            fits
        })
    };
    match (format, order(format)) {
        (MemoryFormat::Preserve, _) => is_dense(shape, strides),
        (_, None) => shape.contains(&0) || dense(&mut (0..shape.len()).rev()),
        (_, Some(order)) => shape.len() == order.len() && dense(&mut order.iter().copied()),
    }
}

/// Whether the elements fill one piece of memory, each once, in the order of some permutation.
pub(crate) fn is_dense(shape: &[i64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut dims: SmallVec<[(i64, i64); 8]> =
        strides.iter().copied().zip(shape.iter().copied()).filter(|(_, n)| *n != 1).collect();
    dims.sort_unstable();
    let mut expected = 1;
    dims.iter().all(|(stride, n)| {
        let fits = *stride == expected;
        expected *= n;
        fits
    })
}

/// Whether two indices may be the same element: where the strides, sorted by their sizes, do not each exceed the reach of
/// those before.
pub(crate) fn may_overlap(shape: &[i64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return false;
    }
    let mut dims: SmallVec<[(u64, i64); 8]> = strides
        .iter()
        .map(|s| s.unsigned_abs())
        .zip(shape.iter().copied())
        .filter(|(_, n)| *n != 1)
        .collect();
    dims.sort_unstable();
    let mut reach = 0u128;
    dims.iter().any(|(stride, n)| {
        let clear = u128::from(*stride) > reach;
        reach += u128::from(*stride) * (*n as u128 - 1);
        !clear
    })
}

/// Dense strides in the order of the given ones: those of a copy that preserves the format of what is not dense.
fn sorted_as(shape: &[i64], strides: &[i64]) -> Strides {
    // Insertion sort as in PyTorch's TensorIterator, because the comparison is no order: a stride of 0 equals all others.
    let after = |a: usize, b: usize| {
        let (x, y) = (strides[a].unsigned_abs(), strides[b].unsigned_abs());
        match x.cmp(&y) {
            _ if x == 0 || y == 0 => 0,
            std::cmp::Ordering::Less => -1,
            std::cmp::Ordering::Greater => 1,
            std::cmp::Ordering::Equal => i32::from(shape[a] > shape[b]),
        }
    };
    let mut order: SmallVec<[usize; 8]> = (0..shape.len()).rev().collect();
    for i in 1..order.len() {
        let mut moving = i;
        for before in (0..i).rev() {
            match after(order[before], order[moving]) {
                1 => {
                    order.swap(before, moving);
                    moving = before;
                }
                0 => {}
                _ => break,
            }
        }
    }
    let (mut dense, mut step) = (Strides::from_elem(1, shape.len()), 1);
    for d in order {
        dense[d] = step;
        step *= shape[d].max(1);
    }
    dense
}

/// The shape with its -1, if any, replaced by what is left of so many elements.
pub(crate) fn infer_size(numel: i64, wanted: &[i64]) -> Result<Vec<i64>> {
    let mut shape = wanted.to_vec();
    let mut open = (0..shape.len()).filter(|d| wanted[*d] == -1);
    let at = open.next();
    if let (Some(a), Some(b)) = (at, open.next()) {
        return Err(Error::invalid(format!(
            "shape {wanted:?}: dimensions {a} and {b} are -1; only one can be inferred"
        )));
    }
    if let Some(at) = at {
        shape[at] = 1;
        let others = count(&shape)?;
        if others == 0 {
            return Err(Error::invalid(format!(
                "shape {wanted:?}: -1 could be anything beside a dimension of 0; give it"
            )));
        }
        if numel % others == 0 {
            shape[at] = numel / others;
        }
    }
    if count(&shape)? != numel {
        return Err(Error::invalid(format!(
            "shape {wanted:?} does not hold the {numel} elements that there are"
        )));
    }
    Ok(shape)
}

/// The strides by which another shape of equally many elements sees the same memory, if there are any.
pub(crate) fn of_view(shape: &[i64], strides: &[i64], wanted: &[i64]) -> Option<Strides> {
    if shape == wanted {
        return Some(Strides::from_slice(strides));
    }
    if shape.is_empty() || shape.contains(&0) {
        return Some(contiguous(wanted));
    }
    let mut found = Strides::from_elem(0, wanted.len());
    // Dimensions of `shape` that follow each other without gaps are one run; each run is cut anew, from the end.
    let (mut left, mut base) = (wanted.len(), strides[shape.len() - 1]);
    let (mut run, mut cut) = (1, 1);
    for d in (0..shape.len()).rev() {
        run *= shape[d];
        if d != 0 && (shape[d - 1] == 1 || strides[d - 1] == run * base) {
            continue;
        }
        while left > 0 && (cut < run || wanted[left - 1] == 1) {
            left -= 1;
            found[left] = cut * base;
            cut *= wanted[left];
        }
        if cut != run {
            return None;
        }
        if d > 0 {
            (base, run, cut) = (strides[d - 1], 1, 1);
        }
    }
    (left == 0).then_some(found)
}

/// Strides by which a shape is seen as a larger one, with repeated dimensions where it had one element or none; -1 keeps
/// a size.
pub(crate) fn of_expanded(shape: &[i64], strides: &[i64], wanted: &[i64]) -> Result<(Shape, Strides)> {
    let refuse = |why: String| Error::invalid(format!("{shape:?} cannot be expanded to {wanted:?}: {why}"));
    let Some(new) = wanted.len().checked_sub(shape.len()) else {
        return Err(refuse(format!("it has {} dimensions, which is more", shape.len())));
    };
    let (mut sizes, mut steps) = (Shape::from(wanted), Strides::from_elem(0, wanted.len()));
    for d in (0..wanted.len()).rev() {
        let (size, step) = match d.checked_sub(new) {
            Some(old) => (shape[old], strides[old]),
            // As in PyTorch: behind it, which nobody sees where the size is 1.
            None => (1, sizes.get(d + 1).map_or(1, |n| n.saturating_mul(steps[d + 1]))),
        };
        match wanted[d] {
            -1 if d < new => return Err(refuse(format!("dimension {d} is new, so that -1 has no meaning"))),
            -1 => (sizes[d], steps[d]) = (size, step),
            n if n == size => steps[d] = step,
            n if n < 0 => return Err(refuse(format!("size {n} is negative"))),
            _ if size == 1 => steps[d] = 0,
            n => {
                return Err(refuse(format!(
                    "its dimension {} has {size} elements, neither 1 nor {n}",
                    d - new
                )));
            }
        }
    }
    Ok((sizes, steps))
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;

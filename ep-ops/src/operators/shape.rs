//! What operators check of their inputs, and the dimensions around an axis.

use crate::{Shape, Spec};
use ep_core::{DType, Error, Result};

/// Exactly the inputs of these names.
pub(super) fn named<'a, const N: usize>(inputs: &'a [Spec], names: [&str; N]) -> Result<&'a [Spec; N]> {
    inputs.try_into().map_err(|_| {
        let names = names.join(", ");
        Error::invalid(format!("it takes {N} inputs ({names}), and {} were given", inputs.len()))
    })
}

/// Fails unless both have one dtype.
pub(super) fn same_dtype(a: &Spec, b: &Spec) -> Result<()> {
    if a.dtype == b.dtype {
        return Ok(());
    }
    Err(Error::invalid(format!("{a} and {b}: the dtypes differ, and none is promoted; cast one of them")))
}

/// Fails unless the indices are i32 or i64.
pub(super) fn index_dtype(indices: &Spec) -> Result<()> {
    if [DType::I32, DType::I64].contains(&indices.dtype) {
        return Ok(());
    }
    Err(Error::invalid(format!("the indices {indices}: indices are i32 or i64; cast them")))
}

/// Fails unless a dtype is a float.
pub(super) fn float_dtype(input: &Spec) -> Result<()> {
    if input.dtype.is_float() {
        return Ok(());
    }
    Err(Error::invalid(format!("{input}: it takes f16, bf16, f32 and f64; cast the input")))
}

/// An output, which has no more elements than can be counted.
pub(super) fn output(dtype: DType, shape: impl Into<Shape>) -> Result<Spec> {
    let spec = Spec::new(dtype, shape);
    spec.count()?;
    Ok(spec)
}

/// What these shapes broadcast to as NumPy has it: aligned at the last dimension, 1 repeats.
pub(super) fn broadcast(shapes: &[&[i64]]) -> Result<Shape> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut out: Shape = std::iter::repeat_n(1, rank).collect();
    for shape in shapes {
        let skip = rank - shape.len();
        for (to, size) in out[skip..].iter_mut().zip(shape.iter()) {
            if *to == 1 {
                *to = *size;
            } else if *size != 1 && size != to {
                return Err(Error::invalid(format!(
                    "the shapes {shapes:?}: aligned at the last dimension, {size} meets {to}; sizes are \
                     equal, or 1 repeats"
                )));
            }
        }
    }
    Ok(out)
}

/// A shape around one of its dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Around {
    /// Elements before.
    pub(super) outer: i64,
    /// The dimension's size.
    pub(super) size: i64,
    /// Elements behind.
    pub(super) inner: i64,
}

impl Around {
    /// Around a dimension; a shape without any is taken to have one, of size 1.
    pub(super) fn new(shape: &[i64], dim: usize) -> Around {
        let product = |dims: &[i64]| dims.iter().product();
        match shape {
            [] => Around { outer: 1, size: 1, inner: 1 },
            _ => {
                Around { outer: product(&shape[..dim]), size: shape[dim], inner: product(&shape[dim + 1..]) }
            }
        }
    }
}

/// A shape with one of its dimensions replaced; a shape without any is taken to have one.
pub(super) fn replaced(shape: &[i64], dim: usize, by: &[i64]) -> Shape {
    let behind = shape.get(dim + 1..).unwrap_or(&[]);
    shape[..dim].iter().chain(by).chain(behind).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_broadcast_as_in_numpy() {
        let ok = |shapes: &[&[i64]]| broadcast(shapes).unwrap();
        assert_eq!(ok(&[&[2, 1, 4], &[3, 1], &[]]), [2, 3, 4]);
        assert_eq!(ok(&[&[1], &[0]]), [0]);
        assert_eq!(ok(&[&[], &[]]), [0i64; 0]);
        let error = broadcast(&[&[2, 3], &[2, 4]]).unwrap_err();
        assert!(error.message().contains("the shapes [[2, 3], [2, 4]]"), "{error}");
        assert!(error.message().contains("4 meets 3"), "{error}");
        assert!(broadcast(&[&[0], &[2]]).is_err());
    }

    #[test]
    fn a_single_element_has_one_dimension() {
        assert_eq!(Around::new(&[], 0), Around { outer: 1, size: 1, inner: 1 });
        assert_eq!(Around::new(&[2, 3, 4], 1), Around { outer: 2, size: 3, inner: 4 });
        assert_eq!(replaced(&[], 0, &[5, 6]), [5, 6]);
        assert_eq!(replaced(&[2, 3], 1, &[]), [2]);
    }
}

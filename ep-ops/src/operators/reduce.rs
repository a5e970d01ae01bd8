//! `reduce`.

use super::{cast, launch, shape};
use crate::sbp::Sbp::{PartialSum, Split};
use crate::{MemoryFormat, Operator, Ops, Signature, Spec, Tensor};
use ep_core::primitive as p;
use ep_core::primitive::ReduceOp;
use ep_core::{DType, Error, Result};

/// Combines elements along any set of dimensions: sum, mean, max, min, prod, any or all.
///
/// Input: x of any shape. Output: the dimensions that are left, or with `keep_dims` all of them with those that were
/// combined of size 1. What comes of no elements is said at the primitive ([`Reduce`](ep_core::primitive::Reduce)).
///
/// | op | dtypes of x | of the output, unless `dtype` says else | `dtype` may be |
/// |---|---|---|---|
/// | sum, prod | all | that of x; of bool i64 | i64 for bool and integers up to 32 bits; f32 for f16 and bf16 |
/// | mean | floats and complex | that of x | f32 for f16 and bf16 |
/// | max, min | all but complex | that of x | |
/// | any, all | all | bool | |
///
/// Dimensions that are neighbours count as one; for others x is copied with them put last.
#[derive(Clone, Debug)]
pub struct Reduce {
    /// How elements combine.
    pub op: ReduceOp,
    /// Along which dimensions; negative ones count from the end, and none means all.
    pub dims: Vec<i64>,
    /// Whether they stay, with size 1.
    pub keep_dims: bool,
    /// The dtype of the output, where there is a choice.
    pub dtype: Option<DType>,
}

impl Reduce {
    /// For each dimension whether it is combined.
    fn combined(&self, x: &Spec) -> Result<Vec<bool>> {
        let mut combined = vec![self.dims.is_empty(); x.rank()];
        for dim in &self.dims {
            let own = x.dim(*dim)?;
            // A single element is taken to have a dimension.
            let Some(flag) = combined.get_mut(own) else { continue };
            if std::mem::replace(flag, true) {
                return Err(Error::invalid(format!(
                    "{x} along {:?}: dimension {own} comes twice",
                    self.dims
                )));
            }
        }
        Ok(combined)
    }

    /// The dtype of the output.
    fn output(&self, x: &Spec) -> Result<DType> {
        let src = x.dtype;
        let small = src == DType::BOOL || src.is_int() && src.bits() <= Some(32);
        let half = [DType::F16, DType::BF16].contains(&src);
        let (natural, other) = match self.op {
            ReduceOp::ANY | ReduceOp::ALL => (DType::BOOL, None),
            ReduceOp::MEAN if !src.is_float() && !src.is_complex() => {
                return Err(Error::invalid(format!("{x}: a mean is a float or complex; cast x first")));
            }
            ReduceOp::MAX | ReduceOp::MIN if src.is_complex() => {
                return Err(Error::invalid(format!(
                    "{x}: complex numbers have no order; take a part or abs"
                )));
            }
            ReduceOp::SUM | ReduceOp::PROD if src == DType::BOOL => (DType::I64, None),
            ReduceOp::SUM | ReduceOp::PROD if small => (src, Some(DType::I64)),
            ReduceOp::SUM | ReduceOp::PROD | ReduceOp::MEAN if half => (src, Some(DType::F32)),
            _ => (src, None),
        };
        match self.dtype {
            Some(dtype) if dtype != natural && Some(dtype) != other => {
                let other = other.map_or_else(String::new, |other| format!(" or {other}"));
                Err(Error::invalid(format!(
                    "{x} to {dtype}: it gives {natural}{other}; cast x or the result"
                )))
            }
            dtype => Ok(dtype.unwrap_or(natural)),
        }
    }

    /// A view of x whose combined dimensions are neighbours, dense, and the elements before, in and behind them.
    fn arranged(&self, ops: &Ops<'_>, x: &Tensor) -> Result<(Tensor, shape::Around)> {
        let combined = self.combined(x.spec())?;
        // Along a dimension of one element nothing is combined.
        let (gone, kept): (Vec<usize>, Vec<usize>) =
            (0..x.rank()).partition(|d| combined[*d] && x.shape()[*d] != 1);
        let size = |dims: &[usize]| dims.iter().map(|d| x.shape()[*d]).product::<i64>();
        let (all, reduced) = (size(&kept), size(&gone));
        let first = gone.first().copied().unwrap_or(x.rank());
        let last = gone.last().copied().unwrap_or(x.rank());
        let between = |d: &usize| (first..last).contains(d) && x.shape()[*d] != 1;
        let neighbours = !kept.iter().any(between);
        let before = kept.partition_point(|d| *d < first);
        let in_place =
            shape::Around { outer: size(&kept[..before]), size: reduced, inner: size(&kept[before..]) };
        let ordered =
            |dims: [&[usize]; 2]| x.permute(&dims.concat().iter().map(|d| *d as i64).collect::<Vec<_>>());
        let (at_end, at_start) = (ordered([&kept, &gone])?, ordered([&gone, &kept])?);
        let last = shape::Around { outer: all, size: reduced, inner: 1 };
        let dense = |x: &Tensor| x.is_contiguous(MemoryFormat::Contiguous);
        Ok(if neighbours && dense(x) {
            (x.alias(), in_place)
        } else if dense(&at_end) {
            (at_end, last)
        } else if dense(&at_start) {
            (at_start, shape::Around { outer: 1, size: reduced, inner: all })
        } else if neighbours {
            (launch::dense(ops, x)?, in_place)
        } else {
            (launch::dense(ops, &at_end)?, last)
        })
    }
}

impl Operator for Reduce {
    fn name(&self) -> &'static str {
        self.op.name().unwrap_or("reduce")
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let [x] = shape::named(inputs, ["x"])?;
        let dims = x.shape.iter().zip(self.combined(x)?);
        let shape: Vec<i64> = if self.keep_dims {
            dims.map(|(size, combined)| if combined { 1 } else { *size }).collect()
        } else {
            dims.filter(|(_, combined)| !combined).map(|(size, _)| *size).collect()
        };
        Ok(vec![shape::output(self.output(x)?, shape)?])
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let to = launch::inferred(self, inputs)?.remove(0);
        let (x, around) = self.arranged(ops, inputs[0])?;
        let primitive = ops.primitive::<p::Reduce>(p::ReduceDesc::new(self.op, x.dtype(), to.dtype))?;
        let dst = launch::output(ops, &to, |dst| {
            let src = x.read()?;
            let shape::Around { outer, size: reduced, inner } = around;
            primitive.launch(ops.stream(), p::ReduceCall { outer, reduced, inner, src: src.view()?, dst })
        })?;
        Ok(vec![dst])
    }

    fn signatures(&self, inputs: &[Spec]) -> Vec<Signature> {
        let Ok(outputs) = self.infer(inputs) else { return Vec::new() };
        let (x, to) = (&inputs[0], outputs[0].dtype);
        let Ok(combined) = self.combined(x) else { return Vec::new() };
        // Over bool the sum is `or`, which is any.
        let adds = self.op == ReduceOp::SUM || self.op == ReduceOp::ANY;
        let mut all = vec![Signature::broadcast(1, 1)];
        all.extend((0..x.rank()).filter_map(|d| {
            let before = combined[..d].iter().filter(|combined| **combined && !self.keep_dims).count();
            let out = if combined[d] { adds.then_some(PartialSum) } else { Some(Split(d - before)) };
            Some(Signature::new([Split(d)], [out?]))
        }));
        let additive = match self.op {
            ReduceOp::SUM | ReduceOp::MEAN => x.dtype != DType::BOOL && cast::adds_up(x.dtype, to),
            ReduceOp::ANY => x.dtype == DType::BOOL,
            _ => false,
        };
        if additive {
            all.push(Signature::new([PartialSum], [PartialSum]));
        }
        all
    }
}

impl Ops<'_> {
    /// Combines elements along dimensions, all where `dims` is empty. See [`Reduce`].
    ///
    /// # Errors
    /// `InvalidArgument` for dimensions that x does not have or that come twice, the mean of integers, and max and min of
    /// complex numbers.
    pub fn reduce(&self, op: ReduceOp, x: &Tensor, dims: &[i64], keep_dims: bool) -> Result<Tensor> {
        launch::one(self.apply(&Reduce { op, dims: dims.into(), keep_dims, dtype: None }, &[x])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_registry::Runtime;

    #[test]
    fn dimensions_are_merged_and_copied_only_where_they_are_no_neighbours() {
        let runtime =
            Runtime::builder().threads(1).linked::<ep_cpu::provider::CpuProvider>("cpu").build().unwrap();
        let ops = Ops::new(&runtime, "cpu").unwrap();
        let x = ops.zeros(DType::F32, &[2, 3, 1, 4, 5]).unwrap();
        let of = |x: &Tensor, dims: &[i64]| {
            let operator = Reduce { op: ReduceOp::SUM, dims: dims.into(), keep_dims: false, dtype: None };
            let (arranged, around) = operator.arranged(&ops, x).unwrap();
            ((around.outer, around.size, around.inner), arranged.shares_storage(x))
        };
        assert_eq!(of(&x, &[1]), ((2, 3, 20), true));
        assert_eq!(of(&x, &[3, 1]), ((2, 12, 5), true));
        assert_eq!(of(&x, &[]), ((1, 120, 1), true));
        assert_eq!(of(&x, &[2]), ((120, 1, 1), true));
        assert_eq!(of(&x, &[0, 3]), ((15, 8, 1), false));
        // Views that are dense in no order that helps, and others.
        let turned = x.permute(&[1, 0, 2, 4, 3]).unwrap();
        assert_eq!(of(&turned, &[0]), ((1, 3, 40), false));
        let turned = x.permute(&[4, 0, 1, 2, 3]).unwrap();
        assert_eq!(of(&turned, &[0]), ((24, 5, 1), true));
        let turned = x.permute(&[3, 4, 0, 1, 2]).unwrap();
        assert_eq!(of(&turned, &[2, 3]), ((1, 6, 20), true));
    }
}

//! `reduce`.

use super::{cast, launch, shape};
use crate::sbp::Sbp::{PartialSum, Split};
use crate::{MemoryFormat, Operator, Ops, Shape, Signature, Spec, Tensor};
use ep_core::op::MAX_DIMS;
use ep_core::primitive as p;
use ep_core::primitive::ReduceOp;
use ep_core::{DType, Error, Result};
use smallvec::SmallVec;
use std::cmp::Reverse;

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
/// Dimensions that are neighbours in memory count as one. Those that are not are combined one after the other, from the
/// innermost on, so that sums and means of f32, f64 and complex numbers are rounded after each; for products of such, and
/// for f16 and bf16, x is copied with them put last. A view with gaps is copied.
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
    fn combined(&self, x: &Spec) -> Result<SmallVec<[bool; MAX_DIMS]>> {
        let mut combined = SmallVec::from_elem(self.dims.is_empty(), x.rank());
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

    /// Whether what comes of parts may be combined like elements: products of floats may leave the range on the way, and
    /// halves would be rounded twice.
    fn combines_parts(&self, to: DType) -> bool {
        let is_exact = match self.op {
            ReduceOp::SUM | ReduceOp::PROD | ReduceOp::MEAN => !(to.is_float() || to.is_complex()),
            _ => true,
        };
        is_exact || self.op != ReduceOp::PROD && ![DType::F16, DType::BF16].contains(&to)
    }

    /// The input as it lies where that can be combined, else a copy; and its dimensions.
    fn arranged(&self, ops: &Ops<'_>, x: &Tensor, to: DType) -> Result<(Tensor, Runs)> {
        let combined = self.combined(x.spec())?;
        let parts = self.combines_parts(to);
        let fits = |runs: &Runs| parts || steps(runs) < 2;
        let plain = || runs(x.shape(), 0..x.rank(), &combined).filter(fits);
        if x.is_contiguous(MemoryFormat::Contiguous) {
            if let Some(runs) = plain() {
                return Ok((x.alias(), runs));
            }
        } else if x.is_dense_without_overlap() {
            let mut order: SmallVec<[usize; MAX_DIMS]> = (0..x.rank()).collect();
            order.sort_by_key(|d| Reverse(x.strides()[*d]));
            if let Some(runs) = runs(x.shape(), order, &combined).filter(fits) {
                return Ok((x.alias(), runs));
            }
        }
        if let Some(runs) = plain() {
            return Ok((launch::dense(ops, x)?, runs));
        }
        self.combined_last(ops, x)
    }

    /// A copy with the dimensions that are combined as the last ones.
    fn combined_last(&self, ops: &Ops<'_>, x: &Tensor) -> Result<(Tensor, Runs)> {
        let combined = self.combined(x.spec())?;
        let (gone, kept): (Vec<usize>, Vec<usize>) = (0..x.rank()).partition(|d| combined[*d]);
        let order = [kept, gone].concat();
        let view = x.permute(&order.iter().map(|d| *d as i64).collect::<Vec<_>>())?;
        let runs = runs(x.shape(), order, &combined).unwrap_or_default();
        Ok((launch::dense(ops, &view)?, runs))
    }

    /// One launch for each run that is combined, the innermost first.
    fn steps(&self, ops: &Ops<'_>, mut x: Tensor, mut runs: Runs, to: &Spec) -> Result<Tensor> {
        loop {
            let size = |runs: &[Run]| runs.iter().map(|run| run.size).product::<i64>();
            let innermost = runs.iter().rposition(|run| run.combined);
            let (outer, reduced, inner) = match innermost {
                Some(at) => (size(&runs[..at]), runs[at].size, size(&runs[at + 1..])),
                None => (size(&runs), 1, 1),
            };
            if let Some(at) = innermost {
                runs.remove(at);
            }
            let done = steps(&runs) == 0;
            let part = if done { to.clone() } else { Spec::new(to.dtype, [outer * inner]) };
            let primitive = ops.primitive::<p::Reduce>(p::ReduceDesc::new(self.op, x.dtype(), to.dtype))?;
            let dst = launch::output(ops, &part, |dst| {
                let src = x.read_strided();
                primitive.launch(ops.stream(), p::ReduceCall { outer, reduced, inner, src: src.view()?, dst })
            })?;
            if done {
                return Ok(dst);
            }
            x = dst;
        }
    }
}

/// Dimensions that follow each other in memory and are all combined or all kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    combined: bool,
    size: i64,
}

/// Of a dense tensor, the outermost first.
type Runs = SmallVec<[Run; MAX_DIMS]>;

/// How many are combined.
fn steps(runs: &Runs) -> usize {
    runs.iter().filter(|run| run.combined).count()
}

/// Those of a shape whose dimensions lie in this order; none where the kept ones would come out in another order than that of
/// the shape. Along a dimension of one element nothing is combined.
fn runs(shape: &[i64], order: impl IntoIterator<Item = usize>, combined: &[bool]) -> Option<Runs> {
    let (mut found, mut next) = (Runs::new(), 0);
    for d in order.into_iter().filter(|d| shape[*d] != 1) {
        if !combined[d] {
            if d < next {
                return None;
            }
            next = d;
        }
        match found.last_mut() {
            Some(run) if run.combined == combined[d] => run.size *= shape[d],
            _ => found.push(Run { combined: combined[d], size: shape[d] }),
        }
    }
    Some(found)
}

impl Operator for Reduce {
    fn name(&self) -> &'static str {
        self.op.name().unwrap_or("reduce")
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let [x] = shape::named(inputs, ["x"])?;
        let dims = x.shape.iter().zip(self.combined(x)?);
        let shape: Shape = if self.keep_dims {
            dims.map(|(size, combined)| if combined { 1 } else { *size }).collect()
        } else {
            dims.filter(|(_, combined)| !combined).map(|(size, _)| *size).collect()
        };
        Ok(vec![shape::output(self.output(x)?, shape)?])
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let to = launch::inferred(self, inputs)?.remove(0);
        let (x, runs) = self.arranged(ops, inputs[0], to.dtype)?;
        if steps(&runs) < 2 {
            return Ok(vec![self.steps(ops, x, runs, &to)?]);
        }
        // The later steps are of another dtype than the first where the output is.
        let dst = launch::or_dense(
            || self.steps(ops, x, runs, &to),
            || {
                let (x, runs) = self.combined_last(ops, inputs[0])?;
                self.steps(ops, x, runs, &to)
            },
        )?;
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
    fn dimensions_are_merged_and_copied_only_where_they_have_to_be() {
        let runtime =
            Runtime::builder().threads(1).linked::<ep_cpu::provider::CpuProvider>("cpu").build().unwrap();
        let ops = Ops::new(&runtime, "cpu").unwrap();
        let x = ops.zeros(DType::F32, &[2, 3, 1, 4, 5]).unwrap();
        let of_dtype = |x: &Tensor, dims: &[i64], to: DType| {
            let operator = Reduce { op: ReduceOp::SUM, dims: dims.into(), keep_dims: false, dtype: None };
            let (arranged, runs) = operator.arranged(&ops, x, to).unwrap();
            // Combined ones are negative.
            let runs: Vec<i64> = runs.iter().map(|r| if r.combined { -r.size } else { r.size }).collect();
            (runs, arranged.shares_storage(x))
        };
        let of = |x: &Tensor, dims: &[i64]| of_dtype(x, dims, DType::F32);
        assert_eq!(of(&x, &[1]), (vec![2, -3, 20], true));
        assert_eq!(of(&x, &[3, 1]), (vec![2, -12, 5], true));
        assert_eq!(of(&x, &[]), (vec![-120], true));
        assert_eq!(of(&x, &[2]), (vec![120], true));
        // One after the other, unless that rounds twice.
        assert_eq!(of(&x, &[0, 3]), (vec![-2, 3, -4, 5], true));
        assert_eq!(of_dtype(&x, &[0, 3], DType::F16), (vec![15, -8], false));
        // Views that are dense in another order.
        let turned = x.permute(&[4, 0, 1, 2, 3]).unwrap();
        assert_eq!(of(&turned, &[0]), (vec![24, -5], true));
        assert_eq!(of(&turned, &[2]), (vec![10, -3, 4], false));
        let turned = x.permute(&[3, 4, 0, 1, 2]).unwrap();
        assert_eq!(of(&turned, &[2, 3]), (vec![-6, 20], true));
        let turned = x.permute(&[1, 0, 2, 4, 3]).unwrap();
        assert_eq!(of(&turned, &[0]), (vec![-3, 40], false));
        assert_eq!(of(&turned, &[0, 1, 3]), (vec![-6, 4, -5], true));
        // Images with channels last, and one that has gaps.
        let images = ops.empty(DType::F32, &[2, 3, 4, 5]).unwrap();
        let last = images.view(&[2, 4, 5, 3]).unwrap().permute(&[0, 3, 1, 2]).unwrap();
        assert_eq!(of(&last, &[0, 2, 3]), (vec![-40, 3], true));
        assert_eq!(of(&last, &[2, 3]), (vec![2, -20, 3], true));
        assert_eq!(of(&images, &[0, 2, 3]), (vec![-2, 3, -20], true));
        assert_eq!(of(&x.narrow(4, 1, 3).unwrap(), &[1]), (vec![2, -3, 12], false));
    }
}

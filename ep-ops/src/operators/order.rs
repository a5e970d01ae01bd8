//! The order in which operators of single elements, and of rows along one dimension, go through memory.

use crate::{MemoryFormat, Tensor};
use ep_core::Result;
use ep_core::op::MAX_DIMS;
use smallvec::SmallVec;
use std::cmp::Reverse;

/// Computes outputs from inputs.
type Run<'a> = dyn Fn(&[&Tensor]) -> Result<Vec<Tensor>> + 'a;

/// Runs an operator of elements, whose inputs broadcast, on inputs as they lie, so that the output lies as they do.
pub(super) fn kept(inputs: &[&Tensor], run: &Run<'_>) -> Result<Vec<Tensor>> {
    match Order::of(inputs) {
        None => run(inputs),
        Some(order) => order.run(inputs, run),
    }
}

/// Dimensions, the outermost in memory first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Order(SmallVec<[usize; MAX_DIMS]>);

impl Order {
    /// The order in which all inputs are dense, if there is one and it is not that of the shape; what repeats counts as dense.
    pub(super) fn of(inputs: &[&Tensor]) -> Option<Order> {
        if inputs.iter().all(|x| x.is_contiguous(MemoryFormat::Contiguous)) {
            return None;
        }
        let rank = inputs.iter().map(|x| x.rank()).max()?;
        // One that has all elements of the output is dense in no other order.
        let all = |x: &&&Tensor| x.rank() == rank && x.numel() != 0 && x.is_dense_without_overlap();
        let whole = inputs.iter().find(|x| all(x) && inputs.iter().all(|y| repeats_to(y, x)))?;
        let mut dims: SmallVec<[usize; MAX_DIMS]> = (0..rank).collect();
        dims.sort_by_key(|d| Reverse(whole.strides()[*d]));
        if dims.is_sorted() {
            return None;
        }
        let order = Order(dims);
        inputs.iter().all(|x| order.has(x)).then_some(order)
    }

    /// Whether a tensor is dense in this order.
    fn has(&self, x: &Tensor) -> bool {
        let mut expected = 1;
        self.0.iter().rev().filter_map(|d| own(x, *d, self.0.len())).all(|d| {
            let (size, stride) = (x.shape()[d], x.strides()[d]);
            let fits = size == 1 || stride == 0 || stride == expected;
            if stride != 0 {
                expected *= size;
            }
            fits
        })
    }

    /// Of a list with an entry for each dimension, the entries in this order.
    pub(super) fn list(&self, of: &[i64]) -> Vec<i64> {
        self.0.iter().map(|d| of[*d]).collect()
    }

    /// Which of the dimensions in this order a dimension of the shape is.
    pub(super) fn place(&self, dim: usize) -> usize {
        self.0.iter().take_while(|d| **d != dim).count()
    }

    /// Views of all inputs with their dimensions in this order.
    pub(super) fn of_all(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let dims: SmallVec<[i64; MAX_DIMS]> = self.0.iter().map(|d| *d as i64).collect();
        let turned = |x: &&Tensor| {
            let missing = self.0.len() - x.rank();
            (0..missing).try_fold(x.alias(), |view, _| view.unsqueeze(0))?.permute(&dims)
        };
        inputs.iter().map(turned).collect()
    }

    /// Runs something on the inputs with their dimensions in this order, and puts those of the outputs back.
    pub(super) fn run(&self, inputs: &[&Tensor], run: &Run<'_>) -> Result<Vec<Tensor>> {
        let turned = self.of_all(inputs)?;
        let dims = &self.0;
        let outputs = run(&turned.iter().collect::<SmallVec<[&Tensor; 4]>>())?;
        let mut back: SmallVec<[i64; MAX_DIMS]> = SmallVec::from_elem(0, dims.len());
        for (at, d) in self.0.iter().enumerate() {
            back[*d] = at as i64;
        }
        outputs.iter().map(|y| y.permute(&back)).collect()
    }
}

/// The dimension of a tensor that dimension `d` of a shape of so many is, aligned at the last one.
fn own(x: &Tensor, d: usize, rank: usize) -> Option<usize> {
    (d + x.rank()).checked_sub(rank)
}

/// Whether a tensor broadcasts to the shape of another one of no fewer dimensions.
fn repeats_to(x: &Tensor, whole: &Tensor) -> bool {
    let skip = whole.rank() - x.rank();
    x.shape().iter().zip(&whole.shape()[skip..]).all(|(n, all)| *n == 1 || n == all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ops;
    use ep_core::DType;
    use ep_registry::Runtime;

    #[test]
    fn an_order_is_that_of_all_inputs_or_none() {
        let runtime =
            Runtime::builder().threads(1).linked::<ep_cpu::provider::CpuProvider>("cpu").build().unwrap();
        let ops = Ops::new(&runtime, "cpu").unwrap();
        let x = ops.zeros(DType::F32, &[2, 3, 4, 5]).unwrap();
        let last = ops.contiguous(&x, MemoryFormat::ChannelsLast).unwrap();
        let bias = ops.zeros(DType::F32, &[3, 1, 1]).unwrap();
        let single = ops.zeros(DType::F32, &[]).unwrap();
        let row = ops.zeros(DType::F32, &[5]).unwrap();
        let plane = ops.zeros(DType::F32, &[4, 5]).unwrap();
        let of = |inputs: &[&Tensor]| Order::of(inputs).map(|order| order.0.to_vec());
        let channels_last = Some(vec![0, 2, 3, 1]);
        assert_eq!(of(&[&last]), channels_last);
        assert_eq!(of(&[&single, &last, &bias, &row, &plane]), channels_last);
        assert_eq!(of(&[&last, &bias.expand(&[2, 3, 4, 5]).unwrap()]), channels_last);
        // In the order of the shape; in two orders; with gaps; where none has all elements of the output.
        assert_eq!(of(&[&x, &bias]), None);
        assert_eq!(of(&[&x, &last]), None);
        assert_eq!(of(&[&last, &plane.t().unwrap().expand(&[5, 4]).unwrap().t().unwrap()]), channels_last);
        assert_eq!(of(&[&last, &ops.zeros(DType::F32, &[5, 4]).unwrap().t().unwrap()]), None);
        assert_eq!(of(&[&last.narrow(1, 0, 2).unwrap()]), None);
        assert_eq!(of(&[&last.flip(&[1]).unwrap()]), None);
        let column = ops.zeros(DType::F32, &[1, 4]).unwrap().t().unwrap();
        assert_eq!(of(&[&column, &plane.t().unwrap().narrow(0, 0, 1).unwrap()]), None);
        assert_eq!(of(&[&last.narrow(0, 0, 0).unwrap()]), None);
    }
}

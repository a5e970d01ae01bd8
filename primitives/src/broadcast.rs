//! Broadcasting: from shapes as the caller wrote them to the fewest dimensions that a kernel must walk.
//!
//! A [`Plan`] holds the simplified dimensions of an `N`-operand broadcast, and [`Odometer`] walks its rows
//! with additions only: no division, no multi-index.
//!
//! ```
//! use primitives::broadcast::{Odometer, Plan};
//!
//! /// a + b by NumPy's rules.
//! fn add((a_dims, a): (&[i64], &[f32]), (b_dims, b): (&[i64], &[f32])) -> ep_core::Result<Vec<f32>> {
//!     let plan = Plan::new([a_dims, b_dims])?;
//!     let mut sums = Vec::with_capacity(plan.count());
//!     if plan.count() == 0 {
//!         return Ok(sums);
//!     }
//!     // Steps along a row; 0 for an operand that repeats.
//!     let [step_a, step_b] = [0, 1].map(|n| plan.strides(n)[plan.dims().len() - 1]);
//!     let mut rows = Odometer::at(&plan, 0);
//!     for _ in 0..plan.count() / plan.inner() {
//!         let [at_a, at_b] = rows.offsets();
//!         sums.extend((0..plan.inner()).map(|i| a[at_a + i * step_a] + b[at_b + i * step_b]));
//!         rows.advance();
//!     }
//!     Ok(sums)
//! }
//!
//! // A column and a row.
//! let sums = add((&[2, 1], &[10.0, 20.0]), (&[3], &[1.0, 2.0, 3.0]))?;
//! assert_eq!(sums, [11.0, 12.0, 13.0, 21.0, 22.0, 23.0]);
//! # Ok::<(), ep_core::Error>(())
//! ```

use ep_core::{Error, Result};

/// The most dimensions a primitive takes.
pub const MAX_DIMS: usize = 8;

/// A simplified numpy-style broadcast of `N` contiguous row-major operands.
///
/// Dimensions of size 1 are gone, and neighbours are merged where every operand either spans both or
/// repeats over both. At least one dimension is left. Strides count elements; `0` means "repeats".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan<const N: usize> {
    rank: usize,
    dims: [usize; MAX_DIMS],
    strides: [[usize; MAX_DIMS]; N],
    count: usize,
}

impl<const N: usize> Plan<N> {
    /// Plans the broadcast of operands with these shapes, aligned at their last dimension.
    /// No dimensions at all is one element.
    ///
    /// # Errors
    /// `InvalidArgument` for more than [`MAX_DIMS`] dimensions, a negative size, sizes that neither agree
    /// nor are 1, and an element count beyond `isize::MAX`.
    pub fn new(shapes: [&[i64]; N]) -> Result<Plan<N>> {
        let full_rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
        if full_rank > MAX_DIMS {
            return Err(Error::invalid(format!("{full_rank} dimensions were given; the most is {MAX_DIMS}")));
        }
        let mut plan = Plan { rank: 0, dims: [1; MAX_DIMS], strides: [[0; MAX_DIMS]; N], count: 1 };
        // Until strides are known, `strides` holds 1 where the operand spans the dimension and 0 where it
        // repeats over it.
        let mut empty = false;
        for axis in 0..full_rank {
            let sizes = shapes.map(|s| (axis + s.len()).checked_sub(full_rank).map_or(1, |i| s[i]));
            let size = broadcast_size(sizes).ok_or_else(|| mismatch(shapes, axis))?;
            empty |= size == 0;
            if size != 1 {
                plan.push(size, sizes.map(|s| usize::from(s != 1)), shapes)?;
            }
        }
        plan.rank = plan.rank.max(1);
        for spans in &mut plan.strides {
            let mut stride = 1;
            for (span, &dim) in spans[..plan.rank].iter_mut().zip(&plan.dims).rev() {
                if *span == 1 {
                    *span = stride;
                    // Beside an empty dimension the others are spanned all the same: 0 would say that they repeat.
                    stride *= dim.max(1);
                }
            }
        }
        plan.count = if empty { 0 } else { plan.dims[..plan.rank].iter().product() };
        Ok(plan)
    }

    fn push(&mut self, size: usize, spans: [usize; N], shapes: [&[i64]; N]) -> Result<()> {
        let too_big = || Error::invalid(format!("the broadcast of {shapes:?} has too many elements"));
        // A zero size must not hide an overflow of the other sizes: merged dimensions are multiplied.
        self.count = self
            .count
            .checked_mul(size.max(1))
            .filter(|&c| isize::try_from(c).is_ok())
            .ok_or_else(too_big)?;
        let merges = self.rank > 0 && (0..N).all(|n| self.strides[n][self.rank - 1] == spans[n]);
        if merges {
            self.dims[self.rank - 1] *= size;
            return Ok(());
        }
        self.dims[self.rank] = size;
        for (strides, span) in self.strides.iter_mut().zip(spans) {
            strides[self.rank] = span;
        }
        self.rank += 1;
        Ok(())
    }

    /// The dimensions that are left, outermost first; at least one.
    #[inline]
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// The strides of operand `n` in elements, `0` where it repeats.
    #[inline]
    pub fn strides(&self, n: usize) -> &[usize] {
        &self.strides[n][..self.rank]
    }

    /// Elements of the result; `0` if any dimension is empty.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Size of the innermost dimension: the length of a row.
    #[inline]
    pub fn inner(&self) -> usize {
        self.dims[self.rank - 1]
    }

    /// Whether operand `n` has the result's shape, so that its offsets are the result's.
    pub fn is_dense(&self, n: usize) -> bool {
        self.strides(n).iter().zip(self.dims()).all(|(&s, &d)| s != 0 || d == 1)
    }

    /// After how many elements of the result operand `n` starts over: all of them, unless it repeats over
    /// the outermost dimensions.
    pub fn period(&self, n: usize) -> usize {
        let outer = self.strides(n).iter().take_while(|&&s| s == 0).count();
        self.dims()[outer..].iter().product()
    }

    /// Whether operand `n` is a single element.
    pub fn is_scalar(&self, n: usize) -> bool {
        self.strides(n).iter().all(|&s| s == 0)
    }
}

fn broadcast_size<const N: usize>(sizes: [i64; N]) -> Option<usize> {
    let size = sizes.into_iter().find(|&s| s != 1).unwrap_or(1);
    let fits = sizes.into_iter().all(|s| s == 1 || s == size);
    usize::try_from(size).ok().filter(|_| fits)
}

#[cold]
fn mismatch<const N: usize>(shapes: [&[i64]; N], axis: usize) -> Error {
    Error::invalid(format!(
        "shapes {shapes:?} do not broadcast: in dimension {axis} of the result the sizes must be equal or 1, \
         and none negative"
    ))
}

/// Walks the rows (all dimensions but the innermost) of a [`Plan`] in row-major order, keeping the offset
/// of each operand's row. A plan without elements has no rows to walk.
#[derive(Clone, Debug)]
pub struct Odometer<'a, const N: usize> {
    plan: &'a Plan<N>,
    index: [usize; MAX_DIMS],
    offsets: [usize; N],
}

impl<'a, const N: usize> Odometer<'a, N> {
    /// Stands at row `row`. Rows wrap around after the last.
    pub fn at(plan: &'a Plan<N>, row: usize) -> Odometer<'a, N> {
        let mut it = Odometer { plan, index: [0; MAX_DIMS], offsets: [0; N] };
        let mut rest = row;
        for axis in (0..plan.rank - 1).rev() {
            let dim = plan.dims[axis].max(1);
            it.index[axis] = rest % dim;
            rest /= dim;
            for n in 0..N {
                it.offsets[n] += it.index[axis] * plan.strides[n][axis];
            }
        }
        it
    }

    /// For each operand the offset, in elements, of the first element of its row.
    #[inline]
    pub fn offsets(&self) -> [usize; N] {
        self.offsets
    }

    /// How many rows from here on, at least this one, are equally spaced in every operand: as far apart as the
    /// strides of the second innermost dimension say.
    #[inline]
    pub fn rows_left(&self) -> usize {
        match self.plan.rank {
            0 | 1 => 1,
            rank => self.plan.dims[rank - 2] - self.index[rank - 2],
        }
    }

    /// Steps `rows` rows on; at least 1 and at most [`Self::rows_left`].
    #[inline]
    pub fn advance_by(&mut self, rows: usize) {
        if rows > 1 {
            let axis = self.plan.rank - 2;
            self.index[axis] += rows - 1;
            for n in 0..N {
                self.offsets[n] += self.plan.strides[n][axis] * (rows - 1);
            }
        }
        self.advance();
    }

    /// Steps to the next row.
    #[inline]
    pub fn advance(&mut self) {
        for axis in (0..self.plan.rank - 1).rev() {
            self.index[axis] += 1;
            for n in 0..N {
                self.offsets[n] += self.plan.strides[n][axis];
            }
            if self.index[axis] < self.plan.dims[axis] {
                return;
            }
            self.index[axis] = 0;
            for n in 0..N {
                self.offsets[n] -= self.plan.strides[n][axis] * self.plan.dims[axis];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan(a: &[i64], b: &[i64]) -> Plan<2> {
        Plan::new([a, b]).unwrap()
    }

    fn check(a: &[i64], b: &[i64], dims: &[usize], sa: &[usize], sb: &[usize]) {
        let p = plan(a, b);
        assert_eq!((p.dims(), p.strides(0), p.strides(1)), (dims, sa, sb), "{a:?} with {b:?}");
    }

    #[test]
    fn merges_and_drops_dimensions() {
        check(&[2, 5, 10, 5], &[5, 1, 5, 10, 1], &[5, 2, 50, 5], &[0, 250, 5, 1], &[50, 0, 1, 0]);
        check(&[10, 5, 1, 5], &[5], &[50, 5], &[5, 1], &[0, 1]);
        check(&[2, 5, 10, 5], &[1], &[500], &[1], &[0]);
        check(&[1, 1], &[1, 1, 1], &[1], &[0], &[0]);
        check(&[], &[], &[1], &[0], &[0]);
        check(&[3, 1], &[1, 4], &[3, 4], &[1, 0], &[0, 1]);
        let p = plan(&[7, 9], &[7, 9]);
        assert!(p.is_dense(0) && p.is_dense(1) && !p.is_scalar(0) && p.inner() == 63);
        let p = plan(&[7, 9], &[1, 1]);
        assert!(p.is_dense(0) && p.is_scalar(1) && !p.is_dense(1));
        let p = plan(&[1], &[1]);
        assert!(p.is_dense(0) && p.is_scalar(0) && p.count() == 1);
        let p = plan(&[2, 3, 1, 5], &[3, 4, 1]);
        assert_eq!((p.period(0), p.period(1)), (120, 60));
        assert_eq!(plan(&[7, 9], &[1]).period(1), 1);
    }

    #[test]
    fn empty_is_a_shape_like_any_other() {
        assert_eq!(plan(&[0], &[1]).count(), 0);
        assert_eq!(plan(&[3, 0, 2], &[2]).count(), 0);
        // The operand of the result's shape is dense, and no scalar.
        let p = plan(&[3, 0], &[3, 1]);
        assert_eq!((p.dims(), p.strides(0), p.strides(1)), (&[3, 0][..], &[1, 1][..], &[1, 0][..]));
        assert!(p.is_dense(0) && !p.is_dense(1) && !p.is_scalar(0));
        assert_eq!(Plan::new([&[0i64][..], &[2]]).unwrap_err().code(), ep_core::Code::InvalidArgument);
    }

    #[test]
    fn bad_shapes_are_refused() {
        for (a, b) in [
            (&[2i64, 3][..], &[2i64][..]),
            (&[-1], &[1]),
            (&[-2], &[-2]),
            (&[1; 9], &[1]),
            (&[i64::MAX, 2], &[1]),
            (&[1 << 32, 1, 0], &[1, 1 << 32, 1]),
        ] {
            let e = Plan::new([a, b]).unwrap_err();
            assert_eq!(e.code(), ep_core::Code::InvalidArgument, "{e}");
        }
    }

    /// Three operands over one result shape, each repeating over a random subset of the dimensions.
    fn shapes() -> impl Strategy<Value = (Vec<i64>, [Vec<i64>; 3])> {
        let dims = prop::collection::vec((1i64..4, any::<[bool; 3]>()), 0..=MAX_DIMS);
        dims.prop_map(|dims| {
            let operand = |n: usize| dims.iter().map(|&(d, keep)| if keep[n] { d } else { 1 }).collect();
            let operands: [Vec<i64>; 3] = std::array::from_fn(operand);
            let result = (0..dims.len()).map(|i| operands.iter().map(|o| o[i]).max().unwrap()).collect();
            (result, operands)
        })
    }

    proptest! {
        #[test]
        fn odometer_agrees_with_index_arithmetic((result, operands) in shapes(), start in 0usize..7) {
            let plan = Plan::new([&operands[0][..], &operands[1], &operands[2]]).unwrap();
            let count: i64 = result.iter().product();
            prop_assert_eq!(plan.count(), count as usize);
            let rows = plan.count() / plan.inner();
            let start = start % rows;
            let mut odometer = Odometer::at(&plan, start);
            for row in start..rows {
                for (n, shape) in operands.iter().enumerate() {
                    for col in [0, plan.inner() - 1] {
                        let mut flat = (row * plan.inner() + col) as i64;
                        let (mut want, mut stride) = (0, 1);
                        for (axis, &dim) in result.iter().enumerate().rev() {
                            let i = flat % dim;
                            flat /= dim;
                            if shape[axis] != 1 {
                                want += i * stride;
                                stride *= dim;
                            }
                        }
                        let inner_stride = plan.strides(n)[plan.dims().len() - 1];
                        prop_assert_eq!(odometer.offsets()[n] + col * inner_stride, want as usize);
                    }
                }
                odometer.advance();
            }
            prop_assert_eq!(odometer.offsets(), [0; 3]);
        }

        #[test]
        fn several_rows_are_as_many_single_ones((_, operands) in shapes(), steps in prop::collection::vec(1usize..5, 1..20)) {
            let plan = Plan::new([&operands[0][..], &operands[1], &operands[2]]).unwrap();
            let (mut fast, mut slow) = (Odometer::at(&plan, 0), Odometer::at(&plan, 0));
            for step in steps {
                let step = step.min(fast.rows_left());
                fast.advance_by(step);
                (0..step).for_each(|_| slow.advance());
                prop_assert_eq!((fast.offsets(), fast.rows_left()), (slow.offsets(), slow.rows_left()));
            }
        }
    }
}

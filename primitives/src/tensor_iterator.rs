//! Walking several strided operands together.
//!
//! A [`TensorIterator`] takes one shape and the byte strides of each operand, and reduces them to what a kernel
//! has to walk: dimensions of size one go, the rest are ordered so that memory is walked forwards, and
//! neighbours that every operand steps through evenly become one. [`TensorIterator::for_each`] hands out the
//! result as two-dimensional pieces, which a kernel covers with two plain loops; any linear sub-range can be
//! asked for, so threads split the elements and not the dimensions. [`DimCounter`] finds those pieces.
//!
//! A kernel that transposes a matrix of f32, here in two parts as two threads would have them:
//!
//! ```
//! use primitives::tensor_iterator::TensorIterator;
//!
//! // dst[i][j] = src[j][i] of 2 rows and 3 columns; strides are in bytes, and the operand that is written is the first.
//! let (src, mut dst) = ([1f32, 2.0, 3.0, 4.0, 5.0, 6.0], [0f32; 6]);
//! let it = TensorIterator::broadcast([(&[2, 3], &[12, 4]), (&[2, 3], &[4, 8])])?;
//! for part in [0..2, 2..it.count()] {
//!     it.for_each(part, |start, [inner, outer], [cols, rows]| {
//!         for (row, col) in (0..rows as isize).flat_map(|row| (0..cols as isize).map(move |col| (row, col))) {
//!             let [to, from] = [0, 1].map(|n| (start[n] + row * outer[n] + col * inner[n]) as usize / 4);
//!             dst[to] = src[from];
//!         }
//!     });
//! }
//! assert_eq!(dst, [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
//! # Ok::<(), ep_core::Error>(())
//! ```

use crate::broadcast::MAX_DIMS;
use ep_core::{Error, Result};
use std::ops::Range;

/// One shape and `N` operands with a byte stride for each of its dimensions.
///
/// Dimensions are kept innermost first. There is at least one; a single element has one dimension of size 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorIterator<const N: usize> {
    rank: usize,
    sizes: [usize; MAX_DIMS],
    strides: [[isize; N]; MAX_DIMS],
    starts: [isize; N],
    count: usize,
}

impl<const N: usize> TensorIterator<N> {
    /// Simplifies the walk over a shape, given outermost first as everywhere.
    ///
    /// - A dimension in which the first operand that moves at all moves backwards is walked from its other
    ///   end; [`TensorIterator::starts`] then is not zero.
    /// - Dimensions are ordered by the strides of operand 0, smallest innermost; where one of two strides is
    ///   zero the next operand decides, and between equal strides the smaller dimension is the inner one.
    /// - Neighbours merge where for every operand the outer stride is the inner one times the inner size.
    ///
    /// Operand 0 should be the one written. The order of elements is that of the result, not of the shape.
    ///
    /// # Errors
    /// `InvalidArgument` for more than [`MAX_DIMS`] dimensions, a number of strides that is not the number of
    /// dimensions, more elements than `isize::MAX`, and byte offsets that an `isize` cannot hold.
    pub fn new(dims: &[usize], strides: [&[isize]; N]) -> Result<Self> {
        let mut it = Self::checked(dims, strides)?;
        it.flip();
        it.reorder();
        it.coalesce();
        Ok(it)
    }

    /// The same with operands of shapes of their own, which are broadcast: aligned at the last dimension, a
    /// missing dimension or one of size 1 repeats. Each operand is a shape and as many byte strides; the
    /// stride of a dimension that repeats is not used.
    ///
    /// # Errors
    /// Those of [`TensorIterator::new`]; `InvalidArgument` for sizes that neither agree nor are 1.
    pub fn broadcast(operands: [(&[usize], &[isize]); N]) -> Result<Self> {
        let rank = operands.iter().map(|(dims, _)| dims.len()).max().unwrap_or(0);
        if rank > MAX_DIMS {
            return Err(too_many_dims(rank));
        }
        let mut shape = [1; MAX_DIMS];
        let mut strides = [[0; MAX_DIMS]; N];
        for (n, (dims, steps)) in operands.into_iter().enumerate() {
            if dims.len() != steps.len() {
                return Err(strides_missing(n, dims.len(), steps.len()));
            }
            let skip = rank - dims.len();
            for (i, (&dim, &step)) in dims.iter().zip(steps).enumerate() {
                let size = &mut shape[skip + i];
                if dim == 1 {
                    continue;
                }
                if *size != 1 && *size != dim {
                    return Err(Error::invalid(format!(
                        "shapes {:?} do not broadcast: in dimension {} of the result the sizes must be equal or 1",
                        operands.map(|(dims, _)| dims),
                        skip + i
                    )));
                }
                *size = dim;
                strides[n][skip + i] = step;
            }
        }
        Self::new(&shape[..rank], strides.each_ref().map(|s| &s[..rank]))
    }

    /// The shape with its strides turned around, without dimensions of size one.
    fn checked(dims: &[usize], strides: [&[isize]; N]) -> Result<Self> {
        if dims.len() > MAX_DIMS {
            return Err(too_many_dims(dims.len()));
        }
        if let Some((n, steps)) = strides.iter().enumerate().find(|(_, s)| s.len() != dims.len()) {
            return Err(strides_missing(n, dims.len(), steps.len()));
        }
        let too_big = || {
            Error::invalid(format!(
                "dimensions {dims:?} with byte strides {strides:?} reach further than an address space"
            ))
        };
        let mut it =
            Self { rank: 0, sizes: [1; MAX_DIMS], strides: [[0; N]; MAX_DIMS], starts: [0; N], count: 1 };
        let mut reach = [0isize; N];
        // An empty dimension must not hide that others overflow.
        let mut full_count = 1isize;
        for (axis, &size) in dims.iter().enumerate().rev() {
            let last = isize::try_from(size.saturating_sub(1)).map_err(|_| too_big())?;
            full_count = full_count
                .checked_mul(last.max(0).checked_add(1).ok_or_else(too_big)?)
                .ok_or_else(too_big)?;
            if size == 1 {
                continue;
            }
            it.sizes[it.rank] = size;
            for n in 0..N {
                let stride = strides[n][axis];
                let extent = stride.checked_abs().and_then(|s| s.checked_mul(last)).ok_or_else(too_big)?;
                reach[n] = reach[n].checked_add(extent).ok_or_else(too_big)?;
                it.strides[it.rank][n] = stride;
            }
            it.rank += 1;
        }
        it.count = if dims.contains(&0) { 0 } else { full_count as usize };
        if it.count == 0 {
            it.rank = 1;
            it.sizes[0] = 0;
        }
        it.rank = it.rank.max(1);
        Ok(it)
    }

    fn flip(&mut self) {
        for (size, strides) in self.sizes[..self.rank].iter().zip(&mut self.strides) {
            let backwards = strides.iter().find(|&&s| s != 0).is_some_and(|&s| s < 0);
            if backwards && *size > 1 {
                for (start, stride) in self.starts.iter_mut().zip(strides) {
                    *start += *stride * (*size - 1) as isize;
                    *stride = -*stride;
                }
            }
        }
    }

    fn reorder(&mut self) {
        for mut i in 1..self.rank {
            for j in (0..i).rev() {
                match self.belongs_inside(i, j) {
                    Some(true) => {
                        self.sizes.swap(i, j);
                        self.strides.swap(i, j);
                        i = j;
                    }
                    Some(false) => break,
                    None => {}
                }
            }
        }
    }

    /// Whether dimension `a` should be inside dimension `b`; `None` if it makes no difference.
    fn belongs_inside(&self, a: usize, b: usize) -> Option<bool> {
        let pairs = self.strides[a].iter().zip(&self.strides[b]);
        for (x, y) in pairs.map(|(x, y)| (x.unsigned_abs(), y.unsigned_abs())) {
            if x == 0 || y == 0 {
                continue;
            }
            if x != y {
                return Some(x < y);
            }
            if self.sizes[a] < self.sizes[b] {
                return Some(true);
            }
        }
        None
    }

    fn coalesce(&mut self) {
        let mut last = 0;
        for dim in 1..self.rank {
            let size = self.sizes[last];
            let even =
                |n: usize| self.strides[last][n].checked_mul(size as isize) == Some(self.strides[dim][n]);
            if (0..N).all(even) {
                self.sizes[last] *= self.sizes[dim];
            } else {
                last += 1;
                self.sizes[last] = self.sizes[dim];
                self.strides[last] = self.strides[dim];
            }
        }
        self.rank = last + 1;
        self.sizes[self.rank..].fill(1);
        self.strides[self.rank..].fill([0; N]);
    }

    /// The sizes that are left, innermost first; at least one.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes[..self.rank]
    }

    /// The byte strides of every operand, for each of [`TensorIterator::sizes`].
    pub fn strides(&self) -> &[[isize; N]] {
        &self.strides[..self.rank]
    }

    /// For each operand the bytes from its element at index 0 to where the walk begins.
    pub fn starts(&self) -> [isize; N] {
        self.starts
    }

    /// How many elements there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether operand `n` is walked without gaps from its start: element `i` lies `i * element_bytes` behind it.
    pub fn is_dense(&self, n: usize, element_bytes: usize) -> bool {
        let mut stride = element_bytes;
        self.sizes().iter().zip(self.strides()).all(|(&size, strides)| {
            let fits = size <= 1 || strides[n] == stride as isize;
            stride = stride.saturating_mul(size);
            fits
        })
    }

    /// Covers the elements `range` in order with two-dimensional pieces. For each, `piece` gets the byte
    /// offset of its first element in every operand (from the element at index 0), and the strides and sizes
    /// of its inner and outer dimension.
    ///
    /// A range that ends behind [`TensorIterator::count`] is cut off there.
    #[inline]
    pub fn for_each(
        &self,
        range: Range<usize>,
        mut piece: impl FnMut([isize; N], &[[isize; N]; 2], [usize; 2]),
    ) {
        let strides = [self.strides[0], self.strides[1]];
        let mut counter = DimCounter::new(&self.sizes[..self.rank.max(2)], range);
        while !counter.is_done() {
            let mut offsets = self.starts;
            for (&value, strides) in counter.values().iter().zip(&self.strides) {
                for (offset, stride) in offsets.iter_mut().zip(strides) {
                    *offset += value as isize * stride;
                }
            }
            let step = counter.max_2d_step();
            piece(offsets, &strides, step);
            counter.advance(step);
        }
    }
}

#[cold]
fn too_many_dims(rank: usize) -> Error {
    Error::invalid(format!("{rank} dimensions were given; the most is {MAX_DIMS}"))
}

#[cold]
fn strides_missing(operand: usize, dims: usize, strides: usize) -> Error {
    Error::invalid(format!(
        "operand {operand} has {strides} strides for {dims} dimensions; give one for each"
    ))
}

/// Counts through a range of the elements of a shape, whose first dimension is the innermost, in steps of at
/// most two dimensions.
#[derive(Clone, Debug)]
pub struct DimCounter<'a> {
    sizes: &'a [usize],
    values: [usize; MAX_DIMS],
    offset: usize,
    end: usize,
}

impl<'a> DimCounter<'a> {
    /// Stands at the element `range.start`. Of more than [`MAX_DIMS`] sizes the first are used. A range that ends behind
    /// the last element of the shape is cut off there; a shape with a size of 0 has no element.
    pub fn new(sizes: &'a [usize], range: Range<usize>) -> Self {
        let sizes = &sizes[..sizes.len().min(MAX_DIMS)];
        let count = sizes.iter().fold(1usize, |n, &size| n.saturating_mul(size));
        let mut values = [0; MAX_DIMS];
        let mut rest = range.start;
        for (value, &size) in values.iter_mut().zip(sizes) {
            if rest == 0 || size == 0 {
                break;
            }
            *value = rest % size;
            rest /= size;
        }
        Self { sizes, values, offset: range.start, end: range.end.min(count) }
    }

    /// The coordinates of the next element, innermost first.
    pub fn values(&self) -> &[usize] {
        &self.values[..self.sizes.len()]
    }

    /// The linear index of the next element.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Whether the range is used up.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.offset >= self.end
    }

    /// The largest piece that begins at the next element, is a rectangle in the two innermost dimensions and
    /// lies in the range: what is left of the inner dimension or, if that is all of it, as many whole ones as
    /// the next dimension has left.
    #[inline]
    pub fn max_2d_step(&self) -> [usize; 2] {
        let left = self.end.saturating_sub(self.offset);
        let Some(&inner) = self.sizes.first() else { return [left.min(1), 1] };
        let step = (inner - self.values[0]).min(left);
        match self.sizes.get(1) {
            Some(&outer) if step == inner && step > 0 => [step, (outer - self.values[1]).min(left / inner)],
            _ => [step, 1],
        }
    }

    /// Moves behind a piece that [`DimCounter::max_2d_step`] gave.
    #[inline]
    pub fn advance(&mut self, step: [usize; 2]) {
        self.offset += step[0] * step[1];
        // More than one row means that rows are whole: the inner coordinate stays zero.
        let (first, mut carry) = if step[1] == 1 { (0, step[0]) } else { (1, step[1]) };
        for (value, &size) in self.values.iter_mut().zip(self.sizes).skip(first) {
            *value += carry;
            if *value < size {
                return;
            }
            *value -= size;
            carry = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;
    use proptest::prelude::*;

    type Iter<const N: usize> = TensorIterator<N>;

    /// A channels-last copy: [1, 64, 5, 4] written in NHWC order from NCHW.
    #[test]
    fn channels_last_copy_becomes_a_matrix() {
        let out: [isize; 4] = [5120, 4, 1024, 256];
        let input: [isize; 4] = [5120, 80, 16, 4];
        let it = Iter::new(&[1, 64, 5, 4], [&out, &input]).unwrap();
        assert_eq!(it.sizes(), [64, 20]);
        assert_eq!(it.strides(), [[4, 80], [256, 4]]);
        assert_eq!((it.count(), it.starts()), (1280, [0, 0]));
        let mut pieces = Vec::new();
        it.for_each(0..1280, |at, strides, sizes| pieces.push((at, *strides, sizes)));
        assert_eq!(pieces, [([0, 0], [[4, 80], [256, 4]], [64, 20])]);
    }

    #[test]
    fn counters_of_a_sub_range() {
        let sizes = [64, 2000, 10];
        let mut counter = DimCounter::new(&sizes, 1_066_670..1_280_000);
        let strides = [4isize, 256, 512_000];
        let byte: isize = counter.values().iter().zip(strides).map(|(&v, s)| v as isize * s).sum();
        assert_eq!(byte, 4_266_680);
        let mut steps = Vec::new();
        let mut seen = vec![(counter.offset(), counter.values().to_vec())];
        while !counter.is_done() {
            let step = counter.max_2d_step();
            steps.push(step);
            counter.advance(step);
            seen.push((counter.offset(), counter.values().to_vec()));
        }
        assert_eq!(steps, [[18, 1], [64, 1333], [64, 2000]]);
        let want = [
            (1_066_670, vec![46, 666, 8]),
            (1_066_688, vec![0, 667, 8]),
            (1_152_000, vec![0, 0, 9]),
            (1_280_000, vec![0, 0, 0]),
        ];
        assert_eq!(seen, want);
    }

    #[test]
    fn a_range_may_end_anywhere() {
        let steps = |range: Range<usize>| {
            let mut counter = DimCounter::new(&[3, 4], range);
            let mut steps = Vec::new();
            while !counter.is_done() {
                steps.push(counter.max_2d_step());
                counter.advance(counter.max_2d_step());
            }
            steps
        };
        assert_eq!(steps(0..12), [[3, 4]]);
        assert_eq!(steps(1..11), [[2, 1], [3, 2], [2, 1]]);
        assert_eq!(steps(4..5), [[1, 1]]);
        assert!(steps(5..5).is_empty());
    }

    #[test]
    fn a_counter_ends_with_its_shape() {
        let pieces = |sizes: &[usize], range: Range<usize>| {
            let mut counter = DimCounter::new(sizes, range);
            let mut pieces = Vec::new();
            while !counter.is_done() && pieces.len() < 9 {
                pieces.push(counter.max_2d_step());
                counter.advance(counter.max_2d_step());
            }
            pieces
        };
        for sizes in [&[0][..], &[0, 3], &[3, 0], &[3, 4, 0], &[usize::MAX, usize::MAX, 0]] {
            assert!(pieces(sizes, 0..5).is_empty() && pieces(sizes, 2..usize::MAX).is_empty(), "{sizes:?}");
        }
        assert_eq!(pieces(&[3, 4], 10..usize::MAX), [[2, 1]]);
        assert!(pieces(&[3, 4], 12..13).is_empty() && pieces(&[3, 4], 99..usize::MAX).is_empty());
        assert_eq!((pieces(&[], 0..9), pieces(&[], 1..9)), (vec![[1, 1]], vec![]));
        // Sizes whose product no usize holds: as far as one counts.
        let huge = [1 << 40, 1 << 40, 7];
        assert_eq!(pieces(&huge, usize::MAX - 5..usize::MAX), [[5, 1]]);
        assert_eq!(pieces(&[1; 9], 0..9), [[1, 1]]);
    }

    #[test]
    fn shapes_of_their_own_are_broadcast() {
        // {2, 1, 3} and {4, 3} give {2, 4, 3}.
        let it = Iter::broadcast([
            (&[2, 4, 3][..], &[48isize, 12, 4][..]),
            (&[2, 1, 3], &[12, 12, 4]),
            (&[4, 3], &[12, 4]),
        ]);
        let it = it.unwrap();
        assert_eq!((it.sizes(), it.count()), (&[3, 4, 2][..], 24));
        assert_eq!(it.strides(), [[4, 4, 4], [12, 0, 12], [48, 12, 0]]);
        let e = Iter::broadcast([(&[2][..], &[4isize][..]), (&[3], &[4])]).unwrap_err();
        assert_eq!(e.code(), Code::InvalidArgument);
    }

    #[test]
    fn reversed_scalar_and_empty() {
        let it = Iter::new(&[5, 6], [&[-24isize, -4]]).unwrap();
        assert_eq!((it.sizes(), it.strides(), it.starts()), (&[30][..], &[[4]][..], [-116]));
        // What operand 0 does decides; the other walks backwards.
        let it = Iter::new(&[5], [&[4isize][..], &[-8]]).unwrap();
        assert_eq!((it.strides(), it.starts()), (&[[4, -8]][..], [0, 0]));
        let it = Iter::new(&[5], [&[0isize][..], &[-8]]).unwrap();
        assert_eq!((it.strides(), it.starts()), (&[[0, 8]][..], [0, -32]));
        let it = Iter::<2>::new(&[], [&[], &[]]).unwrap();
        assert_eq!((it.sizes(), it.count()), (&[1][..], 1));
        let it = Iter::new(&[3, 0], [&[4isize, 4]]).unwrap();
        assert_eq!((it.sizes(), it.count()), (&[0][..], 0));
        it.for_each(0..9, |_, _, _| panic!("no elements"));
    }

    #[test]
    fn density() {
        let it = Iter::new(&[4, 6], [&[24isize, 4][..], &[4, 16]]).unwrap();
        assert!(it.is_dense(0, 4) && !it.is_dense(1, 4) && !it.is_dense(0, 2));
        let it = Iter::new(&[4, 6], [&[32isize, 4]]).unwrap();
        assert!(!it.is_dense(0, 4));
    }

    #[test]
    fn refusals() {
        let bad = [
            Iter::new(&[1; 9], [&[0isize; 9]]).unwrap_err(),
            Iter::new(&[2, 3], [&[4isize]]).unwrap_err(),
            Iter::new(&[usize::MAX, 2], [&[0isize, 0]]).unwrap_err(),
            Iter::new(&[1 << 40, 1 << 40], [&[0isize, 0]]).unwrap_err(),
            Iter::new(&[0, 1 << 40, 1 << 40], [&[0isize, 0, 0]]).unwrap_err(),
            Iter::new(&[3], [&[isize::MIN]]).unwrap_err(),
            Iter::new(&[3, 3], [&[isize::MAX / 3, isize::MAX / 3]]).unwrap_err(),
            Iter::broadcast([(&[1; 9][..], &[0isize; 9][..])]).unwrap_err(),
            Iter::broadcast([(&[1][..], &[][..])]).unwrap_err(),
        ];
        assert!(bad.iter().all(|e| e.code() == Code::InvalidArgument), "{bad:?}");
    }

    /// Offsets of all elements in row-major order of the shape, by index arithmetic.
    fn naive<const N: usize>(dims: &[usize], strides: [&[isize]; N]) -> Vec<[isize; N]> {
        (0..dims.iter().product())
            .map(|element: usize| {
                let (mut rest, mut offsets) = (element, [0; N]);
                for (axis, &dim) in dims.iter().enumerate().rev() {
                    for (offset, s) in offsets.iter_mut().zip(strides) {
                        *offset += (rest % dim) as isize * s[axis];
                    }
                    rest /= dim;
                }
                offsets
            })
            .collect()
    }

    fn offsets<const N: usize>(it: &TensorIterator<N>, range: Range<usize>) -> Vec<[isize; N]> {
        let mut all = Vec::new();
        it.for_each(range, |at, strides, sizes| {
            for outer in 0..sizes[1] {
                for inner in 0..sizes[0] {
                    let along = |n: usize| inner as isize * strides[0][n] + outer as isize * strides[1][n];
                    all.push(std::array::from_fn(|n| at[n] + along(n)));
                }
            }
        });
        all
    }

    proptest! {
        #[test]
        fn visits_every_element_once(
            dims in prop::collection::vec((0usize..5, -40isize..40, prop::sample::select(vec![0isize, 4, 8, -4, 12])), 0..=6),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        ) {
            let sizes: Vec<usize> = dims.iter().map(|d| d.0).collect();
            let (a, b): (Vec<isize>, Vec<isize>) = dims.iter().map(|d| (d.1, d.2)).unzip();
            let it = Iter::new(&sizes, [&a, &b]).unwrap();
            let mut want = naive(&sizes, [&a, &b]);
            prop_assert_eq!(it.count(), want.len());
            let whole = offsets(&it, 0..it.count());
            // Any split into ranges gives the same elements in the same order.
            let mut bounds: Vec<usize> = cuts.iter().map(|c| c.index(it.count() + 1)).collect();
            bounds.extend([0, it.count()]);
            bounds.sort_unstable();
            let parts: Vec<_> = bounds.windows(2).flat_map(|w| offsets(&it, w[0]..w[1])).collect();
            prop_assert_eq!(&parts, &whole);
            let mut got = whole;
            got.sort_unstable();
            want.sort_unstable();
            prop_assert_eq!(got, want);
        }

        /// A dense operand is walked in address order however its dimensions are permuted.
        #[test]
        fn dense_operands_are_walked_forwards(
            sizes in prop::collection::vec(1usize..5, 0..=8),
            order in Just((0..8usize).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let order: Vec<usize> = order.into_iter().filter(|&a| a < sizes.len()).collect();
            let mut strides = vec![0isize; sizes.len()];
            let mut stride = 4;
            for &axis in &order {
                strides[axis] = stride;
                stride *= sizes[axis] as isize;
            }
            let it = Iter::new(&sizes, [&strides]).unwrap();
            prop_assert_eq!(it.sizes(), [sizes.iter().product::<usize>()]);
            prop_assert!(it.is_dense(0, 4));
        }

        #[test]
        fn broadcasting_is_a_zero_stride(
            dims in prop::collection::vec((1usize..4, any::<[bool; 2]>()), 0..=6), drop in 0usize..3,
        ) {
            let whole: Vec<usize> = dims.iter().map(|d| d.0).collect();
            let operand = |n: usize, drop: usize| {
                let shape: Vec<usize> = dims.iter().map(|d| if d.1[n] { d.0 } else { 1 }).skip(drop).collect();
                let strides: Vec<isize> = (0..shape.len()).map(|i| shape[i + 1..].iter().product::<usize>() as isize * 4).collect();
                (shape, strides)
            };
            let (full, a, b) = ((whole.clone(), vec![0; whole.len()]), operand(0, 0), operand(1, drop.min(dims.len())));
            let it = Iter::broadcast([(&full.0, &full.1), (&a.0, &a.1), (&b.0, &b.1)]).unwrap();
            let expand = |(shape, strides): &(Vec<usize>, Vec<isize>)| {
                let mut all = vec![0; whole.len() - shape.len()];
                all.extend(shape.iter().zip(strides).map(|(&d, &s)| if d == 1 { 0 } else { s }));
                all
            };
            let mut want = naive(&whole, [&full.1, &expand(&a), &expand(&b)]);
            let mut got = offsets(&it, 0..it.count());
            got.sort_unstable();
            want.sort_unstable();
            prop_assert_eq!(got, want);
        }
    }
}

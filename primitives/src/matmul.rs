//! The geometry of matrix products: dimensions of batches as loops with a step for each operand, and which of them are
//! part of a larger matrix.
//!
//! ```
//! use primitives::matmul::Problem;
//!
//! // 5 batches of [3, 4] times one [4, 2]: a single product of 15 rows.
//! let problem = Problem::broadcast([&[5, 3, 4], &[4, 2], &[5, 3, 2]], [false, false]).unwrap();
//! assert_eq!((problem.m, problem.n, problem.k, problem.outer.count()), (15, 2, 4, 1));
//! ```

use ep_core::op::MAX_DIMS;

/// A dimension of a batch. Steps are in elements; 0 where all of the loop share a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Loop {
    /// How often it goes round.
    pub length: u64,
    /// The step of a.
    pub a: u64,
    /// The step of b.
    pub b: u64,
    /// The step of c.
    pub c: u64,
}

/// Dimensions of a batch at most: those of rank 8, without the matrix.
pub const MAX_LOOPS: usize = MAX_DIMS - 2;

/// Loops, innermost first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Loops {
    all: [Loop; MAX_LOOPS],
    len: usize,
}

impl Loops {
    /// All of them.
    pub fn as_slice(&self) -> &[Loop] {
        &self.all[..self.len]
    }

    /// The same with the outermost first and unused places at the end, as kernels take it.
    pub fn outermost_first(&self) -> [Loop; MAX_LOOPS] {
        let mut reversed = [Loop::default(); MAX_LOOPS];
        for (to, from) in reversed.iter_mut().zip(self.as_slice().iter().rev()) {
            *to = *from;
        }
        reversed
    }

    /// How often they go round. Loops over matrices that are there do not overflow.
    pub fn count(&self) -> u64 {
        self.as_slice().iter().fold(1, |n, l| n.saturating_mul(l.length))
    }

    /// Adds a loop around the others, or makes the outermost longer where the new one continues it.
    fn surround(&mut self, new: Loop) {
        if let Some(old) = self.all[..self.len].last_mut() {
            let after = |step: u64| step.wrapping_mul(old.length);
            if (after(old.a), after(old.b), after(old.c)) == (new.a, new.b, new.c) {
                old.length = old.length.wrapping_mul(new.length);
                return;
            }
        }
        assert!(self.len < MAX_LOOPS, "a batch of matrices has at most {MAX_LOOPS} loops");
        self.all[self.len] = new;
        self.len += 1;
    }

    /// Takes out the innermost loop that `fits`.
    pub fn take(&mut self, fits: impl Fn(&Loop) -> bool) -> Option<Loop> {
        let at = self.as_slice().iter().position(fits)?;
        let found = self.all[at];
        self.all.copy_within(at + 1..self.len, at);
        self.len -= 1;
        self.all[self.len] = Loop::default();
        Some(found)
    }

    /// How far a, b and c have gone at a turn, in elements.
    ///
    /// # Panics
    /// Where a loop is empty: there is no turn then.
    pub fn offset(&self, turn: u64) -> [u64; 3] {
        let (mut rest, mut at) = (turn, [0; 3]);
        for l in self.as_slice() {
            let turn = rest % l.length;
            rest /= l.length;
            for (at, step) in at.iter_mut().zip([l.a, l.b, l.c]) {
                *at += turn * step;
            }
        }
        at
    }

    /// [`Loops::offset`] of each turn, in order.
    pub fn offsets(&self) -> impl Iterator<Item = [u64; 3]> {
        let loops = *self;
        (0..self.count()).map(move |turn| loops.offset(turn))
    }
}

/// Where the elements of a factor op(x) are: steps from row to row and from column to column, of which one is 1. The step
/// of a dimension of one says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Factor {
    /// From row to row.
    pub row: u64,
    /// From column to column.
    pub col: u64,
}

/// Products of matrices: `outer` are those with results of their own, `inner` those that are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Problem {
    /// Rows of op(a) and c.
    pub m: u64,
    /// Columns of op(b) and c.
    pub n: u64,
    /// Columns of op(a), rows of op(b).
    pub k: u64,
    /// How op(a) is stored.
    pub a: Factor,
    /// How op(b) is stored.
    pub b: Factor,
    /// Loops over results.
    pub outer: Loops,
    /// Loops over what is summed into one result.
    pub inner: Loops,
}

impl Problem {
    /// One product of dense matrices. `transposed` says how a and b are stored.
    pub fn one([m, n, k]: [u64; 3], transposed: [bool; 2]) -> Problem {
        let factor = |rows, cols, transposed| match transposed {
            true => Factor { row: 1, col: rows },
            false => Factor { row: cols, col: 1 },
        };
        let (a, b) = (factor(m, k, transposed[0]), factor(k, n, transposed[1]));
        Problem { m, n, k, a, b, outer: Loops::default(), inner: Loops::default() }
    }

    /// A batch of them, each with operands of its own, which lie one behind the other without gaps.
    ///
    /// # Panics
    /// Where there are [`MAX_LOOPS`] loops over results that do not go on as one.
    pub fn batch(self, length: u64) -> Problem {
        let [mut a, mut b, mut c] = self.sizes();
        // An operand that a loop does not step through is there once for all of the loop.
        for l in self.outer.as_slice().iter().chain(self.inner.as_slice()) {
            for (size, step) in [(&mut a, l.a), (&mut b, l.b), (&mut c, l.c)] {
                *size = if step == 0 { *size } else { size.wrapping_mul(l.length) };
            }
        }
        let mut problem = self;
        problem.outer.surround(Loop { length, a, b, c });
        problem.folded()
    }

    /// The products of operands with these shapes as stored; none where they do not fit together.
    pub fn broadcast(dims: [&[u64]; 3], transposed: [bool; 2]) -> Option<Problem> {
        let matrix = |dims: &[u64], transposed: bool| match *dims {
            [.., rows, cols] if dims.len() <= MAX_DIMS => {
                Some(if transposed { (cols, rows) } else { (rows, cols) })
            }
            _ => None,
        };
        let [a_dims, b_dims, c_dims] = dims;
        let ((m, k), (k_of_b, n)) = (matrix(a_dims, transposed[0])?, matrix(b_dims, transposed[1])?);
        if matrix(c_dims, false)? != (m, n) || k != k_of_b {
            return None;
        }
        let mut problem = Problem::one([m, n, k], transposed);
        let mut steps = problem.sizes();
        let rank = dims.map(<[u64]>::len).into_iter().max()? - 2;
        for i in 0..rank {
            let lengths = dims.map(|dims| {
                let batch = dims.len() - 2;
                if i < batch { dims[batch - 1 - i] } else { 1 }
            });
            let all = match lengths {
                [a, b, _] if a == b || b == 1 => a,
                [1, b, _] => b,
                _ => return None,
            };
            let [a, b, c] = [0, 1, 2].map(|x| if lengths[x] == 1 { 0 } else { steps[x] });
            match lengths[2] {
                own if own != all && own != 1 => return None,
                _ if all == 1 => {}
                1 => problem.inner.surround(Loop { length: all, a, b, c: 0 }),
                _ => problem.outer.surround(Loop { length: all, a, b, c }),
            }
            for (step, length) in steps.iter_mut().zip(lengths) {
                // What no address space holds has an empty operand beside it, and is not stepped through.
                *step = step.wrapping_mul(length);
            }
        }
        Some(problem.folded())
    }

    /// Elements of a matrix of each operand.
    fn sizes(&self) -> [u64; 3] {
        let Problem { m, n, k, .. } = *self;
        [m.wrapping_mul(k), k.wrapping_mul(n), m.wrapping_mul(n)]
    }

    /// Whether there is no result.
    pub fn is_empty(&self) -> bool {
        self.m == 0 || self.n == 0 || self.outer.count() == 0
    }

    /// Whether results are sums of nothing.
    pub fn sums_nothing(&self) -> bool {
        self.k == 0 || self.inner.count() == 0
    }

    /// Whether positions in all operands can be counted. Where they cannot, nothing is there to multiply, and products of
    /// sizes say nothing.
    fn can_exist(&self) -> bool {
        let Problem { m, n, k, .. } = *self;
        let products = self.outer.count().saturating_mul(self.inner.count());
        [(m, k), (k, n), (m, n)].iter().all(|(rows, cols)| {
            rows.checked_mul(*cols).is_some_and(|matrix| matrix.checked_mul(products).is_some())
        })
    }

    /// The same products as fewer and larger ones: a sum over a batch is a longer depth, and a b that all share is
    /// multiplied by all rows at once, wherever matrices go on where the one before ends.
    fn folded(mut self) -> Problem {
        if self.is_empty() || self.sums_nothing() || !self.can_exist() {
            return self;
        }
        let p = &mut self;
        while let Some(l) = p.inner.take(|l| l.a == p.k * p.a.col && l.b == p.k * p.b.row) {
            p.k *= l.length;
        }
        loop {
            if let Some(l) = p.outer.take(|l| l.b == 0 && l.a == p.m * p.a.row && l.c == p.m * p.n) {
                p.m *= l.length;
            } else if let Some(l) =
                p.outer.take(|l| p.m == 1 && l.a == 0 && l.b == p.n * p.b.col && l.c == p.n)
            {
                p.n *= l.length;
            } else {
                return self;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Which elements of a and b each element of c is the sum of products of, as lists of pairs of positions.
    type Terms = BTreeMap<u64, Vec<(u64, u64)>>;

    fn terms(p: &Problem) -> Terms {
        let mut terms = Terms::new();
        for [a0, b0, c0] in p.outer.offsets() {
            for [a1, b1, _] in p.inner.offsets() {
                for (i, j) in (0..p.m).flat_map(|i| (0..p.n).map(move |j| (i, j))) {
                    let list = terms.entry(c0 + i * p.n + j).or_default();
                    list.extend(
                        (0..p.k).map(|x| {
                            (a0 + a1 + i * p.a.row + x * p.a.col, b0 + b1 + x * p.b.row + j * p.b.col)
                        }),
                    );
                }
            }
        }
        terms.values_mut().for_each(|list| list.sort_unstable());
        terms
    }

    /// The same by NumPy's rules, without loops that are merged or folded.
    fn expected(dims: [&[u64]; 3], transposed: [bool; 2]) -> Terms {
        let [(a, am), (b, bm), (c, cm)] = dims.map(|d| d.split_at(d.len() - 2));
        let rank = [a, b, c].iter().map(|d| d.len()).max().unwrap();
        let at = |dims: &[u64], i: usize| if i + dims.len() < rank { 1 } else { dims[i + dims.len() - rank] };
        let all: Vec<u64> = (0..rank).map(|i| at(a, i).max(at(b, i))).collect();
        let (m, n) = (cm[0], cm[1]);
        let k = if transposed[0] { am[0] } else { am[1] };
        let mut terms = Terms::new();
        for index in 0..all.iter().product() {
            let place = |dims: &[u64]| {
                let (mut rest, mut flat, mut scale) = (index, 0, 1);
                for i in (0..rank).rev() {
                    flat += (rest % all[i]) % at(dims, i) * scale;
                    (rest, scale) = (rest / all[i], scale * at(dims, i));
                }
                flat
            };
            let (a0, b0, c0) = (place(a) * m * k, place(b) * k * n, place(c) * m * n);
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let left = |x| if transposed[0] { x * am[1] + i } else { i * am[1] + x };
                let right = |x| if transposed[1] { j * bm[1] + x } else { x * bm[1] + j };
                let list = terms.entry(c0 + i * n + j).or_default();
                list.extend((0..k).map(|x| (a0 + left(x), b0 + right(x))));
            }
        }
        terms.values_mut().for_each(|list| list.sort_unstable());
        terms
    }

    /// Shapes of a, b and c for sizes m, n and k with batches before them.
    fn shapes(batches: [&[u64]; 3], [m, n, k]: [u64; 3], transposed: [bool; 2]) -> [Vec<u64>; 3] {
        let stored = |rows, cols, turned: bool| if turned { [cols, rows] } else { [rows, cols] };
        let matrices = [stored(m, k, transposed[0]), stored(k, n, transposed[1]), [m, n]];
        [0, 1, 2].map(|x| [batches[x], &matrices[x]].concat())
    }

    const BATCHES: [[&[u64]; 3]; 12] = [
        [&[], &[], &[]],
        [&[3], &[3], &[3]],
        [&[2, 3], &[], &[2, 3]],
        [&[], &[3], &[3]],
        [&[2, 1], &[1, 3], &[2, 3]],
        [&[3], &[3], &[]],
        [&[2, 3], &[2, 3], &[2, 1]],
        [&[2, 3], &[3], &[1, 3]],
        [&[2, 1, 2], &[3, 2], &[1, 3, 1]],
        [&[1, 2, 1, 3, 1, 2], &[1, 2, 1, 3, 1, 2], &[1, 2, 1, 3, 1, 2]],
        [&[2], &[], &[1, 1]],
        [&[2, 3, 2], &[1, 3, 1], &[2, 3, 2]],
    ];

    #[test]
    fn loops_and_folds_add_up_the_same_products() {
        for batches in BATCHES {
            for sizes in [[3, 2, 4], [1, 3, 2], [3, 1, 2], [2, 3, 1], [1, 1, 1]] {
                for transposed in [[false, false], [true, false], [false, true], [true, true]] {
                    let dims = shapes(batches, sizes, transposed);
                    let dims = [&dims[0][..], &dims[1][..], &dims[2][..]];
                    let problem = Problem::broadcast(dims, transposed).unwrap();
                    let name = format!("{dims:?} {transposed:?}: {problem:?}");
                    assert_eq!(terms(&problem), expected(dims, transposed), "{name}");
                }
            }
        }
    }

    #[test]
    fn shared_factors_and_dense_sums_become_one_product() {
        let of = |batches, transposed: [bool; 2]| {
            let dims = shapes(batches, [3, 2, 4], transposed);
            Problem::broadcast([&dims[0], &dims[1], &dims[2]], transposed).unwrap()
        };
        let one_b = of([&[5, 6], &[], &[5, 6]], [false, false]);
        assert_eq!((one_b.m, one_b.outer.as_slice().len()), (90, 0));
        let turned = of([&[5, 6], &[], &[5, 6]], [true, false]);
        assert_eq!((turned.m, turned.outer.count()), (3, 30), "rows do not go on");
        let summed = of([&[5], &[5], &[]], [true, false]);
        assert_eq!((summed.k, summed.inner.count()), (20, 1));
        let apart = of([&[5], &[5], &[]], [false, false]);
        assert_eq!((apart.k, apart.inner.count()), (4, 5));
        let plain = of([&[2, 3], &[2, 3], &[2, 3]], [false, false]);
        assert_eq!(plain.outer.as_slice(), [Loop { length: 6, a: 12, b: 8, c: 6 }]);
        let batch = Problem::one([3, 2, 4], [false; 2]).batch(6);
        assert_eq!(plain, batch);
    }

    #[test]
    fn batches_of_batches_are_batches() {
        for transposed in [[false, false], [true, false], [false, true], [true, true]] {
            let one = Problem::one([3, 2, 4], transposed);
            assert_eq!(one.batch(2).batch(5), one.batch(10));
            let row = Problem::one([1, 2, 4], transposed);
            assert_eq!(terms(&row.batch(2).batch(3)), terms(&row.batch(6)));
        }
        // Two sums over three products each, with operands of their own.
        let dims = |x| shapes([&[2, 3], &[2, 3], &[2, 1]], [3, 2, 4], [x, false]);
        for transposed in [false, true] {
            let (two, one) = (dims(transposed), shapes([&[3], &[3], &[1]], [3, 2, 4], [transposed, false]));
            let two = Problem::broadcast([&two[0], &two[1], &two[2]], [transposed, false]).unwrap();
            let one = Problem::broadcast([&one[0], &one[1], &one[2]], [transposed, false]).unwrap();
            assert_eq!(terms(&one.batch(2)), terms(&two), "{transposed}");
        }
    }

    #[test]
    fn sizes_whose_products_overflow_are_not_folded() {
        let far = 1 << 40;
        for transposed in [[false, false], [true, true]] {
            let huge = Problem::one([far, far, far], transposed).batch(2);
            assert_eq!((huge.m, huge.outer.count(), huge.is_empty()), (far, 2, false));
        }
        let huge = Problem::broadcast([&[2, far, far], &[2, far, far], &[far, far]], [true, false]).unwrap();
        assert_eq!((huge.k, huge.inner.count(), huge.sums_nothing()), (far, 2, false));
        // One product that fits, of which there are too many.
        let many = Problem::one([1 << 20, 4, 1 << 20], [false; 2]).batch(1 << 40);
        assert_eq!((many.m, many.outer.count()), (1 << 20, 1 << 40));
    }

    #[test]
    #[should_panic(expected = "at most 6 loops")]
    fn more_loops_than_there_is_room_for_are_told() {
        let b = [1, 2, 1, 2, 1, 2];
        let dims = shapes([&[2; 6], &b, &[2; 6]], [3, 2, 4], [true, false]);
        let six = Problem::broadcast([&dims[0], &dims[1], &dims[2]], [true, false]).unwrap();
        assert_eq!(six.outer.as_slice().len(), MAX_LOOPS);
        let _ = six.batch(2);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let refused = |a: &[u64], b: &[u64], c: &[u64]| Problem::broadcast([a, b, c], [false; 2]).is_none();
        assert!(refused(&[2, 3], &[4, 5], &[2, 5]), "depth");
        assert!(refused(&[2, 3], &[3, 5], &[5, 2]), "result");
        assert!(refused(&[2, 2, 3], &[3, 3, 5], &[2, 5]), "batches");
        assert!(refused(&[2, 2, 3], &[3, 5], &[4, 2, 5]), "a batch of c that nobody has");
        assert!(refused(&[3], &[3, 5], &[5]), "no matrix");
        assert!(refused(&[1; 9], &[1; 9], &[1; 9]), "rank");
        assert!(!refused(&[0, 2, 3], &[0, 3, 5], &[2, 5]), "a sum over nothing");
    }

    #[test]
    fn nothing_is_told_from_sums_of_nothing() {
        let of = |a: &[u64], b: &[u64], c: &[u64]| {
            let p = Problem::broadcast([a, b, c], [false; 2]).unwrap();
            (p.is_empty(), p.sums_nothing())
        };
        assert_eq!(of(&[2, 0], &[0, 5], &[2, 5]), (false, true));
        assert_eq!(of(&[0, 2, 3], &[3, 5], &[2, 5]), (false, true));
        assert_eq!(of(&[0, 2, 3], &[3, 5], &[0, 2, 5]), (true, false));
        assert!(!of(&[u64::MAX >> 1, 4, 2, 0], &[0, 5], &[2, 5]).0);
        assert_eq!(size_of::<Loop>(), 32, "kernels are handed it as it is");
    }
}

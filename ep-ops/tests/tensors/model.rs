//! What views mean, without strides: a shape, and for each index the place in the storage that it stands for.

use ep_core::Result;
use ep_ops::Tensor;
use proptest::prelude::*;

/// A view of a storage that somebody else has.
#[derive(Clone, Debug)]
pub struct Model {
    pub shape: Vec<i64>,
    /// Of each index, in order, the last dimension innermost.
    pub at: Vec<usize>,
}

/// All indices of a shape, in order.
fn indices(shape: &[i64]) -> Vec<Vec<i64>> {
    shape.iter().fold(vec![Vec::new()], |all, n| {
        all.iter().flat_map(|index| (0..*n).map(move |i| [index.as_slice(), &[i]].concat())).collect()
    })
}

impl Model {
    /// All of a storage.
    pub fn whole(shape: &[i64]) -> Model {
        let count: i64 = shape.iter().product();
        Model { shape: shape.to_vec(), at: (0..count as usize).collect() }
    }

    /// A view of another shape, from the index that each index is of this one.
    fn remap(&self, shape: Vec<i64>, index: impl Fn(&[i64]) -> Vec<i64>) -> Model {
        let place = |i: &Vec<i64>| {
            let old = index(i);
            assert_eq!(old.len(), self.shape.len());
            self.at[old.iter().zip(&self.shape).fold(0, |at, (i, n)| at * n + i) as usize]
        };
        Model { at: indices(&shape).iter().map(place).collect(), shape }
    }

    /// What is seen of a storage.
    pub fn read<T: Copy>(&self, storage: &[T]) -> Vec<T> {
        self.at.iter().map(|i| storage[*i]).collect()
    }

    /// Whether two indices are the same place.
    pub fn overlaps(&self) -> bool {
        let mut places = self.at.clone();
        places.sort_unstable();
        places.windows(2).any(|w| w[0] == w[1])
    }

    pub fn narrow(&self, d: usize, start: i64, len: i64) -> Model {
        self.slice(d, start, len, 1)
    }

    fn slice(&self, d: usize, start: i64, len: i64, step: i64) -> Model {
        let mut shape = self.shape.clone();
        shape[d] = len;
        self.remap(shape, |i| {
            let mut i = i.to_vec();
            i[d] = start + i[d] * step;
            i
        })
    }

    pub fn flip(&self, d: usize) -> Model {
        let n = self.shape[d];
        self.remap(self.shape.clone(), |i| {
            let mut i = i.to_vec();
            i[d] = n - 1 - i[d];
            i
        })
    }

    pub fn expand(&self, shape: &[i64]) -> Model {
        let new = shape.len() - self.shape.len();
        self.remap(shape.to_vec(), |i| {
            i[new..].iter().zip(&self.shape).map(|(i, n)| if *n == 1 { 0 } else { *i }).collect()
        })
    }
}

/// A view of what there is then: numbers are taken modulo what is possible.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Permute(u64),
    Transpose(u64, u64),
    Narrow(u64, u64, u64),
    Slice(u64, i64, i64, i64),
    Select(u64, u64),
    Expand(u64, u64),
    Unsqueeze(u64),
    Squeeze(u64),
    SqueezeAll,
    View(u64),
    Unfold(u64, u64, u64),
    Flip(u64),
}

pub fn step() -> impl Strategy<Value = Step> {
    let n = 0..1000u64;
    prop_oneof![
        n.clone().prop_map(Step::Permute),
        (n.clone(), n.clone()).prop_map(|(a, b)| Step::Transpose(a, b)),
        (n.clone(), n.clone(), n.clone()).prop_map(|(a, b, c)| Step::Narrow(a, b, c)),
        (n.clone(), prop_oneof![Just(0i64), -6..6i64], prop_oneof![Just(9i64), -6..6i64], 1..4i64)
            .prop_map(|(a, b, c, d)| Step::Slice(a, b, c, d)),
        (n.clone(), n.clone()).prop_map(|(a, b)| Step::Select(a, b)),
        (n.clone(), n.clone()).prop_map(|(a, b)| Step::Expand(a, b)),
        n.clone().prop_map(Step::Unsqueeze),
        n.clone().prop_map(Step::Squeeze),
        Just(Step::SqueezeAll),
        n.clone().prop_map(Step::View),
        (n.clone(), n.clone(), n.clone()).prop_map(|(a, b, c)| Step::Unfold(a, b, c)),
        n.prop_map(Step::Flip),
    ]
}

/// Shapes of few elements, with sizes 0 and 1 among them.
pub fn shape() -> impl Strategy<Value = Vec<i64>> {
    prop::collection::vec(prop_oneof![8 => 2..5i64, 2 => Just(1i64), 1 => Just(0i64)], 0..5)
}

/// A shape of as many elements, cut by the digits of a number.
fn other_shape(mut count: i64, mut seed: u64) -> Vec<i64> {
    let mut shape = Vec::new();
    while shape.len() < 4 && seed > 0 {
        let part = (seed % 5) as i64;
        seed /= 5;
        if part > 0 && count % part == 0 {
            shape.push(part);
            count /= part;
        }
    }
    shape.push(count);
    shape
}

/// A dimension of that many, sometimes counted from the end.
fn dim(n: u64, rank: usize) -> (usize, i64) {
    let d = n as usize % rank;
    (d, if n.is_multiple_of(2) { d as i64 } else { d as i64 - rank as i64 })
}

/// Does a step on both. Steps that are not possible there do nothing; a view that strides do not allow may fail.
pub fn apply(step: Step, t: Tensor, m: Model) -> Result<(Tensor, Model)> {
    let rank = m.shape.len();
    match step {
        Step::Unsqueeze(d) if rank < 6 => {
            let at = d as usize % (rank + 1);
            let mut shape = m.shape.clone();
            shape.insert(at, 1);
            let given = if d.is_multiple_of(2) { at as i64 } else { at as i64 - rank as i64 - 1 };
            Ok((t.unsqueeze(given)?, Model { shape, at: m.at }))
        }
        Step::SqueezeAll => {
            let shape = m.shape.iter().copied().filter(|n| *n != 1).collect();
            Ok((t.squeeze_all()?, Model { shape, at: m.at }))
        }
        Step::View(seed) => {
            let shape = other_shape(m.at.len() as i64, seed);
            Ok((t.view(&shape)?, Model { shape, at: m.at }))
        }
        Step::Expand(_, n) if rank == 0 => {
            let shape = [n as i64 % 3, 2];
            Ok((t.expand(&shape)?, m.expand(&shape)))
        }
        _ if rank == 0 => Ok((t, m)),
        Step::Permute(mut seed) => {
            let from_end = (seed % 2) as i64 * rank as i64;
            let mut left: Vec<usize> = (0..rank).collect();
            let mut order = Vec::new();
            while !left.is_empty() {
                order.push(left.remove(seed as usize % left.len()));
                seed /= 3;
            }
            let given: Vec<i64> = order.iter().map(|d| *d as i64 - from_end).collect();
            let shape = order.iter().map(|d| m.shape[*d]).collect();
            let model = m.remap(shape, |i| {
                let mut old = vec![0; rank];
                order.iter().zip(i).for_each(|(d, i)| old[*d] = *i);
                old
            });
            Ok((t.permute(&given)?, model))
        }
        Step::Transpose(a, b) => {
            let ((a, a_given), (b, b_given)) = (dim(a, rank), dim(b, rank));
            let mut shape = m.shape.clone();
            shape.swap(a, b);
            let model = m.remap(shape, |i| {
                let mut i = i.to_vec();
                i.swap(a, b);
                i
            });
            Ok((t.transpose(a_given, b_given)?, model))
        }
        Step::Narrow(d, start, len) => {
            let (d, given) = dim(d, rank);
            let start = start as i64 % (m.shape[d] + 1);
            let len = len as i64 % (m.shape[d] - start + 1);
            Ok((t.narrow(given, start, len)?, m.narrow(d, start, len)))
        }
        Step::Slice(d, start, end, step) => {
            let (d, given) = dim(d, rank);
            let n = m.shape[d];
            let taken: Vec<i64> = (0..n)
                .filter(|i| {
                    let from = if start < 0 { (start + n).max(0) } else { start };
                    let to = if end < 0 { end + n } else { end };
                    *i >= from && *i < to && (i - from) % step == 0
                })
                .collect();
            let model = m.slice(d, taken.first().copied().unwrap_or(0), taken.len() as i64, step);
            Ok((t.slice(given, start, end, step)?, model))
        }
        Step::Select(d, index) => {
            let (d, given) = dim(d, rank);
            if m.shape[d] == 0 {
                return Ok((t, m));
            }
            let at = index as i64 % m.shape[d];
            let one = m.narrow(d, at, 1);
            let mut shape = one.shape.clone();
            shape.remove(d);
            let from_end = if index.is_multiple_of(2) { at } else { at - m.shape[d] };
            Ok((t.select(given, from_end)?, Model { shape, at: one.at }))
        }
        Step::Expand(d, n) => {
            let d = d as usize % rank;
            let mut shape = m.shape.clone();
            if shape[d] == 1 {
                shape[d] = n as i64 % 4;
            }
            let mut given = shape.clone();
            given.iter_mut().zip(&m.shape).filter(|(a, b)| a == b).for_each(|(a, _)| *a = -1);
            if rank < 6 && n.is_multiple_of(3) {
                shape.insert(0, 2);
                given.insert(0, 2);
            }
            Ok((t.expand(&given)?, m.expand(&shape)))
        }
        Step::Squeeze(d) => {
            let (d, given) = dim(d, rank);
            let mut shape = m.shape.clone();
            if shape[d] == 1 {
                shape.remove(d);
            }
            Ok((t.squeeze(given)?, Model { shape, at: m.at }))
        }
        Step::Unfold(d, size, by) if rank < 6 => {
            let (d, given) = dim(d, rank);
            let (size, by) = (size as i64 % (m.shape[d] + 1), by as i64 % 3 + 1);
            let mut shape = m.shape.clone();
            shape[d] = (m.shape[d] - size) / by + 1;
            shape.push(size);
            let model = m.remap(shape, |i| {
                let mut old = i[..rank].to_vec();
                old[d] = i[d] * by + i[rank];
                old
            });
            Ok((t.unfold(given, size, by)?, model))
        }
        Step::Flip(d) => {
            let (d, given) = dim(d, rank);
            Ok((t.flip(&[given])?, m.flip(d)))
        }
        Step::Unsqueeze(_) | Step::Unfold(..) => Ok((t, m)),
    }
}

//! What launches are drawn from: sizes around which kernels change, places, strides and content.

use super::launch::Operand;
use crate::operands::{Random, encode};
use ep_core::DType;

/// Dimensions of a tensor at most.
const MOST_RANK: i64 = 8;
/// Bytes before an operand are fewer than this.
const MOST_SKIPPED: i64 = 64;
/// Bytes behind a destination are fewer than this.
const MOST_BEHIND: i64 = 40;

/// bool and the integers, whose functions have one result.
pub const EXACT: &[DType] = DType::ALL.split_at(9).0;

/// Draws one launch.
pub struct Draw {
    random: Random,
    /// Elements of the largest operand, about.
    pub most: i64,
}

/// How an operand lies in memory.
pub struct Layout {
    pub strides: Vec<i64>,
    /// The element where it begins.
    pub offset: i64,
    /// Elements up to behind the highest one, those before the offset included.
    pub extent: i64,
}

impl Draw {
    pub fn new(random: Random, most: i64) -> Draw {
        Draw { random, most }
    }

    /// From 0 to below `n`; 0 where there is no such number.
    pub fn below(&mut self, n: i64) -> i64 {
        // The low bits of this generator are its weakest.
        ((self.random.next() >> 11) % n.max(1) as u64) as i64
    }

    /// From 1 to `n`.
    pub fn up_to(&mut self, n: i64) -> i64 {
        1 + self.below(n)
    }

    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as i64) as usize]
    }

    pub fn one_in(&mut self, n: i64) -> bool {
        self.below(n) == 0
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend(self.random.next().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }

    /// Often small, often next to a power of two, and now and then 0.
    fn dim(&mut self) -> i64 {
        match self.below(12) {
            0..=3 => self.up_to(5),
            4..=6 => self.up_to(20),
            7 => self.pick(&[31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513]),
            8 => self.up_to(300),
            9 => self.pick(&[1, 2, 3, 4, 8, 16, 48, 96]),
            10 => self.up_to(3000),
            _ if self.one_in(20) => 0,
            _ => 2 + self.below(3),
        }
    }

    /// Dimensions of at most so many elements.
    pub fn dims(&mut self, rank: usize, most: i64) -> Vec<i64> {
        loop {
            let dims: Vec<i64> = (0..rank).map(|_| self.dim()).collect();
            // One that is 0 does not make room for the others: they may be dimensions of another operand.
            if dims.iter().try_fold(1i64, |count, n| count.checked_mul(*n.max(&1))).is_some_and(|n| n <= most)
            {
                return dims;
            }
        }
    }

    /// How many elements this launch may have: mostly few, so that there are many launches.
    pub fn room(&mut self) -> i64 {
        if self.one_in(6) { self.most } else { self.most / 32 }
    }

    /// Dimensions of any rank.
    pub fn shape(&mut self, most: i64) -> Vec<i64> {
        let rank = self.below(MOST_RANK + 1) as usize;
        self.dims(rank, most)
    }

    /// The numbers from 0 to below `n` in any order.
    pub fn order(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            let j = self.below(i as i64 + 1) as usize;
            order.swap(i, j);
        }
        order
    }

    /// Strides of these dimensions in any order, with gaps. A source may repeat elements; what is written never overlaps.
    pub fn layout(&mut self, dims: &[i64], is_source: bool, may_be_signed: bool) -> Layout {
        let rank = dims.len();
        let order = if self.one_in(2) { self.order(rank) } else { (0..rank).rev().collect() };
        let begin = if may_be_signed { self.below(5) } else { 0 };
        let first = if self.one_in(4) { self.up_to(3) } else { 1 };
        let (mut strides, mut step) = (vec![0; rank], first);
        let (mut before, mut behind) = (0, 0);
        for k in order {
            if is_source && self.one_in(6) {
                continue;
            }
            let n = dims[k].max(1);
            if may_be_signed && self.one_in(5) {
                strides[k] = -step;
                before += (n - 1) * step;
            } else {
                strides[k] = step;
                behind += (n - 1) * step;
            }
            // Gaps multiply: none any more where memory would become large.
            let gap = if self.one_in(3) && step * n < self.most { self.below(9) } else { 0 };
            step = step * n + gap;
        }
        let offset = begin + before;
        let extent = if dims.contains(&0) { 0 } else { offset + behind + 1 };
        Layout { strides, offset, extent }
    }

    /// Where an operand begins: on a multiple of 16 bytes half of the time, at least as its dtype has to.
    fn skip(&mut self, dtype: DType) -> usize {
        let bytes = match self.below(4) {
            0 => 0,
            1 => 16,
            _ => self.below(MOST_SKIPPED),
        };
        let alignment = dtype.alignment();
        bytes as usize / alignment * alignment
    }

    /// A source of any bits, and of as many elements as its buffer has.
    pub fn source(&mut self, name: &'static str, dtype: DType, count: i64) -> Operand {
        let (skip, size) = (self.skip(dtype), bytes_of(dtype, count));
        // A buffer has at least one byte.
        let bytes = self.bytes((skip + size).max(1));
        Operand { name, dtype, bytes, skip, size }
    }

    /// A source of numbers.
    pub fn numbers(
        &mut self,
        name: &'static str,
        dtype: DType,
        count: i64,
        mut number: impl FnMut(&mut Draw, i64) -> f64,
    ) -> Operand {
        let Operand { mut bytes, skip, size, .. } = self.source(name, dtype, count);
        let mut new = Vec::with_capacity(size);
        for i in 0..count {
            encode(dtype, number(self, i), &mut new);
        }
        bytes[skip..skip + size].copy_from_slice(&new);
        Operand { name, dtype, bytes, skip, size }
    }

    /// A destination that holds anything, as does what lies around it.
    pub fn destination(&mut self, name: &'static str, dtype: DType, count: i64) -> Operand {
        let (skip, size) = (self.skip(dtype), bytes_of(dtype, count));
        let behind = self.up_to(MOST_BEHIND) as usize;
        let bytes = self.bytes(skip + size + behind);
        Operand { name, dtype, bytes, skip, size }
    }

    /// From -1 to 1.
    pub fn unit(&mut self) -> f64 {
        self.random.unit() * 2.0 - 1.0
    }
}

fn bytes_of(dtype: DType, count: i64) -> usize {
    count.max(0) as usize * dtype.bytes_for_bounds() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The elements that a layout reaches, without those that come twice.
    fn reached(dims: &[i64], layout: &Layout) -> BTreeSet<i64> {
        let mut all = BTreeSet::from([layout.offset]);
        for (n, stride) in dims.iter().zip(&layout.strides) {
            all = all.iter().flat_map(|at| (0..*n).map(move |i| at + i * stride)).collect();
        }
        all
    }

    #[test]
    fn what_is_written_does_not_overlap_and_ends_with_its_extent() {
        let mut signed = 0;
        for turn in 0..300 {
            let mut draw = Draw::new(Random::of_turn(1, turn), 1000);
            let dims = draw.shape(200);
            let may_be_signed = draw.one_in(2);
            let layout = draw.layout(&dims, false, may_be_signed);
            let all = reached(&dims, &layout);
            assert_eq!(all.len() as i64, dims.iter().product::<i64>(), "{dims:?} {:?}", layout.strides);
            assert_eq!(all.last().map_or(0, |last| last + 1), layout.extent, "{dims:?} {:?}", layout.strides);
            assert!(all.first().is_none_or(|first| *first >= 0), "{dims:?} {:?}", layout.strides);
            signed += u64::from(layout.strides.iter().any(|stride| *stride < 0));
        }
        assert!((20..200).contains(&signed), "{signed}");
    }

    #[test]
    fn operands_are_aligned_and_have_their_bytes() {
        for turn in 0..300 {
            let mut draw = Draw::new(Random::of_turn(1, turn), 1000);
            let (dtype, count) = (draw.pick(&DType::ALL), draw.below(20));
            for (operand, behind) in
                [(draw.source("src", dtype, count), 0), (draw.destination("dst", dtype, count), 1)]
            {
                let Operand { bytes, skip, size, .. } = &operand;
                assert_eq!(skip % dtype.alignment(), 0, "{dtype}");
                assert_eq!(*size as u64, count as u64 * dtype.bytes_for_bounds());
                assert!(bytes.len() >= (skip + size + behind).max(1), "{operand:?}");
            }
        }
    }
}

//! How permute.cu takes a permutation of small dimensions: blocks of any rank, with as long runs on both sides as shared
//! memory has room for.

use super::Plan;
use crate::kernel::Argument;
use crate::ops::nd::{FastDiv, RANK};

/// Bytes that a block of permute.cu moves, and what it has room for where runs do not follow each other closely. Large
/// blocks have longer runs; where there are not so many of them for each multiprocessor, smaller ones keep more busy.
const VOLUMES: [u64; 2] = [16 << 10, 40 << 10];
const SLACK: u64 = 2 << 10;
const MANY_BLOCKS: u64 = 3;
/// Bytes of a run of the source that is copied in bulk, at least, and what such runs have room for.
const BULK_BYTES: u64 = 256;
const BULK_ROOM: u64 = 44_352;
/// Threads that take a segment of a run, and packs of the destination in one that a whole warp takes; fewer threads take
/// one each.
const WARP: u64 = 32;
const LEAST_LANES: u64 = 4;
const SEGMENT_PACKS: u64 = 64;

/// Elements of a segment of a run of the source that a thread moves.
fn elements_of_lane(size: u64) -> u64 {
    if size < 4 { 16 / size } else { 8 }
}

/// Threads for a run that has so much work for each.
fn lanes_for(shares: u64) -> u64 {
    shares.next_power_of_two().clamp(LEAST_LANES, WARP)
}

/// `Side` of permute.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    run: u32,
    runs: u32,
    cut: u32,
    per_index: u32,
    segments: FastDiv,
    rank: u32,
    lanes: u32,
    size: [FastDiv; RANK],
    stride: [i64; RANK],
    to_shared: [u32; RANK],
    cut_of: [u32; RANK],
}

/// `Args` of permute.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Blocks {
    src_side: Side,
    dst_side: Side,
    in_run: [FastDiv; RANK],
    run_to_shared: [u32; RANK],
    run_rank: u32,
    pitch: u32,
    cut_size: [u64; 2],
    cut_extent: [u64; 2],
    rank: u32,
    pad: u32,
    count: [FastDiv; RANK],
    src_step: [i64; RANK],
    dst_step: [i64; RANK],
    cut_of: [u32; RANK],
    pub(super) blocks: u64,
    src_bytes: u64,
    pub(super) src: u64,
    pub(super) dst: u64,
}

impl Blocks {
    /// Whether runs have work for fewer threads than a warp: of either side, or of the destination where those of the source
    /// are copied in bulk.
    pub(super) fn is_short(&self, bulk: bool) -> bool {
        let short = |side: &Side| u64::from(side.lanes) < WARP;
        short(&self.dst_side) || !bulk && short(&self.src_side)
    }

    /// Whether there are more blocks than 32 bits count.
    pub(super) fn is_far(&self) -> bool {
        self.blocks >= 1 << 31
    }
}

// SAFETY: as `Args` of permute.cu.
unsafe impl Argument for Blocks {}

impl Plan {
    /// Dimensions from the innermost outwards, as the source and as the destination has them.
    fn orders(&self) -> [[usize; RANK]; 2] {
        let last = self.rank - 1;
        let order =
            |dim: &dyn Fn(usize) -> usize| std::array::from_fn(|k| if k <= last { dim(last - k) } else { 0 });
        [order(&|d| d), order(&|d| self.perm[d])]
    }

    /// The run of a side in blocks of these sizes: its length, how many dimensions it has, and the one that ends it.
    fn run(&self, block: &[u64; RANK], order: &[usize; RANK]) -> (u64, usize, Option<usize>) {
        let mut length = 1;
        for (k, d) in order[..self.rank].iter().copied().enumerate() {
            length *= block[d];
            if block[d] < self.sizes[d] {
                return (length, k + usize::from(block[d] > 1), Some(d));
            }
        }
        (length, self.rank, None)
    }

    /// Elements between runs of the source in a block: an odd number of words, which spreads what is next to each other
    /// along another dimension over the banks.
    fn pitch(&self, run: u64) -> u64 {
        let in_word = (4 / self.size).max(1);
        (run.div_ceil(in_word) | 1) * in_word
    }

    /// How many indices of each dimension a block has: as long runs on both sides as there is room for.
    fn block(&self, bytes: u64) -> [u64; RANK] {
        let (volume, capacity) = (bytes / self.size, (bytes + SLACK) / self.size);
        let (rank, orders) = (self.rank, self.orders());
        let mut block = [1; RANK];
        loop {
            // The shorter run grows, as long as the block has room for it.
            let runs = [self.run(&block, &orders[0]), self.run(&block, &orders[1])];
            let sides = if runs[1].0 < runs[0].0 { [1, 0] } else { [0, 1] };
            let grown = sides.into_iter().filter_map(|side| runs[side].2).find_map(|d| {
                let room = volume / (block[..rank].iter().product::<u64>() / block[d]);
                let mut grown = block;
                grown[d] = self.sizes[d].min(block[d] * 2).min(room);
                let run = self.run(&grown, &orders[0]).0;
                let used = grown[..rank].iter().product::<u64>() / run * self.pitch(run);
                (grown[d] > block[d] && used <= capacity).then_some(grown)
            });
            match grown {
                Some(grown) => block = grown,
                None => break,
            }
        }
        // Blocks along a dimension are made equal, or else begin at multiples of 64 bytes.
        let line = 64 / self.size;
        for (block, size) in block.iter_mut().zip(self.sizes).filter(|(block, size)| **block < *size) {
            let even = size.div_ceil(size.div_ceil(*block));
            let lines = even.next_multiple_of(line);
            *block = if lines <= *block { lines } else { even };
        }
        block
    }

    /// How far the neighbours along each dimension are apart in shared memory where runs of the source, of the first `in_run`
    /// dimensions, are copied in bulk: each has the same place within 16 bytes as in the source, and room for what else
    /// these have. None where runs are too short for that, or neighbours of the destination meet in few banks.
    fn bulk_places(
        &self,
        block: &[u64; RANK],
        run: u64,
        in_run: usize,
        mut places: [u32; RANK],
    ) -> Option<[u32; RANK]> {
        let in_pack = 16 / self.size;
        let mut least = run + 2 * (in_pack - 1);
        for d in self.orders()[0][in_run..self.rank].iter().copied().filter(|d| block[*d] > 1) {
            let step = least + (self.from[d] + in_pack - least % in_pack) % in_pack;
            places[d] = u32::try_from(step).ok()?;
            least = step * block[d];
        }
        let fits = run * self.size >= BULK_BYTES && (least + 2 * in_pack) * self.size <= BULK_ROOM;
        (fits && places[self.a()] % 2 == 1).then_some(places)
    }

    /// Blocks for a device of so many multiprocessors, and whether runs of the source are copied in bulk, if that is possible.
    pub(super) fn blocks(&self, sm_count: u64, bulk: bool) -> (Blocks, bool) {
        let bytes = self.sizes[..self.rank].iter().product::<u64>() * self.size;
        let volume = VOLUMES[usize::from(bytes >= VOLUMES[1] * MANY_BLOCKS * sm_count)];
        let (block, sizes, rank) = (self.block(volume), self.sizes, self.rank);
        let mut args = Blocks {
            cut_size: [1; 2],
            cut_extent: [1; 2],
            blocks: 1,
            src_bytes: bytes,
            src: self.src,
            dst: self.dst,
            ..Blocks::default()
        };
        // 1 and 2 for the dimensions of which a block has a part; growing one at a time on two sides leaves no more.
        let mut cut = [0u32; RANK];
        let mut cuts = 0;
        for d in (0..rank).filter(|d| block[*d] > 1 && block[*d] < sizes[*d]) {
            args.cut_size[cuts] = block[d];
            args.cut_extent[cuts] = sizes[d];
            cuts += 1;
            cut[d] = cuts as u32;
        }
        let [by_src, by_dst] = self.orders();
        // Where each dimension's neighbours are in shared memory: runs as in the source, then the dimensions that number
        // them.
        let (run, in_run, _) = self.run(&block, &by_src);
        args.pitch = self.pitch(run) as u32;
        let mut in_shared = [0; RANK];
        let mut step = 1;
        for (k, d) in by_src[..rank].iter().copied().enumerate() {
            if k == in_run {
                step = args.pitch;
            }
            in_shared[d] = step;
            step *= block[d] as u32;
        }
        let bulky = bulk.then(|| self.bulk_places(&block, run, in_run, in_shared)).flatten();
        let in_shared = bulky.unwrap_or(in_shared);
        let elements = block[..rank].iter().product::<u64>();
        let side = |order: &[usize; RANK], strides: &[u64; RANK], lanes: u64, segments: u64| {
            let (run, in_run, _) = self.run(&block, order);
            let mut side = Side {
                run: run as u32,
                runs: (elements / run) as u32,
                segments: FastDiv::new(segments),
                lanes: lanes as u32,
                ..Side::default()
            };
            if let Some(last) = order[..in_run].last().filter(|d| cut[**d] > 0) {
                (side.cut, side.per_index) = (cut[*last], side.run / block[*last] as u32);
            }
            for (k, d) in order[in_run..rank].iter().copied().filter(|d| block[*d] > 1).enumerate() {
                side.size[k] = FastDiv::new(block[d]);
                side.stride[k] = strides[d] as i64;
                side.to_shared[k] = in_shared[d];
                side.cut_of[k] = cut[d];
                side.rank += 1;
            }
            side
        };
        let each = elements_of_lane(self.size);
        let lanes = lanes_for(run.div_ceil(each));
        args.src_side = side(&by_src, &self.from, lanes, run.div_ceil(each * lanes));
        // A run of the destination may begin within a pack; a cut dimension that ends it is left by whole blocks.
        let (run, in_run, last) = self.run(&block, &by_dst);
        let left = by_dst[in_run..rank].iter().map(|d| self.to[*d]);
        let left_by_blocks = last.filter(|d| block[*d] > 1).map(|d| self.to[d] * block[d]);
        let mut begins = left.chain(left_by_blocks).map(|step| step * self.size).chain([self.dst]);
        let in_pack = 16 / self.size;
        let more = if begins.all(|place| place.is_multiple_of(16)) { 0 } else { in_pack - 1 };
        let packs = (run + more).div_ceil(in_pack);
        let lanes = lanes_for(packs);
        let in_segment = if lanes == WARP { SEGMENT_PACKS } else { lanes };
        args.dst_side = side(&by_dst, &self.to, lanes, packs.div_ceil(in_segment));
        for (k, d) in by_dst[..in_run].iter().copied().enumerate() {
            args.in_run[k] = FastDiv::new(block[d]);
            args.run_to_shared[k] = in_shared[d];
            args.run_rank += 1;
        }
        for (k, d) in by_src[..rank].iter().copied().filter(|d| block[*d] < sizes[*d]).enumerate() {
            let count = sizes[d].div_ceil(block[d]);
            args.count[k] = FastDiv::new(count);
            args.src_step[k] = (self.from[d] * block[d]) as i64;
            args.dst_step[k] = (self.to[d] * block[d]) as i64;
            args.cut_of[k] = cut[d];
            args.blocks *= count;
            args.rank += 1;
        }
        (args, bulky.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{CASES, expected, plan};
    use super::*;
    use crate::ops::SIZES;
    use crate::ops::nd::tests::divide;

    /// The offset of a run in memory and in shared memory, none for one that is not inside.
    fn run_at(side: &Side, mut number: u64, left: [u64; 2]) -> Option<(u64, u64)> {
        let (mut offset, mut shared) = (0, 0);
        for d in 0..side.rank as usize {
            let mut index = number;
            if d + 1 < side.rank as usize {
                (number, index) = divide(side.size[d], number);
            }
            offset += index * side.stride[d] as u64;
            shared += index * u64::from(side.to_shared[d]);
            if side.cut_of[d] > 0 && index >= left[side.cut_of[d] as usize - 1] {
                return None;
            }
        }
        Some((offset, shared))
    }

    fn length(side: &Side, left: [u64; 2]) -> u64 {
        if side.cut > 0 {
            u64::from(side.per_index) * left[side.cut as usize - 1]
        } else {
            u64::from(side.run)
        }
    }

    /// As the threads of permute.cu move elements.
    fn emulate_blocks(plan: &Plan, sm_count: u64, wants_bulk: bool) -> Vec<Option<u64>> {
        let (args, bulk) = plan.blocks(sm_count, wants_bulk);
        assert!(wants_bulk || !bulk);
        let mut moved = vec![None; plan.sizes.iter().product::<u64>() as usize];
        let (in_word, in_pack) = ((4 / plan.size).max(1), 16 / plan.size);
        for block in 0..args.blocks {
            let (mut rest, mut src, mut dst, mut left) = (block, 0, 0, args.cut_extent);
            for d in 0..args.rank as usize {
                let mut index = rest;
                if d + 1 < args.rank as usize {
                    (rest, index) = divide(args.count[d], rest);
                }
                src += index * args.src_step[d] as u64;
                dst += index * args.dst_step[d] as u64;
                if let Some(cut) = (args.cut_of[d] as usize).checked_sub(1) {
                    left[cut] -= index * args.cut_size[cut];
                }
            }
            let left = [0, 1].map(|k| left[k].min(args.cut_size[k]));
            let mut shared = std::collections::HashMap::new();
            let (side, length) = (&args.src_side, length(&args.src_side, left));
            // What the source has in front of the block's first element within 16 bytes.
            let lead = if bulk { (plan.src / plan.size + src) % in_pack } else { 0 };
            for number in 0..u64::from(if bulk { side.runs } else { 0 }) {
                let Some((offset, place)) = run_at(side, number, left) else { continue };
                let begin = plan.src / plan.size + src + offset;
                assert_eq!(begin % in_pack, (lead + place) % in_pack, "moved by 16 bytes");
                // Whole packs of memory around the run: nothing but what is around others may be overwritten.
                for i in begin / in_pack * in_pack..(begin + length).next_multiple_of(in_pack) {
                    let at = lead + place + i - begin;
                    assert!((at + 1) * plan.size <= BULK_ROOM);
                    let held = (begin..begin + length).contains(&i).then(|| i - plan.src / plan.size);
                    let before = shared.insert(at, held);
                    assert!(
                        before.is_none() || (before == Some(None) && held.is_none()),
                        "one place for two"
                    );
                }
            }
            let words = elements_of_lane(plan.size) / in_word * u64::from(side.lanes);
            let units = u64::from(side.runs) * side.segments.divisor() * words;
            for unit in 0..if bulk { 0 } else { units } {
                let (number, segment) = divide(side.segments, unit / words);
                let at = (segment * words + unit % words) * in_word;
                let Some((offset, place)) = run_at(side, number, left).filter(|_| at < length) else {
                    continue;
                };
                assert!(place % in_word == 0 && (place + at + in_word) * plan.size <= VOLUMES[1] + SLACK);
                for i in at..length.min(at + in_word) {
                    let before = shared.insert(place + i, Some(src + offset + i));
                    assert_eq!(before, None, "one place for two");
                }
            }
            let (side, length) = (&args.dst_side, self::tests::length(&args.dst_side, left));
            let lanes = u64::from(side.lanes);
            let packs = if lanes == WARP { SEGMENT_PACKS } else { lanes };
            for unit in 0..u64::from(side.runs) * side.segments.divisor() * packs {
                let (number, segment) = divide(side.segments, unit / packs);
                let Some((offset, place)) = run_at(side, number, left) else { continue };
                let before = (plan.dst / plan.size + dst + offset) % in_pack;
                let begin = ((segment * packs + unit % packs) * in_pack) as i64 - before as i64;
                for at in begin.max(0)..(begin + in_pack as i64).min(length as i64) {
                    let (mut rest, mut place) = (at as u64, lead + place);
                    for d in 0..args.run_rank as usize {
                        let mut index = rest;
                        if d + 1 < args.run_rank as usize {
                            (rest, index) = divide(args.in_run[d], rest);
                        }
                        place += index * u64::from(args.run_to_shared[d]);
                    }
                    let from = shared[&place].unwrap() as usize;
                    assert_eq!(moved[from].replace(dst + offset + at as u64), None, "moved twice");
                }
            }
        }
        moved
    }

    #[test]
    fn blocks_move_every_element_once_to_its_place() {
        for (dims, perm) in CASES {
            for size in SIZES {
                let plan = plan(dims, perm, size);
                // Small and large blocks.
                for sm_count in [1 << 20, 0] {
                    for bulk in [false, true] {
                        let moved = emulate_blocks(&plan, sm_count, bulk);
                        assert_eq!(moved, expected(&plan), "{dims:?} {perm:?} of {size}, bulk {bulk}");
                    }
                }
            }
        }
    }

    #[test]
    fn long_runs_are_copied_in_bulk_wherever_the_source_begins() {
        let odd: [(&[usize], &[usize]); 4] = [
            (&[2, 5, 3, 47, 9], &[4, 2, 0, 3, 1]),
            (&[3, 5, 7, 301], &[2, 0, 3, 1]),
            (&[41, 3, 129], &[2, 1, 0]),
            (&[9, 1031], &[1, 0]),
        ];
        let mut taken = 0;
        for (dims, perm) in odd {
            for (size, begin) in [(1, 3), (1, 0), (2, 2), (2, 14), (4, 4), (4, 12)] {
                let plan = Plan { src: 0x1000 + begin, ..plan(dims, perm, size) };
                for sm_count in [1 << 20, 0] {
                    taken += u32::from(plan.blocks(sm_count, true).1);
                    let moved = emulate_blocks(&plan, sm_count, true);
                    assert_eq!(moved, expected(&plan), "{dims:?} {perm:?} of {size} from {begin}");
                }
            }
        }
        assert!(taken > 40, "{taken} of 48");
        let bulk = |dims: &[usize], perm: &[usize], size| plan(dims, perm, size).blocks(132, true).1;
        assert!(bulk(&[37, 41, 43, 47, 9], &[4, 2, 0, 3, 1], 2));
        assert!(!bulk(&[37, 40, 43, 48, 8], &[4, 2, 0, 3, 1], 2), "neighbours in one bank");
        assert!(!bulk(&[300, 301, 9], &[2, 1, 0], 2), "short runs");
    }

    #[test]
    fn blocks_are_small_where_there_are_few_and_too_many_are_told() {
        assert_eq!(size_of::<Blocks>(), 1120);
        let huge = |n: usize| plan(&[3, n], &[1, 0], 1);
        assert!(!huge(1 << 40).blocks(132, false).0.is_far() && huge(1 << 50).blocks(132, false).0.is_far());
        let bytes = |n: usize| u64::from(huge(n).blocks(132, false).0.dst_side.run);
        assert!(
            bytes(1 << 20) <= VOLUMES[0] && bytes(1 << 30) > VOLUMES[0],
            "long runs where there are many"
        );
    }
}

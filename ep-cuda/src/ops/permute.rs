//! `permute`: runs that stay are copied, a few planes are interleaved or taken apart, two dimensions that are exchanged go
//! through tiles, small dimensions through blocks of any rank.

use super::copy::{self, Move, Mover};
use super::nd::{FastDiv, RANK};
use super::source::{INTERLEAVE, PERMUTE, TRANSPOSE};
use super::strided::sizes;
use super::{SIZES, is_loose, with_loose, with_loose_sizes};
use crate::compiler::Spec;
use crate::device::CudaDevice;
use crate::kernel::{Argument, Geometry, Lazy};
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::op::{Op, view};
use ep_core::primitive::{Permute, PermuteArgs, PermuteDesc};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Result};
use primitives::permute::Permutation;

const THREADS: u32 = 256;
const MAX_GRID: u64 = 1 << 30;
/// Bytes that a block of permute.cu moves, and what it has room for where runs do not follow each other closely. Large
/// blocks have longer runs; where there are not so many of them for each multiprocessor, smaller ones keep more busy.
const VOLUMES: [u64; 2] = [16 << 10, 40 << 10];
const SLACK: u64 = 2 << 10;
const MANY_BLOCKS: u64 = 3;
/// Threads that take a segment of a run, and packs of the destination in one that a whole warp takes; fewer threads take
/// one each.
const WARP: u64 = 32;
const LEAST_LANES: u64 = 4;
const SEGMENT_PACKS: u64 = 64;
/// Planes that interleave.cu takes, bytes of an element and of a plane.
const PLANES: [u64; 3] = [2, 3, 4];
const PLANE_SIZES: [u64; 2] = [1, 2];
const LEAST_PLANE: u64 = 128;

/// Elements of a segment of a run of the source that a thread moves.
fn elements_of_lane(size: u64) -> u64 {
    if size < 4 { 16 / size } else { 8 }
}

/// Threads for a run that has so much work for each.
fn lanes_for(shares: u64) -> u64 {
    shares.next_power_of_two().clamp(LEAST_LANES, WARP)
}

fn tile(size: u64) -> u64 {
    match size {
        1 => 128,
        2 | 4 => 64,
        _ => 32,
    }
}

fn tiles_spec(size: u64, vector: bool) -> Spec {
    Spec::new(&TRANSPOSE)
        .with("EP_SIZE", size)
        .with("EP_VECTOR", u32::from(vector))
        .with("EP_THREADS", THREADS)
}

fn blocks_spec(size: u64, loose: bool, short: bool) -> Spec {
    let spec = Spec::new(&PERMUTE).with("EP_SIZE", size).with("EP_THREADS", THREADS);
    with_loose(spec.with("EP_SHORT", u32::from(short)), loose)
}

fn planes_spec(size: u64, planes: u64, apart: bool) -> Spec {
    Spec::new(&INTERLEAVE)
        .with("EP_SIZE", size)
        .with("EP_PLANES", planes)
        .with("EP_APART", u32::from(apart))
        .with("EP_THREADS", THREADS)
}

pub(super) fn kernels() -> [(&'static str, Vec<Spec>); 1] {
    let of_size = |size| [tiles_spec(size, false), tiles_spec(size, true)];
    let blocks =
        [false, true].into_iter().flat_map(|short| with_loose_sizes(|s, l| blocks_spec(s, l, short)));
    let tiles = SIZES.into_iter().flat_map(of_size);
    let of_planes = |planes| {
        PLANE_SIZES
            .into_iter()
            .flat_map(move |size| [false, true].map(|apart| planes_spec(size, planes, apart)))
    };
    let planes = PLANES.into_iter().flat_map(of_planes);
    [(Permute::NAME, copy::kernels().into_iter().chain(tiles).chain(blocks).chain(planes).collect())]
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let rows = DType::ALL.iter().map(|d| [*d]);
    registrar.add(Factory::<Permute, _, _>::new("permute", build).dtypes(rows).capturable())
}

fn build(device: &CudaDevice, desc: &PermuteDesc) -> Result<Permuter> {
    let (loader, size) = (device.loader()?, desc.data.bytes_for_bounds());
    let lazy = |spec| Lazy::new(&loader, Permute::NAME, spec);
    Ok(Permuter {
        mover: Mover::new(&loader, Permute::NAME, size),
        tiles: [false, true].map(|vector| lazy(tiles_spec(size, vector))),
        blocks: [false, true].map(|loose| [false, true].map(|short| lazy(blocks_spec(size, loose, short)))),
        planes: PLANES.map(|planes| [false, true].map(|apart| lazy(planes_spec(size, planes, apart)))),
        size,
        sm_count: u64::from(device.properties().sm_count),
    })
}

/// `Args` of transpose.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Tiles {
    a: u64,
    b: u64,
    src_stride: u64,
    dst_stride: u64,
    tiles_a: FastDiv,
    tiles_b: FastDiv,
    rank: u32,
    pad: u32,
    dims: [FastDiv; RANK],
    src_strides: [i64; RANK],
    dst_strides: [i64; RANK],
    tiles: u64,
    src: u64,
    dst: u64,
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
struct Blocks {
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
    blocks: u64,
    src_bytes: u64,
    src: u64,
    dst: u64,
}

impl Blocks {
    /// Whether runs of either side have work for fewer threads than a warp.
    fn is_short(&self) -> bool {
        [self.src_side, self.dst_side].iter().any(|side| u64::from(side.lanes) < WARP)
    }

    /// Whether there are more blocks than 32 bits count.
    fn is_far(&self) -> bool {
        self.blocks >= 1 << 31
    }
}

/// `Args` of interleave.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Planes {
    packs: u64,
    per_plane: FastDiv,
    src: u64,
    dst: u64,
}

// SAFETY: as `Args` of interleave.cu.
unsafe impl Argument for Planes {}
// SAFETY: as `Args` of transpose.cu.
unsafe impl Argument for Tiles {}
// SAFETY: as `Args` of permute.cu.
unsafe impl Argument for Blocks {}

/// A simplified permutation of at least two dimensions: sizes of the source, outermost first, and strides in elements of
/// each of its dimensions on both sides.
#[derive(Clone, Copy, Debug)]
struct Plan {
    rank: usize,
    sizes: [u64; RANK],
    /// The source's dimension behind each of the destination's.
    perm: [usize; RANK],
    from: [u64; RANK],
    to: [u64; RANK],
    size: u64,
    src: u64,
    dst: u64,
}

impl Plan {
    fn new(permutation: &Permutation, size: u64, src: u64, dst: u64) -> Plan {
        let rank = permutation.num_dims();
        let mut plan =
            Plan { rank, sizes: [1; RANK], perm: [0; RANK], from: [1; RANK], to: [1; RANK], size, src, dst };
        plan.perm[..rank].copy_from_slice(permutation.permutation());
        for (to, from) in plan.sizes.iter_mut().zip(permutation.src_dims()) {
            *to = *from as u64;
        }
        let (mut from, mut to) = (1, 1);
        for d in (0..rank).rev() {
            plan.from[d] = from;
            from *= plan.sizes[d];
            let p = plan.perm[d];
            plan.to[p] = to;
            to *= plan.sizes[p];
        }
        plan
    }

    /// The source's dimension that is the destination's innermost one.
    fn a(&self) -> usize {
        self.perm[self.rank - 1]
    }

    /// The innermost dimension stays.
    fn keeps_runs(&self) -> bool {
        self.a() == self.rank - 1
    }

    fn runs(&self) -> Move {
        let bytes = |elements: u64| (elements * self.size) as i64;
        let dims = self.perm[..self.rank].iter().rev();
        let dims = dims.map(|p| (self.sizes[*p], [bytes(self.to[*p]), bytes(self.from[*p])]));
        Move::new(dims, [self.dst, self.src])
    }

    /// A few planes of whole packs that are interleaved or, with true, taken apart: how many, and the arguments.
    fn planes(&self) -> Option<(u64, bool, Planes)> {
        let [a, b] = [self.rank - 2, self.rank - 1];
        let exchanged = (self.rank == 2 || self.rank == 3 && self.perm[0] == 0) && self.perm[a] == b;
        let apart = self.sizes[b] < self.sizes[a];
        let (planes, plane) =
            if apart { (self.sizes[b], self.sizes[a]) } else { (self.sizes[a], self.sizes[b]) };
        let bytes = plane * self.size;
        let packs = self.sizes[..self.rank].iter().product::<u64>() / planes * self.size / 16;
        let whole = (bytes | self.src | self.dst).is_multiple_of(16) && bytes >= LEAST_PLANE;
        let fits = PLANE_SIZES.contains(&self.size) && PLANES.contains(&planes) && packs < 1 << 31;
        (exchanged && whole && fits).then(|| {
            let per_plane = FastDiv::new(bytes / 16);
            (planes, apart, Planes { packs, per_plane, src: self.src, dst: self.dst })
        })
    }

    /// Both innermost dimensions fill at least half a tile.
    fn fills_tiles(&self) -> bool {
        [self.a(), self.rank - 1].iter().all(|d| self.sizes[*d] * 2 >= tile(self.size))
    }

    /// The arguments, and whether all rows are whole packs of 16 bytes.
    fn tiles(&self) -> (Tiles, bool) {
        let (a, b, tile) = (self.a(), self.rank - 1, tile(self.size));
        let [tiles_a, tiles_b] = [a, b].map(|d| self.sizes[d].div_ceil(tile));
        let mut args = Tiles {
            a: self.sizes[a],
            b: self.sizes[b],
            src_stride: self.from[a],
            dst_stride: self.to[b],
            tiles_a: FastDiv::new(tiles_a),
            tiles_b: FastDiv::new(tiles_b),
            rank: 0,
            pad: 0,
            dims: [FastDiv::default(); RANK],
            src_strides: [0; RANK],
            dst_strides: [0; RANK],
            tiles: tiles_a * tiles_b,
            src: self.src,
            dst: self.dst,
        };
        for (k, d) in (0..self.rank).rev().filter(|d| *d != a && *d != b).enumerate() {
            args.dims[k] = FastDiv::new(self.sizes[d]);
            args.src_strides[k] = self.from[d] as i64;
            args.dst_strides[k] = self.to[d] as i64;
            args.tiles *= self.sizes[d];
            args.rank += 1;
        }
        let mut steps = (0..self.rank).flat_map(|d| {
            let of_src = (d != b).then_some(self.from[d]);
            of_src.into_iter().chain((d != a).then_some(self.to[d]))
        });
        let packs = |elements: u64| (elements * self.size).is_multiple_of(16);
        let whole = steps.all(packs) && packs(self.sizes[a]) && packs(self.sizes[b]);
        (args, whole && (self.src | self.dst).is_multiple_of(16))
    }

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

    /// Blocks for a device of so many multiprocessors.
    fn blocks(&self, sm_count: u64) -> Blocks {
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
        args
    }
}

struct Permuter {
    mover: Mover,
    /// Without and with whole packs of 16 bytes.
    tiles: [Lazy; 2],
    /// For addresses that are multiples of an element's size, and of half of it; for long runs and short ones.
    blocks: [[Lazy; 2]; 2],
    /// For each of [`PLANES`], interleaved and taken apart.
    planes: [[Lazy; 2]; PLANES.len()],
    size: u64,
    sm_count: u64,
}

impl Kernel<Permute, CudaDevice> for Permuter {
    unsafe fn launch(&self, stream: &CudaStream, args: &PermuteArgs) -> Result<()> {
        // SAFETY: the launch has been checked, and its dims are readable during the call.
        let (dims, permutation) = unsafe {
            (sizes(view(args.src_dims, args.num_dims)), sizes(view(args.permutation, args.num_dims)))
        };
        let permutation = Permutation::simplify(&dims, &permutation, self.size as usize)?;
        if permutation.count() == 0 {
            return Ok(());
        }
        let plan = Plan::new(&permutation, self.size, args.src, args.dst);
        let loose = is_loose(self.size, args.src | args.dst);
        // SAFETY: the caller promises both operands, which do not overlap, and each is the argument of its kernel.
        unsafe {
            if plan.keeps_runs() {
                return self.mover.run(stream, plan.runs());
            }
            if let Some((planes, apart, argument)) = plan.planes() {
                let geometry = Geometry::covering(argument.packs, THREADS, 1)?;
                let kernel = &self.planes[(planes - PLANES[0]) as usize][usize::from(apart)];
                return kernel.get()?.launch(stream, geometry, &argument);
            }
            if plan.fills_tiles() && !loose {
                let (argument, whole) = plan.tiles();
                let geometry = Geometry::linear(argument.tiles.min(MAX_GRID) as u32, THREADS);
                return self.tiles[usize::from(whole)].get()?.launch(stream, geometry, &argument);
            }
            let argument = plan.blocks(self.sm_count);
            if argument.is_far() {
                return self.mover.run(stream, plan.runs());
            }
            let geometry = Geometry::linear(argument.blocks.min(MAX_GRID) as u32, THREADS);
            let kernel = &self.blocks[usize::from(loose)][usize::from(argument.is_short())];
            kernel.get()?.launch(stream, geometry, &argument)
        }
    }

    fn describe(&self) -> &str {
        "runs by the largest pieces, planes, tiles, or blocks of any rank in shared memory, by the dimensions"
    }
}

#[cfg(test)]
mod tests {
    use super::super::nd::tests::divide;
    use super::*;

    fn plan(dims: &[usize], perm: &[usize], size: u64) -> Plan {
        let permutation = Permutation::simplify(dims, perm, size as usize).unwrap();
        Plan::new(&permutation, size, 0x1000, 0x2000)
    }

    /// Where each element of the source goes, by the plan's own strides.
    fn expected(plan: &Plan) -> Vec<Option<u64>> {
        let count: u64 = plan.sizes.iter().product();
        let place = |element: u64| {
            (0..plan.rank).map(|d| element / plan.from[d] % plan.sizes[d] * plan.to[d]).sum::<u64>()
        };
        (0..count).map(|e| Some(place(e))).collect()
    }

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
    fn emulate_blocks(plan: &Plan, sm_count: u64) -> Vec<Option<u64>> {
        let args = plan.blocks(sm_count);
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
            let words = elements_of_lane(plan.size) / in_word * u64::from(side.lanes);
            for unit in 0..u64::from(side.runs) * side.segments.divisor() * words {
                let (number, segment) = divide(side.segments, unit / words);
                let at = (segment * words + unit % words) * in_word;
                let Some((offset, place)) = run_at(side, number, left).filter(|_| at < length) else {
                    continue;
                };
                assert!(place % in_word == 0 && (place + at + in_word) * plan.size <= VOLUMES[1] + SLACK);
                for i in at..length.min(at + in_word) {
                    assert_eq!(shared.insert(place + i, src + offset + i), None, "one place for two");
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
                    let (mut rest, mut place) = (at as u64, place);
                    for d in 0..args.run_rank as usize {
                        let mut index = rest;
                        if d + 1 < args.run_rank as usize {
                            (rest, index) = divide(args.in_run[d], rest);
                        }
                        place += index * u64::from(args.run_to_shared[d]);
                    }
                    let from = shared[&place] as usize;
                    assert_eq!(moved[from].replace(dst + offset + at as u64), None, "moved twice");
                }
            }
        }
        moved
    }

    /// As the blocks of transpose.cu do.
    fn emulate_tiles(plan: &Plan) -> Vec<Option<u64>> {
        let (args, _) = plan.tiles();
        let tile = tile(plan.size);
        let mut moved = vec![None; plan.sizes.iter().product::<u64>() as usize];
        for t in 0..args.tiles {
            let (rest, of_a) = divide(args.tiles_a, t);
            let (mut rest, of_b) = divide(args.tiles_b, rest);
            let (mut src, mut dst) = (0, 0);
            for d in 0..args.rank as usize {
                let mut index = rest;
                if d + 1 < args.rank as usize {
                    (rest, index) = divide(args.dims[d], rest);
                }
                src += index * args.src_strides[d] as u64;
                dst += index * args.dst_strides[d] as u64;
            }
            for a in of_a * tile..args.a.min((of_a + 1) * tile) {
                for b in of_b * tile..args.b.min((of_b + 1) * tile) {
                    let from = (src + a * args.src_stride + b) as usize;
                    assert_eq!(moved[from].replace(dst + b * args.dst_stride + a), None, "moved twice");
                }
            }
        }
        moved
    }

    /// As the threads of interleave.cu do.
    fn emulate_planes(plan: &Plan) -> Option<Vec<Option<u64>>> {
        let (planes, apart, args) = plan.planes()?;
        let (in_pack, per_plane) = (16 / plan.size, args.per_plane.divisor());
        let mut moved = vec![None; plan.sizes.iter().product::<u64>() as usize];
        for pack in 0..args.packs {
            let (set, index) = divide(args.per_plane, pack);
            for (k, i) in (0..planes).flat_map(|k| (0..in_pack).map(move |i| (k, i))) {
                let split = (set * planes * per_plane + k * per_plane + index) * in_pack + i;
                let mixed = (pack * in_pack + i) * planes + k;
                let (from, to) = if apart { (mixed, split) } else { (split, mixed) };
                assert_eq!(moved[from as usize].replace(to), None, "moved twice");
            }
        }
        Some(moved)
    }

    #[test]
    fn planes_move_every_element_once_to_its_place() {
        let taken: [(&[usize], &[usize]); 6] = [
            (&[5, 3, 208], &[0, 2, 1]),
            (&[7, 208, 3], &[0, 2, 1]),
            (&[5, 4, 16, 17], &[0, 2, 3, 1]),
            (&[3, 1040, 4], &[0, 2, 1]),
            (&[2, 9008], &[1, 0]),
            (&[9008, 2], &[1, 0]),
        ];
        for (dims, perm) in taken {
            for size in PLANE_SIZES {
                let plan = plan(dims, perm, size);
                assert_eq!(emulate_planes(&plan), Some(expected(&plan)), "{dims:?} {perm:?} of {size}");
            }
        }
        let left: [(&[usize], &[usize], u64); 6] = [
            (&[5, 3, 208], &[0, 2, 1], 4),
            (&[5, 5, 208], &[0, 2, 1], 2),
            (&[5, 3, 204], &[0, 2, 1], 2),
            (&[5, 3, 112], &[0, 2, 1], 1),
            (&[5, 3, 208], &[2, 1, 0], 2),
            (&[5, 3, 208], &[2, 0, 1], 2),
        ];
        for (dims, perm, size) in left {
            assert!(plan(dims, perm, size).planes().is_none(), "{dims:?} {perm:?} of {size}");
        }
    }

    const CASES: [(&[usize], &[usize]); 9] = [
        (&[70, 200], &[1, 0]),
        (&[3, 5], &[1, 0]),
        (&[2, 3, 4, 5], &[3, 2, 1, 0]),
        (&[5, 7, 9, 3], &[2, 0, 3, 1]),
        (&[64, 3, 33], &[2, 1, 0]),
        (&[130, 2, 129], &[2, 0, 1]),
        (&[1, 17, 1, 300, 2], &[3, 4, 0, 1, 2]),
        (&[2, 2, 2, 2, 2, 2, 2, 3], &[7, 5, 3, 1, 6, 4, 2, 0]),
        (&[4000, 3], &[1, 0]),
    ];

    #[test]
    fn blocks_move_every_element_once_to_its_place() {
        for (dims, perm) in CASES {
            for size in SIZES {
                let plan = plan(dims, perm, size);
                // Small and large blocks.
                for sm_count in [1 << 20, 0] {
                    assert_eq!(
                        emulate_blocks(&plan, sm_count),
                        expected(&plan),
                        "{dims:?} {perm:?} of {size}"
                    );
                }
            }
        }
    }

    #[test]
    fn tiles_move_every_element_once_to_its_place() {
        for (dims, perm) in CASES {
            for size in [1, 4, 16] {
                let plan = plan(dims, perm, size);
                assert_eq!(emulate_tiles(&plan), expected(&plan), "{dims:?} {perm:?} of {size}");
            }
        }
    }

    #[test]
    fn the_way_follows_from_the_innermost_dimensions() {
        assert!(plan(&[8, 9, 10], &[1, 0, 2], 4).keeps_runs());
        let square = plan(&[64, 64], &[1, 0], 4);
        assert!(!square.keeps_runs() && square.fills_tiles() && square.tiles().1);
        assert!(!plan(&[64, 66], &[1, 0], 4).tiles().1, "rows of 264 bytes");
        assert!(!plan(&[64, 31], &[1, 0], 4).fills_tiles());
        assert!(plan(&[16, 16], &[1, 0], 8).fills_tiles());
        assert_eq!((size_of::<Tiles>(), size_of::<Blocks>(), size_of::<Planes>()), (352, 1120, 40));
        let huge = |n: usize| plan(&[3, n], &[1, 0], 1);
        assert!(!huge(1 << 40).blocks(132).is_far() && huge(1 << 50).blocks(132).is_far());
        let bytes = |n: usize| u64::from(huge(n).blocks(132).dst_side.run);
        assert!(
            bytes(1 << 20) <= VOLUMES[0] && bytes(1 << 30) > VOLUMES[0],
            "long runs where there are many"
        );
    }
}

//! `permute`: runs that stay are copied, two dimensions that are exchanged go through tiles, small dimensions through
//! blocks of any rank.

use super::copy::{self, Move, Mover};
use super::nd::{FastDiv, RANK};
use super::source::{PERMUTE, TRANSPOSE};
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
/// Blocks of permute.cu for each multiprocessor: what depends on the thread alone is computed once for several.
const BLOCKS_PER_SM: u64 = 16;

/// Elements of a block for each thread: a block and its tables fit the shared memory that needs no asking for.
fn each(size: u64) -> u64 {
    if size <= 4 { 8 } else { 4 }
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

fn blocks_spec(size: u64, loose: bool) -> Spec {
    let spec = Spec::new(&PERMUTE).with("EP_SIZE", size).with("EP_THREADS", THREADS);
    with_loose(spec.with("EP_EACH", each(size)), loose)
}

pub(super) fn kernels() -> [(&'static str, Vec<Spec>); 1] {
    let of_size = |size| [tiles_spec(size, false), tiles_spec(size, true)];
    let blocks = with_loose_sizes(blocks_spec);
    let tiles = SIZES.into_iter().flat_map(of_size);
    [(Permute::NAME, copy::kernels().into_iter().chain(tiles).chain(blocks).collect())]
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
        blocks: [false, true].map(|loose| lazy(blocks_spec(size, loose))),
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

/// `Args` of permute.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Blocks {
    src_size: [FastDiv; RANK],
    dst_size: [FastDiv; RANK],
    src_strides: [i64; RANK],
    dst_strides: [i64; RANK],
    dst_to_shared: [u32; RANK],
    src_cut: [u32; RANK],
    dst_cut: [u32; RANK],
    cut_size: [u64; 2],
    cut_extent: [u64; 2],
    rank: u32,
    elements: u32,
    count: [FastDiv; RANK],
    src_step: [i64; RANK],
    dst_step: [i64; RANK],
    cut_of: [u32; RANK],
    blocks: u64,
    src: u64,
    dst: u64,
}

impl Blocks {
    /// Whether offsets within a block are not below 2^31.
    fn is_far(&self) -> bool {
        let reach = |sizes: &[FastDiv; RANK], strides: &[i64; RANK]| {
            let dims = sizes.iter().zip(strides);
            dims.map(|(size, stride)| (size.divisor() - 1).saturating_mul(*stride as u64))
                .fold(0u64, u64::saturating_add)
        };
        let far = reach(&self.src_size, &self.src_strides).max(reach(&self.dst_size, &self.dst_strides));
        far >= 1 << 31
    }
}

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

    /// How many indices of each dimension a block has: as long runs on both sides as there is room for.
    fn block(&self) -> [u64; RANK] {
        let volume = each(self.size) * u64::from(THREADS);
        let (rank, orders) = (self.rank, self.orders());
        let mut block = [1; RANK];
        // The length of a side's run, and the dimension that ends it.
        let run = |block: &[u64; RANK], order: &[usize; RANK]| {
            let mut length = 1;
            for d in &order[..rank] {
                length *= block[*d];
                if block[*d] < self.sizes[*d] {
                    return (length, Some(*d));
                }
            }
            (length, None)
        };
        loop {
            // The shorter run grows, as long as the block has room for it.
            let runs = [run(&block, &orders[0]), run(&block, &orders[1])];
            let sides = if runs[1].0 < runs[0].0 { [1, 0] } else { [0, 1] };
            let grown = sides.into_iter().filter_map(|side| runs[side].1).find_map(|d| {
                let room = volume / (block[..rank].iter().product::<u64>() / block[d]);
                let size = self.sizes[d].min(block[d] * 2).min(room);
                (size > block[d]).then_some((d, size))
            });
            match grown {
                Some((d, size)) => block[d] = size,
                None => break,
            }
        }
        // Blocks along a dimension are made equal.
        for (block, size) in block.iter_mut().zip(self.sizes) {
            *block = size.div_ceil(size.div_ceil(*block));
        }
        block
    }

    fn blocks(&self) -> Blocks {
        let (block, sizes, rank) = (self.block(), self.sizes, self.rank);
        let one = FastDiv::new(1);
        let mut args = Blocks {
            src_size: [one; RANK],
            dst_size: [one; RANK],
            src_strides: [0; RANK],
            dst_strides: [0; RANK],
            dst_to_shared: [0; RANK],
            src_cut: [0; RANK],
            dst_cut: [0; RANK],
            cut_size: [1; 2],
            cut_extent: [1; 2],
            rank: 0,
            elements: 1,
            count: [FastDiv::default(); RANK],
            src_step: [0; RANK],
            dst_step: [0; RANK],
            cut_of: [0; RANK],
            blocks: 1,
            src: self.src,
            dst: self.dst,
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
        let mut in_shared = [0; RANK];
        for (k, d) in by_src[..rank].iter().copied().filter(|d| block[*d] > 1).enumerate() {
            in_shared[d] = args.elements;
            args.elements *= block[d] as u32;
            args.src_size[k] = FastDiv::new(block[d]);
            args.src_strides[k] = self.from[d] as i64;
            args.src_cut[k] = cut[d];
        }
        for (k, d) in by_dst[..rank].iter().copied().filter(|d| block[*d] > 1).enumerate() {
            args.dst_size[k] = FastDiv::new(block[d]);
            args.dst_strides[k] = self.to[d] as i64;
            args.dst_to_shared[k] = in_shared[d];
            args.dst_cut[k] = cut[d];
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
    /// For addresses that are multiples of an element's size, and of half of it.
    blocks: [Lazy; 2],
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
            if plan.fills_tiles() && !loose {
                let (argument, whole) = plan.tiles();
                let geometry = Geometry::linear(argument.tiles.min(MAX_GRID) as u32, THREADS);
                return self.tiles[usize::from(whole)].get()?.launch(stream, geometry, &argument);
            }
            let argument = plan.blocks();
            if argument.is_far() {
                return self.mover.run(stream, plan.runs());
            }
            let grid = argument.blocks.min(self.sm_count * BLOCKS_PER_SM);
            let function = self.blocks[usize::from(loose)].get()?;
            function.launch(stream, Geometry::linear(grid as u32, THREADS), &argument)
        }
    }

    fn describe(&self) -> &str {
        "runs by the largest pieces, tiles, or blocks of any rank in shared memory, by the dimensions"
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

    /// As the threads of permute.cu move elements.
    fn emulate_blocks(plan: &Plan) -> Vec<Option<u64>> {
        let args = plan.blocks();
        assert!(u64::from(args.elements) <= each(plan.size) * u64::from(THREADS));
        let mut moved = vec![None; plan.sizes.iter().product::<u64>() as usize];
        let side = |element: u64, sizes: &[FastDiv; RANK], strides: &[i64; RANK], cuts: &[u32; RANK]| {
            let (mut rest, mut offset, mut cut, mut indices) = (element, 0i64, [0u64; 2], [0; RANK]);
            for d in 0..RANK {
                (rest, indices[d]) = divide(sizes[d], rest);
                offset += indices[d] as i64 * strides[d];
                if cuts[d] > 0 {
                    cut[cuts[d] as usize - 1] |= indices[d];
                }
            }
            (offset, cut, indices)
        };
        for block in 0..args.blocks {
            let (mut rest, mut src, mut dst, mut left) = (block, 0, 0, args.cut_extent);
            for d in 0..args.rank as usize {
                let mut index = rest;
                if d + 1 < args.rank as usize {
                    (rest, index) = divide(args.count[d], rest);
                }
                src += index as i64 * args.src_step[d];
                dst += index as i64 * args.dst_step[d];
                if let Some(cut) = (args.cut_of[d] as usize).checked_sub(1) {
                    left[cut] -= index * args.cut_size[cut];
                }
            }
            let inside = |cut: [u64; 2]| cut[0] < left[0] && cut[1] < left[1];
            let mut shared = vec![None; args.elements as usize];
            for e in 0..u64::from(args.elements) {
                let (offset, cut, _) = side(e, &args.src_size, &args.src_strides, &args.src_cut);
                if inside(cut) {
                    shared[e as usize] = Some(src + offset);
                }
            }
            for e in 0..u64::from(args.elements) {
                let (offset, cut, indices) = side(e, &args.dst_size, &args.dst_strides, &args.dst_cut);
                let place: u64 = (0..RANK).map(|d| indices[d] * u64::from(args.dst_to_shared[d])).sum();
                if inside(cut) {
                    let from = shared[place as usize].expect("it was read") as usize;
                    assert_eq!(moved[from].replace((dst + offset) as u64), None, "moved twice");
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
                assert_eq!(emulate_blocks(&plan), expected(&plan), "{dims:?} {perm:?} of {size}");
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
        assert_eq!((size_of::<Tiles>(), size_of::<Blocks>()), (352, 832));
        let huge = |n: usize| plan(&[3, n], &[1, 0], 1);
        assert!(!huge(1 << 20).blocks().is_far() && huge(1 << 31).blocks().is_far());
    }
}

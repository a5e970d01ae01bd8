//! `permute`: runs that stay are copied, a few planes are interleaved or taken apart, two dimensions that are exchanged go
//! through tiles, small dimensions through blocks of any rank.

mod blocks;

use super::copy::{self, Move, Mover};
use super::nd::{FastDiv, RANK};
use super::recent::Recent;
use super::source::{INTERLEAVE, PERMUTE, TRANSPOSE};
use super::{SIZES, is_loose, with_loose, with_loose_sizes};
use crate::compiler::{Arch, Spec};
use crate::device::CudaDevice;
use crate::kernel::{Argument, Geometry, Lazy};
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use blocks::Blocks;
use ep_core::op::{Op, view};
use ep_core::primitive::{Permute, PermuteArgs, PermuteDesc};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Result};
use primitives::permute::Permutation;

const THREADS: u32 = 256;
const MAX_GRID: u64 = 1 << 30;
/// Planes that interleave.cu takes, bytes of an element and of a plane.
const PLANES: [u64; 3] = [2, 3, 4];
const PLANE_SIZES: [u64; 3] = [1, 2, 4];
const LEAST_PLANE: u64 = 128;

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

/// Bytes of elements of which long runs are copied in bulk: four are copied as fast by words.
const BULK_SIZES: [u64; 2] = [1, 2];

fn bulk_spec(size: u64, short: bool) -> Spec {
    blocks_spec(size, false, short).with("EP_BULK", 1)
}

fn planes_spec(size: u64, planes: u64, apart: bool) -> Spec {
    Spec::new(&INTERLEAVE)
        .with("EP_SIZE", size)
        .with("EP_PLANES", planes)
        .with("EP_APART", u32::from(apart))
        .with("EP_THREADS", THREADS)
}

fn has_bulk(arch: Arch, size: u64) -> bool {
    arch >= Arch::new(9, 0) && BULK_SIZES.contains(&size)
}

pub(super) fn kernels(arch: Arch) -> [(&'static str, Vec<Spec>); 1] {
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
    let bulk_sizes = BULK_SIZES.into_iter().filter(|size| has_bulk(arch, *size));
    let bulk = bulk_sizes.flat_map(|size| [false, true].map(|short| bulk_spec(size, short)));
    let all = copy::kernels().into_iter().chain(tiles).chain(blocks).chain(planes).chain(bulk);
    [(Permute::NAME, all.collect())]
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let rows = DType::ALL.iter().map(|d| [*d]);
    registrar.add(Factory::<Permute, _, _>::new("permute", build).dtypes(rows).capturable())
}

fn build(device: &CudaDevice, desc: &PermuteDesc) -> Result<Permuter> {
    let (loader, size) = (device.loader()?, desc.data.bytes_for_bounds());
    let lazy = |spec| Lazy::new(&loader, Permute::NAME, spec);
    let bulk = has_bulk(device.properties().arch, size);
    Ok(Permuter {
        mover: Mover::new(&loader, Permute::NAME, size),
        tiles: [false, true].map(|vector| lazy(tiles_spec(size, vector))),
        blocks: [false, true].map(|loose| [false, true].map(|short| lazy(blocks_spec(size, loose, short)))),
        bulk: bulk.then(|| [false, true].map(|short| lazy(bulk_spec(size, short)))),
        planes: PLANES.map(|planes| [false, true].map(|apart| lazy(planes_spec(size, planes, apart)))),
        size,
        sm_count: u64::from(device.properties().sm_count),
        recent: Recent::default(),
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
}

struct Permuter {
    mover: Mover,
    /// Without and with whole packs of 16 bytes.
    tiles: [Lazy; 2],
    /// For addresses that are multiples of an element's size, and of half of it; for long runs and short ones.
    blocks: [[Lazy; 2]; 2],
    /// The same where runs are copied in bulk.
    bulk: Option<[Lazy; 2]>,
    /// For each of [`PLANES`], interleaved and taken apart.
    planes: [[Lazy; 2]; PLANES.len()],
    size: u64,
    sm_count: u64,
    recent: Recent<Asked, Way>,
}

/// What a way to move depends on: the dimensions, how they are permuted, and where operands begin within [`PLACES`] bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Asked {
    num_dims: usize,
    dims: [i64; RANK],
    permutation: [i64; RANK],
    src: u64,
    dst: u64,
}

/// Bytes of the largest pieces that are moved.
const PLACES: u64 = 16;

/// How a permutation is moved. Addresses are still those within [`PLACES`].
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "one is kept for each primitive")]
enum Way {
    /// There are no elements.
    Nothing,
    /// The innermost dimension stays, or there are more blocks than are counted.
    Runs(Plan),
    /// So many of [`PLANES`], taken apart or interleaved.
    Planes { planes: usize, apart: bool, geometry: Geometry, argument: Planes },
    /// With or without whole packs of 16 bytes.
    Tiles { whole: bool, geometry: Geometry, argument: Tiles },
    /// Of elements at multiples of half their size, or of all of it; with runs that are copied in bulk or not.
    Blocks { loose: bool, is_bulk: bool, geometry: Geometry, argument: Blocks },
}

impl Permuter {
    fn way(&self, asked: &Asked) -> Result<Way> {
        let of = |values: &[i64; RANK]| values.map(|n| n as usize);
        let (dims, order) = (of(&asked.dims), of(&asked.permutation));
        let n = asked.num_dims;
        let permutation = Permutation::simplify(&dims[..n], &order[..n], self.size as usize)?;
        if permutation.count() == 0 {
            return Ok(Way::Nothing);
        }
        let plan = Plan::new(&permutation, self.size, asked.src, asked.dst);
        let loose = is_loose(self.size, asked.src | asked.dst);
        if plan.keeps_runs() {
            return Ok(Way::Runs(plan));
        }
        if let Some((planes, apart, argument)) = plan.planes() {
            let geometry = Geometry::covering(argument.packs, THREADS, 1)?;
            let planes = (planes - PLANES[0]) as usize;
            return Ok(Way::Planes { planes, apart, geometry, argument });
        }
        if plan.fills_tiles() && !loose {
            let (argument, whole) = plan.tiles();
            let geometry = Geometry::linear(argument.tiles.min(MAX_GRID) as u32, THREADS);
            return Ok(Way::Tiles { whole, geometry, argument });
        }
        let (argument, is_bulk) = plan.blocks(self.sm_count, self.bulk.is_some() && !loose);
        if argument.is_far() {
            return Ok(Way::Runs(plan));
        }
        let geometry = Geometry::linear(argument.blocks.min(MAX_GRID) as u32, THREADS);
        Ok(Way::Blocks { loose, is_bulk, geometry, argument })
    }
}

impl Kernel<Permute, CudaDevice> for Permuter {
    unsafe fn launch(&self, stream: &CudaStream, args: &PermuteArgs) -> Result<()> {
        let (src, dst) = (args.src, args.dst);
        // SAFETY: the launch has been checked, and its dims are readable during the call.
        let (dims, permutation) =
            unsafe { (view(args.src_dims, args.num_dims), view(args.permutation, args.num_dims)) };
        let mut asked = Asked {
            num_dims: dims.len().min(RANK),
            dims: [1; RANK],
            permutation: [0; RANK],
            src: src % PLACES,
            dst: dst % PLACES,
        };
        asked.dims.iter_mut().zip(dims).for_each(|(to, from)| *to = *from);
        asked.permutation.iter_mut().zip(permutation).for_each(|(to, from)| *to = *from);
        // SAFETY: the caller promises both operands, which do not overlap, and each is the argument of its kernel. What was
        // found for other addresses fits these, which are the same within the bytes that are moved at once.
        unsafe {
            match self.recent.get_or_try(asked, || self.way(&asked))? {
                Way::Nothing => Ok(()),
                Way::Runs(plan) => self.mover.run(stream, Plan { src, dst, ..plan }.runs()),
                Way::Planes { planes, apart, geometry, argument } => {
                    let kernel = &self.planes[planes][usize::from(apart)];
                    kernel.get()?.launch(stream, geometry, &Planes { src, dst, ..argument })
                }
                Way::Tiles { whole, geometry, argument } => {
                    let kernel = &self.tiles[usize::from(whole)];
                    kernel.get()?.launch(stream, geometry, &Tiles { src, dst, ..argument })
                }
                Way::Blocks { loose, is_bulk, geometry, mut argument } => {
                    (argument.src, argument.dst) = (src, dst);
                    let bulk = self.bulk.as_ref().filter(|_| is_bulk);
                    let kernels = bulk.unwrap_or(&self.blocks[usize::from(loose)]);
                    let kernel = &kernels[usize::from(argument.is_short(is_bulk))];
                    kernel.get()?.launch(stream, geometry, &argument)
                }
            }
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

    pub(super) fn plan(dims: &[usize], perm: &[usize], size: u64) -> Plan {
        let permutation = Permutation::simplify(dims, perm, size as usize).unwrap();
        Plan::new(&permutation, size, 0x1000, 0x2000)
    }

    /// Where each element of the source goes, by the plan's own strides.
    pub(super) fn expected(plan: &Plan) -> Vec<Option<u64>> {
        let count: u64 = plan.sizes.iter().product();
        let place = |element: u64| {
            (0..plan.rank).map(|d| element / plan.from[d] % plan.sizes[d] * plan.to[d]).sum::<u64>()
        };
        (0..count).map(|e| Some(place(e))).collect()
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
            (&[5, 3, 208], &[0, 2, 1], 8),
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

    pub(super) const CASES: [(&[usize], &[usize]); 9] = [
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
        assert_eq!((size_of::<Tiles>(), size_of::<Planes>()), (352, 40));
    }
}

//! `layer_norm` and `rms_norm`: rows in registers, or read again for each thing that they need.

use super::recent::Recent;
use super::rows::{Holding, Sharing, block_for_each, cheapest};
use super::source::{NORM, NORM_WIDE};
use super::{dtype_name, size};
use crate::compiler::{Arch, Spec};
use crate::device::CudaDevice;
use crate::kernel::{Argument, Geometry, Lazy};
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::op::Op;
use ep_core::primitive::{LayerNorm, LayerNormArgs, LayerNormDesc, RmsNorm, RmsNormArgs, RmsNormDesc};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Result};

const WIDE_THREADS: u32 = 512;
/// Packs of the widest rows that a warp takes.
const WIDEST_OF_WARP: u64 = 128;
/// Shared memory of a kernel for what warps tell each other, at most.
const STATIC_BYTES: u32 = 16 << 10;

/// Data and statistics.
const ROWS: [[DType; 2]; 4] =
    [[DType::F16, DType::F32], [DType::BF16, DType::F32], [DType::F32, DType::F32], [DType::F64, DType::F64]];

fn holding(data: DType) -> Holding {
    let bytes = data.bytes_for_bounds();
    Holding { pack: 16 / bytes, bytes, sources: 1, single: true }
}

/// Rows of which groups take several, with gamma and beta in shared memory; blocks take few rows like this as well where they
/// are not aligned.
#[derive(Debug, Clone, Copy)]
struct Way {
    sharing: Sharing,
    /// Packs of a row that it is for, at most.
    most: u64,
}

/// Threads, blocks (0 where warps do) and packs of a thread of each way, and, if its blocks may have fewer threads, how many they
/// have at most: for wide aligned rows of layer_norm, and for rows that are not aligned. Where kernels for one row at a time are
/// as fast there are none.
fn shapes(rms: bool, data: DType, aligned: bool) -> &'static [(u32, u32, u32, u32)] {
    match (data, aligned, rms) {
        (DType::F32, true, false) => &[(512, 4, 4, 0), (512, 8, 4, 512), (1024, 8, 4, 0)],
        (DType::F16 | DType::BF16, true, false) => &[(512, 4, 4, 512), (512, 8, 4, 0)],
        (DType::F32, false, false) => &[
            (512, 2, 4, 512),
            (512, 4, 4, 512),
            (512, 8, 4, 288),
            (640, 4, 5, 640),
            (544, 8, 6, 320),
            (512, 8, 4, 512),
            (640, 8, 5, 640),
        ],
        (DType::F16 | DType::BF16, false, false) => &[
            (128, 0, 2, 0),
            (128, 0, 3, 0),
            (128, 0, 4, 0),
            (64, 1, 3, 0),
            (128, 1, 3, 0),
            (512, 1, 4, 512),
            (512, 2, 4, 448),
            (512, 2, 4, 0),
            // Up to 320 threads there are three blocks for each multiprocessor.
            (512, 4, 4, 320),
            (640, 2, 5, 640),
            (512, 4, 4, 0),
            (512, 8, 5, 288),
            (640, 4, 5, 640),
            (512, 8, 4, 0),
            (640, 8, 5, 640),
        ],
        (DType::F16 | DType::BF16, false, true) => &[(128, 0, 2, 0), (512, 4, 4, 0), (512, 8, 4, 0)],
        _ => &[],
    }
}

fn ways(rms: bool, data: DType, arch: Arch, aligned: bool) -> Vec<Way> {
    let shapes = if arch < Arch::new(9, 0) { &[] } else { shapes(rms, data, aligned) };
    let of_shape = |&(threads, blocks, packs, fewer)| {
        let sharing = Sharing { threads, lanes: 32, blocks, rows: 1, packs, aligned, fewer: fewer > 0 };
        let most = if fewer > 0 { Sharing { threads: fewer, ..sharing } } else { sharing };
        Way { sharing, most: most.capacity() }
    };
    shapes.iter().map(of_shape).collect()
}

impl Way {
    fn spec(&self, rms: bool, data: DType) -> Spec {
        spec(rms, data, Some(self.sharing)).with("EP_KEPT", 1)
    }

    /// Packs that a row has to exceed.
    fn least(&self, rms: bool, data: DType) -> u64 {
        match (self.sharing.aligned, data) {
            (true, _) if self.sharing.fewer => self.sharing.capacity() / 2,
            // For rows that leave more threads without work one row at a time, among as many as it takes, is faster.
            (true, _) => self.sharing.capacity() / 8 * 7,
            (false, DType::F32) => 2048,
            (false, _) if rms && self.sharing.blocks > 0 => 4096,
            // In these a thread has three packs: where two would do, fewer threads with four each are faster.
            (false, _) if self.sharing.blocks == 1 && !self.sharing.fewer => self.sharing.capacity() / 3 * 2,
            (false, _) => 32,
        }
    }

    fn is_for(&self, rms: bool, data: DType, packs: u64) -> bool {
        (self.least(rms, data) + 1..=self.most).contains(&packs)
    }

    /// With more threads than a power of two the compiler has more registers for each, and one block fits a multiprocessor, of at most 320
    /// threads two.
    fn has_many_registers(&self) -> bool {
        self.sharing.blocks > 0 && !self.sharing.threads.is_power_of_two()
    }

    /// Blocks of as many threads that are on a multiprocessor at once.
    fn blocks_at_once(&self, threads: u32) -> u32 {
        let registers = if self.has_many_registers() { 96 } else { 64 };
        (1 << 16) / registers / threads
    }

    /// How many groups of threads take so many rows that are shared like this, several each where there are as many; none where
    /// there are too few and they are aligned, or each is a warp's.
    fn groups(&self, shared: &Sharing, rows: u64, sm_count: u32, pack: u64) -> Option<u64> {
        let sm_count = u64::from(sm_count);
        let at_once = match u64::from(shared.blocks) {
            0 => sm_count * 640 / u64::from(shared.lanes),
            blocks => {
                // A device's parts are not multiples of large clusters.
                let usable = match blocks {
                    ..4 => 48,
                    4..8 => 45,
                    _ => 44,
                };
                sm_count * u64::from(self.blocks_at_once(shared.threads)) * usable / (48 * blocks)
            }
        };
        let at_once = at_once.max(1);
        // All rows of a group begin at the same place of a pack.
        let whole = if shared.aligned { 1 } else { pack };
        let groups = |turns: u64| turns.saturating_mul(at_once).min(rows / FEWEST_ROWS) / whole * whole;
        let (least, turns) = if self.has_many_registers() {
            // With as many turns as there are places nothing is lost to whole numbers of groups.
            (
                at_once * 3,
                (1..=whole).min_by_key(|&turns| turns_take(groups(turns), at_once, rows)).unwrap_or(1),
            )
        } else {
            let most = if shared.blocks == 0 || (shared.blocks > 1 && shared.fewer && !shared.aligned) {
                24
            } else {
                12
            };
            let least = if shared.aligned { at_once * 18 } else { at_once * 3 / 2 };
            // All that are there at once end at about the same time, so there are whole turns of them.
            (least, rows.div_ceil(at_once).div_ceil(most))
        };
        let groups = groups(turns);
        match rows >= least && groups > 0 {
            true => Some(groups),
            // For blocks of rows that are not aligned nothing else is there: each row has a group of its own.
            false => (!shared.aligned && shared.blocks > 0).then_some(rows),
        }
    }
}

/// How long groups take for so many rows where blocks are alone, or two, on a multiprocessor: in 256ths of what a row takes, of which it takes
/// a group as long as two to begin.
fn turns_take(groups: u64, at_once: u64, rows: u64) -> u128 {
    if groups == 0 {
        return u128::MAX;
    }
    let (groups, of_row) = (u128::from(groups), 256);
    groups.div_ceil(at_once.into()) * (of_row * u128::from(rows) / groups + 2 * of_row)
}

/// Rows of each group at least where groups take several.
const FEWEST_ROWS: u64 = 3;

/// As [`cheapest`] asks.
fn is_laborious(rms: bool, data: DType) -> bool {
    !rms || holding(data).bytes == 2
}

/// Bytes of gamma and beta that a block keeps.
fn kept_bytes(rms: bool, shared: &Sharing) -> u32 {
    shared.threads * shared.packs * if rms { 16 } else { 32 }
}

fn spec(rms: bool, data: DType, sharing: Option<Sharing>) -> Spec {
    let pack = holding(data).pack;
    let spec = Spec::new(if sharing.is_some() { &NORM } else { &NORM_WIDE })
        .with("EP_DATA", dtype_name(data))
        .with("EP_RMS", u32::from(rms));
    match sharing {
        Some(sharing) => sharing.specialise(spec, pack),
        None => spec.with("EP_THREADS", WIDE_THREADS).with("EP_PACK", pack),
    }
}

/// How one row at a time is shared: where they are not aligned, rows of widths that none of these ways is for. Of f64 there are
/// fewer, for both: such rows are rare.
fn sharings(rms: bool, data: DType, arch: Arch, aligned: bool, ways: &[Way]) -> Vec<Sharing> {
    let few = |s: &Sharing| s.lanes == 32 && s.packs.is_power_of_two();
    let all = holding(data).sharings(arch, aligned && data != DType::F64);
    let mut before = 0;
    let mut is_used = |s: &Sharing| {
        let narrower = std::mem::replace(&mut before, s.capacity());
        // Where a launch may have fewer threads, the next one takes some of the rows that this one has room for.
        let narrowest = if s.fewer && s.blocks > 0 { WIDEST_OF_WARP } else { narrower } + 1;
        // A warp that keeps gamma and beta for few rows would be slower.
        let has_way = |packs| {
            let way = ways.iter().find(|way| way.is_for(rms, data, packs));
            !aligned && way.is_some_and(|way| way.sharing.blocks > 0)
        };
        !(has_way(narrowest) && has_way(s.capacity()))
    };
    // What rms_norm loads and says of a row is so little that blocks of 512 threads fill the memory where all of their packs are used.
    let widest = |s: Sharing| match (rms, s.blocks, s.threads, s.packs) {
        (true, 1, 256, 8) => Sharing { threads: 512, packs: 4, ..s },
        _ => s,
    };
    all.into_iter().map(widest).filter(|s| (data != DType::F64 || few(s)) && is_used(s)).collect()
}

pub(super) fn kernels(arch: Arch) -> [(&'static str, Vec<Spec>); 2] {
    [(LayerNorm::NAME, false), (RmsNorm::NAME, true)].map(|(name, rms)| {
        let of_row = |[data, _]: [DType; 2]| {
            let of_alignment = |aligned| {
                let ways = ways(rms, data, arch, aligned);
                let held = sharings(rms, data, arch, aligned, &ways).into_iter().map(Some);
                let held = held.map(move |sharing| spec(rms, data, sharing));
                held.chain(ways.into_iter().map(move |way| way.spec(rms, data))).collect::<Vec<_>>()
            };
            let of_widest = spec(rms, data, None);
            [true, false].into_iter().flat_map(of_alignment).chain([of_widest]).collect::<Vec<_>>()
        };
        (name, ROWS.into_iter().flat_map(of_row).collect())
    })
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let build =
        |device: &CudaDevice, d: &LayerNormDesc| Norm::new(device, LayerNorm::NAME, d.data, d.epsilon);
    registrar.add(Factory::<LayerNorm, _, _>::new("layer_norm", build).dtypes(ROWS).capturable())?;
    let build = |device: &CudaDevice, d: &RmsNormDesc| Norm::new(device, RmsNorm::NAME, d.data, d.epsilon);
    registrar.add(Factory::<RmsNorm, _, _>::new("rms_norm", build).dtypes(ROWS).capturable())
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    rows: u64,
    cols: u64,
    epsilon: f64,
    src: u64,
    dst: u64,
    gamma: u64,
    beta: u64,
    mean: u64,
    rstd: u64,
}

// SAFETY: as `Args` of norm.cu and of norm_wide.cu.
unsafe impl Argument for Args {}

struct Norm {
    data: DType,
    epsilon: f64,
    /// For aligned rows and others.
    held: [Vec<(Sharing, Lazy)>; 2],
    /// Where blocks or clusters take several rows, in the same order.
    kept: [Vec<(Way, Lazy)>; 2],
    rms: bool,
    wide: Lazy,
    sm_count: u32,
    /// By rows, columns, and whether those are aligned.
    recent: Recent<(u64, u64, bool), Chosen>,
}

/// Which of a primitive's kernels: those of [`Norm::kept`], of [`Norm::held`], or the one for rows of any width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Kept,
    Held,
    Wide,
}

/// What a launch needs: the number is that of the kernel among those of its kind.
#[derive(Debug, Clone, Copy)]
struct Chosen {
    kind: Kind,
    number: usize,
    geometry: Geometry,
}

impl Norm {
    fn new(device: &CudaDevice, name: &'static str, data: DType, epsilon: f64) -> Result<Norm> {
        let loader = device.loader()?;
        let (rms, properties) = (name == RmsNorm::NAME, device.properties());
        let lazy = |sharing| Lazy::new(&loader, name, spec(rms, data, sharing));
        let has_room = |way: &Way| kept_bytes(rms, &way.sharing) + STATIC_BYTES <= properties.shared_bytes;
        let ways = [true, false].map(|aligned| {
            ways(rms, data, properties.arch, aligned).into_iter().filter(has_room).collect::<Vec<_>>()
        });
        let held = [true, false].map(|aligned| {
            let of = sharings(rms, data, properties.arch, aligned, &ways[usize::from(!aligned)]);
            of.into_iter().map(|sharing| (sharing, lazy(Some(sharing)))).collect()
        });
        let of_way = |way: Way| (way, Lazy::new(&loader, name, way.spec(rms, data)));
        let kept = ways.map(|ways| ways.into_iter().map(of_way).collect());
        let sm_count = properties.sm_count;
        Ok(Norm { data, epsilon, held, kept, rms, wide: lazy(None), sm_count, recent: Recent::default() })
    }

    /// Where gamma and beta are kept: the number of the way, how rows are shared, and how many groups of threads take them, if
    /// that is faster or the only way to hold them.
    fn kept(&self, rows: u64, packs: u64, aligned: bool) -> Option<(usize, Sharing, u64)> {
        let mut ways = self.kept[usize::from(!aligned)].iter().enumerate();
        let (number, (way, _)) = ways.find(|(_, (way, _))| way.is_for(self.rms, self.data, packs))?;
        let shared = way.sharing.shared(packs);
        let groups = way.groups(&shared, rows, self.sm_count, holding(self.data).pack)?;
        Some((number, shared, groups))
    }

    /// The kernel and the grid for so many rows.
    fn chosen(&self, rows: u64, cols: u64, aligned: bool) -> Chosen {
        let packs = holding(self.data).packs(cols, aligned && self.data != DType::F64);
        // Over no columns the statistics are not numbers, which the general kernel finds by itself. Of one column it gives beta:
        // others round the mean of half types relative to the deviation.
        let wide = Chosen { kind: Kind::Wide, number: 0, geometry: block_for_each(rows, WIDE_THREADS) };
        if cols <= 1 {
            return wide;
        }
        if let Some((number, shared, groups)) = self.kept(rows, packs, aligned) {
            let geometry =
                Geometry { shared_bytes: kept_bytes(self.rms, &shared), ..shared.geometry(groups) };
            return Chosen { kind: Kind::Kept, number, geometry };
        }
        let held = self.held[usize::from(!aligned)].iter().map(|(sharing, _)| *sharing).enumerate();
        let with_room = held.filter(|(_, sharing)| sharing.capacity() >= packs);
        match cheapest(packs, is_laborious(self.rms, self.data), with_room, |(_, sharing)| Some(*sharing)) {
            Some((number, sharing)) => {
                Chosen { kind: Kind::Held, number, geometry: sharing.shared(packs).geometry(rows) }
            }
            None => wide,
        }
    }

    /// # Safety
    /// As for the op's launch: the operands that are given are valid, and 0 stands for the others.
    unsafe fn run(&self, stream: &CudaStream, args: Args) -> Result<()> {
        let Args { rows, cols, src, dst, .. } = args;
        if rows == 0 {
            return Ok(());
        }
        let aligned = (src | dst).is_multiple_of(16) && cols.is_multiple_of(holding(self.data).pack);
        let Chosen { kind, number, geometry } =
            self.recent.get_or((rows, cols, aligned), || self.chosen(rows, cols, aligned));
        let function = match kind {
            Kind::Kept => {
                let (way, lazy) = &self.kept[usize::from(!aligned)][number];
                let function = lazy.get()?;
                function.allow_shared(kept_bytes(self.rms, &way.sharing))?;
                function
            }
            Kind::Held => self.held[usize::from(!aligned)][number].1.get()?,
            Kind::Wide => self.wide.get()?,
        };
        // SAFETY: the caller's promise, and the argument of all of these kernels.
        unsafe { function.launch(stream, geometry, &args) }
    }
}

const ABOUT: &str =
    "rows in registers of a warp, a block or a cluster, one or several each, or read three times, by width";

impl Kernel<LayerNorm, CudaDevice> for Norm {
    unsafe fn launch(&self, stream: &CudaStream, a: &LayerNormArgs) -> Result<()> {
        let args = Args {
            rows: size(a.rows) as u64,
            cols: size(a.cols) as u64,
            epsilon: self.epsilon,
            src: a.src,
            dst: a.dst,
            gamma: a.gamma,
            beta: a.beta,
            mean: a.mean,
            rstd: a.rstd,
        };
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, args) }
    }

    fn describe(&self) -> &str {
        ABOUT
    }
}

impl Kernel<RmsNorm, CudaDevice> for Norm {
    unsafe fn launch(&self, stream: &CudaStream, a: &RmsNormArgs) -> Result<()> {
        let args = Args {
            rows: size(a.rows) as u64,
            cols: size(a.cols) as u64,
            epsilon: self.epsilon,
            src: a.src,
            dst: a.dst,
            gamma: a.weight,
            beta: 0,
            mean: 0,
            rstd: a.inv_rms,
        };
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, args) }
    }

    fn describe(&self) -> &str {
        ABOUT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOPPER: Arch = Arch::new(9, 0);

    #[test]
    fn blocks_that_take_several_rows_have_room_for_gamma_and_beta() {
        for data in [DType::F32, DType::F16, DType::BF16] {
            for (rms, aligned) in [(false, true), (false, false), (true, false)] {
                let ways = ways(rms, data, HOPPER, aligned);
                assert_eq!(ways.is_empty(), rms && data == DType::F32);
                assert!(ways.is_sorted_by(|a, b| a.most < b.most), "{data:?}");
                for way in &ways {
                    let sharing = &way.sharing;
                    // What an H200 has for a block, which blocks share.
                    assert!(kept_bytes(rms, sharing) + STATIC_BYTES <= 232_448, "{way:?}");
                    let of_pack = if rms { 16 } else { 32 };
                    let alone = if sharing.blocks == 0 { 4 } else { 1 };
                    let bytes = sharing.capacity() * alone * of_pack / u64::from(sharing.blocks.max(1));
                    assert_eq!(bytes, kept_bytes(rms, sharing).into());
                }
            }
            let widest = ways(false, data, HOPPER, true);
            let capacity = widest.last().map(|way| way.most);
            assert_eq!(capacity, Some(131_072 / (16 / data.bytes_for_bounds())));
        }
        let none = |rms, data, arch, aligned| ways(rms, data, arch, aligned).is_empty();
        assert!(none(true, DType::F32, HOPPER, true));
        for aligned in [true, false] {
            assert!(none(false, DType::F64, HOPPER, aligned) && none(true, DType::F64, HOPPER, aligned));
            assert!(none(false, DType::F32, Arch::new(8, 0), aligned), "no clusters before sm_90");
        }
    }

    #[test]
    fn as_few_warps_share_a_row_as_have_room_for_it() {
        for data in [DType::F32, DType::F16] {
            for way in [true, false].into_iter().flat_map(|aligned| ways(false, data, HOPPER, aligned)) {
                for packs in (1..=way.most).step_by(37).chain([way.most]) {
                    let shared = way.sharing.shared(packs);
                    assert!(
                        shared.capacity() >= packs && shared.threads.is_multiple_of(32),
                        "{way:?} {packs}"
                    );
                    assert!(shared.threads <= way.sharing.threads && shared.threads > 0);
                    let less = Sharing { threads: shared.threads - 32, ..shared };
                    assert!(!way.sharing.fewer || less.capacity() < packs, "{way:?} {packs}");
                    assert!(way.sharing.fewer || shared == way.sharing);
                    // Of blocks that are there at once all have room for gamma and beta.
                    let at_once = if shared.blocks == 0 { 5 } else { way.blocks_at_once(shared.threads) };
                    if packs > 2048 {
                        assert!((kept_bytes(false, &shared) + 4096) * at_once <= 232_448, "{way:?} {packs}");
                    }
                }
            }
        }
    }

    #[test]
    fn aligned_rows_of_a_block_have_deep_threads_but_the_widest_of_rms_norm() {
        for data in [DType::F32, DType::F16, DType::BF16] {
            let held = |rms: bool, packs: u64| {
                let all = sharings(rms, data, HOPPER, true, &ways(rms, data, HOPPER, true));
                let first = all.into_iter().find(|s| s.capacity() >= packs).unwrap();
                (first.threads, first.blocks, first.packs)
            };
            for rms in [true, false] {
                assert_eq!(
                    [1024, 1025, 1536].map(|packs| held(rms, packs)),
                    [(256, 1, 4), (256, 1, 6), (256, 1, 6)]
                );
                assert_eq!(held(rms, 2049), (512, 1, 6));
            }
            assert_eq!([1537, 2048].map(|packs| held(false, packs)), [(256, 1, 8); 2]);
            assert_eq!([1537, 2048].map(|packs| held(true, packs)), [(512, 1, 4); 2]);
        }
    }

    #[test]
    fn each_width_has_one_way_or_none() {
        let which = |rms, data, aligned, packs: u64| {
            let ways = ways(rms, data, HOPPER, aligned);
            let shared = ways.iter().find(|way| way.is_for(rms, data, packs))?.sharing.shared(packs);
            Some((shared.threads, shared.blocks, shared.packs))
        };
        // Clusters with room for 8192, 16384 and 32768 packs.
        let f32_aligned = |packs| which(false, DType::F32, true, packs);
        assert_eq!([7168, 7169, 8192].map(f32_aligned), [None, Some((512, 4, 4)), Some((512, 4, 4))]);
        assert_eq!(
            [8193, 12_564, 16_384].map(f32_aligned),
            [Some((288, 8, 4)), Some((416, 8, 4)), Some((512, 8, 4))]
        );
        assert_eq!([16_385, 28_672, 28_673, 32_768, 32_769].map(f32_aligned), {
            let widest = Some((1024, 8, 4));
            [None, None, widest, widest, None]
        });
        let aligned = |packs| which(false, DType::F16, true, packs);
        assert_eq!(
            [4096, 4097, 8192, 8193, 14_337].map(aligned),
            [None, Some((288, 4, 4)), Some((512, 4, 4)), None, Some((512, 8, 4))]
        );
        let apart = |packs| which(false, DType::BF16, false, packs);
        assert_eq!([32, 33, 64, 65, 128].map(apart), {
            let of_warp = |packs| Some((128, 0, packs));
            [None, of_warp(2), of_warp(2), of_warp(3), of_warp(4)]
        });
        assert_eq!(
            [129, 192, 193, 256, 257, 384, 385, 2048].map(apart),
            [
                (64, 1, 3),
                (64, 1, 3),
                (64, 1, 4),
                (64, 1, 4),
                (128, 1, 3),
                (128, 1, 3),
                (128, 1, 4),
                (512, 1, 4),
            ]
            .map(Some)
        );
        assert_eq!(
            [2049, 2502, 4096, 5002, 6144, 6284].map(apart),
            [(288, 2, 4), (320, 2, 4), (512, 2, 4), (320, 4, 4), (640, 2, 5), (640, 2, 5)].map(Some)
        );
        assert_eq!(
            [6401, 8194, 12_502, 12_801, 16_384, 16_385, 25_600].map(apart),
            [(512, 4, 4), (224, 8, 5), (640, 4, 5), (512, 8, 4), (512, 8, 4), (416, 8, 5), (640, 8, 5)]
                .map(Some)
        );
        assert_eq!(apart(25_601), None);
        let f32_apart = |packs| which(false, DType::F32, false, packs);
        assert_eq!([2048, 2049].map(f32_apart), [None, Some((288, 2, 4))]);
        assert_eq!(
            [5002, 8193, 12_566, 15_001, 15_361, 16_386, 25_002].map(f32_apart),
            [(320, 4, 4), (288, 8, 4), (640, 4, 5), (320, 8, 6), (512, 8, 4), (416, 8, 5), (640, 8, 5)]
                .map(Some)
        );
        assert_eq!([25_600, 25_601].map(f32_apart), [Some((640, 8, 5)), None]);
        assert_eq!([64, 65, 4096, 4097].map(|p| which(true, DType::F16, false, p)), {
            [Some((128, 0, 2)), None, None, Some((512, 4, 4))]
        });
        assert_eq!([3000, 12_566].map(|p| which(true, DType::F32, false, p)), [None, None]);
    }

    /// Every width has a kernel that holds its rows, as far as clusters do: one row at a time, or several.
    #[test]
    fn what_ways_are_for_needs_no_others() {
        let of = |rms, data, aligned| {
            let ways = ways(rms, data, HOPPER, aligned);
            let held = sharings(rms, data, HOPPER, aligned, &ways);
            (ways, held)
        };
        for (rms, data) in [false, true].into_iter().flat_map(|rms| ROWS.map(|[data, _]| (rms, data))) {
            let (ways, held) = of(rms, data, false);
            let all = holding(data).sharings(HOPPER, false);
            let widest = all.last().map_or(0, Sharing::capacity);
            assert!(widest > 16_384);
            for packs in (2..5000).chain((5000..=widest).step_by(61)).chain([widest]) {
                let way = ways.iter().find(|way| way.is_for(rms, data, packs));
                let has_way = way.is_some_and(|way| way.sharing.blocks > 0);
                let best = |list: &[Sharing]| {
                    let with_room = list.iter().filter(|s| s.capacity() >= packs);
                    cheapest(packs, is_laborious(rms, data), with_room, |s| Some(**s)).copied()
                };
                let is_there = data == DType::F64 || best(&held) == best(&all);
                assert!(has_way || (best(&held).is_some() && is_there), "{rms} {data} {packs}");
            }
            let capacities = |list: &[Sharing]| list.iter().map(Sharing::capacity).collect::<Vec<_>>();
            let (aligned, all) = (of(rms, data, true).1, holding(data).sharings(HOPPER, true));
            assert!(data == DType::F64 || capacities(&aligned) == capacities(&all));
            assert!(data == DType::F64 || rms || aligned == all);
        }
        let blocks = |rms, data| {
            let held = of(rms, data, false).1;
            held.iter().filter(|s| s.blocks > 0).map(|s| (s.threads, s.blocks, s.packs)).collect::<Vec<_>>()
        };
        // Ways of layer_norm end within the rows of the first of these.
        let widest = [(512, 8, 8), (1024, 8, 8)];
        assert_eq!(blocks(false, DType::F16), widest);
        let with_blocks = [[(512, 1, 4), (512, 1, 6), (512, 1, 8)].as_slice(), &widest].concat();
        assert_eq!(blocks(false, DType::F32), with_blocks);
        assert_eq!(blocks(true, DType::BF16), with_blocks);
    }

    /// Of devices with as much shared memory for a block as those from sm_90 on have, or as little.
    #[test]
    fn what_launches_need_is_compiled_ahead() {
        for (arch, shared) in [(HOPPER, 232_448), (Arch::new(12, 0), 101_376), (Arch::new(8, 0), 166_912)] {
            for (op, [data, _]) in kernels(arch).into_iter().flat_map(|op| ROWS.map(|row| (op.clone(), row)))
            {
                let (rms, listed) = (op.0 == RmsNorm::NAME, op.1.iter().map(Spec::key).collect::<Vec<_>>());
                for aligned in [true, false] {
                    let all = ways(rms, data, arch, aligned);
                    let with_room = |way: &&Way| kept_bytes(rms, &way.sharing) + STATIC_BYTES <= shared;
                    let ways: Vec<_> = all.iter().filter(with_room).copied().collect();
                    let held = sharings(rms, data, arch, aligned, &ways);
                    let specs = held.iter().map(|sharing| spec(rms, data, Some(*sharing)));
                    for spec in specs.chain(ways.iter().map(|way| way.spec(rms, data))) {
                        assert!(listed.contains(&spec.key()), "{spec} for {arch}");
                    }
                }
                assert!(listed.contains(&spec(rms, data, None).key()));
            }
        }
    }

    #[test]
    fn groups_are_whole_turns_whose_rows_begin_alike() {
        let of = |[compiled, threads]: [u32; 2], blocks, aligned, rows| {
            let fewer = compiled != threads || !compiled.is_power_of_two();
            let sharing = Sharing { threads: compiled, lanes: 32, blocks, rows: 1, packs: 4, aligned, fewer };
            let way = Way { sharing, most: 0 };
            way.groups(&Sharing { threads, ..sharing }, rows, 132, 8)
        };
        let count = |threads, blocks, aligned, rows| of([threads; 2], blocks, aligned, rows);
        // 61 clusters of four blocks at once, 30 of eight, 264 blocks alone, and 2640 warps.
        assert_eq!(count(512, 4, false, 4096), Some(6 * 61 / 8 * 8));
        assert_eq!(count(512, 8, true, 4096), Some(12 * 30));
        assert_eq!(count(512, 1, false, 264 * 12), Some(264));
        assert_eq!(count(512, 1, false, 264 * 12 + 1), Some(528));
        assert_eq!(count(128, 0, false, 49_152), Some(2640));
        // Three blocks for each multiprocessor where they have fewer threads, and twice as many rows for each cluster.
        assert_eq!(of([512, 320], 4, false, 4096), Some(2 * 92));
        assert_eq!([320, 288].map(|t| of([512, t], 8, true, 4096)), [Some(8 * 45); 2]);
        // Where threads have more registers there are 66 clusters of two blocks at once, 30 of four, or 61 with fewer threads, 15 of
        // eight; by how long turns take, of which whole packs use 8, 24, ... groups of 15, 30, ...
        assert_eq!([200, 4096, 8192].map(|rows| of([640, 640], 2, false, rows)), [Some(64); 3]);
        assert_eq!([800, 4096].map(|rows| of([640, 640], 4, false, rows)), [Some(56), Some(120)]);
        assert_eq!([320, 288].map(|t| of([544, t], 8, false, 4096)), [Some(120); 2]);
        assert_eq!(
            [100, 400, 2000, 1 << 40].map(|rows| of([640, 640], 8, false, rows)),
            [24, 40, 88, 120].map(Some)
        );
        // Few rows, and too few for several each.
        assert_eq!(count(512, 1, false, 396), Some(132 / 8 * 8));
        assert_eq!([395, 9, 1].map(|rows| count(512, 1, false, rows)), [395, 9, 1].map(Some));
        assert_eq!([count(128, 0, false, 3959), count(512, 1, true, 264 * 18 - 1)], [None, None]);
        let way = ways(false, DType::F32, HOPPER, false)[2];
        assert_eq!(way.groups(&way.sharing, 7, 1, 4), Some(7), "not one for each place");
        let way = ways(false, DType::F32, HOPPER, false)[6];
        assert!(way.has_many_registers());
        assert_eq!([11, 12].map(|rows| way.groups(&way.sharing, rows, 1, 4)), [Some(11), Some(4)]);
        for (threads, blocks) in [(64, 1), (128, 0), (512, 2), (512, 8), (640, 4), (544, 8)] {
            for rows in [1, 100, 5000, 1 << 20, 1 << 40, u64::MAX] {
                let found = count(threads, blocks, false, rows);
                let Some(found) = found else {
                    assert!(blocks == 0 && rows <= 100, "warps have another way for few rows");
                    continue;
                };
                assert!(
                    found > 0 && found <= rows && (found.is_multiple_of(8) || found == rows),
                    "{threads} {blocks} {rows}: {found}"
                );
            }
        }
    }
}

//! `layer_norm` and `rms_norm`: rows in registers, or read again for each thing that they need.

use super::rows::{Holding, Sharing, block_for_each};
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
/// Shared memory of a kernel for what warps tell each other, at most.
const STATIC_BYTES: u32 = 16 << 10;

/// Data and statistics.
const ROWS: [[DType; 2]; 4] =
    [[DType::F16, DType::F32], [DType::BF16, DType::F32], [DType::F32, DType::F32], [DType::F64, DType::F64]];

fn holding(data: DType) -> Holding {
    let bytes = data.bytes_for_bounds();
    Holding { pack: 16 / bytes, bytes, sources: 1, single: true }
}

/// Ways for wide aligned rows of layer_norm that clusters take several of, with gamma and beta in shared memory, by their
/// width. Where one row at a time is as fast there are none.
fn kept_sharings(rms: bool, data: DType, arch: Arch) -> Vec<Sharing> {
    let shapes: &[(u32, u32)] = match data {
        _ if rms || arch < Arch::new(9, 0) => &[],
        DType::F32 => &[(512, 4), (512, 8), (1024, 8)],
        DType::F16 | DType::BF16 => &[(512, 8)],
        _ => &[],
    };
    let of_shape =
        |&(threads, blocks)| Sharing { threads, lanes: 32, blocks, rows: 1, packs: 4, aligned: true };
    shapes.iter().map(of_shape).collect()
}

/// Whether rows of so many packs leave few of the threads of such a cluster without work: for others one row at a time,
/// among as many threads as it takes, is faster.
fn fills(sharing: &Sharing, packs: u64) -> bool {
    let capacity = sharing.capacity();
    packs <= capacity && packs > capacity / 8 * 7
}

fn kept_spec(data: DType, sharing: Sharing) -> Spec {
    spec(false, data, Some(sharing)).with("EP_KEPT", 1)
}

/// Bytes of gamma and beta that a block keeps.
fn kept_bytes(sharing: &Sharing) -> u32 {
    sharing.threads * sharing.packs * 32
}

/// How many rows a cluster takes one after the other, for six turns of all clusters that are there at once, so that they end
/// at about the same time.
fn rows_of_cluster(sharing: &Sharing, rows: u64, sm_count: u32) -> u64 {
    let at_once = u64::from(6 * sm_count * (1024 / sharing.threads));
    (rows.saturating_mul(u64::from(sharing.blocks)) / at_once).min(32)
}
/// Fewer are not worth filling shared memory for.
const FEWEST_ROWS: u64 = 3;

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

/// For aligned rows and others. Of f64 there are fewer, for both: such rows are rare.
fn sharings(data: DType, arch: Arch) -> [Vec<Sharing>; 2] {
    let few = |s: &Sharing| s.lanes == 32 && s.packs == s.packs.next_power_of_two();
    [true, false].map(|aligned| {
        let all = holding(data).sharings(arch, aligned && data != DType::F64);
        all.into_iter().filter(|s| data != DType::F64 || few(s)).collect()
    })
}

pub(super) fn kernels(arch: Arch) -> [(&'static str, Vec<Spec>); 2] {
    [(LayerNorm::NAME, false), (RmsNorm::NAME, true)].map(|(name, rms)| {
        let of_row = |[data, _]: [DType; 2]| {
            let held = sharings(data, arch).into_iter().flatten().map(Some);
            let kept = kept_sharings(rms, data, arch).into_iter().map(move |s| kept_spec(data, s));
            held.chain([None]).map(move |sharing| spec(rms, data, sharing)).chain(kept)
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
    /// For wide aligned rows, where clusters take several.
    kept: Vec<(Sharing, Lazy)>,
    wide: Lazy,
    sm_count: u32,
}

impl Norm {
    fn new(device: &CudaDevice, name: &'static str, data: DType, epsilon: f64) -> Result<Norm> {
        let loader = device.loader()?;
        let (rms, properties) = (name == RmsNorm::NAME, device.properties());
        let lazy = |sharing| Lazy::new(&loader, name, spec(rms, data, sharing));
        let held = sharings(data, properties.arch)
            .map(|list| list.into_iter().map(|sharing| (sharing, lazy(Some(sharing)))).collect());
        let has_room = |s: &Sharing| kept_bytes(s) + STATIC_BYTES <= properties.shared_bytes;
        let of_kept = |s| (s, Lazy::new(&loader, name, kept_spec(data, s)));
        let kept = kept_sharings(rms, data, properties.arch);
        let kept = kept.into_iter().filter(has_room).map(of_kept).collect();
        Ok(Norm { data, epsilon, held, kept, wide: lazy(None), sm_count: properties.sm_count })
    }

    /// The kernel for several rows at a time, and how many, where that is faster.
    fn kept(&self, rows: u64, packs: u64) -> Option<(&Sharing, &Lazy, u64)> {
        let (sharing, lazy) = self.kept.iter().find(|(s, _)| fills(s, packs))?;
        let each = rows_of_cluster(sharing, rows, self.sm_count);
        (each >= FEWEST_ROWS).then_some((sharing, lazy, each))
    }

    /// # Safety
    /// As for the op's launch: the operands that are given are valid, and 0 stands for the others.
    unsafe fn run(&self, stream: &CudaStream, args: Args) -> Result<()> {
        let Args { rows, cols, src, dst, .. } = args;
        if rows == 0 {
            return Ok(());
        }
        let holding = holding(self.data);
        let aligned = (src | dst).is_multiple_of(16) && cols.is_multiple_of(holding.pack);
        let packs = holding.packs(cols, aligned && self.data != DType::F64);
        // Over no columns the statistics are not numbers, which the general kernel finds by itself.
        let mut held = self.held[usize::from(!aligned)].iter().filter(|_| cols > 0);
        if aligned && let Some((sharing, lazy, each)) = self.kept(rows, packs) {
            let function = lazy.get()?;
            let shared_bytes = kept_bytes(sharing);
            function.allow_shared(shared_bytes)?;
            let geometry = Geometry { shared_bytes, ..sharing.geometry(rows.div_ceil(each)) };
            // SAFETY: the caller's promise, and the kernel's argument.
            return unsafe { function.launch(stream, geometry, &args) };
        }
        // SAFETY: the caller's promise, and the argument of both kernels.
        unsafe {
            match held.find(|(sharing, _)| sharing.capacity() >= packs) {
                Some((sharing, lazy)) => lazy.get()?.launch(stream, sharing.geometry(rows), &args),
                None => self.wide.get()?.launch(stream, block_for_each(rows, WIDE_THREADS), &args),
            }
        }
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
    fn clusters_that_take_several_rows_have_room_for_gamma_and_beta() {
        for data in [DType::F32, DType::F16, DType::BF16] {
            let kept = kept_sharings(false, data, HOPPER);
            assert!(kept.is_sorted_by_key(Sharing::capacity), "{data:?}");
            for sharing in &kept {
                let blocks_at_once = 1024 / sharing.threads;
                // What an H200 has for a block, which blocks share.
                assert!((kept_bytes(sharing) + STATIC_BYTES) * blocks_at_once <= 232_448, "{sharing:?}");
                assert_eq!(sharing.capacity() * 32 / u64::from(sharing.blocks), kept_bytes(sharing).into());
            }
            assert_eq!(kept.last().map(Sharing::capacity), Some(131_072 / (16 / data.bytes_for_bounds())));
        }
        let none = |rms, data, arch| kept_sharings(rms, data, arch).is_empty();
        assert!(none(true, DType::F32, HOPPER) && none(false, DType::F64, HOPPER));
        assert!(none(false, DType::F32, Arch::new(8, 0)), "no clusters before sm_90");
    }

    #[test]
    fn rows_that_would_leave_threads_idle_are_not_shared_so() {
        let kept = kept_sharings(false, DType::F32, HOPPER);
        let which = |packs| kept.iter().position(|s| fills(s, packs));
        // Of 8192, 16384 and 32768 packs.
        assert_eq!([7168, 7169, 8192, 8193].map(which), [None, Some(0), Some(0), None]);
        assert_eq!([14_336, 14_337, 16_384].map(which), [None, Some(1), Some(1)]);
        assert_eq!([28_672, 28_673, 32_768, 32_769].map(which), [None, Some(2), Some(2), None]);
    }

    #[test]
    fn a_cluster_takes_more_rows_the_more_there_are() {
        let kept = kept_sharings(false, DType::F32, HOPPER);
        let taken = |n: usize, rows| rows_of_cluster(&kept[n], rows, 132);
        // 512 threads in four blocks: 66 clusters at once; 1024 in eight: 16.
        assert_eq!([100, 1188, 8192, 1 << 40].map(|rows| taken(0, rows)), [0, 3, 20, 32]);
        assert_eq!([64, 512, 4096, u64::MAX].map(|rows| taken(2, rows)), [0, 5, 32, 32]);
    }
}

//! `layer_norm` and `rms_norm`: rows in registers, or read again for each thing that they need.

use super::rows::{Holding, Sharing, block_for_each};
use super::source::{NORM, NORM_WIDE};
use super::{dtype_name, size};
use crate::compiler::{Arch, Spec};
use crate::device::CudaDevice;
use crate::kernel::{Argument, Lazy};
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::op::Op;
use ep_core::primitive::{LayerNorm, LayerNormArgs, LayerNormDesc, RmsNorm, RmsNormArgs, RmsNormDesc};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Result};

const WIDE_THREADS: u32 = 512;

/// Data and statistics.
const ROWS: [[DType; 2]; 4] =
    [[DType::F16, DType::F32], [DType::BF16, DType::F32], [DType::F32, DType::F32], [DType::F64, DType::F64]];

fn holding(data: DType) -> Holding {
    let bytes = data.bytes_for_bounds();
    Holding { pack: 16 / bytes, bytes, sources: 1, single: true }
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
            held.chain([None]).map(move |sharing| spec(rms, data, sharing))
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
    wide: Lazy,
}

impl Norm {
    fn new(device: &CudaDevice, name: &'static str, data: DType, epsilon: f64) -> Result<Norm> {
        let loader = device.loader()?;
        let lazy = |sharing| Lazy::new(&loader, name, spec(name == RmsNorm::NAME, data, sharing));
        let held = sharings(data, device.properties().arch)
            .map(|list| list.into_iter().map(|sharing| (sharing, lazy(Some(sharing)))).collect());
        Ok(Norm { data, epsilon, held, wide: lazy(None) })
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
        // SAFETY: the caller's promise, and the argument of both kernels.
        unsafe {
            match held.find(|(sharing, _)| sharing.capacity() >= packs) {
                Some((sharing, lazy)) => lazy.get()?.launch(stream, sharing.geometry(rows), &args),
                None => self.wide.get()?.launch(stream, block_for_each(rows, WIDE_THREADS), &args),
            }
        }
    }
}

const ABOUT: &str = "rows in registers of a warp, a block or a cluster, or read three times, by width";

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

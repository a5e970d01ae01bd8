//! `arg_reduce`: the place of the greatest or smallest element.

use super::partial::{Sizes, workspace};
use super::source::ARG_REDUCE;
use super::{choices, dtype_name, pairs, real};
use crate::compiler::Spec;
use crate::device::CudaDevice;
use crate::kernel::{Argument, Geometry, Lazy};
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::op::Op;
use ep_core::primitive::{ArgReduce, ArgReduceArgs, ArgReduceDesc};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Error, Result};

/// Threads of a block that has a row.
const ROW_THREADS: u32 = 128;
/// Threads of a block that has 32 columns.
const COLUMN_THREADS: u32 = 256;

fn threads(strided: bool) -> u32 {
    if strided { COLUMN_THREADS } else { ROW_THREADS }
}

/// Whole rows, parts of them to partial results, and partial results to results.
const STAGES: [u32; 3] = [0, 1, 2];

fn spec(op: &str, src: DType, strided: bool, stage: u32) -> Spec {
    // Partial results have the type that is computed in.
    let src = match src {
        DType::F16 | DType::BF16 if stage == 2 => DType::F32,
        DType::BOOL if stage == 2 => DType::U8,
        src => src,
    };
    Spec::new(&ARG_REDUCE)
        .with("EP_OP", op)
        .with("EP_SRC", dtype_name(src))
        .with("EP_INNER", u32::from(strided))
        .with("EP_STAGE", stage)
        .with("EP_THREADS", threads(strided))
}

fn rows() -> Vec<[DType; 2]> {
    pairs(&real(), &[DType::I32, DType::I64])
}

pub(super) fn kernels() -> [(&'static str, Vec<Spec>); 1] {
    let mut specs = Vec::new();
    for op in choices::<ArgReduce>() {
        for src in real() {
            for strided in [false, true] {
                specs.extend(STAGES.map(|stage| spec(op, src, strided, stage)));
            }
        }
    }
    [(ArgReduce::NAME, specs)]
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let numbers = (0..choices::<ArgReduce>().len()).map(|op| [op as u32]);
    let factory = Factory::<ArgReduce, _, _>::new("arg_reduce", build);
    registrar.add(factory.selectors(numbers).dtypes(rows()).capturable())
}

fn build(device: &CudaDevice, desc: &ArgReduceDesc) -> Result<Search> {
    let op = choices::<ArgReduce>().get(desc.op.0 as usize).copied();
    let op = op.ok_or_else(|| Error::unsupported(format!("arg_reduce op {} is not known", desc.op.0)))?;
    let loader = device.loader()?;
    let stages =
        |strided| STAGES.map(|stage| Lazy::new(&loader, ArgReduce::NAME, spec(op, desc.src, strided, stage)));
    Ok(Search {
        rows: stages(false),
        columns: stages(true),
        bytes: desc.src.bytes_for_bounds().max(desc.dst.bytes_for_bounds()),
        narrow: desc.dst == DType::I32,
        sm_count: u64::from(device.properties().sm_count),
    })
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    outer: u64,
    reduced: u64,
    inner: u64,
    parts: u64,
    per_part: u64,
    src: u64,
    dst: u64,
    narrow: u64,
}

// SAFETY: as `Args` of arg_reduce.cu.
unsafe impl Argument for Args {}

struct Search {
    /// By stage.
    rows: [Lazy; STAGES.len()],
    columns: [Lazy; STAGES.len()],
    /// Of the larger element.
    bytes: u64,
    /// The destination is of i32, not of i64.
    narrow: bool,
    sm_count: u64,
}

impl Search {
    fn sizes(&self, args: &ArgReduceArgs) -> Result<Option<Sizes>> {
        let sizes = Sizes::new(args.outer, args.reduced, args.inner, self.bytes)?;
        let most = if self.narrow { 1 << 31 } else { i64::MAX };
        if sizes.is_some() && (args.reduced == 0 || args.reduced > most) {
            return Err(Error::invalid(format!(
                "an axis of {} elements: one has a largest element and positions for this dtype from 1 to {most}",
                args.reduced
            )));
        }
        Ok(sizes)
    }
}

impl Kernel<ArgReduce, CudaDevice> for Search {
    unsafe fn launch(&self, stream: &CudaStream, args: &ArgReduceArgs) -> Result<()> {
        let Some(sizes) = self.sizes(args)? else { return Ok(()) };
        let (Sizes { outer, reduced, inner }, narrow) = (sizes, u64::from(self.narrow));
        let [whole, cut, last] = if inner > 1 { &self.columns } else { &self.rows };
        let geometry = |parts| Geometry::linear(sizes.grid(parts), threads(inner > 1));
        let parts = sizes.parts(self.sm_count);
        if parts > 1
            && let Some(partial) =
                workspace(stream, args.workspace, args.workspace_bytes, sizes.workspace(parts))?
        {
            let per_part = reduced.div_ceil(parts);
            let first = Args { outer, reduced, inner, parts, per_part, src: args.src, dst: partial, narrow };
            let then =
                Args { reduced: parts, parts: 1, per_part: parts, src: partial, dst: args.dst, ..first };
            // SAFETY: the operands are valid as the caller promises; partial results are the workspace's or the
            // stream's own memory, of the bytes that were asked for; each is the argument of its kernel.
            return unsafe {
                cut.get()?.launch(stream, geometry(parts), &first)?;
                last.get()?.launch(stream, geometry(1), &then)
            };
        }
        let argument =
            Args { outer, reduced, inner, parts: 1, per_part: reduced, src: args.src, dst: args.dst, narrow };
        // SAFETY: the operands are valid as the caller promises, and this is the kernel's argument.
        unsafe { whole.get()?.launch(stream, geometry(1), &argument) }
    }

    fn workspace_size(&self, args: &ArgReduceArgs) -> Result<u64> {
        let sizes = self.sizes(args)?;
        Ok(sizes.map_or(0, |s| s.workspace(s.parts(self.sm_count))))
    }

    fn describe(&self) -> &str {
        "a block for each row or 32 columns; few long ones in parts"
    }
}

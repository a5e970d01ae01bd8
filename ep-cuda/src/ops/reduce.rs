//! `reduce`: rows by a part of a block, a block, or many of them.

use super::partial::{Sizes, workspace};
use super::source::REDUCE;
use super::{bits, choices, dtype_name, pairs, real, same, unsigned};
use crate::compiler::Spec;
use crate::device::CudaDevice;
use crate::kernel::{Argument, Geometry, Lazy};
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::op::Op;
use ep_core::primitive::{Reduce, ReduceArgs, ReduceDesc};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Error, Result};

/// Threads that share a row, and the bytes of a row up to which so many do; the last for any row.
const SHARERS: [(u32, u64); 3] = [(32, 4096), (128, 16384), (256, u64::MAX)];
const ALL_THREADS: u32 = 256;
/// Terms of a running sum of floats at most, beyond which blocks of them are added up.
const MOST_TERMS: u64 = 1024;
/// Threads of a block at least: more than one row where fewer share one.
const LEAST_THREADS: u32 = 128;

/// Ops that are for the same dtypes: the factory's name, the ops, source and destination of each row.
type Class = (&'static str, Vec<&'static str>, Vec<[DType; 2]>);

fn classes() -> Vec<Class> {
    let halves = [DType::F16, DType::BF16];
    // Integers of up to 32 bits, whose sums may need more.
    let short = [DType::BOOL, DType::I8, DType::U8, DType::I16, DType::U16, DType::I32, DType::U32];
    let floats = [same(&[DType::FLOAT, DType::COMPLEX].concat()), pairs(&halves, &[DType::F32])].concat();
    let sums = [same(DType::INT), floats.clone(), pairs(&short, &[DType::I64])].concat();
    vec![
        ("reduce.sums", vec!["sum", "prod"], sums),
        ("reduce.mean", vec!["mean"], floats),
        ("reduce.extremes", vec!["max", "min"], same(&real())),
        ("reduce.tests", vec!["any", "all"], pairs(&DType::ALL, &[DType::BOOL])),
    ]
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
struct Task {
    op: &'static str,
    src: DType,
    dst: DType,
}

/// What a launch does with rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Whole ones to results.
    Whole = 0,
    /// Parts of them to partial results.
    Parts = 1,
    /// Partial results to results.
    Partial = 2,
}

impl Task {
    /// Bytes of what is computed with.
    fn accumulator(self) -> u64 {
        match self.src {
            _ if self.is_test() => 4,
            DType::F16 | DType::BF16 => 4,
            _ if self.sums_integers() => 8,
            src => src.bytes_for_bounds(),
        }
    }

    fn is_sum(self) -> bool {
        ["sum", "prod", "mean"].contains(&self.op)
    }

    fn sums_integers(self) -> bool {
        self.is_sum() && (self.src.is_int() || self.src == DType::BOOL)
    }

    fn is_test(self) -> bool {
        ["any", "all"].contains(&self.op)
    }

    /// Dtypes that compute the same from the same bits, and of which only those are left that a stage depends on: they
    /// share a kernel.
    fn canonical(self, stage: Stage) -> (DType, DType) {
        let Task { src, dst, .. } = self;
        let is_int = src.is_int() || src == DType::BOOL;
        let (src, dst) = match stage {
            Stage::Partial if self.is_test() => (DType::U8, dst),
            Stage::Partial if self.sums_integers() => (DType::U64, unsigned(dst)),
            Stage::Partial if [DType::F16, DType::BF16].contains(&src) => (DType::F32, dst),
            _ if self.is_test() && is_int => (bits(src), dst),
            _ if self.is_sum() && src.is_int() && src == dst => (unsigned(src), unsigned(dst)),
            _ => (src, dst),
        };
        (src, if stage == Stage::Parts { src } else { dst })
    }

    /// How many share whole rows: of what is needed most, more than one number.
    fn sharers(self) -> &'static [(u32, u64)] {
        let common = self.op != "prod" && !self.is_test() && DType::FLOAT.contains(&self.src);
        if common { &SHARERS } else { &SHARERS[SHARERS.len() - 1..] }
    }

    /// Bytes of what a stage reads.
    fn source_bytes(self, stage: Stage) -> u64 {
        if stage == Stage::Partial { self.accumulator() } else { self.src.bytes_for_bounds() }
    }

    /// Whether so many elements for each thread's running sums are too many to be added up one after the other.
    fn is_long(self, stage: Stage, strided: bool, reduced: u64) -> bool {
        let columns_at_once = u64::from(ALL_THREADS / 32) * 8;
        let at_once =
            if strided { columns_at_once } else { u64::from(ALL_THREADS) * (16 / self.source_bytes(stage)) };
        self.rounds() && stage != Stage::Partial && reduced / at_once > MOST_TERMS
    }

    /// Whether sums are rounded at each step.
    fn rounds(self) -> bool {
        ["sum", "mean"].contains(&self.op) && !self.sums_integers()
    }

    fn spec(self, stage: Stage, strided: bool, sharers: u32, long: bool) -> Spec {
        let bytes = self.source_bytes(stage);
        let (src, dst) = self.canonical(stage);
        // The sum of what has a mean is a mean that is divided by 1.
        let op = if self.op == "sum" && !self.sums_integers() { "mean" } else { self.op };
        Spec::new(&REDUCE)
            .with("EP_OP", op)
            .with("EP_SRC", dtype_name(src))
            .with("EP_DST", dtype_name(dst))
            .with("EP_INNER", u32::from(strided))
            .with("EP_STAGE", stage as u32)
            .with("EP_THREADS", sharers.max(LEAST_THREADS))
            .with("EP_SHARERS", sharers)
            .with("EP_PACK", 16 / bytes)
            .with("EP_LONG", u32::from(long))
    }

    fn specs(self) -> Vec<Spec> {
        let whole = self.sharers().iter().map(|(sharers, _)| self.spec(Stage::Whole, false, *sharers, false));
        let both = |stage, long| [false, true].map(|strided| self.spec(stage, strided, ALL_THREADS, long));
        let others = [Stage::Parts, Stage::Partial].into_iter().flat_map(|stage| both(stage, false));
        let strided = self.spec(Stage::Whole, true, ALL_THREADS, false);
        let long = [Stage::Whole, Stage::Parts].into_iter().filter(|_| self.rounds());
        whole.chain([strided]).chain(others).chain(long.flat_map(|stage| both(stage, true))).collect()
    }
}

pub(super) fn kernels() -> [(&'static str, Vec<Spec>); 1] {
    let of_class = |(_, ops, dtypes): Class| {
        let tasks = ops
            .into_iter()
            .flat_map(move |op| dtypes.clone().into_iter().map(move |[src, dst]| Task { op, src, dst }));
        tasks.flat_map(Task::specs)
    };
    [(Reduce::NAME, classes().into_iter().flat_map(of_class).collect())]
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let names = choices::<Reduce>();
    for (name, ops, dtypes) in classes() {
        let numbers = ops.iter().filter_map(|op| names.iter().position(|n| n == op).map(|i| [i as u32]));
        let factory = Factory::<Reduce, _, _>::new(name, build);
        registrar.add(factory.selectors(numbers.collect::<Vec<_>>()).dtypes(dtypes).capturable())?;
    }
    Ok(())
}

fn build(device: &CudaDevice, desc: &ReduceDesc) -> Result<Reducer> {
    let op = choices::<Reduce>().get(desc.op.0 as usize).copied();
    let op = op.ok_or_else(|| Error::unsupported(format!("reduce op {} is not known", desc.op.0)))?;
    let (loader, task) = (device.loader()?, Task { op, src: desc.src, dst: desc.dst });
    let lazy = |spec| Lazy::new(&loader, Reduce::NAME, spec);
    let both = |stage, long| [false, true].map(|strided| lazy(task.spec(stage, strided, ALL_THREADS, long)));
    Ok(Reducer {
        rows: task
            .sharers()
            .iter()
            .map(|(sharers, most)| (*sharers, *most, lazy(task.spec(Stage::Whole, false, *sharers, false))))
            .collect(),
        columns: lazy(task.spec(Stage::Whole, true, ALL_THREADS, false)),
        parts: both(Stage::Parts, false),
        partial: both(Stage::Partial, false),
        long: [both(Stage::Whole, true), both(Stage::Parts, true)],
        task,
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
    divisor: f64,
    src: u64,
    dst: u64,
}

// SAFETY: as `Args` of reduce.cu.
unsafe impl Argument for Args {}

struct Reducer {
    /// Threads that share a row, and the bytes of a row up to which so many do.
    rows: Vec<(u32, u64, Lazy)>,
    columns: Lazy,
    /// For rows and for columns.
    parts: [Lazy; 2],
    partial: [Lazy; 2],
    /// Whole rows and parts of them that are [long](Task::is_long), for rows and for columns.
    long: [[Lazy; 2]; 2],
    task: Task,
    sm_count: u64,
}

impl Reducer {
    fn sizes(&self, args: &ReduceArgs) -> Result<Option<Sizes>> {
        let bytes = self.task.src.bytes_for_bounds().max(self.task.dst.bytes_for_bounds());
        Sizes::new(args.outer, args.reduced, args.inner, bytes)
    }
}

impl Kernel<Reduce, CudaDevice> for Reducer {
    unsafe fn launch(&self, stream: &CudaStream, args: &ReduceArgs) -> Result<()> {
        let Some(sizes) = self.sizes(args)? else { return Ok(()) };
        let Sizes { outer, reduced, inner } = sizes;
        let strided = usize::from(inner > 1);
        let divisor = if self.task.op == "mean" { reduced as f64 } else { 1.0 };
        let parts = sizes.parts(self.sm_count);
        if parts > 1
            && let Some(partial) =
                workspace(stream, args.workspace, args.workspace_bytes, sizes.workspace(parts))?
        {
            let per_part = reduced.div_ceil(parts);
            let first = Args { outer, reduced, inner, parts, per_part, divisor, src: args.src, dst: partial };
            let then =
                Args { reduced: parts, parts: 1, per_part: parts, src: partial, dst: args.dst, ..first };
            // SAFETY: the operands are valid as the caller promises; partial results are the workspace's or the
            // stream's own memory, of the bytes that were asked for; each is the argument of its kernel.
            return unsafe {
                let geometry = |parts| Geometry::linear(sizes.grid(parts), ALL_THREADS);
                let long = self.task.is_long(Stage::Parts, inner > 1, per_part);
                let kernel = if long { &self.long[1][strided] } else { &self.parts[strided] };
                kernel.get()?.launch(stream, geometry(parts), &first)?;
                self.partial[strided].get()?.launch(stream, geometry(1), &then)
            };
        }
        let row_bytes = reduced * self.task.src.bytes_for_bounds();
        let held = self.rows.iter().find(|(_, most, _)| strided == 0 && row_bytes <= *most);
        let (sharers, lazy) = match held {
            _ if self.task.is_long(Stage::Whole, inner > 1, reduced) => (ALL_THREADS, &self.long[0][strided]),
            Some((sharers, _, lazy)) => (*sharers, lazy),
            None => (ALL_THREADS, &self.columns),
        };
        let threads = sharers.max(LEAST_THREADS);
        let blocks = sizes.grid(1).div_ceil(threads / sharers);
        let per_part = reduced.max(1);
        let argument =
            Args { outer, reduced, inner, parts: 1, per_part, divisor, src: args.src, dst: args.dst };
        // SAFETY: the operands are valid as the caller promises, and this is the kernel's argument.
        unsafe { lazy.get()?.launch(stream, Geometry::linear(blocks, threads), &argument) }
    }

    fn workspace_size(&self, args: &ReduceArgs) -> Result<u64> {
        let sizes = self.sizes(args)?;
        Ok(sizes.map_or(0, |s| s.workspace(s.parts(self.sm_count))))
    }

    fn describe(&self) -> &str {
        "a warp or a block for each row, a block for 32 columns; few long ones in parts"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sums_of_floats_are_added_up_in_blocks() {
        let long =
            |op, src, stage, strided, reduced| Task { op, src, dst: src }.is_long(stage, strided, reduced);
        let f32s = |strided, reduced| long("sum", DType::F32, Stage::Whole, strided, reduced);
        assert!(!f32s(false, 1 << 20) && f32s(false, (1 << 20) + (1 << 10)));
        assert!(!f32s(true, 1 << 16) && f32s(true, (1 << 16) + 64));
        for (op, src) in [("mean", DType::F16), ("sum", DType::COMPLEX64), ("sum", DType::F64)] {
            assert!(long(op, src, Stage::Parts, true, 1 << 20), "{op} {src}");
            assert!(!long(op, src, Stage::Partial, true, 1 << 20), "{op} {src}");
        }
        for (op, src) in [("max", DType::F32), ("prod", DType::F32), ("sum", DType::I32), ("any", DType::F32)]
        {
            assert!(!long(op, src, Stage::Whole, true, 1 << 40), "{op} {src}");
            let specs = Task { op, src, dst: src }.specs();
            assert_eq!(specs.len(), Task { op, src, dst: src }.sharers().len() + 5, "{op} {src}");
        }
    }
}

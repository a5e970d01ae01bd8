//! The CPU provider's kernels against the goldens, through the runtime, at every instruction-set level.

use crate::compare::{Limit, compare};
use crate::reader::{self, Golden, Record};
use ep_core::{Code, DType, Result};
use ep_cpu::isa::Isa;
use ep_cpu::provider::CpuProvider;
use ep_registry::config::ProviderConfig;
use ep_registry::{Buffer, DynPrimitive, Runtime, Stream};
use primitives::reference::Data;

/// Elements behind each operand, which must be left as they are.
const GUARD: usize = 3;

struct Rig {
    level: &'static str,
    runtime: Runtime,
    stream: Stream,
}

impl Rig {
    fn new(isa: Isa) -> Rig {
        let level = isa.level().name();
        let mut settings = ProviderConfig::new("cpu", "");
        settings.options = [("isa".to_owned(), level.to_owned())].into();
        let runtime = Runtime::builder().threads(2).linked_with::<CpuProvider>(settings).build().unwrap();
        let stream = runtime.device("cpu:0").unwrap().stream().unwrap();
        Rig { level, runtime, stream }
    }

    fn primitive(&self, op: &str, record: &Record) -> Result<DynPrimitive> {
        let mut request = self.runtime.request(op)?;
        for (name, value) in &record.selectors {
            request = request.selector(name, value)?;
        }
        for (role, dtype) in &record.dtypes {
            request = request.dtype(role, &dtype.to_string())?;
        }
        for (name, value) in &record.attrs {
            request = request.attr(name, *value)?;
        }
        self.runtime.primitive_dyn(self.runtime.device("cpu:0")?, &request)
    }

    /// The elements, and behind them the guard.
    fn upload(&self, dtype: DType, bytes: &[u8]) -> Buffer {
        let cpu = self.runtime.device("cpu:0").unwrap();
        let guarded = [bytes, &vec![poison(dtype); GUARD * dtype.size().unwrap()]].concat();
        if dtype == DType::BOOL {
            let bools: Vec<bool> = guarded.iter().map(|b| *b != 0).collect();
            return cpu.upload(&bools).unwrap();
        }
        cpu.upload(&guarded).unwrap().reinterpret(dtype).unwrap()
    }

    /// What a launch writes, by operand.
    fn launch(&self, primitive: &DynPrimitive, golden: &Golden, record: &Record) -> Result<Vec<Data>> {
        let old = |name: &String, want: &Data| {
            let given = record.reads.iter().find(|(n, _)| n == name);
            let content = given.map(|(_, tensor)| golden.tensors[*tensor].bytes.clone());
            content.unwrap_or_else(|| vec![poison(want.dtype); want.bytes.len()])
        };
        let is_written = |name: &String| record.writes.iter().any(|(n, _)| n == name);
        let reads: Vec<_> = record.reads.iter().filter(|(name, _)| !is_written(name)).collect();
        let tensor = |i: usize| &golden.tensors[i];
        let reads: Vec<_> =
            reads.iter().map(|(name, t)| (name, self.upload(tensor(*t).dtype, &tensor(*t).bytes))).collect();
        let writes = record.writes.iter().map(|(name, t)| (name, tensor(*t)));
        let mut writes: Vec<_> =
            writes.map(|(name, want)| (name, self.upload(want.dtype, &old(name, want)))).collect();
        let mut args = primitive.args();
        for (name, value) in &record.sizes {
            args = args.size(name, *value)?;
        }
        for (name, value) in &record.dims {
            args = args.dims(name, value)?;
        }
        for (name, value) in &record.scalars {
            args = args.scalar(name, *value)?;
        }
        for (name, buffer) in &reads {
            args = args.read(name, buffer)?;
        }
        for (name, buffer) in &mut writes {
            args = args.write(name, &mut *buffer)?;
        }
        primitive.launch(&self.stream, args)?;
        let outputs = record.writes.iter().zip(writes);
        Ok(outputs.map(|((_, t), (_, buffer))| unguarded(tensor(*t), buffer)).collect())
    }
}

fn poison(dtype: DType) -> u8 {
    if dtype == DType::BOOL { 1 } else { 0xa5 }
}

/// The elements of an output, after checking what is behind them.
fn unguarded(want: &Data, buffer: Buffer) -> Data {
    let mut bytes = buffer.reinterpret(DType::U8).unwrap().download::<u8>().unwrap();
    let guard = bytes.split_off(want.bytes.len());
    assert!(guard.iter().all(|b| *b == poison(want.dtype)), "written behind the end");
    Data { dtype: want.dtype, bytes }
}

/// How far a record's results may be off, for an output of this dtype.
type Rule = fn(&Record, DType) -> Limit;

fn check(op: &str, rule: Rule) {
    let golden = reader::read(op);
    let mut wrong = Vec::new();
    for isa in Isa::available() {
        let rig = Rig::new(isa);
        for record in &golden.records {
            let label = format!("{}: {}", rig.level, record.label(op));
            let primitive = match rig.primitive(op, record) {
                Ok(primitive) => primitive,
                Err(e) => {
                    wrong.push(format!("{label}: {e}"));
                    continue;
                }
            };
            let outputs = match rig.launch(&primitive, &golden, record) {
                Ok(outputs) if !record.error => outputs,
                Ok(_) => panic!("{label}: this is refused"),
                Err(e) if record.error => {
                    assert_eq!(e.code(), Code::InvalidArgument, "{label}: {e}");
                    continue;
                }
                Err(e) => panic!("{label}: {e}"),
            };
            for ((name, tensor), got) in record.writes.iter().zip(outputs) {
                let want = &golden.tensors[*tensor];
                let scales = scale_of(record, name).map(|t| &golden.tensors[t]);
                let (misses, worst) = compare(&got, want, scales, rule(record, want.dtype));
                let Some(miss) = misses.iter().max_by(|a, b| a.steps.total_cmp(&b.steps)) else { continue };
                let read = |(name, t): &(String, usize)| {
                    let x = golden.tensors[*t].view();
                    (x.len() == want.view().len()).then(|| format!("{name} {:?}", x.get(miss.index)))
                };
                let of: Vec<_> = record.reads.iter().filter_map(read).collect();
                wrong.push(format!(
                    "{label} `{name}`: {} of {} off, worst {worst}: [{}] of {} is {:?}, golden {:?}",
                    misses.len(),
                    want.view().len(),
                    miss.index,
                    of.join(", "),
                    miss.got,
                    miss.want,
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// The tensor with the size of what was added up for an output. For a gradient with roots it is the factor `dy`, as
/// the derivative is good to an absolute error there.
fn scale_of(record: &Record, output: &str) -> Option<usize> {
    let given = record.scales.iter().find(|(name, _)| name == output);
    let factor = || {
        let rooted = record.function() == "lgamma_backward_with_dy_x";
        record.reads.iter().find(|(name, _)| rooted && name == "src0")
    };
    given.or_else(factor).map(|(_, tensor)| *tensor)
}

/// A test for each op: a new one is a line. Its name ends in `_` where it is a keyword.
macro_rules! kernels {
    ($($name:ident: $rule:expr;)*) => {
        $(#[test] fn $name() { check(stringify!($name).trim_end_matches('_'), $rule); })*
    };
}

kernels! {
    cast: exact;
    fill: exact;
    memset: exact;
    memcpy: exact;
    permute: exact;
    copy_nd: exact;
    strided_copy: exact;
    tensor_fill: exact;
    constant_pad: exact;
    where_: exact;
    gather: exact;
    batch_gather: exact;
    one_hot: exact;
    arange: summed;
    add: summed;
    scatter_add: summed;
    reduce: summed;
    arg_reduce: exact;
    elementwise_unary: function;
    broadcast_elementwise_unary: function;
    broadcast_elementwise_binary: function;
    softmax: rows;
    log_softmax: rows;
    softmax_backward: rows;
    log_softmax_backward: rows;
    layer_norm: centred;
    rms_norm: summed;
    matmul: summed;
    batch_matmul: summed;
    broadcast_matmul: summed;
}

fn exact(_: &Record, _: DType) -> Limit {
    Limit::EXACT
}

/// Functions that are one operation of the processor's, or a choice.
const ROUNDED_ONCE: [&str; 23] = [
    "add",
    "sub",
    "mul",
    "div",
    "max",
    "min",
    "fmod",
    "trunc_div",
    "identity",
    "relu",
    "hard_shrink",
    "hard_tanh",
    "threshold",
    "abs",
    "ceil",
    "floor",
    "rint",
    "round",
    "trunc",
    "negative",
    "sign",
    "sqrt",
    "nan_assign",
];

/// Functions with poles, roots or results of any size, for which the limits are wider.
const DIFFICULT: [&str; 10] = [
    "pow",
    "tan",
    "erfc",
    "lgamma",
    "digamma",
    "trigamma",
    "zeta",
    "tan_backward_with_dy_x",
    "lgamma_backward_with_dy_x",
    "digamma_backward_with_dy_x",
];

/// Functions of [`DIFFICULT`] with roots between numbers of the dtype.
const ROOTED: [&str; 3] = ["lgamma", "digamma", "zeta"];

/// The limits of `docs/accuracy.md`. In units in the last place: 1 for f16 and bf16, 2 for f32, 4 for f64; 4 and 16
/// for what is difficult, and an absolute 1e-6 or 1e-14 near roots. A gradient is a product, of which one factor may
/// lie below the normal numbers: a result there may have lost all its digits.
fn function(record: &Record, dtype: DType) -> Limit {
    let op = record.function();
    let difficult = DIFFICULT.contains(&op);
    let double = dtype == DType::F64 || dtype == DType::COMPLEX128;
    let ulps = match dtype {
        d if !d.is_complex() && ROUNDED_ONCE.contains(&op) => 0.0,
        DType::F16 | DType::BF16 => 1.0,
        _ => match (double, difficult) {
            (false, false) => 2.0,
            (false, true) | (true, false) => 4.0,
            (true, true) => 16.0,
        },
    };
    let gradient = op.contains("backward");
    let absolute = match op {
        _ if gradient && double => f64::MIN_POSITIVE,
        _ if gradient => f32::MIN_POSITIVE.into(),
        _ if !ROOTED.contains(&op) || dtype.size() == Some(2) => 0.0,
        _ if double => 1e-14,
        _ => 1e-6,
    };
    let any_zero = ["max", "min"].contains(&op) || gradient;
    Limit { ulps, absolute, any_zero }
}

/// Sums, in relative errors of f32 or f64 of what was added up; one unit in the last place for narrower dtypes.
fn summed(_: &Record, _: DType) -> Limit {
    Limit { ulps: 4.0, absolute: 0.0, any_zero: true }
}

/// [`summed`], where all of a row is measured from its mean, which is good to a few epsilons of the row's spread.
fn centred(record: &Record, dtype: DType) -> Limit {
    let wide = record.dtypes.iter().any(|(_, d)| *d == DType::F64);
    let absolute = 4.0 * if wide { f64::EPSILON } else { f32::EPSILON.into() };
    Limit { absolute, ..summed(record, dtype) }
}

/// [`summed`], where results below the smallest normal number of the type computed in may be 0.
fn rows(record: &Record, dtype: DType) -> Limit {
    let wide = record.dtypes.iter().any(|(_, d)| *d == DType::F64);
    let absolute = if wide { f64::MIN_POSITIVE } else { f32::MIN_POSITIVE.into() };
    Limit { absolute, ..summed(record, dtype) }
}

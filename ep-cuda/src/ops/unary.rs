//! `elementwise_unary` and `cast`: functions of one element, and what the strided forms of both share with them.

use super::nd::{ByIndex, Index, Loops, Nd, Operand, between, pack_of, specialise};
use super::source::UNARY;
use super::{bits, choices, pairs, real, same, size, unsigned};
use crate::compiler::Spec;
use crate::device::CudaDevice;
use crate::kernel::Argument;
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::op::Op;
use ep_core::primitive::{
    Cast, CastArgs, CastDesc, ElementwiseUnary, ElementwiseUnaryArgs, ElementwiseUnaryDesc, UnaryOp,
};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Error, Result};

/// What takes longer than memory does with one pack for each thread: of elements with 4 bytes.
const LONGER: [&str; 14] = [
    "acosh",
    "asinh",
    "atanh",
    "celu",
    "digamma",
    "erfc",
    "fast_gelu",
    "gelu",
    "lgamma",
    "log_sigmoid",
    "mish",
    "quick_gelu",
    "soft_plus",
    "trigamma",
];

/// The same of elements with 2 bytes.
const LONGER_OF_HALVES: [&str; 29] = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "celu",
    "cos",
    "digamma",
    "elu",
    "erf",
    "erfc",
    "expm1",
    "fast_gelu",
    "gelu",
    "log",
    "log10",
    "log1p",
    "log2",
    "quick_gelu",
    "reciprocal",
    "selu",
    "sigmoid",
    "silu",
    "sin",
    "soft_plus",
    "soft_sign",
    "tan",
    "trigamma",
];

/// The same of elements with 8 bytes.
const LONGER_OF_DOUBLES: [&str; 8] = ["sin", "cos", "rsqrt", "log", "log2", "log10", "sigmoid", "silu"];

/// Packs of a thread.
pub(super) fn unroll(op: &str, [dst, src]: [u64; 2]) -> u32 {
    let longer = match src {
        2 => LONGER_OF_HALVES.contains(&op),
        4 => LONGER.contains(&op),
        8 => LONGER_OF_DOUBLES.contains(&op),
        _ => false,
    };
    let between = dst.min(src) < 4 && dst != src;
    if longer || between { 2 } else { 1 }
}

/// Ops that are for the same dtypes.
pub(super) struct Class {
    /// The factory's name.
    pub(super) name: &'static str,
    ops: Vec<&'static str>,
    /// Source and destination.
    pub(super) dtypes: Vec<[DType; 2]>,
}

/// Of integers: what rounds leaves them alone, arithmetic wraps.
const INT: [&str; 15] = [
    "identity",
    "relu",
    "square_relu",
    "abs",
    "ceil",
    "floor",
    "negative",
    "rint",
    "round",
    "sign",
    "square",
    "trunc",
    "not_equal_zero",
    "nan_assign",
    "bitwise_not",
];
const COMPLEX: [&str; 7] = ["identity", "exp", "negative", "reciprocal", "sqrt", "square", "conj"];
const TO_BOOL: [&str; 4] = ["logical_not", "is_inf", "is_nan", "is_finite"];
const PARTS: [&str; 2] = ["real", "imag"];
const FROM_PARTS: [&str; 2] = ["real_grad", "imag_grad"];
/// What floats do not have, beside the ops of [`TO_BOOL`], [`PARTS`] and [`FROM_PARTS`].
const NO_FLOAT: [&str; 3] = ["cast", "bitwise_not", "conj"];

pub(super) fn classes() -> Vec<Class> {
    let others = [&NO_FLOAT[..], &TO_BOOL, &PARTS, &FROM_PARTS].concat();
    let float = choices::<ElementwiseUnary>().into_iter().filter(|op| !others.contains(op)).collect();
    let bool_ops = INT.into_iter().filter(|op| *op != "negative").collect();
    vec![
        Class { name: "unary.float", ops: float, dtypes: same(DType::FLOAT) },
        Class { name: "unary.int", ops: INT.to_vec(), dtypes: same(DType::INT) },
        Class { name: "unary.bool", ops: bool_ops, dtypes: same(&[DType::BOOL]) },
        Class { name: "unary.complex", ops: COMPLEX.to_vec(), dtypes: same(DType::COMPLEX) },
        Class { name: "unary.to_bool", ops: TO_BOOL.to_vec(), dtypes: pairs(&real(), &[DType::BOOL]) },
        Class { name: "unary.parts", ops: PARTS.to_vec(), dtypes: pairs(DType::COMPLEX, DType::FLOAT) },
        Class {
            name: "unary.from_parts",
            ops: FROM_PARTS.to_vec(),
            dtypes: pairs(DType::FLOAT, DType::COMPLEX),
        },
        Class { name: "unary.cast", ops: vec!["cast"], dtypes: pairs(&DType::ALL, &DType::ALL) },
    ]
}

/// The numbers of a class's ops.
pub(super) fn choices_of(class: &Class) -> Vec<[u32; 1]> {
    let names = choices::<ElementwiseUnary>();
    class.ops.iter().filter_map(|op| names.iter().position(|n| n == op).map(|i| [i as u32])).collect()
}

/// The name of an op, which is also what the kernel calls it.
pub(super) fn name_of(op: UnaryOp) -> Result<&'static str> {
    let name = choices::<ElementwiseUnary>().get(op.0 as usize).copied();
    name.ok_or_else(|| Error::unsupported(format!("unary op {} is not known", op.0)))
}

/// The ops that leave integers as they are.
const KEEP_INT: [&str; 6] = ["ceil", "floor", "rint", "round", "trunc", "nan_assign"];

/// An op and dtypes that compute the same from the same bits, for many: they share a kernel.
fn canonical(op: &str, src: DType, dst: DType) -> (&str, DType, DType) {
    let is_int = src.is_int();
    let is_unsigned = is_int && unsigned(src) == src;
    match op {
        "rint" if DType::FLOAT.contains(&src) => ("round", src, dst),
        "relu" | "abs" if is_unsigned => ("identity", src, dst),
        "square_relu" if is_unsigned => ("square", src, dst),
        "square" if is_int => (op, unsigned(src), unsigned(dst)),
        "identity" | "cast" if src == dst => ("identity", bits(src), bits(src)),
        _ if is_int && KEEP_INT.contains(&op) => ("identity", bits(src), bits(src)),
        "cast" if is_int && dst.is_int() && dst.bytes_for_bounds() <= src.bytes_for_bounds() => {
            (op, unsigned(src), unsigned(dst))
        }
        "cast" if is_int || src == DType::BOOL => (op, src, unsigned(dst)),
        "logical_not" if is_int || src == DType::BOOL => (op, bits(src), dst),
        // No integer is either.
        "is_inf" | "is_nan" if is_int || src == DType::BOOL => ("is_nan", bits(src), dst),
        "is_finite" if is_int || src == DType::BOOL => (op, bits(src), dst),
        _ => (op, src, dst),
    }
}

pub(super) fn spec(op: &str, src: DType, dst: DType, index: Index) -> Spec {
    let (op, src, dst) = canonical(op, src, dst);
    let bytes = [dst, src].map(DType::bytes_for_bounds);
    let spec = between(Spec::new(&UNARY).with("EP_OP", op), src, dst);
    specialise(spec, pack_of(&bytes), unroll(op, bytes), index)
}

/// The kernels of all classes for fewer than 2^31 elements; those for more are compiled when they are needed.
pub(super) fn class_kernels() -> Vec<Spec> {
    let of_class = |class: Class| {
        let of_op = |op| class.dtypes.iter().map(move |[src, dst]| spec(op, *src, *dst, Index::Narrow));
        class.ops.iter().flat_map(|op| of_op(*op)).collect::<Vec<_>>()
    };
    classes().into_iter().flat_map(of_class).collect()
}

pub(super) fn kernels() -> [(&'static str, Vec<Spec>); 2] {
    let casts = pairs(&DType::ALL, &DType::ALL).into_iter().map(|[s, d]| spec("cast", s, d, Index::Narrow));
    [(ElementwiseUnary::NAME, class_kernels()), (Cast::NAME, casts.collect())]
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    for class in classes() {
        let build = |device: &CudaDevice, desc: &ElementwiseUnaryDesc| {
            let attr = [desc.attr0, desc.attr1];
            Map::new(device, ElementwiseUnary::NAME, name_of(desc.op)?, [desc.src, desc.dst], attr)
        };
        let factory = Factory::<ElementwiseUnary, _, _>::new(class.name, build);
        registrar.add(factory.selectors(choices_of(&class)).dtypes(class.dtypes).capturable())?;
    }
    let build = |device: &CudaDevice, desc: &CastDesc| {
        Map::new(device, Cast::NAME, "cast", [desc.src, desc.dst], [0.0; 2])
    };
    let factory = Factory::<Cast, _, _>::new("cast", build);
    registrar.add(factory.dtypes(pairs(&DType::ALL, &DType::ALL)).capturable())
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Args {
    pub(super) nd: Nd<2>,
    pub(super) attr: [f64; 2],
}

// SAFETY: as `Args` of unary.cu.
unsafe impl Argument for Args {}

/// A function of one element, between two arrays.
struct Map {
    kernels: ByIndex,
    /// Of the elements, those of the destination first.
    bytes: [u64; 2],
    unroll: u32,
    attr: [f64; 2],
}

impl Map {
    fn new(
        device: &CudaDevice,
        name: &'static str,
        op: &str,
        [src, dst]: [DType; 2],
        attr: [f64; 2],
    ) -> Result<Map> {
        let kernels = ByIndex::new(&device.loader()?, name, |index| spec(op, src, dst, index));
        let bytes = [dst, src].map(DType::bytes_for_bounds);
        Ok(Map { kernels, bytes, unroll: unroll(op, bytes), attr })
    }

    /// # Safety
    /// As for the op's launch: the count is not negative, and both operands are valid for it.
    unsafe fn run(&self, stream: &CudaStream, count: i64, src: u64, dst: u64) -> Result<()> {
        let count = size(count) as u64;
        if count == 0 {
            return Ok(());
        }
        let operands = [Operand::Memory(dst, self.bytes[0]), Operand::Memory(src, self.bytes[1])];
        let (nd, index) = Nd::new(&Loops::flat(count), operands, pack_of(&self.bytes));
        let function = self.kernels.get(index)?;
        // SAFETY: the operands are valid as the caller promises, and this is the kernel's argument.
        unsafe { function.launch(stream, nd.geometry(self.unroll)?, &Args { nd, attr: self.attr }) }
    }
}

const ABOUT: &str = "packs of 16 bytes";

impl Kernel<ElementwiseUnary, CudaDevice> for Map {
    unsafe fn launch(&self, stream: &CudaStream, args: &ElementwiseUnaryArgs) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, args.count, args.src, args.dst) }
    }

    fn describe(&self) -> &str {
        ABOUT
    }
}

impl Kernel<Cast, CudaDevice> for Map {
    unsafe fn launch(&self, stream: &CudaStream, args: &CastArgs) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, args.count, args.src, args.dst) }
    }

    fn describe(&self) -> &str {
        ABOUT
    }
}

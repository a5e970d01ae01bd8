//! `broadcast_elementwise_binary`: functions of two elements.

use super::nd::{ByIndex, Index, Loops, Nd, Operand, between, pack_of, specialise};
use super::source::BINARY;
use super::{bits, choices, pairs, real, same, scalar, unsigned};
use crate::compiler::Spec;
use crate::device::CudaDevice;
use crate::kernel::Argument;
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::abi::EpScalar;
use ep_core::op::{Op, view};
use ep_core::primitive::{
    BroadcastElementwiseBinary, BroadcastElementwiseBinaryArgs, BroadcastElementwiseBinaryDesc,
};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Error, Result, Scalar};
use primitives::broadcast::Plan;

/// Packs of a thread.
const UNROLL: u32 = 1;

const ARITHMETIC: [&str; 4] = ["add", "sub", "mul", "div"];
const ORDERED: [&str; 7] = ["max", "min", "pow", "fmod", "floor_div", "trunc_div", "floor_mod"];
const BITS: [&str; 3] = ["bitwise_and", "bitwise_or", "bitwise_xor"];
const EQUAL: [&str; 2] = ["equal", "not_equal"];
const TESTS: [&str; 9] = [
    "less_than",
    "less_equal",
    "greater_than",
    "greater_equal",
    "is_close",
    "is_close_equal_nan",
    "logical_and",
    "logical_or",
    "logical_xor",
];
/// The one gradient that complex numbers have.
const ROOT: [&str; 1] = ["sqrt_backward_with_dy_x"];

/// Ops that are for the same dtypes: the factory's name, the ops, source and destination of each row.
type Class = (&'static str, Vec<&'static str>, Vec<[DType; 2]>);

fn classes() -> Vec<Class> {
    let others = [&ARITHMETIC[..], &ORDERED, &BITS, &EQUAL, &TESTS, &ROOT].concat();
    let names = choices::<BroadcastElementwiseBinary>();
    let float = names.into_iter().filter(|op| !others.contains(op)).collect();
    let to_bool = |src: &[DType]| pairs(src, &[DType::BOOL]);
    vec![
        ("binary.arithmetic", ARITHMETIC.to_vec(), same(&DType::ALL)),
        ("binary.ordered", ORDERED.to_vec(), same(&real())),
        ("binary.bits", BITS.to_vec(), same(&[&[DType::BOOL], DType::INT].concat())),
        ("binary.float", float, same(DType::FLOAT)),
        ("binary.root", ROOT.to_vec(), same(&[DType::FLOAT, DType::COMPLEX].concat())),
        ("binary.equal", EQUAL.to_vec(), to_bool(&DType::ALL)),
        ("binary.tests", TESTS.to_vec(), to_bool(&real())),
    ]
}

/// An op and dtypes that compute the same from the same bits, for many: they share a kernel.
fn canonical(op: &str, src: DType, dst: DType) -> (&str, DType, DType) {
    let is_unsigned = src.is_int() && unsigned(src) == src;
    let op = match exchanged(op).unwrap_or(op) {
        "relu_backward_with_dy_y" => "relu_backward_with_dy_x",
        "hard_shrink_backward_with_dy_y" => "soft_shrink_backward_with_dy_y",
        "div" if src.is_int() => "trunc_div",
        "floor_div" if is_unsigned => "trunc_div",
        "floor_mod" if is_unsigned => "fmod",
        op => op,
    };
    let wraps = ["add", "sub", "mul"].contains(&op) || BITS.contains(&op);
    match op {
        _ if wraps && src.is_int() => (op, unsigned(src), unsigned(dst)),
        _ if EQUAL.contains(&op) => (op, unsigned(src), dst),
        "logical_and" | "logical_or" | "logical_xor" if src.is_int() || src == DType::BOOL => {
            (op, bits(src), dst)
        }
        _ => (op, src, dst),
    }
}

fn spec(op: &str, src: DType, dst: DType, index: Index) -> Spec {
    let (op, src, dst) = canonical(op, src, dst);
    let pack = pack_of(&[src, dst].map(DType::bytes_for_bounds));
    specialise(between(Spec::new(&BINARY).with("EP_OP", op), src, dst), pack, UNROLL, index)
}

/// The test that gives the same with its sources exchanged, for those that have no kernel of their own.
fn exchanged(op: &str) -> Option<&'static str> {
    match op {
        "greater_than" => Some("less_than"),
        "greater_equal" => Some("less_equal"),
        _ => None,
    }
}

/// The kernels with indices of 32 bits; the others are compiled when they are needed.
pub(super) fn kernels() -> [(&'static str, Vec<Spec>); 1] {
    let of_class = |(_, ops, dtypes): Class| {
        let rows = ops.into_iter().flat_map(move |op| dtypes.clone().into_iter().map(move |row| (op, row)));
        rows.map(|(op, [src, dst])| spec(op, src, dst, Index::Narrow))
    };
    [(BroadcastElementwiseBinary::NAME, classes().into_iter().flat_map(of_class).collect())]
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let names = choices::<BroadcastElementwiseBinary>();
    for (name, ops, dtypes) in classes() {
        let numbers = ops.iter().filter_map(|op| names.iter().position(|n| n == op).map(|i| [i as u32]));
        let factory = Factory::<BroadcastElementwiseBinary, _, _>::new(name, build);
        registrar.add(factory.selectors(numbers.collect::<Vec<_>>()).dtypes(dtypes).capturable())?;
    }
    Ok(())
}

fn build(device: &CudaDevice, desc: &BroadcastElementwiseBinaryDesc) -> Result<Binary> {
    let BroadcastElementwiseBinaryDesc { op, src, dst, attr0, attr1, .. } = *desc;
    let op = choices::<BroadcastElementwiseBinary>().get(op.0 as usize).copied();
    let op = op.ok_or_else(|| Error::unsupported(format!("binary op {} is not known", desc.op.0)))?;
    let (loader, name) = (device.loader()?, BroadcastElementwiseBinary::NAME);
    let kernels = ByIndex::new(&loader, name, |index| spec(op, src, dst, index));
    Ok(Binary { kernels, src, dst, attr: [attr0, attr1], exchange: exchanged(op).is_some() })
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    nd: Nd<3>,
    attr: [f64; 2],
}

// SAFETY: as `Args` of binary.cu.
unsafe impl Argument for Args {}

struct Binary {
    kernels: ByIndex,
    src: DType,
    dst: DType,
    attr: [f64; 2],
    /// The kernel takes the sources the other way around.
    exchange: bool,
}

impl Binary {
    /// A source: its memory, or the scalar that stands in for it.
    fn operand(&self, name: &str, scalar: EpScalar, dims: &[i64], address: u64) -> Result<Operand> {
        match Scalar::try_from(scalar)? {
            Scalar::None => Ok(Operand::Memory(address, self.src.bytes_for_bounds())),
            _ if !dims.is_empty() => Err(Error::invalid(format!(
                "`{name}` stands in for a source with the shape {dims:?}; a scalar has rank 0"
            ))),
            value => Ok(Operand::Value(scalar::words(scalar::element(name, value, self.src)?))),
        }
    }
}

impl Kernel<BroadcastElementwiseBinary, CudaDevice> for Binary {
    unsafe fn launch(&self, stream: &CudaStream, args: &BroadcastElementwiseBinaryArgs) -> Result<()> {
        // SAFETY: the launch has been checked, and its dims are readable during the call.
        let mut dims =
            unsafe { [view(args.src0_dims, args.num_src0_dims), view(args.src1_dims, args.num_src1_dims)] };
        let mut sources = [
            self.operand("scalar0", args.scalar0, dims[0], args.src0)?,
            self.operand("scalar1", args.scalar1, dims[1], args.src1)?,
        ];
        if self.exchange {
            dims.swap(0, 1);
            sources.swap(0, 1);
        }
        let plan = Plan::new(dims)?;
        if plan.count() == 0 {
            return Ok(());
        }
        let [src, dst] = [self.src, self.dst].map(DType::bytes_for_bounds);
        for (n, source) in sources.iter().enumerate() {
            let in_place = matches!(source, Operand::Memory(address, _) if *address == args.dst);
            if in_place && (src != dst || !plan.is_dense(n)) {
                return Err(Error::invalid(
                    "the destination is also a source, but one of another shape or element size; compute into a \
                     separate buffer instead",
                ));
            }
        }
        let operands = [Operand::Memory(args.dst, dst), sources[0], sources[1]];
        let pack = pack_of(&[src, dst]);
        let (nd, index, geometry) = Nd::broadcast(&Loops::broadcast(&plan), operands, pack, UNROLL)?;
        // SAFETY: the operands are valid as the caller promises, and this is the kernel's argument.
        unsafe {
            let function = self.kernels.get(index)?;
            function.launch(stream, geometry, &Args { nd, attr: self.attr })
        }
    }

    fn describe(&self) -> &str {
        "packs of 16 bytes, divisions only where dimensions are left"
    }
}

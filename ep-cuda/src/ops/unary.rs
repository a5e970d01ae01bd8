//! `elementwise_unary` and `cast`: functions of one element.

use super::nd::{Index, Nd, between, pack_of, specialise};
use super::size;
use super::source::UNARY;
use crate::compiler::Spec;
use crate::device::CudaDevice;
use crate::kernel::{Argument, Lazy};
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::op::Op;
use ep_core::primitive::{
    Cast, CastArgs, CastDesc, ElementwiseUnary, ElementwiseUnaryArgs, ElementwiseUnaryDesc,
};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::schema::DescKind;
use ep_core::{DType, Error, Result};

/// Ops that are for the same dtypes.
struct Class {
    /// The factory's name.
    name: &'static str,
    ops: Vec<&'static str>,
    /// Source and destination.
    dtypes: Vec<[DType; 2]>,
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

/// Names of the ops in the schema's order.
fn names() -> Vec<&'static str> {
    match ElementwiseUnary::schema().desc_field("op").map(|f| &f.kind) {
        Some(DescKind::Selector(choices)) => choices.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    }
}

fn pairs(sources: &[DType], destinations: &[DType]) -> Vec<[DType; 2]> {
    sources.iter().flat_map(|src| destinations.iter().map(|dst| [*src, *dst])).collect()
}

fn classes() -> Vec<Class> {
    let same = |dtypes: &[DType]| dtypes.iter().map(|d| [*d, *d]).collect::<Vec<_>>();
    let others = [&NO_FLOAT[..], &TO_BOOL, &PARTS, &FROM_PARTS].concat();
    let float = names().into_iter().filter(|op| !others.contains(op)).collect();
    let bool_ops = INT.into_iter().filter(|op| *op != "negative").collect();
    let real = [&[DType::BOOL], DType::INT, DType::FLOAT].concat();
    vec![
        Class { name: "unary.float", ops: float, dtypes: same(DType::FLOAT) },
        Class { name: "unary.int", ops: INT.to_vec(), dtypes: same(DType::INT) },
        Class { name: "unary.bool", ops: bool_ops, dtypes: same(&[DType::BOOL]) },
        Class { name: "unary.complex", ops: COMPLEX.to_vec(), dtypes: same(DType::COMPLEX) },
        Class { name: "unary.to_bool", ops: TO_BOOL.to_vec(), dtypes: pairs(&real, &[DType::BOOL]) },
        Class { name: "unary.parts", ops: PARTS.to_vec(), dtypes: pairs(DType::COMPLEX, DType::FLOAT) },
        Class {
            name: "unary.from_parts",
            ops: FROM_PARTS.to_vec(),
            dtypes: pairs(DType::FLOAT, DType::COMPLEX),
        },
        Class { name: "unary.cast", ops: vec!["cast"], dtypes: pairs(&DType::ALL, &DType::ALL) },
    ]
}

fn spec(op: &str, src: DType, dst: DType, index: Index) -> Spec {
    let spec = between(Spec::new(&UNARY).with("EP_OP", op), src, dst);
    specialise(spec, pack_of(&[src, dst]), index)
}

/// The kernels of both ops for fewer than 2^31 elements; those for more are compiled when they are needed.
pub(super) fn kernels() -> [(&'static str, Vec<Spec>); 2] {
    let of_class = |class: Class| {
        let of_op = |op| class.dtypes.iter().map(move |[src, dst]| spec(op, *src, *dst, Index::Narrow));
        class.ops.iter().flat_map(|op| of_op(*op)).collect::<Vec<_>>()
    };
    let casts = pairs(&DType::ALL, &DType::ALL).into_iter().map(|[s, d]| spec("cast", s, d, Index::Narrow));
    [
        (ElementwiseUnary::NAME, classes().into_iter().flat_map(of_class).collect()),
        (Cast::NAME, casts.collect()),
    ]
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let names = names();
    for class in classes() {
        let number = |op: &&str| names.iter().position(|n| n == op).map(|i| [i as u32]);
        let build = |device: &CudaDevice, desc: &ElementwiseUnaryDesc| {
            let name = self::names().get(desc.op.0 as usize).copied();
            let op =
                name.ok_or_else(|| Error::unsupported(format!("unary op {} is not known", desc.op.0)))?;
            Map::new(device, ElementwiseUnary::NAME, op, [desc.src, desc.dst], [desc.attr0, desc.attr1])
        };
        let selectors: Vec<_> = class.ops.iter().filter_map(number).collect();
        let factory = Factory::<ElementwiseUnary, _, _>::new(class.name, build);
        registrar.add(factory.selectors(selectors).dtypes(class.dtypes).capturable())?;
    }
    let build = |device: &CudaDevice, desc: &CastDesc| {
        Map::new(device, Cast::NAME, "cast", [desc.src, desc.dst], [0.0; 2])
    };
    let factory = Factory::<Cast, _, _>::new("cast", build);
    registrar.add(factory.dtypes(pairs(&DType::ALL, &DType::ALL)).capturable())
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    nd: Nd<2>,
    attr: [f64; 2],
}

// SAFETY: as `Args` of unary.cu.
unsafe impl Argument for Args {}

/// A function of one element, between two arrays.
struct Map {
    narrow: Lazy,
    wide: Lazy,
    bytes: [u64; 2],
    pack: u64,
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
        let loader = device.loader()?;
        let lazy = |index| Lazy::new(&loader, name, spec(op, src, dst, index));
        Ok(Map {
            narrow: lazy(Index::Narrow),
            wide: lazy(Index::Wide),
            bytes: [dst, src].map(DType::bytes_for_bounds),
            pack: pack_of(&[src, dst]),
            attr,
        })
    }

    /// # Safety
    /// As for the op's launch: the count is not negative, and both operands are valid for it.
    unsafe fn run(&self, stream: &CudaStream, count: i64, src: u64, dst: u64) -> Result<()> {
        let count = size(count) as u64;
        if count == 0 {
            return Ok(());
        }
        let (nd, index) = Nd::flat(count, [(dst, self.bytes[0]), (src, self.bytes[1])], self.pack);
        let lazy = if index == Index::Narrow { &self.narrow } else { &self.wide };
        // SAFETY: the operands are valid as the caller promises, and this is the kernel's argument.
        unsafe { lazy.get()?.launch(stream, nd.geometry()?, &Args { nd, attr: self.attr }) }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The table of what the CPU provider does is what all providers do.
    #[test]
    fn rows_are_those_of_the_support_table() {
        let mut expected = BTreeSet::new();
        for line in include_str!("../../../docs/support.csv").lines() {
            let fields: Vec<_> = line.split(',').collect();
            if let ["elementwise_unary", dtypes, "yes", ops] = fields[..] {
                expected.extend(ops.split(' ').map(|op| format!("{op} {dtypes}")));
            }
        }
        let mut claimed = BTreeSet::new();
        for class in classes() {
            for op in &class.ops {
                for [src, dst] in &class.dtypes {
                    assert!(claimed.insert(format!("{op} src={src} dst={dst}")), "{op} is claimed twice");
                }
            }
        }
        assert!(expected.len() > 500);
        let missing: Vec<_> = expected.symmetric_difference(&claimed).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}

//! `cast`, `fill`, and the unary and binary functions.

use crate::support::{Num, Random, Rig, check, check_same, encode_all};
use ep_core::parallel::Serial;
use ep_core::primitive::{
    BinaryOp, BroadcastElementwiseBinary, BroadcastElementwiseBinaryCall, BroadcastElementwiseBinaryDesc,
    Cast, CastCall, CastDesc, ElementwiseUnary, ElementwiseUnaryCall, ElementwiseUnaryDesc, Fill, FillCall,
    FillDesc, UnaryOp,
};
use ep_core::{DType, Scalar};
use ep_cpu::isa::Isa;
use ep_cpu::kernels::{binary, unary};
use ep_registry::{InPlace, NoMemory};

const COUNT: usize = 37;

/// A function, its name, its source dtypes, its destination dtype unless that is the source's, and its formula.
type Case<O, F> = (O, &'static str, &'static [DType], Option<DType>, F);

/// What `cast` makes of a value; rounding is left to [`encode_all`].
fn convert(x: Num, dst: DType) -> Num {
    match x {
        _ if dst == DType::BOOL => Num::Int((!x.is_zero()).into()),
        Num::Int(i) if dst.is_int() => Num::Int(i),
        _ => Num::Float(x.float()),
    }
}

#[test]
fn cast_between_all_dtypes() {
    let (rig, mut random) = (Rig::new(), Random::new());
    for src in DType::ALL {
        let values = random.values(src, COUNT);
        let a = rig.upload(src, &values);
        for dst in DType::ALL {
            let typed = rig.runtime.primitive::<Cast>(rig.cpu(), CastDesc::new(src, dst)).unwrap();
            let request = rig.request("cast", &[], &[("src", src), ("dst", dst)]);
            let dynamic = rig.runtime.primitive_dyn(rig.cpu(), &request).unwrap();
            let count = COUNT as i64;
            let got = rig.outputs(
                dst,
                COUNT,
                |b| typed.launch(&rig.stream, CastCall { count, src: &a, dst: b }),
                |b| {
                    let args = dynamic.args().size("count", count)?.read("src", &a)?.write("dst", b)?;
                    dynamic.launch(&rig.stream, args)
                },
            );
            let want: Vec<_> = values
                .iter()
                .map(|x| match x {
                    Num::Complex(..) if dst.is_complex() => *x,
                    _ => convert(*x, dst),
                })
                .collect();
            check(&format!("{src} to {dst}"), dst, &got, &want, 0.0);
        }
    }
}

#[test]
fn fill_with_each_kind_of_scalar() {
    let rig = Rig::new();
    let values = [
        Num::Int(1),
        Num::Int(-3),
        Num::Int(u64::MAX.into()),
        Num::Float(-2.75),
        Num::Float(f64::NAN),
        Num::Float(1e300),
        Num::Complex(0.0, 1.5),
    ];
    for dtype in DType::ALL {
        let typed = rig.runtime.primitive::<Fill>(rig.cpu(), FillDesc::new(dtype)).unwrap();
        let request = rig.request("fill", &[], &[("data", dtype)]);
        let dynamic = rig.runtime.primitive_dyn(rig.cpu(), &request).unwrap();
        for x in values {
            let got = rig.outputs(
                dtype,
                COUNT,
                |b| typed.launch(&rig.stream, FillCall { count: COUNT as i64, value: x.scalar(), dst: b }),
                |b| {
                    let args = dynamic.args().size("count", COUNT as i64)?;
                    dynamic.launch(&rig.stream, args.scalar("value", x.scalar())?.write("dst", b)?)
                },
            );
            let want =
                if dtype.is_complex() && matches!(x, Num::Complex(..)) { x } else { convert(x, dtype) };
            check(&format!("{dtype} filled with {x:?}"), dtype, &got, &[want; COUNT], 0.0);
        }
    }
}

/// One function for each group of dtypes.
#[test]
fn unary_functions_by_formula() {
    let (rig, mut random) = (Rig::new(), Random::new());
    type Formula = fn(Num) -> Num;
    let negative: Formula = |x| match x {
        Num::Int(i) => Num::Int(-i),
        Num::Float(f) => Num::Float(-f),
        Num::Complex(re, im) => Num::Complex(-re, -im),
    };
    let relu: Formula = |x| match x {
        Num::Int(i) => Num::Int(i.max(0)),
        _ => Num::Float(if x.float() <= 0.0 { 0.0 } else { x.float() }),
    };
    let is_nan: Formula = |x| Num::Int(x.float().is_nan().into());
    let cases: [Case<UnaryOp, Formula>; 4] = [
        (UnaryOp::IDENTITY, "identity", &DType::ALL, None, |x| x),
        (UnaryOp::NEGATIVE, "negative", &DType::ALL[1..], None, negative),
        (UnaryOp::RELU, "relu", DType::REAL, None, relu),
        (UnaryOp::IS_NAN, "is_nan", DType::REAL, Some(DType::BOOL), is_nan),
    ];
    for (op, name, dtypes, to, formula) in cases {
        for &src in dtypes {
            let dst = to.unwrap_or(src);
            let values = random.values(src, COUNT);
            let a = rig.upload(src, &values);
            let desc = ElementwiseUnaryDesc::new(op, src, dst);
            let typed = rig.runtime.primitive::<ElementwiseUnary>(rig.cpu(), desc).unwrap();
            let request = rig.request("elementwise_unary", &[("op", name)], &[("src", src), ("dst", dst)]);
            let dynamic = rig.runtime.primitive_dyn(rig.cpu(), &request).unwrap();
            let count = COUNT as i64;
            let got = rig.outputs(
                dst,
                COUNT,
                |b| typed.launch(&rig.stream, ElementwiseUnaryCall { count, src: &a, dst: b }),
                |b| {
                    let args = dynamic.args().size("count", count)?.read("src", &a)?.write("dst", b)?;
                    dynamic.launch(&rig.stream, args)
                },
            );
            let want: Vec<_> = values.iter().map(|x| formula(*x)).collect();
            check(&format!("{name} of {src}"), dst, &got, &want, 0.0);
            if src == dst {
                let mut data = rig.upload(src, &values);
                let call = ElementwiseUnaryCall { count, src: InPlace, dst: &mut data };
                typed.launch(&rig.stream, call).unwrap();
                assert_eq!(crate::support::bytes_of(data), got, "{name} of {src} in place");
            }
        }
    }
}

/// Every row of the kernel table is reached by its name, with its attributes.
#[test]
fn every_unary_row_runs_its_kernel() {
    let (rig, mut random) = (Rig::new(), Random::new());
    let isa = Isa::detect().unwrap();
    let attr = [0.75, 1.25];
    for row in unary::rows() {
        let (name, src, dst) = (unary::OPS[row.op], row.src, row.dst);
        let values = encode_all(src, &random.values(src, COUNT));
        let a = rig.upload_bytes(src, &values);
        let desc = ElementwiseUnaryDesc::new(UnaryOp(row.op as u32), src, dst);
        let desc = desc.with_attr0(attr[0]).with_attr1(attr[1]);
        let typed = rig.runtime.primitive::<ElementwiseUnary>(rig.cpu(), desc).unwrap();
        let request = rig.request("elementwise_unary", &[("op", name)], &[("src", src), ("dst", dst)]);
        let request = request.attr("attr0", attr[0]).unwrap().attr("attr1", attr[1]).unwrap();
        let dynamic = rig.runtime.primitive_dyn(rig.cpu(), &request).unwrap();
        let count = COUNT as i64;
        let got = rig.outputs(
            dst,
            COUNT,
            |b| typed.launch(&rig.stream, ElementwiseUnaryCall { count, src: &a, dst: b }),
            |b| {
                let args = dynamic.args().size("count", count)?.read("src", &a)?.write("dst", b)?;
                dynamic.launch(&rig.stream, args)
            },
        );
        let (values, mut want) = (Aligned::of(&values), Aligned::of(&got));
        want.0.fill([0x77; 16]);
        let args = unary::UnaryArgs {
            count: COUNT,
            src: values.0.as_ptr().cast(),
            dst: want.0.as_mut_ptr().cast(),
            attr,
        };
        // SAFETY: both sides have the elements, aligned, and do not overlap.
        unsafe { row.kernel.launch(isa, &Serial, &args) }.unwrap();
        let want = &want.0.as_flattened()[..got.len()];
        check_same(&format!("{name} from {src} to {dst}"), dst, &got, want);
    }
}

/// Memory aligned for any dtype.
struct Aligned(Vec<[u8; 16]>);

impl Aligned {
    fn of(bytes: &[u8]) -> Aligned {
        let mut blocks = vec![[0; 16]; bytes.len().div_ceil(16) + 1];
        let shift = blocks.as_ptr().align_offset(16);
        assert_eq!(shift, 0, "the system's allocator aligns to 16 bytes");
        blocks.as_flattened_mut()[..bytes.len()].copy_from_slice(bytes);
        Aligned(blocks)
    }
}

#[test]
fn every_binary_row_runs_its_kernel() {
    let (rig, mut random) = (Rig::new(), Random::new());
    let isa = Isa::detect().unwrap();
    let attr = [0.75, 1.25];
    let dims = ([3i64, 1, 5], [4i64, 1]);
    for row in binary::rows() {
        let (name, src, dst) = (binary::OPS[row.op], row.src, row.dst);
        let (a, b) = (encode_all(src, &random.values(src, 15)), encode_all(src, &random.values(src, 4)));
        let desc = BroadcastElementwiseBinaryDesc::new(BinaryOp(row.op as u32), src, dst);
        let desc = desc.with_attr0(attr[0]).with_attr1(attr[1]);
        let typed = rig.runtime.primitive::<BroadcastElementwiseBinary>(rig.cpu(), desc).unwrap();
        let (src0, src1) = (rig.upload_bytes(src, &a), rig.upload_bytes(src, &b));
        let mut buffer = rig.cpu().alloc(dst, 60).unwrap();
        let call = BroadcastElementwiseBinaryCall {
            src0_dims: &dims.0,
            src1_dims: &dims.1,
            scalar0: Scalar::None,
            scalar1: Scalar::None,
            src0: &src0,
            src1: &src1,
            dst: &mut buffer,
        };
        typed.launch(&rig.stream, call).unwrap();
        let got = crate::support::bytes_of(buffer);
        let (a, b, mut want) = (Aligned::of(&a), Aligned::of(&b), Aligned::of(&got));
        want.0.fill([0x77; 16]);
        let args = binary::BinaryArgs {
            src0_dims: &dims.0,
            src1_dims: &dims.1,
            src0: a.0.as_ptr().cast(),
            src1: b.0.as_ptr().cast(),
            dst: want.0.as_mut_ptr().cast(),
            attr,
        };
        // SAFETY: all sides have the elements of their shapes, aligned, and do not overlap.
        unsafe { row.kernel.launch(isa, &Serial, &args) }.unwrap();
        let want = &want.0.as_flattened()[..got.len()];
        check_same(&format!("{name} from {src} to {dst}"), dst, &got, want);
    }
}

fn add(a: Num, b: Num) -> Num {
    match (a, b) {
        (Num::Int(a), Num::Int(b)) => Num::Int(a + b),
        (Num::Complex(a, x), Num::Complex(b, y)) => Num::Complex(a + b, x + y),
        _ => Num::Float(a.float() + b.float()),
    }
}

fn less(a: Num, b: Num) -> Num {
    Num::Int(match (a, b) {
        (Num::Int(a), Num::Int(b)) => (a < b).into(),
        _ => (a.float() < b.float()).into(),
    })
}

/// `[3, 1, 5]` with `[4, 1]`, and each source as a scalar.
#[test]
fn binary_functions_by_formula() {
    let (rig, mut random) = (Rig::new(), Random::new());
    type Formula = fn(Num, Num) -> Num;
    let cases: [Case<BinaryOp, Formula>; 2] = [
        (BinaryOp::ADD, "add", &DType::ALL, None, add),
        (BinaryOp::LESS_THAN, "less_than", DType::REAL, Some(DType::BOOL), less),
    ];
    let (dims0, dims1) = ([3i64, 1, 5], [4i64, 1]);
    for (op, name, dtypes, to, formula) in cases {
        for &src in dtypes {
            let dst = to.unwrap_or(src);
            let (x, y) = (random.values(src, 15), random.values(src, 4));
            let (a, b) = (rig.upload(src, &x), rig.upload(src, &y));
            let desc = BroadcastElementwiseBinaryDesc::new(op, src, dst);
            let typed = rig.runtime.primitive::<BroadcastElementwiseBinary>(rig.cpu(), desc).unwrap();
            let dtypes = [("src", src), ("dst", dst)];
            let request = rig.request("broadcast_elementwise_binary", &[("op", name)], &dtypes);
            let dynamic = rig.runtime.primitive_dyn(rig.cpu(), &request).unwrap();
            let (scalar0, scalar1) = (Scalar::None, Scalar::None);
            let got = rig.outputs(
                dst,
                60,
                |c| {
                    let call = BroadcastElementwiseBinaryCall {
                        src0_dims: &dims0,
                        src1_dims: &dims1,
                        scalar0,
                        scalar1,
                        src0: &a,
                        src1: &b,
                        dst: c,
                    };
                    typed.launch(&rig.stream, call)
                },
                |c| {
                    let args = dynamic.args().dims("src0_dims", &dims0)?.dims("src1_dims", &dims1)?;
                    let args = args.read("src0", &a)?.read("src1", &b)?.write("dst", c)?;
                    dynamic.launch(&rig.stream, args)
                },
            );
            let at = |i: usize| formula(x[i / 20 * 5 + i % 5], y[i / 5 % 4]);
            let want: Vec<_> = (0..60).map(at).collect();
            check(&format!("{name} of {src}"), dst, &got, &want, 0.0);

            let dims = [15i64];
            let (left, right) = (y[0].scalar(), y[1].scalar());
            let got = rig.outputs(
                dst,
                15,
                |c| {
                    let call = BroadcastElementwiseBinaryCall {
                        src0_dims: &[],
                        src1_dims: &dims,
                        scalar0: left,
                        scalar1,
                        src0: NoMemory,
                        src1: &a,
                        dst: c,
                    };
                    typed.launch(&rig.stream, call)
                },
                |c| {
                    let args = dynamic.args().dims("src1_dims", &dims)?.scalar("scalar0", left)?;
                    dynamic.launch(&rig.stream, args.read("src1", &a)?.write("dst", c)?)
                },
            );
            let want: Vec<_> = x.iter().map(|x| formula(y[0], *x)).collect();
            check(&format!("{name} of a scalar and {src}"), dst, &got, &want, 0.0);

            let got = rig.outputs(
                dst,
                15,
                |c| {
                    let call = BroadcastElementwiseBinaryCall {
                        src0_dims: &dims,
                        src1_dims: &[],
                        scalar0,
                        scalar1: right,
                        src0: &a,
                        src1: NoMemory,
                        dst: c,
                    };
                    typed.launch(&rig.stream, call)
                },
                |c| {
                    let args = dynamic.args().dims("src0_dims", &dims)?.scalar("scalar1", right)?;
                    dynamic.launch(&rig.stream, args.read("src0", &a)?.write("dst", c)?)
                },
            );
            let want: Vec<_> = x.iter().map(|x| formula(*x, y[1])).collect();
            check(&format!("{name} of {src} and a scalar"), dst, &got, &want, 0.0);
        }
    }
}

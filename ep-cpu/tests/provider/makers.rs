//! `constant_pad`, `where`, `tensor_fill` and `arange`.

use crate::support::{Num, Random, Rig, check, encode_all};
use ep_core::primitive::{
    Arange, ArangeCall, ArangeDesc, ConstantPad, ConstantPadCall, ConstantPadDesc, TensorFill,
    TensorFillCall, TensorFillDesc, Where, WhereCall, WhereDesc,
};
use ep_core::{Code, DType, Scalar};

#[test]
fn constant_pad_of_every_dtype() {
    let (rig, mut random) = (Rig::new(), Random::new());
    // One row before and two columns behind; the first column is left out.
    let (dims, before, after) = ([2i64, 3], [1i64, -1], [0i64, 2]);
    for dtype in DType::ALL {
        let values = random.wholes(dtype, 6);
        let src = rig.upload(dtype, &values);
        let typed = rig.runtime.primitive::<ConstantPad>(rig.cpu(), ConstantPadDesc::new(dtype)).unwrap();
        let named = rig.request("constant_pad", &[], &[("data", dtype)]);
        let named = rig.runtime.primitive_dyn(rig.cpu(), &named).unwrap();
        for (value, border) in [(Scalar::None, 0), (Scalar::F64(5.0), 5)] {
            let got = rig.outputs(
                dtype,
                12,
                |dst| {
                    let (src_dims, padding_before, padding_after) = (&dims[..], &before[..], &after[..]);
                    let call =
                        ConstantPadCall { src_dims, padding_before, padding_after, value, src: &src, dst };
                    typed.launch(&rig.stream, call)
                },
                |dst| {
                    let args = named.args().dims("src_dims", &dims)?.dims("padding_before", &before)?;
                    let args = args.dims("padding_after", &after)?.scalar("value", value)?;
                    named.launch(&rig.stream, args.read("src", &src)?.write("dst", dst)?)
                },
            );
            let b = Num::Int(border);
            let want = [b, b, b, b, values[1], values[2], b, b, values[4], values[5], b, b];
            assert_eq!(got, encode_all(dtype, &want), "{dtype}");
        }
    }
}

#[test]
fn a_dimension_that_is_cropped_too_far_is_refused() {
    let rig = Rig::new();
    let pad = rig.runtime.primitive::<ConstantPad>(rig.cpu(), ConstantPadDesc::new(DType::U8)).unwrap();
    let src = rig.cpu().upload(&[1u8, 2, 3]).unwrap();
    let mut dst = rig.cpu().upload(&[9u8; 3]).unwrap();
    let (src_dims, padding_before, padding_after) = (&[3][..], &[-2][..], &[-2][..]);
    let call = ConstantPadCall {
        src_dims,
        padding_before,
        padding_after,
        value: Scalar::None,
        src: &src,
        dst: &mut dst,
    };
    let e = pad.launch(&rig.stream, call).unwrap_err();
    assert_eq!(e.code(), Code::InvalidArgument, "{e}");
}

#[test]
fn where_of_every_pair_of_dtypes() {
    let (rig, mut random) = (Rig::new(), Random::new());
    let (cond_dims, x_dims, y_dims) = ([2i64, 1], [2i64, 3], [3i64]);
    let conds = DType::ALL.into_iter().filter(|d| *d == DType::BOOL || d.is_int());
    for (cond, data) in conds.flat_map(|cond| DType::ALL.into_iter().map(move |data| (cond, data))) {
        let conds = [Num::Int(i128::from(random.below(2))), Num::Int(1)];
        let (xs, ys) = (random.wholes(data, 6), random.wholes(data, 3));
        let (c, x, y) = (rig.upload(cond, &conds), rig.upload(data, &xs), rig.upload(data, &ys));
        let typed = rig.runtime.primitive::<Where>(rig.cpu(), WhereDesc::new(cond, data)).unwrap();
        let request = rig.request("where", &[], &[("cond", cond), ("data", data)]);
        let named = rig.runtime.primitive_dyn(rig.cpu(), &request).unwrap();
        let got = rig.outputs(
            data,
            6,
            |dst| {
                let (cond_dims, x_dims, y_dims) = (&cond_dims[..], &x_dims[..], &y_dims[..]);
                let call = WhereCall { cond_dims, x_dims, y_dims, cond: &c, x: &x, y: &y, dst };
                typed.launch(&rig.stream, call)
            },
            |dst| {
                let args = named.args().dims("cond_dims", &cond_dims)?.dims("x_dims", &x_dims)?;
                let args = args.dims("y_dims", &y_dims)?.read("cond", &c)?.read("x", &x)?.read("y", &y)?;
                named.launch(&rig.stream, args.write("dst", dst)?)
            },
        );
        let want: Vec<_> = (0..6).map(|i| if conds[i / 3].is_zero() { ys[i % 3] } else { xs[i] }).collect();
        assert_eq!(got, encode_all(data, &want), "{cond} {data}");
    }
}

#[test]
fn tensor_fill_of_every_dtype() {
    let (rig, mut random) = (Rig::new(), Random::new());
    for dtype in DType::ALL {
        let value = random.wholes(dtype, 1);
        let src = rig.upload(dtype, &value);
        let typed = rig.runtime.primitive::<TensorFill>(rig.cpu(), TensorFillDesc::new(dtype)).unwrap();
        let named = rig.request("tensor_fill", &[], &[("data", dtype)]);
        let named = rig.runtime.primitive_dyn(rig.cpu(), &named).unwrap();
        let got = rig.outputs(
            dtype,
            77,
            |dst| typed.launch(&rig.stream, TensorFillCall { count: 77, src: &src, dst }),
            |dst| {
                let args = named.args().size("count", 77)?.read("src", &src)?.write("dst", dst)?;
                named.launch(&rig.stream, args)
            },
        );
        assert_eq!(got, encode_all(dtype, &[value[0]; 77]), "{dtype}");
    }
}

#[test]
fn arange_of_every_dtype() {
    let rig = Rig::new();
    for dtype in DType::ALL.into_iter().filter(|d| d.is_int() || d.is_float()) {
        let typed = rig.runtime.primitive::<Arange>(rig.cpu(), ArangeDesc::new(dtype)).unwrap();
        let named = rig.request("arange", &[], &[("data", dtype)]);
        let named = rig.runtime.primitive_dyn(rig.cpu(), &named).unwrap();
        let starts = [(Scalar::None, 0), (Scalar::I64(-7), -7), (Scalar::F64(9.0), 9)];
        let steps = [(Scalar::None, 1), (Scalar::I64(-3), -3), (Scalar::U64(2), 2)];
        for ((start, first), (step, by)) in starts.into_iter().zip(steps) {
            let got = rig.outputs(
                dtype,
                40,
                |dst| typed.launch(&rig.stream, ArangeCall { count: 40, start, step, dst }),
                |dst| {
                    let args =
                        named.args().size("count", 40)?.scalar("start", start)?.scalar("step", step)?;
                    named.launch(&rig.stream, args.write("dst", dst)?)
                },
            );
            let want: Vec<_> = (0..40).map(|i| Num::Int(first + i * by)).collect();
            check("arange", dtype, &got, &want, 0.0);
        }
    }
}

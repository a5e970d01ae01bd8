//! `memcpy`, `memset`, `permute`, `copy_nd`, `strided_copy` and `broadcast_elementwise_unary`.

use crate::support::{Num, Random, Rig, bytes_of, decode, encode_all};
use ep_core::primitive::{
    BroadcastElementwiseUnary, BroadcastElementwiseUnaryCall, BroadcastElementwiseUnaryDesc, CopyNd,
    CopyNdCall, CopyNdDesc, Memcpy, MemcpyCall, MemcpyDesc, MemcpyKind, Memset, MemsetCall, MemsetDesc,
    Permute, PermuteCall, PermuteDesc, StridedCopy, StridedCopyCall, StridedCopyDesc, UnaryOp,
};
use ep_core::{Code, DType, Result, Scalar};
use ep_registry::Buffer;

/// Past the size from which a copy is split over threads, and odd.
const BYTES: usize = 1_200_007;

fn noise(random: &mut Random, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|_| random.below(256) as u8).collect()
}

#[test]
fn memcpy_of_each_kind() {
    let (rig, mut random) = (Rig::new(), Random::new());
    let names = ["auto", "host_to_device", "device_to_host", "device_to_device"];
    for (kind, name) in names.into_iter().enumerate() {
        let data = noise(&mut random, BYTES);
        let src = rig.upload_bytes(DType::U8, &data);
        let desc = MemcpyDesc::new(MemcpyKind(kind as u32));
        let typed = rig.runtime.primitive::<Memcpy>(rig.cpu(), desc).unwrap();
        let request = rig.request("memcpy", &[("kind", name)], &[]);
        let dynamic = rig.runtime.primitive_dyn(rig.cpu(), &request).unwrap();
        let bytes = BYTES as i64;
        let got = rig.outputs(
            DType::U8,
            BYTES,
            |dst| typed.launch(&rig.stream, MemcpyCall { bytes, src: &src, dst }),
            |dst| {
                let args = dynamic.args().size("bytes", bytes)?.read("src", &src)?.write("dst", dst)?;
                dynamic.launch(&rig.stream, args)
            },
        );
        assert!(got == data, "{name}");
    }
}

#[test]
fn memset_takes_the_value_modulo_256() {
    let rig = Rig::new();
    let typed = rig.runtime.primitive::<Memset>(rig.cpu(), MemsetDesc::new()).unwrap();
    let dynamic = rig.runtime.primitive_dyn(rig.cpu(), &rig.request("memset", &[], &[])).unwrap();
    let values = [
        (Scalar::I64(-1), 255),
        (Scalar::U64(0x1_17), 0x17),
        (Scalar::Bool(true), 1),
        (Scalar::F64(-254.0), 2),
    ];
    for (value, want) in values {
        let bytes = BYTES as i64;
        let got = rig.outputs(
            DType::U8,
            BYTES,
            |dst| typed.launch(&rig.stream, MemsetCall { bytes, value, dst }),
            |dst| {
                let args = dynamic.args().size("bytes", bytes)?.scalar("value", value)?.write("dst", dst)?;
                dynamic.launch(&rig.stream, args)
            },
        );
        assert!(got.iter().all(|b| *b == want), "{value}");
    }
}

#[test]
fn permute_of_every_dtype() {
    let (rig, mut random) = (Rig::new(), Random::new());
    let (dims, permutation) = ([3i64, 4, 5], [2i64, 0, 1]);
    for dtype in DType::ALL {
        let size = dtype.size().unwrap();
        let mut data = noise(&mut random, 60 * size);
        if dtype == DType::BOOL {
            data.iter_mut().for_each(|b| *b &= 1);
        }
        let src = rig.upload_bytes(dtype, &data);
        let typed = rig.runtime.primitive::<Permute>(rig.cpu(), PermuteDesc::new(dtype)).unwrap();
        let request = rig.request("permute", &[], &[("data", dtype)]);
        let dynamic = rig.runtime.primitive_dyn(rig.cpu(), &request).unwrap();
        let got = rig.outputs(
            dtype,
            60,
            |dst| {
                let call = PermuteCall { src_dims: &dims, permutation: &permutation, src: &src, dst };
                typed.launch(&rig.stream, call)
            },
            |dst| {
                let args = dynamic.args().dims("src_dims", &dims)?.dims("permutation", &permutation)?;
                dynamic.launch(&rig.stream, args.read("src", &src)?.write("dst", dst)?)
            },
        );
        for (i, element) in got.chunks(size).enumerate() {
            // The destination is [5, 3, 4].
            let (x, y, z) = (i / 12, i / 4 % 3, i % 4);
            let from = (y * 20 + z * 5 + x) * size;
            assert_eq!(element, &data[from..from + size], "{dtype}: element {i}");
        }
    }
}

/// At their real sizes the kernels choose other ways than in unit tests, and threads begin amid what one takes at a time.
#[test]
fn transposes_in_and_past_the_cache() {
    let (rig, mut random) = (Rig::new(), Random::new());
    for (rows, cols) in [(64, 64), (257, 131), (120, 4200), (4200, 120), (512, 768), (1031, 1029)] {
        for dtype in [DType::F32, DType::F64] {
            let size = dtype.size().unwrap();
            let data = noise(&mut random, rows * cols * size);
            let src = rig.upload_bytes(dtype, &data);
            let mut dst = rig.cpu().alloc(dtype, rows * cols).unwrap();
            let permute = rig.runtime.primitive::<Permute>(rig.cpu(), PermuteDesc::new(dtype)).unwrap();
            let dims = [rows as i64, cols as i64];
            let call = PermuteCall { src_dims: &dims, permutation: &[1, 0], src: &src, dst: &mut dst };
            permute.launch(&rig.stream, call).unwrap();
            for (i, element) in bytes_of(dst).chunks(size).enumerate() {
                let from = (i % rows * cols + i / rows) * size;
                assert!(element == &data[from..from + size], "{rows}x{cols} of {dtype}: element {i}");
            }
        }
    }
}

#[test]
fn a_scalar_and_an_empty_tensor_permute_too() {
    let rig = Rig::new();
    let permute = rig.runtime.primitive::<Permute>(rig.cpu(), PermuteDesc::new(DType::I32)).unwrap();
    let src = rig.cpu().upload(&[-7i32]).unwrap();
    let mut dst = rig.cpu().upload(&[1i32, 2]).unwrap();
    let call = PermuteCall { src_dims: &[], permutation: &[], src: &src, dst: &mut dst };
    permute.launch(&rig.stream, call).unwrap();
    let call = PermuteCall { src_dims: &[0, 9], permutation: &[1, 0], src: &src, dst: &mut dst };
    permute.launch(&rig.stream, call).unwrap();
    assert_eq!(bytes_of(dst), [-7i32, 2].map(i32::to_ne_bytes).concat());
}

#[test]
fn copy_nd_of_every_dtype() {
    let (rig, mut random) = (Rig::new(), Random::new());
    let (dst_dims, dst_pos) = ([3i64, 4], [1i64, 2]);
    let (src_dims, src_pos, extent) = ([2i64, 5], [0i64, 1], [2i64, 2]);
    for dtype in DType::ALL {
        let values = random.wholes(dtype, 10);
        let src = rig.upload(dtype, &values);
        let typed = rig.runtime.primitive::<CopyNd>(rig.cpu(), CopyNdDesc::new(dtype)).unwrap();
        let named = rig.request("copy_nd", &[], &[("data", dtype)]);
        let named = rig.runtime.primitive_dyn(rig.cpu(), &named).unwrap();
        let old = random.wholes(dtype, 12);
        let run = |launch: &mut dyn FnMut(&mut Buffer) -> Result<()>| {
            let mut dst = rig.upload(dtype, &old);
            launch(&mut dst).unwrap();
            bytes_of(dst)
        };
        let mut want = old.clone();
        (want[6], want[7], want[10], want[11]) = (values[1], values[2], values[6], values[7]);
        let by_type = run(&mut |dst| {
            let (dst_dims, dst_pos, src_dims) = (&dst_dims[..], &dst_pos[..], &src_dims[..]);
            let (src_pos, extent) = (&src_pos[..], &extent[..]);
            typed.launch(
                &rig.stream,
                CopyNdCall { dst_dims, dst_pos, src_dims, src_pos, extent, src: &src, dst },
            )
        });
        let by_name = run(&mut |dst| {
            let args = named.args().dims("dst_dims", &dst_dims)?.dims("dst_pos", &dst_pos)?;
            let args =
                args.dims("src_dims", &src_dims)?.dims("src_pos", &src_pos)?.dims("extent", &extent)?;
            named.launch(&rig.stream, args.read("src", &src)?.write("dst", dst)?)
        });
        for got in [by_type, by_name] {
            assert_eq!(got, encode_all(dtype, &want), "{dtype}");
        }
    }
}

#[test]
fn strided_copy_casts_between_views() {
    let (rig, mut random) = (Rig::new(), Random::new());
    for (from, to) in [(DType::F32, DType::I16), (DType::BF16, DType::F64), (DType::U8, DType::U8)] {
        let values = random.wholes(from, 12);
        let src = rig.upload(from, &values);
        let typed = rig.runtime.primitive::<StridedCopy>(rig.cpu(), StridedCopyDesc::new(from, to)).unwrap();
        let named = rig.request("strided_copy", &[], &[("src", from), ("dst", to)]);
        let named = rig.runtime.primitive_dyn(rig.cpu(), &named).unwrap();
        // A [3, 4] tensor, transposed and with its rows backwards, into every second element of 24.
        let (dims, src_strides, dst_strides) = ([4i64, 3], [1i64, -4], [6i64, 2]);
        let old = random.wholes(to, 24);
        let mut want = old.clone();
        for (c, r) in (0..4).flat_map(|c| (0..3).map(move |r| (c, r))) {
            want[c * 6 + r * 2] = decode(to, &encode_all(to, &[values[8 + c - 4 * r]]))[0];
        }
        for typed_launch in [true, false] {
            let mut dst = rig.upload(to, &old);
            if typed_launch {
                let call = StridedCopyCall {
                    dims: &dims,
                    src_strides: &src_strides,
                    dst_strides: &dst_strides,
                    src_offset: 8,
                    dst_offset: 0,
                    src: &src,
                    dst: &mut dst,
                };
                typed.launch(&rig.stream, call).unwrap();
            } else {
                let args = named.args().dims("dims", &dims).unwrap();
                let args = args.dims("src_strides", &src_strides).unwrap();
                let args = args.dims("dst_strides", &dst_strides).unwrap().size("src_offset", 8).unwrap();
                let args = args.size("dst_offset", 0).unwrap().read("src", &src).unwrap();
                named.launch(&rig.stream, args.write("dst", &mut dst).unwrap()).unwrap();
            }
            assert_eq!(bytes_of(dst), encode_all(to, &want), "{from} to {to}");
        }
    }
}

#[test]
fn a_view_below_its_buffer_is_refused() {
    let rig = Rig::new();
    let copy =
        rig.runtime.primitive::<StridedCopy>(rig.cpu(), StridedCopyDesc::new(DType::U8, DType::U8)).unwrap();
    let src = rig.cpu().upload(&[1u8, 2, 3]).unwrap();
    let mut dst = rig.cpu().upload(&[9u8; 3]).unwrap();
    let mut launch = |src_strides: &[i64], dst_strides: &[i64], src_offset: i64| {
        let (dims, dst) = (&[3i64][..], &mut dst);
        let call =
            StridedCopyCall { dims, src_strides, dst_strides, src_offset, dst_offset: 0, src: &src, dst };
        copy.launch(&rig.stream, call)
    };
    for (src_strides, dst_strides) in [([-1], [1]), ([1], [0])] {
        let e = launch(&src_strides, &dst_strides, 1).unwrap_err();
        assert_eq!(e.code(), Code::InvalidArgument, "{e}");
    }
    launch(&[-1], &[1], 2).unwrap();
    assert_eq!(bytes_of(dst), [3, 2, 1]);
}

#[test]
fn strided_unary_of_a_broadcast_column() {
    let (rig, mut random) = (Rig::new(), Random::new());
    for dtype in [DType::F32, DType::F16, DType::I32] {
        let values = random.wholes(dtype, 3);
        let src = rig.upload(dtype, &values);
        let desc = BroadcastElementwiseUnaryDesc::new(UnaryOp::SQUARE, dtype, dtype);
        let typed = rig.runtime.primitive::<BroadcastElementwiseUnary>(rig.cpu(), desc).unwrap();
        let old = random.wholes(dtype, 12);
        let mut dst = rig.upload(dtype, &old);
        // A column of three, over the first two of each four.
        let call = BroadcastElementwiseUnaryCall {
            src_dims: &[3, 1],
            src_strides: &[1, 7],
            dst_dims: &[3, 2],
            dst_strides: &[4, 1],
            src: &src,
            dst: &mut dst,
        };
        typed.launch(&rig.stream, call).unwrap();
        let square = |x: Num| match x {
            Num::Int(i) => Num::Int(i * i),
            other => Num::Float(other.float() * other.float()),
        };
        let mut want = old;
        for (i, x) in values.into_iter().enumerate() {
            want[4 * i..4 * i + 2].fill(square(x));
        }
        assert_eq!(bytes_of(dst), encode_all(dtype, &want), "{dtype}");
    }
}

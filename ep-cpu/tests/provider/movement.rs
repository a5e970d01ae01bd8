//! `memcpy`, `memset` and `permute`.

use crate::support::{Random, Rig, bytes_of};
use ep_core::primitive::{
    Memcpy, MemcpyCall, MemcpyDesc, MemcpyKind, Memset, MemsetCall, MemsetDesc, Permute, PermuteCall,
    PermuteDesc,
};
use ep_core::{DType, Scalar};

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

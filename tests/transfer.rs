//! Moving data between the host and a device.

use ep_core::primitive::{Fill, FillCall, FillDesc, Memset, MemsetCall, MemsetDesc};
use ep_core::{Code, DType, Result};
use ep_registry::{Device, Runtime};
use ep_tests::ops::{AddScalar, Negate};
use ep_tests::random::Bits;
use ep_tests::{Random, Under, bits, on_each_provider};
use half::{bf16, f16};

on_each_provider!(
    every_dtype_makes_the_round_trip,
    complex_is_pairs_of_floats,
    invalid_bool_cannot_be_read,
    unwritten_memory_cannot_be_read,
    unwritten_parts_cannot_be_read,
    uploads_are_checked,
    an_upload_has_read_its_slice,
    a_queued_upload_keeps_its_vector,
    slices_touch_their_part_only,
    slices_are_inside,
    empty_buffers_work,
    mapping_waits_for_queued_work,
    mapped_writes_arrive,
    a_fresh_mapping_is_zero,
    copies_on_one_device,
    copies_are_checked,
    memory_is_counted,
    pinned_memory_works_where_there_is_some,
);

/// The code and the message of a refusal.
fn refused<T: std::fmt::Debug>(result: Result<T>) -> (Code, String) {
    let e = result.expect_err("this must be refused");
    (e.code(), e.message().to_owned())
}

fn invalid<T: std::fmt::Debug>(result: Result<T>) -> String {
    let (code, message) = refused(result);
    assert_eq!(code, Code::InvalidArgument, "{message}");
    message
}

const LENGTHS: [usize; 7] = [0, 1, 3, 17, 255, 1000, 40_001];

fn round_trip<T: Bits + std::fmt::Debug>(device: &Device, random: &mut Random) {
    for len in LENGTHS {
        let data = random.vec::<T>(len);
        let buffer = device.upload(&data).unwrap();
        assert_eq!((buffer.dtype(), buffer.len(), buffer.is_empty()), (T::DTYPE, len, len == 0));
        assert_eq!(buffer.bytes(), size_of_val(data.as_slice()) as u64);
        assert!(bits(&buffer.download::<T>().unwrap()) == bits(&data), "{} x {len}", T::DTYPE);
        let mapped = buffer.map_read::<T>().unwrap();
        assert!(bits(&mapped) == bits(&data), "{} x {len} mapped", T::DTYPE);
    }
}

fn every_dtype_makes_the_round_trip(on: Under) {
    let mut random = Random::fresh();
    on.run(|_, device| {
        round_trip::<bool>(device, &mut random);
        round_trip::<i8>(device, &mut random);
        round_trip::<u8>(device, &mut random);
        round_trip::<i16>(device, &mut random);
        round_trip::<u16>(device, &mut random);
        round_trip::<i32>(device, &mut random);
        round_trip::<u32>(device, &mut random);
        round_trip::<i64>(device, &mut random);
        round_trip::<u64>(device, &mut random);
        round_trip::<f16>(device, &mut random);
        round_trip::<bf16>(device, &mut random);
        round_trip::<f32>(device, &mut random);
        round_trip::<f64>(device, &mut random);
    });
}

fn complex_is_pairs_of_floats(on: Under) {
    let mut random = Random::fresh();
    on.run(|_, device| {
        let data = random.vec::<f32>(34);
        let buffer = device.upload(&data).unwrap().reinterpret(DType::COMPLEX64).unwrap();
        assert_eq!((buffer.dtype(), buffer.len()), (DType::COMPLEX64, 17));
        assert!(invalid(buffer.download::<f32>()).contains("complex64"));
        let back = buffer.reinterpret(DType::F32).unwrap().download::<f32>().unwrap();
        assert_eq!(bits(&back), bits(&data));
    });
}

fn invalid_bool_cannot_be_read(on: Under) {
    on.run(|runtime, device| {
        let memset = runtime.primitive::<Memset>(device, MemsetDesc::new()).unwrap();
        let stream = device.stream().unwrap();
        let mut buffer = device.upload(&[true, false, true]).unwrap();
        memset.launch(&stream, MemsetCall { bytes: 2, value: 7u64.into(), dst: &mut buffer }).unwrap();
        assert!(invalid(buffer.download::<bool>()).contains("bool"));
        assert!(invalid(buffer.map_read::<bool>()).contains("bool"));
        assert!(invalid(buffer.map_write::<bool>()).contains("bool"));
        memset.launch(&stream, MemsetCall { bytes: 2, value: 1u64.into(), dst: &mut buffer }).unwrap();
        assert_eq!(buffer.download::<bool>().unwrap(), [true, true, true]);
        let bytes = device.upload(&[2u8]).unwrap();
        assert!(invalid(bytes.reinterpret(DType::BOOL)).contains("cast"));
    });
}

fn unwritten_memory_cannot_be_read(on: Under) {
    on.run(|runtime, device| {
        let stream = device.stream().unwrap();
        let buffer = device.alloc(DType::I32, 5).unwrap();
        let mut other = device.alloc(DType::I32, 5).unwrap();
        assert!(invalid(buffer.download::<i32>()).contains("0..0 of the buffer have been written"));
        invalid(buffer.map_read::<i32>());
        invalid(stream.copy(&buffer, &mut other));
        let message = invalid(Negate::new(runtime, device).launch(&stream, 5, &buffer, &mut other));
        assert!(message.contains("operand `src`") && message.contains("bytes 0..20"), "{message}");
        // The refused launch has not made the destination readable.
        invalid(other.download::<i32>());
    });
}

fn unwritten_parts_cannot_be_read(on: Under) {
    on.run(|runtime, device| {
        let (negate, stream) = (Negate::new(runtime, device), device.stream().unwrap());
        let mut buffer = device.alloc(DType::I32, 10).unwrap();
        let mut out = device.alloc(DType::I32, 10).unwrap();
        // A part in the middle leaves a gap before it, which is still unwritten.
        negate.launch(&stream, 2, &device.upload(&[8, 9]).unwrap(), buffer.slice_mut(8, 2).unwrap()).unwrap();
        invalid(buffer.download::<i32>());
        buffer.upload(&[1, 2, 3, 4, 5]).unwrap();
        invalid(buffer.download::<i32>());
        invalid(negate.launch(&stream, 6, &buffer, &mut out));
        negate.launch(&stream, 5, &buffer, &mut out).unwrap();
        negate.launch(&stream, 3, buffer.slice(2, 3).unwrap(), out.slice_mut(5, 3).unwrap()).unwrap();
        invalid(out.download::<i32>());
        negate.launch(&stream, 2, &buffer, out.slice_mut(8, 2).unwrap()).unwrap();
        assert_eq!(out.download::<i32>().unwrap(), [-1, -2, -3, -4, -5, -3, -4, -5, -1, -2]);
    });
}

fn uploads_are_checked(on: Under) {
    on.run(|_, device| {
        let mut buffer = device.upload(&[1i32, 2, 3]).unwrap();
        let stream = device.stream().unwrap();
        assert!(invalid(buffer.upload(&[1i32; 4])).contains("4 elements into a buffer of 3"));
        let message = invalid(buffer.upload(&[1.0f32]));
        assert!(message.contains("i32") && message.contains("f32"), "{message}");
        invalid(stream.upload(&mut buffer, vec![1i32; 4]));
        invalid(stream.upload(&mut buffer, vec![1.0f32]));
        invalid(buffer.download::<u32>());
        invalid(buffer.map_read::<f32>());
        invalid(buffer.map_write::<f32>());
        assert_eq!(buffer.download::<i32>().unwrap(), [1, 2, 3]);
        buffer.upload(&[7i32]).unwrap();
        assert_eq!(buffer.download::<i32>().unwrap(), [7, 2, 3]);
    });
}

fn an_upload_has_read_its_slice(on: Under) {
    on.run(|_, device| {
        let mut data = vec![1u64; 5000];
        let buffer = device.upload(&data).unwrap();
        data.fill(2);
        assert_eq!(buffer.download::<u64>().unwrap(), [1; 5000]);
    });
}

fn a_queued_upload_keeps_its_vector(on: Under) {
    let mut random = Random::fresh();
    on.run(|_, device| {
        let stream = device.stream().unwrap();
        let mut expected = Vec::new();
        let mut buffers = Vec::new();
        for _ in 0..20 {
            let data = random.vec::<i32>(3000);
            expected.push(data.clone());
            let mut buffer = device.alloc(DType::I32, 3000).unwrap();
            stream.upload(&mut buffer, data).unwrap();
            buffers.push(buffer);
            // Likely takes the vector's place if that was given back too early.
            std::hint::black_box(vec![0xee_u8; 12_000]);
        }
        for (buffer, data) in buffers.iter().zip(expected) {
            assert_eq!(buffer.download::<i32>().unwrap(), data);
        }
    });
}

fn slices_touch_their_part_only(on: Under) {
    on.run(|runtime, device| {
        let (add, stream) = (AddScalar::new(runtime, device), device.stream().unwrap());
        let src = device.upload(&[1.0f32, 2.0, 3.0, 4.0, 5.0]).unwrap();
        let mut dst = device.upload(&[-1.0f32; 7]).unwrap();
        add.launch(&stream, 3, src.slice(1, 3).unwrap(), 10.0, dst.slice_mut(2, 3).unwrap()).unwrap();
        assert_eq!(dst.download::<f32>().unwrap(), [-1.0, -1.0, 12.0, 13.0, 14.0, -1.0, -1.0]);
        stream.copy(src.slice(0, 2).unwrap(), dst.slice_mut(5, 2).unwrap()).unwrap();
        assert_eq!(dst.download::<f32>().unwrap(), [-1.0, -1.0, 12.0, 13.0, 14.0, 1.0, 2.0]);
        let message = invalid(add.launch(&stream, 4, src.slice(2, 3).unwrap(), 0.0, &mut dst));
        assert!(message.contains("`src0` has 12 bytes, and these sizes need 16"), "{message}");
    });
}

fn slices_are_inside(on: Under) {
    on.run(|_, device| {
        let mut buffer = device.upload(&[0i64; 5]).unwrap();
        for (start, len) in [(0, 5), (5, 0), (2, 3), (0, 0)] {
            buffer.slice(start, len).unwrap();
            buffer.slice_mut(start, len).unwrap();
        }
        for (start, len) in [(0, 6), (6, 0), (5, 1), (1, usize::MAX), (usize::MAX, 1), (usize::MAX / 8, 9)] {
            assert!(invalid(buffer.slice(start, len)).contains("of a buffer of 5 i64"));
            invalid(buffer.slice_mut(start, len));
        }
    });
}

fn empty_buffers_work(on: Under) {
    on.run(|runtime, device| {
        let (add, stream) = (AddScalar::new(runtime, device), device.stream().unwrap());
        let (src, mut dst) = (device.alloc(DType::F32, 0).unwrap(), device.alloc(DType::F32, 0).unwrap());
        add.launch(&stream, 0, &src, 1.0, &mut dst).unwrap();
        stream.copy(&src, &mut dst).unwrap();
        stream.upload(&mut dst, Vec::<f32>::new()).unwrap();
        assert_eq!(dst.download::<f32>().unwrap(), [0f32; 0]);
        assert!(dst.map_read::<f32>().unwrap().is_empty());
        dst.map_write::<f32>().unwrap().finish().unwrap();
        let fill = runtime.primitive::<Fill>(device, FillDesc::new(DType::F32)).unwrap();
        fill.launch(&stream, FillCall { count: 0, value: 1.0.into(), dst: &mut dst }).unwrap();
        let message = invalid(fill.launch(&stream, FillCall { count: 1, value: 1.0.into(), dst: &mut dst }));
        assert!(message.contains("`dst` has 0 bytes"), "{message}");
    });
}

/// Queues `n` additions of 1 in place.
fn count_up(runtime: &Runtime, device: &Device, buffer: &mut ep_registry::Buffer, n: usize) {
    let (add, stream) = (AddScalar::new(runtime, device), device.stream().unwrap());
    for _ in 0..n {
        add.launch(&stream, buffer.len(), ep_registry::InPlace, 1.0, &mut *buffer).unwrap();
    }
}

fn mapping_waits_for_queued_work(on: Under) {
    on.run(|runtime, device| {
        let mut buffer = device.upload(&[0.0f32; 33]).unwrap();
        count_up(runtime, device, &mut buffer, 30);
        assert_eq!(*buffer.map_read::<f32>().unwrap(), [30.0; 33]);
        count_up(runtime, device, &mut buffer, 30);
        assert_eq!(*buffer.map_write::<f32>().unwrap(), [60.0; 33]);
        // Overwriting waits too: none of the additions may come after the upload.
        count_up(runtime, device, &mut buffer, 30);
        buffer.upload(&[5.0f32; 33]).unwrap();
        assert_eq!(buffer.download::<f32>().unwrap(), [5.0; 33]);
    });
}

fn mapped_writes_arrive(on: Under) {
    on.run(|runtime, device| {
        let mut buffer = device.upload(&[1.0f32, 2.0, 3.0]).unwrap();
        let mut map = buffer.map_write::<f32>().unwrap();
        map[1] = f32::NEG_INFINITY;
        map.finish().unwrap();
        buffer.map_write::<f32>().unwrap()[2] = -0.0;
        count_up(runtime, device, &mut buffer, 1);
        assert_eq!(buffer.download::<f32>().unwrap(), [2.0, f32::NEG_INFINITY, 1.0]);
        // While it is mapped for reading, other readers are let in.
        let map = buffer.map_read::<f32>().unwrap();
        let (add, stream) = (AddScalar::new(runtime, device), device.stream().unwrap());
        let mut out = device.alloc(DType::F32, 3).unwrap();
        add.launch(&stream, 3, &buffer, -1.0, &mut out).unwrap();
        assert_eq!(out.download::<f32>().unwrap(), [1.0, f32::NEG_INFINITY, 0.0]);
        assert_eq!(map[0], 2.0);
    });
}

fn a_fresh_mapping_is_zero(on: Under) {
    on.run(|_, device| {
        let mut buffer = device.alloc(DType::F64, 9).unwrap();
        let mut map = buffer.map_write::<f64>().unwrap();
        assert_eq!(*map, [0.0; 9]);
        map[8] = 1.5;
        drop(map);
        assert_eq!(buffer.download::<f64>().unwrap()[7..], [0.0, 1.5]);
        let mut part = device.alloc(DType::U8, 4).unwrap();
        part.upload(&[9u8, 8]).unwrap();
        // What was written stays; what was there before the rest is a secret.
        let mut map = part.map_write::<u8>().unwrap();
        assert_eq!(*map, [9, 8, 0, 0]);
        map[3] = 7;
        drop(map);
        assert_eq!(part.download::<u8>().unwrap(), [9, 8, 0, 7]);
    });
}

fn copies_on_one_device(on: Under) {
    let mut random = Random::fresh();
    on.run(|_, device| {
        let stream = device.stream().unwrap();
        for len in LENGTHS {
            let data = random.vec::<u16>(len);
            let src = device.upload(&data).unwrap();
            let mut dst = device.alloc(DType::U16, len).unwrap();
            stream.copy(&src, &mut dst).unwrap();
            drop(src);
            assert_eq!(dst.download::<u16>().unwrap(), data);
        }
    });
}

fn copies_are_checked(on: Under) {
    on.run(|_, device| {
        let stream = device.stream().unwrap();
        let src = device.upload(&[1i32, 2, 3]).unwrap();
        let mut short = device.alloc(DType::I32, 2).unwrap();
        let mut other = device.alloc(DType::U32, 3).unwrap();
        let message = invalid(stream.copy(&src, &mut short));
        assert!(message.contains("12 bytes of i32 to 8 bytes of i32"), "{message}");
        assert!(invalid(stream.copy(&src, &mut other)).contains("u32"));
        stream.copy(src.slice(1, 2).unwrap(), &mut short).unwrap();
        assert_eq!(short.download::<i32>().unwrap(), [2, 3]);
    });
}

fn memory_is_counted(on: Under) {
    on.run(|_, device| {
        let start = device.memory_stats().unwrap();
        let buffers = [device.upload(&[1u8; 1000]).unwrap(), device.alloc(DType::F64, 500).unwrap()];
        let held = device.memory_stats().unwrap();
        assert_eq!(held.in_use_blocks, start.in_use_blocks + 2);
        assert!(held.in_use_bytes >= start.in_use_bytes + 5000 && held.reserved_bytes >= held.in_use_bytes);
        assert!(held.peak_in_use_bytes >= held.in_use_bytes);
        assert_eq!(held.total_allocs, start.total_allocs + 2);
        drop(buffers);
        device.trim().unwrap();
        let end = device.memory_stats().unwrap();
        assert_eq!((end.in_use_bytes, end.in_use_blocks), (start.in_use_bytes, start.in_use_blocks));
        assert_eq!(end.peak_in_use_bytes, held.peak_in_use_bytes);
    });
}

fn pinned_memory_works_where_there_is_some(on: Under) {
    on.run(|runtime, device| {
        let pinned = device.alloc_pinned(DType::F32, 12);
        if on.is_async() {
            assert_eq!(refused(pinned).0, Code::Unsupported);
            return;
        }
        let mut pinned = pinned.unwrap();
        pinned.upload(&[0.5f32; 12]).unwrap();
        count_up(runtime, device, &mut pinned, 3);
        assert_eq!(pinned.download::<f32>().unwrap(), [3.5; 12]);
    });
}

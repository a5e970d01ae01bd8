//! Launching primitives: what is checked, what is allowed, and that it computes.

use ep_core::primitive::{
    ElementwiseUnary, ElementwiseUnaryArgs, Matmul, MatmulCall, MatmulDesc, Softmax, SoftmaxCall,
    SoftmaxDesc, Transpose,
};
use ep_core::{Code, DType, Result, Scalar};
use ep_registry::{Buffer, Device, InPlace, NoMemory, Runtime};
use ep_tests::ops::{Add, AddScalar, Negate};
use ep_tests::{Random, Under, on_each_async_provider, on_each_provider};
use std::sync::Barrier;

on_each_provider!(
    wrong_operands_are_named,
    bad_sizes_and_limits_are_refused,
    scalars_stand_in_for_memory,
    in_place_gives_the_same,
    in_place_is_refused_where_the_op_forbids_it,
    imported_memory_that_overlaps_is_refused,
    raw_launches_compute,
    the_dynamic_api_computes_the_same,
    the_dynamic_api_checks_names,
    matmul_accumulates,
    one_primitive_on_many_threads,
    one_stream_on_many_threads,
);

/// The snippets of docs/hosting.md.
#[path = "../ep-registry/examples/matmul_gather.rs"]
#[allow(dead_code, reason = "its main is that of the example")]
mod matmul_gather;

mod of_the_guide {
    use super::the_example_of_the_guide_computes;
    ep_tests::on_provider!(cpu_plugin, CpuPlugin, the_example_of_the_guide_computes);
}

fn the_example_of_the_guide_computes(on: Under) {
    on.run(|runtime, device| {
        let (product, rows) = matmul_gather::results(runtime, device).unwrap();
        assert_eq!(product, [4.0, 5.0, 10.0, 11.0]);
        assert_eq!(rows, [5.0, 6.0, 1.0, 2.0]);
    });
}

mod two_devices {
    use super::{buffers_of_another_device_are_refused, streams_of_another_device_are_refused};
    super::on_each_async_provider!(
        buffers_of_another_device_are_refused,
        streams_of_another_device_are_refused
    );
}

fn invalid<T: std::fmt::Debug>(result: Result<T>) -> String {
    let e = result.expect_err("this must be refused");
    assert_eq!(e.code(), Code::InvalidArgument, "{e}");
    e.message().to_owned()
}

#[track_caller]
fn contains(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

fn wrong_operands_are_named(on: Under) {
    on.run(|runtime, device| {
        let (negate, stream) = (Negate::new(runtime, device), device.stream().unwrap());
        let src = device.upload(&[1i32, -2, 3]).unwrap();
        let mut dst = device.upload(&[9i32; 3]).unwrap();
        let mut floats = device.upload(&[9.0f32; 3]).unwrap();
        let mut short = device.upload(&[9i32; 2]).unwrap();

        let wrong_src = invalid(negate.launch(&stream, 3, &floats, &mut dst));
        contains(&wrong_src, &["elementwise_unary: operand `src`", "f32", "made for i32"]);
        let wrong_dst = invalid(negate.launch(&stream, 3, &src, &mut floats));
        contains(&wrong_dst, &["operand `dst`", "f32", "made for i32"]);
        let short_dst = invalid(negate.launch(&stream, 3, &src, &mut short));
        contains(&short_dst, &["operand `dst` has 8 bytes, and these sizes need 12"]);
        let short_src = invalid(negate.launch(&stream, 3, &short, &mut dst));
        contains(&short_src, &["operand `src` has 8 bytes, and these sizes need 12"]);
        let none = invalid(negate.launch(&stream, 3, NoMemory, &mut dst));
        contains(&none, &["operand `src` needs a buffer of 12 bytes"]);

        stream.sync().unwrap();
        assert_eq!(dst.download::<i32>().unwrap(), [9; 3], "refused launches have no effect");
        assert_eq!(floats.download::<f32>().unwrap(), [9.0; 3]);
        negate.launch(&stream, 3, &src, &mut dst).unwrap();
        assert_eq!(dst.download::<i32>().unwrap(), [-1, 2, -3]);
    });
}

fn buffers_of_another_device_are_refused(on: Under) {
    on.run(|runtime, device| {
        let other = &runtime.devices()[1];
        assert_ne!(device, other);
        let (negate, stream) = (Negate::new(runtime, device), device.stream().unwrap());
        let (here, there) = (device.upload(&[5i32]).unwrap(), other.upload(&[5i32]).unwrap());
        let mut dst = other.upload(&[7i32]).unwrap();
        let message = invalid(negate.launch(&stream, 1, &there, &mut device.alloc(DType::I32, 1).unwrap()));
        contains(&message, &["operand `src`", "async:0", "async:1", "copy it"]);
        contains(&invalid(negate.launch(&stream, 1, &here, &mut dst)), &["operand `dst`", "async:1"]);
        assert_eq!(dst.download::<i32>().unwrap(), [7]);
    });
}

fn streams_of_another_device_are_refused(on: Under) {
    on.run(|runtime, device| {
        let other = runtime.devices()[1].stream().unwrap();
        let mut data = device.upload(&[5i32]).unwrap();
        let negate = Negate::new(runtime, device);
        contains(
            &invalid(negate.launch(&other, 1, InPlace, &mut data)),
            &["primitive of async:0", "stream of async:1"],
        );
        let args = ElementwiseUnaryArgs::new(1, data.address(), data.address());
        // SAFETY: live memory of one element that nothing else uses; the stream is refused before it matters.
        contains(
            &invalid(unsafe { negate.0.launch_raw(&other, &args) }),
            &["primitive of async:0", "stream of async:1"],
        );
        assert_eq!(data.download::<i32>().unwrap(), [5]);
    });
}

fn bad_sizes_and_limits_are_refused(on: Under) {
    on.run(|runtime, device| {
        let stream = device.stream().unwrap();
        let desc = SoftmaxDesc::new(DType::F32, DType::F32).with_max_cols(4);
        let softmax = runtime.primitive::<Softmax>(device, desc).unwrap();
        let src = device.upload(&[0.0f32; 10]).unwrap();
        let mut dst = device.alloc(DType::F32, 10).unwrap();
        let mut launch = |rows, cols| {
            softmax.launch(&stream, SoftmaxCall { rows, cols, inner: 1, src: &src, dst: &mut dst })
        };
        contains(&invalid(launch(2, 5)), &["`cols` is 5", "max_cols = 4"]);
        contains(&invalid(launch(-1, 4)), &["`rows` is -1"]);
        contains(&invalid(launch(1, i64::MIN)), &["`cols`"]);
        contains(&invalid(launch(i64::MAX, 4)), &["operand `src` has 40 bytes"]);
        launch(2, 4).unwrap();
        launch(0, 4).unwrap();
        launch(2, 0).unwrap();
        // Only what was launched has been written.
        invalid(dst.download::<f32>());
        let mut whole = device.alloc(DType::F32, 8).unwrap();
        stream.copy(dst.slice(0, 8).unwrap(), &mut whole).unwrap();
        assert_eq!(whole.download::<f32>().unwrap(), [0.25; 8]);
    });
}

fn scalars_stand_in_for_memory(on: Under) {
    on.run(|runtime, device| {
        let (add, stream) = (AddScalar::new(runtime, device), device.stream().unwrap());
        let src = device.upload(&[1.0f32, f32::INFINITY, -0.0]).unwrap();
        let mut dst = device.alloc(DType::F32, 3).unwrap();
        add.launch(&stream, 3, &src, 2.5, &mut dst).unwrap();
        assert_eq!(dst.download::<f32>().unwrap(), [3.5, f32::INFINITY, 2.5]);
        let no_scalar = Add(add.0.clone()).launch(&stream, 3, &src, NoMemory, &mut dst);
        contains(&invalid(no_scalar), &["operand `src1` needs a buffer of 12 bytes"]);
    });
}

fn in_place_gives_the_same(on: Under) {
    let mut random = Random::fresh();
    on.run(|runtime, device| {
        let (negate, stream) = (Negate::new(runtime, device), device.stream().unwrap());
        let data = random.vec::<i32>(777);
        let src = device.upload(&data).unwrap();
        let mut apart = device.alloc(DType::I32, 777).unwrap();
        let mut inside = device.upload(&data).unwrap();
        negate.launch(&stream, 777, &src, &mut apart).unwrap();
        negate.launch(&stream, 777, InPlace, &mut inside).unwrap();
        let expected: Vec<i32> = data.iter().map(|x| x.wrapping_neg()).collect();
        assert_eq!(apart.download::<i32>().unwrap(), expected);
        assert_eq!(inside.download::<i32>().unwrap(), expected);
        // The old content counts, so it must be there.
        let mut fresh = device.alloc(DType::I32, 777).unwrap();
        contains(&invalid(negate.launch(&stream, 777, InPlace, &mut fresh)), &["`src`", "written"]);
        // Both sources at once.
        let mut twice = device.upload(&[1.5f32, -2.0]).unwrap();
        Add::new(runtime, device).launch(&stream, 2, InPlace, InPlace, &mut twice).unwrap();
        assert_eq!(twice.download::<f32>().unwrap(), [3.0, -4.0]);
    });
}

/// f32 matrices, row-major: `c = alpha a b + beta c`.
fn matmul(runtime: &Runtime, device: &Device) -> ep_registry::Primitive<Matmul> {
    let desc = MatmulDesc::new(Transpose::NONE, Transpose::NONE, DType::F32);
    runtime.primitive::<Matmul>(device, desc).unwrap()
}

fn in_place_is_refused_where_the_op_forbids_it(on: Under) {
    on.run(|runtime, device| {
        let stream = device.stream().unwrap();
        let a = device.upload(&[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        let mut c = device.upload(&[1.0f32; 4]).unwrap();
        let (alpha, beta) = (Scalar::None, Scalar::None);
        let call = MatmulCall { m: 2, n: 2, k: 2, alpha, beta, a: &a, b: InPlace, c: &mut c };
        contains(&invalid(matmul(runtime, device).launch(&stream, call)), &["operand `b`", "in place"]);
        assert_eq!(c.download::<f32>().unwrap(), [1.0; 4]);
    });
}

fn matmul_accumulates(on: Under) {
    on.run(|runtime, device| {
        let (matmul, stream) = (matmul(runtime, device), device.stream().unwrap());
        let a = device.upload(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let b = device.upload(&[1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0]).unwrap();
        let mut c = device.alloc(DType::F32, 4).unwrap();
        let mut launch = |alpha: Scalar, beta: Scalar| {
            matmul.launch(&stream, MatmulCall { m: 2, n: 2, k: 3, alpha, beta, a: &a, b: &b, c: &mut c })
        };
        // Without beta the old content does not count; with it, it must be there.
        contains(&invalid(launch(Scalar::None, 1.0.into())), &["operand `c`", "written"]);
        launch(Scalar::None, Scalar::None).unwrap();
        launch(2.0.into(), (-1.0).into()).unwrap();
        assert_eq!(c.download::<f32>().unwrap(), [4.0, 5.0, 10.0, 11.0]);
    });
}

/// A second owner of part of a buffer's memory.
fn import_part(of: &Buffer, start: u64, len: u64) -> Buffer {
    let (address, bytes) = (of.address() + 4 * start, 4 * len);
    // SAFETY: inside the memory of `of`, which the tests keep for longer, and written before.
    unsafe { Buffer::import(of.device(), of.space(), address, bytes, of.dtype(), || {}) }.unwrap()
}

fn imported_memory_that_overlaps_is_refused(on: Under) {
    on.run(|runtime, device| {
        let (negate, stream) = (Negate::new(runtime, device), device.stream().unwrap());
        let whole = device.upload(&[1i32, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        let src = import_part(&whole, 0, 4);
        for (start, allowed) in [(0, true), (1, false), (3, false), (4, true)] {
            let mut dst = import_part(&whole, start, 4);
            let result = negate.launch(&stream, 4, &src, &mut dst);
            if allowed {
                result.unwrap();
            } else {
                contains(&invalid(result), &["operand `src` overlaps"]);
            }
            if start > 0 && start < 4 {
                contains(&invalid(stream.copy(&src, &mut dst)), &["overlap within 16 bytes"]);
            }
        }
        stream.sync().unwrap();
        assert_eq!(whole.download::<i32>().unwrap(), [-1, -2, -3, -4, 1, 2, 3, 4]);
        // An address that no member of the device reaches, or that cannot be.
        // SAFETY: the import is refused.
        let wrong = |space, address, bytes| unsafe {
            Buffer::import(device, space, address, bytes, DType::I32, || {})
        };
        contains(&invalid(wrong("moon", whole.address(), 4)), &["moon", device.name()]);
        invalid(wrong(whole.space(), 0, 4));
        invalid(wrong(whole.space(), u64::MAX - 3, 8));
    });
}

fn raw_launches_compute(on: Under) {
    on.run(|runtime, device| {
        let (negate, stream) = (Negate::new(runtime, device), device.stream().unwrap());
        let src = device.upload(&[i32::MIN, 0, 7]).unwrap();
        let dst = device.upload(&[1i32; 3]).unwrap();
        let launch = |args: &ElementwiseUnaryArgs| {
            // SAFETY: live memory of three elements, ordered by this one stream; other addresses are refused.
            unsafe { negate.0.launch_raw(&stream, args) }
        };
        launch(&ElementwiseUnaryArgs::new(3, src.address(), dst.address())).unwrap();
        stream.sync().unwrap();
        assert_eq!(dst.download::<i32>().unwrap(), [i32::MIN, 0, -7]);
        contains(&invalid(launch(&ElementwiseUnaryArgs::new(3, 0, dst.address()))), &["src", "null"]);
        let misaligned = ElementwiseUnaryArgs::new(1, src.address(), dst.address() + 2);
        contains(&invalid(launch(&misaligned)), &["dst", "multiple of 4"]);
        contains(&invalid(launch(&ElementwiseUnaryArgs::new(-1, 0, 0))), &["`count` is -1"]);
        let mut flags = ElementwiseUnaryArgs::new(1, src.address(), dst.address());
        flags.flags = 1;
        let e = launch(&flags).unwrap_err();
        assert_eq!(e.code(), Code::Unsupported, "{e}");
        // SAFETY: there are no dims in these arguments.
        unsafe { negate.0.workspace_size(&ElementwiseUnaryArgs::new(3, 0, 0)) }.unwrap();
    });
}

fn the_dynamic_api_computes_the_same(on: Under) {
    let mut random = Random::fresh();
    on.run(|runtime, device| {
        let stream = device.stream().unwrap();
        let data: Vec<f32> = random.vec::<i16>(6 * 5).iter().map(|x| f32::from(*x) / 4096.0).collect();
        let src = device.upload(&data).unwrap();
        let mut typed = device.alloc(DType::F32, 30).unwrap();
        let mut dynamic = device.alloc(DType::F32, 30).unwrap();
        let softmax = runtime.primitive::<Softmax>(device, SoftmaxDesc::new(DType::F32, DType::F32)).unwrap();
        softmax
            .launch(&stream, SoftmaxCall { rows: 6, cols: 5, inner: 1, src: &src, dst: &mut typed })
            .unwrap();

        let request = runtime.request("softmax").unwrap();
        let request = request.dtype("src", "f32").unwrap().dtype("dst", "f32").unwrap();
        let by_name = runtime.primitive_dyn(device, &request).unwrap();
        assert_eq!((by_name.instance(), by_name.factory()), (softmax.instance(), softmax.factory()));
        let args = by_name.args().size("rows", 6).unwrap().size("cols", 5).unwrap();
        let args = args.read("src", &src).unwrap().write("dst", &mut dynamic).unwrap();
        by_name.launch(&stream, args).unwrap();
        assert_eq!(dynamic.download::<f32>().unwrap(), typed.download::<f32>().unwrap());

        let request = runtime.request("broadcast_elementwise_binary").unwrap();
        let request = request.selector("op", "add").unwrap().dtype("src", "f32").unwrap();
        let add = runtime.primitive_dyn(device, &request.dtype("dst", "f32").unwrap()).unwrap();
        let args = add.args().dims("src0_dims", &[6, 5]).unwrap().scalar("scalar1", 2.0).unwrap();
        let args = args.read("src0", InPlace).unwrap().write("dst", &mut dynamic).unwrap();
        add.launch(&stream, args).unwrap();
        let expected: Vec<f32> = typed.download::<f32>().unwrap().iter().map(|x| x + 2.0).collect();
        assert_eq!(dynamic.download::<f32>().unwrap(), expected);
    });
}

fn the_dynamic_api_checks_names(on: Under) {
    on.run(|runtime, device| {
        let not_found = |e: ep_core::Error, part: &str| {
            assert_eq!(e.code(), Code::NotFound, "{e}");
            contains(e.message(), &[part]);
        };
        not_found(runtime.request("sofmax").unwrap_err(), "softmax");
        let request = || runtime.request("elementwise_unary").unwrap();
        not_found(request().dtype("source", "f32").unwrap_err(), "src");
        not_found(request().dtype("src", "f33").unwrap_err(), "f32");
        not_found(request().selector("op", "negativ").unwrap_err(), "negative");
        not_found(request().attr("alpha", 1.0).unwrap_err(), "attr0");
        not_found(request().limit("cols", 1).unwrap_err(), "no limit `cols`");
        let request = request().selector("op", "negative").unwrap().dtype("src", "i32").unwrap();
        invalid(runtime.primitive_dyn(device, &request));
        let negate = runtime.primitive_dyn(device, &request.dtype("dst", "i32").unwrap()).unwrap();
        let (stream, src) = (device.stream().unwrap(), device.upload(&[3i32]).unwrap());
        let mut dst = device.alloc(DType::I32, 1).unwrap();
        not_found(negate.args().size("n", 1).unwrap_err(), "count");
        not_found(negate.args().read("x", &src).unwrap_err(), "src");
        invalid(negate.args().read("dst", &src));
        invalid(negate.args().write("src", &mut dst));
        let missing =
            negate.launch(&stream, negate.args().size("count", 1).unwrap().read("src", &src).unwrap());
        contains(&invalid(missing), &["`dst` is not given"]);
        let args = negate.args().size("count", 1).unwrap().write("dst", &mut dst).unwrap();
        contains(&invalid(negate.launch(&stream, args)), &["operand `src` needs a buffer of 4 bytes"]);
        let args = negate.args().size("count", -1).unwrap().write("dst", &mut dst).unwrap();
        contains(&invalid(negate.launch(&stream, args)), &["`count` is -1"]);
        invalid(dst.download::<i32>());
    });
}

fn one_primitive_on_many_threads(on: Under) {
    let seed = Random::fresh();
    on.run(|runtime, device| {
        let negate: ep_registry::Primitive<ElementwiseUnary> = Negate::new(runtime, device).0;
        let start = Barrier::new(8);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (negate, start, mut random) = (Negate(negate.clone()), &start, seed.clone());
                scope.spawn(move || {
                    let data = random.vec::<i32>(100 + thread);
                    let stream = device.stream().unwrap();
                    let mut buffer = device.upload(&data).unwrap();
                    start.wait();
                    for _ in 0..25 {
                        negate.launch(&stream, data.len(), InPlace, &mut buffer).unwrap();
                    }
                    let expected: Vec<i32> = data.iter().map(|x| x.wrapping_neg()).collect();
                    assert_eq!(buffer.download::<i32>().unwrap(), expected);
                });
            }
        });
    });
}

fn one_stream_on_many_threads(on: Under) {
    on.run(|runtime, device| {
        let (add, stream) = (AddScalar::new(runtime, device), device.stream().unwrap());
        let source = device.upload(&[1.0f32; 50]).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u16 {
                let (add, stream, source) = (&add, &stream, &source);
                scope.spawn(move || {
                    let mut mine = device.alloc(DType::F32, 50).unwrap();
                    add.launch(stream, 50, source, f32::from(thread), &mut mine).unwrap();
                    for _ in 0..20 {
                        add.launch(stream, 50, InPlace, 1.0, &mut mine).unwrap();
                    }
                    assert_eq!(mine.download::<f32>().unwrap(), [21.0 + f32::from(thread); 50]);
                });
            }
        });
    });
}

//! Packed operands on a device that does its work later.

use ep_core::primitive::{Matmul, MatmulCall, MatmulDesc, Softmax, SoftmaxCall, SoftmaxDesc, Transpose};
use ep_core::{Code, DType, Error, Scalar};
use ep_registry::config::ProviderConfig;
use ep_registry::{Buffer, Device, NoMemory, Primitive, Read, Runtime, Stream};
use ep_sim::SimProvider;

const NONE: Scalar = Scalar::None;

fn runtime() -> Runtime {
    let mut slow = ProviderConfig::new("sim", "");
    slow.options.insert("max_delay_us".into(), "300".into());
    Runtime::builder().threads(1).linked_with::<SimProvider>(slow).build().unwrap()
}

fn matmul(runtime: &Runtime, device: &Device) -> Primitive<Matmul> {
    let desc = MatmulDesc::new(Transpose::NONE, Transpose::NONE, DType::I32);
    runtime.primitive::<Matmul>(device, desc).unwrap()
}

/// `[m, k] x [k, n]` of these sizes.
const M: i64 = 2;
const N: i64 = 3;
const K: i64 = 4;

fn numbers(len: i64, by: i32) -> Vec<i32> {
    (0..len as i32).map(|i| i * by - 7).collect()
}

fn product(a: &[i32], b: &[i32]) -> Vec<i32> {
    let at = |i: usize| {
        let (row, col) = (i / N as usize, i % N as usize);
        (0..K as usize).map(|k| a[row * K as usize + k] * b[k * N as usize + col]).sum()
    };
    (0..(M * N) as usize).map(at).collect()
}

fn call<'a, C>(a: &'a Buffer, b: impl Into<Read<'a>>, c: C) -> MatmulCall<&'a Buffer, Read<'a>, C> {
    MatmulCall { m: M, n: N, k: K, alpha: NONE, beta: NONE, a, b: b.into(), c }
}

fn of_b(b: &Buffer) -> MatmulCall<NoMemory, &Buffer, NoMemory> {
    MatmulCall { m: 1, n: N, k: K, alpha: NONE, beta: NONE, a: NoMemory, b, c: NoMemory }
}

fn invalid<T: std::fmt::Debug>(result: ep_core::Result<T>, says: &str) {
    let e: Error = result.unwrap_err();
    assert_eq!(e.code(), Code::InvalidArgument, "{e}");
    assert!(e.message().contains(says), "{e}");
}

#[test]
fn a_packed_operand_keeps_what_it_was_packed_from() {
    let runtime = runtime();
    let device = runtime.device("sim:0").unwrap();
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let matmul = matmul(&runtime, device);
    let (a, b) = (numbers(M * K, 3), numbers(K * N, -5));
    let source = device.upload(&a).unwrap();
    let mut weights = device.upload(&b).unwrap();
    let packed = matmul.prepack(&first, of_b(&weights)).unwrap().unwrap();
    assert_eq!((packed.bytes(), packed.operand()), (4 * b.len() as u64, "b"));
    // Queued behind the packing, whatever stream has done that.
    weights.upload(&numbers(K * N, 1)).unwrap();
    drop(weights);
    let mut results: Vec<_> = (0..3).map(|_| device.alloc(DType::I32, (M * N) as usize).unwrap()).collect();
    for (stream, c) in [&second, &first, &second].into_iter().zip(&mut results) {
        matmul.launch(stream, call(&source, &packed, c)).unwrap();
    }
    // Its memory goes when the launches are done, whatever is allocated and written next.
    drop((packed, matmul));
    let _others: Vec<_> = (0..8).map(|i| device.upload(&numbers(K * N, i)).unwrap()).collect();
    for c in &results {
        assert_eq!(c.download::<i32>().unwrap(), product(&a, &b));
    }
}

#[test]
fn launches_with_a_packed_operand_are_recorded() {
    let runtime = runtime();
    let device = runtime.device("sim:0").unwrap();
    let stream = device.stream().unwrap();
    let matmul = matmul(&runtime, device);
    let (a, b) = (numbers(M * K, 2), numbers(K * N, 9));
    let (mut source, weights) = (device.upload(&a).unwrap(), device.upload(&b).unwrap());
    let packed = matmul.prepack(&stream, of_b(&weights)).unwrap().unwrap();
    let mut c = device.alloc(DType::I32, (M * N) as usize).unwrap();
    let graph = stream.capture(|s| matmul.launch(s, call(&source, &packed, &mut c))).unwrap();
    // The graph keeps what it was packed into.
    drop((packed, weights));
    let _other = device.upload(&numbers(K * N, 1)).unwrap();
    for by in [2, -3] {
        let a = numbers(M * K, by);
        source.upload(&a).unwrap();
        graph.launch(&stream).unwrap();
        assert_eq!(c.download::<i32>().unwrap(), product(&a, &b));
    }
    let mut refused = None;
    let recorded = stream.capture(|s| {
        refused = Some(matmul.prepack(s, of_b(&source)).map(drop));
        Ok(())
    });
    invalid(refused.unwrap(), "pack before the recording");
    recorded.unwrap();
}

#[test]
fn what_cannot_be_packed_or_launched_is_refused() {
    let runtime = runtime();
    let device = runtime.device("sim:0").unwrap();
    let stream = device.stream().unwrap();
    let matmul = matmul(&runtime, device);
    let square = 16;
    let a = device.upload(&numbers(square, 3)).unwrap();
    let weights = device.upload(&numbers(K * N, 3)).unwrap();
    let mut c = device.alloc(DType::I32, square as usize).unwrap();

    // One operand at a time.
    invalid(
        matmul.prepack(&stream, MatmulCall { a: &a, ..sized(&weights) }).map(drop),
        "one operand at a time",
    );
    let none =
        MatmulCall { m: 1, n: N, k: K, alpha: NONE, beta: NONE, a: NoMemory, b: NoMemory, c: NoMemory };
    invalid(matmul.prepack(&stream, none).map(drop), "one operand at a time");
    // What it reads is checked as for a launch.
    let unwritten = device.alloc(DType::I32, (K * N) as usize).unwrap();
    invalid(matmul.prepack(&stream, of_b(&unwritten)).map(drop), "`b` bytes 0..48 would be read");
    let small = device.upload(&numbers(K * N - 1, 3)).unwrap();
    invalid(matmul.prepack(&stream, of_b(&small)).map(drop), "`b` has 44 bytes");
    let floats = device.upload(&[0.0f32; 12]).unwrap();
    invalid(matmul.prepack(&stream, of_b(&floats)).map(drop), "`b` is f32");
    let elsewhere = runtime.device("sim:1").unwrap().stream().unwrap();
    invalid(matmul.prepack(&elsewhere, of_b(&weights)).map(drop), "stream");
    // Nothing is gained by this one.
    let of_a = MatmulCall { m: M, n: N, k: K, alpha: NONE, beta: NONE, a: &a, b: NoMemory, c: NoMemory };
    assert!(matmul.prepack(&stream, of_a).unwrap().is_none());
    let softmax = SoftmaxDesc::new(DType::F32, DType::F32);
    let softmax = runtime.primitive::<Softmax>(device, softmax).unwrap();
    let rows = SoftmaxCall { rows: 3, cols: 4, inner: 1, src: &floats, dst: NoMemory };
    assert!(softmax.prepack(&stream, rows).unwrap().is_none());

    // Lists are not packed, whatever stands where one was.
    let request = runtime.request("add").unwrap().dtype("data", "f32").unwrap();
    let add = runtime.primitive_dyn(device, &request).unwrap();
    let args = add.args().size("count", 12).unwrap().addresses("srcs", &[64]).unwrap();
    assert!(add.prepack(&stream, args.read("srcs", &floats).unwrap()).unwrap().is_none());

    let packed = matmul.prepack(&stream, of_b(&weights)).unwrap().unwrap();
    // In the place of another operand, for other sizes, by another primitive.
    let swapped = MatmulCall { m: K, n: N, k: N, alpha: NONE, beta: NONE, a: &packed, b: &a, c: &mut c };
    invalid(matmul.launch(&stream, swapped), "`a` is given what `b` was packed into");
    let exchanged = MatmulCall { n: K, k: N, ..call(&a, &packed, &mut c) };
    invalid(matmul.launch(&stream, exchanged), "was packed as");
    let fewer = MatmulCall { n: N - 1, ..call(&a, &packed, &mut c) };
    invalid(matmul.launch(&stream, fewer), "was packed as");
    let transposed = MatmulDesc::new(Transpose::NONE, Transpose::TRANSPOSE, DType::I32);
    let transposed = runtime.primitive::<Matmul>(device, transposed).unwrap();
    invalid(transposed.launch(&stream, call(&a, &packed, &mut c)), "packed by another primitive");
    // The right one still works.
    matmul.launch(&stream, call(&a, &packed, &mut c)).unwrap();
    stream.sync().unwrap();
}

fn sized(b: &Buffer) -> MatmulCall<&Buffer, &Buffer, NoMemory> {
    MatmulCall { m: M, n: N, k: K, alpha: NONE, beta: NONE, a: b, b, c: NoMemory }
}

#[test]
fn primitives_by_name_pack_too() {
    let runtime = runtime();
    let device = runtime.device("sim:0").unwrap();
    let stream: Stream = device.stream().unwrap();
    let request = runtime.request("matmul").unwrap().dtype("data", "i32").unwrap();
    let matmul = runtime.primitive_dyn(device, &request).unwrap();
    let (a, b) = (numbers(M * K, 3), numbers(K * N, -5));
    let (source, weights) = (device.upload(&a).unwrap(), device.upload(&b).unwrap());
    let sizes = |m| matmul.args().size("m", m).unwrap().size("n", N).unwrap().size("k", K).unwrap();
    let packed = matmul.prepack(&stream, sizes(1).read("b", &weights).unwrap()).unwrap().unwrap();
    let mut c = device.alloc(DType::I32, (M * N) as usize).unwrap();
    let args = sizes(M).read("a", &source).unwrap().read("b", &packed).unwrap();
    matmul.launch(&stream, args.write("c", &mut c).unwrap()).unwrap();
    assert_eq!(c.download::<i32>().unwrap(), product(&a, &b));
    invalid(matmul.prepack(&stream, sizes(1)).map(drop), "one operand at a time");
}

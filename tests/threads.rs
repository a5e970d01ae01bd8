//! Providers start no threads of their own. One test, because it counts the threads of the process.

use ep_core::primitive::{
    ElementwiseUnary, ElementwiseUnaryCall, ElementwiseUnaryDesc, Matmul, MatmulCall, MatmulDesc, Transpose,
    UnaryOp,
};
use ep_core::{DType, Scalar};
use ep_registry::{InPlace, Runtime};
use ep_tests::plugin;

/// Threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("tests run on Linux").count()
}

#[test]
fn all_providers_compute_on_the_runtime_s_threads() {
    const N: i64 = 512;
    let before = threads();
    let builder = Runtime::builder().threads(2);
    let builder = builder.provider("cpu", plugin("ep_cpu")).provider("cpu2", plugin("test_cpu2"));
    let runtime = builder.select("elementwise_unary", ["cpu2"]).build().unwrap();
    let device = &runtime.devices()[0];
    let stream = device.stream().unwrap();
    let a = device.upload(&vec![1.0f32; (N * N) as usize]).unwrap();
    let mut c = device.alloc(DType::F32, a.len()).unwrap();
    let desc = MatmulDesc::new(Transpose::NONE, Transpose::NONE, DType::F32);
    let matmul = runtime.primitive::<Matmul>(device, desc).unwrap();
    let desc = ElementwiseUnaryDesc::new(UnaryOp::TANH, DType::F32, DType::F32);
    let tanh = runtime.primitive::<ElementwiseUnary>(device, desc).unwrap();
    assert_eq!((matmul.instance(), tanh.instance()), ("cpu", "cpu2"));
    for _ in 0..2 {
        let (alpha, beta) = ((1.0 / N as f64).into(), Scalar::None);
        let call = MatmulCall { m: N, n: N, k: N, alpha, beta, a: &a, b: &a, c: &mut c };
        matmul.launch(&stream, call).unwrap();
        let call = ElementwiseUnaryCall { count: N * N, src: InPlace, dst: &mut c };
        tanh.launch(&stream, call).unwrap();
        assert_eq!(threads(), before + 1, "two threads, of which one is the caller");
    }
    let expected = 1.0f32.tanh();
    assert!(c.download::<f32>().unwrap().iter().all(|x| (x - expected).abs() < 1e-6));
}

//! What is refused, and how it is said.

use crate::support::{Rig, builder};
use ep_core::primitive::{
    BinaryOp, BroadcastElementwiseBinary, BroadcastElementwiseBinaryArgs, BroadcastElementwiseBinaryCall,
    BroadcastElementwiseBinaryDesc, ElementwiseUnary, ElementwiseUnaryArgs, ElementwiseUnaryDesc, Fill,
    FillCall, FillDesc, Matmul, MatmulCall, MatmulDesc, Memset, MemsetCall, MemsetDesc, Permute, PermuteCall,
    PermuteDesc, Transpose, UnaryOp,
};
use ep_core::{Code, DType, Error, Result, Scalar};

/// The error of a result, which has this code and names these things.
#[track_caller]
fn refused(result: Result<()>, code: Code, words: &[&str]) -> Error {
    let e = result.unwrap_err();
    assert_eq!(e.code(), code, "{e}");
    for word in words {
        assert!(e.message().contains(word), "`{word}` is missing: {e}");
    }
    e
}

#[test]
fn shapes_that_do_not_broadcast() {
    let rig = Rig::new();
    let desc = BroadcastElementwiseBinaryDesc::new(BinaryOp::ADD, DType::F32, DType::F32);
    let add = rig.runtime.primitive::<BroadcastElementwiseBinary>(rig.cpu(), desc).unwrap();
    let x = rig.cpu().upload(&[1.0f32; 21]).unwrap();
    let mut y = rig.cpu().upload(&[-1.0f32; 64]).unwrap();
    let call = BroadcastElementwiseBinaryCall {
        src0_dims: &[3, 7],
        src1_dims: &[5],
        scalar0: Scalar::None,
        scalar1: Scalar::None,
        src0: &x,
        src1: &x,
        dst: &mut y,
    };
    refused(add.launch(&rig.stream, call), Code::InvalidArgument, &["[3, 7]", "[5]"]);
    assert_eq!(y.download::<f32>().unwrap(), [-1.0; 64]);
}

#[test]
fn a_scalar_in_place_of_a_shape() {
    let rig = Rig::new();
    let desc = BroadcastElementwiseBinaryDesc::new(BinaryOp::ADD, DType::I32, DType::I32);
    let add = rig.runtime.primitive::<BroadcastElementwiseBinary>(rig.cpu(), desc).unwrap();
    let mut y = rig.cpu().upload(&[-1i32; 4]).unwrap();
    let address = y.address();
    let args = BroadcastElementwiseBinaryArgs::new(&[4], &[], Scalar::I64(1), Scalar::I64(2), 0, 0, address);
    // SAFETY: the destination has the four elements.
    let launched = unsafe { add.launch_raw(&rig.stream, &args) };
    refused(launched, Code::InvalidArgument, &["scalar0", "[4]"]);
    y.upload(&[0i32]).unwrap();
}

#[test]
fn permutations_that_are_none() {
    let rig = Rig::new();
    let permute = rig.runtime.primitive::<Permute>(rig.cpu(), PermuteDesc::new(DType::I16)).unwrap();
    let x = rig.cpu().upload(&[1i16; 24]).unwrap();
    let mut y = rig.cpu().upload(&[-1i16; 24]).unwrap();
    for permutation in [[0i64, 0, 1], [1, 2, 3], [0, -1, 2], [i64::MAX, 0, 1]] {
        let call = PermuteCall { src_dims: &[2, 3, 4], permutation: &permutation, src: &x, dst: &mut y };
        let number = permutation.iter().find(|p| !(0..3).contains(*p)).unwrap_or(&0).to_string();
        refused(permute.launch(&rig.stream, call), Code::InvalidArgument, &[&number]);
    }
    assert_eq!(y.download::<i16>().unwrap(), [-1; 24]);
}

#[test]
fn a_dtype_without_a_kernel() {
    let rig = Rig::new();
    let desc = ElementwiseUnaryDesc::new(UnaryOp::TANH, DType::I32, DType::I32);
    let e = rig.runtime.primitive::<ElementwiseUnary>(rig.cpu(), desc).map(drop);
    refused(e, Code::Unsupported, &["elementwise_unary", "op=tanh", "src i32", "cpu/unary.float", "nearest"]);
    let desc = MatmulDesc::new(Transpose::NONE, Transpose::NONE, DType::BOOL);
    let e = rig.runtime.primitive::<Matmul>(rig.cpu(), desc).map(drop);
    refused(e, Code::Unsupported, &["matmul", "bool"]);
}

#[test]
fn values_that_are_missing_or_do_not_exist() {
    let rig = Rig::new();
    let fill = rig.runtime.primitive::<Fill>(rig.cpu(), FillDesc::new(DType::F32)).unwrap();
    let mut y = rig.cpu().upload(&[1.0f32; 2]).unwrap();
    let call = FillCall { count: 2, value: Scalar::None, dst: &mut y };
    refused(fill.launch(&rig.stream, call), Code::InvalidArgument, &["value"]);

    let memset = rig.runtime.primitive::<Memset>(rig.cpu(), MemsetDesc::new()).unwrap();
    let call = MemsetCall { bytes: 8, value: Scalar::F64(0.5), dst: &mut y };
    refused(memset.launch(&rig.stream, call), Code::InvalidArgument, &["value", "0.5"]);

    let desc = MatmulDesc::new(Transpose::NONE, Transpose::NONE, DType::I64);
    let matmul = rig.runtime.primitive::<Matmul>(rig.cpu(), desc).unwrap();
    let x = rig.cpu().upload(&[1i64]).unwrap();
    let mut z = rig.cpu().upload(&[1i64]).unwrap();
    for (alpha, code, word) in [
        (Scalar::F64(0.5), Code::InvalidArgument, "0.5"),
        (Scalar::I64(i64::MAX), Code::Unsupported, "9223372036854775807"),
    ] {
        let call = MatmulCall { m: 1, n: 1, k: 1, alpha, beta: Scalar::None, a: &x, b: &x, c: &mut z };
        refused(matmul.launch(&rig.stream, call), code, &["alpha", word]);
    }
    assert_eq!(z.download::<i64>().unwrap(), [1]);
}

#[test]
fn options_that_it_does_not_have_or_cannot_read() {
    for (option, words) in [
        (("isas", "avx2"), &["unknown option `isas`", "memory_limit"][..]),
        (("isa", "sse9"), &["option `isa`", "sse9", "avx512"]),
        (("memory_limit", "lots"), &["memory_limit", "lots"]),
        (("cache_bytes", "-1"), &["cache_bytes", "-1"]),
    ] {
        let runtime = builder(&[option]).build().unwrap();
        assert!(runtime.devices().is_empty());
        let report = runtime.report().to_string();
        assert!(words.iter().all(|word| report.contains(word)), "{option:?}: {report}");
    }
}

#[test]
#[cfg(unix)]
fn a_forked_child_is_told_so() {
    let rig = Rig::new();
    let desc = ElementwiseUnaryDesc::new(UnaryOp::RELU, DType::F32, DType::F32);
    let relu = rig.runtime.primitive::<ElementwiseUnary>(rig.cpu(), desc).unwrap();
    let x = rig.cpu().upload(&[-1.0f32; 4]).unwrap();
    let args = ElementwiseUnaryArgs::new(4, x.address(), x.address());
    // SAFETY: in place on a live buffer of four elements.
    let launch = || unsafe { relu.launch_raw(&rig.stream, &args) };
    launch().unwrap();
    // SAFETY: the child uses nothing that another thread may hold but the system's allocator, which survives a
    // fork, and leaves at once; the alarm ends it should it hang after all.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            libc::alarm(10);
            let code = launch().map_err(|e| e.code());
            libc::_exit(if code == Err(Code::Unavailable) { 7 } else { 1 });
        }
    }
    assert!(child > 0, "no fork");
    let mut status = 0;
    // SAFETY: a child of ours, waited for once.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "status {status:#x}");
    launch().unwrap();
}

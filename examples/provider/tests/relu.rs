//! The example, linked into a host.

use ep_core::DType;
use ep_core::primitive::{ElementwiseUnary, ElementwiseUnaryCall, ElementwiseUnaryDesc, UnaryOp};
use ep_registry::{InPlace, Runtime};
use example_provider::Example;
use half::f16;

fn relu(dtype: DType) -> ElementwiseUnaryDesc {
    ElementwiseUnaryDesc::new(UnaryOp::RELU, dtype, dtype)
}

#[test]
fn relu_of_odd_values_into_other_memory_and_in_place() {
    let runtime = Runtime::builder().linked::<Example>("example").threads(1).build().unwrap();
    let cpu = runtime.device("cpu:0").unwrap();
    let stream = cpu.stream().unwrap();

    let data = [1.5f32, -2.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0, f32::MIN_POSITIVE];
    let expected = [1.5f32, 0.0, f32::INFINITY, 0.0, f32::NAN, 0.0, f32::MIN_POSITIVE];
    let same = |a: f32, b: f32| a == b || (a.is_nan() && b.is_nan());

    let primitive = runtime.primitive::<ElementwiseUnary>(cpu, relu(DType::F32)).unwrap();
    let src = cpu.upload(&data).unwrap();
    let mut dst = cpu.upload(&[-9.0f32; 7]).unwrap();
    primitive.launch(&stream, ElementwiseUnaryCall { count: 7, src: &src, dst: &mut dst }).unwrap();
    assert!(dst.download::<f32>().unwrap().into_iter().zip(expected).all(|(a, b)| same(a, b)));
    assert!(src.download::<f32>().unwrap().into_iter().zip(data).all(|(a, b)| same(a, b)));

    let primitive = runtime.primitive::<ElementwiseUnary>(cpu, relu(DType::F16)).unwrap();
    let mut buffer = cpu.upload(&data.map(f16::from_f32)).unwrap();
    primitive.launch(&stream, ElementwiseUnaryCall { count: 5, src: InPlace, dst: &mut buffer }).unwrap();
    let result = buffer.download::<f16>().unwrap();
    assert!(result.iter().zip(expected).take(5).all(|(a, b)| same(a.to_f32(), f16::from_f32(b).to_f32())));
    assert!(result[5].to_bits() == f16::from_f32(-0.0).to_bits(), "beyond `count` nothing is touched");

    let missing = runtime.primitive::<ElementwiseUnary>(cpu, relu(DType::I8)).unwrap_err();
    assert_eq!(missing.code(), ep_core::Code::Unsupported, "{missing}");
}

#[test]
fn an_option_that_it_does_not_have_is_refused() {
    let mut settings = ep_registry::config::ProviderConfig::new("example", "");
    settings.options.insert("speed".into(), "high".into());
    let runtime = Runtime::builder().linked_with::<Example>(settings).threads(1).build().unwrap();
    assert!(runtime.device("cpu:0").is_err());
    assert!(runtime.report().to_string().contains("unknown option `speed`"), "{}", runtime.report());
}

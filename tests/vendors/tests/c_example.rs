//! `plugins/c-example/c_example.c`: a provider in C with one header.

use ep_conformance::Outcome;
use ep_core::Code;
use ep_core::primitive::*;
use ep_core::{DType, Scalar};
use ep_registry::{Device, InPlace, Runtime, View};
use ep_vendor_tests::{folder, load, make, make_changed, root};
use proptest::prelude::*;

/// The provider, its one device, and the folder that its library is in.
fn host() -> (Runtime, tempfile::TempDir) {
    let folder = folder();
    let library = make(folder.path(), "c_example");
    (load(&[("c", &library)]), folder)
}

fn cpu(runtime: &Runtime) -> &Device {
    runtime.device("cpu").unwrap()
}

/// Equal bits; NaN equals NaN.
fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
}

fn any_f32() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -100f32..100f32,
        1 => prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, f32::MIN_POSITIVE]),
    ]
}

#[test]
fn it_takes_less_than_300_lines() {
    let lines = |name: &str| {
        let path = root().join("plugins/c-example").join(name);
        std::fs::read_to_string(path).unwrap().lines().count()
    };
    let total = lines("provider.h") + lines("c_example.c");
    assert!((100..300).contains(&total), "{total} lines");
}

#[test]
fn relu_of_any_numbers_elsewhere_and_in_place() {
    let (runtime, _folder) = host();
    let device = cpu(&runtime);
    let stream = device.stream().unwrap();
    let desc = ElementwiseUnaryDesc::new(UnaryOp::RELU, DType::F32, DType::F32);
    let relu = runtime.primitive::<ElementwiseUnary>(device, desc).unwrap();
    proptest!(|(data in prop::collection::vec(any_f32(), 0..70))| {
        let wanted: Vec<f32> = data.iter().map(|x| if *x <= 0.0 { 0.0 } else { *x }).collect();
        let count = data.len() as i64;
        let src = device.upload(&data)?;
        let mut dst = device.upload(&vec![-7f32; data.len()])?;
        relu.launch(&stream, ElementwiseUnaryCall { count, src: &src, dst: &mut dst })?;
        prop_assert!(same(&dst.download::<f32>()?, &wanted));
        prop_assert!(same(&src.download::<f32>()?, &data));
        let mut both = src;
        relu.launch(&stream, ElementwiseUnaryCall { count, src: InPlace, dst: &mut both })?;
        prop_assert!(same(&both.download::<f32>()?, &wanted));
    });
    let missing = ElementwiseUnaryDesc::new(UnaryOp::RELU, DType::F64, DType::F64);
    let error = runtime.primitive::<ElementwiseUnary>(device, missing).unwrap_err();
    assert_eq!(error.code(), Code::Unsupported, "{error}");
}

#[test]
fn fill_rounds_every_kind_of_number_once() {
    let (runtime, _folder) = host();
    let device = cpu(&runtime);
    let stream = device.stream().unwrap();
    let fill = runtime.primitive::<Fill>(device, FillDesc::new(DType::F32)).unwrap();
    // By way of a double, the integer would become a tie and round down.
    const TWICE: i64 = (1 << 60) + (1 << 36) + 1;
    const { assert!(TWICE as f64 as f32 != TWICE as f32) };
    // Converted at run time: Valgrind itself goes by way of a double, for the test as for the provider.
    let twice = std::hint::black_box(TWICE);
    for (value, wanted) in [
        (Scalar::F64(1e-3), 1e-3f32),
        (Scalar::F64(1e300), f32::INFINITY),
        (Scalar::F64(f64::NAN), f32::NAN),
        (Scalar::I64(-3), -3.0),
        (Scalar::I64(twice), twice as f32),
        (Scalar::U64(u64::MAX), 18_446_744_073_709_551_615f32),
        (Scalar::U64((1 << 63) + twice as u64), ((1u64 << 63) + twice as u64) as f32),
        (Scalar::Bool(true), 1.0),
        (Scalar::Complex(2.5, 9.0), 2.5),
    ] {
        let mut dst = device.upload(&[-7f32; 5]).unwrap();
        fill.launch(&stream, FillCall { count: 4, value, dst: &mut dst }).unwrap();
        let wanted = [wanted, wanted, wanted, wanted, -7.0];
        assert!(same(&dst.download::<f32>().unwrap(), &wanted), "{value:?}: {dst:?}");
    }
    let mut dst = device.upload(&[-7f32; 5]).unwrap();
    let error = fill.launch(&stream, FillCall { count: 4, value: Scalar::None, dst: &mut dst }).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("`value` is of kind 0"), "{error}");
}

#[test]
fn add_takes_any_number_of_sources() {
    let (runtime, _folder) = host();
    let device = cpu(&runtime);
    let stream = device.stream().unwrap();
    let add = runtime.primitive::<Add>(device, AddDesc::new(DType::F32)).unwrap();
    proptest!(|((count, data) in (0usize..20).prop_flat_map(|n| {
        (Just(n), prop::collection::vec(prop::collection::vec(any_f32(), n), 0..6))
    }))| {
        let mut wanted = vec![0f32; count];
        for (i, w) in wanted.iter_mut().enumerate() {
            *w = data.iter().map(|v| v[i]).reduce(|a, b| a + b).unwrap_or(0.0);
        }
        let buffers = data.iter().map(|v| device.upload(v)).collect::<ep_core::Result<Vec<_>>>()?;
        let srcs: Vec<View<'_>> = buffers.iter().map(View::from).collect();
        let mut dst = device.upload(&vec![-7f32; count])?;
        add.launch(&stream, AddCall { count: count as i64, dst: &mut dst, srcs: &srcs })?;
        prop_assert!(same(&dst.download::<f32>()?, &wanted), "{:?} is not {wanted:?}", dst.download::<f32>());
    });
}

/// The safe API checks before a provider does. What C itself answers to a host that does not is seen with
/// addresses.
#[test]
fn what_cannot_be_launched_is_refused_in_c_too() {
    let (runtime, _folder) = host();
    let device = cpu(&runtime);
    let stream = device.stream().unwrap();
    let add = runtime.request("add").unwrap().dtype("data", "f32").unwrap().limit("arity", 2).unwrap();
    let add = runtime.primitive_dyn(device, &add).unwrap();
    let memory = device.upload(&[1f32; 4]).unwrap();
    let at = memory.address();
    for (count, dst, srcs, said) in [
        (-1, at, vec![at], "count must not be negative"),
        (4, 0, vec![at], "`dst` has 4 elements at 0"),
        (3, at + 2, vec![at], "a multiple of 4"),
        (4, at, vec![at, 0], "`srcs` has 4 elements at 0"),
        (4, at, vec![at; 3], "`arity` is 3; 0 to 2"),
    ] {
        let args = add.args().size("count", count).unwrap().address("dst", dst).unwrap();
        let args = args.addresses("srcs", &srcs).unwrap();
        // SAFETY: the addresses are those of a live buffer of 4 elements, or such that nothing is touched.
        let error = unsafe { add.launch_raw(&stream, &args) }.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().contains(said), "`{said}` is not in: {error}");
    }
    assert_eq!(memory.download::<f32>().unwrap(), [1.0; 4]);
}

#[test]
fn reserved_bytes_are_refused_and_the_kit_sees_to_it() {
    let folder = folder();
    let check = "&& !ep_reserved_is_zero(schema, *out))";
    let careless =
        make_changed(folder.path(), "c_example", "careless", &[("provider.h", check, "&& !schema)")]);
    let acme = make_changed(folder.path(), "acme", "careless-acme", &[("provider.h", check, "&& !schema)")]);
    for (library, ops, passes) in [
        (&make(folder.path(), "c_example"), &["fill", "add", "elementwise_unary"][..], true),
        (&careless, &["fill", "add", "elementwise_unary"], false),
        (&make(folder.path(), "acme"), &["fill", "acme.conv2d"], true),
        (&acme, &["fill", "acme.conv2d"], false),
    ] {
        let runtime = load(&[("c", library)]);
        for op in ops {
            let cases = ep_conformance::refusal_cases(&runtime, cpu(&runtime), op, 7);
            for (name, outcome) in cases {
                let reserved = name.ends_with("/descriptor-with-reserved-bytes");
                let failed = matches!(outcome, Outcome::Fail(_));
                assert_eq!(failed, reserved && !passes, "{name} of {}: {outcome:?}", library.display());
                assert!(!reserved || outcome == Outcome::Pass || failed, "{name}: {outcome:?}");
            }
        }
    }
}

#[test]
fn memory_is_counted_aligned_and_ends_in_an_error() {
    let (runtime, _folder) = host();
    let device = cpu(&runtime);
    let buffers: Vec<_> = [0, 1, 63, 1000].map(|n| device.alloc(DType::U8, n).unwrap()).into();
    assert!(buffers.iter().all(|b| b.address() != 0 && b.address() % 64 == 0));
    let stats = device.memory_stats().unwrap();
    assert_eq!((stats.in_use_bytes, stats.in_use_blocks, stats.total_allocs), (1064, 4, 4));
    for huge in [1 << 60, i64::MAX as usize, usize::MAX] {
        let error = device.alloc(DType::U8, huge).unwrap_err();
        assert_eq!(error.code(), Code::OutOfMemory, "{error}");
    }
    drop(buffers);
    let stats = device.memory_stats().unwrap();
    assert_eq!((stats.in_use_bytes, stats.in_use_blocks, stats.peak_in_use_bytes), (0, 0, 1064));
    assert_eq!(device.alloc_pinned(DType::U8, 1).unwrap_err().code(), Code::Unsupported);
}

#[test]
fn an_option_is_refused_by_its_name() {
    let folder = folder();
    let mut settings =
        ep_registry::config::ProviderConfig::new("c", make(folder.path(), "c_example").to_str().unwrap());
    settings.options.insert("speed".into(), "high".into());
    let runtime = Runtime::builder().threads(1).provider_with(settings).build().unwrap();
    assert!(runtime.devices().is_empty());
    assert!(runtime.report().to_string().contains("unknown option `speed`"), "{}", runtime.report());
}

//! The device, its memory, and what the provider says of itself.

use crate::support::{Rig, builder};
use ep_core::primitive::{ElementwiseUnary, ElementwiseUnaryDesc, UnaryOp};
use ep_core::provider::Attribute;
use ep_core::{Code, DType, Scalar};
use ep_cpu::isa::{ISA_ENV, Isa};
use ep_registry::query::Filter;
use std::collections::HashSet;

#[test]
fn the_device_describes_the_machine() {
    let rig = Rig::new();
    let info = rig.cpu().info();
    assert_eq!((info.kind.as_str(), info.memory_space.as_str(), info.inline), ("cpu", "host", true));
    assert_eq!(info.uuid, ep_core::provider::inline::CPU_UUID);
    assert!(!info.name.is_empty());
    assert!(info.memory_bytes > 1 << 20);
    let attribute = |name: &str| &info.attributes.iter().find(|(n, _)| n == name).unwrap().1;
    assert_eq!(*attribute("isa"), Attribute::Text(Isa::detect().unwrap().to_string()));
    let threads = rig.runtime.parallel().threads() as u64;
    assert_eq!(*attribute("threads"), Attribute::Scalar(Scalar::U64(threads)));
    for name in ["avx2", "avx512f", "amx_bf16"] {
        assert!(matches!(attribute(name), Attribute::Scalar(Scalar::Bool(_))), "{name}");
    }
    for name in ["l2_bytes", "l3_bytes"] {
        assert!(matches!(attribute(name), Attribute::Scalar(Scalar::U64(_))), "{name}");
    }
}

#[test]
fn every_level_can_be_asked_for_and_is_named() {
    for isa in Isa::available() {
        let runtime = builder(&[("isa", &isa.to_string())]).build().unwrap();
        let cpu = runtime.device("cpu:0").unwrap();
        let desc = ElementwiseUnaryDesc::new(UnaryOp::RELU, DType::F32, DType::F32);
        let relu = runtime.primitive::<ElementwiseUnary>(cpu, desc).unwrap();
        assert!(relu.describe().starts_with(&format!("{isa}: ")), "{}", relu.describe());
    }
}

/// With a level in the environment that does not exist, only the option can be what decides.
#[test]
fn the_option_wins_over_the_environment() {
    let with_bad_level = |test: &str| {
        let mut tests = std::process::Command::new(std::env::current_exe().unwrap());
        tests.args(["--exact", test]).env(ISA_ENV, "sse9").output().unwrap()
    };
    let asked = with_bad_level("device::every_level_can_be_asked_for_and_is_named");
    let out = String::from_utf8_lossy(&asked.stdout);
    assert!(asked.status.success() && out.contains("1 passed"), "{out}");
    let not_asked = with_bad_level("device::no_row_is_claimed_twice");
    assert!(!not_asked.status.success(), "the environment counts without the option");
}

/// Rows are claimed once, by as few factories as that takes.
#[test]
fn no_row_is_claimed_twice() {
    let rig = Rig::new();
    let rows = rig.runtime.query(&Filter::default());
    let keys: HashSet<_> = rows.iter().map(|r| (&r.op, &r.selectors, &r.dtypes)).collect();
    assert_eq!(keys.len(), rows.len());
    let ops: HashSet<_> = rows.iter().map(|r| r.op.as_str()).collect();
    assert_eq!(ops.len(), ep_core::primitive::core_schemas().len(), "{ops:?}");
    assert!(rows.iter().all(|r| r.predicate.is_empty() && r.priority == 0));
}

#[test]
fn memory_is_counted_and_goes_back_to_zero() {
    let rig = Rig::new();
    let cpu = rig.cpu();
    let a = cpu.upload(&[1.0f32; 1000]).unwrap();
    let b = cpu.alloc_pinned(DType::U8, 5000).unwrap();
    let empty = cpu.alloc(DType::F64, 0).unwrap();
    assert_ne!(empty.address(), 0);
    assert!(a.address().is_multiple_of(64) && b.address().is_multiple_of(4096));
    let s = cpu.memory_stats().unwrap();
    assert_eq!((s.in_use_bytes, s.in_use_blocks, s.total_allocs), (9000, 3, 3));
    drop((a, b, empty));
    let s = cpu.memory_stats().unwrap();
    assert_eq!((s.in_use_bytes, s.in_use_blocks, s.peak_in_use_bytes), (0, 0, 9000));
    assert!(s.reserved_bytes >= 9000, "freed blocks are kept: {s:?}");
    cpu.trim().unwrap();
    assert_eq!(cpu.memory_stats().unwrap().reserved_bytes, 0);
}

#[test]
fn the_options_bound_the_memory() {
    let runtime = builder(&[("memory_limit", "1000000"), ("cache_bytes", "0")]).build().unwrap();
    let cpu = runtime.device("cpu:0").unwrap();
    let half = cpu.alloc(DType::U8, 600_000).unwrap();
    let e = cpu.alloc(DType::U8, 600_000).unwrap_err();
    assert_eq!(e.code(), Code::OutOfMemory);
    assert!(e.message().contains("600000") && e.message().contains("1000000"), "{e}");
    drop(half);
    assert_eq!(cpu.memory_stats().unwrap().reserved_bytes, 0, "nothing is kept");
    drop(cpu.alloc(DType::U8, 600_000).unwrap());
}

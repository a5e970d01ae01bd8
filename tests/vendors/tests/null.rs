//! `plugins/null`: the skeleton, as built.

use ep_core::{Code, DType};
use ep_registry::config::ProviderConfig;
use ep_registry::query::Filter;
use ep_registry::{Event, Runtime};
use ep_vendor_tests::{built, folder, load, root};

/// The skeleton with an option.
fn with_memory(mib: &str) -> Runtime {
    let mut settings = ProviderConfig::new("x", built("ep_null").to_str().unwrap());
    settings.options.insert("memory_mib".into(), mib.into());
    Runtime::builder().threads(1).provider_with(settings).build().unwrap()
}

#[test]
fn it_has_a_device_and_no_op() {
    let runtime = load(&[("x", &built("ep_null"))]);
    let device = runtime.device("null:0").unwrap();
    assert_eq!(device.info().attributes[0].0, "threads");
    assert!(runtime.query(&Filter::default()).is_empty());
    let data: Vec<u32> = (0..1001).collect();
    let mut buffer = device.upload(&data).unwrap();
    assert_eq!((buffer.space(), buffer.download::<u32>().unwrap()), ("null", data));
    buffer.map_write::<u32>().unwrap()[7] = 70;
    assert_eq!(buffer.download::<u32>().unwrap()[7], 70);
    drop(buffer);
    let stats = device.memory_stats().unwrap();
    assert_eq!((stats.in_use_bytes, stats.in_use_blocks, stats.total_allocs > 0), (0, 0, true));
    device.trim().unwrap();
}

#[test]
fn its_events_tell_the_time() {
    let runtime = load(&[("x", &built("ep_null"))]);
    let stream = runtime.device("null").unwrap().stream().unwrap();
    let (start, end) = (Event::new(), Event::new());
    stream.record(&start).unwrap();
    assert!(start.elapsed_ns(&end).is_err(), "one of them was never recorded");
    stream.record(&end).unwrap();
    stream.wait(&start).unwrap();
    start.elapsed_ns(&end).unwrap();
    stream.sync().unwrap();
}

#[test]
fn its_option_bounds_the_memory_and_others_are_refused() {
    let runtime = with_memory("2");
    let device = runtime.device("null").unwrap();
    assert_eq!(device.info().memory_bytes, 2 << 20);
    let half = device.alloc(DType::U8, 1 << 20).unwrap();
    let error = device.alloc(DType::U8, (1 << 20) + 1).unwrap_err();
    assert_eq!(error.code(), Code::OutOfMemory, "{error}");
    drop(half);
    device.alloc(DType::U8, 2 << 20).unwrap();
    for (mib, said) in [("many", "option `memory_mib` is `many`"), ("99999999999999", "more than 2^64 bytes")]
    {
        let runtime = with_memory(mib);
        assert!(
            runtime.devices().is_empty() && runtime.report().to_string().contains(said),
            "{}",
            runtime.report()
        );
    }
}

#[test]
fn its_manifest_agrees_with_it() {
    let folder = folder();
    let library = folder.path().join("libep_null.so");
    std::fs::copy(built("ep_null"), &library).unwrap();
    let manifest = std::fs::read_to_string(root().join("plugins/null/libep_null.ep.toml")).unwrap();
    std::fs::write(folder.path().join("libep_null.ep.toml"), &manifest).unwrap();
    // `load` lets no remark pass; that manifests are read here at all, a wrong one shows.
    load(&[("x", &library)]);
    std::fs::write(folder.path().join("libep_null.ep.toml"), manifest.replace("0.1.0", "7.0.0")).unwrap();
    let runtime = Runtime::builder().threads(1).provider("x", &library).build().unwrap();
    assert!(runtime.report().to_string().contains("7.0.0"), "{}", runtime.report());
}

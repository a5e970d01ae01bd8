//! The library that is there, that is missing, and that is another one.

use ep_onednn::OnednnProvider;
use ep_registry::config::ProviderConfig;
use ep_registry::{Runtime, Status};

/// A runtime with the provider alone, told to take its library from `path`.
fn with_library(path: &str) -> Runtime {
    let mut settings = ProviderConfig::new("onednn", "");
    settings.options.insert("library".into(), path.into());
    Runtime::builder().linked_with::<OnednnProvider>(settings).build().unwrap()
}

/// Why the provider has no device.
fn reason(runtime: &Runtime) -> String {
    let entry = &runtime.report().entries[0];
    assert_eq!(entry.status, Status::Absent, "{entry:?}");
    assert!(runtime.devices().is_empty());
    entry.reason.clone()
}

#[test]
fn without_the_library_the_device_is_absent_and_the_reason_says_how_to_get_it() {
    let why = reason(&with_library("/nowhere/libdnnl.so.3"));
    for words in ["/nowhere/libdnnl.so.3", "pip install", "EP_ONEDNN_LIBRARY"] {
        assert!(why.contains(words), "`{words}` is not in {why}");
    }
    let folder = std::env::temp_dir();
    let why = reason(&with_library(folder.to_str().unwrap()));
    assert!(why.contains("/libdnnl.so.3"), "a folder is searched for the usual name: {why}");
}

#[test]
fn another_library_is_refused_by_what_it_lacks() {
    let why = reason(&with_library("libc.so.6"));
    assert!(why.contains("dnnl_version"), "{why}");
}

#[test]
fn an_unknown_option_is_an_error() {
    let mut settings = ProviderConfig::new("onednn", "");
    settings.options.insert("lib".into(), "x".into());
    let runtime = Runtime::builder().linked_with::<OnednnProvider>(settings).build().unwrap();
    let entry = &runtime.report().entries[0];
    assert!(entry.status == Status::Failed && entry.reason.contains("library"), "{entry:?}");
}

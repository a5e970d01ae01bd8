//! The second opinion of `abi_stable` on a plugin's types. With the feature: `.ci/run abi_stable`.

use ep_core::Code;
use ep_registry::Runtime;
use ep_registry::config::Config;
use std::path::Path;

/// A runtime with the provider `x`, with or without `strict_layout`.
fn runtime(path: &Path, strict: bool) -> ep_core::Result<Runtime> {
    let text = format!(
        "[[provider]]\nname = \"x\"\npath = {path:?}\n[runtime]\nthreads = 1\nstrict_layout = {strict}\n"
    );
    Runtime::builder().config(Config::from_str(&text, Path::new("/"))?).build()
}

#[cfg(not(feature = "abi_stable"))]
#[test]
fn a_host_without_the_feature_cannot_be_strict() {
    let error = runtime(Path::new("/none.so"), true).unwrap_err();
    assert_eq!(error.code(), Code::Unsupported);
    assert!(error.message().contains("strict_layout"), "{error}");
    assert!(runtime(Path::new("/none.so"), false).is_ok());
}

#[cfg(feature = "abi_stable")]
mod with_feature {
    use super::*;
    use ep_registry::Status;
    use ep_tests::loading::{built, folder, only, says, skew};
    use std::path::PathBuf;

    /// The layout that a plugin would export which was built with another series of `abi_stable`.
    const OTHER_SERIES: &str = r#"
#include "ep_plugin.h"
typedef struct { EpStr series; const void *layout; } Layout;
EP_EXPORT void ep_plugin_layout(Layout *out);
EP_EXPORT void ep_plugin_layout(Layout *out) { out->series = ep_str("0.10"); out->layout = 0; }
"#;

    fn of_another_series(dir: &Path, changes: &[&str]) -> PathBuf {
        let extra = dir.join("layout.c");
        std::fs::write(&extra, OTHER_SERIES).unwrap();
        skew(dir, "other", changes, &[extra.to_str().unwrap()])
    }

    #[test]
    fn a_rust_plugin_built_with_the_feature_fits() {
        let path = built("ep_null");
        // SAFETY: our own plugin.
        let library = unsafe { libloading::Library::new(&path) }.unwrap();
        // SAFETY: only asked for, not called.
        let exported = unsafe { library.get::<*const ()>(b"ep_plugin_layout") }.is_ok();
        assert!(exported, "build it with: cargo build -p ep-null --features ep-core/abi_stable");
        let runtime = runtime(&path, true).unwrap();
        assert_eq!(only(&runtime).status, Status::Loaded);
        assert_eq!(only(&runtime).reason, "");
    }

    #[test]
    fn what_differs_is_a_remark_unless_the_config_is_strict() {
        let folder = folder();
        let path = of_another_series(folder.path(), &[]);
        let lenient = runtime(&path, false).unwrap();
        assert_eq!(only(&lenient).status, Status::Loaded);
        says(&only(&lenient).reason, &["abi_stable finds differences", "0.10"]);
        let strict = runtime(&path, true).unwrap();
        assert_eq!(only(&strict).status, Status::Failed);
        assert_eq!(only(&strict).code, Some(Code::AbiMismatch));
        says(&only(&strict).reason, &["strict_layout", "0.10", "rebuild"]);
    }

    #[test]
    fn a_mismatch_of_fingerprints_comes_with_the_explanation() {
        let folder = folder();
        let path = of_another_series(folder.path(), &["swap=EpCopy.dst,src"]);
        let runtime = runtime(&path, false).unwrap();
        assert_eq!(only(&runtime).code, Some(Code::AbiMismatch));
        says(&only(&runtime).reason, &["EpCopy", "`dst`", "abi_stable:", "0.10"]);
    }
}

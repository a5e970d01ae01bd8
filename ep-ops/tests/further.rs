//! The device that is tested beside the CPU: the simulated accelerator, or one that cannot be linked.
//!
//! `EP_TEST_PROVIDER` is the library of its provider, and `EP_TEST_DEVICE` its name, such as `cuda:0`.

use ep_registry::Builder;
use std::sync::LazyLock;

static DEVICE: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("EP_TEST_DEVICE").ok());

/// Its name.
pub fn device() -> &'static str {
    DEVICE.as_deref().unwrap_or("sim:0")
}

/// With its provider.
pub fn add(builder: Builder) -> Builder {
    match std::env::var_os("EP_TEST_PROVIDER") {
        Some(library) => builder.provider("further", library),
        None => builder,
    }
}

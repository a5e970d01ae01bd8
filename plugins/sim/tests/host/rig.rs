//! Runtimes with the provider, and a few launches.

use ep_core::primitive::{ElementwiseUnary, ElementwiseUnaryCall, ElementwiseUnaryDesc, UnaryOp};
use ep_core::{DType, Result};
use ep_registry::config::ProviderConfig;
use ep_registry::{Device, Primitive, Read, Runtime, Stream, ViewMut};
use ep_sim::SimProvider;
use std::path::PathBuf;

/// The settings of an instance with these options, which must load.
pub fn settings(options: &[(&str, &str)]) -> ProviderConfig {
    let mut settings = ProviderConfig::new("sim", "");
    settings.required = true;
    settings.options = options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    settings
}

/// A runtime with one linked instance.
pub fn build(options: &[(&str, &str)]) -> Result<Runtime> {
    Runtime::builder().threads(1).linked_with::<SimProvider>(settings(options)).build()
}

/// The same, which must load.
pub fn runtime(options: &[(&str, &str)]) -> Runtime {
    build(options).unwrap()
}

/// `dst = -src` on i32.
#[derive(Clone)]
pub struct Negate(pub Primitive<ElementwiseUnary>);

impl Negate {
    pub fn new(runtime: &Runtime, device: &Device) -> Negate {
        let desc = ElementwiseUnaryDesc::new(UnaryOp::NEGATIVE, DType::I32, DType::I32);
        Negate(runtime.primitive(device, desc).unwrap())
    }

    pub fn launch<'a>(
        &self,
        stream: &Stream,
        count: usize,
        src: impl Into<Read<'a>>,
        dst: impl Into<ViewMut<'a>>,
    ) -> Result<()> {
        self.0.launch(stream, ElementwiseUnaryCall { count: count as i64, src, dst })
    }
}

/// Asserts that no memory is in use on any device, once its work is done.
pub fn nothing_left(runtime: &Runtime) {
    for device in runtime.devices() {
        let stats = device.memory_stats().unwrap();
        assert_eq!(
            (stats.in_use_bytes, stats.in_use_blocks, stats.reserved_bytes),
            (0, 0, 0),
            "left on {}",
            device.name()
        );
    }
}

/// While this lives, the first device of an instance with the option `hold` = [`Hold::option`] does no work. Made
/// after the streams, so that a failing test lets go of them before it drops them.
pub struct Hold(PathBuf);

impl Hold {
    pub fn option(name: &str) -> String {
        format!("{}/{name}", env!("CARGO_TARGET_TMPDIR"))
    }

    pub fn new(name: &str) -> Hold {
        let file = PathBuf::from(format!("{}.0", Hold::option(name)));
        std::fs::write(&file, "").unwrap();
        Hold(file)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

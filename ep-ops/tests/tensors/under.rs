//! The runtimes that the tests use.

use ep_core::provider::{Host, Options, Provider, Registrar};
use ep_core::{Code, Error, Result};
use ep_cpu::provider::CpuProvider;
use ep_ops::Ops;
use ep_registry::config::ProviderConfig;
use ep_registry::{Builder, Runtime};
use ep_sim::{SimDevice, SimProvider};
use std::fmt::Debug;
use std::sync::LazyLock;

/// A CPU, and two devices whose memory the host does not reach, which do not reach each other's.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    simulated::<SimProvider>(Runtime::builder().threads(1).linked::<CpuProvider>("cpu")).build().unwrap()
});

/// Where everything is tested.
pub const DEVICES: [&str; 2] = ["cpu:0", "sim:0"];

/// Operators on a device of a runtime that has all of them, with a stream of their own.
pub fn ops(device: &str) -> Ops<'static> {
    Ops::new(&RUNTIME, device).unwrap()
}

/// A simulated device that has memory and streams, and computes nothing.
pub struct Bare(SimProvider);

impl Provider for Bare {
    type Device = SimDevice;
    const NAME: &'static str = "bare";
    const VERSION: &'static str = "1";

    fn create(_: Host, options: &Options) -> Result<Bare> {
        SimProvider::new(options, None).map(Bare)
    }

    fn device_count(&self) -> Result<u32> {
        self.0.device_count()
    }

    fn open_device(&self, index: u32) -> Result<SimDevice> {
        self.0.open_device(index)
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        registrar.device_kind("sim");
        Ok(())
    }
}

/// Adds a provider of simulated devices.
pub fn simulated<P: Provider>(builder: Builder) -> Builder {
    let mut settings = ProviderConfig::new("sim", "");
    settings.required = true;
    settings.options.insert("max_delay_us".into(), "20".into());
    settings.options.insert("peer".into(), "false".into());
    builder.linked_with::<P>(settings)
}

/// A CPU, and `sim:0` and `sim:1`, which compute nothing.
pub fn with_bare() -> Runtime {
    simulated::<Bare>(Runtime::builder().threads(1).linked::<CpuProvider>("cpu")).build().unwrap()
}

/// The message of an error of this code.
#[track_caller]
pub fn message<T: Debug>(result: Result<T>, code: Code) -> String {
    let error: Error = result.unwrap_err();
    assert_eq!(error.code(), code, "{error}");
    error.message().to_owned()
}

/// The message of an `InvalidArgument`.
#[track_caller]
pub fn invalid<T: Debug>(result: Result<T>) -> String {
    message(result, Code::InvalidArgument)
}

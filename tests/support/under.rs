//! The providers that the host's tests run on.

use ep_registry::config::ProviderConfig;
use ep_registry::{Device, Runtime};
use std::path::PathBuf;

/// A provider under test: which one, and how it gets into the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Under {
    /// The CPU provider, loaded.
    CpuPlugin,
    /// The CPU provider, linked in.
    CpuLinked,
    /// The asynchronous test provider, loaded.
    AsyncPlugin,
    /// The asynchronous test provider, linked in.
    AsyncLinked,
}

/// A built plugin, by its library's name.
///
/// # Panics
/// When it is not there.
pub fn plugin(library: &str) -> PathBuf {
    // Test executables are in `<target>/<profile>/deps`, plugins one folder up.
    let executable = std::env::current_exe().expect("a process knows its executable");
    let name = file_name(library);
    let path = executable.parent().and_then(|deps| deps.parent()).map(|dir| dir.join(&name));
    match path {
        Some(path) if path.exists() => path,
        path => panic!(
            "{} is not built; run `cargo xtask test`, or `cargo build --workspace` first",
            path.unwrap_or_else(|| name.into()).display()
        ),
    }
}

fn file_name(library: &str) -> String {
    format!("{}{library}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX)
}

impl Under {
    /// Whether its streams do their work later, in memory that the host does not reach.
    pub fn is_async(self) -> bool {
        matches!(self, Under::AsyncPlugin | Under::AsyncLinked)
    }

    /// The device kind, which is the instance's name too.
    pub fn kind(self) -> &'static str {
        if self.is_async() { "async" } else { "cpu" }
    }

    /// Adds an instance called `name`, with options, which must load.
    pub fn add(
        self,
        builder: ep_registry::Builder,
        name: &str,
        options: &[(&str, &str)],
    ) -> ep_registry::Builder {
        let mut settings = ProviderConfig::new(name, "");
        settings.required = true;
        settings.options = options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        match self {
            Under::CpuLinked => builder.linked_with::<ep_cpu::provider::CpuProvider>(settings),
            Under::AsyncLinked => builder.linked_with::<test_async::AsyncProvider>(settings),
            Under::CpuPlugin | Under::AsyncPlugin => {
                settings.path = plugin(if self.is_async() { "test_async" } else { "ep_cpu" });
                builder.provider_with(settings)
            }
        }
    }

    /// A runtime with this provider only.
    ///
    /// # Panics
    /// When the provider does not load.
    pub fn runtime_with(self, options: &[(&str, &str)]) -> Runtime {
        let builder = self.add(Runtime::builder().threads(2), self.kind(), options);
        builder.build().unwrap_or_else(|e| panic!("{self:?}: {e}"))
    }

    /// A runtime with this provider only and no options.
    pub fn runtime(self) -> Runtime {
        self.runtime_with(&[])
    }

    /// Runs a test on the first device of a fresh runtime, then looks at what the test has left behind: no
    /// memory in use, and no misuse of memory that the asynchronous provider has noticed.
    ///
    /// # Panics
    /// When something was left behind.
    pub fn run(self, test: impl FnOnce(&Runtime, &Device)) {
        self.run_with(&[], test);
    }

    /// [`Under::run`] with options for the provider.
    pub fn run_with(self, options: &[(&str, &str)], test: impl FnOnce(&Runtime, &Device)) {
        let runtime = self.runtime_with(options);
        test(&runtime, &runtime.devices()[0]);
        check_left_behind(&runtime);
    }
}

/// Checks that no memory is in use on any device, and that no provider has noticed misuse.
///
/// # Panics
/// When there is something.
pub fn check_left_behind(runtime: &Runtime) {
    for device in runtime.devices() {
        let stream = device.stream().expect("a stream");
        stream.sync().unwrap_or_else(|e| panic!("{}: noticed by the provider: {e}", device.name()));
        let stats = device.memory_stats().expect("counters");
        assert_eq!((stats.in_use_bytes, stats.in_use_blocks), (0, 0), "left on {}", device.name());
    }
}

/// Makes a test of each function (`fn(Under)`) for each provider.
#[macro_export]
macro_rules! on_each_provider {
    ($($test:ident),* $(,)?) => {
        $crate::on_provider!(cpu_plugin, CpuPlugin, $($test),*);
        $crate::on_provider!(cpu_linked, CpuLinked, $($test),*);
        $crate::on_each_async_provider!($($test),*);
    };
}

/// Makes a test of each function (`fn(Under)`) for each asynchronous provider.
#[macro_export]
macro_rules! on_each_async_provider {
    ($($test:ident),* $(,)?) => {
        $crate::on_provider!(async_plugin, AsyncPlugin, $($test),*);
        $crate::on_provider!(async_linked, AsyncLinked, $($test),*);
    };
}

/// Makes a test of each function for one provider, in a module.
#[macro_export]
macro_rules! on_provider {
    ($module:ident, $under:ident, $($test:ident),*) => {
        mod $module {
            $(
                #[test]
                fn $test() {
                    super::$test($crate::Under::$under);
                }
            )*
        }
    };
}

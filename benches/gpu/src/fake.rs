//! The fake driver for tests, one at a time.

pub use fakecuda::{Fake, Setup};

use ep_cuda::provider::CudaProvider;
use ep_cuda::settings::Settings;
use ep_registry::Runtime;
use ep_registry::config::ProviderConfig;
use std::sync::{Mutex, MutexGuard, PoisonError};

static TURN: Mutex<()> = Mutex::new(());

/// The fake, for one test alone.
pub struct Alone {
    pub fake: Fake,
    _turn: MutexGuard<'static, ()>,
}

impl Alone {
    pub fn new(setup: Setup) -> Alone {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let fake = Fake::beside_the_test();
        fake.reset(setup);
        Alone { fake, _turn: turn }
    }

    fn config(&self, options: &[(&str, &str)]) -> ProviderConfig {
        let mut config = ProviderConfig::new("cuda", "");
        let fake = self.fake.option();
        let own = [("driver", fake), ("nvrtc", fake), ("cublaslt", fake), ("cache", "off")];
        config.options = own.iter().chain(options).map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        config
    }

    /// The settings of programs that call the driver themselves.
    pub fn settings(&self) -> Settings {
        crate::bare::settings(&self.config(&[]))
    }

    /// A host with the provider on the fake.
    pub fn runtime(&self, options: &[(&str, &str)]) -> Runtime {
        Runtime::builder().linked_with::<CudaProvider>(self.config(options)).build().unwrap()
    }

    /// Whether work was queued and not waited for when memory was freed, or is now.
    pub fn leaves_work(&self) -> bool {
        let mut busy = Vec::new();
        for line in self.fake.log() {
            let stream = stream_of(&line).to_owned();
            match line.split('(').next().unwrap() {
                "cuMemFreeAsync" if !busy.is_empty() => return true,
                "cuStreamSynchronize" => busy.retain(|other| *other != stream),
                "cuMemcpyAsync" | "cuMemsetD8Async" | "cuLaunchKernel" | "cuLaunchKernelEx"
                    if line.ends_with("= 0") =>
                {
                    busy.push(stream)
                }
                _ => {}
            }
        }
        !busy.is_empty()
    }

    /// How often a function was called.
    pub fn calls(&self, name: &str) -> usize {
        self.fake.log().iter().filter(|line| line.starts_with(&format!("{name}("))).count()
    }
}

/// The last argument of a call in the log.
pub fn stream_of(line: &str) -> &str {
    let arguments = line.rsplit_once(')').map_or("", |(call, _)| call);
    arguments.rsplit([',', '(']).next().unwrap_or("").trim()
}

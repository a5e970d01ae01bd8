//! A provider with a defect on request: the simulated accelerator of `plugins/sim`, correct unless its option `defect`
//! names one of `defects.toml` or `later.toml`. The first instance of a process decides.
//!
//! A defect replaces functions in the plugin's tables, or takes over what launches and streams do.

mod calls;
mod defects;
mod prepack;
mod registrations;
mod tables;

use defects::Defect;
use ep_core::provider::{Host, Options, Provider, Registrar};
use ep_core::{Error, Result};
use ep_sim::{Call, DeviceMemory, Hooks, Place, Shortcuts, SimDevice, SimProvider, Write};
use std::sync::OnceLock;

/// The option that names a defect.
const OPTION: &str = "defect";

static ACTIVE: OnceLock<&'static Defect> = OnceLock::new();

/// Switches a defect on; one that is not known is left to the options' check.
fn activate(id: &str) {
    let Some(defect) = defects::find(id) else { return };
    let active = ACTIVE.get_or_init(|| defect);
    if let Some(replace) = active.tables {
        tables::patch(replace);
    }
}

/// An instance of the provider.
struct Faulty(SimProvider);

// SAFETY: it breaks its promises on purpose; the kit alone loads it, in processes of their own.
unsafe impl Provider for Faulty {
    type Device = SimDevice;
    const NAME: &'static str = "ep-faulty";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "ep";

    fn create(_: Host, options: &Options) -> Result<Faulty> {
        options.only(&[&ep_sim::OPTIONS[..], &[OPTION]].concat())?;
        if let Some(id) = options.get(OPTION) {
            let defect = defects::find(id).ok_or_else(|| {
                Error::invalid(format!(
                    "option `{OPTION}` is `{id}`; tests/mutation/defects.toml and later.toml have the names"
                ))
            })?;
            let active = ACTIVE.get().map_or(defect.id, |active| active.id);
            if active != defect.id {
                return Err(Error::invalid(format!(
                    "option `{OPTION}` is `{id}`, and this process has `{active}`; use another process"
                )));
            }
        }
        let hooks = ACTIVE.get().map(|defect| Box::new(Defective(defect)) as Box<dyn Hooks>);
        SimProvider::new(options, hooks).map(Faulty)
    }

    fn device_count(&self) -> Result<u32> {
        self.0.device_count()
    }

    fn open_device(&self, index: u32) -> Result<SimDevice> {
        self.0.open_device(index)
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        ep_sim::register(registrar)
    }
}

/// What a defect makes of launches, places and streams.
struct Defective(&'static Defect);

impl Hooks for Defective {
    fn compute(&self, call: &mut Call, memory: &DeviceMemory<'_>) -> Result<Vec<Write>> {
        if self.0.ops.contains(&call.op) { (self.0.compute)(call, memory) } else { call.reference() }
    }

    fn place(&self, _: u64, alignment: u64) -> Place {
        Place { alignment, skew: defects::memory::skew() }
    }

    fn shortcuts(&self) -> Shortcuts {
        self.0.shortcuts
    }
}

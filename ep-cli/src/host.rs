//! From the command line to a loaded runtime.

use crate::failure::{Exit, Failure, no_device};
use ep_core::Code;
use ep_registry::config::Config;
use ep_registry::{Device, Runtime, Status};
use std::path::{Path, PathBuf};

/// A runtime and the config that it was made from.
pub struct Host {
    /// The runtime.
    pub runtime: Runtime,
    /// The config file.
    pub config: PathBuf,
}

/// Which config: the one named, else that of `EP_CONFIG`, else `./ep.toml`, else the user's and the system's.
pub fn find_config(explicit: Option<&Path>) -> Result<PathBuf, Failure> {
    match Config::find(explicit, true) {
        Ok(Some(path)) => {
            tracing::info!("config {}", path.display());
            Ok(path)
        }
        Ok(None) => Err(Failure::new(
            Exit::NoProvider,
            "there is no config: no --config, no EP_CONFIG, no ./ep.toml, none of the user or the system; write \
             one for the providers beside this program with `ep init`",
        )),
        Err(e) if e.code() == Code::NotFound => Err(Failure::new(Exit::NoProvider, e.message())),
        Err(e) => Err(e.into()),
    }
}

/// Whether a provider that the config requires may be missing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Required {
    /// It must load, as in any host.
    Obeyed,
    /// It need not: the command is there to show what is wrong with it.
    Ignored,
}

/// Whether a failure tells why each provider did not load.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reasons {
    /// It does.
    Told,
    /// Standard output has them.
    Shown,
}

impl Host {
    /// Loads what the config names, working or not.
    pub fn load(explicit: Option<&Path>, required: Required) -> Result<Host, Failure> {
        let path = find_config(explicit)?;
        let config = Config::from_file(&path)?;
        // Nothing but the config or this machine is at fault here: a provider that fails is a line of the report.
        let runtime =
            Runtime::builder().config(config).load().map_err(|e| Failure::from(e).with_config(&path))?;
        if required == Required::Obeyed {
            runtime
                .report()
                .check_required()
                .map_err(|e| Failure::new(Exit::NoProvider, e.message()).with_config(&path))?;
        }
        Ok(Host { runtime, config: path })
    }

    /// Loads what the config names; at least one provider works.
    pub fn load_working(explicit: Option<&Path>) -> Result<Host, Failure> {
        let host = Host::load(explicit, Required::Obeyed)?;
        if host.runtime.devices().is_empty() {
            return Err(host.nothing_loaded(Reasons::Told));
        }
        Ok(host)
    }

    /// [`Host::load_working`] for a command that does not show what happened to each provider: failures are
    /// logged.
    pub fn load_and_warn(explicit: Option<&Path>) -> Result<Host, Failure> {
        let host = Host::load_working(explicit)?;
        for e in &host.runtime.report().entries {
            match e.status {
                Status::Loaded => tracing::info!("{e}"),
                // As the config wants it, or the machine is.
                Status::Skipped | Status::Absent => {
                    tracing::info!("{}: {}: {}", e.instance, e.status, e.reason)
                }
                Status::Failed => tracing::warn!("{}: {}: {}", e.instance, e.status, e.reason),
            }
        }
        host.warn();
        Ok(host)
    }

    /// Logs what is probably wrong in the config.
    pub fn warn(&self) {
        self.runtime.report().warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    }

    /// The failure of a config from which nothing could be loaded; with the reasons, unless they are shown.
    pub fn nothing_loaded(&self, reasons: Reasons) -> Failure {
        let mut message = "no provider is loaded".to_owned();
        let entries = &self.runtime.report().entries;
        if entries.is_empty() {
            message.push_str(
                ": the config names none; add a [[provider]] with its `path`, or have `ep init --output OTHER.toml` \
                 write a config for the providers beside this program",
            );
        } else if reasons == Reasons::Shown {
            message.push_str("; standard output has the reason of each, and what mends it");
        }
        for entry in entries.iter().filter(|_| reasons == Reasons::Told) {
            message.push_str(&format!("\n  {}: {}: {}", entry.instance, entry.status, entry.reason));
        }
        Failure::new(Exit::NoProvider, message).with_config(&self.config)
    }

    /// The device of this name, else all.
    pub fn devices(&self, name: Option<&str>) -> Result<Vec<&Device>, Failure> {
        match name {
            Some(name) => match self.runtime.device(name) {
                Ok(device) => Ok(vec![device]),
                Err(e) => Err(no_device(&e).with_config(&self.config)),
            },
            None => Ok(self.runtime.devices().iter().collect()),
        }
    }
}

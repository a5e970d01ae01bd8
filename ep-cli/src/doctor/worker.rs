//! The process in which a provider is tried. It says what it is about to do, so that its end tells where it ended.

use super::checks;
use super::message::{Loaded, Message};
use crate::failure::{Exit, Failure};
use crate::host::find_config;
use clap::Args;
use ep_conformance::process::take_pipes;
use ep_conformance::protocol::send;
use ep_registry::config::{Config, ProviderConfig, Search};
use ep_registry::{Runtime, Status, Step};
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Tries one provider for `ep doctor`, which starts it
#[derive(Args)]
pub struct Worker {
    /// The instance's name
    provider: String,
}

/// The way to `ep doctor`.
pub struct Pipe(Mutex<File>);

impl Pipe {
    pub fn say(&self, message: &Message) {
        let mut pipe = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if send(&mut *pipe, message).is_err() {
            // Nobody is there to tell, or to try a provider for.
            std::process::exit(Exit::General as i32);
        }
    }

    pub fn begin(&self, step: &str, on: &str) {
        self.say(&Message::Begin { step: step.to_owned(), on: on.to_owned() });
    }
}

impl Worker {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>) -> Result<(), Failure> {
        let (_, output) = take_pipes()?;
        let pipe: &'static Pipe = Box::leak(Box::new(Pipe(Mutex::new(output))));
        if let Err(failure) = self.tried(config, pipe) {
            pipe.say(&Message::Failed(failure.message));
        }
        pipe.say(&Message::Ended);
        Ok(())
    }

    fn tried(&self, config: Option<&Path>, pipe: &'static Pipe) -> Result<(), Failure> {
        pipe.begin("config", "");
        let config = Config::from_file(&find_config(config)?)?;
        let found = super::discovered(&config).candidates.into_iter();
        let Some(settings) = found.map(|c| c.settings).find(|s| s.name == self.provider) else {
            return Err(Failure::general(format!("the config has no provider `{}` any more", self.provider)));
        };
        let runtime = Runtime::builder()
            .config(alone(config, settings))
            .watch(|_, step| {
                let on = if let Step::Open(index) = step { format!("device {index}") } else { String::new() };
                pipe.begin(&step.to_string(), &on);
            })
            .load()?;
        let loaded = loaded(&runtime);
        let works = runtime.report().with_status(Status::Loaded).count() > 0;
        pipe.say(&Message::Loaded(loaded));
        if works {
            for device in runtime.devices() {
                checks::device(&runtime, device, pipe);
            }
        }
        pipe.begin("end", "");
        drop(runtime);
        Ok(())
    }
}

/// The config with one provider in it and nothing else that is loaded.
fn alone(mut config: Config, settings: ProviderConfig) -> Config {
    // Rules are for other instances as well, which are not here; the ops of the rules are what can be judged.
    config.select.values_mut().for_each(|order| *order = vec![settings.name.clone()]);
    // `ep doctor` judges that.
    config.providers = vec![ProviderConfig { required: false, ..settings }];
    config.search = Search::default();
    config
}

fn loaded(runtime: &Runtime) -> Loaded {
    let report = runtime.report();
    let warnings = report.warnings.clone();
    report.entries.first().map_or_else(Loaded::default, |entry| Loaded {
        status: entry.status.to_string(),
        reason: entry.reason.clone(),
        provider: entry.provider.clone(),
        devices: entry.devices.clone(),
        warnings,
    })
}

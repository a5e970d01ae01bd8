//! What arrives at the host's `tracing` subscriber.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Its level.
    pub level: Level,
    /// Its target.
    pub target: String,
    /// The field `provider`: the instance's name, for what comes from a plugin.
    pub provider: String,
    /// The field `module`: where in the plugin it comes from.
    pub module: String,
    /// The message.
    pub message: String,
}

/// The events so far. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Logs {
    lines: Arc<Mutex<Vec<Line>>>,
}

impl Logs {
    /// Becomes the subscriber of this process, for events up to `level`. Once in a process.
    ///
    /// # Panics
    /// The second time.
    pub fn install(level: Level) -> Logs {
        let logs = Logs::default();
        let subscriber = Collector { logs: logs.clone(), level };
        tracing::subscriber::set_global_default(subscriber).expect("the first subscriber of this process");
        logs
    }

    /// The events so far.
    pub fn lines(&self) -> Vec<Line> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The events of a plugin's instance.
    pub fn of(&self, instance: &str) -> Vec<Line> {
        self.lines().into_iter().filter(|l| l.provider == instance).collect()
    }
}

struct Collector {
    logs: Logs,
    level: Level,
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let line = Line {
            level: *event.metadata().level(),
            target: event.metadata().target().to_owned(),
            provider: fields.provider,
            module: fields.module,
            message: fields.message,
        };
        self.logs.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Fields {
    provider: String,
    module: String,
    message: String,
}

impl Fields {
    fn slot(&mut self, field: &Field) -> Option<&mut String> {
        match field.name() {
            "provider" => Some(&mut self.provider),
            "module" => Some(&mut self.module),
            "message" => Some(&mut self.message),
            _ => None,
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if let Some(slot) = self.slot(field) {
            write!(slot, "{value:?}").expect("writing to a String cannot fail");
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if let Some(slot) = self.slot(field) {
            slot.push_str(value);
        }
    }
}

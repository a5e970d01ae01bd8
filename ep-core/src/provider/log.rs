//! The plugin's `tracing` events on their way to the host.
//!
//! A plugin has its own copy of `tracing`, which no host subscriber sees. When the first instance of a loaded
//! plugin starts, this copy gets a subscriber that formats each event and hands it to the host.

use super::Host;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, PoisonError, RwLock};
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

/// Hosts of live instances with their keys; messages go to the newest.
static HOSTS: RwLock<Vec<(u64, Host)>> = RwLock::new(Vec::new());
static INSTALL: Once = Once::new();
static SILENT: AtomicBool = AtomicBool::new(false);

/// While it lives, this library's events go to a host. Dropping it returns when no message is on its way there
/// any more.
pub(super) struct Attached {
    key: u64,
}

impl Attached {
    /// `key` is unique in this library.
    pub(super) fn new(key: u64, host: &Host) -> Attached {
        HOSTS.write().unwrap_or_else(PoisonError::into_inner).push((key, host.clone()));
        let attached = Attached { key };
        INSTALL.call_once(|| {
            // A provider that set a subscriber of its own keeps it.
            if tracing::subscriber::set_global_default(Bridge).is_err() {
                host.log(4, "ep", "the plugin has a tracing subscriber of its own; its events stay there");
            }
        });
        attached
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        HOSTS.write().unwrap_or_else(PoisonError::into_inner).retain(|(k, _)| *k != self.key);
    }
}

/// Ends all logging without a lock: in a forked child one may be held by a thread that is not there.
pub(super) fn silence() {
    SILENT.store(true, Ordering::Relaxed);
}

fn raw_level(level: &Level) -> u32 {
    match *level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

struct Bridge;

impl Subscriber for Bridge {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        if SILENT.load(Ordering::Relaxed) {
            return false;
        }
        let hosts = HOSTS.read().unwrap_or_else(PoisonError::into_inner);
        hosts.last().is_some_and(|(_, h)| h.log_enabled(raw_level(metadata.level())))
    }

    // The host's filter may change at any time, so nothing may be cached as "never".
    fn register_callsite(&self, _: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        tracing::subscriber::Interest::sometimes()
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let line = format!("{}{}", text.message, text.fields);
        // The lock is held during the call, so that dropping an `Attached` waits for it; the host calls nothing
        // back.
        let hosts = HOSTS.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, host)) = hosts.last() {
            host.log(raw_level(event.metadata().level()), event.metadata().target(), &line);
        }
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
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

//! What a runtime does for its providers: logs and threads.

use crate::pool::ThreadPool;
use ep_core::handle::HostSide;
use ep_core::parallel::Parallel;
use tracing::Level;

/// The host's side for one instance.
pub(crate) struct InstanceServices {
    pub(crate) instance: String,
    pub(crate) pool: ThreadPool,
}

/// Emits or asks at a level that is only known at run time; `tracing` wants it in the callsite.
macro_rules! at_level {
    ($level:expr, $mac:ident, $none:expr, $($args:tt)*) => {
        match $level {
            1 => tracing::$mac!(target: "ep::provider", Level::ERROR, $($args)*),
            2 => tracing::$mac!(target: "ep::provider", Level::WARN, $($args)*),
            3 => tracing::$mac!(target: "ep::provider", Level::INFO, $($args)*),
            4 => tracing::$mac!(target: "ep::provider", Level::DEBUG, $($args)*),
            5 => tracing::$mac!(target: "ep::provider", Level::TRACE, $($args)*),
            _ => $none,
        }
    };
}

impl HostSide for InstanceServices {
    fn log_enabled(&self, level: u32) -> bool {
        at_level!(level, enabled, false, { provider, module, message })
    }

    fn log(&self, level: u32, target: &str, message: &str) {
        at_level!(level, event, (), provider = self.instance, module = target, "{message}");
    }

    fn parallel(&self) -> &dyn Parallel {
        &self.pool
    }
}

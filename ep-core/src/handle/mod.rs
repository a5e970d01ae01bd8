//! What a host holds: owners of a plugin's objects.
//!
//! Each handle keeps alive what it came from and destroys its object when dropped, so objects go before their
//! device and devices before their provider, in whatever order a host lets go. Calls are thin: the tables
//! were copied and completed once, when the plugin was loaded. These are the raw half; `ep-registry` builds
//! the safe one on them.

mod conformance;
mod graph;
mod objects;
mod plugin;
mod prepack;
mod primitive;
mod provider;
mod services;

pub use conformance::{KnownLaunch, KnownOperand};
pub use graph::GraphHandle;
pub use objects::{AllocatorHandle, DeviceHandle, EventHandle, StreamHandle};
pub use plugin::Plugin;
pub use prepack::PackedHandle;
pub use primitive::PrimitiveHandle;
pub use provider::{FactoryHandle, ProviderHandle, Sink, Target};
pub use services::HostSide;

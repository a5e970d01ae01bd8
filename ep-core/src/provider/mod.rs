//! What a vendor implements, and how it becomes a plugin.
//!
//! A provider in Rust is four small types and their kernels:
//!
//! | trait | is | must |
//! |---|---|---|
//! | [`Provider`] | an instance, made from config | list devices, register factories |
//! | [`Device`] | an open device | make streams, events, allocators |
//! | [`Stream`] | a queue of work | keep order, be used by one thread at a time |
//! | [`Event`] | a point in that work | count as done until first recorded |
//! | [`Allocator`] | a source of memory | return addresses that kernels accept |
//! | [`Kernel`] | a primitive, ready to launch | be immutable |
//!
//! [`inline`] has ready-made device, stream, event and allocator for kernels that compute on the calling
//! thread with host memory, which leaves a provider and its kernels to write.
//! [`export_provider!`](crate::export_provider) makes the one exported symbol. The vendor's code sees checked,
//! typed arguments; errors and panics become statuses; no line of it touches the binary contract.
//!
//! # What may be relied on
//! - Descriptors and sizes have been checked, addresses are non-null and aligned where anything is accessed.
//! - A stream is never used by two threads at once. Everything else may be.
//! - Objects are destroyed before the device, devices before the provider.
//! - Whether the memory behind an address is really there and of that size is the caller's promise.

mod device;
mod export;
mod factory;
pub(crate) mod fork;
mod graph;
mod host;
pub mod inline;
mod interface;
mod log;
mod operand;
mod table;

pub use device::{
    Allocator, Attribute, CopyRequest, Device, DeviceInfo, Event, ForeignStreams, MemoryKind, MemoryStats,
    Stream, StreamOptions, Timing,
};
pub use export::query;
pub use factory::{Factory, Kernel, Packing, Registrar};
pub use graph::{EndRecording, Graph, Graphs, Updated};
pub use host::{Host, Options};
pub use interface::Interface;
pub use operand::{cells, slice, slice_mut};

use crate::Result;

/// The signature of the one symbol that a plugin exports.
pub type QueryFn =
    unsafe extern "C" fn(u32, u32, *mut *const crate::abi::EpPlugin) -> *const crate::abi::EpStatus;

/// What kernels are prepared for.
#[derive(Debug)]
pub enum WarmTarget<'a, D> {
    /// An open device.
    Device(&'a D),
    /// A kind of hardware by name, which need not be here.
    Named(&'a str),
}

/// How many groups of kernels, of one or more, a provider can prepare for a target; without an op: of all ops.
pub type WarmCount<P> = fn(&P, WarmTarget<'_, <P as Provider>::Device>, Option<&str>) -> Result<u64>;

/// Prepares one of them, by its number below the count; whether there was something to do.
pub type WarmPrepare<P> = fn(&P, WarmTarget<'_, <P as Provider>::Device>, Option<&str>, u64) -> Result<bool>;

/// Preparing kernels before their first use, of providers that compile them. Any thread, several at a time.
pub struct Warm<P: Provider> {
    /// How many there are.
    pub count: WarmCount<P>,
    /// Prepares one.
    pub prepare: WarmPrepare<P>,
}

/// A provider instance.
///
/// # Safety
/// Hosts give safe code memory and take it back by what a provider says, so what is not true there is undefined behaviour in
/// code without `unsafe`. The implementation promises, of all that it hands out:
///
/// - [`Allocator::alloc`] gives memory that is there until it is freed, of that size and alignment, and shared with no other
///   allocation; an address of a space that the host reads or writes (`host`, pinned spaces) is one of this process;
/// - [`Allocator::free_async`] frees no sooner than the stream's work so far is done;
/// - [`DeviceInfo::memory_space`], [`DeviceInfo::reads`] and [`DeviceInfo::writes`] name spaces whose addresses the device
///   does reach; equal names are one space in all of the process;
/// - [`DeviceInfo::inline`] is true only where all work is done when the call that queues it returns;
/// - work of a [`Stream`] is done in order, a stream or an [`Event`] is done no sooner than the work that it stands for, and
///   what a recorded graph does belongs to the stream that it is launched on;
/// - a stream that was dropped, and [`Stream::sync`], also where it fails, leave no work behind that uses memory;
/// - a [`Kernel`] and a copy read and write what their arguments name and nothing else, and bool is written as 0 or 1.
pub unsafe trait Provider: Send + Sync + Sized + 'static {
    /// Its devices.
    type Device: Device;
    /// The provider's id: lower-case letters, digits, `-`, `_`, `.`.
    const NAME: &'static str;
    /// Its own version.
    const VERSION: &'static str;
    /// Who made it.
    const VENDOR: &'static str = "";
    /// Whether its objects keep working in a forked child. If not, every call there says `Unavailable`.
    const FORK_SAFE: bool = false;
    /// Kernels that can be prepared before their first use, if there are any (`ep.warm`).
    const WARM: Option<Warm<Self>> = None;

    /// Starts an instance. `host` stays usable until the instance is dropped.
    ///
    /// # Errors
    /// Bad options (name the option and what is allowed), or a missing driver.
    fn create(host: Host, options: &Options) -> Result<Self>;

    /// How many devices there are.
    ///
    /// # Errors
    /// `Unavailable` with the reason when none can be used: no driver, no permission.
    fn device_count(&self) -> Result<u32>;

    /// Opens device `index`, below [`Provider::device_count`]. One that is open may be opened again, and says the same of
    /// itself.
    ///
    /// # Errors
    /// When it cannot be opened.
    fn open_device(&self, index: u32) -> Result<Self::Device>;

    /// Registers everything that the provider can do. May be called several times, each time for the same.
    ///
    /// # Errors
    /// Those of [`Registrar::add`].
    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()>;

    /// An optional interface by name and version.
    fn interface(&self, name: &str, version: u32) -> Option<Interface> {
        let _ = (name, version);
        None
    }
}

/// Makes a crate a plugin: defines the exported `ep_plugin_query` for a [`Provider`].
///
/// Put it in a crate of type `cdylib`, once. Does not compile with `panic = "abort"`, because panics could
/// not be turned into statuses then.
///
/// ```ignore
/// ep_core::export_provider!(my_crate::MyProvider);
/// ```
#[macro_export]
macro_rules! export_provider {
    ($provider:ty) => {
        #[cfg(panic = "abort")]
        compile_error!(
            "a provider cannot be built with panic = \"abort\": panics in it could not be reported to the host"
        );

        /// The plugin's entry point (docs/abi.md, rule 2).
        ///
        /// # Safety
        /// `out` is null or valid for a write.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn ep_plugin_query(
            host_major: u32,
            host_minor: u32,
            out: *mut *const $crate::abi::EpPlugin,
        ) -> *const $crate::abi::EpStatus {
            // SAFETY: as the caller promises.
            unsafe { $crate::provider::query::<$provider>(host_major, host_minor, out) }
        }

        $crate::__export_layout!();
    };
}

/// Exports the type layout for `abi_stable` hosts; nothing without the feature.
#[doc(hidden)]
#[macro_export]
#[cfg(not(feature = "abi_stable"))]
macro_rules! __export_layout {
    () => {};
}

/// Exports the type layout for `abi_stable` hosts.
#[doc(hidden)]
#[macro_export]
#[cfg(feature = "abi_stable")]
macro_rules! __export_layout {
    () => {
        /// The layout of the contract's types as this plugin was compiled with them.
        ///
        /// # Safety
        /// `out` is null or valid for a write.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn ep_plugin_layout(out: *mut $crate::abi::layout::PluginLayout) {
            // SAFETY: as the caller promises.
            unsafe { $crate::abi::layout::write_layout(out) }
        }
    };
}

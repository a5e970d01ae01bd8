//! The host side: from a config file to primitives running on devices.
//!
//! ```text
//! config -> discovery -> trust, ELF check -> library -> plugin (ep_core::handle) -> devices, registry
//!                                                                |
//! request (typed or by name) -> selection -> primitive -> launch on a stream with buffers
//! ```
//!
//! Start at [`Runtime`]. One bad provider does not stop the others: [`Runtime::report`] tells what happened
//! to each, [`Runtime::query`] what is there, [`Runtime::explain`] why a request gets what it gets.
//!
//! # Safe and raw
//! [`Primitive::launch`] takes [`Buffer`]s and checks everything; safe code can neither free, reuse nor read
//! memory that a stream still works on. [`Primitive::launch_raw`] takes addresses. Both assume that providers
//! keep the contract: loading one is trusting its code.

mod buffer;
mod cache;
pub mod config;
mod device;
pub mod discovery;
mod document;
mod dynamic;
pub mod elf_check;
mod elf_image;
mod event;
mod graph;
pub mod library;
mod loading;
pub mod manifest;
mod mapped;
mod memory;
mod mismatch;
#[cfg(doctest)]
mod misuse;
mod names;
mod nearest;
mod orphans;
mod owned;
mod platform;
pub mod pool;
mod prepack;
mod primitive;
pub mod query;
pub mod registry;
pub mod report;
pub mod rows;
mod rules;
mod runtime;
pub mod select;
mod services;
mod shared;
mod step;
mod stream;
mod terms;
mod transfer;
pub mod trust;

pub use buffer::{Buffer, InPlace, NoMemory, Read, View, ViewMut};
pub use device::{Device, Member};
pub use dynamic::{DynArgs, DynPrimitive, Request};
pub use event::Event;
pub use graph::{Graph, Updated};
pub use prepack::{Packed, Unwritten};
pub use primitive::{Cost, Primitive};
pub use report::{LoadReport, Status};
pub use runtime::{Builder, Runtime};
pub use step::Step;
pub use stream::Stream;
pub use transfer::{MapRead, MapWrite};

/// The snippets of `docs/hosting.md`, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../docs/hosting.md")]
pub struct HostingGuide;

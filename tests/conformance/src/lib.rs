//! The conformance kit: generated cases of every primitive, checks of the binary contract and of a device's objects,
//! and what runs and reports them for a plugin's file.
//!
//! A [`Key`] is what a provider claims: an op with selectors and dtypes. [`cases`] makes launches of it: for each
//! trait that applies (empty, odd, several tiles, rank 8, in place, broadcast, strided, non-finite values, ...)
//! at least one, with random content from a seed. [`Rig`] launches a case on memory with guard zones or between
//! inaccessible pages, with poisoned outputs, and compares all of it: what is written with the reference within
//! [`tolerance`], and what is not with what it was.
//!
//! [`runner::run`] has worker processes ([`worker`]) run everything for a provider, so that a crash or a hang is a
//! failed case; [`summary`] is what came of it.

mod abi;
pub mod case;
pub mod expect;
pub mod geometry;
mod keys;
pub mod memory;
mod objects;
pub mod onnx;
pub mod plan;
pub mod predicates;
pub mod process;
pub mod protocol;
mod refusals;
pub mod report;
pub mod rig;
pub mod runner;
pub mod shapes;
pub mod summary;
pub mod support;
pub mod tolerance;
pub mod traits;
mod trial;
#[cfg(test)]
mod unusual;
pub mod values;
mod vendor;
mod verdict;
pub mod worker;

pub use case::{Case, Content, Key};
pub use keys::near_limits;
pub use memory::{Arena, Edge};
pub use refusals::refusal_cases;
pub use rig::{Outcome, Rig, Speed};
pub use shapes::cases;
pub use vendor::vendor_cases;

//! Generated cases of every primitive, and their check against the references of `primitives::reference`.
//!
//! A [`Key`] is what a provider claims: an op with selectors and dtypes. [`cases`] makes launches of it: for each
//! trait that applies (empty, odd, several tiles, rank 8, in place, broadcast, strided, non-finite values, ...)
//! at least one, with random content from a seed. [`Rig::run`] launches a case on memory that ends, or starts, at
//! an inaccessible page, with poisoned outputs, and compares all of it: what is written with the reference within
//! [`tolerance`], and what is not with what it was.
//!
//! The memory is the host's, so the device must be one that computes on host memory.

pub mod case;
pub mod geometry;
pub mod memory;
pub mod predicates;
pub mod rig;
pub mod shapes;
pub mod tolerance;
pub mod traits;
pub mod values;

pub use case::{Case, Content, Key};
pub use memory::{Arena, Edge};
pub use rig::{Outcome, Rig};
pub use shapes::cases;

//! The execution-provider contract: what a host and a provider agree on, and nothing else.
//!
//! A *provider* is a shared library that drives some hardware: it has devices, streams, events, memory, and
//! *primitives*, which are kernels for well-defined operations. A *host* is a program that loads providers at
//! run time and launches primitives without knowing the hardware. This crate is what both sides are compiled
//! with; a C provider uses `include/ep_plugin.h`, generated from the same description.
//!
//! ```text
//! host program                                     provider (.so)
//! ------------                                     --------------
//! ep-registry: config, selection, buffers          kernels
//!      |                                               |
//! handle: owners of a plugin's objects             provider: traits, export_provider!
//!      |                                               |
//!      +-------------- abi: tables, structs -----------+
//!                  (plain C, the only fixed layout)
//! ```
//!
//! # Where to start
//!
//! | to | read |
//! |---|---|
//! | write a provider in Rust | [`provider`], then [`export_provider!`] |
//! | write a provider in C | the head of `include/ep_plugin.h`, and `docs/writing-a-provider.md` |
//! | load providers and launch primitives | the crate `ep-registry`; this crate's [`handle`] is its raw half |
//! | see what an op computes | [`primitive`], or `docs/primitives.md` |
//! | say which requests a kernel accepts | [`hob`] |
//! | work with ops that are unknown at compile time | [`schema`] |
//! | change the binary contract | `abi/` in this crate's folder, `docs/abi.md`, then `cargo xtask gen` |
//!
//! # An op is data
//! Each op is described once, in `abi/ops/`: its *selectors* (which function), *dtypes* by role, *attributes*,
//! *limits*, launch arguments, operands with their sizes, and its contract in words. From that come the typed
//! structs here (a *descriptor* fixed when a primitive is made, *arguments* that change per launch), the same
//! structs for C, the [`schema::Schema`] for code that meets the op by name, and the checks made before a
//! launch. A vendor's own op arrives with a schema of the same form.
//!
//! # A condition is data
//! A provider registers *factories*: an op, rows of selector values and dtypes, and optionally a predicate.
//! Predicates are expressions, not callbacks, so a host can evaluate, print and check them, and say which
//! clause refused a request:
//!
//! ```
//! use ep_core::{DType, hob};
//! let when = hob::dtype("src").is_in([DType::F16, DType::BF16]) & hob::limit("cols").le(1024);
//! assert_eq!(when.to_string(), r#"dtype("src") in [f16, bf16] & limit("cols") <= 1024"#);
//! ```
//!
//! # Rules that hold everywhere
//! - An address of device memory is a `u64`, meaningful only together with its memory space.
//! - Sizes of a launch are `i64`, never negative; a size of 0 is legal.
//! - Functions of the contract return a status, null for success; here that is [`Result`], with a [`Code`] to
//!   branch on and a message that says what was asked, what was found and what to do.
//! - No panic crosses the boundary, in either direction.
//! - A stream is used by one thread at a time; everything else by any thread at any time.

pub mod abi;
pub mod dtype;
pub mod error;
pub mod handle;
pub mod hob;
pub mod op;
pub mod parallel;
pub mod primitive;
pub mod provider;
mod scalar;
pub mod schema;

pub use dtype::{Complex, DType, Element};
pub use error::{Code, Error, Result};
pub use scalar::Scalar;

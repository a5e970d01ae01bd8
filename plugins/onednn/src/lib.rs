//! Matrix products and layer norm of the CPU by oneDNN, beside a provider that has the rest.
//!
//! oneDNN is opened at run time, so the provider builds and loads anywhere; a machine without it gets a provider
//! without a device that says why. `docs/onednn.md` is the guide for users.
//!
//! Two things of the library do not fit the contract, and decide how this provider is built:
//!
//! - Its primitives are compiled for one shape. Ours are for any, so each keeps a compiled one for each shape that it
//!   has met (`compiled.rs`), up to a number.
//! - It starts threads of its own. The host's are the ones to compute on, so a launch is split here
//!   (`ops/split.rs`), and each part is a primitive for one thread, that OpenMP is told of before it runs
//!   (`library.rs`). A build for TBB cannot be told, and the provider warns of it; one for SYCL
//!   is refused.
//!
//! What is registered depends on the library and the CPU: every combination is tried when an instance is made, and only
//! those that oneDNN has better than a plain loop for are claimed (`ops/mod.rs`).
//!
//! | option | default | meaning |
//! |---|---|---|
//! | `library` | [`LIBRARY_ENV`], else searched for | file of `libdnnl.so.3`, or the folder that holds it |

mod compiled;
mod device;
mod engine;
mod library;
mod ops;
mod provider;

pub use device::OnednnDevice;
pub use engine::Engine;
pub use library::{LIBRARY_ENV, Library};
pub use provider::OnednnProvider;

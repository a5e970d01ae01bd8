//! The binary contract: everything here has a fixed layout, and nothing outside does.
//!
//! `types`, `tables` and `fingerprints` are generated from `ep-core/abi/` (`cargo xtask gen`), as is
//! `include/ep_plugin.h`. This file has what all of them share: reading a peer's growable struct without
//! trusting it, statuses, and comparing fingerprints. `docs/abi.md` has the rules by number.

mod fingerprint;
mod fingerprints;
#[cfg(feature = "abi_stable")]
pub mod layout;
mod read;
mod status;
mod tables;
mod types;

pub use fingerprint::{Mismatch, compare};
pub use fingerprints::*;
#[cfg(feature = "abi_stable")]
pub use layout::{TypeLayout, explain, plugin_layout};
pub use read::{
    Growable, borrow_struct, list, missing_entry, read_struct, read_table, str_of, string_of, write_struct,
};
pub use status::{finish, missing_status, report, take};
pub use tables::*;
pub use types::*;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the contract is defined for 64-bit targets");

/// An [`EpStr`] of static text.
pub const fn text(s: &'static str) -> EpStr {
    EpStr { ptr: s.as_ptr().cast(), len: s.len() as u64 }
}

impl EpStr {
    /// Borrows `s`; valid as long as `s` is.
    pub const fn new(s: &str) -> EpStr {
        EpStr { ptr: s.as_ptr().cast(), len: s.len() as u64 }
    }
}

/// A postfix node that names something.
pub const fn node(op: u32, name: &'static str) -> EpExprNode {
    EpExprNode { op, count: 0, value: EpScalar::ZERO, text: text(name) }
}

/// A postfix node with an integer constant.
pub const fn node_const(n: i64) -> EpExprNode {
    let value = EpScalar { kind: EP_SCALAR_I64, reserved: 0, re: n as u64, im: 0 };
    EpExprNode { op: EP_EXPR_CONST, count: 0, value, text: EpStr::ZERO }
}

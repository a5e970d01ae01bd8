//! Optional interfaces that a provider brings beyond those with a trait of their own.

use crate::abi::EpInterface;

/// A static table of functions that [`Provider::interface`](super::Provider::interface) and its like hand to the host.
#[derive(Clone, Copy, Debug)]
pub struct Interface(*const EpInterface);

impl Interface {
    /// The interface with this table: one of [`crate::abi`], such as [`crate::abi::EpConformanceInterface`], or a vendor's
    /// own.
    ///
    /// # Safety
    /// The host follows the table's pointers and calls its functions. `T` is `repr(C)` and begins as [`EpInterface`]; in
    /// `table`, `struct_size` is at most the size of `T`, and `info` points to a description that lives as long as the
    /// table. What follows is what the interface of the name and version that it is handed out under has.
    ///
    /// ```compile_fail,E0133
    /// use ep_core::abi::EpInterface;
    /// use ep_core::provider::Interface;
    ///
    /// const TABLE: &EpInterface = &EpInterface::EMPTY;
    /// let interface = Interface::new(TABLE);
    /// ```
    pub const unsafe fn new<T>(table: &'static T) -> Interface {
        Interface(std::ptr::from_ref(table).cast())
    }

    /// For the host; null where there is none.
    pub(super) fn raw(found: Option<Interface>) -> *const EpInterface {
        found.map_or(std::ptr::null(), |interface| interface.0)
    }
}

//! A primitive.

use super::objects::{DeviceHandle, StreamHandle};
use super::provider::FactoryHandle;
use crate::abi::*;
use crate::{Error, Result};
use std::ffi::c_void;
use std::sync::Arc;

/// A kernel, ready to launch.
pub struct PrimitiveHandle {
    launch: LaunchFn,
    raw: *mut EpPrimitive,
    table: PrimitiveTable,
    factory: Arc<FactoryHandle>,
    device: Arc<DeviceHandle>,
}

type LaunchFn = unsafe extern "C" fn(*mut EpPrimitive, *mut EpStream, *const c_void) -> *const EpStatus;

// SAFETY: primitives are immutable and may be launched from any thread (rule 11).
unsafe impl Send for PrimitiveHandle {}
// SAFETY: as above.
unsafe impl Sync for PrimitiveHandle {}

impl Drop for PrimitiveHandle {
    fn drop(&mut self) {
        // SAFETY: made by the factory, destroyed once, before its device and provider.
        unsafe { (self.table.destroy)(self.raw) }
    }
}

impl std::fmt::Debug for PrimitiveHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PrimitiveHandle({:?})", self.factory)
    }
}

impl PrimitiveHandle {
    /// # Safety
    /// `raw` was just made by `factory` for `device`, and `table` is its table.
    pub(super) unsafe fn new(
        factory: Arc<FactoryHandle>,
        device: Arc<DeviceHandle>,
        raw: *mut EpPrimitive,
        table: PrimitiveTable,
    ) -> Result<PrimitiveHandle> {
        if raw.is_null() {
            return Err(Error::internal(format!("{factory:?} reported success and no primitive")));
        }
        Ok(PrimitiveHandle { launch: table.launch, raw, table, factory, device })
    }

    /// The factory that made it.
    pub fn factory(&self) -> &Arc<FactoryHandle> {
        &self.factory
    }

    pub(super) fn raw(&self) -> *mut EpPrimitive {
        self.raw
    }

    /// The device it is for.
    pub fn device(&self) -> &Arc<DeviceHandle> {
        &self.device
    }

    /// What the provider chose, for people; may be empty.
    pub fn describe(&self) -> String {
        let mut out = EpStr::ZERO;
        if !self.table.has_describe {
            return String::new();
        }
        // SAFETY: a live primitive; the text lives as long as it.
        unsafe { take((self.table.describe)(self.raw, &mut out)).map_or(String::new(), |()| string_of(out)) }
    }

    /// Queues a launch.
    ///
    /// # Errors
    /// The provider's.
    ///
    /// # Safety
    /// - `args` is an argument struct of the op; its dims pointers are readable during the call.
    /// - `stream` is of this primitive's provider and device, and no other thread uses it now.
    /// - The memory that the op touches for these arguments is valid until the work is done, and nobody else
    ///   writes what it reads or touches what it writes in that time.
    /// - `workspace` in `args`, where it is not 0, is `workspace_bytes` of memory of the device, and nobody else uses it in
    ///   that time.
    #[inline]
    pub unsafe fn launch(&self, stream: &StreamHandle, args: *const c_void) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { take((self.launch)(self.raw, stream.raw(), args)) }
    }

    /// Bytes of workspace that a launch wants; 0 where the provider does not say.
    ///
    /// # Errors
    /// The provider's.
    ///
    /// # Safety
    /// `args` is an argument struct of the op; its dims pointers are readable during the call.
    pub unsafe fn workspace_size(&self, args: *const c_void) -> Result<u64> {
        let mut bytes = 0;
        if self.table.has_workspace_size {
            // SAFETY: as the caller promises.
            unsafe { take((self.table.workspace_size)(self.raw, args, &mut bytes)) }?;
        }
        Ok(bytes)
    }
}

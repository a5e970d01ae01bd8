//! Operands in the form that a primitive reads fastest.

use super::objects::{DeviceHandle, StreamHandle, not_null};
use super::primitive::PrimitiveHandle;
use crate::abi::*;
use crate::{Error, Result};
use std::ffi::c_void;
use std::sync::Arc;

/// What an operand was packed into, by a primitive that outlives this. The memory is the caller's.
pub struct PackedHandle {
    raw: *mut EpPacked,
    table: PrepackInterface,
    device: Arc<DeviceHandle>,
}

// SAFETY: immutable, and usable from any thread (table EpPrepackInterface).
unsafe impl Send for PackedHandle {}
// SAFETY: as above.
unsafe impl Sync for PackedHandle {}

impl Drop for PackedHandle {
    fn drop(&mut self) {
        // SAFETY: made by `pack`, destroyed once, before its primitive as `PrimitiveHandle::pack` asks for.
        unsafe { (self.table.destroy)(self.raw) }
    }
}

impl std::fmt::Debug for PackedHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackedHandle({:p} of {:?})", self.raw, self.device)
    }
}

impl PrimitiveHandle {
    /// Bytes of the packed form of an operand, numbered as in the op's schema; 0 where nothing is gained by packing it.
    ///
    /// # Errors
    /// The provider's, for arguments that cannot be launched.
    ///
    /// # Safety
    /// `args` is an argument struct of the op; its dims pointers are readable during the call.
    pub unsafe fn packed_size(&self, operand: usize, args: *const c_void) -> Result<u64> {
        let mut bytes = 0;
        if let (Some(table), Ok(operand)) = (self.device().prepack(), operand.try_into()) {
            // SAFETY: a live primitive; the rest as the caller promises.
            unsafe { take((table.size)(self.raw(), operand, args, &mut bytes)) }?;
        }
        Ok(bytes)
    }

    /// Queues packing an operand, at its address in `args`, into memory at `address`, a multiple of 64.
    ///
    /// # Errors
    /// `Unsupported` where [`PrimitiveHandle::packed_size`] says 0; else the provider's.
    ///
    /// # Safety
    /// - `args` is an argument struct of the op; its dims pointers are readable during the call.
    /// - `stream` is of this primitive's provider and device, and no other thread uses it now.
    /// - The operand is readable until the work is done. At `address` there are as many bytes as
    ///   [`PrimitiveHandle::packed_size`] says, of memory that the device reads and writes; nobody else touches them until
    ///   the work is done, or writes them until the last launch with what was packed is.
    /// - What is returned is dropped before this primitive.
    pub unsafe fn pack(
        &self,
        stream: &StreamHandle,
        operand: usize,
        args: *const c_void,
        address: u64,
    ) -> Result<PackedHandle> {
        let device = self.device();
        let table = device.prepack().ok_or_else(|| Error::unsupported("this device offers no ep.prepack"))?;
        let operand = operand
            .try_into()
            .map_err(|_| Error::invalid(format!("operand {operand}: no op has so many operands")))?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a live primitive and stream, a valid out-pointer; the rest as the caller promises.
        unsafe { take((table.pack)(self.raw(), stream.raw(), operand, args, address, &mut raw)) }?;
        Ok(PackedHandle { raw: not_null(raw, "packed operand")?, table, device: device.clone() })
    }
}

impl PackedHandle {
    /// Queues a launch of the primitive that packed the operand, which is read where it was packed; its address in `args`
    /// means nothing.
    ///
    /// # Errors
    /// `InvalidArgument` where the operand has another shape than it was packed in; else the provider's.
    ///
    /// # Safety
    /// As [`PrimitiveHandle::launch`], for the other operands. The packing comes before this on `stream`, or is done.
    #[inline]
    pub unsafe fn launch(&self, stream: &StreamHandle, args: *const c_void) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { take((self.table.launch)(self.raw, stream.raw(), args)) }
    }
}

//! Tensors as DLPack hands them over: the part of its C structs (version 0) that is used.

use ep_core::{DType, Error, Result};
use ep_registry::{Buffer, Device};
use std::ffi::c_void;

/// `kDLCUDA`
const CUDA: i32 = 2;

/// `DLTensor`
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    rank: i32,
    type_code: u8,
    type_bits: u8,
    type_lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// `DLManagedTensor`
#[repr(C)]
pub struct Managed {
    tensor: Tensor,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// A tensor that is given back when this is dropped.
struct Owned(*mut Managed);

// SAFETY: whoever makes a managed tensor allows its deleter to be called on any thread.
unsafe impl Send for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: live, and given back once.
        unsafe {
            if let Some(deleter) = (*self.0).deleter {
                deleter(self.0);
            }
        }
    }
}

/// A tensor's memory as a buffer, and its shape. The buffer holds on to the tensor until no work uses it.
///
/// # Errors
/// `Unsupported` for a tensor that is not dense, not on a CUDA device or of another dtype than f32, f16 and bf16; it is
/// given back then too.
///
/// # Safety
/// `managed` is a tensor that the caller owns and hands over. While work is queued on the buffer nobody else writes the
/// tensor, nor touches it if that work writes it.
pub unsafe fn import(device: &Device, managed: *mut Managed) -> Result<(Buffer, Vec<i64>)> {
    let owned = Owned(managed);
    // SAFETY: live, as the caller promises.
    let tensor = unsafe { &(*owned.0).tensor };
    let dtype = match (tensor.type_code, tensor.type_bits, tensor.type_lanes) {
        (2, 32, 1) => DType::F32,
        (2, 16, 1) => DType::F16,
        (4, 16, 1) => DType::BF16,
        other => {
            return Err(Error::unsupported(format!(
                "a tensor of DLPack's dtype {other:?}; use f32, f16 or bf16"
            )));
        }
    };
    if tensor.device_type != CUDA {
        return Err(Error::unsupported("a tensor that is not on a CUDA device; use .cuda()"));
    }
    let rank = tensor.rank as usize;
    // SAFETY: as many numbers as the rank says.
    let shape = unsafe { std::slice::from_raw_parts(tensor.shape, rank) }.to_vec();
    // SAFETY: likewise, where there are any.
    let strides =
        (!tensor.strides.is_null()).then(|| unsafe { std::slice::from_raw_parts(tensor.strides, rank) });
    let mut dense = 1;
    for i in (0..rank).rev() {
        if strides.is_some_and(|s| shape[i] != 1 && s[i] != dense) {
            return Err(Error::unsupported("a tensor with gaps or turned dimensions; use .contiguous()"));
        }
        dense *= shape[i];
    }
    let address = tensor.data.expose_provenance() as u64 + tensor.byte_offset;
    let bytes = dense as u64 * dtype.bytes_for_bounds();
    let space = device.info().memory_space.clone();
    // SAFETY: the tensor's memory is valid until `owned` is dropped; the rest is the caller's promise.
    let buffer = unsafe { Buffer::import(device, &space, address, bytes, dtype, move || drop(owned)) }?;
    Ok((buffer, shape))
}

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
pub struct Owned(*mut Managed);

// SAFETY: whoever makes a managed tensor allows its deleter to be called on any thread.
unsafe impl Send for Owned {}

impl Owned {
    /// Takes a tensor over.
    ///
    /// # Safety
    /// `managed` is a tensor that the caller owns and hands over.
    pub unsafe fn new(managed: *mut Managed) -> Owned {
        Owned(managed)
    }

    fn tensor(&self) -> &Tensor {
        // SAFETY: live until it is given back.
        unsafe { &(*self.0).tensor }
    }
}

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

/// The numbers of a list, which is null where there are none.
///
/// # Safety
/// As many as the rank says are readable, unless the pointer is null.
unsafe fn numbers<'a>(list: *const i64, rank: usize) -> Option<&'a [i64]> {
    match rank {
        0 => Some(&[]),
        _ if list.is_null() => None,
        // SAFETY: as the caller promises.
        _ => Some(unsafe { std::slice::from_raw_parts(list, rank) }),
    }
}

/// A tensor's memory as a buffer, and its shape. The buffer holds on to the tensor until no work uses it. `ordinal` is the
/// device's number among those of CUDA.
///
/// # Errors
/// `Unsupported` for a tensor that is not dense, not on that CUDA device or of another dtype than f32, f16 and bf16;
/// `InvalidArgument` for one without a shape. It is given back then too.
///
/// # Safety
/// While work is queued on the buffer nobody else writes the tensor, nor touches it if that work writes it.
pub unsafe fn import(device: &Device, ordinal: i32, owned: Owned) -> Result<(Buffer, Vec<i64>)> {
    let tensor = owned.tensor();
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
    if tensor.device_id != ordinal {
        return Err(Error::unsupported(format!(
            "a tensor on CUDA device {}, and the work is done on {ordinal}; use .to(\"cuda:{ordinal}\")",
            tensor.device_id
        )));
    }
    let no_shape = || Error::invalid(format!("a tensor of rank {} without a shape", tensor.rank));
    let rank = usize::try_from(tensor.rank).map_err(|_| no_shape())?;
    // SAFETY: the tensor's, with as many numbers as its rank says.
    let (shape, strides) = unsafe { (numbers(tensor.shape, rank), numbers(tensor.strides, rank)) };
    let shape = shape.ok_or_else(no_shape)?.to_vec();
    // Of nothing, strides say nothing, and the address may be null.
    let empty = shape.contains(&0);
    let mut dense = 1;
    for i in (0..rank).rev() {
        if !empty && strides.is_some_and(|s| shape[i] != 1 && s[i] != dense) {
            return Err(Error::unsupported("a tensor with gaps or turned dimensions; use .contiguous()"));
        }
        dense *= shape[i];
    }
    let start = if empty { std::ptr::dangling_mut() } else { tensor.data };
    let address = start.expose_provenance() as u64 + tensor.byte_offset;
    let bytes = dense as u64 * dtype.bytes_for_bounds();
    let space = device.info().memory_space.clone();
    // SAFETY: the tensor's memory is valid until `owned` is dropped; the rest is the caller's promise.
    let buffer = unsafe { Buffer::import(device, &space, address, bytes, dtype, move || drop(owned)) }?;
    Ok((buffer, shape))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;
    use ep_core::provider::inline::HostDevice;
    use ep_core::provider::{Host, Options, Provider, Registrar};
    use ep_registry::Runtime;

    /// A device on host memory stands for the GPU.
    struct Memory;

    // SAFETY: memory is there until it is freed, work is done in order, and kernels stay in their operands.
    unsafe impl Provider for Memory {
        type Device = HostDevice;
        const NAME: &'static str = "memory";
        const VERSION: &'static str = "1";

        fn create(_: Host, _: &Options) -> Result<Memory> {
            Ok(Memory)
        }

        fn device_count(&self) -> Result<u32> {
            Ok(1)
        }

        fn open_device(&self, _: u32) -> Result<HostDevice> {
            Ok(HostDevice::default())
        }

        fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
            registrar.device_kind("cpu");
            Ok(())
        }
    }

    static DATA: [f32; 6] = [1.0; 6];

    fn tensor(device_id: i32, rank: i32, shape: *const i64) -> Tensor {
        Tensor {
            data: std::ptr::from_ref(&DATA).cast_mut().cast(),
            device_type: CUDA,
            device_id,
            rank,
            type_code: 2,
            type_bits: 32,
            type_lanes: 1,
            shape,
            strides: std::ptr::null(),
            byte_offset: 0,
        }
    }

    unsafe extern "C" fn count(managed: *mut Managed) {
        // SAFETY: of `managed_by`, whose tensors live as long as the number of those that were given back.
        unsafe { *(*managed).manager.cast::<u32>() += 1 };
    }

    fn managed_by(given_back: &mut u32, tensor: Tensor) -> Managed {
        Managed { tensor, manager: std::ptr::from_mut(given_back).cast(), deleter: Some(count) }
    }

    #[test]
    fn tensors_are_checked_and_given_back() {
        let runtime = Runtime::builder().threads(1).linked::<Memory>("memory").build().unwrap();
        let device = &runtime.devices()[0];
        let imported = |tensor: Tensor| {
            let mut given_back = 0;
            let mut managed = managed_by(&mut given_back, tensor);
            // SAFETY: live memory that nothing writes, until the buffer is dropped.
            let imported = unsafe { import(device, 0, Owned::new(&raw mut managed)) };
            let found = imported.map(|(buffer, shape)| (buffer.len(), shape)).map_err(|e| e.code());
            assert_eq!(given_back, 1, "{found:?}");
            found
        };
        let (shape, null) = ([2, 3], std::ptr::null());
        assert_eq!(imported(tensor(0, 2, shape.as_ptr())), Ok((6, vec![2, 3])));
        assert_eq!(imported(tensor(0, 0, null)), Ok((1, vec![])));
        // As PyTorch has tensors without elements: strides that go on from a size of 1, and no memory.
        let (nothing, strides) = ([3, 0], [1, 1]);
        let none = Tensor { data: std::ptr::null_mut(), ..tensor(0, 2, nothing.as_ptr()) };
        assert_eq!(imported(Tensor { strides: strides.as_ptr(), ..none }), Ok((0, vec![3, 0])));
        let turned = Tensor { strides: strides.as_ptr(), ..tensor(0, 2, shape.as_ptr()) };
        assert_eq!(imported(turned), Err(Code::Unsupported));
        assert_eq!(imported(tensor(1, 2, shape.as_ptr())), Err(Code::Unsupported));
        assert_eq!(imported(tensor(0, 2, null)), Err(Code::InvalidArgument));
        assert_eq!(imported(tensor(0, -1, null)), Err(Code::InvalidArgument));
        let other = Tensor { device_type: 1, ..tensor(0, 2, shape.as_ptr()) };
        assert_eq!(imported(other), Err(Code::Unsupported));
    }

    #[test]
    fn tensors_are_given_back_where_there_is_no_gpu() {
        let runtime = Runtime::builder().threads(1).linked::<Memory>("memory").build().unwrap();
        let mut session = crate::Session { runtime, streams: Default::default() };
        let shape = [2, 3];
        let mut counts = [0; 2];
        let [mut src, mut dst] = counts.each_mut().map(|n| managed_by(n, tensor(0, 2, shape.as_ptr())));
        // SAFETY: a live session and tensors; no stream is reached.
        let error = unsafe { crate::ep_pytorch_softmax(&raw mut session, &raw mut src, &raw mut dst, 0) };
        assert!(!error.is_null());
        // SAFETY: the error's text, freed once.
        unsafe { crate::ep_pytorch_free(error) };
        assert_eq!(counts, [1, 1]);
    }
}

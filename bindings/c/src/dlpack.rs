//! Tensors as DLPack hands them over: the C structs of its version 0, which every library takes.

use crate::given::{made, made_handle, object};
use crate::session::Session;
use crate::tensor::Tensor;
use ep_core::abi::EpStatus;
use ep_core::provider::Attribute;
use ep_core::provider::inline::is_host;
use ep_core::{DType, Error, Result, Scalar};
use ep_ops::Tensor as Strided;
use ep_registry::{Buffer, Device};
use std::ffi::c_void;

/// `kDLCPU`
const CPU: i32 = 1;
/// `kDLCUDA`
const CUDA: i32 = 2;

/// DLPack's code, bits and name of the dtypes that both have; there is one element to each.
const DTYPES: [(u8, u8, DType); 15] = [
    (6, 8, DType::BOOL),
    (0, 8, DType::I8),
    (1, 8, DType::U8),
    (0, 16, DType::I16),
    (1, 16, DType::U16),
    (0, 32, DType::I32),
    (1, 32, DType::U32),
    (0, 64, DType::I64),
    (1, 64, DType::U64),
    (2, 16, DType::F16),
    (4, 16, DType::BF16),
    (2, 32, DType::F32),
    (2, 64, DType::F64),
    (5, 64, DType::COMPLEX64),
    (5, 128, DType::COMPLEX128),
];

/// DLPack's `DLTensor`.
#[repr(C)]
struct DLTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    type_code: u8,
    type_bits: u8,
    type_lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// DLPack's `DLManagedTensor`, of `dlpack.h`.
#[repr(C)]
pub struct DLManagedTensor {
    tensor: DLTensor,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// A tensor of another library, which is given back when this is dropped.
struct Taken(*mut DLManagedTensor);

// SAFETY: whoever makes a managed tensor allows its deleter to be called on any thread.
unsafe impl Send for Taken {}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: live, and given back once.
        unsafe {
            if let Some(deleter) = (*self.0).deleter {
                deleter(self.0);
            }
        }
    }
}

/// Which device DLPack means by a device of ours: the host's memory, or CUDA's by its number.
fn place(device: &Device) -> Result<(i32, i32)> {
    let info = device.info();
    if is_host(&info.memory_space) {
        return Ok((CPU, 0));
    }
    let ordinal = info.attributes.iter().find(|(name, _)| name == "cuda_ordinal").map(|(_, value)| value);
    match ordinal {
        Some(Attribute::Scalar(Scalar::I64(n))) => i32::try_from(*n).ok(),
        Some(Attribute::Scalar(Scalar::U64(n))) => i32::try_from(*n).ok(),
        _ => None,
    }
    .map(|ordinal| (CUDA, ordinal))
    .ok_or_else(|| {
        Error::unsupported(format!(
            "DLPack has no number for memory of {}; copy through the host, with ep_tensor_to_bytes and ep_tensor_from_bytes",
            device.name()
        ))
    })
}

/// A tensor that shares the memory of one of another library, which is handed over: it is given back when neither a tensor nor
/// queued work uses it any more, and also where this fails. The session's device has to be the one that the memory is on:
/// the host's for `kDLCPU`, the CUDA device of that number for `kDLCUDA`.
///
/// # Safety
/// `session` is a live handle, `managed` a tensor of DLPack that the caller owns and whose bool elements are 0 or 1, `out` may be
/// written. While the result or work on it uses the memory, nobody else writes it, nor touches it if that work writes it, out
/// of order with the session's stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_tensor_from_dlpack(
    session: *const Session,
    managed: *mut DLManagedTensor,
    out: *mut *mut Tensor,
) -> *const EpStatus {
    // Before anything can fail: whoever handed it over does not free it.
    let taken = (!managed.is_null()).then(|| Taken(managed));
    // SAFETY: as the caller promises.
    unsafe {
        made_handle(out, || {
            let taken = taken.ok_or_else(|| Error::invalid("the DLPack tensor is null"))?;
            import(object(session, "session")?, taken).map(Tensor::new)
        })
    }
}

/// The numbers of a list, which is null where there are none.
///
/// # Safety
/// As many as the rank says can be read, unless the pointer is null.
unsafe fn numbers(first: *const i64, rank: usize) -> Option<Vec<i64>> {
    match rank {
        0 => Some(Vec::new()),
        _ if first.is_null() => None,
        // SAFETY: as the caller promises.
        _ => Some(unsafe { std::slice::from_raw_parts(first, rank) }.to_vec()),
    }
}

/// # Safety
/// As `ep_tensor_from_dlpack`.
unsafe fn import(session: &Session, taken: Taken) -> Result<Strided> {
    // SAFETY: live until it is given back.
    let tensor = unsafe { &(*taken.0).tensor };
    let device = session.ops.device();
    let (code, bits, lanes) = (tensor.type_code, tensor.type_bits, tensor.type_lanes);
    let known = DTYPES.iter().find(|(c, b, _)| (*c, *b, 1) == (code, bits, lanes));
    let dtype = known.map(|(.., dtype)| *dtype).ok_or_else(|| {
        Error::unsupported(format!(
            "a tensor of DLPack's dtype (code {code}, {bits} bits, {lanes} lanes); cast it first"
        ))
    })?;
    let here = place(device)?;
    if here != (tensor.device_type, tensor.device_id) {
        return Err(Error::invalid(format!(
            "a tensor on DLPack's device {:?} for a session on {}, which is {here:?}; bring it there first",
            (tensor.device_type, tensor.device_id),
            device.name()
        )));
    }
    let no_shape =
        || Error::invalid(format!("a DLPack tensor of {} dimensions without their sizes", tensor.ndim));
    let rank = usize::try_from(tensor.ndim).ok().filter(|rank| *rank <= 64).ok_or_else(no_shape)?;
    // SAFETY: the tensor's lists, with as many numbers as it has dimensions.
    let (shape, strides) = unsafe { (numbers(tensor.shape, rank), numbers(tensor.strides, rank)) };
    let shape = shape.ok_or_else(no_shape)?;
    if shape.iter().any(|n| *n < 0) {
        return Err(Error::invalid(format!("a DLPack tensor of the shape {shape:?}")));
    }
    if shape.contains(&0) {
        // Of nothing the address may be null.
        return session.ops.empty(dtype, &shape);
    }
    let strides = strides.unwrap_or_else(|| {
        let mut step = 1i64;
        let mut all = vec![1; rank];
        for (stride, n) in all.iter_mut().zip(&shape).rev() {
            *stride = step;
            step = step.saturating_mul(*n);
        }
        all
    });
    let (mut first, mut last) = (0i64, 0i64);
    for (n, stride) in shape.iter().zip(&strides) {
        let reach = (n - 1).checked_mul(*stride);
        let end = if *stride < 0 { &mut first } else { &mut last };
        *end = reach.and_then(|reach| end.checked_add(reach)).ok_or_else(|| {
            Error::invalid(format!(
                "a DLPack tensor of the shape {shape:?} with the strides {strides:?}, beyond memory"
            ))
        })?;
    }
    let size = dtype.bytes_for_bounds() as i64;
    let span = last.checked_sub(first).and_then(|n| n.checked_add(1)).and_then(|n| n.checked_mul(size));
    let span = span.ok_or_else(|| Error::invalid("a DLPack tensor that reaches beyond memory"))? as u64;
    let start = (tensor.data.expose_provenance() as u64)
        .wrapping_add(tensor.byte_offset)
        .wrapping_add_signed(first.wrapping_mul(size));
    if !start.is_multiple_of(dtype.alignment() as u64) {
        return Err(Error::invalid(format!(
            "a DLPack tensor of {dtype} at the address {start:#x}, which is no multiple of {}; copy it first",
            dtype.alignment()
        )));
    }
    let space = device.info().memory_space.clone();
    // SAFETY: the tensor's memory is valid until `taken` is dropped; the rest is the caller's promise.
    let buffer = unsafe { Buffer::import(device, &space, start, span, dtype, move || drop(taken)) }?;
    let all = buffer.len() as i64;
    Strided::from_buffer(buffer, &[all])?.as_strided(&shape, &strides, -first)
}

/// What an exported tensor keeps.
struct Kept {
    managed: DLManagedTensor,
    _tensor: Strided,
    _shape: Box<[i64]>,
    _strides: Box<[i64]>,
}

unsafe extern "C" fn give_back(managed: *mut DLManagedTensor) {
    // SAFETY: of a tensor that `ep_tensor_to_dlpack` made, and called once.
    unsafe { crate::given::free((*managed).manager.cast::<Kept>()) };
}

/// The tensor's memory for another library, without a copy, after the work on it is done. It stays until that library calls
/// the deleter of the result. Work that is queued on the memory afterwards, here or there, is not ordered by anybody:
/// `ep_tensor_wait` and the other library's wait are.
///
/// # Safety
/// `tensor` is a live handle, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_tensor_to_dlpack(
    tensor: *const Tensor,
    out: *mut *mut DLManagedTensor,
) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe { made(out, || export(&object(tensor, "tensor")?.tensor)) }
}

fn export(tensor: &Strided) -> Result<*mut DLManagedTensor> {
    let known = DTYPES.iter().find(|(.., dtype)| *dtype == tensor.dtype());
    let (type_code, type_bits, _) = *known.ok_or_else(|| {
        Error::unsupported(format!("DLPack has no dtype for {}; cast it first", tensor.dtype()))
    })?;
    let (device_type, device_id) = place(tensor.device())?;
    if tensor.space() != tensor.device().info().memory_space {
        return Err(Error::unsupported(format!(
            "{tensor:?} is in {}, not in the device's own memory; clone it first",
            tensor.space()
        )));
    }
    if !tensor.is_written() {
        return Err(Error::invalid(format!(
            "{tensor:?} has elements that were never written; fill it first, or make it with zeros"
        )));
    }
    tensor.wait()?;
    let (mut shape, mut strides): (Box<[i64]>, Box<[i64]>) = (tensor.shape().into(), tensor.strides().into());
    let managed = DLManagedTensor {
        tensor: DLTensor {
            data: std::ptr::with_exposed_provenance_mut(tensor.address() as usize),
            device_type,
            device_id,
            ndim: tensor.rank() as i32,
            type_code,
            type_bits,
            type_lanes: 1,
            shape: shape.as_mut_ptr(),
            strides: strides.as_mut_ptr(),
            byte_offset: 0,
        },
        manager: std::ptr::null_mut(),
        deleter: Some(give_back),
    };
    let kept =
        Box::into_raw(Box::new(Kept { managed, _tensor: tensor.alias(), _shape: shape, _strides: strides }));
    // SAFETY: just made; its own address is what the deleter frees.
    unsafe {
        (*kept).managed.manager = kept.cast();
        Ok(&raw mut (*kept).managed)
    }
}

//! Tensors: typed, strided views of shared device memory.

use crate::given::{free, given_text, list, made, made_handle, needed, object};
use crate::session::Session;
use ep_core::abi::{EpStatus, finish};
use ep_core::{DType, Error, Result};
use ep_ops::{MemoryFormat, Spec, Tensor as Strided};
use std::ffi::{CString, c_char, c_void};

/// A typed, strided view of shared device memory.
pub struct Tensor {
    pub(crate) tensor: Strided,
    dtype: CString,
    device: CString,
}

impl Tensor {
    pub(crate) fn new(tensor: Strided) -> Tensor {
        let (dtype, device) = (given_text(&tensor.dtype().to_string()), given_text(tensor.device().name()));
        Tensor { tensor, dtype, device }
    }
}

/// A tensor of a session's device with these elements of the host's, the last dimension innermost; they have been read on
/// return. `dtype` is a name (`f32`), `bytes` how many there are at `data`, which may be null where there are none.
///
/// # Safety
/// `session` is a live handle, `dtype` a text, `shape` has `rank` numbers, `data` has `bytes` bytes, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_tensor_from_bytes(
    session: *const Session,
    dtype: *const c_char,
    shape: *const i64,
    rank: usize,
    data: *const c_void,
    bytes: u64,
    out: *mut *mut Tensor,
) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe {
        made_handle(out, || {
            let session = object(session, "session")?;
            let spec = Spec::new(DType::by_name(needed(dtype, "dtype")?)?, list(shape, rank, "sizes")?);
            let bytes =
                usize::try_from(bytes).map_err(|_| Error::invalid(format!("{bytes} bytes of data")))?;
            uploaded(session, &spec, list(data.cast::<u8>(), bytes, "bytes of data")?).map(Tensor::new)
        })
    }
}

/// Bytes that the elements of a tensor take, where these fill bytes.
fn bytes_of(spec: &Spec) -> Result<u64> {
    let bytes = spec.dtype.packed_bytes(spec.count()? as u64);
    if bytes == u64::MAX {
        Err(Error::invalid(format!("a tensor {spec} has more bytes than memory")))
    } else {
        Ok(bytes)
    }
}

fn uploaded(session: &Session, spec: &Spec, data: &[u8]) -> Result<Strided> {
    let needed = bytes_of(spec)?;
    if data.len() as u64 != needed {
        return Err(Error::invalid(format!(
            "{} bytes for a tensor {spec}, which has {needed}; give it as many",
            data.len()
        )));
    }
    let ops = &session.ops;
    if spec.dtype == DType::BOOL {
        if let Some(at) = data.iter().position(|b| *b > 1) {
            return Err(Error::invalid(format!(
                "byte {at} of a bool tensor is {}; they are 0 or 1",
                data[at]
            )));
        }
        return ops.tensor(&data.iter().map(|b| *b == 1).collect::<Vec<_>>(), &spec.shape);
    }
    let buffer = ops.tensor(data, &[data.len() as i64])?.into_buffer()?;
    Strided::from_buffer(buffer.reinterpret(spec.dtype)?, &spec.shape)
}

/// Copies the elements of a tensor of the session's device to `data`, the last dimension innermost, and waits for the work
/// on it. `bytes` is exactly what they take.
///
/// # Safety
/// `session` and `tensor` are live handles, `data` has `bytes` bytes that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_tensor_to_bytes(
    session: *const Session,
    tensor: *const Tensor,
    data: *mut c_void,
    bytes: u64,
) -> *const EpStatus {
    finish(|| {
        // SAFETY: as the caller promises.
        let (session, tensor) = unsafe { (object(session, "session")?, &object(tensor, "tensor")?.tensor) };
        let needed = bytes_of(tensor.spec())?;
        if bytes != needed {
            return Err(Error::invalid(format!(
                "room of {bytes} bytes for {tensor:?}, which has {needed}; give it as many"
            )));
        }
        if needed == 0 {
            return Ok(());
        }
        if data.is_null() {
            return Err(Error::invalid("the place for the elements is null"));
        }
        // A copy is a buffer of its own, whose bytes can be seen whatever the dtype is.
        let copy =
            session.ops.clone(tensor, MemoryFormat::Contiguous)?.into_buffer()?.reinterpret(DType::U8)?;
        let content = copy.map_read::<u8>()?;
        // SAFETY: `needed` bytes that may be written, as the caller promises; the copy is memory of its own.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), data.cast::<u8>(), content.len()) };
        Ok(())
    })
}

/// The name of the dtype, such as `f32`.
///
/// # Safety
/// `tensor` is null, which gives null, or a live handle, with which the text ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_tensor_dtype(tensor: *const Tensor) -> *const c_char {
    // SAFETY: as the caller promises.
    unsafe { tensor.as_ref() }.map_or(std::ptr::null(), |t| t.dtype.as_ptr())
}

/// The device, as `cuda:0`.
///
/// # Safety
/// As `ep_tensor_dtype`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_tensor_device(tensor: *const Tensor) -> *const c_char {
    // SAFETY: as the caller promises.
    unsafe { tensor.as_ref() }.map_or(std::ptr::null(), |t| t.device.as_ptr())
}

/// Dimensions: 0 to 8.
///
/// # Safety
/// `tensor` is null, which gives 0, or a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_tensor_rank(tensor: *const Tensor) -> usize {
    // SAFETY: as the caller promises.
    unsafe { tensor.as_ref() }.map_or(0, |t| t.tensor.rank())
}

/// Sizes of the dimensions, as many as the rank.
///
/// # Safety
/// `tensor` is null, which gives null, or a live handle, with which the list ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_tensor_shape(tensor: *const Tensor) -> *const i64 {
    // SAFETY: as the caller promises.
    unsafe { tensor.as_ref() }.map_or(std::ptr::null(), |t| t.tensor.shape().as_ptr())
}

/// Steps of the dimensions in elements, as many as the rank.
///
/// # Safety
/// As `ep_tensor_shape`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_tensor_strides(tensor: *const Tensor) -> *const i64 {
    // SAFETY: as the caller promises.
    unsafe { tensor.as_ref() }.map_or(std::ptr::null(), |t| t.tensor.strides().as_ptr())
}

/// The address of the element at index 0, for `ep_primitive_launch` and other libraries. It is valid while a tensor of this
/// memory lives; who uses it takes care of the order of work, which the runtime does not see.
///
/// # Safety
/// `tensor` is a live handle, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_tensor_address(tensor: *const Tensor, out: *mut u64) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe { made(out, || Ok(object(tensor, "tensor")?.tensor.address())) }
}

/// Waits for all work that was queued on the tensor's memory, and tells its error.
///
/// # Safety
/// `tensor` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_tensor_wait(tensor: *const Tensor) -> *const EpStatus {
    // SAFETY: as the caller promises.
    finish(|| unsafe { object(tensor, "tensor") }?.tensor.wait())
}

/// Frees a tensor. The memory stays while views of it, or queued work, use it.
///
/// # Safety
/// Null or a handle that nobody uses again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_tensor_free(tensor: *mut Tensor) {
    // SAFETY: as the caller promises.
    unsafe { free(tensor) }
}

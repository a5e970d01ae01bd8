//! Tensors: typed, strided views of shared device memory.

use crate::given::{free, given_text, list, made, made_handle, needed, object, run, tell};
use crate::session::Session;
use ep_core::abi::EpStatus;
use ep_core::{DType, Error, Result};
use ep_ops::{MemoryFormat, Spec, Tensor as Strided};
use ep_registry::Buffer;
use std::ffi::{CString, c_char, c_void};
use std::sync::OnceLock;

/// A typed, strided view of shared device memory.
pub struct Tensor {
    pub(crate) tensor: Strided,
    /// Texts are made when they are asked for: most tensors are computed with only.
    dtype: OnceLock<CString>,
    device: OnceLock<CString>,
}

impl Tensor {
    pub(crate) fn new(tensor: Strided) -> Tensor {
        Tensor { tensor, dtype: OnceLock::new(), device: OnceLock::new() }
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

/// Bytes that the elements of a tensor take.
fn bytes_of(spec: &Spec) -> Result<u64> {
    if spec.dtype.bytes_for_bounds() * 8 != spec.dtype.packed_bytes(8) {
        return Err(Error::unsupported(format!(
            "a tensor {spec}, whose elements do not fill bytes; take one of u8"
        )));
    }
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

/// What `ep_tensor_from_address` calls when the memory is not used any more, with the `user` that it was given.
///
/// On any thread, at the end of whatever function of this library, or within one that frees: it is short, does not unwind, and waits for no
/// thread that may wait for a function of this library.
pub type Deleter = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// What a deleter is called with.
struct User(*mut c_void, Deleter);

// SAFETY: the contract of deleters lets them be called on any thread.
unsafe impl Send for User {}

impl Drop for User {
    fn drop(&mut self) {
        let User(user, deleter) = *self;
        if let Some(deleter) = deleter {
            // SAFETY: called once with what came with it.
            tell(move || unsafe { deleter(user) });
        }
    }
}

/// A tensor of `bytes` bytes of memory at `address` that somebody else owns, on the session's device: the elements of `shape` with
/// `strides` in elements (null: dense) from the first one on. `space` is the name of the memory, as `host`; null means the device's own.
/// `deleter` is called with `user` when nothing here uses the memory any more, and also where this fails.
///
/// # Safety
/// `session` is a live handle, `dtype` a text, `space` null or a text, `shape` and `strides` have `rank` numbers, `out` may be written. The memory
/// is valid and holds elements of the dtype (of bool 0 and 1) until `deleter` is called; work that was queued on it elsewhere is done, or on
/// the session's native stream. While the tensor or work on it uses the memory, nobody else writes it, nor touches it if that work
/// writes it, out of order with the session's stream.
#[unsafe(no_mangle)]
#[allow(
    clippy::too_many_arguments,
    reason = "C has no named arguments, and a struct would be one more type to keep"
)]
pub unsafe extern "C" fn ep_tensor_from_address(
    session: *const Session,
    dtype: *const c_char,
    shape: *const i64,
    strides: *const i64,
    rank: usize,
    space: *const c_char,
    address: u64,
    bytes: u64,
    deleter: Deleter,
    user: *mut c_void,
    out: *mut *mut Tensor,
) -> *const EpStatus {
    // Before anything can fail.
    let user = User(user, deleter);
    // SAFETY: as the caller promises.
    unsafe {
        made_handle(out, || {
            let device = object(session, "session")?.ops.device();
            let spec = Spec::new(DType::by_name(needed(dtype, "dtype")?)?, list(shape, rank, "sizes")?);
            bytes_of(&spec)?;
            if !address.is_multiple_of(spec.dtype.alignment() as u64) {
                return Err(Error::invalid(format!(
                    "memory at {address:#x}, which is no multiple of the {} bytes that {} needs; copy it first",
                    spec.dtype.alignment(),
                    spec.dtype
                )));
            }
            let own = device.info().memory_space.as_str();
            let space = crate::given::text(space, "memory space")?.unwrap_or(own);
            let release = move || drop(user);
            let buffer = Buffer::import(device, space, address, bytes, spec.dtype, release)?;
            let all = buffer.len() as i64;
            let whole = Strided::from_buffer(buffer, &[all])?;
            let strides = if strides.is_null() { None } else { Some(list(strides, rank, "strides")?) };
            match strides {
                Some(strides) => whole.as_strided(&spec.shape, strides, 0),
                None => whole.narrow(0, 0, spec.count()?)?.view(&spec.shape),
            }
            .map(Tensor::new)
        })
    }
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
    run(|| {
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
        if tensor.dtype() == DType::BOOL
            && let Some(at) = content.iter().position(|b| *b > 1)
        {
            return Err(Error::invalid(format!(
                "byte {at} of {tensor:?} is {}, and not 0 or 1; another library, or a launch on addresses, wrote it",
                content[at]
            )));
        }
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
    unsafe { tensor.as_ref() }.map_or(std::ptr::null(), |t| {
        t.dtype.get_or_init(|| given_text(&t.tensor.dtype().to_string())).as_ptr()
    })
}

/// The device, as `cuda:0`.
///
/// # Safety
/// As `ep_tensor_dtype`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_tensor_device(tensor: *const Tensor) -> *const c_char {
    // SAFETY: as the caller promises.
    unsafe { tensor.as_ref() }
        .map_or(std::ptr::null(), |t| t.device.get_or_init(|| given_text(t.tensor.device().name())).as_ptr())
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

/// Elements.
///
/// # Safety
/// `tensor` is null, which gives 0, or a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_tensor_numel(tensor: *const Tensor) -> u64 {
    // SAFETY: as the caller promises.
    unsafe { tensor.as_ref() }.map_or(0, |t| t.tensor.numel() as u64)
}

/// Bytes of the elements, as `ep_tensor_to_bytes` takes them.
///
/// # Safety
/// `tensor` is null, which gives 0, or a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_tensor_bytes(tensor: *const Tensor) -> u64 {
    // SAFETY: as the caller promises.
    unsafe { tensor.as_ref() }.map_or(0, |t| t.tensor.dtype().packed_bytes(t.tensor.numel() as u64))
}

/// The dtype as descriptors have it, one of `EP_DTYPE_*` or of a provider's own.
///
/// # Safety
/// `tensor` is null, which gives `EP_DTYPE_INVALID`, or a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_tensor_dtype_id(tensor: *const Tensor) -> u32 {
    // SAFETY: as the caller promises.
    unsafe { tensor.as_ref() }.map_or(DType::INVALID.0, |t| t.tensor.dtype().0)
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

/// Waits for all work of operators and copies on the tensor's memory, and tells its error. Launches on addresses are not
/// known to be on it: `ep_session_sync` waits for those.
///
/// # Safety
/// `tensor` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_tensor_wait(tensor: *const Tensor) -> *const EpStatus {
    // SAFETY: as the caller promises.
    run(|| unsafe { object(tensor, "tensor") }?.tensor.wait())
}

/// Frees a tensor. The memory stays while views of it, or queued operators and copies, use it. Launches on addresses do not count:
/// wait with `ep_session_sync` before.
///
/// # Safety
/// Null or a handle that nobody uses again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_tensor_free(tensor: *mut Tensor) {
    // SAFETY: as the caller promises.
    unsafe { free(tensor) }
}

//! Primitives: launches on addresses by the structs of `ep_plugin.h`, for frameworks that own their memory and order.

use crate::given::{free, given_text, made, made_handle, needed, object, run};
use crate::session::Session;
use ep_core::abi::EpStatus;
use ep_core::{Error, Result};
use ep_registry::DynPrimitive;
use std::ffi::{c_char, c_void};

/// A primitive of a device.
pub struct Primitive(DynPrimitive);

/// A primitive of the session's device for a descriptor, such as `EpSoftmaxDesc`, whose `struct_size` is set and whose
/// unused bytes are 0. Where nothing matches, the message has every candidate and the reason why it refused.
///
/// # Safety
/// `session` is a live handle, `op` a text, `desc` a descriptor of that op with as many bytes as its first field says, `out` may
/// be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_primitive_new(
    session: *const Session,
    op: *const c_char,
    desc: *const c_void,
    out: *mut *mut Primitive,
) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe {
        made_handle(out, || {
            let (session, op) = (object(session, "session")?, needed(op, "op")?);
            let request = session.runtime.request_of_desc(op, desc_bytes(desc)?)?;
            session.runtime.primitive_dyn(session.ops.device(), &request).map(Primitive)
        })
    }
}

/// The bytes of a struct that begins with how many it has.
///
/// # Safety
/// Null, or such a struct.
unsafe fn desc_bytes<'a>(desc: *const c_void) -> Result<&'a [u8]> {
    if desc.is_null() || !desc.cast::<u64>().is_aligned() {
        return Err(Error::invalid(format!("the descriptor at {desc:p} is null or misaligned")));
    }
    // SAFETY: aligned, and begins with a u64.
    let bytes = unsafe { desc.cast::<u64>().read() };
    if !(16..1 << 16).contains(&bytes) {
        return Err(Error::invalid(format!(
            "a descriptor with struct_size {bytes}; set it to sizeof of its type"
        )));
    }
    // SAFETY: as many as it says.
    Ok(unsafe { std::slice::from_raw_parts(desc.cast(), bytes as usize) })
}

/// Queues a launch on the session's stream with arguments such as `EpSoftmaxArgs`, whose `struct_size` is set. Nothing is
/// checked but what the provider checks, and the runtime does not see what is read and written: order with other work on the
/// memory is the caller's, and neither `ep_tensor_wait` nor the freeing of a tensor waits for it; `ep_session_sync` does.
///
/// # Safety
/// Live handles; `args` are arguments of the primitive's op whose lists can be read, and whose addresses are valid for what the launch
/// does, until it is done. Nobody else touches what it writes meanwhile. What it writes as bool is 0 or 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_primitive_launch(
    session: *const Session,
    primitive: *const Primitive,
    args: *const c_void,
) -> *const EpStatus {
    // SAFETY: as the caller promises.
    run(|| unsafe {
        object(primitive, "primitive")?.0.launch_struct(object(session, "session")?.ops.stream(), args)
    })
}

/// Bytes of scratch memory that a launch with these arguments wants, to be given by their `workspace` and
/// `workspace_bytes`; without it the provider takes its own.
///
/// # Safety
/// A live handle; `args` as of `ep_primitive_launch`, of which no address is used; `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_primitive_workspace(
    primitive: *const Primitive,
    args: *const c_void,
    out: *mut u64,
) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe { made(out, || object(primitive, "primitive")?.0.workspace_of_struct(args)) }
}

/// Who made it and how it computes, `instance/factory: ...`, for people.
///
/// # Safety
/// A live handle; `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_primitive_describe(
    primitive: *const Primitive,
    out: *mut *mut c_char,
) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe {
        made(out, || {
            let p = &object(primitive, "primitive")?.0;
            Ok(given_text(&format!("{}/{}: {}", p.instance(), p.factory(), p.describe())).into_raw())
        })
    }
}

/// Frees a primitive. Launches that are queued go on.
///
/// # Safety
/// Null or a handle that nobody uses again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_primitive_free(primitive: *mut Primitive) {
    // SAFETY: as the caller promises.
    unsafe { free(primitive) }
}

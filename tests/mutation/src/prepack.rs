//! `ep.prepack` as the host sees it: the SDK's table knows the SDK's primitives, and the host has ours.

use crate::registrations::honest_primitive;
use crate::tables::{current, sdk};
use ep_core::abi::*;
use std::ffi::c_void;
use std::sync::OnceLock;

/// The SDK's table, from the first time that it was asked for.
static THEIRS: OnceLock<EpPrepackInterface> = OnceLock::new();

fn theirs() -> &'static EpPrepackInterface {
    THEIRS.get().unwrap_or_else(|| unreachable!("noted before our table is given away"))
}

/// A function of a table that has all of them.
fn has<T>(function: Option<T>) -> T {
    function.unwrap_or_else(|| unreachable!("the SDK has it"))
}

/// The `get_interface` of devices.
pub(crate) unsafe extern "C" fn interface_of_device(
    device: *mut EpDevice,
    name: EpStr,
    version: u32,
    out: *mut *const EpInterface,
) -> *const EpStatus {
    static OURS: OnceLock<EpPrepackInterface> = OnceLock::new();
    // SAFETY: the host's call; the SDK writes `out` where it succeeds, and the text lives during the call.
    unsafe {
        let status = (has(sdk().device.get_interface))(device, name, version, out);
        if status.is_null() && string_of(name) == EpPrepackInterface::INTERFACE && !(*out).is_null() {
            let theirs = *THEIRS.get_or_init(|| *(*out).cast());
            let ours = OURS.get_or_init(|| EpPrepackInterface {
                size: Some(size),
                pack: Some(pack),
                launch: Some(launch),
                ..theirs
            });
            out.write(std::ptr::from_ref(ours).cast());
        }
        status
    }
}

unsafe extern "C" fn size(
    primitive: *mut EpPrimitive,
    operand: u32,
    args: *const c_void,
    out: *mut u64,
) -> *const EpStatus {
    // SAFETY: the host's call on a live primitive.
    (current().answer)(unsafe {
        (current().packed_size)(theirs(), honest_primitive(primitive), operand, args, out)
    })
}

unsafe extern "C" fn pack(
    primitive: *mut EpPrimitive,
    stream: *mut EpStream,
    operand: u32,
    args: *const c_void,
    address: u64,
    out: *mut *mut EpPacked,
) -> *const EpStatus {
    // SAFETY: as above.
    (current().answer)(unsafe {
        (has(theirs().pack))(honest_primitive(primitive), stream, operand, args, address, out)
    })
}

unsafe extern "C" fn launch(
    packed: *mut EpPacked,
    stream: *mut EpStream,
    args: *const c_void,
) -> *const EpStatus {
    // SAFETY: the host's call.
    (current().answer)(unsafe { (current().launch_packed)(theirs(), packed, stream, args) })
}

/// As it should be.
///
/// # Safety
/// As the function of the table.
pub unsafe fn packed_size(
    theirs: &EpPrepackInterface,
    primitive: *mut EpPrimitive,
    operand: u32,
    args: *const c_void,
    out: *mut u64,
) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe { (has(theirs.size))(primitive, operand, args, out) }
}

/// As it should be.
///
/// # Safety
/// As the function of the table.
pub unsafe fn launch_packed(
    theirs: &EpPrepackInterface,
    packed: *mut EpPacked,
    stream: *mut EpStream,
    args: *const c_void,
) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe { (has(theirs.launch))(packed, stream, args) }
}

//! Factories' and primitives' functions: made once for each (provider, op, kernel).

use super::super::{Kernel, Provider};
use super::device::device_of;
use super::{drop_object, entry, give, give_object, object};
use crate::abi::*;
use crate::op::Op;
use crate::{Error, Result};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

struct Built<O: Op, K> {
    desc: O::Desc,
    kernel: K,
}

/// Something whose address is the context of a factory's callbacks.
pub(in crate::provider) trait FactoryObject: Send {
    fn context(&self) -> *mut EpFactoryContext;
}

/// Owns a factory's building function. The host keeps a pointer to it, so it is held by a raw one, which may be
/// moved while others point to the same, unlike a `Box`.
struct FactoryBox<F>(NonNull<F>);

// SAFETY: it owns the function as a `Box` would.
unsafe impl<F: Send> Send for FactoryBox<F> {}

impl<F> Drop for FactoryBox<F> {
    fn drop(&mut self) {
        // SAFETY: made by `Box::leak` in `factory_object`, freed once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl<F: Send> FactoryObject for FactoryBox<F> {
    fn context(&self) -> *mut EpFactoryContext {
        self.0.as_ptr().cast()
    }
}

pub(in crate::provider) fn factory_object<P: Provider, O: Op, K, F>(build: F) -> Box<dyn FactoryObject>
where
    K: Kernel<O, P::Device>,
    F: Fn(&P::Device, &O::Desc) -> Result<K> + Send + Sync + 'static,
{
    Box::new(FactoryBox(NonNull::from(Box::leak(Box::new(build)))))
}

/// A factory's `create`.
pub(in crate::provider) unsafe extern "C" fn create_primitive<P: Provider, O: Op, K, F>(
    context: *mut EpFactoryContext,
    device: *mut EpDevice,
    desc: *const c_void,
    out: *mut *mut EpPrimitive,
) -> *const EpStatus
where
    K: Kernel<O, P::Device>,
    F: Fn(&P::Device, &O::Desc) -> Result<K> + Send + Sync + 'static,
{
    entry::<P>(|| {
        // SAFETY: the context is this factory's, the device ours; the descriptor is the op's.
        let (build, device, desc) = unsafe {
            (object::<F, _>(context)?, device_of::<P>(device)?, read_struct(desc.cast::<O::Desc>())?)
        };
        // SAFETY: every descriptor starts with `struct_size` and `alignment` (both u64).
        let alignment = unsafe { std::ptr::from_ref(&desc).cast::<u64>().add(1).read() };
        if alignment != 0 && !alignment.is_power_of_two() {
            return Err(Error::invalid(format!("{}: alignment {alignment} is not a power of two", O::NAME)));
        }
        if O::reserved(&desc) != 0 {
            return Err(Error::unsupported(format!(
                "{}: reserved bytes of the descriptor are set; this version gives them no meaning",
                O::NAME
            )));
        }
        let kernel = build(&device.device, &desc)?;
        // SAFETY: the out-pointer is the host's.
        unsafe { give_object(out, Built::<O, K> { desc, kernel }) }
    })
}

unsafe extern "C" fn primitive_destroy<P: Provider, O: Op, K>(primitive: *mut EpPrimitive) {
    // SAFETY: the host destroys it once.
    unsafe { drop_object::<P, Built<O, K>, _>(primitive) }
}

unsafe extern "C" fn primitive_launch<P: Provider, O: Op, K: Kernel<O, P::Device>>(
    primitive: *mut EpPrimitive,
    stream: *mut EpStream,
    args: *const c_void,
) -> *const EpStatus {
    entry::<P>(|| {
        let mut room = MaybeUninit::uninit();
        // SAFETY: a live primitive and stream of ours, and the op's argument struct, which the host leaves alone
        // during the call.
        let (built, stream, args) = unsafe {
            (
                object::<Built<O, K>, _>(primitive)?,
                &super::graph::stream_of::<P>(stream)?.stream,
                borrow_struct(args.cast::<O::Args>(), &mut room)?,
            )
        };
        // SAFETY: the host promises readable dims with every launch.
        unsafe { check_launch::<O>(&built.desc, args) }?;
        // SAFETY: launching is unsafe for the host, which promises valid memory (rule 11).
        unsafe { built.kernel.launch(stream, args) }
    })
}

/// Everything that can be checked about a launch without knowing the memory.
///
/// # Safety
/// As [`Op::check`].
#[inline]
unsafe fn check_launch<O: Op>(desc: &O::Desc, args: &O::Args) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { O::check(desc, args) }?;
    // SAFETY: every descriptor starts with `struct_size` and `alignment` (both u64).
    let alignment = unsafe { std::ptr::from_ref(desc).cast::<u64>().add(1).read() };
    // SAFETY: just checked.
    let uses = unsafe { O::uses(desc, args) };
    for (i, u) in uses.as_ref().iter().enumerate() {
        u.check_address(u.address, alignment, i, || {
            let schema = O::schema();
            schema.operands[schema.operand_of(i)].name.clone()
        })?;
    }
    Ok(())
}

unsafe extern "C" fn primitive_workspace<P: Provider, O: Op, K: Kernel<O, P::Device>>(
    primitive: *mut EpPrimitive,
    args: *const c_void,
    out: *mut u64,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: a live primitive of ours and the op's argument struct.
        let (built, args) =
            unsafe { (object::<Built<O, K>, _>(primitive)?, read_struct(args.cast::<O::Args>())?) };
        // SAFETY: the host promises readable dims.
        unsafe { O::check(&built.desc, &args) }?;
        // SAFETY: the out-pointer is the host's.
        unsafe { give(out, built.kernel.workspace_size(&args)?) }
    })
}

unsafe extern "C" fn primitive_describe<P: Provider, O: Op, K: Kernel<O, P::Device>>(
    primitive: *mut EpPrimitive,
    out: *mut EpStr,
) -> *const EpStatus {
    // SAFETY: a live primitive of ours, whose text lives as long; the out-pointer is the host's.
    entry::<P>(|| unsafe { give(out, EpStr::new(object::<Built<O, K>, _>(primitive)?.kernel.describe())) })
}

/// The table of primitives of one kernel type.
pub(in crate::provider) fn primitive_table<P: Provider, O: Op, K: Kernel<O, P::Device>>()
-> &'static EpPrimitiveTable {
    const {
        &EpPrimitiveTable {
            destroy: Some(primitive_destroy::<P, O, K>),
            launch: Some(primitive_launch::<P, O, K>),
            workspace_size: Some(primitive_workspace::<P, O, K>),
            describe: Some(primitive_describe::<P, O, K>),
            ..EpPrimitiveTable::EMPTY
        }
    }
}

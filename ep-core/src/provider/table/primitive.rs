//! Factories' and primitives' functions: made once for each (provider, op, kernel).

use super::super::{Device, Kernel, Packing, Provider};
use super::device::device_of;
use super::prepack::Packed;
use super::{StreamOf, drop_object, entry, give, give_object, object};
use crate::abi::*;
use crate::op::{Op, OperandUse};
use crate::{Error, Result};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// A primitive. It begins with what does not depend on its op, which `ep.prepack` finds there.
#[repr(C)]
struct Built<P: Provider, O: Op, K> {
    prepack: Option<&'static PrepackFns<P>>,
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
        let alignment = alignment_of::<O>(&desc);
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
        unsafe { give_object(out, Built::<P, O, K> { prepack: PrepackFns::of::<O, K>(), desc, kernel }) }
    })
}

/// What a descriptor promises of addresses.
#[inline]
fn alignment_of<O: Op>(desc: &O::Desc) -> u64 {
    // SAFETY: every descriptor starts with `struct_size` and `alignment`, both u64 (`Op`).
    unsafe { std::ptr::from_ref(desc).cast::<u64>().add(1).read() }
}

unsafe extern "C" fn primitive_destroy<P: Provider, O: Op, K>(primitive: *mut EpPrimitive) {
    // SAFETY: the host destroys it once.
    unsafe { drop_object::<P, Built<P, O, K>, _>(primitive) }
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
                object::<Built<P, O, K>, _>(primitive)?,
                &super::graph::stream_of::<P>(stream)?.stream,
                borrow_struct(args.cast::<O::Args>(), &mut room)?,
            )
        };
        // SAFETY: the host promises readable dims with every launch.
        unsafe { check_launch::<O>(&built.desc, args, None) }?;
        // SAFETY: launching is unsafe for the host, which promises valid memory (rule 11).
        unsafe { built.kernel.launch(stream, args) }
    })
}

/// Everything that can be checked about a launch without knowing the memory; of the `packed` operand, whose address means
/// nothing, all but that.
///
/// # Safety
/// As [`Op::check`].
#[inline]
unsafe fn check_launch<O: Op>(desc: &O::Desc, args: &O::Args, packed: Option<usize>) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { O::check(desc, args) }?;
    let alignment = alignment_of::<O>(desc);
    // SAFETY: just checked.
    let uses = unsafe { O::uses(desc, args) };
    for (i, u) in uses.as_ref().iter().enumerate().filter(|(i, _)| Some(*i) != packed) {
        u.check_address(u.address, alignment, i, || operand_name::<O>(i))?;
    }
    Ok(())
}

fn operand_name<O: Op>(i: usize) -> String {
    let schema = O::schema();
    schema.operands[schema.operand_of(i)].name.clone()
}

/// An operand that can be packed, and into what.
///
/// # Safety
/// `args` are arguments of the op, whose dims are readable. Addresses in it mean nothing, that of a list neither.
unsafe fn packing_of<O: Op, D: Device, K: Kernel<O, D>>(
    desc: &O::Desc,
    kernel: &K,
    operand: u32,
    args: &O::Args,
) -> Result<Option<(OperandUse, Packing)>> {
    let schema = O::schema();
    let index = operand as usize;
    let Some(described) = schema.operands.get(index) else {
        return Err(Error::invalid(format!(
            "{}: operand {operand} of {}, counted from 0",
            O::NAME,
            schema.operands.len()
        )));
    };
    // What an op with a list uses is in that list.
    if described.writes || schema.list_length().is_some() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    unsafe {
        O::check(desc, args)?;
        let used = O::uses(desc, args).as_ref().get(index).copied().filter(|u| u.bytes != 0);
        let Some(used) = used else { return Ok(None) };
        Ok(kernel.packing(index, args)?.map(|packing| (used, packing)))
    }
}

unsafe fn packing<P: Provider, O: Op, K: Kernel<O, P::Device>>(
    primitive: *mut EpPrimitive,
    operand: u32,
    args: *const c_void,
) -> Result<Option<Packing>> {
    let mut room = MaybeUninit::uninit();
    // SAFETY: a live primitive of this kernel and the op's argument struct, with readable dims.
    unsafe {
        let built = object::<Built<P, O, K>, _>(primitive)?;
        let args = borrow_struct(args.cast::<O::Args>(), &mut room)?;
        Ok(packing_of(&built.desc, &built.kernel, operand, args)?.map(|(_, packing)| packing))
    }
}

unsafe fn pack<P: Provider, O: Op, K: Kernel<O, P::Device>>(
    primitive: *mut EpPrimitive,
    stream: &StreamOf<P>,
    operand: u32,
    args: *const c_void,
    address: u64,
) -> Result<Packing> {
    let mut room = MaybeUninit::uninit();
    // SAFETY: a live primitive of this kernel and the op's argument struct, with readable dims; packing is unsafe for the host,
    // which promises valid memory.
    unsafe {
        let built = object::<Built<P, O, K>, _>(primitive)?;
        let args = borrow_struct(args.cast::<O::Args>(), &mut room)?;
        let Some((used, packing)) = packing_of(&built.desc, &built.kernel, operand, args)? else {
            return Err(nothing_gained::<O>(operand));
        };
        if address == 0 || !address.is_multiple_of(64) || address.checked_add(packing.bytes).is_none() {
            return Err(Error::invalid(format!(
                "{}: address {address:#x} for {} packed bytes must not be null, must be a multiple of 64 and must not wrap \
                 around",
                O::NAME,
                packing.bytes
            )));
        }
        let index = operand as usize;
        used.check_address(used.address, alignment_of::<O>(&built.desc), index, || operand_name::<O>(index))?;
        built.kernel.pack(stream, index, args, address)?;
        Ok(packing)
    }
}

#[cold]
fn nothing_gained<O: Op>(operand: u32) -> Error {
    Error::unsupported(format!(
        "{}: nothing is gained by packing `{}`; `size` says 0 for it",
        O::NAME,
        operand_name::<O>(operand as usize)
    ))
}

unsafe fn launch_packed<P: Provider, O: Op, K: Kernel<O, P::Device>>(
    primitive: *mut EpPrimitive,
    stream: &StreamOf<P>,
    packed: Packed,
    args: *const c_void,
) -> Result<()> {
    // SAFETY: a live primitive of this kernel and the op's argument struct, with readable dims; launching is unsafe for the host,
    // which promises valid memory.
    unsafe {
        let built = object::<Built<P, O, K>, _>(primitive)?;
        let mut room = MaybeUninit::uninit();
        let args = borrow_struct(args.cast::<O::Args>(), &mut room)?;
        let index = packed.operand as usize;
        check_launch::<O>(&built.desc, args, Some(index))?;
        let packing = built.kernel.packing(index, args)?;
        if packing != Some(packed.packing) {
            return Err(Error::invalid(format!(
                "{}: operand `{}` was packed as {:?}, and these sizes need {packing:?}; pack it for them, or launch it as it is",
                O::NAME,
                operand_name::<O>(index),
                packed.packing
            )));
        }
        built.kernel.launch_packed(stream, index, packed.address, args)
    }
}

/// What [`ep.prepack`](super::prepack) needs of a primitive whose kernel packs, whatever its op.
pub(super) struct PrepackFns<P: Provider> {
    pub(super) packing: unsafe fn(*mut EpPrimitive, u32, *const c_void) -> Result<Option<Packing>>,
    pub(super) pack: PackFn<P>,
    pub(super) launch: LaunchPackedFn<P>,
}

type PackFn<P> = unsafe fn(*mut EpPrimitive, &StreamOf<P>, u32, *const c_void, u64) -> Result<Packing>;
type LaunchPackedFn<P> = unsafe fn(*mut EpPrimitive, &StreamOf<P>, Packed, *const c_void) -> Result<()>;

impl<P: Provider> PrepackFns<P> {
    fn of<O: Op, K: Kernel<O, P::Device>>() -> Option<&'static PrepackFns<P>> {
        const {
            if K::PACKS {
                Some(&PrepackFns {
                    packing: packing::<P, O, K>,
                    pack: pack::<P, O, K>,
                    launch: launch_packed::<P, O, K>,
                })
            } else {
                None
            }
        }
    }

    /// Those of a primitive; `None` where its kernel packs nothing.
    ///
    /// # Safety
    /// `primitive` is null or a live primitive of `P`.
    pub(super) unsafe fn of_primitive<'a>(primitive: *mut EpPrimitive) -> Result<Option<&'a PrepackFns<P>>> {
        // SAFETY: as the caller promises; every primitive of `P` begins with them.
        unsafe { object::<Option<&'static PrepackFns<P>>, _>(primitive).copied() }
    }
}

unsafe extern "C" fn primitive_workspace<P: Provider, O: Op, K: Kernel<O, P::Device>>(
    primitive: *mut EpPrimitive,
    args: *const c_void,
    out: *mut u64,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: a live primitive of ours and the op's argument struct.
        let (built, args) =
            unsafe { (object::<Built<P, O, K>, _>(primitive)?, read_struct(args.cast::<O::Args>())?) };
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
    entry::<P>(|| unsafe { give(out, EpStr::new(object::<Built<P, O, K>, _>(primitive)?.kernel.describe())) })
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

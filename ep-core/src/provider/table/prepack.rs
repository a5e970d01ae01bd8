//! The functions of `ep.prepack`.

use super::super::{Packing, Provider};
use super::graph::stream_of;
use super::primitive::PrepackFns;
use super::{drop_object, entry, give, give_object, object};
use crate::Error;
use crate::abi::*;
use std::ffi::c_void;

/// What became of an operand.
#[derive(Clone, Copy)]
pub(super) struct Packed {
    primitive: *mut EpPrimitive,
    pub(super) operand: u32,
    pub(super) packing: Packing,
    pub(super) address: u64,
}

pub(super) struct PrepackTable<P>(std::marker::PhantomData<P>);

impl<P: Provider> PrepackTable<P> {
    pub(super) const TABLE: &'static EpPrepackInterface = &EpPrepackInterface {
        info: &EPPREPACKINTERFACE_INFO,
        size: Some(size::<P>),
        pack: Some(pack::<P>),
        launch: Some(launch::<P>),
        destroy: Some(destroy::<P>),
        ..EpPrepackInterface::EMPTY
    };
}

#[cold]
fn packs_nothing() -> Error {
    Error::unsupported("this primitive gains nothing by packing; `size` says 0 for each of its operands")
}

unsafe extern "C" fn size<P: Provider>(
    primitive: *mut EpPrimitive,
    operand: u32,
    args: *const c_void,
    out: *mut u64,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: a live primitive of ours, its op's argument struct; the out-pointer is the host's.
        unsafe {
            let packing = match PrepackFns::<P>::of_primitive(primitive)? {
                Some(fns) => (fns.packing)(primitive, operand, args)?,
                None => None,
            };
            give(out, packing.map_or(0, |p| p.bytes))
        }
    })
}

unsafe extern "C" fn pack<P: Provider>(
    primitive: *mut EpPrimitive,
    stream: *mut EpStream,
    operand: u32,
    args: *const c_void,
    address: u64,
    out: *mut *mut EpPacked,
) -> *const EpStatus {
    entry::<P>(|| {
        if out.is_null() {
            return Err(Error::invalid("the out-pointer is null"));
        }
        // SAFETY: live objects of ours, the op's argument struct, memory as the host promises; the out-pointer is the host's.
        unsafe {
            let fns = PrepackFns::<P>::of_primitive(primitive)?.ok_or_else(packs_nothing)?;
            let stream = stream_of::<P>(stream)?.idle("packing an operand")?;
            let packing = (fns.pack)(primitive, stream, operand, args, address)?;
            give_object(out, Packed { primitive, operand, packing, address })
        }
    })
}

unsafe extern "C" fn launch<P: Provider>(
    packed: *mut EpPacked,
    stream: *mut EpStream,
    args: *const c_void,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: live objects of ours, of which the primitive outlives what it packed; memory as the host promises.
        unsafe {
            let packed = *object::<Packed, _>(packed)?;
            let fns = PrepackFns::<P>::of_primitive(packed.primitive)?.ok_or_else(packs_nothing)?;
            (fns.launch)(packed.primitive, &stream_of::<P>(stream)?.stream, packed, args)
        }
    })
}

unsafe extern "C" fn destroy<P: Provider>(packed: *mut EpPacked) {
    // SAFETY: the host destroys it once.
    unsafe { drop_object::<P, Packed, _>(packed) }
}

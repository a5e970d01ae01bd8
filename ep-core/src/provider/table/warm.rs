//! The functions of `ep.warm`.

use super::super::{Provider, Warm, WarmTarget};
use super::device::device_of;
use super::{DeviceOf, ProviderBox, entry, give, object};
use crate::abi::*;
use crate::{Error, Result};

pub(super) struct WarmTable<P>(std::marker::PhantomData<P>);

impl<P: Provider> WarmTable<P> {
    pub(super) const TABLE: &'static EpWarmInterface = &EpWarmInterface {
        info: &EPWARMINTERFACE_INFO,
        count: Some(count::<P>),
        prepare: Some(prepare::<P>),
        ..EpWarmInterface::EMPTY
    };
}

fn warm<P: Provider>() -> Result<&'static Warm<P>> {
    const { P::WARM.as_ref() }.ok_or_else(|| Error::unsupported("this provider prepares no kernels"))
}

/// What the arguments that both functions share mean: the instance, the target, and the op.
type Asked<'a, P> = (&'a P, WarmTarget<'a, DeviceOf<P>>, Option<&'a str>);

/// # Safety
/// `provider` and `device` are null or live objects of `P`, the texts the host's.
unsafe fn asked<'a, P: Provider>(
    provider: *mut EpProvider,
    device: *mut EpDevice,
    target: EpStr,
    op: EpStr,
) -> Result<Asked<'a, P>> {
    // SAFETY: as the caller promises.
    unsafe {
        let boxed = object::<ProviderBox<P>, _>(provider)?;
        let op = Some(str_of(op)?).filter(|op| !op.is_empty());
        let target = match device.is_null() {
            true => WarmTarget::Named(str_of(target)?),
            false => WarmTarget::Device(&device_of::<P>(device)?.device),
        };
        Ok((&boxed.provider, target, op))
    }
}

unsafe extern "C" fn count<P: Provider>(
    provider: *mut EpProvider,
    device: *mut EpDevice,
    target: EpStr,
    op: EpStr,
    out: *mut u64,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: live objects of ours; the host's texts and out-pointer.
        unsafe {
            let (provider, target, op) = asked::<P>(provider, device, target, op)?;
            give(out, (warm::<P>()?.count)(provider, target, op)?)
        }
    })
}

unsafe extern "C" fn prepare<P: Provider>(
    provider: *mut EpProvider,
    device: *mut EpDevice,
    target: EpStr,
    op: EpStr,
    index: u64,
    fresh: *mut u32,
) -> *const EpStatus {
    entry::<P>(|| {
        // SAFETY: as in `count`.
        unsafe {
            let (provider, target, op) = asked::<P>(provider, device, target, op)?;
            give(fresh, (warm::<P>()?.prepare)(provider, target, op, index)?.into())
        }
    })
}

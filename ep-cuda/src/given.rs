//! Contexts of the host in which devices work: the provider's option `context`.

use crate::driver::{CuContext, CuDevice, Driver};
use ep_core::{Error, Result};

/// In which context each visible device works, in their order. A device without an entry works in its primary one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contexts {
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    Primary,
    /// The one that is current on the thread that makes the provider.
    Current,
    /// One whose address the host has promised to be right.
    Address(u64),
}

impl Contexts {
    /// Reads the option's text: `primary` or nothing, or `current`, for each device, separated by commas. No text makes an
    /// address of a number, which the driver would take for a pointer: that is [`Contexts::of_host`].
    ///
    /// # Errors
    /// `InvalidArgument` for any other entry.
    pub fn read(list: &str) -> Result<Contexts> {
        let entry = |text: &str| match text {
            "" | "primary" => Ok(Entry::Primary),
            "current" => Ok(Entry::Current),
            _ => Err(Error::invalid(format!(
                "option `context`: `{text}` is neither `primary` nor `current`; addresses of contexts are given by \
                 `Contexts::of_host` in Rust, or make the context current on the thread that makes the provider"
            ))),
        };
        let entries = list.split(',').map(|text| entry(text.trim())).collect::<Result<Vec<_>>>()?;
        // One word for all devices, however many there are.
        Ok(Contexts { entries: if entries == [Entry::Primary] { Vec::new() } else { entries } })
    }

    /// The address of a live `CUcontext` for each visible device, in their order; none where the device works in its
    /// primary one.
    ///
    /// # Safety
    /// Each address is that of a context that the driver has made, which is not destroyed before the last object of
    /// every provider that is made with this. The driver follows the address as a pointer.
    pub unsafe fn of_host(addresses: &[Option<u64>]) -> Contexts {
        let entry =
            |address: &Option<u64>| address.filter(|a| *a != 0).map_or(Entry::Primary, Entry::Address);
        Contexts { entries: addresses.iter().map(entry).collect() }
    }

    /// The context of each of these devices; none for a primary one, and for a device that cannot be used.
    ///
    /// # Errors
    /// `InvalidArgument` for more entries than devices, and where the current context is to be taken, and there is none
    /// or it is another device's.
    pub(crate) fn find(
        &self,
        driver: &Driver,
        devices: &[Result<CuDevice>],
    ) -> Result<Vec<Option<CuContext>>> {
        let (given, visible) = (self.entries.len(), devices.len());
        if given > visible {
            return Err(Error::invalid(format!(
                "option `context`: {given} contexts for {visible} visible devices; there is one for each device, in the \
                 order of option `visible`"
            )));
        }
        let entries = self.entries.iter().copied().chain(std::iter::repeat(Entry::Primary));
        let find = |(entry, device): (Entry, &Result<CuDevice>)| match (entry, device) {
            (Entry::Primary, _) | (_, Err(_)) => Ok(None),
            (Entry::Current, Ok(device)) => current(driver, *device),
            (Entry::Address(address), Ok(_)) => Ok(Some(CuContext::from_raw(address))),
        };
        entries.zip(devices).map(find).collect()
    }
}

/// The context that is current on this thread, if it is alive and of this device; none for the device's primary one, which
/// needs no host that keeps it.
fn current(driver: &Driver, device: CuDevice) -> Result<Option<CuContext>> {
    let (mut context, mut owner) = (CuContext::NULL, 0);
    // SAFETY: valid out-pointers; the device is asked for only where a context is current.
    let result = unsafe {
        driver.cuCtxGetCurrent(&mut context).and_then(|()| {
            if context == CuContext::NULL { Ok(()) } else { driver.cuCtxGetDevice(&mut owner) }
        })
    };
    result.map_err(|e| Error::from(e).context("option `context`"))?;
    if context == CuContext::NULL {
        return Err(Error::invalid(
            "option `context`: no context is current on the thread that makes the provider; make it current there \
             with cuCtxSetCurrent",
        ));
    }
    if owner != device {
        return Err(of_another(context, owner, device));
    }
    let (mut free, mut total) = (0, 0);
    // SAFETY: valid out-pointers. Of a context that another thread has ended the driver says so here.
    unsafe { driver.cuMemGetInfo(&mut free, &mut total) }
        .map_err(|e| Error::from(e).context("option `context`"))?;
    Ok((!is_primary(driver, device, context)?).then_some(context))
}

/// Whether a live context is the primary one of its device.
fn is_primary(driver: &Driver, device: CuDevice, context: CuContext) -> Result<bool> {
    let (mut primary, mut flags, mut active) = (CuContext::NULL, 0, 0);
    // SAFETY: an ordinal of this driver and valid out-pointers. It is retained only where it exists already, and released again.
    unsafe {
        driver.cuDevicePrimaryCtxGetState(device, &mut flags, &mut active)?;
        if active != 0 {
            driver.cuDevicePrimaryCtxRetain(&mut primary, device)?;
            driver.cuDevicePrimaryCtxRelease(device)?;
        }
    }
    Ok(context == primary)
}

/// The error of a context that is given to a device to which it does not belong.
pub(crate) fn of_another(context: CuContext, owner: CuDevice, device: CuDevice) -> Error {
    Error::invalid(format!(
        "option `context`: CUcontext {context:?} is of device {owner}, and is given to device {device}; contexts are \
         given in the order of the visible devices"
    ))
}

/// The identity of a device in a context of the host. It is another one than that of the device in its primary context,
/// which does not reach the same memory: hosts take devices with one identity for one.
pub(crate) fn identity(uuid: [u8; 16], context: Option<CuContext>) -> [u8; 16] {
    let mut own = uuid;
    for (byte, other) in own[8..].iter_mut().zip(context.map_or(0, CuContext::raw).to_be_bytes()) {
        *byte ^= other;
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;

    #[test]
    fn texts_name_contexts_and_no_addresses() {
        let read = |list: &str| Contexts::read(list).map(|c| c.entries);
        for list in ["", "primary", " primary "] {
            assert_eq!(read(list), Ok(vec![]), "{list}");
        }
        assert_eq!(read(" primary, current "), Ok(vec![Entry::Primary, Entry::Current]));
        assert_eq!(read(",current,"), Ok(vec![Entry::Primary, Entry::Current, Entry::Primary]));
        for list in ["0x7fa0", "7fa0", "primary,0x1", "Current", "current current"] {
            let error = read(list).unwrap_err();
            let word = list.split(',').next_back().unwrap();
            assert!(
                error.code() == Code::InvalidArgument
                    && error.message().contains(&format!("`{word}` is neither")),
                "{list}: {error}"
            );
        }
    }

    #[test]
    fn a_context_makes_another_identity() {
        let (uuid, context) = ([7; 16], Some(CuContext::from_raw(0x1000)));
        assert_eq!(identity(uuid, None), uuid);
        assert_ne!(identity(uuid, context), uuid);
        assert_eq!(identity(identity(uuid, context), context), uuid);
    }
}

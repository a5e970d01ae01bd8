//! Contexts that the host hands over: the provider's option `context`.

use ep_core::{Error, Result};

/// The address of each visible device's context; none where the device works in its primary one.
///
/// # Errors
/// `InvalidArgument` for an entry that is no address, and for more entries than devices.
pub fn addresses(list: &str, devices: usize) -> Result<Vec<Option<u64>>> {
    let mut given = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let digits = entry.strip_prefix("0x").or_else(|| entry.strip_prefix("0X"));
        given.push(match (entry, digits.and_then(|d| u64::from_str_radix(d, 16).ok())) {
            ("" | "primary", _) => None,
            (_, Some(address)) if address != 0 => Some(address),
            _ => {
                return Err(Error::invalid(format!(
                    "option `context`: `{entry}` is neither `primary` nor the address of a CUcontext, such as \
                     0x55d0c0ffee00"
                )));
            }
        });
    }
    if given.len() > devices {
        return Err(Error::invalid(format!(
            "option `context`: {} contexts for {devices} visible devices; there is one for each device, in the order \
             of option `visible`",
            given.len()
        )));
    }
    given.resize(devices, None);
    Ok(given)
}

/// The identity of a device in a context that was handed over. It is another one than that of the device in its primary
/// context, which does not reach the same memory: hosts take devices with one identity for one.
pub fn identity(uuid: [u8; 16], context: Option<u64>) -> [u8; 16] {
    let mut own = uuid;
    for (byte, other) in own[8..].iter_mut().zip(context.unwrap_or(0).to_be_bytes()) {
        *byte ^= other;
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;

    #[test]
    fn there_is_an_address_for_each_device() {
        assert_eq!(addresses("0x7fa0", 1), Ok(vec![Some(0x7fa0)]));
        assert_eq!(addresses(" primary, 0X1F ", 3), Ok(vec![None, Some(0x1f), None]));
        assert_eq!(addresses("", 2), Ok(vec![None, None]));
        for (list, word) in
            [("7fa0", "`7fa0`"), ("0x", "`0x`"), ("0x0", "neither"), ("0x1,0x2", "2 contexts for 1")]
        {
            let error = addresses(list, 1).unwrap_err();
            assert!(
                error.code() == Code::InvalidArgument && error.message().contains(word),
                "{list}: {error}"
            );
        }
    }

    #[test]
    fn a_context_makes_another_identity() {
        let uuid = [7; 16];
        assert_eq!(identity(uuid, None), uuid);
        assert_ne!(identity(uuid, Some(0x1000)), uuid);
        assert_eq!(identity(identity(uuid, Some(0x1000)), Some(0x1000)), uuid);
    }
}

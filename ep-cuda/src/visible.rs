//! Which devices, in which order: the provider's option `visible`, in the syntax of `CUDA_VISIBLE_DEVICES`.
//!
//! The driver obeys the variable itself, so the option chooses among what the variable left.

use ep_core::{Error, Result};

/// The positions in `uuids` that `list` names, in its order: numbers, or `GPU-` and the first digits of an
/// identity, or `MIG-` and those of an instance of a device that is divided, which the driver shows as a device. A device
/// whose identity is not known has a number only.
///
/// # Errors
/// `InvalidArgument` for an entry that is neither, that names no device or more than one, and for a device that
/// is named twice.
pub fn choose(list: &str, uuids: &[Option<[u8; 16]>]) -> Result<Vec<usize>> {
    let mut chosen = Vec::new();
    for entry in list.split(',').map(str::trim).filter(|e| !e.is_empty()) {
        let position = position(entry, uuids)?;
        if chosen.contains(&position) {
            return Err(bad(entry, "names a device that is in the list already"));
        }
        chosen.push(position);
    }
    Ok(chosen)
}

fn position(entry: &str, uuids: &[Option<[u8; 16]>]) -> Result<usize> {
    if let Some(prefix) = entry.strip_prefix("GPU-").or_else(|| entry.strip_prefix("MIG-")) {
        let digits = prefix.replace('-', "").to_ascii_lowercase();
        if digits.is_empty() || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err(bad(entry, "is no identity: `GPU-` or `MIG-` and hexadecimal digits"));
        }
        let same = |uuid: &Option<[u8; 16]>| {
            let all: String = uuid.iter().flatten().map(|b| format!("{b:02x}")).collect();
            all.starts_with(&digits)
        };
        let mut found = uuids.iter().enumerate().filter(|(_, uuid)| same(uuid)).map(|(i, _)| i);
        return match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            (Some(_), Some(_)) => Err(bad(entry, "fits several devices; give more digits")),
            (None, _) if uuids.contains(&None) => Err(bad(
                entry,
                "fits no device, and the driver does not tell all identities; use numbers, from 0",
            )),
            (None, _) => Err(bad(entry, "fits no device; `nvidia-smi -L` lists the identities")),
        };
    }
    match entry.parse::<usize>() {
        Ok(n) if n < uuids.len() => Ok(n),
        Ok(_) => Err(bad(entry, &format!("is no device: the driver shows {}, from 0", uuids.len()))),
        Err(_) => Err(bad(entry, "is neither a number nor `GPU-` or `MIG-` and an identity")),
    }
}

fn bad(entry: &str, what: &str) -> Error {
    Error::invalid(format!("option `visible`: `{entry}` {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;

    fn uuid(first: u8, second: u8) -> Option<[u8; 16]> {
        let mut uuid = [0; 16];
        (uuid[0], uuid[1]) = (first, second);
        Some(uuid)
    }

    #[test]
    fn numbers_and_identities_are_taken_in_order() {
        let uuids = [uuid(0x12, 0x34), uuid(0x12, 0x56), uuid(0xab, 0xcd)];
        assert_eq!(choose("2, 0", &uuids), Ok(vec![2, 0]));
        assert_eq!(choose("GPU-AB,1", &uuids), Ok(vec![2, 1]));
        assert_eq!(choose("GPU-1256", &uuids), Ok(vec![1]));
        assert_eq!(choose("MIG-ab-cd, GPU-12-34", &uuids), Ok(vec![2, 0]));
        assert_eq!(choose("", &uuids), Ok(vec![]));
        let unknown = [None, uuid(0x12, 0x34), None];
        assert_eq!(choose("2,GPU-12,0", &unknown), Ok(vec![2, 1, 0]));
        let error = choose("GPU-56", &unknown).unwrap_err();
        assert!(error.message().contains("does not tell all identities"), "{error}");
    }

    #[test]
    fn what_names_no_single_device_is_refused() {
        let uuids = [uuid(0x12, 0x34), uuid(0x12, 0x56)];
        let cases = [
            ("2", "shows 2"),
            ("GPU-12", "several"),
            ("GPU-ff", "fits no device"),
            ("GPU-", "hexadecimal"),
            ("-1", "neither"),
            ("MIG-1", "several"),
            ("MIG-GPU-1234/1/0", "hexadecimal"),
            ("NPU-1", "neither"),
            ("1,GPU-1256", "already"),
        ];
        for (list, word) in cases {
            let error = choose(list, &uuids).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{list}");
            assert!(error.message().contains(word), "{list}: {error}");
        }
    }
}

//! `CUDA_VISIBLE_DEVICES`, as the driver reads it when it is initialized.

/// The variable.
pub(crate) const ENV: &str = "CUDA_VISIBLE_DEVICES";

/// The identity of a device.
pub(crate) fn uuid(device: i32) -> [u8; 16] {
    let mut uuid = *b"fake gpu uuid ..";
    uuid[0] = 0xf0 + device as u8;
    uuid
}

/// The devices of `0..count` that a list shows, in its order: all without a list. An entry that names no device, or none
/// that is not there already, ends the list, and so does an instance of a device that is divided, of which a process sees
/// one.
pub(crate) fn choose(list: Option<&str>, count: i32) -> Vec<i32> {
    let Some(list) = list else { return (0..count).collect() };
    let mut shown = Vec::new();
    for entry in list.split(',').map(str::trim) {
        match named(entry, count) {
            Some(device) if !shown.contains(&device) => shown.push(device),
            _ => break,
        }
        if entry.starts_with("MIG-") {
            break;
        }
    }
    shown
}

fn named(entry: &str, count: i32) -> Option<i32> {
    let Some(identity) = entry.strip_prefix("GPU-").or_else(|| entry.strip_prefix("MIG-")) else {
        return entry.parse().ok().filter(|device| (0..count).contains(device));
    };
    let digits = identity.replace('-', "");
    let fits = |device: &i32| {
        let all: String = uuid(*device).iter().map(|b| format!("{b:02x}")).collect();
        !digits.is_empty() && all.starts_with(&digits)
    };
    let mut found = (0..count).filter(fits);
    // One that fits several names none.
    found.next().filter(|_| found.next().is_none())
}

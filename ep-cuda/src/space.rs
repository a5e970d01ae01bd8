//! Memory spaces, by name.

use ep_core::provider::inline::{HOST_SPACE, is_host};

/// The kind of device, and the first word of its memory spaces.
pub const KIND: &str = "cuda";

fn hex(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|b| format!("{b:02x}")).collect()
}

/// The memory of the device with this identity.
pub fn device(uuid: &[u8; 16]) -> String {
    format!("{KIND}:{}", hex(uuid))
}

/// Pinned host memory of the device with this identity.
pub fn pinned(uuid: &[u8; 16]) -> String {
    format!("host-pinned:{KIND}:{}", hex(uuid))
}

/// What a space is to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    /// Memory of the host, pinned by whomever or not.
    Host,
    /// Memory of the device with this space.
    Device(&'a str),
}

impl<'a> Place<'a> {
    /// The place of a space; `None` for one of another kind of device.
    pub fn of(space: &'a str) -> Option<Place<'a>> {
        if is_host(space) || space == HOST_SPACE || space.starts_with("host-pinned:") {
            return Some(Place::Host);
        }
        space.strip_prefix(KIND).filter(|rest| rest.starts_with(':')).map(|_| Place::Device(space))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_have_places() {
        let uuid = [0xab; 16];
        assert_eq!(device(&uuid), format!("cuda:{}", "ab".repeat(16)));
        assert_eq!(Place::of(&device(&uuid)), Some(Place::Device(&device(&uuid))));
        assert_eq!(Place::of(&pinned(&uuid)), Some(Place::Host));
        assert_eq!(Place::of("host"), Some(Place::Host));
        assert_eq!((Place::of("cudax:1"), Place::of("sim:0"), Place::of("")), (None, None, None));
    }
}

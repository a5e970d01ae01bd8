//! What the fake reads of an image: the kernels and the bytes of their arguments.

/// An image of the fake's own compiler: this, then a line for each kernel with its name and argument bytes.
pub(crate) const FAKE_MAGIC: &str = "FAKECUBIN\n";

/// Kernels of an image; `None` for one that no driver takes.
///
/// # Safety
/// `image` points to a whole image: text of the fake's compiler that ends with a zero byte, or an ELF file.
pub(crate) unsafe fn kernels(image: *const u8) -> Option<Vec<(String, Option<usize>)>> {
    // SAFETY: an image has at least this many bytes.
    let head = unsafe { std::slice::from_raw_parts(image, 10) };
    if head == FAKE_MAGIC.as_bytes() {
        // SAFETY: the text ends with a zero byte, as the caller promises.
        let text = unsafe { std::ffi::CStr::from_ptr(image.cast()) }.to_str().ok()?;
        let kernel = |line: &str| {
            let (name, bytes) = line.split_once(' ')?;
            Some((name.to_owned(), bytes.parse().ok()))
        };
        return text.lines().skip(1).map(kernel).collect();
    }
    if &head[..4] != b"\x7fELF" {
        return None;
    }
    // SAFETY: as the caller promises.
    unsafe { elf_kernels(image) }
}

/// Reads a number of `N` bytes.
///
/// # Safety
/// They are readable.
unsafe fn number<const N: usize>(at: *const u8) -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: as the caller promises.
    bytes[..N].copy_from_slice(unsafe { std::slice::from_raw_parts(at, N) });
    u64::from_le_bytes(bytes)
}

/// The sections `.nv.info.KERNEL` of a cubin are lists of attributes: a format byte, an attribute byte, and two bytes
/// of value or of length. Attribute 0x19 is the size of the kernel's parameters.
///
/// # Safety
/// `image` points to a whole 64-bit ELF file.
unsafe fn elf_kernels(image: *const u8) -> Option<Vec<(String, Option<usize>)>> {
    const SECTION: usize = 64;
    let mut found = Vec::new();
    // SAFETY: a whole file, whose header says where its sections are, which say where their bytes are.
    unsafe {
        let table = image.add(number::<8>(image.add(0x28)) as usize);
        let count = number::<2>(image.add(0x3c)) as usize;
        let names = number::<2>(image.add(0x3e)) as usize;
        let section = |i: usize| {
            let head = table.add(i * SECTION);
            let (offset, size) = (number::<8>(head.add(0x18)) as usize, number::<8>(head.add(0x20)) as usize);
            (number::<4>(head) as usize, offset, size)
        };
        let (_, strings, _) = section(names);
        for i in 0..count {
            let (name, offset, size) = section(i);
            let name = std::ffi::CStr::from_ptr(image.add(strings + name).cast()).to_str().ok()?;
            let Some(kernel) = name.strip_prefix(".nv.info.") else { continue };
            let bytes = std::slice::from_raw_parts(image.add(offset), size);
            found.push((kernel.to_owned(), parameter_bytes(bytes)));
        }
    }
    Some(found)
}

fn parameter_bytes(mut attributes: &[u8]) -> Option<usize> {
    const WITH_LENGTH: u8 = 4;
    const PARAMETER_BYTES: u8 = 0x19;
    while let [format, attribute, low, high, rest @ ..] = attributes {
        let value = usize::from(u16::from_le_bytes([*low, *high]));
        if *attribute == PARAMETER_BYTES {
            return Some(value);
        }
        attributes = if *format == WITH_LENGTH { rest.get(value..)? } else { rest };
    }
    None
}

//! Reading what the other side of the boundary wrote, without trusting it.

use super::types::EpStr;
use crate::{Error, Result};
use std::mem::{MaybeUninit, size_of};

/// A struct that starts with `struct_size: u64` and only ever grows at its end.
///
/// # Safety
/// The type is `repr(C)`, has alignment 8, its first field is `struct_size: u64`, it has no padding, and it
/// holds only integers, floats, raw pointers and nullable functions, so that every bit pattern that a
/// conforming peer writes, all zero included, is a valid value.
pub unsafe trait Growable: Copy + 'static {
    /// The struct's name in the contract.
    const NAME: &'static str;
}

/// Longest list that is believed; beyond it the count is taken for garbage.
const MAX_LIST: u64 = 1 << 24;

/// The `struct_size` of a peer's struct, if it can be true.
///
/// # Safety
/// A non-null, aligned `ptr` is readable for eight bytes.
#[inline]
unsafe fn checked_size<T: Growable>(ptr: *const T) -> Result<usize> {
    if ptr.is_null() || !ptr.is_aligned() {
        return Err(bad_pointer(ptr));
    }
    // SAFETY: not null, aligned, and readable as the caller promises; `struct_size` comes first.
    let size = unsafe { ptr.cast::<u64>().read() };
    if size < 8 || size % 8 != 0 || size > 1 << 20 {
        return Err(bad_size(T::NAME, size));
    }
    Ok(size as usize)
}

#[cold]
fn bad_pointer<T: Growable>(ptr: *const T) -> Error {
    if ptr.is_null() {
        return Error::abi(format!("{} is null", T::NAME));
    }
    Error::abi(format!("{} at {ptr:p} is not aligned to {} bytes", T::NAME, align_of::<T>()))
}

#[cold]
fn bad_size(name: &str, size: u64) -> Error {
    Error::abi(format!("{name}.struct_size is {size}, which no version of it has"))
}

/// Copies `min(size, size_of::<T>())` bytes over a zeroed value.
///
/// # Safety
/// `ptr` is readable for `size` bytes.
unsafe fn copy_prefix<T: Growable>(ptr: *const T, size: usize) -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    let n = size.min(size_of::<T>());
    // SAFETY: `ptr` is readable for `n <= size` bytes as the caller promises, and `value` has room for
    // `n <= size_of::<T>()`; they are distinct objects. Any prefix over zeros is valid: `Growable`.
    unsafe {
        std::ptr::copy_nonoverlapping(ptr.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), n);
        value.assume_init()
    }
}

/// Copies a table. A shorter one (an older peer) leaves the missing entries null; of a longer one (a newer
/// peer) the unknown entries are not looked at.
///
/// # Errors
/// `AbiMismatch` when the pointer is null or misaligned or the size impossible.
///
/// # Safety
/// A non-null, aligned `ptr` is readable for eight bytes, and for as many as those say.
pub unsafe fn read_table<T: Growable>(ptr: *const T) -> Result<T> {
    // SAFETY: as the caller promises.
    let size = unsafe { checked_size(ptr) }?;
    // SAFETY: readable for `size` bytes as the caller promises.
    Ok(unsafe { copy_prefix(ptr, size) })
}

/// Copies a struct of data. A shorter one is completed with zeros, which mean the former behaviour; a longer
/// one is accepted when everything that this side does not know is zero.
///
/// # Errors
/// `AbiMismatch` as [`read_table`]; `Unsupported` when an unknown field is set.
///
/// # Safety
/// As [`read_table`].
#[inline]
pub unsafe fn read_struct<T: Growable>(ptr: *const T) -> Result<T> {
    // SAFETY: as the caller promises.
    let size = unsafe { checked_size(ptr) }?;
    if size == size_of::<T>() {
        // SAFETY: aligned, readable for `size_of::<T>()` bytes; any bytes of the peer's are a valid `T`, which holds only
        // integers, floats and nullable pointers.
        return Ok(unsafe { ptr.read() });
    }
    // SAFETY: readable for `size` bytes as the caller promises.
    unsafe { read_other(ptr, size) }
}

/// The same without a copy, where the peer's struct is of our version; a copy goes to `room`.
///
/// # Errors
/// As [`read_struct`].
///
/// # Safety
/// As [`read_table`], for as long as the result is used; nobody writes there in that time.
#[inline]
pub unsafe fn borrow_struct<T: Growable>(ptr: *const T, room: &mut MaybeUninit<T>) -> Result<&T> {
    // SAFETY: as the caller promises.
    let size = unsafe { checked_size(ptr) }?;
    if size == size_of::<T>() {
        // SAFETY: aligned, readable for `size_of::<T>()` bytes as long as that; any bytes of the peer's are a valid `T`, which
        // holds only integers, floats and nullable pointers.
        return Ok(unsafe { &*ptr });
    }
    // SAFETY: readable for `size` bytes as the caller promises.
    Ok(room.write(unsafe { read_other(ptr, size) }?))
}

/// A struct of another version than ours: apart, so that launches need no call for those of our own.
///
/// # Errors
/// As [`read_struct`].
///
/// # Safety
/// `ptr` is aligned and readable for `size` bytes.
#[cold]
unsafe fn read_other<T: Growable>(ptr: *const T, size: usize) -> Result<T> {
    if size > size_of::<T>() {
        // SAFETY: readable for `size` bytes as the caller promises.
        let tail = unsafe {
            std::slice::from_raw_parts(ptr.cast::<u8>().add(size_of::<T>()), size - size_of::<T>())
        };
        if let Some(i) = tail.iter().position(|b| *b != 0) {
            return Err(Error::unsupported(format!(
                "{}: a field at byte {} is set that this version does not know; leave it at its default or \
                 use a newer version of this side",
                T::NAME,
                size_of::<T>() + i
            )));
        }
    }
    // SAFETY: readable for `size` bytes as the caller promises.
    Ok(unsafe { copy_prefix(ptr, size) })
}

/// Fills a caller's struct as far as its capacity, `struct_size`, goes: with `value`, and with zeros where a newer
/// caller's struct is longer. That field itself stays as it is. Reads nothing else of `out`, which need not be
/// initialised.
///
/// # Errors
/// `AbiMismatch` as [`read_table`].
///
/// # Safety
/// A non-null, aligned `out` is readable for eight bytes, and writable for as many as those say.
pub unsafe fn write_struct<T: Growable>(out: *mut T, value: &T) -> Result<()> {
    // SAFETY: as the caller promises.
    let capacity = unsafe { checked_size(out) }?;
    let n = capacity.min(size_of::<T>());
    // SAFETY: `n` is at least 8 and at most both sizes; the structs are distinct objects; `out` is writable for `capacity`
    // bytes, of which `n` are copied.
    unsafe {
        let from = std::ptr::from_ref(value).cast::<u8>().add(8);
        std::ptr::copy_nonoverlapping(from, out.cast::<u8>().add(8), n - 8);
        std::ptr::write_bytes(out.cast::<u8>().add(n), 0, capacity - n);
    }
    Ok(())
}

/// The text of an [`EpStr`].
///
/// # Errors
/// `InvalidArgument` when it is null with a length, absurdly long, or not UTF-8.
///
/// # Safety
/// A non-null `ptr` is readable for `len` bytes, unchanged, for `'a`.
pub unsafe fn str_of<'a>(s: EpStr) -> Result<&'a str> {
    // SAFETY: as the caller promises.
    let bytes = unsafe { list(s.ptr.cast::<u8>(), s.len, "text") }?;
    std::str::from_utf8(bytes).map_err(|e| Error::invalid(format!("text is not UTF-8: {e}")))
}

/// An owned copy of an [`EpStr`]; invalid UTF-8 is replaced, an impossible pointer gives empty text.
///
/// # Safety
/// A non-null `ptr` is readable for `len` bytes.
pub unsafe fn string_of(s: EpStr) -> String {
    // SAFETY: as the caller promises.
    let bytes = unsafe { list(s.ptr.cast::<u8>(), s.len, "text") }.unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

/// `count` values from `ptr`, as a slice. A null pointer is fine for a count of 0.
///
/// # Errors
/// `InvalidArgument` for a null or misaligned pointer, or a count that cannot be true; names `what`.
///
/// # Safety
/// A non-null, aligned `ptr` is readable for `count` values, unchanged, for `'a`.
pub unsafe fn list<'a, T>(ptr: *const T, count: u64, what: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if ptr.is_null() || !ptr.is_aligned() || count > MAX_LIST {
        return Err(bad_list(ptr, count, what));
    }
    // SAFETY: checked above, and the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(ptr, count as usize) })
}

#[cold]
fn bad_list<T>(ptr: *const T, count: u64, what: &str) -> Error {
    Error::invalid(if count > MAX_LIST {
        format!(
            "{what}: {count} entries are more than the {MAX_LIST} that are believed; set the count to their number"
        )
    } else if ptr.is_null() {
        format!("{what}: {count} entries at a null address; give the array's address, or a count of 0")
    } else {
        format!(
            "{what}: {count} entries at {ptr:p}, which is not aligned to {} bytes; align the array",
            align_of::<T>()
        )
    })
}

/// The error for a required function that a table lacks.
#[cold]
pub fn missing_entry(name: &str) -> Error {
    Error::abi(format!(
        "the function {name} is missing: its entry in the other side's table is null, or behind the table's \
         struct_size; this version requires it, so put the function there"
    ))
}

#[cfg(test)]
mod tests {
    use super::super::{EpCopy, EpStr};
    use super::*;
    use crate::Code;

    #[repr(C, align(8))]
    struct Raw([u64; 16]);

    fn read(words: &[u64]) -> Result<EpCopy> {
        let mut raw = Raw([0; 16]);
        raw.0[..words.len()].copy_from_slice(words);
        let (ptr, mut room) = ((&raw const raw).cast::<EpCopy>(), MaybeUninit::uninit());
        // SAFETY: `raw` is aligned and readable for 128 bytes; the tests' sizes are below that or refused.
        let (copied, borrowed) = unsafe { (read_struct(ptr), borrow_struct(ptr, &mut room)) };
        let fields = |c: &EpCopy| (c.dst, c.dst_space.ptr, c.src, c.src_space.ptr, c.bytes);
        assert_eq!(borrowed.as_ref().map(|c| fields(c)), copied.as_ref().map(fields));
        if let Ok(borrowed) = borrowed {
            let ours = raw.0[0] == size_of::<EpCopy>() as u64;
            assert_eq!(std::ptr::eq(borrowed, ptr), ours, "only another version's is copied");
        }
        copied
    }

    #[test]
    fn shorter_is_completed_with_zeros() {
        let copy = read(&[16, 7, 99, 99]).unwrap();
        assert_eq!((copy.dst, copy.bytes), (7, 0));
        assert!(copy.dst_space.ptr.is_null());
    }

    #[test]
    fn our_own_size_is_read_whole() {
        let n = size_of::<EpCopy>() as u64;
        let mut words: [u64; size_of::<EpCopy>() / 8 + 1] = std::array::from_fn(|i| 100 + i as u64);
        words[0] = n;
        // Behind it is another's memory, which need not be zero.
        let copy = read(&words).unwrap();
        // SAFETY: a `Growable` has no padding, and holds what is valid as an integer.
        let found: [u64; size_of::<EpCopy>() / 8] = unsafe { std::mem::transmute(copy) };
        assert_eq!(found, words[..found.len()]);
    }

    #[test]
    fn longer_is_accepted_only_with_zeros() {
        let n = size_of::<EpCopy>() as u64;
        assert_eq!(read(&[n + 8, 7]).unwrap().dst, 7);
        let mut words = [0; 10];
        words[0] = n + 8;
        words[n as usize / 8] = 1;
        assert_eq!(read(&words).unwrap_err().code(), Code::Unsupported);
    }

    #[test]
    fn writing_fills_the_capacity_and_reads_only_it() {
        let value = EpCopy { dst: 1, src: 2, bytes: 3, ..EpCopy::EMPTY };
        let mut out = std::mem::MaybeUninit::<Raw>::uninit();
        let words = out.as_mut_ptr().cast::<u64>();
        // SAFETY: `out` has room for 16 words; only those that were written are read.
        unsafe {
            words.write(16);
            words.add(2).write(77);
            write_struct(words.cast::<EpCopy>(), &value).unwrap();
            assert_eq!((words.read(), words.add(1).read(), words.add(2).read()), (16, 1, 77));
            let n = size_of::<EpCopy>();
            // What a newer caller has behind our last field is zero afterwards, and what comes after that is not ours.
            words.write(n as u64 + 16);
            words.add(n / 8 + 2).write(77);
            write_struct(words.cast::<EpCopy>(), &value).unwrap();
            let last: [u64; 4] = std::array::from_fn(|i| words.add(n / 8 - 1 + i).read());
            assert_eq!(last, [3, 0, 0, 77]);
            words.write(4);
            assert_eq!(write_struct(words.cast::<EpCopy>(), &value).unwrap_err().code(), Code::AbiMismatch);
        }
    }

    #[test]
    fn impossible_sizes_and_pointers_are_refused() {
        for size in [0, 7, 9, u64::MAX, 1 << 21] {
            assert_eq!(read(&[size]).unwrap_err().code(), Code::AbiMismatch, "{size}");
        }
        // SAFETY: null and misaligned pointers are refused before they are read.
        unsafe {
            assert!(read_table::<EpCopy>(std::ptr::null()).is_err());
            assert!(read_table::<EpCopy>(std::ptr::without_provenance(12)).is_err());
            let null = str_of(EpStr { ptr: std::ptr::null(), len: 3 }).unwrap_err();
            assert_eq!(
                null.message(),
                "text: 3 entries at a null address; give the array's address, or a count of 0"
            );
            let odd = list::<u64>(std::ptr::without_provenance(12), 1, "dims").unwrap_err();
            assert_eq!(
                odd.message(),
                "dims: 1 entries at 0xc, which is not aligned to 8 bytes; align the array"
            );
            let many = list::<u8>(std::ptr::without_provenance(8), 1 << 25, "names").unwrap_err();
            assert!(many.message().starts_with("names: 33554432 entries are more than"), "{many}");
            assert_eq!(str_of(EpStr::ZERO), Ok(""));
            let bad = b"\xff\xfe";
            assert!(str_of(EpStr { ptr: bad.as_ptr().cast(), len: 2 }).is_err());
            assert_eq!(string_of(EpStr { ptr: bad.as_ptr().cast(), len: 2 }), "\u{fffd}\u{fffd}");
        }
    }
}

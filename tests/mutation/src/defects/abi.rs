//! The binary contract.

use super::{Defect, tables};
use crate::registrations::{Maker, Registration};
use crate::tables::{Tables, honest};
use ep_core::DType;
use ep_core::abi::*;
use ep_core::schema::DescKind;
use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::null;

pub const DEFECTS: [Defect; 7] = [
    tables("abi-info-past-capacity", |t| t.device.info = Some(info_past_capacity)),
    tables("abi-newer-args-accepted", |t| {
        t.build = build_from_a_newer_descriptor;
        t.launch = launch_with_newer_arguments;
    }),
    tables("abi-status-text-in-shared-buffer", |t| t.answer = text_in_shared_buffer),
    tables("abi-query-ignores-minor", |t| t.query = query_ignores_minor),
    tables("abi-interface-by-prefix", |t| {
        t.device.get_interface = Some(device_interface_by_prefix);
        t.stream.get_interface = Some(stream_interface_by_prefix);
        t.provider.get_interface = Some(provider_interface_by_prefix);
    }),
    tables("abi-reduce-dtypes-swapped", reduce_dtypes_swapped),
    tables("abi-register-drops-status", |t| t.provider.register_all = Some(register_drops_status)),
];

/// A function that the SDK always has.
pub fn has<F>(entry: Option<F>) -> F {
    entry.unwrap_or_else(|| unreachable!("the SDK has it"))
}

/// A copy of a struct of any version, as one of this version; `None` where the SDK refuses it.
///
/// # Safety
/// `value` is null or readable for the size that it names.
pub unsafe fn copied<T: Growable>(value: *const T) -> Option<T> {
    // SAFETY: as the caller promises.
    let mut own = unsafe { read_struct(value) }.ok()?;
    // A longer one has been read, so what is behind this version's fields says nothing.
    // SAFETY: growable structs begin with their size.
    unsafe { (&raw mut own).cast::<u64>().write(size_of::<T>() as u64) };
    Some(own)
}

unsafe extern "C" fn info_past_capacity(device: *mut EpDevice, out: *mut EpDeviceInfo) -> *const EpStatus {
    let mut own = EpDeviceInfo::EMPTY;
    // SAFETY: the host's call, with room of our own.
    let status = unsafe { (has(honest().device.info))(device, &mut own) };
    if status.is_null() && !out.is_null() {
        // SAFETY: the defect: the caller may have less room. It has some, or the honest function would have been asked.
        unsafe {
            own.struct_size = (*out).struct_size;
            out.write(own);
        }
    }
    status
}

/// The first bytes of a struct that is longer than this version's, as one of this version's length.
///
/// # Safety
/// `value` is readable for the size that it names.
unsafe fn cut(value: *const c_void, own: usize) -> Option<Vec<u64>> {
    if value.is_null() || !value.cast::<u64>().is_aligned() {
        return None;
    }
    // SAFETY: every growable struct begins with its size; as the caller promises.
    unsafe {
        let size = value.cast::<u64>().read();
        // Longer ones are no structs but wrong sizes.
        if size <= own as u64 || size > 2 * own as u64 + 64 {
            return None;
        }
        let mut words = std::slice::from_raw_parts(value.cast::<u64>(), own / 8).to_vec();
        words[0] = own as u64;
        Some(words)
    }
}

unsafe fn build_from_a_newer_descriptor(
    maker: &Maker,
    device: *mut EpDevice,
    desc: *const c_void,
    out: *mut *mut EpPrimitive,
) -> *const EpStatus {
    // SAFETY: the host's descriptor is readable for its size.
    let shorter = unsafe { cut(desc, maker.schema().desc_size) };
    let desc = shorter.as_ref().map_or(desc, |words| words.as_ptr().cast());
    // SAFETY: the host's call, with a descriptor of this version in the place of a newer one.
    unsafe { maker.build(device, desc, out) }
}

unsafe fn launch_with_newer_arguments(
    maker: &Maker,
    primitive: *mut EpPrimitive,
    stream: *mut EpStream,
    args: *const c_void,
) -> *const EpStatus {
    // SAFETY: the host's arguments are readable for their size.
    let shorter = unsafe { cut(args, maker.schema().args_size) };
    let args = shorter.as_ref().map_or(args, |words| words.as_ptr().cast());
    // SAFETY: the host's call, with arguments of this version in the place of newer ones.
    unsafe { maker.launch(primitive, stream, args) }
}

fn text_in_shared_buffer(status: *const EpStatus) -> *const EpStatus {
    const ROOM: usize = 512;
    thread_local! {
        // Never freed, so that what has ended with its thread can still be read.
        static BUFFER: RefCell<&'static mut [u8]> = RefCell::new(Box::leak(Box::new([b' '; ROOM])));
    }
    unsafe extern "C" fn release(status: *const EpStatus) {
        // SAFETY: made below, released once.
        drop(unsafe { Box::from_raw(status.cast_mut()) });
    }
    // SAFETY: the SDK's status, which is ours.
    let Err(e) = (unsafe { take(status) }) else { return null() };
    let (ptr, len) = BUFFER.with_borrow_mut(|buffer| {
        let len = e.message().len().min(ROOM);
        // The whole buffer: a longer text of an older status runs on.
        buffer.fill(b' ');
        buffer[..len].copy_from_slice(&e.message().as_bytes()[..len]);
        (buffer.as_ptr().cast(), len as u64)
    });
    let message = EpStr { ptr, len };
    Box::into_raw(Box::new(EpStatus { code: e.code() as i32, reserved: 0, message, release: Some(release) }))
}

unsafe extern "C" fn query_ignores_minor(
    major: u32,
    minor: u32,
    out: *mut *const EpPlugin,
) -> *const EpStatus {
    let minor = if major == ABI_MAJOR { minor.max(ABI_MINOR) } else { minor };
    // SAFETY: the host's call.
    unsafe { (honest().query)(major, minor, out) }
}

/// The interfaces of a device.
const KNOWN: [&str; 2] = ["ep.timing", "ep.foreign_stream"];

/// The name of the first known interface that another begins.
///
/// # Safety
/// `name` is a live text.
unsafe fn completed(name: EpStr) -> Option<&'static str> {
    // SAFETY: as the caller promises.
    let prefix = unsafe { string_of(name) };
    KNOWN.into_iter().find(|known| known.starts_with(&prefix))
}

unsafe extern "C" fn device_interface_by_prefix(
    device: *mut EpDevice,
    name: EpStr,
    version: u32,
    out: *mut *const EpInterface,
) -> *const EpStatus {
    // SAFETY: the host's call, perhaps with another name.
    unsafe {
        let found = completed(name);
        let (name, version) = found.map_or((name, version), |known| (EpStr::new(known), 1));
        (has(honest().device.get_interface))(device, name, version, out)
    }
}

// Streams and providers have no interface here whose name could begin like that.

unsafe extern "C" fn stream_interface_by_prefix(
    stream: *mut EpStream,
    name: EpStr,
    _: u32,
    out: *mut *const EpInterface,
) -> *const EpStatus {
    // SAFETY: the host's call in the only version there is.
    unsafe { (has(honest().stream.get_interface))(stream, name, 1, out) }
}

unsafe extern "C" fn provider_interface_by_prefix(
    provider: *mut EpProvider,
    name: EpStr,
    _: u32,
    out: *mut *const EpInterface,
) -> *const EpStatus {
    // SAFETY: as above.
    unsafe { (has(honest().provider.get_interface))(provider, name, 1, out) }
}

/// The rows of `reduce` that are swapped.
const SWAPPED: [[DType; 2]; 2] = [[DType::F16, DType::F32], [DType::BF16, DType::F32]];
/// Ends the names of the factories that have them.
const SUFFIX: &str = ".sum";

fn reduce_dtypes_swapped(tables: &mut Tables) {
    tables.registrations = split_off_sums;
    tables.build = build_swapped;
}

/// The value of `reduce`'s selector for sums.
fn sum() -> Option<u32> {
    let schema = ep_core::schema::core_schema("reduce")?;
    let (_, names) = schema.selectors().next()?;
    names.iter().position(|name| name == "sum").map(|i| i as u32)
}

/// A factory for sums alone, with the swapped rows, and one for what else the honest one is for.
fn split_off_sums(whole: Registration) -> Vec<Registration> {
    // SAFETY: the texts and lists of the SDK's info live as long as it.
    let (op, name, selectors, dtypes) = unsafe {
        (
            string_of(whole.info.op),
            string_of(whole.info.name),
            list(whole.info.selectors, whole.info.num_selector_rows, "selectors").unwrap_or_default(),
            list(whole.info.dtypes, whole.info.num_dtype_rows * 2, "dtypes"),
        )
    };
    let Some(sum) = sum().filter(|sum| op == "reduce" && selectors.contains(sum)) else { return vec![whole] };
    let mut rows = dtypes.unwrap_or_default().to_vec();
    for row in rows.chunks_exact_mut(2) {
        if SWAPPED.iter().any(|swapped| swapped.map(|d| d.0) == *row) {
            row.swap(0, 1);
        }
    }
    let others: Vec<u32> = selectors.iter().copied().filter(|s| *s != sum).collect();
    let mut info = whole.info;
    info.num_selector_rows = 1;
    let sums = Registration {
        info,
        name: Some(format!("{name}{SUFFIX}")),
        selectors: Some(vec![sum]),
        dtypes: Some(rows),
    };
    info.num_selector_rows = others.len() as u64;
    let rest = Registration { info, selectors: Some(others.clone()), ..whole };
    if others.is_empty() { vec![sums] } else { vec![sums, rest] }
}

/// Makes the honest primitive of the row that was meant.
unsafe fn build_swapped(
    maker: &Maker,
    device: *mut EpDevice,
    desc: *const c_void,
    out: *mut *mut EpPrimitive,
) -> *const EpStatus {
    let schema = maker.schema();
    if !maker.name.ends_with(SUFFIX) || desc.is_null() {
        // SAFETY: the host's call.
        return unsafe { maker.build(device, desc, out) };
    }
    // SAFETY: the host's descriptor of an op of this version.
    let mut words = unsafe { std::slice::from_raw_parts(desc.cast::<u64>(), schema.desc_size / 8) }.to_vec();
    let places: Vec<usize> =
        schema.desc.iter().filter(|f| matches!(f.kind, DescKind::DType)).map(|f| f.offset).collect();
    let base: *mut u8 = words.as_mut_ptr().cast();
    // SAFETY: the offsets of two dtypes in the copy.
    unsafe {
        let (src, dst) = (base.add(places[0]).cast::<u32>(), base.add(places[1]).cast::<u32>());
        if SWAPPED.iter().any(|row| [(*dst), (*src)] == row.map(|d| d.0)) {
            src.swap(dst);
        }
    }
    // SAFETY: the host's call, with a descriptor of ours.
    unsafe { maker.build(device, words.as_ptr().cast(), out) }
}

unsafe extern "C" fn register_drops_status(
    provider: *mut EpProvider,
    registrar: *const EpRegistrar,
) -> *const EpStatus {
    unsafe extern "C" fn add_schema(context: *mut c_void, schema: *const EpOpSchema) -> *const EpStatus {
        // SAFETY: the context is the host's registrar, which lives during `register_all`.
        unsafe {
            let theirs = &*context.cast::<RegistrarTable>();
            let _lost = (theirs.add_schema)(theirs.context, schema);
        }
        null()
    }
    unsafe extern "C" fn add_factory(context: *mut c_void, info: *const EpFactoryInfo) -> *const EpStatus {
        // SAFETY: as above.
        unsafe {
            let theirs = &*context.cast::<RegistrarTable>();
            let _lost = (theirs.add_factory)(theirs.context, info);
        }
        null()
    }
    // SAFETY: the host's registrar; ours lives during the call.
    unsafe {
        let theirs = match RegistrarTable::load(registrar) {
            Ok(theirs) => theirs,
            Err(e) => return report(e),
        };
        let ours = EpRegistrar {
            context: (&raw const theirs).cast_mut().cast(),
            add_schema: Some(add_schema),
            add_factory: Some(add_factory),
            ..EpRegistrar::EMPTY
        };
        (has(honest().provider.register_all))(provider, &ours)
    }
}

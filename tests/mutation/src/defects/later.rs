//! Defects of `later.toml`, of every area.

use super::abi::has;
use super::async_::{create_with_shadow, destroy_with_shadow, on_shadow};
use super::memory::{copy_changed, is_host};
use super::objects::lock;
use super::{Defect, launch, tables};
use crate::calls::*;
use crate::prepack;
use crate::registrations::Maker;
use crate::tables::honest;
use ep_core::abi::*;
use ep_core::primitive::MatmulArgs;
use ep_core::schema::DescKind;
use ep_core::{Code, DType, Result, Scalar};
use ep_sim::{Call, DeviceMemory, Write};
use primitives::reference::Number;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::sync::{Mutex, OnceLock};

pub const DEFECTS: [Defect; 17] = [
    launch("mm-second-piece-of-k-replaces", &["matmul"], second_piece_replaces),
    launch("mm-alpha-loses-imaginary-part", &["matmul"], alpha_is_real),
    launch("rows-grid-of-65535", &["softmax"], grid_of_65535),
    launch("rows-epsilon-of-the-first", &["layer_norm"], epsilon_of_the_first),
    launch("mv-permute-plan-by-dimensions", &["permute"], plan_by_dimensions),
    launch("mv-gather-quiets-nan", &["gather"], gather_quiets_nan),
    launch("ew-comparison-is-a-mask", &["broadcast_elementwise_binary"], comparison_is_a_mask),
    tables("async-copies-overtake-launches", |t| {
        t.device.stream_create = Some(create_with_shadow);
        t.stream.destroy = Some(destroy_with_shadow);
        t.stream.copy = Some(copy_beside_launches);
        t.stream.sync = Some(sync_of_both);
        t.launch = launch_noted;
    }),
    tables("obj-timing-in-microseconds", |t| t.device.get_interface = Some(timing_in_microseconds)),
    tables("obj-packed-size-short", |t| t.packed_size = packed_size_short),
    tables("obj-packed-for-other-sizes", |t| t.launch_packed = launched_for_other_sizes),
    tables("obj-packed-for-rows", |t| t.packed_size = packed_size_by_rows),
    tables("obj-packed-forgets-beta", |t| t.launch_packed = launched_without_beta),
    tables("obj-asynchronous-and-inline", |t| t.device.info = Some(info_with_inline)),
    tables("mem-pinned-copy-ends-at-64k", |t| t.stream.copy = Some(pinned_copy_cut)),
    tables("mem-copy-down-from-words", |t| t.stream.copy = Some(copy_down_from_words)),
    tables("abi-limits-not-checked", |t| t.build = build_without_limits),
];

fn second_piece_replaces(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    const PIECE: usize = 512;
    let [m, k] = ["m", "k"].map(|n| size(call, n));
    if k > PIECE {
        let lost = (k - 1) / PIECE * PIECE;
        let along = |i: usize, selector: &str| if selector == "none" { i % k } else { i / m };
        let selector = selector(call, "transpose_a");
        let zero = |x: Number| if matches!(x, Number::Int(_)) { Number::Int(0) } else { Number::Real(0.0) };
        let values = elements(call, "a")?.into_iter().enumerate();
        let values: Vec<_> =
            values.map(|(i, x)| if along(i, selector) < lost { zero(x) } else { x }).collect();
        set_elements(call, "a", values)?;
    }
    call.reference()
}

fn alpha_is_real(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    if let Scalar::Complex(re, _) = scalar(call, "alpha") {
        set_scalar(call, "alpha", Scalar::F64(re));
    }
    call.reference()
}

fn grid_of_65535(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    const MOST: usize = 65_535;
    let (mut writes, rows) = (call.reference()?, size(call, "rows"));
    if rows > MOST {
        writes.iter_mut().for_each(|w| w.bytes.truncate(w.bytes.len() / rows * MOST));
    }
    Ok(writes)
}

fn epsilon_of_the_first(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    static FIRST: Mutex<BTreeMap<[usize; 2], f64>> = Mutex::new(BTreeMap::new());
    let sizes = ["rows", "cols"].map(|n| size(call, n));
    for (_, epsilon) in call.attrs.iter_mut().filter(|(n, _)| *n == "epsilon") {
        *epsilon = *lock(&FIRST).entry(sizes).or_insert(*epsilon);
    }
    call.reference()
}

fn plan_by_dimensions(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    type Plans = BTreeMap<(usize, Vec<i64>), Vec<i64>>;
    static PLANS: Mutex<Plans> = Mutex::new(BTreeMap::new());
    let (dims, order) = (crate::calls::list(call, "src_dims"), crate::calls::list(call, "permutation"));
    let plan = lock(&PLANS).entry((call.primitive, dims)).or_insert(order).clone();
    set_list(call, "permutation", plan);
    call.reference()
}

fn gather_quiets_nan(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let mut writes = call.reference()?;
    if dtype(call, "data") == DType::F32 {
        for bytes in writes.iter_mut().flat_map(|w| w.bytes.chunks_exact_mut(4)) {
            if f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).is_nan() {
                bytes.copy_from_slice(&0x7fc0_0000u32.to_ne_bytes());
            }
        }
    }
    Ok(writes)
}

fn comparison_is_a_mask(call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
    let mut writes = call.reference()?;
    if dtype(call, "dst") == DType::BOOL {
        writes.iter_mut().flat_map(|w| &mut w.bytes).for_each(|b| *b = 0u8.wrapping_sub(*b));
    }
    Ok(writes)
}

/// Streams with a launch behind which nobody has waited.
static LAUNCHED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

unsafe fn launch_noted(
    maker: &Maker,
    primitive: *mut EpPrimitive,
    stream: *mut EpStream,
    args: *const c_void,
) -> *const EpStatus {
    lock(&LAUNCHED).insert(stream.addr());
    // SAFETY: the host's call.
    unsafe { maker.launch(primitive, stream, args) }
}

unsafe extern "C" fn copy_beside_launches(stream: *mut EpStream, copy: *const EpCopy) -> *const EpStatus {
    let launched = lock(&LAUNCHED).contains(&stream.addr());
    // SAFETY: the host's call.
    unsafe { if launched { on_shadow(stream, copy) } else { (has(honest().stream.copy))(stream, copy) } }
}

unsafe extern "C" fn sync_of_both(stream: *mut EpStream) -> *const EpStatus {
    lock(&LAUNCHED).remove(&stream.addr());
    // SAFETY: the host's call.
    unsafe { (has(honest().stream.sync))(stream) }
}

type SizeCall = (*mut EpPrimitive, u32, *const c_void, *mut u64);

/// Tells another size where there is one.
///
/// # Safety
/// As `EpPrepackInterface.size`.
unsafe fn packed_size(
    theirs: &EpPrepackInterface,
    (primitive, operand, args, out): SizeCall,
    change: impl FnOnce(u64) -> u64,
) -> *const EpStatus {
    // SAFETY: the host's call; the SDK writes `out` where it succeeds.
    unsafe {
        let status = prepack::packed_size(theirs, primitive, operand, args, out);
        if status.is_null() && *out > 0 {
            out.write(change(*out));
        }
        status
    }
}

unsafe fn packed_size_short(
    theirs: &EpPrepackInterface,
    primitive: *mut EpPrimitive,
    operand: u32,
    args: *const c_void,
    out: *mut u64,
) -> *const EpStatus {
    // SAFETY: the host's call.
    unsafe { packed_size(theirs, (primitive, operand, args, out), |size| size - 1) }
}

unsafe fn packed_size_by_rows(
    theirs: &EpPrepackInterface,
    primitive: *mut EpPrimitive,
    operand: u32,
    args: *const c_void,
    out: *mut u64,
) -> *const EpStatus {
    // SAFETY: the host's call; where the size is not 0, with arguments of `matmul`.
    unsafe {
        packed_size(theirs, (primitive, operand, args, out), |size| {
            let rows = (*args.cast::<MatmulArgs>()).m;
            if rows > 1 { size + 64 } else { size }
        })
    }
}

unsafe fn launched_for_other_sizes(
    theirs: &EpPrepackInterface,
    packed: *mut EpPacked,
    stream: *mut EpStream,
    args: *const c_void,
) -> *const EpStatus {
    // SAFETY: the host's call; the status is ours.
    match unsafe { take(prepack::launch_packed(theirs, packed, stream, args)) } {
        Err(e) if e.code() != Code::InvalidArgument => report(e),
        _ => std::ptr::null(),
    }
}

unsafe fn launched_without_beta(
    theirs: &EpPrepackInterface,
    packed: *mut EpPacked,
    stream: *mut EpStream,
    args: *const c_void,
) -> *const EpStatus {
    // SAFETY: the host's call; `matmul`, whose arguments these are, is the one op that packs here.
    unsafe {
        let mut args = *args.cast::<MatmulArgs>();
        args.beta = Scalar::None.into();
        prepack::launch_packed(theirs, packed, stream, std::ptr::from_ref(&args).cast())
    }
}

unsafe extern "C" fn timing_in_microseconds(
    device: *mut EpDevice,
    name: EpStr,
    version: u32,
    out: *mut *const EpInterface,
) -> *const EpStatus {
    static TIMING: OnceLock<usize> = OnceLock::new();
    // SAFETY: the host's call; the SDK writes `out` where it succeeds, and the text lives during the call.
    unsafe {
        let status = (has(honest().device.get_interface))(device, name, version, out);
        if status.is_null() && string_of(name) == "ep.timing" && !(*out).is_null() {
            let theirs = *(*out).cast::<EpTimingInterface>();
            let _same_for_all = ELAPSED.set(theirs);
            let table = || {
                let ours = EpTimingInterface { elapsed: Some(elapsed_in_microseconds), ..theirs };
                std::ptr::from_ref::<EpTimingInterface>(Box::leak(Box::new(ours))).expose_provenance()
            };
            out.write(std::ptr::with_exposed_provenance(*TIMING.get_or_init(table)));
        }
        status
    }
}

/// The honest function.
static ELAPSED: OnceLock<EpTimingInterface> = OnceLock::new();

unsafe extern "C" fn elapsed_in_microseconds(
    start: *mut EpEvent,
    end: *mut EpEvent,
    out: *mut u64,
) -> *const EpStatus {
    let honest = ELAPSED.get().and_then(|t| t.elapsed);
    // SAFETY: the host's call; the function was noted before this one was given away, and writes `out` where it succeeds.
    unsafe {
        let status = has(honest)(start, end, out);
        if status.is_null() {
            out.write(*out / 1000);
        }
        status
    }
}

unsafe extern "C" fn info_with_inline(device: *mut EpDevice, out: *mut EpDeviceInfo) -> *const EpStatus {
    let mut own = EpDeviceInfo::EMPTY;
    // SAFETY: the host's call, with room of our own; then the host's room, by what it says of it.
    unsafe {
        let status = (has(honest().device.info))(device, &mut own);
        if !status.is_null() {
            return status;
        }
        own.flags |= u64::from(EP_DEVICE_INLINE);
        finish(|| write_struct(out, &own))
    }
}

unsafe extern "C" fn pinned_copy_cut(stream: *mut EpStream, copy: *const EpCopy) -> *const EpStatus {
    // SAFETY: the host's call; the texts live during it.
    unsafe {
        copy_changed(stream, copy, |c| {
            if [c.dst_space, c.src_space].iter().any(|s| string_of(*s).starts_with("host-pinned")) {
                c.bytes = c.bytes.min(1 << 16);
            }
        })
    }
}

unsafe extern "C" fn copy_down_from_words(stream: *mut EpStream, copy: *const EpCopy) -> *const EpStatus {
    // SAFETY: as above. The word that a source begins in belongs to its block.
    unsafe {
        copy_changed(stream, copy, |c| {
            if is_host(c.dst_space) && !is_host(c.src_space) {
                c.src &= !3;
            }
        })
    }
}

unsafe fn build_without_limits(
    maker: &Maker,
    device: *mut EpDevice,
    desc: *const c_void,
    out: *mut *mut EpPrimitive,
) -> *const EpStatus {
    let schema = maker.schema();
    // SAFETY: the host's descriptor is readable for its size; one of another size than this version's is left to the SDK.
    unsafe {
        let known = !desc.is_null() && desc.cast::<u64>().read() == schema.desc_size as u64;
        if !known {
            return maker.build(device, desc, out);
        }
        let mut words = std::slice::from_raw_parts(desc.cast::<u64>(), schema.desc_size / 8).to_vec();
        for field in schema.desc.iter().filter(|f| matches!(f.kind, DescKind::Limit(_))) {
            words[field.offset / 8] = 0;
        }
        maker.build(device, words.as_ptr().cast(), out)
    }
}

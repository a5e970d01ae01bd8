//! A cuBLASLt that computes: products are queued like other work and multiply what lies in the fake's memory when
//! their turn comes. It refuses what does not fit together, and addresses that are not aligned as was promised.

use crate::driver::{Needs, call};
use crate::world::{INVALID_HANDLE, INVALID_VALUE, Outcome, Work, World};
use half::{bf16, f16};
use std::ffi::{c_char, c_void};

const INVALID: i32 = 7;
const EXECUTION_FAILED: i32 = 13;
const NOT_SUPPORTED: i32 = 15;

/// Workspace that its algorithms want where they may have it, but for the shortest sums.
const WANTED_WORKSPACE: usize = 1024;
const SHORTEST_SUMS: u64 = 2;
/// More rows than any algorithm has, so that there is a shape without one.
const MOST_ROWS: u64 = 1 << 20;

/// What a handle stands for.
pub(crate) enum Object {
    Handle,
    Desc { compute: i32, scale: i32, turned: [i32; 2] },
    Layout(Layout),
    Preference { workspace: usize, reductions: u32, alignments: [u32; 4] },
}

/// A column-major matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Layout {
    data: i32,
    rows: u64,
    cols: u64,
    step: i64,
    batch: i32,
    batch_step: i64,
}

/// A batch of products as it is queued.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Product {
    turned: [i32; 2],
    layouts: [Layout; 3],
    addresses: [u64; 3],
    /// Real and imaginary part of alpha and beta.
    factors: [[f64; 2]; 2],
    workspace: (u64, usize),
}

/// A call, with the library's number of an error.
fn library_call(name: &str, detail: impl std::fmt::Display, body: impl FnOnce(&mut World) -> Outcome) -> i32 {
    match call(name, detail, Needs::Context, body) {
        0 => 0,
        INVALID_VALUE | INVALID_HANDLE => INVALID,
        crate::result::OUT_OF_MEMORY => 3,
        NOT_FOUND => NOT_SUPPORTED,
        _ => EXECUTION_FAILED,
    }
}

/// The driver's number that becomes [`NOT_SUPPORTED`].
const NOT_FOUND: i32 = crate::world::NOT_FOUND;

fn give<T>(out: *mut T, value: T) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and valid for a write, as the library's contract says of out-pointers.
    unsafe { out.write(value) };
    Ok(())
}

fn make(name: &str, out: *mut u64, object: Object) -> i32 {
    library_call(name, "", |w| {
        let handle = w.handle();
        w.blas.insert(handle, object);
        give(out, handle)
    })
}

/// Objects can be destroyed without a context, and where an error came before.
fn unmake(name: &str, object: u64) -> i32 {
    match call(name, format_args!("{object:#x}"), Needs::Release, |w| {
        w.blas.remove(&object).map(drop).ok_or(INVALID_HANDLE)
    }) {
        0 => 0,
        _ => INVALID,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtGetVersion() -> usize {
    130_000
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtGetStatusString(status: i32) -> *const c_char {
    let text = match status {
        INVALID => c"CUBLAS_STATUS_INVALID_VALUE",
        EXECUTION_FAILED => c"CUBLAS_STATUS_EXECUTION_FAILED",
        NOT_SUPPORTED => c"CUBLAS_STATUS_NOT_SUPPORTED",
        _ => c"CUBLAS_STATUS",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtCreate(out: *mut u64) -> i32 {
    make("cublasLtCreate", out, Object::Handle)
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtDestroy(object: u64) -> i32 {
    unmake("cublasLtDestroy", object)
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulDescCreate(out: *mut u64, compute: i32, scale: i32) -> i32 {
    make("cublasLtMatmulDescCreate", out, Object::Desc { compute, scale, turned: [0; 2] })
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulDescDestroy(object: u64) -> i32 {
    unmake("cublasLtMatmulDescDestroy", object)
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatrixLayoutCreate(out: *mut u64, data: i32, rows: u64, cols: u64, step: i64) -> i32 {
    let fits = step >= rows as i64 && rows > 0 && cols > 0;
    let layout = Layout { data, rows, cols, step, batch: 1, batch_step: 0 };
    if fits { make("cublasLtMatrixLayoutCreate", out, Object::Layout(layout)) } else { INVALID }
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatrixLayoutDestroy(object: u64) -> i32 {
    unmake("cublasLtMatrixLayoutDestroy", object)
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulPreferenceCreate(out: *mut u64) -> i32 {
    make(
        "cublasLtMatmulPreferenceCreate",
        out,
        Object::Preference { workspace: 0, reductions: 7, alignments: [256; 4] },
    )
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulPreferenceDestroy(object: u64) -> i32 {
    unmake("cublasLtMatmulPreferenceDestroy", object)
}

/// Reads an attribute's value, which has to have the attribute's size.
fn value<T: Copy>(from: *const c_void, bytes: usize) -> Outcome<T> {
    if bytes != size_of::<T>() || from.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: as many bytes as were said.
    Ok(unsafe { from.cast::<T>().read_unaligned() })
}

fn set(name: &str, object: u64, attribute: i32, from: *const c_void, bytes: usize) -> i32 {
    library_call(name, format_args!("{object:#x}, {attribute}"), |w| {
        let object = w.blas.get_mut(&object).ok_or(INVALID_HANDLE)?;
        match (object, attribute) {
            (Object::Desc { turned, .. }, 3 | 4) => turned[attribute as usize - 3] = value(from, bytes)?,
            (Object::Layout(layout), 5) => layout.batch = value(from, bytes)?,
            (Object::Layout(layout), 6) => layout.batch_step = value(from, bytes)?,
            (Object::Preference { workspace, .. }, 1) => *workspace = value(from, bytes)?,
            (Object::Preference { reductions, .. }, 3) => *reductions = value(from, bytes)?,
            (Object::Preference { alignments, .. }, 5..=8) => {
                alignments[attribute as usize - 5] = value(from, bytes)?
            }
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulDescSetAttribute(
    o: u64,
    attribute: i32,
    from: *const c_void,
    bytes: usize,
) -> i32 {
    set("cublasLtMatmulDescSetAttribute", o, attribute, from, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatrixLayoutSetAttribute(
    o: u64,
    attribute: i32,
    from: *const c_void,
    bytes: usize,
) -> i32 {
    set("cublasLtMatrixLayoutSetAttribute", o, attribute, from, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    o: u64,
    attribute: i32,
    from: *const c_void,
    bytes: usize,
) -> i32 {
    set("cublasLtMatmulPreferenceSetAttribute", o, attribute, from, bytes)
}

/// The operation and its three layouts, which have to fit together.
fn problem(w: &World, desc: u64, layouts: [u64; 4]) -> Outcome<([i32; 2], [Layout; 3])> {
    let Some(Object::Desc { compute, scale, turned }) = w.blas.get(&desc) else { return Err(INVALID_HANDLE) };
    let mut found = Vec::new();
    for handle in layouts {
        match w.blas.get(&handle) {
            Some(Object::Layout(layout)) => found.push(*layout),
            _ => return Err(INVALID_HANDLE),
        }
    }
    let [a, b, c, d] = found[..] else { return Err(INVALID_VALUE) };
    let turn = |l: Layout, turned: i32| if turned == 0 { (l.rows, l.cols) } else { (l.cols, l.rows) };
    let ((m, k), (k_of_b, n)) = (turn(a, turned[0]), turn(b, turned[1]));
    let complex = matches!(a.data, 4 | 5);
    let double = matches!(a.data, 1 | 5);
    let types = [a.data, b.data] == [c.data; 2]
        && (*compute == 70) == double
        && *scale == if complex { a.data } else { i32::from(double) };
    let fits = types && (m, n) == (c.rows, c.cols) && k == k_of_b && c == d;
    if !fits || [a.batch, b.batch] != [c.batch; 2] || (c.batch > 1 && c.batch_step == 0) {
        return Err(INVALID_VALUE);
    }
    Ok((*turned, [a, b, c]))
}

#[repr(C)]
struct Found {
    algorithm: [u64; 8],
    workspace: usize,
    state: i32,
    waves: f32,
    reserved: [i32; 4],
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    handle: u64,
    desc: u64,
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    preference: u64,
    wanted: i32,
    out: *mut Found,
    count: *mut i32,
) -> i32 {
    library_call("cublasLtMatmulAlgoGetHeuristic", format_args!("{desc:#x}"), |w| {
        if !matches!(w.blas.get(&handle), Some(Object::Handle)) {
            return Err(INVALID_HANDLE);
        }
        let (turned, layouts) = problem(w, desc, [a, b, c, d])?;
        let depth = if turned[0] == 0 { layouts[0].cols } else { layouts[0].rows };
        let Some(Object::Preference { workspace, reductions, alignments }) = w.blas.get(&preference) else {
            return Err(INVALID_HANDLE);
        };
        if *reductions & !2 != 0 {
            // An algorithm that rounds parts of a sum may be the answer, which no contract allows.
            return Err(INVALID_VALUE);
        }
        if layouts[2].cols > MOST_ROWS {
            return Err(NOT_FOUND);
        }
        let wants = depth > SHORTEST_SUMS && *workspace >= WANTED_WORKSPACE;
        let workspace = if wants { WANTED_WORKSPACE } else { 0 };
        let [a, b, c, _] = alignments.map(u64::from);
        let found = Found {
            algorithm: [0xa190, workspace as u64, a, b, c, 0, 0, 0],
            workspace,
            state: 0,
            waves: 1.0,
            reserved: [0; 4],
        };
        if wanted < 1 {
            return Err(INVALID_VALUE);
        }
        give(out, found)?;
        give(count, 1)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmul(
    handle: u64,
    desc: u64,
    alpha: *const c_void,
    a: u64,
    a_layout: u64,
    b: u64,
    b_layout: u64,
    beta: *const c_void,
    c: u64,
    c_layout: u64,
    d: u64,
    d_layout: u64,
    algorithm: *const [u64; 8],
    workspace: u64,
    workspace_bytes: usize,
    stream: u64,
) -> i32 {
    let detail = format!("{a:#x}, {b:#x}, {c:#x}, workspace {workspace_bytes}");
    library_call("cublasLtMatmul", detail, |w| {
        if !matches!(w.blas.get(&handle), Some(Object::Handle)) || c != d {
            return Err(INVALID_HANDLE);
        }
        let (turned, layouts) = problem(w, desc, [a_layout, b_layout, c_layout, d_layout])?;
        // SAFETY: the caller's algorithm, or null.
        let Some([magic, wanted, alignments @ ..]) = (unsafe { algorithm.as_ref() }) else {
            return Err(INVALID_VALUE);
        };
        let misaligned = [a, b, c].iter().zip(alignments).any(|(address, to)| address % to != 0);
        if *magic != 0xa190 || (workspace_bytes as u64) < *wanted || misaligned {
            return Err(INVALID_VALUE);
        }
        let data = layouts[0].data;
        let factor = |from: *const c_void| {
            let scale = if data == 2 || data == 14 { 0 } else { data };
            // SAFETY: a factor of the scale's type.
            unsafe { read(scale, from.cast()) }
        };
        let product = Product {
            turned,
            layouts,
            addresses: [a, b, c],
            factors: [factor(alpha), factor(beta)],
            workspace: (workspace, workspace_bytes),
        };
        let vector = layouts[2].rows == 1;
        w.enqueue(stream, Work::Product(Box::new(product)))?;
        // Of vectors it makes a second piece of work, as real ones do of long sums.
        if vector { w.enqueue(stream, Work::Copy { dst: c, src: c, bytes: 0 }) } else { Ok(()) }
    })
}

fn element_bytes(data: i32) -> usize {
    match data {
        2 | 14 => 2,
        0 => 4,
        1 | 4 => 8,
        _ => 16,
    }
}

/// An element as real and imaginary part.
///
/// # Safety
/// `from` is readable for an element.
unsafe fn read(data: i32, from: *const u8) -> [f64; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        match data {
            0 => [from.cast::<f32>().read_unaligned().into(), 0.0],
            1 => [from.cast::<f64>().read_unaligned(), 0.0],
            2 => [f16::from_bits(from.cast::<u16>().read_unaligned()).to_f64(), 0.0],
            14 => [bf16::from_bits(from.cast::<u16>().read_unaligned()).to_f64(), 0.0],
            4 => from.cast::<[f32; 2]>().read_unaligned().map(f64::from),
            _ => from.cast::<[f64; 2]>().read_unaligned(),
        }
    }
}

/// # Safety
/// `to` is writable for an element.
unsafe fn write(data: i32, to: *mut u8, [re, im]: [f64; 2]) {
    // SAFETY: the caller's promise.
    unsafe {
        match data {
            0 => to.cast::<f32>().write_unaligned(re as f32),
            1 => to.cast::<f64>().write_unaligned(re),
            2 => to.cast::<u16>().write_unaligned(f16::from_f64(re).to_bits()),
            14 => to.cast::<u16>().write_unaligned(bf16::from_f64(re).to_bits()),
            4 => to.cast::<[f32; 2]>().write_unaligned([re as f32, im as f32]),
            _ => to.cast::<[f64; 2]>().write_unaligned([re, im]),
        }
    }
}

fn times([a, b]: [f64; 2], [c, d]: [f64; 2]) -> [f64; 2] {
    [a * c - b * d, a * d + b * c]
}

/// Multiplies.
pub(crate) fn perform(w: &World, context: u64, product: &Product) -> Outcome {
    let Product { turned, layouts, addresses, factors, workspace } = product;
    let bytes = element_bytes(layouts[0].data);
    if workspace.1 > 0 {
        w.locate_for(context, workspace.0, workspace.1)?;
    }
    // Real factors ignore what is in the imaginary part.
    let place = |x: usize, batch: i64, row: u64, col: u64| {
        let l = &layouts[x];
        let at = batch * l.batch_step + col as i64 * l.step + row as i64;
        w.locate_for(context, addresses[x] + at as u64 * bytes as u64, bytes)
    };
    let factor = |x: usize, batch: i64, row: u64, col: u64| -> Outcome<[f64; 2]> {
        let (row, col) = if turned[x] == 0 { (row, col) } else { (col, row) };
        // SAFETY: inside a live block, as `locate` says.
        let [re, im] = unsafe { read(layouts[x].data, place(x, batch, row, col)?) };
        Ok([re, if turned[x] == 2 { -im } else { im }])
    };
    let k = if turned[0] == 0 { layouts[0].cols } else { layouts[0].rows };
    for batch in 0..i64::from(layouts[2].batch) {
        for (row, col) in (0..layouts[2].rows).flat_map(|r| (0..layouts[2].cols).map(move |c| (r, c))) {
            let mut sum = [0.0; 2];
            for i in 0..k {
                let [re, im] = times(factor(0, batch, row, i)?, factor(1, batch, i, col)?);
                sum = [sum[0] + re, sum[1] + im];
            }
            let mut value = times(factors[0], sum);
            let to = place(2, batch, row, col)?;
            if factors[1] != [0.0; 2] {
                // SAFETY: inside a live block.
                let [re, im] = times(factors[1], unsafe { read(layouts[2].data, to) });
                value = [value[0] + re, value[1] + im];
            }
            // SAFETY: inside a live block.
            unsafe { write(layouts[2].data, to, value) };
        }
    }
    Ok(())
}

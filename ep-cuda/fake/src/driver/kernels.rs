//! Modules, launches and graphs.

use super::{Needs, call, give};
use crate::cubin;
use crate::nodes;
use crate::world::*;
use std::ffi::{CStr, c_char, c_void};

pub(super) extern "C" fn module_load(out: *mut u64, image: *const c_void) -> i32 {
    call("cuModuleLoadData", "", Needs::Context, |w| {
        // SAFETY: a whole image, as the driver's contract says.
        let kernels = unsafe { cubin::kernels(image.cast()) }.ok_or(INVALID_IMAGE)?;
        let handle = w.handle();
        w.modules.insert(handle, kernels);
        give(out, handle)
    })
}

pub(super) extern "C" fn module_unload(module: u64) -> i32 {
    call("cuModuleUnload", format_args!("{module:#x}"), Needs::Release, |w| {
        w.functions.retain(|_, f| f.module != module);
        w.modules.remove(&module).map(|_| ()).ok_or(INVALID_HANDLE)
    })
}

pub(super) extern "C" fn module_function(out: *mut u64, module: u64, name: *const c_char) -> i32 {
    // SAFETY: a text that ends.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    call("cuModuleGetFunction", format_args!("{module:#x}, {name}"), Needs::Context, |w| {
        let kernels = w.modules.get(&module).ok_or(INVALID_HANDLE)?;
        let kernel = kernels.iter().find(|(n, _)| n.split('<').next() == Some(&*name)).ok_or(NOT_FOUND)?;
        let (name, argument_bytes) = kernel.clone();
        let handle = w.handle();
        w.functions.insert(handle, Function { module, name, argument_bytes, shared: UNASKED });
        give(out, handle)
    })
}

/// Dynamic shared memory without asking: 48 KiB, of which kernels may have declared some.
const UNASKED: u32 = 40 << 10;

pub(super) extern "C" fn function_set(function: u64, attribute: i32, value: i32) -> i32 {
    call("cuFuncSetAttribute", format_args!("{function:#x}, {attribute}, {value}"), Needs::Context, |w| {
        let state = w.functions.get_mut(&function).ok_or(INVALID_HANDLE)?;
        match (attribute, value) {
            // Shared memory up to what the device has.
            (8, 0..=232_448) => state.shared = value as u32,
            // Clusters larger than is portable.
            (14, 0..=1) => {}
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    })
}

/// The argument behind `extra`: its address follows a 1, the address of its size a 2, and a 0 ends it.
///
/// # Safety
/// `extra` is such a list, and what it points to is readable.
unsafe fn argument(extra: *const usize) -> Option<Vec<u8>> {
    let (mut data, mut bytes, mut at) = (None, None, 0);
    // SAFETY: a list that ends, as the caller promises, and pointers to what it says.
    unsafe {
        loop {
            match *extra.add(at) {
                0 => break,
                1 => data = Some(std::ptr::with_exposed_provenance::<u8>(*extra.add(at + 1))),
                2 => bytes = Some(*std::ptr::with_exposed_provenance::<usize>(*extra.add(at + 1))),
                _ => return None,
            }
            at += 2;
        }
        Some(std::slice::from_raw_parts(data?, bytes?).to_vec())
    }
}

/// A launch's argument as it was given, in one of the driver's two ways.
#[derive(Clone, Copy)]
struct Given {
    /// The address of each parameter. The kernels here have one.
    params: *const *const u8,
    extra: *const usize,
}

impl Given {
    /// Its bytes, of which there are none where the kernel's size is not known and `extra` does not say it.
    ///
    /// # Safety
    /// `params` and `extra` are null or as the driver wants them, for a kernel of one parameter of `bytes` bytes.
    unsafe fn bytes(self, bytes: Option<usize>) -> Option<Vec<u8>> {
        match (self.params.is_null(), self.extra.is_null()) {
            // SAFETY: as the caller promises.
            (true, false) => unsafe { argument(self.extra) },
            (false, true) => {
                // SAFETY: as the caller promises.
                let at = unsafe { *self.params };
                // SAFETY: as the caller promises.
                (!at.is_null())
                    .then(|| unsafe { std::slice::from_raw_parts(at, bytes.unwrap_or(0)) }.to_vec())
            }
            _ => None,
        }
    }
}

fn launch(
    w: &mut World,
    function: u64,
    [grid, block]: [[u32; 3]; 2],
    shared: u32,
    stream: u64,
    given: Given,
) -> Outcome {
    let state = w.functions.get(&function).ok_or(INVALID_HANDLE)?;
    // SAFETY: the caller's lists, as the driver's contract says.
    let argument = unsafe { given.bytes(state.argument_bytes) }.ok_or(INVALID_VALUE)?;
    let fits = state.argument_bytes.is_none_or(|bytes| bytes == argument.len());
    let threads: u64 = block.iter().map(|n| u64::from(*n)).product();
    let in_grid = grid[0] > 0
        && grid[0] <= i32::MAX as u32
        && (1..=65535).contains(&grid[1])
        && (1..=65535).contains(&grid[2]);
    if !fits || !in_grid || !(1..=1024).contains(&threads) || shared > state.shared {
        return Err(INVALID_VALUE);
    }
    w.enqueue(stream, Work::Kernel { function, argument, grid, block })
}

#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
pub(super) extern "C" fn launch_kernel(
    function: u64,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared: u32,
    stream: u64,
    params: *const *const u8,
    extra: *const usize,
) -> i32 {
    let shape = [[gx, gy, gz], [bx, by, bz]];
    let name = function_name(function);
    call("cuLaunchKernel", format_args!("{name}, {shape:?}, {shared}, {stream:#x}"), Needs::Context, |w| {
        launch(w, function, shape, shared, stream, Given { params, extra })
    })
}

/// `CUlaunchAttribute`
#[repr(C)]
pub(super) struct LaunchAttribute {
    id: i32,
    padding: i32,
    value: [u64; 8],
}

impl LaunchAttribute {
    /// Which it is, and the first words of its value.
    fn words(&self) -> (i32, [u32; 4]) {
        let [a, b, ..] = self.value;
        (self.id, [a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32])
    }
}

/// `CUlaunchConfig`
#[repr(C)]
pub(super) struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: u64,
    attributes: *const LaunchAttribute,
    num_attributes: u32,
}

/// The attribute by which a launch may overlap with the kernel before it. The fake does one thing after the other, which
/// that allows.
const PROGRAMMATIC_STREAM_SERIALIZATION: i32 = 6;

pub(super) extern "C" fn launch_kernel_ex(
    config: *const LaunchConfig,
    function: u64,
    params: *const *const u8,
    extra: *const usize,
) -> i32 {
    // SAFETY: a config, and as many attributes as it says, as the driver's contract demands.
    let (config, attributes) = unsafe {
        let config = &*config;
        let attributes = match config.num_attributes {
            0 => &[][..],
            n => std::slice::from_raw_parts(config.attributes, n as usize),
        };
        (config, attributes)
    };
    let LaunchConfig { grid, block, shared, stream, .. } = *config;
    let (shape, name) = ([grid, block], function_name(function));
    let known = |a: &LaunchAttribute| {
        a.id == PROGRAMMATIC_STREAM_SERIALIZATION && a.padding == 0 && a.value[0] as u32 <= 1
    };
    let overlaps =
        if attributes.iter().any(|a| known(a) && a.value[0] as u32 == 1) { "overlaps" } else { "waits" };
    let arguments = format_args!("{name}, {shape:?}, {shared}, {overlaps}, {stream:#x}");
    call("cuLaunchKernelEx", arguments, Needs::Context, |w| {
        let values: Vec<_> = attributes.iter().map(LaunchAttribute::words).collect();
        // SAFETY: the arguments of the function, as the driver's contract demands.
        if let Some(product) = unsafe { nodes::product(w, function, shape, &values, params) }? {
            return w.enqueue(stream, product);
        }
        if !attributes.iter().all(known) {
            return Err(INVALID_VALUE);
        }
        launch(w, function, shape, shared, stream, Given { params, extra })
    })
}

fn function_name(function: u64) -> String {
    let mut name = format!("{function:#x}");
    world(|w| {
        if let Some(f) = w.functions.get(&function) {
            name.clone_from(&f.name);
        }
        0
    });
    name
}

pub(super) extern "C" fn graph_instantiate(out: *mut u64, graph: u64, _flags: u64) -> i32 {
    call("cuGraphInstantiateWithFlags", format_args!("{graph:#x}"), Needs::Driver, |w| {
        let work = w.graphs.get(&graph).ok_or(INVALID_HANDLE)?.clone();
        let handle = w.handle();
        w.execs.insert(handle, work);
        give(out, handle)
    })
}

pub(super) extern "C" fn graph_update(exec: u64, graph: u64, out: *mut [u64; 3]) -> i32 {
    call("cuGraphExecUpdate", format_args!("{exec:#x}, {graph:#x}"), Needs::Driver, |w| {
        let updated = w.update(exec, graph);
        // 2: the topology changed.
        give(out, [if updated.is_ok() { 0 } else { 2 }, 0, 0])?;
        updated
    })
}

pub(super) extern "C" fn graph_launch(exec: u64, stream: u64) -> i32 {
    call("cuGraphLaunch", format_args!("{exec:#x}, {stream:#x}"), Needs::Context, |w| {
        let work = w.execs.get(&exec).ok_or(INVALID_HANDLE)?.clone();
        if w.capture_status(stream)? != 0 {
            return w.enqueue(stream, Work::Child(work));
        }
        work.into_iter().try_for_each(|work| w.enqueue(stream, work))
    })
}

pub(super) extern "C" fn exec_destroy(exec: u64) -> i32 {
    call("cuGraphExecDestroy", format_args!("{exec:#x}"), Needs::Release, |w| {
        let work = w.execs.remove(&exec).ok_or(INVALID_HANDLE)?;
        w.forget_graph(&work)
    })
}

pub(super) extern "C" fn graph_destroy(graph: u64) -> i32 {
    call("cuGraphDestroy", format_args!("{graph:#x}"), Needs::Release, |w| {
        let work = w.graphs.remove(&graph).ok_or(INVALID_HANDLE)?;
        w.nodes.retain(|_, node| !node.is_of(graph));
        w.forget_graph(&work)
    })
}

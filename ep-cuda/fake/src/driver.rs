//! The functions of the driver, found through `cuGetProcAddress`.

mod devices;
mod kernels;
mod memory;
mod streams;

use crate::nodes;
use crate::world::*;
use std::ffi::{CStr, c_char, c_void};
use std::fmt::Display;

/// What a call needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing: `cuInit`, and what tells of errors.
    Nothing,
    /// An initialized driver.
    Driver,
    /// A current context.
    Context,
    /// As `Driver`, and it does its work even where an earlier error, or the one asked for, is what it returns.
    Release,
}

/// One call: logged, counted, perhaps failed.
pub(crate) fn call(
    name: &str,
    detail: impl Display,
    needs: Needs,
    body: impl FnOnce(&mut World) -> Outcome,
) -> i32 {
    world(|w| {
        w.calls += 1;
        let number = w.calls;
        let mut early = None;
        if needs != Needs::Nothing && !w.initialized {
            early = Some(NOT_INITIALIZED);
        } else if needs == Needs::Context {
            early = w.current().err();
        }
        // What a lost context allows: to leave it, and to give back what is in it.
        let harmless = ["cuCtxGetCurrent", "cuCtxSetCurrent"].contains(&name);
        let current = CURRENT.get();
        let lost = w.lost(current).err().filter(|_| !harmless && needs != Needs::Nothing);
        let planned = w.fail.filter(|(n, _)| *n == number).map(|(_, code)| code);
        if let Some(code) = planned.filter(|c| *c != crate::result::OUT_OF_MEMORY) {
            // Where no context is current, or another one becomes so, nobody knows which one it is of: all are lost.
            let all = harmless || w.current().is_err();
            let lost: Vec<u64> = w.contexts.keys().copied().filter(|c| all || *c == current).collect();
            w.sticky.extend(lost.into_iter().map(|context| (context, code)));
        }
        let before = planned.or(early).or(lost);
        let outcome = match before {
            None => body(w),
            Some(code) if needs == Needs::Release && early.is_none() => body(w).and(Err(code)),
            Some(code) => Err(code),
        };
        let code = outcome.err().unwrap_or(0);
        w.log.push(format!("{name}({detail}) = {code}"));
        code
    })
}

/// Writes a result where a call's own work has an out-pointer.
fn give<T>(out: *mut T, value: T) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and valid for a write, as the driver's contract says of out-pointers.
    unsafe { out.write(value) };
    Ok(())
}

/// The address of the function with a name; null for one that the fake does not have.
fn find(name: &str) -> *const c_void {
    match name {
        "cuInit" => devices::init as *const c_void,
        "cuDriverGetVersion" => devices::driver_version as *const c_void,
        "cuGetErrorName" => devices::error_name as *const c_void,
        "cuGetErrorString" => devices::error_string as *const c_void,
        "cuDeviceGetCount" => devices::device_count as *const c_void,
        "cuDeviceGet" => devices::device_get as *const c_void,
        "cuDeviceGetName" => devices::device_name as *const c_void,
        "cuDeviceGetUuid" => devices::device_uuid as *const c_void,
        "cuDeviceGetAttribute" => devices::device_attribute as *const c_void,
        "cuDeviceTotalMem" => devices::device_memory as *const c_void,
        "cuDeviceGetPCIBusId" => devices::device_pci as *const c_void,
        "cuDeviceCanAccessPeer" => devices::can_access_peer as *const c_void,
        "cuDevicePrimaryCtxRetain" => devices::retain as *const c_void,
        "cuDevicePrimaryCtxRelease" => devices::release as *const c_void,
        "cuDevicePrimaryCtxGetState" => devices::primary_state as *const c_void,
        "cuCtxSetCurrent" => devices::set_current as *const c_void,
        "cuCtxGetCurrent" => devices::get_current as *const c_void,
        "cuCtxGetDevice" => devices::context_device as *const c_void,
        "cuCtxGetStreamPriorityRange" => devices::priorities as *const c_void,
        "cuCtxEnablePeerAccess" => devices::enable_peer as *const c_void,
        "cuStreamCreateWithPriority" => streams::stream_create as *const c_void,
        "cuStreamDestroy" => streams::stream_destroy as *const c_void,
        "cuStreamSynchronize" => streams::stream_sync as *const c_void,
        "cuStreamQuery" => streams::stream_query as *const c_void,
        "cuStreamWaitEvent" => streams::stream_wait as *const c_void,
        "cuStreamGetCtx" => streams::stream_context as *const c_void,
        "cuStreamBeginCapture" => streams::begin_capture as *const c_void,
        "cuStreamEndCapture" => streams::end_capture as *const c_void,
        "cuThreadExchangeStreamCaptureMode" => streams::exchange_mode as *const c_void,
        "cuStreamIsCapturing" => streams::is_capturing as *const c_void,
        "cuEventCreate" => streams::event_create as *const c_void,
        "cuEventDestroy" => streams::event_destroy as *const c_void,
        "cuEventRecord" => streams::event_record as *const c_void,
        "cuEventQuery" => streams::event_query as *const c_void,
        "cuEventSynchronize" => streams::event_sync as *const c_void,
        "cuEventElapsedTime" => streams::elapsed as *const c_void,
        "cuMemGetInfo" => memory::memory_info as *const c_void,
        "cuMemAlloc" => memory::memory_alloc as *const c_void,
        "cuMemFree" => memory::memory_free as *const c_void,
        "cuMemAllocFromPoolAsync" => memory::pool_alloc as *const c_void,
        "cuMemFreeAsync" => memory::free_async as *const c_void,
        "cuMemPoolCreate" => memory::pool_create as *const c_void,
        "cuMemPoolDestroy" => memory::pool_destroy as *const c_void,
        "cuMemPoolSetAttribute" => memory::pool_set as *const c_void,
        "cuMemPoolGetAttribute" => memory::pool_get as *const c_void,
        "cuMemPoolTrimTo" => memory::pool_trim as *const c_void,
        "cuMemPoolSetAccess" => memory::pool_access as *const c_void,
        "cuMemHostAlloc" => memory::host_alloc as *const c_void,
        "cuMemFreeHost" => memory::host_free as *const c_void,
        "cuMemcpyAsync" => memory::memory_copy as *const c_void,
        "cuMemcpyPeerAsync" => memory::peer_copy as *const c_void,
        "cuMemsetD8Async" => memory::set8 as *const c_void,
        "cuMemsetD16Async" => memory::set16 as *const c_void,
        "cuMemsetD32Async" => memory::set32 as *const c_void,
        "cuModuleLoadData" => kernels::module_load as *const c_void,
        "cuModuleUnload" => kernels::module_unload as *const c_void,
        "cuModuleGetFunction" => kernels::module_function as *const c_void,
        "cuFuncSetAttribute" => kernels::function_set as *const c_void,
        "cuLaunchKernel" => kernels::launch_kernel as *const c_void,
        "cuLaunchKernelEx" => kernels::launch_kernel_ex as *const c_void,
        "cuGraphInstantiateWithFlags" => kernels::graph_instantiate as *const c_void,
        "cuGraphExecUpdate" => kernels::graph_update as *const c_void,
        "cuGraphLaunch" => kernels::graph_launch as *const c_void,
        "cuGraphExecDestroy" => kernels::exec_destroy as *const c_void,
        "cuGraphGetNodes" => nodes::graph_nodes as *const c_void,
        "cuGraphNodeGetType" => nodes::node_kind as *const c_void,
        "cuGraphKernelNodeGetParams" => nodes::node_params as *const c_void,
        "cuGraphKernelNodeGetAttribute" => nodes::node_attribute as *const c_void,
        "cuGraphDestroy" => kernels::graph_destroy as *const c_void,
        _ => std::ptr::null(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    out: *mut *const c_void,
    version: i32,
    _flags: u64,
    status: *mut i32,
) -> i32 {
    // SAFETY: a text that ends.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    let mut supported = 0;
    world(|w| {
        supported = w.config.version;
        0
    });
    let address = if version > supported { std::ptr::null() } else { find(&name) };
    // SAFETY: valid out-pointers, or null.
    unsafe {
        out.write(address);
        if !status.is_null() {
            status.write(i32::from(address.is_null()));
        }
    }
    if address.is_null() { NOT_FOUND } else { 0 }
}

//! The driver API as it is declared here: handles, structs, constants and the table of functions.
//!
//! Every function is named as in the driver's documentation and is asked for by the CUDA version whose signature
//! is written down here, so a newer driver hands out the one that fits.

use super::status::{CuResult, Failed};
use ep_core::Result;
use std::ffi::{c_char, c_void};
use std::fmt;
use std::marker::PhantomData;

/// An opaque pointer of the driver. Never followed, so it is a number here.
#[repr(transparent)]
pub struct Handle<T>(usize, PhantomData<fn() -> T>);

impl<T> Handle<T> {
    /// No object.
    pub const NULL: Handle<T> = Handle(0, PhantomData);

    /// The handle with this value.
    pub fn from_raw(raw: u64) -> Self {
        Handle(raw as usize, PhantomData)
    }

    /// Its value.
    pub fn raw(self) -> u64 {
        self.0 as u64
    }
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> PartialEq for Handle<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> Eq for Handle<T> {}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// What a [`Handle`] is a handle of.
pub mod tag {
    /// `CUcontext`
    pub enum Context {}
    /// `CUstream`
    pub enum Stream {}
    /// `CUevent`
    pub enum Event {}
    /// `CUmodule`
    pub enum Module {}
    /// `CUfunction`
    pub enum Function {}
    /// `CUmemoryPool`
    pub enum Pool {}
    /// `CUgraph`
    pub enum Graph {}
    /// `CUgraphExec`
    pub enum GraphExec {}
    /// `CUgraphNode`
    pub enum GraphNode {}
}

/// `CUdevice`: a number below the count.
pub type CuDevice = i32;
/// `CUcontext`
pub type CuContext = Handle<tag::Context>;
/// `CUstream`
pub type CuStream = Handle<tag::Stream>;
/// `CUevent`
pub type CuEvent = Handle<tag::Event>;
/// `CUmodule`
pub type CuModule = Handle<tag::Module>;
/// `CUfunction`
pub type CuFunction = Handle<tag::Function>;
/// `CUmemoryPool`
pub type CuPool = Handle<tag::Pool>;
/// `CUgraph`
pub type CuGraph = Handle<tag::Graph>;
/// `CUgraphExec`
pub type CuGraphExec = Handle<tag::GraphExec>;
/// `CUgraphNode`
pub type CuGraphNode = Handle<tag::GraphNode>;

/// `CUmemLocation` of a device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    /// 1: a device.
    pub kind: i32,
    /// Which.
    pub id: CuDevice,
}

impl Location {
    /// A device's memory.
    pub fn device(id: CuDevice) -> Location {
        Location { kind: 1, id }
    }
}

/// `CUmemPoolProps`
#[repr(C)]
pub struct PoolProps {
    /// 1: pinned to its place.
    pub alloc_type: i32,
    /// 0: not for other processes.
    pub handle_types: i32,
    /// Where.
    pub location: Location,
    /// Of Windows; null.
    pub security: *const c_void,
    /// 0: no bound.
    pub max_size: usize,
    /// Zero.
    pub reserved: [u8; 56],
}

/// `CUmemAccessDesc`
#[repr(C)]
pub struct AccessDesc {
    /// Who.
    pub location: Location,
    /// 3: reads and writes.
    pub flags: i32,
}

/// `CUgraphExecUpdateResultInfo`
#[repr(C)]
pub struct UpdateResult {
    /// 0: done; otherwise why not.
    pub result: i32,
    /// The node that does not fit.
    pub node: usize,
    /// Where its dependency comes from.
    pub from: usize,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelNodeParams {
    /// The kernel; null where only `kernel` is known.
    pub function: CuFunction,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// The address of each argument, or null. The node's, as long as it is there.
    pub params: *mut *mut c_void,
    /// All arguments as one buffer, or null; the node's likewise.
    pub extra: *const usize,
    /// `CUkernel`, which takes a function's place in launches.
    pub kernel: CuFunction,
    /// Where the node's kernel runs.
    pub context: CuContext,
}

impl Default for KernelNodeParams {
    fn default() -> KernelNodeParams {
        KernelNodeParams {
            function: CuFunction::NULL,
            grid: [0; 3],
            block: [0; 3],
            shared_bytes: 0,
            params: std::ptr::null_mut(),
            extra: std::ptr::null(),
            kernel: CuFunction::NULL,
            context: CuContext::NULL,
        }
    }
}

/// `CUlaunchAttribute`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchAttribute {
    /// Which.
    pub id: i32,
    /// Zero.
    pub padding: i32,
    /// Its value, of at most 64 bytes.
    pub value: [u64; 8],
}

/// `CUlaunchConfig`
#[repr(C)]
pub struct LaunchConfig {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Where it is queued.
    pub stream: CuStream,
    /// So many attributes.
    pub attributes: *const LaunchAttribute,
    /// How many.
    pub num_attributes: u32,
}

/// Constants of the driver, in the spelling of its header without the prefix.
pub mod constant {
    /// Device attributes.
    pub const ATTRIBUTE_MULTIPROCESSOR_COUNT: i32 = 16;
    /// Memory shared with the host's.
    pub const ATTRIBUTE_INTEGRATED: i32 = 18;
    /// L2 in bytes.
    pub const ATTRIBUTE_L2_CACHE_SIZE: i32 = 38;
    /// One address space for host and devices.
    pub const ATTRIBUTE_UNIFIED_ADDRESSING: i32 = 41;
    /// Compute capability.
    pub const ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: i32 = 75;
    /// Compute capability.
    pub const ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: i32 = 76;
    /// Shared memory that a block can opt in to.
    pub const ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: i32 = 97;
    /// Stream-ordered allocation.
    pub const ATTRIBUTE_MEMORY_POOLS_SUPPORTED: i32 = 115;
    /// Bytes that a pool keeps when it is idle.
    pub const POOL_ATTR_RELEASE_THRESHOLD: i32 = 4;
    /// Bytes that a pool holds now.
    pub const POOL_ATTR_RESERVED_MEM_CURRENT: i32 = 5;
    /// No implicit order with the legacy default stream.
    pub const STREAM_NON_BLOCKING: u32 = 1;
    /// `CU_STREAM_PER_THREAD`: the handle of a stream that each thread has of its own.
    pub const STREAM_PER_THREAD: u64 = 2;
    /// Pinned memory for all contexts.
    pub const MEMHOSTALLOC_PORTABLE: u32 = 1;
    /// What is called beside a capture is not restricted.
    pub const STREAM_CAPTURE_MODE_RELAXED: i32 = 2;
    /// Dynamic shared memory of a function above 48 KiB.
    pub const FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: i32 = 8;
    /// All blocks are on the device at a time: the value is 1.
    pub const LAUNCH_ATTRIBUTE_COOPERATIVE: i32 = 2;
    /// Blocks of a cluster in x, y, z; zeros where there are none.
    pub const LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: i32 = 4;
    /// How clusters are spread.
    pub const LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: i32 = 5;
    /// Blocks may come to the device before the kernel that was queued before is done: the value is 1.
    pub const LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: i32 = 6;
    /// A node of a graph that launches a kernel.
    pub const GRAPH_NODE_TYPE_KERNEL: i32 = 0;
    /// `extra`: the arguments' address follows.
    pub const LAUNCH_PARAM_BUFFER_POINTER: usize = 1;
    /// `extra`: the address of the arguments' size follows.
    pub const LAUNCH_PARAM_BUFFER_SIZE: usize = 2;
}

/// Declares the functions, a method for each that turns its result into ours, and how all are found.
macro_rules! functions {
    ($( $name:ident @ $version:literal ( $($arg:ident: $type:ty),* ); )*) => {
        /// The functions, found in a driver.
        #[allow(non_snake_case, reason = "the driver's names")]
        pub(super) struct Functions {
            $( $name: unsafe extern "C" fn($($type),*) -> CuResult, )*
        }

        impl Functions {
            /// Finds all of them. `find` gets a name and the CUDA version of the signature.
            ///
            /// # Safety
            /// `find` returns the function of that name with the signature of that version.
            pub(super) unsafe fn resolve(
                mut find: impl FnMut(&'static str, i32) -> Result<*const c_void>,
            ) -> Result<Functions> {
                Ok(Functions {
                    // SAFETY: `find` returns functions of these types, as the caller promises.
                    $( $name: unsafe {
                        std::mem::transmute::<*const c_void, unsafe extern "C" fn($($type),*) -> CuResult>(
                            find(stringify!($name), $version)?,
                        )
                    }, )*
                })
            }
        }

        /// The driver's functions. A result other than success is [`Failed`], with the driver's name of it.
        #[allow(non_snake_case, reason = "the driver's names")]
        #[allow(clippy::too_many_arguments, reason = "the driver's signatures")]
        #[allow(missing_docs, reason = "documented by the driver")]
        impl super::Driver {
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                ///
                /// # Errors
                /// Whatever the driver answers.
                ///
                /// # Safety
                /// As the driver's documentation demands: handles are live, addresses valid for the call or,
                /// where it queues work, until that is done.
                #[inline]
                pub unsafe fn $name(&self, $($arg: $type),*) -> std::result::Result<(), Failed> {
                    // SAFETY: as the caller promises.
                    let result = unsafe { (self.functions.$name)($($arg),*) };
                    if result == CuResult::SUCCESS { Ok(()) } else { Err(self.failed(stringify!($name), result)) }
                }
            )*

            /// The driver's name and description of a result; empty where it has none.
            pub(super) fn words(&self, result: CuResult) -> [&'static str; 2] {
                let ask = |f: unsafe extern "C" fn(CuResult, *mut *const c_char) -> CuResult| {
                    let mut text = std::ptr::null();
                    // SAFETY: a valid out-pointer; the text is the driver's constant, which stays mapped.
                    unsafe {
                        if f(result, &mut text) != CuResult::SUCCESS || text.is_null() {
                            return "";
                        }
                        std::ffi::CStr::from_ptr::<'static>(text).to_str().unwrap_or("")
                    }
                };
                [ask(self.functions.cuGetErrorName), ask(self.functions.cuGetErrorString)]
            }
        }
    };
}

functions! {
    cuInit @ 2000 (flags: u32);
    cuDriverGetVersion @ 2020 (out: *mut i32);
    cuGetErrorName @ 6000 (result: CuResult, out: *mut *const c_char);
    cuGetErrorString @ 6000 (result: CuResult, out: *mut *const c_char);

    cuDeviceGetCount @ 2000 (out: *mut i32);
    cuDeviceGet @ 2000 (out: *mut CuDevice, ordinal: i32);
    cuDeviceGetName @ 2000 (out: *mut c_char, length: i32, device: CuDevice);
    cuDeviceGetUuid @ 11040 (out: *mut [u8; 16], device: CuDevice);
    cuDeviceGetAttribute @ 2000 (out: *mut i32, attribute: i32, device: CuDevice);
    cuDeviceTotalMem @ 3020 (out: *mut usize, device: CuDevice);
    cuDeviceGetPCIBusId @ 4010 (out: *mut c_char, length: i32, device: CuDevice);
    cuDeviceCanAccessPeer @ 4000 (out: *mut i32, device: CuDevice, peer: CuDevice);
    cuDevicePrimaryCtxRetain @ 7000 (out: *mut CuContext, device: CuDevice);
    cuDevicePrimaryCtxRelease @ 11000 (device: CuDevice);
    cuDevicePrimaryCtxGetState @ 7000 (device: CuDevice, flags: *mut u32, active: *mut i32);

    cuCtxSetCurrent @ 4000 (context: CuContext);
    cuCtxGetCurrent @ 4000 (out: *mut CuContext);
    cuCtxGetDevice @ 2000 (out: *mut CuDevice);
    cuCtxGetStreamPriorityRange @ 5050 (least: *mut i32, greatest: *mut i32);
    cuCtxEnablePeerAccess @ 4000 (peer: CuContext, flags: u32);

    cuStreamCreateWithPriority @ 5050 (out: *mut CuStream, flags: u32, priority: i32);
    cuStreamDestroy @ 4000 (stream: CuStream);
    cuStreamSynchronize @ 2000 (stream: CuStream);
    cuStreamQuery @ 2000 (stream: CuStream);
    cuStreamWaitEvent @ 3020 (stream: CuStream, event: CuEvent, flags: u32);
    cuStreamGetCtx @ 9020 (stream: CuStream, out: *mut CuContext);
    cuStreamBeginCapture @ 10010 (stream: CuStream, mode: i32);
    cuStreamEndCapture @ 10000 (stream: CuStream, out: *mut CuGraph);
    cuThreadExchangeStreamCaptureMode @ 10010 (mode: *mut i32);
    cuStreamIsCapturing @ 10000 (stream: CuStream, out: *mut i32);

    cuEventCreate @ 2000 (out: *mut CuEvent, flags: u32);
    cuEventDestroy @ 4000 (event: CuEvent);
    cuEventRecord @ 2000 (event: CuEvent, stream: CuStream);
    cuEventQuery @ 2000 (event: CuEvent);
    cuEventSynchronize @ 2000 (event: CuEvent);
    cuEventElapsedTime @ 2000 (out: *mut f32, start: CuEvent, end: CuEvent);

    cuMemGetInfo @ 3020 (free: *mut usize, total: *mut usize);
    cuMemAlloc @ 3020 (out: *mut u64, bytes: usize);
    cuMemFree @ 3020 (address: u64);
    cuMemAllocFromPoolAsync @ 11020 (out: *mut u64, bytes: usize, pool: CuPool, stream: CuStream);
    cuMemFreeAsync @ 11020 (address: u64, stream: CuStream);
    cuMemPoolCreate @ 11020 (out: *mut CuPool, props: *const PoolProps);
    cuMemPoolDestroy @ 11020 (pool: CuPool);
    cuMemPoolSetAttribute @ 11020 (pool: CuPool, attribute: i32, value: *const c_void);
    cuMemPoolGetAttribute @ 11020 (pool: CuPool, attribute: i32, value: *mut c_void);
    cuMemPoolTrimTo @ 11020 (pool: CuPool, keep: usize);
    cuMemPoolSetAccess @ 11020 (pool: CuPool, who: *const AccessDesc, count: usize);
    cuMemHostAlloc @ 2020 (out: *mut *mut c_void, bytes: usize, flags: u32);
    cuMemFreeHost @ 2000 (memory: *mut c_void);

    cuMemcpyAsync @ 4000 (dst: u64, src: u64, bytes: usize, stream: CuStream);
    cuMemcpyPeerAsync @ 4000 (
        dst: u64, dst_context: CuContext, src: u64, src_context: CuContext, bytes: usize, stream: CuStream
    );
    cuMemsetD8Async @ 3020 (dst: u64, value: u8, count: usize, stream: CuStream);
    cuMemsetD16Async @ 3020 (dst: u64, value: u16, count: usize, stream: CuStream);
    cuMemsetD32Async @ 3020 (dst: u64, value: u32, count: usize, stream: CuStream);

    cuModuleLoadData @ 2000 (out: *mut CuModule, image: *const c_void);
    cuModuleUnload @ 2000 (module: CuModule);
    cuModuleGetFunction @ 2000 (out: *mut CuFunction, module: CuModule, name: *const c_char);
    cuFuncSetAttribute @ 9000 (function: CuFunction, attribute: i32, value: i32);
    cuLaunchKernel @ 4000 (
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared_bytes: u32, stream: CuStream, params: *mut *mut c_void, extra: *const usize
    );
    cuLaunchKernelEx @ 11060 (
        config: *const LaunchConfig, function: CuFunction, params: *mut *mut c_void, extra: *const usize
    );

    cuGraphInstantiateWithFlags @ 11040 (out: *mut CuGraphExec, graph: CuGraph, flags: u64);
    cuGraphExecUpdate @ 12000 (exec: CuGraphExec, graph: CuGraph, out: *mut UpdateResult);
    cuGraphLaunch @ 10000 (exec: CuGraphExec, stream: CuStream);
    cuGraphGetNodes @ 10000 (graph: CuGraph, out: *mut CuGraphNode, count: *mut usize);
    cuGraphNodeGetType @ 10000 (node: CuGraphNode, out: *mut i32);
    cuGraphKernelNodeGetParams @ 12000 (node: CuGraphNode, out: *mut KernelNodeParams);
    cuGraphKernelNodeGetAttribute @ 11000 (node: CuGraphNode, attribute: i32, out: *mut [u64; 8]);
    cuGraphExecDestroy @ 10000 (exec: CuGraphExec);
    cuGraphDestroy @ 10000 (graph: CuGraph);
}

const _: () = {
    assert!(size_of::<PoolProps>() == 88);
    assert!(size_of::<AccessDesc>() == 12);
    assert!(size_of::<UpdateResult>() == 24);
    assert!(size_of::<LaunchAttribute>() == 72);
    assert!(size_of::<KernelNodeParams>() == 72);
    assert!(size_of::<LaunchConfig>() == 56);
    assert!(std::mem::offset_of!(LaunchConfig, stream) == 32);
};

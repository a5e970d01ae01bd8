//! Kernels on a device: the sources, their loaded functions, and launching one.

use crate::cache::Key;
use crate::compiler::{Arch, Code, Compiler, Spec};
use crate::context::Context;
use crate::driver::{CuFunction, CuModule, LaunchAttribute, LaunchConfig, constant};
use crate::stream::CudaStream;
use ep_core::{Error, Result};
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a context has loaded. It stays until the context ends.
#[derive(Default)]
pub(crate) struct Modules {
    loaded: Mutex<All>,
}

#[derive(Default)]
struct All {
    /// By the key of the image.
    modules: HashMap<Key, CuModule>,
    /// By the kernel's key.
    functions: HashMap<Key, Loaded>,
}

#[derive(Clone)]
struct Loaded {
    raw: CuFunction,
    /// The dynamic shared memory that its blocks may have.
    allowed: Arc<AtomicU32>,
}

impl Modules {
    /// Unloads everything. The context is current, and nothing in it runs any more.
    pub(crate) fn unload(&self, context: &Context) {
        let loaded = std::mem::take(&mut *self.loaded.lock());
        for module in loaded.modules.into_values() {
            // SAFETY: loaded below, unloaded once.
            context.log("unloading a module", unsafe { context.driver().cuModuleUnload(module) });
        }
    }
}

/// Dynamic shared memory that every block can have without asking for it: 48 KiB are for it and what a kernel declares
/// together, which is 8 KiB at most where both are used.
const SHARED_WITHOUT_ASKING: u32 = 40 << 10;

/// What launches say where they may overlap.
static OVERLAP: LaunchAttribute = LaunchAttribute {
    id: constant::LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
    padding: 0,
    value: [1, 0, 0, 0, 0, 0, 0, 0],
};

/// A kernel, ready to be launched on its device.
#[derive(Clone)]
pub struct Function {
    context: Arc<Context>,
    raw: CuFunction,
    allowed: Arc<AtomicU32>,
    name: &'static str,
}

/// What loading a kernel takes.
#[derive(Clone)]
pub struct Loader {
    /// Where it will run.
    pub context: Arc<Context>,
    /// What compiles it.
    pub compiler: Arc<Compiler>,
    /// For which architecture.
    pub arch: Arch,
}

/// The argument of a kernel: one struct by value.
///
/// # Safety
/// `repr(C)`, without padding, and with the fields of the struct that the kernel of its source takes.
pub unsafe trait Argument: Copy {}

/// How many threads, and how they are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

impl Geometry {
    /// Blocks and threads in one dimension.
    pub fn linear(blocks: u32, threads: u32) -> Geometry {
        Geometry { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }

    /// As many blocks of `threads` as `items` need when each thread takes `each`.
    ///
    /// # Errors
    /// `Unsupported` for more than a grid holds.
    pub fn covering(items: u64, threads: u32, each: u32) -> Result<Geometry> {
        let blocks = items.div_ceil(u64::from(threads) * u64::from(each));
        match i32::try_from(blocks) {
            Ok(blocks) => Ok(Geometry::linear(blocks as u32, threads)),
            Err(_) => Err(Error::unsupported(format!(
                "{items} items need {blocks} blocks; a grid has at most 2^31 - 1"
            ))),
        }
    }
}

impl Function {
    /// The function of a kernel, loaded before, or out of the cache, or compiled.
    ///
    /// # Errors
    /// Those of compiling; the driver's, where it does not take the code.
    pub fn load(loader: &Loader, name: &'static str, spec: &Spec) -> Result<Function> {
        let context = loader.context.clone();
        let key = spec.key();
        let known = context.modules().loaded.lock().functions.get(&key).cloned();
        if let Some(Loaded { raw, allowed }) = known {
            return Ok(Function { context, raw, allowed, name });
        }
        let is_loaded = |image: &Key| context.modules().loaded.lock().modules.contains_key(image);
        let code = loader.compiler.code_unless(spec, loader.arch, &is_loaded)?;
        let entry = CString::new(code.entry.as_str()).map_err(|e| Error::internal(e.to_string()))?;
        let Loaded { raw, allowed } = {
            let _current = context.enter()?;
            let module = load_module(&context, &code).map_err(|e| e.context(spec))?;
            let mut raw = CuFunction::NULL;
            // SAFETY: a module of the context, which is current, a text that ends, and a valid out-pointer.
            unsafe { context.driver().cuModuleGetFunction(&mut raw, module, entry.as_ptr()) }
                .map_err(|e| context.error(e).context(spec))?;
            let new = Loaded { raw, allowed: Arc::new(AtomicU32::new(SHARED_WITHOUT_ASKING)) };
            context.modules().loaded.lock().functions.entry(key).or_insert(new).clone()
        };
        Ok(Function { context, raw, allowed, name })
    }

    /// Lets a block have as much dynamic shared memory as `bytes`, which needs asking above 48 KiB in all, and only once.
    ///
    /// # Errors
    /// The driver's, where the device has less.
    #[inline]
    pub fn allow_shared(&self, bytes: u32) -> Result<()> {
        if bytes <= self.allowed.load(Ordering::Acquire) { Ok(()) } else { self.ask_for_shared(bytes) }
    }

    #[cold]
    fn ask_for_shared(&self, bytes: u32) -> Result<()> {
        // Before the lock, which is free again when the context is left: that may log.
        let _current = self.context.enter()?;
        // One at a time: of two threads that ask, the one with less must not be the last.
        let _one = self.context.modules().loaded.lock();
        if bytes > self.allowed.load(Ordering::Acquire) {
            let attribute = constant::FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: a function of the context, which is current.
            unsafe { self.context.driver().cuFuncSetAttribute(self.raw, attribute, bytes as i32) }
                .map_err(|e| self.context.error(e).context(self.name))?;
            self.allowed.store(bytes, Ordering::Release);
        }
        Ok(())
    }

    /// Queues a launch. The driver compares the argument's size with the kernel's.
    ///
    /// Where the device can ([`Context::overlaps`]) and the kernel before is ours, blocks come to it while those of that one
    /// are ending, and wait there until it is done. That saves more than a microsecond between two kernels, and the driver
    /// half of one.
    ///
    /// # Safety
    /// The kernel begins with `await_stream` of `common.cuh`, for all threads. `argument` is of the type that this kernel takes, and the memory that it points to is valid, and used by
    /// nobody else in conflict, until the work is done.
    ///
    /// # Errors
    /// `InvalidArgument` for a stream of another device; else the driver's.
    #[inline]
    pub unsafe fn launch<A: Argument>(
        &self,
        stream: &CudaStream,
        geometry: Geometry,
        argument: &A,
    ) -> Result<()> {
        if !Arc::ptr_eq(&self.context, stream.context()) {
            return Err(self.foreign(stream));
        }
        let bytes = size_of::<A>();
        let extra = [
            constant::LAUNCH_PARAM_BUFFER_POINTER,
            std::ptr::from_ref(argument).expose_provenance(),
            constant::LAUNCH_PARAM_BUFFER_SIZE,
            (&raw const bytes).expose_provenance(),
            0,
        ];
        let Geometry { grid, block, shared_bytes } = geometry;
        stream.queue(self.name, |context| {
            let (params, extra) = (std::ptr::null_mut(), extra.as_ptr());
            if stream.may_overlap() {
                let config = LaunchConfig {
                    grid,
                    block,
                    shared_bytes,
                    stream: stream.raw(),
                    attributes: &OVERLAP,
                    num_attributes: 1,
                };
                // SAFETY: as below; the kernel waits for earlier work before it touches memory, as the caller promises.
                return unsafe { context.driver().cuLaunchKernelEx(&config, self.raw, params, extra) };
            }
            // SAFETY: a function and a stream of the context; `extra` says where the argument is and how long; what
            // it points to is valid as the caller promises.
            unsafe {
                context.driver().cuLaunchKernel(
                    self.raw,
                    grid[0],
                    grid[1],
                    grid[2],
                    block[0],
                    block[1],
                    block[2],
                    shared_bytes,
                    stream.raw(),
                    params,
                    extra,
                )
            }
        })
    }

    #[cold]
    fn foreign(&self, stream: &CudaStream) -> Error {
        Error::invalid(format!(
            "{} was made for device {} and is launched on a stream of device {}",
            self.name,
            self.context.device(),
            stream.context().device()
        ))
    }
}

/// The module of an image, loaded once. The context is current.
fn load_module(context: &Context, code: &Code) -> Result<CuModule> {
    let known = context.modules().loaded.lock().modules.get(&code.key).copied();
    if let Some(module) = known {
        return Ok(module);
    }
    let image = code.image.as_ref().ok_or_else(|| Error::internal("a module that is not loaded"))?;
    let driver = context.driver();
    let mut module = CuModule::NULL;
    // SAFETY: a whole image and a valid out-pointer.
    unsafe { driver.cuModuleLoadData(&mut module, image.as_ptr().cast()) }.map_err(|e| context.error(e))?;
    let first = *context.modules().loaded.lock().modules.entry(code.key).or_insert(module);
    if first != module {
        // Another thread was faster.
        // SAFETY: loaded above, and nobody else has it.
        context.log("unloading a module", unsafe { driver.cuModuleUnload(module) });
    }
    Ok(first)
}

/// A kernel that is loaded when it is first launched: one of several that a primitive chooses among.
pub struct Lazy {
    loader: Loader,
    name: &'static str,
    spec: Spec,
    function: OnceCell<Function>,
}

impl Lazy {
    /// Not loaded yet.
    pub fn new(loader: &Loader, name: &'static str, spec: Spec) -> Lazy {
        Lazy { loader: loader.clone(), name, spec, function: OnceCell::new() }
    }

    /// The function.
    ///
    /// # Errors
    /// Those of [`Function::load`]; a later call tries again.
    #[inline]
    pub fn get(&self) -> Result<&Function> {
        self.function.get_or_try_init(|| Function::load(&self.loader, self.name, &self.spec))
    }
}

//! oneDNN's engine for the CPU, and the scratch memory that its primitives share.

use crate::library::{Handle, Library, constant};
use ep_core::parallel::Parallel;
use ep_core::provider::Host;
use ep_core::{Error, Result};
use parking_lot::Mutex;
use std::alloc::Layout;
use std::sync::Arc;

/// Alignment of scratch memory: a page, beyond which the library asks for none.
const SCRATCH_ALIGNMENT: usize = 4096;

/// The engine of an instance. Any thread may use it.
#[derive(Debug)]
pub struct Engine {
    library: Arc<Library>,
    handle: Handle,
    scratch: Mutex<Vec<Scratch>>,
}

// SAFETY: the library's engine may be used by several threads at once; all else is behind a lock.
unsafe impl Send for Engine {}
// SAFETY: likewise.
unsafe impl Sync for Engine {}

impl Engine {
    /// The engine for the CPU.
    ///
    /// # Errors
    /// `Unavailable` from a build of the library that has none.
    pub fn new(library: Arc<Library>) -> Result<Arc<Engine>> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a valid out-pointer.
        let status = unsafe { (library.functions.engine_create)(&mut handle, constant::CPU, 0) };
        library
            .check("dnnl_engine_create", status)
            .map_err(|e| Error::unavailable(format!("{library:?} has no engine for the CPU: {e}")))?;
        Ok(Arc::new(Engine { library, handle, scratch: Mutex::default() }))
    }

    /// The library.
    pub fn library(&self) -> &Library {
        &self.library
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// Parts of work that is worth `worth` threads: at most as many as the host has, and one where the library starts
    /// threads of its own.
    pub(crate) fn parts(&self, host: &Host, worth: u64) -> u64 {
        let most = if self.library.keeps_to_caller() { host.threads() as u64 } else { 1 };
        worth.clamp(1, most.max(1))
    }

    /// Scratch memory of at least `bytes` bytes; its content is anything. It goes back when the lease ends.
    pub(crate) fn scratch(&self, bytes: usize) -> Result<Lease<'_>> {
        if bytes == 0 {
            return Ok(Lease { engine: self, scratch: None });
        }
        // The smallest that is large enough; else the largest makes room for a larger one.
        let kept = {
            let mut all = self.scratch.lock();
            let fits = (0..all.len()).filter(|i| all[*i].bytes() >= bytes).min_by_key(|i| all[*i].bytes());
            let chosen = fits.or_else(|| (0..all.len()).max_by_key(|i| all[*i].bytes()));
            chosen.map(|i| all.swap_remove(i))
        };
        let scratch = match kept.filter(|scratch| scratch.bytes() >= bytes) {
            Some(scratch) => scratch,
            None => Scratch::new(bytes)?,
        };
        Ok(Lease { engine: self, scratch: Some(scratch) })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: its own, destroyed once; primitives and memory keep the engine alive by holding this.
        unsafe { (self.library.functions.engine_destroy)(self.handle) };
    }
}

/// A block of memory.
#[derive(Debug)]
struct Scratch {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: memory that nobody else has.
unsafe impl Send for Scratch {}

impl Scratch {
    fn new(bytes: usize) -> Result<Scratch> {
        let full =
            || Error::out_of_memory(format!("{bytes} bytes of scratch memory for oneDNN; free buffers"));
        let layout = Layout::from_size_align(bytes, SCRATCH_ALIGNMENT).map_err(|_| full())?;
        // SAFETY: the layout's size is not 0, as `Engine::scratch` asks for none of that.
        let start = unsafe { std::alloc::alloc(layout) };
        if start.is_null() { Err(full()) } else { Ok(Scratch { start, layout }) }
    }

    fn bytes(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { std::alloc::dealloc(self.start, self.layout) };
    }
}

/// Scratch memory in use.
pub(crate) struct Lease<'a> {
    engine: &'a Engine,
    scratch: Option<Scratch>,
}

impl Lease<'_> {
    /// Its start; null where none was asked for.
    pub(crate) fn start(&self) -> *mut u8 {
        self.scratch.as_ref().map_or(std::ptr::null_mut(), |s| s.start)
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if let Some(scratch) = self.scratch.take() {
            self.engine.scratch.lock().push(scratch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_is_used_again_and_grows() {
        let library = match Library::open(None) {
            Ok(library) => library,
            Err(e) => return println!("skipped: {e}"),
        };
        let engine = Engine::new(Arc::new(library)).unwrap();
        let small = engine.scratch(100).unwrap();
        let start = small.start();
        let other = engine.scratch(100).unwrap();
        assert!(other.start() != start && start.addr().is_multiple_of(SCRATCH_ALIGNMENT));
        drop((small, other));
        assert_eq!(engine.scratch.lock().len(), 2);
        drop(engine.scratch(5000).unwrap());
        assert_eq!(engine.scratch.lock().iter().map(Scratch::bytes).max(), Some(5000));
        assert_eq!(engine.scratch.lock().len(), 2, "one made room");
        assert!(engine.scratch(0).unwrap().start().is_null());
        assert!(engine.scratch(usize::MAX).is_err());
    }
}

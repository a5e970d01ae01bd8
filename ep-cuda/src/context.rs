//! A device's context: the primary one, which this provider shares with every library of the process, or one that the
//! host made.

use crate::compiler::Arch;
use crate::device::Properties;
use crate::driver::{AccessDesc, CuContext, CuDevice, CuEvent, CuResult, CuStream, Driver, Failed, Location};
use crate::given;
use crate::kernel::Modules;
use crate::memory::{Limits, Pool};
use crate::pending::Pending;
use crate::refusal::Refusals;
use ep_core::{Code, Error, Result};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// The context in which a device works, with what is kept for reuse in it: the primary one, retained until this is dropped,
/// or one of the host, which outlives this.
pub struct Context {
    driver: Arc<Driver>,
    device: CuDevice,
    raw: CuContext,
    /// Whether it is the primary one, which is released.
    primary: bool,
    /// Whether it stays current on a thread that had none.
    stays: bool,
    space: String,
    overlaps: bool,
    /// Whether an error has made it useless.
    lost: AtomicBool,
    events: Mutex<Vec<CuEvent>>,
    modules: Modules,
    pool: Pool,
    refusals: Refusals,
    pending: Pending,
}

/// The contexts of one provider instance, so that those of peers are let into each other's memory.
#[derive(Default)]
pub struct Fleet {
    contexts: Mutex<Vec<Weak<Context>>>,
}

impl Fleet {
    /// The live context whose device has this memory space.
    pub fn with_space(&self, space: &str) -> Option<Arc<Context>> {
        self.live().into_iter().find(|c| c.space == space)
    }

    /// All that live. They may end where this is dropped, which is not done under the lock.
    fn live(&self) -> Vec<Arc<Context>> {
        self.contexts.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Adds a context, and lets it and its peers reach each other's memory. Peers that are lost are left out.
    fn join(&self, new: &Arc<Context>) -> Result<()> {
        let others: Vec<Arc<Context>> = {
            let mut contexts = self.contexts.lock();
            contexts.retain(|c| c.strong_count() > 0);
            let others = contexts.iter().filter_map(Weak::upgrade).collect();
            // Of two that join at a time the later one sees the other, and does it for both.
            contexts.push(Arc::downgrade(new));
            others
        };
        for other in others.iter().filter(|other| !other.is_lost()) {
            match new.reach(other).and_then(|()| other.reach(new)) {
                Err(e) if other.is_lost() && !new.is_lost() => {
                    tracing::warn!("device {} is opened without its peer {}: {e}", new.device, other.device);
                }
                reached => reached?,
            }
        }
        Ok(())
    }
}

/// What the options say about contexts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Habits {
    /// How much memory is handed out and kept.
    pub(crate) limits: Limits,
    /// Whether launches may overlap, where the device can.
    pub(crate) may_overlap: bool,
    /// Whether the primary context may stay current on a thread that had none.
    pub(crate) may_stay: bool,
}

/// Idle events that are kept for reuse at most.
const MAX_IDLE_EVENTS: usize = 1024;

impl Context {
    /// Retains the primary context of `device`, or takes the one that the host gives.
    pub(crate) fn open(
        driver: &Arc<Driver>,
        (device, given): (CuDevice, Option<CuContext>),
        properties: &Properties,
        habits: Habits,
        fleet: &Fleet,
    ) -> Result<Arc<Context>> {
        let mut raw = CuContext::NULL;
        match given {
            // SAFETY: an ordinal of this driver and a valid out-pointer.
            None => unsafe { driver.cuDevicePrimaryCtxRetain(&mut raw, device) }?,
            Some(given) => {
                check_owner(driver, device, given)?;
                raw = given;
            }
        }
        // Owned from here on, so that it is released if what follows fails.
        let mut context = Context {
            driver: driver.clone(),
            device,
            raw,
            primary: given.is_none(),
            stays: given.is_none() && habits.may_stay,
            space: crate::space::device(&properties.uuid),
            overlaps: habits.may_overlap && can_overlap(driver.version(), properties.arch),
            lost: AtomicBool::new(false),
            events: Mutex::default(),
            modules: Modules::default(),
            pool: Pool::new(habits.limits),
            refusals: Refusals::default(),
            pending: Pending::default(),
        };
        if properties.memory_pools {
            let raw = {
                let _current = context.enter()?;
                crate::memory::open_pool(&context)?
            };
            context.pool.set_raw(raw);
        }
        let context = Arc::new(context);
        fleet.join(&context)?;
        Ok(context)
    }

    /// The driver.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// The device's number.
    pub fn device(&self) -> CuDevice {
        self.device
    }

    /// The driver's handle.
    pub fn raw(&self) -> CuContext {
        self.raw
    }

    /// Its name in messages.
    pub(crate) fn describe(&self) -> String {
        let which = if self.primary { "its primary context" } else { "the context of option `context`," };
        format!("{which} {:?}", self.raw)
    }

    /// The memory space of the device.
    pub fn space(&self) -> &str {
        &self.space
    }

    /// Whether the blocks of a launch come to the device before the kernel before it is done.
    #[inline]
    pub fn overlaps(&self) -> bool {
        self.overlaps
    }

    pub(crate) fn modules(&self) -> &Modules {
        &self.modules
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// What is queued on its streams.
    pub(crate) fn pending(&self) -> &Pending {
        &self.pending
    }

    /// Makes it current on this thread until the result is dropped, which puts back what was current before: another
    /// context, and none too unless the process has no other device whose context a thread could want
    /// ([`Settings::leave_current`](crate::settings::Settings::leave_current)).
    ///
    /// # Errors
    /// The driver's.
    #[inline]
    pub fn enter(&self) -> Result<Entered<'_>> {
        let mut before = CuContext::NULL;
        // SAFETY: a valid out-pointer, and a context that is retained.
        unsafe {
            self.driver.cuCtxGetCurrent(&mut before).map_err(|e| self.error(e))?;
            if before == self.raw {
                return Ok(Entered { context: self, before: None });
            }
            self.driver.cuCtxSetCurrent(self.raw).map_err(|e| self.error(e))?;
        }
        let stays = self.stays && before == CuContext::NULL;
        Ok(Entered { context: self, before: (!stays).then_some(before) })
    }

    /// Has none current on this thread, where it is this one and nobody has it retained any more: calls would be told that it
    /// is destroyed.
    fn leave(&self) -> std::result::Result<(), Failed> {
        let (mut current, mut flags, mut active) = (CuContext::NULL, 0, 0);
        // SAFETY: valid out-pointers and an ordinal of this driver.
        unsafe {
            self.driver.cuCtxGetCurrent(&mut current)?;
            if current != self.raw {
                return Ok(());
            }
            self.driver.cuDevicePrimaryCtxGetState(self.device, &mut flags, &mut active)?;
            if active == 0 { self.driver.cuCtxSetCurrent(CuContext::NULL) } else { Ok(()) }
        }
    }

    /// An error of a call on this context. One after which nothing works is remembered, and names the work that may have
    /// caused it, which need not be what was called: that of all streams.
    #[cold]
    pub fn error(&self, failed: Failed) -> Error {
        self.error_on(failed, None)
    }

    /// The same of a call on a stream, whose work is named first; with a word for the stream.
    #[cold]
    pub(crate) fn error_on(&self, failed: Failed, stream: Option<(CuStream, &str)>) -> Error {
        let error = Error::from(failed);
        if !failed.result.is_sticky() {
            return error;
        }
        self.lost.store(true, Ordering::Relaxed);
        error.context(self.pending.describe(stream))
    }

    /// The error of a call that concerns a peer too. Which of both is lost the driver does not say, so it is asked.
    #[cold]
    pub(crate) fn error_between(
        &self,
        peer: &Context,
        failed: Failed,
        stream: Option<(CuStream, &str)>,
    ) -> Error {
        if !failed.result.is_sticky() {
            return Error::from(failed);
        }
        if self.loss(stream).is_none() && peer.loss(None).is_some() {
            return peer.error(failed).context(format!("device {}, a peer", peer.device));
        }
        self.error_on(failed, stream)
    }

    /// An error of another library in this context. Such a library does not say that the device is lost, so the driver is
    /// asked. The work of a stream is named first.
    #[cold]
    pub(crate) fn explain(&self, error: Error, stream: Option<(CuStream, &str)>) -> Error {
        match self.loss(stream) {
            Some(lost) => Error::new(Code::DeviceLost, format!("{error}; {lost}")),
            None => error,
        }
    }

    /// The error of a context that is lost, which every call tells.
    #[cold]
    fn loss(&self, stream: Option<(CuStream, &str)>) -> Option<Error> {
        let (mut free, mut total) = (0, 0);
        let asked = self.enter().and_then(|_current| {
            // SAFETY: valid out-pointers; the context is current.
            unsafe { self.driver.cuMemGetInfo(&mut free, &mut total) }.map_err(|e| self.error_on(e, stream))
        });
        asked.err().filter(|e| e.code() == Code::DeviceLost)
    }

    /// Whether a call has failed in a way after which none works.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Logs a failure where nothing can be returned. Those that are to be expected are not errors: a driver that is
    /// gone because the process ends, or a context that is lost, of which somebody has been told.
    pub(crate) fn log(&self, what: &str, result: std::result::Result<(), Failed>) {
        match result {
            Ok(()) => {}
            Err(e) if e.result == CuResult::DEINITIALIZED || self.is_lost() => {
                tracing::debug!("{what}: {e}");
            }
            Err(e) => tracing::error!("{what}: {}", self.error(e)),
        }
    }

    /// Gives something back, in the context if it can be entered. Also if it cannot: what is given back is named by
    /// its handle, and most drivers need no more.
    pub(crate) fn close(&self, what: &str, give_back: impl FnOnce(&Context)) {
        let known = self.is_lost();
        let entered = self.enter();
        give_back(self);
        match entered {
            Ok(_current) => {}
            Err(e) if e.code() == Code::DeviceLost && known => tracing::debug!("{what}: {e}"),
            Err(e) => tracing::error!("{what}: {e}"),
        }
    }

    /// An event, with timing, perhaps one that was used before.
    pub(crate) fn take_event(&self) -> Result<CuEvent> {
        if let Some(event) = self.events.lock().pop() {
            return Ok(event);
        }
        let _current = self.enter()?;
        let mut event = CuEvent::NULL;
        // SAFETY: a valid out-pointer; the context is current. Flags 0: with timing, waits spin.
        unsafe { self.driver.cuEventCreate(&mut event, 0) }.map_err(|e| self.error(e))?;
        Ok(event)
    }

    /// Takes an event back.
    pub(crate) fn give_event(&self, event: CuEvent) {
        let mut events = self.events.lock();
        if events.len() < MAX_IDLE_EVENTS && !self.is_lost() {
            events.push(event);
            return;
        }
        drop(events);
        self.destroy_event(event);
    }

    fn destroy_event(&self, event: CuEvent) {
        // SAFETY: made by `take_event`, in no other place any more. The driver finishes pending records by itself.
        self.log("destroying an event", unsafe { self.driver.cuEventDestroy(event) });
    }

    /// Lets this device's kernels and copies reach the memory of another, where the hardware can.
    fn reach(&self, other: &Context) -> Result<()> {
        let mut able = 0;
        // SAFETY: ordinals of this driver and a valid out-pointer.
        unsafe { self.driver.cuDeviceCanAccessPeer(&mut able, self.device, other.device) }?;
        if able == 0 {
            return Ok(());
        }
        {
            let _current = self.enter()?;
            // SAFETY: both contexts are retained.
            match unsafe { self.driver.cuCtxEnablePeerAccess(other.raw, 0) } {
                Err(e) if e.result != CuResult::PEER_ACCESS_ALREADY_ENABLED => {
                    return Err(self.error_between(other, e, None));
                }
                // Another library of the process has enabled it.
                _ => {}
            }
        }
        let Some(pool) = other.pool.raw() else { return Ok(()) };
        let access = AccessDesc { location: Location::device(self.device), flags: 3 };
        // SAFETY: a live pool and one description.
        unsafe { self.driver.cuMemPoolSetAccess(pool, &access, 1) }
            .map_err(|e| other.error_between(self, e, None))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.close("closing a context", |context| {
            let events = std::mem::take(&mut *context.events.lock());
            events.into_iter().for_each(|event| context.destroy_event(event));
            context.modules.unload(context);
            context.refusals.close(context);
            crate::memory::close_pool(context);
        });
        if !self.primary {
            return;
        }
        // SAFETY: retained once in `open`; every object in it holds an Arc of this.
        self.log("releasing a context", unsafe { self.driver.cuDevicePrimaryCtxRelease(self.device) });
        // Also where it did not stay: another instance may have left it here.
        self.log("leaving a context", self.leave());
    }
}

/// Makes current on this thread what was before. Where another thread has ended that since, as it may a primary one, none is.
fn put_back(driver: &Driver, before: CuContext) -> std::result::Result<(), Failed> {
    // SAFETY: it was current on this thread a moment ago. The handle of a primary context is one for ever; others live as long as
    // their host has them current.
    match unsafe { driver.cuCtxSetCurrent(before) } {
        Err(e) if [CuResult::INVALID_CONTEXT, CuResult::CONTEXT_IS_DESTROYED].contains(&e.result) => {
            // SAFETY: none is always possible.
            unsafe { driver.cuCtxSetCurrent(CuContext::NULL) }
        }
        result => result,
    }
}

/// Whether launches on a device can overlap: since compute capability 9.0, and recorded in a graph too since CUDA 12.3.
fn can_overlap(cuda: i32, arch: Arch) -> bool {
    arch.number() >= 90 && cuda >= 12030
}

/// Whether a context of the host is of this device.
fn check_owner(driver: &Driver, device: CuDevice, raw: CuContext) -> Result<()> {
    let about = |e: Failed| {
        let why = format!("option `context`: CUcontext {raw:?} cannot be used: {e}");
        // A handle that is not live is no fault of the provider.
        let code = e.result.code();
        Error::new(if code == Code::Internal { Code::InvalidArgument } else { code }, why)
    };
    let (mut before, mut owner) = (CuContext::NULL, 0);
    // SAFETY: valid out-pointers, a context that was current when the provider was made, or of which whoever gave its
    // address promised the same: that it lives; and the one that was current.
    unsafe {
        driver.cuCtxGetCurrent(&mut before)?;
        driver.cuCtxSetCurrent(raw).map_err(about)?;
        let asked = driver.cuCtxGetDevice(&mut owner).map_err(about);
        put_back(driver, before)?;
        asked?;
    }
    if owner == device { Ok(()) } else { Err(given::of_another(raw, owner, device)) }
}

/// While it lives, a context is current on this thread; afterwards what was before, where that has to be put back.
pub struct Entered<'a> {
    context: &'a Context,
    before: Option<CuContext>,
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.before {
            self.context.log("putting the thread's context back", put_back(&self.context.driver, before));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_overlap_where_device_and_driver_can() {
        let can = [(13000, 9, 0), (12030, 10, 0), (12020, 9, 0), (13000, 8, 9)]
            .map(|(cuda, major, minor)| can_overlap(cuda, Arch::new(major, minor)));
        assert_eq!(can, [true, true, false, false]);
    }
}

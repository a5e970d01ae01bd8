//! Indices that kernels refuse: where they tell of them, and the error that is made of it.
//!
//! A kernel cannot return an error. It writes the first refused index to a slot in pinned memory, of which each stream
//! has one, and the next wait for the stream finds it there. Each recording has a slot of its own, as its graph may be
//! launched on other streams and outlive the one that recorded it; the streams that launch it look there.

use crate::context::Context;
use crate::driver::constant;
use ep_core::{Error, Result};
use parking_lot::Mutex;
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// What a kernel writes: `IndexError` of indices.cuh.
#[repr(C)]
struct Slot {
    lock: AtomicU32,
    launch: AtomicU32,
    position: AtomicU64,
    value: AtomicI64,
}

/// The position of a slot in which nothing was written.
const NOWHERE: u64 = u64::MAX;
/// Slots are allocated by so many.
const PER_PAGE: usize = 64;
/// A slot has a line of the cache to itself.
const SLOT_BYTES: usize = 64;

/// The slots of a context.
#[derive(Default)]
pub(crate) struct Refusals {
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    /// Addresses of what was allocated.
    pages: Vec<usize>,
    free: Vec<usize>,
}

impl Refusals {
    /// Sees to it that there is a slot for a stream's first launch that may refuse an index, as memory cannot be
    /// allocated while a graph is recorded.
    ///
    /// # Errors
    /// The driver's, where it has no pinned memory left.
    pub(crate) fn prepare(&self, context: &Context) -> Result<()> {
        // Before the lock, which is free again when the context is left: that may log.
        let _current = context.enter()?;
        let mut slots = self.slots.lock();
        if slots.free.is_empty() {
            slots.grow(context)?;
        }
        Ok(())
    }

    fn take(&self, context: &Context) -> Result<usize> {
        // As above.
        let _current = context.enter()?;
        let mut slots = self.slots.lock();
        loop {
            if let Some(address) = slots.free.pop() {
                slot(address).clear();
                return Ok(address);
            }
            slots.grow(context)?;
        }
    }

    fn give(&self, address: usize) {
        self.slots.lock().free.push(address);
    }

    /// Frees everything. The context is current, and nothing in it runs any more.
    pub(crate) fn close(&self, context: &Context) {
        let pages = std::mem::take(&mut self.slots.lock().pages);
        for page in pages {
            let memory: *mut c_void = std::ptr::with_exposed_provenance_mut(page);
            // SAFETY: allocated below, freed once, and used by no stream any more.
            context.log("freeing pinned memory", unsafe { context.driver().cuMemFreeHost(memory) });
        }
    }
}

impl Slots {
    /// The context is current.
    fn grow(&mut self, context: &Context) -> Result<()> {
        let mut memory: *mut c_void = std::ptr::null_mut();
        let bytes = PER_PAGE * SLOT_BYTES;
        // SAFETY: a valid out-pointer; the context is current.
        unsafe { context.driver().cuMemHostAlloc(&mut memory, bytes, constant::MEMHOSTALLOC_PORTABLE) }
            .map_err(|e| context.error(e).context("memory in which refused indices are told"))?;
        let page = memory.expose_provenance();
        self.pages.push(page);
        self.free.extend((0..PER_PAGE).map(|i| page + i * SLOT_BYTES));
        Ok(())
    }
}

/// The slot at an address that [`Refusals`] has handed out.
fn slot<'a>(address: usize) -> &'a Slot {
    // SAFETY: aligned memory of a page, which lives as long as the context, and so as the streams and recordings that have
    // slots; all fields are atomic, and any bits are valid.
    unsafe { &*std::ptr::with_exposed_provenance::<Slot>(address) }
}

impl Slot {
    fn clear(&self) {
        self.lock.store(0, Ordering::Relaxed);
        self.position.store(NOWHERE, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.position.load(Ordering::Relaxed) != NOWHERE
    }

    /// What was written, and makes room for the next.
    fn take(&self) -> Found {
        let found = Found {
            launch: self.launch.load(Ordering::Relaxed),
            position: self.position.load(Ordering::Relaxed),
            value: self.value.load(Ordering::Relaxed),
        };
        self.clear();
        found
    }
}

/// A refused index.
struct Found {
    launch: u32,
    position: u64,
    value: i64,
}

impl Found {
    /// The error, with what is known of the launch.
    fn error(&self, launch: Option<Refused>) -> Error {
        let Found { position, value, .. } = self;
        match launch {
            Some(Refused { name, from, to }) => Error::invalid(format!(
                "{name}: index {value} at position {position} is out of range: it must be in {from}..{to}"
            )),
            None => Error::invalid(format!(
                "index {value} at position {position} of an earlier gather, one_hot or scatter_add is out of range: it \
                 must lie on the axis"
            )),
        }
    }
}

/// A launch that may refuse an index: the op, and the indices that it takes, `from..to`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Refused {
    pub(crate) name: &'static str,
    pub(crate) from: i64,
    pub(crate) to: i64,
}

/// How many launches a stream remembers for the message.
const REMEMBERED: usize = 16;

/// A stream's slot, taken at its first launch that may refuse an index, and what those launches were.
#[derive(Default)]
pub(crate) struct Told {
    slot: Cell<Option<usize>>,
    launches: Cell<u32>,
    latest: [Cell<Refused>; REMEMBERED],
}

impl Told {
    /// Where a launch tells of a refused index, and its number.
    pub(crate) fn add(&self, context: &Context, launch: Refused) -> Result<(u64, u32)> {
        let address = match self.slot.get() {
            Some(address) => address,
            None => {
                let address = context.refusals().take(context)?;
                self.slot.set(Some(address));
                address
            }
        };
        Ok((address as u64, self.remember(launch)))
    }

    /// The number of a launch.
    fn remember(&self, launch: Refused) -> u32 {
        let number = self.launches.get();
        self.launches.set(number.wrapping_add(1));
        self.latest[number as usize % REMEMBERED].set(launch);
        number
    }

    /// The error of the first launch that refused an index since the last call. Everything queued is done.
    pub(crate) fn check(&self) -> Result<()> {
        match self.slot.get() {
            Some(address) if slot(address).is_set() => Err(self.error(address)),
            _ => Ok(()),
        }
    }

    #[cold]
    fn error(&self, address: usize) -> Error {
        let found = slot(address).take();
        let behind = self.launches.get().wrapping_sub(found.launch);
        let known = (1..=REMEMBERED as u32).contains(&behind);
        found.error(known.then(|| self.latest[found.launch as usize % REMEMBERED].get()))
    }

    /// Gives the slot back.
    pub(crate) fn close(&self, context: &Context) {
        if let Some(address) = self.slot.take() {
            context.refusals().give(address);
        }
    }
}

/// A recording's slot, taken by its first launch that may refuse an index, and those launches. It is kept by the graph and
/// by streams that have launched the graph and were not awaited since, so that nobody else gets the slot meanwhile.
pub(crate) struct Recorded {
    context: Arc<Context>,
    told: Mutex<RecordedLaunches>,
}

#[derive(Default)]
struct RecordedLaunches {
    slot: Option<usize>,
    launches: Vec<Refused>,
    /// Of graphs that were launched while this was recorded, and so are parts of it.
    parts: Vec<Arc<Recorded>>,
}

impl Recorded {
    pub(crate) fn new(context: &Arc<Context>) -> Arc<Recorded> {
        Arc::new(Recorded { context: context.clone(), told: Mutex::default() })
    }

    /// As [`Told::add`].
    pub(crate) fn add(&self, launch: Refused) -> Result<(u64, u32)> {
        // Not under the lock: a slot is taken in the context, and leaving that may log. One thread at a time records.
        let known = self.told.lock().slot;
        let address = known.map_or_else(|| self.context.refusals().take(&self.context), Ok)?;
        let mut told = self.told.lock();
        told.slot = Some(address);
        told.launches.push(launch);
        Ok((address as u64, (told.launches.len() - 1) as u32))
    }

    pub(crate) fn add_part(&self, part: &Arc<Recorded>) {
        self.told.lock().parts.push(part.clone());
    }

    /// Whether a launch of it may refuse an index.
    pub(crate) fn may_refuse(&self) -> bool {
        let told = self.told.lock();
        told.slot.is_some() || !told.parts.is_empty()
    }

    /// The error of a launch that refused an index since the last call. The replay to look at is done; of one on another
    /// stream that is not, what is found may be told here.
    pub(crate) fn check(&self) -> Result<()> {
        let told = self.told.lock();
        let own = match told.slot {
            Some(address) if slot(address).is_set() => {
                let found = slot(address).take();
                Err(found.error(told.launches.get(found.launch as usize).copied()))
            }
            _ => Ok(()),
        };
        // All of them, as each is told of once.
        told.parts.iter().fold(own, |first, part| {
            let next = part.check();
            first.and(next)
        })
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if let Some(address) = self.told.get_mut().slot {
            self.context.refusals().give(address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::CudaProvider;
    use crate::settings::Settings;
    use crate::stream::CudaStream;
    use ep_core::Code;
    use ep_core::provider::{Device, Provider, Stream, StreamOptions};

    /// As a kernel does it.
    fn refuse(slot: &Slot, launch: u32, position: u64, value: i64) {
        slot.launch.store(launch, Ordering::Relaxed);
        slot.position.store(position, Ordering::Relaxed);
        slot.value.store(value, Ordering::Relaxed);
    }

    #[test]
    fn the_next_wait_tells_the_op_the_place_and_the_value_once() {
        assert_eq!((size_of::<Slot>(), std::mem::offset_of!(Slot, position)), (24, 8));
        let page = Box::new(Slot {
            lock: AtomicU32::new(0),
            launch: AtomicU32::new(0),
            position: AtomicU64::new(NOWHERE),
            value: AtomicI64::new(0),
        });
        let told = Told::default();
        assert_eq!(told.check(), Ok(()), "no launch may refuse anything");
        told.slot.set(Some(std::ptr::from_ref(&*page).expose_provenance()));
        told.remember(Refused { name: "gather", from: -5, to: 5 });
        let second = told.remember(Refused { name: "one_hot", from: 0, to: 7 });
        assert_eq!(told.check(), Ok(()));
        refuse(&page, second, 3, 12);
        let error = told.check().unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert_eq!(error.message(), "one_hot: index 12 at position 3 is out of range: it must be in 0..7");
        assert_eq!(told.check(), Ok(()), "it is told once");
        for _ in 0..REMEMBERED {
            told.remember(Refused { name: "gather", from: 0, to: 7 });
        }
        refuse(&page, second, 0, -1);
        let error = told.check().unwrap_err();
        assert!(error.message().starts_with("index -1 at position 0 of an earlier"), "{error}");
    }

    #[test]
    fn the_streams_that_launch_a_graph_tell_of_it() {
        let fake = fakecuda::Fake::beside_the_test();
        fake.reset(fakecuda::Setup::default());
        let driver = Some(fake.path().to_owned());
        let settings = Settings { driver, cache: Some("off".to_owned()), ..Settings::default() };
        let device = CudaProvider::new(&settings).unwrap().open_device(0).unwrap();
        let stream = || device.create_stream(StreamOptions::default()).unwrap();
        let gather = Refused { name: "gather", from: 0, to: 7 };
        let scatter = Refused { name: "scatter_add", from: 0, to: 9 };
        // Where a stream that has launched nothing yet would tell.
        let next = || stream().refusals(gather).unwrap().0;
        let told = |stream: &CudaStream| stream.sync().unwrap_err().message().to_owned();
        let memory = |address: u64| slot(address as usize);

        let (recorder, first, second) = (stream(), stream(), stream());
        let own = recorder.refusals(gather).unwrap().0;
        recorder.begin_capture().unwrap();
        let (address, launch) = recorder.refusals(gather).unwrap();
        assert_eq!(recorder.refusals(scatter), Ok((address, launch + 1)));
        let graph = recorder.end_capture().unwrap().instantiate().unwrap();
        assert_ne!(address, own);
        assert_eq!(recorder.refusals(gather).unwrap().0, own, "it records no more");
        drop(recorder);
        assert_ne!(next(), address, "the graph has it");
        for (stream, other, number, name) in
            [(&first, &second, launch, "gather"), (&second, &first, launch + 1, "scatter_add")]
        {
            // SAFETY: nothing was recorded that uses memory.
            unsafe { graph.launch(stream) }.unwrap();
            refuse(memory(address), number, 3, 12);
            assert_eq!(other.sync(), Ok(()), "it was awaited since it launched the graph, or never did");
            assert!(told(stream).starts_with(&format!("{name}: index 12 at position 3")), "{name}");
            assert_eq!(stream.sync(), Ok(()), "it is told once");
        }

        // An update, after which the graph tells elsewhere; what was launched before still tells there.
        // SAFETY: as above.
        unsafe { graph.launch(&first) }.unwrap();
        second.begin_capture().unwrap();
        let (updated, launch) = second.refusals(scatter).unwrap();
        assert_eq!(graph.update(&second.end_capture().unwrap()), Ok(crate::graph::Update::Done));
        refuse(memory(address), 0, 1, -1);
        assert!(told(&first).starts_with("gather: index -1"));
        assert_eq!(next(), address, "nothing tells there any more");

        // As a part of another graph.
        first.begin_capture().unwrap();
        // SAFETY: as above.
        unsafe { graph.launch(&first) }.unwrap();
        let whole = first.end_capture().unwrap().instantiate().unwrap();
        // SAFETY: as above.
        unsafe { whole.launch(&second) }.unwrap();
        refuse(memory(updated), launch, 4, 9);
        assert_eq!(first.sync(), Ok(()), "it has only recorded the launch");
        assert!(told(&second).starts_with("scatter_add: index 9 at position 4"));
        drop(whole);

        // Destroyed with a replay under way.
        // SAFETY: as above.
        unsafe { graph.launch(&first) }.unwrap();
        drop(graph);
        assert_ne!(next(), updated);
        refuse(memory(updated), launch, 2, 9);
        assert!(told(&first).starts_with("scatter_add: index 9 at position 2"));
        assert_eq!(next(), updated);
    }
}

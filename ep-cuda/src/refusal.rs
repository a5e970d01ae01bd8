//! Indices that kernels refuse: where they tell of them, and the error that is made of it.
//!
//! A kernel cannot return an error. It writes the first refused index to a slot in pinned memory, of which each stream
//! has one, and the next wait for the stream finds it there.

use crate::context::Context;
use crate::driver::constant;
use ep_core::{Error, Result};
use parking_lot::Mutex;
use std::cell::Cell;
use std::ffi::c_void;
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
        let mut slots = self.slots.lock();
        if slots.free.is_empty() {
            slots.grow(context)?;
        }
        Ok(())
    }

    fn take(&self, context: &Context) -> Result<usize> {
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
        for page in self.slots.lock().pages.drain(..) {
            let memory: *mut c_void = std::ptr::with_exposed_provenance_mut(page);
            // SAFETY: allocated below, freed once, and used by no stream any more.
            context.log("freeing pinned memory", unsafe { context.driver().cuMemFreeHost(memory) });
        }
    }
}

impl Slots {
    fn grow(&mut self, context: &Context) -> Result<()> {
        let mut memory: *mut c_void = std::ptr::null_mut();
        {
            let _current = context.enter()?;
            // SAFETY: a valid out-pointer; the context is current.
            unsafe {
                context.driver().cuMemHostAlloc(
                    &mut memory,
                    PER_PAGE * SLOT_BYTES,
                    constant::MEMHOSTALLOC_PORTABLE,
                )
            }
            .map_err(|e| context.error(e).context("memory in which refused indices are told"))?;
        }
        let page = memory.expose_provenance();
        self.pages.push(page);
        self.free.extend((0..PER_PAGE).map(|i| page + i * SLOT_BYTES));
        Ok(())
    }
}

/// The slot at an address that [`Refusals`] has handed out.
fn slot<'a>(address: usize) -> &'a Slot {
    // SAFETY: aligned memory of a page, which lives as long as the context, and so as the streams that have slots; all
    // fields are atomic, and any bits are valid.
    unsafe { &*std::ptr::with_exposed_provenance::<Slot>(address) }
}

impl Slot {
    fn clear(&self) {
        self.lock.store(0, Ordering::Relaxed);
        self.position.store(NOWHERE, Ordering::Relaxed);
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
            Some(address) if slot(address).position.load(Ordering::Relaxed) != NOWHERE => {
                Err(self.error(address))
            }
            _ => Ok(()),
        }
    }

    #[cold]
    fn error(&self, address: usize) -> Error {
        let slot = slot(address);
        let position = slot.position.load(Ordering::Relaxed);
        let (value, number) = (slot.value.load(Ordering::Relaxed), slot.launch.load(Ordering::Relaxed));
        slot.clear();
        let behind = self.launches.get().wrapping_sub(number);
        if (1..=REMEMBERED as u32).contains(&behind) {
            let Refused { name, from, to } = self.latest[number as usize % REMEMBERED].get();
            return Error::invalid(format!(
                "{name}: index {value} at position {position} is out of range: it must be in {from}..{to}"
            ));
        }
        Error::invalid(format!(
            "index {value} at position {position} of an earlier gather, one_hot or scatter_add is out of range: it must \
             lie on the axis"
        ))
    }

    /// Gives the slot back.
    pub(crate) fn close(&self, context: &Context) {
        if let Some(address) = self.slot.take() {
            context.refusals().give(address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;

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
}

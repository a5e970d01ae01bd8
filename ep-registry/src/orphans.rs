//! Streams whose last handle is gone while buffers still remember them.
//!
//! Nobody synchronises such a stream any more, so nobody would notice that its work is done: its native stream and what
//! it keeps would stay for as long as a buffer remembers it. The device looks instead, when it is asked for a stream or for
//! memory.

use crate::stream::StreamCore;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Those of one device.
#[derive(Default)]
pub(crate) struct Orphans {
    /// Whether the list has any.
    any: AtomicBool,
    list: Mutex<Vec<Weak<StreamCore>>>,
}

impl Orphans {
    pub(crate) fn add(&self, core: &Arc<StreamCore>) {
        let mut list = self.list.lock();
        if !list.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(core))) {
            list.push(Arc::downgrade(core));
        }
        self.any.store(true, Ordering::Release);
    }

    /// Closes those whose work is done. That runs deleters, which are foreign code: the caller holds no lock.
    #[inline]
    pub(crate) fn close_done(&self) {
        if self.any.load(Ordering::Acquire) {
            self.look();
        }
    }

    #[cold]
    fn look(&self) {
        let cores = {
            let mut list = self.list.lock();
            self.any.store(false, Ordering::Release);
            std::mem::take(&mut *list)
        };
        // A buffer that is dropped may give work to a closed one, which is then added again.
        for core in cores.iter().filter_map(Weak::upgrade) {
            if !core.close_if_done() {
                self.add(&core);
            }
        }
    }
}

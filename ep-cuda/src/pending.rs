//! What is queued on streams and not known to be done: the suspects of an error that the device reports later.

use crate::driver::CuStream;
use parking_lot::Mutex;
use std::fmt::Write;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// How many names of queued work a stream remembers, and a message has.
const REMEMBERED: usize = 16;

/// How many of them a message has of other streams where the one that it begins with has enough.
const OF_OTHERS: usize = 8;

/// The latest pieces of work of a stream as a ring. One thread at a time adds to it; any may read, and tell what is done.
pub(crate) struct Queued {
    stream: u64,
    names: [Name; REMEMBERED],
    /// Pieces that were ever queued, and how many of them, the first ones, are known to be done.
    count: AtomicUsize,
    done: AtomicUsize,
}

/// A `&'static str` in one word, so that who reads while another is written gets one of both: the address, which needs 48
/// bits, and above it the length.
#[derive(Default)]
struct Name(AtomicU64);

const ADDRESS_BITS: u32 = 48;

impl Name {
    #[inline]
    fn set(&self, name: &'static str) {
        let (address, length) = (name.as_ptr().expose_provenance() as u64, name.len() as u64);
        let fits = address >> ADDRESS_BITS == 0 && length >> (u64::BITS - ADDRESS_BITS) == 0;
        self.0.store(if fits { length << ADDRESS_BITS | address } else { 0 }, Ordering::Relaxed);
    }

    fn get(&self) -> &'static str {
        let word = self.0.load(Ordering::Relaxed);
        if word == 0 {
            return "work without a name";
        }
        let address = std::ptr::with_exposed_provenance((word & ((1 << ADDRESS_BITS) - 1)) as usize);
        // SAFETY: address and length of a text that lives forever, as `set` has put them together.
        unsafe {
            std::str::from_utf8_unchecked(std::slice::from_raw_parts(
                address,
                (word >> ADDRESS_BITS) as usize,
            ))
        }
    }
}

impl Queued {
    pub(crate) fn new(stream: CuStream) -> Arc<Queued> {
        let (names, count, done) = Default::default();
        Arc::new(Queued { stream: stream.raw(), names, count, done })
    }

    #[inline]
    pub(crate) fn push(&self, name: &'static str) {
        let count = self.count.load(Ordering::Relaxed);
        self.names[count % REMEMBERED].set(name);
        // Who sees the number sees the name.
        self.count.store(count + 1, Ordering::Release);
    }

    /// The pieces that were queued so far.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The first so many are done.
    pub(crate) fn done(&self, count: usize) {
        self.done.fetch_max(count, Ordering::Relaxed);
    }

    /// All of it is done: whoever says so adds to it, or nobody does.
    pub(crate) fn clear(&self) {
        self.done(self.count());
    }

    /// Which pieces are not known to be done.
    pub(crate) fn pending(&self) -> Range<usize> {
        let done = self.done.load(Ordering::Relaxed);
        done..self.count().max(done)
    }

    /// The latest so many of them, oldest first.
    fn latest(&self, pending: &Range<usize>, most: usize) -> Vec<&'static str> {
        let from = pending.end.saturating_sub(most.min(REMEMBERED)).max(pending.start);
        (from..pending.end).map(|i| self.names[i % REMEMBERED].get()).collect()
    }
}

/// The work of all streams of a context.
#[derive(Default)]
pub(crate) struct Pending {
    streams: Mutex<Vec<Weak<Queued>>>,
}

impl Pending {
    /// From now on messages name the work of a stream, as long as that lives.
    pub(crate) fn add(&self, queued: &Arc<Queued>) {
        let mut streams = self.streams.lock();
        streams.retain(|s| s.strong_count() > 0);
        streams.push(Arc::downgrade(queued));
    }

    /// What may have failed, beginning with one stream, which the message has a word for.
    #[cold]
    pub(crate) fn describe(&self, first: Option<(CuStream, &str)>) -> String {
        let all: Vec<Arc<Queued>> = self.streams.lock().iter().filter_map(Weak::upgrade).collect();
        let is_first = |queued: &Queued| first.is_some_and(|(stream, _)| stream.raw() == queued.stream);
        let mut counted: Vec<_> =
            all.iter().map(|q| (q.pending(), q)).filter(|(pending, _)| !pending.is_empty()).collect();
        counted.sort_by_key(|(_, queued)| !is_first(queued));
        let total: usize = counted.iter().map(|(pending, _)| pending.len()).sum();
        let (mut text, mut shown) = (String::new(), 0);
        for (i, (pending, queued)) in counted.iter().enumerate() {
            let others = if i == 0 { (total - pending.len()).min(OF_OTHERS) } else { 0 };
            let names = queued.latest(pending, REMEMBERED - shown - others);
            if names.is_empty() {
                break;
            }
            shown += names.len();
            let place = match first {
                Some((_, word)) if is_first(queued) => word.to_owned(),
                _ => format!("stream {:#x}", queued.stream),
            };
            let (separator, between) =
                if i == 0 { ("", if total == 1 { " was" } else { ":" }) } else { ("; ", ":") };
            // Writing to a String cannot fail.
            let _ = write!(text, "{separator}on {place}{between} {}", names.join(", "));
        }
        match total {
            0 => "no work was pending".to_owned(),
            1 => format!("the work pending {text}"),
            _ if shown < total => format!("one of {total} pieces of work pending, the latest of them {text}"),
            _ => format!("one of {total} pieces of work pending {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_latest_work_of_all_streams() {
        let pending = Pending::default();
        let [one, two, three] = [1, 2, 3].map(|n| Queued::new(CuStream::from_raw(n)));
        [&one, &two, &three].into_iter().for_each(|q| pending.add(q));
        let this = Some((CuStream::from_raw(2), "this stream"));
        assert_eq!(pending.describe(this), "no work was pending");
        two.push("fill");
        assert_eq!(pending.describe(this), "the work pending on this stream was fill");
        assert_eq!(pending.describe(None), "the work pending on stream 0x2 was fill");
        two.push("softmax");
        assert_eq!(pending.describe(this), "one of 2 pieces of work pending on this stream: fill, softmax");
        three.push("gather");
        let text = "one of 3 pieces of work pending on this stream: fill, softmax; on stream 0x3: gather";
        assert_eq!(pending.describe(this), text);
        for _ in 0..REMEMBERED {
            two.push("add");
            one.push("copy");
        }
        let text = pending.describe(this);
        assert!(
            text.starts_with("one of 35 pieces of work pending, the latest of them on this stream: add,"),
            "{text}"
        );
        let times = |name| text.matches(name).count();
        assert_eq!((times("add"), times("copy"), times("gather"), times("fill")), (8, 8, 0, 0), "{text}");
        one.clear();
        three.clear();
        let text = pending.describe(this);
        assert!(text.starts_with("one of 18 pieces") && text.matches("add").count() == REMEMBERED, "{text}");
        drop(two);
        assert_eq!(pending.describe(this), "no work was pending");
    }

    #[test]
    fn work_that_is_done_is_not_suspected() {
        let pending = Pending::default();
        let queued = Queued::new(CuStream::from_raw(1));
        pending.add(&queued);
        let names: Vec<&'static str> = vec!["a", "b", "c", "d"];
        names.iter().for_each(|n| queued.push(n));
        queued.done(3);
        assert_eq!(pending.describe(None), "the work pending on stream 0x1 was d");
        // What is told late of work before that changes nothing.
        queued.done(1);
        assert_eq!(pending.describe(None), "the work pending on stream 0x1 was d");
        queued.push("e");
        assert_eq!(pending.describe(None), "one of 2 pieces of work pending on stream 0x1: d, e");
        queued.clear();
        assert_eq!(pending.describe(None), "no work was pending");
        (0..100).for_each(|_| queued.push("f"));
        queued.push("g");
        queued.done(105);
        assert_eq!(pending.describe(None), "the work pending on stream 0x1 was g");
    }

    #[test]
    fn names_are_whole_while_others_are_written() {
        let queued = Queued::new(CuStream::NULL);
        let names = ["a", "broadcast_elementwise_binary", ""];
        std::thread::scope(|scope| {
            scope.spawn(|| (0..100_000).for_each(|i| queued.push(names[i % 3])));
            scope.spawn(|| {
                for _ in 0..10_000 {
                    assert!(queued.latest(&queued.pending(), REMEMBERED).iter().all(|n| names.contains(n)));
                }
            });
        });
    }
}

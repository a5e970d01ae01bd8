//! Which launches store past the cache or ask for lines before they write them, and in which order memory is walked: decided from
//! sizes, from the CPU, and from variables that tests set.

use crate::isa;
use ep_core::parallel::Parallel;
use ep_core::{Error, Result};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The environment variable that lowers every threshold of streaming to so many bytes, so that tests see what only
/// large operands would. Results are the same; launches are slower.
pub(crate) const STREAM_ENV: &str = "EP_CPU_STREAM_BYTES";

/// The environment variable that says how many pages are worked on in turns, `1` or `4`, whatever the CPU is.
pub(crate) const PAGES_ENV: &str = "EP_CPU_STREAM_PAGES";

/// What [`configure`] has read.
static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);
static ASKED: OnceLock<Option<Walk>> = OnceLock::new();

/// In which order what no cache holds is copied or computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walk {
    /// [`super::LANES`] pages in turns, so that several memory channels and prefetchers work at once. What is read is fetched
    /// ahead by as many.
    Pages,
    /// From the first byte to the last, fetched a little ahead. A core of AMD's Zen 4 takes half as long again for pages in
    /// turns, one of Intel's Sapphire Rapids up to a seventh.
    Straight,
}

/// The order that was asked for, or else the one that is the fastest wherever it was measured.
pub(crate) fn walk() -> Walk {
    asked().unwrap_or(Walk::Straight)
}

/// Whether memory is treated as Intel's cores like it. By themselves these have too little on the way: what most reductions read is
/// fetched ahead, whatever its size, as are short rows of softmax and matrices by a vector, which are read many rows side by side; and
/// lines are [asked](asks_far) for [before](super::ask) they are written.
pub(crate) fn suits_intel() -> bool {
    #[cfg(test)]
    if let Some(forced) = INTEL_FORCED.get() {
        return forced;
    }
    static IS_INTEL: OnceLock<bool> = OnceLock::new();
    asked().map_or_else(|| *IS_INTEL.get_or_init(isa::is_intel), |walk| walk == Walk::Pages)
}

#[cfg(test)]
thread_local! {
    /// What this thread takes [`suits_intel`] to be, so that tests see what other CPUs do.
    pub(crate) static INTEL_FORCED: std::cell::Cell<Option<bool>> = const { std::cell::Cell::new(None) };
}

/// Whether lines are asked for before they are written where so many `bytes` are written, more than second-level cache holds, and
/// little is read.
pub(crate) fn asks_far(bytes: usize) -> bool {
    suits_intel() && bytes < most_asked()
}

/// Bytes written from which lines that were asked for before take longer than stores past the cache: a quarter of last-level cache,
/// where they stay, and of which each core has some share. (Two cores of 480 MiB: 0.85 to 0.9 of the time for 64 MiB, 1.04 to 1.3 for
/// 128, 1.6 to 1.8 for more. Two of 300 MiB: 0.8 for 64 MiB; sixteen: 0.8 for 32 MiB, 1.1 to 1.5 for 64, 1.2 to 1.9 for more.)
fn most_asked() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| most_of(isa::last_cache_bytes()))
}

/// [`most_asked`] for a last-level cache of so many bytes, if they are known.
fn most_of(cache: Option<usize>) -> usize {
    cache.map_or(MOST_ASKED, |bytes| bytes / 4)
}

/// Whether second-level cache holds so many bytes of a task, and first-level cache does not: then loops that compute little [`ask`](super::ask)
/// for what they write on [Intel's](suits_intel) cores.
#[inline(always)]
pub(crate) fn is_near(footprint: usize) -> bool {
    NEAR_FOOTPRINT.contains(&footprint)
}

/// Whether a few cores share a last-level cache of some 32 MiB, as AMD's do. Taken to be so for CPUs of x86 that are not treated as
/// Intel's; those that are not of x86 have no stores past the cache.
pub(crate) fn shares_cache() -> bool {
    cfg!(target_arch = "x86_64") && !suits_intel()
}

fn asked() -> Option<Walk> {
    ASKED.get().copied().flatten()
}

/// Bytes written from which streaming pays, whatever was read: below, the output is likelier to be read again from the cache.
pub(crate) const STREAM_BYTES: usize = 32 << 20;
/// Bytes read and written from which streaming pays, however little of it is written.
const STREAM_FOOTPRINT: usize = 64 << 20;
/// The same on CPUs that [share a cache](shares_cache): less than the 32 MiB that it mostly has, as some of it is others'
/// (docs/performance-log.md has what it brings where it is, and where it is not).
const SHARED_FOOTPRINT: usize = 20 << 20;
/// The same of several threads: these share memory's bandwidth, and each has its own to the cache.
const SHARED_FOOTPRINT_OF_SEVERAL: usize = 40 << 20;
/// The same of several threads, of rows that wait for memory.
const SHARED_ROWS_FOOTPRINT_OF_SEVERAL: usize = 28 << 20;
/// The same of rows that compute more than they wait for memory: half as much again as that cache.
const SHARED_ROWS_FOOTPRINT: usize = 48 << 20;

/// See [`is_near`]. There stores wait for the lines that they write, and what is computed by an instruction or two takes 0.75 to 0.93
/// of the time if these are asked for, on one thread of one Xeon; on another 1.00.
const NEAR_FOOTPRINT: Range<usize> = 64 << 10..1 << 20;
/// See [`most_asked`], where the cache is not known.
const MOST_ASKED: usize = 64 << 20;

/// Reads [`STREAM_ENV`], for the whole process, from now on, and [`PAGES_ENV`], the first time.
///
/// # Errors
/// `InvalidArgument` when one is not such a number.
pub(crate) fn configure() -> Result<()> {
    let read = |name| std::env::var_os(name).unwrap_or_default();
    LEAST.store(least(&read(STREAM_ENV).to_string_lossy())?, Ordering::Relaxed);
    let asked = pages(&read(PAGES_ENV).to_string_lossy())?;
    ASKED.get_or_init(|| asked);
    Ok(())
}

/// The order that the variable's value asks for; empty for none.
fn pages(word: &str) -> Result<Option<Walk>> {
    match word {
        "" => Ok(None),
        "1" => Ok(Some(Walk::Straight)),
        "4" => Ok(Some(Walk::Pages)),
        _ => Err(Error::invalid(format!("{PAGES_ENV}={word} (change or unset it): pages are 1 or 4"))),
    }
}

/// The threshold that the variable's value asks for; empty for none.
fn least(word: &str) -> Result<usize> {
    if word.is_empty() {
        return Ok(usize::MAX);
    }
    word.parse().map_err(|e| Error::invalid(format!("{STREAM_ENV}={word} (change or unset it): {e}")))
}

/// Whether `bytes` reach the threshold `usual`, or the one that tests ask for.
#[inline(always)]
pub(crate) fn reaches(bytes: usize, usual: usize) -> bool {
    bytes >= usual || bytes >= LEAST.load(Ordering::Relaxed)
}

/// Whether streaming pays for a launch that writes `output` bytes and touches `footprint` in all.
pub(crate) fn pays(par: &dyn Parallel, output: usize, footprint: usize) -> bool {
    let least = match shares_cache() {
        false => STREAM_FOOTPRINT,
        true if par.threads() == 1 => SHARED_FOOTPRINT,
        true => SHARED_FOOTPRINT_OF_SEVERAL,
    };
    reaches(output, STREAM_BYTES) || footprint >= least
}

/// [`pays`] for kernels of rows, which either wait for memory or compute.
pub(crate) fn pays_for_rows(par: &dyn Parallel, waits: bool, output: usize, footprint: usize) -> bool {
    let least = match (shares_cache(), waits) {
        (false, _) => STREAM_FOOTPRINT,
        (true, false) => SHARED_ROWS_FOOTPRINT,
        (true, true) if par.threads() == 1 => SHARED_FOOTPRINT,
        (true, true) => SHARED_ROWS_FOOTPRINT_OF_SEVERAL,
    };
    reaches(output, STREAM_BYTES) || footprint >= least
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::Threads;
    use ep_core::Code;
    use ep_core::parallel::Serial;

    #[test]
    fn lines_are_asked_for_between_bounds() {
        let intel = suits_intel();
        let most = most_asked();
        assert_eq!([most - 1, most].map(asks_far), [intel, false]);
        assert_eq!([None, Some(480 << 20)].map(most_of), [64 << 20, 120 << 20]);
        let Range { start, end } = NEAR_FOOTPRINT;
        assert_eq!([start - 1, start, end - 1, end].map(is_near), [false, true, true, false]);
    }

    #[test]
    fn several_threads_and_rows_that_compute_keep_more() {
        const MB: usize = 1 << 20;
        let from = |bytes: usize, pays: &dyn Fn(usize) -> bool| [bytes - 1, bytes].map(pays) == [false, true];
        INTEL_FORCED.set(Some(false));
        for (par, least, least_rows) in
            [(&Serial as &dyn Parallel, 20 * MB, 20 * MB), (&Threads(2), 40 * MB, 28 * MB)]
        {
            assert!(from(least, &|footprint| pays(par, MB, footprint)));
            assert!(from(least_rows, &|footprint| pays_for_rows(par, true, MB, footprint)));
            assert!(from(48 * MB, &|footprint| pays_for_rows(par, false, MB, footprint)));
            assert!(from(32 * MB, &|output| pays_for_rows(par, false, output, 0)));
        }
        INTEL_FORCED.set(Some(true));
        for waits in [false, true] {
            assert!(from(64 * MB, &|footprint| pays_for_rows(&Serial, waits, MB, footprint)));
        }
        INTEL_FORCED.set(None);
    }

    #[test]
    fn variables_are_numbers_or_empty() {
        assert_eq!((least(""), least("1"), least("0")), (Ok(usize::MAX), Ok(1), Ok(0)));
        for word in ["no", "-1", "1 MiB"] {
            let e = least(word).unwrap_err();
            assert_eq!(e.code(), Code::InvalidArgument);
            assert!(e.message().contains(&format!("{STREAM_ENV}={word} (change or unset it)")), "{e}");
        }
        let walks = ["", "1", "4"].map(|word| pages(word).unwrap());
        assert_eq!(walks, [None, Some(Walk::Straight), Some(Walk::Pages)]);
        let e = pages("2").unwrap_err();
        assert_eq!(e.code(), Code::InvalidArgument);
        assert!(e.message().contains(&format!("{PAGES_ENV}=2 (change or unset it)")), "{e}");
    }
}

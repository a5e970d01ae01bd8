//! The host, as a provider sees it.

use crate::abi::{
    EpDtypeInfo, EpHostServices, EpProviderOptions, EpStatus, EpStr, HostServicesTable, finish, list,
    read_struct, str_of, take,
};
use crate::parallel::{Parallel, Serial, Task};
use crate::{DType, Error, Result, dtype};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The host's services. Cheap to clone. They end with the provider instance: a clone that is kept longer logs
/// nothing and computes on the calling thread. Threads of the provider that use one are joined before that.
#[derive(Clone, Debug)]
pub struct Host {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    table: HostServicesTable,
    threads: usize,
    closed: AtomicBool,
}

// SAFETY: the table holds functions and a context pointer that rule 9 lets any thread use.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Host {
    /// # Safety
    /// `services` is null or a host's live table, valid until the provider instance is destroyed.
    pub(super) unsafe fn new(services: *const EpHostServices) -> Result<Host> {
        // SAFETY: as the caller promises.
        let table = unsafe { HostServicesTable::load(services) }?;
        // SAFETY: the context belongs to the table.
        let threads = unsafe { (table.num_threads)(table.context) }.max(1) as usize;
        Ok(Host { inner: Arc::new(Inner { table, threads, closed: AtomicBool::new(false) }) })
    }

    /// Ends the use of the host by this and all clones.
    pub(super) fn close(&self) {
        self.inner.closed.store(true, Ordering::Release);
    }

    /// The host's functions, while its services last.
    #[inline]
    fn table(&self) -> Option<&HostServicesTable> {
        (!self.inner.closed.load(Ordering::Acquire)).then_some(&self.inner.table)
    }

    /// Whether messages of this level (1 error to 5 trace) are wanted.
    pub fn log_enabled(&self, level: u32) -> bool {
        // SAFETY: the context belongs to the table.
        self.table().is_some_and(|t| unsafe { (t.log_enabled)(t.context, level) != 0 })
    }

    /// Logs a message. Plugins normally use `tracing`, whose events arrive here.
    pub fn log(&self, level: u32, target: &str, message: &str) {
        let Some(t) = self.table() else { return };
        // SAFETY: the context belongs to the table; the texts outlive the call.
        unsafe { (t.log)(t.context, level, EpStr::new(target), EpStr::new(message)) }
    }

    /// The id of a dtype outside the core list, named `vendor.name`.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad name or size, or when the name is known with another size.
    pub fn intern_dtype(&self, name: &str, bits: u32, alignment: u32) -> Result<DType> {
        let info = EpDtypeInfo { name: EpStr::new(name), bits, alignment, ..EpDtypeInfo::EMPTY };
        let mut id = 0;
        let t = self.table().ok_or_else(|| {
            Error::unavailable(format!(
                "dtype `{name}`: the provider instance that this host served has ended"
            ))
        })?;
        // SAFETY: the context belongs to the table; `info` and `id` live during the call; the status is ours.
        unsafe { take((t.intern_dtype)(t.context, &info, &mut id)) }?;
        dtype::vendor::intern(Some(DType(id)), name, bits, alignment)
    }
}

/// What a chunk callback needs: the task.
struct Job<'a, 'b> {
    task: &'a Task<'b>,
}

unsafe extern "C" fn run_chunk(user: *mut c_void, begin: u64, end: u64) -> *const EpStatus {
    finish(|| {
        // SAFETY: `user` is the `Job` of the `parallel_for` that is still waiting for this chunk.
        let job = unsafe { &*user.cast::<Job<'_, '_>>() };
        (job.task)(begin as usize..end as usize)
    })
}

// SAFETY: the ranges are those of the host's `parallel_for`, which promises the same (rule 9); without a host, `Serial`'s.
unsafe impl Parallel for Host {
    fn parallel_for(&self, n: usize, grain: usize, max_threads: usize, task: &Task<'_>) -> Result<()> {
        let Some(t) = self.table() else { return Serial.parallel_for(n, grain, max_threads, task) };
        let job = Job { task };
        let max = u32::try_from(max_threads).unwrap_or(u32::MAX);
        // SAFETY: the context belongs to the table. The host calls `run_chunk` only during this call (rule 9),
        // during which `job` and what it borrows live; `Task` is `Sync`, so several threads may run it.
        unsafe {
            take((t.parallel_for)(
                t.context,
                n as u64,
                grain as u64,
                max,
                Some(run_chunk),
                (&raw const job).cast_mut().cast(),
            ))
        }
    }

    fn threads(&self) -> usize {
        self.inner.threads
    }
}

/// The options of a provider instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    instance: String,
    plugin_path: String,
    values: BTreeMap<String, String>,
}

impl Options {
    /// # Safety
    /// `raw` is null or live with everything it points to.
    pub(super) unsafe fn read(raw: *const EpProviderOptions) -> Result<Options> {
        // SAFETY: as the caller promises, here and below.
        let o = unsafe { read_struct(raw) }?;
        let mut values = BTreeMap::new();
        // SAFETY: as above.
        for kv in unsafe { list(o.options, o.num_options, "options") }? {
            // SAFETY: as above.
            let (key, value) = unsafe { (str_of(kv.key)?, str_of(kv.value)?) };
            values.insert(key.to_owned(), value.to_owned());
        }
        // SAFETY: as above.
        let (instance, plugin_path) =
            unsafe { (str_of(o.instance)?.to_owned(), str_of(o.plugin_path)?.to_owned()) };
        Ok(Options { instance, plugin_path, values })
    }

    /// The instance's name in the config.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// The file that this code was loaded from; empty when linked in.
    pub fn plugin_path(&self) -> &str {
        &self.plugin_path
    }

    /// An option as text.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// An option parsed, or `default`.
    ///
    /// # Errors
    /// `InvalidArgument` with the option, its text and what was expected.
    pub fn parse<T: std::str::FromStr>(&self, key: &str, default: T) -> Result<T> {
        let Some(text) = self.get(key) else { return Ok(default) };
        text.parse().map_err(|_| {
            let kind = std::any::type_name::<T>();
            Error::invalid(format!("option `{key}` is `{text}`, which is not a {kind}"))
        })
    }

    /// Refuses options that are not in `known`, so that a typo is not silently ignored.
    ///
    /// # Errors
    /// `InvalidArgument` that lists the known ones.
    pub fn only(&self, known: &[&str]) -> Result<()> {
        match self.values.keys().find(|k| !known.contains(&k.as_str())) {
            None => Ok(()),
            Some(k) if known.is_empty() => {
                Err(Error::invalid(format!("unknown option `{k}`: this provider has none")))
            }
            Some(k) => Err(Error::invalid(format!("unknown option `{k}`; known are {}", known.join(", ")))),
        }
    }
}

//! What the plugin makes of its host (rules 2, 3 and 9).

use super::checked;
use super::raw::{Host, Instance, Subject};
use crate::verdict::{Verdict, wrong};
use ep_core::abi::*;
use ep_core::handle::{HostSide, Plugin, ProviderHandle};
use ep_core::parallel::{Parallel, Task};
use ep_core::provider::StreamOptions;
use ep_core::{Code, Error, Result, Scalar};
use ep_registry::registry::Registry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Something that uses the host where the provider does.
fn exercise(instance: &Instance) -> Result<()> {
    if let Some(device) = instance.open(0)? {
        device.with_stream(|stream| {
            // SAFETY: a live stream, used by this thread only.
            unsafe { checked((device.tables().stream.sync)(stream)) }?
        })?;
        device.with_allocator(|_| Ok(()))?;
    }
    Ok(())
}

pub(super) fn two_hosts(subject: &Subject) -> Result<Verdict> {
    let first = subject.instance()?;
    let second = subject.instance()?;
    exercise(&first)?;
    exercise(&second)?;
    let before = first.host().calls.load(Ordering::Relaxed);
    // Threads of the provider may use the first host at any time, so only what is not its own is looked at: the
    // second one must work when the first, with its host, has gone.
    drop(first);
    exercise(&second)?;
    second.manners()?;
    Ok(if before == 0 && second.host().calls.load(Ordering::Relaxed) == 0 {
        Verdict::Unsupported("the provider uses no service of its host here".to_owned())
    } else {
        Verdict::Pass
    })
}

pub(super) fn options_and_path(subject: &Subject) -> Result<Verdict> {
    const UNKNOWN: &str = "ep_conformance_unknown_option";
    let mut options = subject.options();
    options.push((UNKNOWN.to_owned(), "\u{e9}, \"quoted\" = 7".to_owned()));
    match Instance::new(subject, Host::new(), &options)? {
        // Ignoring an option is allowed; so is an error that says which one.
        Ok(instance) => exercise(&instance)?,
        Err(e) if e.code() == Code::InvalidArgument && e.message().contains(UNKNOWN) => {}
        Err(e) if e.code() == Code::InvalidArgument => {
            return wrong(format!("an unknown option is refused by a message that does not name it: {e}"));
        }
        Err(e) => return wrong(format!("an unknown option is refused with {:?}: {e}", e.code())),
    }
    // Of a linked provider the path is empty.
    let host = Host::new();
    // SAFETY: ours, live until the instance frees it.
    let table: *const EpHostServices = unsafe { (*host).table() };
    let own = subject.options();
    let pairs: Vec<_> =
        own.iter().map(|(k, v)| EpKeyValue { key: EpStr::new(k), value: EpStr::new(v) }).collect();
    let bare = EpProviderOptions {
        instance: EpStr::new("another-name_0.1"),
        options: pairs.as_ptr(),
        num_options: pairs.len() as u64,
        ..EpProviderOptions::EMPTY
    };
    exercise(&Instance::with(subject, host, table, &bare)??)?;
    Ok(Verdict::Pass)
}

pub(super) fn older_and_newer_tables(subject: &Subject) -> Result<Verdict> {
    const FIELDS: usize = size_of::<EpHostServices>() / 8;
    let pairs = subject.options();
    let pairs: Vec<_> =
        pairs.iter().map(|(k, v)| EpKeyValue { key: EpStr::new(k), value: EpStr::new(v) }).collect();
    let options = EpProviderOptions {
        instance: EpStr::new("conformance"),
        options: pairs.as_ptr(),
        num_options: pairs.len() as u64,
        ..EpProviderOptions::EMPTY
    };
    // An older host lacks the optional function at the end; of a newer one the functions behind it are not looked
    // at, whatever they are.
    for words in [FIELDS - 1, FIELDS, FIELDS + 2] {
        let host = Host::new();
        let mut table = vec![u64::MAX; FIELDS + 2];
        // SAFETY: both are at least as long; the table holds integers and pointers only.
        unsafe {
            std::ptr::copy_nonoverlapping((*host).table(), table.as_mut_ptr().cast::<EpHostServices>(), 1)
        };
        table[0] = words as u64 * 8;
        let instance = Instance::with(subject, host, table.as_ptr().cast(), &options)?
            .map_err(|e| e.context(format!("a host with a table of {words} entries")))?;
        exercise(&instance)?;
        // Before the table that it points to.
        drop(instance);
    }
    Ok(Verdict::Pass)
}

pub(super) fn log(subject: &Subject) -> Result<Verdict> {
    let mut instance = subject.instance()?;
    exercise(&instance)?;
    instance.destroy();
    let count = || instance.host().calls.load(Ordering::Relaxed);
    let after = count();
    // Threads that were to be joined or silent had time to say something.
    std::thread::sleep(Duration::from_millis(30));
    if count() != after {
        return wrong(
            "the instance used its host after it was destroyed: its threads are to be joined or silent",
        );
    }
    instance.manners()?;
    let logged = instance.host().log.lock().map_or(0, |l| l.len());
    if logged == 0 {
        return Ok(Verdict::Unsupported("the provider logged nothing at any level".to_owned()));
    }
    Ok(Verdict::Pass)
}

/// A host whose threads fail.
struct Failing(FailingThreads);

struct FailingThreads {
    called: AtomicU64,
}

const FAILURE: &str = "the conformance kit's threads fail";

// SAFETY: it calls no task, and returns an error.
unsafe impl Parallel for FailingThreads {
    fn parallel_for(&self, _: usize, _: usize, _: usize, _: &Task<'_>) -> Result<()> {
        self.called.fetch_add(1, Ordering::Relaxed);
        Err(Error::unavailable(FAILURE))
    }

    fn threads(&self) -> usize {
        4
    }
}

impl HostSide for Failing {
    fn log_enabled(&self, _: u32) -> bool {
        false
    }
    fn log(&self, _: u32, _: &str, _: &str) {}
    fn parallel(&self) -> &dyn Parallel {
        &self.0
    }
}

/// Elements enough that a provider which uses the host's threads does.
const MANY: i64 = 1 << 23;

pub(super) fn failing_threads(subject: &Subject) -> Result<Verdict> {
    // SAFETY: the plugin's entry point; its code stays mapped.
    let plugin = unsafe { Plugin::load(subject.query()?, &subject.path()?) }?;
    let side = Arc::new(Failing(FailingThreads { called: AtomicU64::new(0) }));
    let provider = ProviderHandle::create(
        Arc::new(plugin),
        side.clone(),
        "conformance",
        &subject.path()?,
        &subject.options(),
    )?;
    let nothing = || Ok(Verdict::Unsupported("there is no memset or fill on a device here".to_owned()));
    if provider.device_count().unwrap_or(0) == 0 {
        return nothing();
    }
    let device = provider.open(0)?;
    let mut registry = Registry::new();
    registry.register(&provider, "conformance", 0, std::slice::from_ref(&device))?;
    let entry = registry.op("memset")?;
    let Some(factory) = entry.factories.iter().find(|f| f.handle.predicate.is_none()) else {
        return nothing();
    };
    let desc = [entry.schema.desc_size as u64, 0];
    let mut words = vec![0; entry.schema.desc_size / 8];
    words[..desc.len()].copy_from_slice(&desc);
    // SAFETY: memset's descriptor has no field but the common ones, which are set.
    let primitive = unsafe { factory.handle.create(&device, words.as_ptr().cast()) }?;
    let allocator = device.open_allocator(ep_core::provider::MemoryKind::Device)?;
    let address = allocator.alloc(MANY as u64, 0)?;
    let stream = device.create_stream(StreamOptions::default())?;
    let args = ep_core::primitive::MemsetArgs::new(MANY, Scalar::I64(1), address);
    // SAFETY: the argument struct of memset, for memory that is allocated until the stream is awaited.
    let launched = unsafe { primitive.launch(&stream, (&raw const args).cast()) };
    let done = launched.and(stream.sync());
    // SAFETY: allocated above, with the stream's work done.
    unsafe { allocator.free(address, MANY as u64) }?;
    let called = side.0.called.load(Ordering::Relaxed);
    match done {
        _ if called == 0 => {
            Ok(Verdict::Unsupported("the provider does not use the host's threads for memset".into()))
        }
        Err(e) if e.message().contains(FAILURE) => Ok(Verdict::Pass),
        Err(e) => wrong(format!("the host's threads failed, and the launch says: {e}")),
        Ok(()) => wrong("the host's threads failed, and the launch succeeded"),
    }
}

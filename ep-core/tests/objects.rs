//! Handles given to the wrong object, and what a plugin's failure leaves behind.

use ep_core::abi::{
    EPCONFORMANCEINTERFACE_INFO, EpConformanceCase, EpConformanceInterface, EpProvider, EpStatus, EpStr,
    finish, str_of,
};
use ep_core::handle::{HostSide, Plugin, ProviderHandle};
use ep_core::parallel::{Parallel, Serial};
use ep_core::provider::inline::{HostDevice, InlineEvent};
use ep_core::provider::{
    Allocator, CopyRequest, Device, DeviceInfo, Host, Interface, MemoryKind, MemoryStats, Options, Provider,
    Registrar, Stream, StreamOptions, query,
};
use ep_core::{Code, Error, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A provider whose streams note the copies that reach them.
struct Noting;
struct NotingDevice;
struct NotingStream;
struct NoMemory;

/// The library's log goes to one host at a time, and these tests all log.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a careless vendor keeps beyond the instance.
static KEPT: Mutex<Option<Host>> = Mutex::new(None);

static COPIES: Mutex<Vec<(u64, String, String)>> = Mutex::new(Vec::new());

// SAFETY: memory is there until it is freed, work is done in order, and kernels stay in their operands.
unsafe impl Provider for Noting {
    type Device = NotingDevice;
    const NAME: &'static str = "noting";
    const VERSION: &'static str = "1";

    fn create(host: Host, options: &Options) -> Result<Noting> {
        tracing::info!("starting");
        *KEPT.lock().unwrap() = Some(host);
        assert!(options.get("panic").is_none(), "asked to");
        Ok(Noting)
    }

    fn device_count(&self) -> Result<u32> {
        Ok(2)
    }

    fn open_device(&self, _: u32) -> Result<NotingDevice> {
        Ok(NotingDevice)
    }

    fn register(&self, _: &mut Registrar<'_, Self>) -> Result<()> {
        Ok(())
    }

    fn interface(&self, name: &str, version: u32) -> Option<Interface> {
        const CASES: &EpConformanceInterface = &EpConformanceInterface {
            info: &EPCONFORMANCEINTERFACE_INFO,
            count: Some(known_count),
            get: Some(known_get),
            release: Some(known_release),
            ..EpConformanceInterface::EMPTY
        };
        // SAFETY: a table of the contract with its own description, under its own name.
        (name == "ep.conformance" && version == 1).then(|| unsafe { Interface::new(CASES) })
    }
}

unsafe extern "C" fn known_count(_: *mut EpProvider, op: EpStr, out: *mut u64) -> *const EpStatus {
    // SAFETY: the host's text and out-pointer.
    finish(|| unsafe {
        out.write(str_of(op)?.len() as u64);
        Ok(())
    })
}

unsafe extern "C" fn known_get(
    _: *mut EpProvider,
    _: EpStr,
    _: u64,
    _: u64,
    _: *mut EpConformanceCase,
) -> *const EpStatus {
    finish(|| Err(Error::not_found("it only counts")))
}

unsafe extern "C" fn known_release(_: *mut EpProvider, _: *const EpConformanceCase) {}

impl Device for NotingDevice {
    type Stream = NotingStream;
    type Event = InlineEvent;
    type Allocator = NoMemory;

    fn info(&self) -> DeviceInfo {
        HostDevice::cpu_info()
    }

    fn create_stream(&self, _: StreamOptions) -> Result<NotingStream> {
        Ok(NotingStream)
    }

    fn create_event(&self) -> Result<InlineEvent> {
        Ok(InlineEvent)
    }

    fn open_allocator(&self, _: MemoryKind) -> Result<NoMemory> {
        Ok(NoMemory)
    }
}

impl Stream for NotingStream {
    type Event = InlineEvent;

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn query(&self) -> Result<bool> {
        Ok(true)
    }

    unsafe fn copy(&self, c: CopyRequest<'_>) -> Result<()> {
        COPIES.lock().unwrap().push((c.src, c.src_space.into(), c.dst_space.into()));
        Ok(())
    }

    fn record(&self, _: &InlineEvent) -> Result<()> {
        Ok(())
    }

    fn wait(&self, _: &InlineEvent) -> Result<()> {
        Ok(())
    }
}

impl Allocator for NoMemory {
    type Stream = NotingStream;

    fn alloc(&self, _: u64, _: u64, _: Option<&NotingStream>) -> Result<u64> {
        Err(Error::out_of_memory("there is none"))
    }

    fn free(&self, _: u64, _: u64) -> Result<()> {
        Err(Error::invalid("there is none"))
    }

    fn stats(&self) -> MemoryStats {
        MemoryStats::default()
    }
}

#[derive(Default)]
struct Logs(AtomicUsize);

impl HostSide for Logs {
    fn log_enabled(&self, _: u32) -> bool {
        true
    }

    fn log(&self, _: u32, _: &str, _: &str) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn parallel(&self) -> &dyn Parallel {
        &Serial
    }
}

#[test]
fn services_that_are_kept_too_long_do_nothing() {
    let _alone = alone();
    let logs = Arc::new(Logs::default());
    let provider = start(logs.clone(), "", &[]).unwrap();
    let host = KEPT.lock().unwrap().take().unwrap();
    host.log(1, "test", "heard");
    assert!(host.log_enabled(1));
    assert_eq!(logs.0.load(Ordering::Relaxed), 1);
    drop(provider);
    host.log(1, "test", "not heard");
    assert!(!host.log_enabled(1));
    assert_eq!((logs.0.load(Ordering::Relaxed), Arc::strong_count(&logs)), (1, 1));
    assert_eq!(host.intern_dtype("test.kept", 8, 1).unwrap_err().code(), Code::Unavailable);
    let sum = AtomicUsize::new(0);
    let add = |range: std::ops::Range<usize>| {
        sum.fetch_add(range.sum(), Ordering::Relaxed);
        Ok(())
    };
    host.parallel_for(10, 1, 0, &add).unwrap();
    assert_eq!(sum.into_inner(), 45);
}

fn start(logs: Arc<Logs>, path: &str, options: &[(String, String)]) -> Result<Arc<ProviderHandle>> {
    // SAFETY: the entry point of a provider that is linked in.
    let plugin = unsafe { Plugin::load(query::<Noting>, "test") }?;
    ProviderHandle::create(Arc::new(plugin), logs, "noting", path, options)
}

#[test]
fn an_interface_of_the_provider_s_own_reaches_the_host() {
    let _alone = alone();
    let provider = start(Arc::default(), "", &[]).unwrap();
    assert_eq!(provider.known_launches("softmax"), Ok(Some(7)));
    assert!(!provider.can_warm(), "that interface is of another name");
}

#[test]
fn objects_of_another_device_are_refused() {
    let _alone = alone();
    let provider = start(Arc::default(), "", &[]).unwrap();
    let (a, b) = (provider.open(0).unwrap(), provider.open(1).unwrap());
    let stream = a.create_stream(StreamOptions::default()).unwrap();
    let (own, foreign) = (a.create_event().unwrap(), b.create_event().unwrap());
    assert_eq!(stream.record(&own), Ok(()));
    let e = stream.record(&foreign).unwrap_err();
    assert_eq!(e.code(), Code::InvalidArgument, "{e}");
    // Within a provider, waiting across devices is allowed; across providers it is not.
    assert_eq!(stream.wait(&foreign), Ok(()));
    let other = start(Arc::default(), "", &[]).unwrap().open(0).unwrap();
    let e = stream.wait(&other.create_event().unwrap()).unwrap_err();
    assert_eq!(e.code(), Code::InvalidArgument, "{e}");
}

#[test]
fn equal_addresses_in_two_spaces_are_two_places() {
    let _alone = alone();
    let device = start(Arc::default(), "", &[]).unwrap().open(0).unwrap();
    let stream = device.create_stream(StreamOptions::default()).unwrap();
    let copy = |src_space, dst_space| CopyRequest { dst: 640, dst_space, src: 640, src_space, bytes: 8 };
    // SAFETY: this provider only notes what it is asked to copy.
    unsafe {
        stream.copy(copy("host", "host")).unwrap();
        stream.copy(copy("far", "host")).unwrap();
    }
    assert_eq!(*COPIES.lock().unwrap(), [(640, "far".into(), "host".into())]);
}

#[test]
fn logging_ends_with_an_instance_also_when_its_start_panics() {
    let _alone = alone();
    let logs = Arc::new(Logs::default());
    let count = || logs.0.load(Ordering::Relaxed);
    let panic = [("panic".to_owned(), "yes".to_owned())];
    let e = start(logs.clone(), "/a/plugin.so", &panic).unwrap_err();
    assert_eq!(e.code(), Code::Panic, "{e}");
    let before = count();
    assert!(before > 0, "the provider logs when it starts");
    tracing::info!("nobody listens");
    assert_eq!(count(), before);
    // The host's services went with the instance: nothing holds on to them.
    assert_eq!(Arc::strong_count(&logs), 1);

    let provider = start(logs.clone(), "/a/plugin.so", &[]).unwrap();
    tracing::info!("somebody listens");
    assert_eq!(count(), before + 2);
    drop(provider);
    tracing::info!("nobody listens");
    assert_eq!((count(), Arc::strong_count(&logs)), (before + 2, 1));
}

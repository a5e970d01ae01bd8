//! Devices that work in a context of the host, on the fake driver.

mod rig;

use ep_core::primitive::{Fill, FillCall, FillDesc};
use ep_core::provider::{Allocator, CopyRequest, Device, MemoryKind, Provider, Stream};
use ep_core::{Code, DType, Error, Result, Scalar};
use ep_cuda::device::CudaDevice;
use ep_cuda::provider::CudaProvider;
use ep_cuda::settings::{Contexts, Settings};
use ep_registry::{Event, Runtime};
use rig::{Rig, Setup, adopt, stream};
use std::sync::mpsc::channel;

/// A provider whose devices work in these contexts; 0: the primary one.
fn provider(rig: &Rig, contexts: &[u64]) -> Result<CudaProvider> {
    let given: Vec<_> = contexts.iter().map(|c| Some(*c)).collect();
    // SAFETY: the fake's handles are no pointers, and it knows which of them are live.
    let context = unsafe { Contexts::of_host(&given) };
    CudaProvider::new(&Settings { context, ..rig.settings() })
}

/// A host whose device works in this context, which is current while the host is made and no longer.
fn runtime_in(rig: &Rig, context: u64) -> Runtime {
    rig.fake.make_current(context);
    let runtime = rig.runtime(&[("context", "current")]);
    rig.fake.make_current(0);
    runtime
}

/// Memory, a launch, events and a graph, through a host.
fn work(runtime: &Runtime) -> Result<()> {
    let device = runtime.device("cuda:0")?;
    let (queue, other) = (device.stream()?, device.stream()?);
    let x = device.upload(&[1.0f32; 256])?;
    let mut y = device.alloc(DType::F32, 256)?;
    let done = Event::new();
    let fill = runtime.primitive::<Fill>(device, FillDesc::new(DType::F32))?;
    fill.launch(&queue, FillCall { count: 256, value: Scalar::F64(2.0), dst: &mut y })?;
    queue.copy(&x, &mut y)?;
    queue.record(&done)?;
    other.wait(&done)?;
    done.sync()?;
    let graph = queue.capture(|s| s.copy(&x, &mut y))?;
    graph.launch(&queue)?;
    queue.sync()?;
    assert_eq!(y.download::<f32>()?, [1.0; 256]);
    device.trim()
}

#[test]
fn all_work_is_in_the_given_context_which_stays() {
    for pools in [0, 1] {
        let rig = Rig::new(Setup { pools, ..Setup::default() });
        let theirs = rig.fake.make_context(0);
        work(&runtime_in(&rig, theirs)).unwrap();
        assert_eq!((rig.calls("cuDevicePrimaryCtxRetain"), rig.calls("cuDevicePrimaryCtxRelease")), (0, 0));
        for line in rig.fake.log().iter().filter(|l| l.starts_with("cuCtxSetCurrent(")) {
            let own = format!("cuCtxSetCurrent({theirs:#x}) = 0");
            assert!([own.as_str(), "cuCtxSetCurrent(0x0) = 0"].contains(&line.as_str()), "{line}");
        }
        assert!(rig.calls("cuCtxSetCurrent") > 10, "it was not current");
        // It is alive, and nothing is left in it.
        assert_eq!(rig.fake.leaks(), ["1 contexts"]);
        rig.fake.end_context(theirs);
        rig.assert_clean();
    }
}

#[test]
fn streams_are_adopted_from_that_context_alone() {
    let rig = Rig::new(Setup::default());
    let theirs = rig.fake.make_context(0);
    {
        let given = provider(&rig, &[theirs]).unwrap().open_device(0).unwrap();
        let primary = rig.device();
        let (made, of_primary) = (stream(&given), stream(&primary));
        let adopted = adopt(&given, made.raw().raw()).unwrap();
        let event = given.create_event().unwrap();
        adopted.record(&event).unwrap();
        adopted.sync().unwrap();
        drop((adopted, adopt(&given, 0).unwrap()));
        assert_eq!(rig.calls("cuStreamDestroy"), 0);
        let refused = |device: &CudaDevice, stream: u64| adopt(device, stream).err().unwrap();
        let own = primary.context().unwrap().raw().raw();
        for error in [refused(&given, of_primary.raw().raw()), refused(&primary, made.raw().raw())] {
            assert_eq!(error.code(), Code::InvalidArgument);
            for context in [own, theirs] {
                assert!(error.message().contains(&format!("{context:#x}")), "{context:#x}: {error}");
            }
        }
    }
    rig.fake.end_context(theirs);
    rig.assert_clean();
}

#[test]
fn contexts_of_other_devices_and_dead_ones_are_refused() {
    let rig = Rig::new(Setup { devices: 2, ..Setup::default() });
    let theirs = [rig.fake.make_context(0), rig.fake.make_context(1)];
    let error = |contexts: &[u64], device: u32| -> Error {
        let opened = provider(&rig, contexts).and_then(|p| p.open_device(device));
        opened.and_then(|d| d.context().map(|_| ())).unwrap_err()
    };
    let wrong = error(&[theirs[1]], 0);
    assert_eq!(wrong.code(), Code::InvalidArgument);
    assert!(wrong.message().contains("is of device 1, and is given to device 0"), "{wrong}");
    let text = error(&[theirs[0], theirs[1], 7], 0);
    assert!(text.message().contains("3 contexts for 2 visible devices"), "{text}");
    // In the order of the visible devices, as the option says.
    // SAFETY: as in `provider`.
    let context = unsafe { Contexts::of_host(&[Some(theirs[1]), None]) };
    let turned =
        CudaProvider::new(&Settings { visible: Some("1,0".into()), context, ..rig.settings() }).unwrap();
    assert!((0..2).all(|i| turned.open_device(i).unwrap().context().is_ok()));
    drop(turned);
    rig.fake.end_context(theirs[0]);
    let dead = error(&[theirs[0]], 0);
    assert_eq!(dead.code(), Code::InvalidArgument);
    for word in ["cannot be used", "cuCtxSetCurrent", "CUDA_ERROR_INVALID_CONTEXT"] {
        assert!(dead.message().contains(word), "{word}: {dead}");
    }
    rig.fake.end_context(theirs[1]);
    rig.assert_clean();
}

#[test]
fn the_current_context_is_that_of_the_thread_that_makes_the_provider() {
    let rig = Rig::new(Setup { devices: 2, ..Setup::default() });
    let theirs = rig.fake.make_context(1);
    let with = |list: &str, visible: &str| {
        let (context, visible) = (Contexts::read(list).unwrap(), Some(visible.to_owned()));
        CudaProvider::new(&Settings { context, visible, ..rig.settings() })
    };
    let refused = |list: &str, visible: &str, words: &str| {
        let error = with(list, visible).err().unwrap();
        assert!(error.code() == Code::InvalidArgument && error.message().contains(words), "{words}: {error}");
    };
    refused("current", "1", "no context is current on the thread");
    rig.fake.make_current(theirs);
    refused("current", "0,1", "is of device 1, and is given to device 0");
    refused("current,current", "1,0", "is of device 1, and is given to device 0");
    refused("primary,current,primary", "0,1", "3 contexts for 2 visible devices");
    refused("current", "", "1 contexts for 0 visible devices");
    let of = |provider: &CudaProvider, index: u32| {
        let device = provider.open_device(index).unwrap();
        device.context().unwrap().raw().raw()
    };
    let provider = with("primary,current", "0,1").unwrap();
    rig.fake.make_current(0);
    assert_eq!((of(&provider, 0), of(&provider, 1)), (0x100, theirs), "whatever is current later");
    assert_eq!(of(&with("primary", "1").unwrap(), 0), 0x101);
    assert_eq!(with("primary", "").unwrap().device_count().unwrap_err().code(), Code::Unavailable);
    drop(provider);
    rig.fake.end_context(theirs);
    rig.assert_clean();
}

/// What is current on a new thread after work there, while the host still has its objects.
fn left_behind(rig: &Rig, runtime: &Runtime, before: u64) -> u64 {
    let new = || {
        rig.fake.make_current(before);
        work(runtime).unwrap();
        rig.fake.current()
    };
    std::thread::scope(|scope| scope.spawn(new).join().unwrap())
}

const PRIMARY: u64 = 0x100;

#[test]
fn the_context_of_the_only_device_stays_on_threads_that_had_none() {
    let rig = Rig::new(Setup::default());
    let theirs = rig.fake.make_context(0);
    {
        let runtime = rig.runtime(&[]);
        assert_eq!(rig.fake.current(), 0, "a host that is made needs none");
        work(&runtime).unwrap();
        assert_eq!((rig.fake.current(), left_behind(&rig, &runtime, 0)), (PRIMARY, PRIMARY));
        assert_eq!(left_behind(&rig, &runtime, theirs), theirs, "another one is put back");
    }
    assert_eq!(rig.fake.current(), 0, "it is gone, and so not current on the thread that ended it");
    let off = rig.runtime(&[("leave_current", "false")]);
    assert_eq!(left_behind(&rig, &off, 0), 0);
    assert_eq!(left_behind(&rig, &runtime_in(&rig, theirs), 0), 0, "one of the host is the host's to leave");
    drop(off);
    rig.fake.end_context(theirs);
    rig.assert_clean();
}

#[test]
fn of_several_devices_none_stays() {
    let rig = Rig::new(Setup { devices: 2, ..Setup::default() });
    for visible in ["0,1", "1"] {
        let runtime = rig.runtime(&[("visible", visible)]);
        assert_eq!(
            left_behind(&rig, &runtime, 0),
            0,
            "the CUDA runtime would take it for the thread's choice"
        );
    }
    rig.assert_clean();
}

#[test]
fn a_context_that_others_retain_stays_when_the_provider_ends() {
    let rig = Rig::new(Setup::default());
    let other = rig.device();
    let retained = other.context().unwrap().raw().raw();
    let runtime = rig.runtime(&[]);
    work(&runtime).unwrap();
    drop(runtime);
    assert_eq!((rig.fake.current(), retained), (PRIMARY, PRIMARY));
    drop(other);
    assert_eq!(rig.fake.current(), 0);
    rig.assert_clean();
}

/// Of two instances one leaves it current and the other does not; whichever ends last, the thread has none.
#[test]
fn who_releases_a_context_last_leaves_none() {
    for keeper_first in [true, false] {
        let rig = Rig::new(Setup::default());
        let (keeper, other) = (rig.runtime(&[]), rig.runtime(&[("leave_current", "false")]));
        work(&other).unwrap();
        assert_eq!(rig.fake.current(), 0);
        work(&keeper).unwrap();
        let (first, last) = if keeper_first { (keeper, other) } else { (other, keeper) };
        drop(first);
        assert_eq!(rig.fake.current(), PRIMARY);
        drop(last);
        assert_eq!(rig.fake.current(), 0, "{keeper_first}");
        rig.assert_clean();
    }
}

/// What one instance has left there is no context of a host, which another one could take without retaining it.
#[test]
fn a_primary_context_that_is_current_is_retained() {
    let rig = Rig::new(Setup::default());
    let first = rig.runtime(&[]);
    work(&first).unwrap();
    let second = rig.runtime(&[("context", "current")]);
    let uuid = |runtime: &Runtime| runtime.device("cuda:0").unwrap().info().uuid;
    assert_eq!(uuid(&first), uuid(&second));
    drop(first);
    work(&second).unwrap();
    drop(second);
    assert_eq!(rig.calls("cuDevicePrimaryCtxRetain"), rig.calls("cuDevicePrimaryCtxRelease"));
    rig.assert_clean();
}

/// Such a thread works in a context of the host, which does not suffer by that.
#[test]
fn a_context_that_has_ended_is_not_put_back() {
    let rig = Rig::new(Setup::default());
    let theirs = rig.fake.make_context(0);
    let given = runtime_in(&rig, theirs);
    rig.fake.make_current(PRIMARY);
    for _ in 0..2 {
        work(&given).unwrap();
        assert_eq!(rig.fake.current(), 0);
    }
    rig.fake.make_current(PRIMARY);
    let config = rig.config(&[("context", "current")]);
    let report = Runtime::builder().linked_with::<CudaProvider>(config).build().unwrap().report().to_string();
    assert!(report.contains("CUDA_ERROR_CONTEXT_IS_DESTROYED"), "{report}");
    drop(given);
    rig.fake.end_context(theirs);
    rig.assert_clean();
}

/// A thread on which a context is current that another thread has ended since.
#[test]
fn a_thread_whose_context_has_ended_works_in_the_next_one() {
    let rig = Rig::new(Setup::default());
    let ((send, take), (give_back, receive)) = (channel::<Runtime>(), channel());
    std::thread::scope(|scope| {
        let rig = &rig;
        scope.spawn(move || {
            for runtime in take {
                let before = rig.fake.current();
                work(&runtime).unwrap();
                give_back.send((before, rig.fake.current(), runtime)).unwrap();
            }
        });
        for expected in [(0, PRIMARY), (PRIMARY, PRIMARY)] {
            send.send(rig.runtime(&[])).unwrap();
            let (before, after, runtime) = receive.recv().unwrap();
            assert_eq!((before, after), expected);
            drop(runtime);
            rig.assert_clean();
        }
        drop(send);
    });
}

/// The driver would follow it.
#[test]
fn no_text_of_an_option_is_an_address() {
    let rig = Rig::new(Setup::default());
    let theirs = rig.fake.make_context(0);
    for (driver, list) in [(None, format!("{theirs:#x}")), (Some("/nowhere"), "0x55d0c0ffee00".into())] {
        let mut options = vec![("context", list.as_str())];
        options.extend(driver.map(|file| ("driver", file)));
        let config = rig.config(&options);
        rig.fake.fail(0, 0);
        let report =
            Runtime::builder().linked_with::<CudaProvider>(config).build().unwrap().report().to_string();
        assert!(report.contains(&format!("`{list}` is neither `primary` nor `current`")), "{report}");
        assert_eq!(rig.fake.log(), [""; 0], "judged before there is a driver, and without one");
    }
    rig.fake.end_context(theirs);
}

/// A context of the host of one GPU is none of the other's, with memory of its own.
#[test]
fn memory_of_one_context_is_not_reached_in_another() {
    let rig = Rig::new(Setup { pools: 0, ..Setup::default() });
    let theirs = rig.fake.make_context(0);
    let given = provider(&rig, &[theirs]).unwrap().open_device(0).unwrap();
    let primary = rig.device();
    let (own, memory) = (stream(&given), primary.open_allocator(MemoryKind::Device).unwrap());
    let x = memory.alloc(64, 64, None).unwrap();
    assert!(!given.info().reads.contains(&primary.info().memory_space));
    rig.launch(&given, &own, x).unwrap();
    assert_eq!(own.sync().unwrap_err().code(), Code::DeviceLost);
    memory.free(x, 64).unwrap();
    assert!(!primary.context().unwrap().is_lost(), "it is the other context that is lost");
}

#[test]
fn a_device_in_a_given_context_is_another_device() {
    let rig = Rig::new(Setup { devices: 2, ..Setup::default() });
    let theirs = [rig.fake.make_context(0), rig.fake.make_context(1)];
    {
        let given = provider(&rig, &theirs).unwrap();
        let [a, b] = [0, 1].map(|i| given.open_device(i).unwrap());
        assert_ne!(a.info().uuid, rig.device().info().uuid, "their memory is not the same");
        assert!(a.info().reads.contains(&b.info().memory_space), "peers are those in the given contexts");
        // Peers reach each other there.
        let [of_a, of_b] = [&a, &b].map(|d| d.open_allocator(MemoryKind::Device).unwrap());
        let (src, dst) = (of_a.alloc(64, 64, None).unwrap(), of_b.alloc(64, 64, None).unwrap());
        let [from, to] = [&a, &b].map(|d| d.info().memory_space);
        let queue = stream(&a);
        rig.fake.fail(0, 0);
        let copy = CopyRequest { dst, dst_space: &to, src, src_space: &from, bytes: 64 };
        // SAFETY: both are allocations of that size, which live until the wait.
        unsafe { queue.copy(copy) }.unwrap();
        queue.sync().unwrap();
        let copies = rig.fake.log().into_iter().find(|l| l.starts_with("cuMemcpyPeerAsync(")).unwrap();
        assert!(theirs.iter().all(|c| copies.contains(&format!("{c:#x}"))), "{copies}");
        of_a.free(src, 64).unwrap();
        of_b.free(dst, 64).unwrap();
    }
    theirs.iter().for_each(|c| rig.fake.end_context(*c));
    rig.assert_clean();
}

#[test]
fn a_call_that_fails_leaves_nothing_and_the_context_alive() {
    let rig = Rig::new(Setup::default());
    let run = |theirs: u64| -> Result<()> {
        rig.fake.make_current(theirs);
        let config = rig.config(&[("context", "current")]);
        let runtime = Runtime::builder().linked_with::<CudaProvider>(config).build();
        rig.fake.make_current(0);
        work(&runtime?)
    };
    let mut failed = 0;
    for number in 1.. {
        rig.fake.reset(Setup::default());
        let theirs = rig.fake.make_context(0);
        rig.fake.fail(number, fakecuda::result::OUT_OF_MEMORY);
        failed += usize::from(run(theirs).is_err());
        let ended = (rig.fake.log().len() as u64) < number;
        assert_eq!(rig.fake.leaks(), ["1 contexts"], "call {number}");
        if ended {
            break;
        }
    }
    assert!(failed > 50, "{failed}");
}

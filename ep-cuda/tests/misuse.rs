//! The fake answers misuse with the code that a driver has for it: raw calls, and what each comes to.

mod rig;

use ep_cuda::driver::{
    AccessDesc, CuContext, CuEvent, CuFunction, CuGraph, CuGraphExec, CuModule, CuPool, CuStream, Driver,
    Failed, Location, PoolProps, UpdateResult, constant,
};
use rig::{Fake, Rig, Setup};

/// An image of the fake's compiler: a kernel with an argument of 16 bytes.
const IMAGE: &[u8] = b"FAKECUBIN\nf 16\n\0";

type Did<T = ()> = Result<T, Failed>;

/// Some of each object on a driver with two devices. The first one's context is current. What is not given back is
/// forgotten with the fake's next reset.
struct Objects<'a> {
    fake: &'a Fake,
    driver: &'a Driver,
    contexts: [CuContext; 2],
    stream: CuStream,
    event: CuEvent,
    pools: [CuPool; 2],
    module: CuModule,
    function: CuFunction,
    /// 64 bytes of each device.
    memory: [u64; 2],
}

/// A call that gives something by an out-pointer.
macro_rules! give {
    ($driver:expr, $call:ident, $empty:expr $(, $arg:expr)*) => {{
        let mut out = $empty;
        // SAFETY: the fake judges its arguments, which is what is tested; where they are right so is the out-pointer.
        unsafe { $driver.$call(&mut out $(, $arg)*) }.map(|()| out)
    }};
}

/// Another call.
macro_rules! call {
    ($driver:expr, $call:ident $(, $arg:expr)*) => {
        // SAFETY: as above.
        unsafe { $driver.$call($($arg),*) }
    };
}

impl<'a> Objects<'a> {
    fn new(fake: &'a Fake, driver: &'a Driver) -> Did<Objects<'a>> {
        call!(driver, cuInit, 0)?;
        let retain = |device| give!(driver, cuDevicePrimaryCtxRetain, CuContext::NULL, device);
        let contexts = [retain(0)?, retain(1)?];
        let pool = |device| {
            let props = PoolProps {
                alloc_type: 1,
                handle_types: 0,
                location: Location::device(device),
                security: std::ptr::null(),
                max_size: 0,
                reserved: [0; 56],
            };
            give!(driver, cuMemPoolCreate, CuPool::NULL, &props)
        };
        let allocate = |context| {
            call!(driver, cuCtxSetCurrent, context)?;
            give!(driver, cuMemAlloc, 0, 64)
        };
        let [second, first] = [allocate(contexts[1])?, allocate(contexts[0])?];
        let module = give!(driver, cuModuleLoadData, CuModule::NULL, IMAGE.as_ptr().cast())?;
        Ok(Objects {
            fake,
            driver,
            contexts,
            stream: give!(driver, cuStreamCreateWithPriority, CuStream::NULL, 1, 0)?,
            event: give!(driver, cuEventCreate, CuEvent::NULL, 0)?,
            pools: [pool(0)?, pool(1)?],
            module,
            function: give!(driver, cuModuleGetFunction, CuFunction::NULL, module, c"f".as_ptr())?,
            memory: [first, second],
        })
    }

    fn stream(&self) -> Did<CuStream> {
        give!(self.driver, cuStreamCreateWithPriority, CuStream::NULL, 1, 0)
    }

    fn event(&self) -> Did<CuEvent> {
        give!(self.driver, cuEventCreate, CuEvent::NULL, 0)
    }

    /// What a call gives in another context, one that was made beside the primary one of a device.
    fn beside<T>(&self, device: i32, inside: impl FnOnce(&Self) -> Did<T>) -> Did<(CuContext, T)> {
        let context = CuContext::from_raw(self.fake.make_context(device));
        call!(self.driver, cuCtxSetCurrent, context)?;
        let given = inside(self);
        call!(self.driver, cuCtxSetCurrent, self.contexts[0])?;
        Ok((context, given?))
    }

    fn memory(&self) -> Did<u64> {
        give!(self.driver, cuMemAlloc, 0, 64)
    }

    fn let_in(&self, context: CuContext) -> Did {
        call!(self.driver, cuCtxEnablePeerAccess, context, 0)
    }

    fn allow_shared(&self, bytes: i32) -> Did {
        let attribute = constant::FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        call!(self.driver, cuFuncSetAttribute, self.function, attribute, bytes)
    }

    fn freed(&self) -> Did<u64> {
        let address = give!(self.driver, cuMemAlloc, 0, 64)?;
        call!(self.driver, cuMemFree, address)?;
        Ok(address)
    }

    fn pooled(&self, device: usize, stream: CuStream) -> Did<u64> {
        give!(self.driver, cuMemAllocFromPoolAsync, 0, 64, self.pools[device], stream)
    }

    /// A launch of one block with an address in its argument, of which so many bytes are told.
    fn launch_with(&self, stream: CuStream, address: u64, bytes: usize, threads: u32, shared: u32) -> Did {
        let argument = [1, address];
        let extra = [
            constant::LAUNCH_PARAM_BUFFER_POINTER,
            argument.as_ptr().expose_provenance(),
            constant::LAUNCH_PARAM_BUFFER_SIZE,
            (&raw const bytes).expose_provenance(),
            0,
        ];
        let (params, extra) = (std::ptr::null_mut(), extra.as_ptr());
        call!(
            self.driver,
            cuLaunchKernel,
            self.function,
            1,
            1,
            1,
            threads,
            1,
            1,
            shared,
            stream,
            params,
            extra
        )
    }

    fn launch(&self, stream: CuStream, address: u64) -> Did {
        self.launch_with(stream, address, 16, 32, 0)
    }

    /// A launch that is waited for.
    fn run(&self, address: u64) -> Did {
        self.launch(self.stream, address)?;
        self.sync(self.stream)
    }

    fn copy(&self, dst: u64, src: u64, bytes: usize) -> Did {
        call!(self.driver, cuMemcpyAsync, dst, src, bytes, self.stream)
    }

    fn sync(&self, stream: CuStream) -> Did {
        call!(self.driver, cuStreamSynchronize, stream)
    }

    fn record(&self, event: CuEvent, stream: CuStream) -> Did {
        call!(self.driver, cuEventRecord, event, stream)
    }

    fn wait(&self, stream: CuStream, event: CuEvent) -> Did {
        call!(self.driver, cuStreamWaitEvent, stream, event, 0)
    }

    fn begin(&self, stream: CuStream) -> Did {
        call!(self.driver, cuStreamBeginCapture, stream, constant::STREAM_CAPTURE_MODE_RELAXED)
    }

    fn end(&self, stream: CuStream) -> Did<CuGraph> {
        let mut graph = CuGraph::NULL;
        call!(self.driver, cuStreamEndCapture, stream, &mut graph).map(|()| graph)
    }

    fn instantiate(&self, graph: CuGraph) -> Did<CuGraphExec> {
        give!(self.driver, cuGraphInstantiateWithFlags, CuGraphExec::NULL, graph, 0)
    }

    /// A graph of so many launches.
    fn graph(&self, launches: usize) -> Did<CuGraph> {
        self.begin(self.stream)?;
        (0..launches).try_for_each(|_| self.launch(self.stream, self.memory[0]))?;
        self.end(self.stream)
    }

    fn elapsed(&self, start: CuEvent, end: CuEvent) -> Did {
        give!(self.driver, cuEventElapsedTime, 0.0, start, end).map(drop)
    }

    /// The second stream joins what the first one records.
    fn fork(&self) -> Did<CuStream> {
        let second = self.stream()?;
        self.begin(self.stream)?;
        self.record(self.event, self.stream)?;
        self.wait(second, self.event)?;
        Ok(second)
    }
}

type Case = (&'static str, i32, fn(&Objects<'_>) -> Did);

/// What is not live, or was never right.
const HANDLES: &[Case] = &[
    ("a stream that is destroyed", 400, |o| {
        call!(o.driver, cuStreamDestroy, o.stream)?;
        o.sync(o.stream)
    }),
    ("a stream of another context", 400, |o| {
        call!(o.driver, cuCtxSetCurrent, o.contexts[1])?;
        o.launch(o.stream, o.memory[0])
    }),
    ("an event that is destroyed", 400, |o| {
        call!(o.driver, cuEventDestroy, o.event)?;
        o.record(o.event, o.stream)
    }),
    ("time from an event that was never recorded", 400, |o| {
        let end = o.event()?;
        o.record(end, o.stream)?;
        o.sync(o.stream)?;
        o.elapsed(o.event, end)
    }),
    ("time to an event that was never recorded", 400, |o| {
        o.record(o.event, o.stream)?;
        o.sync(o.stream)?;
        o.elapsed(o.event, o.event()?)
    }),
    ("time to an event that is not done", 600, |o| {
        o.record(o.event, o.stream)?;
        o.elapsed(o.event, o.event)
    }),
    ("an event of another context of the device, recorded", 400, |o| {
        let (_, event) = o.beside(0, Objects::event)?;
        o.record(event, o.stream)
    }),
    ("time between events of two devices", 400, |o| {
        let (_, far) = o.beside(1, |o| {
            let (stream, event) = (o.stream()?, o.event()?);
            o.record(event, stream)?;
            o.sync(stream)?;
            Ok(event)
        })?;
        o.record(o.event, o.stream)?;
        o.sync(o.stream)?;
        o.elapsed(o.event, far)
    }),
    ("a function of a module that is unloaded", 400, |o| {
        call!(o.driver, cuModuleUnload, o.module)?;
        o.launch(o.stream, o.memory[0])
    }),
    ("a pool that is destroyed", 400, |o| {
        call!(o.driver, cuMemPoolDestroy, o.pools[0])?;
        o.pooled(0, o.stream).map(drop)
    }),
    ("a graph that is destroyed", 400, |o| {
        let graph = o.graph(1)?;
        call!(o.driver, cuGraphDestroy, graph)?;
        o.instantiate(graph).map(drop)
    }),
    ("an executable graph that is destroyed", 400, |o| {
        let exec = o.instantiate(o.graph(1)?)?;
        call!(o.driver, cuGraphExecDestroy, exec)?;
        call!(o.driver, cuGraphLaunch, exec, o.stream)
    }),
    ("an update of another form", 910, |o| {
        let exec = o.instantiate(o.graph(1)?)?;
        let mut info = UpdateResult { result: 0, node: 0, from: 0 };
        call!(o.driver, cuGraphExecUpdate, exec, o.graph(2)?, &mut info)
    }),
    ("a device that is not there", 101, |o| give!(o.driver, cuDeviceGet, 0, 2).map(drop)),
    ("an image of nothing", 200, |o| {
        give!(o.driver, cuModuleLoadData, CuModule::NULL, c"no image at all".as_ptr().cast()).map(drop)
    }),
    ("a kernel that is not in the module", 500, |o| {
        give!(o.driver, cuModuleGetFunction, CuFunction::NULL, o.module, c"g".as_ptr()).map(drop)
    }),
    ("access to a peer that is given twice", 704, |o| {
        o.let_in(o.contexts[1])?;
        o.let_in(o.contexts[1])
    }),
    ("the own context as a peer", 201, |o| o.let_in(o.contexts[0])),
    ("another context of the device as a peer", 217, |o| {
        let (other, ()) = o.beside(0, |_| Ok(()))?;
        o.let_in(other)
    }),
];

/// Every kind of call that needs a current context, where there is none.
const CONTEXTS: &[Case] = &[
    ("a stream", 201, |o| o.stream().map(drop)),
    ("an event", 201, |o| o.event().map(drop)),
    ("memory", 201, |o| give!(o.driver, cuMemAlloc, 0, 64).map(drop)),
    ("memory in stream order", 201, |o| o.pooled(0, o.stream).map(drop)),
    ("pinned memory", 201, |o| give!(o.driver, cuMemHostAlloc, std::ptr::null_mut(), 64, 1).map(drop)),
    ("a module", 201, |o| give!(o.driver, cuModuleLoadData, CuModule::NULL, IMAGE.as_ptr().cast()).map(drop)),
    ("a launch", 201, |o| o.launch(o.stream, o.memory[0])),
    ("a copy", 201, |o| o.copy(o.memory[0], o.memory[0] + 32, 32)),
    ("a record", 201, |o| o.record(o.event, o.stream)),
    ("waiting for a stream", 201, |o| o.sync(o.stream)),
    ("a capture", 201, |o| o.begin(o.stream)),
    ("access to a peer", 201, |o| call!(o.driver, cuCtxEnablePeerAccess, o.contexts[1], 0)),
    ("a context that is not retained", 201, |o| {
        call!(o.driver, cuDevicePrimaryCtxRelease, 1)?;
        call!(o.driver, cuCtxSetCurrent, o.contexts[1])
    }),
];

/// Addresses and arguments that the driver can judge at once.
const VALUES: &[Case] = &[
    ("a pointer that is freed, freed", 1, |o| call!(o.driver, cuMemFree, o.freed()?)),
    ("a pointer that is freed, freed in stream order", 1, |o| {
        call!(o.driver, cuMemFreeAsync, o.freed()?, o.stream)
    }),
    ("a foreign pointer freed", 1, |o| {
        call!(o.driver, cuMemFree, (&raw const *o).expose_provenance() as u64)
    }),
    ("a pointer into an allocation freed", 1, |o| call!(o.driver, cuMemFree, o.memory[0] + 16)),
    ("pinned memory that is none", 1, |o| call!(o.driver, cuMemFreeHost, (&raw const *o).cast_mut().cast())),
    ("a copy from a pointer that is freed", 1, |o| o.copy(o.memory[0], o.freed()?, 16)),
    ("a copy to memory whose free is queued", 1, |o| {
        let pooled = o.pooled(0, o.stream)?;
        call!(o.driver, cuMemFreeAsync, pooled, o.stream)?;
        o.copy(pooled, o.memory[0], 16)
    }),
    ("a copy beyond the end", 1, |o| o.copy(o.memory[0] + 1, o.memory[1], 64)),
    ("a copy from nowhere", 1, |o| o.copy(o.memory[0], 0, 16)),
    ("a set that is not aligned", 1, |o| call!(o.driver, cuMemsetD32Async, o.memory[0] + 2, 0, 4, o.stream)),
    ("an argument that is too short", 1, |o| o.launch_with(o.stream, o.memory[0], 8, 32, 0)),
    ("no threads", 1, |o| o.launch_with(o.stream, o.memory[0], 16, 0, 0)),
    ("too many threads", 1, |o| o.launch_with(o.stream, o.memory[0], 16, 1025, 0)),
    ("shared memory that was not asked for", 1, |o| o.launch_with(o.stream, o.memory[0], 16, 32, 100 << 10)),
    ("shared memory that was given up for less", 1, |o| {
        o.allow_shared(64 << 10)?;
        o.launch_with(o.stream, o.memory[0], 16, 32, 64 << 10)?;
        o.allow_shared(48 << 10)?;
        o.launch_with(o.stream, o.memory[0], 16, 32, 64 << 10)
    }),
    ("no bytes", 1, |o| give!(o.driver, cuMemAlloc, 0, 0).map(drop)),
    ("more bytes than there are", 2, |o| give!(o.driver, cuMemAlloc, 0, 2 << 30).map(drop)),
    ("a copy of a context that is not retained", 201, |o| {
        call!(o.driver, cuDevicePrimaryCtxRelease, 1)?;
        let [to, from] = o.memory;
        call!(o.driver, cuMemcpyPeerAsync, to, o.contexts[0], from, o.contexts[1], 16, o.stream)
    }),
];

/// What no capture allows.
const CAPTURES: &[Case] = &[
    ("waiting for a stream that records", 900, |o| {
        o.begin(o.stream)?;
        o.sync(o.stream)
    }),
    ("asking a stream that records", 900, |o| {
        o.begin(o.stream)?;
        call!(o.driver, cuStreamQuery, o.stream)
    }),
    ("recording on the default stream", 900, |o| o.begin(CuStream::NULL)),
    ("a capture that is spoilt", 901, |o| {
        o.begin(o.stream)?;
        o.sync(o.stream).unwrap_err();
        o.end(o.stream).map(drop)
    }),
    ("work in a capture that is spoilt", 901, |o| {
        o.begin(o.stream)?;
        o.sync(o.stream).unwrap_err();
        o.launch(o.stream, o.memory[0])
    }),
    ("two captures that meet", 902, |o| {
        let second = o.stream()?;
        o.begin(o.stream)?;
        o.begin(second)?;
        o.record(o.event, o.stream)?;
        o.wait(second, o.event)
    }),
    ("a capture that another stream began", 903, |o| {
        let second = o.fork()?;
        o.end(second).map(drop)
    }),
    ("a stream that has joined and does not come back", 904, |o| {
        let second = o.fork()?;
        o.launch(second, o.memory[0])?;
        o.end(o.stream).map(drop)
    }),
    ("a stream that goes on after it came back", 904, |o| {
        let (second, back) = (o.fork()?, o.event()?);
        o.record(back, second)?;
        o.wait(o.stream, back)?;
        o.launch(second, o.memory[0])?;
        o.end(o.stream).map(drop)
    }),
    ("waiting for work outside the capture", 905, |o| {
        o.record(o.event, o.stream)?;
        o.begin(o.stream)?;
        o.wait(o.stream, o.event)
    }),
    ("asking an event of a capture", 907, |o| {
        o.begin(o.stream)?;
        o.record(o.event, o.stream)?;
        call!(o.driver, cuEventQuery, o.event)
    }),
    ("waiting for an event of a capture", 907, |o| {
        o.begin(o.stream)?;
        o.record(o.event, o.stream)?;
        call!(o.driver, cuEventSynchronize, o.event)
    }),
    ("an event of a capture that was asked", 901, |o| {
        o.begin(o.stream)?;
        o.record(o.event, o.stream)?;
        call!(o.driver, cuEventQuery, o.event).unwrap_err();
        o.end(o.stream).map(drop)
    }),
    ("a free of memory that is not the graph's", 1, |o| {
        let pooled = o.pooled(0, o.stream)?;
        o.begin(o.stream)?;
        call!(o.driver, cuMemFreeAsync, pooled, o.stream)
    }),
    ("a capture that has begun", 401, |o| {
        o.begin(o.stream)?;
        o.begin(o.stream)
    }),
    ("no capture", 401, |o| o.end(o.stream).map(drop)),
];

/// What only the device can notice, when the kernel's turn comes.
const FAULTS: &[Case] = &[
    ("a pointer that is freed", 700, |o| o.run(o.freed()?)),
    ("a pointer that is freed before the kernel's turn", 700, |o| {
        let (pooled, second) = (o.pooled(0, o.stream)?, o.stream()?);
        o.launch(second, pooled)?;
        call!(o.driver, cuMemFreeAsync, pooled, o.stream)?;
        o.sync(o.stream)?;
        o.sync(second)
    }),
    ("memory of a peer", 700, |o| o.run(o.memory[1])),
    ("memory of another context of the device", 700, |o| {
        let (_, far) = o.beside(0, Objects::memory)?;
        o.run(far)
    }),
    ("memory of a peer's context that was not let in", 700, |o| {
        let (_, far) = o.beside(1, Objects::memory)?;
        o.let_in(o.contexts[1])?;
        o.run(far)
    }),
    ("memory of a peer's pool, which peer access does not open", 700, |o| {
        call!(o.driver, cuCtxEnablePeerAccess, o.contexts[1], 0)?;
        o.run(o.pooled(1, o.stream)?)
    }),
    ("memory of the host that is not pinned", 700, |o| o.run((&raw const *o).expose_provenance() as u64)),
    ("any call after a fault", 700, |o| {
        o.run(o.freed()?).unwrap_err();
        o.stream().map(drop)
    }),
];

/// What looks like misuse and is none.
const ALLOWED: &[Case] = &[
    ("a graph that is launched into a capture", 0, |o| {
        let exec = o.instantiate(o.graph(2)?)?;
        o.begin(o.stream)?;
        call!(o.driver, cuGraphLaunch, exec, o.stream)?;
        let outer = o.instantiate(o.end(o.stream)?)?;
        call!(o.driver, cuGraphLaunch, outer, o.stream)?;
        o.sync(o.stream)
    }),
    ("a stream that joins a capture and comes back", 0, |o| {
        let (second, back) = (o.fork()?, o.event()?);
        o.launch(second, o.memory[0])?;
        o.record(back, second)?;
        o.wait(o.stream, back)?;
        let exec = o.instantiate(o.end(o.stream)?)?;
        o.sync(second)?;
        call!(o.driver, cuGraphLaunch, exec, o.stream)?;
        o.sync(o.stream)
    }),
    ("waiting in a capture for an event that was never recorded", 0, |o| {
        o.begin(o.stream)?;
        o.wait(o.stream, o.event)?;
        o.end(o.stream).map(drop)
    }),
    ("an event of a capture that is recorded anew", 0, |o| {
        o.begin(o.stream)?;
        o.record(o.event, o.stream)?;
        o.end(o.stream)?;
        o.record(o.event, o.stream)?;
        call!(o.driver, cuEventSynchronize, o.event)
    }),
    ("an event that was never recorded, asked and awaited", 0, |o| {
        call!(o.driver, cuEventQuery, o.event)?;
        call!(o.driver, cuEventSynchronize, o.event)?;
        o.wait(o.stream, o.event)
    }),
    ("memory of a graph's own", 0, |o| {
        o.begin(o.stream)?;
        let memory = o.pooled(0, o.stream)?;
        o.launch(o.stream, memory)?;
        call!(o.driver, cuMemFreeAsync, memory, o.stream)?;
        let graph = o.end(o.stream)?;
        let exec = o.instantiate(graph)?;
        call!(o.driver, cuGraphLaunch, exec, o.stream)?;
        call!(o.driver, cuGraphLaunch, exec, o.stream)?;
        o.sync(o.stream)?;
        call!(o.driver, cuGraphDestroy, graph)?;
        call!(o.driver, cuGraphExecDestroy, exec)
    }),
    ("memory of peers who were let in", 0, |o| {
        call!(o.driver, cuCtxEnablePeerAccess, o.contexts[1], 0)?;
        o.run(o.memory[1])?;
        let access = AccessDesc { location: Location::device(0), flags: 3 };
        call!(o.driver, cuMemPoolSetAccess, o.pools[1], &access, 1)?;
        o.run(o.pooled(1, o.stream)?)
    }),
    ("memory of a peer's context beside its primary one", 0, |o| {
        let (context, far) = o.beside(1, Objects::memory)?;
        o.let_in(context)?;
        o.run(far)
    }),
    ("another device after a fault", 0, |o| {
        o.run(o.freed()?).unwrap_err();
        call!(o.driver, cuCtxSetCurrent, o.contexts[1])?;
        let stream = o.stream()?;
        o.sync(stream)
    }),
    ("pinned memory", 0, |o| {
        let pinned = give!(o.driver, cuMemHostAlloc, std::ptr::null_mut(), 64, 1)?;
        o.run(pinned.expose_provenance() as u64 + 8)?;
        call!(o.driver, cuMemFreeHost, pinned)
    }),
];

/// Each case on a fresh driver.
fn check(cases: &[Case], before: fn(&Objects<'_>)) {
    let rig = Rig::new(Setup::default());
    let driver = Driver::open(Some(rig.fake.path())).unwrap();
    for (what, code, misuse) in cases {
        rig.fake.reset(Setup { devices: 2, ..Setup::default() });
        let objects = Objects::new(&rig.fake, &driver).unwrap();
        before(&objects);
        let found = misuse(&objects).err().map_or(0, |failed| failed.result.0);
        assert_eq!(found, *code, "{what}: {:#?}", rig.fake.log());
    }
}

fn nothing(_: &Objects<'_>) {}

#[test]
fn a_call_without_a_current_context_is_refused() {
    check(CONTEXTS, |o| call!(o.driver, cuCtxSetCurrent, CuContext::NULL).unwrap());
}

#[test]
fn what_is_not_live_is_refused() {
    check(HANDLES, nothing);
}

#[test]
fn what_has_no_meaning_is_refused() {
    check(VALUES, nothing);
}

#[test]
fn what_no_capture_can_hold_is_refused() {
    check(CAPTURES, nothing);
}

#[test]
fn kernels_fault_on_what_they_cannot_reach() {
    check(FAULTS, nothing);
}

#[test]
fn what_a_driver_allows_is_allowed() {
    check(ALLOWED, nothing);
}

#[test]
fn nothing_works_before_the_driver_is_initialized() {
    let rig = Rig::new(Setup::default());
    let driver = Driver::open(Some(rig.fake.path())).unwrap();
    rig.fake.reset(Setup::default());
    let found = give!(driver, cuDevicePrimaryCtxRetain, CuContext::NULL, 0).unwrap_err();
    assert_eq!(found.result.0, 3, "{found}");
}

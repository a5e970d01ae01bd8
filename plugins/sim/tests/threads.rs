//! Random programs on several threads, which share buffers, streams, events and graphs.
//!
//! A step locks the buffers that it uses, does its work on a device and the same at once on vectors of the host, and lets
//! go of them while the device is still behind. What a graph does to buffers whose slots have long been given away is
//! part of it: they are the graph's until it ends.
//!
//! `EP_SIM_SEED` is the seed of the steps (from the clock). The threads take turns as the system lets them, so a seed
//! does not repeat a run.

mod random;

use ep_core::primitive::{
    Add, AddCall, AddDesc, ElementwiseUnary, ElementwiseUnaryCall, ElementwiseUnaryDesc, UnaryOp,
};
use ep_core::{DType, Result};
use ep_registry::config::ProviderConfig;
use ep_registry::{Buffer, Event, Graph, InPlace, Primitive, Read, Runtime, Stream};
use ep_sim::SimProvider;
use random::{Random, first_seed};
use std::sync::{Arc, Mutex, MutexGuard};

const THREADS: u64 = 4;
const STEPS: usize = 400;
const SLOTS: usize = 6;
const DEVICES: usize = 2;
/// Of each device that all threads use; each has one of its own besides.
const SHARED: usize = 2;
const GRAPHS: usize = 3;
const EVENTS: usize = 2;
const LEN: usize = 24;

/// What the memory of a buffer should hold; graphs know it for longer than slots do.
type Model = Arc<Mutex<Vec<i32>>>;

struct Slot {
    buffer: Buffer,
    device: usize,
    model: Model,
}

/// `dst = -dst`, or with a source `dst += src`, twice.
struct Recorded {
    graph: Graph,
    device: usize,
    dst: Model,
    src: Option<Model>,
}

struct World {
    runtime: Runtime,
    add: Vec<Primitive<Add>>,
    negate: Vec<Primitive<ElementwiseUnary>>,
    streams: Vec<Vec<Stream>>,
    slots: Vec<Mutex<Option<Slot>>>,
    graphs: Vec<Mutex<Option<Recorded>>>,
    events: Vec<Event>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics with a lock")
}

/// Locks two of a kind in an order that is the same for all threads.
fn both<'m, T>(a: &'m Mutex<T>, b: &'m Mutex<T>) -> (MutexGuard<'m, T>, MutexGuard<'m, T>) {
    if std::ptr::from_ref(a) < std::ptr::from_ref(b) {
        let first = lock(a);
        (first, lock(b))
    } else {
        let first = lock(b);
        (lock(a), first)
    }
}

impl World {
    fn new(seed: u64, ignore_waits: bool) -> Result<World> {
        let mut settings = ProviderConfig::new("sim", "");
        settings.required = true;
        for (key, value) in [
            ("devices", DEVICES.to_string()),
            ("seed", seed.to_string()),
            ("max_delay_us", "40".into()),
            ("slow", "2%".into()),
            ("slow_ms", "1".into()),
            ("memory_bytes", "1048576".into()),
            ("ignore_waits", ignore_waits.to_string()),
        ] {
            settings.options.insert(key.into(), value);
        }
        let runtime = Runtime::builder().threads(1).linked_with::<SimProvider>(settings).build()?;
        let negation = ElementwiseUnaryDesc::new(UnaryOp::NEGATIVE, DType::I32, DType::I32);
        let devices = runtime.devices();
        Ok(World {
            add: devices
                .iter()
                .map(|d| runtime.primitive(d, AddDesc::new(DType::I32)))
                .collect::<Result<_>>()?,
            negate: devices.iter().map(|d| runtime.primitive(d, negation)).collect::<Result<_>>()?,
            streams: devices
                .iter()
                .map(|d| (0..SHARED).map(|_| d.stream()).collect::<Result<_>>())
                .collect::<Result<_>>()?,
            slots: (0..SLOTS).map(|_| Mutex::default()).collect(),
            graphs: (0..GRAPHS).map(|_| Mutex::default()).collect(),
            events: (0..EVENTS).map(|_| Event::new()).collect(),
            runtime,
        })
    }

    /// Runs the threads; what one of them has found wrong.
    fn run(self, seed: u64) -> Result<(), String> {
        std::thread::scope(|scope| {
            let world = &self;
            let threads: Vec<_> =
                (0..THREADS).map(|n| scope.spawn(move || Worker::run(world, seed + n))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
        })?;
        let World { runtime, streams, slots, graphs, .. } = self;
        drop((streams, slots, graphs));
        for device in runtime.devices() {
            let stats = device.memory_stats().map_err(|e| e.to_string())?;
            if stats.in_use_blocks != 0 {
                return Err(format!("{} of {} are left", stats.in_use_bytes, device.name()));
            }
        }
        Ok(())
    }
}

/// A thread.
struct Worker<'w> {
    world: &'w World,
    random: Random,
    /// A stream on each device; only these record.
    own: Vec<Stream>,
}

/// What is wrong with what was read, if it is not as the model says.
fn compare(found: &[i32], model: &[i32]) -> Result<(), String> {
    if found == model {
        Ok(())
    } else {
        Err(format!("{found:?}, and one step after another it is {model:?}"))
    }
}

impl Worker<'_> {
    fn run(world: &World, seed: u64) -> Result<(), String> {
        let own = world.runtime.devices().iter().map(|d| d.stream()).collect::<Result<_>>();
        let mut worker = Worker { world, random: Random(seed), own: own.map_err(|e| e.to_string())? };
        for _ in 0..STEPS {
            worker.step().map_err(|e| e.to_string())??;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<Result<(), String>> {
        let (slot, other) = (self.random.below(SLOTS), self.random.below(SLOTS));
        match self.random.below(24) {
            0 | 1 => self.upload(slot)?,
            2 => drop(lock(&self.world.slots[slot]).take()),
            3..7 => self.negate(slot)?,
            7..10 => self.add(slot, other)?,
            10..13 => self.copy(slot, other)?,
            13 | 14 => return self.read(slot),
            15 => return self.write(slot),
            16 | 17 => self.record(slot, other)?,
            18..21 => self.launch()?,
            21 => self.order()?,
            22 => self.renew()?,
            _ => drop(lock(&self.world.graphs[self.random.below(GRAPHS)]).take()),
        }
        Ok(Ok(()))
    }

    /// One that all threads use, or its own.
    fn stream(&mut self, device: usize) -> Stream {
        let shared = &self.world.streams[device];
        shared.get(self.random.below(SHARED + 1)).unwrap_or(&self.own[device]).clone()
    }

    fn upload(&mut self, slot: usize) -> Result<()> {
        let device = self.random.below(DEVICES);
        let data: Vec<i32> = (0..LEN).map(|_| self.random.below(1 << 20) as i32).collect();
        let mut buffer = self.world.runtime.devices()[device].alloc(DType::I32, LEN)?;
        match self.random.below(2) {
            0 => buffer.upload(&data)?,
            _ => self.stream(device).upload(&mut buffer, data.clone())?,
        }
        let model = Arc::new(Mutex::new(data));
        let old = lock(&self.world.slots[slot]).replace(Slot { buffer, device, model });
        drop(old);
        Ok(())
    }

    fn negate(&mut self, slot: usize) -> Result<()> {
        if let Some(dst) = &mut *lock(&self.world.slots[slot]) {
            let mut model = lock(&dst.model);
            self.world.launch_negate(&self.stream(dst.device), dst.device, &mut dst.buffer)?;
            model.iter_mut().for_each(|x| *x = x.wrapping_neg());
        }
        Ok(())
    }

    fn add(&mut self, dst: usize, src: usize) -> Result<()> {
        if dst == src {
            return Ok(());
        }
        let (mut dst, src) = both(&self.world.slots[dst], &self.world.slots[src]);
        if let (Some(dst), Some(src)) = (&mut *dst, &*src) {
            let (mut sum, model) = both(&dst.model, &src.model);
            self.world.launch_add(&self.stream(dst.device), dst.device, &mut dst.buffer, &src.buffer)?;
            sum.iter_mut().zip(&*model).for_each(|(sum, x)| *sum = sum.wrapping_add(*x));
        }
        Ok(())
    }

    /// On either device, also between them.
    fn copy(&mut self, dst: usize, src: usize) -> Result<()> {
        if dst == src {
            return Ok(());
        }
        let (mut dst, src) = both(&self.world.slots[dst], &self.world.slots[src]);
        if let (Some(dst), Some(src)) = (&mut *dst, &*src) {
            let (mut to, from) = both(&dst.model, &src.model);
            let device = self.random.below(DEVICES);
            self.stream(device).copy(&src.buffer, &mut dst.buffer)?;
            to.copy_from_slice(&from);
        }
        Ok(())
    }

    fn read(&mut self, slot: usize) -> Result<Result<(), String>> {
        let slot = lock(&self.world.slots[slot]);
        let Some(Slot { buffer, model, .. }) = &*slot else { return Ok(Ok(())) };
        let model = lock(model);
        Ok(match self.random.below(2) {
            0 => compare(&buffer.download::<i32>()?, &model),
            _ => compare(&buffer.map_read::<i32>()?, &model),
        })
    }

    fn write(&mut self, slot: usize) -> Result<Result<(), String>> {
        let mut slot = lock(&self.world.slots[slot]);
        let Some(Slot { buffer, model, .. }) = &mut *slot else { return Ok(Ok(())) };
        let mut model = lock(model);
        let mut map = buffer.map_write::<i32>()?;
        let found = compare(&map, &model);
        let at = self.random.below(LEN);
        (map[at], model[at]) = (-7, -7);
        map.finish()?;
        Ok(found)
    }

    /// Makes a graph, or has one launch something else.
    fn record(&mut self, slot: usize, other: usize) -> Result<()> {
        let (mut dst, src) = match slot == other {
            true => (lock(&self.world.slots[slot]), None),
            false => {
                let (dst, src) = both(&self.world.slots[slot], &self.world.slots[other]);
                (dst, Some(src))
            }
        };
        let Some(Slot { buffer, device, model }) = &mut *dst else { return Ok(()) };
        let src = match &src {
            Some(src) => match &**src {
                Some(src) => Some(src),
                None => return Ok(()),
            },
            None => None,
        };
        let (world, device) = (self.world, *device);
        let work = |stream: &Stream| match src {
            Some(src) => (0..2).try_for_each(|_| world.launch_add(stream, device, buffer, &src.buffer)),
            None => world.launch_negate(stream, device, buffer),
        };
        let (dst, src) = (model.clone(), src.map(|src| src.model.clone()));
        let mut place = lock(&world.graphs[self.random.below(GRAPHS)]);
        match place.as_mut().filter(|old| old.device == device && self.random.below(2) == 0) {
            Some(old) => {
                old.graph.update(&self.own[device], work)?;
                (old.dst, old.src) = (dst, src);
            }
            None => {
                let graph = self.own[device].capture(work)?;
                *place = Some(Recorded { graph, device, dst, src });
            }
        }
        Ok(())
    }

    fn launch(&mut self) -> Result<()> {
        let place = lock(&self.world.graphs[self.random.below(GRAPHS)]);
        let Some(Recorded { graph, device, dst, src }) = &*place else { return Ok(()) };
        let stream = self.stream(*device);
        match src {
            Some(src) => {
                let (mut sum, src) = both(dst, src);
                graph.launch(&stream)?;
                sum.iter_mut().zip(&*src).for_each(|(sum, x)| *sum = sum.wrapping_add(x.wrapping_mul(2)));
            }
            None => {
                let mut dst = lock(dst);
                graph.launch(&stream)?;
                dst.iter_mut().for_each(|x| *x = x.wrapping_neg());
            }
        }
        Ok(())
    }

    fn order(&mut self) -> Result<()> {
        let [first, second] = [0; 2].map(|_| self.random.below(DEVICES));
        let (recorded, waited) = (self.random.below(EVENTS), self.random.below(EVENTS));
        self.stream(first).record(&self.world.events[recorded])?;
        self.stream(second).wait(&self.world.events[waited])
    }

    fn renew(&mut self) -> Result<()> {
        let device = self.random.below(DEVICES);
        match self.random.below(3) {
            0 => self.own[device] = self.world.runtime.devices()[device].stream()?,
            1 => self.world.events[self.random.below(EVENTS)].sync()?,
            _ => self.stream(device).sync()?,
        }
        Ok(())
    }
}

impl World {
    fn launch_negate(&self, stream: &Stream, device: usize, dst: &mut Buffer) -> Result<()> {
        self.negate[device].launch(stream, ElementwiseUnaryCall { count: LEN as i64, src: InPlace, dst })
    }

    fn launch_add(&self, stream: &Stream, device: usize, dst: &mut Buffer, src: &Buffer) -> Result<()> {
        let srcs: [Read<'_>; 2] = [InPlace.into(), src.into()];
        self.add[device].launch(stream, AddCall { count: LEN as i64, dst, srcs: &srcs })
    }
}

#[test]
fn threads_share_everything_in_some_order() {
    let seed = first_seed();
    for seed in (0..3).map(|n| seed.wrapping_add(n * THREADS)) {
        let found = World::new(seed, false).unwrap().run(seed);
        assert_eq!(found, Ok(()), "EP_SIM_SEED={seed}");
    }
}

/// The steps would notice.
#[test]
fn waits_that_do_nothing_are_noticed() {
    let seed = first_seed();
    let wrong = |n| World::new(seed, true).unwrap().run(seed.wrapping_add(n * THREADS)).is_err();
    assert!((0..10).any(wrong), "EP_SIM_SEED={seed}");
}

//! The state of the fake: objects, memory, queued work.

use crate::blocks::{Block, is_address};
use crate::capture::{Point, Recording};
use crate::cublaslt::{self, Object, Product};
use crate::nodes::Node;
use crate::result::ILLEGAL_ADDRESS;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a call comes to: nothing, or the driver's number of an error.
pub(crate) type Outcome<T = ()> = Result<T, i32>;

pub(crate) const INVALID_VALUE: i32 = 1;
pub(crate) const NOT_INITIALIZED: i32 = 3;
pub(crate) const NO_DEVICE: i32 = 100;
pub(crate) const DEVICE_UNAVAILABLE: i32 = 46;
pub(crate) const INVALID_DEVICE: i32 = 101;
pub(crate) const INVALID_IMAGE: i32 = 200;
pub(crate) const INVALID_CONTEXT: i32 = 201;
pub(crate) const INVALID_HANDLE: i32 = 400;
pub(crate) const NOT_FOUND: i32 = 500;
pub(crate) const NOT_READY: i32 = 600;
pub(crate) const PEER_ACCESS_UNSUPPORTED: i32 = 217;
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: i32 = 704;
pub(crate) const CONTEXT_IS_DESTROYED: i32 = 709;
pub(crate) const NOT_SUPPORTED: i32 = 801;
pub(crate) const ILLEGAL_STATE: i32 = 401;
pub(crate) const GRAPH_EXEC_UPDATE_FAILURE: i32 = 910;

/// How the fake is set up.
#[derive(Clone, Copy)]
pub(crate) struct Config {
    pub(crate) devices: i32,
    pub(crate) pools: bool,
    pub(crate) peers: bool,
    pub(crate) memory_bytes: u64,
    /// Queries that find a piece of work pending.
    pub(crate) delay: u32,
    /// Whether the environment chooses among the devices.
    pub(crate) environment: bool,
    pub(crate) version: i32,
    /// A device of which only number and identity are told.
    pub(crate) broken: i32,
    /// A device of which nothing is told.
    pub(crate) lost: i32,
}

/// A piece of queued work.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Work {
    Copy {
        dst: u64,
        src: u64,
        bytes: usize,
    },
    Set {
        dst: u64,
        width: usize,
        value: u32,
        count: usize,
    },
    Kernel {
        function: u64,
        argument: Vec<u8>,
        grid: [u32; 3],
        block: [u32; 3],
    },
    Product(Box<Product>),
    Record {
        event: u64,
        number: u64,
    },
    Wait {
        stream: u64,
        event: u64,
        number: u64,
    },
    Free {
        address: u64,
    },
    /// Memory of a graph begins to be usable.
    Allocate {
        address: u64,
    },
    /// A graph that was launched into the recording of another.
    Child(Vec<Work>),
}

impl Work {
    /// Whether one can take the other's place in a graph.
    fn same_shape(&self, other: &Work) -> bool {
        match (self, other) {
            (Work::Kernel { function: a, .. }, Work::Kernel { function: b, .. }) => a == b,
            (Work::Child(a), Work::Child(b)) => same_shape(a, b),
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

fn same_shape(one: &[Work], other: &[Work]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| a.same_shape(b))
}

#[derive(Default)]
pub(crate) struct Stream {
    pub(crate) context: u64,
    pub(crate) queue: VecDeque<Work>,
    /// Queries that the front of the queue still outlasts.
    pub(crate) patience: u32,
    pub(crate) capture: Option<Point>,
}

#[derive(Default)]
pub(crate) struct Event {
    pub(crate) context: u64,
    /// Numbers of the latest record, and of the latest that was reached.
    pub(crate) recorded: u64,
    pub(crate) reached: u64,
    pub(crate) stream: u64,
    pub(crate) time: u64,
    /// The point of a recording for which it stands, where that is what it was recorded in last.
    pub(crate) captured: Option<Point>,
}

pub(crate) struct Function {
    pub(crate) module: u64,
    pub(crate) name: String,
    pub(crate) argument_bytes: Option<usize>,
    /// Dynamic shared memory that a block may have.
    pub(crate) shared: u32,
}

/// Everything.
pub(crate) struct World {
    pub(crate) config: Config,
    pub(crate) initialized: bool,
    /// Which of its devices it shows, in order: a place here is the number of a device for the caller.
    pub(crate) visible: Vec<i32>,
    pub(crate) log: Vec<String>,
    pub(crate) calls: u64,
    /// The call that fails, and with what.
    pub(crate) fail: Option<(u64, i32)>,
    /// Contexts that are lost: every call in one gives this error.
    pub(crate) sticky: HashMap<u64, i32>,
    next: u64,
    clock: u64,
    /// How often each primary context is retained.
    pub(crate) contexts: HashMap<u64, u32>,
    /// The device of each context that was made beside the primary ones.
    pub(crate) made: HashMap<u64, i32>,
    /// Contexts that may use another's memory.
    pub(crate) peers: Vec<(u64, u64)>,
    /// Pools whose memory other devices may use.
    pub(crate) access: Vec<(u64, i32)>,
    pub(crate) recordings: HashMap<u64, Recording>,
    /// By handle; the default stream of a context by that of the context.
    pub(crate) streams: HashMap<u64, Stream>,
    pub(crate) events: HashMap<u64, Event>,
    pub(crate) blocks: BTreeMap<u64, Block>,
    pub(crate) pools: HashMap<u64, i32>,
    pub(crate) modules: HashMap<u64, Vec<(String, Option<usize>)>>,
    pub(crate) functions: HashMap<u64, Function>,
    pub(crate) graphs: HashMap<u64, Vec<Work>>,
    pub(crate) execs: HashMap<u64, Vec<Work>>,
    /// Nodes of graphs that somebody asked for.
    pub(crate) nodes: HashMap<u64, Node>,
    pub(crate) blas: HashMap<u64, Object>,
}

// SAFETY: the pointers in `blocks` are of memory that only the world uses, under its lock, or that the host owns.
unsafe impl Send for World {}

static WORLD: Mutex<Option<World>> = Mutex::new(None);

thread_local! {
    pub(crate) static CURRENT: Cell<u64> = const { Cell::new(0) };
    /// What captures elsewhere allow this thread; 0, as threads begin, is the least.
    pub(crate) static CAPTURE_MODE: Cell<i32> = const { Cell::new(0) };
}

/// The world, made anew where there is none.
pub(crate) fn world(use_it: impl FnOnce(&mut World) -> i32) -> i32 {
    let mut guard: MutexGuard<'_, Option<World>> = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    use_it(guard.get_or_insert_with(|| World::new(Config::default())))
}

/// Devices of a program that does not know that its driver is a fake; one without the variable.
const DEVICES_ENV: &str = "FAKECUDA_DEVICES";

impl Default for Config {
    fn default() -> Config {
        let devices = std::env::var(DEVICES_ENV).ok().and_then(|n| n.parse().ok()).unwrap_or(1);
        let (pools, peers, environment) = (true, true, true);
        let (memory_bytes, delay, version, broken, lost) = (1 << 30, 2, 13000, -1, -1);
        Config { devices, pools, peers, memory_bytes, delay, environment, version, broken, lost }
    }
}

/// The handle of a device's primary context.
pub(crate) fn context_of(device: i32) -> u64 {
    0x100 + device as u64
}

impl World {
    pub(crate) fn new(config: Config) -> World {
        World {
            config,
            initialized: false,
            visible: Vec::new(),
            log: Vec::new(),
            calls: 0,
            fail: None,
            sticky: HashMap::new(),
            next: 0x1000,
            clock: 0,
            contexts: HashMap::new(),
            made: HashMap::new(),
            peers: Vec::new(),
            access: Vec::new(),
            recordings: HashMap::new(),
            streams: HashMap::new(),
            events: HashMap::new(),
            blocks: BTreeMap::new(),
            pools: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            execs: HashMap::new(),
            nodes: HashMap::new(),
            blas: HashMap::new(),
        }
    }

    /// The device of a context.
    pub(crate) fn device_of(&self, context: u64) -> i32 {
        self.made.get(&context).copied().unwrap_or(context as i32 - 0x100)
    }

    /// Makes a context, as another library does.
    pub(crate) fn make_context(&mut self, device: i32) -> u64 {
        self.initialized = true;
        let handle = self.handle();
        self.made.insert(handle, device);
        self.contexts.insert(handle, 1);
        self.streams.insert(handle, Stream { context: handle, ..Stream::default() });
        handle
    }

    /// Ends a context that was made so; what is left in it counts as lost.
    pub(crate) fn end_context(&mut self, handle: u64) {
        self.made.remove(&handle);
        self.sticky.remove(&handle);
        self.contexts.remove(&handle);
        self.streams.remove(&handle);
        self.peers.retain(|(a, b)| *a != handle && *b != handle);
    }

    /// A handle that no object had before.
    pub(crate) fn handle(&mut self) -> u64 {
        self.next += 0x10;
        self.next
    }

    /// Objects that nobody has given back, one line for each kind that has some.
    pub(crate) fn leaks(&self) -> Vec<String> {
        let counts = [
            ("contexts", self.contexts.values().map(|n| *n as usize).sum()),
            ("streams", self.streams.iter().filter(|(key, stream)| **key != stream.context).count()),
            ("events", self.events.len()),
            ("blocks", self.blocks.len()),
            ("pools", self.pools.len()),
            ("modules", self.modules.len()),
            ("graphs", self.graphs.len()),
            ("graph execs", self.execs.len()),
            ("objects of cuBLASLt", self.blas.len()),
        ];
        counts.iter().filter(|(_, n)| *n > 0).map(|(what, n)| format!("{n} {what}")).collect()
    }

    /// The current context, which may have been destroyed since.
    pub(crate) fn current(&self) -> Outcome<u64> {
        match CURRENT.get() {
            0 => Err(INVALID_CONTEXT),
            context if self.contexts.contains_key(&context) => Ok(context),
            _ => Err(CONTEXT_IS_DESTROYED),
        }
    }

    /// The error of a context that is lost.
    pub(crate) fn lost(&self, context: u64) -> Outcome {
        self.sticky.get(&context).map_or(Ok(()), |code| Err(*code))
    }

    /// What a stream is kept by: for 0, which is the default stream of the current context, that context's handle.
    pub(crate) fn stream_key(&self, handle: u64) -> Outcome<u64> {
        if handle == 0 { self.current() } else { Ok(handle) }
    }

    /// A live stream of the current context.
    pub(crate) fn stream(&mut self, handle: u64) -> Outcome<&mut Stream> {
        let context = self.current()?;
        let key = self.stream_key(handle)?;
        match self.streams.get_mut(&key) {
            Some(stream) if stream.context == context => Ok(stream),
            _ => Err(INVALID_HANDLE),
        }
    }

    pub(crate) fn event(&mut self, handle: u64) -> Outcome<&mut Event> {
        self.events.get_mut(&handle).ok_or(INVALID_HANDLE)
    }

    // ---- Work

    /// Queues work, or records it.
    pub(crate) fn enqueue(&mut self, stream: u64, work: Work) -> Outcome {
        let delay = self.config.delay;
        let Some(work) = self.record(stream, work)? else { return Ok(()) };
        let stream = self.stream(stream)?;
        if stream.queue.is_empty() {
            stream.patience = delay;
        }
        stream.queue.push_back(work);
        Ok(())
    }

    /// Whether the stream's queue is empty, after a query has let time pass.
    pub(crate) fn poll(&mut self, handle: u64) -> Outcome<bool> {
        let delay = self.config.delay;
        let Some(stream) = self.streams.get_mut(&handle) else { return Ok(true) };
        if stream.queue.is_empty() {
            return Ok(true);
        }
        if stream.patience > 0 {
            stream.patience -= 1;
            return Ok(false);
        }
        stream.patience = delay;
        self.step(handle)?;
        Ok(self.streams.get(&handle).is_none_or(|s| s.queue.is_empty()))
    }

    /// Does everything that is queued on a stream.
    pub(crate) fn drain(&mut self, handle: u64) -> Outcome {
        while self.streams.get(&handle).is_some_and(|s| !s.queue.is_empty()) {
            self.step(handle)?;
        }
        Ok(())
    }

    /// Does what a stream has up to a record, and no more: what comes behind it may have to wait for others.
    pub(crate) fn reach(&mut self, stream: u64, event: u64, number: u64) -> Outcome {
        let record = Work::Record { event, number };
        while self.streams.get(&stream).is_some_and(|s| s.queue.contains(&record)) {
            self.step(stream)?;
        }
        Ok(())
    }

    /// Frees in stream order.
    pub(crate) fn free_later(&mut self, address: u64, handle: u64) -> Outcome {
        let delay = self.config.delay;
        let key = self.stream_key(handle)?;
        let stream = self.streams.get_mut(&key).ok_or(INVALID_HANDLE)?;
        if stream.capture.is_some() {
            // A node that frees is for memory of the graph.
            self.blocks.get(&address).filter(|b| b.of_graph).ok_or(INVALID_VALUE)?;
            return self.record(handle, Work::Free { address }).map(drop);
        }
        let block = self.blocks.get_mut(&address).filter(|b| !b.doomed).ok_or(INVALID_VALUE)?;
        block.doomed = true;
        if stream.queue.is_empty() {
            stream.patience = delay;
        }
        stream.queue.push_back(Work::Free { address });
        Ok(())
    }

    /// Drops what is queued on a stream, frees excepted.
    pub(crate) fn abandon(&mut self, handle: u64) -> Outcome {
        let queue = self.streams.get_mut(&handle).map(|s| std::mem::take(&mut s.queue)).unwrap_or_default();
        queue.into_iter().try_for_each(|work| match work {
            Work::Free { address } => self.release(address),
            _ => Ok(()),
        })
    }

    /// Does everything that no lost context has; the error is that of the current one.
    pub(crate) fn drain_all(&mut self) -> Outcome {
        let current = CURRENT.get();
        let streams: Vec<(u64, u64)> = self.streams.iter().map(|(key, s)| (*key, s.context)).collect();
        for (key, context) in streams {
            if self.lost(context).is_ok() {
                let done = self.drain(key);
                if context == current {
                    done?;
                }
            }
        }
        Ok(())
    }

    /// Does the first piece of work of a stream.
    fn step(&mut self, handle: u64) -> Outcome {
        let Some(context) = self.streams.get(&handle).map(|s| s.context) else { return Ok(()) };
        // A lost context does nothing more.
        self.lost(context)?;
        let Some(work) = self.streams.get_mut(&handle).and_then(|s| s.queue.pop_front()) else {
            return Ok(());
        };
        self.clock += 1;
        let done = self.perform(context, work);
        if let Err(code) = done {
            // What fails on the device is reported by every later call in the context.
            self.sticky.insert(context, code);
        }
        done
    }

    fn perform(&mut self, context: u64, work: Work) -> Outcome {
        let fault = |_| ILLEGAL_ADDRESS;
        match work {
            Work::Copy { dst, src, bytes } => {
                let (from, to) =
                    (self.locate(src, bytes).map_err(fault)?, self.locate(dst, bytes).map_err(fault)?);
                // SAFETY: both ranges are inside live blocks, or the host's, which the caller keeps until now.
                unsafe { std::ptr::copy(from, to, bytes) };
            }
            Work::Set { dst, width, value, count } => {
                let to = self.locate(dst, width * count).map_err(fault)?;
                let value = value.to_le_bytes();
                for i in 0..count {
                    // SAFETY: inside a live block.
                    unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), to.add(i * width), width) };
                }
            }
            Work::Kernel { argument, .. } => {
                for word in argument.chunks_exact(8) {
                    let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
                    if is_address(word) {
                        self.locate_for(context, word, 1).map_err(fault)?;
                    }
                }
            }
            Work::Product(product) => cublaslt::perform(self, context, &product).map_err(fault)?,
            Work::Record { event, number } => {
                let clock = self.clock;
                if let Some(event) = self.events.get_mut(&event) {
                    event.reached = event.reached.max(number);
                    event.time = clock;
                }
            }
            Work::Wait { stream, event, number } => self.reach(stream, event, number)?,
            Work::Free { address } => match self.blocks.get_mut(&address) {
                Some(block) if block.of_graph => block.doomed = true,
                _ => self.release(address).map_err(fault)?,
            },
            Work::Allocate { address } => {
                let block = self.blocks.get_mut(&address).ok_or(ILLEGAL_ADDRESS)?;
                block.doomed = false;
            }
            Work::Child(works) => works.into_iter().try_for_each(|work| self.perform(context, work))?,
        }
        Ok(())
    }

    /// Frees the memory of a graph's own that no graph has any more.
    pub(crate) fn forget_graph(&mut self, work: &[Work]) -> Outcome {
        for allocated in work.iter().filter(|w| matches!(w, Work::Allocate { .. })) {
            let Work::Allocate { address } = allocated else { continue };
            let kept = self.graphs.values().chain(self.execs.values()).any(|w| w.contains(allocated));
            if !kept && self.blocks.contains_key(address) {
                self.release(*address)?;
            }
        }
        Ok(())
    }

    /// Puts the work of one graph in another's place, if they have one shape.
    pub(crate) fn update(&mut self, exec: u64, graph: u64) -> Outcome {
        let new = self.graphs.get(&graph).ok_or(INVALID_HANDLE)?.clone();
        let old = self.execs.get_mut(&exec).ok_or(INVALID_HANDLE)?;
        if !same_shape(old, &new) {
            return Err(GRAPH_EXEC_UPDATE_FAILURE);
        }
        *old = new;
        Ok(())
    }
}

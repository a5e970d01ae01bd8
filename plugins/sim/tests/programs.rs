//! The safe API is sound: random programs on three streams of two devices do what they do one step after another.
//!
//! A program allocates, uploads, launches, records and waits, copies, reads, and drops, in any order that the
//! compiler accepts. Beside it, the same steps are done at once on vectors of the host. Whoever forgets to order two
//! pieces of work is found by the delays of the simulated devices; that they do find it is tested with a device
//! whose waits do nothing.
//!
//! `EP_SIM_PROGRAMS` is how many programs are run (1000), `EP_SIM_SEED` the seed of the first one (from the clock).
//! Program n has the seed of the first one plus n, so `EP_SIM_PROGRAMS=1 EP_SIM_SEED=...` repeats one.

mod random;

use ep_core::primitive::{
    Add, AddCall, AddDesc, ElementwiseUnary, ElementwiseUnaryCall, ElementwiseUnaryDesc, Fill, FillCall,
    FillDesc, UnaryOp,
};
use ep_core::{DType, Result, Scalar};
use ep_registry::config::ProviderConfig;
use ep_registry::{Buffer, Device, Event, InPlace, Primitive, Read, Runtime, Stream};
use ep_sim::SimProvider;
use random::{Random, first_seed};
use std::sync::atomic::{AtomicU64, Ordering};

const SLOTS: usize = 5;
const STREAMS: usize = 3;
const EVENTS: usize = 2;
const MAX_LEN: usize = 40;
const MAX_STEPS: usize = 48;
/// Programs that share a runtime, and so its streams' delays.
const BATCH: u64 = 50;

fn value(random: &mut Random) -> i32 {
    random.below(1 << 31) as i32 - (1 << 30)
}

/// A step. Steps on slots that are empty, or that do not fit together, do nothing.
#[derive(Clone, Debug)]
enum Step {
    /// A buffer with these elements, uploaded at once, or by a stream.
    Upload {
        slot: usize,
        device: usize,
        data: Vec<i32>,
        stream: Option<usize>,
    },
    /// A buffer that was never written.
    Alloc {
        slot: usize,
        device: usize,
        len: usize,
    },
    /// All elements.
    Fill {
        stream: usize,
        slot: usize,
        value: i32,
    },
    /// `dst = -dst`, or of another slot.
    Negate {
        stream: usize,
        src: usize,
        dst: usize,
    },
    /// `dst = srcs[0] + srcs[1] + ...`, where `dst` may be among them.
    Add {
        stream: usize,
        srcs: Vec<usize>,
        dst: usize,
    },
    /// A part of a slot, between devices where the slots are on two. `place` is that of the stream's device.
    Copy {
        stream: usize,
        place: usize,
        src: usize,
        dst: usize,
        from: usize,
        to: usize,
        len: usize,
    },
    Record {
        stream: usize,
        device: usize,
        event: usize,
    },
    Wait {
        stream: usize,
        device: usize,
        event: usize,
    },
    SyncEvent {
        event: usize,
    },
    Sync {
        stream: usize,
        device: usize,
    },
    /// Replaces a stream by a fresh one.
    Restart {
        stream: usize,
        device: usize,
    },
    /// Compares a slot, by a download or through a map.
    Read {
        slot: usize,
        map: bool,
    },
    /// Changes one element from the host.
    Write {
        slot: usize,
        at: usize,
        value: i32,
    },
    Drop {
        slot: usize,
    },
    /// Moves a buffer to another slot, dropping what is there.
    Move {
        from: usize,
        to: usize,
    },
}

fn step(r: &mut Random) -> Step {
    let (slot, other, stream, device) = (r.below(SLOTS), r.below(SLOTS), r.below(STREAMS), r.below(2));
    match r.below(40) {
        0..5 => {
            let data = (0..=r.below(MAX_LEN)).map(|_| value(r)).collect();
            let stream = [None, Some(stream)][r.below(2)];
            Step::Upload { slot, device, data, stream }
        }
        5 => Step::Alloc { slot, device, len: 1 + r.below(MAX_LEN) },
        6..9 => Step::Fill { stream, slot, value: value(r) },
        9..15 => Step::Negate { stream, src: slot, dst: other },
        15..22 => {
            let srcs = (0..=r.below(3)).map(|_| r.below(SLOTS)).collect();
            Step::Add { stream, srcs, dst: slot }
        }
        22..29 => {
            let (from, to, len) = (r.below(8), r.below(8), 1 + r.below(MAX_LEN));
            Step::Copy { stream, place: device, src: slot, dst: other, from, to, len }
        }
        29 => Step::Record { stream, device, event: r.below(EVENTS) },
        30 => Step::Wait { stream, device, event: r.below(EVENTS) },
        31 => Step::SyncEvent { event: r.below(EVENTS) },
        32 => Step::Sync { stream, device },
        33 => Step::Restart { stream, device },
        34 => Step::Read { slot, map: r.below(2) == 0 },
        35 => Step::Write { slot, at: r.below(MAX_LEN), value: value(r) },
        36 | 37 => Step::Drop { slot },
        _ => Step::Move { from: slot, to: other },
    }
}

/// All streams read a slot, which is given away while they may still do so.
fn shared_then_dropped(r: &mut Random) -> Vec<Step> {
    let src = r.below(SLOTS);
    let read = |stream| Step::Negate { stream, src, dst: (src + 1 + stream) % SLOTS };
    (0..STREAMS).map(read).chain([Step::Drop { slot: src }]).collect()
}

/// The steps of a seed, the same on every machine.
fn program(seed: u64) -> Vec<Step> {
    let mut random = Random(seed);
    let least = 4 + random.below(MAX_STEPS);
    let mut steps = Vec::new();
    while steps.len() < least {
        match random.below(12) {
            0 => steps.extend(shared_then_dropped(&mut random)),
            _ => steps.push(step(&mut random)),
        }
    }
    steps
}

/// A buffer, its device, and what its elements should be; `None` while some were never written.
struct Slot {
    buffer: Buffer,
    device: usize,
    len: usize,
    model: Option<Vec<i32>>,
}

/// One runtime with two devices, and what is launched on them.
struct Machine {
    runtime: Runtime,
    add: Vec<Primitive<Add>>,
    fill: Vec<Primitive<Fill>>,
    negate: Vec<Primitive<ElementwiseUnary>>,
}

/// A program that runs.
struct Run<'m> {
    machine: &'m Machine,
    devices: &'m [Device],
    streams: Vec<Vec<Stream>>,
    events: Vec<Event>,
    slots: Vec<Option<Slot>>,
}

impl Machine {
    fn new(seed: u64, ignore_waits: bool) -> Result<Machine> {
        let mut settings = ProviderConfig::new("sim", "");
        settings.required = true;
        for (key, value) in [
            ("seed", seed.to_string()),
            ("max_delay_us", "40".into()),
            // Now and then a piece of work is overtaken by all that should not wait for it.
            ("slow", "4%".into()),
            ("slow_ms", "1".into()),
            ("memory_bytes", "1048576".into()),
            ("ignore_waits", ignore_waits.to_string()),
        ] {
            settings.options.insert(key.into(), value);
        }
        let runtime = Runtime::builder().threads(1).linked_with::<SimProvider>(settings).build()?;
        let negation = ElementwiseUnaryDesc::new(UnaryOp::NEGATIVE, DType::I32, DType::I32);
        let devices = runtime.devices().iter();
        let add =
            devices.clone().map(|d| runtime.primitive(d, AddDesc::new(DType::I32))).collect::<Result<_>>()?;
        let fill = devices
            .clone()
            .map(|d| runtime.primitive(d, FillDesc::new(DType::I32)))
            .collect::<Result<_>>()?;
        let negate = devices.map(|d| runtime.primitive(d, negation)).collect::<Result<_>>()?;
        Ok(Machine { runtime, add, fill, negate })
    }

    /// Runs the program of a seed and compares everything, at the end at latest.
    fn run(&self, seed: u64) -> Result<(), String> {
        let devices = self.runtime.devices();
        let streams = |d: &Device| (0..STREAMS).map(|_| d.stream()).collect::<Result<_>>();
        let mut run = Run {
            machine: self,
            devices,
            streams: devices.iter().map(streams).collect::<Result<_>>().map_err(|e| e.to_string())?,
            events: (0..EVENTS).map(|_| Event::new()).collect(),
            slots: (0..SLOTS).map(|_| None).collect(),
        };
        let program = program(seed);
        let failed = |step: &dyn std::fmt::Debug, what: String| {
            Err(format!(
                "program {seed} at {step:?}: {what}\nEP_SIM_PROGRAMS=1 EP_SIM_SEED={seed}\n{program:#?}"
            ))
        };
        for step in &program {
            match run.step(step.clone()) {
                Ok(None) => {}
                Ok(Some(difference)) => return failed(step, difference),
                Err(e) => return failed(step, e.to_string()),
            }
        }
        match run.finish() {
            Ok(None) => Ok(()),
            Ok(Some(difference)) => failed(&"the end", difference),
            Err(e) => failed(&"the end", e.to_string()),
        }
    }
}

/// What is wrong with an outcome, if it is not as the model says.
type Difference = Option<String>;

fn compare(name: &str, found: &[i32], wanted: &[i32]) -> Difference {
    (found != wanted).then(|| format!("{name} is {found:?}, and one step after another it is {wanted:?}"))
}

impl Run<'_> {
    fn step(&mut self, step: Step) -> Result<Difference> {
        match step {
            Step::Upload { slot, device, data, stream: None } => {
                let buffer = self.devices[device].upload(&data)?;
                self.slots[slot] = Some(Slot { buffer, device, len: data.len(), model: Some(data) });
            }
            Step::Upload { slot, device, data, stream: Some(stream) } => {
                let mut buffer = self.devices[device].alloc(DType::I32, data.len())?;
                self.streams[device][stream].upload(&mut buffer, data.clone())?;
                self.slots[slot] = Some(Slot { buffer, device, len: data.len(), model: Some(data) });
            }
            Step::Alloc { slot, device, len } => {
                let buffer = self.devices[device].alloc(DType::I32, len)?;
                self.slots[slot] = Some(Slot { buffer, device, len, model: None });
            }
            Step::Fill { stream, slot, value } => self.fill(stream, slot, value)?,
            Step::Negate { stream, src, dst } => self.negate(stream, src, dst)?,
            Step::Add { stream, srcs, dst } => self.add(stream, &srcs, dst)?,
            Step::Copy { stream, place, src, dst, from, to, len } => {
                let stream = self.streams[place][stream].clone();
                self.copy(&stream, src, dst, from, to, len)?;
            }
            Step::Record { stream, device, event } => {
                self.streams[device][stream].record(&self.events[event])?
            }
            Step::Wait { stream, device, event } => self.streams[device][stream].wait(&self.events[event])?,
            Step::SyncEvent { event } => self.events[event].sync()?,
            Step::Sync { stream, device } => self.streams[device][stream].sync()?,
            Step::Restart { stream, device } => {
                self.streams[device][stream] = self.devices[device].stream()?
            }
            Step::Read { slot, map } => return self.read(slot, map),
            Step::Write { slot, at, value } => {
                let Some(Slot { buffer, len, model: Some(model), .. }) = &mut self.slots[slot] else {
                    return Ok(None);
                };
                let mut map = buffer.map_write::<i32>()?;
                map[at % *len] = value;
                map.finish()?;
                model[at % *len] = value;
            }
            Step::Drop { slot } => self.slots[slot] = None,
            Step::Move { from, to } => {
                if let Some(moved) = self.slots[from].take() {
                    self.slots[to] = Some(moved);
                }
            }
        }
        Ok(None)
    }

    fn read(&self, slot: usize, map: bool) -> Result<Difference> {
        let Some(Slot { buffer, model: Some(model), .. }) = &self.slots[slot] else { return Ok(None) };
        let found = if map { buffer.map_read::<i32>()?.to_vec() } else { buffer.download::<i32>()? };
        Ok(compare(&format!("slot {slot}"), &found, model))
    }

    fn fill(&mut self, stream: usize, slot: usize, value: i32) -> Result<()> {
        let Some(dst) = &mut self.slots[slot] else { return Ok(()) };
        let call = FillCall { count: dst.len as i64, value: Scalar::I64(value.into()), dst: &mut dst.buffer };
        self.machine.fill[dst.device].launch(&self.streams[dst.device][stream], call)?;
        dst.model = Some(vec![value; dst.len]);
        Ok(())
    }

    fn negate(&mut self, stream: usize, src: usize, dst: usize) -> Result<()> {
        let Some(mut out) = self.slots[dst].take() else { return Ok(()) };
        let (negate, stream) = (&self.machine.negate[out.device], &self.streams[out.device][stream]);
        let negated = |model: &[i32]| model.iter().map(|x| x.wrapping_neg()).collect::<Vec<_>>();
        if src == dst {
            if let Some(model) = &mut out.model {
                let call = ElementwiseUnaryCall { count: out.len as i64, src: InPlace, dst: &mut out.buffer };
                negate.launch(stream, call)?;
                *model = negated(model);
            }
        } else if let Some(Slot { buffer, len, model: Some(model), .. }) = &self.slots[src] {
            // As many elements as both have; of another device, where peers reach each other.
            let count = out.len.min(*len);
            if let Some(old) = &mut out.model {
                let call = ElementwiseUnaryCall { count: count as i64, src: buffer, dst: &mut out.buffer };
                negate.launch(stream, call)?;
                old[..count].copy_from_slice(&negated(&model[..count]));
            }
        }
        self.slots[dst] = Some(out);
        Ok(())
    }

    fn add(&mut self, stream: usize, srcs: &[usize], dst: usize) -> Result<()> {
        let Some(mut out) = self.slots[dst].take() else { return Ok(()) };
        let mut sources = Vec::new();
        let mut sum = vec![0i32; out.len];
        for src in srcs {
            let (read, model): (Read<'_>, _) = if *src == dst {
                (InPlace.into(), &out.model)
            } else {
                let Some(slot) = self.slots[*src].as_ref().filter(|s| s.len >= out.len) else { continue };
                ((&slot.buffer).into(), &slot.model)
            };
            let Some(model) = model else { continue };
            sources.push(read);
            sum.iter_mut().zip(model).for_each(|(sum, x)| *sum = sum.wrapping_add(*x));
        }
        let call = AddCall { count: out.len as i64, dst: &mut out.buffer, srcs: &sources };
        self.machine.add[out.device].launch(&self.streams[out.device][stream], call)?;
        out.model = Some(sum);
        self.slots[dst] = Some(out);
        Ok(())
    }

    fn copy(
        &mut self,
        stream: &Stream,
        src: usize,
        dst: usize,
        from: usize,
        to: usize,
        len: usize,
    ) -> Result<()> {
        let Ok([Some(src), Some(dst)]) = self.slots.get_disjoint_mut([src, dst]) else { return Ok(()) };
        let (Some(model), Some(old)) = (&src.model, &mut dst.model) else { return Ok(()) };
        let len = len.min(src.len.saturating_sub(from)).min(dst.len.saturating_sub(to));
        stream
            .copy(src.buffer.slice(from.min(src.len), len)?, dst.buffer.slice_mut(to.min(dst.len), len)?)?;
        if len > 0 {
            old[to..to + len].copy_from_slice(&model[from..from + len]);
        }
        Ok(())
    }

    /// Compares all slots and lets go of everything: no error and no memory must be left.
    fn finish(mut self) -> Result<Difference> {
        for slot in 0..SLOTS {
            let difference = self.read(slot, false)?;
            if difference.is_some() {
                return Ok(difference);
            }
        }
        self.slots.clear();
        self.streams.iter().flatten().try_for_each(Stream::sync)?;
        drop(self.streams);
        for device in self.devices {
            // Tells of misuse that the provider has noticed.
            device.stream()?.sync()?;
            let stats = device.memory_stats()?;
            if (stats.in_use_bytes, stats.in_use_blocks) != (0, 0) {
                return Ok(Some(format!("{stats:?} on {}", device.name())));
            }
        }
        Ok(None)
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is `{text}`")))
}

#[test]
fn programs_give_the_sequential_result() {
    let (first, count) = (first_seed(), setting("EP_SIM_PROGRAMS", 1000));
    let next = AtomicU64::new(0);
    // Most of the time is spent waiting.
    std::thread::scope(|scope| {
        let worker = || {
            loop {
                let begin = next.fetch_add(BATCH, Ordering::Relaxed);
                if begin >= count {
                    return;
                }
                let machine = Machine::new(first + begin, false).unwrap();
                for n in begin..count.min(begin + BATCH) {
                    machine.run(first + n).unwrap_or_else(|e| panic!("{e}"));
                }
            }
        };
        (0..4).for_each(|_| drop(scope.spawn(worker)));
    });
}

#[test]
fn without_waits_a_program_fails_soon() {
    let first = first_seed();
    let machine = Machine::new(first, true).unwrap();
    let failed = (0..100).find_map(|n| Some((n, machine.run(first + n).err()?)));
    let (n, error) = failed.expect("100 programs found no sign that waits are ignored");
    println!("program {n} of {first} found it: {error}");
}

#[test]
fn programs_use_every_step() {
    let steps: Vec<_> = (0..200).flat_map(program).collect();
    let name = |step: &Step| format!("{step:?}").split([' ', '{']).next().unwrap_or_default().to_owned();
    let names: std::collections::BTreeSet<_> = steps.iter().map(name).collect();
    assert_eq!(names.len(), 15, "{names:?}");
    assert_eq!(format!("{:?}", program(7)), format!("{:?}", program(7)));
}

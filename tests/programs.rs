//! Random programs on three streams of an asynchronous device do what they do one step after another.

use ep_core::DType;
use ep_registry::{Buffer, Device, Event, InPlace, Runtime, Stream};
use ep_tests::ops::{Add, AddScalar};
use ep_tests::under::check_left_behind;
use ep_tests::{Under, on_each_async_provider};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

on_each_async_provider!(programs_give_the_sequential_result);

const SLOTS: usize = 4;
const STREAMS: usize = 3;
const LEN: usize = 24;

/// A step; numbers of slots and streams are taken modulo how many there are.
#[derive(Debug, Clone)]
enum Step {
    /// A fresh buffer with this value, on device 0 or 1.
    Upload { slot: usize, value: i8, device: usize },
    /// As a queued upload.
    Queue { slot: usize, stream: usize, value: i8 },
    /// `dst = src + x`.
    AddScalar { stream: usize, src: usize, dst: usize, x: i8 },
    /// `dst = src0 + src1`.
    Add { stream: usize, src0: usize, src1: usize, dst: usize },
    /// A copy, between devices where the slots are on two.
    Copy { stream: usize, src: usize, dst: usize },
    /// Records an event on a stream and lets another wait for it.
    Event { from: usize, to: usize },
    /// Gives a buffer away.
    Drop { slot: usize },
    /// Replaces a stream by a fresh one.
    Restart { stream: usize },
    /// Waits for a stream.
    Sync { stream: usize },
    /// Compares a buffer.
    Read { slot: usize },
    /// Changes a buffer from the host.
    Write { slot: usize, value: i8 },
}

fn step() -> impl Strategy<Value = Step> {
    let n = || 0..SLOTS;
    let s = || 0..STREAMS;
    prop_oneof![
        3 => (n(), -9..9i8, 0..2usize).prop_map(|(slot, value, device)| Step::Upload { slot, value, device }),
        2 => (n(), s(), -9..9i8).prop_map(|(slot, stream, value)| Step::Queue { slot, stream, value }),
        8 => (s(), n(), n(), -9..9i8).prop_map(|(stream, src, dst, x)| Step::AddScalar { stream, src, dst, x }),
        4 => (s(), n(), n(), n())
            .prop_map(|(stream, src0, src1, dst)| Step::Add { stream, src0, src1, dst }),
        4 => (s(), n(), n()).prop_map(|(stream, src, dst)| Step::Copy { stream, src, dst }),
        1 => (s(), s()).prop_map(|(from, to)| Step::Event { from, to }),
        2 => n().prop_map(|slot| Step::Drop { slot }),
        1 => s().prop_map(|stream| Step::Restart { stream }),
        1 => s().prop_map(|stream| Step::Sync { stream }),
        1 => n().prop_map(|slot| Step::Read { slot }),
        1 => (n(), -9..9i8).prop_map(|(slot, value)| Step::Write { slot, value }),
    ]
}

/// A buffer, the device that it is on, and the value that all its elements should have.
struct Slot {
    buffer: Buffer,
    device: usize,
    value: f32,
}

impl Slot {
    fn check(&self) {
        assert_eq!(self.buffer.download::<f32>().unwrap(), [self.value; LEN]);
    }
}

/// The streams of each device, and what is launched on them.
struct Machine<'r> {
    devices: &'r [Device],
    streams: Vec<Vec<Stream>>,
    add: Vec<Add>,
    add_scalar: Vec<AddScalar>,
    slots: Vec<Option<Slot>>,
    event: Event,
}

impl<'r> Machine<'r> {
    fn new(runtime: &'r Runtime) -> Machine<'r> {
        let devices = runtime.devices();
        let streams = |device: &Device| (0..STREAMS).map(|_| device.stream().unwrap()).collect();
        Machine {
            devices,
            streams: devices.iter().map(streams).collect(),
            add: devices.iter().map(|d| Add::new(runtime, d)).collect(),
            add_scalar: devices.iter().map(|d| AddScalar::new(runtime, d)).collect(),
            slots: (0..SLOTS).map(|_| None).collect(),
            event: Event::new(),
        }
    }

    /// Takes two different, filled slots of one device out of their places.
    fn pair(&mut self, src: usize, dst: usize) -> Option<(&Slot, &mut Slot)> {
        let [src, dst] = self.slots.get_disjoint_mut([src, dst]).ok()?;
        src.as_ref().zip(dst.as_mut())
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Upload { slot, value, device } => {
                let value = f32::from(value);
                let buffer = self.devices[device].upload(&[value; LEN]).unwrap();
                self.slots[slot] = Some(Slot { buffer, device, value });
            }
            Step::Queue { slot, stream, value } => {
                let value = f32::from(value);
                let mut buffer = self.devices[0].alloc(DType::F32, LEN).unwrap();
                self.streams[0][stream].upload(&mut buffer, vec![value; LEN]).unwrap();
                self.slots[slot] = Some(Slot { buffer, device: 0, value });
            }
            Step::AddScalar { stream, src, dst, x } => self.add_scalar(stream, src, dst, f32::from(x)),
            Step::Add { stream, src0, src1, dst } => self.add(stream, src0, src1, dst),
            Step::Copy { stream, src, dst } => {
                let streams = self.streams.iter().map(|s| s[stream].clone()).collect::<Vec<_>>();
                let Some((src, dst)) = self.pair(src, dst) else { return };
                streams[dst.device].copy(&src.buffer, &mut dst.buffer).unwrap();
                dst.value = src.value;
            }
            Step::Event { from, to } => {
                self.streams[0][from].record(&self.event).unwrap();
                self.streams[1][to].wait(&self.event).unwrap();
            }
            Step::Drop { slot } => self.slots[slot] = None,
            Step::Restart { stream } => self.streams[0][stream] = self.devices[0].stream().unwrap(),
            Step::Sync { stream } => self.streams[1][stream].sync().unwrap(),
            Step::Read { slot } => self.slots[slot].iter().for_each(Slot::check),
            Step::Write { slot, value } => {
                let Some(slot) = &mut self.slots[slot] else { return };
                slot.value = f32::from(value);
                slot.buffer.map_write::<f32>().unwrap().fill(slot.value);
            }
        }
    }

    fn add_scalar(&mut self, stream: usize, src: usize, dst: usize, x: f32) {
        let (add, streams) = (self.add_scalar.clone(), self.streams.clone());
        if src == dst {
            let Some(slot) = &mut self.slots[dst] else { return };
            let d = slot.device;
            add[d].launch(&streams[d][stream], LEN, InPlace, x, &mut slot.buffer).unwrap();
            slot.value += x;
        } else if let Some((src, dst)) = self.pair(src, dst).filter(|(s, d)| s.device == d.device) {
            let d = dst.device;
            add[d].launch(&streams[d][stream], LEN, &src.buffer, x, &mut dst.buffer).unwrap();
            dst.value = src.value + x;
        }
    }

    fn add(&mut self, stream: usize, src0: usize, src1: usize, dst: usize) {
        let Ok([a, b, c]) = self.slots.get_disjoint_mut([src0, src1, dst]) else { return };
        let (Some(a), Some(b), Some(c)) = (a, b, c) else { return };
        if a.device != b.device || a.device != c.device {
            return;
        }
        let stream = &self.streams[a.device][stream];
        self.add[a.device].launch(stream, LEN, &a.buffer, &b.buffer, &mut c.buffer).unwrap();
        c.value = a.value + b.value;
    }
}

fn programs_give_the_sequential_result(on: Under) {
    let config = Config { cases: 60, failure_persistence: None, ..Config::default() };
    let programs = prop::collection::vec(step(), 1..60);
    let mut runner = TestRunner::new(config);
    let outcome = runner.run(&(programs, any::<u64>()), |(program, seed)| {
        let runtime = on.runtime_with(&[("seed", &seed.to_string()), ("max_delay_us", "100")]);
        let mut machine = Machine::new(&runtime);
        program.into_iter().for_each(|step| machine.run(step));
        machine.slots.iter().flatten().for_each(Slot::check);
        drop(machine);
        check_left_behind(&runtime);
        Ok(())
    });
    outcome.unwrap_or_else(|e| panic!("{e}"));
}

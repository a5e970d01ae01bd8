//! Streams, events and memory, checked on the handles of a device.

mod block;
mod graph;
mod late;
mod launch;
mod lifetimes;
mod memory;
mod order;
mod prepack;

use crate::keys::Ended;
use crate::verdict::{Verdict, ended};
use ep_core::handle::DeviceHandle;
use ep_core::{Error, Result};
use ep_registry::{Device, Runtime};
use std::sync::Arc;

/// The device to check.
struct Bench<'r> {
    runtime: &'r Runtime,
    device: &'r Device,
    seed: u64,
}

impl Bench<'_> {
    /// The provider's device.
    fn handle(&self) -> &Arc<DeviceHandle> {
        self.device.members()[0].handle()
    }

    /// The name of its memory space.
    fn space(&self) -> &str {
        &self.handle().info().memory_space
    }
}

type Check = fn(&Bench<'_>) -> Result<Verdict>;

/// The checks and their names, by the files that they are in.
const CHECKS: [(&str, Check); 30] = [
    ("streams", order::streams),
    ("events", order::events),
    ("event-recorded-twice", order::recorded_twice),
    ("order-on-a-stream", order::order_on_a_stream),
    ("copies-behind-work", order::copies_behind_work),
    ("launches-and-copies", launch::launches_and_copies),
    ("done-means-done", order::done_means_done),
    ("late-errors", late::errors),
    ("streams-joined-by-an-event", order::joined_by_an_event),
    ("event-of-another-device", order::event_of_another_device),
    ("timing", order::timing),
    ("copies", memory::copies),
    ("copies-from-unknown-spaces", memory::unknown_spaces),
    ("alignment", memory::alignment),
    ("zero-size", memory::zero_size),
    ("exhaustion", memory::exhaustion),
    ("statistics", memory::statistics),
    ("pinned-memory", memory::pinned),
    ("allocation-on-threads", memory::allocation_on_threads),
    ("one-primitive-on-many-streams", lifetimes::one_primitive_on_many_streams),
    ("destruction-in-odd-orders", lifetimes::odd_orders),
    ("cases-of-the-vendor", lifetimes::cases_of_the_vendor),
    ("foreign-streams", lifetimes::foreign_streams),
    ("graph-of-copies", graph::copies),
    ("graph-of-launches", graph::launches),
    ("graph-updated", graph::update),
    ("graph-refusals", graph::refusals),
    ("graph-destroyed-in-odd-orders", graph::odd_orders),
    ("prepack-launches", prepack::launches),
    ("prepack-refusals", prepack::refusals),
];

/// The names of the checks.
pub fn names() -> impl Iterator<Item = &'static str> {
    CHECKS.iter().map(|(name, _)| *name)
}

/// Runs a check on a device.
pub fn run(name: &str, runtime: &Runtime, device: &Device, seed: u64) -> Ended {
    let bench = Bench { runtime, device, seed };
    ended(match CHECKS.iter().find(|(n, _)| *n == name) {
        Some((_, check)) => check(&bench),
        None => Err(Error::not_found(format!("no check is called `{name}`"))),
    })
}

//! Random chains of launches, each on what others have just written, compared with the same steps on the host. A launch that
//! works before those before it are done may be seen here, and in no test of one launch.

use crate::operands::{Copier, Random, settled};
use ep_core::primitive::{
    Add, AddArgs, AddDesc, BinaryOp, BroadcastElementwiseBinary, BroadcastElementwiseBinaryArgs,
    BroadcastElementwiseBinaryDesc, ElementwiseUnary, ElementwiseUnaryArgs, ElementwiseUnaryDesc, Fill,
    FillArgs, FillDesc, Gather, GatherArgs, GatherDesc, IndexMode, Memset, MemsetArgs, MemsetDesc, Permute,
    PermuteArgs, PermuteDesc, Reduce, ReduceArgs, ReduceDesc, ReduceOp, UnaryOp,
};
use ep_core::{DType, Error, Result, Scalar};
use ep_registry::{Buffer, Device, Event, Primitive, Runtime, Stream};
use serde::Serialize;

/// Buffers of a chain.
const SLOTS: usize = 5;
/// Steps of a chain.
const STEPS: usize = 60;
/// Rows and columns at most, of which a buffer holds the product; launches of so many take 10 us and more.
pub const MOST: usize = 2048;
/// Messages that are kept.
const KEPT: usize = 3;

/// What became of some chains.
#[derive(Debug, Default, Serialize)]
pub struct Checked {
    /// How many ran.
    pub chains: u64,
    /// Of those, recorded as graphs.
    pub recorded: u64,
    /// Chains after which a buffer was not as it should be.
    pub failed: u64,
    /// What was wrong with the first of them.
    pub messages: Vec<String>,
}

/// A step on `rows x cols` elements of the buffers that are named by number. All but a transpose, a sum and a gather may
/// write where they read.
#[derive(Debug, Clone, Copy)]
enum Step {
    Fill {
        value: i32,
    },
    /// By the driver where it is faster, which is no kernel.
    Set {
        value: u8,
    },
    /// By the driver.
    Copy,
    Negate,
    /// `dst = src + other`
    Add,
    /// `dst = src + a row of other`
    AddRow,
    /// Into as many elements as there are rows.
    SumRows,
    /// Into as many as there are columns.
    SumColumns,
    Transpose,
    /// Elements of `src` at the places that `other` has, and 0 where it has none of them.
    Gather,
    /// The other stream goes on behind this one.
    Switch,
}

/// A step with its size and its operands.
#[derive(Debug, Clone, Copy)]
struct Sized {
    step: Step,
    rows: usize,
    cols: usize,
    dst: usize,
    src: usize,
    other: usize,
}

impl Sized {
    fn random(random: &mut Random, most: usize) -> Sized {
        let mut below = |n: usize| (random.next() >> 20) as usize % n;
        let size = |n: usize, near: usize| match n {
            0 => 1,
            1 => 1 + near % 40.min(most),
            2 => 1 + near,
            _ => most,
        };
        let (rows, cols) = (size(below(4), below(most)), size(below(4), below(most)));
        let dst = below(SLOTS);
        let (src, other) = ((dst + 1 + below(SLOTS - 1)) % SLOTS, (dst + 1 + below(SLOTS - 1)) % SLOTS);
        let step = match below(20) {
            0 => Step::Fill { value: below(1 << 20) as i32 - (1 << 19) },
            1 => Step::Set { value: below(256) as u8 },
            2..5 => Step::Copy,
            5 | 6 => Step::Negate,
            7..10 => Step::Add,
            10 | 11 => Step::AddRow,
            12 => Step::SumRows,
            13 => Step::SumColumns,
            14..17 => Step::Transpose,
            17 | 18 => Step::Gather,
            _ => Step::Switch,
        };
        // Now and then in place.
        let may = matches!(step, Step::Negate | Step::Add | Step::AddRow) && below(4) == 0;
        Sized { step, rows, cols, dst, src: if may { dst } else { src }, other }
    }

    /// The same at once on the host.
    fn mirror(self, slots: &mut [Vec<i32>]) {
        let Sized { step, rows, cols, dst, src, other } = self;
        let count = rows * cols;
        let from = slots[src][..count].to_vec();
        let also = &slots[other][..count].to_vec();
        let sum = |items: &mut dyn Iterator<Item = i32>| items.fold(0, i32::wrapping_add);
        let new: Vec<i32> = match step {
            Step::Fill { value } => vec![value; count],
            Step::Set { value } => vec![i32::from_ne_bytes([value; 4]); count],
            Step::Copy => from,
            Step::Negate => from.iter().map(|x| x.wrapping_neg()).collect(),
            Step::Add => from.iter().zip(also).map(|(x, y)| x.wrapping_add(*y)).collect(),
            Step::AddRow => (0..count).map(|i| from[i].wrapping_add(also[i % cols])).collect(),
            Step::SumRows => from.chunks(cols).map(|row| sum(&mut row.iter().copied())).collect(),
            Step::SumColumns => (0..cols).map(|c| sum(&mut (0..rows).map(|r| from[r * cols + c]))).collect(),
            Step::Transpose => (0..count).map(|i| from[i % rows * cols + i / rows]).collect(),
            Step::Gather => {
                let at = |i: &i32| usize::try_from(*i).ok().and_then(|i| from.get(i)).copied();
                also.iter().map(|i| at(i).unwrap_or(0)).collect()
            }
            Step::Switch => Vec::new(),
        };
        slots[dst][..new.len()].copy_from_slice(&new);
    }
}

/// The primitives that chains launch.
struct Launcher {
    copier: Copier,
    add: Primitive<Add>,
    add_row: Primitive<BroadcastElementwiseBinary>,
    fill: Primitive<Fill>,
    gather: Primitive<Gather>,
    negate: Primitive<ElementwiseUnary>,
    set: Primitive<Memset>,
    sum: Primitive<Reduce>,
    transpose: Primitive<Permute>,
}

impl Launcher {
    fn new(runtime: &Runtime, device: &Device) -> Result<Launcher> {
        let i32 = DType::I32;
        Ok(Launcher {
            copier: Copier::new(runtime, device)?,
            add: runtime.primitive(device, AddDesc::new(i32))?,
            add_row: runtime
                .primitive(device, BroadcastElementwiseBinaryDesc::new(BinaryOp::ADD, i32, i32))?,
            fill: runtime.primitive(device, FillDesc::new(i32))?,
            gather: runtime.primitive(device, GatherDesc::new(IndexMode::ZERO, i32, i32))?,
            negate: runtime.primitive(device, ElementwiseUnaryDesc::new(UnaryOp::NEGATIVE, i32, i32))?,
            set: runtime.primitive(device, MemsetDesc::new())?,
            sum: runtime.primitive(device, ReduceDesc::new(ReduceOp::SUM, i32, i32))?,
            transpose: runtime.primitive(device, PermuteDesc::new(i32))?,
        })
    }

    /// Queues a step.
    ///
    /// # Safety
    /// `slots` are the addresses of buffers that nobody else uses until the work is done.
    unsafe fn queue(&self, stream: &Stream, s: Sized, slots: &[u64]) -> Result<()> {
        let Sized { step, rows, cols, .. } = s;
        let (dst, src, other) = (slots[s.dst], slots[s.src], slots[s.other]);
        let count = (rows * cols) as i64;
        let (r, c) = (rows as i64, cols as i64);
        // SAFETY: whole buffers, of which each step uses no more than there is; operands overlap exactly or not at all.
        unsafe {
            match step {
                Step::Fill { value } => {
                    self.fill.launch_raw(stream, &FillArgs::new(count, Scalar::I64(value.into()), dst))
                }
                Step::Set { value } => {
                    self.set.launch_raw(stream, &MemsetArgs::new(4 * count, Scalar::I64(value.into()), dst))
                }
                Step::Copy => self.copier.queue(stream, src, dst, 4 * count as u64),
                Step::Negate => self.negate.launch_raw(stream, &ElementwiseUnaryArgs::new(count, src, dst)),
                Step::Add => self.add.launch_raw(stream, &AddArgs::new(count, dst, &[src, other])),
                Step::AddRow => {
                    let (whole, row, none) = ([r, c], [c], Scalar::None);
                    let args = BroadcastElementwiseBinaryArgs::new(&whole, &row, none, none, src, other, dst);
                    self.add_row.launch_raw(stream, &args)
                }
                Step::SumRows => self.sum.launch_raw(stream, &ReduceArgs::new(r, c, 1, src, dst)),
                Step::SumColumns => self.sum.launch_raw(stream, &ReduceArgs::new(1, r, c, src, dst)),
                Step::Transpose => {
                    self.transpose.launch_raw(stream, &PermuteArgs::new(&[r, c], &[1, 0], src, dst))
                }
                Step::Gather => {
                    let args = GatherArgs::new(1, count, 1, count, 0, count, other, src, dst);
                    self.gather.launch_raw(stream, &args)
                }
                Step::Switch => Ok(()),
            }
        }
    }
}

/// The first difference of a buffer from what it should hold.
fn difference(buffers: &[Buffer], slots: &[Vec<i32>]) -> Result<Option<String>> {
    for (slot, (buffer, wanted)) in buffers.iter().zip(slots).enumerate() {
        let found = buffer.download::<i32>()?;
        if let Some(at) = (0..wanted.len()).find(|i| found[*i] != wanted[*i]) {
            let (found, wanted) = (found[at], wanted[at]);
            return Ok(Some(format!("buffer {slot}[{at}] is {found} and should be {wanted}")));
        }
    }
    Ok(None)
}

/// Runs so many chains on up to `most x most` elements, every third of them queued, launched twice as a
/// graph, and queued again, the others on two streams.
///
/// # Errors
/// Those of the provider.
pub fn check(runtime: &Runtime, device: &Device, most: usize, chains: u64) -> Result<Checked> {
    let launcher = Launcher::new(runtime, device)?;
    let streams = [device.stream()?, device.stream()?];
    let mut random = Random::new();
    // Places that a gather finds and others.
    let content = |slot: usize| (0..(most * most) as i32).map(move |i| i.wrapping_mul(1 + 2 * slot as i32));
    let mut slots: Vec<Vec<i32>> = (0..SLOTS).map(|slot| content(slot).collect()).collect();
    let buffers = slots.iter().map(|s| device.upload(s)).collect::<Result<Vec<_>>>()?;
    let addresses: Vec<u64> = buffers.iter().map(Buffer::address).collect();
    let mut checked = Checked::default();
    for chain in 0..chains {
        let steps: Vec<Sized> = (0..STEPS).map(|_| Sized::random(&mut random, most)).collect();
        let run = |stream: &Stream| {
            // SAFETY: buffers that are used here alone, until they are waited for.
            steps.iter().try_for_each(|s| unsafe { launcher.queue(stream, *s, &addresses) })
        };
        let recorded = chain % 3 == 2;
        if recorded {
            let graph = streams[0].capture(run)?;
            settled(&streams[0], || {
                run(&streams[0])?;
                graph.launch(&streams[0])?;
                graph.launch(&streams[0])?;
                run(&streams[0])
            })?;
            checked.recorded += 1;
        } else {
            on_two(&streams, &steps, |stream, s| {
                // SAFETY: as above.
                unsafe { launcher.queue(stream, s, &addresses) }
            })?;
        }
        for _ in 0..if recorded { 4 } else { 1 } {
            steps.iter().for_each(|s| s.mirror(&mut slots));
        }
        checked.chains += 1;
        if let Some(what) = difference(&buffers, &slots)? {
            checked.failed += 1;
            if checked.messages.len() < KEPT {
                checked.messages.push(format!("chain {chain}: {what}"));
            }
            // What is wrong now would be wrong in all later chains.
            slots = buffers.iter().map(Buffer::download::<i32>).collect::<Result<_>>()?;
        }
    }
    Ok(checked)
}

/// Queues steps on the first stream; where a step says so the other one goes on, behind an event.
fn on_two(
    streams: &[Stream; 2],
    steps: &[Sized],
    mut queue: impl FnMut(&Stream, Sized) -> Result<()>,
) -> Result<()> {
    let mut now = 0;
    let queued = steps.iter().try_for_each(|s| {
        if let Step::Switch = s.step {
            let event = Event::new();
            streams[now].record(&event)?;
            now = 1 - now;
            streams[now].wait(&event)?;
        }
        queue(&streams[now], *s)
    });
    let done: Result<()> = streams.iter().map(Stream::sync).fold(Ok(()), Result::and);
    queued.and(done)
}

/// An error where a chain is wrong.
///
/// # Errors
/// `Internal`.
pub fn judge(checked: &Checked) -> Result<()> {
    if checked.failed == 0 {
        return Ok(());
    }
    Err(Error::internal(format!("{} of {} chains are wrong", checked.failed, checked.chains)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Alone;
    use fakecuda::Setup;

    #[test]
    fn chains_are_queued_and_what_is_wrong_is_told() {
        let alone = Alone::new(Setup::default());
        {
            let runtime = alone.runtime(&[]);
            let device = runtime.device("cuda:0").unwrap();
            let checked = check(&runtime, device, 50, 3).unwrap();
            // The fake's kernels compute nothing.
            assert_eq!((checked.chains, checked.recorded, checked.failed), (3, 1, 3));
            assert!(checked.messages[0].starts_with("chain 0: buffer "), "{:?}", checked.messages);
            assert!(judge(&checked).unwrap_err().message().contains("3 of 3 chains"));
            assert!(alone.calls("cuGraphLaunch") == 2 && alone.calls("cuLaunchKernelEx") > 2 * STEPS / 2);
        }
        assert_eq!(alone.fake.leaks(), [""; 0]);
    }

    #[test]
    fn a_mirror_does_what_its_step_says() {
        let new = |step| Sized { step, rows: 2, cols: 3, dst: 0, src: 1, other: 2 };
        for (step, wanted) in [
            (Step::Fill { value: -4 }, vec![-4; 6]),
            (Step::Set { value: 1 }, vec![0x0101_0101; 6]),
            (Step::Copy, vec![1, 2, 3, 4, 5, 6]),
            (Step::Negate, vec![-1, -2, -3, -4, -5, -6]),
            (Step::Add, vec![2, 2, 7, 3, 6, 5]),
            (Step::AddRow, vec![2, 2, 7, 5, 5, 10]),
            (Step::SumRows, vec![6, 15, 9, 9, 9, 9]),
            (Step::SumColumns, vec![5, 7, 9, 9, 9, 9]),
            (Step::Transpose, vec![1, 4, 2, 5, 3, 6]),
            (Step::Gather, vec![2, 1, 5, 0, 2, 0]),
            (Step::Switch, vec![9; 6]),
        ] {
            let mut slots = vec![vec![9; 6], vec![1, 2, 3, 4, 5, 6], vec![1, 0, 4, -1, 1, 6]];
            if let Step::Add = step {
                slots[2] = vec![1, 0, 4, -1, 1, -1];
            }
            new(step).mirror(&mut slots);
            assert_eq!(slots[0], wanted, "{step:?}");
        }
    }
}

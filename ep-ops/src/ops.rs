//! Running operators on a device, and elsewhere where it cannot.

use crate::layout::{self, Strides};
use crate::{Operator, Spec, Tensor};
use ep_core::op::Op;
use ep_core::{Code, Error, Result};
use ep_registry::{Device, Primitive, Runtime, Stream};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::ops::Deref;
use std::sync::Arc;

/// Computes outputs from inputs, on the device of the operators that it is given.
type Run<'a> = dyn Fn(&Ops<'_>, &[&Tensor]) -> Result<Vec<Tensor>> + 'a;

/// An operator that ran on another device than it was asked on, and what that copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// The operator.
    pub operator: &'static str,
    /// The device it was asked on.
    pub from: String,
    /// The device it ran on.
    pub to: String,
    /// Bytes that were copied there and back, all times together.
    pub bytes: u64,
    /// Why the first device did not do it.
    pub reason: String,
    /// How many times this has happened.
    pub times: u64,
}

/// A runtime that is borrowed, or kept alive.
#[derive(Clone, Debug)]
enum RuntimeRef<'r> {
    Borrowed(&'r Runtime),
    Shared(Arc<Runtime>),
}

impl Deref for RuntimeRef<'_> {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        match self {
            RuntimeRef::Borrowed(runtime) => runtime,
            RuntimeRef::Shared(runtime) => runtime,
        }
    }
}

/// Runs operators on a device, in the order of one stream.
///
/// [`Ops::new`] borrows the runtime; [`Ops::shared`] keeps it alive, so that a struct may have both.
#[derive(Debug)]
pub struct Ops<'r> {
    runtime: RuntimeRef<'r>,
    device: Device,
    stream: Stream,
    /// Devices tried in this order where `device` lacks a primitive. They have no fallback of their own.
    fallback: Vec<Ops<'r>>,
    fallbacks: Mutex<Vec<Fallback>>,
}

impl<'r> Ops<'r> {
    /// On the device of this name (`cuda:0`, or `cuda` for the first of its kind), with a new stream and no fallback.
    ///
    /// # Errors
    /// Those of [`Runtime::device`] and [`Device::stream`].
    pub fn new(runtime: &'r Runtime, device: &str) -> Result<Ops<'r>> {
        Ops::of(RuntimeRef::Borrowed(runtime), device)
    }

    /// The same, and keeps the runtime alive.
    ///
    /// # Errors
    /// Those of [`Ops::new`].
    pub fn shared(runtime: &Arc<Runtime>, device: &str) -> Result<Ops<'static>> {
        Ops::of(RuntimeRef::Shared(runtime.clone()), device)
    }

    fn of(runtime: RuntimeRef<'r>, device: &str) -> Result<Ops<'r>> {
        let stream = runtime.device(device)?.stream()?;
        Ok(Ops::on_stream(runtime, stream))
    }

    fn on_stream(runtime: RuntimeRef<'r>, stream: Stream) -> Ops<'r> {
        let device = stream.device().clone();
        Ops { runtime, device, stream, fallback: Vec::new(), fallbacks: Mutex::default() }
    }

    /// With devices that are tried, in this order, where its own lacks what an operator takes. Its own is passed over, so
    /// that one list may serve several.
    ///
    /// # Errors
    /// Those of [`Ops::new`].
    pub fn with_fallback<N: AsRef<str>>(mut self, devices: impl IntoIterator<Item = N>) -> Result<Ops<'r>> {
        self.fallback.clear();
        for name in devices {
            let other = Ops::of(self.runtime.clone(), name.as_ref())?;
            if other.device != self.device {
                self.fallback.push(other);
            }
        }
        Ok(self)
    }

    /// With another stream of its device.
    ///
    /// # Errors
    /// `InvalidArgument` for a stream of another device.
    pub fn with_stream(mut self, stream: Stream) -> Result<Ops<'r>> {
        if *stream.device() != self.device {
            let (have, other) = (self.device.name(), stream.device().name());
            return Err(Error::invalid(format!(
                "a stream of {other} for operators on {have}; make one of {have}"
            )));
        }
        self.stream = stream;
        Ok(self)
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The stream that all its work on its device is queued on.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Waits for all its work, that of devices that stood in included.
    ///
    /// # Errors
    /// The first error of that work, once.
    pub fn sync(&self) -> Result<()> {
        self.fallback.iter().fold(self.stream.sync(), |first, there| first.and(there.stream.sync()))
    }

    /// What ran elsewhere so far; equal ones are counted.
    pub fn fallbacks(&self) -> Vec<Fallback> {
        self.fallbacks.lock().clone()
    }

    /// Runs an operator: infers the outputs, checks the inputs, runs on the device, or where that is `Unsupported` on the
    /// next device of the fallback order, with copies there and back.
    ///
    /// # Errors
    /// `InvalidArgument` for inputs that do not fit or lie on another device; `Unsupported` where neither the device nor a
    /// fallback has what it takes, with the reason of each.
    pub fn apply(&self, operator: &dyn Operator, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let name = operator.name();
        self.check_devices(name, inputs)?;
        let specs: SmallVec<[Spec; 4]> = inputs.iter().map(|t| t.spec().clone()).collect();
        let inferred = operator.infer(&specs).map_err(|e| e.context(name))?;
        let outputs = self.attempt(name, inputs, &|ops, inputs| operator.run(ops, inputs))?;
        if !outputs.iter().map(Tensor::spec).eq(&inferred) {
            let made: Vec<_> = outputs.iter().map(|t| t.spec().to_string()).collect();
            let wanted: Vec<_> = inferred.iter().map(Spec::to_string).collect();
            return Err(Error::internal(format!(
                "{name} has inferred {wanted:?} and made {made:?}; mend the operator"
            )));
        }
        Ok(outputs)
    }

    /// Runs an operator and leaves its output in the first input, without other memory where the operator can do that
    /// ([`Operator::run_in_place`]); else what [`Ops::apply`] makes is copied there. Where inputs share memory, the result is
    /// as if they had been copied first.
    ///
    /// # Errors
    /// `InvalidArgument` for an output that has another dtype or shape than the first input, for several outputs, and for a
    /// first input whose elements share memory; else as [`Ops::apply`].
    pub fn apply_(&self, operator: &dyn Operator, inputs: &[&Tensor]) -> Result<()> {
        let name = operator.name();
        self.check_devices(name, inputs)?;
        let specs: SmallVec<[Spec; 4]> = inputs.iter().map(|t| t.spec().clone()).collect();
        let inferred = operator.infer(&specs).map_err(|e| e.context(name))?;
        let (Some(x), [output]) = (inputs.first(), &inferred[..]) else {
            let (inputs, outputs) = (inputs.len(), inferred.len());
            return Err(Error::invalid(format!(
                "{name} in place: it has {inputs} inputs and {outputs} outputs; one output replaces the first input"
            )));
        };
        if output != x.spec() {
            return Err(Error::invalid(format!(
                "{name} in place: it gives {output}, and the first input is {}; use `apply`",
                x.spec()
            )));
        }
        if layout::may_overlap(x.shape(), x.strides()) {
            return Err(Error::invalid(format!(
                "{name} into {x:?}: some of its elements share memory; write to a clone, or to what it was expanded from"
            )));
        }
        if !inputs[1..].iter().any(|other| other.shares_storage(x)) {
            match operator.run_in_place(self, inputs) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(e) if e.code() == Code::Unsupported => {
                    tracing::debug!("{name} is computed apart and copied: {}", e.message());
                }
                Err(e) => return Err(told(name, inputs, e)),
            }
        }
        match &self.apply(operator, inputs)?[..] {
            [made] => self.copy_(x, made),
            _ => Err(Error::internal(format!(
                "{name} has inferred one output and made others; mend the operator"
            ))),
        }
    }

    /// Fails where an input is on another device.
    pub(crate) fn check_devices(&self, name: &str, inputs: &[&Tensor]) -> Result<()> {
        let Some((i, t)) = inputs.iter().enumerate().find(|(_, t)| *t.device() != self.device) else {
            return Ok(());
        };
        Err(Error::invalid(format!(
            "{name}: input {i} is on {} and the operators on {}; bring it with to_device",
            t.device().name(),
            self.device.name()
        )))
    }

    /// Runs something here, and where that is `Unsupported` by the first fallback that can.
    pub(crate) fn attempt(
        &self,
        name: &'static str,
        inputs: &[&Tensor],
        run: &Run<'_>,
    ) -> Result<Vec<Tensor>> {
        match run(self, inputs) {
            Err(e) if e.code() == Code::Unsupported => self.elsewhere(name, inputs, run, &e),
            done => done.map_err(|e| told(name, inputs, e)),
        }
    }

    #[cold]
    fn elsewhere(
        &self,
        name: &'static str,
        inputs: &[&Tensor],
        run: &Run<'_>,
        refused: &Error,
    ) -> Result<Vec<Tensor>> {
        let mut reasons =
            format!("{name}: no device can do it\n{}: {}", self.device.name(), refused.message());
        if self.stream.is_recording() {
            reasons.push_str("\nits stream records a graph, in which nothing can run elsewhere");
            return Err(Error::unsupported(reasons));
        }
        if self.stream.is_adopted() && !self.fallback.is_empty() {
            // Buffers do not know what another library has queued on them, and copies go by other streams.
            self.stream.sync()?;
        }
        for there in &self.fallback {
            match self.run_on(there, inputs, run) {
                Err(e) if e.code() == Code::Unsupported => {
                    reasons.push_str(&format!("\n{}: {}", there.device.name(), e.message()));
                }
                Err(e) => {
                    let (own, other) = (self.device.name(), there.device.name());
                    return Err(told(name, inputs, e.context(format!("on {other} in place of {own}"))));
                }
                Ok((outputs, bytes)) => {
                    self.note(name, there, bytes, refused);
                    return Ok(outputs);
                }
            }
        }
        if self.fallback.is_empty() {
            reasons.push_str("\nthere is no fallback; name devices that can with with_fallback");
        }
        Err(Error::unsupported(reasons))
    }

    /// Runs on another device, with the bytes that were copied.
    fn run_on(&self, there: &Ops<'_>, inputs: &[&Tensor], run: &Run<'_>) -> Result<(Vec<Tensor>, u64)> {
        let mut bytes = 0;
        let mut bring = |ops: &Ops<'_>, t: &Tensor| -> Result<Tensor> {
            let (copy, copied) = ops.bring(t)?;
            bytes += copied;
            Ok(copy)
        };
        let copies = inputs.iter().map(|t| bring(there, t)).collect::<Result<Vec<_>>>()?;
        let outputs = run(there, &copies.iter().collect::<Vec<_>>())?;
        let outputs = outputs.iter().map(|t| bring(self, t)).collect::<Result<Vec<_>>>()?;
        Ok((outputs, bytes))
    }

    fn note(&self, operator: &'static str, there: &Ops<'_>, bytes: u64, refused: &Error) {
        let (from, to, reason) = (self.device.name(), there.device.name(), refused.message());
        tracing::info!(operator, from, to, bytes, "ran elsewhere: {reason}");
        let mut all = self.fallbacks.lock();
        let same = |f: &&mut Fallback| f.operator == operator && f.to == to && f.reason == reason;
        if let Some(known) = all.iter_mut().find(same) {
            known.bytes += bytes;
            known.times += 1;
        } else {
            let (from, to, reason) = (from.to_owned(), to.to_owned(), reason.to_owned());
            all.push(Fallback { operator, from, to, bytes, reason, times: 1 });
        }
    }

    /// The operators of another device: those of the fallback order, or new ones.
    pub(crate) fn on<R>(&self, device: &Device, f: impl FnOnce(&Ops<'_>) -> Result<R>) -> Result<R> {
        if *device == self.device {
            return f(self);
        }
        if self.stream.is_recording() {
            let (own, other) = (self.device.name(), device.name());
            return Err(Error::unsupported(format!(
                "work on {other} while the stream of {own} records a graph, which would not do it again; do it before"
            )));
        }
        match self.fallback.iter().find(|o| o.device == *device) {
            Some(known) => f(known),
            None => {
                let there = Ops::on_stream(self.runtime.clone(), device.stream()?);
                let result = f(&there);
                // Nobody else can wait for this stream.
                let done = there.sync();
                result.and_then(|r| done.map(|()| r))
            }
        }
    }

    /// A primitive of its device, for operators.
    ///
    /// # Errors
    /// `Unsupported` with every candidate and the reason why it refused; else the factory's error.
    pub fn primitive<O: Op>(&self, desc: O::Desc) -> Result<Primitive<O>> {
        self.runtime.primitive::<O>(&self.device, desc)
    }

    /// A new dense tensor for an operator's output, of which nothing is written.
    ///
    /// # Errors
    /// `InvalidArgument` for a shape that cannot be; `OutOfMemory`.
    pub fn empty_like_spec(&self, spec: &Spec) -> Result<Tensor> {
        spec.count()?;
        self.empty_strided(spec.clone(), layout::contiguous(&spec.shape))
    }

    /// A new tensor with these strides, which fill its memory without gaps.
    pub(crate) fn empty_strided(&self, spec: Spec, strides: Strides) -> Result<Tensor> {
        let buffer = self.alloc(spec.dtype, spec.count()? as usize)?;
        Tensor::new(buffer, spec, strides, 0)
    }
}

/// An error of a device, which knows only sizes, with what was computed of which tensors.
#[cold]
fn told(name: &str, inputs: &[&Tensor], e: Error) -> Error {
    let inputs: Vec<String> = inputs.iter().map(|t| t.spec().to_string()).collect();
    e.context(if inputs.is_empty() { name.to_owned() } else { format!("{name} of {}", inputs.join(", ")) })
}

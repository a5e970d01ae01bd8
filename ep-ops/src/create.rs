//! Tensors from numbers, and numbers from tensors.

use crate::operators::number;
use crate::{MemoryFormat, Ops, Spec, Tensor};
use ep_core::primitive::{
    Arange, ArangeCall, ArangeDesc, Fill, FillCall, FillDesc, Memset, MemsetCall, MemsetDesc,
};
use ep_core::{Code, DType, Element, Error, Result, Scalar};
use ep_registry::Buffer;

impl Ops<'_> {
    /// A tensor of these elements, the last dimension innermost.
    ///
    /// # Errors
    /// `InvalidArgument` where the shape has another number of elements; `OutOfMemory`.
    pub fn tensor<T: Element>(&self, data: &[T], shape: &[i64]) -> Result<Tensor> {
        let spec = Spec::new(T::DTYPE, shape);
        if usize::try_from(spec.count()?) != Ok(data.len()) {
            return Err(Error::invalid(format!(
                "{} elements for a tensor {spec}; give it as many",
                data.len()
            )));
        }
        Tensor::from_buffer(self.upload(data)?, shape)
    }

    /// A dense tensor of which nothing is written yet. Reading it is an error; the first write through a view that leaves
    /// something out before or between its elements sets that to 0.
    ///
    /// # Errors
    /// `InvalidArgument` for a shape that cannot be; `OutOfMemory`.
    pub fn empty(&self, dtype: DType, shape: &[i64]) -> Result<Tensor> {
        self.empty_like_spec(&Spec::new(dtype, shape))
    }

    /// A dense tensor whose bytes are all 0.
    ///
    /// # Errors
    /// As [`Ops::empty`] and [`Ops::apply`].
    pub fn zeros(&self, dtype: DType, shape: &[i64]) -> Result<Tensor> {
        self.made("zeros", &Spec::new(dtype, shape), &|ops, out, count| {
            let bytes = count * dtype.bytes_for_bounds() as i64;
            let memset = ops.primitive::<Memset>(MemsetDesc::new())?;
            memset
                .launch(ops.stream(), MemsetCall { bytes, value: Scalar::I64(0), dst: out.write()?.view()? })
        })
    }

    /// A dense tensor of one value, which floats round, to an infinity where it is beyond them.
    ///
    /// # Errors
    /// `InvalidArgument` for a value that the dtype cannot hold; else as [`Ops::empty`] and [`Ops::apply`].
    pub fn full(&self, dtype: DType, shape: &[i64], value: impl Into<Scalar>) -> Result<Tensor> {
        let (spec, value) = (Spec::new(dtype, shape), value.into());
        if !number::holds(dtype, value) {
            return Err(Error::invalid(format!(
                "full: {spec} of {value}: {dtype} cannot hold it, and none is converted; make it of a dtype that can, \
                 and convert that with to_dtype"
            )));
        }
        self.made("full", &spec, &|ops, out, count| {
            let fill = ops.primitive::<Fill>(FillDesc::new(dtype))?;
            fill.launch(ops.stream(), FillCall { count, value, dst: out.write()?.view()? })
        })
    }

    /// The numbers from `start` on, `step` apart, that come before `end`.
    ///
    /// # Errors
    /// `InvalidArgument` for a step of 0, one that leads away from `end`, and numbers that are not finite; else as
    /// [`Ops::empty`] and [`Ops::apply`].
    pub fn arange(
        &self,
        dtype: DType,
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
    ) -> Result<Tensor> {
        let (start, end, step) = (start.into(), end.into(), step.into());
        if !dtype.is_complex() && [start, end, step].iter().any(|x| x.im() != 0.0) {
            return Err(Error::invalid(format!(
                "arange of {dtype} from {start} to {end} by {step}: {dtype} has no imaginary part; make it of a complex dtype"
            )));
        }
        let count = steps(start, end, step)?;
        let is_whole = |x: &Scalar| matches!(*x, Scalar::F64(f) if f.fract() == 0.0) || integer(*x).is_some();
        let whole = [start.or(Scalar::I64(0)), step.or(Scalar::I64(1))].iter().all(is_whole);
        if dtype.is_int() && !whole {
            return Err(Error::invalid(format!(
                "arange of {dtype} from {start} by {step}: start and step have to be integers; make it of f64, and convert it"
            )));
        }
        self.made("arange", &Spec::new(dtype, [count]), &|ops, out, count| {
            let arange = ops.primitive::<Arange>(ArangeDesc::new(dtype))?;
            arange.launch(ops.stream(), ArangeCall { count, start, step, dst: out.write()?.view()? })
        })
    }

    /// Memory of its device. Buffers that were dropped are kept while queued work uses them; where no memory is left, that
    /// work is waited for, and the device is asked once more. (Not while a graph is recorded, which waits for nothing.)
    pub(crate) fn alloc(&self, dtype: DType, len: usize) -> Result<Buffer> {
        match self.device().alloc(dtype, len) {
            Err(e) if e.code() == Code::OutOfMemory && !self.stream().is_recording() => {
                // An error of that work must not pass for one of what needs the memory, nor make that run elsewhere.
                self.stream().sync().map_err(|of_work| {
                    let told = format!(
                        "work that was queued before, and waited for because no memory was left, failed: {of_work}"
                    );
                    if of_work.code() == Code::Unsupported { Error::internal(told) } else { Error::new(of_work.code(), told) }
                })?;
                self.device().alloc(dtype, len)
            }
            done => done,
        }
    }

    /// The same with these elements in it.
    pub(crate) fn upload<T: Element>(&self, data: &[T]) -> Result<Buffer> {
        let mut buffer = self.alloc(T::DTYPE, data.len())?;
        buffer.upload(data)?;
        Ok(buffer)
    }

    fn made(
        &self,
        name: &'static str,
        spec: &Spec,
        write: &dyn Fn(&Ops<'_>, &Tensor, i64) -> Result<()>,
    ) -> Result<Tensor> {
        let count = spec.count().map_err(|e| e.context(name))?;
        let made = self.attempt(name, &[], &|ops, _| {
            let out = ops.empty_like_spec(spec)?;
            write(ops, &out, count)?;
            Ok(vec![out])
        })?;
        made.into_iter().next().ok_or_else(|| Error::internal(format!("{name}: no output")))
    }

    /// The elements of a tensor of any device, the last dimension innermost. Waits for the work on it.
    ///
    /// # Errors
    /// `InvalidArgument` for another dtype, or memory that was never written; the error of queued work on it.
    pub fn to_vec<T: Element>(&self, t: &Tensor) -> Result<Vec<T>> {
        if t.dtype() != T::DTYPE {
            return Err(Error::invalid(format!("{t:?} as {}; convert it with to_dtype", T::DTYPE)));
        }
        let whole = match t.is_whole() {
            true => t.alias(),
            false => self.on(t.device(), |ops| {
                let inner = ops.contiguous(t, MemoryFormat::Contiguous)?;
                if inner.is_whole() { Ok(inner) } else { ops.clone(&inner, MemoryFormat::Contiguous) }
            })?,
        };
        whole.download()
    }
}

/// How many steps lead from `start` to before `end`.
fn steps(start: Scalar, end: Scalar, step: Scalar) -> Result<i64> {
    let (start, step) = (start.or(Scalar::I64(0)), step.or(Scalar::I64(1)));
    let refuse = |why: &str| Error::invalid(format!("arange from {start} to {end} by {step}: {why}"));
    if let (Some(a), Some(b), Some(by)) = (integer(start), integer(end), integer(step)) {
        return match (b - a, by) {
            (_, 0) => Err(refuse("the step is 0")),
            (0, _) => Ok(0),
            (way, by) if (way < 0) != (by < 0) => Err(refuse("the step leads away from the end")),
            (way, by) => {
                let count = way / by + i128::from(way % by != 0);
                i64::try_from(count).map_err(|_| refuse("more elements than an i64 counts"))
            }
        };
    }
    let count = ((end.as_f64() - start.as_f64()) / step.as_f64()).ceil();
    if !(start.as_f64().is_finite()
        && end.as_f64().is_finite()
        && step.as_f64().is_finite()
        && step.as_f64() != 0.0)
    {
        return Err(refuse("all three are finite, and the step is not 0"));
    }
    if count < 0.0 {
        return Err(refuse("the step leads away from the end"));
    }
    // 2^63 is a float, and the largest i64 is not.
    if count >= i64::MAX as f64 { Err(refuse("more elements than an i64 counts")) } else { Ok(count as i64) }
}

fn integer(x: Scalar) -> Option<i128> {
    match x {
        Scalar::Bool(b) => Some(i128::from(b)),
        Scalar::I64(i) => Some(i128::from(i)),
        Scalar::U64(u) => Some(i128::from(u)),
        Scalar::None | Scalar::F64(_) | Scalar::Complex(..) => None,
    }
}

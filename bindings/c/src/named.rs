//! Operators, views and copies by their names in ep-ops, with attributes from JSON.

use ep_core::primitive::{ArgReduceOp, BinaryOp, IndexMode, ReduceOp, UnaryOp};
use ep_core::{DType, Error, Result, Scalar};
use ep_ops::operators as o;
use ep_ops::operators::{Side, Window};
use ep_ops::{MemoryFormat, Operator, Ops, Tensor};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

/// Computes outputs from inputs.
type Run = Box<dyn Fn(&Ops<'_>, &[&Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// What runs by a name.
pub(crate) enum Call {
    /// An operator.
    Operator(Box<dyn Operator>),
    /// A view, a copy, or a tensor from nothing, of so many inputs.
    Other { name: String, inputs: usize, run: Run },
}

impl Call {
    /// # Errors
    /// `InvalidArgument` for a name or an attribute that there is not, with those that there are, and for one that is missing.
    pub(crate) fn new(name: &str, attributes: &str) -> Result<Call> {
        let attributes: serde_json::Value = crate::request::read(attributes, "attributes")?;
        let named = serde_json::Value::Object([(name.to_owned(), attributes)].into_iter().collect());
        let named =
            Named::deserialize(named).map_err(|e| Error::invalid(format!("operator `{name}`: {e}")))?;
        Ok(call(named, name))
    }

    pub(crate) fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        match self {
            Call::Operator(operator) => ops.apply(&**operator, inputs),
            Call::Other { name, inputs: wanted, run } => {
                if inputs.len() != *wanted {
                    return Err(Error::invalid(format!(
                        "{name}: {} inputs, and it has {wanted}",
                        inputs.len()
                    )));
                }
                run(ops, inputs)
            }
        }
    }

    pub(crate) fn run_in_place(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<()> {
        match self {
            Call::Operator(operator) => ops.apply_(&**operator, inputs),
            Call::Other { name, .. } => {
                Err(Error::invalid(format!("{name} computes nothing that could be left in an input")))
            }
        }
    }
}

/// Names with their attributes. Defaults are PyTorch's where it has them.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Named {
    // What computes.
    AddN {},
    ArgReduce {
        op: Choice<ArgReduceOp>,
        dim: i64,
        #[serde(default)]
        keep_dims: bool,
        #[serde(default = "i64_dtype")]
        dtype: Dtype,
    },
    BatchGather {
        axis: i64,
        batch_dims: usize,
        #[serde(default = "wrap")]
        mode: Choice<IndexMode>,
        window: Option<Part>,
    },
    Binary {
        op: Choice<BinaryOp>,
        #[serde(default)]
        attrs: [Float; 2],
    },
    BinaryScalar {
        op: Choice<BinaryOp>,
        scalar: Number,
        /// Whether the number is the first argument.
        #[serde(default)]
        first: bool,
        #[serde(default)]
        attrs: [Float; 2],
    },
    Cast {
        dtype: Dtype,
    },
    Concat {
        #[serde(default)]
        dim: i64,
    },
    ConstantPad {
        before: Vec<i64>,
        after: Vec<i64>,
        #[serde(default)]
        value: Number,
    },
    Gather {
        #[serde(default)]
        axis: i64,
        #[serde(default = "wrap")]
        mode: Choice<IndexMode>,
        window: Option<Part>,
    },
    LayerNorm {
        #[serde(default = "one")]
        dims: usize,
        #[serde(default = "epsilon")]
        epsilon: f64,
        #[serde(default)]
        scale: bool,
        #[serde(default)]
        shift: bool,
        #[serde(default)]
        stats: bool,
    },
    LogSoftmax {
        #[serde(default = "last")]
        dim: i64,
        dtype: Option<Dtype>,
    },
    LogSoftmaxBackward {
        #[serde(default = "last")]
        dim: i64,
        dtype: Option<Dtype>,
    },
    Matmul {},
    OneHot {
        depth: i64,
        #[serde(default = "refuse")]
        mode: Choice<IndexMode>,
        #[serde(default)]
        on: Number,
        #[serde(default)]
        off: Number,
        #[serde(default = "f32_dtype")]
        dtype: Dtype,
        window: Option<Part>,
    },
    Reduce {
        op: Choice<ReduceOp>,
        /// None: all.
        #[serde(default)]
        dims: Vec<i64>,
        #[serde(default)]
        keep_dims: bool,
        dtype: Option<Dtype>,
    },
    RmsNorm {
        #[serde(default = "one")]
        dims: usize,
        #[serde(default = "epsilon")]
        epsilon: f64,
        #[serde(default)]
        scale: bool,
        #[serde(default)]
        stats: bool,
    },
    ScatterAdd {
        #[serde(default)]
        axis: i64,
        #[serde(default = "wrap")]
        mode: Choice<IndexMode>,
        window: Option<Part>,
    },
    Softmax {
        #[serde(default = "last")]
        dim: i64,
        dtype: Option<Dtype>,
    },
    SoftmaxBackward {
        #[serde(default = "last")]
        dim: i64,
        dtype: Option<Dtype>,
    },
    Unary {
        op: Choice<UnaryOp>,
        #[serde(default)]
        attrs: [Float; 2],
        dtype: Option<Dtype>,
    },
    Where {},
    // Views.
    Alias {},
    AsStrided {
        shape: Vec<i64>,
        strides: Vec<i64>,
        #[serde(default)]
        offset: i64,
    },
    Expand {
        shape: Vec<i64>,
    },
    Flip {
        dims: Vec<i64>,
    },
    Narrow {
        dim: i64,
        start: i64,
        len: i64,
    },
    Permute {
        dims: Vec<i64>,
    },
    Select {
        dim: i64,
        index: i64,
    },
    Slice {
        #[serde(default)]
        dim: i64,
        #[serde(default)]
        start: i64,
        #[serde(default = "far")]
        end: i64,
        #[serde(default = "step")]
        step: i64,
    },
    Squeeze {
        /// None: all.
        dim: Option<i64>,
    },
    Transpose {
        a: i64,
        b: i64,
    },
    Unfold {
        dim: i64,
        size: i64,
        step: i64,
    },
    Unsqueeze {
        dim: i64,
    },
    View {
        shape: Vec<i64>,
    },
    // Copies.
    Clone {
        #[serde(default = "preserve")]
        format: Format,
    },
    Contiguous {
        #[serde(default)]
        format: Format,
    },
    /// Writes the second input into the first, and gives nothing.
    Copy {},
    Flatten {
        #[serde(default)]
        start: i64,
        #[serde(default = "last")]
        end: i64,
    },
    Reshape {
        shape: Vec<i64>,
    },
    ToDevice {},
    ToDtype {
        dtype: Dtype,
    },
    // From nothing.
    Arange {
        dtype: Dtype,
        #[serde(default)]
        start: Number,
        end: Number,
        #[serde(default)]
        step: Number,
    },
    Empty {
        dtype: Dtype,
        shape: Vec<i64>,
    },
    Full {
        dtype: Dtype,
        shape: Vec<i64>,
        value: Number,
    },
    Zeros {
        dtype: Dtype,
        shape: Vec<i64>,
    },
}

fn wrap() -> Choice<IndexMode> {
    Choice(IndexMode::WRAP)
}

fn refuse() -> Choice<IndexMode> {
    Choice(IndexMode::ERROR)
}

fn last() -> i64 {
    -1
}

fn one() -> usize {
    1
}

fn step() -> i64 {
    1
}

fn far() -> i64 {
    i64::MAX
}

fn epsilon() -> f64 {
    1e-5
}

fn i64_dtype() -> Dtype {
    Dtype(DType::I64)
}

fn f32_dtype() -> Dtype {
    Dtype(DType::F32)
}

fn preserve() -> Format {
    Format::Preserve
}

/// What a name stands for.
fn call(named: Named, name: &str) -> Call {
    let operator = |operator: Box<dyn Operator>| Call::Operator(operator);
    let other = |inputs: usize, run: Run| Call::Other { name: name.to_owned(), inputs, run };
    let view = |view: Box<dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync>| {
        other(1, Box::new(move |_, inputs| Ok(vec![view(inputs[0])?])))
    };
    let copy = |copy: Box<dyn Fn(&Ops<'_>, &Tensor) -> Result<Tensor> + Send + Sync>| {
        other(1, Box::new(move |ops, inputs| Ok(vec![copy(ops, inputs[0])?])))
    };
    let new = |new: Box<dyn Fn(&Ops<'_>) -> Result<Tensor> + Send + Sync>| {
        other(0, Box::new(move |ops, _| Ok(vec![new(ops)?])))
    };
    match named {
        Named::AddN {} => operator(Box::new(o::AddN)),
        Named::ArgReduce { op, dim, keep_dims, dtype } => {
            operator(Box::new(o::ArgReduce { op: op.0, dim, keep_dims, dtype: dtype.0 }))
        }
        Named::BatchGather { axis, batch_dims, mode, window } => {
            let window = window.map(Window::from);
            operator(Box::new(o::BatchGather { axis, batch_dims, mode: mode.0, window }))
        }
        Named::Binary { op, attrs } => operator(Box::new(o::Binary { op: op.0, attrs: floats(attrs) })),
        Named::BinaryScalar { op, scalar, first, attrs } => {
            let side = if first { Side::First } else { Side::Second };
            operator(Box::new(o::BinaryScalar { op: op.0, attrs: floats(attrs), scalar: scalar.0, side }))
        }
        Named::Cast { dtype } => operator(Box::new(o::Cast { dtype: dtype.0 })),
        Named::Concat { dim } => operator(Box::new(o::Concat { dim })),
        Named::ConstantPad { before, after, value } => {
            operator(Box::new(o::ConstantPad { before, after, value: value.0 }))
        }
        Named::Gather { axis, mode, window } => {
            operator(Box::new(o::Gather { axis, mode: mode.0, window: window.map(Window::from) }))
        }
        Named::LayerNorm { dims, epsilon, scale, shift, stats } => {
            operator(Box::new(o::LayerNorm { dims, epsilon, scale, shift, stats }))
        }
        Named::LogSoftmax { dim, dtype } => {
            operator(Box::new(o::LogSoftmax { dim, dtype: dtype.map(|d| d.0) }))
        }
        Named::LogSoftmaxBackward { dim, dtype } => {
            operator(Box::new(o::LogSoftmaxBackward { dim, dtype: dtype.map(|d| d.0) }))
        }
        Named::Matmul {} => operator(Box::new(o::Matmul)),
        Named::OneHot { depth, mode, on, off, dtype, window } => {
            let (on, off, window) = (on.0, off.0, window.map(Window::from));
            operator(Box::new(o::OneHot { depth, mode: mode.0, on, off, dtype: dtype.0, window }))
        }
        Named::Reduce { op, dims, keep_dims, dtype } => {
            operator(Box::new(o::Reduce { op: op.0, dims, keep_dims, dtype: dtype.map(|d| d.0) }))
        }
        Named::RmsNorm { dims, epsilon, scale, stats } => {
            operator(Box::new(o::RmsNorm { dims, epsilon, scale, stats }))
        }
        Named::ScatterAdd { axis, mode, window } => {
            operator(Box::new(o::ScatterAdd { axis, mode: mode.0, window: window.map(Window::from) }))
        }
        Named::Softmax { dim, dtype } => operator(Box::new(o::Softmax { dim, dtype: dtype.map(|d| d.0) })),
        Named::SoftmaxBackward { dim, dtype } => {
            operator(Box::new(o::SoftmaxBackward { dim, dtype: dtype.map(|d| d.0) }))
        }
        Named::Unary { op, attrs, dtype } => {
            operator(Box::new(o::Unary { op: op.0, attrs: floats(attrs), dtype: dtype.map(|d| d.0) }))
        }
        Named::Where {} => operator(Box::new(o::Where)),
        Named::Alias {} => view(Box::new(|t| Ok(t.alias()))),
        Named::AsStrided { shape, strides, offset } => {
            view(Box::new(move |t| t.as_strided(&shape, &strides, offset)))
        }
        Named::Expand { shape } => view(Box::new(move |t| t.expand(&shape))),
        Named::Flip { dims } => view(Box::new(move |t| t.flip(&dims))),
        Named::Narrow { dim, start, len } => view(Box::new(move |t| t.narrow(dim, start, len))),
        Named::Permute { dims } => view(Box::new(move |t| t.permute(&dims))),
        Named::Select { dim, index } => view(Box::new(move |t| t.select(dim, index))),
        Named::Slice { dim, start, end, step } => view(Box::new(move |t| t.slice(dim, start, end, step))),
        Named::Squeeze { dim: Some(dim) } => view(Box::new(move |t| t.squeeze(dim))),
        Named::Squeeze { dim: None } => view(Box::new(Tensor::squeeze_all)),
        Named::Transpose { a, b } => view(Box::new(move |t| t.transpose(a, b))),
        Named::Unfold { dim, size, step } => view(Box::new(move |t| t.unfold(dim, size, step))),
        Named::Unsqueeze { dim } => view(Box::new(move |t| t.unsqueeze(dim))),
        Named::View { shape } => view(Box::new(move |t| t.view(&shape))),
        Named::Clone { format } => copy(Box::new(move |ops, t| ops.clone(t, format.into()))),
        Named::Contiguous { format } => copy(Box::new(move |ops, t| ops.contiguous(t, format.into()))),
        Named::Copy {} => other(
            2,
            Box::new(|ops, inputs| {
                ops.copy_(inputs[0], inputs[1])?;
                Ok(Vec::new())
            }),
        ),
        Named::Flatten { start, end } => copy(Box::new(move |ops, t| ops.flatten(t, start, end))),
        Named::Reshape { shape } => copy(Box::new(move |ops, t| ops.reshape(t, &shape))),
        Named::ToDevice {} => copy(Box::new(|ops, t| ops.to_device(t))),
        Named::ToDtype { dtype } => copy(Box::new(move |ops, t| ops.to_dtype(t, dtype.0))),
        Named::Arange { dtype, start, end, step } => {
            new(Box::new(move |ops| ops.arange(dtype.0, start.0, end.0, step.0)))
        }
        Named::Empty { dtype, shape } => new(Box::new(move |ops| ops.empty(dtype.0, &shape))),
        Named::Full { dtype, shape, value } => new(Box::new(move |ops| ops.full(dtype.0, &shape, value.0))),
        Named::Zeros { dtype, shape } => new(Box::new(move |ops| ops.zeros(dtype.0, &shape))),
    }
}

/// A dtype by its name.
#[derive(Clone, Copy)]
struct Dtype(DType);

impl<'de> Deserialize<'de> for Dtype {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Dtype, D::Error> {
        let name = String::deserialize(from)?;
        DType::by_name(&name).map(Dtype).map_err(|e| D::Error::custom(e.message()))
    }
}

/// A value of an enum by its name.
#[derive(Clone, Copy)]
struct Choice<T>(T);

/// An enum whose values have names.
trait Enum: Sized {
    const NAMES: &'static [&'static str];
    fn at(index: u32) -> Self;
}

macro_rules! enums {
    ($($name:ident)*) => {
        $(impl Enum for $name {
            const NAMES: &'static [&'static str] = $name::NAMES;
            fn at(index: u32) -> $name {
                $name(index)
            }
        })*
    };
}

enums!(ArgReduceOp BinaryOp IndexMode ReduceOp UnaryOp);

impl<'de, T: Enum> Deserialize<'de> for Choice<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Choice<T>, D::Error> {
        let name = String::deserialize(from)?;
        match T::NAMES.iter().position(|known| *known == name) {
            Some(index) => Ok(Choice(T::at(index as u32))),
            None => Err(D::Error::custom(format!("`{name}` is none of {}", T::NAMES.join(", ")))),
        }
    }
}

/// A float: of JSON, or a text for what JSON has no number for.
fn float(value: &serde_json::Value) -> Option<f64> {
    use serde_json::Value;
    match value {
        Value::Number(n) => n.as_f64(),
        Value::String(text) => match text.as_str() {
            "nan" => Some(f64::NAN),
            "inf" => Some(f64::INFINITY),
            "-inf" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

/// A parameter of a function.
#[derive(Clone, Copy, Default)]
struct Float(f64);

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Float, D::Error> {
        let value = serde_json::Value::deserialize(from)?;
        float(&value)
            .map(Float)
            .ok_or_else(|| D::Error::custom(format!("{value} is no number, \"nan\", \"inf\" or \"-inf\"")))
    }
}

fn floats(given: [Float; 2]) -> [f64; 2] {
    given.map(|float| float.0)
}

/// A number: of JSON, `true` or `false`, a text for what JSON has no number for (`"nan"`, `"inf"`, `"-inf"`), or the two parts of a complex one.
#[derive(Clone, Copy, Default)]
struct Number(Scalar);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Number, D::Error> {
        use serde_json::Value;
        let value = Value::deserialize(from)?;
        let scalar = match &value {
            Value::Bool(b) => Some(Scalar::Bool(*b)),
            Value::Number(n) if n.is_i64() => n.as_i64().map(Scalar::I64),
            Value::Number(n) if n.is_u64() => n.as_u64().map(Scalar::U64),
            Value::Array(parts) => match &parts[..] {
                [re, im] => float(re).zip(float(im)).map(|(re, im)| Scalar::Complex(re, im)),
                _ => None,
            },
            other => float(other).map(Scalar::F64),
        };
        scalar.map(Number).ok_or_else(|| {
            D::Error::custom(format!(
                "{value} is no number, true, false, \"nan\", \"inf\", \"-inf\" or list of two parts"
            ))
        })
    }
}

/// A part of an axis.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    offset: i64,
    size: i64,
}

impl From<Part> for Window {
    fn from(part: Part) -> Window {
        Window { offset: part.offset, size: part.size }
    }
}

/// A memory format by its name.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Format {
    #[default]
    Contiguous,
    ChannelsLast,
    #[serde(rename = "channels_last_3d")]
    ChannelsLast3d,
    Preserve,
}

impl From<Format> for MemoryFormat {
    fn from(format: Format) -> MemoryFormat {
        match format {
            Format::Contiguous => MemoryFormat::Contiguous,
            Format::ChannelsLast => MemoryFormat::ChannelsLast,
            Format::ChannelsLast3d => MemoryFormat::ChannelsLast3d,
            Format::Preserve => MemoryFormat::Preserve,
        }
    }
}

//! Operators, views and copies by their names in ep-ops, with attributes from JSON.

mod parameters;
mod value;

use ep_core::primitive::{ArgReduceOp, BinaryOp, IndexMode, ReduceOp, UnaryOp};
use ep_core::{DType, Error, Result};
use ep_ops::operators as o;
use ep_ops::operators::{Side, Window};
use ep_ops::{Operator, Ops, Spec, Tensor};
use parameters::parameters;
use serde::Deserialize;
use value::{Choice, Dtype, Format, Number, Part};

/// Computes outputs from inputs.
type Run = Box<dyn Fn(&Ops<'_>, &[&Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// What runs by a name.
pub(crate) enum Call {
    /// An operator.
    Operator(Box<dyn Operator>),
    /// A view, a copy, or a tensor from nothing, of so many inputs.
    Other { name: String, inputs: usize, outputs: usize, run: Run },
}

impl Call {
    /// # Errors
    /// `InvalidArgument` for a name or an attribute that there is not, with those that there are, and for one that is missing.
    pub(crate) fn new(name: &str, attributes: &str) -> Result<Call> {
        let attributes: serde_json::Value = crate::request::read(attributes, "attributes")?;
        let named = serde_json::Value::Object([(name.to_owned(), attributes)].into_iter().collect());
        let named: Named = serde_path_to_error::deserialize(named)
            .map_err(|e| Error::invalid(format!("operator `{name}`: {}: {}", e.path(), e.inner())))?;
        call(named, name).map_err(|e| e.context(format!("operator `{name}`")))
    }

    /// How many outputs it has for these inputs.
    pub(crate) fn outputs(&self, inputs: &[&Tensor]) -> Result<usize> {
        match self {
            Call::Other { outputs, .. } => Ok(*outputs),
            Call::Operator(operator) => {
                let specs: Vec<Spec> = inputs.iter().map(|t| t.spec().clone()).collect();
                Ok(operator.infer(&specs).map_err(|e| e.context(operator.name()))?.len())
            }
        }
    }

    pub(crate) fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        match self {
            Call::Operator(operator) => ops.apply(&**operator, inputs),
            Call::Other { name, inputs: wanted, run, .. } => {
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
        attrs: Option<Vec<Number>>,
    },
    BinaryScalar {
        op: Choice<BinaryOp>,
        scalar: Number,
        /// Whether the number is the first argument.
        #[serde(default)]
        first: bool,
        attrs: Option<Vec<Number>>,
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
        attrs: Option<Vec<Number>>,
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

/// A view of one tensor.
fn view(name: &str, of: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static) -> Call {
    other(name, 1, move |_, inputs| of(inputs[0]))
}

/// A copy of one tensor.
fn copy(name: &str, of: impl Fn(&Ops<'_>, &Tensor) -> Result<Tensor> + Send + Sync + 'static) -> Call {
    other(name, 1, move |ops, inputs| of(ops, inputs[0]))
}

/// A tensor from nothing.
fn new(name: &str, of: impl Fn(&Ops<'_>) -> Result<Tensor> + Send + Sync + 'static) -> Call {
    other(name, 0, move |ops, _| of(ops))
}

fn other(
    name: &str,
    inputs: usize,
    of: impl Fn(&Ops<'_>, &[&Tensor]) -> Result<Tensor> + Send + Sync + 'static,
) -> Call {
    let run: Run = Box::new(move |ops, inputs| Ok(vec![of(ops, inputs)?]));
    Call::Other { name: name.to_owned(), inputs, outputs: 1, run }
}

/// What a name stands for.
fn call(named: Named, name: &str) -> Result<Call> {
    let operator = |operator: Box<dyn Operator>| Call::Operator(operator);
    Ok(match named {
        Named::AddN {} => operator(Box::new(o::AddN)),
        Named::ArgReduce { op, dim, keep_dims, dtype } => {
            operator(Box::new(o::ArgReduce { op: op.0, dim, keep_dims, dtype: dtype.0 }))
        }
        Named::BatchGather { axis, batch_dims, mode, window } => {
            let window = window.map(Window::from);
            operator(Box::new(o::BatchGather { axis, batch_dims, mode: mode.0, window }))
        }
        Named::Binary { op, attrs } => {
            operator(Box::new(o::Binary { op: op.0, attrs: parameters(op.0.name(), attrs)? }))
        }
        Named::BinaryScalar { op, scalar, first, attrs } => {
            let side = if first { Side::First } else { Side::Second };
            let attrs = parameters(op.0.name(), attrs)?;
            operator(Box::new(o::BinaryScalar { op: op.0, attrs, scalar: scalar.0, side }))
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
            let attrs = parameters(op.0.name(), attrs)?;
            operator(Box::new(o::Unary { op: op.0, attrs, dtype: dtype.map(|d| d.0) }))
        }
        Named::Where {} => operator(Box::new(o::Where)),
        Named::Alias {} => view(name, |t| Ok(t.alias())),
        Named::AsStrided { shape, strides, offset } => {
            view(name, move |t| t.as_strided(&shape, &strides, offset))
        }
        Named::Expand { shape } => view(name, move |t| t.expand(&shape)),
        Named::Flip { dims } => view(name, move |t| t.flip(&dims)),
        Named::Narrow { dim, start, len } => view(name, move |t| t.narrow(dim, start, len)),
        Named::Permute { dims } => view(name, move |t| t.permute(&dims)),
        Named::Select { dim, index } => view(name, move |t| t.select(dim, index)),
        Named::Slice { dim, start, end, step } => view(name, move |t| t.slice(dim, start, end, step)),
        Named::Squeeze { dim: Some(dim) } => view(name, move |t| t.squeeze(dim)),
        Named::Squeeze { dim: None } => view(name, Tensor::squeeze_all),
        Named::Transpose { a, b } => view(name, move |t| t.transpose(a, b)),
        Named::Unfold { dim, size, step } => view(name, move |t| t.unfold(dim, size, step)),
        Named::Unsqueeze { dim } => view(name, move |t| t.unsqueeze(dim)),
        Named::View { shape } => view(name, move |t| t.view(&shape)),
        Named::Clone { format } => copy(name, move |ops, t| ops.clone(t, format.into())),
        Named::Contiguous { format } => copy(name, move |ops, t| ops.contiguous(t, format.into())),
        Named::Copy {} => Call::Other {
            name: name.to_owned(),
            inputs: 2,
            outputs: 0,
            run: Box::new(|ops, inputs| {
                ops.copy_(inputs[0], inputs[1])?;
                Ok(Vec::new())
            }),
        },
        Named::Flatten { start, end } => copy(name, move |ops, t| ops.flatten(t, start, end)),
        Named::Reshape { shape } => copy(name, move |ops, t| ops.reshape(t, &shape)),
        Named::ToDevice {} => copy(name, |ops, t| ops.to_device(t)),
        Named::ToDtype { dtype } => copy(name, move |ops, t| ops.to_dtype(t, dtype.0)),
        Named::Arange { dtype, start, end, step } => {
            new(name, move |ops| ops.arange(dtype.0, start.0, end.0, step.0))
        }
        Named::Empty { dtype, shape } => new(name, move |ops| ops.empty(dtype.0, &shape)),
        Named::Full { dtype, shape, value } => new(name, move |ops| ops.full(dtype.0, &shape, value.0)),
        Named::Zeros { dtype, shape } => new(name, move |ops| ops.zeros(dtype.0, &shape)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn refusal(name: &str, attributes: &str) -> String {
        match Call::new(name, attributes) {
            Ok(_) => panic!("{name} {attributes} is accepted"),
            Err(e) => e.message().to_owned(),
        }
    }

    /// The names that an unknown one is answered with.
    fn known() -> BTreeSet<String> {
        let told = refusal("none of them", "{}");
        let (_, list) = told.split_once("expected one of").expect("the list of names");
        list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn the_documentation_has_every_name() {
        let page = include_str!("../../../docs/bindings.md");
        let (_, table) = page.split_once("| name | inputs | attributes |").expect("the table of operators");
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let cells = rows.filter_map(|row| row.split('|').nth(1));
        let documented: BTreeSet<String> =
            cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned)).collect();
        assert!(known().len() > 40);
        assert_eq!(documented, known());
    }

    #[test]
    fn attributes_are_checked_by_name_and_kind() {
        for (name, attributes, part) in [
            ("gather", "{\"mode\": \"clip\"}", "wrap, zero, error"),
            ("gather", "{\"window\": {\"offset\": 1}}", "`size`"),
            ("matmul", "{\"transpose\": true}", "transpose"),
            ("permute", "{}", "dims"),
            ("contiguous", "{\"format\": \"nhwc\"}", "channels_last"),
            ("softmax", "[]", "object"),
            ("softmax", "null", "object"),
            ("gather", "{\"window\": [0, 10]}", "map"),
            ("unary", "{\"op\": \"hard_tanh\", \"attrs\": [1]}", "min"),
            ("softmax", "{\"dim\": \"last\"}", "dim"),
        ] {
            let told = refusal(name, attributes);
            assert!(told.contains(part), "{name} {attributes}: {told}");
        }
        assert!(Call::new("softmax", "{\"dtype\": null}").is_ok());
    }
}

//! Models of one node in ONNX's file format, written by hand: a few fields of a few protobuf messages.

use super::{Task, Tensor};
use ep_core::DType;

/// ONNX's number of a dtype.
pub fn element_type(dtype: DType) -> Result<i32, String> {
    Ok(match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::U16 => 4,
        DType::I16 => 5,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::BOOL => 9,
        DType::F16 => 10,
        DType::F64 => 11,
        DType::U32 => 12,
        DType::U64 => 13,
        DType::BF16 => 16,
        other => return Err(format!("no tensors of {other}")),
    })
}

/// A protobuf message in the making.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn int(mut self, field: u32, value: i64) -> Message {
        self.varint(u64::from(field) << 3);
        self.varint(value as u64);
        self
    }

    fn float(mut self, field: u32, value: f32) -> Message {
        self.varint(u64::from(field) << 3 | 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(mut self, field: u32, value: &[u8]) -> Message {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    fn message(self, field: u32, value: Message) -> Message {
        self.bytes(field, &value.0)
    }
}

/// An attribute of a node.
pub enum Attribute {
    Int(i64),
    Float(f32),
    Text(&'static str),
    Ints(Vec<i64>),
}

/// A constant that the node takes.
pub struct Constant {
    pub dtype: DType,
    pub dims: Vec<i64>,
    pub bytes: Vec<u8>,
}

impl Constant {
    /// A list of integers.
    pub fn ints(values: &[i64]) -> Constant {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Constant { dtype: DType::I64, dims: vec![values.len() as i64], bytes }
    }
}

/// What a node reads, in order.
pub enum Source {
    /// An operand of the row, by its index, with these dims.
    Operand(usize, Vec<i64>),
    /// A constant of the model.
    Constant(Constant),
}

/// A model of one node.
pub struct Model {
    pub op: &'static str,
    pub attributes: Vec<(&'static str, Attribute)>,
    pub sources: Vec<Source>,
    /// Version of the operator set.
    pub version: i64,
}

/// The name of the `i`-th source.
pub fn source_name(i: usize) -> String {
    format!("x{i}")
}

/// The result's name.
pub const OUTPUT: &str = "y";

impl Model {
    /// The file's bytes.
    pub fn encode(&self, task: &Task) -> Result<Vec<u8>, String> {
        let mut node = Message::default();
        for i in 0..self.sources.len() {
            node = node.bytes(1, source_name(i).as_bytes());
        }
        node = node.bytes(2, OUTPUT.as_bytes()).bytes(4, self.op.as_bytes());
        for (name, value) in &self.attributes {
            node = node.message(5, attribute(name, value));
        }
        let mut graph = Message::default().message(1, node).bytes(2, b"row");
        for (i, source) in self.sources.iter().enumerate() {
            let name = source_name(i);
            graph = match source {
                Source::Operand(k, dims) => {
                    graph.message(11, value_info(&name, task.inputs[*k].dtype, dims)?)
                }
                Source::Constant(c) => graph.message(5, tensor(&name, c)?),
            };
        }
        graph = graph.message(12, value_info(OUTPUT, task.output.dtype, &task.output.dims)?);
        let set = Message::default().bytes(1, b"").int(2, self.version);
        Ok(Message::default().int(1, 10).message(7, graph).message(8, set).0)
    }
}

fn attribute(name: &str, value: &Attribute) -> Message {
    let named = Message::default().bytes(1, name.as_bytes());
    match value {
        Attribute::Float(f) => named.float(2, *f).int(20, 1),
        Attribute::Int(i) => named.int(3, *i).int(20, 2),
        Attribute::Text(s) => named.bytes(4, s.as_bytes()).int(20, 3),
        Attribute::Ints(all) => all.iter().fold(named, |m, i| m.int(8, *i)).int(20, 7),
    }
}

fn tensor(name: &str, c: &Constant) -> Result<Message, String> {
    let dims = c.dims.iter().fold(Message::default(), |m, d| m.int(1, *d));
    Ok(dims.int(2, element_type(c.dtype)?.into()).bytes(8, name.as_bytes()).bytes(9, &c.bytes))
}

fn value_info(name: &str, dtype: DType, dims: &[i64]) -> Result<Message, String> {
    let shape = dims.iter().fold(Message::default(), |m, d| m.message(1, Message::default().int(1, *d)));
    let tensor = Message::default().int(1, element_type(dtype)?.into()).message(2, shape);
    Ok(Message::default().bytes(1, name.as_bytes()).message(2, Message::default().message(1, tensor)))
}

/// The model that computes a row.
///
/// # Errors
/// Why there is none.
pub fn model(task: &Task) -> Result<Model, String> {
    let mut model = Model { op: "", attributes: Vec::new(), sources: Vec::new(), version: 21 };
    // Most nodes take the row's inputs as they are.
    let given = |i: usize| Source::Operand(i, task.inputs[i].dims.clone());
    let all: Vec<Source> = (0..task.inputs.len()).map(given).collect();
    let axis = || ("axis", Attribute::Int(task.ints.first().copied().unwrap_or(0)));
    if let Some(op) = same_operands(task.call) {
        (model.op, model.sources) = (op, all);
        if task.call == "gelu_tanh" {
            model.attributes.push(("approximate", Attribute::Text("tanh")));
        }
        return Ok(model);
    }
    let out = &task.output;
    let (rank, ints) = (out.dims.len(), &task.ints);
    match task.call {
        "cast" => {
            (model.op, model.sources) = ("Cast", all);
            model.attributes.push(("to", Attribute::Int(element_type(out.dtype)?.into())));
        }
        "expand" => {
            (model.op, model.sources) = ("Expand", all);
            model.sources.push(Source::Constant(Constant::ints(&out.dims)));
        }
        "softmax" | "log_softmax" => {
            (model.op, model.sources) = (if task.call == "softmax" { "Softmax" } else { "LogSoftmax" }, all);
            model.attributes.push(axis());
        }
        "layer_norm" | "rms_norm" => {
            let layer = task.call == "layer_norm";
            (model.op, model.sources) = (if layer { "LayerNormalization" } else { "RMSNormalization" }, all);
            model.version = if layer { 21 } else { 23 };
            model.attributes = vec![("axis", Attribute::Int(-1)), ("epsilon", Attribute::Float(1e-5))];
        }
        "argmax" | "argmin" => {
            (model.op, model.sources) = (if task.call == "argmax" { "ArgMax" } else { "ArgMin" }, all);
            model.attributes = vec![axis(), ("keepdims", Attribute::Int(0))];
        }
        "reduce_sum" | "reduce_mean" | "reduce_max" | "reduce_min" | "reduce_prod" => {
            model.op = match task.call {
                "reduce_sum" => "ReduceSum",
                "reduce_mean" => "ReduceMean",
                "reduce_max" => "ReduceMax",
                "reduce_min" => "ReduceMin",
                _ => "ReduceProd",
            };
            model.sources = all;
            model.sources.push(Source::Constant(Constant::ints(ints)));
            model.attributes.push(("keepdims", Attribute::Int(0)));
        }
        "gather" => {
            (model.op, model.sources) = ("Gather", vec![given(1), given(0)]);
            model.attributes.push(axis());
        }
        "batch_gather" => {
            let mut index = task.inputs[0].dims.clone();
            index.push(1);
            (model.op, model.sources) = ("GatherND", vec![given(1), Source::Operand(0, index)]);
            model.attributes.push(("batch_dims", Attribute::Int(1)));
        }
        "permute" => {
            (model.op, model.sources) = ("Transpose", all);
            model.attributes.push(("perm", Attribute::Ints(ints.clone())));
        }
        "pad" => {
            (model.op, model.sources) = ("Pad", all);
            model.sources.push(Source::Constant(Constant::ints(ints)));
        }
        "slice" => {
            let (starts, steps) = ints.split_at(rank);
            let ends: Vec<i64> = (0..rank).map(|d| starts[d] + (out.dims[d] - 1) * steps[d] + 1).collect();
            let axes: Vec<i64> = (0..rank as i64).collect();
            (model.op, model.sources) = ("Slice", all);
            model.sources.extend([starts, &ends, &axes, steps].map(|x| Source::Constant(Constant::ints(x))));
        }
        "one_hot" => {
            let off_on = match out.dtype {
                DType::F32 => [0f32, 1.0].iter().flat_map(|v| v.to_le_bytes()).collect(),
                DType::I64 => [0i64, 1].iter().flat_map(|v| v.to_le_bytes()).collect(),
                other => return Err(format!("no one-hot of {other} here")),
            };
            (model.op, model.sources) = ("OneHot", all);
            let depth = Constant { dims: Vec::new(), ..Constant::ints(&[out.dims[1]]) };
            model.sources.push(Source::Constant(depth));
            model.sources.push(Source::Constant(Constant { dtype: out.dtype, dims: vec![2], bytes: off_on }));
        }
        "matmul" if ints.iter().all(|t| *t == 0) => (model.op, model.sources) = ("MatMul", all),
        "matmul" if rank == 2 => {
            (model.op, model.sources) = ("Gemm", all);
            model.attributes = vec![("transA", Attribute::Int(ints[0])), ("transB", Attribute::Int(ints[1]))];
        }
        "matmul_const_b" => {
            model.op = "MatMul";
            model.sources = vec![given(0), Source::Constant(constant(&task.inputs[1]))];
        }
        other => return Err(format!("no call {other}")),
    }
    Ok(model)
}

/// A copy of an operand.
fn constant(t: &Tensor) -> Constant {
    let size = t.count() * t.dtype.bytes_for_bounds() as usize;
    let from = std::ptr::with_exposed_provenance::<u8>(t.address as usize);
    // SAFETY: an operand of a row is live, initialised memory of this size that nobody writes now.
    let bytes = unsafe { std::slice::from_raw_parts(from, size) }.to_vec();
    Constant { dtype: t.dtype, dims: t.dims.clone(), bytes }
}

/// Calls whose node takes the row's inputs in order and has no attributes (but for one).
fn same_operands(call: &str) -> Option<&'static str> {
    Some(match call {
        "add" => "Add",
        "sub" => "Sub",
        "mul" => "Mul",
        "div" => "Div",
        "max" => "Max",
        "min" => "Min",
        "pow" => "Pow",
        "less_than" => "Less",
        "equal" => "Equal",
        "logical_and" => "And",
        "sum_n" => "Sum",
        "where" => "Where",
        "copy" => "Identity",
        "relu" => "Relu",
        "exp" => "Exp",
        "log" => "Log",
        "sqrt" => "Sqrt",
        "sin" => "Sin",
        "cos" => "Cos",
        "tanh" => "Tanh",
        "sigmoid" => "Sigmoid",
        "erf" => "Erf",
        "mish" => "Mish",
        "gelu_erf" | "gelu_tanh" => "Gelu",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_encoded_as_protobuf_wants() {
        let m = Message::default().int(1, 300).bytes(2, b"ab").float(5, 1.0).int(3, -1);
        let mut want = vec![8, 0xac, 2, 18, 2, b'a', b'b', 45, 0, 0, 0x80, 0x3f, 24];
        want.extend([0xff; 9]);
        want.push(1);
        assert_eq!(m.0, want);
    }

    #[test]
    fn a_model_has_its_parts() {
        let tensor = |dims: &[i64]| Tensor { address: 64, dtype: DType::F32, dims: dims.to_vec() };
        let task =
            Task { call: "softmax", ints: vec![1], inputs: vec![tensor(&[2, 3])], output: tensor(&[2, 3]) };
        let bytes = model(&task).unwrap().encode(&task).unwrap();
        let has = |text: &[u8]| bytes.windows(text.len()).any(|w| w == text);
        assert!(has(b"Softmax") && has(b"axis") && has(b"x0") && has(b"y"));
        let none = model(&Task { call: "unheard", ..task }).err().unwrap();
        assert!(none.contains("unheard"));
    }
}

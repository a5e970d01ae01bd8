//! One row of the benchmark tables: a primitive, with sizes and what the operands hold.
//!
//! Rows are data. An op is named as its schema names it, so a row of an op that a device lacks, or that this build
//! does not know, is unsupported rather than an error.

use ep_core::{DType, Scalar};

/// Rows that are judged together: the mean ratio to the peers is taken over a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Elementwise ops, casts, fills and copies.
    Elementwise,
    /// Softmax, log-softmax and their backwards.
    Softmax,
    /// Gather, scatter, pad, one-hot, windows.
    Gather,
    /// Permutations.
    Permute,
    /// Matrix products.
    Matmul,
    /// Reductions and normalisation.
    Reduce,
    /// Tensors so small that the launch is what is measured.
    Small,
}

impl Family {
    /// All of them, in the order of reports.
    pub const ALL: [Family; 7] = [
        Family::Elementwise,
        Family::Softmax,
        Family::Gather,
        Family::Permute,
        Family::Matmul,
        Family::Reduce,
        Family::Small,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Family::Elementwise => "elementwise, cast, fill, copy",
            Family::Softmax => "softmax",
            Family::Gather => "gather, pad, one-hot",
            Family::Permute => "permute",
            Family::Matmul => "matmul",
            Family::Reduce => "reduce, norm",
            Family::Small => "small",
        }
    }
}

/// Which part of the table a row belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Sizes past the caches.
    Large,
    /// Sizes that fit the caches.
    Medium,
    /// A few elements.
    Small,
    /// An op and then a read of its output: what streaming stores cost the consumer.
    Chain,
    /// Every op in more dtypes and odd sizes.
    Grid,
}

impl Group {
    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Group::Large => "large",
            Group::Medium => "medium",
            Group::Small => "small",
            Group::Chain => "chain",
            Group::Grid => "grid",
        }
    }
}

/// What a source operand holds. Values are drawn from a fixed seed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Content {
    /// Normally distributed with this deviation; integers are rounded, bool is `> 0`.
    Normal(f32),
    /// Uniform in `0.05..1.05`: for logarithms, roots and divisors.
    Positive,
    /// Integers in `0..n`.
    Below(u64),
}

/// An operand that is only read.
#[derive(Clone, Debug)]
pub struct Input {
    /// Its name in the op's schema.
    pub name: &'static str,
    /// Element type.
    pub dtype: DType,
    /// Shape, for the peers.
    pub dims: Vec<i64>,
    /// What it holds.
    pub content: Content,
    /// Bytes that the op has to read of it; all of them unless the op picks some.
    pub moved: u64,
}

/// The operand that is written.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its name in the op's schema.
    pub name: &'static str,
    /// Element type.
    pub dtype: DType,
    /// Shape, for the peers.
    pub dims: Vec<i64>,
    /// Whether its old content counts too; it starts as zeros.
    pub accumulates: bool,
}

/// What the peers are asked to compute: a name that each peer's program knows, with integers whose meaning
/// `benches/peers/README.md` gives. The tensors are the row's inputs and its output.
#[derive(Clone, Debug, Default)]
pub struct PeerCall {
    /// Such as `add` or `softmax`; empty: no peer has it.
    pub name: &'static str,
    /// Axes, permutations, paddings.
    pub ints: Vec<i64>,
}

/// A row.
#[derive(Clone, Debug)]
pub struct Row {
    /// What it is called in tables.
    pub op: String,
    /// The dtype in tables: the wider side's, or the data's.
    pub dtype: DType,
    /// The sizes in tables.
    pub shape: Vec<i64>,
    /// Part of the table.
    pub group: Group,
    /// Family.
    pub family: Family,
    /// The op's name.
    pub primitive: &'static str,
    /// Selectors of the descriptor.
    pub selectors: Vec<(&'static str, &'static str)>,
    /// Dtypes of the descriptor by role.
    pub roles: Vec<(&'static str, DType)>,
    /// Attributes of the descriptor.
    pub attrs: Vec<(&'static str, f64)>,
    /// Size arguments.
    pub sizes: Vec<(&'static str, i64)>,
    /// Dims arguments.
    pub dims: Vec<(&'static str, Vec<i64>)>,
    /// Scalar arguments.
    pub scalars: Vec<(&'static str, Scalar)>,
    /// What is read.
    pub inputs: Vec<Input>,
    /// What is written.
    pub output: Output,
    /// Arithmetic operations; 0 where bytes are what counts.
    pub flops: u64,
    /// What the peers do.
    pub peer: PeerCall,
    /// Whether a read of the whole output belongs to the timed work.
    pub then_read: bool,
}

fn bytes(dtype: DType, dims: &[i64]) -> u64 {
    dims.iter().map(|d| *d as u64).product::<u64>() * dtype.bytes_for_bounds()
}

impl Row {
    /// A row without operands.
    pub fn new(op: impl Into<String>, primitive: &'static str, family: Family, dtype: DType) -> Row {
        let output = Output { name: "dst", dtype, dims: Vec::new(), accumulates: false };
        Row {
            op: op.into(),
            dtype,
            shape: Vec::new(),
            group: Group::Grid,
            family,
            primitive,
            selectors: Vec::new(),
            roles: Vec::new(),
            attrs: Vec::new(),
            sizes: Vec::new(),
            dims: Vec::new(),
            scalars: Vec::new(),
            inputs: Vec::new(),
            output,
            flops: 0,
            peer: PeerCall::default(),
            then_read: false,
        }
    }

    /// Puts it into a part of the table.
    #[must_use]
    pub fn group(mut self, group: Group) -> Row {
        self.group = group;
        self
    }

    /// Sets the name in tables.
    #[must_use]
    pub fn named(mut self, op: impl Into<String>) -> Row {
        self.op = op.into();
        self
    }

    /// Sets the sizes in tables.
    #[must_use]
    pub fn shape(mut self, shape: &[i64]) -> Row {
        self.shape = shape.to_vec();
        self
    }

    /// Sets a selector.
    #[must_use]
    pub fn selector(mut self, name: &'static str, value: &'static str) -> Row {
        self.selectors.push((name, value));
        self
    }

    /// Sets a dtype of the descriptor.
    #[must_use]
    pub fn role(mut self, name: &'static str, dtype: DType) -> Row {
        self.roles.push((name, dtype));
        self
    }

    /// Sets an attribute.
    #[must_use]
    pub fn attr(mut self, name: &'static str, value: f64) -> Row {
        self.attrs.push((name, value));
        self
    }

    /// Sets size arguments.
    #[must_use]
    pub fn sizes(mut self, sizes: &[(&'static str, i64)]) -> Row {
        self.sizes.extend_from_slice(sizes);
        self
    }

    /// Sets a dims argument.
    #[must_use]
    pub fn dims(mut self, name: &'static str, dims: &[i64]) -> Row {
        self.dims.push((name, dims.to_vec()));
        self
    }

    /// Sets a scalar argument.
    #[must_use]
    pub fn scalar(mut self, name: &'static str, value: Scalar) -> Row {
        self.scalars.push((name, value));
        self
    }

    /// Adds an operand that is read, all of it.
    #[must_use]
    pub fn input(mut self, name: &'static str, dtype: DType, dims: &[i64], content: Content) -> Row {
        let moved = bytes(dtype, dims);
        self.inputs.push(Input { name, dtype, dims: dims.to_vec(), content, moved });
        self
    }

    /// Sets what the last input holds.
    ///
    /// # Panics
    /// Without an input.
    #[must_use]
    pub fn holding(mut self, content: Content) -> Row {
        self.inputs.last_mut().expect("an input").content = content;
        self
    }

    /// Says how many bytes of the last input are read.
    ///
    /// # Panics
    /// Without an input.
    #[must_use]
    pub fn moving(mut self, bytes: u64) -> Row {
        self.inputs.last_mut().expect("an input").moved = bytes;
        self
    }

    /// Sets the operand that is written.
    #[must_use]
    pub fn output(mut self, name: &'static str, dtype: DType, dims: &[i64]) -> Row {
        self.output = Output { name, dtype, dims: dims.to_vec(), accumulates: false };
        self
    }

    /// Says that the output is read too.
    #[must_use]
    pub fn accumulating(mut self) -> Row {
        self.output.accumulates = true;
        self
    }

    /// Sets the number of operations.
    #[must_use]
    pub fn flops(mut self, flops: u64) -> Row {
        self.flops = flops;
        self
    }

    /// Sets what the peers do.
    #[must_use]
    pub fn peer(mut self, name: &'static str, ints: &[i64]) -> Row {
        self.peer = PeerCall { name, ints: ints.to_vec() };
        self
    }

    /// The key of a row in records and in `--filter`: op, dtype and shape.
    pub fn id(&self) -> String {
        format!("{} {} {}", self.op, self.dtype, self.shape_text())
    }

    /// The sizes as text, such as `32768x4096`.
    pub fn shape_text(&self) -> String {
        let parts: Vec<_> = self.shape.iter().map(i64::to_string).collect();
        if parts.is_empty() { "1".into() } else { parts.join("x") }
    }

    /// Bytes that have to be read.
    pub fn bytes_read(&self) -> u64 {
        let output = if self.output.accumulates || self.then_read { self.output.bytes() } else { 0 };
        self.inputs.iter().map(|i| i.moved).sum::<u64>() + output
    }

    /// Bytes that have to be read and written.
    pub fn bytes_moved(&self) -> u64 {
        self.bytes_read() + self.output.bytes()
    }

    /// Bytes of all operands.
    pub fn footprint(&self) -> u64 {
        self.inputs.iter().map(Input::bytes).sum::<u64>() + self.output.bytes()
    }
}

impl Input {
    /// Bytes of the operand.
    pub fn bytes(&self) -> u64 {
        bytes(self.dtype, &self.dims)
    }
}

impl Output {
    /// Bytes of the operand.
    pub fn bytes(&self) -> u64 {
        bytes(self.dtype, &self.dims)
    }
}

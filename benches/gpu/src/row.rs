//! Rows as `benches/peers/gpu_rows.py` prints them.

use ep_core::{DType, Error, Result};
use serde::Deserialize;
use std::collections::BTreeMap;

/// What an input holds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Numbers from 0 to below this.
    Below(u64),
    /// `normal`: both signs, around 1; `unit`: between 0 and 1.
    Named(String),
}

/// An operand.
#[derive(Debug, Clone, Deserialize)]
pub struct Tensor {
    /// The operand's name.
    pub name: String,
    /// Its dtype's name.
    pub dtype: String,
    /// Its shape.
    pub dims: Vec<i64>,
    /// What it holds.
    pub content: Content,
    /// Whether all rotated launches read the same one.
    pub shared: bool,
}

impl Tensor {
    /// Its dtype.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown one.
    pub fn dtype(&self) -> Result<DType> {
        let known = DType::ALL.iter().find(|d| d.to_string() == self.dtype);
        known.copied().ok_or_else(|| Error::invalid(format!("`{}`: no dtype of the core", self.dtype)))
    }

    /// Its elements.
    pub fn count(&self) -> usize {
        self.dims.iter().product::<i64>() as usize
    }
}

/// A row: one launch of a primitive.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "documented where the rows are made")]
pub struct Row {
    pub group: String,
    pub op: String,
    pub dtype: String,
    pub shape: String,
    pub primitive: String,
    pub selectors: BTreeMap<String, String>,
    pub roles: BTreeMap<String, String>,
    pub attrs: BTreeMap<String, f64>,
    pub limits: BTreeMap<String, u64>,
    pub sizes: BTreeMap<String, i64>,
    pub dims: BTreeMap<String, Vec<i64>>,
    pub scalars: BTreeMap<String, f64>,
    pub inputs: Vec<Tensor>,
    pub output: Tensor,
    pub shift: usize,
    pub bytes: u64,
    pub flops: u64,
}

impl Row {
    /// Its name in tables.
    pub fn name(&self) -> String {
        format!("{} {} {}", self.op, self.dtype, self.shape)
    }
}

/// Reads a line of JSON for each row.
///
/// # Errors
/// `InvalidArgument` with the line's number.
pub fn read(text: &str) -> Result<Vec<Row>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parse = |(i, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|e| Error::invalid(format!("line {} of the rows: {e}", i + 1)))
    };
    lines.map(parse).collect()
}

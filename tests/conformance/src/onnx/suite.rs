//! The suite that `tests/conformance/onnx/generate.py` writes: its documentation has the format.

use ep_core::{DType, Error, Result};
use primitives::reference::Data;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The format that is read here.
const FORMAT: u32 = 1;
/// The index of a suite.
const INDEX: &str = "suite.json";
/// The content of its tensors.
const TENSORS: &str = "tensors.bin";

/// A suite: cases, and the content of their tensors.
#[derive(Debug)]
pub struct Suite {
    /// The version of the package that it comes from.
    pub onnx: String,
    /// In the order of the names.
    pub cases: Vec<Case>,
    blob: Vec<u8>,
}

#[derive(Deserialize)]
struct Index {
    format: u32,
    onnx: String,
    cases: Vec<Case>,
}

/// A model of one operator or a few, with what it has to give for some input.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Case {
    /// `test_softmax_axis_0`.
    pub name: String,
    /// The operator that it is about.
    pub op: String,
    /// The version of the operators.
    pub opset: i64,
    /// Relative tolerance.
    pub rtol: f64,
    /// Absolute tolerance.
    pub atol: f64,
    /// Why there is nothing more of it.
    #[serde(default)]
    pub skip: Option<String>,
    /// What is given.
    #[serde(default)]
    pub inputs: Vec<Named>,
    /// What has to come out.
    #[serde(default)]
    pub outputs: Vec<Named>,
    /// The model.
    #[serde(default)]
    pub nodes: Vec<Node>,
}

/// A tensor with the name that it has in the model.
#[derive(Clone, Debug, Deserialize)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// Its content.
    pub tensor: Tensor,
}

/// Where the content of a tensor is.
#[derive(Clone, Debug, Deserialize)]
pub struct Tensor {
    dtype: String,
    /// Its dimensions.
    pub shape: Vec<i64>,
    at: usize,
}

/// An operator in a model.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Node {
    /// Its name, behind its domain and a dot if that is not the default one.
    pub op: String,
    /// Names of values; empty where an optional one is absent.
    pub inputs: Vec<String>,
    /// Names of values; empty where nobody wants it.
    pub outputs: Vec<String>,
    /// Attributes by name.
    pub attrs: BTreeMap<String, Attribute>,
}

/// An attribute of an operator.
#[derive(Clone, Debug, Deserialize)]
pub enum Attribute {
    /// An integer.
    #[serde(rename = "i")]
    Int(i64),
    /// A float, as text.
    #[serde(rename = "f")]
    Float(String),
    /// A text.
    #[serde(rename = "s")]
    Text(String),
    /// Integers.
    #[serde(rename = "is")]
    Ints(Vec<i64>),
    /// Floats, as text.
    #[serde(rename = "fs")]
    Floats(Vec<String>),
    /// A tensor.
    #[serde(rename = "t")]
    Tensor(Tensor),
    /// A graph, by name only.
    #[serde(rename = "g")]
    Graph(String),
}

impl Suite {
    /// Reads a suite from its folder.
    ///
    /// # Errors
    /// When there is none, with how to make one; when it has another format, or content that does not fit.
    pub fn read(folder: &Path) -> Result<Suite> {
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read(&path).map_err(|e| {
                Error::not_found(format!(
                    "cannot read {}: {e}; make the suite with: python3 tests/conformance/onnx/generate.py {}",
                    path.display(),
                    folder.display()
                ))
            })
        };
        let (index, blob) = (read(INDEX)?, read(TENSORS)?);
        Suite::parse(&index, blob).map_err(|e| e.context(folder.display()))
    }

    fn parse(index: &[u8], blob: Vec<u8>) -> Result<Suite> {
        let index: Index = serde_json::from_slice(index).map_err(|e| {
            Error::invalid(format!("{INDEX} is no suite ({e}); make it again with generate.py"))
        })?;
        if index.format != FORMAT {
            return Err(Error::invalid(format!(
                "{INDEX} has format {}, and {FORMAT} is read; make it again with the generate.py of this checkout",
                index.format
            )));
        }
        let suite = Suite { onnx: index.onnx, cases: index.cases, blob };
        for case in &suite.cases {
            let attributes = case.nodes.iter().flat_map(|n| n.attrs.values());
            let tensors = attributes.filter_map(|a| match a {
                Attribute::Tensor(t) => Some(t),
                _ => None,
            });
            for tensor in case.inputs.iter().chain(&case.outputs).map(|n| &n.tensor).chain(tensors) {
                suite.data(tensor).map_err(|e| e.context(&case.name))?;
            }
        }
        Ok(suite)
    }

    /// The content of a tensor.
    ///
    /// # Errors
    /// `InvalidArgument` for a dtype that is not known, and where the content is not all there.
    pub fn data(&self, tensor: &Tensor) -> Result<Data> {
        let dtype = DType::by_name(&tensor.dtype)?;
        let size = dtype.bytes_for_bounds();
        let bytes = tensor.shape.iter().try_fold(size, |n, d| n.checked_mul(u64::try_from(*d).ok()?));
        let end = bytes.and_then(|n| tensor.at.checked_add(usize::try_from(n).ok()?));
        let content = end.and_then(|end| self.blob.get(tensor.at..end)).ok_or_else(|| {
            Error::invalid(format!(
                "a tensor of {} {:?} at byte {} is not in {TENSORS}, which has {}",
                tensor.dtype,
                tensor.shape,
                tensor.at,
                self.blob.len()
            ))
        })?;
        Ok(Data { dtype, bytes: content.to_vec() })
    }

    /// The case of a name.
    pub fn case(&self, name: &str) -> Option<&Case> {
        self.cases.iter().find(|c| c.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX: &str = r#"{"format": 1, "onnx": "1", "cases": [
        {"name": "a", "op": "Clip", "opset": 13, "rtol": 0.1, "atol": 0.0,
         "inputs": [{"name": "x", "tensor": {"dtype": "i16", "shape": [2, 1], "at": 2}}], "outputs": [],
         "nodes": [{"op": "Clip", "inputs": ["x", ""], "outputs": ["y"], "attrs": {
            "f": {"f": "-inf"}, "i": {"i": 3}, "is": {"is": [1, 2]}, "s": {"s": "text"}}}]},
        {"name": "b", "op": "If", "opset": 13, "rtol": 0.1, "atol": 0.0, "skip": "none"}]}"#;

    #[test]
    fn an_index_and_its_tensors_are_read() {
        let suite = Suite::parse(INDEX.as_bytes(), vec![9, 9, 1, 0, 2, 0]).unwrap();
        let case = suite.case("a").unwrap();
        let data = suite.data(&case.inputs[0].tensor).unwrap();
        assert_eq!((data.dtype, data.bytes), (DType::I16, vec![1, 0, 2, 0]));
        assert!(matches!(&case.nodes[0].attrs["f"], Attribute::Float(f) if f == "-inf"));
        assert_eq!(suite.case("b").unwrap().skip.as_deref(), Some("none"));
        assert!(suite.case("c").is_none());
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let short = Suite::parse(INDEX.as_bytes(), vec![0; 5]).unwrap_err();
        assert!(short.message().contains("a: ") && short.message().contains("which has 5"), "{short}");
        let format =
            Suite::parse(INDEX.replace("1, \"onnx", "2, \"onnx").as_bytes(), vec![0; 6]).unwrap_err();
        assert!(format.message().contains("format 2"), "{format}");
        let dtype = Suite::parse(INDEX.replace("i16", "i17").as_bytes(), vec![0; 6]).unwrap_err();
        assert!(dtype.message().contains("i17"), "{dtype}");
        let none = Suite::read(Path::new("/nonexistent")).unwrap_err();
        assert!(none.message().contains("generate.py"), "{none}");
    }
}

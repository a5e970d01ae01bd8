//! The libraries that we are compared with. All are called as C or C++ calls them, in this process, on the same
//! memory.

mod adapter;
mod mkl;
mod numpy;
mod onnx;
mod ort;
pub mod plain;

use ep_benches::ours::Operands;
use ep_benches::row::Row;
use ep_core::DType;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What `install.sh` writes: where the peers are.
#[derive(Clone, Debug, Deserialize)]
pub struct Installed {
    pub torch: Option<PathBuf>,
    pub onnxruntime: Option<PathBuf>,
    pub mkl: Option<PathBuf>,
    pub python: Option<PathBuf>,
    pub python_home: Option<PathBuf>,
    #[serde(default)]
    pub python_path: Vec<PathBuf>,
    #[serde(default)]
    pub versions: BTreeMap<String, String>,
}

impl Installed {
    /// Reads `peers.json`.
    pub fn read(path: &Path) -> Result<Installed, String> {
        let text = std::fs::read_to_string(path).map_err(|e| {
            format!("cannot read {}: {e}; benches/peers/install.sh DIR writes it", path.display())
        })?;
        serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// The environment that a process with the peers in it needs.
    pub fn environment(&self, threads: usize) -> Vec<(&'static str, String)> {
        let n = threads.to_string();
        let mut all = vec![
            ("OMP_NUM_THREADS", n.clone()),
            ("MKL_NUM_THREADS", n.clone()),
            ("OPENBLAS_NUM_THREADS", n),
            ("MKL_THREADING_LAYER", "GNU".into()),
            ("CUDA_VISIBLE_DEVICES", String::new()),
        ];
        if let Some(home) = &self.python_home {
            all.push(("PYTHONHOME", home.display().to_string()));
        }
        let path: Vec<_> = self.python_path.iter().map(|p| p.display().to_string()).collect();
        all.push(("PYTHONPATH", path.join(":")));
        if let Some(dir) = self.mkl.as_deref().and_then(Path::parent) {
            let known = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
            all.push(("LD_LIBRARY_PATH", format!("{}:{known}", dir.display())));
        }
        all
    }
}

/// Memory of a row's operand.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub address: u64,
    pub dtype: DType,
    pub dims: Vec<i64>,
}

impl Tensor {
    /// Elements.
    pub fn count(&self) -> usize {
        self.dims.iter().product::<i64>() as usize
    }
}

/// A row that a peer is asked to compute. The memory lives as long as the work that is made from it.
#[derive(Clone, Debug)]
pub struct Task {
    pub call: &'static str,
    pub ints: Vec<i64>,
    pub inputs: Vec<Tensor>,
    pub output: Tensor,
}

impl Task {
    /// That of a row on operands.
    pub fn new(row: &Row, operands: &Operands) -> Task {
        let inputs = row.inputs.iter().zip(&operands.inputs);
        let inputs =
            inputs.map(|(x, b)| Tensor { address: b.address(), dtype: x.dtype, dims: x.dims.clone() });
        let output = &row.output;
        let address = operands.output.address();
        let output = Tensor { address, dtype: output.dtype, dims: output.dims.clone() };
        Task { call: row.peer.name, ints: row.peer.ints.clone(), inputs: inputs.collect(), output }
    }
}

/// A row that a peer has prepared.
pub trait Work {
    /// Computes it so often.
    ///
    /// # Errors
    /// The peer's.
    fn run(&mut self, times: usize) -> Result<(), String>;

    /// Whether the result goes to the row's output, so that it can be compared with ours.
    fn checked(&self) -> bool {
        true
    }
}

/// A library.
pub trait Peer {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// Gets ready to compute a row.
    ///
    /// # Errors
    /// Why it cannot.
    fn prepare(&self, task: &Task) -> Result<Box<dyn Work + '_>, String>;
}

/// Opens all peers that are installed; also why the others are not.
pub fn open(installed: &Installed, threads: usize) -> (Vec<Box<dyn Peer>>, Vec<String>) {
    let mut peers: Vec<Box<dyn Peer>> = Vec::new();
    let mut missing = Vec::new();
    let mut add = |name: &str, peer: Result<Box<dyn Peer>, String>| match peer {
        Ok(peer) => peers.push(peer),
        Err(why) => missing.push(format!("{name}: {why}")),
    };
    fn boxed<P: Peer + 'static>(peer: Result<P, String>) -> Result<Box<dyn Peer>, String> {
        peer.map(|p| Box::new(p) as Box<dyn Peer>)
    }
    let absent = || Err("not installed".to_owned());
    add(
        "torch",
        installed.torch.as_ref().map_or_else(absent, |p| boxed(adapter::Adapter::open("torch", p, threads))),
    );
    add(
        "onnxruntime",
        installed.onnxruntime.as_ref().map_or_else(absent, |p| boxed(ort::Ort::open(p, threads))),
    );
    add("numpy", installed.python.as_ref().map_or_else(absent, |p| boxed(numpy::NumPy::open(p))));
    let mkl = |part| installed.mkl.as_ref().map_or_else(absent, |p| boxed(mkl::Mkl::open(p, threads, part)));
    add("mkl", mkl(mkl::Part::Matrices));
    add("mkl_vml", mkl(mkl::Part::Vectors));
    add(plain::NAME, Ok(Box::new(plain::Plain)));
    (peers, missing)
}

/// A function of an open library.
///
/// # Safety
/// `F` is the type of the function of this name.
unsafe fn function<F: Copy>(library: &libloading::Library, name: &str) -> Result<F, String> {
    // SAFETY: as the caller promises.
    unsafe { library.get::<F>(name) }.map(|f| *f).map_err(|e| format!("no function {name}: {e}"))
}

/// Who sees the functions of a library that is loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Whoever opened it: two libraries may have functions of one name.
    Own,
    /// Libraries that are loaded later too.
    Everyone,
}

/// Opens a library that then stays open for the rest of the process: none of the peers can be unloaded.
fn library(path: &Path, scope: Scope) -> Result<&'static libloading::Library, String> {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
    let seen = if scope == Scope::Everyone { RTLD_GLOBAL } else { RTLD_LOCAL };
    // SAFETY: whoever installs a peer trusts the code that runs when it is loaded.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | seen) };
    library.map(|l| &*Box::leak(Box::new(l.into()))).map_err(|e| e.to_string())
}

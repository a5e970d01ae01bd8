//! Intel's MKL, called through its C interface: products, vector math, and transposition.

use super::{Peer, Scope, Task, Tensor, Work, function, library};
use ep_core::DType;
use libloading::Library;
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::ptr::with_exposed_provenance_mut;

const ROW_MAJOR: c_int = 101;
const PLAIN: c_int = 111;
const TRANSPOSED: c_int = 112;

type Gemm<T> = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    T,
    *const c_void,
    c_int,
    *const c_void,
    c_int,
    T,
    *mut c_void,
    c_int,
);
type BatchGemm = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    f32,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    c_int,
    c_int,
    f32,
    *mut c_void,
    c_int,
    c_int,
    c_int,
);
type Vector = unsafe extern "C" fn(c_int, *const c_void, *mut c_void);
type Transpose =
    unsafe extern "C" fn(c_char, c_char, usize, usize, f32, *const c_void, usize, *mut c_void, usize);

/// A loaded MKL.
pub struct Mkl {
    library: &'static Library,
    part: Part,
}

/// Its two parts are two peers: vector math is plain functions without any dispatch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Products and transposition.
    Matrices,
    /// Vector math, in its default accuracy.
    Vectors,
}

impl Mkl {
    pub fn open(path: &Path, threads: usize, part: Part) -> Result<Mkl, String> {
        let library = library(path, Scope::Own)?;
        // SAFETY: the function's type.
        unsafe {
            let set: unsafe extern "C" fn(c_int) = function(library, "MKL_Set_Num_Threads")?;
            set(threads as c_int);
        }
        Ok(Mkl { library, part })
    }

    fn vector(&self, task: &Task) -> Result<Box<dyn Work>, String> {
        let suffix = match task.call {
            "exp" => "Exp",
            "log" => "Ln",
            "sqrt" => "Sqrt",
            "rsqrt" => "InvSqrt",
            "sin" => "Sin",
            "cos" => "Cos",
            "tanh" => "Tanh",
            "erf" => "Erf",
            "expm1" => "Expm1",
            other => return Err(format!("no call {other}")),
        };
        let prefix = match task.output.dtype {
            DType::F32 => "vs",
            DType::F64 => "vd",
            other => return Err(format!("no vectors of {other}")),
        };
        // SAFETY: the type of all of these functions.
        let f: Vector = unsafe { function(self.library, &format!("{prefix}{suffix}")) }?;
        let (n, x, y) = (task.output.count() as c_int, pointer(&task.inputs[0]), pointer(&task.output));
        // SAFETY: both operands have `n` elements and outlive the work.
        Ok(work(move || unsafe { f(n, x, y) }))
    }

    fn product(&self, task: &Task) -> Result<Box<dyn Work>, String> {
        let (a, b, c) = (&task.inputs[0], &task.inputs[1], &task.output);
        if a.dims.len() == 3 && b.dims.len() == 3 && a.dtype == DType::F32 {
            return self.batch(a, b, c);
        }
        if a.dims.len() != 2 || b.dims.len() != 2 {
            return Err("no broadcast products".into());
        }
        let int = |i: i64| i as c_int;
        let (m, n) = (int(c.dims[0]), int(c.dims[1]));
        let k = int(if task.ints[0] == 0 { a.dims[1] } else { a.dims[0] });
        let (ta, tb) = (transposed(task.ints[0]), transposed(task.ints[1]));
        let (lda, ldb) = (int(a.dims[1]), int(b.dims[1]));
        let (pa, pb, pc) = (pointer(a), pointer(b), pointer(c));
        match a.dtype {
            DType::F32 => {
                // SAFETY: the function's type.
                let f: Gemm<f32> = unsafe { function(self.library, "cblas_sgemm") }?;
                // SAFETY: sizes and leading dimensions are those of the operands, which outlive the work.
                Ok(work(move || unsafe { f(ROW_MAJOR, ta, tb, m, n, k, 1.0, pa, lda, pb, ldb, 0.0, pc, n) }))
            }
            DType::F64 => {
                // SAFETY: the function's type.
                let f: Gemm<f64> = unsafe { function(self.library, "cblas_dgemm") }?;
                // SAFETY: as above.
                Ok(work(move || unsafe { f(ROW_MAJOR, ta, tb, m, n, k, 1.0, pa, lda, pb, ldb, 0.0, pc, n) }))
            }
            DType::BF16 => {
                // SAFETY: the function's type.
                let f: Gemm<f32> = unsafe { function(self.library, "cblas_gemm_bf16bf16f32") }?;
                // It writes f32, so it needs memory of its own.
                let mut result = vec![0f32; c.count()];
                let run = move || {
                    let pc = result.as_mut_ptr().cast();
                    // SAFETY: as above; the result has as many elements.
                    unsafe { f(ROW_MAJOR, ta, tb, m, n, k, 1.0, pa, lda, pb, ldb, 0.0, pc, n) };
                };
                Ok(Box::new(Call { run, checked: false }))
            }
            other => Err(format!("no products of {other}")),
        }
    }

    fn batch(&self, a: &Tensor, b: &Tensor, c: &Tensor) -> Result<Box<dyn Work>, String> {
        // SAFETY: the function's type.
        let f: BatchGemm = unsafe { function(self.library, "cblas_sgemm_batch_strided") }?;
        let [batch, m, k] = [a.dims[0], a.dims[1], a.dims[2]].map(|i| i as c_int);
        let n = b.dims[2] as c_int;
        let (pa, pb, pc) = (pointer(a), pointer(b), pointer(c));
        // SAFETY: sizes and strides are those of the operands, which outlive the work.
        Ok(work(move || unsafe {
            f(ROW_MAJOR, PLAIN, PLAIN, m, n, k, 1.0, pa, k, m * k, pb, n, k * n, 0.0, pc, n, m * n, batch);
        }))
    }

    fn transpose(&self, task: &Task) -> Result<Box<dyn Work>, String> {
        if task.ints != [1, 0] || task.output.dtype != DType::F32 {
            return Err("only matrices of f32".into());
        }
        // SAFETY: the function's type.
        let f: Transpose = unsafe { function(self.library, "MKL_Somatcopy") }?;
        let (rows, cols) = (task.inputs[0].dims[0] as usize, task.inputs[0].dims[1] as usize);
        let (from, to) = (pointer(&task.inputs[0]), pointer(&task.output));
        let (order, transpose) = (b'R' as c_char, b'T' as c_char);
        // SAFETY: the operands have these sizes and outlive the work.
        Ok(work(move || unsafe { f(order, transpose, rows, cols, 1.0, from, cols, to, rows) }))
    }
}

fn transposed(yes: i64) -> c_int {
    if yes == 0 { PLAIN } else { TRANSPOSED }
}

fn pointer(t: &Tensor) -> *mut c_void {
    with_exposed_provenance_mut(t.address as usize)
}

struct Call<F> {
    run: F,
    checked: bool,
}

fn work(run: impl FnMut() + 'static) -> Box<dyn Work> {
    Box::new(Call { run, checked: true })
}

impl<F: FnMut()> Work for Call<F> {
    fn run(&mut self, times: usize) -> Result<(), String> {
        (0..times).for_each(|_| (self.run)());
        Ok(())
    }

    fn checked(&self) -> bool {
        self.checked
    }
}

impl Peer for Mkl {
    fn name(&self) -> &'static str {
        if self.part == Part::Matrices { "mkl" } else { "mkl_vml" }
    }

    fn prepare(&self, task: &Task) -> Result<Box<dyn Work + '_>, String> {
        match (self.part, task.call) {
            (Part::Matrices, "matmul") => self.product(task),
            (Part::Matrices, "permute") => self.transpose(task),
            (Part::Matrices, other) => Err(format!("no call {other}")),
            (Part::Vectors, _) => self.vector(task),
        }
    }
}

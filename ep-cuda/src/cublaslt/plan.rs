//! Products: the algorithm that the library chose for a shape, calling it, and what it launches.

use super::{Algorithm, Found, Handle, Object, constant, status};
use crate::driver::{CuStream, Failed};
use crate::relaunch::Relaunch;
use ep_core::{DType, Error, Result};
use std::ffi::c_void;
use std::sync::Arc;

/// What all products of a primitive have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// Of all operands.
    pub data: DType,
    /// Whether a and b are stored transposed; complex ones are then conjugated too.
    pub transposed: [bool; 2],
    /// Whether f32 factors may lose bits.
    pub tf32: bool,
}

/// `cudaDataType` of the elements and of the factors, and `cublasComputeType_t`; none for dtypes that it does not have.
fn types(data: DType, tf32: bool) -> Option<[i32; 3]> {
    let single = if tf32 { constant::COMPUTE_32F_FAST_TF32 } else { constant::COMPUTE_32F };
    Some(match data {
        DType::F16 => [2, 0, constant::COMPUTE_32F],
        DType::BF16 => [14, 0, constant::COMPUTE_32F],
        DType::F32 => [0, 0, single],
        DType::F64 => [1, 1, constant::COMPUTE_64F],
        DType::COMPLEX64 => [4, 4, single],
        DType::COMPLEX128 => [5, 5, constant::COMPUTE_64F],
        _ => return None,
    })
}

/// Whether the library multiplies matrices of a dtype.
pub fn multiplies(data: DType) -> bool {
    types(data, false).is_some()
}

/// A dense row-major matrix as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// Rows as stored.
    pub rows: u64,
    /// Columns as stored.
    pub cols: u64,
    /// Elements from row to row.
    pub row_step: u64,
    /// Elements from matrix to matrix of the batch; 0: one for all.
    pub batch_step: u64,
    /// Bytes that the address is a multiple of: a power of two up to [`MOST_ALIGNMENT`](super::MOST_ALIGNMENT).
    pub alignment: u32,
}

/// A batch of products: what decides about the algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// a, b and c.
    pub matrices: [Matrix; 3],
    /// How many products.
    pub batch: i32,
    /// Bytes of workspace that may be used.
    pub workspace_bytes: u64,
}

/// A shape with the algorithm that was chosen for it.
pub struct Plan {
    handle: Arc<Handle>,
    desc: Object,
    /// Of a, b and c.
    layouts: [Object; 3],
    algorithm: Algorithm,
    workspace_bytes: u64,
}

/// Addresses of a launch.
#[derive(Debug, Clone, Copy)]
pub struct Operands {
    /// Of a, b and c.
    pub addresses: [u64; 3],
    /// Factors of the product and of the old c, as the dtype's type of factors, in its first bytes.
    pub factors: [[u64; 2]; 2],
    /// Memory of the device of the plan's size; anything where that is 0.
    pub workspace: u64,
}

impl Plan {
    /// Asks for an algorithm; none where the library has none for this shape.
    ///
    /// # Errors
    /// The library's; `Unsupported` for a dtype that it does not have.
    pub fn new(handle: &Arc<Handle>, task: Task, shape: &Shape) -> Result<Option<Plan>> {
        Plan::ask(handle, task, shape).map_err(|e| handle.context.explain(e, None))
    }

    fn ask(handle: &Arc<Handle>, task: Task, shape: &Shape) -> Result<Option<Plan>> {
        let library = &handle.library;
        let f = &library.functions;
        let [data, scale, compute] = types(task.data, task.tf32)
            .ok_or_else(|| Error::unsupported(format!("cuBLASLt does not multiply {}", task.data)))?;
        let _current = handle.context.enter()?;
        // SAFETY: valid out-pointers in this and the following calls.
        let desc = Object::new(library, "cublasLtMatmulDescCreate", f.desc_destroy, |out| unsafe {
            (f.desc_create)(out, compute, scale)
        })?;
        let turned = if task.data.is_complex() { constant::OP_C } else { constant::OP_T };
        // Its first factor is our second.
        let [a, b] = task.transposed;
        for (attribute, on) in [(constant::MATMUL_DESC_TRANSA, b), (constant::MATMUL_DESC_TRANSB, a)] {
            if on {
                desc.set("cublasLtMatmulDescSetAttribute", f.desc_set, attribute, turned)?;
            }
        }
        let layout = |matrix: &Matrix| -> Result<Object> {
            let step = |n: u64| {
                i64::try_from(n)
                    .map_err(|_| Error::unsupported(format!("a step of {n} elements between rows")))
            };
            let row_step = step(matrix.row_step)?;
            // SAFETY: as above.
            let layout =
                Object::new(library, "cublasLtMatrixLayoutCreate", f.layout_destroy, |out| unsafe {
                    (f.layout_create)(out, data, matrix.cols, matrix.rows, row_step)
                })?;
            if shape.batch != 1 {
                let set = |attribute, value: i64| {
                    layout.set("cublasLtMatrixLayoutSetAttribute", f.layout_set, attribute, value)
                };
                layout.set(
                    "cublasLtMatrixLayoutSetAttribute",
                    f.layout_set,
                    constant::MATRIX_LAYOUT_BATCH_COUNT,
                    shape.batch,
                )?;
                set(constant::MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, step(matrix.batch_step)?)?;
            }
            Ok(layout)
        };
        let [a, b, c] = &shape.matrices;
        let layouts = [layout(a)?, layout(b)?, layout(c)?];
        // SAFETY: as above.
        let preference =
            Object::new(library, "cublasLtMatmulPreferenceCreate", f.preference_destroy, |out| unsafe {
                (f.preference_create)(out)
            })?;
        let set = "cublasLtMatmulPreferenceSetAttribute";
        preference.set(
            set,
            f.preference_set,
            constant::MATMUL_PREF_MAX_WORKSPACE_BYTES,
            shape.workspace_bytes as usize,
        )?;
        // Other schemes round parts of a sum to the type of c before they meet.
        preference.set(
            set,
            f.preference_set,
            constant::MATMUL_PREF_REDUCTION_SCHEME_MASK,
            constant::REDUCTION_SCHEME_COMPUTE_TYPE,
        )?;
        for (i, matrix) in [b, a, c, c].into_iter().enumerate() {
            let attribute = constant::MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i as i32;
            preference.set(set, f.preference_set, attribute, matrix.alignment)?;
        }
        let mut found = Found {
            algorithm: Algorithm([0; 8]),
            workspace_bytes: 0,
            state: 0,
            waves: 0.0,
            reserved: [0; 4],
        };
        let mut count = 0;
        let [a, b, c] = &layouts;
        // SAFETY: live objects, and room for one result, as is asked for.
        let result = unsafe {
            (f.heuristic)(
                handle.raw,
                desc.raw,
                b.raw,
                a.raw,
                c.raw,
                c.raw,
                preference.raw,
                1,
                &mut found,
                &mut count,
            )
        };
        let none = result == status::NOT_SUPPORTED || (result == 0 && (count == 0 || found.state != 0));
        if none {
            return Ok(None);
        }
        library.check("cublasLtMatmulAlgoGetHeuristic", result)?;
        let (algorithm, workspace_bytes) = (found.algorithm, found.workspace_bytes as u64);
        Ok(Some(Plan { handle: handle.clone(), desc, layouts, algorithm, workspace_bytes }))
    }

    /// Bytes of workspace that a launch needs.
    pub fn workspace_bytes(&self) -> u64 {
        self.workspace_bytes
    }

    /// Queues the products. The plan's context is current.
    ///
    /// # Safety
    /// The operands are valid for the plan's shape and aligned as it says, and used by nobody else in conflict until
    /// the work is done; so is the workspace. The stream is one of the plan's context.
    ///
    /// # Errors
    /// The library's.
    pub unsafe fn launch(&self, stream: CuStream, operands: &Operands) -> Result<()> {
        let at = |address: u64| std::ptr::with_exposed_provenance_mut::<c_void>(address as usize);
        let [a, b, c] = operands.addresses.map(at);
        let [alpha, beta] = [&operands.factors[0], &operands.factors[1]];
        let [a_layout, b_layout, c_layout] = &self.layouts;
        let library = &self.handle.library;
        // SAFETY: live objects of one handle, factors of the type that the plan was made for, memory as the caller
        // promises. c is read and written in place, with one layout, as the library allows.
        let result = unsafe {
            (library.functions.matmul)(
                self.handle.raw,
                self.desc.raw,
                alpha.as_ptr().cast(),
                b,
                b_layout.raw,
                a,
                a_layout.raw,
                beta.as_ptr().cast(),
                c,
                c_layout.raw,
                c,
                c_layout.raw,
                &self.algorithm,
                at(operands.workspace),
                self.workspace_bytes as usize,
                stream,
            )
        };
        library.check("cublasLtMatmul", result)
    }

    /// What [`Plan::launch`] would launch, without doing it; none where that is more than one kernel. A workspace is then the
    /// one that was recorded.
    ///
    /// # Errors
    /// The library's and the driver's.
    pub fn repeat(&self, operands: &Operands) -> Result<Option<Repeat>> {
        let recorded = Relaunch::of(&self.handle.context, |stream| {
            // SAFETY: a stream that captures: nothing uses the operands. It is of the handle's context.
            unsafe { self.launch(stream, operands) }
        });
        // The library does not tell a lost device from other failures.
        let recorded = recorded.map_err(|e| self.handle.context.explain(e, None))?;
        Ok(recorded.map(|launch| Repeat { launch, _handle: self.handle.clone() }))
    }
}

/// A launch of the library, with its operands, that can be done again without it.
pub struct Repeat {
    launch: Relaunch,
    /// The kernel is the library's, which stays as long as this does.
    _handle: Arc<Handle>,
}

impl Repeat {
    /// Queues the products. The plan's context is current.
    ///
    /// # Safety
    /// As for [`Plan::launch`] with the operands that were recorded.
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn launch(&self, stream: CuStream) -> std::result::Result<(), Failed> {
        // SAFETY: as the caller promises.
        unsafe { self.launch.launch(stream) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tf32_is_asked_for_only_where_it_is_allowed() {
        assert_eq!(types(DType::F32, false), Some([0, 0, 68]));
        assert_eq!(types(DType::F32, true), Some([0, 0, 77]));
        assert_eq!(types(DType::F64, true), Some([1, 1, 70]));
        assert_eq!(types(DType::BF16, true), Some([14, 0, 68]));
        assert_eq!(types(DType::I8, false), None);
    }
}

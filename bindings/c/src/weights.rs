//! Weights of many products, in the form that their device reads fastest.

use crate::given::{free, made, made_handle, object};
use crate::session::Session;
use crate::tensor::Tensor;
use ep_core::abi::EpStatus;
use ep_ops::operators::Prepacked;

/// The second factor of many products.
pub struct Weights {
    pub(crate) prepacked: Prepacked,
}

/// Brings a matrix `[k, n]` of the session's device into the form that products by it are fastest with: for weights that do not
/// change. A transposed view, of weights that are stored as `[n, k]`, need not be copied before. The tensor may be freed. Where
/// `ep_weights_bytes` is 0, its memory is kept and read as it is, and must not be written; else it may be written: by operators at
/// once, and by others, whose memory it is, after `ep_session_sync`.
///
/// # Safety
/// `session` and `matrix` are live handles, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_weights_new(
    session: *const Session,
    matrix: *const Tensor,
    out: *mut *mut Weights,
) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe {
        made_handle(out, || {
            let (session, matrix) = (object(session, "session")?, object(matrix, "matrix")?);
            Ok(Weights { prepacked: session.ops.prepack(&matrix.tensor)? })
        })
    }
}

/// Bytes that they take on the device besides those of the tensor; 0 where that is read as it is, and for null.
///
/// # Safety
/// `weights` is null or a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_weights_bytes(weights: *const Weights) -> u64 {
    // SAFETY: as the caller promises.
    unsafe { weights.as_ref() }.map_or(0, |w| w.prepacked.packed_bytes())
}

/// The product of `[.., k]` and weights `[k, n]`: a new tensor `[.., n]`. Work is queued: reading waits.
///
/// # Safety
/// `session`, `input` and `weights` are live handles, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_weights_matmul(
    session: *const Session,
    input: *const Tensor,
    weights: *const Weights,
    out: *mut *mut Tensor,
) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe {
        made(out, || {
            let (session, input) = (object(session, "session")?, object(input, "input")?);
            let weights = object(weights, "weights")?;
            let product = session.ops.matmul_prepacked(&input.tensor, &weights.prepacked)?;
            Ok(Box::into_raw(Box::new(Tensor::new(product))))
        })
    }
}

/// Frees weights. Products that were queued are done nevertheless.
///
/// # Safety
/// Null or a handle that nobody uses again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_weights_free(weights: *mut Weights) {
    // SAFETY: as the caller promises.
    unsafe { free(weights) }
}

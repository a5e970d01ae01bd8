//! The host side for C, and for languages that call C: `libep_host.so` with the header `ep_host.h`.
//!
//! ```text
//! ep_runtime   providers that a config names       -> what there is, and why a request is refused, as JSON
//!   ep_session   a device, a stream, fallbacks     -> tensors and operators (ep-ops)
//!     ep_tensor    shared device memory, strided   <-> bytes of the host, DLPack
//!     ep_operator  a name and attributes           -> new tensors, or in place
//!     ep_weights   a matrix in the form that its device reads fastest, for many products
//!     ep_primitive a descriptor of `ep_plugin.h`   -> launches on addresses, for frameworks that own their memory
//! ```
//!
//! A file for each object. The header is written from these files by `cargo xtask gen`.
//!
//! # Rules of all functions
//! - What can fail returns an `EpStatus` of `ep_plugin.h`: null for success, else to be released once. Outputs are written
//!   only on success. Nothing unwinds out of a function.
//! - A handle is freed once, by its own function, when no call uses it; null may be freed. What was made from it stays: a
//!   tensor keeps its memory, a session its runtime.
//! - Handles may be used from any thread, and by several at once.
//! - Text is UTF-8 that ends with a zero. Text that is returned with `char *` is freed by `ep_text_free`; `const char *` belongs to
//!   its object.

mod dlpack;
mod given;
mod named;
mod operator;
mod primitive;
mod request;
mod runtime;
mod session;
mod tensor;
mod weights;

pub use dlpack::{DLManagedTensor, ep_tensor_from_dlpack, ep_tensor_to_dlpack};
pub use given::ep_text_free;
pub use operator::{
    Operator, ep_operator_free, ep_operator_name, ep_operator_new, ep_operator_run, ep_operator_run_in_place,
};
pub use primitive::{
    Primitive, ep_primitive_describe, ep_primitive_free, ep_primitive_launch, ep_primitive_new,
    ep_primitive_workspace,
};
pub use runtime::{
    Runtime, ep_host_version, ep_runtime_device, ep_runtime_explain, ep_runtime_free, ep_runtime_list,
    ep_runtime_num_devices, ep_runtime_open, ep_runtime_open_text, ep_runtime_query,
};
pub use session::{
    Session, ep_session_adopt, ep_session_device, ep_session_fallbacks, ep_session_free, ep_session_native,
    ep_session_open, ep_session_sync,
};
pub use tensor::{
    Deleter, Tensor, ep_tensor_address, ep_tensor_bytes, ep_tensor_device, ep_tensor_dtype,
    ep_tensor_dtype_id, ep_tensor_free, ep_tensor_from_address, ep_tensor_from_bytes, ep_tensor_numel,
    ep_tensor_rank, ep_tensor_shape, ep_tensor_strides, ep_tensor_to_bytes, ep_tensor_wait,
};
pub use weights::{Weights, ep_weights_bytes, ep_weights_free, ep_weights_matmul, ep_weights_new};

// What the header promises of handles.
const _: fn() = || {
    fn used_by_several_threads<T: Send + Sync>() {}
    used_by_several_threads::<Runtime>();
    used_by_several_threads::<Session>();
    used_by_several_threads::<Tensor>();
    used_by_several_threads::<Operator>();
    used_by_several_threads::<Primitive>();
    used_by_several_threads::<Weights>();
};

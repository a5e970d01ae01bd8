//! The operators, a file for each; as structs for [`Ops::apply`](crate::Ops::apply), and as methods of
//! [`Ops`](crate::Ops).
//!
//! Of all of them: dtypes are never promoted, inputs may be views of any strides and are copied only where the primitive
//! needs them dense, and outputs are new dense tensors. Operators of single elements, softmax, its logarithm and their
//! gradients keep the order in memory that the dimensions of their inputs have (`order`).

mod add_n;
mod arg_reduce;
mod batch_gather;
mod binary;
mod binary_scalar;
mod cast;
mod concat;
mod constant_pad;
mod gather;
mod launch;
mod layer_norm;
mod log_softmax;
mod log_softmax_backward;
mod matmul;
pub(crate) mod number;
mod one_hot;
mod order;
mod prepacked;
mod reduce;
mod rms_norm;
mod rows;
mod scatter_add;
mod shape;
mod softmax;
mod softmax_backward;
mod unary;
mod r#where;
mod window;

pub use add_n::AddN;
pub use arg_reduce::ArgReduce;
pub use batch_gather::BatchGather;
pub use binary::Binary;
pub use binary_scalar::{BinaryScalar, Side};
pub use cast::Cast;
pub use concat::Concat;
pub use constant_pad::ConstantPad;
pub use gather::Gather;
pub use layer_norm::LayerNorm;
pub use log_softmax::LogSoftmax;
pub use log_softmax_backward::LogSoftmaxBackward;
pub use matmul::Matmul;
pub use one_hot::OneHot;
pub use prepacked::Prepacked;
pub use reduce::Reduce;
pub use rms_norm::RmsNorm;
pub use scatter_add::ScatterAdd;
pub use softmax::Softmax;
pub use softmax_backward::SoftmaxBackward;
pub use unary::Unary;
pub use r#where::Where;
pub use window::Window;

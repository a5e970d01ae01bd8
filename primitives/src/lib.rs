//! The device-independent halves of primitives: what can be decided about a launch from its sizes alone,
//! and a slow reference of each primitive to test against.

pub mod broadcast;
pub mod copy_nd;
pub mod fast_div;
pub mod launch;
pub mod matmul;
pub mod nd_index;
pub mod pad;
pub mod permute;
pub mod reference;
pub mod strided_copy;
pub mod tensor_iterator;

//! The device-independent halves of primitives: what can be decided about a launch from its sizes alone,
//! and a slow reference of each primitive to test against.
//!
//! A kernel of any device begins with one of these, by what it does with the elements:
//!
//! | | what it makes of sizes |
//! |---|---|
//! | [`broadcast`] | NumPy's broadcast of dense operands, row by row |
//! | [`tensor_iterator`] | operands of any strides that are walked together, in pieces of two dimensions |
//! | [`permute`], [`copy_nd`], [`pad`] | the same movement of bytes in fewer dimensions and larger elements |
//! | [`strided_copy`] | whether two indices of a destination may be one element |
//! | [`matmul`] | batches of matrix products as loops, and as fewer and larger products |
//! | [`nd_index`], [`fast_div`] | coordinates from offsets and back, for kernels that compute them for each element |
//! | [`launch`] | chunks for the host's threads |
//! | [`mod@reference`] | results that a kernel is compared with |

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

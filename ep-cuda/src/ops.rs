//! From the boundary to the GPU: one file for each primitive, which registers its rows and turns launch arguments
//! into those of a kernel or of a function of the driver.
//!
//! What can be decided is decided when the primitive is created. A kernel that only some launches need is loaded by
//! the first of them; after that a launch allocates nothing and looks nothing up.

mod add;
mod arange;
mod arg_reduce;
mod broadcast_elementwise_binary;
mod broadcast_elementwise_unary;
mod constant_pad;
mod copy;
mod copy_nd;
pub mod fill;
mod gather;
mod indices;
mod matmul;
mod memcpy;
mod memset;
mod nd;
mod norm;
mod one_hot;
mod partial;
mod permute;
mod recent;
mod reduce;
mod rows;
mod scalar;
mod scatter_add;
pub mod softmax;
pub(crate) mod source;
mod strided;
mod strided_copy;
mod unary;
mod where_;

use crate::compiler::{Arch, Spec};
use crate::provider::CudaProvider;
use ep_core::op::Op;
use ep_core::provider::Registrar;
use ep_core::schema::DescKind;
use ep_core::{DType, Result};

/// Registers everything.
pub(crate) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    memcpy::register(registrar)?;
    memset::register(registrar)?;
    fill::register(registrar)?;
    add::register(registrar)?;
    unary::register(registrar)?;
    broadcast_elementwise_binary::register(registrar)?;
    broadcast_elementwise_unary::register(registrar)?;
    where_::register(registrar)?;
    permute::register(registrar)?;
    copy_nd::register(registrar)?;
    strided_copy::register(registrar)?;
    constant_pad::register(registrar)?;
    gather::register(registrar)?;
    scatter_add::register(registrar)?;
    one_hot::register(registrar)?;
    arange::register(registrar)?;
    matmul::register(registrar)?;
    softmax::register(registrar)?;
    norm::register(registrar)?;
    reduce::register(registrar)?;
    arg_reduce::register(registrar)
}

/// The kernels that each op's rows may need on an architecture, under the op's name.
pub(crate) fn kernels(arch: Arch) -> Vec<(&'static str, Vec<Spec>)> {
    let mut all = Vec::new();
    all.extend(fill::kernels());
    all.extend(add::kernels());
    all.extend(unary::kernels());
    all.extend(broadcast_elementwise_binary::kernels());
    all.extend(broadcast_elementwise_unary::kernels());
    all.extend(where_::kernels());
    all.extend(permute::kernels(arch));
    all.extend(copy_nd::kernels());
    all.extend(strided_copy::kernels());
    all.extend(constant_pad::kernels());
    all.extend(gather::kernels());
    all.extend(scatter_add::kernels());
    all.extend(one_hot::kernels());
    all.extend(arange::kernels());
    all.extend(matmul::kernels());
    all.extend(softmax::kernels(arch));
    all.extend(norm::kernels(arch));
    all.extend(reduce::kernels());
    all.extend(arg_reduce::kernels());
    all
}

/// Names of an op's choices, in the schema's order.
fn choices<O: Op>() -> Vec<&'static str> {
    match O::schema().desc_field("op").map(|f| &f.kind) {
        Some(DescKind::Selector(choices)) => choices.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    }
}

/// Every source with every destination.
fn pairs(sources: &[DType], destinations: &[DType]) -> Vec<[DType; 2]> {
    sources.iter().flat_map(|src| destinations.iter().map(|dst| [*src, *dst])).collect()
}

/// Each dtype with itself.
fn same(dtypes: &[DType]) -> Vec<[DType; 2]> {
    dtypes.iter().map(|d| [*d, *d]).collect()
}

/// All dtypes that are not complex.
fn real() -> Vec<DType> {
    [&[DType::BOOL], DType::INT, DType::FLOAT].concat()
}

/// The unsigned integer of an integer's size; others as they are. What does not depend on the sign shares a kernel.
fn unsigned(dtype: DType) -> DType {
    match dtype {
        DType::I8 => DType::U8,
        DType::I16 => DType::U16,
        DType::I32 => DType::U32,
        DType::I64 => DType::U64,
        other => other,
    }
}

/// The unsigned integer of a dtype's size, for what only moves or asks whether all bits are 0; complex numbers as they
/// are, which are aligned as their parts.
fn bits(dtype: DType) -> DType {
    match dtype {
        DType::BOOL => DType::U8,
        DType::F16 | DType::BF16 => DType::U16,
        DType::F32 => DType::U32,
        DType::F64 => DType::U64,
        other => unsigned(other),
    }
}

/// Sizes of elements, of which kernels that only move them know no more.
const SIZES: [u64; 5] = [1, 2, 4, 8, 16];

/// Whether an address, or one of several that are put together by "or", is not a multiple of an element's size. Complex
/// numbers need to be aligned as one of their parts only.
#[inline]
fn is_loose(size: u64, addresses: u64) -> bool {
    !addresses.is_multiple_of(size)
}

/// The kernels for elements of each size, with those for such addresses.
fn with_loose_sizes(spec: impl Fn(u64, bool) -> Spec) -> Vec<Spec> {
    let all = SIZES.into_iter().map(|size| spec(size, false));
    // Those of complex numbers.
    let complex = DType::COMPLEX.iter().map(|d| spec(d.bytes_for_bounds(), true));
    all.chain(complex).collect()
}

/// The kernel for such addresses, in place of the one that takes an element at a time.
fn with_loose(spec: Spec, loose: bool) -> Spec {
    if loose { spec.with("EP_LOOSE", 1) } else { spec }
}

/// A dtype's name in the kernels' sources.
fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::BOOL => "b8",
        DType::COMPLEX64 => "c64",
        DType::COMPLEX128 => "c128",
        // The others have the same names there.
        other => other.name().unwrap_or_default(),
    }
}

/// A size of a launch, which has been checked not to be negative.
#[inline]
fn size(value: i64) -> usize {
    value as usize
}

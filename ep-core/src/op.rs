//! What the generated files in [`crate::primitive`] are made of: the [`Op`] trait and the checks that every
//! launch makes.

pub use crate::abi::Growable;
use crate::abi::{EP_SCALAR_NONE, EpOpSchema, EpScalar};
use crate::dtype::DType;
use crate::schema::Schema;
use crate::{Error, Result, Scalar};

/// The largest rank of a tensor argument.
pub const MAX_DIMS: usize = 8;

/// A primitive interface as a type: [`crate::primitive::Softmax`] and its like.
///
/// # Safety
/// Safe launches rely on it: the types and functions are those of the op called `NAME` in `VERSION`, as its
/// schema says. `check` accepts only arguments for which `uses` names all memory that a conforming kernel
/// touches; a kernel writes all of an operand that is written and not read. `bind` and `in_place` speak of the
/// same operands in the same order. `Desc` starts with `struct_size` and `alignment`, both `u64`. The generated
/// ops are so by construction.
pub unsafe trait Op: Send + Sync + Sized + 'static {
    /// The op's name: `softmax`.
    const NAME: &'static str;
    /// The version of its schema.
    const VERSION: u32;
    /// What is fixed at creation.
    type Desc: Growable + Send + Sync + std::fmt::Debug;
    /// What may change per launch.
    type Args: Growable + std::fmt::Debug;
    /// One [`OperandUse`] for each operand.
    type Uses: AsRef<[OperandUse]>;

    /// The schema as it crosses the ABI.
    fn raw_schema() -> &'static EpOpSchema;

    /// The schema, decoded.
    fn schema() -> &'static Schema {
        // SAFETY: an op's own schema is static and valid (this trait's safety).
        unsafe { crate::schema::schema_of(Self::raw_schema()) }
    }

    /// The bytes between the fields of a descriptor, which must be zero.
    fn reserved(desc: &Self::Desc) -> u32 {
        let _ = desc;
        0
    }

    /// Checks everything about a launch but its addresses: sizes, dims, scalars, limits.
    ///
    /// # Errors
    /// `InvalidArgument` that names the field, its value and what is allowed.
    ///
    /// # Safety
    /// Each non-null dims pointer in `args` is readable for as many values as its length field says.
    unsafe fn check(desc: &Self::Desc, args: &Self::Args) -> Result<()>;

    /// Which memory a launch touches.
    ///
    /// # Safety
    /// [`Op::check`] has passed on the same arguments.
    unsafe fn uses(desc: &Self::Desc, args: &Self::Args) -> Self::Uses;

    /// Sets the address of operand `index`.
    fn bind(args: &mut Self::Args, index: usize, address: u64);

    /// Bit i: operand `index` may be exactly the memory of operand i.
    fn in_place(index: usize) -> u64;
}

/// A safe launch: sizes, and a buffer for each operand. `R` and `W` are the host's types for memory that is
/// read and written.
///
/// # Safety
/// The dims pointers in the arguments that `split` returns stay readable, for their lengths, as long as the
/// lifetimes in `Self` last; the slots are those of the op's operands, in order.
pub unsafe trait Call<R, W> {
    /// The op.
    type Op: Op;
    /// The buffers, one for each operand in order.
    type Slots: IntoIterator<Item = Slot<R, W>>;
    /// Arguments with all addresses 0, and the buffers.
    fn split(self) -> (<Self::Op as Op>::Args, Self::Slots);
}

/// A buffer for an operand.
#[derive(Debug, Clone, Copy)]
pub enum Slot<R, W> {
    /// The launch reads it.
    Read(R),
    /// The launch writes it.
    Write(W),
}

/// What a launch does with one operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperandUse {
    /// Where; 0 when not yet bound.
    pub address: u64,
    /// How much from there on.
    pub bytes: u64,
    /// The element type; `None` for plain bytes.
    pub dtype: Option<DType>,
    /// Whether the old content matters.
    pub reads: bool,
    /// Whether the content changes. What is not read is written in full.
    pub writes: bool,
    /// False when a scalar stands in for it.
    pub present: bool,
}

impl OperandUse {
    /// Computes the bytes of `count` elements; a dtype of unknown size counts as 16 bytes an element.
    #[inline]
    pub fn new(
        address: u64,
        dtype: Option<DType>,
        count: u64,
        reads: bool,
        writes: bool,
        present: bool,
    ) -> OperandUse {
        let size = dtype.map_or(1, |d| d.bytes_for_bounds());
        let bytes = if present { count.saturating_mul(size) } else { 0 };
        OperandUse { address, bytes, dtype, reads, writes, present }
    }

    /// Bytes that hold values when a launch that writes this is done. Less than `bytes`, which is a bound, where
    /// elements do not fill their bytes.
    #[inline]
    pub fn bytes_written(&self) -> u64 {
        self.dtype.map_or(self.bytes, |d| d.packed_bytes(self.bytes / d.bytes_for_bounds()))
    }

    /// Checks an address for it: not null if anything is accessed, aligned, not wrapping around. `alignment` is 0
    /// or a power of two.
    ///
    /// # Errors
    /// `InvalidArgument`.
    #[inline]
    pub fn check_address(
        &self,
        address: u64,
        alignment: u64,
        index: usize,
        name: impl FnOnce() -> String,
    ) -> Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        let align = if alignment != 0 { alignment } else { self.dtype.map_or(1, |d| d.alignment() as u64) };
        if address == 0 || address & (align - 1) != 0 || address.checked_add(self.bytes).is_none() {
            return Err(bad_address(address, self.bytes, align, index, &name()));
        }
        Ok(())
    }
}

#[cold]
fn bad_address(address: u64, bytes: u64, align: u64, index: usize, name: &str) -> Error {
    Error::invalid(format!(
        "operand {index} (`{name}`): address {address:#x} for {bytes} bytes must not be null, must be a multiple \
         of {align} and must not wrap around"
    ))
}

/// Launch flags: none are defined yet.
///
/// # Errors
/// `Unsupported` if any is set.
#[inline]
pub fn no_flags(flags: u64) -> Result<()> {
    if flags == 0 { Ok(()) } else { Err(unknown_flags(flags)) }
}

#[cold]
fn unknown_flags(flags: u64) -> Error {
    Error::unsupported(format!("launch flags {flags:#x} are not known to this version"))
}

/// A size must not be negative.
///
/// # Errors
/// `InvalidArgument`.
#[inline]
pub fn size(name: &str, value: i64) -> Result<()> {
    if value >= 0 { Ok(()) } else { Err(negative(name, value)) }
}

#[cold]
fn negative(name: &str, value: i64) -> Error {
    Error::invalid(format!("`{name}` is {value}; it must not be negative"))
}

/// Dimensions: a readable pointer, rank at most [`MAX_DIMS`], no negative entry.
///
/// # Errors
/// `InvalidArgument`.
///
/// # Safety
/// A non-null, aligned `values` is readable for `len` values for `'a`.
#[inline]
pub unsafe fn dims<'a>(name: &str, values: *const i64, len: i64) -> Result<&'a [i64]> {
    if !(0..=MAX_DIMS as i64).contains(&len) || (len > 0 && (values.is_null() || !values.is_aligned())) {
        return Err(bad_rank(name, values, len));
    }
    // SAFETY: the pointer has just been checked, and the rest is the caller's promise.
    let slice = unsafe { view(values, len) };
    match slice.iter().position(|v| *v < 0) {
        None => Ok(slice),
        Some(i) => Err(negative(&format!("{name}[{i}]"), slice[i])),
    }
}

/// Dimensions that [`dims`] has checked.
///
/// # Safety
/// `len` is not negative; if it is not 0, `values` is aligned and readable for `len` values for `'a`.
#[inline]
pub unsafe fn view<'a>(values: *const i64, len: i64) -> &'a [i64] {
    if len == 0 {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(values, len as usize) }
}

#[cold]
fn bad_rank(name: &str, values: *const i64, len: i64) -> Error {
    Error::invalid(format!(
        "`{name}`: rank {len} at {values:p}; the rank is 0 to {MAX_DIMS} (-1 stands for \
         shapes that must have one rank and differ in it) and the pointer valid"
    ))
}

/// A scalar must be of a known kind.
///
/// # Errors
/// `InvalidArgument`.
#[inline]
pub fn scalar(name: &str, value: &EpScalar) -> Result<()> {
    if value.kind <= crate::abi::EP_SCALAR_COMPLEX && value.reserved == 0 {
        Ok(())
    } else {
        Err(bad_scalar(name, value))
    }
}

#[cold]
fn bad_scalar(name: &str, value: &EpScalar) -> Error {
    Error::invalid(format!(
        "`{name}` is a scalar of unknown kind {} (or its reserved bytes are set)",
        value.kind
    ))
}

/// A limit of the descriptor (0: none) must be kept.
///
/// # Errors
/// `InvalidArgument`.
#[inline]
pub fn limit(name: &str, max: u64, value: u64) -> Result<()> {
    if max == 0 || value <= max { Ok(()) } else { Err(over_limit(name, max, value)) }
}

#[cold]
fn over_limit(name: &str, max: u64, value: u64) -> Error {
    Error::invalid(format!(
        "`{name}` is {value}, but the primitive was created with the limit max_{name} = {max}"
    ))
}

/// A checked size as a count.
#[inline]
pub fn count(size: i64) -> u64 {
    size as u64
}

/// Elements of a shape, saturating.
#[inline]
pub fn prod(dims: &[i64]) -> u64 {
    dims.iter().fold(1u64, |n, d| n.saturating_mul(*d as u64))
}

/// Elements of the NumPy broadcast of two shapes, saturating. Incompatible dimensions count as the larger
/// one, for bounds; the kernel reports them.
#[inline]
pub fn broadcast(a: &[i64], b: &[i64]) -> u64 {
    let at = |dims: &[i64], from_end: usize| dims.len().checked_sub(from_end).map_or(1, |i| dims[i]);
    (1..=a.len().max(b.len())).fold(1u64, |n, i| n.saturating_mul(broadcast_dim(at(a, i), at(b, i)) as u64))
}

/// One dimension of a broadcast: 1 gives way to the other, 0 included.
#[inline]
pub fn broadcast_dim(x: i64, y: i64) -> i64 {
    if x == 1 {
        y
    } else if y == 1 {
        x
    } else {
        x.max(y)
    }
}

/// Whether a factor such as beta is absent or zero, so that what it multiplies is not read.
#[inline]
pub fn is_zero(s: &EpScalar) -> bool {
    s.kind == EP_SCALAR_NONE || Scalar::try_from(*s).is_ok_and(|s| s.as_f64() == 0.0 && s.im() == 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_saturate_and_zero_wins() {
        let big = [1 << 40, 1 << 40, 0];
        assert_eq!(prod(&big[..2]), u64::MAX);
        assert_eq!(prod(&big), 0);
        assert_eq!(broadcast(&[2, 1, 3], &[4, 3]), 24);
        assert_eq!(broadcast(&[0], &[1]), 0);
        assert_eq!(broadcast(&[], &[]), 1);
    }

    #[test]
    fn a_negative_zero_factor_is_zero_and_nan_is_not() {
        assert!(is_zero(&Scalar::None.into()) && is_zero(&Scalar::F64(-0.0).into()));
        assert!(!is_zero(&Scalar::F64(f64::NAN).into()) && !is_zero(&Scalar::Complex(0.0, 1.0).into()));
    }

    #[test]
    fn addresses() {
        let u = |address, bytes| OperandUse {
            address,
            bytes,
            dtype: Some(DType::F32),
            reads: true,
            writes: false,
            present: true,
        };
        let ok = |u: OperandUse, align| u.check_address(u.address, align, 0, || "x".into()).is_ok();
        assert!(ok(u(0, 0), 0) && ok(u(4, 4), 0) && ok(u(64, 4), 64));
        assert!(!ok(u(0, 4), 0) && !ok(u(2, 4), 0) && !ok(u(4, 4), 64) && !ok(u(u64::MAX - 3, 8), 0));
    }
}

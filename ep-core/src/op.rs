//! What the generated files in [`crate::primitive`] are made of: the [`Op`] trait and the checks that every
//! launch makes.

pub use crate::abi::Growable;
use crate::abi::{EP_SCALAR_NONE, EpOpSchema, EpScalar};
use crate::dtype::DType;
use crate::schema::Schema;
use crate::{Error, Result, Scalar};
use smallvec::SmallVec;

/// The largest rank of a tensor argument.
pub const MAX_DIMS: usize = 8;

/// The most buffers of a list.
pub const MAX_LIST: usize = 256;

/// Operands of a launch that are kept without an allocation.
pub const MAX_INLINE_OPERANDS: usize = 9;

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

    /// Sets the addresses of the operands, in order; those of a list of buffers come last and stay where they are,
    /// so that `args` points into `addresses`.
    fn bind(args: &mut Self::Args, addresses: &[u64]);

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
    /// An optional operand that the launch would write is absent.
    None,
}

impl<R, W> Slot<R, W> {
    /// The slot of an optional operand that is written.
    #[inline]
    pub fn write_or_none(memory: Option<W>) -> Self {
        memory.map_or(Slot::None, Slot::Write)
    }
}

/// The slots of an op whose last operand is a list of buffers, which are only read.
#[derive(Debug)]
pub struct ListSlots<'a, R, W, S, const N: usize> {
    fixed: std::array::IntoIter<Slot<R, W>, N>,
    list: std::slice::Iter<'a, S>,
}

impl<'a, R, W, S, const N: usize> ListSlots<'a, R, W, S, N> {
    /// The operands before the list, and the list.
    pub fn new(fixed: [Slot<R, W>; N], list: &'a [S]) -> Self {
        ListSlots { fixed: fixed.into_iter(), list: list.iter() }
    }
}

impl<R, W, S: Copy + Into<R>, const N: usize> Iterator for ListSlots<'_, R, W, S, N> {
    type Item = Slot<R, W>;

    fn next(&mut self) -> Option<Slot<R, W>> {
        self.fixed.next().or_else(|| self.list.next().map(|s| Slot::Read((*s).into())))
    }
}

/// What a launch of an op does with its operands where the last one is a list of buffers.
#[derive(Debug, Clone)]
pub struct UseList(SmallVec<[OperandUse; MAX_INLINE_OPERANDS]>);

impl UseList {
    /// The last of `operands` stands for each buffer of the list: those at `addresses`, or, before the
    /// addresses are known, `length` of them.
    pub fn new<const N: usize>(operands: [OperandUse; N], addresses: &[u64], length: i64) -> UseList {
        let (each, fixed) = operands.split_last().expect("an op has operands");
        let list = (0..length as usize)
            .map(|i| OperandUse { address: addresses.get(i).copied().unwrap_or_default(), ..*each });
        UseList(fixed.iter().copied().chain(list).collect())
    }
}

impl AsRef<[OperandUse]> for UseList {
    fn as_ref(&self) -> &[OperandUse] {
        &self.0
    }
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
    /// Whether the address may be null, which leaves the operand out.
    pub optional: bool,
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
        OperandUse { address, bytes, dtype, reads, writes, present, optional: false }
    }

    /// The same, and it may be absent.
    #[inline]
    #[must_use]
    pub fn or_none(mut self) -> OperandUse {
        self.optional = true;
        self
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
    #[inline(always)]
    pub fn check_address(
        &self,
        address: u64,
        alignment: u64,
        index: usize,
        name: impl FnOnce() -> String,
    ) -> Result<()> {
        if self.bytes == 0 || (self.optional && address == 0) {
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
#[inline(always)]
pub unsafe fn dims<'a>(name: &str, values: *const i64, len: i64) -> Result<&'a [i64]> {
    // SAFETY: the caller's promise.
    let slice = unsafe { ints(name, values, len) }?;
    // All in one: a launch of a few elements takes little longer than a branch for each dimension.
    if slice.iter().fold(0, |signs, v| signs | v) < 0 {
        return Err(bad_dims(name, slice));
    }
    Ok(slice)
}

#[cold]
fn bad_dims(name: &str, dims: &[i64]) -> Error {
    let i = dims.iter().position(|v| *v < 0).unwrap_or(0);
    negative(&format!("{name}[{i}]"), dims[i])
}

/// Signed numbers, one for each dimension: a readable pointer, at most [`MAX_DIMS`] of them.
///
/// # Errors
/// `InvalidArgument`.
///
/// # Safety
/// A non-null, aligned `values` is readable for `len` values for `'a`.
#[inline(always)]
pub unsafe fn ints<'a>(name: &str, values: *const i64, len: i64) -> Result<&'a [i64]> {
    if !(0..=MAX_DIMS as i64).contains(&len) || (len > 0 && (values.is_null() || !values.is_aligned())) {
        return Err(bad_rank(name, values, len));
    }
    // SAFETY: the pointer has just been checked, and the rest is the caller's promise.
    Ok(unsafe { view(values, len) })
}

/// A list of addresses: at most [`MAX_LIST`] of them. A null pointer passes: before the addresses are known
/// there is none, and the addresses themselves are checked one by one.
///
/// # Errors
/// `InvalidArgument`.
#[inline]
pub fn addresses(name: &str, values: *const u64, len: i64) -> Result<()> {
    if (0..=MAX_LIST as i64).contains(&len) && values.is_aligned() {
        return Ok(());
    }
    Err(bad_list(name, values, len))
}

#[cold]
fn bad_list(name: &str, values: *const u64, len: i64) -> Error {
    Error::invalid(format!(
        "`{name}`: {len} addresses at {values:p}; a list has 0 to {MAX_LIST} of them at an aligned pointer"
    ))
}

/// The addresses of a list that [`addresses`] has checked; none when the pointer is null.
///
/// # Safety
/// `len` is not negative; a non-null `values` is aligned and readable for `len` values for `'a`.
#[inline]
pub unsafe fn address_list<'a>(values: *const u64, len: i64) -> &'a [u64] {
    if len == 0 || values.is_null() {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(values, len as usize) }
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

/// Elements of a shape that was computed, saturating; negative dimensions count as 0.
#[inline]
pub fn elements(dims: &[i64]) -> u64 {
    dims.iter().fold(1u64, |n, d| n.saturating_mul((*d).max(0) as u64))
}

/// Elements of the NumPy broadcast of shapes, saturating. Incompatible dimensions count as the larger
/// one, for bounds; the kernel reports them.
#[inline]
pub fn broadcast(shapes: &[&[i64]]) -> u64 {
    let at = |dims: &[i64], from_end: usize| dims.len().checked_sub(from_end).map_or(1, |i| dims[i]);
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    (1..=rank)
        .fold(1u64, |n, i| n.saturating_mul(shapes.iter().fold(1, |d, s| broadcast_dim(d, at(s, i))) as u64))
}

/// The NumPy broadcast of two shapes; incompatible dimensions become the larger one.
pub fn broadcast_shape(a: &[i64], b: &[i64]) -> Vec<i64> {
    let at = |dims: &[i64], from_end: usize| dims.len().checked_sub(from_end).map_or(1, |i| dims[i]);
    let rank = a.len().max(b.len());
    (1..=rank).rev().map(|i| broadcast_dim(at(a, i), at(b, i))).collect()
}

/// Elements of a shape that is padded in front and behind, saturating; a dimension that negative padding
/// crops below 0 counts as 0, and the kernel reports it.
#[inline]
pub fn padded(dims: &[i64], before: &[i64], after: &[i64]) -> u64 {
    let sizes = dims.iter().zip(before).zip(after).map(|((d, b), a)| d.saturating_add(*b).saturating_add(*a));
    sizes.fold(1u64, |n, d| n.saturating_mul(d.max(0) as u64))
}

/// Elements from the start of a strided view to behind its highest one, saturating; 0 when it is empty.
/// Negative strides lead below the start and do not count.
#[inline]
pub fn extent(dims: &[i64], strides: &[i64]) -> u64 {
    if dims.iter().any(|d| *d <= 0) {
        return 0;
    }
    let reach = |(d, s): (&i64, &i64)| (*d as u64 - 1).saturating_mul((*s).max(0) as u64);
    dims.iter().zip(strides).map(reach).fold(1u64, u64::saturating_add)
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
        assert_eq!(broadcast(&[&[2, 1, 3], &[4, 3]]), 24);
        assert_eq!(broadcast(&[&[2, 1, 3], &[4, 3], &[5, 1, 1, 1]]), 120);
        assert_eq!(broadcast(&[&[0], &[1]]), 0);
        assert_eq!(broadcast(&[&[], &[]]), 1);
        assert_eq!(broadcast_shape(&[2, 1, 3], &[4, 3]), [2, 4, 3]);
    }

    #[test]
    fn padded_and_strided_counts() {
        assert_eq!(padded(&[3, 4], &[1, -1], &[0, 2]), 20);
        assert_eq!(padded(&[3, 4], &[-4, 0], &[0, 0]), 0);
        assert_eq!(extent(&[2, 3], &[4, 1]), 7);
        assert_eq!(extent(&[2, 3], &[-4, 1]), 3);
        assert_eq!(extent(&[2, 0], &[4, 1]), 0);
        assert_eq!(extent(&[], &[]), 1);
        assert_eq!(extent(&[i64::MAX, 2], &[i64::MAX, i64::MAX]), u64::MAX);
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
            optional: false,
        };
        let ok = |u: OperandUse, align| u.check_address(u.address, align, 0, || "x".into()).is_ok();
        assert!(ok(u(0, 0), 0) && ok(u(4, 4), 0) && ok(u(64, 4), 64));
        assert!(u(0, 4).or_none().check_address(0, 0, 0, || "x".into()).is_ok());
        assert!(!ok(u(0, 4), 0) && !ok(u(2, 4), 0) && !ok(u(4, 4), 64) && !ok(u(u64::MAX - 3, 8), 0));
    }
}

//! A launch of any op by names, and what it writes.

use super::number::{Data, Number, View, size_of};
use super::run;
use ep_core::{DType, Error, Result, Scalar};

/// One launch: everything that an op's schema names, by those names.
///
/// ```
/// use ep_core::DType;
/// use primitives::reference::{Data, Launch, Number};
///
/// let src = Data::new(DType::F32, [1.0, 4.0].map(Number::Real));
/// let out = Launch::new("elementwise_unary")
///     .selector("op", "sqrt")
///     .dtype("src", DType::F32)
///     .dtype("dst", DType::F32)
///     .size("count", 2)
///     .read("src", src.view())
///     .run()?;
/// assert_eq!(out.get("dst")?.get(1), Number::Real(2.0));
/// # Ok::<(), ep_core::Error>(())
/// ```
///
/// An operand that the op also reads, or of which it leaves elements as they were, is given with
/// [`Launch::read`] too: `c` of the matrix products when beta is not 0, `dst` of `scatter_add` and of the ops
/// that write a part of it. Attributes and sizes that are not given are 0, scalars NONE.
#[derive(Clone, Debug, Default)]
pub struct Launch<'a> {
    op: &'a str,
    selectors: Vec<(&'a str, &'a str)>,
    dtypes: Vec<(&'a str, DType)>,
    attrs: Vec<(&'a str, f64)>,
    sizes: Vec<(&'a str, i64)>,
    dims: Vec<(&'a str, &'a [i64])>,
    scalars: Vec<(&'a str, Scalar)>,
    reads: Vec<(&'a str, View<'a>)>,
    taken: Option<Vec<&'a str>>,
}

fn find<T: Copy>(list: &[(&str, T)], name: &str) -> Option<T> {
    list.iter().find(|(n, _)| *n == name).map(|(_, value)| *value)
}

impl<'a> Launch<'a> {
    /// A launch of the op with this name.
    pub fn new(op: &'a str) -> Launch<'a> {
        Launch { op, ..Launch::default() }
    }

    /// Sets a selector to the name of a value.
    #[must_use]
    pub fn selector(mut self, name: &'a str, value: &'a str) -> Self {
        self.selectors.push((name, value));
        self
    }

    /// Sets the dtype of a role.
    #[must_use]
    pub fn dtype(mut self, role: &'a str, dtype: DType) -> Self {
        self.dtypes.push((role, dtype));
        self
    }

    /// Sets an attribute.
    #[must_use]
    pub fn attr(mut self, name: &'a str, value: f64) -> Self {
        self.attrs.push((name, value));
        self
    }

    /// Sets a size.
    #[must_use]
    pub fn size(mut self, name: &'a str, value: i64) -> Self {
        self.sizes.push((name, value));
        self
    }

    /// Sets a list of sizes, positions or strides; its length is the rank.
    #[must_use]
    pub fn dims(mut self, name: &'a str, value: &'a [i64]) -> Self {
        self.dims.push((name, value));
        self
    }

    /// Sets a scalar.
    #[must_use]
    pub fn scalar(mut self, name: &'a str, value: impl Into<Scalar>) -> Self {
        self.scalars.push((name, value.into()));
        self
    }

    /// Gives an operand's content. A list of operands is given by one call for each.
    #[must_use]
    pub fn read(mut self, name: &'a str, content: View<'a>) -> Self {
        self.reads.push((name, content));
        self
    }

    /// Says which outputs are taken, where that is not all of them: others may come out empty.
    #[must_use]
    pub fn take(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.taken = Some(names.into_iter().collect());
        self
    }

    /// The op's name.
    pub fn op(&self) -> &'a str {
        self.op
    }

    /// Computes what the launch writes.
    ///
    /// # Errors
    /// `Unsupported` for an op, selector or combination of dtypes that no primitive is defined for;
    /// `InvalidArgument` where the op's contract says so, and for an argument that is missing or does not fit.
    pub fn run(&self) -> Result<Outputs> {
        run(self)
    }

    fn missing(&self, kind: &str, name: &str) -> Error {
        Error::invalid(format!("{}: {kind} `{name}` is not given", self.op))
    }

    /// `InvalidArgument` about this launch.
    pub(super) fn invalid(&self, what: impl std::fmt::Display) -> Error {
        Error::invalid(format!("{}: {what}", self.op))
    }

    /// `Unsupported` about this launch.
    pub(super) fn unsupported(&self, what: impl std::fmt::Display) -> Error {
        Error::unsupported(format!("{}: {what}", self.op))
    }

    pub(super) fn get_selector(&self, name: &str) -> Result<&'a str> {
        find(&self.selectors, name).ok_or_else(|| self.missing("selector", name))
    }

    /// The dtype of a role, one of [`DType::ALL`].
    pub(super) fn get_dtype(&self, role: &str) -> Result<DType> {
        let dtype = find(&self.dtypes, role).ok_or_else(|| self.missing("dtype", role))?;
        if DType::ALL.contains(&dtype) { Ok(dtype) } else { Err(self.unsupported(format!("dtype {dtype}"))) }
    }

    pub(super) fn is_taken(&self, output: &str) -> bool {
        self.taken.as_ref().is_none_or(|taken| taken.contains(&output))
    }

    pub(super) fn get_attr(&self, name: &str) -> f64 {
        find(&self.attrs, name).unwrap_or(0.0)
    }

    /// A size as it was given.
    pub(super) fn get_signed(&self, name: &str) -> i64 {
        find(&self.sizes, name).unwrap_or(0)
    }

    pub(super) fn get_size(&self, name: &str) -> Result<usize> {
        let size = self.get_signed(name);
        usize::try_from(size).map_err(|_| self.invalid(format!("`{name}` is {size}")))
    }

    /// A list as it was given; strides and paddings may be negative.
    pub(super) fn get_list(&self, name: &str) -> &'a [i64] {
        find(&self.dims, name).unwrap_or(&[])
    }

    /// A shape.
    pub(super) fn get_dims(&self, name: &str) -> Result<Vec<usize>> {
        let size = |d: &i64| usize::try_from(*d).map_err(|_| self.invalid(format!("`{name}` has a {d}")));
        self.get_list(name).iter().map(size).collect()
    }

    /// A list of the rank of another.
    pub(super) fn get_list_of(&self, name: &str, rank: usize) -> Result<&'a [i64]> {
        let list = self.get_list(name);
        if list.len() == rank {
            return Ok(list);
        }
        Err(self.invalid(format!("`{name}` has {} entries, the rank is {rank}", list.len())))
    }

    /// A scalar's value, if it has one.
    pub(super) fn get_scalar(&self, name: &str) -> Option<Number> {
        Number::from_scalar(find(&self.scalars, name).unwrap_or(Scalar::None))
    }

    /// An operand that must be there, with at least `count` elements of `dtype`; exactly those are returned.
    pub(super) fn get_read(&self, name: &str, dtype: DType, count: usize) -> Result<View<'a>> {
        let view = self.get_optional(name, dtype, count)?;
        match view {
            Some(view) => Ok(view),
            None if count == 0 => Ok(View::new(dtype, &[])),
            None => Err(self.missing("operand", name)),
        }
    }

    /// The same of an operand that may be absent.
    pub(super) fn get_optional(&self, name: &str, dtype: DType, count: usize) -> Result<Option<View<'a>>> {
        let Some(view) = find(&self.reads, name) else { return Ok(None) };
        self.check(name, view, dtype, count).map(Some)
    }

    /// All operands of one name.
    pub(super) fn get_all(&self, name: &str, dtype: DType, count: usize) -> Result<Vec<View<'a>>> {
        let given = self.reads.iter().filter(|(n, _)| *n == name);
        given.map(|(_, view)| self.check(name, *view, dtype, count)).collect()
    }

    /// All of an operand, of which the op decides how much it needs; nothing where it is absent.
    pub(super) fn get_whole(&self, name: &str, dtype: DType) -> Result<View<'a>> {
        let view = find(&self.reads, name).unwrap_or(View::new(dtype, &[]));
        self.check(name, view, dtype, view.len())
    }

    fn check(&self, name: &str, view: View<'a>, dtype: DType, count: usize) -> Result<View<'a>> {
        if view.dtype != dtype {
            return Err(self.invalid(format!("`{name}` holds {}, not {dtype}", view.dtype)));
        }
        let bytes = count.checked_mul(size_of(dtype)).and_then(|n| view.bytes.get(..n));
        let short = || self.invalid(format!("`{name}` holds {} elements, {count} are read", view.len()));
        Ok(View::new(dtype, bytes.ok_or_else(short)?))
    }
}

/// What a launch writes, by operand.
#[derive(Clone, Debug, Default)]
pub struct Outputs(Vec<(&'static str, Data)>);

impl Outputs {
    /// One output.
    pub(super) fn one(name: &'static str, data: Data) -> Outputs {
        Outputs(vec![(name, data)])
    }

    /// One more output.
    #[must_use]
    pub(super) fn and(mut self, name: &'static str, data: Data) -> Outputs {
        self.0.push((name, data));
        self
    }

    /// The content of an operand that was written. Optional outputs are always there.
    ///
    /// # Errors
    /// `NotFound` for a name that the op does not write.
    pub fn get(&self, name: &str) -> Result<&Data> {
        let found = self.0.iter().find(|(n, _)| *n == name).map(|(_, data)| data);
        found.ok_or_else(|| Error::not_found(format!("no output is called `{name}`")))
    }

    /// All outputs by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Data)> {
        self.0.iter().map(|(name, data)| (*name, data))
    }
}

//! A provider's own launches with known results.

use super::provider::ProviderHandle;
use crate::abi::*;
use crate::hob::{FactKind, Facts, Value};
use crate::schema::{ArgKind, ArgsFacts, DescFacts, DescKind, MAX_STRUCT, Schema};
use crate::{Code, DType, Error, Result, Scalar};
use std::ffi::c_void;

/// Bytes of an operand beyond which a case is refused: its fields are not what they should be.
const MOST_BYTES: u64 = 1 << 30;

/// A launch with a known result, by the names of its op's schema.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownLaunch {
    /// What it is there for.
    pub name: String,
    /// Selectors and their values.
    pub selectors: Vec<(String, String)>,
    /// Roles and their dtypes.
    pub dtypes: Vec<(String, DType)>,
    /// Attributes.
    pub attrs: Vec<(String, f64)>,
    /// Sizes, without the lengths of lists.
    pub sizes: Vec<(String, i64)>,
    /// Dims and other lists of numbers.
    pub lists: Vec<(String, Vec<i64>)>,
    /// Scalars.
    pub scalars: Vec<(String, Scalar)>,
    /// Buffers of a list operand.
    pub arity: usize,
    /// The buffers, in the order of the op's operands.
    pub operands: Vec<KnownOperand>,
    /// How far an element may be from the result: the absolute part of the bound.
    pub absolute: f64,
    /// And its part that is relative to the result.
    pub relative: f64,
    /// The code that the launch is refused with; `None`: it succeeds.
    pub refusal: Option<Code>,
}

/// The content of a buffer of a known launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownOperand {
    /// Before; `None`: of no importance.
    pub before: Option<Vec<u8>>,
    /// Afterwards; `None`: as before.
    pub after: Option<Vec<u8>>,
    /// Bytes of each.
    pub bytes: u64,
}

/// A case that is released when this is dropped.
struct Got<'a> {
    provider: &'a ProviderHandle,
    table: ConformanceInterface,
    case: EpConformanceCase,
}

impl Drop for Got<'_> {
    fn drop(&mut self) {
        // SAFETY: a live instance, and a case that `get` has filled, released once.
        unsafe { (self.table.release)(self.provider.raw(), &self.case) }
    }
}

impl ProviderHandle {
    /// How many known launches of an op the provider brings; `None` if it has no such interface.
    ///
    /// # Errors
    /// The provider's.
    pub fn known_launches(&self, op: &str) -> Result<Option<u64>> {
        let Some(table) = self.conformance()? else { return Ok(None) };
        let mut n = 0;
        // SAFETY: a live instance, a text that outlives the call, a valid out-pointer.
        unsafe { take((table.count)(self.raw(), EpStr::new(op), &mut n)) }?;
        Ok(Some(n))
    }

    /// One of them, with content drawn by `seed`.
    ///
    /// # Errors
    /// The provider's; `Unsupported` without the interface; `InvalidArgument` for what does not fit the schema.
    ///
    /// # Safety
    /// `schema` is that of the op of its name, as the host knows it once the provider has registered its own view: by its
    /// offsets numbers are told from addresses, which are followed.
    ///
    /// ```compile_fail,E0133
    /// use ep_core::handle::ProviderHandle;
    /// use ep_core::schema::Schema;
    ///
    /// fn first(provider: &ProviderHandle, schema: &Schema) {
    ///     let launch = provider.known_launch(schema, 0, 1);
    /// }
    /// ```
    pub unsafe fn known_launch(&self, schema: &Schema, index: u64, seed: u64) -> Result<KnownLaunch> {
        let table = self.conformance()?;
        let table = table.ok_or_else(|| Error::unsupported("this provider offers no ep.conformance"))?;
        let mut case = EpConformanceCase::EMPTY;
        // SAFETY: as in `known_launches`; the struct is of our capacity.
        unsafe { take((table.get)(self.raw(), EpStr::new(&schema.name), index, seed, &mut case)) }?;
        let got = Got { provider: self, table, case };
        // SAFETY: the provider has just filled it, and it is released afterwards; the schema as the caller promises.
        unsafe { read(schema, &got.case) }
            .map_err(|e| e.context(format!("conformance case {index} of `{}`", schema.name)))
    }

    fn conformance(&self) -> Result<Option<ConformanceInterface>> {
        // SAFETY: the table is one of the plugin's, and checked against our description, which is generated.
        self.optional("ep.conformance", &EPCONFORMANCEINTERFACE_INFO, |table| unsafe {
            ConformanceInterface::load(table.cast())
        })
    }
}

/// A copy of an op's struct with this side's size: a shorter one is completed with zeros, and of a longer one the rest is
/// zero (rule 3).
///
/// # Safety
/// `ptr` is null, or points to a struct that begins with its size and is readable for that.
unsafe fn whole(ptr: *const c_void, bytes: usize, what: &str) -> Result<Vec<u8>> {
    if ptr.is_null() || !ptr.cast::<u64>().is_aligned() {
        return Err(Error::invalid(format!("{what} is null or misaligned")));
    }
    // SAFETY: as the caller promises.
    let size = unsafe { ptr.cast::<u64>().read() };
    if size < 8 || !size.is_multiple_of(8) || size > MAX_STRUCT as u64 {
        return Err(Error::invalid(format!("{what} has a struct_size of {size}, where {bytes} is right")));
    }
    // SAFETY: as above.
    let own = unsafe { std::slice::from_raw_parts(ptr.cast::<u8>(), size as usize) };
    if let Some(at) = own.iter().skip(bytes).position(|b| *b != 0) {
        return Err(Error::unsupported(format!(
            "{what} sets a field at byte {} that this version does not know; use a newer one",
            bytes + at
        )));
    }
    let mut all = own.to_vec();
    all.resize(bytes, 0);
    Ok(all)
}

/// # Safety
/// `case` was filled by a provider for the op of this schema, and was not released.
unsafe fn read(schema: &Schema, case: &EpConformanceCase) -> Result<KnownLaunch> {
    // SAFETY: as the caller promises.
    let (name, desc, args, operands) = unsafe {
        (
            str_of(case.name)?.to_owned(),
            whole(case.desc, schema.desc_size, "the descriptor")?,
            whole(case.args, schema.args_size, "the argument struct")?,
            list(case.operands, case.num_operands, "operands")?,
        )
    };
    if case.reserved != 0 {
        return Err(Error::unsupported(format!(
            "reserved is {}, which has no meaning; use 0",
            case.reserved
        )));
    }
    let key = schema.key(&desc)?;
    let facts = DescFacts { schema, desc: &desc, device: &[] };
    // SAFETY: the lists of the provider's arguments are readable until the case is released.
    let args = unsafe { ArgsFacts::new(schema, &args) };
    let mut known = KnownLaunch {
        name,
        selectors: Vec::new(),
        dtypes: schema.dtypes().zip(&key.dtypes).map(|(f, d)| (f.name.clone(), *d)).collect(),
        attrs: Vec::new(),
        sizes: Vec::new(),
        lists: Vec::new(),
        scalars: Vec::new(),
        arity: 0,
        operands: Vec::new(),
        absolute: case.absolute,
        relative: case.relative,
        refusal: (case.refusal != 0).then(|| Code::from_raw(case.refusal)),
    };
    for ((field, names), value) in schema.selectors().zip(&key.selectors) {
        known.selectors.push((field.name.clone(), names[*value as usize].clone()));
    }
    for field in schema.desc.iter().filter(|f| matches!(f.kind, DescKind::Attr(_))) {
        if let Some(Value::Float(x)) = facts.fact(FactKind::Attr, &field.name) {
            known.attrs.push((field.name.clone(), x));
        }
    }
    let length = |kind: ArgKind| match kind {
        ArgKind::Dims { length } | ArgKind::Ints { length } | ArgKind::Addresses { length } => Some(length),
        ArgKind::Size | ArgKind::Address | ArgKind::Scalar => None,
    };
    for (i, field) in schema.args.iter().enumerate() {
        match field.kind {
            ArgKind::Size if schema.args.iter().any(|a| length(a.kind) == Some(i)) => {}
            ArgKind::Size => known.sizes.push((field.name.clone(), args.size(i))),
            ArgKind::Dims { .. } | ArgKind::Ints { .. } => {
                known.lists.push((field.name.clone(), args.dims(i)?.to_vec()));
            }
            ArgKind::Scalar => known.scalars.push((field.name.clone(), args.scalar(i)?)),
            ArgKind::Address => {}
            ArgKind::Addresses { length } => known.arity = usize::try_from(args.size(length)).unwrap_or(0),
        }
    }
    let bad = |x: f64| !x.is_finite() || x < 0.0;
    if bad(known.absolute) || bad(known.relative) {
        return Err(Error::invalid("a tolerance is negative or not finite"));
    }
    for (i, o) in operands.iter().enumerate() {
        if o.bytes > MOST_BYTES {
            return Err(Error::invalid(format!("operand {i} has {} bytes", o.bytes)));
        }
        let content = |ptr: *const c_void| {
            // SAFETY: null, or readable for the operand's bytes, as the provider says.
            (!ptr.is_null())
                .then(|| unsafe { std::slice::from_raw_parts(ptr.cast::<u8>(), o.bytes as usize) }.to_vec())
        };
        known.operands.push(KnownOperand {
            before: content(o.before),
            after: content(o.after),
            bytes: o.bytes,
        });
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(words: &[u64], bytes: usize) -> Result<Vec<u8>> {
        // SAFETY: the words are readable for the sizes that the tests say, or those are refused.
        unsafe { whole(words.as_ptr().cast(), bytes, "the struct") }
    }

    #[test]
    fn structs_of_other_versions_are_read_as_far_as_they_are_known() {
        let bytes = |words: &[u64]| words.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<u8>>();
        assert_eq!(copied(&[16, 7], 24), Ok(bytes(&[16, 7, 0])));
        assert_eq!(copied(&[24, 7, 8], 24), Ok(bytes(&[24, 7, 8])));
        assert_eq!(copied(&[24, 7, 0], 16), Ok(bytes(&[24, 7])));
        let e = copied(&[24, 7, 1], 16).unwrap_err();
        assert!(e.code() == Code::Unsupported && e.message().contains("byte 16"), "{e}");
        for size in [0, 4, 15, u64::MAX] {
            assert_eq!(copied(&[size, 7], 16).unwrap_err().code(), Code::InvalidArgument, "{size}");
        }
        // SAFETY: null is refused before anything is read.
        assert!(unsafe { whole(std::ptr::null(), 16, "the struct") }.is_err());
    }
}

//! What a case is, by its op's schema alone: the descriptor and argument structs, and what each operand is.

use crate::case::{Case, Key};
use ep_core::abi::EpScalar;
use ep_core::op::OperandUse;
use ep_core::schema::{ArgKind, ArgsFacts, DescKind, Schema};
use ep_core::{Error, Result};

/// The descriptor struct of a key: selectors and dtypes, the rest 0.
pub(crate) fn descriptor(key: &Key, schema: &Schema) -> Result<Vec<u8>> {
    let mut bytes = vec![0; schema.desc_size];
    for field in &schema.desc {
        let value = match &field.kind {
            DescKind::Selector(choices) => {
                let wanted = key.selector(&field.name);
                let found = choices.iter().position(|c| c == wanted);
                found.ok_or_else(|| Error::invalid(format!("{key}: selector `{}`", field.name)))? as u32
            }
            DescKind::DType => key.dtype(&field.name).0,
            DescKind::Attr(_) | DescKind::Limit(_) => continue,
        };
        bytes[field.offset..field.offset + 4].copy_from_slice(&value.to_ne_bytes());
    }
    Ok(bytes)
}

/// The argument struct of a case, with addresses 0. Lists point into the case.
pub(crate) fn arguments(case: &Case, schema: &Schema) -> Result<Vec<u8>> {
    let mut bytes = vec![0; schema.args_size];
    let mut put = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    let field = |name: &str| {
        schema.arg_field(name).ok_or_else(|| Error::invalid(format!("{case}: no argument `{name}`")))
    };
    for (name, value) in &case.sizes {
        put(field(name)?.offset, *value as u64);
    }
    for (name, values) in &case.lists {
        let list = field(name)?;
        let (ArgKind::Dims { length } | ArgKind::Ints { length }) = list.kind else {
            return Err(Error::invalid(format!("{case}: `{name}` is no list")));
        };
        put(list.offset, values.as_ptr().expose_provenance() as u64);
        put(schema.args[length].offset, values.len() as u64);
    }
    for (name, value) in &case.scalars {
        let at = field(name)?.offset;
        let raw = EpScalar::from(*value);
        put(at, u64::from(raw.kind));
        put(at + 8, raw.re);
        put(at + 16, raw.im);
    }
    if let Some(length) = schema.list_length() {
        put(schema.args[length].offset, case.arity as u64);
    }
    Ok(bytes)
}

/// What a launch of a case does with each operand.
///
/// # Errors
/// `InvalidArgument` for a case that does not fit the schema.
pub fn uses(case: &Case, schema: &Schema) -> Result<Vec<OperandUse>> {
    let (descriptor, arguments) = (descriptor(&case.key, schema)?, arguments(case, schema)?);
    // SAFETY: the lists in `arguments` are those of `case`, with their lengths.
    let facts = unsafe { ArgsFacts::new(schema, &arguments) };
    schema.uses(&descriptor, &facts)
}

/// What each limit of the op has to be at least for a case.
///
/// # Errors
/// As [`uses`].
pub fn limits(case: &Case, schema: &Schema) -> Result<Vec<(String, u64)>> {
    let arguments = arguments(case, schema)?;
    // SAFETY: as in `uses`.
    let facts = unsafe { ArgsFacts::new(schema, &arguments) };
    let of = |field: &ep_core::schema::DescField| match &field.kind {
        DescKind::Limit(bounds) => Some(bounds.amount(&facts).map(|n| (field.name.clone(), n))),
        _ => None,
    };
    schema.desc.iter().filter_map(of).collect()
}

/// Elements that a launch of a case writes to its largest output; those that keep their content do not count.
///
/// # Errors
/// As [`uses`].
pub fn written(case: &Case, schema: &Schema) -> Result<u64> {
    let arguments = arguments(case, schema)?;
    // SAFETY: as in `uses`.
    let facts = unsafe { ArgsFacts::new(schema, &arguments) };
    let outputs = schema.operands.iter().filter(|x| x.writes);
    outputs
        .map(|x| x.covers.as_ref().unwrap_or(&x.count).amount(&facts))
        .try_fold(0, |most, n| Ok(n?.max(most)))
}

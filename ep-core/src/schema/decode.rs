//! From `EpOpSchema` to [`Schema`], trusting nothing.

use super::{ArgField, ArgKind, DescField, DescKind, MAX_STRUCT, Operand, Schema};
use crate::abi::{
    EP_ACCESS_OPTIONAL, EP_ACCESS_READ, EP_ACCESS_WRITE, EP_FIELD_ADDRESS, EP_FIELD_ADDRESSES, EP_FIELD_ATTR,
    EP_FIELD_DIMS, EP_FIELD_DTYPE, EP_FIELD_INTS, EP_FIELD_LIMIT, EP_FIELD_SCALAR, EP_FIELD_SELECTOR,
    EP_FIELD_SIZE, EP_NO_INDEX, EP_OP_DETERMINISTIC, EpField, EpOpSchema, EpOperand, list, read_struct,
    str_of,
};
use crate::hob::{Expr, FactKind, decode};
use crate::{Error, Result, Scalar};
use std::collections::HashSet;

const DESC_HEAD: usize = 16;
const ARGS_HEAD: usize = 32;

/// Decodes and checks a schema.
///
/// # Errors
/// `InvalidArgument` that names the op, the field and what is wrong with it.
///
/// # Safety
/// `raw` and everything it points to is readable: it comes from a loaded plugin or from static data.
pub unsafe fn decode_schema(raw: *const EpOpSchema) -> Result<Schema> {
    // SAFETY: as the caller promises, here and in the rest of this function.
    let s = unsafe { read_struct(raw) }?;
    // SAFETY: as above.
    let name = unsafe { str_of(s.name) }?.to_owned();
    // SAFETY: as above.
    unsafe { decode_named(&s, &name) }.map_err(|e| e.context(format!("schema of op `{name}`")))
}

/// # Safety
/// As [`decode_schema`].
unsafe fn decode_named(s: &EpOpSchema, name: &str) -> Result<Schema> {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '.';
    if name.is_empty() || !name.chars().all(word) {
        return Err(Error::invalid("the name must be lower-case ASCII letters, digits, `_` and `.`"));
    }
    if s.flags & !EP_OP_DETERMINISTIC != 0 {
        return Err(Error::unsupported(format!("flags {:#x} are not known to this version", s.flags)));
    }
    // SAFETY: as the caller promises.
    let (summary, contract) = unsafe { (str_of(s.summary)?.to_owned(), str_of(s.contract)?.to_owned()) };
    // SAFETY: as above.
    let (raw_desc, raw_args, raw_operands) = unsafe {
        (
            list(s.desc_fields, s.num_desc_fields, "descriptor fields")?,
            list(s.arg_fields, s.num_arg_fields, "argument fields")?,
            list(s.operands, s.num_operands, "operands")?,
        )
    };
    let (desc_size, args_size) = (s.desc_size as usize, s.args_size as usize);
    for (what, size, head) in [("descriptor", desc_size, DESC_HEAD), ("arguments", args_size, ARGS_HEAD)] {
        if size < head || size > MAX_STRUCT || size % 8 != 0 {
            return Err(Error::invalid(format!(
                "the {what} have {size} bytes; a multiple of 8 from {head} to {MAX_STRUCT} is possible"
            )));
        }
    }
    check_places(raw_desc, desc_size, DESC_HEAD)?;
    check_places(raw_args, args_size, ARGS_HEAD)?;
    let mut args = Vec::new();
    for f in raw_args {
        // SAFETY: as the caller promises.
        args.push(unsafe { arg_field(f, raw_args) }?);
    }
    check_lists(&args)?;
    let mut desc = Vec::new();
    for f in raw_desc {
        // SAFETY: as the caller promises.
        desc.push(unsafe { desc_field(f, &args) }?);
    }
    if raw_operands.len() > 64 {
        return Err(Error::invalid(format!("{} operands; at most 64 are possible", raw_operands.len())));
    }
    let mut operands = Vec::new();
    for (i, x) in raw_operands.iter().enumerate() {
        // SAFETY: as the caller promises.
        operands.push(unsafe { operand(x, &desc, &args, i, raw_operands.len()) }?);
    }
    for (i, x) in operands.iter().enumerate() {
        if let Some(other) = operands[..i].iter().find(|o| o.arg == x.arg) {
            return Err(Error::invalid(format!(
                "operands `{}` and `{}` have one address; each needs its own",
                other.name, x.name
            )));
        }
    }
    // SAFETY: as the caller promises.
    let flops = unsafe { decode(s.flops, s.num_flops) }?;
    if let Some(flops) = &flops {
        check_names(flops, &args)?;
    }
    Ok(Schema {
        name: name.to_owned(),
        version: s.version,
        deterministic: s.flags & EP_OP_DETERMINISTIC != 0,
        summary,
        contract,
        desc,
        desc_size,
        args,
        args_size,
        operands,
        flops,
    })
}

/// Names differ, fields lie inside the struct behind the head, aligned, without overlap.
fn check_places(fields: &[EpField], size: usize, head: usize) -> Result<()> {
    let mut names = HashSet::new();
    let mut taken = vec![false; size];
    for f in fields {
        // SAFETY: the fields come from the list that the caller of `decode_schema` vouches for.
        let name = unsafe { str_of(f.name) }?;
        if name.is_empty() || !names.insert(name) {
            return Err(Error::invalid(format!("field name `{name}` is empty or stands twice")));
        }
        let (at, len) = (f.offset as usize, f.size as usize);
        let fits = at >= head && len > 0 && len <= size && at <= size - len && at % len.min(8) == 0;
        if !fits || taken[at..at + len].iter().any(|t| *t) {
            return Err(Error::invalid(format!(
                "field `{name}` at {at}+{len} is misaligned, overlaps another or is outside of {head}..{size}"
            )));
        }
        taken[at..at + len].fill(true);
    }
    Ok(())
}

/// A list of buffers has as many as a launch gives, and other lists are as long as they were given: no size can be
/// the length of both.
fn check_lists(args: &[ArgField]) -> Result<()> {
    let length_of = |f: &ArgField| match f.kind {
        ArgKind::Dims { length } | ArgKind::Ints { length } | ArgKind::Addresses { length } => Some(length),
        _ => None,
    };
    for list in args.iter().filter(|f| matches!(f.kind, ArgKind::Addresses { .. })) {
        let same = |f: &&ArgField| f.name != list.name && length_of(f) == length_of(list);
        if let Some(other) = args.iter().find(same) {
            return Err(Error::invalid(format!(
                "`{}` has the length of the buffers `{}`; give it a size of its own",
                other.name, list.name
            )));
        }
    }
    Ok(())
}

fn expect_size(f: &EpField, name: &str, size: u32) -> Result<()> {
    if f.size == size {
        return Ok(());
    }
    Err(Error::invalid(format!("field `{name}` of kind {} has {} bytes instead of {size}", f.kind, f.size)))
}

/// # Safety
/// As [`decode_schema`].
unsafe fn desc_field(f: &EpField, args: &[ArgField]) -> Result<DescField> {
    // SAFETY: as the caller promises.
    let (name, doc) = unsafe { (str_of(f.name)?.to_owned(), str_of(f.doc)?.to_owned()) };
    let (kind, size) = match f.kind {
        EP_FIELD_SELECTOR => {
            let mut choices = Vec::new();
            // SAFETY: as the caller promises.
            for c in unsafe { list(f.choices, f.num_choices, "choices") }? {
                // SAFETY: as the caller promises.
                choices.push(unsafe { str_of(*c) }?.to_owned());
            }
            if choices.is_empty() {
                return Err(Error::invalid(format!("selector `{name}` has no choices")));
            }
            (DescKind::Selector(choices), 4)
        }
        EP_FIELD_DTYPE => (DescKind::DType, 4),
        EP_FIELD_ATTR => (DescKind::Attr(Scalar::try_from(f.default_value)?.as_f64()), 8),
        EP_FIELD_LIMIT => {
            // SAFETY: as the caller promises.
            let bounds = unsafe { decode(f.bounds, f.num_bounds) }?
                .ok_or_else(|| Error::invalid(format!("limit `{name}` does not say what it bounds")))?;
            check_names(&bounds, args)?;
            (DescKind::Limit(bounds), 8)
        }
        kind => return Err(Error::invalid(format!("descriptor field `{name}` is of unknown kind {kind}"))),
    };
    expect_size(f, &name, size)?;
    Ok(DescField { name, doc, kind, offset: f.offset as usize })
}

/// # Safety
/// As [`decode_schema`].
unsafe fn arg_field(f: &EpField, all: &[EpField]) -> Result<ArgField> {
    // SAFETY: as the caller promises.
    let (name, doc) = unsafe { (str_of(f.name)?.to_owned(), str_of(f.doc)?.to_owned()) };
    let (kind, size) = match f.kind {
        EP_FIELD_SIZE => (ArgKind::Size, 8),
        EP_FIELD_DIMS | EP_FIELD_INTS | EP_FIELD_ADDRESSES => {
            let length = f.link as usize;
            if all.get(length).is_none_or(|l| l.kind != EP_FIELD_SIZE) {
                return Err(Error::invalid(format!(
                    "the list `{name}` has no size field {length} for its length"
                )));
            }
            match f.kind {
                EP_FIELD_DIMS => (ArgKind::Dims { length }, 8),
                EP_FIELD_INTS => (ArgKind::Ints { length }, 8),
                _ => (ArgKind::Addresses { length }, 8),
            }
        }
        EP_FIELD_ADDRESS => (ArgKind::Address, 8),
        EP_FIELD_SCALAR => (ArgKind::Scalar, 24),
        kind => return Err(Error::invalid(format!("argument `{name}` is of unknown kind {kind}"))),
    };
    expect_size(f, &name, size)?;
    Ok(ArgField { name, doc, kind, offset: f.offset as usize })
}

/// # Safety
/// As [`decode_schema`].
unsafe fn operand(
    x: &EpOperand,
    desc: &[DescField],
    args: &[ArgField],
    at: usize,
    n: usize,
) -> Result<Operand> {
    // SAFETY: as the caller promises.
    let name = unsafe { str_of(x.name) }?.to_owned();
    // SAFETY: as the caller promises.
    let count = unsafe { decode(x.count, x.num_count) }?
        .ok_or_else(|| Error::invalid(format!("operand `{name}` does not say how many elements it has")))?;
    check_names(&count, args)?;
    // SAFETY: as the caller promises.
    let covers = unsafe { decode(x.covers, x.num_covers) }?;
    if let Some(covers) = &covers {
        check_names(covers, args)?;
    }
    let index = |i: u32| (i != EP_NO_INDEX).then_some(i as usize);
    let (dtype, scalar, arg) = (index(x.dtype), index(x.scalar), x.arg as usize);
    let (reads, writes) = (x.access & EP_ACCESS_READ != 0, x.access & EP_ACCESS_WRITE != 0);
    let known = EP_ACCESS_READ | EP_ACCESS_WRITE | EP_ACCESS_OPTIONAL;
    // A list of buffers is the last operand, and only read.
    let address = args.get(arg).is_some_and(|f| match f.kind {
        ArgKind::Address => true,
        ArgKind::Addresses { .. } => at + 1 == n && !writes && scalar.is_none(),
        _ => false,
    });
    let valid = dtype.is_none_or(|d| desc.get(d).is_some_and(|f| f.kind == DescKind::DType))
        && scalar.is_none_or(|s| args.get(s).is_some_and(|f| f.kind == ArgKind::Scalar))
        && address
        && (reads || writes)
        && (covers.is_none() || !reads)
        && x.access & !known == 0
        && (n == 64 || x.in_place >> n == 0);
    if !valid {
        return Err(Error::invalid(format!(
            "operand `{name}` refers to a dtype, scalar, address, access or operand that does not exist"
        )));
    }
    let optional = x.access & EP_ACCESS_OPTIONAL != 0;
    Ok(Operand { name, dtype, reads, writes, optional, arg, scalar, in_place: x.in_place, count, covers })
}

/// Sizes and costs may only speak of arguments that exist, dims as dims and sizes as sizes.
fn check_names(e: &Expr, args: &[ArgField]) -> Result<()> {
    let mut wrong = None;
    e.facts(&mut |kind, name| {
        let found = args.iter().find(|a| a.name == name).map(|a| a.kind);
        let fits = matches!(
            (kind, found),
            (FactKind::Arg, Some(ArgKind::Size | ArgKind::Dims { .. } | ArgKind::Ints { .. }))
                | (FactKind::Prod, Some(ArgKind::Dims { .. }))
        );
        if !fits {
            wrong = Some(format!("{}({name:?})", kind.word()));
        }
    });
    match wrong {
        None => Ok(()),
        Some(fact) => Err(Error::invalid(format!("`{e}`: there is no {fact} among the arguments"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{EpStr, text};
    use crate::op::Op;
    use crate::primitive::{Add, Softmax};

    fn decode_changed(change: impl FnOnce(&mut EpOpSchema)) -> Result<Schema> {
        let mut s = *Softmax::raw_schema();
        change(&mut s);
        // SAFETY: static data with the test's changes, which keep pointers valid or null.
        unsafe { decode_schema(&s) }
    }

    #[test]
    fn bad_schemas_are_refused_with_the_op_named() {
        assert!(decode_changed(|_| {}).is_ok());
        let err = |c: fn(&mut EpOpSchema)| decode_changed(c).unwrap_err().to_string();
        assert!(err(|s| s.desc_size = 20).contains("schema of op `softmax`"));
        assert!(err(|s| s.args_size = 40).contains("outside"));
        assert!(err(|s| s.name = text("No Spaces")).contains("lower-case"));
        assert!(err(|s| s.desc_fields = std::ptr::null()).contains("at a null address"));
        assert!(err(|s| s.num_operands = u64::MAX).contains("more than the 16777216 that are believed"));
        assert!(err(|s| s.flags = 8).contains("flags"));
        assert!(err(|s| s.summary = EpStr { ptr: std::ptr::null(), len: 9 }).contains("text"));
        assert!(err(|s| s.num_arg_fields -= 1).contains("operand `dst`"));
    }

    /// The schema of `add` with these arguments and operands.
    fn decode_add(args: &[EpField], operands: &[EpOperand]) -> Result<Schema> {
        let mut s = *Add::raw_schema();
        (s.arg_fields, s.num_arg_fields) = (args.as_ptr(), args.len() as u64);
        (s.operands, s.num_operands) = (operands.as_ptr(), operands.len() as u64);
        // SAFETY: slices that live during the call, and static data.
        unsafe { decode_schema(&s) }
    }

    #[test]
    fn lengths_of_buffers_and_addresses_are_not_shared() {
        let raw = Add::raw_schema();
        // SAFETY: a static schema's lists.
        let (args, operands) = unsafe {
            (
                list(raw.arg_fields, raw.num_arg_fields, "").unwrap(),
                list(raw.operands, raw.num_operands, "").unwrap(),
            )
        };
        assert!(decode_add(args, operands).is_ok());
        let mut shared = args.to_vec();
        // `count` becomes a shape as long as the list of sources.
        (shared[0].kind, shared[0].link) = (EP_FIELD_DIMS, 2);
        let e = decode_add(&shared, operands).unwrap_err().to_string();
        assert!(e.contains("`count`") && e.contains("`srcs`"), "{e}");
        let mut one = operands.to_vec();
        one[1].arg = one[0].arg;
        let e = decode_add(args, &one).unwrap_err().to_string();
        assert!(e.contains("`dst` and `srcs`"), "{e}");
    }
}

//! Changes to the description, for the headers of versions that never were: what tests of version skew build
//! their plugins with.

use crate::model::{Abi, ArgField, ArgKind, DescField, DescKind, Field, Op};
use std::str::FromStr;

/// One change to the description. Parsed from text such as `append=EpDeviceTable.reset=fn(*mut EpDevice)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// `drop-last=STRUCT`: an older version, which lacks the last field.
    DropLast(String),
    /// `append=STRUCT.field=type`: a newer version. A type `fn(types)` makes a function that returns a status. In
    /// an op's descriptor the type is `f64` (an attribute) or the name of an enum (a selector), in its arguments `i64` (a
    /// size) or `EpScalar`.
    Append(String, String, String),
    /// `swap=STRUCT.a,b`: an incompatible version with two fields exchanged.
    Swap(String, String, String),
    /// `retype=STRUCT.field=type`: an incompatible version. Not for the structs of ops.
    Retype(String, String, String),
    /// `minor=N`: another ABI version.
    Minor(u32),
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Change, String> {
        let bad = || {
            format!(
                "`{text}` is no change; it is drop-last=STRUCT, append=STRUCT.field=type, swap=STRUCT.a,b, \
                 retype=STRUCT.field=type or minor=N"
            )
        };
        let (what, rest) = text.split_once('=').ok_or_else(bad)?;
        let field = || -> Option<[String; 3]> {
            let (owner, rest) = rest.split_once('.')?;
            let (a, b) = rest.split_once(if what == "swap" { ',' } else { '=' })?;
            Some([owner.into(), a.into(), b.into()])
        };
        match what {
            "drop-last" => Ok(Change::DropLast(rest.into())),
            "minor" => rest.parse().map(Change::Minor).map_err(|_| bad()),
            "append" => field().map(|[s, f, t]| Change::Append(s, f, t)).ok_or_else(bad),
            "swap" => field().map(|[s, a, b]| Change::Swap(s, a, b)).ok_or_else(bad),
            "retype" => field().map(|[s, f, t]| Change::Retype(s, f, t)).ok_or_else(bad),
            _ => Err(bad()),
        }
    }
}

/// The fields that a struct's name stands for.
enum Target<'a> {
    Fields(&'a mut Vec<Field>),
    Desc(&'a mut Op),
    Args(&'a mut Op),
}

fn target<'a>(abi: &'a mut Abi, name: &str) -> Result<Target<'a>, String> {
    if let Some(s) = abi.structs.iter_mut().find(|s| s.name == name) {
        return Ok(Target::Fields(&mut s.fields));
    }
    if let Some(t) = abi.tables.iter_mut().find(|t| t.name == name) {
        return Ok(Target::Fields(&mut t.functions));
    }
    let is = |op: &Op, end: &str| name == format!("Ep{}{end}", op.type_name());
    let op = abi.ops.iter_mut().find(|op| is(op, "Desc") || is(op, "Args"));
    match op {
        Some(op) if is(op, "Desc") => Ok(Target::Desc(op)),
        Some(op) => Ok(Target::Args(op)),
        None => Err(format!("there is no struct `{name}`")),
    }
}

/// Applies one change.
pub fn apply(abi: &mut Abi, change: &Change) -> Result<(), String> {
    let result = match change {
        Change::Minor(minor) => {
            abi.minor = *minor;
            Ok(())
        }
        Change::DropLast(name) => drop_last(target(abi, name)?),
        Change::Append(name, field, ty) => {
            let choices = abi.enums.contains_key(ty).then(|| ty.clone());
            append(target(abi, name)?, field, ty, choices)
        }
        Change::Swap(name, a, b) => match target(abi, name)? {
            Target::Fields(fields) => swap(fields, a, b, |f| &f.name),
            Target::Desc(op) => swap(&mut op.desc, a, b, |f| &f.name),
            Target::Args(op) => swap(&mut op.arg, a, b, |f| &f.name),
        },
        Change::Retype(name, field, ty) => match target(abi, name)? {
            Target::Fields(fields) => retype(fields, field, ty),
            _ => Err("the fields of ops have kinds, not types".into()),
        },
    };
    result.map_err(|e| format!("{change:?}: {e}"))?;
    known_types(abi).map_err(|e| format!("{change:?}: {e}"))
}

fn swap<T>(fields: &mut [T], a: &str, b: &str, name: impl Fn(&T) -> &str) -> Result<(), String> {
    let find = |wanted: &str| {
        fields.iter().position(|f| name(f) == wanted).ok_or_else(|| format!("there is no field `{wanted}`"))
    };
    let (i, j) = (find(a)?, find(b)?);
    fields.swap(i, j);
    Ok(())
}

fn drop_last(target: Target<'_>) -> Result<(), String> {
    match target {
        Target::Fields(fields) => fields.pop().map(|_| ()).ok_or("no field is left".into()),
        Target::Desc(op) => {
            let last = op.desc.pop().ok_or("no field is left")?;
            unused(op, &last.name, op.operand.iter().any(|x| x.dtype.as_ref() == Some(&last.name)))
        }
        Target::Args(op) => {
            let last = op.arg.pop().ok_or("no field is left")?;
            let uses = |s: &Option<String>| s.as_ref() == Some(&last.name);
            let named = op.operand.iter().any(|x| x.name == last.name || uses(&x.scalar) || uses(&x.read_if))
                || op.arg.iter().any(|a| uses(&a.length));
            unused(op, &last.name, named)
        }
    }
}

fn unused(op: &Op, name: &str, used: bool) -> Result<(), String> {
    if used { Err(format!("`{}` cannot do without its last field `{name}`", op.name)) } else { Ok(()) }
}

fn append(target: Target<'_>, name: &str, ty: &str, choices: Option<String>) -> Result<(), String> {
    let doc = "Added by a test.".to_owned();
    match (target, ty) {
        (Target::Fields(fields), _) => fields.push(typed(Field::data(name, "u64", &doc), ty)?),
        (Target::Desc(op), "f64") => {
            let kind = DescKind::Attr;
            op.desc.push(DescField { name: name.into(), kind, choices: None, bounds: None, doc });
        }
        (Target::Desc(op), _) if choices.is_some() => {
            let kind = DescKind::Selector;
            op.desc.push(DescField { name: name.into(), kind, choices, bounds: None, doc });
        }
        (Target::Args(op), "i64" | "EpScalar") => {
            let kind = if ty == "i64" { ArgKind::Size } else { ArgKind::Scalar };
            op.arg.push(ArgField { name: name.into(), kind, length: None, doc });
        }
        (_, other) => return Err(format!("an op's struct cannot be given a field of type `{other}`")),
    }
    Ok(())
}

fn retype(fields: &mut [Field], name: &str, ty: &str) -> Result<(), String> {
    let field =
        fields.iter_mut().find(|f| f.name == name).ok_or_else(|| format!("there is no field `{name}`"))?;
    *field = typed(field.clone(), ty)?;
    Ok(())
}

/// The field with another type: `u64`, `*const EpCopy`, `fn(*mut EpDevice, u64)`.
fn typed(mut field: Field, ty: &str) -> Result<Field, String> {
    let Some(list) = ty.strip_prefix("fn(") else {
        (field.ty, field.args, field.returns) = (Some(ty.into()), None, None);
        return Ok(field);
    };
    let list = list.strip_suffix(')').ok_or_else(|| format!("`{ty}` lacks its `)`"))?;
    let types = list.split(',').map(str::trim).filter(|t| !t.is_empty());
    field.args = Some(types.enumerate().map(|(i, t)| [format!("a{i}"), t.to_owned()]).collect());
    (field.ty, field.returns, field.optional) = (None, None, true);
    Ok(field)
}

fn known_types(abi: &Abi) -> Result<(), String> {
    let fields =
        abi.structs.iter().flat_map(|s| &s.fields).chain(abi.tables.iter().flat_map(|t| &t.functions));
    for f in fields {
        let args = f.args.iter().flatten().map(|[_, t]| t);
        if let Some(ty) = args.chain(&f.ty).find(|t| !abi.is_known(t)) {
            return Err(format!("`{}`: unknown type `{ty}`", f.name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_parse() {
        let ok = |t: &str| t.parse::<Change>().unwrap();
        assert_eq!(ok("drop-last=EpCopy"), Change::DropLast("EpCopy".into()));
        assert_eq!(ok("swap=EpCopy.dst,src"), Change::Swap("EpCopy".into(), "dst".into(), "src".into()));
        assert_eq!(ok("minor=7"), Change::Minor(7));
        let append = ok("append=EpDeviceTable.reset=fn(*mut EpDevice)");
        assert_eq!(
            append,
            Change::Append("EpDeviceTable".into(), "reset".into(), "fn(*mut EpDevice)".into())
        );
        for bad in
            ["", "drop-last", "append=EpCopy", "append=EpCopy.x", "swap=EpCopy.a=b", "minor=x", "grow=EpCopy"]
        {
            assert!(bad.parse::<Change>().unwrap_err().contains("is no change"), "{bad}");
        }
    }
}

//! The description in `ep-core/abi/`: parsing, layout and fingerprints.

use crate::contract::{Clause, Common, Trait};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Everything that `abi.toml`, `enums.toml` and `ops/*.toml` say.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Abi {
    pub major: u32,
    pub minor: u32,
    pub opaque: Vec<Named>,
    pub callback: Vec<Callback>,
    #[serde(rename = "struct")]
    pub structs: Vec<Struct>,
    #[serde(rename = "table")]
    pub tables: Vec<Table>,
    pub constants: Vec<Constants>,
    #[serde(skip)]
    pub enums: BTreeMap<String, Vec<String>>,
    #[serde(skip)]
    pub common: Common,
    #[serde(skip)]
    pub ops: Vec<Op>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Named {
    pub name: String,
    pub doc: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Callback {
    pub name: String,
    pub doc: String,
    pub args: Vec<[String; 2]>,
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub struct Struct {
    pub name: String,
    pub doc: String,
    #[serde(default)]
    pub frozen: bool,
    #[serde(default)]
    pub out: bool,
    pub fields: Vec<Field>,
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub struct Table {
    pub name: String,
    pub doc: String,
    pub interface: Option<String>,
    pub functions: Vec<Field>,
}

/// A data field (`type`) or a function (`args`).
#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub struct Field {
    pub name: String,
    pub doc: String,
    #[serde(rename = "type")]
    pub ty: Option<String>,
    pub args: Option<Vec<[String; 2]>>,
    pub returns: Option<String>,
    #[serde(default)]
    pub optional: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constants {
    pub prefix: String,
    pub doc: String,
    pub values: toml::Table,
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub struct Op {
    pub name: String,
    pub version: u32,
    pub summary: String,
    pub clause: Vec<Clause>,
    /// What has no meaning for it.
    #[serde(default)]
    pub without: Vec<Trait>,
    #[serde(default = "yes")]
    pub deterministic: bool,
    pub flops: Option<String>,
    #[serde(default)]
    pub desc: Vec<DescField>,
    pub arg: Vec<ArgField>,
    pub operand: Vec<Operand>,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
pub enum DescKind {
    Selector,
    Dtype,
    Attr,
    Limit,
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub struct DescField {
    pub name: String,
    pub kind: DescKind,
    #[serde(rename = "enum")]
    pub choices: Option<String>,
    pub bounds: Option<String>,
    pub doc: String,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
pub enum ArgKind {
    Size,
    Dims,
    Address,
    Scalar,
    Ints,
    Addresses,
}

impl ArgKind {
    /// Whether it is a pointer to as many values as another field says.
    pub fn is_list(self) -> bool {
        matches!(self, ArgKind::Dims | ArgKind::Ints | ArgKind::Addresses)
    }
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub struct ArgField {
    pub name: String,
    pub kind: ArgKind,
    pub length: Option<String>,
    pub doc: String,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    Read,
    Write,
    ReadWrite,
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub struct Operand {
    pub name: String,
    pub dtype: Option<String>,
    pub access: Access,
    pub count: String,
    pub scalar: Option<String>,
    pub read_if: Option<String>,
    pub covers: Option<String>,
    #[serde(default)]
    pub optional: bool,
    #[serde(default)]
    pub in_place: Vec<String>,
}

impl Operand {
    /// The expressions over the arguments that say how much of it a launch touches.
    pub fn sizes(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.count).chain(self.covers.as_deref())
    }
}

/// A field with its place.
pub struct Placed<'a> {
    pub field: &'a Field,
    pub offset: u64,
    pub size: u64,
}

/// The place of every field of a struct, its size, and the hash of each prefix of fields.
pub struct Layout<'a> {
    pub fields: Vec<Placed<'a>>,
    pub prefixes: Vec<u64>,
    pub size: u64,
}

/// What a function returns of which nothing else is said.
pub const STATUS: &str = "*const EpStatus";

fn fnv(mut hash: u64, bytes: &[u8]) -> u64 {
    for b in bytes {
        hash = (hash ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}

impl Field {
    pub fn is_function(&self) -> bool {
        self.args.is_some()
    }

    /// A data field.
    pub fn data(name: &str, ty: &str, doc: &str) -> Field {
        Field {
            name: name.into(),
            doc: doc.into(),
            ty: Some(ty.into()),
            args: None,
            returns: None,
            optional: false,
        }
    }
}

impl Constants {
    /// Names and values in the order of the values.
    pub fn sorted(&self) -> Vec<(&str, i64)> {
        let value =
            |v: &toml::Value| v.as_integer().unwrap_or_else(|| panic!("{}: integers only", self.prefix));
        let mut rows: Vec<_> = self.values.iter().map(|(n, v)| (n.as_str(), value(v))).collect();
        rows.sort_by_key(|(_, v)| *v);
        rows
    }

    /// Status codes are signed, everything else is not.
    pub fn is_signed(&self) -> bool {
        self.prefix == "EP_CODE"
    }
}

impl Abi {
    /// The fields of a struct or table as laid out, `struct_size` included.
    pub fn fields_of(&self, name: &str) -> Vec<Field> {
        if let Some(s) = self.structs.iter().find(|s| s.name == name) {
            return if s.frozen { s.fields.clone() } else { with_head(&s.fields) };
        }
        let table = self.tables.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("no struct {name}"));
        with_head(&table.functions)
    }

    pub fn is_callback(&self, ty: &str) -> bool {
        self.callback.iter().any(|c| c.name == ty)
    }

    /// Whether a type is part of the description's language.
    pub fn is_known(&self, ty: &str) -> bool {
        let base = base_type(ty);
        let words = ["u8", "u32", "u64", "i32", "i64", "f64"];
        let names = |n: &String| n == base;
        words.contains(&base)
            || (base != ty && ["char", "void"].contains(&base))
            || base == "[u8; 16]"
            || self.is_callback(base)
            || self.structs.iter().any(|s| names(&s.name) && (s.frozen || base != ty))
            || (base != ty && self.tables.iter().any(|t| names(&t.name)))
            || (base != ty && self.opaque.iter().any(|x| names(&x.name)))
    }

    /// (size, alignment) of a type.
    fn extent(&self, ty: &str) -> (u64, u64) {
        match ty {
            _ if ty.starts_with('*') || self.is_callback(ty) => (8, 8),
            "u8" | "char" => (1, 1),
            "u32" | "i32" => (4, 4),
            "u64" | "i64" | "f64" => (8, 8),
            "[u8; 16]" => (16, 1),
            name => {
                let s = self.structs.iter().find(|s| s.name == name);
                let s = s.unwrap_or_else(|| panic!("unknown type {name}"));
                assert!(s.frozen, "growable {name} may not be embedded by value");
                let fields = self.fields_of(name);
                let layout = self.layout(name, &fields);
                let align = fields.iter().map(|f| self.field_extent(f).1).max().unwrap_or(1);
                (layout.size, align)
            }
        }
    }

    fn field_extent(&self, f: &Field) -> (u64, u64) {
        if f.is_function() { (8, 8) } else { self.extent(f.ty.as_deref().expect("type or args")) }
    }

    /// The text of a field's type that goes into fingerprints; frozen structs and callbacks are folded in,
    /// because a peer that sees them differently sees this field differently.
    fn canonical(&self, f: &Field, owner: &str) -> String {
        match &f.args {
            Some(args) => self.signature(args, f.returns.as_deref(), owner),
            None => self.canonical_type(f.ty.as_deref().expect("type or args"), owner),
        }
    }

    fn signature(&self, args: &[[String; 2]], returns: Option<&str>, owner: &str) -> String {
        let args: Vec<_> = args.iter().map(|[_, t]| self.canonical_type(t, owner)).collect();
        let returns = returns.unwrap_or(STATUS);
        format!("fn({})->{}", args.join(","), self.canonical_type(returns, owner))
    }

    fn canonical_type(&self, ty: &str, owner: &str) -> String {
        if let Some(c) = self.callback.iter().find(|c| c.name == ty) {
            return self.signature(&c.args, None, owner);
        }
        match self.structs.iter().find(|s| s.name == base_type(ty) && s.frozen && s.name != owner) {
            Some(s) => {
                let fields = self.fields_of(&s.name);
                let print = self.layout(&s.name, &fields).prefixes.last().copied().unwrap_or_default();
                format!("{ty}#{print:016x}")
            }
            None => ty.to_owned(),
        }
    }

    /// Places `fields` as C does.
    ///
    /// # Errors
    /// The field before which, or the struct at whose end, there would be implicit padding.
    pub fn place<'a>(&self, name: &str, fields: &'a [Field]) -> Result<Layout<'a>, String> {
        let mut offset = 0;
        let mut align_max = 1;
        let mut hash = 0xcbf2_9ce4_8422_2325;
        let (mut placed, mut prefixes) = (Vec::new(), Vec::new());
        for field in fields {
            let (size, align) = self.field_extent(field);
            if offset % align != 0 {
                return Err(format!("{name}.{} would need implicit padding", field.name));
            }
            let canonical = self.canonical(field, name);
            hash = fnv(hash, format!("{}:{canonical}@{offset}+{size};", field.name).as_bytes());
            prefixes.push(hash);
            placed.push(Placed { field, offset, size });
            offset += size;
            align_max = align_max.max(align);
        }
        if offset % align_max != 0 {
            return Err(format!("{name} would need implicit padding at its end"));
        }
        Ok(Layout { fields: placed, prefixes, size: offset })
    }

    /// The same of a description that [`Abi::check`] has found right.
    pub fn layout<'a>(&self, name: &str, fields: &'a [Field]) -> Layout<'a> {
        self.place(name, fields).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Names of all growable structs and tables, in order.
    pub fn growable(&self) -> Vec<String> {
        let structs = self.structs.iter().filter(|s| !s.frozen).map(|s| s.name.clone());
        structs.chain(self.tables.iter().map(|t| t.name.clone())).collect()
    }

    /// One hash over the whole contract, shown by `ep --version`: every struct and table, every constant and
    /// selector value, and the shape of every op. Docs do not count.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325;
        let names = self.structs.iter().map(|s| &s.name).chain(self.tables.iter().map(|t| &t.name));
        for name in names {
            let fields = self.fields_of(name);
            let print = self.layout(name, &fields).prefixes.last().copied().unwrap_or_default();
            hash = fnv(hash, format!("{name}#{print:016x};").as_bytes());
        }
        for group in &self.constants {
            for (name, value) in group.sorted() {
                hash = fnv(hash, format!("{}_{name}={value};", group.prefix).as_bytes());
            }
        }
        for (name, values) in &self.enums {
            hash = fnv(hash, format!("{name}={};", values.join(",")).as_bytes());
        }
        self.ops.iter().fold(hash, |hash, op| fnv(hash, op.shape().as_bytes()))
    }

    /// The two structs of an op as C sees them.
    pub fn op_structs(&self, op: &Op) -> [OpStruct; 2] {
        let t = op.type_name();
        let (desc, args) = (op.desc_fields(), op.arg_fields());
        let [desc_name, args_name] = [format!("Ep{t}Desc"), format!("Ep{t}Args")];
        [
            OpStruct {
                name: desc_name,
                doc: format!("What is fixed when a `{}` is created.", op.name),
                fields: desc,
            },
            OpStruct {
                name: args_name,
                doc: format!("What may change with each launch of a `{}`.", op.name),
                fields: args,
            },
        ]
    }
}

/// One of an op's two structs.
pub struct OpStruct {
    pub name: String,
    pub doc: String,
    pub fields: Vec<Field>,
}

/// A type without its pointers.
pub fn base_type(mut ty: &str) -> &str {
    while let Some(rest) = ty.strip_prefix("*const ").or_else(|| ty.strip_prefix("*mut ")) {
        ty = rest;
    }
    ty
}

fn with_head(fields: &[Field]) -> Vec<Field> {
    let head = Field::data("struct_size", "u64", "Bytes of this struct as its maker knows it.");
    std::iter::once(head).chain(fields.iter().cloned()).collect()
}

/// What the constants of a selector's values begin with in C.
pub fn enum_prefix(name: &str) -> String {
    format!("EP_{}", name.to_uppercase())
}

/// One field of an op's struct with its place.
pub struct Slot {
    pub name: String,
    pub offset: u64,
    pub size: u64,
}

impl Op {
    /// The marker type's name: `BatchMatmul`.
    pub fn type_name(&self) -> String {
        self.name.split('_').map(|w| w[..1].to_uppercase() + &w[1..]).collect()
    }

    /// Name of a descriptor field in the struct: limits are called `max_...` there.
    pub fn desc_member(f: &DescField) -> String {
        if f.kind == DescKind::Limit { format!("max_{}", f.name) } else { f.name.clone() }
    }

    /// Offsets of the descriptor's fields, its size, and whether it is padded. The head is `struct_size`, `alignment`.
    ///
    /// # Errors
    /// Where its one explicit padding would not do.
    pub fn place_desc(&self) -> Result<(Vec<Slot>, u64, bool), String> {
        let twice = || Err("padding in two places; selectors and dtypes come first".to_owned());
        let mut offset = 16;
        let mut slots = Vec::new();
        let mut padded = false;
        for f in &self.desc {
            let size = if matches!(f.kind, DescKind::Selector | DescKind::Dtype) { 4 } else { 8 };
            if size == 8 && offset % 8 != 0 {
                if padded {
                    return twice();
                }
                padded = true;
                offset += 4;
            }
            slots.push(Slot { name: Self::desc_member(f), offset, size });
            offset += size;
        }
        if offset % 8 != 0 {
            if padded {
                return twice();
            }
            padded = true;
            offset += 4;
        }
        Ok((slots, offset, padded))
    }

    /// The same as [`Op::place_desc`] of a description that [`Abi::check`] has found right.
    pub fn desc_layout(&self) -> (Vec<Slot>, u64, bool) {
        self.place_desc().unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    /// Offsets of the argument fields, and the struct's size. The head is four words.
    pub fn args_layout(&self) -> (Vec<Slot>, u64) {
        let mut offset = 32;
        let mut slots = Vec::new();
        for f in &self.arg {
            let size = if f.kind == ArgKind::Scalar { 24 } else { 8 };
            slots.push(Slot { name: f.name.clone(), offset, size });
            offset += size;
        }
        (slots, offset)
    }

    /// The descriptor struct's fields: head, explicit padding and all.
    pub fn desc_fields(&self) -> Vec<Field> {
        let (slots, size, padded) = self.desc_layout();
        let pad = || Field::data("reserved", "u32", "Zero.");
        let mut fields = vec![
            Field::data("struct_size", "u64", "Bytes of this struct."),
            Field::data(
                "alignment",
                "u64",
                "Every address will be a multiple of this; 0: of its element's alignment.",
            ),
        ];
        let mut at = 16;
        for (f, s) in self.desc.iter().zip(&slots) {
            if s.offset != at {
                fields.push(pad());
            }
            let (ty, note) = match f.kind {
                DescKind::Selector => {
                    ("u32", format!(" One of {}_*.", enum_prefix(f.choices.as_deref().expect("enum"))))
                }
                DescKind::Dtype => ("u32", " One of EP_DTYPE_*.".to_owned()),
                DescKind::Attr => ("f64", String::new()),
                DescKind::Limit => ("u64", " 0: unbounded.".to_owned()),
            };
            fields.push(Field::data(&s.name, ty, &format!("{}{note}", f.doc)));
            at = s.offset + s.size;
        }
        if at != size {
            fields.push(pad());
        }
        assert_eq!(fields.iter().any(|f| f.name == "reserved"), padded, "{}", self.name);
        fields
    }

    /// The argument struct's fields, head included.
    pub fn arg_fields(&self) -> Vec<Field> {
        let mut fields = vec![
            Field::data("struct_size", "u64", "Bytes of this struct."),
            Field::data("flags", "u64", "Zero."),
            Field::data("workspace", "u64", "Address of scratch memory, or 0."),
            Field::data("workspace_bytes", "u64", "Bytes of scratch memory."),
        ];
        for f in &self.arg {
            let (ty, note) = match f.kind {
                ArgKind::Size => ("i64", String::new()),
                ArgKind::Dims | ArgKind::Ints => {
                    ("*const i64", format!(" `{}` values.", f.length.as_deref().expect("length")))
                }
                ArgKind::Addresses => {
                    ("*const u64", format!(" `{}` device addresses.", f.length.as_deref().expect("length")))
                }
                ArgKind::Address => ("u64", " A device address.".to_owned()),
                ArgKind::Scalar => ("EpScalar", String::new()),
            };
            fields.push(Field::data(&f.name, ty, &format!("{}{note}", f.doc)));
        }
        fields
    }

    /// Everything about the op that a peer can disagree on, as text for the fingerprint.
    fn shape(&self) -> String {
        use std::fmt::Write;
        let mut s = format!("{}@{}:{}:{:?};", self.name, self.version, self.deterministic, self.flops);
        for f in &self.desc {
            write!(s, "{}:{:?}:{:?}:{:?};", f.name, f.kind, f.choices, f.bounds).expect("text");
        }
        for f in &self.arg {
            write!(s, "{}:{:?}:{:?};", f.name, f.kind, f.length).expect("text");
        }
        for x in &self.operand {
            let Operand { name, dtype, access, count, scalar, read_if, covers, optional, in_place } = x;
            write!(s, "{name}:{dtype:?}:{access:?}:{count}:{scalar:?}:{read_if:?}:{in_place:?};")
                .expect("text");
            write!(s, "{covers:?}:{optional};").expect("text");
        }
        s
    }

    pub fn arg_index(&self, name: &str) -> usize {
        self.arg
            .iter()
            .position(|a| a.name == name)
            .unwrap_or_else(|| panic!("{}: no argument {name}", self.name))
    }

    /// Whether an operand is a list of buffers; only the last one can be.
    pub fn is_list(&self, x: &Operand) -> bool {
        self.arg[self.arg_index(&x.name)].kind == ArgKind::Addresses
    }

    /// The list of buffers, if the op has one.
    pub fn list(&self) -> Option<&Operand> {
        let at = self.operand.iter().position(|x| self.is_list(x))?;
        assert_eq!(at + 1, self.operand.len(), "{}: the list of buffers comes last", self.name);
        self.operand.last()
    }

    pub fn desc_index(&self, name: &str) -> usize {
        self.desc
            .iter()
            .position(|a| a.name == name)
            .unwrap_or_else(|| panic!("{}: no field {name}", self.name))
    }

    pub fn operand_index(&self, name: &str) -> usize {
        self.operand
            .iter()
            .position(|a| a.name == name)
            .unwrap_or_else(|| panic!("{}: no operand {name}", self.name))
    }
}

//! The description in `ep-core/abi/`: parsing, layout and fingerprints.

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
    pub contract: String,
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
    #[serde(default)]
    pub in_place: Vec<String>,
}

/// A field with its place.
pub struct Placed<'a> {
    pub field: &'a Field,
    pub canonical: String,
    pub offset: u64,
    pub size: u64,
}

/// The place of every field of a struct, its size, and the hash of each prefix of fields.
pub struct Layout<'a> {
    pub fields: Vec<Placed<'a>>,
    pub prefixes: Vec<u64>,
    pub size: u64,
}

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

    fn signature(&self) -> String {
        let args = self.args.as_deref().unwrap_or_default();
        let args: Vec<_> = args.iter().map(|[_, t]| t.clone()).collect();
        format!("fn({})->{}", args.join(","), self.returns.as_deref().unwrap_or("status"))
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

    /// (size, alignment) of a type.
    fn extent(&self, ty: &str) -> (u64, u64) {
        match ty {
            _ if ty.starts_with('*') || self.callback.iter().any(|c| c.name == ty) => (8, 8),
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

    /// The text of a field's type that goes into fingerprints; frozen structs are folded in.
    fn canonical(&self, f: &Field, owner: &str) -> String {
        if f.is_function() {
            return f.signature();
        }
        let ty = f.ty.as_deref().expect("type or args");
        let base = ty.trim_start_matches("*const ").trim_start_matches("*mut ");
        match self.structs.iter().find(|s| s.name == base && s.frozen && s.name != owner) {
            Some(s) => {
                let fields = self.fields_of(&s.name);
                let print = self.layout(&s.name, &fields).prefixes.last().copied().unwrap_or_default();
                format!("{ty}#{print:016x}")
            }
            None => ty.to_owned(),
        }
    }

    /// Places `fields` as C does and refuses implicit padding.
    pub fn layout<'a>(&self, name: &str, fields: &'a [Field]) -> Layout<'a> {
        let mut offset = 0;
        let mut align_max = 1;
        let mut hash = 0xcbf2_9ce4_8422_2325;
        let (mut placed, mut prefixes) = (Vec::new(), Vec::new());
        for field in fields {
            let (size, align) = self.field_extent(field);
            assert_eq!(offset % align, 0, "{name}.{} would need implicit padding", field.name);
            let canonical = self.canonical(field, name);
            hash = fnv(hash, format!("{}:{canonical}@{offset}+{size};", field.name).as_bytes());
            prefixes.push(hash);
            placed.push(Placed { field, canonical, offset, size });
            offset += size;
            align_max = align_max.max(align);
        }
        assert_eq!(offset % align_max, 0, "{name} would need implicit padding at its end");
        Layout { fields: placed, prefixes, size: offset }
    }

    /// Names of all growable structs and tables, in order.
    pub fn growable(&self) -> Vec<String> {
        let structs = self.structs.iter().filter(|s| !s.frozen).map(|s| s.name.clone());
        structs.chain(self.tables.iter().map(|t| t.name.clone())).collect()
    }

    /// One hash over the whole contract, shown by `ep --version`.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325;
        for name in self.growable() {
            let fields = self.fields_of(&name);
            hash = fnv(hash, name.as_bytes());
            hash = fnv(hash, &self.layout(&name, &fields).prefixes.last().copied().unwrap_or(0).to_le_bytes());
        }
        hash
    }
}

fn with_head(fields: &[Field]) -> Vec<Field> {
    let head = Field {
        name: "struct_size".into(),
        doc: "Bytes of this struct as its maker knows it.".into(),
        ty: Some("u64".into()),
        args: None,
        returns: None,
        optional: false,
    };
    std::iter::once(head).chain(fields.iter().cloned()).collect()
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

    /// Offsets of the descriptor's fields, and its size. The head is `struct_size`, `alignment`.
    pub fn desc_layout(&self) -> (Vec<Slot>, u64, bool) {
        let mut offset = 16;
        let mut slots = Vec::new();
        let mut padded = false;
        for f in &self.desc {
            let size = if matches!(f.kind, DescKind::Selector | DescKind::Dtype) { 4 } else { 8 };
            if size == 8 && offset % 8 != 0 {
                assert!(!padded, "{}: selectors and dtypes come first", self.name);
                padded = true;
                offset += 4;
            }
            slots.push(Slot { name: Self::desc_member(f), offset, size });
            offset += size;
        }
        if offset % 8 != 0 {
            padded = true;
            offset += 4;
        }
        (slots, offset, padded)
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

    pub fn arg_index(&self, name: &str) -> usize {
        self.arg.iter().position(|a| a.name == name).unwrap_or_else(|| panic!("{}: no argument {name}", self.name))
    }

    pub fn desc_index(&self, name: &str) -> usize {
        self.desc.iter().position(|a| a.name == name).unwrap_or_else(|| panic!("{}: no field {name}", self.name))
    }

    pub fn operand_index(&self, name: &str) -> usize {
        self.operand.iter().position(|a| a.name == name).unwrap_or_else(|| panic!("{}: no operand {name}", self.name))
    }
}

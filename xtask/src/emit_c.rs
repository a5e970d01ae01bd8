//! Writes `ep-core/include/ep_plugin.h`.

mod schema;

use crate::contract;
use crate::emit_abi::snake;
use crate::model::{Abi, Constants, Field, Op, base_type, enum_prefix};
use std::fmt::Write;

const ESSAY: &str = include_str!("emit_c/essay.h");
const PRELUDE: &str = include_str!("emit_c/prelude.h");
const HELPERS: &str = include_str!("emit_c/helpers.h");
const ENTRY: &str = include_str!("emit_c/entry.h");

/// Chapters in reading order: title, prefixes of constants, structs. What stands in none of them follows at
/// the end, so that a new struct is never forgotten.
const CHAPTERS: &[(&str, &[&str], &[&str])] = &[
    ("Values", &["EP_DTYPE", "EP_SCALAR", "EP_CODE"], &["EpStr", "EpScalar", "EpStatus", "EpUuid"]),
    (
        "The plugin and its instances",
        &["EP_PLUGIN"],
        &["EpPlugin", "EpTableInfo", "EpKeyValue", "EpProviderOptions", "EpProviderTable"],
    ),
    ("What the host offers", &["EP_LEVEL"], &["EpHostServices", "EpDtypeInfo"]),
    ("Devices", &["EP_DEVICE"], &["EpAttribute", "EpDeviceInfo", "EpDeviceTable"]),
    ("Streams and events", &[], &["EpStreamOptions", "EpCopy", "EpStreamTable", "EpEventTable"]),
    ("Memory", &["EP_MEMORY"], &["EpAllocRequest", "EpMemoryStats", "EpAllocatorTable"]),
    (
        "Ops: schemas, factories, primitives",
        &["EP_EXPR", "EP_FIELD", "EP_ACCESS", "EP_OP", "EP_FACTORY"],
        &[
            "EpExprNode",
            "EpField",
            "EpOperand",
            "EpOpSchema",
            "EpPrimitiveTable",
            "EpFactoryInfo",
            "EpRegistrar",
        ],
    ),
    ("Optional interfaces", &[], &["EpInterface"]),
];

/// Words that C or C++ keeps for itself.
const KEYWORDS: &[&str] = &[
    "and",
    "auto",
    "bool",
    "break",
    "case",
    "catch",
    "char",
    "class",
    "const",
    "continue",
    "default",
    "delete",
    "do",
    "double",
    "else",
    "enum",
    "explicit",
    "export",
    "extern",
    "float",
    "for",
    "friend",
    "goto",
    "if",
    "inline",
    "int",
    "long",
    "mutable",
    "namespace",
    "new",
    "not",
    "operator",
    "or",
    "private",
    "protected",
    "public",
    "register",
    "restrict",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "struct",
    "switch",
    "template",
    "this",
    "throw",
    "try",
    "typedef",
    "typename",
    "union",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "while",
    "xor",
];

/// The whole header.
pub fn header(abi: &Abi) -> String {
    let mut o = format!("{ESSAY}\n#ifndef EP_PLUGIN_H\n#define EP_PLUGIN_H\n\n{PRELUDE}\n");
    writeln!(o, "/** The ABI version that this header describes, and a hash over the whole contract. */")
        .unwrap();
    writeln!(o, "#define EP_ABI_MAJOR UINT32_C({})\n#define EP_ABI_MINOR UINT32_C({})", abi.major, abi.minor)
        .unwrap();
    writeln!(o, "#define EP_ABI_FINGERPRINT UINT64_C({:#018x})", abi.fingerprint()).unwrap();
    let mut checks = String::new();
    declarations(&mut o, abi);
    chapters(&mut o, &mut checks, abi);
    title(&mut o, "The entry point");
    o.push_str(ENTRY);
    title(&mut o, "Helpers");
    o.push_str(HELPERS);
    helper_macros(&mut o, abi);
    title(&mut o, "The ops' selectors, descriptors and arguments");
    selectors(&mut o, abi);
    for op in &abi.ops {
        comment(
            &mut o,
            "",
            &format!(
                "`{}`, version {}. {}\n\n{}",
                op.name,
                op.version,
                op.summary,
                contract::list(&op.clause)
            ),
        );
        o.push('\n');
        for s in abi.op_structs(op) {
            writeln!(o, "typedef struct {0} {0};", s.name).unwrap();
            structure(&mut o, &mut checks, abi, &s.name, &s.doc, &s.fields);
        }
    }
    title(&mut o, "How this header sees the structs");
    infos(&mut o, abi);
    title(&mut o, "Layout checks");
    o.push_str(LAYOUT_MACRO);
    o.push_str(&checks);
    o.push_str("#undef EP_LAYOUT_\n");
    schema::schemas(&mut o, abi);
    o.push_str("\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n");
    while o.contains("\n\n\n") {
        o = o.replace("\n\n\n", "\n\n");
    }
    o
}

const LAYOUT_MACRO: &str = "\
#define EP_LAYOUT_(type, field, offset, bytes) \\
  EP_STATIC_ASSERT(offsetof(type, field) == (offset), #type \".\" #field \": offset\"); \\
  EP_STATIC_ASSERT(sizeof(((const type *)0)->field) == (bytes), #type \".\" #field \": size\")
";

fn title(o: &mut String, text: &str) {
    writeln!(o, "\n/* {} {text} */\n", "=".repeat(100 - text.len())).unwrap();
}

/// A documentation comment, wrapped; list items keep their lines.
fn comment(o: &mut String, indent: &str, text: &str) {
    let width = 106 - indent.len();
    let mut lines: Vec<String> = Vec::new();
    for source in text.lines() {
        let hang = if source.starts_with("- ") || source.starts_with("  ") { "  " } else { "" };
        let mut line = if source.starts_with("  ") { "  ".to_owned() } else { String::new() };
        for word in source.split_whitespace() {
            if line.trim().is_empty() {
                line.push_str(word);
            } else if line.len() + 1 + word.len() > width {
                lines.push(std::mem::replace(&mut line, format!("{hang}{word}")));
            } else {
                line.push(' ');
                line.push_str(word);
            }
        }
        lines.push(line);
    }
    let body = lines.join("\n").replace("*/", "* /");
    if lines.len() == 1 {
        writeln!(o, "{indent}/** {body} */").unwrap();
        return;
    }
    writeln!(o, "{indent}/**").unwrap();
    for line in body.lines() {
        writeln!(o, "{}", format!("{indent} * {line}").trim_end()).unwrap();
    }
    writeln!(o, "{indent} */").unwrap();
}

/// The C spelling of a declaration of `name` with a type of the description.
fn declare(ty: &str, name: &str) -> String {
    if let Some(rest) = ty.strip_prefix("*mut ") {
        return declare(rest, &format!("*{name}"));
    }
    if let Some(rest) = ty.strip_prefix("*const ") {
        return if rest.starts_with('*') {
            declare(rest, &format!("const *{name}"))
        } else {
            format!("const {}", declare(rest, &format!("*{name}")))
        };
    }
    if let Some((element, count)) = ty.strip_prefix('[').and_then(|t| t.strip_suffix(']')?.split_once("; ")) {
        return declare(element, &format!("{name}[{count}]"));
    }
    let c = match ty {
        "u8" => "uint8_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "i32" => "int32_t",
        "i64" => "int64_t",
        "f64" => "double",
        other => other,
    };
    format!("{c} {name}").trim_end().to_owned()
}

fn parameters(args: &[[String; 2]]) -> String {
    let args: Vec<_> = args.iter().map(|[n, t]| declare(t, checked(n))).collect();
    if args.is_empty() { "void".into() } else { args.join(", ") }
}

/// A name that both languages accept.
fn checked(name: &str) -> &str {
    assert!(!KEYWORDS.contains(&name), "`{name}` is a word of C or C++");
    name
}

fn declarations(o: &mut String, abi: &Abi) {
    title(o, "Objects");
    for x in &abi.opaque {
        comment(o, "", &x.doc);
        writeln!(o, "typedef struct {0} {0};", x.name).unwrap();
    }
    title(o, "Structs and tables, each described below");
    let names = abi.structs.iter().map(|s| &s.name).chain(abi.tables.iter().map(|t| &t.name));
    for name in names {
        writeln!(o, "typedef struct {name} {name};").unwrap();
    }
    for c in &abi.callback {
        o.push('\n');
        comment(o, "", &c.doc);
        writeln!(o, "typedef const EpStatus *(*{})({});", c.name, parameters(&c.args)).unwrap();
    }
}

fn chapters(o: &mut String, checks: &mut String, abi: &Abi) {
    let mut constants: Vec<&Constants> = abi.constants.iter().collect();
    let mut names: Vec<&str> = abi
        .structs
        .iter()
        .map(|s| s.name.as_str())
        .chain(abi.tables.iter().map(|t| t.name.as_str()))
        .collect();
    let last = CHAPTERS.len() - 1;
    for (i, (text, prefixes, members)) in CHAPTERS.iter().enumerate() {
        title(o, text);
        for prefix in *prefixes {
            let at = constants.iter().position(|c| c.prefix == *prefix);
            group(o, constants.remove(at.unwrap_or_else(|| panic!("no constants {prefix}"))));
        }
        for member in *members {
            let at = names.iter().position(|n| n == member);
            described(o, checks, abi, names.remove(at.unwrap_or_else(|| panic!("no struct {member}"))));
        }
        if i == last {
            constants.iter().for_each(|c| group(o, c));
            names.iter().for_each(|n| described(o, checks, abi, n));
        }
    }
}

fn group(o: &mut String, constants: &Constants) {
    comment(o, "", &constants.doc);
    let number = if constants.is_signed() { "INT32_C" } else { "UINT32_C" };
    for (name, value) in constants.sorted() {
        writeln!(o, "#define {}_{name} {number}({value})", constants.prefix).unwrap();
    }
    o.push('\n');
}

/// A struct or table with what its kind means for the reader.
fn described(o: &mut String, checks: &mut String, abi: &Abi, name: &str) {
    let (text, note) = if let Some(s) = abi.structs.iter().find(|s| s.name == name) {
        let note = match (s.frozen, s.out) {
            (true, _) => "Frozen.",
            (false, true) => "Growable. Filled by the callee, as far as the caller's `struct_size` reaches.",
            (false, false) => "Growable. Read by the callee, which does not keep the struct after the call.",
        };
        (&s.doc, note)
    } else {
        let t = abi.tables.iter().find(|t| t.name == name).expect("struct or table");
        if let Some(interface) = &t.interface {
            comment(o, "", &format!("The name of {name} for `get_interface`."));
            writeln!(o, "#define EP_{} \"{interface}\"\n", snake(name).to_uppercase()).unwrap();
        }
        (&t.doc, "Growable. A table: constant while the other side may use it.")
    };
    structure(o, checks, abi, name, &format!("{text}\n{note}"), &abi.fields_of(name));
}

fn structure(o: &mut String, checks: &mut String, abi: &Abi, name: &str, text: &str, fields: &[Field]) {
    comment(o, "", text);
    writeln!(o, "struct {name} {{").unwrap();
    for f in fields {
        let field = checked(&f.name);
        let declaration = match (&f.args, &f.ty) {
            (Some(args), _) => {
                let returns = f.returns.as_deref().unwrap_or("*const EpStatus");
                declare(returns, &format!("(*{field})({})", parameters(args)))
            }
            (None, ty) => declare(ty.as_deref().expect("type or args"), field),
        };
        let optional = if f.optional { " Optional." } else { "" };
        comment(o, "  ", &format!("{}{optional}", f.doc));
        writeln!(o, "{}", member(&declaration)).unwrap();
    }
    writeln!(o, "}};\n").unwrap();
    let layout = abi.layout(name, fields);
    for p in &layout.fields {
        writeln!(checks, "EP_LAYOUT_({name}, {}, {}, {});", p.field.name, p.offset, p.size).unwrap();
    }
    writeln!(checks, "EP_STATIC_ASSERT(sizeof({name}) == {}, \"{name}: size\");", layout.size).unwrap();
}

/// A declaration in a struct, broken between parameters where it is long.
fn member(declaration: &str) -> String {
    let mut line = String::from(" ");
    let mut out = String::new();
    for word in declaration.split_inclusive(", ") {
        if line.len() + word.trim_end().len() > 108 {
            out.push_str(line.trim_end());
            line = String::from("\n     ");
        }
        if line.trim().is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    format!("{out}{line};")
}

/// A braced initialiser of a struct of the description, whatever the order of its fields; fields that `values`
/// does not name are zero.
fn init(abi: &Abi, name: &str, values: &[(&str, String)]) -> String {
    format!("{{{}}}", items(abi, name, values).join(", "))
}

/// What stands between the braces.
fn items(abi: &Abi, name: &str, values: &[(&str, String)]) -> Vec<String> {
    let value = |f: &Field| -> String {
        if let Some((_, v)) = values.iter().find(|(n, _)| *n == f.name) {
            return v.clone();
        }
        match f.ty.as_deref() {
            Some(_) if f.name == "struct_size" => format!("sizeof({name})"),
            Some(ty) if abi.structs.iter().any(|s| s.name == ty) => init(abi, ty, &[]),
            Some(ty) if ty.starts_with('[') => "{0}".into(),
            Some(ty) if base_type(ty) == ty && !abi.is_callback(ty) => "0".into(),
            _ => "NULL".into(),
        }
    };
    abi.fields_of(name).iter().map(value).collect()
}

/// What vendors write predicates with, and the schemas below are written with.
fn node_macros(o: &mut String, abi: &Abi) {
    let node = |values: &[(&str, &str)]| {
        let values: Vec<_> = values.iter().map(|(n, v)| (*n, (*v).to_owned())).collect();
        init(abi, "EpExprNode", &values)
    };
    let integer = init(
        abi,
        "EpScalar",
        &[("kind", "EP_SCALAR_I64".into()), ("re", "(uint64_t)(int64_t)(number)".into())],
    );
    comment(
        o,
        "",
        "Initialise an EpExprNode: a fact by its name, an integer, a text, an operation, and membership in the \
         `n` values before it. `limit(\"cols\") <= 1024` is\n  {EP_NODE_FACT(EP_EXPR_LIMIT, \"cols\"), \
         EP_NODE_I64(1024), EP_NODE_OP(EP_EXPR_LE)}",
    );
    let rows = [
        ("FACT(fact, name)", node(&[("op", "(fact)"), ("text", "EP_STR(name)")])),
        ("I64(number)", node(&[("op", "EP_EXPR_CONST"), ("value", &integer)])),
        ("TEXT(literal)", node(&[("op", "EP_EXPR_TEXT"), ("text", "EP_STR(literal)")])),
        ("OP(operation)", node(&[("op", "(operation)")])),
        ("IN(n)", node(&[("op", "EP_EXPR_IN"), ("count", "(n)")])),
    ];
    for (name, body) in rows {
        writeln!(o, "#define EP_NODE_{name} {body}").unwrap();
    }
    o.push('\n');
}

fn helper_macros(o: &mut String, abi: &Abi) {
    let text = init(abi, "EpStr", &[("ptr", "\"\" text".into()), ("len", "sizeof(text) - 1".into())]);
    comment(o, "", "Initialises an EpStr with a literal.");
    writeln!(o, "#define EP_STR(text) {text}\n").unwrap();
    let status = init(
        abi,
        "EpStatus",
        &[
            ("code", "(status_code)".into()),
            ("message", "EP_STR(text)".into()),
            ("release", "ep_status_keep".into()),
        ],
    );
    node_macros(o, abi);
    comment(
        o,
        "",
        "Defines a static status `name` that can be returned any number of times: `return &name;`.",
    );
    writeln!(o, "#define EP_STATIC_STATUS(name, status_code, text) static const EpStatus name = {status}\n")
        .unwrap();
}

/// `EP_ABI_INFOS` and what belongs to it.
fn infos(o: &mut String, abi: &Abi) {
    let names = abi.growable();
    let mut rows = Vec::new();
    for name in &names {
        let fields = abi.fields_of(name);
        let layout = abi.layout(name, &fields);
        let texts: Vec<_> = fields.iter().map(|f| format!("EP_STR(\"{}\")", f.name)).collect();
        let prints: Vec<_> = layout.prefixes.iter().map(|p| format!("UINT64_C({p:#018x})")).collect();
        writeln!(o, "EP_UNUSED_ static const EpStr {name}_fields_[] = {{{}}};", wrapped(&texts)).unwrap();
        writeln!(o, "EP_UNUSED_ static const uint64_t {name}_prefixes_[] = {{{}}};", wrapped(&prints))
            .unwrap();
        let row = [
            ("name", format!("EP_STR(\"{name}\")")),
            ("fields", format!("{name}_fields_")),
            ("prefixes", format!("{name}_prefixes_")),
            ("count", fields.len().to_string()),
        ];
        rows.push(init(abi, "EpTableInfo", &row));
    }
    o.push('\n');
    comment(o, "", "Every growable struct and table: for `EpPlugin.infos` and `num_infos`.");
    writeln!(o, "EP_UNUSED_ static const EpTableInfo EP_ABI_INFOS[] = {{{}}};", wrapped(&rows)).unwrap();
    writeln!(o, "#define EP_ABI_NUM_INFOS UINT64_C({})\n", names.len()).unwrap();
    comment(o, "", "The place of each struct in EP_ABI_INFOS.");
    let places: Vec<_> = names.iter().enumerate().map(|(i, n)| format!("EP_INFO_{n} = {i}")).collect();
    writeln!(o, "enum {{{}}};\n", wrapped(&places)).unwrap();
    comment(o, "", "The entry of one struct: `EP_INFO(EpTimingInterface)` for `info` of that interface.");
    writeln!(o, "#define EP_INFO(type) (&EP_ABI_INFOS[EP_INFO_##type])\n").unwrap();
    comment(o, "", "EP_ABI_INFOS and its length.");
    writeln!(o, "static inline const EpTableInfo *ep_abi_infos(uint64_t *count) {{\n  *count = EP_ABI_NUM_INFOS;\n  return EP_ABI_INFOS;\n}}").unwrap();
}

/// Items of an initialiser, a few to a line.
fn wrapped(items: &[String]) -> String {
    let mut out = String::new();
    let mut used = usize::MAX;
    for (i, item) in items.iter().enumerate() {
        if used.saturating_add(item.len()) > 100 {
            out.push_str("\n    ");
            used = 0;
        } else {
            out.push(' ');
        }
        out.push_str(item);
        if i + 1 < items.len() {
            out.push(',');
        }
        used += item.len() + 2;
    }
    out
}

/// The values of each selector enum.
fn selectors(o: &mut String, abi: &Abi) {
    for (name, values) in &abi.enums {
        let prefix = enum_prefix(name);
        comment(o, "", &format!("Values of selectors of type `{name}`."));
        for (i, v) in values.iter().enumerate() {
            writeln!(o, "#define {prefix}_{} UINT32_C({i})", v.to_uppercase()).unwrap();
        }
        o.push('\n');
    }
}

/// What the functions about an op are called.
fn function_name(op: &Op) -> String {
    format!("ep_{}_schema", op.name.replace('.', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_read_as_c() {
        assert_eq!(declare("*mut *mut EpDevice", "out"), "EpDevice **out");
        assert_eq!(declare("*mut *const EpInterface", "out"), "const EpInterface **out");
        assert_eq!(declare("*const *mut EpEvent", "list"), "EpEvent *const *list");
        assert_eq!(declare("*const *const u32", "x"), "const uint32_t *const *x");
        assert_eq!(declare("[u8; 16]", "bytes"), "uint8_t bytes[16]");
        assert_eq!(declare("*const EpStatus", "(*f)(void)"), "const EpStatus *(*f)(void)");
    }

    #[test]
    fn comments_wrap_and_keep_lists() {
        let mut o = String::new();
        comment(&mut o, "", &format!("A */ b.\n- {}", "word ".repeat(40)));
        assert!(o.lines().all(|l| l.len() <= 110), "{o}");
        assert!(o.contains("* / b") && o.contains(" * - word") && o.contains("\n *   word"), "{o}");
    }
}

//! Writes `ep-core/include/ep_plugin.h`.

mod schema;

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
    writeln!(o, "#define EP_ABI_FINGERPRINT UINT64_C({:#018x})\n", abi.fingerprint()).unwrap();
    writeln!(
        o,
        "/* Checks the place of one field; undefined again at the end. */\n#define EP_LAYOUT_(type, field, offset, \
         bytes) \\\n  EP_STATIC_ASSERT(offsetof(type, field) == (offset), #type \".\" #field \": offset\"); \\\n  \
         EP_STATIC_ASSERT(sizeof(((const type *)0)->field) == (bytes), #type \".\" #field \": size\")"
    )
    .unwrap();
    declarations(&mut o, abi);
    chapters(&mut o, abi);
    title(&mut o, "The entry point");
    o.push_str(ENTRY);
    title(&mut o, "Helpers");
    o.push_str(HELPERS);
    helper_macros(&mut o, abi);
    infos(&mut o, abi);
    title(&mut o, "The ops' descriptors and arguments");
    selectors(&mut o, abi);
    for op in &abi.ops {
        comment(
            &mut o,
            "",
            &format!("`{}`, version {}. {}\n\n{}", op.name, op.version, op.summary, op.contract.trim()),
        );
        o.push('\n');
        for s in abi.op_structs(op) {
            writeln!(o, "typedef struct {0} {0};", s.name).unwrap();
            structure(&mut o, abi, &s.name, &s.doc, &s.fields);
        }
    }
    schema::schemas(&mut o, abi);
    o.push_str("\n#undef EP_LAYOUT_\n\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n");
    o
}

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

fn chapters(o: &mut String, abi: &Abi) {
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
            described(o, abi, names.remove(at.unwrap_or_else(|| panic!("no struct {member}"))));
        }
        if i == last {
            constants.iter().for_each(|c| group(o, c));
            names.iter().for_each(|n| described(o, abi, n));
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
fn described(o: &mut String, abi: &Abi, name: &str) {
    let (text, note) = if let Some(s) = abi.structs.iter().find(|s| s.name == name) {
        let note = match (s.frozen, s.out) {
            (true, _) => "Frozen.",
            (false, true) => "Growable. Filled by the callee, as far as the caller's `struct_size` reaches.",
            (false, false) => "Growable. Read by the callee; not kept after the call.",
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
    structure(o, abi, name, &format!("{text}\n{note}"), &abi.fields_of(name));
}

fn structure(o: &mut String, abi: &Abi, name: &str, text: &str, fields: &[Field]) {
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
        writeln!(o, "  {declaration};").unwrap();
    }
    writeln!(o, "}};").unwrap();
    let layout = abi.layout(name, fields);
    for p in &layout.fields {
        writeln!(o, "EP_LAYOUT_({name}, {}, {}, {});", p.field.name, p.offset, p.size).unwrap();
    }
    writeln!(o, "EP_STATIC_ASSERT(sizeof({name}) == {}, \"{name}: size\");\n", layout.size).unwrap();
}

/// A braced initialiser of a struct of the description, whatever the order of its fields; fields that `values`
/// does not name are zero.
fn init(abi: &Abi, name: &str, values: &[(&str, String)]) -> String {
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
    let items: Vec<_> = abi.fields_of(name).iter().map(value).collect();
    format!("{{{}}}", items.join(", "))
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
    comment(
        o,
        "",
        "Defines a static status `name` that can be returned any number of times: `return &name;`.",
    );
    writeln!(o, "#define EP_STATIC_STATUS(name, status_code, text) static const EpStatus name = {status}\n")
        .unwrap();
}

/// `ep_abi_infos`.
fn infos(o: &mut String, abi: &Abi) {
    let names = abi.growable();
    comment(
        o,
        "",
        "How this header sees every growable struct and table: for `EpPlugin.infos` and `num_infos`, and for \
         `info` of an optional interface. Static data.",
    );
    writeln!(o, "static inline const EpTableInfo *ep_abi_infos(uint64_t *count) {{").unwrap();
    let mut rows = Vec::new();
    for name in &names {
        let fields = abi.fields_of(name);
        let layout = abi.layout(name, &fields);
        let (id, n) = (snake(name), fields.len());
        let texts: Vec<_> = fields.iter().map(|f| format!("EP_STR(\"{}\")", f.name)).collect();
        let prints: Vec<_> = layout.prefixes.iter().map(|p| format!("UINT64_C({p:#018x})")).collect();
        writeln!(o, "  static const EpStr {id}_fields[] = {{{}}};", wrapped(&texts)).unwrap();
        writeln!(o, "  static const uint64_t {id}_prefixes[] = {{{}}};", wrapped(&prints)).unwrap();
        let row = [
            ("name", format!("EP_STR(\"{name}\")")),
            ("fields", format!("{id}_fields")),
            ("prefixes", format!("{id}_prefixes")),
            ("count", n.to_string()),
        ];
        rows.push(init(abi, "EpTableInfo", &row));
    }
    writeln!(o, "  static const EpTableInfo infos[] = {{{}}};", wrapped(&rows)).unwrap();
    writeln!(o, "  *count = {};\n  return infos;\n}}\n", names.len()).unwrap();
    comment(o, "", "The entry of `ep_abi_infos` for the struct `name`, or NULL.");
    writeln!(
        o,
        "static inline const EpTableInfo *ep_abi_info(const char *name) {{\n  uint64_t count, i;\n  const EpTableInfo \
         *infos = ep_abi_infos(&count);\n  for (i = 0; i < count; ++i) {{\n    if (ep_str_equals(infos[i].name, name)) \
         return &infos[i];\n  }}\n  return NULL;\n}}"
    )
    .unwrap();
}

/// Items of an initialiser, a few to a line.
fn wrapped(items: &[String]) -> String {
    let mut out = String::new();
    let mut used = 200;
    for item in items {
        if used + item.len() > 100 {
            out.push_str("\n    ");
            used = 0;
        } else {
            out.push(' ');
        }
        write!(out, "{item},").unwrap();
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

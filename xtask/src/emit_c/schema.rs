//! The ops' schemas as constant data.

use super::{comment, function_name, init, items, title, wrapped};
use crate::contract;
use crate::expr::{Expr, Node};
use crate::model::{Abi, Access, DescKind, Op};
use std::fmt::Write;

/// Longest literal that C promises to take.
const MAX_LITERAL: usize = 4095;

pub fn schemas(o: &mut String, abi: &Abi) {
    title(o, "Schemas of the core ops");
    writeln!(o, "#ifndef EP_NO_SCHEMAS\n").unwrap();
    for op in &abi.ops {
        schema(o, abi, op);
    }
    comment(o, "", "The schemas of all core ops, static. A plugin adds those whose factories it registers.");
    writeln!(o, "static inline const EpOpSchema *ep_core_schema(uint64_t index, uint64_t *count) {{")
        .unwrap();
    writeln!(o, "  *count = {};\n  switch (index) {{", abi.ops.len()).unwrap();
    for (i, op) in abi.ops.iter().enumerate() {
        writeln!(o, "    case {i}:\n      return {}();", function_name(op)).unwrap();
    }
    writeln!(o, "    default:\n      return NULL;\n  }}\n}}\n\n#endif").unwrap();
}

fn literal(text: &str) -> String {
    assert!(text.len() < MAX_LITERAL, "a text of {} bytes is too long for C", text.len());
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    // One literal for each line of the text; C joins them.
    let lines: Vec<_> = escaped.split('\n').collect();
    format!("EP_STR(\"{}\")", lines.join("\\n\"\n           \""))
}

/// The pieces of one schema function: local arrays, then the schema that points to them.
struct Pools<'a> {
    abi: &'a Abi,
    text: String,
}

impl Pools<'_> {
    /// A pointer to a constant array and its length; the empty array is a null pointer.
    fn array(&mut self, ty: &str, name: &str, items: &[String]) -> (String, String) {
        if items.is_empty() {
            return ("NULL".into(), "0".into());
        }
        writeln!(self.text, "  static const {ty} {name}[] = {{{}}};", wrapped(items)).unwrap();
        (name.into(), items.len().to_string())
    }

    fn expression(&mut self, name: &str, text: Option<&str>) -> (String, String) {
        let nodes = text.map(|t| Expr::parse(t).nodes()).unwrap_or_default();
        let items: Vec<_> = nodes.iter().map(node).collect();
        self.array("EpExprNode", name, &items)
    }

    fn desc_fields(&mut self, op: &Op) -> (String, String) {
        let mut rows = Vec::new();
        for (f, s) in op.desc.iter().zip(&op.desc_layout().0) {
            let mut values = field_head(&f.name, &f.doc, &format!("{:?}", f.kind), s.offset, s.size);
            match f.kind {
                DescKind::Selector => {
                    let names = &self.abi.enums[f.choices.as_deref().expect("enum")];
                    let names: Vec<_> = names.iter().map(|n| literal(n)).collect();
                    let (array, count) = self.array("EpStr", &format!("{}_choices", f.name), &names);
                    values.extend([("choices", array), ("num_choices", count)]);
                }
                DescKind::Limit => {
                    let (array, count) = self.expression(&format!("{}_bounds", f.name), f.bounds.as_deref());
                    values.extend([("bounds", array), ("num_bounds", count)]);
                }
                DescKind::Attr => {
                    let zero = [("kind", "EP_SCALAR_F64".to_owned())];
                    values.push(("default_value", init(self.abi, "EpScalar", &zero)));
                }
                DescKind::Dtype => {}
            }
            rows.push(init(self.abi, "EpField", &values));
        }
        self.array("EpField", "desc_fields", &rows)
    }

    fn arg_fields(&mut self, op: &Op) -> (String, String) {
        let mut rows = Vec::new();
        for (f, s) in op.arg.iter().zip(&op.args_layout().0) {
            let mut values = field_head(&f.name, &f.doc, &format!("{:?}", f.kind), s.offset, s.size);
            if f.kind.is_list() {
                let length = f.length.as_deref().expect("length");
                values.push(("link", op.arg_index(length).to_string()));
            }
            rows.push(init(self.abi, "EpField", &values));
        }
        self.array("EpField", "arg_fields", &rows)
    }

    fn operands(&mut self, op: &Op) -> (String, String) {
        let index = |i: Option<usize>| i.map_or("EP_NO_INDEX".to_owned(), |i| i.to_string());
        let mut rows = Vec::new();
        for x in &op.operand {
            let access = match x.access {
                Access::Read => "EP_ACCESS_READ",
                Access::Write => "EP_ACCESS_WRITE",
                Access::ReadWrite => "EP_ACCESS_READ | EP_ACCESS_WRITE",
            };
            let optional = if x.optional { " | EP_ACCESS_OPTIONAL" } else { "" };
            let in_place: u64 = x.in_place.iter().map(|n| 1 << op.operand_index(n)).sum();
            let (count, num_count) = self.expression(&format!("{}_count", x.name), Some(&x.count));
            let (covers, num_covers) = self.expression(&format!("{}_covers", x.name), x.covers.as_deref());
            let scalar = x.scalar.as_ref().or(x.read_if.as_ref()).map(|s| op.arg_index(s));
            let values = [
                ("name", literal(&x.name)),
                ("dtype", index(x.dtype.as_deref().map(|d| op.desc_index(d)))),
                ("access", format!("{access}{optional}")),
                ("arg", op.arg_index(&x.name).to_string()),
                ("scalar", index(scalar)),
                ("in_place", in_place.to_string()),
                ("count", count),
                ("num_count", num_count),
                ("covers", covers),
                ("num_covers", num_covers),
            ];
            rows.push(init(self.abi, "EpOperand", &values));
        }
        self.array("EpOperand", "operands", &rows)
    }
}

fn node((kind, number, text): &Node) -> String {
    match *kind {
        "CONST" => format!("EP_NODE_I64({number})"),
        _ if text.is_empty() => format!("EP_NODE_OP(EP_EXPR_{kind})"),
        _ => format!("EP_NODE_FACT(EP_EXPR_{kind}, \"{text}\")"),
    }
}

fn field_head(name: &str, doc: &str, kind: &str, offset: u64, size: u64) -> Vec<(&'static str, String)> {
    vec![
        ("name", literal(name)),
        ("doc", literal(doc)),
        ("kind", format!("EP_FIELD_{}", kind.to_uppercase())),
        ("offset", offset.to_string()),
        ("size", size.to_string()),
    ]
}

fn schema(o: &mut String, abi: &Abi, op: &Op) {
    let mut pools = Pools { abi, text: String::new() };
    let (desc_fields, num_desc_fields) = pools.desc_fields(op);
    let (arg_fields, num_arg_fields) = pools.arg_fields(op);
    let (operands, num_operands) = pools.operands(op);
    let (flops, num_flops) = pools.expression("flops", op.flops.as_deref());
    let [desc, args] = abi.op_structs(op);
    let values = [
        ("name", literal(&op.name)),
        ("version", op.version.to_string()),
        ("flags", if op.deterministic { "EP_OP_DETERMINISTIC" } else { "0" }.to_owned()),
        ("summary", literal(&op.summary)),
        ("contract", literal(&contract::list(&op.clause))),
        ("desc_size", format!("sizeof({})", desc.name)),
        ("desc_fields", desc_fields),
        ("num_desc_fields", num_desc_fields),
        ("args_size", format!("sizeof({})", args.name)),
        ("arg_fields", arg_fields),
        ("num_arg_fields", num_arg_fields),
        ("operands", operands),
        ("num_operands", num_operands),
        ("flops", flops),
        ("num_flops", num_flops),
    ];
    comment(o, "", &format!("The schema of `{}`, static.", op.name));
    writeln!(o, "static inline const EpOpSchema *{}(void) {{", function_name(op)).unwrap();
    o.push_str(&pools.text);
    writeln!(
        o,
        "  static const EpOpSchema schema = {{{}}};\n  return &schema;\n}}\n",
        wrapped(&items(abi, "EpOpSchema", &values))
    )
    .unwrap();
}

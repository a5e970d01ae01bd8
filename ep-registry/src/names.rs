//! Names that are not there: what was probably meant, or nothing where no name comes near.

use ep_core::schema::Schema;

/// A name that other libraries have for something that is here.
struct Alias {
    names: &'static [&'static str],
    op: &'static str,
    /// The value of a selector of the op, or empty.
    value: &'static str,
    /// What else there is to know, or empty.
    how: &'static str,
}

const fn alias(names: &'static [&'static str], op: &'static str) -> Alias {
    Alias { names, op, value: "", how: "" }
}

const fn value(names: &'static [&'static str], op: &'static str, value: &'static str) -> Alias {
    Alias { names, op, value, how: "" }
}

/// Values of selectors under their own names need no line.
const ALIASES: &[Alias] = &[
    alias(&["transpose", "swapaxes", "permute_dims"], "permute"),
    alias(&["gemm", "linear", "dense", "mm", "dot", "fully_connected"], "matmul"),
    alias(&["bmm", "batched_matmul", "batched_gemm"], "batch_matmul"),
    alias(&["convert", "astype", "to"], "cast"),
    alias(&["iota", "range"], "arange"),
    alias(&["pad"], "constant_pad"),
    alias(&["take", "index_select", "embedding"], "gather"),
    alias(&["index_add"], "scatter_add"),
    alias(&["select"], "where"),
    alias(&["full", "zeros", "ones"], "fill"),
    alias(&["layer_normalization"], "layer_norm"),
    alias(&["rms_normalization"], "rms_norm"),
    Alias {
        names: &["concat", "concatenate", "cat"],
        how: "one launch for each input",
        ..alias(&[], "copy_nd")
    },
    Alias { names: &["slice", "crop", "narrow"], how: "the box is the part", ..alias(&[], "copy_nd") },
    Alias { names: &["split", "chunk"], how: "one launch for each output", ..alias(&[], "copy_nd") },
    value(&["expand", "broadcast_to"], "broadcast_elementwise_unary", "identity"),
    value(&["reduce_sum"], "reduce", "sum"),
    value(&["reduce_mean", "average"], "reduce", "mean"),
    value(&["reduce_max", "amax"], "reduce", "max"),
    value(&["reduce_min", "amin"], "reduce", "min"),
    value(&["reduce_prod", "product"], "reduce", "prod"),
    value(&["arg_max"], "arg_reduce", "argmax"),
    value(&["arg_min"], "arg_reduce", "argmin"),
    value(&["multiply"], "broadcast_elementwise_binary", "mul"),
    value(&["subtract"], "broadcast_elementwise_binary", "sub"),
    value(&["divide"], "broadcast_elementwise_binary", "div"),
    value(&["maximum"], "broadcast_elementwise_binary", "max"),
    value(&["minimum"], "broadcast_elementwise_binary", "min"),
    value(&["power"], "broadcast_elementwise_binary", "pow"),
    value(&["eq"], "broadcast_elementwise_binary", "equal"),
    value(&["ne"], "broadcast_elementwise_binary", "not_equal"),
    value(&["lt", "less"], "broadcast_elementwise_binary", "less_than"),
    value(&["le"], "broadcast_elementwise_binary", "less_equal"),
    value(&["gt", "greater"], "broadcast_elementwise_binary", "greater_than"),
    value(&["ge"], "broadcast_elementwise_binary", "greater_equal"),
    value(&["neg", "negate"], "elementwise_unary", "negative"),
    value(&["swish"], "elementwise_unary", "silu"),
    value(&["logistic"], "elementwise_unary", "sigmoid"),
    value(&["not"], "elementwise_unary", "logical_not"),
];

/// A name without what libraries write in different ways: case and separators.
fn plain(name: &str) -> String {
    name.to_lowercase().replace(['_', '-', '.', ' '], "")
}

fn aliases_of(name: &str) -> impl Iterator<Item = &'static Alias> {
    let asked = plain(name);
    ALIASES.iter().filter(move |a| a.names.iter().any(|n| plain(n) == asked))
}

/// What to do about an op that is not there.
pub(crate) fn unknown_op(name: &str, schemas: &[&Schema]) -> String {
    let known = |alias: &&Alias| schemas.iter().any(|s| s.name == alias.op);
    let hint = aliases_of(name).find(known).map(alias_of_op);
    match hint.or_else(|| as_value(name, schemas)).or_else(|| similar_op(name, schemas)) {
        Some(hint) => format!("no op is called `{name}`; {hint}; `ep query` lists all"),
        None => format!(
            "no op is called `{name}`, and no name is similar; `ep query` lists all ops, `ep query --op OP` the \
             functions of one"
        ),
    }
}

fn alias_of_op(alias: &Alias) -> String {
    let Alias { op, value, how, .. } = alias;
    if !value.is_empty() {
        return format!(
            "here it is the function `{value}` of `{op}`: ask for `--op {op} --selector op={value}`"
        );
    }
    let how = if how.is_empty() { String::new() } else { format!(", {how}") };
    format!("here it is `{op}`{how}: ask for `--op {op}`")
}

/// That a name is a value of selectors, and of which.
fn as_value(name: &str, schemas: &[&Schema]) -> Option<String> {
    let asked = plain(name);
    let mut found: Vec<(&str, &str, &str)> = Vec::new();
    for schema in schemas {
        for (field, values) in schema.selectors() {
            let value = values.iter().find(|v| plain(v) == asked);
            found.extend(value.map(|v| (schema.name.as_str(), field.name.as_str(), v.as_str())));
        }
    }
    // The plainest op first.
    found.sort_by_key(|(op, ..)| op.len());
    let (op, selector, value) = *found.first()?;
    let places: Vec<_> =
        found.iter().map(|(op, selector, _)| format!("selector `{selector}` of `{op}`")).collect();
    Some(format!(
        "`{value}` is a value of {}: ask for op {op} with {selector}={value} (`--op {op} --selector \
         {selector}={value}`)",
        places.join(" and of ")
    ))
}

fn similar_op(name: &str, schemas: &[&Schema]) -> Option<String> {
    let names: Vec<&str> = schemas.iter().map(|s| s.name.as_str()).collect();
    let words: Vec<&str> = name.split(['_', '-']).collect();
    let mut near = similar(name, &names);
    let has_all = |op: &&&str| words.iter().all(|w| op.split('_').any(|part| part == *w));
    near.extend(names.iter().filter(has_all).filter(|op| !near.contains(op)).copied().collect::<Vec<_>>());
    most_similar(&near)
}

/// The hint for names that are near, if there are any.
pub(crate) fn most_similar(near: &[&str]) -> Option<String> {
    let list = near.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    match near.len() {
        0 => None,
        1 => Some(format!("the most similar one is {list}")),
        _ => Some(format!("the most similar ones are {list}")),
    }
}

/// What to do about a value that a selector of `op` does not have.
pub(crate) fn unknown_value(op: &str, selector: &str, name: &str, choices: &[String]) -> String {
    let names: Vec<&str> = choices.iter().map(String::as_str).collect();
    let meant = aliases_of(name).map(|a| a.value).find(|v| names.contains(v));
    let hint = match meant {
        Some(meant) => format!("here it is `{meant}`"),
        None => match most_similar(&similar(name, &names)) {
            Some(hint) => hint,
            None if names.len() <= 8 => format!("it has {}", names.join(", ")),
            None => "no value is similar".to_owned(),
        },
    };
    format!(
        "selector `{selector}` of op `{op}` has no value `{name}`; {hint}; `ep query --op {op}` lists all"
    )
}

/// Those of the known names that differ from `name` in at most a third of their letters, the nearest first, and
/// at most three.
fn similar<'k>(name: &str, known: &[&'k str]) -> Vec<&'k str> {
    let asked = plain(name);
    let near = |k: &&'k str| {
        let other = plain(k);
        let cost = edits(&asked, &other);
        (cost * 3 <= asked.chars().count().max(other.chars().count())).then_some((cost, *k))
    };
    let mut found: Vec<(usize, &str)> = known.iter().filter_map(near).collect();
    found.sort_by_key(|(cost, _)| *cost);
    found.into_iter().map(|(_, k)| k).take(3).collect()
}

/// Insertions, deletions, replacements and swaps of neighbours that turn one word into the other.
pub(crate) fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut cost = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                cost = cost.min(before[j - 2] + 1);
            }
            row.push(cost);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::schema::{core_schema, core_schemas};

    fn message(name: &str) -> String {
        let schemas: Vec<_> = core_schemas().collect();
        let mut schemas: Vec<&Schema> = schemas.iter().map(|s| &**s).collect();
        schemas.sort_by(|a, b| a.name.cmp(&b.name));
        unknown_op(name, &schemas)
    }

    #[test]
    fn edits_count_swaps_once() {
        assert_eq!(edits("nmae", "name"), 1);
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("kitten", "sitting"), 3);
    }

    #[test]
    fn functions_are_found_as_values_of_selectors() {
        let relu = message("relu");
        let parts = [
            "`relu` is a value of selector `op` of `elementwise_unary` and of selector `op` of \
             `broadcast_elementwise_unary`: ",
            "ask for op elementwise_unary with op=relu (`--op elementwise_unary --selector op=relu`)",
        ];
        assert!(parts.iter().all(|p| relu.contains(p)), "{relu}");
        for (name, flags) in [
            ("mul", "--op broadcast_elementwise_binary --selector op=mul`"),
            ("sum", "--op reduce --selector op=sum`"),
            ("prod", "--op reduce --selector op=prod`"),
            ("LeakyReLU", "--op elementwise_unary --selector op=leaky_relu`"),
            ("argmax", "--op arg_reduce --selector op=argmax`"),
            ("multiply", "--op broadcast_elementwise_binary --selector op=mul`"),
        ] {
            let text = message(name);
            assert!(text.contains(flags) && !text.contains("matmul"), "{text}");
        }
        let max = message("max");
        assert!(max.contains("of `reduce` and of selector `op` of `broadcast_elementwise_binary`"), "{max}");
    }

    #[test]
    fn names_of_other_libraries_lead_to_the_op() {
        for (name, op) in
            [("transpose", "permute"), ("gemm", "matmul"), ("Linear", "matmul"), ("pad", "constant_pad")]
        {
            let text = message(name);
            assert!(text.contains(&format!("here it is `{op}`: ask for `--op {op}`")), "{text}");
        }
        let text = message("concat");
        assert!(text.contains("`copy_nd`, one launch for each input"), "{text}");
    }

    #[test]
    fn every_alias_leads_to_something_and_hides_nothing() {
        let mut seen = std::collections::HashSet::new();
        for alias in ALIASES {
            let schema = core_schema(alias.op).unwrap_or_else(|| panic!("{}", alias.op));
            let has = |value: &str| {
                schema.selectors().any(|(f, values)| f.name == "op" && values.iter().any(|v| v == value))
            };
            assert!(alias.value.is_empty() || has(alias.value), "{} {}", alias.op, alias.value);
            for name in alias.names {
                assert!(core_schema(name).is_none() && seen.insert(plain(name)), "{name}");
            }
        }
    }

    #[test]
    fn only_what_is_similar_is_suggested() {
        let similar = |name: &str, op: &str| {
            let text = message(name);
            assert!(text.contains("the most similar one") && text.contains(&format!("`{op}`")), "{text}");
        };
        similar("sofmax", "softmax");
        similar("layernorm", "layer_norm");
        similar("BatchMatMul", "batch_matmul");
        similar("norm", "rms_norm");
        for name in ["convolve", "conv", "gather_elements", "topk", "x", ""] {
            let text = message(name);
            assert!(text.contains("no name is similar; `ep query` lists all ops"), "{text}");
        }
    }

    #[test]
    fn values_have_aliases_and_neighbours_too() {
        let of = |name: &str| {
            let (_, values) = core_schema("elementwise_unary").unwrap().selectors().next().unwrap();
            unknown_value("elementwise_unary", "op", name, values)
        };
        assert!(
            of("relo").contains("`relo`; the most similar one is `relu`; `ep query --op"),
            "{}",
            of("relo")
        );
        assert!(of("neg").contains("here it is `negative`"), "{}", of("neg"));
        assert!(of("softmax").contains("no value is similar"), "{}", of("softmax"));
        let modes = ["wrap", "zero"].map(str::to_owned);
        assert!(unknown_value("gather", "mode", "clip", &modes).contains("it has wrap, zero"));
    }
}

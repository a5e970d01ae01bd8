//! `ep support`.

use crate::failure::{Exit, Failure, no_device};
use crate::host::Host;
use crate::meaning::{self, REASONS};
use crate::output::Out;
use clap::Args;
use ep_core::DType;
use ep_core::schema::{DescKind, Schema};
use ep_registry::query::Filter;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  ep support --device cpu                                   the whole table on standard output
  ep support --device cpu --device cuda --out table.csv     write it, with a column each
  ep support --device cpu --device cuda --check table.csv   fail if the file is not what the providers do";

/// Prints which combinations of ops, selectors and dtypes devices support, and for the others the reason
///
/// CSV: op, dtypes, one column for each device kind, selectors. A cell is `yes`, the reason why the combination
/// has no meaning, or `missing`. Selectors with the same answer share a row.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Support {
    /// A device, `cpu:0`, or `cpu` for the first of its kind; give several for several columns
    #[arg(long, required = true)]
    device: Vec<String>,
    /// Only this op
    #[arg(long)]
    op: Option<String>,
    /// Writes to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Compares with this file, and fails where something that has a meaning is missing, or the reverse
    #[arg(long, value_name = "FILE", conflicts_with = "out")]
    check: Option<PathBuf>,
}

/// What is looked up: op, selector values, dtypes.
type Key = (String, Vec<String>, Vec<String>);

/// A claim that the table of reasons contradicts, or a gap.
struct Doubt {
    device: String,
    key: Key,
    found: &'static str,
}

impl Support {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, out: &mut Out) -> Result<(), Failure> {
        let host = Host::load_and_warn(config)?;
        let mut columns = Vec::new();
        for name in &self.device {
            let device = host.runtime.device(name).map_err(|e| no_device(&e).with_config(&host.config))?;
            let filter = Filter { device: Some(device.name().to_owned()), ..Filter::default() };
            let second = |pairs: Vec<(String, String)>| pairs.into_iter().map(|(_, v)| v).collect();
            let rows = host.runtime.query(&filter).into_iter();
            let claims: HashSet<Key> = rows.map(|r| (r.op, second(r.selectors), second(r.dtypes))).collect();
            let kind = device.name().split_once(':').map_or(device.name(), |(kind, _)| kind);
            columns.push((kind.to_owned(), claims));
        }
        let mut schemas: Vec<_> = ep_core::schema::core_schemas().collect();
        schemas.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(op) = &self.op {
            schemas.retain(|s| s.name == *op);
            if schemas.is_empty() {
                let message = format!("no core op is called `{op}`; `ep query` lists them");
                return Err(Failure::new(Exit::Usage, message));
            }
        }
        let (table, doubts) = table(&schemas, &columns);
        match (&self.out, &self.check) {
            (Some(path), _) => std::fs::write(path, table)
                .map_err(|e| Failure::general(format!("cannot write {}: {e}", path.display()))),
            (None, Some(path)) => check(path, &table, &doubts, out),
            (None, None) => out.text(table),
        }
    }
}

/// The CSV, and what in it needs an explanation.
fn table(schemas: &[std::sync::Arc<Schema>], columns: &[(String, HashSet<Key>)]) -> (String, Vec<Doubt>) {
    let devices: Vec<_> = columns.iter().map(|(kind, _)| kind.as_str()).collect();
    let mut text = format!("op,dtypes,{},selectors\n", devices.join(","));
    let mut doubts = Vec::new();
    for schema in schemas {
        let roles: Vec<_> = schema.dtypes().map(|f| f.name.as_str()).collect();
        let all = selector_tuples(schema);
        for dtypes in dtype_tuples(roles.len()) {
            let mut groups: BTreeMap<Vec<&'static str>, Vec<&Vec<String>>> = BTreeMap::new();
            for selectors in &all {
                let reason = meaning::reason(&schema.name, selectors, &dtypes);
                let names: Vec<String> = dtypes.iter().map(ToString::to_string).collect();
                let key = (schema.name.clone(), selectors.clone(), names);
                let mut answers = Vec::new();
                for (device, claims) in columns {
                    let (answer, doubt) = match (claims.contains(&key), reason) {
                        (true, None) => ("yes", false),
                        (true, Some(_)) => ("yes", true),
                        (false, Some(why)) => (why, false),
                        (false, None) => ("missing", true),
                    };
                    answers.push(answer);
                    if doubt {
                        doubts.push(Doubt { device: device.clone(), key: key.clone(), found: answer });
                    }
                }
                groups.entry(answers).or_default().push(selectors);
            }
            let dtypes: Vec<_> = roles.iter().zip(&dtypes).map(|(r, d)| format!("{r}={d}")).collect();
            for (answers, selectors) in groups {
                let list = if selectors.len() == all.len() && !selectors[0].is_empty() {
                    "all".to_owned()
                } else {
                    selectors.iter().map(|s| s.join("/")).collect::<Vec<_>>().join(" ")
                };
                let (dtypes, answers) = (dtypes.join(" "), answers.join(","));
                writeln!(text, "{},{dtypes},{answers},{list}", schema.name).expect("writing to a string");
            }
        }
    }
    (text, doubts)
}

fn check(path: &Path, table: &str, doubts: &[Doubt], out: &mut Out) -> Result<(), Failure> {
    let file = std::fs::read_to_string(path)
        .map_err(|e| Failure::general(format!("cannot read {}: {e}", path.display())))?;
    for d in doubts.iter().take(20) {
        let what = if d.found == "missing" {
            "is missing and no reason says why"
        } else {
            "has no meaning, but is offered"
        };
        out.line(format!("{}: {} {} [{}] {what}", d.device, d.key.0, d.key.1.join(" "), d.key.2.join(" ")))?;
    }
    let unlike = file.lines().zip(table.lines()).find(|(a, b)| a != b);
    let stale = file != table;
    if let Some((a, b)) = unlike {
        out.line(format!("{}:\n  the file has  {a}\n  it should be  {b}", path.display()))?;
    }
    if stale || !doubts.is_empty() {
        let stale = if stale { "the file is stale; write it with --out" } else { "the file is up to date" };
        return Err(Failure::general(format!("{} combinations in doubt; {stale}", doubts.len())));
    }
    let supported = table.lines().filter(|l| l.contains(",yes,")).count();
    out.line(format!(
        "{}: up to date, {supported} rows of supported combinations, nothing missing",
        path.display()
    ))?;
    out.line(format!("reasons: {}", REASONS.iter().map(|(r, _)| *r).collect::<Vec<_>>().join(", ")))
}

/// Every combination of selector values, one empty combination where there are none.
pub fn selector_tuples(schema: &Schema) -> Vec<Vec<String>> {
    let mut tuples = vec![Vec::new()];
    for field in &schema.desc {
        if let DescKind::Selector(choices) = &field.kind {
            tuples = tuples
                .iter()
                .flat_map(|t| choices.iter().map(move |c| t.iter().cloned().chain([c.clone()]).collect()))
                .collect();
        }
    }
    tuples
}

/// Every combination of the dtypes that primitives compute on.
fn dtype_tuples(roles: usize) -> Vec<Vec<DType>> {
    let mut tuples = vec![Vec::new()];
    for _ in 0..roles {
        tuples = tuples
            .iter()
            .flat_map(|t| {
                let more = DType::REAL.iter().chain(DType::COMPLEX);
                more.map(move |d| t.iter().copied().chain([*d]).collect())
            })
            .collect();
    }
    tuples
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(keys: &[(&str, &[&str], &[&str])]) -> HashSet<Key> {
        let owned = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        keys.iter().map(|(op, s, d)| (op.to_string(), owned(s), owned(d))).collect()
    }

    #[test]
    fn gaps_and_claims_without_meaning_are_told_apart() {
        let schemas: Vec<_> = ep_core::schema::core_schemas().filter(|s| s.name == "arange").collect();
        let columns = [("x".to_owned(), claims(&[("arange", &[], &["f32"]), ("arange", &[], &["bool"])]))];
        let (table, doubts) = table(&schemas, &columns);
        assert!(table.starts_with("op,dtypes,x,selectors\narange,data=bool,yes,\n"), "{table}");
        assert!(
            table.contains("arange,data=f32,yes,\n") && table.contains("arange,data=i8,missing,\n"),
            "{table}"
        );
        let unsupported = table.lines().find(|l| l.contains("complex64")).unwrap();
        assert!(REASONS.iter().any(|(r, _)| unsupported.contains(r)), "{unsupported}");
        let of = |name: &str| doubts.iter().find(|d| d.key.2 == [name]).map(|d| d.found);
        assert_eq!(
            (of("bool"), of("f32"), of("i8"), of("complex64")),
            (Some("yes"), None, Some("missing"), None)
        );
    }

    #[test]
    fn every_combination_of_the_schemas_has_a_row() {
        let schemas: Vec<_> = ep_core::schema::core_schemas().collect();
        let (table, _) = table(&schemas, &[("x".to_owned(), HashSet::new())]);
        for schema in &schemas {
            let tuples = 15usize.pow(schema.dtypes().count() as u32);
            let start = format!("{},", schema.name);
            let rows: HashSet<_> =
                table.lines().filter(|l| l.starts_with(&start)).map(|l| l.split(',').nth(1)).collect();
            assert_eq!(rows.len(), tuples, "{}", schema.name);
        }
    }
}

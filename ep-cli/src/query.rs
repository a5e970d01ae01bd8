//! `ep query`.

use crate::failure::{Failure, named, no_device};
use crate::host::Host;
use crate::output::{Cell, Out, Style, quoted};
use clap::Args;
use ep_core::DType;
use ep_registry::query::{Filter, Row};
use ep_registry::rows::QueryRow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const EXAMPLES: &str = "\
Examples:
  ep query                               ops and dtypes at a glance
  ep query --op cast --device cpu:0      every combination of one op
  ep query --dtype bf16 --json           for programs";

/// Lists what the loaded providers can do, without running anything
///
/// Without --op: a table of ops and dtypes for each device. With --op: every combination of selectors and
/// dtypes, by factory.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Query {
    /// Only this op, in detail
    #[arg(long)]
    op: Option<String>,
    /// Only what has this dtype in some role
    #[arg(long)]
    dtype: Option<String>,
    /// Only this device, `cpu:0`, or all of a kind, `cpu`
    #[arg(long)]
    device: Option<String>,
    /// Prints JSON: [{provider, device, op, selectors: {name: value}, dtypes: {role: dtype}, predicate, priority}]
    #[arg(long)]
    json: bool,
}

impl Query {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, out: &mut Out) -> Result<(), Failure> {
        let host = Host::load_and_warn(config)?;
        if let Some(op) = &self.op {
            host.runtime.schema(op).map_err(|e| named(&e))?;
        }
        if let Some(dtype) = &self.dtype {
            DType::by_name(dtype).map_err(|e| named(&e))?;
        }
        if let Some(device) = &self.device {
            host.runtime.device(device).map_err(|e| no_device(&e).with_config(&host.config))?;
        }
        let filter = Filter { op: self.op.clone(), dtype: self.dtype.clone(), device: self.device.clone() };
        let rows = host.runtime.query(&filter);
        if self.json {
            return out.json(&rows.iter().map(QueryRow::from).collect::<Vec<_>>());
        }
        if rows.is_empty() {
            return out.text(self.nothing(&host, config)?);
        }
        let mut devices: Vec<&str> = rows.iter().map(|r| r.device.as_str()).collect();
        devices.dedup();
        for (i, device) in devices.into_iter().enumerate() {
            if i != 0 {
                out.line("")?;
            }
            let rows: Vec<&Row> = rows.iter().filter(|r| r.device == device).collect();
            match &self.op {
                Some(op) => details(op, device, &rows, out)?,
                None => matrix(device, &rows, self.dtype.as_deref(), out)?,
            }
        }
        Ok(())
    }

    /// What to do where no row is left.
    fn nothing(&self, host: &Host, config: Option<&Path>) -> Result<String, Failure> {
        let on = self.device.as_ref().map_or_else(|| "any device".to_owned(), |d| format!("device `{d}`"));
        let with = self.dtype.as_ref().map_or_else(String::new, |d| format!(" with dtype {d} in any role"));
        let Some(op) = &self.op else {
            let next = match &self.dtype {
                Some(_) => "without --dtype this command shows which dtypes there are",
                None => "`ep list` shows what each provider is for",
            };
            return Ok(format!("no provider has an op{with} on {on}; {next}\n"));
        };
        let schema = host.runtime.schema(op).map_err(|e| named(&e))?;
        if let Some(dtype) = self.dtype.as_ref().filter(|_| schema.dtypes().next().is_none()) {
            return Ok(format!("op `{op}` takes bytes of every dtype: ask without --dtype {dtype}\n"));
        }
        let mut command = vec!["ep".to_owned()];
        command.extend(config.iter().flat_map(|c| ["--config".to_owned(), c.display().to_string()]));
        command.extend(["explain", "--op", op].map(str::to_owned));
        let dtype = self.dtype.as_deref().unwrap_or("f32");
        command.extend(schema.dtypes().flat_map(|f| ["--dtype".to_owned(), format!("{}={dtype}", f.name)]));
        command.extend(self.device.iter().flat_map(|d| ["--device", d]).map(str::to_owned));
        let command: Vec<String> = command.iter().map(|w| quoted(w)).collect();
        Ok(format!(
            "no provider has op `{op}`{with} on {on}; why, and what comes nearest:\n  {}\n",
            command.join(" ")
        ))
    }
}

/// A dtype's column head.
fn short(dtype: &str) -> &str {
    match dtype {
        "complex64" => "c64",
        "complex128" => "c128",
        other => other,
    }
}

/// Selector values of one row, in the schema's order.
type Selectors<'a> = &'a [(String, String)];

/// By op and dtype, the selector values with which the dtype is that of some role. Which role it is differs from op to
/// op: no rule picks the data's from a schema, but an empty cell means that there is nothing.
type Cells<'a> = BTreeMap<&'a str, BTreeMap<&'a str, BTreeSet<Selectors<'a>>>>;

fn cells<'a>(rows: &[&'a Row], only: Option<&str>) -> Cells<'a> {
    let mut cells = Cells::new();
    for row in rows {
        let of_op = cells.entry(row.op.as_str()).or_default();
        let dtypes = row.dtypes.iter().map(|(_, d)| d.as_str());
        for dtype in dtypes.chain(row.dtypes.is_empty().then_some("bytes")) {
            if only.is_none_or(|only| only == dtype) {
                of_op.entry(dtype).or_default().insert(row.selectors.as_slice());
            }
        }
    }
    cells
}

/// How many selector values each op has with each dtype, or with one of them only.
fn matrix(device: &str, rows: &[&Row], only: Option<&str>, out: &mut Out) -> Result<(), Failure> {
    let cells = cells(rows, only);
    let mut seen: BTreeSet<&str> = cells.values().flat_map(|by_dtype| by_dtype.keys().copied()).collect();
    let core: Vec<String> = DType::ALL.iter().map(ToString::to_string).collect();
    let mut columns: Vec<&str> = core.iter().map(String::as_str).filter(|d| seen.remove(d)).collect();
    columns.extend(seen);
    let head = |text: &str| Cell::styled(Style::Bold, text);
    let mut table = vec![
        std::iter::once(head(device))
            .chain(columns.iter().map(|d| head(short(d)).right()))
            .collect::<Vec<_>>(),
    ];
    for (op, by_dtype) in &cells {
        let count = |d: &&str| match by_dtype.get(*d) {
            None => Cell::styled(Style::Dim, "."),
            Some(selectors) => Cell::from(selectors.len().to_string()),
        };
        table
            .push(std::iter::once(Cell::from(*op)).chain(columns.iter().map(|d| count(d).right())).collect());
    }
    out.table(0, &table)?;
    out.line(out.paint(
        Style::Dim,
        "Each number counts the selector values (functions, transposes) with which the dtype is that of some role: \
         of data, of a condition, of indices or of a result. A dot: of no role. --op OP tells which. c64 and c128 are \
         complex64 and complex128.",
    ))
}

/// What the rows of one factory have in common.
fn factory_of(row: &Row) -> (&str, &str, &str, i32) {
    (&row.instance, &row.factory, &row.predicate, row.priority)
}

/// The combinations of one op on one device, by factory.
fn details(op: &str, device: &str, rows: &[&Row], out: &mut Out) -> Result<(), Failure> {
    // The rows of one factory follow each other.
    for (i, rows) in rows.chunk_by(|a, b| factory_of(a) == factory_of(b)).enumerate() {
        let (instance, factory, predicate, priority) = factory_of(rows[0]);
        if i != 0 {
            out.line("")?;
        }
        let title = out.paint(Style::Bold, &format!("{op} on {device}: {instance}/{factory}"));
        out.line(format!("{title}, priority {priority}"))?;
        if !predicate.is_empty() {
            out.line(format!("  only if {predicate}"))?;
        }
        for (dtypes, selectors) in combinations(rows) {
            for (label, words) in lines(&dtypes, true) {
                wrapped(&format!("  {label}: "), &words, out)?;
            }
            for (label, words) in lines(&selectors, false) {
                wrapped(&format!("    {label}: "), &words, out)?;
            }
        }
    }
    Ok(())
}

/// The dtypes of a combination by role, or its selector values by name.
type Pairs<'a> = &'a [(String, String)];

/// Dtype combinations with the selector combinations that all of them have.
fn combinations<'a>(rows: &[&'a Row]) -> Vec<(Vec<Pairs<'a>>, Vec<Pairs<'a>>)> {
    let mut by_dtypes: Vec<(Pairs<'a>, Vec<Pairs<'a>>)> = Vec::new();
    for row in rows {
        match by_dtypes.iter_mut().find(|(d, _)| *d == row.dtypes) {
            Some((_, list)) => list.push(&row.selectors),
            None => by_dtypes.push((&row.dtypes, vec![&row.selectors])),
        }
    }
    let mut groups: Vec<(Vec<Pairs<'a>>, Vec<Pairs<'a>>)> = Vec::new();
    for (dtypes, selectors) in by_dtypes {
        match groups.iter_mut().find(|(_, s)| *s == selectors) {
            Some((list, _)) => list.push(dtypes),
            None => groups.push((vec![dtypes], selectors)),
        }
    }
    groups
}

/// Combinations in few words, each line with its label: one line where all names have the same value (for dtypes),
/// one for each name where every mixture exists, else one for each combination.
fn lines<'a>(combinations: &[Pairs<'a>], dtypes: bool) -> Vec<(String, Vec<&'a str>)> {
    let first = combinations.first().copied().unwrap_or_default();
    if first.is_empty() {
        return if dtypes { vec![("dtypes".into(), vec!["any, as bytes"])] } else { Vec::new() };
    }
    let names: Vec<&str> = first.iter().map(|(name, _)| name.as_str()).collect();
    if dtypes && combinations.iter().all(|c| c.iter().all(|(_, d)| *d == c[0].1)) {
        return vec![(names.join(" = "), combinations.iter().map(|c| c[0].1.as_str()).collect())];
    }
    let mut by_name: Vec<Vec<&str>> = vec![Vec::new(); names.len()];
    for c in combinations {
        for (list, (_, value)) in by_name.iter_mut().zip(*c) {
            if !list.contains(&value.as_str()) {
                list.push(value);
            }
        }
    }
    if by_name.iter().map(Vec::len).product::<usize>() == combinations.len() {
        return names.into_iter().map(str::to_owned).zip(by_name).collect();
    }
    let one = |c: &Pairs<'a>| (names.join(", "), c.iter().map(|(_, value)| value.as_str()).collect());
    combinations.iter().map(one).collect()
}

/// Words after a label, in lines of at most 100 characters.
fn wrapped(label: &str, words: &[&str], out: &mut Out) -> Result<(), Failure> {
    let mut line = label.to_owned();
    let mut empty = true;
    for word in words {
        if !empty && line.chars().count() + word.len() + 1 > 100 {
            out.line(line.trim_end())?;
            line = " ".repeat(label.chars().count());
        }
        line.push_str(word);
        line.push(' ');
        empty = false;
    }
    out.line(line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(op: &str, src: &str, dst: &str) -> Row {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        Row {
            instance: "cpu".into(),
            device: "cpu:0".into(),
            op: "x".into(),
            factory: "f".into(),
            selectors: vec![pair("op", op)],
            dtypes: vec![pair("src", src), pair("dst", dst)],
            predicate: String::new(),
            priority: 0,
        }
    }

    #[test]
    fn a_dtype_counts_in_whatever_role_it_is() {
        let mut rows = [row("wrap", "i32", "f32"), row("wrap", "i64", "f32"), row("zero", "i32", "f16")];
        let count = |rows: &[Row], only: Option<&str>, dtype: &str| {
            let rows: Vec<&Row> = rows.iter().collect();
            cells(&rows, only)["x"].get(dtype).map(BTreeSet::len)
        };
        let of = |dtype| count(&rows, None, dtype);
        assert_eq!(
            [of("i32"), of("i64"), of("f32"), of("f16"), of("f64")],
            [Some(2), Some(1), Some(1), Some(1), None]
        );
        assert_eq!((count(&rows, Some("f32"), "f32"), count(&rows, Some("f32"), "i32")), (Some(1), None));
        rows.iter_mut().for_each(|row| row.dtypes.clear());
        assert_eq!(count(&rows, None, "bytes"), Some(2));
    }

    #[test]
    fn dtypes_with_the_same_functions_are_grouped() {
        let rows = [
            row("add", "f32", "f32"),
            row("sub", "f32", "f32"),
            row("add", "f64", "f64"),
            row("sub", "f64", "f64"),
            row("equal", "f32", "bool"),
        ];
        let groups = combinations(&rows.iter().collect::<Vec<_>>());
        let shown: Vec<_> = groups.iter().map(|(d, s)| (lines(d, true), lines(s, false))).collect();
        let line = |label: &str, words: &[&'static str]| (label.to_owned(), words.to_vec());
        assert_eq!(
            shown,
            [
                (vec![line("src = dst", &["f32", "f64"])], vec![line("op", &["add", "sub"])]),
                (vec![line("src", &["f32"]), line("dst", &["bool"])], vec![line("op", &["equal"])]),
            ]
        );
    }

    #[test]
    fn no_mixture_is_claimed_that_does_not_exist() {
        let rows = [row("cast", "f16", "f32"), row("cast", "f32", "f16"), row("cast", "f16", "f16")];
        let dtypes: Vec<Pairs<'_>> = rows.iter().map(|r| r.dtypes.as_slice()).collect();
        assert_eq!(lines(&dtypes, true).len(), 3);
        assert_eq!(lines(&dtypes, true)[0], ("src, dst".to_owned(), vec!["f16", "f32"]));
        assert_eq!(lines(&[&[]], true), [("dtypes".to_owned(), vec!["any, as bytes"])]);
        let pair = |a: &str, b: &str| vec![("a".to_owned(), a.to_owned()), ("b".to_owned(), b.to_owned())];
        let (plain, both) = (pair("none", "none"), pair("transpose", "transpose"));
        assert_eq!(lines(&[&plain, &both], false)[1], ("a, b".to_owned(), vec!["transpose", "transpose"]));
        assert_eq!(lines(&[&[]], false), []);
    }
}

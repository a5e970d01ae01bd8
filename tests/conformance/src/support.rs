//! Tables of what a provider claims, as CSV: the form of `ep support`, to write and to require.
//!
//! Columns are `op`, `dtypes` (`src=f32 dst=f16`), one for each kind of device, and `selectors`: values joined by `/`,
//! several separated by spaces, `all`, or nothing where the op has none.

use crate::plan::{Group, Unit};
use crate::summary::{Outcome, Summary};
use ep_core::schema::core_schema;
use ep_core::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// What has to be there: op, selector values, and dtypes with their roles.
type Key = (String, Vec<String>, Vec<(String, String)>);

/// A table of what providers have to claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirements {
    /// Kinds of devices; none: every row is for all of them.
    kinds: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    op: String,
    dtypes: Vec<(String, String)>,
    cells: Vec<String>,
    selectors: Vec<Vec<String>>,
}

/// Every combination of a core op's selector values.
fn all_selectors(op: &str) -> Result<Vec<Vec<String>>> {
    let schema = core_schema(op).ok_or_else(|| {
        Error::invalid(format!("`all` stands for the selectors of core ops, and `{op}` is none; list them"))
    })?;
    Ok(schema.selectors().fold(vec![Vec::new()], |rows, (_, choices)| {
        let with = |row: &Vec<String>| {
            choices.iter().map(|c| [row.clone(), vec![c.clone()]].concat()).collect::<Vec<_>>()
        };
        rows.iter().flat_map(with).collect()
    }))
}

impl Requirements {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or a line is none of such a table; with the line's number.
    pub fn from_file(path: &Path) -> Result<Requirements> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| Error::not_found(format!("cannot read {}: {e}", path.display())))?;
        Requirements::parse(&text).map_err(|e| e.context(path.display()))
    }

    fn parse(text: &str) -> Result<Requirements> {
        let mut lines = text.lines().enumerate();
        let header: Vec<&str> = lines.next().map(|(_, l)| l.split(',').collect()).unwrap_or_default();
        let (["op", "dtypes", kinds @ ..], Some(&"selectors")) =
            (&header[..header.len().max(1) - 1], header.last())
        else {
            return Err(Error::invalid(
                "the first line is not `op,dtypes,KIND,...,selectors`; `ep support` and `--support` write such files",
            ));
        };
        let mut rows = Vec::new();
        for (i, line) in lines.filter(|(_, l)| !l.trim().is_empty()) {
            let fields: Vec<&str> = line.split(',').collect();
            let at = |e: Error| e.context(format!("line {}", i + 1));
            let [op, dtypes, cells @ .., selectors] = &fields[..] else {
                return Err(at(Error::invalid(format!("{} fields", fields.len()))));
            };
            if cells.len() != kinds.len() {
                return Err(at(Error::invalid(format!(
                    "{} fields, the first line has {}",
                    fields.len(),
                    header.len()
                ))));
            }
            let pair = |p: &str| {
                let (role, dtype) =
                    p.split_once('=').ok_or_else(|| Error::invalid(format!("`{p}` is no role=dtype")))?;
                Ok((role.to_owned(), dtype.to_owned()))
            };
            let dtypes = dtypes.split_whitespace().map(pair).collect::<Result<_>>().map_err(at)?;
            let selectors = match *selectors {
                "" => vec![Vec::new()],
                "all" => all_selectors(op).map_err(at)?,
                list => list.split_whitespace().map(|s| s.split('/').map(str::to_owned).collect()).collect(),
            };
            let cells = cells.iter().map(|c| (*c).to_owned()).collect();
            rows.push(Row { op: (*op).to_owned(), dtypes, cells, selectors });
        }
        Ok(Requirements { kinds: kinds.iter().map(|k| (*k).to_owned()).collect(), rows })
    }

    /// What a device has to have and does not claim, as failed cases.
    ///
    /// # Errors
    /// When the table has no column for this kind of device.
    pub fn missing(&self, device: &str, claims: &[Unit]) -> Result<Vec<(Unit, String)>> {
        let kind = device.split(':').next().unwrap_or(device);
        let column = self.kinds.iter().position(|k| k == kind);
        if column.is_none() && !self.kinds.is_empty() {
            return Err(Error::invalid(format!(
                "the table has no column for `{kind}`; it has {}",
                self.kinds.join(", ")
            )));
        }
        let key = |u: &Unit| -> Key {
            (u.op.clone(), u.selectors.iter().map(|(_, v)| v.clone()).collect(), u.dtypes.clone())
        };
        let claimed: BTreeSet<Key> = claims.iter().filter(|u| u.device == device).map(key).collect();
        let mut missing = Vec::new();
        for row in self.rows.iter().filter(|r| column.is_none_or(|c| r.cells[c] == "yes")) {
            for selectors in &row.selectors {
                if claimed.contains(&(row.op.clone(), selectors.clone(), row.dtypes.clone())) {
                    continue;
                }
                let parts: Vec<String> = selectors
                    .iter()
                    .cloned()
                    .chain(row.dtypes.iter().map(|(r, d)| format!("{r}={d}")))
                    .collect();
                let slug = if parts.is_empty() { "-".to_owned() } else { parts.join(",") };
                let unit = Unit {
                    name: format!("{}/{device}/{}/{slug}", Group::Require, row.op),
                    group: Group::Require,
                    device: device.to_owned(),
                    op: row.op.clone(),
                    selectors: selectors.iter().map(|v| (String::new(), v.clone())).collect(),
                    dtypes: row.dtypes.clone(),
                };
                missing.push((unit, "required, and the provider does not claim it".to_owned()));
            }
        }
        Ok(missing)
    }
}

/// The table of everything that providers claim: `yes`, or `failed` where a case did.
pub fn table(claims: &[Unit], summary: &Summary) -> String {
    let failed: BTreeSet<&str> = summary
        .cases
        .iter()
        .filter(|c| matches!(c.outcome, Outcome::Failed | Outcome::ExpectedFailure))
        .filter_map(|c| summary.unit(c))
        .map(|u| u.name.as_str())
        .collect();
    let kind = |u: &Unit| u.device.split(':').next().unwrap_or_default().to_owned();
    let kinds: BTreeSet<String> = claims.iter().map(kind).collect();
    // By op and dtypes, by selectors: the cell of each kind.
    type Cells = BTreeMap<String, &'static str>;
    let mut rows: BTreeMap<(String, String), BTreeMap<String, Cells>> = BTreeMap::new();
    for unit in claims {
        let dtypes: Vec<String> = unit.dtypes.iter().map(|(r, d)| format!("{r}={d}")).collect();
        let selectors: Vec<&str> = unit.selectors.iter().map(|(_, v)| v.as_str()).collect();
        let by_selector = rows.entry((unit.op.clone(), dtypes.join(" "))).or_default();
        let cell = by_selector.entry(selectors.join("/")).or_default().entry(kind(unit)).or_insert("yes");
        if failed.contains(unit.name.as_str()) {
            *cell = "failed";
        }
    }
    let mut text =
        format!("op,dtypes,{}selectors\n", kinds.iter().map(|k| format!("{k},")).collect::<String>());
    for ((op, dtypes), by_selector) in rows {
        let mut groups: BTreeMap<Vec<&str>, Vec<String>> = BTreeMap::new();
        for (selectors, cells) in by_selector {
            let cells = kinds.iter().map(|k| cells.get(k).copied().unwrap_or("missing")).collect();
            groups.entry(cells).or_default().push(selectors);
        }
        for (cells, selectors) in groups {
            let every = core_schema(&op).map(|s| s.selectors().map(|(_, c)| c.len()).product::<usize>());
            let all = every == Some(selectors.len()) && !selectors[0].is_empty();
            let list = if all { "all".to_owned() } else { selectors.join(" ") };
            // Writing to a string does not fail.
            let _infallible = writeln!(text, "{op},{dtypes},{},{list}", cells.join(","));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expect::Expectations;
    use crate::summary::tests::{outcomes, unit};

    fn claims() -> Vec<Unit> {
        let mut matmul = unit("primitives/x:0/matmul/1", Group::Primitives, "matmul", &[("data", "f32")]);
        let with = |a: &str, b: &str| {
            vec![("transpose_a".to_owned(), a.to_owned()), ("transpose_b".to_owned(), b.to_owned())]
        };
        matmul.selectors = with("none", "none");
        let mut other = matmul.clone();
        other.selectors = with("none", "transpose");
        vec![unit("primitives/x:0/add/data=f32", Group::Primitives, "add", &[("data", "f32")]), matmul, other]
    }

    #[test]
    fn a_table_lists_claims_and_failures() {
        let summary = Summary::new(vec![outcomes()], &Expectations::default(), true, str::to_owned);
        let text = table(&claims(), &summary);
        assert_eq!(
            text,
            "op,dtypes,x,selectors\nadd,data=f32,failed,\nmatmul,data=f32,yes,none/none none/transpose\n"
        );
        assert_eq!(table(&claims(), &Summary::default()).lines().nth(1), Some("add,data=f32,yes,"));
    }

    #[test]
    fn a_table_can_be_required() {
        let text = table(&claims(), &Summary::default());
        let required = Requirements::parse(&text).unwrap();
        assert_eq!(required.missing("x:0", &claims()).unwrap(), []);
        let missing = required.missing("x:0", &claims()[..2]).unwrap();
        assert_eq!(missing.len(), 1);
        assert_eq!(missing[0].0.name, "require/x:0/matmul/none,transpose,data=f32");
        assert!(required.missing("y:0", &claims()).unwrap_err().message().contains("no column for `y`"));
        let all =
            Requirements::parse("op,dtypes,x,selectors\nmatmul,data=f32,yes,all\nadd,data=i8,missing,\n")
                .unwrap();
        assert_eq!(all.missing("x:0", &claims()).unwrap().len(), 2);
        let every = Requirements::parse("op,dtypes,selectors\nadd,data=i8,\n").unwrap();
        assert_eq!(every.missing("anything:3", &claims()).unwrap().len(), 1);
    }

    #[test]
    fn bad_tables_are_told_by_line() {
        for (text, part) in [
            ("", "first line"),
            ("op,dtypes,x\n", "first line"),
            ("op,dtypes,x,selectors\nadd,data=f32\n", "line 2"),
            ("op,dtypes,x,selectors\nadd,f32,yes,\n", "role=dtype"),
            ("op,dtypes,x,selectors\nacme.op,data=f32,yes,all\n", "`all`"),
        ] {
            let e = Requirements::parse(text).unwrap_err();
            assert!(e.message().contains(part), "{text:?}: {e}");
        }
    }
}

//! Which selectors and dtypes of a request a factory is not for, and which ones it is for.

use ep_core::handle::FactoryHandle;
use ep_core::schema::{Key, Schema};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What fields of a request's key are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyField {
    /// Selectors.
    Selector,
    /// Roles of dtypes.
    DType,
}

/// Selectors or roles in which a request differs from those rows of a factory that are nearest to it: rows with
/// as few differences as there can be, and everything else as asked.
///
/// Of several mismatches of one kind, it is enough to mend one; selectors and dtypes both have to be mended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// What `fields` are.
    pub kind: KeyField,
    /// The selectors or roles that differ, all together.
    pub fields: Vec<String>,
    /// The request's value of each field.
    pub found: Vec<String>,
    /// The values that the factory has instead, one for each field; in order of the values.
    pub allowed: Vec<Vec<String>>,
}

/// As many values as a message lists.
const LISTED: usize = 12;

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let equal = |row: &Vec<String>| row.iter().all(|v| *v == row[0]);
        if self.allowed.iter().all(equal) {
            write!(f, "{} in ", self.fields.join(" = "))?;
            return list(self.allowed.iter().map(|r| r[0].clone()).collect(), f);
        }
        let column = |i: usize| self.allowed.iter().map(|r| r[i].as_str()).collect::<BTreeSet<_>>();
        let columns: Vec<_> = (0..self.fields.len()).map(column).collect();
        if self.fields.len() > 1 && columns.iter().map(BTreeSet::len).product::<usize>() == self.allowed.len()
        {
            for (i, (field, values)) in self.fields.iter().zip(&columns).enumerate() {
                // In the order of the rows, not of the alphabet.
                let mut left = values.clone();
                let values = self.allowed.iter().map(|r| r[i].as_str()).filter(|v| left.remove(v));
                write!(f, "{}{field} in ", if i == 0 { "" } else { " and " })?;
                list(values.map(str::to_owned).collect(), f)?;
            }
            return Ok(());
        }
        write!(f, "({}) in ", self.fields.join(", "))?;
        list(self.allowed.iter().map(|r| format!("({})", r.join(", "))).collect(), f)
    }
}

fn list(values: Vec<String>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let shown = if values.len() > LISTED + 1 { LISTED } else { values.len() };
    write!(f, "[{}", values[..shown].join(", "))?;
    match values.len() - shown {
        0 => f.write_str("]"),
        more => write!(f, " and {more} others]"),
    }
}

/// All mismatches as one sentence: `needs dst in [f16, f32], but dst is i32`.
pub(crate) fn sentence(mismatches: &[Mismatch], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if mismatches.is_empty() {
        return f.write_str("is for selector values only that this host has no name for");
    }
    let mut actual: Vec<String> = Vec::new();
    let kinds: Vec<_> = mismatches.chunk_by(|a, b| a.kind == b.kind).collect();
    for (i, ways) in kinds.iter().enumerate() {
        f.write_str(if i == 0 { "needs " } else { " and " })?;
        let ways: Vec<_> = ways.iter().map(ToString::to_string).collect();
        match (ways.len(), kinds.len()) {
            (2.., 2..) => write!(f, "({})", ways.join(" or "))?,
            _ => f.write_str(&ways.join(" or "))?,
        }
    }
    for m in mismatches {
        for (field, value) in m.fields.iter().zip(&m.found) {
            let text = format!("{field} is {value}");
            if !actual.contains(&text) {
                actual.push(text);
            }
        }
    }
    write!(f, ", but {}", actual.join(" and "))
}

/// In how much a request differs: another function is further away than other dtypes.
pub(crate) fn distance(mismatches: &[Mismatch]) -> usize {
    let of = |kind| mismatches.iter().find(|m| m.kind == kind).map_or(0, |m| m.fields.len());
    4 * of(KeyField::Selector) + of(KeyField::DType)
}

/// Why the factory does not cover the key; empty if its rows have it, or if it has no row.
pub(crate) fn mismatches(schema: &Schema, factory: &FactoryHandle, key: &Key) -> Vec<Mismatch> {
    let choices: Vec<&[String]> = schema.selectors().map(|(_, choices)| choices).collect();
    let value = |i: usize, v: u32| choices[i].get(v as usize).cloned().unwrap_or_else(|| v.to_string());
    let names = schema.selectors().map(|(f, _)| f.name.as_str()).collect::<Vec<_>>();
    let mut found = of_kind(KeyField::Selector, &names, &key.selectors, &factory.selectors, value);
    let roles = schema.dtypes().map(|f| f.name.as_str()).collect::<Vec<_>>();
    found.extend(of_kind(KeyField::DType, &roles, &key.dtypes, &factory.dtypes, |_, d| d.to_string()));
    found
}

fn of_kind<T: Copy + Ord>(
    kind: KeyField,
    names: &[&str],
    asked: &[T],
    rows: &[Vec<T>],
    text: impl Fn(usize, T) -> String,
) -> Vec<Mismatch> {
    let differing = |row: &[T]| (0..asked.len()).filter(|i| row[*i] != asked[*i]).collect::<Vec<_>>();
    let places: Vec<Vec<usize>> = rows.iter().map(|r| differing(r)).collect();
    let Some(fewest) = places.iter().map(Vec::len).min().filter(|n| *n > 0) else { return Vec::new() };
    let mut groups: BTreeMap<&[usize], BTreeSet<Vec<T>>> = BTreeMap::new();
    for (row, at) in rows.iter().zip(&places).filter(|(_, at)| at.len() == fewest) {
        groups.entry(at).or_default().insert(at.iter().map(|i| row[*i]).collect());
    }
    let mismatch = |(at, rows): (&[usize], BTreeSet<Vec<T>>)| {
        let texts = |row: &[T]| at.iter().zip(row).map(|(i, v)| text(*i, *v)).collect::<Vec<_>>();
        Mismatch {
            kind,
            fields: at.iter().map(|i| names[*i].to_owned()).collect(),
            found: at.iter().map(|i| text(*i, asked[*i])).collect(),
            allowed: rows.iter().map(|r| texts(r)).collect(),
        }
    };
    groups.into_iter().map(mismatch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sentence<'a>(&'a [Mismatch]);

    impl fmt::Display for Sentence<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            sentence(self.0, f)
        }
    }

    fn of(asked: [u32; 2], rows: &[[u32; 2]]) -> Vec<Mismatch> {
        let rows: Vec<Vec<u32>> = rows.iter().map(|r| r.to_vec()).collect();
        of_kind(KeyField::DType, &["src", "dst"], &asked, &rows, |_, v| format!("t{v}"))
    }

    fn says(found: &[Mismatch], text: &str) {
        assert_eq!(Sentence(found).to_string(), text);
    }

    #[test]
    fn the_fields_that_differ_are_named_with_what_would_fit() {
        let square = [[2, 2], [1, 1], [1, 2], [2, 1]];
        let one = of([1, 9], &square);
        says(&one, "needs dst in [t1, t2], but dst is t9");
        assert_eq!(one[0].allowed, [["t1"], ["t2"]]);
        says(&of([9, 8], &square), "needs src in [t1, t2] and dst in [t1, t2], but src is t9 and dst is t8");
        assert_eq!(of([2, 1], &square), []);
        assert_eq!(of([2, 1], &[]), []);
    }

    #[test]
    fn no_mixture_is_offered_that_does_not_exist() {
        let same = [[1, 1], [2, 2], [3, 3]];
        says(&of([8, 8], &same), "needs src = dst in [t1, t2, t3], but src is t8 and dst is t8");
        says(&of([1, 2], &same), "needs src in [t2] or dst in [t1], but src is t1 and dst is t2");
        says(
            &of([8, 8], &[[1, 1], [2, 1], [3, 2]]),
            "needs (src, dst) in [(t1, t1), (t2, t1), (t3, t2)], but src is t8 and dst is t8",
        );
    }

    #[test]
    fn selectors_count_more_and_long_lists_are_cut() {
        let rows: Vec<Vec<u32>> = (0..30).map(|v| vec![v]).collect();
        let mut found = of_kind(KeyField::Selector, &["op"], &[40], &rows, |_, v| format!("f{v}"));
        assert_eq!((found[0].allowed.len(), distance(&found)), (30, 4));
        let function = of_kind(KeyField::Selector, &["op"], &[1], &rows[..1], |_, v| format!("f{v}"));
        says(
            &[function, of([1, 2], &[[1, 1], [2, 2]])].concat(),
            "needs op in [f0] and (src in [t2] or dst in [t1]), but op is f1 and src is t1 and dst is t2",
        );
        found.extend(of([1, 9], &[[1, 1]]));
        assert_eq!(distance(&found), 5);
        let text = Sentence(&found).to_string();
        assert!(text.starts_with("needs op in [f0, f1, "), "{text}");
        assert!(text.ends_with("f11 and 18 others] and dst in [t1], but op is f40 and dst is t9"), "{text}");
        says(&[], "is for selector values only that this host has no name for");
    }
}

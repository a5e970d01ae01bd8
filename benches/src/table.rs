//! The standard table: every row that `ep bench` and the comparison with the peers time.
//!
//! | group | what is in it |
//! |---|---|
//! | large | the sizes that the peers are usually judged by, past the caches |
//! | medium | the same ops at 4 Ki, 64 Ki and 1 Mi elements |
//! | small | a few elements: what a launch costs |
//! | chain | an op and a read of its output |
//! | grid | every primitive in more dtypes, odd sizes, and contents that are far apart (`_wide`) or far from 0 (`_far`) |
//!
//! Bytes are those that have to be moved at least once each way; what an implementation moves beyond that is its loss.

mod elementwise;
mod matmul;
mod movers;
mod rowwise;

use crate::row::{Content, Family, Group, Row};

/// Elements of the large elementwise rows.
pub(crate) const LARGE: i64 = 1 << 24;

/// Numbers so far apart that exponentials of some are less than normal numbers, which CPUs are slow at.
pub(crate) const WIDE: Content = Content::Normal(40.0);

/// Angles as large as those of positions in a long text, which have to be reduced.
pub(crate) const ANGLES: Content = Content::Normal(40_000.0);

/// All rows, in the order of reports. No two have the same [`Row::id`].
pub fn table() -> Vec<Row> {
    let mut rows = Vec::new();
    for part in [elementwise::rows, rowwise::rows, movers::rows, matmul::rows] {
        part(&mut rows);
    }
    rows.sort_by_key(|r| (r.group, r.family));
    rows
}

/// Adds rows to a part of the table. What has 4 Ki elements or less is launch cost, whatever the op.
pub(crate) fn add(rows: &mut Vec<Row>, group: Group, new: impl IntoIterator<Item = Row>) {
    rows.extend(new.into_iter().map(|r| {
        let mut r = r.group(group);
        if group == Group::Small {
            r.family = Family::Small;
        }
        r
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn ids_are_unique() {
        let mut seen = BTreeSet::new();
        for row in table() {
            assert!(seen.insert(row.id()), "two rows are called `{}`", row.id());
        }
    }

    /// Every name in a row is one of the op's schema, and the schema counts as many bytes as the row's operands have.
    #[test]
    fn rows_fit_the_schemas() {
        let known: BTreeMap<_, _> = ep_core::schema::core_schemas().map(|s| (s.name.clone(), s)).collect();
        let mut checked = 0;
        for row in table() {
            let Some(schema) = known.get(row.primitive) else { continue };
            let operands: Vec<_> = schema.operands.iter().map(|o| o.name.as_str()).collect();
            for name in row.inputs.iter().map(|i| i.name).chain([row.output.name]) {
                assert!(operands.contains(&name), "{}: operand `{name}` is none of {operands:?}", row.id());
            }
            let desc = row.selectors.iter().map(|x| x.0).chain(row.roles.iter().map(|x| x.0));
            for name in desc.chain(row.attrs.iter().map(|x| x.0)) {
                assert!(schema.desc_field(name).is_some(), "{}: no descriptor field `{name}`", row.id());
            }
            let sizes = row.sizes.iter().map(|x| x.0).chain(row.scalars.iter().map(|x| x.0));
            for name in sizes.chain(row.dims.iter().map(|x| x.0)) {
                assert!(schema.arg_field(name).is_some(), "{}: no argument `{name}`", row.id());
            }
            checked += 1;
        }
        assert!(checked > 50, "only {checked} rows are of known ops");
    }

    #[test]
    fn every_primitive_has_a_row() {
        let rows: BTreeSet<_> = table().into_iter().map(|r| r.primitive.to_owned()).collect();
        for schema in ep_core::schema::core_schemas() {
            assert!(rows.contains(&schema.name), "no row launches `{}`", schema.name);
        }
    }

    #[test]
    fn what_moves_is_within_the_operands() {
        for row in table() {
            for input in &row.inputs {
                assert!(input.moved <= input.bytes() || row.primitive.contains("gather"), "{}", row.id());
            }
            assert!(row.output.bytes() > 0, "{} writes nothing", row.id());
            assert!(row.footprint() < 2 << 30, "{} needs {} bytes", row.id(), row.footprint());
        }
    }
}

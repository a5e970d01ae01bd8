//! From the rows of an elementwise kernel table to as few factories as claim exactly these rows.

use ep_core::DType;
use std::collections::BTreeMap;

/// Ops with the same dtypes.
#[derive(Debug)]
pub(super) struct Group {
    /// Of the factory; says which ops and dtypes.
    pub(super) name: String,
    /// Indices of the ops.
    pub(super) ops: Vec<usize>,
    /// Source and destination dtype of each row.
    pub(super) dtypes: Vec<[DType; 2]>,
}

/// Puts ops whose rows have the same dtypes into one group. `rows` are (op, source, destination), each once
/// and ordered; `names` are the ops'.
pub(super) fn groups(
    prefix: &str,
    names: &[&str],
    rows: impl Iterator<Item = (usize, DType, DType)>,
) -> Vec<Group> {
    let mut dtypes_of = BTreeMap::<usize, Vec<[DType; 2]>>::new();
    for (op, src, dst) in rows {
        dtypes_of.entry(op).or_default().push([src, dst]);
    }
    let mut ops_of = BTreeMap::<Vec<[DType; 2]>, Vec<usize>>::new();
    for (op, dtypes) in dtypes_of {
        ops_of.entry(dtypes).or_default().push(op);
    }
    let group = |(dtypes, ops): (Vec<[DType; 2]>, Vec<usize>)| {
        let what = match ops[..] {
            [op] => names[op].to_owned(),
            _ => describe(&dtypes),
        };
        Group { name: format!("{prefix}.{what}"), ops, dtypes }
    };
    ops_of.into_iter().map(group).collect()
}

/// `int_float`, or `float_to_bool` where not all destinations are as their sources.
fn describe(dtypes: &[[DType; 2]]) -> String {
    let classes = |side: usize| {
        let has = |class: &[DType]| dtypes.iter().any(|row| class.contains(&row[side]));
        let all = [
            ("bool", &[DType::BOOL][..]),
            ("int", DType::INT),
            ("float", DType::FLOAT),
            ("complex", DType::COMPLEX),
        ];
        let present: Vec<_> = all.iter().filter(|(_, class)| has(class)).map(|(name, _)| *name).collect();
        present.join("_")
    };
    if dtypes.iter().all(|[src, dst]| src == dst) {
        classes(0)
    } else {
        format!("{}_to_{}", classes(0), classes(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{binary, unary};
    use ep_core::op::Op;
    use ep_core::primitive::{BroadcastElementwiseBinary, ElementwiseUnary};
    use ep_core::schema::DescKind;
    use std::collections::HashSet;

    fn check(prefix: &str, names: &[&str], rows: &[(usize, DType, DType)]) {
        let groups = groups(prefix, names, rows.iter().copied());
        let expanded: Vec<_> = groups
            .iter()
            .flat_map(|g| g.ops.iter().flat_map(|op| g.dtypes.iter().map(|[src, dst]| (*op, *src, *dst))))
            .collect();
        let set: HashSet<_> = expanded.iter().copied().collect();
        assert_eq!(set, rows.iter().copied().collect(), "the claims are the rows");
        assert_eq!(expanded.len(), set.len(), "no row is claimed twice");
        let factories: HashSet<_> = groups.iter().map(|g| &g.name).collect();
        assert_eq!(factories.len(), groups.len(), "names are unique: {factories:?}");
        assert!(factories.contains(&format!("{prefix}.float")), "{factories:?}");
        assert!(groups.len() <= 16, "{factories:?}");
    }

    #[test]
    fn groups_claim_exactly_the_rows() {
        let rows: Vec<_> = unary::rows().iter().map(|r| (r.op, r.src, r.dst)).collect();
        check("unary", unary::OPS, &rows);
        let rows: Vec<_> = binary::rows().iter().map(|r| (r.op, r.src, r.dst)).collect();
        check("binary", binary::OPS, &rows);
    }

    fn choices<O: Op>() -> Vec<String> {
        match &O::schema().desc_field("op").unwrap().kind {
            DescKind::Selector(choices) => choices.iter().map(ToString::to_string).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// Selector values index the tables.
    #[test]
    fn tables_are_in_the_schemas_order() {
        assert_eq!(choices::<ElementwiseUnary>(), unary::OPS);
        assert_eq!(choices::<BroadcastElementwiseBinary>(), binary::OPS);
    }
}

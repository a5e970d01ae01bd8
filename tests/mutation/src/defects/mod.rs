//! The seeded defects, in a file for each area. What is wrong with each, and which rule it breaks, is in
//! `defects.toml` and `later.toml`.

mod abi;
mod async_;
mod elementwise;
mod later;
mod matmul;
pub mod memory;
mod movers;
mod objects;
mod rows;

use crate::tables::Tables;
use ep_core::Result;
use ep_sim::{Call, DeviceMemory, Shortcuts, Write};

/// Computes a launch wrongly.
pub type Compute = fn(&mut Call, &DeviceMemory<'_>) -> Result<Vec<Write>>;

/// A defect.
pub struct Defect {
    /// Its name in `defects.toml` or `later.toml`.
    pub id: &'static str,
    /// Replaces functions of the plugin.
    pub tables: Option<fn(&mut Tables)>,
    /// The ops whose launches are wrong.
    pub ops: &'static [&'static str],
    /// What these compute.
    pub compute: Compute,
    /// What streams leave out.
    pub shortcuts: Shortcuts,
}

const NONE: Defect = Defect {
    id: "",
    tables: None,
    ops: &[],
    compute: |call, _| call.reference(),
    shortcuts: Shortcuts {
        query_skips_running: false,
        only_the_last_result: false,
        destroy_drops_work: false,
    },
};

/// A defect of the plugin's functions.
const fn tables(id: &'static str, replace: fn(&mut Tables)) -> Defect {
    Defect { id, tables: Some(replace), ..NONE }
}

/// A defect of launches.
const fn launch(id: &'static str, ops: &'static [&'static str], compute: Compute) -> Defect {
    Defect { id, ops, compute, ..NONE }
}

/// A defect of streams.
const fn streams(id: &'static str, shortcuts: Shortcuts) -> Defect {
    Defect { id, shortcuts, ..NONE }
}

/// All defects, by area.
const AREAS: [&[Defect]; 9] = [
    &abi::DEFECTS,
    &objects::DEFECTS,
    &memory::DEFECTS,
    &async_::DEFECTS,
    &elementwise::DEFECTS,
    &movers::DEFECTS,
    &rows::DEFECTS,
    &matmul::DEFECTS,
    &later::DEFECTS,
];

/// The defect of a name.
pub fn find(id: &str) -> Option<&'static Defect> {
    AREAS.into_iter().flatten().find(|d| d.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_defect_of_the_list_is_there_and_no_other() {
        let texts = [include_str!("../../defects.toml"), include_str!("../../later.toml")];
        let tables = texts.map(|text| text.parse::<toml::Table>().unwrap());
        let list: Vec<_> = tables.iter().flat_map(|t| t["defect"].as_array().unwrap()).collect();
        let wanted: BTreeSet<&str> = list.iter().map(|d| d["id"].as_str().unwrap()).collect();
        let found: BTreeSet<&str> = AREAS.into_iter().flatten().map(|d| d.id).collect();
        assert_eq!(wanted, found);
        assert_eq!(wanted.len(), list.len());
    }
}

//! Comparing how two sides see a struct (rule 4).

use super::types::EpTableInfo;
use super::{list, string_of};
use crate::Result;
use std::fmt;

/// The first difference between two views of one struct.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The struct.
    pub table: String,
    /// Which field, from 0.
    pub index: usize,
    /// Its name on this side.
    pub ours: String,
    /// Its name on the other side.
    pub theirs: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { table, index, ours, theirs } = self;
        if ours == theirs {
            write!(f, "{table}: field {index} `{ours}` has another type, size or offset")
        } else {
            write!(f, "{table}: field {index} is `{ours}` here and `{theirs}` there")
        }
    }
}

/// Compares two views of a struct: they fit when one list of fields is a prefix of the other.
///
/// # Errors
/// `InvalidArgument` when the other side's lists are impossible.
///
/// # Safety
/// `theirs` comes from a loaded plugin: its non-null pointers are readable for `count` entries.
pub unsafe fn compare(ours: &EpTableInfo, theirs: &EpTableInfo) -> Result<Option<Mismatch>> {
    // SAFETY: ours is generated static data; theirs as the caller promises.
    let (a, b) = unsafe {
        (
            list(ours.prefixes, ours.count, "fingerprints")?,
            list(theirs.prefixes, theirs.count, "fingerprints")?,
        )
    };
    let Some(index) = a.iter().zip(b).position(|(x, y)| x != y) else { return Ok(None) };
    // SAFETY: as above; `index` is below both counts.
    let (names_a, names_b, table) = unsafe {
        (
            list(ours.fields, ours.count, "field names")?,
            list(theirs.fields, theirs.count, "field names")?,
            string_of(ours.name),
        )
    };
    // SAFETY: names are text of the same origin as the lists.
    let (ours, theirs) = unsafe { (string_of(names_a[index]), string_of(names_b[index])) };
    Ok(Some(Mismatch { table, index, ours, theirs }))
}

#[cfg(test)]
mod tests {
    use super::super::{EpStr, text};
    use super::*;

    fn info(fields: &[EpStr], prefixes: &[u64]) -> EpTableInfo {
        EpTableInfo {
            name: text("EpX"),
            fields: fields.as_ptr(),
            prefixes: prefixes.as_ptr(),
            count: fields.len() as u64,
        }
    }

    #[test]
    fn prefixes_fit_both_ways_and_a_difference_is_named() {
        let (a, b, c) = (text("a"), text("b"), text("c"));
        let long = (&[a, b, c][..], &[1, 2, 3][..]);
        let short = (&[a, b][..], &[1, 2][..]);
        let swapped = (&[b, a][..], &[9, 8][..]);
        let retyped = (&[a, b, c][..], &[1, 7, 7][..]);
        let check = |x: (&[EpStr], &[u64]), y: (&[EpStr], &[u64])| {
            // SAFETY: both are live local lists.
            unsafe { compare(&info(x.0, x.1), &info(y.0, y.1)) }.unwrap().map(|m| m.to_string())
        };
        assert_eq!(check(long, short), None);
        assert_eq!(check(short, long), None);
        assert_eq!(check(long, swapped).unwrap(), "EpX: field 0 is `a` here and `b` there");
        assert_eq!(check(long, retyped).unwrap(), "EpX: field 1 `b` has another type, size or offset");
    }
}

//! Which kernels there are, for filling the cache ahead of time (`ep warm`).

use crate::bundle;
use crate::compiler::{Arch, Spec};
use crate::ops;
use ep_core::{Error, Result};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;

/// The kernels of the standard tables for an architecture, of one op or of all, each once and in a fixed order.
///
/// # Errors
/// `NotFound` for an op that has none here.
pub fn kernels(arch: Arch, op: Option<&str>) -> Result<Vec<Spec>> {
    let all = ops::kernels(arch);
    let wanted = |name: &str| op.is_none_or(|op| op == name);
    if let Some(op) = op.filter(|_| !all.iter().any(|(name, _)| wanted(name))) {
        let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        return Err(Error::not_found(format!(
            "op `{op}` has no kernels that are compiled; those that have are {}",
            names.join(", ")
        )));
    }
    let mut seen = HashSet::new();
    let chosen = all.into_iter().filter(|(name, _)| wanted(name)).flat_map(|(_, specs)| specs);
    Ok(chosen.filter(|spec| seen.insert(spec.to_string())).collect())
}

/// [`kernels`], in groups that are compiled together.
///
/// # Errors
/// As [`kernels`].
pub fn bundles(arch: Arch, op: Option<&str>) -> Result<Vec<Vec<Spec>>> {
    Ok(bundled(kernels(arch, op)?))
}

/// Kernels in groups that are compiled together.
pub fn bundled(kernels: Vec<Spec>) -> Vec<Vec<Spec>> {
    bundle::group(kernels)
}

/// The groups for an architecture and an op, kept for who asks for one after the other.
#[derive(Default)]
pub(crate) struct Table {
    last: Mutex<Option<(Arch, Option<String>, Bundles)>>,
}

type Bundles = Arc<[Vec<Spec>]>;

impl Table {
    /// [`bundles`].
    ///
    /// # Errors
    /// As [`bundles`].
    pub(crate) fn bundles(&self, arch: Arch, op: Option<&str>) -> Result<Bundles> {
        let mut last = self.last.lock();
        if let Some((_, _, found)) = last.as_ref().filter(|(a, o, _)| *a == arch && o.as_deref() == op) {
            return Ok(found.clone());
        }
        let found: Bundles = bundles(arch, op)?.into();
        *last = Some((arch, op.map(str::to_owned), found.clone()));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;

    const HOPPER: Arch = Arch::new(9, 0);

    #[test]
    fn kernels_are_listed_once_and_within_the_bound() {
        let all = kernels(HOPPER, None).unwrap();
        let keys: HashSet<_> = all.iter().map(Spec::key).collect();
        assert_eq!(keys.len(), all.len(), "two kernels with one key");
        let mut by_source = std::collections::BTreeMap::new();
        all.iter().for_each(|spec| *by_source.entry(spec.source.name).or_insert(0) += 1);
        assert!((2000..=2750).contains(&all.len()), "{}: {by_source:?}", all.len());
        let fills = kernels(HOPPER, Some("fill")).unwrap();
        assert_eq!((fills.len(), fills[0].source.name), (7, "fill.cu"));
        let error = kernels(HOPPER, Some("memset")).unwrap_err();
        assert!(error.code() == Code::NotFound && error.message().contains("softmax_backward"), "{error}");
    }
}

//! Filling the cache ahead of time.

use crate::compiler::{Arch, Compiler, Spec};
use crate::ops;
use ep_core::{Error, Result};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The kernels of the standard tables for an architecture, of one op or of all.
///
/// # Errors
/// `NotFound` for an op that has none here.
pub fn kernels(arch: Arch, op: Option<&str>) -> Result<Vec<Spec>> {
    let all = ops::kernels(arch);
    let mut chosen: Vec<Spec> = Vec::new();
    for (name, specs) in &all {
        if op.is_none_or(|op| op == *name) {
            chosen.extend(specs.iter().cloned());
        }
    }
    if chosen.is_empty() && !all.iter().any(|(name, _)| Some(*name) == op) {
        let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        return Err(Error::not_found(format!(
            "op `{}` has no kernels of CUDA's; those that have are {}",
            op.unwrap_or_default(),
            names.join(", ")
        )));
    }
    let mut seen = std::collections::HashSet::new();
    chosen.retain(|spec| seen.insert(spec.key()));
    Ok(chosen)
}

/// What became of the kernels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Warmed {
    /// Compiled now.
    pub compiled: usize,
    /// There before.
    pub found: usize,
}

/// Compiles what the cache does not have, on `threads` threads. `progress` hears the number of kernels done, of how
/// many, and the one that was just done; an error of it ends the work.
///
/// # Errors
/// The first of [`Compiler::warm`] or of `progress`.
pub fn warm(
    compiler: &Compiler,
    arch: Arch,
    kernels: &[Spec],
    threads: usize,
    progress: &(dyn Fn(usize, usize, &str) -> Result<()> + Sync),
) -> Result<Warmed> {
    let (next, done, compiled) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || -> Result<()> {
        while let Some(spec) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
            let one = compiler.warm(spec, arch).and_then(|fresh| {
                compiled.fetch_add(usize::from(fresh), Ordering::Relaxed);
                let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                progress(done, kernels.len(), &spec.to_string())
            });
            if one.is_err() {
                // Nobody takes another one.
                next.store(kernels.len(), Ordering::Relaxed);
                return one;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..threads.max(1)).map(|_| scope.spawn(work)).collect();
        let mine = work();
        workers.into_iter().fold(mine, |first, worker| {
            let theirs =
                worker.join().unwrap_or_else(|_| Err(Error::internal("a thread that compiles panicked")));
            first.and(theirs)
        })
    })?;
    let compiled = compiled.into_inner();
    Ok(Warmed { compiled, found: kernels.len() - compiled })
}

//! Which products go through tiles in parts: see [`gemm_split`](super::gemm_split).

use ep_core::{Error, Result};
use std::sync::OnceLock;

/// The environment variable that says so: `all`, `f16` or `none`.
pub(crate) const PARTS_ENV: &str = "EP_CPU_PARTS";

/// CPUs up to which three parts pay, as far as that was measured: on a host of sixteen, which it shares with others, tiles were
/// too slow for that as often as not. Two parts paid there, too.
const MOST_CPUS: usize = 4;

/// Dtypes whose products are taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parts {
    All,
    /// Those of two parts.
    F16,
    None,
}

static ASKED: OnceLock<Option<Parts>> = OnceLock::new();

/// Reads the variable, once.
///
/// # Errors
/// `InvalidArgument` if it holds an unknown word.
pub(crate) fn configure() -> Result<()> {
    let asked = match std::env::var_os(PARTS_ENV).filter(|word| !word.is_empty()) {
        None => None,
        Some(word) => Some(parse(&word.to_string_lossy())?),
    };
    ASKED.get_or_init(|| asked);
    Ok(())
}

fn parse(word: &str) -> Result<Parts> {
    match word {
        "all" => Ok(Parts::All),
        "f16" => Ok(Parts::F16),
        "none" => Ok(Parts::None),
        _ => {
            Err(Error::invalid(format!("{PARTS_ENV}={word} is none of all, f16, none (change or unset it)")))
        }
    }
}

/// Whether numbers of so many parts are taken apart. The same for the life of the process, so that equal products stay equal.
pub(super) fn are_taken(count: usize) -> bool {
    static CHOSEN: OnceLock<Parts> = OnceLock::new();
    match CHOSEN.get_or_init(|| ASKED.get().copied().flatten().unwrap_or_else(suitable)) {
        Parts::All => true,
        Parts::F16 => count == 2,
        Parts::None => false,
    }
}

fn suitable() -> Parts {
    let few = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() <= MOST_CPUS);
    // Tests are of what there is, whether it pays or not.
    if few || cfg!(test) { Parts::All } else { Parts::F16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        assert_eq!(["all", "f16", "none"].map(|w| parse(w).unwrap()), [Parts::All, Parts::F16, Parts::None]);
        let e = parse("f32").unwrap_err();
        assert!(e.to_string().contains("EP_CPU_PARTS=f32 is none of all, f16, none"), "{e}");
    }
}

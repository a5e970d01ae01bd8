//! The second opinion of `abi_stable` on whether two builds agree (rule 5): it compares whole types, signatures
//! of functions included, and says in words what differs. The fingerprints decide; this explains.

use super::types::{EpStr, EveryTable};
use super::{str_of, text};
use abi_stable::StableAbi;
use abi_stable::abi_stability::abi_checking::{
    AbiInstability, AbiInstabilityError, AbiInstabilityErrors, check_layout_compatibility,
};
use abi_stable::type_layout::{TLDataDiscriminant, TLFieldOrFunction};
use std::fmt::Write;

/// Differences that the short list at the top of an explanation has room for.
const MAX_LINES: usize = 8;

/// How the types end that stand for function types in the layout.
const STAND_IN: &str = "Layout";

/// This build's layout of every table and growable struct, of the structs and function signatures that can be
/// reached from them, and of nothing else. A plugin built with the `abi_stable` feature exports it.
pub fn plugin_layout() -> &'static TypeLayout {
    <EveryTable as StableAbi>::LAYOUT
}

pub use abi_stable::type_layout::TypeLayout;

/// The symbol that plugins built with the feature export, a [`LayoutFn`].
pub const LAYOUT_SYMBOL: &str = "ep_plugin_layout";

/// The series of `abi_stable` whose layouts this build can read.
const SERIES: &str = "0.11";

/// A plugin's layout with the series of `abi_stable` that made it, which is looked at first.
#[repr(C)]
#[derive(Debug)]
pub struct PluginLayout {
    series: EpStr,
    layout: *const TypeLayout,
}

/// Fills a [`PluginLayout`].
pub type LayoutFn = unsafe extern "C" fn(*mut PluginLayout);

/// What [`crate::export_provider!`] exports as [`LAYOUT_SYMBOL`].
///
/// # Safety
/// `out` is null or valid for a write.
pub unsafe extern "C" fn write_layout(out: *mut PluginLayout) {
    if !out.is_null() {
        // SAFETY: not null; valid as the caller promises.
        unsafe { out.write(PluginLayout { series: text(SERIES), layout: plugin_layout() }) };
    }
}

/// Compares a plugin's layout with this build's.
///
/// # Errors
/// The difference, as [`explain`] words it; or that the plugin's layout cannot be read.
///
/// # Safety
/// `theirs` is the [`LAYOUT_SYMBOL`] of a plugin that stays mapped.
pub unsafe fn explain_plugin(theirs: LayoutFn) -> Result<(), String> {
    let mut out = PluginLayout { series: EpStr::ZERO, layout: std::ptr::null() };
    // SAFETY: a valid out-pointer; the series is static text of the plugin.
    let series = unsafe {
        theirs(&mut out);
        str_of(out.series).unwrap_or_default()
    };
    if series != SERIES || out.layout.is_null() {
        return Err(format!(
            "the plugin's layout was made by abi_stable {series:?}; this host reads {SERIES}"
        ));
    }
    // SAFETY: static data of the plugin, in the form of the series that was just compared.
    explain(plugin_layout(), unsafe { &*out.layout })
}

/// Compares two layouts. Both must come from builds with the same 0.x version of `abi_stable`.
///
/// # Errors
/// A text whose first lines name each struct and field that differs with what it is on both sides; after an
/// empty line, all that `abi_stable` has to say.
pub fn explain(ours: &'static TypeLayout, theirs: &'static TypeLayout) -> Result<(), String> {
    let Err(errors) = check_layout_compatibility(ours, theirs) else { return Ok(()) };
    Err(format!("{}\n{errors}", summary(&errors)))
}

fn summary(errors: &AbiInstabilityErrors) -> String {
    let root = errors.interface.name();
    let inner: Vec<_> = errors.errors.iter().filter(|e| !e.stack_trace.is_empty()).collect();
    // The root embeds what differs, so its own size differs too: that is news only when nothing else is.
    let listed = if inner.is_empty() { errors.errors.iter().collect() } else { inner };
    let lines: Vec<_> = listed.iter().flat_map(|e| e.errs.iter().map(|x| line(root, e, x))).collect();
    let mut text = String::new();
    for l in lines.iter().take(MAX_LINES) {
        writeln!(text, "{l}").expect("writing to a string");
    }
    if lines.len() > MAX_LINES {
        writeln!(text, "... and {} more differences", lines.len() - MAX_LINES).expect("writing to a string");
    }
    text
}

/// One difference in one line.
fn line(root: &str, error: &AbiInstabilityError, what: &AbiInstability) -> String {
    let (place, is_function) = place(root, error);
    let kind = if is_function { "parameter" } else { "field" };
    let (what, ours, theirs) = match what {
        AbiInstability::Name(x) => ("type", x.expected.to_string(), x.found.to_string()),
        AbiInstability::MismatchedPrimitive(x) => {
            ("type", format!("{:?}", x.expected), format!("{:?}", x.found))
        }
        AbiInstability::UnexpectedField(x) => (kind, x.expected.name().to_owned(), x.found.name().to_owned()),
        AbiInstability::FieldCountMismatch(x) => {
            ("count of fields", x.expected.to_string(), x.found.to_string())
        }
        AbiInstability::Size(x) => ("size in bytes", x.expected.to_string(), x.found.to_string()),
        AbiInstability::Alignment(x) => ("alignment", x.expected.to_string(), x.found.to_string()),
        _ => return format!("{place}: differs, see below"),
    };
    format!("{place}: {what} `{ours}` here and `{theirs}` there")
}

/// Where a difference is: `EpCopy.bytes`, or `EpCopy` when it is about the struct itself, or
/// `EpHostServices.log.message` for a parameter; and whether it is about a function as a whole.
fn place(root: &str, error: &AbiInstabilityError) -> (String, bool) {
    let stack: Vec<&TLFieldOrFunction> = error.stack_trace.iter().map(|e| &e.expected).collect();
    let about_struct = error.errs.iter().any(|e| !matches!(e, AbiInstability::Name(_)));
    let searched = if about_struct { stack.len() } else { stack.len().saturating_sub(1) };
    let owner = stack[..searched].iter().rposition(|e| struct_name(e).is_some());
    let name = owner.and_then(|i| struct_name(stack[i])).unwrap_or(root).trim_end_matches(STAND_IN);
    let path = stack[owner.map_or(0, |i| i + 1)..].iter().filter_map(|e| match e {
        // Names that `abi_stable` made up: the content of a stand-in, what a pointer points to.
        TLFieldOrFunction::Field(f) => Some(f.name()).filter(|n| *n != "field_0" && *n != "0"),
        TLFieldOrFunction::Function(_) => None,
    });
    let text = std::iter::once(name).chain(path).collect::<Vec<_>>().join(".");
    (text, matches!(stack.last(), Some(TLFieldOrFunction::Function(_))))
}

fn struct_name(entry: &TLFieldOrFunction) -> Option<&'static str> {
    match entry {
        TLFieldOrFunction::Field(f) if f.layout().data_discriminant() == TLDataDiscriminant::Struct => {
            Some(f.layout().name())
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;

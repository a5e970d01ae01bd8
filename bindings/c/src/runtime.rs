//! Runtimes: loaded providers, what they can do, and why not.

use crate::given::{free, given_text, json, made, made_handle, needed, object, text};
use crate::request::read;
use ep_core::abi::EpStatus;
use ep_core::{Error, Result};
use ep_registry::config::Config;
use ep_registry::query::Filter;
use ep_registry::rows::{ExplanationRow, QueryRow, RequestRow};
use ep_registry::{Device, Runtime as Loaded};
use serde::Serialize;
use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Loaded providers and their devices.
pub struct Runtime(pub(crate) Arc<Loaded>, Vec<CString>);

/// The version of this library, "1.2.3".
#[unsafe(no_mangle)]
pub extern "C" fn ep_host_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version without zeros"),
        };
    VERSION.as_ptr()
}

/// Loads the providers that a config file names. Null: the file that `EP_CONFIG` names, else the user's, else the system's.
///
/// A provider that does not load is a line of `ep_runtime_list`, and an error only where the config requires it.
///
/// # Safety
/// `config` is null or a text, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_runtime_open(config: *const c_char, out: *mut *mut Runtime) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe {
        made_handle(out, || {
            let explicit = text(config, "path of the config")?.map(Path::new);
            open(Config::from_file(&found(explicit)?)?)
        })
    }
}

/// The config to use.
fn found(explicit: Option<&Path>) -> Result<PathBuf> {
    Config::find(explicit, false)?.ok_or_else(|| {
        Error::not_found(
            "there is no config: none was named, and there is no EP_CONFIG, and none of the user or the system; `ep init` \
             writes one",
        )
    })
}

fn open(config: Config) -> Result<Runtime> {
    let loaded = Loaded::builder().config(config).build()?;
    let names = loaded.devices().iter().map(|device| given_text(device.name())).collect();
    Ok(Runtime(Arc::new(loaded), names))
}

/// Loads the providers that the text of a config names, with relative paths taken from `base_dir`, an absolute path.
///
/// # Safety
/// Both are texts, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_runtime_open_text(
    toml: *const c_char,
    base_dir: *const c_char,
    out: *mut *mut Runtime,
) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe {
        made_handle(out, || {
            let base = Path::new(needed(base_dir, "folder")?);
            open(Config::from_str(needed(toml, "text of the config")?, base)?)
        })
    }
}

/// How many devices there are.
///
/// # Safety
/// `runtime` is null, which gives 0, or a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_runtime_num_devices(runtime: *const Runtime) -> usize {
    // SAFETY: as the caller promises.
    unsafe { runtime.as_ref() }.map_or(0, |runtime| runtime.0.devices().len())
}

/// The name of a device, as `cuda:0`; null where there are not so many.
///
/// # Safety
/// `runtime` is null, which gives null, or a live handle, with which the text ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_runtime_device(runtime: *const Runtime, index: usize) -> *const c_char {
    // SAFETY: as the caller promises.
    let name = unsafe { runtime.as_ref() }.and_then(|runtime| runtime.1.get(index));
    name.map_or(std::ptr::null(), |name| name.as_ptr())
}

/// What happened to each provider, and its devices, as JSON: that of `ep list --json`.
///
/// # Safety
/// `runtime` is a live handle, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_runtime_list(runtime: *const Runtime, out: *mut *mut c_char) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe { made(out, || json(&object(runtime, "runtime")?.0.provider_rows())) }
}

/// What each device can do, without running anything, as JSON: that of `ep query --json`. Each of the three may be null,
/// which lets everything through: an op, a dtype in any role, and a device (`cpu:0`) or all of a kind (`cpu`).
///
/// # Safety
/// `runtime` is a live handle, the others are null or texts, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_runtime_query(
    runtime: *const Runtime,
    op: *const c_char,
    dtype: *const c_char,
    device: *const c_char,
    out: *mut *mut c_char,
) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe {
        made(out, || {
            let runtime = &object(runtime, "runtime")?.0;
            let [op, dtype, device] = [text(op, "op")?, text(dtype, "dtype")?, text(device, "device")?];
            // Misspelt names are errors, not empty lists.
            op.map_or(Ok(()), |op| runtime.schema(op).map(drop))?;
            dtype.map_or(Ok(()), |dtype| ep_core::DType::by_name(dtype).map(drop))?;
            device.map_or(Ok(()), |device| runtime.device(device).map(drop))?;
            let [op, dtype, device] = [op, dtype, device].map(|name| name.map(str::to_owned));
            let rows = runtime.query(&Filter { op, dtype, device });
            json(&rows.iter().map(QueryRow::from).collect::<Vec<_>>())
        })
    }
}

/// An explanation, and the nearest request in the form of those that are asked.
#[derive(Serialize)]
struct Explained {
    #[serde(flatten)]
    story: ExplanationRow,
    nearest_request: Option<RequestRow>,
}

/// Which factory a request gets on a device, and why each other one does not get it, as JSON: that of `ep explain --json`,
/// with `nearest_request`, which can be asked as it is, in place of `reason` and `nearest_flags`. A device of null: one entry
/// for each.
///
/// The primitive is made, for what it says of itself; a provider may compile something for that.
///
/// The request: `{"op": "softmax", "dtypes": {"src": "f16", "dst": "f32"}, "selectors": {}, "attrs": {}, "limits": {"cols": 1024}}`,
/// where all but `op` and the dtypes may be left out.
///
/// # Safety
/// `runtime` is a live handle, `device` is null or a text, `request` is a text, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_runtime_explain(
    runtime: *const Runtime,
    device: *const c_char,
    request: *const c_char,
    out: *mut *mut c_char,
) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe {
        made(out, || {
            let runtime = &object(runtime, "runtime")?.0;
            let request = runtime.request_of(&read(needed(request, "request")?, "request")?)?;
            let explained = |device: &Device| -> Result<Explained> {
                let story = runtime.explain(device, &request)?;
                let created = story.chosen().map(|_| runtime.primitive_dyn(device, &request));
                let created = created.map(|made| made.map(|primitive| primitive.describe()));
                Ok(Explained {
                    story: ExplanationRow::new(&story, created),
                    nearest_request: story.nearest.as_ref().map(RequestRow::from),
                })
            };
            match text(device, "device")? {
                Some(device) => json(&[explained(runtime.device(device)?)?]),
                None => json(&runtime.devices().iter().map(explained).collect::<Result<Vec<_>>>()?),
            }
        })
    }
}

/// Frees a runtime. What was made from it stays usable.
///
/// # Safety
/// Null or a handle that nobody uses again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_runtime_free(runtime: *mut Runtime) {
    // SAFETY: as the caller promises.
    unsafe { free(runtime) }
}

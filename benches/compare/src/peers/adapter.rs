//! A peer behind the functions of `benches/peers/peer.h`.

use super::{Peer, Scope, Task, Tensor, Work, function, library};
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::with_exposed_provenance_mut;

#[repr(C)]
struct RawTensor {
    data: *mut c_void,
    dtype: *const c_char,
    rank: i64,
    dims: *const i64,
}

#[repr(C)]
struct RawRow {
    call: *const c_char,
    inputs: *const RawTensor,
    num_inputs: usize,
    output: RawTensor,
    ints: *const i64,
    num_ints: usize,
}

type Start = unsafe extern "C" fn(c_int) -> *const c_char;
type Prepare = unsafe extern "C" fn(*const RawRow, *mut c_int, *mut c_char, usize) -> *mut c_void;
type Run = unsafe extern "C" fn(*mut c_void, usize, *mut c_char, usize) -> c_int;
type Release = unsafe extern "C" fn(*mut c_void);

/// A loaded adapter.
pub struct Adapter {
    name: &'static str,
    prepare: Prepare,
    run: Run,
    release: Release,
}

impl Adapter {
    pub fn open(name: &'static str, path: &Path, threads: usize) -> Result<Adapter, String> {
        let library = library(path, Scope::Own)?;
        // SAFETY: the types are those of peer.h, which the adapter was compiled with.
        unsafe {
            let start: Start = function(library, "ep_peer_start")?;
            if start(threads as c_int).is_null() {
                return Err("it did not start".into());
            }
            Ok(Adapter {
                name,
                prepare: function(library, "ep_peer_prepare")?,
                run: function(library, "ep_peer_run")?,
                release: function(library, "ep_peer_release")?,
            })
        }
    }
}

fn message(text: &[u8]) -> String {
    let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
    let text = String::from_utf8_lossy(&text[..end]);
    text.lines().next().unwrap_or_default().to_owned()
}

impl Peer for Adapter {
    fn name(&self) -> &'static str {
        self.name
    }

    fn prepare(&self, task: &Task) -> Result<Box<dyn Work + '_>, String> {
        let text = |s: &str| CString::new(s).map_err(|e| e.to_string());
        let tensors: Vec<&Tensor> = task.inputs.iter().chain([&task.output]).collect();
        let names = tensors.iter().map(|t| text(&t.dtype.to_string())).collect::<Result<Vec<_>, _>>()?;
        let raw = |i: usize| RawTensor {
            data: with_exposed_provenance_mut(tensors[i].address as usize),
            dtype: names[i].as_ptr(),
            rank: tensors[i].dims.len() as i64,
            dims: tensors[i].dims.as_ptr(),
        };
        let inputs: Vec<RawTensor> = (0..task.inputs.len()).map(raw).collect();
        let call = text(task.call)?;
        let row = RawRow {
            call: call.as_ptr(),
            inputs: inputs.as_ptr(),
            num_inputs: inputs.len(),
            output: raw(task.inputs.len()),
            ints: task.ints.as_ptr(),
            num_ints: task.ints.len(),
        };
        let (mut checked, mut error) = (1, [0u8; 512]);
        // SAFETY: all pointers are valid during the call, and the adapter copies what it keeps, but for the tensors'
        // memory, which outlives the work.
        let prepared = unsafe {
            (self.prepare)(&raw const row, &raw mut checked, error.as_mut_ptr().cast(), error.len())
        };
        if prepared.is_null() {
            return Err(message(&error));
        }
        Ok(Box::new(Prepared { adapter: self, prepared, checked: checked != 0 }))
    }
}

struct Prepared<'a> {
    adapter: &'a Adapter,
    prepared: *mut c_void,
    checked: bool,
}

impl Work for Prepared<'_> {
    fn run(&mut self, times: usize) -> Result<(), String> {
        let mut error = [0u8; 512];
        // SAFETY: `prepared` comes from this adapter and is not yet released.
        let code =
            unsafe { (self.adapter.run)(self.prepared, times, error.as_mut_ptr().cast(), error.len()) };
        if code == 0 { Ok(()) } else { Err(message(&error)) }
    }

    fn checked(&self) -> bool {
        self.checked
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        // SAFETY: as above; this is the only release.
        unsafe { (self.adapter.release)(self.prepared) };
    }
}

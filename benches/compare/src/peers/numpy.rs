//! NumPy, called through Python's C API: `benches/peers/numpy_rows.py` finds the function and makes the arguments.

use super::{Peer, Scope, Task, Tensor, Work, function, library};
use libloading::Library;
use serde_json::json;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;

type Object = *mut c_void;

/// The functions of Python that are used; all are part of its stable interface.
struct Python {
    call: unsafe extern "C" fn(Object, *const Object, usize, Object) -> Object,
    call_one: unsafe extern "C" fn(Object, Object) -> Object,
    attribute: unsafe extern "C" fn(Object, *const c_char) -> Object,
    item: unsafe extern "C" fn(Object, isize) -> Object,
    size: unsafe extern "C" fn(Object) -> isize,
    text: unsafe extern "C" fn(*const c_char) -> Object,
    read_text: unsafe extern "C" fn(Object, *mut isize) -> *const c_char,
    clear_error: unsafe extern "C" fn(),
    print_error: unsafe extern "C" fn(),
    release: unsafe extern "C" fn(Object),
    none: Object,
}

/// A running Python with NumPy in it.
pub struct NumPy {
    python: Python,
    prepare: Object,
}

impl NumPy {
    /// `path` is Python's shared library. The environment says where its modules are.
    pub fn open(path: &Path) -> Result<NumPy, String> {
        // Its extension modules find its functions there.
        let library = library(path, Scope::Everyone)?;
        let python = Python::start(library)?;
        let module = c"numpy_rows";
        // SAFETY: these are Python's functions with their types; Python runs on this thread, which holds its lock.
        unsafe {
            let import: unsafe extern "C" fn(*const c_char) -> Object =
                function(library, "PyImport_ImportModule")?;
            let module = python.checked(import(module.as_ptr()), "import numpy_rows")?;
            let prepare = python.checked((python.attribute)(module, c"prepare".as_ptr()), "prepare")?;
            Ok(NumPy { python, prepare })
        }
    }
}

impl Python {
    fn start(library: &Library) -> Result<Python, String> {
        // SAFETY: the types are those of Python's documentation; it is started once, before all else.
        unsafe {
            let start: unsafe extern "C" fn(c_int) = function(library, "Py_InitializeEx")?;
            start(0);
            let none: *mut c_void = function::<*mut c_void>(library, "_Py_NoneStruct")?;
            Ok(Python {
                call: function(library, "PyObject_Vectorcall")?,
                call_one: function(library, "PyObject_CallOneArg")?,
                attribute: function(library, "PyObject_GetAttrString")?,
                item: function(library, "PyTuple_GetItem")?,
                size: function(library, "PyTuple_Size")?,
                text: function(library, "PyUnicode_FromString")?,
                read_text: function(library, "PyUnicode_AsUTF8AndSize")?,
                clear_error: function(library, "PyErr_Clear")?,
                print_error: function(library, "PyErr_Print")?,
                release: function(library, "Py_DecRef")?,
                none,
            })
        }
    }

    /// An object, or Python's error on standard error.
    ///
    /// # Safety
    /// An object or null with an error set.
    unsafe fn checked(&self, object: Object, what: &str) -> Result<Object, String> {
        if object.is_null() {
            // SAFETY: an error is set, as the caller promises.
            unsafe { (self.print_error)() };
            return Err(format!("{what} failed in Python"));
        }
        Ok(object)
    }

    /// The text of a string object.
    ///
    /// # Safety
    /// A live object.
    unsafe fn string(&self, object: Object) -> Option<String> {
        let mut size = 0;
        // SAFETY: a live object; of one that is no string the result is null with an error set.
        unsafe {
            let text = (self.read_text)(object, &raw mut size);
            if text.is_null() {
                (self.clear_error)();
                return None;
            }
            Some(CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    }
}

impl Peer for NumPy {
    fn name(&self) -> &'static str {
        "numpy"
    }

    fn prepare(&self, task: &Task) -> Result<Box<dyn Work + '_>, String> {
        let tensor = |t: &Tensor| json!([t.address, t.dtype.to_string(), t.dims]);
        let inputs: Vec<_> = task.inputs.iter().map(tensor).collect();
        let row =
            json!({ "call": task.call, "ints": task.ints, "inputs": inputs, "output": tensor(&task.output) });
        let row = CString::new(row.to_string()).map_err(|e| e.to_string())?;
        let python = &self.python;
        // SAFETY: live objects of this Python on the thread that holds its lock; the tuple stays alive with the work,
        // and its items with it.
        unsafe {
            let text = python.checked((python.text)(row.as_ptr()), "a string")?;
            let result = (python.call_one)(self.prepare, text);
            (python.release)(text);
            let tuple = python.checked(result, "prepare()")?;
            if let Some(reason) = python.string(tuple) {
                (python.release)(tuple);
                return Err(reason);
            }
            let arguments = (python.item)(tuple, 1);
            let keywords = (python.item)(tuple, 2);
            let named = if keywords == python.none { 0 } else { (python.size)(keywords) as usize };
            let all = (python.size)(arguments) as usize;
            Ok(Box::new(Prepared {
                python,
                callable: (python.item)(tuple, 0),
                arguments: (0..all).map(|i| (python.item)(arguments, i as isize)).collect(),
                positional: all - named,
                keywords: if named == 0 { null_mut() } else { keywords },
                tuple,
            }))
        }
    }
}

struct Prepared<'a> {
    python: &'a Python,
    callable: Object,
    arguments: Vec<Object>,
    positional: usize,
    keywords: Object,
    /// Owns all of the above.
    tuple: Object,
}

impl Work for Prepared<'_> {
    fn run(&mut self, times: usize) -> Result<(), String> {
        let python = self.python;
        for _ in 0..times {
            // SAFETY: live objects, on the thread that holds Python's lock.
            unsafe {
                let result =
                    (python.call)(self.callable, self.arguments.as_ptr(), self.positional, self.keywords);
                (python.release)(python.checked(result, "the call")?);
            }
        }
        Ok(())
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        // SAFETY: the reference that `prepare` was given.
        unsafe { (self.python.release)(self.tuple) };
    }
}

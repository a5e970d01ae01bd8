//! ONNX Runtime's CPU provider, called through its C interface: a session of one node, with inputs and output bound
//! to the row's memory.

use super::onnx::{Model, OUTPUT, Source, element_type, model, source_name};
use super::{Peer, Scope, Task, Tensor, Work, function, library};
use ort_sys::{
    GraphOptimizationLevel, ONNXTensorElementDataType, OrtAllocatorType, OrtApi, OrtApiBase, OrtEnv,
    OrtIoBinding, OrtLoggingLevel, OrtMemType, OrtMemoryInfo, OrtSession, OrtSessionOptions, OrtStatusPtr,
    OrtValue,
};
use std::ffi::{CStr, CString};
use std::path::Path;
use std::ptr::{null, null_mut, with_exposed_provenance_mut};

/// A loaded ONNX Runtime.
pub struct Ort {
    api: &'static OrtApi,
    env: *mut OrtEnv,
    memory: *mut OrtMemoryInfo,
    options: *mut OrtSessionOptions,
}

/// The API that the declarations describe; later libraries have it too.
const API_VERSION: u32 = 17;

impl Ort {
    pub fn open(path: &Path, threads: usize) -> Result<Ort, String> {
        let library = library(path, Scope::Own)?;
        // SAFETY: the function's documented type; the tables that it returns are static.
        let api = unsafe {
            let base: unsafe extern "system" fn() -> *const OrtApiBase = function(library, "OrtGetApiBase")?;
            let base = base().as_ref().ok_or("no API")?;
            (base.GetApi)(API_VERSION).as_ref().ok_or("its API is older than 17")?
        };
        let (mut env, mut memory, mut options) = (null_mut(), null_mut(), null_mut());
        let level = OrtLoggingLevel::ORT_LOGGING_LEVEL_ERROR;
        // SAFETY: out pointers and strings are valid; objects are used after they were made.
        unsafe {
            check(api, (api.CreateEnv)(level, c"compare".as_ptr(), &raw mut env))?;
            let kind = (OrtAllocatorType::OrtDeviceAllocator, OrtMemType::OrtMemTypeDefault);
            check(api, (api.CreateCpuMemoryInfo)(kind.0, kind.1, &raw mut memory))?;
            check(api, (api.CreateSessionOptions)(&raw mut options))?;
            check(api, (api.SetIntraOpNumThreads)(options, threads as i32))?;
            check(api, (api.SetInterOpNumThreads)(options, 1))?;
            let all = GraphOptimizationLevel::ORT_ENABLE_ALL;
            check(api, (api.SetSessionGraphOptimizationLevel)(options, all))?;
        }
        Ok(Ort { api, env, memory, options })
    }

    fn value(&self, t: &Tensor, dims: &[i64]) -> Result<*mut OrtValue, String> {
        let kind = element_type(t.dtype)?;
        // SAFETY: the enum is `repr(i32)` with ONNX's numbers of dtypes as values, among them all that `element_type`
        // returns.
        let kind = unsafe { std::mem::transmute::<i32, ONNXTensorElementDataType>(kind) };
        let bytes = t.count() * t.dtype.bytes_for_bounds() as usize;
        let mut value = null_mut();
        let data = with_exposed_provenance_mut(t.address as usize);
        // SAFETY: the operand's memory has this size and outlives the work, which owns the value.
        unsafe {
            check(
                self.api,
                (self.api.CreateTensorWithDataAsOrtValue)(
                    self.memory,
                    data,
                    bytes,
                    dims.as_ptr(),
                    dims.len(),
                    kind,
                    &raw mut value,
                ),
            )?;
        }
        Ok(value)
    }

    fn bind(&self, prepared: &mut Prepared<'_>, model: &Model, task: &Task) -> Result<(), String> {
        let api = self.api;
        for (i, source) in model.sources.iter().enumerate() {
            let Source::Operand(k, dims) = source else { continue };
            let value = self.value(&task.inputs[*k], dims)?;
            prepared.values.push(value);
            let name = CString::new(source_name(i)).map_err(|e| e.to_string())?;
            // SAFETY: live objects of this session.
            unsafe { check(api, (api.BindInput)(prepared.binding, name.as_ptr(), value)) }?;
        }
        let value = self.value(&task.output, &task.output.dims)?;
        prepared.values.push(value);
        let name = CString::new(OUTPUT).map_err(|e| e.to_string())?;
        // SAFETY: live objects of this session.
        unsafe { check(api, (api.BindOutput)(prepared.binding, name.as_ptr(), value)) }
    }
}

/// # Safety
/// A status of this API, which is released here.
unsafe fn check(api: &OrtApi, status: OrtStatusPtr) -> Result<(), String> {
    if status.0.is_null() {
        return Ok(());
    }
    // SAFETY: a status that is not null has a message until it is released.
    unsafe {
        let text = CStr::from_ptr((api.GetErrorMessage)(status.0)).to_string_lossy();
        let line = text.lines().next().unwrap_or_default().to_owned();
        (api.ReleaseStatus)(status.0);
        Err(line)
    }
}

impl Peer for Ort {
    fn name(&self) -> &'static str {
        "onnxruntime"
    }

    fn prepare(&self, task: &Task) -> Result<Box<dyn Work + '_>, String> {
        let model = model(task)?;
        let bytes = model.encode(task)?;
        let api = self.api;
        let mut prepared = Prepared { api, session: null_mut(), binding: null_mut(), values: Vec::new() };
        // SAFETY: the model's bytes are copied; out pointers are valid.
        unsafe {
            let session = &raw mut prepared.session;
            check(
                api,
                (api.CreateSessionFromArray)(
                    self.env,
                    bytes.as_ptr().cast(),
                    bytes.len(),
                    self.options,
                    session,
                ),
            )?;
            check(api, (api.CreateIoBinding)(prepared.session, &raw mut prepared.binding))?;
        }
        self.bind(&mut prepared, &model, task)?;
        Ok(Box::new(prepared))
    }
}

struct Prepared<'a> {
    api: &'a OrtApi,
    session: *mut OrtSession,
    binding: *mut OrtIoBinding,
    values: Vec<*mut OrtValue>,
}

impl Work for Prepared<'_> {
    fn run(&mut self, times: usize) -> Result<(), String> {
        for _ in 0..times {
            // SAFETY: live objects; default run options are allowed.
            unsafe { check(self.api, (self.api.RunWithBinding)(self.session, null(), self.binding)) }?;
        }
        Ok(())
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        // SAFETY: each was made here and is released once, what depends on others first; null is allowed.
        unsafe {
            (self.api.ReleaseIoBinding)(self.binding);
            self.values.iter().for_each(|v| (self.api.ReleaseValue)(*v));
            (self.api.ReleaseSession)(self.session);
        }
    }
}

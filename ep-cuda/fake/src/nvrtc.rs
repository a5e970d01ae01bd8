//! A compiler whose code is the list of a source's kernels. A source that has the word `#error` does not compile;
//! one that says `fake-argument-bytes: N` has a kernel with an argument of N bytes. Kernels that are specialised for
//! indices of 64 bits are called `name<u64>` in the log.

use crate::cubin::FAKE_MAGIC;
use crate::world::world;
use std::ffi::{CStr, c_char, c_void};

struct Program {
    source: String,
    image: Vec<u8>,
    log: Vec<u8>,
}

const COMPILATION: i32 = 6;
const ARCHS: [i32; 3] = [80, 90, 100];

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcVersion(major: *mut i32, minor: *mut i32) -> i32 {
    // That of the driver.
    world(|w| {
        let version = w.config.version;
        // SAFETY: valid out-pointers, as the function's contract says; so in all functions here.
        unsafe {
            major.write(version / 1000);
            minor.write(version % 1000 / 10);
        }
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetNumSupportedArchs(out: *mut i32) -> i32 {
    // SAFETY: see `nvrtcVersion`.
    unsafe { out.write(ARCHS.len() as i32) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetSupportedArchs(out: *mut i32) -> i32 {
    // SAFETY: as many places as the number of architectures.
    unsafe { std::ptr::copy_nonoverlapping(ARCHS.as_ptr(), out, ARCHS.len()) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetErrorString(result: i32) -> *const c_char {
    let text = if result == COMPILATION { c"NVRTC_ERROR_COMPILATION" } else { c"NVRTC_ERROR" };
    text.as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcCreateProgram(
    out: *mut *mut c_void,
    source: *const c_char,
    _name: *const c_char,
    _count: i32,
    _headers: *const *const c_char,
    _names: *const *const c_char,
) -> i32 {
    // SAFETY: a text that ends, and a valid out-pointer.
    unsafe {
        let source = CStr::from_ptr(source).to_string_lossy().into_owned();
        let program = Program { source, image: Vec::new(), log: b"\0".to_vec() };
        out.write(Box::into_raw(Box::new(program)).cast());
    }
    0
}

/// The names behind `extern "C" __global__`.
fn kernels(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    for text in source.split("extern \"C\"").skip(1).filter(|t| t.trim_start().starts_with("__global__")) {
        let head = text.split('{').next().unwrap_or(text);
        // The name is the last word before a parenthesis that is no attribute's.
        let words = head.split('(').map(|part| part.split_whitespace().next_back().unwrap_or(""));
        let name = words.map(|w| w.trim_start_matches(')')).find(|w| {
            !w.is_empty() && !w.starts_with("__") && w.chars().all(|c| c.is_alphanumeric() || c == '_')
        });
        names.extend(name.map(str::to_owned));
    }
    names
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcCompileProgram(
    program: *mut c_void,
    count: i32,
    options: *const *const c_char,
) -> i32 {
    // SAFETY: a live program, used by one thread.
    let program = unsafe { &mut *program.cast::<Program>() };
    // SAFETY: so many texts that end.
    let is_wide =
        (0..count as usize).any(|i| unsafe { CStr::from_ptr(*options.add(i)) } == c"-DEP_INDEX=u64");
    if program.source.contains("#error") {
        program.log = b"fake.cu(1): error: #error directive\0".to_vec();
        return COMPILATION;
    }
    let marked = program.source.split("fake-argument-bytes: ").nth(1);
    let bytes: String = marked.unwrap_or("").chars().take_while(char::is_ascii_digit).collect();
    let mut image = FAKE_MAGIC.to_owned();
    for name in kernels(&program.source) {
        let (index, bytes) =
            (if is_wide { "<u64>" } else { "" }, if bytes.is_empty() { "?" } else { &bytes });
        image.push_str(&format!("{name}{index} {bytes}\n"));
    }
    program.image = image.into_bytes();
    program.image.push(0);
    0
}

fn size_of_text(bytes: &[u8], out: *mut usize) -> i32 {
    // SAFETY: see `nvrtcVersion`.
    unsafe { out.write(bytes.len()) };
    0
}

fn copy_text(bytes: &[u8], out: *mut c_char) -> i32 {
    // SAFETY: a buffer of the size that was told.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast(), bytes.len()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetProgramLogSize(program: *mut c_void, out: *mut usize) -> i32 {
    // SAFETY: a live program; so in all functions below.
    size_of_text(unsafe { &(*program.cast::<Program>()).log }, out)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetProgramLog(program: *mut c_void, out: *mut c_char) -> i32 {
    // SAFETY: see `nvrtcGetProgramLogSize`.
    copy_text(unsafe { &(*program.cast::<Program>()).log }, out)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetCUBINSize(program: *mut c_void, out: *mut usize) -> i32 {
    // SAFETY: see `nvrtcGetProgramLogSize`.
    size_of_text(unsafe { &(*program.cast::<Program>()).image }, out)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetCUBIN(program: *mut c_void, out: *mut c_char) -> i32 {
    // SAFETY: see `nvrtcGetProgramLogSize`.
    copy_text(unsafe { &(*program.cast::<Program>()).image }, out)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcDestroyProgram(program: *mut *mut c_void) -> i32 {
    // SAFETY: a valid pointer to a live program, which nobody uses again.
    unsafe { drop(Box::from_raw((*program).cast::<Program>())) };
    0
}

#[cfg(test)]
mod tests {
    #[test]
    fn kernels_are_found_by_their_attributes() {
        let source = "extern \"C\" __global__ void __launch_bounds__(256) ep_fill(const Args args) {}\n\
                      extern \"C\" __global__ __launch_bounds__(EP_THREADS)\nvoid ep_map(Args a)\n{ f(x); }\n\
                      extern \"C\" int no_kernel(int x);";
        assert_eq!(super::kernels(source), ["ep_fill", "ep_map"]);
    }
}

//! From a kernel's source and its specialisation to code for a GPU: out of the cache, else compiled.

use crate::bundle::{self, Program};
use crate::cache::{Cache, Kept, Key};
use crate::nvrtc::{Input, Nvrtc};
use ep_core::{Error, Result};
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

/// The architecture of a GPU: its compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arch {
    major: u32,
    minor: u32,
}

impl Arch {
    /// Of a compute capability.
    pub const fn new(major: u32, minor: u32) -> Arch {
        Arch { major, minor }
    }

    /// Ten times the major and the minor number.
    pub fn number(self) -> u32 {
        self.major * 10 + self.minor
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}", self.number())
    }
}

impl FromStr for Arch {
    type Err = Error;

    fn from_str(text: &str) -> Result<Arch> {
        let number = text.strip_prefix("sm_").and_then(|digits| digits.parse::<u32>().ok());
        match number {
            Some(n @ 10..1000) => Ok(Arch::new(n / 10, n % 10)),
            _ => Err(Error::invalid(format!(
                "architecture `{text}`: `sm_` and two or three digits, such as sm_90"
            ))),
        }
    }
}

/// A file of CUDA C++ with one kernel.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// Its name: `fill.cu`.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
    /// The kernel's name.
    pub entry: &'static str,
}

/// A kernel: a source and the macros that specialise it.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The source.
    pub source: &'static Source,
    /// Name and value of each macro.
    pub macros: Vec<(&'static str, String)>,
}

impl Spec {
    /// A source without macros.
    pub fn new(source: &'static Source) -> Spec {
        Spec { source, macros: Vec::new() }
    }

    /// With one more macro.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl fmt::Display) -> Spec {
        self.macros.push((name, value.to_string()));
        self
    }

    pub(crate) fn options(&self) -> Vec<String> {
        let standard = "--std=c++17".to_owned();
        std::iter::once(standard).chain(self.macros.iter().map(|(n, v)| format!("-D{n}={v}"))).collect()
    }

    /// What decides about the code, except for architecture and compiler.
    pub fn key(&self) -> Key {
        let mut hash = Sha256::new();
        hash.update(digest(self.source).key);
        self.options().iter().for_each(|o| add(&mut hash, o));
        hash.finalize().into()
    }
}

/// Adds a text with its length, so that no two lists of texts run together.
fn add(hash: &mut Sha256, text: &str) {
    hash.update((text.len() as u64).to_le_bytes());
    hash.update(text);
}

/// Name and text of each header that a source includes.
type Headers = Arc<[(&'static str, &'static str)]>;

/// What is found once for a source.
#[derive(Clone)]
struct Included {
    /// The hash of it with all that it includes.
    key: Key,
    headers: Headers,
    /// [`bundle::words_of_headers`].
    words: Arc<HashSet<&'static str>>,
}

/// What a source includes.
pub(crate) fn headers(source: &'static Source) -> Headers {
    digest(source).headers
}

/// All words of that, and of what stands before it.
pub(crate) fn words_of_headers(source: &'static Source) -> Arc<HashSet<&'static str>> {
    digest(source).words
}

fn digest(source: &'static Source) -> Included {
    static KNOWN: Mutex<BTreeMap<usize, Included>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock();
    let found = known.entry(std::ptr::from_ref(source).addr()).or_insert_with(|| {
        let headers = included(source.text);
        let mut hash = Sha256::new();
        [source.name, source.entry, source.text].iter().for_each(|text| add(&mut hash, text));
        for (name, text) in &headers {
            add(&mut hash, name);
            add(&mut hash, text);
        }
        let words = bundle::words_of_headers(source.text, &headers).into();
        Included { key: hash.finalize().into(), headers: headers.into(), words }
    });
    found.clone()
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.source.name)?;
        self.macros.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// The headers that a text includes, directly or through others, each once.
fn included(text: &str) -> Vec<(&'static str, &'static str)> {
    let mut found: Vec<(&'static str, &'static str)> = Vec::new();
    let mut open = vec![text];
    while let Some(text) = open.pop() {
        let names = text.lines().filter_map(|l| l.trim().strip_prefix("#include \"")?.split('"').next());
        for name in names {
            let header = crate::ops::source::HEADERS.iter().find(|(n, _)| *n == name);
            if let Some(header) = header.filter(|h| !found.contains(h)) {
                found.push(*header);
                open.push(header.1);
            }
        }
    }
    found
}

/// A kernel's code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Code {
    /// Which image it is in: other kernels may have the same.
    pub key: Key,
    /// The image, which the driver loads; none where the caller has it.
    pub image: Option<Vec<u8>>,
    /// The kernel's name in it.
    pub entry: String,
}

/// The compiler and the cache of a provider instance.
#[derive(Debug)]
pub struct Compiler {
    cache: Cache,
    option: Option<PathBuf>,
    nvrtc: OnceCell<Nvrtc>,
    /// The newest compiler whose code the driver takes; none: there is no driver.
    newest_major: Option<u32>,
    /// One thread at a time compiles a kernel; which lock is in its key.
    locks: [Mutex<()>; 16],
}

impl Compiler {
    /// With a cache and, if it is not to be searched for, the place of NVRTC. `driver_cuda` is the driver's CUDA
    /// version as [`crate::driver::Driver::version`] tells it.
    pub fn new(cache: Cache, nvrtc: Option<PathBuf>, driver_cuda: Option<i32>) -> Compiler {
        Compiler {
            cache,
            option: nvrtc,
            nvrtc: OnceCell::new(),
            newest_major: driver_cuda.map(|v| v as u32 / 1000),
            locks: Default::default(),
        }
    }

    /// The cache.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// NVRTC.
    ///
    /// # Errors
    /// Those of [`Nvrtc::open`]; a later call tries again.
    pub fn nvrtc(&self) -> Result<&Nvrtc> {
        self.nvrtc.get_or_try_init(|| Nvrtc::open(self.option.as_deref()))
    }

    /// The code of a kernel, compiled alone where the cache does not have it.
    ///
    /// # Errors
    /// Those of [`Compiler::nvrtc`] and [`Nvrtc::compile`], where the cache does not have it.
    pub fn code(&self, spec: &Spec, arch: Arch) -> Result<Code> {
        self.code_unless(spec, arch, &|_| false)
    }

    /// The same, without an image that other kernels share where `has` it is true.
    ///
    /// # Errors
    /// As [`Compiler::code`].
    pub fn code_unless(&self, spec: &Spec, arch: Arch, has: &dyn Fn(&Key) -> bool) -> Result<Code> {
        let key = spec.key();
        let own_name = || spec.source.entry.to_owned();
        let _one = self.locks[usize::from(key[0]) % self.locks.len()].lock();
        if let Some(kept) = self.cache.find(arch, &key, self.newest_major.unwrap_or(u32::MAX), has) {
            let Kept { key, image, name } = kept;
            return Ok(Code { key, image, entry: name.unwrap_or_else(own_name) });
        }
        let nvrtc = self.nvrtc()?;
        if let Some(newest) = self.newest_major.filter(|n| nvrtc.version().major > *n) {
            return Err(Error::unsupported(format!(
                "{nvrtc:?} is newer than the driver, which takes code of version {newest}; install an NVRTC of that \
                 version (`pip install nvidia-cuda-nvrtc=={newest}.*`, for 12 `nvidia-cuda-nvrtc-cu12`), or update \
                 the driver"
            )));
        }
        let image = compile_alone(nvrtc, spec, arch)?;
        self.cache.put(arch, nvrtc.version(), &key, &image);
        Ok(Code { key, image: Some(image), entry: own_name() })
    }

    /// Sees to it that the cache has these kernels, compiled by the NVRTC that is found, together where they can be: those of
    /// [`crate::warm::bundles`]. Whether there was something to compile.
    ///
    /// # Errors
    /// As [`Compiler::code`], and those of [`Cache::put_or_fail`].
    pub fn warm(&self, kernels: &[Spec], arch: Arch) -> Result<bool> {
        let nvrtc = self.nvrtc()?;
        let version = nvrtc.version();
        // Images that are there, each looked at once.
        let mut known = BTreeSet::new();
        let mut missing = Vec::new();
        for spec in kernels {
            match self.cache.get(arch, version, &spec.key(), &|image| known.contains(image)) {
                Some(kept) => drop(known.insert(kept.key)),
                None => missing.push(spec.clone()),
            }
        }
        let fresh = !missing.is_empty();
        for group in bundle::group(missing) {
            if let [spec] = &group[..] {
                self.cache.put_or_fail(
                    arch,
                    version,
                    &spec.key(),
                    &compile_alone(nvrtc, spec, arch)?,
                    &[],
                )?;
            } else {
                let program = Program::new(&group);
                let image = compile_together(nvrtc, &group, &program, arch)?;
                self.cache.put_or_fail(arch, version, &program.key, &image, &program.members)?;
            }
        }
        Ok(fresh)
    }

    /// The code of kernels of one group of [`crate::warm::bundled`], compiled together, and the name of each in it, whatever
    /// the cache has.
    ///
    /// # Errors
    /// Those of [`Compiler::nvrtc`] and [`Nvrtc::compile`].
    ///
    /// # Panics
    /// For none, and for kernels of different groups.
    pub fn together(&self, bundle: &[Spec], arch: Arch) -> Result<(Vec<u8>, Vec<String>)> {
        let program = Program::new(bundle);
        let image = compile_together(self.nvrtc()?, bundle, &program, arch)?;
        Ok((image, program.members.into_iter().map(|(_, name)| name).collect()))
    }
}

fn compile_alone(nvrtc: &Nvrtc, spec: &Spec, arch: Arch) -> Result<Vec<u8>> {
    compile(nvrtc, spec.source, spec.source.text, spec.options(), arch, spec)
}

fn compile_together(nvrtc: &Nvrtc, bundle: &[Spec], program: &Program, arch: Arch) -> Result<Vec<u8>> {
    let options = program.options.clone();
    compile(nvrtc, bundle[0].source, &program.text, options, arch, &List(bundle))
}

/// Kernels, for messages.
struct List<'a>(&'a [Spec]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} kernels", self.0.len())?;
        self.0.iter().enumerate().try_for_each(|(i, spec)| {
            f.write_str(if i == 0 { ": " } else { ", " })?;
            spec.fmt(f)
        })
    }
}

fn compile(
    nvrtc: &Nvrtc,
    source: &'static Source,
    text: &str,
    mut options: Vec<String>,
    arch: Arch,
    what: &dyn fmt::Display,
) -> Result<Vec<u8>> {
    // Without headers that no source here needs: the same code in less time. Not known to all older versions, and not in
    // the key of the cache: the version decides, and the cache keeps those apart.
    if nvrtc.version().major >= 13 {
        options.push("--minimal".to_owned());
    }
    let input = Input { name: source.name, text, headers: &headers(source), options: &options };
    let begun = Instant::now();
    let code = nvrtc.compile(input, arch).map_err(|e| e.context(what))?;
    tracing::debug!("{what} compiled for {arch} in {} ms", begun.elapsed().as_millis());
    Ok(code)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A folder of a test, removed when this is dropped.
    pub(crate) struct Folder(PathBuf);

    impl Folder {
        pub(crate) fn new() -> Folder {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("ep-cuda-test-{}-{number}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Folder(path)
        }

        pub(crate) fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn architectures_are_read_and_written() {
        for text in ["sm_80", "sm_90", "sm_100", "sm_121"] {
            assert_eq!(text.parse::<Arch>().unwrap().to_string(), text);
        }
        assert_eq!("sm_100".parse::<Arch>(), Ok(Arch::new(10, 0)));
        for bad in ["", "90", "sm_", "sm_9", "sm_90a", "compute_90", "sm_9000"] {
            assert!(bad.parse::<Arch>().unwrap_err().message().contains("sm_90"), "{bad}");
        }
    }

    #[test]
    fn keys_differ_in_everything_that_decides() {
        static A: Source = Source { name: "a.cu", text: "x", entry: "e" };
        static B: Source = Source { name: "a.cu", text: "y", entry: "e" };
        static C: Source = Source { name: "a.cu", text: "x", entry: "f" };
        let keys = [
            Spec::new(&A).key(),
            Spec::new(&B).key(),
            Spec::new(&C).key(),
            Spec::new(&A).with("M", 1).key(),
            Spec::new(&A).with("M", 2).key(),
            Spec::new(&A).with("M", 1).with("N", 1).key(),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[..i].contains(key), "{i}");
        }
        assert_eq!(Spec::new(&A).with("M", 1).key(), keys[3]);
    }
}

//! Compiled kernels on disk, for all processes of a user.
//!
//! An image of code is `ARCH/nvrtc-VERSION/KEY.cubin` in the cache's folder, where KEY is the hash of everything else that
//! decides about the code: sources, options, the kernel's name. A kernel that was compiled with others has a file
//! `KEY.member` instead, which names the image that has its code, and the kernel in it. Each is written beside its place and renamed,
//! so nobody sees half of one; it carries its length and a hash, so a damaged one is noticed, removed and built anew. Files are
//! never changed, so processes need no lock. With a limit, writing an image removes the oldest ones.

use crate::compiler::Arch;
use crate::env;
use crate::nvrtc::Version;
use ep_core::{Error, Result};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The variable that names the folder; `off` disables the cache.
pub const FOLDER_ENV: &str = "EP_CUDA_CACHE";

/// The hash that names an entry.
pub type Key = [u8; 32];

const MAGIC: &[u8; 8] = b"EPCUBIN1";
const HEAD: usize = 8 + 8 + 32;

const IMAGE: &str = "cubin";
const MEMBER: &str = "member";
/// What is being written.
const BESIDE: &str = "new";

/// A kernel's code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The key of the image: the kernel's own, or that of all that were compiled with it.
    pub key: Key,
    /// What the driver loads; none where the caller has it.
    pub image: Option<Vec<u8>>,
    /// The kernel's name where it is not alone in the image.
    pub name: Option<String>,
}

/// The cache; without a folder it finds nothing and keeps nothing.
#[derive(Debug, Default)]
pub struct Cache {
    folder: Option<PathBuf>,
    /// Bytes of all entries at most; none: any number.
    limit: Option<u64>,
    /// A folder that cannot be written is told of once.
    complained: AtomicBool,
}

impl Cache {
    /// The cache in `option`, else in what [`FOLDER_ENV`] names, else in `ep/cuda` of the user's cache folder;
    /// disabled by `off`, and where the user has no cache folder.
    pub fn new(option: Option<&str>) -> Cache {
        let chosen = option.map(PathBuf::from).or_else(|| env::var(FOLDER_ENV).map(PathBuf::from));
        let folder = match chosen {
            Some(path) if path.as_os_str() == "off" => None,
            Some(path) => Some(path),
            None => user_folder(),
        };
        Cache { folder, limit: None, complained: AtomicBool::new(false) }
    }

    /// With a limit on the bytes of all entries. The one that was written last stays whatever its size.
    #[must_use]
    pub fn with_limit(self, limit: Option<u64>) -> Cache {
        Cache { limit, ..self }
    }

    /// Where it is; `None`: disabled.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The code for a key, made by the newest compiler whose major version is at most `newest`. Damaged files are
    /// removed. An image that others share is not read where `has` it is true.
    pub fn find(&self, arch: Arch, key: &Key, newest: u32, has: &dyn Fn(&Key) -> bool) -> Option<Kept> {
        let folder = self.folder.as_ref()?.join(arch.to_string());
        let mut versions: Vec<Version> = fs::read_dir(folder)
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("nvrtc-")?.parse().ok())
            .filter(|version: &Version| version.major <= newest)
            .collect();
        versions.sort_unstable();
        versions.into_iter().rev().find_map(|version| self.get(arch, version, key, has))
    }

    /// The code for a key, made by one version of the compiler; else as [`Cache::find`].
    pub fn get(&self, arch: Arch, version: Version, key: &Key, has: &dyn Fn(&Key) -> bool) -> Option<Kept> {
        let image_of = |key| self.read(arch, version, key, IMAGE, |bytes| Some(bytes.to_vec()));
        if let Some(image) = image_of(key) {
            return Some(Kept { key: *key, image: Some(image), name: None });
        }
        let (of, name) = self.read(arch, version, key, MEMBER, |bytes| {
            let (of, name) = bytes.split_first_chunk()?;
            Some((*of, std::str::from_utf8(name).ok()?.to_owned()))
        })?;
        // The image may have been removed before its members.
        let image = if has(&of) { None } else { Some(image_of(&of)?) };
        Some(Kept { key: of, image, name: Some(name) })
    }

    /// What `take` makes of a file's content; a file that is not whole, or of which it makes nothing, is removed.
    fn read<T>(
        &self,
        arch: Arch,
        version: Version,
        key: &Key,
        kind: &str,
        take: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Option<T> {
        let path = self.place(arch, version, key, kind)?;
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
            Err(e) => {
                tracing::warn!("{}: {e}; the kernel is compiled anew", path.display());
                return None;
            }
        };
        if let Some(found) = unwrap(&bytes).and_then(take) {
            return Some(found);
        }
        tracing::warn!("{}: damaged; it is removed and compiled anew", path.display());
        if let Err(e) = fs::remove_file(&path) {
            tracing::warn!("{}: {e}", path.display());
        }
        None
    }

    /// Keeps code. What goes wrong is logged: the code is there all the same.
    pub fn put(&self, arch: Arch, version: Version, key: &Key, code: &[u8]) {
        let Some(path) = self.place(arch, version, key, IMAGE) else { return };
        if let Err(e) = self.store(&path, code)
            && !self.complained.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                "{}: {e}; kernels are compiled in every process: make the folder writable, or name another one \
                 with option `cache` or {FOLDER_ENV}",
                path.display()
            );
        }
    }

    /// [`Cache::put`] for one who has nothing but the cache in mind. The image has the code of each of `members` too, by its
    /// name.
    ///
    /// # Errors
    /// `Unavailable` where the cache is disabled or the folder cannot be written.
    pub fn put_or_fail(
        &self,
        arch: Arch,
        version: Version,
        key: &Key,
        image: &[u8],
        members: &[(Key, String)],
    ) -> Result<()> {
        let place = |key: &Key, kind| {
            self.place(arch, version, key, kind).ok_or_else(|| {
                Error::unavailable(format!(
                    "the cache is disabled; name a folder with option `cache` or {FOLDER_ENV}"
                ))
            })
        };
        let failed = |path: &Path, e: io::Error| Error::unavailable(format!("{}: {e}", path.display()));
        let of_all = place(key, IMAGE)?;
        store(&of_all, image).map_err(|e| failed(&of_all, e))?;
        // After what they point to.
        for (member, name) in members {
            let path = place(member, MEMBER)?;
            store(&path, &[key, name.as_bytes()].concat()).map_err(|e| failed(&path, e))?;
        }
        self.keep_limit(&of_all).map_err(|e| failed(&of_all, e))
    }

    fn store(&self, path: &Path, code: &[u8]) -> io::Result<()> {
        store(path, code)?;
        self.keep_limit(path)
    }

    /// Removes the oldest files past the limit, but not this one.
    fn keep_limit(&self, last: &Path) -> io::Result<()> {
        match (self.limit, &self.folder) {
            (Some(limit), Some(folder)) => trim(folder, limit, last),
            _ => Ok(()),
        }
    }

    fn place(&self, arch: Arch, version: Version, key: &Key, kind: &str) -> Option<PathBuf> {
        let name: String = key.iter().map(|b| format!("{b:02x}")).collect();
        let folder = self.folder.as_ref()?.join(arch.to_string()).join(format!("nvrtc-{version}"));
        Some(folder.join(name).with_extension(kind))
    }
}

/// `ep/cuda` in the user's cache folder.
fn user_folder() -> Option<PathBuf> {
    let absolute = |name| env::var(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(base.join("ep").join("cuda"))
}

/// The content of a file that is whole.
fn unwrap(bytes: &[u8]) -> Option<&[u8]> {
    let (head, code) = bytes.split_at_checked(HEAD)?;
    let whole = head[..8] == *MAGIC
        && head[8..16] == (code.len() as u64).to_le_bytes()
        && head[16..] == Sha256::digest(code)[..];
    whole.then_some(code)
}

/// Writes beside the place, then renames.
fn store(path: &Path, code: &[u8]) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(folder)?;
    // Processes of several containers may have one number, and one that was killed leaves its file.
    let (beside, mut file) = loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let beside = path.with_extension(format!("{}.{number}.{BESIDE}", std::process::id()));
        match fs::File::create_new(&beside) {
            Ok(file) => break (beside, file),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    };
    let mut write = || {
        file.write_all(MAGIC)?;
        file.write_all(&(code.len() as u64).to_le_bytes())?;
        file.write_all(&Sha256::digest(code))?;
        file.write_all(code)?;
        fs::rename(&beside, path)
    };
    write().inspect_err(|_| {
        // The first error is the one to tell.
        let _gone_or_not = fs::remove_file(&beside);
    })
}

/// What lies beside a place for so long has nobody who is writing it.
const FORGOTTEN: Duration = Duration::from_secs(24 * 3600);

/// Removes the oldest entries but `last` until the others with it have at most `limit` bytes, and what processes have left that
/// were killed while they wrote.
fn trim(folder: &Path, limit: u64, last: &Path) -> io::Result<()> {
    let mut entries = Vec::new();
    for arch in fs::read_dir(folder)? {
        // What else lies in the folder is none of ours.
        let Ok(versions) = fs::read_dir(arch?.path()) else { continue };
        for version in versions {
            let Ok(files) = fs::read_dir(version?.path()) else { continue };
            for file in files {
                let file = file?;
                let path = file.path();
                // Another process may have removed it since.
                let Ok(data) = file.metadata() else { continue };
                if path.extension().is_some_and(|e| e == IMAGE || e == MEMBER) {
                    entries.push((data.modified()?, data.len(), path));
                } else if path.extension().is_some_and(|e| e == BESIDE)
                    && data.modified()?.elapsed().is_ok_and(|age| age > FORGOTTEN)
                {
                    match fs::remove_file(&path) {
                        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                        _ => {}
                    }
                }
            }
        }
    }
    let mut total: u64 = entries.iter().map(|(_, bytes, _)| bytes).sum();
    entries.sort();
    for (_, bytes, path) in entries.iter().filter(|(_, _, path)| path != last) {
        if total <= limit {
            break;
        }
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => total -= bytes,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiler::tests::Folder;

    const ARCH: Arch = Arch::new(9, 0);
    const OLD: Version = Version { major: 12, minor: 9 };
    const NEW: Version = Version { major: 13, minor: 0 };

    fn cache(folder: &Folder) -> Cache {
        Cache::new(folder.path().to_str())
    }

    /// The image of a kernel that has it alone.
    fn alone(kept: Option<Kept>) -> Option<Vec<u8>> {
        kept.map(|kept| {
            assert_eq!(kept.name, None);
            kept.image.unwrap()
        })
    }

    #[test]
    fn what_is_put_is_found_by_arch_key_and_version() {
        let folder = Folder::new();
        let cache = cache(&folder);
        let key = [7; 32];
        assert_eq!(cache.find(ARCH, &key, 13, &|_| false), None);
        cache.put(ARCH, OLD, &key, b"old code");
        cache.put_or_fail(ARCH, NEW, &key, b"new code", &[]).unwrap();
        assert_eq!(alone(cache.get(ARCH, OLD, &key, &|_| false)).as_deref(), Some(&b"old code"[..]));
        assert_eq!(alone(cache.find(ARCH, &key, 13, &|_| false)).as_deref(), Some(&b"new code"[..]));
        // A driver of version 12 does not take the code of compiler 13.
        assert_eq!(alone(cache.find(ARCH, &key, 12, &|_| false)).as_deref(), Some(&b"old code"[..]));
        assert_eq!(cache.find(ARCH, &key, 11, &|_| false), None);
        assert_eq!(cache.find(Arch::new(8, 0), &key, 13, &|_| false), None);
        assert_eq!(cache.find(ARCH, &[8; 32], 13, &|_| false), None);
    }

    #[test]
    fn a_limit_removes_the_oldest_entries_and_nothing_else() {
        let folder = Folder::new();
        let entry = HEAD as u64 + 100;
        let cache = cache(&folder).with_limit(Some(3 * entry));
        let own = folder.path().join("sm_90/nvrtc-13.0/notes.txt");
        let there =
            || (0..6).filter(|k| cache.get(ARCH, NEW, &[*k; 32], &|_| false).is_some()).collect::<Vec<_>>();
        for key in 0..5u8 {
            cache.put(ARCH, if key == 1 { OLD } else { NEW }, &[key; 32], &[key; 100]);
            // File systems tell times in steps.
            let path = cache.place(ARCH, if key == 1 { OLD } else { NEW }, &[key; 32], IMAGE).unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000 + u64::from(key));
            fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
            fs::write(&own, b"mine").unwrap();
        }
        assert_eq!((there(), cache.get(ARCH, OLD, &[1; 32], &|_| false)), (vec![2, 3, 4], None));
        assert!(own.exists());
        // One that is larger than the limit is kept alone.
        cache.put(ARCH, NEW, &[5; 32], &[5; 1000]);
        assert_eq!(there(), [5]);
    }

    #[test]
    fn a_limit_removes_what_was_left_half_written_long_ago() {
        let folder = Folder::new();
        let cache = cache(&folder).with_limit(Some(1 << 20));
        cache.put(ARCH, NEW, &[1; 32], b"code");
        let beside = |name: &str, hours: u64| {
            let path = folder.path().join("sm_90/nvrtc-13.0").join(name);
            fs::write(&path, b"half").unwrap();
            let time = std::time::SystemTime::now() - Duration::from_secs(hours * 3600);
            fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
            path
        };
        let [killed, writing, other] = [("0a.77.3.new", 30), ("0a.77.4.new", 1), ("news.txt", 30)]
            .map(|(name, hours)| beside(name, hours));
        cache.put(ARCH, NEW, &[2; 32], b"code");
        assert_eq!([killed, writing, other].map(|path| path.exists()), [false, true, true]);
        assert!([1, 2].iter().all(|key| cache.get(ARCH, NEW, &[*key; 32], &|_| false).is_some()));
    }

    #[test]
    fn every_kind_of_damage_is_noticed_and_removed() {
        let folder = Folder::new();
        let cache = cache(&folder);
        let key = [1; 32];
        cache.put(ARCH, NEW, &key, b"some code");
        let path = cache.place(ARCH, NEW, &key, IMAGE).unwrap();
        let whole = fs::read(&path).unwrap();
        let mut damaged: Vec<Vec<u8>> = (0..whole.len()).map(|n| whole[..n].to_vec()).collect();
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            damaged.push(flipped);
        }
        damaged.push([&whole[..], b"x"].concat());
        for bytes in damaged {
            fs::write(&path, &bytes).unwrap();
            assert_eq!(cache.get(ARCH, NEW, &key, &|_| false), None, "{bytes:?}");
            assert!(!path.exists());
        }
        cache.put(ARCH, NEW, &key, b"some code");
        assert_eq!(alone(cache.get(ARCH, NEW, &key, &|_| false)).as_deref(), Some(&b"some code"[..]));
    }

    #[test]
    fn members_are_found_in_the_image_that_they_share() {
        let folder = Folder::new();
        let cache = cache(&folder);
        let (image, one, two) = ([1; 32], [2; 32], [3; 32]);
        let members = [(one, "ep_x_0".to_owned()), (two, "ep_x_1".to_owned())];
        let put = || cache.put_or_fail(ARCH, NEW, &image, b"some code", &members).unwrap();
        let kept = |name: &str| {
            Some(Kept { key: image, image: Some(b"some code".to_vec()), name: Some(name.to_owned()) })
        };
        put();
        assert_eq!(
            (cache.get(ARCH, NEW, &one, &|_| false), cache.find(ARCH, &two, 13, &|_| false)),
            (kept("ep_x_0"), kept("ep_x_1"))
        );
        assert_eq!(
            (cache.get(ARCH, OLD, &one, &|_| false), cache.find(ARCH, &two, 12, &|_| false)),
            (None, None)
        );
        // What was compiled alone since comes first.
        cache.put(ARCH, NEW, &two, b"alone");
        assert_eq!(alone(cache.get(ARCH, NEW, &two, &|_| false)).as_deref(), Some(&b"alone"[..]));
        assert_eq!(cache.get(ARCH, NEW, &one, &|_| false), kept("ep_x_0"));
        // Every damage to what says where the code is, and to the code.
        let place = |key, kind| cache.place(ARCH, NEW, key, kind).unwrap();
        for path in [place(&one, MEMBER), place(&image, IMAGE)] {
            let whole = fs::read(&path).unwrap();
            for at in 0..whole.len() {
                let mut flipped = whole.clone();
                flipped[at] ^= 1;
                for bytes in [&whole[..at], &flipped] {
                    fs::write(&path, bytes).unwrap();
                    assert_eq!(cache.get(ARCH, NEW, &one, &|_| false), None, "{at}");
                    assert!(!path.exists());
                }
            }
            // Gone altogether, it is the same.
            assert_eq!(cache.get(ARCH, NEW, &one, &|_| false), None);
            put();
            assert_eq!(cache.get(ARCH, NEW, &one, &|_| false), kept("ep_x_0"));
        }
    }

    #[test]
    fn a_limit_counts_members_and_may_remove_what_they_point_to() {
        let folder = Folder::new();
        let bytes = (HEAD + 100 + HEAD + 32 + 1) as u64;
        let cache = cache(&folder).with_limit(Some(2 * bytes));
        let put =
            |n: u8| cache.put_or_fail(ARCH, NEW, &[n; 32], &[n; 100], &[([n + 100; 32], "f".to_owned())]);
        for n in 0..4 {
            put(n).unwrap();
            for (key, kind) in [([n; 32], IMAGE), ([n + 100; 32], MEMBER)] {
                let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000 + u64::from(n));
                let path = cache.place(ARCH, NEW, &key, kind).unwrap();
                fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
            }
        }
        let there: Vec<_> =
            (0..4).filter(|n| cache.get(ARCH, NEW, &[n + 100; 32], &|_| false).is_some()).collect();
        assert_eq!(there, [2, 3]);
    }

    #[test]
    fn many_writers_and_readers_of_one_entry_see_only_whole_ones() {
        let folder = Folder::new();
        let code = vec![0x5a; 1 << 16];
        let key = [2; 32];
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    // A cache each, as processes have.
                    let cache = cache(&folder);
                    for _ in 0..50 {
                        cache.put(ARCH, NEW, &key, &code);
                        assert_eq!(alone(cache.get(ARCH, NEW, &key, &|_| false)).as_ref(), Some(&code));
                    }
                });
            }
        });
        let left: Vec<_> = fs::read_dir(folder.path().join("sm_90/nvrtc-13.0")).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    /// Processes of two containers may have the same number, and one that was killed leaves its file.
    #[test]
    fn files_of_others_are_left_alone() {
        let folder = Folder::new();
        let version = folder.path().join("sm_90/nvrtc-13.0");
        fs::create_dir_all(&version).unwrap();
        let key = "05".repeat(32);
        let name = |number: u64| version.join(format!("{key}.{}.{number}.new", std::process::id()));
        for number in 0..100 {
            fs::write(name(number), b"of another").unwrap();
        }
        let cache = cache(&folder);
        cache.put_or_fail(ARCH, NEW, &[5; 32], b"code", &[]).unwrap();
        assert_eq!(alone(cache.get(ARCH, NEW, &[5; 32], &|_| false)).unwrap(), b"code");
        for number in 0..100 {
            assert_eq!(fs::read(name(number)).unwrap(), b"of another");
        }
    }

    #[test]
    fn a_disabled_or_unwritable_cache_keeps_nothing() {
        let off = Cache::new(Some("off"));
        assert_eq!(off.folder(), None);
        off.put(ARCH, NEW, &[3; 32], b"code");
        assert_eq!(off.find(ARCH, &[3; 32], 99, &|_| false), None);
        assert!(off.put_or_fail(ARCH, NEW, &[3; 32], b"", &[]).unwrap_err().message().contains("disabled"));
        let folder = Folder::new();
        let file = folder.path().join("file");
        fs::write(&file, b"").unwrap();
        let blocked = Cache::new(file.to_str());
        blocked.put(ARCH, NEW, &[3; 32], b"code");
        assert_eq!(blocked.find(ARCH, &[3; 32], 99, &|_| false), None);
        let error = blocked.put_or_fail(ARCH, NEW, &[3; 32], b"", &[]).unwrap_err();
        assert_eq!(error.code(), ep_core::Code::Unavailable);
    }
}

//! Whom to believe: ownership and permissions of a provider file, and its SHA-256.
//!
//! Loading a library runs its code with all rights of this process, so whoever can change the file can do
//! anything this process can. [`Policy`] therefore follows a path one step at a time, through symbolic
//! links too, and asks of every folder, link and file on the way that nobody but root and the current user
//! could have changed it:
//! - a file or folder that everybody may write to is refused, but for folders with the sticky bit (such
//!   as `/tmp`), where only the owner of an entry may replace it;
//! - everything must belong to root or to the current user, or to a user added with
//!   [`Policy::also_owner`].
//!
//! Members of a group with write permission are trusted as the owner is, since the owner gave it to them.
//!
//! # Between the check and the load
//! A library is loaded by name, so the file could in principle change after it was checked. Who could
//! change it are exactly the users that the policy accepts; all others are kept out by the permissions just
//! checked, on the file and on every folder, and those cannot change without one of the accepted users. For
//! accidents, such as an upgrade that runs at this moment, [`Trusted`] keeps the checked file open and
//! [`Trusted::unchanged`] compares device, inode, length and both times of the path with it. The loader
//! calls it after `dlopen` and before it calls into the library. If the state is then still that of before
//! hashing, the bytes that were mapped are the bytes that were hashed: each way of changing them in between
//! would have left another inode or a later change time.
//!
//! That holds for the first load of a path. The dynamic linker maps a path once, so every later load in the same
//! process runs what the first one mapped, whatever stands there by then. The loader therefore keeps a record of
//! the whole process. A file that is not in the state in which it was first loaded is refused where its hash is
//! pinned, unless the first load has verified this very hash; without a pin, the load report says that an
//! earlier version runs. A library that the program has loaded by means of its own is not in that record.
//!
//! Loading through `/proc/self/fd/N` or a sealed memory file would bind the bytes more tightly, at a price
//! that honest providers pay: `$ORIGIN` no longer finds libraries beside the provider, debuggers and
//! profilers lose the file, and a descriptor number used again makes the loader hand out the wrong library.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use ep_core::{Error, Result};
use sha2::{Digest as _, Sha256};

use crate::platform::{self, Stamp};

/// As many as Linux follows.
const MAX_LINKS: usize = 40;

/// A SHA-256 digest; parses from and prints as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of some bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    fn of_file(mut file: &File) -> std::io::Result<Digest> {
        let mut hasher = Sha256::new();
        let mut block = vec![0; 1 << 16];
        file.seek(SeekFrom::Start(0))?;
        loop {
            match file.read(&mut block) {
                Ok(0) => return Ok(Digest(hasher.finalize().into())),
                Ok(n) => hasher.update(&block[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Digest> {
        let mut digest = [0; 32];
        let digits: Option<Vec<u8>> =
            text.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
        match digits {
            Some(digits) if digits.len() == 64 => {
                for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
                    *byte = pair[0] << 4 | pair[1];
                }
                Ok(Digest(digest))
            }
            _ => Err(Error::invalid(format!(
                "a SHA-256 is 64 hexadecimal digits, and this is {} characters{}; `sha256sum FILE` prints one",
                text.chars().count(),
                if digits.is_none() { " with others among them" } else { "" },
            ))),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Which owners and permissions are accepted; see the [module](self).
#[derive(Clone, Debug)]
pub struct Policy {
    /// `None` accepts everything.
    owners: Option<Vec<u32>>,
}

impl Default for Policy {
    /// Root and the user that this process acts as.
    fn default() -> Policy {
        Policy { owners: Some(std::iter::once(0).chain(platform::effective_user()).collect()) }
    }
}

impl Policy {
    /// Accepts any owner and any permissions; hashes are still checked. For places where owners mean
    /// nothing, such as a container that sees its files under foreign ids.
    pub fn permissive() -> Policy {
        Policy { owners: None }
    }

    /// Also accepts what belongs to the user with this numeric id.
    #[must_use]
    pub fn also_owner(mut self, uid: u32) -> Policy {
        if let Some(owners) = &mut self.owners {
            owners.push(uid);
        }
        self
    }

    /// Follows `path` to the file behind it, checking every folder and link on the way, and returns that
    /// file's path: absolute, without `.`, `..` and links. The file itself is judged by [`Policy::open`].
    ///
    /// # Errors
    /// `InvalidArgument` for a path that is not absolute or goes through too many links, `NotFound`,
    /// `Refused` with the folder or link that is not trusted, `Unavailable` where it cannot be looked at.
    pub fn resolve(&self, path: &Path) -> Result<PathBuf> {
        if !path.is_absolute() {
            return Err(Error::invalid(format!(
                "{}: is relative, and the current folder is never searched; give an absolute path",
                path.display()
            )));
        }
        let mut rest = steps(path);
        let mut at = PathBuf::new();
        let mut links = 0;
        while let Some(step) = rest.pop_front() {
            if step == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&step);
            let metadata =
                std::fs::symlink_metadata(&next).map_err(|error| self.lost(path, &next, &error))?;
            if metadata.is_symlink() {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Error::invalid(format!(
                        "{}: goes through more than {MAX_LINKS} symbolic links; remove the loop",
                        path.display()
                    )));
                }
                self.check(path, &next, &metadata, Kind::Link)?;
                let target = std::fs::read_link(&next).map_err(|error| self.lost(path, &next, &error))?;
                if target.is_absolute() {
                    at = PathBuf::new();
                }
                for step in steps(&target).into_iter().rev() {
                    rest.push_front(step);
                }
            } else {
                if metadata.is_dir() {
                    self.check(path, &next, &metadata, Kind::Folder)?;
                }
                at = next;
            }
        }
        Ok(at)
    }

    /// Opens a file after checking its path and itself, and its bytes against `expected` where given.
    ///
    /// # Errors
    /// Those of [`Policy::resolve`]; `InvalidArgument` for what is no regular file; `Refused` for a file
    /// that is not trusted, has another hash, or changed while it was hashed.
    pub fn open(&self, path: &Path, expected: Option<&Digest>) -> Result<Trusted> {
        let resolved = self.resolve(path)?;
        let (file, metadata) = platform::open_regular(&resolved)?;
        self.check(path, &resolved, &metadata, Kind::File)?;
        let trusted = Trusted { path: resolved, file, stamp: platform::stamp(&metadata) };
        if let Some(expected) = expected {
            let found = Digest::of_file(&trusted.file).map_err(|error| {
                Error::unavailable(format!("{}: cannot be read: {error}", path.display()))
            })?;
            if found != *expected {
                return Err(Error::refused(format!(
                    "{}: its SHA-256 is {found}, but the config says {expected}; restore the file, or if the change is meant, put the new hash into the config",
                    path.display()
                )));
            }
            if !trusted.is_unchanged() {
                return Err(Error::refused(format!(
                    "{}: the file changed while its SHA-256 was computed; load it again once the change is \
                     complete",
                    path.display()
                )));
            }
        }
        Ok(trusted)
    }

    fn check(&self, asked: &Path, at: &Path, metadata: &Metadata, kind: Kind) -> Result<()> {
        let (Some(owners), Some(found)) = (&self.owners, platform::ownership(metadata)) else {
            return Ok(());
        };
        let refused = |found: String, advice: String| {
            Err(Error::refused(format!("{}: not loaded: {found}; {advice}", asked.display())))
        };
        let what = match kind {
            Kind::Link => "symbolic link",
            Kind::Folder => "folder",
            Kind::File => "file",
        };
        let shown = at.display();
        // The mode of a link means nothing: what counts is who may replace it in its folder.
        let open_to_all = match kind {
            Kind::Link => false,
            Kind::Folder => found.world_writable && !found.sticky,
            Kind::File => found.world_writable,
        };
        if open_to_all {
            return refused(
                format!("every user may write to the {what} {shown}"),
                format!("run `chmod o-w {shown}`"),
            );
        }
        if !owners.contains(&found.owner) {
            let accepted: Vec<String> = owners.iter().map(u32::to_string).collect();
            return refused(
                format!(
                    "the {what} {shown} belongs to user {}, and only users {} are trusted",
                    found.owner,
                    accepted.join(", ")
                ),
                "change its owner with `chown`, or accept that user with `Policy::also_owner`".to_owned(),
            );
        }
        Ok(())
    }

    fn lost(&self, asked: &Path, at: &Path, error: &std::io::Error) -> Error {
        let found = format!("{}: {} ", asked.display(), at.display());
        // A build of Cargo that is not there, or is elsewhere.
        let built = asked.components().any(|c| c.as_os_str() == "target");
        match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory if built => Error::not_found(
                found
                    + "does not exist; build it first (`cargo build`); if CARGO_TARGET_DIR is set, the path in \
                           the config must name that folder in place of `target`",
            ),
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
                Error::not_found(found + "does not exist; check the path, or build or install the file")
            }
            _ => Error::unavailable(format!("{found}cannot be examined: {error}")),
        }
    }
}

/// The components of a path, the root among them so that it is checked too.
fn steps(path: &Path) -> VecDeque<OsString> {
    path.components().filter(|c| *c != Component::CurDir).map(|c| c.as_os_str().to_owned()).collect()
}

#[derive(Clone, Copy)]
enum Kind {
    Link,
    Folder,
    File,
}

/// A file that passed [`Policy::open`], held open so that it stays identifiable.
#[derive(Debug)]
pub struct Trusted {
    path: PathBuf,
    file: File,
    stamp: Stamp,
}

impl Trusted {
    /// The path to load: absolute and free of links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Device and inode number: equal for two names of one file, which the loader maps once.
    pub fn id(&self) -> (u64, u64) {
        self.stamp.id
    }

    /// The file's state before it was hashed.
    pub(crate) fn stamp(&self) -> Stamp {
        self.stamp
    }

    fn is_unchanged(&self) -> bool {
        let same = |metadata: std::io::Result<Metadata>| {
            metadata.is_ok_and(|metadata| platform::stamp(&metadata) == self.stamp)
        };
        same(std::fs::symlink_metadata(&self.path)) && same(self.file.metadata())
    }

    /// Checks that the path still leads to the file that was opened, and that nobody wrote to it since.
    /// To be called after `dlopen` and before anything in the library is.
    ///
    /// # Errors
    /// `Refused` where it changed.
    pub fn unchanged(&self) -> Result<()> {
        if self.is_unchanged() {
            return Ok(());
        }
        Err(Error::refused(format!(
            "{}: the file changed while it was being loaded, and which version this process has now is not \
             known; restart it once the change is complete",
            self.path.display()
        )))
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use ep_core::Code;
    use proptest::prelude::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn what_cargo_has_not_built_is_built_first() {
        let folder = tempfile::tempdir().unwrap();
        let says = |path: &str| Policy::default().resolve(&folder.path().join(path)).unwrap_err().to_string();
        let built = says("target/debug/libx.so");
        assert!(built.contains("`cargo build`") && built.contains("CARGO_TARGET_DIR"), "{built}");
        let other = says("lib/targets.so");
        assert!(other.contains("check the path") && !other.contains("cargo"), "{other}");
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn file(folder: &Path, name: &str, content: &[u8]) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, content).unwrap();
        chmod(&path, 0o644);
        path
    }

    #[test]
    fn plain_file_is_trusted_and_its_real_path_returned() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(dir.path(), "a.so", b"x");
        fs::create_dir(dir.path().join("sub")).unwrap();
        symlink("../a.so", dir.path().join("sub/link.so")).unwrap();
        symlink(dir.path().join("sub"), dir.path().join("way")).unwrap();
        let trusted = Policy::default().open(&dir.path().join("way/./link.so"), None).unwrap();
        assert_eq!(trusted.path(), fs::canonicalize(&path).unwrap());
        assert_eq!(trusted.id(), Policy::default().open(&path, None).unwrap().id());
        trusted.unchanged().unwrap();
    }

    #[test]
    fn writable_by_all_is_refused_wherever_it_is_on_the_way() {
        let dir = tempfile::tempdir().unwrap();
        let mid = dir.path().join("mid");
        fs::create_dir_all(mid.join("deep")).unwrap();
        let path = file(&mid.join("deep"), "a.so", b"x");
        symlink(&path, dir.path().join("link.so")).unwrap();
        let refused = |path: &Path, needle: &str| {
            let error = Policy::default().open(path, None).unwrap_err();
            assert_eq!(error.code(), Code::Refused, "{error}");
            assert!(error.message().contains(needle) && error.message().contains("chmod o-w"), "{error}");
            Policy::permissive().open(path, None).unwrap();
        };
        chmod(&path, 0o666);
        refused(&path, "file");
        chmod(&path, 0o644);
        chmod(&mid, 0o777);
        refused(&path, "mid");
        refused(&dir.path().join("link.so"), "mid");
        chmod(&mid, 0o1777);
        Policy::default().open(&path, None).unwrap();
    }

    #[test]
    fn foreign_owner_is_refused_unless_added() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(dir.path(), "a.so", b"x");
        let me = platform::effective_user().unwrap();
        let others = Policy { owners: Some(vec![me.wrapping_add(77)]) };
        // The root folder already belongs to a user outside the list.
        let error = others.open(&path, None).unwrap_err();
        assert_eq!(error.code(), Code::Refused);
        assert!(error.message().contains("belongs to user"), "{error}");
        others.also_owner(0).also_owner(me).open(&path, None).unwrap();
    }

    #[test]
    fn loops_relative_paths_and_missing_files_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        symlink("loop", dir.path().join("loop")).unwrap();
        symlink("gone", dir.path().join("dangling")).unwrap();
        let policy = Policy::default();
        let code = |path: &Path| policy.open(path, None).unwrap_err().code();
        assert_eq!(code(&dir.path().join("loop")), Code::InvalidArgument);
        assert_eq!(code(Path::new("a.so")), Code::InvalidArgument);
        assert_eq!(code(dir.path()), Code::InvalidArgument);
        assert_eq!(code(&dir.path().join("dangling")), Code::NotFound);
        let path = file(dir.path(), "a.so", b"x");
        assert_eq!(code(&path.join("below")), Code::NotFound);
    }

    #[test]
    fn hash_is_checked_on_all_bytes() {
        let dir = tempfile::tempdir().unwrap();
        // More than one block, and not a multiple of it.
        let mut content: Vec<u8> = (0..150_001u32).map(|i| (i * 7 % 251) as u8).collect();
        let path = file(dir.path(), "a.so", &content);
        let digest = Digest::of(&content);
        Policy::default().open(&path, Some(&digest)).unwrap();
        *content.last_mut().unwrap() ^= 1;
        fs::write(&path, &content).unwrap();
        let error = Policy::permissive().open(&path, Some(&digest)).unwrap_err();
        assert_eq!(error.code(), Code::Refused);
        assert!(error.message().contains(&digest.to_string()), "{error}");
        assert!(error.message().contains(&Digest::of(&content).to_string()), "{error}");
    }

    #[test]
    fn a_change_after_the_check_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(dir.path(), "a.so", b"one");
        let trusted = Policy::default().open(&path, None).unwrap();
        let other = file(dir.path(), "b.so", b"one");
        fs::rename(&other, &path).unwrap();
        assert_eq!(trusted.unchanged().unwrap_err().code(), Code::Refused);
        let trusted = Policy::default().open(&path, None).unwrap();
        fs::write(&path, b"longer").unwrap();
        assert!(trusted.unchanged().is_err());
        let trusted = Policy::default().open(&path, None).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(trusted.unchanged().is_err());
        // Another folder in the place of the file's: the file itself does not change.
        let (here, there) = (dir.path().join("here"), dir.path().join("there"));
        for folder in [&here, &there] {
            fs::create_dir(folder).unwrap();
            file(folder, "a.so", b"one");
        }
        let trusted = Policy::default().open(&here.join("a.so"), None).unwrap();
        fs::rename(&here, dir.path().join("away")).unwrap();
        fs::rename(&there, &here).unwrap();
        assert!(trusted.unchanged().is_err());
    }

    #[test]
    fn known_digest_and_bad_texts() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Digest::of(b"abc").to_string(), abc);
        assert_eq!(abc.to_uppercase().parse::<Digest>().unwrap(), Digest::of(b"abc"));
        for bad in ["", "ba78", &abc[1..], &format!("{abc}0"), &abc.replace('b', "g"), &"é".repeat(32)] {
            assert!(bad.parse::<Digest>().unwrap_err().message().contains("sha256sum"));
        }
    }

    proptest! {
        #[test]
        fn digests_round_trip(bytes: [u8; 32]) {
            prop_assert_eq!(Digest(bytes).to_string().parse::<Digest>().unwrap(), Digest(bytes));
        }
    }
}

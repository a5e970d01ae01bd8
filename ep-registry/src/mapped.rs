//! Which version of each file this process has mapped.
//!
//! The dynamic linker maps a path once: asked again, it hands out what it has, although another file may stand
//! there by now, and libraries are never unloaded (docs/decisions/0004). So what was checked is what runs only
//! where the file is still the one that was loaded first, and this record of the whole process tells. It does
//! not know of libraries that a program loads by means of its own.

use crate::platform::Stamp;
use crate::trust::{Digest, Trusted};
use ep_core::{Error, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;

static MAPPED: Mutex<BTreeMap<PathBuf, Known>> = Mutex::new(BTreeMap::new());

/// The version of a file that is mapped, or about to be.
struct Known {
    /// The file's state before it was first loaded.
    stamp: Stamp,
    /// Of the bytes that are mapped, once it is known.
    digest: Option<Digest>,
    /// Claims that are held or were kept: without any, nothing is mapped.
    claims: usize,
}

/// The right to load a file; where it is dropped and was not kept, the file could not be loaded.
pub(crate) struct Claim<'a> {
    file: &'a Trusted,
    pinned: Option<&'a Digest>,
    earlier: bool,
    kept: bool,
}

/// To be called before a file is loaded, after its hash was checked.
///
/// # Errors
/// `Refused` where its hash is pinned and this process has other bytes of it, or may have.
pub(crate) fn claim<'a>(file: &'a Trusted, pinned: Option<&'a Digest>) -> Result<Claim<'a>> {
    let mut mapped = MAPPED.lock();
    let fresh = Known { stamp: file.stamp(), digest: None, claims: 0 };
    let known = mapped.entry(file.path().to_owned()).or_insert(fresh);
    let verified = pinned.is_some() && known.digest.as_ref() == pinned;
    if pinned.is_some() && !verified && known.stamp != file.stamp() {
        return Err(Error::refused(format!(
            "{}: another version of this file is already in this process, where it stays: the file was changed \
             or replaced after it was first loaded, so the bytes that would run are not those that `sha256` \
             names; restart this process",
            file.path().display()
        )));
    }
    known.claims += 1;
    let earlier = !verified && !known.stamp.same_bytes(&file.stamp());
    Ok(Claim { file, pinned, earlier, kept: false })
}

impl Claim<'_> {
    /// Whether the process runs an earlier version of the file than the one that stands there.
    pub(crate) fn earlier(&self) -> bool {
        self.earlier
    }

    /// To be called once the file is mapped.
    ///
    /// # Errors
    /// `Refused` where the file changed meanwhile. What is mapped then stays so.
    pub(crate) fn keep(mut self) -> Result<()> {
        self.kept = true;
        self.file.unchanged()?;
        if let Some(known) = MAPPED.lock().get_mut(self.file.path()) {
            // The path led to one state of the file from before the first load until now, and that was hashed.
            if known.stamp == self.file.stamp() {
                known.digest = self.pinned.copied().or(known.digest);
            }
        }
        Ok(())
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut mapped = MAPPED.lock();
        if let Some(known) = mapped.get_mut(self.file.path()).filter(|_| !self.kept) {
            known.claims -= 1;
            if known.claims == 0 {
                mapped.remove(self.file.path());
            }
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::trust::Policy;
    use ep_core::Code;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn replace(path: &Path, content: &[u8]) -> Digest {
        let fresh = path.with_extension("new");
        fs::write(&fresh, content).unwrap();
        fs::rename(&fresh, path).unwrap();
        Digest::of(content)
    }

    /// What loading would do; whether an earlier version is what runs.
    fn load(path: &Path, pinned: Option<&Digest>) -> Result<bool> {
        let file = Policy::permissive().open(path, pinned)?;
        let claim = claim(&file, pinned)?;
        let earlier = claim.earlier();
        claim.keep().map(|()| earlier)
    }

    #[test]
    fn a_pinned_file_is_refused_where_another_version_is_mapped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.so");
        let one = replace(&path, b"one");
        assert!(!load(&path, None).unwrap());
        assert!(!load(&path, Some(&one)).unwrap());
        let two = replace(&path, b"two");
        let error = load(&path, Some(&two)).unwrap_err();
        assert_eq!(error.code(), Code::Refused);
        let parts = ["another version", "already in this process", "`sha256`", "restart this process"];
        assert!(parts.iter().all(|part| error.message().contains(part)), "{error}");
        // Without a pin the earlier version runs on, and that is told.
        assert!(load(&path, None).unwrap());
        // The bytes that are mapped, in another file: they were hashed when they were.
        replace(&path, b"one");
        assert!(!load(&path, Some(&one)).unwrap());
        assert!(load(&path, Some(&two)).is_err());
    }

    #[test]
    fn what_was_never_hashed_is_not_vouched_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.so");
        let one = replace(&path, b"one");
        load(&path, None).unwrap();
        // The same file, and its bytes may have been others: its times can be set.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(!load(&path, None).unwrap(), "neither length nor time of the bytes have changed");
        assert_eq!(load(&path, Some(&one)).unwrap_err().code(), Code::Refused);
    }

    #[test]
    fn a_change_while_it_is_loaded_leaves_the_path_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.so");
        let one = replace(&path, b"one");
        let file = Policy::permissive().open(&path, Some(&one)).unwrap();
        let during = claim(&file, Some(&one)).unwrap();
        let two = replace(&path, b"two");
        let error = during.keep().unwrap_err();
        assert!(error.message().contains("restart"), "{error}");
        // Which of them was mapped is not known.
        replace(&path, b"one");
        assert!(load(&path, Some(&one)).is_err());
        replace(&path, b"two");
        assert!(load(&path, Some(&two)).is_err());
    }

    #[test]
    fn what_could_not_be_loaded_is_forgotten_when_nobody_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.so");
        replace(&path, b"one");
        let file = Policy::permissive().open(&path, None).unwrap();
        let (first, second) = (claim(&file, None).unwrap(), claim(&file, None).unwrap());
        drop(first);
        let two = replace(&path, b"two");
        assert!(load(&path, Some(&two)).is_err(), "the second may still come through");
        drop(second);
        load(&path, Some(&two)).unwrap();
    }
}

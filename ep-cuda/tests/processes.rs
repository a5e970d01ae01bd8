//! Several processes use one cache of kernels, while entries are damaged and removed under them: each gets the code that the
//! compiler makes, and what is left is whole.

mod rig;

use ep_cuda::cache::Cache;
use ep_cuda::compiler::{Arch, Compiler, Spec};
use ep_cuda::warm;
use fakecuda::Fake;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The folder that parent and children share: `cache` is the cache, and the children begin when `go` is there.
const FOLDER: &str = "EP_TEST_CACHE_FOLDER";
/// Bytes of the cache at most; without it there is no limit.
const LIMIT: &str = "EP_TEST_CACHE_LIMIT";
/// Where it is set, kernels are compiled together.
const TOGETHER: &str = "EP_TEST_CACHE_TOGETHER";
const ROUNDS: usize = 10;
const ARCH: Arch = Arch::new(9, 0);

/// The first kernels of the first group of some sources. The fake's code of one source is always the same, but for the
/// names that its kernels have together.
fn bundles(of_each: usize) -> Vec<Vec<Spec>> {
    let mut bundles: Vec<Vec<Spec>> = Vec::new();
    for mut bundle in warm::bundles(ARCH, None).unwrap() {
        if bundles.iter().all(|known| known[0].source.name != bundle[0].source.name) {
            bundle.truncate(of_each);
            bundles.push(bundle);
        }
    }
    bundles.truncate(8);
    bundles
}

fn specs() -> Vec<Spec> {
    bundles(1).concat()
}

fn compiler(cache: Cache) -> Compiler {
    Compiler::new(cache, Some(Fake::beside_the_test().path().to_owned()), None)
}

fn cache(folder: &Path) -> Cache {
    Cache::new(folder.join("cache").to_str())
}

#[test]
#[ignore = "a child of the test below"]
fn child() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("a folder"));
    let limit = std::env::var(LIMIT).ok().map(|n| n.parse().unwrap());
    let specs = specs();
    let expected: Vec<_> =
        specs.iter().map(|s| compiler(Cache::new(Some("off"))).code(s, ARCH).unwrap()).collect();
    fs::write(folder.join(format!("ready-{}", std::process::id())), b"").unwrap();
    while !folder.join("go").exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    if std::env::var_os(TOGETHER).is_some() {
        return use_bundles(&folder);
    }
    for round in 0..ROUNDS {
        // Each begins elsewhere, and by the one and the other way in turns.
        for at in 0..specs.len() {
            let at = (at + std::process::id() as usize) % specs.len();
            let compiler = compiler(cache(&folder).with_limit(limit));
            if round % 2 == 0 {
                compiler.warm(&specs[at..=at], ARCH).unwrap();
            }
            assert_eq!(compiler.code(&specs[at], ARCH).unwrap(), expected[at]);
        }
    }
}

/// Warms and loads kernels of bundles. Each time there is code that has the kernel by the name that is said.
fn use_bundles(folder: &Path) {
    let bundles = bundles(3);
    for round in 0..ROUNDS {
        for at in 0..bundles.len() {
            let bundle = &bundles[(at + std::process::id() as usize) % bundles.len()];
            let compiler = compiler(cache(folder));
            // Of some the first kernel is there alone, from a launch.
            if round % 3 == 0 {
                compiler.code(&bundle[0], ARCH).unwrap();
            }
            compiler.warm(bundle, ARCH).unwrap();
            for spec in bundle {
                let code = compiler.code(spec, ARCH).unwrap();
                let text = String::from_utf8(code.image.unwrap()).unwrap();
                assert!(text.lines().any(|line| line == format!("{} ?", code.entry)), "{spec} {text}");
            }
        }
    }
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// The entries, and whatever else lies where they are.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(read) = fs::read_dir(folder.join("cache/sm_90/nvrtc-13.0")) else { return Vec::new() };
    read.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Runs the children to their end, and does `meanwhile` again and again.
fn run(limit: Option<u64>, together: bool, meanwhile: fn(&Path, usize)) -> Folder {
    let name = format!("ep-cuda-processes-{}-{}-{together}", std::process::id(), limit.unwrap_or(0));
    let folder = Folder(std::env::temp_dir().join(name));
    fs::create_dir(&folder.0).unwrap();
    let start = |_| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "child", "--nocapture"]).env(FOLDER, &folder.0);
        command.envs(limit.map(|n| (LIMIT, n.to_string())));
        command.envs(together.then_some((TOGETHER, "1")));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut children: Vec<Child> = (0..4).map(start).collect();
    let mut all = |done: &dyn Fn(&mut Child) -> bool| children.iter_mut().all(done);
    let ready = || fs::read_dir(&folder.0).unwrap().count() == 4;
    while !ready() && !all(&|child| child.try_wait().unwrap().is_some()) {
        std::thread::sleep(Duration::from_millis(1));
    }
    fs::write(folder.0.join("go"), b"").unwrap();
    let mut turn = 0;
    while !all(&|child| child.try_wait().unwrap().is_some()) {
        meanwhile(&folder.0, turn);
        turn += 1;
        std::thread::sleep(Duration::from_millis(2));
    }
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
    }
    folder
}

/// Every file is an entry that is whole, which one who looks for it finds.
fn check_whole(folder: &Path) -> usize {
    let files = files(folder);
    let found =
        specs().iter().filter(|spec| cache(folder).find(ARCH, &spec.key(), 13, &|_| false).is_some()).count();
    assert_eq!(found, files.len(), "{files:?}");
    found
}

/// Removes and damages some of the files.
fn disturb(folder: &Path, turn: usize) {
    for (i, path) in files(folder).into_iter().enumerate().filter(|(i, _)| i % 3 == turn % 3) {
        let entry = path.extension().is_some_and(|e| e == "cubin" || e == "member");
        // It may be gone meanwhile, as the children remove what is damaged.
        let _done_or_not = match i % 2 {
            _ if !entry => Ok(()),
            0 => fs::remove_file(path),
            _ => fs::File::options().write(true).open(path).and_then(|file| file.set_len(60)),
        };
    }
}

#[test]
fn processes_share_kernels_that_are_compiled_together() {
    let folder = run(None, true, disturb);
    let all = bundles(3);
    for bundle in &all {
        compiler(cache(&folder.0)).warm(bundle, ARCH).unwrap();
        assert_eq!(compiler(cache(&folder.0)).warm(bundle, ARCH), Ok(false));
    }
    assert!(all.concat().len() > all.len());
    let stray: Vec<_> = files(&folder.0)
        .into_iter()
        .filter(|p| p.extension().is_none_or(|e| e != "cubin" && e != "member"))
        .collect();
    assert!(stray.is_empty(), "{stray:?}");
}

#[test]
fn processes_share_a_cache_whose_entries_are_damaged_and_removed() {
    let folder = run(None, false, disturb);
    // What was damaged last is noticed by who looks for it.
    specs().iter().for_each(|spec| drop(cache(&folder.0).find(ARCH, &spec.key(), 13, &|_| false)));
    check_whole(&folder.0);
    // Undisturbed, all of it is kept.
    for spec in specs() {
        compiler(cache(&folder.0)).warm(&[spec], ARCH).unwrap();
    }
    assert_eq!(check_whole(&folder.0), specs().len());
}

#[test]
fn processes_keep_a_limit_together() {
    let compiler = compiler(Cache::new(Some("off")));
    let largest = specs()
        .iter()
        .map(|s| compiler.code(s, ARCH).unwrap().image.unwrap().len() as u64 + 48)
        .max()
        .unwrap();
    let folder = run(Some(3 * largest), false, |_, _| {});
    check_whole(&folder.0);
    let bytes: u64 = files(&folder.0).iter().map(|path| path.metadata().unwrap().len()).sum();
    // Each of those who write at the same time may not see what the others are about to add.
    assert!((largest / 8..=6 * largest).contains(&bytes), "{bytes} of {largest}");
}

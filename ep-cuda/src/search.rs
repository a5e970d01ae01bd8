//! Where NVIDIA's libraries lie: the loader's paths, the CUDA toolkit, Python's packages.

use crate::env;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// A library of the toolkit that is also a Python package.
pub(crate) struct Wanted {
    /// Its name: `nvrtc` of `libnvrtc.so`.
    pub(crate) name: &'static str,
    /// Its major versions, newest first.
    pub(crate) majors: &'static [u32],
    /// Its folder below `nvidia` in the Python packages of CUDA 12; in those of 13 all are in one.
    pub(crate) old_package: &'static str,
}

impl Wanted {
    /// Files to try, in order: what is named, else bare names for the loader, then what exists in the toolkit and
    /// Python's packages.
    pub(crate) fn files(&self, named: Option<&Path>) -> Vec<PathBuf> {
        match named {
            Some(path) => self.named(path),
            None => self.candidates(&Surroundings::real()),
        }
    }

    fn file_names(&self) -> impl Iterator<Item = String> {
        self.majors.iter().map(|major| format!("lib{}.so.{major}", self.name))
    }

    /// The file that a person named, or those in the folder.
    fn named(&self, path: &Path) -> Vec<PathBuf> {
        if !path.is_dir() {
            return vec![path.to_owned()];
        }
        let mut files: Vec<_> = self.file_names().map(|name| path.join(name)).collect();
        files.push(path.join(format!("lib{}.so", self.name)));
        files
    }

    fn candidates(&self, around: &Surroundings<'_>) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = self.file_names().map(PathBuf::from).collect();
        let mut folders = Vec::new();
        for name in ["CUDA_HOME", "CUDA_PATH"] {
            if let Some(root) = (around.variable)(name) {
                folders.extend(["lib64", "lib"].map(|lib| Path::new(&root).join(lib)));
            }
        }
        let local = around.root.join("usr/local");
        folders.push(local.join("cuda/lib64"));
        let mut toolkits = children(&local, "cuda-");
        toolkits.sort();
        folders.extend(toolkits.into_iter().rev().map(|t| t.join("lib64")));
        for packages in python_packages(around) {
            folders.push(packages.join("nvidia/cu13/lib"));
            folders.push(packages.join("nvidia").join(self.old_package).join("lib"));
        }
        for folder in folders {
            let inside = self.file_names().map(|name| folder.join(name)).filter(|file| file.is_file());
            files.extend(inside.collect::<Vec<_>>());
        }
        files
    }
}

/// Where to look, as the process sees it.
struct Surroundings<'a> {
    variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// What the process was started as.
    program: Option<PathBuf>,
    root: &'a Path,
}

impl Surroundings<'static> {
    fn real() -> Self {
        let program = env::program().map(PathBuf::from);
        Surroundings { variable: &|name| env::var(name), program, root: Path::new("/") }
    }
}

impl Surroundings<'_> {
    /// Pythons that are at work, or would be: this process, if it was started by its path, and the first `python3` on
    /// `PATH`. None is run.
    fn pythons(&self) -> Vec<PathBuf> {
        let is_python =
            |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python"));
        let own = self.program.clone().filter(|p| p.is_absolute() && is_python(p));
        let path = (self.variable)("PATH").unwrap_or_default();
        let on_path = std::env::split_paths(&path).map(|folder| folder.join("python3")).find(|p| p.is_file());
        own.into_iter().chain(on_path).collect()
    }
}

/// Folders of Python packages: of the active environment, of the Python at work, the user's, the system's.
fn python_packages(around: &Surroundings<'_>) -> Vec<PathBuf> {
    let mut libs = Vec::new();
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        libs.extend((around.variable)(name).map(|root| Path::new(&root).join("lib")));
    }
    for python in around.pythons() {
        // `bin` of an environment has links; behind them is the installation that it was made from.
        let real = fs::canonicalize(&python).unwrap_or_default();
        let roots = [&python, &real].map(|p| p.parent().and_then(Path::parent).map(|root| root.join("lib")));
        libs.extend(roots.into_iter().flatten());
    }
    libs.extend((around.variable)("HOME").map(|home| Path::new(&home).join(".local/lib")));
    libs.extend(["usr/local/lib", "usr/lib"].map(|lib| around.root.join(lib)));
    let mut packages = Vec::new();
    let mut seen = HashSet::new();
    for lib in libs.into_iter().filter(|lib| seen.insert(lib.clone())) {
        for python in children(&lib, "python3") {
            packages.extend(["site-packages", "dist-packages"].map(|name| python.join(name)));
        }
    }
    packages
}

fn children(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let fits = |p: &PathBuf| p.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(prefix));
    entries.filter_map(|e| Some(e.ok()?.path())).filter(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiler::tests::Folder;

    const NVRTC: Wanted = Wanted { name: "nvrtc", majors: &[13, 12], old_package: "cuda_nvrtc" };

    #[test]
    fn the_loader_comes_first_then_toolkits_then_pip() {
        let folder = Folder::new();
        let place = |path: &str| {
            let file = folder.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, b"").unwrap();
            file
        };
        let toolkit = place("usr/local/cuda-12.4/lib64/libnvrtc.so.12");
        let newer = place("usr/local/cuda-13.0/lib64/libnvrtc.so.13");
        let home = place("opt/cuda/lib64/libnvrtc.so.13");
        let pip = place("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
        let old_pip = place("usr/lib/python3.9/dist-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
        place("usr/lib/python3.9/dist-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.9");
        let variable = |name: &str| match name {
            "CUDA_HOME" => Some(folder.path().join("opt/cuda").into()),
            "VIRTUAL_ENV" => Some(folder.path().join("venv").into()),
            _ => None,
        };
        let around = Surroundings { variable: &variable, program: None, root: folder.path() };
        let found = NVRTC.candidates(&around);
        let loader = ["libnvrtc.so.13", "libnvrtc.so.12"].map(PathBuf::from);
        assert_eq!(found, [&loader[..], &[home, newer, toolkit, pip, old_pip]].concat());
    }

    #[test]
    fn an_environment_that_is_not_active_is_found_by_its_python() {
        let folder = Folder::new();
        let place = |path: &str| {
            let file = folder.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, b"").unwrap();
            file
        };
        let inside = |root: &str| {
            place(&format!("{root}/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13"))
        };
        let (started, on_path, behind) = (inside("started"), inside("on-path"), inside("behind"));
        let (program, real) = (place("started/bin/python3.12"), place("behind/bin/python3.12"));
        fs::create_dir_all(folder.path().join("on-path/bin")).unwrap();
        std::os::unix::fs::symlink(real, folder.path().join("on-path/bin/python3")).unwrap();
        let path = [folder.path().join("nowhere"), folder.path().join("on-path/bin")];
        let variable = |name: &str| (name == "PATH").then(|| std::env::join_paths(&path).unwrap());
        let find = |program: Option<PathBuf>| {
            let around = Surroundings { variable: &variable, program, root: folder.path() };
            NVRTC.candidates(&around).split_off(2)
        };
        assert_eq!(find(Some(program)), [&started, &on_path, &behind].map(Clone::clone));
        // A program that is no Python, and one that was found on PATH, tell nothing.
        assert_eq!(find(Some(folder.path().join("started/bin/ep"))), [on_path.clone(), behind.clone()]);
        assert_eq!(find(Some("python3".into())), [on_path, behind]);
    }

    #[test]
    fn only_what_is_named_is_tried() {
        let folder = Folder::new();
        let file = folder.path().join("mine.so");
        assert_eq!(NVRTC.files(Some(&file)), [file]);
        let inside = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"].map(|name| folder.path().join(name));
        assert_eq!(NVRTC.files(Some(folder.path())), inside);
    }
}

//! Kernels that were compiled together, on the fake driver: one module for all of them, whatever goes wrong meanwhile.

mod rig;

use ep_cuda::cache::Cache;
use ep_cuda::compiler::{Arch, Compiler, Spec};
use ep_cuda::device::CudaDevice;
use ep_cuda::kernel::{Function, Geometry, Loader};
use ep_cuda::ops::fill::Args;
use ep_cuda::warm;
use rig::{Rig, Setup, stream};
use std::fs;
use std::path::PathBuf;
use std::sync::Barrier;

/// A cache with one group of kernels, compiled together.
struct Warmed {
    folder: PathBuf,
    bundle: Vec<Spec>,
    arch: Arch,
}

impl Warmed {
    fn new(rig: &Rig, name: &str) -> Warmed {
        let folder = std::env::temp_dir().join(format!("ep-cuda-bundles-{name}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let arch = Arch::new(9, 0);
        let mut bundles = warm::bundles(arch, Some("fill")).unwrap();
        let warmed = Warmed { folder, bundle: bundles.swap_remove(0), arch };
        assert!(warmed.bundle.len() > 3);
        assert_eq!(warmed.compiler(rig).warm(&warmed.bundle, arch), Ok(true));
        warmed
    }

    fn compiler(&self, rig: &Rig) -> Compiler {
        Compiler::new(Cache::new(self.folder.to_str()), Some(rig.fake.path().to_owned()), None)
    }

    fn loader(&self, rig: &Rig, device: &CudaDevice) -> Loader {
        let context = device.context().unwrap().clone();
        Loader { context, compiler: self.compiler(rig).into(), arch: self.arch }
    }

    fn files(&self, kind: &str) -> Vec<PathBuf> {
        let files = fs::read_dir(self.folder.join("sm_90/nvrtc-13.0")).unwrap().map(|f| f.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|e| e == kind)).collect()
    }
}

impl Drop for Warmed {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).unwrap();
    }
}

#[test]
fn all_kernels_of_a_bundle_are_functions_of_one_module() {
    let rig = Rig::new(Setup::default());
    let warmed = Warmed::new(&rig, "module");
    let count = warmed.bundle.len();
    assert_eq!((warmed.files("cubin").len(), warmed.files("member").len()), (1, count));
    {
        let device = rig.device();
        let loader = warmed.loader(&rig, &device);
        rig.fake.fail(0, 0);
        let functions: Vec<_> =
            warmed.bundle.iter().map(|spec| Function::load(&loader, "fill", spec).unwrap()).collect();
        assert_eq!((rig.calls("cuModuleLoadData"), rig.calls("cuModuleGetFunction")), (1, count));
        let queue = stream(&device);
        for function in &functions {
            let args = Args { count: 0, dst: 0, src: 0, value: [0; 2] };
            // SAFETY: the kernel's argument, and no elements; the fake computes nothing.
            unsafe { function.launch(&queue, Geometry::linear(1, 32), &args) }.unwrap();
        }
        let log = rig.fake.log();
        for number in 0..count {
            let name = format!("(ep_fill_{number},");
            assert_eq!(log.iter().filter(|l| l.contains(&name)).count(), 1, "{name} {log:?}");
        }
        // Once it is loaded, the image is not read again: it may even be gone.
        fs::remove_file(&warmed.files("cubin")[0]).unwrap();
        let other = Loader { compiler: warmed.compiler(&rig).into(), ..loader };
        let again = other.compiler.code_unless(&warmed.bundle[1], warmed.arch, &|_| true).unwrap();
        assert_eq!((again.image, again.entry.as_str()), (None, "ep_fill_1"));
    }
    rig.assert_clean();
}

#[test]
fn threads_that_load_kernels_of_a_bundle_at_once_leave_one_module() {
    let rig = Rig::new(Setup::default());
    let warmed = Warmed::new(&rig, "threads");
    // Often enough that some find no module and are not the first to have one.
    for _ in 0..30 {
        {
            let device = rig.device();
            let loader = warmed.loader(&rig, &device);
            rig.fake.fail(0, 0);
            let together = Barrier::new(warmed.bundle.len());
            std::thread::scope(|scope| {
                for spec in &warmed.bundle {
                    scope.spawn(|| {
                        together.wait();
                        Function::load(&loader, "fill", spec).map(drop).unwrap();
                    });
                }
            });
            assert_eq!(rig.calls("cuModuleLoadData") - rig.calls("cuModuleUnload"), 1);
        }
        rig.assert_clean();
    }
}

#[test]
fn what_is_left_of_a_bundle_in_the_cache_is_enough() {
    for kind in ["cubin", "member"] {
        let rig = Rig::new(Setup::default());
        let warmed = Warmed::new(&rig, kind);
        {
            let device = rig.device();
            let loader = warmed.loader(&rig, &device);
            fs::File::options().write(true).open(&warmed.files(kind)[0]).unwrap().set_len(60).unwrap();
            for spec in &warmed.bundle {
                Function::load(&loader, "fill", spec).unwrap();
            }
        }
        rig.assert_clean();
        // Nothing is missing then, and nothing after the rest is removed and warmed anew.
        assert_eq!(warmed.compiler(&rig).warm(&warmed.bundle, warmed.arch), Ok(false), "{kind}");
        warmed.files("cubin").iter().for_each(|path| fs::remove_file(path).unwrap());
        let again = || warmed.compiler(&rig).warm(&warmed.bundle, warmed.arch);
        assert_eq!((again(), again()), (Ok(true), Ok(false)), "{kind}");
    }
}

#[test]
fn loading_out_of_a_bundle_fails_at_each_call_and_works_after_it() {
    let rig = Rig::new(Setup::default());
    let warmed = Warmed::new(&rig, "faults");
    let mut failed = 0;
    // The first time nothing fails, and all calls are counted.
    let mut calls = 0;
    for call in 0.. {
        {
            let device = rig.device();
            let loader = warmed.loader(&rig, &device);
            // Out of memory.
            rig.fake.fail(call, 2);
            let results: Vec<_> =
                warmed.bundle.iter().map(|s| Function::load(&loader, "fill", s).map(drop)).collect();
            calls = if call == 0 { rig.fake.log().len() } else { calls };
            rig.fake.fail(0, 0);
            failed += results.iter().filter(|r| r.is_err()).count();
            for spec in &warmed.bundle {
                Function::load(&loader, "fill", spec).unwrap();
            }
        }
        rig.assert_clean();
        if call as usize == calls {
            break;
        }
    }
    // Loading the module, and finding each function, at least.
    assert!(failed > warmed.bundle.len(), "{failed} of {calls}");
}

//! Controlling the fake: functions of the library, and [`Fake`], which finds and calls them.

use crate::world::{CAPTURE_MODE, CURRENT, Config, World, world};
use libloading::Library;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

/// How the fake is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Devices.
    pub devices: i32,
    /// 1: memory can be allocated in stream order.
    pub pools: i32,
    /// 1: devices reach each other's memory.
    pub peers: i32,
    /// Queries that find a piece of work pending.
    pub delay: i32,
    /// Memory of each device.
    pub memory_bytes: u64,
    /// 1: `CUDA_VISIBLE_DEVICES` chooses among the devices. Not so for most tests, whose machine may have it set.
    pub environment: i32,
    /// CUDA version: 1000 times the major and 10 times the minor number.
    pub version: i32,
    /// A device of which only number and identity are told; -1: none.
    pub broken: i32,
    /// A device of which nothing is told; -1: none.
    pub lost: i32,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            devices: 1,
            pools: 1,
            peers: 1,
            delay: 2,
            memory_bytes: 1 << 30,
            environment: 0,
            version: 13000,
            broken: -1,
            lost: -1,
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn fakecuda_reset(setup: Setup) -> i32 {
    CURRENT.set(0);
    CAPTURE_MODE.set(0);
    world(|w| {
        *w = World::new(Config {
            devices: setup.devices,
            pools: setup.pools != 0,
            peers: setup.peers != 0,
            memory_bytes: setup.memory_bytes,
            delay: setup.delay as u32,
            environment: setup.environment != 0,
            version: setup.version,
            broken: setup.broken,
            lost: setup.lost,
        });
        0
    })
}

#[unsafe(no_mangle)]
extern "C" fn fakecuda_fail(call: u64, code: i32) -> i32 {
    world(|w| {
        w.fail = (call > 0).then_some((call, code));
        w.calls = 0;
        w.log.clear();
        0
    })
}

#[unsafe(no_mangle)]
extern "C" fn fakecuda_make_context(device: i32) -> u64 {
    let mut handle = 0;
    world(|w| {
        handle = w.make_context(device);
        0
    });
    handle
}

#[unsafe(no_mangle)]
extern "C" fn fakecuda_end_context(handle: u64) -> i32 {
    world(|w| {
        w.end_context(handle);
        0
    })
}

#[unsafe(no_mangle)]
extern "C" fn fakecuda_make_current(handle: u64) -> i32 {
    CURRENT.set(handle);
    0
}

#[unsafe(no_mangle)]
extern "C" fn fakecuda_current() -> u64 {
    CURRENT.get()
}

/// Copies a text to `out` and returns its length; with no room, only that.
fn text(text: &str, out: *mut u8, capacity: usize) -> usize {
    if text.len() <= capacity {
        // SAFETY: the caller's buffer of that capacity.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), out, text.len()) };
    }
    text.len()
}

#[unsafe(no_mangle)]
extern "C" fn fakecuda_log(out: *mut u8, capacity: usize) -> usize {
    let mut length = 0;
    world(|w| {
        length = text(&w.log.join("\n"), out, capacity);
        0
    });
    length
}

#[unsafe(no_mangle)]
extern "C" fn fakecuda_leaks(out: *mut u8, capacity: usize) -> usize {
    let mut length = 0;
    world(|w| {
        length = text(&w.leaks().join("\n"), out, capacity);
        0
    });
    length
}

type ReadText = extern "C" fn(*mut u8, usize) -> usize;

/// The fake, opened as a driver is.
pub struct Fake {
    /// Stays: what its statics own would be lost with them.
    library: ManuallyDrop<Library>,
    path: PathBuf,
}

impl Fake {
    /// The library that was built with a test program: beside it, where dependencies lie.
    ///
    /// # Panics
    /// If it is not there.
    pub fn beside_the_test() -> Fake {
        let program = std::env::current_exe().expect("the test program has a path");
        let folder = program.parent().expect("a program lies in a folder");
        let places = [folder.to_owned(), folder.join("deps"), folder.join("..")];
        let file = places.iter().map(|p| p.join("libfakecuda.so")).find(|p| p.is_file());
        Fake::open(&file.expect("libfakecuda.so is built with ep-cuda's tests"))
    }

    /// The library in a file.
    ///
    /// # Panics
    /// If it cannot be loaded.
    pub fn open(path: &Path) -> Fake {
        // SAFETY: the fake, which does nothing when it is loaded.
        let library = unsafe { Library::new(path) }.expect("the fake loads");
        Fake { library: ManuallyDrop::new(library), path: path.to_owned() }
    }

    /// The file, for the provider's options `driver` and `nvrtc`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same as an option's text.
    ///
    /// # Panics
    /// If the path is no UTF-8.
    pub fn option(&self) -> &str {
        self.path.to_str().expect("a path in UTF-8")
    }

    fn symbol<T: Copy>(&self, name: &str) -> T {
        // SAFETY: each caller asks for the type that this library gives the function.
        *unsafe { self.library.get::<T>(name.as_bytes()) }.expect("the fake exports its controls")
    }

    /// Forgets everything and starts anew.
    pub fn reset(&self, setup: Setup) {
        self.symbol::<extern "C" fn(Setup) -> i32>("fakecuda_reset")(setup);
    }

    /// From now on counts calls from 1, empties the log, and lets call `number` fail with `code`; 0: none.
    pub fn fail(&self, number: u64, code: i32) {
        self.symbol::<extern "C" fn(u64, i32) -> i32>("fakecuda_fail")(number, code);
    }

    /// Makes a context of a device beside its primary one, as `cuCtxCreate` does, and returns its handle.
    pub fn make_context(&self, device: i32) -> u64 {
        self.symbol::<extern "C" fn(i32) -> u64>("fakecuda_make_context")(device)
    }

    /// Makes a context current on this thread, as `cuCtxSetCurrent` of another library does; 0: none.
    pub fn make_current(&self, handle: u64) {
        self.symbol::<extern "C" fn(u64) -> i32>("fakecuda_make_current")(handle);
    }

    /// The context that is current on this thread; 0: none.
    pub fn current(&self) -> u64 {
        self.symbol::<extern "C" fn() -> u64>("fakecuda_current")()
    }

    /// Ends such a context, as `cuCtxDestroy` does.
    pub fn end_context(&self, handle: u64) {
        self.symbol::<extern "C" fn(u64) -> i32>("fakecuda_end_context")(handle);
    }

    fn text(&self, name: &str) -> Vec<String> {
        let read = self.symbol::<ReadText>(name);
        let mut bytes = vec![0; read(std::ptr::null_mut(), 0)];
        // Nothing may be added between the two calls by a test that has the fake to itself.
        assert_eq!(read(bytes.as_mut_ptr(), bytes.len()), bytes.len());
        String::from_utf8(bytes).expect("the fake writes UTF-8").lines().map(str::to_owned).collect()
    }

    /// Every call since the last [`Fake::reset`] or [`Fake::fail`], as `name(arguments) = code`.
    pub fn log(&self) -> Vec<String> {
        self.text("fakecuda_log")
    }

    /// What was not given back.
    pub fn leaks(&self) -> Vec<String> {
        self.text("fakecuda_leaks")
    }
}

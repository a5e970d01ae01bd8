//! The options of an instance.

use crate::memory::Limits;
use crate::ops::softmax::Strategy;
use ep_core::provider::Options;
use ep_core::{Error, Result};
use std::path::PathBuf;

pub use crate::given::Contexts;

/// What an instance is told; [`Settings::default`] is what it does when it is told nothing.
///
/// | option | default | meaning |
/// |---|---|---|
/// | `visible` | all | devices in the order wanted, as in `CUDA_VISIBLE_DEVICES`: numbers, or `GPU-` or `MIG-` and an identity |
/// | `context` | `primary` | for each visible device the context in which it works: `primary`, or `current`, the one that is current on the thread that makes the provider, and that must outlive the provider's objects; addresses by [`Contexts::of_host`] |
/// | `memory_limit` | none | bytes of each device that are handed out or scratch memory of streams at a time at most |
/// | `cache_bytes` | all | bytes of freed memory that the pool of each device keeps for reuse at most |
/// | `sync_launches` | `false` | waits for each launch, so that an error names the one that caused it |
/// | `overlap_launches` | `true` | brings the blocks of a launch to the device while the launch before it ends, where both are able: compute capability 9.0 or later, CUDA 12.3 |
/// | `leave_current` | `true` | leaves the primary context current on a thread that had none, where the driver shows one device |
/// | `softmax` | by width | strategy of the softmax family, where it has room: `warp`, `block`, `cluster`, `shared`, `wide` |
/// | `tf32` | `false` | matrix products of f32 may round their factors to TF32, which is faster |
/// | `repeat_products` | `true` | keeps what cuBLASLt launches for operands that come again and again, and launches it without the library |
/// | `cache` | [`FOLDER_ENV`](crate::cache::FOLDER_ENV), else the user's cache folder | folder of compiled kernels, or `off` |
/// | `cache_limit` | none | bytes of compiled kernels in that folder at most; the oldest go first |
/// | `nvrtc` | [`LIBRARY_ENV`](crate::nvrtc::LIBRARY_ENV), else searched for | file of NVRTC, or the folder that holds it |
/// | `cublaslt` | [`LIBRARY_ENV`](crate::cublaslt::LIBRARY_ENV), else searched for | file of cuBLASLt, or the folder that holds it |
/// | `driver` | [`LIBRARY_ENV`](crate::driver::LIBRARY_ENV), else `libcuda.so.1` | file of the driver |
#[derive(Debug, Clone)]
pub struct Settings {
    /// `visible`
    pub visible: Option<String>,
    /// `context`
    pub context: Contexts,
    /// `memory_limit` and `cache_bytes`
    pub limits: Limits,
    /// `sync_launches`
    pub sync_launches: bool,
    /// `overlap_launches`
    pub overlap_launches: bool,
    /// `leave_current`
    pub leave_current: bool,
    /// `softmax`
    pub softmax: Option<Strategy>,
    /// `tf32`
    pub tf32: bool,
    /// `repeat_products`
    pub repeat_products: bool,
    /// `cache`
    pub cache: Option<String>,
    /// `cache_limit`
    pub cache_limit: Option<u64>,
    /// `nvrtc`
    pub nvrtc: Option<PathBuf>,
    /// `cublaslt`
    pub cublaslt: Option<PathBuf>,
    /// `driver`
    pub driver: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            visible: None,
            context: Contexts::default(),
            limits: Limits::default(),
            sync_launches: false,
            overlap_launches: true,
            leave_current: true,
            softmax: None,
            tf32: false,
            repeat_products: true,
            cache: None,
            cache_limit: None,
            nvrtc: None,
            cublaslt: None,
            driver: None,
        }
    }
}

impl Settings {
    /// Reads the options.
    ///
    /// # Errors
    /// `InvalidArgument` for an option that is not known or whose text means nothing.
    pub fn read(options: &Options) -> Result<Settings> {
        options.only(&[
            "visible",
            "context",
            "memory_limit",
            "cache_bytes",
            "sync_launches",
            "overlap_launches",
            "leave_current",
            "softmax",
            "tf32",
            "repeat_products",
            "cache",
            "cache_limit",
            "nvrtc",
            "cublaslt",
            "driver",
        ])?;
        let text = |name| options.get(name).map(str::to_owned);
        let softmax = options.get("softmax").map(str::parse::<Strategy>).transpose();
        Ok(Settings {
            visible: text("visible"),
            context: Contexts::read(options.get("context").unwrap_or(""))?,
            limits: Limits {
                memory_limit: options.parse("memory_limit", u64::MAX)?,
                cache_bytes: options.parse("cache_bytes", u64::MAX)?,
            },
            sync_launches: options.parse("sync_launches", false)?,
            overlap_launches: options.parse("overlap_launches", true)?,
            leave_current: options.parse("leave_current", true)?,
            softmax: softmax.map_err(|e: Error| e.context("option `softmax`"))?,
            tf32: options.parse("tf32", false)?,
            repeat_products: options.parse("repeat_products", true)?,
            cache: text("cache"),
            cache_limit: options.get("cache_limit").map(|_| options.parse("cache_limit", 0)).transpose()?,
            nvrtc: text("nvrtc").map(PathBuf::from),
            cublaslt: text("cublaslt").map(PathBuf::from),
            driver: text("driver").map(PathBuf::from),
        })
    }
}

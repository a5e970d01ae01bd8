//! The provider.

use crate::alloc::{CachingAllocator, DEFAULT_CACHE_BYTES};
use crate::device::CpuDevice;
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::kernels::parts;
use crate::kernels::stream;
use crate::ops;
use ep_core::provider::{Host, Options, Provider, Registrar};
use ep_core::{Error, Result};

/// An instance of the CPU provider.
///
/// | option | default | meaning |
/// |---|---|---|
/// | `isa` | [`ISA_ENV`](crate::isa::ISA_ENV), else the best there is | instruction-set level: `baseline`, `avx2`, `avx512` or `amx` |
/// | `memory_limit` | none | bytes that the allocator holds from the system at most, rounding and kept blocks included |
/// | `cache_bytes` | 1 GiB | bytes of freed blocks that the allocator keeps for reuse at most |
pub struct CpuProvider {
    host: Host,
    isa: Isa,
    memory_limit: Option<usize>,
    cache_bytes: usize,
}

// SAFETY: memory is the pool's until it is freed, work is done when a call returns, and kernels stay in their operands.
unsafe impl Provider for CpuProvider {
    type Device = CpuDevice;
    const NAME: &'static str = "cpu";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "EP project";

    fn create(host: Host, options: &Options) -> Result<Self> {
        options.only(&["isa", "memory_limit", "cache_bytes"])?;
        let isa = match options.get("isa") {
            Some(word) => word.parse::<Isa>().map_err(|e| e.context("option `isa`"))?,
            None => Isa::detect()?,
        };
        let memory_limit = match options.get("memory_limit") {
            Some(_) => Some(options.parse("memory_limit", 0)?),
            None => None,
        };
        stream::configure()?;
        #[cfg(target_arch = "x86_64")]
        parts::configure()?;
        let cache_bytes = options.parse("cache_bytes", DEFAULT_CACHE_BYTES)?;
        tracing::debug!(%isa, ?memory_limit, cache_bytes, "the CPU provider starts");
        Ok(CpuProvider { host, isa, memory_limit, cache_bytes })
    }

    fn device_count(&self) -> Result<u32> {
        Ok(1)
    }

    fn open_device(&self, index: u32) -> Result<CpuDevice> {
        if index != 0 {
            return Err(Error::not_found(format!("device {index}: there is one CPU, device 0")));
        }
        let allocator = CachingAllocator::new(self.memory_limit).with_cache_bytes(self.cache_bytes);
        Ok(CpuDevice::new(self.host.clone(), self.isa, allocator))
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        ops::register(registrar.device_kind(CpuDevice::KIND))
    }
}

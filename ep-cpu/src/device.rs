//! The CPU as a device, and its memory as an allocator.

use crate::alloc::CachingAllocator;
use crate::isa::{Isa, Level};
use crate::kernels::memcpy::{MemcpyArgs, memcpy};
use ep_core::parallel::Parallel;
use ep_core::provider::inline::{CPU_UUID, Copier, HOST_SPACE, InlineEvent, InlineStream};
use ep_core::provider::{
    Allocator, Attribute, Device, DeviceInfo, Host, MemoryKind, MemoryStats, StreamOptions,
};
use ep_core::{Error, Result, Scalar};
use std::fs;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::Arc;

/// The machine's CPU. Streams are inline: a launch has computed when it returns.
///
/// | attribute | type | meaning |
/// |---|---|---|
/// | `isa` | text | the instruction-set level that kernels use |
/// | `avx2`, `avx512f`, `amx_bf16` | bool | what the CPU and the system offer, used or not |
/// | `threads` | u64 | threads that the host lends, the caller's included |
/// | `l2_bytes`, `l3_bytes` | u64 | cache sizes as the first core sees them; 0: unknown |
pub struct CpuDevice {
    host: Host,
    isa: Isa,
    allocator: Arc<CachingAllocator>,
    copier: Arc<HostCopier>,
}

/// Copies with the kernel of `memcpy`: on the host's threads, past the cache where the data is large.
struct HostCopier {
    host: Host,
    isa: Isa,
}

impl Copier for HostCopier {
    unsafe fn copy(&self, dst: *mut u8, src: *const u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { memcpy(self.isa, &self.host, &MemcpyArgs { dst, src, bytes }) }
    }
}

impl CpuDevice {
    /// The device kind.
    pub const KIND: &'static str = "cpu";

    pub(crate) fn new(host: Host, isa: Isa, allocator: CachingAllocator) -> CpuDevice {
        let copier = Arc::new(HostCopier { host: host.clone(), isa });
        CpuDevice { host, isa, allocator: Arc::new(allocator), copier }
    }

    /// The host's threads.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// The instruction-set level of its kernels.
    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }
}

impl Device for CpuDevice {
    type Stream = InlineStream;
    type Event = InlineEvent;
    type Allocator = CpuAllocator;

    const PREPACKS: bool = true;

    fn info(&self) -> DeviceInfo {
        let best = Isa::available().last().map_or(Level::Baseline, |isa| isa.level());
        let has = |level| Attribute::Scalar(Scalar::Bool(best >= level));
        let number = |n: u64| Attribute::Scalar(Scalar::U64(n));
        let attributes = [
            ("isa", Attribute::Text(self.isa.to_string())),
            ("threads", number(self.host.threads() as u64)),
            ("avx2", has(Level::Avx2)),
            ("avx512f", has(Level::Avx512)),
            ("amx_bf16", has(Level::Amx)),
            ("l2_bytes", number(cache_bytes(2).unwrap_or(0))),
            ("l3_bytes", number(cache_bytes(3).unwrap_or(0))),
        ];
        DeviceInfo {
            kind: Self::KIND.into(),
            name: cpu_name(),
            uuid: CPU_UUID,
            memory_bytes: memory_bytes().unwrap_or(0),
            inline: true,
            memory_space: HOST_SPACE.into(),
            reads: vec![HOST_SPACE.into()],
            writes: vec![HOST_SPACE.into()],
            attributes: attributes.into_iter().map(|(name, value)| (name.into(), value)).collect(),
            ..DeviceInfo::default()
        }
    }

    fn create_stream(&self, _: StreamOptions) -> Result<InlineStream> {
        Ok(InlineStream::with_copier(self.copier.clone()))
    }

    fn create_event(&self) -> Result<InlineEvent> {
        Ok(InlineEvent)
    }

    fn open_allocator(&self, kind: MemoryKind) -> Result<CpuAllocator> {
        match kind {
            // All host memory is as near to the CPU as any other.
            MemoryKind::Device | MemoryKind::PinnedHost => Ok(CpuAllocator(self.allocator.clone())),
        }
    }
}

/// The device's [`CachingAllocator`]; all allocators of a device share it.
pub struct CpuAllocator(Arc<CachingAllocator>);

impl Allocator for CpuAllocator {
    type Stream = InlineStream;

    fn alloc(&self, bytes: u64, alignment: u64, _: Option<&InlineStream>) -> Result<u64> {
        // A size that no usize holds is one that no address space does.
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Ok(self.0.allocate(size(bytes), size(alignment))?.as_ptr().expose_provenance() as u64)
    }

    fn free(&self, address: u64, _: u64) -> Result<()> {
        let block = usize::try_from(address).ok().and_then(|a| NonNull::new(with_exposed_provenance_mut(a)));
        self.0.deallocate(block.ok_or_else(|| Error::invalid(format!("free of address {address:#x}")))?)
    }

    fn stats(&self) -> MemoryStats {
        let s = self.0.stats();
        MemoryStats {
            in_use_bytes: s.in_use_bytes as u64,
            in_use_blocks: s.in_use_blocks as u64,
            reserved_bytes: s.reserved_bytes as u64,
            peak_in_use_bytes: s.peak_in_use_bytes as u64,
            total_allocs: s.alloc_count,
        }
    }

    fn trim(&self) -> Result<()> {
        self.0.trim();
        Ok(())
    }
}

/// The product's name where the system tells it, else the architecture.
fn cpu_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    match model_name(&text) {
        Some(name) => name.to_owned(),
        None => format!("{} CPU", std::env::consts::ARCH),
    }
}

fn model_name(cpuinfo: &str) -> Option<&str> {
    let fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let mut names = fields.filter(|(key, _)| key.trim() == "model name").map(|(_, value)| value.trim());
    names.find(|name| !name.is_empty())
}

/// Physical memory of the machine in bytes.
#[cfg(unix)]
fn memory_bytes() -> Option<u64> {
    // SAFETY: the call takes a number and touches no memory of ours.
    let ask = |what| u64::try_from(unsafe { libc::sysconf(what) }).ok();
    ask(libc::_SC_PHYS_PAGES)?.checked_mul(ask(libc::_SC_PAGESIZE)?)
}

#[cfg(not(unix))]
fn memory_bytes() -> Option<u64> {
    None
}

/// Size in bytes of the first core's data or unified cache of a level.
fn cache_bytes(level: u32) -> Option<u64> {
    let read = |index: u32, file: &str| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{file}");
        fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
    };
    // The folders are numbered without gaps.
    let index = (0..)
        .map_while(|i| read(i, "level").map(|l| (i, l)))
        .find(|(i, l)| *l == level.to_string() && read(*i, "type").is_some_and(|t| t != "Instruction"))?
        .0;
    parse_size(&read(index, "size")?)
}

/// Parses `2048K` and the like.
fn parse_size(text: &str) -> Option<u64> {
    let (digits, unit) = match text.strip_suffix('K') {
        Some(digits) => (digits, 1 << 10),
        None => match text.strip_suffix('M') {
            Some(digits) => (digits, 1 << 20),
            None => (text, 1),
        },
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes_are_read_from_the_systems_texts() {
        let text = "processor\t: 0\nmodel\t\t: 207\nmodel name\t: Some CPU @ 2.0GHz\nmodel name\t: other\n";
        assert_eq!(model_name(text), Some("Some CPU @ 2.0GHz"));
        assert_eq!(model_name("Processor : ARM\nmodel name :\n"), None);
        assert_eq!(
            (parse_size("2048K"), parse_size("32M"), parse_size("512")),
            (Some(2 << 20), Some(32 << 20), Some(512))
        );
        assert_eq!((parse_size(""), parse_size("K"), parse_size("99999999999999999999")), (None, None, None));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_has_a_name_and_memory() {
        assert!(!cpu_name().is_empty());
        assert!(memory_bytes().is_some_and(|n| n > 1 << 20));
    }
}

//! A GPU.

use crate::compiler::{Arch, Compiler};
use crate::context::{Context, Fleet, Habits};
use crate::cublaslt::{CublasLt, Handle};
use crate::driver::{CuContext, CuDevice, Driver, constant};
use crate::event::CudaEvent;
use crate::given;
use crate::kernel::Loader;
use crate::memory::CudaAllocator;
use crate::ops::softmax::Strategy;
use crate::space::{self, KIND};
use crate::stream::CudaStream;
use ep_core::provider::{
    Attribute, Device, DeviceInfo, ForeignStreams, Graphs, MemoryKind, StreamOptions, Timing,
};
use ep_core::{Error, Result, Scalar};
use once_cell::sync::OnceCell;
use std::ffi::{CStr, c_char};
use std::path::PathBuf;
use std::sync::Arc;

/// What the driver says of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Properties {
    /// The product.
    pub name: String,
    /// Its identity, of the device in a context of the host another one.
    pub uuid: [u8; 16],
    /// Its PCI address, such as `0000:1b:00.0`.
    pub pci: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// Compute capability.
    pub arch: Arch,
    /// Multiprocessors.
    pub sm_count: u32,
    /// Level-2 cache.
    pub l2_bytes: u64,
    /// Shared memory that a block can have.
    pub shared_bytes: u32,
    /// Whether memory can be allocated in stream order.
    pub memory_pools: bool,
    /// Whether its memory is the host's.
    pub integrated: bool,
}

impl Properties {
    /// Asks the driver.
    ///
    /// # Errors
    /// The driver's; `Unsupported` for a device without one address space for host and devices.
    pub fn of(driver: &Driver, device: CuDevice) -> Result<Properties> {
        let number = |attribute| -> Result<u64> {
            let mut value = 0;
            // SAFETY: an ordinal of this driver and a valid out-pointer.
            unsafe { driver.cuDeviceGetAttribute(&mut value, attribute, device) }?;
            u64::try_from(value)
                .map_err(|_| Error::internal(format!("device attribute {attribute} is {value}")))
        };
        let text = |read: &dyn Fn(*mut c_char, i32) -> Result<()>| -> Result<String> {
            let mut buffer = [0u8; 256];
            read(buffer.as_mut_ptr().cast(), buffer.len() as i32)?;
            let text = CStr::from_bytes_until_nul(&buffer)
                .map_err(|_| Error::internal("the driver's text does not end"))?;
            Ok(text.to_string_lossy().into_owned())
        };
        let uuid = identity(driver, device)?;
        let mut memory = 0;
        // SAFETY: an ordinal of this driver and a valid out-pointer.
        unsafe { driver.cuDeviceTotalMem(&mut memory, device) }?;
        // SAFETY: an ordinal of this driver, and a buffer of the length that is said.
        let name = text(&|to, length| Ok(unsafe { driver.cuDeviceGetName(to, length, device) }?))?;
        // SAFETY: as above.
        let pci = text(&|to, length| Ok(unsafe { driver.cuDeviceGetPCIBusId(to, length, device) }?))?;
        if number(constant::ATTRIBUTE_UNIFIED_ADDRESSING)? == 0 {
            return Err(Error::unsupported(format!(
                "{name}: without unified addressing; no driver since 2010 lacks it"
            )));
        }
        let major = number(constant::ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32;
        let minor = number(constant::ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32;
        Ok(Properties {
            name,
            uuid,
            pci: pci.to_ascii_lowercase(),
            memory_bytes: memory as u64,
            arch: Arch::new(major, minor),
            sm_count: number(constant::ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
            l2_bytes: number(constant::ATTRIBUTE_L2_CACHE_SIZE)?,
            shared_bytes: number(constant::ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32,
            memory_pools: number(constant::ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0,
            integrated: number(constant::ATTRIBUTE_INTEGRATED)? != 0,
        })
    }
}

/// The identity of a device.
pub(crate) fn identity(driver: &Driver, device: CuDevice) -> Result<[u8; 16]> {
    let mut uuid = [0; 16];
    // SAFETY: an ordinal of this driver and a valid out-pointer.
    unsafe { driver.cuDeviceGetUuid(&mut uuid, device) }?;
    Ok(uuid)
}

/// What the devices of an instance share.
pub(crate) struct Shared {
    pub(crate) driver: Arc<Driver>,
    pub(crate) compiler: Arc<Compiler>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) habits: Habits,
    pub(crate) sync_launches: bool,
    pub(crate) softmax: Option<Strategy>,
    pub(crate) matmul: Products,
    /// Memory spaces of all devices that the driver tells of, with their numbers.
    pub(crate) spaces: Vec<(CuDevice, String)>,
}

/// What the options say about matrix products, and the library once it is open.
#[derive(Default)]
pub(crate) struct Products {
    pub(crate) tf32: bool,
    pub(crate) repeats: bool,
    pub(crate) file: Option<PathBuf>,
    pub(crate) library: OnceCell<Arc<CublasLt>>,
}

/// A GPU. Its primary context is retained at first use, so listing devices costs none; with option `context` it works in one
/// of the host.
///
/// | attribute | type | meaning |
/// |---|---|---|
/// | `compute_capability` | u64 | ten times the major and the minor number: 90 |
/// | `sm_count` | u64 | multiprocessors |
/// | `l2_bytes` | u64 | level-2 cache |
/// | `shared_bytes` | u64 | shared memory that a block can have |
/// | `memory_pools` | bool | memory can be allocated in stream order |
/// | `integrated` | bool | its memory is the host's |
/// | `driver_cuda` | u64 | the driver's CUDA version: 1000 times the major and 10 times the minor number |
/// | `ordinal` | u64 | the driver's number of the device in this process, as other libraries count |
pub struct CudaDevice {
    shared: Arc<Shared>,
    ordinal: CuDevice,
    /// The context that the host gives.
    given: Option<CuContext>,
    properties: Properties,
    reached: Vec<String>,
    context: OnceCell<Arc<Context>>,
    cublaslt: OnceCell<Arc<Handle>>,
}

impl CudaDevice {
    pub(crate) fn new(
        shared: Arc<Shared>,
        ordinal: CuDevice,
        given: Option<CuContext>,
    ) -> Result<CudaDevice> {
        let mut properties = Properties::of(&shared.driver, ordinal)?;
        properties.uuid = given::identity(properties.uuid, given);
        let reached = reached(&shared, ordinal, &properties.uuid)?;
        Ok(CudaDevice {
            shared,
            ordinal,
            given,
            properties,
            reached,
            context: OnceCell::new(),
            cublaslt: OnceCell::new(),
        })
    }

    /// What the driver says of it.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Its context: the primary one, or the one that the host gives.
    ///
    /// # Errors
    /// `InvalidArgument` for a context of another device; the driver's. A later call tries again.
    pub fn context(&self) -> Result<&Arc<Context>> {
        self.context.get_or_try_init(|| {
            let Shared { driver, fleet, habits, .. } = &*self.shared;
            let place = (self.ordinal, self.given);
            Context::open(driver, place, &self.properties, *habits, fleet)
                .map_err(|e| e.context(format!("device {} ({})", self.ordinal, self.properties.name)))
        })
    }

    /// A stream that queues onto that of a handle.
    ///
    /// # Safety
    /// As for [`CudaStream::adopt`].
    unsafe fn adopt(&self, handle: u64) -> Result<CudaStream> {
        let Shared { fleet, sync_launches, .. } = &*self.shared;
        // SAFETY: the caller's promise.
        unsafe { CudaStream::adopt(self.context()?.clone(), fleet.clone(), handle, *sync_launches) }
    }

    /// The strategy that the options force on softmax.
    pub(crate) fn softmax_strategy(&self) -> Option<Strategy> {
        self.shared.softmax
    }

    /// Whether matrix products of f32 may lose bits of their factors.
    pub(crate) fn tf32(&self) -> bool {
        self.shared.matmul.tf32
    }

    /// Whether launches of matrix products may be kept.
    pub(crate) fn repeats_products(&self) -> bool {
        self.shared.matmul.repeats
    }

    /// cuBLASLt on this device.
    ///
    /// # Errors
    /// `Unavailable` where there is none; the library's. A later call tries again.
    pub(crate) fn cublaslt(&self) -> Result<Arc<Handle>> {
        let handle = self.cublaslt.get_or_try_init(|| {
            let Products { file, library, .. } = &self.shared.matmul;
            let library = library.get_or_try_init(|| CublasLt::open(file.as_deref()).map(Arc::new))?;
            Handle::new(library.clone(), self.context()?.clone()).map(Arc::new)
        })?;
        Ok(handle.clone())
    }

    /// What loads its kernels.
    pub(crate) fn loader(&self) -> Result<Loader> {
        let (context, compiler) = (self.context()?.clone(), self.shared.compiler.clone());
        Ok(Loader { context, compiler, arch: self.properties.arch })
    }
}

/// Spaces that a device's kernels and copies reach: its own, pinned memory, and the memory of peers.
fn reached(shared: &Shared, ordinal: CuDevice, uuid: &[u8; 16]) -> Result<Vec<String>> {
    let mut spaces = vec![space::device(uuid), space::pinned(uuid)];
    for (peer, space) in shared.spaces.iter().filter(|(peer, _)| *peer != ordinal) {
        let mut able = 0;
        // SAFETY: ordinals of this driver and a valid out-pointer.
        unsafe { shared.driver.cuDeviceCanAccessPeer(&mut able, ordinal, *peer) }?;
        if able != 0 {
            spaces.push(space.clone());
        }
    }
    Ok(spaces)
}

impl Device for CudaDevice {
    type Stream = CudaStream;
    type Event = CudaEvent;
    type Allocator = CudaAllocator;

    const TIMING: Option<Timing<Self>> = Some(CudaEvent::elapsed);

    const GRAPHS: Option<Graphs<Self>> = Some(crate::graph::GRAPHS);

    const FOREIGN_STREAMS: Option<ForeignStreams<Self>> = Some(ForeignStreams {
        kind: "CUstream",
        native: |stream| Ok(stream.share().raw()),
        adopt: CudaDevice::adopt,
    });

    fn info(&self) -> DeviceInfo {
        let p = &self.properties;
        let number = |n: u64| Attribute::Scalar(Scalar::U64(n));
        let truth = |b| Attribute::Scalar(Scalar::Bool(b));
        let attributes = [
            ("compute_capability", number(p.arch.number().into())),
            ("sm_count", number(p.sm_count.into())),
            ("l2_bytes", number(p.l2_bytes)),
            ("shared_bytes", number(p.shared_bytes.into())),
            ("memory_pools", truth(p.memory_pools)),
            ("integrated", truth(p.integrated)),
            ("driver_cuda", number(self.shared.driver.version() as u64)),
            ("ordinal", number(self.ordinal as u64)),
        ];
        DeviceInfo {
            kind: KIND.into(),
            name: p.name.clone(),
            uuid: p.uuid,
            pci: p.pci.clone(),
            memory_bytes: p.memory_bytes,
            inline: false,
            memory_space: space::device(&p.uuid),
            reads: self.reached.clone(),
            writes: self.reached.clone(),
            attributes: attributes.into_iter().map(|(name, value)| (name.into(), value)).collect(),
        }
    }

    fn create_stream(&self, options: StreamOptions) -> Result<CudaStream> {
        let Shared { fleet, sync_launches, .. } = &*self.shared;
        CudaStream::create(self.context()?.clone(), fleet.clone(), options.priority, *sync_launches)
    }

    fn create_event(&self) -> Result<CudaEvent> {
        CudaEvent::new(self.context()?.clone())
    }

    fn open_allocator(&self, kind: MemoryKind) -> Result<CudaAllocator> {
        Ok(CudaAllocator::new(self.context()?.clone(), kind))
    }
}

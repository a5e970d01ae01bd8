//! Two devices: copies from one to the other beside the driver's own, and work of one that waits for the other's.

use crate::bare::Bare;
use crate::operands::settled;
use crate::timing;
use ep_core::primitive::{Memcpy, MemcpyArgs, MemcpyDesc, MemcpyKind, Memset, MemsetArgs, MemsetDesc};
use ep_core::provider::{Device as _, StreamOptions};
use ep_core::{DType, Error, Result, Scalar};
use ep_cuda::settings::Settings;
use ep_cuda::stream::CudaStream;
use ep_registry::{Device, Event, Runtime, Stream};

/// Bytes of the copies that are timed together.
const TOGETHER: u64 = 256 << 20;
/// How often one device waits for the other.
const ROUNDS: u8 = 20;
/// Sets of the memory before the one that is waited for, so that it is late.
const BEFORE: usize = 64;

/// A device with a stream that the host and the driver's own calls use alike.
pub struct Side<'a> {
    device: &'a Device,
    /// Goes before the one that it was made of.
    stream: Stream,
    own: CudaStream,
    bare: Bare,
}

/// Microseconds of a copy.
#[derive(Debug, Clone, Copy)]
pub struct Copied {
    /// Through the provider.
    pub us: f64,
    /// By `cuMemcpyPeerAsync`.
    pub bare_us: f64,
}

impl<'a> Side<'a> {
    /// Opens a device.
    ///
    /// # Errors
    /// Those of a machine without CUDA; the provider's.
    pub fn new(device: &'a Device, settings: &Settings) -> Result<Side<'a>> {
        let bare = Bare::of(settings, device)?;
        let own = bare.device.create_stream(StreamOptions::default())?;
        // SAFETY: a live stream of the device, which outlives the one that is made of it.
        let stream = unsafe { device.adopt_stream("CUstream", own.raw().raw()) }?;
        Ok(Side { device, stream, own, bare })
    }
}

/// Both ends of what is measured.
pub struct Pair<'a> {
    runtime: &'a Runtime,
    from: Side<'a>,
    to: Side<'a>,
}

impl<'a> Pair<'a> {
    /// Work that goes from one device to another.
    ///
    /// # Errors
    /// `InvalidArgument` for one device; `Unsupported` where they do not reach each other's memory.
    pub fn new(runtime: &'a Runtime, from: Side<'a>, to: Side<'a>) -> Result<Pair<'a>> {
        let (a, b) = (from.device, to.device);
        if a == b {
            return Err(Error::invalid(format!("{} twice: name another device than --device", a.name())));
        }
        if !a.info().writes.contains(&b.info().memory_space)
            || !b.info().reads.contains(&a.info().memory_space)
        {
            return Err(Error::unsupported(format!(
                "{} and {} do not reach each other's memory, so copies between them go through the host; \
                 `nvidia-smi topo -p2p rw` shows which devices do",
                a.name(),
                b.name()
            )));
        }
        Ok(Pair { runtime, from, to })
    }

    /// Times copies of so many bytes each, and compares what arrives.
    ///
    /// # Errors
    /// `OutOfMemory`; `Internal` where something else arrives; the provider's.
    pub fn copies(&self, bytes: u64) -> Result<Copied> {
        let Pair { from, to, .. } = self;
        let size = usize::try_from(bytes).map_err(|_| Error::invalid(format!("{bytes} bytes: too many")))?;
        let count = (TOGETHER / bytes.max(1)).clamp(1, 16) as usize;
        let src = from.device.upload(&vec![0x5au8; size])?;
        let mut dst = to.device.upload(&vec![0u8; size])?;
        let us = timing::time(&from.stream, count, || {
            (0..count).try_for_each(|_| from.stream.copy(&src, &mut dst))
        })?;
        arrived(&dst.download()?, 0x5a, "a copy")?;
        dst.upload(&vec![0u8; size])?;
        let (context, peer) = (from.bare.device.context()?, to.bare.device.context()?);
        let bare_us = timing::time(&from.stream, count, || {
            let _current = context.enter()?;
            (0..count).try_for_each(|_| {
                let (dst, src, stream) = (dst.address(), src.address(), from.own.raw());
                // SAFETY: whole buffers, which nothing else uses until `time` has waited; live contexts.
                let queued = unsafe {
                    context.driver().cuMemcpyPeerAsync(dst, peer.raw(), src, context.raw(), size, stream)
                };
                Ok(queued?)
            })
        })?;
        from.stream.sync()?;
        arrived(&dst.download()?, 0x5a, "cuMemcpyPeerAsync")?;
        Ok(Copied { us, bare_us })
    }

    /// Has the second device wait for events of the first, and read what was written before them; how often.
    ///
    /// # Errors
    /// `Internal` where it reads something else; the provider's.
    pub fn waits(&self, bytes: u64) -> Result<u8> {
        let Pair { runtime, from, to } = self;
        let size = usize::try_from(bytes).map_err(|_| Error::invalid(format!("{bytes} bytes: too many")))?;
        let set = runtime.primitive::<Memset>(from.device, MemsetDesc::new())?;
        let copy = runtime.primitive::<Memcpy>(to.device, MemcpyDesc::new(MemcpyKind::DEVICE_TO_DEVICE))?;
        let x = from.device.alloc(DType::U8, size)?;
        let y = to.device.upload(&vec![0u8; size])?;
        let event = Event::new();
        for round in 1..=ROUNDS {
            // Raw launches: the host does not know what they use, so that only the event orders them.
            let queue = || {
                // SAFETY: whole buffers, which live until both streams are done. The second device reads behind the event, and the
                // first one writes again only when that is done.
                unsafe {
                    for value in std::iter::repeat_n(!round, BEFORE).chain([round]) {
                        let value = Scalar::U64(value.into());
                        set.launch_raw(&from.stream, &MemsetArgs::new(bytes as i64, value, x.address()))?;
                    }
                    from.stream.record(&event)?;
                    to.stream.wait(&event)?;
                    copy.launch_raw(&to.stream, &MemcpyArgs::new(bytes as i64, x.address(), y.address()))
                }
            };
            settled(&from.stream, || settled(&to.stream, queue))?;
            arrived(&y.download()?, round, "work behind an event of the other device")?;
        }
        Ok(ROUNDS)
    }
}

/// Whether all bytes are what they should be.
fn arrived(found: &[u8], wanted: u8, what: &str) -> Result<()> {
    match found.iter().position(|byte| *byte != wanted) {
        None => Ok(()),
        Some(at) => {
            Err(Error::internal(format!("{what}: byte {at} is {:#04x}, not {wanted:#04x}", found[at])))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Alone, Setup};
    use ep_core::Code;

    fn pair<'a>(runtime: &'a Runtime, settings: &Settings, names: [&str; 2]) -> Result<Pair<'a>> {
        let [from, to] = names.map(|name| Side::new(runtime.device(name).unwrap(), settings).unwrap());
        Pair::new(runtime, from, to)
    }

    #[test]
    fn copies_and_waits_go_both_ways() {
        let alone = Alone::new(Setup { devices: 2, ..Setup::default() });
        {
            let runtime = alone.runtime(&[]);
            for names in [["cuda:0", "cuda:1"], ["cuda:1", "cuda:0"]] {
                let pair = pair(&runtime, &alone.settings(), names).unwrap();
                alone.fake.fail(0, 0);
                let copied = pair.copies(1 << 20).unwrap();
                assert!(copied.us > 0.0 && copied.bare_us > 0.0, "{copied:?}");
                // As many of ours as of the driver's own, one after the other on one stream.
                let log = alone.fake.log();
                let copies: Vec<_> = log.iter().filter(|l| l.starts_with("cuMemcpyPeerAsync(")).collect();
                let (ours, bare) = copies.split_at(copies.len() / 2);
                assert!(ours.len() > 16 && ours == bare, "{copies:?}");
                alone.fake.fail(0, 0);
                assert_eq!(pair.waits(4096), Ok(ROUNDS));
                assert_eq!(alone.calls("cuStreamWaitEvent"), usize::from(ROUNDS));
                assert_eq!(
                    alone.calls("cuEventSynchronize"),
                    0,
                    "the host does not wait in the device's place"
                );
            }
        }
        assert_eq!(alone.fake.leaks(), [""; 0]);
    }

    #[test]
    fn what_cannot_be_measured_is_told() {
        let alone = Alone::new(Setup { devices: 2, peers: 0, ..Setup::default() });
        let runtime = alone.runtime(&[]);
        let refused = |names| pair(&runtime, &alone.settings(), names).map(drop).unwrap_err();
        let error = refused(["cuda:0", "cuda:1"]);
        assert!(error.code() == Code::Unsupported && error.message().contains("nvidia-smi topo"), "{error}");
        let error = refused(["cuda:1", "cuda:1"]);
        assert!(error.code() == Code::InvalidArgument && error.message().contains("cuda:1 twice"), "{error}");
    }

    #[test]
    fn bytes_that_are_wrong_are_found() {
        assert_eq!(arrived(&[7, 7], 7, "a copy"), Ok(()));
        assert_eq!(arrived(&[7, 8], 7, "a copy").unwrap_err().message(), "a copy: byte 1 is 0x08, not 0x07");
    }
}

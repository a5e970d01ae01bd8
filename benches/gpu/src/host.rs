//! What a launch costs the host: through the provider's plugin, and by the driver alone with the same kernel.

use crate::bare::Bare;
use crate::timing::median;
use ep_core::primitive::{Fill, FillArgs, FillDesc};
use ep_core::provider::{Device as _, StreamOptions};
use ep_core::{DType, Error, Result, Scalar};
use ep_cuda::cache::Cache;
use ep_cuda::compiler::{Compiler, Spec};
use ep_cuda::device::CudaDevice;
use ep_cuda::driver::{CuFunction, CuModule, Driver};
use ep_cuda::graph::GraphExec;
use ep_cuda::kernel::{Function, Geometry, Loader};
use ep_cuda::ops::fill;
use ep_cuda::settings::Settings;
use ep_cuda::stream::CudaStream;
use ep_cuda::warm;
use ep_registry::{Device, Runtime};
use std::time::Instant;

/// Launches that are timed together: fewer than a stream's queue holds, so that the device is not waited for.
pub const BURST: usize = 500;
const BURSTS: usize = 40;
/// Bursts before the first that counts: half a second, as processors that were idle take that long to reach their clock. The
/// first bursts of a process took up to 1.4 times as long as its later ones.
const WARM_BURSTS: usize = if cfg!(test) { 1 } else { 250 };
const GRAPH: usize = 20;

/// The kernel that fills elements of four bytes, on a device of its own.
struct FillKernel {
    device: CudaDevice,
    loader: Loader,
    spec: Spec,
}

impl FillKernel {
    fn new(bare: Bare) -> Result<FillKernel> {
        let Bare { device, compiler } = bare;
        let arch = device.properties().arch;
        let loader = Loader { context: device.context()?.clone(), compiler, arch };
        let fills = warm::kernels(arch, Some("fill"))?;
        let of_four = |s: &Spec| s.macros.iter().any(|(name, value)| *name == "EP_SIZE" && value == "4");
        let spec = fills.into_iter().find(of_four);
        let spec = spec.ok_or_else(|| Error::internal("no kernel fills elements of four bytes"))?;
        Ok(FillKernel { device, loader, spec })
    }

    /// Alone in its image and by its own name, as the bare program expects it, whatever the cache has. Needs NVRTC.
    fn code(&self) -> Result<Vec<u8>> {
        let nvrtc = Some(self.loader.compiler.nvrtc()?.path().to_owned());
        let compiler = Compiler::new(Cache::new(Some("off")), nvrtc, None);
        let code = compiler.code(&self.spec, self.loader.arch)?;
        code.image.ok_or_else(|| Error::internal("code without an image"))
    }

    fn stream(&self) -> Result<CudaStream> {
        self.device.create_stream(StreamOptions::default())
    }

    /// The kernel as the driver launches it.
    fn loaded(&self, dst: u64) -> Result<Loaded<'_>> {
        let driver = self.loader.context.driver();
        let (code, stream) = (self.code()?, self.stream()?);
        let _current = self.loader.context.enter()?;
        let (mut module, mut function) = (CuModule::NULL, CuFunction::NULL);
        // SAFETY: a whole image, a name that ends, valid out-pointers; the context is current.
        unsafe {
            driver.cuModuleLoadData(&mut module, code.as_ptr().cast())?;
            driver.cuModuleGetFunction(&mut function, module, c"ep_fill".as_ptr())?;
        }
        let args = fill::Args { count: 4, dst, src: 0, value: [0; 2] };
        Ok(Loaded { driver, module, function, stream, args })
    }

    /// A graph of [`GRAPH`] launches.
    fn graph(&self, stream: &CudaStream, dst: u64) -> Result<GraphExec> {
        let function = Function::load(&self.loader, "fill", &self.spec)?;
        stream.begin_capture()?;
        for _ in 0..GRAPH {
            let args = fill::Args { count: 4, dst, src: 0, value: [0; 2] };
            // SAFETY: the kernel of this argument, and memory of four elements.
            unsafe { function.launch(stream, Geometry::linear(1, 256), &args) }?;
        }
        stream.end_capture()?.instantiate()
    }
}

/// A kernel that is launched with nothing around the driver's call.
struct Loaded<'a> {
    driver: &'a Driver,
    module: CuModule,
    function: CuFunction,
    stream: CudaStream,
    args: fill::Args,
}

impl Loaded<'_> {
    /// A [`burst`] of `cuLaunchKernel`, for a caller that has the context current.
    ///
    /// # Safety
    /// The memory that it was made for is valid.
    unsafe fn burst(&mut self) -> Result<f64> {
        let Loaded { driver, function, ref stream, ref mut args, .. } = *self;
        let mut params = [(&raw mut *args).cast()];
        let launch = || {
            let (raw, params, extra) = (stream.raw(), params.as_mut_ptr(), std::ptr::null());
            // SAFETY: the kernel of this argument, and memory as the caller promises until the burst has been waited for.
            Ok(unsafe { driver.cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, raw, params, extra) }?)
        };
        burst(launch, || ep_core::provider::Stream::sync(stream))
    }

    /// Its work is done, and the context is current.
    fn unload(self) -> Result<()> {
        // SAFETY: loaded with this, of which nothing runs.
        Ok(unsafe { self.driver.cuModuleUnload(self.module) }?)
    }
}

/// Microseconds of one call, of a burst behind which `wait` empties the device's queue.
fn burst(mut call: impl FnMut() -> Result<()>, wait: impl Fn() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    let called = (0..BURST).try_for_each(|_| call());
    let us = begin.elapsed().as_secs_f64() * 1e6 / BURST as f64;
    // Also of calls before one that failed nothing may be pending.
    let waited = wait();
    called.and(waited).map(|()| us)
}

/// Ways to launch.
const WAYS: [&str; 5] = [
    "launch",
    "launch in the current context",
    "launch by the driver",
    "replay of a graph of 20",
    "launch with checks",
];

/// Name and microseconds of each way to launch: medians of bursts in turns, as the processor's clock changes.
///
/// # Errors
/// The provider's; those of a machine without CUDA.
pub fn measure(runtime: &Runtime, device: &Device, settings: &Settings) -> Result<Vec<(&'static str, f64)>> {
    let stream = device.stream()?;
    let mut y = device.alloc(DType::F32, 4)?;
    let fill = runtime.primitive::<Fill>(device, FillDesc::new(DType::F32))?;
    let args = FillArgs::new(4, Scalar::F64(1.0), y.address());
    let raw = || {
        // SAFETY: four elements, as the buffer has.
        unsafe { fill.launch_raw(&stream, &args) }
    };
    for _ in 0..WARM_BURSTS {
        burst(raw, || stream.sync())?;
    }
    let bare = FillKernel::new(Bare::of(settings, device)?)?;
    let context = &bare.loader.context;
    let graph_stream = bare.stream()?;
    let graph = bare.graph(&graph_stream, y.address())?;
    let mut loaded = bare.loaded(y.address())?;
    let done = |stream: &CudaStream| ep_core::provider::Stream::sync(stream);
    let mut turns = || -> Result<[Vec<f64>; WAYS.len()]> {
        let mut times: [Vec<f64>; WAYS.len()] = Default::default();
        for _ in 0..BURSTS {
            times[0].push(burst(raw, || stream.sync())?);
            {
                let _current = context.enter()?;
                times[1].push(burst(raw, || stream.sync())?);
                // SAFETY: the buffer lives.
                times[2].push(unsafe { loaded.burst() }?);
            }
            // SAFETY: the buffer lives until each burst has been waited for.
            times[3].push(burst(|| unsafe { graph.launch(&graph_stream) }, || done(&graph_stream))?);
            let safe = || {
                let call = ep_core::primitive::FillCall { count: 4, value: Scalar::F64(1.0), dst: &mut y };
                fill.launch(&stream, call)
            };
            times[4].push(burst(safe, || stream.sync())?);
        }
        Ok(times)
    };
    let timed = turns();
    let _current = context.enter()?;
    loaded.unload()?;
    Ok(WAYS.into_iter().zip(timed?.map(median)).collect())
}

/// The first result of a process: a device, memory, one launch, its result, while the device and all else is still there.
///
/// # Errors
/// The provider's; those of `print`.
pub fn first_result(runtime: &Runtime, device: &Device, print: impl FnOnce(f32) -> Result<()>) -> Result<()> {
    let stream = device.stream()?;
    let mut y = device.alloc(DType::F32, 4)?;
    let fill = runtime.primitive::<Fill>(device, FillDesc::new(DType::F32))?;
    fill.launch(&stream, ep_core::primitive::FillCall { count: 4, value: Scalar::F64(1.5), dst: &mut y })?;
    let result = y.download::<f32>()?;
    if result != [1.5; 4] {
        return Err(Error::internal(format!("a fill with 1.5 gave {result:?}")));
    }
    print(result[0])
}

/// The code of the kernel that [`first_result`] launches.
///
/// # Errors
/// Those of compiling.
pub fn kernel() -> Result<Vec<u8>> {
    FillKernel::new(Bare::first(&Settings::default())?)?.code()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Alone, Setup};

    #[test]
    fn a_burst_that_fails_is_waited_for() {
        let (mut calls, waits) = (0, std::cell::Cell::new(0));
        let call = || {
            calls += 1;
            if calls == 3 { Err(Error::internal("the third")) } else { Ok(()) }
        };
        let wait = || {
            waits.set(waits.get() + 1);
            Ok(())
        };
        let error = burst(call, wait).unwrap_err();
        assert_eq!((error.message(), calls, waits.get()), ("the third", 3, 1));
    }

    #[test]
    fn every_way_to_launch_is_measured_on_the_device_that_is_named() {
        let alone = Alone::new(Setup { devices: 2, ..Setup::default() });
        {
            let runtime = alone.runtime(&[]);
            let device = runtime.device("cuda:1").unwrap();
            let rows = measure(&runtime, device, &alone.settings()).unwrap();
            assert!(rows.len() == 5 && rows.iter().all(|(_, us)| *us > 0.0), "{rows:?}");
            // Three ways through the provider and the driver's own; a graph is recorded once and replayed.
            let (launches, recorded) = (BURST * BURSTS, GRAPH);
            // The first of a graph may follow anything, and does not overlap.
            let warm = WARM_BURSTS * BURST;
            assert_eq!(alone.calls("cuLaunchKernelEx"), warm + 3 * launches + recorded - 1);
            assert_eq!(alone.calls("cuLaunchKernel"), launches + 1);
            assert_eq!(alone.calls("cuGraphLaunch"), BURST * BURSTS);
            let log = alone.fake.log();
            let others = log.iter().filter(|l| l.starts_with("cuCtxSetCurrent(0x100)"));
            assert_eq!(others.count(), 0, "nothing is done on another device");
        }
        assert_eq!(alone.fake.leaks(), [""; 0]);
    }
}

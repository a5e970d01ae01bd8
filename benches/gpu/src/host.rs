//! What a launch costs the host: through the provider's plugin, and by the driver alone with the same kernel.

use crate::bare::Bare;
use crate::timing::median;
use ep_core::primitive::{Fill, FillArgs, FillDesc};
use ep_core::provider::{Device as _, StreamOptions};
use ep_core::{DType, Error, Result, Scalar};
use ep_cuda::cache::Cache;
use ep_cuda::compiler::{Compiler, Spec};
use ep_cuda::device::CudaDevice;
use ep_cuda::driver::{CuFunction, CuModule};
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

    /// Microseconds of `cuLaunchKernel` alone, while the context is current.
    fn launches(&self, dst: u64) -> Result<f64> {
        let context = &self.loader.context;
        let driver = context.driver();
        let code = self.code()?;
        let stream = self.stream()?;
        let _current = context.enter()?;
        let (mut module, mut function) = (CuModule::NULL, CuFunction::NULL);
        // SAFETY: a whole image, a name that ends, valid out-pointers; the context is current.
        unsafe {
            driver.cuModuleLoadData(&mut module, code.as_ptr().cast())?;
            driver.cuModuleGetFunction(&mut function, module, c"ep_fill".as_ptr())?;
        }
        let mut args = fill::Args { count: 4, dst, src: 0, value: [0; 2] };
        let mut params = [(&raw mut args).cast()];
        let times = bursts(
            || {
                // SAFETY: the kernel of this argument, and memory of four elements.
                let launched = unsafe {
                    driver.cuLaunchKernel(
                        function,
                        1,
                        1,
                        1,
                        256,
                        1,
                        1,
                        0,
                        stream.raw(),
                        params.as_mut_ptr(),
                        std::ptr::null(),
                    )
                };
                Ok(launched?)
            },
            || ep_core::provider::Stream::sync(&stream),
        );
        // SAFETY: loaded above; its work is done.
        unsafe { driver.cuModuleUnload(module) }?;
        times
    }

    /// Microseconds of replaying a graph of [`GRAPH`] launches.
    fn replay(&self, dst: u64) -> Result<f64> {
        let stream = self.stream()?;
        let function = Function::load(&self.loader, "fill", &self.spec)?;
        stream.begin_capture()?;
        for _ in 0..GRAPH {
            let args = fill::Args { count: 4, dst, src: 0, value: [0; 2] };
            // SAFETY: as in `launches`.
            unsafe { function.launch(&stream, Geometry::linear(1, 256), &args) }?;
        }
        let graph = stream.end_capture()?.instantiate()?;
        // SAFETY: as in `launches`, at each replay.
        bursts(|| unsafe { graph.launch(&stream) }, || ep_core::provider::Stream::sync(&stream))
    }
}

/// Microseconds of one call, the median over bursts; between them `wait` empties the device's queue.
fn bursts(mut call: impl FnMut() -> Result<()>, wait: impl Fn() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..BURSTS {
        let begin = Instant::now();
        for _ in 0..BURST {
            call()?;
        }
        times.push(begin.elapsed().as_secs_f64() * 1e6 / BURST as f64);
        wait()?;
    }
    Ok(median(times))
}

/// Name and microseconds of each way to launch.
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
        for _ in 0..BURST {
            raw()?;
        }
        stream.sync()?;
    }
    let mut rows = vec![("launch", bursts(raw, || stream.sync())?)];
    let bare = FillKernel::new(Bare::of(settings, device)?)?;
    {
        let _current = bare.loader.context.enter()?;
        rows.push(("launch in the current context", bursts(raw, || stream.sync())?));
    }
    rows.push(("launch by the driver", bare.launches(y.address())?));
    rows.push(("replay of a graph of 20", bare.replay(y.address())?));
    let safe = || {
        let call = ep_core::primitive::FillCall { count: 4, value: Scalar::F64(1.0), dst: &mut y };
        fill.launch(&stream, call)
    };
    rows.push(("launch with checks", bursts(safe, || stream.sync())?));
    Ok(rows)
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

//! The fake judges calls as a driver does: what a launch is given, and sizes of memory.

mod rig;

use ep_core::provider::{Allocator, Device, MemoryKind, Stream};
use ep_core::{Code, Error, Result};
use ep_cuda::driver::{CuFunction, CuModule, Driver, LaunchAttribute, LaunchConfig, constant};
use ep_cuda::stream::CudaStream;
use rig::{Rig, Setup, stream};

/// An image of the fake's compiler: a kernel with an argument of 16 bytes.
const IMAGE: &[u8] = b"FAKECUBIN\nf 16\n\0";

/// How a launch tells of its argument.
#[derive(Clone, Copy)]
enum By {
    Parameters,
    Extra(usize),
    Both,
    Neither,
}

fn launch(
    driver: &Driver,
    function: CuFunction,
    stream: &CudaStream,
    argument: &[u64; 2],
    by: By,
) -> Result<()> {
    let mut params = [std::ptr::from_ref(argument).cast_mut().cast()];
    let bytes = if let By::Extra(bytes) = by { bytes } else { size_of_val(argument) };
    let extra = [
        constant::LAUNCH_PARAM_BUFFER_POINTER,
        argument.as_ptr().expose_provenance(),
        constant::LAUNCH_PARAM_BUFFER_SIZE,
        (&raw const bytes).expose_provenance(),
        0,
    ];
    let (no_params, no_extra) = (std::ptr::null_mut(), std::ptr::null());
    let (params, extra) = match by {
        By::Parameters => (params.as_mut_ptr(), no_extra),
        By::Extra(_) => (no_params, extra.as_ptr()),
        By::Both => (params.as_mut_ptr(), extra.as_ptr()),
        By::Neither => (no_params, no_extra),
    };
    // SAFETY: lists that live during the call, in which the driver copies the argument; the fake looks at the address
    // that is in it and touches nothing.
    Ok(unsafe { driver.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream.raw(), params, extra) }?)
}

#[test]
fn an_argument_comes_by_one_of_two_lists() {
    let rig = Rig::new(Setup::default());
    let device = rig.device();
    let context = device.context().unwrap().clone();
    let queue = stream(&device);
    let memory = device.open_allocator(MemoryKind::Device).unwrap();
    let (live, freed) = (memory.alloc(16, 64, None).unwrap(), memory.alloc(16, 64, None).unwrap());
    memory.free(freed, 16).unwrap();
    let _current = context.enter().unwrap();
    let driver = context.driver();
    let (mut module, mut function) = (CuModule::NULL, CuFunction::NULL);
    // SAFETY: a whole image, a name that ends, valid out-pointers; the context is current.
    unsafe {
        driver.cuModuleLoadData(&mut module, IMAGE.as_ptr().cast()).unwrap();
        driver.cuModuleGetFunction(&mut function, module, c"f".as_ptr()).unwrap();
    }
    for by in [By::Parameters, By::Extra(16)] {
        launch(driver, function, &queue, &[1, live], by).unwrap();
        queue.sync().unwrap();
    }
    for by in [By::Both, By::Neither, By::Extra(8)] {
        let error: Error = launch(driver, function, &queue, &[1, live], by).unwrap_err();
        assert!(error.message().contains("CUDA_ERROR_INVALID_VALUE"), "{error}");
    }
    // By a config, whose attributes have to be known.
    let argument = [1, live];
    for (id, value, taken) in [
        (constant::LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 1, true),
        (constant::LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 2, false),
        (99, 1, false),
    ] {
        let attributes = LaunchAttribute { id, padding: 0, value: [value, 0, 0, 0, 0, 0, 0, 0] };
        let config = LaunchConfig {
            grid: [1; 3],
            block: [32, 1, 1],
            shared_bytes: 0,
            stream: queue.raw(),
            attributes: &attributes,
            num_attributes: 1,
        };
        let mut params = [std::ptr::from_ref(&argument).cast_mut().cast()];
        // SAFETY: lists that live during the call.
        let launched =
            unsafe { driver.cuLaunchKernelEx(&config, function, params.as_mut_ptr(), std::ptr::null()) };
        assert_eq!(launched.is_ok(), taken, "attribute {id}, {value}");
        queue.sync().unwrap();
    }
    // What the list leads to is looked at when the kernel's turn comes.
    launch(driver, function, &queue, &[1, freed], By::Parameters).unwrap();
    assert_eq!(queue.sync().unwrap_err().code(), Code::DeviceLost);
}

#[test]
fn no_size_is_so_large_that_it_is_not_refused() {
    let rig = Rig::new(Setup::default());
    let device = rig.device();
    let memory = device.open_allocator(MemoryKind::Device).unwrap();
    let block = memory.alloc(16, 64, None).unwrap();
    for bytes in [1 << 31, u64::MAX - 4095, u64::MAX] {
        assert_eq!(memory.alloc(bytes, 64, None).map_err(|e| e.code()), Err(Code::OutOfMemory), "{bytes}");
    }
    memory.free(block, 16).unwrap();
    drop((memory, device));
    rig.assert_clean();
}

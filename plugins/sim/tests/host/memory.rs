//! Device addresses are numbers to the host.

use crate::rig::{Negate, nothing_left, runtime};
use ep_core::primitive::ElementwiseUnaryArgs;
use ep_core::{Code, DType};
use ep_registry::InPlace;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

/// Tells a child process of this test program which access to make.
const ACCESS: &str = "EP_SIM_TEST_ACCESS";

#[test]
fn touching_a_device_address_ends_the_process() {
    let Ok(access) = std::env::var(ACCESS) else {
        for access in ["read", "write"] {
            let child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "memory::touching_a_device_address_ends_the_process"])
                .env(ACCESS, access)
                // A sanitizer would turn the signal into an exit.
                .env("ASAN_OPTIONS", "handle_segv=0")
                .output()
                .unwrap();
            assert_eq!(child.status.signal(), Some(libc::SIGSEGV), "{access}: {child:?}");
        }
        return;
    };
    let runtime = runtime(&[]);
    let buffer = runtime.devices()[0].upload(&[1u8; 64]).unwrap();
    assert_eq!(buffer.download::<u8>().unwrap(), [1; 64]);
    let address = std::ptr::with_exposed_provenance_mut::<u8>(buffer.address() as usize);
    // SAFETY: none: this process is here to be ended for it.
    unsafe {
        match access.as_str() {
            "read" => drop(std::hint::black_box(address.read_volatile())),
            _ => address.write_volatile(2),
        }
    }
    // The parent sees that the process ended by itself.
}

#[test]
fn pinned_memory_is_the_hosts_too() {
    let runtime = runtime(&[]);
    let [first, second] = runtime.devices() else { panic!("two devices") };
    let stream = first.stream().unwrap();
    let mut pinned = first.alloc_pinned(DType::I32, 5).unwrap();
    pinned.map_write::<i32>().unwrap().copy_from_slice(&[1, -2, 3, i32::MIN, 0]);
    let expected = [-1, 2, -3, i32::MIN, 0];
    // Kernels use it in place of device memory, and copies to and from it are queued.
    let mut device = first.alloc(DType::I32, 5).unwrap();
    Negate::new(&runtime, first).launch(&stream, 5, &pinned, &mut device).unwrap();
    stream.copy(&device, &mut pinned).unwrap();
    assert_eq!(*pinned.map_read::<i32>().unwrap(), expected);
    assert_eq!(device.download::<i32>().unwrap(), expected);
    // It is pinned for its own device only.
    let there = second.stream().unwrap();
    let mut out = second.alloc(DType::I32, 5).unwrap();
    let e = Negate::new(&runtime, second).launch(&there, 5, &pinned, &mut out).unwrap_err();
    assert_eq!(e.code(), Code::InvalidArgument, "{e}");
    there.copy(&pinned, &mut out).unwrap();
    assert_eq!(out.download::<i32>().unwrap(), expected);
    drop((pinned, device, out));
    nothing_left(&runtime);
}

#[test]
fn memory_is_limited_and_counted() {
    let runtime = runtime(&[("memory_bytes", "4096")]);
    let [first, second] = runtime.devices() else { panic!("two devices") };
    assert_eq!(first.info().memory_bytes, 4096);
    let large = first.alloc(DType::U8, 4000).unwrap();
    let empty = first.alloc(DType::F64, 0).unwrap();
    let e = first.alloc(DType::U8, 97).unwrap_err();
    assert_eq!(e.code(), Code::OutOfMemory);
    assert!(e.message().contains("4000 of 4096"), "{e}");
    let other = second.alloc(DType::U8, 4096).unwrap();
    let s = first.memory_stats().unwrap();
    assert_eq!((s.in_use_bytes, s.in_use_blocks, s.total_allocs), (4000, 2, 2));
    drop(large);
    let next = first.alloc(DType::U8, 4096).unwrap();
    assert_eq!(first.memory_stats().unwrap().peak_in_use_bytes, 4096);
    drop((next, empty, other));
    nothing_left(&runtime);
    first.trim().unwrap();
}

#[test]
fn freed_foreign_and_too_small_memory_is_refused() {
    let (runtime, other) = (runtime(&[]), runtime(&[]));
    let device = &runtime.devices()[0];
    let (negate, stream) = (Negate::new(&runtime, device), device.stream().unwrap());
    let mut good = device.upload(&[5i32; 8]).unwrap();
    let freed = device.upload(&[6i32; 8]).unwrap();
    let freed_address = freed.address();
    drop(freed);
    let foreign = other.devices()[0].upload(&[7i32; 8]).unwrap();
    let host = [8i32; 8];
    for (address, count, said) in [
        (freed_address, 8, "were freed"),
        (foreign.address(), 8, "no memory of this provider instance"),
        (host.as_ptr().addr() as u64, 8, "no memory of this provider instance"),
        (good.address(), 9, "more than the 32 bytes"),
        (good.address() + 4, 8, "more than the 32 bytes"),
    ] {
        for (src, dst) in [(address, good.address()), (good.address(), address)] {
            // SAFETY: the provider refuses the wrong one of the two before it touches anything.
            let e = unsafe { negate.0.launch_raw(&stream, &ElementwiseUnaryArgs::new(count, src, dst)) };
            let e = e.unwrap_err();
            assert_eq!(e.code(), Code::InvalidArgument, "{e}");
            assert!(e.message().contains(said), "`{said}` is not in: {e}");
        }
    }
    // SAFETY: nothing is accessed.
    unsafe { negate.0.launch_raw(&stream, &ElementwiseUnaryArgs::new(0, 0, 0)) }.unwrap();
    negate.launch(&stream, 8, InPlace, &mut good).unwrap();
    assert_eq!(good.download::<i32>().unwrap(), [-5; 8]);
}

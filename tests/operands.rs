//! Operands that are lists, optional, or written only in part, with a linked provider that has ops of each kind.

use ep_core::op::{address_list, view};
use ep_core::primitive::{
    Add, AddArgs, AddCall, AddDesc, CopyNd, CopyNdArgs, CopyNdCall, CopyNdDesc, LayerNorm, LayerNormArgs,
    LayerNormCall, LayerNormDesc, StridedCopy, StridedCopyArgs, StridedCopyCall, StridedCopyDesc,
};
use ep_core::provider::inline::{HostDevice, InlineStream};
use ep_core::provider::{Factory, Host, Kernel, Options, Provider, Registrar, cells, slice, slice_mut};
use ep_core::{Code, DType, Error, Result};
use ep_registry::{Buffer, Device, InPlace, NoMemory, Read, Runtime};

struct Kinds;

// SAFETY: memory is there until it is freed, work is done in order, and kernels stay in their operands.
unsafe impl Provider for Kinds {
    type Device = HostDevice;
    const NAME: &'static str = "kinds";
    const VERSION: &'static str = "1";

    fn create(_: Host, _: &Options) -> Result<Self> {
        Ok(Kinds)
    }

    fn device_count(&self) -> Result<u32> {
        Ok(1)
    }

    fn open_device(&self, _: u32) -> Result<HostDevice> {
        Ok(HostDevice::default())
    }

    fn register(&self, r: &mut Registrar<'_, Self>) -> Result<()> {
        r.device_kind("cpu");
        r.add(Factory::<Add, _, _>::new("add", |_, _| Ok(Plain)).dtypes([[DType::I32]]))?;
        r.add(Factory::<CopyNd, _, _>::new("copy", |_, _| Ok(Plain)).dtypes([[DType::I32]]))?;
        r.add(Factory::<StridedCopy, _, _>::new("strided", |_, _| Ok(Plain)).dtypes([[DType::I32; 2]]))?;
        r.add(Factory::<LayerNorm, _, _>::new("norm", |_, _| Ok(Plain)).dtypes([[DType::F32; 2]]))
    }
}

struct Plain;

impl Kernel<Add, HostDevice> for Plain {
    unsafe fn launch(&self, _: &InlineStream, args: &AddArgs) -> Result<()> {
        // SAFETY: the caller promises the list and the operands; all are cells, as dst may be any of them.
        unsafe {
            let srcs = address_list(args.srcs, args.arity);
            for (i, dst) in cells::<i32>(args.dst, args.count).iter().enumerate() {
                dst.set(srcs.iter().map(|s| cells::<i32>(*s, args.count)[i].get()).sum());
            }
        }
        Ok(())
    }
}

impl Kernel<CopyNd, HostDevice> for Plain {
    unsafe fn launch(&self, _: &InlineStream, args: &CopyNdArgs) -> Result<()> {
        // SAFETY: the caller promises the dims and the operands, which are apart.
        unsafe {
            let [from, to, n] = [args.src_pos, args.dst_pos, args.extent]
                .map(|p| *view(p, args.num_dims).first().unwrap_or(&0));
            let src = slice::<i32>(args.src, *view(args.src_dims, 1).first().unwrap());
            let dst = slice_mut::<i32>(args.dst, *view(args.dst_dims, 1).first().unwrap());
            let (from, to, n) = (from as usize, to as usize, n as usize);
            let source = src.get(from..from + n).ok_or_else(|| Error::invalid("outside"))?;
            dst.get_mut(to..to + n).ok_or_else(|| Error::invalid("outside"))?.copy_from_slice(source);
        }
        Ok(())
    }
}

impl Kernel<StridedCopy, HostDevice> for Plain {
    unsafe fn launch(&self, _: &InlineStream, args: &StridedCopyArgs) -> Result<()> {
        // SAFETY: the caller promises the dims and the operands, which are apart; one dimension is all that the
        // tests ask for.
        unsafe {
            let [n, from, to] = [args.dims, args.src_strides, args.dst_strides].map(|p| view(p, 1)[0]);
            let at = |offset: i64, stride: i64, i: i64| offset + stride * i;
            let lowest = at(args.src_offset, from.min(0), n - 1).min(at(args.dst_offset, to.min(0), n - 1));
            if lowest < 0 {
                return Err(Error::invalid("below the start"));
            }
            let top = |offset: i64, stride: i64| at(offset, stride.max(0), n - 1) + 1;
            let src = slice::<i32>(args.src, top(args.src_offset, from));
            let dst = slice_mut::<i32>(args.dst, top(args.dst_offset, to));
            for i in 0..n {
                dst[at(args.dst_offset, to, i) as usize] = src[at(args.src_offset, from, i) as usize];
            }
        }
        Ok(())
    }
}

impl Kernel<LayerNorm, HostDevice> for Plain {
    unsafe fn launch(&self, _: &InlineStream, args: &LayerNormArgs) -> Result<()> {
        // SAFETY: the caller promises the operands that are not absent; only src and dst may be the same.
        unsafe {
            let (src, dst) = (
                cells::<f32>(args.src, args.rows * args.cols),
                cells::<f32>(args.dst, args.rows * args.cols),
            );
            let factor = |address: u64, i: usize, none: f32| {
                if address == 0 { none } else { slice::<f32>(address, args.cols)[i] }
            };
            for (row, (src, dst)) in
                src.chunks(args.cols as usize).zip(dst.chunks(args.cols as usize)).enumerate()
            {
                let mean = src.iter().map(std::cell::Cell::get).sum::<f32>() / args.cols as f32;
                for (i, (s, d)) in src.iter().zip(dst).enumerate() {
                    d.set((s.get() - mean) * factor(args.gamma, i, 1.0) + factor(args.beta, i, 0.0));
                }
                if args.mean != 0 {
                    slice_mut::<f32>(args.mean, args.rows)[row] = mean;
                }
            }
        }
        Ok(())
    }
}

fn runtime() -> Runtime {
    Runtime::builder().threads(1).linked::<Kinds>("x").build().unwrap()
}

fn ints(device: &Device, data: &[i32]) -> Buffer {
    device.upload(data).unwrap()
}

fn refused(result: Result<()>, words: &[&str]) {
    let e = result.unwrap_err();
    assert_eq!(e.code(), Code::InvalidArgument, "{e}");
    assert!(words.iter().all(|w| e.message().contains(w)), "{e}: {words:?}");
}

#[test]
fn a_list_has_any_number_of_buffers() {
    let runtime = runtime();
    let device = &runtime.devices()[0];
    let stream = device.stream().unwrap();
    let add = runtime.primitive::<Add>(device, AddDesc::new(DType::I32)).unwrap();
    let sources: Vec<_> = (0..40).map(|i| ints(device, &[i, 10 * i, 1])).collect();
    // More and fewer than are kept without an allocation, and none.
    for n in [0usize, 1, 2, 8, 9, 40] {
        let mut dst = device.alloc(DType::I32, 3).unwrap();
        let srcs: Vec<&Buffer> = sources[..n].iter().collect();
        add.launch(&stream, AddCall { count: 3, dst: &mut dst, srcs: &srcs }).unwrap();
        let sum: i32 = (0..n as i32).sum();
        assert_eq!(dst.download::<i32>().unwrap(), [sum, 10 * sum, n as i32], "{n}");
    }
    let srcs: Vec<&Buffer> = std::iter::repeat_n(&sources[1], 257).collect();
    let mut dst = device.alloc(DType::I32, 3).unwrap();
    refused(add.launch(&stream, AddCall { count: 3, dst: &mut dst, srcs: &srcs }), &["srcs", "257", "256"]);
    let limited = runtime.primitive::<Add>(device, AddDesc::new(DType::I32).with_max_arity(2)).unwrap();
    let call = AddCall { count: 3, dst: &mut dst, srcs: &srcs[..3] };
    refused(limited.launch(&stream, call), &["arity", "3", "2"]);
}

#[test]
fn each_buffer_of_a_list_is_checked_and_named() {
    let runtime = runtime();
    let device = &runtime.devices()[0];
    let stream = device.stream().unwrap();
    let add = runtime.primitive::<Add>(device, AddDesc::new(DType::I32)).unwrap();
    let (good, short) = (ints(device, &[1, 2, 3]), ints(device, &[1, 2]));
    let floats = device.upload(&[1.0f32, 2.0, 3.0]).unwrap();
    let fresh = device.alloc(DType::I32, 3).unwrap();
    let mut dst = device.alloc(DType::I32, 3).unwrap();
    for (bad, word) in [(&short, "8 bytes"), (&floats, "f32"), (&fresh, "written")] {
        let call = AddCall { count: 3, dst: &mut dst, srcs: &[&good, bad] };
        refused(add.launch(&stream, call), &["`srcs[1]`", word]);
    }
    // dst as a source, twice: its old value counts twice. It must have one.
    let again = [Read::InPlace, (&good).into(), InPlace.into()];
    refused(add.launch(&stream, AddCall { count: 3, dst: &mut dst, srcs: &again }), &["srcs[0]", "written"]);
    dst.upload(&[10, 20, 30]).unwrap();
    add.launch(&stream, AddCall { count: 3, dst: &mut dst, srcs: &again }).unwrap();
    assert_eq!(dst.download::<i32>().unwrap(), [21, 42, 63]);
    let call = AddCall { count: 3, dst: &mut dst, srcs: &[Read::None] };
    refused(add.launch(&stream, call), &["srcs[0]", "none"]);
    add.launch(&stream, AddCall { count: 0, dst: &mut dst, srcs: &[Read::None] }).unwrap();
}

#[test]
fn raw_and_named_launches_take_lists() {
    let runtime = runtime();
    let device = &runtime.devices()[0];
    let stream = device.stream().unwrap();
    let add = runtime.primitive::<Add>(device, AddDesc::new(DType::I32)).unwrap();
    let (a, b) = (ints(device, &[1, 2, 3]), ints(device, &[10, 20, 30]));
    let mut dst = ints(device, &[0; 3]);
    let addresses = [a.address(), b.address(), b.address()];
    // SAFETY: the buffers live and have these sizes; nothing else uses them.
    unsafe {
        add.launch_raw(&stream, &AddArgs::new(3, dst.address(), &addresses)).unwrap();
        assert_eq!(dst.download::<i32>().unwrap(), [21, 42, 63]);
        refused(
            add.launch_raw(&stream, &AddArgs::new(3, dst.address(), &[a.address(), 0])),
            &["srcs", "null"],
        );
        refused(
            add.launch_raw(&stream, &AddArgs::new(3, dst.address(), &[a.address() + 1])),
            &["srcs", "multiple"],
        );
        let mut args = AddArgs::new(3, dst.address(), &addresses);
        args.srcs = std::ptr::null();
        refused(add.launch_raw(&stream, &args), &["srcs", "null"]);
        args.arity = -1;
        refused(add.launch_raw(&stream, &args), &["arity", "-1"]);
    }
    let request = runtime.request("add").unwrap().dtype("data", "i32").unwrap();
    let named = runtime.primitive_dyn(device, &request).unwrap();
    for n in [0usize, 1, 12] {
        let mut args = named.args().size("count", 3).unwrap();
        for _ in 0..n {
            args = args.read("srcs", &a).unwrap();
        }
        named.launch(&stream, args.write("dst", &mut dst).unwrap()).unwrap();
        assert_eq!(dst.download::<i32>().unwrap(), [1, 2, 3].map(|x| x * n as i32));
    }
    refused(named.args().size("arity", 2).map(drop), &["arity", "srcs", "read()"]);
}

#[test]
fn optional_operands_may_be_absent() {
    let runtime = runtime();
    let device = &runtime.devices()[0];
    let stream = device.stream().unwrap();
    let norm = runtime.primitive::<LayerNorm>(device, LayerNormDesc::new(DType::F32, DType::F32)).unwrap();
    let (src, two) =
        (device.upload(&[1.0f32, 3.0, 5.0, 9.0]).unwrap(), device.upload(&[2.0f32, 2.0]).unwrap());
    let (mut dst, mut mean) = (device.alloc(DType::F32, 4).unwrap(), device.alloc(DType::F32, 2).unwrap());
    let call = LayerNormCall {
        rows: 2,
        cols: 2,
        src: &src,
        gamma: NoMemory,
        beta: NoMemory,
        dst: &mut dst,
        mean: NoMemory,
        rstd: NoMemory,
    };
    norm.launch(&stream, call).unwrap();
    assert_eq!(dst.download::<f32>().unwrap(), [-1.0, 1.0, -2.0, 2.0]);
    let call = LayerNormCall {
        rows: 2,
        cols: 2,
        src: &src,
        gamma: &two,
        beta: NoMemory,
        dst: &mut dst,
        mean: &mut mean,
        rstd: NoMemory,
    };
    norm.launch(&stream, call).unwrap();
    assert_eq!(dst.download::<f32>().unwrap(), [-2.0, 2.0, -4.0, 4.0]);
    assert_eq!(mean.download::<f32>().unwrap(), [2.0, 7.0]);
    // What is given is checked like any other operand.
    let mut short = device.alloc(DType::F32, 1).unwrap();
    let call = LayerNormCall {
        rows: 2,
        cols: 2,
        src: &src,
        gamma: NoMemory,
        beta: NoMemory,
        dst: &mut dst,
        mean: &mut short,
        rstd: NoMemory,
    };
    refused(norm.launch(&stream, call), &["`mean`", "4 bytes"]);
    let request = runtime.request("layer_norm").unwrap().dtype("data", "f32").unwrap();
    let named = runtime.primitive_dyn(device, &request.dtype("stats", "f32").unwrap()).unwrap();
    let args = named.args().size("rows", 2).unwrap().size("cols", 2).unwrap().read("src", &src).unwrap();
    named.launch(&stream, args.write("dst", &mut dst).unwrap()).unwrap();
    assert_eq!(dst.download::<f32>().unwrap(), [-1.0, 1.0, -2.0, 2.0]);
}

#[test]
fn what_a_launch_does_not_cover_must_have_been_written() {
    let runtime = runtime();
    let device = &runtime.devices()[0];
    let stream = device.stream().unwrap();
    let copy = runtime.primitive::<CopyNd>(device, CopyNdDesc::new(DType::I32)).unwrap();
    let src = ints(device, &[1, 2, 3]);
    let mut dst = device.alloc(DType::I32, 3).unwrap();
    let run = |pos: i64, n: i64, dst: &mut Buffer| {
        let call = CopyNdCall {
            dst_dims: &[3],
            dst_pos: &[pos],
            src_dims: &[3],
            src_pos: &[0],
            extent: &[n],
            src: &src,
            dst,
        };
        copy.launch(&stream, call)
    };
    refused(run(1, 2, &mut dst), &["`dst`", "written"]);
    run(0, 3, &mut dst).unwrap();
    run(1, 2, &mut dst).unwrap();
    assert_eq!(dst.download::<i32>().unwrap(), [1, 1, 2]);
    refused(run(2, 2, &mut dst), &["outside"]);
}

#[test]
fn strides_may_be_negative_within_the_buffer() {
    let runtime = runtime();
    let device = &runtime.devices()[0];
    let stream = device.stream().unwrap();
    let copy =
        runtime.primitive::<StridedCopy>(device, StridedCopyDesc::new(DType::I32, DType::I32)).unwrap();
    let src = ints(device, &[1, 2, 3, 4, 5]);
    let mut dst = device.alloc(DType::I32, 3).unwrap();
    let run = |strides: [i64; 2], offsets: [i64; 2], dst: &mut Buffer| {
        let call = StridedCopyCall {
            dims: &[3],
            src_strides: &strides[..1],
            dst_strides: &strides[1..],
            src_offset: offsets[0],
            dst_offset: offsets[1],
            src: &src,
            dst,
        };
        copy.launch(&stream, call)
    };
    run([-2, 1], [4, 0], &mut dst).unwrap();
    assert_eq!(dst.download::<i32>().unwrap(), [5, 3, 1]);
    run([1, -1], [0, 2], &mut dst).unwrap();
    assert_eq!(dst.download::<i32>().unwrap(), [3, 2, 1]);
    run([0, 1], [3, 0], &mut dst).unwrap();
    assert_eq!(dst.download::<i32>().unwrap(), [4, 4, 4]);
    refused(run([-2, 1], [3, 0], &mut dst), &["below"]);
    refused(run([2, 1], [1, 0], &mut dst), &["`src`", "20 bytes"]);
    refused(run([1, 1], [0, 1], &mut dst), &["`dst`", "12 bytes"]);
    refused(run([1, 1], [-1, 0], &mut dst), &["src_offset", "-1"]);
}

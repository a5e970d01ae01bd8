//! Workspace, capture and cost of primitives, with a linked provider that has all of them.

use ep_core::primitive::{Softmax, SoftmaxArgs, SoftmaxCall, SoftmaxDesc};
use ep_core::provider::inline::{HostDevice, InlineStream};
use ep_core::provider::{Factory, Host, Kernel, Options, Provider, Registrar, slice, slice_mut};
use ep_core::{Code, DType, Error, Result};
use ep_registry::{Cost, Runtime};

/// Its softmax keeps the sums of the rows in workspace.
struct Scratchy;

// SAFETY: memory is there until it is freed, work is done in order, and kernels stay in their operands.
unsafe impl Provider for Scratchy {
    type Device = HostDevice;
    const NAME: &'static str = "scratchy";
    const VERSION: &'static str = "1";

    fn create(_: Host, _: &Options) -> Result<Self> {
        Ok(Scratchy)
    }

    fn device_count(&self) -> Result<u32> {
        Ok(1)
    }

    fn open_device(&self, _: u32) -> Result<HostDevice> {
        Ok(HostDevice::default())
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        registrar.device_kind("cpu");
        let f32s = [[DType::F32, DType::F32]];
        registrar.add(Factory::<Softmax, _, _>::new("rows", |_, _| Ok(Rows)).dtypes(f32s).capturable())?;
        let f64s = [[DType::F64, DType::F64]];
        registrar.add(Factory::<Softmax, _, _>::new("plain", |_, _| Ok(Rows)).dtypes(f64s))
    }
}

struct Rows;

impl Kernel<Softmax, HostDevice> for Rows {
    unsafe fn launch(&self, _: &InlineStream, args: &SoftmaxArgs) -> Result<()> {
        let (rows, cols) = (args.rows as usize, args.cols as usize);
        let mut own = Vec::new();
        let sums: &mut [f64] = if args.workspace == 0 {
            own.resize(rows, 0.0);
            &mut own
        } else {
            let wanted = self.workspace_size(args)?;
            if args.workspace_bytes < wanted {
                return Err(Error::invalid(format!(
                    "a workspace of {} bytes; this launch wants {wanted}",
                    args.workspace_bytes
                )));
            }
            // SAFETY: the caller promises the workspace; its size has just been checked.
            unsafe { slice_mut(args.workspace, args.rows) }
        };
        // SAFETY: the caller promises the operands, which this op is never given in place here.
        let (src, dst) = unsafe {
            (slice::<f32>(args.src, args.rows * args.cols), slice_mut::<f32>(args.dst, args.rows * args.cols))
        };
        for (row, sum) in sums.iter_mut().enumerate().take(rows) {
            let range = row * cols..(row + 1) * cols;
            *sum = src[range.clone()].iter().map(|x| f64::from(*x).exp()).sum();
            for i in range {
                dst[i] = (f64::from(src[i]).exp() / *sum) as f32;
            }
        }
        Ok(())
    }

    fn workspace_size(&self, args: &SoftmaxArgs) -> Result<u64> {
        Ok(args.rows as u64 * 8)
    }
}

#[test]
fn a_launch_uses_the_workspace_it_is_given_or_its_own() {
    let runtime = Runtime::builder().threads(1).linked::<Scratchy>("x").build().unwrap();
    let device = &runtime.devices()[0];
    let softmax = runtime.primitive::<Softmax>(device, SoftmaxDesc::new(DType::F32, DType::F32)).unwrap();
    let stream = device.stream().unwrap();
    let src = device.upload(&[0.0f32, 0.0, 1.0, 1.0, 1.0, 1.0]).unwrap();
    let dst = device.upload(&[9.0f32; 6]).unwrap();
    let sums = device.upload(&[-1.0f64; 3]).unwrap();
    let mut args = SoftmaxArgs::new(3, 2, 1, src.address(), dst.address());
    // SAFETY: no dims; the buffers have these sizes, and nothing else uses them.
    unsafe {
        assert_eq!(softmax.workspace_size(&args), Ok(24));
        softmax.launch_raw(&stream, &args).unwrap();
        assert_eq!(sums.download::<f64>().unwrap(), [-1.0; 3]);
        (args.workspace, args.workspace_bytes) = (sums.address(), 24);
        softmax.launch_raw(&stream, &args).unwrap();
        args.workspace_bytes = 23;
        let e = softmax.launch_raw(&stream, &args).unwrap_err();
        assert_eq!(e.code(), Code::InvalidArgument);
        assert!(e.message().contains("wants 24"), "{e}");
    }
    let e = std::f64::consts::E;
    assert_eq!(sums.download::<f64>().unwrap(), [2.0, 2.0 * e, 2.0 * e]);
    assert_eq!(dst.download::<f32>().unwrap(), [0.5; 6]);
}

#[test]
fn by_name_a_raw_launch_is_given_workspace_and_a_safe_one_is_not() {
    let runtime = Runtime::builder().threads(1).linked::<Scratchy>("x").build().unwrap();
    let device = &runtime.devices()[0];
    let request =
        runtime.request("softmax").unwrap().dtype("src", "f32").unwrap().dtype("dst", "f32").unwrap();
    let softmax = runtime.primitive_dyn(device, &request).unwrap();
    let stream = device.stream().unwrap();
    let src = device.upload(&[0.0f32; 6]).unwrap();
    let mut dst = device.upload(&[9.0f32; 6]).unwrap();
    let sums = device.upload(&[-1.0f64; 3]).unwrap();
    let sized = || softmax.args().size("rows", 3).unwrap().size("cols", 2).unwrap();
    assert_eq!(softmax.workspace_size(&sized()), Ok(24));
    let missing = softmax.workspace_size(&softmax.args()).unwrap_err();
    assert!(missing.message().contains("not given"), "{missing}");
    // The address of nothing: a safe launch has to leave it alone.
    let args = sized().workspace(8, 24).read("src", &src).unwrap().write("dst", &mut dst).unwrap();
    softmax.launch(&stream, args).unwrap();
    stream.sync().unwrap();
    assert_eq!(sums.download::<f64>().unwrap(), [-1.0; 3]);
    let args = sized().workspace(sums.address(), 24);
    let args = args.address("src", src.address()).unwrap().address("dst", dst.address()).unwrap();
    // SAFETY: the buffers have these sizes, and nothing else uses them.
    unsafe { softmax.launch_raw(&stream, &args) }.unwrap();
    stream.sync().unwrap();
    assert_eq!(sums.download::<f64>().unwrap(), [2.0; 3]);
    assert_eq!(dst.download::<f32>().unwrap(), [0.5; 6]);
}

#[test]
fn a_primitive_tells_whether_it_can_be_captured_and_what_a_launch_costs() {
    let runtime = Runtime::builder().threads(1).linked::<Scratchy>("x").build().unwrap();
    let device = &runtime.devices()[0];
    let primitive = |d| runtime.primitive::<Softmax>(device, SoftmaxDesc::new(d, d)).unwrap();
    assert!(primitive(DType::F32).capturable());
    assert!(!primitive(DType::F64).capturable());
    let src = device.upload(&[0.0f32; 1]).unwrap();
    let mut dst = device.alloc(DType::F32, 1).unwrap();
    let call = SoftmaxCall { rows: 3, cols: 5, inner: 1, src: &src, dst: &mut dst };
    assert_eq!(primitive(DType::F32).cost(call), Ok(Cost { bytes: 15 * 8, flops: 75 }));
    let call = SoftmaxCall { rows: -3, cols: 5, inner: 1, src: &src, dst: &mut dst };
    assert_eq!(primitive(DType::F32).cost(call).unwrap_err().code(), Code::InvalidArgument);

    let request =
        runtime.request("softmax").unwrap().dtype("src", "f32").unwrap().dtype("dst", "f32").unwrap();
    let by_name = runtime.primitive_dyn(device, &request).unwrap();
    assert!(by_name.capturable());
    let args = by_name.args().size("rows", 3).unwrap().size("cols", 5).unwrap();
    assert_eq!(by_name.cost(&args), Ok(Cost { bytes: 15 * 8, flops: 75 }));
}

//! An op that only a vendor knows, with types of its own in Rust: registered, launched, and refused where the host's
//! types are others.

use ep_core::abi::{
    EP_ACCESS_READ, EP_ACCESS_WRITE, EP_EXPR_ARG, EP_FIELD_ADDRESS, EP_FIELD_ATTR, EP_FIELD_DTYPE,
    EP_FIELD_SIZE, EP_NO_INDEX, EpExprNode, EpField, EpOpSchema, EpOperand, node, text,
};
use ep_core::op::{Call, Growable, Op, OperandUse, Slot, count, no_flags, size};
use ep_core::provider::inline::{HostDevice, InlineStream};
use ep_core::provider::{Factory, Host, Kernel, Options, Provider, Registrar, cells};
use ep_core::{Code, DType, Result};
use ep_registry::{InPlace, Runtime};
use std::mem::{offset_of, size_of};

/// What is fixed, of both forms.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScaleDesc {
    struct_size: u64,
    alignment: u64,
    data: DType,
    reserved: u32,
    factor: f64,
}

// SAFETY: `repr(C)`, no padding, `struct_size` first, all-zero is valid.
unsafe impl Growable for ScaleDesc {
    const NAME: &'static str = "AcmeScaleDesc";
}

fn by(factor: f64) -> ScaleDesc {
    ScaleDesc { struct_size: 0, alignment: 0, data: DType::F32, reserved: 0, factor }
}

static COUNT: [EpExprNode; 1] = [node(EP_EXPR_ARG, "count")];

/// The descriptor's fields, and what both forms of the arguments have in common.
const DATA: EpField = EpField {
    name: text("data"),
    kind: EP_FIELD_DTYPE,
    offset: offset_of!(ScaleDesc, data) as u32,
    size: 4,
    ..EpField::ZERO
};
const FACTOR: EpField = EpField {
    name: text("factor"),
    kind: EP_FIELD_ATTR,
    offset: offset_of!(ScaleDesc, factor) as u32,
    size: 8,
    ..EpField::ZERO
};
static DESC_FIELDS: [EpField; 2] = [DATA, FACTOR];

const fn field(name: &'static str, kind: u32, offset: usize) -> EpField {
    EpField { name: text(name), kind, offset: offset as u32, size: 8, ..EpField::ZERO }
}

const fn operand(name: &'static str, arg: u32, access: u32, in_place: u64) -> EpOperand {
    EpOperand {
        name: text(name),
        dtype: 0,
        access,
        arg,
        scalar: EP_NO_INDEX,
        in_place,
        count: &raw const COUNT as *const EpExprNode,
        num_count: 1,
        ..EpOperand::ZERO
    }
}

static OPERANDS: [EpOperand; 2] =
    [operand("src", 1, EP_ACCESS_READ, 0), operand("dst", 2, EP_ACCESS_WRITE, 1)];

/// Types of `acme.scale` in version 1 whose arguments lie in this order.
macro_rules! scale {
    ($module:ident: $($field:ident),*) => {
        mod $module {
            use super::*;

            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default)]
            pub struct Args {
                pub struct_size: u64,
                pub flags: u64,
                pub workspace: u64,
                pub workspace_bytes: u64,
                $(pub $field: u64,)*
            }

            // SAFETY: as above.
            unsafe impl Growable for Args {
                const NAME: &'static str = "AcmeScaleArgs";
            }

            static ARG_FIELDS: [EpField; 3] = [
                field("count", EP_FIELD_SIZE, offset_of!(Args, count)),
                field("src", EP_FIELD_ADDRESS, offset_of!(Args, src)),
                field("dst", EP_FIELD_ADDRESS, offset_of!(Args, dst)),
            ];

            static SCHEMA: EpOpSchema = EpOpSchema {
                name: text("acme.scale"),
                version: 1,
                summary: text("dst = factor * src"),
                desc_size: size_of::<ScaleDesc>() as u64,
                desc_fields: &raw const DESC_FIELDS as *const EpField,
                num_desc_fields: 2,
                args_size: size_of::<Args>() as u64,
                arg_fields: &raw const ARG_FIELDS as *const EpField,
                num_arg_fields: 3,
                operands: &raw const OPERANDS as *const EpOperand,
                num_operands: 2,
                ..EpOpSchema::EMPTY
            };

            #[derive(Debug)]
            pub struct Scale;

            // SAFETY: as the schema says.
            unsafe impl Op for Scale {
                const NAME: &'static str = "acme.scale";
                const VERSION: u32 = 1;
                type Desc = ScaleDesc;
                type Args = Args;
                type Uses = [OperandUse; 2];

                fn raw_schema() -> &'static EpOpSchema {
                    &SCHEMA
                }

                fn reserved(desc: &ScaleDesc) -> u32 {
                    desc.reserved
                }

                unsafe fn check(_: &ScaleDesc, args: &Args) -> Result<()> {
                    no_flags(args.flags)?;
                    size("count", args.count as i64)
                }

                unsafe fn uses(desc: &ScaleDesc, args: &Args) -> [OperandUse; 2] {
                    let elements = count(args.count as i64);
                    [(args.src, true, false), (args.dst, false, true)].map(|(address, reads, writes)| {
                        OperandUse::new(address, Some(desc.data), elements, reads, writes, true)
                    })
                }

                fn bind(args: &mut Args, addresses: &[u64]) {
                    (args.src, args.dst) = (addresses[0], addresses[1]);
                }

                fn in_place(index: usize) -> u64 {
                    u64::from(index == 1)
                }
            }
        }
    };
}

scale!(built: count, src, dst);
scale!(moved: src, dst, count);

struct ScaleCall<Src, Dst> {
    count: i64,
    src: Src,
    dst: Dst,
}

// SAFETY: there are no dims; one slot for each operand, in order.
unsafe impl<R, W, Src: Into<R>, Dst: Into<W>> Call<R, W> for ScaleCall<Src, Dst> {
    type Op = built::Scale;
    type Slots = [Slot<R, W>; 2];

    fn split(self) -> (built::Args, Self::Slots) {
        let struct_size = size_of::<built::Args>() as u64;
        let args = built::Args { struct_size, count: self.count as u64, ..Default::default() };
        (args, [Slot::Read(self.src.into()), Slot::Write(self.dst.into())])
    }
}

struct Acme;

struct Times(f32);

impl Kernel<built::Scale, HostDevice> for Times {
    unsafe fn launch(&self, _: &InlineStream, args: &built::Args) -> Result<()> {
        // SAFETY: both operands as the host promises; they may be the same memory, hence cells.
        let [src, dst] = [args.src, args.dst].map(|at| unsafe { cells::<f32>(at, args.count as i64) });
        dst.iter().zip(src).for_each(|(d, s)| d.set(self.0 * s.get()));
        Ok(())
    }
}

// SAFETY: memory is there until it is freed, work is done in order, and kernels stay in their operands.
unsafe impl Provider for Acme {
    type Device = HostDevice;
    const NAME: &'static str = "acme";
    const VERSION: &'static str = "1";

    fn create(_: Host, _: &Options) -> Result<Acme> {
        Ok(Acme)
    }

    fn device_count(&self) -> Result<u32> {
        Ok(1)
    }

    fn open_device(&self, _: u32) -> Result<HostDevice> {
        Ok(HostDevice::default())
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        registrar.device_kind("cpu").add(
            Factory::<built::Scale, _, _>::new("scale.f32", |_, desc| Ok(Times(desc.factor as f32)))
                .dtypes([[DType::F32]]),
        )
    }
}

fn runtime() -> Runtime {
    let runtime = Runtime::builder().threads(1).linked::<Acme>("acme").build().unwrap();
    assert_eq!(runtime.devices().len(), 1, "{}", runtime.report());
    runtime
}

#[test]
fn types_of_a_vendor_launch_as_those_of_the_core_do() {
    let runtime = runtime();
    let device = runtime.device("cpu").unwrap();
    let scale = runtime.primitive::<built::Scale>(device, by(-2.5)).unwrap();
    let stream = device.stream().unwrap();
    let mut x = device.upload(&[1f32, 0.0, -4.0]).unwrap();
    let mut y = device.upload(&[9f32; 3]).unwrap();
    scale.launch(&stream, ScaleCall { count: 2, src: &x, dst: &mut y }).unwrap();
    assert_eq!(y.download::<f32>().unwrap(), [-2.5, 0.0, 9.0]);
    scale.launch(&stream, ScaleCall { count: 3, src: InPlace, dst: &mut x }).unwrap();
    assert_eq!(x.download::<f32>().unwrap(), [-2.5, 0.0, 10.0]);
    let short = scale.launch(&stream, ScaleCall { count: 4, src: &x, dst: &mut y }).unwrap_err();
    assert_eq!(short.message(), "acme.scale: operand `src` has 12 bytes, and these sizes need 16");
    // By name, from the schema alone.
    let request = runtime.request("acme.scale").unwrap().dtype("data", "f32").unwrap().attr("factor", 2.0);
    let twice = runtime.primitive_dyn(device, &request.unwrap()).unwrap();
    let args = twice.args().size("count", 1).unwrap().read("src", InPlace).unwrap().write("dst", &mut x);
    twice.launch(&stream, args.unwrap()).unwrap();
    assert_eq!(x.download::<f32>().unwrap(), [-5.0, 0.0, 10.0]);
}

/// The kernel would take an address for the count.
#[test]
fn types_that_the_provider_was_not_built_with_are_refused() {
    let runtime = runtime();
    let device = runtime.device("cpu").unwrap();
    let refused = || {
        let e = runtime.primitive::<moved::Scale>(device, by(3.0)).unwrap_err();
        assert_eq!(e.code(), Code::AbiMismatch);
        let parts = ["op `acme.scale`", "argument `count`", "use the types that the provider was built with"];
        assert!(parts.iter().all(|part| e.message().contains(part)), "{e}");
    };
    refused();
    // Also where the same request has been made with the right ones.
    runtime.primitive::<built::Scale>(device, by(3.0)).unwrap();
    refused();
    runtime.primitive::<built::Scale>(device, by(3.0)).unwrap();
}

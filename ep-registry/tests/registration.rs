//! Registering kernels as the guide shows it, and what a misspelt name in a condition is answered with.

#[path = "guide/relu.rs"]
mod relu;

use ep_core::hob::{self, Expr};
use ep_core::primitive::{ElementwiseUnary, ElementwiseUnaryCall, ElementwiseUnaryDesc, Softmax, UnaryOp};
use ep_core::primitive::{SoftmaxArgs, SoftmaxDesc};
use ep_core::provider::inline::{HostAllocator, HostDevice, InlineEvent, InlineStream};
use ep_core::provider::{
    Attribute, Device, DeviceInfo, Factory, Host, Kernel, MemoryKind, Options, Provider, Registrar,
    StreamOptions,
};
use ep_core::{DType, Result, Scalar};
use ep_registry::config::ProviderConfig;
use ep_registry::{Runtime, Status};

/// The CPU with an attribute, as the device of the skeleton has it.
#[derive(Default)]
struct Threads(HostDevice);

impl Device for Threads {
    type Stream = InlineStream;
    type Event = InlineEvent;
    type Allocator = HostAllocator;

    fn info(&self) -> DeviceInfo {
        let attributes = vec![("threads".to_owned(), Attribute::Scalar(Scalar::U64(2)))];
        DeviceInfo { attributes, ..HostDevice::cpu_info() }
    }

    fn create_stream(&self, options: StreamOptions) -> Result<InlineStream> {
        self.0.create_stream(options)
    }

    fn create_event(&self) -> Result<InlineEvent> {
        self.0.create_event()
    }

    fn open_allocator(&self, kind: MemoryKind) -> Result<HostAllocator> {
        self.0.open_allocator(kind)
    }
}

/// Registers what the guide shows; with options, also a softmax under the condition that they name.
struct Guide {
    kind: String,
    name: String,
}

impl Guide {
    fn condition(&self) -> Option<Expr> {
        let fact = match &*self.kind {
            "selector" => hob::selector(&self.name),
            "dtype" => hob::dtype(&self.name),
            "attr" => hob::attr(&self.name),
            "limit" => hob::limit(&self.name),
            "device" => hob::device(&self.name),
            _ => return None,
        };
        Some(fact.eq(1))
    }
}

struct Nothing;

impl Kernel<Softmax, Threads> for Nothing {
    unsafe fn launch(&self, _: &InlineStream, _: &SoftmaxArgs) -> Result<()> {
        Ok(())
    }
}

// SAFETY: memory is there until it is freed, work is done in order, and kernels stay in their operands.
unsafe impl Provider for Guide {
    type Device = Threads;
    const NAME: &'static str = "guide";
    const VERSION: &'static str = "1.0";

    fn create(_: Host, options: &Options) -> Result<Guide> {
        options.only(&["kind", "name"])?;
        Ok(Guide { kind: options.parse("kind", String::new())?, name: options.parse("name", String::new())? })
    }

    fn device_count(&self) -> Result<u32> {
        Ok(1)
    }

    fn open_device(&self, _: u32) -> Result<Threads> {
        Ok(Threads::default())
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        registrar.device_kind("cpu");
        if let Some(condition) = self.condition() {
            let build = |_: &Threads, _: &SoftmaxDesc| Ok(Nothing);
            let factory = Factory::<Softmax, _, _>::new("nothing", build);
            registrar.add(factory.dtypes([[DType::F32, DType::F32]]).when(condition))?;
        }
        relu::register(registrar)
    }
}

fn load(kind: &str, name: &str) -> Runtime {
    let mut settings = ProviderConfig::new("guide", "");
    settings.options = [("kind", kind), ("name", name)].map(|(k, v)| (k.into(), v.into())).into();
    Runtime::builder().threads(1).linked_with::<Guide>(settings).build().unwrap()
}

#[test]
fn the_kernel_of_the_guide_computes() {
    let runtime = load("", "");
    let device = runtime.device("cpu").unwrap();
    let desc = ElementwiseUnaryDesc::new(UnaryOp::RELU, DType::F32, DType::F32);
    let relu = runtime.primitive::<ElementwiseUnary>(device, desc).unwrap();
    let src = device.upload(&[-1.5f32, 2.5, f32::NEG_INFINITY]).unwrap();
    let mut dst = device.alloc(DType::F32, 3).unwrap();
    let call = ElementwiseUnaryCall { count: 3, src: &src, dst: &mut dst };
    relu.launch(&device.stream().unwrap(), call).unwrap();
    assert_eq!(dst.download::<f32>().unwrap(), [0.0, 2.5, 0.0]);
    let guide =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/writing-a-provider.md"));
    let (_, shown) = include_str!("guide/relu.rs").split_once("\n\n").unwrap();
    assert!(guide.unwrap().contains(&format!("```rust\n{shown}```")), "the guide and guide/relu.rs differ");
}

#[test]
fn a_misspelt_name_in_a_condition_is_answered_with_those_there_are() {
    let all =
        "Op `softmax` has dtypes src, dst; limits cols, alignment; devices of kind `cpu` declare threads";
    for (kind, name, guess) in [
        ("limit", "colz", "did you mean limit(\"cols\")? "),
        ("limit", "alignement", "did you mean limit(\"alignment\")? "),
        ("device", "thread", "did you mean device(\"threads\")? "),
        ("dtype", "source", ""),
        ("attr", "cols", "did you mean limit(\"cols\")? "),
        ("selector", "threads", "did you mean device(\"threads\")? "),
    ] {
        let runtime = load(kind, name);
        let entry = &runtime.report().entries[0];
        assert_eq!(entry.status, Status::Failed, "{kind} {name}");
        let wanted = format!("names {kind}({name:?}), which does not exist; {guess}{all}");
        assert!(entry.reason.contains(&wanted), "{wanted}\n{}", entry.reason);
    }
    for (kind, name) in [("limit", "alignment"), ("device", "threads"), ("dtype", "src")] {
        assert_eq!(load(kind, name).report().entries[0].status, Status::Loaded, "{kind} {name}");
    }
}

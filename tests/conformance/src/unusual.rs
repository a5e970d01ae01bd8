//! A provider that is right in unusual ways is not told that it is wrong.

use crate::abi::{self, Subject};
use crate::protocol::End;
use crate::refusals::refusal_cases;
use crate::{Outcome, objects};
use ep_core::abi::{
    EP_EXPR_ARG, EP_EXPR_DIV, EP_FIELD_LIMIT, EpExprNode, EpField, EpOpSchema, node, node_const, text,
};
use ep_core::op::{Op, OperandUse, limit};
use ep_core::primitive::{Softmax, SoftmaxArgs, SoftmaxDesc, TensorFill};
use ep_core::provider::inline::{HOST_SPACE, HostAllocator, InlineEvent};
use ep_core::provider::{
    Allocator, CopyRequest, Device, DeviceInfo, Factory, Host, Kernel, MemoryKind, MemoryStats, Options,
    Provider, Registrar, Stream, StreamOptions, query,
};
use ep_core::{DType, Error, Result, hob};
use ep_registry::Runtime;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// A device whose name is another one in each instance, and which does not reach its pinned memory.
struct Aside {
    number: u8,
    allocator: HostAllocator,
}

fn space(number: u8) -> String {
    format!("acme:{number}")
}

struct AsideStream(u8);

impl Stream for AsideStream {
    type Event = InlineEvent;

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn query(&self) -> Result<bool> {
        Ok(true)
    }

    unsafe fn copy(&self, copy: CopyRequest<'_>) -> Result<()> {
        if let Some(other) =
            [copy.src_space, copy.dst_space].into_iter().find(|s| *s != HOST_SPACE && *s != space(self.0))
        {
            return Err(Error::unsupported(format!("memory space `{other}` is not reached")));
        }
        let src = std::ptr::with_exposed_provenance::<u8>(copy.src as usize);
        let dst = std::ptr::with_exposed_provenance_mut::<u8>(copy.dst as usize);
        // SAFETY: as the caller promises.
        unsafe { std::ptr::copy(src, dst, copy.bytes as usize) };
        Ok(())
    }

    fn record(&self, _: &InlineEvent) -> Result<()> {
        Ok(())
    }

    fn wait(&self, _: &InlineEvent) -> Result<()> {
        Ok(())
    }
}

struct AsideAllocator(HostAllocator);

impl Allocator for AsideAllocator {
    type Stream = AsideStream;

    fn alloc(&self, bytes: u64, alignment: u64, _: Option<&AsideStream>) -> Result<u64> {
        self.0.allocate(bytes, alignment)
    }

    fn free(&self, address: u64, bytes: u64) -> Result<()> {
        self.0.release(address, bytes)
    }

    fn stats(&self) -> MemoryStats {
        self.0.stats()
    }
}

impl Device for Aside {
    type Stream = AsideStream;
    type Event = InlineEvent;
    type Allocator = AsideAllocator;

    fn info(&self) -> DeviceInfo {
        let space = space(self.number);
        DeviceInfo {
            kind: "acme".to_owned(),
            name: format!("acme of instance {}", self.number),
            uuid: [self.number; 16],
            inline: true,
            memory_space: space.clone(),
            reads: vec![space.clone()],
            writes: vec![space],
            ..DeviceInfo::default()
        }
    }

    fn create_stream(&self, _: StreamOptions) -> Result<AsideStream> {
        Ok(AsideStream(self.number))
    }

    fn create_event(&self) -> Result<InlineEvent> {
        Ok(InlineEvent)
    }

    fn open_allocator(&self, _: MemoryKind) -> Result<AsideAllocator> {
        Ok(AsideAllocator(self.allocator.clone()))
    }
}

static HALF_OF_ROWS: [EpExprNode; 3] = [node(EP_EXPR_ARG, "rows"), node_const(2), node(EP_EXPR_DIV, "")];

/// A softmax whose limit is one of pairs of rows.
struct Pairs;

// SAFETY: that of `Softmax`, but for what the limit bounds.
unsafe impl Op for Pairs {
    const NAME: &'static str = "acme.pairs";
    const VERSION: u32 = 1;
    type Desc = SoftmaxDesc;
    type Args = SoftmaxArgs;
    type Uses = [OperandUse; 2];

    fn raw_schema() -> &'static EpOpSchema {
        static SCHEMA: OnceLock<EpOpSchema> = OnceLock::new();
        SCHEMA.get_or_init(|| {
            let schema = *Softmax::raw_schema();
            // SAFETY: the fields of a static schema.
            let fields =
                unsafe { std::slice::from_raw_parts(schema.desc_fields, schema.num_desc_fields as usize) };
            let with_bounds = |f: &EpField| match f.kind {
                EP_FIELD_LIMIT => EpField { bounds: HALF_OF_ROWS.as_ptr(), num_bounds: 3, ..*f },
                _ => *f,
            };
            let fields: Vec<EpField> = fields.iter().map(with_bounds).collect();
            EpOpSchema { name: text("acme.pairs"), desc_fields: fields.leak().as_ptr(), ..schema }
        })
    }

    unsafe fn check(desc: &SoftmaxDesc, args: &SoftmaxArgs) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { Softmax::check(&desc.with_max_cols(0), args) }?;
        limit("cols", desc.max_cols, args.rows as u64 / 2)
    }

    unsafe fn uses(desc: &SoftmaxDesc, args: &SoftmaxArgs) -> [OperandUse; 2] {
        // SAFETY: as the caller promises.
        unsafe { Softmax::uses(desc, args) }
    }

    fn bind(args: &mut SoftmaxArgs, addresses: &[u64]) {
        Softmax::bind(args, addresses);
    }

    fn in_place(index: usize) -> u64 {
        Softmax::in_place(index)
    }
}

/// Whose results nobody looks at.
struct Nothing;

impl<O: Op> Kernel<O, Aside> for Nothing {
    unsafe fn launch(&self, _: &AsideStream, _: &O::Args) -> Result<()> {
        Ok(())
    }
}

struct Unusual {
    number: u8,
    fp24: DType,
}

// SAFETY: memory is there until it is freed, work is done when a call returns, and copies stay in their operands; there are no
// results to look at.
unsafe impl Provider for Unusual {
    type Device = Aside;
    const NAME: &'static str = "unusual";
    const VERSION: &'static str = "1";

    fn create(host: Host, _: &Options) -> Result<Unusual> {
        static INSTANCES: AtomicU8 = AtomicU8::new(0);
        let fp24 = host.intern_dtype("acme.fp24", 24, 1)?;
        Ok(Unusual { number: INSTANCES.fetch_add(1, Ordering::Relaxed), fp24 })
    }

    fn device_count(&self) -> Result<u32> {
        Ok(1)
    }

    fn open_device(&self, _: u32) -> Result<Aside> {
        Ok(Aside { number: self.number, allocator: HostAllocator::default() })
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        registrar.device_kind("acme");
        registrar.add(Factory::<TensorFill, _, _>::new("fill", |_, _| Ok(Nothing)).dtypes([[self.fp24]]))?;
        let wide = |_: &Aside, desc: &SoftmaxDesc| match desc.max_cols {
            0 | 1025.. => Ok(Nothing),
            few => Err(Error::internal(format!("asked for {few} columns, which the condition rules out"))),
        };
        registrar.add(
            Factory::<Softmax, _, _>::new("wide", wide)
                .dtypes([[DType::F32, DType::F32]])
                .when(hob::limit("cols").gt(1024)),
        )?;
        registrar
            .add(Factory::<Pairs, _, _>::new("pairs", |_, _| Ok(Nothing)).dtypes([[DType::F32, DType::F32]]))
    }
}

fn runtime() -> Runtime {
    let runtime = Runtime::builder().threads(1).linked::<Unusual>("unusual").build().unwrap();
    assert_eq!(runtime.devices().len(), 1, "{}", runtime.report());
    runtime
}

/// How the case of an op about what to refuse ended; no other case of it failed.
fn refusal(op: &str, name: &str) -> Outcome {
    let runtime = runtime();
    let all = refusal_cases(&runtime, &runtime.devices()[0], op, 7);
    let failed: Vec<_> = all.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Fail(_))).collect();
    assert!(failed.is_empty(), "{failed:?}");
    all.into_iter().find(|(n, _)| n.ends_with(name)).unwrap().1
}

#[test]
fn a_dtype_that_needs_no_alignment_is_launched_at_any_address() {
    let outcome = refusal("tensor_fill", "/arguments-with-misaligned-addresses");
    assert!(matches!(outcome, Outcome::Unsupported(_)), "{outcome:?}");
}

#[test]
fn a_condition_that_small_limits_do_not_meet_is_kept() {
    let outcome = refusal("softmax", "/arguments-beyond-a-limit");
    assert!(matches!(outcome, Outcome::Unsupported(_)), "{outcome:?}");
}

#[test]
fn a_limit_may_bound_something_else_than_a_size() {
    let outcome = refusal("acme.pairs", "/arguments-beyond-a-limit");
    assert!(matches!(outcome, Outcome::Unsupported(_)), "{outcome:?}");
}

#[test]
fn pinned_memory_that_no_copy_reaches_is_not_copied() {
    let runtime = runtime();
    let (end, why, _) = objects::run("pinned-memory", &runtime, &runtime.devices()[0], 7);
    assert!(matches!(end, End::Unsupported) && why.contains("`host-pinned:acme:"), "{end:?}: {why}");
    let (end, why, _) = objects::run("copies", &runtime, &runtime.devices()[0], 7);
    assert!(matches!(end, End::Passed), "{why}");
}

#[test]
fn devices_of_two_instances_may_have_different_names() {
    let (end, why, _) = abi::run("device-description", &Subject::linked(query::<Unusual>));
    assert!(matches!(end, End::Passed), "{end:?}: {why}");
}

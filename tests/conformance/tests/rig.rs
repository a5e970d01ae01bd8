//! The rig finds what is wrong with kernels, and only that.

use ep_conformance::{Case, Edge, Key, Outcome, Rig, cases, near_limits};
use ep_core::op::MAX_LIST;
use ep_core::primitive::{
    Add, AddArgs, ElementwiseUnary, ElementwiseUnaryArgs, Softmax, SoftmaxArgs, TensorFill, TensorFillArgs,
    UnaryOp,
};
use ep_core::provider::inline::{HostDevice, InlineStream};
use ep_core::provider::{Factory, Host, Kernel, Options, Provider, Registrar, cells};
use ep_core::{Code, DType, Error, Result, hob};
use ep_registry::Runtime;
use ep_registry::config::ProviderConfig;
use std::sync::atomic::{AtomicU8, Ordering};

/// A provider with one defect, or none.
struct Faulty {
    defect: String,
    fp8: DType,
}

// SAFETY: its kernels are wrong inside of their operands only; memory and order are those of `HostDevice`.
unsafe impl Provider for Faulty {
    type Device = HostDevice;
    const NAME: &'static str = "faulty";
    const VERSION: &'static str = "1";

    fn create(host: Host, options: &Options) -> Result<Faulty> {
        let fp8 = host.intern_dtype("acme.fp8", 8, 1)?;
        Ok(Faulty { defect: options.get("defect").unwrap_or_default().to_owned(), fp8 })
    }

    fn device_count(&self) -> Result<u32> {
        Ok(1)
    }

    fn open_device(&self, _: u32) -> Result<HostDevice> {
        Ok(HostDevice::default())
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        let defect = || self.defect.clone();
        let (relu, copy, rows) = (defect(), defect(), defect());
        registrar.device_kind("cpu");
        registrar.add(
            Factory::<ElementwiseUnary, _, _>::new("relu", move |_, _| Ok(Relu(relu.clone())))
                .selectors([[UnaryOp::RELU.0]])
                .dtypes([[DType::F32, DType::F32]]),
        )?;
        registrar.add(
            Factory::<TensorFill, _, _>::new("fill", move |_, _| Ok(FillFp8(copy.clone(), AtomicU8::new(0))))
                .dtypes([[self.fp8]]),
        )?;
        registrar.add(Factory::<Add, _, _>::new("sum", |_, _| Ok(Sum)).dtypes([[DType::I32]]))?;
        registrar.add(
            Factory::<Softmax, _, _>::new("softmax", move |_, _| Ok(Rows(rows.clone())))
                .dtypes([[DType::F32, DType::F32]])
                .when(hob::limit("cols").le(64))
                .priority(1),
        )?;
        if !self.defect.starts_with("narrow") {
            return Ok(());
        }
        // Takes what the other does not, and is never asked where both could be.
        registrar.add(
            Factory::<Softmax, _, _>::new("any", |_, _| Ok(Rows(String::new())))
                .dtypes([[DType::F32, DType::F32]]),
        )
    }
}

struct Relu(String);

impl Kernel<ElementwiseUnary, HostDevice> for Relu {
    unsafe fn launch(&self, _: &InlineStream, args: &ElementwiseUnaryArgs) -> Result<()> {
        let defect = &*self.0;
        let count = args.count;
        if defect == "refuses nothing to do" && count == 0 {
            return Err(Error::invalid("`count` is 0"));
        }
        if defect == "panics" && count == 37 {
            panic!("37 elements");
        }
        // SAFETY: the caller promises both operands; the guard zone is behind them, which the defect is about.
        let (src, dst) = unsafe {
            (
                cells::<f32>(args.src, count),
                cells::<f32>(args.dst, count + i64::from(defect == "writes past the end" && count > 0)),
            )
        };
        let whole = if defect == "leaves the tail" { count as usize / 8 * 8 } else { count as usize };
        for (d, s) in dst.iter().zip(src).take(whole) {
            let x = s.get();
            d.set(match defect {
                "drops NaN" => x.max(0.0),
                "is off by an ulp" if x > 1.0 => f32::from_bits(x.to_bits() + 3),
                _ if x < 0.0 => 0.0,
                _ => x,
            });
        }
        if defect == "writes past the end" && count > 0 {
            dst[count as usize].set(1.0);
        }
        if defect == "writes the source" && count > 1 && args.src != args.dst {
            src[1].set(5.0);
        }
        Ok(())
    }
}

/// Fills with an element of a dtype that nobody else knows, and a counter for the defect.
struct FillFp8(String, AtomicU8);

impl Kernel<TensorFill, HostDevice> for FillFp8 {
    unsafe fn launch(&self, _: &InlineStream, args: &TensorFillArgs) -> Result<()> {
        let launched = self.1.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller promises both operands.
        let (src, dst) = unsafe { (cells::<u8>(args.src, 1), cells::<u8>(args.dst, args.count)) };
        let extra = if self.0 == "depends on the launch" { launched } else { 0 };
        let whole = if self.0 == "leaves an element" { dst.len().saturating_sub(1) } else { dst.len() };
        dst[..whole].iter().for_each(|d| d.set(src[0].get().wrapping_add(extra)));
        Ok(())
    }
}

/// Sums of any number of sources.
struct Sum;

impl Kernel<Add, HostDevice> for Sum {
    unsafe fn launch(&self, _: &InlineStream, args: &AddArgs) -> Result<()> {
        // SAFETY: as many addresses as the list says, which the caller has checked.
        let sources = unsafe { std::slice::from_raw_parts(args.srcs, args.arity as usize) };
        // SAFETY: the caller promises all operands; they may be the same memory.
        let (dst, sources): (_, Vec<_>) = unsafe {
            (
                cells::<i32>(args.dst, args.count),
                sources.iter().map(|s| cells::<i32>(*s, args.count)).collect(),
            )
        };
        for (i, d) in dst.iter().enumerate() {
            d.set(sources.iter().fold(0, |sum, s| sum.wrapping_add(s[i].get())));
        }
        Ok(())
    }
}

/// Softmax of rows of at most 64 columns, in f64.
struct Rows(String);

impl Kernel<Softmax, HostDevice> for Rows {
    unsafe fn launch(&self, _: &InlineStream, args: &SoftmaxArgs) -> Result<()> {
        let (cols, inner) = (args.cols.max(0) as usize, args.inner.max(1) as usize);
        let defect = &*self.0;
        // SAFETY: the caller promises scratch memory; what is behind it is its guard zone, which a defect is about.
        let scratch = unsafe {
            let overrun = defect == "workspace overrun" && args.workspace != 0;
            cells::<f64>(args.workspace, (args.workspace_bytes / 8) as i64 + i64::from(overrun))
        };
        scratch.last().inspect(|last| last.set(last.get() + 1.0));
        let count = args.rows * args.cols * args.inner.max(1);
        // SAFETY: the caller promises both operands; they may be the same memory.
        let (src, dst) = unsafe { (cells::<f32>(args.src, count), cells::<f32>(args.dst, count)) };
        for block in 0..args.rows.max(0) as usize {
            for lane in 0..inner {
                let at = |j: usize| block * cols * inner + j * inner + lane;
                let row: Vec<f64> = (0..cols).map(|j| src[at(j)].get().into()).collect();
                let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let mut sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
                if defect == "workspace not cleared" {
                    sum += scratch.first().map_or(0.0, std::cell::Cell::get);
                }
                let misses = match defect {
                    "misses the last row" | "narrow misses the last row" => true,
                    "narrow misses the last row at its limit" => cols == 64,
                    _ => false,
                };
                let last = if misses { args.rows - 1 } else { args.rows };
                if (block as i64) < last {
                    (0..cols).for_each(|j| dst[at(j)].set(((row[j] - max).exp() / sum) as f32));
                }
            }
        }
        Ok(())
    }

    fn workspace_size(&self, args: &SoftmaxArgs) -> Result<u64> {
        Ok(if self.0.starts_with("workspace") { args.rows as u64 * 8 } else { 0 })
    }
}

fn runtime(defect: &str) -> Runtime {
    let mut settings = ProviderConfig::new("faulty", "");
    settings.options = [("defect".to_owned(), defect.to_owned())].into();
    Runtime::builder().threads(1).linked_with::<Faulty>(settings).build().unwrap()
}

/// The only key of an op.
fn key(rig: &Rig<'_>, op: &str) -> Key {
    let keys: Vec<Key> = rig.keys().into_iter().filter(|k| k.op == op).collect();
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys[0].clone()
}

/// The cases of a key, and those near what its conditions compare limits with.
fn cases_near(rig: &Rig<'_>, key: &Key) -> Vec<Case> {
    let all = cases(key, 1);
    let schema = ep_core::schema::core_schema(&key.op).unwrap();
    let near = near_limits(&all, schema, &rig.advertised(key));
    assert_eq!(near.len(), if key.op == "softmax" { 3 } else { 0 }, "{near:?}");
    all.into_iter().chain(near).collect()
}

/// Runs every case of an op; the messages of those that fail, and how many are not supported.
fn run(op: &str, defect: &str) -> (Vec<String>, usize, usize) {
    let runtime = runtime(defect);
    let mut rig = Rig::new(&runtime, &runtime.devices()[0]).unwrap();
    let (mut failed, mut unsupported, mut count) = (Vec::new(), 0, 0);
    for case in cases_near(&rig, &key(&rig, op)) {
        let expected = rig.expect(&case).unwrap();
        count += 1;
        match rig.run_everywhere(&case, &expected).unwrap() {
            Outcome::Pass => {}
            Outcome::Fail(why) => failed.push(why),
            Outcome::Unsupported(_) => unsupported += 1,
        }
    }
    (failed, unsupported, count)
}

#[test]
fn correct_kernels_pass() {
    for op in ["elementwise_unary", "tensor_fill", "add"] {
        let (failed, unsupported, count) = run(op, "");
        assert!(failed.is_empty() && unsupported == 0 && count >= 12, "{op}: {failed:?}");
    }
}

#[test]
fn correct_factories_beside_each_other_and_their_workspace_pass() {
    for which in ["narrow", "workspace"] {
        let (failed, ..) = run("softmax", which);
        assert!(failed.is_empty(), "{which}: {failed:?}");
    }
}

#[test]
fn every_defect_is_found() {
    for (op, defect, part) in [
        ("elementwise_unary", "leaves the tail", "`dst`["),
        ("elementwise_unary", "writes past the end", "wrote outside of `dst`"),
        ("elementwise_unary", "drops NaN", "expected NaN"),
        ("elementwise_unary", "is off by an ulp", " ulp"),
        ("elementwise_unary", "writes the source", "`src`[1], which is only read"),
        ("elementwise_unary", "refuses nothing to do", "refused: "),
        ("elementwise_unary", "panics", "37 elements"),
        ("tensor_fill", "depends on the launch", "differs at byte"),
        ("tensor_fill", "leaves an element", "differs at byte"),
        ("softmax", "misses the last row", "`dst`["),
        // The general factory, which takes every request for which nothing is promised, is right.
        ("softmax", "narrow misses the last row", "by factory `softmax`"),
        ("softmax", "narrow misses the last row at its limit", "by factory `softmax`"),
        ("softmax", "workspace overrun", "wrote outside of its workspace"),
        ("softmax", "workspace not cleared", "given the workspace of"),
    ] {
        let (failed, _, _) = run(op, defect);
        assert!(failed.iter().any(|f| f.contains(part)), "{op}, {defect}: {failed:?}");
    }
}

#[test]
fn a_condition_is_met_by_bounded_requests_and_no_failure_where_it_cannot_be() {
    let (failed, unsupported, count) = run("softmax", "");
    assert!(failed.is_empty(), "{failed:?}");
    assert!(unsupported > 0 && unsupported < count / 2 + 4, "{unsupported} of {count}");
}

#[test]
fn a_launch_may_have_as_many_buffers_as_its_op() {
    let runtime = runtime("");
    let mut rig = Rig::new(&runtime, &runtime.devices()[0]).unwrap();
    let key = key(&rig, "add");
    for arity in [16, 17, 100, MAX_LIST] {
        let mut case = Case::new(&key, "many sources").sizes(&[("count", 37)]);
        case.arity = arity;
        let expected = rig.expect(&case).unwrap();
        assert_eq!(rig.run_everywhere(&case, &expected).unwrap(), Outcome::Pass, "{arity} sources");
        assert!(rig.measure(&case, &expected).unwrap().is_some(), "{arity} sources");
    }
}

#[test]
fn what_is_too_large_for_pages_is_run_without_them() {
    let runtime = runtime("");
    let mut rig = Rig::new(&runtime, &runtime.devices()[0]).unwrap();
    let key = key(&rig, "add");
    let ints_of_4_mib = 1 << 20;
    for (arity, count, fits) in
        [(15, 1, true), (16, 1, false), (1, ints_of_4_mib, true), (1, ints_of_4_mib + 1, false)]
    {
        let mut case = Case::new(&key, "large").sizes(&[("count", count)]);
        case.arity = arity;
        let expected = rig.expect(&case).unwrap();
        let at_pages = rig.run(&case, &expected, Edge::End).map_err(|e| e.code());
        assert_eq!(at_pages, if fits { Ok(Outcome::Pass) } else { Err(Code::Unsupported) }, "{case}");
        assert_eq!(rig.run_everywhere(&case, &expected).unwrap(), Outcome::Pass, "{case}");
    }
}

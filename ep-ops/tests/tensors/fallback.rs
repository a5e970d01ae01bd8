//! What a device cannot do runs on the next one, and is told.

use crate::log;
use crate::under::{Bare, invalid, message, simulated, with_bare, with_movers};
use ep_core::primitive::{BinaryOp, ElementwiseUnary, ElementwiseUnaryCall, ElementwiseUnaryDesc, UnaryOp};
use ep_core::{Code, DType, Error, Result};
use ep_ops::{Fallback, MemoryFormat, Operator, Ops, Signature, Spec, Tensor};
use ep_registry::Runtime;

/// `max(x, 0)`.
#[derive(Debug)]
struct Relu;

impl Operator for Relu {
    fn name(&self) -> &'static str {
        "relu"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        match inputs {
            [x] => Ok(vec![x.clone()]),
            _ => Err(Error::invalid(format!("{} inputs, and it has one", inputs.len()))),
        }
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let x = ops.contiguous(inputs[0], MemoryFormat::Contiguous)?;
        let desc = ElementwiseUnaryDesc::new(UnaryOp::RELU, x.dtype(), x.dtype());
        let relu = ops.primitive::<ElementwiseUnary>(desc)?;
        let y = ops.empty_like_spec(x.spec())?;
        relu.launch(
            ops.stream(),
            ElementwiseUnaryCall { count: x.numel(), src: x.read()?.view()?, dst: y.write()?.view()? },
        )?;
        Ok(vec![y])
    }

    fn signatures(&self, _: &[Spec]) -> Vec<Signature> {
        Vec::new()
    }
}

fn both(runtime: &Runtime) -> Ops<'_> {
    Ops::new(runtime, "sim:0").unwrap().with_fallback(["sim:0", "sim:1", "cpu:0"]).unwrap()
}

#[test]
fn an_operator_runs_elsewhere_and_comes_back() {
    let runtime = with_bare();
    let ops = both(&runtime);
    let x = ops.tensor(&[-1.0f32, 2.0, -3.0, 4.0, 5.0, -6.0], &[2, 3]).unwrap();
    for times in 1..3 {
        let y = ops.apply(&Relu, &[&x]).unwrap().remove(0);
        assert_eq!(y.device().name(), "sim:0");
        assert_eq!(ops.to_vec::<f32>(&y).unwrap(), [0.0, 2.0, 0.0, 4.0, 5.0, 0.0]);
        let [Fallback { operator, from, to, bytes, reason, times: counted }] = &ops.fallbacks()[..] else {
            panic!("{:?}", ops.fallbacks())
        };
        assert_eq!((*operator, from.as_str(), to.as_str()), ("relu", "sim:0", "cpu:0"));
        // 24 bytes there and as many back.
        assert_eq!((*bytes, *counted), (48 * times, times));
        assert!(reason.contains("elementwise_unary"), "{reason}");
    }
    assert_eq!(ops.to_vec::<f32>(&x).unwrap(), [-1.0, 2.0, -3.0, 4.0, 5.0, -6.0]);
}

/// Each copy too: of any layout, into any layout, though the device has not even `strided_copy` or `memset`.
#[test]
fn copies_and_creation_run_elsewhere() {
    let runtime = with_bare();
    let ops = both(&runtime);
    let x = ops.arange(DType::I32, 0, 12, 1).unwrap().view(&[3, 4]).unwrap();
    let columns = x.slice(1, 0, 4, 2).unwrap();
    assert_eq!(ops.to_vec::<i32>(&columns).unwrap(), [0, 2, 4, 6, 8, 10]);
    let t = ops.contiguous(&x.t().unwrap(), MemoryFormat::Contiguous).unwrap();
    assert_eq!((t.device().name(), t.strides()), ("sim:0", [3i64, 1].as_slice()));
    assert_eq!(ops.to_vec::<i32>(&t).unwrap(), [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]);
    let last = ops.clone(&x.view(&[1, 2, 3, 2]).unwrap(), MemoryFormat::ChannelsLast).unwrap();
    assert_eq!(last.strides(), [12, 1, 4, 2]);
    ops.copy_(&columns, &ops.full(DType::F64, &[], 9.9).unwrap()).unwrap();
    assert_eq!(ops.to_vec::<i32>(&x).unwrap(), [9, 1, 9, 3, 9, 5, 9, 7, 9, 9, 9, 11]);
    let names: Vec<_> = ops.fallbacks().iter().map(|f| f.operator).collect();
    assert_eq!(names, ["arange", "contiguous", "clone", "full", "copy_"]);
    // Into what was never written, whole, in part, and behind what was.
    let fresh = ops.empty(DType::I64, &[4, 3]).unwrap();
    ops.copy_(&fresh, &x.t().unwrap()).unwrap();
    assert_eq!(ops.to_vec::<i64>(&fresh).unwrap(), [9, 9, 9, 1, 5, 9, 9, 9, 9, 3, 7, 11]);
    let rows = ops.empty(DType::I32, &[3, 4]).unwrap();
    ops.copy_(&rows.narrow(0, 0, 1).unwrap(), &ops.tensor(&[5i64], &[1]).unwrap()).unwrap();
    ops.copy_(
        &rows.narrow(1, 1, 2).unwrap().narrow(0, 1, 2).unwrap(),
        &x.narrow(1, 2, 2).unwrap().narrow(0, 1, 2).unwrap(),
    )
    .unwrap();
    let before = ops.to_vec::<i32>(&rows.narrow(0, 0, 2).unwrap()).unwrap();
    assert_eq!(before, [5, 5, 5, 5, 0, 9, 7, 0]);
    let flags = ops.empty(DType::BOOL, &[2, 2]).unwrap();
    ops.copy_(&flags.t().unwrap(), &ops.tensor(&[true, false, true, true], &[2, 2]).unwrap()).unwrap();
    assert_eq!(ops.to_vec::<bool>(&flags).unwrap(), [true, true, false, true]);
}

/// A device that copies one dtype and converts none sends the elements of a view alone, and puts them back in place.
#[test]
fn one_dtype_only() {
    let runtime = with_movers();
    let ops = Ops::new(&runtime, "cpu:0").unwrap().with_fallback(["sim:0"]).unwrap();
    let x = ops.tensor(&[0i32, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], &[3, 4]).unwrap();
    let columns = x.slice(1, 1, 4, 2).unwrap().t().unwrap().flip(&[1]).unwrap();
    ops.copy_(&columns, &ops.tensor(&[20i64, 30, 40], &[3]).unwrap()).unwrap();
    assert_eq!(ops.to_vec::<i32>(&x).unwrap(), [0, 40, 2, 40, 4, 30, 6, 30, 8, 20, 10, 20]);
    let told = ops.fallbacks();
    // There 6 i32 and 3 i64, back 6 i32.
    assert_eq!((told.len(), told[0].operator, told[0].bytes), (1, "copy_", 72));
    assert!(told[0].reason.contains("i64"), "{told:?}");

    // An f16 view with gaps, which cannot be packed here, goes there as it lies.
    let halves = ops.full(DType::F16, &[2, 3], 1.0).unwrap().select(1, 1).unwrap();
    assert_eq!(ops.to_vec::<i32>(&ops.to_dtype(&halves, DType::I32).unwrap()).unwrap(), [1, 1]);
    let told = ops.fallbacks();
    // There 4 of the 6 halves, back 2 i32.
    assert_eq!((told[2].operator, told[2].bytes), ("to_dtype", 16));
}

/// What another device computes for an operator in place comes back into the tensor, and none of it while a graph is recorded.
#[test]
fn in_place_elsewhere() {
    let runtime = with_bare();
    let ops = Ops::new(&runtime, "sim:0").unwrap().with_fallback(["cpu:0"]).unwrap();
    let x = ops.tensor(&[1.0f32, -2.0, 3.0, -4.0], &[2, 2]).unwrap();
    let row = x.select(0, 1).unwrap();
    ops.unary_(UnaryOp::ABS, &row).unwrap();
    ops.binary_(BinaryOp::ADD, &x, &row).unwrap();
    assert_eq!(ops.to_vec::<f32>(&x).unwrap(), [4.0, 2.0, 6.0, 8.0]);
    let told = ops.fallbacks();
    assert_eq!(told.iter().map(|f| f.operator).collect::<Vec<_>>(), ["elementwise_unary", "add"]);
    let told = message(ops.stream().capture(|_| ops.unary_(UnaryOp::NEGATIVE, &x)), Code::Unsupported);
    assert!(told.contains("records a graph, in which nothing can run elsewhere"), "{told}");
    let here = Ops::new(&runtime, "cpu:0").unwrap();
    assert_eq!(here.to_vec::<f32>(&x).unwrap(), [4.0, 2.0, 6.0, 8.0]);
}

/// A device that computes from dense operands only makes them, and nothing runs elsewhere.
#[test]
fn views_are_copied_where_they_are_not_taken_as_they_lie() {
    let runtime = with_movers();
    let ops = Ops::new(&runtime, "cpu:0").unwrap();
    let (x, y) =
        (ops.tensor(&[1i32, 2, 3, 4, 5, 6], &[2, 3]).unwrap(), ops.tensor(&[1i32, -1], &[2, 1]).unwrap());
    let turned = x.t().unwrap();
    let negative = ops.unary(UnaryOp::NEGATIVE, &turned).unwrap();
    assert_eq!(ops.to_vec::<i32>(&negative).unwrap(), [-1, -4, -2, -5, -3, -6]);
    assert_eq!(ops.to_vec::<i32>(&ops.matmul(&turned, &y).unwrap()).unwrap(), [-3, -3, -3]);
    let product = ops.matmul(&y.t().unwrap(), &turned.t().unwrap()).unwrap();
    assert_eq!(ops.to_vec::<i32>(&product).unwrap(), [-3, -3, -3]);
    // It has no `cast` of its own, and its copy does for a view.
    let gapped = x.narrow(1, 0, 2).unwrap();
    assert_eq!(ops.to_vec::<i32>(&ops.cast(&gapped, DType::I32).unwrap()).unwrap(), [1, 2, 4, 5]);
    message(ops.cast(&gapped, DType::I64), Code::Unsupported);
    // It has no `memset`: what lies one behind the other is joined without.
    let joined = ops.concat(&[&negative, &turned.narrow(0, 0, 1).unwrap()], 0).unwrap();
    assert_eq!(ops.to_vec::<i32>(&joined).unwrap(), [-1, -4, -2, -5, -3, -6, 1, 4]);
    message(ops.concat(&[&negative, &turned], 1), Code::Unsupported);
    // What it does not have at all it has not for dense operands either.
    let told = message(ops.unary(UnaryOp::ABS, &turned), Code::Unsupported);
    assert!(told.contains("negative.i32: needs op in [negative], but op is abs"), "{told}");
}

#[test]
fn without_a_device_that_can_all_reasons_are_told() {
    let runtime = with_bare();
    let ops = Ops::new(&runtime, "sim:0").unwrap();
    let x = ops.tensor(&[1.0f32], &[1]).unwrap();
    let told = message(ops.apply(&Relu, &[&x]), Code::Unsupported);
    assert!(told.starts_with("relu: no device can do it\nsim:0: "), "{told}");
    assert!(told.ends_with("\nthere is no fallback; name devices that can with with_fallback"), "{told}");

    let ops = ops.with_fallback(["sim:1", "sim:0", "cpu:0"]).unwrap();
    let flags = ops.tensor(&[true, false], &[2]).unwrap();
    let complex = ops.tensor(&[true], &[1]).unwrap();
    let told = message(ops.apply(&Halves, &[&flags, &complex]), Code::Unsupported);
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(
        lines,
        [
            "halves: no device can do it",
            "sim:0: nobody halves bool on sim:0",
            "sim:1: nobody halves bool on sim:1",
            "cpu:0: nobody halves bool on cpu:0"
        ]
    );
    assert!(ops.fallbacks().is_empty());

    // An error that is none of what a device lacks ends it.
    let told =
        message(ops.apply(&Halves, &[&ops.tensor(&[1.0f32], &[1]).unwrap(), &complex]), Code::Unavailable);
    assert_eq!(told, "halves of f32[1], bool[1]: on sim:1 in place of sim:0: out of order");
    assert!(message(Ops::new(&runtime, "npu:0"), Code::NotFound).starts_with("no device `npu:0`"));
    assert!(
        message(Ops::new(&runtime, "cpu").unwrap().with_fallback(["npu"]), Code::NotFound).contains("npu")
    );
}

/// What runs elsewhere would not be part of the graph.
#[test]
fn nothing_runs_elsewhere_while_a_graph_is_recorded() {
    let runtime = with_bare();
    let ops = both(&runtime);
    let x = ops.tensor(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2]).unwrap();
    let far = Ops::new(&runtime, "cpu:0").unwrap().zeros(DType::F32, &[2]).unwrap();
    let told = message(ops.stream().capture(|_| ops.apply(&Relu, &[&x]).map(|_| ())), Code::Unsupported);
    assert!(told.ends_with("\nits stream records a graph, in which nothing can run elsewhere"), "{told}");
    let told = message(ops.stream().capture(|_| ops.copy_(&far, &x.select(0, 0)?)), Code::Unsupported);
    assert_eq!(
        told,
        "work on cpu:0 while the stream of sim:0 records a graph, which would not do it again; do it before"
    );
    assert!(ops.fallbacks().is_empty());
}

/// An operator that nobody can run.
#[derive(Debug)]
struct Halves;

impl Operator for Halves {
    fn name(&self) -> &'static str {
        "halves"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        if inputs.len() == 2 { Ok(inputs[..1].to_vec()) } else { Err(Error::invalid("two inputs, please")) }
    }

    fn run(&self, ops: &Ops<'_>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let (dtype, device) = (inputs[0].dtype(), ops.device().name());
        match dtype {
            DType::BOOL => Err(Error::unsupported(format!("nobody halves {dtype} on {device}"))),
            DType::F32 if device == "sim:0" => Err(Error::unsupported("not here")),
            DType::F32 => Err(Error::unavailable("out of order")),
            _ => Ok(vec![ops.empty(DType::F64, &[7])?]),
        }
    }

    fn signatures(&self, _: &[Spec]) -> Vec<Signature> {
        Vec::new()
    }
}

#[test]
fn inputs_and_outputs_are_checked() {
    let runtime = with_bare();
    let ops = both(&runtime);
    let (x, far) = (
        ops.tensor(&[1i32], &[1]).unwrap(),
        Ops::new(&runtime, "cpu").unwrap().tensor(&[1i32], &[1]).unwrap(),
    );
    assert_eq!(
        invalid(ops.apply(&Halves, &[&x, &far])),
        "halves: input 1 is on cpu:0 and the operators on sim:0; bring it with to_device"
    );
    assert_eq!(invalid(ops.apply(&Halves, &[&x])), "halves: two inputs, please");
    assert_eq!(
        message(ops.apply(&Halves, &[&x, &x]), Code::Internal),
        "halves has inferred [\"i32[1]\"] and made [\"f64[7]\"]; mend the operator"
    );
}

/// Each fallback is an event.
#[test]
fn it_is_logged() {
    let runtime = with_bare();
    let ops = both(&runtime);
    let x = ops.tensor(&[1.0f32, 2.0], &[2]).unwrap();
    log::take();
    ops.apply(&Relu, &[&x]).unwrap();
    let lines = log::take();
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in
        ["INFO", "operator=\"relu\"", "from=\"sim:0\"", "to=\"cpu:0\"", "bytes=16", "elementwise_unary"]
    {
        assert!(lines[0].contains(part), "{part} in {lines:?}");
    }
}

/// Nothing is left on any device, nor is any misuse noticed by the simulated ones.
#[test]
fn nothing_is_left() {
    let runtime =
        simulated::<Bare>(Runtime::builder().threads(1).linked::<ep_cpu::provider::CpuProvider>("cpu"))
            .build()
            .unwrap();
    {
        let ops = both(&runtime);
        let x = ops.tensor(&[-1.0f32, 2.0], &[2]).unwrap();
        let y = ops.apply(&Relu, &[&x.flip(&[0]).unwrap()]).unwrap();
        ops.copy_(&x, &y[0]).unwrap();
        assert_eq!(ops.to_vec::<f32>(&x).unwrap(), [2.0, 0.0]);
    }
    for device in runtime.devices() {
        device.stream().unwrap().sync().unwrap();
        assert_eq!(device.memory_stats().unwrap().in_use_bytes, 0, "{}", device.name());
    }
}

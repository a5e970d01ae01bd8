//! Every kernel, at every instruction-set level, on operands that end or start at an inaccessible page, against the
//! references: what sanitizers do not see, streaming stores and tile instructions, faults here.

use ep_conformance::{Edge, Outcome, Rig, cases};
use ep_cpu::provider::CpuProvider;
use ep_registry::Runtime;
use ep_registry::config::ProviderConfig;

const LEVELS: [&str; 4] = ["baseline", "avx2", "avx512", "amx"];
const EDGES: [Edge; 3] = [Edge::End, Edge::Start, Edge::After(1)];

/// A runtime with the provider at a level; `None`, with a line that says so, where the machine lacks it.
fn runtime(level: &str) -> Option<Runtime> {
    let mut settings = ProviderConfig::new("cpu", "");
    settings.options = [("isa".to_owned(), level.to_owned())].into();
    let runtime = Runtime::builder().threads(2).linked_with::<CpuProvider>(settings).build().unwrap();
    if runtime.devices().is_empty() {
        println!("skipped: this machine has no {level}");
        return None;
    }
    Some(runtime)
}

/// Runs all cases of some ops; without optimisation, which takes minutes, at the best level and one edge only.
fn check(ops: &[&str]) {
    let (levels, edges) = if cfg!(debug_assertions) { (1, 1) } else { (LEVELS.len(), EDGES.len()) };
    let runtimes: Vec<_> = LEVELS.iter().rev().filter_map(|l| Some((*l, runtime(l)?))).take(levels).collect();
    let mut rigs: Vec<_> =
        runtimes.iter().map(|(l, r)| (*l, Rig::new(r, &r.devices()[0]).unwrap())).collect();
    let keys: Vec<_> = rigs[0].1.keys().into_iter().filter(|k| ops.contains(&k.op.as_str())).collect();
    assert!(!keys.is_empty(), "nothing is registered for {ops:?}");
    let (mut count, mut failed, mut wrong) = (0, 0, Vec::new());
    for (at, key) in keys.iter().enumerate() {
        for case in cases(key, at as u64) {
            let expected = rigs[0].1.expect(&case).unwrap_or_else(|e| panic!("{case}: {e}"));
            for (level, rig) in &mut rigs {
                for edge in EDGES.into_iter().take(edges) {
                    count += 1;
                    let outcome = rig.run(&case, &expected, edge).unwrap_or_else(|e| panic!("{case}: {e}"));
                    if let Outcome::Fail(why) = outcome {
                        failed += 1;
                        if wrong.len() < 40 {
                            wrong.push(format!("{case} at {level}, {edge:?}: {why}"));
                        }
                    }
                }
            }
        }
    }
    println!("{count} launches of {} keys", keys.len());
    assert!(failed == 0, "{failed} of {count} launches are wrong:\n{}", wrong.join("\n"));
}

#[test]
fn memory() {
    check(&["memcpy", "memset", "fill", "tensor_fill", "arange", "copy_nd", "strided_copy", "add"]);
}

#[test]
fn casts() {
    check(&["cast"]);
}

#[test]
fn unary() {
    check(&["elementwise_unary"]);
}

#[test]
fn strided_unary() {
    check(&["broadcast_elementwise_unary"]);
}

#[test]
fn binary() {
    check(&["broadcast_elementwise_binary"]);
}

#[test]
fn shapes() {
    check(&["where", "permute", "constant_pad", "one_hot"]);
}

#[test]
fn gathers() {
    check(&["gather", "batch_gather", "scatter_add"]);
}

#[test]
fn rows() {
    check(&["softmax", "log_softmax", "softmax_backward", "log_softmax_backward", "layer_norm", "rms_norm"]);
}

#[test]
fn reductions() {
    check(&["reduce", "arg_reduce"]);
}

#[test]
fn matrices() {
    check(&["matmul", "batch_matmul", "broadcast_matmul"]);
}

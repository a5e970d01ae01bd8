//! Every kernel, at every instruction-set level, on operands that end or start at an inaccessible page, against the
//! references: what sanitizers do not see, streaming stores and tile instructions, faults here. The tests of `streamed`
//! are the same with every threshold of streaming at one byte, which only large operands reach otherwise.

use ep_conformance::{Case, Content, Edge, Key, Outcome, Rig, cases};
use ep_core::{Code, DType, Scalar};
use ep_cpu::provider::CpuProvider;
use ep_registry::Runtime;
use ep_registry::config::ProviderConfig;

const LEVELS: [&str; 4] = ["baseline", "avx2", "avx512", "amx"];
const EDGES: [Edge; 3] = [Edge::End, Edge::Start, Edge::After(1)];

/// A runtime with the provider at a level; `None`, with a line that says so, where the machine lacks it. Any other reason
/// for which there is no provider ends the test.
fn runtime(level: &str) -> Option<Runtime> {
    let mut settings = ProviderConfig::new("cpu", "");
    settings.options = [("isa".to_owned(), level.to_owned())].into();
    let runtime = Runtime::builder().threads(2).linked_with::<CpuProvider>(settings).build().unwrap();
    if runtime.devices().is_empty() {
        let entry = &runtime.report().entries[0];
        assert_eq!(entry.code, Some(Code::Unavailable), "{}", entry.reason);
        println!("skipped: this machine has no {level}");
        return None;
    }
    Some(runtime)
}

/// Cases beside the kit's: what a kernel does at sizes that the kit has no need of.
fn more(key: &Key) -> Vec<Case> {
    let case = |name| Case::new(key, name);
    match key.op.as_str() {
        // Several blocks along the depth, of which each level and each engine has its own.
        "matmul" | "batch_matmul" if [DType::BF16, DType::F32, DType::F64].contains(&key.dtype("data")) => {
            let deep = |m, n, k| {
                let sizes = [("m", m), ("n", n), ("k", k), ("batch", 2)];
                let batch = usize::from(key.op == "batch_matmul");
                case("several blocks")
                    .sizes(&sizes[..3 + batch])
                    .scalar("alpha", Scalar::F64(0.5))
                    .scalar("beta", Scalar::F64(-0.75))
            };
            let mut all = vec![deep(17, 33, 1531), deep(97, 70, 2077), deep(1, 67, 1531), deep(67, 1, 1531)];
            if key.op == "matmul" && key.dtype("data") == DType::F32 {
                all.push(deep(131, 259, 517));
            }
            all
        }
        // As large as what is multiplied on tiles in parts.
        "matmul" if [DType::F16, DType::COMPLEX64].contains(&key.dtype("data")) => {
            vec![case("numbers in parts").sizes(&[("m", 131), ("n", 259), ("k", 517)])]
        }
        // Rows of whole lines, and long runs.
        "permute" => {
            let permute = |name, dims: &[i64], order: &[i64]| {
                case(name).list("src_dims", dims).list("permutation", order).content(Content::Wild)
            };
            vec![
                permute("whole lines", &[3, 128, 192], &[0, 2, 1]),
                permute("whole lines of runs", &[5, 7, 64], &[1, 0, 2]),
                permute("long runs", &[5, 7, 2051], &[1, 0, 2]),
                permute("bands", &[67, 131, 3], &[1, 0, 2]),
            ]
        }
        // Rows that go several pages at once.
        "gather" => {
            let inner = 70_001 / key.size("data") as i64;
            let sizes = [("outer", 1), ("processed", 3), ("inner", inner), ("num_indices", 4)];
            let mut long = case("rows of many pages").sizes(&sizes).content(Content::Wild);
            long.indices = (0, 3);
            vec![long]
        }
        "constant_pad" => {
            let cols = 70_001 / key.size("data") as i64;
            let long =
                case("rows of many pages").list("src_dims", &[2, cols]).scalar("value", Scalar::I64(3));
            vec![long.list("padding_before", &[0, 3]).list("padding_after", &[1, 5])]
        }
        // Columns of whole lines, and a row that threads share.
        "softmax" | "log_softmax" | "softmax_backward" | "log_softmax_backward" => {
            let of = |name, rows, cols, inner| {
                case(name).sizes(&[("rows", rows), ("cols", cols), ("inner", inner)])
            };
            vec![of("other axis, whole lines", 2, 37, 192), of("shared row", 1, 33_003, 1)]
        }
        _ => Vec::new(),
    }
}

/// Runs all cases of some ops at all levels and edges; without optimisation, where that takes minutes, each case at one of
/// them, in turn.
fn check(ops: &[&str]) {
    let runtimes: Vec<_> = LEVELS.iter().filter_map(|l| Some((*l, runtime(l)?))).collect();
    let mut rigs: Vec<_> =
        runtimes.iter().map(|(l, r)| (*l, Rig::new(r, &r.devices()[0]).unwrap())).collect();
    let keys: Vec<_> = rigs[0].1.keys().into_iter().filter(|k| ops.contains(&k.op.as_str())).collect();
    assert!(!keys.is_empty(), "nothing is registered for {ops:?}");
    let combinations = rigs.len() * EDGES.len();
    let (mut count, mut failed, mut wrong) = (0, 0, Vec::new());
    for (at, key) in keys.iter().enumerate() {
        let own = more(key).into_iter().enumerate().map(|(i, mut case)| {
            case.set_seed((at + i) as u64);
            case
        });
        for (turn, case) in cases(key, at as u64).into_iter().chain(own).enumerate() {
            let expected = rigs[0].1.expect(&case).unwrap_or_else(|e| panic!("{case}: {e}"));
            for combination in 0..combinations {
                // A step that has no divisor in common with their number: no case is always at the same.
                if cfg!(debug_assertions) && combination != (5 * at + turn) % combinations {
                    continue;
                }
                let ((level, rig), edge) =
                    (&mut rigs[combination / EDGES.len()], EDGES[combination % EDGES.len()]);
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

/// The tests above whose kernels stream, in a process of their own, as the threshold is read when the provider starts.
mod streamed {
    use std::process::{Command, ExitStatus};

    const VARIABLE: &str = "EP_CPU_STREAM_BYTES";

    /// How a test ends with the variable at this value, on so many pages in turns, and what it prints.
    fn run(test: &str, value: &str, pages: &str) -> (ExitStatus, String) {
        let program = std::env::current_exe().unwrap();
        let ran = Command::new(program)
            .args(["--exact", test, "--nocapture"])
            .env(VARIABLE, value)
            .env("EP_CPU_STREAM_PAGES", pages)
            .output()
            .unwrap();
        let told = [ran.stdout, ran.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        (ran.status, told)
    }

    fn again(test: &str) {
        again_on(test, &["1", "4"]);
    }

    fn again_on(test: &str, pages: &[&str]) {
        // Else the variable may have another name by now, and the test repeats what the other one has done.
        let (status, told) = run(test, "no", "1");
        let read = told.contains("InvalidArgument") && told.contains(&format!("{VARIABLE}=no "));
        assert!(!status.success() && read, "the provider does not read {VARIABLE}: {status}\n{told}");
        let (status, told) = run(test, "1", "no");
        let read = told.contains("InvalidArgument") && told.contains("EP_CPU_STREAM_PAGES=no ");
        assert!(
            !status.success() && read,
            "the provider does not read EP_CPU_STREAM_PAGES: {status}\n{told}"
        );
        for pages in pages {
            let (status, told) = run(test, "1", pages);
            println!("{told}");
            assert!(told.contains(" launches of "), "`{test}` has not run to its end: {status}");
            assert!(status.success(), "`{test}` fails on {pages} pages in turns: {status}");
        }
    }

    #[test]
    fn memory() {
        // As well as nobody asks, where fills and copies are neither.
        again_on("memory", &["1", "4", ""]);
    }

    #[test]
    fn casts() {
        again("casts");
    }

    #[test]
    fn unary() {
        again("unary");
    }

    #[test]
    fn strided_unary() {
        again("strided_unary");
    }

    #[test]
    fn binary() {
        again("binary");
    }

    #[test]
    fn shapes() {
        again("shapes");
    }

    #[test]
    fn gathers() {
        again("gathers");
    }

    #[test]
    fn rows() {
        again("rows");
    }
}

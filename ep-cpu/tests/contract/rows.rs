//! Special values in rows: softmax and its relatives, norms and reductions.

use crate::launch::{Launch, Rig};
use ep_core::DType;

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;
const FLOATS: [(DType, f64); 4] = [
    (DType::F16, 65504.0),
    (DType::BF16, 3.3895313892515355e38),
    (DType::F32, f32::MAX as f64),
    (DType::F64, f64::MAX),
];

fn of_rows(op: &'static str, dtype: DType, rows: i64, cols: i64) -> Launch {
    let launch = Launch::of(op).dtype("src", dtype).dtype("dst", dtype);
    launch.sizes(["rows", "cols", "inner"], [rows, cols, 1])
}

#[test]
fn shares_of_special_values() {
    let rig = Rig::new(1);
    for (dtype, most) in FLOATS {
        let src = [1.0, NAN, INF, 0.0, -INF, -INF, most, -most, most, most, -INF, 0.0];
        let softmax = of_rows("softmax", dtype, 6, 2).reals("src", &src);
        rig.gives(&softmax, "dst", &[NAN, NAN, NAN, NAN, NAN, NAN, 1.0, 0.0, 0.5, 0.5, 0.0, 1.0]);
        let log =
            of_rows("log_softmax", dtype, 4, 2).reals("src", &[1.0, NAN, INF, 0.0, -INF, -INF, -INF, 0.0]);
        rig.gives(&log, "dst", &[NAN, NAN, NAN, NAN, NAN, NAN, -INF, 0.0]);
        // The difference is beyond the dtype.
        rig.gives(&of_rows("log_softmax", dtype, 1, 2).reals("src", &[most, -most]), "dst", &[0.0, -INF]);
        // One column, not finite.
        rig.gives(&of_rows("softmax", dtype, 3, 1).reals("src", &[NAN, INF, -INF]), "dst", &[NAN; 3]);
    }
}

#[test]
fn gradients_of_special_values() {
    let rig = Rig::new(1);
    for (dtype, most) in FLOATS {
        let softmax =
            |y: &[f64], dy: &[f64]| of_rows("softmax_backward", dtype, 1, 2).reals("y", y).reals("dy", dy);
        rig.gives(&softmax(&[NAN, 0.5], &[1.0, 1.0]), "dx", &[NAN, NAN]);
        rig.gives(&softmax(&[0.5, 0.5], &[NAN, 1.0]), "dx", &[NAN, NAN]);
        rig.gives(&softmax(&[0.5, 0.5], &[INF, 1.0]), "dx", &[NAN, -INF]);
        rig.gives(&softmax(&[0.0, 1.0], &[INF, 1.0]), "dx", &[NAN, NAN]);
        rig.gives(&softmax(&[0.5, 0.5], &[most, -most]), "dx", &[most / 2.0, -most / 2.0]);
        let log = |y: &[f64], dy: &[f64]| {
            of_rows("log_softmax_backward", dtype, 1, 2).reals("y", y).reals("dy", dy)
        };
        rig.gives(&log(&[-1.0, -1.0], &[NAN, 1.0]), "dx", &[NAN, NAN]);
        // One of y reaches its own column only.
        rig.gives(&log(&[NAN, -INF], &[1.0, 1.0]), "dx", &[NAN, 1.0]);
        rig.gives(&log(&[0.0, -INF], &[1.0, 2.0]), "dx", &[-2.0, 2.0]);
        rig.gives(&log(&[0.0, -INF], &[1.0, INF]), "dx", &[-INF, NAN]);
    }
}

fn norm(op: &'static str, dtype: DType, epsilon: f64, rows: i64, cols: i64) -> Launch {
    let stats = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let launch = Launch::of(op).dtype("data", dtype).dtype("stats", stats).attr("epsilon", epsilon);
    let launch = launch.sizes(["rows", "cols"], [rows, cols]);
    if op == "layer_norm" {
        launch.reals("gamma", &vec![1.0; cols as usize]).reals("beta", &vec![0.0; cols as usize])
    } else {
        launch.reals("weight", &vec![1.0; cols as usize])
    }
}

#[test]
fn norms_of_special_values() {
    let rig = Rig::new(1);
    for (dtype, most) in FLOATS {
        for op in ["layer_norm", "rms_norm"] {
            let rows = norm(op, dtype, 0.0, 3, 2).reals("src", &[NAN, 1.0, INF, 1.0, -1.0, 1.0]);
            // Beside an infinity, what is only scaled is 0.
            let beside = if op == "layer_norm" { NAN } else { 0.0 };
            rig.gives(&rows, "dst", &[NAN, NAN, NAN, beside, -1.0, 1.0]);
            // Without epsilon, rows that do not vary (or are 0) divide by zero.
            let zeros = norm(op, dtype, 0.0, 1, 2).reals("src", &[0.0, 0.0]);
            rig.gives(&zeros, "dst", &[NAN, NAN]);
            let factor = if op == "layer_norm" { "rstd" } else { "inv_rms" };
            rig.gives(&zeros, factor, &[INF]);
            // Squares beyond the type computed in spoil their row only.
            let large = norm(op, dtype, 0.0, 2, 2).reals("src", &[most, -most, -1.0, 1.0]);
            let got = rig.output(&large, "dst");
            assert_eq!([got[2].re(), got[3].re()], [-1.0, 1.0], "{op} {dtype}");
            let nothing = norm(op, dtype, 1.0, 2, 0);
            rig.gives(&nothing, factor, &[NAN; 2]);
        }
    }
    rig.gives(&norm("layer_norm", DType::F32, 0.0, 1, 2).reals("src", &[1.0, 3.0]), "mean", &[2.0]);
}

fn reduce(op: &'static str, src: DType, dst: DType, sizes: [i64; 3]) -> Launch {
    let launch = Launch::of("reduce").selector("op", op).dtype("src", src).dtype("dst", dst);
    launch.sizes(["outer", "reduced", "inner"], sizes)
}

#[test]
fn reductions_of_special_values() {
    let rig = Rig::new(1);
    for (dtype, most) in FLOATS {
        for (op, src, want) in [
            ("sum", [NAN, 1.0], NAN),
            ("sum", [INF, -INF], NAN),
            ("sum", [most, most], INF),
            ("mean", [INF, 1.0], INF),
            ("prod", [most, 2.0], INF),
            ("prod", [INF, 0.0], NAN),
            ("max", [NAN, INF], NAN),
            ("max", [-INF, -1.0], -1.0),
            ("min", [1.0, NAN], NAN),
            ("min", [INF, 1.0], 1.0),
        ] {
            rig.gives(&reduce(op, dtype, dtype, [1, 2, 1]).reals("src", &src), "dst", &[want]);
            let columns: Vec<f64> = src.iter().flat_map(|x| [*x; 3]).collect();
            rig.gives(&reduce(op, dtype, dtype, [1, 2, 3]).reals("src", &columns), "dst", &[want; 3]);
        }
        for (op, want) in [("any", [1.0, 0.0]), ("all", [0.0, 0.0])] {
            let launch = reduce(op, dtype, DType::BOOL, [2, 2, 1]).reals("src", &[NAN, 0.0, 0.0, -0.0]);
            rig.gives(&launch, "dst", &want);
        }
        for (op, want) in [("sum", 0.0), ("prod", 1.0), ("mean", NAN), ("max", -INF), ("min", INF)] {
            rig.gives(&reduce(op, dtype, dtype, [2, 0, 1]), "dst", &[want; 2]);
            rig.gives(&reduce(op, dtype, dtype, [1, 0, 2]), "dst", &[want; 2]);
        }
    }
    rig.gives(&reduce("sum", DType::I8, DType::I8, [1, 2, 1]).ints("src", &[127, 1]), "dst", &[-128.0]);
    rig.gives(&reduce("sum", DType::I8, DType::I64, [1, 2, 1]).ints("src", &[127, 1]), "dst", &[128.0]);
    rig.gives(&reduce("prod", DType::U8, DType::U8, [1, 2, 1]).ints("src", &[16, 17]), "dst", &[16.0]);
    for (op, want) in [("max", -128.0), ("min", 127.0), ("sum", 0.0), ("prod", 1.0)] {
        rig.gives(&reduce(op, DType::I8, DType::I8, [1, 0, 1]), "dst", &[want]);
    }
    for (op, want) in [("any", 0.0), ("all", 1.0)] {
        rig.gives(&reduce(op, DType::I8, DType::BOOL, [1, 0, 1]), "dst", &[want]);
    }
}

#[test]
fn positions_of_special_values() {
    let rig = Rig::new(1);
    let find = |op, dtype, n| {
        let launch = Launch::of("arg_reduce").selector("op", op).dtype("src", dtype).dtype("dst", DType::I32);
        launch.sizes(["outer", "reduced", "inner"], [1, n, 1])
    };
    for (dtype, _) in FLOATS {
        for (op, src, want) in [
            ("argmax", [1.0, INF, NAN, NAN], 2.0),
            ("argmin", [1.0, -INF, NAN, NAN], 2.0),
            ("argmax", [-INF, -INF, -INF, -INF], 0.0),
            ("argmax", [-0.0, 0.0, 0.0, -0.0], 0.0),
            ("argmin", [0.0, -0.0, 0.0, -0.0], 0.0),
            ("argmax", [1.0, 3.0, 3.0, 2.0], 1.0),
        ] {
            rig.gives(&find(op, dtype, 4).reals("src", &src), "dst", &[want]);
        }
    }
    rig.refuses(&find("argmax", DType::F32, 0), &["axis of 0"]);
}

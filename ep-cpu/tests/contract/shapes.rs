//! Dimensions of size 1, rank 8, and stride 0.

use crate::launch::{Launch, Rig, refused};
use crate::ops;
use ep_core::DType;
use primitives::reference::Number;

/// The ops that take shapes, on `[n, m]`.
fn shaped(n: i64, m: i64) -> Vec<Launch> {
    ops::all(n, m).into_iter().filter(|l| !l.lists.is_empty()).collect()
}

/// The same launch with dimensions of size 1 before, between and behind the others, up to `rank` of them.
fn spread(launch: &Launch, rank: usize) -> Launch {
    let mut spread = launch.clone();
    let places = [0, rank - 2];
    for (name, values) in &mut spread.lists {
        if launch.op == "broadcast_matmul" {
            // The last two are the matrices; batches come before.
            while values.len() < rank {
                values.insert(0, 1);
            }
            continue;
        }
        let one = if name.ends_with("dims") || *name == "extent" { 1 } else { 0 };
        let mut all = vec![one; rank];
        if *name == "permutation" {
            // Dimensions of size 1 go to the end, the others are exchanged.
            let others = (0..rank).filter(|i| !places.contains(i));
            let order = [places[1], places[0]].into_iter().chain(others);
            *values = order.map(|i| i as i64).collect();
            continue;
        }
        // Strides of dimensions of size 1 lead nowhere, whatever they are.
        if name.ends_with("strides") {
            all.fill(1000);
        }
        for (place, value) in places.iter().zip(values.iter()) {
            all[*place] = *value;
        }
        *values = all;
    }
    spread
}

#[test]
fn dimensions_of_size_one_change_nothing() {
    let rig = Rig::new(1);
    for launch in shaped(5, 7) {
        let plain = rig.run(&launch).unwrap();
        for rank in 3..=8 {
            let spread = spread(&launch, rank);
            let output = if launch.op == "broadcast_matmul" { "c" } else { "dst" };
            let got = rig.run(&spread).unwrap_or_else(|e| panic!("{spread:?}: {e}"));
            assert!(got.data(output) == plain.data(output), "{spread:?}");
        }
    }
}

#[test]
fn ranks_above_eight_are_refused() {
    let rig = Rig::new(1);
    let launches = shaped(5, 7);
    assert_eq!(launches.len(), 8);
    for launch in launches {
        let primitive = rig.primitive(&launch);
        let nine = spread(&launch, 9);
        refused(
            primitive.uses(&crate::launch::arguments(&primitive, &nine, &[])).map(drop),
            &nine,
            &["rank 9"],
        );
    }
}

/// Sizes of 1 in tensors of rows, matrices and axes.
#[test]
fn axes_of_one_element_are_axes() {
    let rig = Rig::new(1);
    let rows = ["rows", "cols", "inner"];
    let of_rows =
        |op| Launch::of(op).dtype("src", DType::F32).dtype("dst", DType::F32).sizes(rows, [2, 1, 3]);
    rig.gives(&of_rows("softmax"), "dst", &[1.0; 6]);
    rig.gives(&of_rows("log_softmax"), "dst", &[0.0; 6]);
    rig.gives(&of_rows("softmax_backward").reals("y", &[1.0; 6]), "dx", &[0.0; 6]);
    rig.gives(&of_rows("log_softmax_backward").reals("y", &[0.0; 6]), "dx", &[0.0; 6]);
    let norm = |op| {
        let launch = Launch::of(op).dtype("data", DType::F32).dtype("stats", DType::F32).attr("epsilon", 1.0);
        launch.sizes(["rows", "cols"], [2, 1])
    };
    let layer = norm("layer_norm").reals("src", &[3.0, -5.0]).reals("gamma", &[2.0]).reals("beta", &[0.5]);
    rig.gives(&layer, "dst", &[0.5; 2]);
    rig.gives(&layer, "mean", &[3.0, -5.0]);
    let rms = norm("rms_norm").reals("src", &[0.0, 0.0]).reals("weight", &[2.0]);
    rig.gives(&rms, "inv_rms", &[1.0; 2]);
    let axis = ["outer", "reduced", "inner"];
    for (op, src, want) in [("sum", 2.5, 2.5), ("mean", 2.5, 2.5), ("max", -1.0, -1.0), ("min", 4.0, 4.0)] {
        let reduce =
            Launch::of("reduce").selector("op", op).dtype("src", DType::F32).dtype("dst", DType::F32);
        rig.gives(&reduce.sizes(axis, [1, 1, 2]).reals("src", &[src, src]), "dst", &[want; 2]);
    }
    let place =
        Launch::of("arg_reduce").selector("op", "argmin").dtype("src", DType::F32).dtype("dst", DType::I32);
    rig.gives(&place.sizes(axis, [2, 1, 2]), "dst", &[0.0; 4]);
    let gather =
        |op| Launch::of(op).selector("mode", "error").dtype("indices", DType::I64).dtype("data", DType::I16);
    let sizes = ["outer", "processed", "inner", "num_indices"];
    let src = gather("gather").sizes(sizes, [1, 1, 1, 3]).ints("src", &[7]);
    rig.gives(&src, "dst", &[7.0; 3]);
    let batch = gather("batch_gather").sizes(["batch"], [1]).sizes(sizes, [1, 1, 1, 3]).ints("src", &[7]);
    rig.gives(&batch, "dst", &[7.0; 3]);
    let scatter = gather("scatter_add").sizes(sizes, [1, 1, 1, 3]).ints("src", &[1, 2, 3]).ints("dst", &[10]);
    rig.gives(&scatter, "dst", &[16.0]);
    let hot = gather("one_hot").sizes(["num_indices", "depth"], [2, 1]);
    rig.gives(&hot, "dst", &[1.0; 2]);
}

#[test]
fn sizes_zero_and_one_broadcast_to_zero() {
    let rig = Rig::new(1);
    let binary = Launch::of("broadcast_elementwise_binary").selector("op", "add");
    let binary = binary.dtype("src", DType::I32).dtype("dst", DType::I32);
    for (a, b) in [(&[3i64, 0][..], &[1i64][..]), (&[0], &[1, 1]), (&[1, 0], &[4, 1])] {
        let launch = binary.clone().list("src0_dims", a).list("src1_dims", b);
        assert!(rig.output(&launch, "dst").is_empty(), "{launch:?}");
    }
    let launch = binary.list("src0_dims", &[0]).list("src1_dims", &[2]);
    rig.refuses(&launch, &["[0]", "[2]"]);
    let choose = Launch::of("where").dtype("cond", DType::BOOL).dtype("data", DType::I32);
    let choose = choose.list("cond_dims", &[0, 1]).list("y_dims", &[1]);
    assert!(rig.output(&choose.clone().list("x_dims", &[1, 3]), "dst").is_empty());
    rig.refuses(&choose.list("x_dims", &[2, 3]), &["[0, 1]", "[2, 3]"]);
}

#[test]
fn a_stride_of_zero_repeats_a_source_and_is_refused_of_a_destination() {
    let rig = Rig::new(1);
    for (src, dst) in [(DType::F32, DType::F32), (DType::F32, DType::F64), (DType::I8, DType::F16)] {
        let copy = |strides: &[i64], to: &[i64]| {
            let launch = Launch::of("strided_copy").dtype("src", src).dtype("dst", dst).list("dims", &[2, 3]);
            launch.list("src_strides", strides).list("dst_strides", to)
        };
        rig.gives(&copy(&[0, 1], &[3, 1]).ints("src", &[4, 5, 6]), "dst", &[4.0, 5.0, 6.0, 4.0, 5.0, 6.0]);
        rig.gives(&copy(&[1, 0], &[3, 1]).ints("src", &[4, 5]), "dst", &[4.0, 4.0, 4.0, 5.0, 5.0, 5.0]);
        rig.gives(&copy(&[0, 0], &[3, 1]).ints("src", &[4]), "dst", &[4.0; 6]);
        rig.refuses(&copy(&[3, 1], &[0, 1]), &["twice"]);
    }
    let negative = |src: &[i64], to: &[i64]| {
        let launch = Launch::of("broadcast_elementwise_unary").selector("op", "negative");
        let launch = launch.dtype("src", DType::I32).dtype("dst", DType::I32).list("src_dims", &[2, 3]);
        launch.list("src_strides", src).list("dst_dims", &[2, 3]).list("dst_strides", to)
    };
    rig.gives(
        &negative(&[0, 1], &[3, 1]).ints("src", &[4, 5, 6]),
        "dst",
        &[-4.0, -5.0, -6.0, -4.0, -5.0, -6.0],
    );
    rig.refuses(&negative(&[3, 1], &[1, 0]), &["twice"]);
    let ones = rig.output(&negative(&[0, 0], &[1, 2]).ints("src", &[9]), "dst");
    assert!(ones.iter().all(|x| *x == Number::Int(-9)), "{ones:?}");
}

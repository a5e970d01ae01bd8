//! What moves elements keeps their bits; what fills converts a value first; indices are judged.

use crate::launch::{Launch, Memory, Rig};
use ep_core::{DType, Scalar};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

/// Twelve elements with every byte different, and with NaNs of both kinds and signs where the dtype has some.
fn bits(dtype: DType) -> Vec<u8> {
    let size = dtype.size().unwrap();
    let mut bytes: Vec<u8> = (0..12 * size).map(|i| i as u8).collect();
    let nans: &[&[u8]] = match dtype {
        DType::F16 => &[&0x7c01u16.to_ne_bytes(), &0xfe55u16.to_ne_bytes()],
        DType::BF16 => &[&0x7f81u16.to_ne_bytes(), &0xffd5u16.to_ne_bytes()],
        DType::F32 => &[&0x7f80_0001u32.to_ne_bytes(), &0xffc1_2345u32.to_ne_bytes()],
        DType::F64 => &[&0x7ff0_0000_0000_0001u64.to_ne_bytes(), &0xfff8_1234_5678_9abcu64.to_ne_bytes()],
        DType::BOOL => {
            bytes.iter_mut().for_each(|b| *b &= 1);
            &[]
        }
        _ => &[],
    };
    for (i, nan) in nans.iter().enumerate() {
        bytes[(3 + 4 * i) * size..][..size].copy_from_slice(nan);
    }
    bytes
}

/// Launches with `src` (the operand of this name) holding these bytes, and returns what `dst` then holds.
fn moved(rig: &Rig, launch: &Launch, src: &str, bytes: &[u8]) -> Vec<u8> {
    let ready = rig.ready(launch);
    let content = |i: usize| if ready.name(i) == src { bytes.to_vec() } else { ready.before(i) };
    let mut memory: Vec<Memory> = (0..ready.uses.len()).map(|i| Memory::of(&content(i))).collect();
    let at: Vec<u64> = memory.iter_mut().map(|m| m.address(0)).collect();
    ready.launch_at(&rig.stream, &at).unwrap_or_else(|e| panic!("{launch:?}: {e}"));
    let dst = (0..ready.uses.len()).find(|i| ready.uses[*i].writes).unwrap();
    memory[dst].bytes().to_vec()
}

#[test]
fn moved_elements_keep_their_bits() {
    let rig = Rig::new(1);
    for dtype in DType::ALL {
        let size = dtype.size().unwrap();
        let src = bits(dtype);
        let of = |op| Launch::of(op).dtype("data", dtype);
        let gather = |op| {
            let launch = of(op).selector("mode", "error").dtype("indices", DType::I64);
            launch.sizes(["outer", "processed", "inner", "num_indices"], [1, 12, 1, 12])
        };
        let every: Vec<i64> = (0..12).collect();
        let same = [
            Launch::of("memcpy").selector("kind", "auto").sizes(["bytes"], [12 * size as i64]),
            Launch::of("cast").dtype("src", dtype).dtype("dst", dtype).sizes(["count"], [12]),
            of("add").arity(1).sizes(["count"], [12]),
            of("copy_nd")
                .list("dst_dims", &[12])
                .list("dst_pos", &[0])
                .list("src_dims", &[12])
                .list("src_pos", &[0])
                .list("extent", &[12]),
            of("permute").list("src_dims", &[3, 4]).list("permutation", &[0, 1]),
            Launch::of("strided_copy")
                .dtype("src", dtype)
                .dtype("dst", dtype)
                .list("dims", &[12])
                .list("src_strides", &[1])
                .list("dst_strides", &[1]),
            of("constant_pad")
                .list("src_dims", &[12])
                .list("padding_before", &[0])
                .list("padding_after", &[0]),
            gather("gather").ints("indices", &every),
            gather("batch_gather").sizes(["batch"], [1]).ints("indices", &every),
            of("where")
                .dtype("cond", DType::U8)
                .list("cond_dims", &[12])
                .list("x_dims", &[12])
                .list("y_dims", &[])
                .ints("cond", &[1; 12]),
        ];
        for launch in same {
            let name = match launch.op {
                "where" => "x",
                "add" => "srcs",
                _ => "src",
            };
            assert_eq!(moved(&rig, &launch, name, &src), src, "{launch:?}");
        }
        let turned =
            moved(&rig, &of("permute").list("src_dims", &[3, 4]).list("permutation", &[1, 0]), "src", &src);
        for (i, element) in turned.chunks(size).enumerate() {
            let from = i % 3 * 4 + i / 3;
            assert_eq!(element, &src[from * size..][..size], "{dtype}: element {i}");
        }
        for at in [0, 3, 7] {
            let one = &src[at * size..][..size];
            let filled = moved(&rig, &of("tensor_fill").sizes(["count"], [5]), "src", one);
            assert_eq!(filled, one.repeat(5), "{dtype}");
        }
    }
}

#[test]
fn any_byte_of_bool_but_zero_is_true() {
    let rig = Rig::new(1);
    let bytes = [0, 1, 2, 255];
    let same = ["src", "dst"];
    let of = |launch: Launch, roles: &[&'static str]| {
        roles.iter().fold(launch, |l, role| l.dtype(role, DType::BOOL))
    };
    let computed = [
        (
            Launch::of("cast").dtype("src", DType::BOOL).dtype("dst", DType::U8).sizes(["count"], [4]),
            [0, 1, 1, 1],
        ),
        (
            of(Launch::of("elementwise_unary").selector("op", "logical_not"), &same).sizes(["count"], [4]),
            [1, 0, 0, 0],
        ),
        (
            of(Launch::of("broadcast_elementwise_binary").selector("op", "logical_and"), &same)
                .list("src0_dims", &[4])
                .list("src1_dims", &[])
                .scalar("scalar1", true),
            [0, 1, 1, 1],
        ),
        (
            of(Launch::of("reduce").selector("op", "any"), &same)
                .sizes(["outer", "reduced", "inner"], [4, 1, 1]),
            [0, 1, 1, 1],
        ),
    ];
    for (launch, want) in computed {
        let src = if launch.op == "broadcast_elementwise_binary" { "src0" } else { "src" };
        assert_eq!(moved(&rig, &launch, src, &bytes), want, "{launch:?}");
    }
    let choose = Launch::of("where").dtype("cond", DType::BOOL).dtype("data", DType::U8);
    let choose = choose.list("cond_dims", &[4]).list("x_dims", &[]).list("y_dims", &[]);
    let choose = choose.ints("x", &[7]).ints("y", &[9]);
    assert_eq!(moved(&rig, &choose, "cond", &bytes), [9, 7, 7, 7]);
    let permute = of(Launch::of("permute"), &["data"]).list("src_dims", &[4]).list("permutation", &[0]);
    assert_eq!(moved(&rig, &permute, "src", &bytes), bytes);
}

#[test]
fn values_are_converted_as_casts() {
    let rig = Rig::new(1);
    for (dtype, value, want) in [
        (DType::I8, Scalar::F64(NAN), 0.0),
        (DType::I8, Scalar::F64(INF), 127.0),
        (DType::I8, Scalar::F64(-1e9), -128.0),
        (DType::I8, Scalar::I64(300), 44.0),
        (DType::U16, Scalar::I64(-1), 65535.0),
        (DType::BOOL, Scalar::F64(NAN), 1.0),
        (DType::BOOL, Scalar::F64(-0.0), 0.0),
        (DType::F16, Scalar::F64(1e9), INF),
        (DType::F16, Scalar::F64(NAN), NAN),
        (DType::F32, Scalar::F64(-1e300), -INF),
        (DType::F32, Scalar::Complex(2.5, NAN), 2.5),
        (DType::F64, Scalar::U64(u64::MAX), 18_446_744_073_709_551_616.0),
    ] {
        let of = |op| Launch::of(op).dtype("data", dtype);
        rig.gives(&of("fill").sizes(["count"], [3]).scalar("value", value), "dst", &[want; 3]);
        let pad = of("constant_pad")
            .list("src_dims", &[0])
            .list("padding_before", &[2])
            .list("padding_after", &[1]);
        rig.gives(&pad.scalar("value", value), "dst", &[want; 3]);
        let hot = of("one_hot").selector("mode", "error").dtype("indices", DType::I32);
        let hot = hot.sizes(["num_indices", "depth"], [1, 2]).ints("indices", &[1]);
        rig.gives(&hot.clone().scalar("on", value), "dst", &[0.0, want]);
        rig.gives(&hot.scalar("off", value), "dst", &[want, 1.0]);
    }
    let fill = |value: Scalar| {
        Launch::of("fill").dtype("data", DType::F32).sizes(["count"], [1]).scalar("value", value)
    };
    rig.refuses(&fill(Scalar::None), &["`value`", "none"]);
    let set = |value: Scalar| Launch::of("memset").sizes(["bytes"], [2]).scalar("value", value);
    rig.gives(&set(Scalar::I64(-1)), "dst", &[255.0; 2]);
    rig.gives(&set(Scalar::U64(u64::MAX - 1)), "dst", &[254.0; 2]);
    rig.gives(&set(Scalar::F64(-257.0)), "dst", &[255.0; 2]);
    for bad in [Scalar::None, Scalar::F64(NAN), Scalar::F64(INF), Scalar::F64(0.5)] {
        rig.refuses(&set(bad), &["`value`"]);
    }
}

#[test]
fn indices_of_any_value_are_judged() {
    let rig = Rig::new(1);
    let extreme = [i64::MIN, -8, -7, 6, 7, i64::MAX];
    for op in ["gather", "batch_gather", "scatter_add", "one_hot"] {
        let launch = |mode, indices: &[i64]| {
            let launch =
                Launch::of(op).selector("mode", mode).dtype("indices", DType::I64).dtype("data", DType::I32);
            let n = indices.len() as i64;
            let launch = match op {
                "one_hot" => launch.sizes(["num_indices", "depth"], [n, 7]),
                "batch_gather" => launch
                    .sizes(["batch"], [1])
                    .sizes(["outer", "processed", "inner", "num_indices"], [1, 7, 1, n]),
                _ => launch.sizes(["outer", "processed", "inner", "num_indices"], [1, 7, 1, n]),
            };
            launch.ints("indices", indices)
        };
        // The first that is refused is named with its position.
        rig.refuses(&launch("error", &extreme), &["-9223372036854775808", "position 0"]);
        rig.refuses(&launch("error", &[3, 6, 7, -1]), &["index 7", "position 2"]);
        rig.refuses(&launch("wrap", &[-7, 6, -8, i64::MAX]), &["index -8", "position 2"]);
        let got = rig.output(&launch("zero", &extreme), "dst");
        let wrapped = rig.output(&launch("wrap", &[-7, -1, 0, 6]), "dst");
        match op {
            "gather" | "batch_gather" => {
                // Of the source only row 6 is picked.
                let rows = rig.output(&launch("error", &[0, 1, 2, 3, 4, 5, 6]), "dst");
                let zero = primitives::reference::Number::Int(0);
                assert_eq!(got, [zero, zero, zero, rows[6], zero, zero]);
                assert_eq!(wrapped, [rows[0], rows[6], rows[0], rows[6]]);
            }
            "one_hot" => {
                let ones = |row: usize| (0..7).find(|c| got[row * 7 + c].truth());
                assert_eq!([0, 1, 2, 3, 4, 5].map(ones), [None, None, None, Some(6), None, None]);
                assert!(
                    wrapped[0].truth()
                        && wrapped[7 + 6].truth()
                        && wrapped[14].truth()
                        && wrapped[21 + 6].truth()
                );
            }
            _ => assert_eq!((got.len(), wrapped.len()), (7, 7)),
        }
    }
}

#[test]
fn sums_at_indices_of_special_values() {
    let rig = Rig::new(1);
    let launch = |dtype, mode| {
        let launch = Launch::of("scatter_add")
            .selector("mode", mode)
            .dtype("indices", DType::I32)
            .dtype("data", dtype);
        launch
            .sizes(["outer", "processed", "inner", "num_indices"], [1, 3, 1, 4])
            .ints("indices", &[1, 0, 1, -1])
    };
    for (dtype, most) in [(DType::F16, 65504.0), (DType::F32, f64::from(f32::MAX)), (DType::F64, f64::MAX)] {
        let sums =
            launch(dtype, "wrap").reals("src", &[INF, NAN, -INF, most]).reals("dst", &[1.0, 1.0, most]);
        rig.gives(&sums, "dst", &[NAN, NAN, INF]);
        // What is outside adds nothing, not even its NaN.
        let left = launch(dtype, "zero").reals("src", &[1.0, 2.0, 3.0, NAN]).reals("dst", &[0.0; 3]);
        rig.gives(&left, "dst", &[2.0, 4.0, 0.0]);
    }
    // In the order of the indices, in f32, rounded once.
    let halves = launch(DType::F16, "wrap")
        .reals("src", &[65504.0, 0.0, -65504.0, 0.0])
        .reals("dst", &[0.0, 65504.0, 0.0]);
    rig.gives(&halves, "dst", &[0.0, 65504.0, 0.0]);
    let ints = launch(DType::I8, "wrap").ints("src", &[100, 1, 100, -128]).ints("dst", &[0, 0, -1]);
    rig.gives(&ints, "dst", &[1.0, -56.0, 127.0]);
}

#[test]
fn paddings_beyond_an_integer_are_refused() {
    let rig = Rig::new(1);
    let pad = |src: i64, before: i64, after: i64| {
        let launch = Launch::of("constant_pad").dtype("data", DType::U8).list("src_dims", &[src]);
        launch.list("padding_before", &[before]).list("padding_after", &[after])
    };
    for (src, before, after) in
        [(1, i64::MAX, -i64::MAX), (2, i64::MAX - 1, 1), (0, i64::MIN, i64::MIN), (3, -2, -2)]
    {
        let launch = pad(src, before, after);
        let primitive = rig.primitive(&launch);
        let args = crate::launch::arguments(&primitive, &launch, &[]);
        let args = args.address("src", 64).unwrap().address("dst", 64).unwrap();
        // SAFETY: refused before anything is touched.
        let result = unsafe { primitive.launch_raw(&rig.stream, &args) };
        crate::launch::refused(result, &launch, &[]);
    }
    // Paddings that all but cancel leave nothing of the source.
    rig.gives(&pad(1, -(1 << 62), (1 << 62) + 1).scalar("value", 9i64), "dst", &[9.0; 2]);
}

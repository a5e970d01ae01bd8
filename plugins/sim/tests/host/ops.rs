//! Every op, launched by name, against its reference; and what is offered against `docs/support.csv`.

use crate::rig::{nothing_left, runtime};
use ep_core::{Code, DType, Scalar};
use ep_registry::query::Filter;
use ep_registry::{Buffer, Runtime, Stream};
use primitives::reference::{Launch, View};
use std::collections::BTreeSet;

/// A launch with everything that its schema names.
#[derive(Clone, Default)]
struct Sample {
    op: &'static str,
    selectors: &'static [(&'static str, &'static str)],
    dtypes: &'static [(&'static str, DType)],
    attrs: &'static [(&'static str, f64)],
    sizes: &'static [(&'static str, i64)],
    lists: &'static [(&'static str, &'static [i64])],
    scalars: &'static [(&'static str, Scalar)],
    /// Buffers of a list.
    arity: usize,
    absent: &'static [&'static str],
}

const F32: DType = DType::F32;
const DATA: &[(&str, DType)] = &[("data", F32)];
const SRC_DST: &[(&str, DType)] = &[("src", F32), ("dst", F32)];
const INDEXED: &[(&str, DType)] = &[("indices", DType::I64), ("data", DType::I16)];
const WRAP: &[(&str, &str)] = &[("mode", "wrap")];
const TWO: &[(&str, Scalar)] = &[("value", Scalar::I64(2))];
const MNK: &[(&str, i64)] = &[("m", 3), ("n", 5), ("k", 4)];
const BETA: &[(&str, Scalar)] = &[("alpha", Scalar::F64(0.5)), ("beta", Scalar::F64(2.0))];
const TRANSPOSED: &[(&str, &str)] = &[("transpose_a", "transpose"), ("transpose_b", "none")];

/// One launch of each op at least.
fn samples() -> Vec<Sample> {
    let op = |op, dtypes| Sample { op, dtypes, ..Sample::default() };
    let gathered: &[_] = &[
        ("batch", 2),
        ("outer", 2),
        ("processed", 5),
        ("inner", 3),
        ("num_indices", 4),
        ("offset", 0),
        ("size", 5),
    ];
    let reduced: &[_] = &[("outer", 2), ("reduced", 7), ("inner", 3)];
    let rows: &[_] = &[("rows", 3), ("cols", 17), ("inner", 2)];
    let norm = &rows[..2];
    let stats: &[_] = &[("data", DType::BF16), ("stats", F32)];
    vec![
        Sample { sizes: &[("count", 33)], arity: 3, ..op("add", DATA) },
        Sample { sizes: &[("count", 33)], arity: 0, ..op("add", &[("data", DType::U64)]) },
        Sample { sizes: &[("count", 33)], scalars: &[("start", Scalar::F64(-1.5))], ..op("arange", DATA) },
        Sample {
            selectors: &[("op", "argmin")],
            sizes: reduced,
            ..op("arg_reduce", &[("src", DType::I8), ("dst", DType::I32)])
        },
        Sample { selectors: WRAP, sizes: gathered, ..op("batch_gather", INDEXED) },
        Sample {
            selectors: TRANSPOSED,
            sizes: &[("batch", 2), ("m", 3), ("n", 5), ("k", 4)],
            scalars: BETA,
            ..op("batch_matmul", DATA)
        },
        Sample {
            selectors: &[("op", "is_close")],
            attrs: &[("attr0", 0.5), ("attr1", 0.25)],
            lists: &[("src0_dims", &[4, 1, 3]), ("src1_dims", &[5, 1])],
            ..op("broadcast_elementwise_binary", &[("src", F32), ("dst", DType::BOOL)])
        },
        Sample {
            selectors: &[("op", "sub")],
            lists: &[("src0_dims", &[7]), ("src1_dims", &[])],
            scalars: &[("scalar1", Scalar::I64(-300))],
            ..op("broadcast_elementwise_binary", &[("src", DType::I16), ("dst", DType::I16)])
        },
        Sample {
            selectors: &[("op", "abs")],
            lists: &[
                ("src_dims", &[3, 1]),
                ("src_strides", &[2, 1]),
                ("dst_dims", &[3, 4]),
                ("dst_strides", &[5, 1]),
            ],
            ..op("broadcast_elementwise_unary", SRC_DST)
        },
        Sample {
            selectors: TRANSPOSED,
            lists: &[("a_dims", &[2, 4, 3]), ("b_dims", &[4, 5]), ("c_dims", &[2, 3, 5])],
            scalars: BETA,
            ..op("broadcast_matmul", &[("data", DType::COMPLEX64)])
        },
        Sample { sizes: &[("count", 33)], ..op("cast", &[("src", DType::F64), ("dst", DType::U8)]) },
        Sample {
            lists: &[("src_dims", &[3, 4]), ("padding_before", &[1, -1]), ("padding_after", &[0, 2])],
            scalars: TWO,
            ..op("constant_pad", DATA)
        },
        Sample {
            lists: &[
                ("dst_dims", &[5, 6]),
                ("dst_pos", &[1, 2]),
                ("src_dims", &[3, 4]),
                ("src_pos", &[0, 1]),
                ("extent", &[3, 2]),
            ],
            ..op("copy_nd", DATA)
        },
        Sample {
            selectors: &[("op", "leaky_relu")],
            attrs: &[("attr0", 0.75)],
            sizes: &[("count", 33)],
            ..op("elementwise_unary", SRC_DST)
        },
        Sample { sizes: &[("count", 33)], scalars: TWO, ..op("fill", &[("data", DType::COMPLEX128)]) },
        Sample { selectors: WRAP, sizes: &gathered[1..], ..op("gather", INDEXED) },
        Sample { sizes: norm, attrs: &[("epsilon", 0.01)], ..op("layer_norm", stats) },
        Sample { sizes: norm, absent: &["beta", "rstd"], ..op("layer_norm", stats) },
        Sample { sizes: rows, ..op("log_softmax", SRC_DST) },
        Sample { sizes: rows, ..op("log_softmax_backward", SRC_DST) },
        Sample { selectors: TRANSPOSED, sizes: MNK, scalars: BETA, ..op("matmul", DATA) },
        Sample { selectors: TRANSPOSED, sizes: MNK, ..op("matmul", &[("data", DType::I8)]) },
        Sample { selectors: &[("kind", "device_to_device")], sizes: &[("bytes", 33)], ..op("memcpy", &[]) },
        Sample { sizes: &[("bytes", 33)], scalars: TWO, ..op("memset", &[]) },
        Sample {
            selectors: &[("mode", "zero")],
            sizes: &[("num_indices", 4), ("depth", 5), ("offset", 0), ("size", 5)],
            scalars: &[("on", Scalar::I64(7)), ("off", Scalar::F64(0.5))],
            ..op("one_hot", INDEXED)
        },
        Sample {
            lists: &[("src_dims", &[2, 3, 4]), ("permutation", &[2, 0, 1])],
            ..op("permute", &[("data", DType::U16)])
        },
        Sample { selectors: &[("op", "prod")], sizes: reduced, ..op("reduce", SRC_DST) },
        Sample { sizes: norm, ..op("rms_norm", stats) },
        Sample { sizes: norm, absent: &["weight", "inv_rms"], ..op("rms_norm", stats) },
        Sample { selectors: WRAP, sizes: &gathered[1..], ..op("scatter_add", INDEXED) },
        Sample { sizes: rows, ..op("softmax", &[("src", DType::F16), ("dst", F32)]) },
        Sample { sizes: rows, ..op("softmax_backward", SRC_DST) },
        Sample {
            lists: &[("dims", &[3, 4]), ("src_strides", &[1, 3]), ("dst_strides", &[6, 1])],
            sizes: &[("src_offset", 2), ("dst_offset", 1)],
            ..op("strided_copy", &[("src", DType::I32), ("dst", F32)])
        },
        Sample { sizes: &[("count", 33)], ..op("tensor_fill", DATA) },
        Sample {
            lists: &[("cond_dims", &[3, 1]), ("x_dims", &[4]), ("y_dims", &[])],
            ..op("where", &[("cond", DType::U8), ("data", DType::F64)])
        },
    ]
}

/// Bytes that look random and are always the same.
fn content(dtype: DType, bytes: u64, salt: u64) -> Vec<u8> {
    let mut x = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let byte = |_| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 56) as u8
    };
    match dtype {
        DType::BOOL => vec![1; bytes as usize],
        _ => (0..bytes).map(byte).collect(),
    }
}

fn upload(runtime: &Runtime, dtype: DType, bytes: &[u8]) -> Buffer {
    let device = &runtime.devices()[0];
    match dtype {
        DType::BOOL => device.upload(&vec![true; bytes.len()]).unwrap(),
        _ => device.upload(bytes).unwrap().reinterpret(dtype).unwrap(),
    }
}

fn check(runtime: &Runtime, stream: &Stream, sample: &Sample, salt: u64) {
    let mut request = runtime.request(sample.op).unwrap();
    let mut launch = Launch::new(sample.op);
    for (name, value) in sample.selectors {
        (request, launch) = (request.selector(name, value).unwrap(), launch.selector(name, value));
    }
    for (role, dtype) in sample.dtypes {
        request = request.dtype(role, &dtype.to_string()).unwrap();
        launch = launch.dtype(role, *dtype);
    }
    for (name, value) in sample.attrs {
        (request, launch) = (request.attr(name, *value).unwrap(), launch.attr(name, *value));
    }
    let primitive = runtime.primitive_dyn(&runtime.devices()[0], &request).unwrap();
    assert!(primitive.capturable());
    let mut args = primitive.args();
    for (name, value) in sample.sizes {
        (args, launch) = (args.size(name, *value).unwrap(), launch.size(name, *value));
    }
    for (name, values) in sample.lists {
        (args, launch) = (args.dims(name, values).unwrap(), launch.dims(name, values));
    }
    for (name, value) in sample.scalars {
        (args, launch) = (args.scalar(name, *value).unwrap(), launch.scalar(name, *value));
    }
    // A list of buffers is counted by its addresses.
    let schema = primitive.schema().clone();
    let list = schema.list_length().map(|_| schema.operands.len() - 1);
    let addresses = vec![0; sample.arity];
    if let Some(list) = list {
        args = args.addresses(&schema.operands[list].name, &addresses).unwrap();
    }
    let uses = primitive.uses(&args).unwrap();
    let given = |i: usize| {
        let name = schema.operands[schema.operand_of(i)].name.as_str();
        uses[i].present && !sample.absent.contains(&name)
    };
    let dtype = |i: usize| uses[i].dtype.unwrap_or(DType::U8);
    let before: Vec<_> = (0..uses.len())
        .map(|i| match schema.operands[schema.operand_of(i)].name.as_str() {
            "indices" => {
                let places = [3i64, -1, 0, 2].iter().cycle().flat_map(|x| x.to_ne_bytes());
                places.take(uses[i].bytes as usize).collect()
            }
            _ => content(dtype(i), uses[i].bytes, salt + i as u64),
        })
        .collect();
    let mut buffers: Vec<_> = (0..uses.len()).map(|i| upload(runtime, dtype(i), &before[i])).collect();
    let is_bool = |i: usize| dtype(i) == DType::BOOL;
    for i in (0..uses.len()).filter(|i| given(*i)) {
        let operand = &schema.operands[schema.operand_of(i)];
        if operand.reads || operand.covers.is_some() {
            launch = launch.read(&operand.name, View::new(dtype(i), &before[i]));
        }
    }
    let expected = launch.run().unwrap();
    for (i, buffer) in buffers.iter_mut().enumerate().filter(|(i, _)| given(*i)) {
        let operand = &schema.operands[schema.operand_of(i)];
        args = match operand.writes {
            true => args.write(&operand.name, &mut *buffer).unwrap(),
            false => args.read(&operand.name, &*buffer).unwrap(),
        };
    }
    primitive.launch(stream, args).unwrap();
    stream.sync().unwrap();
    for (i, buffer) in buffers.into_iter().enumerate() {
        let operand = &schema.operands[schema.operand_of(i)];
        let found = match is_bool(i) {
            true => buffer.download::<bool>().unwrap().into_iter().map(u8::from).collect(),
            false => buffer.reinterpret(DType::U8).unwrap().download::<u8>().unwrap(),
        };
        let wanted = match operand.writes && given(i) {
            true => &expected.get(&operand.name).unwrap().bytes,
            false => &before[i],
        };
        assert_eq!(&found, wanted, "{}: `{}`", sample.op, operand.name);
        if operand.writes && given(i) && operand.covers.is_none() {
            assert_ne!(&found, &before[i], "{}: `{}` was not written", sample.op, operand.name);
        }
    }
}

#[test]
fn every_op_computes_what_its_reference_does() {
    let runtime = runtime(&[("max_delay_us", "20")]);
    let stream = runtime.devices()[0].stream().unwrap();
    let samples = samples();
    let covered: BTreeSet<_> = samples.iter().map(|s| s.op).collect();
    assert_eq!(covered, primitives::reference::ops().collect(), "a sample for each op");
    for (i, sample) in samples.iter().enumerate() {
        check(&runtime, &stream, sample, 1 + i as u64 * 100);
    }
    drop(stream);
    nothing_left(&runtime);
}

#[test]
fn arguments_that_only_the_kernel_can_judge_fail_on_the_stream() {
    let runtime = runtime(&[]);
    let device = &runtime.devices()[0];
    let stream = device.stream().unwrap();
    let request = runtime.request("permute").unwrap().dtype("data", "i32").unwrap();
    let permute = runtime.primitive_dyn(device, &request).unwrap();
    let (src, mut dst) = (device.upload(&[1i32; 4]).unwrap(), device.upload(&[7i32; 4]).unwrap());
    let args = permute.args().dims("src_dims", &[2, 2]).unwrap().dims("permutation", &[1, 1]).unwrap();
    permute.launch(&stream, args.read("src", &src).unwrap().write("dst", &mut dst).unwrap()).unwrap();
    assert_eq!(stream.sync().unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(dst.download::<i32>().unwrap(), [7; 4]);
}

#[test]
fn what_has_a_meaning_is_offered() {
    let runtime = runtime(&[]);
    let rows = runtime.query(&Filter { device: Some("sim:0".into()), ..Filter::default() });
    let offered: BTreeSet<_> = rows
        .into_iter()
        .map(|row| {
            let dtypes: Vec<_> = row.dtypes.iter().map(|(role, d)| format!("{role}={d}")).collect();
            let selectors: Vec<_> = row.selectors.iter().map(|(_, value)| value.as_str()).collect();
            (row.op, dtypes.join(" "), selectors.join(" "))
        })
        .collect();
    // op, dtypes, answers, selectors: `yes` is what the CPU provider has, which has all that has a meaning.
    let table = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/support.csv");
    let table = std::fs::read_to_string(table).unwrap();
    let mut wanted = BTreeSet::new();
    for line in table.lines().skip(1) {
        let [op, dtypes, answer, _, selectors] = line.split(',').collect::<Vec<_>>()[..] else {
            panic!("five columns: {line}")
        };
        let schema = runtime.schema(op).unwrap();
        let names: Vec<_> = schema.selectors().map(|(_, names)| names).collect();
        let selectors: Vec<String> = match (selectors, names.as_slice()) {
            ("all", [one]) => one.to_vec(),
            ("all", [a, b]) => a.iter().flat_map(|a| b.iter().map(move |b| format!("{a} {b}"))).collect(),
            ("", []) => vec![String::new()],
            (some, [_]) => some.split(' ').map(str::to_owned).collect(),
            other => panic!("{op}: {other:?}"),
        };
        if answer == "yes" {
            wanted.extend(selectors.into_iter().map(|s| (op.to_owned(), dtypes.to_owned(), s)));
        }
    }
    assert!(wanted.len() > 1000, "{}", wanted.len());
    let missing: Vec<_> = wanted.difference(&offered).take(5).collect();
    assert!(missing.is_empty(), "not offered: {missing:?}");
    // The references also know what the table leaves out: tests of complex numbers, which look at both parts.
    let tests = ["is_inf", "is_nan", "is_finite", "logical_not"];
    let known = |(op, dtypes, selector): &&(String, String, String)| {
        op.ends_with("elementwise_unary")
            && dtypes.starts_with("src=complex")
            && dtypes.ends_with("dst=bool")
            && tests.contains(&selector.as_str())
    };
    let (known, beyond): (Vec<_>, Vec<_>) = offered.difference(&wanted).partition(known);
    assert!(beyond.is_empty(), "offered without a meaning: {:?}", &beyond[..beyond.len().min(5)]);
    assert_eq!(known.len(), 2 * 2 * tests.len());
}

//! `plugins/c-example/acme.c`: an op and a dtype that no file of the core, the host or the command line names.
//! Everything here goes through names, as in a program that has never heard of them either.

use ep_core::{Code, DType, Scalar};
use ep_registry::query::Filter;
use ep_registry::select::Verdict;
use ep_registry::{Device, DynPrimitive, Runtime};
use ep_vendor_tests::{folder, load, make, make_changed, root};
use proptest::prelude::*;
use std::path::Path;

fn host() -> (Runtime, tempfile::TempDir) {
    let folder = folder();
    let library = make(folder.path(), "acme");
    (load(&[("acme", &library)]), folder)
}

fn cpu(runtime: &Runtime) -> &Device {
    runtime.device("cpu").unwrap()
}

fn conv2d(runtime: &Runtime, kernel: i64) -> DynPrimitive {
    let request = runtime.request("acme.conv2d").unwrap();
    let request = request.dtype("data", "f32").unwrap().attr("kernel", kernel as f64).unwrap();
    runtime.primitive_dyn(cpu(runtime), &request).unwrap()
}

/// A vendor dtype by its name, once a provider that brings it is loaded.
fn fp8(runtime: &Runtime) -> DType {
    let rows = runtime.query(&Filter { op: Some("fill".into()), ..Filter::default() });
    assert_eq!(rows[0].dtypes, [("data".to_owned(), "acme.fp8".to_owned())]);
    DType::by_name("acme.fp8").unwrap()
}

#[test]
fn the_op_is_listed_with_its_schema() {
    let (runtime, _folder) = host();
    let rows = runtime.query(&Filter { op: Some("acme.conv2d".into()), ..Filter::default() });
    let mut seen: Vec<_> = rows.iter().map(|r| (r.factory.as_str(), r.predicate.as_str())).collect();
    seen.sort_unstable();
    assert_eq!(
        seen,
        [
            ("conv2d.general", r#"attr("kernel") in [1, 2, 3, 5, 7]"#),
            ("conv2d.pointwise", r#"attr("kernel") == 1"#),
        ]
    );
    assert!(rows.iter().all(|r| r.dtypes == [("data".to_owned(), "f32".to_owned())] && r.device == "cpu:0"));
    let schema = runtime.schema("acme.conv2d").unwrap();
    assert!(schema.deterministic && schema.summary.contains("window"));
    let operands: Vec<_> = schema.operands.iter().map(|x| format!("{}: {}", x.name, x.count)).collect();
    assert_eq!(
        operands,
        [r#"src: prod("src_dims")"#, r#"weight: prod("weight_dims")"#, r#"dst: prod("dst_dims")"#]
    );
    let error = runtime.schema("acme.conv3d").unwrap_err();
    assert!(error.code() == Code::NotFound && error.message().contains("acme.conv2d"), "{error}");
}

#[test]
fn each_predicate_chooses_and_explains_itself() {
    let (runtime, _folder) = host();
    let explain = |kernel: Option<f64>| {
        let mut request = runtime.request("acme.conv2d").unwrap().dtype("data", "f32").unwrap();
        if let Some(kernel) = kernel {
            request = request.attr("kernel", kernel).unwrap();
        }
        runtime.explain(cpu(&runtime), &request).unwrap()
    };
    let verdict = |kernel: Option<f64>, factory: &str| {
        let explanation = explain(kernel);
        let of = explanation.candidates.iter().find(|c| c.factory == factory).unwrap();
        of.verdict.clone()
    };
    assert_eq!(verdict(Some(1.0), "conv2d.pointwise"), Verdict::Chosen);
    assert!(
        matches!(verdict(Some(1.0), "conv2d.general"), Verdict::Outranked(why) if why.contains("priority 1"))
    );
    // The schema's default, 3, stands in where a request does not say.
    for kernel in [None, Some(2.0), Some(7.0)] {
        assert_eq!(verdict(kernel, "conv2d.general"), Verdict::Chosen, "{kernel:?}");
        assert!(matches!(verdict(kernel, "conv2d.pointwise"), Verdict::Refused(_)), "{kernel:?}");
    }
    let text = explain(None).to_string();
    assert!(text.contains(r#"needs attr("kernel") == 1, but attr("kernel") is 3"#), "{text}");
    for kernel in [0.0, 2.5, 4.0, f64::NAN] {
        assert!(explain(Some(kernel)).chosen().is_none());
    }
    let primitive = |kernel| conv2d(&runtime, kernel).factory().to_owned();
    assert_eq!((primitive(1), primitive(3)), ("conv2d.pointwise".to_owned(), "conv2d.general".to_owned()));
}

/// A convolution and its data.
#[derive(Debug, Clone)]
struct Case {
    src_dims: [i64; 4],
    weight_dims: [i64; 4],
    src: Vec<f32>,
    weight: Vec<f32>,
}

fn cases() -> impl Strategy<Value = Case> {
    (1i64..4, 0i64..3, 0i64..4, 0i64..4, 0i64..4, 0i64..4).prop_flat_map(|(kernel, n, h, w, c, o)| {
        let (src_dims, weight_dims) = ([n, h + kernel - 1, w + kernel - 1, c], [kernel, kernel, c, o]);
        let values =
            |dims: [i64; 4]| prop::collection::vec(-8f32..8f32, dims.iter().product::<i64>() as usize);
        (values(src_dims), values(weight_dims)).prop_map(move |(src, weight)| Case {
            src_dims,
            weight_dims,
            src,
            weight,
        })
    })
}

impl Case {
    fn dst_dims(&self) -> [i64; 4] {
        let [n, h, w, _] = self.src_dims;
        let [kernel, _, _, o] = self.weight_dims;
        [n, h - kernel + 1, w - kernel + 1, o]
    }

    /// Each weight is added where it contributes, and not each result summed up as the kernels do.
    fn expected(&self) -> Vec<f64> {
        let ([_, h, w, c], [kernel, _, _, o], [n, rows, cols, _]) =
            (self.src_dims, self.weight_dims, self.dst_dims());
        let mut dst = vec![0f64; (n * rows * cols * o) as usize];
        for (at, weight) in self.weight.iter().enumerate() {
            let at = at as i64;
            let (i, j, from, to) = (at / (o * c * kernel), at / (o * c) % kernel, at / o % c, at % o);
            for pixel in 0..n * rows * cols {
                let (image, y, x) = (pixel / (rows * cols), pixel / cols % rows, pixel % cols);
                let src = self.src[(((image * h + y + i) * w + x + j) * c + from) as usize];
                dst[(pixel * o + to) as usize] += f64::from(src) * f64::from(*weight);
            }
        }
        dst
    }
}

#[test]
fn both_kernels_compute_any_convolution() {
    let (runtime, _folder) = host();
    let device = cpu(&runtime);
    let stream = device.stream().unwrap();
    let primitives = [1, 2, 3].map(|kernel| conv2d(&runtime, kernel));
    proptest!(|(case in cases())| {
        let primitive = &primitives[case.weight_dims[0] as usize - 1];
        let (dims, expected) = (case.dst_dims(), case.expected());
        let (src, weight) = (device.upload(&case.src)?, device.upload(&case.weight)?);
        let mut dst = device.upload(&vec![f32::NAN; expected.len()])?;
        let args = primitive.args().dims("src_dims", &case.src_dims)?.dims("weight_dims", &case.weight_dims)?;
        let args = args.dims("dst_dims", &dims)?.read("src", &src)?.read("weight", &weight)?.write("dst", &mut dst)?;
        primitive.launch(&stream, args)?;
        for (got, wanted) in dst.download::<f32>()?.into_iter().zip(expected) {
            // Each of at most 27 products is below 64; the sum is rounded once.
            let slack = wanted.abs() * f64::from(f32::EPSILON) + 1e-12;
            prop_assert!((f64::from(got) - wanted).abs() <= slack, "{got} is not {wanted}");
        }
    });
}

#[test]
fn shapes_that_do_not_fit_are_refused_with_both_sides() {
    let (runtime, _folder) = host();
    let device = cpu(&runtime);
    let stream = device.stream().unwrap();
    let primitive = conv2d(&runtime, 2);
    let (src, weight) = (device.upload(&[1f32; 64]).unwrap(), device.upload(&[1f32; 64]).unwrap());
    let mut dst = device.upload(&[-7f32; 64]).unwrap();
    let good: [&[i64]; 3] = [&[1, 3, 3, 2], &[2, 2, 2, 1], &[1, 2, 2, 1]];
    let mut launch = |[s, w, d]: [&[i64]; 3]| {
        let args = primitive.args().dims("src_dims", s)?.dims("weight_dims", w)?.dims("dst_dims", d)?;
        primitive.launch(&stream, args.read("src", &src)?.read("weight", &weight)?.write("dst", &mut dst)?)
    };
    launch(good).unwrap();
    for (shapes, said) in [
        ([good[0], &[3, 3, 2, 1], good[2]], "a window of 2"),
        ([good[0], &[2, 1, 2, 1], good[2]], "needs [2, 2, 2, 1]"),
        ([good[0], &[2, 2, 3, 1], good[2]], "over 2 channels"),
        ([good[0], good[1], &[1, 2, 2, 2]], "the result is [1, 2, 2, 1]"),
        ([&[1, 1, 3, 2], good[1], good[2]], "the result is [1, 0, 2, 1]"),
        ([&[3, 3, 2], &[2, 2, 2], &[2, 2, 1]], "rank 3; give three shapes of rank 4"),
        ([good[0], &[2, 2, 2], good[2]], "have one rank, but differ"),
        ([good[0], good[1], &[1, 100, 100, 1]], "dst"),
    ] {
        let error = launch(shapes).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().contains(said), "`{said}` is not in: {error}");
    }
}

/// Every finite `acme.fp8` by its code.
fn fp8_value(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    let magnitude = if exponent == 0 {
        mantissa / 8.0 * 2f64.powi(-7)
    } else {
        (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 8)
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

fn cast(runtime: &Runtime, src: &str, dst: &str) -> DynPrimitive {
    let request = runtime.request("cast").unwrap().dtype("src", src).unwrap().dtype("dst", dst).unwrap();
    runtime.primitive_dyn(cpu(runtime), &request).unwrap()
}

/// `acme.fp8` from numbers.
fn to_fp8(runtime: &Runtime, data: &[f32]) -> Vec<u8> {
    let device = cpu(runtime);
    let src = device.upload(data).unwrap();
    let mut dst = device.alloc(fp8(runtime), data.len()).unwrap();
    let primitive = cast(runtime, "f32", "acme.fp8");
    let args = primitive.args().size("count", data.len() as i64).unwrap();
    primitive
        .launch(&device.stream().unwrap(), args.read("src", &src).unwrap().write("dst", &mut dst).unwrap())
        .unwrap();
    dst.reinterpret(DType::U8).unwrap().download().unwrap()
}

#[test]
fn all_codes_of_the_dtype_survive_the_way_to_f32_and_back() {
    let (runtime, _folder) = host();
    let device = cpu(&runtime);
    let codes: Vec<u8> = (0..=255).collect();
    let src = device.upload(&codes).unwrap().reinterpret(fp8(&runtime)).unwrap();
    assert_eq!((src.len(), src.dtype().to_string()), (256, "acme.fp8".to_owned()));
    let mut dst = device.alloc(DType::F32, 256).unwrap();
    let primitive = cast(&runtime, "acme.fp8", "f32");
    let args = primitive.args().size("count", 256).unwrap();
    primitive
        .launch(&device.stream().unwrap(), args.read("src", &src).unwrap().write("dst", &mut dst).unwrap())
        .unwrap();
    let values = dst.download::<f32>().unwrap();
    for (code, value) in codes.iter().zip(&values) {
        match code {
            0x80 => assert!(value.is_nan()),
            _ => assert_eq!(f64::from(*value), fp8_value(*code), "code {code:#x}"),
        }
    }
    assert_eq!(to_fp8(&runtime, &values), codes);
}

#[test]
fn casts_to_the_dtype_give_the_nearest_number() {
    let (runtime, _folder) = host();
    let sorted: Vec<u8> = (0..=127).collect();
    // Every number, and every point half-way to the next, and their neighbours in f32.
    let middles = sorted.windows(2).map(|w| (fp8_value(w[0]) + fp8_value(w[1])) / 2.0);
    let points: Vec<f32> = sorted.iter().map(|c| fp8_value(*c)).chain(middles).map(|x| x as f32).collect();
    let near = |x: f32| [f32::from_bits(x.to_bits().max(1) - 1), x, f32::from_bits(x.to_bits() + 1)];
    let mut data: Vec<f32> = points.into_iter().flat_map(near).flat_map(|x| [x, -x]).collect();
    data.extend([f32::MAX, f32::INFINITY, 241.0, 1e-30, f32::MIN_POSITIVE]);
    for (x, code) in data.iter().zip(to_fp8(&runtime, &data)) {
        // Far beyond the largest number, distances would all round to the same.
        let distance = |c: u8| (fp8_value(c) - f64::from(x.abs().min(256.0))).abs();
        let nearest = sorted.iter().map(|c| distance(*c)).fold(f64::INFINITY, f64::min);
        // Of two that are equally near, the even one.
        let wanted =
            sorted.iter().copied().filter(|c| distance(*c) == nearest).min_by_key(|c| c & 1).unwrap();
        // There is no negative zero.
        let sign = if *x < 0.0 && wanted != 0 { 0x80 } else { 0 };
        assert_eq!(code, wanted | sign, "{x}");
    }
    assert_eq!(to_fp8(&runtime, &[f32::NAN, f32::NEG_INFINITY, -0.0]), [0x80, 0xFF, 0]);
}

#[test]
fn the_dtype_is_filled_and_copied() {
    let (runtime, _folder) = host();
    let device = cpu(&runtime);
    let stream = device.stream().unwrap();
    let fill =
        runtime.primitive_dyn(device, &runtime.request("fill").unwrap().dtype("data", "acme.fp8").unwrap());
    let fill = fill.unwrap();
    let mut buffer = device.upload(&[7u8; 9]).unwrap().reinterpret(fp8(&runtime)).unwrap();
    let args = fill.args().size("count", 8).unwrap().scalar("value", Scalar::F64(-1.5)).unwrap();
    fill.launch(&stream, args.write("dst", &mut buffer).unwrap()).unwrap();

    let memcpy = runtime.request("memcpy").unwrap().selector("kind", "auto").unwrap();
    let memcpy = runtime.primitive_dyn(device, &memcpy).unwrap();
    let mut copy = device.upload(&[1u8; 9]).unwrap().reinterpret(fp8(&runtime)).unwrap();
    let args = memcpy.args().size("bytes", 9).unwrap().read("src", &buffer).unwrap();
    memcpy.launch(&stream, args.write("dst", &mut copy).unwrap()).unwrap();

    let code = (0..=255).find(|c| fp8_value(*c) == -1.5).unwrap();
    let bytes: Vec<u8> = copy.reinterpret(DType::U8).unwrap().download().unwrap();
    assert_eq!(bytes, [[code; 8].as_slice(), &[7]].concat());

    // Another dtype of the same size is another dtype.
    let mut plain = device.upload(&[7u8; 8]).unwrap();
    let args = fill.args().size("count", 8).unwrap().scalar("value", Scalar::F64(0.0)).unwrap();
    let error = fill.launch(&stream, args.write("dst", &mut plain).unwrap()).unwrap_err();
    assert!(error.code() == Code::InvalidArgument && error.message().contains("acme.fp8"), "{error}");
}

#[test]
fn a_dtype_is_known_by_name_once_its_provider_is_loaded() {
    let error = DType::by_name("acme.fp7").unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert!(
        error.message().contains("unknown dtype `acme.fp7`") && error.message().contains("complex128"),
        "{error}"
    );
    let (runtime, _folder) = host();
    let dtype = fp8(&runtime);
    assert_eq!((dtype.to_string().as_str(), dtype.bytes_for_bounds(), dtype.alignment()), ("acme.fp8", 1, 1));
    assert_eq!(DType::by_name("f16").unwrap(), DType::F16);
    let error = runtime.request("cast").unwrap().dtype("src", "acme.fp9").unwrap_err();
    assert!(error.code() == Code::NotFound && error.message().ends_with("acme.fp8"), "{error}");
    // A second runtime in the process gets the same id.
    let (second, _folder) = host();
    assert_eq!(fp8(&second), dtype);
}

#[test]
fn it_works_beside_another_provider_of_the_same_device() {
    let folder = folder();
    let (acme, c) = (make(folder.path(), "acme"), make(folder.path(), "c_example"));
    let runtime = load(&[("c", &c), ("acme", &acme)]);
    assert_eq!(runtime.devices().len(), 1);
    let device = cpu(&runtime);
    let stream = device.stream().unwrap();
    // One provider fills what the other one's own op reads; `fill` goes by dtype.
    let fill = |dtype: &str| {
        let request = runtime.request("fill").unwrap().dtype("data", dtype).unwrap();
        runtime.primitive_dyn(device, &request).unwrap()
    };
    assert_eq!((fill("f32").instance(), fill("acme.fp8").instance()), ("c", "acme"));
    let mut src = device.alloc(DType::F32, 6).unwrap();
    let filler = fill("f32");
    let args = filler.args().size("count", 6).unwrap().scalar("value", Scalar::F64(0.5)).unwrap();
    filler.launch(&stream, args.write("dst", &mut src).unwrap()).unwrap();
    let weight = device.upload(&[1f32, 2.0, 4.0]).unwrap();
    let mut dst = device.alloc(DType::F32, 2).unwrap();
    let primitive = conv2d(&runtime, 1);
    let args = primitive.args().dims("src_dims", &[1, 2, 1, 3]).unwrap();
    let args = args.dims("weight_dims", &[1, 1, 3, 1]).unwrap().dims("dst_dims", &[1, 2, 1, 1]).unwrap();
    let args = args.read("src", &src).unwrap().read("weight", &weight).unwrap();
    primitive.launch(&stream, args.write("dst", &mut dst).unwrap()).unwrap();
    assert_eq!(dst.download::<f32>().unwrap(), [3.5, 3.5]);
}

/// Lines of the files under a folder that have one of these words.
fn lines_with(folder: &Path, words: &[&str], found: &mut Vec<String>) -> usize {
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files += lines_with(&path, words, found);
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            files += 1;
            let hits = text.lines().filter(|line| words.iter().any(|w| line.contains(w)));
            found.extend(hits.map(|line| format!("{}: {line}", path.display())));
        }
    }
    files
}

#[test]
fn no_file_of_the_core_the_host_or_the_command_names_them() {
    let (mut found, mut files) = (Vec::new(), 0);
    for folder in ["ep-core", "ep-registry", "ep-cli", "primitives", "xtask"] {
        files += lines_with(&root().join(folder), &["acme.conv2d", "acme.fp8", "conv2d"], &mut found);
    }
    assert!(files > 150, "{files} files were read");
    assert!(found.is_empty(), "{found:#?}");
    assert!(
        lines_with(&root().join("plugins/c-example"), &["acme.conv2d"], &mut found) > 3 && !found.is_empty()
    );
}

/// The kit's verdict on the plugin with one line of its source replaced: the names of the cases that fail.
fn failing_cases(line: &str, by: &str) -> Vec<String> {
    let folder = folder();
    let library = make_changed(folder.path(), "acme", "changed", &[("acme.c", line, by)]);
    let runtime = load(&[("acme", &library)]);
    let verdicts = ep_conformance::vendor_cases(&runtime, cpu(&runtime), 7).unwrap();
    assert!(verdicts.len() >= 25, "{verdicts:?}");
    let failed =
        verdicts.into_iter().filter(|(_, outcome)| matches!(outcome, ep_conformance::Outcome::Fail(_)));
    failed.map(|(name, _)| name).collect()
}

#[test]
fn its_own_cases_tell_right_from_wrong() {
    assert_eq!(failing_cases("*dst++ = (float)sum;", "*dst++ = (float)sum;"), [""; 0]);
    for (line, defect, op) in [
        ("+ y + i) * s[2]", "+ y + j) * s[2]", "acme.conv2d"),
        ("c < in; ++c) sum", "c + 1 < in; ++c) sum", "acme.conv2d"),
        ("(int)nearbyint(", "(int)floor(", "cast"),
        ("exponent - 11);", "exponent - 10);", "cast"),
        ("fmin(fabs(x), 240)", "fmin(fabs(x), 224)", "fill"),
        ("if (isnan(x)) return 0x80;", "if (isnan(x)) return 0;", "fill"),
    ] {
        let failed = failing_cases(line, defect);
        assert!(failed.iter().any(|name| name.starts_with(op)), "{defect}: {failed:?}");
    }
}

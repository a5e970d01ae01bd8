//! Matrix products through a host on a fake cuBLASLt that computes: operands, factors, batches, workspace and errors.

mod rig;

use ep_core::primitive::{Fill, FillCall, FillDesc, Matmul, MatmulCall, MatmulDesc, Transpose};
use ep_core::{Code, DType, Error, Result, Scalar};
use ep_registry::{Device, Runtime};
use half::{bf16, f16};
use rig::{Rig, Setup};

type Complex = [f64; 2];

const TRANSPOSES: [[bool; 2]; 4] = [[false, false], [true, false], [false, true], [true, true]];
const DTYPES: [DType; 6] =
    [DType::F32, DType::F64, DType::F16, DType::BF16, DType::COMPLEX64, DType::COMPLEX128];

fn encode(dtype: DType, values: &[Complex]) -> Vec<u8> {
    let one = |&[re, im]: &Complex| match dtype {
        DType::F16 => f16::from_f64(re).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(re).to_le_bytes().to_vec(),
        DType::F32 => (re as f32).to_le_bytes().to_vec(),
        DType::F64 => re.to_le_bytes().to_vec(),
        DType::I64 => (re as i64).to_le_bytes().to_vec(),
        DType::COMPLEX64 => [re as f32, im as f32].map(f32::to_le_bytes).concat(),
        _ => [re, im].map(f64::to_le_bytes).concat(),
    };
    values.iter().flat_map(one).collect()
}

fn decode(dtype: DType, bytes: &[u8]) -> Vec<Complex> {
    let single = |b: &[u8]| f64::from(f32::from_le_bytes(b.try_into().unwrap()));
    let double = |b: &[u8]| f64::from_le_bytes(b.try_into().unwrap());
    let one = |b: &[u8]| match dtype {
        DType::F16 => [f16::from_le_bytes(b.try_into().unwrap()).to_f64(), 0.0],
        DType::BF16 => [bf16::from_le_bytes(b.try_into().unwrap()).to_f64(), 0.0],
        DType::F32 => [single(b), 0.0],
        DType::F64 => [double(b), 0.0],
        DType::I64 => [i64::from_le_bytes(b.try_into().unwrap()) as f64, 0.0],
        DType::COMPLEX64 => [single(&b[..4]), single(&b[4..])],
        _ => [double(&b[..8]), double(&b[8..])],
    };
    bytes.chunks(dtype.size().unwrap()).map(one).collect()
}

fn times([a, b]: Complex, [c, d]: Complex) -> Complex {
    [a * c - b * d, a * d + b * c]
}

/// A launch of `broadcast_matmul`, or of the others where the batches allow it.
#[derive(Clone)]
struct Case {
    op: &'static str,
    dtype: DType,
    transposed: [bool; 2],
    batches: [Vec<i64>; 3],
    sizes: [i64; 3],
    alpha: Scalar,
    beta: Scalar,
    /// Elements by which each operand is shifted in its memory.
    shift: usize,
}

impl Case {
    fn plain(dtype: DType, transposed: [bool; 2]) -> Case {
        let (alpha, beta) = (Scalar::F64(0.5), Scalar::F64(-0.75));
        let batches = [vec![], vec![], vec![]];
        Case { op: "matmul", dtype, transposed, batches, sizes: [3, 5, 7], alpha, beta, shift: 0 }
    }

    fn dims(&self) -> [Vec<i64>; 3] {
        let [m, n, k] = self.sizes;
        let stored = |rows, cols, turned: bool| if turned { [cols, rows] } else { [rows, cols] };
        let matrices = [stored(m, k, self.transposed[0]), stored(k, n, self.transposed[1]), [m, n]];
        [0, 1, 2].map(|x| [&self.batches[x][..], &matrices[x]].concat())
    }

    /// Small numbers whose products and sums every dtype holds exactly.
    fn values(&self, x: usize) -> Vec<Complex> {
        let count = self.dims()[x].iter().product::<i64>() as usize;
        let im = |i: usize| if self.dtype.is_complex() { (i * 3 % 5) as f64 - 2.0 } else { 0.0 };
        (0..count).map(|i| [((i * 7 + x * 3) % 9) as f64 - 4.0, im(i + x)]).collect()
    }

    /// By the definition.
    fn expected(&self) -> Vec<Complex> {
        let [a, b, c] = [0, 1, 2].map(|x| self.values(x));
        let [m, n, k] = self.sizes.map(|s| s as usize);
        let rank = self.batches.iter().map(Vec::len).max().unwrap();
        let at = |x: usize, i: usize| {
            let own = &self.batches[x];
            if i + own.len() < rank { 1 } else { own[i + own.len() - rank] as usize }
        };
        let all: Vec<usize> = (0..rank).map(|i| at(0, i).max(at(1, i))).collect();
        let factor =
            |s: Scalar, default: f64| if s == Scalar::None { [default, 0.0] } else { [s.as_f64(), s.im()] };
        let (alpha, beta) = (factor(self.alpha, 1.0), factor(self.beta, 0.0));
        let mut result: Vec<Complex> = c.iter().map(|c| times(beta, *c)).collect();
        for index in 0..all.iter().product() {
            let place = |x: usize| {
                let (mut rest, mut flat, mut scale) = (index, 0, 1);
                for i in (0..rank).rev() {
                    flat += rest % all[i] % at(x, i) * scale;
                    (rest, scale) = (rest / all[i], scale * at(x, i));
                }
                flat
            };
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                for p in 0..k {
                    let turned = |[re, im]: Complex, on: bool| [re, if on { -im } else { im }];
                    let left = if self.transposed[0] { p * m + i } else { i * k + p };
                    let right = if self.transposed[1] { j * k + p } else { p * n + j };
                    let x = turned(a[place(0) * m * k + left], self.transposed[0]);
                    let y = turned(b[place(1) * k * n + right], self.transposed[1]);
                    let [re, im] = times(alpha, times(x, y));
                    let to = &mut result[place(2) * m * n + i * n + j];
                    *to = [to[0] + re, to[1] + im];
                }
            }
        }
        result
    }

    fn run(&self, runtime: &Runtime, device: &Device) -> Result<Vec<Complex>> {
        let transpose = |on: bool| if on { "transpose" } else { "none" };
        let request = runtime
            .request(self.op)?
            .selector("transpose_a", transpose(self.transposed[0]))?
            .selector("transpose_b", transpose(self.transposed[1]))?
            .dtype("data", &self.dtype.to_string())?;
        let primitive = runtime.primitive_dyn(device, &request)?;
        let skipped = self.shift * self.dtype.size().unwrap();
        let buffers = [0, 1, 2].map(|x| {
            let bytes = [vec![0; skipped], encode(self.dtype, &self.values(x)), vec![0; 16]].concat();
            device.upload::<u8>(&bytes)
        });
        let [a, b, c] = buffers;
        let buffers = [a?, b?, c?];
        let [a, b, c] = [0, 1, 2].map(|x| buffers[x].address() + skipped as u64);
        let dims = self.dims();
        let [m, n, k] = self.sizes;
        let mut args = primitive.args().scalar("alpha", self.alpha)?.scalar("beta", self.beta)?;
        args = match self.op {
            "broadcast_matmul" => {
                args.dims("a_dims", &dims[0])?.dims("b_dims", &dims[1])?.dims("c_dims", &dims[2])?
            }
            _ => args.size("m", m)?.size("n", n)?.size("k", k)?,
        };
        if self.op == "batch_matmul" {
            args = args.size("batch", self.batches[2][0])?;
        }
        let args = args.address("a", a)?.address("b", b)?.address("c", c)?;
        let stream = device.stream()?;
        // SAFETY: the operands are those of the buffers above, which live until the work is done.
        unsafe { primitive.launch_raw(&stream, &args) }?;
        stream.sync()?;
        let bytes = buffers[2].download::<u8>()?;
        let count = dims[2].iter().product::<i64>() as usize * self.dtype.size().unwrap();
        Ok(decode(self.dtype, &bytes[skipped..skipped + count]))
    }

    #[track_caller]
    fn check(&self, runtime: &Runtime, device: &Device) {
        let name = format!("{} {} {:?} {:?}", self.op, self.dtype, self.dims(), self.transposed);
        let found = self.run(runtime, device).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(found, self.expected(), "{name}");
    }
}

#[test]
fn every_dtype_is_multiplied_as_it_is_stored() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[]);
        let device = runtime.device("cuda:0").unwrap();
        for dtype in DTYPES {
            for transposed in TRANSPOSES {
                for shift in [0, 1] {
                    let plain = Case { shift, ..Case::plain(dtype, transposed) };
                    plain.check(&runtime, device);
                    let sums = Case { alpha: Scalar::None, beta: Scalar::None, ..plain.clone() };
                    sums.check(&runtime, device);
                    let batch = vec![4i64];
                    Case { op: "batch_matmul", batches: [0, 1, 2].map(|_| batch.clone()), ..plain }
                        .check(&runtime, device);
                }
            }
            assert_eq!(
                rig.calls("cuLaunchKernel") + rig.calls("cuLaunchKernelEx"),
                0,
                "{dtype}: nothing was left to the kernel"
            );
        }
        let complex = Case {
            alpha: Scalar::Complex(0.5, 2.0),
            beta: Scalar::Complex(0.0, -1.0),
            ..Case::plain(DType::COMPLEX64, [true, false])
        };
        complex.check(&runtime, device);
    }
    rig.assert_clean();
}

#[test]
fn batches_broadcast_and_sums_apply_beta_once() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[]);
        let device = runtime.device("cuda:0").unwrap();
        let batches: [[&[i64]; 3]; 8] = [
            [&[], &[], &[]],
            [&[2, 3], &[], &[2, 3]],
            [&[], &[3], &[3]],
            [&[2, 1], &[1, 3], &[2, 3]],
            [&[3], &[3], &[]],
            [&[2, 3], &[2, 3], &[2, 1]],
            [&[2, 3], &[3], &[1, 3]],
            [&[1, 2, 1, 3, 1, 2], &[1, 2, 1, 3, 1, 2], &[1, 2, 1, 3, 1, 2]],
        ];
        for batches in batches {
            for transposed in TRANSPOSES {
                let batches = batches.map(<[i64]>::to_vec);
                let plain = Case::plain(DType::F32, transposed);
                Case { op: "broadcast_matmul", batches, ..plain }.check(&runtime, device);
            }
        }
        let calls = |batches: [&[i64]; 3], transposed| {
            rig.fake.fail(0, 0);
            let plain = Case::plain(DType::F32, transposed);
            Case { op: "broadcast_matmul", batches: batches.map(<[i64]>::to_vec), ..plain }
                .check(&runtime, device);
            rig.calls("cublasLtMatmul")
        };
        assert_eq!(calls([&[50, 3], &[], &[50, 3]], [false, true]), 1, "all rows at once");
        assert_eq!(calls([&[50], &[1], &[50]], [true, true]), 1, "a strided batch");
        assert_eq!(calls([&[9], &[9], &[]], [true, false]), 1, "a longer depth");
        assert_eq!(calls([&[9], &[9], &[]], [false, false]), 9, "sums of f32 are added up in c");
        let misfit = Case {
            op: "broadcast_matmul",
            batches: [vec![2], vec![3], vec![3]],
            ..Case::plain(DType::F32, [false; 2])
        };
        let error = misfit.run(&runtime, device).unwrap_err();
        assert!(error.code() == Code::InvalidArgument && error.message().contains("equal or 1"), "{error}");
    }
    rig.assert_clean();
}

/// Kernels of the library may let a launch begin early, and end before what they follow.
#[test]
fn a_launch_behind_the_library_waits_for_all_of_it() {
    let rig = Rig::new(Setup::default());
    let runtime = rig.runtime(&[]);
    let device = runtime.device("cuda:0").unwrap();
    let stream = device.stream().unwrap();
    let [a, b] = [[1.0f32; 4]; 2].map(|x| device.upload(&x).unwrap());
    let mut c = device.alloc(DType::F32, 4).unwrap();
    let none = Transpose::NONE;
    let matmul = runtime.primitive::<Matmul>(device, MatmulDesc::new(none, none, DType::F32)).unwrap();
    let fill = runtime.primitive::<Fill>(device, FillDesc::new(DType::F32)).unwrap();
    for launches in [["cuLaunchKernelEx", "cuLaunchKernel"], ["cuLaunchKernelEx", "cuLaunchKernelEx"]] {
        rig.fake.fail(0, 0);
        let value = Scalar::F64(1.0);
        fill.launch(&stream, FillCall { count: 4, value, dst: &mut c }).unwrap();
        if launches[0] != launches[1] {
            let (alpha, beta) = (Scalar::None, Scalar::None);
            let call = MatmulCall { m: 2, n: 2, k: 2, alpha, beta, a: &a, b: &b, c: &mut c };
            matmul.launch(&stream, call).unwrap();
            assert_eq!(rig.calls("cublasLtMatmul"), 1);
        }
        fill.launch(&stream, FillCall { count: 4, value, dst: &mut c }).unwrap();
        let log = rig.fake.log();
        let names = log.iter().map(|line| line.split('(').next().unwrap());
        assert_eq!(names.filter(|name| name.starts_with("cuLaunch")).collect::<Vec<_>>(), launches);
    }
    stream.sync().unwrap();
}

#[test]
fn the_kernel_does_what_the_library_does_not() {
    let rig = Rig::new(Setup::default());
    let runtime = rig.runtime(&[]);
    let device = runtime.device("cuda:0").unwrap();
    let launched = |case: &Case| {
        rig.fake.fail(0, 0);
        case.run(&runtime, device).unwrap();
        assert_eq!(rig.calls("cublasLtMatmul"), 0);
        rig.calls("cuLaunchKernel") + rig.calls("cuLaunchKernelEx")
    };
    let whole =
        Case { alpha: Scalar::I64(3), beta: Scalar::I64(-2), ..Case::plain(DType::I64, [true, false]) };
    assert_eq!(launched(&whole), 1);
    let f32_ = Case::plain(DType::F32, [false; 2]);
    assert_eq!(launched(&Case { sizes: [3, 5, 0], ..f32_.clone() }), 1, "k 0 scales c");
    assert_eq!(
        launched(&Case { alpha: Scalar::F64(0.0), ..f32_.clone() }),
        1,
        "alpha 0 does not read a and b"
    );
    assert_eq!(launched(&Case { sizes: [3, 5, 0], beta: Scalar::F64(1.0), ..f32_.clone() }), 0, "c stays");
    assert_eq!(launched(&Case { sizes: [0, 5, 3], ..f32_.clone() }), 0, "no result");
    let summed = [vec![2, 3], vec![2, 3], vec![3]];
    let half = Case { op: "broadcast_matmul", dtype: DType::BF16, batches: summed, ..f32_.clone() };
    assert_eq!(launched(&half), 1, "half types are rounded once");
    let bad = Case { alpha: Scalar::F64(0.5), sizes: [0, 5, 3], ..whole };
    assert_eq!(
        bad.run(&runtime, device).unwrap_err().code(),
        Code::InvalidArgument,
        "judged also for nothing"
    );
    // More rows than the fake has an algorithm for.
    let tall = Case { sizes: [(1 << 20) + 1, 1, 1], ..f32_ };
    assert_eq!(launched(&tall), 1);
}

#[test]
fn algorithms_are_asked_for_once_and_workspace_is_kept() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[]);
        let device = runtime.device("cuda:0").unwrap();
        let request = runtime.request("matmul").unwrap().dtype("data", "f32").unwrap();
        let matmul = runtime.primitive_dyn(device, &request).unwrap();
        assert!(matmul.describe().starts_with("cuBLASLt 130000"), "{}", matmul.describe());
        let x = device.upload(&[1.0f32; 64]).unwrap();
        let stream = device.stream().unwrap();
        let go = |n: i64| -> Vec<String> {
            let args = matmul.args().size("m", n).unwrap().size("n", n).unwrap().size("k", n).unwrap();
            let (a, c) = (x.address(), x.address() + 128);
            let args = args.address("a", a).unwrap().address("b", a).unwrap().address("c", c).unwrap();
            rig.fake.fail(0, 0);
            // SAFETY: matrices of at most 4 by 4 inside the buffer, which lives until the work is done.
            unsafe { matmul.launch_raw(&stream, &args) }.unwrap();
            rig.fake.log().iter().map(|l| l.split('(').next().unwrap().to_owned()).collect()
        };
        let first = go(4);
        let count = |log: &[String], name: &str| log.iter().filter(|l| *l == name).count();
        assert_eq!(count(&first, "cublasLtMatmulAlgoGetHeuristic"), 1);
        assert_eq!(count(&first, "cuMemAllocFromPoolAsync"), 1, "scratch of the stream");
        let mut warm = go(4);
        warm.retain(|call| call != "cuCtxGetCurrent");
        assert_eq!(warm, ["cuStreamIsCapturing", "cublasLtMatmul"]);
        let other = go(3);
        assert_eq!(count(&other, "cublasLtMatmulAlgoGetHeuristic"), 1, "another shape");
        assert_eq!(count(&other, "cuMemAllocFromPoolAsync"), 0);
        stream.sync().unwrap();
    }
    rig.assert_clean();
}

#[test]
fn the_library_is_opened_by_the_first_primitive_that_needs_it() {
    let rig = Rig::new(Setup::default());
    let runtime = rig.runtime(&[("cublaslt", "/nowhere/libcublasLt.so.13")]);
    let device = runtime.device("cuda:0").unwrap();
    let build = |dtype: &str| {
        let request = runtime.request("matmul").unwrap().dtype("data", dtype).unwrap();
        runtime.primitive_dyn(device, &request).map(drop)
    };
    assert_eq!(build("i32"), Ok(()), "integers need no library");
    let error: Error = build("f32").unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    for word in ["matmul", "pip install nvidia-cublas", "/nowhere/libcublasLt.so.13"] {
        assert!(error.message().contains(word), "{word}: {error}");
    }
}

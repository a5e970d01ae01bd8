//! Products by the library that is installed, in a host with the CPU provider beside. Where none is, they are skipped, or
//! fail if `EP_TEST_ONEDNN` is set.

use ep_core::primitive::{
    BatchMatmul, BatchMatmulCall, BatchMatmulDesc, BroadcastMatmul, BroadcastMatmulCall, BroadcastMatmulDesc,
    LayerNorm, LayerNormDesc, Matmul, MatmulCall, MatmulDesc, Softmax, SoftmaxDesc, Transpose,
};
use ep_core::{DType, Element, Scalar};
use ep_cpu::provider::CpuProvider;
use ep_onednn::{Library, OnednnProvider};
use ep_registry::{Primitive, Runtime};
use half::{bf16, f16};

/// A runtime with both; products are oneDNN's, and all else is the CPU provider's. None without the library.
fn both(threads: usize) -> Option<Runtime> {
    if let Err(e) = Library::open(None) {
        assert!(std::env::var_os("EP_TEST_ONEDNN").is_none(), "{e}");
        println!("skipped: {e}");
        return None;
    }
    let mut builder = Runtime::builder().threads(threads).linked::<CpuProvider>("cpu");
    builder = builder.linked::<OnednnProvider>("onednn");
    for op in ["matmul", "batch_matmul", "broadcast_matmul"] {
        builder = builder.select(op, ["onednn"]);
    }
    Some(builder.build().unwrap())
}

/// Whether the library has products of a dtype with the instruction set that it may use.
fn claims(dtype: DType) -> bool {
    let isa = Library::open(None).unwrap().isa();
    match dtype {
        DType::F32 => true,
        DType::BF16 => isa.starts_with("avx512") || isa.starts_with("avx2_vnni_2"),
        _ => isa.contains("fp16") || isa.contains("amx") || isa.starts_with("avx2_vnni_2"),
    }
}

/// Whole numbers from -8 to 7, whose products and sums of a thousand are exact in f32.
fn whole(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 40) % 16) as f32 - 8.0
    };
    (0..count).map(|_| next()).collect()
}

/// An element made of a number, rounded to nearest.
trait Number: Element {
    fn of(x: f32) -> Self;
    fn number(self) -> f32;
}

impl Number for f32 {
    fn of(x: f32) -> f32 {
        x
    }
    fn number(self) -> f32 {
        self
    }
}

impl Number for f16 {
    fn of(x: f32) -> f16 {
        f16::from_f32(x)
    }
    fn number(self) -> f32 {
        self.to_f32()
    }
}

impl Number for bf16 {
    fn of(x: f32) -> bf16 {
        bf16::from_f32(x)
    }
    fn number(self) -> f32 {
        self.to_f32()
    }
}

fn numbers<T: Number>(list: &[f32]) -> Vec<T> {
    list.iter().map(|x| T::of(*x)).collect()
}

#[test]
fn both_providers_share_one_device_and_rules_choose() {
    let Some(runtime) = both(2) else { return };
    let [device] = runtime.devices() else { panic!("{:?}", runtime.devices()) };
    let members: Vec<&str> = device.members().iter().map(|m| m.instance()).collect();
    assert_eq!((device.name(), members), ("cpu:0", vec!["cpu", "onednn"]));
    let (plain, f) = (Transpose::NONE, DType::F32);
    let matmul: Primitive<Matmul> = runtime.primitive(device, MatmulDesc::new(plain, plain, f)).unwrap();
    let softmax: Primitive<Softmax> = runtime.primitive(device, SoftmaxDesc::new(f, f)).unwrap();
    let norm: Primitive<LayerNorm> = runtime.primitive(device, LayerNormDesc::new(f, f)).unwrap();
    assert_eq!((matmul.instance(), softmax.instance(), norm.instance()), ("onednn", "cpu", "cpu"));
    // What oneDNN does not have falls to the next.
    let double = MatmulDesc::new(plain, plain, DType::F64);
    let matmul: Primitive<Matmul> = runtime.primitive(device, double).unwrap();
    assert_eq!(matmul.instance(), "cpu");
}

/// Factors of whole numbers, and the sums of their products, which are exact.
struct Case {
    sizes: [usize; 3],
    transposed: [bool; 2],
    a: Vec<f32>,
    b: Vec<f32>,
    sums: Vec<f32>,
}

fn cases() -> Vec<Case> {
    let sizes =
        [[1, 1, 1], [3, 5, 7], [64, 64, 64], [257, 130, 96], [1, 1000, 300], [1000, 1, 300], [33, 517, 401]];
    let transposes = [[false, false], [false, true], [true, false], [true, true]];
    let pairs = sizes.into_iter().flat_map(|sizes| transposes.map(|transposed| (sizes, transposed)));
    let case = |([m, n, k], transposed): ([usize; 3], [bool; 2])| {
        let (a, b) = (whole(m * k, 1), whole(k * n, 2));
        let row = |i: usize| (0..k).map(move |x| if transposed[0] { x * m + i } else { i * k + x });
        let col = |j: usize| (0..k).map(move |x| if transposed[1] { j * k + x } else { x * n + j });
        let sum = |i, j| row(i).zip(col(j)).map(|(x, y)| a[x] * b[y]).sum();
        let sums = (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).map(|(i, j)| sum(i, j)).collect();
        Case { sizes: [m, n, k], transposed, a, b, sums }
    };
    pairs.map(case).collect()
}

fn products_are_exact<T: Number>(runtime: &Runtime, cases: &[Case]) {
    let device = &runtime.devices()[0];
    let stream = device.stream().unwrap();
    for Case { sizes, transposed, a, b, sums } in cases {
        let kind = transposed.map(|turned| if turned { Transpose::TRANSPOSE } else { Transpose::NONE });
        let desc = MatmulDesc::new(kind[0], kind[1], T::DTYPE);
        let matmul: Primitive<Matmul> = runtime.primitive(device, desc).unwrap();
        assert_eq!(matmul.instance() == "onednn", claims(T::DTYPE), "{}", T::DTYPE);
        let old = whole(sums.len(), 3);
        let (a, b) = (device.upload(&numbers::<T>(a)).unwrap(), device.upload(&numbers::<T>(b)).unwrap());
        for (alpha, beta) in [(1.0, 0.0), (1.0, 1.0), (0.5, 0.0), (2.0, -1.0), (0.0, 2.0)] {
            let before = if beta == 0.0 { vec![f32::NAN; sums.len()] } else { old.clone() };
            let mut c = device.upload(&numbers::<T>(&before)).unwrap();
            let [m, n, k] = sizes.map(|size| size as i64);
            let (alpha_, beta_) = (Scalar::F64(alpha.into()), Scalar::F64(beta.into()));
            let call = MatmulCall { m, n, k, alpha: alpha_, beta: beta_, a: &a, b: &b, c: &mut c };
            matmul.launch(&stream, call).unwrap();
            let result: Vec<T> = c.download().unwrap();
            for (i, (found, sum)) in result.into_iter().zip(sums).enumerate() {
                let added = if beta == 0.0 { 0.0 } else { beta * old[i] };
                let expected = T::of(alpha * sum + added).number();
                let dtype = T::DTYPE;
                assert_eq!(
                    found.number(),
                    expected,
                    "{dtype} {sizes:?} {transposed:?} {alpha} {beta} at {i}"
                );
            }
        }
    }
}

#[test]
fn products_are_exact_on_any_number_of_threads() {
    let cases = cases();
    for threads in [1, 2, 3, 8] {
        let Some(runtime) = both(threads) else { return };
        products_are_exact::<f32>(&runtime, &cases);
        products_are_exact::<bf16>(&runtime, &cases);
        products_are_exact::<f16>(&runtime, &cases);
    }
}

/// Batches that are summed round once, also where the library's results have the short type.
#[test]
fn sums_over_a_batch_round_once() {
    let Some(runtime) = both(2) else { return };
    let device = &runtime.devices()[0];
    let stream = device.stream().unwrap();
    let (none, turned) = (Transpose::NONE, Transpose::TRANSPOSE);
    // Not one longer depth, as rows of a are apart.
    let desc = BroadcastMatmulDesc::new(none, turned, DType::BF16);
    let matmul: Primitive<BroadcastMatmul> = runtime.primitive(device, desc).unwrap();
    assert_eq!(matmul.instance() == "onednn", claims(DType::BF16));
    // 256 + 1 - 256 is 1, but 256 + 1 is 256 in bf16.
    let a: Vec<bf16> = numbers(&[256.0, -256.0, 1.0, 1.0, -256.0, 256.0]);
    let one: Vec<bf16> = numbers(&[1.0; 3]);
    let (a, b) = (device.upload(&a).unwrap(), device.upload(&one).unwrap());
    let mut c = device.upload(&numbers::<bf16>(&[2.0, 4.0])).unwrap();
    let call = BroadcastMatmulCall {
        alpha: Scalar::None,
        beta: Scalar::F64(1.0),
        a_dims: &[3, 2, 1],
        b_dims: &[3, 1, 1],
        c_dims: &[2, 1],
        a: &a,
        b: &b,
        c: &mut c,
    };
    matmul.launch(&stream, call).unwrap();
    let result: Vec<f32> = c.download::<bf16>().unwrap().into_iter().map(Number::number).collect();
    assert_eq!(result, [3.0, 5.0]);
}

/// Compares a product over broadcast batches of whole numbers with plain sums, which are exact.
fn broadcast(runtime: &Runtime, kinds: [Transpose; 2], dims: [&[i64]; 3]) {
    let device = &runtime.devices()[0];
    let desc = BroadcastMatmulDesc::new(kinds[0], kinds[1], DType::F32);
    let matmul: Primitive<BroadcastMatmul> = runtime.primitive(device, desc).unwrap();
    assert_eq!(matmul.instance(), "onednn");
    let count = |dims: &[i64]| dims.iter().product::<i64>() as usize;
    let [a_dims, b_dims, c_dims] = dims;
    let (left, right) = (whole(count(a_dims), 5), whole(count(b_dims), 6));
    let (a, b) = (device.upload(&left).unwrap(), device.upload(&right).unwrap());
    let mut c = device.upload(&vec![f32::NAN; count(c_dims)]).unwrap();
    let (alpha, beta) = (Scalar::None, Scalar::None);
    let call = BroadcastMatmulCall { alpha, beta, a_dims, b_dims, c_dims, a: &a, b: &b, c: &mut c };
    matmul.launch(&device.stream().unwrap(), call).unwrap();

    let turned = kinds.map(|kind| kind == Transpose::TRANSPOSE);
    let matrices = dims.map(|dims| [dims[dims.len() - 2] as usize, dims[dims.len() - 1] as usize]);
    let [m, n] = matrices[2];
    let k = matrices[0][usize::from(!turned[0])];
    // Batches of three dimensions, those that an operand lacks being 1.
    let batches = dims.map(|dims| {
        let batch = &dims[..dims.len() - 2];
        [0, 1, 2].map(|i| if i + batch.len() < 3 { 1 } else { batch[i + batch.len() - 3] as usize })
    });
    let all = [0, 1, 2].map(|i| batches[0][i].max(batches[1][i]));
    let mut sums = vec![0f32; count(c_dims)];
    for index in 0..all.iter().product() {
        let place = [index / (all[1] * all[2]), index / all[2] % all[1], index % all[2]];
        let [from_a, from_b, from_c] = [0, 1, 2].map(|x| {
            let matrix = (0..3).fold(0, |at, i| at * batches[x][i] + place[i] % batches[x][i]);
            matrix * matrices[x][0] * matrices[x][1]
        });
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let at_a = |x| from_a + if turned[0] { x * m + i } else { i * k + x };
            let at_b = |x| from_b + if turned[1] { j * k + x } else { x * n + j };
            sums[from_c + i * n + j] += (0..k).map(|x| left[at_a(x)] * right[at_b(x)]).sum::<f32>();
        }
    }
    assert_eq!(c.download::<f32>().unwrap(), sums, "{dims:?} {kinds:?}");
}

/// Matrices of one row or column, made longer by others that follow them: what the library takes for the distance between
/// rows has to be one, and not spoil a plain product of the same sizes, for which it keeps the same code.
#[test]
fn single_rows_and_columns_have_no_distance() {
    let Some(runtime) = both(2) else { return };
    let (none, turned) = (Transpose::NONE, Transpose::TRANSPOSE);
    broadcast(&runtime, [turned, turned], [&[3, 100, 64], &[3, 1, 100], &[64, 1]]);
    broadcast(&runtime, [turned, turned], [&[300, 64], &[1, 300], &[64, 1]]);
    broadcast(&runtime, [none, turned], [&[3, 1, 100], &[3, 1, 100], &[1, 1]]);
    broadcast(&runtime, [none, turned], [&[1, 300], &[1, 300], &[1, 1]]);
    for turned_a in [none, turned] {
        let a: &[i64] = if turned_a == turned { &[5, 1, 3] } else { &[5, 3, 1] };
        broadcast(&runtime, [turned_a, none], [a, &[1, 4], &[5, 3, 4]]);
        broadcast(&runtime, [turned_a, turned], [a, &[4, 1], &[5, 3, 4]]);
    }
}

/// Factors that some of the batch share, batches in two loops, and batches that are split over threads.
#[test]
fn batches_share_factors() {
    for threads in [1, 3] {
        let Some(runtime) = both(threads) else { return };
        let none = [Transpose::NONE; 2];
        broadcast(&runtime, none, [&[2, 1, 3, 4], &[1, 9, 4, 5], &[2, 9, 3, 5]]);
        broadcast(&runtime, none, [&[70, 65, 64], &[1, 64, 130], &[70, 65, 130]]);
        broadcast(&runtime, none, [&[1, 129, 100], &[4, 100, 200], &[4, 129, 200]]);
        broadcast(&runtime, none, [&[4, 129, 100], &[4, 100, 200], &[129, 200]]);
        let device = &runtime.devices()[0];
        let desc = BatchMatmulDesc::new(Transpose::NONE, Transpose::TRANSPOSE, DType::F32);
        let matmul: Primitive<BatchMatmul> = runtime.primitive(device, desc).unwrap();
        assert_eq!(matmul.instance(), "onednn");
        // The products of item i are of i and 1.
        let a: Vec<f32> = (0..9).flat_map(|i| vec![i as f32; 64 * 96]).collect();
        let (a, b) = (device.upload(&a).unwrap(), device.upload(&vec![1f32; 9 * 80 * 96]).unwrap());
        let mut c = device.upload(&vec![1f32; 9 * 64 * 80]).unwrap();
        let (alpha, beta) = (Scalar::None, Scalar::F64(1.0));
        let call = BatchMatmulCall { batch: 9, m: 64, n: 80, k: 96, alpha, beta, a: &a, b: &b, c: &mut c };
        matmul.launch(&device.stream().unwrap(), call).unwrap();
        let result = c.download::<f32>().unwrap();
        for (i, item) in result.chunks(64 * 80).enumerate() {
            assert!(item.iter().all(|x| *x == 96.0 * i as f32 + 1.0), "{i}");
        }
    }
}

/// Launches of one primitive from several threads, of shapes that none has met before.
#[test]
fn one_primitive_serves_many_threads() {
    let Some(runtime) = both(2) else { return };
    let device = &runtime.devices()[0];
    let desc = MatmulDesc::new(Transpose::NONE, Transpose::NONE, DType::F32);
    let matmul: Primitive<Matmul> = runtime.primitive(device, desc).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let matmul = &matmul;
            scope.spawn(move || {
                let stream = device.stream().unwrap();
                for round in 0..40 {
                    let n = 1 + (round * 7 + thread) % 50;
                    let a = device.upload(&vec![1f32; n * n]).unwrap();
                    let mut c = device.upload(&vec![f32::NAN; n * n]).unwrap();
                    let size = n as i64;
                    let (alpha, beta) = (Scalar::None, Scalar::None);
                    let call = MatmulCall { m: size, n: size, k: size, alpha, beta, a: &a, b: &a, c: &mut c };
                    matmul.launch(&stream, call).unwrap();
                    assert!(c.download::<f32>().unwrap().iter().all(|x| *x == n as f32), "{n}");
                }
            });
        }
    });
}

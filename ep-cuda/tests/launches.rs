//! Primitives through a host on the fake driver: what they register, launch and refuse.

mod rig;

use ep_core::primitive::{
    BinaryOp, Cast, CastCall, CastDesc, ElementwiseUnary, ElementwiseUnaryCall, ElementwiseUnaryDesc, Fill,
    FillCall, FillDesc, LayerNorm, LayerNormCall, LayerNormDesc, LogSoftmaxBackward, LogSoftmaxBackwardCall,
    LogSoftmaxBackwardDesc, Memset, MemsetCall, MemsetDesc, Permute, PermuteCall, PermuteDesc, ReduceOp,
    Softmax, SoftmaxCall, SoftmaxDesc, TensorFill, TensorFillCall, TensorFillDesc, UnaryOp,
};
use ep_core::provider::{Allocator, Device as _, MemoryKind, Stream as _};
use ep_core::{Code, DType, Scalar};
use ep_cuda::device::CudaDevice;
use ep_cuda::stream::CudaStream;
use ep_registry::query::Filter;
use ep_registry::{NoMemory, Runtime, Stream, View, ViewMut};
use rig::ops::Bench;
use rig::{Rig, Setup};

/// The name and the shape of each launch since the log was emptied.
fn launches(rig: &Rig) -> Vec<String> {
    let log = rig.fake.log().into_iter().filter(|l| l.starts_with("cuLaunchKernel"));
    log.map(|l| l[l.find('(').unwrap() + 1..].split("]]").next().unwrap().to_owned()).collect()
}

#[test]
fn the_device_offers_its_rows_and_graphs_may_record_them() {
    let rig = Rig::new(Setup::default());
    let runtime = rig.runtime(&[]);
    let rows = runtime.query(&Filter::default());
    let count = |op: &str| rows.iter().filter(|r| r.op == op).count();
    assert_eq!((count("memcpy"), count("memset"), count("fill"), count("tensor_fill")), (4, 1, 15, 15));
    assert_eq!((count("softmax"), count("log_softmax_backward")), (16, 16));
    let device = runtime.device("cuda").unwrap();
    let fill = runtime.primitive::<Fill>(device, FillDesc::new(DType::F64)).unwrap();
    assert!(fill.capturable());
}

#[test]
fn small_sets_are_the_drivers_and_fills_cover_every_element() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[]);
        let device = runtime.device("cuda:0").unwrap();
        let stream = device.stream().unwrap();
        let mut y = device.alloc(DType::F64, 10_000).unwrap();
        let memset = runtime.primitive::<Memset>(device, MemsetDesc::new()).unwrap();
        memset.launch(&stream, MemsetCall { bytes: 80_000, value: Scalar::I64(-1), dst: &mut y }).unwrap();
        assert_eq!(y.download::<u64>().err().map(|e| e.code()), Some(Code::InvalidArgument), "another dtype");
        let bits: Vec<u64> = y.download::<f64>().unwrap().iter().map(|x| x.to_bits()).collect();
        assert_eq!(bits, vec![u64::MAX; 10_000]);
        let fill = runtime.primitive::<Fill>(device, FillDesc::new(DType::F64)).unwrap();
        rig.fake.fail(0, 0);
        fill.launch(&stream, FillCall { count: 10_000, value: Scalar::F64(1.0), dst: &mut y }).unwrap();
        // 5000 stores of 16 bytes, one for each thread.
        assert_eq!(launches(&rig), ["ep_fill, [[20, 1, 1], [256, 1, 1"]);
        rig.fake.fail(0, 0);
        fill.launch(&stream, FillCall { count: 0, value: Scalar::F64(1.0), dst: &mut y }).unwrap();
        assert_eq!(launches(&rig), [""; 0], "nothing to do");
        let none = FillCall { count: 1, value: Scalar::None, dst: &mut y };
        let error = fill.launch(&stream, none).unwrap_err();
        assert!(error.code() == Code::InvalidArgument && error.message().contains("`value`"), "{error}");
        let one = device.upload(&[2.5f64]).unwrap();
        let tensor_fill = runtime.primitive::<TensorFill>(device, TensorFillDesc::new(DType::F64)).unwrap();
        tensor_fill.launch(&stream, TensorFillCall { count: 10, src: &one, dst: &mut y }).unwrap();
        stream.sync().unwrap();
    }
    rig.assert_clean();
}

#[test]
fn a_kernel_is_loaded_once_and_a_warm_launch_calls_nothing_else() {
    let rig = Rig::new(Setup::default());
    let runtime = rig.runtime(&[]);
    let device = runtime.device("cuda:0").unwrap();
    let stream = device.stream().unwrap();
    let x = device.upload(&[1.0f32; 4096]).unwrap();
    let mut y = device.alloc(DType::F32, 4096).unwrap();
    let softmax = runtime.primitive::<Softmax>(device, SoftmaxDesc::new(DType::F32, DType::F32)).unwrap();
    let mut go = |rows, cols| {
        rig.fake.fail(0, 0);
        softmax.launch(&stream, SoftmaxCall { rows, cols, inner: 0, src: &x, dst: &mut y }).unwrap();
        rig.fake.log()
    };
    assert!(
        go(4, 1024).iter().any(|l| l.starts_with("cuModuleLoadData")),
        "the first launch of a width loads"
    );
    let warm = go(4, 1024);
    let names: Vec<_> = warm.iter().map(|l| l.split('(').next().unwrap()).collect();
    assert_eq!(names, ["cuCtxGetCurrent", "cuLaunchKernelEx"], "{warm:?}");
}

/// How each launch since the log was emptied says that it comes behind the one before.
fn manners(rig: &Rig) -> Vec<&'static str> {
    let log = rig.fake.log().into_iter().filter(|l| l.starts_with("cuLaunchKernel"));
    log.map(|l| match l.split_once('(') {
        Some(("cuLaunchKernel", _)) => "plain",
        Some((_, arguments)) if arguments.contains(", overlaps, ") => "overlaps",
        _ => panic!("{l}"),
    })
    .collect()
}

#[test]
fn launches_overlap_unless_an_option_says_no_or_the_driver_is_too_old() {
    let off = &[("overlap_launches", "false")][..];
    for (version, options, manner) in
        [(13000, &[][..], "overlaps"), (12030, &[], "overlaps"), (12020, &[], "plain"), (13000, off, "plain")]
    {
        let rig = Rig::new(Setup { version, ..Setup::default() });
        let runtime = rig.runtime(options);
        let device = runtime.device("cuda:0").unwrap();
        let stream = device.stream().unwrap();
        let mut y = device.alloc(DType::F32, 4).unwrap();
        let fill = runtime.primitive::<Fill>(device, FillDesc::new(DType::F32)).unwrap();
        rig.fake.fail(0, 0);
        fill.launch(&stream, FillCall { count: 4, value: Scalar::F64(1.0), dst: &mut y }).unwrap();
        assert_eq!(manners(&rig), [manner], "CUDA {version}, {options:?}");
        stream.sync().unwrap();
    }
}

/// What others queue may let a launch begin early, or end before what it follows.
#[test]
fn no_launch_overlaps_with_work_that_may_not_be_ours() {
    let rig = Rig::new(Setup::default());
    let device = rig.device();
    let (queue, other) = (rig::stream(&device), rig::stream(&device));
    let memory = device.open_allocator(MemoryKind::Device).unwrap();
    let x = memory.alloc(64, 64, None).unwrap();
    let launch = |queue: &CudaStream| rig.launch(&device, queue, x).unwrap();
    let event = device.create_event().unwrap();
    let after = |work: &dyn Fn()| {
        launch(&queue);
        work();
        rig.fake.fail(0, 0);
        launch(&queue);
        launch(&queue);
        manners(&rig)
    };
    assert_eq!(after(&|| {}), ["overlaps", "overlaps"]);
    let wait = || {
        launch(&other);
        other.record(&event).unwrap();
        queue.wait(&event).unwrap();
    };
    assert_eq!(after(&wait), ["plain", "overlaps"]);
    let record = || {
        queue.begin_capture().unwrap();
        rig.fake.fail(0, 0);
        launch(&queue);
        launch(&queue);
        assert_eq!(manners(&rig), ["plain", "overlaps"], "a graph may follow anything");
        queue.end_capture().unwrap();
    };
    assert_eq!(after(&record), ["plain", "overlaps"]);
    queue.begin_capture().unwrap();
    launch(&queue);
    let graph = queue.end_capture().unwrap().instantiate().unwrap();
    // SAFETY: the memory lives until the stream is waited for.
    assert_eq!(after(&|| unsafe { graph.launch(&queue) }.unwrap()), ["plain", "overlaps"]);
    // From now on somebody else has the handle.
    let share = || assert_eq!((CudaDevice::FOREIGN_STREAMS.unwrap().native)(&queue), Ok(queue.raw().raw()));
    assert_eq!(after(&share), ["plain", "plain"]);
    let adopted = rig::adopt(&device, other.raw().raw()).unwrap();
    rig.fake.fail(0, 0);
    launch(&adopted);
    launch(&adopted);
    assert_eq!(manners(&rig), ["plain", "plain"]);
    [&queue, &other, &adopted].into_iter().for_each(|s| s.sync().unwrap());
    memory.free(x, 64).unwrap();
}

/// Each launch of one primitive is what another host's first one is, whatever was launched before. Neighbours in a list differ.
#[test]
fn what_is_remembered_of_a_launch_is_for_those_like_it() {
    const COUNT: usize = 1 << 16;
    let rig = Rig::new(Setup::default());
    let same = |what: &str, count: usize, launch: &dyn Fn(&Runtime, usize)| {
        let launched = |runtime: &Runtime, number: usize| {
            launch(runtime, number);
            launches(&rig)
        };
        let expected: Vec<_> = (0..count).map(|number| launched(&rig.runtime(&[]), number)).collect();
        assert!(expected.windows(2).all(|pair| pair[0] != pair[1]), "{what}: {expected:?}");
        let runtime = rig.runtime(&[]);
        for (a, b) in (0..count).flat_map(|a| (0..count).map(move |b| (a, b))) {
            for number in [a, b, b, a] {
                assert_eq!(launched(&runtime, number), expected[number], "{what} {number} of {a} and {b}");
            }
        }
    };
    /// What a launch has to do with: a stream, a source and a destination, of which the last elements are used, so many less.
    fn with(
        rig: &Rig,
        runtime: &Runtime,
        shifts: [usize; 2],
        launch: impl FnOnce(&Stream, View<'_>, ViewMut<'_>),
    ) {
        let device = runtime.device("cuda:0").unwrap();
        let stream = device.stream().unwrap();
        let x = device.upload(&vec![0.0f32; COUNT]).unwrap();
        let mut y = device.alloc(DType::F32, COUNT).unwrap();
        rig.fake.fail(0, 0);
        let [src, dst] = shifts;
        launch(&stream, x.slice(src, COUNT - src).unwrap(), y.slice_mut(dst, COUNT - dst).unwrap());
        stream.sync().unwrap();
    }

    let permutes: [(&[i64], &[i64], [usize; 2]); 9] = [
        (&[8, 8], &[1, 0], [0, 0]),
        (&[3, 1024], &[1, 0], [0, 0]),
        (&[3, 1024], &[1, 0], [1, 0]),
        (&[3, 1024], &[1, 0], [4, 0]),
        (&[3, 1024], &[1, 0], [0, 1]),
        (&[64, 64], &[1, 0], [0, 0]),
        (&[8, 8, 64], &[1, 0, 2], [0, 0]),
        (&[40, 7, 90], &[2, 1, 0], [0, 0]),
        (&[8, 0], &[1, 0], [0, 0]),
    ];
    same("permute", permutes.len(), &|runtime, number| {
        let (src_dims, permutation, shifts) = permutes[number];
        let permute =
            runtime.primitive::<Permute>(runtime.device("cuda:0").unwrap(), PermuteDesc::new(DType::F32));
        let permute = permute.unwrap();
        with(&rig, runtime, shifts, |stream, src, dst| {
            permute.launch(stream, PermuteCall { src_dims, permutation, src, dst }).unwrap();
        });
    });

    let rows = [
        (400, 16, [0, 0]),
        (40, 16, [0, 0]),
        (4, 2000, [0, 0]),
        (4, 2000, [1, 0]),
        (4, 2000, [4, 0]),
        (4, 2000, [0, 1]),
        (400, 17, [0, 0]),
        (1, 40_000, [0, 0]),
    ];
    same("softmax", rows.len(), &|runtime, number| {
        let (rows, cols, shifts) = rows[number];
        let desc = SoftmaxDesc::new(DType::F32, DType::F32);
        let softmax = runtime.primitive::<Softmax>(runtime.device("cuda:0").unwrap(), desc).unwrap();
        with(&rig, runtime, shifts, |stream, src, dst| {
            softmax.launch(stream, SoftmaxCall { rows, cols, inner: 0, src, dst }).unwrap();
        });
    });
    same("layer_norm", rows.len(), &|runtime, number| {
        let (rows, cols, shifts) = rows[number];
        let desc = LayerNormDesc::new(DType::F32, DType::F32);
        let norm = runtime.primitive::<LayerNorm>(runtime.device("cuda:0").unwrap(), desc).unwrap();
        with(&rig, runtime, shifts, |stream, src, dst| {
            let (gamma, beta, mean, rstd) = (NoMemory, NoMemory, NoMemory, NoMemory);
            norm.launch(stream, LayerNormCall { rows, cols, src, gamma, beta, dst, mean, rstd }).unwrap();
        });
    });
    rig.assert_clean();
}

#[test]
fn softmax_chooses_by_width_unless_it_is_told() {
    let rig = Rig::new(Setup::default());
    let kernel = |options: &[(&str, &str)], rows: i64, cols: i64, inner: i64| {
        let runtime = rig.runtime(options);
        let device = runtime.device("cuda:0").unwrap();
        let stream = device.stream().unwrap();
        let n = (rows * cols * inner.max(1)) as usize;
        let x = device.upload(&vec![0.0f32; n]).unwrap();
        let mut y = device.alloc(DType::F32, n).unwrap();
        let softmax = runtime.primitive::<Softmax>(device, SoftmaxDesc::new(DType::F32, DType::F32)).unwrap();
        rig.fake.fail(0, 0);
        softmax.launch(&stream, SoftmaxCall { rows, cols, inner, src: &x, dst: &mut y }).unwrap();
        stream.sync().unwrap();
        launches(&rig).join("; ")
    };
    // 16 groups of 8 lanes in a block, with two rows each.
    assert_eq!(kernel(&[], 100, 32, 0), "ep_softmax, [[4, 1, 1], [128, 1, 1");
    // A block has as many warps as a row fills that is not aligned, where a thread has four packs, or six.
    assert_eq!(kernel(&[], 3, 1025, 0), "ep_softmax, [[3, 1, 1], [96, 1, 1");
    assert_eq!(kernel(&[], 3, 513, 0), "ep_softmax, [[3, 1, 1], [32, 1, 1");
    assert_eq!(kernel(&[], 2, 65536, 0), "ep_softmax, [[8, 1, 1], [512, 1, 1", "clusters of four");
    assert_eq!(kernel(&[], 1, 300_000, 0), "ep_softmax_wide, [[1, 1, 1], [1024, 1, 1");
    assert_eq!(kernel(&[], 2, 5, 33), "ep_softmax_strided, [[4, 1, 1], [256, 1, 1");
    assert_eq!(kernel(&[("softmax", "wide")], 2, 32, 0), "ep_softmax_wide, [[2, 1, 1], [64, 1, 1");
    assert_eq!(kernel(&[("softmax", "shared")], 2, 32, 0), "ep_softmax_wide, [[2, 1, 1], [64, 1, 1");
    // A strategy without room for the row is not forced.
    assert_eq!(kernel(&[("softmax", "warp")], 2, 65536, 0), "ep_softmax, [[8, 1, 1], [512, 1, 1");
    let request = |options: &[(&str, &str)]| {
        let runtime = rig.runtime(options);
        let device = runtime.device("cuda:0").unwrap();
        let desc = SoftmaxDesc::new(DType::F32, DType::F32).with_max_cols(1024);
        runtime.primitive::<Softmax>(device, desc).unwrap().describe()
    };
    assert_eq!(request(&[]), "block for rows of 1024");
    assert_eq!(request(&[("softmax", "cluster")]), "cluster for rows of 1024");
    rig.assert_clean();
}

#[test]
fn softmax_of_half_types_has_kernels_for_any_number_of_lanes_and_none_for_dtypes_that_hardly_meet() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[]);
        let device = runtime.device("cuda:0").unwrap();
        let stream = device.stream().unwrap();
        let x = device.upload(&vec![half::f16::ONE; 4000]).unwrap();
        let kernel = |dst: DType, rows: i64, cols: i64| {
            let mut y = device.alloc(dst, 4000).unwrap();
            let softmax = runtime.primitive::<Softmax>(device, SoftmaxDesc::new(DType::F16, dst)).unwrap();
            rig.fake.fail(0, 0);
            softmax.launch(&stream, SoftmaxCall { rows, cols, inner: 0, src: &x, dst: &mut y }).unwrap();
            stream.sync().unwrap();
            launches(&rig).join("; ")
        };
        // Rows of 5 packs by 8 lanes, two at a time, 32 in a block; of 9 by 8 lanes, of 17 by 16 with two packs each.
        assert_eq!(kernel(DType::F16, 70, 33), "ep_softmax, [[3, 1, 1], [8, 16, 1");
        assert_eq!(kernel(DType::F16, 50, 67), "ep_softmax, [[4, 1, 1], [8, 16, 1");
        assert_eq!(kernel(DType::F16, 20, 131), "ep_softmax, [[3, 1, 1], [16, 8, 1");
        assert_eq!(kernel(DType::F16, 3, 1), "ep_softmax, [[1, 1, 1], [2, 64, 1", "two lanes at least");
        // Eight packs for each thread of a warp, six for each of two warps.
        assert_eq!(kernel(DType::F16, 1, 1801), "ep_softmax, [[1, 1, 1], [32, 1, 1");
        assert_eq!(kernel(DType::F16, 1, 3001), "ep_softmax, [[1, 1, 1], [64, 1, 1");
        assert_eq!(kernel(DType::F16, 70, 32), "ep_softmax, [[2, 1, 1], [128, 1, 1", "aligned");
        assert_eq!(kernel(DType::F32, 70, 33), "ep_softmax, [[18, 1, 1], [128, 1, 1", "a warp for each row");
        // Read twice, by as few warps as have four packs for each thread: packs of 2 elements with f64, else of 8.
        for (dst, cols, threads) in
            [(DType::F64, 33, 32), (DType::F64, 300, 64), (DType::BF16, 33, 32), (DType::F64, 1999, 256)]
        {
            assert_eq!(kernel(dst, 2, cols), format!("ep_softmax_wide, [[2, 1, 1], [{threads}, 1, 1"));
        }
    }
    rig.assert_clean();
}

#[test]
fn gradients_take_three_operands() {
    let rig = Rig::new(Setup::default());
    let runtime = rig.runtime(&[]);
    let device = runtime.device("cuda:0").unwrap();
    let stream = device.stream().unwrap();
    let (y, dy) = (device.upload(&[0.0f32; 640]).unwrap(), device.upload(&[0.0f32; 640]).unwrap());
    let mut dx = device.alloc(DType::F16, 640).unwrap();
    let desc = LogSoftmaxBackwardDesc::new(DType::F32, DType::F16);
    let gradient = runtime.primitive::<LogSoftmaxBackward>(device, desc).unwrap();
    rig.fake.fail(0, 0);
    let call = LogSoftmaxBackwardCall { rows: 10, cols: 64, inner: 0, y: &y, dy: &dy, dx: &mut dx };
    gradient.launch(&stream, call).unwrap();
    stream.sync().unwrap();
    assert_eq!(launches(&rig), ["ep_softmax_backward, [[3, 1, 1], [128, 1, 1"], "four rows in a block");
}

#[test]
fn functions_of_one_element_are_packed_and_casts_convert_between_all() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[]);
        let device = runtime.device("cuda:0").unwrap();
        let stream = device.stream().unwrap();
        let x = device.upload(&[0.5f32; 5000]).unwrap();
        let (mut y, mut z) =
            (device.alloc(DType::F32, 5000).unwrap(), device.alloc(DType::I8, 5000).unwrap());
        let function = |op| {
            let desc = ElementwiseUnaryDesc::new(op, DType::F32, DType::F32);
            runtime.primitive::<ElementwiseUnary>(device, desc).unwrap()
        };
        let (relu, gelu) = (function(UnaryOp::RELU), function(UnaryOp::GELU));
        let cast = runtime.primitive::<Cast>(device, CastDesc::new(DType::F32, DType::I8)).unwrap();
        rig.fake.fail(0, 0);
        for op in [relu, gelu] {
            op.launch(&stream, ElementwiseUnaryCall { count: 5000, src: &x, dst: &mut y }).unwrap();
        }
        cast.launch(&stream, CastCall { count: 4999, src: &x, dst: &mut z }).unwrap();
        stream.sync().unwrap();
        // 1250 packs of four: one for each of 256 threads, and two of longer functions and where results are small.
        let [one, two] = ["ep_unary, [[5, 1, 1], [256, 1, 1", "ep_unary, [[3, 1, 1], [256, 1, 1"];
        assert_eq!(launches(&rig), [one, two, two]);
        let none = ElementwiseUnaryDesc::new(UnaryOp::GELU, DType::I32, DType::I32);
        let error = runtime.primitive::<ElementwiseUnary>(device, none).unwrap_err();
        assert_eq!(error.code(), Code::Unsupported);
    }
    rig.assert_clean();
}

#[test]
fn movers_and_maps_launch_what_their_shapes_need() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[]);
        let device = runtime.device("cuda:0").unwrap();
        let stream = device.stream().unwrap();
        let mut bench = Bench::new(&runtime, device, &stream).unwrap();
        let mut go = |run: &dyn Fn(&mut Bench<'_>) -> ep_core::Result<()>| {
            rig.fake.fail(0, 0);
            run(&mut bench).unwrap();
            launches(&rig).join("; ")
        };
        // 250 packs of four.
        assert_eq!(go(&|b| b.add(3)), "ep_add, [[1, 1, 1], [256, 1, 1");
        assert_eq!(go(&|b| b.add(9)), "ep_add, [[1, 1, 1], [256, 1, 1");
        assert_eq!(go(&|b| b.add(1)), "", "a copy of the driver");
        assert_eq!(go(&|b| b.binary(BinaryOp::ADD, &[64, 128], &[128])), "ep_binary, [[8, 1, 1], [256, 1, 1");
        assert_eq!(go(&|b| b.choose()), "ep_where, [[1, 1, 1], [256, 1, 1");
        assert_eq!(go(&|b| b.permute(&[64, 65], &[1, 0])), "ep_transpose, [[2, 1, 1], [256, 1, 1");
        assert_eq!(go(&|b| b.permute(&[3, 5, 20], &[2, 1, 0])), "ep_permute, [[1, 1, 1], [256, 1, 1");
        assert_eq!(go(&|b| b.permute(&[3, 5, 8], &[1, 0, 2])), "ep_copy, [[1, 1, 1], [256, 1, 1");
        assert_eq!(go(&|b| b.permute(&[3, 5], &[0, 1])), "", "a copy of the driver");
        assert_eq!(go(&|b| b.layer_norm(4, 32)), "ep_norm, [[1, 1, 1], [128, 1, 1");
        assert_eq!(go(&|b| b.rms_norm(5, 0)), "ep_norm_wide, [[5, 1, 1], [512, 1, 1");
        assert_eq!(go(&|b| b.reduce(ReduceOp::SUM, 600, 9, 1)), "ep_reduce, [[150, 1, 1], [128, 1, 1");
        assert_eq!(go(&|b| b.reduce(ReduceOp::SUM, 2, 8, 33)), "ep_reduce, [[4, 1, 1], [256, 1, 1");
        assert_eq!(
            go(&|b| b.reduce(ReduceOp::MAX, 1, 1 << 14, 1)),
            "ep_reduce, [[16, 1, 1], [256, 1, 1; ep_reduce, [[1, 1, 1], [256, 1, 1",
            "parts of 1024, then their results"
        );
        assert_eq!(
            go(&|b| b.arg_reduce(1, 1 << 13, 2)),
            "ep_arg_reduce, [[8, 1, 1], [256, 1, 1; ep_arg_reduce, [[1, 1, 1], [256, 1, 1"
        );
        assert_eq!(go(&|b| b.scatter_add()), "ep_scatter_add, [[2, 1, 1], [256, 1, 1");
    }
    rig.assert_clean();
}

/// With less room the scratch memory is as large as it must be, and with still less there is a way without.
#[test]
fn scratch_memory_is_counted_and_limited() {
    let rig = Rig::new(Setup { pools: 0, ..Setup::default() });
    let sum = |limit: u64| {
        let runtime = rig.runtime(&[("memory_limit", &limit.to_string())]);
        let device = runtime.device("cuda:0").unwrap();
        let stream = device.stream().unwrap();
        let mut bench = Bench::new(&runtime, device, &stream).unwrap();
        let scratch = || {
            let stats = device.memory_stats().unwrap();
            stats.reserved_bytes - stats.in_use_bytes
        };
        assert_eq!(scratch(), 0);
        let in_use = device.memory_stats().unwrap().in_use_bytes;
        // 2 parts, and then 16.
        bench.reduce(ReduceOp::SUM, 1, 2048, 1).unwrap();
        let first = scratch();
        rig.fake.fail(0, 0);
        bench.reduce(ReduceOp::SUM, 1, rig::ops::COUNT as i64, 1).unwrap();
        let (counted, launches) = (scratch(), launches(&rig).len());
        stream.sync().unwrap();
        drop(bench);
        drop(stream);
        assert_eq!(scratch(), 0);
        (in_use, [first, counted], launches)
    };
    const MIB: u64 = 1 << 20;
    let (in_use, ..) = sum(u64::MAX);
    assert!(in_use > 300_000 && in_use < 500_000, "{in_use}");
    for (room, scratch, launches) in [
        (2 * MIB, [MIB, MIB], 2),
        (MIB, [MIB, MIB], 2),
        // What is needed; what is held counts as room for more.
        (MIB - 1, [32, 256], 2),
        (256, [32, 256], 2),
        // Rows are reduced whole, and what is held stays.
        (255, [32, 32], 1),
        (31, [0, 0], 1),
    ] {
        assert_eq!(sum(in_use + room), (in_use, scratch, launches), "{room}");
    }
    rig.assert_clean();
}

/// Each launch of a layer_norm of f32: its rows, what is launched, and the dynamic shared memory that it asks for.
fn layer_norms(cols: i64, each: &[(i64, &str, &[u32])]) {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[]);
        let device = runtime.device("cuda:0").unwrap();
        let stream = device.stream().unwrap();
        let norm =
            runtime.primitive::<LayerNorm>(device, LayerNormDesc::new(DType::F32, DType::F32)).unwrap();
        let most = each.iter().map(|e| e.0 * cols).max().unwrap() as usize;
        let x = device.upload(&vec![0f32; most]).unwrap();
        let mut y = device.alloc(DType::F32, most).unwrap();
        for (rows, launched, asked) in each {
            rig.fake.fail(0, 0);
            let (rows, gamma, beta, mean, rstd) = (*rows, &x, &x, NoMemory, NoMemory);
            let call = LayerNormCall { rows, cols, src: &x, gamma, beta, dst: &mut y, mean, rstd };
            norm.launch(&stream, call).unwrap();
            assert_eq!(launches(&rig), [format!("ep_norm, {launched}")], "{rows}");
            let log = rig.fake.log().into_iter().filter(|l| l.starts_with("cuFuncSetAttribute("));
            let bytes: Vec<_> = log.map(|l| l.split(", 8, ").nth(1).unwrap().to_owned()).collect();
            let same = bytes.iter().zip(*asked).all(|(found, asked)| found.starts_with(&asked.to_string()));
            assert!(same && bytes.len() == asked.len(), "{rows}: {bytes:?}");
        }
    }
    rig.assert_clean();
}

#[test]
fn norms_of_half_types_take_few_rows_by_blocks_that_keep_gamma_and_beta() {
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[]);
        let device = runtime.device("cuda:0").unwrap();
        let stream = device.stream().unwrap();
        let desc = LayerNormDesc::new(DType::F16, DType::F32);
        let norm = runtime.primitive::<LayerNorm>(device, desc).unwrap();
        let x = device.upload(&vec![half::f16::ONE; 30_000]).unwrap();
        let mut y = device.alloc(DType::F16, 30_000).unwrap();
        let mut launched = |rows: i64, cols: i64| {
            rig.fake.fail(0, 0);
            let (gamma, beta, mean, rstd) = (&x, &x, NoMemory, NoMemory);
            let call = LayerNormCall { rows, cols, src: &x, gamma, beta, dst: &mut y, mean, rstd };
            norm.launch(&stream, call).unwrap();
            stream.sync().unwrap();
            launches(&rig).join("; ")
        };
        // A row of 33 columns may touch 6 packs, for which there are 8 lanes; one of 131 has 18 packs, of 801 102, a warp's.
        assert_eq!(launched(20, 33), "ep_norm, [[2, 1, 1], [8, 16, 1");
        assert_eq!(launched(20, 131), "ep_norm, [[3, 1, 1], [16, 8, 1");
        assert_eq!(launched(20, 801), "ep_norm, [[5, 1, 1], [128, 1, 1");
        // Three packs for each of 64 threads, four for as many warps as a row of 251 packs fills, three for each of 128 threads, and
        // four for the warps of 402 packs.
        assert_eq!(launched(3, 1501), "ep_norm, [[3, 1, 1], [64, 1, 1");
        assert_eq!(launched(3, 2001), "ep_norm, [[3, 1, 1], [64, 1, 1");
        assert_eq!(launched(9, 3001), "ep_norm, [[9, 1, 1], [128, 1, 1");
        assert_eq!(launched(9, 3201), "ep_norm, [[9, 1, 1], [128, 1, 1");
        assert_eq!(launched(1, 20_001), "ep_norm, [[2, 1, 1], [320, 1, 1", "a cluster");
        assert_eq!(launched(2, 1024), "ep_norm, [[1, 1, 1], [128, 1, 1", "aligned");
    }
    rig.assert_clean();
}

#[test]
fn clusters_of_wide_rows_ask_once_for_the_memory_of_gamma_and_beta() {
    // 7680 of 8192 packs of a cluster, and rows enough for three each: two turns of 61 clusters of four blocks, and
    // 32 bytes for each pack of a thread.
    let launched = "[[488, 1, 1], [512, 1, 1";
    layer_norms(30_720, &[(1188, launched, &[65_536]), (1188, launched, &[])]);
}

#[test]
fn rows_that_are_not_aligned_are_taken_by_groups_that_begin_alike() {
    // A cluster of two blocks for each row; then 198 of them at once, of which those take part that are a multiple of
    // four, with at least three rows each. Blocks have as many threads as the 2050 packs of a row fill, and the memory that
    // most of them would need is asked for once.
    layer_norms(
        8193,
        &[
            (293, "[[586, 1, 1], [288, 1, 1", &[65_536]),
            (297, "[[192, 1, 1], [288, 1, 1", &[]),
            (600, "[[392, 1, 1], [288, 1, 1", &[]),
            (1585, "[[392, 1, 1], [288, 1, 1", &[]),
        ],
    );
}

#[test]
fn a_stream_of_another_library_takes_launches_in_order() {
    let rig = Rig::new(Setup::default());
    {
        let theirs = rig::stream(&rig.device());
        let native = theirs.raw().raw();
        let runtime = rig.runtime(&[]);
        let device = runtime.device("cuda:0").unwrap();
        // SAFETY: a live stream of the device, which is dropped last.
        let stream = unsafe { device.adopt_stream("CUstream", native) }.unwrap();
        let mut y = device.alloc(DType::F32, 100).unwrap();
        let fill = runtime.primitive::<Fill>(device, FillDesc::new(DType::F32)).unwrap();
        rig.fake.fail(0, 0);
        fill.launch(&stream, FillCall { count: 100, value: Scalar::F64(1.0), dst: &mut y }).unwrap();
        stream.sync().unwrap();
        let launch = rig.fake.log().into_iter().find(|l| l.starts_with("cuLaunchKernel")).unwrap();
        assert!(launch.contains(&format!("{native:#x}")), "{launch}");
        drop((y, stream));
        assert_eq!(rig.calls("cuStreamDestroy"), 0, "it stays its maker's");
        // SAFETY: a kind that the provider does not know is refused, whatever the handle is.
        let error = unsafe { device.adopt_stream("hipStream_t", native) }.unwrap_err();
        assert_eq!(error.code(), Code::Unsupported);
    }
    rig.assert_clean();
}

#[test]
fn every_op_calls_nothing_but_the_launch_once_it_is_warm() {
    let rig = Rig::new(Setup::default());
    let runtime = rig.runtime(&[]);
    let device = runtime.device("cuda:0").unwrap();
    let stream = device.stream().unwrap();
    let mut bench = Bench::new(&runtime, device, &stream).unwrap();
    bench.each().unwrap();
    bench.each().unwrap();
    rig.fake.fail(0, 0);
    bench.each().unwrap();
    // Partial results ask whether a graph is recorded.
    let expected =
        ["cuCtxGetCurrent", "cuCtxSetCurrent", "cuLaunchKernel", "cuLaunchKernelEx", "cuStreamIsCapturing"];
    for line in rig.fake.log() {
        let name = line.split('(').next().unwrap();
        assert!(expected.contains(&name), "{line}");
    }
    stream.sync().unwrap();
}

#[test]
fn bad_arguments_are_told_with_the_next_step() {
    let rig = Rig::new(Setup::default());
    let runtime = rig.runtime(&[]);
    let device = runtime.device("cuda:0").unwrap();
    let stream = device.stream().unwrap();
    let mut bench = Bench::new(&runtime, device, &stream).unwrap();
    let mut told = |run: &dyn Fn(&mut Bench<'_>) -> ep_core::Result<()>, words: &str| {
        let error = run(&mut bench).unwrap_err();
        assert!(error.code() == Code::InvalidArgument && error.message().contains(words), "{error}");
    };
    told(&|b| b.arg_reduce(1, 0, 1), "from 1 to");
    told(&|b| b.binary(BinaryOp::ADD, &[3], &[4]), "broadcast");
    told(&|b| b.permute(&[2, 3], &[1, 1]), "each of 0..2 must occur once");
}

#[test]
fn bad_options_are_told() {
    let rig = Rig::new(Setup::default());
    for (name, value, word) in [
        ("softmax", "fast", "cluster"),
        ("memory_limit", "x", "memory_limit"),
        ("overlap_launches", "maybe", "overlap_launches"),
        ("leave_current", "maybe", "leave_current"),
        ("repeat_products", "maybe", "repeat_products"),
        ("context", "0x55d0c0ffee00", "neither `primary` nor `current`"),
        ("speed", "1", "unknown option"),
    ] {
        let config = rig.config(&[(name, value)]);
        let built =
            ep_registry::Runtime::builder().linked_with::<ep_cuda::provider::CudaProvider>(config).build();
        let report = built.unwrap().report().to_string();
        assert!(report.contains(word), "{name}: {report}");
    }
}

//! More than 2^32 elements of one byte, or, for ops on floats, 2^31 of two: every op once, with windows of the result
//! checked at the start, at the end, around element 2^31 and around byte 2^32.
//!
//! They need up to 12 GB of memory and an optimised build, so they run only when asked for:
//! `cargo test --release -p ep-cpu --test large -- --ignored --test-threads 1 --nocapture`.

use ep_core::{DType, Scalar};
use ep_cpu::provider::CpuProvider;
use ep_registry::{DynArgs, DynPrimitive, Runtime, Stream};
use half::f16;
use std::time::Instant;

/// Elements of a window.
const WINDOW: usize = 4096;
/// Rows and columns of a matrix of a little more than 2^32 elements.
const ROWS: usize = 65_539;
const COLS: usize = 65_537;
/// As many in a row; odd.
const N: usize = ROWS * COLS;
/// Columns of a matrix of floats with as many rows: a little more than 2^31 elements.
const FLOATS: usize = 32_771;
/// The most memory that a test may need.
const MOST_BYTES: usize = 12_000_000_000;

/// Anonymous memory on huge pages.
struct Big {
    at: *mut u8,
    bytes: usize,
}

impl Big {
    fn new(bytes: usize) -> Big {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the system's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED, "{bytes} bytes: {}", std::io::Error::last_os_error());
        // SAFETY: advice on the mapping just made; without effect where it is refused.
        unsafe { libc::madvise(at, bytes, libc::MADV_HUGEPAGE) };
        Big { at: at.cast(), bytes }
    }

    /// Memory with `f(i)` in element `i`.
    fn of<T: Copy + Send + Sync>(count: usize, f: impl Fn(usize) -> T + Sync) -> Big {
        let mut big = Big::new(count * size_of::<T>());
        let half = count / 2;
        let (low, high) = big.slice_mut::<T>().split_at_mut(half);
        std::thread::scope(|s| {
            s.spawn(|| low.iter_mut().enumerate().for_each(|(i, x)| *x = f(i)));
            high.iter_mut().enumerate().for_each(|(i, x)| *x = f(half + i));
        });
        big
    }

    fn slice_mut<T>(&mut self) -> &mut [T] {
        // SAFETY: the mapping is this long, zeroed or written as `T`, a number, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.bytes / size_of::<T>()) }
    }

    fn slice<T>(&self) -> &[T] {
        // SAFETY: as above, shared; launches that write it have ended.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.bytes / size_of::<T>()) }
    }

    fn address(&self) -> u64 {
        self.at.expose_provenance() as u64
    }
}

// SAFETY: plain memory, which `of` writes from two threads in two halves.
unsafe impl Sync for Big {}

impl Drop for Big {
    fn drop(&mut self) {
        // SAFETY: unmaps what `new` has mapped.
        unsafe { libc::munmap(self.at.cast(), self.bytes) };
    }
}

/// A byte that depends on all of `i`.
fn byte(i: usize) -> u8 {
    ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// A number in [-1, 1) that depends on all of `i`, exact in f16.
fn half_at(i: usize) -> f16 {
    f16::from_f32((f32::from(byte(i)) - 128.0) / 128.0)
}

/// Where windows of `count` elements of `size` bytes start.
fn windows(count: usize, size: usize) -> Vec<usize> {
    let around = [1usize << 31, (1usize << 32) / size].map(|at| at.saturating_sub(WINDOW / 2));
    let last = count.saturating_sub(WINDOW);
    assert!(around.iter().all(|at| *at <= last), "{count} elements of {size} bytes are too few");
    vec![0, around[0], around[1], last]
}

/// Checks windows of `got` against `want(i)`.
fn check<T: Copy + PartialEq + std::fmt::Debug>(got: &[T], want: impl Fn(usize) -> T) {
    for start in windows(got.len(), size_of::<T>()) {
        for (i, x) in got[start..].iter().take(WINDOW).enumerate() {
            assert_eq!(*x, want(start + i), "element {}", start + i);
        }
    }
}

struct Rig {
    runtime: Runtime,
    stream: Stream,
    begin: Instant,
}

impl Rig {
    fn new() -> Rig {
        let runtime = Runtime::builder().threads(2).linked::<CpuProvider>("cpu").build().unwrap();
        let stream = runtime.device("cpu").unwrap().stream().unwrap();
        Rig { runtime, stream, begin: Instant::now() }
    }

    /// `op selector=value role=dtype ...`
    fn primitive(&self, words: &str) -> DynPrimitive {
        let (op, rest) = words.split_once(' ').unwrap_or((words, ""));
        let mut request = self.runtime.request(op).unwrap();
        for (name, value) in rest.split_whitespace().map(|w| w.split_once('=').unwrap()) {
            request = match DType::parse(value) {
                Ok(_) => request.dtype(name, value).unwrap(),
                Err(_) => request.selector(name, value).unwrap(),
            };
        }
        self.runtime.primitive_dyn(self.runtime.device("cpu").unwrap(), &request).unwrap()
    }

    fn launch<'a>(&self, words: &str, build: impl FnOnce(DynArgs<'a>) -> ep_core::Result<DynArgs<'a>>) {
        let primitive = self.primitive(words);
        let args = build(primitive.args()).unwrap();
        // SAFETY: each test gives addresses of memory as large as its sizes say, which lives until it ends.
        unsafe { primitive.launch_raw(&self.stream, &args) }.unwrap();
        self.stream.sync().unwrap();
    }

    /// Says what the test took.
    fn end(self, test: &str) {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        let bytes = peak.unwrap().parse::<usize>().unwrap() * 1024;
        println!("{test}: {:.1} s, {:.1} GB", self.begin.elapsed().as_secs_f64(), bytes as f64 / 1e9);
        assert!(bytes <= MOST_BYTES, "{bytes} bytes were resident, {MOST_BYTES} may be");
    }
}

const COUNT: i64 = N as i64;
const R: i64 = ROWS as i64;
const C: i64 = COLS as i64;
const F: i64 = FLOATS as i64;

#[test]
#[ignore = "needs gigabytes"]
fn memory() {
    let rig = Rig::new();
    let (src, dst) = (Big::of(N, byte), Big::new(N));
    let [s, d] = [&src, &dst].map(Big::address);
    rig.launch("memcpy kind=auto", |a| a.size("bytes", COUNT)?.address("src", s)?.address("dst", d));
    check(dst.slice::<u8>(), byte);
    rig.launch("memset", |a| a.size("bytes", COUNT)?.scalar("value", 0x35i64)?.address("dst", d));
    check(dst.slice::<u8>(), |_| 0x35);
    rig.launch("fill data=u8", |a| a.size("count", COUNT)?.scalar("value", 7i64)?.address("dst", d));
    check(dst.slice::<u8>(), |_| 7);
    rig.launch("tensor_fill data=u8", |a| a.size("count", COUNT)?.address("src", s + 5)?.address("dst", d));
    check(dst.slice::<u8>(), |_| byte(5));
    rig.launch("arange data=u8", |a| {
        a.size("count", COUNT)?.scalar("start", 3i64)?.scalar("step", 7i64)?.address("dst", d)
    });
    check(dst.slice::<u8>(), |i| (3 + 7 * i) as u8);
    rig.end("memory");
}

#[test]
#[ignore = "needs gigabytes"]
fn elementwise() {
    let rig = Rig::new();
    let (src, dst) = (Big::of(N, byte), Big::new(N));
    let [s, d] = [&src, &dst].map(Big::address);
    rig.launch("cast src=u8 dst=i8", |a| a.size("count", COUNT)?.address("src", s)?.address("dst", d));
    check(dst.slice::<i8>(), |i| byte(i) as i8);
    rig.launch("elementwise_unary op=bitwise_not src=u8 dst=u8", |a| {
        a.size("count", COUNT)?.address("src", s)?.address("dst", d)
    });
    check(dst.slice::<u8>(), |i| !byte(i));
    rig.launch("broadcast_elementwise_unary op=bitwise_not src=u8 dst=u8", |a| {
        a.dims("src_dims", &[COUNT])?
            .dims("src_strides", &[1])?
            .dims("dst_dims", &[COUNT])?
            .dims("dst_strides", &[1])?
            .address("src", s)?
            .address("dst", d)
    });
    check(dst.slice::<u8>(), |i| !byte(i));
    rig.launch("broadcast_elementwise_binary op=sub src=u8 dst=u8", |a| {
        a.dims("src0_dims", &[COUNT])?
            .dims("src1_dims", &[1])?
            .address("src0", s)?
            .address("src1", s + 9)?
            .address("dst", d)
    });
    check(dst.slice::<u8>(), |i| byte(i).wrapping_sub(byte(9)));
    rig.launch("broadcast_elementwise_binary op=sub src=u8 dst=u8", |a| {
        a.dims("src0_dims", &[R, 1])?
            .dims("src1_dims", &[C])?
            .address("src0", s)?
            .address("src1", s + 9)?
            .address("dst", d)
    });
    check(&dst.slice::<u8>()[..ROWS * COLS], |i| byte(i / COLS).wrapping_sub(byte(9 + i % COLS)));
    rig.launch("where cond=u8 data=u8", |a| {
        a.dims("cond_dims", &[R, 1])?
            .dims("x_dims", &[R, C])?
            .dims("y_dims", &[])?
            .address("cond", s)?
            .address("x", s)?
            .address("y", s + 1)?
            .address("dst", d)
    });
    check(&dst.slice::<u8>()[..ROWS * COLS], |i| if byte(i / COLS) != 0 { byte(i) } else { byte(1) });
    let srcs = [s, s, s];
    rig.launch("add data=u8", |a| a.size("count", COUNT)?.addresses("srcs", &srcs)?.address("dst", d));
    check(dst.slice::<u8>(), |i| byte(i).wrapping_mul(3));
    rig.end("elementwise");
}

#[test]
#[ignore = "needs gigabytes"]
fn movers() {
    let rig = Rig::new();
    let (src, dst) = (Big::of(N, byte), Big::new(N));
    let [s, d] = [&src, &dst].map(Big::address);
    rig.launch("permute data=u8", |a| {
        a.dims("src_dims", &[R, C])?.dims("permutation", &[1, 0])?.address("src", s)?.address("dst", d)
    });
    check(&dst.slice::<u8>()[..ROWS * COLS], |i| byte(i % ROWS * COLS + i / ROWS));
    rig.launch("copy_nd data=u8", |a| {
        a.dims("dst_dims", &[COUNT])?
            .dims("dst_pos", &[0])?
            .dims("src_dims", &[COUNT])?
            .dims("src_pos", &[2])?
            .dims("extent", &[COUNT - 2])?
            .address("src", s)?
            .address("dst", d)
    });
    check(&dst.slice::<u8>()[..N - 2], |i| byte(i + 2));
    rig.launch("strided_copy src=u8 dst=u8", |a| {
        a.dims("dims", &[COUNT])?
            .dims("src_strides", &[-1])?
            .dims("dst_strides", &[1])?
            .size("src_offset", COUNT - 1)?
            .size("dst_offset", 0)?
            .address("src", s)?
            .address("dst", d)
    });
    check(dst.slice::<u8>(), |i| byte(N - 1 - i));
    rig.launch("constant_pad data=u8", |a| {
        a.dims("src_dims", &[COUNT])?
            .dims("padding_before", &[3])?
            .dims("padding_after", &[-3])?
            .scalar("value", 9i64)?
            .address("src", s)?
            .address("dst", d)
    });
    check(dst.slice::<u8>(), |i| if i < 3 { 9 } else { byte(i - 3) });
    rig.end("movers");
}

#[test]
#[ignore = "needs gigabytes"]
fn gathers() {
    let rig = Rig::new();
    let (src, dst) = (Big::of(N, byte), Big::new(N));
    let [s, d] = [&src, &dst].map(Big::address);
    let picked: Vec<i32> = (0..ROWS).map(|i| ((i * 7919) % ROWS) as i32).collect();
    let (indices, rows) = (picked.as_ptr().expose_provenance() as u64, &picked);
    rig.launch("gather mode=error indices=i32 data=u8", |a| {
        a.size("outer", 1)?
            .size("processed", R)?
            .size("inner", C)?
            .size("num_indices", R)?
            .address("indices", indices)?
            .address("src", s)?
            .address("dst", d)
    });
    check(&dst.slice::<u8>()[..ROWS * COLS], |i| byte(rows[i / COLS] as usize * COLS + i % COLS));
    rig.launch("batch_gather mode=error indices=i32 data=u8", |a| {
        a.size("batch", 1)?
            .size("outer", 1)?
            .size("processed", R)?
            .size("inner", C)?
            .size("num_indices", R)?
            .address("indices", indices)?
            .address("src", s)?
            .address("dst", d)
    });
    check(&dst.slice::<u8>()[..ROWS * COLS], |i| byte(rows[i / COLS] as usize * COLS + i % COLS));
    rig.launch("fill data=u8", |a| a.size("count", COUNT)?.scalar("value", 1i64)?.address("dst", d));
    rig.launch("scatter_add mode=error indices=i32 data=u8", |a| {
        a.size("outer", 1)?
            .size("processed", R)?
            .size("inner", C)?
            .size("num_indices", R)?
            .address("indices", indices)?
            .address("src", s)?
            .address("dst", d)
    });
    let mut from = vec![0; ROWS];
    rows.iter().enumerate().for_each(|(i, r)| from[*r as usize] = i);
    check(&dst.slice::<u8>()[..ROWS * COLS], |i| byte(from[i / COLS] * COLS + i % COLS).wrapping_add(1));
    rig.launch("one_hot mode=error indices=i32 data=u8", |a| {
        a.size("num_indices", R)?
            .size("depth", C)?
            .size("size", R)?
            .address("indices", indices)?
            .address("dst", d)
    });
    check(&dst.slice::<u8>()[..ROWS * COLS], |i| u8::from(rows[i / COLS] as usize == i % COLS));
    rig.end("gathers");
}

#[test]
#[ignore = "needs gigabytes"]
fn reductions() {
    let rig = Rig::new();
    let src = Big::of(N, |i| byte(i) / 2);
    let s = src.address();
    let mut out = vec![0i64; COLS];
    let d = out.as_mut_ptr().expose_provenance() as u64;
    rig.launch("reduce op=sum src=u8 dst=i64", |a| {
        a.size("outer", 1)?.size("reduced", COUNT)?.size("inner", 1)?.address("src", s)?.address("dst", d)
    });
    let sum: i64 = src.slice::<u8>().iter().map(|x| i64::from(*x)).sum();
    assert_eq!(out[0], sum);
    rig.launch("reduce op=sum src=u8 dst=i64", |a| {
        a.size("outer", 1)?.size("reduced", R)?.size("inner", C)?.address("src", s)?.address("dst", d)
    });
    for column in [0, 1, COLS / 2, COLS - 1] {
        let sum: i64 =
            src.slice::<u8>()[..ROWS * COLS].iter().skip(column).step_by(COLS).map(|x| i64::from(*x)).sum();
        assert_eq!(out[column], sum, "column {column}");
    }
    drop(src);
    let mut src = Big::of(N, |i| byte(i) / 2);
    src.slice_mut::<u8>()[N - 2] = 250;
    let s = src.address();
    rig.launch("arg_reduce op=argmax src=u8 dst=i64", |a| {
        a.size("outer", 1)?.size("reduced", COUNT)?.size("inner", 1)?.address("src", s)?.address("dst", d)
    });
    assert_eq!(out[0], COUNT - 2);
    rig.end("reductions");
}

/// The values of a row of the matrix of floats.
fn row_of(row: usize) -> Vec<f64> {
    (0..FLOATS).map(|c| half_at(row * FLOATS + c).to_f64()).collect()
}

/// Checks the windows of a matrix whose rows are functions of the source's rows.
fn check_rows(got: &[f16], want: impl Fn(&[f64]) -> Vec<f64>) {
    for start in windows(got.len(), 2) {
        for row in [start / FLOATS, (start + WINDOW - 1) / FLOATS] {
            let want = want(&row_of(row));
            for (c, w) in want.iter().enumerate() {
                let g = got[row * FLOATS + c].to_f64();
                assert!((g - w).abs() <= 2e-3 * w.abs() + 1e-7, "row {row}, column {c}: {g} {w}");
            }
        }
    }
}

#[test]
#[ignore = "needs gigabytes"]
fn rows() {
    let rig = Rig::new();
    let (src, dst) = (Big::of(ROWS * FLOATS, half_at), Big::new(2 * ROWS * FLOATS));
    let [s, d] = [&src, &dst].map(Big::address);
    let sum_exp = |x: &[f64]| x.iter().map(|x| x.exp()).sum::<f64>();
    let matrix = |op: &str| {
        rig.launch(&format!("{op} src=f16 dst=f16"), |a| {
            a.size("rows", R)?.size("cols", F)?.size("inner", 1)?.address("src", s)?.address("dst", d)
        });
    };
    matrix("softmax");
    check_rows(dst.slice(), |x| x.iter().map(|v| v.exp() / sum_exp(x)).collect());
    matrix("log_softmax");
    check_rows(dst.slice(), |x| x.iter().map(|v| v - sum_exp(x).ln()).collect());
    let backward = |op: &str| {
        rig.launch(&format!("{op} src=f16 dst=f16"), |a| {
            a.size("rows", R)?
                .size("cols", F)?
                .size("inner", 1)?
                .address("y", s)?
                .address("dy", s)?
                .address("dx", d)
        });
    };
    backward("softmax_backward");
    check_rows(dst.slice(), |x| {
        let dot: f64 = x.iter().map(|v| v * v).sum();
        x.iter().map(|v| (v - dot) * v).collect()
    });
    backward("log_softmax_backward");
    check_rows(dst.slice(), |x| {
        let sum: f64 = x.iter().sum();
        x.iter().map(|v| v - v.exp() * sum).collect()
    });
    let n = FLOATS as f64;
    rig.launch("layer_norm data=f16 stats=f32", |a| {
        a.size("rows", R)?.size("cols", F)?.address("src", s)?.address("dst", d)
    });
    check_rows(dst.slice(), |x| {
        let mean = x.iter().sum::<f64>() / n;
        let var = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
        x.iter().map(|v| (v - mean) / var.sqrt()).collect()
    });
    rig.launch("rms_norm data=f16 stats=f32", |a| {
        a.size("rows", R)?.size("cols", F)?.address("src", s)?.address("dst", d)
    });
    check_rows(dst.slice(), |x| {
        let rms = (x.iter().map(|v| v * v).sum::<f64>() / n).sqrt();
        x.iter().map(|v| v / rms).collect()
    });
    rig.end("rows");
}

#[test]
#[ignore = "needs gigabytes"]
fn matrices() {
    let rig = Rig::new();
    let (a0, b0, c) = (Big::of(3 * ROWS, byte), Big::of(3 * COLS, byte), Big::new(ROWS * COLS));
    let [x, y, z] = [&a0, &b0, &c].map(Big::address);
    let want = |i: usize| {
        let (row, column) = (i / COLS, i % COLS);
        let terms = (0..3).map(|k| byte(row * 3 + k).wrapping_mul(byte(k * COLS + column)));
        terms.fold(0u8, u8::wrapping_add)
    };
    let words = "transpose_a=none transpose_b=none data=u8";
    rig.launch(&format!("matmul {words}"), |a| {
        a.size("m", R)?.size("n", C)?.size("k", 3)?.address("a", x)?.address("b", y)?.address("c", z)
    });
    check(c.slice::<u8>(), want);
    rig.launch(&format!("batch_matmul {words}"), |a| {
        a.size("batch", 1)?
            .size("m", R)?
            .size("n", C)?
            .size("k", 3)?
            .address("a", x)?
            .address("b", y)?
            .address("c", z)
    });
    check(c.slice::<u8>(), want);
    rig.launch(&format!("broadcast_matmul {words}"), |a| {
        a.dims("a_dims", &[R, 1, 3])?
            .dims("b_dims", &[3, C])?
            .dims("c_dims", &[R, 1, C])?
            .scalar("alpha", Scalar::None)?
            .address("a", x)?
            .address("b", y)?
            .address("c", z)
    });
    check(c.slice::<u8>(), want);
    rig.end("matrices");
}

/// A matrix of more than 2^32 elements times a few columns.
#[test]
#[ignore = "needs gigabytes"]
fn thin_products() {
    let rig = Rig::new();
    let a = Big::of(N, byte);
    let elements = a.slice::<u8>();
    for columns in [1, 3] {
        let (b, mut c) = (Big::of(COLS * columns, byte), vec![0u8; ROWS * columns]);
        let [x, y] = [&a, &b].map(Big::address);
        let z = c.as_mut_ptr().expose_provenance() as u64;
        rig.launch("matmul transpose_a=none transpose_b=none data=u8", |args| {
            args.size("m", R)?
                .size("n", columns as i64)?
                .size("k", C)?
                .address("a", x)?
                .address("b", y)?
                .address("c", z)
        });
        let right = b.slice::<u8>();
        for start in windows(N, 1) {
            for row in [start / COLS, (start + WINDOW - 1) / COLS] {
                let left = &elements[row * COLS..][..COLS];
                for column in 0..columns {
                    let terms = left.iter().zip(right[column..].iter().step_by(columns));
                    let want = terms.fold(0u8, |sum, (p, q)| sum.wrapping_add(p.wrapping_mul(*q)));
                    assert_eq!(c[row * columns + column], want, "row {row}, column {column}");
                }
            }
        }
    }
    rig.end("thin_products");
}

"""Cases of kernels along rows: softmax, norms, reductions."""
import numpy as np

import plan
from cases import FLOATS, SIZE, case, elements, equal, near, rng_of
from memory import numpy_dtype

WIDTHS = [1, 2, 7, 31, 32, 33, 127, 128, 255, 512, 1000, 1023, 1024, 1025, 2048, 3001, 4096, 4097, 8192, 16384, 30720, 32768, 50257, 65536, 122880, 131072]
PAIRS = [("f32", "f32"), ("f16", "f16"), ("bf16", "bf16"), ("f64", "f64"), ("f16", "f32"), ("f32", "bf16"), ("bf16", "f64")]
EPS = dict(f32=1.2e-7, f64=2.3e-16, f16=1e-3, bf16=8e-3)


def rows_data(dtype, rows, cols, rng):
    x = (rng.normal(size=(rows, cols)) * 4).astype(np.float32)
    if rows >= 8 and cols > 2:
        x[1, cols // 2] = np.nan
        x[2, cols - 1] = np.inf
        x[3, :] = -np.inf
        x[4, : cols // 2] = -np.inf
        x[5, :] = -1000
        x[6, 0] = 3e4
    return x.astype(numpy_dtype(dtype))


def softmax_reference(x, log, axis=-1):
    import torch

    y = torch.from_numpy(x.astype(np.float64)).cuda()
    high = y.max(axis, keepdim=True).values
    d = y - high
    s = d.exp().sum(axis, keepdim=True)
    return (d - s.log() if log else d.exp() / s).cpu().numpy()


@case("softmax", [0, 1], PAIRS, WIDTHS, ["auto", "shifted", "wide", "shared"])
def softmax(mem, log, pair, cols, how):
    src, dst = pair
    rng, rows = rng_of("softmax", log, pair, cols), 11 if cols < 20000 else 8
    offset = 1 if how == "shifted" else 0
    x = mem.block(src, SIZE[src], rows * cols, offset, lambda: rows_data(src, rows, cols, rng))
    y = mem.block(dst, SIZE[dst], rows * cols, offset)
    yield plan.softmax(log, src, dst, rows, cols, x.address, y.address, force=how if how in ("wide", "shared") else None)
    g = x.read().reshape(rows, cols)
    largest = np.max(np.abs(np.where(np.isfinite(g.astype(np.float64)), g.astype(np.float64), 0)))
    e = max(EPS[dst], EPS[src] if src == "f64" else 1.2e-7)
    work = 2.3e-16 if src == "f64" else 1.2e-7
    near(y.read(), softmax_reference(g, log), max(8 * work, e), work * (8 * (1 + largest) if log else 1e-3) + (6e-8 if dst == "f16" else 0))


@case("softmax_backward", [0, 1], PAIRS, WIDTHS, ["auto", "shifted", "apart", "wide"])
def softmax_backward(mem, log, pair, cols, how):
    src, dst = pair
    rng, rows = rng_of("backward", log, pair, cols), 9
    offset = 1 if how in ("shifted", "apart") else 0
    def y_data():
        s = softmax_reference(rng.normal(size=(rows, cols)), log)
        return s.astype(numpy_dtype(src))
    y = mem.block(src, SIZE[src], rows * cols, offset, y_data)
    dy = mem.block(src, SIZE[src], rows * cols, 2 if how == "apart" else offset, lambda: rng.normal(size=rows * cols).astype(numpy_dtype(src)))
    dx = mem.block(dst, SIZE[dst], rows * cols, 0 if how == "apart" else offset)
    yield plan.softmax_backward(log, src, dst, rows, cols, y.address, dy.address, dx.address, force="wide" if how == "wide" else None)
    gy, gdy = [b.read().reshape(rows, cols).astype(np.float64) for b in (y, dy)]
    expected = gdy - np.exp(gy) * gdy.sum(1, keepdims=True) if log else (gdy - (gy * gdy).sum(1, keepdims=True)) * gy
    work = 2.3e-16 if src == "f64" else 1.2e-7
    near(dx.read(), expected, 8 * work + EPS[dst], work * (20 + cols ** 0.5 * 8) + (6e-8 if dst == "f16" else 0))


@case("softmax_strided", [0, 1], [0, 1], ["f32", "f16", "f64"], [(3, 100, 7), (2, 9, 64), (1, 1000, 33)])
def softmax_strided(mem, log, backward, dtype, shape):
    rng, n = rng_of(log, backward, dtype, shape), int(np.prod(shape))
    x = mem.block(dtype, SIZE[dtype], n, 0, lambda: rng.normal(size=n).astype(numpy_dtype(dtype)))
    dy = mem.block(dtype, SIZE[dtype], n, 0, lambda: rng.normal(size=n).astype(numpy_dtype(dtype)))
    y = mem.block(dtype, SIZE[dtype], n)
    yield plan.softmax_strided(log, backward, dtype, dtype, *shape, x.address, y.address, dy.address)
    g, gdy = x.read().reshape(shape).astype(np.float64), dy.read().reshape(shape).astype(np.float64)
    if not backward:
        expected = softmax_reference(g, log, 1)
    else:
        expected = gdy - np.exp(g) * gdy.sum(1, keepdims=True) if log else (gdy - (g * gdy).sum(1, keepdims=True)) * g
    largest = np.exp(np.max(np.abs(g))) if backward else 4
    near(y.read(), expected, 2 * EPS[dtype], 400 * largest * min(EPS[dtype], 1.2e-7) + (6e-8 if dtype == "f16" else 0))


# Of these a row fills odd numbers of warps of a cluster.
PARTS = [10001, 16387, 20001, 35000, 40000, 50256, 50264, 65537, 100003]


@case("norm", [0, 1], ["f32", "f16", "bf16", "f64"], WIDTHS + PARTS, ["auto", "shifted", "wide", "bare", "several", "several bare", "many", "many bare", "many shifted", "many rows apart", "weights apart"])
def norm(mem, rms, dtype, cols, how):
    # Of seven rows a cluster takes three at most, of "many" five and more; where rows are not aligned eight begin one after
    # the other.
    many = "many" in how
    rng, rows = rng_of(rms, dtype, cols), 7 if not many else 17 if cols > 20000 else 43
    apart = int("weights apart" in how or many)
    offset = 1 if "shifted" in how else 0

    def data():
        x = rng.normal(size=(rows, cols)) + 3
        # A mean that is large beside the deviations, and a first element that is far from all others.
        x[1] += 10
        x[2, 0] = 300
        # No variance, not even by rounding.
        x[3] = 5
        # The mean is infinite, and all else no number.
        x[5, cols // 2] = np.inf
        return x.astype(numpy_dtype(dtype))

    x = mem.block(dtype, SIZE[dtype], rows * cols, offset, data)
    g, b = [mem.block(dtype, SIZE[dtype], cols, k + apart, lambda: rng.normal(size=cols).astype(numpy_dtype(dtype))) for k in (0, 1)]
    stats = "f64" if dtype == "f64" else "f32"
    y = mem.block(dtype, SIZE[dtype], rows * cols, 3 if "rows apart" in how else offset)
    mean, rstd = mem.block(stats, SIZE[stats], rows, 0, lambda: np.zeros(rows, stats.replace("f", "float"))), mem.block(stats, SIZE[stats], rows)
    bare, each = "bare" in how, (7 if cols > 20000 else 19) if many else 3 if "several" in how or apart else None
    yield plan.norm(rms, dtype, rows, cols, 1e-5, x.address, y.address, 0 if bare else g.address, 0 if bare or rms else b.address, 0 if rms else mean.address, rstd.address, force="wide" if how == "wide" else None, each=each)
    v = x.read().reshape(rows, cols).astype(np.float64)
    with np.errstate(invalid="ignore"):
        m = 0 if rms else v.mean(1, keepdims=True)
        r = 1 / np.sqrt(((v - m) ** 2).mean(1, keepdims=True) + 1e-5)
        expected = (v - m) * r
    if not bare:
        expected = expected * g.read().astype(np.float64)
        if not rms:
            expected = expected + b.read().astype(np.float64)
    work = min(EPS[dtype], 1.2e-7)
    # One column alone has a variance of 0: what rounds the product of a mean of 300 is 316 times as large.
    scale = 1000 if cols < 3 else 8
    near(rstd.read(), r.reshape(-1), scale * 8 * work, 0, "rstd")
    if not rms:
        near(mean.read(), m.reshape(-1), 8 * work, 8 * work, "mean")
    # Of half types the product of mean and rstd may be rounded: it is 1,600 in the row without a variance.
    rounded = np.broadcast_to(np.abs(m * r), v.shape).reshape(-1) * 1.2e-7 if dtype in ("f16", "bf16") else 0
    weights = 1 if bare else np.broadcast_to(np.abs(g.read().astype(np.float64)), v.shape).reshape(-1)
    near(y.read(), expected, EPS[dtype] + 8 * work, work * scale * 40 + rounded * weights, "y")


SHAPES = [(7, 100, 1), (1, 100003, 1), (3000, 33, 1), (5, 40, 70), (1, 5000, 3), (2, 30000, 40), (4, 1, 1), (600, 2048, 1)]


@case("reduce", [("sum", "f32", "f32"), ("sum", "f16", "f32"), ("sum", "bf16", "bf16"), ("mean", "f32", "f32"), ("mean", "f64", "f64"), ("mean", "c64", "c64"), ("sum", "c128", "c128"), ("sum", "i8", "i64"), ("sum", "u8", "u8"), ("sum", "b8", "i64"), ("prod", "i32", "i32"), ("max", "f32", "f32"), ("min", "f16", "f16"), ("max", "i8", "i8"), ("min", "u64", "u64"), ("max", "b8", "b8"), ("any", "f32", "b8"), ("all", "i16", "b8"), ("prod", "f64", "f64")], SHAPES, [0, 1])
def reduce(mem, kind, shape, offset):
    op, src, dst = kind
    rng, n = rng_of(kind, shape), int(np.prod(shape))
    outer, reduced, inner = shape
    def data():
        x = elements(src, n, rng) if op in ("max", "min") or src[0] in "iub" and src != "bf16" else rng.normal(size=n).astype(numpy_dtype(src))
        if op == "prod" and src == "f64":
            x = np.exp(x / 1000)
        if op in ("any", "all"):
            x = (rng.random(n) < (0.01 if op == "any" else 0.99)).astype(numpy_dtype(src))
        return x
    x = mem.block(src, SIZE[src], n, offset, data)
    y = mem.block(dst, SIZE[dst], outer * inner)
    workspace = mem.block("u8", 1, 1 << 20)
    yield plan.reduce(op, src, dst, outer, reduced, inner, x.address, y.address, workspace.address)
    g, found = x.read().reshape(shape), y.read()
    with np.errstate(all="ignore"):
        if op in ("max", "min"):
            f = np.maximum if op == "max" else np.minimum
            return equal(found, f.reduce(g.astype(np.float64) if src in FLOATS else g, axis=1).astype(g.dtype).reshape(-1))
        if op in ("any", "all"):
            return equal(found, getattr(np, op)(g != 0, axis=1).astype(np.uint8).reshape(-1))
        if src[0] in "iu" or src == "b8":
            out = numpy_dtype(dst)
            return equal(found, getattr(np, op)(g.astype(out), axis=1, dtype=out).reshape(-1))
        # numpy adds along such an axis one by one, which in f64 is less exact than the kernel.
        wide = np.clongdouble if src[0] == "c" else np.longdouble
        expected = getattr(np, op)(g.astype(wide), axis=1).reshape(-1)
    eps = dict(c64=1.2e-7, c128=2.3e-16).get(dst) or EPS[dst]
    work = min(eps, 1.2e-7)
    scale = 1 if op == "mean" else reduced ** 0.5
    for part in ("real", "imag"):
        near(getattr(found, part), getattr(expected, part), 2 * eps + (4e-13 if op == "prod" else 0), work * 100 * scale)


@case("arg_reduce", ["argmax", "argmin"], ["f32", "bf16", "i8", "b8", "u64", "f64"], ["i32", "i64"], SHAPES)
def arg_reduce(mem, op, src, dst, shape):
    rng, n = rng_of(op, src, shape), int(np.prod(shape))
    outer, reduced, inner = shape
    def data():
        x = elements(src, n, rng)
        if src in FLOATS and reduced > 50:
            x = np.where(np.isnan(x.astype(np.float64)), x.dtype.type(0), x).reshape(shape)
            x[-1, reduced // 2, 0] = np.nan
            x[-1, reduced // 2 + 5, 0] = np.nan
        return x
    x = mem.block(src, SIZE[src], n, 0, data)
    y = mem.block(dst, SIZE[dst], outer * inner)
    workspace = mem.block("u8", 1, 1 << 20)
    yield plan.arg_reduce(op, src, dst, outer, reduced, inner, x.address, y.address, workspace.address)
    g = x.read().reshape(shape)
    g = g.astype(np.float64) if src in FLOATS else g
    equal(y.read(), getattr(np, op)(g, axis=1).reshape(-1).astype(numpy_dtype(dst)))

"""Correctness of the kernels on a GPU: python3 check.py [NAME] checks the cases whose names contain NAME."""
import itertools
import os
import re
import sys
import time

import numpy as np

import plan
import references as ref
from device import Device, KERNELS
from memory import Addresses, Memory, numpy_dtype

SIZE = plan.SIZE
FLOATS, INTS = ["f32", "f64", "f16", "bf16"], ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"]
CASES = {}


def case(name, *values):
    def add(f):
        for value in itertools.product(*values) if values else [()]:
            CASES["/".join([name, *map(str, value)])] = (f, value)
        return f

    return add


def names(file, enum):
    text = open(os.path.join(KERNELS, file)).read()
    return [n.strip() for n in re.search(enum + r" \{(.*?)\}", text, re.S)[1].split(",") if n.strip()]


def rng_of(*key):
    return np.random.default_rng(abs(hash(str(key))) % (1 << 32))


def elements(dtype, count, rng):
    """Any bits that are an element."""
    if dtype == "b8":
        return rng.integers(0, 2, count).astype(np.uint8)
    if dtype[0] in "iu":
        return rng.integers(0, 256, count * SIZE[dtype]).astype(np.uint8).view(numpy_dtype(dtype))
    if dtype[0] == "c":
        return (rng.normal(size=count) + 1j * rng.normal(size=count)).astype(numpy_dtype(dtype))
    return ref.special(numpy_dtype(dtype), count, rng)


def raw(size, count, rng):
    return rng.integers(0, 256, count * size).astype(np.uint8)


def equal(found, expected, what=""):
    bad = np.nonzero(~((found == expected) | ((found != found) & (expected != expected))))[0]
    assert bad.size == 0, f"{what}: {bad.size} of {found.size} differ, first at {bad[0]}: {found[bad[0]]}, not {expected[bad[0]]}"


def same_bytes(found, expected, what=""):
    equal(found.reshape(-1).view(np.uint8), np.ascontiguousarray(expected).reshape(-1).view(np.uint8), what)


def near(found, expected, relative, absolute, what=""):
    found, expected = found.astype(np.float64).reshape(-1), np.asarray(expected, np.float64).reshape(-1)
    with np.errstate(all="ignore"):
        ok = (found == expected) | (np.isnan(found) & np.isnan(expected))
        ok |= np.abs(found - expected) <= absolute + relative * np.abs(expected)
    bad = np.nonzero(~ok)[0]
    assert bad.size == 0, f"{what}: {bad.size} of {found.size}, first at {bad[0]}: {found[bad[0]]}, not {expected[bad[0]]}"


ALL = ["b8", *INTS, *FLOATS, "c64", "c128"]


@case("cast", ALL, ALL)
def cast(mem, src, dst):
    rng, n = rng_of("cast", src, dst), 4099
    def data():
        x = elements(src, n, rng)
        if src in FLOATS:
            x[100:2000] = (x[100:2000].astype(np.float64) * 60).astype(x.dtype)
            with np.errstate(all="ignore"):
                x[2000:3000] = (x[2000:3000].astype(np.float64) * 1e10).astype(x.dtype)
        if src in ("i64", "u64") and dst in ("f16", "bf16"):
            x >>= x.dtype.type(12)
        return x
    x = mem.block(src, SIZE[src], n, 1, data)
    y = mem.block(dst, SIZE[dst], n, 2)
    yield plan.unary("cast", src, dst, [n], x.address, y.address)
    given = x.read()
    equal(y.read(), ref.cast(given, src, dst, numpy_dtype(dst)))


UNARY_REAL = [n for n in names("unary_ops.cuh", "Unary") if n not in (
    "identity", "cast", "logical_not", "is_inf", "is_nan", "is_finite", "bitwise_not", "conj", "real", "imag",
    "real_grad", "imag_grad")]
HARD = ["pow", "tan", "erfc", "lgamma", "digamma", "trigamma", "zeta"]


@case("unary", UNARY_REAL, FLOATS)
def unary_real(mem, op, dtype):
    rng, n = rng_of(op, dtype), 2003 if op in ("digamma", "trigamma", "lgamma", "gelu") else 20011
    attrs = dict(hard_tanh=(-1.5, 2.5), soft_plus=(1.5, 2.0), threshold=(0.5, 2.0)).get(op, (1.5, 0.0))
    def data():
        wide = dict(gelu=14, silu=95, mish=95, quick_gelu=55, sigmoid=95, exp=90, log_sigmoid=95, tan=60, sin=60).get(op, 12)
        return np.concatenate([ref.special(numpy_dtype(dtype), n // 2, rng, -wide, wide),
                               ref.special(numpy_dtype(dtype), n - n // 2, rng, -1.2, 1.2)])
    x, y = mem.block(dtype, SIZE[dtype], n, 0, data), mem.block(dtype, SIZE[dtype], n)
    yield plan.unary(op, dtype, dtype, [n], x.address, y.address, attrs=attrs)
    with np.errstate(all="ignore"):
        given = x.read().astype(np.float64)
        a = [float(np.float32(v)) if dtype != "f64" else v for v in attrs]
        expected = np.asarray(ref.unary_real()[op](given, *a), np.float64)
    found = y.read()
    errors = ref.ulps(dtype, found, expected, numpy_dtype(dtype))
    limit = 1.0 if dtype in ("f16", "bf16") else 2.0 if dtype == "f32" else 4.0
    absolute = 0
    if op in HARD:
        limit, absolute = (limit if dtype in ("f16", "bf16") else 4.0 if dtype == "f32" else 64.0), 1e-6 if dtype != "f64" else 1e-11
    if op in ("fast_gelu", "quick_gelu"):
        limit, absolute = (limit if dtype in ("f16", "bf16") else 8.0), 4 * (1.2e-7 if dtype != "f64" else 2.2e-16)
    with np.errstate(all="ignore"):
        bad = (errors > limit) & ~(np.abs(found.astype(np.float64) - expected) <= absolute)
    worst = np.nonzero(bad)[0]
    assert worst.size == 0, f"{worst.size} of {n}; f({given[worst[:4]]}) = {found[worst[:4]]}, not {expected[worst[:4]]}; largest error {np.max(errors[np.isfinite(errors)]):.1f} ulp"
    return f"{np.max(errors[np.isfinite(errors)]):.2f} ulp"


@case("unary_int", ["relu", "square_relu", "abs", "sign", "square", "not_equal_zero", "negative", "bitwise_not", "ceil"], INTS)
def unary_int(mem, op, dtype):
    rng, n = rng_of(op, dtype), 1031
    x = mem.block(dtype, SIZE[dtype], n, 3, lambda: elements(dtype, n, rng))
    y = mem.block(dtype, SIZE[dtype], n, 3)
    yield plan.unary(op, dtype, dtype, [n], x.address, y.address)
    g = x.read()
    with np.errstate(all="ignore"):
        zero = g.dtype.type(0)
        p = np.maximum(g, zero)
        equal(y.read(), dict(relu=p, square_relu=p * p, abs=np.abs(g), sign=np.sign(g), square=g * g,
                             not_equal_zero=(g != 0).astype(g.dtype), negative=zero - g, bitwise_not=~g, ceil=g)[op])


@case("unary_test", ["is_inf", "is_nan", "is_finite", "logical_not"], ["f32", "f16", "bf16", "f64", "c64", "i32", "b8"])
def unary_test(mem, op, dtype):
    rng, n = rng_of(op, dtype), 515
    x = mem.block(dtype, SIZE[dtype], n, 0, lambda: elements(dtype, n, rng))
    y = mem.block("b8", 1, n, 1)
    yield plan.unary(op, dtype, "b8", [n], x.address, y.address)
    g = x.read()
    if dtype == "bf16":
        g = g.astype(np.float32)
    f = dict(is_inf=np.isinf, is_nan=np.isnan, is_finite=np.isfinite, logical_not=lambda v: v == 0)[op]
    equal(y.read(), f(g).astype(np.uint8))


@case("unary_complex", ["conj", "negative", "square", "reciprocal", "sqrt", "exp"], ["c64", "c128"])
def unary_complex(mem, op, dtype):
    rng, n = rng_of(op, dtype), 1001
    x = mem.block(dtype, SIZE[dtype], n, 1, lambda: elements(dtype, n, rng))
    y = mem.block(dtype, SIZE[dtype], n)
    yield plan.unary(op, dtype, dtype, [n], x.address, y.address)
    z = x.read().astype(np.complex128)
    e = dict(conj=np.conj, negative=np.negative, square=np.square, reciprocal=np.reciprocal, sqrt=np.sqrt, exp=np.exp)[op](z)
    error = np.abs(y.read() - e) / np.abs(e)
    assert error.max() < (4e-7 if dtype == "c64" else 1e-15), error.max()


@case("unary_strided", ["f32", "f16", "i8"], [0, 1])
def unary_strided(mem, dtype, broadcast):
    rng, dims = rng_of("strided", dtype, broadcast), [5, 1, 7, 33]
    dst_strides, reach = [7 * 40 * 2, 9000, 40 * 2, 2], 5 * 7 * 40 * 2
    src_strides = [7 * 35, 0, 0, 1] if broadcast else [7 * 35, 7, 35, 1]
    x = mem.block(dtype, SIZE[dtype], 5 * 7 * 35, 1, lambda: elements(dtype, 5 * 7 * 35, rng))
    y = mem.block(dtype, SIZE[dtype], reach, 0, lambda: np.zeros(reach, numpy_dtype(dtype)))
    yield plan.unary("negative", dtype, dtype, dims, x.address, y.address, src_strides, dst_strides)
    g = np.lib.stride_tricks.as_strided(x.read(), dims, [s * SIZE[dtype] for s in src_strides])
    expected = np.zeros(reach, numpy_dtype(dtype))
    np.lib.stride_tricks.as_strided(expected, dims, [s * SIZE[dtype] for s in dst_strides])[...] = -g
    equal(y.read(), expected)


BINARY = names("binary_ops.cuh", "Binary")
GRADIENTS = [n for n in BINARY if n.endswith("_backward_with_dy_x") and n != "reciprocal_no_nan_backward_with_dy_x"]


@case("binary", ["add", "sub", "mul", "div", "max", "min", "pow", "fmod", "floor_div", "floor_mod", "zeta"], ["f32", "f64", "f16", "bf16"])
def binary_real(mem, op, dtype):
    rng, n = rng_of(op, dtype), 9001
    def data(shift):
        x = ref.special(numpy_dtype(dtype), n, rng)
        return np.roll(np.abs(x) + x.dtype.type(1.001) if op == "zeta" else x, shift)
    a = mem.block(dtype, SIZE[dtype], n, 0, lambda: data(0))
    b = mem.block(dtype, SIZE[dtype], n, 0, lambda: data(31))
    y = mem.block(dtype, SIZE[dtype], n)
    yield plan.binary(op, dtype, dtype, [[n], [n]], [a.address, b.address], y.address)
    with np.errstate(all="ignore"):
        ga, gb = a.read().astype(np.float64), b.read().astype(np.float64)
        if op == "zeta":
            ok = np.isfinite(ga) & np.isfinite(gb) & (ga < 1e4)
        else:
            ok = np.ones(n, bool)
        expected = ref.binary_real()[op](ga, gb)
    found = y.read()
    errors = ref.ulps(dtype, found[ok], expected[ok], numpy_dtype(dtype))
    limit = {"f32": 4.0, "f64": 32.0}.get(dtype, 1.0) if op in HARD else 1.0
    worst = np.nonzero(errors > limit)[0]
    i = worst[:3]
    assert worst.size == 0, f"{worst.size} of {n}: f({ga[ok][i]}, {gb[ok][i]}) = {found[ok][i]}, not {expected[ok][i]}"


@case("gradient", GRADIENTS, ["f32", "f64", "f16", "bf16"])
def gradient(mem, op, dtype):
    rng, n = rng_of(op, dtype), 5003
    positive = any(op.startswith(p) for p in ("log_b", "log2_", "log10_", "rsqrt", "sqrt", "lgamma", "digamma", "acosh"))
    unit = any(op.startswith(p) for p in ("acos_", "asin_", "atanh"))
    def data():
        x = rng.uniform(-0.95, 0.95, n) if unit else rng.uniform(1.1, 6, n) if positive else rng.uniform(-6, 6, n)
        if op.startswith("log1p"):
            x = np.abs(x)
        return x.astype(numpy_dtype(dtype))
    dy = mem.block(dtype, SIZE[dtype], n, 0, lambda: rng.normal(size=n).astype(numpy_dtype(dtype)))
    x = mem.block(dtype, SIZE[dtype], n, 0, data)
    y = mem.block(dtype, SIZE[dtype], n)
    yield plan.binary(op, dtype, dtype, [[n], [n]], [dy.address, x.address], y.address, (1.5, 2.0))
    import torch

    if dtype == "f64" and op.split("_b")[0] in ("hard_sigmoid", "digamma", "fast_gelu"):
        return "PyTorch's own is of f32's accuracy"
    gx = torch.from_numpy(x.read().astype(np.float64)).requires_grad_()
    gdy = dy.read().astype(np.float64)
    ref.gradients()[op](gx).backward(torch.from_numpy(gdy))
    eps = dict(f32=1.2e-7, f64=2.2e-16, f16=1e-3, bf16=8e-3)[dtype]
    with np.errstate(all="ignore"):
        expected = gx.grad.numpy().astype(numpy_dtype(dtype))
    near(y.read(), expected, 4 * eps, 64 * min(eps, 1.2e-7) * 49, op)


@case("binary_int", ["add", "sub", "mul", "div", "max", "min", "fmod", "floor_div", "floor_mod", "bitwise_xor", "less_than", "equal", "logical_xor", "is_close"], INTS)
def binary_int(mem, op, dtype):
    rng, n = rng_of(op, dtype), 1500
    small = lambda: np.where(rng.integers(0, 2, n) == 0, elements(dtype, n, rng), rng.integers(0, 5, n).astype(numpy_dtype(dtype)))
    a = mem.block(dtype, SIZE[dtype], n, 0, small)
    b = mem.block(dtype, SIZE[dtype], n, 1, small)
    out = "b8" if op in ("less_than", "equal", "logical_xor", "is_close") else dtype
    y = mem.block(out, SIZE[out], n)
    yield plan.binary(op, dtype, out, [[n], [n]], [a.address, b.address], y.address, (1.0, 0.0))
    p, q = a.read(), b.read()
    big_p, big_q = [np.array([int(v) for v in w], object) for w in (p, q)]
    safe = np.where(big_q == 0, 1, big_q)
    trunc = np.array([abs(i) // abs(j) * (1 if (i < 0) == (j < 0) else -1) for i, j in zip(big_p, safe)], object)
    zero = lambda v: np.where(big_q == 0, 0, v)
    exact = dict(add=lambda: big_p + big_q, sub=lambda: big_p - big_q, mul=lambda: big_p * big_q, div=lambda: zero(trunc),
                 max=lambda: np.maximum(big_p, big_q), min=lambda: np.minimum(big_p, big_q),
                 fmod=lambda: zero(big_p - trunc * safe), floor_div=lambda: zero(big_p // safe),
                 floor_mod=lambda: zero(big_p % safe), bitwise_xor=lambda: big_p ^ big_q, less_than=lambda: big_p < big_q,
                 equal=lambda: big_p == big_q, logical_xor=lambda: (big_p != 0) != (big_q != 0),
                 is_close=lambda: abs(big_p - big_q) <= 1)[op]()
    bits = 8 * SIZE[out]
    wrapped = np.array([int(v) % (1 << bits) for v in exact], np.uint64).astype(f"uint{bits}").view(numpy_dtype(out))
    equal(y.read(), wrapped)


@case("binary_complex", ["add", "mul", "div", "equal"], ["c64", "c128"])
def binary_complex(mem, op, dtype):
    rng, n = rng_of(op, dtype), 777
    a = mem.block(dtype, SIZE[dtype], n, 0, lambda: elements(dtype, n, rng))
    b = mem.block(dtype, SIZE[dtype], n, 0, lambda: elements(dtype, n, rng))
    out = "b8" if op == "equal" else dtype
    y = mem.block(out, SIZE[out], n)
    yield plan.binary(op, dtype, out, [[n], [n]], [a.address, b.address], y.address)
    p, q = a.read().astype(np.complex128), b.read().astype(np.complex128)
    if op == "equal":
        return equal(y.read(), (p == q).astype(np.uint8))
    e = dict(add=np.add, mul=np.multiply, div=np.divide)[op](p, q)
    error = np.abs(y.read() - e) / np.abs(e)
    assert error.max() < (4e-7 if dtype == "c64" else 1e-15), error.max()


BROADCASTS = [([4, 1, 9], [5, 9]), ([3, 64], [64]), ([3, 64], [3, 1]), ([1], [1025]), ([7, 33], [7, 1]), ([2, 3, 1, 5], [1, 4, 1]), ([8, 16, 32], [8, 1, 32])]


@case("broadcast", range(len(BROADCASTS)), ["f32", "f16", "i8", "f64"], [0, 1])
def broadcast(mem, which, dtype, offset):
    rng, shapes = rng_of(which, dtype, offset), BROADCASTS[which]
    counts = [int(np.prod(s)) for s in shapes]
    out = np.broadcast_shapes(*shapes)
    a = mem.block(dtype, SIZE[dtype], counts[0], offset, lambda: rng.integers(-9, 9, counts[0]).astype(numpy_dtype(dtype)))
    b = mem.block(dtype, SIZE[dtype], counts[1], 0, lambda: rng.integers(-9, 9, counts[1]).astype(numpy_dtype(dtype)))
    y = mem.block(dtype, SIZE[dtype], int(np.prod(out)), offset)
    yield plan.binary("sub", dtype, dtype, shapes, [a.address, b.address], y.address)
    equal(y.read(), (a.read().reshape(shapes[0]) - b.read().reshape(shapes[1])).reshape(-1))


@case("scalar", ["f32", "f16", "i64"], [1, 2])
def scalar(mem, dtype, which):
    rng, n = rng_of(dtype, which), 333
    value = np.array([3], numpy_dtype(dtype))
    bits = int.from_bytes(value.tobytes(), "little")
    a = mem.block(dtype, SIZE[dtype], n, 2, lambda: rng.integers(-9, 9, n).astype(numpy_dtype(dtype)))
    y = mem.block(dtype, SIZE[dtype], n, 1)
    shapes, at = ([[], [n]], [0, a.address]) if which == 1 else ([[n], []], [a.address, 0])
    yield plan.binary("sub", dtype, dtype, shapes, at, y.address, scalars={which: (bits, 0)})
    equal(y.read(), value - a.read() if which == 1 else a.read() - value)


@case("where", ["b8", "i32"], [1, 2, 4, 8, 16], range(2))
def where(mem, cond, size, which):
    rng = rng_of(cond, size, which)
    shapes = [([6, 1], [6, 35], [35]), ([999], [999], [999])][which]
    counts = [int(np.prod(s)) for s in shapes]
    out = np.broadcast_shapes(*shapes)
    c = mem.block(cond, SIZE[cond], counts[0], 0, lambda: rng.integers(0, 2, counts[0]).astype(numpy_dtype(cond)))
    x = mem.block("u8", size, counts[1], 0, lambda: raw(size, counts[1], rng))
    z = mem.block("u8", size, counts[2], 1, lambda: raw(size, counts[2], rng))
    y = mem.block("u8", size, int(np.prod(out)), 1)
    yield plan.where(cond, size, shapes, [c.address, x.address, z.address], y.address)
    picked = np.where(c.read().reshape([*shapes[0], 1]) != 0, x.read().reshape([*shapes[1], size]), z.read().reshape([*shapes[2], size]))
    equal(y.read(), picked.reshape(-1))


@case("add", ["f32", "f16", "bf16", "i8", "b8", "u64", "c64"], [0, 1, 2, 3, 9])
def add(mem, dtype, arity):
    rng, n = rng_of(dtype, arity), 1003
    def data():
        return elements(dtype, n, rng) if dtype == "b8" else rng.integers(-20 if dtype[0] != "u" else 0, 20, n).astype(numpy_dtype(dtype))
    srcs = [mem.block(dtype, SIZE[dtype], n, k % 3, data) for k in range(arity)]
    y = mem.block(dtype, SIZE[dtype], n, 1)
    yield plan.add(dtype, n, [s.address for s in srcs], y.address)
    total = np.zeros(n, numpy_dtype(dtype))
    for s in srcs:
        total = total | s.read() if dtype == "b8" else (total + s.read()).astype(total.dtype)
    equal(y.read(), total)


@case("fill", [1, 2, 4, 8, 16], [0, 1, 3], [0, 1])
def fill(mem, size, offset, from_memory):
    rng, n = rng_of(size, offset), 5001
    value = rng.integers(0, 256, 16).astype(np.uint8)
    value[size:] = 0
    words = tuple(int(v) for v in value.view(np.uint64))
    v = mem.block("u8", size, 1, 0, lambda: value[:size])
    y = mem.block("u8", size, n, offset)
    yield plan.fill_memory(size, n, y.address, words, v.address if from_memory else 0)
    equal(y.read(), np.tile(value[:size], n))


@case("arange", ["i8", "u16", "i32", "i64", "f16", "bf16", "f32", "f64"], [0, 1])
def arange(mem, dtype, offset):
    n = 3001
    start, step = (0.5, 0.25) if dtype in FLOATS else (-7, 3)
    y = mem.block(dtype, SIZE[dtype], n, offset)
    yield plan.arange(dtype, n, y.address, start, step)
    exact = start + np.arange(n) * step
    with np.errstate(all="ignore"):
        equal(y.read(), exact.astype(np.float64 if dtype in FLOATS else np.int64).astype(numpy_dtype(dtype)))


PERMUTES = [((130, 70), (1, 0)), ((128, 256), (1, 0)), ((3, 64, 65), (0, 2, 1)), ((5, 3, 40, 41), (0, 2, 3, 1)),
            ((7, 11, 13, 17, 9), (4, 2, 0, 3, 1)), ((4, 6, 100, 64), (0, 2, 1, 3)), ((2, 3, 4, 5, 6, 7), (5, 4, 3, 2, 1, 0)),
            ((33, 1, 129), (2, 1, 0)), ((2, 3, 2, 3, 2, 3, 2, 3), (7, 0, 6, 1, 5, 2, 4, 3)), ((300, 2), (1, 0)), ((2, 301), (1, 0)),
            ((12, 9, 6, 20), (3, 1, 0, 2)), ((17, 200, 5), (1, 2, 0)), ((1000, 33), (1, 0))]


@case("permute", range(len(PERMUTES)), [1, 2, 4, 8, 16], [0, 1], ["auto", "blocks", "tiles"])
def permute(mem, which, size, offset, force):
    shape, perm = PERMUTES[which]
    rng, n = rng_of(which, size, offset), int(np.prod(shape))
    x = mem.block("u8", size, n, offset, lambda: raw(size, n, rng))
    y = mem.block("u8", size, n, 0)
    yield plan.permute(size, shape, perm, x.address, y.address, force)
    expected = x.read().reshape([*shape, size]).transpose([*perm, len(shape)])
    same_bytes(y.read(), expected)


@case("copy_nd", [1, 2, 4, 8, 16], range(3))
def copy_nd(mem, size, which):
    src, dst, at, to, box = [((9, 20, 33), (8, 22, 30), (1, 3, 5), (0, 2, 4), (7, 15, 21)), ((64, 64), (64, 64), (0, 0), (0, 32), (64, 32)), ((1000,), (999,), (7,), (3,), (900,))][which]
    rng, n, m = rng_of(size, which), int(np.prod(src)), int(np.prod(dst))
    x = mem.block("u8", size, n, 0, lambda: raw(size, n, rng))
    y = mem.block("u8", size, m, 1, lambda: np.zeros(m * size, np.uint8))
    ss, ds = plan.contiguous(src), plan.contiguous(dst)
    begin = lambda strides, pos: sum(s * p for s, p in zip(strides, pos)) * size
    yield plan.copy(size, box, ss, ds, x.address + begin(ss, at), y.address + begin(ds, to))
    expected = np.zeros([*dst, size], np.uint8)
    cut = lambda pos: tuple(slice(p, p + b) for p, b in zip(pos, box))
    expected[cut(to)] = x.read().reshape([*src, size])[cut(at)]
    same_bytes(y.read(), expected)


@case("strided_copy_negative", [2, 4])
def strided_negative(mem, size):
    rng, n = rng_of(size), 40 * 30
    x = mem.block("u8", size, n, 0, lambda: raw(size, n, rng))
    y = mem.block("u8", size, n, 0)
    yield plan.copy(size, [40, 30], [-30, 1], [30, 1], x.address + 39 * 30 * size, y.address)
    same_bytes(y.read(), x.read().reshape(40, 30, size)[::-1])


@case("pad", [1, 2, 4, 8, 16], range(4), [0, 1])
def pad(mem, size, which, offset):
    dims, before, after = [((5, 22, 22), (0, 1, 1), (0, 1, 1)), ((4, 7, 33), (1, -2, 3), (2, -1, -4)), ((64,), (0,), (64,)), ((3, 4, 16), (2, 0, 16), (0, 0, 0))][which]
    rng, n = rng_of(size, which), int(np.prod(dims))
    value = rng.integers(0, 256, 16).astype(np.uint8)
    out = [d + b + a for d, b, a in zip(dims, before, after)]
    x = mem.block("u8", size, n, offset, lambda: raw(size, n, rng))
    y = mem.block("u8", size, int(np.prod(out)), offset)
    yield plan.pad(size, dims, before, after, tuple(int(v) for v in value.view(np.uint64)), x.address, y.address)
    src = x.read().reshape([*dims, size])
    for axis, (b, a) in enumerate(zip(before, after)):
        src = src.take(range(max(0, -b), src.shape[axis] - max(0, -a)), axis)
    expected = np.empty([*out, size], np.uint8)
    expected[...] = value[:size]
    expected[tuple(slice(max(0, b), max(0, b) + s) for b, s in zip(before, src.shape))] = src
    same_bytes(y.read(), expected)


def error_slot(mem):
    return mem.block("u8", 1, 24, 0, lambda: np.array([0, (1 << 64) - 1, 0], np.uint64).view(np.uint8))


@case("gather", ["wrap", "zero", "error"], ["i32", "i64"], [(1, 7), (2, 64), (4, 192), (1, 768), (8, 1), (16, 3)], [0, 1])
def gather(mem, mode, index, row, window):
    size, inner = row
    rng, (batch, outer, axis, n) = rng_of(mode, index, row, window), (3, 2, 50, 40)
    offset, processed = (20, 15) if window else (0, 50)
    low, high = {"wrap": (-50, 50), "zero": (-60, 60), "error": (0, 50)}[mode]
    i = mem.block(index, SIZE[index], batch * n, 0, lambda: rng.integers(low, high, batch * n).astype(numpy_dtype(index)))
    count = batch * outer * processed * inner
    x = mem.block("u8", size, count, 0, lambda: raw(size, count, rng))
    y = mem.block("u8", size, batch * outer * n * inner, 0)
    slot = error_slot(mem)
    yield plan.gather(mode, index, size, batch, outer, processed, inner, n, i.address, x.address, y.address, slot.address, offset, axis)
    src = x.read().reshape(batch, outer, processed, inner * size)
    expected = np.zeros((batch, outer, n, inner * size), np.uint8)
    for b, row in enumerate(i.read().reshape(batch, n)):
        for k, v in enumerate(row):
            v = v + axis if v < 0 and mode == "wrap" else v
            if 0 <= v < axis and 0 <= v - offset < processed:
                expected[b, :, k] = src[b, :, v - offset]
    same_bytes(y.read(), expected)
    assert slot.read().view(np.uint64)[1] == (1 << 64) - 1


# Rows narrower than a warp, of several groups of threads, of more columns than a block has threads, and of more than a
# block owns; next to no indices, and more than a block looks at together.
SCATTERS = [(1, 50, 3), (1, 50, 700), (3, 33, 700), (64, 40, 300), (300, 7, 40), (9001, 3, 20)]


@case("scatter_add", ["wrap", "zero", "error"], ["i32", "i64"], ["f32", "f64", "f16", "bf16", "u8", "u16", "i32", "u64", "c64", "c128"], SCATTERS, [0, 1])
def scatter_add(mem, mode, index, dtype, shape, window):
    inner, axis, n = shape
    rng, outer = rng_of("scatter_add", mode, index, dtype, shape, window), 2
    offset, processed = (axis // 3, axis // 2) if window else (0, axis)
    low, high = {"wrap": (-axis, axis), "zero": (-axis - 9, axis + 9), "error": (0, axis)}[mode]
    def data(count):
        if dtype[0] in "iu":
            return elements(dtype, count, rng)
        x = rng.normal(size=count) * 10 ** rng.uniform(-2, 2, count)
        return (x + 1j * rng.normal(size=count) if dtype[0] == "c" else x).astype(numpy_dtype(dtype))
    before = data(outer * processed * inner)
    i = mem.block(index, SIZE[index], n, 0, lambda: rng.integers(low, high, n).astype(numpy_dtype(index)))
    x = mem.block(dtype, SIZE[dtype], outer * n * inner, 1, lambda: data(outer * n * inner))
    y = mem.block(dtype, SIZE[dtype], before.size, 1, lambda: before)
    slot = error_slot(mem)
    yield plan.scatter_add(mode, index, dtype, outer, processed, inner, n, i.address, x.address, y.address, slot.address, offset, axis)
    # One addition after the other, as the indices come; halves are rounded once, at the end.
    wide = np.dtype(np.float32) if dtype in ("f16", "bf16") else before.dtype
    src, expected = x.read().reshape(outer, n, inner).astype(wide), before.reshape(outer, processed, inner).astype(wide)
    for k, v in enumerate(int(v) for v in i.read()):
        v = v + axis if v < 0 and mode == "wrap" else v
        if 0 <= v < axis and 0 <= v - offset < processed:
            expected[:, v - offset] += src[:, k]
    equal(y.read(), expected.reshape(-1).astype(before.dtype))
    assert slot.read().view(np.uint64)[1] == (1 << 64) - 1


@case("gather_refused", ["wrap", "error"], ["gather", "scatter_add", "one_hot", "nothing"])
def gather_refused(mem, mode, op):
    rng, n = rng_of(mode, op), 3000
    given = rng.integers(0, 50, n).astype(np.int32)
    given[[1234, 2000, 1233, 1999]] = [70, -99, 1 << 20, 51]
    i = mem.block("i32", 4, n, 0, lambda: given)
    x, y = mem.block("f32", 4, 50 * 8, 0, lambda: np.zeros(400, np.float32)), mem.block("f32", 4, n * 50)
    slot = error_slot(mem)
    if op == "one_hot":
        yield plan.one_hot(mode, "i32", 4, n, 50, (1, 0), (0, 0), i.address, y.address, slot.address)
    elif op == "scatter_add":
        yield plan.scatter_add(mode, "i32", "f32", 1, 50, 8, n, i.address, y.address, x.address, slot.address)
    else:
        yield plan.gather(mode, "i32", 4, 1, 1, 50, 8 if op == "gather" else 0, n, i.address, x.address, y.address, slot.address)
    lock_launch, position, value = slot.read().view(np.int64)
    assert (lock_launch >> 32, position, value) == (1, 1233, 1 << 20), slot.read().view(np.int64)


@case("one_hot", ["wrap", "zero"], ["i32", "i64"], [1, 2, 4, 8, 16], [1, 7, 1000])
def one_hot(mem, mode, index, size, depth):
    rng, n = rng_of(mode, index, size, depth), 77
    low, high = (-depth, depth) if mode == "wrap" else (-depth - 3, depth + 3)
    i = mem.block(index, SIZE[index], n, 0, lambda: rng.integers(low, high, n).astype(numpy_dtype(index)))
    on, off = rng.integers(1, 120), rng.integers(1, 120)
    y = mem.block("u8", size, n * depth, 0)
    yield plan.one_hot(mode, index, size, n, depth, (on, 0), (off, 0), i.address, y.address, error_slot(mem).address)
    expected = np.zeros((n, depth, size), np.uint8)
    expected[:, :, 0] = off
    for k, v in enumerate(i.read()):
        v = v + depth if v < 0 and mode == "wrap" else v
        if 0 <= v < depth:
            expected[k, v, 0] = on
    same_bytes(y.read(), expected)


# ---- Rows ------------------------------------------------------------------------------------------------------------

WIDTHS = [1, 2, 7, 31, 32, 33, 127, 128, 255, 512, 1000, 1023, 1024, 1025, 2048, 3001, 4096, 4097, 8192, 16384, 32768, 50257, 131072]
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


@case("norm", [0, 1], ["f32", "f16", "bf16", "f64"], WIDTHS, ["auto", "shifted", "wide", "bare"])
def norm(mem, rms, dtype, cols, how):
    rng, rows = rng_of(rms, dtype, cols), 7
    offset = 1 if how == "shifted" else 0
    x = mem.block(dtype, SIZE[dtype], rows * cols, offset, lambda: (rng.normal(size=rows * cols) + 3).astype(numpy_dtype(dtype)))
    g, b = [mem.block(dtype, SIZE[dtype], cols, k, lambda: rng.normal(size=cols).astype(numpy_dtype(dtype))) for k in (0, 1)]
    stats = "f64" if dtype == "f64" else "f32"
    y = mem.block(dtype, SIZE[dtype], rows * cols, offset)
    mean, rstd = mem.block(stats, SIZE[stats], rows, 0, lambda: np.zeros(rows, stats.replace("f", "float"))), mem.block(stats, SIZE[stats], rows)
    bare = how == "bare"
    yield plan.norm(rms, dtype, rows, cols, 1e-5, x.address, y.address, 0 if bare else g.address, 0 if bare or rms else b.address, 0 if rms else mean.address, rstd.address, force="wide" if how == "wide" else None)
    v = x.read().reshape(rows, cols).astype(np.float64)
    m = 0 if rms else v.mean(1, keepdims=True)
    r = 1 / np.sqrt(((v - m) ** 2).mean(1, keepdims=True) + 1e-5)
    expected = (v - m) * r
    if not bare:
        expected = expected * g.read().astype(np.float64)
        if not rms:
            expected = expected + b.read().astype(np.float64)
    work = min(EPS[dtype], 1.2e-7)
    # One column alone has a variance of 0, whose rounding epsilon's root enlarges.
    scale = 400 if cols < 3 else 8
    near(rstd.read(), r.reshape(-1), scale * 8 * work, 0, "rstd")
    if not rms:
        near(mean.read(), m.reshape(-1), 8 * work, 8 * work, "mean")
    near(y.read(), expected, EPS[dtype] + 8 * work, work * scale * 40, "y")


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
        wide = np.complex128 if src[0] == "c" else np.float64
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


def launches_of(generator):
    found = next(generator)
    return found if isinstance(found, list) else [found]


def main():
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    cases = {n: c for n, c in CASES.items() if wanted in n}
    specs, begin = [], time.time()
    for f, values in cases.values():
        specs += [launch.spec for launch in launches_of(f(Addresses(), *values))]
    device = Device()
    device.compile(specs, os.cpu_count())
    print(f"{len(device.cubins)} kernels compiled in {time.time() - begin:.0f} s", flush=True)
    for spec, log in device.failed:
        print("COMPILER", spec, log[:1500])
    failed, groups, begin = {}, {}, time.time()
    notes = {}
    for name, (f, values) in cases.items():
        groups.setdefault(name.split("/")[0], [0, 0])[0] += 1
        try:
            generator = f(Memory(), *values)
            device.launch(*launches_of(generator))
            import torch
            torch.cuda.synchronize()
            try:
                next(generator)
            except StopIteration as end:
                if end.value:
                    notes[name] = end.value
        except Exception as error:
            groups[name.split("/")[0]][1] += 1
            failed[name] = f"{type(error).__name__}: {str(error)[:400]}"
            if "driver error" in str(error) or "CUDA" in str(error):
                print("STOPPED", name, failed[name])
                if "driver error 7" in str(error) or "illegal" in str(error):
                    break
    print(f"run in {time.time() - begin:.0f} s")
    out = os.environ.get("OUT")
    if out:
        open(f"{out}/failed.txt", "w").write("\n".join(f"{n}: {e}" for n, e in failed.items()))
        open(f"{out}/notes.txt", "w").write("\n".join(f"{n}: {e}" for n, e in notes.items()))
    shown = {}
    for name, error in failed.items():
        group = name.split("/")[0]
        shown[group] = shown.get(group, 0) + 1
        if shown[group] <= 6:
            print("FAILED", name, error[:260])
    for group, (count, bad) in groups.items():
        print(f"{group}: {count - bad} of {count} passed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

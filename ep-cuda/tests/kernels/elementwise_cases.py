"""Cases of kernels that compute each element by itself."""
import numpy as np

import plan
import references as ref
from cases import ALL, FLOATS, INTS, SIZE, case, elements, equal, names, near, raw, rng_of
from memory import numpy_dtype


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


@case("unary_celu", FLOATS, [-1.0, -0.5, -0.003, 0.25, 1e6])
def unary_celu(mem, dtype, alpha):
    """Where e^(x/alpha) grows, and is infinite before the result is; where x/alpha is small."""
    rng, n = rng_of(dtype, alpha), 20011
    def data():
        high = dict(f16=11, f64=710).get(dtype, 89) * min(abs(alpha), 50)
        sizes = np.concatenate([rng.uniform(0, high, n // 2), 2.0 ** rng.uniform(-14, np.log2(high) + 1, n - n // 2)])
        return (sizes * np.where(rng.random(n) < 0.1, 1, -1)).astype(numpy_dtype(dtype))
    x, y = mem.block(dtype, SIZE[dtype], n, 0, data), mem.block(dtype, SIZE[dtype], n)
    yield plan.unary("celu", dtype, dtype, [n], x.address, y.address, attrs=(alpha, 0.0))
    with np.errstate(all="ignore"):
        given = x.read().astype(np.longdouble)
        # The attribute is of f64, whatever the dtype.
        expected = np.where(given > 0, given, alpha * np.expm1(given / alpha))
        errors = ref.ulps(dtype, y.read(), expected.astype(np.float64), numpy_dtype(dtype))
    assert errors.max() <= dict(f32=2.01, f64=4.0).get(dtype, 1.0), f"{errors.max():.2f} ulp at {given[np.argmax(errors)]}"
    return f"{errors.max():.2f} ulp"


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


# Where a first quotient, a square or a power leaves the range of normal numbers and the result does not.
ENDS = {
    "reciprocal_backward_with_dy_x": [("f32", 1025 * 2.0 ** -149, 3 * 2.0 ** -8), ("f64", 1025 * 2.0 ** -1074, 3 * 2.0 ** -8), ("f32", 1e-30, 1e-30),
                                      ("f64", 1e-300, 1e-200), ("f32", -1e-30, 1e19), ("f64", 1e300, -1e200)],
    "reciprocal_no_nan_backward_with_dy_x": [("f32", 1025 * 2.0 ** -149, 3 * 2.0 ** -8), ("f64", 1025 * 2.0 ** -1074, 3 * 2.0 ** -8)],
    "rsqrt_backward_with_dy_x": [("f32", 1e-10, 1.3e-26), ("f32", 1e-20, 2e-26)],
    "acosh_backward_with_dy_x": [("f32", 1e20, 3e19), ("f64", 1e200, 3e160)],
    "asinh_backward_with_dy_x": [("f32", 1e20, -3e19), ("f64", 1e200, 3e160)],
    "exp2_backward_with_dy_x": [("f32", 1e-10, 128.25), ("f64", 1e-10, 1024.25)],
    "erf_backward_with_dy_x": [("f32", 1.0, 8.7), ("f32", -3.0, -9.25), ("f64", 1.0, 25.5)],
    "log2_backward_with_dy_x": [("f32", 1e-20, 4.5e-39)],
    "zeta": [("f64", 200.0, 40.0), ("f64", 64.0, 1e5), ("f64", 196.0, 41.25), ("f64", 1040.0, 2.0), ("f64", 20.0, 3e16), ("f64", 120.0, 450.0)],
    "pow": [("f64", 0.7390512737125242, -1906.2199892910503), ("f64", 1.0001, -7e6), ("f64", 3.7, -560.0)],
}


@case("ends", ENDS, ["f32", "f64"])
def ends(mem, op, dtype):
    import mpmath

    points = [p[1:] for p in ENDS[op] if p[0] == dtype] or [(3.0, 2.0)]
    kind, n = numpy_dtype(dtype), len(points)
    x = mem.block(dtype, SIZE[dtype], n, 0, lambda: np.array([p[0] for p in points], kind))
    y = mem.block(dtype, SIZE[dtype], n, 0, lambda: np.array([p[1] for p in points], kind))
    z = mem.block(dtype, SIZE[dtype], n)
    yield plan.binary(op, dtype, dtype, [[n], [n]], [x.address, y.address], z.address)
    mpmath.mp.prec = 200
    m = mpmath.mpf
    exact = dict(
        reciprocal=lambda a, b: -a / b ** 2, reciprocal_no_nan=lambda a, b: -a / b ** 2, rsqrt=lambda a, b: -a / (2 * b * mpmath.sqrt(b)),
        acosh=lambda a, b: a / mpmath.sqrt(b * b - 1), asinh=lambda a, b: a / mpmath.sqrt(b * b + 1),
        exp2=lambda a, b: a * m(2) ** b * mpmath.log(2), erf=lambda a, b: a * 2 / mpmath.sqrt(mpmath.pi) * mpmath.exp(-b * b),
        log2=lambda a, b: a / (b * mpmath.log(2)), zeta=lambda a, b: mpmath.zeta(a, b), pow=lambda a, b: a ** b)[op.split("_backward")[0]]
    found = z.read()
    for a, b, f in zip(x.read(), y.read(), found):
        truth = exact(m(float(a)), m(float(b)))
        least = (-149, -1074)[dtype == "f64"]
        unit = m(2) ** max(int(mpmath.floor(mpmath.log(abs(truth), 2))) - (23 if dtype == "f32" else 52), least)
        error = abs(m(float(f)) - truth) / unit if np.isfinite(f) else mpmath.inf
        assert error <= (16 if op == "zeta" else 4), f"f({a}, {b}) = {f}, not {mpmath.nstr(truth, 20)}: {mpmath.nstr(error, 4)} ulp"


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


BROADCASTS = [([4, 1, 9], [5, 9]), ([3, 64], [64]), ([3, 64], [3, 1]), ([1], [1025]), ([7, 33], [7, 1]), ([2, 3, 1, 5], [1, 4, 1]), ([8, 16, 32], [8, 1, 32]),
              ([5, 3, 41], [3, 41]), ([5, 3, 41], [41]), ([7, 123], [7, 1]), ([2, 5, 67], [5, 1]), ([3, 2, 1, 37], [2, 4, 1]),
              ([300, 201], [201]), ([300, 201], [300, 1]), ([77, 65], [1, 65]), ([900, 15], [15]), ([900, 3], [900, 1]), ([30, 1, 7], [5, 7]), ([2, 3, 2, 1, 2, 5], [3, 1, 2, 2, 5]),
              ([9, 1001], [1001]), ([1, 501], [40, 501])]


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


@case("where", ["b8", "i32"], [1, 2, 4, 8, 16], range(5))
def where(mem, cond, size, which):
    rng = rng_of(cond, size, which)
    shapes = [([6, 1], [6, 35], [35]), ([999], [999], [999]), ([300, 1], [300, 201], [201]), ([300, 9], [300, 1], [9]), ([4, 1, 5], [3, 5], [4, 3, 1])][which]
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

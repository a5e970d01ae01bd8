"""Ops over rows and axes, and matrix products: exact by mpmath, and compared with PyTorch."""

import cmath
import math

import numpy as np
import torch
from mpmath import mp, mpf

from arrays import capped, finite, total, wild
from formats import DTYPES, FLOATS, INF, INTS, NAN, PARTS, File, generator, int_range, limits, rounded, spread, wrap
from formats import SHAPES as FORMATS

TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64, "complex64": torch.complex64,
         "complex128": torch.complex128, "bool": torch.bool, "i8": torch.int8, "u8": torch.uint8, "i16": torch.int16, "i32": torch.int32,
         "i64": torch.int64}
# Relative errors that PyTorch's results may have.
CLOSE = {"f16": 4e-3, "bf16": 3e-2, "f32": 2e-5, "f64": 1e-11, "complex64": 2e-5, "complex128": 1e-11}


def agree(what, dtype, ours, theirs, scale=None):
    """PyTorch means the same: its result is near, relative to what was added up."""
    theirs = theirs.flatten().tolist()
    assert len(ours) == len(theirs), what
    for i, (a, b) in enumerate(zip(ours, theirs)):
        size = max(abs(a) if math.isfinite(abs(a)) else 0.0, scale[i] if scale else 0.0, 1e-2)
        same = a == b or a != a and b != b
        assert same or dtype in CLOSE and abs(a - b) <= CLOSE[dtype] * size, (what, i, a, b)


def lines(values, rows, cols, inner):
    return [[values[(r * cols + c) * inner + i] for c in range(cols)] for r in range(rows) for i in range(inner)]


def unlines(lines_, rows, cols, inner):
    return [lines_[r * inner + i][c] for r in range(rows) for c in range(cols) for i in range(inner)]


# rows, cols, inner (0 means 1)
SHAPES = [(5, 1, 0), (7, 3, 1), (9, 37, 0), (4, 130, 0), (2, 513, 0), (3, 19, 7), (2, 5, 33), (0, 4, 0), (3, 0, 0), (1, 1000, 0)]


def row_values(dtype, rng, shape):
    """Rows of several scales, some with special values."""
    rows, cols, inner = shape
    count = rows * cols * max(inner, 1)
    scale = rng.choice([1.0, 10.0, 0.01])
    values = [rounded(dtype, rng.gauss(0, 1) * scale) for _ in range(count)]
    if shape == (9, 37, 0):
        values[3] = -INF
        values[37 + 4] = NAN
        values[2 * 37 + 5] = INF
        values[3 * 37 : 4 * 37] = [-INF] * 37
        values[4 * 37 : 5 * 37] = [rounded(dtype, rng.uniform(-80, 80)) for _ in range(37)]
        values[5 * 37 : 6 * 37] = [rounded(dtype, 1000 + rng.uniform(-5, 5)) for _ in range(37)]
    return values


def softmax_line(x):
    if any(v != v or v == INF for v in x) or all(v == -INF for v in x):
        return [NAN] * len(x), [NAN] * len(x), [0.0] * len(x), [0.0] * len(x)
    top = max(x)
    powers = [mp.exp(mpf(v) - mpf(top)) if v != -INF else mpf(0) for v in x]
    total_ = mp.fsum(powers)
    soft = [p / total_ for p in powers]
    log = [mpf(v) - mpf(top) - mp.log(total_) if v != -INF else -INF for v in x]
    far = [min(top - v, 1e4) for v in x]
    # An error of the argument of exp is one of the result; the logarithm's are those of its terms.
    return soft, log, [float(s) * (1 + f / 4) for s, f in zip(soft, far)], [1 + f + float(mp.log(total_)) for f in far]


def softmaxes():
    for log in (False, True):
        file = File("log_softmax" if log else "softmax")
        for src in FLOATS:
            for dst in FLOATS:
                for shape in SHAPES if src == dst else SHAPES[2:6]:
                    rows, cols, inner = shape
                    x = row_values(src, generator("softmax", src, str(shape)), shape)
                    y = [softmax_line(line) for line in lines(x, rows, cols, max(inner, 1))]
                    both = [[rounded(dst, v) for v in line[log]] for line in y], [line[2 + log] for line in y]
                    want, scale = (unlines(part, rows, cols, max(inner, 1)) for part in both)
                    if src == dst:
                        f = torch.log_softmax if log else torch.softmax
                        agree(file.op, src, want, f(torch.tensor(x, dtype=TORCH[src]).reshape(rows, cols, max(inner, 1)), 1), scale)
                    file.add(dtypes={"src": src, "dst": dst}, sizes={"rows": rows, "cols": cols, "inner": inner}, reads=[("src", src, x)],
                             writes=[("dst", dst, want)], scales={"dst": scale})
        yield file


def softmax():
    return next(softmaxes())


def log_softmax():
    return list(softmaxes())[1]


def backward(name, f):
    file = File(name)
    for src in FLOATS:
        for dst in FLOATS:
            for shape in SHAPES if src == dst else SHAPES[2:6]:
                rows, cols, inner = shape
                inside = max(inner, 1)
                rng = generator(name, src, str(shape))
                x = [rng.gauss(0, 1) for _ in range(rows * cols * inside)]
                forward = [softmax_line(line)[name.startswith("log")] for line in lines(x, rows, cols, inside)]
                y = unlines([[rounded(src, v) for v in line] for line in forward], rows, cols, inside)
                dy = [rounded(src, rng.gauss(0, 2)) for _ in x]
                pairs = zip(lines(y, rows, cols, inside), lines(dy, rows, cols, inside))
                both = [f([mpf(v) for v in a], [mpf(v) for v in b]) for a, b in pairs]
                want = unlines([[rounded(dst, v) for v, _ in line] for line in both], rows, cols, inside)
                scale = unlines([[float(s) for _, s in line] for line in both], rows, cols, inside)
                if src == dst:
                    as_tensor = lambda v: torch.tensor(v, dtype=TORCH[src]).reshape(rows, cols, inside)
                    theirs = torch._log_softmax_backward_data if name.startswith("log") else torch._softmax_backward_data
                    agree(name, src, want, theirs(as_tensor(dy), as_tensor(y), 1, TORCH[src]), scale)
                file.add(dtypes={"src": src, "dst": dst}, sizes={"rows": rows, "cols": cols, "inner": inner},
                         reads=[("y", src, y), ("dy", src, dy)], writes=[("dx", dst, want)], scales={"dx": scale})
    return file


def softmax_backward():
    def line(y, dy):
        s, size = mp.fsum(a * b for a, b in zip(y, dy)), mp.fsum(abs(a * b) for a, b in zip(y, dy))
        return [((b - s) * a, (abs(b) + size) * abs(a)) for a, b in zip(y, dy)]

    return backward("softmax_backward", line)


def log_softmax_backward():
    def line(y, dy):
        s, size = mp.fsum(dy), mp.fsum(map(abs, dy))
        return [(b - mp.exp(a) * s, abs(b) + mp.exp(a) * size * (1 + abs(a) / 4)) for a, b in zip(y, dy)]

    return backward("log_softmax_backward", line)


NORMS = [(3, 1), (7, 5), (5, 64), (4, 257), (2, 1024), (0, 8), (6, 0), (3, 100)]
EPSILON = 2.0**-10


def norm_values(dtype, rng, rows, cols):
    values = [rounded(dtype, rng.gauss(0, 1)) for _ in range(rows * cols)]
    if (rows, cols) == (3, 100):
        # A mean far beyond the deviations; NaN; an infinity.
        values[:100] = [rounded(dtype, 10000 + rng.gauss(0, 20)) for _ in range(100)]
        values[150], values[250] = NAN, INF
    return values


def norm(name, optional, f, theirs):
    file = File(name)
    for dtype in FLOATS:
        stats = "f64" if dtype == "f64" else "f32"
        for rows, cols in NORMS:
            for given in (0, len(optional)):
                rng = generator(name, dtype, f"{rows}x{cols}")
                x = norm_values(dtype, rng, rows, cols)
                factors = [[rounded(dtype, rng.gauss(1, 0.5)) for _ in range(cols)] for _ in optional][:given]
                y, scale, found = [], [], []
                if cols == 0:
                    found = [[NAN] * {"layer_norm": 2, "rms_norm": 1}[name]] * rows
                for r in range(rows if cols else 0):
                    line, sizes, values = f([mpf(v) for v in x[r * cols : (r + 1) * cols]], [[mpf(v) for v in g] for g in factors])
                    y += [rounded(dtype, v) for v in line]
                    scale += [float(s) for s in sizes]
                    found.append([rounded(stats, v) for v in values])
                if rows and cols:
                    tensors = [torch.tensor(g, dtype=TORCH[dtype]) for g in factors] + [None] * (len(optional) - given)
                    agree(name, dtype, y, theirs(torch.tensor(x, dtype=TORCH[dtype]).reshape(rows, cols), cols, *tensors), scale)
                outputs = {"layer_norm": ["mean", "rstd"], "rms_norm": ["inv_rms"]}[name]
                # The mean's error is relative to the elements.
                spans = {"mean": [max(map(abs, x[r * cols : (r + 1) * cols])) if cols else 0.0 for r in range(len(found))]}
                file.add(dtypes={"data": dtype, "stats": stats}, attrs={"epsilon": EPSILON}, sizes={"rows": rows, "cols": cols},
                         reads=[("src", dtype, x)] + [(n, dtype, g) for n, g in zip(optional, factors)],
                         writes=[("dst", dtype, y)] + [(n, stats, [v[i] for v in found]) for i, n in enumerate(outputs)],
                         scales={"dst": scale} | ({"mean": spans["mean"]} if name == "layer_norm" else {}))
    return file


def layer_norm():
    def line(x, factors):
        gamma, beta = factors or ([mpf(1)] * len(x), [mpf(0)] * len(x))
        mean = sum(x) / len(x)
        rstd = 1 / mp.sqrt(sum((v - mean) ** 2 for v in x) / len(x) + mpf(EPSILON))
        if not mp.isfinite(mean):
            return [mp.nan] * len(x), [mpf(0)] * len(x), [mean, mp.nan]
        sizes = [(abs(v - mean) + abs(mean)) * rstd * abs(g) + abs(b) for v, g, b in zip(x, gamma, beta)]
        return [(v - mean) * rstd * g + b for v, g, b in zip(x, gamma, beta)], sizes, [mean, rstd]

    return norm("layer_norm", ["gamma", "beta"], line,
                lambda x, cols, g, b: torch.nn.functional.layer_norm(x, (cols,), g, b, EPSILON))


def rms_norm():
    def line(x, factors):
        weight = factors[0] if factors else [mpf(1)] * len(x)
        inverse = 1 / mp.sqrt(sum(v * v for v in x) / len(x) + mpf(EPSILON))
        if any(mp.isinf(v) for v in x):
            inverse = mpf(0)
        zero = lambda v, g: math.copysign(0.0, v * g)
        y = [mp.nan if mp.isinf(v) or mp.isnan(inverse) else v * inverse * g if inverse else zero(v, g) for v, g in zip(x, weight)]
        return y, [abs(v) if mp.isfinite(v) else mpf(0) for v in y], [inverse]

    return norm("rms_norm", ["weight"], line, lambda x, cols, g: torch.nn.functional.rms_norm(x, (cols,), g, EPSILON))


# outer, reduced, inner
AXES = [(3, 1, 1), (5, 37, 1), (1, 513, 1), (4, 9, 6), (2, 33, 17), (3, 0, 2), (0, 4, 1), (1, 7, 65), (1, 1000, 1)]
# Short ones with any numbers, of which three cannot overflow.
WIDE = (41, 3, 49)


def reduce():
    file = File("reduce")
    for op, src, dst in reductions():
        for axes in AXES + [WIDE]:
            outer, reduced, inner = axes
            rng = generator("reduce", src, str(axes))
            below = FORMATS[PARTS.get(src, src)][2] - 2 if src in FLOATS or src in PARTS else None
            # Smaller ones would decide ties of others from beyond the bits of the references.
            x = wild(src, rng, outer * reduced * inner, -40 if below else None, below) if axes == WIDE else finite(src, rng, outer * reduced * inner)
            if axes == WIDE and src in PARTS:
                x = [z if cmath.isfinite(z) else complex(1, -2) for z in x]
            if src in FLOATS and axes == (4, 9, 6):
                x[10], x[60], x[70], x[71] = NAN, INF, -INF, 0.0
            if op == "prod" and src in FLOATS + list(PARTS):
                # Products of numbers near 1, so that long ones stay finite.
                near = [rounded(PARTS.get(src, src), math.copysign(2.0 ** rng.uniform(-0.3, 0.3), rng.random() - 0.3)) for _ in range(2 * len(x))]
                x = [complex(a, b / 8) for a, b in zip(near, near[len(x):])] if src in PARTS else near[: len(x)]
                x = [complex(rounded(PARTS[src], v.real), rounded(PARTS[src], v.imag)) if src in PARTS else v for v in x]
                if axes == WIDE and src in FLOATS:
                    for i in range(0, len(x), 37):
                        x[i] = (0.0, INF, NAN, -INF, -0.0)[i // 37 % 5]
            if op in ("any", "all") and (axes == WIDE or src not in FLOATS + list(PARTS)):
                rare = 0.3 if axes == WIDE else 0.1
                x = [v if rng.random() < rare and op == "any" or rng.random() < 0.97 and op == "all" else 0 for v in x]
            both = [combine(op, dst, line) for line in lines(x, outer, reduced, inner)]
            y, scale = [v for v, _ in both], [s for _, s in both]
            floats = dst in FLOATS or dst in PARTS
            theirs = torch_reduce(op, src, dst, x, axes)
            if theirs is not None:
                agree(f"reduce {op} {src}", dst, y, theirs, scale if floats else None)
            file.add(selectors={"op": op}, dtypes={"src": src, "dst": dst}, sizes=dict(zip(("outer", "reduced", "inner"), axes)),
                     reads=[("src", src, x)], writes=[("dst", dst, y)], scales={"dst": scale} if floats and op in ("sum", "mean", "prod") else {})
    return file


def reductions():
    for op in ("sum", "prod"):
        yield from ((op, d, d) for d in DTYPES if d != "bool")
        yield from ((op, d, "i64") for d in ["bool"] + INTS[:6])
        yield from ((op, d, "f32") for d in ("f16", "bf16"))
    yield from (("mean", d, d) for d in FLOATS + list(PARTS))
    yield from (("mean", d, "f32") for d in ("f16", "bf16"))
    for op in ("max", "min"):
        yield from ((op, d, d) for d in DTYPES if d not in PARTS)
    for op in ("any", "all"):
        yield from ((op, d, "bool") for d in DTYPES)


def combine(op, dst, x):
    """The value, and the size that errors are relative to."""
    if op in ("any", "all"):
        return int({"any": any, "all": all}[op](map(bool, x))), 0.0
    if op in ("max", "min"):
        if any(v != v for v in x):
            return NAN, 0.0
        empty = (-INF, INF) if dst in FLOATS else int_range(dst)
        return ({"max": max, "min": min}[op](x) if x else empty[op == "min"]), 0.0
    if dst not in FLOATS and dst not in PARTS:
        return wrap(dst, sum(x) if op == "sum" else math.prod(x)), 0.0
    if op == "prod":
        return product(dst, x)
    if dst in FLOATS and x and (not all(map(math.isfinite, x)) or not any(x)):
        # IEEE's, as it begins with the first: -0 where all are.
        return sum(x[1:], start=x[0]), 0.0
    if op == "mean" and not x:
        return (complex(NAN, NAN) if dst in PARTS else NAN), 0.0
    n = len(x) if op == "mean" else 1
    if dst in PARTS:
        re, im = mp.fsum(mpf(v.real) for v in x) / n, mp.fsum(mpf(v.imag) for v in x) / n
        return complex(rounded(PARTS[dst], re), rounded(PARTS[dst], im)), capped(dst, mp.fsum(abs(mp.mpc(v)) for v in x) / n)
    return rounded(dst, mp.fsum(map(mpf, x)) / n), capped(dst, mp.fsum(abs(mpf(v)) for v in x) / n)


def product(dst, x):
    if dst in PARTS:
        y = mp.mpc(1)
        for v in x:
            y *= mp.mpc(v)
        return complex(rounded(PARTS[dst], y.real), rounded(PARTS[dst], y.imag)), float(abs(y)) * (1 + len(x) / 8)
    if not all(map(math.isfinite, x)) or 0 in x:
        return float(math.prod(x)), 0.0
    y = mp.mpf(1)
    for v in x:
        y *= mpf(v)
    return rounded(dst, y), abs(float(y)) * (1 + len(x) / 8)


def torch_reduce(op, src, dst, x, axes):
    if src not in TORCH or axes[1] == 0 and op in ("max", "min") or op in ("max", "min") and src in PARTS:
        return None
    t = torch.tensor(x, dtype=TORCH[src]).reshape(axes)
    if op in ("sum", "prod", "mean"):
        return getattr(torch, op)(t, 1, dtype=TORCH[dst])
    if op in ("any", "all"):
        return getattr(torch, op)(t, 1).int()
    return getattr(torch, "a" + op)(t, 1).int() if src == "bool" else getattr(torch, "a" + op)(t, 1)


def arg_reduce():
    file = File("arg_reduce")
    for src in DTYPES:
        if src in PARTS:
            continue
        for op in ("argmax", "argmin"):
            for axes in AXES + [WIDE]:
                outer, reduced, inner = axes
                x = (wild if axes == WIDE else finite)(src, generator("arg", src, str(axes)), outer * reduced * inner)
                if reduced > 5 and src in FLOATS:
                    for at, v in ((3, NAN), (5, NAN), (7, INF), (40, -INF), (41, 0.0), (42, -0.0), (100, NAN)):
                        if at < len(x):
                            x[at] = v
                rng = generator("ties", src, str(axes))
                for i in range(0, len(x), 3):
                    x[i] = x[rng.randrange(len(x))]
                for dst in ("i32", "i64"):
                    sizes = dict(zip(("outer", "reduced", "inner"), axes))
                    if reduced == 0:
                        file.add(selectors={"op": op}, dtypes={"src": src, "dst": dst}, sizes=sizes, reads=[("src", src, [])],
                                 writes=[("dst", dst, [0] * (outer * inner))], error=True)
                        continue
                    y = [first(op, line) for line in lines(x, outer, reduced, inner)]
                    if src in FLOATS and outer:
                        # NumPy takes the first, and the first NaN before all.
                        theirs = getattr(np, op)(np.array(x, np.float64).reshape(axes), axis=1)
                        assert y == theirs.ravel().tolist(), (op, src, axes)
                    file.add(selectors={"op": op}, dtypes={"src": src, "dst": dst}, sizes=sizes, reads=[("src", src, x)], writes=[("dst", dst, y)])
    return file


def first(op, x):
    for i, v in enumerate(x):
        if v != v:
            return i
    return x.index((max if op == "argmax" else min)(x))


def exact(dtype, values, shape):
    if dtype in INTS:
        return np.array(values + [None], object)[:-1].reshape(shape)
    kind = (lambda v: mp.mpc(v)) if dtype in PARTS else mpf
    return np.array([kind(v) for v in values] + [None], object)[:-1].reshape(shape)


FACTORS = {"ints": [(None, None), (2, -3), (0, 1), (-1, None)], "floats": [(None, None), (0.5, -2.0), (0.0, 1.0), (1.25, None)],
           "complex": [(None, None), (complex(0.5, -1), complex(0, 2)), (complex(0, 1), None)]}


def factors_of(dtype):
    if dtype[0] == "u":
        return [(None, None), (2, 3), (0, 1), (5, None)]
    return FACTORS["ints" if dtype in INTS else "complex" if dtype in PARTS else "floats"]


def finished(dtype, product_, size, old, alpha, beta):
    """alpha * product + beta * old, and the size of what was added."""
    alpha, beta = (1 if alpha is None else alpha), (0 if beta is None else beta)
    if dtype in INTS:
        return wrap(dtype, alpha * product_ + beta * old), 0.0
    kind = mp.mpc if dtype in PARTS else mpf
    if dtype in FLOATS and not mp.isfinite(product_):
        # A factor that is not given is none.
        return rounded(dtype, product_), 0.0
    y = kind(alpha) * product_ + kind(beta) * kind(old)
    scale = float(abs(kind(alpha)) * size + abs(kind(beta) * kind(old)))
    if dtype in PARTS:
        return complex(rounded(PARTS[dtype], y.real), rounded(PARTS[dtype], y.imag)), scale
    return rounded(dtype, y), scale


def plain(dtype, values, shape, trans):
    """The factor as it enters the product: transposed, and conjugated with it."""
    x = exact(dtype, values, shape)
    if trans:
        x = np.swapaxes(x, -1, -2)
        if dtype in PARTS:
            x = np.frompyfunc(mp.conj, 1, 1)(x)
    return x


def contract(a, b):
    """The matrix product over broadcast batches, and that of the absolute values."""
    if 0 in a.shape or 0 in b.shape:
        shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + (a.shape[-2], b.shape[-1])
        zero = np.empty(shape, object)
        zero.fill(0)
        return zero, zero
    return np.matmul(a, b), np.matmul(np.frompyfunc(abs, 1, 1)(a), np.frompyfunc(abs, 1, 1)(b))


def launch_product(file, op, dtype, shapes, trans, sizes, dims, seed, ab, special=False):
    """shapes: of a and b as stored and of c; batch dimensions that c lacks or has as 1 are summed."""
    alpha, beta = ab
    rng = generator(op, dtype, str(seed))
    a_values, b_values, c_values = (finite(dtype, rng, math.prod(s)) for s in shapes)
    if special and dtype in FLOATS:
        tiny, normal, _ = limits(dtype)
        for i, v in ((3, NAN), (20, INF), (30, -INF), (40, 0.0), (50, tiny), (61, -normal), (72, -0.0)):
            a_values[i] = v
        for i, v in ((4, -INF), (21, NAN), (33, 0.0), (45, -tiny)):
            b_values[i] = v
    a, b = plain(dtype, a_values, shapes[0], trans[0]), plain(dtype, b_values, shapes[1], trans[1])
    y, size = contract(a, b)
    target = (1,) * (y.ndim - len(shapes[2])) + tuple(shapes[2])
    y, size = (t.reshape((1,) * (len(target) - t.ndim) + t.shape) for t in (y, size))
    for axis in range(y.ndim - 2):
        if target[axis] == 1 and y.shape[axis] != 1:
            y, size = (np.add.reduce(t, axis=axis, keepdims=True) if t.shape[axis] else np.zeros_like(t, shape=target) for t in (y, size))
    both = [finished(dtype, p, s, o, alpha, beta) for p, s, o in zip(y.ravel(), size.ravel(), c_values)]
    want, scale = [v for v, _ in both], [s for _, s in both]
    if dtype in CLOSE and y.size and 0 not in y.shape + a.shape:
        as_tensor = lambda v, s: torch.tensor(v, dtype=TORCH[dtype]).reshape(tuple(s))
        ta, tb = as_tensor(a_values, shapes[0]), as_tensor(b_values, shapes[1])
        ta, tb = (t.mH if side else t for t, side in zip((ta, tb), trans))
        theirs = torch.matmul(ta, tb)
        theirs = theirs.reshape((1,) * (len(target) - theirs.ndim) + tuple(theirs.shape)).sum_to_size(target)
        theirs = theirs * (1 if alpha is None else alpha) + as_tensor(c_values, target) * (0 if beta is None else beta)
        agree(op, dtype, want, theirs, [4 * s for s in scale])
    reads = [("a", dtype, a_values), ("b", dtype, b_values)] + ([("c", dtype, c_values)] if beta else [])
    words = ["none", "transpose"]
    file.add(selectors={"transpose_a": words[trans[0]], "transpose_b": words[trans[1]]}, dtypes={"data": dtype}, sizes=sizes, dims=dims,
             scalars={k: v for k, v in (("alpha", alpha), ("beta", beta)) if v is not None}, reads=reads, writes=[("c", dtype, want)],
             scales={"c": scale} if dtype not in INTS else {})


TRANSPOSES = [(0, 0), (0, 1), (1, 0), (1, 1)]


def stored(rows, cols, trans):
    return [cols, rows] if trans else [rows, cols]


def wide(file, op, dtype, named):
    """A product of 41 and 29 for each transposition, of the same values, floats with special ones."""
    for trans in TRANSPOSES:
        shapes, sizes, dims = named(stored(41, 6, trans[0]), stored(6, 29, trans[1]))
        launch_product(file, op, dtype, shapes, trans, sizes, dims, "wide", (None, None), special=True)


def matmul():
    file = File("matmul")
    for dtype in INTS + FLOATS + list(PARTS):
        for i, (m, n, k) in enumerate([(1, 1, 1), (5, 7, 3), (16, 12, 9), (1, 33, 40), (37, 1, 21), (13, 35, 48), (3, 4, 0), (0, 5, 3), (19, 17, 70)]):
            for trans in TRANSPOSES[:: 3 if i in (3, 4, 5) else 1]:
                for ab in factors_of(dtype)[:: 1 if i in (1, 6) else 2][: 1 if i in (5, 8) else 4]:
                    shapes = stored(m, k, trans[0]), stored(k, n, trans[1]), [m, n]
                    launch_product(file, "matmul", dtype, shapes, trans, {"m": m, "n": n, "k": k}, {}, (i, trans), ab)
        wide(file, "matmul", dtype, lambda a, b: ((a, b, [41, 29]), {"m": 41, "n": 29, "k": 6}, {}))
    for dtype, ab in (("i32", (0.5, None)), ("f32", (complex(1, 1), None)), ("u8", (None, 0.25)), ("u8", (-1, None)), ("i8", (None, 128))):
        file.add(selectors={"transpose_a": "none", "transpose_b": "none"}, dtypes={"data": dtype}, sizes={"m": 1, "n": 1, "k": 1},
                 scalars={k: v for k, v in zip(("alpha", "beta"), ab) if v is not None},
                 reads=[(n, dtype, [1]) for n in "abc"], writes=[("c", dtype, [0])], error=True)
    return file


def batch_matmul():
    file = File("batch_matmul")
    for dtype in INTS + FLOATS + list(PARTS):
        for i, (batch, m, n, k) in enumerate([(3, 4, 5, 6), (7, 1, 9, 3), (2, 9, 19, 11), (0, 2, 2, 2), (4, 3, 1, 13), (2, 3, 3, 0)]):
            for trans in TRANSPOSES:
                for ab in factors_of(dtype)[: 2 if i < 2 else 1]:
                    shapes = [batch] + stored(m, k, trans[0]), [batch] + stored(k, n, trans[1]), [batch, m, n]
                    launch_product(file, "batch_matmul", dtype, shapes, trans, {"batch": batch, "m": m, "n": n, "k": k}, {}, (i, trans), ab)
        wide(file, "batch_matmul", dtype, lambda a, b: (([2] + a, [2] + b, [2, 41, 29]), {"batch": 2, "m": 41, "n": 29, "k": 6}, {}))
    return file


# Batch dimensions of a, b and c.
BATCHES = [([], [], []), ([3], [3], [3]), ([3], [], [3]), ([], [3], [3]), ([3], [3], []), ([3], [3], [1]), ([2, 3], [2, 3], [2, 1]), ([2, 3], [3], [2, 3]),
           ([2, 1], [1, 3], [2, 3]), ([2, 1], [1, 3], [1, 3]), ([2, 3], [], [1, 3]), ([4, 1, 2], [3, 1], [4, 3, 2]), ([0], [1], [1]), ([2], [2], [1, 2])]


def broadcast_matmul():
    file = File("broadcast_matmul")
    for dtype in INTS + FLOATS + list(PARTS):
        for i, (a, b, c) in enumerate(BATCHES):
            for m, n, k in ((3, 5, 4), (7, 1, 6), (1, 8, 5)) if i < 9 else ((3, 5, 4),):
                trans, ab = TRANSPOSES[i % 4], factors_of(dtype)[(i + m) % 3]
                shapes = a + stored(m, k, trans[0]), b + stored(k, n, trans[1]), c + [m, n]
                dims = dict(zip(("a_dims", "b_dims", "c_dims"), shapes))
                launch_product(file, "broadcast_matmul", dtype, shapes, trans, {}, dims, (i, m), ab)
        wide(file, "broadcast_matmul", dtype,
             lambda a, b: (([2] + a, b, [2, 41, 29]), {}, {"a_dims": [2] + a, "b_dims": b, "c_dims": [2, 41, 29]}))
    for a, b, c in (([2, 3], [4, 5], [2, 5]), ([2, 2, 3], [3, 3, 5], [2, 2, 5]), ([2, 3], [3, 5], [2, 2, 5]), ([3, 2, 3], [3, 5], [2, 2, 5])):
        file.add(selectors={"transpose_a": "none", "transpose_b": "none"}, dtypes={"data": "f32"}, dims={"a_dims": a, "b_dims": b, "c_dims": c},
                 reads=[("a", "f32", [1.0] * math.prod(a)), ("b", "f32", [1.0] * math.prod(b))], writes=[("c", "f32", [0.0] * math.prod(c))], error=True)
    return file


FILES = {f.__name__: f for f in (softmax, log_softmax, softmax_backward, log_softmax_backward, layer_norm, rms_norm, reduce, arg_reduce, matmul,
                                 batch_matmul, broadcast_matmul)}

"""Ops that move elements, make them, or add them up by position. NumPy and PyTorch say where elements go."""

import math

import numpy as np
import torch
from mpmath import mp, mpf

from formats import (DTYPES, FLOATS, INF, INTS, NAN, PARTS, SHAPES, File, generator, limits, rounded, specials,
                     spread, wrap)
from unary import ATTR, FUNCTIONS, cases, cast_points, cast_value, golden, int_points

SEED = 11


def storage(dtype):
    """NumPy's type of as many bytes."""
    return np.dtype({1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "V16"}[DTYPES[dtype][1]])


def raw(dtype, shape, rng):
    """Any bits, but of bool."""
    count = int(np.prod(shape, dtype=np.int64))
    data = rng.integers(0, 2, count, dtype=np.uint8) if dtype == "bool" else rng.bytes(count * DTYPES[dtype][1])
    return np.frombuffer(bytes(data), storage(dtype)).reshape(shape)


# One dtype of each width.
WHOLE = ("u8", "f16", "f32", "f64", "complex128")


def fewer(dtype, cases, count):
    """All cases for one dtype of each width, and the first ones for the others, which move alike."""
    return cases if dtype in WHOLE else cases[:count]


def content(array):
    return np.ascontiguousarray(array).tobytes()


def element(dtype, value, kind):
    """A scalar as an element, as `fill` converts it."""
    from formats import encode

    return np.frombuffer(encode(dtype, cast_value(value, kind, dtype)), storage(dtype))[0]


def finite(dtype, rng, count):
    """Everyday values: small integers for integer dtypes, floats over a few binades."""
    if dtype in PARTS:
        re, im = finite(PARTS[dtype], rng, count), finite(PARTS[dtype], rng, count)
        return [complex(a, b) for a, b in zip(re, im)]
    if dtype in FLOATS:
        return [rounded(dtype, spread(dtype, rng, -4, 4)) for _ in range(count)]
    return int_points(dtype, rng, count + 13)[:count] if dtype != "bool" else [rng.randrange(2) for _ in range(count)]


def wild(dtype, rng, count, above=None, below=None):
    """Special values, and numbers of any size (between two powers of 2) and of everyday size; for integers everyday
    ones."""
    if dtype in PARTS:
        re, im = (wild(PARTS[dtype], rng, count, above, below) for _ in range(2))
        return [complex(a, b) for a, b in zip(re, im)]
    if dtype not in FLOATS:
        return finite(dtype, rng, count)
    out = [x for x in specials(dtype) if below is None or not math.isfinite(x) or abs(x) < 2.0**below]
    while len(out) < count:
        out.append(rounded(dtype, spread(dtype, rng, above, below) if rng.random() < 0.4 else spread(dtype, rng, -4, 4)))
    rng.shuffle(out)
    return out[:count]


def capped(dtype, size):
    """A size that what stores it can hold."""
    return min(float(size), limits("f64" if PARTS.get(dtype, dtype) == "f64" else "f32")[2])


def total(dtype, terms):
    """The exact sum, rounded once, and the size of what was added."""
    if dtype in PARTS:
        (re, a), (im, b) = (total(PARTS[dtype], part) for part in ([z.real for z in terms], [z.imag for z in terms]))
        return complex(re, im), capped(dtype, a + b)
    if dtype in FLOATS:
        if not all(map(math.isfinite, terms)) or terms and not any(terms):
            # IEEE's: NaN, infinities, and a sum of zeros, which is -0 where all of them are.
            first, *rest = terms
            return sum(rest, start=first), 0.0
        return rounded(dtype, mp.fsum(map(mpf, terms))), capped(dtype, mp.fsum(abs(mpf(x)) for x in terms))
    x = sum(terms)
    return (int(x != 0), 0.0) if dtype == "bool" else (wrap(dtype, x), 0.0)


def add():
    file = File("add")
    for dtype in DTYPES:
        for arity, count in ((0, 5), (1, 33), (2, 400), (3, 257), (7, 100), (12, 3), (2, 0)):
            rng = generator("add", dtype, str(arity))
            sources = [finite(dtype, rng, count) for _ in range(arity)]
            sums = [total(dtype, list(terms)) for terms in zip(*sources)] if sources else [total(dtype, [])] * count
            file.add(dtypes={"data": dtype}, sizes={"count": count}, reads=[("srcs", dtype, s) for s in sources],
                     writes=[("dst", dtype, [y for y, _ in sums])],
                     scales={"dst": [s for _, s in sums]} if dtype in FLOATS or dtype in PARTS else {})
        # Sums of two, which nothing on the way can make overflow: every pair of some special values, and any numbers.
        rng = generator("add", dtype, "wild")
        sources = [wild(dtype, rng, 2000) for _ in range(2)]
        if dtype in FLOATS:
            tiny, normal, largest = limits(dtype)
            few = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, tiny, -tiny, normal, largest, -largest]
            sources = [x + more for x, more in zip(sources, ([a for a in few for _ in few], few * len(few)))]
        sums = [total(dtype, list(terms)) for terms in zip(*sources)]
        file.add(dtypes={"data": dtype}, sizes={"count": len(sums)}, reads=[("srcs", dtype, s) for s in sources],
                 writes=[("dst", dtype, [y for y, _ in sums])],
                 scales={"dst": [s for _, s in sums]} if dtype in FLOATS or dtype in PARTS else {})
    return file


def tensor_fill():
    file, rng = File("tensor_fill"), np.random.default_rng(SEED)
    for dtype in DTYPES:
        for count in (0, 1, 37):
            x = raw(dtype, (1,), rng)
            file.add(dtypes={"data": dtype}, sizes={"count": count}, reads=[("src", dtype, content(x))],
                     writes=[("dst", dtype, content(np.repeat(x, count)))])
        for x in wild(dtype, generator("tensor_fill", dtype), 16):
            file.add(dtypes={"data": dtype}, sizes={"count": 131}, reads=[("src", dtype, [x])], writes=[("dst", dtype, [x] * 131)])
    return file


def arange():
    file = File("arange")
    for dtype in INTS + FLOATS:
        # The last ones pass the end of the dtype's range, integers more than once.
        past = (100, 3) if dtype in INTS else (limits(dtype)[2] * 0.75, limits(dtype)[2] / 4096)
        for start, step in ((None, None), (3, None), (-5, 7), (2.5, -0.5), (0.1, 0.1), (1e10, 1e6), (None, -3), past):
            if dtype in INTS and (isinstance(start, float) or isinstance(step, float)):
                continue
            count = 2000 if (start, step) == past else 300
            first, more = (0 if start is None else start), (1 if step is None else step)
            if dtype in INTS:
                y = [wrap(dtype, first + i * more) for i in range(count)]
                scales = {}
            else:
                y = [rounded(dtype, mp.fadd(mpf(first), mp.fmul(i, more, exact=True), exact=True)) for i in range(count)]
                scales = {"dst": [capped(dtype, abs(first) + abs(i * more)) for i in range(count)]}
            scalars = {k: v for k, v in (("start", start), ("step", step)) if v is not None}
            file.add(dtypes={"data": dtype}, sizes={"count": count}, scalars=scalars, writes=[("dst", dtype, y)], scales=scales)
        file.add(dtypes={"data": dtype}, sizes={"count": 0}, writes=[("dst", dtype, [])])
    big = 2**62
    file.add(dtypes={"data": "u64"}, sizes={"count": 9}, scalars={"start": big, "step": big},
             writes=[("dst", "u64", [wrap("u64", big + i * big) for i in range(9)])])
    return file


def memset():
    file = File("memset")
    for value, count in ((0, 7), (255, 65), (-1, 3), (513, 100), (-257, 9), (7.0, 5), (True, 4), (1, 0), (173, 2003)):
        file.add(sizes={"bytes": count}, selectors={}, scalars={"value": value}, writes=[("dst", "u8", [int(value) % 256] * count)])
    for value in (0.5, NAN, complex(1, 1)):
        file.add(sizes={"bytes": 3}, scalars={"value": value}, writes=[("dst", "u8", [0] * 3)], error=True)
    return file


def memcpy():
    file, rng = File("memcpy"), np.random.default_rng(SEED)
    for kind in ("auto", "host_to_device", "device_to_host", "device_to_device"):
        for count in (0, 1, 63, 64, 1000, 2003):
            x = raw("u8", (count,), rng)
            file.add(selectors={"kind": kind}, sizes={"bytes": count}, reads=[("src", "u8", content(x))],
                     writes=[("dst", "u8", content(x))])
    return file


def permute():
    file, rng = File("permute"), np.random.default_rng(SEED)
    cases = [([], []), ([7], [0]), ([3, 5], [1, 0]), ([17, 33], [1, 0]), ([1, 6], [1, 0]), ([2, 3, 9], [0, 2, 1]),
             ([7, 9, 4], [2, 1, 0]), ([3, 1, 2, 5], [3, 0, 2, 1]), ([2, 3, 4, 5], [0, 2, 3, 1]), ([2, 4, 5, 3], [0, 3, 1, 2]),
             ([2, 2, 3, 2, 2], [4, 1, 3, 0, 2]), ([2, 1, 2, 3, 1, 2, 2, 2], [7, 6, 5, 4, 3, 2, 1, 0]), ([3, 0, 2], [2, 0, 1]),
             ([5, 6, 7, 8], [2, 3, 0, 1]), ([40, 65], [1, 0]), ([4, 3, 2], [0, 1, 2])]
    for dtype in DTYPES:
        wide = [([7, 11, 15], [1, 2, 0])]
        for dims, permutation in fewer(dtype, cases + wide, 9) + wide * (dtype not in WHOLE):
            x = raw(dtype, dims, rng)
            file.add(dtypes={"data": dtype}, dims={"src_dims": dims, "permutation": permutation},
                     reads=[("src", dtype, content(x))], writes=[("dst", dtype, content(np.transpose(x, permutation)))])
    for permutation in ([0, 0], [1, 2]):
        file.add(dtypes={"data": "f32"}, dims={"src_dims": [2, 2], "permutation": permutation}, reads=[("src", "f32", [0.0] * 4)],
                 writes=[("dst", "f32", [0.0] * 4)], error=True)
    return file


def tiled(dtype, shape):
    """A few values again and again: what is written over."""
    few = np.frombuffer(content(raw(dtype, (7,), np.random.default_rng(3))), storage(dtype))
    return np.resize(few, shape)


def copy_nd():
    file, rng, more = File("copy_nd"), np.random.default_rng(SEED), np.random.default_rng(SEED + 1)
    cases = [([], [], [], [], []), ([10], [2], [7], [1], [5]), ([6, 9], [1, 3], [8, 7], [4, 0], [3, 5]),
             ([4, 5, 6], [0, 0, 0], [4, 5, 6], [0, 0, 0], [4, 5, 6]), ([3, 4, 5, 2], [1, 0, 2, 0], [2, 4, 3, 2], [0, 0, 0, 0], [2, 4, 3, 2]),
             ([8, 3], [2, 0], [5, 3], [1, 0], [4, 3]), ([2, 3], [0, 0], [4, 4], [1, 1], [0, 3])]
    for dtype in DTYPES:
        for dst_dims, dst_pos, src_dims, src_pos, extent in fewer(dtype, cases, 4):
            dst, src = raw(dtype, dst_dims, rng).copy(), raw(dtype, src_dims, rng)
            old = content(dst)
            dst[tuple(slice(p, p + e) for p, e in zip(dst_pos, extent))] = src[tuple(slice(p, p + e) for p, e in zip(src_pos, extent))]
            file.add(dtypes={"data": dtype}, dims={"dst_dims": dst_dims, "dst_pos": dst_pos, "src_dims": src_dims, "src_pos": src_pos,
                                                   "extent": extent},
                     reads=[("src", dtype, content(src)), ("dst", dtype, old)], writes=[("dst", dtype, content(dst))])
        dst, src = tiled(dtype, [47, 50]), raw(dtype, [45, 51], more)
        old = content(dst)
        dst[1:45, 2:49] = src[:44, 3:50]
        file.add(dtypes={"data": dtype}, dims={"dst_dims": [47, 50], "dst_pos": [1, 2], "src_dims": [45, 51], "src_pos": [0, 3], "extent": [44, 47]},
                 reads=[("src", dtype, content(src)), ("dst", dtype, old)], writes=[("dst", dtype, content(dst))])
    for dst_pos, src_pos in (([3], [0]), ([0], [3])):
        file.add(dtypes={"data": "f32"}, dims={"dst_dims": [5], "dst_pos": dst_pos, "src_dims": [5], "src_pos": src_pos, "extent": [3]},
                 reads=[("src", "f32", [0.0] * 5), ("dst", "f32", [0.0] * 5)], writes=[("dst", "f32", [0.0] * 5)], error=True)
    return file


def view(base, dims, strides, offset):
    return np.lib.stride_tricks.as_strided(base[offset:], dims, [s * base.itemsize for s in strides])


# dims, strides and offset of the source, of the destination.
STRIDED = [([], [], 2, [], 1), ([5], [2], 0, [1], 0), ([5], [-1], 4, [3], 2), ([4, 6], [6, 1], 0, [1, 4], 0), ([4, 6], [0, 1], 3, [6, 1], 0),
           ([3, 4, 5], [-20, 5, -1], 64, [1, 3, 12], 5), ([3, 4, 5], [0, 0, 0], 1, [40, 10, 2], 0), ([2, 3, 2, 2], [1, 2, 6, 12], 0, [12, 4, 2, 1], 0),
           ([4, 0, 3], [1, 1, 1], 0, [1, 1, 1], 0), ([2, 70], [140, 2], 1, [80, 1], 3), ([6, 1, 2], [2, 99, 1], 0, [4, 7, 2], 0)]


def reach(dims, strides, offset):
    if 0 in dims:
        return offset + 1
    return offset + 1 + sum((d - 1) * s for d, s in zip(dims, strides) if s > 0)


def frame(src_dtype, points_, dst_dtype):
    """Dims of all points (again and again if they are few), them column by column with gaps, and rows with gaps for
    the results."""
    rows = 50
    cols = -(-max(len(points_), 2000) // rows)
    x = [points_[0]] * ((rows + 3) * (cols - 1) + rows)
    for i in range(rows * cols):
        x[i // cols + i % cols * (rows + 3)] = points_[i % len(points_)]
    old = finite(dst_dtype, generator("frame", dst_dtype), 7) * ((rows * (cols + 2)) // 7 + 1)
    return [rows, cols], x, [1, rows + 3], old[: (rows - 1) * (cols + 2) + cols], [cols + 2, 1]


def framed(dims, x, src_strides, old, dst_strides, f):
    new = list(old)
    for r in range(dims[0]):
        for c in range(dims[1]):
            new[r * dst_strides[0] + c] = f(x[r + c * src_strides[1]])
    return new


def strided_copy():
    file, rng = File("strided_copy"), np.random.default_rng(SEED)
    for dtype in DTYPES:
        for dims, src_strides, src_offset, dst_strides, dst_offset in STRIDED:
            src = raw(dtype, (reach(dims, src_strides, src_offset),), rng)
            dst = raw(dtype, (reach(dims, dst_strides, dst_offset),), rng).copy()
            old = content(dst)
            if 0 not in dims:
                view(dst, dims, dst_strides, dst_offset)[...] = view(src, dims, src_strides, src_offset)
            strided(file, dims, dtype, src_strides, src_offset, content(src), dtype, dst_strides, dst_offset, old, content(dst))
    # Casting, by positions.
    for src_dtype in DTYPES:
        for dst_dtype in DTYPES:
            if src_dtype != dst_dtype:
                dims, src_strides, src_offset, dst_strides, dst_offset = STRIDED[5]
                x = finite(src_dtype, generator("strided", src_dtype), reach(dims, src_strides, src_offset))
                from_ = view(np.arange(len(x)), dims, src_strides, src_offset).ravel()
                old = finite(dst_dtype, generator("strided", dst_dtype), reach(dims, dst_strides, dst_offset))
                new = list(old)
                for i, j in zip(from_, view(np.arange(len(old)), dims, dst_strides, dst_offset).ravel()):
                    new[j] = cast_value(x[i], src_dtype, dst_dtype)
                strided(file, dims, src_dtype, src_strides, src_offset, x, dst_dtype, dst_strides, dst_offset, old, new)
            dims, x, src_strides, old, dst_strides = frame(src_dtype, cast_points(src_dtype, generator("cast", src_dtype)), dst_dtype)
            new = framed(dims, x, src_strides, old, dst_strides, lambda v: cast_value(v, src_dtype, dst_dtype))
            strided(file, dims, src_dtype, src_strides, 0, x, dst_dtype, dst_strides, 0, old, new)
    zeros = [0.0] * 64
    for dims, src_strides, dst_strides in (([3, 4], [4, 1], [1, 1]), ([3], [1], [0]), ([2, 3], [3, 1], [2, 1]), ([4], [-1], [1])):
        strided(file, dims, "f32", src_strides, 0, zeros, "f32", dst_strides, 0, zeros, zeros, error=True)
    return file


def strided(file, dims, src_dtype, src_strides, src_offset, src, dst_dtype, dst_strides, dst_offset, old, new, error=False):
    file.add(dtypes={"src": src_dtype, "dst": dst_dtype}, dims={"dims": dims, "src_strides": src_strides, "dst_strides": dst_strides},
             sizes={"src_offset": src_offset, "dst_offset": dst_offset}, reads=[("src", src_dtype, src), ("dst", dst_dtype, old)],
             writes=[("dst", dst_dtype, new)], error=error)


def broadcast_elementwise_unary():
    file, rng = File("broadcast_elementwise_unary"), np.random.default_rng(SEED)
    small = [([3, 4], [4, 1], [3, 4], [4, 1]), ([4], [1], [3, 4], [4, 1]), ([3, 1], [1, 1], [3, 4], [1, 3]), ([], [], [2, 3], [3, 1]),
             ([3, 4], [1, 3], [3, 4], [8, 2]), ([2, 1, 5], [5, 0, 1], [2, 3, 5], [15, 5, 1]), ([2, 3], [6, 2], [4, 2, 3], [6, 1, 2]), ([4], [0], [4], [1]),
             ([0, 3], [3, 1], [0, 3], [3, 1])]

    def launch(op, src_dtype, dst_dtype, case, src, old, new):
        src_dims, src_strides, dst_dims, dst_strides = case
        file.add(selectors={"op": op}, dtypes={"src": src_dtype, "dst": dst_dtype}, attrs={"attr0": ATTR[0], "attr1": ATTR[1]},
                 dims={"src_dims": src_dims, "src_strides": src_strides, "dst_dims": dst_dims, "dst_strides": dst_strides},
                 reads=[("src", src_dtype, src), ("dst", dst_dtype, old)], writes=[("dst", dst_dtype, new)])

    for dtype in DTYPES:
        for case in small:
            src_dims, src_strides, dst_dims, dst_strides = case
            src = raw(dtype, (reach(src_dims, src_strides, 0),), rng)
            dst = raw(dtype, (reach(dst_dims, dst_strides, 0),), rng).copy()
            old = content(dst)
            if 0 not in dst_dims:
                view(dst, dst_dims, dst_strides, 0)[...] = np.broadcast_to(view(src, src_dims, src_strides, 0), dst_dims)
            launch("identity", dtype, dtype, case, content(src), old, content(dst))

    def computed(op, src_dtype, dst_dtype, case, x, f):
        src_dims, src_strides, dst_dims, dst_strides = case
        old = finite(dst_dtype, generator("strided", dst_dtype), reach(dst_dims, dst_strides, 0))
        new = list(old)
        from_ = np.broadcast_to(view(np.arange(len(x)), src_dims, src_strides, 0), dst_dims).ravel()
        for i, j in zip(from_, view(np.arange(len(old)), dst_dims, dst_strides, 0).ravel()):
            new[j] = f(x[i])
        launch(op, src_dtype, dst_dtype, case, x, old, new)

    for case in small[:7]:
        count = reach(case[0], case[1], 0)
        for dtype in FLOATS:
            x = finite(dtype, generator("strided", dtype), count)
            for op in FUNCTIONS:
                computed(op, dtype, dtype, case, x, lambda v: golden(op, dtype, v))
        for src_dtype, dst_dtype in (("f32", "f16"), ("i32", "f32"), ("f64", "i8"), ("u8", "bool"), ("bf16", "complex64")):
            x = finite(src_dtype, generator("strided", src_dtype), count)
            computed("cast", src_dtype, dst_dtype, case, x, lambda v: cast_value(v, src_dtype, dst_dtype))
    for name, src_dtype, dst_dtype, points_, y in cases():
        dims, x, src_strides, old, dst_strides = frame(src_dtype, points_, dst_dtype)
        new, cols = list(old), dims[1]
        for i in range(dims[0] * cols):
            new[i // cols * dst_strides[0] + i % cols] = y[i % len(y)]
        launch(name, src_dtype, dst_dtype, (dims, src_strides, dims, dst_strides), x, old, new)
    for case in (([2], [1], [3], [1]), ([2, 3], [3, 1], [2, 3], [1, 1]), ([2, 2], [2, 1], [2], [1])):
        src_dims, src_strides, dst_dims, dst_strides = case
        file.add(selectors={"op": "identity"}, dtypes={"src": "f32", "dst": "f32"},
                 dims={"src_dims": src_dims, "src_strides": src_strides, "dst_dims": dst_dims, "dst_strides": dst_strides},
                 reads=[("src", "f32", [0.0] * 16), ("dst", "f32", [0.0] * 16)], writes=[("dst", "f32", [0.0] * 16)], error=True)
    return file


def where():
    file, rng, more = File("where"), np.random.default_rng(SEED), np.random.default_rng(SEED + 1)
    truth = more.integers(0, 2, (43, 47))
    shapes = [([2, 3], [2, 3], [2, 3]), ([2, 3], [3], [2, 1]), ([], [2, 2], []), ([3, 1, 4], [5, 1], [1, 1, 4]), ([4], [], []),
              ([], [], []), ([2, 0], [1], [2, 1]), ([65], [65], [65]), ([2, 1], [1, 67], [1]), ([3, 4, 1, 2], [4, 5, 1], [5, 2])]
    for dtype in DTYPES:
        for i, (cond_dims, x_dims, y_dims) in enumerate(fewer(dtype, shapes, 7)):
            for cond_dtype in ["bool"] + (INTS if i in (0, 3) else ["i32"] if i == 9 else []):
                cond = raw(cond_dtype, cond_dims, rng) * rng.integers(0, 2, cond_dims).astype(storage(cond_dtype))
                x, y = raw(dtype, x_dims, rng), raw(dtype, y_dims, rng)
                # By positions, as NumPy's `where` does not take every storage type.
                both = np.concatenate([x.ravel(), y.ravel()])
                at = np.where(np.asarray(cond) != 0, np.arange(x.size).reshape(x_dims), x.size + np.arange(y.size).reshape(y_dims))
                file.add(dtypes={"cond": cond_dtype, "data": dtype}, dims={"cond_dims": cond_dims, "x_dims": x_dims, "y_dims": y_dims},
                         reads=[("cond", cond_dtype, content(cond)), ("x", dtype, content(x)), ("y", dtype, content(y))],
                         writes=[("dst", dtype, content(both[at]))])
        x, y = raw(dtype, (43, 47), more), raw(dtype, (47,), more)
        picked = np.where(truth != 0, np.arange(x.size).reshape(x.shape), x.size + np.arange(y.size))
        for cond_dtype in ["bool"] + INTS:
            # Any number but 0 is true.
            few = np.random.default_rng(SEED).integers(1, 2 if cond_dtype == "bool" else 256, truth.shape)
            cond = (truth * few << 8 * (DTYPES[cond_dtype][1] - 1)).astype(storage(cond_dtype))
            file.add(dtypes={"cond": cond_dtype, "data": dtype}, dims={"cond_dims": [43, 47], "x_dims": [43, 47], "y_dims": [47]},
                     reads=[("cond", cond_dtype, content(cond)), ("x", dtype, content(x)), ("y", dtype, content(y))],
                     writes=[("dst", dtype, content(np.concatenate([x.ravel(), y])[picked]))])
    return file


def constant_pad():
    file, rng = File("constant_pad"), np.random.default_rng(SEED)
    cases = [([], [], []), ([5], [2], [3]), ([5], [-2], [1]), ([4, 6], [1, 1], [1, 1]), ([7, 9], [-1, 2], [3, -4]), ([3, 4, 5], [0, 2, 0], [0, 1, 0]),
             ([2, 3, 4, 5], [0, 0, 1, 1], [0, 0, 1, 1]), ([6, 8], [-3, -4], [-3, 2]), ([0, 3], [2, 0], [0, 1]), ([33, 65], [0, 3], [1, 0]), ([4], [-1], [-2])]
    values = [(0, "i64"), (15.0, "f64"), (-2, "i64"), (complex(1, -2), "complex128")]
    for dtype in DTYPES:
        wide = [([41, 45], [1, -2], [2, 5])] * (dtype not in WHOLE)
        for i, (dims, before, after) in enumerate(fewer(dtype, cases, 7) + wide):
            x = raw(dtype, dims, rng)
            pads = [p for b, a in reversed(list(zip(before, after))) for p in (b, a)]
            index = torch.arange(x.size).reshape(dims)
            at = torch.nn.functional.pad(index, pads, value=-1) if index.numel() else index.new_full(
                [d + b + a for d, b, a in zip(dims, before, after)], -1)
            value, kind = values[i % len(values)]
            # The pad value is the last of all elements: index -1.
            elements = np.concatenate([x.ravel(), [element(dtype, value, kind)]])
            file.add(dtypes={"data": dtype}, dims={"src_dims": dims, "padding_before": before, "padding_after": after}, scalars={"value": value},
                     reads=[("src", dtype, content(x))], writes=[("dst", dtype, content(elements[at.numpy()]))])
        x = raw(dtype, (3,), rng)
        file.add(dtypes={"data": dtype}, dims={"src_dims": [3], "padding_before": [1], "padding_after": [0]}, reads=[("src", dtype, content(x))],
                 writes=[("dst", dtype, bytes(DTYPES[dtype][1]) + content(x))])
    file.add(dtypes={"data": "f32"}, dims={"src_dims": [3], "padding_before": [-2], "padding_after": [-2]}, reads=[("src", "f32", [0.0] * 3)],
             writes=[("dst", "f32", [])], error=True)
    return file


# outer, processed, inner, num_indices, offset, size
WINDOWS = [(3, 7, 4, 5, 0, 0), (1, 9, 1, 20, 0, 0), (2, 5, 3, 8, 0, 5), (2, 4, 6, 12, 3, 11), (1, 4, 16, 30, 0, 9), (4, 6, 1, 70, 6, 12), (2, 3, 5, 0, 0, 0),
           (0, 3, 2, 4, 0, 0), (2, 33, 17, 21, 0, 0), (1, 30, 2, 40, 10, 70)]
# Small tables and many indices, for each mode and dtype of indices.
WIDE = (2, 9, 33, 31, 2, 13)
MODES = ["wrap", "zero", "error"]


def resolve(mode, index, offset, processed, size):
    """The place in the window, or None."""
    size = size or offset + processed
    if mode == "wrap" and index < 0:
        index += size
    return index - offset if offset <= index < min(offset + processed, size) else None


def draw(mode, rng, count, size):
    low, high = {"wrap": (-size, size), "zero": (-2 * size - 1, 3 * size + 2), "error": (0, size)}[mode]
    x = rng.integers(low, high, count)
    if mode == "zero" and count:
        x[0] = 2**31 - 1
    return x


def gather():
    file, rng = File("gather"), np.random.default_rng(SEED)
    for dtype in DTYPES:
        for i, (outer, processed, inner, n, offset, size) in enumerate(fewer(dtype, WINDOWS, 7)):
            mode, kind = MODES[i % 3], ("i32", "i64")[i // 2 % 2]
            logical = size or offset + processed
            indices = draw(mode, rng, n, logical)
            src = raw(dtype, (outer, processed, inner), rng)
            # The whole axis with what is outside of the window zero, and a zero row behind it.
            axis = np.zeros((outer, logical + 1, inner), storage(dtype))
            axis[:, offset : offset + processed] = src
            valid = np.where(indices < 0, indices + logical if mode == "wrap" else logical, indices)
            dst = np.take(axis, np.minimum(valid, logical), axis=1)
            record(file, mode, kind, dtype, (outer, processed, inner, n, offset, size), indices, src, dst)
        more = np.random.default_rng(SEED + 1)
        for mode in MODES:
            outer, processed, inner, n, offset, size = WIDE
            indices = draw(mode, more, n, size)
            src = raw(dtype, (outer, processed, inner), more)
            axis = np.zeros((outer, size + 1, inner), storage(dtype))
            axis[:, offset : offset + processed] = src
            valid = np.where(indices < 0, indices + size if mode == "wrap" else size, indices)
            dst = np.take(axis, np.minimum(valid, size), axis=1)
            for kind in ("i32", "i64"):
                record(file, mode, kind, dtype, WIDE, indices, src, dst)
    # PyTorch agrees where it has the op.
    src = torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(SEED))
    indices = torch.tensor([0, 6, 2, 2, 5])
    picked = torch.index_select(src, 1, indices)
    record(file, "error", "i64", "f32", (3, 7, 4, 5, 0, 0), indices.numpy(), src.numpy(), picked.numpy())
    for mode, index in (("error", -1), ("error", 7), ("wrap", 7), ("wrap", -8), ("error", 2**40), ("wrap", 2**32 + 1)):
        record(file, mode, "i64", "f32", (3, 7, 4, 2, 0, 0), np.array([1, index]), src.numpy(), picked[:, :2].numpy(), error=True)
    # A large index must not be cut to 32 bits.
    record(file, "zero", "i64", "f32", (3, 7, 4, 2, 0, 0), np.array([1, 2**32 + 1]), src.numpy(),
           np.stack([src.numpy()[:, 1], np.zeros((3, 4), np.float32)], 1))
    return file


def record(file, mode, kind, dtype, sizes, indices, src, dst, batch=None, error=False, old=None):
    outer, processed, inner, n, offset, size = sizes
    named = {"outer": outer, "processed": processed, "inner": inner, "num_indices": n, "offset": offset, "size": size}
    if batch is not None:
        named["batch"] = batch
    reads = [("indices", kind, [int(i) for i in indices.ravel()]), ("src", dtype, content(src))]
    if old is not None:
        reads.append(("dst", dtype, old))
    file.add(selectors={"mode": mode}, dtypes={"indices": kind, "data": dtype}, sizes=named, reads=reads, writes=[("dst", dtype, content(dst))],
             error=error)


def batch_gather():
    file, rng = File("batch_gather"), np.random.default_rng(SEED)
    for dtype in DTYPES:
        for i, (outer, processed, inner, n, offset, size) in enumerate(fewer(dtype, WINDOWS, 7)):
            mode, kind, batch = MODES[i % 3], ("i32", "i64")[i // 2 % 2], 1 + i % 4
            logical = size or offset + processed
            indices = draw(mode, rng, batch * n, logical).reshape(batch, n)
            src = raw(dtype, (batch, outer, processed, inner), rng)
            axis = np.zeros((batch, outer, logical + 1, inner), storage(dtype))
            axis[:, :, offset : offset + processed] = src
            valid = np.where(indices < 0, indices + logical if mode == "wrap" else logical, indices)
            dst = np.stack([np.take(axis[b], np.minimum(valid[b], logical), axis=1) for b in range(batch)])
            record(file, mode, kind, dtype, (outer, processed, inner, n, offset, size), indices, src, dst, batch=batch)
        more = np.random.default_rng(SEED + 1)
        for mode in MODES:
            outer, processed, inner, n, offset, size = WIDE
            indices = draw(mode, more, 2 * n, size).reshape(2, n)
            src = raw(dtype, (2, outer, processed, inner), more)
            axis = np.zeros((2, outer, size + 1, inner), storage(dtype))
            axis[:, :, offset : offset + processed] = src
            valid = np.where(indices < 0, indices + size if mode == "wrap" else size, indices)
            dst = np.stack([np.take(axis[b], np.minimum(valid[b], size), axis=1) for b in range(2)])
            for kind in ("i32", "i64"):
                record(file, mode, kind, dtype, WIDE, indices, src, dst, batch=2)
    src = np.zeros((2, 1, 3, 2), np.float32)
    record(file, "error", "i32", "f32", (1, 3, 2, 2, 0, 0), np.array([0, 1, 2, 3]), src, src[:, :, :2], batch=2, error=True)
    return file


def scatter_add():
    file = File("scatter_add")

    def launch(mode, kinds, dtype, sizes, indices, src, old):
        outer, processed, inner, n, offset, size = sizes
        terms = [[x] for x in old]
        for position, index in enumerate(indices):
            place = resolve(mode, int(index), offset, processed, size)
            if place is None:
                continue
            for o in range(outer):
                for k in range(inner):
                    terms[(o * processed + place) * inner + k].append(src[(o * n + position) * inner + k])
        sums = [total(dtype, t) for t in terms]
        named = dict(zip(("outer", "processed", "inner", "num_indices", "offset", "size"), sizes))
        for kind in kinds:
            file.add(selectors={"mode": mode}, dtypes={"indices": kind, "data": dtype}, sizes=named,
                     reads=[("indices", kind, [int(x) for x in indices]), ("src", dtype, src), ("dst", dtype, old)],
                     writes=[("dst", dtype, [y for y, _ in sums])],
                     scales={"dst": [s for _, s in sums]} if dtype in FLOATS or dtype in PARTS else {})

    for dtype in DTYPES:
        if dtype == "bool":
            continue
        for i, sizes in enumerate(fewer(dtype, WINDOWS, 7)):
            outer, processed, inner, n, offset, size = sizes
            mode, kind = MODES[i % 3], ("i32", "i64")[i // 2 % 2]
            rng = generator("scatter", dtype, str(i))
            indices = draw(mode, np.random.default_rng(i), n, size or offset + processed)
            src, old = finite(dtype, rng, outer * n * inner), finite(dtype, rng, outer * processed * inner)
            launch(mode, [kind], dtype, sizes, indices, src, old)
        # No place twice: sums of two of any numbers, which nothing on the way can make overflow.
        rng = generator("scatter", dtype, "wild")
        src, old = wild(dtype, rng, 2 * 33 * 31), wild(dtype, rng, 2 * 33 * 31)
        for mode in MODES:
            order = np.random.default_rng(SEED).permutation(40)[:31]
            if mode == "wrap":
                order = np.where(order % 3 == 0, order - 40, order)
            elif mode == "zero":
                order[::7] = [-1, 40, 2**31 - 1, -(2**31), 41]
            launch(mode, ["i32", "i64"], dtype, (2, 33, 31, 31, 4, 40), order, src, old)
    file.add(selectors={"mode": "wrap"}, dtypes={"indices": "i64", "data": "f32"},
             sizes={"outer": 1, "processed": 3, "inner": 1, "num_indices": 1}, reads=[("indices", "i64", [3]), ("src", "f32", [1.0]), ("dst", "f32", [0.0] * 3)],
             writes=[("dst", "f32", [0.0] * 3)], error=True)
    return file


def one_hot():
    file, rng = File("one_hot"), np.random.default_rng(SEED)
    # num_indices, depth, offset, size
    cases = [(6, 5, 0, 0), (20, 9, 0, 9), (11, 4, 3, 12), (0, 4, 0, 0), (33, 17, 0, 0), (3, 0, 0, 4), (40, 6, 2, 8)]
    for dtype in DTYPES:
        for i, (n, depth, offset, size) in enumerate(cases):
            for on, off in ((None, None), (7, -3), (0.5, 2.5)):
                mode, kind = MODES[i % 3], ("i32", "i64")[i // 2 % 2]
                classes = size or offset + depth
                indices = draw(mode, rng, n, classes)
                named = [torch.tensor(int(x) + (classes if mode == "wrap" and x < 0 else 0)) for x in indices]
                rows = [torch.nn.functional.one_hot(x, classes) if 0 <= x < classes else torch.zeros(classes, dtype=torch.int64) for x in named]
                hot = torch.stack(rows).numpy()[:, offset : offset + depth] if rows else np.zeros((0, depth), np.int64)
                kinds = ["i64" if isinstance(v, (int, type(None))) else "f64" for v in (on, off)]
                values = [cast_value(d if v is None else v, k, dtype) for v, k, d in zip((on, off), kinds, (1, 0))]
                file.add(selectors={"mode": mode}, dtypes={"indices": kind, "data": dtype},
                         sizes={"num_indices": n, "depth": depth, "offset": offset, "size": size},
                         scalars={k: v for k, v in (("on", on), ("off", off)) if v is not None},
                         reads=[("indices", kind, [int(x) for x in indices])], writes=[("dst", dtype, [values[0] if h else values[1] for h in hot.ravel()])])
        more = np.random.default_rng(SEED + 1)
        for mode in MODES:
            indices = draw(mode, more, 120, 20)
            at = [(int(x) + (20 if mode == "wrap" and x < 0 else 0)) - 2 for x in indices]
            values = [cast_value(v, "f64", dtype) for v in (-1.5, 3.25)]
            for kind in ("i32", "i64"):
                file.add(selectors={"mode": mode}, dtypes={"indices": kind, "data": dtype},
                         sizes={"num_indices": 120, "depth": 17, "offset": 2, "size": 20}, scalars={"on": -1.5, "off": 3.25},
                         reads=[("indices", kind, [int(x) for x in indices])],
                         writes=[("dst", dtype, [values[k != x] for x in at for k in range(17)])])
    for mode, index in (("error", 5), ("error", -1), ("wrap", -6)):
        file.add(selectors={"mode": mode}, dtypes={"indices": "i32", "data": "f32"}, sizes={"num_indices": 1, "depth": 5},
                 reads=[("indices", "i32", [index])], writes=[("dst", "f32", [0.0] * 5)], error=True)
    return file


FILES = {f.__name__: f for f in (add, tensor_fill, arange, memset, memcpy, permute, copy_nd, strided_copy, broadcast_elementwise_unary, where,
                                 constant_pad, gather, batch_gather, scatter_add, one_hot)}

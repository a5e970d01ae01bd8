"""Cases of kernels that move elements or make them, with indices too."""
import numpy as np

import plan
from cases import FLOATS, SIZE, case, elements, equal, raw, rng_of, same_bytes
from memory import numpy_dtype


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
            ((12, 9, 6, 20), (3, 1, 0, 2)), ((17, 200, 5), (1, 2, 0)), ((1000, 33), (1, 0)),
            ((5, 3, 208), (0, 2, 1)), ((7, 208, 3), (0, 2, 1)), ((5, 4, 16, 17), (0, 2, 3, 1)), ((3, 1040, 4), (0, 2, 1)), ((2, 9008), (1, 0)), ((9008, 2), (1, 0))]


@case("permute", range(len(PERMUTES)), [1, 2, 4, 8, 16], [0, 1], ["auto", "blocks", "tiles"])
def permute(mem, which, size, offset, force):
    shape, perm = PERMUTES[which]
    rng, n = rng_of(which, size, offset), int(np.prod(shape))
    x = mem.block("u8", size, n, offset, lambda: raw(size, n, rng))
    y = mem.block("u8", size, n, 0)
    yield plan.permute(size, shape, perm, x.address, y.address, force)
    expected = x.read().reshape([*shape, size]).transpose([*perm, len(shape)])
    same_bytes(y.read(), expected)


# Long runs of src that begin anywhere within 16 bytes, of an odd number of elements.
BULK = [((3, 5, 7, 301), (2, 0, 3, 1)), ((41, 3, 129), (2, 1, 0)), ((9, 1031), (1, 0)), ((5, 11, 13, 47, 9), (4, 2, 0, 3, 1)), ((7, 33, 9, 47), (1, 3, 0, 2))]


@case("permute_bulk", range(len(BULK)), [1, 2, 4], [0, 1, 2, 3, 5, 7, 15], [0, 1])
def permute_bulk(mem, which, size, offset, to):
    shape, perm = BULK[which]
    rng, n = rng_of("bulk", which, size, offset), int(np.prod(shape))
    x = mem.block("u8", size, n, offset, lambda: raw(size, n, rng))
    y = mem.block("u8", size, n, to)
    yield plan.permute(size, shape, perm, x.address, y.address, "blocks")
    same_bytes(y.read(), x.read().reshape([*shape, size]).transpose([*perm, len(shape)]))


# Elements that are aligned as their halves, as complex numbers may be.
@case("permute_loose", range(len(PERMUTES)), [8, 16])
def permute_loose(mem, which, size):
    shape, perm = PERMUTES[which]
    rng, n = rng_of("loose", which, size), int(np.prod(shape))
    x = mem.block("u8", size // 2, 2 * n, 1, lambda: raw(size, n, rng))
    y = mem.block("u8", size // 2, 2 * n, 3)
    yield plan.permute(size, shape, perm, x.address, y.address)
    same_bytes(y.read(), x.read().reshape([*shape, size]).transpose([*perm, len(shape)]))


@case("copy_nd", [1, 2, 4, 8, 16], range(5))
def copy_nd(mem, size, which):
    src, dst, at, to, box = [((9, 20, 33), (8, 22, 30), (1, 3, 5), (0, 2, 4), (7, 15, 21)), ((64, 64), (64, 64), (0, 0), (0, 32), (64, 32)), ((1000,), (999,), (7,), (3,), (900,)),
                              ((40, 77), (40, 64), (0, 13), (0, 0), (40, 64)), ((40, 77), (40, 80), (0, 0), (0, 15), (40, 65))][which]
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


# Runs to a destination without gaps: dims and strides of src. Long ones, as short as packs, of every length between, downwards, many
# times the same; of a pack and less that is together, few threads of a block write the packs in which runs end.
RUNS = [((3, 40, 191), (9000, 222, 1)), ((7, 90, 64), (6000, 65, 1)), ((900, 17), (20, 1)), ((50, 33), (-40, 1)), ((5, 3, 100), (0, 133, 1)),
        ((3, 5001), (5003, 1)), ((2, 3, 2, 3, 2, 3, 2, 67), (5000, 1700, 820, 270, 900, 290, 71, 1)), ((9, 300), (-301, 1))]


@case("copy_runs", range(len(RUNS)), [1, 2, 4, 8], [0, 1, 3], [0, 1, 7])
def copy_runs(mem, which, size, offset, to):
    dims, strides = RUNS[which]
    rng, n = rng_of("runs", which, size, offset), int(np.prod(dims))
    far = [(d - 1) * s for d, s in zip(dims, strides)]
    low, high = sum(min(0, f) for f in far), sum(max(0, f) for f in far)
    x = mem.block("u8", size, high - low + 1, offset, lambda: raw(size, high - low + 1, rng))
    y = mem.block("u8", size, n, to)
    yield plan.copy_runs(size, dims[::-1], strides[::-1], x.address - low * size, y.address)
    elements_of = x.read().reshape(-1, size)[-low + sum(s * i for s, i in zip(strides, np.unravel_index(np.arange(n), dims)))]
    same_bytes(y.read(), elements_of)


@case("strided_copy_negative", [2, 4])
def strided_negative(mem, size):
    rng, n = rng_of(size), 40 * 30
    x = mem.block("u8", size, n, 0, lambda: raw(size, n, rng))
    y = mem.block("u8", size, n, 0)
    yield plan.copy(size, [40, 30], [-30, 1], [30, 1], x.address + 39 * 30 * size, y.address)
    same_bytes(y.read(), x.read().reshape(40, 30, size)[::-1])


@case("pad", [1, 2, 4, 8, 16], range(6), [0, 1])
def pad(mem, size, which, offset):
    dims, before, after = [((5, 22, 22), (0, 1, 1), (0, 1, 1)), ((4, 7, 33), (1, -2, 3), (2, -1, -4)), ((64,), (0,), (64,)), ((3, 4, 16), (2, 0, 16), (0, 0, 0)),
                           ((3, 50, 222), (0, 1, 1), (0, 1, 1)), ((40, 3), (0, 6), (1, 7))][which]
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


def gathered(mem, rng, mode, index, size, inner, window, n, shift):
    (batch, outer, axis), (offset, processed) = (3, 2, 50), (20, 15) if window else (0, 50)
    low, high = {"wrap": (-50, 50), "zero": (-60, 60), "error": (0, 50)}[mode]
    i = mem.block(index, SIZE[index], batch * n, 0, lambda: rng.integers(low, high, batch * n).astype(numpy_dtype(index)))
    count = batch * outer * processed * inner
    x = mem.block("u8", size, count, shift, lambda: raw(size, count, rng))
    y = mem.block("u8", size, batch * outer * n * inner, shift)
    slot = error_slot(mem)
    yield plan.gather(mode, index, size, batch, outer, processed, inner, n, i.address, x.address, y.address, slot.address, offset, axis)
    src = x.read().reshape(batch, outer, processed, inner * size)
    at = i.read().reshape(batch, n).astype(np.int64)
    at = np.where((at < 0) & (mode == "wrap"), at + axis, at)
    inside = (at >= 0) & (at < axis) & (at >= offset) & (at < offset + processed)
    expected = np.stack([np.where(inside[b][:, None], src[b][:, np.where(inside[b], at[b] - offset, 0)], 0) for b in range(batch)])
    same_bytes(y.read(), expected.astype(np.uint8))
    assert slot.read().view(np.uint64)[1] == (1 << 64) - 1


@case("gather", ["wrap", "zero", "error"], ["i32", "i64"], [(1, 7), (2, 64), (4, 192), (1, 768), (8, 1), (16, 3)], [0, 1])
def gather(mem, mode, index, row, window):
    yield from gathered(mem, rng_of(mode, index, row, window), mode, index, *row, window, 40, 0)


# Enough rows for warps to gather them, the last warp's not all there.
@case("gather_short", ["wrap", "zero"], ["i32", "i64"], [(1, 7), (1, 61), (2, 1), (2, 9), (4, 5), (8, 33)], [0, 1])
def gather_short(mem, mode, index, row, window):
    yield from gathered(mem, rng_of("short", mode, index, row, window), mode, index, *row, window, 7001, 1)


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


@case("gather_refused", ["wrap", "error"], ["gather", "short_rows", "scatter_add", "one_hot", "nothing"])
def gather_refused(mem, mode, op):
    # Short rows are gathered otherwise where there are many.
    rng, n = rng_of(mode, op), 40_000 if op == "short_rows" else 3000
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
        width = dict(gather=8, short_rows=7, nothing=0)[op]
        yield plan.gather(mode, "i32", 4, 1, 1, 50, width, n, i.address, x.address, y.address, slot.address)
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

"""From an op's arguments to launches: specialisation, argument struct, number of blocks.

What the provider does in Rust, in as few lines as it takes to test the kernels.
"""
import ctypes
import math

from device import Launch, Spec

u32, u64, i64, f64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64, ctypes.c_double
SIZE = dict(b8=1, i8=1, u8=1, i16=2, u16=2, f16=2, bf16=2, i32=4, u32=4, f32=4, i64=8, u64=8, f64=8, c64=8, c128=16)
RANK = 8
SMS = 132
MORE_THREADS = 64


def ceil_div(a, b):
    return -(-a // b)


class FastDiv(ctypes.Structure):
    _fields_ = [("divisor", u64), ("multiplier", u32), ("shift", u32)]


def fast_div(d):
    shift = (d - 1).bit_length()
    multiplier = ((((1 << shift) - d) << 32) // d + 1) & 0xFFFFFFFF if d < 1 << 32 else 0
    return FastDiv(d, multiplier, shift)


def fill(array, values):
    for i, v in enumerate(values):
        array[i] = v


# ---- N-dimensional loops ---------------------------------------------------------------------------------------------


def nd_type(n):
    class Nd(ctypes.Structure):
        _fields_ = [
            ("packs", u64), ("inner_size", u64), ("count", u64), ("rank", u32), ("before", u32), ("vector", u32), ("scalar", u32),
            ("dims", FastDiv * RANK), ("strides", (i64 * RANK) * n), ("inner", i64 * n), ("address", u64 * n),
            ("scalars", (u64 * 2) * n),
        ]

    return Nd


ND = {n: nd_type(n) for n in (2, 3, 4)}


class MapArgs2(ctypes.Structure):
    _fields_ = [("nd", ND[2]), ("attr0", f64), ("attr1", f64)]


class MapArgs3(ctypes.Structure):
    _fields_ = [("nd", ND[3]), ("attr0", f64), ("attr1", f64)]


def more_threads(row, in_block):
    """Threads that a block has more than its packs, for those that hold the end of a row, of which one may have that many."""
    turns = ceil_div(in_block - 1, row)
    return ceil_div(turns, 32) * 32 if 2 <= turns <= MORE_THREADS else 0


def merge_dims(dims, strides):
    """Drops dimensions of one element and joins those that are contiguous in every operand. Outermost first."""
    kept, kept_strides = [], [[] for _ in strides]
    for d, size in enumerate(dims):
        if size == 1:
            continue
        if kept and all(k[-1] == s[d] * size for k, s in zip(kept_strides, strides)):
            kept[-1] *= size
            for k, s in zip(kept_strides, strides):
                k[-1] = s[d]
        else:
            kept.append(size)
            for k, s in zip(kept_strides, strides):
                k.append(s[d])
    return (kept, kept_strides) if kept else ([1], [[1] for _ in strides])


def broadcast_strides(shape, dims):
    strides, step = [0] * len(dims), 1
    for i in range(1, len(shape) + 1):
        strides[-i] = 0 if shape[-i] == 1 else step
        step *= shape[-i]
    return strides


def contiguous(shape):
    return broadcast_strides([max(s, 1) for s in shape], shape) if shape else []


def plan_nd(dims, strides, sizes, addresses, pack, unroll, threads=256, scalars={}, short=False):
    """The arguments of a loop over `dims` with strides in elements for each operand, the destination first; `short` rows may be
    shorter than a pack that goes on."""
    n = len(strides)
    nd = ND[n]()
    dims, strides = merge_dims(dims, [[0] * len(dims) if k in scalars else s for k, s in enumerate(strides)])
    inner, rest = dims[-1], dims[:-1]
    unit = [min(16, pack * size) for size in sizes]
    # A destination without gaps, whose rows are not whole packs: packs go on from one row to the next.
    whole_rows = inner * sizes[0] % unit[0] == 0 and addresses[0] % unit[0] == 0
    goes_on = pack > 2 and bool(rest) and strides[0] == contiguous(dims) and (inner >= pack or short and pack > 4) and not whole_rows and addresses[0] % sizes[0] == 0
    if (goes_on or not rest and strides[0][0] == 1) and addresses[0] % sizes[0] == 0:
        nd.before = addresses[0] // sizes[0] % pack
    count = math.prod(dims)
    row = ceil_div(inner + nd.before, pack)
    nd.packs = ceil_div(count + nd.before, pack) if goes_on else math.prod(rest) * row
    nd.inner_size, nd.count, nd.rank, nd.scalar = inner, count, len(dims), goes_on << 31
    fill(nd.dims, [fast_div(inner if goes_on else row)] + [fast_div(d) for d in reversed(rest)])
    for k in range(n):
        fill(nd.strides[k], [strides[k][-1] * (1 if goes_on else pack)] + list(reversed(strides[k][:-1])))
        nd.inner[k], nd.address[k] = strides[k][-1], addresses[k]
        if k in scalars:
            nd.scalar |= 1 << k
            fill(nd.scalars[k], scalars[k])
            continue
        # The lowest and the highest address of an element.
        far = [(d - 1) * s * sizes[k] for d, s in zip(dims, strides[k])]
        fill(nd.scalars[k], [addresses[k] + sum(min(0, f) for f in far), addresses[k] + sum(max(0, f) for f in far)])
        begins = addresses[k] - nd.before * sizes[k]
        steps = [] if goes_on else [s * sizes[k] for s in strides[k][:-1]]
        dense = not goes_on or strides[k] == contiguous(dims)
        if dense and strides[k][-1] == 1 and all(b % unit[k] == 0 for b in [begins] + steps):
            nd.vector |= 1 << k
    reach = max(sum((d - 1) * abs(s) for d, s in zip(dims, st)) for st in strides)
    index = "u32" if max(nd.packs, max(reach, count if goes_on else 0) + nd.before) < 1 << 31 else "u64"
    defines = dict(THREADS=threads, PACK=pack, UNROLL=unroll, INDEX=index)
    return nd, defines, ceil_div(nd.packs, threads * unroll)


def pack_for(*sizes):
    return 16 // max(sizes)


LONGER = "acosh asinh atanh celu digamma erfc fast_gelu gelu lgamma log_sigmoid mish quick_gelu soft_plus trigamma".split()
LONGER_OF_HALVES = """acos acosh asin asinh atan atanh celu cos digamma elu erf erfc expm1 fast_gelu gelu log log10 log1p log2
    quick_gelu reciprocal selu sigmoid silu sin soft_plus soft_sign tan trigamma""".split()
LONGER_OF_DOUBLES = "sin cos rsqrt log log2 log10 sigmoid silu".split()


def unary(op, src_dtype, dst_dtype, dims, src, dst, src_strides=None, dst_strides=None, attrs=(0, 0), unroll=None):
    sizes = [SIZE[dst_dtype], SIZE[src_dtype]]
    longer = {4: LONGER, 2: LONGER_OF_HALVES, 8: LONGER_OF_DOUBLES}.get(sizes[1], ())
    between = min(sizes) < 4 and sizes[0] != sizes[1]
    unroll = unroll or (2 if op in longer or between else 1)
    strides = [dst_strides or contiguous(dims), src_strides or contiguous(dims)]
    nd, defines, grid = plan_nd(dims, strides, sizes, [dst, src], pack_for(*sizes), unroll)
    return Launch(Spec("unary.cu", OP=op, SRC=src_dtype, DST=dst_dtype, **defines), MapArgs2(nd, *attrs), grid)


def broadcast_threads(nd, defines):
    """Threads of a block: more where packs of small elements go on from row to row."""
    threads, pack = defines["THREADS"], defines["PACK"]
    if not (nd.scalar >> 31 and pack > 4 and nd.inner_size >= pack):
        return threads
    # Each of those takes as many packs as the others do.
    unroll = defines["UNROLL"]
    more = more_threads(nd.inner_size, threads * unroll * pack)
    nd.scalar |= (more > 0) << 30
    return threads + ceil_div(more // 32, unroll) * 32


def binary(op, src_dtype, dst_dtype, shapes, addresses, dst, attrs=(0, 0), scalars={}, unroll=1):
    rank = max(map(len, shapes))
    padded = [[1] * (rank - len(s)) + list(s) for s in shapes]
    dims = [max(a, b) if 0 not in (a, b) else 0 for a, b in zip(*padded)]
    sizes = [SIZE[dst_dtype], SIZE[src_dtype], SIZE[src_dtype]]
    strides = [contiguous(dims)] + [broadcast_strides(s, dims) for s in shapes]
    nd, defines, grid = plan_nd(
        dims, strides, sizes, [dst] + list(addresses), pack_for(*sizes), unroll, scalars=scalars, short=True
    )
    spec = Spec("binary.cu", OP=op, SRC=src_dtype, DST=dst_dtype, **defines)
    threads = broadcast_threads(nd, defines)
    return Launch(spec, MapArgs3(nd, *attrs), grid, block=(threads, 1))


def where(cond_dtype, size, shapes, addresses, dst):
    rank = max(map(len, shapes))
    padded = [[1] * (rank - len(s)) + list(s) for s in shapes]
    dims = [max(s) for s in zip(*padded)]
    strides = [contiguous(dims)] + [broadcast_strides(s, dims) for s in shapes]
    sizes = [size, SIZE[cond_dtype], size, size]
    nd, defines, grid = plan_nd(dims, strides, sizes, [dst] + list(addresses), pack_for(*sizes), 2, short=True)
    spec = Spec("where.cu", COND=cond_dtype, SIZE=size, **defines)
    threads = broadcast_threads(nd, defines)
    return Launch(spec, nd, grid, block=(threads, 1))


class RunsArgs(ctypes.Structure):
    _fields_ = [("count", u64), ("rank", u32), ("before", u32), ("dims", FastDiv * RANK), ("strides", i64 * RANK), ("src", u64),
                ("dst", u64), ("ends", u64 * 2), ("lead", i64), ("low", i64), ("high", i64), ("turns", u64)]


def copy_runs(size, dims, strides, src, dst, apart=None):
    """Runs of src, whose dimensions go outwards here, to a destination without gaps."""
    in_pack, lead = 16 // size, src % 16 // size
    args = RunsArgs(math.prod(dims), len(dims), dst // size % in_pack, src=src, dst=dst, lead=lead)
    fill(args.dims, map(fast_div, dims))
    fill(args.strides, strides)
    far = [(d - 1) * s for d, s in zip(dims, strides)]
    below, above = sum(min(0, f) for f in far), sum(max(0, f) for f in far)
    fill(args.ends, [src + below * size, src + above * size])
    args.low, args.high = lead + below, lead + above + 1
    args.turns = ceil_div(256 * in_pack - 1, dims[0])
    apart = size <= 2 and args.turns <= 64 if apart is None else apart
    index = "u32" if max(args.count + args.before, above - below + 3 * in_pack) < 1 << 31 else "u64"
    spec = Spec("copy_runs.cu", SIZE=size, INDEX=index, THREADS=256, APART=int(apart))
    return Launch(spec, args, ceil_div(ceil_div(args.count + args.before, in_pack), 256))


def copy(size, dims, src_strides, dst_strides, src, dst, unroll=None, runs=True):
    """Strides in elements; pieces that stay together become larger elements, up to 16 bytes."""
    dims, (to, source) = merge_dims(dims, [dst_strides, src_strides])
    dense = to == contiguous(dims) and source[-1] == 1 and len(dims) > 1
    if runs and size < 16 and not is_loose(size, src, dst) and dense and dims[-1] * size >= 16:
        return copy_runs(size, dims[::-1], source[::-1], src, dst)
    pack = pack_for(size)
    nd, defines, grid = plan_nd(dims, [to, source], [size, size], [dst, src], pack, unroll or (1 if size in (4, 8) else 4))
    loose = dict(LOOSE=1) if is_loose(size, src, dst) else {}
    return Launch(Spec("copy.cu", SIZE=size, **defines, **loose), nd, grid)


# ---- Movers ----------------------------------------------------------------------------------------------------------


class TransposeArgs(ctypes.Structure):
    _fields_ = [
        ("a", u64), ("b", u64), ("src_stride", u64), ("dst_stride", u64), ("tiles_a", FastDiv), ("tiles_b", FastDiv),
        ("rank", u32), ("pad", u32), ("dims", FastDiv * RANK), ("src_strides", i64 * RANK), ("dst_strides", i64 * RANK),
        ("tiles", u64), ("src", u64), ("dst", u64),
    ]


class InterleaveArgs(ctypes.Structure):
    _fields_ = [("packs", u64), ("per_plane", FastDiv), ("src", u64), ("dst", u64)]


class PermuteSide(ctypes.Structure):
    _fields_ = [
        ("run", u32), ("runs", u32), ("cut", u32), ("per_index", u32), ("segments", FastDiv), ("rank", u32), ("lanes", u32),
        ("size", FastDiv * RANK), ("stride", i64 * RANK), ("to_shared", u32 * RANK), ("cut_of", u32 * RANK),
    ]


class PermuteArgs(ctypes.Structure):
    _fields_ = [
        ("src_side", PermuteSide), ("dst_side", PermuteSide), ("in_run", FastDiv * RANK), ("run_to_shared", u32 * RANK),
        ("run_rank", u32), ("pitch", u32), ("cut_size", u64 * 2), ("cut_extent", u64 * 2), ("rank", u32), ("pad", u32),
        ("count", FastDiv * RANK), ("src_step", i64 * RANK), ("dst_step", i64 * RANK), ("cut_of", u32 * RANK),
        ("blocks", u64), ("src_bytes", u64), ("src", u64), ("dst", u64),
    ]


def is_loose(size, *addresses):
    """Addresses of elements that are aligned as their halves only."""
    return size >= 8 and any(a % size for a in addresses)


def merge_permutation(shape, perm):
    """Drops dimensions of one element and joins those that stay neighbours: (source shape, permutation)."""
    perm = [p for p in perm if shape[p] != 1]
    groups = []
    for p in perm:
        previous = groups[-1][-1] if groups else None
        # Neighbours in the source, but for dimensions of one element.
        if previous is not None and p > previous and all(shape[q] == 1 for q in range(previous + 1, p)):
            groups[-1].append(p)
        else:
            groups.append([p])
    order = sorted(range(len(groups)), key=lambda g: groups[g][0])
    sizes = [math.prod(shape[p] for p in groups[g]) for g in order]
    return sizes, [order.index(g) for g in range(len(groups))]


def permute(size, shape, perm, src, dst, force=None, bulk=True):
    sizes, perm = merge_permutation(shape, perm)
    if len(sizes) < 2:
        return copy(size, [max(1, math.prod(shape))], [1], [1], src, dst)
    src_strides = contiguous(sizes)
    out = [sizes[p] for p in perm]
    dst_strides = contiguous(out)
    rank = len(sizes)
    # By dimension of the source.
    to = [0] * rank
    for d, p in enumerate(perm):
        to[p] = dst_strides[d]
    if perm[-1] == rank - 1:
        # The innermost dimension stays: runs are copied by the largest pieces that fit.
        piece = size
        while piece < 16 and sizes[-1] * size % (2 * piece) == 0 and src % (2 * piece) == dst % (2 * piece) == 0:
            piece *= 2
        k = piece // size
        dims = out[:-1] + [out[-1] // k]
        s = [src_strides[p] // k for p in perm[:-1]] + [1]
        t = [x // k for x in dst_strides[:-1]] + [1]
        return copy(piece, dims, s, t, src, dst)
    a, b = perm[-1], rank - 1
    # Few planes that are interleaved or taken apart by whole packs.
    if size <= 4 and force in (None, "auto") and rank <= 3 and list(perm) == [*range(rank - 2), rank - 1, rank - 2]:
        planes, plane = min(sizes[-2:]), max(sizes[-2:])
        packs = math.prod(sizes) * size // planes // 16
        if planes <= 4 and plane * size >= 128 and plane * size % 16 == src % 16 == dst % 16 == 0 and packs < 1 << 31:
            spec = Spec("interleave.cu", SIZE=size, PLANES=planes, APART=int(sizes[-1] == planes), THREADS=256)
            args = InterleaveArgs(packs, fast_div(plane * size // 16), src, dst)
            return Launch(spec, args, ceil_div(packs, 256))
    tile = 128 if size == 1 else 64 if size <= 4 else 32
    if not is_loose(size, src, dst) and force != "blocks" and (force == "tiles" or (sizes[a] * 2 >= tile and sizes[b] * 2 >= tile)):
        return transpose(size, sizes, src_strides, to, a, b, tile, src, dst)
    # Large blocks have longer runs; where there are few of them, smaller ones keep more multiprocessors busy.
    large = math.prod(shape) * size >= (40 << 10) * 3 * SMS
    return permute_blocks(size, sizes, perm, src_strides, to, src, dst, (40 << 10) if large else 16 << 10, bulk=bulk)


def transpose(size, sizes, src_strides, to, a, b, tile, src, dst):
    args = TransposeArgs(a=sizes[a], b=sizes[b], src_stride=src_strides[a], dst_stride=to[b], src=src, dst=dst)
    tiles_a, tiles_b = ceil_div(sizes[a], tile), ceil_div(sizes[b], tile)
    args.tiles_a, args.tiles_b = fast_div(tiles_a), fast_div(tiles_b)
    others = [d for d in range(len(sizes)) if d not in (a, b)]
    others.sort(key=lambda d: src_strides[d])
    args.rank = len(others)
    fill(args.dims, [fast_div(sizes[d]) for d in others])
    fill(args.src_strides, [src_strides[d] for d in others])
    fill(args.dst_strides, [to[d] for d in others])
    args.tiles = tiles_a * tiles_b * math.prod(sizes[d] for d in others)
    steps = [src_strides[d] for d in range(len(sizes)) if d != b] + [to[d] for d in range(len(sizes)) if d != a]
    whole = all(x * size % 16 == 0 for x in steps + [sizes[a], sizes[b]]) and src % 16 == dst % 16 == 0
    spec = Spec("transpose.cu", SIZE=size, VECTOR=int(whole), THREADS=256)
    return Launch(spec, args, min(args.tiles, 1 << 30))


# Bytes of a run that is copied in bulk, at least, and of shared memory for such runs.
BULK_BYTES, BULK_ROOM = 256, 44352


def permute_blocks(size, sizes, perm, src_strides, to, src, dst, volume, threads=256, bulk=True):
    rank, in_word, in_pack = len(sizes), max(1, 4 // size), 16 // size
    volume, capacity = volume // size, (volume + 2048) // size
    block = [1] * rank
    src_order, dst_order = list(reversed(range(rank))), list(reversed(perm))

    def run(order):
        """The length of a side's runs, their dimensions, and the one that ends them."""
        n = 1
        for k, d in enumerate(order):
            n *= block[d]
            if block[d] < sizes[d]:
                return n, order[: k + (block[d] > 1)], d
        return n, order, None

    def pitch():
        # An odd number of words spreads neighbours along another dimension over the banks.
        return (ceil_div(run(src_order)[0], in_word) | 1) * in_word

    def runs(order):
        return math.prod(block) // run(order)[0]

    while True:
        # The shorter run grows, as long as the block has room for it.
        for order in sorted((src_order, dst_order), key=lambda o: run(o)[0]):
            d = run(order)[2]
            if d is None:
                continue
            before = block[d]
            block[d] = max(before, min(sizes[d], before * 2, volume // (math.prod(block) // before)))
            if block[d] > before and runs(src_order) * pitch() <= capacity:
                break
            block[d] = before
        else:
            break
    # Blocks along a dimension are made equal, or else begin at multiples of 64 bytes.
    line = 64 // size
    for d in range(rank):
        if block[d] < sizes[d]:
            even = ceil_div(sizes[d], ceil_div(sizes[d], block[d]))
            lines = ceil_div(even, line) * line
            block[d] = lines if lines <= block[d] else even
    inside = [d for d in range(rank) if block[d] > 1]
    cut = [d for d in inside if block[d] < sizes[d]]
    assert len(cut) <= 2
    number = lambda d: cut.index(d) + 1 if d in cut else 0
    args = PermuteArgs(src=src, dst=dst, src_bytes=math.prod(sizes) * size, pitch=pitch())
    src_run = [d for d in run(src_order)[1] if block[d] > 1]
    shared, step = {}, 1
    for d in src_run:
        shared[d] = step
        step *= block[d]
    step = args.pitch
    for d in src_order:
        if d in inside and d not in src_run:
            shared[d] = step
            step *= block[d]

    # Long runs are copied by the hardware where they have the same place within 16 bytes in shared memory as in src, if
    # neighbours of dst then are in different banks.
    bulky = {d: shared[d] for d in src_run}
    least = run(src_order)[0] + 2 * (in_pack - 1)
    for d in src_order:
        if d in inside and d not in src_run:
            bulky[d] = least + (src_strides[d] - least) % in_pack
            least = bulky[d] * block[d]
    bulk = bulk and size <= 2 and not is_loose(size, src, dst) and run(src_order)[0] * size >= BULK_BYTES
    bulk = bulk and bulky.get(perm[-1], 0) % 2 == 1 and (least + 2 * in_pack) * size <= BULK_ROOM
    if bulk:
        shared = bulky

    def lanes_for(packs):
        """As many as a run has packs for, from 4 to those of a warp."""
        return min(32, max(4, 1 << (packs - 1).bit_length()))

    # Where runs of dst begin: a dimension that ends them, cut, is left by whole blocks.
    _, dims, last = run(dst_order)
    begins = [dst] + [to[d] * (block[d] if d in dims else 1) * size for d in range(rank) if d == last or d not in dims]
    more = 0 if all(x % 16 == 0 for x in begins) else in_pack - 1
    for side, order, strides in ((args.src_side, src_order, src_strides), (args.dst_side, dst_order, to)):
        side.run, dims, _ = run(order)
        dims = [d for d in dims if block[d] > 1]
        side.runs = runs(order)
        last = dims[-1] if dims else None
        if number(last):
            side.cut, side.per_index = number(last), side.run // block[last]
        if order is src_order:
            # Words that a lane takes of a segment.
            each = (4 if size < 4 else 8) * in_word
            side.lanes = lanes_for(ceil_div(side.run, each))
            part = each * side.lanes
            side.segments = fast_div(ceil_div(side.run, part))
        else:
            # A run that begins within a pack touches one more.
            packs = ceil_div(side.run + more, in_pack)
            side.lanes = lanes_for(packs)
            side.segments = fast_div(ceil_div(packs, 64 if side.lanes == 32 else side.lanes))
        others = [d for d in order if d in inside and d not in dims]
        side.rank = len(others)
        fill(side.size, [fast_div(block[d]) for d in others])
        fill(side.stride, [strides[d] for d in others])
        fill(side.to_shared, [shared[d] for d in others])
        fill(side.cut_of, [number(d) for d in others])
        if order is dst_order:
            args.run_rank = len(dims)
            fill(args.in_run, [fast_div(block[d]) for d in dims])
            fill(args.run_to_shared, [shared[d] for d in dims])
    fill(args.cut_size, [block[d] for d in cut] + [1] * (2 - len(cut)))
    fill(args.cut_extent, [sizes[d] for d in cut] + [1] * (2 - len(cut)))
    outer = [d for d in src_order if block[d] < sizes[d]]
    args.rank = len(outer)
    fill(args.count, [fast_div(ceil_div(sizes[d], block[d])) for d in outer])
    fill(args.src_step, [src_strides[d] * block[d] for d in outer])
    fill(args.dst_step, [to[d] * block[d] for d in outer])
    fill(args.cut_of, [number(d) for d in outer])
    args.blocks = math.prod(ceil_div(sizes[d], block[d]) for d in outer)
    loose = dict(LOOSE=1) if is_loose(size, src, dst) else {}
    short = int(args.src_side.lanes < 32 and not bulk or args.dst_side.lanes < 32)
    if bulk:
        loose = dict(BULK=1)
    return Launch(Spec("permute.cu", SIZE=size, THREADS=threads, SHORT=short, **loose), args, min(args.blocks, 1 << 30))


class PadArgs(ctypes.Structure):
    _fields_ = [
        ("packs", u64), ("rank", u32), ("vector", u32), ("dims", FastDiv * RANK), ("dst_inner", i64),
        ("src_dims", i64 * RANK), ("src_strides", i64 * RANK), ("before", i64 * RANK), ("value", u64 * 2),
        ("src", u64), ("dst", u64), ("end", u64),
    ]


def pad(size, src_dims, before, after, value_bits, src, dst, unroll=1):
    dims, bs, ds = [], [], []
    # Dimensions without padding join the one before them.
    for d, (n, b, a) in enumerate(zip(src_dims, before, after)):
        if dims and b == 0 and a == 0:
            dims[-1] *= n
            bs[-1] *= n
            ds[-1] *= n
        else:
            dims.append(n)
            bs.append(b)
            ds.append(n + b + a)
    if not dims:
        dims, bs, ds = [1], [0], [1]
    pack = pack_for(size)
    args = PadArgs(src=src, dst=dst, rank=len(dims), dst_inner=ds[-1], end=src + math.prod(dims) * size)
    packs = ceil_div(ds[-1], pack)
    args.packs = packs * math.prod(ds[:-1])
    fill(args.dims, [fast_div(packs)] + [fast_div(d) for d in reversed(ds[:-1])])
    fill(args.src_dims, list(reversed(dims)))
    fill(args.src_strides, list(reversed(contiguous(dims))))
    fill(args.before, list(reversed(bs)))
    fill(args.value, value_bits)
    args.vector = int(ds[-1] % pack == 0 and dst % 16 == 0)
    if dims[-1] % pack == 0 and bs[-1] % pack == 0 and src % 16 == 0:
        args.vector |= 2
    index = "u32" if max(math.prod(ds), math.prod(dims)) < 1 << 31 else "u64"
    spec = Spec("pad.cu", SIZE=size, PACK=pack, INDEX=index, THREADS=256, UNROLL=unroll)
    return Launch(spec, args, ceil_div(args.packs, 256 * unroll))


class GatherArgs(ctypes.Structure):
    _fields_ = [
        ("pieces", u64), ("per_row", FastDiv), ("num_indices", FastDiv), ("outer", FastDiv), ("window", i64 * 3),
        ("indices", u64), ("src", u64), ("dst", u64), ("error", u64), ("launch", u64), ("checked", u64),
        ("short_rows", u64),
    ]


def gather(mode, index_dtype, size, batch, outer, processed, inner, num_indices, indices, src, dst, error=0,
           offset=0, axis=0, unroll=4):
    row = inner * size
    piece = size
    while piece < 16 and row % (2 * piece) == 0 and src % (2 * piece) == dst % (2 * piece) == 0:
        piece *= 2
    per_row = row // piece
    pieces = batch * outer * num_indices * per_row
    checked = batch * num_indices if pieces == 0 else 0
    rows = batch * outer * num_indices
    short = piece < 16 and 4 <= per_row <= 64 and rows >= 1 << 15 and pieces < 1 << 31
    args = GatherArgs(
        pieces, fast_div(max(1, per_row)), fast_div(max(1, num_indices)), fast_div(max(1, outer)),
        (i64 * 3)(offset, processed, axis or offset + processed), indices, src, dst, error, 1, checked,
        rows if short else 0,
    )
    spec = Spec("gather.cu", MODE=mode, INDICES=index_dtype, SIZE=piece, THREADS=256, UNROLL=unroll,
                INDEX="u32" if pieces < 1 << 31 else "u64")
    return Launch(spec, args, ceil_div(rows, 256) if short else ceil_div(max(pieces, checked), 256 * unroll))


class OneHotArgs(ctypes.Structure):
    _fields_ = [
        ("num_indices", u64), ("depth", FastDiv), ("count", u64), ("window", i64 * 3), ("indices", u64), ("dst", u64),
        ("on", u64 * 2), ("off", u64 * 2), ("error", u64), ("launch", u64),
    ]


def one_hot(mode, index_dtype, size, num_indices, depth, on, off, indices, dst, error=0, offset=0, classes=0):
    pack, count = pack_for(size), num_indices * depth
    args = OneHotArgs(
        num_indices, fast_div(max(1, depth)), count, (i64 * 3)(offset, depth, classes or offset + depth), indices, dst,
        (u64 * 2)(*on), (u64 * 2)(*off), error, 1,
    )
    spec = Spec("one_hot.cu", MODE=mode, INDICES=index_dtype, SIZE=size, PACK=pack, THREADS=256,
                INDEX="u32" if count < 1 << 31 else "u64")
    return Launch(spec, args, ceil_div(ceil_div(count, pack) if count else num_indices, 256))


class ScatterAddArgs(ctypes.Structure):
    _fields_ = [
        ("outer", u64), ("processed", u64), ("inner", u64), ("num_indices", u64), ("window", i64 * 3), ("indices", u64),
        ("src", u64), ("dst", u64), ("error", u64), ("launch", u64), ("mode", u64), ("blocks_per_outer", u64),
    ]


def scatter_add(mode, index_dtype, dtype, outer, processed, inner, num_indices, indices, src, dst, error=0, offset=0,
                axis=0):
    volume = (16 << 10) // max(4, SIZE[dtype])
    adds = outer * processed * inner * num_indices > 0
    per_outer = ceil_div(processed * inner, volume) if adds else 0
    args = ScatterAddArgs(outer, processed, inner, num_indices, (i64 * 3)(offset, processed, axis or offset + processed),
                          indices, src, dst, error, 1, ("wrap", "zero", "error").index(mode), per_outer)
    spec = Spec("scatter_add.cu", INDICES=index_dtype, DATA=dtype, THREADS=256, VOLUME=volume)
    return Launch(spec, args, min(per_outer * outer if adds else ceil_div(num_indices, 256), 1 << 30))


class FillArgs(ctypes.Structure):
    _fields_ = [("count", u64), ("dst", u64), ("src", u64), ("value", u64 * 2)]


def fill_memory(size, count, dst, value=(0, 0), src=0, unroll=1):
    args = FillArgs(count, dst, src, (u64 * 2)(*value))
    packs = ceil_div(count + dst % 16 // size, 16 // size)
    return Launch(Spec("fill.cu", SIZE=size, THREADS=256, UNROLL=unroll), args, ceil_div(packs, 256 * unroll))


class ArangeArgs(ctypes.Structure):
    _fields_ = [("count", u64), ("dst", u64), ("start", u64), ("step", u64)]


def arange(dtype, count, dst, start, step):
    bits = lambda x: ctypes.cast(ctypes.pointer(f64(x)), ctypes.POINTER(u64))[0] if "f" in dtype else x % (1 << 64)
    pack = pack_for(SIZE[dtype])
    spec = Spec("arange.cu", DATA=dtype, PACK=pack, THREADS=256)
    return Launch(spec, ArangeArgs(count, dst, bits(start), bits(step)), ceil_div(ceil_div(count, pack) + 1, 256))


def add(dtype, count, srcs, dst):
    places = 8 if len(srcs) <= 8 else 256

    class AddArgs(ctypes.Structure):
        _fields_ = [("count", u64), ("arity", u64), ("dst", u64), ("head", u64), ("srcs", u64 * places)]

    pack, size = pack_for(SIZE[dtype]), SIZE[dtype]
    before = dst // size % pack
    args = AddArgs(count, len(srcs), dst, pack - before if before else 0)
    fill(args.srcs, srcs)
    return Launch(Spec("add.cu", DATA=dtype, ARITY=places, PACK=pack, THREADS=256), args,
                  ceil_div(ceil_div(count + before, pack), 256))


# ---- Rows ------------------------------------------------------------------------------------------------------------


def rows_config(cols, sizes, aligned_rows, held=None, sources=1, joins_ends=True, is_laborious=None):
    """How rows are shared out: the macros of rows.cuh, or None where they do not fit registers.

    `sizes` are those of the elements; `sources` rows are held at once; `joins_ends`: both ends of a row may share a pack.
    `is_laborious`: arithmetic takes about as long as memory does; where nothing is said, of half types."""
    pack = pack_for(*sizes)
    is_aligned = aligned_rows and cols % pack == 0
    packs = ceil_div(cols, pack) + (0 if is_aligned or joins_ends else 1)
    wide = max(sizes) == 8

    def config(threads, lanes, blocks, rows, each, **more):
        return dict(THREADS=threads, LANES=lanes, BLOCKS=blocks, ROWS=rows, PACK=pack, PACKS=each,
                    ALIGNED=int(is_aligned)) | more

    if held:
        threads, lanes, blocks, rows, each = held
        sharers = lanes if blocks == 0 else threads * blocks
        return config(*held) if sharers * each >= packs else None

    def each_of(sharers):
        return next((n for n in (1, 2, 3, 4, 6, 8) if n * sharers >= packs), None)

    if packs <= 128 // sources:
        # Within a warp: two packs for each lane as far as they go, then four.
        narrow = packs <= 8 * sources
        lanes = min(32, max(1, 1 << (ceil_div(packs, 1 if narrow else 2) - 1).bit_length()))
        lanes = lanes if is_aligned else max(2, lanes)
        each = each_of(lanes)
        rows = 2 if narrow and sources == 1 else 1
        # Of half types that are not aligned one kernel is for any number of lanes.
        if not is_aligned and max(sizes) == 2 and each < 3:
            return config(128, 0, 0, rows, each, block=(lanes, 128 // lanes))
        return config(128, lanes, 0, rows, each)
    # Then blocks with about four packs for each thread, up to their largest size; then clusters. Of rows that are not aligned
    # blocks have as many warps as cost least.
    most = (4 if wide else 8) // sources
    if is_aligned:
        for threads in (64, 128, 256, 512):
            each = each_of(threads)
            words = threads == 128 and max(sizes) == 4 and sources == 1 and joins_ends
            if each and each <= (3 if words else 4 if threads < 512 else most):
                return config(threads, 32, 1, 1, each)
    else:
        warps = lambda each: ceil_div(packs, 32 * each)
        steps = [n for n in (4, 6, 8) if n <= max(most, 4) and warps(n) <= 16]
        if steps:
            of_warp = (max(sizes) == 2) if is_laborious is None else is_laborious
            each = min(steps, key=lambda n: warps(n) * (n + of_warp))
            return config(512, 32, 1, 1, each, FEWER=1, block=(32 * warps(each), 1))
    for threads, blocks in ((512, 2), (512, 4), (512, 8), (1024, 8)):
        each = each_of(threads * blocks)
        each = each and (each if is_aligned else 1 << (each - 1).bit_length())
        if each and each <= most:
            return config(threads, 32, blocks, 1, each)
    return None


def rows_launch(file, args, rows, config, shared=0, **selectors):
    """A launch of a kernel of rows.cuh; `block` of the configuration is the threads of its blocks where those are not its
    `THREADS`."""
    macros = {k: v for k, v in config.items() if k != "block"}
    return Launch(Spec(file, **selectors, **macros), args, rows_grid(rows, config), shared, config.get("block"))


class SoftmaxArgs(ctypes.Structure):
    _fields_ = [("rows", u64), ("cols", u64), ("src", u64), ("dst", u64), ("log", u64)]


class SoftmaxBackwardArgs(ctypes.Structure):
    _fields_ = [("rows", u64), ("cols", u64), ("y", u64), ("dy", u64), ("dx", u64), ("log", u64)]


class SoftmaxWideArgs(ctypes.Structure):
    _fields_ = [("rows", u64), ("cols", u64), ("src", u64), ("dst", u64), ("dy", u64), ("log", u64)]


class SoftmaxStridedArgs(ctypes.Structure):
    _fields_ = [("rows", u64), ("cols", u64), ("inner", u64), ("src", u64), ("dst", u64), ("dy", u64), ("log", u64)]


def rows_grid(rows, config):
    if config["BLOCKS"]:
        return min(rows, 1 << 24) * config["BLOCKS"]
    lanes = config["LANES"] or config["block"][0]
    return min(ceil_div(rows, config["THREADS"] // lanes * config["ROWS"]), 1 << 30)


def wide_threads(cols, pack):
    return min(1024, max(64, 1 << (ceil_div(cols, 4 * pack) - 1).bit_length()))


def is_rare(src_dtype, dst_dtype):
    """Whether rows hardly exist: they are read twice, by blocks of as few warps as suit the row."""
    return src_dtype != dst_dtype and ("f64" in (src_dtype, dst_dtype) or "f32" not in (src_dtype, dst_dtype))


def wide_block(cols, pack, src_dtype, dst_dtype):
    """The macros of a block that reads its row twice, and its threads."""
    if not is_rare(src_dtype, dst_dtype):
        return dict(THREADS=wide_threads(cols, pack)), None
    return dict(THREADS=256, FEWER=1), (min(256, 32 * ceil_div(ceil_div(cols, 4 * pack), 32)), 1)


def is_log_fixed(src_dtype, dst_dtype, config):
    """Whether a kernel computes softmax or log-softmax alone; the others are told by the launch."""
    return src_dtype == dst_dtype and (config is None or SIZE[src_dtype] == 2 or config["BLOCKS"] > 1)


def softmax(log, src_dtype, dst_dtype, rows, cols, src, dst, held=None, force=None):
    sizes = [SIZE[src_dtype], SIZE[dst_dtype]]
    aligned_rows = src % 16 == dst % 16 == 0
    config = rows_config(cols, sizes, aligned_rows, held) if force is None and not is_rare(src_dtype, dst_dtype) else None
    dtypes = dict(SRC=src_dtype, DST=dst_dtype) | (dict(LOG=log) if is_log_fixed(src_dtype, dst_dtype, config) else {})
    if config:
        args = SoftmaxArgs(rows, cols, src, dst, log)
        return rows_launch("softmax.cu", args, rows, config, **dtypes)
    pack = pack_for(*sizes)
    bytes_kept = (ceil_div(cols, pack) + 1) * pack * SIZE[src_dtype]
    shared = force == "shared" and bytes_kept <= 220 << 10
    macros, block = wide_block(cols, pack, src_dtype, dst_dtype)
    spec = Spec("softmax_wide.cu", BACKWARD=0, SHARED=int(shared), PACK=pack, **macros, **dtypes)
    args = SoftmaxWideArgs(rows, cols, src, dst, 0, log)
    return Launch(spec, args, min(rows, 1 << 30), bytes_kept if shared else 0, block)


def softmax_backward(log, src_dtype, dst_dtype, rows, cols, y, dy, dx, held=None, force=None):
    sizes = [SIZE[src_dtype], SIZE[dst_dtype]]
    aligned_rows = y % 16 == dy % 16 == dx % 16 == 0
    is_held = force is None and not is_rare(src_dtype, dst_dtype)
    config = rows_config(cols, sizes, aligned_rows, held, sources=2) if is_held else None
    dtypes = dict(SRC=src_dtype, DST=dst_dtype) | (dict(LOG=log) if is_log_fixed(src_dtype, dst_dtype, config) else {})
    if config:
        args = SoftmaxBackwardArgs(rows, cols, y, dy, dx, log)
        return rows_launch("softmax_backward.cu", args, rows, config, **dtypes)
    macros, block = wide_block(cols, pack_for(*sizes), src_dtype, dst_dtype)
    spec = Spec("softmax_wide.cu", BACKWARD=1, SHARED=0, PACK=pack_for(*sizes), **macros, **dtypes)
    return Launch(spec, SoftmaxWideArgs(rows, cols, y, dx, dy, log), min(rows, 1 << 30), 0, block)


def softmax_strided(log, backward, src_dtype, dst_dtype, rows, cols, inner, src, dst, dy=0):
    fixed = dict(LOG=log) if is_log_fixed(src_dtype, dst_dtype, None) else {}
    spec = Spec("softmax_strided.cu", BACKWARD=backward, SRC=src_dtype, DST=dst_dtype, THREADS=256, **fixed)
    args = SoftmaxStridedArgs(rows, cols, inner, src, dst, dy, log)
    return Launch(spec, args, min(rows * ceil_div(inner, 32), 1 << 30))


class NormArgs(ctypes.Structure):
    _fields_ = [("rows", u64), ("cols", u64), ("epsilon", f64), ("src", u64), ("dst", u64), ("gamma", u64),
                ("beta", u64), ("mean", u64), ("rstd", u64)]


# Threads, blocks (0 where warps do) and packs of a thread for rows of which groups take several, with gamma and beta in
# shared memory, and how many threads a block has at most where it may have fewer; by whether rows are aligned, and rms.
KEPT_HALVES = dict([
    ((True, 0), ((512, 4, 4, 512), (512, 8, 4, 0))),
    ((False, 1), ((128, 0, 2, 0), (512, 4, 4, 0), (512, 8, 4, 0))),
    ((False, 0), ((128, 0, 2, 0), (128, 0, 3, 0), (128, 0, 4, 0), (64, 1, 3, 0), (128, 1, 3, 0), (512, 1, 4, 512),
                  (512, 2, 4, 448), (512, 2, 4, 0), (512, 4, 4, 320), (640, 2, 5, 640), (512, 4, 4, 0), (512, 8, 5, 288), (640, 4, 5, 640), (512, 8, 4, 0),
                  (640, 8, 5, 640))),
])
KEPT_F32 = dict([
    ((True, 0), ((512, 4, 4, 0), (512, 8, 4, 512), (1024, 8, 4, 0))),
    ((False, 0), ((512, 2, 4, 512), (512, 4, 4, 512), (512, 8, 4, 288), (640, 4, 5, 640), (544, 8, 6, 320), (512, 8, 4, 512),
                  (640, 8, 5, 640))),
])
KEPT = dict(f16=KEPT_HALVES, bf16=KEPT_HALVES, f32=KEPT_F32)


def kept_groups(threads, compiled, blocks, fewer, is_aligned, rows, pack):
    """How many groups of threads take so many rows: whole turns of those that are there at once. `compiled` are the most threads."""
    usable = 48 if blocks < 4 else 45 if blocks < 8 else 44
    many = blocks > 0 and compiled & (compiled - 1) != 0
    at_once = max(1, SMS * (65536 // (96 if many else 64) // threads) * usable // (48 * blocks)) if blocks else SMS * 640 // 32
    whole = 1 if is_aligned else pack
    groups = lambda turns: min(turns * at_once, rows // 3) // whole * whole
    if many:
        take = lambda g: ceil_div(g, at_once) * (256 * rows // g + 512) if g else 1 << 127
        least, turns = at_once * 3, min(range(1, whole + 1), key=lambda turns: take(groups(turns)))
    else:
        least = at_once * 18 if is_aligned else at_once * 3 // 2
        turns = ceil_div(ceil_div(rows, at_once), 12 if blocks and (is_aligned or not fewer or blocks == 1) else 24)
    if rows >= least and groups(turns):
        return groups(turns)
    # Blocks of rows that are not aligned take few rows as well, one each.
    return 0 if is_aligned or not blocks else rows


def kept_config(rms, dtype, rows, cols, aligned_rows, each, shape=None):
    """Rows of which a group takes several: their configuration, how many threads a block has, and how many groups there are."""
    pack = pack_for(SIZE[dtype])
    is_aligned = aligned_rows and cols % pack == 0
    packs = cols // pack if is_aligned else ceil_div(cols, pack) + 1
    for threads, blocks, each_thread, fewer in [shape] if shape else KEPT.get(dtype, {}).get((is_aligned, rms), ()):
        if packs > ((fewer or threads) * blocks or 32) * each_thread:
            continue
        capacity = (threads * blocks or 32) * each_thread
        if is_aligned:
            least = capacity // 2 if fewer else capacity // 8 * 7
        else:
            least = 2048 if dtype == "f32" else 4096 if rms and blocks else capacity // 3 * 2 if blocks == 1 and not fewer else 32
        used = ceil_div(ceil_div(packs, blocks * each_thread), 32) * 32 if fewer else threads
        groups = kept_groups(used, threads, blocks, fewer, is_aligned, rows, pack)
        if each:
            # Any width, and as many rows each.
            least, groups = 0, ceil_div(ceil_div(rows, each), 1 if is_aligned else pack) * (1 if is_aligned else pack)
        if packs <= least:
            continue
        if not groups:
            return None, 0, 0
        config = dict(THREADS=threads, LANES=32, BLOCKS=blocks, PACK=pack, PACKS=each_thread, ALIGNED=int(is_aligned), KEPT=1)
        return config | (dict(FEWER=1) if fewer else {}), used, groups
    return None, 0, 0


def norm(rms, dtype, rows, cols, epsilon, src, dst, gamma=0, beta=0, mean=0, rstd=0, held=None, force=None, each=None, kept=None):
    """`each` forces groups that take so many rows, `kept` their way, or with False none."""
    args = NormArgs(rows, cols, epsilon, src, dst, gamma, beta, mean, rstd)
    aligned_rows = src % 16 == dst % 16 == 0
    takes_several = not held and not force and kept is not False
    config, threads, groups = kept_config(rms, dtype, rows, cols, aligned_rows, each, kept) if takes_several else (None, 0, rows)
    shared = threads * config["PACKS"] * (16 if rms else 32) if config else 0
    groups = groups if config else rows
    config = config or rows_config(cols, [SIZE[dtype]], aligned_rows, held, joins_ends=False, is_laborious=not rms or SIZE[dtype] == 2)
    if force is None and config:
        config["ROWS"] = 1
        if threads:
            config["block"] = (threads, 1)
        return rows_launch("norm.cu", args, groups, config, shared, DATA=dtype, RMS=rms)
    spec = Spec("norm_wide.cu", DATA=dtype, RMS=rms, THREADS=512, PACK=pack_for(SIZE[dtype]))
    return Launch(spec, args, min(rows, 1 << 30))


# ---- Reductions ------------------------------------------------------------------------------------------------------


class ReduceArgs(ctypes.Structure):
    _fields_ = [("outer", u64), ("reduced", u64), ("inner", u64), ("parts", u64), ("per_part", u64),
                ("divisor", f64), ("src", u64), ("dst", u64)]


class ArgReduceArgs(ctypes.Structure):
    _fields_ = [("outer", u64), ("reduced", u64), ("inner", u64), ("parts", u64), ("per_part", u64), ("src", u64),
                ("dst", u64), ("narrow", u64)]


def parts_for(outer, reduced, inner):
    """How many parts each row is cut into, so that there are blocks enough to fill the device."""
    lines = outer * (ceil_div(inner, 32) if inner > 1 else 1)
    if lines >= SMS * 4:
        return 1
    return max(1, min(SMS * 8 // max(1, lines), reduced // 1024))


def accumulator_size(op, src_dtype):
    if op in ("any", "all"):
        return 4
    if src_dtype in ("f16", "bf16"):
        return 4
    if op in ("sum", "prod", "mean") and src_dtype[0] in "iub" and src_dtype != "bf16":
        return 8
    return SIZE[src_dtype]


def reduce(op, src_dtype, dst_dtype, outer, reduced, inner, src, dst, workspace):
    parts = parts_for(outer, reduced, inner)
    per_part = ceil_div(reduced, parts)
    is_inner = int(inner > 1)
    size = SIZE[src_dtype]
    sharers = 256 if is_inner or reduced * size > 16384 else 32 if reduced * size <= 4096 else 128
    threads = max(sharers, 128)
    rounds = op in ("sum", "mean") and (src_dtype[0] not in "iub" or src_dtype == "bf16")
    at_once = 64 if is_inner else 256 * (16 // size)
    common = dict(OP=op, SRC=src_dtype, DST=dst_dtype, INNER=is_inner)
    common["LONG"] = int(rounds and per_part // at_once > 1024)
    if common["LONG"]:
        sharers = threads = 256
    columns = ceil_div(inner, 32) if is_inner else 1
    grid = min(outer * parts * columns, 1 << 30)
    if parts == 1:
        args = ReduceArgs(outer, reduced, inner, 1, max(1, reduced), reduced, src, dst)
        spec = Spec("reduce.cu", STAGE=0, THREADS=threads, SHARERS=sharers, PACK=16 // size, **common)
        return [Launch(spec, args, ceil_div(grid, threads // sharers))]
    first = ReduceArgs(outer, reduced, inner, parts, per_part, reduced, src, workspace)
    second = ReduceArgs(outer, parts, inner, 1, parts, reduced, workspace, dst)
    kept = accumulator_size(op, src_dtype)
    return [
        Launch(Spec("reduce.cu", STAGE=1, THREADS=256, SHARERS=256, PACK=16 // size, **common), first, grid),
        Launch(Spec("reduce.cu", STAGE=2, THREADS=256, SHARERS=256, PACK=16 // kept, **common | {"LONG": 0}), second, outer * columns),
    ]


def arg_reduce(op, src_dtype, dst_dtype, outer, reduced, inner, src, dst, workspace):
    parts = parts_for(outer, reduced, inner)
    per_part = ceil_div(reduced, parts)
    is_inner = int(inner > 1)
    columns = ceil_div(inner, 32) if is_inner else 1
    common = dict(OP=op, SRC=src_dtype, INNER=is_inner, THREADS=256 if is_inner else 128)
    narrow = int(dst_dtype == "i32")
    grid = min(outer * parts * columns, 1 << 30)
    if parts == 1:
        args = ArgReduceArgs(outer, reduced, inner, 1, reduced, src, dst, narrow)
        return [Launch(Spec("arg_reduce.cu", STAGE=0, **common), args, grid)]
    first = ArgReduceArgs(outer, reduced, inner, parts, per_part, src, workspace, narrow)
    second = ArgReduceArgs(outer, parts, inner, 1, parts, workspace, dst, narrow)
    return [
        Launch(Spec("arg_reduce.cu", STAGE=1, **common), first, grid),
        Launch(Spec("arg_reduce.cu", STAGE=2, **common), second, outer * columns),
    ]

"""Elements, correct rounding, and the file format of README.md."""

import hashlib
import math
import random
import struct
import zlib

from mpmath import mp

mp.prec = 160

# Core ids of the dtypes, and bytes of an element.
DTYPES = {
    "bool": (1, 1), "i8": (2, 1), "u8": (3, 1), "i16": (4, 2), "u16": (5, 2), "i32": (6, 4), "u32": (7, 4),
    "i64": (8, 8), "u64": (9, 8), "f16": (10, 2), "bf16": (11, 2), "f32": (12, 4), "f64": (13, 8),
    "complex64": (14, 8), "complex128": (15, 16),
}
INTS = ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"]
FLOATS = ["f16", "bf16", "f32", "f64"]
PARTS = {"complex64": "f32", "complex128": "f64"}
# Significant bits, exponents of the smallest normal and of the largest number.
SHAPES = {"f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127), "f64": (53, -1022, 1023)}
NAN = math.nan
INF = math.inf


def int_range(dtype):
    if dtype == "bool":
        return 0, 1
    bits = 8 * DTYPES[dtype][1]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype[0] == "i" else (0, (1 << bits) - 1)


def wrap(dtype, x):
    bits = 8 * DTYPES[dtype][1]
    x &= (1 << bits) - 1
    return x - (1 << bits) if dtype[0] == "i" and x >> bits - 1 else x


def rounded(dtype, x):
    """x, an mpf, int or float, as the nearest number of a float dtype (ties to even), as a float."""
    if isinstance(x, float):
        if x == 0 or not math.isfinite(x):
            return x
    x = mp.mpf(x)
    if mp.isnan(x):
        return NAN
    if mp.isinf(x):
        return INF if x > 0 else -INF
    sign, man, exp, bits = x._mpf_
    if man == 0:
        return 0.0
    man = int(man)
    precision, least, most = SHAPES[dtype]
    last = max(exp + bits - 1, least) - (precision - 1)
    drop = last - exp
    if drop > bits + 1:
        kept = 0
    elif drop > 0:
        kept, rest, tie = man >> drop, man & (1 << drop) - 1, 1 << drop - 1
        kept += rest > tie or rest == tie and kept & 1
    else:
        kept, last = man, exp
    if kept.bit_length() + last > most + 1:
        value = INF
    else:
        value = math.ldexp(kept, last)
    return -value if sign else value


def settled(dtype, f, y=None):
    """f(), of which y may be the value, rounded; computed again with more than enough bits where the first ones leave
    the rounding open."""
    y = f() if y is None else y
    if isinstance(y, float) or not mp.isfinite(y) or y == 0:
        return rounded(dtype, y)
    error = mp.ldexp(1, -130)
    low, high = rounded(dtype, y * (1 - error)), rounded(dtype, y * (1 + error))
    if low == high:
        return low
    with mp.workprec(2600):
        return rounded(dtype, f())


def encode(dtype, x):
    if dtype in PARTS:
        x = complex(x)
        return encode(PARTS[dtype], x.real) + encode(PARTS[dtype], x.imag)
    if dtype == "f64":
        return struct.pack("<d", x)
    if dtype == "f32":
        return struct.pack("<f", x)
    if dtype == "f16":
        return struct.pack("<e", x)
    if dtype == "bf16":
        return b"\xc0\x7f" if math.isnan(x) else struct.pack("<f", x)[2:]
    return int(x).to_bytes(DTYPES[dtype][1], "little", signed=dtype[0] == "i")


def decode(dtype, data):
    size = DTYPES[dtype][1]
    items = [data[i : i + size] for i in range(0, len(data), size)]
    if dtype in PARTS:
        return [complex(*decode(PARTS[dtype], b)) for b in items]
    if dtype == "bf16":
        return [struct.unpack("<f", b"\0\0" + b)[0] for b in items]
    if dtype in FLOATS:
        code = {"f64": "<d", "f32": "<f", "f16": "<e"}[dtype]
        return [struct.unpack(code, b)[0] for b in items]
    return [int.from_bytes(b, "little", signed=dtype[0] == "i") for b in items]


def ordinal(dtype, x):
    """Position of a float among those of its dtype; -0 and 0 are neighbours of each other's."""
    bits = int.from_bytes(encode(dtype, x), "little")
    top = 1 << 8 * DTYPES[dtype][1] - 1
    return top - 1 - bits if bits & top else bits


def at_ordinal(dtype, n):
    size = DTYPES[dtype][1]
    top = 1 << 8 * size - 1
    bits = n if n >= 0 else top - 1 - n
    return decode(dtype, bits.to_bytes(size, "little"))[0]


def near(dtype, x, steps):
    """The numbers of a dtype within some steps of x."""
    center = ordinal(dtype, rounded(dtype, x))
    limit = ordinal(dtype, INF)
    return [at_ordinal(dtype, n) for n in range(center - steps, center + steps + 1) if abs(n) <= limit]


def limits(dtype):
    precision, least, most = SHAPES[dtype]
    largest = math.ldexp(2 - math.ldexp(1, 1 - precision), most)
    return math.ldexp(1, least - precision + 1), math.ldexp(1, least), largest


def specials(dtype):
    tiny, normal, largest = limits(dtype)
    step = math.ldexp(1, 1 - SHAPES[dtype][0])
    positive = [0.0, tiny, 2 * tiny, 3 * tiny, normal - tiny, normal, normal + tiny, step / 4, step / 2, step,
                0.25, 0.5, 0.75, 1 - step / 2, 1.0, 1 + step, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 6.0, 10.0, largest / 2, largest]
    return [s * x for x in positive for s in (1, -1)] + [INF, -INF, NAN]


def spread(dtype, rng, low=None, high=None):
    """A random number of any sign, its exponent uniform."""
    precision, least, most = SHAPES[dtype]
    exponent = rng.uniform(low if low is not None else least - precision, high if high is not None else most)
    return rng.choice((1, -1)) * 2.0 ** min(exponent, most + 0.999)


def generator(*name):
    return random.Random(hashlib.sha256("/".join(name).encode()).digest())


def distinct(given, draw, count):
    """What is given, and what `draw` gives, each once: zeros by their signs, NaN once."""
    found = {repr(x): x for x in given}
    while len(found) < count:
        x = draw()
        found.setdefault(repr(x), x)
    return list(found.values())


class File:
    """Records of one op; equal tensors are stored once."""

    def __init__(self, op):
        self.op, self.pool, self.index, self.records = op, [], {}, []

    def tensor(self, dtype, values):
        """Values of a dtype, or its bytes."""
        data = values if isinstance(values, bytes) else b"".join(encode(dtype, x) for x in values)
        key = dtype, data
        if key not in self.index:
            self.index[key] = len(self.pool)
            self.pool.append(key)
        return self.index[key]

    def add(self, *, selectors=(), dtypes=(), attrs=(), sizes=(), dims=(), scalars=(), reads=(), writes=(), scales=(),
            error=False):
        """A launch by names: dicts, but `reads` and `writes` are lists of (name, dtype, values)."""
        fields = []

        def field(kind, name, payload):
            fields.append(struct.pack("<BB", kind, len(name)) + name.encode() + payload)

        for name, value in dict(selectors).items():
            field(0, name, struct.pack("<B", len(value)) + value.encode())
        for name, value in dict(dtypes).items():
            field(1, name, struct.pack("<I", DTYPES[value][0]))
        for name, value in dict(attrs).items():
            field(2, name, struct.pack("<d", value))
        for name, value in dict(sizes).items():
            field(3, name, struct.pack("<q", value))
        for name, value in dict(dims).items():
            field(4, name, struct.pack(f"<B{len(value)}q", len(value), *value))
        for name, value in dict(scalars).items():
            field(5, name, scalar(value))
        for kind, operands in ((6, reads), (7, writes)):
            for name, dtype, values in operands:
                field(kind, name, struct.pack("<I", self.tensor(dtype, values)))
        for name, values in dict(scales).items():
            # Sizes need few digits, but the range of what they are the size of.
            narrow = "f64" if next(d for n, d, _ in writes if n == name) in ("f64", "complex128") else "f32"
            field(8, name, struct.pack("<I", self.tensor(narrow, [rounded(narrow, float(x)) for x in values])))
        if error:
            field(9, "", b"")
        self.records.append(struct.pack("<H", len(fields)) + b"".join(fields))

    def write(self, folder):
        out = [struct.pack("<II", len(self.pool), len(self.records))]
        for dtype, data in self.pool:
            out.append(struct.pack("<IQ", DTYPES[dtype][0], len(data)) + data)
        data = b"EPGOLD01" + zlib.compress(b"".join(out + self.records), 9)
        (folder / f"{self.op}.bin").write_bytes(data)
        print(f"{self.op}: {len(self.records)} records, {len(data)} bytes", flush=True)


def scalar(x):
    if isinstance(x, bool):
        return struct.pack("<BQQ", 1, x, 0)
    if isinstance(x, int):
        return struct.pack("<BqQ", 2, x, 0) if x < 1 << 63 else struct.pack("<BQQ", 3, x, 0)
    if isinstance(x, float):
        return struct.pack("<BdQ", 4, x, 0)
    return struct.pack("<Bdd", 5, x.real, x.imag)

"""The table of cases, and what their functions use: data and comparisons."""
import itertools
import os
import re
import zlib

import numpy as np

import plan
import references as ref
from device import KERNELS
from memory import numpy_dtype

SIZE = plan.SIZE
FLOATS, INTS = ["f32", "f64", "f16", "bf16"], ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"]
CASES = {}


def case(name, *values):
    """Adds a case for each combination of the values: a function of memory and the values, which yields its launches and,
    once they are done, compares."""
    def add(f):
        for value in itertools.product(*values) if values else [()]:
            CASES["/".join([name, *map(str, value)])] = (f, value)
        return f

    return add


def names(file, enum):
    text = open(os.path.join(KERNELS, file)).read()
    return [n.strip() for n in re.search(enum + r" \{(.*?)\}", text, re.S)[1].split(",") if n.strip()]


def rng_of(*key):
    """The same numbers in every run."""
    return np.random.default_rng(zlib.crc32(str(key).encode()))


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

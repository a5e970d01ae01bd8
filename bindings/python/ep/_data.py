"""Elements on the host: from and to numbers of Python, buffers and arrays."""
import array
import ctypes
import math
import numbers
import struct
import sys
from collections import namedtuple

# `code` of the modules array and struct, of one part for complex numbers; `kind` and `size` of NumPy's dtypes.
Dtype = namedtuple("Dtype", "code kind size")

DTYPES = {
    "bool": Dtype("?", "b", 1),
    "i8": Dtype("b", "i", 1),
    "u8": Dtype("B", "u", 1),
    "i16": Dtype("h", "i", 2),
    "u16": Dtype("H", "u", 2),
    "i32": Dtype("i", "i", 4),
    "u32": Dtype("I", "u", 4),
    "i64": Dtype("q", "i", 8),
    "u64": Dtype("Q", "u", 8),
    "f16": Dtype("e", "f", 2),
    "bf16": Dtype("H", None, 2),
    "f32": Dtype("f", "f", 4),
    "f64": Dtype("d", "f", 8),
    "complex64": Dtype("f", "c", 8),
    "complex128": Dtype("d", "c", 16),
}
_BY_KIND = {(d.kind, d.size): name for name, d in DTYPES.items() if d.kind}
# Kinds of the codes of buffers, whose sizes the buffers tell.
_KINDS = {**dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BHILQN", "u"), **dict.fromkeys("efd", "f"), "?": "b"}
MAX_RANK = 8

# Elements as the library takes them: `memory` is anything that `address` keeps alive.
Elements = namedtuple("Elements", "dtype shape memory")


def numpy():
    """NumPy if the program has imported it, or can."""
    try:
        import numpy as module
    except ImportError:
        return None
    return module


def elements(data, dtype=None, shape=None):
    """The elements of numbers, lists of them, buffers or arrays, in their own dtype.

    `dtype` is what numbers become, and what the bytes of `bytes`, `bytearray` and `memoryview` mean; None: what the data
    says. `shape` is for another shape than the data has.
    """
    if isinstance(data, (bytes, bytearray)) or (isinstance(data, memoryview) and data.format in ("B", "b", "c")):
        found = _raw(data, dtype or "u8")
    elif hasattr(data, "__array_interface__"):
        found = _array(data)
    else:
        view = _view(data)
        found = _numbers(data, dtype) if view is None else _buffer(view)
    if shape is None:
        return found
    shape = sizes(shape)
    if math.prod(shape) != math.prod(found.shape):
        raise ValueError(f"{math.prod(found.shape)} elements for the shape {shape}")
    return found._replace(shape=shape)


def sizes(shape):
    """A shape as a list; one number is one dimension."""
    given = [shape] if isinstance(shape, numbers.Integral) else list(shape)
    if not all(isinstance(n, numbers.Integral) for n in given):
        raise TypeError(f"the shape {shape!r} has something that is no integer")
    return [int(n) for n in given]


def _raw(data, dtype):
    known = DTYPES.get(dtype)
    if known is None:
        raise ValueError(f"bytes of the dtype {dtype!r}; it is none of {', '.join(DTYPES)}")
    content = data if isinstance(data, bytes) else memoryview(data).tobytes()
    if len(content) % known.size:
        raise ValueError(f"{len(content)} bytes are no whole number of {dtype}, which has {known.size}")
    return Elements(dtype, [len(content) // known.size], content)


def _view(data):
    """The memory of a buffer, such as `array.array` and arrays of ctypes; None of anything else."""
    try:
        return memoryview(data)
    except TypeError:
        return None


def _array(data):
    module = numpy()
    if module is None:
        raise TypeError(f"{type(data).__name__} is an array, and NumPy, which reads arrays, is not installed")
    content = module.asarray(data)
    dtype = _BY_KIND.get((content.dtype.kind, content.dtype.itemsize))
    if dtype is None:
        raise TypeError(f"an array of {content.dtype}, which no dtype of {', '.join(_BY_KIND.values())} is like; convert it")
    # Order in memory and order of bytes; nothing is copied where both are right.
    return Elements(dtype, list(content.shape), content.astype(content.dtype.newbyteorder("="), order="C", copy=False))


def _buffer(view):
    order, code = ("@", view.format) if len(view.format) == 1 else (view.format[0], view.format[1:])
    dtype = _BY_KIND.get((_KINDS.get(code), view.itemsize))
    foreign = {"<": "big", ">": "little", "!": "little"}.get(order) == sys.byteorder
    if dtype is None or foreign:
        raise TypeError(f"a buffer of the format {view.format!r}; give numbers, or bytes with a dtype")
    return Elements(dtype, list(view.shape), view.tobytes())


def _numbers(data, dtype):
    flat, shape = [], []
    _collect(data, 0, flat, shape)
    if dtype is None:
        dtype = _inferred(flat)
    elif dtype not in DTYPES:
        raise ValueError(f"numbers as {dtype!r}; it is none of {', '.join(DTYPES)}")
    # The device rounds to bf16, which Python does not have.
    dtype = "f32" if dtype == "bf16" else dtype
    try:
        return Elements(dtype, shape, packed(flat, dtype))
    except OverflowError as e:
        raise OverflowError(f"numbers as {dtype}: {e}") from None
    except (TypeError, struct.error) as e:
        raise TypeError(f"numbers as {dtype}: {e}") from None


def _is_number(value):
    return isinstance(value, numbers.Complex) or type(value).__name__ in ("bool_", "bool")


def _collect(data, depth, flat, shape):
    """Numbers of nested lists to `flat`, and the sizes of the levels, which have to be equal, to `shape`."""
    if _is_number(data):
        if depth != len(shape):
            raise ValueError(f"a number beside a list at depth {depth}: {data!r}")
        flat.append(data)
        return
    if not isinstance(data, (list, tuple, range)):
        raise TypeError(f"{type(data).__name__} is no number, list, buffer or array")
    if depth == MAX_RANK:
        raise ValueError(f"lists in more than {MAX_RANK} levels")
    if depth == len(shape):
        if flat:
            raise ValueError(f"a list beside a number at depth {depth}: {data!r:.80}")
        shape.append(len(data))
    if len(data) != shape[depth]:
        raise ValueError(f"lists of {shape[depth]} and of {len(data)} elements at depth {depth}")
    for item in data:
        _collect(item, depth + 1, flat, shape)


def _inferred(flat):
    """The dtype that holds all of some numbers, as PyTorch chooses it; f32 where there are none."""
    if not flat:
        return "f32"
    if all(isinstance(x, bool) or not isinstance(x, numbers.Complex) for x in flat):
        return "bool"
    if all(isinstance(x, numbers.Integral) for x in flat):
        return "i64"
    return "f32" if all(isinstance(x, numbers.Real) for x in flat) else "complex64"


def packed(flat, dtype):
    """Numbers as bytes. A float for an integer, and what is out of range, is an error; floats overflow to infinity."""
    known = DTYPES[dtype]
    if dtype == "bool":
        wrong = [x for x in flat if x not in (0, 1)]
        if wrong:
            raise TypeError(f"{wrong[0]!r} is neither True nor False")
        return bytes(map(bool, flat))
    if known.kind == "c":
        parts = [complex(x) for x in flat]
        return array.array(known.code, [part for x in parts for part in (x.real, x.imag)]).tobytes()
    if dtype == "f16":
        return struct.pack(f"{len(flat)}e", *map(float, flat))
    return array.array(known.code, flat).tobytes()


def unpacked(content, dtype):
    """Bytes as a flat list of numbers of Python."""
    known = DTYPES[dtype]
    if dtype == "bf16":
        return list(struct.unpack(f"{len(content) // 2}f", b"".join(_widened(content))))
    values = memoryview(content).cast(known.code).tolist() if known.code != "e" else list(
        struct.unpack(f"{len(content) // 2}e", content))
    if known.kind == "c":
        return [complex(*parts) for parts in zip(values[::2], values[1::2])]
    return values


def _widened(content):
    """bf16 is the upper half of an f32."""
    for (bits,) in struct.iter_unpack("H", content):
        yield struct.pack("I", bits << 16)


def nested(flat, shape):
    """A flat list as lists of lists; without dimensions, the number."""
    if not shape:
        return flat[0]
    for size in reversed(shape[1:]):
        count = len(flat) // size if size else math.prod(shape[:-1])
        flat = [flat[i * size:(i + 1) * size] for i in range(count)]
    return flat if all(shape[1:]) else _hollow(shape)


def _hollow(shape):
    """The lists around no elements."""
    return [_hollow(shape[1:]) for _ in range(shape[0])] if len(shape) > 1 else []


def address(memory):
    """Where bytes or an array are, while they live."""
    if isinstance(memory, bytes):
        return ctypes.cast(ctypes.c_char_p(memory), ctypes.c_void_p).value
    return memory.__array_interface__["data"][0]

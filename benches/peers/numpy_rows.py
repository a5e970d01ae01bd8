"""NumPy as a peer. `prepare` turns a row into a callable and its arguments, which the comparison then calls through
Python's C API, without any bytecode in between where one NumPy function computes the row.

The row is JSON: {"call", "inputs": [[address, dtype, dims], ...], "output": [address, dtype, dims], "ints"}.
"""

import ctypes
import json

import ml_dtypes
import numpy as np

DTYPES = {
    "bool": np.bool_, "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16, "i32": np.int32,
    "u32": np.uint32, "i64": np.int64, "u64": np.uint64, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "f32": np.float32, "f64": np.float64, "complex64": np.complex64, "complex128": np.complex128,
}
UNARY = {"exp": np.exp, "log": np.log, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "expm1": np.expm1}
BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum, "pow": np.power,
    "floor_mod": np.remainder, "less_than": np.less, "equal": np.equal, "logical_and": np.logical_and,
}
REDUCE = {
    "reduce_sum": np.add.reduce, "reduce_max": np.maximum.reduce, "reduce_min": np.minimum.reduce,
    "reduce_prod": np.multiply.reduce, "reduce_any": np.logical_or.reduce, "reduce_all": np.logical_and.reduce,
}


def array(description):
    address, dtype, dims = description
    dtype = np.dtype(DTYPES[dtype])
    size = int(np.prod(dims, dtype=np.int64)) * dtype.itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(dims)


def one_hot(out, rows, index):
    out.fill(0)
    out[rows, index] = 1


def pad(out, inside, source):
    out.fill(0)
    np.copyto(inside, source)


def build(row):
    """Callable, arguments, names of the last ones that are keywords."""
    call, ints = row["call"], row["ints"]
    x = [array(i) for i in row["inputs"]]
    out = array(row["output"])
    if call in UNARY:
        return UNARY[call], (x[0], out), ()
    if call in BINARY:
        return BINARY[call], (x[0], x[1], out), ()
    if call == "div" and out.dtype.kind == "f":
        return np.divide, (x[0], x[1], out), ()
    if call == "relu":
        return np.maximum, (x[0], x[0].dtype.type(0), out), ()
    if call in REDUCE:
        return REDUCE[call], (x[0], ints[0], None, out), ()
    if call == "reduce_mean" and out.dtype.kind == "f":
        return np.mean, (x[0], ints[0], None, out), ()
    if call in ("argmax", "argmin"):
        return getattr(np, call), (x[0], ints[0], out), ()
    if call in ("copy", "expand"):
        return np.copyto, (out, x[0]), ()
    if call == "cast":
        return np.copyto, (out, x[0], "unsafe"), ("casting",)
    if call in ("fill", "zero"):
        return out.fill, (1.5 if call == "fill" else 0,), ()
    if call == "permute":
        return np.copyto, (out, x[0].transpose(ints)), ()
    if call == "slice":
        (a, b, s, t), (m, n) = ints, out.shape
        return np.copyto, (out, x[0][a : a + (m - 1) * s + 1 : s, b : b + (n - 1) * t + 1 : t]), ()
    if call == "gather":
        return np.take, (x[1], x[0], ints[0], out, "clip"), ()
    if call == "pad":
        rank = len(ints) // 2
        before, after = ints[:rank], ints[rank:]
        cut = lambda b, a, n: slice(max(b, 0), n - max(a, 0))
        inside = tuple(cut(b, a, n) for b, a, n in zip(before, after, out.shape))
        source = tuple(cut(-b, -a, n) for b, a, n in zip(before, after, x[0].shape))
        return pad, (out, out[inside], x[0][source]), ()
    if call == "one_hot":
        return one_hot, (out, np.arange(len(x[0])), x[0]), ()
    if call == "matmul" and out.dtype.kind in "fc" and out.dtype.itemsize > 2:
        a, b = (v.swapaxes(-1, -2) if t else v for v, t in zip(x, ints))
        return np.matmul, (a, b, out), ()
    raise NotImplementedError(f"no call {call}")


def prepare(text):
    """(callable, arguments, keyword names or None), or the reason why there is none as a string."""
    try:
        call, arguments, keywords = build(json.loads(text))
        return call, arguments, keywords or None
    except Exception as error:
        return f"{type(error).__name__}: {error}"

"""Names of operators, their inputs and attributes. A test compares them with what the library says."""
from collections import namedtuple

# An attribute that has to be given.
REQUIRED = object()

# `inputs` are names of tensors, `attributes` names with defaults (None: the library's), `about` says what comes out.
Name = namedtuple("Name", "inputs attributes about")

_MODE = "`mode` of an index outside: wrap counts from the end, zero skips it, error refuses it."

NAMES = {
    # What computes.
    "add_n": Name("*xs", {}, "The sum of up to 256 tensors of one shape."),
    "arg_reduce": Name(
        "x", {"op": REQUIRED, "dim": REQUIRED, "keep_dims": False, "dtype": "i64"},
        "Where the largest (op `argmax`) or the smallest (`argmin`) element along dim is."),
    "batch_gather": Name(
        "params, indices", {"axis": REQUIRED, "batch_dims": REQUIRED, "mode": "wrap", "window": None},
        f"Parts of params by index, for each of the first batch_dims dimensions by its own. {_MODE}"),
    "binary": Name(
        "a, b", {"op": REQUIRED, "attrs": None},
        "A function of two tensors whose shapes broadcast: add, sub, mul, div, max, pow, equal, less ... A wrong op lists all.\n\n"
        "`attrs` are the parameters of those functions that have some."),
    "binary_scalar": Name(
        "x", {"op": REQUIRED, "scalar": REQUIRED, "first": False, "attrs": None},
        "The same with a number as the second argument, or with first=True as the first one."),
    "cast": Name("x", {"dtype": REQUIRED}, "Converted to another dtype, always a new tensor."),
    "concat": Name("*xs", {"dim": 0}, "One after another along dim."),
    "constant_pad": Name(
        "x", {"before": REQUIRED, "after": REQUIRED, "value": None},
        "With so many elements of value (0) before and after each dimension; negative numbers crop."),
    "gather": Name(
        "params, indices", {"axis": 0, "mode": "wrap", "window": None}, f"Parts of params along axis, by index. {_MODE}"),
    "layer_norm": Name(
        "x, gamma?, beta?", {"dims": 1, "epsilon": 1e-5, "scale": False, "shift": False, "stats": False},
        "Normalised over the last dims dimensions; scale, shift: whether gamma, beta are given; stats: also mean and rstd."),
    "log_softmax": Name("x", {"dim": -1, "dtype": None}, "The logarithm of softmax."),
    "log_softmax_backward": Name("y, dy", {"dim": -1, "dtype": None}, "The gradient of log_softmax, by its result."),
    "matmul": Name("a, b", {}, "Product of matrices, batches of them, or vectors."),
    "one_hot": Name(
        "indices", {"depth": REQUIRED, "mode": "error", "on": None, "off": None, "dtype": "f32", "window": None},
        f"on (1) at each index of a new last dimension of depth elements, off (0) elsewhere. {_MODE}"),
    "reduce": Name(
        "x", {"op": REQUIRED, "dims": (), "keep_dims": False, "dtype": None},
        "sum, mean, max, min, prod, any or all over dims (none: all)."),
    "rms_norm": Name(
        "x, weight?", {"dims": 1, "epsilon": 1e-5, "scale": False, "stats": False},
        "Divided by the root of the mean square over the last dims; scale: whether weight is given; stats: also 1 / root."),
    "scatter_add": Name(
        "base, indices, src", {"axis": 0, "mode": "wrap", "window": None},
        f"base with the parts of src added at indices along axis. {_MODE}"),
    "softmax": Name("x", {"dim": -1, "dtype": None}, "Exponentials along dim that add up to 1."),
    "softmax_backward": Name("y, dy", {"dim": -1, "dtype": None}, "The gradient of softmax, by its result."),
    "unary": Name(
        "x", {"op": REQUIRED, "attrs": None, "dtype": None},
        "A function of each element: relu, gelu, exp, sqrt, negative, logical_not ... A wrong op lists all.\n\n"
        "`attrs` are the parameters of those functions that have some, such as `hard_tanh`: [min, max]."),
    "where": Name("cond, x, y", {}, "x where cond is not 0, else y; shapes broadcast."),
    # Views: they share the memory of their input.
    "alias": Name("x", {}, "The same elements."),
    "as_strided": Name(
        "x", {"shape": REQUIRED, "strides": REQUIRED, "offset": 0}, "Any elements of the memory, by steps in elements."),
    "expand": Name("x", {"shape": REQUIRED}, "Dimensions of one element repeated, without a copy."),
    "flip": Name("x", {"dims": REQUIRED}, "Backwards along dims."),
    "narrow": Name("x", {"dim": REQUIRED, "start": REQUIRED, "len": REQUIRED}, "A part of a dimension."),
    "permute": Name("x", {"dims": REQUIRED}, "The dimensions in another order."),
    "select": Name("x", {"dim": REQUIRED, "index": REQUIRED}, "One index of a dimension, which is left out."),
    "slice": Name("x", {"dim": 0, "start": 0, "end": None, "step": 1}, "Every step-th of a part of a dimension."),
    "squeeze": Name("x", {"dim": None}, "Without a dimension of one element (None: without all of them)."),
    "transpose": Name("x", {"a": REQUIRED, "b": REQUIRED}, "Two dimensions exchanged."),
    "unfold": Name(
        "x", {"dim": REQUIRED, "size": REQUIRED, "step": REQUIRED}, "Windows of size elements along dim, as a new last one."),
    "unsqueeze": Name("x", {"dim": REQUIRED}, "With a new dimension of one element."),
    "view": Name("x", {"shape": REQUIRED}, "Another shape, -1 for one size, where the strides allow it."),
    # Copies; the input itself where nothing has to be done, but for `clone`.
    "clone": Name(
        "x", {"format": "preserve"}, "A copy. format: contiguous, channels_last, channels_last_3d, preserve."),
    "contiguous": Name("x", {"format": "contiguous"}, "With the strides of a format, copied if it has others."),
    "copy": Name("dst, src", {}, "Writes src into dst, broadcast and converted, also from another device; gives None."),
    "flatten": Name("x", {"start": 0, "end": -1}, "Dimensions start to end as one."),
    "reshape": Name("x", {"shape": REQUIRED}, "Another shape, -1 for one size."),
    "to_device": Name("x", {}, "On the session's device; x may be on any other."),
    "to_dtype": Name("x", {"dtype": REQUIRED}, "Converted to another dtype, or x itself where it has that."),
    # From nothing.
    "arange": Name(
        "", {"dtype": REQUIRED, "start": None, "end": REQUIRED, "step": None}, "start (0), start + step (1), ... before end."),
    "empty": Name("", {"dtype": REQUIRED, "shape": REQUIRED}, "Nothing yet: reading it before it is written is an error."),
    "full": Name("", {"dtype": REQUIRED, "shape": REQUIRED, "value": REQUIRED}, "One value."),
    "zeros": Name("", {"dtype": REQUIRED, "shape": REQUIRED}, "Zeros."),
}

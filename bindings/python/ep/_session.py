"""Sessions: a device, a stream of work on it, and operators by name."""
import atexit
import functools
import inspect
import json
import math
import numbers
import operator
import os
import sys
import weakref
from ctypes import byref, c_char_p, c_int64, c_size_t, c_uint64, c_void_p

from . import _data, _dlpack
from ._library import Error, Handle, checked, library, taken_text, text
from ._names import NAMES, REQUIRED
from ._tensor import Tensor
from ._weights import Weights

_opened = weakref.WeakSet()
_PROCESS = os.getpid()


@atexit.register
def _finish():
    """Waits for the work of the sessions that are left, which may use memory of Python, before Python ends."""
    # The work of a forked child's parent is the parent's.
    for session in list(_opened) if os.getpid() == _PROCESS else ():
        try:
            session.sync()
        except ValueError:
            pass  # Closed, and its work is done.
        except Error as e:
            print(f"work of a session on {session.device} failed: {e}", file=sys.stderr)


# Outputs that a call has room for; no operator has more than 3.
_CAPACITY = 8
_Outputs = c_void_p * _CAPACITY
# Arrays of so many inputs, as most calls have.
_POINTERS = tuple(c_void_p * count for count in range(5))


_encoded = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


@functools.lru_cache(maxsize=1024)
def _operator(name, attributes):
    """An operator, which any session can run; those that were used last are kept."""
    pointer = c_void_p()
    library().ep_operator_new(name, attributes, byref(pointer))
    return Handle(pointer.value, library().ep_operator_free)


def _attribute(value, depth=0):
    """A value as JSON has it: what it has no number for is text, and a complex number a list of two parts."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        value = float(value)
        if math.isfinite(value):
            return value
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, numbers.Complex):
        return [_attribute(float(value.real)), _attribute(float(value.imag))]
    if depth > _data.MAX_RANK:
        raise ValueError(f"an attribute of lists in more than {_data.MAX_RANK} levels")
    if isinstance(value, (list, tuple, range)):
        return [_attribute(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {name: _attribute(item, depth + 1) for name, item in value.items()}
    raise TypeError(f"{type(value).__name__} is no attribute; they are numbers, str, bool, and lists and dicts of them")


# Attributes whose operator is kept with what they are, and lists of integers. Equal values of other types are other attributes,
# and so is -0.0.
_PLAIN = frozenset((int, str, bool))
_INTEGERS = frozenset((int,))


def _prepared(name, attributes):
    """The operator of a name with these attributes."""
    key = [name if type(name) is str else text(name, "name of the operator").decode()]
    for attribute, value in attributes.items():
        kind = type(value)
        if kind is list or kind is tuple:
            value = tuple(value)
            if len(value) > _data.MAX_RANK or not _INTEGERS.issuperset(map(type, value)):
                break
        elif kind not in _PLAIN:
            break
        key += (attribute, kind, value)
    else:
        return _plain(tuple(key))
    return _operator(text(name, "name of the operator"), _attributes(attributes))


@functools.lru_cache(maxsize=1024)
def _plain(key):
    """The same by a name and three items for each attribute, which can be looked up as they are."""
    name, *attributes = key
    given = dict(zip(attributes[::3], attributes[2::3]))
    return _operator(text(name, "name of the operator"), _attributes(given))


def _attributes(given):
    """Attributes as JSON, equal for equal ones. None: not given."""
    found = {name: _attribute(value) for name, value in given.items() if value is not None}
    return _encoded(found).encode()


class Session:
    """A device, a stream of work on it, and devices that stand in for it. Made by `Runtime.session`.

    Each operator is a method: `session.softmax(x, dim=-1)`. Inputs are tensors of the session's device, attributes are given
    by name, and results are new tensors, but for views, which share the memory of their input. `ep.NAMES` lists them all. Work
    is queued; what reads a tensor waits for it. Any thread may use a session.
    """

    def __init__(self, runtime, device, fallback=(), native=None):
        names = [fallback] if isinstance(fallback, str) else list(fallback)
        names = [text(name, "name of a fallback device") for name in names]
        others = (c_char_p * len(names))(*names), len(names)
        owner, pointer = runtime._live(), c_void_p()
        device = text(device, "device")
        if native is None:
            library().ep_session_open(owner.pointer, device, *others, byref(pointer))
        else:
            kind, handle = text(native[0], "kind of the stream"), operator.index(native[1])
            library().ep_session_adopt(owner.pointer, device, kind, handle, *others, byref(pointer))
        self._handle = Handle(pointer.value, library().ep_session_free)
        self._device = library().ep_session_device(pointer).decode()
        self._place = None
        _opened.add(self)

    def _live(self):
        handle = self._handle
        if handle is None:
            raise ValueError(f"the session on {self._device} is closed")
        return handle

    @property
    def device(self):
        """The device, as `cuda:0`."""
        return self._device

    @property
    def native(self):
        """The native stream, (kind, handle), such as ("CUstream", 94012345). `Unsupported` where there is none."""
        handle, kind, native = self._live(), c_void_p(), c_uint64()
        library().ep_session_native(handle.pointer, byref(kind), byref(native))
        return taken_text(kind.value), native.value

    def sync(self):
        """Waits for all work, and raises its first error, once."""
        handle = self._live()
        checked(library().ep_session_sync(handle.pointer))
        _dlpack.sweep()

    def fallbacks(self):
        """What ran on other devices so far: [{operator, from, to, bytes, times, reason}], with the bytes that were copied."""
        handle, out = self._live(), c_void_p()
        library().ep_session_fallbacks(handle.pointer, byref(out))
        return json.loads(taken_text(out.value))

    def close(self):
        """Frees the session, after its work is done. Its tensors keep their memory, but need an open session to be read."""
        self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        try:
            if kind is None:
                self.sync()
        finally:
            self.close()

    def __repr__(self):
        return f"<ep.Session on {self._device}{', closed' if self._handle is None else ''}>"

    def tensor(self, data, dtype=None, shape=None):
        """A tensor with a copy of these elements.

        `data`: a number or nested lists (bool, i64, f32 or complex64 by what is in them), an array of NumPy or anything with
        `__array_interface__`, a buffer such as `array.array`, or bytes, whose elements are of `dtype`, u8 by default. Arrays
        and buffers are converted on the device where `dtype` is another. `shape`: another one for the same elements.
        """
        if isinstance(data, Tensor):
            raise TypeError("this is a tensor already; use to_device, to_dtype or clone")
        if dtype is not None and not isinstance(dtype, str):
            raise TypeError(f"the dtype is a {type(dtype).__name__}; give a name such as \"f32\"")
        handle, found, pointer = self._live(), _data.elements(data, dtype, shape), c_void_p()
        rank, memory = len(found.shape), found.memory
        count = len(memory) if isinstance(memory, bytes) else memory.nbytes
        library().ep_tensor_from_bytes(
            handle.pointer, text(found.dtype, "dtype"), _sizes(found.shape), rank, _data.address(memory), count, byref(pointer))
        made = Tensor(self, pointer.value)
        return made if dtype in (None, found.dtype) else self.run("to_dtype", made, dtype=dtype)

    def from_dlpack(self, x):
        """A tensor that shares the memory of another library's array, which has to be on this device: nothing is copied.

        While the tensor, or work on it, uses the memory, nobody else may write it out of order with the session's stream.
        Elements of a bool array have to be 0 or 1.
        """
        if not hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__"):
            raise TypeError(f"{type(x).__name__} has no __dlpack__ and __dlpack_device__; use tensor() for a copy")
        handle = self._live()
        here, there = self._dlpack_device(), tuple(map(int, x.__dlpack_device__()))
        if here != there:
            raise BufferError(
                f"memory of DLPack's device {there} for a session on {self._device}, which is {here}; bring it there first")
        # Without max_version this asks for a capsule without a version.
        managed = _dlpack.taken(x.__dlpack__() if here[0] == _dlpack.CPU else x.__dlpack__(stream=self._stream()))
        pointer = c_void_p()
        library().ep_tensor_from_dlpack(handle.pointer, managed, byref(pointer))
        return Tensor(self, pointer.value)

    def prepack(self, matrix):
        """A matrix `[k, n]` in the form that the device reads fastest, for many products `x @ weights`: weights that do not change.

        A transposed view, of weights that are stored as `[n, k]`, need not be copied before. Where the device gains nothing
        (`packed_bytes` is 0), the matrix is kept and read as it is, so that it must not be written.
        """
        return Weights(self, matrix)

    def _stream(self):
        """The stream as DLPack numbers those of CUDA, whose default one is 1."""
        kind, native = self.native
        if kind != "CUstream":
            raise BufferError(f"{self._device} has streams of the kind {kind}, which DLPack does not know")
        return native or 1

    def _dlpack_device(self):
        """(type, number) as DLPack counts devices, which the library tells of a tensor."""
        if self._place is None:
            one, managed = self.tensor(b"\0"), c_void_p()
            try:
                library().ep_tensor_to_dlpack(one._handle.pointer, byref(managed))
            except Error as e:
                raise BufferError(str(e)) from e
            self._place = _dlpack.place(managed.value)
        return self._place

    def _called(self, name, inputs, attributes):
        """The operator, the inputs for the library, and whether all of these are of this session."""
        wanted = _prepared(name, attributes)
        pointers, own = [], True
        for x in inputs:
            if not isinstance(x, Tensor):
                raise TypeError(
                    f"input {len(pointers)} of {name} is a {type(x).__name__}; inputs are tensors, given one by one: see "
                    "Session.tensor")
            pointers.append(x._handle.pointer)
            own = own and x._session is self
        count = len(pointers)
        array = _POINTERS[count] if count < len(_POINTERS) else c_void_p * count
        return wanted, array(*pointers), own

    def run(self, name, /, *inputs, **attributes):
        """Runs an operator by its name: a tensor, a tuple of several, or None where it has no output."""
        handle = self._live()
        wanted, given, own = self._called(name, inputs, attributes)
        outputs, count = _Outputs(), c_size_t()
        checked(library().ep_operator_run(
            handle.pointer, wanted.pointer, given, len(inputs), outputs, _CAPACITY, byref(count)))
        made = [Tensor(self, pointer) for pointer in outputs[:count.value]]
        if not own:
            for tensor in made:
                # A view is where its input is, and is read by that one's session.
                if tensor.device != self._device:
                    tensor._session = next((x._session for x in inputs if x.device == tensor.device), self)
        return made[0] if len(made) == 1 else tuple(made) or None

    def run_in_place(self, name, /, *inputs, **attributes):
        """Runs an operator of one output and leaves that in the first input, whose dtype and shape it has; gives that input."""
        handle = self._live()
        wanted, given, _ = self._called(name, inputs, attributes)
        checked(library().ep_operator_run_in_place(handle.pointer, wanted.pointer, given, len(inputs)))
        return inputs[0]


def _sizes(shape):
    for n in shape:
        if not -2**63 <= n < 2**63:
            raise ValueError(f"the size {n} has more than 64 bits")
    return (c_int64 * len(shape))(*shape)


def _method(name):
    """The method of an operator, with its attributes for `help`."""
    known = NAMES[name]

    def method(self, *inputs, **attributes):
        return self.run(name, *inputs, **attributes)

    method.__name__ = name
    method.__qualname__ = f"Session.{name}"
    inputs = f"Inputs: {known.inputs}." if known.inputs else "No inputs."
    method.__doc__ = f"{known.about}\n\n{inputs}"
    parameters = [
        inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY),
        inspect.Parameter("inputs", inspect.Parameter.VAR_POSITIONAL),
    ]
    for attribute, default in known.attributes.items():
        default = inspect.Parameter.empty if default is REQUIRED else default
        parameters.append(inspect.Parameter(attribute, inspect.Parameter.KEYWORD_ONLY, default=default))
    method.__signature__ = inspect.Signature(parameters)
    return method


for _name in NAMES:
    setattr(Session, _name, _method(_name))

"""libep_host: where it is, its functions, its errors, and who frees its objects."""
import ctypes
import functools
import os
import sys
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

VERSION = "0.1.0"
FILE = "libep_host.so"
BUILD = "`cargo build --release -p ep-host` in EP's repository makes target/release/libep_host.so"
# Of EP_CODE_* in ep_plugin.h.
CODES = ["Ok", "InvalidArgument", "NotFound", "Unsupported", "Unavailable", "OutOfMemory", "DeviceLost", "Internal", "Panic",
         "AbiMismatch", "Refused"]


class LibraryError(ImportError):
    """libep_host.so was not found, or is of another version."""


class Error(Exception):
    """What the library answers to a call that fails. `code` is a name such as `InvalidArgument`."""

    def __init__(self, code, message):
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self):
        return f"{self.code}: {self.message}"


class _Text(ctypes.Structure):
    _fields_ = [("ptr", c_void_p), ("len", c_uint64)]


class _Status(ctypes.Structure):
    """`EpStatus` of ep_plugin.h."""

    _fields_ = [("code", c_int32), ("reserved", c_uint32), ("message", _Text), ("release", c_void_p)]


_RELEASE = ctypes.CFUNCTYPE(None, c_void_p)


def checked(status):
    """Null is success; else an error, which is released once."""
    if not status:
        return
    found = _Status.from_address(status)
    code = CODES[found.code] if 0 < found.code < len(CODES) else f"code {found.code}"
    text = ctypes.string_at(found.message.ptr, found.message.len) if found.message.len else b""
    message = text.decode("utf-8", "replace")
    if found.release:
        _RELEASE(found.release)(status)
    raise Error(code, message)


def _checked_at_once(status, function, arguments):
    checked(status)


# Mark functions that return an `EpStatus`: it is checked by whoever calls, which takes half the time, or at once.
_UNCHECKED, _STATUS = object(), object()
_FUNCTIONS = {
    "ep_text_free": (None, [c_void_p]),
    "ep_host_version": (c_char_p, []),
    "ep_runtime_open": (_STATUS, [c_char_p, POINTER(c_void_p)]),
    "ep_runtime_open_text": (_STATUS, [c_char_p, c_char_p, POINTER(c_void_p)]),
    "ep_runtime_list": (_STATUS, [c_void_p, POINTER(c_void_p)]),
    "ep_runtime_query": (_STATUS, [c_void_p, c_char_p, c_char_p, c_char_p, POINTER(c_void_p)]),
    "ep_runtime_explain": (_STATUS, [c_void_p, c_char_p, c_char_p, POINTER(c_void_p)]),
    "ep_runtime_free": (None, [c_void_p]),
    "ep_session_open": (_STATUS, [c_void_p, c_char_p, POINTER(c_char_p), c_size_t, POINTER(c_void_p)]),
    "ep_session_adopt": (
        _STATUS, [c_void_p, c_char_p, c_char_p, c_uint64, POINTER(c_char_p), c_size_t, POINTER(c_void_p)]),
    "ep_session_native": (_STATUS, [c_void_p, POINTER(c_void_p), POINTER(c_uint64)]),
    "ep_session_device": (c_char_p, [c_void_p]),
    "ep_session_sync": (_UNCHECKED, [c_void_p]),
    "ep_session_fallbacks": (_STATUS, [c_void_p, POINTER(c_void_p)]),
    "ep_session_free": (None, [c_void_p]),
    "ep_tensor_from_bytes": (
        _STATUS, [c_void_p, c_char_p, POINTER(c_int64), c_size_t, c_void_p, c_uint64, POINTER(c_void_p)]),
    "ep_tensor_to_bytes": (_STATUS, [c_void_p, c_void_p, c_void_p, c_uint64]),
    "ep_tensor_dtype": (c_char_p, [c_void_p]),
    "ep_tensor_device": (c_char_p, [c_void_p]),
    "ep_tensor_rank": (c_size_t, [c_void_p]),
    "ep_tensor_shape": (POINTER(c_int64), [c_void_p]),
    "ep_tensor_strides": (POINTER(c_int64), [c_void_p]),
    "ep_tensor_wait": (_STATUS, [c_void_p]),
    "ep_tensor_free": (None, [c_void_p]),
    "ep_tensor_from_dlpack": (_STATUS, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "ep_tensor_to_dlpack": (_STATUS, [c_void_p, POINTER(c_void_p)]),
    "ep_operator_new": (_STATUS, [c_char_p, c_char_p, POINTER(c_void_p)]),
    # Arrays and references are any pointers to these two: `POINTER` takes longer to check them.
    "ep_operator_run": (_UNCHECKED, [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p]),
    "ep_operator_run_in_place": (_UNCHECKED, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "ep_operator_free": (None, [c_void_p]),
    "ep_weights_new": (_STATUS, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "ep_weights_bytes": (c_uint64, [c_void_p]),
    "ep_weights_matmul": (_STATUS, [c_void_p, c_void_p, c_void_p, POINTER(c_void_p)]),
    "ep_weights_free": (None, [c_void_p]),
}


def _candidates():
    """Files to try, in order, and where each name comes from."""
    given = os.environ.get("EP_HOST_LIBRARY")
    if given:
        # What was asked for by name is not replaced by something else.
        return [(given, "EP_HOST_LIBRARY")]
    beside = Path(__file__).resolve().parent / FILE
    return [(str(beside), "beside the package"), (FILE, "the loader's search")]


def _loaded():
    tried = []
    for path, source in _candidates():
        try:
            return ctypes.CDLL(path), path
        except OSError as e:
            tried.append(f"{source}: {e}")
    raise LibraryError(
        f"{FILE} was not found; tried {'; '.join(tried)}. {BUILD}: set EP_HOST_LIBRARY to its path, or put it beside "
        "the package")


def _check_version(found, path):
    """Before 1.0 a minor version may change anything."""
    significant = 2 if VERSION.startswith("0.") else 1
    if found.split(".")[:significant] != VERSION.split(".")[:significant]:
        raise LibraryError(
            f"{path} is version {found}, and this package is {VERSION}; use those of one version. {BUILD}")


@functools.lru_cache(maxsize=None)
def library():
    """The library, loaded at the first call."""
    loaded, path = _loaded()
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(loaded, name)
        except AttributeError:
            raise LibraryError(f"{path} has no function {name}: it is no libep_host of version {VERSION}. {BUILD}") from None
        function.argtypes = arguments
        if result is _UNCHECKED:
            function.restype = c_void_p
        elif result is _STATUS:
            function.restype = c_void_p
            function.errcheck = _checked_at_once
        else:
            function.restype = result
        if name == "ep_host_version":
            _check_version(function().decode(), path)
    return loaded


class Handle:
    """An object of the library, freed when nobody has this any more. A call keeps a reference while it runs.

    At the end of the process nothing is freed: threads that still run may use it. The system takes it all back.
    """

    __slots__ = ("pointer", "_free", "__weakref__")

    def __init__(self, pointer, free):
        self.pointer = pointer
        self._free = free

    # The default is what this needs when the module is gone already.
    def __del__(self, ending=sys.is_finalizing):
        if not ending():
            self._free(self.pointer)

    def __reduce_ex__(self, protocol):
        raise TypeError("objects of EP cannot be copied or pickled; take a tensor's bytes or `clone` it")


def text(value, what):
    """Text for the library, which ends at a zero."""
    if not isinstance(value, str) and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise TypeError(f"the {what} is a {type(value).__name__}; give a str")
    if "\0" in value:
        raise ValueError(f"the {what} {value!r} has a zero character")
    try:
        return value.encode()
    except UnicodeEncodeError as e:
        raise ValueError(f"the {what} {value!r} cannot be written as UTF-8: {e.reason}") from None


def optional(value, what):
    return None if value is None else text(value, what)


def taken_text(pointer):
    """Text that a function gave, which is freed."""
    try:
        return ctypes.string_at(pointer).decode()
    finally:
        library().ep_text_free(pointer)

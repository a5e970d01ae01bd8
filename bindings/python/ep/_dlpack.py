"""DLPack: memory that is shared with other libraries, in capsules of its version 0, which every library takes."""
import collections
import ctypes
import sys
from ctypes import c_char_p, c_int, c_int32, c_void_p, py_object

CPU, CUDA = 1, 2


class _Managed(ctypes.Structure):
    """The part of `DLManagedTensor` that is read here."""

    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32)]


class _Whole(ctypes.Structure):
    """`DLManagedTensor`."""

    _fields_ = [("tensor", ctypes.c_byte * 48), ("manager", c_void_p), ("deleter", c_void_p)]


_DELETER = ctypes.CFUNCTYPE(None, c_void_p)


def _python(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new = _python("PyCapsule_New", py_object, c_void_p, c_void_p, c_void_p)
_is_valid = _python("PyCapsule_IsValid", c_int, py_object, c_char_p)
_pointer = _python("PyCapsule_GetPointer", c_void_p, py_object, c_char_p)
_set_name = _python("PyCapsule_SetName", c_int, py_object, c_void_p)


def _immortal(name):
    """The address of a name. Capsules keep only that, and may outlive this module, so it is never freed."""
    buffer = ctypes.create_string_buffer(name)
    ctypes.pythonapi.Py_IncRef(py_object(buffer))
    return ctypes.addressof(buffer)


_NAME, _USED = b"dltensor", b"used_dltensor"
_NAME_AT, _USED_AT = _immortal(_NAME), _immortal(_USED)


def _delete(managed):
    deleter = _Whole.from_address(managed).deleter
    if deleter:
        _DELETER(deleter)(managed)


def place(managed):
    """DLPack's device of a tensor that is given back: (type, number)."""
    found = _Managed.from_address(managed)
    device = (found.device_type, found.device_id)
    _delete(managed)
    return device


def taken(capsule):
    """The tensor in a capsule, which from now on the caller has to give back."""
    if not _is_valid(capsule, _NAME):
        raise BufferError(
            f"{capsule!r} is no unused capsule of the name dltensor; a capsule is consumed once, and those of a version are "
            "not taken")
    managed = _pointer(capsule, _NAME)
    _set_name(capsule, _USED_AT)
    return managed


# Capsules that were handed out. A capsule that nobody consumed has to give its tensor back when it dies. Its destructor cannot:
# consumers that fail drop it while their error is set, which a destructor written in Python would lose. So each is kept here
# until nobody else has it.
_given = collections.deque()


def capsule(managed):
    """A capsule that owns a tensor until somebody consumes it."""
    made = _new(managed, _NAME_AT, None)
    _given.append(made)
    return made


def _references(of):
    return sys.getrefcount(of[0])


def sweep(limit=8):
    """Gives back the tensors of capsules that died unconsumed; looks at so many capsules."""
    if not _given:
        return
    for _ in range(min(limit, len(_given))):
        try:
            held = [_given.popleft()]
        except IndexError:
            return  # Another thread was faster.
        if not _is_valid(held[0], _NAME):
            continue  # Consumed: whoever did has the tensor.
        if _references(held) > _ALONE:
            _given.append(held[0])
            continue
        _delete(taken(held[0]))


# What an object that only a list has counts, which differs between versions of Python.
_ALONE = _references([object()])

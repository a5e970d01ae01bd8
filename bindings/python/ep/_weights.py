"""Weights of many products, in the form that their device reads fastest."""
from ctypes import byref, c_void_p

from ._library import Handle, library
from ._tensor import Tensor


class Weights:
    """The second factor of many products, `[k, n]`, made by `Session.prepack`: `x @ weights`."""

    __slots__ = ("_session", "_handle", "_shape", "_dtype")

    def __init__(self, session, matrix):
        if not isinstance(matrix, Tensor):
            raise TypeError(f"what is prepacked is a {type(matrix).__name__}; give a tensor: see Session.tensor")
        handle, pointer = session._live(), c_void_p()
        library().ep_weights_new(handle.pointer, matrix._handle.pointer, byref(pointer))
        self._handle = Handle(pointer.value, library().ep_weights_free)
        self._session, self._shape, self._dtype = session, matrix.shape, matrix.dtype

    @property
    def shape(self):
        """`(k, n)`."""
        return self._shape

    @property
    def dtype(self):
        """The dtype of the matrix."""
        return self._dtype

    @property
    def packed_bytes(self):
        """Bytes that they take on the device besides those of the matrix; 0: that is read as it is, and must not be written."""
        return library().ep_weights_bytes(self._handle.pointer)

    def __rmatmul__(self, x):
        if not isinstance(x, Tensor):
            return NotImplemented
        # Which lives as long as the call, also where another thread closes the session.
        handle, pointer = x._session._live(), c_void_p()
        library().ep_weights_matmul(handle.pointer, x._handle.pointer, self._handle.pointer, byref(pointer))
        return Tensor(x._session, pointer.value)

    def __repr__(self):
        form = f"packed in {self.packed_bytes} bytes" if self.packed_bytes else "as they are"
        return f"<ep.Weights {self._dtype} {list(self._shape)} on {self._session.device}, {form}>"

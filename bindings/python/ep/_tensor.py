"""Tensors: typed, strided views of shared device memory."""
import ctypes
import math
import numbers

from . import _data, _dlpack
from ._library import Error, Handle, library

# Elements that `repr` shows.
_SHOWN = 6


def _unpickled(*_):
    raise TypeError("a tensor cannot be copied or pickled; take its bytes, or `clone` it")


class Tensor:
    """A typed, strided view of shared device memory. Made by a session, which it keeps open.

    `+ - * / @` take tensors of one dtype and numbers; indexing by integers, slices with positive steps, `...` and None gives
    views. `==` compares identity; `session.binary(a, b, op="equal")` compares elements.
    """

    __slots__ = ("_handle", "_session", "_shape", "_strides", "_dtype", "_device", "__weakref__")
    # Arrays of NumPy leave the operators to this class, which refuses them.
    __array_ufunc__ = None

    def __init__(self, session, pointer):
        self._handle = Handle(pointer, library().ep_tensor_free)
        self._session = session
        self._shape = self._strides = self._dtype = self._device = None
        _dlpack.sweep()

    __reduce_ex__ = _unpickled

    @property
    def session(self):
        """The session that it was made by, and is read by."""
        return self._session

    @property
    def dtype(self):
        """The name of the dtype, such as `f32`."""
        if self._dtype is None:
            self._dtype = library().ep_tensor_dtype(self._handle.pointer).decode()
        return self._dtype

    @property
    def device(self):
        """The device, as `cuda:0`."""
        if self._device is None:
            self._device = library().ep_tensor_device(self._handle.pointer).decode()
        return self._device

    @property
    def shape(self):
        """Sizes of the dimensions."""
        if self._shape is None:
            self._shape = self._numbers(library().ep_tensor_shape)
        return self._shape

    @property
    def strides(self):
        """Steps of the dimensions in elements, not in bytes."""
        if self._strides is None:
            self._strides = self._numbers(library().ep_tensor_strides)
        return self._strides

    def _numbers(self, function):
        pointer = self._handle.pointer
        return tuple(function(pointer)[:library().ep_tensor_rank(pointer)])

    @property
    def ndim(self):
        """How many dimensions there are."""
        return len(self.shape)

    @property
    def size(self):
        """How many elements there are."""
        return math.prod(self.shape)

    def wait(self):
        """Waits for all work on the memory, and raises its error."""
        library().ep_tensor_wait(self._handle.pointer)

    # What it holds, for the host.

    def _read(self, memory, count):
        session = self._session._live()
        library().ep_tensor_to_bytes(session.pointer, self._handle.pointer, memory, count)

    def _known(self):
        known = _data.DTYPES.get(self.dtype)
        if known is None:
            raise TypeError(f"Python has no numbers of {self.dtype}; cast it first, to one of {', '.join(_data.DTYPES)}")
        return known

    def tobytes(self):
        """The elements as bytes, the last dimension innermost."""
        count = self.size * self._known().size
        content = bytearray(count)
        self._read((ctypes.c_char * count).from_buffer(content), count)
        return bytes(content)

    def tolist(self):
        """The elements as numbers in nested lists; without dimensions, the number."""
        return _data.nested(_data.unpacked(self.tobytes(), self.dtype), self.shape)

    def item(self):
        """The only element, as a number."""
        if self.size != 1:
            raise ValueError(f"a tensor of the shape {list(self.shape)} has {self.size} elements, not one")
        return _data.unpacked(self.tobytes(), self.dtype)[0]

    def numpy(self, bits=False):
        """A copy as an array of NumPy, which has no bf16: cast that to f32, or take it with bits=True as uint16."""
        module, known = _data.numpy(), self._known()
        if module is None:
            raise ImportError("numpy() needs NumPy: `pip install numpy`; tolist() and tobytes() do not")
        if known.kind is None and not bits:
            raise TypeError(
                f"NumPy has no {self.dtype}; cast it, session.cast(x, dtype=\"f32\"), or take its bits, numpy(bits=True)")
        array = module.empty(self.shape, f"{known.kind or 'u'}{known.size}" if known.kind != "b" else "bool")
        self._read(array.ctypes.data, array.nbytes)
        return array

    def __array__(self, dtype=None, copy=None):
        if copy is False:
            raise ValueError("an array of a tensor is always a copy; numpy.from_dlpack(x) shares memory")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    # What it holds, for other libraries.

    def __dlpack_device__(self):
        return self._session._dlpack_device()

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """The memory for another library, without a copy, after the work on it is done.

        Whatever the `stream`, the data is ready for it. The capsule has no version, which any `max_version` allows. Another
        device, or a dtype that DLPack does not have, is a BufferError.
        """
        here = self.__dlpack_device__()
        if dl_device is not None and tuple(map(int, dl_device)) != here:
            raise BufferError(f"a tensor on {self.device}, DLPack's {here}, is not given to {tuple(dl_device)}; copy it there")
        if stream is not None and here[0] == _dlpack.CPU:
            raise BufferError(f"memory of {self.device} has no streams; give stream=None, not {stream!r}")
        if stream is not None and not isinstance(stream, numbers.Integral):
            raise TypeError(f"the stream is a {type(stream).__name__}; DLPack's are integers")
        source = self._session.run("clone", self) if copy else self
        managed = ctypes.c_void_p()
        try:
            library().ep_tensor_to_dlpack(source._handle.pointer, ctypes.byref(managed))
        except Error as e:
            if e.code in ("Unsupported", "InvalidArgument"):
                raise BufferError(str(e)) from e
            raise
        return _dlpack.capsule(managed.value)

    # Arithmetic.

    def _binary(self, op, other, first=False):
        if isinstance(other, Tensor):
            return self._session.run("binary", self, other, op=op)
        if isinstance(other, numbers.Complex):
            return self._session.run("binary_scalar", self, op=op, scalar=other, first=first)
        return NotImplemented

    def _divided(self, other, first=False):
        if self._known().kind in ("i", "u", "b"):
            raise TypeError(
                f"/ of {self.dtype} would have to be a float; cast it, or use session.binary(a, b, op=\"div\"), which gives "
                "integers")
        return self._binary("div", other, first)

    def __add__(self, other):
        return self._binary("add", other)

    def __radd__(self, other):
        return self._binary("add", other, first=True)

    def __sub__(self, other):
        return self._binary("sub", other)

    def __rsub__(self, other):
        return self._binary("sub", other, first=True)

    def __mul__(self, other):
        return self._binary("mul", other)

    def __rmul__(self, other):
        return self._binary("mul", other, first=True)

    def __truediv__(self, other):
        return self._divided(other)

    def __rtruediv__(self, other):
        return self._divided(other, first=True)

    def __matmul__(self, other):
        return self._session.run("matmul", self, other) if isinstance(other, Tensor) else NotImplemented

    def __neg__(self):
        return self._session.run("unary", self, op="negative")

    def __bool__(self):
        return bool(self.item())

    # Views.

    def t(self):
        """The view with its two dimensions exchanged; of fewer, itself."""
        if self.ndim > 2:
            raise ValueError(f"t() of {self.ndim} dimensions; use session.transpose(x, a=.., b=..)")
        return self._session.run("transpose", self, a=0, b=1) if self.ndim == 2 else self._session.run("alias", self)

    def __getitem__(self, key):
        items = list(key) if isinstance(key, tuple) else [key]
        taken = sum(item is not None and item is not Ellipsis for item in items)
        dots = [i for i, item in enumerate(items) if item is Ellipsis]
        if len(dots) > 1:
            raise IndexError("an index with more than one ...")
        if taken > self.ndim:
            raise IndexError(f"{taken} indices for {self.ndim} dimensions")
        if dots:
            items[dots[0]:dots[0] + 1] = [slice(None)] * (self.ndim - taken)
        found, dim = self, 0
        for item in items:
            found, dim = found._indexed(dim, item)
        # What is taken whole is a view too, of its own handle.
        return self._session.run("alias", self) if found is self else found

    def _indexed(self, dim, item):
        """With one part of an index applied, and the dimension that the next part is for."""
        run = self._session.run
        if item is None:
            return run("unsqueeze", self, dim=dim), dim + 1
        if isinstance(item, slice):
            start, end, step = item.indices(self.shape[dim])
            if step < 0:
                raise ValueError(f"a slice with the step {step}; use session.flip(x, dims=[{dim}])")
            if (start, end, step) == (0, self.shape[dim], 1):
                return self, dim + 1
            return run("slice", self, dim=dim, start=start, end=end, step=step), dim + 1
        if isinstance(item, numbers.Integral) and not isinstance(item, bool):
            if not -self.shape[dim] <= item < self.shape[dim]:
                raise IndexError(f"index {item} of a dimension of {self.shape[dim]}")
            return run("select", self, dim=dim, index=item), dim
        raise TypeError(
            f"an index of {type(item).__name__}; there are integers, slices, ... and None; session.gather takes a tensor")

    def __len__(self):
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __repr__(self):
        return f"<ep.Tensor {self.dtype} {list(self.shape)} on {self.device}: {self._preview()}>"

    def _preview(self):
        """The first elements, or why they cannot be read. Only these are copied from the device."""
        part = self
        try:
            for dim in range(self.ndim):
                inner = math.prod(self.shape[dim + 1:])
                if inner >= _SHOWN and part.shape[0] > 1:
                    part = part[0] if dim + 1 < self.ndim else part[:_SHOWN]
                elif inner:
                    part = part[:-(-_SHOWN // inner)]
                    break
            values = _data.unpacked(part.tobytes(), self.dtype)
        except (Error, TypeError, ValueError) as e:
            return f"not readable, {e}"
        shown = ", ".join(map(str, values[:_SHOWN]))
        return f"{shown}, ..." if self.size > _SHOWN else shown

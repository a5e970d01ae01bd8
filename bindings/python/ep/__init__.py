"""The host side of EP for Python: devices, tensors and operators of execution providers.

    import ep

    runtime = ep.Runtime("ep.toml")
    session = runtime.session("cpu")
    x = session.tensor([[1.0, 2.0], [3.0, 4.0]])
    print(session.softmax(x @ x.t(), dim=-1).tolist())

`ep.NAMES` has the names of all operators; each is a method of `Session`.
"""
from ._library import VERSION as __version__
from ._library import Error, LibraryError
from ._names import NAMES
from ._runtime import Runtime
from ._session import Session
from ._tensor import Tensor
from ._weights import Weights

__all__ = ["Error", "LibraryError", "NAMES", "Runtime", "Session", "Tensor", "Weights", "__version__"]

# Where people find them, and not the files that they are in.
for _public in (Error, LibraryError, Runtime, Session, Tensor, Weights):
    _public.__module__ = __name__

"""Runtimes: loaded providers, what they can do, and why not."""
import ctypes
import json
import os

from ._library import Handle, library, optional, taken_text, text
from ._session import Session


class Runtime:
    """Loaded providers and their devices.

    `config` is the path of a config file; None: the one that EP_CONFIG names, else the user's, else the system's. A provider
    that does not load is a row of `list()`, and an error only where the config requires it.
    """

    def __init__(self, config=None):
        self._open(library().ep_runtime_open, optional(config, "path of the config"))

    @classmethod
    def from_text(cls, toml, base_dir="."):
        """The same with the text of a config, whose relative paths are taken from `base_dir`."""
        self = cls.__new__(cls)
        base_dir = os.path.abspath(base_dir)
        self._open(library().ep_runtime_open_text, text(toml, "text of the config"), text(base_dir, "folder"))
        return self

    def _open(self, function, *arguments):
        pointer = ctypes.c_void_p()
        function(*arguments, ctypes.byref(pointer))
        self._handle = Handle(pointer.value, library().ep_runtime_free)

    def _live(self):
        handle = self._handle
        if handle is None:
            raise ValueError("the runtime is closed")
        return handle

    def _json(self, function, *arguments):
        handle, out = self._live(), ctypes.c_void_p()
        function(handle.pointer, *arguments, ctypes.byref(out))
        return json.loads(taken_text(out.value))

    def list(self):
        """What happened to each provider, and its devices: [{provider, version, path, status, reason, devices: [...]}]."""
        return self._json(library().ep_runtime_list)

    def query(self, op=None, dtype=None, device=None):
        """What each device can do: [{provider, device, op, selectors, dtypes, predicate, priority}]. None lets all through."""
        filters = [optional(op, "op"), optional(dtype, "dtype"), optional(device, "device")]
        return self._json(library().ep_runtime_query, *filters)

    def explain(self, op, dtypes, selectors=None, attrs=None, limits=None, device=None):
        """Which factory a request gets on a device (None: on each), and why each other one does not get it.

        `dtypes` by role, `selectors`, `attrs` and `limits` by name: `explain("softmax", {"src": "f16", "dst": "f16"})`. Gives
        [{device, request, chosen, description, error, candidates, nearest, nearest_request}]; `nearest_request`, where
        nothing was chosen, can be asked by `explain(**nearest_request)`.
        """
        request = {"op": op, "dtypes": dtypes, "selectors": selectors, "attrs": attrs, "limits": limits}
        asked = json.dumps({name: value for name, value in request.items() if value is not None}, allow_nan=False)
        return self._json(library().ep_runtime_explain, optional(device, "device"), text(asked, "request"))

    def session(self, device, fallback=()):
        """A session on a device, `cuda:0`, or `cuda` for the first of its kind.

        What the device lacks runs on the first of the `fallback` devices that has it; `Session.fallbacks()` tells of it.
        """
        return Session(self, device, fallback)

    def adopt(self, device, native, fallback=(), kind="CUstream"):
        """A session on a stream of another library, which has to outlive it: its work is in order with that library's own.

        Of PyTorch: `runtime.adopt("cuda:0", torch.cuda.current_stream().cuda_stream)`.
        """
        return Session(self, device, fallback, (kind, native))

    def close(self):
        """Frees the runtime. Its sessions stay usable."""
        self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __repr__(self):
        if self._handle is None:
            return "<ep.Runtime, closed>"
        devices = {device["id"] for provider in self.list() for device in provider["devices"]}
        return f"<ep.Runtime of {', '.join(sorted(devices)) or 'no devices'}>"

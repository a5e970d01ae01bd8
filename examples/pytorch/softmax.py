"""Softmax of PyTorch's tensors by a provider, without a copy and on PyTorch's own stream.

    cargo build --release -p example-pytorch -p ep-cuda-plugin
    python3 softmax.py LIBRARY CONFIG [--json]

LIBRARY is libep_pytorch.so, CONFIG names the CUDA provider.
"""
import ctypes
import json
import sys

import torch
from torch.utils.dlpack import to_dlpack

python = ctypes.pythonapi
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
USED = b"used_dltensor"


class Session:
    def __init__(self, library, config):
        self.library = ctypes.CDLL(library)
        for name in ("open", "softmax"):
            getattr(self.library, f"ep_pytorch_{name}").restype = ctypes.c_void_p
        self.handle = ctypes.c_void_p()
        self.check(self.library.ep_pytorch_open(config.encode(), ctypes.byref(self.handle)))

    def check(self, error):
        if error:
            text = ctypes.string_at(error).decode()
            self.library.ep_pytorch_free(ctypes.c_void_p(error))
            raise RuntimeError(text)

    def softmax(self, x):
        y = torch.empty_like(x)
        stream = torch.cuda.current_stream(x.device).cuda_stream
        self.check(self.library.ep_pytorch_softmax(self.handle, handed_over(x), handed_over(y), ctypes.c_uint64(stream)))
        return y

    def close(self):
        self.library.ep_pytorch_close(self.handle)


def handed_over(tensor):
    """A DLPack tensor that the receiver owns: the capsule is marked as used, so that Python does not free it too."""
    capsule = to_dlpack(tensor)
    pointer = python.PyCapsule_GetPointer(capsule, b"dltensor")
    python.PyCapsule_SetName(capsule, USED)
    return ctypes.c_void_p(pointer)


def main():
    session = Session(sys.argv[1], sys.argv[2])
    results = []
    for dtype, limit in [(torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 1e-2)]:
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                # What comes before and after is PyTorch's, on the same stream, with nothing that waits in between.
                x = torch.randn(4096, 1000, device="cuda").to(dtype)
                y = session.softmax(x * 2)
                difference = (y.float() - torch.softmax(x.float() * 2, -1)).abs().max().item()
            results.append(dict(dtype=str(dtype), stream=stream.cuda_stream, difference=difference, right=difference <= limit))
    try:
        session.softmax(torch.randn(8, 8, device="cuda").t())
        refused = "nothing"
    except RuntimeError as error:
        refused = str(error)
    torch.cuda.synchronize()
    session.close()
    right = all(r["right"] for r in results) and "contiguous" in refused
    if "--json" in sys.argv:
        print(json.dumps(dict(right=right, results=results, refused=refused)))
    else:
        for r in results:
            print(f"{r['dtype']} on stream {r['stream']:#x}: largest difference {r['difference']:.1e}")
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()

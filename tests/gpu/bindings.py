"""The Python package on a GPU beside PyTorch: memory shared both ways, work on PyTorch's stream, what runs elsewhere.

    python3 bindings.py LIBRARY CONFIG

LIBRARY is libep_host.so, CONFIG names the CUDA and the CPU provider. Prints {"checks": N, "us": {NAME: MEDIAN}} or ends with an
error.
"""
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch

REPOSITORY = Path(__file__).resolve().parents[2]
CHECKS = []


def check(found, wanted, what, atol=0.0):
    assert found.shape == wanted.shape and found.dtype == wanted.dtype, f"{what}: {found.dtype} {tuple(found.shape)}"
    assert torch.allclose(found, wanted, rtol=0, atol=atol, equal_nan=True), f"{what}: {found} is not {wanted}"
    CHECKS.append(what)


def shared(session):
    """Both ways without a copy, with strides, in every dtype."""
    x = torch.randn(33, 257, device="cuda")
    t = session.from_dlpack(x)
    check(torch.from_dlpack(session.softmax(t, dim=-1)), torch.softmax(x, -1), "softmax", 1e-6)
    turned = session.from_dlpack(x[:, ::2].t())
    check(torch.from_dlpack(session.clone(turned, format="contiguous")), x[:, ::2].t().contiguous(), "strides")
    before = x.clone()
    session.run_in_place("binary_scalar", t, op="mul", scalar=2)
    session.sync()
    check(x, before * 2, "in place")
    view = torch.from_dlpack(t)
    view += 1
    torch.cuda.synchronize()
    check(x, before * 2 + 1, "written by PyTorch")
    for dtype in (torch.bool, torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64,
                  torch.complex64):
        y = (torch.rand(5, 7, device="cuda") * 3).to(dtype)
        check(torch.from_dlpack(session.clone(session.from_dlpack(y).t(), format="contiguous")), y.t().contiguous(), str(dtype))
    indices = torch.randint(0, 33, (19,), device="cuda")
    check(torch.from_dlpack(session.gather(t, session.from_dlpack(indices))), x[indices], "gather")


def on_the_stream_of_pytorch(runtime):
    """No wait between the two libraries: a long kernel of PyTorch, then one that reads what it wrote."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), runtime.adopt("cuda:0", stream.cuda_stream) as session:
        big = torch.randn(4096, 4096, device="cuda")
        x = torch.zeros(1 << 20, device="cuda")
        t = session.from_dlpack(x)
        for i in range(20):
            big = big @ big * 1e-2
            x.fill_(i)
            session.run_in_place("binary_scalar", t, op="add", scalar=0.5)
            y = x * 2
        torch.cuda.synchronize()
        check(y, torch.full_like(y, 39.0), "in the order of one stream")


def elsewhere(runtime):
    """What CUDA lacks runs on the CPU, after PyTorch's work on the memory."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), runtime.adopt("cuda:0", stream.cuda_stream, fallback=["cpu"]) as session:
        big = torch.randn(4096, 4096, device="cuda")
        x = torch.zeros(1000, device="cuda")
        cpu = runtime.session("cpu")
        for _ in range(10):
            big = big @ big * 1e-2
        x.fill_(3)
        host = cpu.to_device(session.clone(session.from_dlpack(x)))
        check(torch.tensor(host.tolist()), torch.full((1000,), 3.0), "brought to the host")


def cost(session):
    """Microseconds that a call takes the host."""
    x = torch.randn(2, 8, device="cuda")
    t = session.from_dlpack(x)

    def median(call, times=2000):
        took = []
        for _ in range(7):
            begin = time.perf_counter()
            for _ in range(times):
                call()
            took.append((time.perf_counter() - begin) / times * 1e6)
            torch.cuda.synchronize()
            session.sync()
        return round(statistics.median(took), 2)

    return {
        "session.softmax": median(lambda: session.softmax(t, dim=-1)),
        "torch.softmax": median(lambda: torch.softmax(x, -1)),
    }


def main():
    os.environ["EP_HOST_LIBRARY"] = os.path.abspath(sys.argv[1])
    sys.path.insert(0, str(REPOSITORY / "bindings/python"))
    import ep

    runtime = ep.Runtime(sys.argv[2])
    session = runtime.session("cuda:0", fallback=["cpu"])
    shared(session)
    on_the_stream_of_pytorch(runtime)
    elsewhere(runtime)
    print(json.dumps({"checks": len(CHECKS), "us": cost(session)}))


if __name__ == "__main__":
    main()

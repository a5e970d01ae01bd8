"""PyTorch's times of the rows of gpu_rows.py: python3 gpu_torch.py [--group NAME] [--compiled [--untimed]] [--groups] [--launches PROGRAM ...]

Each line: {peer, group, op, dtype, shape, us, copy_us, share}, or with `error` in place of times. Times are medians of CUDA
events over inputs and outputs that rotate beyond the L2 cache; `copy_us` is a device copy of as many bytes, read and
written, rotated alike in the same run, and `share` its time over the row's. Eager mode is the peer `torch`, torch.compile is
`compiled`. A last group, `host`, has what a launch costs the host. Of what is compiled with `--untimed` there are no times: it
fills PyTorch's cache on disk, so that many processes can compile side by side before one measures.

`--launches` has what launches of a few elements cost the host, in turns with `PROGRAM ...` (ep-gpu-bench --launches), on one
processor: lines of the provider, of PyTorch as programs find it, and of the peer `inference`, PyTorch in inference mode, with
{us, all_us}, and of the provider's also {of_torch, of_inference}, medians of what its bursts took of the time of those beside
them. The provider's are raw launches, whose arguments were made once and whose memory is not checked.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import timeit
from contextlib import nullcontext

import gpu_rows

ROTATION = 512 << 20
MOST_SETS = 16
REPEATS = 30
MOST_SECONDS = 1.5
# As in the provider's timing: before a row that draws much power, its clock is given time to settle.
HEAVY_FLOPS = 500_000_000_000
SETTLING_SECONDS = 1
# Launches that are timed together, fewer than a stream's queue holds; turns that count of a row, and seconds of turns before
# them, in which processors that were idle reach their clock.
BURST = 500
TURNS = 101
WARM_SECONDS = 0.5


def median(values):
    values = sorted(values)
    return values[len(values) // 2]


class Bench:
    def __init__(self, torch):
        self.torch = torch
        self.copies = {}

    def time(self, calls, flops=0):
        """Microseconds of one call, which takes so many operations."""
        torch = self.torch
        begin = time.monotonic()
        while flops >= HEAVY_FLOPS and time.monotonic() - begin < SETTLING_SECONDS:
            for call in calls:
                call()
            torch.cuda.synchronize()
        for call in calls[:3]:
            call()
        torch.cuda.synchronize()
        times, begin = [], time.monotonic()
        while len(times) < REPEATS and (len(times) < 5 or time.monotonic() - begin < MOST_SECONDS):
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record()
            for call in calls:
                call()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / len(calls))
        return median(times)

    def copy_us(self, moved):
        half = max(1 << 20, moved // 2)
        if half not in self.copies:
            new = lambda: self.torch.empty(half, dtype=self.torch.uint8, device="cuda")
            pairs = [(new(), new()) for _ in range(sets(2 * half))]
            self.copies[half] = self.time([lambda p=p: p[1].copy_(p[0]) for p in pairs])
        return self.copies[half]

    def tensor(self, t, shift):
        """One operand, moved by `shift` elements from an aligned address."""
        torch, dims = self.torch, t["dims"]
        dtype = gpu_rows.torch_dtype(torch, t["dtype"])
        count = 1
        for d in dims:
            count *= d
        memory = torch.empty(count + shift, dtype=dtype, device="cuda")[shift:]
        content = t.get("content", "normal")
        for part in memory.split(1 << 26):
            if isinstance(content, int):
                part.copy_(torch.randint(0, content, part.shape, device="cuda"))
            elif dtype.is_floating_point:
                values = torch.rand(part.shape, device="cuda") if content == "unit" else torch.randn(part.shape, device="cuda")
                part.copy_(values)
            else:
                part.copy_(torch.randint(-100, 100, part.shape, device="cuda"))
        return memory.view(dims)

    def row(self, row, compiled, timed=True):
        torch, shift = self.torch, row["shift"]
        result = {k: row[k] for k in ("group", "op", "dtype", "shape")}
        result["peer"] = "compiled" if compiled else "torch"
        try:
            shared = {t["name"]: self.tensor(t, shift) for t in row["inputs"] if t["shared"]}
            data = []
            for _ in range(sets(row["bytes"]) if timed else 1):
                inputs = [shared[t["name"]] if t["shared"] else self.tensor(t, shift) for t in row["inputs"]]
                data.append((inputs, self.tensor(row["output"], shift)))
            if compiled:
                torch._dynamo.reset()
                function = torch.compile(lambda *x: row["compiled"](torch, *x), dynamic=False)
                calls = [lambda i=i: function(*i) for i, _ in data]
            else:
                calls = [lambda i=i, o=o: row["call"](torch, i, o) for i, o in data]
            if not timed:
                calls[0]()
                return result
            us, copy = self.time(calls, row["flops"]), self.copy_us(row["bytes"])
            result.update(us=round(us, 3), copy_us=round(copy, 3), share=round(copy / us, 4))
            if row["flops"]:
                result["tflops"] = round(row["flops"] / us / 1e6, 1)
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {str(error)[:300]}"
            torch.cuda.empty_cache()
        return result

    def host(self):
        """What queueing an addition of four numbers costs, without the device's time."""
        torch = self.torch
        a, b, o = (torch.randn(4, device="cuda") for _ in range(3))
        bursts, started = [], time.perf_counter()
        while len(bursts) < 30:
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(500):
                torch.add(a, b, out=o)
            # Half a second first: processors that were idle take that long to reach their clock.
            if begin - started > 0.5:
                bursts.append((time.perf_counter() - begin) / 500 * 1e6)
        return dict(peer="torch", group="host", op="launch", dtype="f32", shape="4", us=round(median(bursts), 3))

    def launches(self, rows, provider):
        """Lines of all for each row: bursts in turns, each behind one that does not count. Rows are interleaved, as either
        program is slower for seconds at a time."""
        torch = self.torch
        timers = {peer: [self.timer(row, mode) for row in rows] for peer, mode in self.modes().items()}

        def burst(peer, i):
            torch.cuda.synchronize()
            with self.modes()[peer]():
                us = timers[peer][i].timeit(BURST) / BURST * 1e6
            torch.cuda.synchronize()
            return us

        ask = lambda peer, i: provider(i) if peer == "ours" else (burst(peer, i), burst(peer, i))[1]
        order = ["ours", *timers]
        times, begin, turn = [{peer: [] for peer in order} for _ in rows], time.monotonic(), 0
        while len(times[-1]["ours"]) < TURNS:
            turn, counts = turn + 1, time.monotonic() - begin > WARM_SECONDS
            for i in range(len(rows)):
                # Who is first changes: what is behind another finds other caches.
                for peer in order[turn % len(order):] + order[:turn % len(order)]:
                    us = ask(peer, i)
                    if counts:
                        times[i][peer].append(us)
        digits = lambda values: [round(v, 3) for v in values]
        for row, found in zip(rows, times):
            line = {k: row[k] for k in ("group", "op", "dtype", "shape")}
            of = lambda peer: round(median([a / b for a, b in zip(found["ours"], found[peer])]), 4)
            for peer in order:
                own = {f"of_{other}": of(other) for other in timers} if peer == "ours" else {}
                yield dict(line, peer=peer, us=round(median(found[peer]), 3), **own, all_us=digits(found[peer]))

    def modes(self):
        """PyTorch as programs find it, and without what keeps track for gradients."""
        return dict(torch=nullcontext, inference=self.torch.inference_mode)

    def timer(self, row, mode):
        """Of a row's statement, on operands that were made in a mode."""
        with mode():
            operands = {t["name"]: self.tensor(t, 0) for t in (*row["inputs"], row["output"])}
            names = dict(operands, torch=self.torch)
            exec(row.get("setup", "pass"), names)
        return timeit.Timer(row["statement"], globals=names)


class Provider:
    """The other program: asked for a burst of a row, it answers what a launch took."""

    def __init__(self, command, rows):
        self.rows = tempfile.NamedTemporaryFile("w", suffix=".jsonl")
        self.rows.write("\n".join(json.dumps(r) for r in rows))
        self.rows.flush()
        self.process = subprocess.Popen([*command, "--rows", self.rows.name], text=True, bufsize=1,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, row):
        try:
            print(row, file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            sys.exit(f"error: {self.process.args[0]} ended with {self.process.wait()} at row {row}")
        return json.loads(answer)["us"]


def sets(moved):
    return max(1, min(MOST_SETS, -(-ROTATION // max(1, moved))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--group")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--untimed", action="store_true")
    parser.add_argument("--groups", action="store_true")
    parser.add_argument("--launches", nargs=argparse.REMAINDER, metavar="PROGRAM")
    arguments = parser.parse_args()
    if arguments.groups:
        print(*gpu_rows.groups(), "host")
        return
    if arguments.launches == []:
        parser.error("--launches needs the program to take turns with: ep-gpu-bench --launches")
    if arguments.launches:
        os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    import torch

    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    bench = Bench(torch)
    emit = lambda result: print(json.dumps(result), flush=True)
    if arguments.launches:
        rows = list(gpu_rows.launches())
        for result in bench.launches(rows, Provider(arguments.launches, rows)):
            emit(result)
        return
    if arguments.group in (None, "host") and not arguments.compiled:
        emit(bench.host())
    if arguments.group == "host":
        return
    with torch.inference_mode():
        for row in gpu_rows.rows(arguments.group):
            if row["compiled" if arguments.compiled else "call"] is not None:
                emit(bench.row(row, arguments.compiled, not arguments.untimed))


if __name__ == "__main__":
    main()

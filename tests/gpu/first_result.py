"""Time to the first result of a process, through the provider on a warm cache and by a bare C program, in turns.

python3 first_result.py BIN CONFIG prints {bare_ms, ours_ms, above_ms, runs}: medians of the time from the start of a process to the
line with its result, and as bare_whole_ms, ours_whole_ms and above_whole_ms to its end. The provider releases the device's
context before that, which the bare program leaves to the system.
"""
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 11


def milliseconds(command):
    """To the result, and to the end of the process."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        line = process.stdout.readline()
        first = (time.perf_counter() - begin) * 1e3
        process.wait()
    whole = (time.perf_counter() - begin) * 1e3
    if process.returncode != 0 or float(line or "nan") != 1.5:
        raise RuntimeError(f"{command[0]} ended with {process.returncode} and gave {line}")
    return first, whole


def median(values):
    return sorted(values)[len(values) // 2]


def main():
    binaries, config = Path(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        kernel = Path(folder, "fill.cubin")
        subprocess.run([binaries / "ep-gpu-bench", "--kernel", kernel], check=True)
        bare = [binaries / "bare", kernel]
        ours = [binaries / "ep-gpu-bench", "--config", config, "--first-result"]
        # The first of each fills the cache and the system's caches of files.
        milliseconds(bare), milliseconds(ours)
        pairs = [(milliseconds(bare), milliseconds(ours)) for _ in range(RUNS)]
    found = {}
    for at, name in enumerate(["ms", "whole_ms"]):
        bare, ours = median([b[at] for b, _ in pairs]), median([o[at] for _, o in pairs])
        found |= {f"bare_{name}": round(bare, 2), f"ours_{name}": round(ours, 2), f"above_{name}": round(ours - bare, 2)}
    print(json.dumps(dict(found, runs=RUNS)))


if __name__ == "__main__":
    main()

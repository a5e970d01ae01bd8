"""Time to the first result of a process, through the provider on a warm cache and by a bare C program, in turns.

python3 first_result.py BIN CONFIG prints {bare_ms, ours_ms, above_ms, runs}: medians of whole processes.
"""
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 11


def milliseconds(command):
    begin = time.perf_counter()
    subprocess.run(command, check=True)
    return (time.perf_counter() - begin) * 1e3


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
    bare, ours = (median(times) for times in zip(*pairs))
    print(json.dumps(dict(bare_ms=round(bare, 2), ours_ms=round(ours, 2), above_ms=round(ours - bare, 2), runs=RUNS)))


if __name__ == "__main__":
    main()

"""Correctness of the kernels on a GPU: python3 check.py [NAME] checks the cases whose names contain NAME."""
import os
import sys
import time

# These add their cases to the table.
import elementwise_cases
import mover_cases
import row_cases
from cases import CASES
from device import Device
from memory import Addresses, Memory


def launches_of(generator):
    found = next(generator)
    return found if isinstance(found, list) else [found]


def main():
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    cases = {n: c for n, c in CASES.items() if wanted in n}
    specs, begin = [], time.time()
    for f, values in cases.values():
        specs += [launch.spec for launch in launches_of(f(Addresses(), *values))]
    device = Device()
    device.compile(specs, os.cpu_count())
    print(f"{len(device.cubins)} kernels compiled in {time.time() - begin:.0f} s", flush=True)
    for spec, log in device.failed:
        print("COMPILER", spec, log[:1500])
    failed, groups, begin = {}, {}, time.time()
    notes = {}
    for name, (f, values) in cases.items():
        groups.setdefault(name.split("/")[0], [0, 0])[0] += 1
        try:
            generator = f(Memory(), *values)
            device.launch(*launches_of(generator))
            import torch
            torch.cuda.synchronize()
            try:
                next(generator)
            except StopIteration as end:
                if end.value:
                    notes[name] = end.value
        except Exception as error:
            groups[name.split("/")[0]][1] += 1
            failed[name] = f"{type(error).__name__}: {str(error)[:400]}"
            if "driver error" in str(error) or "CUDA" in str(error):
                print("STOPPED", name, failed[name])
                if "driver error 7" in str(error) or "illegal" in str(error):
                    break
    print(f"run in {time.time() - begin:.0f} s")
    out = os.environ.get("OUT")
    if out:
        open(f"{out}/failed.txt", "w").write("\n".join(f"{n}: {e}" for n, e in failed.items()))
        open(f"{out}/notes.txt", "w").write("\n".join(f"{n}: {e}" for n, e in notes.items()))
    shown = {}
    for name, error in failed.items():
        group = name.split("/")[0]
        shown[group] = shown.get(group, 0) + 1
        if shown[group] <= 6:
            print("FAILED", name, error[:260])
    for group, (count, bad) in groups.items():
        print(f"{group}: {count - bad} of {count} passed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

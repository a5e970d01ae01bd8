"""The stages of tests/gpu.sh. Each is a list of parts; a part is a program with a time limit and becomes a record.

The report OUT/STAGE.json is {stage, machine, binaries, parts: [{name, status, seconds, ...}]}, written again after every
part. Parts that it already has are not run again while `binaries`, a hash of programs, providers, configs, and of what else
decides what a part does, is the same. `status` is ok, failed, or timeout: the part had a whole call's time.
"""
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
UNFINISHED = 75
# The tests of ep-ops, packed.
OPERATORS = "operators.tar.xz"
# What decides what parts do, beside the programs.
SCRIPTS = [REPOSITORY / f for f in ("benches/peers/gpu_rows.py", "benches/peers/gpu_torch.py", "examples/pytorch/softmax.py", "tests/gpu/bindings.py",
                                    "tests/gpu/first_result.py")]
DECIDING = ["EP_GPU_LARGE_BYTES", "EP_GPU_QUICK", "EP_GPU_RANDOM_SEED"]
# Seeds of the stage `random`, and the seconds of each: parts that fit into a call together.
RANDOM_PARTS, RANDOM_SECONDS = 3, 100
# A part is not begun with less than this left.
LEAST_SECONDS = 15
KEPT_OUTPUT = 3000
STRATEGIES = ["warp", "block", "cluster", "shared", "wide"]
SOFTMAX_OPS = ["softmax", "log_softmax", "softmax_backward", "log_softmax_backward"]
TOOLS = ["memcheck", "racecheck", "initcheck"]
# Groups whose rows take as long as PyTorch's or nearly so: the provider's are timed again, so many times in turns with
# them. Odd numbers: there is one median. Large products draw so much power that the clock changes most.
# So do hosts from one minute to the next.
TURNED = {"host": 5, "elementwise": 3, "matmul": 5, "log_softmax": 3, "log_softmax_backward": 3}
# What a sanitized suite runs: for each tool all ops would take an hour.
SANITIZED_DTYPES = {"memcheck": ["f32", "f16", "u8"], "racecheck": ["f32"], "initcheck": ["f32"]}


class Place:
    """Where the binaries are, and the environment of everything that is started."""

    def __init__(self):
        self.bin = Path(os.environ.get("EP_BIN_DIR", REPOSITORY / ".gpu/bin")).resolve()
        archive = Path(os.environ.get("EP_GPU_CACHE", self.bin.parent / "cache.tar.xz"))
        self.work = Path(os.environ.get("EP_GPU_WORK", self.bin.parent / "work")).resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.environment = dict(os.environ)
        self.environment.setdefault("EP_CUDA_CACHE", str(self.unpacked(archive, "cache")))
        for variable, name in [("EP_CUDA_NVRTC", "libnvrtc.so.1[23]"), ("EP_CUDA_CUBLASLT", "libcublasLt.so.1[23]")]:
            found = self.environment.get(variable) or python_library(name)
            if found:
                self.environment[variable] = found

    def unpacked(self, archive, name):
        """A folder, filled from the archive at first use; each archive has its own. Without an archive it begins empty."""
        if not archive.is_file():
            folder = self.work / name
            folder.mkdir(exist_ok=True)
            return folder
        folder = self.work / f"{name}-{hashlib.sha256(archive.read_bytes()).hexdigest()[:16]}"
        if not folder.is_dir():
            for old in self.work.glob(f"{name}-*"):
                shutil.rmtree(old)
            fresh = self.work / f"{name}.new"
            shutil.rmtree(fresh, ignore_errors=True)
            shutil.unpack_archive(archive, fresh)
            fresh.rename(folder)
        return folder

    def ep(self, *arguments, config="cuda.toml"):
        return [str(self.bin / "ep"), "--config", str(self.config(config)), *arguments]

    def config(self, name):
        return self.bin / name

    def binaries(self):
        """A hash of what is tested, and how: programs, providers and configs with their names, scripts, and variables."""
        found = hashlib.sha256()
        own = [f for f in self.bin.iterdir() if f.is_file() and (os.access(f, os.X_OK) or f.suffix == ".toml")]
        packed = [f for f in [self.bin.parent / OPERATORS] if f.is_file()]
        for file in sorted(own) + packed + SCRIPTS:
            found.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
        for variable in DECIDING:
            found.update(f"{variable}={os.environ.get(variable) or ''}\n".encode())
        return found.hexdigest()[:16]

    def forced(self, strategy):
        """A config whose softmax uses one strategy. Libraries are named in full: it lies elsewhere."""
        file = self.work / f"softmax-{strategy}.toml"
        library = self.bin / "libep_cuda.so"
        file.write_text(
            f'[[provider]]\nname = "cuda"\npath = "{library}"\n[provider.options]\nsoftmax = "{strategy}"\n'
        )
        return file


def python_library(pattern):
    """A library in this Python's packages of NVIDIA; the newest version where there are several."""
    found = []
    for folder in sys.path:
        if folder and Path(folder, "nvidia").is_dir():
            found += [p for p in Path(folder, "nvidia").glob(f"*/lib/{pattern}") if "alt" not in p.name]
    return str(max(found, key=lambda p: p.name)) if found else None


def run(command, seconds, environment, log=None):
    """Exit code (None: killed at its limit), standard output, the end of standard error. Ends the program's children too."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=output, stderr=errors, env=environment, start_new_session=True, cwd=REPOSITORY
        )
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
        output.seek(0)
        errors.seek(0)
        return code, output.read(), errors.read()[-KEPT_OUTPUT:]


# ---- Parts: functions of (place, seconds) that return a record's fields


def conformance(target, *flags):
    """One call of the kit. Only what did not pass is kept of its cases."""

    def part(place, seconds):
        report = place.work / "conformance.json"
        report.unlink(missing_ok=True)
        config = target(place)
        jobs = os.environ.get("EP_GPU_JOBS", "8")
        command = [str(place.bin / "ep"), "conformance", str(config), "--json", str(report), "--jobs", jobs, *flags]
        code, output, errors = run(command, seconds, place.environment)
        return kit_record(code, report, output, errors)

    return part


def kit_record(code, report, output, errors):
    record = {"status": "timeout" if code is None else "ok" if code == 0 else "failed", "exit": code}
    try:
        result = json.loads(report.read_text())
        for key in ("passed", "failed", "unsupported"):
            record[key] = result[key]
        bad = [c for c in result["cases"] if c["outcome"] == "failed"]
        record["failures"] = [{k: c.get(k) for k in ("name", "message", "repeat")} for c in bad[:40]]
    except (OSError, ValueError, KeyError) as error:
        record["report"] = f"{type(error).__name__}: {error}"
    if code != 0:
        record["output"] = (output[-KEPT_OUTPUT:] + errors)[-KEPT_OUTPUT:]
    return record


def sanitizer(tool, op, dtype):
    def part(place, seconds):
        program = find_sanitizer()
        if program is None:
            return {"status": "failed", "output": "compute-sanitizer is not found; it is part of the CUDA toolkit"}
        logs = place.work / "sanitizer"
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir()
        report = place.work / "sanitized.json"
        report.unlink(missing_ok=True)
        # The kit asks for too much memory on purpose, and drivers answer questions with errors: not what is looked for.
        command = [program, "--tool", tool, "--target-processes", "all", "--log-file", str(logs / "%p.log")]
        command += ["--report-api-errors", "no"] if tool == "memcheck" else []
        config = str(place.config("cuda.toml"))
        command += [str(place.bin / "ep"), "conformance", config, "--json", str(report), "--jobs", "2"]
        command += ["--quick", "--timeout-s", "240", "--op", op, *(["--dtype", dtype] if dtype else [])]
        code, output, errors = run(command, seconds, place.environment)
        record = kit_record(code, report, output, errors)
        found, summaries = sanitizer_findings([p.read_text(errors="replace") for p in sorted(logs.glob("*.log"))])
        record.update(summaries=summaries, findings=found[:20])
        if found or (code == 0 and summaries == 0):
            record["status"] = "failed"
        return record

    return part


def find_sanitizer():
    places = ["/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda/compute-sanitizer/compute-sanitizer"]
    places += [str(p) for p in Path("/usr/local").glob("cuda-*/bin/compute-sanitizer")]
    return shutil.which("compute-sanitizer") or next((p for p in places if os.access(p, os.X_OK)), None)


def sanitizer_findings(logs):
    """What the logs of a tool tell of errors, and in how many logs it came to a summary."""
    found, summaries = [], 0
    for log in logs:
        lines = log.splitlines()
        ends = [line for line in lines if re.search(r"(ERROR|RACECHECK) SUMMARY: ", line)]
        summaries += bool(ends)
        if any(not re.search(r"SUMMARY: 0 (errors|hazards)", line) for line in ends):
            found.append("\n".join(lines[:40])[:KEPT_OUTPUT])
    return found, summaries


def program(*command, keep=KEPT_OUTPUT, lines=False):
    """A program of ours whose standard output is JSON, one value or one for each line."""

    def part(place, seconds):
        arguments = command[0](place) if callable(command[0]) else list(command)
        code, output, errors = run(arguments, seconds, place.environment)
        record = {"status": "timeout" if code is None else "ok" if code == 0 else "failed", "exit": code}
        try:
            record["result"] = json_lines(output, code is None) if lines else json.loads(output)
        except ValueError:
            record["output"] = output[-keep:]
            if lines or code == 0:
                record["status"] = record["status"] if record["status"] == "timeout" else "failed"
        if code != 0:
            record["errors"] = errors
        return record

    return part


def json_lines(text, cut_off=False):
    """A line of JSON each; the last one may be half of one where the program was killed."""
    lines = [line for line in text.splitlines(keepends=True) if line.strip()]
    if cut_off and lines and not lines[-1].endswith("\n"):
        lines.pop()
    return [json.loads(line) for line in lines]


def rust_tests(name):
    """A program of tests of ep-ops, on cuda:0 in place of the simulated accelerator."""

    def part(place, seconds):
        program = place.unpacked(place.bin.parent / OPERATORS, "operators") / name
        # That one reads the repository where it was built.
        command = [str(program), "--skip", "the_documented_table"]
        environment = dict(place.environment, EP_TEST_PROVIDER=str(place.bin / "libep_cuda.so"), EP_TEST_DEVICE="cuda:0")
        try:
            code, output, errors = run(command, seconds, environment)
        except OSError as error:
            return {"status": "failed", "errors": f"{error}; tests/gpu-pack.sh builds it"}
        ended = re.findall(r"^test result: \S+ (\d+) passed; (\d+) failed", output, re.MULTILINE)
        record = {"status": "timeout" if code is None else "ok" if code == 0 and ended else "failed", "exit": code}
        if ended:
            record["passed"], record["failed"] = map(int, ended[-1])
        if record["status"] != "ok":
            record["output"], record["errors"] = output[-KEPT_OUTPUT:], errors
        return record

    return part


# ---- Stages: lists of (name, part)


def query(place):
    """What the devices of CUDA have, as `ep query` lists it."""
    code, output, errors = run(place.ep("query", "--json"), 120, place.environment)
    if code != 0:
        raise RuntimeError(f"`ep query` ended with {code}: {errors}")
    return [row for row in json.loads(output) if row["device"].startswith("cuda")]


def ops(place):
    return sorted({row["op"] for row in query(place)})


def kit(place):
    device, quick = ["--device", "cuda:0"], ["--quick"] if os.environ.get("EP_GPU_QUICK") else []
    own = lambda p: p.config("cuda.toml")
    # A context takes the driver a fifth of a second to make, one at a time for all processes of a machine: cases that make
    # many wait for other suites that run beside them.
    patient = ["--timeout-s", "300"]
    parts = [
        ("abi", conformance(own, "--case", "abi/*", "--allow-empty", *patient)),
        ("objects", conformance(own, "--case", "objects/cuda:0/*", "--allow-empty")),
    ]
    parts.append(("chains", program(lambda p: bench_program(p, "--chains", "60"))))
    parts.append(("repeats", program(lambda p: bench_program(p, "--repeats"))))
    parts += [(op, conformance(own, *device, "--op", op, *quick)) for op in ops(place)]
    for strategy in STRATEGIES:
        forced = lambda p, strategy=strategy: p.forced(strategy)
        for op in SOFTMAX_OPS:
            parts.append((f"{op} {strategy}", conformance(forced, *device, "--op", op, "--quick")))
    return parts


def limits(place):
    """Both sides of the limits of each strategy of softmax."""
    check = lambda op: program(lambda p: bench_program(p, "--limits", op), lines=True)
    return [(op, check(op)) for op in SOFTMAX_OPS]


def large(place):
    """Launches on more than 2^31 elements and 2^32 bytes: three operands of EP_GPU_LARGE_BYTES."""
    size = os.environ.get("EP_GPU_LARGE_BYTES")
    flags = ["--large", *(["--large-bytes", size] if size else [])]
    return [("large", program(lambda p: bench_program(p, *flags), lines=True))]


def random(place):
    """Random launches on the GPU and on the CPU, which leave the same; from EP_GPU_RANDOM_SEED on, each seed draws others."""
    first = int(os.environ.get("EP_GPU_RANDOM_SEED") or 0)
    flags = ["--random", str(RANDOM_SECONDS), "--against", "cpu:0", "--seed"]
    check = lambda seed: program(lambda p: bench_program(p, *flags, str(seed), config=p.config("ep.toml")))
    return [(f"seed {seed}", check(seed)) for seed in range(first, first + RANDOM_PARTS)]


def two(place):
    """The second GPU, and what goes between it and the first."""
    devices = sorted({row["device"] for row in query(place)})
    if "cuda:1" not in devices:
        sys.exit(f"error: stage `two` needs two GPUs; the driver shows {', '.join(devices) or 'none'}. "
                 "See CUDA_VISIBLE_DEVICES, or run it on another machine")
    own = lambda p: p.config("cuda.toml")
    parts = [
        ("peer copy", program(lambda p: bench_program(p, "--peer-copy", "cuda:1"), lines=True)),
        ("objects", conformance(own, "--case", "objects/cuda:1/*", "--allow-empty")),
    ]
    return parts + [(op, conformance(own, "--device", "cuda:1", "--op", op, "--quick")) for op in ops(place)]


def sanitized(rows):
    """(tool, op, dtype) of a reduced suite, of what these rows of `ep query` offer; the dtype is none where an op has none."""
    offered = {}
    for row in rows:
        offered.setdefault(row["op"], set()).update(row["dtypes"].values())
    wanted = lambda tool, op: [d for d in SANITIZED_DTYPES[tool] if d in offered[op]] if offered[op] else [None]
    return [(tool, op, dtype) for tool in TOOLS for op in sorted(offered) for dtype in wanted(tool, op)]


def sanitize(place):
    return [(" ".join(filter(None, case)), sanitizer(*case)) for case in sanitized(query(place))]


PEERS = REPOSITORY / "benches/peers"


def bench_program(place, *flags, config=None):
    return [str(place.bin / "ep-gpu-bench"), "--config", str(config or place.config("cuda.toml")), *flags]


def rows_file(place, name, rows):
    file = place.work / f"rows-{name}.jsonl"
    file.write_text("\n".join(json.dumps(r, default=lambda _: None) for r in rows))
    return str(file)


def benchmark(group):
    if group == "host":
        return program(lambda p: bench_program(p, "--host"), lines=True)
    command = lambda p: bench_program(p, "--rows", rows_file(p, group, gpu_rows().rows(group)))
    return program(command, lines=True)


def benchmark_of(strategy):
    """Softmax by one strategy, at widths that it has room for and at others, where the provider says so."""

    def command(place):
        rows = rows_file(place, strategy, gpu_rows().forced(strategy))
        return bench_program(place, "--rows", rows, config=place.forced(strategy))

    return program(command, lines=True)


def gpu_rows():
    sys.path.insert(0, str(PEERS))
    import gpu_rows

    return gpu_rows


def peers(group, *flags):
    script = str(PEERS / "gpu_torch.py")
    return program(lambda p: [sys.executable, script, "--group", group, *flags], lines=True)


def repeated(programs, **facts):
    """Programs one after the other, whose rows come again and again. The result has one line for each row and peer, that of
    the median time."""

    def part(place, seconds):
        begin, found = time.monotonic(), {}
        for program in programs:
            record = program(place, seconds - (time.monotonic() - begin))
            if record["status"] != "ok":
                return record
            for line in record["result"]:
                found.setdefault(tuple(line.get(k) for k in ("peer", "op", "dtype", "shape")), []).append(line)
        return {"status": "ok", **facts, "result": [median_line(lines) for lines in found.values()]}

    return part


def in_turns(group, turns):
    """A group by the provider and by PyTorch, each a few times and in turns: the GPU's clock differs from minute to minute."""
    pair = (benchmark(group), peers(group))
    return repeated([p for turn in range(turns) for p in (pair if turn % 2 == 0 else pair[::-1])], turns=turns)


def launches(processes):
    """What launches cost the host, in turns with PyTorch's, in so many processes of each."""
    script = str(PEERS / "gpu_torch.py")
    one = program(lambda p: [sys.executable, script, "--launches", *bench_program(p, "--launches")], lines=True)
    return repeated([one] * processes, processes=processes)


def median_line(lines):
    """Of the same row, measured several times, with all its times. A failure is told whenever there was one."""
    failed = [line for line in lines if line.get("error")]
    if failed:
        return failed[0]
    middle = lambda key: sorted(lines, key=lambda line: line[key])[len(lines) // 2]
    median = {**middle("us"), "all_us": [line["us"] for line in lines]}
    for of in [key for key in median if key.startswith("of_")]:
        median.update({of: middle(of)[of], f"all_{of}": [line[of] for line in lines]})
    return median


def bench_ours(place):
    first = [sys.executable, str(REPOSITORY / "tests/gpu/first_result.py"), str(place.bin), str(place.config("cuda.toml"))]
    return [
        ("host", benchmark("host")),
        ("first result", program(*first)),
        *((group, benchmark(group)) for group in gpu_rows().groups()),
        *((f"softmax {strategy}", benchmark_of(strategy)) for strategy in STRATEGIES),
    ]


def side_by_side(parts):
    """Parts that do not measure, all at once."""

    def part(place, seconds):
        with ThreadPoolExecutor(len(parts)) as pool:
            records = list(pool.map(lambda one: one(place, seconds), parts))
        bad = [record for record in records if record["status"] != "ok"]
        return bad[0] if bad else {"status": "ok"}

    return part


def bench_peers(place):
    groups = gpu_rows().groups()
    eager = [(f"{g} in turns", in_turns(g, TURNED[g])) if g in TURNED else (g, peers(g)) for g in ["host", *groups]]
    compiled = [g for g in groups if g != "matmul"]
    ahead = ("compile", side_by_side([peers(g, "--compiled", "--untimed") for g in compiled]))
    return [("launches", launches(5)), *eager, ahead, *((f"{g} compiled", peers(g, "--compiled")) for g in compiled)]


def operators(place):
    return [("operators", rust_tests("operators")), ("tensors", rust_tests("tensors"))]


def bindings(place):
    program_of = lambda p: [sys.executable, str(REPOSITORY / "tests/gpu/bindings.py"), str(p.bin / "libep_host.so"), str(p.config("ep.toml"))]
    return [("python", program(program_of)), ("doctor", program(lambda p: p.ep("doctor", "--json", config="ep.toml")))]


def demo(place):
    widths = ["32", "1024", "8192", "65536", "262144", "300000"]
    explain = lambda width: program(
        lambda p: p.ep("explain", "--device", "cuda:0", "--json", "--op", "softmax", "--dtype", "src=f32",
                       "--dtype", "dst=f32", "--limit", f"cols={width}")
    )
    example = str(REPOSITORY / "examples/pytorch/softmax.py")
    return [
        ("list", program(lambda p: p.ep("list", "--json", config="ep.toml"))),
        ("digits", program(lambda p: p.ep("demo", "--json", config="ep.toml"))),
        *((f"explain softmax {width}", explain(width)) for width in widths),
        ("pytorch", program(lambda p: [sys.executable, example, str(p.bin / "libep_pytorch.so"), str(p.config("cuda.toml")), "--json"])),
    ]


STAGES = {
    "kit": kit,
    "limits": limits,
    "large": large,
    "random": random,
    "two": two,
    "sanitize": sanitize,
    "operators": operators,
    "bindings": bindings,
    "bench-ours": bench_ours,
    "bench-peers": bench_peers,
    "demo": demo,
}


# ---- Running


def machine():
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi: {error}"


def write(file, report):
    """Whole or not at all: a call may end at any time."""
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(report, indent=1))
    beside.replace(file)


def load(file, stage, binaries):
    try:
        report = json.loads(file.read_text())
    except (OSError, ValueError):
        report = {}
    if (report.get("stage"), report.get("binaries")) != (stage, binaries):
        if report.get("parts"):
            print(f"{stage}: {file.name} is of other binaries, or of another stage: all parts run again")
        report = {"stage": stage, "machine": machine(), "binaries": binaries, "parts": []}
    return report


def perform(stage, parts, file, place, seconds, clock=time.monotonic):
    """Runs what is not done; the exit code."""
    begin = clock()
    report = load(file, stage, place.binaries())
    # Also where nothing is left, so that there is a report.
    write(file, report)
    done, ran_here = {p["name"] for p in report["parts"]}, 0
    for name, part in parts:
        if name in done:
            continue
        left = seconds - (clock() - begin)
        if left < LEAST_SECONDS:
            print(f"{stage}: {len(report['parts'])} of {len(parts)} parts done; call again for the rest")
            return UNFINISHED
        started = clock()
        try:
            record = part(place, left)
        except Exception as error:
            record = {"status": "failed", "output": f"{type(error).__name__}: {error}"}
        if record["status"] == "timeout" and ran_here:
            # It began late in this call: the next one gives it a whole call's time.
            print(f"{stage}: {name} did not fit into the rest of the time; call again for the rest")
            return UNFINISHED
        record = {"name": name, "seconds": round(clock() - started, 1), **record}
        report["parts"].append(record)
        ran_here += 1
        write(file, report)
        brief = ", ".join(f"{k} {record[k]}" for k in ("passed", "failed", "unsupported") if k in record)
        print(f"{record['status']:8} {name} ({record['seconds']} s) {brief}", flush=True)
    bad = [p["name"] for p in report["parts"] if p["status"] != "ok"]
    print(f"{stage}: {len(parts)} parts, {len(bad)} not well{': ' if bad else ''}{', '.join(bad)}")
    return 1 if bad else 0


def main():
    stage, out = sys.argv[1], Path(sys.argv[2]).resolve()
    if stage not in STAGES:
        sys.exit(f"error: no stage `{stage}`; there are {', '.join(STAGES)}")
    place = Place()
    if not (place.bin / "ep").is_file():
        sys.exit(f"error: no `ep` in {place.bin}; run tests/gpu-pack.sh, or set EP_BIN_DIR")
    out.mkdir(parents=True, exist_ok=True)
    seconds = float(os.environ.get("EP_GPU_SECONDS", "450"))
    sys.exit(perform(stage, STAGES[stage](place), out / f"{stage}.json", place, seconds))


if __name__ == "__main__":
    main()

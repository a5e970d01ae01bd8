"""python3 -m unittest discover tests/gpu"""
import json
import os
import shutil
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent))
import first_result
import stages


class Built:
    """A place with binaries of which nothing else is asked."""

    hash = "one"

    def binaries(self):
        return self.hash


class Clock:
    """Time that only parts let pass."""

    now = 0.0

    def __call__(self):
        return self.now


class Perform(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.file = Path(self.folder.name, "kit.json")
        self.clock = Clock()
        self.place = Built()
        self.calls = []

    def part(self, name, takes, status="ok"):
        def part(place, seconds):
            self.calls.append(name)
            self.clock.now += min(takes, seconds)
            return {"status": "timeout" if takes > seconds else status}

        return name, part

    def perform(self, *parts, seconds=100):
        code = stages.perform("kit", parts, self.file, self.place, seconds, self.clock)
        return code, [(p["name"], p["status"]) for p in json.loads(self.file.read_text())["parts"]]

    def test_a_second_call_goes_on_where_the_first_stopped(self):
        parts = [self.part("a", 60), self.part("b", 30), self.part("c", 40)]
        self.assertEqual(self.perform(*parts), (stages.UNFINISHED, [("a", "ok"), ("b", "ok")]))
        self.assertEqual(self.perform(*parts), (0, [("a", "ok"), ("b", "ok"), ("c", "ok")]))
        self.assertEqual(self.calls, ["a", "b", "c"])

    def test_only_a_whole_call_is_a_timeout(self):
        parts = [self.part("a", 10), self.part("b", 95), self.part("c", 500), self.part("d", 1)]
        self.assertEqual(self.perform(*parts)[0], stages.UNFINISHED)
        self.assertEqual(self.perform(*parts), (stages.UNFINISHED, [("a", "ok"), ("b", "ok")]))
        code, records = self.perform(*parts)
        self.assertEqual((code, records[2:]), (stages.UNFINISHED, [("c", "timeout")]))
        code, records = self.perform(*parts)
        self.assertEqual((code, records[3:]), (1, [("d", "ok")]))
        self.assertEqual(self.calls, ["a", "b", "b", "c", "d"])

    def test_a_part_that_raises_is_a_failure_and_the_rest_runs(self):
        def broken(place, seconds):
            raise OSError("no such file")

        code, records = self.perform(("broken", broken), self.part("b", 1))
        self.assertEqual((code, records), (1, [("broken", "failed"), ("b", "ok")]))
        self.assertIn("no such file", json.loads(self.file.read_text())["parts"][0]["output"])

    def test_a_report_that_is_cut_off_or_of_another_stage_is_begun_anew(self):
        for text in ["{", '{"stage": "demo", "parts": [{"name": "a", "status": "ok"}]}']:
            self.file.write_text(text)
            self.calls.clear()
            self.assertEqual(self.perform(self.part("a", 1)), (0, [("a", "ok")]))
            self.assertEqual(self.calls, ["a"])


    def test_parts_of_other_binaries_run_again(self):
        parts = [self.part("a", 1), self.part("b", 1)]
        self.perform(*parts)
        self.perform(*parts)
        self.assertEqual(self.calls, ["a", "b"])
        self.place.hash = "another"
        self.assertEqual(self.perform(*parts), (0, [("a", "ok"), ("b", "ok")]))
        self.assertEqual(self.calls, ["a", "b", "a", "b"])


class Programs(unittest.TestCase):
    def test_a_program_is_killed_with_its_children_at_its_limit(self):
        code, output, _ = stages.run(["sh", "-c", "echo begun; sleep 60 & wait"], 0.5, None)
        self.assertEqual((code, output), (None, "begun\n"))

    def test_what_is_no_json_is_a_failure_and_is_kept(self):
        class Nowhere:
            environment = None

        record = stages.program("echo", '{"a": 1}')(Nowhere, 10)
        self.assertEqual((record["status"], record["result"]), ("ok", {"a": 1}))
        record = stages.program("echo", "oops")(Nowhere, 10)
        self.assertEqual((record["status"], record["output"]), ("failed", "oops\n"))
        record = stages.program("printf", '{"a": 1}\n\n{"a": 2}\n', lines=True)(Nowhere, 10)
        self.assertEqual(record["result"], [{"a": 1}, {"a": 2}])

    def test_lines_before_a_kill_are_kept(self):
        class Nowhere:
            environment = None

        script = """printf '{"a": 1}\\n{"a": '; sleep 60"""
        record = stages.program("sh", "-c", script, lines=True)(Nowhere, 0.5)
        self.assertEqual((record["status"], record["result"]), ("timeout", [{"a": 1}]))

    def test_findings_of_the_tools(self):
        clean = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
        bad = "========= COMPUTE-SANITIZER\n========= Invalid __global__ write of size 4 bytes\n========= ERROR SUMMARY: 3 errors\n"
        race = "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)\n"
        clean_race = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
        found, summaries = stages.sanitizer_findings([clean, bad, race, clean_race, "cut off"])
        self.assertEqual(summaries, 4)
        self.assertEqual([("Invalid" in f, "RACECHECK" in f) for f in found], [(True, False), (False, True)])


class Stages(unittest.TestCase):
    """The lists of parts, with programs that say what they were asked."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.bin = Path(folder.name, "bin")
        self.bin.mkdir()
        (self.bin / "cuda.toml").touch()
        self.write("ep-gpu-bench", """printf '{"asked": "%s"}\\n' "$*" """)

    def write(self, name, script):
        program = self.bin / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def devices(self, *names):
        """Lets `ep query` list softmax and add of these devices, and the kit write a report of what it was asked."""
        rows = [dict(device=d, op=op) for d in names for op in ("softmax", "add")]
        kit = """while [ $# -gt 0 ]; do [ "$1" = --json ] && report=$2; shift; done; echo "$all" > "$report.asked"
echo '{"passed": 3, "failed": 0, "unsupported": 1, "cases": []}' > "$report" """
        self.write("ep", f"""all="$*"; case "$all" in *query*) echo '{json.dumps(rows)}';; *) {kit};; esac""")

    def place(self):
        with patch.dict(os.environ, EP_BIN_DIR=str(self.bin)):
            return stages.Place()

    def records(self, parts, place):
        return {name: part(place, 20) for name, part in parts}

    def test_two_is_about_the_second_device(self):
        self.devices("cuda:0", "cuda:1", "cpu:0")
        place = self.place()
        parts = stages.two(place)
        self.assertEqual([name for name, _ in parts], ["peer copy", "objects", "add", "softmax"])
        records = self.records(parts[:1], place)
        self.assertTrue(records["peer copy"]["result"][0]["asked"].endswith("cuda.toml --peer-copy cuda:1"))
        for name, words in [("objects", "--case objects/cuda:1/*"), ("softmax", "--device cuda:1 --op softmax --quick")]:
            record = dict(parts)[name](place, 20)
            self.assertEqual((record["status"], record["passed"]), ("ok", 3), record)
            self.assertIn(words, (place.work / "conformance.json.asked").read_text())

    def test_two_needs_two(self):
        self.devices("cuda:0", "cpu:0")
        with self.assertRaises(SystemExit) as ended:
            stages.two(self.place())
        self.assertRegex(str(ended.exception), "needs two GPUs; the driver shows cuda:0. See CUDA_VISIBLE_DEVICES")

    def test_what_is_sanitized_is_offered(self):
        rows = [dict(op="cast", dtypes=dict(src="f32", dst="i8")), dict(op="cast", dtypes=dict(src="u8", dst="i8"))]
        rows.append(dict(op="memset", dtypes={}))
        of_memcheck = [case[1:] for case in stages.sanitized(rows) if case[0] == "memcheck"]
        self.assertEqual(of_memcheck, [("cast", "f32"), ("cast", "u8"), ("memset", None)])
        self.assertIn(("racecheck", "cast", "f32"), stages.sanitized(rows))
        self.assertNotIn(("racecheck", "cast", "u8"), stages.sanitized(rows))

    def test_limits_fail_with_their_program(self):
        place = self.place()
        parts = stages.limits(place)
        self.assertEqual([name for name, _ in parts], stages.SOFTMAX_OPS)
        asked = self.records(parts, place)["log_softmax"]["result"][0]["asked"]
        self.assertTrue(asked.endswith("--limits log_softmax"), asked)
        self.write("ep-gpu-bench", """echo '{"failed": 2}'; echo "error: 2 of 20" >&2; exit 1""")
        record = self.records(parts[:1], place)["softmax"]
        self.assertEqual((record["status"], record["result"], record["errors"]), ("failed", [{"failed": 2}], "error: 2 of 20\n"))

    def test_all_groups_but_matmul_are_compiled_too(self):
        names = [name for name, _ in stages.bench_peers(self.place())]
        groups = stages.gpu_rows().groups()
        self.assertIn("reduce compiled", names)
        self.assertEqual([n for n in names if n.endswith(" compiled")], [f"{g} compiled" for g in groups if g != "matmul"])
        compiled = {r["group"] for r in stages.gpu_rows().rows() if r["compiled"]}
        self.assertEqual(compiled, set(groups) - {"matmul"})

    def test_another_archive_of_kernels_is_unpacked(self):
        for name in ("first", "second"):
            (self.bin.parent / name).mkdir()
            (self.bin.parent / name / f"{name}.cubin").touch()
            shutil.make_archive(str(self.bin.parent / "cache"), "xztar", self.bin.parent / name)
            (self.bin.parent / "cache.tar.xz").rename(self.bin.parent / f"{name}.tar.xz")
            with patch.dict(os.environ, EP_GPU_CACHE=str(self.bin.parent / f"{name}.tar.xz")):
                cache = Path(self.place().environment["EP_CUDA_CACHE"])
            self.assertEqual([f.name for f in cache.iterdir()], [f"{name}.cubin"])
        self.assertEqual(len(list(cache.parent.glob("cache*"))), 1, "the one before is gone")

    def test_operators_are_tested_on_the_gpu(self):
        place = self.place()
        built = self.bin.parent / "operators"
        built.mkdir()
        scripts = {
            "operators": 'echo "$EP_TEST_PROVIDER $EP_TEST_DEVICE"; echo "test result: ok. 38 passed; 0 failed; 0 ignored"',
            "tensors": 'echo "test result: FAILED. 23 passed; 1 failed; 0 ignored"; echo why >&2; exit 101',
        }
        records = self.records(stages.operators(place), place)
        self.assertRegex(records["tensors"]["errors"], "tensors.*; tests/gpu-pack.sh builds it")
        before = place.binaries()
        for name, script in scripts.items():
            (built / name).write_text(f"#!/bin/sh\n{script}\n")
            (built / name).chmod(0o755)
        shutil.make_archive(str(built), "xztar", built)
        self.assertNotEqual(place.binaries(), before)
        records = self.records(stages.operators(place), place)
        self.assertEqual(records["operators"], {"status": "ok", "exit": 0, "passed": 38, "failed": 0})
        bad = records["tensors"]
        self.assertEqual((bad["status"], bad["passed"], bad["failed"], bad["errors"]), ("failed", 23, 1, "why\n"))
        (built / "operators").write_text("#!/bin/sh\necho none ran\n")
        shutil.make_archive(str(built), "xztar", built)
        self.assertEqual(self.records(stages.operators(place), place)["operators"]["status"], "failed")

    def test_large_has_a_size_of_its_own(self):
        place = self.place()
        asked = self.records(stages.large(place), place)["large"]["result"][0]["asked"]
        self.assertTrue(asked.endswith("cuda.toml --large"), asked)
        with patch.dict(os.environ, EP_GPU_LARGE_BYTES="2000000"):
            parts = stages.large(place)
        self.assertIn("--large --large-bytes 2000000", self.records(parts, place)["large"]["result"][0]["asked"])

    def test_random_launches_have_seeds_and_both_providers(self):
        place = self.place()
        asked = [record["result"]["asked"] for record in self.records(stages.random(place), place).values()]
        self.assertEqual(len(asked), stages.RANDOM_PARTS)
        for seed, words in enumerate(asked):
            self.assertTrue(words.endswith(f"ep.toml --random {stages.RANDOM_SECONDS} --against cpu:0 --seed {seed}"), words)
        with patch.dict(os.environ, EP_GPU_RANDOM_SEED="70"):
            parts = stages.random(place)
        self.assertEqual([name for name, _ in parts], ["seed 70", "seed 71", "seed 72"])
        self.assertTrue(self.records(parts, place)["seed 72"]["result"]["asked"].endswith("--seed 72"))
        self.write("ep-gpu-bench", """echo '{"failed": 2}'; echo "error: the devices differ" >&2; exit 1""")
        record = self.records(parts[:1], place)["seed 70"]
        self.assertEqual((record["status"], record["result"]), ("failed", {"failed": 2}))

    def test_binaries_are_known_by_their_bytes_and_names(self):
        before = self.place().binaries()
        (self.bin / "notes.txt").write_text("no binary")
        self.assertEqual(self.place().binaries(), before)
        self.write("ep-gpu-bench", "exit 1")
        self.assertNotEqual(self.place().binaries(), before)

    def test_what_else_decides_about_a_part_counts_too(self):
        self.assertTrue(all(script.is_file() for script in stages.SCRIPTS))
        rows = self.bin.parent / "gpu_rows.py"
        rows.write_text("ROWS = 1")

        def during(change):
            self.addCleanup(change.stop)
            change.start()

        during(patch.object(stages, "SCRIPTS", [rows]))
        seen = [self.place().binaries()]
        for change in [
            lambda: (self.bin / "cuda.toml").write_text("# another"),
            lambda: rows.write_text("ROWS = 2"),
            lambda: during(patch.dict(os.environ, EP_GPU_LARGE_BYTES="2000000")),
            lambda: during(patch.dict(os.environ, EP_GPU_QUICK="1")),
            lambda: during(patch.dict(os.environ, EP_GPU_RANDOM_SEED="70")),
        ]:
            change()
            seen.append(self.place().binaries())
        self.assertEqual(len(set(seen)), len(seen), seen)

    def test_in_turns_the_median_counts_and_a_failure_is_told(self):
        times = iter([5.0, 1.0, 3.0, 9.0, 2.0, 1.0])
        order = []

        def program(peer):
            def part(place, seconds):
                order.append(peer)
                line = dict(peer=peer, op="add", dtype="f32", shape="4")
                return dict(status="ok", result=[dict(line, us=next(times)), dict(line, shape="8", **broken(peer))])

            return part

        broken = lambda peer: dict(error="no room") if len(order) == 6 else dict(us=1.0)
        with patch.object(stages, "benchmark", lambda group: program("ours")), patch.object(stages, "peers", lambda *_: program("torch")):
            record = stages.in_turns("matmul", 3)(None, 20)
        self.assertEqual(order, ["ours", "torch", "torch", "ours", "ours", "torch"])
        found = {(l["peer"], l["shape"]): l.get("us", l.get("error")) for l in record["result"]}
        self.assertEqual(found, {("ours", "4"): 5.0, ("torch", "4"): 1.0, ("ours", "8"): 1.0, ("torch", "8"): "no room"})
        all_us = {(l["peer"], l["shape"]): l.get("all_us") for l in record["result"]}
        self.assertEqual(all_us[("ours", "4")], [5.0, 9.0, 2.0])
        self.assertEqual(all_us[("torch", "4")], [1.0, 3.0, 1.0])

    def test_launches_are_of_several_processes_and_their_middle_counts(self):
        shares = iter([0.4, 0.2, 0.5])

        def program(place, seconds):
            line = dict(op="add", dtype="f32", shape="4")
            return dict(status="ok", result=[dict(line, peer="ours", us=1.0, of_torch=next(shares)), dict(line, peer="torch", us=2.0)])

        commands = []
        with patch.object(stages, "program", lambda command, **_: commands.append(command) or program):
            record = stages.launches(3)(None, 20)
        script, *command = commands[0](self.place())[1:]
        self.assertEqual((Path(script).name, command[0], command[2], command[-1]), ("gpu_torch.py", "--launches", "--config", "--launches"))
        self.assertEqual(Path(command[1]).name, "ep-gpu-bench")
        ours, theirs = record["result"]
        self.assertEqual((record["processes"], ours["of_torch"], ours["all_of_torch"]), (3, 0.4, [0.4, 0.2, 0.5]))
        self.assertNotIn("of_torch", theirs)

    def test_side_by_side_all_run_and_a_failure_is_told(self):
        begun = threading.Barrier(3, timeout=10)
        ends = iter(["ok", "failed", "ok"])

        def part(place, seconds):
            begun.wait()
            return {"status": next(ends)}

        self.assertEqual(stages.side_by_side([part] * 3)(None, 20), {"status": "failed"})
        self.assertEqual(stages.side_by_side([lambda *_: {"status": "ok", "result": []}])(None, 20), {"status": "ok"})

    def test_a_first_result_is_timed_to_its_line_and_to_the_end(self):
        self.write("bare", "echo 1.5; sleep 0.05")
        first, whole = first_result.milliseconds([self.bin / "bare"])
        self.assertGreaterEqual(whole - first, 50)
        for script in ("echo 2", "echo 1.5; exit 3", ":"):
            self.write("bare", script)
            with self.assertRaisesRegex(RuntimeError, "bare ended with"):
                first_result.milliseconds([self.bin / "bare"])

    def test_a_turn_that_fails_ends_the_part(self):
        self.write("ep-gpu-bench", "echo broken >&2; exit 1")
        record = stages.in_turns("matmul", 3)(self.place(), 20)
        self.assertEqual((record["status"], record["errors"]), ("failed", "broken\n"))


if __name__ == "__main__":
    unittest.main()

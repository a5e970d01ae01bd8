"""python3 -m unittest discover tests/gpu"""
import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import stages


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
        self.calls = []

    def part(self, name, takes, status="ok"):
        def part(place, seconds):
            self.calls.append(name)
            self.clock.now += min(takes, seconds)
            return {"status": "timeout" if takes > seconds else status}

        return name, part

    def perform(self, *parts, seconds=100):
        code = stages.perform("kit", parts, self.file, None, seconds, self.clock)
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


if __name__ == "__main__":
    unittest.main()

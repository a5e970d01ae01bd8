"""python3 -m unittest discover -s benches/peers -p 'test_*.py'"""
import json
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import gpu_join
import gpu_rows
import gpu_torch


def line(peer, group, shape, us, copy=10.0, **more):
    times = dict(us=us, copy_us=copy, share=copy / us) if us else {}
    return dict(peer=peer, group=group, op=group, dtype="f32", shape=shape, **times, **more)


def report(stage, *parts):
    return dict(stage=stage, machine="A GPU", parts=[dict(name=str(i), status="ok", result=p) for i, p in enumerate(parts)])


OURS = report(
    "bench-ours",
    [line("ours", "softmax", "49152x32", 10.0), line("ours", "softmax", "49152x1024", 12.5), line("ours", "softmax", "49152x1024 misaligned", 20.0)],
    [line("ours", "matmul", "1x16x16x16", 4.0, tflops=123.4), line("ours", "permute", "8x8", None, error="OutOfMemory: a|b\nmore")],
    [dict(peer="ours", group="host", op="launch", dtype="f32", shape="4", us=1.25)],
)
FORCED = dict(group="strategies", shape="49152x1024", us=12.5)
OURS["parts"].append(
    dict(name="forced", status="ok", result=[
        dict(line("ours", **FORCED), op="warp", by="cuda/softmax: warp, 8 lanes"),
        dict(line("ours", **FORCED), op="block", by="cuda/softmax: wide"),
    ])
)
OURS["parts"].append(dict(name="first result", status="ok", result=dict(bare_ms=200.0, ours_ms=230.5)))
PEERS = report(
    "bench-peers",
    [line("torch", "softmax", "49152x32", 15.0), line("torch", "softmax", "49152x1024", 25.0)],
    [line("compiled", "softmax", "49152x32", 20.0), dict(line("compiled", "softmax", "49152x1024", None), error="broken")],
)


TWO = report(
    "two",
    [
        line("ours", "peer_copy", "268435456 bytes, cuda:0 to cuda:1", 1000.0, copy=970.0),
        line("ours", "peer_event", "20 times 16777216 bytes, cuda:0 to cuda:1", None),
    ],
)
# Parts whose result is no list of lines: reports of the kit.
TWO["parts"].append(dict(name="add", status="ok", passed=3))


class Join(unittest.TestCase):
    def test_rows_meet_by_name_and_the_fastest_peer_counts(self):
        rows = {r["shape"]: r for r in gpu_join.joined(OURS, PEERS) if r["group"] == "softmax"}
        self.assertEqual((rows["49152x32"]["torch_us"], rows["49152x32"]["compiled_us"], rows["49152x32"]["ratio"]), (15.0, 20.0, 1.5))
        self.assertEqual((rows["49152x1024"]["ratio"], rows["49152x1024"]["compiled_us"]), (2.0, None))
        self.assertIsNone(rows["49152x1024 misaligned"]["ratio"])

    def test_a_time_that_was_taken_in_turns_with_the_peers_counts(self):
        again = report("bench-peers", [line("ours", "softmax", "49152x32", 12.0), line("torch", "softmax", "49152x32", 18.0)])
        row = next(r for r in gpu_join.joined(OURS, again) if r["shape"] == "49152x32")
        self.assertEqual((row["us"], row["torch_us"], row["ratio"]), (12.0, 18.0, 1.5))
        self.assertFalse([k for k in row if k.startswith("ours")])

    def test_tables_have_a_line_for_each_row_also_for_failures(self):
        rows = gpu_join.joined(OURS, PEERS)
        launch = dict(group="launch", op="add", dtype="f32", shape="4")
        launches = [dict(launch, peer="ours", us=2.5, of_torch=0.456, of_inference=0.5, all_of_torch=[0.5, 0.4, 0.456], all_of_inference=[0.5, 0.5, 0.55]),
                    dict(launch, peer="torch", us=6.0), dict(launch, peer="inference", us=5.0)]
        text = gpu_join.page(rows, gpu_join.first_of(OURS), [], launches, TWO, "A GPU", "2030-01-02")
        self.assertIn("| add | 4 | 2.50 | 6.00 | 0.46 | 0.40 to 0.50 | 5.00 | 0.50 | 0.50 to 0.55 |", text)
        self.assertIn("| softmax | f32 | 49152x32 | 10.0 | 1.00 | 15.0 | 20.0 | 1.50 | 6.3 | 7.1 |", text)
        self.assertIn("| matmul | f32 | 1x16x16x16 | 4.0 | 123.4 | – | – | – |", text)
        self.assertIn("failed: OutOfMemory: a/b |", text)
        self.assertIn("| launch | 1.25 |", text)
        # Of three rows two have a peer, with ratios 1.5 and 2.
        self.assertIn("| softmax | 3 | 1.73 | 0 | 0.50 |", text)
        self.assertIn("| cuda:0 to cuda:1, 256 MiB | 1000.0 | 268.4 | 0.97 |", text)
        self.assertIn("230.5 ms, of the bare program 200.0 ms", text)
        # With the times of OneFlow and QuACK.
        columns = {l.count("|") for l in text.splitlines() if l.startswith("| softmax | f32")}
        self.assertEqual(columns, {11})
        self.assertIn("recorded time of QuACK: geometric mean", text)
        # A strategy without room for the width is left out.
        self.assertIn("| f32 | 49152x1024 | 0.80 | – | – | – | – | 0.80 |", text)

    def test_charts_are_xml_with_a_line_for_each_peer(self):
        drawn = dict(gpu_join.charts(gpu_join.joined(OURS, PEERS)))
        self.assertEqual(list(drawn), ["gpu-softmax-f32.svg", "gpu-strategies-f32.svg"])
        svg = drawn["gpu-softmax-f32.svg"]
        lines = xml.fromstring(svg).findall("{http://www.w3.org/2000/svg}polyline")
        self.assertEqual([len(l.get("points").split()) for l in lines], [2, 2, 1, 2, 2], "misaligned rows are not drawn")

    def test_the_page_is_replaced_between_its_marks_and_again(self):
        with tempfile.TemporaryDirectory() as folder:
            out, docs = Path(folder, "out"), Path(folder, "docs")
            out.mkdir(), docs.mkdir(), Path(folder, "benches").mkdir()
            (docs / "performance.md").write_text("# Performance\n\nBefore.\n")
            for stage, content in [("bench-ours", OURS), ("bench-peers", PEERS)]:
                (out / f"{stage}.json").write_text(json.dumps(content))
            command = [sys.executable, str(HERE / "gpu_join.py"), str(out), str(docs), "--date", "2030-01-02"]
            subprocess.run(command, check=True)
            once = (docs / "performance.md").read_text()
            subprocess.run(command, check=True)
            self.assertEqual(once, (docs / "performance.md").read_text())
            self.assertTrue(once.startswith("# Performance\n\nBefore.\n") and once.count(gpu_join.BEGIN) == 1)
            self.assertTrue((docs / "charts/gpu-softmax-f32.svg").is_file())
            record = json.loads(Path(folder, "benches/record/gpu-2030-01-02.json").read_text())
            self.assertEqual((len(record["rows"]), record["two"]), (7, []))
            self.assertNotIn("between two GPUs", once)
            (out / "two.json").write_text(json.dumps(TWO))
            subprocess.run(command, check=True)
            self.assertIn("Copies between two GPUs", (docs / "performance.md").read_text())
            record = json.loads(Path(folder, "benches/record/gpu-2030-01-02.json").read_text())
            self.assertEqual([r["group"] for r in record["two"]], ["peer_copy", "peer_event"])


class Launches(unittest.TestCase):
    ROWS = [dict(group="launch", op=op, dtype="f32", shape="4", inputs=[], output=dict(name="dst"), statement="dst.append(1)") for op in ("one", "two")]

    def launches(self, turns, warm_seconds, clock):
        """Lines, the provider's bursts with how many launches of the others there had been, and whether each was in inference mode."""
        asked, theirs, modes = [], [], []

        class Launched(list):
            def append(self, one):
                super().append(bool(modes))

        theirs = Launched()

        def provider(i):
            asked.append((i, len(theirs)))
            return 1e9 if len(asked) % 3 == 0 else 1.0 + i

        @contextmanager
        def inference_mode():
            modes.append(1)
            yield
            modes.pop()

        bench = gpu_torch.Bench(SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: None), inference_mode=inference_mode))
        bench.tensor = lambda t, shift: theirs
        with patch.multiple(gpu_torch, TURNS=turns, WARM_SECONDS=warm_seconds), patch.object(gpu_torch.time, "monotonic", clock):
            return list(bench.launches(self.ROWS, provider)), asked, theirs

    def test_all_are_timed_in_turns_and_of_the_turns_the_middle_counts(self):
        lines, asked, theirs = self.launches(3, -1.0, lambda: 0.0)
        self.assertEqual([(l["op"], l["peer"], len(l["all_us"])) for l in lines],
                         [(op, peer, 3) for op in ("one", "two") for peer in ("ours", "torch", "inference")])
        self.assertEqual([l["us"] for l in lines if l["peer"] == "ours"], [1.0, 2.0])
        # The one turn of a thousand seconds is nobody's median.
        self.assertTrue(all(0 < l[of] < 1e6 for l in lines[::3] for of in ("of_torch", "of_inference")), lines)
        # Two bursts of each mode for each of ours, and who begins changes.
        burst = gpu_torch.BURST
        self.assertEqual([at // burst for _, at in asked], [4, 8, 10, 14, 16, 20])
        self.assertEqual((len(theirs), sum(theirs)), (24 * burst, 12 * burst))

    def test_turns_count_when_processors_are_awake(self):
        lines, asked, _ = self.launches(3, 1.5, iter(range(100)).__next__)
        self.assertEqual(([len(l["all_us"]) for l in lines], len(asked)), ([3] * 6, 2 * 4))

    def test_the_other_program_answers_or_ends(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "program")
            program.write_text("import sys\nassert len(open(sys.argv[2]).readlines()) == 2\nfor l in sys.stdin:\n"
                               "  if l == '9\\n': sys.exit(3)\n  print('{\"us\": 1.%s}' % l.strip(), flush=True)\n")
            provider = gpu_torch.Provider([sys.executable, str(program)], self.ROWS)
            self.assertEqual([provider(0), provider(5)], [1.0, 1.5])
            with self.assertRaisesRegex(SystemExit, "ended with 3 at row 9"):
                provider(9)
            with self.assertRaisesRegex(SystemExit, "ended with 3 at row 1"):
                provider(1)
            provider.process.stdout.close()
            with suppress(BrokenPipeError):
                provider.process.stdin.close()


class Rows(unittest.TestCase):
    def test_names_are_unique_and_bytes_are_plausible(self):
        rows = gpu_rows.rows()
        names = [(r["group"], gpu_rows.name(r)) for r in rows]
        self.assertEqual(len(set(names)), len(names))
        self.assertGreater(len(rows), 300)
        for r in rows:
            # A gather or a window reads a part; nothing moves more than its operands and indices.
            whole = sum(map(gpu_rows.size_of, r["inputs"])) + gpu_rows.size_of(r["output"])
            self.assertGreater(r["bytes"], 0, gpu_rows.name(r))
            self.assertTrue(r["bytes"] <= whole or r["op"] == "gather", gpu_rows.name(r))

    def test_strategies_are_told_the_width_that_they_are_asked_for(self):
        rows = list(gpu_rows.forced("warp"))
        self.assertEqual(len(rows), 2 * len(gpu_rows.WIDTHS))
        for r in rows:
            self.assertEqual((r["primitive"], r["op"], r["limits"], r["shift"]), ("softmax", "warp", dict(cols=r["sizes"]["cols"]), 0))

    def test_launches_are_statements_on_their_operands(self):
        rows = list(gpu_rows.launches())
        self.assertGreater(len(rows), 8)
        for r in rows:
            operands = {t["name"] for t in (*r["inputs"], r["output"])}
            text = f"{r.get('setup', 'pass')}\n{r['statement']}"
            code = compile(text, gpu_rows.name(r), "exec")
            made = {text.split(" = ")[0]} if "setup" in r else set()
            self.assertLessEqual(operands, set(compile(text.replace("turned", "src"), "", "exec").co_names))
            attributes = {word for word in code.co_names if f".{word}" in text}
            self.assertLessEqual(set(code.co_names) - attributes, operands | made | {"torch", "out"})
            self.assertLess(r["bytes"], 1 << 16)

    def test_the_program_of_the_provider_can_read_every_row(self):
        needed = {"group", "op", "dtype", "shape", "primitive", "selectors", "roles", "attrs", "limits", "sizes", "dims", "scalars", "inputs", "output", "shift", "bytes", "flops"}
        output = subprocess.run([sys.executable, str(HERE / "gpu_rows.py")], check=True, capture_output=True, text=True).stdout
        for text in output.splitlines():
            self.assertEqual(set(json.loads(text)), needed)


if __name__ == "__main__":
    unittest.main()

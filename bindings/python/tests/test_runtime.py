"""Runtimes and sessions: what there is, why not, errors, and what is closed."""
import os
import tempfile
import unittest
from pathlib import Path

from support import Case, config, providers

import ep


class Runtimes(Case):
    def test_a_runtime_lists_its_providers_and_devices(self):
        rows = {row["provider"]: row for row in self.runtime.list()}
        self.assertEqual(sorted(rows), ["cpu", "null", "sim"])
        self.assertEqual({row["status"] for row in rows.values()}, {"loaded"})
        self.assertEqual([d["id"] for d in rows["sim"]["devices"]], ["sim:0", "sim:1"])
        self.assertEqual(rows["sim"]["devices"][1]["features"], {"number": 1, "simulated": True})
        self.assertEqual(repr(self.runtime), "<ep.Runtime of cpu:0, null:0, sim:0, sim:1>")

    def test_a_query_is_filtered(self):
        rows = self.runtime.query(op="softmax", dtype="f16", device="sim")
        self.assertEqual({row["device"] for row in rows}, {"sim:0", "sim:1"})
        self.assertEqual({row["op"] for row in rows}, {"softmax"})
        self.assertTrue(all("f16" in row["dtypes"].values() for row in rows))
        self.assertGreater(len(self.runtime.query()), len(rows))
        self.assertEqual(self.runtime.query(device="null"), [])

    def test_misspelt_names_of_a_query_are_errors(self):
        with self.refused("NotFound", "sofmax", "softmax"):
            self.runtime.query(op="sofmax")
        with self.refused("NotFound", "f33", "bf16"):
            self.runtime.query(dtype="f33")
        with self.refused("NotFound", "npu"):
            self.runtime.query(device="npu")

    def test_an_explanation_tells_the_factory_and_the_nearest_request(self):
        rows = self.runtime.explain("softmax", {"src": "f32", "dst": "f32"}, limits={"cols": 10})
        chosen = {row["device"]: row["chosen"] for row in rows}
        self.assertEqual(sorted(chosen), ["cpu:0", "null:0", "sim:0", "sim:1"])
        self.assertIsNone(chosen["null:0"])
        self.assertTrue(chosen["cpu:0"].startswith("cpu/"))
        [row] = self.runtime.explain("softmax", {"src": "i32", "dst": "f32"}, device="cpu")
        self.assertIsNone(row["chosen"])
        self.assertEqual({c["kind"] for c in row["candidates"]}, {"not_covered"})
        [again] = self.runtime.explain(**row["nearest_request"], device="cpu")
        self.assertTrue(again["chosen"])

    def test_wrong_explanations_are_errors(self):
        with self.refused("InvalidArgument", "needs the dtype of", "dst"):
            self.runtime.explain("softmax", {"src": "f32"})
        with self.refused("NotFound", "rows_"):
            self.runtime.explain("softmax", {"src": "f32", "dst": "f32"}, limits={"rows_": 1})
        with self.refused("InvalidArgument", "-1"):
            self.runtime.explain("softmax", {"src": "f32", "dst": "f32"}, limits={"rows": -1})
        with self.assertRaises(ValueError):
            self.runtime.explain("softmax", {"src": "f32", "dst": "f32"}, attrs={"x": float("nan")})
        with self.assertRaises(TypeError):
            self.runtime.explain("softmax", {"src": b"f32"})

    def test_a_config_is_a_file_or_a_text(self):
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(providers() / "libep_cpu.so", Path(folder, "cpu.so"))
            text = '[[provider]]\nname = "mine"\npath = "cpu.so"\n'
            file = Path(folder, "ep.toml")
            file.write_text(text)
            for runtime in (ep.Runtime(file), ep.Runtime(str(file)), ep.Runtime.from_text(text, folder)):
                self.assertEqual([(row["provider"], row["status"]) for row in runtime.list()], [("mine", "loaded")])
            [row] = ep.Runtime.from_text(text, Path(folder, "none")).list()
            self.assertEqual(row["status"], "failed")
            with self.refused("InvalidArgument", "wrong.toml", "pth"):
                Path(folder, "wrong.toml").write_text('[[provider]]\npth = "x"\n')
                ep.Runtime(Path(folder, "wrong.toml"))
            with self.refused("NotFound", "none.toml"):
                ep.Runtime(f"{folder}/none.toml")

    def test_ep_config_names_the_usual_file(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "ep.toml")
            file.write_text(config(cpu=""))
            before = os.environ.get("EP_CONFIG")
            os.environ["EP_CONFIG"] = str(file)
            try:
                self.assertEqual([row["provider"] for row in ep.Runtime().list()], ["cpu"])
            finally:
                del os.environ["EP_CONFIG"]
                if before is not None:
                    os.environ["EP_CONFIG"] = before

    def test_an_error_has_a_code_and_a_message(self):
        with self.assertRaises(ep.Error) as caught:
            self.runtime.session("npu:0")
        error = caught.exception
        self.assertEqual(error.code, "NotFound")
        self.assertIn("npu:0", error.message)
        self.assertEqual(str(error), f"NotFound: {error.message}")


class Sessions(Case):
    def test_a_session_has_a_device(self):
        self.assertEqual(self.session.device, "cpu:0")
        self.assertEqual(self.runtime.session("sim:1").device, "sim:1")
        self.assertEqual(repr(self.session), "<ep.Session on cpu:0>")

    def test_what_a_device_lacks_runs_on_another(self):
        alone = self.runtime.session("null")
        with self.refused("Unsupported", "nothing matches"):
            alone.softmax(alone.tensor([1.0, 1.0]))
        for fallback in ("sim:1", ["sim:1", "cpu"], ("cpu:0",)):
            session = self.runtime.session("null", fallback=fallback)
            x = session.tensor([[1.0, 1.0]])
            for _ in range(2):
                y = session.softmax(x)
                self.assertEqual((y.device, y.tolist()), ("null:0", [[0.5, 0.5]]))
            [row] = session.fallbacks()
            to = "cpu:0" if fallback == ("cpu:0",) else "sim:1"
            self.assertEqual((row["operator"], row["from"], row["to"]), ("softmax", "null:0", to))
            self.assertEqual((row["bytes"], row["times"]), (2 * 2 * 8, 2))
            self.assertIn("no provider on this device registers the op", row["reason"])
        with self.refused("NotFound", "npu"):
            self.runtime.session("cpu", fallback=["npu"])

    def test_a_stream_of_another_session_is_adopted(self):
        one = self.runtime.session("sim:0")
        kind, native = one.native
        two = self.runtime.adopt("sim:0", native, kind=kind)
        self.assertEqual(two.native, (kind, native))
        self.assertEqual((two.tensor([1, 2]) + 1).tolist(), [2, 3])
        with self.refused("Unsupported", "CUstream"):
            self.runtime.adopt("sim:0", native)
        with self.refused("Unsupported"):
            self.runtime.adopt("cpu", 1)
        with self.assertRaises(TypeError):
            self.runtime.adopt("sim:0", "1")

    def test_errors_of_queued_work_are_raised_by_what_waits(self):
        session = ep.Runtime.from_text(config(sim='op_error = "2"')).session("sim")
        x = session.tensor([1.0, 2.0])
        one, two = x + 1, x + 2
        with self.refused("Internal"):
            two.wait()
        self.assertEqual(one.tolist(), [2.0, 3.0])
        session = ep.Runtime.from_text(config(sim='op_error = "1"')).session("sim")
        session.tensor([1.0, 2.0]) + 1
        with self.refused("Internal"):
            session.sync()
        session.sync()

    def test_the_end_of_with_waits_and_raises(self):
        runtime = ep.Runtime.from_text(config(sim='op_error = "1"'))
        with self.assertRaises(ep.Error) as caught:
            with runtime.session("sim") as session:
                session.tensor([1.0]) + 1
        self.assertEqual(caught.exception.code, "Internal")
        with self.assertRaisesRegex(ValueError, "closed"):
            session.sync()
        # An error of the body is not replaced.
        with self.assertRaises(KeyError):
            with ep.Runtime.from_text(config(sim='op_error = "1.."')).session("sim") as session:
                session.tensor([1.0]) + 1
                raise KeyError()


class Closed(Case):
    def test_a_closed_runtime_is_refused_and_its_sessions_go_on(self):
        with ep.Runtime.from_text(config(cpu="")) as runtime:
            session = runtime.session("cpu")
        for use in (runtime.list, runtime.query, lambda: runtime.session("cpu"), lambda: runtime.explain("softmax", {})):
            with self.assertRaisesRegex(ValueError, "the runtime is closed"):
                use()
        self.assertEqual(repr(runtime), "<ep.Runtime, closed>")
        self.assertEqual((session.tensor([1.0]) + 1).tolist(), [2.0])
        runtime.close()

    def test_a_tensor_of_a_closed_session_tells_so(self):
        session = self.runtime.session("cpu")
        x = session.tensor([1.0, 2.0])
        session.close()
        session.close()
        uses = [x.tolist, x.tobytes, x.item, lambda: x + 1, lambda: x[0], lambda: -x, x.t,
                lambda: session.zeros(dtype="f32", shape=[1]),
                lambda: session.tensor([1]), session.sync, session.fallbacks, lambda: session.native]
        for i, use in enumerate(uses):
            with self.subTest(i), self.assertRaisesRegex(ValueError, "the session on cpu:0 is closed|not one"):
                use()
        x.wait()
        self.assertEqual((x.shape, x.strides, x.dtype, x.device), ((2,), (1,), "f32", "cpu:0"))
        self.assertIn("not readable, the session on cpu:0 is closed", repr(x))
        # Another session of the device goes on with it.
        self.assertEqual(self.session.run("binary_scalar", x, op="add", scalar=1).tolist(), [2.0, 3.0])


if __name__ == "__main__":
    unittest.main()

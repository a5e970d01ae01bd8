"""Input that nobody should give: each is an error, and the session goes on."""
import unittest

from support import Case, config

import ep

HUGE = [[2**62, 2**62], [2**63 - 1], [2**40, 2**40], [10**15], [-1], [-2**63], [1] * 9, [2**31] * 8]


class Hostile(Case):
    def tearDown(self):
        self.assertEqual((self.session.tensor([1.0]) + 1).tolist(), [2.0])

    def test_shapes(self):
        s = self.session
        for shape in HUGE:
            for make in (lambda: s.zeros(dtype="f32", shape=shape), lambda: s.empty(dtype="f32", shape=shape),
                         lambda: s.full(dtype="i8", shape=shape, value=1)):
                with self.subTest(shape), self.assertRaises(ep.Error) as caught:
                    make().tolist()
                self.assertIn(caught.exception.code, ("InvalidArgument", "OutOfMemory"))
        for shape in ([2**64], [2**200], [0.5], "ab", [None]):
            with self.refused("InvalidArgument"):
                s.zeros(dtype="f32", shape=shape)
        with self.assertRaises(ValueError):
            s.tensor([1], shape=[2**64, 0, 1])
        with self.assertRaisesRegex(ValueError, "64 bits"):
            s.tensor([], shape=[2**64, 0])
        with self.refused("InvalidArgument"):
            s.tensor([], shape=[-1, 0])
        # Nothing is in it, whatever the other sizes are.
        with self.refused("InvalidArgument"):
            s.tensor([], shape=[0, 2**62, 2**62])

    def test_views_that_reach_outside(self):
        s, x = self.session, self.session.tensor([1.0, 2.0, 3.0])
        for name, attributes in [
                ("as_strided", dict(shape=[4], strides=[1])), ("as_strided", dict(shape=[2], strides=[2**62])),
                ("as_strided", dict(shape=[2], strides=[-1])),
                ("as_strided", dict(shape=[1], strides=[1], offset=3)),
                ("as_strided", dict(shape=[1], strides=[1], offset=-1)), ("as_strided", dict(shape=[1, 1], strides=[1])),
                ("as_strided", dict(shape=[2**62, 2**62], strides=[0, 0])), ("expand", dict(shape=[2**62, 2**62, 3])),
                ("expand", dict(shape=[4])),
                ("narrow", dict(dim=0, start=2, len=2)), ("narrow", dict(dim=0, start=-5, len=1)),
                ("narrow", dict(dim=0, start=0, len=-1)),
                ("narrow", dict(dim=0, start=2**63 - 1, len=2**63 - 1)), ("select", dict(dim=0, index=3)),
                ("select", dict(dim=1, index=0)),
                ("slice", dict(dim=0, step=0)), ("slice", dict(dim=0, step=-1)), ("slice", dict(dim=5)),
                ("permute", dict(dims=[0, 0])),
                ("permute", dict(dims=[2**63 - 1])), ("transpose", dict(a=0, b=-2**63)),
                ("unfold", dict(dim=0, size=4, step=1)), ("unfold", dict(dim=0, size=1, step=0)),
                ("view", dict(shape=[-1, -1])), ("view", dict(shape=[2**62, -1])), ("reshape", dict(shape=[2])),
                ("flip", dict(dims=[0, 0])),
                ("flatten", dict(start=3)), ("unsqueeze", dict(dim=2**63 - 1)), ("squeeze", dict(dim=-2**63)),
                ("constant_pad", dict(before=[2**63 - 1], after=[2**63 - 1])),
                ("constant_pad", dict(before=[-4], after=[0])), ("one_hot", dict(depth=2**63 - 1)),
                ("softmax", dict(dim=2**63 - 1)), ("reduce", dict(op="sum", dims=[0, 0])),
                ("layer_norm", dict(dims=2**64 - 1)), ("layer_norm", dict(dims=0)), ("arg_reduce", dict(op="argmax", dim=1))]:
            with self.subTest(name=name, **attributes), self.assertRaises(ep.Error) as caught:
                s.run(name, x, **attributes).tolist()
            self.assertIn(caught.exception.code, ("InvalidArgument", "OutOfMemory", "Unsupported"), str(caught.exception))
        self.assertEqual(s.slice(x, start=-2**63, end=2**63 - 1, step=2**63 - 1).tolist(), [1.0])
        with self.refused("InvalidArgument"):
            s.layer_norm(x, dims=-1)

    def test_numbers_from_nothing(self):
        s = self.session
        inf, nan = float("inf"), float("nan")
        for start, end, step in [(0, 1, 0), (0, 1, -1), (0, inf, 1), (0, nan, 1), (nan, 1, 1), (0, 2**62, 1), (0, 1, 1e-300)]:
            with self.subTest(f"{start} {end} {step}"), self.assertRaises(ep.Error) as caught:
                s.arange(dtype="f64", start=start, end=end, step=step).tolist()
            self.assertIn(caught.exception.code, ("InvalidArgument", "OutOfMemory"))
        for value in ("x", [1], [1, 2, 3], {}, [[1, 2], 3]):
            with self.refused("InvalidArgument", "is no number"):
                s.full(dtype="f32", shape=[1], value=value)

    def test_dtypes(self):
        for dtype in ("f33", "", "F32", "f32 ", "ф32", "i4"):
            with self.subTest(dtype), self.assertRaises(ep.Error):
                self.session.zeros(dtype=dtype, shape=[2]).tolist()
            with self.subTest(dtype), self.assertRaises(ValueError):
                self.session.tensor([1], dtype=dtype)
        eighths = self.session.zeros(dtype="f8e4m3", shape=[2])
        with self.assertRaisesRegex(TypeError, "no numbers of f8e4m3"):
            eighths.tolist()
        self.assertIn("not readable", repr(eighths))
        for dtype in (1, ["f32"], True):
            with self.refused("InvalidArgument", "expected a string"):
                self.session.zeros(dtype=dtype, shape=[2])

    def test_text(self):
        s = self.session
        with self.refused("InvalidArgument", "unknown variant `größe 数`"):
            s.run("größe 数")
        with self.refused("InvalidArgument", "unknown variant ``"):
            s.run("")
        with self.refused("InvalidArgument", "unknown field `größe\U0001f600`"):
            s.softmax(s.tensor([1.0]), **{"größe\U0001f600": 1})
        for wrong in ("a\0b", "\0"):
            for use in (lambda: s.run(wrong), lambda: self.runtime.session(wrong),
                        lambda: self.runtime.query(op=wrong), lambda: ep.Runtime(wrong),
                        lambda: ep.Runtime.from_text(wrong, "/"),
                        lambda: self.runtime.session("cpu", fallback=[wrong]), lambda: self.runtime.query(device=wrong)):
                with self.assertRaisesRegex(ValueError, "zero character"):
                    use()
        with self.refused("InvalidArgument"):
            s.softmax(s.tensor([1.0]), **{"dim\0": 1})
        with self.refused("NotFound"):
            self.runtime.query(dtype="f\u200b32")
        with self.refused("InvalidArgument", "f32"):
            s.zeros(dtype="f32\0", shape=[1])
        for use in (lambda: s.run("\ud800"), lambda: self.runtime.session("\udcff")):
            with self.assertRaisesRegex(ValueError, "UTF-8"):
                use()
        with self.refused("InvalidArgument"):
            s.unary(s.tensor([1.0]), op="\ud800")
        for wrong in (5, b"softmax", None, ["softmax"]):
            with self.assertRaisesRegex(TypeError, "give a str"):
                s.run(wrong)
        for wrong in (5, b"cpu"):
            with self.assertRaises(TypeError):
                self.runtime.session(wrong)
        with self.refused("NotFound", "x" * 100):
            self.runtime.session("x" * 10**6)
        with self.refused("InvalidArgument"):
            ep.Runtime.from_text("[[provider]\n", "/")

    def test_attributes_that_are_deep_or_large(self):
        s, endless = self.session, []
        endless.append(endless)
        for deep in (endless, [[[[[[[[[[1]]]]]]]]]], {"a": endless}):
            with self.assertRaisesRegex(ValueError, "more than 8 levels"):
                s.permute(s.tensor([1.0]), dims=deep)
        with self.assertRaises(ep.Error):
            s.permute(s.tensor([1.0]), dims=range(100_000))
        with self.refused("InvalidArgument"):
            s.softmax(s.tensor([1.0]), dim=10**400)

    def test_indices_outside_of_an_axis(self):
        s, x = self.session, self.session.tensor([1.0, 2.0])
        for index in (2, -3, 2**62, -2**63):
            with self.subTest(index), self.assertRaises(ep.Error) as caught:
                s.gather(x, s.tensor([index])).tolist()
            self.assertEqual(caught.exception.code, "InvalidArgument")
            self.assertEqual(s.gather(x, s.tensor([index]), mode="zero").tolist(), [0.0])

    def test_many_inputs(self):
        x = self.session.tensor([1])
        self.assertEqual(self.session.add_n(*[x] * 256).tolist(), [256])
        with self.refused("InvalidArgument", "257"):
            self.session.add_n(*[x] * 257)
        for name in ("add_n", "concat"):
            with self.refused("InvalidArgument"):
                self.session.run(name)

    def test_a_lost_device_is_told_by_everything(self):
        session = ep.Runtime.from_text(config(sim='device_lost = "2"')).session("sim")
        x = session.tensor([1.0])
        with self.assertRaises(ep.Error):
            (x + 1).tolist()
        with self.refused("DeviceLost"):
            session.tensor([1.0])
        self.assertIn("not readable", repr(x))


if __name__ == "__main__":
    unittest.main()

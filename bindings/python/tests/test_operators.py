"""Every operator once, against what Python says that it computes."""
import cmath
import math
import random
import unittest

from support import Case, numpy, with_numpy

import ep

NAN, INF = float("nan"), float("inf")
X = [[1.0, -2.0, 3.0], [0.5, 5.0, -6.0]]


def softmax(row):
    powers = [math.exp(x - max(row)) for x in row]
    return [p / sum(powers) for p in powers]


class Computing(Case):
    """Names are noted when they run, and the last test asks for all."""

    ran = set()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        run = cls.session.run

        def noted(name, /, *inputs, **attributes):
            cls.ran.add(name)
            return run(name, *inputs, **attributes)

        cls.session.run = noted

    def t(self, *arguments, **more):
        return self.session.tensor(*arguments, **more)

    def test_add_n(self):
        self.assertEqual(self.session.add_n(self.t([1, 2]), self.t([3, 4]), self.t([5, 6])).tolist(), [9, 12])

    def test_arg_reduce(self):
        s, x = self.session, self.t(X)
        self.assertEqual(s.arg_reduce(x, op="argmax", dim=1).tolist(), [2, 1])
        least = s.arg_reduce(x, op="argmin", dim=0, keep_dims=True, dtype="i32")
        self.assertEqual((least.tolist(), least.dtype), ([[1, 0, 1]], "i32"))

    def test_batch_gather(self):
        found = self.session.batch_gather(self.t(X), self.t([[2, 0], [-1, 1]]), axis=1, batch_dims=1)
        self.assertEqual(found.tolist(), [[3.0, 1.0], [-6.0, 5.0]])

    def test_binary(self):
        s, a, b = self.session, self.t([[1, 2], [3, 4]]), self.t([3, 2])
        for op, expected in [("add", [[4, 4], [6, 6]]), ("sub", [[-2, 0], [0, 2]]), ("mul", [[3, 4], [9, 8]]),
                             ("max", [[3, 2], [3, 4]]), ("floor_div", [[0, 1], [1, 2]]), ("bitwise_xor", [[2, 0], [0, 6]])]:
            self.assertEqual(s.binary(a, b, op=op).tolist(), expected, op)
        equal = s.binary(a, b, op="equal")
        self.assertEqual((equal.tolist(), equal.dtype), ([[False, True], [True, False]], "bool"))
        close = s.binary(self.t([1.0, 1.0]), self.t([1.05, 1.2]), op="is_close", attrs=[0.1, 0.0])
        self.assertEqual(close.tolist(), [True, False])

    def test_binary_scalar(self):
        s, x = self.session, self.t([2.0, 4.0])
        self.assertEqual(s.binary_scalar(x, op="sub", scalar=1).tolist(), [1.0, 3.0])
        self.assertEqual(s.binary_scalar(x, op="sub", scalar=1, first=True).tolist(), [-1.0, -3.0])
        self.assertEqual(s.binary_scalar(x, op="add", scalar=INF).tolist(), [INF, INF])
        self.assertEqual(s.binary_scalar(x, op="mul", scalar=-INF).tolist(), [-INF, -INF])
        self.assertClose(s.binary_scalar(x, op="add", scalar=NAN), [NAN, NAN])
        z = self.t([1 + 2j])
        self.assertEqual(s.binary_scalar(z, op="mul", scalar=2 - 1j).tolist(), [(1 + 2j) * (2 - 1j)])
        self.assertEqual(s.binary_scalar(z, op="add", scalar=complex(INF, 0)).tolist(), [complex(INF, 2)])
        self.assertEqual(s.binary_scalar(self.t([2**63 - 2]), op="add", scalar=1).tolist(), [2**63 - 1])
        big = s.tensor([0], dtype="u64")
        self.assertEqual(s.binary_scalar(big, op="add", scalar=2**64 - 1).tolist(), [2**64 - 1])

    def test_cast(self):
        s = self.session
        self.assertEqual(s.cast(self.t([1.7, -1.7]), dtype="i32").tolist(), [1, -1])
        self.assertEqual(s.cast(self.t([0.0, 2.0]), dtype="bool").tolist(), [False, True])
        self.assertEqual(s.cast(self.t([1.0, 1.00390625]), dtype="bf16").tolist(), [1.0, 1.0])
        self.assertEqual(s.cast(self.t([1.5]), dtype="complex128").tolist(), [1.5 + 0j])

    def test_concat(self):
        s, x = self.session, self.t([[1], [2]])
        self.assertEqual(s.concat(x, x).tolist(), [[1], [2], [1], [2]])
        self.assertEqual(s.concat(x, x, x, dim=-1).tolist(), [[1] * 3, [2] * 3])

    def test_constant_pad(self):
        s, x = self.session, self.t([[1, 2]])
        self.assertEqual(s.constant_pad(x, before=[1, 0], after=[0, 1]).tolist(), [[0] * 3, [1, 2, 0]])
        self.assertEqual(s.constant_pad(x, before=[0, -1], after=[0, 2], value=7).tolist(), [[2, 7, 7]])
        self.assertClose(s.constant_pad(self.t([1.0]), before=[1], after=[1], value=-INF), [-INF, 1.0, -INF])

    def test_gather(self):
        s, x = self.session, self.t(X)
        self.assertEqual(s.gather(x, self.t([1, -2])).tolist(), [X[1], X[0]])
        self.assertEqual(s.gather(x, self.t([5, 0]), axis=1, mode="zero").tolist(), [[0.0, 1.0], [0.0, 0.5]])
        window = s.gather(self.t([10, 20]), self.t([4, 5, 6]), mode="zero", window={"offset": 5, "size": 10})
        self.assertEqual(window.tolist(), [0, 10, 20])

    def test_layer_norm(self):
        s, gamma, beta = self.session, [1.0, 2.0, 3.0], [0.5, 0.0, -0.5]
        y, mean, rstd = s.layer_norm(self.t(X), self.t(gamma), self.t(beta), scale=True, shift=True, stats=True, epsilon=1e-3)
        means = [sum(row) / 3 for row in X]
        rstds = [1 / math.sqrt(sum((x - m) ** 2 for x in row) / 3 + 1e-3) for row, m in zip(X, means)]
        self.assertClose(mean, means)
        self.assertClose(rstd, rstds)
        self.assertClose(y, [[(x - m) * r * g + b for x, g, b in zip(row, gamma, beta)] for row, m, r in zip(X, means, rstds)])
        self.assertIsInstance(s.layer_norm(self.t(X), dims=2), ep.Tensor)

    def test_softmaxes(self):
        s, y = self.session, [softmax(row) for row in X]
        self.assertClose(s.softmax(self.t(X), dim=-1), y)
        self.assertClose(s.softmax(self.t(X), dim=1, dtype="f64"), y)
        self.assertClose(s.softmax(self.t(X).t(), dim=0).t(), y)
        self.assertClose(s.log_softmax(self.t(X)), [[math.log(p) for p in row] for row in y])
        dy = [[1.0, 0.0, -1.0], [0.5, 0.25, 2.0]]
        dots = [sum(a * b for a, b in zip(*rows)) for rows in zip(y, dy)]
        self.assertClose(
            s.softmax_backward(self.t(y), self.t(dy)), [[a * (b - d) for a, b in zip(*rows)] for *rows, d in zip(y, dy, dots)])
        logs = self.t([[math.log(p) for p in row] for row in y])
        self.assertClose(
            s.log_softmax_backward(logs, self.t(dy)), [[b - a * sum(rows[1]) for a, b in zip(*rows)] for rows in zip(y, dy)])

    def test_matmul(self):
        s, a, b = self.session, self.t(X), self.t([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        product = [[sum(x * y for x, y in zip(row, column)) for column in zip(*b.tolist())] for row in X]
        self.assertClose(s.matmul(a, b), product)
        self.assertClose(s.matmul(b.t(), a.t()).t(), product)
        self.assertClose(s.matmul(a, self.t([1.0, 1.0, 1.0])), [sum(row) for row in X])
        self.assertEqual(s.matmul(self.t([1, 2]), self.t([3, 4])).tolist(), 11)

    def test_one_hot(self):
        s = self.session
        self.assertEqual(s.one_hot(self.t([2, 0]), depth=3).tolist(), [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
        self.assertEqual(s.one_hot(self.t(1), depth=2, on=5, off=-1, dtype="i8").tolist(), [-1, 5])

    def test_reduce(self):
        s, x = self.session, self.t(X)
        self.assertClose(s.reduce(x, op="sum"), sum(map(sum, X)))
        self.assertClose(s.reduce(x, op="mean", dims=[1], keep_dims=True), [[sum(row) / 3] for row in X])
        self.assertClose(s.reduce(x, op="max", dims=[-2]), [max(c) for c in zip(*X)])
        self.assertEqual(s.reduce(self.t([2, 3, 4]), op="prod").tolist(), 24)
        self.assertEqual(s.reduce(self.t([True, False]), op="any").tolist(), True)

    def test_rms_norm(self):
        s, weight = self.session, [1.0, 0.0, -2.0]
        y, inverse = s.rms_norm(self.t(X), self.t(weight), scale=True, stats=True, epsilon=0.0)
        inverses = [1 / math.sqrt(sum(x * x for x in row) / 3) for row in X]
        self.assertClose(inverse, inverses)
        self.assertClose(y, [[x * w * i for x, w in zip(row, weight)] for row, i in zip(X, inverses)])

    def test_scatter_add(self):
        found = self.session.scatter_add(self.t([1, 1, 1]), self.t([2, 0, 2]), self.t([10, 20, 30]))
        self.assertEqual(found.tolist(), [21, 1, 41])

    def test_unary(self):
        s, x = self.session, [0.5, 1.5, 2.5]
        for op, function in [("exp", math.exp), ("sqrt", math.sqrt), ("tanh", math.tanh), ("negative", lambda v: -v),
                             ("log", math.log), ("square", lambda v: v * v), ("floor", math.floor), ("erf", math.erf)]:
            self.assertClose(s.unary(self.t(x), op=op), [function(v) for v in x])
        self.assertEqual(s.unary(self.t([-1.0, 0.5, 2.0]), op="hard_tanh", attrs=[-0.25, 1]).tolist(), [-0.25, 0.5, 1.0])
        self.assertEqual(s.unary(self.t([NAN, INF, 1.0]), op="is_nan").tolist(), [True, False, False])
        self.assertEqual(s.unary(self.t([True, False]), op="logical_not").tolist(), [False, True])
        self.assertEqual(s.unary(self.t([1 + 2j]), op="conj").tolist(), [1 - 2j])
        self.assertClose(abs(s.unary(self.t([1 + 2j]), op="exp").tolist()[0] - cmath.exp(1 + 2j)), 0)
        self.assertEqual(s.unary(self.t([2.5]), op="cast", dtype="i32").tolist(), [2])

    def test_parameters_may_be_infinite(self):
        s, x = self.session, self.t([-5.0, 0.5, 9.0])
        self.assertEqual(s.unary(x, op="hard_tanh", attrs=[-INF, 6.0]).tolist(), [-5.0, 0.5, 6.0])
        self.assertEqual(s.unary(x, op="hard_tanh", attrs=(0.0, INF)).tolist(), [0.0, 0.5, 9.0])

    def test_where(self):
        s = self.session
        found = s.where(self.t([[True], [False]]), self.t([1, 2]), self.t(9))
        self.assertEqual(found.tolist(), [[1, 2], [9, 9]])

    def test_views_share_memory(self):
        s = self.session
        base = [[float(10 * i + j) for j in range(4)] for i in range(3)]
        flat = [x for row in base for x in row]
        cases = [
            ("alias", {}, base),
            ("as_strided", dict(shape=[2, 2], strides=[4, 2], offset=1), [[1.0, 3.0], [11.0, 13.0]]),
            ("flip", dict(dims=[0, 1]), [row[::-1] for row in base[::-1]]),
            ("narrow", dict(dim=1, start=1, len=2), [row[1:3] for row in base]),
            ("permute", dict(dims=[1, 0]), [list(c) for c in zip(*base)]),
            ("select", dict(dim=0, index=-1), base[-1]),
            ("slice", dict(dim=1, start=-3, end=4, step=2), [row[-3:4:2] for row in base]),
            ("slice", {}, base),
            ("transpose", dict(a=0, b=-1), [list(c) for c in zip(*base)]),
            ("unfold", dict(dim=1, size=2, step=2), [[row[0:2], row[2:4]] for row in base]),
            ("unsqueeze", dict(dim=1), [[row] for row in base]),
            ("view", dict(shape=[2, -1]), [flat[:6], flat[6:]]),
            ("reshape", dict(shape=[12]), flat),
            ("flatten", {}, flat),
            ("contiguous", {}, base),
            ("to_dtype", dict(dtype="f32"), base),
            ("to_device", {}, base),
        ]
        for name, attributes, expected in cases:
            with self.subTest(name):
                x = self.t(base)
                view = s.run(name, x, **attributes)
                self.assertEqual(view.tolist(), expected)
                s.run_in_place("binary_scalar", view, op="mul", scalar=0)
                touched = sum(map(lambda v: v == 0.0, s.reshape(x, shape=[12]).tolist()))
                self.assertGreaterEqual(touched, view.size, "the view does not share memory")
                s.run_in_place("binary_scalar", x, op="add", scalar=7)
                self.assertEqual(s.reduce(view, op="min").item(), 7.0)
        x = self.t([[1.0], [2.0]])
        wide = s.expand(x, shape=[2, 3])
        self.assertEqual((wide.tolist(), wide.strides), ([[1.0] * 3, [2.0] * 3], (1, 0)))
        s.run_in_place("binary_scalar", x, op="add", scalar=1)
        self.assertEqual(wide.tolist(), [[2.0] * 3, [3.0] * 3])
        self.assertEqual(s.squeeze(x).shape, (2,))
        self.assertEqual(s.squeeze(x, dim=1).shape, (2,))

    def test_copies_do_not_share_memory(self):
        s, x = self.session, self.t(X)
        copies = [s.clone(x), s.contiguous(x.t()), s.reshape(x.t(), shape=[6]), s.flatten(x.t()), s.to_dtype(x, dtype="f64"),
                  s.cast(x, dtype="f32")]
        before = [c.tolist() for c in copies]
        s.run_in_place("binary_scalar", x, op="add", scalar=1)
        self.assertEqual([c.tolist() for c in copies], before)
        image = s.clone(s.zeros(dtype="f32", shape=[1, 2, 3, 4]), format="channels_last")
        self.assertEqual(image.strides, (24, 1, 8, 2))

    def test_copy_writes_into_its_first_input(self):
        s, x = self.session, self.session.zeros(dtype="i64", shape=[2, 3])
        self.assertIsNone(s.copy(x[:, 1:], self.t([7.0, 8.0])))
        self.assertEqual(x.tolist(), [[0, 7, 8]] * 2)

    def test_tensors_from_nothing(self):
        s = self.session
        self.assertEqual(s.arange(dtype="i64", end=3).tolist(), [0, 1, 2])
        self.assertEqual(s.arange(dtype="f32", start=1, end=0, step=-0.5).tolist(), [1.0, 0.5])
        self.assertEqual(s.full(dtype="u8", shape=[2], value=7).tolist(), [7, 7])
        self.assertEqual(s.full(dtype="f16", shape=[], value=-INF).tolist(), -INF)
        self.assertEqual(s.full(dtype="complex64", shape=[1], value=1 - 2j).tolist(), [1 - 2j])
        self.assertEqual(s.full(dtype="bool", shape=[1], value=True).tolist(), [True])
        self.assertEqual(s.zeros(dtype="bf16", shape=[1, 2]).tolist(), [[0.0, 0.0]])
        x = s.empty(dtype="f32", shape=[2])
        with self.refused("InvalidArgument", "written"):
            x.tolist()
        s.copy(x, self.t([1.0, 2.0]))
        self.assertEqual(x.tolist(), [1.0, 2.0])

    def test_to_device_and_copy_cross_devices(self):
        s, sim = self.session, self.runtime.session("sim")
        there = sim.to_device(self.t(X))
        self.assertEqual((there.device, there.tolist()), ("sim:0", X))
        self.assertIs(there.session, sim)
        back = s.to_device(there.t())
        self.assertEqual((back.device, back.t().tolist()), ("cpu:0", X))
        with self.refused("InvalidArgument", "sim:0", "cpu:0"):
            s.binary(there, back.t(), op="add")
        # A view stays where it is, and is read by the session there.
        view = s.permute(there, dims=[1, 0])
        self.assertEqual((view.device, view.t().tolist()), ("sim:0", X))

    def test_zz_every_name_has_run(self):
        self.assertEqual(sorted(set(ep.NAMES) - self.ran), [])


class InPlace(Case):
    def test_the_result_is_left_in_the_first_input(self):
        s, x = self.session, self.session.tensor([[1.0, 2.0], [3.0, 4.0]])
        self.assertIs(s.run_in_place("binary", x[0], s.tensor([10.0, 20.0]), op="add").session, s)
        self.assertEqual(x.tolist(), [[11.0, 22.0], [3.0, 4.0]])
        s.run_in_place("binary", x, x.t(), op="sub")
        self.assertEqual(x.tolist(), [[0.0, 19.0], [-19.0, 0.0]])
        s.run_in_place("softmax", x, dim=0)
        self.assertClose(s.reduce(x, op="sum", dims=[0]), [1.0, 1.0])

    def test_what_does_not_fit_is_refused(self):
        s, x = self.session, self.session.tensor([1.0, 2.0])
        with self.refused("InvalidArgument", "computes nothing"):
            s.run_in_place("permute", x, dims=[0])
        with self.refused("InvalidArgument"):
            s.run_in_place("cast", x, dtype="i32")
        with self.refused("InvalidArgument"):
            s.run_in_place("reduce", x, op="sum")
        self.assertEqual(x.tolist(), [1.0, 2.0])


@with_numpy
class AgainstNumpy(Case):
    def test_random_tensors(self):
        seed = random.randrange(2**32)
        random.seed(seed)
        generator = numpy.random.default_rng(seed)
        s = self.session
        for _ in range(30):
            m, k, n = (random.randint(1, 9) for _ in range(3))
            a, b = generator.standard_normal((m, k), "f"), generator.standard_normal((k, n), "f")
            with self.subTest(seed=seed, m=m, k=k, n=n):
                numpy.testing.assert_allclose((s.tensor(a) @ s.tensor(b)).numpy(), a @ b, rtol=1e-4, atol=1e-5)
                numpy.testing.assert_allclose(s.unary(s.tensor(a.T), op="exp").numpy(), numpy.exp(a.T), rtol=1e-5)
                numpy.testing.assert_allclose(s.reduce(s.tensor(a), op="sum", dims=[0]).numpy(), a.sum(0), rtol=1e-4, atol=1e-5)
                order = generator.integers(0, m, 4)
                numpy.testing.assert_array_equal(s.gather(s.tensor(a), s.tensor(order)).numpy(), a[order])


if __name__ == "__main__":
    unittest.main()

"""Tensors: data in and out, indices, arithmetic, and what is refused."""
import array
import copy
import ctypes
import math
import pickle
import struct
import sys
import unittest

from support import Case, numpy, with_numpy


NAN, INF = float("nan"), float("inf")
# Numbers that each dtype has, its ends among them.
SAMPLES = {
    "bool": [True, False], "i8": [-128, 127], "u8": [0, 255], "i16": [-32768, 32767], "u16": [0, 65535],
    "i32": [-2**31, 2**31 - 1], "u32": [0, 2**32 - 1], "i64": [-2**63, 2**63 - 1], "u64": [0, 2**64 - 1],
    "f16": [1.5, -INF, 65504.0], "bf16": [1.5, -INF, 2.0**100], "f32": [0.5, INF, -0.0], "f64": [1e300, -5e-324],
    "complex64": [1 + 2j, -0.5j], "complex128": [1e300 - 2j, 0j],
}


class FromNumbers(Case):
    def test_numbers_of_every_dtype_come_back(self):
        for dtype, values in SAMPLES.items():
            for device in ("cpu", "sim"):
                x = self.runtime.session(device).tensor(values, dtype=dtype)
                self.assertEqual((x.dtype, x.shape, x.tolist()), (dtype, (len(values),), values))

    def test_the_dtype_is_that_of_the_numbers(self):
        for data, dtype in [(True, "bool"), ([True, 2], "i64"), ([1, 2.0], "f32"), ([1, 2j], "complex64"), ([], "f32"),
                            (range(3), "i64")]:
            self.assertEqual(self.session.tensor(data).dtype, dtype, data)

    def test_shapes_are_those_of_the_lists(self):
        for data, shape in [(5, ()), ([], (0,)), ([[], []], (2, 0)), ([[[1], [2]]], (1, 2, 1)), (((1, 2), [3, 4]), (2, 2))]:
            x = self.session.tensor(data)
            self.assertEqual(x.shape, shape)
            self.assertEqual(x.tolist(), [list(row) for row in data] if isinstance(data, tuple) else data)
        self.assertEqual(self.session.tensor([1, 2, 3, 4], shape=(2, 2)).tolist(), [[1, 2], [3, 4]])
        self.assertEqual(self.session.tensor([7], shape=[]).tolist(), 7)
        self.assertEqual(self.session.tensor([[1, 2]], shape=2).shape, (2,))
        deep = 1
        for _ in range(8):
            deep = [deep]
        self.assertEqual(self.session.tensor(deep).tolist(), deep)

    def test_values_that_do_not_fit_are_refused(self):
        tensor = self.session.tensor
        for values, dtype, error in [([256], "u8", OverflowError), ([-1], "u64", OverflowError), ([2**63], None, OverflowError),
                                     ([0.5], "i32", TypeError), ([2], "bool", TypeError), ([1j], "f32", TypeError),
                                     ([70000.0], "f16", OverflowError), ([1j], "f16", TypeError)]:
            with self.subTest(dtype), self.assertRaisesRegex(error, f"numbers as {dtype or 'i64'}|True nor False"):
                tensor(values, dtype=dtype)
        self.assertEqual(tensor([1e300], dtype="f32").tolist(), [INF])

    def test_what_is_no_data_is_refused(self):
        endless = []
        endless.append(endless)
        for data, error, told in [("text", TypeError, "str"), (None, TypeError, "NoneType"), ([None], TypeError, "NoneType"),
                                  ({1: 2}, TypeError, "dict"), ([[1], [2, 3]], ValueError, "lists of 1 and of 2"),
                                  ([1, [2]], ValueError, "list beside a number"),
                                  ([[1], 2], ValueError, "number beside a list"),
                                  (endless, ValueError, "more than 8 levels"),
                                  (self.session.tensor(1), TypeError, "a tensor already"),
                                  ([self.session.tensor(1)], TypeError, "Tensor")]:
            with self.subTest(told), self.assertRaisesRegex(error, told):
                self.session.tensor(data)
        with self.assertRaisesRegex(ValueError, "3 elements for the shape"):
            self.session.tensor([1, 2, 3], shape=[2, 2])
        with self.assertRaisesRegex(ValueError, "elements for the shape"):
            self.session.tensor([1, 2, 3, 4], shape=[-2, -2, 2])
        with self.refused("InvalidArgument", "-2"):
            self.session.tensor([1, 2, 3, 4], shape=[-2, -2])
        with self.assertRaisesRegex(TypeError, "no integer"):
            self.session.tensor([1, 2], shape=[2.0])
        with self.assertRaisesRegex(TypeError, "give a name"):
            self.session.tensor([1], dtype=float)


class FromBuffers(Case):
    def test_bytes_are_elements_of_a_dtype(self):
        content = struct.pack("3f", 1, 2, 3)
        for data in (content, bytearray(content), memoryview(content), memoryview(content).cast("b")):
            self.assertEqual(self.session.tensor(data, dtype="f32", shape=[3, 1]).tolist(), [[1.0], [2.0], [3.0]])
        x = self.session.tensor(b"\x00\x80\x3f\x80"[::-1], dtype="bf16")
        self.assertEqual((x.shape, x.tobytes()), ((2,), b"\x80\x3f\x80\x00"))
        self.assertEqual(self.session.tensor(b"\x01\xff").tolist(), [1, 255])
        self.assertEqual(self.session.tensor(b"").shape, (0,))
        self.assertEqual(self.session.tensor(memoryview(b"abcdef")[::2]).tobytes(), b"ace")
        with self.assertRaisesRegex(ValueError, "3 bytes are no whole number of f16"):
            self.session.tensor(b"abc", dtype="f16")
        with self.refused("InvalidArgument", "bool"):
            self.session.tensor(b"\2", dtype="bool")
        for dtype in ("f33", "i4", "f8e4m3", ""):
            if dtype:
                with self.assertRaisesRegex(ValueError, dtype):
                    self.session.tensor(b"ab", dtype=dtype)

    def test_buffers_have_dtypes(self):
        for code, dtype in zip("bBhHiIqQfd", ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f32", "f64"]):
            x = self.session.tensor(array.array(code, [1, 2]))
            self.assertEqual((x.dtype, x.tolist()), (dtype, [1, 2]))
        self.assertEqual(self.session.tensor(array.array("i", [1, 2, 3, 4]), dtype="f16").tolist(), [1.0, 2.0, 3.0, 4.0])
        grid = memoryview(array.array("h", range(6))).cast("B").cast("h", [2, 3])
        self.assertEqual(self.session.tensor(grid).tolist(), [[0, 1, 2], [3, 4, 5]])
        self.assertEqual(self.session.tensor((ctypes.c_double * 2)(1.5, 2)).tolist(), [1.5, 2.0])
        foreign = ctypes.c_int.__ctype_be__ if sys.byteorder == "little" else ctypes.c_int.__ctype_le__
        with self.assertRaisesRegex(TypeError, "format"):
            self.session.tensor((foreign * 2)(1, 2))
        with self.assertRaisesRegex(TypeError, "format"):
            self.session.tensor(memoryview(bytes(16)).cast("P"))


class Out(Case):
    def test_the_last_dimension_is_innermost(self):
        x = self.session.tensor([[1, 2], [3, 4]], dtype="i16")
        self.assertEqual(x.tobytes(), struct.pack("4h", 1, 2, 3, 4))
        self.assertEqual(x.t().tobytes(), struct.pack("4h", 1, 3, 2, 4))
        self.assertEqual((x.t().strides, x.t().shape, x.ndim, x.size), ((1, 2), (2, 2), 2, 4))

    def test_empty_tensors(self):
        for shape, expected in [([0], []), ([0, 3], []), ([3, 0], [[]] * 3), ([2, 0, 4], [[], []]),
                                ([2, 2, 0], [[[], []]] * 2)]:
            x = self.session.zeros(dtype="f32", shape=shape)
            self.assertEqual((x.tolist(), x.tobytes(), x.size), (expected, b"", 0), shape)
            self.assertEqual((x + x).shape, tuple(shape))
        lists = self.session.zeros(dtype="i8", shape=[2, 0]).tolist()
        lists[0].append(1)
        self.assertEqual(lists, [[1], []])

    def test_one_element(self):
        self.assertEqual(self.session.tensor([[2.5]]).item(), 2.5)
        self.assertTrue(self.session.tensor(1))
        self.assertFalse(self.session.tensor([False]))
        for use in (lambda x: x.item(), bool):
            with self.assertRaisesRegex(ValueError, "2 elements, not one"):
                use(self.session.tensor([1, 2]))

    def test_a_picture_shows_a_few_elements(self):
        s = self.session
        self.assertEqual(repr(s.tensor([[1, 2], [3, 4]])), "<ep.Tensor i64 [2, 2] on cpu:0: 1, 2, 3, 4>")
        self.assertEqual(repr(s.tensor(1.5)), "<ep.Tensor f32 [] on cpu:0: 1.5>")
        self.assertEqual(repr(s.zeros(dtype="f32", shape=[0])), "<ep.Tensor f32 [0] on cpu:0: >")
        for shape in ([100], [3, 33], [50, 2], [1, 1, 99], [2, 2, 50], [2, 3, 1, 7], [4, 5]):
            x = s.reshape(s.arange(dtype="i32", end=math.prod(shape)), shape=shape)
            self.assertTrue(repr(x).endswith(": 0, 1, 2, 3, 4, 5, ...>"), repr(x))
        x = s.reshape(s.arange(dtype="i32", end=20), shape=[4, 5]).t()
        self.assertTrue(repr(x).endswith(": 0, 5, 10, 15, 1, 6, ...>"), repr(x))
        self.assertIn("not readable", repr(s.empty(dtype="f32", shape=[2])))


class Arithmetic(Case):
    def test_operators(self):
        a, b = self.session.tensor([1.0, 2.0]), self.session.tensor([4.0, 8.0])
        for found, expected in [(a + b, [5, 10]), (a - b, [-3, -6]), (a * b, [4, 16]), (b / a, [4, 4]), (a @ b, 20),
                                (-a, [-1, -2]),
                                (a + 1, [2, 3]), (1 + a, [2, 3]), (a - 1, [0, 1]), (1 - a, [0, -1]), (a * 2, [2, 4]),
                                (2 * a, [2, 4]), (a / 2, [0.5, 1]), (2 / a, [2, 1])]:
            self.assertEqual(found.tolist(), expected)
        self.assertEqual((self.session.tensor([1j]) * 1j).tolist(), [-1])

    def test_equality_is_identity(self):
        a, b = self.session.tensor([1.0]), self.session.tensor([1.0])
        self.assertTrue(a == a and a != b)
        self.assertEqual(len({a, b}), 2)

    def test_nothing_is_converted_unasked(self):
        i, f = self.session.tensor([1, 2]), self.session.tensor([1.0, 2.0])
        with self.refused("InvalidArgument", "i64", "f32"):
            i + f
        with self.refused("InvalidArgument", "0.5"):
            i + 0.5
        for wrong in (lambda: i / 2, lambda: 2 / i, lambda: i / i):
            with self.assertRaisesRegex(TypeError, "i64"):
                wrong()
        for other in ("1", None, [1.0, 2.0], object()):
            for wrong in (lambda: f + other, lambda: other - f, lambda: f @ other):
                with self.assertRaises(TypeError):
                    wrong()
        with self.assertRaises(TypeError):
            f @ 2


class Indices(Case):
    def setUp(self):
        self.rows = [[[100 * i + 10 * j + k for k in range(4)] for j in range(3)] for i in range(2)]
        self.x = self.session.tensor(self.rows)

    def test_indices_are_those_of_python(self):
        r, x = self.rows, self.x
        cases = [
            (x[0], r[0]), (x[-1, 2], r[-1][2]), (x[1, 0, 3], r[1][0][3]), (x[...], r), (x[()], r), (x[:], r),
            (x[..., -1], [[c[-1] for c in b] for b in r]),
            (x[:, 1], [b[1] for b in r]), (x[:, 1:], [b[1:] for b in r]), (x[..., ::2], [[c[::2] for c in b] for b in r]),
            (x[0, ..., 1:-1], [c[1:-1] for c in r[0]]), (x[None, 0], [r[0]]), (x[0, :, None], [[c] for c in r[0]]),
            (x[..., None], [[[[d] for d in c] for c in b] for b in r]),
            (x[5:], r[5:]), (x[-100:100], r), (x[1:0], []), (x[:, -2:-1], [b[-2:-1] for b in r]), (x[0, 0, 3:1], []),
            (x[:, 0, 1::3], [b[0][1::3] for b in r]),
        ]
        for i, (found, expected) in enumerate(cases):
            self.assertEqual(found.tolist(), expected, i)
        self.assertEqual(x[2:2].shape, (0, 3, 4))

    def test_iteration_and_length(self):
        self.assertEqual([row.tolist() for row in self.x], self.rows)
        self.assertEqual(len(self.x), 2)
        with self.assertRaisesRegex(TypeError, "no length"):
            len(self.session.tensor(1))
        with self.assertRaises(TypeError):
            list(self.session.tensor(1))

    def test_parts_are_views(self):
        for view in (self.x[1, 1:], self.x[...], self.x[:]):
            self.session.run_in_place("binary_scalar", view, op="mul", scalar=0)
            self.assertTrue(all(v == 0 for v in self.session.flatten(view).tolist()))
        self.assertEqual(self.session.reduce(self.x, op="max").item(), 0)
        self.assertIsNot(self.x[...], self.x)

    def test_wrong_indices_are_refused(self):
        for index, error in [(2, IndexError), (-3, IndexError), ((0, 0, 0, 0), IndexError), ((..., ...), IndexError),
                             (1.0, TypeError), ("a", TypeError),
                             (True, TypeError), ([0, 1], TypeError), (slice(None, None, -1), ValueError),
                             (slice(0, 2, 0), ValueError),
                             (self.session.tensor([0]), TypeError), (slice("a"), TypeError),
                             ((slice(None),) * 4, IndexError), (2**70, IndexError)]:
            with self.subTest(index=str(index)), self.assertRaises(error):
                self.x[index]
        with self.assertRaises(TypeError):
            self.x[0] = 1

    def test_t(self):
        self.assertEqual(self.x[0].t().tolist(), [list(c) for c in zip(*self.rows[0])])
        self.assertEqual(self.x[0, 0].t().tolist(), self.rows[0][0])
        with self.assertRaisesRegex(ValueError, "3 dimensions"):
            self.x.t()


class Misuse(Case):
    def test_inputs_are_tensors(self):
        for wrong in ([1.0], None, 1.0, [self.session.tensor(1)]):
            with self.assertRaisesRegex(TypeError, f"input 0 of softmax is a {type(wrong).__name__}"):
                self.session.softmax(wrong)
        with self.refused("InvalidArgument", "inputs"):
            self.session.softmax()

    def test_attributes_are_json(self):
        x = self.session.tensor([1.0])
        with self.refused("InvalidArgument", "unknown field `dims`", "`dim`"):
            self.session.softmax(x, dims=1)
        with self.refused("InvalidArgument", "missing field `op`"):
            self.session.unary(x)
        with self.refused("InvalidArgument", "is none of", "relu"):
            self.session.unary(x, op="rellu")
        with self.refused("InvalidArgument", "expected i64"):
            self.session.softmax(x, dim=0.5)
        for wrong in (object(), x, b"0", {1, 2}):
            with self.assertRaisesRegex(TypeError, "is no attribute"):
                self.session.softmax(x, dim=wrong)
        with self.refused("InvalidArgument", "unknown variant `none`"):
            self.session.run("none", x)

    def test_tensors_and_sessions_are_not_copied_or_pickled(self):
        x = self.session.tensor([1.0])
        for thing in (x, self.session, self.runtime, x._handle):
            for use in (copy.copy, copy.deepcopy, pickle.dumps):
                if use is copy.copy and thing in (self.session, self.runtime):
                    continue  # Another name for the same handle, which is freed once.
                with self.assertRaisesRegex(TypeError, "copied or pickled|pickle"):
                    use(thing)

    def test_equal_attributes_are_one_operator(self):
        from ep import _session
        _session._operator.cache_clear()
        _session._plain.cache_clear()
        x = self.session.tensor([[1.0, 2.0]])
        self.session.softmax(x, dim=-1, dtype="f32")
        self.session.softmax(x, dtype="f32", dim=-1)
        self.session.softmax(x, dim=1)
        # Of Python they are equal, of JSON they are not.
        with self.refused("InvalidArgument", "boolean"):
            self.session.softmax(x, dim=True)
        self.assertEqual(_session._operator.cache_info()[:2], (1, 3))
        for dims in ([1], (1,), [1]):
            self.assertEqual(self.session.reduce(x, op="sum", dims=dims).tolist(), [3.0])
        self.assertEqual(self.session.reduce(x, op="sum", dims=range(1, 2)).tolist(), [3.0])
        for dims in ([True], (1, True), [1.0], [[1]]):
            with self.refused("InvalidArgument", "dims"):
                self.session.reduce(x, op="sum", dims=dims)


@with_numpy
class Numpy(Case):
    DTYPES = {"bool": "?", "i8": "i1", "u8": "u1", "i16": "i2", "u16": "u2", "i32": "i4", "u32": "u4", "i64": "i8", "u64": "u8",
              "f16": "f2", "f32": "f4", "f64": "f8", "complex64": "c8", "complex128": "c16"}

    def test_arrays_of_every_dtype_come_back(self):
        for dtype, code in self.DTYPES.items():
            given = numpy.array(SAMPLES[dtype], code)
            x = self.session.tensor(given)
            self.assertEqual(x.dtype, dtype)
            found = x.numpy()
            self.assertEqual(found.dtype, given.dtype)
            numpy.testing.assert_array_equal(found, given)

    def test_arrays_of_any_strides(self):
        base = numpy.arange(24, dtype="f4").reshape(2, 3, 4)
        for given in (base.T, base[:, ::2], base[::-1, :, ::-1], base[:, 1], base[..., None],
                      numpy.broadcast_to(base, (2, 2, 3, 4)),
                      base[0, 0, 0], base[:0], numpy.asfortranarray(base), base.astype(">f4"), base.astype(">f4").T):
            x = self.session.tensor(given)
            self.assertEqual(x.shape, given.shape)
            numpy.testing.assert_array_equal(x.numpy(), given)

    def test_scalars_and_lists_of_them(self):
        for given, dtype in [(numpy.float32(1.5), "f32"), (numpy.int16(3), "i16"), (numpy.bool_(True), "bool"),
                             (numpy.complex64(1j), "complex64"),
                             (numpy.array(2.5), "f64")]:
            x = self.session.tensor(given)
            self.assertEqual((x.dtype, x.shape, x.tolist()), (dtype, (), given))
        self.assertEqual(self.session.tensor([numpy.float32(1.5), 2]).tolist(), [1.5, 2.0])
        self.assertEqual(self.session.tensor([numpy.bool_(True), False]).tolist(), [True, False])
        self.assertEqual(self.session.tensor([numpy.int8(1)]).dtype, "i64")
        x = self.session.tensor([1.0, 2.0])
        self.assertEqual((x + numpy.float32(1)).tolist(), [2.0, 3.0])
        self.assertEqual((numpy.float32(1) - x).tolist(), [0.0, -1.0])
        self.assertEqual(self.session.full(dtype="i8", shape=numpy.array([2]).tolist(), value=numpy.int64(3)).tolist(), [3, 3])
        self.assertEqual(x[numpy.int64(1)].item(), 2.0)

    def test_a_dtype_converts(self):
        x = self.session.tensor(numpy.array([1.0, 2.7]), dtype="i32")
        self.assertEqual((x.dtype, x.tolist()), ("i32", [1, 2]))
        self.assertEqual(self.session.tensor(numpy.float64(1.00390625), dtype="bf16").tolist(), 1.0)

    def test_bf16_is_no_dtype_of_numpy(self):
        x = self.session.tensor([1.0, -2.0], dtype="bf16")
        with self.assertRaisesRegex(TypeError, "cast it"):
            x.numpy()
        numpy.testing.assert_array_equal(x.numpy(bits=True), numpy.array([0x3f80, 0xc000], "u2"))
        self.assertEqual(self.session.cast(x, dtype="f32").numpy().tolist(), [1.0, -2.0])
        self.assertEqual(self.session.tensor([1.5]).numpy(bits=True).tolist(), [1.5])

    def test_a_tensor_is_an_array_by_a_copy(self):
        x = self.session.tensor([1.0, 2.0])
        found = numpy.asarray(x)
        self.assertEqual((found.dtype, found.tolist()), ("f4", [1.0, 2.0]))
        self.assertEqual(numpy.array(x, dtype="f8").dtype, "f8")
        found[0] = 9
        self.assertEqual(x.tolist(), [1.0, 2.0])
        with self.assertRaises(ValueError):
            x.__array__(copy=False)
        for wrong in (lambda: found + x, lambda: x * found, lambda: found @ x):
            with self.assertRaises(TypeError):
                wrong()

    def test_arrays_that_are_no_tensors(self):
        for wrong in (numpy.array(["a"]), numpy.array([object()]), numpy.zeros(2, "M8[s]"), numpy.zeros(2, "i4,f4"),
                      numpy.zeros(1, "g")):
            with self.assertRaisesRegex(TypeError, "convert it"):
                self.session.tensor(wrong)
        with self.refused("InvalidArgument", "9"):
            self.session.tensor(numpy.zeros([1] * 9, "f4"))

    def test_content_of_bool_arrays_is_checked(self):
        with self.refused("InvalidArgument", "byte 1 of a bool tensor is 2"):
            self.session.tensor(numpy.array([1, 2], "u1").view("?"))


if __name__ == "__main__":
    unittest.main()

"""Memory that is shared with other libraries."""
import ctypes
import gc
import sys
import unittest

from support import Case, config, numpy, with_numpy

import ep
from ep import _dlpack


class Producer:
    """An array of another library, which notes what it is asked."""

    def __init__(self, source, device=None):
        self.source, self.device, self.asked = source, device, []

    def __dlpack_device__(self):
        return self.device or self.source.__dlpack_device__()

    def __dlpack__(self, **asked):
        self.asked.append(asked)
        return self.source.__dlpack__()


def name(capsule):
    function = ctypes.pythonapi.PyCapsule_GetName
    function.restype, function.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return function(capsule)


class BetweenSessions(Case):
    def test_a_tensor_of_another_session_is_shared(self):
        other = self.runtime.session("cpu")
        x = self.session.tensor([[1.0, 2.0], [3.0, 4.0]])
        y = other.from_dlpack(x.t())
        self.assertEqual((y.tolist(), y.strides, y.dtype, y.session), ([[1.0, 3.0], [2.0, 4.0]], (1, 2), "f32", other))
        other.run_in_place("binary_scalar", y, op="mul", scalar=10)
        other.sync()
        self.assertEqual(x.tolist(), [[10.0, 20.0], [30.0, 40.0]])

    def test_every_dtype_and_shape_crosses(self):
        for dtype in ("bool", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64",
                      "complex64", "complex128"):
            x = self.session.tensor([1, 0, 1], dtype=dtype)
            y = self.session.from_dlpack(x)
            self.assertEqual((y.dtype, y.tolist()), (dtype, x.tolist()))
        for shape in ([], [0], [2, 0, 3], [1] * 8):
            y = self.session.from_dlpack(self.session.zeros(dtype="f32", shape=shape))
            self.assertEqual(y.shape, tuple(shape))
        flipped = self.session.flip(self.session.tensor([1, 2, 3]), dims=[0])
        y = self.session.from_dlpack(flipped[::2])
        self.assertEqual((y.tolist(), y.strides), ([3, 1], (-2,)))

    def test_the_memory_stays_while_a_tensor_uses_it(self):
        session = ep.Runtime.from_text(config(cpu="")).session("cpu")
        y = self.session.from_dlpack(session.tensor([1.0, 2.0]))
        view = y[1:]
        del session, y
        gc.collect()
        self.assertEqual(view.tolist(), [2.0])


class Protocol(Case):
    def setUp(self):
        self.x = self.session.tensor([1.0, 2.0])

    def test_a_capsule_without_a_version_is_asked_for(self):
        producer = Producer(self.x)
        self.session.from_dlpack(producer)
        self.assertEqual(producer.asked, [{}])

    def test_on_a_gpu_the_stream_of_the_session_is_given(self):
        for native, stream in [(0, 1), (4096, 4096)]:
            class Gpu(ep.Session):
                """A session on the CPU that takes itself for one on a GPU."""

            Gpu.native = ("CUstream", native)
            session = Gpu(self.runtime, "cpu")
            session._place = (2, 0)
            producer = Producer(self.x, (2, 0))
            session.from_dlpack(producer)
            self.assertEqual(producer.asked, [{"stream": stream}])
        Gpu.native = ("ep-sim-queue", 7)
        with self.assertRaisesRegex(BufferError, "ep-sim-queue"):
            session.from_dlpack(producer)

    def test_another_device_is_refused_before_anything_is_taken(self):
        producer = Producer(self.x, (2, 0))
        with self.assertRaisesRegex(BufferError, r"\(2, 0\) for a session on cpu:0, which is \(1, 0\)"):
            self.session.from_dlpack(producer)
        self.assertEqual(producer.asked, [])
        sim = self.runtime.session("sim")
        for use in (lambda: sim.from_dlpack(self.x), sim.tensor([1.0]).__dlpack__, sim.tensor([1.0]).__dlpack_device__):
            with self.assertRaisesRegex(BufferError, "DLPack has no number for memory of sim:0"):
                use()

    def test_what_cannot_be_done_is_refused(self):
        x = self.x
        self.assertEqual(x.__dlpack_device__(), (1, 0))
        for fine in ({}, {"max_version": (1, 2)}, {"max_version": None, "dl_device": (1, 0), "copy": False, "stream": None}):
            self.assertEqual(name(x.__dlpack__(**fine)), b"dltensor")
        for stream in (1, -1, 2**40):
            with self.assertRaisesRegex(BufferError, "no streams"):
                x.__dlpack__(stream=stream)
        with self.assertRaisesRegex(BufferError, "copy it there"):
            x.__dlpack__(dl_device=(2, 0))
        with self.assertRaisesRegex(BufferError, "never written"):
            self.session.empty(dtype="f32", shape=[2]).__dlpack__()
        with self.assertRaises(TypeError):
            x.__dlpack__(None)

    def test_a_copy_shares_nothing(self):
        class Copied:
            __dlpack_device__ = self.x.__dlpack_device__

            def __dlpack__(me):
                return self.x.__dlpack__(copy=True)

        y = self.session.from_dlpack(Copied())
        self.session.run_in_place("binary_scalar", self.x, op="add", scalar=1)
        self.assertEqual((self.x.tolist(), y.tolist()), ([2.0, 3.0], [1.0, 2.0]))

    def test_a_capsule_is_consumed_once(self):
        capsule = self.x.__dlpack__()

        class Same:
            __dlpack_device__ = self.x.__dlpack_device__

            def __dlpack__(me):
                return capsule

        self.assertEqual(self.session.from_dlpack(Same()).tolist(), [1.0, 2.0])
        self.assertEqual(name(capsule), b"used_dltensor")
        with self.assertRaisesRegex(BufferError, "consumed once"):
            self.session.from_dlpack(Same())

    def test_what_is_no_capsule_is_refused(self):
        class Wrong:
            def __init__(self, capsule):
                self.capsule = capsule

            def __dlpack_device__(self):
                return 1, 0

            def __dlpack__(self):
                return self.capsule

        other = _dlpack._new(1, ctypes.addressof(ctypes.create_string_buffer(b"dltensor_versioned")), None)
        for wrong in (None, 5, object(), "dltensor", other):
            with self.assertRaisesRegex(BufferError, "no unused capsule"):
                self.session.from_dlpack(Wrong(wrong))
        for wrong in ([1.0], 5, memoryview(b"a"), Wrong):
            with self.assertRaises(TypeError):
                self.session.from_dlpack(wrong)

        class Fails(Wrong):
            def __dlpack__(self):
                raise KeyError("mine")

        with self.assertRaises(KeyError):
            self.session.from_dlpack(Fails(None))


class Unconsumed(Case):
    """Capsules that nobody consumes give their memory back."""

    def test_a_capsule_that_dies_gives_back_its_tensor(self):
        x = self.session.tensor([1.0])
        _dlpack.sweep(10**6)
        before = len(_dlpack._given)
        capsule = x.__dlpack__()
        for _ in range(20):
            x.__dlpack__()
        _dlpack.sweep(10**6)
        self.assertEqual(len(_dlpack._given), before + 1, "one is still there")
        self.assertEqual(name(capsule), b"dltensor")
        del capsule
        self.session.sync()
        self.assertEqual(len(_dlpack._given), before)

    def test_memory_does_not_run_out(self):
        session = ep.Runtime.from_text(config(cpu='memory_limit = "40000000"')).session("cpu")
        for _ in range(30):
            x = session.zeros(dtype="u8", shape=[10_000_000])
            x.__dlpack__()
            self.session.from_dlpack(x)
        held = []
        with self.refused("OutOfMemory"):
            for _ in range(5):
                x = session.zeros(dtype="u8", shape=[10_000_000])
                held.append(x.__dlpack__())
        self.assertGreaterEqual(len(held), 3, "a capsule keeps its memory")


@with_numpy
class Numpy(Case):
    def test_an_array_is_shared_with_a_session(self):
        a = numpy.arange(6, dtype="f4").reshape(2, 3)
        x = self.session.from_dlpack(a)
        a[0, 0] = 50
        self.assertEqual(x.tolist(), [[50.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
        self.session.run_in_place("binary_scalar", x, op="mul", scalar=2)
        self.session.sync()
        self.assertEqual(a.tolist(), [[100.0, 2.0, 4.0], [6.0, 8.0, 10.0]])

    def test_a_tensor_is_shared_with_numpy(self):
        x = self.session.tensor([[1.0, 2.0], [3.0, 4.0]])
        a, b = numpy.from_dlpack(x), numpy.from_dlpack(x.t())
        self.session.run_in_place("binary_scalar", x, op="add", scalar=1)
        self.session.sync()
        self.assertEqual((a.tolist(), b.tolist(), b.strides), ([[2.0, 3.0], [4.0, 5.0]], [[2.0, 4.0], [3.0, 5.0]], (4, 8)))
        y = self.session.from_dlpack(x)
        del x
        self.session.run_in_place("binary_scalar", y, op="add", scalar=1)
        self.session.sync()
        self.assertEqual(a.tolist(), [[3.0, 4.0], [5.0, 6.0]])

    def test_strides_are_kept_both_ways(self):
        base = numpy.arange(24, dtype="i4").reshape(2, 3, 4)
        for a in (base.T, base[:, ::2], base[::-1], base[:, 1, ::-1], base[..., None], numpy.asfortranarray(base),
                  base[0, 0, 0:1]):
            x = self.session.from_dlpack(a)
            self.assertEqual(x.shape, a.shape)
            numpy.testing.assert_array_equal(x.numpy(), a)
            again = numpy.from_dlpack(x)
            numpy.testing.assert_array_equal(again, a)
            self.assertEqual(again.ctypes.data, a.ctypes.data)

    def test_every_dtype_of_numpy(self):
        has_bool = numpy.lib.NumpyVersion(numpy.__version__) >= "1.25.0"
        for code in "bBhHiIqQefdFD" + "?" * has_bool:
            a = numpy.array([1, 0, 1], code)
            x = self.session.from_dlpack(a)
            again = numpy.from_dlpack(x)
            self.assertEqual((again.dtype, again.tolist()), (a.dtype, a.tolist()))
        for shape in ((), (0,), (3, 0, 2)):
            a = numpy.zeros(shape, "f4")
            self.assertEqual(numpy.from_dlpack(self.session.from_dlpack(a)).shape, shape)

    def test_an_array_is_kept_and_given_back(self):
        a = numpy.zeros(4, "f4")
        before = sys.getrefcount(a)
        x = self.session.from_dlpack(a)
        y = self.session.run("alias", x)
        self.assertGreater(sys.getrefcount(a), before)
        del x
        self.assertGreater(sys.getrefcount(a), before)
        del y
        self.assertEqual(sys.getrefcount(a), before)
        # Also where it is refused.
        for wrong in (numpy.zeros([1] * 9, "f4"),):
            before = sys.getrefcount(wrong)
            with self.refused("InvalidArgument", "9"):
                self.session.from_dlpack(wrong)
            self.assertEqual(sys.getrefcount(wrong), before)

    def test_a_tensor_that_numpy_refuses_is_given_back(self):
        x = self.session.tensor([1.0], dtype="bf16")
        _dlpack.sweep(10**6)
        before = len(_dlpack._given)
        for _ in range(3):
            with self.assertRaisesRegex((BufferError, RuntimeError), "(?i)dtype"):
                numpy.from_dlpack(x)
        self.session.sync()
        self.assertEqual(len(_dlpack._given), before)

    def test_arrays_that_numpy_does_not_hand_over(self):
        a = numpy.zeros(2, "f4")
        a.flags.writeable = False
        for wrong in (a, numpy.zeros(2, ">f4"), numpy.array(["a"])):
            with self.assertRaises((BufferError, TypeError)):  # TypeError: of NumPy before 1.25.
                self.session.from_dlpack(wrong)

    def test_misaligned_arrays(self):
        a = numpy.frombuffer(bytearray(41), "u1")[1:41].view("f4")
        before = sys.getrefcount(a)
        with self.refused("InvalidArgument", "f32", "no multiple of the 4"):
            self.session.from_dlpack(a)
        self.assertEqual(sys.getrefcount(a), before)
        self.assertEqual((self.session.tensor(a) + 1).tolist(), [1.0] * 10)


if __name__ == "__main__":
    unittest.main()

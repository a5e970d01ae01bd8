"""Weights that are prepacked, against plain products."""
import gc
import unittest
import weakref
from unittest import mock

from support import ep, runtime

from ep import _weights


def numbers(rows, cols, by):
    return [[(i * by + j * 3) % 7 - 3 for j in range(cols)] for i in range(rows)]


class Weights(unittest.TestCase):
    def products(self, session, dtype):
        matrix = session.tensor(numbers(48, 40, 5), dtype=dtype)
        x = session.tensor([numbers(2, 48, 2), numbers(2, 48, 4)], dtype=dtype)
        wanted = (x @ matrix).tolist()
        weights = session.prepack(matrix)
        self.assertEqual((tuple(weights.shape), weights.dtype), ((48, 40), dtype))
        found = x @ weights
        self.assertEqual((tuple(found.shape), found.tolist()), ((2, 2, 40), wanted))
        # As they are stored by a layer, and behind the end of the tensor.
        turned = session.prepack(session.tensor(numbers(40, 48, 6), dtype=dtype).t())
        gc.collect()
        again = session.tensor(numbers(40, 48, 6), dtype=dtype).t()
        self.assertEqual((x @ turned).tolist(), (x @ again).tolist())

    def test_products_are_those_of_the_matrix(self):
        for device in ("cpu", "sim"):
            for dtype in ("bf16", "f32", "i32"):
                with self.subTest(f"{dtype} on {device}"), runtime().session(device) as session:
                    self.products(session, dtype)

    def test_what_is_packed_takes_memory_of_its_own(self):
        with runtime().session("sim") as session:
            weights = session.prepack(session.tensor(numbers(4, 5, 3), dtype="f32"))
            self.assertEqual(weights.packed_bytes, 4 * 5 * 4)
            self.assertIn("packed in 80 bytes", repr(weights))

    def test_what_does_not_fit_is_refused(self):
        with runtime().session("cpu") as session, runtime().session("sim") as other:
            weights = other.prepack(other.tensor(numbers(4, 5, 3), dtype="f32"))
            for x, says in ((session.tensor(numbers(2, 4, 3), dtype="f32"), "was prepacked on sim:0"),
                            (other.tensor(numbers(2, 5, 3), dtype="f32"), "5 columns of the first meet 4 rows")):
                with self.assertRaisesRegex(ep.Error, says) as caught:
                    x @ weights
                self.assertEqual(caught.exception.code, "InvalidArgument")
            with self.assertRaisesRegex(ep.Error, "a matrix of two dimensions"):
                session.prepack(session.tensor([1.0, 2.0]))
            with self.assertRaisesRegex(ep.Error, "bring it with to_device"):
                session.prepack(other.tensor(numbers(4, 5, 3)))
            with self.assertRaisesRegex(TypeError, "is a list"):
                session.prepack([[1.0]])
            with self.assertRaises(TypeError):
                [[1.0]] @ weights

    def test_a_session_that_is_closed_lives_as_long_as_the_call(self):
        session = runtime().session("cpu")
        x = session.tensor(numbers(2, 4, 3), dtype="f32")
        weights = session.prepack(session.tensor(numbers(4, 5, 3), dtype="f32"))
        library, lives = _weights.library(), []

        class Closing:
            def ep_weights_matmul(self, *arguments):
                handle = weakref.ref(session._handle)
                session.close()
                lives.append(handle() is not None)
                library.ep_weights_matmul(*arguments)

        with mock.patch.object(_weights, "library", Closing):
            x @ weights
        self.assertEqual(lives, [True])
        with self.assertRaisesRegex(ValueError, "closed"):
            x @ weights


if __name__ == "__main__":
    unittest.main()

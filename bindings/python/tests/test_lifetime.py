"""Who keeps what, threads, and the end of the process."""
import gc
import os
import random
import threading
import time
import unittest
import weakref
from unittest.mock import patch

from support import Case, config, numpy, run_python, with_numpy

import ep
from ep import _library


class Kept(Case):
    def test_a_tensor_outlives_its_runtime_and_its_session(self):
        for device in ("cpu", "sim"):
            runtime = ep.Runtime.from_text(config(cpu="", sim=""))
            session = runtime.session(device, fallback=["cpu"])
            x = session.tensor([1.0, 2.0])
            view = x[1:]
            seen = weakref.ref(session)
            del runtime, session, x
            gc.collect()
            self.assertIsNotNone(seen(), "a tensor needs its session to be read")
            self.assertEqual((view + view).tolist(), [4.0])
            del view
            self.assertIsNone(seen(), "nothing else keeps a session")

    def test_objects_end_without_the_garbage_collector(self):
        gc.disable()
        try:
            runtime = ep.Runtime.from_text(config(cpu=""))
            session = runtime.session("cpu")
            x = session.softmax(session.tensor([1.0]))
            seen = [weakref.ref(thing._handle) for thing in (x, session, runtime)]
            del x, session, runtime
            self.assertEqual([ref() for ref in seen], [None] * 3)
        finally:
            gc.enable()

    def test_operators_are_kept_in_a_bounded_number(self):
        from ep import _session
        x = self.session.zeros(dtype="f32", shape=[3000])
        for i in range(3000):
            x[i]
        self.assertLessEqual(_session._operator.cache_info().currsize, 1024)

    def test_memory_comes_back(self):
        session = ep.Runtime.from_text(config(sim='memory_bytes = "1000000"')).session("sim")
        for _ in range(50):
            x = session.zeros(dtype="u8", shape=[200_000])
            y = (x + x)[10:]
        session.sync()
        self.assertEqual(y.size, 199_990)

    def test_texts_of_the_library_are_freed(self):
        library, sim = _library.library(), self.runtime.session("sim")
        with patch.object(library, "ep_text_free", wraps=library.ep_text_free) as free:
            uses = [self.runtime.list, self.runtime.query, lambda: sim.native, sim.fallbacks]
            for use in uses:
                use()
            self.assertEqual(free.call_count, len(uses))

    def test_errors_are_released(self):
        found = run_python("""
import ep, resource, support
session = ep.Runtime.from_text(support.config(cpu="")).session("cpu")
def use():
    for _ in range(400):
        try: session.run("x" * 100_000)
        except ep.Error as e: assert len(e.message) > 100_000
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
""")
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertLess(int(found.stdout), 10_000, "kilobytes")

    def test_a_failed_call_leaves_nothing(self):
        session = ep.Runtime.from_text(config(sim='memory_bytes = "1000000"')).session("sim")
        for _ in range(20):
            x = session.zeros(dtype="u8", shape=[300_000])
            with self.refused("OutOfMemory"):
                session.zeros(dtype="u8", shape=[10_000_000])
            del x


class Threads(Case):
    def together(self, work, count=8):
        failures, begin = [], threading.Barrier(count)

        def one(i):
            try:
                begin.wait()
                work(i)
            except BaseException as e:
                failures.append(e)

        threads = [threading.Thread(target=one, args=[i]) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_many_threads_use_one_session(self):
        for device in ("cpu", "sim"):
            session = self.runtime.session(device, fallback="cpu")
            shared = session.tensor([[float(i) for i in range(8)]] * 8)

            def work(i):
                generator = random.Random(i)
                for _ in range(20 if device == "sim" else 100):
                    row, add = generator.randrange(8), generator.randrange(100)
                    x = shared[row] + add
                    self.assertEqual(x.tolist(), [float(j + add) for j in range(8)])
                    # Attributes that few share: operators come and go.
                    self.assertEqual(session.full(dtype="i64", shape=[2], value=generator.randrange(3000)).shape, (2,))
                    session.from_dlpack(x).wait() if device == "cpu" else x.wait()

            self.together(work)

    def test_a_session_is_closed_while_others_use_it(self):
        for _ in range(20):
            session = self.runtime.session("sim")
            x = session.tensor([1.0] * 100)

            def work(i):
                if i == 0:
                    session.close()
                    return
                try:
                    for _ in range(5):
                        self.assertEqual((x + i).tolist(), [1.0 + i] * 100)
                except ValueError as e:
                    self.assertIn("closed", str(e))

            self.together(work, 4)

    def test_the_interpreter_goes_on_while_a_call_waits(self):
        session = ep.Runtime.from_text(config(sim='slow = "1..", slow_ms = "200"')).session("sim")
        x = session.tensor([1.0]) + 1
        ticks, done = [time.monotonic()], threading.Event()

        def tick():
            while not done.wait(0.005):
                ticks.append(time.monotonic())

        thread = threading.Thread(target=tick)
        thread.start()
        begin = time.monotonic()
        session.sync()
        end = time.monotonic()
        done.set()
        thread.join()
        self.assertGreater(end - begin, 0.1, "it did not wait")
        self.assertGreater(sum(begin < at < end for at in ticks), 3)
        del x

    @with_numpy
    def test_arrays_are_given_back_by_any_thread(self):
        session = self.runtime.session("cpu")

        def work(i):
            for _ in range(100):
                a = numpy.full(16, i, "f4")
                self.assertEqual(numpy.from_dlpack(session.from_dlpack(a) + 1).tolist(), [i + 1.0] * 16)

        self.together(work)


SETUP = """
import ep, support, sys
runtime = ep.Runtime.from_text(support.config())
session = runtime.session("sim", fallback=["cpu"])
host = runtime.session("cpu")
x = session.tensor([1.0] * 1000)
y = [x + i for i in range(30)]
capsule = host.tensor([1.0]).__dlpack__()
"""


class End(unittest.TestCase):
    """A process ends with whatever is left, without a word."""

    def ends(self, code, returncode=0, out="", errors=""):
        found = run_python(code)
        self.assertEqual((found.returncode, found.stdout, found.stderr.strip()), (returncode, out, errors))

    def test_with_live_objects(self):
        self.ends(SETUP)

    def test_with_objects_in_cycles_and_in_other_modules(self):
        self.ends(SETUP + """
import builtins, threading
cycle = [x, session, runtime]
cycle.append(cycle)
builtins.kept = [x, capsule, session, runtime]
sys.kept = host.tensor([2.0]).__dlpack__()
threading.current_thread().kept = cycle
class Late:
    def __init__(self): self.x = host.tensor([1.0, 2.0])
    def __del__(self): print(self.x.shape, (self.x + 1).tolist())
late = Late()
late.me = late
""", out="(2,) [2.0, 3.0]\n")

    @unittest.skipIf(numpy is None, "NumPy is not installed")
    def test_with_shared_arrays(self):
        self.ends(SETUP + """
import numpy
a = numpy.zeros(1000, "f4")
shared = host.from_dlpack(a)
later = [host.run_in_place("binary_scalar", shared, op="add", scalar=1) for _ in range(50)]
back = numpy.from_dlpack(shared)
sys.kept = [a, shared, back]
""")

    def test_with_daemon_threads_at_work(self):
        found = run_python(SETUP + """
import threading, time
def work():
    while True:
        (host.tensor([1.0] * 100) + 1).tolist()
        session.tensor([1.0]) + 1
for _ in range(4): threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
""")
        self.assertEqual(found.returncode, 0, found.stderr)

    def test_by_an_error(self):
        found = run_python(SETUP + "raise KeyError(5)")
        self.assertEqual(found.returncode, 1)
        self.assertTrue(found.stderr.strip().endswith("KeyError: 5"), found.stderr)

    def test_after_work_that_failed(self):
        found = run_python("""
import ep, support
session = ep.Runtime.from_text(support.config(sim='op_error = "1"')).session("sim")
x = session.tensor([1.0]) + 1
""")
        self.assertEqual(found.returncode, 0)
        self.assertIn("work of a session on sim:0 failed: Internal: ", found.stderr)

    def test_queued_work_is_done_before_python_ends(self):
        # The array is read when its turn comes, long after the last line.
        self.ends("""
import ep, support
session = ep.Runtime.from_text(support.config(sim='slow = "1..", slow_ms = "50"')).session("sim")
x = session.tensor([1.0])
for _ in range(5): x = x + 1
""")

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork")
    def test_a_forked_child_ends(self):
        for last in ("", "del x, y, session, runtime, host, capsule"):
            self.ends(SETUP + f"""
import os, warnings
warnings.simplefilter("ignore")  # Python warns of forks where there are threads, which is what this is about.
child = os.fork()
if child == 0:
    {last}
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), x.tolist()[0])
""", out="7 1.0\n")


if __name__ == "__main__":
    unittest.main()

"""What the tests share: the package, providers, and NumPy where there is one."""
import os
import subprocess
import sys
import unittest
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
REPOSITORY = PACKAGE.parent.parent
sys.path.insert(0, str(PACKAGE))

import ep  # noqa: E402

# Processes that tests start may be in other folders.
if os.environ.get("EP_HOST_LIBRARY"):
    os.environ["EP_HOST_LIBRARY"] = os.path.abspath(os.environ["EP_HOST_LIBRARY"])

# Set in processes that tests start.
CHILD = "EP_TEST_CHILD"

try:
    import numpy
except ImportError:
    numpy = None
    if CHILD not in os.environ:
        print("NumPy is not installed: its tests are skipped", file=sys.stderr)

with_numpy = unittest.skipIf(numpy is None, "NumPy is not installed")

# Providers that the tests load, and their options.
FILES = {"cpu": ("libep_cpu.so", ""), "sim": ("libep_sim.so", 'devices = "2"'), "null": ("libep_null.so", "")}


def providers():
    folder = os.environ.get("EP_TEST_PROVIDERS")
    if not folder:
        raise RuntimeError(
            "EP_TEST_PROVIDERS names no folder with the providers; `cargo build --release -p ep-cpu-plugin -p "
            "ep-sim-plugin -p ep-null` in EP's repository puts them into target/release")
    return Path(folder).resolve()


def config(**options):
    """A config of these providers, each with more options."""
    text = ""
    for name, (file, usual) in FILES.items():
        if name in options or not options:
            entries = ", ".join(filter(None, [usual, options.get(name, "")]))
            path = providers() / file
            text += f'[[provider]]\nname = "{name}"\npath = "{path}"\nrequired = true\noptions = {{ {entries} }}\n'
    return text


_shared = []


def runtime():
    """One runtime for all tests that do not close it."""
    if not _shared:
        _shared.append(ep.Runtime.from_text(config()))
    return _shared[0]


def run_python(code, **environment):
    """A process of its own, with the package on its path."""
    known = dict(os.environ, PYTHONPATH=os.pathsep.join([str(PACKAGE), str(PACKAGE / "tests")]), **{CHILD: "1"}, **environment)
    return subprocess.run([sys.executable, "-c", code], env=known, capture_output=True, text=True, timeout=120)


class Case(unittest.TestCase):
    """A test with a session on the CPU."""

    @classmethod
    def setUpClass(cls):
        cls.runtime = runtime()
        cls.session = cls.runtime.session("cpu")

    def assertClose(self, found, expected, within=1e-5):
        """Numbers in nested lists; tensors are read."""
        found = found.tolist() if isinstance(found, ep.Tensor) else found
        if isinstance(expected, (list, tuple)):
            self.assertEqual(len(found), len(expected), f"{found} is not {expected}")
            for f, e in zip(found, expected):
                self.assertClose(f, e, within)
        elif expected != expected:
            self.assertNotEqual(found, found)
        elif abs(expected) == float("inf"):
            self.assertEqual(found, expected)
        else:
            self.assertLessEqual(abs(found - expected), within, f"{found} is not {expected}")

    def refused(self, code, *parts):
        """A context in which the library refuses something, with a message that has these parts."""
        return _Refused(self, code, parts)


class _Refused:
    def __init__(self, case, code, parts):
        self.case, self.code, self.parts = case, code, parts

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.case.assertIsInstance(error, ep.Error, "nothing was refused" if error is None else repr(error))
        self.case.assertEqual(error.code, self.code, str(error))
        for part in self.parts:
            self.case.assertIn(part, error.message)
        return True

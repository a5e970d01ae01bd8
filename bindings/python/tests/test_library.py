"""Where the library is found, and whether its functions are declared as the header has them."""
import ctypes
import ctypes.util
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from support import PACKAGE, REPOSITORY, run_python

from ep import _library

USE = "import ep\ntry:\n ep.Runtime.from_text('', '/')\n print('works')\nexcept ep.LibraryError as e:\n print(e)"


class Found(unittest.TestCase):
    def test_a_named_library_is_used_and_nothing_else(self):
        library = os.environ["EP_HOST_LIBRARY"]
        self.assertIn("works", run_python(USE, EP_HOST_LIBRARY=library).stdout)
        told = run_python(USE, EP_HOST_LIBRARY="/nowhere/else.so", LD_LIBRARY_PATH=str(Path(library).parent)).stdout
        for part in ("EP_HOST_LIBRARY: /nowhere/else.so", "cargo build --release -p ep-host"):
            self.assertIn(part, told)

    def test_without_a_name_it_is_beside_the_package_or_where_the_loader_looks(self):
        library = os.environ["EP_HOST_LIBRARY"]
        told = run_python(USE, EP_HOST_LIBRARY="").stdout
        for part in ("beside the package: ", "the loader's search: ", "cargo build --release -p ep-host"):
            self.assertIn(part, told)
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(library, Path(folder, "libep_host.so"))
            self.assertIn("works", run_python(USE, EP_HOST_LIBRARY="", LD_LIBRARY_PATH=folder).stdout)
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(PACKAGE / "ep", Path(folder, "ep"))
            shutil.copy(library, Path(folder, "ep/libep_host.so"))
            code = f"import sys\nsys.path.insert(0, {folder!r})\n{USE}"
            self.assertIn("works", run_python(code, EP_HOST_LIBRARY="").stdout)

    def test_importing_needs_no_library(self):
        self.assertEqual(run_python("import ep\nprint(len(ep.NAMES) > 40)", EP_HOST_LIBRARY="/nowhere").stdout, "True\n")

    def test_another_library_is_refused(self):
        told = run_python(USE, EP_HOST_LIBRARY=ctypes.util.find_library("m") or "libm.so.6").stdout
        self.assertIn("has no function ep_text_free", told)

    def test_another_version_is_refused(self):
        for version in ("0.2.0", "1.1.0", "0.10.0", "0"):
            with self.assertRaisesRegex(_library.LibraryError, f"x.so is version {version}, and this package is 0.1.0"):
                _library._check_version(version, "x.so")
        _library._check_version("0.1.7", "x.so")

    def test_the_versions_of_the_package_are_one(self):
        self.assertIn(f'version = "{_library.VERSION}"', (PACKAGE / "pyproject.toml").read_text())
        self.assertEqual(_library.library().ep_host_version().decode(), _library.VERSION)


class Declared(unittest.TestCase):
    def test_functions_are_as_in_the_header(self):
        header = (REPOSITORY / "bindings/c/include/ep_host.h").read_text()
        header = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
        found = {}
        for result, name, arguments in re.findall(r"^((?:const )?\w+ \*?)(ep_\w+)\(([^)]*)\);", header, re.M):
            arguments = [] if arguments.strip() == "void" else [re.sub(r"\s*\w+$", "", a.strip()) for a in arguments.split(",")]
            found[name] = (result.strip(), arguments)
        self.assertGreater(len(found), 35)
        status = "const EpStatus *"
        results = {"void": None, "const char *": ctypes.c_char_p, "size_t": ctypes.c_size_t,
                   "uint64_t": ctypes.c_uint64, "const int64_t *": ctypes.POINTER(ctypes.c_int64)}
        plain = {"const char *": ctypes.c_char_p, "size_t": ctypes.c_size_t, "uint64_t": ctypes.c_uint64,
                 "const int64_t *": ctypes.POINTER(ctypes.c_int64), "const char *const *": ctypes.POINTER(ctypes.c_char_p),
                 "uint64_t *": ctypes.POINTER(ctypes.c_uint64), "size_t *": ctypes.POINTER(ctypes.c_size_t)}
        for name, (result, arguments) in _library._FUNCTIONS.items():
            self.assertIn(name, found)
            if found[name][0] == status:
                self.assertIn(result, (_library._STATUS, _library._UNCHECKED), name)
            else:
                self.assertIs(result, results[found[name][0]], name)
            self.assertEqual(len(arguments), len(found[name][1]), name)
            for ours, theirs in zip(arguments, found[name][1]):
                pointers = theirs.count("*")
                expected = plain.get(theirs) or (ctypes.c_void_p if pointers == 1 else ctypes.POINTER(ctypes.c_void_p))
                if pointers and result is _library._UNCHECKED:
                    # Any pointer, for the sake of time; `Session.run` and `run_in_place` make what is given.
                    expected = ctypes.c_void_p
                self.assertIs(ours, expected, f"{name}: {theirs}")

    def test_codes_are_as_in_the_header(self):
        header = (REPOSITORY / "ep-core/include/ep_plugin.h").read_text()
        found = {int(n): name for name, n in re.findall(r"#define EP_CODE_(\w+) INT32_C\((\d+)\)", header)}
        self.assertEqual(len(found), len(_library.CODES) - 1)
        for n, name in found.items():
            self.assertEqual(_library.CODES[n].lower(), name.replace("_", "").lower())

    def test_the_struct_of_a_status_is_as_in_the_header(self):
        source = """#include "ep_plugin.h"
#include <stdio.h>
int main(void) { printf("%zu %zu %zu %zu %zu\\n", sizeof(EpStatus), offsetof(EpStatus, code), offsetof(EpStatus, message),
                        offsetof(EpStatus, release), offsetof(EpStr, len)); }"""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "a.c").write_text(source)
            include = REPOSITORY / "ep-core/include"
            subprocess.run(["cc", "-std=c11", "-DEP_NO_SCHEMAS", f"-I{include}", "-o", f"{folder}/a", f"{folder}/a.c"], check=True)
            numbers = subprocess.run([f"{folder}/a"], capture_output=True, text=True, check=True).stdout.split()
        ours = _library._Status
        self.assertEqual(
            list(map(int, numbers)),
            [ctypes.sizeof(ours), ours.code.offset, ours.message.offset, ours.release.offset, _library._Text.len.offset])


if __name__ == "__main__":
    unittest.main()

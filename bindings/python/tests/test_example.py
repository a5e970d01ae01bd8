"""The examples do what they say."""
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support import PACKAGE, config, run_python


class Examples(unittest.TestCase):
    def test_digits_are_classified_on_every_device(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "ep.toml")
            file.write_text(config(cpu="", sim="max_delay_us = \"0\""))
            environment = dict(os.environ, PYTHONPATH=str(PACKAGE))
            command = [sys.executable, PACKAGE / "examples/classify.py", file]
            found = subprocess.run([*command], env=environment, capture_output=True, text=True, timeout=120)
            self.assertEqual(found.returncode, 0, found.stderr)
            lines = found.stdout.splitlines()
            self.assertEqual([line.split(":")[0] for line in lines], ["cpu", "sim", "sim"])
            for line in lines:
                self.assertRegex(line, r"^\w+:\d: 528 of 540 right, largest difference \d\.\de-0[6-9], \d+ images/s$")
            found = subprocess.run([*command, "--device", "npu"], env=environment, capture_output=True, text=True, timeout=120)
            self.assertEqual(found.returncode, 1)
            self.assertIn("NotFound", found.stderr)

    def test_snippets_of_the_readme_run(self):
        snippets = re.findall(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text(), re.S)
        self.assertGreaterEqual(len(snippets), 2)
        for snippet in snippets:
            if "import torch" in snippet:
                continue  # PyTorch is no part of the tests.
            if "numpy" in snippet and run_python("import numpy").returncode:
                continue
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "ep.toml").write_text(config(cpu=""))
                expected = "".join(f"{line.split('  # ')[1]}\n" for line in snippet.splitlines() if line.startswith("print("))
                found = run_python(f"import os\nos.chdir({folder!r})\n{snippet}")
                self.assertEqual((found.returncode, found.stdout), (0, expected), f"{snippet}\n{found.stderr}")


if __name__ == "__main__":
    unittest.main()

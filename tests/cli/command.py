# command.py: runs the project's programs for the tests under cli/ and checks how they end. Standard library only.
# Meson gives the paths: EVO_TEST_EVO, EVO_TEST_COEVOLUTION, EVO_TEST_DATA; the device comes from EVO_TEST_DEVICE.
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

DEVICE = os.environ.get("EVO_TEST_DEVICE") or "cpu"
DATA = os.environ.get("EVO_TEST_DATA", os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.path.join(DATA, "golden")
SCALE = int(os.environ.get("EVO_TEST_SCALE") or "1")
SKIPPED = 77


def program(variable):
    """The path of a program from the environment; ends with status 77 if there is none."""
    path = os.environ.get(variable)
    if not path or not os.path.exists(path):
        print(f"skipped: {variable} names no program", file=sys.stderr)
        sys.exit(SKIPPED)
    return path


class CommandTest(unittest.TestCase):
    """A temporary folder to run in, and runs that must end in a way that is expected."""

    path = None  # of the program

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def file(self, name, content=b""):
        """Writes a file into the folder and gives its path."""
        path = os.path.join(self.folder, name)
        with open(path, "wb") as out:
            out.write(content.encode() if isinstance(content, str) else content)
        return path

    def run_program(self, *arguments, status=0, timeout=120, **more):
        done = subprocess.run([self.path, *arguments], cwd=self.folder, stdin=subprocess.DEVNULL, timeout=timeout,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        self.assertEqual(done.returncode, status, f"\n{' '.join(arguments)}\nstdout: {out}\nstderr: {err}")
        return out, err

    def refused(self, *arguments, status=1, parts=(), **more):
        """The run fails with one line on stderr that has every part."""
        _, err = self.run_program(*arguments, status=status, **more)
        lines = [line for line in err.rstrip("\n").split("\n")
                 if "AddressSanitizer failed to allocate" not in line]  # said by the sanitizer of a malloc that gives NULL
        self.assertTrue(err.strip(), f"no message for {arguments}")
        if status == 1:
            self.assertEqual(len(lines), 1, f"more than one line for {arguments}:\n{err}")
        self.assertTrue(all(c.isprintable() for line in lines for c in line), repr(err))
        for part in parts:
            self.assertIn(part, err)
        return err


def device_missing():
    """Whether evo info knows that the device under test is not there; without evo, the tests will see."""
    evo = os.environ.get("EVO_TEST_EVO")
    if DEVICE == "auto" or not evo or not os.path.exists(evo):
        return False
    info = json.loads(subprocess.run([evo, "info", "--json"], stdout=subprocess.PIPE, check=True).stdout)
    return not any(name in (DEVICE, DEVICE + ":0") for name in (device["name"] for device in info["devices"]))


def main():
    if device_missing():
        print(f"skipped: no device {DEVICE}", file=sys.stderr)
        sys.exit(SKIPPED)
    unittest.main(verbosity=1)

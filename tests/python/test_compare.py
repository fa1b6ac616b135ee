"""bench/compare.py: it runs on one processor, and refuses wrong arguments in words."""
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
from evoformer import _library  # noqa: E402

COMPARE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "compare.py")


def compare(*arguments, library=None, status=0):
    done = subprocess.run([sys.executable, COMPARE, library or _library.path(), "--device", "cpu", *arguments],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=120)
    assert done.returncode == status, done.stderr
    return done


def test_one_processor():
    """The default is 1 and all processors, which are 1 and 1 there."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        done = compare("--shapes", "trimul:1,4,8,8", "--min-time", "1", "--no-rivals", "--no-error")
    finally:
        os.sched_setaffinity(0, before)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["threads"] for row in rows] == [1] * 4


@pytest.mark.parametrize("arguments", [("--device", "toaster"), ("--threads", "0"), ("--threads", "many"),
                                       ("--shape-file", "nowhere.txt")])
def test_wrong_arguments(arguments):
    done = compare(*arguments, status=2)
    assert arguments[-1] in done.stderr and "Traceback" not in done.stderr


def test_no_library():
    done = compare("--threads", "1", library="nowhere.so", status=1)
    assert "compare.py: " in done.stderr and "nowhere.so" in done.stderr and "Traceback" not in done.stderr

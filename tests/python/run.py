"""run.py MODULE PYTEST-ARGUMENT...: the tests of the Python package on a library that Meson built.

Exits with 77, skipped, if MODULE (numpy or torch) is not installed.
"""
import importlib.util
import sys

if importlib.util.find_spec(sys.argv[1]) is None:
    print(f"skipped: {sys.argv[1]} is not installed")
    sys.exit(77)
import pytest  # noqa: E402

sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]]))

"""runtimes.py: two OpenMP runtimes in one process. A program that brings the OpenMP of gcc (libgomp) and one that brings that of
clang (libomp), which the library of this build was not made with or was, each linked with the library and with a plugin that
loads it. Both must compute the same as ever, beside parallel loops of their own. A compiler that is not there is left
out; at least one other than the library's must be there, or the test is skipped.

usage: runtimes.py BUILD SOURCE PLUGIN"""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77


def runtimes(program):
    """The OpenMP runtimes that a program would be started with."""
    text = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    return sorted({name.split(".so")[0] for name in text.split() if name.startswith(("libgomp", "libomp"))})


def main(build, source, plugin):
    found = [c for c in ("gcc", "clang-19", "clang") if shutil.which(c)]
    seen = set()
    with tempfile.TemporaryDirectory() as folder:
        for compiler in found:
            program = f"{folder}/{compiler}"
            done = subprocess.run(
                [compiler, "-std=c11", "-D_POSIX_C_SOURCE=200809L", "-fopenmp", f"-I{source}/include",
                 f"-I{source}/tests/inject", f"{source}/tests/process/test_copies.c", f"{source}/tests/inject/life.c",
                 "-DONE_COPY", "-o", program, f"-L{build}/src", "-levoformer", f"-Wl,-rpath,{build}/src", "-ldl", "-lm"],
                check=False, capture_output=True, text=True)
            if done.returncode:
                print(f"{compiler}: no OpenMP here: {done.stderr}")
                continue
            ran = subprocess.run([program, plugin], check=False, capture_output=True, text=True, timeout=100)
            print(compiler, runtimes(program), ran.stdout + ran.stderr)
            if ran.returncode:
                return 1
            seen.update(runtimes(program))
    return 0 if len(seen) > 1 else SKIPPED


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

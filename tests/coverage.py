#!/usr/bin/env python3
"""Lines that tests have run, by group, in builds with -Db_coverage=true. Fails if a group is below its least.

    coverage.py BUILD... [--least 90] [--missing]

Every line that compiles counts, those of errors too: nothing is left out by a pattern or a comment. --missing lists the lines of
each file that no test has run.
"""
import argparse
import fnmatch
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GROUPS = {"src": ["src/*"], "backends/cpu": ["backends/cpu/*"], "backends/gpu, host code": ["backends/gpu/*.[ch]"],
          "readers": ["tools/io/*", "examples/alignment.c"]}
SOURCES = ["src", "backends", "tools", "examples"]
SIMULATED = "libevoformer-checked.a.p"  # the library, as the suite `simulated` has it
KERNELS = "backends/gpu/kernels/*"  # compiled for devices, real or simulated


def group_of(name):
    if fnmatch.fnmatch(name, KERNELS):
        return None
    return next((group for group, globs in GROUPS.items() if any(fnmatch.fnmatch(name, glob) for glob in globs)), None)


def ranges(numbers):
    """1, 2, 3, 7 as 1-3 7."""
    found = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return " ".join(f"{first}-{last}" if first != last else str(first) for first, last in found)


def merged(builds):
    """{file: {line: count}}. gcovr 5.2 refuses a file whose compilations disagree where a function is: one folder at a time."""
    folders = sorted({path.parent for build in builds for path in build.rglob("*.gcda")
                      if path.relative_to(build).parts[0] in SOURCES or path.parent.name == SIMULATED})
    files = {}
    for folder in folders:
        run = subprocess.run(["gcovr", "--root", ROOT, "--json", "-", "-j", "2", *(f"--filter={ROOT}/{part}/" for part in SOURCES),
                              folder], capture_output=True, text=True)
        if run.returncode:
            sys.exit(f"gcovr on {folder}: {run.stderr}")
        for file in json.loads(run.stdout)["files"]:
            lines = files.setdefault(file["file"], {}) if group_of(file["file"]) else {}
            for line in file["lines"]:
                if not line.get("gcovr/noncode"):
                    lines[line["line_number"]] = lines.get(line["line_number"], 0) + line["count"]
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("builds", type=Path, nargs="+")
    parser.add_argument("--least", type=float, default=90)
    parser.add_argument("--missing", action="store_true")
    options = parser.parse_args()
    files = merged(options.builds)
    sums = {group: [0, 0] for group in GROUPS}
    print(f"{'lines':>7} {'run':>7} {'%':>6}")
    for name in sorted(files, key=lambda name: (list(GROUPS).index(group_of(name)), name)):
        lines = files[name]
        missing = sorted(number for number, count in lines.items() if not count)
        for at, more in enumerate((len(lines), len(lines) - len(missing))):
            sums[group_of(name)][at] += more
        if lines:
            print(f"{len(lines):7} {len(lines) - len(missing):7} {100 * (1 - len(missing) / len(lines)):6.1f}  {name}")
        if missing and options.missing:
            print(f"{'':23}{ranges(missing)}")
    print("groups:")
    good = True
    for group, (lines, done) in sums.items():
        part = 100 * done / lines if lines else 0.0
        good &= part >= options.least
        print(f"{lines:7} {done:7} {part:6.1f}  {group}" + ("" if part >= options.least else f": below {options.least:g} %"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

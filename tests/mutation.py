#!/usr/bin/env python3
"""Flips one comparison, operator or constant at a time in src/ops and the reference kernels, and asks whether a test notices.

    tests/mutation.py WORK [--seconds 1800] [--jobs 1] [--seed 1] [--files GLOB...] [--again]

WORK is a folder outside of the repository's checkout (or ignored by it): the tree is copied there and built once for each job, as
a shared library; a mutant is one file compiled and that library linked again. The tests run in the order of TESTS, fastest first, until
one fails. Mutants are taken in a random order that the seed fixes until the time is over; each leaves a line in
WORK/mutants.jsonl, and a run with the same WORK goes on where the last one stopped. At the end: counts, and every survivor.
"""
import argparse
import fnmatch
import json
import os
import queue
import random
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = ["src/ops/opm.c", "src/ops/trimul.c", "backends/cpu/reference.c", "backends/cpu/opm_reference.c",
         "backends/cpu/trimul_reference.c"]
TESTS = {"opm": ["plans", "overflow", "refusals", "guards", "properties", "opm", "golden"],
         "trimul": ["plans", "overflow", "refusals", "guards", "properties", "trimul", "golden"]}
CPU_SECONDS = 60  # a loop that does not end

SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "+": "-", "-": "+",
         "*": "/", "/": "*", "%": "/", "+=": "-=", "*=": "/=", "/=": "*=", "|=": "&=", "&": "|", "|": "&"}
# Operators with a space on both sides (so that no pointer or sign is one), numbers, and negations.
TOKENS = re.compile(r"(?<= )(<=|>=|==|!=|&&|\|\||\+=|\*=|/=|\|=|[-+*/%<>&|])(?= )|(?<![\w.])(\d+\.\d+|\d+)(?![\w.])|(!)(?=[\w(])")
HIDDEN = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\])*"|^\s*#[^\n]*', re.DOTALL | re.MULTILINE)


def replacement(match):
    operator, number, negation = match.groups()
    if operator:
        return SWAPS[operator]
    if negation:
        return ""
    return {"0": "1", "1": "2", "0.0": "1.0", "1.0": "2.0"}.get(number) or \
        (str(float(number) * 2) if "." in number else str(int(number) + 1))


def mutants(name, text):
    """(file, offset, old, new) of each; comments, strings and preprocessor lines have none."""
    visible = HIDDEN.sub(lambda hidden: re.sub(r"[^\n]", "_", hidden.group()), text)
    for match in TOKENS.finditer(visible):
        yield name, match.start(), match.group(), replacement(match)


def limit():
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))


def fails(program, environment):
    """Whether the test fails: its first failure ends it."""
    with subprocess.Popen([program], env=environment, preexec_fn=limit, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace") as process:
        for line in process.stdout:
            if "FAILED" in line or "ERROR" in line or "touched memory" in line:
                process.kill()
                return True
        return process.wait() != 0


class Bench:
    def __init__(self, work):
        self.tree, self.build = work / "tree", work / "build"
        if not self.tree.exists():
            listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
            for name in listed.split("\n")[:-1]:
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name)
            subprocess.run(["meson", "setup", self.build, self.tree, "-Dbuildtype=debugoptimized", "-Dexamples=false",
                            "-Ddefault_library=shared"], check=True, stdout=subprocess.DEVNULL)
        self.texts = {name: (ROOT / name).read_text() for name in FILES}
        for name, text in self.texts.items():
            (self.tree / name).write_text(text)
        targets = subprocess.run(["ninja", "-C", self.build, "-t", "targets", "all"], check=True, capture_output=True,
                                 text=True).stdout.split("\n")
        self.library = next(t.split(":")[0] for t in targets if t.startswith("src/libevoformer.so") and "LINKER" in t)
        assert self.make(self.library, *(f"tests/test_{name}" for name in sorted({t for ts in TESTS.values() for t in ts}))), \
            "the tree does not build"
        self.environment = dict(os.environ, EVO_TEST_DATA=str(self.tree / "tests"), EVO_TEST_SCALE="10",
                                OMP_WAIT_POLICY="passive", EVO_TEST_DEVICE="cpu")

        assert not any(fails(self.build / "tests" / f"test_{test}", self.environment) for test in {*TESTS["opm"], *TESTS["trimul"]}), \
            "the tests fail without a mutation"

    def make(self, *targets):
        return subprocess.run(["ninja", "-C", self.build, *targets], stdout=subprocess.DEVNULL).returncode == 0

    def judge(self, name, offset, old, new):
        """The test that noticed, "compiler", or None."""
        text = self.texts[name]
        (self.tree / name).write_text(text[:offset] + new + text[offset + len(old):])
        try:
            if not self.make(self.library):
                return "compiler"
            tests = TESTS["opm" if "opm" in name else "trimul"]
            if "opm" not in name and "trimul" not in name:
                tests = tests + ["opm"]
            return next((test for test in tests if fails(self.build / "tests" / f"test_{test}", self.environment)), None)
        finally:
            (self.tree / name).write_text(text)


def describe(record, texts):
    text = texts[record["file"]]
    line = text.count("\n", 0, record["offset"]) + 1
    source = text.split("\n")[line - 1].strip()
    return f"{record['file']}:{line}: {record['old']} -> {record['new'] or 'nothing'}    {source}"


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--files", nargs="*", default=["*"])
    parser.add_argument("--again", action="store_true", help="the survivors of earlier runs only, with the tests as they are now")
    return parser.parse_args()


class Run:
    """All mutants, those still to be tried, and what became of the others: a line each in WORK/mutants.jsonl."""

    def __init__(self, options):
        self.work = options.work.resolve()
        self.end = time.monotonic() + options.seconds
        self.texts = {name: (ROOT / name).read_text() for name in FILES}
        self.results = options.work / "mutants.jsonl"
        self.records, self.failures, self.lock = {}, [], threading.Lock()
        for line in self.results.read_text().split("\n")[:-1] if self.results.exists() else []:
            record = json.loads(line)
            self.records[record["file"], record["offset"]] = record
        todo = [mutant for name in FILES if any(fnmatch.fnmatch(name, glob) for glob in options.files)
                for mutant in mutants(name, self.texts[name])]
        self.total = len(todo)
        random.Random(options.seed).shuffle(todo)
        self.waiting = queue.SimpleQueue()
        for mutant in todo:
            known = self.records.get(mutant[:2])
            if bool(known) == options.again and not (known and known["noticed"]):
                self.waiting.put(mutant)

    def try_one(self, bench, mutant):
        began = time.monotonic()
        record = dict(zip(("file", "offset", "old", "new"), mutant), noticed=bench.judge(*mutant))
        with self.lock, open(self.results, "a", encoding="utf-8") as file:
            self.records[mutant[:2]] = record
            file.write(json.dumps(record) + "\n")
            print(f"{len(self.records)}/{self.total} {record['noticed'] or 'SURVIVES'} {time.monotonic() - began:.1f} s  "
                  f"{describe(record, self.texts)}", flush=True)

    def work_on(self, job):
        """One thread's: until the time or the mutants are over."""
        try:
            bench = Bench(self.work / str(job))
            while time.monotonic() < self.end:
                self.try_one(bench, self.waiting.get_nowait())
        except queue.Empty:
            pass
        except Exception as failure:  # else it would end only this thread, and the run would pass
            self.failures.append(failure)

    def report(self, seed):
        judged = [record for record in self.records.values() if record["noticed"] != "compiler"]
        alive = [record for record in judged if not record["noticed"]]
        print(f"{self.total} mutants, {len(self.records)} tried (seed {seed}), {len(self.records) - len(judged)} did not compile, "
              f"{len(judged) - len(alive)} noticed, {len(alive)} survive")
        for record in alive:
            print(describe(record, self.texts))


def main():
    options = parse()
    run = Run(options)
    jobs = [threading.Thread(target=run.work_on, args=(job,)) for job in range(options.jobs)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    if run.failures:
        raise run.failures[0]
    run.report(options.seed)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Runs a test program on the CPU once for each instruction set that this machine has, forced by EVO_CPU_ISA.

usage: isas.py CROSS PROGRAM

CROSS lists the sets, best first (tests/cross.c); the best one is what the program takes unforced, in a test of its own.
Random cases are a quarter of the usual.
"""
import os
import subprocess
import sys

cross, program = sys.argv[1:]
sets = subprocess.run([cross, "list"], check=True, capture_output=True, text=True).stdout.split()
assert sets and sets[-1] == "baseline", f"no instruction sets: {sets}"
scale = 4 * max(1, int(os.environ.get("EVO_TEST_SCALE", "1")))
failed = []
for name in sets[1:]:
    print(f"== {name}", flush=True)
    environment = dict(os.environ, EVO_CPU_ISA=name, EVO_TEST_DEVICE="cpu", EVO_TEST_SCALE=str(scale))
    if subprocess.run([program], env=environment).returncode != 0:
        failed.append(name)
print(f"default {sets[0]}, forced {sets[1:]}, failed {failed}")
sys.exit(bool(failed))

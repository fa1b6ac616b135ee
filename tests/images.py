#!/usr/bin/env python3
"""The compiled kernels of a build with both GPU backends, checked without a GPU.

images.py BUILD SOURCE: `evo info` without a driver, the resource tables and what makes them fail, the images that a touched
header makes stale, and the golden files on the simulated devices in the place of the drivers. Meson runs it (suite images).
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BUILD, SOURCE = Path(sys.argv[1]), Path(sys.argv[2])
KERNELS = SOURCE / "backends" / "gpu" / "kernels"
EVO = BUILD / "tools" / "evo"
ABSENT = {"EVO_CUDA_LIBRARY": "/nonexistent/libcuda.so.1", "EVO_HIP_LIBRARY": "/nonexistent/libamdhip64.so.6"}


def run(*command, **environment):
    return subprocess.run([str(word) for word in command], env={**os.environ, **environment}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def option(name):
    options = json.loads((BUILD / "meson-info" / "intro-buildoptions.json").read_text(encoding="utf-8"))
    return next(o["value"] for o in options if o["name"] == name)


ARCHS = {"cuda": option("nvidia_archs"), "hip": option("amd_archs")}


def units():
    """Kernel sources by their path under kernels/, without the suffix."""
    return sorted(str(path.relative_to(KERNELS))[:-3] for path in KERNELS.rglob("*.cu"))


def images():
    """What was compiled, as (unit with _ for /, arch)."""
    return {tuple(path.name.split(".")[:2]) for vendor in ARCHS for kind in ("cubin", "ptx", "hsaco")
            for path in (BUILD / "backends" / vendor).glob(f"*.{kind}")}


def table(vendor):
    lines = (BUILD / "backends" / vendor / f"{vendor}-resources.txt").read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines[1:]]


class Images(unittest.TestCase):
    def test_info_without_a_driver(self):
        done = run(EVO, "info", **ABSENT)
        self.assertEqual(done.returncode, 0, done.stdout)
        for vendor, archs in ARCHS.items():
            line = next(line for line in done.stdout.splitlines() if line.startswith(f"backend {vendor}:"))
            self.assertIn(ABSENT[f"EVO_{vendor.upper()}_LIBRARY"], line)
            self.assertEqual(line.split("kernels for ")[1].split(), archs)

    def test_every_kernel_is_in_the_table(self):
        text = "".join((KERNELS / f"{unit}.cu").read_text(encoding="utf-8") for unit in units())
        kernels = set(re.findall(r"^EVO_KERNEL\((\w+)", text, re.M))
        rows = [(row[0], row[1]) for vendor in ARCHS for row in table(vendor)]
        self.assertLessEqual(kernels, {name for name, _ in rows})
        self.assertEqual({arch for _, arch in rows},
                         {arch for _, arch in images() if not arch.startswith("compute")})  # PTX has no registers yet

    def test_an_unlisted_spill_fails(self):
        for vendor, said, spilled in (("cuda", "0 bytes spill stores", "8 bytes spill stores"),
                                      ("hip", "VGPRs Spill: 0", "VGPRs Spill: 8")):
            arch = next(a for a in ARCHS[vendor] if not a.startswith("compute"))
            log = next((BUILD / "backends" / vendor).glob(f"pack.{arch}.*.log"))
            spills = SOURCE / "backends" / "gpu" / "spills.txt"
            with tempfile.TemporaryDirectory() as folder:
                made, out, listed = Path(folder) / "pack", Path(folder) / "table", Path(folder) / "spills"
                text = log.read_text(encoding="utf-8")
                self.assertIn(said, text)
                Path(f"{made}.log").write_text(text.replace(said, spilled, 1), encoding="utf-8")
                command = [sys.executable, SOURCE / "backends" / "gpu" / "resources.py", out]
                done = run(*command, spills, f"{arch}:{made}")
                self.assertEqual(done.returncode, 1, done.stdout)
                self.assertIn(f"spills on {arch} (8)", done.stdout)
                name = done.stdout.split()[0]
                listed.write_text(f"{name} {arch} a reason\n", encoding="utf-8")
                self.assertEqual(run(*command, listed, f"{arch}:{made}").returncode, 0)
                Path(f"{made}.log").write_text(text, encoding="utf-8")
                self.assertIn("does not spill", run(*command, listed, f"{arch}:{made}").stdout)

    def stale(self, header):
        """The images, as (unit, arch), that ninja would make again were this file touched."""
        before = header.stat()
        try:
            os.utime(header)
            done = run("ninja", "-C", BUILD, "-n", "-v")
        finally:
            os.utime(header, ns=(before.st_atime_ns, before.st_mtime_ns))
        self.assertEqual(done.returncode, 0, done.stdout)
        return set(re.findall(r"compile\.py \S*?backends/\w+/(\w+)\.(\w+)\.(?:cubin|ptx|hsaco)", done.stdout))

    def test_a_header_makes_its_images_stale(self):
        self.assertEqual(self.stale(SOURCE / "README.md"), set(), "up to date before")
        for header, units_of in (("params.h", units()), ("opm/output.h", ["opm/outer", "opm/weight_first"]),
                                 ("trimul/params.h", [u for u in units() if "trimul/params.h" in self.included(u)])):
            want = {image for image in images() if image[0] in {unit.replace("/", "_") for unit in units_of}}
            found = self.stale(KERNELS / header)
            self.assertLessEqual(want, found, header)
            if header != "params.h":
                self.assertFalse({unit for unit, _ in found} & {"pack", "opm_project"}, header)

    def included(self, unit):
        return (KERNELS / f"{unit}.cu").read_text(encoding="utf-8")

    def test_waves_are_known_without_a_macro(self):
        """Newer compilers may lack __AMDGCN_WAVEFRONT_SIZE__."""
        for arch in ARCHS["hip"]:
            made = run("ninja", "-C", BUILD, "-t", "commands", f"backends/hip/pack.{arch}.hsaco").stdout.splitlines()[-1]
            compiler = made.split("compile.py")[1].split(" -Rpass")[0].split()[1:]
            with tempfile.TemporaryDirectory() as folder:
                source = Path(folder) / "wave.cu"
                source.write_text('#include "backends/gpu/device.h"\n'
                                  f'static_assert(WAVE == {64 if arch.startswith("gfx9") else 32}, "");\n', encoding="utf-8")
                done = run(*compiler, "-U__AMDGCN_WAVEFRONT_SIZE__", f"-I{SOURCE}", "-fsyntax-only", source)
            self.assertEqual(done.returncode, 0, f"{arch}: {done.stdout}")

    def test_golden_files_on_simulated_devices(self):
        for vendor, archs in (("cuda", ["sm_80"]), ("hip", ["gfx942", "gfx1100"])):
            library = BUILD / "tests" / "simulated" / f"libsim{vendor}.so"
            for arch in archs:
                environment = {**ABSENT, f"EVO_{vendor.upper()}_LIBRARY": str(library), "EVO_SIMULATED_ARCH": arch}
                done = run(EVO, "check", "--golden", SOURCE / "tests" / "golden", "--device", f"{vendor}:0",
                           **environment)
                self.assertEqual(done.returncode, 0, done.stdout)
                passed, failed, skipped = map(int, re.search(r"(\d+) passed, (\d+) failed, (\d+) skipped",
                                                             done.stdout).groups())
                files = len(list((SOURCE / "tests" / "golden").glob("*.safetensors")))
                self.assertEqual((passed, failed, skipped), (files, 0, 0), done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)

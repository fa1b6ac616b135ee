# test_bench.py: evo bench: rows and their figures, shapes from texts and files, candidates, ceilings, mistakes.
import json
import os
import pty
import re
import subprocess

import command

FIELDS = ("op shape dtype compute device kernel ms ms_min ms_q1 ms_q3 ms_max runs executions tflops gbps floor_ms times_floor "
          "ceiling_gbps ceiling_tflops computes workspace state chosen fastest description arch build").split()
OPM, TRIMUL = "1,5,6,8,4,8", "1,7,8,4"
QUICK = ["--cache", "64K", "--min-time", "1"]
FAKE_BLAS = os.environ.get("EVO_TEST_FAKE_BLAS")


class BenchTest(command.CommandTest):
    path = command.program("EVO_TEST_EVO")

    def setUp(self):
        super().setUp()
        self.environment = {key: value for key, value in os.environ.items() if not key.endswith("BLAS_LIBRARY")}
        for name in ("EVO_CBLAS_LIBRARY", "EVO_CUBLASLT_LIBRARY", "EVO_HIPBLASLT_LIBRARY"):
            self.environment[name] = FAKE_BLAS or os.devnull

    def bench(self, *arguments, ceilings="none", status=0, **more):
        ceilings = ["--ceilings", ceilings] if ceilings else []
        more.setdefault("env", self.environment)
        return self.run_program("bench", *arguments, *QUICK, *ceilings, "--device", command.DEVICE, status=status, **more)

    def rows(self, *arguments, **more):
        out, err = self.bench(*arguments, "--json", **more)
        self.assertEqual(err, "")  # no progress into a pipe
        return [json.loads(line) for line in out.splitlines()]

    def row(self, *arguments, **more):
        rows = self.rows(*arguments, **more)
        self.assertEqual(len(rows), 1)
        return rows[0]

    def info(self):
        info = json.loads(self.run_program("info", "--json")[0])
        name = command.DEVICE if ":" in command.DEVICE or command.DEVICE == "cpu" else command.DEVICE + ":0"
        return next((device for device in info["devices"] if device["name"] == name), info["devices"][0])


class TestRows(BenchTest):
    def test_fields(self):
        for op, shape in (("opm", OPM), ("trimul", TRIMUL)):
            row = self.row(op, "--shape", shape)
            self.assertEqual([field for field in FIELDS if field not in row], [])
            self.assertEqual((row["op"], row["shape"], row["dtype"], row["compute"]), (op, shape, "fp32", "fp32"))
            self.assertTrue(0 < row["ms_min"] <= row["ms_q1"] <= row["ms"] <= row["ms_q3"] <= row["ms_max"], row)
            self.assertGreaterEqual(row["runs"], 5)
            self.assertTrue(1 <= row["executions"] <= 100)
            self.assertTrue(row["chosen"] and row["fastest"])
            self.assertIsNone(row["floor_ms"])
            self.assertIsNone(row["times_floor"])
            self.assertIn(row["kernel"], self.info()["kernels"][op])

    def test_figures(self):
        """Rates by the formulas of docs/ops.md, floors by the ceilings given."""
        b, s, n, m, c, z = 1, 5, 6, 8, 4, 8
        opm = 4 * b * s * n * m * c + min(2 * b * n * n * c * c * (s + z), 2 * b * s * n * c * c * z + 2 * b * n * n * s * c * z)
        opm_bytes = 4 * (s * n * (m + 1 + 4 * c) + n * n * z)
        n, z, c = 7, 8, 4
        trimul = 2 * n * n * (4 * c * z + n * c + c * z + z * z)
        trimul_bytes = 4 * n * n * (2 * z + 6 * c + 1 + z)
        for op, shape, flops, size in (("opm", OPM, opm, opm_bytes), ("trimul", TRIMUL, trimul, trimul_bytes)):
            for copy, rate in ((1e9, 1e-6), (1e-3, 1e9)):
                row = self.row(op, "--shape", shape, ceilings=f"copy={copy},fp32={rate}")
                self.assertAlmostEqual(row["tflops"] * row["ms"] * 1e9 / flops, 1, 4)
                self.assertAlmostEqual(row["gbps"] * row["ms"] * 1e6 / size, 1, 4)
                floor = max(flops / rate / 1e9, size / copy / 1e6)
                self.assertAlmostEqual(row["floor_ms"] / floor, 1, 4)
                self.assertAlmostEqual(row["times_floor"] * floor / row["ms"], 1, 4)

    def test_options_reach_the_plan(self):
        plain = self.row("trimul", "--shape", TRIMUL)
        size = lambda row: row["gbps"] * row["ms"] * 1e6
        self.assertEqual(plain["direction"], "outgoing")
        self.assertEqual(self.row("trimul", "--shape", TRIMUL, "--direction", "incoming")["direction"], "incoming")
        self.assertEqual([row["direction"] for row in self.rows("trimul", "--shape", TRIMUL, "--direction", "both")],
                         ["outgoing", "incoming"])
        self.assertAlmostEqual(size(self.row("trimul", "--shape", TRIMUL, "--no-mask")) / (size(plain) - 4 * 49), 1, 4)
        self.assertAlmostEqual(size(self.row("trimul", "--shape", TRIMUL, "--residual")) / (size(plain) + 4 * 49 * 8), 1, 4)
        self.assertAlmostEqual(size(self.row("trimul", "--shape", TRIMUL, "--dtype", "bf16")) / (size(plain) / 2), 1, 4)
        for arguments in (["--variant", "boltz"], ["--biases", "none"], ["--biases", "a_proj,out"], ["--cold"], ["--burst"]):
            row = self.row("trimul", "--shape", TRIMUL, *arguments)
            self.assertEqual(row["state"], arguments[0][2:] if len(arguments) == 1 else "sustained")
        self.assertEqual(self.row("opm", "--shape", OPM, "--cold")["executions"], 1)
        row = self.row("opm", "--shape", OPM, "--dtype", "bf16")
        self.assertEqual((row["dtype"], row["compute"]), ("bf16", "bf16"))
        row = self.row("opm", "--shape", OPM, "--dtype", "bf16", "--compute", "fp32_strict")
        self.assertEqual((row["compute"], row["computes"]), ("fp32_strict", "fp32_strict"))
        limit = self.row("trimul", "--shape", "1,40,8,8")["workspace"]
        self.assertLess(self.row("trimul", "--shape", "1,40,8,8", "--workspace-limit", str(limit - 1))["workspace"], limit)

    def test_text(self):
        out, err = self.bench("trimul", "--shape", TRIMUL, ceilings="copy=10,fp32=1")
        self.assertEqual(err, "")
        self.assertIn("copy 10 GB/s\nfp32 product 1 TFLOP/s\n", out)
        header, row = out.splitlines()[-2:]
        self.assertEqual(header.split()[:4], ["op", "shape", "direction", "kernel"])
        self.assertEqual(row.split()[:3], ["trimul", TRIMUL, "outgoing"])
        self.assertEqual(len(row.split()), 13)
        self.assertIn(" -      -", self.bench("opm", "--shape", OPM)[0])

    def defaults(self):
        """Two shapes an op."""
        self.assertEqual([row["op"] for row in self.rows()], ["opm", "opm", "trimul", "trimul"])

    if command.SCALE == 1 and command.DEVICE == "cpu":  # tens of GFLOP: too much for a sanitizer or a simulated device
        test_defaults = defaults

    def test_progress_on_a_terminal(self):
        master, slave = pty.openpty()
        done = subprocess.run([self.path, "bench", "opm", "--shape", OPM, *QUICK, "--ceilings", "none", "--device",
                               command.DEVICE], stdout=subprocess.PIPE, stderr=slave, check=True)
        os.close(slave)
        shown = os.read(master, 4096).decode()
        os.close(master)
        self.assertIn("opm " + OPM, shown)
        self.assertNotIn("\x1b", done.stdout.decode())


class TestCandidates(BenchTest):
    def test_all_kernels(self):
        names = self.info()["kernels"]
        for op, shape in (("opm", OPM), ("trimul", TRIMUL)):
            # Names that leave an order to the plan stand for one that is listed too.
            wanted = {name for name in names[op] if name != "reference" and
                      not any(other.startswith(name + "/") for other in names[op])}
            rows = self.rows(op, "--shape", shape, "--all-kernels")
            self.assertEqual({row["kernel"] for row in rows}, wanted)
            self.assertEqual(len(rows), len(wanted))
            self.assertEqual([row.get("chosen", False) for row in rows], [True] + [False] * (len(rows) - 1))
            timed = [row for row in rows if "refused" not in row]
            self.assertEqual([row["kernel"] for row in timed if row["fastest"]],
                             [min(timed, key=lambda row: row["ms"])["kernel"]])
            out, _ = self.bench(op, "--shape", shape, "--all-kernels")
            self.assertRegex(out.splitlines()[-1], "planner('s choice| chose)")

    def test_refused_candidate(self):
        """A candidate that no plan takes is a row with its reason; if it is the only one, the run fails."""
        orders = [name for name in self.info()["kernels"]["opm"] if name.endswith("/weight-first")]
        shape = ["opm", "--shape", "1,1,6,8,4,8", "--dtype", "fp64"]
        if orders:
            rows = self.rows(*shape, "--kernel", orders[0], status=1)
            self.assertIsNone(rows[0]["ms"])
            self.assertIn(orders[0].split("/")[0], rows[0]["refused"])
        out, _ = self.bench("trimul", "--shape", TRIMUL, "--kernel", "warp", status=1)
        self.assertRegex(out, r"warp +refused: EVO_ERROR_UNSUPPORTED.*expected")
        _, err = self.bench("trimul", "--shape", TRIMUL, "--workspace-limit", "1", status=1)
        self.assertIn("at least", err)

    def test_forced(self):
        for name in self.info()["kernels"]["opm"]:
            row = self.row("opm", "--shape", OPM, "--kernel", name)
            self.assertTrue(row["kernel"] == name or row["kernel"].startswith(name + "/"))
            self.assertFalse(row["chosen"])

    def test_next_shape_follows_a_failure(self):
        huge = "1,2147483647,128,128"
        out, err = self.bench("trimul", "--shape", huge, "--shape", TRIMUL, "--json", status=1)
        self.assertIn(huge, err)
        self.assertEqual([json.loads(line)["shape"] for line in out.splitlines()], [TRIMUL])


class TestCeilings(BenchTest):
    def test_given(self):
        row = self.row("opm", "--shape", OPM, ceilings="copy=4222,bf16=680,fp32=50.5")
        self.assertEqual((row["ceiling_gbps"], row["ceiling_tflops"]), (4222, 50.5))
        row = self.row("opm", "--shape", OPM, "--compute", "fp32_strict", ceilings="copy=4222,fp32=50.5")
        self.assertEqual(row["ceiling_tflops"], 50.5)
        row = self.row("opm", "--shape", OPM, "--compute", "tf32", ceilings="copy=4222,fp32=50.5")
        self.assertEqual((row["ceiling_gbps"], row["ceiling_tflops"], row["floor_ms"]), (4222, None, None))
        row = self.row("opm", "--shape", OPM, ceilings="fp32=50.5")
        self.assertEqual((row["ceiling_gbps"], row["floor_ms"]), (None, None))

    def test_measured(self):
        if not FAKE_BLAS:
            self.skipTest("no stand-in for a library")
        computes = ["fp32"] if command.DEVICE == "cpu" else ["fp32", "tf32", "bf16", "fp16"]
        for compute in computes:
            row = self.row("opm", "--shape", OPM, "--compute", compute, ceilings=None)
            self.assertGreater(row["ceiling_gbps"], 0)
            self.assertGreater(row["ceiling_tflops"], 0)
            self.assertGreater(row["floor_ms"], 0)
        out, _ = self.bench("opm", "--shape", OPM, ceilings=None)
        self.assertRegex(out, r"\nfp32 product \S+ TFLOP/s, by " + re.escape(os.path.basename(FAKE_BLAS)))
        if command.DEVICE == "cpu":
            row = self.row("trimul", "--shape", TRIMUL, "--dtype", "fp64", "--kernel", "reference", ceilings=None)
            self.assertGreater(row["floor_ms"], 0)
            out, _ = self.bench("opm", "--shape", OPM, "--compute", "bf16", ceilings=None)
            self.assertRegex(out, "no floor: .*no product in this mode")
            row = self.row("opm", "--shape", OPM, "--compute", "bf16", ceilings=None)
            self.assertIsNone(row["floor_ms"])
            self.assertGreater(row["ceiling_gbps"], 0)

    def test_no_library(self):
        variables = {name: "/nowhere/lib.so" for name in self.environment if name.endswith(("BLAS_LIBRARY", "BLASLT_LIBRARY"))}
        environment = {**self.environment, **variables}
        row = self.row("opm", "--shape", OPM, ceilings=None, env=environment)
        self.assertIsNone(row["floor_ms"])
        out, _ = self.bench("opm", "--shape", OPM, ceilings=None, env=environment)
        self.assertRegex(out, r"no floor: EVO_\w+_LIBRARY is \"/nowhere/lib.so\"")
        library = self.file("empty.so", "no library")
        out, _ = self.bench("opm", "--shape", OPM, ceilings=None, env={name: library if name in variables else value
                                                                     for name, value in environment.items()})
        self.assertIn("no floor", out)


class TestShapes(BenchTest):
    def test_files(self):
        """Comments, blank lines, carriage returns, no newline at the end; ops by name."""
        path = self.file("shapes.txt", f"# shapes\n\n  opm\t{OPM}  # the first\r\n trimul {TRIMUL},12\n\n#\ntrimul {TRIMUL}")
        other = self.file("more.txt", f"opm {OPM}\n")
        self.assertEqual([(row["op"], row["shape"]) for row in self.rows("--shapes", path, "--shapes", other)],
                         [("opm", OPM), ("trimul", TRIMUL + ",12"), ("trimul", TRIMUL), ("opm", OPM)])
        self.assertEqual(len(self.rows("trimul", "--shapes", path)), 2)
        self.assertEqual(len(self.rows("trimul", "opm", "--shapes", path)), 3)
        self.assertEqual(len(self.rows("trimul", "--shape", TRIMUL, "--shapes", path)), 3)
        self.refused("bench", "trimul", "--shapes", other, parts=["more.txt: no shape of trimul"])

    def test_the_shapes_of_this_project(self):
        folder = os.path.join(command.DATA, "..", "bench", "shapes")
        for name in sorted(os.listdir(folder)):
            op = name.split(".")[0]
            environment = dict(self.environment, EVO_KERNEL=f"{op}:warp")
            # Read in full before anything runs: an unknown device is only seen after the shapes.
            self.refused("bench", "--shapes", os.path.join(folder, name), "--device", "cpu:7", env=environment, parts=["cpu:7"])

    def test_hostile_files(self):
        wrong = {
            b"": "no shape", b"# nothing\n": "no shape", b"opm\n": ":1:", b"opm 1,2,3\n": "B,S,N", b"fly 1,2\n": "no op",
            b"opm " + OPM.encode() + b"\ntrimul 1,2\n": ":2:", b"trimul 1,2,3,4,5,6\n": ":1:", b"trimul 0,2,3,4\n": ":1:",
            b"trimul -1,2,3,4\n": ":1:", b"trimul 1,2,3,x\n": ":1:", b"trimul 1,2,3,4 5\n": "after the sizes",
            b"trimul 1,2,3,99999999999999999999\n": ":1:", b"trimul 1,2,3,2147483648\n": ":1:", b"trimul 1,,3,4\n": ":1:",
            b"trimul 1,2,3,4,\n": ":1:", b"trimul ,1,2,3\n": ":1:", b"trimul 1 , 2, 3, 4\n": ":1:", b"trimul 0x1,2,3,4\n": ":1:",
            b"trimul 1e1,2,3,4\n": ":1:", b"\0": "zero byte", b"trimul 1,2,3,4\0\n": "zero byte", b"trimul 1,2,3,4\n\0": ":2:",
            b"x" * 100000: "characters", b"\n" * 7 + b"#" * 600: ":8:", b"\xff\xfe\n": "no op", b"trimul " + b"1" * 300: ":1:",
            b"\x1b[2J 1,2\n": "no op", b"%s%n 1,2\n": "no op", b"opm %n%n%n\n": ":1:",
            b"trimul 1,2,3,4\n" * 5000: "more than 4096 shapes",
        }
        for content, part in wrong.items():
            with self.subTest(content[:40]):
                err = self.refused("bench", "--shapes", self.file("bad file.txt", content), parts=["bad file.txt", part])
                self.assertLess(len(err), 500)
        self.refused("bench", "--shapes", self.folder, parts=["Is a directory"])
        self.refused("bench", "--shapes", "/dev/zero", parts=["zero byte"])
        self.refused("bench", "--shapes", os.path.join(self.folder, "none"), parts=["No such file"])


class TestCommandLine(BenchTest):
    def test_help(self):
        out, _ = self.run_program("bench", "--help")
        for option in ("--shape", "--shapes", "--device", "--dtype", "--compute", "--kernel", "--all-kernels", "--direction",
                       "--cold", "--burst", "--cache", "--min-time", "--ceilings", "--json", "EVO_CUBLASLT_LIBRARY",
                       "EVO_HIPBLASLT_LIBRARY", "EVO_CBLAS_LIBRARY", "B,S,N,c_m,c,c_z", "B,N,c_z,c[,c_out]"):
            self.assertIn(option, out)
        self.assertIn("bench", self.run_program("--help")[0])

    def test_usage_errors(self):
        shape = ["trimul", "--shape", TRIMUL]
        wrong = {
            ("pairformer",): "pairformer", ("--shape", OPM): "which op", ("opm", "trimul", "--shape", OPM): "which op",
            ("opm", "--shape", TRIMUL): "--shape", ("trimul", "--shape", "1,2,3"): "--shape", ("trimul", "--shape", ""): "--shape",
            ("trimul", "--shape", "1,0,3,4"): "--shape", (*shape, "--dtype", "int4"): "--dtype", (*shape, "--compute", "fp8"): "--compute",
            (*shape, "--direction", "up"): "--direction", ("opm", "--shape", OPM, "--direction", "both"): "--direction",
            (*shape, "--variant", "alphafold9"): "--variant", (*shape, "--biases", "c_proj"): "--biases",
            (*shape, "--min-time", "0"): "--min-time", (*shape, "--min-time", "-1"): "--min-time", (*shape, "--min-time", "nan"): "--min-time",
            (*shape, "--min-time", "soon"): "--min-time", (*shape, "--cache", "4"): "--cache", (*shape, "--cache", "x"): "--cache",
            (*shape, "--cache", "2T"): "--cache", (*shape, "--workspace-limit", "lots"): "--workspace-limit",
            (*shape, "--ceilings", "copy"): "--ceilings", (*shape, "--ceilings", "copy=0"): "--ceilings", (*shape, "--ceilings", ""): "--ceilings",
            (*shape, "--ceilings", "copy=x"): "--ceilings", (*shape, "--ceilings", "speed=1"): "--ceilings",
            (*shape, "--ceilings", "copy=1,"): "--ceilings", (*shape, "--ceilings", "copy=inf"): "--ceilings",
            (*shape, "--ceilings", "copy=1 fp32=2"): "--ceilings", (*shape, "--kernel", "x", "--all-kernels"): "--all-kernels",
            (*shape, "--burst", "--cold"): "--cold", (*shape, "--device", "toaster"): "--device", ("--bogus",): "--bogus",
            (*shape, "--shape"): "--shape", (*shape, "--burst=1"): "--burst",
        }
        for arguments, part in wrong.items():
            with self.subTest(arguments):
                self.refused("bench", *arguments, status=2, parts=["evo bench", part])

    def test_no_device(self):
        self.refused("bench", "trimul", "--shape", TRIMUL, "--device", "cpu:5", parts=["cpu:5"])

    def test_full_disk(self):
        if os.path.exists("/dev/full"):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([self.path, "bench", "opm", "--shape", OPM, *QUICK, "--ceilings", "none", "--json"],
                                      stdout=full, stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"cannot write", done.stderr)


if __name__ == "__main__":
    command.main()

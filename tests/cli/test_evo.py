# test_evo.py: the evo command: info, run and check, their outputs and exit statuses.
import glob
import json
import os
import re

import arrays
import command

FILES = sorted(glob.glob(os.path.join(command.GOLDEN, "*.safetensors")))


def golden(part):
    """The path of the golden case whose name has this part."""
    return next(path for path in FILES if part in os.path.basename(path))


class EvoTest(command.CommandTest):
    path = command.program("EVO_TEST_EVO")

    def run_case(self, *arguments, **more):
        """evo run on the device under test; gives the values of the output and the printed line."""
        out, err = self.run_program("run", *arguments, "--device", command.DEVICE, "-o", "out.npy", **more)
        self.assertEqual(err, "")
        return arrays.read_npy(os.path.join(self.folder, "out.npy"))[1], out


class TestInfo(EvoTest):
    def test_text(self):
        out, err = self.run_program("info")
        self.assertEqual(err, "")
        self.assertRegex(out, r"libevoformer \d+\.\d+\.\d+\n")
        for part in ("build: ", "backend cpu", "backend cuda", "backend hip", "device cpu", "opm:", "trimul:",
                     "reference"):
            self.assertIn(part, out)

    def test_json(self):
        out, _ = self.run_program("info", "--json")
        self.assertEqual(out.count("\n"), 1)
        info = json.loads(out)
        self.assertEqual({b["name"] for b in info["backends"]}, {"cpu", "cuda", "hip"})
        for backend in info["backends"]:
            self.assertEqual(backend["missing"] == "", backend["devices"] > 0)
        for device in info["devices"]:
            self.assertIn("reference" if device["name"] == "cpu" else "", device["kernels"]["opm"] + [""])
            self.assertGreater(len(device["kernels"]["trimul"]), 0)


    def test_report(self):
        secrets = {"EVO_CUDA_LIBRARY": "/home/zaphod/libs/libcuda.so.1", "EVO_HIP_LIBRARY": "/home/zaphod/libamdhip64.so.6",
                   "GOMP_CPU_AFFINITY": "0-1", "CUDA_VISIBLE_DEVICES": "GPU-8932f937-d72c", "TRILLIAN": "secret",
                   "EVO_KERNEL": "opm:reference", "HOME": "/home/zaphod"}
        out, err = self.run_program("info", "--report", env={**os.environ, **secrets})
        self.assertEqual(err, "")
        for part in ("libevoformer ", "system: ", "processors: ", "processor flags:", "plans on cpu:\n    evoformer,plan,cpu",
                     "GOMP_CPU_AFFINITY: 0-1\n", "CUDA_VISIBLE_DEVICES: (set, not shown)\n", "EVO_KERNEL: opm:reference\n",
                     "EVO_CUDA_LIBRARY: libcuda.so.1\n"):
            self.assertIn(part, out)
        for private in ("zaphod", "8932f937", "secret", os.uname().nodename, self.folder, os.path.dirname(self.path)):
            self.assertNotIn(private, out)
        self.refused("info", "--report", "--json", status=2, parts=["--report", "--json"])


class TestCommandLine(EvoTest):
    def test_help(self):
        for command_line in (["--help"], ["info", "--help"], ["run", "--help"], ["check", "--help"],
                             ["selftest", "--help"], ["run", "-h"]):
            with self.subTest(command_line):
                out, err = self.run_program(*command_line)
                self.assertTrue(out.startswith("usage: evo"))
                self.assertEqual(err, "")
        for option in ("--output", "--op", "--variant", "--input", "--mask", "--residual", "--weights", "--weights-from",
                       "--shape", "--seed", "--device", "--dtype", "--compute", "--kernel", "--workspace-limit"):
            self.assertIn(option, self.run_program("run", "--help")[0])
        parts = self.run_program("run", "--help")[0].split("\noptions of ")
        self.assertEqual([part.partition(":")[0] for part in parts[1:]], ["opm", "trimul"])
        for words in (["boltz", "fastfold", "--divide", "before, after", "both, a"],
                      ["boltz", "cuequivariance", "outgoing, incoming", "normed, raw", "norm_in,a_proj,a_gate"]):
            text = parts[1 if "fastfold" in words else 2]
            self.assertEqual([word for word in words if word not in text], [])
        for option in ("--golden", "--device", "--kernel", "--op", "--dtype", "--compute", "--seed", "--filter"):
            self.assertIn(option, self.run_program("check", "--help")[0])

    def test_usage_errors(self):
        shape = ["--op", "opm", "--shape", "1,2,3,4,5,6"]
        wrong = [
            [], ["fly"], ["--bogus"], ["-Vx"], ["-hV"], ["--version", "x"], ["--help", "run"], ["info", "extra"], ["info", "--bogus"],
            ["run"], ["run", "--op"],
            ["run", "--op", "pairformer", "--shape", "1,2"], ["run", *shape, "-o", "out.txt"], ["run", *shape, "extra"],
            ["run", "--op", "opm", "--shape", "1,2,3"], ["run", "--op", "opm", "--shape", "1,2,3,4,5,6,7"],
            ["run", "--op", "opm", "--shape", "1,2,3,4,5,x"], ["run", "--op", "opm", "--shape", "1,2,3,4,5,-6"],
            ["run", *shape, "--seed", "banana"], ["run", *shape, "--dtype", "int4"], ["run", *shape, "--dtype", "uint8"],
            ["run", *shape, "--compute", "fp8"], ["run", *shape, "--workspace-limit", "lots"],
            ["run", *shape, "--workspace-limit", "-1"], ["run", *shape, "--variant", "alphafold9"],
            ["run", *shape, "--device", "toaster"], ["run", *shape, "--direction", "outgoing"],
            ["run", *shape, "--divide", "sideways"], ["run", *shape, "--count-eps", "many"],
            ["run", *shape, "--dtype", "bf16", "-o", "out.npy"], ["run", "--op", "opm"],
            ["run", golden("opm_01"), "--shape", "1,2,3,4,5,6"], ["run", golden("opm_01"), "--op", "trimul"],
            ["run", golden("opm_01"), "--weights-from", "nobody"], ["run", *shape, "--weights-prefix", "model."], ["check", "--op", "nothing"], ["check", "--bogus"],
            ["check", "--dtype", "fp8"], ["check", "--seed", ""], ["check", "--device", "toaster"],
            ["check", "--golden"],
        ]
        for arguments in wrong:
            with self.subTest(arguments):
                err = self.refused(*arguments, status=2)
                self.assertTrue(err.startswith("evo"), err)
        self.assertEqual(os.listdir(self.folder), [])

    def test_messages_say_what_was_expected(self):
        opm, trimul = ["run", "--op", "opm", "--shape", "1,2,3,4,5,6"], ["run", "--op", "trimul", "--shape", "1,2,3,4"]
        files = ["run", "--op", "opm", "--input", "m.npy", "--weights"]
        for arguments, parts in (
                ([*opm, "--json"], ["unknown option --json"]), ([*opm, "--weights-", "x"], ["ambiguous option --weights-"]),
                ([*opm, "--biases", "c"], ["--biases", '"c"', "norm, a, b, out, none"]),
                ([*trimul, "--biases", "gate"], ['"gate"', "norm_in, a_proj, a_gate", "out_gate"]),
                ([*opm[:-1], "1,2,3,4,5,99999999999999999999"], ["c_z", "99999999999999999999", "2^63"]),
                ([*files, "w.npy"], ["--weights w.npy", "NAME=w.npy"]),
                (["run", "--case", "opm(k=1)"], ['"k"', "c_m", "count_eps", "weight_layout"]),
                (["run", "--case", "opm(layout=odd)"], ['layout: "odd"', "contiguous, padded"]),
                (["run", "--case", "opm(dtype=fp8)"], ['dtype: "fp8"', "fp64, fp32, bf16, fp16"]),
                (["run", "--case", "opm(compute=fp8)"], ['compute: "fp8"', "tf32"]),
                (["run", "--case", "opm(runs=2000)"], ['"2000"', "1000"]),
                (["run", "--case", "opm(n=8,n=9)"], ["n is given twice"]),
                (["run", "--case", "opm(variant=mean,n=8,c=4,variant=mean)"], ["variant is given twice"]),
                (["--version", "x"], ['unexpected argument "x"']),
                (["run", "--case", "opm(n=1"], ["KEY=VALUE"])):
            with self.subTest(arguments):
                self.refused(*arguments, status=2, parts=parts)

    def test_out_of_memory_is_no_usage_error(self):
        for arguments in (["run", "--op", "trimul", "--shape", "1,4000000,64,64"], ["check", "--case", "trimul(n=4000000)"]):
            self.assertNotIn("--help", self.refused(*arguments, status=1, parts=["out of memory"]))

    def test_failures(self):
        shape = ["--op", "opm", "--shape", "1,2,3,4,5,6"]
        self.refused("run", *shape, "--device", "cpu:5", parts=["cpu:5"])
        self.refused("run", *shape, "--kernel", "warp", parts=["warp", "expected"])
        self.refused("run", *shape, "--workspace-limit", "1", parts=["workspace_limit", "at least"])
        self.refused("run", *shape, "-o", "no/such/folder/out.npy", parts=["no/such/folder/out.npy"])
        self.refused("run", "nowhere.safetensors", parts=["nowhere.safetensors"])
        self.refused("run", self.folder, parts=[self.folder])
        self.refused("run", "--op", "opm", "--shape", "1000000000,1000000000,3,4,5,6", status=2, parts=["overflow"])
        self.refused("run", "opm", "--shape", "1,2,3,4,5,6", status=2, parts=["--op opm"])
        self.refused("check", "--case", "pairformer(n=1)", status=2, parts=["opm, trimul"])
        self.refused("check", "--case", "opm(n=2,s=1,c_m=2,c_z=1,residual=1,alias=both)", status=2, parts=["m: another shape"])
        info = json.loads(self.run_program("info", "--json")[0])
        if all(device["name"].startswith("cpu") for device in info["devices"]):
            self.refused("run", *shape, "--device", "auto", parts=["EVO_NUM_THREADS", "banana"],
                         env={**os.environ, "EVO_NUM_THREADS": "banana"})
        for backend in info["backends"]:
            if not backend["compiled"]:
                self.refused("run", *shape, "--device", backend["name"] + ":0", parts=["not compiled in", "cpu"])

    def test_full_disk(self):
        if os.path.exists("/dev/full"):
            self.run_program("run", "--op", "opm", "--shape", "1,2,3,4,5,6")
            import subprocess
            with open("/dev/full", "wb") as full:
                for arguments in (["info"], ["check", "--list"], ["--help"]):
                    done = subprocess.run([self.path, *arguments], stdout=full, stderr=subprocess.PIPE)
                    self.assertEqual(done.returncode, 1, arguments)
                    self.assertIn(b"cannot write", done.stderr)
                    self.assertNotIn(b"Input/output error", done.stderr)


class TestRun(EvoTest):
    def test_golden_outputs(self):
        for path in FILES:
            with self.subTest(os.path.basename(path)):
                values, out = self.run_case(path)
                self.assertLess(arrays.relative_error(values, arrays.SafeTensors(path).values("expected")), 1e-6)
                self.assertIn("kernel ", out)
                self.assertIn("error ", out)

    def test_weights_from_peers(self):
        seen = set()
        for path in FILES:
            file = arrays.SafeTensors(path)
            if not any(name.startswith("peer.") for name in file.names()):
                continue
            with self.subTest(os.path.basename(path)):
                peer = os.path.basename(path).split("_")[-3]
                seen.add(peer)
                # Canonical weights stay only where the peer's own layout is that: nothing to fall back to.
                bare = arrays.SafeTensors(path)
                for name in json.loads(file.metadata["views"]):
                    bare.drop(name)
                weights = self.file("weights.safetensors", bare.bytes())
                first = "m" if "m" in file.names() else "z"
                variant = json.loads(file.metadata["variant"])
                options = ["--op", file.metadata["op"], "--ln-eps", str(variant["ln_eps"])]
                options += ["--direction", variant["direction"]] if first == "z" else []
                for name, option in ((first, "--input"), ("mask", "--mask")):
                    if name in file.names():
                        entry = file.header[name]
                        content = arrays.npy(entry["dtype"], entry["shape"], file.values(name))
                        options += [option, self.file(name + ".npy", content)]
                values, _ = self.run_case(*options, "--weights", weights, "--weights-from", peer, *self.parameters(peer, variant))
                self.assertLess(arrays.relative_error(values, file.values("expected")), 1e-6)
        self.assertGreaterEqual(seen, {"alphafold2", "alphafold2-fused", "alphafold3", "boltz", "cuequivariance",
                                       "helixfold", "openfold-fused"})

    @staticmethod
    def parameters(peer, variant):
        """cuEquivariance takes any subset of the biases, so the command must be told."""
        if peer != "cuequivariance":
            return []
        return ["--biases", ",".join(variant["biases"] + ["norm_in", "norm_out"])]

    def test_weights_from_on_the_case_file(self):
        path = golden("tri_inc_08")
        want, _ = self.run_case(path)
        self.assertEqual(self.run_case(path, "--weights-from", "alphafold2", "--weights-prefix", "peer.")[0], want)
        self.assertEqual(self.run_case(path, "--views")[0], want)
        self.refused("run", golden("opm_01"), "--views", parts=["views"])

    def test_weights_from_the_wrong_peer(self):
        """A file without a single array of the peer that is named: the canonical weights must not take their place."""
        for peer in ("boltz", "alphafold3", "cuequivariance"):
            with self.subTest(peer):
                self.refused("run", golden("tri_inc_08"), "--weights-from", peer, "--weights-prefix", "peer.")

    def test_files_instead_of_a_case(self):
        path = golden("opm_03")
        file = arrays.SafeTensors(path)
        self.refused("run", path, "--weights", "w=" + path, status=2, parts=['"w"', "a.weight", "out.bias"])
        for name in ("m", "mask"):
            self.file(name + ".npy", arrays.npy("F32", file.header[name]["shape"], file.values(name)))
            self.file(name + "64.npy", arrays.npy("F64", file.header[name]["shape"], file.values(name), version=2))
        self.file("byte.npy", arrays.npy("U8", file.header["mask"]["shape"], [int(x) for x in file.values("mask")]))
        bare = arrays.SafeTensors(path)
        for name in ("m", "mask", "expected"):
            bare.drop(name)
        self.file("weights.safetensors", bare.bytes())
        base = ["--op", "opm", "--variant", "alphafold2", "--weights", "weights.safetensors"]
        for inputs in (["--input", "m.npy", "--mask", "mask.npy"], ["--input", "m64.npy", "--mask", "mask64.npy"],
                       ["--input", path, "--mask", path], ["--input", "m.npy", "--mask", "byte.npy"]):
            with self.subTest(inputs):
                values, _ = self.run_case(*base, *inputs)
                self.assertLess(arrays.relative_error(values, file.values("expected")), 1e-6)
        one = self.file("a.npy", arrays.npy("F32", [8, 16], [0.0] * 128))
        values, _ = self.run_case(*base, "--input", "m.npy", "--mask", "mask.npy", "--weights", "a.weight=" + one)
        self.assertGreater(arrays.relative_error(values, file.values("expected")), 1e-3)

    def test_overrides(self):
        path = golden("opm_01")
        want, _ = self.run_case(path)
        for options in (["--mask", "none"], ["--divide", "before"], ["--count-eps", "0.5"], ["--mask-sides", "a"],
                        ["--ln-eps", "0.5"]):
            with self.subTest(options):
                self.assertGreater(arrays.relative_error(self.run_case(path, *options)[0], want), 1e-6)
        self.assertLess(arrays.relative_error(self.run_case(path, "--kernel", "reference")[0], want), 1e-6)
        shape, _ = arrays.read_npy(os.path.join(self.folder, "out.npy"))
        self.assertEqual(shape, (2, 17, 17, 16))
        for dtype, error in (("fp64", 1e-12), ("fp32", 1e-6), ("fp16", 3e-3)):
            values, _ = self.run_case(path, "--dtype", dtype)
            self.assertLess(arrays.relative_error(values, arrays.SafeTensors(path).values("expected")), error)

    def test_outputs(self):
        self.run_case(golden("opm_03"))
        first = arrays.read_npy(os.path.join(self.folder, "out.npy"))[1]
        self.run_program("run", golden("opm_03"), "--device", command.DEVICE, "-o", "out.safetensors")
        written = arrays.SafeTensors(os.path.join(self.folder, "out.safetensors"))
        self.assertEqual(written.names(), ["out"])
        self.assertEqual(written.header["out"]["shape"], [2, 5, 5, 8])
        self.assertEqual(written.values("out"), first)
        self.run_program("run", golden("opm_03"), "--dtype", "bf16", "-o", "bf16.safetensors")
        self.assertEqual(arrays.SafeTensors(os.path.join(self.folder, "bf16.safetensors")).header["out"]["dtype"], "BF16")

    def test_random(self):
        for op, shape in (("opm", "2,3,4,8,4,6"), ("trimul", "2,5,8,4"), ("trimul", "1,5,8,4,7")):
            with self.subTest(shape):
                options = ["--op", op, "--shape", shape]
                one, _ = self.run_case(*options, "--seed", "1")
                self.assertEqual(self.run_case(*options, "--seed", "1")[0], one)
                self.assertNotEqual(self.run_case(*options, "--seed", "2")[0], one)
                limited, _ = self.run_case(*options, "--seed", "1", "--workspace-limit", "64K")
                self.assertEqual(limited, one)

    def test_saved_case_is_a_case(self):
        self.run_program("run", "--case", "trimul(n=5,variant=mean,direction=incoming,residual=1,mask=random)",
                         "--save-case", "saved.safetensors")
        saved = os.path.join(self.folder, "saved.safetensors")
        out, _ = self.run_program("check", "--device", command.DEVICE, "--golden", saved)
        self.assertTrue(out.endswith("1 passed, 0 failed, 0 skipped\n"), out)
        first, _ = self.run_case(saved)
        self.assertLess(arrays.relative_error(first, arrays.SafeTensors(saved).values("expected")), 1e-6)


class TestCheck(EvoTest):
    def check(self, *arguments, status=0, **more):
        return self.run_program("check", "--device", command.DEVICE, *arguments, status=status, **more)[0]

    def test_golden_folder(self):
        out, err = self.run_program("check", "--device", command.DEVICE, "--golden", command.GOLDEN)
        lines = out.rstrip("\n").split("\n")
        self.assertEqual(err, "")
        self.assertEqual(lines[-1], f"{len(FILES)} passed, 0 failed, 0 skipped")
        self.assertEqual(len(lines), len(FILES) + 1)
        for line, path in zip(lines, FILES):
            self.assertTrue(line.startswith(os.path.basename(path)[:-len(".safetensors")]), line)
            self.assertTrue(line.endswith("ok"), line)

    def test_golden_types(self):
        for dtype in ("fp64", "bf16", "fp16"):
            with self.subTest(dtype):
                # tri_inc_02 has rows of mean 100, which 16 bits cannot hold (golden/README.md).
                files = [path for path in FILES if dtype == "fp64" or "tri_inc_02" not in path]
                out = self.check("--dtype", dtype, "--golden", *files)
                self.assertTrue(out.endswith(f"{len(files)} passed, 0 failed, 0 skipped\n"), out[-500:])

    def test_wrong_result_fails(self):
        path = golden("opm_03")
        file = arrays.SafeTensors(path)
        wrong = file.values("expected")
        wrong[17] *= 1.01
        file.drop("expected")
        file.add("expected", "F64", [2, 5, 5, 8], wrong)
        bad = self.file("bad one.safetensors", file.bytes())
        out = self.check("--golden", bad, path, status=1)
        self.assertIn("FAIL", out)
        self.assertTrue(out.endswith("1 passed, 1 failed, 0 skipped\n"), out)
        repeat = re.search(r"repeat: evo (.*)", out).group(1)
        self.assertIn("'" + bad + "'", repeat)
        self.run_program(*[word.strip("'") for word in re.findall(r"'[^']*'|\S+", repeat)], status=1)

    def test_lying_views_fail(self):
        """The peer's array differs from the canonical one: the file's line is FAIL, though its own weights are right."""
        file = arrays.SafeTensors(golden("tri_inc_15"))
        start, _ = file.header["peer.p_in_weight"]["data_offsets"]
        file.data = file.data[:start] + b"\0\0\x80\x3f" + file.data[start + 4:]
        bad = self.file("lying.safetensors", file.bytes())
        self.run_case(bad)
        out = self.check("--golden", bad, status=1)
        self.assertIn("FAIL", out)
        self.assertIn("views", out)

    def test_one_case_by_its_text(self):
        out = self.check("--case", "opm(variant=boltz,n=9)", "--case", "trimul(n=6,direction=incoming)")
        self.assertEqual(out.count(" ok\n"), 2)
        self.assertTrue(out.endswith("2 passed, 0 failed, 0 skipped\n"))
        for text in ("opm(n=banana)", "opm(nonsense=1)", "pairformer(n=3)", "opm(n=3", ""):
            self.refused("check", "--case", text, status=2)

    def test_nothing_to_check_is_no_success(self):
        out = self.check("--filter", "no such case at all", status=1)
        self.assertTrue(out.endswith("0 passed, 0 failed, 0 skipped\n"), out)
        self.run_program("check", "--device", command.DEVICE, "--golden", self.folder, status=1)
        self.run_program("check", "--device", command.DEVICE, "--golden", "nowhere", status=1)

    def test_unknown_kernel(self):
        self.refused("check", "--device", command.DEVICE, "--kernel", "warp", status=2, parts=["warp", "reference"])

    def test_filters(self):
        everything = self.check("--list").splitlines()
        self.assertGreater(len(everything), 500)
        for op in ("opm", "trimul"):
            listed = self.check("--list", "--op", op).splitlines()
            self.assertEqual(listed, [text for text in everything if text.startswith(op + "(")])
        listed = self.check("--list", "--filter", "dtype=bf16").splitlines()
        self.assertTrue(listed and all("dtype=bf16" in text for text in listed))
        for part in ("variant=helixfold", "direction=incoming", "n=129", "layout=slice", "mask=row", "input=nan",
                     "b=0", "alias="):
            self.assertTrue(any(part in text for text in everything), part)

    def test_json_lines(self):
        out = self.check("--json", "--op", "opm", "--dtype", "fp32", "--filter", "n=7")
        records = [json.loads(line) for line in out.splitlines()]
        self.assertTrue(all(record.get("result", "ok") == "ok" for record in records))

    def test_builtin(self):
        """All of the built-in cases; a part of them where each takes long."""
        part = [] if command.SCALE == 1 else ["--dtype", "bf16", "--filter", "variant=helixfold"]
        out = self.check(*part, timeout=600)
        last = re.match(r"(\d+) passed, 0 failed, 0 skipped$", out.rstrip("\n").split("\n")[-1])
        self.assertIsNotNone(last, out[-2000:])
        self.assertGreater(int(last.group(1)), 10)


if __name__ == "__main__":
    command.main()

# test_selftest.py: evo selftest. Its shapes of real use take minutes where each loop is slow (sanitizers): one run of them there.
import json
import os

import command


class TestSelftest(command.CommandTest):
    path = command.program("EVO_TEST_EVO")

    if command.SCALE == 1:
        def test_passes(self):
            out, err = self.run_program("selftest", "--device", command.DEVICE, "--seconds", "1", timeout=300)
            self.assertEqual(err, "")
            self.assertRegex(out, r"\A\S+ \(.*\): 8 known answers, 9 shapes of real use, [1-9]\d* of \d{4} built-in cases; "
                                  r"\d+ passed, 0 failed, \d+ skipped in \d+ s: ok\n\Z")

    def test_json(self):
        seconds = "0" if command.SCALE == 1 else "1"
        out, err = self.run_program("selftest", "--device", command.DEVICE, "--seconds", seconds, "--json", "--seed", "7",
                                    timeout=300)
        self.assertEqual(err, "")
        row = json.loads(out)
        self.assertEqual((row["failed"], row["random"] > 0, row["result"]), (0, seconds != "0", "ok"))
        self.assertGreaterEqual(row["passed"], 17)
        self.assertEqual(row["passed"] + row["skipped"], 17 + row["random"])

    def test_wrong_library(self):
        wrong = os.environ.get("EVO_TEST_WRONG")
        if wrong:
            environment = {**os.environ, "LD_PRELOAD": wrong}
            out, _ = self.run_program("selftest", "--device", "cpu", "--seconds", "0", status=1, env=environment)
            self.assertIn("tri_inc_04_openfold_b3n1_12-8  ", out)
            self.assertIn("repeat: evo selftest --device cpu --seconds 0\n", out)
            self.assertRegex(out, r"10 failed, 0 skipped in \d+ s: FAIL\nselftest FAILED")

    def test_command_line(self):
        for arguments in (["--seconds", "-1"], ["--seconds", "soon"], ["--seconds", "nan"], ["--device", "toaster"],
                          ["--seed", "x"], ["extra"], ["--bogus"]):
            with self.subTest(arguments):
                self.refused("selftest", *arguments, status=2, parts=["evo selftest: "])


if __name__ == "__main__":
    command.main()

# test_coevolution.py: the coevolution example on its own alignment, on every format, and on alignments it must refuse.
import os
import re
import struct
import zlib

import command

FAMILY = os.path.join(command.DATA, os.pardir, "examples", "data", "PF00071.aln")


def png_size(data):
    """Width and height of a PNG whose chunks and pixels are whole."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n", "no PNG signature"
    at, pixels, size = 8, b"", None
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length:at + 12 + length])[0] == zlib.crc32(kind + body), "bad CRC"
        if kind == b"IHDR":
            size = struct.unpack(">II", body[:8])
        pixels += body if kind == b"IDAT" else b""
        at += 12 + length
    assert kind == b"IEND" and len(zlib.decompress(pixels)) >= size[0] * size[1] // 8
    return size


class Coevolution(command.CommandTest):
    path = command.program("EVO_TEST_COEVOLUTION")

    def run_on(self, *arguments, **more):
        return self.run_program(*arguments, "--device", command.DEVICE, **more)

    def contacts(self):
        with open(os.path.join(self.folder, "contacts.tsv"), encoding="ascii") as file:
            rows = [line.rstrip("\n").split("\t") for line in file]
        self.assertEqual(rows[0], ["i", "j", "score"])
        return [(int(i), int(j), float(score)) for i, j, score in rows[1:]]

    def picture(self):
        with open(os.path.join(self.folder, "contacts.png"), "rb") as file:
            return png_size(file.read())

    def small_family(self, sequences=24, columns=32):
        with open(FAMILY, encoding="ascii") as file:
            return [line.strip()[:columns] for line in file][:sequences]

    # ---- what it computes ----

    def real_run(self):
        out, err = self.run_on(timeout=300)
        lines = out.rstrip("\n").split("\n")
        self.assertEqual(lines[-1], "19 of its best 50 pairs are among the best 50 of PF00071.evfold.tsv")
        self.assertIn("999 sequences", out)
        self.assertIn("601.92", out)
        self.assertNotIn("FAILED", out)
        self.assertEqual(err, "")
        pairs = self.contacts()
        self.assertEqual(len(pairs), 50)
        self.assertEqual(len({pair[:2] for pair in pairs}), 50)
        for i, j, _ in pairs:
            self.assertTrue(1 <= i <= j - 5 <= 154)
        scores = [score for _, _, score in pairs]
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertGreaterEqual(min(self.picture()), 159)

    if command.SCALE == 1:  # minutes under a sanitizer, where test_formats covers the same code
        test_real_run = real_run

    def test_formats(self):
        rows = self.small_family()
        wanted = None
        stockholm = ["# STOCKHOLM 1.0", "#=GF ID small", ""]
        stockholm += [f"seq{k}/1-32   {row}" for k, row in enumerate(rows)] + ["#=GC SS_cons " + "." * 32, "//"]
        blocks = ["# STOCKHOLM 1.0", ""] + [f"seq{k} {row[:16]}" for k, row in enumerate(rows)] + [""]
        blocks += [f"seq{k} {row[16:]}" for k, row in enumerate(rows)] + ["//"]
        fasta = [f">seq{k} of the family\n{row}" for k, row in enumerate(rows)]
        wrapped = [f">seq{k}\n{row[:13]}\n{row[13:]}" for k, row in enumerate(rows)]
        forms = {
            "plain.aln": "\n".join(rows) + "\n", "noend.aln": "\n".join(rows), "crlf.aln": "\r\n".join(rows) + "\r\n",
            "lower.aln": "\n".join(rows).lower() + "\n", "dots.aln": "\n".join(rows).replace("-", ".") + "\n",
            "letters.aln": "\n".join(re.sub("-", "X", row) for row in rows) + "\n",
            "small.fasta": "\n".join(fasta) + "\n", "wrapped.fa": "\n".join(wrapped) + "\n",
            "small.sto": "\n".join(stockholm) + "\n", "blocks.sto": "\n".join(blocks) + "\n",
        }
        for name, text in forms.items():
            with self.subTest(name):
                out, err = self.run_on(self.file(name, text))
                self.assertIn("24 sequences, 32 columns", out)
                self.assertNotIn("FAILED", out)
                self.assertEqual(err, "")
                wanted = wanted or self.contacts()
                self.assertEqual(self.contacts(), wanted)
                self.picture()

    def test_gap_letters(self):
        rows = self.small_family(12, 20)
        wanted = None
        for letter in "-.XBZUJOxbzu":
            with self.subTest(letter):
                self.run_on(self.file("gaps.aln", "".join(row[:10] + letter + row[11:] + "\n" for row in rows)))
                wanted = wanted or self.contacts()
                self.assertEqual(self.contacts(), wanted)

    def test_small_alignments(self):
        for name, text in {"one.aln": "ACDEFGHIKLMNPQ\n", "narrow.aln": "A\nC\n", "same.aln": "ACDEFGHIKL\n" * 3,
                           "gaps.aln": "----------\n" * 2}.items():
            with self.subTest(name):
                out, _ = self.run_on(self.file(name, text))
                self.assertNotIn("FAILED", out)
                self.assertNotIn("nan", out.lower())
                self.picture()

    def test_compare(self):
        rows = self.small_family()
        path = self.file("small.aln", "\n".join(rows) + "\n")
        self.run_on(path)
        pairs = self.contacts()
        listed = self.file("mine.tsv", "".join(f"{i}\t{j}\t{score}\n" for i, j, score in pairs[:50]))
        out, _ = self.run_on(path, "--compare", listed)
        self.assertEqual(out.rstrip("\n").split("\n")[-1],
                         f"{len(pairs)} of its best {len(pairs)} pairs are among the best {len(pairs)} of mine.tsv")

    # ---- what it refuses ----

    def test_bad_alignments(self):
        bad = {
            "ragged.aln": ("ACDEF\nACDEF\nACDE\n", 3), "long.aln": ("ACDEF\nACDEFG\n", 2), "empty.aln": ("", None),
            "blank.aln": ("\n\n  \n", None), "digit.aln": ("ACDEF\nAC1EF\n", 2), "question.aln": ("AC?EF\n", 1),
            "zero.aln": (b"ACDEF\nAC\0EF\n", 2), "high.aln": (b"ACDEF\nACDEF\nAC\xc3\xa9F\n", 3),
            "space.aln": ("ACDEF\nAC DEF\n", 2), "ragged.fa": (">a\nACDEF\n>b\nACD\n", None),
            "noseq.fa": (">a\nACDEF\n>b\n", None), "headers.fa": (">a\n>b\n", None),
            "ragged.sto": ("# STOCKHOLM 1.0\na ACDEF\nb ACDE\n//\n", 3), "none.sto": ("# STOCKHOLM 1.0\n//\n", None),
            "digit.sto": ("# STOCKHOLM 1.0\na AC7EF\n//\n", 2), "binary.aln": (bytes(range(256)) * 4, 1),
        }
        for name, (content, line) in bad.items():
            with self.subTest(name):
                err = self.refused(self.file(name, content), parts=[name])
                self.assertTrue(err.startswith("coevolution: "), err)
                if line is not None:
                    self.assertRegex(err, rf"{re.escape(name)}:{line}\b|{re.escape(name)}.*line {line}\b")
                self.assertFalse(os.path.exists(os.path.join(self.folder, "contacts.tsv")))

    def test_files_that_cannot_be_read(self):
        self.refused("nowhere.aln", parts=["coevolution: nowhere.aln: "])
        self.refused(self.folder, parts=["coevolution: " + self.folder])
        path = self.file("small.aln", "\n".join(self.small_family(5, 20)) + "\n")
        self.refused(path, "--compare", "nowhere.tsv", parts=["coevolution: nowhere.tsv: "])
        for name, text in {"words.tsv": "one two three\n", "zero.tsv": "0 5 0.1\n", "short.tsv": "3\n"}.items():
            with self.subTest(name):
                self.refused(path, "--compare", self.file(name, text), parts=[name])

    def test_output_that_cannot_be_written(self):
        path = self.file("small.aln", "\n".join(self.small_family(5, 20)) + "\n")
        os.mkdir(os.path.join(self.folder, "contacts.png"))
        self.refused(path, parts=["coevolution: contacts.png: "])

    def test_command_line(self):
        out, err = self.run_program("--help")
        self.assertIn("usage: coevolution", out)
        self.assertEqual(err, "")
        self.refused("--bogus", status=2, parts=["bogus"])
        self.refused("a.aln", "b.aln", status=2)
        self.refused("--device", status=2)
        self.refused("nowhere.aln", "--device", "toaster", status=2, parts=["toaster", "expected", "usage: "])
        self.refused("nowhere.aln", "--device", "cuda:99", parts=["coevolution: cannot open the device: "])


if __name__ == "__main__":
    command.main()

# golden.py: golden cases as the example programs in examples/embed read them, and the comparison of what they write.
# Both files are numbers of this machine in order of use: sizes as int64, arrays as fp32.
import json
import math
import struct

# Pairs of cases with a mask, every bias and variant "alphafold2", which is what the programs compute.
PAIRS = [
    ("opm_01_openfold_b2s8n17_24-8-16", "tri_out_01_openfold_b2n17_24-16"),
    ("opm_05_alphafold2_b1s8n33_32-8-16", "tri_inc_02_openfold_b1n31_16-8"),
    ("opm_04_openfold_b1s19n1_12-5-7", "tri_inc_09_alphafold2-fused_b1n17_12-20"),
]
ARRAYS = {
    "opm": ["m", "mask", "norm", "a", "b", "out"],
    "trimul": ["z", "mask", "norm_in", "a_proj", "a_gate", "b_proj", "b_gate", "norm_out", "out", "out_gate"],
}
TOTAL, PAIR = 1e-5, 1e-4  # relative errors of fp32, tests/golden/README.md


class Case:
    """One file of tests/golden."""

    def __init__(self, path):
        with open(path, "rb") as file:
            data = file.read()
        end = 8 + struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:end])
        meta = header.pop("__metadata__")
        self.op, variant = meta["op"], json.loads(meta["variant"])
        shapes = {name: entry["shape"] for name, entry in header.items()}
        self.bytes = {name: data[end + entry["data_offsets"][0]:end + entry["data_offsets"][1]]
                      for name, entry in header.items()}
        self.expected = struct.unpack(f"<{math.prod(shapes['expected'])}d", self.bytes["expected"])
        self.channels = shapes["expected"][-1]
        if self.op == "opm":
            batch, s, n, c_m = shapes["m"]
            self.sizes = [batch, s, n, c_m, shapes["a.weight"][0], self.channels]
        else:
            batch, n, _, c_z = shapes["z"]
            self.sizes = [batch, n, c_z, shapes["a_proj.weight"][0], int(variant["direction"] == "incoming")]

    def numbers(self):
        parts = [struct.pack(f"={len(self.sizes)}q", *self.sizes)]
        for name in ARRAYS[self.op]:
            for full in [name] if name in self.bytes else [name + ".weight", name + ".bias"]:
                values = self.bytes[full]
                parts.append(struct.pack(f"={len(values) // 4}f", *struct.unpack(f"<{len(values) // 4}f", values)))
        return b"".join(parts)

    def errors(self, got):
        """Relative Frobenius errors: of all, and of the worst pair."""
        all_differences, all_squares, worst = 0.0, 0.0, 0.0
        for at in range(0, len(got), self.channels):
            want = self.expected[at:at + self.channels]
            differences = sum((g - w) ** 2 for g, w in zip(got[at:at + self.channels], want))
            squares = sum(w * w for w in want)
            worst = max(worst, math.sqrt(differences / squares)) if differences == differences else math.inf
            all_differences += differences
            all_squares += squares
        return math.sqrt(all_differences / all_squares), worst


def write(folder, pair, path):
    """Writes a pair of cases for a program; returns the two."""
    cases = [Case(f"{folder}/{name}.safetensors") for name in pair]
    with open(path, "wb") as file:
        for case in cases:
            file.write(case.numbers())
    return cases


def compare(cases, path):
    """What is wrong with a program's result, in words; "" if nothing is."""
    with open(path, "rb") as file:
        data = file.read()
    count = sum(len(case.expected) for case in cases)
    if len(data) != 4 * count:
        return f"{len(data)} bytes, expected {4 * count}"
    numbers = struct.unpack(f"={count}f", data)
    for case in cases:
        total, worst = case.errors(numbers[:len(case.expected)])
        numbers = numbers[len(case.expected):]
        if not (total <= TOTAL and worst <= PAIR):
            return f"{case.op}: errors {total:.2g}, worst pair {worst:.2g}, expected at most {TOTAL:g}, {PAIR:g}"
    return ""

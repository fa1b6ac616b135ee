# test_hostile.py: files that lie. Each must give one message that names the file, on stderr, and exit status 1: no
# signal, no silence, no output file. Every mutation is of a good file, which must be taken as it is.
import copy
import glob
import json
import os
import resource
import struct

import arrays
import command

HUGE = 2 ** 62


def golden(part):
    return glob.glob(os.path.join(command.GOLDEN, f"*{part}*.safetensors"))[0]


class Good:
    """Good files to start from: one plain, one with a peer's arrays and views."""
    plain = arrays.SafeTensors(golden("opm_03"))
    viewed = arrays.SafeTensors(golden("tri_inc_15"))


def raw_mutations():
    """name -> bytes, mutated below the level of the header's JSON."""
    good = Good.plain.bytes()
    length = struct.unpack("<Q", good[:8])[0]
    head, data = good[8:8 + length], good[8 + length:]

    def sized(size, rest=None):
        return struct.pack("<Q", size) + (head + data if rest is None else rest)

    deep = b"[" * 100000
    return {
        "empty": b"", "three bytes": good[:3], "length alone": good[:8], "length 0": sized(0), "length 1": sized(1),
        "length 2^63": sized(2 ** 63), "length 2^64-1": sized(2 ** 64 - 1), "length past the end": sized(len(good)),
        "length to the end": sized(len(good) - 8), "length short by 9": sized(length - 9),
        "length too long by 8": sized(length + 8), "big-endian length": struct.pack(">Q", length) + head + data,
        "cut in the header": good[:8 + length // 2], "cut in the data": good[:-1], "no data": good[:8 + length],
        "a byte behind": good + b"\0", "no JSON": sized(len(data), data), "spaces": sized(64, b" " * 64),
        "a list": sized(2, b"[]"), "a number": sized(1, b"7"), "no tensors": sized(2, b"{}"),
        "not UTF-8": good.replace(b"openfold", b"open\xff\xfeld", 1), "zero byte": good.replace(b"openfold", b"open\0old", 1),
        "control byte": good.replace(b"openfold", b"open\x01old", 1), "deep": sized(len(deep), deep),
        "text behind the JSON": sized(length + 8, head + b"}garbage" + data), "zip": b"PK\x03\x04" + good,
        "npy": arrays.npy("F32", [2, 2], [1, 2, 3, 4]), "text": b"this is no safetensors file\n" * 9,
    }


def change(name, **fields):
    """A mutation that sets fields of one tensor's entry (None: takes them out)."""
    def mutate(file):
        for key, value in fields.items():
            if value is None:
                del file.header[name][key]
            else:
                file.header[name][key] = value
    return mutate


def offsets(name, start=0, stop=0):
    """Moves the ends of one tensor's span."""
    def mutate(file):
        old = file.header[name]["data_offsets"]
        file.header[name]["data_offsets"] = [old[0] + start, old[1] + stop]
    return mutate


def swap_whole(name, value):
    def mutate(file):
        file.header[name] = value
    return mutate


def meta(key, value):
    """Sets one metadata string; None takes it out."""
    def mutate(file):
        if value is None:
            del file.metadata[key]
        else:
            file.metadata[key] = value
    return mutate


def variant(**fields):
    def mutate(file):
        parsed = json.loads(file.metadata["variant"])
        for key, value in fields.items():
            if value is None:
                del parsed[key]
            else:
                parsed[key] = value
        file.metadata["variant"] = json.dumps(parsed)
    return mutate


def reshaped(name, shape):
    """The same bytes under another shape."""
    return change(name, shape=shape)


def dropped(name):
    return lambda file: file.drop(name)


def added(name, dtype="F32", shape=(8,)):
    count = 1
    for extent in shape:
        count *= extent
    return lambda file: file.add(name, dtype, list(shape), [1.0] * count)


def same_span(file):
    file.header["b.weight"]["data_offsets"] = file.header["a.weight"]["data_offsets"]


PLAIN = {
    # the format
    "no dtype": change("m", dtype=None), "dtype F33": change("m", dtype="F33"), "dtype 4": change("m", dtype=4),
    "dtype I64": change("m", dtype="I64"), "dtype F64 on fp32 bytes": change("m", dtype="F64"),
    "dtype F16 on fp32 bytes": change("m", dtype="F16"), "no shape": change("m", shape=None),
    "shape a string": change("m", shape="2,1,5,16"), "shape a number": change("m", shape=160),
    "shape of strings": change("m", shape=["2", "1", "5", "16"]), "negative extent": change("m", shape=[-2, 1, -5, 16]),
    "fractional extent": change("m", shape=[2.5, 1, 4, 16]), "extent 1e300": change("m", shape=[1e300, 1, 5, 16]),
    "extent 2^62": change("m", shape=[HUGE, 1, 5, 16]), "product past 2^64": change("m", shape=[2 ** 32, 2 ** 32, 5, 16]),
    "product wraps to the right size": change("m", shape=[2 ** 33, 2 ** 31, 5, 16]),
    "null extent": change("m", shape=[None, 1, 5, 16]), "rank 40": change("m", shape=[160] + [1] * 39),
    "shape too small": change("m", shape=[2, 1, 5, 15]), "no offsets": change("m", data_offsets=None),
    "one offset": change("m", data_offsets=[0]), "three offsets": change("m", data_offsets=[0, 8, 16]),
    "offsets of strings": change("m", data_offsets=["0", "640"]), "offset -4": offsets("m", -100000, -100000),
    "offsets reversed": change("m", data_offsets=[640, 0]), "offset 0.5": offsets("m", 0.5, 0.5),
    "offset past the end": offsets("m", 10 ** 6, 10 ** 6), "offset 2^63": offsets("m", 2 ** 63, 2 ** 63),
    "offset 1e400": change("m", data_offsets=[0, 1e308]), "span one longer": offsets("m", 0, 4),
    "span one shorter": offsets("m", 0, -4), "two spans the same": same_span, "spans that overlap": offsets("a.bias", 4, 4),
    "entry a list": swap_whole("m", [1, 2]), "entry a string": swap_whole("m", "F32"), "entry null": swap_whole("m", None),
    "metadata a list": swap_whole("__metadata__", []), "metadata a string": swap_whole("__metadata__", "opm"),
    "metadata not of strings": meta("op", 7),
    # the case
    "no metadata": lambda file: file.header.pop("__metadata__"), "no op": meta("op", None), "op empty": meta("op", ""),
    "op pairformer": meta("op", "pairformer"), "op trimul": meta("op", "trimul"), "no variant": meta("variant", None),
    "variant empty": meta("variant", ""), "variant no JSON": meta("variant", "{oops"), "variant a list": meta("variant", "[]"),
    "variant unknown": meta("variant", "alphafold9"), "variant with a stranger": variant(colour="blue"),
    "variant without divide": variant(divide=None), "variant without residual": variant(residual=None),
    "divide sideways": variant(divide="sideways"), "divide 1": variant(divide=1), "eps a string": variant(eps="0.001"),
    "eps negative": variant(eps=-1.0), "eps null": meta("variant", Good.plain.metadata["variant"].replace("0.001", "null")),
    "eps NaN": meta("variant", Good.plain.metadata["variant"].replace("0.001", "NaN")),
    "eps 1e999": meta("variant", Good.plain.metadata["variant"].replace("0.001", "1e999")),
    "ln_eps negative": variant(ln_eps=-1e-5), "count of something": variant(count="single"), "bias_a 1": variant(bias_a=1),
    "mask_sides none": variant(mask_sides="none"), "no input": dropped("m"), "no weight": dropped("a.weight"),
    "no gain": dropped("norm.weight"), "no bias that the variant has": dropped("a.bias"),
    "a bias that it lacks": variant(bias_a=False), "residual that is not there": variant(residual=True),
    "residual that it lacks": added("residual", shape=(2, 5, 5, 8)), "a stranger": added("c.weight"),
    "weight of another op": added("a_gate.weight", shape=(8, 16)), "weight transposed": reshaped("a.weight", [16, 8]),
    "weight flat": reshaped("a.weight", [128]), "weight of one dimension more": reshaped("a.weight", [8, 16, 1]),
    "out.weight transposed": reshaped("out.weight", [64, 8]), "bias a matrix": reshaped("a.bias", [2, 4]),
    "input of rank 3": reshaped("m", [2, 5, 16]), "input of another order": reshaped("m", [1, 2, 5, 16]),
    "mask of rank 2": reshaped("mask", [2, 5]), "mask transposed": reshaped("mask", [2, 5, 1]),
    "expected of another shape": reshaped("expected", [2, 5, 8, 5]), "expected flat": reshaped("expected", [400]),
}


def view(name, **fields):
    """Changes one entry of views; None takes a field out."""
    def mutate(file):
        views = json.loads(file.metadata["views"])
        for key, value in fields.items():
            if value is None:
                del views[name][key]
            else:
                views[name][key] = value
        file.metadata["views"] = json.dumps(views)
    return mutate


def new_view(name, entry):
    def mutate(file):
        views = json.loads(file.metadata["views"])
        views[name] = entry
        file.metadata["views"] = json.dumps(views)
    return mutate


LEGAL = {"from": "peer.p_in_weight", "offset": 0, "strides": [16, 1]}

VIEWED = {
    "views no JSON": meta("views", "{oops"), "views a list": meta("views", "[]"), "views a string": meta("views", '"x"'),
    "views empty text": meta("views", ""), "view of a stranger": new_view("c_proj.weight", LEGAL),
    "view of the input": new_view("z", LEGAL), "view a list": new_view("a_proj.weight", []),
    "view null": new_view("a_proj.weight", None), "from nowhere": view("a_proj.weight", **{"from": "peer.nothing"}),
    "from 7": view("a_proj.weight", **{"from": 7}), "no from": view("a_proj.weight", **{"from": None}),
    "no offset": view("a_proj.weight", offset=None), "no strides": view("a_proj.weight", strides=None),
    "offset -1": view("a_proj.weight", offset=-1), "offset past the end": view("b_proj.weight", offset=257),
    "offset 2^62": view("a_proj.weight", offset=HUGE), "offset 0.5": view("a_proj.weight", offset=0.5),
    "offset 1e300": view("a_proj.weight", offset=1e300), "offset a string": view("a_proj.weight", offset="0"),
    "one stride": view("a_proj.weight", strides=[16]), "three strides": view("a_proj.weight", strides=[16, 1, 1]),
    "stride past the end": view("a_proj.weight", strides=[34, 1]), "stride -16": view("a_proj.weight", strides=[-16, 1]),
    "stride 2^61": view("a_proj.weight", strides=[2 ** 61, 1]), "stride 2^60 both": view("a_proj.weight", strides=[2 ** 60, 2 ** 60]),
    "stride 1.5": view("a_proj.weight", strides=[16, 1.5]), "stride null": view("a_proj.weight", strides=[16, None]),
    "strides a string": view("a_proj.weight", strides="16,1"), "a stranger in a view": view("a_proj.weight", dtype="F32"),
    "peer's array gone": dropped("peer.p_in_weight"), "direction backwards": variant(direction="backwards"),
    "direction 1": variant(direction=1), "gate_input none": variant(gate_input="none"), "biases a string": variant(biases="all"),
    "biases of a stranger": variant(biases=["a_gate", "c_gate"]), "biases of numbers": variant(biases=[1]),
    "no biases": variant(biases=None), "z not square": reshaped("z", [1, 49, 1, 16]), "z of rank 3": reshaped("z", [7, 7, 16]),
}


def npy_mutations():
    shape, values = Good.plain.header["m"]["shape"], Good.plain.values("m")
    good = arrays.npy("F32", shape, values)
    data = struct.pack(f"<{len(values)}f", *values)

    def head(descr="'<f4'", order="False", dims="(2, 1, 5, 16)", rest=""):
        return arrays.npy_header(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {dims}, {rest}}}") + data

    return {
        "empty": b"", "five bytes": good[:5], "magic alone": good[:8], "wrong magic": b"\x93NUMPX" + good[6:],
        "version 0": good[:6] + b"\0\0" + good[8:], "version 9": good[:6] + b"\x09\0" + good[8:],
        "header past the end": good[:8] + b"\xff\xff" + good[10:], "header length 0": good[:8] + b"\0\0" + good[10:],
        "version 2, length 2^32-1": b"\x93NUMPY\2\0\xff\xff\xff\xff" + good[10:], "cut in the header": good[:40],
        "cut in the data": good[:-1], "no data": good[:-len(data)], "a byte behind": good + b"\0", "big endian": head("'>f4'"),
        "native endian": head("'=f4'"), "Fortran order": head(order="True"), "order 1": head(order="1"),
        "integers": head("'<i4'"), "complex": head("'<c8'"), "objects": head("'|O'"), "strings": head("'<U4'"),
        "a structure": head("[('a', '<f4')]"), "descr empty": head("''"), "descr 4": head("4"), "no descr": good.replace(b"descr", b"descx", 1),
        "no shape": good.replace(b"shape", b"shapx", 1), "a stranger": head(rest="'colour': 'blue', "),
        "twice the shape": head(rest="'shape': (2, 1, 5, 16), "), "shape a list": head(dims="[2, 1, 5, 16]"),
        "shape a number": head(dims="160"), "negative extent": head(dims="(-2, 1, -5, 16)"), "extent 2^63": head(dims=f"({2 ** 63}, 1, 5, 16)"),
        "extent 1e2": head(dims="(2, 1, 5, 1.6e1)"), "product past 2^64": head(dims=f"({2 ** 32}, {2 ** 32}, 5, 16)"),
        "product wraps to the right size": head(dims=f"({2 ** 33}, {2 ** 31}, 5, 16)"), "too small": head(dims="(2, 1, 5, 15)"),
        "too large": head(dims="(2, 1, 5, 17)"), "rank 40": head(dims="(160, " + "1, " * 39 + ")"), "rank 0": head(dims="()"),
        "shape never ends": head(dims="(2, 1, 5, 16"), "code": head(dims="(__import__('os').getpid(),)"),
        "no dictionary": arrays.npy_header("'descr'") + data, "zero byte": arrays.npy_header("{'descr'\0: 1}") + data,
        "no end of the dictionary": arrays.npy_header("{'descr': '<f4', ") + data, "bytes behind the dictionary":
            arrays.npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1, 5, 16), } + 1") + data,
        "safetensors": Good.plain.bytes(),
    }


class TestHostileFiles(command.CommandTest):
    path = command.program("EVO_TEST_EVO")

    def refused_file(self, name, content):
        """Neither run nor check takes the file; run says so once, and writes nothing."""
        bad = self.file("bad file.safetensors", content)
        if os.path.exists(os.path.join(self.folder, "out.npy")):
            os.remove(os.path.join(self.folder, "out.npy"))
        err = self.refused("run", bad, "-o", "out.npy", parts=["bad file.safetensors"])
        self.assertLess(len(err), 1200, name)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "out.npy")))
        out, _ = self.run_program("check", "--golden", bad, status=1)
        self.assertTrue(out.endswith("0 passed, 1 failed, 0 skipped\n"), out)

    def mutated(self, good, mutations):
        for name, mutate in mutations.items():
            with self.subTest(name):
                file = copy.deepcopy(good)
                mutate(file)
                self.refused_file(name, file.bytes())

    def test_good_files_are_taken(self):
        for good in (Good.plain, Good.viewed):
            out, _ = self.run_program("check", "--golden", self.file("good.safetensors", good.bytes()))
            self.assertTrue(out.endswith("1 passed, 0 failed, 0 skipped\n"), out)

    def test_raw(self):
        for name, content in raw_mutations().items():
            with self.subTest(name):
                self.refused_file(name, content)

    def test_same_key_twice(self):
        text = json.dumps(Good.plain.header)
        entry = json.dumps(Good.plain.header["m"])
        self.refused_file("m twice", Good.plain.bytes(text[:-1] + f', "m": {entry}}}'))

    def test_headers(self):
        self.mutated(Good.plain, PLAIN)

    def test_views(self):
        self.mutated(Good.viewed, VIEWED)

    def test_folders_and_pipes(self):
        self.refused("run", self.folder, parts=[self.folder])
        self.refused("run", os.path.join(self.folder, "none"), parts=["none"])
        self.refused("run", os.devnull, parts=[os.devnull])

    def file_of_holes(self):
        """A file of 2^40 zeros is refused by its first bytes, not read into memory."""
        path = self.file("holes.safetensors")
        with open(path, "r+b") as file:
            file.truncate(2 ** 40)
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        err = self.refused("run", path, parts=["holes.safetensors"], preexec_fn=limit)
        self.assertNotIn("memory", err)
        self.refused("run", "/dev/zero", parts=["/dev/zero"], preexec_fn=limit)

    if command.SCALE == 1:  # a sanitizer's own memory does not fit the limit
        test_file_of_holes = file_of_holes

    def test_npy(self):
        weights = copy.deepcopy(Good.plain)
        for name in ("m", "mask", "expected"):
            weights.drop(name)
        self.file("weights.safetensors", weights.bytes())
        arguments = ["run", "--op", "opm", "--weights", "weights.safetensors", "-o", "out.npy", "--input"]
        good = self.file("good.npy", arrays.npy("F32", Good.plain.header["m"]["shape"], Good.plain.values("m")))
        self.run_program(*arguments, good)
        os.remove(os.path.join(self.folder, "out.npy"))
        for name, content in npy_mutations().items():
            with self.subTest(name):
                self.refused(*arguments, self.file("bad one.npy", content), parts=["bad one.npy"])
                self.assertFalse(os.path.exists(os.path.join(self.folder, "out.npy")))

    def test_counts(self):
        """The tables above are not to shrink unseen."""
        self.assertGreaterEqual(len(raw_mutations()) + len(PLAIN) + len(VIEWED), 120)
        self.assertGreaterEqual(len(npy_mutations()), 40)


if __name__ == "__main__":
    command.main()

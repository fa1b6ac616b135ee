# arrays.py: reads and writes safetensors and npy for the tests under cli/, with nothing but the standard library, and
# without checks: bad files are the point.
import json
import struct

CODES = {"F64": "d", "F32": "f", "F16": "e", "U8": "B"}


class SafeTensors:
    """A file as its parts: a header (dict, in order) and the bytes behind it."""

    def __init__(self, path=None):
        self.header, self.data = {}, b""
        if path is not None:
            with open(path, "rb") as file:
                raw = file.read()
            length = struct.unpack("<Q", raw[:8])[0]
            self.header, self.data = json.loads(raw[8:8 + length]), raw[8 + length:]

    @property
    def metadata(self):
        return self.header["__metadata__"]

    def names(self):
        return [name for name in self.header if name != "__metadata__"]

    def values(self, name):
        entry = self.header[name]
        start, stop = entry["data_offsets"]
        code = CODES[entry["dtype"]]
        return list(struct.unpack(f"<{(stop - start) // struct.calcsize(code)}{code}", self.data[start:stop]))

    def drop(self, name):
        """Removes a tensor and its bytes."""
        start, stop = self.header.pop(name)["data_offsets"]
        self.data = self.data[:start] + self.data[stop:]
        for other in self.names():
            offsets = self.header[other]["data_offsets"]
            if offsets[0] >= stop:
                self.header[other]["data_offsets"] = [offsets[0] - (stop - start), offsets[1] - (stop - start)]

    def add(self, name, dtype, shape, values):
        start = len(self.data)
        self.data += struct.pack(f"<{len(values)}{CODES[dtype]}", *values)
        self.header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, len(self.data)]}

    def bytes(self, text=None):
        """The file; `text` takes the place of the header's JSON. Padded, as writers do, to 8 bytes."""
        head = (json.dumps(self.header) if text is None else text).encode()
        head += b" " * (-len(head) % 8)
        return struct.pack("<Q", len(head)) + head + self.data


def npy_header(text, version=1):
    """An npy file's beginning from its dictionary's text."""
    prefix = 10 if version == 1 else 12
    head = text.encode("latin1") + b" " * (-(prefix + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(head)) + head


def npy(dtype, shape, values, version=1):
    descr = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "U8": "|u1"}[dtype]
    dims = "(" + "".join(f"{extent}, " for extent in shape).rstrip() + ")"
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {dims}, }}"
    return npy_header(text, version) + struct.pack(f"<{len(values)}{CODES[dtype]}", *values)


def read_npy(path):
    """Shape and values of a well-formed npy file of floats."""
    with open(path, "rb") as file:
        raw = file.read()
    assert raw[:8] == b"\x93NUMPY\x01\x00"
    length = struct.unpack("<H", raw[8:10])[0]
    fields = eval(raw[10:10 + length].decode(), {"__builtins__": {}})  # a dictionary that the tests' own program wrote
    assert not fields["fortran_order"] and (10 + length) % 64 == 0
    code = {"<f8": "d", "<f4": "f", "<f2": "e"}[fields["descr"]]
    data = raw[10 + length:]
    return fields["shape"], list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))


def relative_error(got, want):
    assert len(got) == len(want)
    square = sum((a - b) ** 2 for a, b in zip(got, want))
    return (square / sum(b * b for b in want)) ** 0.5

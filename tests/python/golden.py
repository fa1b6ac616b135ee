"""golden.py: reads the golden files (tests/golden/README.md): expected outputs that other projects' own code computed."""
import json
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent.parent / "golden"
FILES = sorted(FOLDER.glob("*.safetensors"))
WHOLE, WORST_PAIR = 1e-5, 1e-4  # bounds of fp32, with their reasons in tests/golden/README.md


class Golden:
    """One case: `tensors` by name, and the metadata with its JSON parsed."""

    def __init__(self, path):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        meta = header.pop("__metadata__")
        self.name, self.op, self.peer = path.stem, meta["op"], path.stem.split("_")[-3]
        self.variant = json.loads(meta["variant"])
        self.views = json.loads(meta["views"]) if "views" in meta else {}
        types = {"F32": np.float32, "F64": np.float64, "U8": np.uint8}
        self.tensors = {}
        for name, entry in header.items():
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            self.tensors[name] = np.frombuffer(data[begin:end], types[entry["dtype"]]).reshape(entry["shape"]).copy()
        self.expected = self.tensors.pop("expected")
        self.input = self.tensors["m" if self.op == "opm" else "z"]
        self.mask = self.tensors.get("mask")
        self.residual = self.tensors.get("residual")

    def weights(self, own_layout=True):
        """The weights by the library's names: canonical, or as views of the peer's own arrays."""
        names = [name for name in self.tensors if "." in name and not name.startswith("peer.")]
        weights = {name.replace(".", "_"): self.tensors[name] for name in names}
        for name, view in (self.views if own_layout else {}).items():
            array = self.tensors[view["from"]].reshape(-1)
            shape = self.tensors[name].shape
            strides = [stride * array.itemsize for stride in view["strides"]]
            weights[name.replace(".", "_")] = np.lib.stride_tricks.as_strided(array[view["offset"]:], shape, strides)
        return weights

    def peer_arrays(self):
        """The peer's own arrays by its names; where it stores a weight as the canonical one is, that is not repeated."""
        return {name[len("peer."):]: array for name, array in self.tensors.items() if name.startswith("peer.")}


def errors(got, want):
    """Relative Frobenius error over all, and of the worst pair."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    pairs = np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want)), float(pairs.max())


def judge(got, want):
    """Fails unless both errors are within fp32's bounds."""
    whole, worst = errors(got, want)
    assert np.isfinite(np.asarray(got)).all()
    assert whole <= WHOLE and worst <= WORST_PAIR, f"error {whole:.2g} over all, {worst:.2g} in the worst pair"

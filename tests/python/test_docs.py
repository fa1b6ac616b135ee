"""The code of docs/pytorch.md and of README's Python section, run as a reader would, with stand-ins for other projects."""
import re
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import reference_modules as reference  # noqa: E402
import standins  # noqa: E402

ROOT = Path(__file__).parent.parent.parent


def blocks(name):
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


class Trunk(torch.nn.Module):
    def __init__(self, block):
        super().__init__()
        self.trunk = torch.nn.ModuleList(block() for _ in range(2))


class AlphaFold(Trunk):
    def __init__(self, config):
        assert config == "config of model_1"
        super().__init__(standins.OpenFoldBlock)


class Boltz2(Trunk):
    @classmethod
    def load_from_checkpoint(cls, path, map_location):
        assert path.endswith(".ckpt") and map_location == "cpu"
        return cls(standins.BoltzLayer)


@pytest.fixture
def projects(monkeypatch):
    """Importable modules with the names that the page uses."""
    for name, contents in {
        "openfold.config": {"model_config": lambda name: f"config of {name}"},
        "openfold.model.model": {"AlphaFold": AlphaFold},
        "boltz.model.models.boltz2": {"Boltz2": Boltz2},
        "boltz.model.layers.triangular_mult": {
            "TriangleMultiplicationIncoming": standins.TriangleMultiplicationIncoming},
    }.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            if path not in sys.modules:
                monkeypatch.setitem(sys.modules, path, types.ModuleType(path))
        for attribute, value in contents.items():
            monkeypatch.setattr(sys.modules[name], attribute, value, raising=False)


CODE = blocks("docs/pytorch.md")


def test_there_is_code():
    assert len(CODE) >= 5 and len(blocks("README.md")) == 1


@pytest.mark.parametrize("index", range(len(CODE)))
def test_code_of_the_page(index, projects, capsys):
    names = {}
    exec(compile(CODE[index], f"docs/pytorch.md, block {index + 1}", "exec"), names)
    report = names.get("report")
    if report is not None:
        assert len(report.swapped) == 6 and not report.left


def test_ten_lines_of_the_readme():
    """They give the reference modules' output, to 1e-6."""
    code = blocks("README.md")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    opm, trimul = reference.OuterProductMean(64, 64), reference.TriangleMultiplication(64, 32)
    opm.load_state_dict(names["opm"].state_dict())
    trimul.load_state_dict(names["trimul"].state_dict())
    with torch.no_grad():
        pair = opm(names["msa"], names["msa_mask"])
        want = pair + trimul(pair, names["pair_mask"])
    for got, truth in ((names["pair"], pair), (names["out"], want)):
        assert float((got - truth).norm() / truth.norm()) <= 1e-6

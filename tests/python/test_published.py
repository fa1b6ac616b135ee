"""Other projects' modules and arrays: from_openfold, from_boltz, from_alphafold3, from_protenix, patch."""
import copy
import os

import golden
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import evoformer.torch as fused  # noqa: E402
import reference_modules as reference  # noqa: E402
import standins  # noqa: E402
from torch import nn  # noqa: E402

DEVICE = torch.device(os.environ.get("EVO_TEST_DEVICE", "cpu").replace("hip", "cuda"))
SEED = int(os.environ.get("EVO_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
FP32 = 2e-6  # two small fp32 results


@pytest.fixture(autouse=True)
def seeded():
    print(f"EVO_TEST_SEED={SEED}")
    torch.manual_seed(SEED)


def error(got, want):
    assert got.shape == want.shape
    got, want = got.detach().double(), want.detach().double()
    return float((got - want).norm() / want.norm())


def randomize(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape) * (parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1))
    return module.to(DEVICE)


def pair(n=9, c=16):
    return torch.randn(2, n, n, c, device=DEVICE), (torch.rand(2, n, n, device=DEVICE) < 0.8).float()


def msa(s=5, n=9, c=24):
    return torch.randn(2, s, n, c, device=DEVICE), (torch.rand(2, s, n, device=DEVICE) < 0.8).float()


MODULES = [
    (fused.from_openfold, lambda: standins.OpenFoldOuterProductMean(24, 16, 8), msa),
    (fused.from_openfold, lambda: standins.OpenFoldOuterProductMean(24, 16, 8, eps=0.5), msa),
    (fused.from_openfold, lambda: standins.TriangleMultiplicativeUpdate(16, 8), pair),
    (fused.from_openfold, lambda: standins.TriangleMultiplicativeUpdate(16, 8, _outgoing=False), pair),
    (fused.from_openfold, lambda: standins.FusedTriangleMultiplicationUpdate(16, 8), pair),
    (fused.from_openfold, lambda: standins.FusedTriangleMultiplicationUpdate(16, 8, _outgoing=False), pair),
    (fused.from_boltz, lambda: standins.BoltzOuterProductMean(24, 8, 16), msa),
    (fused.from_boltz, lambda: standins.TriangleMultiplicationOutgoing(16), pair),
    (fused.from_boltz, lambda: standins.TriangleMultiplicationIncoming(16), pair),
    (fused.from_protenix, lambda: standins.ProtenixOuterProductMean(24, 16, 8), msa),
    (fused.from_protenix, lambda: standins.ProtenixTriangleMultiplication(16, 8), pair),
    (fused.from_protenix, lambda: standins.ProtenixTriangleMultiplication(16, 8, _outgoing=False), pair),
]
EACH = pytest.mark.parametrize("convert, make, inputs", MODULES, ids=lambda value: getattr(value, "__name__", ""))


@EACH
def test_from_modules(convert, make, inputs):
    original = randomize(make())
    module = convert(original)
    x, mask = inputs()
    assert isinstance(module, (fused.OuterProductMean, fused.TriangleMultiplication))
    for grad in (torch.no_grad, torch.enable_grad):
        with grad():
            assert error(module(x, mask), original(x, mask)) <= FP32
    # The same parameters under the same names: what is loaded or trained in one is in the other.
    assert dict(module.named_parameters()).keys() == dict(original.named_parameters()).keys()
    assert all(a is b for a, b in zip(module.state_dict(keep_vars=True).values(),
                                      (original.state_dict(keep_vars=True)[name] for name in module.state_dict())))
    randomize(original)
    with torch.no_grad():
        assert error(module(x, mask), original(x, mask)) <= FP32
    module(x, mask).square().sum().backward()
    got = [parameter.grad.clone() for parameter in original.parameters()]
    original.zero_grad()
    original(x, mask).square().sum().backward()
    for gradient, parameter in zip(got, original.parameters()):
        assert error(gradient, parameter.grad) <= 1e-5


@EACH
def test_from_state_dicts(convert, make, inputs):
    """Names and arrays, as a checkpoint has them."""
    original = randomize(make())
    outgoing = getattr(original, "_outgoing", "Incoming" not in type(original).__name__)
    state = {name: value.cpu().numpy() for name, value in original.state_dict().items()}
    direction = None if inputs is msa else "outgoing" if outgoing else "incoming"
    more = {"direction": direction} if direction else {}
    module = convert(state, **more).to(DEVICE)
    x, mask = inputs()
    if getattr(original, "eps", 1e-3) == 1e-3:
        with torch.no_grad():
            assert error(module(x, mask), original(x, mask)) <= FP32
    assert set(dict(module.named_children())) <= {"layer_norm", "layer_norm_in", "layer_norm_out", "proj_a", "proj_b",
                                                  "gate_a", "gate_b", "out_proj", "out_gate"}
    if direction:
        with pytest.raises(ValueError, match="pass direction="):
            convert(state)


PEERS = {"openfold": fused.from_openfold, "openfold-fused": fused.from_openfold, "boltz": fused.from_boltz,
         "protenix": fused.from_protenix, "openfold3": fused.from_protenix, "alphafold3": fused.from_alphafold3}


@pytest.mark.parametrize("path", [path for path in golden.FILES if path.stem.split("_")[-3] in PEERS],
                         ids=lambda path: path.stem)
def test_golden_arrays(path):
    case = golden.Golden(path)
    convert = PEERS[case.peer]
    arrays = case.peer_arrays()
    if case.peer != "alphafold3":  # what a file has under its canonical name alone, under the project's
        layouts = [p for p in fused._published.PUBLISHED if p.op == case.op and p.project == convert.__name__[5:]]
        places = next(p.places for p in layouts if not arrays or any(place.half is not None for place in p.places.values()))
        for name, array in case.tensors.items():
            layer, _, leaf = name.rpartition(".")
            if layer in places and places[layer].half is None:
                arrays.setdefault(f"{places[layer].module}.{leaf}", array)
    direction = case.variant.get("direction")
    module = convert(arrays, **({"direction": direction} if direction else {})).to(DEVICE)
    given = [None if array is None else torch.from_numpy(array).to(DEVICE) for array in (case.input, case.mask)]
    residual = torch.from_numpy(case.residual).to(DEVICE) if case.variant["residual"] else None
    with torch.no_grad():
        golden.judge(module(*given, residual).cpu(), case.expected)
    if case.peer == "alphafold3":
        nested = {}
        for name, array in arrays.items():
            scope, _, leaf = name.rpartition(".")
            nested.setdefault("scope/" + scope if scope else "scope", {})[leaf] = array
        inside = {name.replace("scope/", "").replace("scope", ""): value for name, value in nested.items()}
        flat = {name: value for name, value in inside.pop("", {}).items()}
        again = convert({**inside, **flat}, **({"direction": direction} if direction else {})).to(DEVICE)
        with torch.no_grad():
            assert torch.equal(again(*given), module(*given))


def test_refused_conversions():
    with pytest.raises(ValueError, match="no module of boltz"):
        fused.from_boltz(standins.TriangleMultiplicativeUpdate(16, 8))
    with pytest.raises(ValueError, match="no module of openfold has these names: x"):
        fused.from_openfold({"x": torch.ones(3)})
    with pytest.raises(ValueError, match="not AlphaFold 3's"):
        fused.from_alphafold3({"projection.weights": torch.ones(3, 3)}, direction="outgoing")
    state = standins.BoltzOuterProductMean(24, 8, 16).state_dict()
    state["norm.weight"] = torch.ones(5)
    with pytest.raises(ValueError, match=r"norm_weight has shape \[5\], expected \[24\]"):
        fused.from_boltz(state)


# --- whole models ---


class Model(nn.Module):
    def __init__(self, block, count=2):
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(count))

    def forward(self, m, z, msa_mask, pair_mask, **more):
        for block in self.blocks:
            z = block(m, z, msa_mask, pair_mask, **more)
        return z


@pytest.mark.parametrize("block, calls", [
    (standins.OpenFoldBlock, [{}, {"chunk_size": 4}, {"inplace_safe": True}]),
    (standins.BoltzLayer, [{}, {"use_kernels": True}]),
], ids=["openfold", "boltz"])
def test_patch(block, calls):
    model = randomize(Model(block))
    original = copy.deepcopy(model)
    names = list(model.state_dict())
    report = fused.patch(model)
    assert len(report.swapped) == 6 and not report.left
    assert report.swapped["blocks.1.tri_mul_in"].endswith("incoming")
    assert "swapped blocks.0.outer_product_mean" in str(report)
    m, msa_mask = msa()
    z, pair_mask = pair()
    for more in calls:
        with torch.no_grad():
            want = original(m, z.clone(), msa_mask, pair_mask, **more)
            assert error(model(m, z.clone(), msa_mask, pair_mask, **more), want) <= 1e-5
    assert sorted(model.state_dict()) == sorted(names)
    randomize(original)
    model.load_state_dict(original.state_dict())
    with torch.no_grad():
        assert error(model(m, z, msa_mask, pair_mask), original(m, z, msa_mask, pair_mask)) <= 1e-5
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert error(compiled(m, z, msa_mask, pair_mask), original(m, z, msa_mask, pair_mask)) <= 1e-5
    assert not fused.patch(model).swapped


def test_in_place_addition():
    original = randomize(standins.TriangleMultiplicativeUpdate(16, 8))
    module = fused.from_openfold(original)
    z, mask = pair()
    want = z + original(z, mask).detach()
    with torch.no_grad():
        got = module(z, mask, inplace_safe=True, _add_with_inplace=True)
    assert got is z and error(z, want) <= FP32
    with pytest.raises(TypeError, match="unexpected argument 'other'"):
        module(z, mask, other=1)
    with pytest.raises(TypeError, match="two values"):
        module(z, z=z)
    with pytest.raises(TypeError, match="lacks 'z'"):
        module(mask=mask)


def test_patch_of_fresh_models():
    """Gates and output layers begin as zeros; the comparison must not be of zeros."""
    model = Model(standins.OpenFoldBlock).to(DEVICE)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert len(fused.patch(model).swapped) == 6
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_patch_leaves():
    class Extra(standins.TriangleMultiplicativeUpdate):
        def __init__(self):
            super().__init__(16, 8)
            self.scale = nn.Parameter(torch.ones(1))

    class Argument(standins.TriangleMultiplicativeUpdate):
        def forward(self, z, mask, temperature=1.0):
            return super().forward(z, mask) * temperature

    class TriangleMultiplicationOther(nn.Module):
        def __init__(self):
            super().__init__()
            self.left = nn.Linear(16, 8)

    class Nameless(standins._BoltzTriangle):
        equation = "bikc,bjkc->bijc"

    model = nn.ModuleDict({
        "other_formula": standins.GatedFirst(16, 8), "extra": Extra(), "argument": Argument(16, 8),
        "unknown": TriangleMultiplicationOther(), "nameless": Nameless(16), "hooked": standins.BoltzOuterProductMean(24, 8, 16),
        "norms": standins.TriangleMultiplicativeUpdate(16, 8), "good": standins.TriangleMultiplicationOutgoing(16)})
    model["shared"] = model["good"]
    model["hooked"].proj_a.register_forward_hook(lambda *_: None)
    model["norms"].layer_norm_out.eps = 1e-3
    randomize(model)
    report = fused.patch(model)
    assert set(report.swapped) == {"good", "shared"} and model["good"] is model["shared"]
    for name, why in (("other_formula", "results differ"), ("extra", "scale"), ("argument", "temperature"),
                      ("unknown", "left.weight"), ("nameless", "direction"), ("hooked", "hooks"), ("norms", "eps")):
        assert why in report.left[name], report.left[name]
        assert f"left {name}" in str(report)
        assert not isinstance(model[name], (fused.OuterProductMean, fused.TriangleMultiplication))
    whole = fused.patch(standins.TriangleMultiplicationOutgoing(16).to(DEVICE))
    assert "from_boltz" in whole.left[""]
    assert "nothing to swap" in str(fused.patch(nn.Linear(3, 3)))


def test_patch_of_the_reference_modules():
    model = randomize(nn.ModuleDict({"opm": reference.OuterProductMean(24, 16, 8),
                                     "trimul": reference.TriangleMultiplication(16, 8)}))
    original = copy.deepcopy(model)
    report = fused.patch(model, static_weights=True)
    assert set(report.swapped) == {"opm", "trimul"} and model["opm"].static_weights
    m, msa_mask = msa()
    z, pair_mask = pair()
    with torch.no_grad():
        assert error(model["opm"](m, msa_mask), original["opm"](m, msa_mask)) <= FP32
        assert error(model["trimul"](pair_repr=z, pair_mask=pair_mask), original["trimul"](z, pair_mask)) <= FP32


def test_copies_of_patched_models():
    model = randomize(Model(standins.BoltzLayer))
    fused.patch(model)
    other = copy.deepcopy(model)
    m, msa_mask = msa()
    z, pair_mask = pair()
    with torch.no_grad():
        want = model(m, z, msa_mask, pair_mask)
        assert torch.equal(other(m, z, msa_mask, pair_mask), want)
        other.blocks[0].tri_mul_out.p_in.weight.mul_(2)
        assert not torch.equal(other(m, z, msa_mask, pair_mask), want)
        assert torch.equal(model(m, z, msa_mask, pair_mask), want)

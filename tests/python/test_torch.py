"""evoformer.torch beside the modules that it replaces, on EVO_TEST_DEVICE (default cpu)."""
import copy
import os
import pickle
import threading

import golden
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import evoformer  # noqa: E402
import evoformer.torch as fused  # noqa: E402
import reference_modules as reference  # noqa: E402
from evoformer.torch import _operators  # noqa: E402

DEVICE = torch.device(os.environ.get("EVO_TEST_DEVICE", "cpu").replace("hip", "cuda"))
GPU = DEVICE.type == "cuda"
SEED = int(os.environ.get("EVO_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
FP32 = 1e-6  # between two fp32 results; each is within 3e-7 of the truth (docs/numerics.md), small outputs up to twice that


@pytest.fixture(autouse=True)
def seeded():
    print(f"EVO_TEST_SEED={SEED}")
    torch.manual_seed(SEED)


def error(got, want):
    assert got.shape == want.shape
    got, want = got.detach().double(), want.detach().double()
    return float((got - want).norm() / want.norm())


def randomize(module):
    """LayerNorms and biases too: a fresh module's are ones and zeros."""
    with torch.no_grad():
        for parameter in module.parameters():
            scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1
            parameter.copy_(torch.randn(parameter.shape) * scale)
    return module.to(DEVICE)


def opm_pair(msa_dim=64, pair_dim=64, hidden_dim=32, batch=2, s=8, n=32):
    original = randomize(reference.OuterProductMean(msa_dim, pair_dim, hidden_dim))
    module = fused.OuterProductMean(msa_dim, pair_dim, hidden_dim).to(DEVICE)
    module.load_state_dict(original.state_dict())
    return original, module, (torch.randn(batch, s, n, msa_dim, device=DEVICE),
                              (torch.rand(batch, s, n, device=DEVICE) < 0.8).float())


def trimul_pair(pair_dim=64, hidden_dim=32, batch=2, n=32):
    original = randomize(reference.TriangleMultiplication(pair_dim, hidden_dim))
    module = fused.TriangleMultiplication(pair_dim, hidden_dim).to(DEVICE)
    module.load_state_dict(original.state_dict())
    return original, module, (torch.randn(batch, n, n, pair_dim, device=DEVICE),
                              (torch.rand(batch, n, n, device=DEVICE) < 0.8).float())


PAIRS = pytest.mark.parametrize("pair", [opm_pair, trimul_pair], ids=["opm", "trimul"])
SMALL = {opm_pair: dict(msa_dim=12, pair_dim=10, hidden_dim=8, s=5, n=7),
         trimul_pair: dict(pair_dim=12, hidden_dim=8, n=7)}


def kept_packs(caches):
    return sum(map(len, caches.packs.values()))


# --- the same function ---


@PAIRS
@pytest.mark.parametrize("how", ["no_grad", "inference_mode", "grad", "compiled", "compiled grad"])
def test_equals_reference(pair, how):
    original, module, inputs = pair()
    run = torch.compile(module, fullgraph=True) if "compiled" in how else module
    with {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}.get(how.split()[0], torch.enable_grad)():
        got, want = run(*inputs), original(*inputs)
    assert error(got, want) <= FP32
    assert got.requires_grad == (how not in ("no_grad", "inference_mode"))
    truth = original.double()(*(tensor.double() for tensor in inputs))
    assert error(got, truth) <= 3e-7 * (1 + 16 / got.numel() ** 0.5)


@PAIRS
def test_state_dicts_are_the_same(pair):
    original, module, _ = pair()
    assert list(module.state_dict()) == list(original.state_dict())
    assert [tuple(p.shape) for p in module.parameters()] == [tuple(p.shape) for p in original.parameters()]
    original.load_state_dict(module.state_dict())


def general(case):
    """A module of the general constructor with the golden case's weights."""
    weights = {name: torch.from_numpy(array.copy()) for name, array in case.weights().items()}
    biases = [name[:-len("_bias")] for name in weights if name.endswith("_bias")]
    v = case.variant
    if case.op == "opm":
        hidden, msa = weights["a_weight"].shape
        module = fused.OuterProductMean(msa, weights["out_weight"].shape[0], hidden, biases=biases, divide=v["divide"],
                                        mask_sides=v["mask_sides"], count_eps=v["eps"], count_min=v["min"],
                                        layer_norm_eps=v["ln_eps"])
        names = {"norm": "layer_norm", "a": "proj_a", "b": "proj_b", "out": "out_proj"}
    else:
        hidden, pair = weights["a_proj_weight"].shape
        module = fused.TriangleMultiplication(pair, hidden, direction=v["direction"], gate_input=v["gate_input"],
                                              biases=biases, out_dim=weights["out_weight"].shape[0],
                                              layer_norm_eps=v["ln_eps"])
        names = {"norm_in": "layer_norm_in", "norm_out": "layer_norm_out", "out": "out_proj", "out_gate": "out_gate",
                 **{f"{side}_{kind}": f"{kind}_{side}" for side in "ab" for kind in ("proj", "gate")}}
    state = {}
    for name, weight in weights.items():
        layer, leaf = name.rsplit("_", 1)
        state[f"{names[layer]}.{leaf}"] = weight
    module.load_state_dict(state)
    return module.to(DEVICE)


def given(case):
    residual = case.residual if case.variant["residual"] else None
    return [None if array is None else torch.from_numpy(array).to(DEVICE) for array in (case.input, case.mask, residual)]


@pytest.mark.parametrize("path", golden.FILES, ids=lambda path: path.stem)
def test_golden(path):
    case = golden.Golden(path)
    module = general(case)
    with torch.no_grad():
        golden.judge(module(*given(case)).cpu(), case.expected)
    assert module(*given(case)).requires_grad


def test_variants_by_name():
    for path in golden.FILES:
        case = golden.Golden(path)
        if case.op != "opm" or case.peer not in ("alphafold2", "alphafold3", "boltz", "helixfold"):
            continue
        weights = case.weights()
        module = fused.OuterProductMean(weights["a_weight"].shape[1], weights["out_weight"].shape[0],
                                        weights["a_weight"].shape[0], variant=case.peer)
        assert (module.proj_a.bias is not None) == ("a_bias" in weights)
        module.load_state_dict(general(case).state_dict())
        with torch.no_grad():
            golden.judge(module.to(DEVICE)(*given(case)).cpu(), case.expected)
    with pytest.raises(ValueError, match="variant is \"x\""):
        fused.OuterProductMean(4, 4, 4, variant="x")
    with pytest.raises(ValueError, match="biases has c"):
        fused.TriangleMultiplication(4, 4, biases=["c"])


# --- gradients ---


@PAIRS
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients(pair, compiled):
    """1e-5 of those of the reference module in fp64, for every parameter and the inputs."""
    original, module, inputs = pair()
    run = torch.compile(module, fullgraph=True, backend="aot_eager") if compiled else module
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    out = run(*leaves)
    weight = torch.randn_like(out)
    (out * weight).sum().backward()
    original.double()
    doubles = [tensor.double().requires_grad_() for tensor in inputs]
    (original(*doubles) * weight).sum().backward()
    for (name, parameter), truth in zip(module.named_parameters(), original.parameters()):
        assert error(parameter.grad, truth.grad) <= 1e-5, name
    for leaf, double in zip(leaves, doubles):
        assert error(leaf.grad, double.grad) <= 1e-5


@pytest.mark.skipif(GPU, reason="fp64 is for the CPU")
@pytest.mark.parametrize("make, shape", [
    *((lambda v=v: fused.OuterProductMean(4, 3, 2, variant=v), (1, 3, 3, 4))
      for v in ("alphafold2", "alphafold3", "boltz", "helixfold", "megafold", "mean")),
    *((lambda d=d, g=g: fused.TriangleMultiplication(4, 3, direction=d, gate_input=g, out_dim=5), (1, 3, 3, 4))
      for d in ("outgoing", "incoming") for g in ("raw", "normed")),
])
def test_gradients_of_variants(make, shape):
    """The formulas of the backward are those of the kernels: numerical derivatives of the latter, in fp64."""
    module = randomize(make()).double()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    mask = (torch.rand(shape[:3], dtype=torch.float64) + 0.5).requires_grad_()
    columns = module(x, mask).shape[-1]
    residual = torch.randn(1, 3, 3, columns, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in module.named_parameters()]

    def run(x, mask, residual, *parameters):
        # gradcheck writes through .data, which no version tells of: fresh tensors are packed afresh
        fresh = {name: parameter.clone() for name, parameter in zip(names, parameters)}
        return torch.func.functional_call(module, fresh, (x, mask, residual))

    assert torch.autograd.gradcheck(run, (x, mask, residual, *module.parameters()))
    assert torch.autograd.gradgradcheck(run, (x, mask, residual, *module.parameters()), fast_mode=True)


def test_16_bit_gradients():
    original, module, inputs = trimul_pair()
    module.bfloat16()
    out = module(*(tensor.bfloat16() for tensor in inputs))
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    original.load_state_dict({name: p.float() for name, p in module.state_dict().items()})
    original(*(tensor.bfloat16().float() for tensor in inputs)).sum().backward()
    for parameter, truth in zip(module.parameters(), original.parameters()):
        assert parameter.grad.dtype == torch.bfloat16
        assert error(parameter.grad, truth.grad) <= 8e-3


# --- PyTorch's own checks, modes and transforms ---


def operator_call(module, x, mask, residual=None):
    return (x, mask, residual, *module._weights(), *module._options)


@PAIRS
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("more", [(), ("bf16", torch.bfloat16)])
def test_opcheck(pair, gradient, more):
    _, module, inputs = pair(**SMALL[pair])
    inputs = [tensor.requires_grad_(gradient) for tensor in inputs]
    if more:
        more = (*more, 0, True)
    arguments = (*operator_call(module.requires_grad_(gradient), *inputs), *more)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    results = torch.library.opcheck(module._operator.default, arguments, test_utils=tests)
    assert set(results.values()) == {"SUCCESS"}


@PAIRS
def test_opcheck_without_biases_and_mask(pair):
    biases = {"biases": ()}
    module = (fused.OuterProductMean(12, 10, 8, **biases) if pair is opm_pair else
              fused.TriangleMultiplication(12, 8, **biases)).to(DEVICE)
    x = torch.randn(1, 7, 7, 12, device=DEVICE)
    assert set(torch.library.opcheck(module._operator.default, operator_call(module, x, None)).values()) == {"SUCCESS"}


@PAIRS
def test_direct_and_dispatched_are_one(pair):
    """The short way of a module and the operator give the same bits."""
    _, module, inputs = pair()
    with torch.no_grad():
        direct = module(*inputs)
        assert torch.equal(direct, module._operator(*operator_call(module, *inputs)))
        with torch.profiler.profile() as profile:
            assert torch.equal(direct, module(*inputs))
    assert any(event.key.startswith("evoformer::") for event in profile.key_averages())


@PAIRS
def test_compile_dynamic_and_training(pair):
    original, module, inputs = pair()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (32, 7, 20):
        cut = (lambda t: t[:, :, :n]) if pair is opm_pair else (lambda t: t[:, :n, :n])
        some = [cut(tensor) for tensor in inputs]
        with torch.no_grad():
            assert error(compiled(*some), original(*some)) <= FP32
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-2) for m in (original, module)]
    for _ in range(3):
        for run, optimizer in ((original, optimizers[0]), (compiled, optimizers[1])):
            optimizer.zero_grad()
            run(*inputs).square().mean().backward()
            optimizer.step()
    for trained, wanted in zip(module.parameters(), original.parameters()):
        assert error(trained, wanted) <= 1e-5


@PAIRS
def test_autocast(pair):
    original, module, inputs = pair()
    for grad in (torch.no_grad, torch.enable_grad):
        with torch.autocast(DEVICE.type, torch.bfloat16), grad():
            got, want = module(*inputs), original(*inputs)
        assert got.dtype == want.dtype == torch.bfloat16
        truth = copy.deepcopy(original).double()(*(tensor.double() for tensor in inputs))
        assert error(got, truth) <= 8e-3 * (1 + 16 / got.numel() ** 0.5)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    with torch.autocast(DEVICE.type, torch.bfloat16), torch.no_grad():
        assert torch.equal(compiled(*inputs), module(*inputs))


@PAIRS
def test_fake_tensors_and_export(pair):
    _, module, inputs = pair()
    with torch.no_grad():
        program = torch.export.export(module, inputs)
        assert error(program.module()(*inputs), module(*inputs)) <= FP32
    assert any("evoformer" in str(node.target) for node in program.graph.nodes)


@PAIRS
def test_export_of_a_used_module(pair):
    """What a module remembers of its parameters is theirs again after torch.export has put fake tensors in their place."""
    _, module, inputs = pair()
    with torch.no_grad():
        want = module(*inputs)
        torch.export.export(module, inputs)
        assert torch.equal(module(*inputs), want)


@PAIRS
@pytest.mark.parametrize("frozen", [False, True])
def test_forward_derivatives_and_functional_gradients(pair, frozen):
    original, module, inputs = pair(**SMALL[pair])
    original, module = original.double(), module.double().requires_grad_(not frozen)
    x, mask = (tensor.double() for tensor in inputs)
    along = torch.randn_like(x)
    results = [(torch.func.jvp(lambda t: run(t, mask), (x,), (along,))[1],
                torch.func.grad(lambda t: run(t, mask).square().sum())(x),
                torch.func.vmap(torch.func.grad(lambda t, m: run(t[None], m[None]).square().sum()))(x, mask),
                torch.func.jacfwd(lambda t: run(t, mask).sum())(x))
               for run in (module, original)]
    for got, want in zip(*results):
        assert error(got, want) <= 1e-10
    with torch.autograd.forward_ad.dual_level(), torch.no_grad():
        dual = module(torch.autograd.forward_ad.make_dual(x, along), mask)
        assert error(torch.autograd.forward_ad.unpack_dual(dual).tangent, results[1][0]) <= 1e-10


def test_functions_refuse_forward_derivatives():
    module = fused.TriangleMultiplication(8, 8).to(DEVICE)
    weights = {name: weight.detach() for name, weight in zip(module._kind.weights, module._weights())}
    z = torch.randn(1, 3, 3, 8, device=DEVICE)
    with torch.autograd.forward_ad.dual_level():
        plain = evoformer.triangle_multiplication(z, weights)
        with pytest.raises(TypeError, match="z requires a gradient"):
            evoformer.triangle_multiplication(torch.autograd.forward_ad.make_dual(z, z), weights)
    assert torch.equal(evoformer.triangle_multiplication(z, weights), plain)


def test_vmap_and_meta():
    _, module, (z, mask) = trimul_pair()
    with torch.no_grad():
        assert error(torch.func.vmap(module)(z[:, None], mask[:, None])[:, 0], module(z, mask)) <= FP32
        assert module(z.to("meta")).shape == z.shape


# --- inputs ---


@PAIRS
def test_layouts_of_inputs(pair):
    original, module, (x, mask) = pair()
    with torch.no_grad():
        want = original(x, mask)
        turned = x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
        odd = torch.empty(x.numel() + 1, device=DEVICE)[1:].view(x.shape).copy_(x)
        wide = torch.zeros(*x.shape[:3], 2 * x.shape[3], device=DEVICE)[..., ::2].copy_(x)
        assert odd.data_ptr() % 16 == 4
        for given in (turned, odd, wide):
            assert error(module(given, mask.transpose(1, 2).contiguous().transpose(1, 2)), want) <= FP32
        for kind in (torch.bool, torch.uint8, torch.int64, torch.float64, torch.bfloat16):
            assert error(module(x, mask.to(kind)), want) <= FP32
        assert error(module(x), original(x, torch.ones_like(mask))) <= FP32
        ones = torch.ones((), device=DEVICE).expand(mask.shape)  # all strides zero
        assert error(module(x, ones), original(x, torch.ones_like(mask))) <= FP32
        assert error(module(x, mask[:1]), original(x, mask[:1].expand(mask.shape))) <= FP32
        same = x[:1, :1, :1, :1].expand(x.shape)
        assert error(module(same, mask), original(same.contiguous(), mask)) <= 1e-5
        assert module(x[:0], mask[:0]).shape == (0, *want.shape[1:])


@PAIRS
def test_leading_dimensions_and_residual(pair):
    original, module, (x, mask) = pair()
    with torch.no_grad():
        want = original(x, mask)
        assert error(module(x[0], mask[0]), want[0]) <= FP32
        assert error(module(x[None], mask[None]), want[None]) <= FP32
        residual = torch.randn_like(want)
        assert error(module(x, mask, residual), want + residual) <= FP32
        assert error(module(x[0], mask[0], residual[0]), want[0] + residual[0]) <= FP32
        half = module(x.bfloat16(), mask, residual)
        assert half.dtype == torch.float32


@PAIRS
@pytest.mark.parametrize("dtype, bound", [(torch.float16, 1e-3), (torch.bfloat16, 8e-3)])
def test_16_bits(pair, dtype, bound):
    """design.md's bounds, against fp64 on the inputs as stored."""
    original, module, inputs = pair()
    original.to(dtype), module.to(dtype)
    low = [tensor.to(dtype) for tensor in inputs]
    with torch.no_grad():
        got = module(*low)
        truth = original.double()(*(tensor.double() for tensor in low))
    assert got.dtype == dtype
    assert error(got, truth) <= bound * (1 + 16 / got.numel() ** 0.5)
    mixed = copy.deepcopy(module).float()  # weights of another type than the input
    with torch.no_grad():
        assert error(mixed(*low), truth) <= bound * (1 + 16 / got.numel() ** 0.5)


@pytest.mark.skipif(GPU, reason="fp64 is for the CPU")
@PAIRS
def test_fp64(pair):
    original, module, inputs = pair(**SMALL[pair])
    original.double(), module.double()
    doubles = [tensor.double() for tensor in inputs]
    with torch.no_grad():
        assert error(module(*doubles), original(*doubles)) <= 1e-12


def test_refusals():
    _, module, (z, mask) = trimul_pair()
    for grad in (torch.no_grad, torch.enable_grad):
        with grad():
            for arguments, kind, text in [
                ((z[0, 0], None), ValueError, "at least three dimensions"),
                ((z[..., :5], None), ValueError, r"z has shape \[2, 32, 32, 5\], expected \[B, N, N, 64\]"),
                ((z[:, :5], None), ValueError, r"expected \[B, N, N, 64\]"),
                ((z.int(), None), TypeError, "int32"),
                ((z, mask[:, :5]), ValueError, "mask has shape"),
                ((z, mask, z[..., :5]), ValueError, "residual has shape"),
            ]:
                with pytest.raises(kind, match=text):
                    module(*arguments)
    module.workspace_limit = 1
    module._specify()
    with pytest.raises(evoformer.InvalidArgument, match="workspace_limit"), torch.no_grad():
        module(z, mask)
    for limit, kind in (-1, ValueError), (2**64, ValueError), (1e6, TypeError):
        with pytest.raises(kind, match="workspace_limit is "):
            fused.TriangleMultiplication(64, 32, workspace_limit=limit)
    with pytest.raises(ValueError, match="workspace_limit is -1"):
        module._operator(*operator_call(module, z, mask), None, None, -1, False)
    with pytest.raises(ValueError, match="compute|fp8"):
        fused.TriangleMultiplication(64, 32, compute="fp8").to(DEVICE)(z, mask)


# --- weights that change, memory ---


@PAIRS
def test_changed_weights_are_packed_again(pair):
    original, module, inputs = pair()

    def same():
        with torch.no_grad():
            return error(module(*inputs), original(*inputs)) <= FP32

    assert same()
    for change in (lambda m: m.proj_a.weight.mul_(2), lambda m: m.out_proj.bias.add_(1),
                   lambda m: setattr(m.proj_b.weight, "data", m.proj_b.weight * -1),
                   lambda m: setattr(m, "proj_a", copy.deepcopy(m.proj_b)),
                   lambda m: setattr(m.proj_a, "weight", torch.nn.Parameter(m.proj_b.weight.flip(0)))):
        with torch.no_grad():
            change(module)
            assert not same()
            change(original)
        assert same()
    randomize(original)
    module.load_state_dict(original.state_dict())
    assert same()
    kept = kept_packs(module._caches)
    for step in range(5):  # the same memory is packed again and again
        with torch.no_grad():
            for m in (original, module):
                m.proj_a.weight.mul_(1.1)
        assert same()
    assert kept_packs(module._caches) == kept


@PAIRS
def test_packs_and_memory_go_with_the_weights(pair):
    before = kept_packs(pair(**SMALL[pair])[1]._caches)
    for _ in range(3):
        original, module, inputs = pair(**SMALL[pair])
        with torch.no_grad():
            assert error(module(*inputs), original(*inputs)) <= 2e-6
        caches = module._caches
        assert kept_packs(caches) == before + 1
        del original, module
        assert kept_packs(caches) == before


def test_packs_serve_every_size():
    _, module, (z, mask) = trimul_pair()
    kept = kept_packs(_operators.trimul)
    with torch.no_grad():
        for n in (1, 2, 7, 32):
            module(z[:, :n, :n], mask[:, :n, :n])
    assert kept_packs(_operators.trimul) == kept + 1


def test_weights_of_inference_mode():
    with torch.inference_mode():
        original, module, inputs = trimul_pair()
        assert error(module(*inputs), original(*inputs)) <= FP32
        for m in (original, module):
            m.proj_a.weight.mul_(2)
        assert error(module(*inputs), original(*inputs)) <= FP32


def test_plans_are_bounded(monkeypatch):
    monkeypatch.setattr(_operators, "MAX_PLANS", 4)
    _, module, (z, mask) = trimul_pair(**SMALL[trimul_pair])
    with torch.no_grad():
        want = module(z, mask)
        for n in (1, 2, 3, 4, 5, 6, 7):
            module(z[:, :n, :n], mask[:, :n, :n])
            assert len(_operators.trimul.plans) <= 4
        assert torch.equal(module(z, mask), want)


@PAIRS
def test_copies_and_pickles(pair):
    _, module, inputs = pair()
    with torch.no_grad():
        want = module(*inputs)
        for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert torch.equal(other(*inputs), want)
            assert other._spec is module._spec
            other.proj_a.weight.mul_(2)
            assert not torch.equal(other(*inputs), want)
        assert torch.equal(module(*inputs), want)


def test_threads():
    """Modules, plans and packs may be used by any number of threads."""
    original, module, (z, mask) = trimul_pair()
    want = {n: original(z[:, :n, :n], mask[:, :n, :n]).detach() for n in range(1, 33)}
    wrong = []

    def work(first):
        with torch.inference_mode():
            for n in range(first, 33, 2):
                got = module(z[:, :n, :n], mask[:, :n, :n])
                if not error(got, want[n]) <= 2e-6:
                    wrong.append(n)

    threads = [threading.Thread(target=work, args=(first,)) for first in (1, 2, 1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_number_of_threads_is_followed():
    if GPU:
        pytest.skip("for the CPU")
    _, module, inputs = trimul_pair()
    before = torch.get_num_threads()
    with torch.no_grad():
        want = module(*inputs)
        try:
            for threads in (1, 2):
                torch.set_num_threads(threads)
                assert torch.equal(module(*inputs), want)
        finally:
            torch.set_num_threads(before)


def test_functions_take_tensors():
    original, module, (z, mask) = trimul_pair()
    weights = dict(zip(module._kind.weights, module._weights()))
    with torch.no_grad():
        got = evoformer.triangle_multiplication(z, weights, mask, gate_input="raw")
        assert isinstance(got, torch.Tensor) and got.device == z.device
        assert error(got, original(z, mask)) <= FP32
    with pytest.raises(TypeError, match="requires a gradient"):
        evoformer.triangle_multiplication(z, weights, mask)

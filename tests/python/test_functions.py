"""The functions of arrays: golden files, every kind of array, strided and misaligned views, refusals. Needs NumPy alone."""
import os
import subprocess
import sys

import evoformer
import golden
import numpy as np
import pytest

SEED = int(os.environ.get("EVO_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "little")


@pytest.fixture
def rng():
    print(f"EVO_TEST_SEED={SEED}")
    return np.random.default_rng(SEED)


def run(case, weights, **more):
    if case.op == "opm":
        v = case.variant
        return evoformer.outer_product_mean(case.input, weights, case.mask, case.residual, divide=v["divide"],
                                            mask_sides=v["mask_sides"], count_eps=v["eps"], count_min=v["min"],
                                            layer_norm_eps=v["ln_eps"], **more)
    v = case.variant
    residual = case.residual if v["residual"] else None
    return evoformer.triangle_multiplication(case.input, weights, case.mask, residual, direction=v["direction"],
                                             gate_input=v["gate_input"], layer_norm_eps=v["ln_eps"], **more)


@pytest.mark.parametrize("path", golden.FILES, ids=lambda path: path.stem)
def test_golden(path):
    case = golden.Golden(path)
    golden.judge(run(case, case.weights(own_layout=False)), case.expected)
    if case.views:
        golden.judge(run(case, case.weights()), case.expected)


VARIANTS = {"openfold": "alphafold2", "openfold3": "alphafold3", "protenix": "alphafold3", "fastfold": "alphafold2",
            "reference": "mean"}


@pytest.mark.parametrize("path", [path for path in golden.FILES if path.stem.startswith("opm")], ids=lambda p: p.stem)
def test_golden_by_variant(path):
    case = golden.Golden(path)
    got = evoformer.outer_product_mean(case.input, case.weights(), case.mask, case.residual,
                                       variant=VARIANTS.get(case.peer, case.peer))
    golden.judge(got, case.expected)


def pair(rng, n=17, c_z=12, c=8, dtype=np.float32):
    """z, weights, mask of a small triangle multiplication."""
    weights = {}
    for name, out, into in (("a_proj", c, c_z), ("a_gate", c, c_z), ("b_proj", c, c_z), ("b_gate", c, c_z),
                            ("out", c_z, c), ("out_gate", c_z, c_z)):
        weights[name + "_weight"] = (rng.standard_normal((out, into)) / np.sqrt(into)).astype(dtype)
        weights[name + "_bias"] = rng.standard_normal(out).astype(dtype)
    for name, size in (("norm_in", c_z), ("norm_out", c)):
        weights[name + "_weight"] = rng.standard_normal(size).astype(dtype)
        weights[name + "_bias"] = rng.standard_normal(size).astype(dtype)
    z = rng.standard_normal((2, n, n, c_z)).astype(dtype)
    return z, weights, rng.random((2, n, n)) < 0.8


def truth(z, weights, mask, **more):
    """The reference kernel in fp64 on the same values."""
    return evoformer.triangle_multiplication(
        z.astype(np.float64), {name: array.astype(np.float64) for name, array in weights.items()},
        mask.astype(np.float64), compute="fp64", **more)


@pytest.mark.parametrize("dtype, bound", [(np.float64, 1e-12), (np.float32, 6e-7), (np.float16, 2e-3)])
def test_types(rng, dtype, bound):
    z, weights, mask = pair(rng, dtype=dtype)
    got = evoformer.triangle_multiplication(z, weights, mask)
    assert got.dtype == dtype
    # Twice numerics.md's bound: so small an output does not average.
    assert golden.errors(got, truth(z, weights, mask))[0] <= bound


@pytest.mark.parametrize("direction", ["outgoing", "incoming"])
def test_strides_and_alignment(rng, direction):
    z, weights, mask = pair(rng)
    want = evoformer.triangle_multiplication(z, weights, mask, direction=direction)
    turned = np.ascontiguousarray(z.transpose(3, 1, 0, 2)).transpose(2, 1, 3, 0)
    odd = np.empty(z.nbytes + 4, np.uint8)[4:].view(np.float32).reshape(z.shape)
    odd[...] = z
    assert odd.ctypes.data % 16 == 4
    wide = np.zeros((2, 17, 17, 24), np.float32)
    wide[..., ::2] = z
    large = np.full((2, 17, 20, 12), np.nan, np.float32)
    for given in (turned, odd, wide[..., ::2], z[:, ::-1][:, ::-1]):
        out = large[:, :, 1:18]
        got = evoformer.triangle_multiplication(given, weights, mask, direction=direction, out=out)
        assert got is out
        assert golden.errors(got, want)[0] < 6e-7
        assert np.isnan(large[:, :, 0]).all() and np.isnan(large[:, :, 18:]).all()
        large[...] = np.nan
    repeated = np.broadcast_to(mask[:, :1], mask.shape)  # a stride of 0
    got = evoformer.triangle_multiplication(z, weights, repeated, direction=direction)
    assert golden.errors(got, truth(z, weights, repeated, direction=direction))[0] < 6e-7


def test_in_place(rng):
    z, weights, mask = pair(rng)
    want = evoformer.triangle_multiplication(z, weights, mask, z)
    got = evoformer.triangle_multiplication(z, weights, mask, z, out=z)
    assert got is z
    assert golden.errors(got, want)[0] < 6e-7
    with pytest.raises(evoformer.InvalidArgument, match="overlap|memory"):
        evoformer.triangle_multiplication(z[:1], weights, mask[:1], out=z.reshape(-1)[12:12 + z[:1].size].reshape(z[:1].shape))


def test_weights_of_other_types_and_read_only_inputs(rng):
    z, weights, mask = pair(rng)
    halves = {name: array.astype(np.float16) for name, array in weights.items()}
    z.setflags(write=False)
    assert golden.errors(evoformer.triangle_multiplication(z, halves, mask), truth(z, halves, mask))[0] < 6e-7
    with pytest.raises(ValueError, match="read-only"):
        evoformer.triangle_multiplication(z, halves, mask, out=z)


def test_plans_of_many_sizes(rng):
    for n in (1, 2, 7, 31, 33, 1, 7):
        z, weights, mask = pair(rng, n=n)
        assert golden.errors(evoformer.triangle_multiplication(z, weights, mask), truth(z, weights, mask))[0] < 2e-6
    empty = evoformer.triangle_multiplication(z[:0], weights, mask[:0])
    assert empty.shape == (0, 7, 7, 12)
    no_strides = np.broadcast_to(mask[:0, :1, :1], (0, 7, 7))
    assert evoformer.triangle_multiplication(z[:0], weights, no_strides).shape == (0, 7, 7, 12)


@pytest.mark.parametrize("change, error, text", [
    (dict(z=lambda z: z[0]), ValueError, "four dimensions"),
    (dict(z=lambda z: z[:, :5]), ValueError, r"expected \[B, N, N, c_z\]"),
    (dict(z=lambda z: z.astype(np.int32)), TypeError, "z has dtype int32"),
    (dict(z=lambda z: z.astype(">f4")), TypeError, "byte order"),
    (dict(z=lambda z: [1.0]), TypeError, "z is a list"),
    (dict(z=lambda z: np.broadcast_to(z[:1, :1, :1, :1], z.shape)), ValueError, "all strides are 0"),
    (dict(mask=lambda mask: mask[:1]), ValueError, "mask has shape"),
    (dict(mask=lambda mask: mask.astype(np.int64)), TypeError, "mask has dtype int64"),
    (dict(direction=lambda _: "up"), ValueError, "direction is 'up'"),
    (dict(compute=lambda _: "fp8"), ValueError, "compute is 'fp8'"),
    (dict(kernel=lambda _: "none"), evoformer.InvalidArgument, "none"),
    (dict(workspace_limit=lambda _: 1), evoformer.InvalidArgument, "workspace_limit"),
    (dict(layer_norm_eps=lambda _: -1.0), evoformer.InvalidArgument, "layer_norm_eps is -1"),
    (dict(layer_norm_eps=lambda _: "small"), TypeError, "layer_norm_eps is 'small'"),
    (dict(mask_max=lambda _: None), TypeError, "mask_max is None"),
    (dict(workspace_limit=lambda _: -1), ValueError, "workspace_limit is -1"),
    (dict(workspace_limit=lambda _: 1e6), TypeError, "workspace_limit is 1000000.0"),
    (dict(kernel=lambda _: 3), TypeError, "kernel is 3"),
    (dict(stream=lambda _: "main"), TypeError, "stream is 'main'"),
    (dict(stream=lambda _: 4096), ValueError, "stream is 4096, expected None"),  # an address to the library
    (dict(weights=lambda weights: list(weights)), TypeError, "weights is a list"),
])
def test_refusals(rng, change, error, text):
    z, weights, mask = pair(rng)
    arguments = dict(z=z, weights=weights, mask=mask)
    for name, function in change.items():
        arguments[name] = function(arguments.get(name))
    with pytest.raises(error, match=text):
        evoformer.triangle_multiplication(**arguments)


@pytest.mark.parametrize("name", ["count_eps", "count_min", "variant"])
def test_refused_parameters_of_the_outer_product_mean(name):
    with pytest.raises(TypeError, match=f"{name} is"):
        evoformer.outer_product_mean(np.ones((1, 2, 3, 4), np.float32), {}, **{name: b"alphafold2"})


def test_refused_weights(rng):
    z, weights, mask = pair(rng)
    with pytest.raises(ValueError, match="weights lacks norm_in_weight"):
        evoformer.triangle_multiplication(z, {k: v for k, v in weights.items() if k != "norm_in_weight"}, mask)
    with pytest.raises(ValueError, match="weights has gamma"):
        evoformer.triangle_multiplication(z, dict(weights, gamma=z), mask)
    with pytest.raises(ValueError, match=r"b_gate_bias has shape \[7\], expected \[8\]"):
        evoformer.triangle_multiplication(z, dict(weights, b_gate_bias=weights["b_gate_bias"][:7]), mask)


def test_status_and_kinds_of_errors(rng):
    z, weights, mask = pair(rng)
    with pytest.raises(evoformer.Error) as caught:
        evoformer.triangle_multiplication(z, weights, mask, layer_norm_eps=float("nan"))
    assert caught.value.status == "EVO_ERROR_INVALID_ARGUMENT"
    assert isinstance(caught.value, ValueError) and issubclass(evoformer.OutOfMemory, MemoryError)


class DLPackOnly:
    """An array that speaks DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **more):
        return self.array.__dlpack__(**more)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class InterfaceOnly:
    """An array that speaks NumPy's array interface and nothing else."""

    def __init__(self, array):
        self.__array_interface__ = array.__array_interface__
        self.owner = array


@pytest.mark.parametrize("kind", [DLPackOnly, InterfaceOnly])
def test_protocols(rng, kind):
    z, weights, mask = pair(rng)
    want = evoformer.triangle_multiplication(z, weights, mask)
    given = {name: kind(array) for name, array in weights.items()}
    out = np.full_like(z, np.nan)
    evoformer.triangle_multiplication(kind(z), given, kind(mask.astype(np.uint8)), out=kind(out))
    np.testing.assert_array_equal(out, want)
    with pytest.raises(TypeError, match="pass out="):
        evoformer.triangle_multiplication(kind(z), given)


def test_jax(rng):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    z, weights, mask = pair(rng)
    want = evoformer.triangle_multiplication(z, weights, mask)
    arrays = {name: jax.numpy.asarray(array) for name, array in weights.items()}
    got = evoformer.triangle_multiplication(jax.numpy.asarray(z), arrays, jax.numpy.asarray(mask))
    assert isinstance(got, jax.Array)
    assert golden.errors(got, want)[0] < 6e-7
    low = evoformer.triangle_multiplication(jax.numpy.asarray(z, jax.numpy.bfloat16), arrays)
    assert low.dtype == jax.numpy.bfloat16


def test_devices_and_build():
    assert evoformer.devices()[-1].name == "cpu"
    assert evoformer.version() in evoformer.build_info()
    assert evoformer.__version__ == evoformer.version()
    assert {backend.name for backend in evoformer.backends()} == {"cpu", "cuda", "hip"}


def test_info():
    done = subprocess.run([sys.executable, "-m", "evoformer", "info"], capture_output=True, text=True, check=True)
    for text in (evoformer.build_info(), "OpenMP:", "backend hip:", "device cpu:"):
        assert text in done.stdout


def test_one_openmp_runtime(rng):
    z, weights, mask = pair(rng)
    evoformer.triangle_multiplication(z, weights, mask)
    assert len(evoformer.openmp_runtimes()) == 1

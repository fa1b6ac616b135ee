"""_published.py: modules from other projects' modules or arrays, and `patch`, which swaps those of a whole model."""
from __future__ import annotations

import copy
import inspect
import re
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from .. import _ops as ops
from ._modules import REFERENCE_OPM, REFERENCE_TRIMUL, Fused, OuterProductMean, Place, Places, TriangleMultiplication

Arrays = Mapping[str, Any]
Source = Union[nn.Module, Arrays]


@dataclass(frozen=True)
class Published:
    """Where one project's module keeps the layers of an op, and what it fixes besides."""

    project: str
    op: str
    places: Places
    options: Mapping[str, Any]
    """Of the outer product mean: a variant. Of the triangle: what its gate reads."""


def _places(**modules: Union[str, Tuple[str, int]]) -> Places:
    return {layer: Place(at) if isinstance(at, str) else Place(*at) for layer, at in modules.items()}


_OPENFOLD_ENDS = {"norm_in": "layer_norm_in", "norm_out": "layer_norm_out", "out": "linear_z", "out_gate": "linear_g"}
_NORMED = {"gate_input": "normed"}
_OPENFOLD_OPM = _places(norm="layer_norm", a="linear_1", b="linear_2", out="linear_out")
_OPENFOLD_TRIMUL = _places(a_proj="linear_a_p", a_gate="linear_a_g", b_proj="linear_b_p", b_gate="linear_b_g",
                           **_OPENFOLD_ENDS)  # type: ignore[arg-type]
_OPENFOLD_FUSED = _places(a_proj=("linear_ab_p", 0), b_proj=("linear_ab_p", 1), a_gate=("linear_ab_g", 0),
                          b_gate=("linear_ab_g", 1), **_OPENFOLD_ENDS)  # type: ignore[arg-type]
PUBLISHED = (
    Published("reference", "opm", REFERENCE_OPM, {"variant": "mean"}),
    Published("reference", "trimul", REFERENCE_TRIMUL, {"gate_input": "raw"}),
    Published("openfold", "opm", _OPENFOLD_OPM, {"variant": "alphafold2"}),
    Published("openfold", "trimul", _OPENFOLD_TRIMUL, _NORMED),
    Published("openfold", "trimul", _OPENFOLD_FUSED, _NORMED),
    Published("boltz", "opm", _places(norm="norm", a="proj_a", b="proj_b", out="proj_o"), {"variant": "boltz"}),
    Published("boltz", "trimul", _places(
        norm_in="norm_in", a_proj=("p_in", 0), b_proj=("p_in", 1), a_gate=("g_in", 0), b_gate=("g_in", 1),
        norm_out="norm_out", out="p_out", out_gate="g_out"), _NORMED),
    Published("protenix", "opm", _OPENFOLD_OPM, {"variant": "alphafold3"}),
    Published("protenix", "trimul", _OPENFOLD_TRIMUL, _NORMED),
    Published("protenix", "trimul", _OPENFOLD_FUSED, _NORMED),
)

_HINTS = {"chunk_size", "inplace_safe", "_add_with_inplace", "_inplace_chunk_size", "use_kernels",
          "use_memory_efficient_kernel", "use_deepspeed_evo_attention", "use_lma", "triangle_multiplicative",
          "use_cueq_triangle_kernels", "use_high_precision_attention"}
"""Arguments of the originals that say how, not what, to compute (but the two of in-place addition, which are obeyed)."""


class Unmatched(ValueError):
    """Why a module cannot be swapped."""


# --- a fused module in an original's place ---


class _InPlaceOf(Fused):
    """Holds the submodules of an original under its names, and is called as it is."""

    _names: Tuple[str, ...]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """As the original's: the representation and its mask, and arguments about how to compute, which count for
        nothing here. With ``inplace_safe`` and ``_add_with_inplace`` the result is added to the input in place."""
        if len(args) == 2 and not kwargs:
            return self._run(args[0], args[1], None)
        names = self._names
        if len(args) > len(names):
            raise TypeError(f"forward takes {len(names)} arguments, {len(args)} were given")
        given = dict(zip(names, args))
        for name, value in kwargs.items():
            if name in given or name not in names:
                raise TypeError(f"forward got {'two values for' if name in given else 'an unexpected'} argument {name!r}")
            given[name] = value
        if names[0] not in given:
            raise TypeError(f"forward lacks {names[0]!r}")
        x = given[names[0]]
        out = self._run(x, given.get(names[1]), None)
        if given.get("inplace_safe") and given.get("_add_with_inplace"):
            return x.add_(out)
        return out


class PatchedOuterProductMean(_InPlaceOf, OuterProductMean):
    """An OuterProductMean that has another project's parameter names and call."""


class PatchedTriangleMultiplication(_InPlaceOf, TriangleMultiplication):
    """A TriangleMultiplication that has another project's parameter names and call."""


def _parameter(module: nn.Module, name: str) -> Optional[Tensor]:
    layer = getattr(module, name, None)
    return getattr(layer, "weight", None) if isinstance(layer, nn.Module) else None


def _matches(module: nn.Module, published: Published) -> bool:
    return all(isinstance(_parameter(module, place.module), Tensor) for place in published.places.values())


def _check_layers(module: nn.Module, published: Published) -> float:
    """The eps of the LayerNorms. Raises Unmatched if a parameter is none that the op knows."""
    known = {place.module for place in published.places.values()}
    extra = [name for name, _ in module.named_parameters()
             if name.rpartition(".")[0] not in known or name.rpartition(".")[2] not in ("weight", "bias")]
    if extra:
        raise Unmatched(f"has parameters that the op does not: {', '.join(extra)}")
    norms = [place.module for layer, place in published.places.items() if layer.startswith("norm")]
    eps = {float(getattr(getattr(module, name), "eps", 1e-5)) for name in norms}
    if len(eps) != 1:
        raise Unmatched(f"its LayerNorms have different eps: {sorted(eps)}")
    for name, parameter in module.named_parameters():
        if parameter.dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            raise Unmatched(f"{name} has dtype {parameter.dtype}")
    return eps.pop()


def _direction(module: nn.Module, published: Published) -> str:
    if published.project == "reference":
        return "outgoing"
    outgoing = getattr(module, "_outgoing", None)
    if isinstance(outgoing, bool):
        return "outgoing" if outgoing else "incoming"
    for direction in ("outgoing", "incoming"):
        if direction in type(module).__name__.lower():
            return direction
    raise Unmatched(f"neither an attribute _outgoing nor the class name {type(module).__name__} tells its direction: "
                    "pass direction=")


def _call_names(module: nn.Module) -> Tuple[str, ...]:
    parameters = list(inspect.signature(module.forward).parameters.values())
    names = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    unknown = [name for name in names[2:] if name not in _HINTS]
    if unknown or len(names) < 2:
        raise Unmatched(f"its forward takes {', '.join(names)}, expected the representation, its mask, and of others only "
                        f"{', '.join(sorted(_HINTS))}")
    return names


def _in_place_of(module: nn.Module, published: Published, direction: Optional[str] = None, **more: Any) -> Fused:
    """A fused module that shares the original's submodules."""
    eps = _check_layers(module, published)
    if published.op == "opm":
        made: Any = PatchedOuterProductMean.__new__(PatchedOuterProductMean)
        fixed = ops.variant(published.options["variant"])
        count_eps = getattr(module, "eps", fixed["count_eps"]) if fixed["count_eps"] else 0.0
        options: Tuple[Any, ...] = (fixed["divide_after"], fixed["mask_a_only"], float(count_eps), fixed["count_min"], eps)
    else:
        made = PatchedTriangleMultiplication.__new__(PatchedTriangleMultiplication)
        direction = direction or _direction(module, published)
        options = (direction == "outgoing", published.options["gate_input"] == "raw", eps)
    nn.Module.__init__(made)
    made._names = _call_names(module)
    made.training = module.training
    for name in dict.fromkeys(place.module for place in published.places.values()):
        setattr(made, name, getattr(module, name))
    settings = {"compute": None, "static_weights": False, "workspace_limit": 0, **more}
    made._describe(published.places, options, **settings)
    return made


# --- from arrays ---


def _flat(arrays: Arrays, before: str = "") -> Dict[str, Any]:
    """Nested or path-like names as dotted ones."""
    flat: Dict[str, Any] = {}
    for name, value in arrays.items():
        dotted = before + re.sub(r"[/:]+", ".", name).strip(".")
        flat.update(_flat(value, dotted + ".") if isinstance(value, Mapping) else {dotted: value})
    return flat


def _tensor(array: Any) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach()
    try:
        return torch.from_dlpack(array)
    except (AttributeError, TypeError, BufferError, RuntimeError):  # read-only NumPy arrays, lists
        import numpy
        return torch.from_numpy(numpy.array(array))


def _module_of(op: str, weights: Dict[str, Tensor], options: Mapping[str, Any]) -> Fused:
    """A module with the reference's names and copies of the weights, which have the library's names."""
    biases = [name[:-len("_bias")] for name in weights if name.endswith("_bias")]
    on: Dict[str, Any] = {"dtype": weights["out_weight"].dtype, "device": weights["out_weight"].device}
    if op == "opm":
        hidden, msa = weights["a_weight"].shape
        made: Fused = OuterProductMean(msa, weights["out_weight"].shape[0], hidden, biases=biases, **options, **on)
        places = REFERENCE_OPM
    else:
        hidden, pair = weights["a_proj_weight"].shape
        made = TriangleMultiplication(pair, hidden, out_dim=weights["out_weight"].shape[0], biases=biases, **options, **on)
        places = REFERENCE_TRIMUL
    with torch.no_grad():
        for name, weight in weights.items():
            layer, leaf = name.rsplit("_", 1)
            parameter = getattr(getattr(made, places[layer].module), leaf)
            if parameter.shape != weight.shape:
                raise ValueError(f"{name} has shape {list(weight.shape)}, expected {list(parameter.shape)}")
            parameter.copy_(weight)
    return made


def _from_arrays(project: str, arrays: Arrays, direction: Optional[str], more: Mapping[str, Any]) -> Fused:
    flat = _flat(arrays)
    for published in PUBLISHED:
        if published.project != project:
            continue
        if not all(place.module + ".weight" in flat for place in published.places.values()):
            continue
        weights: Dict[str, Tensor] = {}
        for layer, place in published.places.items():
            for leaf in ("weight", "bias"):
                array = flat.get(f"{place.module}.{leaf}")
                if array is not None:
                    whole = _tensor(array)
                    weights[f"{layer}_{leaf}"] = whole if place.half is None else whole.chunk(2)[place.half]
        options = dict(published.options, **more)
        if published.op == "trimul":
            options["direction"] = _needed(direction)
        return _module_of(published.op, weights, options)
    raise Unmatched(f"no module of {project} has these names: {', '.join(sorted(flat)) or 'none'}")


def _needed(direction: Optional[str]) -> str:
    if direction is None:
        raise ValueError("arrays do not tell the direction of a triangle multiplication: pass direction=\"outgoing\" or "
                         "\"incoming\"")
    return direction


def _from(project: str, source: Source, direction: Optional[str], more: Mapping[str, Any]) -> Fused:
    if not isinstance(source, nn.Module):
        return _from_arrays(project, source, direction, more)
    for published in PUBLISHED:
        if published.project == project and _matches(source, published):
            return _in_place_of(source, published, direction, **more)
    names = ", ".join(name for name, _ in source.named_parameters())
    raise Unmatched(f"{type(source).__name__} is no module of {project} that this package knows; its parameters are {names}")


_FROM_DOC = """{title}

    Args:
        source: {source}, or a mapping of its parameters' names to arrays (a state_dict, an ``.npz`` file; names may be
            nested, or parted by ``/``).
        direction: ``"outgoing"`` or ``"incoming"``, for a triangle multiplication that does not tell it itself.
        more: ``compute``, ``static_weights``, ``workspace_limit``, as in the modules.

    Returns:
        From a module: a fused one that shares its parameters, under the same names, and is called in the same way. From
        arrays: an ``OuterProductMean`` or ``TriangleMultiplication`` with copies.

    Raises:
        ValueError: names or shapes that are not that project's.
    """


def from_openfold(source: Source, *, direction: Optional[str] = None, **more: Any) -> Fused:
    return _from("openfold", source, direction, more)


def from_boltz(source: Source, *, direction: Optional[str] = None, **more: Any) -> Fused:
    return _from("boltz", source, direction, more)


def from_protenix(source: Source, *, direction: Optional[str] = None, **more: Any) -> Fused:
    return _from("protenix", source, direction, more)


for _function, _title, _source in (
        (from_openfold, "A fused module from OpenFold's (also those that compute a and b as one).",
         "an ``OuterProductMean``, ``TriangleMultiplicationOutgoing`` or ``...Incoming`` of OpenFold"),
        (from_boltz, "A fused module from Boltz's.",
         "an ``OuterProductMean``, ``TriangleMultiplicationOutgoing`` or ``...Incoming`` of Boltz"),
        (from_protenix, "A fused module from Protenix's or OpenFold-3's.",
         "an ``OuterProductMean``, ``TriangleMultiplicationOutgoing`` or ``...Incoming`` of Protenix")):
    _function.__doc__ = _FROM_DOC.format(title=_title, source=_source)


def from_alphafold3(source: Source, *, direction: Optional[str] = None, **more: Any) -> Fused:
    """A fused module from AlphaFold 3's arrays.

    Args:
        source: a mapping of one module's parameters to arrays, as its checkpoint has them: ``left_norm_input.scale``,
            ``projection.weights`` (c_z, 2c) and so on, or for the outer product mean ``layer_norm_input.scale``,
            ``left_projection.weights``, ``output_w`` (c, c, c_z); names may be nested, or parted by ``/``. A module whose
            parameters have these names will do too.
        direction: ``"outgoing"`` or ``"incoming"``; a triangle multiplication needs it.
        more: ``compute``, ``static_weights``, ``workspace_limit``, as in the modules.

    Returns:
        An ``OuterProductMean`` or ``TriangleMultiplication`` with copies of the weights.

    Raises:
        ValueError: names or shapes that are not AlphaFold 3's.
    """
    arrays = dict(source.named_parameters()) if isinstance(source, nn.Module) else source
    flat = {name: _tensor(array) for name, array in _flat(arrays).items()}
    norms = ("layer_norm_input",) if "output_w" in flat else ("left_norm_input", "center_norm")
    needed = [f"{norm}.{leaf}" for norm in norms for leaf in ("scale", "offset")] + (
        ["left_projection.weights", "right_projection.weights", "output_w", "output_b"] if "output_w" in flat else
        ["projection.weights", "gate.weights", "output_projection.weights", "gating_linear.weights"])
    missing = [name for name in needed if name not in flat]
    if missing:
        raise Unmatched(f"no {', '.join(missing)} among {', '.join(sorted(flat)) or 'no names'}: not AlphaFold 3's")
    if "output_w" in flat:
        output = flat["output_w"]
        return _module_of("opm", {
            "norm_weight": flat["layer_norm_input.scale"], "norm_bias": flat["layer_norm_input.offset"],
            "a_weight": flat["left_projection.weights"].T, "b_weight": flat["right_projection.weights"].T,
            "out_weight": output.reshape(-1, output.shape[-1]).T, "out_bias": flat["output_b"]},
            {"variant": "alphafold3", **more})
    weights = {"norm_in_weight": flat["left_norm_input.scale"], "norm_in_bias": flat["left_norm_input.offset"],
               "norm_out_weight": flat["center_norm.scale"], "norm_out_bias": flat["center_norm.offset"],
               "out_weight": flat["output_projection.weights"].T, "out_gate_weight": flat["gating_linear.weights"].T}
    # Columns alternate between the two sides; for incoming edges the project names them the other way round.
    sides = "ab" if _needed(direction) == "outgoing" else "ba"
    for layer, name in (("proj", "projection.weights"), ("gate", "gate.weights")):
        for first, side in enumerate(sides):
            weights[f"{side}_{layer}_weight"] = flat[name].T[first::2]
    return _module_of("trimul", weights, {"direction": direction, **_NORMED, **more})


# --- a whole model ---


@dataclass
class PatchReport:
    """What ``patch`` did. Printing it gives a line for each module."""

    swapped: Dict[str, str] = field(default_factory=dict)
    """The name of each swapped submodule, and what it was: project, class, direction."""
    left: Dict[str, str] = field(default_factory=dict)
    """The name of each submodule that looks like one of the two ops and stays, and why."""

    def __str__(self) -> str:
        lines = [f"swapped {name or '(the model itself)'}: {what}" for name, what in self.swapped.items()]
        lines += [f"left {name or '(the model itself)'}: {why}" for name, why in self.left.items()]
        return "\n".join(lines) or "nothing to swap: no submodule looks like one of the two ops"


_LOOKS = re.compile(r"outer_?product_?mean|triang.*(mult|update)", re.IGNORECASE)


def patch(model: nn.Module, *, verify: bool = True, **more: Any) -> PatchReport:
    """Swaps, in place, the outer product means and triangle multiplications of a loaded model for fused ones.

    Known are the modules with the parameter names of this package's own, and those of OpenFold, Boltz and Protenix. A
    swapped module shares the original's parameters under their old names, so the model's state_dict, optimizers and
    hooks of other modules stay valid, and it is called as the original is.

    Args:
        model: any module; those in it are swapped, not itself.
        verify: run each original and its substitute once, on a small random input and with random weights in copies of
            both, and leave the original where they differ.
        more: ``compute``, ``static_weights``, ``workspace_limit``, as in the modules.

    Returns:
        A PatchReport: what was swapped, what was left, and why.
    """
    report = PatchReport()
    made: Dict[nn.Module, Optional[Fused]] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, Fused) or any(isinstance(parent, Fused) for parent in _parents(model, name)):
            continue
        published = next((p for p in PUBLISHED if _matches(module, p)), None)
        if published is None:
            if _LOOKS.search(type(module).__name__) and next(module.parameters(recurse=False), None) is None and \
                    not any(_LOOKS.search(type(child).__name__) for child in module.children()):
                names = ", ".join(parameter for parameter, _ in module.named_parameters()) or "none"
                report.left[name] = f"{type(module).__name__}: unknown parameters: {names}"
            continue
        try:
            if module not in made:
                made[module] = None
                made[module] = _substitute(module, published, verify, more)
            substitute = made[module]
            if substitute is None:
                raise Unmatched("as above: the same module")
            if not name:
                raise Unmatched(f"the model itself cannot be swapped in place: use from_{published.project}")
        except Unmatched as why:
            report.left[name] = f"{type(module).__name__}: {why}"
            continue
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, substitute)
        direction = "" if published.op == "opm" else ", outgoing" if substitute._options[0] else ", incoming"
        report.swapped[name] = f"{published.project}'s {type(module).__name__}{direction}"
    return report


def _parents(model: nn.Module, name: str) -> List[nn.Module]:
    parts = name.split(".")[:-1] if name else []
    found = []
    for part in parts:
        model = model._modules[part]  # type: ignore[assignment]
        found.append(model)
    return found


def _substitute(module: nn.Module, published: Published, verify: bool, more: Mapping[str, Any]) -> Fused:
    hooks = [kind for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
             if any(getattr(part, kind, None) for part in module.modules())]
    if hooks:
        raise Unmatched("it, or a part of it, has hooks, which would not be called")
    try:
        substitute = _in_place_of(module, published, **more)
    except ValueError as why:
        raise Unmatched(str(why)) from why
    if verify:
        _verify(module, published, more)
    return substitute


def _verify(module: nn.Module, published: Published, more: Mapping[str, Any]) -> None:
    """Compares copies of both on a small random input, with random weights: freshly made models have zeros in some."""
    try:
        original = copy.deepcopy(module)
    except Exception as error:  # a module of another project may do anything
        raise Unmatched(f"cannot be copied for a comparison ({error}): patch(model, verify=False) swaps it unseen") from error
    some = next(original.parameters())
    if some.device.type not in ("cpu", "cuda"):
        raise Unmatched(f"its parameters are on {some.device}, expected cpu or cuda")
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(some.device, some.dtype)

    with torch.no_grad(), torch.autocast(some.device.type, enabled=False):
        for parameter in original.parameters():
            parameter.copy_(random(*parameter.shape) / (parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 1))
        substitute = _in_place_of(original, published, **more)
        batch, rows, columns = (1, 4, 6) if published.op == "opm" else (1, 6, 6)
        x = random(batch, rows, columns, substitute._spec.c_m if published.op == "opm" else substitute._spec.c_z)
        mask = (torch.rand(batch, rows, columns, generator=generator) < 0.8).to(some.device, some.dtype)
        try:
            want = original(x, mask)
        except Exception as error:
            raise Unmatched(f"the original cannot be run for a comparison ({error}): patch(model, verify=False) swaps it "
                            "unseen") from error
        got = substitute(x, mask)
    if not isinstance(want, Tensor) or want.shape != got.shape:
        raise Unmatched("the original's result has another shape")
    error = float((got.double() - want.double()).norm() / want.double().norm())
    bound = {torch.bfloat16: 5e-2, torch.float16: 1e-2}.get(some.dtype, 3e-3 if some.is_cuda else 1e-4)
    if not error <= bound:
        raise Unmatched(f"its results differ (relative error {error:.2g}): it computes something else")

"""_modules.py: the two ops as modules. A module has weights under some project's names, and views that say which is which."""
from __future__ import annotations

import operator
from functools import lru_cache
from itertools import chain
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from .. import _ops as ops
from .._functions import _choice, _whole
from . import _formulas, _operators

Half = Optional[int]
"""Of a parameter that holds two weights one after the other: which; None: the parameter is the weight."""


class Place(NamedTuple):
    """Where one linear layer or LayerNorm of an op is."""

    module: str
    half: Half = None


Places = Dict[str, Place]
"""The place of each of an op's layers: "norm", "a", "b", "out", or "norm_in", "a_proj", and so on."""

REFERENCE_OPM: Places = {"norm": Place("layer_norm"), "a": Place("proj_a"), "b": Place("proj_b"),
                         "out": Place("out_proj")}
REFERENCE_TRIMUL: Places = {
    "norm_in": Place("layer_norm_in"), "a_proj": Place("proj_a"), "a_gate": Place("gate_a"),
    "b_proj": Place("proj_b"), "b_gate": Place("gate_b"), "norm_out": Place("layer_norm_out"), "out": Place("out_proj"),
    "out_gate": Place("out_gate")}


# --- when the dispatcher can be passed by ---


def _probes() -> Optional[List[Any]]:
    """Functions whose results are all false when nothing but plain execution is going on; None if PyTorch lacks one."""
    paths = ("_C._len_torch_dispatch_stack", "_C._len_torch_function_stack", "_C._functorch.peek_interpreter_stack",
             "_C._get_tracing_state")
    try:
        return [operator.attrgetter(path)(torch) for path in paths]
    except AttributeError:
        return None


_PROBES = _probes()
_DISPATCH, _FUNCTION, _FUNCTORCH, _TRACING = _PROBES or [lambda: True] * 4
_profiler = torch.autograd.profiler
_forward = torch.autograd.forward_ad
_requires_grad = operator.attrgetter("requires_grad")
_autocast_anywhere = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


def _direct(x: Tensor, mask: Optional[Tensor], residual: Optional[Tensor], sources: Sequence[Tensor]) -> bool:
    """Whether a call needs nothing of PyTorch's dispatcher: no gradient, subclass, mode, transform, trace or profile.
    The operator would give the same and take some 10 to 20 microseconds more."""
    if type(x) is not Tensor or mask is not None and type(mask) is not Tensor or \
            residual is not None and type(residual) is not Tensor or not (x.is_cpu or x.is_cuda):
        return False
    if torch.is_grad_enabled() and (
            x.requires_grad or any(map(_requires_grad, sources)) or mask is not None and mask.requires_grad or
            residual is not None and residual.requires_grad):
        return False
    return not (_DISPATCH() or _FUNCTION() or _FUNCTORCH() is not None or _TRACING() or
                getattr(_profiler, "_is_profiler_enabled", True))


def _without_rule() -> bool:
    """Whether derivatives are taken for which an operator of PyTorch's library has no rule: forward ones, which it would take
    for zero without a word, and those of torch.func."""
    if getattr(_forward, "_current_level", -1) >= 0:
        return True
    if _FUNCTORCH() is None:
        return False
    transforms = torch._C._functorch.get_interpreter_stack()
    return any(transform.key() == torch._C._functorch.TransformType.Grad for transform in transforms)


@lru_cache(maxsize=None)
def _getter(names: Tuple[str, ...]) -> Callable[[Dict[str, Any]], Tuple[Any, ...]]:
    """The values of these names, as a tuple."""
    get = operator.itemgetter(*names)
    return get if len(names) > 1 else lambda values: (get(values),)


class _Known:
    """What a module remembers of its layers. No tuple or list, since torch.export writes modules' attributes anew that are:
    with its fake tensors in the dictionaries of parameters."""

    __slots__ = ("layers", "getters")

    def __init__(self, layers: Tuple[Any, ...], getters: List[Tuple[Callable[..., Any], List[Dict[str, Any]]]]):
        self.layers, self.getters = layers, getters


class Fused(nn.Module):
    """What both modules share.

    Attributes:
        compute: the least accuracy of products: ``"fp32"``, ``"fp32_strict"``, ``"tf32"``, ``"bf16"``, ``"fp16"``,
            ``"fp64"``; None: that of the input's type, under autocast of autocast's, and tf32 for float32 on a GPU where
            ``torch.set_float32_matmul_precision`` allows it.
        static_weights: CUDA graphs read weights that were packed before the capture, instead of packing in every launch.
            After a change of a weight, run the module once outside the graph.
        workspace_limit: bytes; 0: no limit.
    """

    compute: Optional[str]
    static_weights: bool
    _kind: Any
    _caches: Any
    _operator: Any
    _formula: Callable[..., Tensor]

    def _describe(self, places: Places, options: Tuple[Any, ...], compute: Optional[str], static_weights: bool,
                  workspace_limit: int) -> None:
        """Called when the submodules are there. `options` are the operator's own parameters."""
        self.compute, self.static_weights, self._options = compute, static_weights, options
        self.workspace_limit = workspace_limit
        self._views_of: Tuple[Optional[Tuple[str, str, Half]], ...] = tuple(
            (places[stem].module, leaf, places[stem].half)
            if getattr(getattr(self, places[stem].module), leaf, None) is not None else None
            for stem, leaf in (name.rsplit("_", 1) for name in self._kind.weights))
        leaves: Dict[str, Dict[str, None]] = {}
        for view in self._views_of:
            if view is not None:
                leaves.setdefault(view[0], {})[view[1]] = None
        alike: Dict[Tuple[str, ...], List[str]] = {}
        for module, names in leaves.items():
            alike.setdefault(tuple(names), []).append(module)
        self._sources_of = tuple((tuple(modules), names) for names, modules in alike.items())
        self._specify()

    def _specify(self) -> None:
        weights = self._weights()
        by_name = dict(zip(self._kind.weights, weights))
        first = by_name["a_weight" if self._kind.op == "opm" else "a_proj_weight"]
        present = tuple(name for name, weight in by_name.items() if weight is not None)
        self._spec = ops.spec(self._kind, first.shape[1], first.shape[0], by_name["out_weight"].shape[0], present,
                              *self._options, 1.0, _whole("workspace_limit", self.workspace_limit), None)
        for name, shape in self._spec.shapes().items():
            weight = by_name[name]
            if weight is not None and tuple(weight.shape) != shape:
                raise ValueError(f"{name} has shape {list(weight.shape)}, expected {list(shape)}")

    def _weights(self) -> List[Optional[Tensor]]:
        """Each weight in the library's order, as a view that gradients pass through."""
        found: List[Optional[Tensor]] = []
        for view in self._views_of:
            if view is None:
                found.append(None)
                continue
            module, leaf, half = view
            weight = getattr(getattr(self, module), leaf)
            if half is not None:
                size = weight.shape[0] // 2
                weight = weight[:size] if half == 0 else weight[size:]
            found.append(weight)
        return found

    def _sources(self) -> List[Tensor]:
        """The parameters, past nn.Module's slow attributes."""
        # While the layers are the same objects, so are their dictionaries of parameters.
        layers = tuple(self._modules.values())
        known = self.__dict__.get("_known")
        if known is None or known.layers != layers:
            known = self.__dict__["_known"] = _Known(layers, [
                (_getter(leaves), [self._modules[module]._parameters for module in modules])  # type: ignore[union-attr]
                for modules, leaves in self._sources_of])
        sources: List[Tensor] = []
        try:
            for get, parameters in known.getters:
                sources += chain.from_iterable(map(get, parameters))
            return sources
        except KeyError:  # a parametrization stands there
            return [getattr(getattr(self, module), leaf)
                    for modules, leaves in self._sources_of for module in modules for leaf in leaves]

    def __getstate__(self) -> Dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_known"}

    def _run(self, x: Tensor, mask: Optional[Tensor], residual: Optional[Tensor]) -> Tensor:
        if x.dim() != 4:
            return self._run_batches(x, mask, residual)
        compute, out_dtype = self.compute, x.dtype
        if _autocast_anywhere() and torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
            out_dtype = torch.get_autocast_dtype(x.device.type)
            compute = compute or _operators._COMPUTES[out_dtype]
        if residual is not None:
            out_dtype = torch.promote_types(out_dtype, residual.dtype)
        if not is_compiling():
            if _without_rule():
                tensors = (x, mask, residual, *self._weights())
                return _operators.composed(self._formula, tensors, self._options).to(out_dtype)
            sources = self._sources()
            if _direct(x, mask, residual, sources):
                return self._caches.run(self._spec, x, mask, residual, sources, self._weights, compute, out_dtype,
                                        self.static_weights)
        # What is differentiated may be a training step, whose graph changes the weights itself.
        static = self.static_weights and not torch.is_grad_enabled()
        return self._operator(x, mask, residual, *self._weights(), *self._options, compute, out_dtype,
                              self.workspace_limit, static)

    def _run_batches(self, x: Tensor, mask: Optional[Tensor], residual: Optional[Tensor]) -> Tensor:
        """Any number of leading dimensions, or none, as one."""
        if x.dim() < 3:
            raise ValueError(f"the input has shape {list(x.shape)}, expected at least three dimensions")
        leading = x.shape[:-3]
        whole = x.reshape(-1, *x.shape[-3:])
        if mask is not None:
            mask = mask.expand(x.shape[:-1]).reshape(whole.shape[:-1])
        if residual is not None:
            residual = residual.reshape(-1, *residual.shape[-3:])
        out = self._run(whole, mask, residual)
        return out.reshape(*leading, *out.shape[1:])

    def extra_repr(self) -> str:
        spec = self._spec
        options = ", ".join(f"{name}={getattr(spec, name)}" for name in self._option_names)
        return f"{options}, compute={self.compute}"

    _option_names: Tuple[str, ...]


def _layers(biases: Optional[Iterable[str]], default: Sequence[str], all_of: Sequence[str]) -> Dict[str, bool]:
    """Which layers have a bias."""
    wanted = set(default if biases is None else biases)
    unknown = sorted(wanted - set(all_of))
    if unknown:
        raise ValueError(f"biases has {', '.join(unknown)}, expected names among {', '.join(all_of)}")
    return {name: name in wanted for name in all_of}


class OuterProductMean(Fused):
    """The outer product mean of an MSA, fused: a drop-in for the module of the same name and parameter names
    (``layer_norm``, ``proj_a``, ``proj_b``, ``out_proj``), and for every published variant by keyword.

    Args:
        msa_dim: c_m, channels of the MSA.
        pair_dim: c_z, channels of the pair representation.
        hidden_dim: c, channels of a and b.
        variant: ``"mean"`` (divide by the count, at least 1, before the projection), or that of a published model:
            ``"alphafold2"`` (OpenFold, FastFold), ``"alphafold3"`` (OpenFold-3, Protenix), ``"boltz"``,
            ``"helixfold"``, ``"megafold"``. The next five arguments override single parts.
        biases: the layers that have one, among ``"norm"``, ``"a"``, ``"b"``, ``"out"``.
        divide: ``"before"`` or ``"after"`` the output's projection.
        mask_sides: ``"both"``, or ``"a"``: the mask multiplies a only.
        count_eps, count_min: the denominator is ``max(count + count_eps, count_min)``.
        layer_norm_eps: eps of the LayerNorm.
        compute, static_weights, workspace_limit: see the attributes.
    """

    __doc__ += Fused.__doc__[Fused.__doc__.index("\n    Attributes"):]  # type: ignore[operator, union-attr]
    _kind, _caches, _operator = ops.Opm, _operators.opm, torch.ops.evoformer.outer_product_mean
    _formula = staticmethod(_formulas.outer_product_mean)
    _option_names = ("divide_after", "mask_a_only", "count_eps", "count_min", "layer_norm_eps")

    def __init__(self, msa_dim: int, pair_dim: int, hidden_dim: int = 32, *, variant: str = "mean",
                 biases: Optional[Iterable[str]] = None, divide: Optional[str] = None,
                 mask_sides: Optional[str] = None, count_eps: Optional[float] = None,
                 count_min: Optional[float] = None, layer_norm_eps: float = 1e-5, compute: Optional[str] = None,
                 static_weights: bool = False, workspace_limit: int = 0,
                 device: Union[torch.device, str, None] = None, dtype: Optional[torch.dtype] = None):
        super().__init__()
        fixed = ops.variant(variant)
        names = ("norm", "a", "b", "out")
        has = _layers(biases, [name for bit, name in enumerate(names) if fixed["biases"] >> bit & 1], names)
        on: Dict[str, Any] = {"device": device, "dtype": dtype}
        self.layer_norm = nn.LayerNorm(msa_dim, layer_norm_eps, bias=has["norm"], **on)
        self.proj_a = nn.Linear(msa_dim, hidden_dim, has["a"], **on)
        self.proj_b = nn.Linear(msa_dim, hidden_dim, has["b"], **on)
        self.out_proj = nn.Linear(hidden_dim * hidden_dim, pair_dim, has["out"], **on)
        options = (fixed["divide_after"] if divide is None else _choice("divide", divide, ("before", "after")),
                   fixed["mask_a_only"] if mask_sides is None else _choice("mask_sides", mask_sides, ("both", "a")),
                   fixed["count_eps"] if count_eps is None else float(count_eps),
                   fixed["count_min"] if count_min is None else float(count_min), layer_norm_eps)
        self._describe(REFERENCE_OPM, options, compute, static_weights, workspace_limit)

    def forward(self, msa_repr: Tensor, msa_mask: Optional[Tensor] = None,
                residual: Optional[Tensor] = None) -> Tensor:
        """msa_repr [..., S, N, msa_dim], msa_mask [..., S, N] (any number type or bool; None: ones), residual
        [..., N, N, pair_dim] (added to the result; None: nothing) -> [..., N, N, pair_dim]."""
        return self._run(msa_repr, msa_mask, residual)


class TriangleMultiplication(Fused):
    """The triangle multiplicative update, fused: a drop-in for the module of the same name and parameter names
    (``layer_norm_in``, ``proj_a``, ``gate_a``, ``proj_b``, ``gate_b``, ``layer_norm_out``, ``out_proj``, ``out_gate``), and
    for every published variant by keyword.

    Args:
        pair_dim: c_z, channels of the pair representation.
        hidden_dim: c, channels of a and b.
        direction: ``"outgoing"`` (sum over k of a_ik b_jk) or ``"incoming"`` (a_ki b_kj).
        gate_input: the output gate reads the ``"raw"`` pair representation, or the ``"normed"`` one as in every published
            model.
        biases: the layers that have one, among ``"norm_in"``, ``"a_proj"``, ``"a_gate"``, ``"b_proj"``, ``"b_gate"``,
            ``"norm_out"``, ``"out"``, ``"out_gate"``; None: all.
        out_dim: channels of the output; None: pair_dim.
        layer_norm_eps: eps of both LayerNorms.
        compute, static_weights, workspace_limit: see the attributes.
    """

    __doc__ += Fused.__doc__[Fused.__doc__.index("\n    Attributes"):]  # type: ignore[operator, union-attr]
    _kind, _caches, _operator = ops.Trimul, _operators.trimul, torch.ops.evoformer.triangle_multiplication
    _formula = staticmethod(_formulas.triangle_multiplication)
    _option_names = ("outgoing", "gate_raw", "layer_norm_eps")

    def __init__(self, pair_dim: int, hidden_dim: int, *, direction: str = "outgoing", gate_input: str = "raw",
                 biases: Optional[Iterable[str]] = None, out_dim: Optional[int] = None, layer_norm_eps: float = 1e-5,
                 compute: Optional[str] = None, static_weights: bool = False, workspace_limit: int = 0,
                 device: Union[torch.device, str, None] = None, dtype: Optional[torch.dtype] = None):
        super().__init__()
        has = _layers(biases, tuple(REFERENCE_TRIMUL), tuple(REFERENCE_TRIMUL))
        out_dim = pair_dim if out_dim is None else out_dim
        on: Dict[str, Any] = {"device": device, "dtype": dtype}
        self.layer_norm_in = nn.LayerNorm(pair_dim, layer_norm_eps, bias=has["norm_in"], **on)
        self.layer_norm_out = nn.LayerNorm(hidden_dim, layer_norm_eps, bias=has["norm_out"], **on)
        for name in ("a_proj", "a_gate", "b_proj", "b_gate"):
            setattr(self, REFERENCE_TRIMUL[name].module, nn.Linear(pair_dim, hidden_dim, has[name], **on))
        self.out_proj = nn.Linear(hidden_dim, out_dim, has["out"], **on)
        self.out_gate = nn.Linear(pair_dim, out_dim, has["out_gate"], **on)
        options = (not _choice("direction", direction, ("outgoing", "incoming")),
                   _choice("gate_input", gate_input, ("normed", "raw")), layer_norm_eps)
        self._describe(REFERENCE_TRIMUL, options, compute, static_weights, workspace_limit)

    def forward(self, pair_repr: Tensor, pair_mask: Optional[Tensor] = None,
                residual: Optional[Tensor] = None) -> Tensor:
        """pair_repr [..., N, N, pair_dim], pair_mask [..., N, N] (any number type or bool; None: ones), residual
        [..., N, N, out_dim] (added to the result; may be pair_repr; None: nothing) -> [..., N, N, out_dim]."""
        return self._run(pair_repr, pair_mask, residual)

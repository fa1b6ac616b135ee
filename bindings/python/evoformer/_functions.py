"""_functions.py: the two ops as functions of arrays of any library."""
from __future__ import annotations

import ctypes as C
from functools import lru_cache
from operator import index
from typing import Any, Mapping, Optional, Tuple

from . import _arrays as arrays
from . import _library as lib
from . import _ops as ops

Array = Any
Weights = Mapping[str, Array]


def outer_product_mean(m: Array, weights: Weights, mask: Optional[Array] = None, residual: Optional[Array] = None, *,
                       variant: str = "mean", divide: Optional[str] = None, mask_sides: Optional[str] = None,
                       count_eps: Optional[float] = None, count_min: Optional[float] = None,
                       layer_norm_eps: float = 1e-5, mask_max: float = 1.0, compute: Optional[str] = None,
                       workspace_limit: int = 0, kernel: Optional[str] = None, out: Optional[Array] = None,
                       stream: Optional[int] = None) -> Array:
    """The outer product mean of an MSA, on the device where ``m`` is.

    ``x = LayerNorm(m)``, ``a = mask * (W_a x + b_a)``, ``b`` likewise, ``o_ij = sum_s a_si (outer) b_sj``,
    ``n_ij = max(count_ij + count_eps, count_min)``, and ``out_ij = W_o (o_ij / n_ij) + b_o`` (divide ``"before"``) or
    ``(W_o o_ij + b_o) / n_ij`` (``"after"``), plus ``residual``.

    Args:
        m: [B, S, N, c_m], float32, bfloat16, float16, or float64 (CPU), any strides.
        weights: names and arrays on the same device, any float type and strides: ``norm_weight`` [c_m], ``norm_bias`` [c_m],
            ``a_weight`` [c, c_m], ``a_bias`` [c], ``b_weight`` [c, c_m], ``b_bias`` [c], ``out_weight`` [c_z, c * c]
            (column ``c_a * c + c_b``), ``out_bias`` [c_z]. Biases may be absent or None. They are packed in every call;
            ``evoformer.torch`` keeps the packs.
        mask: [B, S, N], any float type, uint8 or bool; None: all ones.
        residual: [B, N, N, c_z], added to the result.
        variant: sets divide, mask_sides, count_eps and count_min as a published model has them: ``"alphafold2"``
            (OpenFold, FastFold), ``"alphafold3"`` (OpenFold-3, Protenix), ``"boltz"``, ``"helixfold"``, ``"megafold"``,
            ``"mean"``. The next four arguments override single ones.
        divide: ``"before"`` or ``"after"`` the output's projection.
        mask_sides: ``"both"``, or ``"a"``: the mask multiplies a only.
        count_eps, count_min: the mean's denominator.
        mask_max: the largest value of the mask to expect: float16 and tf32 stay finite up to 1024 times it, and mask values
            below 1/128 of it (on MI200 1/16) lose digits.
        compute: least accuracy: ``"fp32"``, ``"fp32_strict"``, ``"tf32"``, ``"bf16"``, ``"fp16"``, ``"fp64"``; None: that
            of m's type.
        workspace_limit: bytes; 0: no limit.
        kernel: forces a kernel by name.
        out: [B, N, N, c_z], any strides; may be ``residual`` itself. None: a new array of m's library and type.
        stream: a GPU stream as a number (``cudaStream_t``); None: the current one of PyTorch or CuPy, else the default,
            and on the CPU the only one.

    Returns:
        ``out``. With PyTorch the work is in the stream when the function returns, with every other library it is done.

    Raises:
        evoformer.InvalidArgument (a ValueError), evoformer.OutOfMemory (a MemoryError), evoformer.Error (a
        RuntimeError): with the library's text. TypeError, ValueError: an array or a name that cannot be used.
    """
    fixed = dict(ops.variant(_text("variant", variant)))
    fixed.pop("biases")
    if divide is not None:
        fixed["divide_after"] = _choice("divide", divide, ("before", "after"))
    if mask_sides is not None:
        fixed["mask_a_only"] = _choice("mask_sides", mask_sides, ("both", "a"))
    if count_eps is not None:
        fixed["count_eps"] = _number("count_eps", count_eps)
    if count_min is not None:
        fixed["count_min"] = _number("count_min", count_min)
    values = (*fixed.values(), *_common(layer_norm_eps, mask_max, workspace_limit, kernel))
    return _call(ops.Opm, "m", m, weights, mask, residual, out, compute, stream, values)


def triangle_multiplication(z: Array, weights: Weights, mask: Optional[Array] = None,
                            residual: Optional[Array] = None, *, direction: str = "outgoing",
                            gate_input: str = "normed", layer_norm_eps: float = 1e-5, mask_max: float = 1.0,
                            compute: Optional[str] = None, workspace_limit: int = 0, kernel: Optional[str] = None,
                            out: Optional[Array] = None, stream: Optional[int] = None) -> Array:
    """The triangle multiplicative update of a pair representation, on the device where ``z`` is.

    ``x = LayerNorm_in(z)``, ``a = mask * (W_ap x + b_ap) * sigmoid(W_ag x + b_ag)``, ``b`` likewise,
    ``t_ij = sum_k a_ik b_jk`` (outgoing) or ``sum_k a_ki b_kj`` (incoming), channel by channel,
    ``out = sigmoid(W_g x + b_g) * (W_o LayerNorm_out(t) + b_o)``, plus ``residual``.

    Args:
        z: [B, N, N, c_z], float32, bfloat16, float16, or float64 (CPU), any strides.
        weights: names and arrays on the same device, any float type and strides: ``norm_in_weight`` and ``norm_in_bias``
            [c_z]; ``a_proj_weight``, ``a_gate_weight``, ``b_proj_weight``, ``b_gate_weight`` [c, c_z] and their ``..._bias``
            [c]; ``norm_out_weight`` and ``norm_out_bias`` [c]; ``out_weight`` [c_out, c], ``out_bias`` [c_out];
            ``out_gate_weight`` [c_out, c_z], ``out_gate_bias`` [c_out]. Biases may be absent or None. AlphaFold 2 and 3,
            HelixFold and MegaFold name a and b the other way round for incoming edges: swap them.
        mask: [B, N, N], any float type, uint8 or bool; None: all ones.
        residual: [B, N, N, c_out], added to the result.
        direction: ``"outgoing"`` or ``"incoming"``.
        gate_input: the output gate reads LayerNorm_in(z), ``"normed"``, as every published model does, or z, ``"raw"``.
        out: [B, N, N, c_out], any strides; may be ``z`` or ``residual`` itself. None: a new array of z's library and type.
        mask_max, compute, workspace_limit, kernel, stream: as in ``outer_product_mean``.

    Returns, raises: as ``outer_product_mean``.
    """
    values = (not _choice("direction", direction, ("outgoing", "incoming")),
              _choice("gate_input", gate_input, ("normed", "raw")),
              *_common(layer_norm_eps, mask_max, workspace_limit, kernel))
    return _call(ops.Trimul, "z", z, weights, mask, residual, out, compute, stream, values)


def _choice(name: str, value: str, allowed: Tuple[str, str]) -> bool:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, expected {allowed[0]!r} or {allowed[1]!r}")
    return value == allowed[1]


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {value!r}, expected a number") from None


def _whole(name: str, value: Any) -> int:
    try:
        number = index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, expected a whole number") from None
    if not 0 <= number < 2**64:
        raise ValueError(f"{name} is {number}, expected 0 to 2^64 - 1")
    return number


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}, expected a name")
    return value


def _common(layer_norm_eps: Any, mask_max: Any, workspace_limit: Any, kernel: Any) -> tuple:
    """What both ops have, checked, in the order of the specs."""
    return (_number("layer_norm_eps", layer_norm_eps), _number("mask_max", mask_max),
            _whole("workspace_limit", workspace_limit), None if kernel is None else _text("kernel", kernel))


def _given(names: Tuple[str, ...], weights: Weights, stream: Optional[int]) -> dict:
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights is a {type(weights).__name__}, expected a mapping of names to arrays")
    unknown = sorted(set(map(str, weights)) - set(names))
    if unknown:
        raise ValueError(f"weights has {', '.join(unknown)}, expected names among {', '.join(names)}")
    views = {name: arrays.view(weights[name], name, stream) for name in names if weights.get(name) is not None}
    missing = [name for name in names if name.endswith("weight") and name not in views]
    if missing:
        raise ValueError(f"weights lacks {', '.join(missing)}")
    return views


def _channels(kind: type, views: dict) -> Tuple[int, int, int]:
    rank2 = [name for name in ("a_weight", "a_proj_weight", "out_weight") if name in views]
    for name in rank2:
        if len(views[name].layout.shape) != 2:
            raise ValueError(f"{name} has shape {list(views[name].layout.shape)}, expected two dimensions")
    c, c_in = views[rank2[0]].layout.shape
    c_out = views["out_weight"].layout.shape[0]
    return (c_in, c, c_out)


@lru_cache(maxsize=1024)
def _plan(made: ops.Spec, device: str, x: ops.Layout, mask: Optional[ops.Layout], residual: Optional[ops.Layout],
          out: ops.Layout, compute: str) -> ops.Plan:
    return ops.Plan(made, device, x.shape, x, mask, residual, out, compute)


def _memory_key(layout: Optional[ops.Layout], aliases: Tuple[int, ...] = ()) -> Optional[ops.Layout]:
    """The layout with what a plan depends on of its pointer: the alignment, and with whom it is shared."""
    if layout is None:
        return None
    shared = aliases.index(layout.pointer) + 1 if layout.pointer in aliases else 0
    return layout._replace(pointer=256 * shared + ops.alignment(layout.pointer))


def _call(kind: type, name: str, x: Array, weights: Weights, mask: Optional[Array], residual: Optional[Array],
          out: Optional[Array], compute: Optional[str], stream: Optional[int], values: tuple) -> Array:
    if stream is None:
        stream = arrays.current_stream(x)
    else:
        stream = _whole("stream", stream)
    views = _given(kind.weights, weights, stream)  # type: ignore[attr-defined]
    spec = ops.spec(kind, *_channels(kind, views), tuple(views), *values)
    given = arrays.view(x, name, stream)
    if stream and given.device == "cpu":
        raise ValueError(f"stream is {stream}, expected None, as {name} is on the CPU")
    if len(given.layout.shape) != 4:
        raise ValueError(f"{name} has shape {list(given.layout.shape)}, expected four dimensions")
    if out is None:
        out = arrays.empty(x, spec.output_shape(given.layout.shape), given.layout.dtype)
    to = arrays.view(out, "out", stream)
    _writable(out)
    others = {"mask": None if mask is None else arrays.view(mask, "mask", stream),
              "residual": None if residual is None else arrays.view(residual, "residual", stream)}
    shapes = {"mask": given.layout.shape[:3], "residual": spec.output_shape(given.layout.shape),
              "out": spec.output_shape(given.layout.shape)}
    if name == "z" and given.layout.shape[1] != given.layout.shape[2]:
        raise ValueError(f"z has shape {list(given.layout.shape)}, expected [B, N, N, c_z]")
    for what, view in (*others.items(), ("out", to)):
        if view is not None and view.layout.shape != shapes[what]:
            raise ValueError(f"{what} has shape {list(view.layout.shape)}, expected {list(shapes[what])}")
    for what, view in ((name, given), ("out", to), *others.items(), *views.items()):
        if view is not None and view.device != given.device:
            raise ValueError(f"{what} is on {view.device}, expected {given.device}, where {name} is")
        if view is not None and what not in views and ops.repeats_one_element(view.layout):
            raise ValueError(f"{what} repeats one element along every index (all strides are 0): pass a copy")
    _execute(spec, x, given, others["mask"], others["residual"], to, views, compute or _compute(given), stream)
    return out


def _compute(view: arrays.View) -> str:
    if view.layout.dtype not in lib.COMPUTES:
        raise TypeError(f"the input is {view.layout.dtype}, expected float64, float32, bfloat16 or float16")
    return view.layout.dtype


def _writable(out: Array) -> None:
    interface = getattr(out, "__array_interface__", None) if arrays.torch_of(out) is None else None
    if interface is not None and interface["data"][1]:
        raise ValueError("out is read-only")


def _execute(spec: Any, like: Array, x: arrays.View, mask: Optional[arrays.View], residual: Optional[arrays.View],
             out: arrays.View, weights: dict, compute: str, stream: Optional[int]) -> None:
    layouts = [None if view is None else view.layout for view in (x, mask, residual, out)]
    shared = (x.layout.pointer, residual.layout.pointer if residual is not None else x.layout.pointer)
    key = [_memory_key(layout, shared) for layout in layouts]
    plan = _plan(spec, x.device, *key, compute)
    memory = _Memory(like, x.device, plan.pack_size + plan.workspace_size + lib.BUFFER_ALIGNMENT, stream)
    try:
        workspace = memory.pointer + -(-plan.pack_size // lib.BUFFER_ALIGNMENT) * lib.BUFFER_ALIGNMENT
        pack = plan.pack([weights[name].layout if name in weights else None for name in spec.weights],
                         memory.pointer, stream)
        pointers = [None if layout is None else layout.pointer for layout in layouts]
        plan.run(pack, *pointers, workspace, stream)
    finally:
        memory.release()


class _Memory:
    """Memory for one call: PyTorch's for its tensors, in stream order; else the library's, until the work is done."""

    def __init__(self, like: Array, device: str, size: int, stream: Optional[int]):
        self.torch, self.device, self.stream = arrays.torch_of(like), device, stream
        if self.torch is not None:
            self.held = self.torch.empty(size + lib.BUFFER_ALIGNMENT, dtype=self.torch.uint8, device=like.device)
            self.pointer = -(-self.held.data_ptr() // lib.BUFFER_ALIGNMENT) * lib.BUFFER_ALIGNMENT
        else:
            self.held = C.c_void_p()
            lib.check(lib.dll().evo_memory_alloc(lib.context(device), size, C.byref(self.held)))
            self.pointer = self.held.value or 0

    def release(self) -> None:
        if self.torch is None:
            if self.device != "cpu":
                lib.check(lib.dll().evo_stream_synchronize(lib.context(self.device), self.stream))
            lib.check(lib.dll().evo_memory_free(lib.context(self.device), self.held))

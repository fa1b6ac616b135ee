"""_operators.py: the two ops as PyTorch operators, torch.ops.evoformer.*, and what they keep: plans and packed weights.

One call of an operator is: the plan of its shapes (kept), the pack of its weights (kept until one of them changes), an
output and a workspace from PyTorch's allocator, and evo_..._execute on the current stream.
"""
from __future__ import annotations

import operator
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .. import _library as lib
from .. import _ops as ops
from .._arrays import torch_device
from .._functions import _whole
from . import _formulas

_DTYPES = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16",
           torch.uint8: "uint8", torch.bool: "uint8"}
_COMPUTES = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_pointer_of = Tensor.data_ptr
_version_of = operator.attrgetter("_version")
MAX_PLANS = 4096


# --- what a call looks like to the library ---


def _layout(t: Tensor) -> ops.Layout:
    return ops.Layout(t.data_ptr(), tuple(t.shape), t.stride(), _DTYPES[t.dtype])


def _strided(t: Tensor) -> Tensor:
    """The tensor as the library takes it: a mask of integers, and one that repeats a single element, become new ones."""
    if t.dtype not in _DTYPES:
        t = t.to(torch.float32)
    return t.contiguous() if 0 in t.stride() and ops.repeats_one_element(_layout(t)) else t


def _raw_stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream


_raw_stream_of_index: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
    lambda index: _raw_stream(torch.device("cuda", index)))
_capturing: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None) or (
    torch.cuda.is_current_stream_capturing)


# --- memory ---


# What code compiled by PyTorch allocates with, and its raw memory: half the time of torch.empty. All on the current GPU.
_guards = getattr(torch._C._dynamo, "guards", None)
_new_on_cpu: Callable[..., Tensor] = getattr(_guards, "_empty_strided_cpu", None) or (
    lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype))
_new_on_gpu: Callable[..., Tensor] = getattr(_guards, "_empty_strided_cuda", None) or (
    lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device="cuda"))
_raw_alloc: Callable[[int, int], int] = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_alloc", None) or (
    lambda size, stream: torch.cuda.caching_allocator_alloc(size, stream=stream))
_raw_free: Callable[[int], None] = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_delete", None) or (
    torch.cuda.caching_allocator_delete)
_current_gpu: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", None) or torch.cuda.current_device

_outside = ThreadPoolExecutor(1, "evoformer")
_thread = threading.local()
KEPT_WORKSPACE = 256 << 20
"""Bytes of workspace that a thread keeps for the CPU: the system would map and clear the pages again for each call."""


def _workspace(size: int) -> Tuple[Tensor, int]:
    """CPU memory until the next call of this thread, and the first address in it that suits the library."""
    kept = getattr(_thread, "workspace", None)
    if kept is None or kept[2] < size:
        kept = (*_aligned(size), size)
        if size <= KEPT_WORKSPACE:
            _thread.workspace = kept
    return kept[:2]


def _memory_outside_graphs(size: int, device: torch.device) -> Tensor:
    """Memory that outlives this call. PyTorch may be sending this thread's allocations to a graph's own pool, where
    nothing may live on; so another thread asks for it, on the default stream."""

    def allocate() -> Tensor:
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.default_stream(device)):
            return torch.empty(size, dtype=torch.uint8, device=device)

    memory = _outside.submit(allocate).result()
    current = torch.cuda.current_stream(device)
    current.wait_stream(torch.cuda.default_stream(device))  # what used this memory before
    memory.record_stream(current)
    return memory


def _aligned(size: int) -> Tuple[Tensor, int]:
    """CPU memory and the first address in it that suits the library."""
    held = torch.empty(size + lib.BUFFER_ALIGNMENT, dtype=torch.uint8)
    return held, -(-held.data_ptr() // lib.BUFFER_ALIGNMENT) * lib.BUFFER_ALIGNMENT


# --- packs ---


class _Kept:
    """Packed weights, kept until a weight changes; then packed again into the same memory, which graphs may hold."""

    __slots__ = ("versions", "pack", "memory", "pointer", "streams", "watches")

    def __init__(self, plan: ops.Plan, sources: Sequence[Tensor], forget: Callable[[], None]):
        device = sources[0].device
        if device.type == "cpu":
            self.memory, self.pointer = _aligned(plan.pack_size)
        else:
            self.memory = _memory_outside_graphs(max(plan.pack_size, 1), device)
            self.pointer = self.memory.data_ptr()
        self.versions: Optional[tuple] = None
        self.pack: Any = None
        self.streams: Dict[int, Any] = {}
        # When the memory of a weight is freed, its address may come again with other contents.
        self.watches = [weakref.ref(source.untyped_storage(), lambda _: forget()) for source in sources]

    def fill(self, plan: ops.Plan, weights: Sequence[Optional[Tensor]], versions: Optional[tuple], stream: int) -> None:
        """Packs on the current stream, after all work that reads the old pack."""
        self.versions = None  # nobody may use what fails half-way
        if self.memory.is_cuda:
            current = torch.cuda.current_stream(self.memory.device)
            for other, used in self.streams.items():
                if other != stream:
                    current.wait_stream(used)
            if stream not in self.streams:
                self.memory.record_stream(current)
            self.pack = _pack(plan, weights, self.pointer, stream)
            self.streams = {stream: current}
        else:
            self.pack = _pack(plan, weights, self.pointer, None)
        self.versions = versions

    def join(self, stream: int) -> None:
        """The first use on a stream comes after the packing, which was on another."""
        current = torch.cuda.current_stream(self.memory.device)
        for used in list(self.streams.values()):
            current.wait_stream(used)
        self.memory.record_stream(current)
        self.streams[stream] = current


def _pack(plan: ops.Plan, weights: Sequence[Optional[Tensor]], pointer: int, stream: Optional[int]) -> ops.Pack:
    return plan.pack([None if w is None else _layout(w) for w in weights], pointer, stream)


class Caches:
    """The plans and packs of one op."""

    def __init__(self) -> None:
        self.plans: Dict[tuple, ops.Plan] = {}
        self.packs: Dict[tuple, Dict[tuple, _Kept]] = {}
        """By what a pack's layout depends on, then by the weights' addresses."""

    def run(self, spec: Any, x: Tensor, mask: Optional[Tensor], residual: Optional[Tensor], sources: Sequence[Tensor],
            weights: Callable[[], Sequence[Optional[Tensor]]], compute: Optional[str], out_dtype: torch.dtype,
            static_weights: bool) -> Tensor:
        """One execution. `sources` are the tensors that the weights are views of; `weights()` makes the views."""
        index, shape, pointer = x.get_device(), x.shape, x.data_ptr()
        if index >= 0 and index != _current_gpu():
            with torch.cuda.device(index):
                return self.run(spec, x, mask, residual, sources, weights, compute, out_dtype, static_weights)
        mask_pointer = residual_pointer = residual_key = None
        if residual is not None:
            residual_pointer = residual.data_ptr()
            residual_key = (residual.dtype, residual.shape, residual.stride(), residual_pointer & 15,
                            residual.get_device())
        # On the CPU a plan has a workspace for each thread; on a GPU, fp32 may mean tf32.
        setting = torch.get_num_threads() if index < 0 else torch.get_float32_matmul_precision()
        if mask is None:
            key: tuple = (spec, shape, x.stride(), x.dtype, pointer & 15, index, residual_key, compute, out_dtype, setting)
        else:
            mask_pointer = mask.data_ptr()
            key = (spec, shape, x.stride(), x.dtype, pointer & 15, index, residual_key, compute, out_dtype, setting,
                   mask.dtype, mask.shape, mask.stride(), mask_pointer & 15, mask.get_device())
        plan = self.plans.get(key)
        if plan is None:
            usable = _usable(spec, x, mask, residual)
            if usable is not None:
                return self.run(spec, *usable, sources, weights, compute, out_dtype, static_weights)
            plan = self._plan(key, spec, x, mask, residual, out_dtype, compute)
        if index < 0:
            out = _new_on_cpu(plan.output_shape, plan.output_strides, out_dtype)
            args = ops.args(pointer, mask_pointer, residual_pointer, out.data_ptr())
            pack, packed = self._packed(plan, sources, weights, None, static_weights)
            held, workspace = _workspace(plan.workspace_size)
            status = plan.execute(plan.pointer, pack.pointer, args, workspace, plan.workspace_size, None)
        else:
            out = _new_on_gpu(plan.output_shape, plan.output_strides, out_dtype)
            args = ops.args(pointer, mask_pointer, residual_pointer, out.data_ptr())
            stream = _raw_stream_of_index(index)
            pack, packed = self._packed(plan, sources, weights, stream, static_weights)
            workspace = _raw_alloc(plan.workspace_size, stream)  # as a tensor, but in half the time
            try:
                status = plan.execute(plan.pointer, pack.pointer, args, workspace, plan.workspace_size, stream)
            finally:
                _raw_free(workspace)  # to what comes later in the stream
        if status:
            lib.check(status)
        return out

    def _plan(self, key: tuple, spec: Any, x: Tensor, mask: Optional[Tensor], residual: Optional[Tensor],
              out_dtype: torch.dtype, compute: Optional[str]) -> ops.Plan:
        out = torch.empty(spec.output_shape(x.shape), dtype=out_dtype, device="meta")
        made = ops.Plan(spec, torch_device(x.device, torch), tuple(x.shape), _layout(x),
                        None if mask is None else _layout(mask), None if residual is None else _layout(residual),
                        ops.Layout(0, tuple(out.shape), out.stride(), _DTYPES[out_dtype]),
                        compute or default_compute(x.dtype, x.device.type))
        made.output_shape, made.output_strides = tuple(out.shape), out.stride()
        # Plans that agree in these take the same packs.
        made.packs = self.packs.setdefault(
            (spec, x.get_device(), x.dtype, out_dtype, made.kernel, made.compute, made.pack_size), {})
        while len(self.plans) >= MAX_PLANS:
            self.plans.pop(next(iter(self.plans)), None)
        return self.plans.setdefault(key, made)

    def _packed(self, plan: ops.Plan, sources: Sequence[Tensor], weights: Callable[[], Sequence[Optional[Tensor]]],
                stream: Optional[int], static_weights: bool) -> Tuple[ops.Pack, Any]:
        """The pack, and what must live until the execution is in the stream (None: the CPU)."""
        packs, key = plan.packs, tuple(map(_pointer_of, sources))
        kept = packs.get(key)
        if stream and _capturing():  # the default stream, 0, records nothing
            if static_weights and kept is not None and kept.pack is not None:
                return kept.pack, kept
            # The graph packs in every launch, and so sees weights that change. Its memory may go to what follows in it.
            memory = _new_on_gpu((plan.pack_size,), (1,), torch.uint8)
            return _pack(plan, weights(), memory.data_ptr(), stream), memory
        try:
            versions: Optional[tuple] = tuple(map(_version_of, sources))
        except RuntimeError:  # made in inference mode: nothing tells whether they changed
            versions = None
        if kept is None:
            _check_weights(sources, plan.device)
            kept = packs.setdefault(key, _Kept(plan, sources, lambda: packs.pop(key, None)))
        if versions is None or kept.versions != versions:
            kept.fill(plan, weights(), versions, stream)
        elif stream is not None and stream not in kept.streams:
            kept.join(stream)
        return kept.pack, kept


def default_compute(dtype: torch.dtype, device_type: str) -> str:
    """The accuracy that PyTorch's own products would have: torch.set_float32_matmul_precision decides about tf32."""
    if dtype == torch.float32 and device_type == "cuda" and torch.get_float32_matmul_precision() != "highest":
        return "tf32"
    return _COMPUTES[dtype]


def _usable(spec: Any, x: Tensor, mask: Optional[Tensor], residual: Optional[Tensor]) -> Optional[tuple]:
    """Checks the tensors of a first call. Gives copies of all if one cannot be taken as it is."""
    what = "m" if spec.op == "opm" else "z"
    c_in = spec.c_m if spec.op == "opm" else spec.c_z
    if x.dim() != 4 or x.shape[3] != c_in or (spec.op == "trimul" and x.shape[1] != x.shape[2]):
        raise ValueError(f"{what} has shape {list(x.shape)}, expected "
                         f"[B, {'S, N' if spec.op == 'opm' else 'N, N'}, {c_in}]")
    if x.dtype not in _COMPUTES:
        raise TypeError(f"{what} has dtype {x.dtype}, expected float64, float32, bfloat16 or float16")
    if x.device.type not in ("cpu", "cuda"):
        raise TypeError(f"{what} is on {x.device}, expected cpu or cuda")
    changed = _strided(x)
    given = [changed]
    for name, tensor, shape in (("mask", mask, tuple(x.shape[:3])),
                                ("residual", residual, spec.output_shape(tuple(x.shape)))):
        if tensor is not None and tuple(tensor.shape) != shape:
            try:
                tensor = tensor.expand(shape)
            except RuntimeError:
                raise ValueError(f"{name} has shape {list(tensor.shape)}, expected {list(shape)}") from None
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{name} is on {tensor.device}, expected {x.device}, where {what} is")
        if name == "residual" and tensor is not None and tensor.dtype not in _COMPUTES:
            raise TypeError(f"residual has dtype {tensor.dtype}, expected float64, float32, bfloat16 or float16")
        given.append(None if tensor is None else _strided(tensor))
    return None if given[0] is x and given[1] is mask and given[2] is residual else tuple(given)


def _check_weights(sources: Sequence[Tensor], device: str) -> None:
    for source in sources:
        if torch_device(source.device, torch) != device:
            raise ValueError(f"a weight of shape {list(source.shape)} is on {source.device}, the input is on {device}")
        if source.dtype not in _COMPUTES:
            raise TypeError(f"a weight has dtype {source.dtype}, expected float64, float32, bfloat16 or float16")


opm, trimul = Caches(), Caches()


# --- the operators ---

def _weights_schema(names: Sequence[str]) -> str:
    return ", ".join(f"Tensor{'?' if name.endswith('_bias') else ''} {name}" for name in names)


_TAIL = "str? compute=None, ScalarType? out_dtype=None, int workspace_limit=0, bool static_weights=False) -> Tensor"
torch.library.define("evoformer::outer_product_mean", "(Tensor m, Tensor? mask, Tensor? residual, " +
                     _weights_schema(lib.OPM_WEIGHTS) + ", bool divide_after=False, bool mask_a_only=False, "
                     "float count_eps=0.0, float count_min=1.0, float layer_norm_eps=1e-5, " + _TAIL)
torch.library.define("evoformer::triangle_multiplication", "(Tensor z, Tensor? mask, Tensor? residual, " +
                     _weights_schema(lib.TRIMUL_WEIGHTS) + ", bool outgoing=True, bool gate_raw=False, "
                     "float layer_norm_eps=1e-5, " + _TAIL)


def composed(formula: Callable[..., Tensor], tensors: Sequence[Optional[Tensor]], parameters: Sequence[Any]) -> Tensor:
    """An op in PyTorch's own operations, in fp32 (fp64 for fp64): the input, mask, residual, the weights."""
    x = tensors[0]
    assert x is not None
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    with torch.autocast(x.device.type, enabled=False):
        given = [None if t is None else t.to(wide) for t in tensors]
        return formula(*given[:3], given[3:], *parameters)


class _Operator:
    """What the two operators' registrations share. Arguments are positional, as in the schema: the input, mask, residual,
    the weights, the op's own parameters, and the four of _TAIL."""

    def __init__(self, name: str, kind: Any, caches: Caches, formula: Callable[..., Tensor], defaults: tuple):
        self.kind, self.caches, self.formula = kind, caches, formula
        self.first, self.second = 3 + len(kind.weights), 3 + len(kind.weights) + len(defaults)
        self.defaults = (*defaults, None, None, 0, False)
        self.out_weight = kind.weights.index("out_weight")
        self.specs: Dict[tuple, Any] = {}
        torch.library.impl(name, ("cpu", "cuda"), self.run)
        torch.library.register_fake(name, self.fake)
        torch.library.register_autograd(name, self.backward, setup_context=self.setup)

    def whole(self, arguments: tuple) -> tuple:
        """The arguments with the trailing defaults, which PyTorch leaves out."""
        return arguments + self.defaults[len(arguments) - self.first:]

    def run(self, *given: Any) -> Tensor:
        arguments = self.whole(given)
        x, weights = arguments[0], arguments[3:self.first]
        compute, out_dtype, workspace_limit, static_weights = arguments[self.second:]
        sources = [weight for weight in weights if weight is not None]
        key = (weights[2].shape, weights[self.out_weight].shape, arguments[self.first:self.second], workspace_limit,
               *[weight is None for weight in weights])
        spec = self.specs.get(key)
        if spec is None:
            present = tuple(name for name, weight in zip(self.kind.weights, weights) if weight is not None)
            spec = self.specs[key] = ops.spec(self.kind, *self.channels(weights), present,
                                              *arguments[self.first:self.second], 1.0,
                                              _whole("workspace_limit", workspace_limit), None)
        return self.caches.run(spec, x, arguments[1], arguments[2], sources, lambda: weights, compute,
                               out_dtype or x.dtype, static_weights)

    def channels(self, weights: Sequence[Any]) -> Tuple[int, int, int]:
        """Of the input, hidden, of the output."""
        first, last = weights[2], weights[self.out_weight]
        if first.dim() != 2 or last.dim() != 2:
            raise ValueError(f"{self.kind.weights[2]} has shape {list(first.shape)} and out_weight {list(last.shape)}, "
                             "expected two dimensions each")
        return first.shape[1], first.shape[0], last.shape[0]

    def fake(self, *given: Any) -> Tensor:
        arguments = self.whole(given)
        x, weights = arguments[0], arguments[3:self.first]
        columns = x.shape[2]
        rows = columns if self.kind.op == "opm" else x.shape[1]
        return x.new_empty((x.shape[0], rows, columns, self.channels(weights)[2]),
                           dtype=arguments[self.second + 1] or x.dtype)

    def setup(self, ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:self.first])
        ctx.parameters = self.whole(inputs)[self.first:self.second]
        ctx.count = len(inputs)

    def backward(self, ctx: Any, grad: Tensor) -> tuple:
        """The op again, in PyTorch's own operations and in fp32 (fp64 for fp64), and their gradient."""
        saved = ctx.saved_tensors
        wanted = [i for i in range(self.first) if ctx.needs_input_grad[i]]
        again = torch.is_grad_enabled()  # the gradient will be differentiated too
        leaves = saved if again else [None if t is None else t.detach().requires_grad_(i in wanted)
                                      for i, t in enumerate(saved)]
        with torch.enable_grad(), torch.autocast(saved[0].device.type, enabled=False):
            out = composed(self.formula, leaves, ctx.parameters)
            found = torch.autograd.grad(out, [leaves[i] for i in wanted], grad.to(out.dtype), create_graph=again,
                                        allow_unused=True)
        grads: List[Optional[Tensor]] = [None] * ctx.count
        for i, gradient in zip(wanted, found):
            grads[i] = gradient
        return tuple(grads)


_Operator("evoformer::outer_product_mean", ops.Opm, opm, _formulas.outer_product_mean,
          (False, False, 0.0, 1.0, 1e-5))
_Operator("evoformer::triangle_multiplication", ops.Trimul, trimul, _formulas.triangle_multiplication,
          (True, False, 1e-5))

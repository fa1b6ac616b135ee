"""_ops.py: the two ops without an array library: what a set of weights fixes (a spec), plans, packs, executions."""
from __future__ import annotations

import ctypes as C
import struct
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar, Dict, NamedTuple, Optional, Sequence, Tuple

from . import _library as lib
from ._library import COMPUTES, DTYPES

Shape = Tuple[int, ...]


class Layout(NamedTuple):
    """How a tensor or weight lies in memory."""

    pointer: int
    shape: Shape
    strides: Shape
    """In elements, one a dimension."""
    dtype: str
    """One of DTYPES."""


def tensor(layout: Optional[Layout]) -> lib.Tensor:
    """The descriptor's entry of an activation, or of one that is absent."""
    described = lib.Tensor()
    if layout is not None:
        described.dtype = DTYPES.index(layout.dtype)
        # All strides zero means contiguous to the library, so the stride of an extent of 1, which counts for nothing, is 1.
        described.strides[:len(layout.shape)] = [stride if extent != 1 else 1
                                                 for extent, stride in zip(layout.shape, layout.strides)]
        described.alignment = alignment(layout.pointer)
    return described


def alignment(pointer: int) -> int:
    """The promise that a pointer keeps: 16 bytes, or what it has of them."""
    return 16 if pointer % 16 == 0 else pointer & -pointer


def repeats_one_element(layout: Layout) -> bool:
    """Whether all strides are zero, which the library would take for contiguous; no matter where there is no element."""
    return all(layout.shape) and any(extent > 1 for extent in layout.shape) and \
        not any(stride for extent, stride in zip(layout.shape, layout.strides) if extent > 1)


@dataclass(frozen=True, eq=False)
class Spec:
    """What channels, variant and number types fix of a plan. Compared by identity: make one with ``spec()``."""

    op: ClassVar[str]
    weights: ClassVar[Tuple[str, ...]]
    weights_struct: ClassVar[type]

    def shapes(self) -> Dict[str, Shape]:
        """The shape of each weight."""
        raise NotImplementedError

    def desc(self, shape: Shape) -> Any:
        """A descriptor for an input of this shape."""
        raise NotImplementedError

    @property
    def biases(self) -> int:
        """The descriptor's bits: one a bias, in the order of the weights' struct."""
        return sum(1 << bit for bit, name in enumerate(self.weights[1::2]) if name in self.present)  # type: ignore

    def __reduce__(self) -> tuple:
        return spec, (type(self), *(getattr(self, field.name) for field in fields(self)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in fields(self))})"


@dataclass(frozen=True, eq=False, repr=False)
class Opm(Spec):
    """An outer product mean; the fields are those of evo_opm_desc."""

    c_m: int
    c: int
    c_z: int
    present: Tuple[str, ...]
    """The names of the weights that exist."""
    divide_after: bool = False
    mask_a_only: bool = False
    count_eps: float = 0.0
    count_min: float = 1.0
    layer_norm_eps: float = 1e-5
    mask_max: float = 1.0
    workspace_limit: int = 0
    kernel: Optional[str] = None

    op, weights, weights_struct = "opm", lib.OPM_WEIGHTS, lib.OpmWeights

    def shapes(self) -> Dict[str, Shape]:
        m, c, z = (self.c_m,), (self.c,), (self.c_z,)
        return dict(zip(self.weights, (m, m, c + m, c, c + m, c, z + (self.c * self.c,), z)))

    def output_shape(self, shape: Shape) -> Shape:
        return (shape[0], shape[2], shape[2], self.c_z)

    def desc(self, shape: Shape) -> Any:
        batch, s, n, c_m = shape
        return lib.OpmDesc(C.sizeof(lib.OpmDesc), batch, s, n, c_m, self.c, self.c_z, biases=self.biases,
                           divide=self.divide_after, mask_sides=self.mask_a_only, count_eps=self.count_eps,
                           count_min=self.count_min, layer_norm_eps=self.layer_norm_eps, mask_max=self.mask_max,
                           workspace_limit=self.workspace_limit, kernel=self.kernel and self.kernel.encode())


@dataclass(frozen=True, eq=False, repr=False)
class Trimul(Spec):
    """A triangle multiplication; the fields are those of evo_trimul_desc."""

    c_z: int
    c: int
    c_out: int
    present: Tuple[str, ...]
    outgoing: bool = True
    gate_raw: bool = False
    layer_norm_eps: float = 1e-5
    mask_max: float = 1.0
    workspace_limit: int = 0
    kernel: Optional[str] = None

    op, weights, weights_struct = "trimul", lib.TRIMUL_WEIGHTS, lib.TrimulWeights

    def shapes(self) -> Dict[str, Shape]:
        z, c, o = (self.c_z,), (self.c,), (self.c_out,)
        return dict(zip(self.weights, (z, z) + (c + z, c) * 4 + (c, c, o + c, o, o + z, o)))

    def output_shape(self, shape: Shape) -> Shape:
        return (shape[0], shape[1], shape[2], self.c_out)

    def desc(self, shape: Shape) -> Any:
        batch, n, _, c_z = shape
        return lib.TrimulDesc(C.sizeof(lib.TrimulDesc), batch, n, c_z, self.c, self.c_out, biases=self.biases,
                              direction=not self.outgoing, gate_input=self.gate_raw,
                              layer_norm_eps=self.layer_norm_eps, mask_max=self.mask_max,
                              workspace_limit=self.workspace_limit, kernel=self.kernel and self.kernel.encode())


@lru_cache(maxsize=None)
def spec(kind: type, *values: Any) -> Any:
    """The one spec of these fields, positional."""
    return kind(*values)


@lru_cache(maxsize=None)
def variant(name: str) -> Dict[str, Any]:
    """What the library says a published outer product mean fixes: Opm's fields, and `biases`."""
    desc = lib.OpmDesc(C.sizeof(lib.OpmDesc))
    lib.check(lib.dll().evo_opm_set_variant(C.byref(desc), name.encode()))
    return {"divide_after": bool(desc.divide), "mask_a_only": bool(desc.mask_sides), "count_eps": desc.count_eps,
            "count_min": desc.count_min, "biases": desc.biases}


class Plan:
    """One op of one size on one device; any number of threads may execute it."""

    def __init__(self, made: Spec, device: str, shape: Shape, x: Layout, mask: Optional[Layout],
                 residual: Optional[Layout], out: Layout, compute: str):
        if compute not in COMPUTES:
            raise ValueError(f"compute is {compute!r}, expected one of {', '.join(COMPUTES)}")
        desc = made.desc(shape)
        setattr(desc, "m" if made.op == "opm" else "z", tensor(x))
        desc.mask, desc.residual, desc.out = tensor(mask), tensor(residual), tensor(out)
        desc.alias = (lib.ALIAS_INPUT if made.op == "trimul" and x.pointer == out.pointer else 0) | \
            (lib.ALIAS_RESIDUAL if residual is not None and residual.pointer == out.pointer else 0)
        desc.compute = COMPUTES.index(compute)
        self.spec, self.device, self.pointer = made, device, C.c_void_p()
        # For the caller: the packs that this plan takes, the output's layout.
        self.packs: Dict[Any, Any] = {}
        self.output_shape: Shape = ()
        self.output_strides: Shape = ()
        self._pack = getattr(lib.dll(), f"evo_{made.op}_pack_weights")
        self.execute = getattr(lib.dll(), f"evo_{made.op}_execute")
        lib.check(getattr(lib.dll(), f"evo_{made.op}_plan_create")(lib.context(device), C.byref(desc),
                                                                   C.byref(self.pointer)))
        info = lib.PlanInfo(C.sizeof(lib.PlanInfo))
        lib.check(lib.dll().evo_plan_get_info(self.pointer, C.byref(info)))
        self.kernel, self.compute = info.kernel.decode(), COMPUTES[info.compute]
        self.workspace_size, self.pack_size = info.workspace_size, info.pack_size
        self.flops, self.bytes, self.refusals = info.flops, info.bytes, info.refusals.decode()

    def __del__(self, destroy=lambda pointer: lib.dll().evo_plan_destroy(pointer)) -> None:
        if getattr(self, "pointer", None):
            destroy(self.pointer)

    def pack(self, weights: Sequence[Optional[Layout]], memory: int, stream: Optional[int]) -> "Pack":
        """Packs the weights, in the order of the spec's names, into `memory` of pack_size bytes, in stream order."""
        views, shapes = self.spec.weights_struct(), self.spec.shapes()
        views.size = C.sizeof(views)
        for name, weight in zip(self.spec.weights, weights):
            if weight is None:
                continue
            if weight.shape != shapes[name]:
                raise ValueError(f"{name} has shape {list(weight.shape)}, expected {list(shapes[name])}")
            strides = [stride if extent != 1 else 1 for extent, stride in zip(weight.shape, weight.strides)]
            setattr(views, name, lib.Weight(weight.pointer, DTYPES.index(weight.dtype), (C.c_int64 * 2)(*strides)))
        pointer = C.c_void_p()
        lib.check(self._pack(self.pointer, C.byref(views), memory, self.pack_size, stream, C.byref(pointer)))
        return Pack(pointer)

    def run(self, pack: "Pack", x: int, mask: Optional[int], residual: Optional[int], out: int,
            workspace: Optional[int], stream: Optional[int]) -> None:
        """Computes in stream order."""
        status = self.execute(self.pointer, pack.pointer, args(x, mask, residual, out), workspace, self.workspace_size,
                              stream)
        if status:
            lib.check(status)


_ARGS = struct.Struct("@N4P")


def args(x: int, mask: Optional[int], residual: Optional[int], out: int) -> bytes:
    """evo_opm_args and evo_trimul_args, which are alike: the size, the input, mask, residual, out. Faster than ctypes'."""
    return _ARGS.pack(_ARGS.size, x, mask or 0, residual or 0, out)


class Pack:
    """Packed weights; the memory is whoever's gave it."""

    def __init__(self, pointer: C.c_void_p):
        self.pointer = pointer

    def __del__(self, destroy=lambda pointer: lib.dll().evo_pack_destroy(pointer)) -> None:
        destroy(self.pointer)

"""_arrays.py: pointers, shapes and strides of arrays of any library, and new arrays of the caller's library.

PyTorch's tensors are asked directly; every other array through DLPack, or else through NumPy's or CUDA's array interface.
"""
from __future__ import annotations

import ctypes as C
import sys
from typing import Any, NamedTuple, Optional, Tuple

from ._ops import Layout, Shape

_KINDS = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "uint8",
          "bool": "uint8"}
_NAMES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_TYPESTRS = {"<f8": "fp64", "<f4": "fp32", "<f2": "fp16", "|u1": "uint8", "|b1": "uint8"}
_SIZES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "uint8": 1}


class View(NamedTuple):
    """An array as the library sees it."""

    layout: Layout
    device: str
    owner: Any
    """What keeps the memory alive."""


# --- DLPack ---


class _DLTensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("device_type", C.c_int), ("device_id", C.c_int), ("ndim", C.c_int),
                ("code", C.c_uint8), ("bits", C.c_uint8), ("lanes", C.c_uint16), ("shape", C.POINTER(C.c_int64)),
                ("strides", C.POINTER(C.c_int64)), ("byte_offset", C.c_uint64)]


_DEVICES = {1: "cpu", 2: "cuda", 3: "cpu", 10: "hip", 11: "cpu", 13: "cuda"}  # 3, 11: pinned, 13: managed
_DL_TYPES = {(2, 64): "fp64", (2, 32): "fp32", (2, 16): "fp16", (4, 16): "bf16", (1, 8): "uint8", (6, 8): "uint8"}
_get_pointer = C.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = C.c_void_p, [C.py_object, C.c_char_p]


def _from_dlpack(array: Any, name: str, stream: Optional[int]) -> View:
    kind = _DEVICES.get(int(array.__dlpack_device__()[0]), "cpu")
    # The producer makes its work visible to the stream that will read: 1 is CUDA's legacy default stream, 0 is HIP's.
    wanted = None if kind == "cpu" else stream or (1 if kind == "cuda" else 0)
    capsule = array.__dlpack__() if wanted is None else array.__dlpack__(stream=wanted)
    t = C.cast(_get_pointer(capsule, b"dltensor"), C.POINTER(_DLTensor)).contents
    dtype = _DL_TYPES.get((t.code, t.bits))
    if dtype is None or t.lanes != 1:
        raise TypeError(f"{name}: its DLPack type (code {t.code}, {t.bits} bits, {t.lanes} lanes) is none that the "
                        "library takes: float64, float32, bfloat16, float16; a mask also uint8 or bool")
    shape = tuple(t.shape[:t.ndim])
    strides = tuple(t.strides[:t.ndim]) if t.strides else contiguous(shape)
    layout = Layout((t.data or 0) + t.byte_offset, shape, strides, dtype)
    return View(layout, kind if kind == "cpu" else f"{kind}:{t.device_id}", capsule)


# --- array interfaces ---


def _from_interface(array: Any, interface: dict, name: str, device: str) -> View:
    # NumPy has no bfloat16; the type that JAX and others add to it is known by its name alone.
    named = getattr(getattr(array, "dtype", None), "name", "")
    dtype = "bf16" if named == "bfloat16" else _TYPESTRS.get(interface["typestr"])
    if dtype is None:
        raise TypeError(f"{name} has dtype {named or interface['typestr']}, expected float64, float32, bfloat16 or "
                        "float16 in this machine's byte order; a mask may be uint8 or bool too")
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    size = _SIZES[dtype]
    if strides is not None and any(stride % size for stride in strides):
        raise TypeError(f"{name} has strides {strides} in bytes, expected multiples of its element's {size}")
    elements = contiguous(shape) if strides is None else tuple(stride // size for stride in strides)
    return View(Layout(interface["data"][0] or 0, shape, elements, dtype), device, array)


# --- PyTorch ---


def torch_of(array: Any) -> Any:
    """The module torch if this is one of its tensors, else None. Never imports it."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(array, getattr(torch, "Tensor", ())) else None


def torch_device(device: Any, torch: Any) -> str:
    """The library's name of a torch device."""
    if device.type == "cuda":
        return f"{'hip' if torch.version.hip else 'cuda'}:{device.index}"
    return device.type


def _from_torch(array: Any, torch: Any, name: str) -> View:
    forward = torch.autograd.forward_ad
    along = getattr(forward, "_current_level", -1) >= 0 and forward.unpack_dual(array).tangent is not None
    if along or array.requires_grad and torch.is_grad_enabled():
        raise TypeError(f"{name} requires a gradient, which this function does not compute: use evoformer.torch, "
                        "torch.no_grad() or detach()")
    if array.layout != torch.strided or array.device.type not in ("cpu", "cuda"):
        raise TypeError(f"{name} is a {array.layout} tensor on {array.device}, expected a strided one on cpu or cuda")
    dtype = _KINDS.get(str(array.dtype)[len("torch."):])
    if dtype is None:
        raise TypeError(f"{name} has dtype {array.dtype}, expected float64, float32, bfloat16 or float16; a mask may "
                        "be uint8 or bool too")
    layout = Layout(array.data_ptr(), tuple(array.shape), tuple(array.stride()), dtype)
    return View(layout, torch_device(array.device, torch), array)


# --- any ---


def contiguous(shape: Shape) -> Shape:
    """Strides, in elements, of a contiguous array."""
    strides, size = [], 1
    for extent in reversed(shape):
        strides.append(size)
        size *= max(extent, 1)
    return tuple(reversed(strides))


def view(array: Any, name: str, stream: Optional[int] = None) -> View:
    """Where an array is and how it lies. On a GPU, `stream` will read it after the work that makes it."""
    torch = torch_of(array)
    if torch is not None:
        return _from_torch(array, torch, name)
    if hasattr(array, "__array_interface__"):  # first, since NumPy exports no read-only array through DLPack
        return _from_interface(array, array.__array_interface__, name, "cpu")
    if hasattr(array, "__dlpack__"):
        return _from_dlpack(array, name, stream)
    if hasattr(array, "__cuda_array_interface__"):
        interface = array.__cuda_array_interface__
        device = getattr(getattr(array, "device", None), "id", 0)
        return _from_interface(array, interface, name, f"cuda:{device}")
    raise TypeError(f"{name} is a {type(array).__name__}, expected an array that speaks DLPack or an array interface")


def empty(like: Any, shape: Shape, dtype: str) -> Any:
    """A new array of the library and device of `like`."""
    torch = torch_of(like)
    if torch is not None:
        return torch.empty(shape, dtype=getattr(torch, _NAMES[dtype]), device=like.device)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(like, numpy.ndarray):
        return numpy.empty(shape, like.dtype if _NAMES[dtype] == like.dtype.name else _NAMES[dtype])
    if hasattr(like, "__array_namespace__"):  # the array API standard: CuPy, JAX
        made = like.__array_namespace__()
        return made.empty(shape, dtype=getattr(made, _NAMES[dtype]), device=like.device)
    raise TypeError(f"a {type(like).__name__} has no __array_namespace__ to make the output with: pass out=")


def current_stream(array: Any) -> Optional[int]:
    """The stream that the array's library works on now, as a number; None: the device's default, or a CPU's."""
    torch = torch_of(array)
    if torch is not None:
        return (torch.cuda.current_stream(array.device).cuda_stream or None) if array.device.type == "cuda" else None
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return cupy.cuda.get_current_stream().ptr or None
    return None

"""_library.py: opens libevoformer on the process's OpenMP runtime, and its structs and functions through ctypes."""
from __future__ import annotations

import ctypes as C
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional, Type

DTYPES = ("none", "fp64", "fp32", "bf16", "fp16", "uint8")
COMPUTES = ("fp32", "fp32_strict", "tf32", "bf16", "fp16", "fp64")
ALIAS_INPUT, ALIAS_RESIDUAL = 1, 2
BUFFER_ALIGNMENT = 256


# --- errors ---


class Error(RuntimeError):
    """A call that the library refused or that failed. The text is the library's: argument, value, what was expected.

    Attributes:
        status: the C enumerator's name, such as ``"EVO_ERROR_INVALID_SHAPE"``.
    """

    def __init__(self, text: str, status: str):
        super().__init__(text)
        self.status = status


class InvalidArgument(Error, ValueError):
    """An argument (a number, shape, type, layout, name) that has no meaning or that no kernel takes."""


class OutOfMemory(Error, MemoryError):
    """Host or device memory is exhausted."""


_INVALID = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
_OUT_OF_MEMORY = 15


def check(status: int) -> None:
    """Turns a status of C into an exception with the library's text."""
    if status:
        kind: Type[Error] = (OutOfMemory if status == _OUT_OF_MEMORY else
                             InvalidArgument if status in _INVALID else Error)
        raise kind(dll().evo_last_error().decode(), dll().evo_status_name(status).decode())


# --- structs (include/evoformer; every public struct begins with its size) ---


class Tensor(C.Structure):
    _fields_ = [("dtype", C.c_int), ("strides", C.c_int64 * 4), ("alignment", C.c_size_t)]


class Weight(C.Structure):
    _fields_ = [("data", C.c_void_p), ("dtype", C.c_int), ("strides", C.c_int64 * 2)]


def _struct(name: str, *fields: tuple) -> Type[C.Structure]:
    """`size`, then the fields: (type, "name name ...")."""
    members = [("size", C.c_size_t)] + [(field, kind) for kind, names in fields for field in names.split()]
    return type(name, (C.Structure,), {"_fields_": members})


_COMMON = ((C.c_int, "compute propagation"), (C.c_size_t, "workspace_limit"), (C.c_char_p, "kernel"))
OpmDesc = _struct("OpmDesc", (C.c_int64, "batch s n c_m c c_z"), (Tensor, "m mask residual out"),
                  (C.c_uint, "biases alias"), (C.c_int, "divide mask_sides"),
                  (C.c_double, "count_eps count_min layer_norm_eps mask_max"), *_COMMON)
TrimulDesc = _struct("TrimulDesc", (C.c_int64, "batch n c_z c c_out"), (Tensor, "z mask residual out"),
                     (C.c_uint, "biases alias"), (C.c_int, "direction gate_input"),
                     (C.c_double, "layer_norm_eps mask_max"), *_COMMON)
OPM_WEIGHTS = ("norm_weight", "norm_bias", "a_weight", "a_bias", "b_weight", "b_bias", "out_weight", "out_bias")
TRIMUL_WEIGHTS = ("norm_in_weight", "norm_in_bias", "a_proj_weight", "a_proj_bias", "a_gate_weight", "a_gate_bias",
                  "b_proj_weight", "b_proj_bias", "b_gate_weight", "b_gate_bias", "norm_out_weight", "norm_out_bias",
                  "out_weight", "out_bias", "out_gate_weight", "out_gate_bias")
OpmWeights = _struct("OpmWeights", (Weight, " ".join(OPM_WEIGHTS)))
TrimulWeights = _struct("TrimulWeights", (Weight, " ".join(TRIMUL_WEIGHTS)))
PlanInfo = _struct("PlanInfo", (C.c_int, "op compute"), (C.c_char_p, "kernel"),
                   (C.c_size_t, "workspace_size pack_size"), (C.c_double, "flops bytes"), (C.c_char_p, "refusals"))
BackendInfo = _struct("BackendInfo", (C.c_char_p, "name"), (C.c_int, "compiled device_count"),
                      (C.c_char_p, "missing images"))
DeviceInfo = _struct("DeviceInfo", (C.c_char * 32, "name"), (C.c_char * 128, "description"), (C.c_char * 32, "arch"),
                     (C.c_int, "compute_units wave_size"), (C.c_size_t, "memory_size shared_memory_size"))


# --- the OpenMP runtime ---


def _mapped() -> Iterator[str]:
    """Paths of the shared objects in this process."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            seen = dict.fromkeys(line[line.index("/"):].rstrip("\n") for line in maps if "/" in line)
    except OSError:
        return
    yield from seen


def openmp_runtimes() -> List[str]:
    """Paths of the OpenMP runtimes that are in this process now: more than one is a fault of some package."""
    return [path for path in _mapped() if re.match(r"lib(gomp|iomp5|omp)\b.*\.so", os.path.basename(path))]


def _torch_openmp() -> Optional[str]:
    """The OpenMP runtime that an installed PyTorch brings. Does not import it."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for place in (Path(folder) / "lib", Path(folder).parent / "torch.libs"):
            for found in sorted(place.glob("libgomp*.so*")):
                return str(found)
    return None


def _open_openmp() -> str:
    """Opens one OpenMP runtime for all that is loaded from now on, and returns its path.

    The library in this package names no runtime. What it calls is looked up among the process's global symbols; so
    whichever runtime is opened here with RTLD_GLOBAL serves it: PyTorch's if PyTorch has been imported, else any that
    is in the process, else the one that an installed PyTorch will use when it is imported, else the system's.
    """
    here, bundled = openmp_runtimes(), _torch_openmp()
    of_torch = [path for path in here if bundled and os.path.realpath(path) == os.path.realpath(bundled)]
    path = (of_torch + here + [bundled or "libgomp.so.1"])[0]
    try:
        C.CDLL(path, mode=C.RTLD_GLOBAL)
    except OSError as error:
        raise ImportError(f"evoformer needs an OpenMP runtime, and {path} cannot be opened ({error}): install libgomp "
                          "(Debian: libgomp1, Fedora: libgomp)") from error
    return path


# --- the library ---


def path() -> str:
    """Where the library is: EVOFORMER_LIBRARY, else beside this file."""
    return os.environ.get("EVOFORMER_LIBRARY") or str(Path(__file__).with_name("libevoformer.so"))


def _open() -> C.CDLL:
    global openmp
    if sys.platform != "linux":
        raise ImportError(f"evoformer runs on Linux, this is {sys.platform}")
    openmp = _open_openmp()
    try:
        opened = C.CDLL(path())
    except OSError as error:
        raise ImportError(f"evoformer cannot open its library: {error}") from error
    for name in ("evo_last_error", "evo_status_name", "evo_build_info", "evo_version", "evo_opm_variant",
                 "evo_context_kernel"):
        getattr(opened, name).restype = C.c_char_p
    pointer, size = C.c_void_p, C.c_size_t
    opened.evo_context_kernel.argtypes = [pointer, C.c_int, C.c_int]
    opened.evo_memory_alloc.argtypes = [pointer, size, pointer]
    for name in ("evo_memory_free", "evo_stream_synchronize", "evo_plan_get_info"):
        getattr(opened, name).argtypes = [pointer, pointer]
    for name in ("evo_plan_destroy", "evo_pack_destroy"):
        getattr(opened, name).argtypes, getattr(opened, name).restype = [pointer], None
    for op in ("opm", "trimul"):
        getattr(opened, f"evo_{op}_plan_create").argtypes = [pointer, pointer, pointer]
        getattr(opened, f"evo_{op}_set_variant").argtypes = [pointer, C.c_char_p]
        getattr(opened, f"evo_{op}_pack_weights").argtypes = [pointer, pointer, pointer, size, pointer, pointer]
        getattr(opened, f"evo_{op}_execute").argtypes = [pointer, pointer, pointer, pointer, size, pointer]
    return opened


_dll: Optional[C.CDLL] = None
openmp: str = ""
"""Path of the OpenMP runtime in use; "" until the library is opened."""


def dll() -> C.CDLL:
    """The library, opened at the first call."""
    global _dll
    if _dll is None:
        _dll = _open()
    return _dll


_contexts: dict = {}


def context(device: str) -> C.c_void_p:
    """The process's context of a device ("cpu", "cuda:0", ...). It stays open: kernels are loaded once."""
    made = _contexts.get(device)
    if made is None:
        made = C.c_void_p()
        check(dll().evo_context_create(device.encode(), None, C.byref(made)))
        made = _contexts.setdefault(device, made)
    return made


class Device(NamedTuple):
    """One device that the library can use."""

    name: str
    """What functions call it: ``"cpu"``, ``"cuda:0"``, ``"hip:1"``."""
    description: str
    """The vendor's words for it."""
    arch: str
    """``"x86_64"``, ``"sm_90"``, ``"gfx942"``."""
    compute_units: int
    """Processors that this process may use, or multiprocessors."""
    memory_size: int
    """Bytes of its main memory; 0 if unknown."""


def devices() -> List[Device]:
    """The devices that the library finds, GPUs first. Without a GPU or driver it is the CPU alone."""
    found: List[Device] = []
    info = DeviceInfo(C.sizeof(DeviceInfo))
    while dll().evo_device_get(len(found), C.byref(info)) == 0:
        found.append(Device(info.name.decode(), info.description.decode(), info.arch.decode(), info.compute_units,
                            info.memory_size))
    return found


class Backend(NamedTuple):
    """One backend that the project knows."""

    name: str
    compiled: bool
    device_count: int
    missing: str
    """Why it has no device; "" if it has one."""
    images: str
    """GPU architectures that it has kernels for."""


def backends() -> List[Backend]:
    """All backends, compiled in or not."""
    found: List[Backend] = []
    info = BackendInfo(C.sizeof(BackendInfo))
    while dll().evo_backend_get(len(found), C.byref(info)) == 0:
        found.append(Backend(info.name.decode(), bool(info.compiled), info.device_count, info.missing.decode(),
                             info.images.decode()))
    return found


def build_info() -> str:
    """One line: version, compiler, options and backends of the library."""
    return dll().evo_build_info().decode()


def version() -> str:
    """The library's version, such as ``"0.1.0"``."""
    return dll().evo_version().decode()

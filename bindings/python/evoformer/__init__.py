"""evoformer: fused Evoformer operations on CPUs and GPUs.

``outer_product_mean`` and ``triangle_multiplication`` take arrays of NumPy, PyTorch, CuPy, JAX (eager), or any other
library that speaks DLPack or an array interface. ``evoformer.torch`` has modules for PyTorch.
"""
from ._functions import outer_product_mean, triangle_multiplication
from ._library import (Backend, Device, Error, InvalidArgument, OutOfMemory, backends, build_info, devices,
                       openmp_runtimes, version)

__all__ = ["Backend", "Device", "Error", "InvalidArgument", "OutOfMemory", "backends", "build_info", "devices",
           "openmp_runtimes", "outer_product_mean", "triangle_multiplication", "version"]

for _kind in (Backend, Device, Error, InvalidArgument, OutOfMemory):
    _kind.__module__ = __name__  # as they are called in messages


def __getattr__(name: str) -> str:
    if name == "__version__":
        return version()
    raise AttributeError(f"module 'evoformer' has no attribute {name!r}")

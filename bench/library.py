"""library.py: plans of the Python package (bindings/python), for the benchmarks: tensors of PyTorch, used in place.

    library = Library("libevoformer.so", "cuda:0")
    op = triangle_multiplication(library, z, mask, out, weights)   # plans, packs
    op(z, mask, out)                                               # executes on torch's current stream
"""
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bindings", "python"))
from evoformer import _library, _ops  # noqa: E402
from evoformer._arrays import view  # noqa: E402


class Library:
    def __init__(self, path, device):
        os.environ["EVOFORMER_LIBRARY"] = os.path.abspath(path)
        self.dll, self.device = _library.dll(), device
        _library.context(device)


class Op:
    """A plan with its pack and workspace; calling it executes on torch's current stream."""

    def __init__(self, library, spec, x, mask, out, weights, compute):
        self.device = x.device
        layouts = [None if tensor is None else view(tensor, name).layout
                   for name, tensor in (("input", x), ("mask", mask), ("residual", None), ("out", out))]
        self.info = _ops.Plan(spec, library.device, tuple(x.shape), *layouts, compute)
        self.pack_memory, self.workspace = self.memory(self.info.pack_size), self.memory(self.info.workspace_size)
        views = [view(weights[name], name).layout if weights.get(name) is not None else None for name in spec.weights]
        self.pack = self.info.pack(views, self.pack_memory.data_ptr(), self.stream())

    def memory(self, size):
        """Bytes from a multiple of 256 on, which PyTorch does not promise on the CPU."""
        whole = torch.empty(size + 256, dtype=torch.uint8, device=self.device)
        return whole[-whole.data_ptr() % 256:]

    def stream(self):
        return torch.cuda.current_stream().cuda_stream if self.device.type == "cuda" else None

    def __call__(self, x, mask, out, residual=None):
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in (x, mask, residual, out)]
        self.info.run(self.pack, *pointers, self.workspace.data_ptr(), self.stream())
        return out

    @property
    def kernel(self):
        return self.info.kernel


def present(kind, weights):
    return tuple(name for name in kind.weights if weights.get(name) is not None)


def outer_product_mean(library, m, mask, out, weights, compute="fp32", kernel=None):
    """m [B, S, N, c_m], mask [B, S, N] or None, out [B, N, N, c_z]; divide before, count at least 1."""
    spec = _ops.Opm(m.shape[3], weights["a_weight"].shape[0], out.shape[3], present(_ops.Opm, weights), kernel=kernel)
    return Op(library, spec, m, mask, out, weights, compute)


def triangle_multiplication(library, z, mask, out, weights, outgoing=True, compute="fp32", kernel=None):
    """z [B, N, N, c_z], mask [B, N, N] or None, out [B, N, N, c_out]; the gate reads the normalised input."""
    spec = _ops.Trimul(z.shape[3], weights["a_proj_weight"].shape[0], out.shape[3], present(_ops.Trimul, weights),
                       outgoing=outgoing, kernel=kernel)
    return Op(library, spec, z, mask, out, weights, compute)

"""library.py: libevoformer through ctypes, for the benchmarks: tensors of PyTorch, on any device, used in place.

    library = Library("libevoformer.so", "cuda:0")
    op = triangle_multiplication(library, z, mask, out, weights)   # plans, packs
    op(z, mask, out)                                               # executes on torch's current stream
"""
import ctypes as C

import torch

DTYPES = {torch.float64: 1, torch.float32: 2, torch.bfloat16: 3, torch.float16: 4, torch.uint8: 5}
COMPUTES = ["fp32", "fp32_strict", "tf32", "bf16", "fp16", "fp64"]


class Tensor(C.Structure):
    _fields_ = [("dtype", C.c_int), ("strides", C.c_int64 * 4), ("alignment", C.c_size_t)]


class Weight(C.Structure):
    _fields_ = [("data", C.c_void_p), ("dtype", C.c_int), ("strides", C.c_int64 * 2)]


def struct(name, fields):
    """A public struct: `size` first, then the fields."""
    return type(name, (C.Structure,), {"_fields_": [("size", C.c_size_t)] + fields})


def of(kind, names):
    return [(name, kind) for name in names.split()]


COMMON = (of(C.c_int, "compute propagation") + [("workspace_limit", C.c_size_t), ("kernel", C.c_char_p)])
OpmDesc = struct("OpmDesc", of(C.c_int64, "batch s n c_m c c_z") + of(Tensor, "m mask residual out") +
                 of(C.c_uint, "biases alias") + of(C.c_int, "divide mask_sides") +
                 of(C.c_double, "count_eps count_min layer_norm_eps mask_max") + COMMON)
TrimulDesc = struct("TrimulDesc", of(C.c_int64, "batch n c_z c c_out") + of(Tensor, "z mask residual out") +
                    of(C.c_uint, "biases alias") + of(C.c_int, "direction gate_input") +
                    of(C.c_double, "layer_norm_eps mask_max") + COMMON)
OPM_WEIGHTS = "norm_weight norm_bias a_weight a_bias b_weight b_bias out_weight out_bias"
TRIMUL_WEIGHTS = " ".join(f"{stem}_weight {stem}_bias" for stem in
                          "norm_in a_proj a_gate b_proj b_gate norm_out out out_gate".split())
Args = struct("Args", of(C.c_void_p, "input mask residual out"))
PlanInfo = struct("PlanInfo", of(C.c_int, "op compute") + [("kernel", C.c_char_p)] +
                  of(C.c_size_t, "workspace_size pack_size") + of(C.c_double, "flops bytes") +
                  [("refusals", C.c_char_p)])


class Library:
    def __init__(self, path, device):
        self.dll = C.CDLL(path)
        self.dll.evo_last_error.restype = C.c_char_p
        self.dll.evo_build_info.restype = C.c_char_p
        self.context = C.c_void_p()
        self.check(self.dll.evo_context_create(device.encode(), None, C.byref(self.context)))

    def check(self, status):
        if status:
            raise RuntimeError(self.dll.evo_last_error().decode())


def layout(tensor):
    described = Tensor()
    if tensor is not None:
        described.dtype = DTYPES[tensor.dtype]
        for d, stride in enumerate(tensor.stride()):
            described.strides[d] = stride
    return described


class Op:
    """A plan with its pack and workspace; calling it executes on torch's current stream."""

    def __init__(self, library, name, desc, weights, names, device):
        self.library, self.name, self.device = library, name, device
        self.weights = weights  # the views must live until they are packed
        self.plan, self.pack, self.info = C.c_void_p(), C.c_void_p(), PlanInfo(C.sizeof(PlanInfo))
        call = self.function
        library.check(call("plan_create")(library.context, C.byref(desc), C.byref(self.plan)))
        library.check(library.dll.evo_plan_get_info(self.plan, C.byref(self.info)))
        views = struct("Weights", of(Weight, names))()
        views.size = C.sizeof(views)
        for weight in names.split():
            tensor = weights.get(weight)
            if tensor is not None:
                strides = tensor.stride() + (0,) * (2 - tensor.dim())
                setattr(views, weight, Weight(tensor.data_ptr(), DTYPES[tensor.dtype], (C.c_int64 * 2)(*strides)))
        self.pack_memory = self.memory(self.info.pack_size)
        self.workspace = self.memory(self.info.workspace_size)
        library.check(call("pack_weights")(self.plan, C.byref(views), C.c_void_p(self.pack_memory.data_ptr()),
                                           C.c_size_t(self.info.pack_size), self.stream(), C.byref(self.pack)))

    def function(self, name):
        return getattr(self.library.dll, f"evo_{self.name}_{name}")

    def memory(self, size):
        """Bytes from a multiple of 256 on, which PyTorch does not promise on the CPU."""
        whole = torch.empty(size + 256, dtype=torch.uint8, device=self.device)
        return whole[-whole.data_ptr() % 256:]

    def stream(self):
        return C.c_void_p(torch.cuda.current_stream().cuda_stream if self.device.type == "cuda" else None)

    def __call__(self, tensor, mask, out, residual=None):
        pointer = lambda t: t.data_ptr() if t is not None else None
        args = Args(C.sizeof(Args), pointer(tensor), pointer(mask), pointer(residual), pointer(out))
        self.library.check(self.function("execute")(
            self.plan, self.pack, C.byref(args), C.c_void_p(self.workspace.data_ptr()),
            C.c_size_t(self.info.workspace_size), self.stream()))
        return out

    @property
    def kernel(self):
        return self.info.kernel.decode()


def bias_bits(weights, names):
    """The descriptor's `biases`: one bit a bias in the order of the weights' struct."""
    biases = [name for name in names.split() if name.endswith("_bias")]
    return sum(1 << bit for bit, name in enumerate(biases) if weights.get(name) is not None)


def common(compute, kernel):
    return (COMPUTES.index(compute), 0, 0, kernel.encode() if kernel else None)


def outer_product_mean(library, m, mask, out, weights, compute="fp32", kernel=None):
    """m [B, S, N, c_m], mask [B, S, N] or None, out [B, N, N, c_z]; divide before, count at least 1."""
    batch, s, n, c_m = m.shape
    desc = OpmDesc(C.sizeof(OpmDesc), batch, s, n, c_m, weights["a_weight"].shape[0], out.shape[3], layout(m),
                   layout(mask), Tensor(), layout(out), bias_bits(weights, OPM_WEIGHTS), 0, 0, 0, 0.0, 1.0, 1e-5,
                   1.0, *common(compute, kernel))
    return Op(library, "opm", desc, weights, OPM_WEIGHTS, m.device)


def triangle_multiplication(library, z, mask, out, weights, outgoing=True, compute="fp32", kernel=None):
    """z [B, N, N, c_z], mask [B, N, N] or None, out [B, N, N, c_out]; the gate reads the normalised input."""
    batch, n, _, c_z = z.shape
    desc = TrimulDesc(C.sizeof(TrimulDesc), batch, n, c_z, weights["a_proj_weight"].shape[0], out.shape[3], layout(z),
                      layout(mask), Tensor(), layout(out), bias_bits(weights, TRIMUL_WEIGHTS), 0,
                      0 if outgoing else 1, 0, 1e-5, 1.0, *common(compute, kernel))
    return Op(library, "trimul", desc, weights, TRIMUL_WEIGHTS, z.device)

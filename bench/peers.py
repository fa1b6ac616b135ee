"""peers.py: the two ops as others compute them: PyTorch in a few forms, cuEquivariance where it can be imported.

A form is a function (weights, input, mask) -> output; weights are a dict by the names of library.py.
"""
import torch
import torch.nn.functional as F

try:
    import cuequivariance_torch
except ImportError:
    cuequivariance_torch = None


def linear(weights, name, x):
    return F.linear(x, weights[name + "_weight"], weights[name + "_bias"])


def norm(weights, name, x):
    return F.layer_norm(x, (x.shape[-1],), weights[name + "_weight"], weights[name + "_bias"])


def trimul_einsum(outgoing):
    """As the published modules are written: a product for each weight, then einsum."""
    def form(weights, z, mask):
        x = norm(weights, "norm_in", z)
        a, b = (linear(weights, side + "_proj", x) * torch.sigmoid(linear(weights, side + "_gate", x)) * mask[..., None]
                for side in "ab")
        t = torch.einsum("bikh,bjkh->bijh" if outgoing else "bkih,bkjh->bijh", a, b)
        return torch.sigmoid(linear(weights, "out_gate", x)) * linear(weights, "out", norm(weights, "norm_out", t))
    return form


STACKED = "a_proj a_gate b_proj b_gate out_gate".split()


def trimul_gemm(outgoing):
    """One product for all five projections, channel-first operands of one batched product."""
    def form(weights, z, mask):
        c = weights["a_proj_weight"].shape[0]
        x, k = norm(weights, "norm_in", z), mask[..., None]
        y = F.linear(x, weights["stacked_weight"], weights["stacked_bias"])
        a, a_gate, b, b_gate, gate = y.split([c, c, c, c, y.shape[-1] - 4 * c], -1)
        order = (0, 3, 1, 2) if outgoing else (0, 3, 2, 1)
        a, b = ((side * torch.sigmoid(g) * k).permute(order).contiguous() for side, g in ((a, a_gate), (b, b_gate)))
        t = torch.matmul(a, b.transpose(-1, -2)).permute(0, 2, 3, 1)
        return torch.sigmoid(gate) * linear(weights, "out", norm(weights, "norm_out", t))
    return form


def opm_einsum(weights, m, mask):
    x = norm(weights, "norm", m)
    a, b = (linear(weights, side, x) * mask[..., None] for side in "ab")
    count = torch.einsum("bsi,bsj->bij", mask, mask).clamp(min=1)
    return linear(weights, "out", torch.einsum("bsih,bsjk->bijhk", a, b).flatten(-2) / count[..., None])


def opm_gemm(weights, m, mask):
    """One product [N * c, S] x [S, N * c], then the output's."""
    batch, s, n, _ = m.shape
    x = norm(weights, "norm", m)
    a, b = ((linear(weights, side, x) * mask[..., None]).reshape(batch, s, -1) for side in "ab")
    c = a.shape[-1] // n
    o = torch.matmul(a.transpose(1, 2), b).view(batch, n, c, n, c).permute(0, 1, 3, 2, 4).reshape(batch, n, n, c * c)
    count = torch.matmul(mask.transpose(1, 2), mask).clamp(min=1)
    return linear(weights, "out", o / count[..., None])


def cuequivariance(outgoing, precision):
    precision = getattr(cuequivariance_torch.TriMulPrecision, precision)

    def form(weights, z, mask):
        w = weights
        return cuequivariance_torch.triangle_multiplicative_update(
            z, direction="outgoing" if outgoing else "incoming", mask=mask, precision=precision, eps=1e-5,
            norm_in_weight=w["norm_in_weight"], norm_in_bias=w["norm_in_bias"],
            p_in_weight=w["p_in_weight"], p_in_bias=w["p_in_bias"], g_in_weight=w["g_in_weight"], g_in_bias=w["g_in_bias"],
            norm_out_weight=w["norm_out_weight"], norm_out_bias=w["norm_out_bias"], p_out_weight=w["out_weight"],
            p_out_bias=w["out_bias"], g_out_weight=w["out_gate_weight"], g_out_bias=w["out_gate_bias"])
    return form


def stack(weights, target, names):
    for kind in ("weight", "bias"):
        weights[f"{target}_{kind}"] = torch.cat([weights[f"{name}_{kind}"] for name in names])


def prepare(weights):
    """Adds the stacked weights that some forms of the triangle multiplication take; made once, as their users would."""
    if "a_proj_weight" in weights:
        stack(weights, "stacked", STACKED)
        stack(weights, "p_in", ["a_proj", "b_proj"])
        stack(weights, "g_in", ["a_gate", "b_gate"])


def forms(op, outgoing, compute, compiled, device):
    """The contestants by name. `compiled`: names of the PyTorch forms that torch.compile gets too."""
    eager = ({"einsum": trimul_einsum(outgoing), "gemm": trimul_gemm(outgoing)} if op == "trimul" else
             {"einsum": opm_einsum, "gemm": opm_gemm})
    made = {"torch " + name: form for name, form in eager.items()}
    made |= {f"torch.compile {name}": torch.compile(eager[name], dynamic=False) for name in compiled}
    precisions = {"bf16": ["DEFAULT"], "fp16": ["DEFAULT"], "tf32": ["TF32"], "fp32": ["TF32x3", "IEEE"]}
    if cuequivariance_torch and op == "trimul" and device.type == "cuda":
        made |= {"cuequivariance" + (f" {precision}" if compute == "fp32" else ""): cuequivariance(outgoing, precision)
                 for precision in precisions[compute]}
    return made

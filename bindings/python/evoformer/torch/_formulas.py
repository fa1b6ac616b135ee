"""_formulas.py: the two ops as compositions of PyTorch's own, for gradients. Readable, not fast."""
from __future__ import annotations

from typing import Optional, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Weight = Optional[Tensor]


def outer_product_mean(m: Tensor, mask: Weight, residual: Weight, weights: Sequence[Weight], divide_after: bool,
                       mask_a_only: bool, count_eps: float, count_min: float, layer_norm_eps: float) -> Tensor:
    """m [B, S, N, c_m], mask [B, S, N], residual [B, N, N, c_z], weights in the order of OPM_WEIGHTS -> [B, N, N, c_z]"""
    norm, norm_bias, w_a, b_a, w_b, b_b, w_out, b_out = weights
    x = F.layer_norm(m, m.shape[-1:], norm, norm_bias, layer_norm_eps)
    a, b = F.linear(x, w_a, b_a), F.linear(x, w_b, b_b)
    if mask is None:
        mask = m.new_ones(m.shape[:-1])
    a = a * mask[..., None]
    if not mask_a_only:
        b = b * mask[..., None]
    outer = torch.einsum("bsic,bsjd->bijcd", a, b).flatten(-2)
    count = (torch.einsum("bsi,bsj->bij", mask, mask) + count_eps).clamp(min=count_min)[..., None]
    z = F.linear(outer, w_out, b_out) / count if divide_after else F.linear(outer / count, w_out, b_out)
    return z if residual is None else residual + z


def triangle_multiplication(z: Tensor, mask: Weight, residual: Weight, weights: Sequence[Weight], outgoing: bool,
                            gate_raw: bool, layer_norm_eps: float) -> Tensor:
    """z [B, N, N, c_z], mask [B, N, N], residual [B, N, N, c_out], weights in the order of TRIMUL_WEIGHTS -> [B, N, N, c_out]"""
    (norm_in, norm_in_bias, w_ap, b_ap, w_ag, b_ag, w_bp, b_bp, w_bg, b_bg, norm_out, norm_out_bias, w_out, b_out,
     w_gate, b_gate) = weights
    x = F.layer_norm(z, z.shape[-1:], norm_in, norm_in_bias, layer_norm_eps)
    a = F.linear(x, w_ap, b_ap) * torch.sigmoid(F.linear(x, w_ag, b_ag))
    b = F.linear(x, w_bp, b_bp) * torch.sigmoid(F.linear(x, w_bg, b_bg))
    if mask is not None:
        a, b = a * mask[..., None], b * mask[..., None]
    t = torch.einsum("bikc,bjkc->bijc" if outgoing else "bkic,bkjc->bijc", a, b)
    y = F.linear(F.layer_norm(t, t.shape[-1:], norm_out, norm_out_bias, layer_norm_eps), w_out, b_out)
    out = torch.sigmoid(F.linear(z if gate_raw else x, w_gate, b_gate)) * y
    return out if residual is None else residual + out

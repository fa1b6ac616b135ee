"""standins.py: modules with the names, shapes and calls of OpenFold's, Boltz's and Protenix's, written from docs/ops.md.

`openfold`, `boltz`, `protenix` are importable names for the code of docs/pytorch.md.
"""
import torch
import torch.nn.functional as F
from torch import nn


class LayerNorm(nn.Module):
    """OpenFold has a class of its own."""

    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels)), eps

    def forward(self, x):
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


class Linear(nn.Linear):
    """OpenFold's takes an `init`; "final" and "gating" layers begin as zeros."""

    def __init__(self, into, out, bias=True, init="default"):
        super().__init__(into, out, bias)
        if init in ("final", "gating"):
            nn.init.zeros_(self.weight)


class OpenFoldOuterProductMean(nn.Module):
    bias = True

    def __init__(self, c_m, c_z, c_hidden, eps=1e-3):
        super().__init__()
        self.layer_norm, self.eps = LayerNorm(c_m), eps
        self.linear_1, self.linear_2 = Linear(c_m, c_hidden, self.bias), Linear(c_m, c_hidden, self.bias)
        self.linear_out = Linear(c_hidden**2, c_z, init="final")

    def forward(self, m, mask=None, chunk_size=None, inplace_safe=False):
        mask = m.new_ones(m.shape[:-1]) if mask is None else mask
        x = self.layer_norm(m)
        a, b = self.linear_1(x) * mask[..., None], self.linear_2(x) * mask[..., None]
        outer = torch.einsum("...sic,...sjd->...ijcd", a, b).flatten(-2)
        count = torch.einsum("...si,...sj->...ij", mask, mask)[..., None]
        return self.linear_out(outer) / (count + self.eps)


class TriangleMultiplicativeUpdate(nn.Module):
    bias = True

    def __init__(self, c_z, c_hidden, _outgoing=True):
        super().__init__()
        self._outgoing = _outgoing
        for side in "ab":
            setattr(self, f"linear_{side}_p", Linear(c_z, c_hidden, self.bias))
            setattr(self, f"linear_{side}_g", Linear(c_z, c_hidden, self.bias, init="gating"))
        self._ends(c_z, c_hidden)

    def _ends(self, c_z, c_hidden):
        self.linear_g = Linear(c_z, c_z, self.bias, init="gating")
        self.linear_z = Linear(c_hidden, c_z, self.bias, init="final")
        self.layer_norm_in, self.layer_norm_out = LayerNorm(c_z), LayerNorm(c_hidden)
        self.sigmoid = nn.Sigmoid()

    def _sides(self, x):
        return (self.linear_a_p(x) * self.sigmoid(self.linear_a_g(x)), self.linear_b_p(x) * self.sigmoid(self.linear_b_g(x)))

    def forward(self, z, mask=None, inplace_safe=False, _add_with_inplace=False, _inplace_chunk_size=256):
        mask = z.new_ones(z.shape[:-1]) if mask is None else mask
        x = self.layer_norm_in(z)
        a, b = (side * mask[..., None] for side in self._sides(x))
        t = torch.einsum("...ikc,...jkc->...ijc" if self._outgoing else "...kic,...kjc->...ijc", a, b)
        update = self.linear_z(self.layer_norm_out(t)) * self.sigmoid(self.linear_g(x))
        if inplace_safe and _add_with_inplace:
            z += update
            return z
        return update


class FusedTriangleMultiplicationUpdate(TriangleMultiplicativeUpdate):
    def __init__(self, c_z, c_hidden, _outgoing=True):
        nn.Module.__init__(self)
        self._outgoing = _outgoing
        self.linear_ab_p = Linear(c_z, 2 * c_hidden)
        self.linear_ab_g = Linear(c_z, 2 * c_hidden, init="gating")
        self._ends(c_z, c_hidden)

    def _sides(self, x):
        return (self.linear_ab_p(x) * self.sigmoid(self.linear_ab_g(x))).chunk(2, -1)


class BoltzOuterProductMean(nn.Module):
    def __init__(self, c_in, c_hidden, c_out):
        super().__init__()
        self.c_hidden, self.norm = c_hidden, nn.LayerNorm(c_in)
        self.proj_a, self.proj_b = nn.Linear(c_in, c_hidden, bias=False), nn.Linear(c_in, c_hidden, bias=False)
        self.proj_o = nn.Linear(c_hidden * c_hidden, c_out)

    def forward(self, m, mask, chunk_size=None):
        x = self.norm(m)
        a, b = self.proj_a(x) * mask[..., None].to(m), self.proj_b(x) * mask[..., None].to(m)
        count = torch.einsum("bsi,bsj->bij", mask.to(m), mask.to(m)).clamp(min=1)[..., None]
        return self.proj_o(torch.einsum("bsic,bsjd->bijcd", a, b).flatten(-2) / count)


class _BoltzTriangle(nn.Module):
    equation: str

    def __init__(self, dim=128):
        super().__init__()
        self.norm_in, self.norm_out = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.p_in, self.g_in = nn.Linear(dim, 2 * dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.p_out, self.g_out = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x, mask, use_kernels=False):
        x = self.norm_in(x)
        a, b = (self.p_in(x) * self.g_in(x).sigmoid() * mask[..., None]).chunk(2, -1)
        return self.p_out(self.norm_out(torch.einsum(self.equation, a, b))) * self.g_out(x).sigmoid()


class TriangleMultiplicationOutgoing(_BoltzTriangle):
    equation = "bikc,bjkc->bijc"


class TriangleMultiplicationIncoming(_BoltzTriangle):
    equation = "bkic,bkjc->bijc"


class ProtenixOuterProductMean(OpenFoldOuterProductMean):
    bias = False


class ProtenixTriangleMultiplication(TriangleMultiplicativeUpdate):
    bias = False

    def forward(self, z, mask=None, inplace_safe=False, _add_with_inplace=False, _inplace_chunk_size=256,
                triangle_multiplicative="torch"):
        return super().forward(z, mask, inplace_safe, _add_with_inplace, _inplace_chunk_size)


class GatedFirst(TriangleMultiplicativeUpdate):
    """Has OpenFold's names and computes something else: the gate comes before the output's projection."""

    def forward(self, z, mask=None):
        x = self.layer_norm_in(z)
        a, b = (side * mask[..., None] for side in self._sides(x))
        t = self.layer_norm_out(torch.einsum("...ikc,...jkc->...ijc", a, b))
        return self.linear_z(t) * self.sigmoid(self.linear_g(z))


class OpenFoldBlock(nn.Module):
    """The pair part of a block, called as OpenFold calls it."""

    def __init__(self, c_m=24, c_z=16, c_hidden=8):
        super().__init__()
        self.outer_product_mean = OpenFoldOuterProductMean(c_m, c_z, c_hidden)
        self.tri_mul_out = TriangleMultiplicativeUpdate(c_z, c_hidden)
        self.tri_mul_in = FusedTriangleMultiplicationUpdate(c_z, c_hidden, _outgoing=False)

    def forward(self, m, z, msa_mask, pair_mask, chunk_size=None, inplace_safe=False):
        z = z + self.outer_product_mean(m, mask=msa_mask, chunk_size=chunk_size, inplace_safe=inplace_safe)
        for update in (self.tri_mul_out, self.tri_mul_in):
            changed = update(z, mask=pair_mask, inplace_safe=inplace_safe, _add_with_inplace=True)
            z = changed if inplace_safe else z + changed
        return z


class BoltzLayer(nn.Module):
    """The pair part of a layer, called as Boltz calls it."""

    def __init__(self, token_s=24, token_z=16):
        super().__init__()
        self.outer_product_mean = BoltzOuterProductMean(token_s, 8, token_z)
        self.tri_mul_out = TriangleMultiplicationOutgoing(token_z)
        self.tri_mul_in = TriangleMultiplicationIncoming(token_z)

    def forward(self, m, z, msa_mask, pair_mask, use_kernels=False):
        z = z + self.outer_product_mean(m, msa_mask, 64)
        z = z + self.tri_mul_out(z, mask=pair_mask, use_kernels=use_kernels)
        return z + self.tri_mul_in(z, mask=pair_mask, use_kernels=use_kernels)

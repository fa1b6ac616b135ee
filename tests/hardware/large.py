#!/usr/bin/env python3
"""Tensors of more than 2^30 and 2^31 elements: both ops at N 2897, compared on sampled pairs.

    tests/hardware/large.py build/src/libevoformer.so [CHANNELS]...        (128 256 by default)

For a machine with an NVIDIA GPU and PyTorch; by hand, CI has none. 256 channels take about 60 GiB. The output is poisoned
and must be finite everywhere; pairs (i, j) of some rows and columns, the last ones among them, are evaluated in fp64 on the
CPU from the rows that they depend on. Each case prints a line; the status is 0 if all hold.
"""
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import compare
import library as evo
import peers

N = 2897
ROWS, COLUMNS = [0, 1, 1448, 2047, 2895, N - 1], [0, 2, 1023, 2048, 2894, N - 1]
BOUND = 3e-7       # relative, all sampled pairs together: docs/numerics.md, usual inputs
PAIR_BOUND = 3e-6  # of one pair's channels: what single rounding errors can add up to, far below a wrong element


def sampled_trimul(weights, z, mask, outgoing):
    """Rows ROWS x COLUMNS of the output, in fp64 on the CPU."""
    def side(name, index):
        rows, keep = (z[0][index], mask[0][index]) if outgoing else (z[0][:, index].transpose(0, 1), mask[0][:, index].T)
        x = peers.norm(weights, "norm_in", rows.double().cpu())
        gate = torch.sigmoid(peers.linear(weights, name + "_gate", x))
        return gate * peers.linear(weights, name + "_proj", x) * keep.double().cpu()[..., None]
    t = torch.einsum("ikh,jkh->ijh", side("a", ROWS), side("b", COLUMNS))
    x = peers.norm(weights, "norm_in", z[0][ROWS][:, COLUMNS].double().cpu())
    return torch.sigmoid(peers.linear(weights, "out_gate", x)) * peers.linear(weights, "out", peers.norm(weights, "norm_out", t))


def sampled_opm(weights, m, mask):
    def side(name, index):
        x = peers.norm(weights, "norm", m[0][:, index].double().cpu())
        return peers.linear(weights, name, x) * mask[0][:, index].double().cpu()[..., None]
    a, b = side("a", ROWS), side("b", COLUMNS)
    o = torch.einsum("sih,sjk->ijhk", a, b).flatten(-2)
    count = mask[0][:, ROWS].double().cpu().T @ mask[0][:, COLUMNS].double().cpu()
    return peers.linear(weights, "out", o / count.clamp(min=1)[..., None])


def check(what, plan, tensor, mask, out, want):
    out.fill_(float("nan"))
    plan(tensor, mask, out)
    torch.cuda.synchronize()
    finite = all(bool(torch.isfinite(out[0, i]).all()) for i in range(N))
    got = out[0][ROWS][:, COLUMNS].double().cpu()
    error = float((got - want).norm() / want.norm())
    pair = float(((got - want).norm(dim=-1) / want.norm(dim=-1)).max())
    holds = finite and error <= BOUND and pair <= PAIR_BOUND
    print(f"{'ok' if holds else 'FAILED':6} {what}: {out.numel() / 2**30:.2f} * 2^30 elements, workspace "
          f"{plan.info.workspace_size / 2**30:.1f} GiB, error {error:.2e}, worst pair {pair:.2e}, "
          f"{'finite' if finite else 'NOT FINITE'}", flush=True)
    return holds


def on_cpu(weights):
    return {name: weight.double().cpu() for name, weight in weights.items()}


def check_trimul(lib, c, device):
    weights = compare.matrices([("norm_in", c), ("a_proj", c, c), ("a_gate", c, c), ("b_proj", c, c), ("b_gate", c, c),
                                ("norm_out", c), ("out", c, c), ("out_gate", c, c)], device, torch.float32)
    z = torch.randn(1, N, N, c, device=device)
    mask = (torch.rand(1, N, N, device=device) < 0.9).float()
    out = torch.empty_like(z)
    holds = True
    for outgoing in (True, False):
        want = sampled_trimul(on_cpu(weights), z, mask, outgoing)
        plan = evo.triangle_multiplication(lib, z, mask, out, weights, outgoing, "fp32", None)
        holds &= check(f"trimul {'outgoing' if outgoing else 'incoming'}, N {N}, c {c}", plan, z, mask, out, want)
        del plan
    return holds


def check_opm(lib, s, c_z, device):
    c_m, c = 64, 32
    weights = compare.matrices([("norm", c_m), ("a", c, c_m), ("b", c, c_m), ("out", c_z, c * c)], device, torch.float32)
    m = torch.randn(1, s, N, c_m, device=device)
    mask = (torch.rand(1, s, N, device=device) < 0.9).float()
    out = torch.empty(1, N, N, c_z, device=device)
    plan = evo.outer_product_mean(lib, m, mask, out, weights, "fp32", None)
    return check(f"opm, S {s}, N {N}, c_z {c_z}", plan, m, mask, out, sampled_opm(on_cpu(weights), m, mask))


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    torch.manual_seed(0)
    device, holds = torch.device("cuda:0"), True
    lib = evo.Library(sys.argv[1], "cuda:0")
    with torch.inference_mode():
        for c in map(int, sys.argv[2:] or ["128", "256"]):
            holds &= check_trimul(lib, c, device)
            for s in (8, 96):  # weight first, outer first
                holds &= check_opm(lib, s, c, device)
            torch.cuda.empty_cache()
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())

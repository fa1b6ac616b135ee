#!/usr/bin/env python3
"""Random calls of both ops beside the same mathematics in PyTorch, in fp64, until the time is over.

    differential.py [--seconds 60] [--seed N] [--device cpu] [--case N]

Variants of the published models and mixtures of their parameters, biases, shapes, strides, views that repeat, number types, compute
modes, outputs given, strided or laid over the input or the residual. The library is the package's own (EVOFORMER_LIBRARY).
A difference ends the run with the case, its error, and the command that repeats it alone. The bounds are those of docs/numerics.md.
"""
import argparse
import random
import sys
import time
from collections import Counter

import evoformer
import torch

TYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
BOUNDS = {"fp64": 1e-12, "fp32": 3e-7, "fp32_strict": 3e-7, "tf32": 1e-3, "bf16": 8e-3, "fp16": 1e-3}
VARIANTS = {  # biases of a and b, eps, min, divide, sides: docs/ops.md
    "alphafold2": (True, 1e-3, 0.0, "after", "both"), "alphafold3": (False, 1e-3, 0.0, "after", "both"),
    "boltz": (False, 0.0, 1.0, "before", "both"), "helixfold": (True, 1e-3, 0.0, "after", "a"),
    "megafold": (False, 0.0, 1e-5, "before", "both"), "mean": (True, 0.0, 1.0, "before", "both")}


# --- the mathematics -----------------------------------------------------------------------------


def norm(x, weights, name, eps):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weights[name + "_weight"], weights.get(name + "_bias"), eps)


def linear(x, weights, name):
    return torch.nn.functional.linear(x, weights[name + "_weight"], weights.get(name + "_bias"))


def opm(m, weights, mask, residual, v):
    x = norm(m, weights, "norm", v["layer_norm_eps"])
    keep = torch.ones_like(m[..., 0]) if mask is None else mask
    a = linear(x, weights, "a") * keep[..., None]
    b = linear(x, weights, "b") * (keep[..., None] if v["mask_sides"] == "both" else 1)
    o = torch.einsum("bsic,bsjd->bijcd", a, b).flatten(-2)
    n = (torch.einsum("bsi,bsj->bij", keep, keep) + v["count_eps"]).clamp(min=v["count_min"])[..., None]
    z = linear(o / n, weights, "out") if v["divide"] == "before" else linear(o, weights, "out") / n
    return z if residual is None else residual + z


def trimul(z, weights, mask, residual, v):
    x = norm(z, weights, "norm_in", v["layer_norm_eps"])
    keep = 1 if mask is None else mask[..., None]
    a, b = (keep * linear(x, weights, side + "_proj") * linear(x, weights, side + "_gate").sigmoid() for side in "ab")
    t = torch.einsum("bikc,bjkc->bijc" if v["direction"] == "outgoing" else "bkic,bkjc->bijc", a, b)
    y = linear(norm(t, weights, "norm_out", v["layer_norm_eps"]), weights, "out")
    y = y * linear(x if v["gate_input"] == "normed" else z, weights, "out_gate").sigmoid()
    return y if residual is None else residual + y


# --- random cases --------------------------------------------------------------------------------


class Case:
    def __init__(self, seed, device):
        self.seed, self.device = seed, device
        self.pick = random.Random(seed)
        self.random = torch.Generator().manual_seed(seed)
        pick = self.pick
        self.op = pick.choice(["opm", "trimul"])
        self.dtype = pick.choice(list(TYPES) if device == "cpu" else ["fp32", "bf16", "fp16"])
        # A mode asks for no less than the type holds; the coarse ones of fp32 tensors are theirs.
        self.compute = {"fp64": "fp64", "fp32": pick.choice(["fp32", "fp32", "fp32_strict", "tf32", "bf16", "fp16"]),
                        "bf16": pick.choice(["bf16", "fp32"]), "fp16": pick.choice(["fp16", "fp32"])}[self.dtype]
        n = pick.choice([1, 2, 3, 7, 8, 9, 16, 17, 31, 32, 33, pick.randrange(1, 70), pick.randrange(64, 132)])
        b = pick.choice([1, 1, 2, 3])
        c_in, c, c_out = (pick.choice([8, 12, 16, 24, 33, 64, 96, 128]) for _ in range(3))
        if self.op == "opm":
            c, s = pick.choice([4, 8, 16, 24, 32]), pick.choice([0, 1, 2, 5, 8, 16, 33, pick.randrange(1, 130)])
            if n > 40:
                c, c_out = min(c, 8), min(c_out, 32)
            self.weights, self.more = self.opm_parameters(c_in, c, c_out)
            shape = (b, s, n, c_in)
        else:
            if n > 40:
                c_in, c, c_out = min(c_in, 24), min(c, 16), min(c_out, 24)
            if pick.random() < 0.5:
                c_out = c_in
            self.weights, self.more = self.trimul_parameters(c_in, c, c_out)
            shape = (b, n, n, c_in)
        self.x = self.strided(shape, TYPES[self.dtype])
        self.mask = self.make_mask(shape[:3])
        out = (b, n, n, c_out)
        self.residual = self.strided(out, TYPES[self.dtype]) if pick.random() < 0.4 else None
        self.choose_output(out)

    def numbers(self, shape, dtype, scale=1.0):
        return (torch.randn(shape, generator=self.random, dtype=torch.float64) * scale).to(dtype)

    def strided(self, shape, dtype, values=None, repeats=True):
        """These values (random ones unless given) somewhere in a larger tensor, in another order of dimensions, or repeated."""
        pick, rank = self.pick, len(shape)
        values = self.numbers(shape, dtype) if values is None else values
        form = pick.choice(["plain", "plain", "order", "slice", "step", "repeat"])
        if form == "repeat" and repeats and rank == 4 and all(shape):
            d = pick.randrange(rank - 1)
            return values.narrow(d, 0, 1).contiguous().to(self.device).expand(shape)
        order = pick.sample(range(rank), rank) if form == "order" else list(range(rank))
        widths = [shape[d] for d in order]
        if form == "slice":
            widths = [width + pick.randrange(4) for width in widths]
        step = 2 if form == "step" else 1
        whole = torch.full([*widths[:-1], widths[-1] * step], float("nan"), dtype=dtype, device=self.device)
        view = whole[..., ::step]
        for d in range(rank):
            view = view.narrow(d, pick.randrange(widths[d] - shape[order[d]] + 1), shape[order[d]])
        view = view.permute([order.index(d) for d in range(rank)])
        view.copy_(values)
        return view

    def make_mask(self, shape):
        pick = self.pick
        kind = pick.choice(["none", "ones and zeros", "ones and zeros", "fractional", "row", "all"])
        if kind == "none":
            return None
        mask = torch.rand(shape, generator=self.random, dtype=torch.float64)
        mask = mask * 0.95 + 0.05 if kind == "fractional" else (mask < 0.8).double()
        if kind == "row" and all(shape):
            mask[:, pick.randrange(shape[1])] = 0
        if kind == "all":
            mask.zero_()
        if kind != "fractional" and pick.random() < 0.5:
            return mask.to(pick.choice([torch.uint8, torch.bool])).to(self.device)
        return self.strided(shape, TYPES[pick.choice(list(TYPES))], mask, repeats=False)

    def matrices(self, shapes, absent):
        """Each in a type of its own or all in one, transposed or the half of a larger one, biases absent as told."""
        pick = self.pick
        one = pick.choice(list(TYPES) + ["mixed"])
        made = {}
        for name, out, into in shapes:
            dtype = TYPES[pick.choice(list(TYPES)) if one == "mixed" else one]
            if into:
                weight = self.numbers((out, into), dtype, into**-0.5).to(self.device)
                weight = pick.choice([lambda w: w, lambda w: w.T.contiguous().T, lambda w: torch.cat([w, w])[:out],
                                      lambda w: torch.stack([w, w], 1).flatten(0, 1)[::2]])(weight)
            else:
                weight = (1 + 0.25 * self.numbers((out,), torch.float64)).to(dtype).to(self.device)
            made[name + "_weight"] = weight
            if name not in absent:
                made[name + "_bias"] = self.numbers((out,), dtype, 0.3).to(self.device)
        return made

    def opm_parameters(self, c_m, c, c_z):
        pick = self.pick
        name = pick.choice(list(VARIANTS))
        biases, eps, least, divide, sides = VARIANTS[name]
        absent = set() if biases else {"a", "b"}
        if pick.random() < 0.3:
            absent = {name for name in ("norm", "a", "b", "out") if pick.random() < 0.4}
        self.truth = {"divide": divide, "mask_sides": sides, "count_eps": eps, "count_min": least,
                      "layer_norm_eps": pick.choice([1e-5, 1e-5, 1e-3])}
        more = {"variant": name, "layer_norm_eps": self.truth["layer_norm_eps"]}
        for key, values in {"divide": ["before", "after"], "mask_sides": ["both", "a"], "count_eps": [0.0, 0.5],
                            "count_min": [0.25, 2.0]}.items():
            if pick.random() < 0.15:
                more[key] = self.truth[key] = pick.choice(values)
        if self.truth["count_eps"] == 0 and self.truth["count_min"] == 0:
            more["count_min"] = self.truth["count_min"] = 1.0  # a pair without a sequence would be 0 / 0
        return self.matrices([("norm", c_m, 0), ("a", c, c_m), ("b", c, c_m), ("out", c_z, c * c)], absent), more

    def trimul_parameters(self, c_z, c, c_out):
        pick = self.pick
        shapes = [("norm_in", c_z, 0), ("a_proj", c, c_z), ("a_gate", c, c_z), ("b_proj", c, c_z), ("b_gate", c, c_z),
                  ("norm_out", c, 0), ("out", c_out, c), ("out_gate", c_out, c_z)]
        absent = pick.choice([set(), set(), {"a_proj", "a_gate", "b_proj", "b_gate", "out", "out_gate"}, {"out"},
                              {name for name, *_ in shapes if pick.random() < 0.4}])
        self.truth = {"direction": pick.choice(["outgoing", "incoming"]), "gate_input": pick.choice(["normed", "raw"]),
                      "layer_norm_eps": pick.choice([1e-5, 1e-5, 1e-3])}
        return self.matrices(shapes, absent), dict(self.truth)

    def choose_output(self, shape):
        """None, a strided tensor of another type perhaps, or the residual's or the input's own memory."""
        pick = self.pick
        self.out = None
        where = pick.choice(["new", "given", "residual", "input"])
        if where == "given":
            dtype = TYPES[pick.choice(["fp32", self.dtype])]
            self.out = self.strided(shape, dtype, torch.full(shape, float("nan"), dtype=dtype), repeats=False)
        elif where == "residual" and self.residual is not None and 0 not in self.residual.stride():
            self.out = self.residual
        elif where == "input" and self.op == "trimul" and self.x.shape == shape and 0 not in self.x.stride():
            self.out = self.x

    def __str__(self):
        def text(tensor):
            return "none" if tensor is None else f"{str(tensor.dtype)[6:]} {tuple(tensor.shape)} by {tensor.stride()}"
        return (f"{self.op}, compute {self.compute}, {self.more}\n  input {text(self.x)}\n  mask {text(self.mask)}\n  residual "
                f"{text(self.residual)}\n  out {text(self.out)}\n  weights "
                + ", ".join(f"{name} {text(w)}" for name, w in self.weights.items()))

    def run(self):
        """(error, bound) over all and of the worst pair."""
        given = [None if t is None else t.double().cpu() for t in (self.x, self.mask, self.residual)]
        x, mask, residual = given
        weights = {name: weight.double().cpu() for name, weight in self.weights.items()}
        want = (opm if self.op == "opm" else trimul)(x, weights, mask, residual, self.truth)
        function = evoformer.outer_product_mean if self.op == "opm" else evoformer.triangle_multiplication
        got = function(self.x, self.weights, self.mask, self.residual, compute=self.compute, out=self.out, **self.more)
        bound, repeats = BOUNDS[self.compute], 0 in self.x.stride()
        if repeats:  # equal terms: each of n growing sums may be rounded the same way, by half a unit at most
            bound += self.x.shape[1] / 2 * ROUNDOFF[torch.float64 if self.compute == "fp64" else torch.float32]
        return judge(got.double().cpu(), want, bound, ROUNDOFF[got.dtype], repeats)


def judge(got, want, bound, roundoff, repeats):
    """
    As docs/numerics.md, "How a case is judged". What is near the end of fp16 is left out: it may be infinite or not. Where the
    input repeats, the pairs may have one and the same error, so that they count as one.
    """
    if want.numel() == 0:
        return [(0.0, bound)]
    if roundoff == 2.0**-11:
        near = want.abs() > 0.98 * 65504
        got, want = torch.where(near, 0, got), torch.where(near, 0, want)
    if not torch.isfinite(got).all():
        return [(float("inf"), bound)]
    storage = roundoff if roundoff > bound else 0.0
    pairs, channels = want.numel() // want.shape[-1], want.shape[-1]
    independent = channels if repeats else want.numel()
    least = 1e-300
    total = float((got - want).norm() / want.norm().clamp(min=least))
    pair = float(((got - want).norm(dim=-1) / want.norm(dim=-1).clamp(min=least)).max())
    return [(total, bound * (1 + 16 / independent**0.5) + storage),
            (pair, 10 * bound * pairs**(1 / channels) + storage)]


# --- the run -------------------------------------------------------------------------------------


def check(seed, device):
    case = Case(seed, device)
    try:
        results = case.run()
    except Exception as error:  # a case that the library refuses must be seen too
        results = [(f"{type(error).__name__}: {error}", 0.0)]
    wrong = [result for result in results if isinstance(result[0], str) or not result[0] <= result[1]]
    if wrong:
        print(f"\nFAILED: {case}\n  " + "\n  ".join(f"error {error}, expected at most {bound:.3g}" for error, bound in wrong) +
              f"\n  repeat it with: {sys.argv[0]} --device {device} --case {seed}")
    return case, results, not wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="of all cases; a random one unless given")
    parser.add_argument("--device", default="cpu", help="cpu, cuda:0, ...")
    parser.add_argument("--case", type=int, default=None, help="one case by its own seed")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    if options.case is not None:
        case, results, good = check(options.case, options.device)
        print(case, *(f"error {error}, bound {bound:.3g}" for error, bound in results), sep="\n  ")
        return not good
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}, {evoformer.build_info()}, PyTorch {torch.__version__}, {options.device}", flush=True)
    began, shown, count, seen, worst = time.monotonic(), 0.0, 0, Counter(), Counter()
    while time.monotonic() - began < options.seconds:
        case, results, good = check(seed * 2**24 + count, options.device)
        if not good:
            return 1
        count += 1
        key = f"{case.op} {case.dtype} {case.compute}"
        seen[key] += 1
        worst[key] = max(worst[key], *(error / bound for error, bound in results))
        if sys.stdout.isatty() and time.monotonic() - shown > 0.5:
            shown = time.monotonic()
            print(f"\r{count} cases, {shown - began:.0f} of {options.seconds:.0f} s", end="", flush=True)
    print(f"\r{count} cases in {time.monotonic() - began:.0f} s, all within their bounds; each kind's count and largest part of its "
          "bound:")
    for key in sorted(seen):
        print(f"  {key:24} {seen[key]:6} {worst[key]:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

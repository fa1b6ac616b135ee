"""compare.py: the library beside PyTorch in one process, over the same rotated inputs.

Prints one JSON object a line: the device and the ceilings first, then for each op, shape and contestant the median and the
range of milliseconds, the error against fp64, and for the library its ratio to the fastest PyTorch form of the same run.
Candidates are timed in turn, each as a captured graph, so that all see the same state of the chip.
"""
import argparse
import json
import math
import sys

import torch
import torch.nn.functional as F

import library as evo

OPM_SHAPES = [(128, 256, 256), (512, 384, 256), (512, 512, 256), (1024, 768, 64)]  # S, N, c_m; c 32, c_z 128
TRIMUL_SHAPES = [256, 384, 512, 768, 1024]  # N; c = c_z = 128


def linear(weights, name, x):
    return F.linear(x, weights[name + "_weight"], weights[name + "_bias"])


def norm(weights, name, x):
    return F.layer_norm(x, (x.shape[-1],), weights[name + "_weight"], weights[name + "_bias"])


def gated(weights, side, x, mask):
    return linear(weights, side + "_proj", x) * torch.sigmoid(linear(weights, side + "_gate", x)) * mask[..., None]


def finish(weights, t, x):
    return torch.sigmoid(linear(weights, "out_gate", x)) * linear(weights, "out", norm(weights, "norm_out", t))


def trimul_einsum(weights, z, mask, outgoing):
    x = norm(weights, "norm_in", z)
    a, b = gated(weights, "a", x, mask), gated(weights, "b", x, mask)
    t = torch.einsum("bikh,bjkh->bijh" if outgoing else "bkih,bkjh->bijh", a, b)
    return finish(weights, t, x)


def trimul_bmm(weights, z, mask, outgoing):
    """Channel-first operands for one batched product."""
    x = norm(weights, "norm_in", z)
    order = (0, 3, 1, 2) if outgoing else (0, 3, 2, 1)
    a, b = (gated(weights, side, x, mask).permute(order).contiguous() for side in "ab")
    return finish(weights, torch.matmul(a, b.transpose(-1, -2)).permute(0, 2, 3, 1), x)


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


def matrices(sizes, device, dtype):
    """Random weights: (name, out, in), or (name, channels) for a LayerNorm."""
    made = {}
    for name, out, *rest in sizes:
        scale = 1 / math.sqrt(rest[0]) if rest else 1
        made[name + "_weight"] = (torch.randn(out, *rest, device=device) * scale).to(dtype)
        made[name + "_bias"] = (torch.randn(out, device=device) * 0.1).to(dtype)
    return made


def captured(function, *args):
    """The function as a graph on these arguments."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            function(*args)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function(*args)
    return graph.replay


def milliseconds(run):
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def race(contestants, rounds):
    """name -> runs over rotated inputs; gives name -> sorted times. Contestants take turns."""
    times = {name: [] for name in contestants}
    for runs in contestants.values():
        for run in runs:
            run()
    for turn in range(rounds):
        for name, runs in contestants.items():
            times[name].append(milliseconds(runs[turn % len(runs)]))
    return {name: sorted(values) for name, values in times.items()}


def error(got, want):
    return float((got.double() - want).norm() / want.norm())


def rows(op, shape, peers, plan, execute, inputs, weights, out, options):
    """Times the library and the peers on one shape and prints a row each."""
    double = {name: weight.double() for name, weight in weights.items()}
    first = inputs[0]
    want = list(peers.values())[-1](double, *(x.double() for x in first))
    plan_one = plan()
    errors = {"libevoformer": error(execute(plan_one, *first), want)}
    contestants = {"libevoformer": [captured(execute, plan_one, *pair) for pair in inputs]}
    for name, function in peers.items():
        try:
            errors[name] = error(function(weights, *first), want)
            contestants[name] = [captured(function, weights, *pair) for pair in inputs]
        except torch.OutOfMemoryError:
            print(f"# {name}: out of memory", file=sys.stderr)
    times = race(contestants, options.rounds)
    median = {name: values[len(values) // 2] for name, values in times.items()}
    best = min(value for name, value in median.items() if name != "libevoformer")
    for name, values in times.items():
        row = {"op": op, "shape": shape, "compute": options.compute, "contestant": name,
               "ms": round(median[name], 4), "ms_min": round(values[0], 4), "ms_max": round(values[-1], 4),
               "error": float(f"{errors[name]:.3g}")}
        if name == "libevoformer":
            row |= {"kernel": plan_one.kernel, "tflops": round(plan_one.info.flops / median[name] / 1e9, 2),
                    "workspace_mib": round(plan_one.info.workspace_size / 2**20, 1),
                    "times_best_torch": round(best / median[name], 3)}
        print(json.dumps(row), flush=True)


def compare_trimul(lib, n, outgoing, device, dtype, options):
    c = 128
    weights = matrices([("norm_in", c), ("a_proj", c, c), ("a_gate", c, c), ("b_proj", c, c), ("b_gate", c, c),
                        ("norm_out", c), ("out", c, c), ("out_gate", c, c)], device, dtype)
    inputs = [(torch.randn(1, n, n, c, device=device).to(dtype), (torch.rand(1, n, n, device=device) < 0.9).to(dtype))
              for _ in range(3)]
    out = torch.empty_like(inputs[0][0])
    rows("trimul " + ("outgoing" if outgoing else "incoming"), f"1,{n},{c},{c}",
         {"torch einsum": lambda w, z, mask: trimul_einsum(w, z, mask, outgoing),
          "torch bmm": lambda w, z, mask: trimul_bmm(w, z, mask, outgoing)},
         lambda: evo.triangle_multiplication(lib, *inputs[0], out, weights, outgoing, options.compute, options.kernel),
         lambda plan, z, mask: plan(z, mask, out), inputs, weights, out, options)


def compare_opm(lib, shape, device, dtype, options):
    s, n, c_m = shape
    c, c_z = 32, 128
    weights = matrices([("norm", c_m), ("a", c, c_m), ("b", c, c_m), ("out", c_z, c * c)], device, dtype)
    inputs = [(torch.randn(1, s, n, c_m, device=device).to(dtype), (torch.rand(1, s, n, device=device) < 0.9).to(dtype))
              for _ in range(3)]
    out = torch.empty(1, n, n, c_z, device=device, dtype=dtype)
    rows("opm", f"1,{s},{n},{c_m},{c},{c_z}", {"torch einsum": opm_einsum, "torch gemm": opm_gemm},
         lambda: evo.outer_product_mean(lib, *inputs[0], out, weights, options.compute, options.kernel),
         lambda plan, m, mask: plan(m, mask, out), inputs, weights, out, options)


def ceilings(device):
    """Copy (read and written) and the fp32 product, in the state that the run is in."""
    x = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    copy = race({"copy": [lambda: y.copy_(x)]}, 20)["copy"][10]
    a, b = torch.randn(8192, 8192, device=device), torch.randn(8192, 8192, device=device)
    product = race({"product": [lambda: a @ b]}, 10)["product"][5]
    return {"copy_gbps": round(2 * x.numel() / copy / 1e6), "product_tflops": round(2 * 8192**3 / product / 1e9, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", help="libevoformer.so")
    parser.add_argument("--compute", default="fp32", choices=["fp32", "fp32_strict"])
    parser.add_argument("--kernel", help="force a kernel of the library")
    parser.add_argument("--rounds", type=int, default=15, help="timed replays a contestant (default %(default)s)")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    device, dtype = torch.device("cuda:0"), torch.float32
    lib = evo.Library(options.library, "cuda:0")
    print(json.dumps({"device": torch.cuda.get_device_name(0), "torch": torch.__version__,
                      "cuda": torch.version.cuda, "library": lib.dll.evo_build_info().decode(), **ceilings(device)}),
          flush=True)
    with torch.inference_mode():
        for n in TRIMUL_SHAPES:
            for outgoing in (True, False):
                compare_trimul(lib, n, outgoing, device, dtype, options)
        for shape in OPM_SHAPES:
            compare_opm(lib, shape, device, dtype, options)


if __name__ == "__main__":
    main()

"""modules.py: the package's PyTorch modules beside the modules that they replace (tests/python/reference_modules.py).

Prints one JSON object a line: the machine, then for each module, shape, number type and way of running (eager, compiled with
torch.compile, captured in a CUDA graph) the medians in milliseconds and the errors of both against fp64. The two take turns
on the same inputs. `ms` is of a call among many, which are issued while the device works, as in a model; `alone_ms` of one
that begins when the device is idle and ends when it is done, so that all of the host's time is in it. On the CPU they are one,
and nothing is captured.

    python bench/modules.py --device cuda:0 > rows.jsonl
"""
import argparse
import copy
import json
import os
import sys
import time

try:
    import torch
except ImportError:
    sys.exit(__doc__ + "\nmodules.py: no PyTorch here, which all of this needs (docs/dependencies.md); with it --help lists the options")

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "python"))
import compare  # noqa: E402
import evoformer  # noqa: E402
import evoformer.torch as fused  # noqa: E402
import reference_modules as reference  # noqa: E402

# B, S, N, c_m, c, c_z, and B, N, c_z, c; the first are those of the mission.
OPM = [(2, 8, 32, 64, 32, 64), (1, 128, 256, 256, 32, 128), (1, 512, 384, 256, 32, 128), (1, 512, 512, 256, 32, 128)]
TRIMUL = [(2, 32, 64, 32), (1, 256, 128, 128), (1, 384, 128, 128), (1, 512, 128, 128), (1, 768, 128, 128)]


def make(op, shape, device):
    """The original, with random weights, the fused module with the same, and inputs."""
    if op == "opm":
        batch, s, n, c_m, c, c_z = shape
        original, module = reference.OuterProductMean(c_m, c_z, c), fused.OuterProductMean(c_m, c_z, c)
        sizes = (batch, s, n, c_m)
    else:
        batch, n, c_z, c = shape
        original, module = reference.TriangleMultiplication(c_z, c), fused.TriangleMultiplication(c_z, c)
        sizes = (batch, n, n, c_z)
    with torch.no_grad():
        for parameter in original.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    module.load_state_dict(original.state_dict())
    inputs = (torch.randn(sizes, device=device), (torch.rand(sizes[:3], device=device) < 0.9).float())
    return original.to(device), module.to(device), inputs


def captured(run, inputs):
    """The call as a graph, which gives its output."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(*inputs)

    def replay():
        graph.replay()
        return out
    return replay


def reduced(run, inputs):
    """torch.compile's own graphs."""
    compiled = torch.compile(run, fullgraph=True, mode="reduce-overhead")

    def call():
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(*inputs)
    return call


WAYS = {"eager": lambda run, inputs: lambda: run(*inputs),
        "compiled": lambda run, inputs: (lambda compiled: lambda: compiled(*inputs))(torch.compile(run, fullgraph=True)),
        "compiled graphs": reduced, "captured": captured, "captured static": captured}


def clock(device):
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def race(calls, device, seconds, copies):
    """Medians of milliseconds a call; the calls take turns, each `copies` times at once."""
    times = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[next(iter(times))]) < 9:
        for name, call in calls.items():
            began = clock(device)
            for _ in range(copies):
                call()
            times[name].append(1e3 * (clock(device) - began) / copies)
    return {name: round(sorted(values)[len(values) // 2], 4) for name, values in times.items()}


def error(got, want):
    return float(f"{float((got.double() - want).norm() / want.norm()):.3g}")


def rows(op, shape, dtype, device, options):
    with torch.inference_mode(False):  # weights as those of a loaded model: with versions
        original, module, inputs = make(op, shape, device)
        original, module, inputs = original.to(dtype), module.to(dtype), [tensor.to(dtype) for tensor in inputs]
    gpu = device.type == "cuda"
    truth = None
    if gpu or inputs[0].numel() * (1 if op == "trimul" else 8) < 1 << 26:
        truth = copy.deepcopy(original).double()(*(tensor.double() for tensor in inputs))
    for how in options.how:
        torch._dynamo.reset()
        module.static_weights = how == "captured static"
        calls = {"original": WAYS[how](original, inputs), "fused": WAYS[how](module, inputs)}
        errors = {}
        for name, call in calls.items():
            for _ in range(3):  # compiles, records
                out = call()
            if truth is not None:
                errors[name] = error(out, truth)
            del out
        alone = race(calls, device, options.seconds / 2, 1)
        copies = max(1, min(50, int(10 / min(alone.values())))) if gpu else 1  # 10 ms at once
        median = race(calls, device, options.seconds, copies) if gpu else alone
        plan = list(module._caches.plans.values())[-1]
        row = {"op": op, "shape": shape, "dtype": str(dtype)[6:], "how": how, "kernel": plan.kernel, "ms": median["fused"],
               "original_ms": median["original"], "times_faster": round(median["original"] / median["fused"], 2)}
        if gpu:
            row.update(alone_ms=alone["fused"], original_alone_ms=alone["original"])
        if errors:
            row.update(error=errors["fused"], original_error=errors["original"])
        print(json.dumps(row), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--how", nargs="+", default=None, choices=WAYS,
                        help="compiled graphs: mode reduce-overhead; captured static: the weights packed before")
    parser.add_argument("--ops", nargs="+", default=["opm", "trimul"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[32, 256, 384, 512], help="N")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each row")
    options = parser.parse_args()
    device = torch.device(options.device)
    gpu = device.type == "cuda"
    options.how = options.how or (list(WAYS) if gpu else ["eager", "compiled"])
    name = torch.cuda.get_device_name(device) if gpu else evoformer.devices()[-1].description
    print(json.dumps({"device": name, "driver": compare.driver() if gpu else None, "torch": torch.__version__,
                      "library": evoformer.build_info(),
                      "threads": torch.get_num_threads(), "float32_matmul": torch.get_float32_matmul_precision()}), flush=True)
    with torch.inference_mode():
        for dtype in options.dtypes:
            for op, shapes in (("opm", OPM), ("trimul", TRIMUL)):
                for shape in shapes:
                    if op in options.ops and shape[2 if op == "opm" else 1] in options.sizes:
                        rows(op, shape, getattr(torch, dtype), device, options)


if __name__ == "__main__":
    main()

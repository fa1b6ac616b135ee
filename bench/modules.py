"""modules.py: the package's PyTorch modules beside the modules that they replace (tests/python/reference_modules.py).

Prints one JSON object a line: the machine, then for each module, shape, number type and way of running (eager, compiled with
torch.compile, captured in a CUDA graph) the medians in milliseconds, their ratio, and the errors of both against fp64. The
two take turns on the same inputs. On the CPU nothing is captured.

    python bench/modules.py --device cuda:0 > rows.jsonl
"""
import argparse
import copy
import json
import os
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "python"))
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


def captured(run, inputs, copies):
    """The call, `copies` times, as a graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(copies):
            run(*inputs)
    return lambda *_: graph.replay()


def clock(device):
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def race(calls, device, seconds):
    """Medians of milliseconds; the calls take turns."""
    times = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[next(iter(times))]) < 3:
        for name, call in calls.items():
            began = clock(device)
            call()
            times[name].append(1e3 * (clock(device) - began))
    return {name: sorted(values)[len(values) // 2] for name, values in times.items()}


def error(got, want):
    return float(f"{float((got.double() - want).norm() / want.norm()):.3g}")


def rows(op, shape, dtype, device, options):
    with torch.inference_mode(False):  # weights as those of a loaded model: with versions
        original, module, inputs = make(op, shape, device)
        original, module, inputs = original.to(dtype), module.to(dtype), [tensor.to(dtype) for tensor in inputs]
    small = inputs[0].numel() < 1 << 20
    copies = 20 if small and device.type == "cuda" else 1  # of a call in one measurement, so that it is long enough
    errors = {}
    if inputs[0].numel() * (1 if op == "trimul" else 8) < 1 << 26:
        truth = copy.deepcopy(original).double()(*(tensor.double() for tensor in inputs))
        errors = {"error": error(module(*inputs), truth), "original_error": error(original(*inputs), truth)}
        del truth
    for how in options.how:
        calls = {}
        for name, run in (("original", original), ("fused", module)):
            if how == "compiled":
                torch._dynamo.reset()
                run = torch.compile(run, fullgraph=True)
                run(*inputs)
            if how.startswith("captured"):
                module.static_weights = how == "captured static"
                run = captured(run, inputs, copies)
                calls[name] = run
            else:
                calls[name] = lambda run=run: [run(*inputs) for _ in range(copies)] and None
        median = {name: value / copies for name, value in race(calls, device, options.seconds).items()}
        plan = list(module._caches.plans.values())[-1]
        print(json.dumps({"op": op, "shape": shape, "dtype": str(dtype)[6:], "how": how, "kernel": plan.kernel,
                          "ms": round(median["fused"], 4), "original_ms": round(median["original"], 4),
                          "times_faster": round(median["original"] / median["fused"], 2), **errors}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--how", nargs="+", default=None,
                        help="eager, compiled, captured, 'captured static' (the weights packed before)")
    parser.add_argument("--largest", type=int, default=512, help="N")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each row")
    options = parser.parse_args()
    device = torch.device(options.device)
    gpu = device.type == "cuda"
    options.how = options.how or ["eager", "compiled"] + (["captured", "captured static"] if gpu else [])
    name = torch.cuda.get_device_name(device) if gpu else evoformer.devices()[-1].description
    print(json.dumps({"device": name, "torch": torch.__version__, "library": evoformer.build_info(),
                      "threads": torch.get_num_threads(), "float32_matmul": torch.get_float32_matmul_precision()}), flush=True)
    with torch.inference_mode():
        for dtype in options.dtypes:
            for op, shapes in (("opm", OPM), ("trimul", TRIMUL)):
                for shape in shapes:
                    if shape[2 if op == "opm" else 1] <= options.largest:
                        rows(op, shape, getattr(torch, dtype), device, options)


if __name__ == "__main__":
    main()

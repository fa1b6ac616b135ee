#!/usr/bin/env python3
"""Times libevoformer's CPU kernels beside PyTorch's best form and PyTorch's own matrix product, in one process.

usage: python3 bench/cpu_rivals.py LIBRARY [--threads 1,2] [--compute fp32,bf16] [--shapes WORDS] [--no-torch] [--reps N]
                                   [--cpu-time]

LIBRARY is the built libevoformer.so. One JSON row a measurement: the least of several repetitions in milliseconds, GFLOP/s
by the op's own count (docs/ops.md), and for libevoformer `of_peak` (against the 2048-cubed product measured just before)
and `ratio` (PyTorch's best time over its own). A shape is trimul:B,N,c_z,c or opm:B,S,N,c_m,c,c_z.
--cpu-time takes the process's time on its processors over the threads, for one thread on a machine that others use too.
EVO_CPU_ISA and EVO_KERNEL work as everywhere. Each number of threads runs in a process of its own.
"""
import argparse
import ctypes as C
import json
import math
import os
import subprocess
import sys
import time

SHAPES = ("trimul:2,32,64,32 trimul:1,128,128,128 trimul:1,256,128,128 trimul:1,384,128,128 opm:2,8,32,64,32,64 "
          "opm:1,128,128,256,32,128 opm:1,128,256,256,32,128 opm:1,512,256,256,32,128").split()
FP32, BF16 = 2, 3


class Tensor(C.Structure):
    _fields_ = [("dtype", C.c_int), ("strides", C.c_int64 * 4), ("alignment", C.c_size_t)]


class Weight(C.Structure):
    _fields_ = [("data", C.c_void_p), ("dtype", C.c_int), ("strides", C.c_int64 * 2)]


class TrimulDesc(C.Structure):
    _fields_ = [("size", C.c_size_t), *((n, C.c_int64) for n in ("batch", "n", "c_z", "c", "c_out")),
                *((n, Tensor) for n in ("input", "mask", "residual", "out")), ("biases", C.c_uint),
                ("alias", C.c_uint), ("direction", C.c_int), ("gate_input", C.c_int), ("eps", C.c_double),
                ("mask_max", C.c_double), ("compute", C.c_int), ("propagation", C.c_int),
                ("workspace_limit", C.c_size_t), ("kernel", C.c_char_p)]


class OpmDesc(C.Structure):
    _fields_ = [("size", C.c_size_t), *((n, C.c_int64) for n in ("batch", "s", "n", "c_m", "c", "c_z")),
                *((n, Tensor) for n in ("input", "mask", "residual", "out")), ("biases", C.c_uint),
                ("alias", C.c_uint), ("divide", C.c_int), ("mask_sides", C.c_int), ("count_eps", C.c_double),
                ("count_min", C.c_double), ("eps", C.c_double), ("mask_max", C.c_double), ("compute", C.c_int),
                ("propagation", C.c_int), ("workspace_limit", C.c_size_t), ("kernel", C.c_char_p)]


class Args(C.Structure):
    _fields_ = [("size", C.c_size_t), *((n, C.c_void_p) for n in ("input", "mask", "residual", "out"))]


class Info(C.Structure):
    _fields_ = [("size", C.c_size_t), ("op", C.c_int), ("compute", C.c_int), ("kernel", C.c_char_p),
                ("workspace", C.c_size_t), ("pack", C.c_size_t), ("flops", C.c_double), ("bytes", C.c_double),
                ("refusals", C.c_char_p)]


clock = time.perf_counter


def best(function, reps):
    function()
    times = []
    for _ in range(reps):
        start = clock()
        function()
        times.append(clock() - start)
        if sum(times) > 20:
            break
    return min(times) * 1e3


class Evo:
    def __init__(self, path):
        self.lib = C.CDLL(path)
        self.lib.evo_last_error.restype = C.c_char_p
        self.context = C.c_void_p()
        self.call("evo_context_create", b"cpu", None, C.byref(self.context))
        self.keep = []

    def call(self, name, *args):
        if getattr(self.lib, name)(*args) != 0:
            sys.exit(f"{name}: {self.lib.evo_last_error().decode()}")

    def memory(self, size):
        self.keep.append(C.create_string_buffer(size + 256))
        return C.c_void_p(-(-C.addressof(self.keep[-1]) // 256) * 256)

    def prepare(self, op, desc, weights, arrays):
        """A function that executes once, and the plan's info. `weights` and `arrays`: addresses."""
        plan, pack, info = C.c_void_p(), C.c_void_p(), Info(C.sizeof(Info))
        self.call(f"evo_{op}_plan_create", self.context, C.byref(desc), C.byref(plan))
        self.call("evo_plan_get_info", plan, C.byref(info))
        table = type("Weights", (C.Structure,), {"_fields_": [("size", C.c_size_t), ("w", Weight * len(weights))]})()
        table.size = C.sizeof(table)
        for i, (address, dtype) in enumerate(weights):
            table.w[i] = Weight(address, dtype)
        self.call(f"evo_{op}_pack_weights", plan, C.byref(table), self.memory(info.pack), C.c_size_t(info.pack), None,
                  C.byref(pack))
        args, workspace = Args(C.sizeof(Args), *arrays), self.memory(info.workspace)
        execute = getattr(self.lib, f"evo_{op}_execute")
        def run():
            if execute(plan, pack, C.byref(args), workspace, C.c_size_t(info.workspace), None) != 0:
                sys.exit(self.lib.evo_last_error().decode())
        return run, info


def trimul_forms(torch, t, p):
    F, z, k = torch.nn.functional, t["input"], t["mask"].unsqueeze(-1)

    def sides():
        x = F.layer_norm(z, z.shape[-1:], *p[0:2])
        a = F.linear(x, *p[2:4]) * torch.sigmoid(F.linear(x, *p[4:6])) * k
        b = F.linear(x, *p[6:8]) * torch.sigmoid(F.linear(x, *p[8:10])) * k
        return x, a, b

    def finish(x, sums):
        y = F.linear(F.layer_norm(sums, sums.shape[-1:], *p[10:12]), *p[12:14])
        return torch.sigmoid(F.linear(x, *p[14:16])) * y

    def eager():
        x, a, b = sides()
        return finish(x, torch.einsum("bikh,bjkh->bijh", a, b))

    def bmm():
        x, a, b = sides()
        a, b = (side.permute(0, 3, 1, 2).contiguous() for side in (a, b))
        return finish(x, (a @ b.transpose(-1, -2)).permute(0, 2, 3, 1))
    return {"eager": eager, "bmm": bmm}


def opm_forms(torch, t, p):
    F, m, mask = torch.nn.functional, t["input"], t["mask"]

    def eager():
        x, k = F.layer_norm(m, m.shape[-1:], *p[0:2]), mask.unsqueeze(-1)
        a, b = F.linear(x, *p[2:4]) * k, F.linear(x, *p[4:6]) * k
        o = torch.einsum("bsih,bsjk->bijhk", a, b).flatten(-2)
        return F.linear(o / torch.einsum("bsi,bsj->bij", mask, mask).clamp(min=1).unsqueeze(-1), *p[6:8])
    return {"eager": eager}


def problem(torch, word, dtype):
    """Tensors and parameters of a shape, in the order of the weights struct, and a filled descriptor."""
    op, sizes = word.split(":")
    n = [int(x) for x in sizes.split(",")]
    code = {torch.float32: FP32, torch.bfloat16: BF16}[dtype]
    mat = lambda o, i: (torch.randn(o, i) / math.sqrt(i)).to(dtype)
    vec = lambda o: (torch.randn(o) * .1).to(dtype)
    if op == "trimul":
        (batch, length, c_z, c), rows = n, (n[0], n[1], n[1])
        p = [1 + vec(c_z), vec(c_z)] + [x for _ in range(4) for x in (mat(c, c_z), vec(c))]
        p += [1 + vec(c), vec(c), mat(c_z, c), vec(c_z), mat(c_z, c_z), vec(c_z)]
        t = dict(input=torch.randn(*rows, c_z).to(dtype), out=torch.empty(*rows, c_z, dtype=dtype))
        d = TrimulDesc(C.sizeof(TrimulDesc), batch, length, c_z, c, 0, biases=255)
    else:
        (batch, seqs, length, c_m, c, c_z), rows = n, (n[0], n[1], n[2])
        p = [1 + vec(c_m), vec(c_m), mat(c, c_m), vec(c), mat(c, c_m), vec(c), mat(c_z, c * c), vec(c_z)]
        t = dict(input=torch.randn(*rows, c_m).to(dtype), out=torch.empty(batch, length, length, c_z, dtype=dtype))
        d = OpmDesc(C.sizeof(OpmDesc), batch, seqs, length, c_m, c, c_z, biases=15, count_min=1.0)
    t["mask"] = (torch.rand(*rows) > .1).to(dtype)
    for name in ("input", "mask", "out"):
        getattr(d, name).dtype = code
    d.eps, d.mask_max, d.compute = 1e-5, 1.0, {FP32: 0, BF16: 3}[code]
    return op, d, t, p, code


def measure(args, threads):
    import torch
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    if args.cpu_time:
        global clock
        clock = lambda: time.process_time() / threads
    evo = Evo(args.library)
    row = lambda **items: print(json.dumps(items), flush=True)
    for compute in args.compute.split(","):
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[compute]
        a = torch.randn(2048, 2048, dtype=dtype)
        for word in args.shapes:
            op, desc, t, p, code = problem(torch, word, dtype)
            run, info = evo.prepare(op, desc, [(x.data_ptr(), code) for x in p],
                                    [t["input"].data_ptr(), t["mask"].data_ptr(), None, t["out"].data_ptr()])
            gflops = lambda ms: round(info.flops / ms / 1e6, 1)
            peak = 2 * 2048**3 / best(lambda: a @ a, 3) / 1e6 if args.torch else float("nan")
            ms = best(run, args.reps)
            common = dict(shape=word, compute=compute, threads=threads)
            if args.torch:
                forms = (trimul_forms if op == "trimul" else opm_forms)(torch, t, p)
                times = {name: best(form, args.reps) for name, form in forms.items()}
                name = min(times, key=times.get)
                row(peer="torch " + name, ms=round(times[name], 3), gflops=gflops(times[name]), **common)
                difference = (forms[name]().float() - t["out"].float()).norm() / t["out"].float().norm()
                ms = min(ms, best(run, args.reps))
            row(peer="evoformer " + info.kernel.decode(), ms=round(ms, 3), gflops=gflops(ms), **common,
                **(dict(peak=round(peak, 1), of_peak=round(gflops(ms) / peak, 3), ratio=round(times[name] / ms, 2),
                        difference=f"{difference:.1e}") if args.torch else {}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--threads", default=f"1,{len(os.sched_getaffinity(0))}")
    parser.add_argument("--compute", default="fp32")
    parser.add_argument("--shapes", default=SHAPES, type=str.split)
    parser.add_argument("--no-torch", dest="torch", action="store_false")
    parser.add_argument("--reps", default=5, type=int)
    parser.add_argument("--cpu-time", action="store_true")
    args = parser.parse_args()
    counts = list(dict.fromkeys(args.threads.split(",")))
    if len(counts) == 1:
        return measure(args, int(counts[0]))
    for count in counts:
        environment = dict(os.environ, OMP_NUM_THREADS=count, MKL_NUM_THREADS=count, EVO_NUM_THREADS=count)
        subprocess.run([sys.executable, *sys.argv, "--threads", count], env=environment, check=True)


if __name__ == "__main__":
    main()

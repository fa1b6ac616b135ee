#!/usr/bin/env python3
"""Times libevoformer beside PyTorch and cuEquivariance in one process, on the same rotated inputs, on a GPU or the CPU.

One JSON object a line: first what all rows have in common (device, driver, versions, date), then the ceilings of each
compute mode and state, then a row for each op, shape, direction and contestant: the median, least, quartiles and greatest
milliseconds of an execution, the floor (docs/benchmarks.md), the error against fp64, and for the library the ratios to its
rivals.

Contestants take turns, so that all see the same state of the chip. On a GPU an execution is part of a captured graph that
holds as many as fit a millisecond, at most a hundred. State "sustained": replays follow each other without a gap; "burst":
ten milliseconds of rest before each. On the CPU calls are made in a loop; each number of threads runs in a process of its
own, and EVO_CPU_ISA and EVO_KERNEL work as everywhere.
"""
import argparse
import datetime
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
import time

try:
    import torch
except ImportError:
    sys.exit(__doc__ + "\ncompare.py: no PyTorch here, which all of this needs (docs/dependencies.md); with it --help lists the options")

import library as evo
import peers

SHAPES = {"cuda": "trimul:2,32,64,32 trimul:1,256,128,128 trimul:1,512,128,128 trimul:1,1024,128,128 opm:2,8,32,64,32,64 "
                  "opm:1,128,256,256,32,128 opm:1,512,384,256,32,128 opm:1,512,512,256,32,128",
          "cpu": "trimul:2,32,64,32 trimul:1,128,128,128 trimul:1,256,128,128 opm:2,8,32,64,32,64 opm:1,128,128,256,32,128 "
                 "opm:1,128,256,256,32,128"}
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
REPLAY_MS, TURN_MS, REST_MS, MOST_EXECUTIONS, TRIAL_EXECUTIONS, MOST_REPLAYS, MOST_SETS = 1.0, 10.0, 10.0, 100, 20, 32, 100
CACHE = 256 << 20  # no cache holds more


class Clock:
    """How a device is timed: events of a GPU; on the CPU the wall, or the process's time on its processors."""

    def __init__(self, device, cpu_time):
        self.gpu = device.type == "cuda"
        self.now = (lambda: time.process_time() / torch.get_num_threads()) if cpu_time else time.perf_counter
        self.scratch = torch.empty(CACHE if self.gpu else 1, dtype=torch.uint8, device=device)

    def replays(self, run, count, rest):
        """Milliseconds of each of `count` calls of run, one after the other."""
        if rest:
            time.sleep(REST_MS / 1e3)
        if not self.gpu:
            marks = [self.now()]
            for _ in range(count):
                run()
                marks.append(self.now())
            return [(after - before) * 1e3 for before, after in zip(marks, marks[1:])]
        for _ in range(4 if rest else 0):  # keeps the device busy while the host, slow after its rest, still launches
            self.scratch.fill_(1)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            run()
            event.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) for before, after in zip(events, events[1:])]


class Subject:
    """A function of one execution number, made ready to be replayed."""

    def __init__(self, clock, execute, sets, record=True):
        self.clock, self.next, self.times, self.graphs = clock, 0, [], []
        self.execute, self.sets = execute, sets
        self.pool = torch.cuda.graph_pool_handle() if clock.gpu else None
        for _ in range(2):
            self.one = clock.replays(self.call, 1, False)[0]
        if record and clock.gpu and self.one < REPLAY_MS:  # launched one by one it may be slower than in a graph
            graph = self.graph(TRIAL_EXECUTIONS)
            self.one = min(clock.replays(graph.replay, 2, False)) / TRIAL_EXECUTIONS
        self.one = max(self.one, 1e-4)
        self.executions = min(MOST_EXECUTIONS, max(1, int(REPLAY_MS / self.one))) if record else 1
        if record and clock.gpu:  # graphs that together take every set of inputs
            self.graphs = [self.graph(self.executions) for _ in range(-(-sets // self.executions))]
            self.next = 0

    def call(self):
        self.next = (self.next + 1) % self.sets
        return self.execute(self.next)

    def graph(self, executions):
        """A graph of some executions; all of a subject share their memory, as they never run at once."""
        with torch.cuda.stream(torch.cuda.Stream()):
            self.call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            for _ in range(executions):
                self.call()
        return graph

    def run(self):
        if self.graphs:
            self.graphs[self.next].replay()
            self.next = (self.next + 1) % len(self.graphs)
        else:
            for _ in range(self.executions):
                self.call()

    def turn(self, rest):
        count = 1 if rest else min(MOST_REPLAYS, max(1, int(TURN_MS / (self.one * self.executions))))
        return [ms / self.executions for ms in self.clock.replays(self.run, count, rest)]


def race(subjects, state, min_time):
    """Turns of all until each has been measured for min_time milliseconds (at least five times)."""
    rest = state == "burst"
    for subject in subjects:
        subject.times = []
        spent = 0 if rest else min_time / 5
        while spent > 0:
            spent -= sum(subject.turn(rest)) * subject.executions
    waiting = list(subjects)
    while waiting:
        for subject in waiting:
            subject.times += subject.turn(rest)
        waiting = [s for s in waiting if len(s.times) < 5 or sum(s.times) * s.executions < min_time]


def figures(subject):
    """Median and spread of a subject's times."""
    times = sorted(subject.times)

    def at(part):
        place = part * (len(times) - 1)
        low = int(place)
        return times[low] + (place - low) * (times[min(low + 1, len(times) - 1)] - times[low])
    values = {"ms": at(0.5), "ms_min": times[0], "ms_q1": at(0.25), "ms_q3": at(0.75), "ms_max": times[-1]}
    return {name: float(f"{value:.4g}") for name, value in values.items()} | {"runs": len(times),
                                                                              "executions": subject.executions}


def parse_shape(word):
    """"trimul:1,256,128,128" or "opm:B,S,N,c_m,c,c_z": op and sizes."""
    op, _, sizes = word.partition(":")
    try:
        sizes = [int(size) for size in sizes.split(",")]
    except ValueError:
        sizes = []
    if {"opm": 6, "trimul": 4}.get(op) != len(sizes) or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f'"{word}" is neither trimul:B,N,c_z,c nor opm:B,S,N,c_m,c,c_z')
    return op, tuple(sizes)


def read_shapes(path):
    """The shapes of a file of bench/shapes: "OP SIZES" a line, comments from #."""
    try:
        with open(path) as file:
            lines = [line.partition("#")[0].split() for line in file]
    except OSError as why:
        raise argparse.ArgumentTypeError(f"{path}: {why.strerror}") from None
    return [parse_shape(":".join(words)) for words in lines if words]


def matrices(sizes, device, dtype):
    """Random weights: (name, out, in), or (name, channels) for a LayerNorm."""
    made = {}
    for name, out, *rest in sizes:
        scale = 1 / math.sqrt(rest[0]) if rest else 1
        made[name + "_weight"] = (torch.randn(out, *rest, device=device) * scale).to(dtype)
        made[name + "_bias"] = (torch.randn(out, device=device) * 0.1).to(dtype)
    return made


class Problem:
    """One op and shape: weights, sets of inputs, an output, and the library's plan."""

    def __init__(self, library, op, sizes, outgoing, compute, kernel, device):
        dtype = DTYPES[compute]
        if op == "trimul":
            batch, n, c_z, c = sizes
            rows, channels, out = (batch, n, n), c_z, (batch, n, n, c_z)
            names = [("norm_in", c_z), ("a_proj", c, c_z), ("a_gate", c, c_z), ("b_proj", c, c_z), ("b_gate", c, c_z),
                     ("norm_out", c), ("out", c_z, c), ("out_gate", c_z, c_z)]
        else:
            batch, s, n, channels, c, c_z = sizes
            rows, out = (batch, s, n), (batch, n, n, c_z)
            names = [("norm", channels), ("a", c, channels), ("b", c, channels), ("out", c_z, c * c)]
        self.weights = matrices(names, device, dtype)
        self.out = torch.empty(out, device=device, dtype=dtype)
        size = math.prod(rows) * (channels + 1) * self.out.element_size()
        self.sets = [(torch.randn(*rows, channels, device=device).to(dtype),
                      (torch.rand(*rows, device=device) < 0.9).to(dtype)) for _ in range(min(MOST_SETS, -(-CACHE // size)))]
        make = evo.triangle_multiplication if op == "trimul" else evo.outer_product_mean
        more = {"outgoing": outgoing} if op == "trimul" else {}
        self.plan = make(library, *self.sets[0], self.out, self.weights, compute=compute, kernel=kernel, **more)
        peers.prepare(self.weights)


def error(got, want):
    return float(f"{float((got.double() - want).norm() / want.norm()):.3g}")


def contestants(problem, forms, clock, options):
    """Subjects and errors by name; a rival that fails is named on stderr and left out."""
    sets = problem.sets
    functions = {"libevoformer": lambda i: problem.plan(*sets[i], problem.out)}
    functions |= {name: lambda i, form=form: form(problem.weights, *sets[i]) for name, form in forms.items()}
    want = None
    if options.error:
        double = {name: weight.double() for name, weight in problem.weights.items()}
        exact = peers.trimul_gemm(options.outgoing) if options.op == "trimul" else peers.opm_gemm
        want = exact(double, *(x.double() for x in sets[0]))
    subjects, errors = {}, {}
    for name, function in functions.items():
        try:
            errors[name] = error(function(0), want) if options.error else None
            subjects[name] = Subject(clock, function, len(sets))
        except Exception as why:  # a rival's own failure, whatever it raises, is no reason to end the run
            if name == "libevoformer":
                raise
            print(f"# {options.op} {options.shape} {options.compute}: {name}: {repr(why)[:200]}", file=sys.stderr)
            subjects.pop(name, None)
    return subjects, errors


def shares(info, ms, ceiling):
    """Rates by the op's own counts, and the least time that the ceilings allow."""
    floor = max(info.flops / ceiling["product_tflops"] / 1e9, info.bytes / ceiling["copy_gbps"] / 1e6)
    return {"tflops": float(f"{info.flops / ms / 1e9:.4g}"), "gbps": float(f"{info.bytes / ms / 1e6:.4g}"),
            "floor_ms": float(f"{floor:.4g}"), "times_floor": float(f"{ms / floor:.4g}")}


def print_rows(problem, subjects, errors, common, ceiling):
    rows = {name: figures(subject) for name, subject in subjects.items()}
    for name, row in rows.items():
        row |= shares(problem.plan.info, row["ms"], ceiling)
        if name == "libevoformer":
            row |= {"kernel": problem.plan.kernel, "workspace_mib": round(problem.plan.info.workspace_size / 2**20, 2)}
            for rival, key in (("torch", "best_torch"), ("cuequivariance", "best_cuequivariance")):
                times = [other["ms"] for peer, other in rows.items() if peer.startswith(rival)]
                row |= {"times_" + key: round(min(times) / row["ms"], 3)} if times else {}
        row |= {"error": errors[name]} if errors[name] is not None else {}
        print(json.dumps(common | {"contestant": name} | row), flush=True)


def compare(library, op, sizes, outgoing, compute, clock, ceilings, device, options):
    options.op, options.shape, options.outgoing, options.compute = op, sizes, outgoing, compute
    torch.manual_seed(0)
    if clock.gpu:
        torch.cuda.empty_cache()  # the last shape's graphs
    problem = Problem(library, op, sizes, outgoing, compute, options.kernel, device)
    if options.compile:
        torch._dynamo.reset()  # else the shapes so far count against its limit of recompilations
    forms = peers.forms(op, outgoing, compute, options.compile, device) if options.rivals else {}
    forms = {name: form for name, form in forms.items() if name.startswith(options.only)}
    subjects, errors = contestants(problem, forms, clock, options)
    common = {"op": op, "shape": ",".join(map(str, sizes)), "compute": compute, "threads": options.thread_count}
    common |= {"direction": "outgoing" if outgoing else "incoming"} if op == "trimul" else {}
    for state in options.states:
        race(list(subjects.values()), state, options.min_time)
        print_rows(problem, subjects, errors, {name: value for name, value in common.items() if value} | {"state": state},
                   ceilings[compute, state])


def measure_ceilings(compute, clock, device, options):
    """Copy, read and written, and a large product, in each state; by compute mode and state."""
    x = torch.empty(4 * CACHE if clock.gpu else CACHE, dtype=torch.uint8, device=device).random_()
    y, n = torch.empty_like(x), 8192 if clock.gpu else 2048
    a, b = (torch.randn(n, n, device=device).to(DTYPES[compute]) for _ in range(2))
    subjects = [Subject(clock, lambda i: y.copy_(x), 1, False), Subject(clock, lambda i: a @ b, 1, False)]
    found = {}
    for state in options.states:
        race(subjects, state, options.min_time)
        copy, product = (figures(subject)["ms"] for subject in subjects)
        found[compute, state] = {"copy_gbps": round(2 * x.numel() / copy / 1e6, 1),
                                 "product_tflops": float(f"{2 * n**3 / product / 1e9:.4g}")}
        threads = {"threads": options.thread_count} if options.thread_count else {}
        print(json.dumps({"ceilings": compute, "state": state} | threads | found[compute, state]), flush=True)
    return found


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def driver():
    try:
        asked = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                               text=True)
        return asked.stdout.split()[0]
    except (OSError, IndexError):
        return None


def processor():
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def describe(library, device, options):
    gpu = device.type == "cuda"
    facts = {"device": torch.cuda.get_device_name(device) if gpu else processor(), "driver": driver() if gpu else None,
             "isa": None if gpu else os.environ.get("EVO_CPU_ISA", torch.backends.cpu.get_cpu_capability()),
             "threads": options.thread_count, "torch": torch.__version__, "cuda": torch.version.cuda if gpu else None,
             "hip": torch.version.hip,
             "cuequivariance": version("cuequivariance-torch") if peers.cuequivariance_torch else None,
             "library": library.dll.evo_build_info().decode(), "date": datetime.date.today().isoformat(),
             "command": "bench/compare.py " + " ".join(os.path.basename(word) for word in sys.argv[1:])}
    print(json.dumps({name: value for name, value in facts.items() if value is not None}), flush=True)


def measure(options):
    device = torch.device(options.device)
    options.thread_count = None
    if device.type == "cpu":
        options.thread_count = options.threads[0]
        torch.set_num_threads(options.thread_count)
    try:
        library = evo.Library(options.library, options.device)
    except (ImportError, RuntimeError) as why:
        sys.exit(f"compare.py: {why}")
    clock = Clock(device, options.cpu_time)
    describe(library, device, options)
    with torch.inference_mode():
        for compute in options.compute:
            torch.backends.cuda.matmul.allow_tf32 = compute == "tf32"
            ceilings = measure_ceilings(compute, clock, device, options)
            for op, sizes in options.shapes:
                for direction in options.directions if op == "trimul" else ["outgoing"]:
                    compare(library, op, sizes, direction == "outgoing", compute, clock, ceilings, device, options)


def words(*allowed):
    """A comma-separated list of some of these; "none" is none."""
    def parse(text):
        chosen = [] if text == "none" else text.split(",")
        wrong = [word for word in chosen if word not in allowed]
        if wrong:
            raise argparse.ArgumentTypeError(f'"{wrong[0]}" is none of {", ".join(allowed)}')
        return chosen
    return parse


def thread_counts(text):
    try:
        counts = list(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f'"{text}" is no list of numbers of threads, such as 1,16')
    return counts


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("library", help="libevoformer.so")
    add("--device", default="cuda:0" if torch.cuda.is_available() else "cpu", help="cuda:0 or cpu (default %(default)s)")
    add("--compute", default=["fp32"], type=words(*DTYPES), help="some of fp32,tf32,bf16,fp16 (default fp32)")
    add("--shapes", action="extend", default=[], type=lambda text: [parse_shape(word) for word in text.split()],
        help="shapes such as 'trimul:1,256,128,128 opm:1,128,256,256,32,128'")
    add("--shape-file", action="extend", dest="shapes", type=read_shapes, help="a file of bench/shapes")
    add("--directions", default=["outgoing", "incoming"], type=words("outgoing", "incoming"), help="of trimul (default both)")
    add("--states", default=["sustained"], type=words("sustained", "burst"), help="sustained,burst (default sustained)")
    add("--compile", default=[], type=words("einsum", "gemm"), help="PyTorch forms to compile too (default none)")
    add("--no-rivals", dest="rivals", action="store_false", help="the library alone")
    add("--only", default="", help="rivals whose names begin so, such as cuequivariance (default all)")
    add("--no-error", dest="error", action="store_false", help="no errors against fp64, which take time and memory")
    add("--kernel", help="force a kernel of the library")
    add("--min-time", type=float, default=200, help="milliseconds to measure each contestant (default %(default)s)")
    add("--threads", type=thread_counts, default=f"1,{len(os.sched_getaffinity(0))}", help="on the CPU: numbers of threads (default %(default)s)")
    add("--cpu-time", action="store_true", help="on the CPU: processor time over threads, where others use the machine too")
    options = parser.parse_args(arguments)
    kind = options.device.partition(":")[0]
    if kind not in SHAPES:
        parser.error(f'--device: "{options.device}" is neither cpu nor cuda:N')
    options.shapes = options.shapes or [parse_shape(word) for word in SHAPES[kind].split()]
    return options


def main():
    options = parse(sys.argv[1:])
    if options.device != "cpu" or len(options.threads) == 1:
        return measure(options)
    for count in map(str, options.threads):
        environment = dict(os.environ, OMP_NUM_THREADS=count, MKL_NUM_THREADS=count, EVO_NUM_THREADS=count)
        status = subprocess.run([sys.executable, *sys.argv, "--threads", count], env=environment).returncode
        if status != 0:
            sys.exit(status)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Pointers, streams and graphs of others used in place, and driver errors in the driver's words.

    tests/hardware/in_place.py build/src/libevoformer.so [torch | runtime | driver]

For a machine with an NVIDIA GPU; by hand, CI has none. Memory, streams and graphs come from PyTorch if it is installed,
else from the CUDA runtime (libcudart.so), else from the driver itself, and are handed to the library as they are; plans are
those of the Python package. With EVO_CUDA_LIBRARY naming libsimcuda.so and "driver" it runs on the simulated device too.
Each check prints a line; the status is 0 if all hold.
"""
import array
import ctypes
import math
import os
import random
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'bindings', 'python'))
from evoformer import _library, _ops  # noqa: E402
from evoformer._arrays import contiguous  # noqa: E402

N, C = 24, 16  # residues, channels
SPEC = _ops.spec(_ops.Trimul, C, C, C, _ops.Trimul.weights)


def pointer(value):
    return ctypes.c_void_p(value)


class Library:
    """The library's functions by their names; `around` is what each call is wrapped in."""

    def __init__(self, opened):
        self.opened, self.around = opened, lambda call: call()

    def __getattr__(self, name):
        function = getattr(self.opened, name)
        return lambda *arguments: self.around(lambda: function(*arguments))


# --- whose memory, streams and graphs ------------------------------------------------------------
class Vendor:
    """Functions of a C library of the vendor; each call that fails raises."""

    def __init__(self, names):
        for name in names:
            try:
                self.library = ctypes.CDLL(name)
                break
            except OSError as error:
                failure = error
        else:
            raise failure

    def __call__(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code:
            raise RuntimeError('%s gives %d' % (name, code))


class FromDriver:
    """The CUDA driver's own objects, in the primary context of device 0."""
    names = dict(alloc='cuMemAlloc_v2', free='cuMemFree_v2', copy='cuMemcpyAsync', stream='cuStreamCreate',
                 wait='cuStreamSynchronize', begin='cuStreamBeginCapture_v2', end='cuStreamEndCapture',
                 ready='cuGraphInstantiateWithFlags', launch='cuGraphLaunch')
    kinds = {}

    def __init__(self):
        self.call = Vendor([os.environ.get('EVO_CUDA_LIBRARY', 'libcuda.so.1')])
        self.call('cuInit', 0)
        self.context = ctypes.c_void_p()
        self.call('cuDevicePrimaryCtxRetain', ctypes.byref(self.context), 0)
        self.call('cuCtxPushCurrent_v2', self.context)

    def alloc(self, size):
        memory = ctypes.c_void_p()
        self.call(self.names['alloc'], ctypes.byref(memory), ctypes.c_size_t(max(size, 1)))
        return memory.value

    def free(self, memory):
        self.call(self.names['free'], pointer(memory))

    def stream(self):
        made = ctypes.c_void_p()
        self.call(self.names['stream'], ctypes.byref(made), 1)  # non-blocking
        return made.value

    def copy(self, target, source, size, stream, kind):
        arguments = [self.kinds[kind]] if self.kinds else []
        self.call(self.names['copy'], pointer(target), pointer(source), ctypes.c_size_t(size), *arguments,
                  pointer(stream))

    def upload(self, memory, numbers, stream):
        self.copy(memory, numbers.buffer_info()[0], 4 * len(numbers), stream, 'upload')

    def download(self, memory, count, stream):
        numbers = array.array('f', bytes(4 * count))
        self.copy(numbers.buffer_info()[0], memory, 4 * count, stream, 'download')
        self.call(self.names['wait'], pointer(stream))
        return numbers

    def record(self, stream, work):
        """What repeats the work, recorded in the caller's own way (mode global, the strictest)."""
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        self.call(self.names['begin'], pointer(stream), 0)
        work()
        self.call(self.names['end'], pointer(stream), ctypes.byref(graph))
        self.call(self.names['ready'], ctypes.byref(ready), graph, ctypes.c_ulonglong(0))
        return lambda: self.call(self.names['launch'], ready, pointer(stream))


class FromRuntime(FromDriver):
    """The CUDA runtime's."""
    names = dict(alloc='cudaMalloc', free='cudaFree', copy='cudaMemcpyAsync', stream='cudaStreamCreateWithFlags',
                 wait='cudaStreamSynchronize', begin='cudaStreamBeginCapture', end='cudaStreamEndCapture',
                 ready='cudaGraphInstantiateWithFlags', launch='cudaGraphLaunch')
    kinds = {'upload': 1, 'download': 2}

    def __init__(self):
        folders = ['', '/usr/local/cuda/lib64/', '/usr/local/cuda/targets/x86_64-linux/lib/']
        self.call = Vendor([folder + name for name in ('libcudart.so', 'libcudart.so.13', 'libcudart.so.12')
                            for folder in folders])
        self.call('cudaFree', None)  # starts the runtime


class FromTorch:
    """PyTorch's: tensors of its allocator, its streams and its graphs."""

    def __init__(self):
        import torch
        self.torch, self.tensors, self.streams = torch, {}, {}
        torch.zeros(1, device='cuda')

    def alloc(self, size):
        tensor = self.torch.empty(max(size, 1), dtype=self.torch.uint8, device='cuda')
        self.tensors[tensor.data_ptr()] = tensor
        return tensor.data_ptr()

    def free(self, memory):
        del self.tensors[memory]

    def stream(self):
        made = self.torch.cuda.Stream()
        self.streams[made.cuda_stream] = made
        return made.cuda_stream

    def on(self, stream):
        return self.torch.cuda.stream(self.streams.get(stream, self.torch.cuda.default_stream()))

    def upload(self, memory, numbers, stream):
        with self.on(stream):
            source = self.torch.frombuffer(numbers, dtype=self.torch.float32)
            self.tensors[memory][:4 * len(numbers)].view(self.torch.float32).copy_(source, non_blocking=True)

    def download(self, memory, count, stream):
        with self.on(stream):
            found = self.tensors[memory][:4 * count].view(self.torch.float32).cpu()
        return array.array('f', found.tolist())

    def record(self, stream, work):
        graph = self.torch.cuda.CUDAGraph()
        self.torch.cuda.synchronize()
        with self.torch.cuda.graph(graph, stream=self.streams[stream]):
            work()

        def replay():
            with self.on(stream):
                graph.replay()
        return replay


def choose(wanted):
    for name, made in (('torch', FromTorch), ('runtime', FromRuntime), ('driver', FromDriver)):
        try:
            if wanted in (None, name):
                return name, made()
        except (ImportError, OSError) as error:
            if wanted:
                raise
            print('no %s: %s' % (name, error))
    sys.exit('usage: in_place.py LIBRARY [torch | runtime | driver]')


# --- one triangle multiplication on a device -----------------------------------------------------
def layout(memory, shape):
    return _ops.Layout(memory, shape, contiguous(shape), 'fp32')


class Op:
    """A plan, with weights packed, in memory that `give` allocates."""

    def __init__(self, device, give, upload, weights, stream):
        shape, self.stream = (1, N, N, C), stream
        self.z, self.out = give(4 * N * N * C), give(4 * N * N * C)
        self.plan = _ops.Plan(SPEC, device, shape, layout(self.z, shape), None, None, layout(self.out, shape), 'fp32')
        views = []
        for part, numbers in zip(SPEC.shapes().values(), weights):
            views.append(layout(give(4 * len(numbers)), part))
            upload(views[-1].pointer, numbers, stream)
        self.workspace = give(self.plan.workspace_size)
        self.pack = self.plan.pack(views, give(self.plan.pack_size), stream)

    def execute(self, stream=None):
        self.plan.run(self.pack, self.z, None, None, self.out, self.workspace, self.stream if stream is None else stream)


def aligned_host(size, kept):
    """Host memory as the library wants it, which lives as long as `kept`."""
    kept.append(ctypes.create_string_buffer(size + 256))
    return (ctypes.addressof(kept[-1]) + 255) // 256 * 256


def expected_by_cpu(weights, z):
    kept = []

    def upload(memory, numbers, _):
        ctypes.memmove(memory, numbers.buffer_info()[0], 4 * len(numbers))
    op = Op('cpu', lambda size: aligned_host(size, kept), upload, weights, None)
    upload(op.z, z, None)
    op.execute()
    found = array.array('f')
    found.frombytes(ctypes.string_at(op.out, 4 * N * N * C))
    return found


def numbers(count, scale=1.0):
    return array.array('f', [random.gauss(0, scale) for _ in range(count)])


def close(found, expected):
    error = math.sqrt(sum((f - e) ** 2 for f, e in zip(found, expected)) / sum(e * e for e in expected))
    return error <= 1e-6  # false for NaN


# --- the checks ----------------------------------------------------------------------------------
class Checks:
    def __init__(self):
        self.failed = 0

    def __call__(self, what, holds):
        print('%-6s %s' % ('ok' if holds else 'FAILED', what), flush=True)
        self.failed += not holds


def watch_context(library, check):
    """From now on each call must leave the thread's current context as it was."""
    driver = ctypes.CDLL(os.environ.get('EVO_CUDA_LIBRARY', 'libcuda.so.1'))
    changed = []

    def current():
        context = ctypes.c_void_p()
        driver.cuCtxGetCurrent(ctypes.byref(context))
        return context.value

    def around(call):
        before = current()
        result = call()
        if current() != before:
            changed.append((before, current()))
        return result
    library.around = around
    return driver, changed


def check_results(device, check, weights, cases):
    """In a stream of the caller's, by a recording before any other run, again, and in the default stream."""
    stream = device.stream()
    op = Op('cuda:0', device.alloc, device.upload, weights, stream)
    print('kernel %s, workspace %d bytes, pack %d bytes' % (op.plan.kernel, op.plan.workspace_size, op.plan.pack_size))
    replay = device.record(stream, op.execute)
    for z, expected in cases:
        device.upload(op.z, z, stream)
        replay()
        check('a recording of the caller\'s, replayed', close(device.download(op.out, N * N * C, stream), expected))
    for z, expected in cases:
        device.upload(op.z, z, stream)
        op.execute()
        check('in the caller\'s stream', close(device.download(op.out, N * N * C, stream), expected))
    z, expected = cases[0]
    device.upload(op.z, z, 0)
    op.execute(0)
    check('in the default stream', close(device.download(op.out, N * N * C, 0), expected))
    return op


def check_contexts(driver, check, run):
    """In a thread without a context, and with another context current where the driver makes one."""
    def in_thread():
        context = ctypes.c_void_p()
        run('in a thread without a context')
        if hasattr(driver, 'cuCtxCreate_v2') and driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0:
            run('with a context of the caller\'s own current')
            driver.cuCtxDestroy_v2(context)
        else:
            print('no context of the caller\'s own to be had here')
    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()


def check_errors(library, context, check):
    """Each error as a status, with the driver's words."""
    def call(name, *arguments):
        _library.check(getattr(library, 'evo_' + name)(*arguments))

    memory, stream, graph = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    events, milliseconds = [ctypes.c_void_p(), ctypes.c_void_p()], ctypes.c_double()
    host = ctypes.create_string_buffer(64)
    call('stream_create', context, ctypes.byref(stream))
    for event in events:
        call('event_create', context, ctypes.byref(event))

    def refused(want, words, name, *arguments):
        status = getattr(library, 'evo_' + name)(*arguments)
        text = library.evo_last_error().decode()
        check('evo_%s: %s' % (name, text),
              library.evo_status_name(status).decode() == 'EVO_ERROR_' + want and all(word in text for word in words))
    refused('OUT_OF_MEMORY', ['CUDA_ERROR_OUT_OF_MEMORY'], 'memory_alloc', context, ctypes.c_size_t(1 << 50),
            ctypes.byref(memory))
    refused('DEVICE', ['CUDA_ERROR_INVALID_VALUE'], 'memory_free', context, ctypes.cast(host, ctypes.c_void_p))
    refused('INVALID_ARGUMENT', ['record'], 'event_elapsed', context, events[0], events[1],
            ctypes.byref(milliseconds))
    refused('CAPTURE', ['evo_graph_begin'], 'graph_end', context, stream, ctypes.byref(graph))
    call('graph_begin', context, stream)
    refused('CAPTURE', ['evo_graph_end'], 'graph_begin', context, stream)
    refused('CAPTURE', ['evo_graph_end'], 'stream_synchronize', context, stream)
    call('graph_end', context, stream, ctypes.byref(graph))
    call('graph_destroy', context, graph)
    call('stream_destroy', context, stream)
    refused('NO_DEVICE', [], 'context_create', b'cuda:99', None, ctypes.byref(ctypes.c_void_p()))
    for event in events:
        call('event_destroy', context, event)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    random.seed(1)
    os.environ['EVOFORMER_LIBRARY'] = os.path.abspath(sys.argv[1])
    library, check = Library(_library.dll()), Checks()
    _library._dll = library  # what plans and packs call is watched too
    weights = [numbers(math.prod(shape), 0.3) for shape in SPEC.shapes().values()]
    inputs = [numbers(N * N * C) for _ in range(3)]
    cases = [(z, expected_by_cpu(weights, z)) for z in inputs]
    name, device = choose(sys.argv[2] if len(sys.argv) > 2 else None)
    print('memory, streams and graphs of: ' + name)
    driver, changed = watch_context(library, check)
    op = check_results(device, check, weights, cases)

    def run(where):
        op.execute(0)
        _library.check(library.evo_stream_synchronize(_library.context('cuda:0'), None))
        check('runs ' + where, True)
    check_contexts(driver, check, run)
    check('the same result afterwards', close(device.download(op.out, N * N * C, 0), cases[0][1]))
    check_errors(library, _library.context('cuda:0'), check)
    del op
    library.evo_context_destroy(_library._contexts.pop('cuda:0'))
    check('the current context after each call is the one before it', not changed)
    return 1 if check.failed else 0


if __name__ == '__main__':
    sys.exit(main())

"""evoformer.torch on a GPU: streams, captured graphs, torch.compile's graphs, memory. Skipped without one."""
import gc
import time

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)
import evoformer  # noqa: E402
from test_torch import FP32, PAIRS, error, opm_pair, randomize, trimul_pair  # noqa: E402, F401
from evoformer import _ops  # noqa: E402


@pytest.fixture(autouse=True)
def on_the_gpu(monkeypatch):
    import test_torch
    monkeypatch.setattr(test_torch, "DEVICE", torch.device("cuda"))
    torch.manual_seed(test_torch.SEED)
    print(f"EVO_TEST_SEED={test_torch.SEED}")


def capture(module, inputs, warm_up=True):
    """As PyTorch's documentation says to."""
    if warm_up:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            module(*inputs)
        torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = module(*inputs)
    return graph, out


@PAIRS
@pytest.mark.parametrize("static", [False, True])
def test_captured_graphs(pair, static):
    """A graph reads its inputs, and weights changed in place: at once, or if they are said to be static after a run."""
    original, module, inputs = pair()
    module.static_weights = static
    with torch.inference_mode():
        graph, out = capture(module, inputs)
        for turn in range(3):
            inputs[0].normal_()
            out.fill_(float("nan"))
            graph.replay()
            assert error(out, original(*inputs)) <= FP32
            if turn == 1:
                state = randomize(original).state_dict()
                module.load_state_dict(state)
                if static:
                    module(*inputs)


@PAIRS
def test_capture_without_warm_up(pair):
    original, module, inputs = pair()
    with torch.no_grad():
        torch.ones(1, device="cuda")
        module(*inputs)  # plans load kernels, which a capture does not allow
        other = type(module)(*((64, 64, 32) if pair is opm_pair else (64, 32))).cuda()
        other.load_state_dict(original.state_dict())
        graph, out = capture(other, inputs, warm_up=False)
        graph.replay()
        assert error(out, original(*inputs)) <= FP32


@PAIRS
@pytest.mark.parametrize("static", [False, True])
def test_reduce_overhead(pair, static):
    """torch.compile records graphs itself, with memory pools in which nothing of ours may stay."""
    original, module, inputs = pair()
    module.static_weights = static
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, mode="reduce-overhead")
    with torch.no_grad():
        for turn in range(6):
            inputs[0].normal_()
            torch.compiler.cudagraph_mark_step_begin()
            assert error(compiled(*inputs).clone(), original(*inputs)) <= FP32
            if turn == 3:
                module.load_state_dict(randomize(original).state_dict())
                if static:
                    module(*inputs)
        module.static_weights = False
        assert error(module(*inputs), original(*inputs)) <= FP32


@PAIRS
def test_training_under_compile(pair):
    original, module, inputs = pair()
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True)
    for run in (original, compiled):
        optimizer = torch.optim.SGD((original if run is original else module).parameters(), lr=1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            run(*inputs).square().mean().backward()
            optimizer.step()
    for trained, wanted in zip(module.parameters(), original.parameters()):
        assert error(trained, wanted) <= 1e-5


@PAIRS
def test_captured_training_step(pair):
    """Forward, backward and the weights' change in one graph: it packs what it changes."""
    original, module, inputs = pair()
    parameters = list(module.parameters())

    def step():
        loss = module(*inputs).square().mean()
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients):
                parameter.sub_(gradient, alpha=1e-2)
        return loss

    start = {name: value.clone() for name, value in module.state_dict().items()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    module.load_state_dict(start)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    module.load_state_dict(start)
    for _ in range(3):
        graph.replay()
    optimizer = torch.optim.SGD(original.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        original(*inputs).square().mean().backward()
        optimizer.step()
    for trained, wanted in zip(module.parameters(), original.parameters()):
        assert error(trained, wanted) <= 1e-5


@PAIRS
def test_streams(pair):
    """A pack that one stream makes and others use; then made again while they may still read it."""
    original, module, inputs = pair(batch=1)
    streams = [torch.cuda.Stream() for _ in range(3)]
    with torch.inference_mode():
        for turn in range(4):
            with torch.no_grad():
                for m in (original, module):
                    m.proj_a.weight.mul_(1.5 if turn % 2 else 0.7)
            want = original(*inputs)
            torch.cuda.synchronize()
            got = []
            for stream in (streams[turn % 3], *streams):
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(2_000_000 if stream is streams[turn % 3] else 0)
                    got.append(module(*inputs))
            torch.cuda.synchronize()
            for out in got:
                assert error(out, want) <= FP32


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
@PAIRS
def test_a_gpu_that_is_not_the_current_one(pair):
    original, module, inputs = pair()
    want = original(*inputs)
    module.to("cuda:1")
    with torch.inference_mode():
        got = module(*(tensor.to("cuda:1") for tensor in inputs))
    assert got.device.index == 1 and torch.cuda.current_device() == 0
    assert error(got.to("cuda:0"), want) <= FP32


@PAIRS
def test_memory_is_of_pytorch_and_does_not_grow(pair):
    _original, module, inputs = pair()  # all three live until the end

    def runs():
        for _ in range(50):
            module(*inputs)
        while gc.collect():  # what earlier tests left may hold memory
            pass
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]

    with torch.inference_mode():
        module._caches.plans.clear()
        before = runs()
        torch.cuda.reset_peak_memory_stats()
        assert runs() == before
        plan = list(module._caches.plans.values())[-1]
        assert torch.cuda.max_memory_allocated() - before[0] >= plan.workspace_size


@PAIRS
@pytest.mark.parametrize("dtype, bound", [(torch.float16, 1e-3), (torch.bfloat16, 8e-3)])
def test_autocast_of_both_types(pair, dtype, bound):
    original, module, inputs = pair()
    with torch.no_grad(), torch.autocast("cuda", dtype):
        got, want = module(*inputs), original(*inputs)
        graph, out = capture(module, inputs)
        graph.replay()
    assert got.dtype == want.dtype == out.dtype == dtype
    truth = original.double()(*(tensor.double() for tensor in inputs))
    assert error(got, truth) <= bound * (1 + 16 / got.numel() ** 0.5) and error(out, truth) <= error(got, truth) * 1.01


def test_tf32_follows_pytorch():
    original, module, inputs = trimul_pair()
    with torch.no_grad():
        try:
            torch.set_float32_matmul_precision("high")
            module._caches.plans.clear()
            assert error(module(*inputs), original.double()(*(t.double() for t in inputs))) <= 1e-3
            plan = list(module._caches.plans.values())[-1]
            assert plan.compute in ("tf32", "fp32")
        finally:
            torch.set_float32_matmul_precision("highest")


class Interface:
    """A CUDA array that speaks the array interface alone."""

    def __init__(self, tensor):
        self.__cuda_array_interface__, self.owner = tensor.__cuda_array_interface__, tensor


class DLPack:
    """A CUDA array that speaks DLPack alone."""

    def __init__(self, tensor):
        self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__


@pytest.mark.parametrize("kind", [Interface, DLPack, lambda tensor: tensor])
def test_functions_on_the_gpu(kind):
    _, module, (z, mask) = trimul_pair()
    with torch.no_grad():
        want = module(z, mask)
        weights = {name: kind(w.detach()) for name, w in zip(module._kind.weights, module._weights())}
        out = torch.full_like(z, float("nan"))
        torch.cuda.synchronize()
        evoformer.triangle_multiplication(kind(z), weights, kind(mask), gate_input="raw", out=kind(out))
        assert error(out, want) <= FP32
        with pytest.raises(ValueError, match="mask is on cpu, expected cuda:0"):
            evoformer.triangle_multiplication(kind(z), weights, mask.cpu(), gate_input="raw", out=kind(out))


def test_devices_are_told():
    names = [device.name for device in evoformer.devices()]
    assert names[0] == "cuda:0" and names[-1] == "cpu"
    _, module, (z, mask) = trimul_pair()
    with torch.no_grad(), pytest.raises(ValueError, match="is on cpu, expected cuda:0"):
        module(z, mask.cpu())
    with torch.no_grad(), pytest.raises(ValueError, match="a weight of shape .* is on cuda:0, the input is on cpu"):
        module(z.cpu(), mask.cpu())


@PAIRS
def test_host_time_beyond_the_c_call(pair):
    """Launches run ahead of the GPU; the time of the thread, less that of evo_..._execute, is the host's own."""
    _, module, inputs = pair(batch=1)

    def least(call):
        best = float("inf")
        for _ in range(300):
            torch.cuda.synchronize()
            began = time.thread_time_ns()
            for _ in range(10):
                call()
            best = min(best, (time.thread_time_ns() - began) / 1e4)
        return best

    with torch.inference_mode():
        module._caches.plans.clear()
        out = module(*inputs)
        plan = list(module._caches.plans.values())[-1]
        pack = list(plan.packs.values())[-1].pack
        workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
        args = _ops.args(inputs[0].data_ptr(), inputs[1].data_ptr(), None, out.data_ptr())
        stream = torch.cuda.current_stream().cuda_stream
        whole = least(lambda: module(*inputs))
        call = least(lambda: plan.execute(plan.pointer, pack.pointer, args, workspace.data_ptr(),
                                          plan.workspace_size, stream))
    print(f"host time: module {whole:.1f} us, evo_{module._kind.op}_execute {call:.1f} us, beyond it {whole - call:.1f} us")
    assert whole - call <= 15

"""Plans together with PyTorch: on its streams, in several threads, in its CUDA graphs, and with user-provided
memory. An execution allocates nothing and is bitwise reproducible."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import checks
import poison
import pytest
import weft

torch = checks.need_gpu()
BUSY_CYCLES = 20_000_000  # about 10 ms of a GPU
SHAPE = (2, 3, 130, 32)
INPUTS, OUTPUTS = ("q", "k", "v", "d_o"), ("o", "dq", "dk", "dv")


def normal(*shape: int) -> Any:
    return torch.randn(shape, device="cuda")


def attention_plan(handle: Any = None) -> tuple[weft.Graph, dict[str, Any]]:
    """A plan of several kernels with a workspace, and memory for it by name."""
    g = weft.Graph(handle=handle, io_data_type="f32")
    q, k, v, d_o = (g.tensor(SHAPE, name=name) for name in INPUTS)
    o, stats = g._sdpa_fwd(q, k, v, attn_scale_value=0.2)
    grads = g._sdpa_bwd(q, k, v, o, d_o, stats, attn_scale_value=0.2)
    for tensor, name in zip((o, *grads), OUTPUTS, strict=True):
        tensor.set_name(name).set_output(True)
    g.build()
    assert g.get_workspace_size() > 0
    return g, memory_of_plan()


def memory_of_plan() -> dict[str, Any]:
    results = poison.in_torch(4 * len(OUTPUTS) * math.prod(SHAPE), "cuda").view(torch.float32)
    memory = {name: normal(*SHAPE) for name in INPUTS}
    return memory | dict(zip(OUTPUTS, results.view(len(OUTPUTS), *SHAPE), strict=True))


def expected(memory: dict[str, Any]) -> dict[str, Any]:
    q, k, v = (memory[name].double().requires_grad_() for name in ("q", "k", "v"))
    o = torch.softmax(0.2 * q @ k.mT, -1) @ v
    grads = torch.autograd.grad(o, (q, k, v), memory["d_o"].double())
    return dict(zip(OUTPUTS, (o.detach(), *grads), strict=True))


def check(memory: dict[str, Any]) -> None:
    for name, want in expected(memory).items():
        torch.testing.assert_close(memory[name].double(), want, rtol=1e-4, atol=1e-4)


def workspace_of(g: weft.Graph) -> Any:
    return poison.in_torch(g.get_workspace_size(), "cuda")


def test_torch_streams() -> None:
    """Work follows torch's current stream: it waits for what torch enqueued there, and torch waits for it."""
    g, memory = attention_plan()
    memory["q"].zero_()
    fresh, stream = normal(*SHAPE), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY_CYCLES)
        memory["q"].copy_(fresh)
        g.execute(memory)
        copies = {name: tensor.clone() for name, tensor in memory.items()}
        for name in OUTPUTS:
            memory[name].fill_(float("nan"))
    stream.synchronize()
    assert torch.equal(copies["q"], fresh)
    check(copies)


def run_on_two_streams(make: Callable[[Any], tuple[weft.Graph, dict[str, Any]]]) -> list[tuple[Any, ...]]:
    """Runs plans of two handles on two streams many times concurrently. Each one has its graph, memory,
    workspace and stream."""
    plans = []
    for _ in range(2):
        handle, stream = weft.create_handle("cuda"), torch.cuda.Stream()
        handle.set_stream(stream.cuda_stream)
        g, memory = make(handle)
        plans.append((g, memory, workspace_of(g), stream))
    torch.cuda.synchronize()
    for _ in range(20):
        for g, memory, workspace, _ in plans:
            g.execute(memory, workspace)
    torch.cuda.synchronize()
    return plans


def test_two_handles_at_once() -> None:
    for _, memory, _, _ in run_on_two_streams(attention_plan):
        check(memory)


def test_one_plan_in_many_threads() -> None:
    g, _ = attention_plan()
    memories = [memory_of_plan() for _ in range(4)]
    torch.cuda.synchronize()
    failures: list[BaseException] = []

    def work(memory: dict[str, Any]) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                workspace = workspace_of(g)
                for _ in range(20):
                    g.execute(memory, workspace)
                torch.cuda.current_stream().synchronize()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(memory,)) for memory in memories]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for memory in memories:
        check(memory)


def test_cuda_graph() -> None:
    """Captured once, replayed on new values; nothing runs while it is captured."""
    g, memory = attention_plan()
    workspace = workspace_of(g)
    memory["o"].fill_(-77)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        g.execute(memory, workspace)
    assert (memory["o"] == -77).all()
    for _ in range(2):
        for name in INPUTS:
            memory[name].copy_(normal(*SHAPE))
        captured.replay()
        torch.cuda.synchronize()
        check(memory)


def batch_norm_plan(handle: Any) -> tuple[weft.Graph, dict[str, Any]]:
    """A plan of one kernel whose blocks wait for each other, and memory for it by name."""
    x = normal(64, 56, 56, 128).bfloat16().permute(0, 3, 1, 2)
    memory = {"x": x, "scale": normal(1, 128, 1, 1), "bias": normal(1, 128, 1, 1)}
    memory["y"] = poison.tensor_of(x.shape, x.stride(), x.dtype, x.device)
    g = weft.Graph(handle=handle)
    tensors = {name: g.tensor_like(memory[name], name=name) for name in ("x", "scale", "bias")}
    y, *_ = g.batchnorm(*tensors.values(), epsilon=1e-5)
    y.set_name("y").set_output(True)
    g.build()
    assert "cuda.channels" in g.explain()
    return g, memory


def check_batch_norm(memory: dict[str, Any]) -> None:
    x, scale, bias = (memory[name].double() for name in ("x", "scale", "bias"))
    want = torch.nn.functional.batch_norm(x, None, None, scale.flatten(), bias.flatten(), True, 0, 1e-5)
    torch.testing.assert_close(memory["y"].double(), want, rtol=2**-8, atol=1e-4)


def test_blocks_that_wait_for_each_other() -> None:
    """On two streams at once, where neither kernel may occupy the resources that the other waits for; and
    captured."""
    plans = run_on_two_streams(batch_norm_plan)
    for _, memory, _, _ in plans:
        check_batch_norm(memory)
    g, memory, workspace, stream = plans[0]
    memory["y"].fill_(-77)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=stream):
        g.execute(memory, workspace)
    assert (memory["y"] == -77).all()
    memory["x"].copy_(normal(64, 56, 56, 128).permute(0, 3, 1, 2))
    captured.replay()
    torch.cuda.synchronize()
    check_batch_norm(memory)


def test_a_graph_captured_before_the_first_run() -> None:
    """Kernels are on the device when the plan is built, so that capturing may be the first use."""
    g, given = weft.Graph(), normal(77, 131)
    x = g.tensor_like(given)
    y = g.softmax(x, axis=1).set_output(True)
    g.build()
    made = poison.tensor_of(given.shape, given.stride(), given.dtype, given.device)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        g.execute({x: given, y: made})
    captured.replay()
    torch.testing.assert_close(made, torch.softmax(given, 1))


def test_execute_allocates_nothing() -> None:
    """Neither from torch's allocator nor from the device, which other processes may use meanwhile."""
    g, memory = attention_plan()
    workspace = workspace_of(g)
    g.execute(memory, workspace)

    def free_after_ten() -> int:
        for _ in range(10):
            g.execute(memory, workspace)
        torch.cuda.synchronize()
        return int(torch.cuda.mem_get_info()[0])

    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    free = [free_after_ten() for _ in range(50)]
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert any(one == other for one, other in pairwise(free))
    check(memory)


def test_results_take_the_memory_of_dropped_ones() -> None:
    """Memory of dropped results is reused at once, ordered after the work that still uses it."""
    handle, stream = weft.create_handle("cuda"), torch.cuda.Stream()
    handle.set_stream(stream.cuda_stream)
    g = weft.Graph(handle=handle, io_data_type="f32")
    g.mul(g.tensor([1 << 16], name="x"), 2.0).set_name("y").set_output(True)
    g.build()
    values = torch.arange(1 << 16).float().numpy()
    x, z = (weft.DeviceArray([1 << 16], handle=handle).copy_from(values) for _ in range(2))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY_CYCLES)
    first = g.plan(x=x)
    address = first._address
    g.plan(x=first, out={"y": z})
    del first
    second = g.plan(x=z)
    assert second._address == address
    assert not stream.query()
    assert (z.numpy() == 4 * values).all()
    assert (second.numpy() == 8 * values).all()


def test_results_are_not_allocated_in_a_capture() -> None:
    """The CUDA graph would write to memory that is reused later. The capture itself continues."""
    g = weft.Graph(io_data_type="f32")
    g.mul(g.tensor([64], name="x"), 2.0).set_name("y").set_output(True)
    g.build()
    x, y = weft.DeviceArray([64]).copy_from(torch.ones(64).numpy()), weft.DeviceArray([64])
    assert (g.plan(x=x).numpy() == 2).all()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(weft.WeftError, match="The stream is being captured: do this before the capture"):
            g.plan(x=x)
        g.plan(x=x, out={"y": y})
    graph.replay()
    torch.cuda.synchronize()
    assert (y.numpy() == 2).all()


def test_workspaces_from_torchs_allocator_are_reused_in_order() -> None:
    """Workspaces from torch's allocator may be reused at once: the stream preserves the order."""
    g, memory = attention_plan()
    for _ in range(10):
        g.execute(memory)
        for _ in range(3):
            workspace_of(g)
    torch.cuda.synchronize()
    check(memory)


@pytest.mark.parametrize("rows", [1, 1000])
def test_repeated_runs_are_equal_to_the_bit(rows: int) -> None:
    """Also where many blocks share one sum."""
    x = normal(rows, 100_003)
    first, second = (checks.on_gpu(lambda g, x: g.reduction(x, "ADD", dims=[0, 1]), x) for _ in range(2))
    assert torch.equal(first, second)
    g, memory = attention_plan()
    g.execute(memory)
    kept = {name: tensor.clone() for name, tensor in memory.items()}
    for _ in range(20):
        g.execute(memory)
        assert all(torch.equal(memory[name], tensor) for name, tensor in kept.items())

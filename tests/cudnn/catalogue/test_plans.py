"""Scripts in the style of cuDNN's samples: plans listed, chosen, saved, reshaped, captured."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import weft
import weft.cudnn as cudnn

T = cudnn.data_type


def product(place: Any, rows: int = 4, **more: Any) -> tuple[cudnn.pygraph, Any, Any, Any]:
    """relu(A B) with uids 1, 2 and 3, not built."""
    g = cudnn.pygraph(io_data_type=T.FLOAT, compute_data_type=T.FLOAT, handle=place.handle, **more)
    A = g.tensor(name="A", dim=[1, rows, 8], stride=[rows * 8, 8, 1], uid=1)
    B = g.tensor(name="B", dim=[1, 8, 8], stride=[64, 8, 1]).set_uid(2)
    C = g.relu(g.matmul(A, B, name="mm"), name="act").set_output(True).set_uid(3)
    return g, A, B, C


def check(place: Any, run: Any, rows: int = 4) -> None:
    """Runs a graph with inputs A, B and output C, and compares."""
    a, b = place.random((1, rows, 8)), place.random((1, 8, 8), seed=1)
    c = place.empty((1, rows, 8))
    run(a, b, c)
    place.close(c, np.maximum(place.get(a) @ place.get(b), 0))


@pytest.mark.parametrize("as_bytes", [False, True])
def test_plans_are_saved_and_loaded(place: Any, as_bytes: bool) -> None:
    g, *_ = product(place)
    g.build([cudnn.heur_mode.A])
    data = g.serialize(as_bytes=as_bytes)
    assert isinstance(data, bytes if as_bytes else list)
    loaded = cudnn.pygraph()
    loaded.deserialize(place.handle, data)
    check(place, lambda a, b, c: place.run(loaded, {1: a, 2: b, 3: c}))
    assert loaded.query_tensor_attributes_of_uid(3).get_data_type() is T.FLOAT
    without = cudnn.pygraph(handle=place.handle)
    without.deserialize(g.serialize(include_kernels=False, as_bytes=True))
    check(place, lambda a, b, c: place.run(without, {1: a, 2: b, 3: c}))


def test_plans_for_a_gpu_that_is_elsewhere(place: Any) -> None:
    described = cudnn.create_device_properties(weft.compile_for("sm_90").serialize())
    g = cudnn.pygraph(io_data_type=T.FLOAT, device_property=described)
    X = g.tensor(dim=[64], stride=[1])
    g.exp(X, name="exp").set_output(True)
    g.build([cudnn.heur_mode.A])
    data = g.serialize(as_bytes=True)
    assert len(data) > len(g.serialize(as_bytes=True, include_kernels=False))
    if place.is_gpu and cudnn.DeviceInfo.of(place.handle).sm_version == 90:
        there, x, y = cudnn.pygraph(), place.random((64,)), place.empty((64,))
        there.deserialize(place.handle, data, enforce_precompiled=True)
        place.run(there, {1: x, 2: y})
        place.close(y, np.exp(place.get(x)))


def test_other_shapes_for_one_run(place: Any) -> None:
    g, A, B, C = product(place, rows=16, is_override_shape_enabled=True)
    C.set_dim([1, 16, 8]).set_stride([128, 8, 1])
    g.build([cudnn.heur_mode.A])
    uids, shapes = [1, 3], [[1, 5, 8], [1, 5, 8]]
    strides = [[40, 8, 1], [40, 8, 1]]
    size = g.get_workspace_size(place.handle, uids, shapes, strides)
    workspace = place.empty([max(size, 1)], "u8")

    def run(a: Any, b: Any, c: Any) -> None:
        g.execute({A: a, B: b, C: c}, workspace, place.handle, uids, shapes, strides)

    check(place, run, rows=5)
    check(place, lambda a, b, c: place.run(g, {A: a, B: b, C: c}), rows=16)


def test_dynamic_shapes_share_a_cache_of_kernels(place: Any) -> None:
    cache = cudnn.create_kernel_cache()
    for rows in (4, 6, 8):
        g, A, B, C = product(place, rows, kernel_cache=cache, is_dynamic_shape_enabled=True)
        g.build([cudnn.heur_mode.A])
        check(
            place, lambda a, b, c, g=g, p=(A, B, C): place.run(g, dict(zip(p, (a, b, c), strict=True))), rows
        )


def test_plans_are_listed_and_selected(place: Any) -> None:
    g, A, B, C = product(place)
    g.validate()
    g.build_operation_graph()
    g.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    g.check_support()
    assert [plan.position for plan in g.plans] == list(range(g.get_execution_plan_count()))
    last = len(g.plans) - 1
    g.select_plan(last)
    assert g.selected_engine == g.get_plan_name_at_index(last) == g.plans[last].name
    assert g.inspect()["selected"] == g.selected_engine
    assert g.plans[last].is_built
    check(place, lambda a, b, c: place.run(g, {A: a, B: b, C: c}))
    engine, knobs = g.get_engine_and_knobs_at_index(last)
    again, A, B, C = product(place)
    again.validate()
    again.build_operation_graph()
    again.create_execution_plan(engine, knobs)
    again.build_plans()
    assert again.selected_engine == g.selected_engine
    check(place, lambda a, b, c: place.run(again, {A: a, B: b, C: c}))


def test_the_fastest_plan_is_found_by_timing(place: Any) -> None:
    g, A, B, C = product(place, 32)
    g.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    g.check_support()
    g.build_plans(cudnn.build_plan_policy.ALL)
    a, b, c = place.random((1, 32, 8)), place.random((1, 8, 8), seed=1), place.empty((1, 32, 8))
    seconds = []
    for i in range(g.get_execution_plan_count()):
        workspace = place.empty([max(g.get_workspace_size_plan_at_index(i), 1)], "u8")
        begin = time.perf_counter()
        g.execute_plan_at_index({A: a, B: b, C: c}, workspace, i, place.handle)
        seconds.append(time.perf_counter() - begin)
        place.close(c, np.maximum(place.get(a) @ place.get(b), 0))
    g.build_plan_at_index(int(np.argmin(seconds)))
    check(place, lambda a, b, c: place.run(g, {A: a, B: b, C: c}), 32)


def test_autotuning(place: Any) -> None:
    g, A, B, C = product(place, 16)
    g.autotune(seconds=0.05, remember=False)
    assert g.trials
    check(place, lambda a, b, c: place.run(g, {A: a, B: b, C: c}), 16)


def test_plans_are_filtered(place: Any) -> None:
    g, A, B, C = product(place)
    g.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    barred = g.get_plan_name_at_index(0)
    g.deselect_engines(engine_names=[barred, "eng"])  # engines of cuDNN that Weft does not have
    g.deselect_numeric_notes(notes=[cudnn.numerical_note.NONDETERMINISTIC])
    g.deselect_behavior_notes(notes=[cudnn.behavior_note.CUBLASLT_DEPENDENCY])
    g.select_behavior_notes(notes=[])
    g.deselect_workspace_greater_than(workspace_limit=1 << 20)
    g.check_support()
    g.build_plans()
    assert g.selected_engine != barred
    check(place, lambda a, b, c: place.run(g, {A: a, B: b, C: c}))
    assert all(isinstance(note, cudnn.behavior_note) for note in g.get_behavior_notes())


def test_memory_in_the_order_of_uids(place: Any) -> None:
    g, *_ = product(place)
    g.build([cudnn.heur_mode.A])
    check(place, lambda a, b, c: place.run(g, [b, c, a], tensor_uids=[2, 3, 1]))
    check(place, lambda a, b, c: place.run(g, {"A": a, 2: b, "act": c}))


def test_functions_return_built_graphs(place: Any) -> None:
    made = []

    @cudnn.graph_cache(lambda rows: rows)
    @cudnn.jit(heur_modes=[cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    def build(rows: int) -> Any:
        made.append(rows)
        with cudnn.graph(place.handle, io_data_type=T.FLOAT) as (g, _):
            A = g.tensor(dim=[1, rows, 8], stride=[rows * 8, 8, 1])
            B = g.tensor(dim=[1, 8, 8], stride=[64, 8, 1])
            C = g.relu(g.matmul(A, B)).set_output(True)
        return g, [A, B, C]

    for rows in (4, 5, 4):
        g, tensors = build(rows)
        check(place, lambda *arrays, g=g, t=tensors: place.run(g, dict(zip(t, arrays, strict=True))), rows)
    assert made == [4, 5]


def test_built_graphs_are_kept_below(place: Any) -> None:
    @cudnn.jit(heur_modes=[cudnn.heur_mode.A, cudnn.heur_mode.B])
    @cudnn.graph_cache(key_fn=lambda rows: rows)
    def build(rows: int) -> Any:
        g, *tensors = product(place, rows)
        return g, tensors

    (g, tensors), (again, _) = build(4), build(4)
    assert again is g
    assert again.plan is g.plan
    check(place, lambda *arrays: place.run(g, dict(zip(tensors, arrays, strict=True))))


def test_tensors_are_set_after_validation(place: Any) -> None:
    g, A, B, C = product(place)
    g.validate()
    assert C.get_dim() == [1, 4, 8]
    C.set_stride([32, 1, 4])
    product_ = g.find_tensor("mm::C")
    product_.set_output(True).set_data_type(T.HALF)
    assert C.get_stride() == [32, 1, 4]
    g.build([cudnn.heur_mode.A])
    late = g.tensor(dim=[3], data_type=T.FLOAT)  # no operation knows it
    a, b = place.random((1, 4, 8)), place.random((1, 8, 8), seed=1)
    c, between = place.like(C), place.like(product_)
    place.run(g, {A: a, B: b, C: c, product_: between, late: place.empty((3,))})
    want = place.get(a) @ place.get(b)
    place.close(c, np.maximum(want, 0), "f16")
    place.close(between, want, "f16")
    with pytest.raises(RuntimeError, match="the operation graph is built, so its tensors cannot change"):
        C.set_dim([1, 4, 8])


def test_strides_without_dims(place: Any) -> None:
    g, A, B, C = product(place)
    C.set_stride([32, 1, 4])
    g.build()
    assert (C.get_dim(), C.get_stride()) == ([1, 4, 8], [32, 1, 4])
    a, b, c = place.random((1, 4, 8)), place.random((1, 8, 8), seed=1), place.like(C)
    place.run(g, {A: a, B: b, C: c})
    place.close(c, np.maximum(place.get(a) @ place.get(b), 0))


def test_scalars_are_rounded(place: Any) -> None:
    x = place.random((2, 8), "f16")
    g = cudnn.pygraph(io_data_type=T.HALF, compute_data_type=T.FLOAT, handle=place.handle)
    X, F = g.tensor_like(x), g.tensor([1, 1], [1, 1], T.HALF, is_pass_by_value=True)
    Y = g.mul(X, F).set_output(True).set_data_type(T.FLOAT)
    g.build()
    for value in (0.1, np.float64(0.1), np.float32([[0.1]])):
        y = place.like(Y)
        place.run(g, {X: x, F: value, Y: y})
        place.close(y, place.get(x) * float(np.float16(0.1)))


def test_a_run_is_captured(place: Any) -> None:
    if not place.is_gpu:
        pytest.skip("a CUDA graph needs a GPU")
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU to capture on")
    a, b = torch.randn(1, 16, 8, device="cuda"), torch.randn(1, 8, 8, device="cuda")
    c = torch.zeros(1, 16, 8, device="cuda")
    handle = cudnn.create_handle()
    g = cudnn.pygraph(io_data_type=T.FLOAT, compute_data_type=T.FLOAT, handle=handle)
    A, B = g.tensor_like(a), g.tensor_like(b)
    C = g.matmul(A, B).set_output(True)
    g.build([cudnn.heur_mode.A])
    workspace = torch.empty(max(g.get_workspace_size(), 1), device="cuda", dtype=torch.uint8)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        g.execute({A: a, B: b, C: c}, workspace, handle=handle)
    c.zero_()
    captured.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-2, atol=1e-2)


def test_installed_under_its_name(place: Any) -> None:
    import sys

    import weft.cudnn

    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "cudnn"}
    try:
        assert weft.cudnn.install(replace=True) is sys.modules["cudnn"]
        namespace: dict[str, Any] = {}
        exec("import cudnn\nfrom cudnn.wrapper import Graph\nversion = cudnn.backend_version()", namespace)
        assert namespace["version"] == 92800
        assert namespace["Graph"] is weft.cudnn.Graph
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "cudnn"]:
            del sys.modules[name]
        sys.modules.update(before)
    sys.modules["cudnn"] = sys  # another one
    try:
        with pytest.raises(RuntimeError, match="another module 'cudnn' is loaded already"):
            weft.cudnn.install()
    finally:
        del sys.modules["cudnn"]
        sys.modules.update(before)

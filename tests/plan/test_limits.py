"""Plans respect the limits of an engine: number of multiprocessors, shared memory per block, no clusters. The
resources of kernels are read from the plans."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import weft
from weft.backend import Descriptor
from weft.enums import attribute_name as name
from weft.enums import descriptor_type as kind

LIMITS: dict[str, tuple[name, str]] = {
    "sm_count": (name.ENGINE_SM_COUNT_TARGET, "INT32"),
    "shared_memory": (name.ENGINE_SHARED_MEMORY_LIMIT, "INT32"),
    "no_clusters": (name.ENGINE_DISABLE_CLUSTER_COOPERATIVE, "BOOLEAN"),
}


def plan(g: weft.Graph, engine_id: int = 0, **limits: int) -> Descriptor:
    """The plan of an engine under limits."""
    g.build_operation_graph()
    engine, config = Descriptor(kind.ENGINE_DESCRIPTOR), Descriptor(kind.ENGINECFG_DESCRIPTOR)
    engine.set(name.ENGINE_OPERATION_GRAPH, "BACKEND_DESCRIPTOR", [g._planner().graph])
    engine.set(name.ENGINE_GLOBAL_INDEX, "INT64", [engine_id])
    if g._device_property is not None:
        engine.set(name.ENGINE_DEVICEPROP, "BACKEND_DESCRIPTOR", [g._device_property.descriptor])
    for key, value in limits.items():
        engine.set(*LIMITS[key], [value])
    engine.finalize()
    config.set(name.ENGINECFG_ENGINE, "BACKEND_DESCRIPTOR", [engine])
    config.finalize()
    made = Descriptor(kind.EXECUTION_PLAN_DESCRIPTOR)
    made.set(name.EXECUTION_PLAN_ENGINE_CONFIG, "BACKEND_DESCRIPTOR", [config])
    made.finalize()
    return made


def kernels(made: Descriptor) -> list[dict[str, Any]]:
    shown = json.loads(made.get_text(name.EXECUTION_PLAN_KERNELS_EXT))
    return list(shown["kernels"])


def product() -> weft.Graph:
    g = weft.Graph(device="sm_90", io_data_type="bf16")
    return g.matmul(g.tensor([1, 4096, 4096]), g.tensor([1, 4096, 4096])).set_output(True).graph


def softmax() -> weft.Graph:
    """Rows that are too long for one block."""
    g = weft.Graph(device="sm_90", io_data_type="bf16")
    return g.softmax(g.tensor([64, 1, 1, 65536])).set_output(True).graph


def decode() -> weft.Graph:
    """One query to many keys, which several blocks share."""
    g = weft.Graph(device="sm_90", io_data_type="bf16")
    q, k, v = (g.tensor([1, 8, extent, 128]) for extent in (1, 8192, 8192))
    o, _ = g.sdpa(q, k, v, generate_stats=False)
    return o.set_output(True).graph


def test_grids_are_made_for_as_many_multiprocessors() -> None:
    for few, graph in ((16, product()), (132, product())):
        (kernel,) = kernels(plan(graph, sm_count=few))
        assert kernel["grid"] == [few, 1, 1]
    (kernel,) = kernels(plan(product(), sm_count=1000))  # at most
    assert kernel["grid"] == [132, 1, 1]


@pytest.mark.parametrize("graph", [softmax, decode])
def test_without_clusters_other_kernels_run(graph: Any) -> None:
    assert any(kernel["cluster"] > 1 for kernel in kernels(plan(graph())))
    assert all(kernel["cluster"] == 0 for kernel in kernels(plan(graph(), no_clusters=True)))


@pytest.mark.parametrize("graph", [product, softmax, decode])
def test_shared_memory_stays_within_its_limit(graph: Any) -> None:
    assert any(kernel["shared_bytes"] > 40000 for kernel in kernels(plan(graph())))
    assert all(kernel["shared_bytes"] <= 40000 for kernel in kernels(plan(graph(), shared_memory=40000)))


def test_families_above_a_limit_decline() -> None:
    made = plan(product(), shared_memory=65536)
    (step,) = json.loads(made.get_text(name.EXECUTION_PLAN_REPORT_EXT))["steps"]
    (reason,) = (refusal["reason"] for refusal in step["declined"] if refusal["family"] == "cuda.hopper")
    wanted = r"matmul 'matmul_0': product_\w+ needs 2\d{5} bytes of shared memory per block"
    assert re.fullmatch(f"{wanted}, the limit is 65536", reason), reason


def test_limits_are_saved_with_a_plan() -> None:
    made = plan(softmax(), sm_count=16, shared_memory=65536, no_clusters=True)
    again, place = Descriptor(kind.EXECUTION_PLAN_DESCRIPTOR), weft.compile_for("sm_90")
    again.set(name.EXECUTION_PLAN_DEVICEPROP, "BACKEND_DESCRIPTOR", [place.descriptor])
    saved = made.get_bytes(name.EXECUTION_PLAN_JSON_REPRESENTATION)
    again.set(name.EXECUTION_PLAN_JSON_REPRESENTATION, "CHAR", saved)
    again.finalize()
    assert kernels(again) == kernels(made) != kernels(plan(softmax()))
    assert again.get_bytes(name.EXECUTION_PLAN_JSON_REPRESENTATION) == saved


def test_heuristics_keep_to_limits() -> None:
    g = product()
    g.build_operation_graph()
    seconds = []
    for limits in ({}, {name.ENGINEHEUR_SM_COUNT_TARGET: 66}, {name.ENGINEHEUR_SHARED_MEMORY_LIMIT: 65536}):
        query = Descriptor(kind.ENGINEHEUR_DESCRIPTOR)
        query.set(name.ENGINEHEUR_MODE, "HEUR_MODE", [weft.heur_mode.A])
        query.set(name.ENGINEHEUR_OPERATION_GRAPH, "BACKEND_DESCRIPTOR", [g._planner().graph])
        query.set(name.ENGINEHEUR_DEVICEPROP, "BACKEND_DESCRIPTOR", [weft.compile_for("sm_90").descriptor])
        for key, value in limits.items():
            query.set(key, "INT32", [value])
        query.finalize()
        best = query.get_descriptors(name.ENGINEHEUR_RESULTS, kind.ENGINECFG_DESCRIPTOR)[0]
        seconds.append(best.get_one(name.ENGINECFG_PREDICTED_SECONDS_EXT, "DOUBLE"))
    assert 1.9 < seconds[1] / seconds[0] < 2.1
    assert seconds[2] > seconds[0]


def test_limits_below_zero_are_refused() -> None:
    with pytest.raises(weft.BadParameterError, match="sm_count_target is -1") as refused:
        plan(product(), sm_count=-1)
    assert "0..2147483647" in str(refused.value)

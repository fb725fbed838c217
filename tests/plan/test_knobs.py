"""The predicted time of a plan is that of its knobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import weft
from weft.enums import attribute_name
from weft.errors import NotSupportedError

NHWC, NCHW = (37632, 1, 2688, 192), (37632, 196, 14, 1)


def graph(device: str = "sm_90") -> weft.Graph:
    types = {"io_data_type": "bf16", "intermediate_data_type": "f32", "compute_data_type": "f32"}
    return weft.Graph(device=device, **types)


def matmul(device: str = "sm_90", m: int = 2048) -> weft.Graph:
    g = graph(device)
    g.relu(g.matmul(g.tensor([m, 1024]), g.tensor([1024, 512])))
    return g


def conv(strides: tuple[int, ...]) -> weft.Graph:
    g = graph()
    w = g.tensor([192, 192, 3, 3], [1728, 1, 576, 192] if strides == NHWC else None)
    y = g.conv_fprop(g.tensor([32, 192, 14, 14], strides), w, padding=[1, 1])
    y.set_dim([32, 192, 14, 14]).set_stride(strides)
    return g


def experts() -> weft.Graph:
    g = graph()
    first = g.tensor([8, 1, 1], data_type="i32")
    g.moe_grouped_matmul(g.tensor([1, 4096, 512]), g.tensor([8, 512, 768], [393216, 1, 512]), first)
    return g


def weights() -> weft.Graph:
    g = graph()
    w, scale = g.tensor([1, 4096, 8192], [33554432, 1, 4096], data_type="i8"), g.tensor([1, 32, 8192])
    g.matmul(g.tensor([1, 64, 4096]), g.block_scale_dequantize(w, scale, block_size=[128, 1]))
    return g


GRAPHS: dict[str, tuple[Callable[[], weft.Graph], str]] = {
    "contraction": (lambda: matmul("sm_80"), "cuda.contraction"),
    "hopper": (matmul, "cuda.hopper"),
    "patch": (lambda: conv(NHWC), "cuda.patch_sm90"),
    "packed": (lambda: conv(NCHW), "cuda.packed"),
    "experts": (experts, "cuda.grouped_sm90"),
    "weights": (weights, "cuda.weight_only_sm90"),
}


def predicted(g: weft.Graph, knobs: Mapping[int | str, int]) -> float:
    """Seconds with these knobs; nothing is compiled."""
    planner = g._planner()
    config = planner.candidates[planner.choose(0, knobs)].config
    return float(config.get_one(attribute_name.ENGINECFG_PREDICTED_SECONDS_EXT, "DOUBLE"))


def tiles_of(g: weft.Graph) -> dict[int, float]:
    """Returns the predicted time of each tile that fits."""
    found = {}
    for tile in range(1, 32):
        try:
            found[tile] = predicted(g, {"TILE_SIZE": tile})
        except NotSupportedError:
            continue
    return found


@pytest.mark.parametrize("name", GRAPHS)
def test_seconds_are_those_of_the_tile(name: str) -> None:
    make, family = GRAPHS[name]
    g = make()
    (answer,) = [each for each in g.support() if each["engine"] == "cuda"]
    tiles = tiles_of(g)
    assert answer["families"] == [family]
    assert predicted(g, {}) == answer["seconds"]
    assert predicted(g, {}) <= min(tiles.values()) < max(tiles.values())


def test_seconds_are_those_of_the_splits() -> None:
    g = matmul(m=64)
    seconds = [predicted(g, {"SPLIT_K": splits}) for splits in range(1, 9)]
    assert predicted(g, {}) == min(seconds) < max(seconds)


def test_a_report_lists_them() -> None:
    g = matmul("sm_80", 32)
    slow = max(tiles_of(g).items(), key=lambda each: each[1])
    made = matmul("sm_80", 32)
    made.create_execution_plan(0, {"TILE_SIZE": slow[0]})
    made.build_plans()
    assert made.plan.report["seconds"] == made.plan.report["steps"][0]["seconds"]
    assert made.plan.report["seconds"] == pytest.approx(slow[1], rel=1e-3)
    assert f"{slow[1] * 1e6:.3g} µs" in made.explain()


@pytest.mark.parametrize("number", [65, 116, 129, 2**20])
@pytest.mark.parametrize("without_hopper", [False, True])
def test_splits_that_are_in_the_range_of_another_family(number: int, without_hopper: bool) -> None:
    """A family ignores a number of splits that it cannot make."""
    g = weft.Graph(io_data_type="f32", compute_data_type="f32", device="sm_90")
    dw = g.conv_wgrad(g.tensor([7, 2, 100, 192]), g.tensor([7, 16, 100, 192]), padding=[1, 1])
    dw.set_dim([16, 2, 3, 3]).set_output(True)
    g.build_operation_graph()
    most = max(knob.max for knob in g.get_knobs_for_engine(0) if knob.type.name == "SPLIT_K")
    knobs = {"SPLIT_K": min(number, most)}
    families = g.get_families_for_engine(0)
    if without_hopper:
        left_out = [i for i, name in enumerate(families) if "contraction" not in name]
        knobs["WITHOUT_FAMILIES_EXT"] = sum(1 << i for i in left_out)
    g.create_execution_plan(0, knobs)
    g.build_plan_at_index(0)
    assert g.plan.report["steps"]


def test_a_plan_without_families() -> None:
    """Bit i leaves the i-th family out; a saved plan keeps to it."""
    g = matmul()
    g.build()
    names = g.get_families_for_engine(0)
    without = {"WITHOUT_FAMILIES_EXT": 1 << names.index("cuda.hopper")}
    index = g.get_execution_plan_count()
    g.create_execution_plan(0, without)
    g.build_plan_at_index(index)
    assert [step["family"] for step in g.plan.report["steps"]] == ["cuda.contraction"]
    loaded = graph().deserialize(g.serialize())
    assert [step["family"] for step in loaded.plan.report["steps"]] == ["cuda.contraction"]
    everything = (1 << len(names)) - 1
    with pytest.raises(NotSupportedError, match="engine cuda: no kernel family serves matmul 'matmul_0'"):
        g.create_execution_plan(0, {"WITHOUT_FAMILIES_EXT": everything})

"""Families are compared by predicted time: a plan's time, that of its alternatives, and the sums of steps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import weft

PRICED = re.compile(r"predicted time (\S+) us, (\S+) takes (\S+) us$")


def graph(**types: Any) -> weft.Graph:
    types = {"io_data_type": "bf16", "intermediate_data_type": "f32", "compute_data_type": "f32", **types}
    return weft.Graph(device="sm_90", **types)


def families(g: weft.Graph) -> list[str]:
    g.build_operation_graph()
    answers = [answer for answer in g.support() if answer["supported"]]
    return min(answers, key=lambda answer: answer["seconds"])["families"]


def rivals(g: weft.Graph) -> Iterator[tuple[str, float, str, float]]:
    """Yields, for each step, the more expensive families, their predicted times, the chosen family and its
    time in µs."""
    for step in g.build().plan.report["steps"]:
        for refusal in step["declined"]:
            found = PRICED.search(refusal["reason"])
            if found:
                yield refusal["family"], float(found[1]), found[2], float(found[3])


def image(g: weft.Graph, *dims: int, last: bool = True) -> Any:
    _, c, h, w = dims
    return g.tensor(dims, (c * h * w, 1, w * c, c) if last else None)


def conv(last: bool) -> weft.Graph:
    g = graph()
    x, w = image(g, 128, 64, 56, 56, last=last), image(g, 64, 64, 3, 3, last=last)
    g.relu(g.conv_fprop(x, w, padding=[1, 1])).set_output(True)
    return g


@pytest.mark.parametrize(
    ("last", "chosen", "others"),
    [
        (True, "cuda.patch_sm90", {"cuda.hopper", "cuda.contraction"}),
        (False, "cuda.packed", {"cuda.contraction"}),
    ],
)
def test_the_cheapest_is_chosen_and_the_others_prices_are_kept(
    last: bool, chosen: str, others: set[str]
) -> None:
    found = list(rivals(conv(last)))
    assert {family for family, *_ in found} >= others
    for _, seconds, best, least in found:
        assert best == chosen
        assert seconds >= least


def weights(rows: int) -> weft.Graph:
    g = graph()
    x, scale = g.tensor([1, 4096, 4096], [1, 1, 4096], data_type="i4"), g.tensor([1, 32, 4096], [1, 1, 32])
    w = g.block_scale_dequantize(x, scale, block_size=[128, 1]).set_data_type("bf16")
    g.matmul(g.tensor([1, rows, 4096]), w).set_output(True)
    return g


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        (1, ["cuda.weight_only"]),
        (64, ["cuda.weight_only_sm90"]),
        (768, ["cuda.block_scale", "cuda.hopper"]),
    ],
)
def test_weights_are_dequantised_where_that_is_cheapest(rows: int, wanted: list[str]) -> None:
    assert families(weights(rows)) == wanted


def prepared(filters: int) -> weft.Graph:
    """A convolution of relu(x * scale): each tile of filters and each tap would prepare x again."""
    g = graph(intermediate_data_type="bf16")
    x, scale = image(g, 32, 256, 28, 28), g.tensor([1, 256, 1, 1], [256, 1, 256, 256])
    w = image(g, filters, 256, 1, 1)
    g.conv_fprop(g.relu(g.mul(x, scale)), w).set_output(True)
    return g


@pytest.mark.parametrize(("filters", "wanted"), [(64, ["cuda.hopper"]), (2048, ["cuda.map", "cuda.hopper"])])
def test_what_prepares_a_factor_is_fused_where_that_is_cheaper(filters: int, wanted: list[str]) -> None:
    assert families(prepared(filters)) == wanted


@pytest.mark.parametrize("g", [conv(True), conv(False), weights(768), prepared(2048)], ids=str)
def test_the_predicted_time_of_a_plan_is_the_sum_of_its_steps(g: weft.Graph) -> None:
    report = g.build().plan.report
    assert report["seconds"] == pytest.approx(sum(step["seconds"] for step in report["steps"]))


def test_region_results_with_other_readers_are_stored() -> None:
    """The product's family sees a subgraph; there, too, two other nodes read its result."""
    g = graph(intermediate_data_type="bf16")
    w = image(g, 64, 64, 3, 3, last=False)
    y = g.relu(g.conv_fprop(image(g, 128, 64, 56, 56, last=False), w, padding=[1, 1]))
    for _ in range(2):
        g.conv_fprop(y, w, padding=[1, 1]).set_output(True)
    assert families(g) == ["cuda.packed"] * 3


@pytest.mark.parametrize("is_across_first", [True, False])
def test_a_sum_of_data_gradients_is_an_epilogue_of_the_one_without_phases(is_across_first: bool) -> None:
    """With phases, the other gradient would be read in the memory of the sums."""
    g, dims, made = graph(intermediate_data_type="bf16"), (64, 256, 56, 56), []
    for is_across in (is_across_first, not is_across_first):
        filters, side = (512, 28) if is_across else (128, 56)
        dy, w = image(g, 64, filters, side, side), image(g, filters, 256, 1, 1)
        dx = g.conv_dgrad(dy, w, stride=[2, 2] if is_across else [1, 1], name=["along", "across"][is_across])
        made.append(dx.set_dim(dims))
    g.relu_backward(g.add(*made), image(g, *dims)).set_output(True)
    alone, joined = (step["operations"] for step in g.build().plan.report["steps"])
    assert [operation["name"] for operation in alone] == ["conv_dgrad 'across'"]
    assert (joined[0]["name"], len(joined)) == ("conv_dgrad 'along'", 3)


def product_on(multiprocessors: int | None, device: str = "sm_90") -> weft.Graph:
    g = weft.Graph(device=device, io_data_type="bf16", sm_count=multiprocessors)
    return g.matmul(g.tensor([1, 4096, 4096]), g.tensor([1, 4096, 4096])).set_output(True).graph


def test_plans_are_made_for_as_many_multiprocessors_as_are_asked_for() -> None:
    """Half of them take twice the time; a CPU has none."""
    whole, half = (product_on(n).build().plan.report["seconds"] for n in (0, 66))
    assert whole == product_on(None).build().plan.report["seconds"]
    assert 1.9 < half / whole < 2.1
    assert product_on(5, "cpu").build().plan.device is weft.device_kind.CPU
    with pytest.raises(weft.BadParameterError) as refused:
        product_on(133).build()
    wanted = "sm_count: 133, and H200 (described) has 132 multiprocessors. Give 1 to 132, or 0."
    assert str(refused.value) == wanted

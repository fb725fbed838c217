"""Products of floats are narrowed to tf32 where that is faster, unless the user forbids it."""

from __future__ import annotations

import re

import pytest
import weft

NARROWS = weft.numerical_note.DOWN_CONVERT_INPUTS


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)


def product(dtype: str = "f32", device: str = "sm_90", softmax: bool = False) -> weft.Graph:
    g = weft.Graph("product", device=device)
    a = g.tensor([256, 512], [512, 1], data_type=dtype, name="a")
    c = g.matmul(a, g.tensor([512, 384], [1, 512], data_type=dtype, name="b"), name="c")
    if softmax:
        g.softmax(c, name="p").set_output(True)
    return g


def plans(g: weft.Graph) -> list[str]:
    g.create_execution_plans()
    g.check_support()
    return [g.get_plan_name_at_index(i) for i in range(g.get_execution_plan_count())]


def answer(g: weft.Graph) -> dict[str, object]:
    """Returns the answer of engine cuda.tf32."""
    (found,) = [each for each in g.support() if each["engine"] == "cuda.tf32"]
    return found


def test_the_faster_engine_comes_first() -> None:
    g = product()
    seconds = {each["engine"]: each.get("seconds") for each in g.support()}
    assert seconds["cuda.tf32"] < seconds["cuda"]
    assert plans(g) == ["eng1", "eng0"]


def test_notes_keep_or_drop_what_narrows() -> None:
    assert plans(product().select_numeric_notes([NARROWS])) == ["eng1"]
    assert plans(product().deselect_numeric_notes([NARROWS])) == ["eng0"]


def test_the_rest_of_the_graph_is_served_as_ever() -> None:
    assert answer(product(softmax=True))["families"] == ["cuda.hopper", "cuda.rows"]


def test_steps_report_that_they_narrow() -> None:
    g = product(softmax=True).build()
    assert [step["relaxations"] for step in g.plan.report["steps"]] == [["tf32"], []]
    assert re.search(r"^ +1 +cuda\.hopper tf32 ", g.explain(), re.MULTILINE)
    g = product().deselect_numeric_notes([NARROWS]).build()
    assert [step["relaxations"] for step in g.plan.report["steps"]] == [[]]


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [((1, 256, 256), "bf16"), ((4, 1, 1), "f32"), ((4, 64, 512), "f32")],
    ids=["bf16", "without tiles", "slower in tf32"],
)
def test_products_that_are_not_narrowed(sizes: tuple[int, int, int], dtype: str) -> None:
    """The engine plans both products, and narrows only the other one."""
    g = product()
    batch, rows, depth = sizes
    factors = (g.tensor([batch, *dims], data_type=dtype) for dims in ((rows, depth), (depth, rows)))
    g.matmul(*factors, name="other")
    g.create_execution_plan(1)
    g.build_plan_at_index(0)
    steps = {step["operations"][0]["name"]: step["relaxations"] for step in g.plan.report["steps"]}
    assert steps == {"matmul 'c'": ["tf32"], "matmul 'other'": []}


def test_older_chips_do_not_narrow() -> None:
    said = answer(product(device="sm_75"))
    assert not said["supported"]
    assert said["reason"] == (
        "matmul 'c': only tiles of floats summed in float are narrowed to tf32, "
        "from compute capability 8.0 on."
    )


@pytest.mark.parametrize(
    ("device", "family"),
    [("sm_80", "contraction"), ("sm_90", "hopper"), ("sm_100", "contraction"), ("sm_120", "contraction")],
)
def test_families(device: str, family: str) -> None:
    assert answer(product(device=device))["families"] == [f"cuda.{family}"]


@pytest.mark.parametrize(("dtype", "softmax"), [("bf16", True), ("bf16", False), ("f64", False)])
def test_graphs_without_products_of_floats_have_no_such_engine(dtype: str, softmax: bool) -> None:
    reason = answer(product(dtype, softmax=softmax))["reason"]
    assert reason == "engine cuda.tf32: no operation of graph 'product' would be rounded to fewer bits."


def test_the_variable_that_forbids_narrowing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    for softmax in False, True:
        reason = str(answer(product(softmax=softmax))["reason"])
        assert "forbids narrowing floats to tf32. Unset it." in reason
    assert plans(product()) == ["eng0"]

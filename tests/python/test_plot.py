"""Pictures: well-formed, complete, without overlaps; layout, curves and progress."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from itertools import combinations
from pathlib import Path

import pytest
import weft
from weft.plot import svg
from weft.plot.chart import Panel, chart, ticks
from weft.plot.diagram import draw, picture_of_graph, picture_of_report, plot
from weft.plot.layout import Box, Edge, place
from weft.progress import Progress

NAMESPACE = "{http://www.w3.org/2000/svg}"


def make(built: bool = True, long_name: str = "conv") -> weft.Graph:
    g = weft.Graph("small <net>", io_data_type="f32", handle=weft.create_handle("cpu"))
    x, w = g.tensor([2, 8, 12, 12], name="x"), g.tensor([8, 8, 3, 3], name="w")
    b = g.tensor([1, 8, 1, 1], name="b")
    a = g.relu(g.add(g.conv_fprop(x, w, name=long_name), b, name="bias"), name="act")
    a.set_name("a").set_output(True)
    pooled, _ = g.resample(a, window=[2, 2], stride=[2, 2], name="pool")
    g.add(g.mul(pooled, 0.5, name="half"), pooled, name="both").set_name("y").set_output(True)
    return g.build() if built else g


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(picture).iter(f"{NAMESPACE}text")]


def regions(picture: str) -> list[ET.Element]:
    groups = ET.fromstring(picture).iter(f"{NAMESPACE}g")
    return [group for group in groups if group.get("data-step")]


@pytest.mark.parametrize("built", [False, True])
def test_picture_names_every_operation_and_tensor(built: bool) -> None:
    shown = texts(make(built).plot())
    for word in ("small <net>", "conv", "bias", "act", "pool", "half", "both", "x", "w", "b", "a", "y"):
        assert word in shown, word
    assert "mul 0.5" in shown
    assert ("f32 2×8×10×10" in shown) == built


def test_picture_before_build_has_no_frames() -> None:
    picture = make(False).plot()
    assert regions(picture) == []
    assert "6 operations, not built" in texts(picture)


def test_picture_frames_are_the_steps_of_the_plan() -> None:
    g = make()
    found = regions(g.plot())
    assert [group.get("data-step") for group in found] == [str(i + 1) for i in range(len(found))]
    assert len(found) == len(g.plan.report["steps"])
    for step, group in zip(g.plan.report["steps"], found, strict=True):
        shown = [element.text for element in group.iter(f"{NAMESPACE}text")]
        assert f"{group.get('data-step')}  {step['family']}" in shown
        for operation in step["operations"]:
            assert operation["name"].split("'")[1] in shown


def test_picture_of_a_loaded_plan() -> None:
    g = make()
    loaded = weft.Graph().deserialize(g.serialize())
    shown = texts(loaded.plan.plot())
    for word in ("conv", "pool", "both", "x", "y"):
        assert word in shown
    assert len(regions(loaded.plan.plot())) == len(g.plan.report["steps"])


def rectangles(picture: str, style: str) -> list[tuple[float, float, float, float]]:
    found = [e for e in ET.fromstring(picture).iter(f"{NAMESPACE}rect") if e.get("class") == f"w-{style}"]
    return [
        (float(e.get("x", 0)), float(e.get("y", 0)), float(e.get("width", 0)), float(e.get("height", 0)))
        for e in found
    ]


@pytest.mark.parametrize("built", [False, True])
def test_picture_boxes_do_not_overlap(built: bool) -> None:
    picture = make(built).plot()
    boxes = rectangles(picture, "box") + rectangles(picture, "pill") + rectangles(picture, "out")
    assert len(boxes) == 6 + 3 + 2
    for (x, y, width, height), (u, v, wide, high) in combinations(boxes, 2):
        assert x + width <= u + 0.1 or u + wide <= x + 0.1 or y + height <= v + 0.1 or v + high <= y + 0.1
    (page,) = rectangles(picture, "page")
    for x, y, width, height in boxes:
        assert x >= 0
        assert y >= 0
        assert x + width <= page[2]
        assert y + height <= page[3]


def test_picture_cuts_long_names_and_keeps_them_as_titles() -> None:
    name = "an_operation_with_a_name_that_is_far_too_long_for_any_box_of_this_picture"
    picture = make(long_name=name).plot()
    assert name not in texts(picture)
    cut = next(word for word in texts(picture) if word.startswith("an_operation") and "…" in word)
    assert svg.text_width(cut, 13, bold=True) <= 200
    assert any((e.text or "").startswith(name) for e in ET.fromstring(picture).iter(f"{NAMESPACE}title"))


def test_shortening_a_graph_tries_what_can_be_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    width = svg.text_width
    monkeypatch.setattr(svg, "text_width", lambda text, *of: (seen.append(len(text)), width(text, *of))[1])
    shown = svg.cut("begin" + "m" * 40_000 + "end", 190, 13, bold=True)
    assert (shown[:5], shown[-3:]) == ("begin", "end")
    assert width(shown, 13, bold=True) <= 190
    assert sum(seen) < 5_000
    assert svg.cut("short", 190, 13) == "short"


def test_plot_writes_a_file_and_serves_notebooks(tmp_path: Path) -> None:
    g = make()
    text = plot(g, tmp_path / "g.svg")
    assert (tmp_path / "g.svg").read_text(encoding="utf-8") == text == g.plot() == g._repr_svg_()
    assert g.plan._repr_svg_() == draw(picture_of_report(g.plan.report))
    assert "prefers-color-scheme:dark" in text


def test_picture_is_the_same_every_time() -> None:
    g = make()
    assert draw(picture_of_graph(g)) == draw(picture_of_graph(g))


def test_layout_goes_down_and_spreads() -> None:
    boxes = [Box(20, 10) for _ in range(6)]
    edges = [Edge(0, 1), Edge(0, 2), Edge(1, 3), Edge(2, 3), Edge(0, 3), Edge(4, 3), Edge(3, 5)]
    placed = place(boxes, edges, 5, 8)
    assert [box.layer for box in boxes] == [0, 1, 1, 2, 1, 3]
    for edge, route in zip(edges, placed.routes, strict=True):
        heights = [y for _, y in route]
        assert heights == sorted(heights)
        assert route[0][1] == boxes[edge.source].y + boxes[edge.source].height
        assert route[-1] == (pytest.approx(boxes[edge.target].x), boxes[edge.target].y)
    for a, b in combinations(boxes, 2):
        if a.layer == b.layer:
            assert abs(a.x - b.x) >= 25 - 1e-9
    assert min(box.x - box.width / 2 for box in boxes) >= -1e-9
    assert max(box.x + box.width / 2 for box in boxes) <= placed.width + 1e-9


@pytest.mark.parametrize("ends", [(7, 0), (0, -6), (5, 3)])
@pytest.mark.parametrize("pieces", [1, 2])
def test_layout_makes_lines_straight(ends: tuple[float, float], pieces: int) -> None:
    """A line is vertical from its start on one box to its end on another, also if it passes a layer."""
    boxes = [Box(20, 10) for _ in range(pieces + 1)]
    edges = [Edge(0, pieces, *ends), *(Edge(i, i + 1, weight=0.0) for i in range(pieces) if pieces > 1)]
    (route, *_) = place(boxes, edges, 5, 8).routes
    assert [x for x, _ in route] == pytest.approx([boxes[0].x + ends[0]] * len(route), abs=0.05)
    assert boxes[-1].x + ends[1] == pytest.approx(route[-1][0])


@pytest.mark.parametrize("built", [False, True])
def test_picture_shows_names_in_full_that_fit(built: bool) -> None:
    """Names of operations and tensors that are wider than the least box; shapes of many dims."""
    g = weft.Graph("wide", io_data_type="f32", handle=weft.create_handle("cpu"))
    for length in (8, 14, 20):
        x = g.tensor([101, 102, 103, 104, 105], name="i" * 3 + "n" * length)
        a, b = g.tensor([7, 7]), g.tensor([7, 7], name="c" * length)
        g.relu(x, name="e" * length).set_name("o" * length).set_output(True)
        g.add(a, b, name="l" * length).set_output(True)
    assert not [word for word in texts((g.build() if built else g).plot()) if "…" in word]


def test_layout_of_nothing() -> None:
    placed = place([], [], 5, 8)
    assert (placed.width, placed.height, placed.routes) == (0.0, 0.0, [])


@pytest.mark.parametrize(
    ("least", "most", "expected"),
    [
        (0.13, 2.31, [0.0, 1.0, 2.0, 3.0]),
        (0.8, 1.0, [0.8, 0.85, 0.9, 0.95, 1.0]),
        (5, 5, None),
    ],
)
def test_ticks_are_round_and_span(least: float, most: float, expected: list[float] | None) -> None:
    found = ticks(least, most)
    assert found[0] <= least
    assert found[-1] >= most
    assert len(found) > 1
    assert expected is None or found == pytest.approx(expected)


def test_chart_has_its_curves(tmp_path: Path) -> None:
    panels = [
        Panel("loss", {"training": [2.0, 1.0, 0.5], "held out": [2.0, 1.2, 0.51]}),
        Panel("accuracy", {"held out": [0.5, 0.9, 0.975]}, is_percent=True),
    ]
    picture = chart("learning", panels, path=tmp_path / "c.svg")
    assert (tmp_path / "c.svg").read_text(encoding="utf-8") == picture
    shown = texts(picture)
    for word in ("learning", "loss", "accuracy", "epoch", "training 0.5", "held out 0.51", "held out 97.5 %"):
        assert word in shown, shown
    heights = [float(m[1]) for m in re.finditer(r'y="([\d.]+)"[^>]*>(?:training|held out) 0\.5', picture)]
    assert abs(heights[0] - heights[1]) >= 13.9


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_elsewhere_is_a_line_per_part() -> None:
    stream = io.StringIO()
    progress = Progress(2, 3, stream=stream)
    for part in (1, 2):
        for step in (1, 2, 3):
            progress.step(part, step, "loss 1")
        progress.finish_part(part, f"loss {part}")
    assert stream.getvalue() == "  epoch 1/2  loss 1\n  epoch 2/2  loss 2\n"


def test_progress_on_a_terminal_is_one_line() -> None:
    stream = _Terminal()
    progress = Progress(2, 1, stream=stream)
    progress.finish_part(1, "half")
    progress.finish_part(2, "all")
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert "█" * 12 + " " * 12 + " epoch 1/2  half" in text
    assert "█" * 24 + " epoch 2/2  all" in text

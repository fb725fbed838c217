"""Diagram of a graph as SVG: operations are boxes, tensors are lines labelled with type and shape. After
build, the steps of the plan are shaded frames around the operations that each one fuses.

The layout has two levels: the operations inside each frame, then the frames among the graph's inputs and
outputs. So no line crosses a box, and no frame contains an operation of another step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft import backend, dtypes
from weft.arguments import counted
from weft.errors import BadParameterError
from weft.explain import amount, short_name
from weft.lowering import Nested
from weft.plot import svg
from weft.plot.layout import Box, Edge, Placed, place
from weft.tensor import Tensor

if TYPE_CHECKING:
    from weft.graphs import Graph
    from weft.plan import Plan

MARGIN, HEADER, PADDING, TITLE = 16.0, 18.0, 12.0, 34.0
GAP_X, GAP_Y, INNER_GAP_Y = 26.0, 34.0, 22.0
NAME_SIZE, KIND_SIZE, SHAPE_SIZE = 13.0, 11.0, 10.0
WIDEST_NAME = 190.0
# Colours of frames, by a substring of the family's name.
_FAMILY_COLOURS = {
    "reference": "grey",
    "map": "green",
    "row": "amber",
    "channel": "amber",
    "window": "violet",
    "attention": "rose",
    "conv": "blue",
    "gemm": "blue",
    "matmul": "blue",
    "contraction": "blue",
}


@dataclass
class Value:
    """A tensor in the diagram."""

    name: str
    shape: str
    is_virtual: bool


@dataclass
class Op:
    """An operation in the diagram; inputs and outputs are keys of values."""

    name: str
    kind: str
    inputs: list[int]
    outputs: list[int]


@dataclass
class Region:
    """The operations that one step of a plan computes."""

    ops: list[int]
    label: str = ""
    note: str = ""
    colour: str = ""
    """Empty if there is no plan yet; then no frame is drawn."""


@dataclass
class Picture:
    """The content of a diagram."""

    title: str
    note: str
    values: dict[int, Value]
    ops: list[Op]
    regions: list[Region]


# ---- From graphs and reports ----


def picture_of_graph(graph: Graph) -> Picture:
    """The operations of a graph, with the plan's steps as frames if it is built."""
    keys = {tensor: i for i, tensor in enumerate(graph._tensors)}
    is_marked = graph.is_validated or any(tensor.get_output() for tensor in keys)
    values = {}
    for tensor, i in keys.items():
        is_inner = tensor.is_virtual and (is_marked or tensor.is_read)
        values[i] = Value(
            "" if "::" in tensor.name else tensor.name, _shape(tensor.dims, tensor.dtype), is_inner
        )
    ops = []
    for operation in graph._operations:
        rows = backend.operations()[operation.kind].rows
        inputs: list[int] = []
        outputs = [keys[tensor] for tensor in operation.results.values()]
        for key, value in operation.values.items():
            side = outputs if rows[key][0].role == "output" else inputs
            side += [keys[tensor] for tensor in _tensors_in(value) if not tensor.is_constant]
        ops.append(Op(operation.name, _kind(operation.kind, operation.values), inputs, outputs))
    try:
        plan = graph.plan
    except BadParameterError:  # not built yet
        plan = None
    title = graph.name or "graph"
    if plan is None:
        note = f"{counted(len(ops), 'operation')}, not built"
        return Picture(title, note, values, ops, [Region([i]) for i in range(len(ops))])
    by_uid = {tensor.uid: i for tensor, i in keys.items()}
    maker = {key: i for i, op in enumerate(ops) for key in op.outputs}
    return Picture(
        title, _plan_note(plan.report), values, ops, _regions(plan.report, by_uid, maker, len(ops))
    )


def picture_of_report(report: Mapping[str, Any]) -> Picture:
    """The diagram of a plan without its graph, such as one loaded from a file, from its report."""
    tensors = report["tensors"]
    values = {
        i: Value(
            tensor["name"] or "",
            _shape(tensor["dims"], dtypes.data_type_of(tensor["type"])),
            tensor["virtual"] and tensor["written"],
        )
        for i, tensor in enumerate(tensors)
    }
    by_uid = {tensor["uid"]: i for i, tensor in enumerate(tensors)}
    ops = []
    for step in report["steps"]:
        for operation in step["operations"]:
            operands = [(by_uid[operand["uid"]], operand["output"]) for operand in operation["operands"]]
            inputs = [key for key, is_output in operands if not is_output]
            outputs = [key for key, is_output in operands if is_output]
            kind = operation["name"].partition(" '")[0]
            ops.append(Op(short_name(operation["name"]), kind, inputs, outputs))
    maker = {key: i for i, op in enumerate(ops) for key in op.outputs}
    regions = _regions(report, by_uid, maker, len(ops))
    return Picture(short_name(report["graph"]), _plan_note(report), values, ops, regions)


def _regions(
    report: Mapping[str, Any], by_uid: Mapping[Any, int], maker: Mapping[int, int], count: int
) -> list[Region]:
    """The steps of a plan. Operations are identified by the tensors that they write; an operation that no
    step computes gets a region of its own."""
    regions: list[Region] = []
    placed: set[int] = set()
    for number, step in enumerate(report["steps"], 1):
        written = [
            by_uid[operand["uid"]]
            for operation in step["operations"]
            for operand in operation["operands"]
            if operand["output"] and operand["uid"] in by_uid
        ]
        ops = sorted({maker[key] for key in written if key in maker} - placed)
        placed.update(ops)
        words = next((colour for word, colour in _FAMILY_COLOURS.items() if word in step["family"]), "teal")
        regions.append(Region(ops, f"{number}  {step['family']}", amount(step["seconds"], "s"), words))
    return [region for region in regions if region.ops] + [
        Region([i]) for i in range(count) if i not in placed
    ]


def _plan_note(report: Mapping[str, Any]) -> str:
    steps = len(report["steps"])
    return (
        f"{report['engine']} on {report['device']['kind']}:{report['device']['ordinal']} · "
        f"{counted(steps, 'step')} · {amount(report['seconds'], 's')} predicted"
    )


def _tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Nested):
        return value.operands()
    return [item for item in value if isinstance(item, Tensor)] if isinstance(value, (list, tuple)) else []


def _kind(kind: str, values: Mapping[str, Any]) -> str:
    """The label of an operation, including its numeric options: relu, reduction add, mul 0.5."""
    mode = values.get("mode")
    word = str(getattr(mode, "name", mode or "")).lower().removesuffix("_fwd").replace("_bwd", "_backward")
    tensors = [tensor for value in values.values() for tensor in _tensors_in(value)]
    numbers = [tensor.value for tensor in tensors if tensor.is_constant]
    shown = "".join(f" {number:.4g}" for number in numbers if isinstance(number, (int, float)))
    if kind == "pointwise" and word:
        return word + shown
    return (
        kind + (f" {word}" if word and kind in ("reduction", "resample", "resample_backward") else "") + shown
    )


def _shape(dims: Sequence[int], type_: Any) -> str:
    kind = dtypes.of(type_).name if type_ is not None else ""
    return f"{kind} {'×'.join(map(str, dims)) or '?'}".strip()


# ---- Boxes ----


@dataclass
class _Frame:
    """A region with its operations placed inside."""

    region: Region
    boxes: list[Box]
    placed: Placed
    ports_in: dict[int, float]
    """Where a value enters, relative to the frame's middle."""
    ports_out: dict[int, float]
    inner: float
    """The gap between the frame's edge and its content."""
    header: float
    width: float = field(init=False)
    height: float = field(init=False)

    def __post_init__(self) -> None:
        self.width = max(self.placed.width + 2 * self.inner, self._label_width())
        self.height = self.placed.height + self.header

    def _label_width(self) -> float:
        if not self.header:
            return 0.0
        label, note = self.region.label, self.region.note
        return svg.text_width(label, KIND_SIZE, bold=True) + svg.text_width(note, KIND_SIZE) + 44


def _title_of(op: Op) -> tuple[str, str]:
    """The two lines of an operation's box. The kind comes first if the name was generated."""
    head, _, number = op.name.rpartition("_")
    is_automatic = number.isdigit() and (head in op.kind or head == "pointwise")
    return (op.kind, "") if is_automatic or op.name == op.kind else (op.name, op.kind)


def _cells(op: Op, picture: Picture, used: set[int]) -> list[int]:
    """The outputs that another operation reads or that are outputs of the graph."""
    return [key for key in op.outputs if key in used or not picture.values[key].is_virtual] or op.outputs[:1]


def _cell_text(picture: Picture, key: int) -> str:
    return picture.values[key].shape


def _op_box(op: Op, cells: list[int], picture: Picture) -> Box:
    name, kind = _title_of(op)
    wide = max(
        svg.text_width(name, NAME_SIZE, bold=True) + 24,
        svg.text_width(kind, KIND_SIZE) + 24,
    )
    shapes = sum(svg.text_width(_cell_text(picture, key), SHAPE_SIZE, mono=True) + 16 for key in cells)
    return Box(max(min(wide, WIDEST_NAME + 24), shapes, 84), 26 + (15 if kind else 0) + 19)


def _cell_offsets(box: Box, cells: list[int]) -> dict[int, float]:
    """The middles of an operation's output cells, relative to the box's middle."""
    part = box.width / len(cells)
    return {key: -box.width / 2 + part * (i + 0.5) for i, key in enumerate(cells)}


def _make_frame(region: Region, picture: Picture, used: set[int], comes_from: Mapping[int, float]) -> _Frame:
    """Places the operations of a region, with a port for each value that enters or leaves. `comes_from` has
    the horizontal positions from which values enter, if known."""
    ops = [picture.ops[i] for i in region.ops]
    cells = [_cells(op, picture, used) for op in ops]
    boxes = [_op_box(op, shown, picture) for op, shown in zip(ops, cells, strict=True)]
    offsets = [_cell_offsets(box, shown) for box, shown in zip(boxes, cells, strict=True)]
    producers = {key: i for i, op in enumerate(ops) for key in op.outputs}
    read_outside = {key for i, op in enumerate(picture.ops) if i not in region.ops for key in op.inputs}
    entering = list(dict.fromkeys(key for op in ops for key in op.inputs if key not in producers))
    entering.sort(key=lambda key: comes_from.get(key, 0.0))
    leaving = [key for key in producers if not picture.values[key].is_virtual or key in read_outside]
    edges, ports_in, ports_out = [], {}, {}
    for key in entering:
        ports_in[key] = len(boxes)
        boxes.append(Box(8.0, 0.0, "top"))
    for i, op in enumerate(ops):
        edges += _operand_edges(op, i, producers, offsets, ports_in, boxes[i].width)
    for key in leaving:
        ports_out[key] = len(boxes)
        edges.append(Edge(producers[key], len(boxes), offsets[producers[key]].get(key, 0.0), 0.0, 0.5))
        boxes.append(Box(8.0, 0.0, "bottom"))
    has_frame = bool(region.colour)
    placed = place(boxes, edges, GAP_X * 0.8, INNER_GAP_Y if has_frame else 0.0, True)
    frame = _Frame(region, boxes, placed, {}, {}, PADDING if has_frame else 0.0, HEADER if has_frame else 0.0)
    frame.ports_in = {key: boxes[i].x - placed.width / 2 for key, i in ports_in.items()}
    frame.ports_out = {key: boxes[i].x - placed.width / 2 for key, i in ports_out.items()}
    return frame


def _operand_edges(
    op: Op,
    i: int,
    produced: Mapping[int, int],
    offsets: Sequence[Mapping[int, float]],
    ports: Mapping[int, int],
    width: float,
) -> list[Edge]:
    """The lines into an operation, next to each other on its upper edge in the order of its operands."""
    keys = list(dict.fromkeys(op.inputs))
    if all(key in ports for key in keys):
        keys.sort(key=lambda key: ports[key])
    room = min(24.0, (width - 24) / max(len(keys), 1))
    edges = []
    for k, key in enumerate(keys):
        at = (k - (len(keys) - 1) / 2) * room
        if key in produced:
            edges.append(Edge(produced[key], i, offsets[produced[key]].get(key, 0.0), at, 4.0))
        else:
            edges.append(Edge(ports[key], i, 0.0, at))
    return edges


# ---- Drawing ----


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """A line that leaves and arrives vertically."""
    data = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        if abs(x0 - x1) < 0.05:
            data += f"V{y1:.1f}"
        else:
            middle = (y0 + y1) / 2
            data += f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
    return data


def _arrow(x: float, y: float) -> str:
    return f'<path class="w-tip" d="M{x - 3.5:.1f} {y - 6.5:.1f}h7L{x:.1f} {y:.1f}z"/>'


def _draw_op(op: Op, box: Box, cells: list[int], picture: Picture, x: float, y: float) -> str:
    """A box: name, kind, and a cell per result with its type and shape. (x, y) is the upper left corner."""
    name, kind = _title_of(op)
    middle = x + box.width / 2
    parts = [svg.rectangle(x, y, box.width, box.height, "box")]
    shown = svg.cut(name, box.width - 20, NAME_SIZE, bold=True)
    parts.append(svg.text(middle, y + 18, shown, NAME_SIZE, bold=True))
    if kind:
        parts.append(svg.text(middle, y + 33, svg.cut(kind, box.width - 16, KIND_SIZE), KIND_SIZE, "soft"))
    bottom = y + box.height
    parts.append(svg.path(f"M{x + 1:.1f} {bottom - 18:.1f}h{box.width - 2:.1f}", "rule", 1))
    part = box.width / len(cells)
    for i, key in enumerate(cells):
        words = svg.cut(_cell_text(picture, key), part - 6, SHAPE_SIZE, mono=True)
        parts.append(svg.text(x + part * (i + 0.5), bottom - 5.5, words, SHAPE_SIZE, "soft", mono=True))
        if i:
            parts.append(svg.path(f"M{x + part * i:.1f} {bottom - 18:.1f}v17", "rule", 1))
    results = ", ".join(f"{picture.values[key].name} {picture.values[key].shape}".strip() for key in cells)
    return svg.titled(f"{op.name}: {op.kind} → {results}", *parts)


def _draw_frame(frame: _Frame, picture: Picture, used: set[int], x: float, y: float) -> list[str]:
    """A frame with its contents. (x, y) is the upper left corner."""
    region, parts = frame.region, []
    if region.colour:
        parts.append(svg.rectangle(x, y, frame.width, frame.height, region.colour, 9))
    left = x + (frame.width - frame.placed.width) / 2
    top = y + frame.header
    for route in frame.placed.routes:
        points = [(left + px, top + py) for px, py in route]
        parts.append(svg.path(_curve(points)))
        if route[-1][1] < frame.placed.height - 0.5:
            parts.append(_arrow(*points[-1]))
    for i, box in zip(region.ops, frame.boxes, strict=False):
        op = picture.ops[i]
        cells = _cells(op, picture, used)
        parts.append(_draw_op(op, box, cells, picture, left + box.x - box.width / 2, top + box.y))
    if region.colour:
        parts.append(svg.rectangle(x, y, frame.width, HEADER, region.colour, 9))
        parts.append(svg.text(x + 10, y + 13, region.label, KIND_SIZE, anchor="start", bold=True))
        note = svg.text(x + frame.width - 10, y + 13, region.note, KIND_SIZE, "soft", anchor="end")
        parts.append(note)
    return [
        f'<g class="w-region" data-step="{region.label.split()[0] if region.label else ""}">',
        *parts,
        "</g>",
    ]


def _pill_box(value: Value) -> Box:
    name = min(svg.text_width(value.name, KIND_SIZE, bold=True), WIDEST_NAME)
    shape = svg.text_width(value.shape, SHAPE_SIZE, mono=True)
    return Box(max(name, shape, 30) + 24, 34 if value.name else 22)


def _draw_pill(value: Value, box: Box, style: str, x: float, y: float) -> str:
    """A tensor with memory: name, type and shape. (x, y) is the upper left corner."""
    middle = x + box.width / 2
    parts = [svg.rectangle(x, y, box.width, box.height, style, box.height / 2)]
    if value.name:
        words = svg.cut(value.name, box.width - 20, KIND_SIZE, bold=True)
        parts.append(svg.text(middle, y + 14.5, words, KIND_SIZE, bold=True))
    shape = svg.cut(value.shape, box.width - 16, SHAPE_SIZE, mono=True)
    parts.append(svg.text(middle, y + box.height - 7, shape, SHAPE_SIZE, "soft", mono=True))
    return svg.titled(f"{value.name} {value.shape}".strip(), *parts)


@dataclass
class _Page:
    """All frames and pills with their positions."""

    inputs: list[int]
    frames: list[_Frame]
    outputs: list[int]
    boxes: list[Box]
    """Inputs, frames, outputs."""
    edges: list[Edge]
    origin: dict[int, tuple[int, float]]
    """The box from which a value leaves, and the position on it."""
    placed: Placed


def _make_page(picture: Picture, comes_from: Mapping[int, float]) -> _Page:
    used, produced = _used(picture), {key for op in picture.ops for key in op.outputs}
    frames = [_make_frame(region, picture, used, comes_from) for region in picture.regions]
    inputs = [key for key in picture.values if key in used and key not in produced]
    outputs = [key for key in picture.values if key in produced and not picture.values[key].is_virtual]
    boxes = [_pill_box(picture.values[key]) for key in inputs]
    boxes += [Box(frame.width, frame.height) for frame in frames]
    boxes += [_pill_box(picture.values[key]) for key in outputs]
    origin = {key: (i, 0.0) for i, key in enumerate(inputs)}
    for i, frame in enumerate(frames, len(inputs)):
        origin |= {key: (i, at) for key, at in frame.ports_out.items()}
    edges = []
    for i, frame in enumerate(frames, len(inputs)):
        for key, at in frame.ports_in.items():
            if key in origin:
                source, source_at = origin[key]
                edges.append(Edge(source, i, source_at, at, 4.0 if source >= len(inputs) else 1.0))
    first = len(inputs) + len(frames)
    edges += [Edge(origin[key][0], i, origin[key][1], 0.0, 0.5) for i, key in enumerate(outputs, first)]
    return _Page(inputs, frames, outputs, boxes, edges, origin, place(boxes, edges, GAP_X, GAP_Y))


def _used(picture: Picture) -> set[int]:
    return {key for op in picture.ops for key in op.inputs}


def draw(picture: Picture) -> str:
    """The SVG text of a diagram."""
    page = _make_page(picture, {})
    # Second pass: order the ports of each frame by the positions from which their lines arrive.
    page = _make_page(picture, {key: page.boxes[i].x + at for key, (i, at) in page.origin.items()})
    title_width = svg.text_width(picture.title, 14, bold=True)
    heading = title_width + svg.text_width(picture.note, KIND_SIZE) + 24
    width = max(page.placed.width, heading) + 2 * MARGIN
    left, top = (width - page.placed.width) / 2, TITLE + MARGIN / 2
    parts = [
        svg.text(MARGIN, 24, picture.title, 14, anchor="start", bold=True),
        svg.text(MARGIN + title_width + 12, 24, picture.note, KIND_SIZE, "soft", anchor="start"),
    ]
    first, end = len(page.inputs), len(page.inputs) + len(page.frames)
    for edge, route in zip(page.edges, page.placed.routes, strict=True):
        points = [(left + x, top + y) for x, y in route]
        parts.append(svg.path(_curve(points)))
        if not (first <= edge.target < end and page.frames[edge.target - first].region.colour):
            parts.append(_arrow(*points[-1]))
    corners = [(left + box.x - box.width / 2, top + box.y) for box in page.boxes]
    for i, key in enumerate(page.inputs):
        parts.append(_draw_pill(picture.values[key], page.boxes[i], "pill", *corners[i]))
    for i, frame in enumerate(page.frames, first):
        parts += _draw_frame(frame, picture, _used(picture), *corners[i])
    for i, key in enumerate(page.outputs, end):
        parts.append(_draw_pill(picture.values[key], page.boxes[i], "out", *corners[i]))
    height = top + page.placed.height + MARGIN
    return svg.page(width, height, parts, f"{picture.title}: {picture.note}")


def plot(subject: Graph | Plan, path: str | Path | None = None) -> str:
    """Draws a graph or a plan. Returns the SVG text, and writes it to a file if a path is given."""
    from weft.graphs import Graph

    text = draw(
        picture_of_graph(subject) if isinstance(subject, Graph) else picture_of_report(subject.report)
    )
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text

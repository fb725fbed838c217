"""Recurrent networks: layers of LSTM, GRU and RNN, of which torch's operators are composed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.enums import reshape_mode, rnn_mode
from weft.errors import NotSupportedError
from weft.torch.ops import FLOATS, OPERATORS, differentiable, operator, stands_for
from weft.torch.plans import GraphBuilder

aten = torch.ops.aten
F = torch.nn.functional

GATES = {"LSTM": 4, "GRU": 3, "TANH": 1, "RELU": 1}
SAVED = {"LSTM": 5, "GRU": 4, "TANH": 0, "RELU": 0}
"""Numbers per unit and step: rows of the weights, and what the backward pass needs."""

_ARGUMENTS = (
    "Tensor x, Tensor hx, Tensor? cx, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh, Tensor? w_hr, "
    "Tensor? lengths"
)
CPU = ("cpu",)
"""Where they replace torch's operators: on a GPU torch calls cuDNN, which multiplies on tensor cores."""
_TENSORS = 8
"""Arguments that have a gradient: all tensors but the lengths."""


# ---- One layer and direction -------------------------------------------------------------------------------


def _fake(
    x: Any, hx: Any, cx: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, w_hr: Any, lengths: Any, mode: str,
    is_reverse: bool, train: bool,
) -> Any:  # fmt: skip
    steps, batch = x.shape[:2]
    units = w_hh.shape[0] // GATES[mode]
    saved = SAVED[mode] * units if train else 0
    return (
        x.new_empty(steps, batch, w_hh.shape[1]),
        torch.empty_like(hx, memory_format=torch.contiguous_format),
        x.new_empty(batch, units) if mode == "LSTM" else x.new_empty(0),
        x.new_empty(steps, batch, saved) if saved else x.new_empty(0),
    )


@operator(
    "recurrent_layer",
    schema=f"({_ARGUMENTS}, str mode, bool is_reverse, bool train) -> (Tensor, Tensor, Tensor, Tensor)",
    fake=_fake,
)
def _recurrent_layer(
    gb: GraphBuilder, x: Any, hx: Any, cx: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, w_hr: Any,
    lengths: Any, mode: str, is_reverse: bool, train: bool,
) -> None:  # fmt: skip
    products = gb.graph.matmul(gb.read(x), gb.read_permuted(w_ih, (1, 0), 3))
    if b_ih is not None:
        products = gb.graph.add(products, gb.read(b_ih, (1, 1, len(b_ih))))
    optional = [None if each is None else gb.read(each) for each in (b_hh, cx, lengths, w_hr)]
    bias, cell, seq_len, projection = optional
    y, hy, cy, gates = gb.graph.recurrence(
        products, gb.read(w_hh), bias, gb.read(hx), cell, seq_len, projection, rnn_mode[mode], is_reverse
    )
    gb.write(0, y)
    gb.write(1, hy)
    for i, (result, is_wanted) in enumerate(((cy, True), (gates, train)), 2):
        if result is not None and is_wanted:
            gb.write(i, result)


def _fake_backward(dy: Any, dhy: Any, dcy: Any, *arguments: Any) -> Any:
    wanted = arguments[-1]
    return tuple(
        torch.empty_like(each, memory_format=torch.contiguous_format)
        if is_wanted and each is not None
        else None
        for each, is_wanted in zip(arguments[:_TENSORS], wanted, strict=True)
    )


@operator(
    "recurrent_layer_backward",
    schema=f"(Tensor dy, Tensor dhy, Tensor dcy, {_ARGUMENTS}, Tensor y, Tensor gates, str mode, "
    f"bool is_reverse, bool[{_TENSORS}] output_mask) -> ({', '.join(['Tensor'] * _TENSORS)})",
    fake=_fake_backward,
)
def _recurrent_layer_backward(
    gb: GraphBuilder, dy: Any, dhy: Any, dcy: Any, x: Any, hx: Any, cx: Any, w_ih: Any, w_hh: Any, b_ih: Any,
    b_hh: Any, w_hr: Any, lengths: Any, y: Any, gates: Any, mode: str, is_reverse: bool,
    wanted: Sequence[bool],
) -> None:  # fmt: skip
    g, is_lstm = gb.graph, mode == "LSTM"
    cell, seq_len, projection = (None if each is None else gb.read(each) for each in (cx, lengths, w_hr))
    of_products, dhx, dcx, previous, of_recurrent, projected, whole = g.recurrence_backward(
        gb.read(dy), gb.read(y), gb.read(w_hh), gb.read(gates) if SAVED[mode] else None, gb.read(hx), cell,
        gb.read(dhy), gb.read(dcy) if is_lstm else None, seq_len, projection, rnn_mode[mode], is_reverse,
    )  # fmt: skip
    of_recurrent = of_products if of_recurrent is None else of_recurrent
    rows = x.shape[0] * x.shape[1]

    def flat(value: Any, size: int) -> Any:
        return g.reshape(value, reshape_mode=reshape_mode.LOGICAL).set_dim((1, rows, size))

    def product(of_rows: Any, size: int, other: Any) -> Any:
        """The product of all rows, transposed, with those of another matrix."""
        return g.matmul(g.transpose(flat(of_rows, size), permutation=[0, 2, 1]), other)

    def total(of_rows: Any) -> Any:
        return g.reduction(of_rows, mode="ADD").set_dim((1, 1, w_hh.shape[0]))

    all_gates, width = w_hh.shape
    results: dict[int, Any] = {}
    if wanted[0]:
        results[0] = g.matmul(of_products, gb.read(w_ih, (1, *w_ih.shape), (w_ih.numel(), *w_ih.stride())))
    if wanted[3]:
        results[3] = product(of_products, all_gates, gb.read_as(x, (1, rows, x.shape[2])))
    if wanted[4]:
        results[4] = product(of_recurrent, all_gates, flat(previous, width))
    for i, gradient in ((5, of_products), (6, of_recurrent)):
        if wanted[i]:
            results[i] = total(gradient)
    if wanted[7]:
        results[7] = product(projected, width, flat(whole, w_hr.shape[1]))
    if wanted[0]:
        gb.write(0, results[0])
    for i, state in ((1, dhx), (2, dcx)):
        if wanted[i]:
            gb.write(i, state)
    for i in (3, 4, 7):
        if wanted[i]:
            gb.write_as(i, results[i], (1, *gb.outputs[i].shape))
    for i in (5, 6):
        if wanted[i]:
            gb.write_as(i, results[i], (1, 1, all_gates))


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, ctx.mode, ctx.is_reverse, _ = inputs
    y, _, _, gates = output
    ctx.mark_non_differentiable(gates)
    ctx.save_for_backward(*tensors, y, gates)


def _grad(ctx: Any, dy: Any, dhy: Any, dcy: Any, _: Any) -> Any:
    needs, tensors = ctx.needs_input_grad, ctx.saved_tensors
    wanted = [bool(need) for need in needs[:_TENSORS]]
    results = torch.ops.weft.recurrent_layer_backward(
        dy, dhy, dcy, *tensors, ctx.mode, ctx.is_reverse, wanted
    )
    found = [g if is_wanted else None for g, is_wanted in zip(results, wanted, strict=True)]
    return (*found, None, None, None, None)


def _step(mode: str, x: Any, r: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
    """The hidden and the cell state after a step, and what is saved of it."""
    if mode == "LSTM":
        i, f, g, o = (x + r).chunk(4, -1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        c = f * c + i * g
        return o * torch.tanh(c), c, torch.cat((i, f, g, o, c), -1)
    if mode == "GRU":
        (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), r.chunk(3, -1)
        reset, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
        n = torch.tanh(xn + reset * hn)
        return (1 - z) * n + z * h, c, torch.cat((reset, z, n, hn), -1)
    return (torch.tanh if mode == "TANH" else torch.relu)(x + r), c, None


def _reference(
    x: Any, hx: Any, cx: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, w_hr: Any, lengths: Any, mode: str,
    is_reverse: bool, train: bool,
) -> Any:  # fmt: skip
    products, h, c = F.linear(x, w_ih, b_ih), hx, cx
    steps = len(x)
    states, saved = [x] * steps, [x] * steps
    for k in reversed(range(steps)) if is_reverse else range(steps):
        after, now, gates = _step(mode, products[k], F.linear(h, w_hh, b_hh), h, c)
        after = after if w_hr is None else F.linear(after, w_hr)
        if lengths is None:
            h, c, states[k] = after, now, after
        else:
            runs = (lengths > k)[:, None]
            h, states[k] = torch.where(runs, after, h), torch.where(runs, after, 0)
            c = now if c is None else torch.where(runs, now, c)
            gates = None if gates is None else torch.where(runs, gates, 0)
        saved[k] = gates
    is_saved = train and SAVED[mode]
    return (
        torch.stack(states),
        h,
        c if mode == "LSTM" else x.new_empty(0),
        torch.stack(saved).detach() if is_saved else x.new_empty(0),
    )


def _backward_reference(dy: Any, dhy: Any, dcy: Any, *arguments: Any) -> Any:
    *tensors, lengths, _, _, mode, is_reverse, wanted = arguments
    at = [i for i, is_wanted in enumerate(wanted) if is_wanted]

    def compute(*leaves: Any) -> Any:
        whole = [*tensors, lengths, mode, is_reverse, False]
        for i, leaf in zip(at, leaves, strict=True):
            whole[i] = leaf
        y, hy, cy, _ = _reference(*whole)
        return (y, hy, cy) if mode == "LSTM" else (y, hy)

    _, pull = torch.func.vjp(compute, *(tensors[i] for i in at))
    losses = (dy, dhy, dcy) if mode == "LSTM" else (dy, dhy)
    found = dict(zip(at, pull(losses), strict=True))
    return tuple(found.get(i) for i in range(_TENSORS))


differentiable("recurrent_layer", _keep, _grad, _reference, _backward_reference)


# ---- Torch's operators -------------------------------------------------------------------------------------


def _check(where: str, x: Any, states: Sequence[Any], params: Sequence[Any]) -> None:
    tensors = [x, *states, *params]
    if any(type(each) not in (torch.Tensor, torch.nn.Parameter) for each in tensors):
        raise NotSupportedError(f"{where}: a tensor of a subclass. Leave it to torch.")
    if x.dtype not in FLOATS or any(each.dtype != x.dtype for each in tensors):
        raise NotSupportedError(f"{where}: operands of different types, or no floats. Leave it to torch.")
    if any(each.device != x.device for each in tensors):
        raise NotSupportedError(f"{where}: operands on different devices. Leave it to torch.")
    if not all(each.numel() for each in tensors):
        raise NotSupportedError(f"{where}: a tensor without elements. Leave it to torch.")


def _layers(
    mode: str, x: Any, h0: Any, c0: Any, lengths: Any, params: Sequence[Any], has_biases: bool, count: int,
    dropout: float, train: bool, bidirectional: bool,
) -> Any:  # fmt: skip
    """All layers on [T, B, I]: the output, and the last hidden and cell states."""
    _check(mode, x, [h0] if c0 is None else [h0, c0], params)
    ways = 2 if bidirectional else 1
    has_projection = c0 is not None and h0.shape[2] != c0.shape[2]
    each = 2 + 2 * has_biases + has_projection
    if len(params) != count * ways * each or h0.shape[0] != count * ways or h0.shape[1] != x.shape[1]:
        raise NotSupportedError(f"{mode}: weights or states do not fit. Leave it to torch.")
    hidden, cells = [], []
    keeps = torch.is_grad_enabled() and any(t.requires_grad for t in (x, h0, *params))
    for layer in range(count):
        outputs = []
        for way in range(ways):
            i = layer * ways + way
            w_ih, w_hh, *others = params[i * each : (i + 1) * each]
            biases = others[:2] if has_biases else (None, None)
            y, hy, cy, _ = OPERATORS["recurrent_layer"].apply(
                x, h0[i], None if c0 is None else c0[i], w_ih, w_hh, *biases,
                others[-1] if has_projection else None, lengths, mode, way == 1,
                keeps or (c0 is not None and torch.is_grad_enabled() and c0.requires_grad),
            )  # fmt: skip
            outputs.append(y)
            hidden.append(hy)
            cells.append(cy)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and train and layer < count - 1:
            x = F.dropout(x, dropout, True)
    return x, torch.stack(hidden), None if c0 is None else torch.stack(cells)


def _run(mode: str, x: Any, hx: Any, params: Any, options: Sequence[Any], batch_first: bool) -> Any:
    h0, c0 = hx if mode == "LSTM" else (hx, None)
    x = x.transpose(0, 1) if batch_first else x
    y, hy, cy = _layers(mode, x, h0, c0, None, params, *options)
    y = y.transpose(0, 1) if batch_first else y
    return (y, hy) if cy is None else (y, hy, cy)


def _run_packed(mode: str, data: Any, sizes: Any, hx: Any, params: Any, options: Sequence[Any]) -> Any:
    h0, c0 = hx if mode == "LSTM" else (hx, None)
    x, lengths = aten._pad_packed_sequence(data, sizes, False, 0.0, len(sizes))
    y, hy, cy = _layers(mode, x, h0, c0, lengths.to(data.device), params, *options)
    packed, _ = aten._pack_padded_sequence(y, lengths, False)
    return (packed, hy) if cy is None else (packed, hy, cy)


def _stand_in(mode: str, twin: Any) -> None:
    def serve(x: Any, hx: Any, params: Any, *options: Any) -> Any:
        return _run(mode, x, hx, params, options[:-1], options[-1])

    def serve_packed(data: Any, sizes: Any, hx: Any, params: Any, *options: Any) -> Any:
        return _run_packed(mode, data, sizes, hx, params, options)

    stands_for("recurrent_layer", twin.input, CPU, is_composite=True, others=None)(serve)
    stands_for("recurrent_layer", twin.data, CPU, is_composite=True, others=None)(serve_packed)


for _mode, _twin in (
    ("LSTM", aten.lstm),
    ("GRU", aten.gru),
    ("TANH", aten.rnn_tanh),
    ("RELU", aten.rnn_relu),
):
    _stand_in(_mode, _twin)

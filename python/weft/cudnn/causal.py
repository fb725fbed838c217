"""Causal convolutions on addresses: functions of cuDNN that are not graphs. The memory is on the default
device and contiguous in the order of the shape; work is enqueued on the given stream. cudnn.ops has the same
functions for torch tensors."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from weft import Graph
from weft.cudnn.ops import TAPS_MOST
from weft.enums import data_type, pointwise_mode
from weft.errors import BadParameterError

ACTIVATIONS = (pointwise_mode.IDENTITY, pointwise_mode.SWISH_FWD)
"""By cuDNN's numbers: identity, SiLU."""


class Kind(NamedTuple):
    """The parameters on which a plan depends."""

    is_last: bool  # channels are last, in sequences and in filters
    sizes: tuple[int, int, int, int]  # batch, channels, steps, taps
    dtype: data_type
    dtype_of_sums: data_type | None  # type of dweight and dbias; None for the forward pass
    activation: pointwise_mode
    has_bias: bool


class Ready(NamedTuple):
    """A plan, and the slots of its tensors in the order of the function's addresses."""

    plan: Any
    slots: list[int]


@functools.lru_cache(maxsize=256)
def _prepare(kind: Kind) -> Ready:
    g = Graph(compute_data_type="f64" if kind.dtype is data_type.DOUBLE else "f32")
    b, d, n, k = kind.sizes
    steps = ([n * d, 1, d], [1, d]) if kind.is_last else ([d * n, n, 1], [k, 1])
    x = g.tensor([b, d, n], steps[0], kind.dtype)
    weight = g.tensor([d, k], steps[1], kind.dtype)
    bias = g.tensor([d], [1], kind.dtype) if kind.has_bias else None
    ends = [x, weight, bias] if bias else [x, weight]
    if kind.dtype_of_sums is None:
        y = g.causal_conv1d(x, weight, bias, activation=kind.activation)
        results = [(y, kind.dtype, [b, d, n], steps[0])]
    else:
        dy = g.tensor([b, d, n], steps[0], kind.dtype)
        dx, dweight, dbias = g.causal_conv1d_backward(dy, x, weight, bias, activation=kind.activation)
        wide = kind.dtype_of_sums
        ends.append(dy)
        results = [(dx, kind.dtype, [b, d, n], steps[0]), (dweight, wide, [d, k], steps[1])]
        results.append((dbias, wide, [d], [1]))
    for tensor, type_, dims, strides in results:
        ends.append(tensor.set_output(True).set_data_type(type_).set_dim(dims).set_stride(strides))
    plan = g.build().plan
    return Ready(plan, [plan.index[end.get_uid()] for end in ends])


def _run(stream: int, addresses: list[int], kind: Kind) -> None:
    plan, slots = _prepare(kind)
    state = plan.thread.state
    for slot, address in zip(slots, addresses, strict=True):
        state.pointers[slot] = address
    plan.launch(state, None, stream)


def _kind(
    name: str, bias: int, sizes: tuple[int, int, int, int], dtype: int, sums: int | None, activation: int
) -> Kind:
    if not 2 <= sizes[3] <= TAPS_MOST[name]:
        raise ValueError(f"cudnn.{name}: kernel_size is {sizes[3]}, expected 2 to {TAPS_MOST[name]}.")
    if activation not in (0, 1):
        raise BadParameterError(f"cudnn.{name}: activation is {activation}. Use 0 (identity) or 1 (SiLU).")
    types = data_type(dtype), None if sums is None else data_type(sums)
    return Kind(name.endswith("nwh"), sizes, *types, ACTIVATIONS[activation], bool(bias))


def _forward(
    name: str, stream: int, x_ptr: int, weight_ptr: int, bias_ptr: int, out_ptr: int, batch: int, dim: int,
    seq_len: int, kernel_size: int, data_type: int, activation: int,
) -> None:  # fmt: skip
    kind = _kind(name, bias_ptr, (batch, dim, seq_len, kernel_size), data_type, None, activation)
    _run(stream, [x_ptr, weight_ptr, *([bias_ptr] if bias_ptr else []), out_ptr], kind)


def _backward(
    name: str, stream: int, x_ptr: int, weight_ptr: int, bias_ptr: int, dy_ptr: int, dx_ptr: int,
    dweight_ptr: int, dbias_ptr: int, batch: int, dim: int, seq_len: int, kernel_size: int, data_type: int,
    dw_data_type: int, activation: int,
) -> None:  # fmt: skip
    kind = _kind(name, bias_ptr, (batch, dim, seq_len, kernel_size), data_type, dw_data_type, activation)
    read = [x_ptr, weight_ptr, *([bias_ptr] if bias_ptr else []), dy_ptr]
    _run(stream, [*read, dx_ptr, dweight_ptr, dbias_ptr], kind)


def causal_conv1d_forward(
    stream: int, x_ptr: int, weight_ptr: int, bias_ptr: int, out_ptr: int, batch: int, dim: int, seq_len: int,
    kernel_size: int, data_type: int, activation: int,
) -> None:  # fmt: skip
    """x and out [batch, dim, seq_len], weight [dim, kernel_size], bias [dim] or 0. Types and activations are
    numbers of cuDNN's C API."""
    _forward("causal_conv1d", *locals().values())


def causal_conv1d_backward(
    stream: int, x_ptr: int, weight_ptr: int, bias_ptr: int, dy_ptr: int, dx_ptr: int, dweight_ptr: int,
    dbias_ptr: int, batch: int, dim: int, seq_len: int, kernel_size: int, data_type: int, dw_data_type: int,
    activation: int,
) -> None:  # fmt: skip
    """Gradients of causal_conv1d_forward; dweight and dbias have the type dw_data_type."""
    _backward("causal_conv1d", *locals().values())


def causal_conv1d_nwh_forward(
    stream: int, x_ptr: int, weight_ptr: int, bias_ptr: int, out_ptr: int, batch: int, dim: int, seq_len: int,
    kernel_size: int, data_type: int, activation: int,
) -> None:  # fmt: skip
    """Like causal_conv1d_forward, for x and out [batch, seq_len, dim] and weight [kernel_size, dim]."""
    _forward("causal_conv1d_nwh", *locals().values())


def causal_conv1d_nwh_backward(
    stream: int, x_ptr: int, weight_ptr: int, bias_ptr: int, dy_ptr: int, dx_ptr: int, dweight_ptr: int,
    dbias_ptr: int, batch: int, dim: int, seq_len: int, kernel_size: int, data_type: int, dw_data_type: int,
    activation: int,
) -> None:  # fmt: skip
    """Gradients of causal_conv1d_nwh_forward."""
    _backward("causal_conv1d_nwh", *locals().values())

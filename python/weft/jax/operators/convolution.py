"""Convolution. Layouts are told as jax.lax tells them: a letter for each dimension."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from weft import buffers
from weft.errors import BadParameterError
from weft.jax.calls import alike, call
from weft.jax.drawing import Drawing, Form, Operator
from weft.jax.operators import activations
from weft.tensor import Tensor

LAYOUTS = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}
"""Of image, filters and result, by the number of spatial dimensions; those that flax has."""


class _Geometry(NamedTuple):
    """Where the filters are laid, and how arrays lie."""

    layouts: tuple[str, str, str]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    def options(self) -> dict[str, Any]:
        """As the graph's methods have it."""
        before, behind = zip(*self.padding, strict=True)
        windows = {"stride": self.stride, "dilation": self.dilation}
        return {**windows, "pre_padding": before, "post_padding": behind}

    def order(self, i: int) -> list[int]:
        """The dimensions of image, filters or result in Weft's order: N C, or K C, then the spatial ones."""
        first = "OI" if i == 1 else "NC"
        spatial = [letter for letter in self.layouts[0] if letter not in "NC"]
        return [self.layouts[i].index(letter) for letter in (*first, *spatial)]

    def shown(self, i: int, shape: Sequence[int]) -> tuple[list[int], list[int]]:
        """Dims and strides in Weft's order."""
        steps = buffers.packed_strides(tuple(shape))
        return [shape[at] for at in self.order(i)], [steps[at] for at in self.order(i)]

    def result_shape(self, image: Sequence[int], filters: Sequence[int]) -> tuple[int, ...]:
        """What the result's layout makes of the arguments' shapes."""
        (n, _, *sizes), (k, _, *taps) = self.shown(0, image)[0], self.shown(1, filters)[0]
        dims = [n, k]
        for i, (size, tap) in enumerate(zip(sizes, taps, strict=True)):
            reach = (tap - 1) * self.dilation[i] + 1
            dims.append((size + sum(self.padding[i]) - reach) // self.stride[i] + 1)
        order = self.order(2)
        return tuple(dims[order.index(at)] for at in range(len(dims)))


class _Epilogue(NamedTuple):
    """What comes behind: y = activation(convolution + bias)."""

    has_bias: bool = False
    activation: str | None = None
    is_kept: bool = False
    """Whether what the activation is given is a result, too."""


# ---- Drawing -----------------------------------------------------------------------------------------------


def _read(d: Drawing, at: int, how: _Geometry, i: int) -> Tensor:
    return d.read(at, *how.shown(i, d.arguments[at].shape))


def _draw(d: Drawing, how: _Geometry, type_: Any, behind: _Epilogue) -> None:
    """Arguments: image, filters, then the bias if there is one."""
    g, shape = d.graph, how.result_shape(d.arguments[0].shape, d.arguments[1].shape)
    y = g.conv_fprop(_read(d, 0, how, 0), _read(d, 1, how, 1), **how.options())
    if behind.has_bias:
        y = g.bias(y, d.read(2, [1, *d.arguments[2].shape, *[1] * len(how.stride)]))
    given, y = y, activations.draw(g, behind.activation, y)
    for each in (y, given) if behind.is_kept else (y,):
        d.write(each, Form(shape, type_), *how.shown(2, shape))


def _draw_image(d: Drawing, how: _Geometry, shape: tuple[int, ...], type_: Any) -> None:
    """Arguments: the gradient of the result, filters. shape: the image's, of any batch."""
    shape = (d.arguments[0].shape[0], *shape[1:])
    dx = d.graph.conv_dgrad(_read(d, 0, how, 2), _read(d, 1, how, 1), **how.options())
    d.write(dx, Form(shape, type_), *how.shown(0, shape))


def _draw_filters(d: Drawing, how: _Geometry, shape: tuple[int, ...], type_: Any) -> None:
    """Arguments: image, the gradient of the result."""
    dw = d.graph.conv_wgrad(_read(d, 0, how, 0), _read(d, 1, how, 2), **how.options())
    d.write(dw, Form(shape, type_), *how.shown(1, shape))


_forward = Operator("conv", _draw, rows=[0])
_image = Operator("conv_dgrad", _draw_image, rows=[0])
_filters = Operator("conv_wgrad", _draw_filters)


# ---- Functions ---------------------------------------------------------------------------------------------


def conv(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    strides: int | Sequence[int] = 1,
    padding: str | int | Sequence[tuple[int, int]] = "SAME",
    dilation: int | Sequence[int] = 1,
    dimension_numbers: tuple[str, str, str] | None = None,
    activation: str | None = None,
) -> Any:
    """activation(convolution + bias), in one kernel.

    Args:
        x: image, [N, H, W, C]; of one to three spatial dimensions.
        w: filters, [H, W, C / groups, O]: how many groups there are follows from the channels.
        bias: [O]; optional.
        strides: of the filters, one number or one for each spatial dimension.
        padding: "SAME" or "VALID" as jax.lax has it, a number, or a pair for each spatial dimension.
        dilation: of the filters' taps.
        dimension_numbers: layouts of x, w and the result, as ("NCHW", "OIHW", "NCHW"), with N first.
        activation: "relu", "gelu", "gelu_tanh" (what jax.nn.gelu is by itself), "silu", "sigmoid" or "tanh".

    >>> import jax.numpy as jnp, weft.jax
    >>> x, w = jnp.ones((1, 3, 3, 1)), jnp.ones((3, 3, 1, 1))
    >>> weft.jax.conv(x, w, padding="VALID").shape
    (1, 1, 1, 1)
    """
    activations.check("conv", activation)
    x, w, bias = alike(x, w, bias)
    how = _geometry(x, w, strides, padding, dilation, dimension_numbers)
    return _conv(how, activation, x, w, bias)


def _geometry(x: Any, w: Any, strides: Any, padding: Any, dilation: Any, layouts: Any) -> _Geometry:
    rank = x.ndim - 2
    layouts = tuple(layouts or LAYOUTS.get(rank, ()))
    if len(layouts) != 3 or w.ndim != x.ndim or any(len(each) != x.ndim for each in layouts):
        raise BadParameterError(
            f"conv: x and w have {x.ndim} and {w.ndim} dimensions, the layouts are {layouts}. Give as many "
            "dimensions as the layouts have letters, from 3 to 5."
        )
    if layouts[0][0] != "N" or layouts[2][0] != "N":
        raise BadParameterError(
            f"conv: the layouts are {layouts}. Let N be first in those of x and the result."
        )
    stride, gaps = _each(strides, rank), _each(dilation, rank)
    how = _Geometry(layouts, stride, ((0, 0),) * rank, gaps)
    image, taps = how.shown(0, x.shape)[0][2:], how.shown(1, w.shape)[0][2:]
    if isinstance(padding, int):
        return how._replace(padding=((padding, padding),) * rank)
    if isinstance(padding, str):
        reach = [(n - 1) * gap + 1 for n, gap in zip(taps, gaps, strict=True)]
        padding = jax.lax.padtype_to_pads(image, reach, stride, padding)
    return how._replace(padding=tuple((int(before), int(behind)) for before, behind in padding))


def _each(values: Any, rank: int) -> tuple[int, ...]:
    """One number for each spatial dimension."""
    return (values,) * rank if isinstance(values, int) else tuple(map(int, values))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _conv(how: _Geometry, activation: str | None, x: Any, w: Any, bias: Any) -> Any:
    return _call(how, _Epilogue(bias is not None, activation), x, w, bias)[0]


def _call(how: _Geometry, behind: _Epilogue, x: Any, w: Any, bias: Any) -> Any:
    arrays = [x, w] if bias is None else [x, w, bias]
    type_ = np.dtype(jnp.promote_types(x.dtype, w.dtype))
    return call(_forward, *arrays, attributes=(how, type_, behind))


def _keep(how: _Geometry, activation: str | None, x: Any, w: Any, bias: Any) -> Any:
    is_kept = activation is not None
    y, *given = _call(how, _Epilogue(bias is not None, activation, is_kept), x, w, bias)
    return y, (x, w, bias, given[0] if is_kept else None)


def _gradient(how: _Geometry, activation: str | None, kept: Any, dy: Any) -> Any:
    x, w, bias, given = kept
    dz, dbias = activations.backward(activation, dy, given, bias, how.layouts[2].index("C"))
    dx = call(_image, dz, w, attributes=(how, x.shape, x.dtype))[0]
    dw = call(_filters, x, dz, attributes=(how, w.shape, w.dtype))[0]
    return dx, dw, dbias


_conv.defvjp(_keep, _gradient)

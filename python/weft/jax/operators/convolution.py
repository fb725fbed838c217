"""Convolution. Layouts are strings with one letter per dimension, like those of jax.lax."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from weft import buffers
from weft.jax.calls import call
from weft.jax.functions import Arrays, Function, Wanted
from weft.jax.graph_builder import Form, GraphBuilder, Operator
from weft.jax.operators import activations, arguments
from weft.jax.sharding import Labels
from weft.tensor import Tensor

LAYOUTS = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}
"""The default layouts of image, filters and result, by the number of spatial dimensions. They match flax."""


class _Geometry(NamedTuple):
    """The geometry of the filters and the layouts of the arrays."""

    layouts: tuple[str, str, str]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    def options(self) -> dict[str, Any]:
        """Returns the keyword arguments for the graph's methods."""
        before, after = zip(*self.padding, strict=True)
        windows = {"stride": self.stride, "dilation": self.dilation}
        return {**windows, "pre_padding": before, "post_padding": after}

    def order(self, i: int) -> list[int]:
        """Returns the dimensions of image, filters or result in Weft's order: N C, or K C, then the spatial
        ones."""
        first = "OI" if i == 1 else "NC"
        spatial = [letter for letter in self.layouts[0] if letter not in "NC"]
        return [self.layouts[i].index(letter) for letter in (*first, *spatial)]

    def shown(self, i: int, shape: Sequence[int]) -> tuple[list[int], list[int]]:
        """Returns dims and strides in Weft's order."""
        steps = buffers.packed_strides(tuple(shape))
        return [shape[at] for at in self.order(i)], [steps[at] for at in self.order(i)]

    def result_shape(self, image: Sequence[int], filters: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result in its layout."""
        (n, _, *sizes), (k, _, *taps) = self.shown(0, image)[0], self.shown(1, filters)[0]
        dims = [n, k]
        for i, (size, tap) in enumerate(zip(sizes, taps, strict=True)):
            reach = (tap - 1) * self.dilation[i] + 1
            dims.append(max((size + sum(self.padding[i]) - reach) // self.stride[i] + 1, 0))
        order = self.order(2)
        return tuple(dims[order.index(at)] for at in range(len(dims)))


class _Epilogue(NamedTuple):
    """The operations after the convolution: y = activation(convolution + bias)."""

    has_bias: bool = False
    activation: str | None = None
    is_kept: bool = False
    """Whether the input of the activation is a result, too."""


# ---- Graphs ------------------------------------------------------------------------------------------------


def _read(gb: GraphBuilder, at: int, config: _Geometry, i: int) -> Tensor:
    return gb.read(at, *config.shown(i, gb.arguments[at].shape))


def _build(gb: GraphBuilder, config: _Geometry, type_: Any, epilogue: _Epilogue) -> None:
    """Arguments: the image and the filters, then the bias if there is one."""
    g, shape = gb.graph, config.result_shape(gb.arguments[0].shape, gb.arguments[1].shape)
    y = g.conv_fprop(_read(gb, 0, config, 0), _read(gb, 1, config, 1), **config.options())
    if epilogue.has_bias:
        y = g.bias(y, gb.read(2, [1, *gb.arguments[2].shape, *[1] * len(config.stride)]))
    given, y = y, activations.apply(g, epilogue.activation, y)
    for each in (y, given) if epilogue.is_kept else (y,):
        gb.write(each, Form(shape, type_), *config.shown(2, shape))


def _build_image(gb: GraphBuilder, config: _Geometry, shape: tuple[int, ...], type_: Any) -> None:
    """Arguments: the gradient of the result and the filters. shape: the shape of the image; its batch size is
    ignored."""
    shape = (gb.arguments[0].shape[0], *shape[1:])
    dx = gb.graph.conv_dgrad(_read(gb, 0, config, 2), _read(gb, 1, config, 1), **config.options())
    gb.write(dx, Form(shape, type_), *config.shown(0, shape))


def _build_filters(gb: GraphBuilder, config: _Geometry, shape: tuple[int, ...], type_: Any) -> None:
    """Arguments: the image and the gradient of the result."""
    dw = gb.graph.conv_wgrad(_read(gb, 0, config, 0), _read(gb, 1, config, 2), **config.options())
    gb.write(dw, Form(shape, type_), *config.shown(1, shape))


_forward = Operator("conv", _build, rows=[0], stands_for=(jax.lax.conv_general_dilated_p, {}))
_image = Operator("conv_dgrad", _build_image, rows=[0])
_filters = Operator("conv_wgrad", _build_filters)


# ---- Functions ---------------------------------------------------------------------------------------------


class _Options(NamedTuple):
    """The options of conv as the caller gave them."""

    strides: Any
    padding: Any
    dilation: Any
    dimension_numbers: tuple[str, ...] | None
    activation: str | None


class _How(NamedTuple):
    """The options of conv for arrays of known shapes."""

    geometry: _Geometry
    activation: str | None


class _Conv(Function):
    """A convolution and its epilogue. Arrays: x, w, bias."""

    def check(self, options: _Options, *arrays: Any) -> tuple[_How, Arrays]:
        activations.check(self.name, options.activation)
        x, w, bias = arguments.to_common(*arrays)
        return _How(_geometry(options, x, w, bias), options.activation), (x, w, bias)

    def labels(self, options: _How, *arrays: Any) -> Labels:
        image, filters, result = options.geometry.layouts
        x, w, bias = arrays
        has_groups = x.shape[image.index("C")] != w.shape[filters.index("I")]
        channels = None if has_groups else "O"
        return Labels(
            [
                ["N" if letter == "N" else None for letter in image],
                [channels if letter == "O" else None for letter in filters],
                None if bias is None else [channels],
            ],
            [{"N": "N", "C": channels}.get(letter) for letter in result],
        )

    def local(self, options: _How, *arrays: Any) -> Any:
        x, w, _ = arrays
        if 0 in options.geometry.result_shape(x.shape, w.shape):
            return self.plain(options, *arrays)
        return self.apply(options, *arrays)

    def forward(self, config: _How, is_training: bool, *arrays: Any) -> tuple[Any, Arrays]:
        x, w, bias = arrays
        is_kept = is_training and config.activation is not None
        epilogue = _Epilogue(bias is not None, config.activation, is_kept)
        type_ = np.dtype(jnp.promote_types(x.dtype, w.dtype))
        given = (each for each in arrays if each is not None)
        y, *saved = call(_forward, *given, attributes=(config.geometry, type_, epilogue))
        return y, tuple(saved)

    def backward(self, config: _How, wanted: Wanted, arrays: Arrays, saved: Arrays, dy: Any) -> list[Any]:
        x, w, bias = arrays
        axis = config.geometry.layouts[2].index("C")
        given = saved[0] if saved else None
        dz, dbias = activations.backward(config.activation, dy, given, bias if wanted[2] else None, axis)
        dx = call(_image, dz, w, attributes=(config.geometry, x.shape, x.dtype))[0] if wanted[0] else None
        dw = call(_filters, x, dz, attributes=(config.geometry, w.shape, w.dtype))[0] if wanted[1] else None
        return [dx, dw, dbias]

    def plain(self, config: _How, *arrays: Any) -> Any:
        (x, w, bias), geometry = arrays, config.geometry
        type_ = jnp.promote_types(x.dtype, w.dtype)
        image, filters, result = geometry.layouts
        x, w = (each.astype(arguments.wide(type_)) for each in (x, w))
        channels = x.shape[image.index("C")], w.shape[filters.index("I")]
        y = jax.lax.conv_general_dilated(
            x, w, geometry.stride, geometry.padding, rhs_dilation=geometry.dilation,
            dimension_numbers=geometry.layouts, feature_group_count=channels[0] // max(channels[1], 1) or 1,
        )  # fmt: skip
        if bias is not None:
            y = y + arguments.like(bias, y).reshape([-1 if letter == "C" else 1 for letter in result])
        y = activations.plain(config.activation, y)
        return y.astype(type_) if jnp.issubdtype(type_, jnp.inexact) else y


_conv = _Conv("conv")


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
        x: image, [N, H, W, C]; with one to three spatial dimensions.
        w: filters, [H, W, C / groups, O]; the number of groups follows from the channels.
        bias: [O]; optional.
        strides: of the filters, one number or one for each spatial dimension.
        padding: "SAME", "SAME_LOWER" or "VALID" as in jax.lax, a number, or a pair (low, high) for each
            spatial
            dimension.
        dilation: of the filters' taps.
        dimension_numbers: layouts of x, w and the result, such as ("NCHW", "OIHW", "NCHW"), with N first.
        activation: "relu", "gelu", "gelu_tanh" (the default of jax.nn.gelu), "silu", "sigmoid" or "tanh".
    Raises:
        BadParameterError: a shape, a layout or an option does not fit.

    >>> import jax.numpy as jnp, weft.jax
    >>> x, w = jnp.ones((1, 3, 3, 1)), jnp.ones((3, 3, 1, 1))
    >>> weft.jax.conv(x, w, padding="VALID").shape
    (1, 1, 1, 1)
    """
    layouts = None if dimension_numbers is None else tuple(dimension_numbers)
    options = _Options(_frozen(strides), _frozen(padding), _frozen(dilation), layouts, activation)
    return _conv(options, x, w, bias)


def _frozen(value: Any) -> Any:
    """Converts lists and arrays to tuples, and NumPy's integers to Python's, so that options can be keys."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    return int(value) if isinstance(value, np.integer) else value


# ---- Arguments ---------------------------------------------------------------------------------------------


def _geometry(options: _Options, x: Any, w: Any, bias: Any) -> _Geometry:
    layouts = _layouts(options.dimension_numbers, x, w)
    rank = x.ndim - 2
    _check_channels(layouts, x, w, bias)
    stride = _each("strides", options.strides, rank)
    gaps = _each("dilation", options.dilation, rank)
    config = _Geometry(layouts, stride, ((0, 0),) * rank, gaps)
    image, taps = config.shown(0, x.shape)[0][2:], config.shown(1, w.shape)[0][2:]
    return config._replace(padding=_padding(options.padding, image, taps, stride, gaps))


def _layouts(given: tuple[str, ...] | None, x: Any, w: Any) -> tuple[str, str, str]:
    rank = x.ndim - 2
    if rank not in LAYOUTS or w.ndim != x.ndim:
        raise arguments.refuse(
            "conv", "x and w have the wrong numbers of dimensions", "3 to 5 for both, as NHWC and HWIO",
            f"{x.ndim} and {w.ndim}", "Reshape the arrays; a batch of one image has N = 1.",
        )  # fmt: skip
    layouts = LAYOUTS[rank] if given is None else given
    spatial = [letter for letter in LAYOUTS[rank][0] if letter not in "NC"]
    letters = [sorted([*first, *spatial]) for first in ("NC", "OI", "NC")]
    has_letters = [sorted(each) for each in layouts] == letters
    if not has_letters or {layouts[0][0], layouts[2][0]} != {"N"}:
        raise arguments.refuse(
            "conv", "dimension_numbers is wrong",
            f"layouts of x, w and the result as {LAYOUTS[rank]}, in any order of letters but with N first",
            layouts, f"Use each of the letters N, C, O, I, {', '.join(spatial)} once where it belongs.",
        )  # fmt: skip
    return (layouts[0], layouts[1], layouts[2])


def _check_channels(layouts: tuple[str, str, str], x: Any, w: Any, bias: Any) -> None:
    channels, filter_channels = x.shape[layouts[0].index("C")], w.shape[layouts[1].index("I")]
    count = w.shape[layouts[1].index("O")]
    groups = channels // filter_channels if filter_channels else 1
    if groups < 1 or channels != groups * filter_channels or count % groups:
        raise arguments.refuse(
            "conv", "the channels of x and w do not fit",
            "C to be a multiple of I, and O of the number of groups, C / I",
            f"C = {channels} (x is {layouts[0]}, {arguments.formatted(x)}), I = {filter_channels} and "
            f"O = {count} (w is {layouts[1]}, {arguments.formatted(w)})",
            "Check dimension_numbers and the shapes.",
        )  # fmt: skip
    taps = [n for letter, n in zip(layouts[1], w.shape, strict=True) if letter not in "OI"]
    if 0 in taps:
        raise arguments.refuse(
            "conv", "w has no taps", "at least 1 along each spatial dimension", arguments.formatted(w),
            "Give filters with elements.",
        )  # fmt: skip
    fix = f"Give one number for each of the {count} filters of w."
    arguments.check_shape("conv", "bias", bias, (count,), fix)


def _padding(
    value: Any, image: Sequence[int], taps: Sequence[int], stride: Sequence[int], gaps: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Returns the padding of each spatial dimension."""
    rank = len(image)
    if value in ("SAME", "SAME_LOWER", "VALID"):
        reach = [(n - 1) * gap + 1 if n else 0 for n, gap in zip(taps, gaps, strict=True)]
        pairs: Any = jax.lax.padtype_to_pads(image, reach, stride, value)
        return tuple((int(low), int(high)) for low, high in pairs)
    pairs = value if isinstance(value, tuple) else ((value, value),) * rank
    try:
        padding = tuple((operator.index(low), operator.index(high)) for low, high in pairs)
        is_good = len(padding) == rank and min(min(pair) for pair in padding) >= 0
    except (TypeError, ValueError):
        is_good = False
    if not is_good:
        raise arguments.refuse(
            "conv", "padding is wrong",
            "'SAME', 'SAME_LOWER', 'VALID', an integer of at least 0, or a pair (low, high) of such for each "
            f"of the {rank} spatial dimensions",
            repr(value), f"Give for example padding={((1, 1),) * rank}.",
        )  # fmt: skip
    return padding


def _each(name: str, value: Any, rank: int) -> tuple[int, ...]:
    """Returns one number per spatial dimension."""
    fix = f"Give one integer, or one for each of the {rank} spatial dimensions."
    values = value if isinstance(value, tuple) else (value,) * rank
    if len(values) != rank:
        raise arguments.refuse("conv", f"{name} has the wrong length", f"{rank} integers", repr(value), fix)
    return tuple(arguments.integer("conv", name, each, 1, fix) for each in values)

"""Shapes of the benchmark's cases: tensors in memory, and the sizes that families of cases share. Independent
of graphs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft import dtypes


@dataclass(frozen=True)
class Operand:
    """A tensor of a case: its layout and its contents."""

    dims: tuple[int, ...]
    dtype: str = "bf16"
    order: tuple[int, ...] = ()
    """The dimensions from the outermost in memory to the innermost; row-major if empty."""
    scale: float = 1.0
    """The standard deviation of its random values."""
    value: float | None = None
    """The value of a scalar that is passed by value."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements; contiguous in the given order."""
        steps, step = [0] * len(self.dims), 1
        for dimension in reversed(self.order or range(len(self.dims))):
            steps[dimension] = step
            step *= self.dims[dimension]
        return tuple(steps)

    @property
    def bytes(self) -> int:
        """Size in device memory; 0 if it is passed by value."""
        type_ = dtypes.data_type_of(self.dtype)
        assert type_ is not None
        return 0 if self.value is not None else math.prod(self.dims) * dtypes.of(type_).bits // 8


NWC, NHWC, NDHWC = (0, 2, 1), (0, 2, 3, 1), (0, 2, 3, 4, 1)
BSHD = (0, 2, 1, 3)
"""Attention's [B,H,S,D] in the layout of projections: the heads of a position are adjacent."""


@dataclass(frozen=True)
class Window:
    """A square window that moves over images, or a cube over volumes."""

    n: int
    channels: int
    image: tuple[int, ...]
    window: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def result(self) -> tuple[int, ...]:
        """Height and width of the result; for volumes preceded by the depth."""
        reach = self.dilation * (self.window - 1) + 1
        return tuple((extent + 2 * self.padding - reach) // self.stride + 1 for extent in self.image)

    @property
    def x(self) -> tuple[int, ...]:
        """The images' dims."""
        return self.n, self.channels, *self.image

    @property
    def y(self) -> tuple[int, ...]:
        """The result's dims."""
        return self.n, self.channels, *self.result


@dataclass(frozen=True)
class Convolution(Window):
    """Filters over images; each group of filters reads its own part of the channels."""

    filters: int = 1
    groups: int = 1

    @property
    def flops(self) -> float:
        """Multiplications and additions, including those with padding."""
        return 2.0 * self.n * math.prod(self.result) * math.prod(self.w)

    @property
    def w(self) -> tuple[int, ...]:
        """The filters' dims."""
        return self.filters, self.channels // self.groups, *[self.window] * len(self.image)

    @property
    def y(self) -> tuple[int, ...]:
        """The result's dims: as many channels as filters."""
        return self.n, self.filters, *self.result


@dataclass(frozen=True)
class Pool(Window):
    """The largest element or the mean of each window."""

    is_max: bool = True


@dataclass(frozen=True)
class Attention:
    """Queries that attend to keys; several query heads may share a key head."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int
    value_width: int
    is_causal: bool = False
    window: int = 0
    """The number of most recent keys that a query of a causal attention sees; 0: all before it."""

    @property
    def scale(self) -> float:
        """The factor of the scores."""
        return 1 / math.sqrt(self.width)

    def flops(self, is_backward: bool) -> float:
        """Operations of the matmuls: two forward, five backward. With a causal mask half of each, with a
        window those inside it."""
        d, v = self.width, self.value_width
        widths = 3 * d + 2 * v if is_backward else d + v
        scores = self.queries * self.keys * (0.5 if self.is_causal else 1.0)
        if self.window:
            scores = self.queries * self.window - 0.5 * self.window**2
        return 2.0 * self.batch * self.heads * scores * widths

    def dims(self, name: str) -> tuple[int, ...]:
        """The dims of q, k, v, o, stats and the gradients, which have the dims of their tensors."""
        key = name[-1].lower() if name != "stats" else name
        heads, positions = (self.key_heads, self.keys) if key in "kv" else (self.heads, self.queries)
        width = {"q": self.width, "k": self.width, "v": self.value_width, "o": self.value_width, "stats": 1}
        return self.batch, heads, positions, width[key]

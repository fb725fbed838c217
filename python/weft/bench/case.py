"""What a case of the benchmark is: a graph, the memory it takes, the work it does, and its oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.bench.shapes import Operand

GROUPS = ("matmul", "conv", "fused", "norm", "mem", "rows", "move", "pool", "sdpa", "blocks")

Tensors = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A graph to time."""

    name: str
    """Group, slash, what tells it from the others."""
    arithmetic: str
    """Whose peak rate it can reach: "bf16", "f16", "tf32", "f32", "fp8" or "int8"."""
    flops: float
    inputs: Mapping[str, Operand]
    outputs: Mapping[str, Operand]
    build: Callable[[Any, Any, Tensors], Tensors]
    """Given a module, its empty graph and the input tensors: the outputs by name."""
    oracle: Callable[[Any, dict[str, Any]], dict[str, Any]]
    """Given NumPy or torch and the inputs as float64: the outputs by name."""
    derive: Callable[[Any, dict[str, Any]], dict[str, Any]] | None = field(default=None)
    """The inputs that follow from others, such as the statistics that a backward pass reads."""

    program: Callable[[Any, Mapping[str, Any]], object] | None = field(default=None)
    """Given torch and the memory by name: a torch program for the same, which may write elsewhere."""

    largest_error: float | None = field(default=None)
    """Of a right result, where it is not what the arithmetic says."""

    is_free: bool = field(default=False)
    """Whether types of intermediates are left unset, not float32."""

    frozen: tuple[str, ...] = field(default=())
    """Inputs that keep their numbers and lie at one place, and that Weft freezes."""

    bare: Case | None = field(default=None)
    """The product of the same sizes with nothing fused, where this one is not that itself."""

    @property
    def group(self) -> str:
        """The part before the slash."""
        return self.name.partition("/")[0]

    @property
    def bytes(self) -> int:
        """What must move: every input is read once, every output written once."""
        return sum(operand.bytes for operand in (*self.inputs.values(), *self.outputs.values()))

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes

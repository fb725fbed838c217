"""A case of the benchmark: a graph, its memory, its amount of work, and its oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.shapes import Operand

GROUPS = ("matmul", "conv", "fused", "norm", "mem", "rows", "move", "pool", "sdpa", "blocks")

Tensors = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A graph to time."""

    name: str
    """Group, slash, and a name that is unique within the group."""
    arithmetic: str
    """The arithmetic whose peak rate applies: "bf16", "f16", "tf32", "f32", "fp8" or "int8"."""
    flops: float
    inputs: Mapping[str, Operand]
    outputs: Mapping[str, Operand]
    build: Callable[[Any, Any, Tensors], Tensors]
    """From a module, its empty graph and the input tensors, returns the outputs by name."""
    oracle: Callable[[Any, dict[str, Any]], dict[str, Any]]
    """From NumPy or torch and the inputs as float64, returns the outputs by name."""
    derive: Callable[[Any, dict[str, Any]], dict[str, Any]] | None = field(default=None)
    """Computes inputs that depend on others, such as the statistics that a backward pass reads."""

    program: Callable[[Any, Mapping[str, Any]], object] | None = field(default=None)
    """From torch and the memory by name: an equivalent torch program, which may write elsewhere."""

    largest_error: float | None = field(default=None)
    """The error limit, if it differs from that of the arithmetic."""

    is_free: bool = field(default=False)
    """True if types of intermediates are left unset rather than float32."""

    frozen: tuple[str, ...] = field(default=())
    """Inputs with constant contents and address, which Weft freezes."""

    bare: Case | None = field(default=None)
    """The unfused case of the same size, if this one is fused."""

    @property
    def group(self) -> str:
        """The part before the slash."""
        return self.name.partition("/")[0]

    @property
    def bytes(self) -> int:
        """The minimum traffic: every input is read once, every output is written once."""
        return sum(operand.bytes for operand in (*self.inputs.values(), *self.outputs.values()))

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes

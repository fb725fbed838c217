"""Operations and tensors by cuDNN's names: "conv2d::image", "ln::INV_VARIANCE", "relu::OUT_0"."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any, NamedTuple

from weft.cudnn.enums import NodeType
from weft.tensor import Tensor

# Aliases of results, in lower case, from different versions of the frontend.
_ALIASES = {
    "inv_variance": "inv_var",
    "next_running_variance": "next_running_var",
    "running_mean": "next_running_mean",
    "running_var": "next_running_var",
}


class Node(NamedTuple):
    """An operation of a graph with cuDNN's names."""

    name: str
    node_type: NodeType
    method: str
    inputs: dict[str, Any]
    """Operands by argument: tensors, lists of them, or numbers."""
    outputs: dict[str, Tensor]
    attributes: dict[str, Any]
    wefts_name: str = ""
    """The name in Weft's messages, which differs from cuDNN's for operations without a name."""

    def find(self, port: str) -> Tensor | None:
        """An operand or result by its argument, its name in any case, or its position: OUT_0, IN_1, 1."""
        for ports in (self.inputs, self.outputs):
            if isinstance(ports.get(port), Tensor):
                matches: Tensor = ports[port]
                return matches
        small = {key.lower(): tensor for key, tensor in {**self.inputs, **self.outputs}.items()}
        small |= {name: tensor for i, tensor in enumerate(self.operands) for name in (f"in_{i}", str(i))}
        small |= {f"out_{i}": tensor for i, tensor in enumerate(self.outputs.values())}
        sought = port.lower()
        tensor = small.get(sought, small.get(_ALIASES.get(sought, "")))
        return tensor if isinstance(tensor, Tensor) else None

    @property
    def operands(self) -> list[Tensor]:
        """The tensors that it reads, in order."""
        lists = [value if isinstance(value, list) else [value] for value in self.inputs.values()]
        return [item for items in lists for item in items if isinstance(item, Tensor)]


def name_of(nodes: Iterable[Node], method: str) -> str:
    """The name that cuDNN gives to the next operation without one: "relu.0", "relu.1"."""
    taken = {node.name for node in nodes}
    return next(name for name in (f"{method}.{i}" for i in count()) if name not in taken)


def find_tensor(nodes: Iterable[Node], key: str) -> Tensor | None:
    """The tensor for "operation::operand"; None if it does not exist."""
    owner, _, port = key.partition("::")
    matches = (node.find(port) for node in nodes if owner in (node.name, node.wefts_name))
    return next((tensor for tensor in matches if tensor is not None), None)

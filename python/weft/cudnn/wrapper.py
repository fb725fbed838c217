"""Graph: cuDNN's convenience interface. Operations accept arrays, the graph is built at the end of the with
block, and calling it with arrays returns arrays."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

from weft.arguments import counted
from weft.backend import Handle
from weft.cudnn.enums import heur_mode
from weft.cudnn.graphs import pygraph
from weft.errors import BadParameterError


class Graph(pygraph):
    """A graph that is called with arrays.

    >>> import numpy as np, weft.cudnn as cudnn
    >>> x, w = np.ones((1, 2, 3), "f4"), np.ones((1, 3, 2), "f4")
    >>> with cudnn.Graph(
    ...     io_data_type=cudnn.data_type.FLOAT, inputs=["mm::A", "mm::B"], outputs=["act::OUT_0"]
    ... ) as graph:
    ...     y = graph.relu(graph.matmul(x, w, name="mm"), name="act").set_output(True)
    >>> graph(x, w).tolist()
    [[[3.0, 3.0], [3.0, 3.0]]]
    """

    def __init__(
        self,
        *,
        handle: Any = None,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        heuristics: Sequence[Any] = (heur_mode.A, heur_mode.FALLBACK),
        workspace_alloc: bool = True,
        **kwargs: Any,
    ) -> None:
        """Creates an empty graph. inputs, outputs: the tensors that calls accept and return, such as
        "conv::image". handle: None or "auto" means the device of the arrays. workspace_alloc: whether calls
        allocate the workspace if none is passed. Everything else is as for pygraph."""
        kwargs |= {"inputs": inputs, "outputs": outputs, "heuristics": heuristics}
        super().__init__(handle=handle, **kwargs)
        self._allocates = workspace_alloc

    def __call__(
        self, *arrays: Any, handle: Handle | None = None, workspace: Any = None, **named: Any
    ) -> Any:
        """Runs the graph: with arrays by position in the order of inputs, it returns the outputs; with a dict
        of arrays by name, it returns the dict with the outputs added. Outputs are torch tensors, or the
        arrays of pygraph's calls if torch does not support their type."""
        if not self._allocates and workspace is None and self._plan is not None and self.plan.workspace_size:
            raise BadParameterError(
                f"{self._label}: it was created with workspace_alloc=False and needs "
                f"{counted(self.plan.workspace_size, 'byte')} of workspace. Give workspace=."
            )
        returned = super().__call__(*arrays, handle=handle, workspace=workspace, **named)
        results = tuple(map(_as_torch, returned if isinstance(returned, tuple) else (returned,)))
        if len(arrays) == 1 and isinstance(arrays[0], MutableMapping):
            arrays[0].update(zip(self._output_names(), results, strict=True))
            return arrays[0]
        return results if isinstance(returned, tuple) else results[0]

    def _output_names(self) -> list[str]:
        """The names of the outputs: those of outputs or set_io_tuples, otherwise "conv::Y"."""
        given = [name for name in self._io_names[1] if isinstance(name, str)]
        if given and len(given) == len(self._io_names[1]):
            return given
        named = [(t, f"{node.name}::{port}") for node in self._nodes for port, t in node.outputs.items()]
        ports = {tensor.get_uid(): name for tensor, name in named}
        tensors = [self._find(name) for name in self._io_names[1]]
        results = tensors or [tensor for tensor in self._results() if not tensor._is_virtual]
        return [ports.get(tensor.get_uid(), tensor._name) for tensor in results]


def _as_torch(result: Any) -> Any:
    """An output as a torch tensor on the same memory; unchanged if torch, or this build of it, does not
    support it."""
    try:
        import numpy as np
        import torch
    except ImportError:
        return result
    if isinstance(result, torch.Tensor):
        return result
    if not isinstance(result, np.ndarray):
        return torch.from_dlpack(result) if torch.cuda.is_available() else result
    if result.dtype.isbuiltin == 1:
        return torch.from_numpy(result)
    integer = np.dtype(f"i{result.dtype.itemsize}")  # types of ml_dtypes, which torch does not support
    return torch.from_numpy(result.view(integer)).view(getattr(torch, result.dtype.name))

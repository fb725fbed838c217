"""Graph: cuDNN's short way. Operations take arrays, the graph is built on leaving the block, and calling it
with arrays returns arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    >>> graph(x, w)
    array([[[3., 3.],
            [3., 3.]]], dtype=float32)
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
        """Makes an empty graph. inputs, outputs: what calls take and return, as "conv::image". handle: None
        or "auto" is the device of the arrays. workspace_alloc: whether calls allocate the workspace that
        they are not given. The rest is pygraph's."""
        kwargs |= {"inputs": inputs, "outputs": outputs, "heuristics": heuristics}
        super().__init__(handle=handle, **kwargs)
        self._allocates = workspace_alloc

    def __call__(
        self, *arrays: Any, handle: Handle | None = None, workspace: Any = None, **named: Any
    ) -> Any:
        """Runs the graph: arrays by position in the order of inputs, or a dict of them by name. Returns the
        outputs."""
        if not self._allocates and workspace is None and self._plan is not None and self.plan.workspace_size:
            raise BadParameterError(
                f"{self._label}: it was made with workspace_alloc=False and needs {self.plan.workspace_size} "
                "bytes of workspace. Give workspace=."
            )
        return super().__call__(*arrays, handle=handle, workspace=workspace, **named)

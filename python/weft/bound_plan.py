"""Plans bound to memory: all checks are done once, so a call costs little more than the C call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft_cffi._weft import ffi

from weft import backend
from weft.memory import stream_of
from weft.run_state import RunState

if TYPE_CHECKING:
    from weft.plan import Plan


class BoundPlan:
    """A plan and the memory that it runs on, created by Plan.bind. Only one thread may use it at a time. On a
    GPU it is enqueued on the same stream as calls of the Plan and does not wait: keep it alive until its work
    is done."""

    def __init__(self, plan: Plan, state: RunState, workspace: int, results: Any, kept: object) -> None:
        self.plan, self._state, self._kept = plan, state, kept
        self.results = results
        """The outputs that a call returns."""
        self._workspace, self._count = workspace, len(plan.slots)
        self._memory, self._run = ffi.cast("void *", workspace), backend.library().weftExecute

    def __call__(self, stream: int | None = None) -> Any:
        """Runs the plan and returns the outputs, which the next call overwrites."""
        plan = self.plan
        queue = self._state.queue(stream_of(plan.handle) if stream is None else stream)
        status = self._run(plan.descriptor.pointer, self._count, self._state.pointers, self._memory, queue)
        if status:
            backend.check(status)
        return self.results

    def measure(self, repeats: int = 1) -> float:
        """The mean seconds per run on the plan's device, measured with stream events on a GPU. Waits for the
        runs."""
        plan = self.plan
        pointers, stream = self._state.pointers, stream_of(plan.handle)
        return backend.measure(plan.descriptor, pointers, self._count, self._workspace, stream, repeats)

    def measure_steps(self, repeats: int = 1) -> list[float]:
        """The mean seconds of each step per run, for Plan.explain; waits for the runs. They add up to the
        result of measure(): on a GPU, runs with marks between the steps alternate with runs without marks.

        >>> import numpy as np, weft
        >>> with weft.Graph(handle=weft.create_handle("cpu")) as g:
        ...     y = g.relu(g.tensor([2], data_type="f32", name="x"))
        >>> len(g.plan.bind(x=np.float32([1, -1])).measure_steps(3))
        1
        """
        plan, where = self.plan, (self._state.pointers, self._count, self._workspace)
        steps = len(plan.report["steps"])
        return backend.measure_steps(plan.descriptor, *where, stream_of(plan.handle), repeats, steps)

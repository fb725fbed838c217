"""Execution of a graph's plans: on variant packs, on addresses, and as a call on arrays."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from weft_cffi._weft import ffi

from weft import backend, enums
from weft.arguments import counted
from weft.backend import Descriptor, Handle
from weft.enums import build_plan_policy
from weft.errors import BadParameterError, NotSupportedError, WeftError
from weft.graphs.planned import PlannedGraph, shape_overrides
from weft.lowering import Lowering, Shape
from weft.memory import stream_of, use_on
from weft.plan import Overrides, Plan
from weft.slots import Slot
from weft.tensor import Tensor

_OTHER_PLANS = 64
"""Number of plans that a graph caches for calls with other shapes; the oldest is evicted first."""


class ExecutableGraph(PlannedGraph):
    """A graph that runs its selected plan, or plans for other shapes."""

    def __init__(self, *recorded: Any) -> None:
        super().__init__(*recorded)
        self._keys: dict[Any, int | None] = {}
        self._template: list[int] | None = None
        self._following: dict[str, dict[int, Shape]] = {}
        self._other_plans: dict[tuple[tuple[int, Shape], ...], Plan] = {}
        self._plans_lock = threading.Lock()

    def _use(self, plan: Plan) -> None:
        super()._use(plan)
        self._template, self._other_plans = None, {}
        self._keys = {tensor: plan.index.get(tensor._uid) for tensor in self._tensors}
        self._keys |= plan.index

    # ---- Variant packs ----

    def execute(
        self,
        variant_pack: Mapping[Tensor | int | str, Any],
        workspace: Any = None,
        handle: Handle | None = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Runs the selected plan.

        Args:
            variant_pack: memory of each tensor that is not virtual: tensor, uid or name to array or address.
                Arrays must be on the graph's device, of the tensor's type and large enough. An array that is
                contiguous in row-major order serves only as memory: it holds the tensor's elements in the
                order of the tensor's strides, whatever the array's dims. Other arrays must have the tensor's
                dims and strides. An array is checked again in later runs only if it was changed in place;
                addresses are not checked. A BOOLEAN tensor has 1 bit per element: arrays of bool are
                BYTE_BOOLEAN.
            workspace: at least get_workspace_size() bytes for these shapes; by default the thread's own.
            handle: the handle whose stream to run on; by default the graph's, or the current stream of torch
                or CuPy if none was set on it.
            override_uids: tensors that have another shape in this execution.
            override_shapes: their dims.
            override_strides: their strides, in elements; contiguous by default.

        >>> import numpy as np, weft
        >>> g = weft.Graph(handle=weft.create_handle("cpu"))
        >>> x = g.tensor([3], data_type="f32", name="x")
        >>> y = g.neg(x)
        >>> _ = g.build()
        >>> workspace, result = np.empty(g.get_workspace_size(), "u1"), np.empty(3, "f4")
        >>> g.execute({x: np.float32([1, 2, 3]), y: result}, workspace)
        >>> result
        array([-1., -2., -3.], dtype=float32)
        """
        overrides = (
            shape_overrides(override_uids, override_shapes, override_strides) if override_uids else None
        )
        self._execute(self._plan or self.plan, variant_pack, workspace, handle, overrides)

    def execute_plan_at_index(
        self,
        variant_pack: Mapping[Tensor | int | str, Any],
        workspace: Any,
        index: int,
        handle: Handle | None = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Runs one of the built plans; arguments as for execute.

        >>> import numpy as np, weft
        >>> g = weft.Graph()
        >>> y = g.neg(np.float32([1, 2]))
        >>> g.create_execution_plans(["A", "FALLBACK"])
        >>> g.build_plans(weft.build_plan_policy.ALL)
        >>> result = np.empty(2, "f4")
        >>> for i in range(g.get_execution_plan_count()):
        ...     g.execute_plan_at_index({y: result}, None, i)
        >>> result
        array([-1., -2.], dtype=float32)
        """
        overrides = (
            shape_overrides(override_uids, override_shapes, override_strides) if override_uids else None
        )
        self._execute(self._built_plan(index), variant_pack, workspace, handle, overrides)

    def _execute(
        self,
        plan: Plan,
        variant_pack: Mapping[Tensor | int | str, Any],
        workspace: Any,
        handle: Handle | None,
        overrides: Overrides | None,
    ) -> None:
        slots = plan.slots if overrides is None else self._overridden_slots(plan, overrides)
        state = plan.thread.state
        keys, pointers, checked, bound = self._keys, state.pointers, state.known, set()
        for key, value in variant_pack.items():
            i = keys.get(key, -1)
            if i is not None and i < 0:
                i = self._slot_of_unknown(plan, key)
            if i is None:  # virtual, or used by no operation
                continue
            known = checked[i] if overrides is None else None
            if known and known[0]() is value and (known[2] is None or known[2](value) == known[3]):
                pointers[i] = known[1]
            else:
                plan.put(i, value, slots[i])
            bound.add(i)
        if len(bound) < len(slots):
            self._bind_rest(plan, slots, bound)
        stream = stream_of(handle or plan.handle)
        use_on(variant_pack.values(), stream)
        if overrides is None:
            plan.launch(state, workspace, stream)
        else:
            plan.launch_overridden(overrides, workspace, plan.handle_on_stream(handle))

    def _overridden_slots(self, plan: Plan, overrides: Overrides) -> list[Slot]:
        """The slots with other shapes, including results whose shapes are inferred from them."""
        slots = plan.overridden(overrides)
        uids, shapes, strides = overrides
        given = {uid: (dims, steps) for uid, dims, steps in zip(uids, shapes, strides, strict=True)}
        if not self._operations:
            self._refuse_open_outputs(slots, given)
        open_ = [t for t, shape in self._given_shapes.items() if not all(shape) and not t._is_virtual]
        if all(tensor._uid in given for tensor in open_):
            return slots
        known = str(overrides)
        if known not in self._following:
            lowering = Lowering(self._compute_type, self._taken(given))
            for operation in self._operations:
                lowering.operation(operation)
            self._following[known] = {t.get_uid(): lowering.shape_of(t) for t in open_}
        found = self._following[known] | given
        return plan.overridden(
            (list(found), [dims for dims, _ in found.values()], [steps for _, steps in found.values()])
        )

    def _refuse_open_outputs(self, slots: Sequence[Slot], overrides: Mapping[int, Shape]) -> None:
        """Rejects outputs whose shapes are unknown: a loaded plan can infer shapes, but Python does not know
        its operations."""
        for slot in slots:
            if slot.is_output and slot.uid not in overrides:
                raise BadParameterError(
                    f"execute: {slot} may change with the shapes of others, and the plan was loaded without "
                    "its graph. Name it in override_uids, too."
                )

    def _slot_of_unknown(self, plan: Plan, key: Any) -> int | None:
        """The slot for a key of a variant pack that does not belong to this graph; None if its memory is
        ignored."""
        raise BadParameterError(
            self.plan.shared_name(self._label, key)
            or f"{self._label}: the variant pack names {key!r}, which is not one of its tensors. Use its "
            "tensors, "
            "uids or names."
        )

    def _bind_rest(self, plan: Plan, slots: Sequence[Slot], bound: set[int]) -> None:
        """Binds values that were passed as operands; any slot still without memory is an error."""
        for i, slot in enumerate(slots):
            if i in bound:
                continue
            if slot.uid not in plan.values:
                raise BadParameterError(f"{self._label}: the variant pack has no buffer for {slot}. Add it.")
            value = plan.values[slot.uid]
            if isinstance(value, (int, float)):
                plan.put_number(i, value)
            else:
                plan.put(i, value, slot)

    def populate_cuda_graph(self, handle: Handle, variant_pack: Any, workspace: Any, cuda_graph: int) -> None:
        """Not supported. Instead, call execute while its stream is captured into a CUDA graph."""
        raise NotSupportedError(
            f"{self._label}: plans are not written into CUDA graphs directly. Capture the stream of "
            "execute() instead.",
            enums.status.NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API,
        )

    update_cuda_graph = populate_cuda_graph

    # ---- Addresses ----

    def _prepare_variant_pack_template(self) -> None:
        """Determines the slots that callers fill, in ascending order of uids: all except values passed as
        operands."""
        plan = self.plan
        self._template = sorted(slot.uid for slot in plan.slots if slot.uid not in plan.values)

    def _get_variant_pack_uids_sorted(self) -> list[int]:
        """The uids whose addresses _execute_with_ptrs accepts, in its order."""
        if self._template is None:
            self._prepare_variant_pack_template()
        assert self._template is not None
        return list(self._template)

    def _execute_with_ptrs(
        self, ptrs: Sequence[int], workspace: int | None = None, handle: Handle | int | None = None
    ) -> None:
        """Runs the selected plan on addresses, one per uid of _get_variant_pack_uids_sorted, without checking
        them. workspace: an address; None or 0 allocates."""
        self._execute_addresses(self.plan, ptrs, workspace, handle)

    def _execute_with_raw_ptrs(
        self,
        address: int,
        count: int,
        workspace: int | None = None,
        handle: Handle | int | None = None,
        index: int = -1,
    ) -> None:
        """Like _execute_with_ptrs, but reads `count` addresses from an array in memory. index: the plan to
        run; -1 is the selected one."""
        plan = self.plan if index < 0 else self._built_plan(index)
        ptrs = ffi.unpack(ffi.cast("uint64_t *", address), count) if address and count > 0 else ()
        self._execute_addresses(plan, ptrs, workspace, handle)

    def _execute_addresses(
        self, plan: Plan, ptrs: Sequence[int], workspace: int | None, handle: Handle | int | None
    ) -> None:
        uids = self._get_variant_pack_uids_sorted()
        if len(ptrs) != len(uids):
            raise BadParameterError(
                f"{self._label}: {counted(len(ptrs), 'address', 'addresses')}, expected {len(uids)}. "
                f"Give one for each uid of {', '.join(map(str, uids))}, in this order."
            )
        bound = set()
        for uid, address in zip(uids, ptrs, strict=True):
            i = plan.index[uid]
            plan.put_address(i, address)
            bound.add(i)
        self._bind_rest(plan, plan.slots, bound)
        plan.launch(plan.thread.state, workspace, stream_of(backend.handle_of(handle) or plan.handle))

    # ---- Calls, also with other shapes ----

    def __call__(self, *arrays: Any, handle: Handle | None = None, **named: Any) -> Any:
        """Builds the graph if necessary and runs it: arrays by position or by tensor name, or a dict of them.
        Returns the output, or a tuple of the outputs. Arrays of other shapes, such as another batch size, get
        a plan of their own if the graph allows it, which is built once and cached; explain() lists these
        plans.

        >>> import numpy as np, weft
        >>> g = weft.Graph(handle=weft.create_handle("cpu"))
        >>> a, b = (g.tensor([2], data_type="f32", name=name) for name in "ab")
        >>> y = g.sub(a, b)
        >>> g(np.float32([5, 6]), np.float32([1, 2]))
        array([4., 4.], dtype=float32)
        >>> g(b=np.float32([1, 2]), a=np.float32([9, 9]))
        array([8., 7.], dtype=float32)
        """
        if self._plan is None:
            self.build()
        values: dict[Any, Any] = dict(named)
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            values = {self._find(key)._uid: value for key, value in arrays[0].items()} | values
            arrays = ()
        return self._run(arrays, values, stream=None if handle is None else stream_of(handle))

    def _run(self, arrays: Sequence[Any], values: Mapping[Any, Any], **options: Any) -> Any:
        """Runs the plan for the shapes of the arrays. While the graph's own plan is the only one, it is tried
        first, so that a matching call has no extra cost."""
        if not self._other_plans:
            try:
                return self.plan.run(arrays, values, **options)
            except BadParameterError:
                plan = self._plan_for(self.plan.other_shapes(arrays, values))
                if plan is None:
                    raise
        else:
            plan = self._plan_for(self.plan.other_shapes(arrays, values))
        return (plan or self.plan).run(arrays, values, **options)

    def _plan_for(self, shapes: Mapping[int, Shape]) -> Plan | None:
        """The plan for other dims and strides of some tensors, by uid, and of the results inferred from them;
        None if no shape differs, or if the graph does not allow it."""
        key = tuple(sorted(shapes.items()))
        if not shapes or not self._operations or key in self._other_plans:
            return self._other_plans.get(key)
        with self._plans_lock:  # so that only one of several threads builds the plan
            if key not in self._other_plans and (plan := self._planned_for(shapes)) is not None:
                while len(self._other_plans) >= _OTHER_PLANS:
                    self._other_plans.pop(next(iter(self._other_plans)))
                self._other_plans[key] = plan
            return self._other_plans.get(key)

    def _planned_for(self, shapes: Mapping[int, Shape]) -> Plan | None:
        try:
            planner = self._planner_of(self._with_shapes(shapes))
            planner.ask(self._heuristics)
            planner.keep(self._filters, self._workspace_limit)
            return planner.plans[planner.build(build_plan_policy.HEURISTICS_CHOICE, self._wrapper())]
        except WeftError:
            return None

    def _with_shapes(self, shapes: Mapping[int, Shape]) -> list[Descriptor]:
        """The finalized operations of tensors with other shapes."""
        lowering = Lowering(self._compute_type, self._taken(shapes))
        return [lowering.operation(operation) for operation in self._operations]

    def _taken(self, overrides: Mapping[int, Shape]) -> dict[Tensor, Shape]:
        """The given shapes, by uid, and for results the properties that were set; the rest is inferred
        again."""
        properties = {t: ((), ()) if t._is_virtual else shape for t, shape in self._given_shapes.items()}
        properties |= dict.fromkeys(self._nested_results(), ((), ()))
        return properties | {t: overrides[t.get_uid()] for t in self._tensors if t._uid in overrides}

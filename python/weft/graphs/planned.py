"""From a graph to plans: candidates, filters, building and autotuning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft import arguments, buffers, enums
from weft.arguments import counted
from weft.backend import Descriptor, Handle
from weft.devices import DeviceProperties, KernelCache, default_handle, device_of
from weft.enums import attribute_name, build_plan_policy, descriptor_type, heur_mode
from weft.errors import BadParameterError
from weft.graphs.recorded import RecordedGraph
from weft.plan import Overrides, Plan
from weft.planning import Candidate, Knob, Planner, Wrapper
from weft.tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Self

    from weft.autotune import Trial


class PlannedGraph(RecordedGraph):
    """A graph for a device, its candidate plans, and the selected one."""

    plan_type: type[Plan] = Plan
    """The class of plans; a front end for another library's scripts may derive its own."""
    _handle: Handle | None = None
    _device_property: DeviceProperties | None = None
    _kernel_cache: KernelCache | None = None
    _sm_count: int | None = None
    _is_dynamic = _is_override = False
    _io_names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    _heuristics: tuple[heur_mode | str, ...] = ()
    _workspace_limit: int | None = None
    _made_planner: Planner | None = None
    _plan: Plan | None = None

    def __init__(self, *recorded: Any) -> None:
        super().__init__(*recorded)
        self._filters: list[Callable[[Candidate], str]] = []
        self.trials: list[Trial] = []
        """The plans that autotune timed, fastest first; empty if the choice was stored on disk."""

    # ---- The device ----

    def _set_device(self, device: str | Handle | DeviceProperties) -> None:
        """Sets the device by name; raises if the graph already has one."""
        if self._handle is not None or self._device_property is not None:
            raise BadParameterError(
                f"{self._label}: device is {device!r}, and the graph has a handle or device_property "
                "already. Give one of them."
            )
        resolved = device_of(device) if isinstance(device, str) else device
        if isinstance(resolved, Handle):
            self._handle = resolved
        else:
            self._device_property = resolved

    @property
    def handle(self) -> Handle:
        """The given handle, otherwise the process-wide one of the arrays' device or of the default device."""
        if self._handle is None:
            self._handle = default_handle(*(self._seen_device or (None, 0)))
        return self._handle

    # ---- Candidates ----

    def build_operation_graph(self) -> None:
        """Combines the operations into a graph and validates it."""
        self._planner()

    def _planner(self) -> Planner:
        """The candidates for the finalized graph."""
        if self._made_planner is not None:
            return self._made_planner
        self.validate()
        if not self._operations:
            raise BadParameterError(
                f"{self._label}: it has no operations. Add one, for example matmul(A, B)."
            )
        self._made_planner = self._planner_of(self._op_descriptors)
        return self._made_planner

    def _planner_of(self, operations: Sequence[Descriptor]) -> Planner:
        """The candidates for finalized operations, with the graph's own shapes or with others."""
        graph = Descriptor(descriptor_type.OPERATIONGRAPH_DESCRIPTOR)
        if self.name:
            graph.set(attribute_name.NAME_EXT, "CHAR", self.name)
        handle = None if self._device_property is not None else self.handle
        if handle is not None:
            graph.set(attribute_name.OPERATIONGRAPH_HANDLE, "HANDLE", [handle.pointer])
        graph.set(attribute_name.OPERATIONGRAPH_OPS, "BACKEND_DESCRIPTOR", operations)
        if self._is_dynamic:
            graph.set(attribute_name.OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED, "BOOLEAN", [True])
        if self._is_override:
            graph.set(attribute_name.OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED, "BOOLEAN", [True])
        graph.finalize()
        planner = Planner(graph, handle, self._device_property, self._kernel_cache, self._sm_count)
        planner.label = self._label
        return planner

    def create_execution_plans(self, mode: Sequence[heur_mode | str] | heur_mode | str = ()) -> None:
        """Asks the heuristics for engine configurations, best first."""
        modes = [mode] if isinstance(mode, (str, heur_mode)) else list(mode)
        self._planner().ask(modes or self._heuristics)

    def create_execution_plan(self, engine_id: int, knobs: Mapping[int | str, int] | None = None) -> None:
        """Adds one engine with knobs set by hand; see get_engine_count and get_knobs_for_engine."""
        self._planner().choose(engine_id, knobs or {})

    def get_engine_count(self) -> int:
        """The number of engines that can be queried."""
        graph = self._planner().graph
        return int(graph.get_one(attribute_name.OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, "INT64"))

    def get_knobs_for_engine(self, engine_id: int) -> list[Knob]:
        """The tuning parameters of an engine."""
        return self._planner().knobs(engine_id)

    def get_families_for_engine(self, engine_id: int) -> list[str]:
        """The kernel families of an engine: the i-th corresponds to bit i of knob WITHOUT_FAMILIES_EXT, which
        excludes the families whose bits are set."""
        return self._planner().families(engine_id)

    def support(self, device: DeviceProperties | None = None) -> list[dict[str, Any]]:
        """Every engine's answer for this graph: a predicted time, or the reason why it declines. `device` is
        by default the graph's own.

        >>> import numpy as np, weft
        >>> g = weft.Graph()
        >>> y = g.exp(np.float32([0, 1]))
        >>> [answer["supported"] for answer in g.support() if answer["engine"] == "cpu.reference"]
        [True]
        """
        return self._planner().support(device)

    def get_refusals(self) -> list[str]:
        """Candidates that were dropped, or that could not be built so that the next one was tried, each with
        its reason.

        >>> import weft
        >>> g = weft.Graph(handle=weft.create_handle("cpu"), io_data_type="f32")
        >>> y = g.exp(g.tensor([4]))
        >>> g.deselect_engines(["cpu.fast"]).build().get_refusals()[0].startswith("cpu.fast")
        True
        """
        return list(self._planner().failures)

    # ---- Filters ----

    def select_numeric_notes(self, notes: Iterable[enums.numerical_note]) -> Self:
        """Keeps only engines that have all of these notes. Like all filters, call it before check_support."""
        wanted = set(notes)
        return self._filter(lambda c: "" if wanted <= c.numerical_notes else "its numerical notes")

    def deselect_numeric_notes(self, notes: Iterable[enums.numerical_note]) -> Self:
        """Drops engines that have one of these notes."""
        barred = set(notes)
        return self._filter(lambda c: "its numerical notes" if barred & c.numerical_notes else "")

    def select_behavior_notes(self, notes: Iterable[enums.behavior_note]) -> Self:
        """Keeps only engines that have all of these notes."""
        wanted = set(notes)
        return self._filter(lambda c: "" if wanted <= c.behavior_notes else "its behavior notes")

    def deselect_behavior_notes(self, notes: Iterable[enums.behavior_note]) -> Self:
        """Drops engines that have one of these notes."""
        barred = set(notes)
        return self._filter(lambda c: "its behavior notes" if barred & c.behavior_notes else "")

    def deselect_engines(self, names: Iterable[str]) -> Self:
        """Drops plans whose tag (eng0_k2=3) or engine name (cpu.fast) contains one of these strings.

        >>> import numpy as np, weft
        >>> g = weft.Graph()
        >>> y = g.exp(np.float32([0, 1]))
        >>> g.deselect_engines(["cpu.fast"]).build().plan.engine
        'cpu.reference'
        """
        texts = list(names)
        return self._filter(lambda c: "its name" if any(t in c.tag or t in c.name for t in texts) else "")

    def deselect_workspace_greater_than(self, workspace: int) -> Self:
        """Drops plans that need more bytes of workspace, unless the engine has slower kernels that need
        less."""
        limit = self._workspace_limit
        self._workspace_limit = workspace if limit is None else min(limit, workspace)
        return self._filter(
            lambda c: (
                f"its workspace of {counted(c.workspace_size, 'byte')}"
                if c.workspace_size > workspace
                else ""
            )
        )

    def _filter(self, refuse: Callable[[Candidate], str]) -> Self:
        """Drops the candidates for which `refuse` returns a reason."""
        if self._plan is not None:
            raise BadParameterError(
                f"{self._label}: it is built, and filters would not change its plan. Filter before build()."
            )
        self._filters.append(refuse)
        return self

    def check_support(self) -> None:
        """Applies the filters; raises if no configuration is left."""
        if not self._planner().candidates:
            self.create_execution_plans()
        self._planner().keep(self._filters, self._workspace_limit)

    # ---- Building ----

    def build_plans(self, policy: build_plan_policy = build_plan_policy.HEURISTICS_CHOICE) -> None:
        """Builds the best plan that can be built, or with policy ALL every one."""
        if not self._planner().candidates:
            self.check_support()
        self._choose(self._planner().build(policy, self._wrapper()))

    def build_plan_at_index(self, index: int) -> None:
        """Builds one of the candidates and selects it as the plan that execute runs."""
        self._build_one(self._planner().checked(index))
        self._choose(index)

    def build(
        self,
        heuristics: Sequence[heur_mode | str] | heur_mode | str = (),
        policy: build_plan_policy = build_plan_policy.HEURISTICS_CHOICE,
        *,
        device: str | Handle | DeviceProperties | None = None,
        launch: str = "kernels",
    ) -> Self:
        """All steps in one call: validate, build_operation_graph, create_execution_plans, check_support,
        build_plans. `device` is that of Graph, if it was not given there. With launch="graph", the plan's
        kernels are launched as one CUDA graph; see Plan.as_cuda_graph."""
        if launch not in ("kernels", "graph"):
            raise BadParameterError(f"{self._label}: launch is {launch!r}. Use 'kernels' or 'graph'.")
        if device is not None:
            self._set_device(device)
        self.create_execution_plans(heuristics)
        self.check_support()
        self.build_plans(policy)
        if launch == "graph":
            self._use(self.plan.as_cuda_graph())
        return self

    def autotune(
        self,
        variant_pack: Mapping[Tensor | int | str, Any] | None = None,
        *,
        seconds: float = 10.0,
        remember: bool = True,
    ) -> Self:
        """Times candidate plans on the device, knob by knob, and selects the fastest. Progress is shown on a
        terminal. The result is stored next to the kernel cache, for this graph, device and version, so the
        next process uses it without measuring.

        Args:
            variant_pack: memory to run on, as for execute; outputs are overwritten. Missing inputs are filled
                with generated numbers, zeros for integer types; pass inputs that determine the work.
            seconds: the time after which no further candidate is tried; the first one is always timed.
            remember: whether to read and write the stored results.

        >>> import weft
        >>> g = weft.Graph(io_data_type="f32", handle=weft.create_handle("cpu"))
        >>> y = g.softmax(g.tensor([64, 64], name="x"))
        >>> fastest = min(g.autotune(seconds=0.5, remember=False).trials, key=lambda t: t.seconds)
        >>> g.get_plan_name() == fastest.tag
        True
        """
        from weft import autotune

        planner = self._planner()
        if not planner.candidates:
            self.check_support()
        given = {self._find(key).get_uid(): value for key, value in (variant_pack or {}).items()}
        device = self._device_property or DeviceProperties(handle=self.handle)
        memory = autotune.Memory(self.key(), planner, device) if remember else None
        index, self.trials = autotune.tune(planner, self._build_one, given, seconds, memory)
        self._build_one(index)
        self._choose(index)
        return self

    def _build_one(self, index: int) -> Plan:
        planner = self._planner()
        planner.build_at(index, self._wrapper())
        plan = planner.plans[index]
        assert plan is not None
        return plan

    def _wrapper(self) -> Wrapper:
        """Creates plans with this graph's order of inputs and outputs and the values passed as operands."""
        inputs, outputs = ([self._find(name) for name in names] for names in self._io_names)
        for role, tensors in (("inputs", inputs), ("outputs", outputs)):
            for tensor in tensors:
                if tensor._is_virtual:
                    raise BadParameterError(
                        f"{self._label}: {role} names {tensor!r}, which has no memory. Call set_output(True) "
                        "on it, or name another."
                    )
        uids = [t.get_uid() for t in outputs or self._results() if not t._is_virtual]
        values = {t.get_uid(): t.value for t in self._tensors if t.value is not None and not t.is_constant}
        order, place = [t.get_uid() for t in inputs], self._device_property or self._handle
        make = self.plan_type
        return lambda descriptor, with_code: make(descriptor, order, uids, values, place, with_code)

    def _choose(self, index: int) -> None:
        plan = self._planner().plans[index]
        assert plan is not None
        self._use(plan)

    def _use(self, plan: Plan) -> None:
        self._plan = plan

    def set_io_tuples(self, inputs: Sequence[str], outputs: Sequence[str]) -> Self:
        """Names the tensors that calls accept and return by position: by their names, or "matmul_0::A".

        >>> import numpy as np, weft
        >>> g = weft.Graph(handle=weft.create_handle("cpu"))
        >>> a, b = (g.tensor([2], data_type="f32", name=name) for name in "ab")
        >>> y = g.sub(a, b, name="difference")
        >>> g.set_io_tuples(["b", "a"], ["difference::y"])(np.float32([1, 2]), np.float32([5, 6]))
        array([4., 4.], dtype=float32)
        """
        self._io_names = (tuple(inputs), tuple(outputs))
        if self._plan is not None:
            self._use(self._wrapper()(self._plan.descriptor, self._plan.descriptor_with_code))
        return self

    # ---- Plans ----

    @property
    def plan(self) -> Plan:
        """The plan that execute runs."""
        if self._plan is None:
            raise BadParameterError(f"{self._label}: it has no plan yet. Call build() first.")
        return self._plan

    def _built_plan(self, index: int) -> Plan:
        plan = self._planner().plans[self._planner().checked(index)]
        if plan is None:
            raise BadParameterError(
                f"{self._label}: plan {index} is not built. Call build_plan_at_index({index})."
            )
        return plan

    def get_execution_plan_count(self) -> int:
        """The number of plans that were created."""
        return len(self._planner().plans)

    def get_plan_name(self) -> str:
        """The tag of the selected plan."""
        return self.plan.tag

    def get_plan_name_at_index(self, index: int) -> str:
        """The tag of a plan, such as eng0_k2=3."""
        return self._candidate(index).tag

    def get_workspace_size(
        self,
        handle: Handle | None = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
    ) -> int:
        """Bytes of workspace that execute needs; for other shapes if they are passed as to execute."""
        if not override_uids:
            return self.plan.workspace_size
        return self.plan.workspace_of(
            shape_overrides(override_uids, override_shapes, override_strides), handle
        )

    def get_workspace_size_plan_at_index(
        self,
        index: int,
        handle: Handle | None = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
    ) -> int:
        """Bytes of workspace that a plan needs; for other shapes the plan must be built."""
        if not override_uids:
            return self._candidate(index).workspace_size
        overrides = shape_overrides(override_uids, override_shapes, override_strides)
        return self._built_plan(index).workspace_of(overrides, handle)

    def get_behavior_notes(self) -> list[enums.behavior_note]:
        """Effects and requirements of the selected plan other than arithmetic."""
        tags = [candidate.tag for candidate in self._planner().candidates]
        return self.get_behavior_notes_for_plan_at_index(tags.index(self.plan.tag))

    def get_behavior_notes_for_plan_at_index(self, index: int) -> list[enums.behavior_note]:
        """Effects and requirements of a plan other than arithmetic."""
        return sorted(self._candidate(index).behavior_notes)

    def _candidate(self, index: int) -> Candidate:
        planner = self._planner()
        return planner.candidates[planner.checked(index)]


def shape_overrides(uids: Sequence[int], shapes: Any, strides: Any) -> Overrides:
    """The shape overrides of execute as integers; strides are contiguous if not given."""
    dims = [arguments.integers(shape, "execute: override shape") for shape in shapes or ()]
    if strides:
        steps = [arguments.integers(stride, "execute: override strides") for stride in strides]
    else:
        steps = [buffers.packed_strides(shape) for shape in dims]
    return arguments.integers(uids, "execute: override_uids"), dims, steps

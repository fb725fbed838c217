"""Plans of a graph, with cuDNN's methods to list, select and filter them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from weft import buffers, dtypes, slots
from weft.cudnn import enums
from weft.cudnn.operations import Operations
from weft.enums import data_type
from weft.errors import BadParameterError
from weft.plan import Plan
from weft.run_state import RunState
from weft.slots import Slot


class OtherBooleans(BadParameterError):
    """The memory of a BOOLEAN tensor has bits but the plan reads bytes, or vice versa."""

    def __init__(self, slot: Slot) -> None:
        is_bytes = slot.data_type is data_type.BYTE_BOOLEAN
        super().__init__(
            f"{slot} is BOOLEAN, with a {'byte' if is_bytes else 'bit'} per element, and its buffer has a "
            f"{'bit' if is_bytes else 'byte'} for each. Give a buffer of the other kind."
        )
        self.uid = slot.uid


def _has_other_booleans(slot: Slot, memory: buffers.Memory) -> bool:
    """True if the memory has as many bytes as the tensor has bits, or vice versa."""
    elements = math.prod(slot.dims)
    if slot.data_type is data_type.BYTE_BOOLEAN:
        return memory.size == (elements + 7) // 8 < elements
    is_bool = slots.type_of(memory.dtype) is data_type.BYTE_BOOLEAN
    return slot.data_type is data_type.BOOLEAN and elements > 1 and (is_bool or memory.size == elements)


class ScriptPlan(Plan):
    """A plan that rounds numbers of any library to the type of a by-value scalar, and accepts torch
    parameters as memory, as cuDNN does. execute() interprets memory according to the tensor, whatever the
    type, dims and strides of the array."""

    def _checked_address(
        self, state: RunState, where: str, i: int, slot: Slot, value: Any, memory: buffers.Memory
    ) -> int:
        value = value.detach() if buffers.requires_grad(value) else value
        if _has_other_booleans(slot, memory):
            raise OtherBooleans(slot)
        is_number = slot.is_by_value and slots.is_number_of_other_type(slot, memory)
        if where == "plan" or is_number:
            return super()._checked_address(state, where, i, slot, value, memory)
        slots.check_size(where, slot, memory.size)
        slots.check_writable(where, slot, memory.is_writable)
        return memory.address

    @staticmethod
    def _scalar_address(state: RunState, where: str, slot: Slot, value: Any, i: int) -> int:
        try:
            return Plan._scalar_address(state, where, slot, value, i)
        except BadParameterError:
            packed = _rounded(slot, value) if slot.is_by_value else None
            if packed is None:
                raise
            return state.scalar(i, packed)


def _rounded(slot: Slot, value: Any) -> bytes | None:
    """A number in the slot's type; None for other values and for numbers outside the range of an integer
    type."""
    try:
        number = float(value) if isinstance(value, (int, float)) else float(_item(value))
        if not dtypes.is_floating(slot.data_type):
            return dtypes.fitting_bytes(slot.data_type, int(number))
        return bytes(dtypes.numpy_dtype(slot.data_type).type(number).tobytes())
    except (TypeError, ValueError, OverflowError):
        return None


def _item(value: Any) -> Any:
    """The single number of an array, a NumPy scalar or a described buffer."""
    owner = value.owner if isinstance(value, buffers.Buffer) else value
    return owner.item() if hasattr(owner, "item") else owner


class PlanEntry(NamedTuple):
    """A plan in a graph's list."""

    position: int
    """The index that calls accept."""
    name: str
    engine_id: int
    engine: str
    knobs: dict[Any, int]
    workspace_size: int
    is_built: bool


class Plans(Operations):
    """A graph's plans: created, filtered, listed, selected."""

    plan_type = ScriptPlan

    # ---- Creating and filtering ----

    def create_execution_plans(self, heuristics: Any = None) -> None:
        """Asks the heuristics for plans, best first."""
        super().create_execution_plans(_modes(heuristics))

    def create_execution_plan(self, engine_id: int, knobs: Mapping[Any, int] | None = None) -> None:
        """Adds one engine with knobs set by hand; see get_engine_count and get_knobs_for_engine."""
        converted = {enums.to_weft(key): value for key, value in (knobs or {}).items()}
        super().create_execution_plan(engine_id, converted)

    def build_plans(self, *args: Any, ctx: Any = None, policy: Any = None) -> None:
        """Builds the best plan that can be built, or with build_plan_policy.ALL every one. ctx is ignored:
        plans are built for the graph's own device."""
        given = [*args, policy] if policy is not None else list(args)
        policies = [a for a in given if isinstance(a, (enums.build_plan_policy, int))]
        chosen = policies[0] if policies else enums.build_plan_policy.HEURISTICS_CHOICE
        super().build_plans(enums.to_weft(enums.build_plan_policy(int(chosen))))

    def build(self, heuristics: Any = None, ctx: Any = None) -> Plans:  # type: ignore[override]
        """All steps in one call: validate, build_operation_graph, create_execution_plans, check_support,
        build_plans."""
        super().build(_modes(heuristics))
        return self

    def select_numeric_notes(self, notes: Iterable[Any]) -> Plans:
        """Keeps only plans that have all of these notes. Like all filters, call it before check_support."""
        super().select_numeric_notes(map(enums.to_weft, notes))
        return self

    def deselect_numeric_notes(self, notes: Iterable[Any]) -> Plans:
        """Drops plans that have one of these notes."""
        super().deselect_numeric_notes(map(enums.to_weft, notes))
        return self

    def select_behavior_notes(self, notes: Iterable[Any]) -> Plans:
        """Keeps only plans that have all of these notes."""
        super().select_behavior_notes(map(enums.to_weft, notes))
        return self

    def deselect_behavior_notes(self, notes: Iterable[Any]) -> Plans:
        """Drops plans that have one of these notes."""
        super().deselect_behavior_notes(map(enums.to_weft, notes))
        return self

    def deselect_engines(self, engine_names: Iterable[str]) -> Plans:
        """Drops plans whose name (weft0_k2=3) or engine contains one of these strings. Names of cuDNN's own
        engines, such as eng0, match none of Weft's."""
        texts = list(engine_names)
        self._filter(lambda c: "its name" if any(t in _name(c.tag) or t in c.name for t in texts) else "")
        return self

    def deselect_workspace_greater_than(self, workspace_limit: int) -> Plans:
        """Drops plans that need more bytes of workspace, unless slower kernels need less."""
        super().deselect_workspace_greater_than(workspace_limit)
        return self

    # ---- Listing and selecting ----

    @property
    def plans(self) -> list[PlanEntry]:
        """The plans that were created, best first."""
        planner = self._planner()
        return [
            PlanEntry(
                i,
                _name(c.tag),
                c.engine_id,
                c.name,
                _knobs(c.knobs),
                c.workspace_size,
                planner.plans[i] is not None,
            )
            for i, c in enumerate(planner.candidates)
        ]

    def backend_plan_entries(self) -> list[PlanEntry]:
        """Equal to `plans`: every plan of Weft comes from its library."""
        return self.plans

    def get_engine_and_knobs_at_index(self, index: int) -> tuple[int, dict[Any, int]]:
        """A plan's engine and its knobs, in the form that create_execution_plan accepts."""
        candidate = self._candidate(index)
        return candidate.engine_id, _knobs(candidate.knobs)

    def get_knobs_for_engine(self, engine_id: int) -> list[Any]:
        """The tuning parameters of an engine."""
        knobs = super().get_knobs_for_engine(engine_id)
        return [knob(enums.from_weft(k.type), k.max, k.min, k.stride) for k in knobs]

    def select_plan(self, index: int) -> None:
        """Selects a plan of the list for execute; builds it if necessary."""
        self.build_plan_at_index(index)

    @property
    def selected_engine(self) -> str | None:
        """The name of the plan that execute runs; None before build."""
        return _name(self._plan.tag) if self._plan is not None else None

    def get_plan_name(self) -> str:
        """The name of the plan that execute runs."""
        return _name(super().get_plan_name())

    def get_plan_name_at_index(self, index: int) -> str:
        """The name of a plan, such as weft0_k2=3."""
        return _name(super().get_plan_name_at_index(index))

    def inspect(self) -> dict[str, Any]:
        """The graph and its plans as a dict: nodes, tensors, plans and the steps of the selected plan."""
        return {
            "name": self.name,
            "nodes": [(node.name, node.node_type.name) for node in self._nodes],
            "tensors": [repr(tensor) for tensor in self._tensors],
            "plans": [entry._asdict() for entry in self.plans] if self._made_planner is not None else [],
            "selected": self.selected_engine,
            "report": self._plan.report if self._plan is not None else None,
        }

    def get_behavior_notes(self) -> list[Any]:
        """Effects and requirements of the selected plan other than arithmetic."""
        return [enums.from_weft(note) for note in super().get_behavior_notes()]

    def get_behavior_notes_for_plan_at_index(self, index: int) -> list[Any]:
        """Effects and requirements of a plan other than arithmetic."""
        return [enums.from_weft(note) for note in super().get_behavior_notes_for_plan_at_index(index)]


class knob(NamedTuple):
    """A tuning parameter of an engine and its legal values."""

    type: Any
    max_value: int
    min_value: int
    stride: int


def _name(tag: str) -> str:
    """The plan's name in this module. Weft's tag begins like cuDNN's engine names, which scripts deselect."""
    return f"weft{tag.removeprefix('eng')}"


def _modes(heuristics: Any) -> list[Any]:
    modes = heuristics if isinstance(heuristics, (list, tuple)) else [heuristics]
    return [enums.to_weft(mode) for mode in modes if mode is not None]


def _knobs(knobs: Mapping[int, int]) -> dict[Any, int]:
    from weft.enums import knob_type

    return {enums.from_weft(knob_type(key)): value for key, value in knobs.items()}

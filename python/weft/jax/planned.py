"""Plan calls with JAX arrays on a GPU. XLA orders such a call on its own stream after the work that produces
the arguments, and allocates the results, so these are ordinary JAX arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from weft_cffi._weft import ffi

from weft import buffers, dtypes, slots
from weft.enums import device_kind
from weft.errors import BadParameterError
from weft.jax.calls import call
from weft.jax.graph_builder import Call, Form, Operator, Prepared, prepared
from weft.plan import OTHER_DEVICE, Plan
from weft.run_state import RunState


class Places(NamedTuple):
    """A plan's slots, grouped by how XLA provides them."""

    arguments: tuple[int, ...]
    results: tuple[int, ...]
    """All slots that the plan writes; those that a call returns come first, in its order."""
    numbers: tuple[int, ...]
    """By-value scalars, which are constants of the XLA program."""


class Planned(Operator):
    """A plan as an operator whose attributes are the values of its by-value scalars."""

    def __init__(self, plan: Plan) -> None:
        super().__init__("plan", self._refuse)
        self._plan, every = plan, range(len(plan.slots))
        results = dict.fromkeys([*plan._outputs, *(i for i in every if plan.slots[i].is_output)])
        numbers = [i for i in every if plan.slots[i].is_by_value and i not in results]
        arguments = [i for i in every if i not in results and i not in numbers]
        self.places = Places(tuple(arguments), tuple(results), tuple(numbers))

    def _refuse(self, *_: Any) -> None:
        raise AssertionError("a plan has no graph to build")

    def results(self, call: Call, arguments: Sequence[Form]) -> tuple[Form, ...]:
        """Returns the forms of the slots that the plan writes."""
        of = [self._plan.slots[i] for i in self.places.results]
        return tuple(Form(slot.dims, dtypes.numpy_dtype(slot.data_type)) for slot in of)

    def prepared(self, call: Call, arguments: Sequence[Form], kind: device_kind, arch: str) -> Prepared:
        """Returns the plan itself."""
        uids = [slot.uid for slot in self._plan.slots]
        at = {uids[i]: position for position, i in enumerate(self.places.arguments)}
        at |= {uids[i]: ~position for position, i in enumerate(self.places.results)}
        words = dict(zip((uids[i] for i in self.places.numbers), call.attributes, strict=True))
        return prepared(self._plan, at, len(arguments), len(self.places.results), kind, words)


def run(plan: Plan, values: Mapping[int, Any]) -> list[Any]:
    """Returns the outputs of a call, in the plan's order. values: arrays and numbers by slot."""
    operator = plan._for_jax = plan._for_jax or Planned(plan)
    positions = operator.places
    words = tuple(_word(plan, i, values) for i in positions.numbers)
    devices = [device for i in positions.arguments for device in _devices(values.get(i))]
    device = next((each for each in devices if each.platform != "cpu"), devices[0])
    arrays = [_array(plan, i, values, device) for i in positions.arguments]
    return call(operator, *arrays, attributes=words)[: len(plan._outputs)]


def _devices(value: Any) -> list[Any]:
    """Returns the devices of a JAX array; empty for other values."""
    return list(value.devices()) if buffers.is_jax(value) else []


def _array(plan: Plan, i: int, given: Mapping[int, Any], device: Any) -> Any:
    """Returns an argument as a JAX array, after the usual checks of a call. device: where to move host
    arrays."""
    slot = plan.slots[i]
    if i not in given:
        raise slots.no_buffer("plan", slot)
    value = given[i]
    if buffers.is_numpy(value) or [each.platform for each in _devices(value)] == ["cpu"]:
        value = jax.device_put(value, device)
    if not buffers.is_jax(value):
        raise BadParameterError(
            f"plan: {slot} is a {type(value).__name__} but other buffers are JAX arrays. Pass "
            "jax.dlpack.from_dlpack(array), or the memory of all outputs as out={name: buffer}."
        )
    if len(value.devices()) > 1:
        raise BadParameterError(
            f"plan: {slot} is on {len(value.devices())} devices, but a plan runs on one. Pass one shard, "
            "or call weft.jax.graph inside jax.shard_map."
        )
    (place,) = value.devices()
    ordinal = None if place.platform == "cpu" else place.local_hardware_id
    slots.check_device("plan", slot, ordinal, plan._place, OTHER_DEVICE)
    slots.check_type("plan", slot, value.dtype)
    type_ = slots.type_of(value.dtype) or slot.data_type
    dims, packed = buffers.shape_of(value)
    slots.check_shape("plan", slot, buffers.Buffer(0, dims, packed, type_, plan.device, 0, False, value))
    return value


def _word(plan: Plan, i: int, values: Mapping[int, Any]) -> int:
    """Returns the bytes of a by-value scalar."""
    state, slot, owners = RunState(len(plan.slots)), plan.slots[i], list[Any]()
    plan._fill_slot(state, i, slot, dict(values), 0, None, owners)
    size = dtypes.of(slot.data_type).bits // 8
    return int.from_bytes(ffi.buffer(ffi.cast("char *", state.pointers[i]), size), "little", signed=True)

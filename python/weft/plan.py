"""Plans: graphs that are ready to run. A plan is immutable and may run on several threads at once; each
thread has its own array of addresses and its own workspace."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft_cffi._weft import ffi

from weft import backend, buffers, dtypes, slots
from weft.arguments import counted
from weft.bound_plan import BoundPlan
from weft.devices import DeviceProperties, default_handle
from weft.enums import attribute_name, data_type, descriptor_type, device_kind, status
from weft.errors import BadParameterError, WeftError
from weft.kernel import Kernel, kernel_of
from weft.memory import HOST_ALIGNMENT, DeviceArray, Staging, empty_like_kind, stream_of, use_on
from weft.progress import Waiting
from weft.run_state import RunState, Thread, is_known, known_of
from weft.slots import Slot

Overrides = tuple[Sequence[int], Sequence[Sequence[int]], Sequence[Sequence[int]]]
"""Uids, dims and strides of the tensors whose shape differs in one run."""


JaxRunner = Callable[["Plan", Mapping[int, Any]], list[Any]]
"""Runs a plan on arrays by slot, the first of which is JAX's on a GPU, and returns the outputs as JAX
arrays."""
_jax_runners: list[JaxRunner] = []


def run_jax_arrays_with(runner: JaxRunner) -> None:
    """Sets how plans run on JAX arrays on a GPU; weft.jax calls it when it is imported."""
    _jax_runners[:] = [runner]


def _jax_runner() -> JaxRunner:
    if not _jax_runners:
        raise BadParameterError(
            "plan: the first array is JAX's, on a GPU, where XLA runs the plan: expected weft.jax to be "
            "imported. Add `import weft.jax`, or pass the memory of all outputs as out={name: buffer}."
        )
    return _jax_runners[0]


class Plan:
    """A graph on an engine, ready to run: call it with arrays by tensor name.

    plan(x=X, w=W) allocates the outputs and returns them: a single output by itself, several as a tuple in
    the graph's order. out={"y": buffer} writes into the given memory instead.

    On a GPU, arrays of torch, CuPy, Numba, JAX and DLPack are used in place, and results belong to the
    library of the first array; if that is JAX, XLA runs the call, which needs `import weft.jax`. Work is
    enqueued on the current stream of that library, and the call does not wait for it. Arrays in host memory
    are also accepted, but cost time: each is copied to the device, outputs in host memory are copied back,
    and the call waits for all of it. If all arrays are in host memory, so are the results. Graph.execute()
    and bind() never copy.

    Memory on a GPU that is less aligned than its tensor was declared, such as that of x[1:], runs on a second
    plan with slower kernels. The first such call builds that plan; make it before capturing a stream.

    >>> import numpy as np, weft
    >>> g = weft.Graph(handle=weft.create_handle("cpu"))
    >>> y = g.add(g.tensor([2], data_type="f32", name="x"), 1.0, name="y")
    >>> plan, result = g.build().plan, np.empty(2, "f4")
    >>> plan(x=np.float32([1, 2]))
    array([2., 3.], dtype=float32)
    >>> plan(np.float32([3, 4]), out={"y": result}) is result
    True
    >>> [(slot.name, slot.dims, slot.is_output) for slot in plan.slots]
    [('x', (2,), False), ('y::y', (2,), True)]
    """

    def __init__(
        self,
        descriptor: backend.Descriptor,
        inputs: Sequence[int] = (),
        outputs: Sequence[int] = (),
        values: Mapping[int, Any] | None = None,
        place: backend.Handle | DeviceProperties | None = None,
        with_code: Callable[[], backend.Descriptor] | None = None,
    ) -> None:
        """Created by Graph. `with_code` returns a descriptor of the same plan that is saved with the machine
        code of its kernels."""
        self.descriptor, self.descriptor_with_code = descriptor, with_code or (lambda: descriptor)
        self.tag = descriptor.get_text(attribute_name.EXECUTION_PLAN_TAG_EXT)
        self.workspace_size = int(descriptor.get_one(attribute_name.EXECUTION_PLAN_WORKSPACE_SIZE, "INT64"))
        self._report: dict[str, Any] | None = None
        described = json.loads(descriptor.get_text(attribute_name.EXECUTION_PLAN_SLOTS_EXT))
        self.slots = [slots.slot_of(tensor) for tensor in described["tensors"]]
        self.engine: str = described["engine"]
        self.device = device_kind[described["device"]["kind"].upper()]
        self.ordinal: int = described["device"]["ordinal"]
        self._place = self.ordinal if self.device is device_kind.CUDA else None
        self._handle = place if isinstance(place, backend.Handle) else None
        self._properties = place if isinstance(place, DeviceProperties) else None
        is_described = isinstance(place, DeviceProperties) and place.is_described
        self._is_elsewhere = is_described and self.device is device_kind.CUDA
        self.values = dict(values or {})
        self.index: dict[Any, int] = {slot.uid: i for i, slot in enumerate(self.slots)}
        named, owners = Counter(slot.name for slot in self.slots), Counter(map(_owner, self.slots))
        # "act" is short for "act::y" if that is unambiguous.
        self.index |= {_owner(s): i for i, s in enumerate(self.slots) if owners[_owner(s)] == 1 and s.name}
        self.index |= {s.name: i for i, s in enumerate(self.slots) if named[s.name] == 1 and s.name}
        self._shared_names = {name for name, count in named.items() if count > 1 and name}
        self._written = [i for i, slot in enumerate(self.slots) if slot.is_output]
        self._outputs = [self.index[uid] for uid in outputs if uid in self.index] or self._written
        read = [i for i, slot in enumerate(self.slots) if not slot.is_output and slot.uid not in self.values]
        self._inputs = [self.index[uid] for uid in inputs if uid in self.index] or read
        # The forms of the arrays that were checked last: those that match for calls, and those that are large
        # enough for execute.
        self._fitting: list[tuple[Any, ...] | None] = [None] * len(self.slots)
        self._large_enough: list[tuple[Any, ...] | None] = [None] * len(self.slots)
        self.thread = Thread(len(self.slots))
        self._aligned = [(i, s.alignment - 1) for i, s in enumerate(self.slots) if s.is_aligned]
        self._frozen: dict[int, Any] = {}
        self._frozen_owners: list[Any] = []
        self._loose: Plan | None = None  # the plan for memory that is less aligned
        self._lent_size = self.workspace_size  # the size of a workspace passed by the caller
        self._for_jax: Any = None  # the plan as called by weft.jax
        self._run, self._pointer = backend.library().weftExecute, descriptor.pointer
        self._count = len(self.slots)

    @property
    def handle(self) -> backend.Handle:
        """The handle that the plan was created with, otherwise the process-wide handle of its device."""
        if self._handle is not None:
            return self._handle
        if self._is_elsewhere:
            raise BadParameterError(
                f"plan: it was built for a described device, {self.report['device']['name']}, and runs on "
                "one that is here. Save it with graph.serialize(code=True), and load it with "
                "Graph().deserialize(data, code=True) where the device is."
            )
        self._handle = default_handle(self.device, self.ordinal)
        return self._handle

    @property
    def report(self) -> dict[str, Any]:
        """The plan's report: its steps, their engines and the reasons."""
        # Not a cached_property, whose lock could stay locked forever in a forked child.
        if self._report is None:
            self._report = json.loads(self.descriptor.get_text(attribute_name.EXECUTION_PLAN_REPORT_EXT))
        return self._report

    # ---- Running ----

    def __call__(
        self,
        *arrays: Any,
        out: Mapping[str, Any] | None = None,
        workspace: Any = None,
        stream: int | None = None,
        **named: Any,
    ) -> Any:
        """Runs the plan. Arrays are passed by position, in the order of the inputs, or by tensor name; `out`
        passes memory for outputs, so that they are not allocated. `stream` is where a GPU enqueues the work;
        the default is the handle's stream if one was set, otherwise the current stream of torch or CuPy."""
        if out is not None and not isinstance(out, Mapping):
            first = self.slots[self._written[0]]
            raise BadParameterError(
                f"plan: out is {type(out).__name__}. Give a dict of outputs and their memory: "
                f"out={{{first.name or first.uid!r}: buffer}}."
            )
        return self.run(arrays, {**named, **(out or {})}, workspace, stream)

    def run(
        self,
        arrays: Sequence[Any],
        named: Mapping[Any, Any],
        workspace: Any = None,
        stream: int | None = None,
    ) -> Any:
        """Runs the plan on arrays by position and by tensor name or uid; allocates the outputs that were not
        passed."""
        given = self._gather(arrays, named)
        is_whole = self._place is None and all(i in given for i in self._written)
        is_for_jax = "jax" in sys.modules and buffers.is_jax(first := self._first_read(arrays, named))
        if is_for_jax and workspace is None and stream is None and self._is_for_xla(first, given):
            results = _jax_runner()(self, given)
            return self._results(dict(zip(self._outputs, results, strict=True)))
        like = None if is_whole else self._first_array(given)
        queue = stream_of(self.handle, like) if stream is None else stream
        state = self.thread.state
        staging = None if self._place is None else Staging(state.scratch, self.handle, queue)
        owners = self._fill(state, given, like, queue, staging)
        self.launch(state, workspace, queue)
        if staging is not None:
            staging.finish()
        del owners
        return self._results(given) if not is_for_jax else self._as_jax(given, arrays, named)

    def _first_read(self, arrays: Sequence[Any], named: Mapping[Any, Any]) -> Any:
        """The first array that a call reads."""
        read = [value for key, value in named.items() if not self.slots[self.index[key]].is_output]
        return next((value for value in (*arrays, *read) if buffers.is_array(value)), None)

    def _is_for_xla(self, first: Any, given: Mapping[int, Any]) -> bool:
        """True if XLA can run a call whose first array belongs to JAX: on a GPU, without an explicit stream,
        and with outputs of types that JAX supports."""
        written = [self.slots[i] for i in self._written if i not in given]
        return (
            self._place is not None
            and not (self._handle and self._handle.is_stream_set)
            and buffers.is_on_gpu(first)
            and len(written) == len(self._written)
            and all(dtypes.of(s.data_type).bits >= 8 for s in written)
            and all(buffers.is_packed(s.dims, s.strides) for s in written)
        )

    def _as_jax(self, given: dict[int, Any], arrays: Sequence[Any], named: Mapping[Any, Any]) -> Any:
        """The outputs, with those that the call allocated on the host as JAX arrays."""
        passed = self._gather(arrays, named)
        for i in self._outputs:
            if i not in passed and not isinstance(given[i], DeviceArray):
                given[i] = buffers.as_jax(given[i])
        return self._results(given)

    def bind(
        self, *arrays: Any, out: Mapping[str, Any] | None = None, workspace: Any = None, **named: Any
    ) -> BoundPlan:
        """Binds the plan to memory, which is checked once, so that repeated runs cost as little as possible.
        The arguments are those of a call; every array must be on the plan's device.

        >>> import numpy as np, weft
        >>> g = weft.Graph(handle=weft.create_handle("cpu"))
        >>> y, x = g.neg(g.tensor([2], data_type="f32", name="x"), name="y"), np.float32([1, 2])
        >>> run = g.build().plan.bind(x=x)
        >>> x[:] = 3, 4
        >>> run()
        array([-3., -4.], dtype=float32)
        """
        return self.bind_slots(self._gather(arrays, {**named, **(out or {})}), workspace)

    def bind_slots(self, given: dict[int, Any], workspace: Any = None) -> BoundPlan:
        """Binds the plan to arrays by slot."""
        state, stream, address, held = RunState(len(self.slots)), stream_of(self.handle), 0, None
        owners = self._fill(state, given, self._first_array(given), stream, None)
        use_on(given.values(), None)  # the streams on which it will run are unknown
        plan = self.serving(state)
        if plan.workspace_size:
            address, held = plan._workspace(state, workspace, plan.workspace_size, stream)
        return BoundPlan(plan, state, address, self._results(given), (given, owners, held))

    def freeze(self, **named: Any) -> Plan:
        """Declares that the contents of inputs do not change any more, such as the weights of a trained
        network. CPU kernels then pack them once, now, instead of in every run, and store the packed copies.
        Later calls may omit these arrays; a call that passes other arrays in their place works as before.
        Each call of freeze replaces the previous one, so a call without arrays releases all of them. Do not
        call it while another thread runs the plan. The arrays must be on the plan's device; the plan holds
        references to them. Returns the plan.

        >>> import numpy as np, weft
        >>> g = weft.Graph(handle=weft.create_handle("cpu"))
        >>> x, w = (g.tensor([2, 2], data_type="f32", name=name) for name in "xw")
        >>> y = g.matmul(x, w)
        >>> plan = g.build().plan.freeze(w=np.float32([[1, 2], [3, 4]]))
        >>> plan(x=np.float32([[1, 0], [0, 1]]))
        array([[1., 2.],
               [3., 4.]], dtype=float32)
        """
        state, stream = RunState(len(self.slots)), stream_of(self.handle)
        owners: list[Any] = []
        gathered = self._gather((), named)
        given = {self.index[name]: gathered[self.index[name]] for name in named}
        for i in given:
            slot = self.slots[i]
            try:
                self._fill_slot(state, i, slot, given, stream, None, owners)
            except BadParameterError as error:
                raise slots.named("plan", slot, error) from None
        # If the call fails, the previous arrays stay frozen, so their owners must be kept until it succeeds.
        backend.freeze(self.descriptor, state.pointers, self._count)
        self._frozen, self._frozen_owners = given, owners
        return self

    def other_shapes(
        self, arrays: Sequence[Any], named: Mapping[Any, Any]
    ) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Dims and strides, by uid, of a call's inputs whose dims differ from the plan's."""
        shapes = {}
        for i, value in self._gather(arrays, named).items():
            slot = self.slots[i]
            if slot.is_output or slot.is_by_value or slot.is_ragged or not buffers.is_array(value):
                continue
            dims, strides = buffers.shape_of(value)
            if dims != slot.dims and dtypes.of(slot.data_type).bits >= 8:
                shapes[slot.uid] = (dims, strides)
        return shapes

    def of_shapes(self) -> str:
        """The plan in one line: its engine and the shapes of its inputs and outputs."""
        shapes = ", ".join(f"{slot.name or slot.uid} {list(slot.dims)}" for slot in self.slots)
        return f"{self.report['engine']}: {shapes}"

    # ---- Memory that is less aligned than the tensors were declared ----

    def serving(self, state: RunState) -> Plan:
        """The plan that accepts the addresses in a run state: this one, or one for memory that is aligned
        only to its elements, such as that of x[1:]. That plan is built at its first use; its kernels may be
        slower."""
        loose = next((i for i, low in self._aligned if state.pointers[i] & low), None)
        if loose is None:
            return self
        if self._loose is None:
            try:
                self._loose = self._for_elements()
            except WeftError as error:
                slot = self.slots[loose]
                raise type(error)(
                    f"plan: the address of {slot} is not a multiple of its alignment, "
                    f"{counted(slot.alignment, 'byte')}, and no plan for such memory can be built: {error}",
                    error.status,
                ) from None
        return self._loose

    def _for_elements(self) -> Plan:
        plan = self._again(
            attribute_name.EXECUTION_PLAN_ELEMENT_ALIGNED_EXT,
            "compiling kernels for memory that is less aligned",
        )
        plan._lent_size = self.workspace_size
        return plan

    def as_cuda_graph(self) -> Plan:
        """The same plan, but it launches its kernels as one CUDA graph, so that an execution costs the host
        about as much as one kernel launch. The first execution creates the graph; later executions with the
        same memory, as with plan.bind, reuse it. Other memory changes the graph's arguments, which costs
        about one launch per kernel. During stream capture and on the CPU it runs like this plan.

        >>> import numpy as np, weft
        >>> g = weft.Graph(handle=weft.create_handle("cpu"))
        >>> y = g.softmax(g.neg(g.tensor([1, 2], data_type="f32", name="x")))
        >>> g.build().plan.as_cuda_graph()(x=np.zeros((1, 2), "f"))
        array([[0.5, 0.5]], dtype=float32)
        """
        return self._again(attribute_name.EXECUTION_PLAN_CUDA_GRAPH_EXT, "loading kernels")

    def _again(self, flag: attribute_name, doing: str) -> Plan:
        """A copy of this plan with a flag that is read at creation."""
        descriptor = backend.Descriptor(descriptor_type.EXECUTION_PLAN_DESCRIPTOR)
        if self._properties is None:
            descriptor.set(attribute_name.EXECUTION_PLAN_HANDLE, "HANDLE", [self.handle.pointer])
        else:
            place = [self._properties.descriptor]
            descriptor.set(attribute_name.EXECUTION_PLAN_DEVICEPROP, "BACKEND_DESCRIPTOR", place)
        descriptor.set(attribute_name.EXECUTION_PLAN_JSON_REPRESENTATION, "CHAR", self.serialize())
        descriptor.set(flag, "BOOLEAN", [True])
        with Waiting(f"plan: {doing}"):
            descriptor.finalize()
        inputs, outputs = ([self.slots[i].uid for i in order] for order in (self._inputs, self._outputs))
        here = self._properties or self.handle
        return type(self)(descriptor, inputs, outputs, self.values, here, self.descriptor_with_code)

    def _results(self, given: Mapping[int, Any]) -> Any:
        """The outputs as returned by a call."""
        results = [given[i] for i in self._outputs]
        return results[0] if len(results) == 1 else tuple(results)

    def _fill(
        self, state: RunState, given: dict[int, Any], like: Any, stream: int, staging: Staging | None
    ) -> list[Any]:
        """Stores the address of every slot's memory in a run state and allocates the outputs that the caller
        did not pass. Returns the objects that own the memory."""
        use_on(given.values(), stream)
        for i in self._written:
            if i not in given:
                given[i] = empty_like_kind(self.slots[i], like, self.handle, stream)
        owners: list[Any] = []
        for i, slot in enumerate(self.slots):
            try:
                self._fill_slot(state, i, slot, given, stream, staging, owners)
            except BadParameterError as error:
                raise slots.named("plan", slot, error) from None
        return owners

    def _fill_slot(
        self,
        state: RunState,
        i: int,
        slot: Slot,
        given: dict[int, Any],
        stream: int,
        staging: Staging | None,
        owners: list[Any],
    ) -> None:
        kind = buffers.fast_checks_of(given.get(i))
        form = kind.form(given[i]) if kind else None
        if kind and form == self._fitting[i]:
            state.pointers[i] = kind.address(given[i])
            return
        if i not in given:
            raise slots.no_buffer("plan", slot)
        if self._is_number(slot, given[i]):
            state.pointers[i] = self._scalar_address(state, "plan", slot, given[i], i)
        elif isinstance(given[i], int):
            state.pointers[i] = slots.checked_address("plan", slot, given[i])
        else:
            memory = buffers.memory_of(given[i], lambda: stream)
            if memory.buffer:
                owners.append(memory.buffer.owner)
            copies = staging if memory.ordinal is None and not slot.is_by_value else None
            if copies is None:
                slots.check_device("plan", slot, memory.ordinal, self._place, OTHER_DEVICE)
            address = self._checked_address(state, "plan", i, slot, given[i], memory)
            if copies is not None:
                address = copies.place(i, address, slot.span, slot.is_output, slot.span > slot.bytes)
            elif not slot.is_by_value and not buffers.requires_grad(given[i]):
                self._fitting[i] = form
            state.pointers[i] = address

    def _first_array(self, given: Mapping[int, Any]) -> Any:
        """The array whose library allocates the results: the first one on the GPU, otherwise one of torch or
        Weft; None means NumPy."""
        candidate = None
        for i, value in given.items():
            if isinstance(value, (int, float)) or self.slots[i].is_by_value:
                continue
            is_ours = isinstance(value, DeviceArray)
            try:
                ordinal = value.ordinal if is_ours else buffers.device_of(value)
            except BadParameterError as error:
                raise slots.named("plan", self.slots[i], error) from None
            if self._place is not None and ordinal is not None:
                return value
            if candidate is None and (is_ours or buffers.is_torch(value)):
                candidate = value
        return candidate

    def _gather(self, arrays: Sequence[Any], named: Mapping[Any, Any]) -> dict[int, Any]:
        given = {self.index[uid]: value for uid, value in self.values.items() if uid in self.index}
        given |= self._frozen
        if len(arrays) > len(self._inputs):
            raise BadParameterError(
                f"plan: {counted(len(arrays), 'positional array')}, the graph has "
                f"{counted(len(self._inputs), 'input')}: "
                f"{self._names(self._inputs)}. Give outputs as out={{name: buffer}}."
            )
        given |= dict(zip(self._inputs, arrays, strict=False))
        for name, value in named.items():
            if name not in self.index:
                raise BadParameterError(
                    self.shared_name("plan", name)
                    or f"plan: no tensor is named '{name}'; the graph has "
                    f"{self._names(range(len(self.slots)))}. Use one of these names."
                )
            given[self.index[name]] = value
        return given

    def shared_name(self, where: str, name: object) -> str:
        """The error message for a name shared by several tensors; empty if the name is unique."""
        if name not in self._shared_names:
            return ""
        uids = [str(slot.uid) for slot in self.slots if slot.name == name]
        return (
            f"{where}: {len(uids)} tensors are named '{name}', of uids {', '.join(uids)}. Use the tensors or "
            "uids with execute, or give them different names."
        )

    def _names(self, indices: Sequence[int]) -> str:
        return ", ".join(self.slots[i].name or f"uid {self.slots[i].uid}" for i in indices)

    @staticmethod
    def _is_number(slot: Slot, value: Any) -> bool:
        is_number = isinstance(value, (bool, float)) or buffers.is_numpy_scalar(value)
        return is_number or (slot.is_by_value and isinstance(value, int))

    def _checked_address(
        self, state: RunState, where: str, i: int, slot: Slot, value: Any, memory: buffers.Memory
    ) -> int:
        """The address of an array that is valid for slot i, or of its value in the run state if a by-value
        scalar has another type. A call requires the slot's shape and layout; execute accepts any memory that
        is large enough."""
        slots.check_gradient(where, slot, value)
        if slot.is_by_value and slots.is_number_of_other_type(slot, memory):
            return self._scalar_address(state, where, slot, memory.buffer or value, i)
        slots.check_array(where, slot, value, memory, is_exact=where == "plan")
        return memory.address

    # ---- Runs without checks of shapes --------

    def put(self, i: int, value: Any, slot: Slot) -> None:
        """Stores the address of a buffer in slot i for this thread's next run. Runs only the fast checks:
        device, type, writability and size. `slot` is slots[i], or its replacement in this run."""
        try:
            self._put(i, value, slot)
        except BadParameterError as error:
            raise slots.named("execute", slot, error) from None

    def _put(self, i: int, value: Any, slot: Slot) -> None:
        state = self.thread.state
        if type(value) is int:
            state.pointers[i] = slots.checked_address("execute", slot, value)
            return
        if type(value) is float:
            self.put_number(i, value)
            return
        kind = buffers.fast_checks_of(value)
        form = kind.form(value) if kind else None
        if kind and form == self._large_enough[i] and slot is self.slots[i]:
            self._remember(state, i, value, kind.address(value))
            return
        if isinstance(value, bool) or (slot.is_by_value and buffers.is_numpy_scalar(value)):
            self.put_number(i, value)
            return
        self._put_array(state, i, value, slot, form)

    def _put_array(
        self, state: RunState, i: int, value: Any, slot: Slot, form: tuple[Any, ...] | None
    ) -> None:
        """The slow path of put, for an array that is not known to fit."""
        memory = buffers.memory_of(value, self._stream)
        slots.check_device("execute", slot, memory.ordinal, self._place, _OTHER_DEVICE_OR_CALL)
        state.pointers[i] = self._checked_address(state, "execute", i, slot, value, memory)
        if memory.buffer:
            state.owners[i] = memory.buffer.owner
        elif (
            slot is self.slots[i]
            and state.pointers[i] == memory.address  # not that of a value in the run state
            and not buffers.requires_grad(value)
        ):
            self._large_enough[i] = form
            self._remember(state, i, value, memory.address)

    def _stream(self) -> int:
        return stream_of(self.handle)

    @staticmethod
    def _remember(state: RunState, i: int, value: Any, pointer: int) -> None:
        """Stores an array's address in slot i and records that it fits. It is not checked again during its
        lifetime unless its memory changes."""
        state.pointers[i], state.known[i] = pointer, known_of(value, pointer)

    def put_number(self, i: int, value: float) -> None:
        """Sets the value of by-value slot i for this thread's next run."""
        state = self.thread.state
        state.pointers[i] = self._scalar_address(state, "execute", self.slots[i], value, i)

    def put_address(self, i: int, address: int) -> None:
        """Stores an address in slot i for this thread's next run, without checks."""
        self.thread.state.pointers[i] = address

    @staticmethod
    def _scalar_address(state: RunState, where: str, slot: Slot, value: Any, i: int) -> int:
        """The address of a value in the run state's host memory. Python numbers are rounded to the slot's
        type; numbers of other libraries, which have types of their own, must be exactly representable."""
        if not slot.is_by_value:
            raise BadParameterError(
                f"{where}: {slot} is not a by-value scalar, but its buffer is {value!r}. Give an array."
            )
        if type(value) is float and slot.data_type is data_type.FLOAT:
            address = state.float_scalar(i, value)
            if address:
                return address
        number = value if isinstance(value, (int, float)) else _number_of(value)
        is_exact = not isinstance(value, (int, float))
        packed = dtypes.fitting_bytes(slot.data_type, number, is_exact)
        if packed is None:
            raise BadParameterError(
                f"{where}: {slot} is {dtypes.of(slot.data_type).name}, which cannot represent its value "
                f"{number!r}. Give a value of that type, or declare the tensor with another."
            )
        return state.scalar(i, packed)

    def overridden(self, overrides: Overrides) -> list[Slot]:
        """The slots with the dims and strides that override those of tensors in one run."""
        uids, shapes, strides = overrides
        if not len(uids) == len(shapes) == len(strides):
            raise BadParameterError(
                f"execute: override_uids has {len(uids)} entries, override_shapes {len(shapes)} and "
                f"override_strides {len(strides)}. Give one of each per tensor."
            )
        changed, ranks = list(self.slots), {t["uid"]: len(t["dims"]) for t in self.report["tensors"]}
        for uid, dims, steps in zip(uids, shapes, strides, strict=True):
            if uid not in ranks:
                raise BadParameterError(
                    f"execute: override_uids names uid {uid}, which no tensor has. Use one of "
                    f"{', '.join(map(str, ranks))}."
                )
            if not len(dims) == len(steps) == ranks[uid]:
                raise BadParameterError(
                    f"execute: the tensor of uid {uid} has {counted(ranks[uid], 'dim')}, its override shape "
                    f"{list(dims)} and strides {list(steps)}. Give a number per dimension."
                )
            if uid in self.index:
                i = self.index[uid]
                changed[i] = changed[i].reshaped(dims, steps)
        return changed

    def workspace_of(self, overrides: Overrides, handle: backend.Handle | None = None) -> int:
        """Bytes of workspace that a run with other shapes needs."""
        self.overridden(overrides)
        pack = self._variant_pack(self.thread.state, overrides, 0)
        return int(backend.get_execution_plan_workspace_size(handle or self.handle, self.descriptor, pack))

    def launch_overridden(self, overrides: Overrides, workspace: Any, handle: backend.Handle) -> None:
        """Runs with the addresses stored by this thread, with other shapes, on the handle's stream."""
        state, address, held = self.thread.state, 0, None
        plan, pack = self.serving(state), self._variant_pack(state, overrides, address)
        size = backend.get_execution_plan_workspace_size(handle, plan.descriptor, pack)
        if size:
            address, held = self._workspace(state, workspace if plan is self else None, size, handle.stream)
            pack = self._variant_pack(state, overrides, address)
        backend.backend_execute(handle, plan.descriptor, pack)
        state.owners.clear()
        del held

    def _variant_pack(self, state: RunState, overrides: Overrides, workspace: int) -> backend.Descriptor:
        pack = backend.Descriptor(descriptor_type.VARIANT_PACK_DESCRIPTOR)
        pointers = [ffi.cast("void *", state.pointers[i]) for i in range(len(self.slots))]
        pack.set(attribute_name.VARIANT_PACK_UNIQUE_IDS, "INT64", [slot.uid for slot in self.slots])
        pack.set(attribute_name.VARIANT_PACK_DATA_POINTERS, "VOID_PTR", pointers)
        uids, shapes, strides = overrides
        pack.set(attribute_name.VARIANT_PACK_OVERRIDE_UNIQUE_IDS, "INT64", uids)
        pack.set(attribute_name.VARIANT_PACK_OVERRIDE_SHAPES, "INT64", [n for dims in shapes for n in dims])
        pack.set(attribute_name.VARIANT_PACK_OVERRIDE_STRIDES, "INT64", [n for step in strides for n in step])
        if workspace:
            address = ffi.cast("void *", workspace)
            pack.set(attribute_name.VARIANT_PACK_WORKSPACE, "VOID_PTR", [address])
        pack.finalize()
        return pack

    def handle_on_stream(self, given: backend.Handle | None) -> backend.Handle:
        """A handle that enqueues on the stream that a call with this handle would use: the handle itself if a
        stream was set on it, otherwise a handle of this thread on the current stream. None stands for the
        plan's own handle."""
        handle = given or self.handle
        if self.device is device_kind.CPU or handle.is_stream_set:
            return handle
        state = self.thread.state
        if state.handle is None:
            state.handle = backend.Handle(self.device, self.ordinal)
        state.handle.set_stream(stream_of(handle))
        return state.handle

    def launch(self, state: RunState, workspace: Any, stream: int) -> None:
        """Runs with the addresses in a run state."""
        plan = self if self._loose is None else self.serving(state)
        run = plan._enqueue(state, workspace, stream)
        if run and run == status.BAD_PARAM_MISALIGNED_POINTER and self.serving(state) is not plan:
            run = self.serving(state)._enqueue(state, workspace, stream)
        if state.owners:
            state.owners.clear()
        if run:
            backend.check(run)

    def _enqueue(self, state: RunState, workspace: Any, stream: int) -> int:
        """Enqueues a run and returns its status."""
        held, memory = None, ffi.NULL
        if self.workspace_size and workspace is None and self._place is None:
            memory = state.scratch.on_host(self.workspace_size)
        elif self.workspace_size:
            address, held = self._workspace(state, workspace, self.workspace_size, stream)
            memory = ffi.cast("void *", address)
        done: int = self._run(self._pointer, self._count, state.pointers, memory, state.queue(stream))
        del held
        return done

    def _workspace(self, state: RunState, given: Any, needed: int, stream: int) -> tuple[int, Any]:
        """The address of memory of the required size, and the object that keeps it alive."""
        if self.workspace_size > self._lent_size:  # callers know the size of the other plan
            given = None
        if isinstance(given, int) and given:
            return given, None
        if given is not None and not isinstance(given, int):
            address = self._given_workspace(state, given, needed)
            use_on((given,), stream)
            if self._place is not None or address % HOST_ALIGNMENT == 0:
                return address, given
        if self._place is not None:
            return state.scratch.on_device("workspace", needed, self.handle, stream)
        return int(ffi.cast("uintptr_t", state.scratch.on_host(needed))), None

    def _given_workspace(self, state: RunState, given: Any, needed: int) -> int:
        """The address of the caller's workspace, which must be on the device and large enough."""
        known = state.workspace
        if known and known[1] >= needed and is_known(known[0], given):
            return known[0][1]
        address, _, size, is_writable, place, *_ = buffers.memory_of(given)
        if not is_writable:
            raise BadParameterError(
                "execute: the workspace is read-only. Give writable memory, or leave it out."
            )
        if place != self._place and not (place == buffers.SOME_GPU and self._place is not None):
            raise BadParameterError(
                f"execute: the workspace is on {_device_text(place)}, the plan runs on "
                f"{_device_text(self._place)}. Allocate it there, or leave it out."
            )
        if size < needed:
            shapes = "" if needed == self.workspace_size else "override_uids=.., override_shapes=.."
            raise BadParameterError(
                f"execute: the workspace has {counted(size, 'byte')}, the plan needs {needed}. Allocate "
                f"get_workspace_size({shapes}) bytes, or leave it out."
            )
        remembered = known_of(given, address)
        state.workspace = (remembered, size) if remembered else None
        return address

    # ---- Text -----

    def explain(self, all_refusals: bool = False, measured: Sequence[float] = ()) -> str:
        """A table of the steps: where they run, their predicted time, and which kernel families declined and
        why. With `all_refusals`, every family is listed by name, even if many give the same reason.
        `measured` are the seconds of each step, from BoundPlan.measure_steps, shown next to the
        predictions."""
        from weft.explain import explain_text

        return explain_text(self.report, measured=measured, all_refusals=all_refusals)

    def kernels(self) -> list[Kernel]:
        """The GPU kernels that the plan runs, in order, as they were compiled; empty on the CPU.

        >>> import weft
        >>> with weft.Graph(handle=weft.create_handle("cpu")) as g:
        ...     y = g.relu(g.tensor([2], data_type="f32", name="x"))
        >>> g.plan.kernels()
        []
        """
        shown = json.loads(self.descriptor.get_text(attribute_name.EXECUTION_PLAN_KERNELS_EXT))
        return [kernel_of(each, shown["headers"]) for each in shown["kernels"]]

    def plot(self, path: str | None = None) -> str:
        """The plan as SVG: its steps as frames around the operations. Also written to a file if a path is
        given."""
        from weft.plot import plot

        return plot(self, path)

    def _repr_svg_(self) -> str:
        return self.plot()

    def serialize(self, code: bool = False) -> bytes:
        """The plan as bytes, for Graph.deserialize. With `code`, they include the machine code of the
        kernels, so that the plan loads without compiling on a machine with a GPU of that architecture."""
        if not code:
            return self.descriptor.get_bytes(attribute_name.EXECUTION_PLAN_JSON_REPRESENTATION)
        return self.descriptor_with_code().get_bytes(attribute_name.EXECUTION_PLAN_JSON_REPRESENTATION)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles like serialize(), with the values of constants. The plan is loaded on the first suitable
        device."""
        return loaded, (self.serialize(), self.values)

    def __repr__(self) -> str:
        inputs = [slot.name or str(slot.uid) for slot in self.slots if not slot.is_output]
        outputs = [slot.name or str(slot.uid) for slot in self.slots if slot.is_output]
        return (
            f"Plan({self.engine}, {self.tag}: {', '.join(inputs)} -> {', '.join(outputs)}, "
            f"workspace {counted(self.workspace_size, 'byte')})"
        )


def loaded(data: bytes, values: Mapping[int, Any]) -> Plan:
    """The plan in pickled bytes."""
    from weft.graphs import Graph

    return Graph().load(data, values).plan


def _owner(slot: Slot) -> str:
    """The operation after which a result is named."""
    return slot.name.partition("::")[0]


OTHER_DEVICE = "Move it there, or build the graph with a handle of the other device."
_OTHER_DEVICE_OR_CALL = (
    "Move it there, call graph.plan(...), which copies, or build the graph with a handle of the other device."
)


def _device_text(place: int | None) -> str:
    return "the host" if place is None else "a CUDA device" if place < 0 else f"cuda:{place}"


def _number_of(value: Any) -> float:
    """The value of a one-element array, of its description, or of a NumPy scalar."""
    if buffers.is_numpy_scalar(value):
        number = value.item()
        return number if isinstance(number, (int, float)) else float(number)
    buffer = value if isinstance(value, buffers.Buffer) else buffers.describe(value)
    size = dtypes.of(buffer.data_type).bits // 8
    return dtypes.scalar_value(buffer.data_type, ffi.buffer(ffi.cast("char *", buffer.pointer), size)[:])

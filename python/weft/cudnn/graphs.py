"""pygraph: Weft's graph with cuDNN's life cycle, arguments and defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft import buffers
from weft import enums as weft_enums
from weft import tensor as weft_tensor
from weft.arguments import counted
from weft.backend import Handle
from weft.cudnn import enums
from weft.cudnn.grouped import check_scales
from weft.cudnn.names import Node, find_tensor
from weft.cudnn.plans import OtherBooleans, Plans
from weft.cudnn.sdpa import Attention
from weft.cudnn.table import BIT_MASKS
from weft.cudnn.tensors import Tensor
from weft.errors import BadParameterError, NotSupportedError
from weft.graphs import Graph
from weft.lowering import Lowering, Operation
from weft.plan import Plan


@dataclass
class GraphContext:
    """Defaults of a graph for tensors and operations that do not set them."""

    name: str = ""
    io_data_type: Any = None
    intermediate_data_type: Any = None
    compute_data_type: Any = None
    handle: Handle | None = None
    tensors: list[Any] = field(default_factory=list)


class pygraph(Attention, Plans):
    """A computation: tensors, operations on them, and the plans that run them.

    >>> import numpy as np, weft.cudnn as cudnn
    >>> g = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, handle=cudnn.create_handle("cpu"))
    >>> x = g.tensor(dim=[1, 2, 2], stride=[4, 2, 1])
    >>> y = g.relu(input=g.matmul(A=x, B=x), name="act").set_output(True)
    >>> g.build([cudnn.heur_mode.A])
    pygraph('test_graph': 2 ops, 1 input, 1 output, built)
    >>> result = np.empty((1, 2, 2), "f4")
    >>> g.execute({x: np.float32([[[1, 2], [3, -4]]]), y: result}, workspace=None)
    >>> result
    array([[[ 7.,  0.],
            [ 0., 22.]]], dtype=float32)
    """

    tensor_type = Tensor
    has_cudnn_strides = True

    def __init__(
        self,
        name: str = "test_graph",
        io_data_type: Any = None,
        intermediate_data_type: Any = None,
        compute_data_type: Any = None,
        handle: Any = None,
        sm_count: int | None = None,
        sm_version: int | None = None,
        kernel_cache: Any = None,
        device_property: Any = None,
        is_dynamic_shape_enabled: bool = False,
        is_override_shape_enabled: bool = False,
        cuda_graph_retention: Any = None,
        *,
        is_cuda_graph_replay_expected: bool = False,
        **kwargs: Any,
    ) -> None:
        """Creates an empty graph. sm_version is determined by the device. cuda_graph_retention is only stored
        for get_cuda_graph_retention(): Weft keeps no CUDA graph in addition to a plan, and all its plans may
        be captured, so is_cuda_graph_replay_expected has no effect, either. Further keywords are those of
        weft.Graph: inputs, outputs, heuristics, device."""
        io, intermediate = enums.weft_type(io_data_type), enums.weft_type(intermediate_data_type)
        super().__init__(
            name or "", io, intermediate, enums.weft_type(compute_data_type), handle, sm_count, sm_version,
            kernel_cache, device_property, is_dynamic_shape_enabled, is_override_shape_enabled,
            **_own_keywords(kwargs),
        )  # fmt: skip
        self._retention = _retention(cuda_graph_retention)
        self._nodes: list[Node] = []
        self._adopted = {}
        self._boolean_plans: dict[frozenset[int], Plan] = {}
        self._before: dict[Any, tuple[Any, ...]] = {}
        self._is_stale = False

    # ---- Tensors ----

    def tensor(  # type: ignore[override]
        self,
        dim: Sequence[int],
        stride: Sequence[int] | None = None,
        data_type: Any = None,
        is_virtual: bool = False,
        is_pass_by_value: bool = False,
        ragged_offset: Any = None,
        reordering_type: Any = None,
        name: str = "",
        uid: int | None = None,
        ragged_offset_multiplier: int = 1,
        alignment_value: int = 1,
        **kwargs: Any,
    ) -> Tensor:
        """Adds a tensor: extents, distance between consecutive elements along each dimension, type of the
        elements. ragged_offset: the offsets at which batch entries start. alignment_value: the alignment of
        its addresses in bytes, if a script guarantees more than Weft expects."""
        if kwargs:
            raise BadParameterError(f"tensor: {', '.join(kwargs)} is not one of its arguments. Leave it out.")
        tensor = super().tensor(
            dim, stride, enums.weft_type(data_type), is_virtual, is_pass_by_value, ragged_offset,
            enums.to_weft(reordering_type) or weft_enums.tensor_reordering.NONE, name or "",
        )  # fmt: skip
        assert isinstance(tensor, Tensor)
        tensor.has_boolean_of_graph = data_type is enums.data_type.BOOLEAN
        if uid is not None and uid >= 0:
            tensor.set_uid(uid)
        if ragged_offset_multiplier != 1:
            tensor.set_ragged_offset_multiplier(ragged_offset_multiplier)
        return tensor.set_alignment_value(alignment_value)

    def tensor_like(  # type: ignore[override]
        self, template: Any, name: str = "", is_virtual: bool = False
    ) -> Tensor:
        """Adds a tensor with the shape, strides and type of another tensor or an array; an array of one
        element on the host becomes a by-value scalar."""
        tensor = super().tensor_like(template, name or "")
        assert isinstance(tensor, Tensor)
        tensor._is_virtual = is_virtual
        return tensor

    def tensor_scalar(  # type: ignore[override]
        self,
        value: Any,
        scalar_type: Any,
        name: str = "",
    ) -> Tensor:
        """Adds a scalar. With COMPILE_TIME_CONST its value is part of the plan; with RUNTIME_PARAM it is a
        default, used if the variant pack has no value for it. A float is rounded to FLOAT; an int is
        INT64."""
        if isinstance(value, float) and abs(value) > _LARGEST_FLOAT:
            value = float("inf") if value > 0 else float("-inf")
        tensor = super().tensor_scalar(value, enums.to_weft(scalar_type), name=name or "")
        assert isinstance(tensor, Tensor)
        return tensor

    def _new_tensor(self, name: str, producer: Any = None) -> Tensor:
        if self.is_built and producer is not None:
            raise BadParameterError(
                f"{self._label}: its operation graph is built and accepts no more operations. Create another."
            )
        if not self.is_built:
            self._reopen()
        tensor = Tensor(self, name, producer)
        self._tensors.append(tensor)
        if self.is_built:
            tensor.is_late, tensor._uid = True, 1 + max(t.get_uid() for t in self._tensors)
            self._keys[tensor] = self._keys[tensor._uid] = None
        return tensor

    def _has_inferred_type(self, operation: Operation, result: str) -> bool:
        """As in cuDNN's frontend, a slice has the type of its input, the statistics of attention are FLOAT,
        and those of norms and sums have the graph's I/O type."""
        is_stats = result == "stats" and not operation.results[result]._is_virtual
        return operation.kind == "slice" or is_stats

    # ---- Life cycle ----

    @property
    def is_built(self) -> bool:
        """True if the operation graph is built or a plan is loaded: tensors can no longer change."""
        return self._made_planner is not None or self._plan is not None

    def validate(self) -> None:
        """Checks every operation and infers unset properties of the results. Tensors may still be changed;
        the next step then validates again."""
        if self.is_validated:
            return
        self._before = {
            t: (t._dims, t._strides, t._data_type, t._is_virtual, t.constant) for t in self._tensors
        }
        if any(node.method in BIT_MASKS for node in self._nodes):
            for tensor in self._tensors:
                has_memory = tensor.producer is None or tensor._output
                if isinstance(tensor, Tensor) and tensor.has_boolean_of_graph and has_memory:
                    tensor._data_type = weft_enums.data_type.BOOLEAN
        with_strides = {t: t._strides for t in self._tensors if t.producer is not None and not t._dims}
        with_strides = {t: strides for t, strides in with_strides.items() if strides}
        if with_strides:
            self._infer_dims(with_strides)
        super().validate()
        check_scales(self._nodes)
        self._is_stale = False

    def _infer_dims(self, with_strides: Mapping[Any, Any]) -> None:
        """Infers dims of results for which only strides were set."""
        for tensor in with_strides:
            tensor._strides = ()
        super().validate()
        dims = {tensor: tensor._dims for tensor in with_strides}
        self._restore()
        for tensor in with_strides:
            tensor._dims = dims[tensor]

    def _restore(self) -> None:
        """Reverts what validation inferred."""
        for tensor, (dims, strides, kind, is_virtual, constant) in self._before.items():
            tensor._dims, tensor._strides, tensor._data_type = dims, strides, kind
            tensor._is_virtual, tensor.constant = is_virtual, constant
        self.is_validated = False

    def _reopen(self) -> None:
        """Allows tensors to change after validate()."""
        if self.is_validated and not self.is_built:
            self._restore()
            self._is_stale = True

    def _revalidate(self) -> None:
        """Infers again before a getter if a tensor was changed after validate()."""
        if self._is_stale and not self.is_validated:
            self.validate()

    def _use(self, plan: Plan) -> None:
        super()._use(plan)
        self._keys[None] = None  # scripts use None as the key of an optional tensor that they did not create

    # ---- Execution ----

    def execute(
        self,
        tensor_dict: Any,
        workspace: Any = None,
        handle: Handle | None = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Any = None,
        override_strides: Any = None,
        tensor_uids: Sequence[int] | None = None,
    ) -> None:
        """Runs the selected plan. tensor_dict: memory by tensor, uid or name, or with tensor_uids a list of
        memory in their order. A key of None, a uid that no tensor has and a virtual tensor are skipped, and a
        tensor of another graph is identified by its uid. Everything else is as for weft.Graph.execute."""
        if override_uids is None and tensor_uids is None:
            try:
                self._execute(self._plan or self.plan, tensor_dict, workspace, handle, None)
            except OtherBooleans as error:
                self._with_other_booleans(
                    error,
                    lambda plan: self._execute(plan, tensor_dict, self._room(plan, workspace), handle, None),
                )
            return
        pack = _pack(tensor_dict, tensor_uids)
        super().execute(pack, workspace, handle, override_uids, override_shapes, override_strides)

    def _with_other_booleans(
        self, error: OtherBooleans | None, run: Callable[[Plan], Any], flipped: frozenset[int] = frozenset()
    ) -> Any:
        """Runs a plan in which BOOLEAN tensors have a bit or a byte per element, to match their memory. The
        plan is built once for each combination. flipped: uids of tensors for which the match is known."""
        if error is not None and not self._operations:
            raise error  # the operations of a saved plan are unknown
        while True:
            flipped ^= {error.uid} if error is not None else set()
            if flipped not in self._boolean_plans:
                self._boolean_plans[flipped] = self._plan_with_other_booleans(flipped)
            try:
                return run(self._boolean_plans[flipped])
            except OtherBooleans as next_error:
                error = next_error

    def _results_of_bits(self, memory: Mapping[Any, Any]) -> frozenset[int]:
        """Results without memory that would have a bit per element: a call returns arrays of booleans."""
        bits = weft_enums.data_type.BOOLEAN
        return frozenset(
            t._uid
            for t in self.get_outputs()
            if t.has_boolean_of_graph and t._data_type is bits and t._uid not in memory
        )

    def _room(self, plan: Plan, workspace: Any) -> Any:
        """The caller's workspace if it is large enough for another plan."""
        return workspace if plan.workspace_size <= self.plan.workspace_size else None

    def _plan_with_other_booleans(self, uids: frozenset[int]) -> Plan:
        kinds = weft_enums.data_type
        tensors = [(t, t._data_type) for t in self._tensors if t._uid in uids]
        try:
            for tensor, kind in tensors:
                is_bits = kind is kinds.BOOLEAN
                tensor._data_type = kinds.BYTE_BOOLEAN if is_bits else kinds.BOOLEAN
            lowering = Lowering(self._compute_type)
            planner = self._planner_of([lowering.operation(operation) for operation in self._operations])
        finally:
            for tensor, kind in tensors:
                tensor._data_type = kind
        planner.ask(self._heuristics)
        planner.keep(self._filters, self._workspace_limit)
        plan = planner.plans[planner.build(weft_enums.build_plan_policy.HEURISTICS_CHOICE, self._wrapper())]
        assert plan is not None
        return plan

    def _slot_of_unknown(self, plan: Plan, key: Any) -> int | None:
        """As in cuDNN, a tensor is identified by its uid, and memory for a uid that no tensor has is
        ignored."""
        if isinstance(key, weft_tensor.Tensor):
            return plan.index.get(self._adopted.get(key, key).get_uid())
        return None if isinstance(key, int) else super()._slot_of_unknown(plan, key)

    def execute_plan_at_index(  # type: ignore[override]
        self,
        tensor_dict: Any,
        workspace: Any = None,
        index: int = 0,
        handle: Handle | None = None,
        *args: Any,
        tensor_uids: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        """Runs one of the built plans; arguments as for execute, overrides by name or after the handle."""
        if tensor_uids is not None or args or kwargs:
            pack = _pack(tensor_dict, tensor_uids)
            super().execute_plan_at_index(pack, workspace, index, handle, *args, **kwargs)
            return
        self._execute(self._built_plan(index), tensor_dict, workspace, handle, None)

    def __call__(
        self, *arrays: Any, handle: Handle | None = None, workspace: Any = None, **named: Any
    ) -> Any:
        """Builds the graph if necessary and runs it: arrays by position or by name, or a dict of them.
        Returns the output, or a tuple of the outputs. The workspace is allocated if none is passed."""
        from weft.memory import stream_of

        if self._plan is None:
            self.build()
        memory: dict[Any, Any] = {self._find(key).get_uid(): value for key, value in named.items()}
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            memory |= {self._find(key).get_uid(): value for key, value in arrays[0].items()}
            arrays = ()
        stream = None if handle is None else stream_of(handle)

        def run(plan: Plan) -> Any:
            return plan.run(arrays, memory, workspace=self._room(plan, workspace), stream=stream)

        if results := self._results_of_bits(memory):
            return self._with_other_booleans(None, run, results)
        try:
            return self._run(arrays, memory, workspace=workspace, stream=stream)
        except OtherBooleans as error:
            return self._with_other_booleans(error, run)

    # ---- Queries ----

    @property
    def context(self) -> GraphContext:
        """The graph's defaults for tensors and operations."""
        return GraphContext(
            self.name,
            enums.cudnn_type(self._io_type),
            enums.cudnn_type(self._intermediate_type),
            enums.cudnn_type(self._compute_type),
            self._handle,
            list(self._tensors),
        )

    @property
    def nodes(self) -> list[Node]:
        """The operations by cuDNN's names, in order."""
        return list(self._nodes)

    @property
    def tensors(self) -> list[Any]:
        """The graph's tensors in the order of their creation."""
        return list(self._tensors)

    def get_node(self, name: str) -> Node:
        """The operation with a name."""
        match = next((node for node in self._nodes if node.name == name), None)
        if match is None:
            names = ", ".join(node.name for node in self._nodes)
            raise BadParameterError(f"{self._label}: no operation is named '{name}'. It has {names}.")
        return match

    def find_tensor(self, name_or_uid: str | int) -> Any:
        """The tensor with a name, for "operation::operand", or with a uid."""
        return self._find(name_or_uid)

    def _find(self, key: Any) -> Any:
        if not isinstance(key, (str, int, weft_tensor.Tensor)) and buffers.is_array(key):
            tensor = next((tensor for tensor in self._tensors if tensor.value is key), None)
            if tensor is None:
                raise BadParameterError(
                    f"{self._label}: the array is not an operand of an operation. Give an operand, "
                    'or a name such as "conv::image".'
                )
            return tensor
        found = find_tensor(self._nodes, key) if isinstance(key, str) and "::" in key else None
        return super()._find(key) if found is None else found

    def get_inputs(self) -> list[Any]:
        """Tensors without a producer that an operation reads."""
        return [t for t in self._tensors if t.producer is None and t.is_read and not t.is_constant]

    def get_outputs(self) -> list[Any]:
        """Results with memory."""
        return [t for t in self._results() if t._output or (self.is_validated and not t._is_virtual)]

    def get_cuda_graph_retention(self) -> Any:
        """The value passed to the constructor."""
        return self._retention

    # ---- Saving ----

    def serialize(  # type: ignore[override]
        self, *, as_bytes: bool = False, include_kernels: bool = True
    ) -> Any:
        """The selected plan as a list of numbers, or as bytes. include_kernels: with the machine code of its
        kernels."""
        data = super().serialize(code=include_kernels)
        return data if as_bytes else list(data)

    def deserialize(
        self, *args: Any, handle: Handle | None = None, enforce_precompiled: bool = False, **kwargs: Any
    ) -> pygraph:
        """Loads a saved plan: deserialize(data) or deserialize(handle, data). enforce_precompiled: use the
        machine code in the data; do so only with plans from people you trust. Otherwise kernels are compiled
        again. run_warmup is accepted and not needed: nothing is deferred to the first run."""
        unknown = set(kwargs) - {"run_warmup"}
        if unknown:
            raise BadParameterError(
                f"deserialize: {', '.join(unknown)} is not one of its arguments. Leave it out."
            )
        *before, data = args
        Graph.deserialize(self, *before, bytes(data), handle=handle, code=enforce_precompiled)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the selected plan with the values of constants."""
        return pygraph._loaded, (Graph.serialize(self), self.plan.values)

    @staticmethod
    def _loaded(data: bytes, values: Mapping[int, Any]) -> pygraph:
        graph = pygraph()
        graph.load(data, values)
        return graph

    def populate_cuda_graph(self, handle: Any, variant_pack: Any, workspace: Any, cuda_graph: Any) -> None:
        """Not supported, as in weft.Graph: capture the stream of execute() instead."""
        raise NotSupportedError(
            f"{self._label}: plans are not written into CUDA graphs directly. Capture the stream of "
            "execute() instead.",
            weft_enums.status.NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API,
        )

    update_cuda_graph = populate_cuda_graph

    def __repr__(self) -> str:
        return "pygraph" + super().__repr__().removeprefix("Graph")


_LARGEST_FLOAT = 3.4028235677973366e38  # larger values round to infinity


def _own_keywords(keywords: Mapping[str, Any]) -> dict[str, Any]:
    known = {"inputs", "outputs", "heuristics", "workspace_alloc", "device"}
    unknown = sorted(set(keywords) - known)
    if unknown:
        raise BadParameterError(f"pygraph: {', '.join(unknown)} is not one of its arguments. Leave it out.")
    options = {key: value for key, value in keywords.items() if value is not None}
    if "heuristics" in options:
        options["heuristics"] = [enums.to_weft(mode) for mode in options["heuristics"]]
    return options


def _retention(value: Any) -> Any:
    kinds = enums.cuda_graph_retention
    try:
        return kinds(kinds.PER_GRAPH if value is None else value)
    except ValueError:
        raise BadParameterError(
            f"pygraph: cuda_graph_retention is {value!r}. Give one of {', '.join(kinds.__members__)}."
        ) from None


def _pack(tensor_dict: Any, tensor_uids: Sequence[int] | None) -> Mapping[Any, Any]:
    """A variant pack from a dict, or from memory in the order of uids."""
    if tensor_uids is None or isinstance(tensor_dict, Mapping):
        pack: Mapping[Any, Any] = tensor_dict
        return pack
    if len(tensor_uids) != len(tensor_dict):
        raise BadParameterError(
            f"execute: {counted(len(tensor_dict), 'buffer')} and {counted(len(tensor_uids), 'uid')}. "
            "Give a uid for each."
        )
    return dict(zip(tensor_uids, tensor_dict, strict=True))

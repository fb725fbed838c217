"""Graph, the entry point of the package: cuDNN's pygraph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from weft import dtypes
from weft.arguments import counted
from weft.backend import Descriptor, Handle
from weft.devices import DeviceProperties, KernelCache
from weft.enums import attribute_name, descriptor_type, heur_mode
from weft.errors import BadParameterError
from weft.graphs.executable import ExecutableGraph
from weft.progress import Waiting

if TYPE_CHECKING:
    from typing_extensions import Self

    from weft.dtypes import DataTypeLike


class Graph(ExecutableGraph):
    """A computation: tensors, operations on them, and the plans that run them.

    If used as a context manager, the graph is built at the end of the block. A result that no operation reads
    is an output, unless outputs are selected with set_output(True).

    >>> import numpy as np, weft
    >>> with weft.Graph(name="mlp", handle=weft.create_handle("cpu")) as g:
    ...     x, w = g.tensor([2, 2], data_type="f32", name="x"), g.tensor([2, 1], data_type="f32", name="w")
    ...     y = g.relu(g.matmul(x, w), name="act")
    >>> g
    Graph('mlp': 2 ops, 2 inputs, 1 output, built)
    >>> g.plan(x=np.float32([[1, 2], [3, -4]]), w=np.float32([[1], [1]]))
    array([[3.],
           [0.]], dtype=float32)
    """

    def __init__(
        self,
        name: str = "",
        io_data_type: DataTypeLike | None = None,
        intermediate_data_type: DataTypeLike | None = None,
        compute_data_type: DataTypeLike | None = None,
        handle: Handle | str | None = None,
        sm_count: int | None = None,
        sm_version: int | None = None,
        kernel_cache: KernelCache | None = None,
        device_property: DeviceProperties | None = None,
        is_dynamic_shape_enabled: bool = False,
        is_override_shape_enabled: bool = False,
        *,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        heuristics: Sequence[heur_mode | str] = (heur_mode.A, heur_mode.FALLBACK),
        workspace_alloc: bool = True,
        device: str | Handle | DeviceProperties | None = None,
    ) -> None:
        """Creates an empty graph.

        Args:
            name: for messages and diagrams.
            io_data_type: default type of tensors with memory.
            intermediate_data_type: default type of virtual tensors.
            compute_data_type: default type in which operations compute. If it is not set here or for the
                operation, it is FLOAT, and for integers INT64 or INT32, which are exact.
            handle: the device; by default that of the arrays in use, otherwise the first usable GPU,
                otherwise the CPU.
            sm_count: number of multiprocessors of a GPU to plan for; 0 means all. Persistent kernels use no
                more than these; kernels with one block per tile are only chosen as if the GPU had so few.
            sm_version: accepted for compatibility; determined by the device.
            kernel_cache: accepted for compatibility; kernels are always shared.
            device_property: a device to plan for that need not be present.
            is_dynamic_shape_enabled: compile kernels that other graphs can reuse if only extents differ.
            is_override_shape_enabled: allow execute to override shapes.
            inputs: tensors that calls accept by position, by name or as "matmul_0::A".
            outputs: tensors that calls return.
            heuristics: default modes for create_execution_plans.
            workspace_alloc: accepted for compatibility; calls allocate the workspace if none is passed.
            device: handle and device_property in one: "cpu", "cuda", "cuda:1", "sm_90" to compile for a GPU
                of another machine, or one of their objects.
        """
        super().__init__(name, io_data_type, intermediate_data_type, compute_data_type)
        if not isinstance(handle, Handle) and handle not in (None, "auto"):
            raise BadParameterError(
                f"{self._label}: handle is {handle!r}. Give the result of create_handle(), or None."
            )
        self._handle = handle if isinstance(handle, Handle) else None
        self._sm_count = sm_count
        self._kernel_cache, self._device_property = kernel_cache, device_property
        if device is not None:
            self._set_device(device)
        self._is_dynamic, self._is_override = is_dynamic_shape_enabled, is_override_shape_enabled
        self._io_names = (tuple(inputs or ()), tuple(outputs or ()))
        self._heuristics = tuple(heuristics)

    # ---- Drawing and text ----

    def plot(self, path: str | None = None) -> str:
        """The graph as SVG, with the plan's steps as frames once it is built. Also written to a file if a
        path is given."""
        from weft.plot import plot

        return plot(self, path)

    def _repr_svg_(self) -> str:
        return self.plot()

    def explain(self, all_refusals: bool = False) -> str:
        """The selected plan as text, and the answers of the other engines. With `all_refusals`, every family
        that declined is listed by name, instead of counting those with the same reason.

        >>> import numpy as np, weft
        >>> g = weft.Graph().deselect_engines(["cpu.fast"])
        >>> y = g.exp(np.float32([0, 1]))
        >>> print(g.build().explain().partition(" (")[0])
        graph on cpu.reference
        """
        from weft.explain import explain_text

        support = self._made_planner.support() if self._made_planner is not None else ()
        text = explain_text(self.plan.report, support, all_refusals=all_refusals)
        others = "".join(f"\n  {plan.of_shapes()}" for plan in list(self._other_plans.values()))
        return text + (f"\nplans for calls of other shapes{others}" if others else "")

    def __repr__(self) -> str:
        results = self._results()
        if self._operations:
            inputs = [t for t in self._tensors if t.producer is None and t.is_read and not t.is_constant]
            is_marked = any(t._output for t in self._tensors)
            outputs = [t for t in results if (t._output if is_marked else not t.is_read)]
            outputs += [t for t in self._tensors if t.is_written]
        else:
            slots = self._plan.slots if self._plan is not None else ()
            inputs = [t for t in self._tensors if any(s.uid == t._uid and not s.is_output for s in slots)]
            outputs = [t for t in self._tensors if any(s.uid == t._uid and s.is_output for s in slots)]
        state = "built" if self._plan is not None else "validated" if self.is_validated else "not built"
        called = f"'{self.name}': " if self.name else ""
        counts = {"op": len(self._operations), "input": len(inputs), "output": len(outputs)}
        return (
            f"Graph({called}{', '.join(counted(number, what) for what, number in counts.items())}, {state})"
        )

    # ---- Saving ----

    def serialize(self, code: bool = False) -> bytes:
        """The selected plan as bytes for `deserialize` of another graph. With `code`, they include the
        machine code of its kernels, so that a machine with a GPU of that architecture runs it without
        compiling."""
        return self.plan.serialize(code)

    def deserialize(self, *arguments: Any, handle: Handle | None = None, code: bool = False) -> Self:
        """Loads a saved plan: deserialize(data) or deserialize(handle, data); without a handle, on the first
        device that its engine supports. The graph then runs it by uids and names. code: use the machine code
        in the data; do so only with plans from people you trust. Without it, kernels are compiled again.

        >>> import numpy as np, weft
        >>> g = weft.Graph()
        >>> y = g.neg(np.float32([1, 2]), name="negated")
        >>> data = g.build().serialize()
        >>> weft.Graph().deserialize(weft.create_handle("cpu"), data)(np.float32([3, 4]))
        array([-3., -4.], dtype=float32)
        """
        *before, data = arguments
        handle = before[0] if before else handle
        self._handle = handle or self._handle
        return self.load(data, {}, code)

    def load(self, data: bytes, values: Mapping[int, Any], code: bool = False) -> Self:
        """Like deserialize, on the graph's handle or described device, with the values of constants by
        uid."""
        descriptor = Descriptor(descriptor_type.EXECUTION_PLAN_DESCRIPTOR)
        if self._handle is not None:
            descriptor.set(attribute_name.EXECUTION_PLAN_HANDLE, "HANDLE", [self._handle.pointer])
        elif self._device_property is not None:
            properties = [self._device_property.descriptor]
            descriptor.set(attribute_name.EXECUTION_PLAN_DEVICEPROP, "BACKEND_DESCRIPTOR", properties)
        if code:
            descriptor.set(attribute_name.EXECUTION_PLAN_WITH_CODE_EXT, "BOOLEAN", [True])
        descriptor.set(attribute_name.EXECUTION_PLAN_JSON_REPRESENTATION, "CHAR", bytes(data))
        with Waiting(f"{self._label}: compiling kernels of a saved plan"):
            descriptor.finalize()
        plan = self.plan_type(descriptor, values=values, place=self._device_property or self._handle)
        self._tensors = []
        for described in plan.report["tensors"]:
            tensor = self.tensor_type(self, described["name"] or "")
            tensor._uid, tensor._is_virtual = described["uid"], described["virtual"]
            tensor._dims, tensor._strides = tuple(described["dims"]), tuple(described["strides"])
            tensor._data_type, tensor._by_value = (
                dtypes.data_type_of(described["type"]),
                described["by_value"],
            )
            self._tensors.append(tensor)
        self.is_validated = True
        self._use(plan)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the selected plan with the values of constants."""
        return Graph._loaded, (self.serialize(), self.plan.values)

    @staticmethod
    def _loaded(data: bytes, values: Mapping[int, Any]) -> Graph:
        return Graph().load(data, values)

    # ---- Context ----

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None and self._plan is None:
            self.build()

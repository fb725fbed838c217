"""The methods that add operations to a graph, generated from the rows of table.py: arguments are bound as in
cuDNN, enumerations are converted to Weft's, and Weft's method of the same name is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any

from weft import buffers, enums
from weft.arguments import label
from weft.cudnn.enums import NodeType, moe_grouped_matmul_mode, norm_forward_phase, to_weft, weft_type
from weft.cudnn.enums import data_type as cudnn_data_type
from weft.cudnn.grouped import METHODS, known_dims, reshaped
from weft.cudnn.names import Node, name_of
from weft.cudnn.rotary import COMPOSED
from weft.cudnn.table import LINEAR_ATTENTION, MATMUL, POINTWISE, REQUIRED, STRUCTURED, Row
from weft.errors import BadParameterError, NotSupportedError
from weft.graphs import Graph
from weft.tensor import Tensor


class Operations(Graph):
    """Weft's graph with cuDNN's methods for operations."""

    _nodes: list[Node]
    _adopted: dict[Tensor, Tensor]

    def _own(self, value: Any, where: str, key: str) -> Any:
        """Converts a tensor of another graph to one of this graph with the same uid: an existing tensor, or a
        new input like it. Other values are returned unchanged."""
        if not isinstance(value, Tensor) or value.graph is self:
            return value
        own = self._adopted.get(value)
        if own is None and value._uid is not None:
            own = next((tensor for tensor in self._tensors if tensor._uid == value._uid), None)
        if own is None:
            if not value._dims or (value.producer is not None and value._is_virtual):
                raise BadParameterError(
                    f"{where}: {key}, {value!r}, is a virtual tensor of another graph. Give a tensor of this "
                    "graph, or one with memory."
                )
            own = self._copy_of(value, where, key)
        self._adopted[value] = own
        return own

    def _copy_of(self, tensor: Tensor, where: str, key: str) -> Tensor:
        """A new input with all properties that are set for a tensor."""
        copy = self.tensor_like(tensor, tensor._name)
        for name in ("_uid", "_alignment", "_vector", "_reordering", "_ragged_multiplier"):
            setattr(copy, name, getattr(tensor, name))
        copy.value, copy.constant, copy.number = tensor.value, tensor.constant, tensor.number
        if tensor._ragged_offset is not None:
            copy.set_ragged_offset(self._own(tensor._ragged_offset, where, f"{key}'s ragged_offset"))
        return copy

    def _add(
        self,
        method: str,
        row: Row,
        bound: Mapping[str, Any],
        name: str,
        compute_data_type: Any,
        out_dims: Any = None,
    ) -> Any:
        """Adds an operation with Weft's method, and records it with cuDNN's names."""
        where = label(method, name)
        values = {
            key: self._operand(where, key, value, row) for key, value in bound.items() if value is not None
        }
        converted = {key: _converted(value) for key, value in values.items()}
        if method in _ROW_NORMS:
            converted |= self._parameters_of_full_rank(values)
        elif method in POINTWISE:
            converted |= self._operands_of_full_rank(values, row)
        add: Any = _described(method)
        results = add(self, **converted, compute_data_type=weft_type(compute_data_type), name=name)
        wefts_name = self._operations[-1].name
        if method.endswith("_backward") and converted.get("scale") is not values.get("scale"):
            dims = values["scale"]._dims
            results = (results[0], *[t if t is None else reshaped(self, t, dims) for t in results[1:]])
        self._note(method, row, values, results, (name, wefts_name), out_dims)
        return results

    def _parameters_of_full_rank(self, values: Mapping[str, Any]) -> dict[str, Tensor]:
        """Scale and bias with the rank of the input if theirs is lower: [C] becomes [1, 1, C]."""
        full = {}
        for key in ("scale", "bias"):
            tensor = values.get(key)
            if isinstance(tensor, Tensor) and len(tensor._dims) == 1:
                missing = len(known_dims(self, values["input"])) - 1
                full[key] = reshaped(self, tensor, [*[1] * missing, *tensor._dims]) if missing else tensor
                full[key]._data_type = tensor._data_type
        return full

    def _operands_of_full_rank(self, values: Mapping[str, Any], row: Row) -> dict[str, Tensor]:
        """Pointwise operands of lower rank than the others: [C] becomes [1, 1, C]."""
        operands = {
            key: t for key in row.operands if isinstance(t := values.get(key), Tensor) and not t.is_constant
        }
        ranks = {key: _rank_of(tensor, {}) for key, tensor in operands.items() if not tensor._by_value}
        most, full = max(ranks.values(), default=0), {}
        for key, rank in ranks.items():
            if 0 < rank < most:
                dims = [*[1] * (most - rank), *known_dims(self, operands[key])]
                logical = enums.reshape_mode.LOGICAL
                full[key] = Graph.reshape(self, operands[key], reshape_mode=logical).set_dim(dims)
                full[key]._data_type = operands[key]._data_type
        return full

    def _operand(self, where: str, key: str, value: Any, row: Row) -> Any:
        """Converts an array to a tensor of the graph, so that the node can refer to it; other values are
        returned unchanged."""
        if key in row.lists:
            return [self._operand(where, key, item, row._replace(lists=())) for item in value]
        value = self._own(value, where, key)
        is_operand = key in row.operands and not isinstance(value, (Tensor, int, float))
        return self._as_tensor(value, where, key) if is_operand and buffers.is_array(value) else value

    def _note(
        self,
        method: str,
        row: Row,
        values: Mapping[str, Any],
        returned: Any,
        names: tuple[str, str],
        out_dims: Any,
    ) -> None:
        """Records operands and results of the last operation, and sets the dims of the results."""
        results = returned if isinstance(returned, tuple) else (returned,)
        outputs = {key: t for key, t in zip(row.results, results, strict=True) if t is not None}
        inputs = {key: v for key, v in values.items() if key in row.operands or isinstance(v, Tensor)}
        attributes = {key: value for key, value in values.items() if key not in inputs}
        node_name, wefts_name = names
        name, kind = node_name or name_of(self._nodes, method), NodeType[row.node]
        self._nodes.append(Node(name, kind, method, inputs, outputs, attributes, wefts_name))
        set_dims(outputs, out_dims)

    def matmul(  # type: ignore[override]
        self, A: Any, B: Any, compute_data_type: Any = None, padding: float = 0.0, name: str = ""
    ) -> Tensor:
        """C = A B over the last two dimensions. padding is the value of elements beyond an extent that a run
        shortens."""
        product: Tensor = self._add(
            "matmul", MATMUL, {"A": A, "B": B, "padding": padding}, name or "", compute_data_type
        )
        return product


_ROW_NORMS = ("layernorm", "rmsnorm", "layernorm_backward", "rmsnorm_backward")
"""Norms whose parameters may have a lower rank than the input."""


def _converted(value: Any) -> Any:
    """Converts an argument to the form of Weft's methods; the one mode that Weft lacks is kept for the
    function that decomposes it."""
    return value if value is moe_grouped_matmul_mode.COMBINE else to_weft(value)


def _rank_of(tensor: Tensor, known: dict[Tensor, int]) -> int:
    """The present or future rank of a tensor, which is that of its operands; 0 if it is unknown."""
    if tensor._dims or tensor.producer is None:
        return len(tensor._dims)
    if tensor not in known:
        known[tensor] = 0  # terminates cycles
        known[tensor] = max((_rank_of(each, known) for each in tensor.producer.operands()), default=0)
    return known[tensor]


def set_dims(outputs: Mapping[str, Tensor], out_dims: Any) -> None:
    """Sets the dims of results. out_dims: those of the first result, of each in order, or by name."""
    if out_dims is None:
        return
    if not isinstance(out_dims, Mapping):
        is_one = all(isinstance(extent, int) for extent in out_dims)
        out_dims = dict(zip(outputs, [out_dims] if is_one else out_dims, strict=False))
    for key, dims in out_dims.items():
        if dims is not None:
            outputs[key].set_dim(dims)


def bind(method: str, row: Row, arguments: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
    """Binds arguments to names. A norm's phase may be anywhere among the positional arguments."""
    bound, rest = dict(named), list(arguments)
    for phase in [a for a in rest if isinstance(a, (norm_forward_phase, enums.norm_forward_phase))]:
        if "norm_forward_phase" in row.attributes:
            rest.remove(phase)
            bound["norm_forward_phase"] = phase
    order = [key for key in row.positional if key != "norm_forward_phase" or key not in bound]
    if len(rest) > len(order):
        raise TypeError(f"{method}() takes {len(row.positional)} positional arguments: {row.positional}")
    by_position = dict(zip(order, rest, strict=False))
    twice = sorted(by_position.keys() & bound.keys())
    if twice:
        raise TypeError(f"{method}() got two values for {', '.join(twice)}")
    bound |= by_position
    known = {*row.positional}
    for key in bound:
        if key not in known:
            raise TypeError(f"{method}() got an unexpected argument {key!r}; it takes {sorted(known)}")
    needed = {*row.operands} - {*row.optional}
    needed |= {key for key, default in row.attributes.items() if default is REQUIRED}
    missing = [key for key in needed if bound.get(key) is None]
    if missing:
        raise TypeError(f"{method}() is missing {', '.join(sorted(missing))}")
    return {key: default for key, default in row.attributes.items() if default is not REQUIRED} | bound


_TAIL = {"name": "", "compute_data_type": None, "out_dims": None}


def signature_of(row: Row, tail: Sequence[str]) -> Signature:
    """The signature for help(), which the test compares."""
    optional = dict.fromkeys(row.optional) | dict(row.attributes)
    optional |= {key: _TAIL[key] for key in ("name", "compute_data_type") if row.is_plain}
    parameters = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)]
    seen_default = False
    for key in row.positional:
        default = optional.get(key, REQUIRED)
        seen_default = seen_default or default is not REQUIRED
        empty = None if seen_default else Parameter.empty
        value = empty if default is REQUIRED else default
        parameters.append(Parameter(key, Parameter.POSITIONAL_OR_KEYWORD, default=value))
    named = [key for key in tail if key not in row.positional]
    parameters += [Parameter(key, Parameter.KEYWORD_ONLY, default=_TAIL[key]) for key in named]
    return Signature(parameters)


def _method(method: str, row: Row, tail: Sequence[str]) -> Callable[..., Any]:
    takes_dims = "out_dims" in tail

    def add(self: Operations, *arguments: Any, **named: Any) -> Any:
        out_dims = named.pop("out_dims", None) if takes_dims else None
        tail = {key: named.pop(key) for key in ("name", "compute_data_type") if key in named}
        # Releases before 1.32 accept compute_data_type by position, among the attributes.
        for kind in [a for a in arguments if isinstance(a, (cudnn_data_type, enums.data_type))]:
            if not row.is_plain:
                arguments, tail["compute_data_type"] = tuple(a for a in arguments if a is not kind), kind
        bound = bind(method, row, arguments, named)
        tail |= {key: bound.pop(key) for key in ("name", "compute_data_type") if key in bound}
        name, compute_data_type = tail.get("name") or "", tail.get("compute_data_type")
        return self._add(method, row, bound, name, compute_data_type, out_dims)

    return _dressed(add, method, signature_of(row, tail), _described(method))


def _described(method: str) -> Any:
    """The function from which a method's docstring is taken."""
    return METHODS.get(method) or getattr(Graph, method, None) or COMPOSED[method]


def _dressed(function: Callable[..., Any], name: str, signature: Signature, like: Any) -> Callable[..., Any]:
    function.__name__, function.__qualname__ = name, f"pygraph.{name}"
    function.__doc__ = _sentence(name, like)
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def _sentence(name: str, like: Any) -> str:
    """Weft's own docstring without the arguments."""
    text = (like.__doc__ or "") if like is not None else f"{name}: an operation that Weft does not implement."
    first: str = text.split("\n\n        Args:")[0]
    return first


def _refusing(method: str) -> Callable[..., Any]:
    def refuse(self: Operations, *arguments: Any, name: str = "", **named: Any) -> Any:
        raise NotSupportedError(f"{label(method, name)}: Weft has no such operation.")

    parameters = [
        Parameter("self", Parameter.POSITIONAL_OR_KEYWORD),
        Parameter("args", Parameter.VAR_POSITIONAL),
    ]
    parameters += [Parameter(key, Parameter.KEYWORD_ONLY, default=value) for key, value in _TAIL.items()]
    parameters += [Parameter("kwargs", Parameter.VAR_KEYWORD)]
    return _dressed(refuse, method, Signature(parameters), None)


for _name, _row in POINTWISE.items():
    setattr(Operations, _name, _method(_name, _row, ("name", "compute_data_type")))
for _name, _row in STRUCTURED.items():
    setattr(Operations, _name, _method(_name, _row, ("name", "compute_data_type", "out_dims")))
for _name in LINEAR_ATTENTION:
    setattr(Operations, _name, _refusing(_name))

"""Replaces torch's own operators by Weft's kernels; calls that Weft does not support fall through to
torch."""

from __future__ import annotations

import functools
import itertools
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from weft.errors import WeftError
from weft.torch import calls
from weft.torch.ops import OPERATORS, PLACES, Operator, StandIn

_SERVED = "served"


class _Measured:
    """Calls and seconds of the measured compute operators, in total and of those that Weft served."""

    def __init__(self) -> None:
        self.calls, self.seconds = [0, 0], [0.0, 0.0]

    def add(self, seconds: float, is_served: bool) -> None:
        """Records a call."""
        for i in range(1 + is_served):
            self.calls[i] += 1
            self.seconds[i] += seconds


class Report(dict[str, dict[str, int]]):
    """Counts of calls by operator and outcome: "served", or the reason why torch computed it."""

    def __init__(self, counts: dict[str, dict[str, int]], measured: _Measured) -> None:
        super().__init__(counts)
        self._calls, self._seconds = tuple(measured.calls), tuple(measured.seconds)

    def __str__(self) -> str:
        count, served = self._calls
        if count:
            part = self._seconds[1] / max(self._seconds[0], 1e-9)
            share = f"{served} of {count} compute operators ({served / count:.0%})"
            return f"Weft served {share} and {part:.0%} of their time."
        calls_ = sum(sum(outcomes.values()) for outcomes in self.values())
        served = sum(outcomes.get(_SERVED, 0) for outcomes in self.values())
        return (
            f"Weft served {served} of {calls_} calls of the operators that it replaces. Run a step under "
            "measure() to see its share of all operators and of their time."
        )


class _Watch(TorchDispatchMode):  # type: ignore[misc]
    """Measures the operators that compute, skipping views and allocations."""

    def __init__(self, enabled: Enabled) -> None:
        super().__init__()
        self._enabled = enabled

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.is_view or "empty" in func._schema.name:
            return func(*args, **(kwargs or {}))
        before = self._enabled._served()
        _wait()
        start = time.perf_counter()
        results = func(*args, **(kwargs or {}))
        _wait()
        seconds = time.perf_counter() - start
        is_served = func.namespace == "weft" or self._enabled._served() > before
        self._enabled._measured.add(seconds, is_served)
        return results


def _wait() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


class Enabled:
    """The result of enable(): a context manager that also reports which calls Weft served."""

    def __init__(self, operators: Sequence[Operator], places: Sequence[str]) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._measured = _Measured()
        self._servers: list[tuple[str, Any]] = []
        self._library: Any = torch.library.Library("aten", "IMPL")
        for operator in operators:
            sources: list[Operator | StandIn] = [operator, *operator.stand_ins]
            for each, place in itertools.product(sources, places):
                for before in each.keys if place in each.places else ():
                    self._put(each, before + place.upper())

    def _put(self, operator: Operator | StandIn, key: str) -> None:
        name = operator.twin._schema.name
        # Kernels of a device and composite operators do not read the dispatch keys.
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        native = functools.partial(torch.library.get_kernel(operator.twin, key).call_boxed, keys)
        serve = operator if isinstance(operator, StandIn) else operator.call_checked
        slow = _server(name, serve, native, self._counts)

        def left(error: WeftError) -> Callable[..., Any]:
            return _counted(native, self._counts, (name, str(error)))

        if isinstance(operator, StandIn):
            call = operator.wrap(slow, left, _server(name, operator.serve, native, self._counts))
        else:
            call = operator.wrap(slow, left, operator.check)
            self._servers.append((name, call))
        if operator.twin is torch.ops.aten.convolution.default:
            call = _unless_traced(call, native)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the override is intended
            self._library.impl(operator.twin, call, key, allow_override=True)

    def report(self) -> Report:
        """Returns, for each torch operator, the number of calls that Weft served, and of those that it did
        not, by reason. str() of the report is one line."""
        counts = self._counts.copy()
        if calls.FUNCTIONS:
            for name, call in self._servers:
                counts[name, _SERVED] += calls.FUNCTIONS.served(call)
        told: dict[str, dict[str, int]] = {}
        for (name, outcome), count in sorted(counts.items()):
            if count:
                told.setdefault(name, {})[outcome] = count
        return Report(told, self._measured)

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measures, within a with block, Weft's share of all compute operators and of their time for
        report(). It adds some microseconds to each operator, and on a GPU it synchronizes after each."""
        with _Watch(self):
            yield

    def _served(self) -> int:
        """Returns the number of calls that Weft has served."""
        return sum(outcomes.get(_SERVED, 0) for outcomes in self.report().values())

    def disable(self) -> None:
        """Restores torch's own operators."""
        if self._library is not None:
            self._library._destroy()
        self._library = None

    def __enter__(self) -> Enabled:
        return self

    def __exit__(self, *_: object) -> None:
        self.disable()


def _server(
    name: str, operator: Callable[..., Any], native: Callable[..., Any], counts: Counter[tuple[str, str]]
) -> Callable[..., Any]:
    """Returns the Python implementation that replaces one torch operator on one device. native: torch's
    kernel."""
    served = name, _SERVED

    def serve(*arguments: Any, **named: Any) -> Any:
        try:
            results = operator(*arguments, **named)
        except WeftError as error:
            counts[name, str(error)] += 1
            return native(*arguments, **named)
        counts[served] += 1
        return results

    return serve


def _unless_traced(call: Callable[..., Any], native: Callable[..., Any]) -> Callable[..., Any]:
    """Lets torch.jit.trace record torch's kernel, because it does not record a replacement of this
    operator."""
    tracing_state = torch._C._get_tracing_state

    def serve(*arguments: Any) -> Any:
        return call(*arguments) if tracing_state() is None else native(*arguments)

    return serve


def _counted(
    native: Callable[..., Any], counts: Counter[tuple[str, str]], outcome: tuple[str, str]
) -> Callable[..., Any]:
    """Wraps a torch operator so that its calls are counted."""

    def call(*arguments: Any, **named: Any) -> Any:
        counts[outcome] += 1
        return native(*arguments, **named)

    return call


_PARTS = dict.fromkeys(("linear", "linear_backward"), ("mm", "addmm", "bmm"))
"""The operators that torch decomposes an operator into. Weft replaces these parts."""


def _refuse_name(name: str) -> None:
    if name not in OPERATORS:
        raise ValueError(f"enable: unknown operator {name!r}. Use names from {', '.join(OPERATORS)}.")
    forward = OPERATORS[name.removesuffix("_backward")]
    replaces = forward.places or forward.stand_ins or name in _PARTS
    if not replaces:
        raise ValueError(
            f"enable: {name!r} replaces none of torch's operators: expected one that does, got {name!r}. "
            f"Call torch.ops.weft.{name}."
        )


def enable(ops: Sequence[str] | str | None = None, where: Sequence[str] | str = ("cpu", "cuda")) -> Enabled:
    """Replaces torch's operators by Weft's until disable() or the end of a with block.

    Args:
        ops: names in weft.torch.OPERATORS, or one name; default all of them. Gradients are separate
            operators,
            such as "conv_backward" for "conv". "linear" enables the products into which torch decomposes
            linear layers: "mm", "addmm" and "bmm".
        where: devices, "cpu" and "cuda", or one of them.

    Raises:
        ValueError: a name or device does not exist, or an operator replaces none of torch's.
    """
    requested = list(OPERATORS) if ops is None else [ops] if isinstance(ops, str) else list(ops)
    for name in requested if ops is not None else ():
        _refuse_name(name)
    devices = [where] if isinstance(where, str) else list(where)
    strange = [each for each in devices if each not in PLACES]
    if strange:
        raise ValueError(f"enable: unknown device {strange[0]!r} in where. Use 'cpu' and 'cuda'.")
    places = [p for p in devices if p == "cpu" or torch.cuda.is_available()]
    names = dict.fromkeys(part for name in requested for part in _PARTS.get(name, (name,)))
    return Enabled([OPERATORS[name] for name in names], places)

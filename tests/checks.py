"""Checks of operations: one case runs on every engine that accepts it, against a NumPy float64 oracle.

    def test_matmul():
        a, b = checks.random((2, 3, 4), "bf16"), checks.random((2, 4, 5), "bf16", seed=1)
        checks.check(lambda g, a, b: g.matmul(a, b), {"a": a, "b": b}, checks.exact(a) @ checks.exact(b))

Every run has its outputs and workspace poisoned, all memory fenced, and is done twice: results must be equal
to the bit where the engine promises it, inputs and the gaps between strided elements untouched. The tolerance
has one home: `tolerance`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import foreign_cpu
import ml_dtypes
import numpy as np
import poison
import pytest
import weft
from weft import buffers, dtypes
from weft.enums import data_type

DEVICE = os.environ.get("WEFT_TEST_DEVICE", "cpu")  # "cuda" runs the same cases on the first GPU
LAYOUTS = ("packed", "channels_last", "padded")


# ---- Values ------------------------------------------------------------------------------------------------


def random(
    shape: Sequence[int], dtype: str = "f32", low: float = -2, high: float = 2, seed: int = 0
) -> np.ndarray[Any, Any]:
    """Returns random values between low and high, rounded to a data type; integers for integer types. Equal
    arguments give
    equal values."""
    rng = np.random.default_rng([seed, *shape])
    type_ = _type(dtype)
    if _is_float(type_):
        return narrow(rng.uniform(low, high, shape), type_)
    if type_ in (data_type.BOOLEAN, data_type.BYTE_BOOLEAN):
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(int(low), int(high) + 1, shape).astype(_array_dtype(type_))


def exact(array: Any) -> np.ndarray[Any, Any]:
    """The values as float64."""
    return np.asarray(array).astype(np.float64)


def narrow(values: Any, dtype: str | data_type) -> np.ndarray[Any, Any]:
    """Stores float64 values in a data type as Weft does: rounded once to nearest even; integers and floats of
    8 bits and
    fewer saturate."""
    type_ = _type(dtype)
    target = _array_dtype(type_)
    wide = np.asarray(values, np.float64)
    if type_ in (data_type.BOOLEAN, data_type.BYTE_BOOLEAN):
        return wide != 0
    if not _is_float(type_):
        info = ml_dtypes.iinfo(target)
        with np.errstate(invalid="ignore"):  # the largest INT64 is not representable as a float
            return np.clip(np.nan_to_num(np.rint(wide)), float(info.min), float(info.max)).astype(target)
    if dtypes.of(type_).bits <= 8:
        most = float(ml_dtypes.finfo(target).max)
        wide = np.clip(wide, -most, most)
    with np.errstate(over="ignore"):
        return wide.astype(target)


def _type(dtype: str | data_type) -> data_type:
    found = dtypes.data_type_of(dtype)
    assert found is not None
    return found


def _is_float(type_: data_type) -> bool:
    return dtypes.of(type_).name[0] in "fbe" and type_ not in (data_type.BOOLEAN, data_type.BYTE_BOOLEAN)


def _array_dtype(type_: data_type) -> np.dtype[Any]:
    """Returns the NumPy dtype that holds values of a type here; 4-bit values occupy one byte each."""
    small = {
        data_type.FP4_E2M1: ml_dtypes.float4_e2m1fn,
        data_type.INT4: ml_dtypes.int4,
        data_type.UINT4: ml_dtypes.uint4,
        data_type.BOOLEAN: bool,
    }
    return np.dtype(small[type_]) if type_ in small else dtypes.numpy_dtype(type_)


def _type_of(array: np.ndarray[Any, Any]) -> data_type:
    names = {"float4_e2m1fn": data_type.FP4_E2M1, "int4": data_type.INT4, "uint4": data_type.UINT4}
    return names.get(array.dtype.name) or _type(array.dtype.name)


# ---- Memory ------------------------------------------------------------------------------------------------


def strides_of(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """Strides in elements: packed; channels_last (dimension 1 fastest); padded (odd gaps in every
    dimension)."""
    if layout == "channels_last" and len(shape) > 2:
        order = [0, *range(2, len(shape)), 1]
    else:
        order = list(range(len(shape)))
    strides, step = [0] * len(shape), 1
    for i in reversed(order):
        strides[i] = step
        step *= max(shape[i], 1)
        step += 3 if layout == "padded" else 0
    return tuple(strides)


class Memory:
    """Fenced, poisoned memory for one tensor.

    shift: bytes between an address that is aligned to 64 bytes and the first element, at most poison.FENCE.
    """

    def __init__(self, dims: Sequence[int], strides: Sequence[int], type_: data_type, shift: int = 0) -> None:
        self.dims, self.strides, self.type = tuple(dims), tuple(strides), type_
        self.bits = dtypes.of(type_).bits
        self.size = (buffers.span(self.dims, self.strides) * self.bits + 7) // 8
        self.offset = poison.FENCE + shift
        raw = poison.array(self.size + 2 * poison.FENCE + shift + 64)
        start = -raw.ctypes.data % 64
        self._raw = raw[start : start + self.size + 2 * poison.FENCE + shift]
        self.address = self._raw.ctypes.data + self.offset

    @property
    def whole(self) -> np.ndarray[Any, Any]:
        """All bytes, fences included."""
        return self._raw

    @property
    def bytes(self) -> np.ndarray[Any, Any]:
        """Returns the bytes between the fences."""
        return self._raw[self.offset : self.offset + self.size]

    def _view(self) -> np.ndarray[Any, Any]:
        dtype = _array_dtype(self.type)
        steps = tuple(step * dtype.itemsize for step in self.strides)
        flat = self._raw[self.offset :]
        return np.ndarray(self.dims, dtype, buffer=flat.data, strides=steps)

    def _places(self) -> np.ndarray[Any, Any]:
        """Returns the memory index of each element of fewer than 8 bits."""
        grid = np.indices(self.dims)
        return sum((g * s for g, s in zip(grid, self.strides, strict=True)), np.zeros(self.dims, int))

    def write(self, values: np.ndarray[Any, Any]) -> Memory:
        """Stores an array with the tensor's dims."""
        if self.bits >= 8:
            self._view()[...] = np.asarray(values).reshape(self.dims)
            return self
        per_byte, mask = 8 // self.bits, (1 << self.bits) - 1
        codes = np.asarray(values).reshape(self.dims).view(np.uint8)
        for place, code in zip(self._places().ravel(), codes.ravel(), strict=True):
            shift = int(place) % per_byte * self.bits
            byte = int(self.bytes[place // per_byte]) & ~(mask << shift)
            self.bytes[place // per_byte] = byte | (int(code) & mask) << shift
        return self

    def read(self) -> np.ndarray[Any, Any]:
        """Returns a copy of the values."""
        if self.bits >= 8:
            return self._view().copy()
        per_byte, mask = 8 // self.bits, (1 << self.bits) - 1
        places = self._places()
        codes = (self.bytes[places // per_byte] >> (places % per_byte * self.bits)) & mask
        is_boolean = self.type is data_type.BOOLEAN
        return codes.astype(bool) if is_boolean else codes.astype(np.uint8).view(_array_dtype(self.type))

    def check_fences(self, before: np.ndarray[Any, Any], what: str) -> None:
        """Checks that only the elements differ from `before`, the bytes of the whole memory."""
        __tracebackhide__ = True  # pytest shows the test instead
        touched = np.zeros(len(self._raw), np.uint8)
        touched[self.offset : self.offset + self.size] = self.bits < 8
        if self.bits >= 8 and self.size:
            item = self.bits // 8
            steps = tuple(step * item for step in self.strides)
            start = touched[self.offset :].data
            elements = np.ndarray((*self.dims, item), np.uint8, start, strides=(*steps, 1))
            elements[...] = 1
        wrong = np.flatnonzero((self._raw != before) & (touched == 0))
        assert not len(wrong), (
            f"{what}: wrote outside its elements, first at byte {wrong[0] - self.offset} of {self.size}"
        )

    def check_ends(self, what: str) -> None:
        """Checks that only the bytes between the fences differ from poison."""
        __tracebackhide__ = True  # pytest shows the test instead
        ends = np.delete(self._raw, slice(self.offset, self.offset + self.size))
        assert (ends == poison.BYTE).all(), f"{what}: wrote outside its {self.size} bytes"

    def to_device(self) -> weft.DeviceArray:
        """Copies all bytes to device memory."""
        return on_device(self._raw)

    def from_device(self, copy: weft.DeviceArray) -> None:
        """Copies all bytes back."""
        self._raw[:] = copy.numpy()

    def snapshot(self) -> np.ndarray[Any, Any]:
        """A copy of all bytes, fences included."""
        return self._raw.copy()


# ---- The tolerance -----------------------------------------------------------------------------------------


def ulp(values: np.ndarray[Any, Any], type_: data_type) -> np.ndarray[Any, Any]:
    """Returns the distance between adjacent numbers of a float type at each value."""
    info = ml_dtypes.finfo(_array_dtype(type_))
    magnitude = np.abs(np.nan_to_num(values, posinf=0, neginf=0))
    exponent = np.floor(np.log2(np.maximum(magnitude, float(info.smallest_normal))))
    return np.exp2(exponent) * float(info.eps)


def roundoff(dtype: str) -> float:
    """Returns the largest relative error of rounding to a float type: half the spacing at 1."""
    return float(ml_dtypes.finfo(_array_dtype(_type(dtype))).eps) / 2


def tolerance(
    want: np.ndarray[Any, Any],
    type_: data_type,
    engine: str,
    ulps: float,
    magnitude: float | None,
    rounded: Any = None,
    of_fp8: bool = False,
) -> np.ndarray[Any, Any]:
    """Returns the allowed error of a result. The reference computes in double and rounds once, so it may be
    off by `ulps` of the output's type. Other engines may sum in float32 in any order, which adds 32 roundings
    of the largest magnitude summed.

    If one product feeds the next, such as in attention, tensor cores, and a CPU's tiles in bf16, convert the
    first result to 16 bits: instead of sum(p v) they compute sum(p (1 + e) v) with |e| <= u, the roundoff:
    2^-11 in f16, 2^-8 in bf16. The error is at most u sum(|p| |v|) for each element of the result, and
    `rounded` is this bound. It holds for results of 16 bits and less; wider ones are as exact as float. The
    same applies to intermediates without a declared type that kernels exchange through memory.

    Hopper's tensor cores sum 128 products of FP8 with 13 bits of fraction, which loses at most 2^-9 of the
    magnitude summed; longer sums are no worse."""
    spread = magnitude if magnitude is not None else float(np.max(np.abs(np.nan_to_num(want)), initial=0.0))
    summing = 2.0**-53 * 64 if engine == "cpu.reference" else 2.0**-24 * 32
    if type_ is data_type.DOUBLE:
        summing = 2.0**-53 * 256
    if engine == "cuda.tf32":  # TF32 keeps 10 bits of the fraction of each factor
        summing += 2.0**-10
    if of_fp8 and engine.startswith("cuda"):
        summing += 2.0**-9
    has_tiles = engine.startswith("cuda") or (engine == "cpu.fast" and type_ is data_type.BFLOAT16)
    takes_factors = rounded is not None and has_tiles and dtypes.of(type_).bits <= 16
    return ulps * ulp(want, type_) + summing * spread + (rounded if takes_factors else 0)


def compare(
    got: np.ndarray[Any, Any],
    want: Any,
    type_: data_type,
    *,
    engine: str = "cpu.reference",
    ulps: float = 1,
    magnitude: float | None = None,
    rounded: Any = None,
    of_fp8: bool = False,
) -> str:
    """Describes where a result differs from the oracle; empty if it does not. Integers and booleans must be
    equal."""
    wide = exact(want).reshape(got.shape)
    if not _is_float(type_) and np.asarray(want).dtype == got.dtype:
        wrong = got != np.reshape(want, got.shape)
    elif not _is_float(type_):
        wrong = got.astype(np.int64) != narrow(wide, type_).astype(np.int64)
    else:
        info = ml_dtypes.finfo(_array_dtype(type_))
        most, beyond = float(info.max), float(info.max) * (1 + float(info.eps) / 4)
        if dtypes.of(type_).bits <= 8:
            wide = np.clip(wide, -most, most)
        elif type_ is not data_type.DOUBLE:
            wide = np.where(np.abs(wide) > beyond, np.copysign(np.inf, wide), wide)
        found = exact(got)
        special = ~np.isfinite(wide) | ~np.isfinite(found)
        same = (found == wide) | (np.isnan(found) & np.isnan(wide))
        with np.errstate(invalid="ignore"):
            off = np.abs(found - wide) > tolerance(wide, type_, engine, ulps, magnitude, rounded, of_fp8)
        wrong = np.where(special, ~same, off)
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    count = f"{int(wrong.sum())} of {wrong.size} elements are wrong"
    return f"{count}, first at {list(at)}: got {got[at]}, want {wide[at]:.9g}"


# ---- Runs --------------------------------------------------------------------------------------------------


_handles: dict[str, weft.backend.Handle] = {}


def handle() -> weft.backend.Handle:
    """The handle that tests share."""
    if DEVICE not in _handles:
        _handles[DEVICE] = weft.create_handle(DEVICE)
    return _handles[DEVICE]


def check(
    build: Callable[..., Any],
    inputs: Mapping[str, Any],
    expected: Any,
    *,
    out: str | Sequence[str | None] | None = None,
    layouts: Sequence[str] = ("packed", "padded"),
    scalars: Mapping[str, tuple[float, str]] | None = None,
    ulps: float = 1,
    magnitude: float | None = None,
    rounded: Sequence[Any] | None = None,
    of_fp8: bool = False,
    graph: Mapping[str, Any] | None = None,
    knobs: Mapping[str, int] | None = None,
) -> dict[str, list[np.ndarray[Any, Any]]]:
    """Runs a graph on every engine that accepts it, in each layout, and compares its outputs with `expected`.

    build:     called with a Graph and the input tensors by name; returns the output, or a tuple of outputs.
    inputs:    arrays by name. An ml_dtypes int4 or float4 array is packed two to a byte. A tuple (array,
        strides) keeps
               these strides, in elements, in every layout.
    expected:  float64 array, or a sequence of them; None in it is not compared.
    out:       data type of the output, or one per output; None leaves it to inference.
    scalars:   by-value tensors by name: value and data type.
    magnitude: the largest magnitude that is summed, if it exceeds the results' own.
    rounded:   by output, the bound for rounding factors to 16 bits (see tolerance); None: no allowance.
    of_fp8:    whether products of FP8 are summed (see tolerance).
    graph:     arguments of Graph, such as compute_data_type.
    knobs:     for engines that know them and can apply them; other engines choose for themselves.
    Returns the outputs of the last layout by engine.
    """
    __tracebackhide__ = True  # pytest shows the test instead
    wanted = list(expected) if isinstance(expected, (list, tuple)) else [expected]
    types = list(out) if isinstance(out, (list, tuple)) else [out] * len(wanted)
    found: dict[str, list[np.ndarray[Any, Any]]] = {}
    for layout in layouts:
        for engine in engine_names():
            options = dict(graph or {})
            try:
                case = _Case(build, inputs, scalars or {}, wanted, types, layout, options)
                if not case.build(engine, knobs or {}):
                    case = _Case(build, inputs, scalars or {}, wanted, types, layout, options)
                    case.build(engine, {})
            except weft.NotSupportedError:
                if engine in ("cpu.reference", "cuda"):
                    raise
                continue
            found[engine] = case.run(1 if engine == "cpu.reference" else 2)
            for i, want in enumerate(wanted):
                if want is None:
                    continue
                type_ = case.outputs[i].dtype
                assert type_ is not None
                assert found[engine][i].shape == np.shape(want), (
                    f"output {i} has dims {found[engine][i].shape}"
                )
                allowed = {
                    "ulps": ulps,
                    "magnitude": magnitude,
                    "rounded": rounded[i] if rounded else None,
                    "of_fp8": of_fp8,
                }
                wrong = compare(found[engine][i], want, type_, engine=engine, **allowed)
                assert not wrong, (
                    f"{engine}, {layout}, output {i} {case.outputs[i]!r}: {wrong}\n{case.reproducer(engine)}"
                )
    return found


def check_bits(build: Callable[..., Any], inputs: Mapping[str, Any], expected: Any, **how: Any) -> None:
    """Like check, for an operation that moves elements: its output has the type and bits of `expected`."""
    __tracebackhide__ = True  # pytest shows the test instead
    for engine, (got,) in check(build, inputs, expected, **how).items():
        assert got.dtype == expected.dtype, engine
        assert got.tobytes() == np.ascontiguousarray(expected).tobytes(), f"{engine}: bits differ"


def first(found: Mapping[str, list[np.ndarray[Any, Any]]]) -> list[np.ndarray[Any, Any]]:
    """Returns the outputs of the first engine in a result of check(); on a CPU this is the reference."""
    return next(iter(found.values()))


def execute(graph: weft.Graph, arrays: Mapping[Any, np.ndarray[Any, Any]]) -> None:
    """Runs a built graph on whole arrays; on a GPU through copies there and back. Tensors that share an array
    share its
    copy."""
    if DEVICE == "cpu":
        graph.execute(arrays)
        return
    memory = {id(array): array.reshape(-1).view(np.uint8) for array in arrays.values()}
    copies = {key: on_device(each) for key, each in memory.items()}
    scratch = poison.on_device(graph.get_workspace_size(), handle=handle())
    graph.execute({tensor: address(copies[id(array)]) for tensor, array in arrays.items()}, address(scratch))
    for key, copy in copies.items():
        memory[key][:] = copy.numpy()


def run_plan(graph: weft.Graph, memory: Mapping[Any, Memory]) -> None:
    """Runs a built graph with a workspace of exactly the size that its plan states: here, on copies in a
    GPU's memory, or
    in another process (tests/foreign_cpu.py)."""
    if foreign := foreign_cpu.process():
        foreign.run(graph.serialize(), {t.uid: each.whole for t, each in memory.items()})
        return
    pack = {tensor: each.address for tensor, each in memory.items()}
    workspace = Memory([graph.get_workspace_size()], [1], data_type.UINT8)
    if DEVICE == "cpu":
        graph.execute(pack, workspace.address)
    else:
        _run_on_copies(graph, memory, pack, workspace)
    workspace.check_ends("the workspace")


def _run_on_copies(
    graph: weft.Graph, memory: Mapping[Any, Memory], pack: dict[Any, int], workspace: Memory
) -> None:
    copies = {t: each.to_device() for t, each in memory.items() if not t.get_is_pass_by_value()}
    scratch = workspace.to_device()
    pack |= {tensor: address(copy) + memory[tensor].offset for tensor, copy in copies.items()}
    graph.execute(pack, address(scratch) + poison.FENCE)
    for tensor, copy in copies.items():
        memory[tensor].from_device(copy)
    workspace.from_device(scratch)


def on_device(raw: np.ndarray[Any, Any]) -> weft.DeviceArray:
    """A copy of bytes in the memory of the device under test."""
    return weft.DeviceArray(raw.shape, "u8", handle=handle()).copy_from(raw)


def address(array: weft.DeviceArray) -> int:
    """Returns an array's address in device memory."""
    return int(array.__cuda_array_interface__["data"][0])


def engine_names() -> list[str]:
    """The engines of the device, the reference first."""
    g = weft.Graph(handle=handle())
    g.identity(g.tensor([1], data_type="f32"))
    names = [answer["engine"] for answer in g.support() if answer["engine"].split(".")[0] == DEVICE]
    return sorted(names, key=lambda name: name != "cpu.reference")


class _Case:
    """One graph with its memory."""

    def __init__(
        self,
        build: Callable[..., Any],
        inputs: Mapping[str, Any],
        scalars: Mapping[str, tuple[float, str]],
        wanted: Sequence[Any],
        types: Sequence[str | None],
        layout: str,
        options: dict[str, Any],
    ) -> None:
        self.layout, self.is_repeatable = layout, True
        self.graph = weft.Graph(handle=handle(), **options)
        self.memory: dict[Any, Memory] = {}
        tensors = {name: self._input(name, value) for name, value in inputs.items()}
        for name, (value, dtype) in scalars.items():
            tensors[name] = self._place(name, narrow([value], dtype), (1,)).set_is_pass_by_value(True)
        made = build(self.graph, **tensors)
        self.outputs = list(made) if isinstance(made, (list, tuple)) else [made]
        for tensor, want, dtype in zip(self.outputs, wanted, types, strict=True):
            if tensor is None:
                continue
            tensor.set_output(True)
            if dtype is not None:
                tensor.set_data_type(dtype)
            if layout == "padded" and want is not None:
                tensor.set_dim(np.shape(want)).set_stride(strides_of(np.shape(want), layout))

    def _input(self, name: str, value: Any) -> Any:
        if isinstance(value, tuple):
            array, strides = value
            return self._place(name, np.asarray(array), tuple(strides))
        array = np.asarray(value)
        return self._place(name, array, strides_of(array.shape, self.layout))

    def _place(self, name: str, array: np.ndarray[Any, Any], strides: tuple[int, ...]) -> Any:
        tensor = self.graph.tensor(array.shape, strides, _type_of(array), name=name)
        self.memory[tensor] = Memory(array.shape, strides, _type_of(array)).write(array)
        return tensor

    def build(self, engine: str, knobs: Mapping[str, int]) -> bool:
        """Plans the graph on one engine; returns False if it cannot apply the knobs."""
        self.is_repeatable = engine != "cuda.unordered"
        index = [answer["engine"] for answer in self.graph.support()].index(engine)
        known = {knob.type.name for knob in self.graph.get_knobs_for_engine(index)}
        told = {name: value for name, value in knobs.items() if name in known}
        try:
            self.graph.create_execution_plan(index, told)
            self.graph.build_plan_at_index(0)
        except weft.NotSupportedError:
            if not told:
                raise
            return False
        for tensor in self.outputs:
            if tensor is not None:
                assert tensor.dtype is not None
                self.memory[tensor] = Memory(tensor.dims, tensor.strides, tensor.dtype)
        return True

    def run(self, times: int) -> list[np.ndarray[Any, Any]]:
        """Runs on poisoned memory: twice, except for engines without threads and state. The runs must write
        only the
        elements of their outputs, and agree bit for bit unless the engine is nondeterministic."""
        __tracebackhide__ = True
        before = {tensor: memory.snapshot() for tensor, memory in self.memory.items()}
        results = []
        for _ in range(times):
            for tensor in self.outputs:
                if tensor is not None:
                    self.memory[tensor].bytes[:] = poison.BYTE
            run_plan(self.graph, self.memory)
            results.append([None if t is None else self.memory[t].read() for t in self.outputs])
        for first, last in zip(results[0], results[-1], strict=True):
            if self.is_repeatable:
                assert first is None or first.tobytes() == last.tobytes(), "two runs differ"
        for tensor, memory in self.memory.items():
            if tensor in self.outputs:
                memory.check_fences(before[tensor], repr(tensor))
            else:
                assert (memory.snapshot() == before[tensor]).all(), f"input {tensor!r} was changed"
        return results[0]

    def reproducer(self, engine: str) -> str:
        """Returns a line that runs the case again."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        operands = " ".join(f"{t.name}={t.description}" for t in self.memory if t not in self.outputs)
        return f"repro: python -m pytest '{test}'  # {engine}, {self.layout}: {operands}"


def refuses(
    build: Callable[..., Any],
    inputs: Mapping[str, Any],
    message: str,
    error: type[Exception] = weft.BadParameterError,
) -> None:
    """Checks that the graph is refused with exactly this message (a part of it is enough). Inputs: arrays, or
    tuples of
    dims and data type if the values do not matter."""
    __tracebackhide__ = True  # pytest shows the test instead
    g = weft.Graph(handle=handle())
    tensors = {}
    for name, value in inputs.items():
        is_plain = isinstance(value, tuple)
        tensors[name] = (
            g.tensor(value[0], data_type=value[1], name=name)
            if is_plain
            else g.tensor(np.shape(value), data_type=_type_of(np.asarray(value)), name=name)
        )

    def run() -> None:
        build(g, **tensors)
        g.build()

    with pytest.raises(error, match=re.escape(message)):
        run()


def on_gpu(build: Callable[..., Any], *inputs: Any, out: Sequence[str] = (), **graph: Any) -> Any:
    """Runs a graph of the default device on torch tensors. out: data types of its outputs."""
    g = weft.Graph(**graph)
    made = build(g, *(g.tensor_like(tensor, is_pass_by_value=False) for tensor in inputs))
    outputs = list(made) if isinstance(made, (list, tuple)) else [made]
    for i, tensor in enumerate(outputs):
        tensor.set_output(True)
        if i < len(out):
            tensor.set_data_type(out[i])
    g.build()
    poison.free_memory_of_torch(g.plan, inputs[0].device)
    return g.plan(*inputs)


def need_gpu() -> Any:
    """Imports torch for a module whose tests need a GPU; without a GPU the whole module is skipped."""
    if DEVICE == "cpu":
        reason = "only a GPU shows it: python tools/gpu_check.py runs it there"
        pytest.skip(reason, allow_module_level=True)
    import torch

    return torch


def convolved(x: np.ndarray[Any, Any], w: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Convolves [N, C, H, W] with odd filters [K, C, S, S], with padding that preserves the image's size."""
    size, height, width = w.shape[-1], x.shape[2], x.shape[3]
    padded = np.pad(x, [(0, 0), (0, 0), *[(size // 2,) * 2] * 2])
    taps = [(i, j) for i in range(size) for j in range(size)]
    made: np.ndarray[Any, Any] = sum(
        np.einsum("nchw,kc->nkhw", padded[:, :, i : i + height, j : j + width], w[:, :, i, j])
        for i, j in taps
    )
    return made


def numeric_gradient(
    function: Callable[..., Any], arrays: Sequence[Any], index: int, dy: Any, step: float = 1e-5
) -> np.ndarray[Any, Any]:
    """The gradient of sum(function(*arrays) * dy) with respect to one of the arrays, by central
    differences."""
    wide = [exact(array).copy() for array in arrays]
    x, weights = wide[index], exact(dy)
    gradient = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        kept = x[at]
        x[at] = kept + step
        above = float(np.sum(function(*wide) * weights))
        x[at] = kept - step
        below = float(np.sum(function(*wide) * weights))
        x[at] = kept
        gradient[at] = (above - below) / (2 * step)
    return gradient


def record(
    g: weft.Graph, operation: str, values: Mapping[str, Any], results: Sequence[str], name: str = ""
) -> Any:
    """Adds an operation by its row and values by row key, for options that no graph method offers. Returns
    its outputs."""
    return g._operation(operation, operation, values, tuple(results), None, name)

"""The frontend on a GPU, against a driver that launches nothing and stores device memory in host memory.
test_gpu.py runs this file in a process whose environment selects the fakes; pytest does not collect it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import sys
import types
from typing import Any

import numpy as np
import pytest
import weft
from weft import backend, buffers, memory, run_state
from weft import plan as plans
from weft.enums import device_kind

X = np.arange(6, dtype="f4").reshape(2, 3)


def refusal(message: str) -> Any:
    """Asserts that the block raises BadParameterError with exactly this message."""
    return pytest.raises(weft.BadParameterError, match=f"^{re.escape(message)}$")


def on_device(array: Any, ordinal: int = 0) -> weft.DeviceArray:
    made = weft.DeviceArray(array.shape, array.dtype, handle=weft.create_handle("cuda", ordinal))
    return made.copy_from(array)


def doubled(strides: Any = None) -> weft.Graph:
    g = weft.Graph("double", handle=weft.create_handle("cuda"), io_data_type="f32")
    x = g.tensor([2, 3], strides, name="x")
    g.add(x, x, name="y").set_name("y").set_dim([2, 3]).set_stride(strides or [3, 1]).set_output(True)
    return g.build()


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Every copy: to, from, bytes."""
    seen: list[tuple[int, int, int]] = []
    real = backend.copy

    def copy(handle: Any, to: int, of: int, size: int, stream: int) -> None:
        seen.append((to, of, size))
        real(handle, to, of, size, stream)

    monkeypatch.setattr(backend, "copy", copy)
    return seen


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The stream of every run of a plan."""
    seen: list[int] = []
    queue = run_state.RunState.queue

    def note(self: Any, stream: int) -> Any:
        seen.append(stream)
        return queue(self, 0)

    monkeypatch.setattr(run_state.RunState, "queue", note)
    return seen


# ---- Arrays of Weft's own ----------------------------------------------------------------------------------


def test_the_first_gpu_is_the_default_device() -> None:
    assert repr(weft.DeviceArray([2, 3])) == "DeviceArray(f32[2,3], cuda:0)"
    g = weft.Graph(io_data_type="f32")
    g.exp(g.tensor([4], name="x"))
    assert g.build().plan.device is device_kind.CUDA


def test_gpus_by_name() -> None:
    assert repr(weft.create_handle("cuda:1")) == repr(weft.Graph(device="cuda:1").handle) == "Handle(cuda:1)"
    with pytest.raises(weft.BadParameterError, match="no device cuda:2 on this machine"):
        weft.create_handle("cuda:2")
    with pytest.raises(weft.BadParameterError, match="'gpu:1' is not a device"):
        weft.create_handle("gpu:1")


PLACES = {"cuda": ("CUDA", 0), "cuda:1": ("CUDA", 1), "cpu": ("CPU", 0), "sm_80": ("CUDA", 0)}


@pytest.mark.parametrize(("device", "place"), PLACES.items())
def test_plans_are_for_the_device_that_the_graph_names(device: str, place: tuple[str, int]) -> None:
    g = weft.Graph(device=device, io_data_type="f32")
    g.exp(g.tensor([4], name="x"))
    plan = g.build().plan
    assert (plan.device.name, plan.ordinal) == place
    assert ("described" in g.explain()) == (device == "sm_80")


@pytest.mark.parametrize("strides", [None, [1, 2], [8, 2]])
def test_arrays_go_to_the_device_and_come_back(strides: Any) -> None:
    array = weft.DeviceArray([2, 3], "f32", strides).copy_from(X)
    np.testing.assert_array_equal(array.numpy(), X)
    part = array.view(strides[0] if strides else 3, [3], [strides[1] if strides else 1])
    np.testing.assert_array_equal(part.numpy(), X[1])


def test_arrays_are_described_to_others() -> None:
    array = on_device(X.astype("f2"), 1)
    interface = array.__cuda_array_interface__
    assert (interface["shape"], interface["strides"], interface["typestr"]) == ((2, 3), (6, 2), "<f2")
    assert interface["stream"] == 1
    buffer = buffers.describe(array)
    assert (buffer.pointer, buffer.ordinal) == (interface["data"][0], 1)
    assert not hasattr(weft.DeviceArray([2], handle=weft.create_handle("cpu")), "__cuda_array_interface__")


def test_copies_into_a_view_touch_nothing_else() -> None:
    array = on_device(X)
    array.view(1, [2], [3]).copy_from(np.float32([7, 8]))
    np.testing.assert_array_equal(array.numpy(), [[0, 7, 2], [3, 8, 5]])
    np.testing.assert_array_equal(array.view(1, [2], [3]).numpy(), [7, 8])


def test_small_types_come_as_the_bytes_that_hold_them() -> None:
    array = weft.DeviceArray([5], "i4").copy_from(np.uint8([0x21, 0x43, 5]))
    assert repr(array) == "DeviceArray(u8[3], cuda:0)"
    np.testing.assert_array_equal(array.numpy(), [0x21, 0x43, 5])
    g = weft.Graph(handle=weft.create_handle("cuda"))
    g.identity(g.tensor([5], data_type="i4", name="x"))
    assert repr(g.build().plan(x=array)) == "DeviceArray(u8[3], cuda:0)"
    assert g.plan(x=np.uint8([0x21, 0x43, 5])).shape == (3,)


def test_arrays_that_do_not_fit_are_refused() -> None:
    array = weft.DeviceArray([2, 3])
    with refusal("device array: it is float32[2, 3], the array float64[2, 3]. Convert or reshape the array."):
        array.copy_from(X.astype("f8"))
    with refusal(
        "device array: a view of [3] at element 4 needs 12 bytes, 8 are available. Give a smaller one."
    ):
        array.view(4, [3])


class Counts(ctypes.Structure):
    """struct fake_counts: the numbers of live objects."""

    _fields_ = tuple(
        (name, ctypes.c_int)
        for name in ("contexts", "modules", "events", "allocations", "current", "capture_mode")
    )


class Fake(ctypes.Structure):
    """The beginning of struct fake_cuda."""

    _fields_ = (
        ("fail_at", ctypes.c_void_p),
        ("failed_call", ctypes.c_void_p),
        ("calls", ctypes.c_void_p),
        ("counts", ctypes.CFUNCTYPE(None, ctypes.POINTER(Counts))),
    )


def allocations() -> int:
    gc.collect()  # graphs and their tensors hold each other
    counts = Counts()
    library = ctypes.CDLL(os.environ["WEFT_LIBCUDA"])
    Fake.in_dll(library, "fake_cuda").counts(ctypes.byref(counts))
    return counts.allocations


def test_memory_is_given_back() -> None:
    g, x, before = doubled(), on_device(X), allocations()
    g.plan.handle.set_stream(7)  # for which other tests have left no memory
    for _ in range(3):
        y = g.plan(x=x)
        _ = y.__cuda_array_interface__  # its reader may use it on any stream
        del y, _
        assert allocations() == before
    del x
    before -= 1
    g.plan(x=X)  # what stands for host arrays is kept by the plan
    kept = allocations()
    assert kept > before
    g.plan(x=X)
    assert allocations() == kept
    run = g.plan.bind(x=on_device(X))
    assert allocations() == kept + 2
    del run, g
    assert allocations() == before


def test_memory_of_results_serves_again() -> None:
    """On the same stream, unless another object refers to it."""
    g, x = doubled(), on_device(X)
    first = g.plan(x=x, stream=1)
    address = first._address
    second = g.plan(x=x, stream=1)
    assert second._address != address
    del first
    other = g.plan(x=x, stream=3)
    assert other._address != address
    first = g.plan(x=x, stream=1)
    assert first._address == address
    uses = [
        lambda y: y.__cuda_array_interface__,
        lambda y: g.plan(x=y, stream=3),
        lambda y: g.execute({"x": x, "y": y}),
        lambda y: g.execute({"x": y, "y": x}),
        lambda y: g.plan.bind(x=y),
        lambda y: g.plan.bind(x=x, out={"y": y}),
        lambda y: y.view(0, [2, 3]).__cuda_array_interface__,
    ]
    for use in uses:
        y, before = g.plan(x=x, stream=1), allocations()
        use(y)
        kept = allocations()
        del y
        assert allocations() == kept - 1, before
    for use in (lambda y: g.plan(x=y, stream=1), lambda y: y.numpy(), lambda y: y.copy_from(X)):
        y = g.plan(x=x, stream=1)
        address = y._address
        use(y)
        del y
        assert g.plan(x=x, stream=1)._address == address


def test_out_of_memory_is_reported() -> None:
    with pytest.raises(weft.WeftError, match=r"free device memory|Free device memory"):
        weft.DeviceArray([2**60], "u8")


# ---- Calls -------------------------------------------------------------------------------------------------


def test_arrays_of_the_device_give_arrays_of_the_device(copies: list[Any]) -> None:
    g, x = doubled(), on_device(X)
    copies.clear()
    y = g.plan(x=x)
    assert isinstance(y, weft.DeviceArray)
    assert (y.dims, y.handle.ordinal) == ((2, 3), 0)
    assert copies == []


def test_host_arrays_are_copied_there_and_back(copies: list[Any]) -> None:
    y = doubled().plan(x=X)
    assert isinstance(y, np.ndarray)
    (there, of, size), (to, back, _) = copies
    assert (of, size) == (X.ctypes.data, 24)
    assert to == y.ctypes.data
    assert there != back


def test_host_outputs_are_copied_back(copies: list[Any]) -> None:
    g, x, out = doubled(), on_device(X), np.zeros_like(X)
    copies.clear()
    assert g.plan(x=x, out={"y": out}) is out
    assert [(to, size) for to, _, size in copies] == [(out.ctypes.data, 24)]


def test_bytes_between_elements_are_preserved() -> None:
    memory_of = np.full((2, 8), 7, "f4")
    out = memory_of[:, :6:2]
    doubled([8, 2]).plan(x=np.full((2, 8), 3, "f4")[:, :6:2], out={"y": out})
    np.testing.assert_array_equal(memory_of[:, 1::2][:, :2], 7)


def test_one_host_array_next_to_device_arrays() -> None:
    g = weft.Graph(handle=weft.create_handle("cuda"), io_data_type="f32")
    a, b = (g.tensor([2, 3], name=name) for name in "ab")
    g.sub(a, b)
    assert isinstance(g(a=X, b=on_device(X)), weft.DeviceArray)


def test_by_value_scalars_stay_on_the_host() -> None:
    g = weft.Graph(handle=weft.create_handle("cuda"), io_data_type="f32")
    x = g.tensor([2, 3], name="x")
    s = g.tensor([1], is_pass_by_value=True, name="s")
    g.mul(x, s, name="y").set_name("y")
    g.build()
    g.plan(x=on_device(X), s=2.0)
    g.execute({"x": on_device(X), "s": np.float32([2]), "y": on_device(X)})
    with refusal(
        "plan: input 's' (uid 2) must be on the host, its buffer is on a CUDA device. Move it there, or "
        "build the graph with a handle of the other device."
    ):
        g.plan(x=on_device(X), s=on_device(np.float32([2])))


def test_execute_copies_nothing() -> None:
    g, x = doubled(), on_device(X)
    with refusal(
        "execute: input 'x' (uid 1) must be on a CUDA device, its buffer is on the host. Move it there, "
        "call graph.plan(...), which copies, or build the graph with a handle of the other device."
    ):
        g.execute({"x": X, "y": x})
    with refusal(
        "plan: input 'x' (uid 1) must be on a CUDA device, its buffer is on the host. Move it there, or "
        "build the graph with a handle of the other device."
    ):
        g.plan.bind(x=X)


def test_another_gpu_is_another_device() -> None:
    with refusal(
        "execute: input 'x' (uid 1) must be on cuda:0, its buffer is on cuda:1. Move it there, call "
        "graph.plan(...), which copies, or build the graph with a handle of the other device."
    ):
        doubled().execute({"x": on_device(X, 1), "y": on_device(X)})


def test_bound_plans_run_on_what_they_were_given() -> None:
    g, x, y = doubled(), on_device(X), on_device(X)
    run = g.plan.bind(x=x, out={"y": y})
    assert run() is y
    assert run.measure(5) == pytest.approx(0.25e-3 / 5)  # the fake's events are 0.25 ms from one another
    assert run.measure_steps(5) == pytest.approx([0.25e-3])


# ---- Other libraries ---------------------------------------------------------------------------------------


class CudaArray:
    """The interface of Numba and others: host memory, because the fake driver has no other."""

    def __init__(self, array: Any, stream: int | None = None) -> None:
        self._array, interface = array, dict(array.__array_interface__)
        self.__cuda_array_interface__ = {**interface, "version": 3, "stream": stream}
        self.dtype = array.dtype

    __cuda_array_interface__: dict[str, Any] = {}  # noqa: RUF012


class DlpackGpu:
    """A GPU array that offers only DLPack."""

    def __init__(self, array: Any) -> None:
        self.array, self.streams = array, []  # type: ignore[var-annotated]

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, stream: int | None = None) -> Any:
        self.streams.append(stream)
        capsule = self.array.__dlpack__()
        read = ctypes.pythonapi.PyCapsule_GetPointer
        read.restype, read.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        ctypes.c_int32.from_address(read(capsule, b"dltensor") + 8).value = 2  # the device's type
        return capsule


@pytest.mark.parametrize("wrap", [CudaArray, DlpackGpu])
def test_arrays_of_other_libraries_are_taken_where_they_are(wrap: Any, copies: list[Any]) -> None:
    y = doubled().plan(x=wrap(X.copy()))
    assert isinstance(y, weft.DeviceArray)
    assert copies == []


def test_dlpack_producers_learn_the_stream() -> None:
    g = doubled()
    array = DlpackGpu(X.copy())
    g.plan(array)
    g.plan(array, stream=96)
    g.execute({"x": array, "y": on_device(X)})
    assert [stream for stream in array.streams if stream != -1] == [1, 96, 1]


def test_streams_that_arrays_name_are_followed(streams: list[int]) -> None:
    doubled().plan(CudaArray(X.copy(), stream=64))
    assert streams == [64]


class JaxArray(CudaArray):
    """A JAX array on a GPU, which is not ready until a caller waits."""

    waits = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    def devices(self) -> Any:
        return [types.SimpleNamespace(platform="gpu", local_hardware_id=0)]

    def block_until_ready(self) -> None:
        JaxArray.waits += 1


@pytest.fixture
def xla(monkeypatch: pytest.MonkeyPatch) -> list[dict[int, Any]]:
    """Records the calls that XLA receives, by slot."""
    calls: list[dict[int, Any]] = []

    def run(plan: weft.Plan, given: dict[int, Any]) -> list[str]:
        calls.append(given)
        return ["of JAX"]

    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(Array=JaxArray))
    monkeypatch.setattr(plans, "_jax_runners", [])
    plans.run_jax_arrays_with(run)
    monkeypatch.setattr(JaxArray, "waits", 0)
    return calls


def test_calls_with_arrays_of_jax_are_for_xla(xla: list[dict[int, Any]]) -> None:
    g, x = doubled(), JaxArray(X)
    assert g.plan(x=x) == g.plan(x) == g(x) == "of JAX"
    assert [given[g.plan.index["x"]] for given in xla] == [x] * 3
    longer = JaxArray(np.ones((5, 3), "f4"))
    assert g(longer) == g(x) == "of JAX"
    assert [given[g.plan.index["x"]] for given in xla[3:]] == [longer, x]
    assert JaxArray.waits == 0


def test_calls_for_xla_need_weft_jax(xla: list[dict[int, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_jax_runners", [])
    message = (
        "plan: the first array is JAX's, on a GPU, where XLA runs the plan: expected weft.jax to be "
        "imported. Add `import weft.jax`, or pass the memory of all outputs as out={name: buffer}."
    )
    with pytest.raises(weft.BadParameterError) as caught:
        doubled()(JaxArray(X))
    assert str(caught.value) == message
    assert not xla


def test_calls_that_xla_cannot_run(xla: list[dict[int, Any]]) -> None:
    """The caller's memory, workspace or stream, results as JAX has none: the host waits for the arguments."""
    g, x, y, on_stream = doubled(), JaxArray(X), on_device(X), doubled()
    assert on_stream.handle
    on_stream.handle.set_stream(64)
    calls = [
        lambda: on_stream.plan(x=x),
        lambda: g.plan(x=x, out={"y": y}),
        lambda: g.plan(x=x, stream=64),
        lambda: g.plan(x=x, workspace=on_device(X)),
        lambda: g.execute({"x": x, "y": y}),
    ]
    for call in calls:
        JaxArray.waits = 0
        assert isinstance(call() or y, weft.DeviceArray)
        assert JaxArray.waits > 0
    turned = weft.Graph(handle=weft.create_handle("cuda"), io_data_type="f32")
    turned.neg(turned.tensor([2, 3], name="x")).set_output(True).set_dim([2, 3]).set_stride([1, 2])
    small = weft.Graph(handle=weft.create_handle("cuda"), io_data_type="f32")
    small.identity(small.tensor([2, 3], name="x")).set_output(True).set_data_type("i4")
    assert all(isinstance(other(x), weft.DeviceArray) for other in (turned, small))
    assert xla == []
    assert isinstance(g.plan(x=y), weft.DeviceArray)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A minimal CuPy, with arrays and streams in the fake driver's memory."""
    made: Any = types.ModuleType("cupy")

    class NdArray:
        def __init__(self, shape: Any, dtype: Any, memptr: Any = None, strides: Any = None) -> None:
            self.shape, self.dtype, self.strides = tuple(shape), np.dtype(dtype), strides
            self.data = memptr or memory.DeviceMemory(weft.create_handle("cuda"), 4096)
            self.device = contextlib.nullcontext()
            self.device.id = 0  # type: ignore[attr-defined]

        @property
        def __cuda_array_interface__(self) -> Any:
            described = {"shape": self.shape, "strides": self.strides, "typestr": self.dtype.str}
            return described | {"data": (self.data.address, False), "version": 3, "stream": 208}

    made.ndarray, made.empty = NdArray, lambda count, dtype: NdArray((count,), dtype)
    made.cuda = types.SimpleNamespace(get_current_stream=lambda: types.SimpleNamespace(ptr=208))
    monkeypatch.setitem(sys.modules, "cupy", made)
    return made


def test_arrays_of_cupy_in_and_out(cupy: Any, copies: list[Any], streams: list[int]) -> None:
    y = doubled([1, 2]).plan(x=cupy.ndarray((2, 3), "f4", strides=(4, 8)))
    assert isinstance(y, cupy.ndarray)
    assert (y.shape, y.dtype, y.strides) == ((2, 3), np.float32, (4, 8))
    doubled().execute({"x": cupy.ndarray((2, 3), "f4"), "y": on_device(X)})
    assert streams == [208, 208]
    assert len(copies) == 1  # on_device


def test_types_that_cupy_lacks_come_as_arrays_of_weft(cupy: Any) -> None:
    g = weft.Graph(handle=weft.create_handle("cuda"))
    x = g.tensor([2, 3], data_type="f32", name="x")
    g.identity(x).set_data_type("bf16")
    y = g.build().plan(cupy.ndarray((2, 3), "f4"))
    assert repr(y) == "DeviceArray(bf16[2,3], cuda:0)"


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A minimal torch, with streams and memory; given: the memory that was requested."""
    made: Any = types.ModuleType("torch")
    made.Tensor = type("Tensor", (), {})
    made.uint8 = "uint8"
    made._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: 160)
    made.cuda = types.SimpleNamespace(
        is_initialized=lambda: True, ExternalStream=lambda stream, device: ("stream", stream)
    )

    class Bytes:
        def __init__(self, size: int, dtype: Any, device: str) -> None:
            self.memory = memory.DeviceMemory(weft.create_handle("cuda"), size)
            made.given.append((size, device))

        def data_ptr(self) -> int:
            return self.memory.address

        def record_stream(self, stream: Any) -> None:
            made.given.append(stream)

    made.given, made.empty = [], Bytes
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


def test_the_current_stream_of_torch_is_the_default(torch: Any, streams: list[int]) -> None:
    g, x = doubled(), on_device(X)
    g.plan(x)
    g.execute({"x": x, "y": on_device(X)})
    handle = weft.create_handle("cuda")
    g.execute({"x": x, "y": on_device(X)}, handle=handle)
    handle.set_stream(32)
    g.execute({"x": x, "y": on_device(X)}, handle=handle)
    g.plan(x, stream=48)
    assert streams == [160, 160, 160, 32, 48]


def test_handles_wait_for_their_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    handle, seen = weft.create_handle("cuda"), []
    handle.synchronize()
    handle.set_stream(96)
    monkeypatch.setattr(backend, "synchronize", lambda _, stream: seen.append(stream))
    handle.synchronize()
    assert seen == [96]


def test_a_stream_set_on_the_handle_counts(torch: Any, streams: list[int]) -> None:
    handle = weft.create_handle("cuda")
    g = weft.Graph(handle=handle, io_data_type="f32")
    x = g.tensor([2, 3], name="x")
    g.exp(x)
    g.build()
    for stream in (0, 80, None):
        weft.set_stream(handle, stream)
        g.plan(on_device(X))
        g(on_device(X))
    assert streams == [0, 0, 80, 80, 160, 160]


def test_torch_is_asked_once_whether_it_started(torch: Any, streams: list[int]) -> None:
    """Afterwards only its compiled function is called, at a fraction of the cost."""
    asked = []
    torch.cuda.is_initialized = lambda: not asked.append(1)
    g, x, y = doubled(), on_device(X), on_device(X)
    run = g.plan.bind(x, out={"y": y})
    for _ in range(3):
        g.execute({"x": x, "y": y})
        run()
    torch._C._cuda_getCurrentRawStream = None  # the function that was found stays
    run()
    assert len(asked) == 1
    assert streams == [160] * 7


def test_torch_lends_memory(torch: Any) -> None:
    scratch, handle = memory.Scratch(), weft.create_handle("cuda")
    scratch.on_device("workspace", 100, handle, 160)
    scratch.on_device("workspace", 100, handle, 7)
    assert torch.given == [(100, "cuda:0"), (100, "cuda:0"), ("stream", 7)]


def test_without_torch_memory_is_kept_by_stream() -> None:
    scratch, handle = memory.Scratch(), weft.create_handle("cuda")
    address = [scratch.on_device("workspace", size, handle, stream)[0] for size, stream in ((9, 0), (8, 0))]
    assert address[0] == address[1]
    assert scratch.on_device("workspace", 8, handle, 3)[0] != address[0]


def test_workspaces_are_on_the_device() -> None:
    g = weft.Graph(handle=weft.create_handle("cuda"), io_data_type="f32")
    x = g.tensor([64, 64], name="x")
    g.matmul(g.softmax(x), x, name="y").set_name("y")
    g.build()
    needed = g.get_workspace_size()
    assert needed > 0
    x_, y_ = weft.DeviceArray([64, 64]), weft.DeviceArray([64, 64])
    g.execute({"x": x_, "y": y_})
    g.execute({"x": x_, "y": y_}, weft.DeviceArray([needed], "u8"))
    with refusal(
        "execute: the workspace is on the host, the plan runs on cuda:0. Allocate it there, or leave it out."
    ):
        g.execute({"x": x_, "y": y_}, np.empty(needed, "u1"))


# ---- Memory that is less aligned than was declared ---------------------------------------------------------


def test_error_if_no_plan_for_loose_alignment_can_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    g, whole = doubled(), weft.DeviceArray([8])
    real = backend.Descriptor.finalize

    def finalize(self: Any) -> Any:
        if self.kind is weft.enums.descriptor_type.EXECUTION_PLAN_DESCRIPTOR:
            raise weft.NotSupportedError("there is no compiler.")
        return real(self)

    monkeypatch.setattr(backend.Descriptor, "finalize", finalize)
    words = "its alignment, 16 bytes, and no plan for such memory can be built: there is no compiler."
    with pytest.raises(weft.NotSupportedError) as failed:
        g.execute({"x": on_device(X), "y": whole.view(1, [2, 3])})
    assert str(failed.value) == f"plan: the address of output 'y' (uid 2) is not a multiple of {words}"


# ---- Other shapes ------------------------------------------------------------------------------------------


def test_overridden_shapes_run_on_the_device() -> None:
    g = weft.Graph(handle=weft.create_handle("cuda"), io_data_type="f32", is_override_shape_enabled=True)
    x = g.tensor([4, 3], name="x")
    y = g.exp(x).set_name("y")
    g.build()
    options: Any = {"override_uids": [x.uid], "override_shapes": [[9, 3]]}
    g.execute({x: weft.DeviceArray([9, 3]), y: weft.DeviceArray([9, 3])}, **options)
    with refusal(
        "execute: output 'y' (uid 2) needs 108 bytes as f32[9,3], its buffer has 48. Give a larger one."
    ):
        g.execute({x: weft.DeviceArray([9, 3]), y: weft.DeviceArray([4, 3])}, **options)

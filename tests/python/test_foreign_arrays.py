"""Arrays whose memory does not hold the values that they show, and objects with wrong information about their
memory: refused on every path into a plan, never read or written as if they were plain."""

from __future__ import annotations

import array
import ctypes
import gc
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import weft
from weft import buffers

LITTLE = np.dtype("f4").newbyteorder("=")
SWAPPED = LITTLE.newbyteorder()


def torch_of(make: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: make(pytest.importorskip("torch"))


class Says:
    """An object with memory that reports whatever it is given."""

    dtype = np.dtype("f4")

    def __init__(self, **said: Any) -> None:
        self.memory = np.ones(6, "f4")
        data = (self.memory.ctypes.data, False)
        self.said = {"shape": (6,), "typestr": "<f4", "version": 3, "data": data} | said

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.said


class Dlpack:
    """A producer of malformed DLPack capsules."""

    def __init__(self, capsule: Callable[[], Any]) -> None:
        self.capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule()


def named_capsule(name: bytes | None) -> Any:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    memory = ctypes.create_string_buffer(256)
    capsule = make(ctypes.addressof(memory), name, None)
    KEPT.append((memory, name))
    return capsule


KEPT: list[Any] = []

ORDER = "the array's bytes are not in this machine's order."

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "swapped bytes": (lambda: np.ones(6, SWAPPED), ORDER),
    "masked": (lambda: np.ma.array(np.ones(6, "f4"), mask=[1, 0, 0, 0, 0, 0]), "the array is masked"),
    "negated": (
        torch_of(lambda torch: torch.full((6,), 1 + 2j).conj().imag.to(torch.float32)),
        "the torch tensor is a negated view. Give tensor.resolve_neg().",
    ),
    "sparse": (
        torch_of(lambda torch: torch.ones(6).to_sparse()),
        "the torch tensor is of layout torch.sparse_coo. Give tensor.to_dense().",
    ),
    "quantized": (
        torch_of(lambda torch: torch.quantize_per_tensor(torch.ones(6), 1.0, 0, torch.qint8)),
        "the torch tensor is quantized.",
    ),
    "without memory": (
        torch_of(lambda torch: torch.ones(6, device="meta")),
        "the torch tensor is on device meta.",
    ),
    "interface of swapped bytes": (lambda: Says(typestr=SWAPPED.str), ORDER),
    "interface with a mask": (
        lambda: Says(mask=np.ones(6, bool)),
        "the array has a mask, which would be lost.",
    ),
    "interface of split elements": (
        lambda: Says(strides=(3,)),
        "strides of [3] bytes are not multiples of 4",
    ),
    "capsule of another name": (
        lambda: Dlpack(lambda: named_capsule(b"used_dltensor")),
        "__dlpack__() returned no capsule named dltensor or dltensor_versioned.",
    ),
    "no capsule": (lambda: Dlpack(lambda: 5), "__dlpack__() returned no capsule"),
}


def doubled(**like: Any) -> tuple[weft.Graph, Any, Any]:
    g = weft.Graph(handle=weft.create_handle("cpu"))
    x = g.tensor([6], data_type="f32", name="x")
    y = g.add(x, x, name="y").set_name("y")
    return g.build(), x, y


def ways(array: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """Returns all paths by which memory enters a plan, as input and as output."""
    g, x, y = doubled()
    plain = np.ones(6, "f4")
    yield "tensor_like", lambda: weft.Graph(handle=weft.create_handle("cpu")).tensor_like(array)
    yield "call", lambda: g.plan(x=array)
    yield "out", lambda: g.plan(x=plain, out={"y": array})
    yield "execute", lambda: g.execute({x: array, y: plain})
    yield "execute, written", lambda: g.execute({x: plain, y: array})
    yield "bind", lambda: g.plan.bind(x=array)
    yield "constant", lambda: weft.Graph(handle=weft.create_handle("cpu")).add(array, 1.0)


# Who refuses an array: what reads it, or the call and the tensor that it was given for.
SPEAKER = r"^(buffer|(plan|execute): (input 'x' \(uid 1\)|output 'y' \(uid 2\))): "


def refused_everywhere(array: Any, message: str) -> None:
    for name, way in ways(array):
        with pytest.raises(weft.BadParameterError, match=SPEAKER + re.escape(message)) as raised:
            way()
        assert str(raised.value).startswith("buffer: ") == (name in ("tensor_like", "constant"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(REFUSED))
def test_memory_that_is_not_plain_is_refused_everywhere(name: str) -> None:
    make, message = REFUSED[name]
    refused_everywhere(make(), message)


def test_a_negated_view_is_refused_after_a_plain_tensor_was_taken() -> None:
    """A tensor that is known by its form at a glance differs from a lazy one."""
    torch = pytest.importorskip("torch")
    g, x, y = doubled()
    out = torch.empty(6)
    for _ in range(3):
        g.execute({x: torch.ones(12)[:6], y: out})
    lazy = torch.zeros(6, dtype=torch.complex64).conj().imag.contiguous()
    negated = torch._neg_view(lazy)
    message = r"^execute: input 'x' \(uid 1\): the torch tensor is a negated view\."
    with pytest.raises(weft.BadParameterError, match=message):
        g.execute({x: negated, y: out})


def test_masked_arrays_are_not_copied_to_a_device_array() -> None:
    with pytest.raises(weft.BadParameterError, match=r"^buffer: the array is masked"):
        weft.DeviceArray([2], "f32", handle=weft.create_handle("cpu")).copy_from(np.ma.zeros(2, dtype="f4"))


def test_dlpack_reports_read_only_memory() -> None:
    class Exports:
        """A NumPy array that offers only DLPack."""

        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

        def __dlpack__(self, **asked: Any) -> Any:
            return self.array.__dlpack__(**asked)

    if not np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        pytest.skip("this NumPy's __dlpack__ knows no versions")
    g, x, y = doubled()
    out, locked = np.zeros(6, "f4"), np.zeros(6, "f4")
    locked.flags.writeable = False
    g.execute({x: Exports(np.ones(6, "f4")), y: Exports(out)})
    np.testing.assert_array_equal(out, 2)
    message = r"execute: output 'y' \(uid 2\) has a read-only buffer\. Give a writable array\."
    with pytest.raises(weft.BadParameterError, match=message):
        g.execute({x: np.ones(6, "f4"), y: Exports(locked)})
    assert not buffers.describe(Exports(locked)).is_writable
    assert g.plan(x=Exports(locked)).tolist() == [0] * 6


class JaxArray(Says):
    """An object of a class from the module jax, with the array interface."""


class JaxCapsules:
    """The same object, offering only DLPack, from a producer without a read-only flag."""

    def __init__(self) -> None:
        self.memory = np.ones(6, "f4")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self) -> Any:
        return self.memory.__dlpack__()


class DlpackDevice(IntEnum):
    """How torch numbers devices."""

    CPU = 1


class NamedDevice(JaxCapsules):
    """A producer whose device type is the member of an enumeration."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return DlpackDevice.CPU, 0


@pytest.mark.parametrize("producer", [Says(), NamedDevice()])
def test_producers_that_say_no_more_than_they_must(producer: Any) -> None:
    """An interface without a dtype, of the type whose number is 0; a device type that is no plain int."""
    g, x, y = doubled()
    result = np.zeros(6, "f4")
    g.execute({x: producer, y: result})
    np.testing.assert_array_equal(result, 2 * producer.memory)


@pytest.mark.parametrize("kind", [JaxArray, JaxCapsules])
def test_arrays_of_jax_are_read_and_never_written(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    """JAX promises that its arrays do not change."""
    g, x, y = doubled()
    plain = np.zeros(6, "f4")
    g.execute({x: plain, y: kind()})  # without JAX such an object is as good as another
    numpy = SimpleNamespace(asarray=lambda array: ("of JAX", array.tolist()))
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(Array=kind, numpy=numpy))
    array = kind()
    g.execute({x: array, y: plain})
    assert plain.tolist() == [2] * 6
    assert g.plan(x=array) == g(x=array) == ("of JAX", [2] * 6)
    assert g.plan(x=array, out={"y": plain}) is plain
    message = r"output 'y' \(uid 2\) has a read-only buffer\. Give a writable array\."
    for way in (
        lambda: g.execute({x: plain, y: array}),
        lambda: g.plan(x=plain, out={"y": array}),
        lambda: g.plan.bind(x=plain, out={"y": array}),
    ):
        with pytest.raises(weft.BadParameterError, match=message):
            way()
    assert array.memory.tolist() == [1] * 6


def test_the_workspace_is_not_written_into_a_read_only_array() -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"), io_data_type="f32")
    x = g.tensor([64, 64], name="x")
    g.softmax(g.matmul(x, x), name="y")
    plan = g.build().plan
    assert plan.workspace_size > 0
    locked = np.zeros(plan.workspace_size, "u1")
    locked.flags.writeable = False
    with pytest.raises(weft.BadParameterError, match=r"^execute: the workspace is read-only\."):
        plan(x=np.ones((64, 64), "f4"), workspace=locked)


LIES: list[dict[str, Any]] = [
    {"shape": (7,)},
    {"shape": (3,), "strides": (8,)},
    {"shape": (6,), "strides": (-4,)},
    {"shape": (2**62,)},
    {"shape": (0,)},
    {"shape": ()},
    {"typestr": "<i4"},
    {"typestr": "|V4"},
    {"typestr": "<f8", "shape": (3,)},
    {"data": (0, False)},
    {"data": (1, False)},
]


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_objects_that_claim_another_form_end_in_an_error(lie: dict[str, Any]) -> None:
    """Nothing of theirs is touched: shape, type or address do not fit the tensor."""
    said = Says(**lie)
    said.dtype = np.dtype(lie["typestr"]) if "typestr" in lie else said.dtype
    g, _, _ = doubled()
    with pytest.raises((weft.WeftError, TypeError, ValueError)):
        g.plan(x=said)


class Raises:
    """An object whose interface raises."""

    dtype = np.dtype("f4")

    @property
    def __array_interface__(self) -> Any:
        raise RuntimeError("no interface today")


def test_what_an_interface_raises_reaches_the_caller() -> None:
    g, x, y = doubled()
    for way in (lambda: g.plan(x=Raises()), lambda: g.execute({x: Raises(), y: np.zeros(6, "f4")})):
        with pytest.raises(RuntimeError, match="no interface today"):
            way()
    assert g.plan(x=np.ones(6, "f4")).tolist() == [2] * 6


# ---- Claims that no memory can meet ------------------------------------------------------------------------

HUGE = 2**80
CLAIMS: dict[str, tuple[dict[str, Any], str]] = {
    "no data": ({"data": None}, "the array's data is None. Give a pair"),
    "half of the data": ({"data": (5,)}, "the array's data is (5,). Give a pair"),
    "no address": ({"data": (None, False)}, "the array reports no address, but dims [6]."),
    "address 0": ({"data": (0, False)}, "the array reports no address, but dims [6]."),
    "negative address": ({"data": (-8, False)}, "the array reports the address -8."),
    "huge address": ({"data": (HUGE, False)}, f"the array's address is {HUGE}, which does not fit into 64"),
    "last address": ({"data": (2**63 - 24, False)}, "the array reports dims [6], which reach past the end"),
    "fraction as address": ({"data": (1.5, False)}, "the array's address is 1.5. Give an integer."),
    "text as address": ({"data": ("x", False)}, "the array's address is 'x'. Give an integer."),
    "no shape": ({"shape": None}, "the array's shape is None. Give a list of integers."),
    "number as shape": ({"shape": 6}, "the array's shape is 6. Give a list of integers."),
    "text as shape": ({"shape": "ab"}, "the array's shape ['a', 'b']: number 0 is 'a'. Give an integer."),
    "fraction in shape": ({"shape": (6.0,)}, "the array's shape [6.0]: number 0 is 6.0. Give an integer"),
    "no number in shape": ({"shape": (float("nan"),)}, "the array's shape [nan]: number 0 is nan."),
    "negative extent": ({"shape": (-6,)}, "the array reports dims [-6], which are negative."),
    "huge extent": ({"shape": (HUGE,)}, f"the array's shape [{HUGE}]: number 0 is {HUGE}, which does"),
    "extent past memory": ({"shape": (2**61,)}, f"the array reports dims [{2**61}], which reach past"),
    "many dims": ({"shape": (1,) * 65}, "the array reports 65 dims, more than 64."),
    "strides of another rank": ({"strides": (4, 4)}, "the array reports 1 dim and 2 strides."),
    "text as strides": ({"strides": "a"}, "the array's strides ['a']: number 0 is 'a'. Give an integer."),
    "no number in strides": ({"strides": (float("nan"),)}, "the array's strides [nan]: number 0 is nan."),
    "huge strides": ({"strides": (HUGE,)}, f"the array's strides [{HUGE}]: number 0 is {HUGE}, which does"),
    "no typestr": ({"typestr": None}, "the array's typestr is None. Give one such as '<f4'."),
    "empty typestr": ({"typestr": ""}, "the array's typestr is ''. Give one such as '<f4'."),
    "number as typestr": ({"typestr": 5}, "the array's typestr is 5. Give one such as '<f4'."),
    "wider typestr": ({"typestr": "<f8"}, "the array's typestr is '<f8', its dtype dtype('float32'). Make"),
    "other typestr": ({"typestr": "<i4"}, "the array's typestr is '<i4', its dtype dtype('float32'). Make"),
    "complex typestr": ({"typestr": "<c8"}, "the array's typestr is '<c8', its dtype dtype('float32'). Make"),
}


class SaysOfGpu:
    """The same, for memory on a GPU."""

    dtype = np.dtype("f4")

    def __init__(self, said: Says) -> None:
        self.__cuda_array_interface__ = said.said


@pytest.mark.parametrize("name", list(CLAIMS))
def test_claims_that_no_memory_meets_are_refused_everywhere(name: str) -> None:
    lie, message = CLAIMS[name]
    refused_everywhere(Says(**lie), message)
    with pytest.raises(weft.BadParameterError, match="^buffer: " + re.escape(message)):
        weft.Graph(handle=weft.create_handle("cpu")).tensor_like(SaysOfGpu(Says(**lie)))


def test_limits_of_foreign_arrays_are_accepted() -> None:
    """The other side of the limits: 64 dims, an extent of nothing without memory, the whole of memory."""
    for said in ({"shape": (1,) * 64}, {"shape": (0,), "data": (0, False)}, {"data": (2**63 - 25, False)}):
        buffers.describe(Says(**said))


@pytest.mark.parametrize("interface", [None, 5, "shape", [("shape", (6,))]], ids=str)
def test_an_interface_that_is_no_dict(interface: Any) -> None:
    said = Says()
    said.said = interface
    refused_everywhere(said, f"the array's interface is {type(interface).__name__}. Give a dict.")


@pytest.mark.parametrize("dtype", [5, "nonsense", object, np.dtype("c8"), np.dtype("M8[s]")], ids=str)
def test_a_dtype_that_is_none(dtype: Any) -> None:
    said = Says()
    said.dtype = dtype
    for _, way in ways(said):
        with pytest.raises(weft.BadParameterError, match=r"^data type: .* is not supported by Weft\."):
            way()


def dl_capsule(**said: Any) -> Any:
    """Returns a capsule with a tensor of six floats, and the given defect."""
    memory, dims = np.ones(6, "f4"), (ctypes.c_int64 * 1)(said.pop("extent", 6))
    steps = (ctypes.c_int64 * 1)(said.pop("stride", 1))
    tensor = buffers._DLTensor(memory.ctypes.data, 1, 0, 1, 2, 32, 1, dims, steps, 0)
    for field, value in said.items():
        setattr(tensor, field, value)
    KEPT.append((memory, dims, steps, tensor))
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return make(ctypes.addressof(tensor), b"dltensor", None)


NO_SHAPE = ctypes.POINTER(ctypes.c_int64)()
DLPACK: list[tuple[dict[str, Any], str]] = [
    ({"ndim": -1}, "the DLPack tensor reports -1 dims, with a shape."),
    ({"ndim": 65}, "the DLPack tensor reports 65 dims, with a shape."),
    ({"ndim": 2**31 - 1}, "the DLPack tensor reports 2147483647 dims, with a shape."),
    ({"shape": NO_SHAPE}, "the DLPack tensor reports 1 dim, without a shape."),
    ({"extent": -6}, "the array reports dims [-6], which are negative."),
    ({"extent": 2**62}, f"the array reports dims [{2**62}], which reach past the end of memory."),
    ({"stride": 2**61}, "the array reports dims [6], which reach past the end of memory."),
    ({"byte_offset": 2**64 - 1}, "the array reports dims [6], which reach past the end of memory."),
    ({"data": None}, "the array reports no address, but dims [6]."),
    ({"data": None, "byte_offset": 64}, "the array reports no address, but dims [6]."),
    ({"device_type": 99}, "the DLPack tensor has device type 99, type code 2, 32 bits and 1 lanes"),
    ({"bits": 33}, "the DLPack tensor has device type 1, type code 2, 33 bits and 1 lanes"),
    ({"lanes": 4}, "the DLPack tensor has device type 1, type code 2, 32 bits and 4 lanes"),
    ({"code": 77}, "the DLPack tensor has device type 1, type code 77, 32 bits and 1 lanes"),
]


@pytest.mark.parametrize(("said", "message"), DLPACK, ids=lambda said: "".join(said))
def test_malformed_capsules_are_refused_everywhere(said: dict[str, Any], message: str) -> None:
    refused_everywhere(Dlpack(lambda: dl_capsule(**said)), message)


@pytest.mark.parametrize("device", [5, (1,), None, "cpu", (1, 0, 0)], ids=str)
def test_a_dlpack_device_that_is_none(device: Any) -> None:
    producer = Dlpack(dl_capsule)
    producer.__class__ = type("Odd", (Dlpack,), {"__dlpack_device__": lambda _: device})
    refused_everywhere(producer, f"__dlpack_device__() returned {device!r}. Give a pair")


def test_a_capsule_serves_once_consumed_no_more() -> None:
    """Weft does not consume a capsule: handed out again it serves again, until another consumes it."""
    capsule = dl_capsule()
    g, x, y = doubled()
    for _ in range(2):
        out = np.zeros(6, "f4")
        g.execute({x: Dlpack(lambda: capsule), y: out})
        assert out.tolist() == [2] * 6
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = (ctypes.py_object, ctypes.c_char_p)
    rename(capsule, b"used_dltensor")
    refused_everywhere(Dlpack(lambda: capsule), "__dlpack__() returned no capsule named dltensor")


# ---- Objects that change, raise, or are something else -----------------------------------------------------


class Changes(Says):
    """An object that reports something else each time, all of it true."""

    def __init__(self, *times: dict[str, Any]) -> None:
        super().__init__()
        self.times, self.asked = times, 0

    @property
    def __array_interface__(self) -> dict[str, Any]:
        self.asked += 1
        return self.said | self.times[(self.asked - 1) % len(self.times)]


@pytest.mark.parametrize("first", range(4))
def test_objects_that_change_between_calls(first: int) -> None:
    """Each answer is checked separately: memory that was reported as large enough is what is used."""
    times = [{}, {"shape": (3,), "strides": (8,)}, {"shape": (1,)}, {"shape": (2, 3)}]
    changes = Changes(*times[first:], *times[:first])
    g, x, y = doubled()
    taken = 0
    for _ in range(16):
        out = np.zeros(6, "f4")
        try:
            g.execute({x: changes, y: out})
        except weft.BadParameterError:
            continue
        taken += 1
        assert out.tolist() == [2] * 6
    assert 0 < taken < 16


@pytest.mark.parametrize("attribute", ["dtype", "__array_interface__", "__dlpack__", "__dlpack_device__"])
def test_what_an_attribute_raises_reaches_the_caller(attribute: str) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise ZeroDivisionError("no answer")

    base = Dlpack if "dlpack" in attribute else Says
    made: Any = type("Raising", (base,), {attribute: fail if base is Dlpack else property(fail)})
    array = object.__new__(made)
    array.__dict__ |= (Dlpack(dl_capsule) if base is Dlpack else Says()).__dict__
    for _, way in ways(array):
        with pytest.raises(ZeroDivisionError, match="no answer"):
            way()


class Liar(np.ndarray):
    """A NumPy array whose properties report something else."""

    shape = property(lambda _: (1000,))
    nbytes = property(lambda _: 4000)
    strides = property(lambda _: (0,))
    __array_interface__ = property(lambda _: Says(data=(8, False)).said)
    __len__ = lambda _: -1  # noqa: E731


def test_arrays_of_derived_classes_are_what_numpy_sees() -> None:
    lie = np.arange(6, dtype="f4").view(Liar)
    g, x, y = doubled()
    out = np.zeros(6, "f4")
    g.execute({x: lie, y: out})
    assert out.tolist() == g.plan(x=lie).tolist() == [0, 2, 4, 6, 8, 10]
    short = np.arange(3, dtype="f4").view(Liar)
    with pytest.raises(weft.BadParameterError, match=r"^execute: input 'x' \(uid 1\) needs 24 bytes"):
        g.execute({x: short, y: out})


OTHERS = [b"ab", "text", memoryview(b"ab"), array.array("f", [1] * 6), (ctypes.c_float * 6)(), None, {}]


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: type(other).__name__)
def test_what_is_no_array_is_refused(other: Any) -> None:
    g, x, y = doubled()
    plain, fix = np.ones(6, "f4"), rf": {type(other).__name__} exposes no memory\. Give a NumPy array"
    for memory in ({x: other, y: plain}, {x: plain, y: other}):
        with pytest.raises(weft.BadParameterError, match=r"^execute: \w+ '[xy]' \(uid [12]\)" + fix):
            g.execute(memory)
    with pytest.raises(weft.BadParameterError, match=r"^plan: input 'x' \(uid 1\)" + fix):
        g.plan(x=other)


@pytest.mark.parametrize("address", [-1, 2**64, HUGE])
def test_numbers_that_are_no_addresses(address: int) -> None:
    g, x, y = doubled()
    message = rf"the buffer of input 'x' \(uid 1\) is {address}, which is not an address\."
    for name, way in (
        ("execute", lambda: g.execute({x: address, y: np.zeros(6, "f4")})),
        ("plan", lambda: g.plan(x=address)),
    ):
        with pytest.raises(weft.BadParameterError, match=f"^{name}: {message}"):
            way()


def test_an_array_of_rank_0_is_one_element() -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"))
    x = g.tensor([1], data_type="f32", name="x")
    g.neg(x, name="y")
    assert g.build().plan(x=np.array(3, "f4")).tolist() == [-3]
    refused = doubled()[0]
    message = r"^plan: input 'x' \(uid 1\) is f32\[6\], its buffer f32\[1\]\."
    with pytest.raises(weft.BadParameterError, match=message):
        refused.plan(x=np.array(3, "f4"))


def test_a_torch_tensor_whose_storage_was_cut() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(6)
    x.untyped_storage().resize_(20)
    refused_everywhere(x, "the torch tensor's elements reach to byte 24 of its storage, which has 20.")
    x.untyped_storage().resize_(24)
    assert doubled()[0].plan(x=x.fill_(2)).tolist() == [4] * 6


# ---- Lifetime of memory ------------------------------------------------------------------------------------


class Fresh:
    """A producer whose capsule is the only owner of the memory."""

    def __init__(self, value: float) -> None:
        self.value, self.made = value, []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        memory = np.full(1 << 20, self.value, "f4")
        self.made.append(weakref.ref(memory))
        return memory.__dlpack__()

    def is_gone(self) -> bool:
        gc.collect()
        return bool(self.made) and all(each() is None for each in self.made)


@pytest.mark.parametrize("way", ["call", "execute", "overridden"])
def test_memory_that_a_capsule_keeps_lasts_for_the_run_and_no_longer(way: str) -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"), io_data_type="f32")
    x, w = g.tensor([1 << 20], name="x"), g.tensor([1 << 20], name="w")
    y = g.sub(x, w, name="y").set_name("y")
    g.build()
    one, five, out = Fresh(1), Fresh(5), np.zeros(1 << 20, "f4")
    if way == "call":
        g.plan(x=one, w=five, out={"y": out})
    elif way == "execute":
        g.execute({x: one, w: five, y: out})
    else:
        shapes = {"override_shapes": [[1 << 19]] * 3, "override_strides": [[1]] * 3}
        g.execute({x: one, w: five, y: out}, override_uids=[t.get_uid() for t in (x, w, y)], **shapes)
    assert set(out[: 1 << 19].tolist()) == {-4}
    assert one.is_gone()
    assert five.is_gone()


def test_arrays_that_were_refused_are_not_kept() -> None:
    class Refused(Says):
        pass

    g, x, y = doubled()
    kept = []
    for lie, _ in CLAIMS.values():
        said = Refused(**lie)
        kept.append((weakref.ref(said), lie))
        for way in (lambda s=said: g.execute({x: s, y: s}), lambda s=said: g.plan(x=s)):
            with pytest.raises(weft.BadParameterError):
                way()
    del said, way
    gc.collect()
    assert [lie for each, lie in kept if each() is not None] == []


def test_a_number_of_another_type_in_a_capsule() -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"), io_data_type="f32")
    x, s = g.tensor([6], name="x"), g.tensor([1], name="s", is_pass_by_value=True)
    y = g.mul(x, s, name="y").set_name("y")
    g.build()
    producer, out = Dlpack(lambda: np.full(1, 3.0).__dlpack__()), np.zeros(6, "f4")
    g.execute({x: np.ones(6, "f4"), s: producer, y: out})
    assert out.tolist() == g.plan(x=np.ones(6, "f4"), s=producer).tolist() == [3] * 6


# ---- Gradients ---------------------------------------------------------------------------------------------


def test_a_tensor_whose_gradient_would_be_lost_is_refused() -> None:
    torch = pytest.importorskip("torch")
    g, x, y = doubled()
    leaf, plain = torch.ones(6, requires_grad=True), torch.zeros(6)
    message = "requires grad, and autograd does not record what a plan computes: its gradient would be lost."
    for _, way in list(ways(leaf))[1:-1]:
        refused = rf"^\w+: the tensor of \w+ '[xy]' \(uid [12]\) {message}"
        with pytest.raises(weft.BadParameterError, match=refused):
            way()
        with torch.no_grad():
            way()
        with pytest.raises(weft.BadParameterError, match=message):
            way()
    for _ in range(3):  # also where a plain tensor of the form, or the leaf itself, was taken before
        g.execute({x: plain, y: torch.empty(6)})
        with torch.no_grad():
            g.execute({x: leaf, y: torch.empty(6)})
        with pytest.raises(weft.BadParameterError, match=message):
            g.execute({x: leaf, y: torch.empty(6)})
    assert torch.equal(g.plan(x=leaf.detach()), 2 * leaf.detach())


def test_a_tensor_with_a_gradient_is_described_and_captured() -> None:
    """Its shape is no part of autograd; its values are refused when they are read."""
    torch = pytest.importorskip("torch")
    leaf = torch.ones(3, requires_grad=True)
    g = weft.Graph()
    assert g.tensor_like(leaf).dims == (3,)
    g = weft.Graph()
    g.add(leaf, 1)
    with pytest.raises(weft.BadParameterError, match="its gradient would be lost"):
        g()
    with torch.no_grad():
        assert torch.equal(g(), torch.full((3,), 2.0))

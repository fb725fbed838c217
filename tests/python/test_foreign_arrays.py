"""Arrays whose memory does not hold what they show, and objects that lie about their memory: refused on every
way into a plan, never read or written as if they were plain."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
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
    """An object with memory that says what it is told to say."""

    dtype = np.dtype("f4")

    def __init__(self, **said: Any) -> None:
        self.memory = np.ones(6, "f4")
        data = (self.memory.ctypes.data, False)
        self.said = {"shape": (6,), "typestr": "<f4", "version": 3, "data": data} | said

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.said


class Dlpack:
    """A producer of DLPack capsules that are not what they should be."""

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

ORDER = "buffer: the array's bytes are not in this machine's order."

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "swapped bytes": (lambda: np.ones(6, SWAPPED), ORDER),
    "masked": (lambda: np.ma.array(np.ones(6, "f4"), mask=[1, 0, 0, 0, 0, 0]), "buffer: the array is masked"),
    "negated": (
        torch_of(lambda torch: torch.full((6,), 1 + 2j).conj().imag.to(torch.float32)),
        "buffer: the torch tensor is a negated view. Give tensor.resolve_neg().",
    ),
    "sparse": (
        torch_of(lambda torch: torch.ones(6).to_sparse()),
        "buffer: the torch tensor is of layout torch.sparse_coo. Give tensor.to_dense().",
    ),
    "quantized": (
        torch_of(lambda torch: torch.quantize_per_tensor(torch.ones(6), 1.0, 0, torch.qint8)),
        "buffer: the torch tensor is quantized.",
    ),
    "without memory": (
        torch_of(lambda torch: torch.ones(6, device="meta")),
        "buffer: the torch tensor is on device meta.",
    ),
    "interface of swapped bytes": (lambda: Says(typestr=SWAPPED.str), ORDER),
    "interface with a mask": (
        lambda: Says(mask=np.ones(6, bool)),
        "buffer: the array has a mask, which would be lost.",
    ),
    "interface of split elements": (
        lambda: Says(strides=(3,)),
        "buffer: strides of [3] bytes are no multiples of 4",
    ),
    "capsule of another name": (
        lambda: Dlpack(lambda: named_capsule(b"used_dltensor")),
        "buffer: __dlpack__() gave no capsule that is named dltensor or dltensor_versioned.",
    ),
    "no capsule": (lambda: Dlpack(lambda: 5), "buffer: __dlpack__() gave no capsule"),
}


def doubled(**like: Any) -> tuple[weft.Graph, Any, Any]:
    g = weft.Graph(handle=weft.create_handle("cpu"))
    x = g.tensor([6], data_type="f32", name="x")
    y = g.add(x, x, name="y").set_name("y")
    return g.build(), x, y


def ways(array: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """All ways in which memory comes to a plan, as input and as output."""
    g, x, y = doubled()
    plain = np.ones(6, "f4")
    yield "tensor_like", lambda: weft.Graph(handle=weft.create_handle("cpu")).tensor_like(array)
    yield "call", lambda: g.plan(x=array)
    yield "out", lambda: g.plan(x=plain, out={"y": array})
    yield "execute", lambda: g.execute({x: array, y: plain})
    yield "execute, written", lambda: g.execute({x: plain, y: array})
    yield "bind", lambda: g.plan.bind(x=array)
    yield "constant", lambda: weft.Graph(handle=weft.create_handle("cpu")).add(array, 1.0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(REFUSED))
def test_memory_that_is_not_plain_is_refused_everywhere(name: str) -> None:
    make, message = REFUSED[name]
    array = make()
    for _, way in ways(array):
        with pytest.raises(weft.BadParameterError, match="^" + re.escape(message)):
            way()


def test_a_negated_view_is_refused_after_a_plain_tensor_was_taken() -> None:
    """A tensor that is known by its form at a glance differs from a lazy one."""
    torch = pytest.importorskip("torch")
    g, x, y = doubled()
    out = torch.empty(6)
    for _ in range(3):
        g.execute({x: torch.ones(12)[:6], y: out})
    lazy = torch.zeros(6, dtype=torch.complex64).conj().imag.contiguous()
    negated = torch._neg_view(lazy)
    with pytest.raises(weft.BadParameterError, match=r"^buffer: the torch tensor is a negated view\."):
        g.execute({x: negated, y: out})


def test_masked_arrays_are_not_copied_to_a_device_array() -> None:
    with pytest.raises(weft.BadParameterError, match=r"^buffer: the array is masked"):
        weft.DeviceArray([2], "f32", handle=weft.create_handle("cpu")).copy_from(np.ma.zeros(2, dtype="f4"))


def test_dlpack_tells_what_is_read_only() -> None:
    class Exports:
        """A NumPy array that is seen through DLPack alone."""

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
    message = r"execute: output 'y' \(uid 2\) is written, its buffer is read-only\. Give a writable array\."
    with pytest.raises(weft.BadParameterError, match=message):
        g.execute({x: np.ones(6, "f4"), y: Exports(locked)})
    assert not buffers.describe(Exports(locked)).is_writable
    assert g.plan(x=Exports(locked)).tolist() == [0] * 6


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
    """An object whose interface fails when it is asked."""

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

"""Memory of other libraries: NumPy, torch, DLPack, the CUDA array interface; and data types by any name."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import weft
import weft.backend
from weft import buffers, data_type, dtypes
from weft.enums import device_kind


def refusal(message: str) -> Any:
    """Asserts that the block raises BadParameterError with exactly this message."""
    return pytest.raises(weft.BadParameterError, match=f"^{re.escape(message)}$")


# ---- Data types --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bf16", "BFLOAT16"),
        ("bfloat16", "BFLOAT16"),
        ("BFLOAT16", "BFLOAT16"),
        (ml_dtypes.bfloat16, "BFLOAT16"),
        (np.dtype(ml_dtypes.bfloat16), "BFLOAT16"),
        ("float32", "FLOAT"),
        ("fp32", "FLOAT"),
        ("float", "FLOAT"),
        (np.float32, "FLOAT"),
        (float, "FLOAT"),
        (np.dtype("f8"), "DOUBLE"),
        ("half", "HALF"),
        (np.float16, "HALF"),
        (int, "INT64"),
        (np.int32, "INT32"),
        (np.uint8, "UINT8"),
        (bool, "BYTE_BOOLEAN"),
        (np.bool_, "BYTE_BOOLEAN"),
        ("boolean", "BOOLEAN"),
        ("e4m3", "FP8_E4M3"),
        ("fp8_e5m2", "FP8_E5M2"),
        (ml_dtypes.float8_e4m3fn, "FP8_E4M3"),
        (ml_dtypes.float8_e8m0fnu, "FP8_E8M0"),
        ("int4", "INT4"),
        (data_type.INT8, "INT8"),
    ],
)
def test_data_types_by_any_name(name: Any, expected: str) -> None:
    assert dtypes.data_type_of(name) is data_type[expected]


@pytest.mark.parametrize("name", ["float31", object(), [1], np.dtype("c8")])
def test_unknown_data_types_are_refused(name: Any) -> None:
    message = (
        f"data type: {name!r} is not supported by Weft. Give a data_type, a dtype of NumPy, ml_dtypes or "
        "torch"
    )
    with pytest.raises(weft.BadParameterError, match=re.escape(message)):
        dtypes.data_type_of(name)


def test_nothing_names_no_type() -> None:
    assert dtypes.data_type_of(None) is None
    assert dtypes.data_type_of(data_type.NOT_SET) is None


def test_types_agree_with_the_library() -> None:
    for row in weft.backend.describe()["data_types"]:
        ours = dtypes.of(row["type"])
        assert (ours.name, ours.bits) == (row["name"], row["bits"])
        if ours.array:
            array = dtypes.numpy_dtype(ours.type)
            assert array.itemsize * 8 == ours.bits
            assert dtypes.data_type_of(array) is ours.type


@pytest.mark.parametrize(
    "name", ["f32", "f64", "f16", "bf16", "e4m3", "e5m2", "i8", "u8", "i32", "u32", "i64", "bool8"]
)
@pytest.mark.parametrize("value", [0, 1, 2.75, 1 + 2**-9, 1 + 3 * 2**-9])
def test_scalars_in_memory(name: str, value: float) -> None:
    type_ = dtypes.data_type_of(name)
    assert type_ is not None
    array = dtypes.numpy_dtype(type_)
    assert dtypes.scalar_bytes(type_, value) == np.array([value]).astype(array).tobytes()


@pytest.mark.parametrize(("name", "array"), [("e2m1", "float4_e2m1fn"), ("i4", "int4"), ("u4", "uint4")])
def test_scalars_of_4_bits(name: str, array: str) -> None:
    """Types that arrays pack two to a byte; reading beyond the ends fails."""
    type_ = dtypes.data_type_of(name)
    assert type_ is not None
    values = np.arange(16).astype("u1").view(getattr(ml_dtypes, array))
    for code, value in enumerate(values.astype("f8")):
        assert dtypes.scalar_bytes(type_, value) == bytes([code])
        assert dtypes.scalar_value(type_, bytes([code])) == value
    for value in (values.astype("f8").max() + 1, values.astype("f8").min() - 1):
        assert dtypes.fitting_bytes(type_, value) is None
    if name == "e2m1":
        rounded = [dtypes.scalar_value(type_, dtypes.scalar_bytes(type_, x)) for x in (2.5, 1.25, -5, 0.25)]
        assert rounded == np.array([2.5, 1.25, -5, 0.25]).astype(ml_dtypes.float4_e2m1fn).tolist()
        assert dtypes.fitting_bytes(type_, float("nan")) is None


# ---- NumPy -------------------------------------------------------------------------------------------------


def test_numpy_arrays() -> None:
    array = np.zeros((4, 6), ml_dtypes.bfloat16)[:, ::2]
    buffer = buffers.describe(array)
    assert buffer.pointer == array.ctypes.data == buffers.pointer_of(array)
    assert (buffer.dims, buffer.strides, buffer.data_type) == ((4, 3), (6, 2), data_type.BFLOAT16)
    assert (buffer.device, buffer.ordinal, buffer.is_writable) == (device_kind.CPU, 0, True)
    assert buffer.elements == 12


def test_numpy_scalars_have_one_element() -> None:
    buffer = buffers.describe(np.array(2.0))
    assert (buffer.dims, buffer.strides, buffer.data_type) == ((1,), (1,), data_type.DOUBLE)


def test_read_only_arrays_are_known() -> None:
    array = np.zeros(3)
    array.flags.writeable = False
    assert not buffers.describe(array).is_writable


def test_strides_between_elements_are_refused() -> None:
    array = np.zeros(3, np.dtype([("a", "f4"), ("b", "u1")]))["a"]
    with refusal(
        "buffer: strides of [5] bytes are not multiples of 4 bytes per element. Copy the array with "
        "numpy.ascontiguousarray."
    ):
        buffers.describe(array)


def test_other_objects_are_refused() -> None:
    with refusal(
        "buffer: dict exposes no memory. Give a NumPy array, a torch tensor, or an object with __dlpack__ or "
        "__cuda_array_interface__."
    ):
        buffers.describe({})


def test_addresses() -> None:
    assert buffers.pointer_of(4096) == 4096


# ---- DLPack and the CUDA array interface -------------------------------------------------------------------


class OnlyDlpack:
    """An array that offers only DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i4", "i8", "u1", "u4", "?"])
def test_dlpack(dtype: str) -> None:
    array = np.arange(24).reshape(4, 6).astype(dtype)[1:, ::2]
    buffer, plain = buffers.describe(OnlyDlpack(array)), buffers.describe(array)
    assert buffer[:7] == plain[:7]
    assert buffers.pointer_of(OnlyDlpack(array)) == plain.pointer


def test_dlpack_of_unknown_types_is_refused() -> None:
    message = "buffer: the DLPack tensor has device type 1, type code 5, 64 bits and 1 lanes, which Weft"
    with pytest.raises(weft.BadParameterError, match=re.escape(message)):
        buffers.describe(OnlyDlpack(np.zeros(3, "c8")))


def test_dlpack_arrays_run() -> None:
    x = np.arange(6, dtype="f4").reshape(2, 3)
    g = weft.Graph()
    g.add(OnlyDlpack(x), 1)
    np.testing.assert_array_equal(g(), x + 1)


def test_dlpack_releases_the_producer() -> None:
    import sys

    array = np.zeros(3, "f4")
    before = sys.getrefcount(array)
    buffer = buffers.describe(OnlyDlpack(array))
    assert sys.getrefcount(array) > before
    del buffer
    assert sys.getrefcount(array) == before


class CudaArray:
    """The interface of CuPy and Numba arrays."""

    dtype = np.dtype("f2")

    def __init__(self, **more: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": (2, 3),
            "typestr": "<f2",
            "data": (8192, True),
            "version": 3,
        } | more

    __cuda_array_interface__: Any = None


def test_cuda_array_interface() -> None:
    buffer = buffers.describe(CudaArray(strides=(2, 4)))
    assert (buffer.pointer, buffer.dims, buffer.strides) == (8192, (2, 3), (1, 2))
    assert (buffer.device, buffer.data_type, buffer.is_writable) == (device_kind.CUDA, data_type.HALF, False)
    assert buffers.describe(CudaArray()).strides == (3, 1)
    assert buffers.pointer_of(CudaArray()) == 8192


def test_arrays_on_a_gpu_choose_the_gpu() -> None:
    g = weft.Graph()
    g.tensor_like(np.zeros(3, "f4"))
    g.tensor_like(CudaArray())
    assert g._seen_device == (device_kind.CUDA, 0)


# ---- torch -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn", "int64", "bool", "uint8"]
)
def test_torch_tensors(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(4, 6, dtype=getattr(torch, dtype)).t()[::2]
    buffer = buffers.describe(tensor)
    assert buffer.pointer == tensor.data_ptr() == buffers.pointer_of(tensor)
    assert (buffer.dims, buffer.strides) == ((3, 4), (2, 6))
    assert buffer.data_type is dtypes.data_type_of(tensor.dtype) is dtypes.data_type_of(dtype)
    assert dtypes.torch_dtype(buffer.data_type) == tensor.dtype


def test_torch_in_torch_out() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(4, 8, dtype=torch.bfloat16)
    g = weft.Graph()
    g.relu(g.tensor_like(x, name="x"))
    y = g.build().plan(x=x)
    assert isinstance(y, torch.Tensor)
    assert torch.equal(y, torch.relu(x))
    out = torch.empty_like(x)
    assert g.plan(x=x, out={"relu_0::y": out}) is out
    assert torch.equal(out, y)


def test_torch_channels_last_stays_channels_last() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    g = weft.Graph()
    g.relu(g.tensor_like(x, name="x"))
    y = g.build().plan(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(y, torch.relu(x))


def test_torch_host_scalars_are_by_value() -> None:
    torch = pytest.importorskip("torch")
    g = weft.Graph()
    assert g.tensor_like(torch.full((1, 1), 1e-5)).is_by_value

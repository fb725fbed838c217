"""The second library, WEFT_CUDNN_FALLBACK: families of functions that Weft lacks are sent there, with handles
and descriptors of that library."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from commands import ROOT, run
from cudnn_functions import FOLDER, HEADERS

PROGRAM = """
import ctypes as C, sys
from cudnn_functions import CudnnError, FOLDER, Library, ints
cudnn = Library(FOLDER / "libcudnn.so.9")
handle, stream = C.c_void_p(), 4096
cudnn.Create(C.byref(handle))
cudnn.SetStream(handle, stream)
"""


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with the soname and version node of NVIDIA's."""
    folder = tmp_path_factory.mktemp("second")
    (folder / "map").write_text("libcudnn.so.9 { global: cudnn*; local: *; };")
    linking = ["-shared", "-fPIC", "-Wl,-soname,libcudnn.so.9", f"-Wl,--version-script={folder}/map"]
    source = ROOT / "tests/cudnn_library/second_library.c"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", f"-I{HEADERS}"]
    run(os.environ.get("CC", "cc"), *flags, *linking, source, "-o", folder / "libcudnn.so.9")
    return folder / "libcudnn.so.9"


def run_program(text: str, path: object) -> str:
    environment = {"WEFT_CUDNN_FALLBACK": path, "WEFT_DEVICE": "cpu", "PYTHONPATH": ROOT / "tests"}
    return run(sys.executable, "-c", PROGRAM + text, **environment)


def test_handles_tensors_and_dropout_are_translated(second: Path) -> None:
    answer = run_program(
        """
size = cudnn.size("DropoutGetStatesSize", handle)
states = C.create_string_buffer(size)
dropout, found = cudnn.create("Dropout"), C.c_void_p()
cudnn.SetDropoutDescriptor(dropout, handle, 0.5, states, size, 3)
network = C.c_void_p()
cudnn.CreateRNNDescriptor(C.byref(network))
cudnn.SetRNNDescriptor_v8(network, *[0] * 12, dropout, 0)
cudnn.GetRNNDescriptor_v8(network, *[None] * 12, C.byref(found), None)
assert found.value == dropout.value
print(size, states.raw[0], set(states.raw[256:]))

matrix, bias = cudnn.create("Tensor"), cudnn.create("Tensor")
cudnn.SetTensorNdDescriptor(matrix, 0, 3, ints([1, 4, 5]), ints([20, 5, 1]))
addresses = C.c_void_p(), C.c_void_p()
of_matrix, of_bias = map(C.byref, addresses)
cudnn.GetRNNWeightParams(handle, network, 0, 0, 64, 0, matrix, of_matrix, bias, of_bias)
for tensor in matrix, bias:
    rank, dims, strides, type_ = C.c_int(), ints([0] * 3), ints([0] * 3), C.c_int()
    cudnn.GetTensorNdDescriptor(tensor, 3, C.byref(type_), C.byref(rank), dims, strides)
    print(rank.value, *dims, *strides)
print(*(address.value for address in addresses))
cudnn.DestroyRNNDescriptor(network), cudnn.DestroyDropoutDescriptor(dropout), cudnn.Destroy(handle)
""",
        second,
    )
    assert answer.splitlines() == ["1256 3 {3}", "3 1 5 4 7 7 1", "3 1 1 7 7 7 1", "4096 64"]


def test_failures_have_the_message_of_the_second_library(second: Path) -> None:
    answer = run_program(
        """
try:
    cudnn.BuildRNNDynamic(handle, None, 9)
except CudnnError as error:
    print(error.status, error.message)
try:
    cudnn.BuildRNNDynamic(None, None, 9)
except CudnnError as error:
    print(error.status, error.message)
try:
    cudnn.RNNForward(*[0] * 20)
except CudnnError as error:
    print(error.status, error.message.split(".")[0])
""",
        second,
    )
    assert answer.splitlines() == [
        "3000 cudnnBuildRNNDynamic, by the library of WEFT_CUDNN_FALLBACK: a batch of 9 is too large",
        "2000 translate_handle: the handle is not live. Pass one that cudnnCreate returned.",
        "3000 cudnnRNNForward: Weft does not have this function",
    ]


def test_other_functions_remain_those_of_weft(second: Path) -> None:
    answer = run_program("print(cudnn.function('cudnnGetVersion')(), cudnn.calls('Create'))", second)
    assert answer.split() == ["92800", "1"]


@pytest.mark.parametrize("path", ["/nowhere/libcudnn.so.9", FOLDER / "libcudnn.so.9", ""])
def test_unusable_libraries_are_ignored(path: object) -> None:
    answer = run_program(
        """
network = C.c_void_p()
try:
    cudnn.CreateRNNDescriptor(C.byref(network))
except CudnnError as error:
    print(error.status, cudnn.size("DropoutGetStatesSize", handle))
""",
        path,
    )
    assert answer.split() == ["3000", "16"]

# SPDX-License-Identifier: Apache-2.0
"""Plans as nodes of a CUDA graph of the caller: weftBackendPopulateCudaGraph and weftBackendUpdateCudaGraph.
test_emulated.py runs the tests on the emulated GPU; on the CPU, plans are refused."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import weft
from weft import backend
from weft.buffers import pointer_of
from weft.enums import attribute_name, descriptor_type

ON_GPU = weft.create_handle().device is weft.device_kind.CUDA


def driver(name: str, *types: Any) -> Callable[..., None]:
    """A function of the CUDA driver, which fails for every result other than 0."""
    find = ctypes.CDLL(os.environ.get("WEFT_LIBCUDA", "libcuda.so.1")).cuGetProcAddress_v2
    address, found = ctypes.c_void_p(), ctypes.c_int()
    arguments = (name.encode(), ctypes.byref(address), 12000, ctypes.c_uint64(1), ctypes.byref(found))
    assert find(*arguments) == 0, name
    function = ctypes.CFUNCTYPE(ctypes.c_int, *types)(address.value)

    def call(*values: Any) -> None:
        assert function(*values) == 0, name

    return call


POINTER, UNSIGNED = ctypes.c_void_p, ctypes.c_uint


def made(name: str, *types: Any) -> Callable[..., ctypes.c_void_p]:
    """A function that creates an object, and returns its handle."""

    def call(*values: Any) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        driver(name, POINTER, *types)(ctypes.addressof(handle), *values)
        return handle

    return call


class Case:
    """softmax(x w) s: two kernels, and a number that is passed by value."""

    def __init__(self) -> None:
        g = weft.Graph(io_data_type="f32", handle=weft.create_handle())
        x, w = g.tensor([1, 8, 32], name="x"), g.tensor([1, 32, 16], name="w")
        s = g.tensor([1, 1, 1], name="s", is_pass_by_value=True)
        self.y = g.mul(g.softmax(g.matmul(x, w)), s).set_output(True)
        self.plan, self.handle = g.build().plan, weft.create_handle()
        self.uids = [t.get_uid() for t in (x, w, s, self.y)]
        self.number = np.zeros(1, "f4")
        self.workspace = weft.DeviceArray((max(g.get_workspace_size(), 1),), "u8", handle=self.handle)

    def write(self, function: str, graph: Any, x: Any, w: Any, s: float, y: Any) -> None:
        self.number[0] = s
        pack = backend.Descriptor(descriptor_type.VARIANT_PACK_DESCRIPTOR)
        addresses = [*map(pointer_of, (x, w, self.number, y))]
        pointers = [backend.ffi.cast("void *", each) for each in addresses]
        pack.set(attribute_name.VARIANT_PACK_UNIQUE_IDS, "INT64", self.uids)
        pack.set(attribute_name.VARIANT_PACK_DATA_POINTERS, "VOID_PTR", pointers)
        workspace = backend.ffi.cast("void *", pointer_of(self.workspace))
        pack.set(attribute_name.VARIANT_PACK_WORKSPACE, "VOID_PTR", [workspace])
        pack.finalize()
        target = backend.ffi.cast("void *", graph.value if graph else 0)
        write = getattr(backend.library(), f"weftBackend{function}CudaGraph")
        backend.check(write(self.handle.pointer, self.plan.descriptor.pointer, pack.pointer, target))


def on_device(array: Any) -> weft.DeviceArray:
    return weft.DeviceArray(array.shape, "f32", handle=weft.create_handle()).copy_from(array)


def expected(x: Any, w: Any, s: float) -> Any:
    weights = np.exp(x.astype("f8") @ w)
    return weights / weights.sum(-1, keepdims=True) * s


@pytest.mark.skipif(not ON_GPU, reason="no GPU")
def test_kernels_of_a_plan_are_written_and_updated() -> None:
    case, random = Case(), np.random.default_rng(0)
    w = random.standard_normal((1, 32, 16)).astype("f4")
    arrays = [random.standard_normal((1, 8, 32)).astype("f4") for _ in range(2)]
    memory, weights = [on_device(x) for x in arrays], on_device(w)
    results = [on_device(np.zeros((1, 8, 16), "f4")) for _ in range(2)]
    device = ctypes.c_int()
    driver("cuDeviceGet", POINTER, ctypes.c_int)(ctypes.addressof(device), 0)
    driver("cuCtxPushCurrent", POINTER)(made("cuDevicePrimaryCtxRetain", ctypes.c_int)(device.value))
    graph = made("cuGraphCreate", UNSIGNED)(0)
    case.write("Populate", graph, memory[0], weights, 2.0, results[0])
    assert not np.asarray(results[0].numpy()).any()  # nothing has run
    executable = made("cuGraphInstantiateWithFlags", POINTER, ctypes.c_uint64)(graph, 0)
    run = driver("cuGraphLaunch", POINTER, POINTER)
    run(executable, None)
    np.testing.assert_allclose(results[0].numpy(), expected(arrays[0], w, 2.0), rtol=0, atol=2e-2)
    case.write("Update", graph, memory[1], weights, 3.0, results[1])
    again = made("cuGraphInstantiateWithFlags", POINTER, ctypes.c_uint64)(graph, 0)
    run(again, None)
    np.testing.assert_allclose(results[1].numpy(), expected(arrays[1], w, 3.0), rtol=0, atol=2e-2)
    np.testing.assert_allclose(results[0].numpy(), expected(arrays[0], w, 2.0), rtol=0, atol=2e-2)
    with pytest.raises(weft.BadParameterError, match=r"the CUDA graph has 1 node: expected none\."):
        case.write("Populate", graph, memory[0], weights, 2.0, results[0])
    empty = made("cuGraphCreate", UNSIGNED)(0)
    with pytest.raises(weft.BadParameterError, match=r"the CUDA graph has 0 nodes: expected one, which "):
        case.write("Update", empty, memory[0], weights, 2.0, results[0])
    for each in (executable, again):
        driver("cuGraphExecDestroy", POINTER)(each)
    for each in (graph, empty):
        driver("cuGraphDestroy", POINTER)(each)
    made("cuCtxPopCurrent")()


@pytest.mark.skipif(not ON_GPU, reason="no GPU")
def test_a_graph_is_required() -> None:
    case = Case()
    x, y = (on_device(np.zeros(dims, "f4")) for dims in [(1, 8, 32), (1, 8, 16)])
    w = on_device(np.zeros((1, 32, 16), "f4"))
    with pytest.raises(
        weft.BadParameterError, match=r"the CUDA graph is NULL\. Create one with cudaGraphCreate"
    ):
        case.write("Populate", None, x, w, 1.0, y)


@pytest.mark.skipif(ON_GPU, reason="a GPU")
def test_plans_of_the_cpu_are_refused() -> None:
    case = Case()
    arrays = [np.zeros(dims, "f4") for dims in [(1, 8, 32), (1, 32, 16), (1, 8, 16)]]
    x, w, y = (weft.DeviceArray(a.shape, "f32", handle=case.handle) for a in arrays)
    with pytest.raises(weft.NotSupportedError, match=r"its device is cpu, and CUDA graphs contain kernels\."):
        case.write("Populate", ctypes.c_void_p(1), x, w, 1.0, y)

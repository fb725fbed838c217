"""Plans: calls by name and position, given and allocated outputs, requirements on buffers, threads."""

from __future__ import annotations

import copy
import json
import pickle
import re
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import weft
from weft.enums import attribute_name

X = np.arange(6, dtype="f4").reshape(2, 3)


def refusal(message: str) -> Any:
    """Asserts that the block raises BadParameterError with exactly this message."""
    return pytest.raises(weft.BadParameterError, match=f"^{re.escape(message)}$")


def plan_of(dtype: Any = "f32", strides: Any = None) -> weft.Plan:
    g = weft.Graph(handle=weft.create_handle("cpu"), name="double")
    x = g.tensor([2, 3], strides, dtype, name="x")
    g.add(x, x, name="y").set_name("y")
    return g.build().plan


def test_outputs_are_allocated() -> None:
    y = plan_of()(x=X)
    assert (y.dtype, y.shape) == (np.float32, (2, 3))
    np.testing.assert_array_equal(y, 2 * X)


def test_given_outputs_are_written() -> None:
    out = np.empty_like(X)
    assert plan_of()(X, out={"y": out}) is out
    np.testing.assert_array_equal(out, 2 * X)


def test_an_operation_names_its_only_output() -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"))
    g.relu(g.tensor([2, 3], data_type="f32", name="x"), name="act")
    out = np.empty_like(X)
    g.build().plan(X, out={"act": out})
    np.testing.assert_array_equal(out, X)
    g.execute({"x": -X, "act": out})
    np.testing.assert_array_equal(out, np.zeros_like(X))


def test_outputs_take_the_layout_of_their_tensors() -> None:
    x = np.asfortranarray(X)
    y = plan_of(strides=[1, 2])(x)
    assert y.strides == (4, 8)
    np.testing.assert_array_equal(y, 2 * X)


def test_several_outputs_come_in_the_order_of_the_graph() -> None:
    g = weft.Graph()
    x = g.tensor([3], data_type="f32", name="x")
    g.neg(x).set_uid(9)
    g.abs(x).set_uid(5)
    values = np.float32([-1, 2, -3])
    minus, magnitude = g.build().plan(values)
    np.testing.assert_array_equal(minus, -values)
    np.testing.assert_array_equal(magnitude, abs(values))


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool", "int64"]
)
def test_arrays_of_every_type(dtype: str) -> None:
    x = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, dtype, dtype))
    g = weft.Graph()
    g.identity(x)
    y = g()
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y.astype(float), x.astype(float))


def test_small_types_come_as_bytes() -> None:
    g = weft.Graph()
    x = g.tensor([4], data_type="i4", name="x")
    g.identity(x)
    y = g.build().plan(x=np.uint8([0x21, 0x43]))
    assert (y.dtype, y.tolist()) == (np.uint8, [0x21, 0x43])


def test_raw_bytes_serve_types_of_8_bits() -> None:
    raw = np.full((2, 3), 0x38, np.uint8)  # 1.0 in e4m3
    y = plan_of("e4m3")(x=raw)
    np.testing.assert_array_equal(y.astype(float), np.full((2, 3), 2.0))


def test_addresses_serve_as_buffers() -> None:
    out = np.empty_like(X)
    plan_of()(x=X.ctypes.data, out={"y": out.ctypes.data})
    np.testing.assert_array_equal(out, 2 * X)


def test_empty_tensors() -> None:
    g = weft.Graph()
    g.relu(g.tensor([0, 3], data_type="f32", name="x"))
    assert g.build().plan(x=np.empty((0, 3), "f4")).shape == (0, 3)


def test_repr_and_words() -> None:
    plan = plan_of()
    assert re.fullmatch(r"Plan\(cpu\.\w+, eng\d+: x -> y, workspace \d+ bytes\)", repr(plan))
    told = json.loads(plan.descriptor.get_text(attribute_name.EXECUTION_PLAN_SLOTS_EXT))
    uids = plan.descriptor.get(attribute_name.EXECUTION_PLAN_SLOT_UNIQUE_IDS_EXT, "INT64")
    tensors = {tensor["uid"]: tensor for tensor in plan.report["tensors"]}
    same = {key: plan.report[key] for key in ("engine", "device")}
    assert told == {**same, "tensors": [tensors[uid] for uid in uids]}
    assert plan.explain().startswith(f"graph 'double' on {plan.engine} ({plan.tag})")
    slots = [(slot.name, slot.dims, slot.is_output, slot.bytes) for slot in plan.slots]
    assert slots == [("x", (2, 3), False, 24), ("y", (2, 3), True, 24)]


# ---- Requirements on buffers -------------------------------------------------------------------------------


def test_missing_buffer() -> None:
    with refusal("plan: input 'x' (uid 1) has no buffer. Give it: x=<array of f32[2,3]>."):
        plan_of()()


def test_unknown_name() -> None:
    with refusal("plan: no tensor is named 'z'; the graph has x, y. Use one of these names."):
        plan_of()(z=X)


def test_too_many_arrays() -> None:
    with refusal("plan: 2 positional arrays, the graph has 1 input: x. Give outputs as out={name: buffer}."):
        plan_of()(X, X)


def test_wrong_type() -> None:
    with refusal(
        "plan: input 'x' (uid 1) is f32, its buffer is f64. Convert the array, or declare the tensor with "
        "its type."
    ):
        plan_of()(x=X.astype("f8"))


def test_wrong_shape() -> None:
    with refusal(
        "plan: input 'x' (uid 1) is f32[2,3], its buffer f32[3,2]. Reshape the array, or declare the tensor "
        "with its dims."
    ):
        plan_of()(x=X.reshape(3, 2))


def test_wrong_strides() -> None:
    with refusal(
        "plan: input 'x' (uid 1) has strides [3, 1], its buffer [1, 2] for dims [2, 3]. Copy the array into "
        "that layout, or declare the tensor with tensor_like."
    ):
        plan_of()(x=np.asfortranarray(X))


def test_read_only_output() -> None:
    out = np.empty_like(X)
    out.flags.writeable = False
    with refusal("plan: output 'y' (uid 2) has a read-only buffer. Give a writable array."):
        plan_of()(x=X, out={"y": out})


def test_read_only_input_is_fine() -> None:
    x = X.copy()
    x.flags.writeable = False
    np.testing.assert_array_equal(plan_of()(x=x), 2 * X)


def test_numbers_are_no_tensors() -> None:
    with refusal("plan: input 'x' (uid 1) is not a by-value scalar, but its buffer is 2.0. Give an array."):
        plan_of()(x=2.0)


def test_an_overlapping_output_is_refused() -> None:
    memory = np.zeros(12, "f4")
    with pytest.raises(
        weft.BadParameterError, match=r"^output tensor 'y' \(uid 2\) and tensor 'x' \(uid 1\) overlap"
    ):
        plan_of()(x=memory[:6].reshape(2, 3), out={"y": memory[4:10].reshape(2, 3)})


class FakeCuda:
    """Memory that claims to be on a GPU."""

    dtype = np.dtype("f4")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (2, 3), "typestr": "<f4", "data": (4096, False), "version": 3}


def test_wrong_device() -> None:
    message = (
        "plan: input 'x' (uid 1) must be on the host, its buffer is on a CUDA device. Move it there, or "
        "build the graph with a handle of the other device."
    )
    with refusal(message):
        plan_of()(x=FakeCuda())


# ---- Threads -----------------------------------------------------------------------------------------------


def test_threads_share_a_plan() -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"))
    x = g.tensor([64, 32], data_type="f32", name="x")
    g.softmax(g.mul(x, g.tensor_scalar(1.0, name="s")))
    g.create_execution_plan([a["engine"] for a in g.support()].index("cpu.reference"))
    g.build_plans()
    assert g.plan.workspace_size > 0
    failures: list[str] = []

    def work(seed: int) -> None:
        values = np.random.default_rng(seed).standard_normal((64, 32)).astype("f4")
        want = np.exp(values.astype(float) * seed)
        want /= want.sum(1, keepdims=True)
        for _ in range(20):
            got = g.plan(x=values, s=float(seed))
            if not np.allclose(got, want, rtol=1e-5, atol=1e-7):
                failures.append(f"thread {seed}: off by {abs(got - want).max()}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_plan_outlives_its_graph_and_handle() -> None:
    plan = plan_of()
    weft.Graph()
    np.testing.assert_array_equal(plan(x=X), 2 * X)


# ---- Pickling ----------------------------------------------------------------------------------------------


def test_plans_and_graphs_are_pickled_with_their_constants() -> None:
    weight = np.float32([1, 2, 3])
    g = weft.Graph(handle=weft.create_handle("cpu"))
    g.mul(g.tensor([3], data_type="f32", name="x"), weight, name="y").set_name("y")
    plan = g.build().plan
    copies = [pickle.loads(pickle.dumps(plan)), pickle.loads(pickle.dumps(g)).plan, copy.deepcopy(g).plan]
    for again in copies:
        np.testing.assert_array_equal(again(x=np.float32([4, 5, 6])), [4, 10, 18])
        assert [slot.name for slot in again.slots] == [slot.name for slot in g.plan.slots]


def test_a_graph_without_a_plan_is_not_pickled() -> None:
    with refusal("graph 'g': it has no plan yet. Call build() first."):
        pickle.dumps(weft.Graph("g"))


def test_names_with_a_nul_are_refused() -> None:
    g = weft.Graph("a\0b", handle=weft.create_handle("cpu"))
    g.neg(g.tensor([2], data_type="f32"))
    with refusal(r"text 'a\x00b' contains a NUL character, which terminates strings in C. Leave it out."):
        g.build()

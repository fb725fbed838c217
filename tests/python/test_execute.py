"""Execution: checks of every buffer, by-value scalars, other shapes, and raw addresses."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import weft


def refusal(message: str) -> Any:
    """Asserts that the block raises BadParameterError with exactly this message."""
    return pytest.raises(weft.BadParameterError, match=f"^{re.escape(message)}$")


def doubled(dtype: Any = "f32", dims: Any = (2, 3), **options: Any) -> tuple[weft.Graph, Any, Any]:
    g = weft.Graph(handle=weft.create_handle("cpu"), name="double", **options)
    x = g.tensor(dims, data_type=dtype, name="x")
    y = g.add(x, x, name="y").set_name("y")
    return g.build(), x, y


X = np.arange(6, dtype="f4").reshape(2, 3)


# ---- Types and writability ---------------------------------------------------------------------------------


def test_a_buffer_of_another_type_is_refused() -> None:
    g, x, y = doubled()
    out = np.empty((2, 3), "f4")
    with refusal(
        "execute: input 'x' (uid 1) is f32, its buffer is f64. Convert the array, or declare the tensor with "
        "its type."
    ):
        g.execute({x: X.astype("f8"), y: out})
    with refusal(
        "execute: output 'y' (uid 2) is f32, its buffer is i32. Convert the array, or declare the tensor "
        "with its type."
    ):
        g.execute({x: X, y: np.empty((2, 3), "i4")})
    with refusal(
        "execute: input 'x' (uid 1) is f32, its buffer is complex64. Convert the array, or declare the "
        "tensor with its type."
    ):
        g.execute({x: X.astype("c8"), y: out})
    g.execute({x: X.ctypes.data, y: out.ctypes.data})
    np.testing.assert_array_equal(out, 2 * X)


def test_types_of_torch_are_checked() -> None:
    torch = pytest.importorskip("torch")
    g, x, y = doubled()
    with refusal(
        "execute: input 'x' (uid 1) is f32, its buffer is bf16. Convert the array, or declare the tensor "
        "with its type."
    ):
        g.execute({x: torch.zeros(4, 3, dtype=torch.bfloat16), y: torch.empty(2, 3)})
    out = torch.empty(2, 3)
    g.execute({x: torch.from_numpy(X), y: out})
    g.execute({x: X, y: out})
    np.testing.assert_array_equal(out.numpy(), 2 * X)


def test_arrays_are_checked_when_they_change() -> None:
    torch = pytest.importorskip("torch")
    g, x, y = doubled()
    given, out = torch.ones(2, 3), np.zeros((2, 3), "f4")
    for _ in range(2):
        g.execute({x: given, y: out})
    given.data = torch.full((2, 3), 5.0)
    g.execute({x: given, y: out})
    np.testing.assert_array_equal(out, 10)
    given.data = torch.ones(2)
    with refusal(
        "execute: input 'x' (uid 1) needs 24 bytes as f32[2,3], its buffer has 8. Give a larger one."
    ):
        g.execute({x: given, y: out})
    out.flags.writeable = False
    locked = out.view()
    with refusal("execute: output 'y' (uid 2) has a read-only buffer. Give a writable array."):
        g.execute({x: torch.ones(2, 3), y: locked})


def test_arrays_that_were_checked_keep_their_memory() -> None:
    """NumPy moves no array that a weak reference is held to."""
    g, x, y = doubled()
    given, out = np.ones(6, "f4"), np.zeros((2, 3), "f4")
    for _ in range(3):
        g.execute({x: given, y: out})
    with pytest.raises(ValueError, match="cannot resize an array"):
        given.resize(100000, refcheck=False)


def test_many_arrays_take_turns() -> None:
    g, x, y = doubled()
    for value in range(4):
        out = np.zeros((2, 3), "f4")
        g.execute({x: np.full((2, 3), value, "f4"), y: out})
        np.testing.assert_array_equal(out, 2 * value)
        np.testing.assert_array_equal(g.plan(x=np.full((2, 3), value, "f4")), 2 * value)


def test_raw_bytes_and_booleans_serve_types_of_8_bits() -> None:
    g, x, y = doubled("e4m3")
    out = np.empty((2, 3), "u1")
    g.execute({x: np.full((2, 3), 0x38, "u1"), y: out})  # 1.0
    np.testing.assert_array_equal(out, 0x40)
    g, x, y = doubled("i8")
    out = np.empty((2, 3), "i1")
    g.execute({x: np.ones((2, 3), bool), y: out})
    np.testing.assert_array_equal(out, 2)


def test_booleans_of_a_bit_are_not_those_of_a_byte() -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"))
    x = g.tensor([8], data_type=weft.data_type.BOOLEAN, name="x")
    y = g.identity(x).set_data_type("u8").set_name("y")
    g.build()
    message = (
        ": input 'x' (uid 1) is BOOLEAN, 1 bit per element, its buffer has 1 byte per element. Declare the "
        "tensor as BYTE_BOOLEAN."
    )
    with refusal("execute" + message):
        g.execute({x: np.ones(8, bool), y: np.empty(8, "u1")})
    with refusal("plan" + message):
        g.plan(x=np.ones(8, bool))
    np.testing.assert_array_equal(g.plan(x=np.uint8([0b101])), [1, 0, 1, 0, 0, 0, 0, 0])
    assert weft.Graph().tensor_like(np.ones(8, bool)).dtype is weft.data_type.BYTE_BOOLEAN


def test_a_read_only_output_is_refused() -> None:
    g, x, y = doubled()
    out = np.empty((2, 3), "f4")
    out.flags.writeable = False
    with refusal("execute: output 'y' (uid 2) has a read-only buffer. Give a writable array."):
        g.execute({x: X, y: out})


def test_arrays_that_end_too_soon_are_refused() -> None:
    g, x, y = doubled(dims=[4, 4])
    memory, out = np.zeros(16, "f4"), np.empty((4, 4), "f4")
    broadcast = np.broadcast_to(memory[:4], (4, 4))
    with refusal(
        "execute: input 'x' (uid 1) needs 64 bytes as f32[4,4], its buffer has 16. Give a larger one."
    ):
        g.execute({x: broadcast, y: out})
    with refusal(
        "execute: input 'x' (uid 1) needs 64 bytes as f32[4,4], its buffer has 4. Give a larger one."
    ):
        g.execute({x: memory[::-1], y: out})
    with refusal(
        "execute: input 'x' (uid 1) has strides [4, 1], its buffer [1, 4] for dims [4, 4]. Copy the array "
        "into that layout, or declare the tensor with tensor_like."
    ):
        g.execute({x: memory.reshape(4, 4).T, y: out})


def test_strided_arrays_of_the_layout_of_their_tensor_are_read_in_place() -> None:
    given = np.arange(16, dtype="f4").reshape(4, 4).T
    g = weft.Graph(handle=weft.create_handle("cpu"))
    x = g.tensor_like(given, name="x")
    y = g.add(x, x, name="y").set_name("y")
    g.build()
    out = np.empty(given.shape, "f4", order="F")
    g.execute({x: given, y: out})
    np.testing.assert_array_equal(out, given * 2)


def test_an_array_whose_flag_is_cleared_later_is_not_written() -> None:
    g, x, y = doubled()
    out = np.zeros((2, 3), "f4")
    g.execute({x: np.ones((2, 3), "f4"), y: out})
    out.flags.writeable = False
    with refusal("execute: output 'y' (uid 2) has a read-only buffer. Give a writable array."):
        g.execute({x: np.zeros((2, 3), "f4"), y: out})
    np.testing.assert_array_equal(out, 2)


def test_empty_arrays_have_no_strides() -> None:
    g, x, y = doubled(dims=[2, 0, 3])
    assert g.plan(x=np.zeros((2, 0, 3), "f4")).shape == (2, 0, 3)
    assert g.plan(x=np.zeros((3, 0, 2), "f4").T).shape == (2, 0, 3)
    g.execute({x: np.zeros((2, 0, 3), "f4"), y: np.zeros((2, 0, 3), "f4")})


# ---- By-value scalars --------------------------------------------------------------------------------------


def scaled(dtype: Any = "f32", **options: Any) -> tuple[weft.Graph, Any, Any, Any]:
    g = weft.Graph(handle=weft.create_handle("cpu"), **options)
    x = g.tensor([3], data_type="f32", name="x")
    s = g.tensor([1], data_type=dtype, is_pass_by_value=True, name="s")
    y = g.mul(x, s, name="y").set_name("y")
    return g.build(), x, s, y


VALUES = np.float32([1, 2, 3])


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64", "i32", "i64"])
@pytest.mark.parametrize(
    "value",
    [
        np.array([5.0]),
        np.array(5, "i8"),
        np.float32([[5]]),
        np.array([5], ml_dtypes.bfloat16),
        np.int32(5),
        np.float16(5),
        5.0,
        np.float64(5),
    ],
)
def test_scalars_of_another_type_are_converted(dtype: str, value: Any) -> None:
    g, x, s, y = scaled(dtype)
    out = np.empty(3, g.plan(x=VALUES, s=value).dtype)
    g.execute({x: VALUES, s: value, y: out})
    np.testing.assert_array_equal(out, 5 * VALUES)
    np.testing.assert_array_equal(g.plan(x=VALUES, s=value), 5 * VALUES)


def test_two_numbers_of_another_type_are_no_scalar() -> None:
    g, x, s, y = scaled()
    two, out = np.array([5.0, 6.0]), np.empty(3, "f4")
    words = "is f32, its buffer is f64. Convert the array, or declare the tensor with its type."
    with refusal(f"execute: input 's' (uid 2) {words}"):
        g.execute({x: VALUES, s: two, y: out})
    with refusal(f"plan: input 's' (uid 2) {words}"):
        g.plan(x=VALUES, s=two)


def test_scalars_of_torch_are_converted() -> None:
    torch = pytest.importorskip("torch")
    g, x, s, y = scaled()
    out = np.empty(3, "f4")
    g.execute({x: VALUES, s: torch.full((1, 1), 5.0, dtype=torch.float64), y: out})
    np.testing.assert_array_equal(out, 5 * VALUES)


def test_scalars_that_would_change_are_refused() -> None:
    for value, shown in ((np.array([0.1]), "0.1"), (np.float64([1e300]), "1e+300"), (1e300, "1e+300")):
        g, x, s, y = scaled()
        message = (
            f"input 's' (uid 2) is f32, which cannot represent its value {shown}. Give a value of that "
            "type, or declare the tensor with another."
        )
        with refusal(f"execute: {message}"):
            g.execute({x: VALUES, s: value, y: np.empty(3, "f4")})
        with refusal(f"plan: {message}"):
            g.plan(x=VALUES, s=value)
    g, x, s, y = scaled("i32")
    with pytest.raises(weft.BadParameterError, match=r"is i32, which cannot represent its value 2\.5\."):
        g.execute({x: VALUES, s: 2.5, y: np.empty(3, "f4")})


def test_python_numbers_are_rounded() -> None:
    g, x, s, y = scaled()
    out = np.empty(3, "f4")
    for value in (0.1, np.float64(0.1)):
        g.execute({x: VALUES, s: value, y: out})
        np.testing.assert_array_equal(out, np.float32(0.1) * VALUES)
    g.execute({x: VALUES, s: True, y: out})
    np.testing.assert_array_equal(out, VALUES)


def test_numbers_that_are_not_finite_are_numbers() -> None:
    g, x, s, y = scaled()
    out = np.empty(3, "f4")
    for value in (float("inf"), 3e38, float("nan"), -0.0):
        g.execute({x: VALUES, s: value, y: out})
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(out, np.float32(value) * VALUES)
        assert np.signbit(out[0]) == np.signbit(np.float32(value))


def test_large_whole_scalars_stay_exact() -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"))
    x = g.tensor([1], data_type="i64", name="x", is_pass_by_value=False)
    y = g.add(x, g.tensor_scalar(2**53 + 1), compute_data_type="i64").set_data_type("i64")
    g.build()
    out = np.empty(1, "i8")
    g.execute({x: np.int64([0]), y: out})
    assert out[0] == 2**53 + 1


def test_views_end_where_their_memory_does() -> None:
    cpu = weft.create_handle("cpu")
    array = weft.DeviceArray([6], "f32", handle=cpu).copy_from(np.arange(6, dtype="f4"))
    fitting = (0, [6], None), (5, [1], None), (4, [2], None), (1, [2], [4]), (6, [0], None)
    for offset, dims, strides in fitting:
        want = np.arange(6)[offset :: strides[0] if strides else 1][: dims[0]]
        np.testing.assert_array_equal(array.view(offset, dims, strides).numpy(), want)
    negative: Any = (-1, [2], None), (-6, [1], None)
    beyond: Any = (6, [1], None), (5, [2], None), (1, [2], [5]), (7, [0], None)
    for offset, dims, strides in negative + beyond:
        message = rf"a view of .* at element {offset} needs \d+ bytes"
        with pytest.raises(weft.BadParameterError, match=message):
            array.view(offset, dims, strides)
    part = array.view(2, [4])
    np.testing.assert_array_equal(part.view(1, [3]).numpy(), [3, 4, 5])
    for offset in (-1, 3):
        with pytest.raises(weft.BadParameterError, match=f"at element {offset} needs 8 bytes"):
            part.view(offset, [2])


# ---- Other shapes ------------------------------------------------------------------------------------------


def override(g: weft.Graph, pack: Any, *shapes: Any, workspace: Any = None, **more: Any) -> None:
    uids = list(range(1, 1 + len(shapes)))
    g.execute(pack, workspace, override_uids=uids, override_shapes=shapes, **more)


def test_overridden_shapes_are_those_that_buffers_must_have() -> None:
    g, x, y = doubled(dims=[4], is_override_shape_enabled=True)
    small, large, out = np.zeros(2, "f4"), np.arange(2000, dtype="f4"), np.empty(2000, "f4")
    with refusal(
        "execute: input 'x' (uid 1) needs 8000 bytes as f32[2000], its buffer has 8. Give a larger one."
    ):
        override(g, {x: small, y: out}, [2000], [2000])
    with refusal(
        "execute: output 'y' (uid 2) needs 8000 bytes as f32[2000], its buffer has 8. Give a larger one."
    ):
        override(g, {x: large, y: small}, [2000], [2000])
    override(g, {x: large, y: out}, [2000], [2000])
    np.testing.assert_array_equal(out, 2 * large)
    override(g, {x: large[:2], y: small}, [2], [2], override_strides=[[1], [1]])
    np.testing.assert_array_equal(small, [0, 2])
    with refusal(
        "execute: input 'x' (uid 1) is f32, its buffer is f64. Convert the array, or declare the tensor with "
        "its type."
    ):
        override(g, {x: np.zeros(2000), y: out}, [2000], [2000])


def test_an_array_that_fitted_is_measured_again_for_a_larger_shape() -> None:
    """Known or not from executions before, in either order of the sizes."""
    for before in ([4], [8], [5]):
        g, x, y = doubled(dims=[4], is_override_shape_enabled=True)
        for i, name in enumerate(("input 'x'", "output 'y'")):
            arrays = [np.arange(16, dtype="f4"), np.empty(16, "f4")]
            arrays[i] = arrays[i][:8]
            pack = dict(zip((x, y), arrays, strict=True))
            for _ in range(3):
                override(g, pack, before, before)
            for _ in range(3):
                g.execute(pack)
            override(g, pack, [8], [8])
            takes = f"execute: {name} (uid {i + 1}) needs 36 bytes as f32[9]"
            with refusal(f"{takes}, its buffer has 32. Give a larger one."):
                override(g, pack, [9], [9])
            g.execute(pack)
            np.testing.assert_array_equal(arrays[1][:4], [0, 2, 4, 6])
    other = np.arange(3, dtype="f4")
    override(g, {x: other, y: arrays[1]}, [3], [3])
    with refusal(
        "execute: input 'x' (uid 1) needs 16 bytes as f32[4], its buffer has 12. Give a larger one."
    ):
        g.execute({x: other, y: arrays[1]})


def test_an_array_that_was_checked_and_changed_in_place_is_checked_again() -> None:
    """Detects what NumPy and torch can change without a new object: strides, byte order, whether the array is
    writable, and whether it has a gradient."""
    torch = pytest.importorskip("torch")

    def turn(array: Any) -> None:
        array.t_()

    def swap(array: Any) -> None:
        array.dtype = array.dtype.newbyteorder()

    def lock(array: Any) -> None:
        array.flags.writeable = False

    def track(array: Any) -> None:
        array.requires_grad_()

    x, y = "input 'x' (uid 1)", "output 'y' (uid 2)"
    changes: Any = (
        (torch.ones(2, 2), turn, 0, f"{x} has strides [2, 1], its buffer [1, 2] for dims [2, 2]."),
        (np.ones((2, 2), "f4"), swap, 0, f"{x}: the array's bytes are not in this machine's order."),
        (np.ones((2, 2), "f4"), lock, 1, f"{y} has a read-only buffer."),
        (torch.ones(2, 2), track, 0, f"the tensor of {x} requires grad,"),
    )
    for array, change, i, message in changes:
        g, *tensors = doubled(dims=[2, 2])
        pack = dict(zip(tensors, (np.ones((2, 2), "f4"), np.ones((2, 2), "f4")), strict=True))
        pack[tensors[i]] = array
        for _ in range(3):
            g.execute(pack)
        change(array)
        for _ in range(2):
            with pytest.raises(weft.BadParameterError, match="^execute: " + re.escape(message)):
                g.execute(pack)


def test_the_same_shapes_with_other_strides() -> None:
    """Each stride pattern over the same memory needs its own plan."""
    g, x, y = doubled(dims=[4], is_override_shape_enabled=True)
    values, want = np.arange(10, dtype="f4"), {1: [0, 2, 4, 6, 8], 2: [0, 4, 8, 12, 16]}
    for step in (1, 2, 1, 2):
        out = np.zeros(5, "f4")
        override(g, {x: values, y: out}, [5], [5], override_strides=[[step], [1]])
        np.testing.assert_array_equal(out, want[step])


@pytest.mark.parametrize(
    ("shapes", "strides", "message"),
    [
        (
            [[2]],
            None,
            "execute: override_uids has 2 entries, override_shapes 1 and override_strides 1. Give one of "
            "each per tensor.",
        ),
        (
            [[2, 2], [2]],
            None,
            "execute: the tensor of uid 1 has 1 dim, its override shape [2, 2] and strides [2, 1]. Give a "
            "number per dimension.",
        ),
        ([[2.5], [2]], None, "execute: override shape [2.5]: number 0 is 2.5. Give an integer."),
    ],
)
def test_bad_overrides_are_refused(shapes: Any, strides: Any, message: str) -> None:
    g, x, y = doubled(dims=[4], is_override_shape_enabled=True)
    pack = {x: np.zeros(4, "f4"), y: np.zeros(4, "f4")}
    with refusal(message):
        g.execute(pack, override_uids=[1, 2], override_shapes=shapes, override_strides=strides)
    with refusal("execute: override_uids names uid 9, which no tensor has. Use one of 1, 2."):
        g.execute(pack, override_uids=[9], override_shapes=[[4]])


def test_overrides_take_the_operands_that_execute_takes() -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"), is_override_shape_enabled=True)
    x = g.tensor([2, 3], data_type="f32", name="x")
    s = g.tensor([1], data_type="f32", is_pass_by_value=True)
    y = g.add(g.mul(g.mul(x, s), g.tensor_scalar(10.0)), np.float32([[1, 2, 3]]))
    y.set_output(True)
    g.build()
    wide, out = np.arange(12, dtype="f4").reshape(4, 3), np.empty((4, 3), "f4")
    virtual = [t.uid for t in g._tensors if t.is_virtual]
    uids = [x.uid, *virtual, y.uid]
    g.execute({x: wide, s: 3.0, y: out}, override_uids=uids, override_shapes=[[4, 3]] * len(uids))
    np.testing.assert_array_equal(out, wide * 30 + np.float32([[1, 2, 3]]))
    with pytest.raises(weft.BadParameterError, match=r"the variant pack has no buffer for"):
        g.execute({x: wide, s: 3.0}, override_uids=uids, override_shapes=[[4, 3]] * len(uids))


def test_outputs_follow_overridden_inputs() -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"), is_override_shape_enabled=True)
    x, w = (g.tensor(dims, data_type="f32", name=name) for name, dims in (("x", [2, 3]), ("w", [3, 4])))
    y = g.relu(g.matmul(x, w)).set_name("y")
    g.build()
    wide, weights = np.ones((5, 3), "f4"), np.ones((3, 4), "f4")
    memory = np.zeros(40, "f4")
    options: Any = {"override_uids": [x.uid], "override_shapes": [[5, 3]]}
    with refusal(
        "execute: output 'y' (uid 4) needs 80 bytes as f32[5,4], its buffer has 32. Give a larger one."
    ):
        g.execute({x: wide, w: weights, y: memory[:8]}, **options)
    np.testing.assert_array_equal(memory, 0)
    g.execute({x: wide, w: weights, y: memory[:20]}, **options)
    np.testing.assert_array_equal(memory, np.repeat([3, 0], 20))
    g.execute({x: wide[:2], w: weights, y: memory[20:28]})
    np.testing.assert_array_equal(memory, np.repeat([3, 0], [28, 12]))
    saved = weft.Graph().deserialize(g.serialize())
    memory[:] = 0
    with refusal(
        "execute: output 'y' (uid 4) may change with the shapes of others, and the plan was loaded without "
        "its graph. Name it in override_uids, too."
    ):
        saved.execute({x.uid: wide, w.uid: weights, y.uid: memory[:8]}, **options)
    np.testing.assert_array_equal(memory, 0)
    options = {"override_uids": [x.uid, y.uid], "override_shapes": [[5, 3], [5, 4]]}
    saved.execute({x.uid: wide, w.uid: weights, y.uid: memory[:20]}, **options)
    np.testing.assert_array_equal(memory, np.repeat([3, 0], 20))


@pytest.mark.parametrize("size", [None, 1])
def test_overrides_find_a_workspace(size: int | None) -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"), is_override_shape_enabled=True)
    x = g.tensor([2, 3], data_type="f32")
    h = g.exp(x)
    y = g.softmax(h)
    g.create_execution_plan([a["engine"] for a in g.support()].index("cpu.reference"))
    g.build_plans()
    assert g.get_workspace_size() > 0
    values, out = np.random.default_rng(0).random((50, 3)).astype("f4"), np.empty((50, 3), "f4")
    workspace = None if size is None else np.empty(10000 + size, "u1")[size:]
    shapes = {"override_uids": [x.uid, h.uid, y.uid], "override_shapes": [[50, 3]] * 3}
    g.execute({x: values, y: out}, workspace, **shapes)  # type: ignore[arg-type]
    want = np.exp(np.exp(values.astype(float)))
    np.testing.assert_allclose(out, want / want.sum(1, keepdims=True), rtol=1e-5)
    needed = g.get_workspace_size(**shapes)  # type: ignore[arg-type]
    assert needed > g.get_workspace_size()
    assert g.get_workspace_size_plan_at_index(0, **shapes) == needed  # type: ignore[arg-type]
    g.execute({x: values, y: out}, np.empty(needed, "u1"), **shapes)  # type: ignore[arg-type]
    said = (
        rf"^execute: the workspace has {needed - 1} bytes, the plan needs {needed}\. Allocate "
        r"get_workspace_size\(override_uids=\.\., override_shapes=\.\.\) bytes, or leave it out\.$"
    )
    with pytest.raises(weft.BadParameterError, match=said):
        g.execute({x: values, y: out}, np.empty(needed - 1, "u1"), **shapes)  # type: ignore[arg-type]


# ---- Addresses alone ---------------------------------------------------------------------------------------


def test_addresses_in_the_order_of_uids() -> None:
    handle = weft.create_handle("cpu")
    g = weft.Graph(handle=handle, name="g")
    a = g.tensor([3], data_type="f32", uid=30)
    b = g.tensor([3], data_type="f32", uid=10)
    y = g.add(g.sub(a, b), g.tensor_scalar(1.0)).set_output(True).set_uid(20)
    g.build()
    g._prepare_variant_pack_template()
    assert g._get_variant_pack_uids_sorted() == [10, 20, 30]
    of_uid = {30: VALUES, 10: np.float32([0, 1, 5]), 20: np.empty(3, "f4")}
    ptrs = [of_uid[uid].ctypes.data for uid in g._get_variant_pack_uids_sorted()]
    g._execute_with_ptrs(ptrs, 0, int(handle))
    np.testing.assert_array_equal(of_uid[20], VALUES - of_uid[10] + 1)
    of_uid[20][:] = 0
    array = np.array(ptrs, "u8")
    for index in (-1, 0):
        g._execute_with_raw_ptrs(array.ctypes.data, 3, 0, int(handle), index)
        np.testing.assert_array_equal(of_uid[20], VALUES - of_uid[10] + 1)
    assert y.uid == 20
    with refusal("graph 'g': 2 addresses, expected 3. Give one for each uid of 10, 20, 30, in this order."):
        g._execute_with_ptrs(ptrs[:2], 0, handle)
    with refusal("handle: 12345 is not an open handle. Give the result of create_handle()."):
        g._execute_with_ptrs(ptrs, 0, 12345)


# ---- Names and outputs -------------------------------------------------------------------------------------


def test_out_is_a_dict() -> None:
    g, *_ = doubled()
    with refusal("plan: out is ndarray. Give a dict of outputs and their memory: out={'y': buffer}."):
        g.plan(x=X, out=np.empty((2, 3), "f4"))  # type: ignore[arg-type]


def test_a_name_of_two_tensors_is_no_name() -> None:
    g = weft.Graph("g", handle=weft.create_handle("cpu"))
    a, b = (g.tensor([3], data_type="f32", name="t") for _ in range(2))
    y = g.sub(a, b)
    g.build()
    said = (
        "2 tensors are named 't', of uids 1, 2. Use the tensors or uids with execute, or give them different "
        "names."
    )
    out = np.empty(3, "f4")
    g.execute({a: VALUES, b: VALUES, y: out})
    np.testing.assert_array_equal(out, 0)
    np.testing.assert_array_equal(g({a: VALUES, b: 2 * VALUES}), -VALUES)
    with refusal(f"graph 'g': {said}"):
        g.execute({"t": VALUES, y: out})
    with refusal(f"plan: {said}"):
        g.plan(t=VALUES)

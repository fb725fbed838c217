"""Graphs: tensors, inheritance, the life cycle step by step, queries, filters, saving, and exact messages."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import weft
from weft import backend, data_type, enums
from weft.planning import Planner


def says(message: str) -> str:
    return f"^{re.escape(message)}$"


def refusal(message: str) -> Any:
    """Asserts that the block raises BadParameterError with exactly this message."""
    return pytest.raises(weft.BadParameterError, match=says(message))


def small(**options: Any) -> tuple[weft.Graph, Any, Any, Any]:
    g = weft.Graph(handle=weft.create_handle("cpu"), **options)
    x = g.tensor([2, 3], data_type="f32", name="x")
    w = g.tensor([3, 4], data_type="f32", name="w")
    return g, x, w, g.matmul(x, w, name="mm")


X, W = np.arange(6, dtype="f4").reshape(2, 3), np.arange(12, dtype="f4").reshape(3, 4)


# ---- Tensors -----------------------------------------------------------------------------------------------


def test_setters_chain_and_getters_answer() -> None:
    g = weft.Graph()
    offsets = g.tensor([3, 1, 1, 1], data_type="i32")
    t = g.tensor([1, 8], [8, 1], weft.data_type.HALF)
    t.set_name("t").set_uid(7).set_data_type("bf16").set_dim([2, 8]).set_stride([16, 1])
    t.set_ragged_offset(offsets).set_ragged_offset_multiplier(4).set_alignment(32)
    t.set_vector_count_and_dimension(4, 1).set_reordering_type(weft.tensor_reordering.NONE)
    assert (t.get_name(), t.get_uid(), t.get_data_type()) == ("t", 7, data_type.BFLOAT16)
    assert (t.get_dim(), t.get_stride()) == ([2, 8], [16, 1])
    assert (t.get_ragged_offset(), t.get_ragged_offset_multiplier()) == (offsets, 4)
    assert (t.get_alignment(), t.get_vector_count_and_dimension()) == (32, (4, 1))
    assert t.get_reordering_type() is weft.tensor_reordering.NONE
    assert (t.name, t.uid, t.dims, t.strides, t.dtype) == ("t", 7, (2, 8), (16, 1), data_type.BFLOAT16)


def test_flags() -> None:
    t = weft.Graph().tensor([1], is_pass_by_value=True, is_virtual=True)
    assert (t.get_is_pass_by_value(), t.get_is_virtual(), t.get_output()) == (True, True, False)
    assert (t.is_by_value, t.is_virtual) == (True, True)
    t.set_is_virtual(False).set_is_pass_by_value(False)
    assert (t.get_is_pass_by_value(), t.get_is_virtual()) == (False, False)


def test_unset_values() -> None:
    t = weft.Graph().tensor()
    assert (t.get_dim(), t.get_stride(), t.get_uid()) == ([], [], -1)
    assert t.get_data_type() is data_type.NOT_SET
    assert (t.uid, t.dtype, t.get_alignment()) == (None, None, 16)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda g: g.tensor([4, 8], data_type="bf16", name="q", uid=3), "Tensor('q', uid=3, bf16[4,8])"),
        (lambda g: g.tensor(), "Tensor([?])"),
        (lambda g: g.tensor([2], is_virtual=True), "Tensor([2], virtual)"),
        (lambda g: g.tensor_scalar(2.5, name="s"), "Tensor('s', f32[1], by value)"),
        (lambda g: g.relu(g.tensor([2]), name="r"), "Tensor('r::y', [?], virtual)"),
    ],
)
def test_tensor_repr(make: Any, text: str) -> None:
    assert repr(make(weft.Graph())) == text


def test_graph_repr() -> None:
    g, _, _, y = small(name="mlp")
    assert repr(g) == "Graph('mlp': 1 op, 2 inputs, 1 output, not built)"
    g.relu(y)
    g.validate()
    assert repr(g) == "Graph('mlp': 2 ops, 2 inputs, 1 output, validated)"
    g.build()
    assert repr(g) == "Graph('mlp': 2 ops, 2 inputs, 1 output, built)"
    assert repr(weft.Graph()) == "Graph(0 ops, 0 inputs, 0 outputs, not built)"


def test_tensor_like_takes_over_shape_strides_and_type() -> None:
    g = weft.Graph()
    strided = np.zeros((4, 6), "f8").T[::2]
    t = g.tensor_like(strided, name="t")
    assert (t.dims, t.strides, t.dtype, t.name) == ((3, 4), (2, 6), data_type.DOUBLE, "t")
    again = g.tensor_like(t)
    assert (again.dims, again.strides, again.dtype) == (t.dims, t.strides, t.dtype)


def test_tensor_like_makes_host_scalars_by_value() -> None:
    g = weft.Graph()
    assert g.tensor_like(np.ones((1, 1), "f4")).is_by_value
    assert not g.tensor_like(np.ones((1, 2), "f4")).is_by_value
    assert not g.tensor_like(np.ones((1, 1), "f4"), is_pass_by_value=False).is_by_value


def test_tensor_like_keeps_the_alignment_that_an_array_has() -> None:
    g = weft.Graph()
    memory = np.zeros(64, "f4")
    start = -memory.ctypes.data % 64 // 4
    assert g.tensor_like(memory[start : start + 8]).get_alignment() == 16
    assert g.tensor_like(memory[start + 1 : start + 8]).get_alignment() == 4


def test_backward_strides_are_refused() -> None:
    with refusal(
        "tensor 't': strides [-1] go backwards. Copy the array, for example with numpy.ascontiguousarray."
    ):
        weft.Graph().tensor_like(np.arange(3, dtype="f4")[::-1], name="t")


def test_uids_are_kept_and_the_others_avoid_them() -> None:
    g = weft.Graph()
    a = g.tensor([2], data_type="f32")
    b = g.tensor([2], data_type="f32", uid=1)
    y = g.add(a, b)
    g.validate()
    assert (a.uid, b.uid, y.uid) == (2, 1, 3)
    assert g.query_tensor_attributes_of_uid(3) is y
    with pytest.raises(weft.BadParameterError, match=re.escape("no tensor has uid 9. It has 2, 1, 3.")):
        g.query_tensor_attributes_of_uid(9)


def test_duplicate_uids_are_refused() -> None:
    g = weft.Graph()
    g.add(g.tensor([2], data_type="f32", uid=1, name="a"), g.tensor([2], data_type="f32", uid=1, name="b"))
    with pytest.raises(weft.BadParameterError, match="are two descriptors with the same uid"):
        g.build()


# ---- Types and outputs -------------------------------------------------------------------------------------


def test_types_are_inherited_from_the_graph() -> None:
    g = weft.Graph(io_data_type="bf16", intermediate_data_type="f32", compute_data_type="f32")
    x, w = g.tensor([2, 3]), g.tensor([3, 4], data_type="f16")
    h = g.matmul(x, w)
    y = g.relu(h)
    g.validate()
    assert [t.dtype for t in (x, w, h, y)] == [
        data_type.BFLOAT16,
        data_type.HALF,
        data_type.FLOAT,
        data_type.BFLOAT16,
    ]


def test_statistics_are_not_narrowed_to_the_graph_type() -> None:
    g = weft.Graph(io_data_type="bf16")
    y, mean, inv = g.layernorm("TRAINING", g.tensor([2, 8]), g.tensor([1, 8]), g.tensor([1, 8]), 1e-5)
    g.validate()
    assert (y.dtype, mean.dtype, inv.dtype) == (data_type.BFLOAT16, data_type.FLOAT, data_type.FLOAT)


def test_not_set_is_none() -> None:
    g = weft.pygraph(io_data_type=data_type.NOT_SET)
    y = g.neg(g.tensor([2], data_type="f16"))
    g.validate()
    assert y.dtype is data_type.HALF


def test_unread_results_are_outputs_unless_some_are_marked() -> None:
    g, _, _, y = small()
    z = g.relu(y)
    side = g.exp(y)
    g.validate()
    assert (y.get_output(), z.get_output(), side.get_output()) == (False, True, True)
    g, _, _, y = small()
    z = g.relu(y)
    side = g.exp(y).set_output(True)
    g.validate()
    assert (y.get_output(), z.get_output(), side.get_output()) == (False, False, True)


def test_a_read_result_can_be_an_output() -> None:
    g, x, w, y = small()
    y.set_output(True)
    z = g.neg(y).set_output(True)
    h, out = np.empty((2, 4), "f4"), np.empty((2, 4), "f4")
    g.build().execute({x: X, w: W, y: h, z: out})
    np.testing.assert_array_equal(h, X @ W)
    np.testing.assert_array_equal(out, -(X @ W))


def test_shapes_are_inferred() -> None:
    g, _, _, y = small()
    assert (y.dims, y.dtype) == ((), None)
    g.validate()
    assert (y.dims, y.strides, y.dtype) == ((2, 4), (4, 1), data_type.FLOAT)


def test_norm_inference_keeps_no_statistics() -> None:
    g = weft.Graph()
    x, scale = g.tensor([2, 8], data_type="f32"), g.tensor([1, 8], data_type="f32")
    assert g.layernorm(weft.norm_forward_phase.INFERENCE, x, scale, None, 1e-5)[1:] == (None, None)
    assert g.rmsnorm("INFERENCE", x, scale, epsilon=1e-5)[1] is None
    assert g.rmsnorm_backward(x, x, scale, None, False, epsilon=1e-5)[2] is None


# ---- Numbers as operands -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "dtype", "expected"),
    [
        (lambda g, x: g.sub(1, x), "f16", data_type.HALF),
        (lambda g, x: g.mul(x, 2), "bf16", data_type.BFLOAT16),
        (lambda g, x: g.mul(x, 0.1), "f64", data_type.DOUBLE),
        (lambda g, x: g.binary_select(1, x, g.cmp_gt(x, 2)), "f32", data_type.FLOAT),
        (lambda g, x: g.add(3, x), "i32", data_type.INT32),
        (lambda g, x: g.add(x, 0.5), "i32", data_type.FLOAT),
        (lambda g, x: g.add(x, 2**40), "i32", data_type.INT64),
        (lambda g, x: g.mul(g.identity(x), 1e6), "f16", data_type.FLOAT),
        (lambda g, x: g.add(g.identity(x), 3), "f16", data_type.FLOAT),  # FLOAT is number 0
    ],
)
def test_numbers_take_the_type_of_the_other_operand(make: Any, dtype: str, expected: Any) -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"))
    y = make(g, g.tensor([4], data_type=dtype, name="x"))
    g.validate()
    numbers = [t for t in g._tensors if t.number is not None]
    assert all(t.constant is not None for t in numbers)
    assert numbers[-1].dtype is expected
    g.build()
    assert y.get_output()


def test_numbers_compute() -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"), io_data_type="f16")
    x = np.float32([1, 2, 3])
    y = g.sub(1, x)
    z = g.binary_select(7, y, g.cmp_lt(y, -1.5)).set_output(True)
    assert repr(g) == "Graph(3 ops, 1 input, 1 output, not built)"
    g.build()
    out = np.empty(3, "f2")
    g.execute({z: out})
    np.testing.assert_array_equal(out, [0, -1, 7])


def test_epsilons_stay_precise() -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"), io_data_type="bf16")
    g.rmsnorm("INFERENCE", g.tensor([2, 8]), g.tensor([1, 8]), None, 1e-5)
    g.validate()
    assert [t.dtype for t in g._tensors if t.number is not None] == [data_type.FLOAT]


# ---- Given wrongly -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda g: g.tensor([2.7, 3], name="x"),
            "tensor 'x': dim [2.7, 3]: number 0 is 2.7. Give an integer.",
        ),
        (lambda g: g.tensor([2], [0.5]), "tensor: stride [0.5]: number 0 is 0.5. Give an integer."),
        (lambda g: g.tensor(5), "tensor: dim is 5. Give a list of integers."),
        (
            lambda g: g.tensor([2], uid=2**63),
            f"tensor: uid is {2**63}, which does not fit into 64 bits. Give a smaller one.",
        ),
        (
            lambda g: g.tensor([2**64]),
            f"tensor: dim [{2**64}]: number 0 is {2**64}, which does not fit into 64 bits. Give a smaller "
            "one.",
        ),
        (lambda g: g.tensor([2]).set_alignment("a"), "tensor: alignment is 'a'. Give an integer."),
        (
            lambda g: g.tensor_like(np.arange(3.0)[::-1]),
            "tensor: strides [-1] go backwards. Copy the array, for example with numpy.ascontiguousarray.",
        ),
        (
            lambda g: g.slice(g.tensor(), [slice(0, None)]),
            "slice: the slice of dimension 0 has no stop, and the input has no dims yet. Give it.",
        ),
        (
            lambda g: g.slice(g.tensor([4]), [-1], name="s"),
            "slice 's': dimension 0 is -1. Count from the start: give 0 or more.",
        ),
        (lambda g: g.slice(g.tensor([4]), ["a"]), "slice: dimension 0 is 'a'. Give an integer."),
        (
            lambda g: g.tensor_scalar(1e300, data_type="f32"),
            "tensor_scalar: the value is 1e+300, which f32 cannot represent. Give another data_type.",
        ),
    ],
)
def test_what_is_given_wrongly_is_refused_at_once(make: Any, message: str) -> None:
    with refusal(message):
        make(weft.Graph())


def test_dims_may_be_arrays() -> None:
    assert weft.Graph().tensor(np.array([2, 3]), np.array([3, 1])).dims == (2, 3)


def test_operations_without_a_name_are_called_by_their_kind() -> None:
    g = weft.Graph(io_data_type="f32")
    q = g.tensor([1, 1, 2, 4])
    both = ": use_padding_mask needs seq_len_q and seq_len_kv. Give both, [B, 1, 1, 1] of INT32."
    with refusal("sdpa" + both):
        g.sdpa(q, q, q, use_padding_mask=True)
    with refusal("sdpa_backward" + both):
        g.sdpa_backward(q, q, q, q, q, q, use_padding_mask=True)


def test_an_index_keeps_its_dimension() -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"))
    x = np.arange(12, dtype="f4").reshape(3, 4)
    g.slice(x, [1, slice(0, 2)])
    np.testing.assert_array_equal(g(), x[1:2, :2])


def test_an_input_is_no_output() -> None:
    g, x, *_ = small()
    x.set_output(True)
    with refusal(
        "tensor 'x': set_output(True) was called, but it is an input: no operation computes it. Call it on "
        "the result of an operation."
    ):
        g.build()


def test_what_an_operation_writes_may_be_marked() -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"))
    stats = g.tensor(name="stats", data_type="f32").set_output(True)
    y = g.softmax(np.float32([[0, 0]]), stats=stats).set_output(True)
    g.build()
    out, log_sum = np.empty((1, 2), "f4"), np.empty((1, 1), "f4")
    g.execute({y: out, stats: log_sum})
    np.testing.assert_allclose(log_sum, np.log(2), rtol=1e-6)


# ---- Life cycle --------------------------------------------------------------------------------------------


def test_step_by_step() -> None:
    g, x, w, y = small()
    y.set_output(True)
    g.validate()
    g.build_operation_graph()
    g.create_execution_plans([weft.heur_mode.A, weft.heur_mode.FALLBACK])
    g.check_support()
    g.build_plans(weft.build_plan_policy.ALL)
    assert g.get_execution_plan_count() >= 1
    out = np.empty((2, 4), "f4")
    for i in range(g.get_execution_plan_count()):
        workspace = np.empty(g.get_workspace_size_plan_at_index(i), np.uint8)
        out[:] = np.nan
        g.execute_plan_at_index({x: X, w: W, y: out}, workspace, i)
        np.testing.assert_array_equal(out, X @ W)
        assert re.fullmatch(r"eng\d+(_k\d+=\d+)*", g.get_plan_name_at_index(i))
        assert g.get_behavior_notes_for_plan_at_index(i) == []
    assert g.get_plan_name() == g.get_plan_name_at_index(0)
    assert g.get_behavior_notes() == []


def test_steps_may_be_left_out() -> None:
    g, x, w, y = small()
    g.build_plans()
    out = np.empty((2, 4), "f4")
    g.execute({x: X, w: W, y: out}, np.empty(g.get_workspace_size(), np.uint8))
    np.testing.assert_array_equal(out, X @ W)


def test_a_block_builds_on_leaving() -> None:
    with weft.Graph() as g:
        g.relu(g.tensor([2], data_type="f32", name="x"))
    np.testing.assert_array_equal(g.plan(x=np.float32([-1, 2])), [0, 2])


def test_a_failing_block_is_not_built() -> None:
    with pytest.raises(ZeroDivisionError), weft.Graph() as g:
        raise ZeroDivisionError
    assert "not built" in repr(g)


def test_engines_and_knobs_by_hand() -> None:
    g, x, w, y = small()
    names = [answer["engine"] for answer in g.support()]
    assert g.get_engine_count() == len(names)
    engine = names.index("cpu.reference")
    assert all(knob.min <= knob.max for knob in g.get_knobs_for_engine(engine))
    g.create_execution_plan(engine, {})
    g.check_support()
    g.build_plan_at_index(0)
    assert g.plan.engine == "cpu.reference"
    out = np.empty((2, 4), "f4")
    g.execute({x: X, w: W, y: out})
    np.testing.assert_array_equal(out, X @ W)


def test_an_unknown_engine_is_refused() -> None:
    g, *_ = small()
    count = g.get_engine_count()
    with pytest.raises(weft.BadParameterError, match=rf"global_index is 99; the engines are 0..{count - 1}."):
        g.create_execution_plan(99, {})


def test_deselecting_everything_reports_the_deselected_engines() -> None:
    g, *_ = small(name="mlp")
    g.deselect_engines(["cpu."])
    with pytest.raises(weft.NotSupportedError, match=r"^graph 'mlp': no engine can run it\.") as caught:
        g.build()
    assert caught.value.status == weft.NotSupportedError.default
    assert (
        f"{'cpu.reference'} (eng{g.get_engine_count() - 1}): deselected by its name." in caught.value.reasons
    )


def test_reason_of_a_candidate_that_cannot_be_built_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Planner._make

    def fail_first(planner: Planner, index: int, with_code: bool = False) -> backend.Descriptor:
        if index == 0:
            raise weft.ExecutionError("no memory for its kernels")
        return make(planner, index, with_code)

    monkeypatch.setattr(Planner, "_make", fail_first)
    g, *_ = small()
    g.build()
    assert [reason.endswith(": no memory for its kernels") for reason in g.get_refusals()] == [True]


def test_filters_keep_what_fits() -> None:
    g, *_ = small()
    g.deselect_numeric_notes([weft.numerical_note.TENSOR_CORE]).select_numeric_notes([])
    g.deselect_behavior_notes([weft.behavior_note.RUNTIME_COMPILATION]).select_behavior_notes([])
    g.deselect_workspace_greater_than(1 << 40).deselect_engines(["eng0_k999"])
    assert g.build().plan


def test_filters_come_before_the_plan() -> None:
    g, *_ = small(name="mlp")
    g.build()
    with pytest.raises(weft.BadParameterError) as caught:
        g.deselect_engines(["cpu."])
    assert str(caught.value).endswith(
        "graph 'mlp': it is built, and filters would not change its plan. Filter before build()."
    )


def test_workspace_limit_filters() -> None:
    g, _, _, y = small()
    g.relu(y)
    g.deselect_workspace_greater_than(-1)
    with pytest.raises(weft.NotSupportedError, match=r"deselected by its workspace of \d+ bytes"):
        g.build()


def test_selecting_a_note_that_no_engine_has() -> None:
    g, *_ = small()
    g.select_numeric_notes([weft.numerical_note.FFT])
    with pytest.raises(weft.NotSupportedError, match="deselected by its numerical notes"):
        g.build()


def test_heuristics_take_names() -> None:
    g, *_ = small()
    g.create_execution_plans("FALLBACK")
    g.build_plans()
    assert g.plan.engine == "cpu.reference"


def test_heuristics_are_asked_no_more_when_all_engines_are_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question plans the graph on every engine."""
    made: list[int] = []
    finalize = backend.Descriptor.finalize

    def noted(self: backend.Descriptor) -> None:
        made.append(self.kind)
        finalize(self)

    monkeypatch.setattr(backend.Descriptor, "finalize", noted)
    g, *_ = small()
    g.build([weft.heur_mode.A, weft.heur_mode.B, weft.heur_mode.FALLBACK])
    assert made.count(enums.descriptor_type.ENGINEHEUR_DESCRIPTOR) == 1
    other, *_ = small()
    other.create_execution_plans(["FALLBACK", "A"])
    count = g.get_execution_plan_count()
    assert {g.get_plan_name_at_index(i) for i in range(count)} == {
        other.get_plan_name_at_index(i) for i in range(other.get_execution_plan_count())
    }


def test_attributes_are_read_by_one_call_up_to_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (15, 16, 17, 40):
        g = weft.Graph(io_data_type="f32")
        total = g.tensor([2], name="x0")
        for i in range(1, count - 1):
            total = g.add(total, g.tensor([2], name=f"x{i}"))
        total.set_output(True)
        assert len(g.build().plan.slots) == count
    seen: list[int] = []
    read = backend.Descriptor._read

    def noted(*given: Any) -> int:
        seen.append(1)
        return read(*given)

    monkeypatch.setattr(backend.Descriptor, "_read", noted)
    name = enums.attribute_name.EXECUTION_PLAN_SLOT_UNIQUE_IDS_EXT
    assert len(g.plan.descriptor.get(name, "INT64")) == 40
    assert len(seen) == 2
    assert len(g.plan.descriptor.get(enums.attribute_name.EXECUTION_PLAN_WORKSPACE_SIZE, "INT64")) == 1
    assert len(seen) == 3


def test_open_source_engines_are_all_engines() -> None:
    g, *_ = small()
    g.create_execution_plans([weft.heur_mode.OPENSOURCE])
    other, *_ = small()
    other.create_execution_plans([weft.heur_mode.A])
    assert g.get_execution_plan_count() == other.get_execution_plan_count() > 0
    assert g.get_plan_name_at_index(0) == other.get_plan_name_at_index(0)


def test_key_is_that_of_the_computation() -> None:
    keys = []
    for name, rows in (("a", 2), ("b", 2), ("a", 3)):
        g = weft.Graph(name=name)
        g.relu(g.tensor([rows, 3], data_type="f32", name=name))
        keys.append(g.key())
    assert keys[0] == keys[1] != keys[2]


# ---- Execution ---------------------------------------------------------------------------------------------


def test_buffers_by_tensor_uid_and_name() -> None:
    g, x, w, y = small()
    g.build()
    out = np.empty((2, 4), "f4")
    g.execute({x: X, w.uid: W, "mm::C": out})
    np.testing.assert_array_equal(out, X @ W)
    out[:] = 0
    g.execute({x.uid: X.ctypes.data, "w": W.ctypes.data, y: out.ctypes.data})
    np.testing.assert_array_equal(out, X @ W)


def test_scalars_by_value() -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"))
    x = g.tensor([3], data_type="f32")
    s = g.tensor([1], [1], "f32", is_pass_by_value=True, name="s")
    r = g.tensor_scalar(10.0, name="r")
    y = g.add(g.mul(x, s), r)
    g.build()
    out, values = np.empty(3, "f4"), np.float32([1, 2, 3])
    g.execute({x: values, s: np.float32([2]), y: out})
    np.testing.assert_array_equal(out, [12, 14, 16])
    g.execute({x: values, s: 3.0, r: 1.0, y: out})
    np.testing.assert_array_equal(out, [4, 7, 10])


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i32", "i64", "u8"])
def test_scalars_of_any_type(dtype: str) -> None:
    g = weft.Graph()
    g.mul(
        g.tensor([3], data_type="f32", name="x"),
        g.tensor([1], data_type=dtype, is_pass_by_value=True, name="s"),
    )
    g.build()
    np.testing.assert_array_equal(g.plan(x=np.float32([1, 2, 3]), s=3.0), [3, 6, 9])


def test_numbers_of_numpy_are_scalars() -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"))
    x = g.tensor([3], data_type="f32", name="x")
    s = g.tensor([1], data_type="f32", is_pass_by_value=True, name="s")
    y = g.mul(x, s)
    g.build()
    out, values = np.empty(3, "f4"), np.float32([1, 2, 3])
    g.execute({x: values, s: np.float64(2), y: out})
    np.testing.assert_array_equal(out, [2, 4, 6])
    np.testing.assert_array_equal(g.plan(x=values, s=np.float16(3)), [3, 6, 9])
    with refusal(
        "execute: input 's' (uid 2) is by value and its buffer is 3, which is not an address. Give 3.0, or "
        "an array."
    ):
        g.execute({x: values, s: 3, y: out})
    with refusal(
        "execute: input 'x' (uid 1): float32 is a number without memory of its own. Give an array of one "
        "element."
    ):
        g.execute({x: np.float32(1), s: 1.0, y: out})


@pytest.mark.parametrize("dtype", ["f32", "f16", "i64"])
def test_scalars_take_the_declared_type(dtype: str) -> None:
    assert weft.Graph().tensor_scalar(2, data_type=dtype).dtype is weft.data_type_of(dtype)


def test_numbers_of_numpy_are_operands() -> None:
    g = weft.Graph()
    g.mul(np.float32([1, 2]), np.float16(0.5))
    np.testing.assert_array_equal(g(), [0.5, 1])
    assert len(g.plan.slots) == 2


def test_arrays_of_one_element_are_operands() -> None:
    g = weft.Graph()
    g.mul(np.float32([1, 2]), np.float32([3]))
    np.testing.assert_array_equal(g(), [3, 6])
    g = weft.Graph()
    g.neg(np.float32([[3]]))
    np.testing.assert_array_equal(g(), [[-3]])


def test_constants_are_part_of_the_plan() -> None:
    g = weft.Graph()
    x = g.tensor([3], data_type="f32", name="x")
    g.mul(x, g.tensor_scalar(0.5, weft.scalar_type.COMPILE_TIME_CONST))
    g.build()
    assert [slot.name for slot in g.plan.slots] == ["x", "mul_0::y"]
    np.testing.assert_array_equal(g.plan(x=np.float32([1, 2, 3])), [0.5, 1, 1.5])


def test_arrays_are_operands() -> None:
    g = weft.Graph()
    g.add(g.matmul(X, W), 1)
    np.testing.assert_array_equal(g(), X @ W + 1)
    assert repr(g) == "Graph(2 ops, 2 inputs, 1 output, built)"


def test_an_array_used_twice_is_one_tensor() -> None:
    g = weft.Graph()
    g.mul(X, X)
    np.testing.assert_array_equal(g(), X * X)
    assert len(g.plan.slots) == 2


def test_overridden_shapes() -> None:
    g, x, w, y = small(is_override_shape_enabled=True)
    g.build()
    wide = np.arange(15, dtype="f4").reshape(5, 3)
    out = np.empty((5, 4), "f4")
    g.execute(
        {x: wide, w: W, y: out},
        override_uids=[x.uid, y.uid],
        override_shapes=[[5, 3], [5, 4]],
        override_strides=[[3, 1], [4, 1]],
    )
    np.testing.assert_array_equal(out, wide @ W)


def test_calling_the_graph() -> None:
    g, x, _, _ = small()
    np.testing.assert_array_equal(g(X, W), X @ W)
    np.testing.assert_array_equal(g({x: X, "w": W}), X @ W)
    np.testing.assert_array_equal(g(w=W, x=X), X @ W)


def test_inputs_and_outputs_by_position() -> None:
    g, _, _, y = small(inputs=["mm::B", "mm::A"], outputs=["neg_1::y", "mm::C"])
    y.set_output(True)
    g.neg(y).set_output(True)
    minus, product = g(W, X)
    np.testing.assert_array_equal(product, X @ W)
    np.testing.assert_array_equal(minus, -product)
    g.set_io_tuples(["x", "w"], ["mm::C"])
    np.testing.assert_array_equal(g(X, W), X @ W)
    assert g.get_behavior_notes() == []


def test_positions_name_tensors() -> None:
    g, *_ = small(inputs=["mm::IN_1", "mm::IN_0"], outputs=["mm::OUT_0"])
    np.testing.assert_array_equal(g(W, X), X @ W)


def test_wrong_names_of_inputs_and_outputs() -> None:
    for options in ({"inputs": ["q"]}, {"outputs": ["mm::OUT_1"]}):
        (name,) = next(iter(options.values()))
        g, *_ = small(name="mlp", **options)
        with refusal(f"graph 'mlp': no tensor is named '{name}'. It has x, w, mm::C."):
            g.build()
    g, _, _, y = small(name="mlp", outputs=["mm::C"])
    g.relu(y)
    with refusal(
        "graph 'mlp': outputs names Tensor('mm::C', uid=3, f32[2,4], virtual), which has no memory. Call "
        "set_output(True) on it, or name another."
    ):
        g.build()


def test_workspace_is_found_when_none_is_given() -> None:
    g, x, w, y = small()
    z = g.softmax(y)
    g.create_execution_plan([a["engine"] for a in g.support()].index("cpu.reference"))
    g.build_plans()
    assert g.get_workspace_size() > 0
    out = np.empty((2, 4), "f4")
    for workspace in (None, np.empty(g.get_workspace_size() + 1, np.uint8)[1:]):
        out[:] = np.nan
        g.execute({x: X, w: W, z: out}, workspace)
        np.testing.assert_allclose(out.sum(1), 1, rtol=1e-6)


# ---- Saving ------------------------------------------------------------------------------------------------


def test_a_plan_can_be_saved_and_loaded() -> None:
    g, _, _, y = small(name="mlp")
    saved = g.build().serialize()
    for arguments in ((saved,), (weft.create_handle("cpu"), saved)):
        loaded = weft.Graph()
        loaded.deserialize(*arguments)
        out = np.empty((2, 4), "f4")
        loaded.execute({1: X, "w": W, y.uid: out})
        np.testing.assert_array_equal(out, X @ W)
        np.testing.assert_array_equal(loaded.plan(x=X, w=W), X @ W)
        assert loaded.query_tensor_attributes_of_uid(1).dims == (2, 3)
        assert repr(loaded) == "Graph(0 ops, 2 inputs, 1 output, built)"


def test_damaged_bytes_are_refused() -> None:
    g, *_ = small()
    saved = bytearray(g.build().serialize())
    saved[len(saved) // 2] ^= 0x55
    with pytest.raises(weft.WeftError):
        weft.Graph().deserialize(bytes(saved))


# ---- Messages ----------------------------------------------------------------------------------------------


def test_operands_of_another_graph_are_refused() -> None:
    other = weft.Graph().tensor([2], data_type="f32", name="o")
    with refusal(
        "neg 'n': x, Tensor('o', f32[2]), belongs to another graph. Create it with this graph's tensor()."
    ):
        weft.Graph().neg(other, name="n")


def test_operands_that_are_no_arrays_are_refused() -> None:
    with refusal("neg 'n': x is str. Give a tensor of the graph, an array or a number."):
        weft.Graph().neg("x", name="n")  # type: ignore[arg-type]


def test_what_is_no_operand_and_no_name_is_refused_at_the_call() -> None:
    g = weft.Graph(io_data_type="f32")
    x: Any = g.tensor([2, 3], name="x")
    with refusal("matmul 'mm': B is None. Give a tensor of the graph, an array or a number."):
        g.matmul(x, None, name="mm")  # type: ignore[arg-type]
    with refusal("tensor: name is 3. Give a string."):
        g.tensor([2], name=3)  # type: ignore[arg-type]
    with refusal("tensor 'x': name is None. Give a string."):
        x.set_name(None)


def test_execution_needs_a_plan() -> None:
    g, *_ = small(name="mlp")
    with refusal("graph 'mlp': it has no plan yet. Call build() first."):
        g.execute({})
    with refusal(
        "graph 'mlp': there is no plan 3: no plans have been created. Call create_execution_plans() first."
    ):
        g.build_plan_at_index(3)
    g.create_execution_plans()
    count = g.get_execution_plan_count()
    with refusal(f"graph 'mlp': there is no plan 9: expected 0 to {count - 1}. Choose one of these."):
        g.build_plan_at_index(9)
    with refusal("graph 'mlp': plan 0 is not built. Call build_plan_at_index(0)."):
        g.execute_plan_at_index({}, None, 0)


def test_a_missing_buffer_is_named() -> None:
    g, x, _, _ = small(name="mlp")
    g.build()
    with refusal("graph 'mlp': the variant pack has no buffer for input 'w' (uid 2). Add it."):
        g.execute({x: X})


def test_a_buffer_given_twice_does_not_hide_a_missing_one() -> None:
    g, x, w, y = small(name="mlp")
    g.build()
    out = np.empty((2, 4), "f4")
    g.execute({x: X, w: W, y: out})
    with refusal("graph 'mlp': the variant pack has no buffer for input 'w' (uid 2). Add it."):
        g.execute({x: X, "x": X, y: out})


def test_handles_are_handles() -> None:
    with refusal("graph 'mlp': handle is 7. Give the result of create_handle(), or None."):
        weft.Graph("mlp", handle=7)  # type: ignore[arg-type]


def test_cuda_graphs_are_captured() -> None:
    g, *_ = small(name="mlp")
    message = "graph 'mlp': plans are not written into CUDA graphs directly. Capture the stream of execute()"
    with pytest.raises(weft.NotSupportedError, match=re.escape(message)):
        g.populate_cuda_graph(g.handle, {}, None, 0)


def test_a_foreign_buffer_is_named() -> None:
    g, *_ = small(name="mlp")
    g.build()
    with refusal(
        "graph 'mlp': the variant pack names 99, which is not one of its tensors. Use its tensors, "
        "uids or names."
    ):
        g.execute({99: X})


def test_a_small_buffer_is_refused() -> None:
    g, x, *_ = small()
    g.build()
    with refusal(
        "execute: input 'x' (uid 1) needs 24 bytes as f32[2,3], its buffer has 8. Give a larger one."
    ):
        g.execute({x: np.zeros(2, "f4")})


def test_a_packed_buffer_is_too_small_for_strides_with_gaps() -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"))
    x = g.tensor([2, 3], [8, 1], "f32", name="x")
    y = g.neg(x).set_dim([2, 3]).set_stride([3, 1])
    g.build()
    wide, out = np.zeros((2, 8), "f4"), np.empty((2, 3), "f4")
    g.execute({x: wide, y: out})
    g.execute({x: wide[:, :3], y: out})
    with refusal(
        "execute: input 'x' (uid 1) needs 44 bytes as f32[2,3], its buffer has 24. Give a larger one."
    ):
        g.execute({x: X, y: out})


def test_a_small_workspace_is_refused() -> None:
    g, x, w, y = small()
    z = g.softmax(y)
    g.create_execution_plan([a["engine"] for a in g.support()].index("cpu.reference"))
    g.build_plans()
    size = g.get_workspace_size()
    with refusal(
        f"execute: the workspace has 8 bytes, the plan needs {size}. Allocate "
        "get_workspace_size() bytes, or leave it out."
    ):
        g.execute({x: X, w: W, z: np.empty((2, 4), "f4")}, np.empty(8, np.uint8))


def test_a_validated_graph_does_not_change() -> None:
    g, x, *_ = small(name="mlp")
    g.validate()
    with refusal(
        "Tensor('x', uid=1, f32[2,3]): the graph is validated, so its tensors cannot change. Set it before "
        "validate() or build()."
    ):
        x.set_dim([4, 3])
    with refusal("graph 'mlp': it is validated and accepts no more tensors. Create another graph."):
        g.tensor([2])


def test_unknown_names_are_refused() -> None:
    g, *_ = small(name="mlp")
    with refusal("graph 'mlp': no tensor is named 'q'. It has x, w, mm::C."):
        g({"q": X})


def test_an_empty_graph_is_refused() -> None:
    with refusal("graph: it has no operations. Add one, for example matmul(A, B)."):
        weft.Graph().build()


def test_messages_of_the_library_name_the_operation() -> None:
    g = weft.Graph()
    g.matmul(g.tensor([2, 3], data_type="f32"), g.tensor([2, 3], data_type="f32"), name="qk")
    message = (
        "matmul 'qk': inner sizes differ: A is [2,3] (K=3), B is [2,3] (K=2). Swap B's last two dims and "
        "strides if it is [N,K]."
    )
    with pytest.raises(weft.BadParameterError, match=says(message)) as caught:
        g.validate()
    assert caught.value.status.name == "BAD_PARAM_SHAPE_MISMATCH"
    assert isinstance(caught.value, ValueError)


def test_options_of_a_wrong_type_are_refused() -> None:
    g = weft.Graph()
    x = g.tensor([1, 2, 8, 8], data_type="f32")
    with refusal("gen_index 'i': axis is 'zero'. Give an integer."):
        g.gen_index(x, axis="zero", name="i")  # type: ignore[arg-type]
    with refusal("relu 'relu_0': relu_lower_clip_slope is 'r'. Give a number."):
        g.relu(x, "r")  # type: ignore[arg-type]
    with refusal("conv_fprop 'c': pre_padding is 'same'. Give an integer."):
        g.conv_fprop(x, x, padding="same", name="c")  # type: ignore[arg-type]
    with refusal("conv_fprop 'c': stride is 1.5. Give an integer."):
        g.conv_fprop(x, x, stride=[1, 1.5], name="c")  # type: ignore[list-item]
    assert g._operations == []


def test_a_missing_type_is_reported_in_terms_of_arguments() -> None:
    g = weft.Graph()
    g.add(g.relu(g.tensor([2], data_type="f32")), g.tensor([2], name="b"), name="s")
    remedy = "Give data_type= to its tensor(), or io_data_type= to the graph."
    with refusal(f"pointwise 's': b, tensor 'b', has no data type. {remedy}"):
        g.build()
    g = weft.Graph(io_data_type="f32")
    g.concatenate([g.tensor([2], name="a"), g.tensor(name="b")], axis=0, name="c")
    with refusal("concat 'c': inputs, tensor 'b', has no dims. Give dim= to its tensor()."):
        g.build()
    g = weft.Graph(io_data_type="f32")  # what an operation writes has both
    x, stats = g.tensor([2, 3], name="x"), g.tensor(name="stats")
    g.softmax(x, stats=stats)
    g.add(stats, 1)
    g.validate()
    assert stats.dims == (2, 1)


def windows(x: Any, size: int, padding: int, stride: int, dilation: int) -> Any:
    """Those of all spatial dimensions, at the end of the dims."""
    spatial = tuple(range(2, x.ndim))
    padded = np.pad(x.astype("f8"), [(0, 0)] * 2 + [(padding, padding)] * len(spatial))
    seen = np.lib.stride_tricks.sliding_window_view(
        padded, [dilation * (size - 1) + 1] * len(spatial), axis=spatial
    )
    step = (slice(None, None, stride),) * len(spatial)
    return seen[(slice(None),) * 2 + step + (slice(None, None, dilation),) * len(spatial)]


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_one_number_counts_for_all_spatial_dimensions(rank: int) -> None:
    random = np.random.default_rng(rank)
    x = random.integers(-3, 4, [2, 4, *[9] * rank]).astype("f4")
    w = random.integers(-3, 4, [3, 4, *[3] * rank]).astype("f4")
    spatial = tuple(range(-rank, 0))
    g = weft.Graph(handle=weft.create_handle("cpu"), io_data_type="f32")
    g.conv_fprop(x, w, padding=1, stride=2, dilation=2).set_output(True)
    g.conv_fprop(x, w, pre_padding=np.int64(1), post_padding=[1] * rank).set_output(True)
    how = {"mode": "AVGPOOL", "padding_mode": "ZERO_PAD"}
    pooled, _ = g.resample(x, window=3, stride=2, padding=1, dilation=2, **how)
    pooled.set_output(True)
    strided, plain, means = g()
    for got, padding, stride, dilation in ((strided, 1, 2, 2), (plain, 1, 1, 1)):
        seen = windows(x, 3, padding, stride, dilation)[:, None]
        filters = w.reshape(1, 3, 4, *[1] * rank, *w.shape[2:])
        np.testing.assert_array_equal(got, (seen * filters).sum((2, *spatial)))
    np.testing.assert_allclose(means, windows(x, 3, 1, 2, 2).mean(spatial), rtol=1e-6, atol=1e-6)


def test_members_of_enumerations_are_no_numbers() -> None:
    g, x, w, _ = small()
    with refusal("matmul 'm': padding is data_type.HALF, a member of an enumeration. Give a number."):
        g.matmul(x, w, padding=weft.data_type.HALF, name="m")
    g, x, *_ = small()
    with refusal("mul 'm': b is data_type.HALF, a member of an enumeration. Give a number."):
        g.mul(x, weft.data_type.HALF, name="m")
    with refusal("tensor_scalar: the value is data_type.HALF, a member of an enumeration. Give a number."):
        g.tensor_scalar(weft.data_type.HALF)
    with refusal("relu: name is data_type.FLOAT. Give a string."):
        g.relu(x, None, None, None, None, weft.data_type.FLOAT)  # type: ignore[arg-type]


def test_unknown_members_are_refused() -> None:
    g = weft.Graph()
    message = r"^reduction 'r': mode: reduction_mode: 'SUM' is not a member. Give one of ADD, MUL, MIN"
    with pytest.raises(weft.BadParameterError, match=message):
        g.reduction(g.tensor([2], data_type="f32"), "SUM", name="r")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"use_padding_mask": True},
            "sdpa 'a': use_padding_mask needs seq_len_q and seq_len_kv. Give both, [B, 1, 1, 1] of INT32.",
        ),
        (
            {"use_causal_mask": True, "diagonal_band_right_bound": 2},
            "sdpa 'a': a causal mask bounds the right at 0, diagonal_band_right_bound is 2. Give one.",
        ),
    ],
)
def test_attention_refuses_contradictions(options: dict[str, Any], message: str) -> None:
    g = weft.Graph(io_data_type="f32")
    q = g.tensor([1, 1, 2, 4])
    with pytest.raises(weft.BadParameterError, match=says(message)):
        g.sdpa(q, q, q, name="a", **options)


def test_dropout_is_drawn_or_a_mask() -> None:
    g = weft.Graph(io_data_type="f32")
    q = g.tensor([1, 1, 2, 4])
    for dropout, problem in (
        ((q, 2.0, 0.5), "is 3 values"),
        ((), "is 0 values"),
        (0.1, "is 0.1"),
        (("a",), "begins with 'a', not a number or a mask"),
        ([None, 1, 2], "begins with None, not a number or a mask"),
    ):
        message = f"sdpa 'a': dropout {problem}. Give (probability, seed, offset), or (mask, scale)."
        with pytest.raises(weft.BadParameterError, match=says(message)):
            g.sdpa(q, q, q, name="a", dropout=dropout)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_forward_and_backward_agree_with_numpy(causal: bool) -> None:
    rng = np.random.default_rng(0)
    q, k, v, d_o = (rng.standard_normal((1, 2, 5, 4)).astype("f4") for _ in range(4))
    g = weft.Graph()
    o, stats = g.sdpa(q, k, v, attn_scale=0.5, generate_stats=True, use_causal_mask=causal)
    d_q, d_k, d_v = g.sdpa_backward(q, k, v, o, d_o, stats, attn_scale=0.5, use_causal_mask=causal)
    for t in (o, stats, d_q, d_k, d_v):
        t.set_output(True)
    got = g()
    scores = 0.5 * q.astype(float) @ k.swapaxes(2, 3)
    scores = np.where(np.tril(np.ones((5, 5))) > 0, scores, -np.inf) if causal else scores
    total = np.exp(scores).sum(3, keepdims=True)
    p = np.exp(scores) / total
    d_p = d_o.astype(float) @ v.swapaxes(2, 3)
    d_s = p * (d_p - (d_o * (p @ v)).sum(3, keepdims=True))
    want = [p @ v, np.log(total), 0.5 * d_s @ k, 0.5 * d_s.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ d_o]
    for found, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_pictures(tmp_path: Any) -> None:
    g, *_ = small(name="mlp")
    assert g.plot().startswith("<svg")
    text = g.build().plot(tmp_path / "g.svg")
    assert (tmp_path / "g.svg").read_text(encoding="utf-8") == text == g._repr_svg_()
    assert g.plan.plot() == g.plan._repr_svg_()
    assert "mlp" in text


# ---- Places of outputs -------------------------------------------------------------------------------------


def build_output(dims: Sequence[int], strides: Sequence[int]) -> None:
    g = weft.Graph(handle=weft.create_handle("cpu"))
    y = g.neg(g.tensor(list(dims), data_type="f32"), name="y")
    y.set_output(True).set_data_type("f32").set_dim(list(dims)).set_stride(list(strides))
    g.validate()


def test_outputs_overlap_if_two_elements_share_an_address() -> None:
    """Decided exactly, as counting the addresses does."""
    random, seen = np.random.default_rng(7), Counter[bool]()
    for _ in range(400):
        rank = int(random.integers(1, 5))
        dims, strides = random.integers(1, 5, rank).tolist(), random.integers(0, 13, rank).tolist()
        places = np.tensordot(strides, np.indices(dims), 1)
        is_distinct = np.unique(places).size == math.prod(dims)
        seen[is_distinct] += 1
        if is_distinct:
            build_output(dims, strides)
            continue
        message = r"overlaps itself: .* Give each element its own location\.$"
        with pytest.raises(weft.BadParameterError, match=message):
            build_output(dims, strides)
    assert min(seen.values()) > 50


def test_interleaved_outputs_are_decided_up_to_a_size() -> None:
    build_output([256, 256], [2, 509])  # 65536 elements, distinct: 2 i = 509 j has no solution in reach
    message = r"may overlap itself: interleaved strides are checked only up to 65536 elements, not for dims"
    with pytest.raises(weft.BadParameterError, match=message):
        build_output([257, 256], [2, 511])
    with pytest.raises(weft.BadParameterError, match="overlaps itself"):
        build_output([257, 256], [0, 1])
    build_output([0, 1 << 40], [1, 1])
    build_output([2, 40000], [79999, 2])  # the tightest stride: just past the faster dimension
    build_output([40000, 2], [1, 40000])
    build_output([2, 2], [3, 2])
    with pytest.raises(weft.BadParameterError, match=message):
        build_output([2, 40000], [79998, 2])
    with pytest.raises(weft.BadParameterError, match=message):
        build_output([40000, 2], [1, 39999])
    with pytest.raises(weft.BadParameterError, match="overlaps itself"):
        build_output([2, 2], [2, 2])


def test_strides_of_intermediate_tensors_may_overlap() -> None:
    """They express a preference, and are replaced by inferred ones."""
    g = weft.Graph(handle=weft.create_handle("cpu"), io_data_type="f32")
    x = g.tensor([2, 3, 4], data_type="f32")
    between = g.neg(x).set_dim([2, 3, 4]).set_stride([4, 1, 1])
    y = g.exp(between).set_output(True)
    g.build()
    given = np.arange(24, dtype="f4").reshape(2, 3, 4) / 9
    out = np.empty_like(given)
    g.execute({x: given, y: out})
    np.testing.assert_allclose(out, np.exp(-given.astype(float)), rtol=1e-6)


def test_the_stride_of_a_single_element_means_nothing() -> None:
    x = np.arange(6, dtype="f4").reshape(1, 2, 1, 3)
    g = weft.Graph(handle=weft.create_handle("cpu"))
    t = g.tensor([1, 2, 1, 3], [2**63 - 1, 3, 2**62, 1], "f32", name="x")
    y = g.neg(t, name="y").set_name("y")
    np.testing.assert_array_equal(g.build().plan(x=x), -x)
    assert t.get_stride() == [2**63 - 1, 3, 2**62, 1]
    assert y.get_dim() == [1, 2, 1, 3]


def test_operations_with_equal_parameters_share_them_and_others_do_not() -> None:
    """0.0 and -0.0 are equal numbers in Python, but different factors of a negative number."""
    x, results = np.array([-2.0, 3.0], "f4"), []
    for alpha in (0.0, -0.0, 1.0, 0.0):
        g = weft.Graph(handle=weft.create_handle("cpu"))
        g.elu(g.tensor_like(x, name="x"), elu_alpha=alpha).set_output(True)
        results.append(g(x=x))
    assert [bool(np.signbit(result[0])) for result in results] == [True, False, True, True]
    assert [round(float(result[0]), 3) for result in results] == [0, 0, -0.865, 0]

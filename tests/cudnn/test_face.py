"""Behaviour of weft.cudnn itself: enumerations, arguments, refusals by name, life cycle, names."""

from __future__ import annotations

import doctest
import enum
import json
import pickle
import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import weft
import weft.cudnn as cudnn
from weft.cudnn import collect_env
from weft.cudnn.differences import NOT_THERE
from weft.cudnn.enums import cudnn_type, to_weft, weft_type

T = cudnn.data_type


def graph(**more: Any) -> cudnn.pygraph:
    more.setdefault("io_data_type", T.FLOAT)
    return cudnn.pygraph(handle=cudnn.create_handle("cpu"), **more)


# ---- Enumerations ----


def test_data_types_go_there_and_back() -> None:
    for member in T:
        found = weft_type(member)
        if member is T.NOT_SET:
            assert found is None
        else:
            assert cudnn_type(found) is member


def test_dtypes_of_other_libraries_are_taken() -> None:
    g = graph()
    assert g.tensor([1], data_type=np.float16).get_data_type() is T.HALF
    assert g.tensor([1], data_type=np.dtype(ml_dtypes.bfloat16)).get_data_type() is T.BFLOAT16
    assert g.tensor([1], data_type=np.bool_).get_data_type() is T.BOOLEAN
    assert g.tensor([1]).set_data_type("f64").get_data_type() is T.DOUBLE


def test_booleans_follow_the_version() -> None:
    assert weft_type(T.BOOLEAN) is weft.data_type.BYTE_BOOLEAN
    cudnn.set_backend_version(92400)
    assert weft_type(T.BOOLEAN) is weft.data_type.BOOLEAN
    assert weft_type(weft.data_type.BYTE_BOOLEAN) is weft.data_type.BYTE_BOOLEAN
    with pytest.raises(ValueError, match="backend version: 8 is not a version of cuDNN 9"):
        cudnn.set_backend_version(8)


def test_truth_values_without_a_type_are_bytes() -> None:
    g = cudnn.pygraph(handle=cudnn.create_handle("cpu"))
    x = g.tensor([8], data_type=T.FLOAT)
    y = g.identity(g.cmp_gt(x, g.tensor_scalar(0.0, cudnn.scalar_type.COMPILE_TIME_CONST))).set_output(True)
    g.build()
    assert y.get_data_type() is T.BOOLEAN
    result = np.zeros(8, bool)
    g.execute({x: np.float32([1, -1, 1, 1, -1, -1, -1, 1]), y: result})
    np.testing.assert_array_equal(result, [1, 0, 1, 1, 0, 0, 0, 1])
    bits = np.zeros(1, "u1")
    g.execute({x: np.float32([1, -1, 1, 1, -1, -1, -1, 1]), y: bits})
    assert np.unpackbits(bits, bitorder="little").tolist() == [1, 0, 1, 1, 0, 0, 0, 1]


def test_a_declared_bit_stays_a_bit() -> None:
    g = graph()
    assert g.tensor([8], data_type=weft.data_type.BOOLEAN)._data_type is weft.data_type.BOOLEAN


def test_what_weft_lacks_of_an_enumeration_is_refused_by_name() -> None:
    with pytest.raises(
        cudnn.cudnnGraphNotSupportedError, match=r"moe_grouped_matmul_mode\.COMBINE: Weft has no such member"
    ):
        to_weft(cudnn.moe_grouped_matmul_mode.COMBINE)


# ---- Arguments ----


def test_a_norm_takes_its_phase_in_either_place() -> None:
    g = graph()
    x, s, b, e = g.tensor([2, 4]), g.tensor([1, 4]), g.tensor([1, 4]), g.tensor_scalar(1e-5, scalar_type=1)
    phase = cudnn.norm_forward_phase.TRAINING
    made = [g.layernorm(phase, x, s, b, e), g.layernorm(x, s, b, e, phase)]
    made += [g.layernorm(x, s, b, e, norm_forward_phase=phase)]
    assert all(mean is not None for _, mean, _ in made)
    assert [node.inputs for node in g.nodes] == [{"input": x, "scale": s, "bias": b, "epsilon": e}] * 3


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda g, x: g.relu(), r"relu\(\) is missing input"),
        (
            lambda g, x: g.relu(x, slope=1),
            r"relu\(\) got an unexpected argument 'slope'; it takes \['compute",
        ),
        (lambda g, x: g.add(x, x, x), r"add\(\) takes 2 positional arguments: \('a', 'b'\)"),
        (lambda g, x: g.sub(x, a=x), r"sub\(\) got two values for a"),
        (lambda g, x: g.sdpa(x, x), r"sdpa\(\) is missing v"),
        (lambda g, x: g.sdpa(x, x, x, q=x), r"sdpa\(\) got two values for 'q'"),
        (lambda g, x: g.sdpa(x, x, x, mask=x), r"sdpa\(\) got an unexpected argument 'mask'"),
    ],
)
def test_wrong_arguments(call: Any, sentence: str) -> None:
    g = graph()
    with pytest.raises(TypeError, match=sentence):
        call(g, g.tensor([2, 4]))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda g, x: g.sdpa(x, x, x, softmax_precision=T.HALF, name="attn"),
            "sdpa 'attn': softmax_precision is HALF, and Weft's softmax computes in FLOAT. Leave it out.",
        ),
        (lambda g, x: g.gdn(x, name="net"), "gdn 'net': Weft has no such operation."),
    ],
)
def test_nothing_is_ignored_in_silence(call: Any, sentence: str) -> None:
    g = graph()
    with pytest.raises(cudnn.cudnnGraphNotSupportedError) as refused:
        call(g, g.tensor([2, 4]))
    assert str(refused.value) == sentence


@pytest.mark.parametrize("name", [name for name in NOT_THERE if name.startswith("cudnn.")])
def test_missing_functions_raise_an_error_that_names_them(name: str) -> None:
    function: Any = cudnn
    for part in name.split(".")[1:]:
        function = getattr(function, part)
    arguments = (None, None) if name.startswith("cudnn.ops") else ()
    with pytest.raises(cudnn.cudnnGraphNotSupportedError) as refused:
        function(*arguments)
    assert str(refused.value) == f"{name}: Weft has no such function."


def test_no_name_is_none() -> None:
    g = graph(name=None)
    x = g.tensor([1, 2, 2], name=None)
    like, half = g.tensor_like(x, name=None), g.tensor_scalar(0.5, cudnn.scalar_type.COMPILE_TIME_CONST, None)
    product = g.matmul(x, like, name=None)
    g.relu(g.mul(product, half, name=None), name=None)
    q = g.tensor([1, 1, 2, 8])
    g.sdpa(q, q, q, name=None)
    assert [node.name for node in g.nodes] == ["matmul.0", "mul.0", "relu.0", "sdpa.0"]


def test_a_scale_given_twice() -> None:
    g = graph()
    x = g.tensor([1, 1, 2, 8])
    with pytest.raises(ValueError, match="sdpa: attn_scale and attn_scale_prefolded are given"):
        g.sdpa(x, x, x, attn_scale=0.5, attn_scale_prefolded=True)


def test_unknown_keywords_of_graphs_and_tensors() -> None:
    with pytest.raises(ValueError, match="pygraph: colour is not one of its arguments"):
        graph(colour=1)
    with pytest.raises(ValueError, match="tensor: colour is not one of its arguments"):
        graph().tensor([1], colour=1)


def test_retention_of_cuda_graphs_is_kept() -> None:
    kinds = cudnn.cuda_graph_retention
    assert graph().get_cuda_graph_retention() is kinds.PER_GRAPH
    assert graph(cuda_graph_retention=kinds.NONE).get_cuda_graph_retention() is kinds.NONE
    with pytest.raises(
        ValueError, match=r"^pygraph: cuda_graph_retention is 7\. Give one of PER_GRAPH, NONE\.$"
    ):
        graph(cuda_graph_retention=7)


def test_statistics_of_peers_are_refused() -> None:
    g = graph()
    x, s, peer = g.tensor([2, 4, 3, 3]), g.tensor([1, 4, 1, 1]), g.tensor([2, 4])
    e = g.tensor_scalar(1e-5, cudnn.scalar_type.COMPILE_TIME_CONST)
    g.batchnorm(x, s, s, s, s, e, e, peer_stats=[peer], name="bn")[0].set_output(True)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="norm 'bn': peer_stats lists 1 buffers"):
        g.build()


def test_dims_of_results_by_name() -> None:
    g = graph()
    y, scale = g.block_scale_quantize(
        g.tensor([1, 4, 64]), block_size=32, axis=2, out_dims={"scale": [1, 4, 2]}
    )
    assert (y._dims, scale._dims) == ((), (1, 4, 2))
    first, _ = g.genstats(g.tensor([1, 4, 2, 2]), out_dims=[[1, 4, 1, 1], None])
    assert first._dims == (1, 4, 1, 1)
    q = g.tensor([1, 1, 4, 8])
    o, stats = g.sdpa(q, q, q, generate_stats=True, out_dims=[[1, 1, 4, 8], [1, 1, 4, 1]])
    assert (o._dims, stats._dims) == ((1, 1, 4, 8), (1, 1, 4, 1))


def test_what_calls_take_and_return_may_be_named_later() -> None:
    g = graph()
    a, b = g.tensor([2]), g.tensor([2])
    g.relu(g.sub(a, b, name="difference"), name="act")
    g.set_io_tuples(["difference::b", "difference::a"], ["act::OUT_0"])
    np.testing.assert_array_equal(g(np.float32([1, 9]), np.float32([4, 5])), [3, 0])
    x, w = np.float32([[1, 2]]), np.float32([[3], [4]])
    with cudnn.Graph(io_data_type=T.FLOAT) as short:
        short.matmul(x, w, name="mm").set_output(True).set_name("product")
    short.set_io_tuples(["mm::B", "mm::A"], ["product"])
    np.testing.assert_array_equal(short(w, x, handle=cudnn.create_handle("cpu")), [[11]])


# ---- Tensors and life cycle ----


def test_properties_of_tensors() -> None:
    g = graph()
    offset = g.tensor([3, 1, 1, 1], data_type=T.INT32)
    x = g.tensor([2, 4], [4, 1], T.HALF, ragged_offset=offset, ragged_offset_multiplier=4, alignment_value=32)
    assert (x.dim_assigned, x.stride_assigned, x.uid_assigned) == (True, True, False)
    assert (x.ragged_offset, x.ragged_offset_multiplier, x.alignment_value) == (offset, 4, 32)
    assert (x.data_type, x.reordering_type, x.owner) == (T.HALF, cudnn.tensor_reordering.NONE, g)
    tiles = g.tensor([1, 128, 4], reordering_type=cudnn.tensor_reordering.F8_128x4)
    assert tiles.get_reordering_type() is cudnn.tensor_reordering.F8_128x4
    scalar = g.tensor_scalar(2.5, cudnn.scalar_type.COMPILE_TIME_CONST)
    assert (scalar.pass_by_value, scalar.scalar_type) == (2.5, cudnn.scalar_type.COMPILE_TIME_CONST)
    virtual = g.tensor_like(x, is_virtual=True)
    assert (virtual.get_is_virtual(), virtual.get_dim()) == (True, [2, 4])
    x.validate()
    with pytest.raises(ValueError, match=r"2 dims .* and 1 stride"):
        g.tensor([2, 4], [1], name="odd").validate()


def test_uids_of_enumerations() -> None:
    class Uid(enum.IntEnum):
        X = 7
        Y = 9

    g = graph()
    y = g.neg(g.tensor([2], uid=Uid.X)).set_output(True).set_uid(Uid.Y)
    g.build()
    result = np.empty(2, "f4")
    g.execute({Uid.X: np.float32([1, 2]), Uid.Y: result})
    np.testing.assert_array_equal(result, [-1, -2])
    assert y.get_uid() == 9


def test_operations_are_refused_once_the_graph_is_built() -> None:
    g = graph()
    x = g.tensor([2])
    g.neg(x, name="first")
    g.validate()
    g.neg(x, name="second")  # still open
    g.build_operation_graph()
    with pytest.raises(ValueError, match="its operation graph is built and accepts no more operations"):
        g.neg(x)


def test_graphs_are_pickled_as_their_plan() -> None:
    g = graph()
    g.neg(g.tensor([2], name="x"), name="y")
    g.build()
    loaded = pickle.loads(pickle.dumps(g))
    assert isinstance(loaded, cudnn.pygraph)
    np.testing.assert_array_equal(loaded(np.float32([1, 2])), [-1, -2])


def test_nodes_and_names() -> None:
    g = graph(name="net")
    x = g.tensor([2, 4], name="x")
    y = g.relu(g.neg(x, name="neg"), name="act")
    node = g.get_node("act")
    assert (node.node_type, node.outputs) == (cudnn.NodeType.POINTWISE, {"OUT_0": y})
    assert g.find_tensor("x") is x
    assert g.find_tensor("neg::IN_0") is x
    assert g.find_tensor("act::input") is node.inputs["input"]
    assert (g.get_inputs(), g.context.name, g.context.io_data_type) == ([x], "net", T.FLOAT)
    with pytest.raises(ValueError, match=r"no operation is named 'pool'\. It has neg, act\."):
        g.get_node("pool")
    with pytest.raises(ValueError, match="no tensor is named 'act::weight'"):
        g.find_tensor("act::weight")


def test_calls_with_a_workspace_of_the_callers() -> None:
    x = np.ones((1, 4, 4), "f4")
    with cudnn.Graph(workspace_alloc=False, handle=cudnn.create_handle("cpu")) as g:
        g.softmax(g.matmul(x, x, name="mm"))
    size = g.get_workspace_size()
    if size:
        with pytest.raises(ValueError, match=f"workspace_alloc=False and needs {size} bytes"):
            g(x, x)
    made = g({"mm::A": x, "mm::B": x}, workspace=np.empty(max(size, 1), "u1"), handle=g.handle)
    assert list(made) == ["mm::A", "mm::B", "softmax_1::y"]
    np.testing.assert_allclose(made["softmax_1::y"], np.full((1, 4, 4), 0.25))


def test_parameters_of_torch_are_memory() -> None:
    torch = pytest.importorskip("torch")
    w = torch.nn.Parameter(torch.ones(2, 3))
    g = graph()
    W = g.tensor_like(w.detach())
    y = g.neg(W).set_output(True)
    g.build()
    result = torch.zeros(2, 3)
    g.execute({W: w, y: result}, torch.empty(0, dtype=torch.uint8))
    assert torch.equal(result, -torch.ones(2, 3))


def test_the_gap_between_buffers_and_uids() -> None:
    g = graph()
    g.neg(g.tensor([2], uid=1)).set_uid(2)
    g.build()
    with pytest.raises(ValueError, match=r"execute: 1 buffer and 2 uids\. Give a uid for each\."):
        g.execute([np.zeros(2, "f4")], tensor_uids=[1, 2])


def test_the_device_of_a_handle() -> None:
    device = cudnn.DeviceInfo.of(cudnn.create_handle("cpu"))
    assert (device.compute_capability, device.sm_version, device.ordinal) == ((0, 0), 0, 0)
    hopper = cudnn.DeviceInfo.of(weft.compile_for("sm_90"))
    assert (hopper.sm_version, hopper.sm_count, hopper.shared_memory_per_block_optin) == (90, 132, 232448)
    assert cudnn.sdpa_capabilities(cudnn.create_handle("cpu"))["device"] == device
    assert cudnn.is_frontend_knob_type(cudnn.knob_type.MMA_TILE_M)
    assert not cudnn.is_frontend_knob_type(cudnn.knob_type.TILE_M)


@pytest.mark.parametrize(
    ("dims", "angles", "rope_dim", "sentence"),
    [
        ([2, 3, 5, 8], [4, 1, 1, 8], None, r"freqs has 4 positions, x is \[2, 3, 5, 8\]"),
        ([2, 3, 5, 8], [5, 1, 1, 3], 3, r"rope_dim is 3, heads have 8 elements\. Give an even number\."),
        ([2, 3, 5, 8], [5, 1, 1, 10], 10, "rope_dim is 10, heads have 8 elements"),
    ],
)
def test_rotations_that_make_no_sense(
    dims: list[int], angles: list[int], rope_dim: int | None, sentence: str
) -> None:
    g = graph()
    with pytest.raises(ValueError, match=sentence):
        g.rope(g.tensor(dims), g.tensor(angles), rope_dim=rope_dim)


def test_running_sums_of_lengths_serve_fp8() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 1, 8, 16)).astype(ml_dtypes.float8_e4m3fn) for _ in "qkv")
    used, one = np.array([5, 8], "i4"), np.ones((1, 1, 1, 1), "f4")
    results = []
    for is_sum in (False, True):
        g = graph()
        tensors = [g.tensor_like(a) for a in (q, k, v)]
        factors = [g.tensor([1, 1, 1, 1], data_type=T.FLOAT) for _ in range(6)]
        dims = [3, 1, 1, 1] if is_sum else [2, 1, 1, 1]
        lengths = g.tensor(dims, data_type=T.INT32)
        kind = "cu_seq_len" if is_sum else "seq_len"
        named = {f"{kind}_q": lengths, f"{kind}_kv": lengths}
        o, *_ = g.sdpa_fp8(*tensors, *factors, attn_scale=0.25, use_padding_mask=True, **named)
        o.set_output(True).set_data_type(T.FP8_E4M3)
        g.build()
        given = np.array([0, 5, 13], "i4").reshape(dims) if is_sum else used.reshape(dims)
        result = np.zeros((2, 1, 8, 16), ml_dtypes.float8_e4m3fn)
        pack = dict(zip([*tensors, *factors], [q, k, v, *[one] * 6], strict=True))
        g.execute(pack | {lengths: given, o: result})
        results.append(result.astype(float))
    assert np.abs(results[0]).sum() > 0
    np.testing.assert_array_equal(results[0], results[1])


def test_pages_serve_mxfp8() -> None:
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, 1, 4, 32)).astype(ml_dtypes.float8_e4m3fn)
    k, v = (rng.standard_normal((2, 1, 32, 32)).astype(ml_dtypes.float8_e4m3fn) for _ in "kv")
    of_q, of_k, of_v = (
        (2.0 ** rng.integers(-1, 2, s)).astype(ml_dtypes.float8_e8m0fnu)
        for s in ((1, 1, 4, 1), (2, 1, 32, 1), (2, 1, 1, 32))
    )
    table, length = np.array([1, 0], "i4").reshape(1, 1, 2, 1), np.full((1, 1, 1, 1), 50, "i4")
    g = graph(io_data_type=None)
    Q, K, V, A, B, C = map(g.tensor_like, (q, k, v, of_q, of_k, of_v))
    page = g.tensor([1, 1, 2, 1], data_type=T.INT32)
    rows, used = (g.tensor([1, 1, 1, 1], data_type=T.INT32) for _ in "qk")
    o, _, _ = g.sdpa_mxfp8(
        Q, K, V, A, B, C, attn_scale=0.1, generate_stats=False, use_padding_mask=True, seq_len_q=rows,
        seq_len_kv=used, paged_attention_k_table=page, paged_attention_v_table=page,
        paged_attention_max_seq_len_kv=64,
    )  # fmt: skip
    o.set_output(True).set_data_type(T.FLOAT)
    g.build()
    result = np.zeros((1, 1, 4, 32), "f4")
    four = np.full((1, 1, 1, 1), 4, "i4")
    g.execute({Q: q, K: k, V: v, A: of_q, B: of_k, C: of_v, page: table, rows: four, used: length, o: result})
    wide = [x.astype(float) for x in (q * 1.0 * of_q.astype(float), k, v, of_k, of_v)]
    keys, values = (np.concatenate([x[1], x[0]], 1)[:, :50] for x in (wide[1] * wide[3], wide[2] * wide[4]))
    scores = np.exp(0.1 * wide[0][0] @ keys.swapaxes(-1, -2))
    want = scores / scores.sum(-1, keepdims=True) @ values
    np.testing.assert_allclose(result[0], want, rtol=1e-2, atol=1e-2)


def test_the_gpu_that_is_current_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """If torch has made GPU 1 the current one, a handle opens it; the test checks which device would be
    opened."""
    from weft.cudnn import handles

    opened: list[tuple[Any, ...]] = []

    def create(*arguments: Any) -> Any:
        opened.append(arguments)
        return SimpleNamespace(device=weft.device_kind.CUDA, ordinal=arguments[1] if arguments else 0)

    cuda = SimpleNamespace(is_initialized=lambda: True, current_device=lambda: 1)
    monkeypatch.setattr(handles.frontend, "create_handle", create)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert cudnn.create_handle().ordinal == 1
    cuda.current_device = lambda: 0
    assert cudnn.create_handle().ordinal == 0
    cudnn.create_handle("cpu")
    assert opened == [(), ("cuda", 1), (), ("cpu", 0)]


@pytest.mark.parametrize("module", ["graph", "graphs", "handles", "version", "wrapper"])
def test_doctests(module: str) -> None:
    result = doctest.testmod(import_module(f"weft.cudnn.{module}"))
    assert result.attempted
    assert not result.failed


# ---- Modules and ready-made kernels ----


def test_ready_made_kernels_refuse_by_their_name() -> None:
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match=r"cudnn\.GemmSwigluSm100: Weft has no such"):
        cudnn.GemmSwigluSm100(1, 2)
    assert not hasattr(cudnn, "no_such_kernel")


@pytest.mark.parametrize("name", ["torch.install", "jax.call", "api_base.APIBase"])
def test_names_of_modules_refuse(name: str) -> None:
    module, _, function = name.partition(".")
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match=rf"cudnn\.{module}\.{function}: Weft has no"):
        getattr(import_module(f"weft.cudnn.{module}"), function)()


def test_modules_are_those_of_cudnn() -> None:
    from weft.cudnn.datatypes import is_torch_available, torch_to_cudnn_data_type
    from weft.cudnn.experimental import ops
    from weft.cudnn.graph import graph, jit

    assert (graph, jit, ops) == (cudnn.graph, cudnn.jit, cudnn.ops)
    if is_torch_available():
        import torch

        assert torch_to_cudnn_data_type(torch.bfloat16) is T.BFLOAT16


def test_the_environment_report_names_the_versions_that_are_followed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert collect_env.main([]) == 0
    text = capsys.readouterr().out
    assert text.startswith("cudnn frontend: 1.32.0, whose names and rules weft.cudnn follows\n")
    assert "cudnn backend: 9.28.0" in text
    assert "smoke test" in text
    assert collect_env.main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cudnn backend"] == "9.28.0"
    assert "problems" in found

"""Operands and arguments that cuDNN's frontend accepts: tensors of other graphs, parameters of fewer
dimensions, slices with Python's rules, keywords of setters."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pytest
import weft
import weft.cudnn as cudnn

T = cudnn.data_type


def graph(place: Any, **more: Any) -> Any:
    more = {"io_data_type": T.FLOAT, "intermediate_data_type": T.FLOAT, **more}
    return cudnn.pygraph(compute_data_type=T.FLOAT, handle=place.handle, **more)


# ---- Tensors of other graphs ----


@pytest.mark.parametrize("uids", [(None, None), (7, 8)])
def test_a_tensor_of_another_graph_is_an_operand(place: Any, uids: Any) -> None:
    other, g = graph(place), graph(place)
    x = other.tensor(name="x", dim=[4, 4], stride=[4, 1], uid=uids[0])
    y = g.tensor(name="y", dim=[4, 4], stride=[4, 1], uid=uids[1])
    z = g.sub(a=x, b=y).set_output(True)
    g.build([cudnn.heur_mode.A])
    a, b, c = place.random((4, 4)), place.random((4, 4), seed=1), place.empty([4, 4])
    place.run(g, {x: a, y: b, z: c})
    place.close(c, place.get(a) - place.get(b))


def test_a_uid_that_both_graphs_have_is_one_tensor(place: Any) -> None:
    other, g = graph(place), graph(place)
    x, mine = (each.tensor(dim=[4], stride=[1], uid=7) for each in (other, g))
    y = g.add(a=x, b=mine).set_output(True)
    g.validate()
    assert g.get_inputs() == [mine]
    assert y.get_dim() == [4]


def test_attention_takes_tensors_of_another_graph(place: Any) -> None:
    other, g = graph(place), graph(place)
    q, k, v = (other.tensor(dim=[1, 2, 4, 8], stride=[64, 32, 8, 1], uid=uid) for uid in (1, 2, 3))
    o, _ = g.sdpa(q=q, k=k, v=v, is_inference=True, attn_scale=1.0)
    o.set_output(True)
    g.build([cudnn.heur_mode.A])
    arrays, result = [place.random((1, 2, 4, 8), seed=i) for i in range(3)], place.empty([1, 2, 4, 8])
    place.run(g, {**dict(zip((1, 2, 3), arrays, strict=True)), o: result})
    a, b, c = map(place.get, arrays)
    weights = np.exp(a @ b.transpose(0, 1, 3, 2))
    place.close(result, weights / weights.sum(-1, keepdims=True) @ c)


def test_a_virtual_result_of_another_graph_is_refused(place: Any) -> None:
    other, g = graph(place), graph(place)
    inner = other.relu(other.tensor(dim=[4], stride=[1]))
    with pytest.raises(weft.BadParameterError, match=r"is a virtual tensor of another graph\. Give"):
        g.relu(inner)


# ---- Operands of fewer dimensions ----


def test_pointwise_operands_of_fewer_dimensions_get_ones_in_front(place: Any) -> None:
    rng = np.random.default_rng(0)
    x, b, padded = rng.standard_normal((2, 3, 4)), rng.standard_normal(4), rng.standard_normal((3, 6))
    g = graph(place)
    X, B = g.tensor(dim=[2, 3, 4], stride=[12, 4, 1]), g.tensor(dim=[4], stride=[1])
    P = g.tensor(dim=[3, 4], stride=[6, 1])
    y = g.sub(a=g.mul(a=B, b=g.exp(g.exp(X))), b=P).set_output(True)  # the rank of exp is not known yet
    g.build([cudnn.heur_mode.A])
    assert (y.get_dim(), y.get_stride()) == ([2, 3, 4], [12, 4, 1])
    result = place.empty([2, 3, 4])
    rows = place.put(padded, "f32")
    place.run(g, {X: place.put(x, "f32"), B: place.put(b, "f32"), P: rows, y: result})
    x, b, padded = (np.float64(np.float32(each)) for each in (x, b, padded))
    place.close(result, b * np.exp(np.exp(x)) - padded[:, :4])


def test_masks_of_fewer_dimensions(place: Any) -> None:
    g = graph(place)
    X, M = g.tensor(dim=[2, 3], stride=[3, 1]), g.tensor(dim=[3], stride=[1], data_type=T.BOOLEAN)
    y = g.binary_select(input0=X, input1=0.0, mask=M).set_output(True)
    g.build([cudnn.heur_mode.A])
    x, result = place.random((2, 3)), place.empty([2, 3])
    place.run(g, {X: x, M: place.put(np.array([True, False, True])), y: result})
    place.close(result, place.get(x) * [1, 0, 1])


@pytest.mark.parametrize("rope_dim", [None, 4])
@pytest.mark.parametrize("name", ["rope", "rope_backward"])
def test_rotated_heads_have_the_strides_of_the_input(place: Any, name: str, rope_dim: int | None) -> None:
    dims, strides, angles = [2, 3, 5, 8], [180, 60, 12, 1], np.linspace(-2, 2, 5 * (rope_dim or 8))
    g = graph(place)
    X, F = g.tensor(dim=dims, stride=strides), g.tensor(dim=[5, 1, 1, rope_dim or 8])
    y = getattr(g, name)(X, F, rope_dim=rope_dim).set_output(True)
    g.build([cudnn.heur_mode.A])
    assert (y.get_dim(), y.get_stride()) == (dims, strides)
    memory = np.random.default_rng(1).standard_normal((2, 3, 5, 12))
    rows, result = place.put(memory, "f32"), place.empty(dims, strides=strides)
    place.run(g, {X: rows, F: place.put(angles.reshape(5, 1, 1, -1), "f32"), y: result})
    x = np.float64(np.float32(memory[..., :8]))
    turned, first = x.copy(), 8 - (rope_dim or 8)
    low, high = np.split(x[..., first:], 2, axis=-1)
    sign = -1 if name.endswith("backward") else 1
    angle = np.float64(np.float32(angles)).reshape(5, -1)
    turned[..., first:] = x[..., first:] * np.cos(angle)
    turned[..., first:] += sign * np.sin(angle) * np.concatenate([-high, low], -1)
    place.close(result, turned)


# ---- BOOLEAN ----


@pytest.mark.skipif(os.environ.get("WEFT_TEST_DEVICE", "cpu") != "cpu", reason="addresses of the host")
@pytest.mark.parametrize("has_norm", [False, True])
def test_operations_decide_what_a_boolean_at_an_address_is(place: Any, has_norm: bool) -> None:
    """Bits after a norm, like in cuDNN's engines for norms; bytes if elements are only mapped."""
    g = graph(place)
    x, one = g.tensor(dim=[4, 16], stride=[16, 1]), g.tensor(dim=[1, 16], stride=[16, 1])
    source = x
    if has_norm:
        epsilon = g.tensor_scalar(1e-5, cudnn.scalar_type.COMPILE_TIME_CONST)
        phase = cudnn.norm_forward_phase.INFERENCE
        source, *_ = g.layernorm(norm_forward_phase=phase, input=x, scale=one, bias=one, epsilon=epsilon)
    below = g.cmp_le(input=source, comparison=1.0).set_data_type(T.BOOLEAN)
    mask = g.logical_not(input=below).set_output(True).set_data_type(T.BOOLEAN)
    g.build([cudnn.heur_mode.A])
    assert mask.get_data_type() is below.get_data_type() is T.BOOLEAN
    # A virtual tensor may be stored in any form.
    assert below._data_type is weft.data_type.BYTE_BOOLEAN
    numbers, ones, out = (
        np.float32(np.arange(64).reshape(4, 16) % 3),
        np.ones((1, 16), "f4"),
        np.full(64, 0xEE, "u1"),
    )
    pack = {x: numbers.ctypes.data, one: ones.ctypes.data, mask: out.ctypes.data}
    g.execute(pack if has_norm else {x: pack[x], mask: pack[mask]}, None, handle=place.handle)
    if has_norm:
        centered = numbers - numbers.mean(1, keepdims=True)
        assert np.array_equal(np.unpackbits(out[:8], bitorder="little"), (centered > 0).ravel())
        assert (out[8:] == 0xEE).all()
    else:
        assert np.array_equal(out, (numbers > 1).ravel())


def test_a_call_returns_booleans_also_after_a_norm() -> None:
    g = cudnn.pygraph(handle=cudnn.create_handle("cpu"), io_data_type=T.FLOAT, compute_data_type=T.FLOAT)
    x, one = g.tensor(dim=[4, 16], stride=[16, 1]), g.tensor(dim=[1, 16], stride=[16, 1])
    epsilon = g.tensor_scalar(1e-5, cudnn.scalar_type.COMPILE_TIME_CONST)
    phase = cudnn.norm_forward_phase.INFERENCE
    y, *_ = g.layernorm(norm_forward_phase=phase, input=x, scale=one, bias=one, epsilon=epsilon)
    g.cmp_gt(input=y, comparison=1.0).set_output(True).set_data_type(T.BOOLEAN)
    numbers = np.float32(np.arange(64).reshape(4, 16) % 3)
    made = g(numbers, np.ones((1, 16), "f4"))
    assert (made.dtype, made.shape) == (np.bool_, (4, 16))
    assert np.array_equal(made, numbers > numbers.mean(1, keepdims=True))


# ---- Parameters of fewer dimensions ----


def test_norms_take_parameters_of_one_dimension(place: Any) -> None:
    rng = np.random.default_rng(0)
    x, scale, dy = rng.standard_normal((3, 5, 7)), rng.standard_normal(7), rng.standard_normal((3, 5, 7))
    g = graph(place)
    X, S = g.tensor(dim=[3, 5, 7], stride=[35, 7, 1]), g.tensor(dim=[7], stride=[1])
    epsilon = g.tensor_scalar(1e-5, cudnn.scalar_type.COMPILE_TIME_CONST)
    training = cudnn.norm_forward_phase.TRAINING
    y, inverse = g.rmsnorm(norm_forward_phase=training, input=X, scale=S, epsilon=epsilon)
    y.set_output(True), inverse.set_output(True)
    g.build([cudnn.heur_mode.A])
    outputs = {t: place.like(t) for t in (y, inverse)}
    place.run(g, {X: place.put(x, "f32"), S: place.put(scale, "f32"), **outputs})
    r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    place.close(outputs[y], x * r * scale)

    g = graph(place)
    X, DY = (g.tensor(dim=[3, 5, 7], stride=[35, 7, 1]) for _ in range(2))
    S, R = g.tensor(dim=[7], stride=[1]), g.tensor(dim=[3, 5, 1], stride=[5, 1, 1])
    dx, ds, _ = g.rmsnorm_backward(grad=DY, input=X, scale=S, inv_variance=R, has_dbias=False)
    dx.set_output(True), ds.set_output(True).set_dim([7]).set_stride([1])
    g.build([cudnn.heur_mode.A])
    results = {t: place.like(t) for t in (dx, ds)}
    pack = {X: place.put(x, "f32"), DY: place.put(dy, "f32"), S: place.put(scale, "f32"), R: outputs[inverse]}
    place.run(g, {**pack, **results})
    slope = dy * scale
    place.close(results[ds], (dy * x * r).sum((0, 1)))
    place.close(results[dx], r * (slope - x * r * r * (slope * x).mean(-1, keepdims=True)))


# ---- Arguments ----


@pytest.mark.parametrize(
    ("slices", "want"),
    [
        ((), np.s_[:, :]),
        (([slice(1, None)],), np.s_[1:]),
        (([slice(None, -1), slice(-2, None)],), np.s_[:-1, -2:]),
        (([slice(0, 99, 2), slice(0, 3)],), np.s_[0:99:2, 0:3]),
    ],
)
def test_slices_follow_pythons_rules(place: Any, slices: Any, want: Any) -> None:
    g = graph(place)
    x = g.tensor(dim=[4, 3], stride=[3, 1])
    y = g.relu(g.slice(x, *slices)).set_output(True)
    g.build([cudnn.heur_mode.A])
    a, b = place.random((4, 3)), place.like(y)
    place.run(g, {x: a, y: b})
    place.close(b, np.maximum(place.get(a)[want], 0))


def test_setters_have_cudnns_keywords() -> None:
    g = cudnn.pygraph(handle=cudnn.create_handle("cpu"))
    x = g.tensor(dim=[4], stride=[1])
    for is_set in (True, False):
        x.set_is_virtual(value=is_set).set_is_pass_by_value(value=is_set)
        assert (x.get_is_virtual(), x.get_is_pass_by_value()) == (is_set, is_set)
    x.set_data_type(dtype=T.FLOAT)
    y = g.relu(x.set_alignment_value(value=16)).set_output(value=True)
    g.validate()
    assert (x.get_data_type(), x.alignment_value, y.get_output()) == (T.FLOAT, 16, True)


def test_experts_take_the_compute_type_by_position() -> None:
    g = cudnn.pygraph(io_data_type=T.BFLOAT16, handle=cudnn.create_handle("cpu"))
    token, weight = g.tensor([1, 32, 64], [2048, 64, 1]), g.tensor([4, 64, 16], [1024, 16, 1])
    offset = g.tensor([4, 1, 1], [1, 1, 1], T.INT32)
    index, ks = (g.tensor([1, 32, 1], [32, 1, 1], T.INT32) for _ in range(2))
    scatter = cudnn.moe_grouped_matmul_mode.SCATTER
    for arguments in ((scatter, T.FLOAT, 2), (scatter, 2)):
        g.moe_grouped_matmul(token, weight, offset, index, ks, *arguments)
    assert [node.attributes for node in g.nodes] == [{"mode": scatter, "top_k": 2}] * 2


def test_gradients_take_a_prefolded_scale(place: Any) -> None:
    """dQ is that of the queries that are given, which have the scale already."""
    rng, dims, strides = np.random.default_rng(2), [1, 1, 4, 8], [32, 32, 8, 1]
    q, k, v, do = (rng.standard_normal(dims) for _ in range(4))
    scores = q @ k.swapaxes(2, 3) * np.log(2)
    p = np.exp(scores)
    stats = np.log(p.sum(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    o = p @ v
    dp = do @ v.swapaxes(2, 3)
    ds = p * (dp - (do * o).sum(-1, keepdims=True)) * np.log(2)
    g = graph(place)
    names = {"q": q, "k": k, "v": v, "o": o, "dO": do}
    operands = {name: g.tensor(dim=dims, stride=strides) for name in names}
    S = g.tensor(dim=[1, 1, 4, 1], stride=[4, 4, 1, 1])
    made = g.sdpa_backward(**operands, stats=S, attn_scale_prefolded=True, softmax_precision=T.FLOAT)
    results = {t.set_output(True): place.empty(dims) for t in made}
    g.build([cudnn.heur_mode.A])
    pack = {operands[name]: place.put(array, "f32") for name, array in names.items()}
    place.run(g, {**pack, S: place.put(stats, "f32"), **results})
    wanted = (ds @ k, ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ do)
    for got, want in zip(results.values(), wanted, strict=True):
        place.close(got, want)


def test_block_scaled_results_of_attention_are_refused_by_name() -> None:
    g = cudnn.pygraph(handle=cudnn.create_handle("cpu"))
    q = g.tensor([1, 1, 4, 16], [64, 64, 16, 1], T.FP8_E4M3)
    one = g.tensor([1, 1, 1, 1], [1, 1, 1, 1], T.FLOAT)
    message = "sdpa_fp8 'att': sf_o is given, which Weft does not support. Leave it out."
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match=re.escape(message)):
        g.sdpa_fp8(q, q, q, one, one, one, one, one, one, sf_o=g.tensor([1], [1], T.FP8_E8M0), name="att")


def test_graph_and_jit_take_further_keywords() -> None:
    @cudnn.jit(heur_modes=cudnn.heur_mode.A, num_threads=4)
    def negate() -> Any:
        with cudnn.graph(None, io_data_type=T.FLOAT, is_cuda_graph_replay_expected=True) as (g, _):
            return g, [g.neg(g.tensor([2], [1])).set_output(True)]

    g, uids = negate()
    assert g.is_built
    assert uids == [g.get_outputs()[0].get_uid()]
    with pytest.raises(weft.BadParameterError, match="colour is not one of its"), cudnn.graph(colour=1):
        pass

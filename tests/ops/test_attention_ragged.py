"""Attention on packed sequences (THD), some of them empty: every operand with ragged offsets, in elements or
in tokens, forward and backward; unused tokens stay unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import checks
import numpy as np
import pytest
import weft
from attention_oracle import BOTTOM_RIGHT, Case, backward_inputs, by_definition, forward
from attention_tokens import CANARY, STATISTICS, Tokens

CASES = {
    "plain": Case(
        batch=4, heads=(4, 2, 2), rows=9, columns=11, seq_len_q=[5, 0, 9, 1], seq_len_kv=[11, 3, 0, 2]
    ),
    "causal at the end": Case(
        batch=3, heads=(2, 2, 1), rows=7, columns=7, seq_len_q=[3, 7, 0], seq_len_kv=[5, 7, 4], right=0,
        alignment=BOTTOM_RIGHT, has_sums=True, sink=True,
    ),
    "long": Case(batch=2, heads=(2, 1, 1), rows=150, columns=200, seq_len_q=[130, 20], seq_len_kv=[7, 199]),
    "window": Case(
        batch=4, heads=(2, 2, 2), rows=260, columns=260, seq_len_q=[129, 1, 260, 64],
        seq_len_kv=[128, 65, 260, 0], left=70, right=0, alibi=True, has_sums=True,
    ),
}  # fmt: skip


def check(t: Tokens, dtype: str) -> None:
    for name, got in t.run().items():
        want = t.pack(name, t.wanted[name][1], CANARY)
        near = 256 * checks.roundoff("f32") if name in ("stats", "score_max") or dtype == "f32" else 0.05
        np.testing.assert_allclose(got, want, rtol=near, atol=near, err_msg=name)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("in_tokens", "ragged_stats"), [(False, True), (True, False)])
@pytest.mark.parametrize("name", CASES)
def test_ragged(name: str, in_tokens: bool, ragged_stats: bool, dtype: str) -> None:
    case = replace(CASES[name], depth=16, value_depth=24)
    inputs = case.inputs(dtype)
    o, stats, top, _ = forward(case, inputs)
    padded = () if ragged_stats else STATISTICS
    t = Tokens(case, in_tokens, padded)
    operands = {key: t.input(key, array) for key, array in inputs.items()}
    score_max = t.g.tensor(name="score_max")
    results = t.g._sdpa_fwd(**operands, **case.values(), score_max=score_max)
    for key, tensor, want in (
        ("o", results[0], o),
        ("stats", results[1], stats),
        ("score_max", score_max, top),
    ):
        t.output(key, tensor, want)
    check(t, dtype)

    inputs = backward_inputs(case, inputs, dtype)
    want, _ = by_definition(case, inputs)
    for is_deterministic in {False, checks.DEVICE == "cuda" and dtype != "f32"}:
        t = Tokens(case, in_tokens, padded)
        operands = {key: t.input(key, array) for key, array in inputs.items()}
        gradients = t.g._sdpa_bwd(**operands, **case.values(), is_deterministic=is_deterministic)
        for key, tensor, each in zip(("dQ", "dK", "dV"), gradients, want, strict=False):
            t.output(key, tensor, each)
        check(t, dtype)


def test_batch_stride_of_one_token() -> None:
    """Offsets say where batch entries are: the batch stride may be that from token to token."""
    case = replace(CASES["plain"], depth=16, value_depth=24)
    inputs = case.inputs("f32")
    t = Tokens(case, True, batch_is_token=True)
    operands = {key: t.input(key, array) for key, array in inputs.items()}
    o, stats, *_ = forward(case, inputs)
    for name, tensor, want in zip(
        ("o", "stats"), t.g._sdpa_fwd(**operands, **case.values()), (o, stats), strict=False
    ):
        t.output(name, tensor, want)
    check(t, "f32")


RAGGED = [0, 7, 7, 17]  # three sequences of 7, 0 and 10 tokens, and the end


PACKED = Case(3, (2, 2, 2), 10, 10, 64, 64, seq_len_q=[7, 0, 10], seq_len_kv=[7, 0, 10])


def garbage(
    name: str, offsets: list[int], dtype: str
) -> tuple[weft.Graph, dict[Any, np.ndarray], Any, np.ndarray]:
    """A graph of packed tokens, without gaps, in which one operand has other offsets; its arrays, its result,
    and what the result is with the right offsets. Statistics are [heads, tokens]."""
    case = PACKED
    inputs = case.inputs(dtype)
    want = forward(case, inputs)[0]
    g, arrays, tensors = weft.Graph(handle=checks.handle()), {}, {}

    def tokens(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.concatenate([array[0, :, :7], array[2]], 1).swapaxes(0, 1))

    def ragged(tensor: Any, key: str) -> Any:
        own = g.tensor([4, 1, 1, 1], data_type="i32", name=f"{key}_offsets")
        arrays[own] = np.array(offsets if key == name else RAGGED, np.int32).reshape(4, 1, 1, 1)
        tensor.set_dim([3, 2, 10, 64]).set_stride([1280, 64, 128, 1])
        return tensor.set_ragged_offset(own).set_ragged_offset_multiplier(128)

    for key in "qkv":
        tensors[key] = ragged(g.tensor([3, 2, 10, 64], data_type=dtype, name=key), key)
        arrays[tensors[key]] = tokens(inputs[key])
    for key in "seq_len_q", "seq_len_kv":
        tensors[key] = g.tensor([3, 1, 1, 1], data_type="i32", name=key)
        arrays[tensors[key]] = inputs[key]
    made, stats = g._sdpa_fwd(**tensors, **case.values(), name="a")
    o = ragged(made.set_output(True), "o")
    stats.set_output(True).set_dim([3, 2, 10, 1]).set_stride([34, 17, 1, 1])
    stats.set_ragged_offset(g.tensor([4, 1, 1, 1], data_type="i32"))
    arrays[stats.get_ragged_offset()] = np.array(RAGGED, np.int32).reshape(4, 1, 1, 1)
    arrays[stats] = np.full((2, 17), CANARY, np.float32)
    arrays[o] = checks.narrow(np.full((17, 2, 64), CANARY), dtype)
    return g, arrays, o, tokens(want)


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_statistics_with_heads_outside_of_tokens(dtype: str) -> None:
    g, arrays, o, want = garbage("", [], dtype)
    g.build()
    checks.execute(g, arrays)
    np.testing.assert_allclose(checks.exact(arrays[o]), want, atol=4e-3)
    stats = forward(PACKED, PACKED.inputs(dtype))[1][..., 0]
    got = next(array for array in arrays.values() if array.shape == (2, 17))
    np.testing.assert_allclose(got, np.concatenate([stats[0, :, :7], stats[2]], 1), atol=4e-3)


WRONG = {
    "negative end": ([0, 7, 7, -1], 3),
    "end beyond": ([0, 7, 7, 2**31 - 1], 3),
    "before": ([-1, 7, 7, 17], 0),
    "behind": ([0, 7, 8, 17], 2),
    "far behind": ([2**30, 7, 7, 17], 0),
    "of an empty one": ([0, -5, 7, 17], 1),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("name", ["q", "k", "v", "o"])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_offsets_out_of_range(name: str, case: str, dtype: str) -> None:
    """The CPU refuses them and writes nothing. On a GPU the sequences that are out of range have no rows, and
    nothing outside of the tensors, which are as short as the offsets say, is read or written."""
    offsets, entry = WRONG[case]
    for engine in checks.engine_names() if checks.DEVICE == "cpu" else ["cuda"]:
        g, arrays, o, want = garbage(name, offsets, dtype)
        g.create_execution_plan([answer["engine"] for answer in g.support()].index(engine), {})
        g.build_plan_at_index(0)
        if checks.DEVICE == "cpu":
            operand = f"{name}, tensor '{name}_offsets' .* is out of range: "
            message = f"entry {entry} of the ragged offsets of {operand}"
            with pytest.raises(weft.BadParameterError, match=message):
                g.execute(arrays)
            assert (arrays[o] == CANARY).all()
            continue
        checks.execute(g, arrays)
        got = checks.exact(arrays[o])
        end = offsets[3] if 0 <= offsets[3] <= 30 else -1
        for b, (first, last) in enumerate([(0, 7), (7, 7), (7, 17)]):
            is_there = 0 <= offsets[b] <= end - (last - first)
            mine = want[first:last] if is_there else CANARY if name in "qo" else 0
            np.testing.assert_allclose(
                got[first:last], np.broadcast_to(mine, got[first:last].shape), atol=4e-3
            )


def test_offsets_between_the_units_of_accesses() -> None:
    """Rows that begin inside of 16 bytes: the CPU reads them, a GPU treats their sequence as empty."""
    g, arrays, o, want = garbage("q", RAGGED, "f16")
    q, own = next((t, t.get_ragged_offset()) for t in arrays if t.name == "q")
    q.set_ragged_offset_multiplier(1)
    arrays[own] = (np.array([0, 7 * 128, 7 * 128 + 1, 17 * 128 + 1], np.int32)).reshape(4, 1, 1, 1)
    arrays[q] = np.concatenate([arrays[q][:7].ravel(), [np.nan], arrays[q][7:].ravel()]).astype(np.float16)
    g.build()
    checks.execute(g, arrays)
    want[7:] = want[7:] if checks.DEVICE == "cpu" else CANARY
    np.testing.assert_allclose(checks.exact(arrays[o]), want, atol=4e-3)


CHECKED = """
import checks, weft
from test_attention_ragged import RAGGED, WRONG, garbage
for name, offsets in ("k", RAGGED), ("v", WRONG["behind"][0]):
    g, arrays, o, want = garbage(name, offsets, "f16")
    g.build()
    try:
        checks.execute(g, arrays)
        print("ran")
    except weft.BadParameterError as error:
        print(error)
"""


@pytest.mark.skipif(checks.DEVICE == "cpu", reason="the CPU always checks")
def test_checks_on_request() -> None:
    """WEFT_CHECK=1 has a GPU refuse what the CPU refuses."""
    paths = [str(Path(__file__).parent), *sys.path]
    environment = os.environ | {"WEFT_CHECK": "1", "PYTHONPATH": os.pathsep.join(paths)}
    ran = subprocess.run([sys.executable, "-c", CHECKED], env=environment, capture_output=True, text=True)
    assert ran.stdout == (
        "ran\nsdpa_fwd 'a': entry 2 of the ragged offsets of v, tensor 'v_offsets' (uid 6), is out of range: "
        "expected 0..7 for 10 rows before the end at 17, got 8. Correct the contents of the tensor.\n"
    ), ran.stderr


def refused(g: weft.Graph, sentence: str) -> None:
    with pytest.raises(weft.WeftError, match=sentence):
        g.build()


@pytest.mark.parametrize(
    "key",
    ["bias", "sink_token", "dropout_seed", "dropout_offset", "attn_scale", "rng_dump", "amax_o", "seq_len_q"],
)
def test_operands_without_rows_are_padded(key: str) -> None:
    g = weft.Graph(device="cpu", io_data_type="f32")
    q, scalar = g.tensor([2, 1, 4, 8]), [1, 1, 1, 1]
    dims = {"bias": [2, 1, 4, 4], "rng_dump": [2, 1, 4, 4], "seq_len_q": [2, 1, 1, 1]}.get(key, scalar)
    dtype = "i32" if key in ("dropout_seed", "dropout_offset", "seq_len_q") else "f32"
    tensor = g.tensor(dims, data_type=dtype, name=key)
    tensor.set_ragged_offset(g.tensor([3, 1, 1, 1], data_type="i32"))
    g._sdpa_fwd(q=q, k=q, v=q, **{key: tensor})
    refused(g, rf"{key}, tensor '{key}' .* has ragged offsets\. Give a padded tensor")


@pytest.mark.parametrize("key", ["dBias", "dSink_token"])
def test_gradients_without_rows_are_padded(key: str) -> None:
    g = weft.Graph(device="cpu", io_data_type="f32")
    q, stats = g.tensor([2, 1, 4, 8]), g.tensor([2, 1, 4, 1])
    own = {"bias": g.tensor([2, 1, 4, 4])} if key == "dBias" else {"sink_token": g.tensor([1, 1, 1, 1])}
    gradient = g.tensor(name=key).set_ragged_offset(g.tensor([3, 1, 1, 1], data_type="i32"))
    g._sdpa_bwd(q=q, k=q, v=q, o=q, dO=q, stats=stats, **own, **{key: gradient})
    refused(g, rf"{key}, tensor '{key}' .* has ragged offsets\. Give a padded tensor")


def test_refusals() -> None:
    g = weft.Graph(device="cpu", io_data_type="f32")
    offsets, q = g.tensor([3, 1, 1, 1], data_type="i32"), g.tensor([2, 1, 4, 8], name="q")
    q.set_ragged_offset(offsets)
    g.sdpa(q, q, q)
    with pytest.raises(weft.WeftError, match="q has ragged offsets, but there is no seq_len_q"):
        g.build()
    g = weft.Graph(device="cpu", io_data_type="f32")
    q, bias = g.tensor([2, 1, 4, 8]), g.tensor([2, 1, 4, 4], name="bias")
    bias.set_ragged_offset(g.tensor([3, 1, 1, 1], data_type="i32"))
    g.sdpa(q, q, q, bias=bias)
    with pytest.raises(weft.WeftError, match=r"tensor 'bias' .* has ragged offsets\. Give a padded tensor"):
        g.build()

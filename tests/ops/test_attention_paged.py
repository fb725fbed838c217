"""Attention with paged keys and values against NumPy in float64: pages of any size, each side separately,
every mask, unused pages full of NaN, tables that point anywhere, and refusals."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import checks
import numpy as np
import pytest
import weft
from attention_oracle import BOTTOM_RIGHT, Case, forward, paged, repeat, run_forward, softmax


def check_paged(
    case: Case, k_page: int, v_page: int, dtype: str = "f32", spoil: bool = False, **how: Any
) -> None:
    """All four results. spoil: queries out of use are NaN, too."""
    case = replace(case, options={"paged_attention_max_seq_len_kv": case.columns} if k_page or v_page else {})
    inputs = case.inputs(dtype)
    want = forward(case, inputs)
    weights, *_ = softmax(case.scores(inputs), case.sinks(inputs))
    lost = weights @ np.abs(repeat(inputs["v"], case.heads[0]))
    given = paged(case, inputs, k_page, v_page)
    for b, rows in enumerate(case.lengths()[0].ravel() if spoil else ()):
        given["q"][b, :, rows:] = np.nan
    rounded = None if dtype in ("f32", "f64") else [checks.roundoff(dtype) * lost, None, None, None]
    checks.check(run_forward(case), given, want, magnitude=20, rounded=rounded, **how)


def sequences(queries: int = 5, keys: int = 100, depth: int = 64, group: int = 2, **more: Any) -> Case:
    """Three sequences: a full one, one that ends within a page, and one without keys."""
    more = {"seq_len_kv": [keys, max(keys - 7, 1), 0]} | more
    shape = (3, (2 * group, 2, 2), queries, keys, depth, more.pop("value_depth", depth), 0.1)
    return Case(*shape, **more)


SIZES = [1, 2, 3, 5, 16, 17, 32, 48, 64, 100, 128]


@pytest.mark.parametrize("size", SIZES)
def test_page_sizes(size: int) -> None:
    check_paged(sequences(), size, size, "bf16", spoil=True, layouts=["packed", "padded"])


@pytest.mark.parametrize(("k_page", "v_page"), [(16, 0), (0, 16), (7, 0), (0, 1), (16, 5), (3, 64), (64, 16)])
def test_keys_and_values_page_independently(k_page: int, v_page: int) -> None:
    """A side without pages is a plain tensor, and the two need not agree on their pages."""
    check_paged(sequences(3, 70), k_page, v_page, "f16")


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "e4m3"])
def test_types(dtype: str) -> None:
    case = sequences(4, 37, 24, value_depth=40)
    if dtype == "e4m3":
        case = replace(case, options={}, seq_len_kv=[37, 37, 37])
        inputs = case.inputs(dtype)
        given = paged(case, inputs, 4, 4)
        weights, *_ = softmax(case.scores(inputs), case.sinks(inputs))
        lost = weights @ np.abs(repeat(inputs["v"], 4))
        options = replace(case, options={"paged_attention_max_seq_len_kv": 37})
        rounded = [checks.roundoff("f16") * lost, None, None, None]
        checks.check(run_forward(options), given, forward(case, inputs), magnitude=20, rounded=rounded)
    else:
        check_paged(case, 4, 4, dtype)


MASKS = {
    "causal": {"right": 0},
    "causal at the end": {"right": 0, "alignment": BOTTOM_RIGHT, "seq_len_q": [5, 3, 4]},
    "window": {"left": 20, "right": 3, "alignment": BOTTOM_RIGHT},
    "bias": {"bias": (1, 4, 5, 100)},
    "mask": {"bias": (3, 1, 1, 100), "is_mask": True},
    "alibi": {"alibi": True, "right": 0, "alignment": BOTTOM_RIGHT},
    "sink": {"sink": True},
    "empty sequences": {"seq_len_q": [0, 5, 5], "seq_len_kv": [9, 0, 0]},
    "all": {
        "bias": (3, 4, 5, 100), "left": 60, "right": 2, "alignment": BOTTOM_RIGHT, "seq_len_q": [5, 4, 0],
        "seq_len_kv": [90, 3, 100], "alibi": True, "sink": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("size", [6, 32])
def test_masks(name: str, size: int) -> None:
    check_paged(sequences(**MASKS[name]), size, size, "bf16", spoil=True, layouts=["packed"])


@pytest.mark.parametrize(("queries", "group"), [(1, 1), (1, 8), (17, 1), (33, 1), (8, 8), (70, 2)])
def test_rows(queries: int, group: int) -> None:
    """Tiles of every height, and more queries than decoding takes."""
    check_paged(sequences(queries, 50, group=group), 16, 16, "bf16", layouts=["packed"])
    check_paged(sequences(queries, 50, group=group), 5, 5, "bf16", layouts=["packed"])


@pytest.mark.parametrize(("depth", "value_depth"), [(8, 8), (40, 24), (128, 128), (192, 128), (256, 256)])
def test_depths(depth: int, value_depth: int) -> None:
    case = sequences(2, 70, depth, value_depth=value_depth)
    check_paged(case, 16, 16, "bf16", layouts=["packed", "channels_last"])
    check_paged(case, 3, 3, "bf16", layouts=["packed"])


@pytest.mark.parametrize("splits", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [1, 11, 64])
def test_splits(splits: int, size: int) -> None:
    case = sequences(3, 300, seq_len_kv=[300, 130, 0])
    check_paged(case, size, size, "bf16", knobs={"SPLIT_K": splits}, layouts=["packed"])


@pytest.mark.parametrize("tile", range(1, 15))
def test_tiles(tile: int) -> None:
    queries = 2 if tile < 7 else 16 if tile < 11 else 32
    for size in 3, 32:
        case = sequences(queries, 90)
        check_paged(case, size, size, "bf16", knobs={"TILE_SIZE": tile}, layouts=["packed"])


def test_orders_of_containers() -> None:
    """Heads before or after keys, with gaps, and tables with other strides."""
    case = sequences(2, 60, 64, options={"paged_attention_max_seq_len_kv": 60})
    inputs = case.inputs("bf16")
    given = paged(case, inputs, 16, 16)
    heads, size, depth = given["k"].shape[1:]
    given["k"] = (given["k"], (size * heads * depth, depth, heads * depth, 1))
    given["v"] = (given["v"], (2 * size * heads * 72, size * 72, 72, 1))
    given["paged_attention_k_table"] = (given["paged_attention_k_table"], (1, 1, 3, 1))
    given["paged_attention_v_table"] = (given["paged_attention_v_table"].astype("i8"), (9, 1, 2, 1))
    weights, *_ = softmax(case.scores(inputs), case.sinks(inputs))
    lost = weights @ np.abs(repeat(inputs["v"], 4))
    rounded = [checks.roundoff("bf16") * lost, None, None, None]
    checks.check(
        run_forward(case), given, forward(case, inputs), magnitude=20, rounded=rounded, layouts=["packed"]
    )


def packed_tables(given: dict[str, Any], used: list[int], sizes: tuple[int, int]) -> None:
    """Moves the entries in use of all tables to their beginnings, and adds the offsets of sequences. Entries
    after those stay invalid."""
    for name, size in zip("kv", sizes, strict=True):
        table = given[f"paged_attention_{name}_table"]
        counts = [-(-keys // size) for keys in used]
        entries = np.concatenate([row[:count] for row, count in zip(table[:, 0, :, 0], counts, strict=True)])
        table.reshape(-1)[:] = np.resize(np.array([2**30, -7], np.int32), table.size)
        starts = np.cumsum([2, *counts])  # two entries before the first sequence are of no sequence
        table.reshape(-1)[starts[0] : starts[-1]] = entries
        given[f"{name}_offsets"] = starts.astype(np.int32).reshape(-1, 1, 1, 1)


def with_offsets(tensors: dict[str, Any]) -> dict[str, Any]:
    """The tensors of a graph without the offsets, which become those of the tables."""
    for name in "kv":
        tensors[f"paged_attention_{name}_table"].set_ragged_offset(tensors[f"{name}_offsets"])
    return {key: tensor for key, tensor in tensors.items() if not key.endswith("_offsets")}


def run_packed(case: Case) -> Any:
    return lambda g, **tensors: run_forward(case)(g, **with_offsets(tensors))


@pytest.mark.parametrize("sizes", [(16, 16), (5, 32)])
@pytest.mark.parametrize("queries", [1, 70])
@pytest.mark.parametrize("used", [[100, 0, 93, 7], [0, 17, 0, 0], [1, 40, 96, 0]])
def test_tables_of_one_sequence_after_the_other(
    used: list[int], queries: int, sizes: tuple[int, int]
) -> None:
    """A ragged page table stores a sequence's pages at its offset, also for decoding."""
    case = replace(sequences(queries, 100, seq_len_kv=used), batch=4)
    for dtype in "f32", "bf16":
        inputs = case.inputs(dtype)
        given = paged(case, inputs, *sizes)
        packed_tables(given, used, sizes)
        weights, *_ = softmax(case.scores(inputs), case.sinks(inputs))
        lost = weights @ np.abs(repeat(inputs["v"], case.heads[0]))
        rounded = None if dtype == "f32" else [checks.roundoff(dtype) * lost, None, None, None]
        plain = replace(case, options={"paged_attention_max_seq_len_kv": 100})
        want, layouts = forward(case, inputs), ["packed"]
        checks.check(run_packed(plain), given, want, magnitude=20, rounded=rounded, layouts=layouts)


@pytest.mark.skipif(checks.DEVICE == "cuda", reason="a GPU limits them")
@pytest.mark.parametrize(
    ("name", "place", "number", "message"),
    [
        ("seq_len_kv", 1, 101, "entry 1 of seq_len_kv, tensor 'seq_len_kv' (uid 4), is out of range: "
         "expected 0..100, got 101. Correct the contents of the tensor."),
        ("seq_len_kv", 0, -1, "entry 0 of seq_len_kv, tensor 'seq_len_kv' (uid 4), is out of range: expected "
         "0..100, got -1."),
        ("paged_attention_v_table", 2 + 5, 31, "page 5 of batch entry 0 in paged_attention_v_table, tensor "
         "'paged_attention_v_table' (uid 6), is out of range: expected 0..30, got 31. Correct the"),
        ("k_offsets", 2, -3, "entry 2 of the ragged offsets of paged_attention_k_table, tensor 'k_offsets' "
         "(uid 7), is out of range: expected 0..10 for 6 rows before the end at 16, got -3. Correct the"),
        ("k_offsets", 4, 10**9, "entry 4 of the ragged offsets of paged_attention_k_table, tensor "
         "'k_offsets' (uid 7), is out of range: it is the end of paged_attention_k_table, expected 0..28"),
    ],
)  # fmt: skip
def test_indices_out_of_range_are_refused(name: str, place: int, number: int, message: str) -> None:
    """Before anything is written, by every engine."""
    used = [100, 0, 93, 7]
    case = replace(sequences(3, 100, seq_len_kv=used), batch=4)
    given = paged(case, case.inputs("f32"), 16, 16)
    packed_tables(given, used, (16, 16))
    given[name].reshape(-1)[place] = number
    plain = replace(case, options={"paged_attention_max_seq_len_kv": 100})
    for engine in checks.engine_names():
        g = weft.Graph(handle=checks.handle())
        tensors = {key: g.tensor_like(a, name=key).set_uid(i) for i, (key, a) in enumerate(given.items(), 1)}
        o = g._sdpa_fwd(**with_offsets(tensors), **plain.values(), name="a")[0].set_output(True)
        g.create_execution_plan([answer["engine"] for answer in g.support()].index(engine), {})
        g.build_plan_at_index(0)
        result = np.full(o.dims, 77, np.float32)
        with pytest.raises(weft.BadParameterError, match=re.escape(f"sdpa_fwd 'a': {message}")):
            g.execute({tensors[key]: array for key, array in given.items()} | {o: result})
        assert (result == 77).all()


@pytest.mark.skipif(checks.DEVICE == "cpu", reason="the CPU refuses them")
@pytest.mark.parametrize("size", [3, 16])
@pytest.mark.parametrize("queries", [2, 70])
def test_pages_outside_count_as_the_nearest(size: int, queries: int) -> None:
    case = replace(sequences(queries, 48), seq_len_kv=[48, 48, 48])
    inputs = case.inputs("f32")
    given = paged(case, inputs, size, size)
    for name in "kv":
        container, table = given[name], given[f"paged_attention_{name}_table"]
        table[0, 0, 0], table[1, 0, 1], table[2] = -5, len(container), -(2**31)
        container[...] = np.nan_to_num(container)
        near = np.clip(table[:, 0, :, 0], 0, len(container) - 1)
        inputs[name] = np.moveaxis(container[near], 2, 1).reshape(inputs[name].shape)
    plain = replace(case, options={"paged_attention_max_seq_len_kv": 48})
    for dtype in "f32", "bf16":
        narrowed = {key: checks.narrow(inputs[key], dtype) for key in "qkv"}
        packed = {key: checks.narrow(given[key], dtype) for key in "qkv"}
        weights, *_ = softmax(case.scores(narrowed), case.sinks(narrowed))
        lost = weights @ np.abs(repeat(narrowed["v"], 4))
        rounded = None if dtype == "f32" else [checks.roundoff(dtype) * lost, None, None, None]
        checks.check(
            run_forward(plain), given | packed, forward(case, narrowed), magnitude=20, rounded=rounded
        )


@pytest.mark.parametrize(("most", "keys"), [(None, 76), (50, 50)])
def test_skv_defaults_to_the_length_that_tables_cover(most: int | None, keys: int) -> None:
    """Unless it is given: then it may be smaller."""
    g = weft.Graph(io_data_type="f32")
    tensors = {"q": g.tensor([2, 4, 3, 8]), "k": g.tensor([9, 2, 16, 8]), "v": g.tensor([9, 2, 4, 6])}
    tables = {"k": g.tensor([2, 1, 5, 1], data_type="i32"), "v": g.tensor([2, 1, 19, 1], data_type="i32")}
    tables = {f"paged_attention_{key}_table": table for key, table in tables.items()}
    dump = g.tensor(name="dump").set_output(True)
    more = {"seq_len_kv": g.tensor([2, 1, 1, 1], data_type="i32"), "rng_dump": dump}
    o, _ = g.sdpa(**tensors, **tables, **more, paged_attention_max_seq_len_kv=most, is_inference=True)
    o.set_output(True)
    g.validate()
    assert (o.get_dim(), dump.get_dim()) == ([2, 4, 3, 6], [2, 4, 3, keys])


@pytest.mark.parametrize("keys", [2**31 - 1, 2**31])
def test_as_many_keys_as_32_bits_count(keys: int) -> None:
    """Pages of one key each."""
    g = weft.Graph(io_data_type="f32")
    table = g.tensor([1, 1, keys, 1], data_type="i32")
    q, page, lengths = g.tensor([1, 1, 3, 8]), g.tensor([9, 1, 1, 8]), g.tensor([1, 1, 1, 1], data_type="i32")
    tables = {"paged_attention_k_table": table, "paged_attention_v_table": table}
    g.sdpa(q, page, page, **tables, seq_len_kv=lengths, is_inference=True, name="a")
    if keys < 2**31:
        g.validate()
        return
    message = "paged_attention_k_table is [1,1,2147483648,1], of pages of 1 keys: more than 2^31 keys."
    with pytest.raises(weft.BadParameterError, match=re.escape(message)):
        g.validate()


def test_a_maximum_without_tables_is_ignored_with_fp8() -> None:
    """As cuDNN's frontend does, also where the number is not that of the keys."""
    case = Case(batch=2, heads=(2, 2, 2), rows=5, columns=37, depth=24, value_depth=40)
    inputs = case.inputs("e4m3")
    weights, *_ = softmax(case.scores(inputs), case.sinks(inputs))
    rounded = [checks.roundoff("f16") * (weights @ np.abs(checks.exact(inputs["v"]))), None, None, None]
    plain = replace(case, options={"paged_attention_max_seq_len_kv": 12})
    checks.check(run_forward(plain), inputs, forward(case, inputs), magnitude=20, rounded=rounded)


# ---- Refusals ----------------------------------------------------------------------------------------------

TABLE, LENGTHS = ([2, 1, 3, 1], "i32"), ([2, 1, 1, 1], "i32")
K, V = ([9, 2, 16, 8], "f32"), ([9, 2, 16, 6], "f32")


def refuse(sentence: str, most: int | None = None, **changed: Any) -> None:
    """Returns the error if these replace the operands of a valid graph; None omits one."""
    tensors = {"q": ([2, 4, 7, 8], "f32"), "k": K, "v": V, "seq_len_kv": LENGTHS}
    tensors |= {"paged_attention_k_table": TABLE, "paged_attention_v_table": TABLE} | changed
    options = {} if most is None else {"paged_attention_max_seq_len_kv": most}
    given = {key: each for key, each in tensors.items() if each}
    checks.refuses(lambda g, **t: g._sdpa_fwd(**t, **options, name="a"), given, f"sdpa_fwd 'a': {sentence}")


def test_refusals() -> None:
    refuse(
        "paged_attention_k_table has 3 dims [2,3,1], expected 4..4.",
        paged_attention_k_table=([2, 3, 1], "i32"),
    )
    refuse(
        "paged_attention_v_table has dims [3,1,3,1], expected [2,1,3,1]. Give it these dims, or none.",
        paged_attention_v_table=([3, 1, 3, 1], "i32"),
    )
    refuse(
        "paged_attention_k_table has data type f32. Use INT32 or INT64.",
        paged_attention_k_table=([2, 1, 3, 1], "f32"),
    )
    refuse(
        "paged_attention_k_table is [2,1,3,1]: its pages of 16 keys hold fewer than the 49 keys of a "
        "sequence. Give it more pages.",
        49,
    )
    refuse(
        "paged_attention_k_table is set, but seq_len_kv is not. Give it, [B, 1, 1, 1] of INT32.",
        seq_len_kv=None,
    )
    refuse(
        "q is [2,4,7,8], k [9,2,16,7], v [9,2,16,6]; expected [B, Hq, Sq, Dqk], "
        "[container, Hk, page size, Dqk], [container, Hv, page size, Dv]. Swap",
        k=([9, 2, 16, 7], "f32"),
    )
    refuse(
        "q is [2,4,7,8], k [9,2,16,8], v [9,2,16,6]; expected [B, Hq, Sq, Dqk], "
        "[container, Hk, page size, Dqk], [B, Hv, Skv, Dv]. Swap",
        paged_attention_v_table=None,
    )
    refuse(
        "k is [0,2,16,8], [container, heads, page size, depth], without pages, or with empty ones. Give it "
        "at least one page with at least one key.",
        k=([0, 2, 16, 8], "f32"),
    )
    refuse("v is [9,2,0,6], [container, heads, page size, depth], without", 40, v=([9, 2, 0, 6], "f32"))
    refuse(
        "paged_attention_max_seq_len_kv is 48, but there is no page table. Leave it unset.",
        48, k=([2, 2, 48, 8], "f32"), v=([2, 2, 48, 6], "f32"), paged_attention_k_table=None,
        paged_attention_v_table=None,
    )  # fmt: skip
    refuse(
        "bias with dims [1,1,7,47] does not broadcast to [2,4,7,48]. Make each of its dims 1 or equal",
        bias=([1, 1, 7, 47], "f32"),
    )
    many = ([2, 1, 2**28, 1], "i32")
    refuse(
        "paged_attention_k_table is [2,1,268435456,1], of pages of 16 keys: more than 2^31 keys. Set "
        "paged_attention_max_seq_len_kv.",
        paged_attention_k_table=many, paged_attention_v_table=many,
    )  # fmt: skip

"""Special cases of attention: FP8 gradients, block scales, paged KV caches, dropout, sequences of mixed
lengths, and block masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks import oracle
from benchmarks.case import Case, Tensors
from benchmarks.products import RESULTS, TENSORS, sdpa
from benchmarks.shapes import BSHD, Attention, Operand

_SCALAR = (1, 1, 1, 1)
_BLOCK, _TILE = 32, 128  # elements per scale of MXFP8; queries and keys per tile of a block mask

_PLAIN = ("descale_q", "descale_k", "descale_v", "descale_dO")


def _scales(a: Attention) -> dict[str, float]:
    """Scales for which no factor and no result exceeds the range of E4M3, for some thousand keys. The first
    queries under a causal mask have large gradients."""
    of_results = 2.0**6 if a.is_causal else 2.0**8
    scales = dict.fromkeys(_PLAIN, 1.0) | {"descale_o": 2.0**-6, "scale_s": 2.0**8, "descale_s": 2.0**-8}
    scales |= {"descale_dP": 1 / of_results}
    return scales | {f"scale_{name}": of_results for name in ("dP", "dQ", "dK", "dV")}


def _options(a: Attention) -> dict[str, Any]:
    return {"attn_scale": a.scale} | ({"use_causal_mask": True} if a.is_causal else {})


def fp8_backward(tag: str, arithmetic: str, a: Attention) -> Case:
    """FP8 gradients with all scales and the largest magnitudes. Factors and results have three fraction bits,
    which is 2 or 3 % each."""
    dtype = TENSORS[arithmetic]
    inputs = {name: Operand(a.dims(name), dtype, BSHD) for name in ("q", "k", "v", "o", "dO")}
    inputs |= {"stats": Operand(a.dims("stats"), "f32")}
    inputs |= {name: Operand(_SCALAR, "f32") for name in _scales(a)}
    results = ("dQ", "dK", "dV")
    outputs = {name: Operand(a.dims(name), dtype, BSHD) for name in results}
    outputs |= {f"amax_{name}": Operand(_SCALAR, "f32") for name in (*results, "dP")}

    def build(_: Any, g: Any, t: Tensors) -> Tensors:
        return dict(
            zip(
                outputs, g.sdpa_fp8_backward(**{name: t[name] for name in inputs}, **_options(a)), strict=True
            )
        )

    def follows(xp: Any, t: dict[str, Any]) -> dict[str, Any]:
        scales = {name: xp.full(_SCALAR, value, dtype=xp.float64) for name, value in _scales(a).items()}
        results = oracle.sdpa_forward(xp, t, a)
        return scales | {"stats": results["stats"], "o": results["o"] / scales["descale_o"]}

    def judge(xp: Any, t: dict[str, Any]) -> dict[str, Any]:
        results = oracle.sdpa_backward(xp, t | {"o": t["o"] * t["descale_o"]}, a)
        return {name: each * t[f"scale_{name}"] for name, each in results.items()}

    case = Case(f"sdpa/{tag}", arithmetic, a.flops(True), inputs, outputs, build, judge, follows)
    return replace(case, largest_error=0.1) if arithmetic == "fp8" else case


def _blocks(dims: tuple[int, ...], axis: int) -> Operand:
    """Block scales along an axis."""
    return Operand(tuple(-(-n // _BLOCK) if i == axis else n for i, n in enumerate(dims)), "e8m0")


def mxfp8(tag: str, arithmetic: str, a: Attention, is_backward: bool = False) -> Case:
    """FP8 numbers with scales for blocks of 32, all 1. Bare: the same in bf16."""
    copies = {"q": 3, "k": 3, "v": 3, "dO": 3, "q_T": 2, "k_T": 2, "dO_T": 2} if is_backward else {}
    axes = copies or {"q": 3, "k": 3, "v": 2}
    dtype, out = TENSORS[arithmetic], RESULTS[arithmetic]
    inputs = {name: Operand(a.dims(name.removesuffix("_T")), dtype, BSHD) for name in axes}
    inputs |= {f"descale_{name}": _blocks(inputs[name].dims, axis) for name, axis in axes.items()}
    result = ("dQ", "dK", "dV") if is_backward else ("o",)
    outputs = {name: Operand(a.dims(name), out, BSHD) for name in result}
    outputs |= {f"amax_{name}": Operand(_SCALAR, "f32") for name in result}
    if is_backward:
        inputs |= {name: Operand(a.dims("o"), out, BSHD) for name in ("o_f16", "dO_f16")}
        inputs |= {"stats": Operand(a.dims("stats"), "f32")}

    def build(_: Any, g: Any, t: Tensors) -> Tensors:
        call = g.sdpa_mxfp8_backward if is_backward else g.sdpa_mxfp8
        results = [
            each for each in call(**{name: t[name] for name in inputs}, **_options(a)) if each is not None
        ]
        return dict(zip(outputs, results, strict=True))

    def follows(xp: Any, t: dict[str, Any]) -> dict[str, Any]:
        known = {
            name: xp.full(each.dims, 1.0, dtype=xp.float64)
            for name, each in inputs.items()
            if "descale" in name
        }
        if not is_backward:
            return known
        forward = oracle.sdpa_forward(xp, t, a)
        known |= {"o_f16": forward["o"], "stats": forward["stats"], "dO_f16": t["dO"]}
        return known | {f"{name}_T": t[name] for name in ("q", "k", "dO")}

    def judge(xp: Any, t: dict[str, Any]) -> dict[str, Any]:
        return (
            oracle.sdpa_backward(xp, t | {"o": t["o_f16"]}, a)
            if is_backward
            else oracle.sdpa_forward(xp, t, a)
        )

    bare = sdpa(tag, "bf16" if arithmetic == "fp8" else arithmetic, a, is_backward)
    return replace(
        bare,
        name=f"sdpa/{tag}",
        inputs=inputs,
        outputs=outputs,
        build=build,
        oracle=judge,
        derive=follows,
        bare=bare,
    )


def paged(tag: str, arithmetic: str, a: Attention, page: int) -> Case:
    """Keys and values in pages of a number of positions, in random order. Bare: contiguous."""
    plain = sdpa(tag, arithmetic, a)
    each, pages = a.keys // page, a.batch * a.keys // page
    container = Operand((pages, a.key_heads, page, a.width), TENSORS[arithmetic], BSHD)
    table = Operand((a.batch, 1, each, 1), "i32")
    inputs = {"q": plain.inputs["q"], "k": container, "v": container, "k_table": table, "v_table": table}
    inputs |= {name: Operand((a.batch, 1, 1, 1), "i32") for name in ("seq_len_q", "seq_len_kv")}

    def build(_: Any, g: Any, t: Tensors) -> Tensors:
        o, _ = g.sdpa(
            **{name: t[name] for name in ("q", "k", "v", "seq_len_q", "seq_len_kv")}, use_padding_mask=True,
            paged_attention_k_table=t["k_table"], paged_attention_v_table=t["v_table"],
            paged_attention_max_seq_len_kv=a.keys, generate_stats=False, **_options(a),
        )  # fmt: skip
        return {"o": o}

    def follows(xp: Any, _: dict[str, Any]) -> dict[str, Any]:
        lengths = {
            f"seq_len_{name}": xp.full((a.batch, 1, 1, 1), float(n), dtype=xp.float64)
            for name, n in (("q", a.queries), ("kv", a.keys))
        }
        number = xp.arange(pages, dtype=xp.float64).reshape(table.dims)
        return lengths | {"k_table": number * 5 % pages, "v_table": number * 5 % pages}

    def judge(xp: Any, t: dict[str, Any]) -> dict[str, Any]:
        results = {name: t[name] for name in "q"}
        for name in "kv":
            rows = [[int(page) for page in line] for line in t[f"{name}_table"][:, 0, :, 0]]
            entries = [
                xp.moveaxis(t[name][line], 1, 0).reshape(a.key_heads, a.keys, a.width) for line in rows
            ]
            results[name] = xp.stack(entries)
        return oracle.sdpa_forward(xp, results, a)

    name = f"{plain.name}_page{page}"
    return replace(plain, name=name, inputs=inputs, build=build, oracle=judge, derive=follows, bare=plain)


def dropped(tag: str, arithmetic: str, a: Attention, is_backward: bool = False) -> Case:
    """Dropout of a tenth of the weights, drawn by each library itself: results differ by a third from those
    of all weights. Bare: without dropout."""
    plain = sdpa(tag, arithmetic, a, is_backward)
    inputs = dict(plain.inputs) | {name: Operand(_SCALAR, "i64") for name in ("seed", "offset")}

    def build(_: Any, g: Any, t: Tensors) -> Tensors:
        known = {name: t[name] for name in plain.inputs} | _options(a)
        known["dropout"] = (0.1, t["seed"], t["offset"])
        outputs = g.sdpa_backward(**known) if is_backward else g.sdpa(generate_stats=False, **known)
        return dict(zip(plain.outputs, outputs, strict=False))

    def follows(xp: Any, t: dict[str, Any]) -> dict[str, Any]:
        known = plain.derive(xp, t) if plain.derive else {}
        return known | {name: xp.full(_SCALAR, 7.0, dtype=xp.float64) for name in ("seed", "offset")}

    name = f"{plain.name}_dropout"
    return replace(
        plain, name=name, inputs=inputs, build=build, derive=follows, bare=plain, largest_error=0.4
    )


def masked_dropout(tag: str, arithmetic: str, a: Attention, is_backward: bool = False) -> Case:
    """Dropout of a tenth of the weights by a boolean mask that all heads share. Bare: without dropout."""
    plain = sdpa(tag, arithmetic, a, is_backward)
    dims = (a.batch, 1, a.queries, a.keys)
    inputs = dict(plain.inputs) | {"mask": Operand(dims, "bool8"), "growth": Operand(_SCALAR, "f32")}

    def build(_: Any, g: Any, t: Tensors) -> Tensors:
        known = {name: t[name] for name in plain.inputs} | _options(a)
        known["dropout"] = (t["mask"], t["growth"])
        outputs = g.sdpa_backward(**known) if is_backward else g.sdpa(generate_stats=False, **known)
        return dict(zip(plain.outputs, outputs, strict=False))

    def follows(xp: Any, t: dict[str, Any]) -> dict[str, Any]:
        number = xp.arange(math.prod(dims), dtype=xp.float64) * 7
        mask = xp.where(number - 10 * xp.floor(number / 10) > 0, 1.0, 0.0).reshape(dims)
        drawn = {"mask": mask, "growth": xp.full(_SCALAR, 1 / 0.9, dtype=xp.float64)}
        return drawn | oracle.sdpa_forward(xp, t | drawn, a) if is_backward else drawn

    judge = partial(oracle.sdpa_backward if is_backward else oracle.sdpa_forward, a=a)
    name = f"{plain.name}_dropout_mask"
    return replace(plain, name=name, inputs=inputs, build=build, oracle=judge, derive=follows, bare=plain)


def _lengths(a: Attention) -> list[int]:
    """Lengths of mixed sequences in random order: from a fraction of the longest up to it, with a mean of
    half of it."""
    return [a.queries * (i * 5 % a.batch + 1) // a.batch for i in range(a.batch)]


def _starts(lengths: list[int]) -> list[int]:
    return [sum(lengths[:i]) for i in range(len(lengths) + 1)]


def _of_entries(xp: Any, t: dict[str, Any], a: Attention, each: Callable[..., Any]) -> dict[str, Any]:
    """Applies a function to each sequence and concatenates the results; unwritten elements are NaN."""
    lengths = _lengths(a)
    whole: dict[str, Any] = {}

    def rows(array: Any) -> Any:
        return xp.moveaxis(array, 1, 2).reshape(-1, array.shape[1], array.shape[3])

    for start, length in zip(_starts(lengths), lengths, strict=False):
        one = replace(a, batch=1, queries=length, keys=length)
        names = [name for name in ("q", "k", "v", "o", "dO") if name in t]
        taken = {name: xp.moveaxis(rows(t[name])[start : start + length], 0, 1)[None] for name in names}
        for name, made in each(xp, taken, one).items():
            dims = a.batch * a.queries, made.shape[1], made.shape[3]
            whole.setdefault(name, xp.full(dims, math.nan, dtype=xp.float64))
            whole[name][start : start + length] = xp.moveaxis(made[0], 0, 1)
    return {
        name: xp.moveaxis(array.reshape(a.batch, a.queries, *array.shape[1:]), 2, 1)
        for name, array in whole.items()
    }


def ragged(tag: str, arithmetic: str, a: Attention, is_backward: bool = False) -> Case:
    """Sequences of mixed lengths, contiguous in memory. Bare: all as long as the longest; both cases count
    the operations of the mixed lengths."""
    plain = sdpa(tag, arithmetic, a, is_backward)
    places = {"rows": a.heads * a.width} | ({"stats_rows": a.heads} if is_backward else {})
    inputs = {name: replace(each, order=BSHD) for name, each in plain.inputs.items()}
    inputs |= {f"{name}_offsets": Operand((a.batch + 1, 1, 1, 1), "i32") for name in places}
    inputs |= {name: Operand((a.batch, 1, 1, 1), "i32") for name in ("seq_len_q", "seq_len_kv")}

    def build(_: Any, g: Any, t: Tensors) -> Tensors:
        known = {name: t[name] for name in inputs if not name.endswith("offsets")}
        known |= _options(a) | {"use_padding_mask": True}
        for name in plain.inputs:
            t[name].set_ragged_offset(t["stats_rows_offsets" if name == "stats" else "rows_offsets"])
        outputs = g.sdpa_backward(**known) if is_backward else g.sdpa(generate_stats=False, **known)
        results = dict(zip(plain.outputs, outputs, strict=False))
        for each in results.values():
            each.set_ragged_offset(t["rows_offsets"])
        return results

    def follows(xp: Any, t: dict[str, Any]) -> dict[str, Any]:
        def column(numbers: list[int]) -> Any:
            return xp.stack([xp.full((1, 1, 1), float(n), dtype=xp.float64) for n in numbers])

        starts = _starts(_lengths(a))
        known = {f"{name}_offsets": column([n * step for n in starts]) for name, step in places.items()}
        known |= {name: column(_lengths(a)) for name in ("seq_len_q", "seq_len_kv")}
        if is_backward:
            outputs = _of_entries(xp, t, a, oracle.sdpa_forward)
            known |= {name: xp.nan_to_num(array) for name, array in outputs.items()}
        return known

    result = oracle.sdpa_backward if is_backward else oracle.sdpa_forward
    name = f"{plain.name}_ragged"
    judge = partial(_of_entries, a=a, each=result)
    return replace(plain, name=name, inputs=inputs, build=build, oracle=judge, derive=follows, bare=plain)


def block_masked(tag: str, arithmetic: str, a: Attention) -> Case:
    """Every second tile of 128 queries and keys, like the squares of a chessboard; only their operations
    count. Bare: all tiles."""
    plain = sdpa(tag, arithmetic, a)
    mask = Operand((1, 1, a.queries // _TILE, a.keys // _TILE), "i8")
    inputs = dict(plain.inputs) | {"block_mask": mask}

    def build(_: Any, g: Any, t: Tensors) -> Tensors:
        o, _ = g.sdpa(**{name: t[name] for name in inputs}, generate_stats=False, **_options(a))
        return {"o": o}

    def follows(xp: Any, _: dict[str, Any]) -> dict[str, Any]:
        rows, columns = (xp.arange(n, dtype=xp.float64) for n in mask.dims[2:])
        return {"block_mask": ((rows[:, None] + columns + 1) % 2).reshape(mask.dims)}

    judge = partial(oracle.sdpa_forward, a=a, kind="block_mask")
    half = replace(plain, name=f"{plain.name}_block_mask", flops=plain.flops / 2, bare=plain)
    return replace(half, inputs=inputs, build=build, oracle=judge, derive=follows)

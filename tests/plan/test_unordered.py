"""Gradients of attention are summed in an order that differs from run to run where that is faster, unless the
user forbids it."""

from __future__ import annotations

from typing import Any

import pytest
import weft
from weft import backend
from weft.enums import attribute_name, descriptor_type

UNORDERED = weft.numerical_note.NONDETERMINISTIC


def gradient(
    device: str = "sm_90", depth: int = 64, dtype: str = "bf16", values: int = 2, **options: Any
) -> weft.Graph:
    g = weft.Graph("gradient", device=device)
    q, o, d_o = (g.tensor([2, 4, 512, depth], data_type=dtype, name=name) for name in ("q", "o", "dO"))
    k = g.tensor([2, 2, 512, depth], data_type=dtype, name="k")
    v = g.tensor([2, values, 512, depth], data_type=dtype, name="v")
    extra = {name: make(g) if callable(make) else make for name, make in options.items()}
    stats = g.tensor([2, 4, 512, 1], data_type="f32", name="stats")
    wanted = extra.pop("wanted", ("dQ", "dK", "dV"))
    results = g.sdpa_backward(q, k, v, o, d_o, stats, **extra, name="a")
    for name, result in zip(("dQ", "dK", "dV"), results, strict=True):
        if name in wanted:
            result.set_output(True).set_data_type(dtype)
    return g


def plans(g: weft.Graph) -> list[str]:
    g.create_execution_plans()
    g.check_support()
    return [g.get_plan_name_at_index(i) for i in range(g.get_execution_plan_count())]


def answer(g: weft.Graph, engine: str = "cuda.unordered") -> dict[str, Any]:
    """Returns an engine's answer."""
    (found,) = [each for each in g.support() if each["engine"] == engine]
    return found


def test_the_faster_engine_comes_first() -> None:
    g = gradient()
    assert answer(g)["families"] == answer(g, "cuda")["families"] == ["cuda.attention_hopper"]
    assert plans(g) == ["eng2", "eng0"]


def test_steps_report_that_they_are_unordered() -> None:
    for notes, expected in ([], ["unordered"]), ([UNORDERED], []):
        g = gradient().deselect_numeric_notes(notes).build()
        assert [step["relaxations"] for step in g.plan.report["steps"]] == [expected]


def test_notes_keep_or_drop_what_is_unordered() -> None:
    assert plans(gradient().select_numeric_notes([UNORDERED])) == ["eng2"]
    assert plans(gradient().deselect_numeric_notes([UNORDERED])) == ["eng0"]


def test_who_wants_the_same_bits_gets_them() -> None:
    g = gradient(use_deterministic_algorithm=True)
    assert plans(g) == ["eng0"]
    assert answer(g)["reason"] == (
        "sdpa_bwd 'a': a deterministic result is required, and this kernel adds dQ in any order; the "
        "portable attention family handles it."
    )


def test_graphs_without_gradients_of_attention_have_no_such_engine() -> None:
    g = weft.Graph("product", device="sm_90")
    g.matmul(*(g.tensor([64, 64], data_type="bf16") for _ in "ab")).set_output(True)
    reason = "engine cuda.unordered: no operation of graph 'product' would be summed nondeterministically."
    assert answer(g)["reason"] == reason


def bias(g: weft.Graph) -> Any:
    return g.tensor([1, 1, 512, 512], data_type="bf16", name="bias")


def drawn(g: weft.Graph) -> Any:
    return (0.5, *(g.tensor([1, 1, 1, 1], data_type="i32", name=name) for name in ("seed", "offset")))


def sink(g: weft.Graph) -> Any:
    return g.tensor([1, 4, 1, 1], data_type="f32", name="sink")


NO_TMA_ROWS = "must have contiguous rows, and strides and alignment of multiples of 16 bytes, for TMA."
REFUSALS: list[tuple[dict[str, Any], str]] = [
    (
        {"bias": bias, "dropout": drawn},
        "with the sums of dQ there are too few registers for dropout with a bias or a score modifier",
    ),
    (
        {"dtype": "f16", "dropout": drawn},
        "with the sums of dQ there are too few registers for dropout of f16",
    ),
    ({"values": 4}, "this kernel computes dK and dV together, and k and v have different numbers of heads"),
    (
        {"depth": 136},
        "head dimensions 136 and 136 are too large for Hopper's backward kernel to compute all gradients",
    ),
]


@pytest.mark.parametrize(("options", "reason"), REFUSALS)
def test_what_the_kernel_does_not_do(options: dict[str, Any], reason: str) -> None:
    g = gradient(**options)
    assert answer(g)["reason"] == f"sdpa_bwd 'a': {reason}; the portable attention family handles it."
    assert plans(g)[0] == "eng0"


def test_layouts_and_types_that_it_does_not_take() -> None:
    assert answer(gradient(depth=68))["reason"] == f"sdpa_bwd 'a': tensor 'q' (uid 1) {NO_TMA_ROWS}"
    reason = "sdpa_bwd 'a': tensor 'q' (uid 1) has data type f32, q has f32; all must be f16 or all bf16."
    assert answer(gradient(dtype="f32"))["reason"] == reason


def test_single_requested_gradients() -> None:
    """The sums of dQ are made with all others; without them, a pass that makes nothing wanted is left out."""
    passes = {("dQ",): "dQ, 128 x 128 tiles", ("dK", "dV"): "dK and dV, 128 x 128 tiles"}
    for wanted, words in passes.items():
        g = gradient(wanted=wanted)
        reason = "sdpa_bwd 'a': this kernel computes dQ, dK and dV together, and not all are requested; "
        assert answer(g)["reason"] == reason + "the portable attention family handles it."
        g.build()
        assert words in g.explain()


@pytest.mark.parametrize("options", [{"use_alibi_mask": True}, {"dropout": drawn}, {"sink_token": sink}])
@pytest.mark.parametrize("depth", [64, 128])
def test_terms_that_it_takes(options: dict[str, Any], depth: int) -> None:
    assert plans(gradient(depth=depth, **options)) == ["eng2", "eng0"]


@pytest.mark.parametrize("device", ["sm_80", "sm_100", "sm_120"])
def test_other_chips_do_not_have_it(device: str) -> None:
    said = answer(gradient(device=device))["reason"]
    assert said.startswith("Hopper's attention kernels require compute capability 9.0, ")


def test_shapes_that_the_engine_declines_run_on_the_one_that_takes_all() -> None:
    """An execution of a legal shape is never refused for the engine that was chosen for another."""
    g = gradient()
    g.create_execution_plan(2)
    g.build_plan_at_index(0)
    wide = {"q": 4, "k": 2, "v": 2, "o": 4, "dO": 4, "a::dQ": 4, "a::dK": 2, "a::dV": 2}  # heads
    assert "head dimensions 256" in answer(gradient(depth=256))["reason"]
    pack = backend.Descriptor(descriptor_type.VARIANT_PACK_DESCRIPTOR)
    slots = {slot.name: slot.uid for slot in g.plan.slots}
    strides = [n for heads in wide.values() for n in (heads * 512 * 256, 512 * 256, 256, 1)]
    for attribute, kind, values in [
        ("UNIQUE_IDS", "INT64", list(slots.values())),
        ("DATA_POINTERS", "VOID_PTR", [backend.ffi.NULL] * len(slots)),
        ("OVERRIDE_UNIQUE_IDS", "INT64", [slots[name] for name in wide]),
        ("OVERRIDE_SHAPES", "INT64", [n for heads in wide.values() for n in (2, heads, 512, 256)]),
        ("OVERRIDE_STRIDES", "INT64", strides),
    ]:
        pack.set(attribute_name[f"VARIANT_PACK_{attribute}"], kind, values)
    pack.finalize()
    wanted = backend.get_execution_plan_workspace_size(weft.create_handle("cpu"), g.plan.descriptor, pack)
    other = gradient(depth=256)
    other.create_execution_plan(0)
    assert wanted == other.get_workspace_size_plan_at_index(0)

"""Keys of plans in JAX programs: a call that differs in one field has its own plan, and an equal call finds
the existing one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
from weft.enums import device_kind
from weft.jax import graph_builder
from weft.jax.graph_builder import Call, Form
from weft.jax.operators import products

F4, F8 = np.dtype("f4"), np.dtype("f8")
NONE = products._Epilogue()
SQUARE = Form((4, 4), F4)

ROWS, BATCH = products._product_rows, products._product


def call(*forms: Form, operator: Any = ROWS, turned: Any = (False,) * 2, type_: Any = F4, **more: Any) -> Any:
    """A product of these arguments, two squares unless others are given."""
    return Call(operator, (turned, type_, NONE._replace(**more))), forms or (SQUARE, SQUARE)


CALLS: dict[str, tuple[Call, tuple[Form, ...]]] = {
    "itself": call(),
    "rows": call(Form((5, 4), F4), SQUARE),
    "columns": call(SQUARE, Form((4, 5), F4)),
    "a batch": call(Form((1, 4, 4), F4), SQUARE, operator=BATCH),
    "the left type": call(Form((4, 4), F8), SQUARE),
    "the right type": call(SQUARE, Form((4, 4), F8)),
    "the result's type": call(type_=F8),
    "the left order": call(turned=(True, False)),
    "the right order": call(turned=(False, True)),
    "both orders": call(turned=(True, True)),
    "an activation": call(activation="relu"),
    "another activation": call(activation="silu"),
    "a second result": call(activation="relu", is_kept=True),
    "a residual": call(SQUARE, SQUARE, SQUARE, has_residual=True),
    "a bias": call(SQUARE, SQUARE, Form((1, 4), F4), has_bias=True),
}
"""By the field that differs from those of the first one."""


def prepared(name: str) -> Any:
    return graph_builder.prepare(*CALLS[name], device_kind.CPU, "")


def test_calls_that_differ_in_one_field_have_plans_of_their_own() -> None:
    graph_builder.prepare.cache_clear()
    first = {name: prepared(name) for name in CALLS}
    assert graph_builder.prepare.cache_info().misses == len(CALLS)
    plans = {(each.key, each.places) for each in first.values()}
    assert len(plans) == len(CALLS), "two calls have the plan of one"
    assert all(prepared(name) is each for name, each in first.items())
    assert graph_builder.prepare.cache_info().misses == len(CALLS)


def test_all_bits_and_the_chip_are_part_of_a_key() -> None:
    graph_builder.prepare.cache_clear()
    made, forms = CALLS["itself"]
    for is_exact in (False, True):
        for arch in ("", "sm_90"):
            graph_builder.prepare(made._replace(is_exact=is_exact), forms, device_kind.CPU, arch)
    assert graph_builder.prepare.cache_info().misses == 4


def test_all_bits_decide_about_narrowing_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    large = (Form((512, 512), F4), Form((512, 512), F4))
    found = [
        graph_builder.prepare(call()[0]._replace(is_exact=is_exact), large, device_kind.CUDA, "sm_90").source
        for is_exact in (False, True)
    ]
    assert [each.engine.endswith("tf32") for each in found] == [True, False]

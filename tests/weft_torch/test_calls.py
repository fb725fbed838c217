"""Calls that run in libweft give the same results as in Python; calls that no key covers run in Python."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref

import pytest
import weft

torch = pytest.importorskip("torch")
import weft.torch as weft_torch  # noqa: E402
from weft.torch import calls  # noqa: E402
from weft_cffi._weft import ffi  # noqa: E402

DEVICE = os.environ.get("WEFT_TEST_DEVICE", "cpu")
FUNCTIONS = calls.FUNCTIONS
OPERATORS = weft_torch.OPERATORS


def found() -> int:
    assert FUNCTIONS is not None, "this interpreter and this torch are known"
    return FUNCTIONS.found()


def rows(*shape, dtype=torch.float32):
    """Random numbers on the device under test."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, dtype=dtype, generator=generator, device="cpu").to(DEVICE)


CASES = {
    "one result": ("softmax", (rows(3, 5), 1, False)),
    "several results": ("layer_norm", (rows(3, 5), [5], rows(5), None, 1e-5)),
    "a result that is not wanted": (
        "layer_norm_backward",
        (rows(3, 5), rows(3, 5), [5], rows(3, 1), rows(3, 1), rows(5), rows(5), [True, True, False]),
    ),
    "arguments left out": ("linear", (rows(3, 5), rows(4, 5))),
    "text": ("linear", (rows(3, 5), rows(4, 5), rows(4), "gelu")),
    "a data type": ("softmax_backward", (rows(3, 5), rows(3, 5), 1, torch.float32)),
    "strides": ("mm", (rows(5, 3).t(), rows(4, 5).t())),
    "double": ("mm", (rows(3, 5, dtype=torch.float64), rows(5, 4, dtype=torch.float64))),
    "a parameter": ("mm", (rows(3, 5), torch.nn.Parameter(rows(5, 4)).requires_grad_(False))),
}


@pytest.mark.parametrize("case", CASES)
def test_a_call_made_again_gives_the_same_bits_in_libweft(case) -> None:
    name, arguments = CASES[case]
    operator = OPERATORS[name]
    expected, first, before = operator(*arguments), operator.call(*arguments), found()
    again = operator.call(*arguments)
    assert found() == before + 1
    for each in (first, again):
        torch.testing.assert_close(each, expected, rtol=0, atol=0)


def test_calls_that_differ_in_anything_have_plans_of_their_own() -> None:
    x, call = rows(4, 4), OPERATORS["softmax"].call
    for _ in range(2):
        for shown, dim in ((x, 0), (x, 1), (x.t(), 0), (x[:2], 1), (x[:, :2], 1), (x.double(), 1)):
            torch.testing.assert_close(call(shown, dim, False), torch.softmax(shown, dim))
    linear = OPERATORS["linear"].call
    for _ in range(2):
        for activation, expected in (("relu", torch.relu), ("silu", torch.nn.functional.silu)):
            torch.testing.assert_close(linear(x, x, x[0], activation), expected(x @ x.t() + x[0]))


def test_named_arguments_are_distinguished() -> None:
    bias, a, b = rows(4), rows(3, 5), rows(5, 4)
    with weft_torch.enable(["addmm"]) as enabled:
        for how in ({}, {"alpha": 2}, {"beta": 2}, {"beta": 0.5, "alpha": 3}) * 2:
            expected = how.get("beta", 1) * bias + how.get("alpha", 1) * (a @ b)
            torch.testing.assert_close(torch.addmm(bias, a, b, **how), expected)
    assert enabled.report() == {"aten::addmm": {"served": 8}}


def test_what_torch_refuses_is_refused_each_time() -> None:
    with weft_torch.enable():
        for _ in range(3):
            with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
                torch.mm(rows(2, 3), rows(4, 5))


def test_a_number_beyond_c_is_pythons() -> None:
    operator = FUNCTIONS.operator(lambda *_: None, lambda *given: given)
    assert operator(2**70, "\ud800") == (2**70, "\ud800")


class Other(torch.Tensor):
    """A tensor subclass."""


UNKNOWN = {
    "a class of its own": rows(2).as_subclass(Other),
    "sparse": torch.eye(2).to_sparse(),
    "a list of tensors": [rows(2)],
    "complex": 1j,
    "more than a key holds": [0] * 2000,
    "longer than a key": "x" * 20000,
}


@pytest.mark.parametrize("value", UNKNOWN.values(), ids=UNKNOWN)
def test_calls_without_a_key_run_in_python(value) -> None:
    asked = []
    operator = FUNCTIONS.operator(asked.append, lambda *given, **named: (given, named))
    given, named = operator(value, name=value)
    assert given[0] is value
    assert named["name"] is value
    assert not asked


def test_a_function_that_was_found_is_called_and_raises_as_it_does() -> None:
    def refuse(x):
        raise KeyError(x)

    operator = FUNCTIONS.operator(lambda x: refuse if x else None, lambda x: x)
    for _ in range(2):
        assert operator(0) == 0
        with pytest.raises(KeyError, match="1"):
            operator(1)
    failing = FUNCTIONS.operator(refuse, lambda x: x)
    with pytest.raises(KeyError, match="2"):
        failing(2)


def test_an_operator_that_is_gone_is_forgotten() -> None:
    def find(_):
        return abs

    held, operator = weakref.ref(find), FUNCTIONS.operator(find, str)
    assert operator(-2) == operator(-2) == 2
    del find, operator
    assert held() is None


def test_of_many_kinds_of_calls_some_are_kept_and_none_is_mixed_up() -> None:
    class Double:
        def __call__(self, x):
            return 2 * x

    made: list[weakref.ref[Double]] = []

    def find(x):
        double = Double()
        made.append(weakref.ref(double))
        return double

    operator = FUNCTIONS.operator(find, None)
    assert [operator(i) for i in range(10000)] == [2 * i for i in range(10000)]
    assert 1000 < sum(each() is not None for each in made) <= 4096
    weft_torch.clear_cache()
    assert not any(each() for each in made)
    assert operator(1) == 2


def test_clearing_the_cache_rebuilds_plans() -> None:
    x, call = rows(3, 7), OPERATORS["softmax"].call
    call(x, 1, False)
    weft_torch.clear_cache()
    before = weft_torch.cache_info()
    call(x, 1, False)
    call(x, 1, False)
    after = weft_torch.cache_info()
    assert (after["misses"], after["hits"]) == (before["misses"] + 1, before["hits"] + 1)


def test_calls_hold_nothing() -> None:
    x, w = rows(3, 5), rows(4, 5)
    call, arguments = OPERATORS["linear"].call, (x, w, None, "none")
    call(*arguments)
    gc.collect()
    before = [sys.getrefcount(each) for each in (None, x, w, arguments)]
    results = [weakref.ref(call(*arguments)) for _ in range(1000)]
    after = [sys.getrefcount(each) for each in (None, x, w, arguments)]
    assert not any(each() is not None for each in results)
    assert after[1:] == before[1:]
    assert abs(after[0] - before[0]) < 500


def test_threads_share_plans() -> None:
    x, call, wrong = rows(64, 64), OPERATORS["softmax"].call, []

    def work(i):
        for _ in range(200):
            if not torch.allclose(call(x + i, 1, False), torch.softmax(x, 1), atol=1e-5):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_without_libwefts_part_calls_are_pythons(monkeypatch) -> None:
    monkeypatch.setattr(calls, "FUNCTIONS", None)
    before = weft_torch.cache_info()
    x = rows(3, 9).requires_grad_()
    with weft_torch.enable(["softmax", "softmax_backward", "max_pool_values"]) as enabled:
        for _ in range(2):
            torch.softmax(x, 1)[0, 0].backward()
            torch.nn.functional.max_pool2d(x[None].detach(), 3)
    names = ("_softmax", "_softmax_backward_data", "max_pool2d")
    assert enabled.report() == {f"aten::{name}": {"served": 2} for name in names}
    assert weft_torch.cache_info()["misses"] == before["misses"] + 3


def test_a_missing_integration_is_reported(monkeypatch) -> None:
    def fail(name):
        raise weft.UnavailableError(f"no {name}.")

    monkeypatch.setattr(calls.integrations, "load", fail)
    with pytest.warns(UserWarning, match=r"^no torch\. Until then, calls of operators run in Python"):
        assert calls._functions() is None


def test_an_interpreter_of_many_locks_is_not_known(monkeypatch) -> None:
    monkeypatch.setattr(calls.sysconfig, "get_config_var", lambda name: name == "Py_GIL_DISABLED")
    assert calls._functions() is None


def test_on_a_gpu_a_call_asks_which_is_current_and_for_its_stream(monkeypatch) -> None:
    """The GPU path of a plan, with host memory in place of the GPU's."""
    current, asked = [3], []
    monkeypatch.setattr(calls, "current_gpu", lambda: current[0])
    monkeypatch.setattr(calls, "stream_of", lambda ordinal: asked.append(ordinal) or 0)
    functions = calls._functions()
    try:
        x = rows(6, 10).cpu()
        plan = OPERATORS["softmax"]._ready((x, 1, False))
        address, places = int(ffi.cast("uintptr_t", plan.plan.descriptor.pointer)), (0, ~0)
        made = []

        def allocate(*how):
            made.append(torch.empty_strided(how[0], how[1], dtype=how[2], device="cpu"))
            return made[-1]

        results, workspace = (((6, 10), (10, 1), torch.float32),), ((1 << 16,), (1,), torch.uint8)
        prepared = functions.prepare(address, places, results, allocate, workspace, (3,), plan)
        call = functions.operator(lambda *_: prepared, lambda *_: "Python's")
        torch.testing.assert_close(call(x, 1), torch.softmax(x, 1))
        assert [each.dtype for each in made] == [torch.float32, torch.uint8]
        assert asked == [3]
        current[0] = 4
        assert call(x, 1) == "Python's"
        current[0] = 3
        made.clear()
        monkeypatch.setattr(torch, "empty_strided", None)
        with pytest.raises(TypeError, match="not callable"):
            call(x, 1)
        assert functions.served(call) == 1
    finally:
        monkeypatch.undo()
        calls._functions()

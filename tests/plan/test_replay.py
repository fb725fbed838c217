"""Plans that launch their kernels as one CUDA graph give the same results as separate launches; on the CPU
nothing is launched. test_emulated.py runs them on the emulated GPU."""

from __future__ import annotations

import numpy as np
import pytest
import weft

RNG = np.random.default_rng(3)


def on_device(array: np.ndarray) -> weft.DeviceArray:
    made = weft.DeviceArray(array.shape, "f32", handle=weft.create_handle())
    return made.copy_from(array)


def chain(**options: str) -> weft.Graph:
    """softmax(x w) s + b: several kernels, and a number that is passed by value."""
    g = weft.Graph(io_data_type="f32", handle=weft.create_handle())
    x, w = g.tensor([1, 8, 32], name="x"), g.tensor([1, 32, 16], name="w")
    s, b = g.tensor([1, 1, 1], name="s", is_pass_by_value=True), g.tensor([1, 1, 16], name="b")
    g.add(g.mul(g.softmax(g.matmul(x, w)), s), b).set_name("y").set_output(True)
    return g.build(**options)


def expected(x: np.ndarray, w: np.ndarray, s: float, b: np.ndarray) -> np.ndarray:
    weights = np.exp(x.astype("f8") @ w)
    return weights / weights.sum(-1, keepdims=True) * s + b


def test_memory_and_numbers_change_from_run_to_run() -> None:
    plan = chain().plan
    replay = plan.as_cuda_graph()
    w, b = (RNG.standard_normal(shape).astype("f4") for shape in [(1, 32, 16), (1, 1, 16)])
    shared, sets = {"w": on_device(w), "b": on_device(b)}, []
    for _ in range(2):
        x = RNG.standard_normal((1, 8, 32)).astype("f4")
        sets.append((x, on_device(x), on_device(np.empty((1, 8, 16), "f4"))))
    for x, given, out in [sets[0], sets[0], sets[1], sets[0], sets[1]]:
        for s in (2.0, 3.0):
            replay(x=given, s=s, out={"y": out}, **shared)
            single = plan(x=given, s=s, **shared)
            assert np.array_equal(np.asarray(out.numpy()), np.asarray(single.numpy()))
            np.testing.assert_allclose(out.numpy(), expected(x, w, s, b), rtol=0, atol=2e-2)


def test_a_binding_sees_new_values() -> None:
    plan = chain(launch="graph").plan
    x, w, b = (RNG.standard_normal(shape).astype("f4") for shape in [(1, 8, 32), (1, 32, 16), (1, 1, 16)])
    given, out = on_device(x), on_device(np.empty((1, 8, 16), "f4"))
    run = plan.bind(x=given, w=on_device(w), b=on_device(b), s=1.0, out={"y": out})
    for _ in range(3):
        x = RNG.standard_normal(x.shape).astype("f4")
        given.copy_from(x)
        run()
        np.testing.assert_allclose(out.numpy(), expected(x, w, 1.0, b), rtol=0, atol=2e-2)


def test_other_launches_are_refused() -> None:
    with pytest.raises(weft.BadParameterError, match=r"launch is 'once'\. Use 'kernels' or 'graph'\.$"):
        chain(launch="once")

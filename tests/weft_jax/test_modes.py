"""weft.jax's operators in JAX's modes and at its edges: sizes of 0, jax.disable_jit, jax_debug_nans, meshes
with explicit axes, policies of jax.checkpoint, export, names in programs, and calls outside jit."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
import jax
import jax.export
import jax.numpy as jnp
import weft
import weft.jax as weft_jax
from jax_cases import CASES, EDGE, arguments, functions
from jax_checks import close, gradients, normal
from weft.jax import calls

P = jax.sharding.PartitionSpec


def value_and_gradients(function: Any, given: list[Any]) -> Any:
    return function(*given), gradients(function, *given)


# ---- Sizes of 0 --------------------------------------------------------------------------------------------


def empty_cases() -> list[tuple[str, int]]:
    """Each case with each extent of its shapes set to 0."""
    return [(name, n) for name in EDGE for n in sorted({n for s in CASES[name].shapes for n in s})]


@pytest.mark.parametrize(("name", "extent"), empty_cases())
def test_sizes_of_zero(name: str, extent: int) -> None:
    case = CASES[name]
    mine, theirs = functions(case)
    given = [normal(*(0 if n == extent else n for n in shape)) for shape in case.shapes]
    try:
        wanted = jax.jit(lambda *x: value_and_gradients(theirs, x))(*given)
    except (TypeError, ValueError, ZeroDivisionError):  # the oracle divides by the extent, or JAX refuses
        with contextlib.suppress(weft.BadParameterError):
            assert np.isfinite(mine(*given)).all()
        return
    close(jax.jit(lambda *x: value_and_gradients(mine, x))(*given), wanted)


@pytest.mark.parametrize("name", EDGE)
def test_vmap_over_nothing(name: str) -> None:
    mine, theirs = functions(CASES[name])
    for i, shape in enumerate(CASES[name].shapes):
        given = arguments(CASES[name])
        given[i] = jnp.zeros((0, *shape))
        axes = [0 if i == at else None for at in range(len(given))]
        wanted = jax.eval_shape(jax.vmap(theirs, axes), *given)
        close(jax.jit(jax.vmap(mine, axes))(*given), jnp.zeros(wanted.shape, wanted.dtype))


def test_vmap_over_nothing_of_a_graph() -> None:
    run = weft_jax.graph(lambda g, x, w: g.matmul(x, w))
    made = jax.vmap(run, (0, None))(jnp.zeros((0, 3, 4)), jnp.zeros((4, 5)))
    assert (made.shape, made.dtype) == ((0, 3, 5), np.float64)


# ---- Debugging ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EDGE)
def test_disable_jit(name: str) -> None:
    mine, theirs = functions(CASES[name])
    given = arguments(CASES[name])
    wanted = jax.jit(lambda *x: value_and_gradients(theirs, x))(*given)
    with jax.disable_jit():
        close(value_and_gradients(mine, given), wanted)


def test_disable_jit_and_a_graph() -> None:
    run = weft_jax.graph(lambda g, x: g.relu(x))
    with jax.disable_jit():
        close(run(jnp.array([-1.0, 2.0])), jnp.array([0.0, 2.0]))


@pytest.fixture
def debug_nans():
    jax.config.update("jax_debug_nans", True)
    yield
    jax.config.update("jax_debug_nans", False)


@pytest.mark.parametrize("name", ["matmul", "linear_relu", "layer_norm", "rms_norm", "conv", "attention"])
def test_debug_nans(name: str, debug_nans: None) -> None:
    """The error names the operator, in jit and outside."""
    mine, _ = functions(CASES[name])
    given = arguments(CASES[name])
    given[0] = jnp.full_like(given[0], jnp.inf)
    for run in (mine, jax.jit(mine)):
        with pytest.raises(FloatingPointError, match=r"invalid value \(nan\) encountered in weft_\w+"):
            jax.block_until_ready(run(*given))


@pytest.mark.parametrize("name", EDGE)
def test_strict_promotion_and_checks(name: str) -> None:
    """JAX checks each program, and refuses operations on arrays of different types."""
    mine, _ = functions(CASES[name])
    given = arguments(CASES[name], jnp.bfloat16)

    def second(*x: Any) -> Any:
        return jax.jvp(lambda *x: gradients(mine, *x), x, x)

    with jax.numpy_dtype_promotion("strict"), jax.enable_checks(True):
        jax.jit(second).lower(*given)


# ---- Several devices ---------------------------------------------------------------------------------------


def explicit_mesh() -> Any:
    if len(jax.devices()) < 2:
        pytest.skip("JAX has one device")
    if not hasattr(jax, "set_mesh"):
        pytest.skip("jax.set_mesh is not there: this JAX is older than 0.7")
    kinds = (jax.sharding.AxisType.Explicit,)
    return jax.make_mesh((2,), ("data",), axis_types=kinds, devices=jax.devices()[:2])


def along(rank: int, axis: int | None) -> Any:
    """One dimension over the mesh."""
    return P(*("data" if i == axis else None for i in range(rank)))


def sharded_cases() -> list[tuple[str, int, int]]:
    """Each dimension of each argument that two devices can share."""
    return [
        (name, i, at)
        for name in EDGE
        for i, shape in enumerate(CASES[name].shapes)
        for at, n in enumerate(shape)
        if n % 2 == 0
    ]


@pytest.mark.parametrize("name", EDGE)
def test_explicit_mesh(name: str) -> None:
    """Results and gradients are right whatever is sharded, and gradients have the arguments' types."""
    mesh = explicit_mesh()
    mine, theirs = functions(CASES[name])
    given = arguments(CASES[name])
    wanted = jax.jit(lambda *x: value_and_gradients(theirs, x))(*given)
    with jax.set_mesh(mesh):
        for _, i, at in [each for each in sharded_cases() if each[0] == name]:
            placed = [jax.device_put(x, P()) for x in given]
            placed[i] = jax.device_put(given[i], along(given[i].ndim, at))
            got = jax.jit(lambda *x: value_and_gradients(mine, x))(*placed)
            close(got, wanted)
            assert [jax.typeof(x) for x in got[1]] == [jax.typeof(x) for x in placed]


STAYS_SHARDED = {
    # case: argument, its dimension, dimension of the result
    "linear_relu": [(0, 0, 0), (1, 1, 2)],
    "linear_gelu_residual": [(1, 0, None)],
    "matmul": [(0, 0, 0), (1, 1, 2), (1, 0, None)],
    "layer_norm": [(0, 1, 1), (0, 2, None), (1, 0, None)],
    "softmax": [(0, 1, None), (0, 2, 2)],
    "attention": [(0, 0, 0), (1, 2, 2), (0, 3, None)],
    "conv": [(0, 0, 0), (1, 3, 3), (0, 3, None)],
}


def doubled(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(2 * n for n in shape)


@pytest.mark.parametrize("name", STAYS_SHARDED)
def test_sharded_dimensions_stay_sharded(name: str) -> None:
    """Rows, columns, channels, batches and heads of results are sharded as those of the arguments are."""
    mesh = explicit_mesh()
    mine, _ = functions(CASES[name])
    given = [normal(*doubled(shape)) for shape in CASES[name].shapes]
    with jax.set_mesh(mesh):
        for i, at, result in STAYS_SHARDED[name]:
            placed = [jax.device_put(x, P()) for x in given]
            placed[i] = jax.device_put(given[i], along(given[i].ndim, at))
            got = jax.typeof(jax.jit(mine)(*placed))
            assert got.sharding.spec == along(got.ndim, result)


def test_forward_mode_on_an_explicit_mesh() -> None:
    x, w = normal(4, 6), normal(6, 2)
    wanted = jax.jvp(jnp.matmul, (x, w), (x, w))
    with jax.set_mesh(explicit_mesh()):
        x, w = jax.device_put(x, P("data")), jax.device_put(w, P())
        close(jax.jvp(weft_jax.linear, (x, w), (x, w)), wanted)


# ---- jax.checkpoint ----------------------------------------------------------------------------------------

POLICIES = jax.checkpoint_policies
RECOMPUTED = [
    # operator, shapes, policy, whether the policy has the product recomputed
    ("linear", [(4, 8), (8, 6)], POLICIES.dots_saveable, False),
    ("linear", [(4, 8), (8, 6)], POLICIES.dots_with_no_batch_dims_saveable, False),
    ("linear", [(4, 8), (8, 6)], POLICIES.nothing_saveable, True),
    ("matmul", [(4, 8), (8, 6)], POLICIES.dots_with_no_batch_dims_saveable, False),
    ("matmul", [(2, 4, 8), (2, 8, 6)], POLICIES.dots_saveable, False),
    ("matmul", [(2, 4, 8), (2, 8, 6)], POLICIES.dots_with_no_batch_dims_saveable, True),
    ("conv", [(1, 4, 4, 3), (3, 3, 3, 2)], POLICIES.dots_saveable, False),
    ("conv", [(1, 4, 4, 3), (3, 3, 3, 2)], POLICIES.dots_with_no_batch_dims_saveable, True),
    ("attention", [(1, 4, 2, 8)] * 3, POLICIES.dots_saveable, False),
    ("attention", [(1, 4, 2, 8)] * 3, POLICIES.dots_with_no_batch_dims_saveable, True),
]


@pytest.mark.parametrize(("name", "shapes", "policy", "is_recomputed"), RECOMPUTED)
def test_policies_of_checkpoint(name: str, shapes: Any, policy: Any, is_recomputed: bool) -> None:
    """The sine after the operator needs its result again: it is saved, or computed twice."""

    def loss(*given: Any) -> Any:
        return jnp.sin(getattr(weft_jax, name)(*given)).sum()

    given = [normal(*shape) for shape in shapes]
    saved = jax.grad(jax.checkpoint(loss, policy=policy))
    gradients = 1 if name == "matmul" else 0  # of the first argument, which is a product as well
    program = str(jax.make_jaxpr(saved)(*given))
    assert program.count(f"weft_{name}[") == 1 + is_recomputed + gradients
    close(jax.jit(saved)(*given), jax.jit(jax.grad(loss))(*given))


# ---- Programs ----------------------------------------------------------------------------------------------


def test_instructions_have_the_names_of_operators() -> None:
    """Profiles show these names; older versions of JAX have them in the metadata of an instruction only."""

    @weft_jax.graph
    def my_graph(g: Any, x: Any) -> Any:
        return g.neg(x)

    def program(x: Any, w: Any) -> Any:
        return my_graph(weft_jax.rms_norm(weft_jax.linear(x, w)))

    text = jax.jit(program).lower(normal(2, 3), normal(3, 4)).compile().as_text()
    for name in ("weft_linear", "weft_rms_norm", "weft_my_graph"):
        assert re.search(rf'op_name="[^"]*/{name}"', text)


def test_export_for_a_gpu() -> None:
    """Without a GPU, too."""
    allowed = [jax.export.DisabledSafetyCheck.custom_call("weft")]
    export = jax.export.export(jax.jit(weft_jax.linear), platforms=["cpu", "cuda"], disabled_checks=allowed)
    x, w = jnp.ones((4, 8), np.float32), jnp.ones((8, 6), np.float32)
    try:
        with weft_jax.export_for("sm_80"):
            exported = export(x, w)
    except weft.NotSupportedError as refused:
        if "NVRTC" not in str(refused):
            raise
        pytest.skip("NVRTC is not installed")
    assert exported.platforms == ("cpu", "cuda")
    close(exported.call(x, w), jnp.full((4, 6), 8, np.float32))


def test_export_for_ends_with_its_block() -> None:
    """Also if the block fails; blocks may be nested."""
    seen = [calls._arch.get()]
    with contextlib.suppress(KeyError), weft_jax.export_for("sm_80"):
        seen.append(calls._arch.get())
        with weft_jax.export_for("sm_75"):
            seen.append(calls._arch.get())
        seen.append(calls._arch.get())
        raise KeyError
    assert [*seen, calls._arch.get()] == ["sm_90", "sm_80", "sm_75", "sm_80", "sm_90"]


@pytest.mark.parametrize("name", EDGE)
def test_calls_outside_jit_are_traced_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call is of a compiled program: it costs microseconds."""
    mine, _ = functions(CASES[name])
    given = arguments(CASES[name])
    first = mine(*given)
    for module in ("norms", "products", "softmax", "convolution", "attention"):
        classes = vars(__import__(f"weft.jax.operators.{module}", fromlist=["x"])).values()
        for each in classes:
            if isinstance(each, type) and hasattr(each, "check"):
                monkeypatch.setattr(each, "check", None)
    close(mine(*given), first)

"""Derivatives of weft.jax's operators beyond the first gradient: forward mode, second gradients in all
orders, and vmap of these, in double precision next to those of jax.numpy."""

from __future__ import annotations

from typing import Any

import pytest
import tiers

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
import weft.jax as weft_jax
from jax_cases import CASES, EDGE, arguments, functions
from jax_checks import close, normal


def tangents_of(given: list[Any]) -> tuple[Any, ...]:
    return tuple(normal(*x.shape, seed=20 + i) for i, x in enumerate(given))


def scalar(function: Any) -> Any:
    """A number that is not linear in the results, so that second gradients pass through all of them."""
    return lambda *given: jnp.sin(function(*given)).sum()


def orders(function: Any, given: list[Any]) -> Any:
    """Forward mode, forward over reverse, reverse over forward, and reverse over reverse."""
    every = tuple(range(len(given)))
    tangents = tangents_of(given)
    slope = jax.grad(scalar(function), every)

    def along(*given: Any) -> Any:
        return jax.jvp(scalar(function), given, tangents)[1]

    def steepness(*given: Any) -> Any:
        return sum((each * t).sum() for each, t in zip(slope(*given), tangents, strict=True))

    return (
        jax.jvp(function, tuple(given), tangents),
        jax.jvp(slope, tuple(given), tangents),
        jax.grad(along, every)(*given),
        jax.grad(steepness, every)(*given),
    )


@pytest.mark.parametrize("name", tiers.of_today(list(CASES), 2))
def test_forward_mode_and_second_gradients(name: str) -> None:
    mine, theirs = functions(CASES[name])
    given = arguments(CASES[name])
    close(jax.jit(lambda *x: orders(mine, x))(*given), jax.jit(lambda *x: orders(theirs, x))(*given), 10)


@pytest.mark.parametrize("name", EDGE)
def test_forward_mode_of_one_argument(name: str) -> None:
    """The others have no tangents, and none are computed for them."""
    mine, theirs = functions(CASES[name])
    given = arguments(CASES[name])

    def pushed(function: Any, i: int) -> Any:
        def one(x: Any) -> Any:
            return function(*given[:i], x, *given[i + 1 :])

        return jax.jit(lambda: jax.jvp(one, (given[i],), (normal(*given[i].shape, seed=5),)))()

    for i in range(len(given)):
        close(pushed(mine, i), pushed(theirs, i))


MAPPED = ["matmul_batch", "linear_gelu_residual", "layer_norm", "rms_norm_plain", "log_softmax"]
MAPPED += ["attention_bias", "conv"]


@pytest.mark.parametrize("name", MAPPED)
def test_derivatives_of_vmap_and_vmap_of_derivatives(name: str) -> None:
    """The first argument is mapped, and the others are not, so that their gradients are sums."""
    mine, theirs = functions(CASES[name])
    first, *others = arguments(CASES[name])
    given = [jnp.stack([first, 2 * first]), *others]
    axes = (0, *[None] * len(others))
    every = tuple(range(len(given)))
    tangents = tangents_of(given)

    def both(function: Any) -> Any:
        mapped = jax.vmap(function, axes)
        each_jvp = jax.vmap(lambda *x: jax.jvp(function, x[: len(given)], x[len(given) :]), (*axes, *axes))
        each_slope = jax.vmap(jax.grad(scalar(function), every), axes)
        return (
            jax.jvp(mapped, tuple(given), tangents),
            jax.grad(scalar(mapped), every)(*given),
            each_jvp(*given, *tangents),
            jax.jvp(each_slope, tuple(given), tangents),
        )

    close(jax.jit(lambda: both(mine))(), jax.jit(lambda: both(theirs))(), 10)


def test_jacobians_and_hessians() -> None:
    x, w = normal(3), normal(3, 4)

    def by(linear: Any, softmax: Any) -> Any:
        def function(x: Any) -> Any:
            return softmax(linear(x[None], w))[0]

        def number(x: Any) -> Any:
            return function(x)[0]

        return jax.jacfwd(function)(x), jax.jacrev(function)(x), jax.hessian(number)(x)

    got = jax.jit(lambda: by(weft_jax.linear, weft_jax.softmax))()
    close(got, jax.jit(lambda: by(jnp.matmul, jax.nn.softmax))())


def test_the_gradient_of_a_masked_attention_has_a_gradient() -> None:
    """Masked scores are -inf, and the query that sees no key has no derivative at all."""
    q = normal(1, 3, 2, 4)
    mask = jnp.tril(jnp.ones((3, 3), bool)).at[1].set(False)

    @jax.jit
    def slope(q: Any) -> Any:
        return jax.grad(scalar(lambda q: weft_jax.attention(q, q, q, mask=mask)))(q)

    second = jax.jit(jax.grad(lambda q: (slope(q) ** 2).sum()))(q)
    numbers = jax.jit(lambda q: jax.jvp(lambda q: (slope(q) ** 2).sum(), (q,), (jnp.ones_like(q),)))(q)[1]
    step = 1e-5 * jnp.ones_like(q)
    difference = ((slope(q + step) ** 2).sum() - (slope(q - step) ** 2).sum()) / 2e-5
    close((second.sum(), numbers), (numbers, numbers), 10)
    assert abs(numbers - difference) < 1e-6 * abs(difference)


def test_linearize_and_transpose() -> None:
    x, w, b = normal(3, 4), normal(4, 5), normal(5)
    _, pushed = jax.linearize(lambda w: weft_jax.linear(x, w, b, activation="tanh"), w)
    _, wanted = jax.linearize(lambda w: jnp.tanh(x @ w + b), w)
    tangent, cotangent = normal(4, 5, seed=1), normal(3, 5, seed=2)
    close(pushed(tangent), wanted(tangent))
    close(jax.linear_transpose(pushed, w)(cotangent), jax.linear_transpose(wanted, w)(cotangent))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["linear_gelu_residual", "layer_norm", "softmax", "attention_bias", "conv"])
def test_narrow_types(name: str, dtype: str) -> None:
    """Tangents and second gradients have the types of the arguments."""
    mine, theirs = functions(CASES[name])
    given = arguments(CASES[name], jnp.dtype(dtype))
    tangents = tuple(x / 4 for x in given)
    exact = [x.astype(float) for x in given]
    slopes = [jax.grad(scalar(f), tuple(range(len(given)))) for f in (mine, theirs)]

    def pushed(i: int, given: list[Any]) -> Any:
        return jax.jvp(slopes[i], tuple(given), tuple(x / 4 for x in given))[1]

    got = jax.jit(lambda: (jax.jvp(mine, tuple(given), tangents)[1], pushed(0, given)))()
    wanted = jax.jit(
        lambda: (jax.jvp(theirs, tuple(exact), tuple(x / 4 for x in exact))[1], pushed(1, exact))
    )()
    close(got, jax.tree.map(lambda x: x.astype(dtype), wanted), 8)

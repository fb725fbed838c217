"""The operators of weft.jax compared with jax.numpy in double precision: results, gradients, vmap of both;
narrow types within rounding errors."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
import weft.jax as weft_jax
from jax_cases import CASES, arguments, attention, functions
from jax_checks import close, gradients, normal


@cache
def compiled(name: str, is_mine: bool) -> Any:
    """The result of a case, and the gradients of its sum weighted by the first argument; the other's on the
    CPU."""
    function = functions(CASES[name])[not is_mine]

    def run(weights: Any, *given: Any) -> Any:
        result, backward = jax.vjp(function, *given)
        return result, *backward(weights)

    if is_mine:
        return run
    compiled_run = jax.jit(run)
    return lambda *a: compiled_run(*jax.device_put(a, jax.devices("cpu")[0]))


def weights_of(name: str, dtype: Any = np.float64, batch: tuple[int, ...] = ()) -> Any:
    result = jax.eval_shape(functions(CASES[name])[1], *arguments(CASES[name]))
    return normal(*batch, *result.shape, dtype=dtype, seed=9)


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str) -> None:
    given = weights_of(name), *arguments(CASES[name])
    close(jax.jit(compiled(name, True))(*given), compiled(name, False)(*given))


MAPPED = ["matmul_batch", "linear_relu", "linear_gelu_residual", "layer_norm", "layer_norm_plain", "rms_norm"]
MAPPED += ["softmax", "attention", "attention_bias", "attention_own_bias", "conv", "conv_groups"]


@pytest.mark.parametrize("name", MAPPED)
def test_vmap(name: str) -> None:
    """vmap over the first argument, whose rows are folded into the batch, and over the last one, which may be
    weights."""
    for at in {0, len(CASES[name].shapes) - 1}:
        given = [weights_of(name, batch=(2,)), *arguments(CASES[name])]
        given[1 + at] = normal(2, *CASES[name].shapes[at])
        axes = [0, *(0 if i == at else None for i in range(len(given) - 1))]
        made = jax.jit(jax.vmap(compiled(name, True), axes))(*given)
        each = [[x if a is None else x[i] for x, a in zip(given, axes, strict=True)] for i in (0, 1)]
        wanted = zip(*(compiled(name, False)(*one) for one in each), strict=True)
        close(made, tuple(map(jnp.stack, wanted)))


NARROW = [("linear_gelu_residual", "float32"), ("conv", "float32"), ("attention_causal", "float32")]
NARROW += [("linear_gelu_residual", "float16"), ("conv", "float16"), ("attention_causal", "float16")]
NARROW += [(name, "bfloat16") for name in ("linear_gelu_residual", "layer_norm", "softmax", "conv")]
NARROW += [(name, "bfloat16") for name in ("rms_norm", "attention_causal")]


@pytest.mark.parametrize(("name", "dtype"), NARROW)
def test_narrow_types(name: str, dtype: str) -> None:
    """Results have the type of the arguments, and are those of double precision, rounded."""
    given = [weights_of(name, jnp.dtype(dtype)), *arguments(CASES[name], jnp.dtype(dtype))]
    exact = compiled(name, False)(*(each.astype(np.float64) for each in given))
    close(jax.jit(compiled(name, True))(*given), jax.tree.map(lambda each: each.astype(dtype), exact), 4)


def test_a_mask_with_and_without_a_bias() -> None:
    q, k, v = (normal(2, 5, 2, 8, seed=i) for i in range(3))
    mask = jnp.asarray(np.random.default_rng(0).random((2, 1, 5, 5)) < 0.7).at[..., 0].set(True)
    bias = normal(2, 1, 1, 5)

    def both(function: Any) -> Any:
        masked = gradients(lambda q, k, v: function(q, k, v, mask=mask), q, k, v)
        return masked, gradients(lambda q, k, v, b: function(q, k, v, b, mask), q, k, v, bias)

    close(jax.jit(both, static_argnums=0)(weft_jax.attention), jax.jit(both, static_argnums=0)(attention))


def test_a_query_that_sees_no_key() -> None:
    q, k, v = (normal(1, 2, 1, 8, seed=i) for i in range(3))
    mask = jnp.array([[True, True], [False, False]])
    made, grads = jax.value_and_grad(lambda q: weft_jax.attention(q, k, v, mask=mask).sum())(q)
    close((made, grads[:, 1]), (attention(q[:, :1], k, v).sum(), jnp.zeros((1, 1, 8))))


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_infinities_in_a_softmax_are_those_of_jax(name: str) -> None:
    inf, nan = jnp.inf, jnp.nan
    rows = jnp.array([[-inf, -inf], [1, inf], [inf, inf], [1, nan], [-inf, 1]])
    mine, theirs = getattr(weft_jax, name), getattr(jax.nn, name)
    close(mine(rows), theirs(rows))
    close(mine(rows, 0), theirs(rows, 0))
    close(*(jax.grad(lambda x, f=f: f(x)[:, 0].sum())(rows) for f in (mine, theirs)))

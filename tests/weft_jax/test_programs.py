"""Weft in whole programs of JAX: several devices, donated and read-only memory, errors, and training."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
import weft.jax as weft_jax
from jax_checks import close, gradients, normal

P = jax.sharding.PartitionSpec

if not hasattr(jax, "shard_map"):
    pytest.skip("jax.shard_map is not there: this JAX is older than 0.6", allow_module_level=True)


# ---- Devices -----------------------------------------------------------------------------------------------


def needs_two() -> list[jax.Device]:
    devices = jax.devices()
    if len(devices) < 2:
        pytest.skip("JAX has one device")
    return devices[:2]


def test_shard_map_on_two_devices() -> None:
    """Gradients of arrays that are replicated on all devices are summed over them."""
    mesh = jax.sharding.Mesh(np.array(needs_two()), ("data",))

    def model(f_linear, f_norm, x, w, b):
        return f_norm(f_linear(x, w, b))

    mine = lambda x, w, b: model(weft_jax.linear, weft_jax.layer_norm, x, w, b)  # noqa: E731
    theirs = lambda x, w, b: model(plain_linear, lambda y: plain_norm(y, 1, 0), x, w, b)  # noqa: E731
    sharded = jax.shard_map(mine, mesh=mesh, in_specs=(P("data"), P(), P()), out_specs=P("data"))
    given = normal(4, 8), normal(8, 6), normal(6)
    close(jax.jit(sharded)(*given), theirs(*given))
    close(jax.jit(lambda *a: gradients(sharded, *a))(*given), gradients(theirs, *given))


def test_each_device_by_itself() -> None:
    x, w = normal(64, 8), normal(8, 8)
    made = [jax.jit(weft_jax.matmul)(*jax.device_put((x, w), device)) for device in needs_two()]
    assert [each.devices() for each in made] == [{device} for device in needs_two()]
    close(made[0], x @ w)
    close(made[1], x @ w)


def test_threads() -> None:
    run = jax.jit(lambda x, w: weft_jax.linear(x, w, activation="relu"))
    given = [(normal(32, 16, seed=i), normal(16, 8, seed=i)) for i in range(4)]
    made: list[list] = [[] for _ in given]

    def work(i: int) -> None:
        made[i] = [run(*given[i]) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(given))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for (x, w), results in zip(given, made, strict=True):
        close(results, [jnp.maximum(x @ w, 0)] * 20)


# ---- Memory ------------------------------------------------------------------------------------------------


def test_donated_arrays() -> None:
    def step(x, w):
        return weft_jax.linear(x, w, activation="tanh", residual=x)

    x, w = normal(8, 8), normal(8, 8, seed=1)
    wanted = jnp.tanh(x @ w) + x
    made = jax.jit(step, donate_argnums=0)(x, w)
    assert x.is_deleted()
    close(made, wanted)


def test_inputs_stay_as_they_are() -> None:
    """Also where JAX takes NumPy's memory as it is."""
    x, w = np.asarray(normal(64, 64)), np.asarray(normal(64, 64, seed=1))
    x.setflags(write=False)
    before = x.copy(), w.copy()
    shared = jnp.asarray(x), jnp.asarray(w)
    jax.block_until_ready(jax.jit(lambda x, w: gradients(weft_jax.matmul, x, w))(*shared))
    np.testing.assert_array_equal((x, w), before)


# ---- Errors and what is kept -------------------------------------------------------------------------------


def test_an_error_of_the_handler_is_an_exception() -> None:
    """A program lowered by another version may request something that this library does not support."""
    call = jax.ffi.ffi_call("weft", jax.ShapeDtypeStruct((2,), jnp.float64))
    platform = {"cpu": 0, "gpu": 1}[jax.default_backend()]
    numbers = {"device": np.int64(platform), "key": np.int64(1), "places": np.zeros(1, np.int64)}
    refused = partial(pytest.raises, jax.errors.JaxRuntimeError)
    with refused(match="INVALID_ARGUMENT: weft call: it lacks an attribute"):
        jax.block_until_ready(call(normal(2), **numbers))
    with refused(match="INVALID_ARGUMENT: weft call: attribute plan is no saved"):
        jax.block_until_ready(call(normal(2), plan="xyz", scalars=np.zeros(1, np.int64), **numbers))


def test_importing_weft_imports_no_jax() -> None:
    code = "import sys, weft; weft.Graph(); print('jax' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


# ---- Training ----------------------------------------------------------------------------------------------


def losses(block, parameters, x, steps: int = 4):
    """Losses of plain gradient descent on a block that learns to return its input."""

    def loss(given):
        return ((block(given, x) - x) ** 2).mean()

    @jax.jit
    def step(given):
        value, slope = jax.value_and_grad(loss)(given)
        return jax.tree.map(lambda p, s: p - 0.1 * s, given, slope), value

    made = []
    for _ in range(steps):
        parameters, value = step(parameters)
        made.append(value)
    return jnp.stack(made)


def transformer(p, x, linear, norm, attend):
    batch, length, width = x.shape
    h = norm(x, p["scale"], p["shift"])
    q, k, v = jnp.split(linear(h, p["qkv"], p["b_qkv"]).reshape(batch, length, 6, width // 2), 3, 2)
    x = linear(attend(q, k, v).reshape(x.shape), p["out"], p["b_out"], residual=x)
    h = linear(norm(x, p["scale"], p["shift"]), p["up"], p["b_up"], activation="gelu_tanh")
    return linear(h, p["down"], p["b_down"], residual=x)


def plain_linear(x, w, bias, activation=None, residual=None):
    y = x @ w + bias
    y = jax.nn.gelu(y) if activation else y
    return y if residual is None else y + residual


def plain_norm(x, scale, shift):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6) * scale + shift


def plain_attention(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def test_a_transformer_block_trains_as_plain_jax_does() -> None:
    width = 32
    columns = {"qkv": 3 * width, "out": width, "up": 4 * width, "down": width}
    shapes = {name: (4 * width if name == "down" else width, n) for name, n in columns.items()}
    p = {name: normal(*shape) * 0.1 for name, shape in shapes.items()}
    p |= {f"b_{name}": normal(shape[1]) * 0.1 for name, shape in shapes.items()}
    p |= {"scale": jnp.ones(width), "shift": jnp.zeros(width)}
    x = normal(2, 12, width)

    def mine(p, x):
        causal = lambda q, k, v: weft_jax.attention(q, k, v, is_causal=True)  # noqa: E731
        return transformer(p, x, weft_jax.linear, weft_jax.layer_norm, causal)

    def theirs(p, x):
        return transformer(p, x, plain_linear, plain_norm, plain_attention)

    close(losses(mine, p, x), losses(theirs, p, x))


def resnet(p, x, conv):
    h = conv(x, p["first"], p["b_first"], "relu")
    return jax.nn.relu(conv(h, p["second"], p["b_second"], None) + conv(x, p["skip"], p["b_skip"], None))


def plain_conv(x, w, bias, activation):
    y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + bias
    return jax.nn.relu(y) if activation else y


def test_a_resnet_block_trains_as_plain_jax_does() -> None:
    shapes = {"first": (3, 3, 8, 16), "second": (3, 3, 16, 8), "skip": (1, 1, 8, 8)}
    p = {name: normal(*shape) * 0.1 for name, shape in shapes.items()}
    p |= {f"b_{name}": normal(shape[3]) * 0.1 for name, shape in shapes.items()}
    x = normal(2, 10, 10, 8)

    def own_conv(x, w, bias, activation):
        return weft_jax.conv(x, w, bias, activation=activation)

    close(
        losses(lambda p, x: resnet(p, x, own_conv), p, x), losses(lambda p, x: resnet(p, x, plain_conv), p, x)
    )

"""weft.jax in models as Flax, Equinox and Keras write them: each trains to the losses of the same model in
plain JAX.

The hand-written models follow the conventions of these libraries, so that they run everywhere: nested
dictionaries of parameters with layers that are scanned and rematerialized (Flax), modules that are pytrees
and see one example, under vmap (Equinox), and lists of variables with a policy of mixed precision (Keras).
The libraries themselves are tested where they are installed."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
import weft.jax as weft_jax
from jax_checks import close, normal


class Plain:
    """The operators in jax.numpy, with the signatures of weft.jax."""

    softmax = staticmethod(jax.nn.softmax)
    log_softmax = staticmethod(jax.nn.log_softmax)
    matmul = staticmethod(jnp.matmul)

    @staticmethod
    def linear(x: Any, w: Any, bias: Any = None, *, activation: Any = None, residual: Any = None) -> Any:
        y = x @ w if bias is None else x @ w + bias
        known = {"relu": jax.nn.relu, "gelu_tanh": jax.nn.gelu, "silu": jax.nn.silu}
        y = known[activation](y) if activation else y
        return y if residual is None else y + residual

    @staticmethod
    def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / jnp.sqrt(variance + 1e-6) * scale + bias

    @staticmethod
    def rms_norm(x: Any, scale: Any) -> Any:
        return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale

    @staticmethod
    def attention(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        if is_causal:
            scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)

    @staticmethod
    def conv(x: Any, w: Any, bias: Any = None, *, strides: int = 1, activation: str | None = None) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(x, w, (strides, strides), "SAME", dimension_numbers=numbers)
        y = y if bias is None else y + bias
        return jax.nn.relu(y) if activation else y


KINDS = (weft_jax, Plain)


# ---- Flax: nested dictionaries of parameters, layers under scan and remat ----------------------------------


def flax_parameters(width: int, layers: int) -> Any:
    def stacked(*shape: int, seed: int) -> Any:
        return 0.2 * normal(layers, *shape, seed=seed)

    block = {
        "norm": {"scale": jnp.ones((layers, width)), "bias": jnp.zeros((layers, width))},
        "qkv": {"kernel": stacked(width, 3 * width, seed=0), "bias": stacked(3 * width, seed=1)},
        "up": {"kernel": stacked(width, 2 * width, seed=2), "bias": stacked(2 * width, seed=3)},
        "down": {"kernel": stacked(2 * width, width, seed=4)},
    }
    return {"embed": 0.3 * normal(11, width), "blocks": block, "head": {"kernel": 0.2 * normal(width, 11)}}


def flax_model(ops: Any, params: Any, tokens: Any, policy: Any) -> Any:
    x = params["embed"][tokens]

    def block(x: Any, p: Any) -> Any:
        batch, length, width = x.shape
        h = ops.layer_norm(x, p["norm"]["scale"], p["norm"]["bias"])
        qkv = ops.linear(h, p["qkv"]["kernel"], p["qkv"]["bias"]).reshape(batch, length, 3, 2, width // 2)
        x = x + ops.attention(*(qkv[:, :, i] for i in range(3)), is_causal=True).reshape(x.shape)
        h = ops.linear(x, p["up"]["kernel"], p["up"]["bias"], activation="gelu_tanh")
        return ops.linear(h, p["down"]["kernel"], residual=x), None

    x, _ = jax.lax.scan(jax.checkpoint(block, policy=policy), x, params["blocks"])
    return ops.log_softmax(ops.linear(x, params["head"]["kernel"]))


NIGHTLY = pytest.param("dots_saveable", marks=pytest.mark.nightly)


@pytest.mark.parametrize("policy", [None, NIGHTLY, "dots_with_no_batch_dims_saveable"])
def test_flax_kind(policy: str | None) -> None:
    """AdamW-like steps of a decoder whose layers are scanned."""
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 11, (2, 7)))
    chosen = policy and getattr(jax.checkpoint_policies, policy)

    def losses(ops: Any) -> Any:
        def loss(params: Any) -> Any:
            logits = flax_model(ops, params, tokens[:, :-1], chosen)
            return -jnp.take_along_axis(logits, tokens[:, 1:, None], 2).mean()

        def step(params: Any, _: Any) -> Any:
            value, slope = jax.value_and_grad(loss)(params)
            return jax.tree.map(lambda p, s: p - 0.1 * s - 0.01 * p, params, slope), value

        return jax.jit(lambda p: jax.lax.scan(step, p, None, length=4))(flax_parameters(8, 2))

    close(*map(losses, KINDS), 10)


# ---- Equinox: modules are pytrees and see one example ------------------------------------------------------


def module(cls: Any) -> Any:
    """A frozen dataclass as a pytree; fields with metadata static=True are no leaves."""
    cls = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(cls)
    static = [f.name for f in fields if f.metadata.get("static")]
    return jax.tree_util.register_dataclass(cls, [f.name for f in fields if f.name not in static], static)


@module
class Linear:
    weight: Any
    bias: Any
    ops: Any = dataclasses.field(metadata={"static": True})
    activation: str | None = dataclasses.field(default=None, metadata={"static": True})

    def __call__(self, x: Any) -> Any:
        """x: [k], one example; the weight is [n, k]."""
        return self.ops.linear(x, self.weight.T, self.bias, activation=self.activation)


@module
class Classifier:
    filters: Any
    layers: list[Linear]
    scale: Any
    ops: Any = dataclasses.field(metadata={"static": True})

    def __call__(self, image: Any) -> Any:
        """image: [H, W, C]."""
        x = self.ops.conv(image[None], self.filters, activation="relu")[0].mean((0, 1))
        x = self.ops.rms_norm(x, self.scale)
        for layer in self.layers:
            x = layer(x)
        return self.ops.log_softmax(x)


def test_equinox_kind() -> None:
    """Steps with a curvature by jvp of gradients, and gradients of an ensemble under vmap."""
    images = normal(5, 6, 6, 3)
    labels = jnp.arange(5) % 4

    def build(ops: Any, seed: int = 0) -> Any:
        layers = [
            Linear(0.3 * normal(7, 6, seed=seed), 0.1 * normal(7, seed=seed), ops, "silu"),
            Linear(0.3 * normal(4, 7, seed=seed), None, ops),
        ]
        return Classifier(0.3 * normal(3, 3, 3, 6, seed=seed), layers, jnp.ones(6), ops)

    def loss(model: Any) -> Any:
        return -jnp.take_along_axis(jax.vmap(model)(images), labels[:, None], 1).mean()

    def train(ops: Any) -> Any:
        @jax.jit
        def step(model: Any) -> Any:
            value, slope = jax.value_and_grad(loss)(model)
            _, curvature = jax.jvp(jax.grad(loss), (model,), (slope,))
            squared = sum((s * s).sum() for s in jax.tree.leaves(slope))
            pairs = zip(jax.tree.leaves(slope), jax.tree.leaves(curvature), strict=True)
            bent = sum((s * c).sum() for s, c in pairs)
            rate = squared / (jnp.abs(bent) + 1.0)
            return jax.tree.map(lambda p, s: p - 0.1 * rate * s, model, slope), value

        model, values = build(ops), []
        for _ in range(3):
            model, value = step(model)
            values.append(value)
        ensemble = jax.tree.map(lambda *each: jnp.stack(each), build(ops), build(ops, 1))
        slopes = jax.jit(jax.vmap(jax.grad(loss)))(ensemble)
        return jnp.stack(values), jax.tree.leaves(model), jax.tree.leaves(slopes)

    close(*map(train, KINDS), 10)


# ---- Keras: lists of variables, a policy of mixed precision ------------------------------------------------


def keras_model(ops: Any, trainable: Any, state: Any, x: Any, dtype: Any) -> Any:
    """stateless_call: the results, and the non-trainable variables after it (the mean of a batch norm)."""
    kernel, bias, gamma, dense, dense_bias = (v.astype(dtype) for v in trainable)
    (moving_mean,) = state
    x = ops.conv(x.astype(dtype), kernel, bias, strides=2, activation="relu")
    mean = x.astype(jnp.float32).mean((0, 1, 2))
    x = (x - mean.astype(dtype)) * gamma
    x = ops.linear(x.reshape(x.shape[0], -1), dense, dense_bias)
    return ops.softmax(x.astype(jnp.float32)), [0.9 * moving_mean + 0.1 * mean]


@pytest.mark.parametrize(("policy", "tolerance"), [("float32", 2), ("mixed_bfloat16", 300)])
def test_keras_kind(policy: str, tolerance: float) -> None:
    """A train step on lists of float32 variables that are donated."""
    dtype = jnp.bfloat16 if "bfloat16" in policy else jnp.float32
    x = normal(4, 6, 6, 3, dtype=np.float32)
    y = jax.nn.one_hot(jnp.arange(4) % 3, 3, dtype=np.float32)

    def fit(ops: Any) -> Any:
        shapes = [(3, 3, 3, 4), (4,), (4,), (36, 3), (3,)]
        trainable = [0.3 * normal(*shape, dtype=np.float32, seed=i) for i, shape in enumerate(shapes)]
        state, momentum = [jnp.zeros(4, np.float32)], [jnp.zeros_like(v) for v in trainable]

        def loss(trainable: Any, state: Any) -> Any:
            predicted, state = keras_model(ops, trainable, state, x, dtype)
            return -(y * jnp.log(predicted + 1e-7)).sum(1).mean(), state

        @jax.jit
        def train_step(trainable: Any, state: Any, momentum: Any) -> Any:
            (value, state), slope = jax.value_and_grad(loss, has_aux=True)(trainable, state)
            momentum = [0.9 * m - 0.05 * s for m, s in zip(momentum, slope, strict=True)]
            return [v + m for v, m in zip(trainable, momentum, strict=True)], state, momentum, value

        values = []
        for _ in range(3):
            trainable, state, momentum, value = train_step(trainable, state, momentum)
            values.append(value)
        return jnp.stack(values), trainable, state

    close(*map(fit, KINDS), tolerance)


# ---- The libraries -----------------------------------------------------------------------------------------


def test_flax() -> None:
    """A linen module with parameters for weft.jax, and linen's attention with Weft's as attention_fn."""
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        ops: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            def attend(q: Any, k: Any, v: Any, bias: Any = None, mask: Any = None, **_: Any) -> Any:
                return self.ops.attention(q, k, v)

            w = self.param("kernel", nn.initializers.normal(0.3), (x.shape[-1], 6))
            h = nn.MultiHeadDotProductAttention(num_heads=2, attention_fn=attend, param_dtype=float)(x)
            return nn.LayerNorm(param_dtype=float)(self.ops.linear(h, w, activation="gelu_tanh"))

    x = normal(2, 5, 8)
    params = Block(Plain).init(jax.random.key(0), x)

    def slope(ops: Any) -> Any:
        return jax.jit(jax.grad(lambda p: (nn.remat(Block)(ops).apply(p, x) ** 2).sum()))(params)

    close(*map(slope, KINDS), 10)


def test_equinox() -> None:
    eqx = pytest.importorskip("equinox")

    class Layer(eqx.Module):
        weight: Any
        norm: Any
        ops: Any = eqx.field(static=True)

        def __call__(self, x: Any) -> Any:
            return self.ops.softmax(self.ops.linear(self.norm(x), self.weight, activation="silu"))

    x = normal(5, 6)

    def slope(ops: Any) -> Any:
        layer = Layer(normal(6, 4), eqx.nn.LayerNorm(6, dtype=float), ops)
        found = eqx.filter_jit(eqx.filter_grad(lambda m: (jax.vmap(m)(x) ** 2).sum()))(layer)
        return jax.tree.leaves(found)

    close(*map(slope, KINDS), 10)


def test_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.environ.get("KERAS_BACKEND", "jax") != "jax":
        pytest.skip("KERAS_BACKEND is not jax")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras")

    class Dense(keras.layers.Layer):
        def __init__(self, ops: Any, units: int) -> None:
            super().__init__()
            self.ops, self.units = ops, units

        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(shape[-1], self.units), initializer="ones")
            self.bias = self.add_weight(shape=(self.units,), initializer="zeros")

        def compute_output_shape(self, shape: Any) -> Any:
            return (*shape[:-1], self.units)

        def call(self, x: Any) -> Any:
            return self.ops.linear(x, self.kernel.value, self.bias.value, activation="relu")

    x, y = (np.asarray(normal(8, n, dtype=np.float32)) for n in (5, 1))

    def fit(ops: Any) -> Any:
        model = keras.Sequential([Dense(ops, 4), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
        history = model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
        return jnp.asarray(history.history["loss"], np.float32), model.get_weights()

    close(*map(fit, KINDS), 10)

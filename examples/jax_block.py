"""A language model of one transformer block in JAX with Weft's operators, trained on the text of this file.

python examples/jax_block.py [steps]
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import weft.jax

WIDTH, HEADS, LENGTH, BATCH = 64, 4, 32, 16


def initial(key: jax.Array) -> dict[str, jax.Array]:
    """Initial weights: small random numbers, and ones for the scales of norms."""
    shapes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH)}
    shapes |= {"down": (4 * WIDTH, WIDTH), "logits": (WIDTH, 128)}
    shapes |= {"letters": (128, WIDTH), "places": (LENGTH, WIDTH)}
    keys = jax.random.split(key, len(shapes))
    named = zip(keys, shapes.items(), strict=True)
    outputs = {name: 0.1 * jax.random.normal(k, shape) for k, (name, shape) in named}
    return outputs | {"norm_1": jnp.ones(WIDTH), "norm_2": jnp.ones(WIDTH)}


def model(p: dict[str, jax.Array], text: jax.Array) -> jax.Array:
    """Log-probabilities of the next character at each position: [batch, length, 128]."""
    x = p["letters"][text] + p["places"]
    h = weft.jax.linear(weft.jax.rms_norm(x, p["norm_1"]), p["qkv"])
    q, k, v = jnp.split(h.reshape(*text.shape, 3 * HEADS, WIDTH // HEADS), 3, axis=2)
    h = weft.jax.attention(q, k, v, is_causal=True)
    x = weft.jax.linear(h.reshape(x.shape), p["out"], residual=x)
    h = weft.jax.linear(weft.jax.rms_norm(x, p["norm_2"]), p["up"], activation="gelu")
    x = weft.jax.linear(h, p["down"], residual=x)
    return weft.jax.log_softmax(weft.jax.linear(x, p["logits"]))


def loss(p: dict[str, jax.Array], text: jax.Array) -> jax.Array:
    """The mean cross-entropy of the next character."""
    said, following = model(p, text[:, :-1]), text[:, 1:]
    return -jnp.take_along_axis(said, following[..., None], axis=2).mean()


@jax.jit
def step(p: dict[str, jax.Array], text: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    """One step of gradient descent."""
    value, slope = jax.value_and_grad(loss)(p, text)
    return jax.tree.map(lambda each, s: each - 0.1 * s, p, slope), value


def main(steps: int = 200) -> list[float]:
    """Trains the model and prints the progress; returns the losses."""
    letters = jnp.array([min(ord(c), 127) for c in Path(__file__).read_text()])
    p, losses = initial(jax.random.key(0)), []
    for i in range(steps):
        starts = jax.random.randint(jax.random.key(i), (BATCH, 1), 0, len(letters) - LENGTH)
        p, value = step(p, letters[starts + jnp.arange(LENGTH + 1)])
        losses.append(float(value))
        if i % 50 == 0 or i == steps - 1:
            print(f"step {i}: {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
    print("\nThe first call of Weft in the model, and what runs:\n")
    print(weft.jax.plans(model, initial(jax.random.key(0)), jnp.zeros((BATCH, LENGTH), int))[0])

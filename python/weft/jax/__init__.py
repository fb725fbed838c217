"""Weft for JAX: graphs of Weft's as functions of JAX's arrays, and operators with gradients, under jit, grad,
vmap and shard_map, on CPUs and NVIDIA GPUs.

    import jax, weft.jax

    @jax.jit
    def layer(x, w, b):
        return weft.jax.layer_norm(weft.jax.linear(x, w, b, activation="gelu"))

Importing this package imports JAX; `import weft` never does.
"""

from __future__ import annotations

from weft.jax.graphs import graph

__all__ = ["graph"]

"""Weft for JAX: Weft graphs as functions of JAX arrays, and operators with gradients, under jit, grad, vmap
and shard_map, on CPUs and NVIDIA GPUs.

    import jax, weft.jax

    @jax.jit
    def layer(x, w, b):
        return weft.jax.layer_norm(weft.jax.linear(x, w, b, activation="gelu"))

Importing this package imports JAX; `import weft` never does. From then on, XLA runs plans that are called
with JAX arrays on a GPU.
"""

from __future__ import annotations

from weft.jax import planned as _planned
from weft.jax.calls import export_for, plans
from weft.jax.graphs import graph
from weft.jax.operators.attention import attention
from weft.jax.operators.convolution import conv
from weft.jax.operators.norms import layer_norm, rms_norm
from weft.jax.operators.products import linear, matmul
from weft.jax.operators.softmax import log_softmax, softmax
from weft.plan import run_jax_arrays_with

run_jax_arrays_with(_planned.run)

__all__ = [
    "attention",
    "conv",
    "export_for",
    "graph",
    "layer_norm",
    "linear",
    "log_softmax",
    "matmul",
    "plans",
    "rms_norm",
    "softmax",
]

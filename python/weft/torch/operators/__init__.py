"""The operators, a file for each family: each has the schema of the torch operator whose name it bears, or
one of its own, and a few lines that draw it as a graph of Weft's."""

from weft.torch.operators import (
    attention,
    batch_norm,
    causal,
    convolution,
    dropout,
    experts,
    gates,
    linear,
    losses,
    norms,
    pooling,
    quantized,
    softmax,
)

__all__ = [
    "attention",
    "batch_norm",
    "causal",
    "convolution",
    "dropout",
    "experts",
    "gates",
    "linear",
    "losses",
    "norms",
    "pooling",
    "quantized",
    "softmax",
]

"""The operators, one file per family. Each has the schema of the torch operator whose name it has, or one of
its own, and a function that builds its Weft graph."""

from weft.torch.operators import (
    attention,
    batch_norm,
    causal,
    convolution,
    ctc,
    dropout,
    experts,
    gates,
    grids,
    linear,
    losses,
    norms,
    pooling,
    quantized,
    recurrent,
    softmax,
)

__all__ = [
    "attention",
    "batch_norm",
    "causal",
    "convolution",
    "ctc",
    "dropout",
    "experts",
    "gates",
    "grids",
    "linear",
    "losses",
    "norms",
    "pooling",
    "quantized",
    "recurrent",
    "softmax",
]

"""The operators, one file per family: functions of JAX arrays with gradients, and the functions that build
them as Weft graphs."""

from weft.jax.operators import attention, convolution, norms, products, softmax

__all__ = ["attention", "convolution", "norms", "products", "softmax"]

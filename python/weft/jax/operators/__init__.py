"""The operators, a file for each family: functions of JAX's arrays, each with a gradient, and a few lines for
each that draw it as a graph of Weft's."""

from weft.jax.operators import attention, convolution, norms, products, softmax

__all__ = ["attention", "convolution", "norms", "products", "softmax"]

"""cuDNN's own functions for JAX, for which Weft has weft.jax: each name refuses when it is called."""

from weft.cudnn.absent import attribute_of

_NAMES = (
    "TensorSpec",
    "call",
    "gemm_operand_spec",
    "kimi_delta_attention",
    "neg_inf_init",
    "row_major_desc",
    "sf_atom_spec",
    "zeros_init",
)

__getattr__ = attribute_of("cudnn.jax", _NAMES)

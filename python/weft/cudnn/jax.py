"""cuDNN's own functions for JAX; use weft.jax instead. Each raises an error that names it when it is
called."""

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

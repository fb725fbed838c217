"""Classes of cuDNN's ready-made kernels; each raises an error that names it when it is called."""

from weft.cudnn.absent import attribute_of

_NAMES = (
    "APIBase",
    "TensorDesc",
    "WorkspaceCarver",
)

__getattr__ = attribute_of("cudnn.api_base", _NAMES)

"""cuDNN's own functions for torch; use weft.torch instead. Each raises an error that names it when it is
called."""

from weft.cudnn.absent import attribute_of

_NAMES = (
    "SdpaOverrides",
    "install",
    "install_sdpa_overrides",
    "served_plan_names",
)

__getattr__ = attribute_of("cudnn.torch", _NAMES)

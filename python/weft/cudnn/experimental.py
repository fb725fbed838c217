"""cuDNN's experimental functions, as far as Weft has them."""

from weft.cudnn import ops

__all__ = ["ops"]

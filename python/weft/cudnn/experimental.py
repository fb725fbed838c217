"""cuDNN's experimental functions that Weft implements."""

from weft.cudnn import ops

__all__ = ["ops"]

"""Differences between the names here and those of cuDNN's frontend, with reasons: the only such table, which
a test compares with the recorded names."""

from __future__ import annotations

from weft.cudnn import absent
from weft.cudnn.table import LINEAR_ATTENTION

_PHASE = (
    "Releases before 1.27 have the phase first, as scripts write it. A member of norm_forward_phase is taken "
    "in either place."
)
_NORM = "positional (norm_forward_phase input scale bias epsilon)"
_CUDNN_NORM = "cuDNN (input scale bias epsilon norm_forward_phase)"
_GROUPS = "Releases before 1.27 have no group_offset, and scripts give the next argument in its place."

DIFFERENCES = {
    **{
        f"pygraph.{name}: {_NORM}, {_CUDNN_NORM}": _PHASE
        for name in ("layernorm", "adalayernorm", "instancenorm", "rmsnorm")
    },
    "pygraph.reduction: positional (input mode group_offset), cuDNN (input group_offset mode)": _GROUPS,
    "pygraph.block_scale_quantize: positional (input block_size axis transpose group_offset), "
    "cuDNN (input group_offset block_size axis transpose)": _GROUPS,
    "pygraph.get_behavior_notes_for_plan_at_index(index): cuDNN (index, *args, **kwargs)": (
        "Weft has no further arguments and does not ignore any silently."
    ),
}
"""Differences as the test prints them, and their reasons."""

EXTRAS = {
    "Graph": "The convenience interface, which cuDNN's package loads on demand.",
    "ops": "Functions on torch tensors, which cuDNN's package loads on demand.",
    "install": "Makes `import cudnn` import this module.",
    "set_backend_version": "Follows the behaviour of another version.",
}
"""Names that the recorded list lacks, and the reasons for them."""

NOT_THERE = {
    **{f"cudnn.{name}": "An individual kernel, not a graph." for name in absent.NAMES},
    **{f"pygraph.{name}": "Recurrent attention." for name in LINEAR_ATTENTION},
    "pygraph.populate_cuda_graph": "Capture the stream of execute() instead.",
    "pygraph.update_cuda_graph": "Capture the stream of execute() instead.",
}
"""Names that exist and raise an error that names them when they are called."""

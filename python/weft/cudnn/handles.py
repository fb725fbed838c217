"""Handles, streams, caches of kernels, and what a device is and can do."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from weft import frontend
from weft.backend import Handle
from weft.devices import DeviceProperties, default_handle

create_handle, destroy_handle = frontend.create_handle, frontend.destroy_handle
set_stream, get_stream = frontend.set_stream, frontend.get_stream
create_kernel_cache = frontend.create_kernel_cache
create_device_properties = frontend.create_device_properties
get_last_error_string = frontend.get_last_error_string


class DeviceInfo(NamedTuple):
    """A device as scripts ask for it."""

    name: str
    kind: str
    sm_version: int
    """Ten times the compute capability: 90 for sm_90; 0 for the CPU."""
    sm_count: int
    """Multiprocessors; of a CPU threads."""

    @classmethod
    def of(cls, handle: Handle | None = None) -> DeviceInfo:
        """The device of a handle; default that of create_handle().

        >>> import weft.cudnn as cudnn
        >>> cudnn.DeviceInfo.of(cudnn.create_handle("cpu")).kind
        'cpu'
        """
        said = json.loads(DeviceProperties(handle=handle or default_handle()).serialize())
        if said["kind"] == "cpu":
            return cls(said["name"], "cpu", 0, said["threads"])
        digits = "".join(c for c in said["arch"] if c.isdigit())
        return cls(said["name"], said["kind"], int(digits), said["multiprocessors"])


def sdpa_capabilities(handle: Handle | None = None) -> dict[str, Any]:
    """What attention takes on a device. Weft refuses no valid shape: what kernels do not serve runs as other
    operations, slower, and explain() says so."""
    device = DeviceInfo.of(handle)
    return {
        "device": device,
        "data_types": ["HALF", "BFLOAT16", "FLOAT", "FP8_E4M3", "FP8_E5M2"],
        "largest_head_dim": None,
        "backward": True,
        "paged_forward": True,
        "paged_backward": False,
        "ragged": True,
        "dropout": "by seed and offset",
        "score_mod": True,
        "block_mask": True,
        "sink_token": True,
    }

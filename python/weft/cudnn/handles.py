"""Handles, streams, kernel caches, and the properties and capabilities of devices."""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

from weft import frontend
from weft.backend import Handle
from weft.devices import DeviceProperties, default_handle
from weft.enums import device_kind

destroy_handle = frontend.destroy_handle
set_stream, get_stream = frontend.set_stream, frontend.get_stream
create_kernel_cache = frontend.create_kernel_cache
create_device_properties = frontend.create_device_properties
get_last_error_string = frontend.get_last_error_string


def create_handle(device: int | str | None = None, ordinal: int | None = None) -> Handle:
    """Opens a device. Without arguments, as in cuDNN, the GPU that is current in torch, otherwise the first
    one, and the CPU if there is no GPU. device, ordinal: as for weft.create_handle."""
    if device is not None or ordinal is not None:
        return frontend.create_handle(device, ordinal or 0)
    handle, current = frontend.create_handle(), _current_ordinal()
    if handle.device is device_kind.CUDA and current not in (None, handle.ordinal):
        return frontend.create_handle("cuda", current)
    return handle


def _current_ordinal() -> int | None:
    """The GPU that is current in torch; None if torch has not initialized CUDA."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    return int(cuda.current_device())


class DeviceInfo(NamedTuple):
    """The properties of a device that scripts query; numbers that a CPU lacks are 0."""

    ordinal: int
    device_name: str
    compute_capability: tuple[int, int]
    sm_count: int
    """Multiprocessors; for a CPU, threads."""
    shared_memory_per_block_optin: int
    """In bytes."""
    l2_cache_bytes: int

    @property
    def sm_version(self) -> int:
        """Ten times the compute capability: 90 for sm_90."""
        return 10 * self.compute_capability[0] + self.compute_capability[1]

    @classmethod
    def of(cls, device: Handle | DeviceProperties | None = None) -> DeviceInfo:
        """The device of a handle, or a described one; by default that of create_handle().

        >>> import weft, weft.cudnn as cudnn
        >>> cudnn.DeviceInfo.of(weft.compile_for("sm_90")).compute_capability
        (9, 0)
        """
        handle = device or default_handle()
        properties = handle if isinstance(handle, DeviceProperties) else DeviceProperties(handle=handle)
        described = json.loads(properties.serialize())
        digits = "".join(c for c in described.get("arch", "00") if c.isdigit())
        return cls(
            described["ordinal"],
            described["name"],
            (int(digits[:-1]), int(digits[-1])),
            described.get("multiprocessors", described.get("threads")),
            described.get("shared_per_block", 0),
            described.get("l2_bytes", 0),
        )


def sdpa_capabilities(handle: Handle | None = None) -> dict[str, Any]:
    """The capabilities of attention on a device. Weft supports every valid shape: if no fused kernel supports
    it, slower separate operations run, as explain() reports."""
    device = DeviceInfo.of(handle)
    return {
        "device": device,
        "data_types": ["HALF", "BFLOAT16", "FLOAT", "FP8_E4M3", "FP8_E5M2"],
        "largest_head_dim": None,
        "backward": True,
        "paged_forward": True,
        "paged_backward": False,
        "ragged": True,
        "dropout": "by seed and offset, or by a mask",
        "score_mod": True,
        "block_mask": True,
        "sink_token": True,
    }

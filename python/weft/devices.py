"""Devices to plan for, handles shared by the process, and the kernel cache of cuDNN's interface."""

from __future__ import annotations

import json
import re

from weft.arguments import counted
from weft.backend import Descriptor, Handle
from weft.enums import attribute_name, descriptor_type, device_kind
from weft.errors import BadParameterError

_handles: dict[tuple[device_kind | None, int], Handle] = {}


def default_handle(device: device_kind | None = None, ordinal: int = 0) -> Handle:
    """The process-wide handle of a device, or of the default device if none is named."""
    key = (device, ordinal)
    if key not in _handles:
        _handles[key] = Handle(device, ordinal)
    return _handles[key]


class DeviceProperties:
    """The device to plan for: a present one, by ordinal or handle, or one described by JSON."""

    def __init__(self, device: int | str | None = None, *, handle: Handle | None = None) -> None:
        self.is_described = isinstance(device, str)
        """True if the device need not be present on this machine: plans for it are saved, not run."""
        self.descriptor = Descriptor(descriptor_type.DEVICEPROP_DESCRIPTOR)
        if handle is not None:
            self.descriptor.set(attribute_name.DEVICEPROP_HANDLE, "HANDLE", [handle.pointer])
        elif isinstance(device, str):
            self.descriptor.set(attribute_name.DEVICEPROP_JSON_REPRESENTATION, "CHAR", device)
        elif device is not None:
            self.descriptor.set(attribute_name.DEVICEPROP_KIND_EXT, "INT64", [device_kind.CUDA])
            self.descriptor.set(attribute_name.DEVICEPROP_DEVICE_ID, "INT32", [device])
        self.descriptor.finalize()

    def serialize(self) -> str:
        """The properties as JSON."""
        return self.descriptor.get_text(attribute_name.DEVICEPROP_JSON_REPRESENTATION)

    def __repr__(self) -> str:
        info = json.loads(self.serialize())
        if info["kind"] == "cpu":
            return f"DeviceProperties(cpu: {info['name']}, {counted(info['threads'], 'thread')})"
        return f"DeviceProperties({info['arch']}: {info['name']}, {info['multiprocessors']} multiprocessors)"


def limited(device: DeviceProperties, multiprocessors: int) -> DeviceProperties:
    """The device as if it had only this many multiprocessors; 0 means all of them. A CPU has none and is
    returned unchanged."""
    info = json.loads(device.serialize())
    most = info.get("multiprocessors")
    if most is None or multiprocessors == 0:
        return device
    if not 0 < multiprocessors <= most:
        raise BadParameterError(
            f"sm_count: {multiprocessors}, and {info['name']} has {most} multiprocessors. Give 1 to {most}, "
            "or 0."
        )
    return DeviceProperties(json.dumps(info | {"multiprocessors": multiprocessors}))


def compile_for(arch: str) -> DeviceProperties:
    """A typical GPU of an architecture, for planning and compiling on a machine without one. Building needs
    NVRTC but no driver. Pass it to Graph(device=...), save the plan with its code, and load it on the machine
    with the GPU.

    >>> import json, weft
    >>> weft.compile_for("sm_90")
    DeviceProperties(sm_90: H200 (described), 132 multiprocessors)
    >>> with weft.Graph(device="sm_90") as g:  # the same
    ...     y = g.relu(g.tensor([4096], data_type="bf16", name="x"), name="y")
    >>> saved = g.serialize(code=True)
    """
    return DeviceProperties(json.dumps({"kind": "cuda", "arch": arch}))


def device_of(name: str) -> Handle | DeviceProperties:
    """The device that a name refers to: "cpu", "cuda" and "cuda:1" name the process-wide handle of that
    device, "sm_90" a described GPU."""
    if re.fullmatch(r"(sm_)?\d+[af]?", name):
        return compile_for(name)
    match = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", name)
    if match is None:
        raise BadParameterError(
            f"device: {name!r} is not a device. Give 'cpu', 'cuda', 'cuda:1', or an architecture such as "
            "'sm_90' to compile for."
        )
    return default_handle(device_kind[match[1].upper()], int(match[2] or 0))


class KernelCache:
    """A cache of compiled kernels shared by plans. Weft shares kernels automatically; this class stores what
    cuDNN programs set."""

    def __init__(self) -> None:
        self.deserialize(None)

    def serialize(self) -> bytes:
        """The cache as bytes."""
        return self.descriptor.get_bytes(attribute_name.KERNEL_CACHE_JSON_REPRESENTATION)

    def deserialize(self, data: bytes | str | None) -> KernelCache:
        """Loads the bytes returned by serialize."""
        self.descriptor = Descriptor(descriptor_type.KERNEL_CACHE_DESCRIPTOR)
        if data:
            self.descriptor.set(attribute_name.KERNEL_CACHE_JSON_REPRESENTATION, "CHAR", data)
        self.descriptor.finalize()
        return self

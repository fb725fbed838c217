"""Devices to plan for, handles that the process shares, and the kernel cache of cuDNN's interface."""

from __future__ import annotations

from weft.backend import Descriptor, Handle
from weft.enums import attribute_name, descriptor_type, device_kind

_handles: dict[tuple[device_kind | None, int], Handle] = {}


def default_handle(device: device_kind | None = None, ordinal: int = 0) -> Handle:
    """The process's handle of a device; of the default device when none is named."""
    key = (device, ordinal)
    if key not in _handles:
        _handles[key] = Handle(device, ordinal)
    return _handles[key]


class DeviceProperties:
    """The device to plan for: one that is present, by ordinal or handle, or one described by JSON."""

    def __init__(self, device: int | str | None = None, *, handle: Handle | None = None) -> None:
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
        return f"DeviceProperties({self.serialize()})"


class KernelCache:
    """Compiled kernels that plans share. Weft shares them by itself; this carries what cuDNN programs set."""

    def __init__(self) -> None:
        self.deserialize(None)

    def serialize(self) -> bytes:
        """The cache as bytes."""
        return self.descriptor.get_bytes(attribute_name.KERNEL_CACHE_JSON_REPRESENTATION)

    def deserialize(self, data: bytes | str | None) -> KernelCache:
        """Takes over what serialize gave."""
        self.descriptor = Descriptor(descriptor_type.KERNEL_CACHE_DESCRIPTOR)
        if data:
            self.descriptor.set(attribute_name.KERNEL_CACHE_JSON_REPRESENTATION, "CHAR", data)
        self.descriptor.finalize()
        return self

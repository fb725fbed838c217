"""Kernels of a few lines of PTX on the emulated GPU, through the entries of the driver that Weft uses.

    gpu = Gpu()
    doubled, = gpu.run("mul.wide.u32 %d9, %r0, 4; add.s64 %d9, %d9, %d0; ...", np.arange(32, dtype="u4"))

A kernel has its thread's number in %r0 and its arguments' addresses in %d0, %d1 and on; %p, %h, %r, %d and %f
are registers of 1, 16, 32, 64 and 32 bits; `s` is its shared memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import emulated_gpu
import numpy as np

MAP_TYPES = {1: 0, 2: 6, 4: 7}  # by the bytes of an element: u8, f16, f32
LAUNCH_FAILED, INVALID_IMAGE = 719, 200


class Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    ]


class Map(ctypes.Structure):
    """A tensor map as an argument."""

    _fields_ = [("bytes", ctypes.c_ubyte * 128)]


def module(body: str, arguments: int = 0, shared: int = 0) -> str:
    """Returns the text of a module whose kernel `k` has this body. An argument is 128 bytes: an address or a
    map."""
    loads = "\n".join(f"ld.param.u64 %d{i}, [args+{128 * i}];" for i in range(arguments))
    return f""".version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .align 128 .b8 args[{128 * max(arguments, 1)}])
{{
.reg .pred %p<16>;
.reg .b16 %h<16>;
.reg .b32 %r<96>;
.reg .b64 %d<32>;
.reg .f32 %f<96>;
{f".shared .align 1024 .b8 s[{shared}];" if shared else ""}
{loads}
mov.u32 %r0, %tid.x;
{body}
ret;
}}
"""


class Gpu:
    """The emulated GPU, in this process."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(emulated_gpu.build() / "libcuda.so.1"))
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 100)
        self.call("cuCtxPushCurrent", context)
        self.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(ctypes.c_int(2)))

    def call(self, name: str, *arguments: Any, wants: int = 0) -> None:
        """Calls an entry of the driver."""
        address, found = ctypes.c_void_p(), ctypes.c_int()
        find = self.library.cuGetProcAddress_v2
        find(name.encode(), ctypes.byref(address), 12000, ctypes.c_uint64(1), ctypes.byref(found))
        entry = ctypes.CFUNCTYPE(ctypes.c_int)(address.value or 0)
        assert entry(*arguments) == wants, name

    def allocate(self, size: int) -> int:
        """Allocates memory and returns its address."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        self.call("cuMemFree", ctypes.c_uint64(address))

    def tiled(
        self, address: int, dims: Sequence[int], box: Sequence[int], size: int = 4, swizzle: int = 0
    ) -> Map:
        """A map of a packed tensor; dims and box innermost first."""
        raw = ctypes.create_string_buffer(256)
        start = -ctypes.addressof(raw) % 64
        strides = [size * int(np.prod(dims[: i + 1])) for i in range(len(dims) - 1)]
        self.call(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(ctypes.addressof(raw) + start),
            MAP_TYPES[size],
            len(dims),
            ctypes.c_uint64(address),
            (ctypes.c_uint64 * len(dims))(*dims),
            (ctypes.c_uint64 * 5)(*strides),
            (ctypes.c_uint32 * len(box))(*box),
            (ctypes.c_uint32 * 5)(1, 1, 1, 1, 1),
            *(0, swizzle, 0, 0),
        )
        return Map.from_buffer_copy(raw, start)

    def load(self, text: str, wants: int = 0) -> tuple[ctypes.c_void_p, str]:
        """Loads a module; returns the driver's message if it fails."""
        made, log = ctypes.c_void_p(), ctypes.create_string_buffer(512)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), 512)
        options = (ctypes.c_int * 2)(5, 6)
        self.call("cuModuleLoadDataEx", ctypes.byref(made), text.encode(), 2, options, values, wants=wants)
        return made, log.value.decode()

    def launch(
        self,
        text: str,
        arguments: Sequence[int | Map],
        threads: int = 32,
        grid: int = 1,
        cluster: int = 1,
        wants: int = 0,
    ) -> None:
        """Launches kernel `k` of a module and waits for it."""
        made, _ = self.load(text)
        kernel = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(kernel), made, b"k")
        packed = b"".join(bytes(a) if isinstance(a, Map) else a.to_bytes(128, "little") for a in arguments)
        block = ctypes.create_string_buffer(packed + bytes(128))
        attribute = (ctypes.c_uint32 * 18)(4, 0, cluster, 1, 1)
        config = Config((grid, 1, 1), (threads, 1, 1), 0, None, ctypes.addressof(attribute), 1)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(block))
        self.call("cuLaunchKernelEx", ctypes.byref(config), kernel, pointers, ctypes.c_void_p(), wants=wants)
        self.call("cuModuleUnload", made)

    def run(self, body: str, *arrays: Any, shared: int = 0, **shape: int) -> list[Any]:
        """The arrays as the kernel leaves them; each is an allocation of its own size."""
        addresses = [self.allocate(a.nbytes) for a in arrays]
        for address, array in zip(addresses, arrays, strict=True):
            ctypes.memmove(address, np.ascontiguousarray(array).ctypes.data, array.nbytes)
        try:
            self.launch(module(body, len(arrays), shared), addresses, **shape)
            return [np.frombuffer(ctypes.string_at(at, a.nbytes), a.dtype).reshape(a.shape)
                    for at, a in zip(addresses, arrays, strict=True)]  # fmt: skip
        finally:
            for address in addresses:
                self.free(address)

    def each(self, text: str, result: str, *inputs: Any) -> Any:
        """Applies the text to every element: "{d}" is the register of the result, "{a}", "{b}" and so on are
        those of the inputs."""
        letters = {1: "h", 2: "h", 4: "r", 8: "d"}
        made = np.zeros(len(inputs[0]), result)
        names, body = {}, [
            "mov.u32 %r1, %ctaid.x;",
            "mad.lo.s32 %r0, %r1, 256, %r0;",
            f"setp.ge.s32 %p0, %r0, {len(made)};",
            "@%p0 ret;",
        ]  # fmt: skip
        for i, array in enumerate((made, *inputs)):
            size = array.dtype.itemsize
            names["dabcef"[i]] = f"%{letters[size]}{4 + i + (6 if size == 8 else 0)}"
            body += [f"mul.wide.u32 %d{16 + i}, %r0, {size};", f"add.s64 %d{16 + i}, %d{16 + i}, %d{i};"]
            kind = "s" if array.dtype.kind == "i" and size < 2 else "u" if size < 2 else "b"
            if i:
                body.append(f"ld.global.{kind}{8 * size} {names['dabcef'[i]]}, [%d{16 + i}];")
        size = made.dtype.itemsize
        body += [
            text.format(**names),
            f"st.global.{'u' if size < 2 else 'b'}{8 * size} [%d16], {names['d']};",
        ]
        return self.run("\n".join(body), made, *inputs, threads=256, grid=-(-len(made) // 256))[0]

"""Reads properties of kernels from a cubin file, without CUDA tools.

assert cubins.frames(code) == [0]
assert cubins.divergent_branches(code) == 0
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FRAME = b"\x04\x11\x08\x00"  # begins a record: a function number follows, then its frame size
NO_BITS = 8  # the type of a section without file contents, such as shared memory
SERIALISED = "(C75"  # of the compiler's advisories about wgmma
BRANCH, DIVERGES = 0x947, 1 << 27  # the opcode of BRA, and the bit of its upper half that makes it BRA.DIV


class Section(NamedTuple):
    """A part of an ELF file. `info` of a cubin's code has the count of registers in its upper 8 bits."""

    name: str
    info: int
    size: int
    content: bytes


def all_sections(code: bytes) -> Iterator[Section]:
    """Returns the sections of a 64-bit ELF file, in file order."""
    table, count, names = struct.unpack_from("<Q", code, 40)[0], *struct.unpack_from("<HH", code, 60)
    headers = [struct.unpack_from("<IIQQQQII", code, table + i * 64) for i in range(count)]
    for name, type_, _, _, start, length, _, info in headers:
        at = headers[names][4] + name
        content = b"" if type_ == NO_BITS else code[start : start + length]
        yield Section(code[at : code.index(b"\0", at)].decode(), info, length, content)


def sections(code: bytes, prefix: str) -> Iterator[bytes]:
    """Returns the contents of the sections whose names have this prefix."""
    return (section.content for section in all_sections(code) if section.name.startswith(prefix))


def frames(code: bytes) -> list[int]:
    """Returns the local memory sizes of the functions in bytes; a size other than 0 means spills."""
    return [
        struct.unpack_from("<I", info, i + 8)[0]
        for info in sections(code, ".nv.info")
        for i in range(0, len(info), 4)
        if info[i : i + 4] == FRAME
    ]


def divergent_branches(code: bytes) -> int:
    """Counts the branches (sm_70 and newer: 16 bytes per instruction) where the assembler could not prove
    that a warp stays
    converged and inserted BRA.DIV: a main loop of wgmma is 5 % slower then."""
    return sum(
        lower & 0xFFF == BRANCH and upper & DIVERGES != 0
        for text in sections(code, ".text.")
        for lower, upper in struct.iter_unpack("<QQ", text)
    )


def check_dumped(folder: Path, diverges: bool = False) -> int:
    """Checks each program of a dump: no local memory frame, no warning of serialized products, and no
    divergent branch unless allowed. Returns the number of programs."""
    images = sorted(folder.glob("*/*.cubin"))
    for image in images:
        sizes, name = frames(image.read_bytes()), image.parent.name
        assert len(sizes) > 0
        assert not any(sizes), f"{name}: {sizes} bytes of registers spilled"
        assert SERIALISED not in (image.parent / "log.txt").read_text()
        branches = divergent_branches(image.read_bytes())
        assert diverges or branches == 0, f"{name}: {branches} times BRA.DIV"
    return len(images)

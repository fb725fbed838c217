"""What a cubin says of its kernels, read from the file itself: no tool of CUDA is needed.

assert cubins.frames(code) == [0]
assert cubins.divergent_branches(code) == 0
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

FRAME = b"\x04\x11\x08\x00"  # begins a record: the number of a function follows, then the size of its frame
SERIALISED = "(C75"  # of the compiler's advisories about wgmma
BRANCH, DIVERGES = 0x947, 1 << 27  # the opcode of BRA, and the bit of its upper half that makes it BRA.DIV


def sections(code: bytes, prefix: bytes) -> Iterator[bytes]:
    """The contents of the sections whose names begin so."""
    table, size, count, names = struct.unpack_from("<Q", code, 40)[0], *struct.unpack_from("<HHH", code, 58)
    headers = [struct.unpack_from("<IIQQQQ", code, table + i * size) for i in range(count)]
    for name, _, _, _, start, length in headers:
        at = headers[names][4] + name
        if code[at : code.index(b"\0", at)].startswith(prefix):
            yield code[start : start + length]


def frames(code: bytes) -> list[int]:
    """The bytes of local memory that its functions take: where there are some, registers are spilled."""
    return [
        struct.unpack_from("<I", info, i + 8)[0]
        for info in sections(code, b".nv.info")
        for i in range(0, len(info), 4)
        if info[i : i + 4] == FRAME
    ]


def divergent_branches(code: bytes) -> int:
    """How often the assembler (sm_70 and newer: 16 bytes an instruction) did not see that a warp stays
    together, and guards what its lanes do together by BRA.DIV: a main loop of wgmma is 5 % slower then."""
    return sum(
        lower & 0xFFF == BRANCH and upper & DIVERGES != 0
        for text in sections(code, b".text.")
        for lower, upper in struct.iter_unpack("<QQ", text)
    )


def check_dumped(folder: Path, diverges: bool = False) -> int:
    """Of each program of a dump: no frame in local memory, no word of serialised products, and no divergent
    branch unless they are allowed. How many programs there are."""
    images = sorted(folder.glob("*/*.cubin"))
    for image in images:
        sizes, name = frames(image.read_bytes()), image.parent.name
        assert len(sizes) > 0
        assert not any(sizes), f"{name}: {sizes} bytes of registers spilled"
        assert SERIALISED not in (image.parent / "log.txt").read_text()
        branches = divergent_branches(image.read_bytes())
        assert diverges or branches == 0, f"{name}: {branches} times BRA.DIV"
    return len(images)

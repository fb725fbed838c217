"""Checks the text of kernels, as NVRTC's front end does, in more configurations than are compiled and run:
each tile, and row lengths, windows and layouts for which families choose differently, for chips of each
generation. This finds configurations that break a static_assert; machine code is not generated.

    python tests/kernel_texts.py              all, about ten minutes of one core
    python tests/kernel_texts.py --part 3/8   every 8th configuration, from the 3rd on

Needs EMULATOR_CHECKS and NVRTC as emulated_gpu.environment() sets them; no GPU is opened.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any, NamedTuple

import small_cases
import weft
from small_cases import Maker, batch_norm, conv, matmul, norm, pooled, sequences

OLDER = ("sm_75", "sm_80", "sm_89", "sm_120")
CHIPS = (*OLDER, "sm_90")
HOPPER_TILES, TILES = 33, 7


class Text(NamedTuple):
    """A graph for a chip, planned by one engine with some settings."""

    name: str
    arch: str
    build: Callable[[Maker], Any]
    engine: str = "cuda"
    knobs: dict[str, int] | None = None


# ---- Products ----------------------------------------------------------------------------------------------


def reduced(dims: tuple[int, ...], *modes: str, dtype: str = "bf16") -> Any:
    """Totals of a product's columns, rows or all elements; the result is stored, too."""

    def build(t: Maker) -> None:
        c = t.out(t.g.matmul(t(1000, 264), t(264, 1000)), dtype=dtype)
        for mode in modes:
            t.out(t.g.reduction(c, mode=mode), *dims, dtype="f32")

    return build


def statistics(images: int, side: int) -> Any:
    """Statistics of each filter; with few pixels these are the columns of a transposed product."""

    def build(t: Maker) -> None:
        y = t.g.conv_fprop(t(images, 264, side, side, last=True), t(200, 264, 1, 1, last=True))
        for total in t.g.genstats(t.out(y, images, 200, side, side, last=True)):
            t.out(total, dtype="f32")

    return build


def turned(t: Maker) -> None:
    """Operands and a result whose rows are contiguous."""
    a, b = t(1000, 264, strides=[1, 1000]), t(264, 1000)
    t.out(t.g.matmul(a, b), 1000, 1000).set_stride([1, 1000])


HOPPER = {
    "columns": reduced((1, 1000), "ADD"),
    "columns twice": reduced((1, 1000), "ADD", "MAX"),
    "rows": reduced((1000, 1), "ADD"),
    "all": reduced((1, 1), "AMAX"),
    "columns of floats": reduced((1, 1000), "ADD", dtype="f32"),
    "columns of bytes": reduced((1, 1000), "ADD", dtype="e4m3"),
    "statistics": statistics(16, 14),
    "statistics of few": statistics(4, 2),
    "turned": turned,
    "scaled": small_cases.scaled,
    "few rows": matmul(16, 1000, 528, "e4m3", "bf16", True),
    "filter": conv("wgrad", (4, 128, 13, 15), (200, 128, 3, 3)),
}
PORTABLE = {
    "bf16": (matmul(250, 200, 136), "cuda"),
    "f16 of odd sizes": (matmul(251, 199, 137, "f16"), "cuda"),
    "f32": (matmul(250, 200, 136, "f32"), "cuda"),
    "tf32": (matmul(250, 200, 136, "f32"), "cuda.tf32"),
    "i8": (matmul(250, 200, 144, "i8", "i32", True), "cuda"),
    "f64": (matmul(70, 200, 136, "f64"), "cuda"),
    "turned": (turned, "cuda"),
    "statistics": (statistics(4, 7), "cuda"),
    "columns and all": (small_cases.totals, "cuda"),
    "volume": (conv("fprop", (2, 24, 7, 12, 35), (32, 24, 3, 3, 3)), "cuda"),
}


def products() -> Iterator[Text]:
    """Each row of both tables of tiles."""
    for name, tile in product(HOPPER, range(HOPPER_TILES + 1)):
        yield Text(f"{name}, tile {tile}", "sm_90", HOPPER[name], knobs={"TILE_SIZE": tile})
    for name, tile, arch in product(PORTABLE, range(TILES + 1), OLDER):
        build, engine = PORTABLE[name]
        yield Text(f"{name}, tile {tile}", arch, build, engine, {"TILE_SIZE": tile})
    for kind, size, stride, dtype in product(("fprop", "dgrad", "wgrad"), (3, 5, 7), (1, 2), ("bf16", "f32")):
        for last, arch in product((True, False), ("sm_75", "sm_90")):
            build = channels(kind, size, stride, dtype, last)
            yield Text(f"depthwise {kind} of {size}, {stride}, {dtype}, {last}", arch, build)


def channels(kind: str, size: int, stride: int, dtype: str, last: bool) -> Any:
    """A depthwise convolution of 40 channels."""

    def build(t: Maker) -> None:
        pad, side = size // 2, (29 + 2 * (size // 2) - size) // stride + 1
        x, y, w = (2, 40, 29, 29), (2, 40, side, side), (40, 1, size, size)
        how = {"padding": [pad] * 2, "stride": [stride] * 2}
        if kind == "fprop":
            found, dims = t.g.conv_fprop(t(*x, last=last, dtype=dtype), t(*w, dtype=dtype), **how), y
        elif kind == "dgrad":
            found, dims = t.g.conv_dgrad(t(*y, last=last, dtype=dtype), t(*w, dtype=dtype), **how), x
        else:
            operands = t(*x, last=last, dtype=dtype), t(*y, last=last, dtype=dtype)
            found, dims = t.g.conv_wgrad(*operands, **how), w
        t.out(found, *dims, last=last and kind != "wgrad", dtype=dtype)

    return build


# ---- Rows, channels and windows ----------------------------------------------------------------------------

LENGTHS = (1, 3, 17, 32, 33, 64, 96, 257, 517, 1000, 2051, 4096, 4097, 12288, 16384, 65536)


def softmax(rows: int, length: int, dtype: str, axis: int) -> Any:
    def build(t: Maker) -> None:
        dims = (rows, length) if axis else (length, rows)
        t.out(t.g.softmax(t(*dims, dtype=dtype), axis=axis), dtype=dtype)

    return build


def total(rows: int, length: int, dtype: str, axis: int) -> Any:
    def build(t: Maker) -> None:
        dims = (rows, length) if axis else (length, rows)
        t.out(t.g.reduction(t(*dims, dtype=dtype), "ADD", dims=[axis]), dtype="f32")

    return build


def rows() -> Iterator[Text]:
    """Rows of all lengths, few and many, contiguous and not."""
    turn = 0
    for length, count, dtype in product(LENGTHS, (1, 9, 140, 5000), ("bf16", "f32")):
        for name, build in (
            ("norm", norm("fwd", count, length, dtype)),
            ("norm gradient", norm("bwd", count, length, dtype)),
            ("softmax", softmax(count, length, dtype, 1)),
            ("softmax of columns", softmax(count, length, dtype, 0)),
            ("total", total(count, length, dtype, 1)),
            ("total of columns", total(count, length, dtype, 0)),
        ):
            turn += 1  # 5 chips and 6 kinds: each kind meets all chips
            yield Text(f"{name}, {count} of {length}, {dtype}", CHIPS[turn % len(CHIPS)], build)
    for backward, count, arch in product((False, True), (3, 8, 40, 64, 100, 256, 2048), CHIPS):
        yield Text(f"batch norm {backward} of {count}", arch, batch_norm(backward, (9, count, 28, 28)))
    for count, groups, backward in product((32, 96, 120, 480, 1280), (8, 24, 32), (False, True)):
        if count % groups == 0:
            norms = small_cases.group_norm(backward, count, groups, 16)
            yield Text(f"group norm {backward} of {count} in {groups}", "sm_90", norms)


def maps() -> Iterator[Text]:
    """Transposes of all element sizes, blocks of scales, whole windows, and causal convolutions."""
    for dtype, dims, arch in product(
        ("u8", "bf16", "f32", "f64"), ((70, 130), (64, 256), (3, 1000), (1000, 6)), CHIPS
    ):
        yield Text(f"transpose of {dtype}, {dims}", arch, transposed(dims, dtype))
        yield Text(f"map across {dtype}, {dims}", arch, across(dims, dtype))
    for size, axis, arch in product((16, 32, 64, 128), (0, 1), CHIPS):
        yield Text(f"blocks of {size} along {axis}", arch, quantized(size, axis))
    for side, count, last, arch in product((2, 5, 7, 14), (3, 64), (True, False), ("sm_80", "sm_90")):
        build = pooled((2, count, side, side), side, side, last=last)
        yield Text(f"window of {side}, {count}, {last}", arch, build)
    for taps, steps, last, backward in product((2, 3, 4), (77, 80), (True, False), (True, False)):
        build = sequences(24, steps, taps, last=last, backward=backward)
        yield Text(f"causal {taps}, {steps}, {last}, {backward}", "sm_80", build)


def transposed(dims: tuple[int, int], dtype: str) -> Any:
    return lambda t: t.out(t.g.transpose(t(*dims, dtype=dtype), [1, 0]), dtype=dtype)


def across(dims: tuple[int, int], dtype: str) -> Any:
    steps = [1, dims[0]]
    return lambda t: t.out(t.g.add(t(*dims, strides=steps, dtype=dtype), t(*dims, dtype=dtype)), dtype=dtype)


def quantized(size: int, axis: int) -> Any:
    def build(t: Maker) -> None:
        y, scale = t.g.block_scale_quantize(t(256, 256), size, axis=axis)
        t.out(y, dtype="e4m3")
        t.out(scale, dtype="e8m0")

    return build


def attention() -> Iterator[Text]:
    """Gradients of all head sizes in parts, and of sinks."""
    for size in range(8, 257, 8):
        build = small_cases.attention_gradient_of_boxes(size, "bf16", (5, 1), 330, use_causal_mask=True)
        yield Text(f"gradient of heads of {size}", "sm_90", build)
    for arch in CHIPS:
        yield Text("gradient of a sink", arch, small_cases.attention_gradient_of_sink)
        yield Text("gradient of a wide sink", arch, small_cases.wide_gradients)


def cases() -> Iterator[Text]:
    """The small cases, on chips that choose others of their kernels."""
    for name, case in small_cases.CASES.items():
        for arch in OLDER:
            yield Text(name, arch, case.build, case.engine)


def texts() -> list[Text]:
    """All configurations."""
    return [*products(), *rows(), *maps(), *attention(), *cases()]


# ---- Checking ----------------------------------------------------------------------------------------------


def check(text: Text) -> str:
    """Returns the error of a configuration; empty if there is none, or if no plan exists."""
    try:
        made = Maker(device=text.arch)
        text.build(made)
        made.g.validate()
        made.g.build_operation_graph()
        engines = [answer["engine"] for answer in made.g.support()]
        if text.engine in engines:
            made.g.create_execution_plan(engines.index(text.engine), text.knobs)
            made.g.build_plan_at_index(0)
    except weft.NotSupportedError:  # not every tile takes every product, and not every chip every type
        return ""
    except (weft.WeftError, weft.CompilationWarning) as error:
        return f"{text.name} on {text.arch}: {str(error)[:400]}"
    return ""


def main() -> int:
    """Checks configurations; 1 if one is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", default="1/1", help="N/M: every Mth configuration, from the Nth on")
    first, step = map(int, parser.parse_args().part.split("/"))
    chosen = texts()[first - 1 :: step]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        wrong = list(filter(None, pool.map(check, chosen)))
    print("\n".join(wrong))
    compiled = weft.backend.describe_machine()["cache"]["compiled"]
    print(f"{len(chosen)} configurations, {compiled} programs, {len(wrong)} wrong")
    return 1 if wrong or not compiled else 0


if __name__ == "__main__":
    sys.exit(main())

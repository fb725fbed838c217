"""Every row of the Hopper family's tile table, and wide im2col tiles with all fused operations, compiled for
a described GPU: no register spills, and no serialized tensor core instructions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cubins
import pytest
import tiers
import weft
from weft.devices import DeviceProperties

H200 = '{"kind":"cuda","arch":"sm_90"}'
TILES = 33

Build = Callable[[weft.Graph], Any]


def channels_last(g: weft.Graph, images: int, channels: int, *size: int, data_type: str | None = None) -> Any:
    dims, strides, step = [images, channels, *size], [0] * (2 + len(size)), channels
    strides[1] = 1
    for i in range(len(dims) - 1, 1, -1):
        strides[i], step = step, step * dims[i]
    strides[0] = step
    return g.tensor(dims, strides, data_type=data_type)


def linear(g: weft.Graph) -> Any:
    a, b = g.tensor([2048, 1024], [1024, 1]), g.tensor([1024, 4096], [1, 1024])
    bias, residual = g.tensor([1, 4096], [4096, 1]), g.tensor([2048, 4096], [4096, 1])
    return g.add(g.gelu_approx_tanh(g.add(g.matmul(a, b), bias)), residual)


def plain(g: weft.Graph) -> Any:
    return g.matmul(g.tensor([2048, 1024], [1024, 1]), g.tensor([1024, 4096], [4096, 1]))


def unstaged(g: weft.Graph) -> Any:
    return plain(g).set_data_type("f32")


def transposed(g: weft.Graph) -> Any:
    a, b = g.tensor([2048, 1024], [1024, 1]), g.tensor([1024, 4096], [1, 1024])
    return g.matmul(a, b).set_dim([2048, 4096]).set_stride([1, 2048])


def forward(g: weft.Graph) -> Any:
    x, w = channels_last(g, 32, 128, 28, 28), channels_last(g, 256, 128, 3, 3)
    return g.conv_fprop(x, w, padding=[1, 1], stride=[2, 2])


def data(g: weft.Graph) -> Any:
    dy, w = channels_last(g, 32, 256, 10, 10), channels_last(g, 256, 128, 3, 3)
    like = channels_last(g, 32, 128, 28, 28)
    dx = g.conv_dgrad(dy, w, padding=[1, 1], stride=[3, 3])
    return dx.set_dim(list(like.dims)).set_stride(list(like.strides))


def filter_(g: weft.Graph) -> Any:
    x, dy = channels_last(g, 32, 128, 28, 28), channels_last(g, 32, 256, 28, 28)
    like = channels_last(g, 256, 128, 3, 3)
    dw = g.conv_wgrad(x, dy, padding=[1, 1])
    return dw.set_dim(list(like.dims)).set_stride(list(like.strides))


def prepared(g: weft.Graph, x: Any) -> Any:
    """Scale, bias and relu of an image's channels."""
    scale, bias = (g.tensor([1, x.dims[1], 1, 1], [x.dims[1], 1, 1, 1]) for _ in range(2))
    return g.relu(g.add(g.mul(x, scale), bias)).set_data_type("bf16")


def prepared_forward(g: weft.Graph) -> Any:
    x, w = channels_last(g, 32, 256, 56, 56), channels_last(g, 512, 256, 1, 1)
    return g.conv_fprop(prepared(g, x), w, stride=[2, 2])


def prepared_data(g: weft.Graph) -> Any:
    dy, w = channels_last(g, 32, 512, 28, 28), channels_last(g, 512, 256, 1, 1)
    like = channels_last(g, 32, 256, 56, 56)
    dx = g.conv_dgrad(prepared(g, dy), w, stride=[2, 2])
    return dx.set_dim(list(like.dims)).set_stride(list(like.strides))


def prepared_filter(g: weft.Graph) -> Any:
    x, dy = channels_last(g, 32, 256, 57, 57), channels_last(g, 32, 512, 29, 29)
    like = channels_last(g, 512, 256, 1, 1)
    dw = g.conv_wgrad(prepared(g, x), dy, stride=[2, 2])
    return dw.set_dim(list(like.dims)).set_stride(list(like.strides))


def bytes_product(g: weft.Graph, a: str, b: str, math: str) -> Any:
    return g.matmul(
        g.tensor([2048, 1024], [1024, 1], data_type=a),
        g.tensor([1024, 4096], [1, 1024], data_type=b),
        compute_data_type=math,
    )


def fp8(g: weft.Graph) -> Any:
    return bytes_product(g, "e4m3", "e5m2", "f32")


def fp8_scaled(g: weft.Graph) -> Any:
    scale = g.tensor([1, 1], [1, 1], data_type="f32")
    return g.mul(bytes_product(g, "e4m3", "e4m3", "f32"), scale).set_data_type("e4m3")


def fp8_forward(g: weft.Graph) -> Any:
    x, w = (channels_last(g, *dims, data_type="e5m2") for dims in ((32, 128, 28, 28), (256, 128, 3, 3)))
    return g.conv_fprop(x, w, padding=[1, 1])


def block_scaled(g: weft.Graph) -> Any:
    a = g.tensor([2048, 1024], [1024, 1], data_type="e4m3")
    b = g.tensor([1024, 4096], [1, 1024], data_type="e4m3")
    a_scale = g.tensor([2048, 8], [1, 2048], data_type="f32")
    b_scale = g.tensor([8, 32], [1, 8], data_type="f32")
    wide = g.block_scale_dequantize(a, a_scale, [1, 128]), g.block_scale_dequantize(b, b_scale, [128, 128])
    return g.matmul(*wide)


def int8(g: weft.Graph) -> Any:
    return bytes_product(g, "i8", "i8", "i32").set_data_type("i32")


def int8_scaled(g: weft.Graph) -> Any:
    return g.mul(bytes_product(g, "u8", "i8", "i32"), g.tensor([1, 4096], [4096, 1], data_type="f32"))


def statistics(g: weft.Graph) -> Any:
    x, w = channels_last(g, 32, 128, 56, 56), channels_last(g, 256, 128, 3, 3)
    like = channels_last(g, 32, 256, 28, 28)
    y = g.conv_fprop(x, w, padding=[1, 1], stride=[2, 2]).set_data_type("bf16").set_dim(list(like.dims))
    y.set_output(True).set_stride(list(like.strides))
    sums, squares = g.genstats(y)
    squares.set_output(True).set_data_type("f32")
    return sums.set_data_type("f32")


def data_statistics(g: weft.Graph) -> Any:
    dx = data(g).set_data_type("bf16").set_output(True)
    sums, squares = g.genstats(dx)
    squares.set_output(True).set_data_type("f32")
    return sums.set_data_type("f32")


def totals(g: weft.Graph) -> Any:
    c = plain(g).set_output(True)
    for mode, dims in (("ADD", [1, 4096]), ("MAX", [2048, 1])):
        g.reduction(c, mode=mode).set_dim(dims).set_output(True).set_data_type("f32")
    return g.reduction(c, mode="AMAX").set_dim([1, 1]).set_data_type("f32")


def compile_for_h200(build: Build, knobs: dict[int | str, int]) -> str:
    """The steps of the plan, in words."""
    g = weft.Graph(
        io_data_type="bf16",
        intermediate_data_type="f32",
        compute_data_type="f32",
        device_property=DeviceProperties(H200),
    )
    build(g).set_output(True)
    g.validate()
    g.build_operation_graph()
    g.create_execution_plan(0, knobs)
    g.check_support()
    g.build_plans()
    return str(g.plan.report)


def few_rows(g: weft.Graph, rows: int, columns: int, a: str, b: str, math: str) -> Any:
    few = g.tensor([rows, 4096], [4096, 1], data_type=a)
    many = g.tensor([4096, columns], [1, 4096], data_type=b)
    scale = g.tensor([1, columns], [columns, 1], data_type="f32")
    return g.mul(g.matmul(few, many, compute_data_type=math), scale)


BUILDS = [linear, plain, unstaged, transposed, forward, data, filter_, statistics, data_statistics, totals]
PREPARED = [prepared_forward, prepared_data, prepared_filter]
BYTES = [fp8, fp8_scaled, fp8_forward, block_scaled, int8, int8_scaled]


@pytest.mark.parametrize("build", [*BUILDS, *PREPARED, *BYTES])
def test_tiles(build: Build, dump: Path) -> None:
    """A quarter of the tiles, including rarely used ones; of data gradients with statistics, which take
    seconds each, a sixth."""
    served, tiles = 0, tiers.of_today(range(1, TILES + 1), 6 if build is data_statistics else 4)
    for tile in tiles:
        try:
            report = compile_for_h200(build, {"TILE_SIZE": tile})
            served += "wgmma, tiles" in report and ("prologue" in report) == (build in PREPARED)
        except weft.NotSupportedError:  # not every tile takes every layout
            continue
    assert served >= (1 if not tiers.ALL else 5 if build in (block_scaled, totals) else 8)
    cubins.check_dumped(dump)


@pytest.mark.parametrize(
    ("a", "b", "math"), [("bf16", "bf16", "f32"), ("e4m3", "e4m3", "f32"), ("u8", "i8", "i32")]
)
@pytest.mark.parametrize(("rows", "tile"), [(128, 25), (16, 26), (32, 27), (64, 28)])
def test_tiles_split_over_clusters(rows: int, tile: int, a: str, b: str, math: str, dump: Path) -> None:
    plan = compile_for_h200(lambda g: few_rows(g, rows, 8192, a, b, math), {"TILE_SIZE": tile})
    assert "split over clusters" in plan
    cubins.check_dumped(dump)


@pytest.mark.parametrize("tile", [34, 35])
def test_wide_tiles_split_over_clusters(tile: int, dump: Path) -> None:
    plan = compile_for_h200(lambda g: few_rows(g, 333, 3072, "bf16", "bf16", "f32"), {"TILE_SIZE": tile})
    assert f"128x{160 if tile == 34 else 192} split over clusters" in plan
    cubins.check_dumped(dump)


def test_some_hundred_rows_are_split_over_clusters() -> None:
    """If no dimension fits into one tile, but a matrix is contiguous along k."""
    plan = compile_for_h200(lambda g: few_rows(g, 333, 3072, "bf16", "bf16", "f32"), {})
    assert "tiles of 128x192 split over clusters" in plan
    short = compile_for_h200(lambda g: g.matmul(g.tensor([1024, 1024]), g.tensor([1024, 1024])), {})
    assert "tiles of 128x64, 8 stages" in short


@pytest.mark.parametrize(("rows", "tile"), [(64, 32), (32, 33)])
def test_tiles_that_share_columns(rows: int, tile: int, dump: Path) -> None:
    """They are chosen if nearly all multiprocessors are busy for one or two waves."""

    def plan(columns: int, knobs: dict[int | str, int]) -> str:
        return compile_for_h200(lambda g: few_rows(g, rows, columns, "bf16", "bf16", "f32"), knobs)

    for columns, shares in ((14336, True), (24576, True), (8192, False), (16384, False), (57344, False)):
        assert ("clusters of 4" in plan(columns, {})) == shares
    assert "clusters of 4" in plan(8192, {"TILE_SIZE": tile})
    cubins.check_dumped(dump)


# ---- Patches -----------------------------------------------------------------------------------------------

PATCHES = [15, 18, 29, 40, 41, 44, 58]
"""14x14, 8 lines of 32, 7x28, 4x16, 4x28, 4x56, 2x112."""


def patch(g: weft.Graph) -> Any:
    return channels_last(g, 8, 64, 112, 112)


def of_channels(g: weft.Graph) -> Any:
    return channels_last(g, 1, 64, 1, 1)


def product(g: weft.Graph, x: Any) -> Any:
    return g.conv_fprop(x, channels_last(g, 64, 64, 3, 3), padding=[1, 1])


def ready(g: weft.Graph) -> Any:
    return g.relu(g.add(g.mul(patch(g), of_channels(g)), of_channels(g))).set_data_type("bf16")


def joined(g: weft.Graph) -> Any:
    return g.relu(g.add(g.mul(product(g, patch(g)), of_channels(g)), patch(g)))


def joined_and_prepared(g: weft.Graph) -> Any:
    return g.add(product(g, ready(g)), patch(g))


def totalled(g: weft.Graph) -> Any:
    sums, squares = g.genstats(product(g, patch(g)).set_data_type("bf16").set_output(True))
    squares.set_output(True).set_data_type("f32")
    return sums.set_data_type("f32")


def totalled_and_prepared(g: weft.Graph) -> Any:
    sums, squares = g.genstats(product(g, ready(g)).set_data_type("bf16").set_output(True))
    squares.set_output(True).set_data_type("f32")
    return sums.set_data_type("f32")


def joined_and_totalled(g: weft.Graph) -> Any:
    x, mean, inverse = patch(g), of_channels(g), of_channels(g)
    dx = g.conv_dgrad(patch(g), channels_last(g, 64, 64, 1, 1)).set_dim(list(x.dims))
    normal = g.add(g.mul(g.mul(g.sub(x, mean), inverse), of_channels(g)), of_channels(g))
    dz = g.relu_backward(dx.set_stride(list(x.strides)), normal).set_data_type("bf16").set_output(True)
    dscale, dbias, *_ = g.dbn_weight(dz, x, mean, inverse, of_channels(g))
    dscale.set_output(True).set_data_type("f32")
    return dbias.set_data_type("f32")


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (joined, "memory, auxiliary load"),
        (joined_and_prepared, "prologue, auxiliary load"),
        (totalled, "memory, reductions"),
        (totalled_and_prepared, "prologue, reductions"),
        (joined_and_totalled, "auxiliary load, reductions"),
    ],
)
def test_tiles_of_patches(build: Build, says: str, dump: Path) -> None:
    served = 0
    for tile in PATCHES:
        try:
            served += says in " ".join(compile_for_h200(build, {"TILE_SIZE": tile}).split())
        except weft.NotSupportedError:  # not every tile leaves room for all
            continue
    assert served >= 2
    cubins.check_dumped(dump, diverges=True)  # patch_sm90 is the one kernel whose main loop does

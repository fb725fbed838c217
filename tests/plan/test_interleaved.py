"""Group norm of channels that are adjacent in memory: its rows are interleaved, a few channels of each in
every pixel. Blocks read whole pixels if rows do not fit in one block, on plans for an H200."""

from __future__ import annotations

from typing import Any

import checks
import pytest
import weft


def steps(
    images: int, channels: int, side: int, layout: str, groups: int = 32, backward: bool = False
) -> list[dict[str, Any]]:
    g = weft.Graph(device="sm_90", io_data_type="bf16", compute_data_type="f32")
    dims, each = (images, channels, side, side), [1, channels, 1, 1]
    x, dy = (g.tensor(dims, checks.strides_of(dims, layout)) for _ in range(2))
    if backward:
        mean, inv = (g.tensor([images, groups, 1, 1], data_type="f32") for _ in range(2))
        found = g.groupnorm_backward(dy, x, g.tensor(each), mean, inv, groups=groups)
        made = [found[0]]
    else:
        x = g.add(x, g.tensor([images, channels, 1, 1]))
        made = [g.swish(g.groupnorm("INFERENCE", x, g.tensor(each), g.tensor(each), 1e-5, groups=groups)[0])]
    for tensor in made:
        tensor.set_output(True)
    found_steps: list[dict[str, Any]] = g.build().plan.report["steps"]
    return found_steps


def are_interleaved(found: list[dict[str, Any]]) -> bool:
    assert [step["family"] for step in found] == ["cuda.rows"]
    return str(found[0]["detail"]).startswith("rows in segments")


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("channels", "side"), [(320, 64), (640, 64), (1280, 64), (1920, 32), (512, 128)])
def test_long_rows_of_a_few_channels_are_interleaved(channels: int, side: int, backward: bool) -> None:
    assert are_interleaved(steps(2, channels, side, "channels_last", backward=backward))


def test_rows_by_themselves_do_not() -> None:
    assert not are_interleaved(steps(2, 640, 64, "packed"))


def test_short_rows_stay_in_registers() -> None:
    """One launch that reads pieces of lines is less than three that read them whole."""
    assert not are_interleaved(steps(2, 1280, 8, "channels_last"))


@pytest.mark.parametrize(("channels", "groups"), [(1280, 32), (640, 32), (320, 32), (120, 8), (2560, 32)])
def test_threads_are_a_multiple_of_segment_vectors(channels: int, groups: int) -> None:
    """The number of threads per group is a multiple of the number of vectors of its channels in a pixel."""
    (step,) = steps(2, channels, 128, "channels_last", groups)
    words = step["detail"].replace(",", "").split()
    threads, width = int(words[words.index("threads") - 1]), int(words[words.index("of") + 1])
    assert channels // groups % width == 0
    assert threads % (channels // groups // width) == 0
    assert threads * groups <= 1024
    assert threads * groups % 32 == 0

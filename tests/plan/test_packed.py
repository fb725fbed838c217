"""Which family runs products whose operands Hopper's TMA cannot read in their layout: repacking pays for
large ones. Operands that it can read after all: groups, flipped filters, any number of channels."""

from __future__ import annotations

from typing import Any

import pytest
import weft

LAST, FIRST = (0, 2, 3, 1), (0, 1, 2, 3)


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)


def lying(dims: list[int], order: tuple[int, ...]) -> list[int]:
    """Returns the strides of a packed tensor whose dims are stored in this order, slowest first."""
    strides, step = [0] * len(dims), 1
    for i in reversed(order):
        strides[i], step = step, step * dims[i]
    return strides


def matmul(
    types: tuple[str, str], m: int = 2048, n: int = 2048, k: int = 2048, row_major_b: bool = True
) -> weft.Graph:
    g = weft.Graph(compute_data_type="f32", device="sm_90")
    a = g.tensor([m, k], [k, 1], data_type=types[0])
    b = g.tensor([k, n], [n, 1] if row_major_b else [1, k], data_type=types[1])
    g.relu(g.matmul(a, b)).set_output(True).set_data_type(types[0])
    return g


def conv(
    kind: str,
    dtype: str = "bf16",
    order: tuple[int, ...] = LAST,
    channels: int = 256,
    groups: int = 1,
    flips: bool = False,
    images: int = 128,
    taps: int = 3,
    size: int = 14,
    filters: int = 0,
) -> weft.Graph:
    g = weft.Graph(io_data_type=dtype, intermediate_data_type="f32", compute_data_type="f32", device="sm_90")
    filters = filters or channels
    dims = {"x": [images, channels, size, size], "w": [filters, channels // groups, taps, taps]}
    dims["y"] = [images, filters, size, size]
    options: dict[str, Any] = {"padding": [taps // 2] * 2}
    options |= {"convolution_mode": "CONVOLUTION"} if flips else {}
    x, w, y = (g.tensor(dims[name], lying(dims[name], order)) for name in "xwy")
    made = {
        "fprop": lambda: g.conv_fprop(x, w, **options),
        "dgrad": lambda: g.conv_dgrad(y, w, **options),
        "wgrad": lambda: g.conv_wgrad(x, y, **options),
    }[kind]()
    result = dims[{"fprop": "y", "dgrad": "x", "wgrad": "w"}[kind]]
    made.set_dim(result).set_stride(lying(result, order)).set_output(True)
    return g


def patches(kind: str, dtype: str = "bf16") -> weft.Graph:
    """The first layer of a vision transformer."""
    g = weft.Graph(io_data_type=dtype, intermediate_data_type="f32", compute_data_type="f32", device="sm_90")
    dims = {"x": [64, 3, 224, 224], "w": [768, 3, 16, 16], "y": [64, 768, 14, 14]}
    x, w, y = (g.tensor(dims[name], lying(dims[name], FIRST)) for name in "xwy")
    made = g.conv_fprop(x, w, stride=[16, 16]) if kind == "fprop" else g.conv_wgrad(x, y, stride=[16, 16])
    made.set_dim(dims["y" if kind == "fprop" else "w"]).set_output(True)
    return g


def families(g: weft.Graph) -> list[str]:
    """Returns the families of the engine with the fastest prediction."""
    served = [each for each in g.support() if each["supported"] and each["engine"].startswith("cuda")]
    return min(served, key=lambda each: each["seconds"])["families"]


KINDS = ("fprop", "dgrad", "wgrad")
HALVES, FLOATS = ("bf16", "bf16"), ("f32", "f32")
CASES: list[tuple[str, weft.Graph, str]] = [
    ("matmul", matmul(HALVES), "hopper"),
    ("matmul, odd depth", matmul(HALVES, k=2047), "packed"),
    ("matmul, odd columns", matmul(HALVES, n=2047), "packed"),
    ("matmul, odd and small", matmul(HALVES, 64, 64, 63), "contraction"),
    ("matmul f32, row-major B", matmul(FLOATS), "packed"),
    ("matmul f32, column-major B", matmul(FLOATS, row_major_b=False), "hopper"),
    ("matmul bf16 by int8", matmul(("bf16", "i8")), "packed"),
    ("matmul bf16 by int4", matmul(("bf16", "i4")), "packed"),
    ("matmul f16 by e4m3", matmul(("f16", "e4m3")), "packed"),
    ("matmul f32 by bf16", matmul(("f32", "bf16")), "packed"),
    *((f"{kind} NCHW", conv(kind, order=FIRST), "packed") for kind in KINDS),
    *(
        (f"{kind} NCHW, small", conv(kind, order=FIRST, images=1, channels=16), "contraction")
        for kind in KINDS
    ),
    *((f"{kind} f32 NCHW", conv(kind, "f32", FIRST), "packed") for kind in KINDS),
    *((f"{kind} NCHW of one tap", conv(kind, order=FIRST, taps=1, size=28), "hopper") for kind in KINDS),
    *(
        (f"{kind} NCHW of one tap, odd", conv(kind, order=FIRST, channels=1024, taps=1, size=7), "packed")
        for kind in KINDS
    ),
    ("wgrad f32 NCHW of one tap", conv("wgrad", "f32", FIRST, taps=1, size=28), "hopper"),
    ("fprop f32", conv("fprop", "f32"), "hopper"),
    ("dgrad f32", conv("dgrad", "f32"), "packed"),
    ("wgrad f32", conv("wgrad", "f32"), "packed"),
    *((f"{kind} of 65 channels", conv(kind, channels=65), "packed") for kind in KINDS),
    *((f"{kind} of 96 channels", conv(kind, channels=96), "hopper") for kind in KINDS),
    *((f"{kind} in groups", conv(kind, groups=4), "hopper") for kind in KINDS),
    # The copy engine refuses boxes that begin 154 bytes into a row: such groups are merged.
    *(
        (f"wgrad in groups of {n} filters", conv("wgrad", groups=4, channels=512, filters=4 * n), "packed")
        for n in (76, 77)
    ),
    *((f"{kind} in narrow groups", conv(kind, groups=32), "packed") for kind in KINDS),
    *((f"{kind} of patches", patches(kind), "packed") for kind in ("fprop", "wgrad")),
    *((f"{kind} of f32 patches", patches(kind, "f32"), "packed") for kind in ("fprop", "wgrad")),
    *((f"{kind} flipped", conv(kind, flips=True), "hopper") for kind in KINDS),
]


@pytest.mark.parametrize(("graph", "family"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])
def test_family(graph: weft.Graph, family: str) -> None:
    assert families(graph) == [f"cuda.{family}"]


def test_copies_are_in_the_workspace() -> None:
    g = conv("fprop", order=FIRST)
    g.build()
    images, filters = 128 * 14 * 14 * 256, 256 * 9 * 256
    assert g.get_workspace_size() == 2 * (images + filters)
    assert "2 tensors repacked, cuda.hopper: wgmma, tiles of " in " ".join(str(g.explain()).split())


def test_little_workspace() -> None:
    """Families that take more are passed over, and a saved plan says so."""
    taken = conv("fprop", order=FIRST, images=32).build().plan
    assert [step["family"] for step in taken.report["steps"]] == ["cuda.packed"]
    assert taken.workspace_size == 4390912
    for limit in (4390911, 0):
        g = conv("fprop", order=FIRST, images=32).deselect_workspace_greater_than(limit).build()
        assert g.plan.tag == f"eng0_k{int(weft.knob_type.WORKSPACE)}={limit}"
        assert [step["family"] for step in g.plan.report["steps"]] == ["cuda.contraction"]
        assert g.plan.workspace_size == 0
        assert f"needs 4390912 bytes of workspace, the limit is {limit}." in str(g.explain())
        loaded = weft.Graph(device="sm_90").deserialize(g.serialize())
        assert (loaded.plan.tag, loaded.plan.workspace_size) == (g.plan.tag, 0)


def test_sums_in_one_piece_take_no_workspace() -> None:
    g = conv("wgrad", channels=128, images=32)
    assert g.build().plan.workspace_size > 0
    g = conv("wgrad", channels=128, images=32).deselect_workspace_greater_than(0)
    assert g.build().plan.workspace_size == 0
    assert [step["family"] for step in g.plan.report["steps"]] == ["cuda.hopper"]
    assert ", 1 split" in g.plan.report["steps"][0]["detail"]

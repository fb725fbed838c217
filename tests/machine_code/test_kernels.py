"""Inspecting kernels: plan.kernels() and WEFT_DUMP_DIR. test_emulated checks on all small cases that no
kernel compiles with a warning or includes an unused file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import weft
from commands import run
from weft.kernel import Kernel

ROOT = Path(__file__).parents[2]


def without_comments(text: str) -> str:
    """C or CUDA source as the library embeds it: a space and the line breaks are left of a comment."""
    comment = r'("(?:\\.|[^"\\\n])*")|/\*.*?\*/|//[^\n]*'
    code = re.sub(comment, lambda match: match[1] or " " + "\n" * match[0].count("\n"), text, flags=re.DOTALL)
    return re.sub(" +\n", "\n", code)


def test_embedding_removes_comments_and_keeps_lines(tmp_path: Path) -> None:
    backend, output = tmp_path / "backend", tmp_path / "out"
    files = {
        "engines/cuda/map/a.cuh": "int a/* x */b; // ]; ${c}\n/* 1\n * [2 // 3\n */ \\\n"
        '  f("\\n;"); // end\n',
        "engines/cuda/b.cuh": "// the end of the file",
        "base/c.h": "/* é */\n#define C /**/ 1\n",
    }
    for name, text in files.items():
        (backend / name).parent.mkdir(parents=True, exist_ok=True)
        (backend / name).write_text(text)
    options = [f"-DBACKEND={backend}", "-DSHARED_HEADERS=base/c.h", f"-DOUTPUT={output}"]
    run("cmake", *options, "-P", "cmake/embed.cmake")
    stripped = {name: (output / "stripped" / name).read_text() for name in ("map/a.cuh", "b.cuh", "base/c.h")}
    assert stripped == {
        "map/a.cuh": 'int a b;\n\n\n \\\n  f("\\n;");\n',
        "b.cuh": " ",
        "base/c.h": "\n#define C   1\n",
    }
    listed = re.findall(r'FILE\((\w+), "(.+)"\)', (output / "device_files.h").read_text())
    assert listed == [("b_cuh", "b.cuh"), ("base_c_h", "base/c.h"), ("map_a_cuh", "map/a.cuh")]


def fused(rows: int = 64, names: str = "") -> list[Kernel]:
    """A product with what follows it, and a sum of rows of its result."""
    with weft.Graph(device="sm_90", io_data_type="bf16", intermediate_data_type="f32") as g:
        x, w = g.tensor([rows, 256], name=names + "x"), g.tensor([256, 128], name=names + "w")
        hidden = g.relu(g.add(g.matmul(x, w, name=names + "product"), g.tensor([1, 128], name=names + "b")))
        g.softmax(hidden, name=names + "weights")
    return list(g.plan.kernels())


def test_kernels_are_shown_with_only_the_code_that_they_reach() -> None:
    product, *more = fused()
    assert (product.family, product.step, product.entry) == ("cuda.hopper", 0, "product_sm90")
    assert product.file == "product/hopper/product_sm90.cuh"
    assert repr(product).startswith("Kernel(cuda.hopper: product_sm90 of product/hopper/product_sm90.cuh, ")
    assert 'extern "C" __global__' in product.headers[product.file]
    assert str(product) == product.text
    assert product.block % 32 == 0
    assert all(count > 0 for count in product.grid)
    assert [kernel.family for kernel in more] == ["cuda.rows"]
    for kernel in (product, *more):
        # geometry headers, which the host includes, too, are named by their path from backend/
        folders = {name.removeprefix("engines/cuda/").split("/")[0] for name in kernel.headers}
        assert folders == {"core", kernel.file.split("/")[0]}
        for name, text in kernel.headers.items():
            folder = "backend" if name.endswith(".h") else "backend/engines/cuda"
            assert text == without_comments((ROOT / folder / name).read_text())
        assert kernel.log == ""


def test_comments_say_where_text_comes_from() -> None:
    product, softmax = fused()
    fields = dict(re.findall(r"^    (?:\w+\*? )+(\w+); // (.+)$", product.text, re.MULTILINE))
    assert {fields["a_map"], fields["b_map"]} == {"A of matmul", "B of matmul"}
    assert {"b of add", "y of relu_fwd"} <= set(fields.values())
    assert re.findall(r"^ *// (add|relu_fwd)$", product.text, re.MULTILINE) == ["add", "relu_fwd"]
    assert re.search(r"; // x of softmax$", softmax.text, re.MULTILINE)
    passes = re.findall(r"^// pass (.+)$", softmax.text, re.MULTILINE)
    assert [re.sub(r"v\d+", "v", each) for each in passes] == [
        "0 of 3; v = largest<float>",
        "1 of 3; v = sum<float>",
        "2 of 3; stores y of softmax",
    ]


def test_layers_that_do_the_same_share_a_program() -> None:
    """Regardless of the numbers of their values in the graph."""
    with weft.Graph(device="sm_90", io_data_type="bf16", intermediate_data_type="bf16") as g:
        x = g.tensor([512, 1024])
        for _ in range(3):
            hidden = g.gelu(g.add(g.matmul(x, g.tensor([1024, 1024])), g.tensor([1, 1024])))
            x = g.add(x, g.matmul(hidden, g.tensor([1024, 1024])))
    first, second, *more = (kernel.text for kernel in g.plan.kernels())
    assert more == [first, second] * 2
    assert first != second


def test_neither_names_nor_sizes_are_in_the_text() -> None:
    first, second = fused(), fused(rows=56, names="mine_")
    assert [kernel.text for kernel in first] == [kernel.text for kernel in second]
    assert not any("mine_" in text for kernel in second for text in (kernel.text, *kernel.headers.values()))


def test_of_a_value_that_several_read_the_region_s_own_reader_is_named() -> None:
    with weft.Graph(device="sm_90", io_data_type="f32", compute_data_type="f32") as g:
        x = g.tensor([8, 8, 9, 9])
        g.resample(x, window=[2, 2], stride=[2, 2], mode="MAXPOOL")
        g.relu(x)
    comment = re.compile(r"; // (\w+ of \w+)$", re.MULTILINE)
    named = {kernel.family: comment.findall(kernel.text) for kernel in g.plan.kernels()}
    assert named["cuda.map"] == ["y of relu_fwd", "x of relu_fwd"]
    assert named["cuda.window"] == ["x of resample", "y of resample"]


def test_a_dump_contains_the_shown_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DUMP_DIR", str(tmp_path / "dump"))
    monkeypatch.setenv("WEFT_CACHE", "off")
    with weft.Graph(device="sm_90", io_data_type="f16", compute_data_type="f32") as g:
        g.tanh(g.tensor([7, 77]))
    (kernel,), (folder,) = g.plan.kernels(), (tmp_path / "dump").iterdir()
    written = kernel.write(tmp_path / "written")
    assert written == tmp_path / "written/map.cu"
    found, dumped = (
        {path.relative_to(root): path.read_text() for path in root.rglob("*.*[uh]")}
        for root in (written.parent, folder)
    )
    assert found == dumped
    assert len(found) == len(kernel.headers) + 1
    assert not (folder / "log.txt").read_bytes().strip(b"\0")


def test_the_cpu_has_no_kernels() -> None:
    with weft.Graph(handle=weft.create_handle("cpu")) as g:
        g.relu(g.tensor([2], data_type="f32"))
    assert g.plan.kernels() == []

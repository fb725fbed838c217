"""README and the first pages: their programs run as printed and agree; what they name exists."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import weft
from weft import backend

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / f"{page}.md" for page in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG")]
PAGES += [ROOT / f"docs/{page}.md" for page in ("robustness", "figures", "c", "limitations")]
PAGES += [ROOT / "backend/README.md"]
PAGES += sorted((ROOT / "docs/decisions").glob("*.md"))
EXPECTED = "0.0 2.0 6.0 3.0 0.0 0.0"


PROGRAMS = {"python": "README.md", "cpp": "docs/cpp.md", "c": "docs/c.md"}


def block(language: str) -> str:
    """The first program of a language on its page."""
    text = (ROOT / PROGRAMS[language]).read_text(encoding="utf-8")
    found = re.search(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert found, language
    return found[1]


def library() -> Path:
    backend.get_version()
    maps = Path("/proc/self/maps").read_text().splitlines()
    return next(Path(line.split()[-1]) for line in maps if "libweft.so" in line)


def start(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "python"), str(ROOT / "bindings"), *sys.path])
    env = os.environ | {"PYTHONPATH": paths, "WEFT_DEVICE": "cpu"}
    return subprocess.run([str(word) for word in words], cwd=cwd, env=env, capture_output=True, text=True)


def run(*words: object, cwd: Path) -> str:
    done = start(*words, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the Python program ran."""
    made = tmp_path_factory.mktemp("readme")
    (made / "conv.py").write_text(block("python"))
    (made / "output").write_text(run(sys.executable, "conv.py", cwd=made))
    return made


def test_python_program(folder: Path) -> None:
    output = (folder / "output").read_text()
    assert output.splitlines()[0] == EXPECTED
    assert re.search(r"^graph 'conv_bias_relu' on cpu\.\w+ ", output, flags=re.MULTILINE)
    assert (folder / "conv_bias_relu.svg").read_text().startswith("<svg ")


def compiled(folder: Path, compiler: str, source: str, standard: str) -> Path:
    found, program = library(), folder / Path(source).stem
    strict = [f"-std={standard}", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include"]
    run(compiler, *strict, source, "-o", program, found, f"-Wl,-rpath,{found.parent}", cwd=folder)
    if found.name != "libweft.so.1":  # the loader asks for the soname
        shutil.copy(found, folder / "libweft.so.1")
    return program


def test_c_program(folder: Path) -> None:
    """It loads the plan that the Python program saved, and reports an error if the file is missing or is
    something else."""
    (folder / "saved.c").write_text(block("c"))
    program = compiled(folder, os.environ.get("CC", "cc"), "saved.c", "c11")
    run(program, cwd=folder)
    other = folder / "other"
    other.mkdir()
    done = start(program, cwd=other)
    assert (done.returncode, done.stderr) == (1, "conv_bias_relu.weft: No such file or directory\n")
    (other / "conv_bias_relu.weft").write_text("something else")
    done = start(program, cwd=other)
    damaged = "saved plan is damaged: it does not start with the expected magic bytes. Save the plan again.\n"
    assert (done.returncode, done.stderr) == (1, damaged)


def test_c_program_of_the_same_graph(folder: Path) -> None:
    source = shutil.copy(ROOT / "samples/c/conv_bias_relu_short.c", folder)
    program = compiled(folder, os.environ.get("CC", "cc"), source, "c11")
    assert run(program, cwd=folder).strip() == EXPECTED


@pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "c++")), reason="no C++ compiler")
def test_cpp_program(folder: Path) -> None:
    (folder / "short.cpp").write_text(block("cpp"))
    run(compiled(folder, os.environ.get("CXX", "c++"), "short.cpp", "c++17"), cwd=folder)


def test_programs_are_short() -> None:
    for language, lines in {"python": 10, "cpp": 10, "c": 15}.items():
        assert len(block(language).splitlines()) <= lines, language


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_what_it_is_fits_a_screen() -> None:
    assert len(README.partition("## Install")[0].splitlines()) <= 25


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https:)([^)#]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target
    anchors = {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in text.splitlines()
    }
    for anchor in re.findall(r"\]\(#([^)]+)\)", text):
        assert anchor in anchors, anchor
    base = ROOT if page.parent == ROOT else ROOT / "backend"
    for path in re.findall(r"`((?:[\w.]+/)+[\w.]*)`", text):
        assert (base / path).exists() or (ROOT / path).exists(), path


def test_tests_that_a_page_names_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"\btest_\w+\.(?:c|py)\b", page.read_text())}
    assert len(named) > 20
    assert named <= {path.name for path in (ROOT / "tests").rglob("test_*")}


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"\bmake ([a-z]+)\b", README + (ROOT / "CONTRIBUTING.md").read_text())):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_tree_names_every_folder() -> None:
    tree = (ROOT / "CONTRIBUTING.md").read_text().split("## Where things are")[1]
    sources = "include/weft", "compat", "bindings", "python/weft"
    for folder in (*sources, "benchmarks", "samples", "tests", "tools"):
        assert f"\n{folder}/" in tree
    for floor in (path.name for path in (ROOT / "backend").iterdir() if path.is_dir()):
        assert f"\n  {floor}/" in tree


# ---- Limitations -------------------------------------------------------------------------------------------

MISSING = (ROOT / "docs/limitations.md").read_text(encoding="utf-8").replace("\n  ", " ")


def ragged() -> weft.Graph:
    g = weft.Graph(handle=weft.create_handle("cpu"), io_data_type="f32")
    g.relu(g.tensor([4, 8]).set_ragged_offset(g.tensor([5, 1], data_type="i32"))).set_output(True)
    return g


def reordered() -> weft.Graph:
    g = weft.Graph(handle=weft.create_handle("cpu"), io_data_type="f32")
    g.relu(g.tensor([4, 32]).set_reordering_type(weft.tensor_reordering.INT8x32)).set_output(True)
    return g


def shared_statistics() -> weft.Graph:
    g = weft.Graph(handle=weft.create_handle("cpu"), io_data_type="f32")
    x, scale = g.tensor([2, 4, 3, 3]), g.tensor([1, 4, 1, 1])
    g.batchnorm(x, scale, scale, epsilon=1e-5, peer_stats=[g.tensor([2, 4])])[0].set_output(True)
    return g


REFUSED: dict[str, Callable[[], weft.Graph]] = {
    "ragged tensors": ragged,
    "Batch norm does not share statistics between devices": shared_statistics,
    "Other storage orders, such as `INT8x32`, are not supported": reordered,
}


@pytest.mark.parametrize("words", list(REFUSED))
def test_refused_methods_are_listed(words: str) -> None:
    """Every listed method is refused, too: when one becomes supported, remove it from the list."""
    assert words in MISSING
    with pytest.raises(weft.NotSupportedError):
        REFUSED[words]().build()


def test_methods_that_lack_are_listed() -> None:
    absent = {
        "rotary embedding": "rope",
        "band matrices": "expand_band_matrix",
        "signals": "signal",
    }
    for words, method in absent.items():
        assert words in MISSING
        assert not hasattr(weft.Graph, method), f"{method} is there: take it off docs/limitations.md"
    assert "no backward pass for paged KV caches" in MISSING
    assert not [name for name in signature(weft.Graph.sdpa_backward).parameters if "paged" in name]
    with pytest.raises(weft.NotSupportedError):
        weft.Graph().populate_cuda_graph(weft.create_handle("cpu"), {}, None, 0)
    assert "cannot be written into a CUDA graph" in MISSING


def test_types_that_lack_are_listed() -> None:
    assert "No complex numbers, and no FP8 in format E5M3." in MISSING
    with pytest.raises(weft.BadParameterError, match="is not supported by Weft"):
        weft.Graph().tensor_like(np.zeros(2, np.complex64))

"""tools/editor.py: what an editor reads before a device file."""

from __future__ import annotations

import sys

from commands import ROOT

sys.path.append(str(ROOT / "tools"))
import editor

PROGRAM = """#include "core/types.cuh"
namespace weft {
constexpr int ROWS = 8;
#include "map/map.cuh"
} // namespace weft
"""
HEADERS = {
    "core/types.cuh": "using u32 = unsigned;\n",
    "map/map.cuh": '#include "map/exchange.cuh"\nint of_map;\n#include "map/store.cuh"\nint after;\n',
    "map/exchange.cuh": "namespace weft {\nint of_exchange;\n} // namespace weft\n",
    "map/store.cuh": "",
}


def before(file: str) -> list[str]:
    lines = editor.without_open_namespace(list(editor.before(file, PROGRAM, HEADERS)))
    assert lines[:2] == ["namespace weft {}", "using namespace weft;"]
    return list(filter(None, lines[2:]))


def test_a_kernel_file_comes_after_its_constants() -> None:
    assert before("map/map.cuh") == ['#include "core/types.cuh"', "constexpr int ROWS = 8;"]


def test_includes_end_where_the_file_is_included() -> None:
    assert before("core/types.cuh") == []
    assert before("map/exchange.cuh") == before("map/map.cuh")
    assert before("map/store.cuh") == [*before("map/map.cuh"), '#include "map/exchange.cuh"', "int of_map;"]


def test_an_entry_names_the_header_that_comes_first(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(editor, "FOLDER", tmp_path)
    entry = editor.command("map/store.cuh", "sm_80", {"text": PROGRAM}, HEADERS)
    assert entry["file"] == str(ROOT / "backend/engines/cuda/map/store.cuh")
    assert entry["arguments"][-3:-1] == ["-include", str(tmp_path / "map/store.before.h")]
    assert "int of_map;" in (tmp_path / "map/store.before.h").read_text()

"""`python -m benchmarks.operators`: recorded calls of networks, on the CPU."""

import collections
import csv
import json

import pytest

torch = pytest.importorskip("torch")

from benchmarks import operators  # noqa: E402

SMALL = [
    ["mm", "a", ["7x16", "16x9/t"]],
    ["bmm", "a", ["3x5x8", "3x8x5/40,1,8"]],
    ["addmm", "a", ["9", "7x16", "16x9/t"]],
    ["sdpa", "b", ["2x2x9x16", "2x1x9x16", "2x1x9x16", None], {"enable_gqa": True}],
    ["sdpa_bwd", "b", ["2x2x9x16", "2x2x9x16", "2x2x9x16", None], {"is_causal": True}],
    ["conv", "b", ["2x8x7x7/nhwc", "8x1x3x3/nhwc", None, [1, 1], [1, 1], [1, 1], False, [0, 0], 8]],
    ["softmax", "a", ["4x3x5x5", -1, False]],
    ["softmax_bwd", "a", ["4x3x5x5", "4x3x5x5", -1, ":bfloat16"]],
    [
        *("max_pool_bwd", "b"),
        ["2x8x4x4/nhwc", "2x8x7x7/nhwc", [3, 3], [2, 2], [1, 1], [1, 1], False, "2x8x4x4/nhwc:int64"],
    ],
]


@pytest.fixture(autouse=True)
def _on_device():
    """The command chooses the device, not the fixture of this folder."""


@pytest.fixture
def shapes(tmp_path):
    path = tmp_path / "shapes.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in SMALL))
    return path


def command(shapes, table, *others):
    paths = ["--shapes", str(shapes), "--csv", str(table)]
    return operators.main([*paths, "--device", "cpu", "--jobs", "0", *others])


def test_each_case_is_measured_once(shapes, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(operators, "ROUND_MS", 0.1)
    table = tmp_path / "table.csv"
    assert command(shapes, table, "--only", "mm") == 0
    assert "3 cases measured, 0 wrong, 0 left" in capsys.readouterr().out
    assert command(shapes, table) == 0
    assert "6 cases measured, 0 wrong, 0 left" in capsys.readouterr().out
    rows = list(csv.DictReader(table.open()))
    assert tuple(rows[0]) == operators.COLUMNS
    assert collections.Counter(row["kind"] for row in rows) == collections.Counter(c[0] for c in SMALL)
    for row in rows:
        assert float(row["ratio"]) > 0
        assert float(row["relerr"]) < 1e-2
        assert row["served"] == "1", row
    operators.main(["--table", str(table), "--below", "1e9"])
    printed = capsys.readouterr().out
    assert "| bmm | 1 |" in printed
    assert "mm a: 7x16 16x9" in printed


def test_wrong_result_is_reported(shapes, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(operators, "error_of", lambda results, exact: 0.5)
    assert command(shapes, tmp_path / "table.csv", "--only", "^bmm") == 1
    assert "WRONG bmm 0.5" in capsys.readouterr().out


def test_failed_case_is_a_row_without_numbers(shapes, tmp_path, capsys, monkeypatch):
    def fail(*_):
        raise RuntimeError("no memory")

    monkeypatch.setattr(operators, "tensors_of", fail)
    table = tmp_path / "table.csv"
    assert command(shapes, table, "--only", "^bmm") == 1
    assert "RuntimeError: no memory" in capsys.readouterr().out
    (row,) = csv.DictReader(table.open())
    assert row["kind"] == "bmm"
    assert not row["ratio"]


def test_processes_build_before_measuring(shapes):
    calls = [call for call in operators.read(shapes) if call.kind == "softmax"]
    assert operators.build_all(calls, "cpu", 120, 1).keys() == {call.op for call in calls}
    assert operators.build_all(calls, "cpu", 0, 1) == {}


def test_recorded_calls_are_distinct_and_have_bounds():
    calls = operators.read(operators.SHAPES)
    assert len({call.op for call in calls}) == len(calls) > 600
    first = {call.kind for call in calls[:120]}
    assert first == {call.kind for call in calls}
    assert all(1.5e-6 <= operators.bound(call) < 3e-3 for call in calls)


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ('["mm", "", ["8192x8192", "8192x8192/t"]]', 2 * 8192**3 / 790e6),
        ('["softmax", "", ["4096x4096", -1, false]]', 2 * 2 * 4096**2 / 4.3e6),
        ('["mm", "", ["4096x1048576/0,1", "1048576x16/t"]]', 2 * 4096 * 2**20 * 16 / 790e6),
    ],
)
def test_bound(text, microseconds, tmp_path):
    path = tmp_path / "one.jsonl"
    path.write_text(text)
    (call,) = operators.read(path)
    assert operators.bound(call) * 1e6 == pytest.approx(microseconds)

"""The commands: help, doctor, explain, bench, support, demo; and the text of explain."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import weft
from weft import backend
from weft.cli import demo, doctor, main, support
from weft.explain import amount, bottleneck, explain_text, short_name

ROOT = Path(__file__).parents[2]

HELP = """\
usage: python -m weft [-h] [--version] command ...

Weft: deep-learning primitives as graphs, planned and run on CPUs and NVIDIA GPUs.

positional arguments:
  command
    demo      train a small network with graphs, and show the plans
    doctor    check the installation, and show how to repair it
    explain   print the steps of a saved plan
    bench     time a saved plan on this machine
    support   print the kernel family that runs each operation
    cudnn     run a program with Weft's libcudnn.so.9

"""


def command(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "python"), str(ROOT / "bindings"), *sys.path])
    env = os.environ | {"PYTHONPATH": paths, "COLUMNS": "100"} | environment
    line = [sys.executable, "-m", "weft", *map(str, words)]
    return subprocess.run(line, env=env, capture_output=True, text=True)


# ---- The command line ----


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_help(words: list[str]) -> None:
    done = command(*words)
    assert done.returncode == 0
    assert done.stdout.startswith(HELP)
    assert "python -m weft demo " in done.stdout.split("examples:")[1]


def test_version() -> None:
    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"{weft.__version__}\n")


def test_demo_reports_its_requirements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("weft.cli.find_spec", lambda name: None)
    assert main(["demo", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr() == ("", "demo: it needs numpy and sklearn. pip install 'weft[demo]'\n")
    assert list(tmp_path.iterdir()) == []


def test_unknown_command() -> None:
    done = command("dance")
    assert done.returncode == 2
    assert "invalid choice: 'dance'" in done.stderr


def test_missing_library_is_a_sentence() -> None:
    done = command("support", WEFT_LIBRARY="/nowhere/libweft.so.1")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("weft: the library /nowhere/libweft.so.1 cannot be opened")
    assert done.stderr.endswith("`python -m weft doctor` checks the installation.\n")


# ---- Doctor ----

KEYS = {
    "weft": ["version", "package", "library", "library_version", "engines"],
    "gpu": ["hardware", "kernel_driver", "driver", "arch", "compilers", "cache"],
    "devices": None,
    "default_device": None,
    "cpu": ["name", "cores", "features"],
    "python": ["version", "executable", "platform"],
    "cudnn": ["loaded", "is_weft"],
    "packages": list(doctor.PACKAGES),
    "environment": None,
    "smoke_tests": None,
    "problems": None,
}


def test_doctor_json() -> None:
    done = command("doctor", "--json", WEFT_LOG="error", WEFT_THREADS="1")
    found = json.loads(done.stdout)
    assert list(found) == list(KEYS)
    for key, inner in KEYS.items():
        assert inner is None or list(found[key]) == inner, key
    assert done.returncode == 0, found["problems"]
    assert found["problems"] == []
    assert [smoke["ok"] for smoke in found["smoke_tests"]] == [True] * len(found["devices"])
    assert found["weft"]["version"] == found["weft"]["library_version"] == weft.__version__
    assert Path(found["weft"]["library"]).name.startswith("libweft")
    assert found["devices"][0]["kind"] == "cpu"
    assert found["default_device"] == "cpu:0"  # conftest sets WEFT_DEVICE
    assert found["devices"][0]["threads"] == 1
    assert found["environment"]["WEFT_LOG"] == "error"
    assert found["environment"]["WEFT_THREADS"] == "1"
    assert "cpu.reference" in [engine["name"] for engine in found["weft"]["engines"]]
    assert found["packages"]["cffi"]


def test_doctor_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    names = [line.split("  ")[0] for line in text.splitlines() if line]
    for name in (
        "weft",
        "library",
        "engine",
        "device",
        "driver",
        "NVRTC",
        "kernel cache",
        "cpu",
        "python",
        "packages",
        "variable",
        "smoke test",
    ):
        assert name in names
    assert text.endswith("\nNo problems found.\n")


@pytest.mark.parametrize(
    ("environment", "what", "repair"),
    [
        (
            {"WEFT_LIBRARY": "/nowhere/libweft.so.1"},
            "the library /nowhere/libweft.so.1 cannot be opened",
            "repair        unset WEFT_LIBRARY (it names no file), or set it to the path of a libweft.so.1",
        ),
        (
            {"WEFT_LOG": "loud"},
            "WEFT_LOG=loud is not a log level",
            "repair        export WEFT_LOG=warn (or one of error, warn, info, plan, exec)",
        ),
        (
            {"WEFT_THREADS": "many"},
            "WEFT_THREADS=many is not a number of threads",
            "repair        unset WEFT_THREADS",
        ),
        (
            {"WEFT_NVRTC": "/nowhere/libnvrtc.so.13"},
            "WEFT_NVRTC names no existing path: /nowhere/libnvrtc.so.13",
            "repair        unset WEFT_NVRTC",
        ),
        (
            {"WEFT_DEVICE": "gpu"},
            "WEFT_DEVICE=gpu opens no device, so every graph that names no device fails: WEFT_DEVICE is "
            "'gpu'; it must be cpu, cuda or cuda:N.",
            "repair        unset WEFT_DEVICE (the first GPU that works, else the CPU)",
        ),
        (
            {"WEFT_DEVICE": "cuda:99"},
            "WEFT_DEVICE=cuda:99 opens no device, so every graph that names no device fails: ",
            "repair        unset WEFT_DEVICE (the first GPU that works, else the CPU)",
        ),
    ],
)
def test_doctor_repairs(environment: dict[str, str], what: str, repair: str) -> None:
    done = command("doctor", **environment)
    assert done.returncode == 1
    assert f"\nPROBLEM       {what}" in done.stdout.replace("weft: ", "")
    assert repair in done.stdout


def test_doctor_survives_a_library_that_is_truncated(tmp_path: Path) -> None:
    """The loader would end the process by SIGBUS."""
    loaded = doctor.examine()["weft"]["library"].split(", ")[0]
    data = Path(loaded).read_bytes()
    refused = "cannot be opened (the file is truncated: its headers describe more bytes than it has)"
    for part in (2, 100):
        (tmp_path / "libweft.so.1").write_bytes(data[: len(data) // part])
        done = command("doctor", WEFT_LIBRARY=str(tmp_path / "libweft.so.1"))
        assert done.returncode == 1, done.stderr
        assert refused in done.stdout
        assert f"\nrepair        unset WEFT_LIBRARY, or {doctor.REBUILD}\n" in done.stdout


def variables_that_code_reads() -> set[str]:
    """Returns the environment variables in the sources of the library and of the package; names that are not
    literals are listed."""
    found: set[str] = set()
    literal = r"""(?:getenv|environment_(?:number|flag)|environ\.get)\(\s*"(\w+)"|environ\["(\w+)"\]"""
    places = ("backend", "*.[ch]"), ("compat", "*.[ch]"), ("python", "*.py"), ("bindings/weft_cffi", "*.py")
    for folder, pattern in places:
        for path in (ROOT / folder).rglob(pattern):
            text = path.read_text(encoding="utf-8")
            found |= {first or second for first, second in re.findall(literal, text)}
            if re.search(r"getenv\([^\")]*\[", text):
                (names,) = re.findall(r"char \*const variables\[\] = \{(.*)\};", text)
                found |= set(re.findall(r'"(\w+)"', names))
    return found


def test_environment_is_documented_and_shown() -> None:
    page = (ROOT / "docs/environment.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    names = re.findall(r"`(\w+)`", "".join(rows))
    assert tuple(names) == doctor.VARIABLES
    assert set(names) == variables_that_code_reads()


def test_doctor_lists_every_variable() -> None:
    text = command("doctor", WEFT_DUMP_DIR="", WEFT_CACHE="ro", WEFT_THREAD="3").stdout
    shown = [line.split()[1] for line in text.splitlines() if line.startswith("variable ")]
    assert shown[: len(doctor.VARIABLES)] == list(doctor.VARIABLES)
    assert re.search(r"^variable +WEFT_CACHE ro$", text, re.MULTILINE)
    assert re.search(r"^variable +WEFT_CACHE_BYTES \(unset\)$", text, re.MULTILINE)
    assert re.search(r"^variable +WEFT_THREAD 3$", text, re.MULTILINE)  # misspelled


def test_doctor_sees_an_older_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weft, "__version__", "0.0.9")
    (problem,) = doctor.examine()["problems"]
    assert problem["what"] == f"the package is 0.0.9, the library {weft.backend_version_string()}"
    assert "pip install --force-reinstall weft" in problem["repair"]


def test_doctor_sees_older_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    described = backend.describe()
    described["operations"][0]["methods"].append({"name": "from_the_future"})
    monkeypatch.setattr(backend, "describe", lambda: described)
    (problem,) = doctor.examine()["problems"]
    assert problem["what"] == "the library has operations that the bindings lack: from_the_future"
    assert problem["repair"].startswith("make bindings")


# ---- Explain ----

REPORT: dict[str, Any] = {
    "graph": "graph 'g'",
    "engine": "cpu.fast",
    "engine_doc": "fast kernels",
    "tag": "eng0",
    "device": {"kind": "cpu", "ordinal": 0, "threads": 2, "name": "Chip"},
    "seconds": 3.1e-5,
    "flops": 2.05e6,
    "bytes": 14000,
    "workspace_bytes": 64,
    "least_workspace_bytes": 64,
    "tensors": [],
    "steps": [
        {
            "family": "cpu.contraction",
            "detail": "6x16 tiles",
            "relaxations": [],
            "seconds": 3e-5,
            "flops": 2e6,
            "bytes": 12000,
            "operations": [{"name": "matmul 'fc'"}, {"name": "pointwise 'act'"}],
            "declined": [],
        },
        {
            "family": "cpu.reference",
            "detail": None,
            "relaxations": [],
            "seconds": 1e-6,
            "flops": 5e4,
            "bytes": 2000,
            "operations": [{"name": "softmax 's'"}],
            "declined": [{"family": "cpu.map", "reason": "softmax 's' is not a pointwise operation."}],
        },
    ],
}
SUPPORT: list[dict[str, Any]] = [
    {"engine": "cpu.fast", "supported": True, "seconds": 3.1e-5, "families": ["a", "b"]},
    {"engine": "cpu.reference", "supported": True, "seconds": 2e-3, "families": ["r", "r", "r"]},
    {"engine": "cuda.fast", "supported": False, "reason": "this device is a CPU."},
    {"engine": "cpu.small", "supported": False, "reason": "it takes 3 dims at most."},
]
EXPLAINED = """\
graph 'g' on cpu.fast (eng0)
  fast kernels
  cpu:0 Chip, 2 threads
  predicted 31 µs · measured 25 µs · 2.05 MFLOP · 14 kB moved · workspace 64 B

  step  family           operations fused  FLOP  bytes  predicted  bound
     1  cpu.contraction  fc, act            2 M   12 k      30 µs  compute
     2  cpu.reference    s                 50 k    2 k       1 µs  compute

kernel details
  step 1: 6x16 tiles

families that declined
  cpu.map (step 2): softmax is not a pointwise operation.

other engines
  cpu.reference: supported, predicted 2 ms in 3 steps
  cpu.small: it takes 3 dims at most."""


def test_explain_text() -> None:
    assert explain_text(REPORT, SUPPORT, 2.5e-5) == EXPLAINED
    assert explain_text(REPORT, SUPPORT, 2.5e-5, brief=True) == EXPLAINED.split("\n\nkernel details")[0]


def test_explain_lists_steps_with_predictions() -> None:
    text = explain_text(REPORT, measured=[2e-5, 5e-6], brief=True).splitlines()
    assert text[3].startswith("  predicted 31 µs · measured 25 µs · ")
    assert text[5:] == [
        "  step  family           operations fused  FLOP  bytes  predicted  measured  bound",
        "     1  cpu.contraction  fc, act            2 M   12 k      30 µs     20 µs  compute",
        "     2  cpu.reference    s                 50 k    2 k       1 µs      5 µs  compute",
    ]


def test_steps_are_measured_where_they_run(graph: weft.Graph) -> None:
    run = graph.plan.bind(x=np.ones((4, 8), np.float32), w=np.ones((8, 3), np.float32))
    seconds = run.measure_steps(2)
    assert len(seconds) == len(graph.plan.report["steps"])
    assert min(seconds) > 0
    assert (run.results == 8).all()
    assert "  measured  bound" in graph.plan.explain(measured=seconds)
    message = "^weftMeasureSteps: repeats is 0; it must be 1 or more"
    with pytest.raises(weft.BadParameterError, match=message):
        run.measure_steps(0)


def declined(**reasons: str) -> list[dict[str, str]]:
    return [{"family": family, "reason": reason} for family, reason in reasons.items()]


def test_explain_groups_refusals_by_their_sentence() -> None:
    none = "matmul 'fc': no weights."
    product = declined(a=none, b=none, c="too wide.", d="pointwise 'act': no weights.")
    product += declined(f="matmul 'fc' is no pool.")
    softmax = declined(a="softmax 's': no weights.", c="softmax 's': too deep.", e="wants: nothing")
    softmax += declined(f="softmax 's' is no pool.", g="softmax 's' is no pool.", h="softmaxes are no pools.")
    steps = [{**REPORT["steps"][0], "declined": product}, {**REPORT["steps"][1], "declined": softmax}]

    def section(**words: bool) -> list[str]:
        text = explain_text({**REPORT, "steps": steps}, **words)
        return text.split("families that declined\n")[1].split("\n")

    assert section() == [
        "  no weights: 3 families (step 1, 2)",
        "  c (step 1): too wide.",
        "  matmul/softmax is no pool: 2 families (step 1, 2)",
        "  c (step 2): too deep.",
        "  e (step 2): wants: nothing",
        "  h (step 2): softmaxes are no pools.",
    ]
    assert section(all_refusals=True) == [
        "  a (step 1): matmul: no weights.",
        "  b (step 1): matmul: no weights.",
        "  c (step 1): too wide.",
        "  d (step 1): pointwise: no weights.",
        "  f (step 1): matmul is no pool.",
        "  a (step 2): softmax: no weights.",
        "  c (step 2): softmax: too deep.",
        "  e (step 2): wants: nothing",
        "  f (step 2): softmax is no pool.",
        "  g (step 2): softmax is no pool.",
        "  h (step 2): softmaxes are no pools.",
    ]


def test_explain_lines_are_not_too_wide() -> None:
    step = {
        **REPORT["steps"][1],
        "detail": "word " * 60,
        "operations": [{"name": f"op 'n{i}'"} for i in range(40)],
    }
    step["declined"] = [{"family": "cpu.map", "reason": "because " * 60}]
    text = explain_text({**REPORT, "steps": [step]}, SUPPORT)
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0, "B", "0 B"),
        (1, "B", "1 B"),
        (999, "B", "999 B"),
        (999.9, "B", "1 kB"),
        (1000, "B", "1 kB"),
        (1.5e-6, "s", "1.5 µs"),
        (2.5e-10, "s", "0.25 ns"),
        (2.34e12, "FLOP", "2.34 TFLOP"),
        (5, "", "5"),
    ],
)
def test_amount(value: float, unit: str, expected: str) -> None:
    assert amount(value, unit) == expected


def test_small_words() -> None:
    assert [short_name(label) for label in ("matmul 'fc'", "graph", "op ''")] == ["fc", "graph", "op ''"]
    assert [bottleneck(7.9, 1), bottleneck(8, 1), bottleneck(0, 0)] == ["memory", "compute", "compute"]


@pytest.fixture(scope="module")
def graph() -> weft.Graph:
    with weft.Graph("mlp", io_data_type="f32", handle=weft.create_handle("cpu")) as g:
        x, w = g.tensor([4, 8], name="x"), g.tensor([8, 3], name="w")
        g.relu(g.matmul(x, w, name="fc"), name="act").set_name("y").set_output(True)
    return g


def test_bench_times_a_saved_plan(
    graph: weft.Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.weft").write_bytes(graph.serialize())
    assert main(["bench", str(tmp_path / "plan.weft")]) == 0
    *lines, empty, last = capsys.readouterr().out.splitlines()
    assert lines[0] == graph.plan.explain().splitlines()[0]
    assert " · measured " in lines[3]
    assert lines[5].endswith("predicted  measured  bound")
    assert len(lines) == 6 + len(graph.plan.report["steps"])
    assert empty == ""
    assert re.fullmatch(r"\S+ [mµn]?s per run, the best of a few rounds: \S+ \w?FLOP/s, \S+ \w?B/s", last)


def test_bench_needs_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(tmp_path / "none.weft")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_graph_explains_itself(graph: weft.Graph) -> None:
    text = graph.explain()
    assert text == explain_text(graph.plan.report, graph.support())
    assert "other engines\n" in text
    assert graph.plan.explain() == explain_text(graph.plan.report)


def test_graph_names_all_refusals_on_request() -> None:
    g = weft.Graph(handle=weft.create_handle("cpu")).deselect_engines(["cpu.reference"])
    g.exp(np.float32([0, 1]))
    text = g.build().explain(all_refusals=True)
    assert text == explain_text(g.plan.report, g.support(), all_refusals=True) != g.explain()
    assert g.plan.explain(all_refusals=True) == explain_text(g.plan.report, all_refusals=True)


def test_explain_a_file(graph: weft.Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.weft").write_bytes(graph.serialize())
    assert main(["explain", str(tmp_path / "plan.weft"), "--svg", str(tmp_path / "plan.svg")]) == 0
    output = capsys.readouterr().out
    assert output == f"{graph.plan.explain()}\n\npicture: {tmp_path}/plan.svg\n"
    ET.parse(tmp_path / "plan.svg")
    assert main(["explain", str(tmp_path / "plan.weft"), "--all"]) == 0
    assert capsys.readouterr().out == f"{graph.plan.explain(all_refusals=True)}\n"


@pytest.mark.parametrize("content", [None, b"", b"no plan at all"])
def test_explain_what_is_no_plan(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.weft"
    if content is not None:
        path.write_bytes(content)
    assert main(["explain", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "`python -m weft doctor`" in captured.err


# ---- Support ----


def test_support_lists_every_method() -> None:
    engines, rows = support.matrix()
    described = backend.describe()
    methods = [m["name"] for operation in described["operations"] for m in operation["methods"] or []]
    methods += [mode["method"] for mode in described["pointwise_modes"]]
    listed = [method for row in rows for method in row.methods]
    assert sorted(listed) == sorted(support.WRAPPED.get(method, method) for method in methods)
    assert engines[-1] == "cpu.reference"
    for row in rows:
        assert row.answers[-1] == "cpu.reference", row
        # Loads of pages have no fast family for the CPU yet.
        assert row.operation == "paged_cache_load" or "cpu.reference" not in row.answers[:-1], row


def test_support_page_is_fresh() -> None:
    page = (ROOT / "docs/support.md").read_text(encoding="utf-8")
    assert page == support.markdown(), "python -m weft support --markdown > docs/support.md"


def test_support_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["support"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["operation", "methods", *support.matrix()[0]]
    assert any(line.startswith("conv_fprop ") for line in lines)


# ---- Demo ----


@pytest.mark.slow
def test_demo(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    done = command("demo", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n  epoch ") == demo.EPOCHS
    assert done.stdout.count("   ok   ") == 2
    families = re.findall(r"^ +\d+  ((?:cpu|cuda)\.\w+) ", done.stdout, re.MULTILINE)
    assert len(families) > 15
    assert "cpu.reference" not in families
    for name in ("forward", "backward", "attention", "training"):
        assert f"   {tmp_path / name}.svg\n" in done.stdout
        ET.parse(tmp_path / f"{name}.svg")


def test_demo_fails_when_it_learns_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    assert demo.run(tmp_path, epochs=1) == 1
    assert "   FAIL held-out accuracy " in capsys.readouterr().out


def test_demo_reports_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "missing_packages", lambda: ["scikit-learn"])
    assert demo.run(Path("unused")) == 2
    words = "The demonstration needs scikit-learn: python -m pip install scikit-learn\n"
    assert capsys.readouterr().out == words

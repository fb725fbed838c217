"""GPUs on a machine that has none: the frontend against a fake driver, compiling for a described GPU, and
what the doctor says of drivers, compilers and caches."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import emulated_gpu
import pytest
import weft
from weft.cli import gpu_health, main

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a machine with two GPUs and one compiler, none of them real."""
    folder = emulated_gpu.build()
    return {
        "WEFT_LIBCUDA": str(folder / "libcuda.so.1"),
        "WEFT_NVRTC": str(folder / "fake/libnvrtc.so.13"),
        "WEFT_CACHE_DIR": str(tmp_path_factory.mktemp("fakes") / "cache"),
        "WEFT_DEVICE": "cuda",
    }


def python(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "python"), str(ROOT / "bindings"), *sys.path])
    env = os.environ | {"PYTHONPATH": paths} | environment
    line = [sys.executable, *map(str, words)]
    return subprocess.run(line, env=env, cwd=ROOT, capture_output=True, text=True)


def test_the_frontend_on_a_fake_gpu(fakes: dict[str, str]) -> None:
    done = python("-m", "pytest", "-p", "no:cacheprovider", "tests/python/on_fake_gpu.py", **fakes)
    assert done.returncode == 0, done.stdout + done.stderr


# ---- Compiling for a GPU that is elsewhere -----------------------------------------------------------------


def graph_for(device: Any) -> weft.Graph:
    with weft.Graph("act", device=device) as g:
        g.relu(g.tensor([64, 64], data_type="bf16", name="x"), name="y")
    return g


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_graphs_are_compiled_without_a_gpu(arch: str) -> None:
    g = graph_for(arch)
    assert g.plan.engine == "cuda"
    plain, whole = g.serialize(), g.serialize(code=True)
    assert b"\x7fELF" in whole
    assert b"\x7fELF" not in plain


def test_a_kernel_that_does_not_compile_is_warned_of(fakes: dict[str, str], tmp_path: Path) -> None:
    """Once for each message, even if the caller handles the error; as an error it passes such handlers."""
    shutil.copy(fakes["WEFT_NVRTC"], tmp_path)
    (tmp_path / "fake_nvrtc.txt").write_text("result 6\n")
    code = (
        "import weft\n"
        "for _ in range(2):\n"
        "    try:\n"
        "        with weft.Graph(device='sm_90') as g: g.relu(g.tensor([64, 64], data_type='f32'))\n"
        "    except weft.WeftError as error: print(type(error).__name__, error.status.name)"
    )
    changes = {"WEFT_NVRTC": str(tmp_path / "libnvrtc.so.13"), "WEFT_CACHE": "off"}
    done = python("-c", code, **fakes | changes, PYTHONWARNINGS="default")
    assert done.stdout == "InternalError INTERNAL_ERROR_COMPILATION_FAILED\n" * 2
    words = "CompilationWarning: a kernel of Weft does not compile. NVRTC 13.0, sm_90a: '"
    assert done.stderr.count(words) == 1
    done = python("-c", code, **fakes | changes)  # PYTHONWARNINGS of conftest.py
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr


def test_saved_code_is_used_when_asked(fakes: dict[str, str], tmp_path: Path) -> None:
    saved = tmp_path / "act.weft"
    saved.write_bytes(graph_for("sm_90").serialize(code=True))
    code = (
        "import json, sys, weft\nfrom weft import backend\n"
        f"data = open({str(saved)!r}, 'rb').read()\n"
        "g = weft.Graph(device='sm_90').deserialize(data, code=sys.argv[1] == 'code')\n"
        "print(g.plan, backend.describe_machine()['cache']['compiled'])"
    )
    described = "Plan(cuda, eng0: x -> y::y, workspace 0 bytes)"
    for option, compiled in (("code", 0), ("none", 1)):
        done = python("-c", code, option, **fakes, WEFT_CACHE="off")
        assert done.stdout == f"{described} {compiled}\n", done.stderr


def test_plans_for_a_described_gpu_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "act.weft"
    saved.write_bytes(graph_for("sm_90").serialize())
    assert main(["explain", str(saved), "--device", "sm_90"]) == 0
    assert capsys.readouterr().out.startswith("graph 'act' on cuda (eng0)\n")


def test_a_plan_for_a_described_gpu_does_not_run_here() -> None:
    message = (
        r"^plan: it was built for a described device, H200 \(described\), and runs on one that is here\. "
        r"Save it with graph\.serialize\(code=True\), and load it with "
        r"Graph\(\)\.deserialize\(data, code=True\) where the device is\.$"
    )
    with pytest.raises(weft.BadParameterError, match=message):
        graph_for(weft.compile_for("sm_90")).plan(x=1)


def test_devices_by_name() -> None:
    assert weft.Graph(device="cpu").handle.device is weft.device_kind.CPU
    g = weft.Graph(io_data_type="f32")
    g.relu(g.tensor([4]))
    assert g.build(device="cpu").plan.device is weft.device_kind.CPU
    with pytest.raises(weft.BadParameterError, match=r"^device: 'gpu' is not a device\. Give 'cpu', "):
        weft.Graph(device="gpu")
    with pytest.raises(weft.BadParameterError, match=r"device is 'cpu', and the graph has a handle"):
        weft.Graph(handle=weft.create_handle("cpu"), device="cpu")
    with pytest.raises(weft.WeftError, match=r"kernels need compute capability 7\.5 or newer"):
        weft.compile_for("sm_60")


# ---- Doctor ------------------------------------------------------------------------------------------------


def machine(**changes: Any) -> dict[str, Any]:
    """The library's report of a machine without problems."""
    copy = {"path": "/p/libnvrtc.so.13", "found_by": "search paths", "version": "13.0", "builtins": True}
    copy |= {"is_chosen": True, "verdict": "chosen"}
    disk = {"folder": "/c", "mode": "rw", "problem": None, "entries": 3, "bytes": 2**20, "limit": 2**28}
    said: dict[str, Any] = {
        "hardware": True,
        "arch": "sm_90a",
        "driver": {"version": "13.0", "gpus": 1, "problem": None},
        "compilers": [copy],
        "cache": {"disk": disk | {"damaged": 0}},
    }
    return said | changes


def problems(said: dict[str, Any], hardware: bool = True) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    gpu_health.examine(said, hardware, lambda what, repair: found.append((what, repair)))
    return found


NO_DRIVER = "CUDA driver: its library cannot be loaded (x). Install the driver."


def test_nothing_is_wrong() -> None:
    assert problems(machine()) == []
    said = machine(driver={"version": None, "gpus": 0, "problem": NO_DRIVER}, compilers=[])
    assert problems(said, hardware=False) == []


def test_a_gpu_without_a_driver() -> None:
    said = machine(driver={"version": None, "gpus": 0, "problem": NO_DRIVER})
    assert problems(said) == [("CUDA driver: its library cannot be loaded (x)", "Install the driver.")]


@pytest.mark.parametrize(("driver", "extra"), [("13.0", "cu13"), ("12.8", "cu12"), ("14.1", "cu13")])
def test_no_compiler(driver: str, extra: str) -> None:
    said = machine(compilers=[], driver={"version": driver, "gpus": 1, "problem": None})
    (problem,) = problems(said)
    assert problem == (
        "NVRTC, the run-time compiler, was not found on this machine",
        f"python -m pip install 'weft[{extra}]'",
    )


def test_no_compiler_that_serves() -> None:
    copy = machine()["compilers"][0] | {"is_chosen": False, "verdict": "it is newer than the driver"}
    said = machine(compilers=[copy], driver={"version": "12.8", "gpus": 1, "problem": None})
    assert problems(said) == [
        (
            "no copy of NVRTC can compile for sm_90a (/p/libnvrtc.so.13: it is newer than the driver)",
            "python -m pip install --upgrade 'weft[cu12]'",
        )
    ]


def test_a_compiler_without_its_builtins() -> None:
    copy = machine()["compilers"][0] | {"builtins": False}
    (problem,) = problems(machine(compilers=[copy]))
    assert problem[1] == "python -m pip install --force-reinstall 'weft[cu13]'"


def test_a_cache_that_is_not_ours() -> None:
    disk = machine()["cache"]["disk"] | {"problem": "'/c' is ignored", "damaged": 2}
    (ignored, damaged) = problems(machine(cache={"disk": disk}))
    assert ignored[1] == "chmod -R u=rwX,go= '/c', or export WEFT_CACHE_DIR=<a folder of your own>"
    assert damaged == ("2 entries of the kernel cache were damaged", "rm -r '/c'")


def test_a_cache_without_a_folder() -> None:
    """HOME is not set."""
    disk = machine()["cache"]["disk"] | {"problem": "no folder for it", "folder": ""}
    (problem,) = problems(machine(cache={"disk": disk}))
    assert problem[1] == "export WEFT_CACHE_DIR=<a folder of your own>"


def test_a_driver_that_a_variable_names_should_work() -> None:
    text = "CUDA driver: the file that WEFT_LIBCUDA names cannot be loaded (x). Name another."
    said = machine(driver={"version": None, "gpus": 0, "problem": text})
    (problem,) = problems(said, hardware=False)
    assert problem[1] == "Name another."


def cut_off(library: Path, folder: Path, name: str) -> Path:
    """A truncated copy, like that of an interrupted download."""
    folder.mkdir()
    data = library.read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    return folder / name


@pytest.mark.parametrize("place", ["WEFT_NVRTC", "builtins", "LD_LIBRARY_PATH"])
def test_a_compiler_that_is_truncated_is_refused(fakes: dict[str, str], tmp_path: Path, place: str) -> None:
    whole = Path(fakes["WEFT_NVRTC"]).resolve()
    changes = {"WEFT_NVRTC": str(cut_off(whole, tmp_path / "half", "libnvrtc.so.13"))}
    if place == "builtins":
        cut_off(whole, tmp_path / "copy", "libnvrtc-builtins.so.13.0")
        changes = {"WEFT_NVRTC": shutil.copy(whole, tmp_path / "copy/libnvrtc.so.13")}
    elif place == "LD_LIBRARY_PATH":
        changes = {"WEFT_NVRTC": "", "LD_LIBRARY_PATH": str(tmp_path / "half")}
    done = python("-m", "weft", "doctor", **fakes | changes)
    assert done.returncode in (0, 1), done.stderr
    if place != "LD_LIBRARY_PATH":  # there, another copy may serve
        assert "the file is truncated: its headers describe " in done.stdout
        assert "\nrepair        unset WEFT_NVRTC, which names that library; if no other " in done.stdout


def test_a_driver_that_is_truncated_is_refused(fakes: dict[str, str], tmp_path: Path) -> None:
    whole = Path(fakes["WEFT_LIBCUDA"]).resolve()
    half = cut_off(whole, tmp_path / "half", "libcuda.so.1")
    named = python("-m", "weft", "doctor", **fakes | {"WEFT_LIBCUDA": str(half), "WEFT_DEVICE": "cpu"})
    assert "names cannot be loaded (the file is truncated: its headers describe " in named.stdout
    assert "\nrepair        Name NVIDIA's libcuda.so.1 there, unset WEFT_LIBCUDA, " in named.stdout
    path = {"WEFT_LIBCUDA": "", "LD_LIBRARY_PATH": str(half.parent), "WEFT_DEVICE": "cpu"}
    assert python("-m", "weft", "doctor", **fakes | path).returncode in (0, 1)


@pytest.mark.parametrize(
    ("result", "repair"),
    [
        (803, "Reboot, or reload the kernel module: its version differs from that of libcuda, "),
        (804, "Remove the cuda-compat library from LD_LIBRARY_PATH, or update the driver: "),
        (999, "See nvidia-smi and the kernel log. Until then use the CPU (device cpu:0)."),
    ],
)
def test_a_driver_that_does_not_start_has_a_repair(fakes: dict[str, str], result: int, repair: str) -> None:
    settings = fakes | {"FAKE_CUDA_FAIL": f"1:{result}", "WEFT_DEVICE": "cpu"}
    text = python("-m", "weft", "doctor", **settings).stdout
    assert f"({result}: words for {result})\nrepair        {repair}" in text


def test_a_compiler_with_its_builtins_is_preferred(fakes: dict[str, str], tmp_path: Path) -> None:
    """Of otherwise equal copies the first would be chosen."""
    whole = Path(fakes["WEFT_NVRTC"]).resolve()
    for folder in ("alone", "complete"):
        (tmp_path / folder).mkdir()
        shutil.copy(whole, tmp_path / folder / "libnvrtc.so.13")
    shutil.copy(whole, tmp_path / "complete/libnvrtc-builtins.so.13.0")
    places = f"{tmp_path}/alone:{tmp_path}/complete"
    text = python("-m", "weft", "doctor", **fakes | {"WEFT_NVRTC": places}).stdout
    assert f"\nNVRTC         * 13.0 {tmp_path}/complete/libnvrtc.so.13 (WEFT_NVRTC): chosen" in text
    assert (
        f"{tmp_path}/alone/libnvrtc.so.13 (WEFT_NVRTC): its libnvrtc-builtins is missing, and another copy"
        in text
    )


def test_each_repair_for_a_compiler_that_is_too_new(fakes: dict[str, str]) -> None:
    text = python("-m", "weft", "doctor", **fakes | {"FAKE_CUDA_VERSION": "12040"}).stdout
    repairs = [line for line in text.splitlines() if line.startswith("repair")]
    assert len(repairs) >= 2
    assert all("nvidia-cuda-nvrtc-cu12" in line or "weft[cu12]" in line for line in repairs), repairs


def test_the_doctor_reports_gpus(fakes: dict[str, str]) -> None:
    text = python("-m", "weft", "doctor", **fakes).stdout
    assert "\ndevice        cuda:1 Fake GPU 1, sm_90, 16 GiB, 4 multiprocessors\n" in text
    assert "supports CUDA 13.0\n" in text
    compiler = Path(fakes["WEFT_NVRTC"]).resolve()
    assert f"\nNVRTC         * 13.0 {compiler} (WEFT_NVRTC): chosen: the newest" in text
    assert f"\nkernel cache  {fakes['WEFT_CACHE_DIR']} (rw): " in text
    # The fake computes nothing, and the doctor sees it.
    assert "\nPROBLEM       the smoke test on cuda:0 computed [7.0, 7.0, 7.0, 7.0]" in text


def test_the_doctor_sees_that_the_compiler_is_missing(fakes: dict[str, str]) -> None:
    broken = {"WEFT_NVRTC": "/nowhere", "FAKE_CUDA_VERSION": "12040"}
    text = python("-m", "weft", "doctor", **fakes | broken).stdout
    assert "\nPROBLEM       NVRTC, the run-time compiler, was not found on this machine\n" in text
    assert "\nrepair        python -m pip install 'weft[cu12]'\n" in text

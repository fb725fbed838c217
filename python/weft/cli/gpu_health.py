"""GPU checks of the doctor: problems with the driver, the run-time compiler, the kernel cache and the GPUs,
and the command that repairs each. Based on weftDescribeMachine; reports no problems on a machine without an
NVIDIA GPU."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from weft.arguments import counted

INSTALL = "python -m pip install {upgrade}'weft[cu{major}]'"
NVIDIA = "0x10de"

Found = dict[str, Any]
Report = Callable[[str, str], None]
"""Receives a problem and its repair."""


def has_hardware() -> bool:
    """True if the machine has an NVIDIA GPU, with or without a driver."""
    classes = Path("/sys/bus/pci/devices").glob("*/class")
    gpus = (path.parent for path in classes if path.read_text().startswith("0x03"))
    return any((gpu / "vendor").read_text().strip() == NVIDIA for gpu in gpus)


def driver_version() -> str | None:
    """The version of the kernel driver, such as 580.95.05; its CUDA version is a different number."""
    file = Path("/proc/driver/nvidia/version")
    match = re.search(r"\b\d{3}(\.\d+)+\b", file.read_text()) if file.exists() else None
    return match[0] if match else None


def chosen_compiler(machine: Found) -> Found | None:
    """The NVRTC library that is used, if one is usable."""
    return next((copy for copy in machine["compilers"] if copy["is_chosen"]), None)


# ---- Problems ----


def examine(machine: Found, hardware: bool, problem: Report) -> None:
    """Reports problems and their repairs. `machine` is the output of weftDescribeMachine."""
    driver, disk = machine["driver"], machine["cache"]["disk"]
    # Without a GPU no driver is needed, but a file named by WEFT_LIBCUDA was meant to work.
    if driver["problem"] and (hardware or "its library cannot be loaded" not in driver["problem"]):
        problem(*split(driver["problem"]))
    if driver["version"] or hardware:
        _examine_compilers(machine, problem)
    if disk["problem"]:
        repair = "export WEFT_CACHE_DIR=<a folder of your own>"
        if disk["folder"]:  # without HOME the directory is unknown
            repair = f"chmod -R u=rwX,go= '{disk['folder']}', or {repair}"
        problem(f"the kernel cache does not work fully: {disk['problem']}", repair)
    if disk["damaged"]:
        problem(f"{disk['damaged']} entries of the kernel cache were damaged", f"rm -r '{disk['folder']}'")


def _examine_compilers(machine: Found, problem: Report) -> None:
    chosen, major = chosen_compiler(machine), _major(machine)
    if chosen is None:
        reasons = "; ".join(f"{copy['path']}: {copy['verdict']}" for copy in machine["compilers"])
        missing = f"no copy of NVRTC can compile for {machine['arch']} ({reasons})"
        what = missing if reasons else "NVRTC, the run-time compiler, was not found on this machine"
        repair = INSTALL.format(upgrade="--upgrade " if reasons else "", major=major)
        if reasons and all(copy["found_by"] == "WEFT_NVRTC" for copy in machine["compilers"]):
            repair = f"unset WEFT_NVRTC, which names that library; if no other one works, {repair}"
        problem(what, repair)
    elif not chosen["builtins"] and chosen["found_by"] != "WEFT_NVRTC":
        what = f"{chosen['path']} has no libnvrtc-builtins next to it"
        problem(what, INSTALL.format(upgrade="--force-reinstall ", major=chosen["version"].split(".")[0]))


def _major(machine: Found) -> str:
    """The major CUDA version to install: the driver's, or the newest."""
    spoken = machine["driver"]["version"]
    return "12" if spoken and spoken.startswith("12.") else "13"


def split(sentence: str) -> tuple[str, str]:
    """Splits a message of the library into problem and repair; the repair is the last sentence."""
    parts = re.split(r"(?<=\.) (?=[A-Z])(?!Until then)", sentence.strip())
    return " ".join(parts[:-1]).rstrip(".") or sentence, parts[-1] if len(parts) > 1 else "see above"


# ---- Smoke test ----


def smoke_test(handle: Any) -> Found:
    """relu(A B + c) on small integers, without NumPy, on any device; the result must be exact."""
    weft: Any = import_module("weft")
    start = time.perf_counter()
    with weft.Graph("smoke test", io_data_type="f32", handle=handle) as g:
        a, b, c = g.tensor([2, 3], name="a"), g.tensor([3, 2], name="b"), g.tensor([1, 2], name="c")
        g.relu(g.add(g.matmul(a, b), c)).set_name("y").set_output(True)
    built = time.perf_counter()
    numbers = {"a": (1, 2, 3, 4, 5, 6), "b": (1, 0, 0, 1, 1, -1), "c": (-5, 1), "y": (7, 7, 7, 7)}
    got = _run(g, handle, numbers)
    done = time.perf_counter()
    return {
        "device": f"{handle.device.name.lower()}:{handle.ordinal}",
        "ok": got == [0.0, 0.0, 5.0, 0.0],
        "got": got,
        "engine": g.plan.engine,
        "build_seconds": built - start,
        "seconds": done - start,
    }


def _run(g: Any, handle: Any, numbers: Mapping[str, Sequence[float]]) -> list[float]:
    """Copies numbers to the device, runs the graph and copies y back."""
    backend: Any = import_module("weft.backend")
    memory: Any = import_module("weft.memory")
    arrays = {name: (ctypes.c_float * len(values))(*values) for name, values in numbers.items()}
    held = {}
    for name, array in arrays.items():
        held[name] = memory.DeviceMemory(handle, ctypes.sizeof(array))
        backend.copy(handle, held[name].address, ctypes.addressof(array), ctypes.sizeof(array), 0)
    g.execute({name: each.address for name, each in held.items()}, handle=handle)
    y = arrays["y"]
    backend.copy(handle, ctypes.addressof(y), held["y"].address, ctypes.sizeof(y), 0)
    return list(y)


# ---- Text -----


def rows(machine: Found) -> Iterator[tuple[str, str]]:
    """The rows about driver, compilers and cache for a terminal."""
    driver = machine["driver"]
    if driver["version"]:
        kernel = driver_version()
        yield "driver", f"{kernel + ', ' if kernel else ''}supports CUDA {driver['version']}"
    elif machine["hardware"]:
        yield "driver", f"none in use: {driver['problem']}"
    else:
        yield "driver", "none, and no NVIDIA GPU"
    for copy in machine["compilers"]:
        mark = "*" if copy["is_chosen"] else " "
        yield "NVRTC", f"{mark} {copy['version']} {copy['path']} ({copy['found_by']}): {copy['verdict']}"
    if not machine["compilers"]:
        yield "NVRTC", "none found"
    disk = machine["cache"]["disk"]
    yield (
        "kernel cache",
        f"{disk['folder']} ({disk['mode']}): {disk['entries']} kernels, {disk['bytes'] / 2**20:.1f} of "
        f"{disk['limit'] / 2**20:.0f} MiB",
    )


def device_text(device: Found) -> str:
    """A device in one line: its chip, memory and multiprocessors, or its threads."""
    called = f"{device['kind']}:{device['ordinal']} {device.get('name', '')}"
    if device["kind"] == "cpu":
        return f"{called}, {counted(device['threads'], 'thread')}"
    memory = f"{device['memory_bytes'] / 2**30:.0f} GiB" if "memory_bytes" in device else ""
    details = [device.get("arch", ""), memory, f"{device.get('multiprocessors', '?')} multiprocessors"]
    return ", ".join([called, *filter(None, details)])

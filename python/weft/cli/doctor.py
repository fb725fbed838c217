"""`python -m weft doctor`: reports what is installed and loaded, whether it computes correctly, and the
command that repairs each problem. Every probe is guarded, because the tool has to work on a broken
installation."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import sys
from collections.abc import Callable
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weft.cli import gpu_health

PACKAGES: tuple[str, ...] = ("cffi", "numpy", "torch", "cupy", "ml_dtypes", "scikit-learn")
PACKAGES += ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
# Documented in docs/environment.md.
VARIABLES: tuple[str, ...] = (
    "WEFT_DEVICE",
    "WEFT_THREADS",
    "WEFT_LOG",
    "WEFT_LIBRARY",
    "WEFT_LIBCUDA",
    "WEFT_NVRTC",
    "WEFT_CACHE",
    "WEFT_CACHE_DIR",
    "WEFT_CACHE_BYTES",
    "WEFT_DUMP_DIR",
    "WEFT_CHECK",
    "WEFT_CUDNN_VERSION",
    "WEFT_CUDNN_FALLBACK",
    "LD_PRELOAD",
)
VARIABLES += ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE")
VARIABLES += ("XDG_CACHE_HOME", "HOME")
# CPU extensions used by Weft's kernels, or by kernels that users compare them with.
FEATURES: tuple[str, ...] = (
    "sse4_2",
    "avx",
    "f16c",
    "fma",
    "avx2",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
)
FEATURES += ("avx512_fp16", "amx_tile", "amx_bf16", "amx_int8")
FEATURES += ("asimd", "asimdhp", "sve", "sve2", "bf16", "i8mm")

REBUILD = "make build (in a source tree), or python -m pip install --force-reinstall weft"


class Problem(dict[str, str]):
    """A problem and the command that repairs it."""

    def __init__(self, what: str, repair: str) -> None:
        super().__init__(what=what, repair=repair)


def examine() -> dict[str, Any]:
    """All findings, in the form of the JSON output."""
    problems: list[Problem] = []
    found: dict[str, Any] = {
        "weft": _weft(problems),
        "gpu": None,
        "devices": [],
        "default_device": None,
        "cpu": _guarded(_cpu, {}),
        "python": {
            "version": platform.python_version(),
            "executable": sys.executable,
            "platform": platform.platform(),
        },
        "cudnn": _guarded(_cudnn, {"loaded": [], "is_weft": False}),
        "packages": {name: _package_version(name) for name in PACKAGES},
        "environment": {name: os.environ.get(name) for name in _variables()},
        "smoke_tests": [],
    }
    if not problems:
        found["gpu"] = _gpu(problems)
        found["devices"] = _devices(problems)
        found["default_device"] = _default_device(problems)
        found["smoke_tests"] = [_smoke_test(device, problems) for device in found["devices"]]
    problems += _environment_problems()
    found["problems"] = problems
    return found


def _guarded(probe: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return probe()
    except Exception:  # a failing probe returns nothing; the probe of Weft itself reports the cause
        return otherwise


def _package_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _variables() -> list[str]:
    """The set variables that Weft reads, then those with a similar name, which may be misspelled."""
    ours = sorted(name for name in os.environ if name.startswith("WEFT_"))
    return list(dict.fromkeys([*VARIABLES, *ours]))


# ---- Weft itself ----


def _weft(problems: list[Problem]) -> dict[str, Any]:
    """The package, the bindings and the library, and whether their versions match."""
    import weft

    found: dict[str, Any] = {
        "version": weft.__version__,
        "package": str(Path(weft.__file__).parent),
        "library": None,
        "library_version": None,
        "engines": [],
    }
    if find_spec("cffi") is None:
        problems.append(Problem("the package cffi is missing", "python -m pip install cffi"))
        return found
    if find_spec("weft_cffi") is None:
        problems.append(Problem("the generated bindings (weft_cffi) are missing", REBUILD))
        return found
    try:
        backend = import_module("weft.backend")
        found["library_version"] = _version_text(backend.get_version())
    except Exception as error:  # any error here is what the user wants to know about
        problems.append(Problem(str(error), _library_repair()))
        return found
    found["library"] = _loaded_library()
    _compare(found, problems)
    found["engines"] = _guarded(_engines, [])
    return found


def _version_text(number: int) -> str:
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _library_repair() -> str:
    chosen = os.environ.get("WEFT_LIBRARY")
    if chosen and not Path(chosen).exists():
        return "unset WEFT_LIBRARY (it names no file), or set it to the path of a libweft.so.1"
    return f"unset WEFT_LIBRARY, or {REBUILD}" if chosen else REBUILD


def _loaded_library() -> str | None:
    """The path of the loaded library, from /proc."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    paths = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if "libweft" in line}
    own = {path for path in paths if not Path(path).name.startswith(("libweft_torch", "libweft_xla"))}
    return ", ".join(sorted(own)) or None


def _compare(found: dict[str, Any], problems: list[Problem]) -> None:
    """Checks that the package, the bindings and the library describe the same operations."""
    ours, theirs = found["version"].split(".")[:2], found["library_version"].split(".")[:2]
    if ours != theirs:
        what = f"the package is {found['version']}, the library {found['library_version']}"
        problems.append(Problem(what, REBUILD))
        return
    backend, graph = import_module("weft.backend"), import_module("weft.graphs").Graph
    methods = [
        m["name"] for operation in backend.describe()["operations"] for m in operation["methods"] or []
    ]
    lacking = [name for name in methods if not hasattr(graph, name) and not hasattr(graph, f"_{name}")]
    if lacking:
        what = f"the library has operations that the bindings lack: {', '.join(lacking)}"
        problems.append(
            Problem(what, f"make bindings (in a source tree); elsewhere {REBUILD.split(', or ')[1]}")
        )


def _cudnn() -> dict[str, Any]:
    """The libraries named libcudnn.so.9 in this process, and whether the one that programs use is Weft's."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = sorted({line.split(maxsplit=5)[-1] for line in maps if "libcudnn.so.9" in line})
    return {"loaded": paths, "is_weft": bool(paths) and hasattr(ctypes.CDLL(None), "weftCudnnCallCount")}


def _engines() -> list[dict[str, Any]]:
    """The engines, from their answers for a small graph."""
    weft: Any = import_module("weft")
    g = weft.Graph(io_data_type="f32")
    g.relu(g.tensor([4]))
    return [{"name": answer["engine"], "serves_this_device": answer["supported"]} for answer in g.support()]


# ---- The machine ----


def _gpu(problems: list[Problem]) -> dict[str, Any]:
    """Driver, run-time compilers and kernel cache."""
    machine: dict[str, Any] = import_module("weft.backend").describe_machine()
    hardware = _guarded(gpu_health.has_hardware, False)
    gpu_health.examine(machine, hardware, lambda what, repair: problems.append(Problem(what, repair)))
    return {"hardware": hardware, "kernel_driver": _guarded(gpu_health.driver_version, None), **machine}


def _devices(problems: list[Problem]) -> list[dict[str, Any]]:
    """Every device that the library opens."""
    weft: Any = import_module("weft")
    devices: Any = import_module("weft.devices")
    gpus = import_module("weft.backend").describe_machine()["driver"]["gpus"]
    opened = []
    for kind, ordinal in [("cpu", 0), *(("cuda", i) for i in range(gpus))]:
        try:
            handle = weft.create_handle(kind, ordinal)
        except weft.WeftError as error:
            problems.append(Problem(str(error), "export WEFT_DEVICE=cpu, or use another GPU"))
            continue
        opened.append(json.loads(devices.DeviceProperties(handle=handle).serialize()))
    return opened


def _default_device(problems: list[Problem]) -> str | None:
    """The device that graphs run on by default; WEFT_DEVICE overrides it."""
    weft: Any = import_module("weft")
    try:
        handle = weft.create_handle()
    except weft.WeftError as error:
        asked = f"WEFT_DEVICE={os.environ.get('WEFT_DEVICE', '')}"
        what = f"{asked} opens no device, so every graph that names no device fails: {error}"
        problems.append(Problem(what, "unset WEFT_DEVICE (the first GPU that works, else the CPU)"))
        return None
    return f"{handle.device.name.lower()}:{handle.ordinal}"


def _cpu() -> dict[str, Any]:
    """The processor's name, its cores, and the relevant extensions."""
    text = Path("/proc/cpuinfo").read_text()
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        values.setdefault(name.strip(), value.strip())
    flags = set((values.get("flags") or values.get("Features") or "").split())
    return {
        "name": values.get("model name", platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "features": [name for name in FEATURES if name in flags],
    }


def _smoke_test(device: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Builds and runs a small graph on a device; see gpu_health.smoke_test."""
    weft: Any = import_module("weft")
    name = f"{device['kind']}:{device['ordinal']}"
    try:
        result = gpu_health.smoke_test(weft.create_handle(device["kind"], device["ordinal"]))
    except weft.WeftError as error:  # the last sentence of the message is the repair
        what, repair = gpu_health.split(str(error))
        until = "" if device["kind"] == "cpu" else "; export WEFT_DEVICE=cpu until then"
        problems.append(Problem(f"the smoke test on {name} failed: {what}", repair.rstrip(".") + until))
        return {"device": name, "ok": False}
    except Exception as error:
        problems.append(Problem(f"the smoke test on {name} failed: {error}", REBUILD))
        return {"device": name, "ok": False}
    if not result["ok"]:
        what = f"the smoke test on {name} computed {result['got']} instead of [0, 0, 5, 0]"
        again = "WEFT_THREADS=1 WEFT_CACHE=off python -m weft doctor"
        problems.append(Problem(what, f"{again}, and report both outputs"))
    return result


def _environment_problems() -> list[Problem]:
    problems = []
    levels = ("error", "warn", "info", "plan", "exec")
    log, threads = os.environ.get("WEFT_LOG"), os.environ.get("WEFT_THREADS")
    if log and log not in levels:
        what = f"WEFT_LOG={log} is not a log level"
        problems.append(Problem(what, f"export WEFT_LOG=warn (or one of {', '.join(levels)})"))
    if threads and not (threads.isdigit() and int(threads) > 0):
        problems.append(Problem(f"WEFT_THREADS={threads} is not a number of threads", "unset WEFT_THREADS"))
    for name in ("WEFT_NVRTC", "WEFT_LIBCUDA"):
        places = [place for place in os.environ.get(name, "").split(":") if place]
        if places and not any(Path(place).exists() for place in places):
            problems.append(Problem(f"{name} names no existing path: {':'.join(places)}", f"unset {name}"))
    return problems


# ---- Text -----


def report(found: dict[str, Any]) -> str:
    """Formats the findings for a terminal."""
    own = found["weft"]
    rows: list[tuple[str, str]] = [("weft", f"{own['version']} in {own['package']}")]
    rows.append(("library", f"{own['library_version'] or 'not loaded'} {own['library'] or ''}".strip()))
    rows += [("engine", engine["name"]) for engine in own["engines"]]
    rows += [("device", gpu_health.device_text(device)) for device in found["devices"]]
    rows += [("default", found["default_device"])] if found["default_device"] else []
    rows += gpu_health.rows(found["gpu"]) if found["gpu"] else []
    rows += [("libcudnn.so.9", _cudnn_text(found["cudnn"]))] if found["cudnn"]["loaded"] else []
    cpu = found["cpu"]
    if cpu:
        rows.append(("cpu", f"{cpu['cores']} cores; {' '.join(cpu['features'])}"))
    rows.append(("python", f"{found['python']['version']} {found['python']['executable']}"))
    rows.append(("platform", found["python"]["platform"]))
    packages = [f"{name} {version or '(none)'}" for name, version in found["packages"].items()]
    rows.append(("packages", ", ".join(packages)))
    rows += [("variable", f"{name} {value or '(unset)'}") for name, value in found["environment"].items()]
    rows += [("smoke test", _smoke_text(smoke)) for smoke in found["smoke_tests"]]
    rows += [] if found["smoke_tests"] else [("smoke test", "not run")]
    lines = [f"{name:<13} {value}" for name, value in rows]
    for problem in found["problems"]:
        lines += ["", f"PROBLEM       {problem['what']}", f"repair        {problem['repair']}"]
    lines += [""] if found["problems"] else ["", "No problems found."]
    return "\n".join(lines).rstrip()


def _cudnn_text(cudnn: dict[str, Any]) -> str:
    return f"{', '.join(cudnn['loaded'])}: {'computed by Weft' if cudnn['is_weft'] else 'not of Weft'}"


def _smoke_text(smoke: dict[str, Any]) -> str:
    if not smoke["ok"]:
        return f"{smoke['device']}: not passed"
    built, whole = smoke["build_seconds"] * 1e3, smoke["seconds"] * 1e3
    return f"{smoke['device']}: ok in {whole:.1f} ms, {built:.1f} of them to build, on {smoke['engine']}"


def run(as_json: bool = False) -> int:
    """Prints the findings. The exit status is 0 if no problem was found."""
    findings = examine()
    print(json.dumps(findings, indent=2) if as_json else report(findings))
    return 1 if findings["problems"] else 0

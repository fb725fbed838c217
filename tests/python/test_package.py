"""The package: lazy import, module functions, handles, errors, doctests."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import weft
from weft import errors

PACKAGE = Path(weft.__file__).parent
FILES = [
    path.relative_to(PACKAGE)
    for folder in ("", "cli", "graphs", "plot")
    for path in (PACKAGE / folder).glob("*.py")
]
MODULES = sorted(".".join(file.with_suffix("").parts) for file in FILES if not file.stem.startswith("__"))


def python(code: str, **environment: str) -> str:
    """The output of a fresh interpreter."""
    inherited = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment
    done = subprocess.run(
        [sys.executable, "-c", code], env=inherited, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def warnings(code: str, **environment: str) -> list[str]:
    """Returns the error stream of a fresh interpreter."""
    inherited = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment
    done = subprocess.run(
        [sys.executable, "-c", code], env=inherited, capture_output=True, text=True, check=True
    )
    return done.stderr.splitlines()


RUN_SOME = """
import weft, numpy as np
for _ in range(3):
    g = weft.Graph(handle=weft.create_handle("cpu"), io_data_type="f32")
    g.matmul(g.tensor([64, 64], name="a"), g.tensor([64, 64], name="b"))
    g.build().plan(np.ones((64, 64), "f4"), np.ones((64, 64), "f4"))
weft.backend.describe_machine()
"""


@pytest.mark.parametrize("value", ["many", "0", "-3", "1.5", "3x", "99999999999999999999"])
@pytest.mark.parametrize("variable", ["WEFT_THREADS", "WEFT_CACHE_BYTES"])
def test_nonsense_in_a_number_is_warned_of_once(variable: str, value: str) -> None:
    rule = "which is not an integer of at least 1. It is ignored."
    assert warnings(RUN_SOME, **{variable: value}) == [f"weft warning: {variable} is '{value}', {rule}"]


def test_nonsense_in_a_word_is_warned_of_once() -> None:
    said = "weft warning: WEFT_CACHE is 'always', which is not rw, ro or off. It is taken as rw."
    assert warnings(RUN_SOME, WEFT_CACHE="always") == [said]
    said = (
        "weft warning: WEFT_LOG is 'loud', which is not a log level. "
        "Set it to error, warn, info, plan or exec."
    )
    assert warnings(RUN_SOME, WEFT_LOG="loud") == [said]


# The warning about a setting, a folder that cannot be written, is shown at each level.
LEVELS = {
    "": ["warning"],
    "error": ["error", "warning"],
    "warn": ["error", "warning"],
    "info": ["error", "info", "warning"],
}


@pytest.mark.parametrize("level", [*LEVELS, "plan", "exec"])
def test_levels_of_the_log(level: str) -> None:
    """Each level logs everything of the one before, and more."""
    code = """
import os, weft, numpy as np
os.environ["WEFT_DUMP_DIR"] = "/dev/null/none"
g = weft.Graph(device="sm_90", io_data_type="f32")
g.exp(g.tensor([4]))
g.build()
g = weft.Graph(device="cpu", io_data_type="f32")
g.exp(g.tensor([4], name="x"))
g.build().plan(np.ones(4, "f4"))
try:
    weft.Graph(device="cpu").deserialize(b"no plan")
except weft.BadParameterError:
    pass
"""
    said = [line.removeprefix("weft ").split(": ")[:2] for line in warnings(code, WEFT_LOG=level)]
    assert sorted({kind for kind, _ in said}) == LEVELS.get(level, LEVELS["info"])
    assert [text for _, text in said if text.startswith("execute ")] == (
        ["execute graph on cpu.fast"] if level == "exec" else []
    )


def test_settings_that_make_sense_are_silent() -> None:
    settings = {"WEFT_THREADS": ("1", ""), "WEFT_CACHE": ("off", ""), "WEFT_CACHE_BYTES": ("9",)}
    for variable, value in [(name, value) for name, values in settings.items() for value in values]:
        assert warnings(RUN_SOME, **{variable: value}) == []


# ---- Import ------------------------------------------------------------------------------------------------


def test_import_loads_nothing() -> None:
    heavy = ["numpy", "torch", "_cffi_backend", "weft.enums"]
    assert python(f"import sys, weft; print([m for m in {heavy} if m in sys.modules])") == "[]"


def test_enums_need_no_library() -> None:
    assert python("import weft; print(weft.data_type.HALF)", WEFT_LIBRARY="/nowhere") == "2"


def test_building_needs_no_numpy() -> None:
    code = """
import sys, weft
g = weft.Graph(handle=weft.create_handle("cpu"))
g.relu(g.tensor([2], data_type="f32"))
print(g.build(), "numpy" in sys.modules)
"""
    assert python(code) == "Graph(1 op, 1 input, 1 output, built) False"


def test_a_missing_library_is_explained() -> None:
    code = "import weft\ntry: weft.backend_version()\nexcept weft.UnavailableError as e: print(e)"
    said = python(code, WEFT_LIBRARY="/nowhere/libweft.so")
    assert said.startswith("weft: the library /nowhere/libweft.so cannot be opened (")
    assert said.endswith(
        "); WEFT_LIBRARY names it. Build it with `make build`, or set WEFT_LIBRARY to its path."
    )


def test_an_integration_uses_the_library_that_is_loaded(tmp_path: Path) -> None:
    """Also if its file has another name. The message names the file that is missing."""
    for name, copy in (("libweft.so.1", "libweft-mine.so"), ("libweft_xla.so", "libweft_xla.so")):
        shutil.copy(PACKAGE / "lib" / name, tmp_path / copy)
    code = """
import re, weft
from weft import integrations
function = integrations.load("xla").weftXlaExecute
files = set(re.findall(r"\\S+libweft\\S+", open("/proc/self/maps").read()))
print(bool(function), sorted(files))
try: integrations.load("torch")
except weft.UnavailableError as error: print(error)
"""
    loaded, refused = python(code, WEFT_LIBRARY=str(tmp_path / "libweft-mine.so")).splitlines()
    assert loaded == f"True {[str(tmp_path / name) for name in ('libweft-mine.so', 'libweft_xla.so')]}"
    assert refused.startswith(f"weft: the library {tmp_path}/libweft_torch.so cannot be opened (")
    assert refused.endswith("). Build it with `make build`, next to the libweft that is used.")


@pytest.mark.parametrize("name", weft.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(weft, name) is not None


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'weft' has no attribute 'nothing'"):
        weft.nothing  # noqa: B018


def test_dir_lists_the_public_names() -> None:
    assert dir(weft) == sorted(weft.__all__)


# ---- Versions, handles -------------------------------------------------------------------------------------


def test_versions() -> None:
    header = (PACKAGE.parents[1] / "include/weft/weft.h").read_text()
    major, minor, patch = (
        int(re.search(rf"WEFT_{part} = (\d+)", header)[1])  # type: ignore[index]
        for part in ("MAJOR", "MINOR", "PATCHLEVEL")
    )
    assert weft.__version__ == weft.backend_version_string() == f"{major}.{minor}.{patch}"
    assert weft.backend_version() == major * 10000 + minor * 100 + patch


def test_handles() -> None:
    with weft.create_handle("cpu") as handle:
        assert repr(handle) == "Handle(cpu:0)"
        assert int(handle) > 0
        weft.set_stream(handle=handle, stream=64)
        assert weft.get_stream(handle) == 64
        weft.set_stream(handle, None)
        assert weft.get_stream(handle) == 0
    assert repr(handle) == "Handle(cpu:0, closed)"
    weft.destroy_handle(handle)
    with pytest.raises(
        weft.BadParameterError,
        match=re.escape("handle: it was destroyed. Create a new one with create_handle()."),
    ):
        int(handle)


def test_the_library_looks_for_compilers_where_packages_are(tmp_path: Path) -> None:
    wheel = tmp_path / "nvidia/cu13/lib"
    wheel.mkdir(parents=True)
    (wheel / "libnvrtc.so.13").write_text("no library")
    code = (
        f"import json, sys; sys.path.append({str(tmp_path)!r}); from weft import backend\n"
        "machine = json.loads(backend._text(backend.library().weftDescribeMachine))\n"
        "print(*[c['found_by'] for c in machine['compilers'] if c['path'].startswith(sys.path[-1])])"
    )
    assert python(code, WEFT_NVRTC="") == "search paths"


def test_no_such_device() -> None:
    with pytest.raises(weft.BadParameterError) as caught:
        weft.create_handle("cpu", 3)
    assert caught.value.status.name == "BAD_PARAM_OUT_OF_BOUND"
    assert weft.get_last_error_string() == str(caught.value)
    weft.create_handle("cpu")
    assert weft.get_last_error_string() == ""


def test_device_properties_and_kernel_caches() -> None:
    from weft.devices import DeviceProperties

    properties = DeviceProperties(handle=weft.create_handle("cpu"))
    text = properties.serialize()
    assert '"kind":"cpu"' in text
    again = weft.create_device_properties(text)
    assert again.serialize() == text
    cache = weft.create_kernel_cache()
    cache.deserialize(cache.serialize())
    g = weft.Graph(device_property=again, kernel_cache=cache)
    g.relu(np.float32([-1, 1]))
    np.testing.assert_array_equal(g(), [0, 1])


# ---- Errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind", "base"),
    [
        ("NOT_INITIALIZED", "UnavailableError", RuntimeError),
        ("BAD_PARAM", "BadParameterError", ValueError),
        ("BAD_PARAM_CYCLE_EXT", "BadParameterError", ValueError),
        ("NOT_SUPPORTED_SHAPE", "NotSupportedError", RuntimeError),
        ("INTERNAL_ERROR", "InternalError", RuntimeError),
        ("INTERNAL_ERROR_HOST_ALLOCATION_FAILED", "OutOfMemoryError", MemoryError),
        ("EXECUTION_FAILED_CUDA_DRIVER", "ExecutionError", RuntimeError),
    ],
)
def test_statuses_become_exceptions(status: str, kind: str, base: type[Exception]) -> None:
    error = errors.error_of(weft.enums.status[status], "why")
    assert type(error) is getattr(weft, kind)
    assert isinstance(error, base)
    assert isinstance(error, weft.WeftError)
    assert (str(error), error.status.name) == ("why", status)


def test_reasons_are_a_list() -> None:
    assert weft.NotSupportedError("no").reasons == []
    assert weft.NotSupportedError("no", reasons=["a", "b"]).reasons == ["a", "b"]


# ---- Helpers of cuDNN's frontend ---------------------------------------------------------------------------


def test_graph_jit_and_graph_cache() -> None:
    made = []

    @weft.graph_cache(key_fn=lambda n: n, maxsize=2)
    @weft.jit([weft.heur_mode.A, weft.heur_mode.FALLBACK])
    def doubling(n: int) -> tuple[weft.Graph, list[str]]:
        made.append(n)
        with weft.graph(weft.create_handle("cpu"), io_data_type=weft.data_type.FLOAT) as (g, _):
            x = g.tensor(dim=[n], stride=[1], name="x")
            g.add(x, x, name="y")
        return g, ["x"]

    for n in (2, 3, 2, 4, 2, 3):
        g, _ = doubling(n)
        np.testing.assert_array_equal(g.plan(np.ones(n, "f4")), np.full(n, 2.0))
    assert made == [2, 3, 4, 3]


# ---- Documentation -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES)
def test_doctests(module: str) -> None:
    result = doctest.testmod(import_module(f"weft.{module}"))
    assert result.failed == 0


def operations() -> list[str]:
    """The methods that add an operation to a graph."""
    from weft.composite_ops import CompositeOps
    from weft.ops import Ops

    return sorted(name for each in (Ops, CompositeOps) for name in vars(each) if not name.startswith("_"))


def test_every_operation_has_an_example_that_shows_its_result() -> None:
    for name in operations():
        examples = doctest.DocTestParser().get_examples(getattr(weft.Graph, name).__doc__ or "")
        code = "".join(example.source for example in examples)
        assert f"g.{name}(" in code or name.startswith("scaled_dot_product"), f"{name} has no example"
        assert re.search(r"\d|True|False", examples[-1].want), f"{name}'s example ends without a result"


def test_every_operation_names_data_types_and_failures() -> None:
    for name in operations():
        document = getattr(weft.Graph, name).__doc__ or ""
        sections = re.findall(r"^        (Args|Returns|Data types|Raises):$", document, flags=re.M)
        assert sections == ["Args", "Returns", "Data types", "Raises"], name

"""Generated files are up to date, and the header, the library and the bindings agree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from weft import backend
from weft_cffi import enums as mirror
from weft_cffi._weft import ffi

ROOT = Path(__file__).parents[2]
HEADER = (ROOT / "include/weft/weft_enums.h").read_text()


def test_generated_files_are_fresh() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "tools/gen.py", "--check"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_check_reports_a_stale_file(tmp_path: Path) -> None:
    for name in ("include", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name)
    done = subprocess.run(
        [sys.executable, "tools/gen.py", "--check", "--library", library_path()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "differs bindings/manifest.json" in done.stdout
    assert "Run: python tools/gen.py" in done.stdout


def test_arguments_without_an_attribute_need_a_type(tmp_path: Path) -> None:
    for name in ("include", "tools", "python/weft"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("lib"))
    rows = tmp_path / "tools/op_rows.txt"
    rows.write_text(rows.read_text().replace(" stats_log2=false", " novel=0 stats_log2=false"))
    done = subprocess.run(
        [sys.executable, "tools/gen.py", "--check", "--library", library_path()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    words = "method softmax: argument novel names no attribute 'novel'"
    assert (done.returncode, done.stderr.strip()) == (1, words)


def library_path() -> str:
    return os.environ.get("WEFT_LIBRARY") or str(ROOT / "python/weft/lib/libweft.so.1")


# ---- Numbers -----------------------------------------------------------------------------------------------


def header_enumerators() -> dict[str, int]:
    text = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.DOTALL)
    return {name: int(value) for name, value in re.findall(r"\b(WEFT_\w+)\s*=\s*(-?\d+)", text)}


def test_cffi_has_the_header_enumerators() -> None:
    library = backend.library()
    wrong = {name: value for name, value in header_enumerators().items() if getattr(library, name) != value}
    assert not wrong


def test_mirror_has_the_header_enumerators() -> None:
    members: Counter[int] = Counter()
    python_only = ("NOT_SET", "OPENSOURCE")
    for enum in vars(mirror).values():
        if isinstance(enum, type) and issubclass(enum, mirror.IntEnum) and enum is not mirror.IntEnum:
            shared = {name: member for name, member in enum.__members__.items() if name not in python_only}
            members.update(map(int, shared.values()))
    assert members == Counter(header_enumerators().values())


def test_structs_and_enums_are_as_the_compiler_lays_them_out(tmp_path: Path) -> None:
    structs = {"weftFraction_t": [], "weftDebug_t": []}
    lines = ['#include "weft/weft.h"', "#include <stdio.h>", "int main(void) {"]
    for struct in structs:
        fields = [name for name, _ in ffi.typeof(struct).fields]
        structs[struct] = fields
        lines.append(f'    printf("{struct} %zu\\n", sizeof({struct}));')
        lines += [f'    printf("{struct}.{f} %zu\\n", offsetof({struct}, {f}));' for f in fields]
    lines += [f'    printf("{name} %d\\n", (int){name});' for name in header_enumerators()]
    (tmp_path / "probe.c").write_text("\n".join([*lines, "    return 0;", "}", ""]))
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, f"-I{ROOT / 'include'}", "probe.c", "-o", "probe"], cwd=tmp_path, check=True)
    out = subprocess.run([tmp_path / "probe"], capture_output=True, text=True, check=True).stdout
    compiled = {name: int(value) for name, value in (line.split() for line in out.splitlines())}
    expected = dict(header_enumerators())
    for struct, fields in structs.items():
        expected[struct] = ffi.sizeof(struct)
        expected |= {f"{struct}.{f}": ffi.offsetof(struct, f) for f in fields}
    assert compiled == expected


# ---- Attributes and rows -----------------------------------------------------------------------------------


def header_attributes() -> dict[str, tuple[str, str]]:
    """The attributes: the descriptor kind that the header lists each under, and its sentence."""
    body = re.search(r"typedef enum \{(.*?)\n\} weftBackendAttributeName_t;", HEADER, flags=re.DOTALL)
    assert body
    found, kind = {}, ""
    pattern = r"/\* ([A-Z0-9_]+): .*?\*/|(WEFT_ATTR_\w+) = \d+,?\s*/\*\*<(.*?)\*/"
    for section, name, doc in re.findall(pattern, body.group(1), flags=re.DOTALL):
        if section:
            kind = f"WEFT_BACKEND_{section}_DESCRIPTOR"
            kind += "_EXT" * (f"{kind}_EXT" in HEADER)
        else:
            found[name] = (kind, " ".join(doc.split()))
    return found


def described() -> dict[str, list[dict[str, Any]]]:
    """The rows of each descriptor kind that the library has."""
    kinds = {int(kind): f"WEFT_BACKEND_{kind.name}" for kind in mirror.descriptor_type}
    answer = backend.describe()
    return {kinds[each["kind"]]: each["rows"] for each in [*answer["descriptors"], *answer["operations"]]}


NAMES = {int(name): f"WEFT_ATTR_{name.name}" for name in mirror.attribute_name}


def test_every_row_belongs_to_its_descriptor() -> None:
    attributes = header_attributes()
    assert len(attributes) > 400
    for kind, rows in described().items():
        for row in rows:
            name = NAMES[row["name"]]
            assert name == "WEFT_ATTR_NAME_EXT" or attributes[name][0] == kind, f"{kind} claims {name}"
        claims = Counter((row["name"], row["type"]) for row in rows)
        assert not [claim for claim, count in claims.items() if count > 1], f"{kind} has a row twice"
        keys = Counter((row["key"], row["name"]) for row in rows)
        assert len({key for key, _ in keys}) == len(keys), f"{kind} uses a key for two attributes"


def test_every_attribute_is_claimed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = described()
    claimed = {(kind, NAMES[row["name"]]) for kind, listed in rows.items() for row in listed}
    missing: Counter[str] = Counter()
    for name, (kind, _) in header_attributes().items():
        if kind in rows:
            assert (kind, name) in claimed, f"{kind} has no row for {name}"
        elif kind:
            missing[kind] += 1
    assert all("_OPERATION_" in kind for kind in missing), f"the library lacks {dict(missing)}"
    with capsys.disabled():
        words = [kind.removeprefix("WEFT_BACKEND_").removesuffix("_DESCRIPTOR").lower() for kind in missing]
        if words:
            print(f"\nnot there yet: {sum(missing.values())} attributes of {', '.join(words)}")


def test_row_types_are_those_that_the_header_states() -> None:
    attributes = header_attributes()
    for rows in described().values():
        for row in rows:
            _, doc = attributes[NAMES[row["name"]]]
            head = re.split(r":|, optional|, get only|, a weft", doc)[0]
            word = "descriptor" if row["type"] == "BACKEND_DESCRIPTOR" else row["type"]
            assert word in head, f"{NAMES[row['name']]} is {row['type']}, its sentence says {head}"


def test_parameter_descriptors_and_targets_exist() -> None:
    kinds = {int(getattr(mirror.descriptor_type, kind.removeprefix("WEFT_BACKEND_"))) for kind in described()}
    answer = backend.describe()
    for op in answer["operations"]:
        assert op["parameters"] is None or op["parameters"] in kinds
    for each in [*answer["descriptors"], *answer["operations"]]:
        for row in each["rows"]:
            assert row["target"] is None or row["target"] == -1 or row["target"] in kinds, row


def test_every_pointwise_mode_is_described() -> None:
    assert {mode["mode"] for mode in backend.describe()["pointwise_modes"]} == set(mirror.pointwise_mode)


def test_every_sentence_is_there() -> None:
    answer = backend.describe()
    for each in [*answer["descriptors"], *answer["operations"]]:
        assert each["doc"], each["name"]
        for row in each["rows"]:
            assert row["doc"], f"{each['name']}: {row['key']} has no doc"
            is_tensor = row["role"] in ("input", "output")
            assert not is_tensor or row["shape"] or row["storage"] == "list", f"{each['name']}: {row['key']}"

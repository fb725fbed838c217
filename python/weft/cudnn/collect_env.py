"""`python -m weft.cudnn.collect_env`, cuDNN's report of an installation: the output of `python -m weft
doctor` and the cuDNN versions that this module follows. --json prints JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from weft.cli import doctor
from weft.cudnn.version import FRONTEND, backend_version_string


def collect() -> dict[str, Any]:
    """All information: the doctor's findings, and the cuDNN versions that this module follows."""
    versions = {"cudnn frontend": FRONTEND, "cudnn backend": backend_version_string()}
    return {**versions, **doctor.examine()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the report. Problems are part of the report, so the exit status is 0."""
    parser = argparse.ArgumentParser(prog="python -m weft.cudnn.collect_env")
    parser.add_argument("--json", action="store_true", help="print JSON")
    report = collect()
    if parser.parse_args(arguments).json:
        print(json.dumps(report, indent=2))
        return 0
    for key in ("cudnn frontend", "cudnn backend"):
        print(f"{key}: {report[key]}, whose names and rules weft.cudnn follows")
    print(doctor.report(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m weft.cudnn.collect_env`, cuDNN's report of an installation: Weft's, as `python -m weft doctor`
has it, with the versions that this face follows. --json prints JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from weft import doctor
from weft.cudnn.version import FRONTEND, backend_version_string


def collect() -> dict[str, Any]:
    """Everything that is known: what the doctor finds, and the versions of cuDNN that are followed."""
    versions = {"cudnn frontend": FRONTEND, "cudnn backend": backend_version_string()}
    return {**versions, **doctor.examine()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the report. Whatever is wrong is part of it, so that the exit status is 0."""
    parser = argparse.ArgumentParser(prog="python -m weft.cudnn.collect_env")
    parser.add_argument("--json", action="store_true", help="print JSON")
    found = collect()
    if parser.parse_args(arguments).json:
        print(json.dumps(found, indent=2))
        return 0
    for key in ("cudnn frontend", "cudnn backend"):
        print(f"{key}: {found[key]}, whose names and rules weft.cudnn follows")
    print(doctor.report(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

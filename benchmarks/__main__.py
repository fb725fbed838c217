"""The command line of the benchmark: `python -m benchmarks`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from weft.cli import exit_status

from benchmarks import suite
from benchmarks.case import GROUPS

DESCRIPTION = "Times cases with the sizes of real networks, relative to the roofline of the device."


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    bench = argparse.ArgumentParser("python -m benchmarks", description=DESCRIPTION)
    groups = f"{', '.join(GROUPS)} (all); or models: networks that torch trains"
    bench.add_argument("groups", nargs="*", metavar="group", help=groups)
    bench.add_argument("--only", default="", metavar="REGEX", help="cases whose names match")
    bench.add_argument("--list", action="store_true", help="print the cases and their work, and exit")
    bench.add_argument("--quick", action="store_true", help="the smallest case of each group, fewer rounds")
    bench.add_argument("--device", choices=("cpu", "cuda"), default="", help="default: the first usable GPU")
    bench.add_argument(
        "--peer",
        default="",
        metavar="MODULES",
        help="also time these: cudnn, torch or cudnn,torch; for fused cases also bare, the unfused case; "
        "for blocks torch, eager or compiled",
    )
    tiles = "instead, compare the selected tiles with the best ones"
    bench.add_argument("--tiles", action="store_true", help=tiles)
    families = "instead, check whether other kernel families are faster than the selected ones"
    bench.add_argument("--families", action="store_true", help=families)
    predicted = "instead, compare predicted and measured times, of --from if given; without a GPU, an H200's"
    bench.add_argument("--predict", action="store_true", help=predicted)
    bench.add_argument("--csv", type=Path, help="write the table to this file")
    bench.add_argument("--svg", type=Path, help="write the roofline plot to this file")
    shown = "show tables that --csv wrote instead of measuring; must follow the groups"
    bench.add_argument("--from", dest="tables", nargs="+", type=Path, default=(), metavar="CSV", help=shown)
    return bench


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark. Returns the exit status."""
    options = suite.Options(**vars(parser().parse_args(arguments)))
    return exit_status(lambda: suite.run(options))


if __name__ == "__main__":
    sys.exit(main())

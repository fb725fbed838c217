"""The `weft` command, also available as `python -m weft`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

DESCRIPTION = "Weft: deep-learning primitives as graphs, planned and run on CPUs and NVIDIA GPUs."
EPILOG = """examples:
  python -m weft demo                    train a small network, compare attention, draw the graphs
  python -m weft doctor                  is everything installed, and does it compute?
  python -m weft explain plan.weft       what a saved plan (Graph.serialize) does, step by step
  python -m weft support                 which kernel family serves which operation
  python -m weft bench --quick           times of some cases, and the share of what the device could do
"""


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    main_parser = argparse.ArgumentParser(
        "weft" if Path(sys.argv[0]).name == "weft" else "python -m weft",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    main_parser.add_argument("--version", action="store_true", help="print the version and stop")
    commands = main_parser.add_subparsers(dest="command", metavar="command")

    demo = commands.add_parser("demo", help="train a small network through graphs, and show what ran")
    demo.add_argument("--out", type=Path, default=Path("build/demo"), help="folder for pictures (build/demo)")
    demo.add_argument("--epochs", type=int, default=None, help="passes over the training images")

    doctor = commands.add_parser("doctor", help="examine the installation, and say how to repair it")
    doctor.add_argument("--json", action="store_true", help="print JSON")

    explain = commands.add_parser("explain", help="print what a saved plan does")
    explain.add_argument("file", type=Path, help="the bytes that Graph.serialize gave")
    explain.add_argument("--all", action="store_true", help="name every kernel family that declined")
    explain.add_argument("--svg", type=Path, help="also draw the plan into this file")
    explain.add_argument("--device", help="what it was made for, as sm_90, when that is not here")

    support = commands.add_parser("support", help="print which kernel family serves which operation")
    support.add_argument("--markdown", action="store_true", help="as docs/support.md has it")

    _add_bench(
        commands.add_parser("bench", help="time cases of networks' sizes, under the device's roofline")
    )
    return main_parser


def _add_bench(bench: argparse.ArgumentParser) -> None:
    """Adds the options of `bench`."""
    bench.add_argument(
        "groups",
        nargs="*",
        metavar="group",
        help="matmul, conv, fused, norm, mem, rows, move, pool, sdpa, blocks (all); or models: networks that "
        "torch trains",
    )
    bench.add_argument("--only", default="", metavar="REGEX", help="cases whose names match")
    bench.add_argument("--list", action="store_true", help="print the cases and their work, and stop")
    bench.add_argument("--quick", action="store_true", help="the smallest case of each group, fewer rounds")
    bench.add_argument("--device", choices=("cpu", "cuda"), default="", help="default: the first usable GPU")
    bench.add_argument(
        "--peer",
        default="",
        metavar="MODULES",
        help="time these beside: cudnn, torch or cudnn,torch; bare: of fused cases the bare product; "
        "of blocks torch, eager or compiled",
    )
    tiles = "instead, how near the chosen tiles come to the best ones"
    bench.add_argument("--tiles", action="store_true", help=tiles)
    families = "instead, whether other kernel families would be faster than the chosen ones"
    bench.add_argument("--families", action="store_true", help=families)
    predicted = "instead, predicted beside measured times: --from tables, else here; without a GPU, an H200's"
    bench.add_argument("--predict", action="store_true", help=predicted)
    bench.add_argument("--csv", type=Path, help="write the table into this file")
    bench.add_argument("--svg", type=Path, help="draw the roofline into this file")
    shown = "show tables that --csv wrote instead of measuring; groups stand before it"
    bench.add_argument("--from", dest="tables", nargs="+", type=Path, default=(), metavar="CSV", help=shown)


def _explain(file: Path, svg: Path | None, device: str | None, all_refusals: bool) -> int:
    import weft
    from weft.explain import explain_text
    from weft.plot import plot

    plan = weft.Graph(device=device).deserialize(file.read_bytes()).plan
    print(explain_text(plan.report, all_refusals=all_refusals))
    if svg is not None:
        plot(plan, svg)
        print(f"\npicture: {svg}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Returns the exit status: 0 for success, 1 for failure, 2 for a usage error."""
    given = parser().parse_args(arguments)
    if given.version:
        import weft

        print(weft.__version__)
        return 0
    try:
        return _run(given)
    except BrokenPipeError:  # the reader closed the pipe, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if not _is_expected(error):
            raise
        print(f"{error}\n`python -m weft doctor` checks the installation.", file=sys.stderr)
        return 1


def _is_expected(error: Exception) -> bool:
    """True if the message is enough for a user. Errors are recognized by name because the bindings may be
    missing."""
    return isinstance(error, OSError) or any(kind.__name__ == "WeftError" for kind in type(error).__mro__)


def _run(given: argparse.Namespace) -> int:
    if given.command == "doctor":
        from weft import doctor

        return doctor.run(given.json)
    if given.command == "demo":
        missing = [name for name in ("numpy", "sklearn") if find_spec(name) is None]
        if missing:
            print(f"demo: it needs {' and '.join(missing)}. pip install 'weft[demo]'", file=sys.stderr)
            return 1
        from weft import demo

        return demo.run(given.out, given.epochs or demo.EPOCHS)
    if given.command == "explain":
        return _explain(given.file, given.svg, given.device, given.all)
    if given.command == "support":
        from weft import support

        print(support.markdown() if given.markdown else support.text(), end="" if given.markdown else "\n")
        return 0
    if given.command == "bench":
        from weft import bench

        words = {name: value for name, value in vars(given).items() if name not in ("command", "version")}
        return bench.run(bench.Options(**words))
    parser().print_help()
    return 0


if __name__ == "__main__":
    sys.exit(main())

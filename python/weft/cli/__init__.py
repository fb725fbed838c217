"""The `weft` command, also available as `python -m weft`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

DESCRIPTION = "Weft: deep-learning primitives as graphs, planned and run on CPUs and NVIDIA GPUs."
EPILOG = """examples:
  python -m weft demo                    train a small network, compare attention, draw the graphs
  python -m weft doctor                  check that everything is installed and computes correctly
  python -m weft explain plan.weft       show the steps of a saved plan (Graph.serialize)
  python -m weft bench plan.weft         time a saved plan and each of its steps
  python -m weft support                 list the kernel family that runs each operation
  python -m weft cudnn run train.py      run a Python program with Weft's libcudnn.so.9 (docs/dropin.md)
"""


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    main_parser = argparse.ArgumentParser(
        "weft" if Path(sys.argv[0]).name == "weft" else "python -m weft",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    main_parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = main_parser.add_subparsers(dest="command", metavar="command")

    demo = commands.add_parser("demo", help="train a small network with graphs, and show the plans")
    demo.add_argument("--out", type=Path, default=Path("build/demo"), help="folder for figures (build/demo)")
    demo.add_argument("--epochs", type=int, default=None, help="passes over the training images")

    doctor = commands.add_parser("doctor", help="check the installation, and show how to repair it")
    doctor.add_argument("--json", action="store_true", help="print JSON")

    explain = commands.add_parser("explain", help="print the steps of a saved plan")
    explain.add_argument("file", type=Path, help="the output of Graph.serialize")
    explain.add_argument("--all", action="store_true", help="list every kernel family that declined")
    explain.add_argument("--svg", type=Path, help="also write a diagram of the plan to this file")
    explain.add_argument("--device", help="the plan's device if it is not present, such as sm_90")

    bench = commands.add_parser("bench", help="time a saved plan on this machine")
    bench.add_argument("file", type=Path, help="the output of Graph.serialize")

    support = commands.add_parser("support", help="print the kernel family that runs each operation")
    support.add_argument("--markdown", action="store_true", help="in the format of docs/support.md")

    cudnn = commands.add_parser("cudnn", help="run a program with Weft's libcudnn.so.9")
    actions = cudnn.add_subparsers(dest="action", metavar="action", required=True)
    program = actions.add_parser("run", help="run Python with the library preloaded")
    program.add_argument("program", nargs="*", help="a program, or -m module, and arguments")
    actions.add_parser("path", help="print the path of the library")

    return main_parser


def _cudnn(given: argparse.Namespace) -> int:
    from weft import dropin

    if given.action == "path":
        print(dropin.library())
    elif given.program:
        dropin.run(given.program)
    else:
        print("cudnn run: no program was given. Give its path, or -m and a module.", file=sys.stderr)
        return 2
    return 0


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
    words = list(sys.argv[1:] if arguments is None else arguments)
    # All words after "cudnn run" belong to the program, also options, which argparse would read.
    is_program = words[:2] == ["cudnn", "run"] and words[2:] not in (["-h"], ["--help"])
    given = parser().parse_args(words[:2] if is_program else words)
    if is_program:
        given.program = words[2:]
    if given.version:
        import weft

        print(weft.__version__)
        return 0
    return exit_status(lambda: _run(given))


def exit_status(run: Callable[[], int]) -> int:
    """The exit status of a command; errors that a user can act on are printed without a traceback."""
    try:
        return run()
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
        from weft.cli import doctor

        return doctor.run(given.json)
    if given.command == "demo":
        missing = [name for name in ("numpy", "sklearn") if find_spec(name) is None]
        if missing:
            print(f"demo: it needs {' and '.join(missing)}. pip install 'weft[demo]'", file=sys.stderr)
            return 1
        from weft.cli import demo

        return demo.run(given.out, given.epochs or demo.EPOCHS)
    if given.command == "explain":
        return _explain(given.file, given.svg, given.device, given.all)
    if given.command == "support":
        from weft.cli import support

        print(support.markdown() if given.markdown else support.text(), end="" if given.markdown else "\n")
        return 0
    if given.command == "cudnn":
        return _cudnn(given)
    if given.command == "bench":
        from weft.cli import bench

        print(bench.text(given.file))
        return 0
    parser().print_help()
    return 0

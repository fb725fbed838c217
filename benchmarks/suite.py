"""`python -m benchmarks`: cases with the sizes of real networks, each checked and then timed, next to another
module if one is named; prints a table, and writes CSV and roofline plots of the device."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import weft
from weft.devices import DeviceProperties
from weft.errors import BadParameterError
from weft.explain import amount, table

from benchmarks import cases, families, predict, roofline, tables, tiles, training, whole
from benchmarks.case import GROUPS, Case
from benchmarks.machines import QUICK_ROUNDS, ROUNDS, machine
from benchmarks.measure import Bench
from benchmarks.tables import CEILINGS, Row, Table


@dataclass
class Options:
    """The command-line options."""

    groups: Sequence[str] = ()
    only: str = ""
    device: str = ""
    peer: str = ""
    quick: bool = False
    list: bool = False
    tiles: bool = False
    families: bool = False
    predict: bool = False
    csv: Path | None = None
    svg: Path | None = None
    tables: Sequence[Path] = ()


def run(options: Options) -> int:
    """Runs the benchmark; the exit status is 1 if a case has no time for Weft."""
    if options.predict:
        return _predict(options)
    if options.tables:
        return _show(options)
    if tuple(options.groups) == ("models",):
        return _measure_models(options)
    kind = options.device or weft.create_handle().device.name.lower()
    chosen = select(cases.gpu() if kind == "cuda" else cases.cpu(), options)
    if options.list:
        print("\n".join(listing(chosen.values())))
        return 0
    if options.tiles or options.families:
        return _measure_choice(kind, chosen, options)
    if {case.group for case in chosen.values()} == {"blocks"}:
        return _measure_blocks(kind, chosen, options)
    return _measure(kind, chosen, options)


def select(known: Mapping[str, Case], options: Options) -> dict[str, Case]:
    """The cases of the selected groups whose names match; quick: the smallest of each group."""
    for group in options.groups:
        if group not in GROUPS:
            raise BadParameterError(f"bench: there is no group '{group}'. Use some of {', '.join(GROUPS)}.")
    pattern = _pattern(options)
    chosen = {
        name: case
        for name, case in known.items()
        if case.group in (options.groups or GROUPS) and pattern.search(name)
    }
    if not chosen:
        raise BadParameterError("bench: no case matches. --list without other options shows all cases.")
    if options.quick:
        smallest: dict[str, Case] = {}
        for case in sorted(chosen.values(), key=lambda case: case.bytes):
            smallest.setdefault(case.group, case)
        chosen = {name: case for name, case in chosen.items() if smallest[case.group] is case}
    return chosen


def _pattern(options: Options) -> re.Pattern[str]:
    """The pattern for names."""
    try:
        return re.compile(options.only)
    except re.error as error:
        raise BadParameterError(
            f"bench: --only '{options.only}' is not a valid regular expression: {error}. Correct it."
        ) from None


def listing(chosen: Iterable[Case]) -> list[str]:
    """The cases and their work."""
    rows = [["case", "FLOP", "bytes", "FLOP/byte"]]
    for case in chosen:
        rows.append([case.name, amount(case.flops), amount(case.bytes), f"{case.intensity:.3g}"])
    return table(rows, right=(1, 2, 3))


def _measure(kind: str, chosen: Mapping[str, Case], options: Options) -> int:
    """Prints and writes each row as soon as it is measured, so that a later failure leaves the table so
    far."""
    peers = [name for name in options.peer.split(",") if name]
    bench = Bench(machine(kind), peers, QUICK_ROUNDS if options.quick else ROUNDS)
    peer = peers[0] if len(peers) == 1 else "peer" if peers else ""
    print(bench.device)
    bench.compile(chosen.values())
    rows = bench.ceilings()
    roof = tables.roof_of(rows, chosen)
    lines = Table(chosen, roof, peer)
    print("\n".join([*tables.roof_lines(roof), "", lines.header()]), flush=True)
    for case in chosen.values():
        rows.append(bench.row(case))
        print("\n".join([lines.line(rows[-1], case), *(f"  {note}" for note in rows[-1].notes)]), flush=True)
        if options.csv:
            tables.write_csv(options.csv, rows)
    print("\n".join(["", *tables.summary(rows, chosen, peer)]).rstrip())
    _draw(rows, chosen, roof, options.svg)
    return int(any(row.weft is None for row in rows if row.case in chosen))


def _measure_choice(kind: str, chosen: Mapping[str, Case], options: Options) -> int:
    """Prints how close the selected tiles, or families, are to the best ones."""
    what: Any = tiles if options.tiles else families
    if options.peer or options.svg:
        word = "tiles" if options.tiles else "families"
        raise BadParameterError(f"bench: --{word} times only Weft. Leave --peer and --svg out.")
    bench = Bench(machine(kind), (), QUICK_ROUNDS if options.quick else ROUNDS)
    print("\n".join([bench.device, what.header()]), flush=True)
    bench.compile(chosen.values(), what.build)
    choices = []
    for case in chosen.values():
        choices.append(what.measure(bench, case))
        print(what.line(choices[-1]), flush=True)
        if options.csv:
            what.write_csv(options.csv, choices, bench.device, bench.date)
    print("\n".join(["", what.summary(choices)]))
    return 0


def _measure_blocks(kind: str, chosen: Mapping[str, Case], options: Options) -> int:
    """Prints the plans of whole blocks and torch's times."""
    if options.svg:
        raise BadParameterError("bench: blocks have no roofline. Leave --svg out.")
    bench = Bench(machine(kind), (), QUICK_ROUNDS if options.quick else ROUNDS)
    blocks = whole.Blocks(bench, options.peer)
    print("\n".join([bench.device, whole.header(chosen)]), flush=True)
    bench.compile(chosen.values())
    measured = []
    for case in chosen.values():
        measured.append(blocks.measure(case))
        print("\n  ".join([whole.line(measured[-1], chosen), *measured[-1].notes]), flush=True)
        if options.csv:
            whole.write_csv(options.csv, measured, blocks.device, bench.date)
    print("\n".join(["", *whole.summary(measured)]).rstrip())
    return int(any(it.weft is None for it in measured))


def _measure_models(options: Options) -> int:
    """Prints training steps of whole networks and torch's times."""
    if options.svg or options.tiles or options.families or options.quick:
        raise BadParameterError(
            "bench: models take --only, --list, --device, --peer and --csv. Leave the other options out."
        )
    if options.peer not in training.PEERS:
        raise BadParameterError(
            f"bench: --peer {options.peer} cannot train models. Use torch, which is eager and compiled, or "
            "one of the two."
        )
    chosen = [name for name in training.names() if _pattern(options).search(name)]
    if options.list:
        print("\n".join(chosen))
        return 0
    bench = Bench(machine(options.device or weft.create_handle().device.name.lower()), (), QUICK_ROUNDS)
    device = f"{bench.device}, {training.version()}"
    print("\n".join([device, training.header()]), flush=True)
    measured = []
    for name in chosen:
        measured.append(training.measure(name, bench.machine.kind, training.PEERS[options.peer]))
        print("\n  ".join([training.line(measured[-1]), *measured[-1].notes]), flush=True)
        if options.csv:
            training.write_csv(options.csv, measured, device, bench.date)
    print("\n".join(["", *training.summary(measured)]).rstrip())
    return int(any(it.notes for it in measured))


def _predict(options: Options) -> int:
    """Prints predicted and measured times: those of the given tables, otherwise measured here and now;
    without a GPU, those of this repository's tables."""
    if options.peer or options.svg or options.list or options.tiles or options.families:
        raise BadParameterError(
            "bench: --predict uses only Weft's own times; it excludes --peer, --svg, --list, "
            "--tiles and --families. Leave them or it out."
        )
    kind = options.device or weft.create_handle().device.name.lower()
    rows: Iterable[Row]
    if options.tables or (kind == "cpu" and not options.device):
        device = weft.compile_for(predict.TABLES_ARCH)
        measured = predict.rows_of(options.tables or predict.committed_tables())
        chosen = select({name: case for name, case in cases.gpu().items() if name in measured}, options)
        rows = (measured[name] for name in chosen)
    else:
        device = DeviceProperties(handle=weft.create_handle(kind))
        bench = Bench(machine(kind), (), QUICK_ROUNDS if options.quick else ROUNDS)
        chosen = select(cases.gpu() if kind == "cuda" else cases.cpu(), options)
        bench.compile(chosen.values())
        rows = map(bench.row, chosen.values())
    print("\n".join([repr(device), predict.header(chosen)]), flush=True)
    predictions, has_all = [], True
    for row in rows:
        has_all = has_all and row.weft is not None
        if row.weft is None:
            print("\n  ".join([f"{row.case}: no time", *row.notes]), flush=True)
            continue
        predictions.append(predict.predict(chosen[row.case], row, device))
        print(predict.line(predictions[-1], chosen), flush=True)
    print("\n".join(["", *predict.summary(predictions)]).rstrip())
    if options.csv:
        predict.write_csv(options.csv, predictions)
    return 0 if has_all else 1


def _show(options: Options) -> int:
    """Shows tables that were measured earlier, on any machine."""
    if options.csv or options.peer or options.list or options.tiles or options.families:
        raise BadParameterError(
            "bench: --from shows tables; it excludes --csv, --peer, --list, --tiles and --families. "
            "Leave them or it out."
        )
    rows = [row for path in options.tables for row in tables.read_csv(path)]
    known = cases.cpu() | cases.gpu()
    named = {row.case: known[row.case] for row in rows if row.case in known}
    strange = [row.case for row in rows if row.case not in known and row.case not in CEILINGS]
    if not named:
        raise BadParameterError("bench: --from has no case that Weft knows. --list shows them.")
    chosen = select(named, options)
    roof = tables.roof_of(rows, chosen)
    lines = Table(chosen, roof, "peer")
    print("\n".join([*tables.roof_lines(roof), "", lines.header()]))
    selected = [row for row in rows if row.case in chosen]
    print("\n".join(lines.line(row, chosen[row.case]) for row in selected))
    print("\n".join(["", *tables.summary(selected, chosen, "peer")]).rstrip())
    if strange:
        print(f"omitted, because they are not defined here: {', '.join(strange)}", file=sys.stderr)
    _draw(selected, chosen, roof, options.svg)
    return 0


def _draw(rows: Sequence[Row], chosen: Mapping[str, Case], roof: tables.Roof, path: Path | None) -> None:
    if path is not None:
        path.write_text(roofline.picture(rows, chosen, roof), encoding="utf-8")
        print(f"picture: {path}")

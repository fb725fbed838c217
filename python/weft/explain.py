"""Formats the library's JSON reports: a plan as a table, with the families and engines that declined and why.
Depends only on the keys of the report, not on graphs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from weft.arguments import counted

WIDTH = 110
# Below this number of operations per byte moved, a step is memory-bound on every current chip.
BALANCE = 8.0
_PREFIXES = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1.0, "m": 1e-3, "µ": 1e-6, "n": 1e-9}


def amount(value: float, unit: str = "") -> str:
    """A number with three significant digits and a unit prefix.

    >>> amount(0.0000015, "s"), amount(1234567, "FLOP"), amount(0, "B")
    ('1.5 µs', '1.23 MFLOP', '0 B')
    """
    for prefix, factor in _PREFIXES.items():
        digits = f"{value / factor:.3g}"
        if float(digits) >= 1:
            return f"{float(digits):g} {prefix}{unit}".rstrip()
    return f"{value / 1e-9:.3g} n{unit}" if value > 0 else f"0 {unit}".rstrip()


def short_name(label: str) -> str:
    """The name of an operation, from its label.

    >>> short_name("matmul 'fc'"), short_name("matmul")
    ('fc', 'matmul')
    """
    _, quote, name = label.partition(" '")
    return name.rstrip("'") if quote and name != "'" else label


def table(rows: Sequence[Sequence[str]], right: Iterable[int] = (), indent: str = "") -> list[str]:
    """Lines of text with aligned columns; `right` lists the right-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    at_right = set(right)
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in at_right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def bottleneck(flops: float, moved: float) -> str:
    """The limiting resource of a step, by its operations per byte moved."""
    return "memory" if flops < BALANCE * moved else "compute"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ") or [indent]


def _step_rows(steps: Sequence[Mapping[str, Any]], measured: Sequence[float]) -> list[list[str]]:
    times = ["predicted", "measured"] if measured else ["predicted"]
    rows = [["step", "family", "operations fused", "FLOP", "bytes", *times, "bound"]]
    for number, step in enumerate(steps, 1):
        names = ", ".join(short_name(operation["name"]) for operation in step["operations"])
        seconds = [step["seconds"], *measured[number - 1 : number]]
        numbers = [amount(step["flops"]), amount(step["bytes"]), *(amount(each, "s") for each in seconds)]
        waits_for = bottleneck(step["flops"], step["bytes"])
        family = " ".join([step["family"], *step["relaxations"]])
        rows.append([str(number), family, _cut(names, 44), *numbers, waits_for])
    return rows


def _details(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """The details that steps report about their kernels; identical ones are listed once."""
    details: dict[str, list[str]] = {}
    for number, step in enumerate(steps, 1):
        if step["detail"]:
            details.setdefault(step["detail"], []).append(str(number))
    named = [f"step {', '.join(where)}: {words}" for words, where in details.items()]
    return [line for words in named for line in _wrapped(words, "  ")]


def _views(tensors: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tensors stored in the memory of another tensor, with their positions."""
    names = {tensor["uid"]: tensor["name"] or f"uid {tensor['uid']}" for tensor in tensors}
    lines = []
    for tensor in tensors:
        if tensor["memory"] != tensor["uid"]:
            dims, strides = (json.dumps(tensor[key], separators=(",", ":")) for key in ("dims", "strides"))
            location = f"{names[tensor['memory']]} starting at byte {tensor['offset']}"
            lines += _wrapped(f"{names[tensor['uid']]} {dims} is {location}, strides {strides}", "  ")
        elif tensor["parts"]:
            parts = ", ".join(names[uid] for uid in tensor["parts"])
            lines += _wrapped(f"{names[tensor['uid']]} is read in place from its parts: {parts}", "  ")
    return lines


def _free(tensors: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tensors stored in a type that the user did not set."""
    stored: dict[str, list[str]] = {}
    for tensor in tensors:
        if tensor["free"] and tensor["workspace_offset"] >= 0:
            stored.setdefault(tensor["type"], []).append(tensor["name"] or f"uid {tensor['uid']}")
    lines = [f"{', '.join(names)}: stored as {type_}, exact within a step" for type_, names in stored.items()]
    return [line for words in lines for line in _wrapped(words, "  ")]


def _declined(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each refusal once, with the steps to which it applies; the text has "matmul" for "matmul 'fc'"."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for number, step in enumerate(steps, 1):
        for refusal in step["declined"]:
            reason = _without_names(refusal["reason"], step)
            reasons.setdefault((refusal["family"], reason), []).append(str(number))
    return [
        line
        for (family, reason), where in reasons.items()
        for line in _wrapped(f"{family} (step {', '.join(where)}): {reason}", "  ")
    ]


def _without_names(reason: str, step: Mapping[str, Any]) -> str:
    for operation in step["operations"]:
        reason = reason.replace(operation["name"], operation["name"].partition(" '")[0])
    return reason


def _subject(reason: str, kinds: Collection[str]) -> tuple[str, str]:
    """Splits a refusal into the operation that it begins with, if the rest needs that subject, and the
    rest."""
    kind, colon, sentence = reason.partition(": ")
    if colon and kind in kinds:
        return "", sentence
    kind, space, sentence = reason.partition(" ")
    return (kind, space + sentence) if kind in kinds else ("", reason)


def _grouped(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each sentence once for all operations to which it applies, with its family or the number of
    families."""
    sentences: dict[str, dict[str, set[int]]] = {}
    subjects: dict[str, dict[str, None]] = {}  # the kinds of operations to which a sentence applies
    for number, step in enumerate(steps, 1):
        kinds = {operation["name"].partition(" '")[0] for operation in step["operations"]}
        for refusal in step["declined"]:
            kind, sentence = _subject(_without_names(refusal["reason"], step), kinds)
            sentences.setdefault(sentence, {}).setdefault(refusal["family"], set()).add(number)
            subjects.setdefault(sentence, {})[kind] = None
    lines = []
    for bare, families in sentences.items():
        sentence = "/".join(subjects[bare]) + bare
        where = f"(step {', '.join(map(str, sorted(set.union(*families.values()))))})"
        if len(families) == 1:
            lines += _wrapped(f"{next(iter(families))} {where}: {sentence}", "  ")
        else:
            lines += _wrapped(
                f"{sentence.rstrip('.')}: {counted(len(families), 'family', 'families')} {where}", "  "
            )
    return lines


def _engines(support: Sequence[Mapping[str, Any]], chosen: str) -> list[str]:
    """The answers of the other engines. Names begin with the device; engines of other devices are omitted."""
    lines, device = [], chosen.partition(".")[0]
    for answer in support:
        if answer["engine"] == chosen or answer["engine"].partition(".")[0] != device:
            continue
        if answer["supported"]:
            count = len(answer["families"])
            steps = counted(count, "step")
            text = f"{answer['engine']}: supported, predicted {amount(answer['seconds'], 's')} in {steps}"
        else:
            text = f"{answer['engine']}: {answer['reason']}"
        lines += _wrapped(text, "  ")
    return lines


def _workspace(report: Mapping[str, Any]) -> str:
    """The workspace in bytes, and the size that the largest step needs if that is smaller."""
    total, least = report["workspace_bytes"], report["least_workspace_bytes"]
    at_least = f", at least {amount(least, 'B')}" if least < total else ""
    return f"workspace {amount(total, 'B')}{at_least}"


def explain_text(
    report: Mapping[str, Any],
    support: Sequence[Mapping[str, Any]] = (),
    measured: float | Sequence[float] = (),
    brief: bool = False,
    all_refusals: bool = False,
) -> str:
    """A plan as text.

    Args:
        report: the plan's report, as returned by Plan.report.
        support: every engine's answer, as returned by Graph.support.
        measured: measured seconds of one execution, or of each step, shown next to the predictions.
        brief: omit the sections below the table.
        all_refusals: list every family that declined by name, instead of counting those with the same reason.
    """
    device, steps = report["device"], report["steps"]
    count = device["threads"]  # on a CPU
    threads = f", {counted(count, 'thread')}" if count else ""
    each = () if isinstance(measured, float) else tuple(measured)
    total = measured if isinstance(measured, float) else sum(each)
    timed = f" · measured {amount(total, 's')}" if total else ""
    lines = [f"{report['graph']} on {report['engine']} ({report['tag']})"]
    lines += _wrapped(report["engine_doc"], "  ")
    lines += [
        f"  {device['kind']}:{device['ordinal']} {device['name']}{threads}",
        f"  predicted {amount(report['seconds'], 's')}{timed} · {amount(report['flops'], 'FLOP')} · "
        f"{amount(report['bytes'], 'B')} moved · {_workspace(report)}",
        "",
        *table(_step_rows(steps, each), right=(0, 3, 4, 5, 6) if each else (0, 3, 4, 5), indent="  "),
    ]
    sections = {
        "kernel details": _details(steps),
        "views (no kernels)": _views(report["tensors"]),
        "intermediates whose type is unset": _free(report["tensors"]),
        "families that declined": _declined(steps) if all_refusals else _grouped(steps),
        "other engines": _engines(support, report["engine"]),
    }
    for heading, section in sections.items():
        lines += ["", heading, *section] if section and not brief else []
    return "\n".join(lines)

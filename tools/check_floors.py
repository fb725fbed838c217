"""The floors of the backend: a file includes its own floor and floors below, and nothing sideways.

    5 api  >  4 plan  >  3 engines  >  2 graph | runtime  >  1 base

The two pillars of floor 2 never include each other, and only a file of engines/ may see both. Prints each
offence; exits 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

FLOORS = {"base": 1, "graph": 2, "runtime": 2, "engines": 3, "plan": 4, "api": 5}
PILLARS = {"graph", "runtime"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def offences(backend: Path) -> Iterator[str]:
    """One sentence for each include that breaks the floor order."""
    for file in sorted(backend.rglob("*.[ch]")):
        path = file.relative_to(backend)
        home, seen = path.parts[0], {path.parts[0]}
        if home not in FLOORS:
            yield f"{path}: {home} is no floor. Put the file under one of {', '.join(FLOORS)}."
            continue
        for include in INCLUDE.findall(file.read_text()):
            target = include.split("/")[0]
            if target == "weft":
                continue
            if target not in FLOORS or "/" not in include:
                yield f'{path}: includes "{include}". Write the path from backend/, as "{home}/{include}".'
            elif target != home and FLOORS[target] >= FLOORS[home]:
                yield f'{path} (floor {FLOORS[home]}, {home}) includes "{include}" (floor {FLOORS[target]}).'
            seen.add(target)
        if seen >= PILLARS and home not in {"engines", *PILLARS}:
            yield f"{path}: sees both graph/ and runtime/, as only engines/ may. Take one through engines/."


if __name__ == "__main__":
    found = list(offences(Path(__file__).parents[1] / "backend"))
    print("\n".join(found), end="\n" if found else "")
    sys.exit(bool(found))

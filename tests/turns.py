"""Subsets of the cases that take minutes to compile or to emulate. The same commit always runs the same
subset; the C tests select theirs in the same way (tests/c/harness.h).

    WEFT_TEST_DAY=3 make test    another subset (default: 0)
    WEFT_TEST_ALL=1 make test    all cases
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

DAY = int(os.environ.get("WEFT_TEST_DAY", "0"))
ALL = bool(os.environ.get("WEFT_TEST_ALL"))

T = TypeVar("T")


def of_today(items: Sequence[T], parts: int) -> Sequence[T]:
    """Every parts-th item, starting at number DAY."""
    return items if ALL else items[DAY % parts :: parts]

"""What tests leave for other days, as compiling and emulating take minutes: in a few days all is seen. The C
tests do the same (tests/c/cuda_family.h).

    WEFT_TEST_DAY=20420 make test    what that day's tests had
    WEFT_TEST_ALL=1 make test        all of it
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TypeVar

DAY = int(os.environ.get("WEFT_TEST_DAY", time.time() // 86400))
ALL = bool(os.environ.get("WEFT_TEST_ALL"))

T = TypeVar("T")


def of_today(items: Sequence[T], parts: int) -> Sequence[T]:
    """Every parts-th, others each day."""
    return items if ALL else items[DAY % parts :: parts]

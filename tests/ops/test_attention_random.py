"""A sample of the generated cases of attention; tests/attention_cases.py has them all."""

from __future__ import annotations

import attention_cases
import pytest

RAGGED = range(attention_cases.RAGGED, attention_cases.RAGGED + 8)


@pytest.mark.parametrize("number", [*range(0, 120, 10), *RAGGED])
def test_a_generated_case(number: int) -> None:
    assert attention_cases.run(number) == "", str(attention_cases.make(number))

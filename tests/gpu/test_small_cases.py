"""Every kernel on a small graph, against the CPU: the cases that sanitizers watch."""

from __future__ import annotations

import argparse

import checks
import pytest
import small_cases
import weft

torch = checks.need_gpu()
if torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("the families that cases are for serve compute capability 9.0", allow_module_level=True)


@pytest.mark.parametrize("name", small_cases.CASES)
def test_small_case(name: str) -> None:
    case = small_cases.CASES[name]
    made = small_cases.build(case, case.engine, handle=weft.create_handle("cuda"))
    given = argparse.Namespace(plan=False, watched_by="", shift=0, any_kernel=False, runs=3)
    assert small_cases.check(made, case, given) == []

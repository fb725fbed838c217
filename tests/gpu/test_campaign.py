# SPDX-License-Identifier: Apache-2.0
"""The cases of the campaign (tests/campaign.py) that were wrong once."""

from __future__ import annotations

from pathlib import Path

import checks
import pytest

checks.need_gpu()
campaign, campaign_cases = pytest.importorskip("campaign"), pytest.importorskip("campaign_cases")

LINES = (Path(__file__).parents[1] / "campaign_seeds.txt").read_text().splitlines()
KEPT = [line.split(" ", 2) for line in LINES if not line.startswith("#")]


@pytest.mark.parametrize(("number", "work", "description"), KEPT)
def test_case_that_was_wrong_once(number: str, work: str, description: str) -> None:
    case = campaign_cases.draw(int(number), float(work))
    assert str(case).startswith(description), "the generator draws another case now: find the old one again"
    assert campaign.run(case)[0] == []

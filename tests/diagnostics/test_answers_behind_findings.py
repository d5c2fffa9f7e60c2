"""The answers that a finding points at show it, in simulated runs whose answers were drawn with the fault."""

from __future__ import annotations

import pytest
from benchmarks.faultbench.selections import SHOWS, judge

from greenward.diagnostics.findings import FINDINGS


def test_each_finding_with_a_selection_of_its_own_is_proven():
    assert SHOWS.keys() == {name for name, one in FINDINGS.items() if one.selection}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWS)
def test_the_selected_answers_show_the_finding_more_than_the_others(name):
    found = [one for seed in range(2) if (one := judge(name, seed)) is not None]
    assert found and all(one.holds for one in found), found

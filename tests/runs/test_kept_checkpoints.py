"""Which checkpoints are kept: the newest, older ones at logarithmic distances, and those that are pinned."""

from __future__ import annotations

import pytest

from greenward.runs.checkpoints import _spaced, pin_checkpoint_before, pinned_checkpoints, save_checkpoint
from greenward.runs.directory import RunDirectory
from greenward.runs.reading import steps_in


@pytest.fixture
def run(tmp_path):
    with RunDirectory.create(tmp_path / "run", {"name": "run"}) as made:
        yield made


def save(run, steps, **options):
    for step in steps:
        save_checkpoint(run, step, lambda folder: (folder / "x").write_text("x"), **options)
    return [step for step, _ in steps_in(run.checkpoints)]


def test_older_checkpoints_are_kept_at_growing_distances(run):
    kept = save(run, range(20, 420, 20), keep=2, spaced=3)
    assert kept[-2:] == [380, 400]
    ages = [400 - step for step in kept[:-2]]
    assert len(ages) <= 3 and ages == sorted(ages, reverse=True) and max(ages) >= 80


def test_without_spacing_the_newest_alone_are_kept(run):
    assert save(run, range(20, 220, 20), keep=2) == [180, 200]


def test_a_pinned_checkpoint_outlives_the_others(run):
    save(run, [20, 40, 60], keep=2)
    assert pin_checkpoint_before(run, 55) == 40
    assert save(run, [80, 100, 120], keep=2) == [40, 100, 120]
    assert pinned_checkpoints(run.path) == [40]
    assert pin_checkpoint_before(run, 10) is None


def test_spacing_of_nothing_is_nothing():
    assert _spaced([], 100, 3) == [] and _spaced([80], 100, 0) == []

"""Logs of one training in a folder are listed once, and those of several each by itself."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from browsing import Watched
from made_runs import Served, get, serving

from greenward.ui.columns import Metrics
from greenward.ui.logs import are_of_one_training

ROWS = 60


def values(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "reward": 0.3 + 0.005 * np.arange(ROWS) + rng.normal(0, 0.05, ROWS),
        "loss": rng.normal(0, 0.01, ROWS),
        "kl": np.abs(rng.normal(0.0005, 0.0002, ROWS)),
        "learning_rate": 1e-6 * (1 - np.arange(ROWS) / ROWS),
    }


def printed(seed: int, digits: int = 4, every: int = 1) -> str:
    """As transformers prints a row at each logging step: without the step."""
    found = values(seed)
    rows = (
        {name: f"{column[i]:.{digits}f}" for name, column in found.items()} for i in range(0, ROWS, every)
    )
    return "".join(f"{row}\n" for row in rows)


def state(seed: int, between: int = 10) -> str:
    found = values(seed)
    rows = [
        {"step": between * (i + 1), **{name: float(column[i]) for name, column in found.items()}}
        for i in range(ROWS)
    ]
    return json.dumps({"log_history": rows})


def metrics(seed: int, steps: np.ndarray, digits: int = 12) -> Metrics:
    found = Metrics()
    found.steps = steps
    at = np.arange(len(steps))
    found.values = {
        name: column[at].round(digits).astype(np.float32) for name, column in values(seed).items()
    }
    return found


@pytest.mark.parametrize("seed", range(8))
def test_logs_are_of_one_training_where_what_is_random_is_equal(seed):
    steps = np.arange(1, ROWS + 1)
    whole = metrics(seed, steps)
    assert are_of_one_training(whole, metrics(seed, steps, digits=4))
    assert are_of_one_training(whole, metrics(seed, 10 * steps, digits=4))  # one counts its rows
    assert are_of_one_training(whole, metrics(seed, steps[:20], digits=3))  # one ends early
    assert not are_of_one_training(whole, metrics(seed + 100, steps))
    assert not are_of_one_training(whole, metrics(seed + 100, 10 * steps, digits=3))


def test_what_tells_nothing_makes_no_two_logs_one():
    steps = np.arange(1, ROWS + 1)
    of = {name: values(0)[name].astype(np.float32) for name in ("learning_rate",)}
    schedule, constant, empty = Metrics(), Metrics(), Metrics()
    schedule.steps = constant.steps = steps
    schedule.values = of
    constant.values = {"reward": np.full(ROWS, 0.5, np.float32), "loss": np.full(ROWS, np.nan, np.float32)}
    for one in (schedule, constant, empty):
        assert not are_of_one_training(one, one)


def listed(served: Served) -> dict[str, dict[str, Any]]:
    end = time.monotonic() + 180
    while not (found := get(served, "/api/v1/runs"))["complete"]:
        assert time.monotonic() < end
        time.sleep(0.2)
    return {one["name"]: one for one in found["runs"]}


@pytest.mark.usefixtures("often_looked_through")
def test_one_training_is_listed_once_with_the_others_named(tmp_path, browser):
    folder = tmp_path / "outputs"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
    (folder / "a" / "trainer_state.json").write_text(state(1))
    (folder / "a" / "train.log").write_text(printed(1))
    (folder / "a" / "other.log").write_text(printed(2))
    for seed in (3, 4):
        (folder / "b" / f"seed{seed}.log").write_text(printed(seed))
    with serving([folder], None) as port:
        served = Served(folder, port, {})
        found = listed(served)
        assert found.keys() == {"a", "a/other.log", "b/seed3.log", "b/seed4.log"}
        assert found["a"]["also"] == ["a/train.log"] and not found["b/seed3.log"]["also"]
        also = get(served, f"/api/v1/runs/{found['a']['id']}")["also"]
        assert [name for _, name in also] == ["a/train.log"]
        assert get(served, f"/api/v1/runs/{also[0][0]}")["rows"] == ROWS  # it can still be looked at
        context = browser.new_context(viewport={"width": 390, "height": 900})
        watched = Watched(context.new_page(), served.url)
        page = watched.open("/", "tr.row")
        assert "also a/train.log" in page.locator("main").inner_text()
        page = watched.open(f"/r/{found['a']['id']}", ".plot canvas")
        page.get_by_role("link", name="a/train.log").click()
        page.wait_for_url(f"**/r/{also[0][0]}")
        context.close()
        assert watched.wrong == []

"""The benchmarks of self-play: their statistics against NumPy, and whole commands on a very small scale."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny_model import TINY_MODEL

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = (
    *TINY_MODEL,
    "model.device=cpu",
    "warm_start.max_steps=3",
    "warm_start.batch_size=8",
    "training.micro_batch_sequences=64",
    "sandbox={workers: 1, require: D}",
)


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Gives the module of a benchmark; with arguments, runs its command first."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def load(name: str, *arguments: object) -> Any:
        module = importlib.import_module(name)
        if arguments:
            monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
            module.main()
        return module

    return load


def test_the_variance_of_gradients_is_that_of_numpy_for_every_resample(benchmark) -> None:
    vectors_MP = np.random.default_rng(3).normal(2.0, [1.0, 5.0, 0.1], size=(6, 3))
    counts_RM = np.array([[1, 1, 1, 1, 1, 1], [0, 3, 0, 1, 2, 0]])
    found_R = benchmark("role_baselines").variance(vectors_MP @ vectors_MP.T, counts_RM)
    for found, counts_M in zip(found_R, counts_RM, strict=True):
        assert found == pytest.approx(np.repeat(vectors_MP, counts_M, axis=0).var(axis=0, ddof=1).sum())


def test_noise_is_compared_with_that_of_the_role_baseline_and_signal_is_without_bias(benchmark) -> None:
    vectors_MP = np.random.default_rng(4).normal([0.5, 0.0], 1.0, size=(50, 2))
    gram_MM = vectors_MP @ vectors_MP.T
    found = benchmark("role_baselines").compare({"role_baseline": gram_MM, "none": 4 * gram_MM}, 2)
    assert found["role_baseline"].variance == pytest.approx(vectors_MP.var(axis=0, ddof=1).mean())
    ratio = found["none"].ratio
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((4, 4, 4))
    products = [a @ b for i, a in enumerate(vectors_MP) for j, b in enumerate(vectors_MP) if i != j]
    assert found["role_baseline"].signal == pytest.approx(np.mean(products))


def test_the_gradients_of_all_fixed_policies_are_measured(benchmark, tmp_path, capsys) -> None:
    file = tmp_path / "kept.json"
    sizes = ("--batches", 12, "--games", 4, "--one-role-steps", 1, "--steps", 0, "--parallel", 1)
    benchmark("role_baselines", *SMALL, *sizes, "--json", file)
    said = capsys.readouterr().out
    assert '"shared" is "none"' in said and said.count("none (= shared)") == 3
    for measured in json.loads(file.read_text())["policies"].values():
        gradients = measured["gradients"]
        assert gradients.keys() == {"role_baseline", "none", "group_mean"}
        assert gradients["role_baseline"]["ratio"] == {"value": 1.0, "low": 1.0, "high": 1.0}
        assert gradients["none"]["variance"] > 0


def test_every_contestant_plays_its_games_in_every_round(benchmark, tmp_path, capsys) -> None:
    pytest.importorskip("transformers")
    file = tmp_path / "kept.json"
    sizes = ("--games", 6, "--repeats", 2, "--threads", 1)
    benchmark("self_play", *SMALL, "training.num_generations=4", *sizes, "--json", file)
    rounds = json.loads(file.read_text())["rounds"]
    assert len(rounds) == 2
    assert [[one["games"] for one in turns.values()] for turns in rounds] == [[8, 8, 8, 8, 1]] * 2
    assert all(one["moves_per_game"] <= 9 for turns in rounds for one in turns.values())
    said = capsys.readouterr().out
    assert "at least 50,000 games a minute" in said and "at least 120,000 games a minute" in said


@pytest.mark.slow
def test_trainings_with_every_baseline_share_the_start_of_their_seed(benchmark, tmp_path, capsys) -> None:
    trained = ("self_play.evaluation_games=6", "training.num_generations=4", "algorithm.minibatches=1")
    choice = ("--batches", 0, "--recipes", "spiral_self_play", "--steps", 1, "--seeds", 4)
    record = tmp_path / "kept.json"
    benchmark("role_baselines", *SMALL, *trained, *choice, "--output", tmp_path / "runs", "--json", record)
    (figures,) = json.loads(record.read_text())["outcomes"]["spiral_self_play"].values()
    assert figures.keys() == {"start", "role baseline", "none (= shared)", "group mean"}
    assert all(len(values) == 1 for shown in figures.values() for values in shown.values())
    (seed,) = (tmp_path / "runs").glob("*/*/seed_4")
    assert [folder.name for folder in sorted(seed.rglob("warm_start"))] == ["warm_start"]
    assert "lines lost as second player" in capsys.readouterr().out

"""The recipe of the game of code: its phases, its evaluation, and that it resumes exactly in mid-phase."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from greenward.common.errors import ConfigError, ProblemError
from greenward.recipes.run import train
from greenward.runs.reading import read_recorded_run
from greenward.tasks.code_game.environment import GENERATOR, CodeGameEnvironment
from greenward.tasks.code_game.task import CodeGameRecipe
from tiny_model import DATA

SMALL: dict[str, Any] = {
    "task": "code_game", "algorithm": {"name": "grpo"},
    "code_game": {"phases": [2, 2], "evaluation_games": 8},
    "model": {
        "shape": {"layers": 1, "hidden_size": 32, "heads": 2, "kv_heads": 2, "max_positions": 160},
        "device": "cpu",
    },
    "warm_start": {"max_steps": 40, "batch_size": 32, "learning_rate": 1e-2, "warmup_steps": 5},
    "sampling": {"max_tokens": 48},
    "training": {"max_steps": 5, "prompts_per_step": 2, "num_generations": 4, "threads": 1,
                 "checkpoint_interval_steps": 3},
    "evaluation": {"eval_interval_steps": 2},
    "sandbox": {"workers": 1, "require": "D"},
}  # fmt: skip


def steps_of(run: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "perf/"))} for row in rows]


@pytest.mark.slow
def test_a_run_cut_in_the_phase_of_the_predictor_resumes_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = CodeGameRecipe.model_validate(SMALL)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    collect, kill_at = CodeGameEnvironment.collect, None
    trained: list[set[str]] = []

    def watched(self: CodeGameEnvironment, *arguments: Any, step: int, **settings: Any) -> Any:
        if step == kill_at:
            raise KeyboardInterrupt
        found = collect(self, *arguments, step=step, **settings)
        trained.append({role for episode in found.episodes for role in episode.trained_rewards})
        return found

    monkeypatch.setattr(CodeGameEnvironment, "collect", watched)
    assert train(recipe, whole, quiet=True)
    assert [GENERATOR in roles for roles in trained] == [True, True, False, False, True]
    kill_at = 3
    with pytest.raises(KeyboardInterrupt):
        train(recipe, cut, quiet=True)
    kill_at = None
    assert train(recipe, cut, quiet=True, resume=True)
    assert steps_of(cut) == steps_of(whole)
    for step in (0, 2, 4, 5):
        name = f"evaluations/step_{step:06d}.code_game.json"
        first, second = (json.loads((run / name).read_text()) for run in (whole, cut))
        assert first["metrics"] == second["metrics"], step

    (found,) = read_recorded_run(whole, []).suites.values()
    assert {"policy_beats_start", "frozen_beats_policy", "valid"} <= found[0]["metrics"].keys()
    assert found[0]["metrics"]["policy_beats_start"] == found[0]["metrics"]["frozen_beats_policy"]
    report = (whole / "report.md").read_text().lower()
    assert "the roles take turns, 2 and 2 steps" in report
    assert "wins of the frozen generator over the predictor" in report


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"predictor": "self", "phases": [5, 5]}, "self has none"),
        ({"predictor": "interpreter", "phases": [5, 5]}, "interpreter has none"),
        ({"predictor": "league"}, "league needs phases"),
        ({"predictor": "nobody"}, "predictor"),
    ],
)
def test_predictors_that_do_not_fit_are_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CodeGameRecipe.model_validate(SMALL | {"code_game": section})


def test_a_program_and_its_prompts_that_do_not_fit_are_refused_before_training(tmp_path: Path) -> None:
    recipe = CodeGameRecipe.model_validate(SMALL | {"sampling": {"max_tokens": 80}})
    with pytest.raises(ConfigError, match="more than the model's 160 positions"):
        train(recipe, tmp_path / "run", quiet=True)
    assert not list(tmp_path.glob("run/**/metrics.jsonl"))


def test_suites_of_code_are_evaluated_beside_the_game(tmp_path: Path) -> None:
    suite = {"name": str(DATA / "held_out.json"), "max_tokens": 8}
    sizes = {
        "training": SMALL["training"] | {"max_steps": 1},
        "warm_start": None,
        "code_game": {"evaluation_games": 4},
    }
    recipe = CodeGameRecipe.model_validate(SMALL | sizes | {"evaluation": {"suites": [suite]}})
    assert train(recipe, tmp_path / "run", quiet=True)
    recorded = read_recorded_run(tmp_path / "run", [])
    assert recorded.suites.keys() == {"code_game", "held_out"}
    assert all("pass@1" in one["metrics"] for one in recorded.suites["held_out"])


def test_an_unknown_suite_is_refused_before_the_run(tmp_path: Path) -> None:
    recipe = CodeGameRecipe.model_validate(SMALL | {"evaluation": {"suites": [{"name": "mbppp"}]}})
    with pytest.raises(ProblemError, match="mbppp"):
        train(recipe, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()

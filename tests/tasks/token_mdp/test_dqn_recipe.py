"""Q-learning from its recipe to its report: training, exact resume, evaluation, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from greenward import api
from greenward.common.errors import CheckpointError, ConfigError, ProblemError
from greenward.config.loading import load_recipe
from greenward.config.recipe import language_model
from greenward.problems.catalog import load_suite
from greenward.problems.formats import save_json
from greenward.recipes.run import train
from greenward.runs.reading import read_evaluations, read_metrics, without_timing
from greenward.tasks import find_task
from greenward.tasks.token_mdp.task import PRESETS, DQNRecipe, build_agent

TINY = [
    "preset=none", "exploration.prior=false", "problems.generated=0", "algorithm.hidden_dim=16", "algorithm.batch_size=16", "algorithm.buffer_capacity=400",
    "algorithm.learning_starts=20", "training.episodes_per_step=8", "training.updates_per_step=2",
    "training.num_episodes=48", "training.checkpoint_interval_steps=3", "training.rollouts_per_step=2",
    "training.practice_per_step=0", "problems.compositions=2",
    "evaluation.samples=2", "evaluation.eval_interval_steps=3", "environment.max_steps=30", "training.threads=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dqn") / "run"
    assert api.train("dqn_code_generation", TINY, output=folder, quiet=True).finished
    return folder


def numbers(folder) -> list[dict]:
    return [without_timing(row) for row in read_metrics(folder / "metrics.jsonl").rows]


def test_a_run_has_the_files_and_figures_of_every_training(run) -> None:
    rows = numbers(run)
    assert len(rows) == 6
    assert rows[-1]["episodes"] == 48
    assert {"reward/mean", "loss", "epsilon", "td_error", "q/mean", "grad_norm", "replay/age"} <= rows[
        -1
    ].keys()
    for suite, problems in ((None, 8), ("unseen_problems", 3)):
        evaluations = read_evaluations(run, suite)
        assert [one["step"] for one in evaluations] == [0, 3, 6]
        assert len(evaluations[-1]["greedy_rows"]) == problems
        assert {"pass@1", "greedy_pass@1"} <= evaluations[-1]["metrics"].keys()
        assert evaluations[-1]["greedy_rows"][0]["tests"] == 20
    search = json.loads((run / "random_search.json").read_text())
    assert search["episodes"] >= 48
    assert search["seconds"] >= sum(row["time/step"] for row in read_metrics(run / "metrics.jsonl").rows)
    assert search["at_episodes"]["low"] <= search["at_episodes"]["value"] <= search["at_episodes"]["high"]


def test_the_report_shows_random_search_beside(run) -> None:
    text = (run / "report.md").read_text()
    assert "Random search, as many episodes" in text
    assert "Random search, as much time" in text
    assert re.search(r"Q-learning, greedy, after 48 episodes", text)
    assert re.search(r"problems never trained on \| \d of 3 \|", text)
    assert "Q-learning: hidden-test sampled pass@1" in text and "held-out" not in text.lower()


def test_the_replay_is_one_file_without_scripts(run) -> None:
    page = (run / "replay.html").read_text()
    assert "<script" not in page
    assert "default-src 'none'" in page
    assert page.count("<ol") == 8
    assert "http" not in page.replace("http-equiv", "")


@pytest.mark.parametrize("stopped_at", [16, pytest.param(40, marks=pytest.mark.slow)])
def test_a_resumed_run_equals_an_uninterrupted_one(run, tmp_path, stopped_at) -> None:
    """Rows of metrics, evaluations and weights, with the replay memory and the search tree restored."""
    shorter = [*TINY, f"training.num_episodes={stopped_at}"]
    api.train("dqn_code_generation", shorter, output=tmp_path / "run", quiet=True)
    api.train("dqn_code_generation", TINY, output=tmp_path / "run", quiet=True, resume=True)
    assert numbers(tmp_path / "run") == numbers(run)
    first, second = (read_evaluations(folder)[-1] for folder in (run, tmp_path / "run"))
    assert first["greedy_rows"][0]["code"] == second["greedy_rows"][0]["code"]
    assert first["metrics"] == second["metrics"]


@pytest.mark.slow
def test_a_resumed_run_with_demonstrations_equals_an_uninterrupted_one(tmp_path) -> None:
    """Demonstrations are made anew on resume, and are not learned from first a second time."""
    shown = [*TINY, "problems.generated=20", "evaluation.enabled=false", "evaluation.random_search=false",
             "algorithm.pretraining_updates=5", "training.checkpoint_interval_steps=1",
             "training.practice_per_step=4", "algorithm.word_dropout=0.5"]  # fmt: skip
    for folder, episodes in (("whole", 24), ("parts", 16), ("parts", 24)):
        keys = [*shown, f"training.num_episodes={episodes}"]
        api.train("dqn_code_generation", keys, output=tmp_path / folder, quiet=True, resume=True)
    assert len(numbers(tmp_path / "whole")) == 3
    assert numbers(tmp_path / "parts") == numbers(tmp_path / "whole")


@pytest.mark.slow
def test_any_checkpoint_is_loaded_into_an_agent_and_begins_a_training(run, tmp_path) -> None:
    """The earliest one of three, by its folder and by its file; another run goes on with its weights."""
    first, *_, last = sorted((run / "checkpoints").glob("step_*"))
    recipe = load_recipe(run / "config.yaml")
    task = find_task("token_mdp")(recipe)
    agent = build_agent(recipe, task.mdp)
    agent.load(run)
    newest, updates = torch.load(last / "q_network.pt"), agent.version
    assert all(torch.equal(agent.state_dict()[name], one) for name, one in newest.items())
    for path in (first, first / "q_network.pt"):
        agent.load(path)
        assert all(
            torch.equal(agent.state_dict()[k], v) for k, v in torch.load(first / "q_network.pt").items()
        )
        assert 0 < agent.version < updates
    keys = [*TINY, "training.num_episodes=8", "algorithm.learning_starts=400", f"training.start_from={first}"]
    api.train("dqn_code_generation", keys, output=tmp_path / "next", quiet=True)
    assert torch.equal(
        torch.load(tmp_path / "next" / "checkpoints" / "last" / "q_network.pt")["advantage.weight"],
        torch.load(first / "q_network.pt")["advantage.weight"],
    )
    with pytest.raises(CheckpointError, match=r"holds no|has no"):
        agent.load(tmp_path)


@pytest.mark.slow
def test_gamma_0_and_dropout_train(tmp_path) -> None:
    keys = [*TINY, "algorithm.gamma=0", "algorithm.dropout=0.1", "training.num_episodes=16",
            "evaluation.enabled=false", "evaluation.random_search=false"]  # fmt: skip
    api.train("dqn_code_generation", keys, output=tmp_path / "run", quiet=True)
    assert "loss" in numbers(tmp_path / "run")[-1]


def test_evaluating_a_run_tells_the_success_of_each_problem(run, tmp_path) -> None:
    result = api.evaluate(run, "classic_evaluation", samples=4, output=tmp_path / "out", epsilon=0.5)
    assert [one["task_id"] for one in result.summary["by_problem"]] == ["multiply", "is_prime", "find_min"]
    for one in result.summary["by_problem"]:
        assert one["greedy"] in (True, False)
        assert one["epsilon"]["low"] <= one["epsilon"]["value"] <= one["epsilon"]["high"]
        assert one["program"].startswith(f"def {one['task_id']}(")
    assert result.summary["answers"] == 15
    text = (tmp_path / "out" / "report.md").read_text()
    assert "With ε 0.5" in text
    assert "| multiply |" in text
    again = api.evaluate(run, "classic_evaluation", samples=4, output=tmp_path / "out", epsilon=0.5)
    assert again.summary["by_problem"] == result.summary["by_problem"]


def test_problems_of_a_file_are_evaluated(run, tmp_path) -> None:
    save_json([load_suite("classic_training").by_id("add_numbers")], tmp_path / "mine.json")
    result = api.evaluate(run, str(tmp_path / "mine.json"), samples=2, output=tmp_path / "out")
    assert result.summary["problems"] == 1


def test_options_of_language_models_are_refused(run, tmp_path) -> None:
    with pytest.raises(ConfigError, match="has no temperature"):
        api.evaluate(run, "classic_evaluation", output=tmp_path / "out", temperature=0.5)


@pytest.mark.parametrize(
    ("key", "value"),
    [("environment.vocab_size", 70), ("algorithm.hidden_dim", 32), ("algorithm.dueling", False)],
)
def test_a_checkpoint_of_another_shape_is_refused(run, tmp_path, key, value) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy, symlinks=True)
    config = yaml.safe_load((copy / "config.yaml").read_text())
    section, name = key.split(".")
    config[section][name] = value
    (copy / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(CheckpointError, match=r"does not fit|was trained with 64 tokens"):
        api.evaluate(copy, "classic_evaluation", output=tmp_path / "out")


def test_an_unreachable_reference_is_named_before_training(tmp_path) -> None:
    problem = load_suite("classic_training").by_id("add_numbers")
    odd = replace(problem, reference=problem.reference.replace("a + b", "sum([a, b, 12345 - 12345])"))
    save_json([odd], tmp_path / "mine.json")
    with pytest.raises(ProblemError, match="its reference needs 12345"):
        api.train(
            "dqn_code_generation",
            [*TINY, f"problems.train={tmp_path / 'mine.json'}"],
            output=tmp_path / "run",
        )
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_several_processes_are_answered_by_the_command_that_uses_them() -> None:
    said = object.__new__(find_task("token_mdp")).wrong_with_processes("ddp")
    assert said is not None and "trains in one" in said and "greenward sweep" in said


def test_a_device_that_is_not_there_is_refused_before_the_run(tmp_path: Path) -> None:
    recipe = load_recipe("dqn_code_generation", ["training.device=cuda:99"])
    with pytest.raises(ConfigError, match=r"training\.device is 'cuda:99'"):
        train(recipe, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("preset", "seconds"), [("fast", 900), ("standard", 900), ("production", None)])
def test_no_limit_of_time_cuts_the_episodes_of_production_short(preset: str, seconds: float | None) -> None:
    assert load_recipe("dqn_code_generation", [f"preset={preset}"]).training.max_seconds == seconds


def test_presets_fill_in_what_the_recipe_leaves_out() -> None:
    for name, sections in PRESETS.items():
        recipe = load_recipe("dqn_code_generation", [f"preset={name}", "algorithm.batch_size=7"])
        assert isinstance(recipe, DQNRecipe)
        assert recipe.algorithm.batch_size == 7
        if sections:
            assert recipe.training.num_episodes == sections["training"]["num_episodes"]
            assert recipe.algorithm.buffer_capacity == sections["algorithm"]["buffer_capacity"]


def test_the_known_parameters_have_their_known_names() -> None:
    keys = {
        "algorithm": ("learning_rate", "gamma", "epsilon_start", "epsilon_end", "epsilon_decay", "buffer_capacity",
                  "batch_size", "hidden_dim"),
        "environment": ("max_steps", "vocab_size"),
        "reward": ("type", "correctness_weight", "quality_weight", "efficiency_weight", "progress_weight"),
    }  # fmt: skip
    recipe = load_recipe("dqn_code_generation").model_dump()
    assert all(name in recipe[section] for section, names in keys.items() for name in names)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("reward.type=best", "code_quality, sparse, curriculum or module:function"),
        ("environment.vocab_size=6000", "vocab_size"),
        ("environment.embedding=model", "embedding_model goes with"),
        ("algorithm.tau=0.1", "target_update_interval"),
        ("model.id=x", "model"),
    ],
)
def test_impossible_settings_are_refused(override, message) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe("dqn_code_generation", [override])


def test_a_q_network_is_no_language_model() -> None:
    with pytest.raises(ConfigError, match="needs a language model"):
        language_model(load_recipe("dqn_code_generation"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "override", ["environment.embedding=learned", "environment.test_when=whole", "reward.type=sparse",
                 "environment.grammar_mask=false", "training.verbose=true", "environment.delete=true",
                 "problems.generated=20", "training.practice_per_step=4", "environment.relations=false"],
)  # fmt: skip
def test_every_switch_trains(tmp_path, override) -> None:
    settings = [
        *TINY,
        "training.num_episodes=24",
        "evaluation.enabled=false",
        "evaluation.random_search=false",
    ]
    assert api.train(
        "dqn_code_generation", [*settings, override], output=tmp_path / "run", quiet=True
    ).finished
    rows = numbers(tmp_path / "run")
    assert len(rows) == 3
    assert all("loss" in row for row in rows[1:])
    if "verbose" in override:
        assert any(name.startswith("grad_norm/") for name in rows[-1])

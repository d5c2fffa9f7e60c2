"""The recipe of agents: demonstrations whose outputs are not trained on, settings, and a whole training."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from greenward.common.errors import ConfigError
from greenward.config.loading import load_recipe
from greenward.config.sections import SupervisedConfig
from greenward.environments.agent import AgentPrompts, demonstration, parse_call, run_call
from greenward.environments.prompts import tools_of
from greenward.grading.edits import editable_files
from greenward.models.tokenizer import train_tokenizer
from greenward.problems.catalog import load_problems, load_suite
from greenward.problems.problem import shared_problems
from greenward.recipes.run import train
from greenward.runs.reading import read_rollouts
from greenward.sandbox.pool import LocalExecutor
from greenward.tasks.corpus import demonstration_text, supervised_examples

RECIPE = load_recipe("grpo_agent_repair", ["problems.families.limit=40"])


def test_demonstrations_are_episodes_whose_outputs_are_not_trained_on():
    section = RECIPE.problems
    problems = load_problems("bugs:families", section.families, "train", bugs=section.bugs)[:6]
    tokenizer = train_tokenizer(map(demonstration_text, problems), 400)
    policy, prompts = SimpleNamespace(tokenizer=tokenizer), AgentPrompts(tokenizer, style="completion")
    config = SupervisedConfig(error_rate=0.5, examples_per_problem=2)
    for example in supervised_examples(config, problems, policy, prompts, seed=0):
        decode = tokenizer.decode
        whole = decode(example.completion_ids)
        trained = decode(i for i, kept in zip(example.completion_ids, example.trained, strict=True) if kept)
        assert whole.count("<output>") == whole.count("</output>") == 2
        assert "<output>" not in trained
        assert trained.startswith("<shell>cat solution.py</shell><shell>sed -i '3,$d' solution.py; cat >>")
        assert example.completion_ids[-1] == tokenizer.eos_id and example.trained[-1]


def test_demonstrations_do_in_a_workspace_what_they_say():
    section = RECIPE.problems
    problems = load_problems("bugs:families", section.families, "train", bugs=section.bugs)
    whole = replace(problems[1], starter_code="", path="a/b.py", files={})
    with LocalExecutor(1) as executor:
        for problem in (problems[0], whole):
            with executor.open(editable_files(problem)) as workspace:
                for written, output in demonstration(problem, problem.reference):
                    call = parse_call(written)
                    assert run_call(workspace, call, "", 1000) == (output, True)
                assert workspace.read_all() == {problem.path or "solution.py": problem.reference}


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("environment.max_turns=2", "environment needs task: functions"),
        ("environment.answer=diff", "environment needs task: functions"),
        ("tools.format=xml", "format"),
        ("tools.max_calls=0", "max_calls"),
        ("sandbox={backend: http, http: {urls: [http://localhost:1]}}", "sandbox.backend must be local"),
    ],
)
def test_settings_that_cannot_be(override, said):
    with pytest.raises(ConfigError, match=said):
        load_recipe("grpo_agent_repair", [override])


def test_a_pretrained_model_has_more_calls_and_the_shipped_repositories():
    recipe = load_recipe("grpo_agent_repair", ["model=some/model"])
    assert tools_of(recipe).max_calls == 30 and recipe.problems.train == "repositories:train"
    train, held_out = (list(load_suite(name)) for name in (recipe.problems.train, recipe.problems.held_out))
    packages = [{one.task_id.partition("/")[0] for one in part} for part in (train, held_out)]
    assert not packages[0] & packages[1] and not shared_problems(train, held_out)
    assert {one.task_id for one in (*train, *held_out)} == {one.task_id for one in load_suite("repositories")}


@pytest.mark.slow
def test_the_recipe_trains_evaluates_and_keeps_transcripts(tmp_path):
    short = ["warm_start.max_steps=30", "training.max_steps=2", "evaluation.num_questions=10"]
    recipe = load_recipe("grpo_agent_repair", ["problems.families.limit=200", *short])
    assert train(recipe, tmp_path / "run", quiet=True)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {"tools/calls", "tools/success_rate", "tools/submitted"} <= {key for row in rows for key in row}
    kept = [row for _, row in read_rollouts(tmp_path / "run")]
    assert any(turn["role"] == "tool" for row in kept for turn in row["transcript"])

"""Public suites measured during training, from the recipe to the files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from greenward.common.errors import ConfigError, ProblemError
from greenward.config.loading import load_recipe
from greenward.evaluation import policy_source as evaluation
from greenward.grading.judge import Grader
from greenward.models.tokenizer import train_tokenizer
from greenward.problems.problem import Problem, ProblemSet
from greenward.recipes.run import train
from greenward.runs.reading import read_evaluations
from greenward.sandbox.protocol import Limits
from greenward.tasks.functions.task import Functions
from greenward.tasks.problem_task import find_tracked_suites
from tiny_model import REINFORCED

SMALL = (
    *REINFORCED,
    "training.max_steps=3",
    "training.prompts_per_step=2",
    "sampling.max_tokens=8",
    "evaluation={num_questions: 2, samples: 1, k: [1], eval_interval_steps: 2}",
)


@pytest.fixture
def mbpp(tmp_path, monkeypatch) -> Path:
    """A file of MBPP's form with problems of the prompt and the test part, found by the variable."""
    path = tmp_path / "mbpp.jsonl"
    rows = (
        {
            "task_id": number,
            "text": f"Add {number}.",
            "code": f"def f(x):\r\n    return x + {number}",
            "test_list": [f"assert f(1) == {number + 1}"],
            "test_setup_code": "",
            "challenge_test_list": [],
        }
        for number in (2, 3, 4, *range(11, 17), 601)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("MBPP_DATASET_PATH", str(path))
    monkeypatch.setenv("MBPP_EVAL_NUM_QUESTIONS", "4")
    return path


def test_a_suite_is_measured_at_start_at_intervals_and_after_the_last_step(mbpp, tmp_path):
    recipe = load_recipe("quickstart", (*SMALL, "evaluation.suites=[mbpp]"))
    assert train(recipe, tmp_path / "run", quiet=True)
    records = read_evaluations(tmp_path / "run", "mbpp")
    assert [record["step"] for record in records] == [0, 2, 3]
    for record in records:
        assert (record["suite"], record["problems"], record["samples"]) == ("mbpp", 4, 1)
        assert 0 <= record["metrics"]["pass@1"]["low"] <= record["metrics"]["pass@1"]["high"] <= 1
        assert record["temperature"] == 0.2
        assert record["timeout_seconds"] is None
    assert len({(record["data_hash"], record["prompt_hash"]) for record in records}) == 1
    assert [record["step"] for record in read_evaluations(tmp_path / "run")] == [0, 2, 3]
    assert "Public suites" in (tmp_path / "run/report.md").read_text()


@pytest.mark.parametrize("seconds", [0.25, 30.0, None])
def test_the_time_limit_of_a_suite_is_its_own_be_it_lower_or_higher(mbpp, monkeypatch, seconds):
    entry = f"evaluation.suites=[{{name: mbpp, timeout_seconds: {seconds or 'null'}}}]"
    recipe = load_recipe("quickstart", (*SMALL, entry))
    seen = []

    def evaluate(policy, problems, renderer, grader, *_, **__):
        seen.append((grader.limits, grader.by_suite))
        raise Stop

    class Stop(Exception):
        pass

    monkeypatch.setattr(evaluation, "evaluate_policy", evaluate)
    found = Functions(recipe, {"train": ProblemSet([]), "held_out": ProblemSet([])}, {})
    with Grader(Limits(cpu_seconds=1.0, memory_bytes=1 << 29), workers=1) as found.grader:
        evaluators = found.evaluators(SimpleNamespace(tokenizer=train_tokenizer(["x"], 300)))
        with pytest.raises(Stop):
            evaluators["mbpp"](None, 0, 0.0)
    own = seconds or 10.0
    assert seen == [(Limits(own, 3 * own, 1 << 29), seconds is None)]


def tracked(suites: str, trained: ProblemSet | None = None, *overrides: str):
    recipe = load_recipe("quickstart", (f"evaluation.suites={suites}", *overrides))
    return find_tracked_suites(recipe, trained or ProblemSet([]))


def test_examples_are_not_asked_and_parts_can_be_named(mbpp, monkeypatch):
    monkeypatch.delenv("MBPP_EVAL_NUM_QUESTIONS")
    whole, test = tracked("[{name: mbpp, fewshot: 2}, 'mbpp:test']")
    assert [shot.task_id for shot in whole.shots] == ["Mbpp/2", "Mbpp/3"]
    assert [problem.task_id for problem in whole.problems][:2] == ["Mbpp/4", "Mbpp/11"]
    assert (test.name, len(test.problems)) == ("mbpp_test", 6)


def test_what_is_trained_on_cannot_be_measured(mbpp):
    trained = ProblemSet([Problem(tracked("[mbpp]")[0].problems[0].task_id, "", "f")])
    with pytest.raises(ProblemError, match="1 problems of mbpp are trained on"):
        tracked("[mbpp]", trained)
    assert tracked("[mbpp]", trained, "evaluation.enabled=false") == ()


@pytest.mark.parametrize(
    ("suites", "error", "message"),
    [
        ("[mbqq]", ProblemError, "no problem set is called"),
        ("[mbpp, {name: mbpp, temperature: 0}]", ConfigError, "names mbpp twice"),
        ("[{name: classic_evaluation, fewshot: 1}]", ConfigError, "no examples"),
    ],
)
def test_suites_that_cannot_be_are_refused(mbpp, suites, error, message):
    with pytest.raises(error, match=message):
        tracked(suites)

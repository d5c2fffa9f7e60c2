from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from greenward.config.sections import EvaluationConfig
from greenward.errors import ProblemError, SandboxError
from greenward.evaluation import engine
from greenward.evaluation.engine import evaluate
from greenward.evaluation.rows import EvaluationRow
from greenward.grading.extraction import Extracted
from greenward.grading.verdict import Status, Verdict
from greenward.intervals import pass_at_k
from greenward.policies.engine import Completion, OnGroup, SamplingParams, StopReason
from greenward.problems.problem import Problem, ProblemSet
from greenward.runs.reading import by_problem

STATUSES = list(Status)
PASSED, FAILED = STATUSES.index(Status.PASSED), STATUSES.index(Status.FAILED)
SYNTAX_ERROR, LOST = STATUSES.index(Status.SYNTAX_ERROR), STATUSES.index(Status.INFRASTRUCTURE)


class ScriptedPolicy:
    """Answers the problem with id n by `script[n]`: one status number per answer; greedy passes."""

    max_positions = 1_000_000

    def __init__(self, script: Sequence[Sequence[int]], greedy: int = PASSED) -> None:
        self.script, self.greedy = script, greedy
        self.calls: list[tuple[int, int, float, int]] = []

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        group_size: int,
        params: SamplingParams,
        *,
        seed: int,
        on_group: OnGroup,
    ) -> None:
        self.calls.append((len(prompts), group_size, params.temperature, seed))
        for number, prompt in reversed(list(enumerate(prompts))):
            codes = self._codes(prompt, group_size)
            on_group(number, [self._completion(self.greedy if params.temperature == 0 else c) for c in codes])

    def _codes(self, prompt: Sequence[int], group_size: int) -> Sequence[int]:
        return self.script[prompt[0]][:group_size]

    @staticmethod
    def _completion(code: int) -> Completion:
        stop = StopReason.LENGTH if code == SYNTAX_ERROR else StopReason.END
        return Completion(np.array([code]), np.zeros(1), stop, 0)


class NumberRenderer:
    def prompt_ids(self, problem: Problem) -> tuple[int, ...]:
        return (int(problem.task_id),)

    def prompt_text(self, problem: Problem) -> str:
        return f"problem {problem.task_id}"

    def completion_text(self, completion_ids: Sequence[int]) -> str:
        return f"{completion_ids[0]}"

    def extracted(self, problem: Problem, text: str) -> Extracted:
        return Extracted(text)


class StatusGrader:
    def grade_stream(self, answers: Sequence[tuple[Problem, str]]) -> Iterator[tuple[int, Verdict]]:
        for index, (_, code) in reversed(list(enumerate(answers))):
            yield index, Verdict(STATUSES[int(code)], first_failure=f"failure {code}")


def run(script: Sequence[Sequence[int]], greedy: int = PASSED, **settings: object) -> dict[str, Any]:
    return evaluate(
        ScriptedPolicy(script, greedy),
        problems(len(script)),
        NumberRenderer(),  # type: ignore[arg-type]
        StatusGrader(),  # type: ignore[arg-type]
        EvaluationConfig(**{"samples": 4, "k": (1, 4), **settings}),  # type: ignore[arg-type]
        sampling=SamplingParams(),
        step=3,
        elapsed_seconds=1.5,
    )


def problems(count: int) -> ProblemSet:
    return ProblemSet(
        (Problem(task_id=str(number), prompt="", entry_point="f") for number in range(count)), name="numbers"
    )


def test_metrics_are_means_of_pass_at_k_over_problems() -> None:
    result = run([[PASSED, FAILED, FAILED, FAILED], [FAILED] * 4, [PASSED] * 4])
    assert result["metrics"]["pass@1"]["value"] == pytest.approx((1 / 4 + 0 + 1) / 3)
    assert result["metrics"]["pass@4"]["value"] == pytest.approx(2 / 3)
    assert result["metrics"]["greedy_pass@1"]["value"] == 1.0


def test_infrastructure_failures_count_as_not_passed_and_are_counted() -> None:
    result = run([[PASSED, LOST, FAILED, LOST], [PASSED] * 4], k=(1, 2, 4))
    assert result["metrics"]["pass@1"]["value"] == pytest.approx((1 / 4 + 1) / 2)
    assert result["metrics"]["pass@2"]["value"] == pytest.approx((pass_at_k(4, 1, 2) + 1) / 2)
    assert result["metrics"]["pass@4"]["value"] == 1.0
    assert [(row["samples"], row["passed"]) for row in by_problem(result)["rows"]] == [(4, 1), (4, 4)]
    assert result["rates"]["infrastructure"]["value"] == pytest.approx(2 / 8)
    assert result["statuses"] == {"passed": 5, "failed": 1, "infrastructure": 2}


def test_lost_greedy_answer_counts_as_not_passed() -> None:
    result = run([[PASSED] * 4], greedy=LOST)
    assert result["metrics"]["greedy_pass@1"]["value"] == 0.0
    assert by_problem(result)["rows"][0]["greedy_passed"] is False


def test_compile_and_truncation_rates() -> None:
    result = run([[PASSED, SYNTAX_ERROR, FAILED, LOST], [FAILED] * 4])
    assert result["rates"]["compile"]["value"] == pytest.approx(6 / 8)
    assert result["rates"]["truncated"]["value"] == pytest.approx(1 / 8)


def test_nothing_judged_is_an_error_and_not_a_rate() -> None:
    with pytest.raises(SandboxError, match="none of 8 answers could be judged"):
        run([[LOST] * 4, [LOST] * 4])


def test_no_problem_is_an_error() -> None:
    with pytest.raises(ProblemError, match="no problem"):
        run([])


def test_all_passed_leaves_a_doubt_that_the_interval_shows() -> None:
    result = run([[PASSED]] * 20, samples=1, k=(1,))
    assert 0.75 < result["metrics"]["pass@1"]["low"] < 0.9
    assert result["metrics"]["pass@1"]["high"] == 1.0


def test_record_has_the_agreed_shape_and_is_json() -> None:
    record = json.loads(json.dumps(run([[PASSED, FAILED, FAILED, FAILED], [FAILED] * 4])))
    assert list(record) == [
        "suite", "step", "elapsed_seconds", "samples", "temperature", "problems", "answered", "answers",
        "most_answers", "problems_passed", "metrics", "rates", "statuses", "errors", "extraction_failures",
        "tags", "isolation", "seconds", "prompts", "rows", "greedy_rows",
    ]  # fmt: skip
    assert (record["suite"], record["step"], record["problems"], record["samples"]) == ("numbers", 3, 2, 4)
    assert set(record["metrics"]) == {"pass@1", "pass@4", "greedy_pass@1"}
    assert set(record["metrics"]["pass@1"]) == {"value", "low", "high", "problems"}
    assert set(record["seconds"]) == {"sampling", "grading"}
    rows = [EvaluationRow.from_json(row) for row in record["rows"]]
    assert [row.key for row in rows] == [(task_id, number) for task_id in "01" for number in range(4)]
    assert [row.success for row in rows] == [True] + [False] * 7
    assert {row.tokens for row in rows} == {1}
    assert record["rows"][1]["code"] == "1"
    assert len(record["greedy_rows"]) == 2
    first = by_problem(record)["rows"][0]
    assert (first["passed"], first["samples"], first["greedy_passed"]) == (1, 4, True)
    assert first["prompt"] == "problem 0"
    assert first["answers"][1] == {"code": "1", "status": "failed", "first_failure": "failure 1"}


def test_rows_of_earlier_versions_are_read_as_they_are() -> None:
    answer = {"code": "1", "status": "failed", "first_failure": ""}
    row = {
        "task_id": "0",
        "prompt": "p",
        "passed": 0,
        "samples": 1,
        "greedy_passed": None,
        "answers": [answer],
    }
    assert by_problem({"step": 0, "rows": [row]}) == {"step": 0, "rows": [row]}


def test_chunks_keep_the_order_and_draw_with_different_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "ANSWERS_PER_CHUNK", 8)
    script = [[PASSED] * (number % 5) + [FAILED] * 4 for number in range(11)]
    policy = ScriptedPolicy(script)
    result = evaluate(
        policy,
        problems(11),
        NumberRenderer(),  # type: ignore[arg-type]
        StatusGrader(),  # type: ignore[arg-type]
        EvaluationConfig(samples=4, k=(1,), greedy=False),
        sampling=SamplingParams(temperature=0.7),
    )
    assert [row["passed"] for row in by_problem(result)["rows"]] == [number % 5 for number in range(11)]
    assert [call[0] for call in policy.calls] == [2, 2, 2, 2, 2, 1]
    assert {call[2] for call in policy.calls} == {1.0}
    assert len({call[3] for call in policy.calls}) == 6


def test_only_so_many_questions_are_asked() -> None:
    assert run([[FAILED] * 4] * 30, num_questions=7)["answered"] == 7

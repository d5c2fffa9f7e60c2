from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from scripted_engine import NumberRenderer, ScriptedEngine, completion

from greenward.common.errors import ProblemError, SandboxError
from greenward.common.statistics import pass_at_k
from greenward.config.sections import EvaluationConfig
from greenward.environments.prompts import PromptRenderer
from greenward.evaluation import policy_source as engine
from greenward.evaluation.evaluate import VerdictMemory
from greenward.evaluation.policy_source import evaluate_policy
from greenward.evaluation.samples import EvaluationRow
from greenward.grading.judge import Grader
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Case, Problem, ProblemSet
from greenward.rollouts.protocols import SamplingParams, StopReason
from greenward.runs.reading import by_problem

STATUSES = list(Status)
PASSED, FAILED = STATUSES.index(Status.PASSED), STATUSES.index(Status.FAILED)
RIGHT, WRONG, BROKEN = "    return 2 * n\n", "    return n\n", "    return (\n"
DOUBLE = 'def double(n):\n    """Return twice n."""\n'
SYNTAX_ERROR, LOST = STATUSES.index(Status.SYNTAX_ERROR), STATUSES.index(Status.INFRASTRUCTURE)


class StatusEngine(ScriptedEngine):
    """Answers the problem with id n by `script[n]`: one status number per answer; greedy passes."""

    def __init__(self, script: Sequence[Sequence[int]], greedy: int = PASSED) -> None:
        self.script, self.greedy = script, greedy
        self.calls: list[tuple[int, int, float, int]] = []

    def sample(self, prompts: Sequence[Sequence[int]], group_size: int, params: SamplingParams, **given):
        self.calls.append((len(prompts), group_size, params.temperature, given["seed"]))
        super().sample(prompts, group_size, params, **given)

    def answers(self, prompt, group_size, params, seed):
        codes = self.script[prompt[0]][:group_size]
        codes = [self.greedy] * len(codes) if params.temperature == 0 else codes
        return [
            completion([code], StopReason.LENGTH if code == SYNTAX_ERROR else StopReason.END)
            for code in codes
        ]


class StatusGrader:
    def grade_stream(self, answers: Sequence[tuple[Problem, str]]) -> Iterator[tuple[int, Verdict]]:
        for index, (_, code) in reversed(list(enumerate(answers))):
            yield index, Verdict(STATUSES[int(code)], first_failure=f"failure {code}")


def run(policy: Sequence[Sequence[int]] | StatusEngine, **settings: object) -> dict[str, Any]:
    """The evaluation of a script, or of an engine that has one."""
    policy = policy if isinstance(policy, StatusEngine) else StatusEngine(policy)
    return evaluate_policy(
        policy,
        problems(len(policy.script)),
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


class CountingGrader(StatusGrader):
    """Keeps what it was asked to judge."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def grade_stream(self, answers):
        self.asked += [(problem.task_id, code) for problem, code in answers]
        return super().grade_stream(answers)


def test_equal_answers_are_judged_once_over_all_evaluations_that_share_a_memory() -> None:
    """But those that may have failed because of the machine: they are judged again in each evaluation."""
    timeout = STATUSES.index(Status.TIMEOUT)
    script = [[PASSED, FAILED, PASSED, timeout], [FAILED, LOST, FAILED, FAILED]]
    engine_, asked, memory, grader = StatusEngine(script), problems(2), VerdictMemory(), CountingGrader()

    def once(memory: VerdictMemory | None) -> dict[str, Any]:
        config = EvaluationConfig(samples=4, k=(1,), greedy=True)
        return evaluate_policy(
            engine_, asked, NumberRenderer(), grader, config, sampling=SamplingParams(), memory=memory
        )  # type: ignore[arg-type]

    first, second = once(memory), once(memory)
    sampled = [(str(number), str(code)) for number, codes in enumerate(script) for code in codes]
    again = [one for one in sampled if int(one[1]) in (timeout, LOST)]
    assert sorted(grader.asked[:9]) == sorted([*sampled, ("1", str(PASSED))])  # the grader joins equal ones
    assert sorted(grader.asked[9:]) == sorted(again)
    fresh = once(None)
    for key in ("metrics", "rows", "greedy_rows"):
        assert first[key] == second[key] == fresh[key]


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
    result = run(StatusEngine([[PASSED] * 4], greedy=LOST))
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
        "suite", "step", "elapsed_seconds", "samples", "temperature", "top_p", "max_tokens", "prompt", "style",
        "problems", "answered", "answers", "most_answers", "problems_passed", "metrics", "rates", "statuses",
        "errors", "extraction_failures", "extraction", "tags", "isolation", "seconds", "prompts", "rows", "greedy_rows",
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
    assert first["answers"][1] == {
        "code": "1", "status": "failed", "first_failure": "failure 1", "error_class": None, "error_message": "",
        "extraction_failure": "", "truncated": False,
    }  # fmt: skip


def test_rows_of_earlier_versions_are_read_as_they_are() -> None:
    answer = {"code": "1", "status": "failed", "first_failure": ""}
    row = {"task_id": "0", "prompt": "p", "passed": 0, "samples": 1, "greedy_passed": None}
    row["answers"] = [answer]
    assert by_problem({"step": 0, "rows": [row]}) == {"step": 0, "rows": [row]}


def test_answers_keep_the_order_and_chunks_of_them_have_seeds_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "ANSWERS_PER_CHUNK", 8)
    policy = StatusEngine([[PASSED] * (number % 5) + [FAILED] * 4 for number in range(11)])
    result = run(policy, k=(1,), greedy=False)
    assert [row["passed"] for row in by_problem(result)["rows"]] == [number % 5 for number in range(11)]
    ((problems, _, temperature, seeds),) = policy.calls  # one call, in which places are taken again
    assert (problems, temperature) == (11, 1.0)
    assert len(set(seeds)) == 6 and [seeds.index(seed) for seed in seeds] == [
        0,
        0,
        2,
        2,
        4,
        4,
        6,
        6,
        8,
        8,
        10,
    ]


def test_only_so_many_questions_are_asked() -> None:
    assert run([[FAILED] * 4] * 30, num_questions=7)["answered"] == 7


# With the real renderer, grader and sandbox.


class CodePoints:
    """A tokenizer whose tokens are the code points of the text."""

    chat_template = None

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return [ord(character) for character in text]

    def decode_answer(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))

    def render_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        raise NotImplementedError


class Bodies(ScriptedEngine):
    """Answers every problem with the same bodies, the first of them greedily."""

    def __init__(self, *bodies: str) -> None:
        self.bodies = bodies

    def answers(self, prompt, group_size, params, seed):
        return [completion([ord(character) for character in body]) for body in self.bodies[:group_size]]


def double(task_id: str, starter_code: str = DOUBLE, number: int = 1) -> Problem:
    cases = (Case((number,), 2 * number), Case((0,), 0))
    return Problem(task_id, "Return twice n.", "double", tests=cases, starter_code=starter_code)


def judged(policy: Bodies, problems: ProblemSet, settings: EvaluationConfig, max_tokens: int = 256):
    renderer = PromptRenderer(CodePoints(), style="completion")
    with Grader(workers=1) as grader:
        return evaluate_policy(
            policy, problems, renderer, grader, settings, sampling=SamplingParams(max_tokens=max_tokens)
        )


def test_programs_are_run_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "ANSWERS_PER_CHUNK", 8)  # three chunks: grading runs beside sampling
    problems = ProblemSet((double(f"double_{n}", number=n + 1) for n in range(5)), name="doubles")
    result = judged(Bodies(RIGHT, WRONG, BROKEN, RIGHT), problems, EvaluationConfig(samples=4, k=(1, 4)))
    assert result["statuses"] == {"passed": 10, "failed": 5, "syntax_error": 5}
    assert result["metrics"]["pass@1"]["value"] == 0.5
    assert result["metrics"]["pass@4"]["value"] == 1.0
    assert result["metrics"]["greedy_pass@1"]["value"] == 1.0
    assert result["rates"]["compile"]["value"] == 0.75
    assert result["rates"]["infrastructure"]["value"] == 0.0
    failed = result["rows"][1]
    assert failed["code"].endswith(WRONG)
    assert failed["first_failure"]


def test_a_prompt_that_does_not_fit_is_a_question_not_answered() -> None:
    long = DOUBLE.replace("Return twice n.", "Return twice n. " * 50)
    policy = Bodies(RIGHT)
    policy.max_positions = 400
    settings = EvaluationConfig(samples=1, k=(1,), greedy=False)
    result = judged(policy, ProblemSet([double("short"), double("long", long)]), settings, 64)
    assert result["statuses"] == {"passed": 1, "no_code": 1}
    assert result["metrics"]["pass@1"]["value"] == 0.5

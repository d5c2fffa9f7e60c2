"""Repair with feedback: what follows a wrong answer, what is trained on, and what a transcript costs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from greenward.config.sections import RewardTermConfig
from greenward.environments.code import CodeEnvironment
from greenward.environments.prompts import PromptRenderer
from greenward.grading.reward_terms import make_reward
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Problem
from greenward.rollouts.protocols import POLICY, Collection, Completion, SamplingParams, StopReason
from greenward.training.advantages import ESTIMATORS
from greenward.training.batch import Batch
from greenward.training.collector import Collector
from tiny_model import CharacterTokenizer

LIMIT, END = 24, "$"


class Characters(CharacterTokenizer):
    def decode(self, token_ids: Any, *, skip_special_tokens: bool = True) -> str:
        return super().decode(token_ids).replace(END, "")


class Attempts:
    """A policy whose answers are scripted: `script[n]` are those of sample n of a group, attempt by attempt."""

    deterministic = True

    def __init__(self, script: Sequence[Sequence[int]], max_positions: int = 1000) -> None:
        self.max_positions = max_positions
        self.prompts: list[str] = []
        self._script = script

    def sample(self, prompts, sizes, params, *, seed, on_group):  # type: ignore[no-untyped-def]
        for index, (prompt, size) in enumerate(zip(prompts, sizes, strict=True)):
            text = "".join(map(chr, prompt))
            self.prompts.append(text)
            earlier = re.findall(r"return (\d+)", text)
            continuing = [row for row in self._script if list(map(str, row[: len(earlier)])) == earlier]
            on_group(index, [self._answer(row[len(earlier)]) for row in continuing[:size]])

    def _answer(self, value: int) -> Completion:
        text = f"    return {value}\n"
        cut = value >= 90  # such an answer hits the limit
        ids = np.array([ord(c) for c in (text.ljust(LIMIT, "#") if cut else text + END)])
        stop = StopReason.LENGTH if cut else StopReason.END
        return Completion(ids, np.full(len(ids), -0.25, np.float32), stop, 5)


class Judge:
    """Answer 1 passes, 7 is lost by the infrastructure, all others fail; verdicts come from a thread."""

    def __init__(self) -> None:
        self.submitted: list[list[str]] = []
        self._threads = ThreadPoolExecutor(1)

    def submit(self, answers: Sequence[tuple[Problem, str]]) -> Future[list[Verdict]]:
        values = [re.findall(r"return (\d+)", code)[-1] for _, code in answers]
        self.submitted.append(values)
        return self._threads.submit(lambda: [self._verdict(value) for value in values])

    def _verdict(self, value: str) -> Verdict:
        if value == "7":
            return Verdict(Status.INFRASTRUCTURE)
        if value == "1":
            return Verdict(Status.PASSED, tests_passed=(True,))
        failure = f"one() gave {'<|end|>' if value == '66' else value}, expected 1"
        return Verdict(Status.FAILED, tests_passed=(False,), first_failure=failure)


def collect(script: Sequence[Sequence[int]], *, max_turns: int = 2, max_positions: int = 1000) -> Collection:
    problem = Problem("one", "", "one", starter_code="def one():\n")
    collect.judge, collect.policy = Judge(), Attempts(script, max_positions)  # type: ignore[attr-defined]
    environment = CodeEnvironment(
        [problem],
        PromptRenderer(Characters()),  # type: ignore[arg-type]
        collect.judge,  # type: ignore[attr-defined]
        (make_reward(RewardTermConfig(name="all_tests")),),
        sampling=SamplingParams(max_tokens=LIMIT, temperature=0.8),
        group_size=len(script),
        seed=0,
        max_turns=max_turns,
    )
    return environment.collect({POLICY: collect.policy}, range(1), seed=0)  # type: ignore[attr-defined]


def test_a_wrong_answer_is_followed_by_its_first_failing_test_and_another_answer() -> None:
    collection = collect([(1,), (2, 1), (3, 4)])
    right, repaired, wrong = collection.episodes
    assert [episode.reward for episode in collection.episodes] == [1.0, 1.0, 0.0]
    assert [episode.outcome for episode in collection.episodes] == ["passed", "passed", "failed"]
    assert right.transcript == ()
    feedback = "\n# A test fails: one() gave 2, expected 1\n# Right:\ndef one():\n"
    assert repaired.transcript == (
        ("programmer", "    return 2\n"),
        ("feedback", feedback),
        ("programmer", "    return 1\n"),
    )
    assert collect.policy.prompts[1] == f"def one():\n    return 2\n{END}{feedback}"  # type: ignore[attr-defined]
    assert collection.metrics["turns/mean"] == [1, 2, 2]
    assert collection.metrics["pass_rate/first_answer"] == [1, 0, 0]
    assert wrong.verdict is not None and wrong.verdict.first_failure == "one() gave 4, expected 1"


def test_control_tokens_in_a_value_do_not_control_the_conversation() -> None:
    episode = collect([(66, 1), (2, 1)]).episodes[0]
    assert "one() gave < |end|>, expected 1" in episode.transcript[1][1]


def test_answers_of_a_group_that_come_together_are_judged_together() -> None:
    collect([(1,), (2, 1), (3, 4)])
    assert collect.judge.submitted == [["1", "2", "3"], ["1", "4"]]  # type: ignore[attr-defined]


def test_a_step_whose_infrastructure_failed_throughout_has_no_metrics_of_turns() -> None:
    collection = collect([(7,), (2, 7)])
    assert not any(episode.scored for episode in collection.episodes)

    class Again:
        def collect(self, *_: Any, **settings: Any) -> Collection:
            return collection

    metrics = Collector(Again(), {}, groups_per_step=1, seed=0).collect(0)[1]
    assert metrics["episodes/infrastructure"] == 2 and "turns/mean" not in metrics


def test_feedback_is_never_trained_on_and_sampled_ids_are_kept() -> None:
    (_, episode) = collect([(1,), (2, 1)]).episodes
    (turn,) = episode.turns
    written = "".join(chr(token) for token in turn.completion_ids[turn.policy_wrote_T])
    others = "".join(chr(token) for token in turn.completion_ids[~turn.policy_wrote_T])
    assert written == f"    return 2\n{END}    return 1\n{END}"
    assert others == "\n# A test fails: one() gave 2, expected 1\n# Right:\ndef one():\n"
    assert set(turn.logprobs_T[turn.policy_wrote_T]) == {-0.25}
    assert not turn.logprobs_T[~turn.policy_wrote_T].any()
    assert turn.temperature == 0.8 and turn.policy_version == 5


@pytest.mark.parametrize("answers", [1, 2, 4, 8])
def test_a_transcript_is_one_row_so_that_its_cost_is_linear_in_its_length(answers: int) -> None:
    script = [(*range(10, 9 + answers), 1), (*range(30, 29 + answers), 1)]
    episodes = collect(script, max_turns=answers).episodes
    (batch,) = Batch.of(episodes, ESTIMATORS["grpo"](episodes)).micro_batches(64, torch.device("cpu"))
    assert len(batch.rows) == 2
    transcripts = [len(episode.turns[0].completion_ids) for episode in episodes]
    prompt = len("def one():\n")
    assert len(batch.group_batch.token_ids_M) == prompt + sum(length - 1 for length in transcripts)
    assert int(batch.mask_BT.sum()) == sum(episode.policy_tokens for episode in episodes)
    assert batch.temperature == 0.8


@pytest.mark.parametrize(
    ("script", "settings"),
    [
        ((2, 2), {"max_turns": 1}),
        ((90, 2), {}),  # truncated
        ((7, 2), {}),  # lost by the infrastructure
        ((2, 2), {"max_positions": 95}),  # another answer would not fit
    ],
)
def test_an_episode_ends_where_another_answer_makes_no_sense(script: Any, settings: Any) -> None:
    (episode,) = collect([script], **settings).episodes
    assert episode.transcript == () and len(collect.policy.prompts) == 1  # type: ignore[attr-defined]
    assert episode.scored == (script[0] != 7)

"""Safety net: what a training step makes of its answers, against closed forms computed here.

Covers the environment of one turn, dynamic sampling, the overlong penalty, the metrics of a step, and
answers that the infrastructure failed. Engine and grader are scripted: each problem has a list of answers
with their status and tests.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import pytest

from greenward.config.sections import RewardTermConfig
from greenward.environments.code import CodeEnvironment
from greenward.environments.prompts import PromptRenderer
from greenward.grading.reward_terms import make_reward
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Problem
from greenward.rollouts.protocols import POLICY, Completion, Episode, SamplingParams, StopReason
from greenward.training.collector import Collector
from tiny_model import CharacterTokenizer

LIMIT = 40  # tokens of an answer, one for each character


@dataclass(frozen=True)
class Answer:
    """A scripted answer: what becomes of it, and its length in tokens."""

    tests: tuple[int, ...] = (0, 0)
    length: int = 20
    status: Status | None = None

    @property
    def passed(self) -> bool:
        return self.status is None and all(self.tests)

    @property
    def reward(self) -> float:
        """The fraction of passed tests, and 1 more when all pass (docs/rewards.md)."""
        return sum(self.tests) / len(self.tests) + self.passed


PASS, HALF, FAIL = Answer((1, 1)), Answer((1, 0)), Answer((0, 0))
LOST = Answer(status=Status.INFRASTRUCTURE)
SIGNAL, ALL_PASS, ALL_FAIL = (PASS, FAIL), (PASS, PASS), (FAIL, FAIL)


@dataclass
class Bench:
    """Collects steps of scripted answers: `script` has those to each problem, by its name."""

    script: dict[str, Sequence[Answer]]
    prompts_per_step: int = 1
    rounds: int = 1
    penalty_buffer: int = 0
    penalty: float = 1.0
    seed: int = 0
    asked: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    trained: list[Episode] = field(default_factory=list)
    tokenizer = CharacterTokenizer()
    max_positions = 1000

    def __post_init__(self) -> None:
        problems = [Problem(name, "", name, starter_code=f"def {name}():\n") for name in self.script]
        environment = CodeEnvironment(
            problems,
            PromptRenderer(self.tokenizer),
            self,
            (make_reward(RewardTermConfig(name="tests")),),
            sampling=SamplingParams(max_tokens=LIMIT),
            group_size=len(next(iter(self.script.values()))),
            seed=self.seed,
            penalty_buffer=self.penalty_buffer,
            penalty=self.penalty,
        )
        self._collector = Collector(
            environment,
            {POLICY: self},
            groups_per_step=self.prompts_per_step,
            seed=self.seed,
            max_rounds=self.rounds,
        )
        self._steps = 0

    def step(self) -> dict[str, float]:
        """One more step; its metrics. `trained` then has the episodes of its update."""
        self._steps += 1
        self.log.clear()
        self.trained, metrics = self._collector.collect(self._steps - 1)
        return metrics

    def sample(self, prompts, group_sizes, params, *, seed, on_group=None):
        self.seeds.append(seed[0])
        groups = []
        for index, prompt in enumerate(prompts):
            name = re.search(r"def (\w+)", self.tokenizer.decode(prompt))[1]
            self.asked.append(name)
            self.log.append(f"sampled {name}")
            assert len(self.script[name]) == group_sizes[index] and params.max_tokens == LIMIT
            groups.append([self._completion(n, answer) for n, answer in enumerate(self.script[name])])
            if on_group is not None:
                on_group(index, groups[-1])
        return groups

    def _completion(self, number: int, answer: Answer) -> Completion:
        text = f"    return {number}\n".ljust(answer.length, "#")
        stop = StopReason.LENGTH if answer.length >= LIMIT else StopReason.END
        ids = np.array(self.tokenizer.encode(text))
        return Completion(ids, -0.01 * np.arange(1, len(ids) + 1, dtype=np.float32), stop, 7)

    def submit(self, answers) -> Future:
        self.log.append(f"graded {answers[0][0].task_id}")
        verdicts: Future = Future()
        verdicts.set_result([self._verdict(problem.task_id, code) for problem, code in answers])
        return verdicts

    def _verdict(self, name: str, code: str) -> Verdict:
        answer = self.script[name][int(re.search(r"return (\d+)", code)[1])]
        status = answer.status or (Status.PASSED if answer.passed else Status.FAILED)
        return Verdict(status, tests_passed=tuple(map(bool, answer.tests)))


MIXED = {
    "first": (PASS, HALF, FAIL, Answer((1, 1), length=30)),
    "second": (FAIL, FAIL, FAIL, Answer((0, 0), length=LIMIT)),
    "third": (PASS, PASS, PASS, PASS),
    "fourth": (HALF, LOST, PASS, FAIL),
    "fifth": (LOST, LOST, LOST, LOST),
}


def test_metrics_of_a_step_are_means_over_the_answers_that_were_judged() -> None:
    metrics = Bench(MIXED, prompts_per_step=5).step()
    judged = [answer for group in MIXED.values() for answer in group if answer is not LOST]
    rewards = [answer.reward for answer in judged]
    passed = sum(answer.passed for answer in judged)
    expected = {
        "episodes/infrastructure": 5,
        "reward/mean": statistics.mean(rewards),
        "reward/std": statistics.pstdev(rewards),
        "reward/tests": statistics.mean(rewards),
        "pass_rate": passed / len(judged),
        "status/passed": passed / len(judged),
        "status/failed": 1 - passed / len(judged),
        "completion/mean_length": statistics.mean(answer.length for answer in judged),
        "completion/max_length": LIMIT,
        "completion/truncated": 1 / len(judged),
        "completion/unique": 1.0,
        "groups/with_signal": 2,
        "groups/dead_all_pass": 1,
        "groups/dead_all_fail": 1,
        "groups/constant": 0,
        "groups/rounds": 1,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    assert "status/infrastructure" not in metrics


def test_equal_rewards_of_answers_that_pass_and_fail_make_a_constant_group() -> None:
    """With a penalty of 2 for length, a long right answer is paid as a short wrong one."""
    group = (Answer((1, 1), length=LIMIT), Answer((0, 0), length=20))
    metrics = Bench({"one": group}, penalty_buffer=10, penalty=2.0).step()
    assert metrics["groups/constant"] == 1 and metrics["groups/with_signal"] == 0
    assert metrics["pass_rate"] == 0.5 and metrics["reward/std"] == 0


def test_a_step_whose_answers_were_all_lost_has_counts_and_no_means() -> None:
    bench = Bench({"one": (LOST, LOST)})
    metrics = bench.step()
    assert metrics["episodes/infrastructure"] == 2 and not any(one.scored for one in bench.trained)
    assert metrics["groups/with_signal"] == metrics["groups/dead_all_fail"] == 0
    assert "reward/mean" not in metrics and "pass_rate" not in metrics


def test_a_turn_carries_what_was_sampled() -> None:
    bench = Bench({"one": (PASS, Answer(length=LIMIT))})
    bench.step()
    for episode, length, stop in zip(bench.trained, (20, LIMIT), ("end", "length"), strict=True):
        (turn,) = episode.turns
        assert bench.tokenizer.decode(turn.prompt_ids) == "def one():\n"
        assert bench.tokenizer.decode(turn.completion_ids).startswith("    return ")
        assert len(turn.completion_ids) == length
        np.testing.assert_array_equal(turn.logprobs_T, -0.01 * np.arange(1, length + 1, dtype=np.float32))
        assert turn.policy_wrote_T.all() and turn.stop_reason.value == stop
        assert turn.policy_version == 7


def test_a_group_is_graded_while_the_next_is_sampled() -> None:
    bench = Bench({"one": SIGNAL, "two": SIGNAL}, prompts_per_step=2)
    bench.step()
    first, second = bench.asked
    assert bench.log == [f"sampled {first}", f"graded {first}", f"sampled {second}", f"graded {second}"]


@pytest.mark.parametrize("length", [20, 28, 29, 30, 34, 39, LIMIT])
@pytest.mark.parametrize("penalty", [1.0, 0.5])
def test_the_overlong_penalty_rises_over_the_buffer_before_the_limit(length: int, penalty: float) -> None:
    """DAPO, eq. 13: 0 up to limit - buffer, then linear, -penalty at the limit."""
    buffer = 12
    group = (Answer((1, 1), length=length), FAIL)
    bench = Bench({"one": group}, penalty_buffer=buffer, penalty=penalty)
    metrics = bench.step()
    expected = -penalty * max(0, length - (LIMIT - buffer)) / buffer
    assert bench.trained[0].reward == pytest.approx(2.0 + expected)
    assert bench.trained[0].reward_terms == pytest.approx({"tests": 2.0, "overlong": expected})
    assert metrics["reward/overlong"] == pytest.approx(expected / 2)
    assert metrics["reward/mean"] == pytest.approx((2.0 + expected) / 2)
    assert metrics["reward/tests"] == pytest.approx(1.0)


def scripted(kinds: str) -> dict[str, Sequence[Answer]]:
    """Problems by what becomes of their groups: s signal, p all pass, f all fail."""
    groups = {"s": SIGNAL, "p": ALL_PASS, "f": ALL_FAIL}
    return {f"task_{index}_{kind}": groups[kind] for index, kind in enumerate(kinds)}


@pytest.mark.parametrize("seed", range(6))
def test_dynamic_sampling_asks_until_the_batch_is_full_of_groups_with_signal(seed: int) -> None:
    bench = Bench(scripted("sspfpfsppffs"), prompts_per_step=3, rounds=4, seed=seed)
    metrics = bench.step()
    # What was asked, in rounds of three, decides all else.
    rounds = [bench.asked[start : start + 3] for start in range(0, len(bench.asked), 3)]
    found = [name for name in bench.asked if name.endswith("s")]
    before_last = [name for names in rounds[:-1] for name in names if name.endswith("s")]
    assert len(before_last) < 3 and (len(found) >= 3 or len(rounds) == 4)
    assert len(set(bench.asked)) == len(bench.asked)
    assert [episode.task_id for episode in bench.trained] == [name for name in found[:3] for _ in SIGNAL]
    assert [episode.group_id for episode in bench.trained] == [
        bench.asked.index(name) for name in found[:3] for _ in SIGNAL
    ]
    # Metrics are those of all answers, not only of those that are trained on.
    answers = [answer for name in bench.asked for answer in bench.script[name]]
    assert metrics["groups/rounds"] == len(rounds)
    assert metrics["groups/with_signal"] == len(found)
    assert metrics["groups/dead_all_pass"] == sum(name.endswith("p") for name in bench.asked)
    assert metrics["groups/dead_all_fail"] == sum(name.endswith("f") for name in bench.asked)
    assert metrics["reward/mean"] == pytest.approx(statistics.mean(answer.reward for answer in answers))
    assert len(set(bench.seeds)) == len(rounds)


@pytest.mark.parametrize("kinds", ["pfpfpfpf", "pfpsfpfp"])
def test_dynamic_sampling_ends_after_its_rounds_and_trains_on_what_there_is(kinds: str) -> None:
    bench = Bench(scripted(kinds), prompts_per_step=2, rounds=4)
    assert bench.step()["groups/rounds"] == 4 and len(bench.asked) == 8
    assert len(bench.trained) == 2 * kinds.count("s")


def test_without_dynamic_sampling_all_groups_of_one_round_reach_the_update() -> None:
    bench = Bench(scripted("spf"), prompts_per_step=3)
    bench.step()
    assert [episode.task_id for episode in bench.trained] == [name for name in bench.asked for _ in SIGNAL]


@pytest.mark.parametrize("rounds", [1, 3])
def test_steps_walk_through_all_problems_before_one_is_asked_again(rounds: int) -> None:
    bench = Bench(scripted("ssppffsspf"), prompts_per_step=2, rounds=rounds)
    while len(bench.asked) < 20:
        bench.step()
    assert sorted(bench.asked[:10]) == sorted(bench.asked[10:20]) == sorted(bench.script)
    assert bench.asked[:10] != bench.asked[10:20]
    assert len(set(bench.seeds)) == len(bench.seeds)


def test_the_seed_decides_the_order_of_problems_and_the_seeds_of_sampling() -> None:
    runs = [Bench(scripted("s" * 12), prompts_per_step=4, seed=seed) for seed in (0, 0, 1)]
    for bench in runs:
        bench.step()
        bench.step()
    assert (runs[0].asked, runs[0].seeds) == (runs[1].asked, runs[1].seeds)
    assert runs[0].asked != runs[2].asked and not set(runs[0].seeds) & set(runs[2].seeds)

"""Implements the environment of code: an answer to a problem is executed, and may be repaired with feedback.

With `max_turns` 1 an episode is one answer. With more, a wrong answer is followed by its first failing test
and the policy answers again, until an answer passes or the turns are used up.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from greenward.common.seeding import shuffled_index
from greenward.environments.prompts import PromptRenderer
from greenward.grading.extracted import Extracted
from greenward.grading.judge import Grader
from greenward.grading.rewards import GradedAnswer, RewardTerm, combine
from greenward.grading.verdict import EDIT_ERRORS, Family, Verdict
from greenward.problems.problem import Problem
from greenward.rollouts.driver import Dialogue, Request, Waiting, run_dialogues
from greenward.rollouts.protocols import (
    POLICY,
    Collection,
    Completion,
    Episode,
    RolloutEngine,
    SamplingParams,
    StopReason,
    Turn,
)

ROLE = "programmer"


@dataclass(eq=False)
class CodeEnvironment:
    """Asks `group_size` answers to each problem, has them judged, and rewards the last of each episode.

    Group i asks problem number `shuffled_index(len(problems), i, seed=seed)`: the problems in an order that
    is drawn anew for each epoch. With `penalty_buffer` above 0, answers that come within that many tokens of
    the limit lose up to `penalty` (DAPO's soft overlong penalty, arXiv 2503.14476, eq. 13).
    """

    problems: Sequence[Problem]
    renderer: PromptRenderer
    grader: Grader
    reward_terms: Sequence[RewardTerm]
    _: KW_ONLY
    sampling: SamplingParams
    group_size: int
    seed: int
    max_turns: int = 1
    penalty_buffer: int = 0
    penalty: float = 1.0

    def collect(
        self, players: Mapping[str, RolloutEngine], groups: Sequence[int], *, seed: int, step: int = 0
    ) -> Collection:
        started = time.perf_counter()
        dialogues = [one for group_id in groups for one in self._dialogues(group_id, players[POLICY])]
        sampling_seconds = run_dialogues(dialogues, players, seed=seed)
        self._judge(dialogues)
        for term in self.reward_terms:
            term.begin(step)
        answers = [dialogue.graded_answer() for dialogue in dialogues]
        rewards = combine(self.reward_terms, answers, self.grader)
        episodes = []
        for dialogue, reward in zip(dialogues, rewards, strict=True):
            terms, total = dict(reward.terms), reward.total
            if self.penalty_buffer:
                longest = max(len(one.token_ids) for one in dialogue.completions)
                excess = longest - (self.sampling.max_tokens - self.penalty_buffer)
                terms["overlong"] = -self.penalty * float(np.clip(excess / self.penalty_buffer, 0.0, 1.0))
                total += terms["overlong"]
            episode = dialogue.finish()
            episodes.append(replace(episode, rewards={ROLE: total}, reward_terms=terms, extra=reward.extra))
        metrics = {name: values for term in self.reward_terms for name, values in term.take_metrics().items()}
        metrics |= self._metrics(dialogues)
        elapsed = time.perf_counter() - started
        return Collection(episodes, sampling_seconds, elapsed - sampling_seconds, metrics)

    def _dialogues(self, group_id: int, policy: RolloutEngine) -> list[Any]:
        problem = self.problems[self.task(group_id)]
        judging, prompt_ids = _Judging(self.grader, problem), self.renderer.prompt_ids(problem)
        return [
            CodeDialogue(
                group_id=group_id,
                problem=problem,
                prompt_ids=prompt_ids,
                renderer=self.renderer,
                judging=judging,
                sampling=self.sampling,
                max_turns=self.max_turns,
                max_positions=policy.max_positions,
            )
            for _ in range(self.group_size)
        ]

    def _judge(self, dialogues: Sequence[Any]) -> None:
        """Judges what has not been judged on the way."""

    def _metrics(self, dialogues: Sequence[Any]) -> dict[str, list[float]]:
        """How many answers the episodes took, and the share whose first answer passed."""
        if self.max_turns == 1:
            return {}
        verdicts = [[answer.verdict for answer in one.answers] for one in dialogues]
        judged = [one for one in verdicts if one[-1].status.family is not Family.INFRASTRUCTURE]
        return {
            "turns/mean": [float(len(one)) for one in judged],
            "pass_rate/first_answer": [float(one[0].passed) for one in judged],
        }

    def task(self, group: int) -> int:
        """The place of the problem that a group asks."""
        return shuffled_index(len(self.problems), group, seed=self.seed)


@dataclass(eq=False, kw_only=True)
class ProblemDialogue(Dialogue):
    """One episode on a problem: what the policy writes, and after each completion what it is told.

    The transcript is one turn: completions as they were sampled, and between them the tokens that others
    wrote, which are masked. `teller` is the role of these others.
    """

    group_id: int
    problem: Problem
    prompt_ids: tuple[int, ...]
    renderer: PromptRenderer
    sampling: SamplingParams
    max_positions: int
    teller: ClassVar[str]

    def __post_init__(self) -> None:
        self._ids = list(self.prompt_ids)
        self.completions: list[Completion] = []
        self._told: list[tuple[str, tuple[int, ...]]] = []

    def _next(self) -> Request:
        return Request(ROLE, tuple(self._ids), self.sampling)

    def respond(self, completion: Completion) -> None:
        self.completions.append(completion)
        self._ids += completion.token_ids.tolist()

    def _tell(self, text: str, ids: tuple[int, ...]) -> None:
        self._told.append((text, ids))
        self._ids += ids

    def transcript(self) -> tuple[tuple[str, str], ...]:
        """What the policy wrote, and what it was told, in turn."""
        steps = []
        for number, completion in enumerate(self.completions):
            steps.append((ROLE, self.renderer.completion_text(completion.token_ids)))
            if number < len(self._told):
                steps.append((self.teller, self._told[number][0]))
        return tuple(steps)

    def _episode(
        self,
        verdict: Verdict,
        answer: str,
        transcript: tuple[tuple[str, str], ...],
        rewards: tuple[float, ...] = (),
    ) -> Episode:
        """The episode before its reward is known; `rewards` are those of completions."""
        parts: list[tuple[np.ndarray, np.ndarray, bool]] = []  # tokens, log-probabilities, the policy's own
        for number, one in enumerate(self.completions):
            if number:
                told = np.array(self._told[number - 1][1], dtype=np.int64)
                parts.append((told, np.zeros(len(told), np.float32), False))
            parts.append((one.token_ids, one.logprobs, True))
        last = self.completions[-1]
        turn = Turn(
            role=ROLE,
            prompt_ids=self.prompt_ids,
            completion_ids=np.concatenate([ids for ids, _, _ in parts]),
            logprobs_T=np.concatenate([logprobs for _, logprobs, _ in parts]),
            policy_wrote_T=np.concatenate([np.full(len(ids), own) for ids, _, own in parts]),
            stop_reason=last.stop_reason,
            policy_version=last.policy_version,
            temperature=self.sampling.temperature,
            completion_rewards=rewards,
        )
        return Episode(
            turns=(turn,),
            rewards={ROLE: 0.0},
            group_id=self.group_id,
            task_id=self.problem.task_id,
            outcome=verdict.status.value,
            success=verdict.passed,
            scored=verdict.status.family is not Family.INFRASTRUCTURE,
            verdict=verdict,
            answer=answer,
            transcript=transcript,
        )

    def _graded(
        self, verdict: Verdict, completion: str, completion_ids: Sequence[int], extracted: Extracted
    ) -> GradedAnswer:
        return GradedAnswer(
            problem=self.problem,
            prompt=self.renderer.prompt_text(self.problem),
            completion=completion,
            code=extracted.code,
            verdict=verdict,
            messages=tuple(self.renderer.messages(self.problem)),
            prompt_ids=self.prompt_ids,
            completion_ids=tuple(completion_ids),
            files=extracted.files,
            begun=self.renderer.begun(self.problem),
        )


@dataclass(eq=False, kw_only=True)
class CodeDialogue(ProblemDialogue):
    """An answer, and while it is wrong and turns are left, feedback and another answer.

    A dialogue also ends with a truncated answer, and where another one would not fit into the policy's
    positions.
    """

    judging: _Judging
    max_turns: int
    teller = "feedback"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.answers: list[_Answer] = []

    def request(self) -> Request | Waiting | None:
        if len(self._told) < len(self.answers):
            answer = self.answers[-1]
            self.judging.submit()
            assert answer.verdicts is not None
            if not answer.verdicts.done():
                return Waiting(answer.verdicts)
            feedback = self._feedback_ids(answer.verdict)
            if feedback is None:
                return None
            self._tell(self.renderer.completion_text(feedback), feedback)
        return self._next()

    def respond(self, completion: Completion) -> None:
        super().respond(completion)
        text = self.renderer.completion_text(completion.token_ids)
        self.answers.append(self.judging.add(text, self.renderer.extracted(self.problem, text)))

    def finish(self) -> Episode:
        answer, verdict = self.answers[-1], self.answers[-1].verdict
        shown = answer.extracted.code or ("" if verdict.status not in EDIT_ERRORS else answer.text)
        return self._episode(verdict, shown, self.transcript() if self._told else ())

    def graded_answer(self) -> GradedAnswer:
        """The last answer, as reward terms read it."""
        answer, ids = self.answers[-1], self.completions[-1].token_ids.tolist()
        return self._graded(answer.verdict, answer.text, ids, answer.extracted)

    def _feedback_ids(self, verdict: Verdict) -> tuple[int, ...] | None:
        """What follows a wrong answer; None where the episode is over."""
        stop_reason = self.completions[-1].stop_reason
        is_last = len(self.answers) == self.max_turns or stop_reason is StopReason.LENGTH
        if is_last or verdict.passed or verdict.status.family is Family.INFRASTRUCTURE:
            return None
        feedback = self.renderer.feedback_ids(self.problem, verdict, ended=stop_reason is StopReason.END)
        fits = len(self._ids) + len(feedback) + self.sampling.max_tokens <= self.max_positions
        return feedback if fits else None


@dataclass
class _Answer:
    """An answer, and once it has been submitted the verdicts among which its own is at `index`."""

    text: str
    extracted: Extracted
    verdicts: Future[list[Verdict]] | None = None
    index: int = 0

    @property
    def verdict(self) -> Verdict:
        assert self.verdicts is not None
        return self.verdicts.result()[self.index]


@dataclass(eq=False)
class _Judging:
    """Submits the answers of a group that came in together at once, so that equal ones are executed once."""

    grader: Grader
    problem: Problem
    _added: list[_Answer] = field(default_factory=list, init=False)

    def add(self, text: str, extracted: Extracted) -> _Answer:
        self._added.append(_Answer(text, extracted))
        return self._added[-1]

    def submit(self) -> None:
        """Submit what was added since the last call."""
        if self._added:
            verdicts = self.grader.submit([(self.problem, answer.extracted.answer) for answer in self._added])
            for index, answer in enumerate(self._added):
                answer.verdicts, answer.index = verdicts, index
            self._added = []

"""Rounds of episodes: many programs are written side by side, graded together, and scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from greenward.environments.episode import POLICY, Episode
from greenward.environments.token_mdp.mdp import TokenMDP, Writing
from greenward.environments.token_mdp.problems import TokenProblem
from greenward.environments.token_mdp.rewards import GradedProgram, ProgramReward, potential
from greenward.environments.token_mdp.vocabulary import tidied
from greenward.grading.grader import Grader
from greenward.grading.verdict import Family, Verdict
from greenward.problems.problem import Problem

Choose = Callable[[Sequence[Writing], np.ndarray, np.ndarray], np.ndarray]
"""(programs, observations (B, D), legal actions (B, A)) -> an action for each."""
MOST_VERDICTS = 100_000


@dataclass
class Attempt:
    """An episode: what was seen and done, step by step, and what came of it.

    `positions` are the numbers of tokens before each action. `rewards` are those of shaping, and after
    grading the last one holds that of the program, too.
    """

    writing: Writing
    observations: list[np.ndarray] = field(default_factory=list)
    legal: list[np.ndarray] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    code: str = ""
    verdict: Verdict | None = None
    episode: Episode | None = None

    @property
    def passed(self) -> bool:
        return self.verdict is not None and self.verdict.passed


class CodeGrading:
    """Verdicts on programs through the sandbox; what was judged once is remembered."""

    def __init__(self, grader: Grader) -> None:
        self.grader = grader
        self._known: dict[tuple[int, str], Verdict] = {}

    def __call__(self, answers: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        keys = [(id(problem), code) for problem, code in answers]
        asked = {key: answer for key, answer in zip(keys, answers, strict=True) if key not in self._known}
        found = dict(zip(asked, self.grader.grade(list(asked.values())), strict=True))
        verdicts = [found.get(key) or self._known[key] for key in keys]
        if len(self._known) > MOST_VERDICTS:
            self._known.clear()
        self._known |= {
            key: verdict
            for key, verdict in found.items()
            if verdict.status.family is not Family.INFRASTRUCTURE
        }
        return verdicts


def write(
    mdp: TokenMDP,
    problems: Sequence[TokenProblem],
    choose: Choose,
    grading: CodeGrading,
    *,
    progress: tuple[float, float] | None = None,
    head_starts: Sequence[int] | None = None,
) -> list[Attempt]:
    """An episode for each of the problems, all side by side.

    `progress` is the weight of the potential and the discount, for shaping. `grading` runs the tests of
    programs that are whole, where the settings ask for it.
    """
    starts = head_starts or [0] * len(problems)
    attempts = [Attempt(mdp.start(*one)) for one in zip(problems, starts, strict=True)]
    running = [one for one in attempts if not one.writing.outcome]
    while running:
        observations_BD = np.stack([one.writing.observation for one in running])
        legal_BA = np.stack([one.writing.legal_V for one in running])
        actions_B = choose([one.writing for one in running], observations_BD, legal_BA)
        for row, attempt in enumerate(running):
            writing = attempt.writing
            before = potential(writing) if progress else 0.0
            attempt.observations.append(observations_BD[row])
            attempt.legal.append(legal_BA[row])
            attempt.positions.append(len(writing.tokens))
            attempt.actions.append(int(actions_B[row]))
            writing.act(int(actions_B[row]))
            shaping = progress[0] * (progress[1] * potential(writing) - before) if progress else 0.0
            attempt.rewards.append(shaping)
        note_tests([one.writing for one in running], grading)
        running = [one for one in running if not one.writing.outcome]
    for attempt in attempts:
        attempt.code = tidied(attempt.writing.code)
    return attempts


def note_tests(writings: Sequence[Writing], grading: CodeGrading) -> None:
    """Run the visible tests of whole programs and note the results, where the settings ask for it."""
    whole = [one for one in writings if one.mdp.settings.test_whole and one.complete]
    verdicts = grading([(one.one.problem, tidied(one.code)) for one in whole])
    for writing, verdict in zip(whole, verdicts, strict=True):
        writing.tested = verdict.fraction_passed


def grade(
    attempts: Sequence[Attempt], grading: CodeGrading, reward: ProgramReward, levels: Sequence[float]
) -> None:
    """Run the visible tests of all programs in one batch, and complete the attempts in place."""
    verdicts = grading([(one.writing.one.problem, one.code) for one in attempts])
    scores = reward(
        [
            GradedProgram(one.writing, one.code, verdict, level)
            for one, verdict, level in zip(attempts, verdicts, levels, strict=True)
        ]
    )
    for group, (attempt, verdict, (total, terms)) in enumerate(zip(attempts, verdicts, scores, strict=True)):
        attempt.verdict = verdict
        if attempt.rewards:
            attempt.rewards[-1] += total
        attempt.episode = Episode(
            turns=(),
            rewards={POLICY: total},
            group_id=group,
            task_id=attempt.writing.one.task_id,
            outcome=verdict.status.value,
            success=verdict.passed,
            scored=verdict.status.family is not Family.INFRASTRUCTURE,
            verdict=verdict,
            answer=attempt.code,
            reward_terms=terms,
            extra={"tokens": len(attempt.writing.tokens), "ended": attempt.writing.outcome},
        )


def written_out(programs: Mapping[TokenProblem, Sequence[int]]) -> Choose:
    """The next token of the program that is given for the problem."""
    return lambda writings, *_: np.array([programs[one.one][len(one.tokens)] for one in writings])


def by_prior(mdp: TokenMDP, rng: np.random.Generator) -> Choose:
    """Random search: legal actions in proportion to the token prior."""
    return lambda writings, _, legal_BA: drawn(prior_of(mdp, writings, legal_BA), rng)


def prior_of(mdp: TokenMDP, writings: Sequence[Writing], legal_BA: np.ndarray) -> np.ndarray:
    """The token prior after each program so far, of shape (B, A); rows add up to 1."""
    return np.stack([mdp.prior.after(one.tokens, row) for one, row in zip(writings, legal_BA, strict=True)])


def drawn(weights_BA: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An action for each row, in proportion to its weights."""
    sums_BA = np.cumsum(weights_BA, axis=1)
    points_B1 = rng.random((len(sums_BA), 1)) * sums_BA[:, -1:]
    return (sums_BA <= points_B1).sum(axis=1).clip(max=weights_BA.shape[1] - 1)

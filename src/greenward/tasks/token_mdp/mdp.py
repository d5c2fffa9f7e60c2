"""Implements the token MDP: programs that are being written, what may come next, and their rewards.

- State s: 960 numbers, that is an embedding of the problem (696), one of the code so far (256), and steps,
  tests and length (8; `features.LAYOUT`). The embedding of the problem holds hashed words, types, and 440
  relations between inputs and output (`relations`).
- Action a: a Python lexeme, an argument slot, or an operation: newline, indent, dedent, delete, end
  (`grammar`).
- Transition: the token is appended, and tokens without an alternative are written with it.
- Reward r: at the end, by the visible tests; between, shaping by a potential.
- Episode: one program, which ends with `<end>` or at `max_steps` tokens; visible tests run whenever it is
  whole (`environment.test_when`).

The reward `code_quality` is 10 · (share of tests passed + 2 if all) + 2 · quality − 1 · cost.
`reward.pythonic_weight` pays for idioms. `sparse` is 1 for a correct program, else 0; under `curriculum`
partial credit fades as a problem is solved. `module:name` is a function or class of the user's, without
shaping.

A correct program earns at least 30 by `code_quality`, and any other one less than 14: no invalid, empty or
constant program can be worth more. Progress is shaping by a potential, which adds γ Φ(s') - Φ(s) to the
reward of each step and therefore changes no optimal policy (Ng, Harada and Russell, 1999).
"""

from __future__ import annotations

import ast
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np

from greenward.common.errors import ConfigError, RewardError
from greenward.config.sections import RewardTermConfig
from greenward.grading.judge import Grader
from greenward.grading.reward_terms import make_reward
from greenward.grading.rewards import GradedAnswer
from greenward.grading.verdict import Family, Status, Verdict
from greenward.problems.problem import Problem
from greenward.problems.python_source import parse_or_none
from greenward.rollouts.protocols import POLICY, Episode
from greenward.tasks.token_mdp import features
from greenward.tasks.token_mdp.features import HashedEmbeddings
from greenward.tasks.token_mdp.grammar import END, OPERATIONS, Node, Vocabulary, program, tidied
from greenward.tasks.token_mdp.problems import TokenProblem, check_reachable, token_problems

SHORTEST = 8
"""The room of an episode with the largest head start."""
SMOOTHING = 3.0
"""How many observations the shorter context counts for."""
SUCCESS_MEMORY = 0.8
"""Decay of the success rate of each problem, per episode that counts for it."""
UNSEEN = 0.3
"""The share of the fixed weights, so that what no program did is tried, too."""
MOST_ROWS = 4096
"""Contexts whose smoothed probabilities are kept at a time."""
ENDED, STEP_LIMIT, DEAD_END = "ended", "step limit", "no legal action"


@dataclass(frozen=True)
class TokenSettings:
    """`max_steps` tokens and deletions make an episode.

    `grammar_mask`: only what can become a program is legal.
    With the mask, a token that is the only legal one is written without asking. `delete` allows to take
    back the newest decision. `test_whole`: the visible tests run whenever the program is whole, and the next
    observation tells how it did; else they run at its end alone.
    """

    max_steps: int = 50
    grammar_mask: bool = True
    delete: bool = False
    test_whole: bool = False


class TokenMDP:
    """What all episodes share: problems, vocabulary, settings and embeddings.

    The token prior is counted in the references of `corpus`, which are kept as tokens. Raises
    `ProblemError` for problems that the grammar does not know and, with `check`, for those whose reference
    cannot be written. `unproved` are the ids of problems without a reference, of which this is not known.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        vocabulary: Vocabulary,
        settings: TokenSettings = TokenSettings(),
        *,
        check: bool = True,
        corpus: Sequence[Problem] = (),
        embeddings: HashedEmbeddings | None = None,
    ) -> None:
        if not problems:
            raise ConfigError("the token MDP needs at least one problem.")
        self.vocabulary, self.settings = vocabulary, settings
        self.problems = token_problems(problems, vocabulary)
        self.references = {
            one.task_id: check_reachable(one, vocabulary, settings.max_steps)
            for one in self.problems
            if check and one.problem.reference
        }
        self.unproved = [one.task_id for one in self.problems if check and not one.problem.reference]
        self.corpus = [
            (one, [vocabulary.index[lexeme] for lexeme in check_reachable(one, vocabulary, 10**6)])
            for one in token_problems(corpus, vocabulary)
        ]
        self.prior = TokenPrior(vocabulary, [tokens for _, tokens in self.corpus])
        self.embeddings = embeddings or HashedEmbeddings(vocabulary)
        self.embedding = cache(self.embeddings.problem)  # the problem's part of an observation

    def start(self, one: TokenProblem, head_start: int = 0) -> Writing:
        """A program that is begun when so many of the `max_steps` are used up."""
        return Writing(self, one, head_start)

    def head_starts(self, number: int, rng: np.random.Generator) -> list[int]:
        """Head starts for exploration, so that short programs are written as often as long ones."""
        return rng.integers(max(1, self.settings.max_steps - SHORTEST), size=number).tolist()


class Writing:
    """A program that is being written. `outcome` is "" until the episode is over, then why it is.

    `legal_V` are the legal actions, and `observation` follows `features.LAYOUT`; both are new arrays after
    each action. `tested` is what the newest run of the tests gave, if there was one.
    """

    def __init__(self, mdp: TokenMDP, one: TokenProblem, head_start: int = 0) -> None:
        self.mdp, self.one = mdp, one
        self.tokens: list[int] = []
        self.decisions: list[tuple[int, Node, np.ndarray, int]] = []  # what a deletion restores
        self.used = self.head_start = head_start
        self.depth = 0
        self.outcome = ""
        self.tested: float | None = None
        self._node: Node = one.grammar.start
        self._code = np.zeros(features.CODE, np.float32)
        self._operations = tuple(mdp.vocabulary.index[one] for one in OPERATIONS)
        self._write_forced()

    def act(self, action: int) -> None:
        """Do an action, which must be legal."""
        self.used += 1
        if action == self._operations[3]:
            length, self._node, self._code, self.depth = self.decisions.pop()
            del self.tokens[length:]
        else:
            if self.mdp.settings.delete:
                self.decisions.append((len(self.tokens), self._node, self._code.copy(), self.depth))
            self._write(action)
        self._write_forced()

    def skip(self) -> None:
        """Lose a step, as an illegal action does."""
        self.used += 1
        self._write_forced()

    def _write(self, token: int) -> None:
        _, indent, dedent, _, end = self._operations
        self.tokens.append(token)
        self.mdp.embeddings.append(self._code, self.tokens)
        if token in (indent, dedent):
            self.depth += 1 if token == indent else -1
        if self.mdp.settings.grammar_mask:
            following = self.one.grammar.advance(self._node, token)
            assert following is not None
            self._node = following
        if token == end:
            self.outcome = ENDED

    def _write_forced(self) -> None:
        """Write tokens without an alternative, and see whether the episode is over."""
        settings = self.mdp.settings
        while not self.outcome:
            left = settings.max_steps - self.used
            if not settings.grammar_mask:
                self.legal_V = np.ones(len(self.mdp.vocabulary), bool)
                self.legal_V[self._operations[3]] = settings.delete and bool(self.decisions)
                if left <= 0:
                    self.outcome = STEP_LIMIT
                return
            self.legal_V = self._node.extra_V <= left - self._node.cost
            if settings.delete and self.decisions and left > self.decisions[-1][1].cost:
                self.legal_V[self._operations[3]] = True
            number = int(np.count_nonzero(self.legal_V))
            if number == 0:
                self.outcome = DEAD_END
            if number != 1:
                return
            self.used += 1
            self._write(int(self.legal_V.argmax()))

    @property
    def complete(self) -> bool:
        """Whether the code so far is a whole program."""
        end = self.mdp.vocabulary.classes[END]
        return bool(self.outcome == ENDED or self._node.extra_C[end] <= 0)

    @property
    def code(self) -> str:
        return program(self.one.problem, [self.mdp.vocabulary.lexemes[token] for token in self.tokens])

    @property
    def observation(self) -> np.ndarray:
        most, embeddings = self.mdp.settings.max_steps, self.mdp.embeddings
        text = self.code if embeddings.reads_program else ""
        found = np.empty(features.SIZE, np.float32)
        found[: features.PROBLEM] = self.mdp.embedding(self.one)
        found[features.PROBLEM : -features.METADATA] = embeddings.code(self._code, text)
        tested = self.tested
        found[-features.METADATA :] = (
            self.used / most,
            max(0, most - self.used - self._node.cost) / most,
            self.depth / 4,
            self.complete,
            tested is not None,
            tested or 0.0,
            tested == 1.0,
            len(self.one.signature.arguments) / 4,
        )
        return found


class TokenPrior:
    """A trigram model, smoothed by the bigram and that by fixed weights, and mixed with these.

    Random search and the exploration of Q-learning draw from it. Without programs, only the fixed weights
    remain.
    """

    def __init__(self, vocabulary: Vocabulary, programs: Iterable[Sequence[int]] = ()) -> None:
        weights = np.array(vocabulary.weights, np.float32)
        self._base = weights / weights.sum()
        self._counts: dict[tuple[int, ...], np.ndarray] = defaultdict(lambda: np.zeros_like(self._base))
        for tokens in programs:
            padded = (-1, -1, *tokens)
            for first, second, token in zip(padded, padded[1:], padded[2:], strict=False):
                self._counts[(second,)][token] += 1
                self._counts[(first, second)][token] += 1
        self._rows: dict[tuple[int, ...], np.ndarray] = {}

    def after(self, tokens: Sequence[int], legal_V: np.ndarray) -> np.ndarray:
        """The probability of each token after `tokens`, above 0 for all that are legal."""
        likely, base = self._row(tokens) * legal_V, self._base * legal_V
        mixed: np.ndarray = (1 - UNSEEN) / likely.sum() * likely + UNSEEN / base.sum() * base
        return mixed

    def _row(self, tokens: Sequence[int]) -> np.ndarray:
        context = tuple((-1, -1, *tokens[-2:])[-2:])
        if (found := self._rows.get(context)) is None:
            found = self._base
            for part in (context[1:], context):
                if part in self._counts:
                    counts = self._counts[part]
                    found = (counts + SMOOTHING * found) / (counts.sum() + SMOOTHING)
            if len(self._rows) >= MOST_ROWS:  # of contexts with literals there is no end
                self._rows.clear()
            self._rows[context] = found
        return found


ALL_PASSED = 2.0
"""Added to the share of tests passed when it is 1: with a weight of 10, a bonus of 20."""
LONG, BRANCHY = 30, 3
_BRANCHES = (ast.If, ast.For, ast.IfExp, ast.BoolOp, ast.comprehension)


@dataclass(frozen=True)
class Weights:
    """Weights of the terms of `code_quality`."""

    correctness: float = 10.0
    quality: float = 2.0
    efficiency: float = 1.0
    pythonic: float = 0.5
    progress: float = 0.5


SHAPED = ("code_quality", "curriculum")
"""The rewards whose steps earn for progress; `sparse` is binary, and one of the user's own is his alone."""

Scored = tuple[float, Mapping[str, float]]


class GradedProgram(NamedTuple):
    """A program at the end of its episode. `level` is the success rate of its problem so far."""

    written: Writing
    code: str
    verdict: Verdict
    level: float = 0.0


ProgramReward = Callable[[Sequence[GradedProgram]], list[Scored]]
"""Scores programs: the sum and its terms, unweighted, for each."""


@dataclass(frozen=True)
class CodeQuality:
    """weights · (correctness, quality, efficiency, pythonic).

    With `curriculum`, what a program earns for a part of the tests shrinks with the success rate of its
    problem, until only a whole solution pays.
    """

    weights: Weights = Weights()
    curriculum: bool = False

    def __call__(self, programs: Sequence[GradedProgram]) -> list[Scored]:
        return [self._score(program) for program in programs]

    def _score(self, program: GradedProgram) -> Scored:
        one, code, verdict, level = program
        share = verdict.fraction_passed * (1.0 - level if self.curriculum and not verdict.passed else 1.0)
        terms = {
            "correctness": share + ALL_PASSED * verdict.passed,
            "quality": 0.0 if verdict.status is Status.SYNTAX_ERROR else quality(code),
            "efficiency": -0.1 * (one.used - one.head_start) / one.mdp.settings.max_steps
            - 0.1 * max(0, len(one.tokens) - LONG) / LONG,
            "pythonic": pythonic(code),
        }
        return sum(vars(self.weights)[name] * value for name, value in terms.items()), terms


def sparse(programs: Sequence[GradedProgram]) -> list[Scored]:
    """1 if all tests pass, else 0."""
    return [(float(one.verdict.passed), {"passed": float(one.verdict.passed)}) for one in programs]


def custom_reward(name: str, grader: Grader) -> ProgramReward:
    """`module:function` in the place of all terms, in a process of its own (`grading.user_rewards`).

    Raises `RewardError` for a function that cannot be imported, raises, or gives a score that is not finite.
    """
    term = make_reward(RewardTermConfig(name=name))

    def score(programs: Sequence[GradedProgram]) -> list[Scored]:
        answers = [
            GradedAnswer(one.one.problem, one.one.problem.starter_code, code, code, verdict)
            for one, code, verdict, _ in programs
        ]
        scores = term.score(answers, grader)
        if None in scores:
            raise RewardError(f"{term.name} gave no score: the token MDP needs one for each program.")
        return [(float(score or 0.0), {term.name: float(score or 0.0)}) for score in scores]

    return score


def make_program_reward(kind: str, weights: Weights, grader: Grader) -> ProgramReward:
    """The reward that a recipe's `reward.type` names."""
    if kind in SHAPED:
        return CodeQuality(weights, kind == "curriculum")
    return sparse if kind == "sparse" else custom_reward(kind, grader)


def quality(code: str) -> float:
    """0.5 for valid syntax, 0.3 for structure, 0.2 for reasonable length, 0.2 for low complexity."""
    if (tree := parse_or_none(code)) is None:
        return 0.0
    nodes = list(ast.walk(tree))
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    uses = any(isinstance(node, ast.Name) and node.id in arguments for node in nodes)
    returns = any(isinstance(node, ast.Return) and node.value is not None for node in nodes)
    branches = sum(isinstance(node, _BRANCHES) for node in nodes)
    return 0.5 + 0.3 * (uses and returns) + 0.2 * (len(code.split()) <= LONG) + 0.2 * (branches <= BRANCHY)


def pythonic(code: str) -> float:
    """The share of the constructs with an idiom and a longer form in which the idiom was used.

    It is 1 where there is no such construct, so that nothing is gained by adding one, and 0 for what does not
    parse. Longer forms: a loop that only adds up what a generator could give, indices of `range(len(...))`
    where the values could be walked through, a comparison with True or False, a branch that only chooses
    between the two, and a name that is returned at once.
    """
    if (tree := parse_or_none(code)) is None:
        return 0.0
    nodes = list(ast.walk(tree))
    long = sum(map(_is_long, nodes))
    long += sum(_returned_at_once(*two) for node in nodes for two in itertools.pairwise(_statements(node)))
    idioms = sum(isinstance(node, _IDIOMS) for node in nodes)
    return idioms / (idioms + long) if long else 1.0


_IDIOMS = (ast.GeneratorExp, ast.ListComp, ast.IfExp, ast.Slice, ast.In, ast.NotIn)


def _statements(node: ast.AST) -> list[ast.stmt]:
    body = getattr(node, "body", None)
    return body if isinstance(body, list) else []


def _returned_at_once(first: ast.stmt, then: ast.stmt) -> bool:
    if not (isinstance(first, ast.Assign) and isinstance(then, ast.Return)):
        return False
    target, value = first.targets[0], then.value
    return isinstance(target, ast.Name) and isinstance(value, ast.Name) and target.id == value.id


def _is_truth(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


def _is_long(node: ast.AST) -> bool:
    """Whether a construct is the longer form of an idiom."""
    if isinstance(node, ast.For | ast.comprehension):
        body = node.body if isinstance(node, ast.For) else []
        match node.iter:
            case ast.Call(func=ast.Name("range"), args=[ast.Call(func=ast.Name("len"))]):
                return True
        match body:
            case [ast.AugAssign(op=ast.Add())] | [ast.If(body=[ast.AugAssign(op=ast.Add())], orelse=[])]:
                return True
        return False
    if isinstance(node, ast.Compare):
        return any(map(_is_truth, (node.left, *node.comparators)))
    if isinstance(node, ast.IfExp):
        return _is_truth(node.body) and _is_truth(node.orelse)
    match node:
        case ast.If(body=[ast.Return(value=first)], orelse=[ast.Return(value=second)]):
            return _is_truth(first) and _is_truth(second)
    return False


def potential(one: Writing) -> float:
    """Φ of an unfinished program: 0.3 for a whole one, 0.2 for a return, up to 0.05 for its length."""
    if one.outcome:
        return 0.0
    returns = one.mdp.vocabulary.index["return"] in one.tokens
    return 0.3 * one.complete + 0.2 * returns + 0.05 * min(1.0, len(one.tokens) / 10)


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

"""The token MDP itself: a program that is being written, what may come next, and how likely each is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from greenward.environments.token_mdp import features
from greenward.environments.token_mdp.embeddings import Embeddings, HashedEmbeddings
from greenward.environments.token_mdp.grammar import Node
from greenward.environments.token_mdp.problems import TokenProblem, check_reachable, token_problems
from greenward.environments.token_mdp.vocabulary import OPERATIONS, Vocabulary, program
from greenward.errors import ConfigError
from greenward.problems.problem import Problem

SHORTEST = 8
"""The room of an episode with the largest head start."""
SMOOTHING = 3.0
"""How many observations the shorter context counts for."""
UNSEEN = 0.3
"""The share of the fixed weights, so that what no program did is tried, too."""
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
    cannot be written.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        vocabulary: Vocabulary,
        settings: TokenSettings = TokenSettings(),
        *,
        check: bool = True,
        corpus: Sequence[Problem] = (),
        embeddings: Embeddings | None = None,
    ) -> None:
        if not problems:
            raise ConfigError("the token MDP needs at least one problem.")
        self.vocabulary, self.settings = vocabulary, settings
        self.problems = token_problems(problems, vocabulary)
        self.references = {
            one.task_id: check_reachable(one, vocabulary, settings.max_steps)
            for one in self.problems
            if check
        }
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
        return bool(self.outcome == ENDED or self._node.extra_V[self._operations[4]] <= 0)

    @property
    def code(self) -> str:
        return program(self.one.problem, [self.mdp.vocabulary.lexemes[token] for token in self.tokens])

    @property
    def observation(self) -> np.ndarray:
        most, embeddings = self.mdp.settings.max_steps, self.mdp.embeddings
        text = "" if isinstance(embeddings, HashedEmbeddings) else self.code  # which hashing does not need
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
        found = self._rows.get(context)
        if found is None:
            found = self._base
            for part in (context[1:], context):
                if part in self._counts:
                    counts = self._counts[part]
                    found = (counts + SMOOTHING * found) / (counts.sum() + SMOOTHING)
            self._rows[context] = found
        return found

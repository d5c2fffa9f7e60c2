"""Builds observations, alike in every process: problem (696), code (256) and metadata (8), as in `LAYOUT`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from greenward.common.errors import ConfigError
from greenward.problems.problem import Expected, Problem, stable_hash
from greenward.tasks.token_mdp.grammar import TYPES, Signature, Vocabulary
from greenward.tasks.token_mdp.problems import TokenProblem
from greenward.tasks.token_mdp.relations import SIZE as RELATIONS
from greenward.tasks.token_mdp.relations import relations

BASE, CODE, METADATA = 256, 256, 8
PROBLEM = BASE + RELATIONS
SIZE = PROBLEM + CODE + METADATA
LAYOUT = (
    "share of max_steps used", "share still free once the program is finished in the shortest way",
    "depth of indentation / 4", "the code so far is a whole program", "tests were run",
    "share of tests passed at the last run", "all tests passed", "arguments / 4",
)  # fmt: skip
WORDS, _TYPES = 96, 5 * len(TYPES)
_FACTS = BASE - WORDS - _TYPES


def hashed(features: Sequence[str], size: int) -> np.ndarray:
    """A vector of length 1: each feature adds ±1 to an entry, both by its hash (arXiv 0902.2206)."""
    vector = np.zeros(size, np.float32)
    for feature in features:
        number = stable_hash(feature)
        vector[number % size] += 1.0 if number >> 40 & 1 else -1.0
    length = float(np.linalg.norm(vector))
    return vector / length if length else vector


def problem_embedding(problem: Problem, signature: Signature) -> np.ndarray:
    """Words and pairs of words of the docstring, the types of the signature, and facts about the tests."""
    words = re.findall(r"[a-z0-9]+", problem.prompt.lower())
    pairs = [f"{first} {second}" for first, second in itertools.pairwise(words)]
    types = np.zeros((5, len(TYPES)), np.float32)
    for place, kind in enumerate((signature.result, *signature.arguments)):
        types[place, TYPES.index(kind)] = 1.0
    return np.concatenate(
        [hashed([*words, *pairs], WORDS), types.ravel(), test_facts(problem), relations(problem)]
    )


def test_facts(problem: Problem) -> np.ndarray:
    """For each of `_PROPERTIES`: the share of tests of which it holds, and whether it is always the same.

    Property signatures (Odena and Sutton, arXiv 2002.09030): facts about inputs and output that a program
    which passes must reproduce. A property that cannot be asked of the types gives 0 and 0.
    """
    facts = np.zeros(_FACTS, np.float32)
    cases = [one for one in problem.cases if not isinstance(one.expected, Expected)]  # whose output is known
    for index, property_ in enumerate(_PROPERTIES):
        try:
            held = [bool(property_(case.args, case.expected)) for case in cases]
        except (TypeError, ValueError, IndexError, ZeroDivisionError, AttributeError, OverflowError):
            continue
        share = float(np.mean(held))
        facts[2 * index : 2 * index + 2] = share, 1.0 if share in (0.0, 1.0) else -1.0
    return facts


_Property = Callable[[tuple[Any, ...], Any], Any]
_PROPERTIES: tuple[_Property, ...] = (
    lambda a, y: y == a[0],
    lambda a, y: y == a[1],
    lambda a, y: y in a,
    lambda a, y: y > a[0],
    lambda a, y: y < a[0],
    lambda a, y: y >= max(a),
    lambda a, y: y <= min(a),
    lambda a, y: y > a[1],
    lambda a, y: y < a[1],
    lambda a, y: y - a[0] > 0,
    lambda a, y: a[0] == 0 or y % a[0] == 0,
    lambda a, y: a[1] == 0 or y % a[1] == 0,
    lambda a, y: (y - a[0]) % max(1, abs(a[1])) == 0,
    lambda a, y: y % 2 == 0,
    lambda a, y: y % 2 == a[0] % 2,
    lambda a, y: y % 2 == sum(a) % 2,
    lambda a, y: abs(y) <= sum(abs(one) for one in a),
    lambda a, y: y > 0,
    lambda a, y: y >= 0,
    lambda a, y: y == 0,
    lambda a, y: y == -a[0],
    lambda a, y: (y > 0) == (a[0] > 0),
    lambda a, y: a[-1] != 0 or y == 0,
    lambda a, y: a[0] % 2 == 0 and not isinstance(y, str | list),
    lambda a, y: y is True,
    lambda a, y: y is (a[0] > 0),
    lambda a, y: y is (a[0] % 2 == 0),
    lambda a, y: y is (a[0] > a[1]),
    lambda a, y: y is (len(a[0]) > 0),
    lambda a, y: y in a[0],
    lambda a, y: y == a[0][0],
    lambda a, y: y == a[0][-1],
    lambda a, y: all(y >= one for one in a[0]),
    lambda a, y: all(y <= one for one in a[0]),
    lambda a, y: y == len(a[0]),
    lambda a, y: y < len(a[0]),
    lambda a, y: y > len(a[0]),
    lambda a, y: len(y) == len(a[0]),
    lambda a, y: len(y) < len(a[0]),
    lambda a, y: len(y) > len(a[0]),
    lambda a, y: sorted(y) == sorted(a[0]),
    lambda a, y: y[0] == a[0][0],
    lambda a, y: y[0] == a[0][-1],
    lambda a, y: y[-1] == a[0][-1],
    lambda a, y: y[-1] == a[0][0],
    lambda a, y: set(y) <= set(a[0]),
    lambda a, y: list(y) == sorted(y),
    lambda a, y: y == y.lower(),
    lambda a, y: y == y.upper(),
    lambda a, y: y.startswith(a[0]),
    lambda a, y: y.endswith(a[0]),
    lambda a, y: y in a[0] + a[0],
    lambda a, y: y > sum(a[0]),
    lambda a, y: y < sum(a[0]),
    lambda a, y: y <= max(map(abs, a[0]), default=0) * len(a[0]),
    lambda a, y: all((one > 0) == (two > 0) for one, two in zip(a[0], y, strict=False)),
    lambda a, y: all(one in a[0] for one in y),
)
assert 2 * len(_PROPERTIES) <= _FACTS


HASHED_WORDS = 4095
"""Words of docstrings share so many numbers, from 1 on; 0 is none."""
_PER_TOKEN = 24
_WINDOW = 8 * _PER_TOKEN
_BATCH = 64
"""Texts that a model reads at a time."""


class HashedEmbeddings:
    """What an observation holds of a problem and of the code so far: vectors of 256 entries each.

    That of the code holds the newest eight tokens one after another and a bag of all tokens, each by fixed
    random vectors, that of the problem hashed n-grams (`features`).
    """

    reads_program = False
    """Whether `code` needs the text of the program."""

    def __init__(self, vocabulary: Vocabulary, relations: bool = True) -> None:
        self._relations = relations

        def table(size: int) -> np.ndarray:
            seeds = (stable_hash(f"{size}/{lexeme}") for lexeme in vocabulary.lexemes)
            rows = [np.random.default_rng(seed).choice((-1.0, 1.0), size) for seed in seeds]
            return np.array(rows, np.float32)

        self._window, self._bag = table(_PER_TOKEN), table(CODE - _WINDOW) / 4

    def problem(self, one: TokenProblem) -> np.ndarray:
        found = problem_embedding(one.problem, one.signature)
        if not self._relations:
            found[BASE:] = 0
        return found

    def append(self, code: np.ndarray, tokens: Sequence[int]) -> None:
        """Change the vector of the code, in place, for the newest of `tokens`."""
        window = code[:_WINDOW]
        window[:-_PER_TOKEN] = window[_PER_TOKEN:].copy()
        window[-_PER_TOKEN:] = self._window[tokens[-1]]
        code[_WINDOW:] += self._bag[tokens[-1]]

    def code(self, code: np.ndarray, text: str) -> np.ndarray:
        """The vector of the code, from that of `append` or from the program's text."""
        return code


class NumberedEmbeddings(HashedEmbeddings):
    """Numbers of words and tokens, for an encoder that is trained with the Q-network.

    The problem's vector holds the facts about its tests, too, in the place that they have when hashed; the
    words come before them.
    """

    def problem(self, one: TokenProblem) -> np.ndarray:
        found = super().problem(one)
        words = re.findall(r"[a-z0-9]+", one.problem.prompt.lower())[:WORDS]
        found[:WORDS] = 0
        found[: len(words)] = [1 + stable_hash(word) % HASHED_WORDS for word in words]
        return found

    def append(self, code: np.ndarray, tokens: Sequence[int]) -> None:
        code[:-1] = code[1:].copy()
        code[-1] = tokens[-1] + 1


class ModelEmbeddings(HashedEmbeddings):
    """Mean hidden states of a code model, by fixed random projections (CodeBERT, …).

    A problem's vector is that of its docstring. The code's is made as in `HashedEmbeddings`, where the rows
    of lexemes are what the model makes of each of them, read once; operations and slots, which are no text,
    keep their random rows. With `reads` "program" it is that of the whole program after each token. `name` is
    a folder or an id of the hub. Raises `ConfigError` where there is no model or the extra `hf` is missing.
    """

    def __init__(
        self, name: str, vocabulary: Vocabulary, relations: bool = True, *, reads: str = "tokens"
    ) -> None:
        super().__init__(vocabulary, relations)
        try:
            from transformers import AutoModel, AutoTokenizer
        except ImportError:
            raise ConfigError(
                "environment.embedding: model needs transformers.", remedy="pip install greenward[hf]"
            ) from None
        is_folder = Path(name).is_dir()
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(name, local_files_only=is_folder)
            self._model: Any = AutoModel.from_pretrained(name, local_files_only=is_folder).eval()
        except (OSError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(
                f"environment.embedding_model: {name} holds no model, and none could be fetched: {reason}",
                remedy="Give a folder with config.json, or an id of the hub where there is a network.",
            ) from None
        hidden = self._model.config.hidden_size
        rng = np.random.default_rng(0)
        self._projection = rng.standard_normal((hidden, CODE)).astype(np.float32) / hidden**0.5
        self._embedded = lru_cache(maxsize=100_000)(
            lambda text: self._mean_states([text])[0] @ self._projection
        )
        self.reads_program = reads == "program"
        if not self.reads_program:
            texts = [one for one in vocabulary.lexemes if one[0] != "<" or one in ("<", "<=")]
            states = self._mean_states(texts)
            states = (states - states.mean(0)) / (states.std(0) + 1e-6)
            places = [vocabulary.index[one] for one in texts]
            for table, scale in ((self._window, 1.0), (self._bag, 4.0)):
                to_row = rng.standard_normal((hidden, table.shape[1])) / hidden**0.5
                table[places] = states @ to_row / scale

    def problem(self, one: TokenProblem) -> np.ndarray:
        found = super().problem(one)
        found[:BASE] = self._embedded(one.problem.prompt)
        return found

    def append(self, code: np.ndarray, tokens: Sequence[int]) -> None:
        if not self.reads_program:
            super().append(code, tokens)

    def code(self, code: np.ndarray, text: str) -> np.ndarray:
        return self._embedded(text) if self.reads_program else code

    def _mean_states(self, texts: Sequence[str]) -> np.ndarray:
        """The mean of the last hidden states of each text, of shape (texts, hidden size)."""
        import torch

        found = []
        for begin in range(0, len(texts), _BATCH):
            inputs = [
                self._tokenizer(one, truncation=True, max_length=256) for one in texts[begin : begin + _BATCH]
            ]
            longest = max(len(one["input_ids"]) for one in inputs)
            ids, seen = (
                torch.tensor([[*one[key], *[0] * (longest - len(one[key]))] for one in inputs])
                for key in ("input_ids", "attention_mask")
            )
            with torch.no_grad():
                states = self._model(input_ids=ids, attention_mask=seen).last_hidden_state.float()
            found.append((states * seen[..., None]).sum(1) / seen.sum(1, keepdim=True))
        states_TH: np.ndarray = torch.cat(found).numpy()
        return states_TH


def make_embeddings(
    kind: str, model: str | None, vocabulary: Vocabulary, *, relations: bool = True, reads: str = "tokens"
) -> HashedEmbeddings:
    """The embeddings that a recipe's `environment.embedding` names, with `relations` of the tests or not."""
    if kind == "model":
        return ModelEmbeddings(str(model), vocabulary, relations, reads=reads)
    return (NumberedEmbeddings if kind == "learned" else HashedEmbeddings)(vocabulary, relations)

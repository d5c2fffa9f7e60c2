"""The three kinds of embeddings of an observation: hashed, learned (token ids), or of a code model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from greenward.environments.token_mdp import features
from greenward.environments.token_mdp.problems import TokenProblem
from greenward.environments.token_mdp.vocabulary import Vocabulary
from greenward.errors import ConfigError
from greenward.problems.problem import stable_hash

WORDS = 4095
"""Words of docstrings share so many numbers, from 1 on; 0 is none."""
_PER_TOKEN = 24
_WINDOW = 8 * _PER_TOKEN


class HashedEmbeddings:
    """What an observation holds of a problem and of the code so far: vectors of 256 entries each.

    That of the code holds the newest eight tokens one after another and a bag of all tokens, each by fixed
    random vectors, that of the problem hashed n-grams (`features`).
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        def table(size: int) -> np.ndarray:
            seeds = (stable_hash(f"{size}/{lexeme}") for lexeme in vocabulary.lexemes)
            rows = [np.random.default_rng(seed).choice((-1.0, 1.0), size) for seed in seeds]
            return np.array(rows, np.float32)

        self._window, self._bag = table(_PER_TOKEN), table(features.CODE - _WINDOW) / 4

    def problem(self, one: TokenProblem) -> np.ndarray:
        return features.problem_embedding(one.problem, one.signature)

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
        found = features.problem_embedding(one.problem, one.signature)
        words = re.findall(r"[a-z0-9]+", one.problem.prompt.lower())[: features.WORDS]
        found[: features.WORDS] = 0
        found[: len(words)] = [1 + stable_hash(word) % WORDS for word in words]
        return found

    def append(self, code: np.ndarray, tokens: Sequence[int]) -> None:
        code[:-1] = code[1:].copy()
        code[-1] = tokens[-1] + 1


class ModelEmbeddings:
    """Mean hidden states of a code model, by a fixed random projection to 256 entries (CodeBERT, …).

    Texts are computed once. Raises `ConfigError` where the folder holds no model or the extra `hf` is
    missing.
    """

    def __init__(self, folder: str) -> None:
        try:
            from transformers import AutoModel, AutoTokenizer
        except ImportError:
            raise ConfigError(
                "environment.embedding: model needs transformers.", remedy="pip install greenward[hf]"
            ) from None
        if not (Path(folder) / "config.json").is_file():
            raise ConfigError(f"environment.embedding_model: {folder} holds no model (config.json).")
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._model: Any = AutoModel.from_pretrained(folder, local_files_only=True).eval()
        hidden = self._model.config.hidden_size
        rng = np.random.default_rng(0)
        self._projection = rng.standard_normal((hidden, features.CODE)).astype(np.float32) / hidden**0.5
        self._embedded = lru_cache(maxsize=100_000)(self._mean_state)

    def problem(self, one: TokenProblem) -> np.ndarray:
        return self._embedded(one.problem.starter_code or one.problem.prompt)

    def append(self, code: np.ndarray, tokens: Sequence[int]) -> None: ...

    def code(self, code: np.ndarray, text: str) -> np.ndarray:
        return self._embedded(text)

    def _mean_state(self, text: str) -> np.ndarray:
        import torch

        with torch.no_grad():
            inputs = self._tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
            states = self._model(**inputs).last_hidden_state[0]
        found: np.ndarray = states.mean(0).float().numpy() @ self._projection
        return found


Embeddings = HashedEmbeddings | ModelEmbeddings


def make_embeddings(kind: str, model: str | None, vocabulary: Vocabulary) -> Embeddings:
    """The embeddings that a recipe's `environment.embedding` names."""
    if kind == "model":
        return ModelEmbeddings(str(model))
    return NumberedEmbeddings(vocabulary) if kind == "learned" else HashedEmbeddings(vocabulary)

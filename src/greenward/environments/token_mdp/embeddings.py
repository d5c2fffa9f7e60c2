"""The three kinds of embeddings of an observation: hashed, learned (token ids), or of a code model."""

from __future__ import annotations

import re
from collections.abc import Sequence
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


class HashedEmbeddings:
    """What an observation holds of a problem and of the code so far: vectors of 256 entries each.

    They are fixed random vectors of the newest tokens and of all, and hashed n-grams (`features`).
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._code = features.CodeEmbedding(vocabulary)

    def problem(self, one: TokenProblem) -> np.ndarray:
        return features.problem_embedding(one.problem, one.signature)

    def append(self, code: np.ndarray, tokens: Sequence[int]) -> None:
        """Change the vector of the code, in place, for the newest of `tokens`."""
        self._code.append(code, tokens[-1])

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
        self._known: dict[str, np.ndarray] = {}

    def problem(self, one: TokenProblem) -> np.ndarray:
        return self._embedded(one.problem.starter_code or one.problem.prompt)

    def append(self, code: np.ndarray, tokens: Sequence[int]) -> None: ...

    def code(self, code: np.ndarray, text: str) -> np.ndarray:
        return self._embedded(text)

    def _embedded(self, text: str) -> np.ndarray:
        import torch

        if text not in self._known:
            if len(self._known) > 100_000:
                self._known.clear()
            with torch.no_grad():
                inputs = self._tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
                states = self._model(**inputs).last_hidden_state[0]
            self._known[text] = states.mean(0).float().numpy() @ self._projection
        return self._known[text]


Embeddings = HashedEmbeddings | ModelEmbeddings


def make_embeddings(kind: str, model: str | None, vocabulary: Vocabulary) -> Embeddings:
    """The embeddings that a recipe's `environment.embedding` names."""
    if kind == "model":
        return ModelEmbeddings(str(model))
    return NumberedEmbeddings(vocabulary) if kind == "learned" else HashedEmbeddings(vocabulary)

"""A rollout engine whose answers are written in the test, as text, for the tokenizer of single characters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from greenward.models.policy import Policy
from greenward.rollouts.protocols import Completion, OnGroup, SamplingParams, StopReason
from greenward.tasks.self_play.environment import MoveFormat, MovePrompts, Table
from greenward.tasks.self_play.games import Game
from tiny_model import CharacterTokenizer


class TextEngine:
    """Answers a prompt's text by `answer(text)`, or by `answer(text, generator)` if it is `random`.

    `batches` are the prompts of each call. Equal seeds give equal answers.
    """

    deterministic = True
    max_positions = 10_000_000

    def __init__(self, answer: Callable[..., str], *, random: bool = False) -> None:
        self.batches: list[list[str]] = []
        self._answer = answer
        self._random = random

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        group_sizes: int | Sequence[int],
        params: SamplingParams,
        *,
        seed: int | Sequence[int],
        on_group: OnGroup | None = None,
    ) -> list[list[Completion]]:
        texts = [CharacterTokenizer().decode(prompt) for prompt in prompts]
        self.batches.append(texts)
        sizes = [group_sizes] * len(texts) if isinstance(group_sizes, int) else group_sizes
        seeds = [seed] * len(texts) if isinstance(seed, int) else seed
        groups = []
        for index, (text, size, own_seed) in enumerate(zip(texts, sizes, seeds, strict=True)):
            generator = np.random.default_rng([own_seed, index])
            answers = (
                self._answer(text, generator) if self._random else self._answer(text) for _ in range(size)
            )
            groups.append([_completion(answer) for answer in answers])
            if on_group is not None:
                on_group(index, groups[-1])
        return groups

    def sync(self, policy: Policy) -> None:
        pass


def _completion(text: str) -> Completion:
    ids = np.array([*map(ord, text), 0])
    return Completion(ids, np.full(len(ids), -0.5, np.float32), StopReason.END, 0)


def table_of(game: Game, move_format: MoveFormat = "bare") -> Table:
    return Table(game, MovePrompts(game, CharacterTokenizer(), move_format))

"""From a position to the tokens that a policy sees, and from its tokens back to a move."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from greenward.environments.games.game import Game
from greenward.environments.prompts import PromptTokenizer
from greenward.errors import ConfigError
from greenward.policies.engine import Completion

MoveFormat = Literal["bare", "boxed"]

INSTRUCTION = (
    "You play {role} in a game.\n\n{rules}\n\nWhat you see: {observation}\nYour possible moves: {actions}\n\n"
    "Reason between <think> and </think>, then give your move as \\boxed{{move}}."
)
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_REASONED = re.compile(r"\s*<think>.*?</think>\s*\\boxed\{[^{}]*\}\s*", re.DOTALL)
_SHOWN_ACTIONS = 60
_LONG_MOVE = 32  # tokens, beyond which moves hardly come again


@dataclass(frozen=True)
class Move:
    """What a completion says: the action, None where there is none, and whether the format was kept."""

    action: str | None
    well_formed: bool
    text: str


def explained(game: Game, state: Any, player: int) -> str:
    """What the player to move is asked, in words: the rules, the observation and the possible moves."""
    actions = game.legal_actions(state)
    return INSTRUCTION.format(
        role=game.roles[player],
        rules=game.rules,
        observation=game.observation(state, player),
        actions=", ".join(actions[:_SHOWN_ACTIONS]) + (" …" if len(actions) > _SHOWN_ACTIONS else ""),
    )


def boxed_move(text: str) -> str | None:
    """The move in the last box of an answer, None without one."""
    boxes = _BOXED.findall(text)
    return boxes[-1].strip() if boxes else None


def check_format(game: Game, move_format: MoveFormat) -> None:
    """Raises `ConfigError` for a game whose moves cannot be written so."""
    if move_format == "bare" and not game.actions:
        raise ConfigError(
            f"{game.name} does not list its actions, so a bare move has no end.",
            remedy="Set self_play.move_format=boxed.",
        )


class MovePrompts:
    """Renders the positions of one game for one tokenizer.

    In the format `bare` the prompt is the observation and the completion is the move; in `boxed` the prompt
    explains the game and the completion reasons and then gives \\boxed{move}. `stop_strings` end a bare
    move.
    """

    def __init__(self, game: Game, tokenizer: PromptTokenizer, move_format: MoveFormat) -> None:
        self._game = game
        self._tokenizer = tokenizer
        self._boxed = move_format == "boxed"
        check_format(game, move_format)
        self.stop_strings = () if self._boxed else game.actions
        self._ids: dict[tuple[str, int], tuple[int, ...]] = {}
        self._short_move = lru_cache(maxsize=100_000)(self._parsed)

    def prompt_ids(self, state: Any, player: int) -> tuple[int, ...]:
        """The tokens that the policy continues, one tuple for equal observations."""
        observation = self._game.observation(state, player)
        key = observation, player
        if key not in self._ids:
            if len(self._ids) > 100_000:
                self._ids.clear()
            self._ids[key] = tuple(self._render(state, player, observation))
        return self._ids[key]

    def move(self, completion: Completion) -> Move:
        """The move in a completion; the last box counts."""
        ids = tuple(completion.token_ids.tolist())
        return self._parsed(ids) if len(ids) > _LONG_MOVE else self._short_move(ids)

    def _parsed(self, ids: tuple[int, ...]) -> Move:
        text = self._tokenizer.decode(ids)
        if not self._boxed:
            return Move(text.strip(), True, text)
        return Move(boxed_move(text), _REASONED.fullmatch(text) is not None, text)

    def _render(self, state: Any, player: int, observation: str) -> list[int]:
        if not self._boxed:
            return self._tokenizer.encode(observation, add_special_tokens=True)
        text = explained(self._game, state, player)
        if self._tokenizer.chat_template:
            return self._tokenizer.render_chat([{"role": "user", "content": text}])
        return self._tokenizer.encode(f"{text}\n", add_special_tokens=True)

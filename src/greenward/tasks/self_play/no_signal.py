"""Why steps of self-play taught little or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from greenward.runs.no_signal import ALL, NO_SPREAD, NoSignalCause

_MOST_ILLEGAL = 0.5  # of the moves
_SHORTEST_REASONING = 8  # tokens of an answer with its boxed move
_ILLEGAL = NoSignalCause(
    "illegal moves decide",
    "At least half of the moves are illegal, so the games are lost by them and teach no strategy.",
    "Start from a warm start, lower training.learning_rate, or set self_play.illegal_moves=retry.",
)
_ILLEGAL_IN_SPITE_OF_RETRY = NoSignalCause(
    "illegal moves decide", _ILLEGAL.sentence, "Start from a warm start, or lower training.learning_rate."
)
_MORE_ILLEGAL = NoSignalCause(
    "illegal moves rising",
    "The share of illegal moves is three times what it was.",
    "Lower training.learning_rate, or give self_play.opponents a share of random or league.",
)
_ONE_ROLE_WINS = NoSignalCause(
    "one role always wins",
    "In the games against itself one role always wins, so neither role learns from them.",
    "Give self_play.opponents a share of random or league, or raise algorithm.entropy_coefficient.",
)
_NO_REASONING = NoSignalCause(
    "no reasoning left",
    "The answers are hardly longer than the boxed move.",
    "Lower training.learning_rate, or compare algorithm.advantage=role_baseline with the one in use.",
)
_ALL_DRAWN = NoSignalCause(
    "every game alike",
    "Every game ended with the same result.",
    "Give self_play.opponents a share of random or league, or raise algorithm.entropy_coefficient.",
)


def cause_in_games(
    row: Mapping[str, Any], config: Mapping[str, Any], fewest_illegal: float
) -> NoSignalCause | None:
    """As `runs.no_signal.cause_of`, for a step of games."""
    illegal, boxed = row.get("games/illegal"), config["self_play"]["move_format"] == "boxed"
    if illegal is None:
        return None
    if illegal >= _MOST_ILLEGAL:
        return _ILLEGAL if config["self_play"]["illegal_moves"] == "lose" else _ILLEGAL_IN_SPITE_OF_RETRY
    if illegal > max(3 * fewest_illegal, fewest_illegal + 0.05):
        return _MORE_ILLEGAL
    if boxed and row["games/length"] <= _SHORTEST_REASONING:
        return _NO_REASONING
    if any(row[name] >= ALL for name in row if "/self/" in name and name.endswith("/win")):
        return _ONE_ROLE_WINS
    spread = row.get("reward/std")
    return _ALL_DRAWN if spread is not None and spread <= NO_SPREAD else None

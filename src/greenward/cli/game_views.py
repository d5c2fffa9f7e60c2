"""What a person sees of a game in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from greenward.text import visible

if TYPE_CHECKING:
    from greenward.environments.games.game import Game

_COLOURS = {"X": "cyan", "O": "magenta"}


def view(game: Game, state: Any, player: int) -> str:
    """What `player` may know of a state."""
    shown = _VIEWS.get(game.name)
    return shown(game, state, player) if shown else visible(game.observation(state, player))


def final_view(game: Game, state: Any, player: int) -> str:
    """A state that is over, with what was hidden."""
    if game.name == "kuhn_poker":
        cards, history = state
        hidden = "" if history[-1] == "fold" else f" Your opponent has the {cards[1 - player]}."
        return f"You have the {cards[player]}.{hidden} Moves: {', '.join(history)}."
    if game.name == "negotiation":
        mine, theirs = state.gain(player), state.gain(1 - player)
        return f"Deals: {state.deals}. Gains: you {mine:+d}, your opponent {theirs:+d}."
    return view(game, state, player)


def _tictactoe(game: Game, state: str, player: int) -> str:
    cells = [
        click.style(cell, fg=_COLOURS[cell], bold=True) if cell in _COLOURS else click.style(cell, dim=True)
        for cell in state
    ]
    rows = [f" {' | '.join(cells[start : start + 3])}" for start in (0, 3, 6)]
    return "\n---+---+---\n".join(rows)


def _kuhn_poker(game: Game, state: tuple[str, tuple[str, ...]], player: int) -> str:
    cards, history = state
    pot = 2 + history.count("bet") + history.count("call")
    moves = f" Moves so far: {', '.join(history)}." if history else ""
    return f"Your card: {click.style(cards[player], bold=True, fg='cyan')}   Pot: {pot} chips.{moves}"


def _negotiation(game: Game, state: Any, player: int) -> str:
    lines = ["            you have   one is worth"]
    for name, amount, value in zip(
        ("wheat (W)", "sheep (S)"), state.held(player), state.values[player], strict=True
    ):
        lines.append(f"{name:12}{amount:8}{value:15}")
    left = game.max_moves - state.moves
    lines.append(f"Your gain so far: {state.gain(player):+d}. Moves left, of both: {left}.")
    if state.offer:
        offer = f"Your opponent offers {click.style(state.offer, bold=True, fg='cyan')}"
        legal = "accept" in game.legal_actions(state)
        after = f"makes your gain {game.step(state, 'accept').gain(player):+d}" if legal else "is impossible"
        lines.append(f"{offer} (gives>takes): to accept it {after}.")
    return "\n".join(lines)


_VIEWS: dict[str, Callable[[Game, Any, int], str]] = {
    "tictactoe": _tictactoe,
    "kuhn_poker": _kuhn_poker,
    "negotiation": _negotiation,
}

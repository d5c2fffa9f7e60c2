"""Evaluation of a policy in a game: matches, and the exact figures that the game allows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from greenward.environments.games.environment import Table
from greenward.environments.games.game import ExpertPlayer, RandomPlayer, ScriptedPlayer
from greenward.environments.games.kuhn_poker import KuhnPoker
from greenward.environments.games.negotiation import SimpleNegotiation
from greenward.environments.games.tictactoe import EMPTY, TicTacToe, minimax_value
from greenward.evaluation.exploitability import exploitability, strategy_of, value
from greenward.evaluation.matches import Contestant, play_games, play_match
from greenward.intervals import Z_95, Estimate, proportion
from greenward.policies.engine import RolloutEngine, SamplingParams

_KEPT_ERRORS = 50


def evaluate_game(
    policy: RolloutEngine,
    step: int = 0,
    elapsed_seconds: float = 0.0,
    *,
    table: Table,
    sampling: SamplingParams,
    games: int,
    seed: int,
) -> dict[str, Any]:
    """Plays `games` games against each of random and expert play, and measures what the game allows.

    The policy draws its moves with `sampling`, but for the lines of TicTacToe, where it plays greedily. An
    illegal move loses at once, whatever the rule in training. Returns the record that a run keeps, with these
    metrics, ROLE being the policy's:

    - `OPPONENT/ROLE/won`, `drawn`, `lost`, `illegal` (of those lost) and `not_lost`: shares of the games;
    - TicTacToe: `lines/ROLE/lost` and `drawn` (`greedy_lines`), and as `errors` the positions;
    - Kuhn Poker: `exploitability` and `value` in chips per hand, and as `strategy` the probabilities;
    - Negotiation, from games against itself: `deals`, `efficiency` and `rationality` (`negotiations`).

    `step` and `elapsed_seconds` say when in a run this is and are only recorded.
    """
    began, game = time.perf_counter(), table.game
    contestant = Contestant(policy, table.prompts, sampling)
    metrics: dict[str, Estimate] = {}
    found: dict[str, Any] = {"void": 0}
    opponents: dict[str, ScriptedPlayer] = {"random": RandomPlayer()}
    if game.expert:
        opponents["expert"] = ExpertPlayer()
    for name, opponent in opponents.items():
        for result in play_match(game, contestant, opponent, games=games, seed=seed):
            shares = result.estimates.items()
            metrics |= {f"{name}/{result.role}/{figure}": share for figure, share in shares}
            found["void"] += result.void
    if isinstance(game, TicTacToe):
        found["errors"] = []
        for role in (0, 1):
            lines = greedy_lines(contestant, role)
            metrics |= {
                f"lines/{game.roles[role]}/lost": _exactly(lines.lost / lines.played),
                f"lines/{game.roles[role]}/drawn": _exactly(lines.drawn / lines.played),
            }
            found["errors"] += lines.errors[:_KEPT_ERRORS]
    elif isinstance(game, KuhnPoker):
        strategy = strategy_of(game, contestant, samples=games, seed=seed)
        metrics["exploitability"] = _exactly(exploitability(game, strategy))
        metrics["value"] = _exactly(value(game, strategy))
        found["strategy"] = strategy
    elif isinstance(game, SimpleNegotiation):
        metrics |= negotiations(contestant, games=games, seed=seed)
    return {
        "suite": game.name,
        "step": step,
        "elapsed_seconds": elapsed_seconds,
        "roles": game.roles,
        "expert": game.expert,
        "games": games,
        "temperature": sampling.temperature,
        "headline": _headline(game.roles, metrics),
        "metrics": {name: estimate.to_json() for name, estimate in metrics.items()},
        "rates": {},
        "rows": [],
        "seconds": {"games": time.perf_counter() - began},
        **found,
    }


@dataclass(frozen=True)
class Lines:
    """Complete games of TicTacToe, one for each sequence of legal replies, and where the policy errs.

    `lost` holds those that an illegal move ended. `errors` are the positions, met in most lines first, in
    which the policy's move is illegal or lowers the minimax value, as plain data: `role`, the board as
    `position`, `move`, the number of `lines` that meet it, and the `value` for the policy before and `after`.
    """

    played: int
    drawn: int
    lost: int
    errors: list[dict[str, Any]]


def greedy_lines(contestant: Contestant, role: int) -> Lines:
    """Plays TicTacToe greedily in a role against every sequence of legal replies.

    Each complete game counts once, so a game that an illegal move ends early is a single line, too. All
    positions of a move are asked in one forward pass; those that different sequences lead to are asked once.
    """
    game, prompts = TicTacToe(), contestant.prompts
    greedy = replace(contestant.params, temperature=0.0)
    sign = 1 if role == 0 else -1
    results: Counter[float] = Counter()
    errors: list[dict[str, Any]] = []
    lines = Counter({EMPTY: 1})
    while lines:
        asked = [state for state in lines if game.player(state) == role]
        ids = [prompts.prompt_ids(state, role) for state in asked]
        answers = contestant.engine.sample(ids, 1, greedy, seed=0) if asked else []
        moves = {state: prompts.move(one) for state, (one,) in zip(asked, answers, strict=True)}
        following: Counter[str] = Counter()
        for state, count in lines.items():
            if game.player(state) is None:
                results[sign * game.returns(state)[0]] += count
                continue
            actions = game.legal_actions(state)
            if state in moves:
                move, before = moves[state], sign * minimax_value(state)
                action = move.action if move.action in actions else None
                actions = [action] if action else []
                after = sign * minimax_value(game.step(state, action)) if action else -1.0
                results[-1.0] += 0 if action else count
                if after < before or not action:
                    errors.append(
                        {
                            "role": game.roles[role],
                            "position": "\n".join(" ".join(state[row : row + 3]) for row in (0, 3, 6)),
                            "move": action or f"illegal: {move.text[:40]}",
                            "lines": count,
                            "value": before,
                            "after": after,
                        }
                    )
            for action in actions:
                following[game.step(state, action)] += count
        lines = following
    errors.sort(key=lambda error: -error["lines"])
    return Lines(results.total(), results[0.0], results[-1.0], errors)


def negotiations(contestant: Contestant, *, games: int, seed: int) -> dict[str, Estimate]:
    """What a policy that negotiates with itself reaches, as it stands when each game ends.

    `deals` is the share of games with a deal; `efficiency` the sum of both gains over the largest possible,
    mean over the games in which that is not 0; `rationality` the share of games with a deal in which
    neither player's possessions lost value.
    """
    states = [one.state for one in play_games(SimpleNegotiation(), contestant, None, games=games, seed=seed)]
    traded = [state for state in states if state.deals]
    found = {"deals": proportion(len(traded), games)}
    shares = np.array(
        [(one.gain(0) + one.gain(1)) / one.possible_surplus for one in states if one.possible_surplus]
    )
    if len(shares) > 1:
        mean, half = float(shares.mean()), Z_95 * float(shares.std(ddof=1)) / len(shares) ** 0.5
        found["efficiency"] = Estimate(mean, mean - half, mean + half)
    if traded:
        rational = sum(min(state.gain(0), state.gain(1)) >= 0 for state in traded)
        found["rationality"] = proportion(rational, len(traded))
    return found


def _exactly(figure: float) -> Estimate:
    return Estimate(figure, figure, figure)


def _headline(roles: Iterable[str], metrics: Mapping[str, Estimate]) -> str:
    """The main figures in a line."""
    parts = []
    for label, kind, figure in (
        ("lines lost", "lines", "lost"),
        ("not lost against random play", "random", "not_lost"),
    ):
        named = {role: metrics.get(f"{kind}/{role}/{figure}") for role in roles}
        shares = [f"{100 * one.value:.1f} % as {role}" for role, one in named.items() if one]
        parts += [f"{label} {' and '.join(shares)}"] if shares else []
    parts += [f"{name} {metrics[name].value:.3f}" for name in ("exploitability", "value") if name in metrics]
    negotiated = ("deals", "efficiency", "rationality")
    parts += [f"{name} {100 * metrics[name].value:.1f} %" for name in negotiated if name in metrics]
    return ", ".join(parts)

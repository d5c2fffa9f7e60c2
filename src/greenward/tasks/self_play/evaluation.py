"""Evaluates a policy in a game by matches, and by its distance from an equilibrium where the game allows.

An observation is an information set (`Game.observation`). A `Strategy` has the probability of every legal
action at each; what they lack to 1 is the probability of an illegal move, which forfeits the game.

- `games/GAME/OPPONENT/ROLE/…`: share won, drawn and lost, illegal moves, tokens per move, entropy;
  `grad_norm/ROLE` every 20 steps.
- Matches against random and expert play in each role, with 95 % intervals, at the temperature of training.
- TicTacToe: *lines lost*, the share of games that the greedy policy loses over all legal replies.
- Negotiation: deals, efficiency and rationality.
- Kuhn Poker: exploitability, (best response against the first player + against the second) / 2 in chips per
  hand; uniform play has 0.458.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from greenward.common.seeding import step_seed
from greenward.common.statistics import Z_95, Estimate, proportion
from greenward.rollouts.driver import run_dialogues
from greenward.rollouts.protocols import POLICY, RolloutEngine, SamplingParams
from greenward.tasks.self_play.environment import GameDialogue, MovePrompts, Seat, Table
from greenward.tasks.self_play.games import (
    EMPTY,
    ExpertPlayer,
    FiniteGame,
    Game,
    KuhnPoker,
    RandomPlayer,
    ScriptedPlayer,
    SimpleNegotiation,
    TicTacToe,
    minimax_value,
)

_OPPONENT = "opponent"


@dataclass(frozen=True)
class Contestant:
    """An engine in a match, how it is asked for a move of the game, and how its moves are drawn."""

    engine: RolloutEngine
    prompts: MovePrompts
    sampling: SamplingParams

    @property
    def params(self) -> SamplingParams:
        """The sampling that ends with a bare move."""
        return replace(self.sampling, stop_strings=self.sampling.stop_strings + self.prompts.stop_strings)


@dataclass(frozen=True)
class RoleResult:
    """The games that a contestant played in one role.

    `illegal` of those `lost` ended with an illegal move of the contestant. The games that are `void`, since
    the opponent's engine failed or the game broke its own rules, are in no other number.
    """

    role: str
    won: int
    drawn: int
    lost: int
    illegal: int
    void: int = 0

    @property
    def games(self) -> int:
        """The games with a result."""
        return self.won + self.drawn + self.lost

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Shares of the games with Wilson's 95 % intervals: those of the fields, and `not_lost`.

        Empty where no game had a result.
        """
        if not self.games:
            return {}
        counts = {name: getattr(self, name) for name in ("won", "drawn", "lost", "illegal")}
        counts["not_lost"] = self.won + self.drawn
        return {name: proportion(count, self.games) for name, count in counts.items()}


def play_match(
    game: Game, contestant: Contestant, opponent: Contestant | ScriptedPlayer, *, games: int, seed: int
) -> tuple[RoleResult, RoleResult]:
    """`games` games, the contestant in each role in turn; its results in the first and in the second role.

    An illegal move loses. The same seed gives the same games, if the engines are deterministic.
    """
    dialogues = play_games(game, contestant, opponent, games=games, seed=seed)
    first, second = (_result(game, role, dialogues[role::2]) for role in (0, 1))
    return first, second


def play_games(
    game: Game, contestant: Contestant, opponent: Contestant | ScriptedPlayer | None, *, games: int, seed: int
) -> list[GameDialogue]:
    """Finished games, the contestant in the first role of those with an even number, in all without opponent.

    Without an opponent it plays both roles. All games go on together: one forward pass of an engine for each
    move.
    """
    players, others = {POLICY: contestant.engine}, {}
    seat: Seat = POLICY
    if isinstance(opponent, Contestant):
        seat, players[_OPPONENT] = _OPPONENT, opponent.engine
        others[_OPPONENT] = opponent.prompts, opponent.sampling
    elif opponent is not None:
        seat = opponent
    table = Table(game, contestant.prompts, others=others)
    asked = table.asked(contestant.sampling)
    dialogues = [
        GameDialogue(
            0,
            table,
            _OPPONENT,
            (POLICY, seat) if number % 2 == 0 else (seat, POLICY),
            asked=asked,
            rng=random.Random(step_seed(seed, number, "match")),
        )
        for number in range(games)
    ]
    run_dialogues(dialogues, players, seed=seed)
    return dialogues


def _result(game: Game, role: int, dialogues: list[GameDialogue]) -> RoleResult:
    name = game.roles[role]
    episodes = [dialogue.finish() for dialogue in dialogues]
    rewards = [episode.rewards[name] for episode in episodes if episode.scored]
    return RoleResult(
        name,
        won=sum(reward > 0 for reward in rewards),
        drawn=sum(reward == 0 for reward in rewards),
        lost=sum(reward < 0 for reward in rewards),
        illegal=sum(one.outcome == "illegal" and one.rewards[name] < 0 for one in episodes),
        void=len(episodes) - len(rewards),
    )


Strategy: TypeAlias = Mapping[str, Mapping[str, float]]


def strategy_of(game: FiniteGame, contestant: Contestant, *, samples: int, seed: int) -> Strategy:
    """The probabilities with which a contestant moves at every information set of both players.

    They are exact for a policy that draws bare moves without top-k and top-p: the sum over all token
    sequences that spell the action, with or without a space before it; other white space counts as illegal.
    Otherwise they are the shares of `samples` moves, whose noise makes a policy look the more exploitable
    the fewer there are.
    """
    states = _information_sets(game)
    engine, prompts, sampling = contestant.engine, contestant.prompts, contestant.params
    ids = [prompts.prompt_ids(state, player) for state, player in states.values()]
    legal = [game.legal_actions(state) for state, _ in states.values()]
    if prompts.stop_strings and not sampling.top_k and sampling.top_p == 1:
        chances = _exact_chances(engine, ids, game.actions, legal, sampling)
        if chances is not None:
            return dict(zip(states, chances, strict=True))
    groups = engine.sample(ids, samples, sampling, seed=seed)
    drawn = [Counter(prompts.move(one).action for one in group) for group in groups]
    return {
        observation: {action: counts[action] / samples for action in actions}
        for observation, actions, counts in zip(states, legal, drawn, strict=True)
    }


def _exact_chances(
    engine: RolloutEngine,
    prompts: Sequence[Sequence[int]],
    actions: Sequence[str],
    legal: Sequence[Sequence[str]],
    sampling: SamplingParams,
) -> list[dict[str, float]] | None:
    """The probability of each legal action after each prompt; None for an engine that scores no tokens."""
    import torch

    from greenward.models.policy import Policy
    from greenward.models.scoring import GroupBatch

    if not isinstance(engine, Policy):
        return None
    spelled = {
        action: [
            spelling
            for text in (action, f" {action}")
            for spelling in _spellings(text.encode(), engine.tokenizer.token_bytes, sampling.max_tokens)
        ]
        for action in actions
    }
    completions = [[one for action in each for one in spelled[action]] for each in legal]
    if not all(completions):
        return None
    batch = GroupBatch.build(prompts, completions, engine.device)
    with torch.inference_mode():
        scores = engine.completion_logprobs(batch, temperature=sampling.temperature)
    chances = iter(scores.logprobs_BT.double().sum(1).exp().tolist())
    return [{action: sum(next(chances) for _ in spelled[action]) for action in each} for each in legal]


def exploitability(game: FiniteGame, strategy: Strategy) -> float:
    """What best responses to a strategy gain, mean over both roles; 0 in an equilibrium and only there."""
    return sum(best_response_value(game, strategy, player) for player in (0, 1)) / 2


def best_response_value(game: FiniteGame, strategy: Strategy, player: int) -> float:
    """The most that `player` can gain, in the mean, against an opponent who plays `strategy`.

    The player remembers what it saw, so the best action at an information set is that for all states in it
    together, each weighed by the chance and the opponent's probability of reaching it.
    """

    def gain(weighted: list[tuple[Any, float]]) -> float:
        total, own = 0.0, defaultdict(list)
        while weighted:
            state, weight = weighted.pop()
            if (mover := game.player(state)) is None:
                total += weight * game.returns(state)[player]
            elif mover == player:
                own[game.observation(state, player)].append((state, weight))
            else:
                chances = strategy[game.observation(state, mover)]
                total += weight * (1 - sum(chances.values())) * game.forfeit
                weighted += [(game.step(state, action), weight * p) for action, p in chances.items() if p]
        return total + sum(map(best, own.values()))

    def best(states: list[tuple[Any, float]]) -> float:
        actions = game.legal_actions(states[0][0])
        return max(gain([(game.step(state, action), p) for state, p in states]) for action in actions)

    return gain(list(game.starts()))


def value(game: FiniteGame, strategy: Strategy) -> float:
    """What the first player gains, in the mean, when both play `strategy`."""

    def gain(state: Any) -> float:
        if (mover := game.player(state)) is None:
            return game.returns(state)[0]
        chances = strategy[game.observation(state, mover)]
        forfeits = (1 - sum(chances.values())) * (-game.forfeit if mover == 0 else game.forfeit)
        return forfeits + sum(p * gain(game.step(state, action)) for action, p in chances.items())

    return sum(chance * gain(state) for state, chance in game.starts())


def _information_sets(game: FiniteGame) -> dict[str, tuple[Hashable, int]]:
    """A state and the player to move for every observation, in the order of play."""
    found: dict[str, tuple[Any, int]] = {}
    states: list[Any] = [state for state, _ in game.starts()]
    for state in states:
        if (player := game.player(state)) is not None:
            found.setdefault(game.observation(state, player), (state, player))
            states += [game.step(state, action) for action in game.legal_actions(state)]
    return found


def _spellings(text: bytes, token_bytes: Sequence[bytes], most: int) -> list[tuple[int, ...]]:
    """Every sequence of at most `most` tokens whose bytes are `text`."""
    parts = [(token, piece) for token, piece in enumerate(token_bytes) if piece and piece in text]

    def of(rest: bytes, most: int) -> list[tuple[int, ...]]:
        if not rest or not most:
            return [] if rest else [()]
        return [
            (token, *later)
            for token, piece in parts
            if rest.startswith(piece)
            for later in of(rest[len(piece) :], most - 1)
        ]

    return of(text, most)


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
            metrics |= {f"{name}/{result.role}/{key}": share for key, share in result.estimates.items()}
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

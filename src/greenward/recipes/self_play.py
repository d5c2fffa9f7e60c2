"""From a recipe of self-play to its games, opponents, evaluations and league."""

from __future__ import annotations

import importlib
import os
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from greenward.algorithms.callbacks import Callback
from greenward.algorithms.collection import Environment
from greenward.algorithms.loop import Evaluator
from greenward.algorithms.supervised import Example
from greenward.config.recipe import SelfPlayRecipe
from greenward.config.sections import SupervisedConfig
from greenward.environments.episode import POLICY, Episode
from greenward.environments.games.environment import LATEST, SELF, GameEnvironment, Opponents, Table
from greenward.environments.games.game import ExpertPlayer, Game, RandomPlayer, ScriptedPlayer, check_game
from greenward.environments.games.kuhn_poker import KuhnPoker
from greenward.environments.games.league import LEAGUE, League
from greenward.environments.games.negotiation import SimpleNegotiation
from greenward.environments.games.prompts import MovePrompts, check_format
from greenward.environments.games.textarena_game import PREFIX, TextArenaGame
from greenward.environments.games.tictactoe import TicTacToe
from greenward.errors import ConfigError, GreenwardError
from greenward.evaluation.games import evaluate_game
from greenward.evaluation.matches import Contestant
from greenward.http_client import RequestError
from greenward.policies.endpoint import Endpoint, EndpointEngine, TextTokenizer, is_endpoint
from greenward.policies.engine import RolloutEngine, SamplingParams
from greenward.policies.policy import Policy
from greenward.problems.problem import ProblemSet
from greenward.recipes.build import build_sampling
from greenward.recipes.models import find_model
from greenward.recipes.tasks import find_tracked_suites, open_grader, suite_evaluator
from greenward.runs.directory import RunDirectory
from greenward.runs.trackers import tracker_name

_SHIPPED: tuple[Game, ...] = (TicTacToe(), KuhnPoker(), SimpleNegotiation())
GAMES: Mapping[str, Game] = MappingProxyType({game.name: game for game in _SHIPPED})
SCRIPTED: Mapping[str, ScriptedPlayer] = MappingProxyType(
    {"random": RandomPlayer(), "expert": ExpertPlayer()}
)
MOST_TOKENS = 512
"""Of a move, where no run says how many."""
EXAMPLE_GAMES = 4000
"""Random games whose moves a supervised start learns: the rules and the format, no strategy."""


def find_game(name: str) -> Game:
    """The game of that name, checked by random games. Raises `ConfigError` or `GreenwardError`."""
    if name in GAMES:
        return GAMES[name]
    if name.startswith(PREFIX):
        return TextArenaGame(name.removeprefix(PREFIX))
    module, _, attribute = name.partition(":")
    if not attribute:
        near = get_close_matches(name, GAMES, n=1)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise ConfigError(
            f"{name!r} is no game.",
            remedy=f"{meant}Shipped games: {', '.join(GAMES)}; others are {PREFIX}ID and module:Class.",
        )
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        made: Game = getattr(importlib.import_module(module), attribute)()
        check_game(made)
    except GreenwardError:
        raise
    except Exception as error:  # the user's module may raise anything
        raise ConfigError(
            f"{name} cannot be played. {type(error).__name__}: {error}",
            remedy="Name a class with the attributes and methods of `Game` in "
            "greenward.environments.games.game, which is made without arguments.",
        ) from error
    return made


def served_contestant(game: Game, endpoint: Endpoint, temperature: float) -> Contestant:
    """A model behind a server, which is asked for boxed moves and has answered in a first position.

    Raises `EngineError` if it does not answer, and `ConfigError` if it refuses to.
    """
    sampling, tokenizer = SamplingParams(max_tokens=MOST_TOKENS, temperature=temperature), TextTokenizer()
    prompts, state = MovePrompts(game, tokenizer, "boxed"), game.start(random.Random(0))
    try:
        endpoint.ask(tokenizer.prompt(prompts.prompt_ids(state, game.player(state) or 0)), sampling)
    except RequestError as error:
        raise endpoint.explained(error) from None
    return Contestant(EndpointEngine(endpoint), prompts, sampling)


class SelfPlayTasks:
    """Games of two players: those that are trained on, and matches and exact figures as evaluations."""

    def __init__(self, recipe: SelfPlayRecipe, *_: Any) -> None:
        """Games have neither problems nor reward functions of the caller's own."""
        self.recipe = recipe
        self._games = {config.name: find_game(config.name) for config in recipe.self_play.games}
        for game in self._games.values():
            check_format(game, recipe.self_play.move_format)
        self._league: League | None = None
        self.suites = find_tracked_suites(recipe, ProblemSet([]))
        self._endpoints = {name: Endpoint(name) for name in recipe.self_play.opponents if is_endpoint(name)}
        self._served = {
            (name, game): served_contestant(self._games[game], endpoint, recipe.sampling.temperature)
            for name, endpoint in self._endpoints.items()
            for game in self._games
        }
        others = (SELF, LATEST, LEAGUE, *SCRIPTED, *self._endpoints)
        self._folders = [name for name in recipe.self_play.opponents if name not in others]
        for name in self._folders:
            if not Path(name).is_dir():
                raise ConfigError(
                    f"self_play.opponents: {name!r} is neither an opponent nor a folder.",
                    remedy="Opponents are self, latest, league, random, expert, runs or model folders, and "
                    "MODEL@URL.",
                )

    def open(self, run: RunDirectory, stack: ExitStack) -> None:
        """Start the grader, if the recipe names suites of code; games need nothing."""
        for endpoint in self._endpoints.values():
            stack.callback(endpoint.close)
        if self.suites:
            self.grader, self.suites = open_grader(self.recipe, self.suites, run, stack)

    def texts(self) -> Iterable[str]:
        for game, state, action in self._random_positions(400):
            yield f"{game.observation(state, game.player(state) or 0)} {action}"

    def sample(self, policy: Policy) -> str:
        self._check(policy)
        texts = []
        for table in self._tables(policy):
            state = table.game.start(random.Random(self.recipe.seed))
            ids = table.prompts.prompt_ids(state, table.game.player(state) or 0)
            texts.append(f"# {table.game.name}, first prompt ({len(ids)} tokens):")
            texts.append(policy.tokenizer.decode(ids))
        return "\n".join(texts)

    def examples(self, policy: Policy, config: SupervisedConfig) -> Sequence[Example]:
        """Positions of random games, each with a random legal move in the recipe's format."""
        self._check(policy)
        boxed = self.recipe.self_play.move_format == "boxed"
        prompts = {table.game.name: table.prompts for table in self._tables(policy)}
        encode = policy.tokenizer.encode
        end = (policy.tokenizer.eos_id,) if boxed else ()
        examples = []
        seen = config.max_steps * config.batch_size
        for game, state, action in islice(self._random_positions(EXAMPLE_GAMES), seen):
            text = f"<think>{action} is a legal move.</think>\\boxed{{{action}}}" if boxed else f" {action}"
            prompt_ids = prompts[game.name].prompt_ids(state, game.player(state) or 0)
            examples.append(Example(prompt_ids, (*encode(text), *end)))
        random.Random(self.recipe.seed).shuffle(examples)
        return examples

    def players(self, policy: Policy) -> Mapping[str, RolloutEngine]:
        self._check(policy)
        players: dict[str, RolloutEngine] = {POLICY: policy, LATEST: policy}
        for name in self._folders:
            folder = find_model(name).folder
            players[name] = Policy.from_folder(folder, dtype=policy.dtype, device=policy.device)
        players |= {name: EndpointEngine(endpoint) for name, endpoint in self._endpoints.items()}
        section = self.recipe.self_play
        if section.opponents.get(LEAGUE):
            self._league = League(
                policy,
                players,
                size=section.league.size,
                hardness=section.league.hardness,
                seed=self.recipe.seed,
            )
        return players

    def callbacks(self) -> Sequence[Callback]:
        section = self.recipe.self_play
        every = section.league.snapshot_every
        return [] if self._league is None else [LeagueCallback(self._league, lambda done: done % every == 0)]

    def environment(self, policy: Policy) -> Environment:
        section, training = self.recipe.self_play, self.recipe.training
        return GameEnvironment(
            self._tables(policy),
            Opponents(section.opponents, SCRIPTED, self._league),
            sampling=build_sampling(self.recipe),
            games_per_group=training.num_generations,
            seed=self.recipe.seed,
            illegal_moves=section.illegal_moves,
            opponent_noise=section.opponent_noise,
            format_weight=section.format_weight,
        )

    def evaluators(self, policy: Policy) -> Mapping[str | None, Evaluator]:
        """The evaluation of each game by its name, and those of the suites of code."""
        recipe = self.recipe
        found: dict[str | None, Evaluator] = {
            tracker_name(table.game.name): partial(
                evaluate_game,
                table=table,
                sampling=build_sampling(recipe),
                games=recipe.self_play.evaluation_games,
                seed=recipe.evaluation.seed,
            )
            for table in self._tables(policy)
        }
        return found | {
            one.name: suite_evaluator(one, recipe, policy.tokenizer, self.grader) for one in self.suites
        }

    def _check(self, policy: Policy) -> None:
        """Raises `ConfigError` for opponents with other tokens, and for moves and prompts that do not fit."""
        for name in self._folders:
            if find_model(name).tokenizer.backend.to_str() != policy.tokenizer.backend.to_str():
                raise ConfigError(
                    f"self_play.opponents: the tokenizer of {name} is not that of the policy.",
                    remedy="Play against a model that was trained from the same start, or start from it: "
                    f"model={name} warm_start=null.",
                )
        room, encode = self.recipe.sampling.max_tokens, policy.tokenizer.encode
        tables = {table.game.name: table for table in self._tables(policy)}
        for table in tables.values():
            tokens = {move: len(encode(f" {move}")) for move in table.game.actions}
            longest = max(tokens, key=lambda move: tokens[move], default="")
            if table.prompts.stop_strings and tokens[longest] > room:
                raise ConfigError(
                    f"{table.game.name}: the move {longest!r} takes {tokens[longest]} tokens, more than "
                    f"sampling.max_tokens, {room}.",
                    remedy=f"Set sampling.max_tokens={tokens[longest]}.",
                )
        for game, state, _ in islice(self._random_positions(EXAMPLE_GAMES), 100):
            prompt_ids = tables[game.name].prompts.prompt_ids(state, game.player(state) or 0)
            if len(prompt_ids) + room > policy.max_positions:
                raise ConfigError(
                    f"{game.name}: a prompt of {len(prompt_ids)} tokens and a move of {room} are more than "
                    f"the model's {policy.max_positions} positions.",
                    remedy="Lower sampling.max_tokens, or raise model.shape.max_positions.",
                )

    def _tables(self, policy: Policy) -> list[Table]:
        move_format = self.recipe.self_play.move_format
        return [
            Table(
                self._games[config.name],
                MovePrompts(self._games[config.name], policy.tokenizer, move_format),
                config.weight,
                {
                    name: (served.prompts, served.sampling)
                    for (name, game), served in self._served.items()
                    if game == config.name
                },
            )
            for config in self.recipe.self_play.games
        ]

    def _random_positions(self, games: int) -> Iterable[tuple[Game, Any, str]]:
        """The positions of random games and the random move in each.

        Of games that cannot list their actions a twentieth is played: they try each action, which is slow.
        """
        for number in range(games):
            for game in self._games.values():
                if number % 20 and not game.actions:
                    continue
                rng = random.Random(f"{self.recipe.seed}/{number}")
                state = game.start(rng)
                while game.player(state) is not None:
                    action = RandomPlayer().act(game, state, rng)
                    yield game, state, action
                    state = game.step(state, action)


@dataclass(eq=False)
class LeagueCallback(Callback):
    """Tells a league the results of each step, and lets the policy join it.

    `joins` says after how many steps.
    """

    name = LEAGUE

    league: League
    joins: Callable[[int], bool]

    def on_episodes(self, episodes: Sequence[Episode]) -> Sequence[Episode]:
        self.league.record(episodes)
        return episodes

    def on_step_begin(self, step: int) -> None:
        if step > 1 and self.joins(step - 1):
            self.league.add()

    def state_dict(self) -> dict[str, Any]:
        return self.league.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.league.load_state_dict(state)

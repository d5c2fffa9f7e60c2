"""Trains by self-play from a recipe, and finds and evaluates models that play. Shape suffix: P parameters."""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from greenward.common.errors import ConfigError
from greenward.common.http import RequestError
from greenward.config.recipe import SelfPlayRecipe
from greenward.config.sections import SupervisedConfig
from greenward.evaluation.session import usual_folder
from greenward.evaluation.store import SETTINGS, SUMMARY, refuse_other_settings
from greenward.models.catalog import FoundModel, build_sampling, find_model
from greenward.models.policy import Policy
from greenward.problems.problem import ProblemSet
from greenward.reports.evaluation import RESULTS, evaluation_report
from greenward.reports.write import write_report
from greenward.rollouts.endpoint import Endpoint, EndpointEngine, TextTokenizer, is_endpoint
from greenward.rollouts.engine import RolloutEngine, SamplingParams
from greenward.rollouts.episode import POLICY, Episode
from greenward.runs.directory import RunDirectory
from greenward.runs.files import write_json, write_rows
from greenward.runs.machine import collect_provenance
from greenward.runs.output import check_folder, claim_folder
from greenward.runs.progress import Progress, evaluation_line
from greenward.runs.trackers import tracker_name
from greenward.tasks.league import LEAGUE, League, LeagueCallback
from greenward.tasks.problem_task import find_tracked_suites, open_grader, suite_evaluator
from greenward.tasks.self_play.environment import (
    LATEST,
    SELF,
    GameEnvironment,
    Move,
    MoveFormat,
    MovePrompts,
    Opponents,
    Table,
    check_format,
)
from greenward.tasks.self_play.evaluation import Contestant, evaluate_game
from greenward.tasks.self_play.game import Game, RandomPlayer, ScriptedPlayer
from greenward.tasks.self_play.games import GAMES, PREFIX, SCRIPTED, find_game
from greenward.training.advantages import Advantages, Estimator
from greenward.training.batch import MicroBatch, TrainingRow, micro_batches, row_groups
from greenward.training.collector import Environment
from greenward.training.loop import Evaluator
from greenward.training.protocols import Callback
from greenward.training.sft import Example

MOST_TOKENS = 512
"""Of a move, where no run says how many."""
EXAMPLE_GAMES = 4000
"""Random games whose moves a supervised start learns: the rules and the format, no strategy."""


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
        every = self.recipe.self_play.league.snapshot_every
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
        return [
            Table(
                self._games[config.name],
                MovePrompts(self._games[config.name], policy.tokenizer, self.recipe.self_play.move_format),
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


OPTIONS = ("checkpoint", "temperature", "seed", "dtype", "device")
"""Those of the options of an evaluation of code that one of games has, too."""


def asked_games(model: FoundModel, suite: str | None) -> Sequence[str]:
    """The games that `suite` means for a model, without it those of its run; none for a suite of code.

    Raises `ConfigError` where only the run names the class of a game, since importing it would run code.
    """
    if not isinstance(model.recipe, SelfPlayRecipe):
        return ()
    own = [config.name for config in model.recipe.self_play.games]
    if suite is None:
        if code := [name for name in own if ":" in name and not name.startswith(PREFIX)]:
            raise ConfigError(
                f"{model.name} plays {', '.join(code)}, whose code would be imported and run here.",
                remedy=f"If you trust that code, name it: --suite {code[0]}",
            )
        return own
    return [suite] if suite in (*own, *GAMES) else ()


def refuse_options(given: Collection[str]) -> None:
    """Raises `ConfigError` for options that an evaluation of games has not."""
    if wrong := sorted(set(given) - {*OPTIONS, "samples"}):
        raise ConfigError(
            f"an evaluation of games has no {', '.join(wrong)}: they concern answers to problems.",
            remedy=f"Leave them out (games have {', '.join(OPTIONS)} and the number of games), or name a "
            "suite of code.",
        )


def evaluate_games(
    model: FoundModel,
    names: Sequence[str],
    out: str | Path | None,
    progress: Progress,
    *,
    games: int | None = None,
    overwrite: bool = False,
    options: Mapping[str, Any],
) -> tuple[dict[str, Any], Path]:
    """Evaluates a model as its run does, and writes the folder `out`; returns the summary and the folder.

    `games` is the number of each match, that of the recipe where it is None; so are temperature, dtype and
    device where `options` has none. Raises `RunError` for a folder that holds something else; with
    `overwrite`, an evaluation that is there is deleted.
    """
    recipe = model.recipe
    assert isinstance(recipe, SelfPlayRecipe)
    given = {name: value for name, value in options.items() if value is not None}
    sampling = replace(
        build_sampling(recipe), temperature=given.get("temperature", recipe.sampling.temperature)
    )
    count = games or recipe.self_play.evaluation_games
    settings = {
        "command": "eval",
        "suite": ", ".join(names),
        "weights": model.weights_hash,
        "games": count,
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_tokens,
        "move_format": recipe.self_play.move_format,
        "seed": given.get("seed", 0),
        "dtype": given.get("dtype", recipe.model.dtype),
    }
    folder = usual_folder("eval", model.name, "-".join(names)) if out is None else Path(out)
    check_folder(folder, "evaluation") if overwrite else refuse_other_settings(folder, settings)
    found = [find_game(name) for name in names]
    device = given.get("device", recipe.model.device)
    policy = Policy.from_folder(model.folder, dtype=settings["dtype"], device=device)
    began, records = time.perf_counter(), []
    for game in found:
        table = Table(game, MovePrompts(game, policy.tokenizer, recipe.self_play.move_format))
        record = evaluate_game(
            policy, model.step or 0, table=table, sampling=sampling, games=count, seed=settings["seed"]
        )
        progress.message(evaluation_line(record, game.name))
        records.append(record)
    summary = {
        "suite": settings["suite"],
        "command": "eval",
        "model": model.to_json(),
        "metrics": {f"{one['suite']}/{name}": m for one in records for name, m in one["metrics"].items()},
        "rates": {},
        "failures": [],
        "settings": settings,
        "seconds": {"wall": time.perf_counter() - began},
        "sessions": [collect_provenance(str(policy.device))],
        "notes": [],
    }
    claim_folder(folder, "evaluation", overwrite=overwrite)
    write_json(folder / SETTINGS, settings)
    write_rows(folder / RESULTS, records)
    write_json(folder / SUMMARY, summary)
    write_report(evaluation_report(folder), folder)
    return summary, folder


def find_contestant(
    game: Game, model: str, *, temperature: float | None = None, key_variable: str | None = None
) -> Contestant:
    """The run or model of that name, asked for its moves in the way in which its run was trained.

    Without a run of self-play it is asked for a boxed move if its tokenizer has a chat template, else for a
    bare one, at temperature 1. A name MODEL@URL or URL is a model behind a server, which is asked for boxed
    moves through the chat API. Raises `CheckpointError`, `ConfigError` and `EngineError`.
    """
    if is_endpoint(model):
        endpoint = Endpoint(model, key_variable=key_variable)
        return served_contestant(game, endpoint, 1.0 if temperature is None else temperature)
    found = find_model(model)
    recipe = found.recipe
    policy = Policy.from_folder(found.folder, dtype=recipe.model.dtype if recipe else "auto")
    move_format: MoveFormat = "boxed" if policy.tokenizer.chat_template else "bare"
    sampling = SamplingParams(max_tokens=min(MOST_TOKENS, policy.max_positions // 2))
    if isinstance(recipe, SelfPlayRecipe):
        move_format, sampling = recipe.self_play.move_format, build_sampling(recipe)
    if temperature is not None:
        sampling = replace(sampling, temperature=temperature)
    return Contestant(policy, MovePrompts(game, policy.tokenizer, move_format), sampling)


def find_opponent(
    game: Game, name: str, *, temperature: float | None = None, key_variable: str | None = None
) -> Contestant | ScriptedPlayer:
    """A run, a model or MODEL@URL, `random`, `expert`, or the expert by its own name, such as `minimax`.

    Raises `ConfigError` for the expert of another game, and what `find_contestant` raises.
    """
    if name == "random" or (game.expert and name in ("expert", game.expert)):
        return SCRIPTED["random" if name == "random" else "expert"]
    if name in {"expert", *(other.expert for other in GAMES.values())}:
        there = f"random, {game.expert} (or expert)" if game.expert else "random"
        raise ConfigError(
            f"{game.name} has no opponent {name!r}.", remedy=f"It has {there}, and any run or model folder."
        )
    return find_contestant(game, name, temperature=temperature, key_variable=key_variable)


def next_move(game: Game, contestant: Contestant, state: Any, *, seed: int) -> Move:
    """What the contestant answers in this state; the action may be illegal."""
    prompt_ids = contestant.prompts.prompt_ids(state, game.player(state) or 0)
    ((completion,),) = contestant.engine.sample([prompt_ids], 1, contestant.params, seed=seed)
    return contestant.prompts.move(completion)


def role_gradients(
    policy: Policy, episodes: Sequence[Episode], advantages: Advantages, *, micro_batch_sequences: int
) -> dict[str, Tensor]:
    """The gradient (P,) of mean(A log p) over the trained tokens of all roles, in the part of each role.

    This is the gradient of every surrogate at the policy that sampled the episodes, where the ratio is 1.
    """
    groups, _ = row_groups(episodes, replace(advantages, needs_groups=False), mask_truncated=False)
    by_role: dict[str, list[TrainingRow]] = {}
    for row in (row for group in groups for row in group):
        by_role.setdefault(row.turn.role, []).append(row)
    tokens = sum(row.turn.policy_tokens for rows in by_role.values() for row in rows)
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    gradients = {}
    for role, rows in by_role.items():
        total_P = torch.zeros(sum(p.numel() for p in parameters), device=policy.device)
        for sharers in micro_batches(rows, micro_batch_sequences):
            batch = MicroBatch.build(sharers, device=policy.device)
            objective = (
                batch.scores(policy).logprobs_BT * batch.advantages_BT * batch.mask_BT
            ).sum() / tokens
            found = torch.autograd.grad(objective, parameters, materialize_grads=True)
            total_P += torch.cat([gradient.flatten() for gradient in found])
        gradients[role] = total_P
    return gradients


@dataclass(eq=False)
class RoleGradientNorms(Estimator):
    """An estimator that measures the norm of the gradient of each role, at every `every`-th batch."""

    estimator: Estimator
    policy: Policy
    _: KW_ONLY
    every: int
    micro_batch_sequences: int
    _batches: int = field(default=0, init=False)
    _saved: ClassVar = {"estimator": "estimator", "batches": "_batches"}

    def __call__(self, episodes: Sequence[Episode]) -> Advantages:
        batch = self.estimator(episodes)
        self._batches += 1
        if (self._batches - 1) % self.every:
            return batch
        gradients = role_gradients(
            self.policy, episodes, batch, micro_batch_sequences=self.micro_batch_sequences
        )
        norms = {f"grad_norm/{role}": float(gradient_P.norm()) for role, gradient_P in gradients.items()}
        return replace(batch, metrics={**batch.metrics, **norms})

"""Trains by self-play from a recipe, and finds and evaluates models that play."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from greenward.common.errors import ConfigError
from greenward.common.http import RequestError
from greenward.config.recipe import ReinforcementRecipe, recipes_with
from greenward.config.section import ConfigSection, Fraction, PositiveFraction
from greenward.config.sections import InferenceDType, LossOrOwn, PolicyGradientConfig, SupervisedConfig, named
from greenward.evaluation.grading_options import GradingOptions
from greenward.evaluation.session import usual_folder
from greenward.evaluation.store import SETTINGS, SUMMARY, refuse_other_settings
from greenward.problems.problem import ProblemSet
from greenward.reports.evaluation import evaluation_report
from greenward.reports.write import write_report
from greenward.rollouts.endpoint import Endpoint, EndpointEngine, TextTokenizer, is_endpoint
from greenward.rollouts.protocols import POLICY, Environment, RolloutEngine, SamplingParams
from greenward.runs.directory import RunDirectory
from greenward.runs.files import write_json, write_rows
from greenward.runs.machine import collect_provenance
from greenward.runs.no_signal import ALL, NO_SPREAD, NoSignalCause
from greenward.runs.output import check_folder, claim_folder
from greenward.runs.progress import Progress, evaluation_line
from greenward.runs.reading import RESULTS
from greenward.runs.trackers import tracker_name
from greenward.tasks.opponents import LEAGUE, SELF, League, LeagueCallback, OpponentTask, opponents_too_late
from greenward.tasks.self_play.environment import (
    LATEST,
    GameEnvironment,
    Move,
    MoveFormat,
    MovePrompts,
    Opponents,
    Table,
    check_format,
)
from greenward.tasks.self_play.evaluation import Contestant, evaluate_game
from greenward.tasks.self_play.games import (
    GAMES,
    PREFIX,
    SCRIPTED,
    Game,
    RandomPlayer,
    ScriptedPlayer,
    find_game,
)
from greenward.tasks.task import Say
from greenward.training.protocols import Callback, Evaluator, Example

if TYPE_CHECKING:
    from greenward.models.catalog import FoundModel, PromptReader
    from greenward.models.policy import Policy
    from greenward.training.advantages import Estimator

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


class GameConfig(ConfigSection):
    """A game and how often it is played. A name alone is enough."""

    name: str = Field(
        description="tictactoe, kuhn_poker, negotiation, textarena:ID, or your class as module:Class"
    )
    weight: PositiveFloat = Field(1.0, description="its share of the groups, relative to the other games")


class LeagueConfig(ConfigSection):
    """Earlier versions as opponents, drawn in proportion to (1 - score against them)^hardness."""

    size: PositiveInt = Field(8, description="versions that are kept; the oldest leaves first")
    snapshot_every: PositiveInt = Field(20, description="steps after which the policy joins")
    hardness: NonNegativeFloat = Field(1.0, description="0 = all versions are equally likely")


class SelfPlayConfig(ConfigSection):
    """What is played against whom, and how a move is written."""

    games: tuple[
        Annotated[GameConfig, BeforeValidator(named, json_schema_input_type=str | GameConfig)], ...
    ] = Field((GameConfig(name="tictactoe"),), min_length=1)
    opponents: dict[str, NonNegativeFloat] = Field(
        {"self": 1.0},
        description="share of the games against self, latest (the policy, not trained on), league, random, "
        "expert (minimax, equilibrium or best response), a run or model folder, or MODEL@URL (a model behind "
        "an OpenAI-compatible server)",
    )
    opponent_noise: Fraction = Field(
        0.0, description="share of random legal moves of opponents that are models: more positions are seen"
    )
    league: LeagueConfig = LeagueConfig()
    move_format: Literal["bare", "boxed"] = Field(
        "bare", description="the move alone, or reasoning and then \\boxed{move}"
    )
    illegal_moves: Literal["lose", "retry"] = Field("lose", description="retry: one more answer is asked for")
    format_weight: NonNegativeFloat = Field(
        0.0, description="reward of a player all of whose moves keep the format"
    )
    evaluation_games: PositiveInt = Field(2000, description="games of each match of an evaluation")

    def mistakes(self) -> Iterator[str]:
        if not sum(self.opponents.values()) > 0:
            yield "opponents: give at least one of them a share above 0, such as {self: 1}"
        names = [game.name for game in self.games]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            yield f"games names {twice[0]} twice; give it a weight instead"


class SelfPlayAlgorithmConfig(PolicyGradientConfig):
    """Policy gradients whose baseline is conditioned on the role (SPIRAL, arXiv 2506.24119).

    Each game, opponent and role has a baseline, the running mean of its returns, b ← 0.95 b + 0.05 R, and the
    advantage is A = R − b, not divided by the length of the answer. The baselines are part of every
    checkpoint. With `discount` below 1 the k-th move of a role has a baseline of its own.
    """

    name: Literal["grpo"] = "grpo"
    loss: LossOrOwn = "ppo"
    advantage: Literal["role_baseline", "group_mean", "position_mean", "none"] = Field(
        "role_baseline",
        description="what is subtracted from the return of a role; position_mean is the mean of the step's "
        "returns in equal positions, for games that have few",
    )
    baseline_decay: Fraction = Field(0.95, description="of the running mean of each task and role")
    baseline_updated_first: bool = Field(
        False, description="the order printed in the paper; the official code subtracts the mean of before"
    )
    discount: PositiveFraction = Field(1.0, description="of the result, per own move that follows")


class SelfPlaySections(ConfigSection):
    """What self-play adds to a recipe."""

    self_play: SelfPlayConfig = SelfPlayConfig()


class SelfPlayRecipe(SelfPlaySections, ReinforcementRecipe):
    """Two-player games against itself, earlier versions and scripted players."""

    task: Literal["self_play"] = "self_play"
    algorithm: SelfPlayAlgorithmConfig = Field(SelfPlayAlgorithmConfig(), validate_default=True)

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        yield from opponents_too_late(self)


MOST_TOKENS = 512
"""Of a move, where no run says how many."""
ROLE_GRADIENTS_EVERY = 20
"""Steps between two measurements of the gradient of each role, which cost about one pass of the update."""
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


class SelfPlay(OpponentTask):
    """Games of two players: those that are trained on, and matches and exact figures as evaluations."""

    recipes: ClassVar = {
        "grpo": SelfPlayRecipe,
        **recipes_with("self_play", SelfPlaySections, algorithms=["sft"]),
    }
    label: ClassVar = "Self-play"
    answers: ClassVar = "moves"
    no_signal = staticmethod(cause_in_games)
    recipe: SelfPlayRecipe

    @classmethod
    def games(cls, run: str, suite: str | None, checkpoint: str | None = None) -> Sequence[str]:
        from greenward.models.catalog import find_model

        return asked_games(find_model(run, checkpoint), suite)

    @classmethod
    def evaluation(cls, run: str, suite: str | None, given: Mapping[str, Any]) -> GameEvaluation | None:
        from greenward.models.catalog import find_model

        model = find_model(run, given.get("checkpoint"))
        return GameEvaluation(model, games, given) if (games := asked_games(model, suite)) else None

    @staticmethod
    def described(config: Mapping[str, Any]) -> str:
        """What kind of training a mixture of opponents is, so that nobody takes it for another one."""
        settings = config.get("self_play") or {}
        opponents = settings.get("opponents") or {SELF: 1.0}
        given = {name: share for name, share in opponents.items() if share}
        total = sum(given.values())
        if set(given) == {SELF}:
            return "Opponents: pure self-play. The policy played every game against itself."
        names = {SELF: "itself", LEAGUE: "earlier versions", "random": "random play", "expert": "the expert"}
        shares = [
            f"{100 * share / total:.0f} % of the games against {names.get(n, n)}"
            for n, share in given.items()
        ]
        mixture = "league" if set(given) <= {SELF, LEAGUE} else "mixture"
        return f"Opponents: {mixture}, {', '.join(shares)}. This is not pure self-play."

    def __init__(
        self,
        recipe: SelfPlayRecipe,
        given: Mapping[str, ProblemSet] = MappingProxyType({}),
        functions: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    ) -> None:
        self._games = {config.name: find_game(config.name) for config in recipe.self_play.games}
        for game in self._games.values():
            check_format(game, recipe.self_play.move_format)
        super().__init__(recipe)
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
        for endpoint in self._endpoints.values():
            stack.callback(endpoint.close)
        super().open(run, stack)

    def texts(self) -> Iterable[str]:
        for game, state, action in self._random_positions(400):
            yield f"{game.observation(state, game.player(state) or 0)} {action}"

    def found(self) -> Iterator[str]:
        yield f"games: {', '.join(self._games)}"
        yield from super().found()

    def check_model(self, model: PromptReader, warn: Say) -> str:
        self._check(model)
        return super().check_model(model, warn)

    def sample(self, model: PromptReader | None) -> str:
        assert model is not None
        texts = []
        for table in self._tables(model):
            state = table.game.start(random.Random(self.recipe.seed))
            ids = table.prompts.prompt_ids(state, table.game.player(state) or 0)
            texts.append(f"# {table.game.name}, first prompt ({len(ids)} tokens):")
            texts.append(model.tokenizer.decode(ids))
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
        from greenward.models.catalog import find_model
        from greenward.models.policy import Policy as LoadedPolicy

        self._check(policy)
        players: dict[str, RolloutEngine] = {POLICY: policy, LATEST: policy}
        for name in self._folders:
            folder = find_model(name).folder
            players[name] = LoadedPolicy.for_inference(folder, dtype=policy.dtype, device=policy.device)
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

    def estimator(self, policy: Policy) -> Estimator:
        from greenward.tasks.self_play.role_gradients import RoleGradientNorms
        from greenward.training.advantages import RoleBaselineEstimator

        algorithm = self.recipe.algorithm
        return RoleGradientNorms(
            RoleBaselineEstimator(
                algorithm.advantage,
                decay=algorithm.baseline_decay,
                updated_first=algorithm.baseline_updated_first,
                discount=algorithm.discount,
            ),
            policy,
            every=ROLE_GRADIENTS_EVERY,
            micro_batch_sequences=self.recipe.training.micro_batch_sequences,
        )

    def wrong_with_processes(self, sharding: str) -> str | None:
        if sharding == "ddp":
            return None
        return f"self-play measures whole gradients of the roles, and {sharding} shares them out"

    def callbacks(self, say: Say) -> Sequence[Callback]:
        every = self.recipe.self_play.league.snapshot_every
        return [] if self._league is None else [LeagueCallback(self._league, lambda done: done % every == 0)]

    def environment(self, policy: Policy) -> Environment:
        section, training = self.recipe.self_play, self.recipe.training
        return GameEnvironment(
            self._tables(policy),
            Opponents(section.opponents, SCRIPTED, self._league),
            sampling=SamplingParams.of(self.recipe),
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
                sampling=SamplingParams.of(recipe),
                games=recipe.self_play.evaluation_games,
                seed=recipe.evaluation.seed,
            )
            for table in self._tables(policy)
        }
        return {**found, **super().evaluators(policy)}

    def _check(self, policy: Policy | PromptReader) -> None:
        """Raises `ConfigError` for opponents with other tokens, and for moves and prompts that do not fit."""
        from greenward.models.catalog import find_model

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

    def _tables(self, policy: Policy | PromptReader) -> list[Table]:
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


@dataclass(frozen=True)
class GameEvaluation:
    """A model that is evaluated in games as its run does.

    `options` are those of an evaluation: `samples` is the number of games of each match, that of the recipe
    for 1; so are `temperature`, `dtype` and `device` where they are not given. Raises `ConfigError` for those
    that concern answers to problems.
    """

    model: FoundModel
    games: Sequence[str]
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        if wrong := sorted(set(self.options) - {*OPTIONS, "samples", "overwrite"}):
            raise ConfigError(
                f"an evaluation of games has no {', '.join(wrong)}: they concern answers to problems.",
                remedy=f"Leave them out (games have {', '.join(OPTIONS)} and the number of games), or name a "
                "suite of code.",
            )

    def run(
        self, out: str | Path | None, grading: GradingOptions, progress: Progress
    ) -> tuple[dict[str, Any], Path]:
        """Write the folder `out`; returns the summary and the folder.

        Raises `RunError` for a folder that holds something else; with `grading.overwrite`, an evaluation that
        is there is deleted.
        """
        from greenward.models.policy import Policy

        model, names = self.model, self.games
        recipe = model.recipe
        assert isinstance(recipe, SelfPlayRecipe)
        given = {name: value for name, value in self.options.items() if value is not None}
        sampling = replace(
            SamplingParams.of(recipe), temperature=given.get("temperature", recipe.sampling.temperature)
        )
        samples = given.get("samples", 1)
        count = samples if samples > 1 else recipe.self_play.evaluation_games
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
        check_folder(folder, "evaluation") if grading.overwrite else refuse_other_settings(folder, settings)
        found = [find_game(name) for name in names]
        device = given.get("device", recipe.model.device)
        policy = Policy.for_inference(model.folder, dtype=settings["dtype"], device=device)
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
        claim_folder(folder, "evaluation", overwrite=grading.overwrite)
        write_json(folder / SETTINGS, settings)
        write_rows(folder / RESULTS, records)
        write_json(folder / SUMMARY, summary)
        write_report(evaluation_report(folder), folder)
        return summary, folder


def find_contestant(
    game: Game,
    model: str,
    *,
    temperature: float | None = None,
    key_variable: str | None = None,
    dtype: InferenceDType | None = None,
) -> Contestant:
    """The run or model of that name, asked for its moves in the way in which its run was trained.

    Without a run of self-play it is asked for a boxed move if its tokenizer has a chat template, else for a
    bare one, at temperature 1. It is computed in `dtype`, by default as in its run, else in auto. A name
    MODEL@URL or URL is a model behind a server, which is asked for boxed moves through the chat API. Raises
    `CheckpointError`, `ConfigError` and `EngineError`.
    """
    if is_endpoint(model):
        endpoint = Endpoint(model, key_variable=key_variable)
        return served_contestant(game, endpoint, 1.0 if temperature is None else temperature)
    from greenward.models.catalog import find_model
    from greenward.models.policy import Policy

    found = find_model(model)
    recipe = found.recipe
    own = recipe.model.dtype if recipe else "auto"
    policy = Policy.for_inference(found.folder, dtype=dtype or own)
    move_format: MoveFormat = "boxed" if policy.tokenizer.chat_template else "bare"
    sampling = SamplingParams(max_tokens=min(MOST_TOKENS, policy.max_positions // 2))
    if isinstance(recipe, SelfPlayRecipe):
        move_format, sampling = recipe.self_play.move_format, SamplingParams.of(recipe)
    if temperature is not None:
        sampling = replace(sampling, temperature=temperature)
    return Contestant(policy, MovePrompts(game, policy.tokenizer, move_format), sampling)


def find_opponent(game: Game, name: str, **how: Any) -> Contestant | ScriptedPlayer:
    """A run, a model or MODEL@URL, `random`, `expert`, or the expert by its own name, such as `minimax`.

    `how` is that of `find_contestant`. Raises `ConfigError` for the expert of another game, and what
    `find_contestant` raises.
    """
    if name == "random" or (game.expert and name in ("expert", game.expert)):
        return SCRIPTED["random" if name == "random" else "expert"]
    if name in {"expert", *(other.expert for other in GAMES.values())}:
        there = f"random, {game.expert} (or expert)" if game.expert else "random"
        raise ConfigError(
            f"{game.name} has no opponent {name!r}.", remedy=f"It has {there}, and any run or model folder."
        )
    return find_contestant(game, name, **how)


def next_move(game: Game, contestant: Contestant, state: Any, *, seed: int) -> Move:
    """What the contestant answers in this state; the action may be illegal."""
    prompt_ids = contestant.prompts.prompt_ids(state, game.player(state) or 0)
    ((completion,),) = contestant.engine.sample([prompt_ids], 1, contestant.params, seed=seed)
    return contestant.prompts.move(completion)

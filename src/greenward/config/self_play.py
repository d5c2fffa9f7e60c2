"""The sections of `kind: self_play`: games, opponents, the league and the algorithm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from greenward.config.algorithm import AlgorithmConfig, Loss
from greenward.config.sections import ConfigSection, Fraction, PositiveFraction, named


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
        0.0,
        description="share of random legal moves of opponents that are models: more positions are seen",
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


class CodeGameConfig(ConfigSection):
    """The game of code: who predicts, which role is trained when, and what a program may do."""

    predictor: Literal["frozen", "league", "self", "constant", "last_literal", "interpreter"] = Field(
        "frozen",
        description="the policy as it was when the phase began; as it was at the beginning of any phase, the "
        "stronger ones more often; the policy itself, which learns both roles at once; or a script",
    )
    phases: tuple[PositiveInt, PositiveInt] | None = Field(
        None,
        description="steps for which the generator is trained, then the predictor, and so on, each against "
        "the policy of before; none = the generator throughout",
    )
    league_size: PositiveInt = Field(8, description="versions that predictor: league keeps")
    max_program_tokens: PositiveInt | None = Field(
        None, description="a program of more loses; none = sampling.max_tokens, as for a prediction"
    )
    max_output_bytes: PositiveInt = Field(32, description="a program that prints more loses")
    max_operations: PositiveInt = Field(10_000, description="a program that takes more loses")
    evaluation_games: PositiveInt = Field(500, description="games of each pair in an evaluation")

    def mistakes(self) -> Iterator[str]:
        if self.phases and self.predictor not in ("frozen", "league"):
            yield f"phases need predictor: frozen or league; {self.predictor} has none"
        if self.predictor == "league" and not self.phases:
            yield "predictor: league needs phases: a version joins in each"


class SelfPlayAlgorithmConfig(AlgorithmConfig):
    """Policy gradients whose baseline is conditioned on the role (SPIRAL, arXiv 2506.24119)."""

    loss: Loss = "ppo"
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

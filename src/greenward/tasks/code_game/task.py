"""From a recipe of the game of code to its players, phases and evaluations."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt

from greenward.common.errors import ConfigError
from greenward.common.seeding import step_seed
from greenward.common.statistics import Estimate, rate
from greenward.config.recipe import ReinforcementRecipe, recipes_with, without_groups
from greenward.config.section import ConfigSection
from greenward.config.sections import GRPOAlgorithmConfig, SupervisedConfig
from greenward.grading.judge import build_limits
from greenward.rollouts.protocols import POLICY, Environment, RolloutEngine, SamplingParams
from greenward.runs.directory import RunDirectory
from greenward.sandbox.isolation import Level
from greenward.tasks.code_game.environment import (
    GENERATOR,
    MOST_CHANGES,
    MOST_PREDICTED_CHANGES,
    PREDICTOR,
    PRINTS,
    CodeGameEnvironment,
    CodeGamePrompts,
    diversity_and_difficulty,
    predict_by_interpreting,
    random_program,
    trace_by_interpreting,
)
from greenward.tasks.code_game.judge import ProgramJudge
from greenward.tasks.opponents import SELF, League, LeagueCallback, OpponentTask, opponents_too_late
from greenward.tasks.task import Say
from greenward.training.protocols import Callback, Evaluator, Example

if TYPE_CHECKING:
    from greenward.models.catalog import PromptReader
    from greenward.models.policy import Policy

CODE_GAME = "code_game"
START = "start"
"""The player that is the policy as it was before the first step."""
EXAMPLE_PROGRAMS = 64000
"""Random programs that a supervised start learns to write and to predict: the format, no strategy."""


class CodeGameConfig(ConfigSection):
    """The game of code: who predicts, which role is trained when, and what a program may do.

    A program is not valid, and loses, if it

    - crashes, prints only white space, or prints more than `max_output_bytes`;
    - prints a text that the predictor cannot write (`unwritable`): the shortest right answer goes through the
      same tokens and the same reading as a prediction, and must come out unchanged and within
      `sampling.max_tokens`; texts with `<think>`, fences, `# prints` or special tokens are examples;
    - is cut at `max_program_tokens`, or leaves no room for a prediction in the model's positions;
    - imports anything but `bisect`, `collections`, `heapq`, `itertools` and `math`, or uses sets, files,
      input, `eval`, `hash`, `id`, private attributes or comments;
    - prints something else in one of four runs, with another hash seed, seed of `random`, memory layout,
      folder or limit of recursion;
    - meets the limits of recursion or memory, or asks for the text of a module;
    - takes more than `max_operations` operations of the interpreter, or the sandbox's time and memory.
    """

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


class CodeGameSections(ConfigSection):
    """What the game of code adds to a recipe."""

    code_game: CodeGameConfig = CodeGameConfig()


class CodeGameRecipe(CodeGameSections, ReinforcementRecipe):
    """One player writes a program, the other one predicts what it prints."""

    task: Literal["code_game"] = "code_game"
    algorithm: GRPOAlgorithmConfig = Field(GRPOAlgorithmConfig(), validate_default=True)

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        yield from without_groups(self.training, self.algorithm)
        yield from opponents_too_late(self)
        if self.sandbox.backend != "local":
            yield "task code_game runs programs under two hash seeds: sandbox.backend must be local"


class CodeGame(OpponentTask):
    """The game of code: its phases, and games on other first lines as the evaluation.

    In a phase of the generator, a group is one first line with `num_generations` programs; in one of the
    predictor, one program with as many predictions. A model with a chat template predicts in its last code
    block; one without continues the program after `# trace`, and predicts after the line `# prints`.

    Each evaluation plays `code_game.evaluation_games` games for each pair on the same first lines; steps log
    the same as `code_game/...`. `A_beats_B` is the share of games that generator A wins against predictor B:
    `policy` is the newest, `frozen` the opponent of this phase, `start` the one before the first step.
    `policy_beats_start` is what the generator learned; `frozen_beats_start` minus `frozen_beats_policy` what
    the predictor regained. `valid` is the share of valid programs; `shares` are different programs, different
    outputs, and how many valid programs three scripts predict: always `0`, the last literal, and an
    interpreter of a small part of Python.
    """

    recipes: ClassVar = {
        "grpo": CodeGameRecipe,
        **recipes_with("code_game", CodeGameSections, algorithms=["sft"]),
    }
    label: ClassVar = "code_game"
    answers: ClassVar = "programs and predictions"
    recipe: CodeGameRecipe

    @staticmethod
    def described(config: Mapping[str, Any]) -> str:
        game = config.get("code_game") or {}
        turns = "the generator is trained"
        if phases := game.get("phases"):
            turns = "the roles take turns, {} and {} steps".format(*phases)
        return f"Predictor: {game.get('predictor')}; {turns}. Intervals are 95 %."

    def open(self, run: RunDirectory, stack: ExitStack) -> None:
        section, sandbox = self.recipe.code_game, self.recipe.sandbox
        judge = ProgramJudge(
            build_limits(sandbox),
            sandbox.workers,
            max_output_bytes=section.max_output_bytes,
            max_operations=section.max_operations,
            require=Level(sandbox.require),
        )
        self._judge = stack.enter_context(judge)
        run.add_provenance(sandbox=judge.isolation.to_json())
        super().open(run, stack)

    def texts(self) -> Iterable[str]:
        for program in self._random_programs(2000):
            trace, printed = trace_by_interpreting(program), predict_by_interpreting(program)
            yield f"{program}\n# trace\n{trace}{PRINTS}{printed}"

    def found(self) -> Iterator[str]:
        yield f"game: {CODE_GAME}, predictor {self.recipe.code_game.predictor}"
        yield from super().found()

    def check_model(self, model: PromptReader, warn: Say) -> str:
        self._prompts(model)
        return super().check_model(model, warn)

    def sample(self, model: PromptReader | None) -> str:
        assert model is not None
        prompts = self._prompts(model)
        program = next(iter(self._random_programs(1)))
        ids = prompts.to_write(program.split("\n")[0])
        return (
            f"# first prompt of the generator ({len(ids)} tokens):\n{model.tokenizer.decode(ids)}\n"
            f"# a prompt of the predictor:\n{model.tokenizer.decode(prompts.to_predict(program))}"
        )

    def examples(self, policy: Policy, config: SupervisedConfig) -> Sequence[Example]:
        """Random programs, and their traces: that of another one for the share `config.error_rate`.

        There is a program to write for every fourth one to predict, since its tokens are many and mostly
        chance.
        """
        prompts, end = self._prompts(policy), (policy.tokenizer.eos_id,)
        rng = random.Random(self.recipe.seed)
        programs = list(self._random_programs(EXAMPLE_PROGRAMS, MOST_PREDICTED_CHANGES))
        examples = []
        for program in self._random_programs(EXAMPLE_PROGRAMS // 4):
            first_line, _, rest = program.partition("\n")
            examples.append(Example(prompts.to_write(first_line), (*prompts.answer(rest), *end)))
        for program in programs:
            shown = rng.choice(programs) if rng.random() < config.error_rate else program
            said = prompts.reasoned(trace_by_interpreting(shown), predict_by_interpreting(shown))
            examples.append(Example(prompts.to_predict(program), (*said, *end)))
        return examples

    def players(self, policy: Policy) -> Mapping[str, RolloutEngine]:
        section = self.recipe.code_game
        self._players: dict[str, RolloutEngine] = {POLICY: policy, START: policy.frozen_copy()}
        if section.predictor in ("frozen", "league"):
            size = section.league_size if section.predictor == "league" else 1
            self._league = League(policy, self._players, size=size, hardness=1.0, seed=self.recipe.seed)
        return self._players

    def callbacks(self, say: Say) -> Sequence[Callback]:
        """Lets the policy join its opponents at the start of each phase."""
        if self._league is None:
            return ()
        return [LeagueCallback(self._league, lambda done: self._predicts(done) != self._predicts(done - 1))]

    def environment(self, policy: Policy) -> Environment:
        return self._environment(policy, self.recipe.seed)

    def evaluators(self, policy: Policy) -> Mapping[str | None, Evaluator]:
        environment = self._environment(policy, self.recipe.evaluation.seed)
        seed = step_seed(self.recipe.evaluation.seed, 0, CODE_GAME)
        lines = range(self.recipe.code_game.evaluation_games)

        def evaluate(policy: Policy, step: int, elapsed_seconds: float) -> dict[str, Any]:
            """Games between the policy, the opponent of this phase, and the start as predictor."""
            players = {**self._players, POLICY: policy}
            predictors = {"policy": POLICY, "start": START}
            if self._league is not None:
                predictors["frozen"] = self._league.newest
            metrics: dict[str, Estimate] = {}
            shares: dict[str, float] = {}
            for generator in [name for name in predictors if name != "start"]:
                written = environment.write(players, predictors[generator], lines, seed=seed)
                programs = [
                    one for one in environment.judged(written) if one.result.status != "infrastructure"
                ]
                valid = sum(program.result.valid for program in programs)
                for predictor, player in predictors.items():
                    predictions = environment.predict(players, player, programs, seed=seed)
                    wins = [not one.right for one in predictions] + [False] * (len(programs) - valid)
                    metrics[f"{generator}_beats_{predictor}"] = rate(np.array(wins, dtype=float))
                if generator == "policy":
                    metrics["valid"] = rate(np.array([one.result.valid for one in programs], dtype=float))
                    shares = diversity_and_difficulty(programs)
            return {
                "suite": CODE_GAME,
                "roles": (GENERATOR, PREDICTOR),
                "games": len(lines),
                "temperature": self.recipe.sampling.temperature,
                "headline": "won by the generator against the predictor of the start: "
                f"{100 * metrics['policy_beats_start'].value:.1f} %",
                "step": step,
                "elapsed_seconds": elapsed_seconds,
                "metrics": {name: estimate.to_json() for name, estimate in metrics.items()},
                "shares": shares,
                "rates": {},
                "rows": [],
            }

        return {CODE_GAME: evaluate, **super().evaluators(policy)}

    def _environment(self, policy: Policy, seed: int) -> CodeGameEnvironment:
        return CodeGameEnvironment(
            self._prompts(policy),
            self._judge,
            self._seats,
            sampling=SamplingParams.of(self.recipe),
            games_per_group=self.recipe.training.num_generations,
            seed=seed,
            max_program_tokens=self.recipe.code_game.max_program_tokens,
        )

    def _seats(self, step: int) -> tuple[str, str]:
        """Who writes and who predicts at a step, counted from 0."""
        section = self.recipe.code_game
        if self._league is None:
            return POLICY, POLICY if section.predictor == SELF else section.predictor
        opponent = self._league.member(step)
        return (opponent, POLICY) if self._predicts(step) else (POLICY, opponent)

    def _predicts(self, step: int) -> bool:
        """Whether step `step`, counted from 0, is in a phase of the predictor."""
        phases = self.recipe.code_game.phases
        return phases is not None and step % sum(phases) >= phases[0]

    def _prompts(self, policy: Policy | PromptReader) -> CodeGamePrompts:
        """Raises `ConfigError` where a program, its prompt and a prediction do not fit into the policy."""
        prompts = CodeGamePrompts(policy.tokenizer, self.recipe.code_game.max_output_bytes)
        first_lines = [program.split("\n")[0] for program in self._random_programs(500)]
        room = self.recipe.sampling.max_tokens
        needed = (self.recipe.code_game.max_program_tokens or room) + max(
            max(len(prompts.to_write(a)), len(prompts.to_predict(a)) + room) for a in first_lines
        )
        if needed > policy.max_positions:
            raise ConfigError(
                f"sampling.max_tokens {room}: a program, its prompt and a prediction take up to {needed} "
                f"tokens, more than the model's {policy.max_positions} positions.",
                remedy="Lower sampling.max_tokens or code_game.max_program_tokens, or raise "
                "model.shape.max_positions.",
            )
        return prompts

    def _random_programs(self, count: int, most_changes: int = MOST_CHANGES) -> Iterator[str]:
        rng = random.Random(self.recipe.seed)
        return (random_program(rng, most_changes) for _ in range(count))

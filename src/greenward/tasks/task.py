"""Defines what a task is: what is asked, where episodes come from, and how a policy is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from greenward.runs.no_signal import NoSignalCause, cause_in_answers

if TYPE_CHECKING:
    from pathlib import Path

    from greenward.config.recipe import Recipe
    from greenward.config.sections import SupervisedConfig
    from greenward.diagnostics.finding import Topic
    from greenward.diagnostics.simulation import Kind
    from greenward.evaluation.grading_options import GradingOptions
    from greenward.grading.rewards import RewardFunction
    from greenward.models.catalog import PromptReader
    from greenward.models.policy import Policy
    from greenward.problems.problem import ProblemSet
    from greenward.reports.document import Section
    from greenward.reports.runs import Runs
    from greenward.rollouts.protocols import Environment, RolloutEngine
    from greenward.runs.directory import RunDirectory
    from greenward.runs.progress import Progress
    from greenward.training.advantages import Estimator
    from greenward.training.loop import Trainer
    from greenward.training.protocols import Callback, Evaluator, Example

Say = Callable[[str], None]


class OwnEvaluation(Protocol):
    """The evaluation of a run that a task carries out."""

    def run(
        self, out: str | Path | None, grading: GradingOptions, progress: Progress
    ) -> tuple[dict[str, Any], Path]:
        """As `evaluation.session.EvaluationSession.run`."""


class Task:
    """A task of one training.

    It is made before there is a run directory, and raises the typed errors of `greenward.common.errors` for a
    recipe that cannot be trained; `open` then starts what judges it. The module of a subclass loads without
    torch, since recipes are read by it: what needs torch is imported by the methods of a training.
    """

    recipes: ClassVar[Mapping[str, type[Recipe]]]
    """The recipe class of each algorithm that it is learned by, the usual one first (`recipes_with`)."""
    label: ClassVar[str] = ""
    """The name of its trainings in a report; empty means the name of the algorithm."""
    measured: ClassVar[str] = "held-out"
    """The adjective in a report for the problems or games on which its runs are evaluated."""
    asks_problems: ClassVar[bool] = True
    """Whether it trains on the problems that the recipe names."""
    loads_sources: ClassVar[bool] = False
    """Whether `problems.train` and `problems.held_out` are sources that it alone can read."""
    rewards: ClassVar[Mapping[str, Callable[..., RewardFunction]]] = MappingProxyType({})
    """Reward functions of its own, by the names that recipes use; as in `reward_terms.SHIPPED_REWARDS`."""
    silent: ClassVar[frozenset[str]] = frozenset()
    """Names of findings that are never reported for its runs."""
    own_advantage: Estimator | None = None
    """The user's own, where the recipe names one."""
    progress: Progress | None = None
    """Where a training shows what its evaluations draw."""

    @staticmethod
    def findings() -> Sequence[Topic]:
        """Findings that are tested on its runs only."""
        return ()

    @staticmethod
    def simulated() -> Mapping[str, Kind]:
        """Simulated runs that show each of its findings, and healthy ones, for `greenward selftest`."""
        return {}

    @classmethod
    def games(cls, run: str, suite: str | None, checkpoint: str | None = None) -> Sequence[str]:
        """The games that `suite` means for a run of it, None its own ones; none where problems are asked."""
        return ()

    @classmethod
    def evaluation(cls, run: str, suite: str | None, given: Mapping[str, Any]) -> OwnEvaluation | None:
        """The evaluation of a run of it on `suite` with the options `given`; None for the usual evaluation.

        Raises `ConfigError` for options that this evaluation does not have.
        """
        return None

    @staticmethod
    def described(config: Mapping[str, Any]) -> str:
        """The setting of its games, in words, for a report."""
        return ""

    @staticmethod
    def report(runs: Runs) -> Sequence[Section]:
        """The sections that a report has for its runs only."""
        return ()

    @staticmethod
    def no_signal(
        row: Mapping[str, Any], config: Mapping[str, Any], fewest_illegal: float
    ) -> NoSignalCause | None:
        """Why the step of a row taught little or nothing, None where it did.

        `fewest_illegal` is the lowest share of illegal moves of an earlier step, where moves are made.
        """
        return cause_in_answers(row, config)

    def __init__(
        self,
        recipe: Any,
        given: Mapping[str, ProblemSet] = MappingProxyType({}),
        functions: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    ) -> None:
        """`given` and `functions` are the caller's own problems and reward functions."""
        self.recipe = recipe

    def open(self, run: RunDirectory, stack: ExitStack) -> None:
        """Prepare to collect and evaluate episodes, until `stack` is closed; `run` gets facts on it."""

    def left_out(self) -> Mapping[str, ProblemSet]:
        """The sets of problems of whose files rows were left out, by their keys in the recipe."""
        keys = {"problems.train": "train", "problems.held_out": "held_out"}
        sets: dict[str, Any] = {key: getattr(self, part, None) for key, part in keys.items()}
        return {key: one for key, one in sets.items() if getattr(one, "skipped", ())}

    def found(self) -> Iterator[str]:
        """Yield a line for each thing that was read to make it: problems, games, rewards."""
        yield from ()

    def found_problems(self) -> Iterator[str]:
        """Yield a line for the problems to train on and one for those held out, as far as it has them."""
        for part, name in (("train", "train"), ("held_out", "held out")):
            problems: Sequence[Any] | None = getattr(self, part, None)
            if problems is not None:
                source = getattr(self.recipe.problems, part)
                yield f"{name}: {len(problems)} problems from {source}"

    def sources(self) -> Mapping[str, str]:
        """The sources of the user's functions that it calls, by the names under which a run keeps them."""
        return {}

    def doubts(self) -> Iterator[str]:
        """Yield a warning for whatever does not prevent a training and may spoil it."""
        yield from ()

    def check_model(self, model: PromptReader, warn: Say) -> str:
        """What prompts and answers take of the model's positions, in words; `warn` gets what may be wrong.

        Raises `ConfigError` for prompts that leave no room for an answer.
        """
        return ""

    def try_out(self, model: PromptReader | None, most: int, warn: Say) -> Iterator[str]:
        """Yield a line for each thing that a check tries, for the first `most` problems of each set.

        A training tries them itself, for all problems. Raises what it would raise; `warn` gets the rest.
        """
        yield from ()

    def texts(self) -> Iterable[str]:
        """Texts to train a tokenizer on, where the recipe starts from random weights."""
        raise NotImplementedError

    def sample(self, model: PromptReader | None) -> str:
        """What a dry run shows: how much there is, and a prompt for `model`, if one is trained."""
        raise NotImplementedError

    def examples(self, policy: Policy, config: SupervisedConfig) -> Sequence[Example]:
        """The pairs of supervised training, as token ids of `policy`."""
        raise NotImplementedError

    def players(self, policy: Policy) -> Mapping[str, RolloutEngine]:
        """The players of the environment by name; `policy` is one of them."""
        from greenward.rollouts.protocols import POLICY

        return {POLICY: policy}

    def environment(self, policy: Policy) -> Environment:
        """Where the episodes that train `policy` come from, once there are players."""
        raise NotImplementedError

    def estimator(self, policy: Policy) -> Estimator:
        """The advantages of its episodes, where no critic gives them."""
        from greenward.training.advantages import ESTIMATORS

        return self.own_advantage or ESTIMATORS[self.recipe.algorithm.advantage]

    def callbacks(self, say: Say) -> Sequence[Callback]:
        """What has to follow the training, such as a league of opponents, once there are players."""
        return ()

    def evaluators(self, policy: Policy) -> Mapping[str | None, Evaluator]:
        """The evaluations during training, by suite; None stands for what is held out."""
        return {}

    def longest_prompt(self, policy: Policy) -> int | None:
        """The tokens of the longest prompt in training, where that is known."""
        return None

    def wrong_with_processes(self, sharding: str) -> str | None:
        """Why several processes that hold weights as `sharding` says cannot train it; None if they can."""
        return None

    @property
    def loop_options(self) -> Mapping[str, Any]:
        """Options of `training.loop.TrainingLoop` that differ for it."""
        return {}

    def trainer(self) -> Trainer | None:
        """A trainer of its own; without one it is the trainer of the algorithm."""
        return None

    def finish(self, run: RunDirectory, trainer: Trainer, say: Say) -> None:
        """What is written once a trainer of its own has finished."""

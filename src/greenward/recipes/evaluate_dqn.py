"""Evaluates a run of `kind: dqn` on problems: one greedy program for each, and some with epsilon."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from greenward.config.loading import load_recipe
from greenward.config.recipe import DQNRecipe
from greenward.environments.token_mdp.rounds import CodeGrading, write
from greenward.errors import CheckpointError, ConfigError
from greenward.evaluation.engine import Seconds
from greenward.evaluation.folder import EvaluationFolder
from greenward.evaluation.rows import Sample
from greenward.intervals import proportion
from greenward.problems.catalog import load_suite
from greenward.problems.problem import ProblemSet
from greenward.recipes.dqn import build_agent, build_mdp, greedily, sample_of, with_epsilon
from greenward.recipes.evaluation_session import EvaluationSession
from greenward.runs.checkpoints import LAST, checkpoint_step, find_checkpoint
from greenward.runs.files import sha256_of
from greenward.runs.reading import is_run, read_config, read_sessions
from greenward.seeding import step_seed

OPTIONS = ("checkpoint", "seed")
DEFAULT_EPISODES = 50


def q_network_run(name: str | Path) -> bool:
    """Whether a run of `kind: dqn` lies at this path."""
    path = Path(name).expanduser()
    return is_run(path) and read_config(path).get("kind") == "dqn"


class ProgramEvaluation(EvaluationSession):
    """A Q-network and the problems that it is asked; answer 0 of each is greedy, the others have `epsilon`.

    One sample means `DEFAULT_EPISODES`. Programs are judged by the hidden tests where a problem has any.
    Raises `ConfigError` for options of language models, `CheckpointError` for another vocabulary than the one
    that was trained, `ProblemError` for problems that the grammar does not know.
    """

    def __init__(
        self,
        run: str | Path,
        problems: str | None,
        samples: int,
        epsilon: float | None,
        options: Mapping[str, Any],
    ) -> None:
        if wrong := sorted(set(options) - set(OPTIONS)):
            raise ConfigError(
                f"an evaluation of a Q-network has no {', '.join(wrong)}.",
                remedy=f"Leave it out; there are n, epsilon and {', '.join(OPTIONS)}.",
            )
        self.name, path = str(run), Path(run).expanduser()
        recipe = load_recipe(path / "config.yaml")
        assert isinstance(recipe, DQNRecipe)
        folder = find_checkpoint(path, options.get("checkpoint") or LAST)
        asked = load_suite(problems or recipe.problems.held_out)
        self._mdp = build_mdp(recipe, list(asked))
        trained = next((one["tokens"] for one in read_sessions(path) if "tokens" in one), None)
        if trained is not None and tuple(trained) != (lexemes := self._mdp.vocabulary.lexemes):
            raise CheckpointError(
                f"{path} was trained with {len(trained)} tokens, and its recipe gives {len(lexemes)} here.",
                remedy="Evaluate it with the version of greenward that trained it.",
            )
        self._agent = build_agent(recipe, self._mdp)
        self._agent.load_weights(folder)
        self._episodes = samples if samples > 1 else DEFAULT_EPISODES
        self._epsilon = recipe.evaluation.epsilon if epsilon is None else epsilon
        self._seed = options.get("seed") or 0
        self.problems = ProblemSet((one.hidden or one.problem for one in self._mdp.problems), name=asked.name)
        self.notes = []
        if any(one.hidden for one in self._mdp.problems):
            self.notes.append("Judged by hidden tests, which the network never sees.")
        self.answers = len(self.problems) * (1 + self._episodes)
        weights = sha256_of(sorted(folder.glob("*.pt")), named=True)
        self.settings = {
            "data_hash": self.problems.data_hash,
            "weights": weights,
            "episodes": self._episodes,
            "epsilon": self._epsilon,
            "seed": self._seed,
        }
        self.facts = {"model": {"name": self.name, "step": checkpoint_step(folder), "weights": weights}}

    @property
    def prompts(self) -> Mapping[str, str]:
        return {one.task_id: one.problem.starter_code for one in self._mdp.problems}

    def source(
        self, folder: EvaluationFolder, problems: ProblemSet, seconds: Seconds
    ) -> Iterable[list[Sample]]:
        grading = CodeGrading(self.grader)
        for number, one in enumerate(self._mdp.problems):
            if all((one.task_id, sample) in folder.samples for sample in range(1 + self._episodes)):
                continue
            began = time.perf_counter()
            rng = np.random.default_rng(step_seed(self._seed, number, "evaluation"))
            written = write(self._mdp, [one], greedily(self._agent), grading)
            choose = with_epsilon(self._agent, self._epsilon, rng)
            written += write(self._mdp, [one] * self._episodes, choose, grading)
            seconds.sampling += time.perf_counter() - began
            problem = problems.by_id(one.task_id)
            samples = [sample_of(attempt, problem, sample) for sample, attempt in enumerate(written)]
            folder.add_new(samples)
            yield [folder.samples[sample.key] for sample in samples if sample.key not in folder.rows]

    def facts_of(self, folder: EvaluationFolder) -> dict[str, Any]:
        return {"by_problem": _by_problem(folder)}


def _by_problem(folder: EvaluationFolder) -> list[dict[str, Any]]:
    """For each problem whether the greedy program is right, and the share of the others with its interval."""
    found = []
    for task_id in dict.fromkeys(task for task, _ in folder.rows):
        rows = [row for (task, number), row in folder.rows.items() if task == task_id and number > 0]
        share = proportion(sum(bool(row.success) for row in rows), len(rows)) if rows else None
        found.append(
            {
                "task_id": task_id,
                "greedy": folder.rows[task_id, 0].success,
                "epsilon": share and share.to_json(),
                "program": folder.samples[task_id, 0].code,
            }
        )
    return found

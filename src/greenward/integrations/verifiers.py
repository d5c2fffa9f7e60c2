"""Offers our tasks as tasksets of verifiers (its API `verifiers.v1`), which needs `pip install verifiers`.

verifiers finds a taskset by a module of that name: see docs/integrations.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from greenward.api import load_problems
from greenward.common.errors import ConfigError, SandboxError
from greenward.environments.prompts import question
from greenward.integrations.rewards import scorer_of
from greenward.tasks.self_play.environment import GameSession

try:
    import verifiers.v1 as vf
except ImportError as error:
    raise ConfigError(
        f"greenward.integrations.verifiers needs verifiers 0.4 or newer, which cannot be imported: {error}",
        remedy="Run `pip install verifiers` with Python 3.11 or newer.",
    ) from error


class ProblemTasksetConfig(vf.TasksetConfig):
    """`problems` as `problems.train` names them, and `reward_terms` by name, each with weight 1."""

    problems: str = "families"
    reward_terms: tuple[str, ...] = ("tests",)


class ProblemData(vf.TaskData):
    """A problem by its set and its id: what scoring needs in whatever process it runs."""

    problems: str
    task_id: str
    reward_terms: tuple[str, ...]


class ProblemTask(vf.Task[ProblemData]):
    """One problem, answered once."""

    @vf.reward(weight=1.0)
    async def greenward(self, trace: vf.Trace) -> float:
        """The weighted reward. Raises `SandboxError` where the infrastructure failed: that is no reward."""
        data = self.data
        scorer = scorer_of(data.problems, data.reward_terms)
        (one,) = await asyncio.to_thread(scorer.score, [data.task_id], [data.prompt_text], [trace.last_reply])
        if not one.scored:
            raise SandboxError(f"{data.task_id}: the answer could not be judged: {one.verdict.failure}")
        trace.record_metric("passed", float(one.verdict.passed))
        return one.reward


class ProblemTaskset(vf.Taskset[ProblemTask, ProblemTasksetConfig]):
    """A single turn for each problem."""

    def load(self) -> Iterator[ProblemTask]:
        config = self.config
        for problem in load_problems(config.problems):
            data = ProblemData(
                name=problem.task_id,
                prompt=question(problem, "chat"),
                problems=config.problems,
                task_id=problem.task_id,
                reward_terms=config.reward_terms,
            )
            yield ProblemTask(data, config.task)


class GameTasksetConfig(vf.TasksetConfig):
    """The game as `self_play.games` names it, the opponent ("random" or "expert") and the number of games."""

    game: str = "tictactoe"
    opponent: str = "random"
    games: int = 100


class GameData(vf.TaskData):
    """A game by its seed."""

    game: str
    opponent: str
    seed: int


class GameTask(vf.Task[GameData]):
    """One game; `GameTurns` rewards it."""


class GameTaskset(vf.Taskset[GameTask, GameTasksetConfig]):
    """Games with the seeds 0, 1, …"""

    def load(self) -> Iterator[GameTask]:
        config = self.config
        for seed in range(config.games):
            data = GameData(
                name=f"{config.game}/{config.opponent}#{seed}",
                prompt=GameSession(config.game, config.opponent, seed).prompt,
                game=config.game,
                opponent=config.opponent,
                seed=seed,
            )
            yield GameTask(data, config.task)


class GameTurnsConfig(vf.EnvConfig):
    """The agent that plays against the scripted player."""

    player: vf.AgentConfig = vf.AgentConfig()


class GameTurns(vf.Env[GameTurnsConfig]):
    """Plays a `GameTask` turn by turn; the reward is what the game gave the model."""

    async def run(self, task: GameTask, agents: Any) -> None:
        session = GameSession(task.data.game, task.data.opponent, task.data.seed)
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                session.answer(segment.last_reply)
                if session.over:
                    break
                segment = await interaction.turn(session.prompt)
        interaction.trace.record_reward("game", session.reward)
        interaction.trace.info["outcome"] = session.outcome or "unfinished"

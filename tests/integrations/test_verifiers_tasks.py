"""Our tasks as tasksets of verifiers: loaded, viewed and scored by verifiers itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verifiers.v1", reason="verifiers is not installed; make test-bridges")

import verifiers.v1 as vf

from greenward.api import load_problems
from greenward.integrations.verifiers import (
    GameTaskset,
    GameTasksetConfig,
    GameTurns,
    ProblemTaskset,
    ProblemTasksetConfig,
)


def test_problems_are_scored_by_running_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    taskset = ProblemTaskset(ProblemTasksetConfig(problems="classic_training"))
    (task,) = taskset.shuffle(seed=1).take(1)
    reference = load_problems("classic_training").by_id(task.data.task_id).reference
    for reply, expected in ((f"```python\n{reference}\n```", 1.0), ("```python\npass\n```", 0.0)):
        trace = SimpleNamespace(last_reply=reply, metrics={}, rewards={})
        monkeypatch.setattr(vf.Trace, "last_reply", property(lambda _, reply=reply: reply))
        trace = vf.Trace.model_construct(metrics={}, rewards={})
        asyncio.run(task.score(trace))
        assert trace.rewards["greenward"].value == 2 * expected and trace.metrics["passed"] == expected


@pytest.mark.parametrize("seed", [0, 1])
def test_games_are_played_turn_by_turn(seed: int) -> None:
    """The agent is a stand-in that plays minimax by what it is told; the loop and the record are verifiers'."""
    tasks = list(GameTaskset(GameTasksetConfig(game="tictactoe", games=3)))
    assert [task.data.seed for task in tasks] == [0, 1, 2]
    told: list[str] = []
    recorded: dict[str, Any] = {}
    trace = SimpleNamespace(info={}, record_reward=lambda name, value: recorded.__setitem__(name, value))

    async def turn(message: str | None = None) -> SimpleNamespace:
        told.append(message or tasks[seed].data.prompt_text)
        move = told[-1].rpartition("possible moves: ")[2].split("\n")[0].split(", ")[0]
        return SimpleNamespace(terminated=False, last_reply=f"\\boxed{{{move}}}")

    @asynccontextmanager
    async def interaction(task: Any) -> AsyncIterator[SimpleNamespace]:
        assert task is tasks[seed]
        yield SimpleNamespace(turn=turn, trace=trace)

    agents = SimpleNamespace(player=SimpleNamespace(interaction=interaction))
    asyncio.run(GameTurns.run(SimpleNamespace(), tasks[seed], agents))
    assert 3 <= len(told) <= 5
    assert recorded == {"game": {"won": 1.0, "drawn": 0.0, "lost": -1.0}[trace.info["outcome"]]}

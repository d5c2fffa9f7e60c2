"""Our tasks behind OpenEnv's own server, stepped by OpenEnv's own client."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("openenv", reason="OpenEnv is not installed; make test-bridges")

import uvicorn
from openenv.core import GenericEnvClient
from openenv.core.env_server import create_fastapi_app

from greenward.api import load_problems
from greenward.integrations.openenv import (
    AnswerAction,
    MoveAction,
    PositionEnvironment,
    PositionObservation,
    ProblemEnvironment,
    ProblemObservation,
)
from greenward.integrations.rewards import Scorer


@contextmanager
def served(app: Any) -> Iterator[Any]:
    """A client of the application, which a server of its own serves meanwhile."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.02)
    try:
        with GenericEnvClient(base_url=f"http://127.0.0.1:{port}").sync() as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


def test_a_problem_is_asked_answered_wrongly_repaired_and_rewarded() -> None:
    problems = load_problems("classic_training")
    problem = problems[1]
    scorer = Scorer(["tests"], problems)
    app = create_fastapi_app(
        lambda: ProblemEnvironment(scorer, max_turns=2), AnswerAction, ProblemObservation
    )
    with served(app) as client:
        first = client.reset(task_id=problem.task_id)
        assert problem.entry_point in first.observation["prompt"] and not first.done
        wrong = client.step({"answer": f"```python\ndef {problem.entry_point}(*_): return 'wrong'\n```"})
        assert not wrong.done and wrong.reward < 2 and "test fails" in wrong.observation["feedback"]
        right = client.step({"answer": f"```python\n{problem.reference}\n```"})
        assert right.done and right.reward == 2.0 and right.observation["status"] == "passed"
        with pytest.raises(Exception, match="no episode is going on"):  # of the client, with our text
            client.step({"answer": "pass"})
        assert client.state()["step_count"] == 2
        assert client.reset(seed=0).observation["task_id"] == problems[0].task_id


def test_a_game_is_played_to_its_end() -> None:
    app = create_fastapi_app(lambda: PositionEnvironment("tictactoe"), MoveAction, PositionObservation)
    with served(app) as client:
        for seed in (0, 1):
            result = client.reset(seed=seed)
            while not result.done:
                result = client.step({"move": result.observation["legal_moves"][0]})
            assert result.reward in (-1.0, 0.0, 1.0) and result.observation["legal_moves"] == []
            assert result.observation["prompt"] == {-1.0: "lost", 0.0: "drawn", 1.0: "won"}[result.reward]
        client.reset(seed=0)
        assert client.step({"move": "nowhere"}).observation["prompt"] == "illegal"
        with pytest.raises(Exception, match="no episode is going on"):
            client.step({"move": "nowhere"})

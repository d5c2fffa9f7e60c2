"""Where answers run by a recipe: what is refused before anything is loaded, and a grader on a server."""

from __future__ import annotations

import threading

import pytest

from greenward.common.errors import ConfigError, SandboxError
from greenward.config.loading import load_recipe
from greenward.grading.judge import build_grader
from greenward.problems.problem import Case, Problem
from greenward.recipes.run import check_needs
from greenward.sandbox.http import SandboxServer
from greenward.sandbox.remote import JobServer

ADD = Problem("add", "", "add", tests=(Case((1, 2), 3),))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["sandbox.backend=http"], r"http\.urls are for backend http"),
        (["sandbox.backend=http", "sandbox.http.urls=[]"], r"sandbox\.http\.urls"),
        (["sandbox.http.urls=['http://127.0.0.1:1']"], "backend is local"),
        (["sandbox.backend=docker"], r"sandbox\.backend"),
        (["sandbox.backend=ray", "sandbox.ray.nodes=2"], r"sandbox\.ray\.nodes"),
    ],
)
def test_settings_that_cannot_be_are_refused(overrides, words):
    with pytest.raises(ConfigError, match=words):
        load_recipe("quickstart", overrides)


def test_the_game_of_code_is_judged_here():
    with pytest.raises(ConfigError, match=r"sandbox\.backend must be local"):
        load_recipe("grpo_code_game", ["sandbox.backend=ray"])


def test_a_token_that_is_not_set_is_missed_before_anything_is_loaded(monkeypatch):
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    section = "sandbox.http={urls: ['http://127.0.0.1:1'], token_env: NO_SUCH_TOKEN}"
    with pytest.raises(ConfigError, match="NO_SUCH_TOKEN is not set"):
        check_needs(load_recipe("quickstart", ["sandbox.backend=http", section]))


def test_a_recipe_grades_on_a_server_with_its_token(monkeypatch):
    monkeypatch.setenv("PLANTED_TOKEN", "planted-8812")
    with JobServer(1) as jobs:
        server = SandboxServer(jobs, port=0, token="planted-8812")
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        section = (
            f"sandbox.http={{urls: ['http://127.0.0.1:{server.server_port}'], token_env: PLANTED_TOKEN}}"
        )
        recipe = load_recipe("quickstart", ["sandbox.backend=http", section])
        with build_grader(recipe.sandbox) as grader:
            assert grader.isolation.layers == jobs.isolation.layers
            (verdict,) = grader.grade([(ADD, "def add(a, b):\n    return a + b")])
        assert verdict.passed
        assert "planted-8812" not in recipe.model_dump_json()
        server.shutdown()
        server.server_close()
    with pytest.raises(SandboxError, match="no host of the sandbox answers"):
        build_grader(recipe.sandbox)

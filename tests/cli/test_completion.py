"""Completion as the three shells do it: each runs in a terminal of its own, and what a tab makes of a line is read."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel, TypeAdapter

from greenward.config.completion import keys_of_override, values_of_override
from greenward.config.loading import fields_of, load_recipe, shipped_recipes
from greenward.tasks import recipes_of_task

SECONDS = 240  # for one shell and its completions, on a machine that is busy
_END = "end-of-candidates"
SHELLS = [
    pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"no {name}"))
    for name in ("bash", "zsh", "fish")
]


def _typed_in_a_terminal(argv: list[str], lines: list[str], cwd: Path, env: dict[str, str]) -> str:
    """What a shell prints when these lines are typed, each once the shell has printed a prompt."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe(argv[0], argv, env)
    said, waiting = b"", list(lines)
    deadline = time.monotonic() + SECONDS
    answered = 0
    while time.monotonic() < deadline:
        if waiting and said.count(b"PROMPT>") > answered:
            answered = said.count(b"PROMPT>")
            os.write(terminal, waiting.pop(0).encode())
        if not select.select([terminal], [], [], 0.05)[0]:
            continue
        try:
            said += os.read(terminal, 65536)
        except OSError:  # the shell has ended
            break
    os.close(terminal)
    os.waitpid(pid, 0)
    return said.decode(errors="replace")


class Shell:
    """A shell in a terminal, in which the completion script has been read.

    It runs in a folder with a program `greenward` in it, a recipe of one's own, and other files.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        program = folder / "bin" / "greenward"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m greenward "$@"\n')
        program.chmod(0o755)
        (folder / "quite_my_own.yaml").write_text("extends: quickstart\n")
        (folder / "generated.json").write_text("[]")
        (folder / "examples").mkdir()
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GREENWARD")}
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        settings = {"PATH": path, "HOME": str(folder), "TERM": "dumb", "INPUTRC": "/dev/null"}
        self.env = kept | settings | {"PS1": "PROMPT>"}
        command = ["greenward", "completion", name]
        script = subprocess.run(command, env=self.env, capture_output=True, text=True, check=True).stdout
        self.script = folder / ".script"
        self.script.write_text(script)

    def _fish(self, *lines: str) -> list[list[str]]:
        """For each line the candidates for its last word."""
        asked = "; ".join(f"complete -C '{line}'; echo {_END}" for line in lines)
        command = ["fish", "--no-config", "-c", f"source {self.script}; {asked}"]
        done = subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=True
        )
        parts = done.stdout.split(f"{_END}\n")[:-1]
        return [[one.partition("\t")[0] for one in part.splitlines()] for part in parts]

    def _typed(self, *keys: str) -> str:
        argv = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}[self.name]
        lines = ["PS1='PROMPT''>' LISTMAX=9999\n", f". {self.script}\n", *keys, "exit\n"]
        return _typed_in_a_terminal(argv, lines, self.folder, self.env)

    def after_tab(self, *lines: str) -> list[str]:
        """What a tab makes of each line."""
        if self.name == "fish":
            found = self._fish(*lines)
            assert [len(candidates) for candidates in found] == [1] * len(lines), found
            begun = (line.removesuffix(line.split(" ")[-1]) for line in lines)
            return [line + candidates[0] for line, candidates in zip(begun, found, strict=True)]
        # To the line's begin, and to its end.
        self._typed(*(f"{line}\t\x01printf '%s\\n' '\x05' >> after\n" for line in lines))
        return [line.rstrip() for line in (self.folder / "after").read_text().splitlines()]

    def offered(self, line: str) -> str:
        """What is shown where a tab leaves several candidates."""
        if self.name == "fish":
            return "\n".join(self._fish(line)[0])
        return self._typed(f"{line}\t\t\x15\n")  # and the line is deleted


@pytest.fixture(scope="module", params=SHELLS)
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(request.param, tmp_path_factory.mktemp(request.param))


COMPLETED = {
    "greenward tra": "greenward train",
    "greenward train quick": "greenward train quickstart",
    "greenward train quite": "greenward train quite_my_own.yaml",
    "greenward train quickstart training.max_st": "greenward train quickstart training.max_steps=",
    "greenward train quickstart algorithm.name=pp": "greenward train quickstart algorithm.name=ppo",
    "greenward train quickstart problems.train=gen": "greenward train quickstart problems.train=generated.json",
    "greenward train --output exa": "greenward train --output examples/",
    "greenward train --output=exa": "greenward train --output=examples/",
    "greenward demo model=exa": "greenward demo model=examples/",
}


def test_a_tab_completes_commands_recipes_keys_values_and_files(shell: Shell) -> None:
    found = dict(zip(COMPLETED, shell.after_tab(*COMPLETED), strict=True))
    assert {typed: line.rstrip("/") for typed, line in found.items()} == {
        typed: line.rstrip("/") for typed, line in COMPLETED.items()
    }


def test_recipes_and_files_are_offered_together(shell: Shell) -> None:
    offered = shell.offered("greenward train qui")
    assert "quickstart" in offered
    assert "quite_my_own.yaml" in offered


def test_all_keys_with_the_same_beginning_are_offered(shell: Shell) -> None:
    offered = shell.offered("greenward train quickstart training.max_")
    expected = [
        f"{key}=" for key in fields_of(type(load_recipe("quickstart"))) if key.startswith("training.max_")
    ]
    assert len(expected) > 1
    assert all(key in offered for key in expected)


def test_keys_are_those_of_the_recipe() -> None:
    for name in shipped_recipes():
        offered = {key for key, _ in keys_of_override(name, (), "")}
        known = fields_of(type(load_recipe(name)))
        inner = {
            key
            for key, field in known.items()
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        }
        assert offered >= {f"{key}=" for key in known.keys() - inner}
        assert offered <= {f"{key}=" for key in known}
        assert {"model=", "algorithm="} & {f"{key}=" for key in known} <= offered
    assert "self_play.games=" in {key for key, _ in keys_of_override("spiral_self_play", (), "")}
    assert "self_play.games=" not in {key for key, _ in keys_of_override("quickstart", (), "")}


def test_an_override_of_the_algorithm_changes_the_keys() -> None:
    plain = {key for key, _ in keys_of_override("quickstart", (), "algorithm.")}
    changed = {key for key, _ in keys_of_override("quickstart", ("algorithm=ppo",), "algorithm.")}
    assert "algorithm.critic.gae_lambda=" in changed - plain


def test_every_value_that_is_offered_is_one_that_the_key_takes() -> None:
    tried = 0
    for made, name in {type(load_recipe(name)): name for name in shipped_recipes()}.items():
        for key, field in fields_of(made).items():
            for value in values_of_override(name, (), key) or []:
                if key not in ("task", "algorithm", "algorithm.name"):  # those of other recipes, too
                    TypeAdapter(field.annotation).validate_python(yaml.safe_load(value), strict=True)
                    tried += 1
    assert tried > 100


def test_algorithms_are_those_of_the_task() -> None:
    assert values_of_override("quickstart", (), "algorithm") == list(recipes_of_task("functions"))
    assert values_of_override("dqn_code_generation", (), "algorithm.name") == ["dqn"]


def test_a_recipe_that_cannot_be_read_or_names_code_of_its_own_gets_the_keys_of_all(tmp_path: Path) -> None:
    everything = keys_of_override(None, (), "")
    broken = tmp_path / "broken.yaml"
    broken.write_text("task: [")
    own = tmp_path / "own.yaml"
    own.write_text("task: no_such_module:Class\n")
    for recipe in (broken, own, tmp_path / "missing.yaml"):
        assert keys_of_override(str(recipe), (), "") == everything

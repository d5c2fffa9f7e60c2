"""What commands load: those that only read, and what is loaded before those that take long say so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRAINING = ("torch", "transformers", "tokenizers", "greenward.training.trainer")
RECIPES = ("pydantic_core", "greenward.config.sections")
GRADING = ("asyncio", "greenward.grading.judge", "greenward.sandbox.pool", "greenward.environments.code")
NOT_BEFORE_JUDGING = ("numpy", "rich", "jinja2", "greenward.grading.answers", "greenward.problems.mining")
PAGES = ("jinja2", "greenward.reports.training", "greenward.reports.page")
OTHERS = ("greenward.config.originals", "greenward.diagnostics.readers.printed")  # files of other systems
LIBRARY = ("csv", "html", "sqlite3", "subprocess", "zipfile", "numpy.ma")
ALL = ("numpy", "yaml", "rich", *TRAINING, *RECIPES, *GRADING, *PAGES, *OTHERS, *LIBRARY)

# Runs a command; its last line are the modules of ALL that are loaded, at the end or with the first message.
RUN = f"""
import os, sys, click
def told():
    print(*(name for name in {ALL} if name in sys.modules), flush=True)
def first_message(text="", **_):
    print(text)
    told()
    os._exit(0)
from greenward.cli.main import main
if sys.argv.pop(1) == "first":
    click.echo = first_message
try:
    main(sys.argv[1:])
finally:
    told()
"""


def run(when: str, *arguments: str, folder: Path) -> list[str]:
    """The lines that a command has written by its end, or by its first message."""
    command = [sys.executable, "-c", RUN, when, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.stdout and "Traceback" not in done.stderr, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a trainer, and an evaluation."""
    folder = tmp_path_factory.mktemp("light")
    rows = ({"step": step, "reward": step % 7, "loss": 1 / step} for step in range(1, 101))
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    add = {
        "function_name": "add",
        "docstring": "Return the sum of a and b.",
        "starter_code": 'def add(a, b):\n    """Return the sum of a and b."""\n',
        "test_cases": [[[1, 2], 3]],
    }
    (folder / "suite.json").write_text(json.dumps([add]))
    answer = {"task_id": "add", "solution": "def add(a, b):\n    return a + b\n"}
    (folder / "answers.jsonl").write_text(json.dumps(answer) + "\n")
    run("end", "grade", "answers.jsonl", "--suite", "suite.json", "--out", "graded", folder=folder)
    return folder


@pytest.mark.parametrize(
    ("command", "says", "without"),
    [
        ("show add --in graded", "add, answer 0: passed (1 of 1 answers pass)", {*ALL}),
        ("compare graded graded", "pass@1 100.0%", {*ALL} - {"numpy"}),
        ("diagnose log.jsonl", "steps 100", {*ALL} - {"numpy", "rich"}),
    ],
)
def test_a_command_that_reads_loads_nothing_that_computes(
    command: str, says: str, without: set[str], folder: Path
) -> None:
    *output, loaded = run("end", *command.split(), folder=folder)
    assert says in " ".join("\n".join(output).split())
    assert set(loaded.split()) & without == set()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("grade answers.jsonl --suite suite.json", "Judging the answers of answers.jsonl."),
        ("eval mine --suite mbpp", "Evaluating the model mine on mbpp; loading torch."),
        ("eval mine", "Evaluating the model mine on what its run held out; loading torch."),
        ("eval --base-url http://h --model M --suite mbpp", "Evaluating M of the server on mbpp."),
        ("eval --check-references --suite mbpp", "Judging the solutions of mbpp."),
        ("play tictactoe", "Loading the game tictactoe."),
        (
            "play tictactoe --model mine --opponent minimax",
            "Loading the game tictactoe and mine and minimax.",
        ),
        ("train quickstart", "Reading the recipe quickstart; loading torch."),
        ("demo --quick --output out", "; loading torch."),
    ],
)
def test_a_long_command_says_what_it_loads_before_it_loads_it(command: str, says: str, folder: Path) -> None:
    *output, loaded = run("first", *command.split(), folder=folder)
    assert output[0].endswith(says)
    assert loaded.split() == []


def test_grade_loads_nothing_of_models_and_recipes_and_little_before_it_judges(folder: Path) -> None:
    of_models = (
        "greenward.environments.code",
        "greenward.evaluation.model_session",
        "greenward.config.recipe",
    )
    code = f"""
import sys
from greenward import grade
from greenward.runs.progress import Progress
phase = Progress.phase
def judging(self, name, *arguments, **options):
    if name == "judging":
        print(*(name for name in {NOT_BEFORE_JUDGING} if name in sys.modules))
    return phase(self, name, *arguments, **options)
Progress.phase = judging
print(grade("answers.jsonl", "suite.json", output="graded_again").metrics["pass@1"].value)
print(*(name for name in {(*TRAINING, *RECIPES, *OTHERS, *of_models, "pydantic", "asyncio", "yaml", "ssl")} if name in sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["", "1.0", ""]


def test_the_recipe_of_a_run_imports_no_task_but_its_own(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    code = """
import sys
from pathlib import Path
from greenward.config.loading import dump, load_recipe
recipe = load_recipe("quickstart")
Path("config.yaml").write_text(dump(recipe))
assert load_recipe("config.yaml") == recipe
print(*(name for name in sys.modules if name.startswith("greenward.tasks.") and name.endswith(".task")))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["greenward.tasks.task", "greenward.tasks.functions.task"]


def test_a_warm_start_imports_no_task_but_its_own() -> None:
    code = """
import sys
from greenward.config.loading import convert, load_recipe
print(convert(load_recipe("quickstart"), "sft").algorithm.name)
print(*(name for name in sys.modules if name.startswith("greenward.tasks.") and name.endswith(".task")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["sft", "greenward.tasks.task", "greenward.tasks.functions.task"]

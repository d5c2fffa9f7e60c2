"""`greenward init`: what it writes can be trained as it is, and nothing of the user's is overwritten."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from greenward.cli.main import main
from greenward.problems.formats import load_json
from greenward.recipes.starter import HELD_OUT, PAIRS, RECIPE, REWARDS, TRAIN, write_project
from greenward.runs.reading import read_evaluations

pytestmark = pytest.mark.usefixtures("kept_sandbox")

FILES = (RECIPE, TRAIN, HELD_OUT, PAIRS, REWARDS)
HERE = ("sandbox.require=D", "sandbox.workers=1", "training.threads=1")


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """`call(arguments…)` -> (exit code, standard output, standard error)."""
    threads = torch.get_num_threads()

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        return int(stopped.value.code or 0), *capsys.readouterr()

    yield run
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    write_project(folder)
    return folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: Path) -> Path:
    """A project that was just written, the current folder."""
    monkeypatch.chdir(shutil.copytree(written, tmp_path / "my project"))
    return tmp_path / "my project"


def test_the_check_finds_nothing_to_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    project = tmp_path / "my project"
    code, said, _ = call("init", str(project))
    assert code == 0
    assert f"cd '{project}'" in said
    monkeypatch.chdir(project)
    assert {one.name for one in project.iterdir()} == set(FILES)
    code, said, _ = call("config", "check", RECIPE, "--json", *HERE)
    checked = json.loads(said)
    assert code == 0
    assert checked["good"] and not checked["warnings"] and not checked["errors"]
    assert any("my_rewards:short" in line for line in checked["read"])


@pytest.mark.parametrize(
    ("prompt", "warned"), [("def f(a):\n", True), ('def f(a):\n    """Double it."""\n', False)]
)
def test_problems_without_an_example_for_random_weights_are_a_warning(
    project: Path, call: Call, prompt: str, warned: bool
) -> None:
    rows = [
        {"function_name": "f", "task_id": name, "docstring": text, "test_cases": [[1, 2]], "starter_code": ""}
        for name, text in (("double", "Double it."), ("successor", "Add one."))
    ]
    (project / TRAIN).write_text(json.dumps(rows))
    (project / PAIRS).write_text(json.dumps({"prompt": prompt, "completion": "    return a + a\n"}))
    code, said, _ = call("config", "check", RECIPE, "--json", "training.prompts_per_step=2", *HERE)
    assert code == 0
    assert any("no example has the prompt" in one for one in json.loads(said)["warnings"]) == warned


@pytest.mark.slow
def test_it_trains_as_it_is(project: Path, call: Call) -> None:
    short = ("warm_start.max_steps=3", "training.max_steps=1", "evaluation.num_questions=2")
    code, _, errors = call("train", RECIPE, "--quiet", *short, *HERE)
    assert code == 0, errors
    assert (project / "runs" / "first" / "summary.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_what_was_never_asked_is_learned(project: Path, call: Call, seed: int) -> None:
    assert call("train", RECIPE, "--quiet", f"seed={seed}", *HERE)[0] == 0
    first, *_, last = (
        one["metrics"]["pass@1"]["value"] for one in read_evaluations(project / "runs" / "first")
    )
    assert last - first > 0.2


def test_no_held_out_problem_is_trained_on(project: Path) -> None:
    train, held_out = load_json(TRAIN), load_json(HELD_OUT)
    assert not {one.prompt for one in train} & {one.prompt for one in held_out}
    assert not {one.reference for one in train} & {one.reference for one in held_out}
    asked = {json.loads(line)["prompt"] for line in Path(PAIRS).read_text().splitlines()}
    assert asked == {one.starter_code for one in train}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_that_is_there_is_not_overwritten_and_nothing_else_written(
    tmp_path: Path, call: Call, name: str, is_link: bool
) -> None:
    mine = tmp_path / name
    if is_link:
        mine.symlink_to(tmp_path / "nowhere")
    else:
        mine.write_text("mine")
    code, _, errors = call("init", str(tmp_path))
    assert code == 2
    assert name in errors
    assert list(tmp_path.iterdir()) == [mine]
    assert is_link or mine.read_text() == "mine"


def test_a_folder_with_other_files_gets_these_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    (tmp_path / "README").write_text("mine")
    monkeypatch.chdir(tmp_path)
    code, said, _ = call("init", ".")
    assert code == 0 and "cd " not in said
    assert {one.name for one in tmp_path.iterdir()} == {"README", *FILES}
    assert (tmp_path / "README").read_text() == "mine"


def test_a_path_that_is_a_file_is_refused(tmp_path: Path, call: Call) -> None:
    (tmp_path / "file").write_text("mine")
    code, _, errors = call("init", str(tmp_path / "file"))
    assert code == 2 and str(tmp_path / "file") in errors
    assert (tmp_path / "file").read_text() == "mine"

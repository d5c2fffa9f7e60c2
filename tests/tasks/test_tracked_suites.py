"""MBPP during a training: where its file is found, and what is left out of an optional suite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from greenward.common.errors import ProblemError
from greenward.config.loading import load_recipe
from greenward.problems.catalog import load_suite
from greenward.problems.problem import ProblemSet
from greenward.tasks.problem_task import find_tracked_suites

MODEL = "model=owner/name"


@pytest.fixture(autouse=True)
def nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No folder of data, no cache, no `.env` but what a test writes, and no hub."""
    monkeypatch.chdir(tmp_path)
    for name in ("GREENWARD_DATA", "MBPP_DATASET_PATH", "MBPP_EVAL_NUM_QUESTIONS"):
        monkeypatch.setenv(name, "")  # so that what a `.env` sets is undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("GREENWARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("greenward.problems.catalog._fetched", not_fetched)
    return tmp_path


def not_fetched(name: str, *_: object) -> bytes:
    raise ProblemError(f"{name}: its file was not found.")


def write_mbpp(file: Path, *numbers: int) -> Path:
    rows = [
        {
            "task_id": number,
            "text": f"Write a function to add {number}.",
            "code": f"def f{number}(x):\n    return x + {number}\n",
            "test_list": [f"assert f{number}(1) == {number + 1}"] * 3,
            "test_setup_code": "",
            "challenge_test_list": [],
        }
        for number in numbers
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return file


def test_the_path_of_mbpp_may_be_a_file_or_its_folder(tmp_path, monkeypatch) -> None:
    file = write_mbpp(tmp_path / "data" / "mbpp.jsonl", 11, 12)
    for path in (file, file.parent):
        monkeypatch.setenv("MBPP_DATASET_PATH", str(path))
        assert [one.task_id for one in load_suite("mbpp")] == ["Mbpp/11", "Mbpp/12"]
    own = write_mbpp(tmp_path / "mine.jsonl", 13)
    monkeypatch.setenv("MBPP_DATASET_PATH", str(own))
    assert len(load_suite("mbpp")) == 1
    with pytest.raises(ProblemError, match="mbpp-sanitized: its file was not found"):
        load_suite("mbpp-sanitized")  # another suite, which this file is not
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("MBPP_DATASET_PATH", str(tmp_path / "empty"))
    with pytest.raises(ProblemError, match=r"names the folder .*empty, which holds no mbpp\.jsonl"):
        load_suite("mbpp")


def test_the_sanitized_file_is_found_in_the_same_folder(tmp_path, monkeypatch) -> None:
    row = {"task_id": 11, "prompt": "Add.", "code": "def f(x):\n    return x\n", "test_list": ["assert f(1) == 1"],
           "test_imports": [], "source_file": ""}  # fmt: skip
    (tmp_path / "sanitized-mbpp.json").write_text(json.dumps([row]))
    for path in (tmp_path, tmp_path / "sanitized-mbpp.json"):
        monkeypatch.setenv("MBPP_DATASET_PATH", str(path))
        assert [one.task_id for one in load_suite("mbpp-sanitized")] == ["Mbpp/11"]


def test_the_variables_of_mbpp_may_stand_in_a_file_env(tmp_path) -> None:
    folder = write_mbpp(tmp_path / "data" / "mbpp.jsonl", *range(11, 21)).parent
    (tmp_path / ".env").write_text(f"MBPP_DATASET_PATH={folder}\nMBPP_EVAL_NUM_QUESTIONS=3\nPATH=/nowhere\n")
    recipe = load_recipe("grpo_code_execution", [MODEL])
    assert recipe.evaluation.suites[0].num_questions == 3
    (suite,) = find_tracked_suites(recipe, ProblemSet([]))
    assert len(suite.problems) == 3


def test_an_optional_suite_is_left_out_where_its_file_is_not_at_hand() -> None:
    recipe = load_recipe("grpo_code_execution", [MODEL])
    with pytest.warns(UserWarning, match="mbpp is left out of the evaluations: mbpp: its file was not found"):
        assert find_tracked_suites(recipe, ProblemSet([])) == ()
    named = load_recipe("grpo_code_execution", [MODEL, "evaluation.suites=[mbpp]"])
    with pytest.raises(ProblemError, match="its file was not found"):
        find_tracked_suites(named, ProblemSet([]))


def test_an_optional_suite_asks_what_is_not_trained_on(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MBPP_DATASET_PATH", str(write_mbpp(tmp_path / "mbpp.jsonl", *range(11, 21))))
    train = ProblemSet(list(load_suite("mbpp"))[:6])
    recipe = load_recipe("grpo_code_execution", [MODEL])
    with pytest.warns(UserWarning, match="mbpp: 6 problems that are trained on are not asked"):
        (suite,) = find_tracked_suites(recipe, train)
    assert suite.name == "mbpp"
    assert [one.task_id for one in suite.problems] == [f"Mbpp/{number}" for number in range(17, 21)]
    named = load_recipe("grpo_code_execution", [MODEL, "evaluation.suites=[mbpp]"])
    with pytest.raises(ProblemError, match="6 problems of mbpp are trained on"):
        find_tracked_suites(named, train)

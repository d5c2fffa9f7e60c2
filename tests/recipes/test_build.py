"""Which problems a recipe may train on, their references and their bugs."""

from __future__ import annotations

import json

import pytest

from greenward.common.errors import ProblemError
from greenward.config.loading import load_recipe
from greenward.config.recipe import GRPORecipe
from greenward.evaluation.suites import find_suite
from greenward.grading.judge import build_grader
from greenward.grading.verification import build_problems, verify_references
from greenward.problems.catalog import check_source
from greenward.problems.problem import original_id
from greenward.recipes.run import dry_run, train
from greenward.runs.reading import read_metrics
from greenward.tasks.corpus import generated_examples
from tiny_model import BUGS, REINFORCED

MBPP_ROW = {"text": "Double.", "code": "def f(x):\n  return 2 * x", "test_list": ["assert f(1) == 2"]}


def recipe(train, held_out="classic_evaluation", **keys):
    return GRPORecipe.model_validate({"problems": {"train": str(train), "held_out": str(held_out), **keys}})


@pytest.fixture
def problem_file(tmp_path):
    """Writes a file with one problem."""

    def write(name="double", factor=2, **keys):
        row = {
            "function_name": name,
            "docstring": "Return twice n." if name != "triple" else "Return n and n more.",
            "test_cases": [[1, 2], [3, 6]],
            "starter_code": "",
            "reference": f"def {name}(n):\n    return {factor} * n\n",
        }
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps([row | keys]))
        return path

    return write


@pytest.fixture
def mbpp(tmp_path, monkeypatch):
    """A file of MBPP's form: 20 and 30 are test problems, 601 and 602 are for training."""
    rows = "\n".join(json.dumps({"task_id": number, **MBPP_ROW}) for number in (20, 30, 601, 602))
    (tmp_path / "mbpp.jsonl").write_text(rows)
    monkeypatch.delenv("MBPP_DATASET_PATH", raising=False)
    monkeypatch.setenv("GREENWARD_DATA", str(tmp_path))


def test_a_reference_that_fails_its_own_tests_stops_the_run_before_it_begins(problem_file):
    good, bad = problem_file(), problem_file("triple", factor=3)
    settings = recipe(good, bad)
    with build_grader(settings.sandbox) as grader:
        with pytest.raises(ProblemError, match=r"1 of 2 reference solutions fail.*\n  triple: failed"):
            verify_references(settings, grader, *build_problems(settings))
        unchecked = recipe(good, bad, verify_references=False)
        verify_references(unchecked, grader, *build_problems(unchecked))


def test_a_package_that_tests_import_is_named_with_the_key_that_allows_it(problem_file):
    settings = recipe(problem_file(setup_code="import pytest"), problem_file("triple"))
    with build_grader(settings.sandbox) as grader, pytest.raises(ProblemError) as caught:
        verify_references(settings, grader, *build_problems(settings))
    assert "double: error. No module named 'pytest'" in str(caught.value)
    assert "sandbox.packages=[pytest]" in str(caught.value)


def test_a_missing_folder_of_a_package_is_named_with_its_prefix(tmp_path):
    with pytest.raises(ProblemError, match=r"^planted:\S*nowhere: there is no such folder of a package\."):
        check_source(f"planted:{tmp_path / 'nowhere'}")


@pytest.mark.parametrize("prefix", ["", "bugs:"])
def test_a_problem_on_both_sides_is_refused_whatever_its_bugs(problem_file, prefix):
    file = problem_file()
    with pytest.raises(ProblemError, match=r"both trained on and held out \(first: 'double"):
        build_problems(recipe(f"{prefix}{file}", file))


def test_other_problems_of_the_same_names_may_be_held_out(tmp_path, problem_file):
    """Ids are made of a file's name and rows, or of the names of functions: both may be alike by chance."""
    train = problem_file("solve")
    row = json.loads(train.read_text())[0]
    other = row | {
        "docstring": "Return n squared.",
        "test_cases": [[3, 9]],
        "reference": "def solve(n):\n    return n * n\n",
    }
    (tmp_path / "other").mkdir()
    held_out = tmp_path / "other" / "solve.json"
    held_out.write_text(json.dumps([other]))
    assert [[one.task_id for one in part] for part in build_problems(recipe(train, held_out))] == [
        ["solve"]
    ] * 2
    build_problems(recipe(f"bugs:{train}", held_out))


@pytest.mark.parametrize(
    "same",
    [
        {"docstring": "Return  twice\nn."},
        {"reference": "def solve(n):\n    return 2 * n\n"},
        {"test_cases": [[1, 2], [3, 6]]},
    ],
)
def test_a_problem_in_other_words_or_with_other_tests_is_the_same(tmp_path, problem_file, same):
    train = problem_file("solve")
    other = {
        "function_name": "solve",
        "docstring": "Double it.",
        "test_cases": [[3, 6]],
        "reference": "def solve(n):\n    return n + n\n",
    }
    (tmp_path / "other").mkdir()
    held_out = tmp_path / "other" / "solve.json"
    held_out.write_text(json.dumps([other | same]))
    with pytest.raises(ProblemError, match=r"both trained on and held out \(first: 'solve'"):
        build_problems(recipe(train, held_out))


def test_parts_of_a_suite_are_trained_on_and_held_out(mbpp):
    train, held_out = build_problems(recipe("mbpp:train", "mbpp:test"))
    assert [p.task_id for p in train] == ["Mbpp/601", "Mbpp/602"]
    assert [p.task_id for p in held_out] == ["Mbpp/20", "Mbpp/30"]


def test_training_on_test_problems_is_refused_unless_allowed_wherever_they_come_from(mbpp, problem_file):
    with pytest.raises(ProblemError, match=r"2 of the problems .*\n.*problems\.allow_test_ids=true"):
        build_problems(recipe("mbpp"))
    assert len(build_problems(recipe("mbpp", allow_test_ids=True))[0]) == 4
    with pytest.raises(ProblemError, match="test problems of MBPP"):
        build_problems(recipe("bugs:mbpp"))
    with pytest.raises(ProblemError, match="first: Mbpp/20"):
        build_problems(recipe(problem_file(task_id="Mbpp/20")))


def test_repair_is_trained_with_a_warm_start(tmp_path):
    warm_start = "warm_start={max_steps: 2, batch_size: 8}"
    settings = load_recipe("quickstart", (*REINFORCED, *BUGS, warm_start, "evaluation.enabled=false"))
    assert train(settings, tmp_path / "run", quiet=True)
    for folder in ("run", "run/warm_start"):
        assert [row["step"] for row in read_metrics(tmp_path / folder / "metrics.jsonl").rows] == [1, 2]
    for file in (tmp_path / "run" / "rollouts").iterdir():
        assert all("#" in json.loads(line)["problem"] for line in file.read_text().splitlines())


def test_both_sides_hold_verified_bugs_of_different_programs():
    bugs = ("problems.train=bugs:families", "problems.held_out=bugs:families", "problems.families.limit=40")
    settings = load_recipe("quickstart", (*bugs, "problems.bugs.show_failing_test=true"))
    train_problems, held_out = build_problems(settings)
    assert not set(map(original_id, train_problems)) & set(map(original_id, held_out))
    assert all(problem.buggy_code and problem.failing_test for problem in (*train_problems, *held_out))
    assert list(find_suite("held_out", settings)) == list(held_out)


def test_the_warm_start_repairs_or_leaves_the_bug_in(problem_file):
    train_problems, _ = build_problems(recipe(f"bugs:{problem_file()}"))
    (problem,) = train_problems
    examples = generated_examples(train_problems, 0.5, seed=0, examples_per_problem=40)
    assert {example.is_wrong for example in examples} == {True, False}
    for example in examples:
        program = example.prompt_text + example.completion_text
        assert program == (problem.buggy_code if example.is_wrong else problem.reference)


def test_given_bugs_are_shown_with_their_failing_test_where_that_is_asked_for(problem_file):
    file = problem_file(buggy_code="def double(n):\n    return 3 * n\n")
    for shown, told in ((True, "double(1): expected 2, got 3"), (False, "")):
        train_problems, held_out = build_problems(recipe(file, bugs={"show_failing_test": shown}))
        assert [problem.failing_test for problem in train_problems] == [told]
        assert not any(problem.failing_test for problem in held_out)


def test_a_warm_start_needs_programs_that_continue_the_starter_code(problem_file):
    train_problems, _ = build_problems(recipe(problem_file(buggy_code="def double(m):\n    return 3 * m\n")))
    with pytest.raises(ProblemError, match="double: expected a reference and a buggy program"):
        generated_examples(train_problems, 0.5, seed=0)


def test_bad_rows_are_named_with_the_option_that_skips_them_and_recorded(tmp_path, problem_file, capsys):
    file, two = problem_file(), [{"function_name": "one"}, {"function_name": "two", "docstring": 3}]
    file.write_text("\n".join(map(json.dumps, [*json.loads(file.read_text()), *two])))
    with pytest.raises(ProblemError, match=r"double\.json, row 2 \(line 2\)(.|\n)*by --skip-bad-rows"):
        build_problems(recipe(file))
    source = f"problems.train={file}"
    keys = (*REINFORCED, source, "problems.skip_bad_rows=true", "evaluation.enabled=false")
    settings = load_recipe("quickstart", (*keys, "problems.held_out=classic_training"))
    dry_run(settings)
    assert f"warning: Skipped rows of problems.train: 2. {file}, row 2 (line 2)" in capsys.readouterr().out
    assert train(settings, tmp_path / "run")
    assert "Skipped rows of problems.train: 2." in " ".join(capsys.readouterr().err.split())
    (session,) = json.loads((tmp_path / "run" / "provenance.json").read_text())["sessions"]
    first, second = session["skipped_rows"]["problems.train"]
    assert (f"{file}, row 2 (line 2)" in first) and "row 3 (line 3): field 'docstring' must be text" in second

"""Answers from elsewhere: each shape of file, and what is wrong with a bad one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from greenward.common import parsing
from greenward.common.errors import ProblemError
from greenward.evaluation import store
from greenward.evaluation.store import extracted, read_samples
from greenward.problems.problem import Case, Problem, ProblemSet

STARTER = "def f(x):\n"
PROBLEMS = ProblemSet(
    (
        Problem(f"Suite/{number}", "Do it.", "f", tests=(Case((1,), 1),), starter_code=STARTER)
        for number in range(3)
    ),
    name="suite",
)


@pytest.fixture
def written(tmp_path):
    def write(*rows: object) -> Path:
        path = tmp_path / "samples.jsonl"
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


def read(path: Path) -> list[tuple[str, int, str | None]]:
    return [(*answer.key, answer.code) for answer in read_samples(path, PROBLEMS)]


def test_a_completion_continues_the_prompt(written):
    path = written({"task_id": "Suite/0", "completion": "    return x\n"})
    assert read(path) == [("Suite/0", 0, STARTER + "    return x\n")]


@pytest.mark.parametrize(
    ("written_text", "program"),
    [
        ("    return x\n```\n", STARTER + "    return x\n"),
        ("    return x\n```\nThis returns x.", STARTER + "    return x\n"),
        ("\n    return x\n```\nFor example:\n```python\nf(1)\n```\n", STARTER + "\n    return x\n"),
        ("def f(x):\n    return x\n```\nDone.", "def f(x):\n    return x\n"),
        ("```\ndef f(x):\n    return x\n```\n", "def f(x):\n    return x\n"),
        ("```python\ndef f(x):\n    return x\n", "def f(x):\n    return x\n"),
        ("def f(x): ...\n```python\ndef f(x):\n    return x\n```", "def f(x):\n    return x\n"),
    ],
)
def test_a_fence_that_the_prompt_opened_ends_the_program(written, written_text, program):
    answers = read_samples(written({"task_id": "Suite/0", "completion": written_text}), PROBLEMS)
    for mode in ("auto", "always"):
        ((answer,), told) = extracted(answers, mode)
        assert answer.code == program
        assert "1 of 1 answers" in told


def test_a_solution_is_a_whole_program_and_wins_over_a_completion(written):
    path = written({"task_id": "Suite/1", "completion": "wrong", "solution": "def f(x): return x"})
    assert read(path) == [("Suite/1", 0, "def f(x): return x")]


def test_several_lines_of_a_task_are_numbered_and_a_list_counts_as_several(written):
    path = written(
        {"task_id": "Suite/1", "solution": "a"},
        {"task_id": "Suite/0", "solution": ["b", "c"]},
        "",
        {"task_id": "Suite/1", "solution": "d"},
    )
    assert read(path) == [("Suite/1", 0, "a"), ("Suite/0", 0, "b"), ("Suite/0", 1, "c"), ("Suite/1", 1, "d")]


def test_null_is_an_answer_without_a_program(written):
    assert read(written({"task_id": "Suite/1", "solution": None})) == [("Suite/1", 0, None)]


def test_what_an_evaluation_has_written_is_read_as_it_was(written):
    answers = read_samples(
        written(
            {"task_id": "Suite/1", "sample": 7, "completion": "I know not.", "solution": None,
             "extraction_failure": "no block", "truncated": True}
        ),
        PROBLEMS,
    )  # fmt: skip
    again = read_samples(written(*(answer.to_json() for answer in answers)), PROBLEMS)
    assert again == answers
    assert (answers[0].number, answers[0].truncated) == (7, True)


def test_a_compressed_file_is_read(tmp_path):
    path = tmp_path / "samples.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"task_id": "Suite/2", "solution": "a"}\n'))
    assert read(path) == [("Suite/2", 0, "a")]


def test_folders_of_evalplus_are_read(tmp_path):
    for name, text in (("Suite_1/10.py", "ten"), ("Suite_1/2.py", "two"), ("Suite_0/0.py", "zero")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert read(tmp_path) == [("Suite/0", 0, "zero"), ("Suite/1", 2, "two"), ("Suite/1", 10, "ten")]


def test_what_lies_beside_answers_in_a_folder_is_left_out(tmp_path):
    for name in (
        "Suite_0/0.py", ".git/hooks/a.py", ".ipynb_checkpoints/0.py", "__pycache__/0.py", "figures/plot.png",
        "Suite_0/__init__.py", "Suite_0/.0.py", "Suite_0/.ipynb_checkpoints/0.py", "Suite_0/0.raw", "setup.py",
        "Suite_0/__pycache__/0.cpython-311.pyc",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("a")
    assert read(tmp_path) == [("Suite/0", 0, "a")]
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers/0.py").write_text("a")
    with pytest.raises(ProblemError, match="answers: names no problem"):
        read(tmp_path)


def test_files_of_livecodebench_are_read_by_plain_ids(tmp_path):
    rows = [
        {"question_id": "1", "code_list": ["a", "b"], "output_list": ["x", "y"], "question_title": "One"},
        {"question_id": "Suite/0", "output_list": ["c", None]},
    ]
    expected = [("Suite/1", 0, "a"), ("Suite/1", 1, "b"), ("Suite/0", 0, "c"), ("Suite/0", 1, None)]
    path = tmp_path / "Scenario.codegeneration_2_0.2.json"
    path.write_text(json.dumps(rows, indent=4))
    assert read(path) == expected
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read(path) == expected
    path.write_text(json.dumps([rows[0], {"question_id": "1 "}]))
    with pytest.raises(ProblemError, match=r"row 2 .*names no problem") as caught:
        read(path)
    assert "Suite/1" in str(caught.value.remedy)


@pytest.mark.parametrize(
    "row",
    [
        {"task_id": 1, "prompt": "p", "output": ["    return x\n", "    return 0\n"]},  # TACO
        {"task_id": "1", "generations": ["    return x\n", "    return 0\n"]},
        {"doc_id": 0, "doc": {"task_id": "Suite/1", "prompt": "p"}, "target": "t", "resps": [["x"]],
         "filtered_resps": [[f"{STARTER}    return x\n", f"{STARTER}    return 0\n"]]},  # lm-eval
        {"question_id": "Suite/1", "code": [f"{STARTER}    return x\n", f"{STARTER}    return 0\n"]},
    ],
)  # fmt: skip
def test_rows_of_other_harnesses_are_read(written, row):
    def value(code: str) -> object:
        space: dict[str, object] = {}
        exec(code, space)
        return space["f"](7)

    (first, one), (second, other) = ((key, code) for *key, code in read(written(row)))
    assert (first, second) == (["Suite/1", 0], ["Suite/1", 1]) and (value(one), value(other)) == (7, 0)


@pytest.mark.parametrize(
    "whole",
    [
        {"0": {"origin_prompt": "p", "prediction": "a"}, "1": {"prediction": "b"}, "2": {"prediction": "c"}},
        {"Suite/0": "a", "Suite/1": ["b"], "Suite/2": "c"},
        {"0": ["a"], "1": ["b"], "2": ["c"]},
        [["a"], ["b"], ["c"]],
        {"date": "d", "eval": {f"Suite/{one}": [{"task_id": f"Suite/{one}", "solution": text,
                                                 "base_status": "pass"}] for one, text in enumerate("abc")}},
        {"status": "success", "samples": [
            {"id": f"Suite/{one}", "epoch": 1, "output": {"choices": [{"message": {"content": content}}]}}
            for one, content in enumerate(("a", [{"type": "reasoning", "reasoning": "r"},
                                                 {"type": "text", "text": "b"}], "c"))
        ]},
    ],
)  # fmt: skip
@pytest.mark.parametrize("indent", [None, 2])
def test_whole_files_of_other_harnesses_are_read(tmp_path, whole, indent):
    path = tmp_path / "predictions.json"
    path.write_text(json.dumps(whole, indent=indent))
    answers = read_samples(path, PROBLEMS)
    assert [answer.key for answer in answers] == [(f"Suite/{number}", 0) for number in range(3)]
    assert [answer.text for answer in answers] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        ([["a"], ["b"]], "holds 2 lists, and suite has 3 problems"),
        ({"0": ["a"], "1": [3], "2": []}, "row 2: field 'completions' must be text, null, or a list"),
        ({"5": "a"}, "field 'task_id' is missing; this row has: 5"),
        ({"eval": {"Suite/0": {"nfiles": 1, "base": [["success", []]]}}}, "'task_id' is missing"),
        ({"samples": [{"id": "Suite/0", "output": {"choices": [{"message": {"content": 4}}]}}]}, "must be text"),
        ([], "there is no sample"),
    ],
)  # fmt: skip
def test_other_whole_files_are_refused(tmp_path, whole, message):
    path = tmp_path / "predictions.json"
    path.write_text(json.dumps(whole))
    with pytest.raises(ProblemError, match=message):
        read(path)


def test_a_single_row_of_several_lines_is_read(tmp_path):
    path = tmp_path / "sample.json"
    path.write_text(json.dumps({"task_id": "Suite/0", "solution": "a"}, indent=2))
    assert read(path) == [("Suite/0", 0, "a")]


def test_the_number_of_answers_and_of_their_values_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "MAX_ANSWERS", 10)
    monkeypatch.setattr(parsing, "MAX_JSON_VALUES", 100)
    path = tmp_path / "samples.jsonl"
    for rows, answers in ((1, 10), (5, 2)):
        path.write_text(f"{json.dumps({'task_id': 'Suite/0', 'solution': [None] * answers})}\n" * rows)
        assert len(read(path)) == 10
        path.write_text(path.read_text() + '{"task_id": "Suite/1", "solution": null}\n')
        with pytest.raises(ProblemError, match="more than 10 answers"):
            read(path)
    path.write_text(json.dumps({"task_id": "Suite/0", "solution": [None] * 200}) + "\n")
    with pytest.raises(ProblemError, match=r"line 1: .*more than 100 values"):
        read(path)


@pytest.mark.parametrize("name", ["00", "٣", "-1", "x"])
def test_a_name_that_is_no_plain_number_is_refused(tmp_path, name):
    (tmp_path / "Suite_0").mkdir()
    (tmp_path / f"Suite_0/{name}.py").write_text("a")
    with pytest.raises(ProblemError, match="expected a number for a name"):
        read(tmp_path)


def test_a_torn_last_line_is_left_out(tmp_path):
    path = tmp_path / "samples.jsonl"
    path.write_text('{"task_id": "Suite/0", "solution": "a"}\n{"task_id": "Suite/1", "sol')
    assert read(path) == [("Suite/0", 0, "a")]


def test_lone_surrogates_do_not_reach_files(written):
    ((_, _, code),) = read(written('{"task_id": "Suite/0", "solution": "\\ud800"}'))
    assert code is not None
    code.encode()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"task_id": "Suite/0", "solution": "a"}, "{broken", {"task_id": "Suite/1", "solution": "a"}], "line 2"),
        ([[1, 2]], "line 1: not an object"),
        ([{"task_id": "Suite/9", "solution": "a"}], "line 1.*names no problem of suite: 'Suite/9'"),
        ([{"solution": "a"}], "field 'task_id' is missing; this row has: solution"),
        ([{"id": 1, "solution": "a"}], "'task_id' is missing; this row has: id, solution"),
        ([{"question_id": "0", "code_list": [3]}], "'code_list' must be text, null, or a list"),
        ([{"question_id": "9", "code_list": ["a"]}], "'question_id' names no problem of suite: '9'"),
        ([{"task_id": "Suite/0"}], "'completion' is missing"),
        ([{"task_id": "Suite/0", "completoin": "a"}], "Did you mean 'completion' by 'completoin'"),
        ([{"task_id": "Suite/0", "solution": 3}], "'solution' must be text"),
        ([{"task_id": "Suite/0", "completion": 3}], "'completion' must be text"),
        ([{"task_id": "Suite/0", "sample": -1, "solution": "a"}], "'sample' must be a number"),
        ([{"task_id": "Suite/0", "sample": 4, "solution": "a"}] * 2, r"line 2.*number 4.*which row 1"),
        ([], "there is no sample"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_and_the_line_named(written, rows, message):
    with pytest.raises(ProblemError, match=f"(?s){message}"):
        read(written(*rows))


def test_nearest_ids_are_named(written):
    with pytest.raises(ProblemError) as caught:
        read(written({"task_id": "suite/1", "solution": "a"}))
    assert "Suite/1" in str(caught.value.remedy)


def test_the_first_of_many_unknown_problems_names_the_nearest(written):
    rows = [{"task_id": f"Siute/{number}", "solution": "x"} for number in range(4)]
    unknown: list[ProblemError] = []
    known = read_samples(written(*rows, {"task_id": "Suite/1", "solution": "x"}), PROBLEMS, unknown.append)
    assert [one.key for one in known] == [("Suite/1", 0)]
    assert [f"'Siute/{number}'" in one.message for number, one in enumerate(unknown)] == [True] * 4
    assert "Nearest: Suite/0" in str(unknown[0].remedy)


def test_predictions_for_swe_bench_are_sent_to_its_harness(written):
    with pytest.raises(ProblemError, match="'task_id' is missing; this row has: instance_id") as caught:
        read(written({"instance_id": "a__a-1", "model_name_or_path": "m", "model_patch": "diff --git"}))
    said = str(caught.value.remedy)
    assert "swebench.harness.run_evaluation" in said and "greenward eval MODEL --suite ROWS" in said


def test_a_missing_file_and_an_unknown_folder_are_refused(tmp_path):
    with pytest.raises(ProblemError, match="no such file"):
        read(tmp_path / "nowhere.jsonl")
    (tmp_path / "Siute_1").mkdir()
    with pytest.raises(ProblemError, match="names no problem") as caught:
        read(tmp_path)
    assert "Suite_1" in str(caught.value.remedy)
    (tmp_path / "Siute_1").rename(tmp_path / "Suite_1")
    (tmp_path / "Suite_1" / "first.py").write_text("")
    with pytest.raises(ProblemError, match="expected a number"):
        read(tmp_path)

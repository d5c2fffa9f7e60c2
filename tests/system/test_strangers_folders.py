"""Folders of strangers: every field of their files is replaced by hostile values; only typed errors come out."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from greenward.api import read_evaluation as open_evaluation
from greenward.api import read_run
from greenward.common.errors import GreenwardError, RunError
from greenward.config.loading import load_recipe
from greenward.diagnostics.diagnose import (
    diagnose_evals,
    diagnose_reward_health,
    diagnose_run,
    diagnosis_report,
)
from greenward.diagnostics.diff import diff_report, diff_runs
from greenward.diagnostics.monitor import Monitor
from greenward.diagnostics.readers import read_run_signals
from greenward.evaluation.compare import compare, read_evaluation
from greenward.evaluation.store import read_samples, text_of
from greenward.problems.catalog import load_file
from greenward.problems.problem import Case, Problem, ProblemSet
from greenward.reports.comparison import comparison_report
from greenward.reports.document import Report
from greenward.reports.listing import listing_report
from greenward.reports.recorded import report_of
from greenward.reports.render import print_report
from greenward.reports.rollouts import Rollouts
from greenward.reports.training import overlay_report
from greenward.reports.write import render
from greenward.runs.directory import StepFile
from greenward.runs.listing import list_runs
from greenward.runs.publish import model_card
from greenward.runs.selection import parse_query

OLD = Path(__file__).parent / "old_formats"
HOSTILE = (
    None, "x", -1, 2**61, 10**400, 1e308, float("nan"), "NaN", True, [], {}, [None], [[]], {"x": {}},
    "[red]\x1b[35mZ" + "x" * 20_000, "\ud800",
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value in nested data; of a list, the first entry stands for all."""
    yield path
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    )
    for key, inner in entries:
        yield from places(inner, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], by)
    return copy


def variants(file: Path, rng: random.Random, count: int) -> Iterator[str]:
    """Texts of the file, each with one field of one row replaced."""
    text = file.read_text()
    rows = [json.loads(line) for line in text.splitlines()] if file.suffix == ".jsonl" else None
    whole = yaml.safe_load(text) if file.suffix == ".yaml" else None if rows else json.loads(text)
    every = list(places(rows[0] if rows else whole))
    for path in rng.sample(every, min(count, len(every))):
        by = rng.choice(HOSTILE)
        if file.suffix == ".yaml":
            with suppress(yaml.YAMLError):
                yield yaml.safe_dump(replaced(whole, path, by))
        elif rows:
            with suppress(LookupError, TypeError):  # the last row may have other fields
                changed = [replaced(rows[0], path, by), *rows[1:-1], replaced(rows[-1], path, by)]
                yield "".join(f"{json.dumps(row)}\n" for row in changed)
        else:
            yield json.dumps(replaced(whole, path, by))


def shown(report: Report) -> None:
    for form in ("html", "markdown", "json"):
        render(report, form).encode()
    console = Console(file=StringIO(), width=100, force_terminal=True)
    print_report(report, console)
    assert "\x1b[35mZ" not in console.file.getvalue()


def monitored(run: Path) -> None:
    signals, monitor = read_run_signals(run), Monitor(say=lambda text: None)
    for place, step in enumerate(signals.steps.tolist()):
        monitor.log(step, signals.row(place))


def rollouts(run: Path) -> None:
    found = Rollouts(run, parse_query("reward>=0"), 5)
    shown(found.report(1))


def frames(run: Path) -> None:
    pytest.importorskip("pandas")
    for of in ("metrics", "rollouts", "evaluations"):
        read_run(run).to_frame(of)


READERS: dict[str, Callable[[Path], object]] = {
    "report": lambda run: shown(report_of(run)),
    "overlay": lambda run: shown(overlay_report([run, OLD / "run_1"])),
    "rollouts": rollouts,
    "diagnose": lambda run: shown(diagnosis_report(diagnose_run(run))),
    "reward-health": lambda run: shown(diagnosis_report(diagnose_reward_health(run))),
    "evals": lambda run: shown(diagnosis_report(diagnose_evals(run))),
    "diff": lambda run: shown(diff_report(diff_runs(run, OLD / "run_1"))),
    "monitor": monitored,
    "compare": lambda run: compare(read_evaluation(run), read_evaluation(OLD / "run_1")),
    "card": lambda run: model_card(run, 1),
    "recipe": lambda run: load_recipe(run / "config.yaml"),
    "list": lambda run: shown(listing_report(run, *list_runs(run))),
    "frames": frames,
    "resume": lambda run: StepFile(run / "metrics.jsonl").truncate_after(1),
}
# Which of them read a file: each is slow enough not to be called in vain.
OF_FILE = {
    "metrics.jsonl": ("report", "overlay", "diagnose", "diff", "monitor", "resume", "list", "frames"),
    "config.yaml": ("report", "overlay", "diagnose", "reward-health", "card", "recipe", "diff", "list"),
    "summary.json": ("report", "card", "list"),
    "provenance.json": ("report", "diagnose", "diff", "card"),
    "predictions.jsonl": ("reward-health",),
    "rollouts/step_000001.jsonl": ("rollouts", "diagnose", "frames"),
    "evaluations/step_000003.json": ("report", "overlay", "evals", "compare", "card", "list", "frames"),
    "evaluations/step_000003.held_out.json": ("report", "evals"),
}


few_or_many = pytest.mark.parametrize("count", [2, pytest.param(20, marks=pytest.mark.slow)])


@few_or_many
@pytest.mark.parametrize("name", OF_FILE)
def test_no_value_in_a_file_of_a_run_raises(tmp_path, name, count):
    run = tmp_path / "run"
    shutil.copytree(OLD / "run_0", run)
    rng = random.Random(name)
    sound = (run / name).read_bytes()
    for reader in OF_FILE[name]:
        with nullcontext() if reader != "recipe" else suppress(GreenwardError):  # it has keys of other kinds
            READERS[reader](run)
        for text in variants(OLD / "run_0" / name, rng, count):
            (run / name).write_text(text)
            with suppress(GreenwardError):
                READERS[reader](run)
        (run / name).write_bytes(sound)


@few_or_many
@pytest.mark.parametrize(
    "name", ["results.jsonl", "samples.jsonl", "prompts.jsonl", "summary.json", "settings.json"]
)
def test_no_value_in_a_file_of_an_evaluation_raises(tmp_path, name, count):
    folder = tmp_path / "evaluation"
    shutil.copytree(OLD / "evaluation_2", folder)
    task = json.loads((folder / "results.jsonl").read_text().splitlines()[0])["task_id"]
    other = read_evaluation(OLD / "evaluation_1")
    readers: tuple[Callable[[], object], ...] = (
        lambda: shown(report_of(folder)),
        lambda: compare(read_evaluation(folder), other),
        lambda: text_of(folder, task),
        lambda: shown(
            comparison_report([folder, OLD / "evaluation_1"], [compare(read_evaluation(folder), other)])
        ),
        lambda: pytest.importorskip("pandas") and open_evaluation(folder).to_frame(),
    )
    for text in variants(OLD / "evaluation_2" / name, random.Random(name), 5 * count):
        (folder / name).write_text(text)
        for read in readers:
            with suppress(GreenwardError):
                read()


SIMPLE = {
    "function_name": "add", "docstring": "Add.", "test_cases": [[1, 2, 3]], "starter_code": "def add(a, b):\n",
    "task_id": "t", "tags": ["x"], "reference": "def add(a, b):\n    return a + b\n", "tests": ["assert add(1, 1) == 2"],
    "comparison": {"tolerance": 0.1, "rule": "equal"}, "columns": {"a": 1}, "files": {"a.py": ""},
    "hidden_test_cases": [{"input": [1, 2], "output": 3, "kwargs": {}}], "doctests": [], "path": "",
}  # fmt: skip
MBPP = {"task_id": 2, "text": "Add.", "code": "def add(a, b):\n    return a + b", "test_list": ["assert add(1, 2) == 3"],
        "test_setup_code": "", "challenge_test_list": []}  # fmt: skip
HUMANEVAL = {"task_id": "HumanEval/0", "prompt": "def add(a, b):\n", "entry_point": "add",
             "canonical_solution": "    return a + b\n", "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n"}  # fmt: skip
APPS = {"question": "Add.", "input_output": '{"inputs": ["1 2"], "outputs": ["3"]}', "starter_code": "",
        "solutions": "[]", "difficulty": "easy", "tags": "['a']"}  # fmt: skip
LIVECODEBENCH = {"question_title": "t", "question_content": "Add.", "question_id": "1", "platform": "x", "starter_code": "",
                 "contest_date": "2024", "difficulty": "easy", "metadata": "{}",
                 "public_test_cases": '[{"input": "1", "output": "1", "testtype": "stdin"}]', "private_test_cases": "[]"}  # fmt: skip


@pytest.mark.parametrize(
    "row", [SIMPLE, MBPP, HUMANEVAL, APPS, LIVECODEBENCH], ids=lambda row: next(iter(row))
)
def test_no_value_in_a_row_of_problems_raises(tmp_path, row):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    for path in places(row):
        for by in HOSTILE:
            file.write_text(json.dumps(replaced(row, path, by)) + "\n" if path else json.dumps(by))
            for skip in (False, True):
                with suppress(GreenwardError):
                    load_file(file, skip_bad_rows=skip)


def test_no_value_in_a_row_of_answers_raises(tmp_path):
    problems = ProblemSet((Problem("t/0", "", "f", tests=(Case((1,), 1),)),))
    row = {"task_id": "t/0", "completion": "x", "solution": ["def f(x): return x"], "sample": 0,
           "extraction_failure": "", "truncated": False}  # fmt: skip
    file = tmp_path / "samples.jsonl"
    for path in places(row):
        for by in HOSTILE:
            file.write_text(json.dumps(replaced(row, path, by)) + "\n")
            with suppress(GreenwardError):
                read_samples(file, problems)


def test_steps_that_are_no_steps_are_left_out_and_said_to_be(tmp_path):
    shutil.copytree(OLD / "run_0", tmp_path / "run")
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        for step in (2**61, -1, True, 10**400, 1.5):
            file.write(json.dumps({"step": step, "reward/mean": 1.0}) + "\n")
    text = render(report_of(tmp_path / "run"), "markdown")
    assert "5 line(s) cannot be read and were left out" in text


def test_a_text_in_place_of_a_section_is_left_out_of_the_report(tmp_path):
    shutil.copytree(OLD / "run_0", tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text(
        "task: functions\nname: mine\nalgorithm: some text\nmodel: 5\n"
    )
    text = render(report_of(tmp_path / "run"), "markdown")
    assert "algorithm is no section and was left out" in text
    assert "model is no section and was left out" in text


def test_links_out_of_a_run_and_special_files_in_it_are_not_read(tmp_path):
    run, mine = tmp_path / "run", tmp_path / "mine"
    shutil.copytree(OLD / "run_0", run)
    shutil.copytree(OLD / "run_1", mine)
    for file in ("metrics.jsonl", "config.yaml", "summary.json", "failure.txt", "evaluations", "rollouts"):
        place = run / file
        kept = tmp_path / "kept"
        if place.exists():
            shutil.move(place, kept)
        (mine / "failure.txt").write_text("SECRET")
        (mine / "rollouts").mkdir(exist_ok=True)
        shutil.copy(OLD / "run_0/rollouts/step_000001.jsonl", mine / "rollouts")
        place.symlink_to(mine / file)
        for name in ("report", "rollouts", "diagnose", "compare"):
            with suppress(GreenwardError):
                READERS[name](run)
        if file == "failure.txt":
            with pytest.raises(RunError, match="leads out"):
                report_of(run)
        elif file == "rollouts":
            with pytest.raises(RunError, match="leads out"):
                READERS["rollouts"](run)
        place.unlink()
        if not file.endswith("s"):
            os.mkfifo(place)
            for name in ("report", "diagnose"):  # must not wait
                with suppress(GreenwardError):
                    READERS[name](run)
            place.unlink()
        if kept.exists():
            shutil.move(kept, place)

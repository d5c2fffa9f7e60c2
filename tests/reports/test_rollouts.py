"""The answers of a run: filtered by what is recorded of them, paged, and harmless wherever they are shown."""

from __future__ import annotations

import re

import numpy as np
import pytest
from test_report_document import HOSTILE, Page, terminal

from greenward.cli.main import main
from greenward.common.errors import RunError
from greenward.reports.document import Answers
from greenward.reports.page import render_html
from greenward.reports.rollouts import Rollouts, steps_around
from greenward.runs.directory import RunDirectory
from greenward.runs.selection import Selection, parse_query

STATUSES = ("passed", "failed", "timeout")


def answer(index: int) -> dict[str, object]:
    status = STATUSES[index % 3]
    return {
        "problem": f"families/task_{index:03d}",
        "group": 0,
        "answer": f"def solve():\n    return {index}",
        "status": status,
        "first_failure": "" if status == "passed" else f"solve() gave {index}",
        "rewards": {"policy": index / 10},
        "terms": {"tests": 0.5},
        "tokens": 7,
        "stop": "eos",
    }


@pytest.fixture
def run(tmp_path):
    """Three steps of ten answers each, with rewards 0, 0.1 … 0.9."""
    with RunDirectory.create(tmp_path / "run", {"algorithm": {"name": "grpo"}}) as directory:
        for step in (1, 2, 10):
            directory.write_rollouts(step, map(answer, range(10)))
    return tmp_path / "run"


EVERY = Selection()


def shown(path, wanted: Selection = EVERY, page: int = 1, size: int = 100):
    report = Rollouts(path, wanted, size).report(page)
    found = [block for block in report.sections[1].blocks if isinstance(block, Answers)]
    return [
        (int(re.search(r"step (\d+)", one.remark)[1]), task.task_id, one.status, one.code)
        for block in found
        for task in block.tasks
        for one in task.answers
    ]


def test_without_a_filter_every_answer_is_shown_in_the_order_of_training(run):
    found = shown(run)
    assert [step for step, *_ in found] == [1] * 10 + [2] * 10 + [10] * 10
    assert found[3] == (1, "families/task_003", "passed", "def solve():\n    return 3")


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (parse_query("step=2-"), lambda step, i: step >= 2),
        (parse_query("step=2"), lambda step, i: step == 2),
        (parse_query("step=-2"), lambda step, i: step <= 2),
        (parse_query("status=failed,timeout"), lambda step, i: i % 3 > 0),
        (parse_query("reward>=0.5"), lambda step, i: i >= 5),
        (parse_query("reward>=0.2&reward<=0.3"), lambda step, i: i in (2, 3)),
        (parse_query("task=task_007"), lambda step, i: i == 7),
        (parse_query("step=1&status=passed&reward>=0.3"), lambda step, i: step == 1 and i in (3, 6, 9)),
    ],
)
def test_a_filter_lets_through_exactly_what_matches(run, wanted, matches):
    expected = [
        (step, f"families/task_{i:03d}") for step in (1, 2, 10) for i in range(10) if matches(step, i)
    ]
    assert [found[:2] for found in shown(run, wanted)] == expected


def test_pages_hold_all_answers_once(run):
    rollouts = Rollouts(run, EVERY, 7)
    assert (rollouts.matching, rollouts.pages) == (30, 5)
    assert [one for page in range(1, 6) for one in shown(run, page=page, size=7)] == shown(run)
    with pytest.raises(RunError, match="no page 6"):
        rollouts.report(6)


@pytest.mark.parametrize("smallest", [False, True])
@pytest.mark.parametrize("by", ["reward", "advantage", "length"])
def test_answers_are_sorted_over_all_pages_and_those_without_a_value_come_last(tmp_path, by, smallest):
    rng = np.random.default_rng(0)
    rows, values = [], {}
    for index in range(40):
        value = float(rng.normal())
        row = answer(index) | {
            "advantage": value,
            "rewards": {"policy": value},
            "tokens": 0,
            "answer": "x" * index,
        }
        values[f"families/task_{index:03d}"] = index if by == "length" else value
        if index % 10 == 9 and by != "length":
            row |= {"advantage": None, "rewards": {}}
            values[f"families/task_{index:03d}"] = np.inf if smallest else -np.inf
        rows.append(row)
    with RunDirectory.create(tmp_path / "run", {"algorithm": {"name": "grpo"}}) as directory:
        for step in range(4):
            directory.write_rollouts(step, rows[10 * step : 10 * step + 10])
    sort = f"sort={'' if smallest else '-'}{by}"
    found = []
    for page in range(1, 7):
        blocks = Rollouts(tmp_path / "run", parse_query(sort), 7).report(page).sections[1].blocks
        found += [task.task_id for block in blocks if isinstance(block, Answers) for task in block.tasks]
    assert found == sorted(values, key=lambda name: values[name] * (1 if smallest else -1))
    report = Rollouts(tmp_path / "run", parse_query(f"step=1-2&{sort}"), 7).report()
    assert f"20 of 20 answers of step 1 to 2, {'smallest' if smallest else 'largest'} {by}" in report.headline


def test_a_value_that_no_answer_has_is_refused_and_the_prompt_of_an_answer_is_shown(run, tmp_path):
    with pytest.raises(RunError, match="'advantage'"):
        Rollouts(run, parse_query("sort=-advantage"), 7)
    assert Rollouts(run, parse_query("task=nowhere&sort=-advantage"), 7).matching == 0
    with RunDirectory.create(tmp_path / "asked", {"algorithm": {"name": "grpo"}}) as directory:
        directory.write_rollouts(1, [answer(0) | {"prompt": "How many?", "advantage": -0.5}])
    text = terminal(Rollouts(tmp_path / "asked", EVERY, 7).report())
    assert "How many?" in text and "advantage -0.5" in text


@pytest.mark.parametrize(
    ("step", "window", "expected"),
    [(2, 1, (1, 2)), (2, 5, (1, 10)), (5, 1, (2, 10)), (1, 1, (1, 1)), (11, 2, (2, 10)), (99, 1, (10, 10))],
)
def test_a_window_counts_the_kept_steps(run, step, window, expected):
    assert steps_around(run, step, window) == expected


def test_options_that_contradict_each_other_are_refused(run, capsys):
    for wrong in (["--step", "1", "--around", "2"], ["--smallest"]):
        with pytest.raises(SystemExit) as ended:
            main(["rollouts", str(run), *wrong])
        assert ended.value.code == 2


def test_what_a_model_wrote_is_shown_and_never_acts(tmp_path):
    row = {**answer(0), "answer": HOSTILE, "problem": HOSTILE, "status": HOSTILE, "first_failure": HOSTILE}
    with RunDirectory.create(tmp_path / "run", {"algorithm": {"name": "grpo"}}) as directory:
        directory.write_rollouts(1, [row | {"terms": {HOSTILE: 1.0}, "stop": HOSTILE}])
    report = Rollouts(tmp_path / "run", EVERY, 10).report()
    page = Page(render_html(report))
    assert {tag for tag, _ in page.tags} & {"script", "img"} == set()
    assert page.text.count("<script>alert(1)</script>") >= 5
    for text in (page.text, terminal(report)):
        assert "\x1b[2J" not in text and "\u202e" not in text


def test_the_turns_of_a_dialogue_are_shown_with_its_last_answer(tmp_path):
    turns = [{"role": "policy", "text": "first try"}, {"role": "feedback", "text": "test 1 failed"}]
    with RunDirectory.create(tmp_path / "run", {"algorithm": {"name": "grpo"}}) as directory:
        directory.write_rollouts(1, [{**answer(0), "transcript": turns}])
    shown = terminal(Rollouts(tmp_path / "run", EVERY, 10).report())
    assert shown.index("policy: first try") < shown.index("feedback: test 1 failed") < shown.index("return 0")


FURTHER_FIELDS = {"advantage", "extra", "masked", "prompt", "prompt_id", "tests", "traceback", "transcript"}


@pytest.mark.parametrize("field", sorted({*answer(0), *FURTHER_FIELDS}))
def test_a_field_of_another_form_hides_no_answer(tmp_path, field):
    given = (0, 1.5, True, "[bold]x", [], [1], {}, {"a": {}}, None, 10**5000, [{"role": 1}, 5])
    with RunDirectory.create(tmp_path / "run", {"algorithm": {"name": "grpo"}}) as directory:
        rows = [{**answer(0), "answer": f"number {i}", field: value} for i, value in enumerate(given)]
        directory.write_rollouts(1, rows)
    text = terminal(Rollouts(tmp_path / "run", EVERY, 20).report())
    assert field == "answer" or all(f"number {i}" in text for i in range(len(given)))


def test_a_filter_that_nothing_matches_says_how_many_answers_there_are(run):
    report = Rollouts(run, parse_query("status=cheating"), 10).report()
    assert report.headline == "0 of 30 answers of status cheating."
    assert len(report.notes) == 1 and report.notes[0].startswith("The statuses of these steps are: ")
    assert "passed" in report.notes[0] and "cheating" not in report.notes[0]


def test_a_step_that_is_not_kept_names_those_that_are(run):
    report = Rollouts(run, parse_query("step=5"), 10).report()
    assert report.headline == "0 of 0 answers of step 5."
    assert report.notes == ("Answers of 3 steps are kept, the first 1, the last 10.",)


def test_a_run_without_rollouts_and_a_folder_without_a_run_are_errors(tmp_path):
    RunDirectory.create(tmp_path / "run", {"algorithm": {"name": "sft"}}).close()
    with pytest.raises(RunError, match="kept no rollouts"):
        Rollouts(tmp_path / "run", EVERY, 10)
    with pytest.raises(RunError, match="holds no run"):
        Rollouts(tmp_path, EVERY, 10)


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return int(caught.value.code or 0)


def test_the_command_filters_and_pages(run, capsys):
    assert command("rollouts", run, "--step", "1-2", "--status", "failed", "--page-size", 2) == 0
    out = capsys.readouterr().out
    assert "6 of 20 answers of step 1 to 2, status failed; 1 to 2 are shown." in " ".join(out.split())
    assert "Page 1 of 3; the next one: --page 2" in out
    assert command("rollouts", run, "--where", "step=1-2&status=failed", "--page-size", 2) == 0
    assert capsys.readouterr().out == out
    assert command("rollouts", run, "--where", "step=1-2&stutus=failed") == 2
    assert "stutus=failed" in capsys.readouterr().err
    assert command("rollouts", run, "--step", "some") == 2
    assert command("rollouts", run, "--step", "20-10") == 2
    assert command("rollouts", run, "--page", 99) == 2
    assert "there is no page 99" in capsys.readouterr().err


def test_means_are_of_each_role_and_of_answers_that_have_a_reward(tmp_path):
    def table(path):
        return Rollouts(path, EVERY, 10).report(1).sections[0].blocks[0].rows

    rewards = [{"first": -1.0, "second": 1.0}, {"first": -1.0, "second": 1.0}, {}]
    rows = [
        answer(0) | {"status": status, "rewards": one}
        for status, one in zip(("a", "a", "b"), rewards, strict=True)
    ]
    for name, kept in (
        ("game", rows),
        ("one", [one | {"rewards": {"policy": 0.5}} for one in rows[:2]] + rows[2:]),
    ):
        with RunDirectory.create(tmp_path / name, {"algorithm": {"name": "grpo"}}) as directory:
            directory.write_rollouts(1, kept)
    assert [row[3] for row in table(tmp_path / "game")] == ["first -1 · second 1", "–"]
    assert [row[3] for row in table(tmp_path / "one")] == ["0.5", "–"]


def test_a_reward_that_no_float_can_hold_is_left_out(tmp_path):
    rows = [{**answer(0), "rewards": {"policy": 10**400}}, answer(5)]
    with RunDirectory.create(tmp_path / "run", {"algorithm": {"name": "grpo"}}) as directory:
        directory.write_rollouts(1, rows)
    assert len(shown(tmp_path / "run")) == 2
    assert len(shown(tmp_path / "run", parse_query("reward>=0"))) == 1

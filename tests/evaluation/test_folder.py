"""An evaluation cut at any point goes on where it was: nothing drawn or judged twice, nothing lost."""

from __future__ import annotations

import io
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console
from scripted_engine import NumberRenderer, ScriptedEngine, completion

from greenward.common.errors import RunError
from greenward.evaluation.evaluate import Seconds, add_given, flaky_samples, judge
from greenward.evaluation.policy_source import PolicySource
from greenward.evaluation.samples import Sample
from greenward.evaluation.store import RESULTS, SAMPLES, EvaluationFolder, read_rows
from greenward.grading.execution import FlakyAnswer
from greenward.grading.extracted import Extracted
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Case, Problem, ProblemSet
from greenward.rollouts.protocols import SamplingParams
from greenward.runs.progress import Progress

PROBLEMS = ProblemSet(
    (Problem(f"p{number}", "Do it.", "f", tests=(Case((1,), 1),), tags=("easy",)) for number in range(6)),
    name="suite",
)
SETTINGS = {"suite": "suite", "n": 2}
PER_PROBLEM = 2


class CountingPolicy(ScriptedEngine):
    """Answers a prompt by a number that depends on it, the sample and the seed, as samplers promise.

    Dies after `lives` groups.
    """

    def __init__(self, lives: int = 10**9) -> None:
        self.lives = lives
        self.drawn: list[int] = []

    def answers(self, prompt, group_size, params, seed):
        if not self.lives:
            raise Killed
        self.lives -= 1
        self.drawn.append(prompt[0])
        return [completion([prompt[0] * 1000 + i * 100 + seed % 97]) for i in range(group_size)]


class Killed(BaseException):
    """The end of the process, as far as the code under test can tell."""


class CountingGrader:
    """Passes even answers; says `lost` infrastructure failures first; dies after `lives` verdicts."""

    def __init__(self, lives: int = 10**9, lost: int = 0) -> None:
        self.lives, self.lost = lives, lost
        self.judged: list[str] = []

    def grade_stream(self, answers: Sequence[tuple[Problem, str]]) -> Iterator[tuple[int, Verdict]]:
        for index, (_, code) in reversed(list(enumerate(answers))):
            if not self.lives:
                raise Killed
            self.lives -= 1
            self.judged.append(code)
            if self.lost:
                self.lost -= 1
                yield index, Verdict(Status.INFRASTRUCTURE, (False,), error_message="no worker")
            else:
                passed = int(code) % 2 == 0
                yield index, Verdict(Status.PASSED if passed else Status.FAILED, (passed,))

    def flaky(self, answers: Sequence[tuple[Problem, str]], repeats: int) -> list[FlakyAnswer]:
        return [FlakyAnswer(1, tuple(Verdict(Status.PASSED) for _ in range(repeats)))]


def evaluate(path: Path, policy: CountingPolicy, grader: CountingGrader) -> EvaluationFolder:
    seconds = Seconds()
    with EvaluationFolder(path, SETTINGS, PROBLEMS) as folder:
        source = PolicySource(policy, NumberRenderer(), SamplingParams(), PER_PROBLEM, seed=3, chunk=4)  # type: ignore[arg-type]
        judge(folder, partial(source.draw, folder, PROBLEMS, seconds), grader, seconds)  # type: ignore[arg-type]
        return folder


def content(path: Path) -> dict[str, list[dict]]:
    rows = {name: map(json.loads, (path / name).read_text().splitlines()) for name in (SAMPLES, RESULTS)}
    return {name: sorted(found, key=lambda r: (r["task_id"], r["sample"])) for name, found in rows.items()}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[str, list[dict]]:
    path = tmp_path_factory.mktemp("whole") / "e"
    evaluate(path, CountingPolicy(), CountingGrader())
    return content(path)


@pytest.mark.parametrize("lives", range(0, 12))
def test_cut_while_judging_nothing_is_judged_twice_and_all_is_as_without_a_cut(
    tmp_path, uninterrupted, lives
):
    first, second = CountingGrader(lives), CountingGrader()
    with pytest.raises(Killed):
        evaluate(tmp_path / "e", CountingPolicy(), first)
    kept = (tmp_path / "e" / RESULTS).read_text() if lives else ""
    assert len(kept.splitlines()) == lives
    drawn_before = {row["task_id"] for row in content(tmp_path / "e")[SAMPLES]} if lives else set()
    policy = CountingPolicy()
    evaluate(tmp_path / "e", policy, second)
    assert content(tmp_path / "e") == uninterrupted
    assert (tmp_path / "e" / RESULTS).read_text().startswith(kept)
    assert max(Counter(first.judged + second.judged).values()) == 1
    assert not drawn_before & {f"p{number}" for number in policy.drawn}


@pytest.mark.parametrize("groups", range(6))
def test_cut_while_drawing_no_answer_is_drawn_twice_and_all_is_as_without_a_cut(
    tmp_path, uninterrupted, groups
):
    first, second = CountingPolicy(groups), CountingPolicy()
    with pytest.raises(Killed):
        evaluate(tmp_path / "e", first, CountingGrader())
    evaluate(tmp_path / "e", second, CountingGrader())
    assert content(tmp_path / "e") == uninterrupted
    assert sorted(first.drawn + second.drawn) == list(range(len(PROBLEMS)))


def test_an_answer_is_judged_while_the_next_is_drawn(tmp_path):
    """The engine draws each group only once the one before is judged, all in one chunk."""

    class Waiting(CountingPolicy):
        def answers(self, prompt, group_size, params, seed):
            while len(grader.judged) < PER_PROBLEM * len(self.drawn):
                assert time.monotonic() < end, "nothing is judged before all is drawn"
                time.sleep(0.001)
            return super().answers(prompt, group_size, params, seed)

    end, grader = time.monotonic() + 60, CountingGrader()
    with EvaluationFolder(tmp_path / "e", SETTINGS, PROBLEMS) as folder:
        source = PolicySource(Waiting(), NumberRenderer(), SamplingParams(), PER_PROBLEM, seed=3, chunk=100)  # type: ignore[arg-type]
        judge(folder, partial(source.draw, folder, PROBLEMS, Seconds()), grader, Seconds())  # type: ignore[arg-type]
        assert len(folder.rows) == PER_PROBLEM * len(PROBLEMS)


@pytest.mark.parametrize("there", [0, 3])
def test_drawing_is_shown_with_what_was_there_before(tmp_path, there):
    """Each answer of this engine has one token, which it tells as it comes."""

    class Telling(CountingPolicy):
        def answers(self, prompt, group_size, params, seed):
            if self.drawn:
                self.on_tokens(PER_PROBLEM)
            return super().answers(prompt, group_size, params, seed)

    if there:
        with pytest.raises(Killed):
            evaluate(tmp_path / "e", CountingPolicy(there), CountingGrader())
    out, clock, engine = io.StringIO(), itertools.count(step=11), Telling()
    progress = Progress(console=Console(file=out, width=200), clock=lambda: next(clock))
    with EvaluationFolder(tmp_path / "e", SETTINGS, PROBLEMS) as folder:
        shown = partial(progress.drawing, "sampling")
        source = PolicySource(engine, NumberRenderer(), SamplingParams(), PER_PROBLEM, 3, 100, shown)  # type: ignore[arg-type]
        judge(folder, partial(source.draw, folder, PROBLEMS, Seconds()), CountingGrader(), Seconds())  # type: ignore[arg-type]
    lines = out.getvalue().splitlines()
    assert lines[0] == "sampling: 12 answers"
    assert lines[1].startswith(f"sampling  answer {2 * there + 2}/12  2 tokens")
    assert lines[-1].startswith("sampling  answer 12/12") and engine.on_tokens is None


@pytest.mark.parametrize("name", [SAMPLES, RESULTS])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.7, 0.999])
def test_files_cut_at_any_byte_are_completed(tmp_path, uninterrupted, name, kept):
    evaluate(tmp_path / "e", CountingPolicy(), CountingGrader())
    file = tmp_path / "e" / name
    whole = file.read_bytes()
    file.write_bytes(whole[: int(kept * len(whole))])
    evaluate(tmp_path / "e", CountingPolicy(), CountingGrader())
    assert content(tmp_path / "e") == uninterrupted


def test_a_finished_evaluation_draws_and_judges_nothing(tmp_path):
    evaluate(tmp_path / "e", CountingPolicy(), CountingGrader())
    policy, grader = CountingPolicy(), CountingGrader()
    evaluate(tmp_path / "e", policy, grader)
    assert not policy.drawn
    assert not grader.judged


def test_what_the_infrastructure_lost_is_tried_again_and_has_one_row(tmp_path, uninterrupted):
    folder = evaluate(tmp_path / "e", CountingPolicy(), CountingGrader(lost=3))
    assert sum(row.status is Status.INFRASTRUCTURE for row in folder.rows.values()) == 3
    grader = CountingGrader()
    evaluate(tmp_path / "e", CountingPolicy(), grader)
    assert len(grader.judged) == 3
    assert content(tmp_path / "e") == uninterrupted


def test_other_settings_are_refused_by_name_and_nothing_changes(tmp_path):
    evaluate(tmp_path / "e", CountingPolicy(), CountingGrader())
    before = {file.name: file.read_bytes() for file in (tmp_path / "e").iterdir()}
    with pytest.raises(RunError, match=r"n: 2 -> 5") as caught:
        EvaluationFolder(tmp_path / "e", {"suite": "suite", "n": 5}, PROBLEMS)
    assert "suite:" not in caught.value.message
    assert {file.name: file.read_bytes() for file in (tmp_path / "e").iterdir()} == before


def test_a_folder_that_holds_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match="thesis"):
        EvaluationFolder(tmp_path, SETTINGS, PROBLEMS)
    with pytest.raises(RunError, match="found a file"):
        EvaluationFolder(tmp_path / "thesis.tex", SETTINGS, PROBLEMS)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_only_one_writes_at_a_time(tmp_path):
    with (
        EvaluationFolder(tmp_path / "e", SETTINGS, PROBLEMS),
        pytest.raises(RunError, match="open for writing"),
    ):
        EvaluationFolder(tmp_path / "e", SETTINGS, PROBLEMS)


def test_results_of_another_form_are_refused(tmp_path):
    (tmp_path / RESULTS).write_text('{"task_id": "p1"}\n')
    with pytest.raises(RunError, match="not the results"):
        list(read_rows(tmp_path / RESULTS))


def test_given_answers_may_grow_but_not_change(tmp_path):
    def grade(*codes: str) -> CountingGrader:
        grader = CountingGrader()
        answers = [Sample(PROBLEMS[0], sample, code, Extracted(code)) for sample, code in enumerate(codes)]
        with EvaluationFolder(tmp_path / "e", SETTINGS, PROBLEMS) as folder:
            add_given(folder, answers)
            judge(folder, lambda _: None, grader, Seconds())  # type: ignore[arg-type]
        return grader

    assert sorted(grade("1", "2").judged) == ["1", "2"]
    assert grade("1", "2", "3").judged == ["3"]
    with pytest.raises(RunError, match="another answer 1 to p0"):
        grade("1", "7", "3")
    assert len(list(read_rows(tmp_path / "e" / RESULTS))) == 3


def test_answers_with_varying_verdicts_are_named():
    answers = [Sample(PROBLEMS[number], number, "1", Extracted("1")) for number in range(2)]
    found = flaky_samples(answers, CountingGrader(), 3)  # type: ignore[arg-type]
    assert found == [{"task_id": "p1", "sample": 1, "statuses": ["passed"] * 3}]

"""What is said of steps that gave reinforcement learning nothing to learn from."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from greenward.reports.runs import read_runs
from greenward.runs.directory import RunDirectory, write_summary
from greenward.runs.no_signal import cause_of, no_signal_periods
from greenward.runs.progress import Progress
from greenward.runs.reading import read_summary
from greenward.training.loop import StepRecord, TrainingLoop

HEALTHY = {"completion/truncated": 0.1, "pass_rate": 0.4, "reward/std": 0.5, "groups/with_signal": 7.0}


def row(**changed):
    names = {"truncated": "completion/truncated", "std": "reward/std", "groups": "groups/with_signal"}
    return HEALTHY | {names.get(name, name): value for name, value in changed.items()}


@pytest.mark.parametrize(
    ("changed", "algorithm", "brief"),
    [
        ({}, "grpo", None),
        ({"truncated": 1.0}, "grpo", "every answer truncated"),
        ({"truncated": 0.9}, "grpo", None),
        ({"pass_rate": 0.0, "std": 0.0, "groups": 0.0}, "grpo", "no answer passes"),
        ({"pass_rate": 0.0}, "ppo", "no answer passes"),
        ({"pass_rate": 1.0, "std": 0.0, "groups": 0.0}, "rejection", "every answer passes"),
        ({"pass_rate": 1.0}, "grpo", "every answer passes"),
        ({"pass_rate": 0.001}, "grpo", None),
        ({"std": 0.0, "groups": 0.0}, "grpo", "constant reward"),
        ({"std": 0.0, "groups": 0.0}, "ppo", "constant reward"),
        ({"std": 0.0, "groups": 0.0}, "rejection", None),  # it learns from what passes
        ({"groups": 0.0}, "grpo", "no group with signal"),
        ({"rejection/kept": 0.0}, "rejection", "no answer kept"),
        ({"pass_rate": 0.0, "rejection/kept": 3.0}, "rejection", None),  # algorithm.min_reward admits them
        ({"groups": 0.0}, "ppo", None),  # one answer to each prompt: the critic compares prompts
        ({"std": math.nan}, "grpo", None),
    ],
)
def test_each_way_of_having_no_signal_is_told_from_a_healthy_step(changed, algorithm, brief):
    cause = cause_of(row(**changed), {"algorithm": {"name": algorithm}})
    assert (cause and cause.brief) == brief


PLAYED = {"reward/std": 0.9, "games/illegal": 0.01, "games/length": 60.0, "games/ttt/self/first/win": 0.6}


@pytest.mark.parametrize(
    ("changed", "move_format", "brief"),
    [
        ({}, "boxed", None),
        ({"games/illegal": 0.6}, "bare", "illegal moves decide"),
        ({"games/illegal": 0.2}, "bare", "illegal moves rising"),
        ({"games/illegal": 0.05}, "bare", None),
        ({"games/length": 5.0}, "boxed", "no reasoning left"),
        ({"games/length": 1.0}, "bare", None),
        ({"games/ttt/self/first/win": 1.0}, "bare", "one role always wins"),
        ({"games/ttt/self/second/win": 0.999}, "bare", "one role always wins"),
        ({"games/ttt/random/first/win": 1.0}, "bare", None),  # it beats a random player: as it should
        ({"reward/std": 0.0}, "bare", "every game alike"),
        ({"games/illegal": None}, "bare", None),
    ],
)
def test_collapses_of_self_play_are_named_when_they_last(changed, move_format, brief):
    config = {
        "task": "self_play",
        "algorithm": {"name": "grpo"},
        "self_play": {"move_format": move_format, "illegal_moves": "lose"},
    }
    rows = [{"step": step, **PLAYED} for step in range(4)]
    rows += [{"step": step, **PLAYED, **changed} for step in range(4, 8)]
    found = no_signal_periods(rows, config)
    assert [(period.cause.brief, period.first_step) for period in found] == ([(brief, 4)] if brief else [])


def test_rewards_that_still_differ_are_not_denied():
    assert "do not differ" in str(
        cause_of(row(pass_rate=0.0, std=0.0, groups=0.0), {"algorithm": {"name": "grpo"}})
    )
    assert "do not differ" in str(cause_of(row(pass_rate=0.0, groups=0.0), {"algorithm": {"name": "grpo"}}))
    assert "only partial success" in str(cause_of(row(pass_rate=0.0), {"algorithm": {"name": "grpo"}}))


@pytest.mark.parametrize("advantage", ["reinforce", "mine:advantage"])
def test_an_advantage_over_the_batch_needs_no_group_that_differs(advantage):
    config = {"algorithm": {"name": "grpo", "advantage": advantage}}
    assert cause_of(row(groups=0.0), config) is None


def test_rows_without_these_metrics_say_nothing():
    assert (
        no_signal_periods([{"step": step, "loss": 1.0} for step in range(9)], {"algorithm": {"name": "sft"}})
        == []
    )


def test_periods_are_consecutive_steps_with_one_cause():
    rates = [0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    rows = [{"step": step, **row(pass_rate=rate)} for step, rate in enumerate(rates, 1)]
    found = [
        (one.first_step, one.last_step, one.cause.brief)
        for one in no_signal_periods(rows, {"algorithm": {"name": "grpo"}})
    ]
    assert found == [(4, 6, "no answer passes"), (7, 10, "every answer passes")]


def test_causes_that_alternate_are_one_period():
    """With nearly all answers truncated, every answer is in some steps and all but one in others."""
    shares = [1.0, 0.94, 1.0, 0.94, 0.94, 1.0]
    rows = [
        {"step": step, **row(pass_rate=0.0, std=0.0, groups=0.0, truncated=share)}
        for step, share in enumerate(shares, 1)
    ]
    for newest in range(3, len(rows) + 1):
        (period,) = no_signal_periods(rows[newest - 3 : newest], {"algorithm": {"name": "grpo"}})
        assert period.steps == 3
    (period,) = no_signal_periods(rows, {"algorithm": {"name": "grpo"}})
    assert (period.first_step, period.last_step) == (1, 6)
    long = [{"step": step, **row(pass_rate=0.0, truncated=step == 50)} for step in range(1, 101)]
    assert [
        (one.first_step, one.last_step, one.cause.brief)
        for one in no_signal_periods(long, {"algorithm": {"name": "grpo"}})
    ] == [(1, 100, "no answer passes")]


class Scripted:
    """A trainer that gives the rows of a script and has nothing to save."""

    def __init__(self, policy, rows):
        self.policy, self.rows = policy, rows

    def train_step(self, step):
        return StepRecord(dict(self.rows[step]))

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Device:
    type = "cpu"


class Weightless:
    device, version, saves_exactly = Device(), 0, False

    def save(self, folder):
        (folder / "model").write_text("")

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_without_signal_says_so_while_it_runs_in_its_summary_and_in_its_report(tmp_path, terminal):
    rates = [0.5, 0.0, 0.0, 0.0, 0.0, 0.5]
    rows = [row(pass_rate=rate, groups=7.0 * (rate > 0)) for rate in rates]
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=terminal, width=200)
    clock = iter(range(0, 10_000, 60))
    config = {"algorithm": {"name": "grpo"}, "name": "r"}
    with (
        RunDirectory.create(tmp_path / "run", config) as run,
        Progress(console=console, clock=lambda: next(clock)) as progress,
    ):
        progress.phase("training", len(rows))
        trainer = Scripted(Weightless(), rows)
        TrainingLoop(trainer, run, seed=0, max_steps=len(rows), progress=progress).run()
        write_summary(run, status="finished", steps=len(rows), wall_seconds=1.0)
    text = shown.getvalue()
    assert text.count("No answer passed its tests") == 1
    assert "Step 4, and 2 before: No answer passed its tests" in text and "warm start" in text
    if not terminal:
        lines = [line for line in text.splitlines() if "  step " in line]
        assert ["! no answer passes" in line for line in lines] == [False, False, False, True, True, False]
    (warning,) = read_summary(tmp_path / "run")["warnings"]
    assert (warning["first_step"], warning["last_step"]) == (2, 5) and "rollouts/" in warning["remedy"]
    notes = read_runs(tmp_path / "run").notes
    assert any(note.startswith("Steps 2 to 5 of 6: No answer passed its tests") for note in notes)


@pytest.mark.parametrize(
    "cut", [1, 3, 6, *(pytest.param(cut, marks=pytest.mark.slow) for cut in (2, 4, 5, 7, 8))]
)
def test_a_resumed_run_gives_the_warnings_of_the_uninterrupted_one(tmp_path, cut):
    """The cut may fall before, into or after each of two stretches without signal."""
    rates = [0.5, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0]
    rows = [row(pass_rate=rate, groups=7.0 * (rate > 0)) for rate in rates]

    def shown_by(folder, *ends):
        shown, clock = io.StringIO(), iter(range(0, 10_000, 60))
        for number, end in enumerate(ends):
            with (
                RunDirectory.create(
                    tmp_path / folder, {"algorithm": {"name": "grpo"}}, resume=number > 0
                ) as run,
                Progress(console=Console(file=shown, width=200), clock=lambda: next(clock)) as progress,
            ):
                progress.phase("training", len(rows))
                trainer = Scripted(Weightless(), rows)
                TrainingLoop(trainer, run, seed=0, max_steps=end, progress=progress).run()
        lines = shown.getvalue().splitlines()
        return [(": No answer passed" in line, "! no answer" in line) for line in lines if "tep " in line]

    whole = shown_by("whole", len(rows))
    assert sum(said for said, _ in whole) == 2 and sum(brief for _, brief in whole) == 3
    assert shown_by("cut", cut, len(rows)) == whole


@pytest.mark.parametrize(("rule", "advised"), [("lose", True), ("retry", False)])
def test_a_second_try_is_advised_only_where_there_is_none(rule, advised):
    config = {
        "task": "self_play",
        "algorithm": {"name": "grpo"},
        "self_play": {"move_format": "bare", "illegal_moves": rule},
    }
    cause = cause_of({**PLAYED, "games/illegal": 0.7}, config)
    assert cause.brief == "illegal moves decide" and ("illegal_moves=retry" in cause.remedy) == advised

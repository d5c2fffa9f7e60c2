"""Progress: bars for people, sparse plain lines for logs, silence when asked."""

from __future__ import annotations

import io

from rich.console import Console
from rich.text import Text

from greenward.runs.progress import Progress

METRICS = {"reward/mean": 0.25, "pass_rate": 0.5, "loss": 1.0, "perf/tokens_per_second": 12345.6, "kl": 1.0}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run_plain(steps: int, seconds_per_step: float, first: int = 1) -> list[str]:
    clock, out = Clock(), io.StringIO()
    with Progress(console=Console(file=out, width=40), clock=clock) as progress:
        progress.phase("grpo", steps)
        for step in range(first, steps + 1):
            clock.now += seconds_per_step
            progress.advance(step, METRICS)
    return out.getvalue().splitlines()


def test_a_log_gets_the_first_the_last_and_one_line_in_ten_seconds():
    lines = run_plain(steps=41, seconds_per_step=1.0)
    assert lines[0] == "grpo: 41 steps"
    assert [line.split()[2] for line in lines[1:]] == ["1/41", "11/41", "21/41", "31/41", "41/41"]
    assert lines[2] == "grpo  step 11/41  reward +0.25  pass 50%  12,346 tok/s  ETA 0:30"
    assert "\x1b" not in "".join(lines)


def test_the_eta_after_a_resume_counts_this_session_only():
    assert "ETA 0:40" in run_plain(steps=40, seconds_per_step=5.0, first=30)[2]


def test_quiet_prints_nothing(capsys):
    with Progress(quiet=True) as progress:
        progress.phase("grpo", 3)
        progress.advance(1, METRICS)
        progress.message("hello")
    assert capsys.readouterr() == ("", "")


def test_progress_leaves_standard_output_to_results(capsys):
    with Progress() as progress:
        progress.phase("grpo", 3)
        progress.advance(1)
    out, err = capsys.readouterr()
    assert out == "" and "step 1/3" in err


def test_a_terminal_shows_several_phases_at_once():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with Progress(console=console) as progress:
        progress.phase("seed 0", 80)
        progress.phase("seed 1", 80)
        progress.advance(20, {"pass_rate": 0.3}, phase="seed 0")
        progress.advance(40, {"pass_rate": 0.6}, phase="seed 1")
        progress.message("held-out [bold]30 %")
    text = Text.from_ansi(out.getvalue()).plain
    assert "20/80" in text and "40/80" in text and "pass 60%" in text
    assert "held-out [bold]30 %" in text


def test_no_color_is_respected(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    with Progress(console=Console(file=out, force_terminal=True, width=100)) as progress:
        progress.phase("grpo", 2)
        progress.advance(2)
    assert "\x1b[32m" not in out.getvalue() and "38;5" not in out.getvalue()


def test_control_sequences_in_a_message_do_not_reach_the_terminal():
    out = io.StringIO()
    with Progress(console=Console(file=out, width=100)) as progress:
        progress.message("\x1b[2J\u202ered")
    assert "\ufffd[2J\ufffdred" in out.getvalue() and "\x1b" not in out.getvalue()

"""Progress: bars for people, sparse plain lines for logs, silence when asked."""

from __future__ import annotations

import io
import json
import time

import pytest
from rich.console import Console
from rich.text import Text

from greenward.runs.progress import Drawn, Progress, doing, shown_answer

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


def test_a_log_gets_the_first_the_last_and_one_line_in_four_seconds():
    lines = run_plain(steps=41, seconds_per_step=1.0)
    assert lines[0] == "grpo: 41 steps"
    assert [line.split()[2] for line in lines[1:]] == [f"{step}/41" for step in range(1, 42, 4)]
    assert lines[3] == "grpo  step 9/41  reward +0.25  pass 50%  12,346 tok/s  ETA 0:32"
    assert "\x1b" not in "".join(lines)


def test_the_eta_after_a_resume_counts_this_session_only():
    assert "ETA 0:40" in run_plain(steps=40, seconds_per_step=5.0, first=30)[3]


@pytest.mark.parametrize("begin", ["during", "drawing"])
def test_a_log_is_told_again_and_again_that_a_phase_in_which_nothing_ends_goes_on(
    monkeypatch, tmp_path, begin
):
    monkeypatch.setattr("greenward.runs.progress.SECONDS_BETWEEN_LINES", 0.01)
    clock, out = Clock(), io.StringIO()
    with Progress(console=Console(file=out, width=40), clock=clock) as progress:
        progress.record_in(tmp_path)
        with getattr(progress, begin)("loading qwen"):
            clock.now = 65.0
            while out.getvalue().count("loading qwen  1:05") < 2:
                time.sleep(0.01)
            assert doing(tmp_path) is not None
    assert set(out.getvalue().splitlines()) <= {"loading qwen", "loading qwen  0:00", "loading qwen  1:05"}


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


def log_of(draw, **settings) -> list[str]:
    """The lines of a log while `draw(clock, drawn)` draws."""
    clock, out = Clock(), io.StringIO()
    progress = Progress(console=Console(file=out, width=40), clock=clock)
    with progress, progress.drawing("sampling", **settings) as drawn:
        draw(clock, drawn)
    return out.getvalue().splitlines()


def test_a_log_of_drawing_counts_answers_and_tokens_and_says_when_they_will_be_there():
    def draw(clock: Clock, drawn: Drawn) -> None:
        for second in range(1, 41):  # 100 tokens a second, an answer each 4 seconds from the 20th on
            clock.now = float(second)
            drawn.answers(second >= 20 and second % 4 == 0)
            drawn.tokens(100)

    lines = log_of(draw, total=26, done=10, most_tokens=1000)
    assert lines[:2] + lines[3:5] + lines[6:] == [
        "sampling: 26 answers",
        "sampling  answer 10/26  100 tokens  100 tok/s",
        "sampling  answer 10/26  900 tokens  100 tok/s",
        "sampling  answer 10/26  1,300 tokens  100 tok/s  ETA at most 2:40",  # 16 answers of 1000 tokens
        "sampling  answer 11/26  2,100 tokens  100 tok/s  ETA 2:30",  # not 15 times 21 seconds
        "sampling  answer 12/26  2,500 tokens  100 tok/s  ETA 2:20",
        "sampling  answer 13/26  2,900 tokens  100 tok/s  ETA 2:06",  # 13 times 29 / 3 seconds
        "sampling  answer 14/26  3,300 tokens  100 tok/s  ETA 1:39",
        "sampling  answer 15/26  3,700 tokens  100 tok/s  ETA 1:21",
    ]


def test_the_time_that_is_left_follows_from_the_answers_once_many_have_ended():
    def draw(clock: Clock, drawn: Drawn) -> None:
        clock.now = 60.0
        drawn.answers(30)
        drawn.tokens(3000)

    assert log_of(draw, total=100, most_tokens=10_000)[1].endswith("ETA 2:20")
    assert log_of(draw, total=100)[1].endswith("ETA 2:20")
    assert "ETA" not in log_of(draw)[1]


def test_the_speed_is_that_of_the_last_ten_seconds():
    def draw(clock: Clock, drawn: Drawn) -> None:
        for second in range(1, 61):
            clock.now = float(second)
            drawn.tokens(1 if second <= 30 else 50)

    assert " 1 tok/s" in log_of(draw)[2] and " 50 tok/s" in log_of(draw)[-1]


def test_what_is_not_shown_at_once_is_seen_only_if_it_takes_long():
    def draw(seconds: float):
        def run(clock: Clock, drawn: Drawn) -> None:
            for _ in range(4):
                clock.now += seconds / 4
                drawn.answers(1)
                drawn.tokens(8)

        return run

    assert log_of(draw(3.0), total=4, at_once=False) == []
    assert log_of(draw(8.0), total=4, at_once=False)[-1].startswith("sampling  answer 4/4  32 tokens")


def test_bars_of_what_takes_no_time_never_appear():
    clock, out = Clock(), io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with Progress(console=console, clock=clock) as progress:
        progress.phase("training", 3)
        for seconds in (0.1, 5.0):
            with progress.drawing("sampling" if seconds < 1 else "slow", at_once=False) as drawn:
                clock.now += seconds
                drawn.tokens(77)
            progress.advance(1)  # of the training, which is the newest phase again
    assert "slow" in out.getvalue() and "sampling" not in out.getvalue()
    assert "1/3" in Text.from_ansi(out.getvalue()).plain


def test_a_phase_without_an_end_is_named_and_then_gone():
    out = io.StringIO()
    with Progress(console=Console(file=out, width=100)) as progress, progress.during("loading qwen"):
        pass
    assert out.getvalue() == "loading qwen\n"
    assert shown_answer("p1: passed", "a\x1b[2J" + "b" * 5000).startswith("--- p1: passed\na\ufffd[2Jb")
    assert len(shown_answer("", "b" * 5000)) < 2100


def test_a_folder_holds_what_goes_on_also_when_nothing_is_shown(tmp_path):
    clock = Clock()
    progress = Progress(quiet=True, clock=clock)
    progress.phase("reading problems")
    assert doing(tmp_path) is None
    progress.record_in(tmp_path)
    seen = []
    with progress.drawing("sampling", 40, most_tokens=10) as drawn:
        for _ in range(40):
            clock.now += 0.3
            drawn.answers(1)
            drawn.tokens(5)
            seen.append((tmp_path / "progress.json").read_text())
    assert 10 <= len(set(seen)) <= 13  # at most once a second, in twelve seconds
    record = json.loads(seen[-1])
    assert record["phase"] == "sampling" and record["total"] == 40 and record["unit"] == "answer"
    assert 36 <= record["done"] <= 40 and "tokens" in record["numbers"] and record["eta"].startswith("ETA")
    assert doing(tmp_path) == f"sampling {record['done']}/40"
    assert not [path for path in tmp_path.iterdir() if path.name != "progress.json"]


def test_steps_are_told_by_the_metrics_and_not_by_what_goes_on(tmp_path):
    progress = Progress(quiet=True, clock=(clock := Clock()))
    progress.record_in(tmp_path)
    progress.phase("grpo", 10)
    assert doing(tmp_path) is None
    clock.now += 2
    with progress.during("loading a model"):
        assert doing(tmp_path) == "loading a model"


@pytest.mark.parametrize("text", ["", "[]", '{"phase": 3}', '{"done": 1}', "{"])
def test_a_record_of_another_form_says_nothing(tmp_path, text):
    (tmp_path / "progress.json").write_text(text)
    assert doing(tmp_path) is None


def test_counts_of_another_form_are_left_out_and_control_characters_are_no_part_of_what_is_shown(tmp_path):
    (tmp_path / "progress.json").write_text('{"phase": "a\\u001b[2J", "done": "x", "total": []}')
    assert doing(tmp_path) is not None and "\x1b" not in doing(tmp_path)

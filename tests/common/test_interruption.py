"""Ctrl-C: said at once by a thread, whatever the main thread does, and acted on where nothing is lost."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from greenward.common import interruption
from greenward.common.interruption import Stopped, check, stoppable

SOURCE = Path(interruption.__file__).parents[2]
SAME = 0.06  # seconds after which a second signal is one


def interrupt(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture
def heard():
    said: list[tuple[float, str]] = []
    with interruption.shown_by(lambda text: said.append((time.monotonic(), text))):
        yield said


def wait_for(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_it_is_acknowledged_while_the_main_thread_is_inside_a_long_call_of_c(heard):
    began = time.monotonic()
    with pytest.raises(Stopped), stoppable(lambda: "Stopping; told by the test."):
        threading.Timer(0.1, interrupt).start()
        hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2_000_000)
    ended = time.monotonic()
    ((at, text),) = heard
    assert text == "Stopping; told by the test."
    assert at - began < ended - at, "it was told at the end of the call only"


def test_work_that_calls_check_is_stopped_there_and_only_where_it_may(heard):
    allowed = False
    with stoppable(lambda: "outer"):
        with stoppable(lambda: "inner", may_stop=lambda: allowed):
            interrupt()
            wait_for(lambda: heard and interruption.requested())
            check()
            allowed = True
            with pytest.raises(Stopped):
                check()
        assert interruption.requested()
    assert not interruption.requested() and [text for _, text in heard] == ["inner"]
    check()


def test_check_raises_in_other_threads_as_well(heard):
    ended: list[BaseException] = []

    def work() -> None:
        try:
            while True:
                check()
                time.sleep(0.001)
        except Stopped as stop:
            ended.append(stop)

    with stoppable(lambda: "", may_stop=lambda: True):
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        interrupt(signal.SIGTERM)
        thread.join(20)
    assert len(ended) == 1


@pytest.mark.parametrize(("pause", "raises"), [(0.0, False), (SAME, True)])
def test_a_second_ctrl_c_stops_now_unless_a_launcher_has_only_passed_on_the_first(heard, pause, raises):
    with stoppable(lambda: "once", may_stop=lambda: False):
        interrupt()
        time.sleep(pause)
        if raises:
            with pytest.raises(KeyboardInterrupt):
                interrupt()
                time.sleep(5)
        else:
            interrupt()
            time.sleep(0.01)
        wait_for(lambda: heard)
    assert len(heard) == 1


def test_a_text_that_cannot_be_made_is_the_usual_one(heard):
    with stoppable(lambda: {}["a file that has just gone"], may_stop=lambda: False):
        interrupt()
        wait_for(lambda: heard)
    assert heard[0][1] == "Stopping. Ctrl-C again stops now."


def test_handlers_and_flag_are_those_of_before():
    before = [signal.getsignal(number) for number in interruption.SIGNALS]
    with stoppable(lambda: "", may_stop=lambda: False):
        interrupt(signal.SIGUSR1)
        wait_for(interruption.requested)
    assert [signal.getsignal(number) for number in interruption.SIGNALS] == before
    assert not interruption.requested()


def test_outside_of_the_main_thread_signals_are_left_alone():
    before, found = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with stoppable(lambda: ""):
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert found == [before]


def run_script(script: str, *signals: int, folder: Path) -> tuple[int, str, float]:
    """Exit code, standard error, and seconds from the last signal of a script that has printed a line."""
    (folder / "slow_module.py").write_text("print('ready', flush=True); import time; time.sleep(100)\n")
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(SOURCE)!r}, {str(folder)!r}]\n{script}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for number in signals:
            time.sleep(0.2)
            process.send_signal(number)
            sent = time.monotonic()
        _, said = process.communicate(timeout=60)
        return process.returncode, said, time.monotonic() - sent
    finally:
        process.kill()


def test_a_second_ctrl_c_ends_a_command_that_is_inside_a_long_call_of_c(tmp_path):
    script = """
import hashlib
from greenward.common.interruption import stoppable
with stoppable(lambda: "Stopping.", ends_process=True):
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 10**9)
"""
    code, said, seconds = run_script(script, signal.SIGINT, signal.SIGINT, folder=tmp_path)
    assert (code, said) == (130, "Stopping.\n") and seconds < 5


def test_ctrl_c_during_the_imports_of_a_command_ends_it_without_a_word(tmp_path):
    script = """
import click
from greenward.cli import main
@click.command()
def command():
    import slow_module
main.run(command, "command", [])
"""
    code, said, seconds = run_script(script, signal.SIGINT, folder=tmp_path)
    assert (code, said) == (130, "") and seconds < 5


def test_ctrl_c_in_any_other_command_is_acknowledged_and_ends_it_without_a_traceback(tmp_path):
    script = """
import click, time
from greenward.cli import main
@click.command()
def command():
    print("ready", flush=True)
    time.sleep(100)
main.run(command, "command", [])
"""
    code, said, seconds = run_script(script, signal.SIGINT, folder=tmp_path)
    assert code == 130 and seconds < 5
    assert said.split() == ["Stopping.", "Ctrl-C", "again", "stops", "now.", "Interrupted."]


def test_a_forked_process_has_its_signals_to_itself(tmp_path):
    script = """
import os, signal, time
from greenward.common import interruption
with interruption.stoppable(lambda: "Stopping.", may_stop=lambda: False):
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(100)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGINT
    print("ready", flush=True)
    time.sleep(0.2)
    os._exit(interruption.requested())
"""
    code, said, _ = run_script(script, 0, folder=tmp_path)
    assert (code, said) == (0, "")

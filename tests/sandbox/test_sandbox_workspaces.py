"""Workspaces: commands see their own folder, nothing survives them, and no limit can be passed."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import time
from dataclasses import replace

import pytest

from greenward.common.errors import SandboxError
from greenward.sandbox import workspaces
from greenward.sandbox.inside.linux import descendants
from greenward.sandbox.isolation import ALL_LAYERS, CORE_LAYERS, PORTABLE_LAYERS, Layer, Level
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Outcome
from greenward.sandbox.remote import RemoteExecutor
from greenward.sandbox.workers import WorkerNotStarted
from greenward.sandbox.workspaces import WorkspaceError, WorkspaceLimits

LIMITS = WorkspaceLimits(call_seconds=5.0, memory_bytes=256 << 20)
FILES = {"shop/prices.py": "PRICE = 3\n", "test_prices.py": "import shop.prices\n"}


@pytest.fixture(scope="module", params=["A", pytest.param("B", marks=pytest.mark.slow)])
def executor(request):
    layers = ALL_LAYERS if request.param == "A" else CORE_LAYERS
    with pytest.MonkeyPatch.context() as patch:
        if os.access("/dev/shm", os.W_OK):  # a busy disk takes minutes for thousands of files
            patch.setattr(tempfile, "tempdir", "/dev/shm")
        made = LocalExecutor(1, layers=layers)
    with made:
        with made.open({}) as first:
            assert first.exec("true").exit_code == 0
        if request.param == "A" and Layer.NAMESPACES.value not in made.workspaces.layers:
            pytest.skip("this machine has no namespaces")
        yield made


@pytest.fixture
def workspace(executor):
    with executor.open(FILES, LIMITS) as made:
        yield made


def worker_of(executor):
    (pid,) = executor.workspaces.worker_pids
    return pid


def is_idle(executor):
    """Whether nothing runs below the worker but its part in namespaces, at once or soon: ends are noted late."""
    own = int(Layer.NAMESPACES.value in executor.workspaces.layers)
    deadline = time.monotonic() + 10
    while (found := len(descendants(worker_of(executor)))) != own and time.monotonic() < deadline:
        time.sleep(0.01)
    return found == own


class TestUse:
    def test_files_are_written_changed_by_commands_and_read(self, workspace):
        assert workspace.exec("cat shop/prices.py").output == "PRICE = 3\n"
        assert workspace.exec("echo 'PRICE = 4' > shop/prices.py && ls").output == "shop\ntest_prices.py\n"
        workspace.write({"new/notes.txt": "é\n"})
        assert workspace.read("new/notes.txt", "none") == {"new/notes.txt": "é\n", "none": None}
        assert workspace.read_all() == {**FILES, "shop/prices.py": "PRICE = 4\n", "new/notes.txt": "é\n"}

    def test_output_and_errors_come_in_order_with_the_exit_code(self, workspace):
        done = workspace.exec("echo one; echo two >&2; echo three; exit 3")
        assert (done.outcome, done.exit_code, done.output) == (Outcome.COMPLETED, 3, "one\ntwo\nthree\n")

    def test_what_is_installed_of_a_module_that_is_completed_cannot_be_read(self, executor):
        files = {"statistics.py": "def median_low(data):\n    raise NotImplementedError\n"}
        read = (
            "python3 -c \"import os; print(len(open(os.path.dirname(os.__file__) + '/{}').read()) > 99)\"; "
            "cat /usr/lib/python3*/{} | wc -c"
        )
        for completes, said in (("", "True\n"), ("statistics.py", "Permission denied")):
            with executor.open(files, replace(LIMITS, completes=completes)) as opened:
                assert said in opened.exec(read.format(*["statistics.py"] * 2)).output
                assert opened.exec("python3 -c 'import statistics as s; print(s.__file__)'").output.endswith(
                    "statistics.py\n"
                )
                assert opened.exec(read.format(*["random.py"] * 2)).output.startswith("True\n")
                done = opened.exec("python3 -c 'import sys; sys.path.pop(0); import statistics'")
                assert bool(done.exit_code) is bool(completes)

    def test_tests_run(self, workspace):
        test = "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual({}, 1)\n"
        workspace.write({"test_right.py": test.format(1), "test_wrong.py": test.format(2)})
        assert workspace.run_tests("test_right").exit_code == 0
        assert workspace.run_tests("test_wrong").exit_code == 1

    def test_programs_work_that_start_others_copy_files_and_edit_in_place(self, workspace):
        program = (
            "import subprocess as s; print(s.run(['ls'], capture_output=True, start_new_session=True).stdout)"
        )
        assert "test_prices.py" in workspace.exec(f'python3 -c "{program}"').output
        done = workspace.exec(
            "cp -p shop/prices.py a.py; sed -i s/3/5/ a.py; ls -l a.py >/dev/null; cat a.py"
        )
        assert (done.output, done.exit_code) == ("PRICE = 5\n", 0)


ESCAPES = {
    "files of the host": "cat /etc/hostname /proc/1/environ",
    "a list of the host's files": "ls /root || ls /home || ls /tmp",
    "another workspace": "cat ../{other}/*; ls ..",
    "a link out": "ln -s / outside; cat outside/etc/hostname; ls outside/",
    "writing outside": "touch /tmp/here || touch ../here || mkdir ../../here",
    "packages of the trainer": "python3 -c 'import torch; print(1)'",
    "a socket": "python3 -c 'import socket; socket.socket(); print(1)'",
    "more rights": "su -c id || mount -t tmpfs x . || unshare -U id",
    "other processes": "kill -0 $PPID; kill -0 1; cat /proc/$PPID/mem",
}


both_levels = pytest.mark.parametrize("executor", ["A", "B"], indirect=True)


@both_levels
class TestEscape:
    @pytest.mark.parametrize("way", ESCAPES)
    def test_there_is_no_way_out(self, executor, workspace, way):
        with executor.open({"secret.txt": "SECRET-OF-ANOTHER"}) as other:
            command = ESCAPES[way].replace("{other}", other._name)
            done = workspace.exec(f"({command}) 2>/dev/null")
            assert (done.output, done.outcome) == ("", Outcome.COMPLETED)
            assert other.read_all() == {"secret.txt": "SECRET-OF-ANOTHER"}
        assert not os.path.exists("/tmp/here")

    def test_links_out_are_neither_read_nor_written(self, workspace, tmp_path):
        (tmp_path / "secret").write_text("before")
        workspace.exec(f"ln -s {tmp_path}/secret link; ln -s {tmp_path} folder")
        for act in (lambda: workspace.read("link"), lambda: workspace.write({"link": "after"})):
            with pytest.raises(
                WorkspaceError, match=r"Permission denied|No such file|Operation not permitted"
            ):
                if not (act() or {"link": None})["link"]:
                    raise WorkspaceError("No such file")
        with pytest.raises(WorkspaceError):
            workspace.write({"folder/secret": "after"})
        assert (tmp_path / "secret").read_text() == "before"
        assert set(workspace.read_all()) == set(FILES)

    def test_the_worker_cannot_be_ended_or_stopped(self, executor, workspace):
        before = worker_of(executor)
        workspace.exec("kill -9 $PPID; kill -STOP $PPID; kill -9 -1; kill -9 1")
        assert workspace.exec("echo on").output == "on\n"
        assert worker_of(executor) == before


class TestExhaustion:
    def test_endless_output_is_cut_and_ended(self, workspace):
        done = workspace.exec("yes")
        assert (done.outcome, len(done.output)) == (Outcome.OUTPUT_LIMIT, LIMITS.output_bytes)

    def test_a_sleeper_and_a_loop_are_ended(self, executor):
        with executor.open({}, replace(LIMITS, call_seconds=0.3)) as own:
            assert own.exec("sleep 60").outcome is Outcome.TIMEOUT
            assert own.exec("while true; do :; done").outcome is Outcome.TIMEOUT
            assert own.exec("echo on").output == "on\n"

    def test_background_processes_end_with_their_command(self, executor, workspace):
        workspace.exec(
            "setsid sleep 60 & (sleep 60 &) & nohup sleep 60 >/dev/null 2>&1 & sleep 60 >&- 2>&- &"
        )
        assert is_idle(executor)

    @both_levels
    def test_a_fork_bomb_is_ended(self, executor, workspace):
        done = workspace.exec("b() { b | b & }; b; sleep 4")
        assert done.outcome in (Outcome.CHEATING, Outcome.COMPLETED)
        assert is_idle(executor)
        assert workspace.exec("echo on").output == "on\n"

    @both_levels
    def test_memory_is_bounded_for_one_process_and_for_all(self, executor):
        hold = "python3 -c \"import time; x = b'x' * ({} << 20); time.sleep(30)\""
        with executor.open({}, replace(LIMITS, call_seconds=30.0)) as own:
            assert own.exec(hold.format(300)).outcome is Outcome.COMPLETED  # with a MemoryError
            both = " & ".join([hold.format(150)] * 3) + "; wait"
            assert own.exec(both).outcome is Outcome.MEMORY

    def test_a_folder_that_is_too_full_ends_the_workspace(self, executor):
        for command in (
            "touch $(seq 9000); sleep 60",
            "for i in 1 2 3 4 5 6; do head -c 4000000 /dev/zero > f$i; done",
        ):
            own = executor.open({}, replace(LIMITS, call_seconds=20.0))
            assert own.exec(command).outcome is Outcome.OUTPUT_LIMIT
            with pytest.raises(WorkspaceError, match="closed"):
                own.exec("ls")

    def test_calls_and_seconds_are_counted(self, executor):
        with executor.open({}, replace(LIMITS, calls=2)) as own:
            assert [own.exec("echo on").output for _ in range(3)] == ["on\n", "on\n", ""]
        with executor.open({}, replace(LIMITS, seconds=0.2)) as own:
            own.exec("sleep 0.3")
            assert own.exec("true").outcome is Outcome.TIMEOUT


class TestLife:
    def test_nothing_survives(self, executor):
        own = executor.open(FILES)
        own.exec("mkdir -p deep/er; ln -s / deep/link; chmod 0 deep")
        own.close()
        own.close()
        with pytest.raises(WorkspaceError, match="closed"):
            own.exec("ls")
        with executor.open({}) as other:
            assert other.read_all() == {}

    def test_one_that_nobody_holds_is_collected(self, executor):
        before = executor.workspaces.open_count
        for _ in range(3):
            executor.open(FILES)
        gc.collect()
        wait_until(lambda: executor.workspaces.open_count <= before)

    def test_one_may_be_collected_within_any_call(self, executor):
        """The garbage collector may run where a thread holds the lock that giving it work takes."""
        own = executor.open(FILES)
        assert own.exec("true").exit_code == 0
        before = executor.workspaces.open_count
        with contextlib.ExitStack() as held:
            for home in executor.workspaces._homes:
                held.enter_context(home.thread._shutdown_lock)
            del own
            gc.collect()
        wait_until(lambda: executor.workspaces.open_count < before)

    def test_one_that_is_too_old_is_collected(self, executor):
        old = executor.open(FILES, replace(LIMITS, lifetime_seconds=0.01))
        time.sleep(0.02)
        with executor.open({}), pytest.raises(WorkspaceError, match="closed"):
            old.exec("ls")

    def test_many_are_open_at_once_and_apart(self, executor):
        opened = [executor.open({"number": str(number)}) for number in range(60)]
        done = [one.submit(lambda own: own.exec("cat number; echo x >> number")) for one in opened]
        assert [one.result().output for one in done] == [str(number) for number in range(60)]
        for one in opened:
            one.close()

    @pytest.mark.parametrize("failed_starts", [0, 1, len(workspaces._PAUSES) + 1])
    def test_a_lost_worker_is_the_infrastructure_and_another_one_starts(
        self, executor, monkeypatch, failed_starts
    ):
        (home,) = executor.workspaces._homes
        start, failures = home._start, [WorkerNotStarted("no memory")] * failed_starts

        def start_at_last():
            if failures:
                raise failures.pop()
            return start()

        monkeypatch.setattr(workspaces, "_PAUSES", (0.0,) * len(workspaces._PAUSES))
        monkeypatch.setattr(home, "_start", start_at_last)
        own = executor.open(FILES)
        assert own.exec("true").exit_code == 0
        os.kill(worker_of(executor), 9)
        time.sleep(0.3)
        for _ in range(2):
            with pytest.raises(WorkspaceError) as error:
                own.exec("ls")
            assert error.value.outcome is Outcome.INFRASTRUCTURE
        with executor.open(FILES) as other:
            assert other.exec("ls").exit_code == 0
        assert not failures


class TestBadInput:
    def test_paths_and_texts_that_are_not_allowed(self, executor, workspace):
        for path in ("/etc/x", "../x", "a/../../x"):
            with pytest.raises(SandboxError, match="not allowed"):
                executor.open({path: ""})
            with pytest.raises(SandboxError, match="not allowed"):
                workspace.write({path: ""})
        with pytest.raises(WorkspaceError, match="not text in UTF-8"):
            workspace.exec("head -c 9 /dev/urandom > b; printf '\\377' >> b") and workspace.read("b")
        assert "b" not in workspace.read_all()
        assert workspace.exec("a\0b").outcome is Outcome.SYNTAX_ERROR

    def test_limits_that_make_no_sense(self):
        with pytest.raises(SandboxError, match="calls must be a finite number above 0"):
            WorkspaceLimits(calls=0)

    def test_a_level_below_b_is_refused(self):
        with pytest.warns(UserWarning, match="isolation level C"):
            executor = LocalExecutor(1, require=Level.C, layers=PORTABLE_LAYERS)
        with executor, pytest.raises(SandboxError, match="workspaces need isolation of level B or A"):
            executor.open({})

    def test_sandboxes_elsewhere_have_no_sessions(self):
        with pytest.raises(SandboxError, match="no sessions"):
            RemoteExecutor.open(object.__new__(RemoteExecutor), {})


def wait_until(holds, seconds=5.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)

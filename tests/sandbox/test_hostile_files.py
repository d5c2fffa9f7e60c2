"""Files that cost more than they may: names, numbers, removal, and space without a name."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from waiting import eventually, is_alive

from greenward.common.errors import SandboxError
from greenward.sandbox import remote
from greenward.sandbox.inside import supervisor
from greenward.sandbox.inside.files import check_files, empty_folder, remove_folder
from greenward.sandbox.inside.layers import LayerStack
from greenward.sandbox.inside.supervisor import Supervisor
from greenward.sandbox.isolation import ALL_LAYERS, CORE_LAYERS, Layer
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Call, Job, Limits, Outcome
from greenward.sandbox.workers import WorkerProcess
from greenward.sandbox.workspaces import WorkspaceLimits

LIMITS = Limits(cpu_seconds=5.0, wall_seconds=20.0)
CALLS = (Call((3,)),)
END = "\ndef f(x): return x\n"


@pytest.fixture(scope="module", params=[ALL_LAYERS, CORE_LAYERS], ids=["A", "B"])
def executor(request):
    with LocalExecutor(1, layers=request.param) as made:
        yield made


def run(executor, code, **fields):
    ((_, result),) = executor.run([Job(code + END, "f", CALLS, limits=LIMITS, **fields)])
    return result


class TestWhatAJobMayHold:
    @pytest.mark.parametrize(
        ("files", "message"),
        [
            ({"é" * 127 + "xx": ""}, "more than 255 bytes"),
            ({"𝔘" * 64: ""}, "more than 255 bytes"),
            ({f"{n}/" * 20 + "x": "" for n in range(60)}, "60 files in 1200 folders"),
            ({f"{n}": "é" * (500 << 10) for n in range(5)}, "with 5120000 bytes"),
            ({"a": "", "a/b/c": ""}, "folder that is a file"),
        ],
    )
    def test_lengths_are_in_bytes_and_folders_are_counted(self, files, message):
        with pytest.raises(SandboxError, match=message):
            check_files(files, 1 << 20)

    def test_all_that_is_allowed_fits_into_a_folder(self, executor):
        if Layer.NAMESPACES not in executor.isolation.layers:
            pytest.skip("a disk is slow, and its folders are not bounded")
        files = {f"{n}/{'é' * 127}": "é" * 1000 for n in range(999)} | {"last/" + "x" * 194: "x" * (1 << 20)}
        assert (
            run(executor, "import os\nassert len(os.listdir()) == 1000", files=files).outcome
            is Outcome.COMPLETED
        )


class TestWhichProcessSeesWhat:
    def test_test_programs_have_the_files_of_the_problem_only(self, executor):
        checks = (
            "import os\nassert sorted(os.listdir()) == ['gone.py', 'own.py'], os.listdir()",
            "import own\nassert own.WHO == 'problem'\nimport gone",
            "assert f(3) == [['mine.py', 'new.py', 'own.py'], 'answer']",
        )
        code = "import os, own\ndef f(x): return [sorted(os.listdir()), own.WHO]\n"
        files = {"own.py": "WHO = 'problem'\n", "gone.py": ""}
        changes = {"own.py": "WHO = 'answer'\n", "gone.py": None, "new.py": ""}
        fields = {"files": files, "changes": changes, "path": "mine.py", "limits": LIMITS}
        job = Job(code, "f", checks=checks, check_setup="import own", **fields)
        ((_, result),) = executor.run([job])
        assert [one.error_message for one in result.results if not one.returned] == []
        assert (result.outcome, len(result.results)) == (Outcome.COMPLETED, 3)

    def test_changes_reach_other_machines(self):
        job = Job(
            "", "f", CALLS, files={"a": "", "b": ""}, changes={"a": None, "b": "x", "c": "y"}, path="m.py"
        )
        text = json.dumps(remote.write_request([remote.write_job(job)[0]]))
        assert remote.read_request(json.loads(text)) == [job]
        with pytest.raises(SandboxError, match="folder that is a file"):
            remote.read_request(
                remote.write_request([remote.write_job(replace(job, changes={"b/c": ""}))[0]])
            )

    def test_what_cannot_be_written_is_the_answers_failure(self, executor):
        setup = "import os; os.path.exists('data') or os.mkdir('data')"  # before the answer's file comes
        fields = {"expressions": ("f(int('3'))",), "setup_code": setup, "changes": {"data": ""}}
        ((_, result),) = executor.run([Job(END, "f", limits=LIMITS, **fields)])
        assert result.outcome is Outcome.EXITED


class TestRemoval:
    MANY = "import os\nfor n in range(3000): os.mkdir(str(n))"
    DEEP = "import os\nfor n in range(1500): os.mkdir('d'); os.chdir('d')"

    @pytest.mark.parametrize("code", [MANY, DEEP], ids=["many", "deep"])
    def test_folders_cost_a_right_answer_nothing(self, executor, code):
        assert run(executor, code).outcome is Outcome.COMPLETED
        assert run(executor, "import os\nassert not os.listdir()").outcome is Outcome.COMPLETED

    def test_a_worker_that_is_spent_is_replaced_and_ends_by_itself(self, monkeypatch):
        receive = WorkerProcess.receive

        def spent(worker):
            report, blobs = receive(worker)
            return report | {"is_spent": "exit" in report}, blobs

        monkeypatch.setattr(WorkerProcess, "receive", spent)
        with LocalExecutor(1, layers=CORE_LAYERS) as executor:
            (first,) = executor.worker_pids
            assert run(executor, "").outcome is Outcome.COMPLETED
            assert first not in executor.worker_pids
            assert eventually(lambda: not is_alive(first))
            assert run(executor, "").outcome is Outcome.COMPLETED
        assert eventually(lambda: not os.path.exists(executor._folder))

    def test_a_supervisor_gives_up_a_folder_that_takes_too_long(self, tmp_path, monkeypatch):
        one = Supervisor(str(tmp_path), LayerStack((), (), [str(tmp_path)], 0), False)
        (tmp_path / "folder").mkdir()
        with monkeypatch.context() as patch:
            patch.setattr(supervisor, "REMOVAL_SECONDS", 0.0)
            assert not one._clean()
        assert one._clean() and not os.listdir(tmp_path)

    def test_removal_ends_at_its_deadline(self, tmp_path):
        for number in range(300):
            (tmp_path / str(number)).mkdir()
        with pytest.raises(TimeoutError):
            empty_folder(str(tmp_path), 0.0)
        remove_folder(str(tmp_path), 60.0)
        assert not tmp_path.exists()


UNLINKED = """
import os, time
held, name = [], str(os.getpid())
for number in range({count}):
    held.append(open(name, "wb", buffering=0))
    held[-1].write(b"x" * (1 << 20))
    os.unlink(name)
time.sleep({seconds})
"""
TMPFILE = """
import os, time
for number in range({count}):
    os.write(os.open(".", os.O_TMPFILE | os.O_RDWR), b"x" * (1 << 20))
time.sleep({seconds})
"""


class TestFilesWithoutAName:
    @pytest.mark.parametrize("way", [UNLINKED, TMPFILE], ids=["unlinked", "O_TMPFILE"])
    def test_those_of_an_answer_count(self, executor, way):
        result = run(executor, way.format(count=40, seconds=10))
        assert result.outcome is not Outcome.COMPLETED and result.wall_seconds < 5, result
        assert run(executor, way.format(count=8, seconds=0.1)).outcome is Outcome.COMPLETED

    def test_a_long_standard_input_does_not(self, executor):
        text = "x" * (17 << 20)
        job = Job("import time\ntime.sleep(0.1)\nprint(len(input()))", stdins=(text,), limits=LIMITS)
        ((_, result),) = executor.run([job])
        assert [one.value for one in result.results] == [f"{17 << 20}\n"]

    @pytest.mark.parametrize("way", [UNLINKED, TMPFILE], ids=["unlinked", "O_TMPFILE"])
    def test_those_of_commands_count_in_all_their_processes(self, executor, way):
        limits = WorkspaceLimits(call_seconds=20.0)
        with executor.open({"hold.py": way.format(count=10, seconds=15)}, limits) as workspace:
            done = workspace.exec("python3 hold.py & python3 hold.py & wait")
            assert (done.outcome, done.error) == (Outcome.OUTPUT_LIMIT, "it was ended by its limit of folder")
            assert done.seconds < 10
        with executor.open({"hold.py": way.format(count=10, seconds=0.1)}, limits) as workspace:
            assert workspace.exec("python3 hold.py").outcome is Outcome.COMPLETED

    def test_a_thread_cannot_hold_descriptors_of_its_own(self, executor):
        number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
        flags = 0x10900  # a thread that shares memory and signal handlers, but not descriptors
        code = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def f(x): return [libc.syscall({number}, {flags}, 0, 0, 0, 0), ctypes.get_errno()]
"""
        ((_, result),) = executor.run([Job(code, "f", CALLS, limits=LIMITS)])
        assert [one.value for one in result.results] == [[-1, 1]]

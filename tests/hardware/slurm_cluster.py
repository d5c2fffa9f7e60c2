"""A Slurm cluster of this machine alone, from Debian's packages, in a folder of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

DAEMONS = ("munged", "slurmctld", "slurmd")
needs_slurm = pytest.mark.skipif(
    os.getuid() != 0 or any(shutil.which(name, path="/usr/sbin:/usr/local/sbin") is None for name in DAEMONS),
    reason="needs root and the packages slurm-wlm and munge (make test-slurm)",
)
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=20
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
KillWait=20
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000 Gres=gpu:2 State=UNKNOWN
PartitionName=debug Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(reached: Callable[[], object], what: str, seconds: float = 500) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.2)


def ask(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def states(job: str) -> list[str]:
    """The states of the tasks of a job that are not over."""
    done = subprocess.run(
        ["squeue", "--jobs", job, "--noheader", "--array", "--format=%T"], capture_output=True, text=True
    )
    return done.stdout.split()


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[None]:
    """Runs the three daemons; at the end cancels every job and stops exactly what was started."""
    host = socket.gethostname().partition(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    devices = "".join(f"NodeName={host} Name=gpu File={file}\n" for file in ("/dev/null", "/dev/zero"))
    (folder / "gres.conf").write_text(devices)  # GPUs to be counted, not used
    values = {"host": host, "folder": folder, "cpus": os.cpu_count()}
    config = CONFIG.format(**values, controller=free_port(), daemon=free_port())
    (folder / "slurm.conf").write_text(config)
    commands = [
        [
            "munged",
            "--foreground",
            "--force",
            f"--key-file={folder}/munge.key",
            f"--socket={folder}/munge.socket",
        ],
        ["slurmctld", "-D", "-c"],
        ["slurmd", "-D", "-c"],
    ]
    commands[0] += [f"--{name}-file={folder}/munged.{name}" for name in ("pid", "log", "seed")]
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        patch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
        for command in commands:
            output = stack.enter_context(open(folder / f"{command[0]}.out", "wb"))
            process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            if command[0] == "munged":
                wait_for((folder / "munge.socket").exists, "munged", 60)

        def is_up() -> bool:
            done = subprocess.run(["sinfo", "--noheader", "--format=%t"], capture_output=True, text=True)
            return done.stdout.strip() == "idle"

        wait_for(is_up, "a node that is idle", 60)
        try:
            yield
        finally:
            subprocess.run(["scancel", "--user=root"], check=False)
            wait_for(lambda: not ask("squeue", "--noheader"), "the end of all jobs", 60)

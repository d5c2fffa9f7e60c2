"""The sandbox where a container runtime or the kernel forbids namespaces: level B, and what it still stops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from greenward.sandbox.inside import seccomp
from greenward.sandbox.isolation import Level
from greenward.sandbox.pool import inspect_sandbox

HERE = Path(__file__).resolve().parent
pytestmark = [
    pytest.mark.skipif(
        os.uname().machine != "x86_64" or not seccomp.supported(), reason="needs seccomp filters on x86_64"
    ),
    pytest.mark.skipif(
        not inspect_sandbox()[0].level.suffices(Level.B), reason="this machine does not offer level B"
    ),
]


def confined(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "confined.py"), name, sys.executable, *arguments]
    path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300
    )


# What the runtime itself is asked for: a call of its own kind must fail, or nothing is emulated.
ASKS = """
import ctypes, errno, json, os
libc = ctypes.CDLL(None, use_errno=True)
def ask(function, *arguments):
    done = function(*arguments)
    return "works" if done >= 0 else errno.errorcode[ctypes.get_errno()]
found = {"unshare": ask(libc.unshare, 0x10000000), "mount": ask(libc.mount, b"x", b"/tmp", b"tmpfs", 0, None),
         "keyctl": ask(libc.syscall, 250, 0, -3, 0), "bpf": ask(libc.syscall, 321, 0, 0, 0),
         "clone of a namespace": ask(libc.syscall, 56, 0x10000000 | 17, 0, 0, 0, 0),
         "clone3": ask(libc.syscall, 435, 0, 0)}
child = os.fork()
if child == 0:
    os._exit(0)
found["fork"] = "works" if os.waitpid(child, 0)[1] == 0 else "fails"
print(json.dumps(found))
"""


def test_what_docker_blocks_is_blocked_and_processes_can_be_started():
    done = confined("docker", "-c", ASKS)
    assert json.loads(done.stdout) == {
        **dict.fromkeys(("unshare", "mount", "keyctl", "bpf", "clone of a namespace"), "EPERM"),
        "clone3": "ENOSYS",
        "fork": "works",
    }, done.stderr


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("docker", "Operation not permitted"),
        pytest.param("no_namespaces", "No space left on device", marks=pytest.mark.slow),
    ],
)
def test_doctor_finds_level_b_and_says_what_is_missing_and_how_to_get_it(name, reason):
    done = confined(name, "-m", "greenward", "doctor", "--json")
    assert done.returncode == 0, done.stderr
    sandbox = json.loads(done.stdout)["sandbox"]
    assert sandbox["level"] == "B"
    missing = {layer: found["reason"] for layer, found in sandbox["layers"].items() if not found["in_force"]}
    assert missing.keys() == {"namespaces"} and reason in missing["namespaces"]


def test_doctor_tells_people_the_level_and_the_way_to_more():
    shown = " ".join(confined("docker", "-m", "greenward", "doctor").stdout.split())
    assert "isolation level B" in shown and "a seccomp profile that allows unshare" in shown


HOSTILE = """
import json
from greenward.sandbox.isolation import CORE_LAYERS
from hostile.attacks import HOSTILE_PROGRAMS
from hostile.trial import Arena, let_through
from hostile.world import World
tried = [one for one in HOSTILE_PROGRAMS if one.family in (
    "files outside the folder", "signals to others", "sockets", "kernel surface", "tricks with proc")][::{every}]
with World() as world, Arena(CORE_LAYERS) as arena:
    print(json.dumps([sorted(arena.missing), len(tried), let_through(world, arena, tried)]))
"""


@pytest.mark.parametrize("every", [8, pytest.param(4, marks=pytest.mark.slow)])
def test_hostile_programs_do_not_get_through_what_is_left(every):
    done = confined("docker", "-c", HOSTILE.replace("{every}", str(every)))
    assert done.returncode == 0, done.stderr
    missing, tried, through = json.loads(done.stdout.splitlines()[-1])
    assert missing == [] and tried >= 80 // every and through == {}

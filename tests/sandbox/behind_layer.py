"""Runs small programs in a fresh interpreter that has put one layer on, and says what each met."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

WORKS = "works"

BECOME_NOBODY = """
import os
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
"""


def _can_become_nobody() -> bool:
    """False for root of a user namespace that holds nobody else."""
    if not os.path.exists("/proc/self/uid_map"):
        return False
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return os.geteuid() != 0 or any(first <= 65534 < first + count for first, _, count in ranges)


needs_nobody = pytest.mark.skipif(not _can_become_nobody(), reason="no other user in this user namespace")

_SCRIPT = """
import ctypes, errno, json, os, signal, socket, sys
from greenward.sandbox.inside import layers, seccomp
put_on, programs, names = json.load(sys.stdin)
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
names.update(os=os, socket=socket, ctypes=ctypes, signal=signal, libc=libc, check=check)
exec(put_on, {**globals(), **names})
met = {}
for name, program in programs.items():
    try:
        exec(program, dict(names))
        met[name] = "works"
    except OSError as error:
        met[name] = errno.errorcode.get(error.errno, str(error))
    except Exception as error:
        met[name] = repr(error)
print(json.dumps(met))
"""


def start(put_on: str, programs: Mapping[str, str], **names: Any) -> subprocess.CompletedProcess[str]:
    """The interpreter's end; `names` are plain data that `put_on` and the programs can use."""
    return subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        input=json.dumps([put_on, programs, names]),
        capture_output=True,
        text=True,
        timeout=60,
    )


def outcomes(put_on: str, programs: Mapping[str, str], **names: Any) -> dict[str, str]:
    """Program's name → `WORKS`, the name of the error number, or another exception."""
    done = start(put_on, programs, **names)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])

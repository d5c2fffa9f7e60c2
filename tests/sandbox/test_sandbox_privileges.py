"""Capabilities and the ways to gain some, given up for good: by root, in a user namespace, by anybody."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from behind_layer import BECOME_NOBODY, WORKS, needs_nobody, outcomes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")

GIVE_UP = "layers.drop_bounding_set(); layers.drop_capabilities(); layers.no_new_privileges()"
SHOW_STATUS = """
with open("/proc/self/status") as file:
    print(json.dumps(dict(line.rstrip().split(":\\t", 1) for line in file if line.startswith(("Cap", "NoNew")))))
"""
LAYERS = "import json, os\nfrom greenward.sandbox.inside import layers\n"
SETS = ("CapEff", "CapPrm", "CapInh", "CapAmb")
NONE = f"{0:016x}"


def status(script: str, *command: str) -> dict[str, str]:
    """What the kernel says of a fresh interpreter after `script`."""
    done = subprocess.run(
        [*command, sys.executable, "-c", LAYERS + script + SHOW_STATUS],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def may_drop_bounding_set() -> bool:
    cap_setpcap = 8  # linux/capability.h
    with open("/proc/self/status") as file:
        effective = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff"))
    return bool(effective >> cap_setpcap & 1)


def test_nothing_is_left_of_any_set_and_nothing_can_be_gained():
    after = status(GIVE_UP)
    assert {after[name] for name in SETS} == {NONE}
    assert after["NoNewPrivs"] == "1"


def test_the_ambient_set_empties_with_the_others():
    if not may_drop_bounding_set():
        pytest.skip("needs a capability to begin with")
    pr_cap_ambient, raise_one, cap_chown = 47, 2, 0  # linux/prctl.h, linux/capability.h
    raise_ambient = f"""
import ctypes, struct
libc = ctypes.CDLL(None)
header, data = struct.pack("=Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
assert libc.capget(header, data) == 0
words = list(struct.unpack("=6I", data.raw))
words[2] |= 1 << {cap_chown}
assert libc.capset(header, struct.pack("=6I", *words)) == 0
assert libc.prctl({pr_cap_ambient}, {raise_one}, {cap_chown}, 0, 0) == 0
"""
    assert status(raise_ambient)["CapAmb"] != NONE
    assert status(raise_ambient + "layers.drop_capabilities()")["CapAmb"] == NONE


def test_the_bounding_set_empties_where_this_user_may_and_stays_elsewhere():
    before, after = status(""), status("layers.drop_bounding_set()")
    if may_drop_bounding_set():
        assert after["CapBnd"] == NONE
        assert after["CapEff"] == before["CapEff"]  # a worker can still enter namespaces
    else:
        assert after == before


@needs_nobody
def test_an_ordinary_user_gives_up_what_there_is():
    after = status(BECOME_NOBODY + GIVE_UP)
    assert {after[name] for name in SETS} == {NONE}
    assert after["NoNewPrivs"] == "1"


def test_root_of_a_user_namespace_gives_up_all():
    enter = ("unshare", "--user", "--map-root-user")
    try:
        before = status("", *enter)
    except (AssertionError, FileNotFoundError) as error:
        pytest.skip(f"no user namespaces here: {error}")
    assert before["CapEff"] != NONE
    after = status(GIVE_UP, *enter)
    assert {after[name] for name in (*SETS, "CapBnd")} == {NONE}


def test_what_root_alone_may_do_is_refused_from_then_on():
    programs = {
        "chroot": "os.chroot('/')",
        "leave its groups": "os.setgroups([])",
        "raise a hard limit": (
            "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64));"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 65))"
        ),
        "set the host's name": "socket.sethostname('elsewhere')",
        "carry on": "os.getpid(); open(os.devnull).close()",
    }
    met = outcomes(GIVE_UP, programs)
    # The interpreter turns the refused limit into a ValueError.
    assert "not allowed to raise" in met.pop("raise a hard limit")
    assert met.pop("carry on") == WORKS
    assert set(met.values()) == {"EPERM"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has something to lose")
def test_a_child_inherits_the_loss():
    after = status(GIVE_UP + "\nif os.fork(): os.wait(); os._exit(0)\n")
    assert {after[name] for name in (*SETS, "CapBnd")} == {NONE}

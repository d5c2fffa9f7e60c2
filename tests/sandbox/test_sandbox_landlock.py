"""Landlock alone: what a process behind it can still reach, and every older kernel's version of it."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

import pytest
from behind_layer import BECOME_NOBODY, WORKS, needs_nobody, outcomes, start

from greenward.sandbox.inside import layers

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or layers.abi() == 0, reason="this kernel offers no Landlock"
)

NEWEST_KNOWN = 7
HEADER = Path("/usr/include/linux/landlock.h")
# The kernels that brought each version (kernel documentation, "Previous limitations").
BROUGHT_BY = {1: (5, 13), 2: (5, 19), 3: (6, 2), 4: (6, 7), 5: (6, 10), 6: (6, 12), 7: (6, 15)}
PUT_ON = "layers.no_new_privileges(); layers.restrict_self(layers.make_ruleset(readable, writable))"


def needs_abi(version: int):
    return pytest.mark.skipif(layers.abi() < version, reason=f"needs version {version} of Landlock")


@pytest.fixture
def folders(tmp_path):
    """`library` to read, `own` to write, `secret` to do nothing with."""
    for name in ("library", "own", "secret"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "file").write_text("text")
    tool = tmp_path / "library" / "tool"
    tool.write_bytes(Path("/bin/true").read_bytes())
    tool.chmod(0o755)
    (tmp_path / "own" / "way_out").symlink_to(tmp_path / "secret" / "file")
    return tmp_path


def behind(folders: Path, programs: dict[str, str], put_on: str = PUT_ON) -> dict[str, str]:
    return outcomes(
        put_on,
        programs,
        readable=[str(folders / "library"), str(folders / "missing")],
        writable=[str(folders / "own"), "/dev/null"],
        library=str(folders / "library"),
        own=str(folders / "own"),
        secret=str(folders / "secret"),
        parent=os.getpid(),
    )


def test_the_version_is_at_least_the_kernels():
    release = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
    brought = max((version for version, kernel in BROUGHT_BY.items() if kernel <= release), default=1)
    assert layers.abi() >= brought


@pytest.mark.skipif(not HEADER.exists(), reason="the kernel's headers are not installed")
def test_rights_have_the_bits_of_the_kernels_header():
    found = re.findall(
        r"#define LANDLOCK_(ACCESS_FS_|ACCESS_NET_|SCOPE_)(\w+)\s+\(1ULL << (\d+)\)", HEADER.read_text()
    )
    names = {f"SCOPE_{name}" if kind == "SCOPE_" else name: 1 << int(bit) for kind, name, bit in found}
    ours = {name: getattr(layers, name) for name in names if hasattr(layers, name)}
    assert len(ours) >= 13
    assert ours == {name: names[name] for name in ours}


@pytest.mark.parametrize("version", range(1, NEWEST_KNOWN + 1))
def test_each_version_is_asked_for_what_it_knows_and_no_more(version):
    files, network, scopes = layers._handled(version)
    # Kernel documentation, "Compatibility": what to clear from a full request for older versions.
    assert files == (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    assert network == (0b11 if version >= 4 else 0)
    assert scopes == (0b11 if version >= 6 else 0)


@pytest.mark.parametrize("version", range(1, NEWEST_KNOWN + 1))
def test_rules_for_older_versions_are_whole(version, monkeypatch, tmp_path):
    if version > layers.abi():
        pytest.skip(f"needs version {version} of Landlock")
    monkeypatch.setattr(layers, "abi", lambda: version)
    os.close(layers.make_ruleset([str(tmp_path), "/dev/null"], [str(tmp_path), "/dev/null"]))


def test_reading_is_for_readable_folders(folders):
    programs = {
        "read a file": "assert open(f'{library}/file').read() == 'text'",
        "list a folder": "assert 'file' in os.listdir(library)",
        "read own": "open(f'{own}/file').read()",
        "read outside": "open(f'{secret}/file')",
        "read outside by a link": "open(f'{own}/way_out')",
        "list outside": "os.listdir(secret)",
        "list above": "os.listdir(f'{own}/..')",
        "memory of the parent": "open(f'/proc/{parent}/mem', 'rb')",
        "environment of the parent": "open(f'/proc/{parent}/environ', 'rb')",
    }
    met = behind(folders, programs)
    assert met == {
        name: WORKS if name in ("read a file", "list a folder", "read own") else "EACCES" for name in programs
    }


def test_own_folder_takes_files_folders_and_links(folders):
    programs = {
        "write": "open(f'{own}/new', 'w').write('x')",
        "write again": "open(f'{own}/new', 'w').write('y')",
        "append": "open(f'{own}/file', 'a').write('y')",
        "cut": "os.truncate(f'{own}/file', 2); assert open(f'{own}/file').read() == 'te'",
        "make folders": "os.makedirs(f'{own}/a/b')",
        "rename": "os.rename(f'{own}/new', f'{own}/newer')",
        "link": "os.symlink('newer', f'{own}/link'); os.link(f'{own}/newer', f'{own}/twin')",
        "remove": "os.unlink(f'{own}/link'); os.unlink(f'{own}/twin'); os.unlink(f'{own}/newer')",
        "remove folders": "os.removedirs(f'{own}/a/b')",
        "unnamed file": "os.write(os.open(own, os.O_TMPFILE | os.O_RDWR), b'x')",
        "nowhere": "open('/dev/null', 'w').write('x')",
    }
    assert behind(folders, programs) == dict.fromkeys(programs, WORKS)


@needs_abi(2)
def test_own_files_move_between_own_folders(folders):
    programs = {"move": "os.makedirs(f'{own}/a'); os.rename(f'{own}/file', f'{own}/a/file')"}
    assert behind(folders, programs) == {"move": WORKS}


def test_nothing_changes_outside_the_own_folder(folders):
    def contents():
        return {path: path.read_bytes() for path in sorted(folders.rglob("*")) if path.is_file()}

    before = contents()
    programs = {
        f"{what} in {where}": program.replace("PLACE", f"{{{where}}}")
        for where in ("library", "secret")
        for what, program in {
            "write": "open(f'PLACE/file', 'w')",
            "append": "open(f'PLACE/file', 'a')",
            "new": "open(f'PLACE/new', 'x')",
            "unnamed": "os.open(f'PLACE', os.O_TMPFILE | os.O_RDWR)",
            "remove": "os.unlink(f'PLACE/file')",
            "make folder": "os.mkdir(f'PLACE/folder')",
            "remove folder": "os.rmdir(f'PLACE/inner')",
            "symbolic link": "os.symlink('x', f'PLACE/link')",
            "rename": "os.rename(f'PLACE/file', f'PLACE/other')",
        }.items()
    }
    met = behind(folders, programs)
    assert set(met.values()) == {"EACCES"}, met
    assert contents() == before


@needs_abi(3)
def test_files_outside_cannot_be_cut(folders):
    programs = {
        "by path": "os.truncate(f'{library}/file', 0)",
        "by opening to read": "os.open(f'{library}/file', os.O_RDONLY | os.O_TRUNC)",
    }
    assert set(behind(folders, programs).values()) == {"EACCES"}
    assert (folders / "library" / "file").read_text() == "text"


def test_files_move_neither_in_nor_out(folders):
    programs = {
        "in": "os.rename(f'{library}/file', f'{own}/in')",
        "out": "os.rename(f'{own}/file', f'{library}/out')",
        "linked in": "os.link(f'{library}/file', f'{own}/in')",
        "linked in from elsewhere": "os.link(f'{secret}/file', f'{own}/in')",
    }
    assert set(behind(folders, programs).values()) <= {"EACCES", "EXDEV"}
    assert (folders / "library" / "file").exists()


def test_own_folder_takes_no_pipes_sockets_and_devices(folders):
    programs = {
        "pipe": "os.mkfifo(f'{own}/pipe')",
        "socket": "socket.socket(socket.AF_UNIX).bind(f'{own}/socket')",
        "device": "import stat; os.mknod(f'{own}/device', stat.S_IFCHR | 0o600, os.makedev(1, 3))",
    }
    if os.geteuid() != 0:
        del programs["device"]  # refused for another reason
    assert set(behind(folders, programs).values()) == {"EACCES"}


def test_no_program_is_run(folders):
    programs = {
        "from the library": "os.execv(f'{library}/tool', ['tool'])",
        "from the own folder": (
            "import shutil; shutil.copy(f'{library}/tool', own); os.execv(f'{own}/tool', ['tool'])"
        ),
        "of the system": "os.execv('/bin/true', ['true'])",
    }
    assert set(behind(folders, programs).values()) == {"EACCES"}


@needs_abi(4)
def test_no_connection_is_made_or_awaited(folders):
    programs = {
        "connect": "socket.socket().connect(('127.0.0.1', 1))",
        "bind": "socket.socket().bind(('127.0.0.1', 0))",
    }
    assert set(behind(folders, programs).values()) == {"EACCES"}


@needs_abi(6)
def test_signals_and_abstract_sockets_stay_inside(folders):
    put_on = f"""
import threading
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0greenward-test-" + str(os.getpid()))
listener.listen()
address = listener.getsockname().decode()
if os.fork() == 0:
    {PUT_ON.replace("; ", chr(10) + "    ")}
    names.update(outside=os.getppid(), address=address)
else:
    status = os.wait()[1]
    os._exit(os.waitstatus_to_exitcode(status))
"""
    programs = {
        "signal": "os.kill(outside, 0)",
        "abstract socket": "socket.socket(socket.AF_UNIX).connect(address)",
        "signal to itself": "os.kill(os.getpid(), 0)",
    }
    met = behind(folders, programs, put_on)
    assert met == {"signal": "EPERM", "abstract socket": "EPERM", "signal to itself": WORKS}


def test_children_are_restricted_too(folders):
    programs = {
        "child": """
pid = os.fork()
if pid == 0:
    try:
        os.listdir(secret)
    except PermissionError:
        os._exit(7)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""
    }
    assert behind(folders, programs) == {"child": WORKS}


@needs_nobody
def test_an_ordinary_user_is_restricted_alike(folders):
    programs = {"read outside": "os.listdir('/etc')", "nowhere": "open('/dev/null', 'w')"}
    put_on = BECOME_NOBODY + "readable = []; writable = ['/dev/null']; " + PUT_ON
    assert behind(folders, programs, put_on) == {"read outside": "EACCES", "nowhere": WORKS}


def test_one_ruleset_serves_many_processes(folders):
    put_on = """
ruleset = layers.make_ruleset(readable, writable)
for _ in range(3):
    if os.fork() == 0:
        layers.no_new_privileges(); layers.restrict_self(ruleset)
        try:
            os.listdir(secret)
        except PermissionError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
"""
    programs = {"the maker itself": "os.listdir(secret)"}
    assert behind(folders, programs, put_on) == {"the maker itself": WORKS}


def test_a_missing_writable_folder_is_an_error_that_leaves_no_descriptor(tmp_path):
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        layers.make_ruleset([str(tmp_path)], [str(tmp_path / "missing")])
    assert os.listdir("/proc/self/fd") == before


def test_restricting_without_promising_no_new_privileges_is_refused(tmp_path):
    done = start("layers.drop_capabilities(); layers.restrict_self(layers.make_ruleset([], []))", {})
    assert "PermissionError" in done.stderr
    assert "landlock_restrict_self" in done.stderr

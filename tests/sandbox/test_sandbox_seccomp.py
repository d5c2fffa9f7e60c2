"""Seccomp alone, against the kernel: what a filtered process is refused, and what works as before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from behind_layer import BECOME_NOBODY, WORKS, needs_nobody, outcomes, start

from greenward.sandbox.inside import seccomp

pytestmark = pytest.mark.skipif(not seccomp.supported(), reason="this kernel offers no seccomp filters")
on_x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="of x86_64 only")

PUT_ON = (
    "layers.no_new_privileges();seccomp.installer(seccomp.build_program(os.uname().machine))(os.getpid())"
)


def behind(programs: dict[str, str], put_on: str = PUT_ON, **names) -> dict[str, str]:
    return outcomes(put_on, programs, parent=os.getpid(), **names)


REFUSED = {
    "fork": "os.fork()",
    "run a program": "os.execv('/bin/true', ['true'])",
    "spawn a program": "os.posix_spawn('/bin/true', ['true'], {})",
    "subprocess": "import subprocess; subprocess.run(['true'])",
    "socket": "socket.socket()",
    "local socket": "socket.socket(socket.AF_UNIX)",
    "datagram pair": "socket.socketpair(type=socket.SOCK_DGRAM)",
    "signal to the parent": "os.kill(parent, 0)",
    "signal to the group": "os.kill(0, 0)",
    "signal to everybody": "os.kill(-1, 0)",
    "signal by descriptor": "import fcntl; fcntl.fcntl(0, 8, parent)",
    "limits of the parent": "import resource; resource.prlimit(parent, resource.RLIMIT_CORE)",
    "priority": "os.setpriority(os.PRIO_PROCESS, parent, 1)",
    "processors of the parent": "os.sched_setaffinity(parent, {0})",
    "another session": "os.setsid()",
    "another user": "os.setuid(1)",
    "owner of a file": "os.chown(path, 1, 1)",
    "attribute of a file": "os.setxattr(path, 'user.x', b'x')",
    "cut a file": "os.truncate(path, 0)",
    "empty a file by reading": "os.open(path, os.O_RDONLY | os.O_TRUNC)",
    "pipe with a name": "os.mkfifo(path + '2')",
    "root folder": "os.chroot('/')",
    "memory file": "os.memfd_create('x')",
    "death with the parent": "check(libc.prctl(1, 0, 0, 0, 0))",
    "memory of the parent": "check(libc.process_vm_readv(parent, None, 0, None, 0, 0))",
    "trace": "check(libc.ptrace(16, parent, 0, 0))",
    "namespace": "check(libc.unshare(0x10000000))",
    "another filter": "check(libc.prctl(22, 2, None, 0, 0))",
    "io_uring": "check(libc.syscall(425, 1, None))",
    "keyring": "check(libc.syscall({'x86_64': 250, 'aarch64': 219}[os.uname().machine], 0, -3, 0))",
    "shared memory": "check(libc.shmget(0, 4096, 0o1600))",
    "process descriptor": "os.pidfd_open(parent)",
}

BENIGN = {
    "event loop and threads": """
import asyncio, time
async def main():
    await asyncio.to_thread(time.sleep, 0.001)
    return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(None, abs, -1), 5)
assert asyncio.run(main()) == 1
""",
    "alarm": """
import signal
class Rang(Exception): pass
def ring(*_): raise Rang
signal.signal(signal.SIGALRM, ring)
for start in (lambda: signal.setitimer(signal.ITIMER_REAL, 0.01), lambda: signal.alarm(1)):
    try:
        start(); signal.pause()
    except Rang:
        continue
    raise AssertionError("silent")
signal.alarm(0)
""",
    "signal to itself": """
import os, signal, threading
got = []
signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
os.kill(os.getpid(), signal.SIGUSR1); signal.raise_signal(signal.SIGUSR1)
signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
assert len(got) == 3
""",
    "temporary files": """
import os, tempfile
with tempfile.TemporaryDirectory(dir=folder) as name:
    with tempfile.NamedTemporaryFile("w+", dir=name) as file:
        file.write("x"); file.flush(); os.fsync(file.fileno()); file.seek(0); assert file.read() == "x"
    with tempfile.TemporaryFile(dir=name) as file:
        file.write(b"x"); file.truncate(0)
    with tempfile.SpooledTemporaryFile(1, dir=name) as file:
        file.write(b"more than one"); file.seek(0); assert file.read(4) == b"more"
assert not os.path.exists(name)
""",
    "copying and moving": """
import os, shutil
os.makedirs(folder + "/tree/inner")
with open(folder + "/tree/inner/file", "w") as file: file.write("text" * 9999)
shutil.copy(folder + "/tree/inner/file", folder + "/copy")
shutil.copy2(folder + "/tree/inner/file", folder + "/copy2")
shutil.copytree(folder + "/tree", folder + "/forest")
shutil.move(folder + "/copy", folder + "/moved")
assert open(folder + "/moved").read() == "text" * 9999
assert sorted(os.listdir(folder + "/forest/inner")) == ["file"]
assert len(list(os.walk(folder))) == 5
shutil.disk_usage(folder)
for name in ("tree", "forest"): shutil.rmtree(f"{folder}/{name}")
""",
    "paths": """
import glob, os, pathlib
place = pathlib.Path(folder, "a", "b"); place.mkdir(parents=True)
(place / "file").write_text("text"); (place / "file").touch(); (place / "file").chmod(0o600)
(place / "link").symlink_to("file"); assert (place / "link").resolve() == (place / "file").resolve()
os.link(place / "file", place / "twin"); os.utime(place / "twin", (1, 1))
(place / "file").rename(place / "renamed"); assert glob.glob(f"{folder}/a/b/re*")
before = os.getcwd(); os.chdir(place); assert len(os.listdir()) == 3; os.chdir(before)
assert os.access(place, os.W_OK); os.umask(os.umask(0o77))
""",
    "archives": """
import gzip, io, tarfile, zipfile, zlib, bz2, lzma
assert gzip.decompress(gzip.compress(b"x")) == zlib.decompress(zlib.compress(b"x")) == b"x"
assert bz2.decompress(bz2.compress(b"x")) == lzma.decompress(lzma.compress(b"x")) == b"x"
with open(folder + "/member", "w") as file: file.write("x")
with zipfile.ZipFile(folder + "/a.zip", "w") as archive: archive.write(folder + "/member", "member")
with zipfile.ZipFile(folder + "/a.zip") as archive: archive.extractall(folder + "/unzipped")
with tarfile.open(folder + "/a.tar", "w") as archive: archive.add(folder + "/member", "member")
with tarfile.open(folder + "/a.tar") as archive: archive.extractall(folder + "/untarred")
""",
    "data base in a file": """
import sqlite3
for mode in ("delete", "wal"):
    with sqlite3.connect(f"{folder}/{mode}.db") as base:
        base.execute(f"pragma journal_mode = {mode}"); base.execute("create table t (x)")
        base.execute("insert into t values (1)"); base.commit()
        assert base.execute("select x from t").fetchall() == [(1,)]
    base.close()
""",
    "key-value files": """
import shelve
with shelve.open(folder + "/shelf") as shelf: shelf["a"] = [1]
with shelve.open(folder + "/shelf") as shelf: assert shelf["a"] == [1]
""",
    "memory map": """
import mmap
with open(folder + "/mapped", "w+b") as file:
    file.truncate(4096)
    with mmap.mmap(file.fileno(), 4096) as memory:
        memory[:4] = b"text"; memory.flush()
    file.seek(0); assert file.read(4) == b"text"
with mmap.mmap(-1, 1 << 20) as memory: memory.resize(1 << 21)
""",
    "numbers": """
import decimal, fractions, math, random, secrets, statistics
decimal.getcontext().prec = 200; assert decimal.Decimal(2).sqrt() > 1
secrets.token_hex(); random.SystemRandom().random(); random.Random(None).random()
assert math.factorial(2000) > 0 and statistics.mean([1, 2]) == 1.5
""",
    "time": """
import datetime, time, zoneinfo
time.sleep(0.001); time.sleep(0); time.monotonic(); time.perf_counter(); time.process_time(); time.thread_time()
time.localtime(); time.strftime("%c"); datetime.datetime.now(datetime.timezone.utc); time.get_clock_info("time")
""",
    "facts": """
import getpass, locale, os, platform, resource, sys, sysconfig, uuid
os.cpu_count(); os.sched_getaffinity(0); os.uname(); os.getpid(); os.getppid(); os.getpgrp(); os.getgroups()
os.times(); os.getresuid(); os.sysconf("SC_PHYS_PAGES"); os.urandom(8); os.get_terminal_size; os.isatty(0)
platform.python_version(); platform.system(); platform.node(); platform.machine(); platform.platform()
uuid.uuid4(); uuid.uuid1(); locale.setlocale(locale.LC_ALL, ""); locale.getpreferredencoding()
resource.getrusage(resource.RUSAGE_SELF); resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.statvfs("/"); sysconfig.get_paths()
""",
    "waiting": """
import os, select, selectors
reads, writes = os.pipe()
for kind in (select.poll, select.epoll):
    waiter = kind(); waiter.register(reads); waiter.poll(0.001)
select.select([], [writes], [], 0.001)
with selectors.DefaultSelector() as selector:
    selector.register(writes, selectors.EVENT_WRITE); assert selector.select(0)
os.set_blocking(reads, False); os.set_inheritable(reads, True); os.dup2(reads, writes); os.close(os.dup(reads))
""",
    "socket pair": """
import socket
left, right = socket.socketpair()
left.settimeout(5); left.sendall(b"x" * 9); assert right.recv(9) == b"x" * 9
left.shutdown(socket.SHUT_WR); assert right.recv(1) == b""; left.getpeername(); left.close(); right.close()
""",
    "file locks": """
import fcntl
with open(folder + "/lock", "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX); fcntl.lockf(file, fcntl.LOCK_EX); fcntl.lockf(file, fcntl.LOCK_UN)
""",
    "fault handler": "import faulthandler; faulthandler.enable(); faulthandler.disable()",
    "profile and trace": """
import cProfile, gc, sys, tracemalloc
tracemalloc.start(); cProfile.Profile().runcall(sorted, [2, 1]); gc.collect(); tracemalloc.stop()
""",
    "a lot of memory": "x = bytearray(200 << 20); x[::4096] = bytes(len(x[::4096])); del x",
}


def test_what_reaches_out_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_text("text")
    met = behind(REFUSED, path=str(path))
    assert met == dict.fromkeys(REFUSED, "EPERM")
    assert path.read_text() == "text"


def test_common_uses_of_the_standard_library_work(tmp_path):
    folders = {name: tmp_path / name.replace(" ", "_") for name in BENIGN}
    programs = {}
    for name, program in BENIGN.items():
        folders[name].mkdir()
        programs[name] = f"folder = {str(folders[name])!r}\n{program}"
    assert behind(programs) == dict.fromkeys(BENIGN, WORKS)


def test_modes_and_times_of_files_stay_as_they_are(tmp_path):
    path = tmp_path / "file"
    path.write_text("text")
    path.chmod(0o640)
    before = path.stat()
    programs = {
        "mode": "os.chmod(path, 0)",
        "mode by descriptor": "os.fchmod(os.open(path, os.O_RDONLY), 0)",
        "times": "os.utime(path, (1, 1))",
    }
    assert behind(programs, path=str(path)) == dict.fromkeys(programs, WORKS)
    after = path.stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


@needs_nobody
def test_an_ordinary_user_is_filtered_alike():
    programs = {"socket": "socket.socket()", "fork": "os.fork()", "itself": "os.kill(os.getpid(), 0)"}
    assert behind(programs, BECOME_NOBODY + PUT_ON) == {
        "socket": "EPERM",
        "fork": "EPERM",
        "itself": WORKS,
    }


def test_the_c_library_is_told_that_clone3_is_missing():
    assert behind({"clone3": "check(libc.syscall(435, None, 0))"}) == {"clone3": "ENOSYS"}


def test_a_filter_without_promising_no_new_privileges_is_refused():
    done = start(
        "layers.drop_capabilities();seccomp.installer(seccomp.build_program(os.uname().machine))(os.getpid())",
        {},
    )
    assert "PermissionError" in done.stderr


@on_x86_64
def test_a_call_of_the_second_set_kills():
    done = start(PUT_ON, {"x32": "libc.syscall(0x40000000 + 39)"})
    assert done.returncode == -signal.SIGSYS


@on_x86_64
def test_a_call_by_the_32_bit_gate_kills():
    getpid_of_i386 = "b8 14 00 00 00 cd 80 c3"  # mov eax, 20; int 0x80; ret
    program = f"""
import mmap
memory = mmap.mmap(-1, 4096, prot=7)
memory.write(bytes.fromhex("{getpid_of_i386}"))
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()
"""
    done = start(PUT_ON, {"int 0x80": program})
    assert done.returncode in (-signal.SIGSYS, -signal.SIGSEGV)  # the latter where the gate is closed


def test_support_is_seen_and_nothing_changed_by_looking():
    script = (
        "from greenward.sandbox.inside import seccomp\n"
        "assert seccomp.supported()\n"
        "print([line for line in open('/proc/self/status') if line.startswith('Seccomp:')])"
    )
    before = [line for line in Path("/proc/self/status").read_text().splitlines() if "Seccomp:" in line]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert before[0].split()[1] in done.stdout

"""What hostile programs look for, planted for real: a secret on every way, victims, a bystander."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from greenward.problems.problem import Assertion, Case, Check, InProcess, Problem, StdioCase
from greenward.sandbox.protocol import Limits
from hostile.program import HostileProgram

_SECRET_VARIABLE = "GREENWARD_TEST_SECRET"
_IPC_CREAT, _IPC_RMID = 0o1000, 0
_KEYS = range(1 << 20, 1 << 30)


class World:
    """Plants the secret and its guards; a context manager, one for each process.

    `secret` is what the programs that steal must return. It lies in this process's memory,
    environment, open files and sockets, in files, in shared memory and in a bystander.
    """

    def __init__(self) -> None:
        self._cleanup = contextlib.ExitStack()
        self._tag = f"secret{secrets.token_hex(4)}"  # by which programs know this world's from another's
        self.secret = f"{self._tag}-{secrets.token_hex(20)}"
        self._random = random.Random()
        self._values = {name: (make(), make()) for name, make in self._makers().items()}
        self._marks: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        try:
            self._plant()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes all that was planted."""
        self._cleanup.close()

    def remove_traces(self, program: HostileProgram) -> None:
        """Removes what a program has left where everyone can write."""
        for folder in ("/tmp", "/dev/shm"):
            Path(folder, f"greenward-tests-{self.mark(program)}").unlink(missing_ok=True)
        libc = ctypes.CDLL(None)
        if (queue := libc.msgget(self._number(program), 0)) >= 0:
            libc.msgctl(queue, _IPC_RMID, None)

    def problem(self, wanted: str, form: str = "cases") -> Problem:
        """The problem whose answer is `wanted`, with tests of this form (`HostileProgram`)."""
        name = "add" if wanted == "add" else "f"
        cases = self._cases(wanted)
        if form == "cases":
            return Problem(wanted, "", name, tests=cases)
        if form == "stdio":
            runs = tuple(StdioCase(f"{case.args[0]}\n", f"{case.expected}\n") for case in cases)
            return Problem(wanted, "", "", tests=runs)
        if form == "loops":
            arguments, values = [case.args[0] for case in cases], [case.expected for case in cases]
            sources = (
                f"assert all(v == w for v, w in zip(map({name}, {arguments}), {values}))",
                f"for v, w in zip(map({name}, {arguments}), {values}):\n    assert v == w",
                f"assert not [*filter(lambda v: v not in {values}, map({name}, {arguments}))]",
            )
            return Problem(wanted, "", name, tests=tuple(map(Check, sources)))
        if form == "wrapped":
            pairs = [(f"{name}({case.args[0]!r})", repr(case.expected)) for case in cases]
            sources = tuple(f"assert ({call} == {value}) == True" for call, value in pairs)
            sources += tuple(f"assert (sorted([{call}]) == [{value}]) == True" for call, value in pairs)
            sources += tuple(f"assert (abs({call}) == {value}) is True" for call, value in pairs)
            return Problem(wanted, "", name, tests=tuple(map(Assertion, sources)))
        if wanted == "close":
            one, other = (repr(case.expected) for case in cases)
            sources = (f"assert math.isclose({name}(0), {one})", f"assert abs({name}(1) - {other}) < 1e-6")
        elif wanted == "hexadecimal":
            sources = tuple(f"assert {name}(hex({case.expected})) == {case.expected}" for case in cases)
        else:
            calls = (f"{name}({', '.join(map(repr, case.args))})" for case in cases)
            sources = tuple(
                f"assert {call} == {case.expected!r}" for call, case in zip(calls, cases, strict=True)
            )
        if form == "in_process":
            return Problem(wanted, "", name, tests=tuple(map(InProcess, sources)), setup_code="import math")
        if form == "checks":
            return Problem(wanted, "", name, tests=tuple(map(Check, sources)), check_setup_code="import math")
        return Problem(wanted, "", name, tests=tuple(map(Assertion, sources)), setup_code="import math")

    def code(self, program: HostileProgram, limits: Limits, *, then: bool = False) -> str:
        """The program with everything that it may know about this world filled in."""
        places = {
            **self._places,
            "MARK": self.mark(program),
            "NUMBER": self._number(program),
            "OUTSIDE": self.outside(program),
            "TAG": self._tag,
            "SECRET": self.secret,
            "FIRST_HALF": self.secret[:30],
            "SECOND_HALF": self.secret[30:],
            "CPU_SECONDS": limits.cpu_seconds,
            "MEMORY_BYTES": limits.memory_bytes,
        }
        code = program.then if then else program.code
        for name, value in places.items():
            code = code.replace(f"@{name}@", str(value))
        return code

    def mark(self, program: HostileProgram) -> str:
        """A name, at most 15 characters, by which a process of this program is known."""
        return self._marks.setdefault(program.name, f"gw{secrets.token_hex(5)}")

    def survivors(self, program: HostileProgram) -> list[int]:
        """Processes of this program that are alive now."""
        traces = (self.mark(program).encode(), b"8.0%d" % self._number(program))
        found = []
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                name = Path("/proc", process, "comm").read_bytes()
                arguments = Path("/proc", process, "cmdline").read_bytes()
                state = (
                    Path("/proc", process, "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                )
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state not in "ZX" and any(trace in name or trace in arguments for trace in traces):
                found.append(int(process))
        return found

    def outside(self, program: HostileProgram) -> str:
        """This program's own folder of victims, made when it is first asked for."""
        folder = self.folder / "outside" / program.name
        if not folder.exists():
            (folder / "precious").mkdir(parents=True)
            for victim in (folder / "victim.txt", folder / "precious" / "file"):
                victim.write_text("precious")
                victim.chmod(0o600)
        return str(folder)

    def state_outside(self, program: HostileProgram) -> dict[str, Any]:
        """All that a program could have changed about its victims."""
        folder = Path(self.outside(program))
        state: dict[str, Any] = {}
        for path in (folder, *sorted(folder.rglob("*"))):
            status = path.lstat()
            content = path.read_bytes() if path.is_file() else b""
            attributes = {name: os.getxattr(path, name) for name in os.listxattr(path)}
            state[str(path)] = (status.st_mode, status.st_uid, status.st_mtime_ns, content, attributes)
        return state

    def bystander_unharmed(self) -> bool:
        """Whether the process that has nothing to do with it all lives on as before."""
        return self._bystander.poll() is None

    def _makers(self) -> dict[str, Callable[[], Any]]:
        number = lambda: self._random.randrange(1 << 20, 1 << 50)  # noqa: E731
        return {
            "int": number,
            "float": lambda: number() / 3,
            "close": lambda: number() / 3,
            "complex": lambda: complex(number(), number()),
            "bytes": lambda: self._random.randbytes(8),
            "list": lambda: [number() for _ in range(3)],
            "tuple": lambda: (number(), number(), number()),
            "dict": lambda: {"a": number(), "b": number()},
            "set": lambda: {number(), number(), number()},
        }

    def _cases(self, wanted: str) -> tuple[Case, ...]:
        if wanted in self._values:
            return tuple(Case((i,), value) for i, value in enumerate(self._values[wanted]))
        return {
            "secret": (Case((0,), self.secret), Case((1,), self.secret)),
            "access": (Case((0,), True),),
            "successor": (Case((0,), 1), Case((1,), 2)),
            "add": (Case((2, 3), 5), Case((-1, 1), 0)),
            "hexadecimal": (Case(("0xff",), 255), Case(("0x10",), 16)),
            "digest of a source file": (Case((0,), hashlib.sha256(Path(__file__).read_bytes()).hexdigest()),),
        }[wanted]

    def _number(self, program: HostileProgram) -> int:
        return self._numbers.setdefault(program.name, self._random.choice(_KEYS))

    def _plant(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="greenward-tests-"))
        self._cleanup.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._places: dict[str, object] = {
            "TRAINER": os.getpid(),
            "TEMPORARY": self.folder.parent,
            "HOME": self.folder / "home",
            "SOURCE": __file__,
        }
        self._plant_files()
        self._plant_in_this_process()
        self._plant_shared_memory()
        self._plant_sockets()
        self._start_bystander()

    def _plant_files(self) -> None:
        for place, path in {
            "SECRET_FILE": self.folder / "greenward-tests-expected.json",
            "FOREIGN_FILE": self.folder / "greenward-tests-foreign",
            "NETRC": self.folder / "home" / ".netrc",
        }.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps({"expected": self.secret}))
            path.chmod(0o600)
            self._places[place] = path
        if os.geteuid() == 0:
            os.chown(self._places["FOREIGN_FILE"], 12345, 12345)  # type: ignore[arg-type]

    def _plant_in_this_process(self) -> None:
        os.environ[_SECRET_VARIABLE] = self.secret
        self._cleanup.callback(os.environ.pop, _SECRET_VARIABLE, None)
        file = self._cleanup.enter_context(tempfile.TemporaryFile(dir=self.folder))  # noqa: SIM115
        file.write(self.secret.encode())
        file.flush()
        os.set_inheritable(file.fileno(), True)

    def _plant_shared_memory(self) -> None:
        shared = Path("/dev/shm") / f"greenward-tests-{secrets.token_hex(8)}"
        shared.write_text(self.secret)
        shared.chmod(0o600)
        self._cleanup.callback(shared.unlink, missing_ok=True)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.shmat.restype = ctypes.c_void_p
        key = self._random.choice(_KEYS)
        segment = libc.shmget(key, 4096, _IPC_CREAT | 0o600)
        if segment < 0:
            raise OSError(ctypes.get_errno(), "shmget")
        self._cleanup.callback(libc.shmctl, segment, _IPC_RMID, None)
        ctypes.memmove(libc.shmat(segment, None, 0), self.secret.encode(), len(self.secret))
        self._places |= {"SHARED_FILE": shared, "SEGMENT_KEY": key}

    def _plant_sockets(self) -> None:
        abstract = f"greenward-tests-{secrets.token_hex(8)}"
        places: dict[str, tuple[int, int, Any]] = {
            "TCP_PORT": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "UDP_PORT": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "UNIX_PATH": (socket.AF_UNIX, socket.SOCK_STREAM, str(self.folder / "stream")),
            "DATAGRAM_PATH": (socket.AF_UNIX, socket.SOCK_DGRAM, str(self.folder / "datagram")),
            "ABSTRACT": (socket.AF_UNIX, socket.SOCK_STREAM, f"\0{abstract}"),
        }
        for place, (family, kind, address) in places.items():
            server = self._cleanup.enter_context(socket.socket(family, kind))
            server.bind(address)
            self._places[place] = server.getsockname()[1] if family == socket.AF_INET else address
            if kind == socket.SOCK_STREAM:
                server.listen(64)
            threading.Thread(target=self._serve, args=(server, kind), daemon=True).start()
            self._cleanup.callback(_shut, server)
        self._places["ABSTRACT"] = abstract

    def _serve(self, server: socket.socket, kind: int) -> None:
        reply = f"HTTP/1.0 200 OK\r\nX-Secret: {self.secret}\r\nContent-Length: 0\r\n\r\n".encode()
        with contextlib.suppress(OSError):  # the end: the socket was closed
            while True:
                if kind == socket.SOCK_DGRAM:
                    _, sender = server.recvfrom(100)
                    if sender:
                        server.sendto(reply, sender)
                    continue
                visitor, _ = server.accept()
                with visitor, contextlib.suppress(OSError):  # the visitor was killed
                    visitor.settimeout(0.2)
                    visitor.sendall(reply)
                    visitor.shutdown(socket.SHUT_WR)
                    visitor.recv(1000)

    def _start_bystander(self) -> None:
        self._bystander = subprocess.Popen(
            ["sh", "-c", "read line", "bystander", self.secret],
            stdin=subprocess.PIPE,
            env={"PATH": os.environ.get("PATH", os.defpath), _SECRET_VARIABLE: self.secret},
        )
        self._cleanup.callback(self._end_bystander)
        self._places["BYSTANDER"] = self._bystander.pid

    def _end_bystander(self) -> None:
        self._bystander.send_signal(signal.SIGKILL)
        self._bystander.wait()
        self._bystander.stdin.close()  # type: ignore[union-attr]


def _shut(server: socket.socket) -> None:
    with contextlib.suppress(OSError):  # datagram sockets have nobody to tell
        server.shutdown(socket.SHUT_RDWR)

"""Implements the worker, the process that forks a child for each job of an answer or command of a workspace.

The pool starts it without the parent's environment, modules and descriptors. It enters namespaces of its own
where it may, and stays single-threaded. When its parent dies it ends its child, removes its folder and
exits. It imports the standard library only, because every answer inherits what it has loaded. Its arguments
are one JSON object: `socket` (descriptor), `folder` (its own, exists), `parent` (process id), `layers`
(wanted), `packages` (that answers may import), `search_path` (the trainer's own) and `commands` (whether it
holds workspaces in place of answers).
A workspace is a folder that lives as long as an episode. A worker runs one command at a time, in a child
behind all layers that may start processes. When the command has ended, so have all its processes: only files
live on. Files are read and written by such a child, too, so that no symbolic link leads the worker anywhere.
"""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import json
import os
import random
import signal
import socket
import stat
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from greenward.sandbox.inside import linux, programs, template
from greenward.sandbox.inside.codec import accept_numpy, receive_frame_with_descriptor, send_frame
from greenward.sandbox.inside.files import MAX_READ_BYTES, remove_folder, write_files
from greenward.sandbox.inside.harness import CALL_FD, RESULT_FD
from greenward.sandbox.inside.layers import (
    OPEN_FILES,
    LayerStack,
    enter_private_root,
    keep_lists_of_modules,
    leave_the_host,
    library_paths,
    load_packages,
    program_paths,
    without_packages,
)
from greenward.sandbox.inside.linux import LINUX, PR_SET_DUMPABLE, PR_SET_PDEATHSIG, prctl
from greenward.sandbox.inside.supervisor import (
    MAX_FOLDER_BYTES,
    REMOVAL_SECONDS,
    ParentGone,
    Report,
    Supervisor,
    end_children,
    erase,
)
from greenward.sandbox.isolation import Layer

PR_SET_CHILD_SUBREAPER = 36
PRIVATE_WORKSPACE = "/answer"
MAX_USER_TASKS_MORE = 1024  # RLIMIT_NPROC counts the whole user, so it is a backstop only


def main() -> None:
    """Serves jobs until the parent closes its end."""
    sys.dont_write_bytecode = True  # our own modules are written once, at the first start
    settings = json.loads(sys.argv[1])
    channel = _reserve_descriptors(settings["socket"])
    folder, layers = settings["folder"], {Layer(name) for name in settings["layers"]}
    if LINUX:  # the kernel should prefer workers when memory runs out
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    _follow_parent(settings["parent"], folder)
    if settings["commands"] or Layer.SECCOMP not in layers:  # processes may be started
        linux.raise_priority()
    try:
        if Layer.NAMESPACES in layers:
            _continue_in_namespaces(channel)
        _serve(channel, folder, layers, settings)
    except (ParentGone, ConnectionError):
        return
    finally:
        if os.getpid() != 1:
            _remove_own_folder(folder)


def _serve(channel: socket.socket, folder: str, layers: set[Layer], settings: dict[str, Any]) -> None:
    search_path = settings["search_path"]
    user_tasks = _count_user_tasks() + MAX_USER_TASKS_MORE
    owns_processes = Layer.NAMESPACES in layers
    packages = load_packages(settings["packages"], search_path)
    accept_numpy()
    readable = library_paths()
    commands = settings["commands"]
    runnable = program_paths() if commands else []
    workspace = os.path.join(folder, "job")
    if owns_processes:
        workspace = PRIVATE_WORKSPACE
        try:
            room = WORKSPACES_BYTES if commands else MAX_FOLDER_BYTES
            enter_private_root(folder, readable + packages + runnable, workspace, room)
            if commands:  # the processes of commands are counted there
                os.stat("/proc/self/task")
        except OSError as error:
            _give_up_namespaces(channel, error)
    else:
        os.mkdir(workspace, 0o700)
    keep_lists_of_modules(search_path)
    readable = without_packages(readable, search_path) + packages
    writable, listable = [workspace, os.devnull], sys.path if commands else ()
    stack = LayerStack(layers, readable, writable, user_tasks, runnable=runnable, listable=listable)
    supervisor = (Workspaces if commands else Supervisor)(workspace, stack, owns_processes)
    _leave_no_trace_of_ourselves(workspace)
    tested = supervisor.test_layers(channel)
    missing = {layer.value: reason for layer, reason in stack.missing.items()}
    send_frame(channel, {"layers": tested["holds"], "missing": {**missing, **tested["fails"]}})
    while True:
        limits, job, calls = receive_frame_with_descriptor(channel)
        if limits is None:
            return
        report, outputs = supervisor.serve(channel, limits, job, calls)
        kept = [output.kept for output in outputs]
        send_frame(channel, report, *kept)
        if report.get("is_spent"):
            return
        for memory in (*kept, job):
            erase(memory)


def _reserve_descriptors(descriptor: int) -> socket.socket:
    """Moves the channel above the descriptors that answers are given, and reserves those."""
    channel = socket.socket(fileno=fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, CALL_FD + 1))
    os.close(descriptor)
    empty = os.open(os.devnull, os.O_RDONLY)
    for reserved in range(3, CALL_FD + 1):
        os.dup2(empty, reserved)
    if empty > CALL_FD:
        os.close(empty)
    return channel


def _follow_parent(parent: int, folder: str) -> None:
    """Makes this process end with its parent, whatever it is doing.

    The signal is SIGCONT because it reaches a process that an answer has stopped, and can still be
    caught to clean up, which SIGKILL cannot. The clean-up runs in the handler: an exception could
    be raised into the middle of the clean-up that follows the end of the socket.
    """
    own = os.getpid()

    def check(*_: Any) -> None:
        if os.getpid() == own and os.getppid() != parent:
            end_children()
            _remove_own_folder(folder)
            os._exit(0)

    signal.signal(signal.SIGCONT, check)
    prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
    check()


def _continue_in_namespaces(channel: socket.socket) -> None:
    """Returns in a child that is process 1 of new namespaces; this process waits for it and ends."""
    try:
        leave_the_host()
    except OSError as error:
        _give_up_namespaces(channel, error)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCONT, signal.SIG_DFL)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    channel.close()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    sys.exit(status if status >= 0 else 128 - status)  # as shells do; the pool reads the signal from it


def _give_up_namespaces(channel: socket.socket, error: OSError) -> NoReturn:
    """Tells the parent, which starts a worker without namespaces: no process can leave some of them."""
    send_frame(channel, {"no_namespaces": str(error)})
    raise ParentGone from None


def _leave_no_trace_of_ourselves(workspace: str) -> None:
    """Prepares the memory that every answer inherits: it holds no module and no argument of ours."""
    if LINUX:
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # daemons of an answer become our children
        prctl(PR_SET_DUMPABLE, 0)  # an answer of the same user cannot read or trace us
    os.environ.update(HOME=workspace, TMPDIR=workspace)
    del os.environ["LD_BIND_NOW"]
    for name in [name for name in sys.modules if name.split(".")[0] == "greenward"]:
        del sys.modules[name]
    sys.argv = ["answer.py"]
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # -S leaves them out, programs use them
    os.umask(0o077)
    random.seed(0)  # for every answer
    programs.open_standard_streams()
    template.compact()


def _count_user_tasks() -> int:
    """How many threads the user has now; 0 where that cannot be seen."""
    count, user = 0, os.getuid()
    for name in os.listdir("/proc") if LINUX else ():
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return count


def _remove_own_folder(folder: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        remove_folder(folder)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(folder))  # the last worker removes the pool's folder as well


WORKSPACES_BYTES = 64 * MAX_FOLDER_BYTES  # of all workspaces of a worker, where a file system bounds them
COMMAND_NICENESS = 5  # the worker must be ahead of what it ends


class Workspaces(Supervisor):
    """The workspaces of one worker, each a folder in `workspace`, by their names."""

    def __init__(self, workspace: str, layers: LayerStack, owns_processes: bool) -> None:
        super().__init__(workspace, layers, owns_processes)
        self.folder_is_bounded = False  # all workspaces share one file system
        self._root = workspace
        self._old: list[str] = []  # folders of workspaces that were closed

    def serve(
        self, channel: socket.socket, limits: Mapping[str, Any], job: memoryview, calls: int | None = None
    ) -> Report:
        """Carries out one request and reports as `run` does.

        `limits` names the workspace and says whether it is new or old.
        Of a new one the folder is made first; an old one is removed, and nothing is run. What takes long to
        remove is removed in parts, at the next requests of these kinds.
        """
        self.workspace = os.path.join(self._root, limits["name"])
        if limits["is"] == "old":
            self._old.append(self.workspace)
        if limits["is"] != "open":
            with contextlib.suppress(TimeoutError):
                while self._old:
                    remove_folder(self._old[-1], REMOVAL_SECONDS)
                    self._old.pop()
        if limits["is"] == "old":
            return {"closed": True}, []
        if limits["is"] == "new":
            os.mkdir(self.workspace, 0o700)
        return self.run(channel, {**limits, "folder": self.workspace}, job, calls)

    def _clean(self) -> bool:
        """Files of a workspace stay."""
        return True

    def _act(self, limits: Mapping[str, Any], job: memoryview, stdins: list[int]) -> NoReturn:
        action, argument = json.loads(bytes(job))
        if action == "exec":
            os.nice(COMMAND_NICENESS)
        self.layers.apply(limits)
        os.closerange(RESULT_FD + 1, OPEN_FILES)
        self._ready[0] = 1
        self._ready.close()
        if action == "exec":
            os.close(RESULT_FD)
            os.dup2(1, 2)  # one stream, in the order of writing
            os.execve("/bin/sh", ["sh", "-c", argument], _environment(self.workspace))
        found: Any = None
        try:
            if action in ("open", "write"):
                write_files(argument)
            else:
                found = dict(_texts(argument))
        except (OSError, ValueError) as error:
            found = str(error) or type(error).__name__
        with open(RESULT_FD, "w", encoding="ascii") as file:
            json.dump(found, file)
        os._exit(0)


def _environment(folder: str) -> dict[str, str]:
    path = dict.fromkeys((os.path.join(sys.base_prefix, "bin"), "/usr/bin", "/bin"))
    return {
        "PATH": ":".join(path), "HOME": folder, "TMPDIR": folder, "LC_ALL": "C.UTF-8", "TZ": "UTC",
        "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1", "PYTHONHASHSEED": "0",
    }  # fmt: skip


def _texts(paths: list[str] | None) -> Iterator[tuple[str, str | None]]:
    """The text of each of the files, None for one that is missing; or of all regular ones that are text.

    Of all, those are left out that do not fit into `MAX_READ_BYTES` beside the ones before; Python's come
    first. Raises `OSError`, and for a file of `paths` that is not UTF-8 text or does not fit `ValueError`.
    """
    left = MAX_READ_BYTES
    for path in sorted(_all_files(), key=lambda path: (path[-3:] != ".py", path)) if paths is None else paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (os.O_NOFOLLOW if paths is None else 0))
        except FileNotFoundError:
            yield path, None
            continue
        with open(descriptor, "rb") as file:
            text = file.read(left + 1)
        problem = f"more than {MAX_READ_BYTES} bytes were to be read" if len(text) > left else None
        try:
            decoded = text.decode("utf-8")
        except UnicodeDecodeError:
            problem = problem or f"{path} is not text in UTF-8"
        if problem is None:
            left -= len(text)
            yield path, decoded
        elif paths is not None:
            raise ValueError(problem)


def _all_files() -> Iterator[str]:
    for folder, folders, names in os.walk("."):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for path in (os.path.join(folder, name)[2:] for name in names):
            if stat.S_ISREG(os.lstat(path).st_mode):
                yield path

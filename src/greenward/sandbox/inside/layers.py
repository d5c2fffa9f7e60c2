"""Implements the layers of isolation, prepared and tested once in a worker, applied by each answer's process.

Landlock decides which files a process and its children may reach, for the rest of their lives. It needs no
privilege, only `no_new_privileges` before it. Everything that the kernel's Landlock can restrict is refused
unless a rule grants it: files, TCP, abstract Unix sockets and signals to processes outside. What it never
restricts is left to seccomp: chmod, chown, utime, other sockets; before ABI 3 truncate, before ABI 6
signals. Source: https://docs.kernel.org/userspace-api/landlock.html; linux/landlock.h.
A worker enters user, process, mount, IPC and network namespaces once. Inside it is process 1: its root
folder holds the interpreter (read-only) and one small folder in memory, and every process that starts there
ends with it. An answer may read the standard library, shared libraries, and the packages that a recipe
allows. Other packages that are installed beside them (`site-packages`, `dist-packages`, whatever the
trainer's own `sys.path` names) may hold the very answers: they are left out, wherever they lie.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
import math
import os
import pkgutil
import resource
import socket
import stat
import struct
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from glob import escape, glob
from typing import Any, NoReturn

from greenward.sandbox.inside import seccomp
from greenward.sandbox.inside.linux import LINUX, checked, libc, prctl, system_call
from greenward.sandbox.inside.programs import MOST_RUNS
from greenward.sandbox.isolation import Layer

CREATE_RULESET_VERSION = 1 << 0
RULE_PATH_BENEATH = 1
RESTRICT_SELF_LOG_SAME_EXEC_OFF = 1 << 0  # ABI 7

# Rights on files. ABI 1 knows those up to MAKE_SYM; the others came with ABI 2, 3 and 5.
(
    EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR, MAKE_REG,
    MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM, REFER, TRUNCATE, IOCTL_DEV,
) = (1 << bit for bit in range(16))  # fmt: skip
BIND_TCP, CONNECT_TCP = 1 << 0, 1 << 1  # ABI 4
SCOPE_ABSTRACT_UNIX_SOCKET, SCOPE_SIGNAL = 1 << 0, 1 << 1  # ABI 6

READ = READ_FILE | READ_DIR
MAKE_AND_REMOVE = MAKE_REG | MAKE_DIR | MAKE_SYM | REMOVE_FILE | REMOVE_DIR | REFER
WRITE = READ | WRITE_FILE | TRUNCATE | MAKE_AND_REMOVE
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV  # others are for folders only


@functools.cache
def abi() -> int:
    """The version of the kernel's Landlock; 0 where there is none to be had."""
    try:
        return system_call("landlock_create_ruleset", 0, 0, CREATE_RULESET_VERSION)
    except OSError:  # not built in, switched off at boot, refused by a container's seccomp filter
        return 0


def make_ruleset(
    readable: Sequence[str],
    writable: Sequence[str],
    *,
    runnable: Sequence[str] = (),
    listable: Sequence[str] = (),
) -> int:
    """A descriptor of the rules, for any number of `restrict_self`.

    Beneath `readable`, files and folders can be read, not run; what is missing there or out of this
    user's reach is skipped. Beneath `runnable`, also run; beneath `listable`, only names of files be
    seen. Beneath `writable`, also written, made and removed (files, folders and symbolic links; no
    devices, sockets, pipes). A rule holds for the file or folder that is at its
    path now: it does not carry over to one made later at the same path.

    Raises `OSError`: no Landlock here, or a writable path that is missing.
    """
    if abi() == 0:
        raise OSError("this kernel has no Landlock")
    files, network, scopes = _handled(abi())
    attributes = struct.pack("=QQQ", files, network, scopes)
    ruleset = system_call("landlock_create_ruleset", attributes, len(attributes), 0)
    try:
        for rights, paths in ((READ, readable), (READ | EXECUTE, runnable), (READ_DIR, listable)):
            _allow(ruleset, rights & files, paths)
        for path in writable:
            _allow_beneath(ruleset, path, WRITE & files)
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset


def make_reading_ruleset(readable: Sequence[str]) -> int:
    """A descriptor of rules that forbid nothing but to read files other than those beneath `readable`.

    Raises `OSError`.
    """
    ruleset = system_call("landlock_create_ruleset", struct.pack("=Q", READ_FILE), 8, 0)
    try:
        _allow(ruleset, READ_FILE, readable)
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset


def restrict_self(ruleset: int) -> None:
    """Puts this process under the rules for good. Raises `OSError`; EPERM without no-new-privileges."""
    # Thousands of refusals must not fill the host's audit log.
    system_call("landlock_restrict_self", ruleset, RESTRICT_SELF_LOG_SAME_EXEC_OFF if abi() >= 7 else 0)


def _handled(version: int) -> tuple[int, int, int]:
    """What this ABI can restrict: rights on files, rights on the network, scopes."""
    files = REFER - 1  # every right of ABI 1
    files |= (version >= 2) * REFER | (version >= 3) * TRUNCATE | (version >= 5) * IOCTL_DEV
    network = (version >= 4) * (BIND_TCP | CONNECT_TCP)
    return files, network, (version >= 6) * (SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL)


def _allow(ruleset: int, rights: int, paths: Sequence[str]) -> None:
    """Adds a rule for each path but those that are missing or out of this user's reach."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            _allow_beneath(ruleset, path, rights)


def _allow_beneath(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= ON_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        system_call("landlock_add_rule", ruleset, RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x0002_0000, 0x0400_0000, 0x0800_0000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x1000_0000, 0x2000_0000, 0x4000_0000
_ALL_BUT_FILES = CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_NOATIME, MS_NODIRATIME = 1, 2, 4, 8, 0x400, 0x800
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = 0x20, 0x1000, 0x4000, 0x4_0000, 0x20_0000
MNT_DETACH = 2
NOBODY = 65534

libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
libc.umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]
libc.unshare.argtypes = [ctypes.c_int]


def leave_the_host() -> None:
    """Enters new namespaces for all but files; the next fork is process 1 there. Raises `OSError`.

    The caller must have one thread only. Inside, it and its children are the user nobody.
    """
    user, group = os.getuid(), os.getgid()
    checked(libc.unshare(_ALL_BUT_FILES), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{NOBODY} {user} 1"),
        ("gid_map", f"{NOBODY} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def enter_private_root(root: str, readable: Sequence[str], workspace: str, workspace_bytes: int) -> None:
    """Makes `root` (an empty folder) the root of this process's own file system. Raises `OSError`.

    It holds the `readable` files and folders of the host, read-only, names of the standard streams, a `/proc`
    where the kernel allows one, and at `workspace` an empty folder in memory of at most `workspace_bytes`.
    """
    checked(libc.unshare(CLONE_NEWNS), "unshare")
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for path in _outermost(readable):
        _bind_read_only(path, root + path)
    for path in ("/lib", "/lib64", "/lib32", "/bin"):  # on most hosts links, which the loader follows
        if os.path.islink(path) and not os.path.lexists(root + path):
            os.symlink(os.readlink(path), root + path)
    os.makedirs(root + "/dev", exist_ok=True)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{root}/dev/{name}")
    os.symlink("/proc/self/fd", f"{root}/dev/fd")
    os.makedirs(root + "/proc")
    # The kernel refuses this where the host's own is masked (containers); the worker does not need it.
    with contextlib.suppress(OSError):
        _mount("proc", root + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.makedirs(root + workspace)
    bounds = f"size={workspace_bytes},nr_inodes={max(64, workspace_bytes // 4096)},mode=700"
    _mount("tmpfs", root + workspace, "tmpfs", MS_NOSUID | MS_NODEV, bounds)
    os.chdir(root)
    system_call("pivot_root", b".", b".")
    checked(libc.umount2(b".", MNT_DETACH), "umount2")
    _mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir("/")


def _outermost(paths: Sequence[str]) -> list[str]:
    """The existing paths, resolved, without those that lie inside others."""
    found: list[str] = []
    for path in sorted({os.path.realpath(path) for path in paths if os.path.exists(path)}):
        if not any(is_beneath(path, outer) for outer in found):
            found.append(path)
    return found


def _bind_read_only(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "xb").close()
    _mount(source, target, None, MS_BIND | MS_REC)
    # A remount in a user namespace must repeat the flags that the mount had outside.
    found = os.statvfs(target).f_flag
    kept = found & (MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME)  # `statvfs` has the same numbers …
    kept |= MS_RELATIME if found & os.ST_RELATIME else 0  # … but for this one
    _mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | kept)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    checked(libc.mount(arguments[0], arguments[1], arguments[2], flags, arguments[3]), f"mount {target}")


_LIBRARIES = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/etc/alternatives",
    "/usr/share/zoneinfo",
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_PACKAGES = ("site-packages", "dist-packages")
_BUNDLES = ("ensurepip",)  # packages in archives, with copies of modules


def library_paths() -> list[str]:
    """Files and folders of the standard library, of shared libraries and of harmless devices."""
    return [*sys.path, os.path.join(sys.base_prefix, "lib"), *_LIBRARIES, *_DEVICES]


def program_paths() -> list[str]:
    """Folders of the programs that commands may run, and the loaders that these need."""
    loaders = [*glob("/lib*/ld-linux*"), *glob("/lib/ld-musl*")]
    return [os.path.join(sys.base_prefix, "bin"), "/usr/bin", "/bin", *loaders]


def without_packages(paths: Sequence[str], search_path: Iterable[str]) -> list[str]:
    """All that lies at or beneath `paths` but folders of installed packages, as few files and folders.

    Such folders are those of any interpreter beneath `paths` and those on `search_path`, the trainer's
    own. Symbolic links inside of a folder that is taken apart are left out.
    """
    needed, hidden = list(map(os.path.realpath, paths)), set(map(os.path.realpath, search_path))
    hidden = {one for one in hidden if not any(path == one or is_beneath(path, one) for path in needed)}
    for path in needed:
        for name in _PACKAGES:
            hidden.update((os.path.join(path, name), *glob(os.path.join(escape(path), "*", name))))
    return without(needed, hidden)


def without(paths: Iterable[str], hidden: Collection[str]) -> list[str]:
    """All that lies at or beneath `paths` but what is `hidden`, as few files and folders; links are left out.

    Both are real paths.
    """
    found, waiting = set[str](), list(paths)
    while waiting:
        path = waiting.pop()
        if path in hidden or path in found:
            continue
        if not any(is_beneath(one, path) for one in hidden) or not os.path.isdir(path):
            found.add(path)
            continue
        with contextlib.suppress(OSError), os.scandir(path) as entries:
            waiting += [entry.path for entry in entries if not entry.is_symlink()]
    return sorted(found)


def load_packages(packages: Iterable[str], search_path: Iterable[str]) -> list[str]:
    """Imports what answers may import; nothing else of `search_path` can be found afterwards.

    Gives the files and folders of these packages and of those which they have imported. Raises
    `ImportError` for a package that is not there.
    """
    path_before, loaded_before = list(sys.path), set(sys.modules)
    # A fork while a library's own threads work would leave its locks held.
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    os.environ.update(one_thread)
    sys.path += search_path
    try:
        for name in packages:
            importlib.import_module(name)
    finally:
        sys.path[:] = path_before
        for name in one_thread:
            del os.environ[name]
    paths = []
    for name in {name.partition(".")[0] for name in sys.modules.keys() - loaded_before}:
        package = sys.modules[name]
        for path in getattr(package, "__path__", [getattr(package, "__file__", None)]):
            if path is not None:
                paths += [path, f"{path}.libs"]  # wheels keep their shared libraries beside the package
    return paths


def keep_lists_of_modules(search_path: Iterable[str]) -> None:
    """Has the import system keep its lists of the standard library's folders, which answers cannot list.

    A folder that holds `site-packages` cannot be listed without granting the same for those. The lists
    of the folders on `search_path`, the trainer's own, are forgotten.
    """
    for path in set(search_path).difference(sys.path):
        sys.path_importer_cache.pop(path, None)
    for path in sys.path:
        finder: Any = pkgutil.get_importer(path)
        if hasattr(finder, "_fill_cache"):
            finder.find_spec("a_name_that_makes_it_look")
            finder._fill_cache = lambda: None


def import_roots(readable: Iterable[str]) -> dict[str, bool]:
    """Folders among `readable` that hold modules, each with whether answers may import these.

    Some hold the standard library of another interpreter.
    """
    own = set(map(os.path.realpath, sys.path))
    roots = dict.fromkeys(own, True)
    for path in readable:
        if not any(path == one or is_beneath(path, one) for one in own):
            roots.setdefault(os.path.dirname(path), True)  # of a package
            for depth in ("", "*"):
                libraries = map(os.path.dirname, glob(os.path.join(escape(path), depth, "os.py")))
                roots.update(dict.fromkeys(libraries, False))
    return roots


def find_originals(path: str, roots: Mapping[str, bool]) -> list[str]:
    """Where the module can be read whose place beneath an import root is `path`; empty if it is nowhere.

    These are its files, compiled ones included, archives beside it that hold copies of modules, and the
    standard libraries of other interpreters.
    """
    folder, name = os.path.split(path.removesuffix(".py"))
    found: list[str] = []
    for root in (one for one, is_own in roots.items() if is_own):
        for compiled in ("", "__pycache__"):
            found += glob(os.path.join(escape(os.path.join(root, folder, compiled)), f"{escape(name)}.*"))
    if not found:
        return []
    bundles = (os.path.join(root, name) for root, is_own in roots.items() for name in _BUNDLES if is_own)
    return [*found, *filter(os.path.exists, bundles), *(root for root, is_own in roots.items() if not is_own)]


def is_beneath(path: str, folder: str) -> bool:
    """Whether a path lies inside of a folder, by their names."""
    return path.startswith(folder.rstrip("/") + "/")


STACK_BYTES = 64 << 20
OPEN_FILES = 256 + MOST_RUNS
KEPT_ORIGINALS = 16
SIGNALS_SCOPED = 6  # from this ABI on Landlock keeps signals inside
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
LINUX_CAPABILITY_VERSION_3 = 0x2008_0522
_LIMITED = (
    resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_NPROC, resource.RLIMIT_STACK,
    resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_AS,
)  # fmt: skip

Step = Callable[[Mapping[str, Any]], None]


class LayerStack:
    """The layers `wanted`, as far as this kernel has them; `missing` says why it lacks the others.

    Making one changes this process, a worker: what every answer inherits from it is done once, here
    (privileges, the limits that are the same for all). `readable` and `writable` are the files and
    folders that an answer may use, `user_tasks` how many threads the user may have in all.
    Namespaces are not applied by answers: their worker lives in them.

    With `runnable` folders, a process may start processes and the programs there, and its own folder is the
    `folder` among its limits; then the names of all files in the folders `listable` can be seen.
    """

    def __init__(
        self,
        wanted: Collection[Layer],
        readable: Sequence[str],
        writable: Sequence[str],
        user_tasks: int,
        *,
        runnable: Sequence[str] = (),
        listable: Sequence[str] = (),
    ) -> None:
        self.missing: dict[Layer, str] = {}
        self.allows_processes = bool(runnable)
        self._readable, self._writable = [*readable, *runnable], writable
        self._import_roots: dict[str, bool] = {}
        self._originals: dict[str, tuple[list[str], int]] = {}  # with their rules, -1 for none
        self._steps: dict[Layer, Step] = {}
        prepare: dict[Layer, Callable[[], Step]] = {
            Layer.RESOURCES: lambda: limit_worker(user_tasks),
            Layer.PRIVILEGES: _drop_privileges,
            Layer.LANDLOCK: lambda: _make_landlock(readable, writable, runnable, listable),
            Layer.SECCOMP: lambda: _make_seccomp(self.allows_processes, Layer.LANDLOCK in self),
        }
        for layer in (one for one in prepare if one in wanted):
            try:
                self._steps[layer] = prepare[layer]()
            except OSError as error:
                self.missing[layer] = str(error)
        if self._steps.keys() & {Layer.LANDLOCK, Layer.SECCOMP}:
            no_new_privileges()  # the kernel demands it

    def __contains__(self, layer: Layer) -> bool:
        return layer in self._steps

    @property
    def lets_processes_start(self) -> bool:
        """Whether no layer forbids an answer to start processes."""
        return self.allows_processes or Layer.SECCOMP not in self

    def prepare(self, completes: str) -> None:
        """Looks up, in the worker, what is installed of a module that an answer completes. Raises `OSError`.

        The answer's process cannot read it then. Hundreds of rules take milliseconds, so some are kept.
        """
        if not completes or completes in self._originals:
            return
        while len(self._originals) >= KEPT_ORIGINALS:
            _, rules = self._originals.pop(next(iter(self._originals)))
            if rules != -1:
                os.close(rules)
        readable, rules = list(map(os.path.realpath, self._readable)), -1
        self._import_roots = self._import_roots or import_roots(readable)
        found = find_originals(completes, self._import_roots)
        if found and Layer.LANDLOCK in self:
            kept = without(readable, set(map(os.path.realpath, found)))
            rules = make_reading_ruleset([*kept, *self._writable])
        self._originals[completes] = found, rules

    def originals(self, completes: str) -> list[str]:
        """What `prepare` has found."""
        return self._originals[completes][0] if completes else []

    def apply(self, limits: Mapping[str, Any]) -> None:
        """Applies every layer to this process, for good. Raises `OSError`."""
        _, rules = self._originals.get(limits.get("completes", ""), ([], -1))
        for layer, step in self._steps.items():
            step(limits)
            if layer is Layer.LANDLOCK and rules != -1:
                restrict_self(rules)

    def test(self, limits: Mapping[str, Any], in_namespaces: bool, report: int) -> NoReturn:
        """Applies the layers to this process, tries to break each one, and writes to `report` which hold.

        A layer may be accepted by the kernel and not hold. The text is JSON: `holds`, names of
        layers, and `fails`, the reason for each other one. Then the process ends.
        """
        holds: list[str] = []
        fails: dict[str, str] = {}
        steps = {Layer.NAMESPACES: lambda _: None, **self._steps} if in_namespaces else self._steps
        for layer, step in steps.items():
            try:
                step(limits)
            except OSError as error:
                fails[layer.value] = f"it cannot be applied: {error}"
                break
            if (breach := _breach(layer, limits, self.allows_processes)) is None:
                holds.append(layer.value)
            else:
                fails[layer.value] = breach
        os.write(report, json.dumps({"holds": holds, "fails": fails}).encode("ascii"))
        os._exit(0)


def limit_worker(user_tasks: int) -> Step:
    """Limits this process, and its children with it, in what is the same for every answer, for good.

    Gives the function that limits an answer's process in the rest (`memory_bytes`, `cpu_seconds`,
    `file_bytes`), the backstop of what its worker watches from outside.
    """
    hard = {what: resource.getrlimit(what)[1] for what in _LIMITED}
    _limit(hard, resource.RLIMIT_NOFILE, OPEN_FILES)
    _limit(hard, resource.RLIMIT_CORE, 0)
    _limit(hard, resource.RLIMIT_NPROC, user_tasks)
    _limit(hard, resource.RLIMIT_STACK, STACK_BYTES)

    def limit_answer(limits: Mapping[str, Any]) -> None:
        # A process at its hard limit of CPU time is killed; one second earlier it is told so by SIGXCPU.
        _limit(hard, resource.RLIMIT_CPU, math.ceil(limits["cpu_seconds"]) + 2, earlier=1)
        _limit(hard, resource.RLIMIT_FSIZE, limits["file_bytes"])
        if LINUX:  # elsewhere it is refused or ignored
            _limit(hard, resource.RLIMIT_AS, limits["memory_bytes"])

    return limit_answer


def _limit(hard: Mapping[int, int], what: int, value: int, *, earlier: int = 0) -> None:
    value = value if hard[what] == resource.RLIM_INFINITY else min(value, hard[what])
    resource.setrlimit(what, (value - earlier, value))


def no_new_privileges() -> None:
    """From here on no program run by this process gains rights (set-uid, file capabilities)."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Empties the effective, permitted and inheritable sets, and with them the ambient one."""
    this_process = struct.pack("=Ii", LINUX_CAPABILITY_VERSION_3, 0)
    checked(libc.capset(this_process, bytes(24)), "capset")  # three sets of 64 bits


def drop_bounding_set() -> None:
    """Empties the bounding set, so that no program run later gains a capability from its file.

    Children inherit it: once in a worker is enough. Without CAP_SETPCAP it is left as it is.
    """
    with contextlib.suppress(OSError):  # beyond the kernel's last one, or not permitted
        for capability in range(64):
            prctl(PR_CAPBSET_DROP, capability)


def _drop_privileges() -> Step:
    drop_bounding_set()
    drop_capabilities()
    no_new_privileges()
    return lambda _: None


def _make_landlock(
    readable: Sequence[str], writable: Sequence[str], runnable: Sequence[str], listable: Sequence[str]
) -> Step:
    ruleset = make_ruleset(readable, writable, runnable=runnable, listable=listable)
    if not runnable:
        return lambda _: restrict_self(ruleset)
    # Hundreds of rules would take milliseconds for each command: the second set, which keeps the folders of
    # others away, has a few only, since both must allow what is done.
    others = os.path.realpath(writable[0])
    real = map(os.path.realpath, (*readable, *runnable))
    outer = list(dict.fromkeys(_apart_from(path, others) for path in real))

    def restrict(limits: Mapping[str, Any]) -> None:
        restrict_self(ruleset)
        own = make_ruleset((), [limits.get("folder", os.devnull), os.devnull], runnable=outer)
        restrict_self(own)
        os.close(own)

    return restrict


def _apart_from(path: str, folder: str) -> str:
    """The outermost folder above a path, or the path, that does not hold `folder`."""
    ends = (at for at, char in enumerate(f"{path}/") if char == "/" and at)
    return next((path[:end] for end in ends if not is_beneath(f"{folder}/", path[:end])), path)


def _make_seccomp(processes: bool, behind_landlock: bool) -> Step:
    if not seccomp.supported():
        raise OSError("this kernel has no seccomp filters")
    signals = processes and behind_landlock and abi() >= SIGNALS_SCOPED
    program = seccomp.build_program(os.uname().machine, processes=processes, signals=signals)
    install = seccomp.installer(program)
    return lambda _: install(os.getpid())


_STARTED = "processes can be started"
# What each layer must refuse with EPERM or EACCES, and what it means if it does not.
_REFUSED: dict[Layer, tuple[tuple[str, Callable[[], object]], ...]] = {
    Layer.PRIVILEGES: (("capabilities are left", lambda: os.chroot("/")),),
    Layer.LANDLOCK: (("folders outside can be listed", lambda: os.listdir("/")),),
    Layer.SECCOMP: (
        ("sockets can be had", socket.socket),
        (_STARTED, lambda: os.fork() or os._exit(0)),
        ("signals reach other processes", lambda: os.kill(os.getppid(), 0)),
    ),
}


def _breach(layer: Layer, limits: Mapping[str, Any], allows_processes: bool) -> str | None:
    """What is still possible behind a layer that should prevent it; None if the layer holds."""
    if layer is Layer.NAMESPACES:
        if os.getppid() != 1:
            return "processes of the host can be seen"
        if [name for _, name in socket.if_nameindex() if name != "lo"]:
            return "network devices of the host can be seen"
        if os.path.exists("/home") or os.path.exists("/etc/passwd"):
            return "files of the host can be seen"
    if layer is Layer.RESOURCES:
        is_limited = resource.getrlimit(resource.RLIMIT_FSIZE) == (limits["file_bytes"],) * 2
        return None if is_limited else "the size of files is not limited"
    for failure, action in _REFUSED.get(layer, ()):
        if failure == _STARTED and allows_processes:
            continue
        try:
            action()
        except PermissionError:
            continue
        except OSError as error:
            return f"{failure}: {error}"
        return failure
    return None
